"""The report page: the verdict comes first, nothing is loaded or run, any text and any gap is survived."""

import copy
import difflib
import functools
import io
import json
import math
import re
import shutil
import struct
import subprocess
import wave
from html.parser import HTMLParser
from typing import Any

import pytest

from whispertune.report_figures import unbroken
from whispertune.report_page import render_page

VOID = {"meta", "link", "br", "hr", "img", "input"}
HOSTILE = (
    """</script><script>alert("x")</script>'"><img src=http://evil.example/x onerror=alert(1)>&amp;"""
    """</style></textarea>--><b onclick=alert(1)>{{ 7*7 }}"""
)


@functools.cache
def tone(seconds: float = 1.5, hz: float = 220.0) -> bytes:
    samples = [round(9000 * math.sin(2 * math.pi * hz * i / 16000)) for i in range(int(16000 * seconds))]
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return out.getvalue()


OPS = {"equal": "equal", "replace": "substitute", "delete": "delete", "insert": "insert"}


def differences(reference: str, hypothesis: str) -> list[dict[str, str]]:
    ref, hyp = reference.split(), hypothesis.split()
    matcher = difflib.SequenceMatcher(None, ref, hyp, autojunk=False)
    return [
        {"op": OPS[tag], "reference": " ".join(ref[a:b]), "hypothesis": " ".join(hyp[c:d])}
        for tag, a, b, c, d in matcher.get_opcodes()
    ]


def errors(parts: list[dict[str, str]]) -> int:
    wrong = [part for part in parts if part["op"] != "equal"]
    return sum(max(len(part["reference"].split()), len(part["hypothesis"].split())) for part in wrong)


def changed(name: str, speaker: str | None, reference: str, before: str, after: str) -> dict[str, Any]:
    was, now = differences(reference, before), differences(reference, after)
    return {
        "set": "test", "id": f"id-{name}", "file_name": f"{name}.flac", "speaker": speaker,
        "reference": reference, "before": before, "after": after,
        "errors_before": errors(was), "errors_after": errors(now), "reference_words": len(reference.split()),
        "differences_before": was, "differences_after": now,
    }  # fmt: skip


CLIPS = [
    changed("spk012/utt_0041", "012", "the fox ran over the hill", "the " * 52, "the fox ran over the hill"),
    changed("spk044/utt_0007", "044", "my brother has a red kite and a blue one",
            "my brother has a red cat and a blue", "my brother has a red kite and a blue one"),
    changed("spk101/utt_0113", "101", "we found six little shells on the beach",
            "we found sick little cells on the", "we found six little shells on beach"),
    changed("spk007/utt_0002", None, "can you see the moon", "", "can you see the moon"),
    changed("spk088/utt_0020", "088", "she sat down by the old gate", "she sat down by the old gate",
            "she sat down by the the cold gate today"),
]  # fmt: skip


def difference(
    point: float, low: float, high: float, groups: int = 64, level: str = "speaker"
) -> dict[str, Any]:
    better = 1.0 if high < 0 else 0.0 if low > 0 else 0.613
    return {
        "point": point, "low": low, "high": high, "level": level, "groups": groups, "resamples": 10000,
        "probability_better": better,
    }  # fmt: skip


def score(
    wer: float, cer: float, sdi: tuple[int, int, int], words: int, right: float, loops: int, clips: int
) -> dict[str, Any]:
    return {
        "wer": wer, "cer": cer, "substitutions": sdi[0], "deletions": sdi[1], "insertions": sdi[2],
        "lost_at_start": 1, "lost_at_end": 2,
        "reference_words": words, "sentence_accuracy": right, "loops": loops, "empty": 0, "over_100": loops,
        "wer_without_loops": wer - loops, "raw_wer": 98.0, "clips": clips,
    }  # fmt: skip


def probe(
    name: str,
    change: str,
    status: str,
    before: float,
    found: tuple[float, float, float],
    metric: str = "share",
    tolerance: float = 20.0,
) -> dict[str, Any]:
    return {
        "name": name, "change": change, "status": status, "before": before, "after": before + found[0],
        "difference": {**difference(*found, groups=24, level="clip"), "metric": metric}, "tolerance": tolerance,
    }  # fmt: skip


def better() -> dict[str, Any]:
    return {
        "verdict": "better", "goal": "wer", "before": 43.2, "after": 24.9,
        "difference": difference(-18.3, -21.0, -15.7),
        "guards": [
            {"name": "read-en", "before": 4.1, "after": 4.3, "difference": difference(0.2, -0.3, 0.7, 40),
             "status": "passed", "tolerance": 1.0},
            {"name": "calls-en", "before": 16.1, "after": 17.4, "status": "unproven", "tolerance": 1.0,
             "difference": difference(1.3, -0.6, 3.2, 31, "recording")},
        ],
        "words": 1204, "clips": 169,
        "sentence": "BETTER for these 64 speakers: 43.2 → 24.9 % WER, −18.3 points [−21.0, −15.7].",
        "reasons": ["The interval of the difference lies below zero.", "No guard failed."],
        "speaks_for": "these 64 speakers",
        "sets": {
            "test": {"before": score(43.2, 21.0, (300, 50, 170), 1204, 22.0, 3, 169),
                     "after": score(24.9, 11.4, (201, 49, 50), 1204, 41.4, 0, 169),
                     "clips_better": 120, "clips_worse": 9, "clips_same": 40},
            "read-en": {"before": score(4.1, 1.6, (60, 11, 12), 2020, 71.0, 0, 101),
                        "after": score(4.3, 1.7, (63, 11, 13), 2020, 70.2, 0, 101),
                        "clips_better": 6, "clips_worse": 8, "clips_same": 87},
        },
        "keywords": {"words": ["Veltrimab", "Orlotek", "Mistvale", "Quenby Hall", "Zarodine", "Korrigan"],
                     "before": {"hits": 12, "total": 80}, "after": {"hits": 71, "total": 80}},
        "probes": [
            probe("no speech", "text on 7 → 9 of 24 windows without speech", "unproven", 29.2, (8.3, -9.6, 26.3)),
            probe("long-form", "36.7 → 26.0 % WER on 7 files of a minute and more", "passed", 36.7,
                  (-10.7, -18.8, -1.8), "WER", 1.0),
            probe("prompt", "7 → 5 errors on 24 keywords in the prompt", "passed", 29.2, (-8.3, -32.5, 13.2)),
            {"name": "language", "change": "not tried: there are no test clips", "status": "information"},
            {"name": "style", "change": "all capitals 0 → 0 %", "status": "information"},
        ],
        "free": [
            {"name": "tiny.en with 40 keywords as prompt", "rate": 41.0, "matches": False,
             "difference_to_tuned": difference(16.1, 12.0, 20.3)},
            {"name": "base.en", "rate": 25.6, "matches": True, "difference_to_tuned": difference(0.7, -1.9, 3.3)},
        ],
        "tradeoff": {
            "curve": [{"share": share, "dev": 44.0 - 19 * share, "guards": {"read-en": 4.1 + share}}
                      for share in (0.0, 0.5, 0.7, 1.0)],
            "chosen": 0.7, "reason": "keeps 73 % of the gain on dev, forgets less",
        },
        "slices": {
            "snr": [{"value": f"value {n}", "clips": n + 1, "words": 10 * n, "before": 43.0, "after": 25.0,
                     "difference": difference(-18.0, -25.0, -11.0)} for n in range(14)],
            "recorded_on": [{"value": "a phone", "clips": 4, "words": 31, "before": 20.0, "after": 22.0,
                             "difference": {"point": 2.0, "low": None, "high": None}}],
        },
        "confusions": [{"said": "kite", "heard": "cat", "before": 4, "after": 1}],
        "speed": {"before": {"seconds": 61.0, "rtf": 0.1017}, "after": {"seconds": 59.0, "rtf": 0.0983}},
        "curves": {
            "loss": [[n, 0.42 + 2.1 * math.exp(-n / 14) + 0.09 * math.sin(n * 2.3)] for n in range(1, 94)],
            "dev_wer": [[0, 44.0], [8, 37.1], [16, 31.0], [24, 28.2], [32, 26.1], [40, 25.0], [48, 25.3],
                        [56, 25.2], [64, 25.9], [72, 25.6], [80, 25.8], [88, 25.7], [93, 25.7]],
            "best_step": 40, "steps": 93,
        },
        "clips_changed": copy.deepcopy(CLIPS),
        "settings": {
            "plan": [
                {"name": "method", "value": "full", "reason": "tiny.en with optimizer takes 0.6 of 24 GB"},
                {"name": "learning rate", "value": "2e-05", "reason": "default of tiny.en, full fine-tuning"},
                {"name": "precision", "value": "fp32", "reason": "bf16 measured 0.02 TFLOP/s, fp32 0.31"},
                {"name": "speech a step", "value": "60 s", "reason": "2,700 s make 45 steps a pass"},
                {"name": "passes", "value": "3", "reason": "default"},
            ],
            "decode": {"engine": "torch", "beam": 1, "temperature": [0.0, 0.2, 0.4], "timestamps": False},
            "normalizer": {"name": "english-1", "description": "lower case, American spelling, digits apart"},
            "model": {"name": "tiny.en", "fingerprint": "9f2c41aa07d3"},
            "corpus": {"name": "child-en", "fingerprint": "51be77c09e12", "clips": 773, "hours": 0.75},
            "recipe": {"train": {"learning_rate": 2e-05, "passes": 3, "method": "full", "seed": 1},
                       "windows": {"timestamps": 0.5, "prompt": 0.3, "glossary": None}, "language": None},
            "versions": {"whispertune": "0.1.0", "torch": "2.13.0+cpu", "transformers": "5.24.0"},
            "machine": "2 cores, 24 GB, no GPU",
        },
        "time": {"baseline_s": 143.0, "labels_s": 9.0, "alternatives_s": 0.0, "training_s": 400.0, "evaluation_s": 150.0, "total_s": 720.0},
        "next": "whispertune export runs/child-1 --format hf --to child-en-tiny",
        "notes": ["The general speech of calls-en is unproven: 31 recordings are too few."],
    }  # fmt: skip


def worse() -> dict[str, Any]:
    report = better()
    report["guards"] = [
        {"name": "read-en", "before": 16.1, "after": 19.4, "difference": difference(3.3, 1.4, 5.3, 40),
         "status": "failed", "tolerance": 1.0}
    ]  # fmt: skip
    return report | {
        "verdict": "worse",
        "sentence": "WORSE: read-en 16.1 → 19.4 % WER, +3.3 points [+1.4, +5.3].",
        "reasons": ["read-en rose by 3.3 points; 1.0 is allowed and the interval excludes zero."],
        "next": "whispertune train child-en --model tiny.en --set train.method=lora",
        "notes": [], "keywords": None,
    }  # fmt: skip


def no_difference() -> dict[str, Any]:
    report = better()
    for side in ("before", "after"):
        report["sets"]["test"][side]["cer"] = None
    del report["sets"]["read-en"]
    return report | {
        "verdict": "no_difference", "before": 43.2, "after": 42.8, "guards": [],
        "difference": difference(-0.4, -2.1, 1.3, 9, "clip"),
        "sentence": "NO MEASURABLE DIFFERENCE for this voice.", "reasons": [],
        "words_to_decide": 25_812, "speaks_for": "this voice", "keywords": None, "notes": ["the speech is synthetic"],
    }  # fmt: skip


def lost() -> dict[str, Any]:
    """Worse by a probe alone: prompts no longer help."""
    report = better() | {"verdict": "worse", "notes": []}
    report["probes"][2] = probe(
        "prompt", "5 → 15 errors on 24 keywords in the prompt", "failed", 20.8, (41.7, 18.2, 61.0)
    )
    report["sentence"] = (
        "WORSE: it got better on your clips (these 64 speakers, 43.2 → 24.9 % WER), but prompt got worse: "
        "5 → 15 errors on 24 keywords in the prompt, tolerance +20. Keep the base model."
    )
    return report


def audio() -> dict[str, bytes]:
    return {CLIPS[0]["id"]: tone(), CLIPS[1]["id"]: tone(2.0, 330), "not-on-the-page": tone(0.1)}


class Page(HTMLParser):
    """Parses strictly: every element is closed in order, and what the page says is collected by element."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.starts: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self.feed(html)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"attribute twice in <{tag}>"
        self.starts.append((tag, dict(attrs)))
        if tag in {"td", "th", "dd", "dt", "li", "br"}:
            self.texts.append((tuple(self.open), " "))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.starts.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.texts.append((tuple(self.open), data))

    def text(self, inside: str = "body") -> str:
        return re.sub(r"\s+", " ", "".join(data for path, data in self.texts if inside in path)).strip()

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.starts if name == tag]


def page(report: dict[str, Any], sounds: dict[str, bytes] | None = None) -> Page:
    return Page(render_page(report, audio() if sounds is None else sounds))


SAMPLES = {"better": better, "worse": worse, "lost": lost, "no_difference": no_difference}


def blanked(tree: Any, value: Any) -> Any:
    """Every number of the report replaced by `value`."""
    if isinstance(tree, dict):
        return {key: blanked(item, value) for key, item in tree.items()}
    if isinstance(tree, list):
        return [blanked(item, value) for item in tree]
    return value if isinstance(tree, int | float) else tree


# What can go wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_numbers_without_a_value_are_shown_as_undefined(sample, value):
    text = page(blanked(sample(), value)).text()
    assert "undefined" in text
    assert "nan" not in text and "None" not in text and "inf" not in re.findall(r"\w+", text)


def test_an_undefined_goal_is_said_in_words():
    text = page(better() | {"verdict": "no_difference", "goal": "cer", "before": None}).text()
    assert "The character error rate is undefined for these clips, so there is nothing to compare." in text


@pytest.mark.parametrize("key", sorted(set(better()) - {"verdict", "goal"}))
def test_a_report_without_one_of_its_parts_still_renders(key):
    for empty in ("missing", None):
        report = better()
        if empty == "missing":
            del report[key]
        else:
            report[key] = None
        assert "Better" in page(report).text("h1")


def test_a_bare_report_renders():
    assert page({"verdict": "no_difference", "goal": "wer"}, {}).text("h1") == "No measurable difference"


def test_no_guard_is_said_and_not_passed_over():
    assert "General speech not checked. No guard was given" in page(no_difference()).text()
    assert "General speech not checked" not in page(better()).text()


def hostile(tree: Any) -> Any:
    """Hostile text in the place of every text."""
    if isinstance(tree, dict):
        return {key: hostile(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [hostile(item) for item in tree]
    return HOSTILE if isinstance(tree, str) else tree


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_text_of_the_data_never_becomes_markup(sample):
    report = sample()
    spiked = hostile(report)
    spiked |= {"verdict": report["verdict"], "goal": report["goal"]}
    spiked["settings"]["recipe"][HOSTILE] = {HOSTILE: HOSTILE}
    spiked["sets"][HOSTILE] = spiked["sets"]["test"]
    for clip, original in zip(spiked["clips_changed"], report["clips_changed"], strict=True):
        for key in ("differences_before", "differences_after"):
            for part, first in zip(clip[key], original[key], strict=True):
                part["op"] = first["op"]
    html = render_page(spiked, {HOSTILE: tone(0.1)})
    shown = Page(html)
    plain = page(report, dict.fromkeys((clip["id"] for clip in report["clips_changed"]), tone(0.1)))
    assert {tag for tag, _ in shown.starts} <= {tag for tag, _ in plain.starts} | {"b"}
    assert not shown.all("script") and not shown.all("img")
    assert not [name for _, attrs in shown.starts for name in attrs if name.startswith("on")]
    assert HOSTILE in "".join(data for _, data in shown.texts)
    assert "{{ 7*7 }}" in html, "a template in the data was run"
    for tag, attrs in shown.starts:
        if "src" in attrs:
            assert tag == "audio" and re.fullmatch(r"data:audio/wav;base64,[A-Za-z0-9+/]+=*", attrs["src"])


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_the_page_loads_nothing_and_runs_nothing(sample):
    html = render_page(sample(), audio())
    shown = Page(html)
    for tag, attrs in shown.starts:
        for name in ("src", "href", "srcset", "action", "poster", "data", "xlink:href"):
            assert (attrs.get(name) or "#").startswith(("data:", "#")), (tag, name)
    tags = {tag for tag, _ in shown.starts}
    assert not tags & {"script", "link", "iframe", "object", "embed", "base", "form"}
    assert "http:" not in html and "https:" not in html and "@import" not in html and "url(" not in html
    policy = next(attrs["content"] for attrs in shown.all("meta") if attrs.get("http-equiv"))
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; media-src data:"


def test_a_loop_does_not_fill_the_page():
    clip = changed("loop", "1", "stop it now", "stop " + "the " * 2000, "stop it now")
    html = render_page(better() | {"clips_changed": [clip]}, {})
    assert "… (1,976 more words)" in html
    assert html.count("the the the") < 20


def test_a_large_recipe_is_folded_under_its_dotted_names():
    report = better()
    part = {f"knob{n}": [n, {"deep": "x" * 300}] for n in range(40)}
    report["settings"]["recipe"] = {f"part{n}": part for n in range(40)}
    shown = page(report)
    assert "Recipe 1,600 values" in shown.text("details")
    assert "part39.knob39" in shown.text("details")


# What the page says ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sample", "heading", "lead"),
    [
        (
            better,
            "Better for these 64 speakers",
            "For every 100 words, tiny.en made 43.2 mistakes. After tuning it makes 24.9.",
        ),
        (
            worse,
            "Worse on read-en",
            "On the speech it was tuned for, tiny.en went from 43.2 to 24.9 mistakes for every 100 words. "
            "On read-en, which it must not forget, it went from 16.1 to 19.4; at most +1.0 was allowed. "
            "Keep using tiny.en as it was.",
        ),
        (
            lost,
            "Worse on prompts",
            "On the speech it was tuned for, tiny.en went from 43.2 to 24.9 mistakes for every 100 words. "
            "Prompts, which it must not lose: 5 → 15 errors on 24 keywords in the prompt. "
            "Keep using tiny.en as it was.",
        ),
        (
            no_difference,
            "No measurable difference for this voice",
            "For every 100 words, tiny.en made 43.2 mistakes. After tuning it makes 42.8. "
            "Chance alone can explain a difference like that. About 26,000 more words would decide it.",
        ),
    ],
)
def test_the_verdict_comes_first_and_in_plain_words(sample, heading, lead):
    shown = page(sample())
    assert next(tag for tag, _ in shown.starts if re.fullmatch(r"h\d", tag)) == "h1"
    assert len(shown.all("h1")) == 1
    assert shown.text("h1") == heading
    assert shown.text("title").startswith(heading.split(" for ")[0].split(" on ")[0])
    assert lead in shown.text("header")


def test_what_was_lost_is_what_the_bars_show():
    shown = page(lost())
    assert "Before 20.8\u202f% After 62.5\u202f%".replace("\u202f", " ") in shown.text("header")
    assert (
        "Share of tries that went wrong on prompts. Lower is better. "
        "Difference +41.7 points, 95 % interval [+18.2, +61.0]." in shown.text("header")
    )
    assert "in the prompt lost +41.7 points [+18.2, +61.0] allowed +20.0" in shown.text("main")


def test_a_guard_is_not_said_twice():
    report = better()
    report["guards"][0]["sentence"] = "read-en: 4.1 → 4.3 %, within +1"
    report["guards"][1]["sentence"] = "calls-en: 16.1 → 17.4 %, not proven to be within +1"
    report["sentence"] += " Guard calls-en: 16.1 → 17.4 %, not proven to be within +1."
    text = page(report).text()
    assert text.count("read-en: 4.1 → 4.3 %, within +1.") == text.count("calls-en: 16.1 → 17.4 %") == 1


def test_figures_stay_on_one_line():
    text = unbroken("39.3 → 27.5 % WER, −11.8 points [−15.9, −8.0], 20 clips")
    assert text == "39.3\u00a0→\u00a027.5\u00a0% WER, −11.8\u00a0points [−15.9,\u00a0−8.0], 20 clips"


def test_worse_on_its_own_goal_recommends_the_model_as_it_was():
    report = worse() | {"after": 88.0, "difference": difference(44.8, 40.1, 49.0), "guards": []}
    shown = page(report)
    assert shown.text("h1") == "Worse for these 64 speakers"
    assert "After tuning it makes 88.0. Keep using tiny.en as it was." in shown.text("header")
    assert "improved" not in shown.text().lower()


def test_the_numbers_are_on_the_page_with_units_and_a_true_minus():
    text = page(better()).text()
    for shown in (
        "−18.3\u202fpoints", "[−21.0, −15.7]", "43.2\u202f%", "24.9\u202f%", "−18.3\u202fpt",
        "169 test clips, 1,204 words", "120 clips better 40 same 9 worse",
        "95 % of 10,000 redrawings of the same speech gave. For the goal, 64 speakers were redrawn, and",
        "the tuned model made fewer mistakes in all of those draws. The dashed mark",
        "guard, passed", "guard, unproven", "allowed +1.0", "71 of 80", "88.8\u202f%",
        "Difference −18.3\u202fpoints, 95 % interval [−21.0, −15.7].", "7 more counts",
        "12 min in all: baseline 2 min 23 s, labels 9 s, training 6 min 40 s, evaluation 2 min 30 s",
        "learning rate 2e-05 default of tiny.en, full fine-tuning", "train.learning_rate 2e-05",
        "temperature [0.0, 0.2, 0.4]", "english-1", "whispertune export runs/child-1",
        "773 clips, 0.75 h", "2 cores, 24 GB, no GPU", "best, step 40: 25.0",
    ):  # fmt: skip
        assert re.sub(r"\s+", " ", shown) in text, shown
    assert not re.search(r"[^\w]-\d", text.split("Recipe")[0]), "a hyphen stands for a minus sign"
    assert "undefined" not in text


def test_what_was_kept_what_was_free_and_where_it_helps():
    text = page(better()).text()
    for shown in (
        "Silence Does it write nothing where nobody speaks? text on 7 → 9 of 24 windows without speech not proven "
        "+8.3\u202fpoints [−9.6, +26.3] allowed +20.0",
        "36.7 → 26.0 % WER on 7 files of a minute and more kept −10.7\u202fpoints [−18.8, −1.8] allowed +1.0",
        "7 → 5 errors on 24 keywords in the prompt kept",
        "Languages not tried: there are no test clips not judged",
        "Case and punctuation all capitals 0 → 0 % not judged",
        "tiny.en with 40 keywords as prompt 41.0\u202f% worse than tuning: +16.1\u202fpoints [+12.0, +20.3]",
        "base.en 25.6\u202f% not measurably worse than tuning: +0.7\u202fpoints [−1.9, +3.3]",
        "at 70 % of the way from the base to the tuned weights: keeps 73 % of the gain on dev, forgets less.",
        "delivered, 70: 30.7 %", "read-en, the half that chose, %",
        "SNR 12 values", "Recorded on 1 value", "a phone 4 clips, 31 words 20.0 → 22.0\u202f% +2.0\u202fpoints",
        "kite cat 4× 1×", "0.102 → 0.098 s of decoding for a second of speech", "Lost at the end",
    ):  # fmt: skip
        assert re.sub(r"\s+", " ", shown) in text, shown
    assert "value 13" in text and "value 1 " not in text, "those with most words"


@pytest.mark.parametrize(("goal", "metric", "name"), [("keywords", "KER", "keyword"), ("slice:age=8", "WER", "word")])
def test_goals_that_are_no_rate_of_all_clips(goal, metric, name):
    report = {**better(), "goal": goal}
    report["difference"]["metric"] = metric
    assert f"{name.capitalize()} error rate on 169 test clips" in page(report).text()


def test_an_undefined_character_error_rate_is_shown_as_such():
    assert "Character error rate undefined undefined undefined" in page(no_difference()).text("table")


def test_the_drawing_puts_zero_points_and_tolerance_on_one_axis():
    html = render_page(worse() | {"probes": []}, {})
    zero = {float(x) for x in re.findall(r'class="zero" x1="([\d.]+)%"', html)}
    tolerance = float(re.search(r'class="tolerance" x1="([\d.]+)%"', html)[1])
    goal, guard = (float(x) for x in re.findall(r'class="point" cx="([\d.]+)%"', html))
    assert len(zero) == 1
    assert 0 < goal < zero.copy().pop() < tolerance < guard < 100
    scale = (guard - goal) / (3.3 + 18.3)
    assert tolerance == pytest.approx(zero.pop() + scale, abs=0.05)


def test_clips_carry_their_differences_and_a_player_where_there_is_audio():
    shown = page(better())
    assert len(shown.all("article")) == len(CLIPS)
    assert len(shown.all("audio")) == 2
    text = shown.text("article")
    assert "instead of kite cat" in text and "left out one" in text and "added cold" not in text
    assert "spk044/utt_0007.flac" in text and "no text" in text
    assert len(shown.all("input")) == 3, "all, fewer, more"


def test_a_long_curve_is_averaged_and_a_gap_parts_it():
    report = {**better(), "tradeoff": None}
    report["curves"]["loss"] = [[n, 1.0 + n % 2] for n in range(4000)]
    report["curves"]["dev_wer"] = [[0, 40.0], [1000, 30.0], [2000, None], [3000, 26.0], [3999, 25.0]]
    report["curves"]["best_step"] = 3999
    html = render_page(report, {})
    assert "Each point is the mean of 10 values." in html
    lines = re.findall(r'<polyline class="curve" points="([^"]+)"', html)
    assert [len(line.split()) for line in lines] == [400, 2, 2]


@pytest.mark.real
@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_a_browser_renders_it(sample, tmp_path):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium on this machine")
    path = tmp_path / "report.html"
    path.write_text(render_page(sample(), audio()), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    done = subprocess.run(
        [browser, *flags, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown, written = Page(done.stdout), Page(path.read_text(encoding="utf-8"))
    assert shown.text("h1") == written.text("h1")
    tags = [[tag for tag, _ in one.starts] for one in (shown, written)]
    assert tags[0] == tags[1], "the browser had to repair it"
    assert json.dumps(shown.text("main")) == json.dumps(written.text("main"))
