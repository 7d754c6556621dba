"""The comparison page: the result comes first, nothing is loaded or run, any text and any gap is survived."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from test_comparison import RIGHT, WORSE, WRONG, system
from test_report_page import HOSTILE, Page, blanked, hostile

from whispertune.compare_page import render_comparison, write_comparison
from whispertune.comparison import compare_transcripts


def compared(*hypotheses: Any, **options: Any) -> dict[str, Any]:
    names = ("stock", "tuned", "third", "fourth")
    known = ({"rtf": 0.02 * 3**k, "size_mb": 75.0 * 2**k, "cost_per_hour": None} for k in range(4))
    systems = [system(n, h, **k) for n, h, k in zip(names, hypotheses, known, strict=False)]
    return compare_transcripts(systems, resamples=1000, **options)


NEARLY = [*[RIGHT] * 21, WRONG, WRONG, WRONG]
SAMPLES = {
    "better": lambda: compared(WRONG, NEARLY),
    "worse": lambda: compared(NEARLY, WRONG),
    "no_difference": lambda: compared(NEARLY, [*[RIGHT] * 20, *[WRONG] * 2, WORSE, RIGHT], goal="cer"),
    "several": lambda: compared(WRONG, NEARLY, [WRONG, *NEARLY[1:]], WORSE),
    "one leads": lambda: compared(WRONG, RIGHT, WORSE),
    "stock leads": lambda: compared(RIGHT, WRONG, WORSE),
    "all alike": lambda: compared(NEARLY, NEARLY, NEARLY),
}


def page(comparison: dict[str, Any]) -> Page:
    return Page(render_comparison(comparison))


# -- what can go wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_numbers_without_a_value_are_shown_as_undefined(sample, value):
    comparison = sample()
    ranks = [s["rank"] for s in comparison["systems"]]
    comparison = blanked(comparison, value)
    for one, rank in zip(comparison["systems"], ranks, strict=True):
        one["rank"] = rank
    text = page(comparison).text()
    assert "is undefined for these clips, so there is nothing to compare." in text
    assert "nan" not in text and "None" not in text and "inf" not in re.findall(r"\w+", text)


@pytest.mark.parametrize("key", ["speaks_for", "pairs", "clips_changed", "settings", "notes", "reasons", "clips"])
def test_a_comparison_without_one_of_its_parts_still_renders(key: str):
    for sample in ("better", "several"):
        for empty in ("missing", None):
            comparison = SAMPLES[sample]()
            if empty == "missing":
                del comparison[key]
            else:
                comparison[key] = None
            assert page(comparison).text("h1").startswith(("Better", "2 of 4 share the first place"))


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_text_of_the_data_never_becomes_markup(sample):
    comparison = sample()
    spiked = hostile(comparison) | {key: comparison[key] for key in ("verdict", "goal") if key in comparison}
    spiked["settings"]["decode"] = {HOSTILE: {HOSTILE: HOSTILE}}
    for clip, original in zip(spiked["clips_changed"], comparison["clips_changed"], strict=True):
        for heard, first in zip(clip["heard"], original["heard"], strict=True):
            for part, same in zip(heard["differences"], first["differences"], strict=True):
                part["op"] = same["op"]
    html = render_comparison(spiked)
    shown, plain = Page(html), page(comparison)
    more = {"del", "ins", "span", "em", "input", "label", "fieldset", "legend"}
    assert {tag for tag, _ in shown.starts} <= {tag for tag, _ in plain.starts} | more
    assert not shown.all("script") and not shown.all("img")
    assert not [name for _, attrs in shown.starts for name in attrs if name.startswith("on")]
    assert HOSTILE in "".join(data for _, data in shown.texts)
    assert "{{ 7*7 }}" in html, "a template in the data was run"


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_the_page_loads_nothing_and_runs_nothing(sample):
    html = render_comparison(sample())
    shown = Page(html)
    for tag, attrs in shown.starts:
        for name in ("src", "href", "srcset", "action", "poster", "data", "xlink:href"):
            assert (attrs.get(name) or "#").startswith("#"), (tag, name)
    assert not {tag for tag, _ in shown.starts} & {"script", "link", "iframe", "object", "embed", "base", "form"}
    assert "http:" not in html and "https:" not in html and "@import" not in html and "url(" not in html
    policy = next(attrs["content"] for attrs in shown.all("meta") if attrs.get("http-equiv"))
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; media-src data:"


def test_a_loop_does_not_fill_the_page():
    html = render_comparison(compared(["one " + "the " * 2000, *[WRONG] * 23], RIGHT))
    assert "more words)" in html and html.count("the the the") < 20


# -- what it says -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sample", "tone", "heading", "lead"),
    [
        (
            "better",
            "better",
            "Better for these 24 clips",
            "For every 100 words, stock makes 20.0 mistakes, tuned 2.5.",
        ),
        (
            "worse",
            "worse",
            "Worse for these 24 clips",
            "For every 100 words, stock makes 2.5 mistakes, tuned 20.0. Keep using stock.",
        ),
        (
            "several",
            "better",
            "2 of 4 share the first place for these 24 clips",
            "For every 100 words, stock makes 20.0 mistakes. The 2 that lead make 2.5 to 3.3, and chance alone "
            "can explain what lies between those.",
        ),
        (
            "one leads",
            "better",
            "tuned is best for these 24 clips",
            "For every 100 words, stock makes 20.0 mistakes, tuned 0.0.",
        ),
        (
            "stock leads",
            "no_difference",
            "stock is best for these 24 clips",
            "For every 100 words, stock makes 0.0 mistakes.",
        ),
        (
            "all alike",
            "no_difference",
            "No measurable difference for these 24 clips",
            "For every 100 words, stock makes 2.5 mistakes.",
        ),
    ],
)
def test_the_result_is_the_first_thing(sample: str, tone: str, heading: str, lead: str):
    shown = page(SAMPLES[sample]())
    assert shown.all("body")[0]["class"] == tone
    assert shown.text("h1") == heading
    assert lead in shown.text("header")
    assert shown.text("title").startswith(heading)


def test_what_would_decide_it_is_said():
    comparison = SAMPLES["no_difference"]()
    more = comparison["systems"][1]["words_to_decide"]
    assert more > 100
    rounded = f"{round(more, 2 - len(str(more))):,}"
    text = page(comparison).text("header")
    assert f"Chance alone can explain a difference like that. About {rounded} more characters would decide it." in text


def test_every_two_are_listed_only_where_there_are_several():
    assert "Every two of them" not in page(SAMPLES["better"]()).text()
    text = page(SAMPLES["several"]()).text()
    assert "Every two of them" in text and "third → fourth" in text and "third is better" in text
    assert "tuned → third" in text and "not told apart" in text


def test_what_is_known_of_speed_size_and_cost():
    comparison = SAMPLES["several"]()
    text = page(comparison).text()
    assert "WER against speed" in text and "WER against size" in text and "against cost" not in text
    assert "RTF" in text and "US$/h" not in text
    for one in comparison["systems"][1:]:
        one |= {"rtf": None, "size_mb": None}
    text = page(comparison).text()
    assert "What it costs" not in text and "RTF" in text, "one point is no drawing, and the table keeps it"


@pytest.mark.parametrize("rates", [[0.0, 0.0], [5000.0, 0.1], [25.5, 25.5]])
@pytest.mark.parametrize("sizes", [[75.0, 75.0], [0.001, 1e6], [1e-9, 1.0], [9.9, 10.1]])
def test_every_point_and_name_is_within_its_drawing(rates, sizes):
    comparison = compared(WRONG, NEARLY, WORSE)
    for one, rate, size in zip(comparison["systems"], [*rates, rates[0]], [*sizes, sizes[1]], strict=True):
        one |= {"wer": rate, "size_mb": size, "rtf": None}
    html = render_comparison(comparison)
    spots = re.findall(r'class="spot[^"]*" cx="([\d.-]+)" cy="([\d.-]+)"', html)
    names = re.findall(r'class="spot-name[^"]*" x="([\d.-]+)" y="([\d.-]+)"', html)
    assert len(spots) == len(names) == 3
    for x, y in [*spots, *names]:
        assert 0 <= float(x) <= 400 and 0 <= float(y) <= 250
    assert len({y for _, y in names}) > 1 or len({x for x, _ in names}) > 1, "no name over another"


def test_it_is_written_with_its_numbers_beside(tmp_path: Path):
    comparison = SAMPLES["better"]()
    path = write_comparison(comparison, tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "compare.html"
    assert path.read_text("utf-8") == render_comparison(comparison)
    assert json.loads((path.parent / "compare.json").read_text("utf-8")) == comparison
