"""Systems compared from their transcripts: like with like, ranks and words that a reader can trust."""

import json
from pathlib import Path
from typing import Any

import pytest

from whispertune.comparison import SHOWN_CLIPS, compare_transcripts
from whispertune.errors import DataError, UsageError, WhispertuneError
from whispertune.scoring.transcripts import Transcripts

SAID = "one bright morning in may"
RIGHT, WRONG, WORSE = SAID, "one bright morning in day", "won bright mourning in day"


def system(name: str, hypothesis: str | list[str] = RIGHT, clips: int = 24, **more: Any) -> Transcripts:
    texts = [hypothesis] * clips if isinstance(hypothesis, str) else hypothesis
    rows = [
        {"id": f"c{k:03}", "language": "en", "reference": SAID, "hypothesis": text}
        for k, text in enumerate(texts)
    ]
    return Transcripts(name, rows, **{"source": Path(f"out/{name}.jsonl"), "decode": {"beam": 1}, **more})


def changed(of: Transcripts, k: int, **fields: Any) -> Transcripts:
    rows = [dict(row) for row in of.rows]
    rows[k] |= fields
    return Transcripts(of.name, rows, of.columns, of.decode, of.source)


def compare(*systems: Transcripts, **options: Any) -> dict[str, Any]:
    return compare_transcripts(systems, **{"resamples": 1000, **options})


# -- what is refused ----------------------------------------------------------------------------------------

A, B = system("a"), system("b", WRONG)


@pytest.mark.parametrize(
    ("systems", "options", "kind", "what", "hint"),
    [
        ([A], {}, UsageError, "1 system to compare, and it takes 2 or more", "give stock first, then what is measured against it"),
        ([A, B], {"goal": "bleu"}, UsageError, "there is no goal 'bleu' here", "goals are wer and cer"),
        (
            [A, system("b", clips=22)],
            {},
            DataError,
            "the clips differ: 24 in a, 22 in b, 22 in both ('c022' only in a)",
            "transcribe the same clips with every system",
        ),
        (
            [system("c", clips=22), A],
            {},
            DataError,
            "the clips differ: 22 in c, 24 in a, 22 in both ('c022' only in a)",
            "transcribe the same clips with every system",
        ),
        (
            [A, B, changed(system("c"), 3, reference="another")],
            {},
            DataError,
            "clip 'c003' has two references: 'one bright morning in may' in a, 'another' in c",
            "score all systems against the same texts: --references FILE",
        ),
        (
            [A, changed(B, 2, language="cs")],
            {},
            DataError,
            "clip 'c002' is en in a and cs in b, and their texts are normalised by different rules",
            "a column language in --references says which it is, or --language where no file does",
        ),
        (
            [A, system("b", decode={"beam": 5, "engine": "x"})],
            {},
            DataError,
            "a and b were decoded differently: beam was 1 and 5",
            "transcribe again with the same engine and options",
        ),
        (
            [changed(system("a", clips=1), 0, reference="[noise]")] * 2,
            {},
            DataError,
            "WER is undefined: 1 references have 0 words between them once normalised",
            "compare on clips with speech in them",
        ),
    ],
)
def test_only_like_is_compared_with_like(systems, options, kind: type[WhispertuneError], what: str, hint: str):
    with pytest.raises(kind) as caught:
        compare(*systems, **options)
    assert (caught.value.what, caught.value.hint) == (what, hint)


# -- two systems --------------------------------------------------------------------------------------------


def test_two_systems_begin_as_a_report_does():
    found = compare(system("stock", WRONG), system("tuned", [RIGHT] * 23 + [WRONG]))
    assert list(found)[:8] == ["verdict", "goal", "before", "after", "difference", "guards", "words", "clips"]
    assert (found["verdict"], found["goal"], found["before"], found["guards"]) == ("better", "wer", 20.0, [])
    assert found["after"] == pytest.approx(20 / 24) and found["difference"]["high"] < 0
    assert (found["words"], found["clips"], found["recommended"]) == (120, 24, "tuned")
    assert found["sentence"].startswith("BETTER on your clips (these 24 clips): 20.0 → 0.8 % WER")
    assert [(s["name"], s["rank"]) for s in found["systems"]] == [("stock", 2), ("tuned", 1)]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [(WRONG, RIGHT, "better"), (RIGHT, WRONG, "worse"), (WRONG, WRONG, "no_difference")],
)
def test_the_verdict(before: str, after: str, verdict: str):
    found = compare(system("stock", before), system("tuned", after))
    assert found["verdict"] == verdict
    ranks = {"better": [2, 1], "worse": [1, 2], "no_difference": [1, 1]}[verdict]
    assert [s["rank"] for s in found["systems"]] == ranks


def test_the_order_of_clips_does_not_matter():
    shuffled = Transcripts("b", list(reversed(B.rows)), decode=B.decode)
    assert compare(A, shuffled)["pairs"] == compare(A, B)["pairs"]


def test_clips_on_which_they_part_most_come_first_and_with_their_words():
    heard = [WRONG, *[RIGHT] * 22, WORSE]
    found = compare(A, system("b", heard, columns={"speaker": {"c023": "s7"}}))["clips_changed"]
    assert [clip["id"] for clip in found] == ["c023", "c000"]
    assert (found[0]["speaker"], found[0]["reference"], found[0]["reference_length"]) == ("s7", SAID, 5)
    assert [(h["system"], h["text"], h["errors"]) for h in found[0]["heard"]] == [("a", RIGHT, 0), ("b", WORSE, 3)]
    assert [d for d in found[1]["heard"][1]["differences"] if d["op"] != "equal"] == [
        {"op": "substitute", "reference": "may", "hypothesis": "day"}
    ]
    many = compare(system("a", RIGHT, 100), system("b", WRONG, 100))
    assert len(many["clips_changed"]) == SHOWN_CLIPS and many["systems"][1]["clips_worse"] == 100


def test_what_a_system_is_counted_by():
    loop = "one bright morning in may " + "the " * 30
    found = compare(A, system("b", [WRONG, "", loop, *[RIGHT] * 21], rtf=0.25, size_mb=75.0))["systems"]
    assert list(found[1])[:10] == [
        "name", "rank", "wer", "cer", "substitutions", "deletions", "insertions", "loops", "sentence_accuracy",
        "difference",
    ]  # fmt: skip
    assert (found[1]["substitutions"], found[1]["deletions"], found[1]["insertions"]) == (1, 5, 30)
    assert (found[1]["loops"], found[1]["empty"], found[1]["clips_worse"], found[1]["clips_same"]) == (1, 1, 3, 21)
    assert (found[1]["rtf"], found[1]["size_mb"], found[1]["cost_per_hour"]) == (0.25, 75.0, None)
    assert (found[0]["difference"], found[0]["rtf"]) == (None, None)


def test_speakers_and_recordings_are_drawn_where_they_are_known():
    speakers = {"speaker": {f"c{k:03}": f"s{k // 2}" for k in range(60)}}
    found = compare(system("a", RIGHT, 60), system("b", WRONG, 60, columns=speakers))
    assert (found["difference"]["level"], found["difference"]["groups"]) == ("speaker", 30)
    assert found["speaks_for"] == "these 30 speakers"
    one = {"speaker": dict.fromkeys(speakers["speaker"], "s"), "recording": speakers["speaker"]}
    found = compare(system("a", RIGHT, 60, columns=one), system("b", WRONG, 60))
    assert (found["difference"]["level"], found["speaks_for"]) == ("recording", "this voice")


# -- several ------------------------------------------------------------------------------------------------


def test_several_are_ranked_and_ties_are_said():
    names = ("stock", "good", "also good", "bad")
    heard = (WRONG, RIGHT, [*[RIGHT] * 23, WRONG], WORSE)
    found = compare(*(system(name, text) for name, text in zip(names, heard, strict=True)))
    assert "verdict" not in found and list(found)[:4] == ["goal", "words", "clips", "sentence"]
    assert [s["rank"] for s in found["systems"]] == [3, 1, 1, 4]
    assert found["sentence"] == (
        "good and also good share the first place for these 24 clips: 0.0 to 0.8\u202f% WER; "
        "nothing tells them apart."
    )
    assert len(found["pairs"]) == 6
    assert found["reasons"][0] == (
        "24 clips with 120 words; 95 % intervals from 2,400 resamples of 24 clips, the same for all systems."
    )
    found = compare(*(system(name, text) for name, text in zip("abc", (WRONG, RIGHT, WORSE), strict=True)))
    assert found["sentence"] == (
        "b is best for these 24 clips: 0.0\u202f% WER, −20.0\u202fpoints [−20.0, −20.0] against a."
    )
    found = compare(A, system("b"), system("c", WRONG))
    assert found["sentence"].endswith("nothing tells them apart. None is better than a beyond chance.")
    assert "tells these 3 systems apart for these 24 clips" in compare(A, system("b"), system("c"))["sentence"]
    few = compare(*(system(name, clips=3) for name in "abc"))
    assert few["reasons"] == ["3 clips with 15 words in 3 groups are too few for an interval."]


def test_systems_of_one_name_are_told_apart():
    same = [system("a", source=Path(f"{folder}/a.jsonl")) for folder in ("x", "y", "y")]
    assert [s["name"] for s in compare(*same)["systems"]] == ["x/a", "y/a (1)", "y/a (2)"]


# -- goal, language, what is not known ----------------------------------------------------------------------


def in_language(of: Transcripts, code: str | None, columns: dict[str, dict[str, str]] | None = None) -> Transcripts:
    return Transcripts(of.name, [{**row, "language": code} for row in of.rows], columns or {}, of.decode)


def test_characters_come_first_where_words_are_not_parted():
    assert compare(in_language(A, "zh"), in_language(B, "zh"))["goal"] == "cer"
    assert compare(in_language(A, "zh"), in_language(B, "zh"), goal="wer")["goal"] == "wer"
    assert compare(A, B, goal="cer")["difference"]["metric"] == "CER"


def test_a_language_that_nothing_names_is_said():
    nothing = in_language(A, None), in_language(B, None)
    found = compare(*nothing)
    assert found["settings"]["normalizer"]["name"] == "unicode-1"
    assert found["notes"] == [
        "No language is stated for 24 of 24 clips: they were compared without the rules of any language. "
        "--language says which it is."
    ]
    found = compare(*nothing, language="en")
    assert (found["settings"]["normalizer"]["name"], found["notes"]) == ("english-1", [])
    detected = [{"detected_language": {r["id"]: code for r in A.rows}} for code in ("en", "cy")]
    found = compare(in_language(A, None, detected[0]), nothing[1])
    assert found["settings"]["normalizer"]["name"] == "english-1"
    assert found["notes"] == [
        "The language is what the systems detected: en in 24 clips. --language says which it is."
    ]
    with pytest.raises(DataError, match="clip 'c000' is en in a and cy in b"):
        compare(*(in_language(s, None, d) for s, d in zip((A, B), detected, strict=True)))
    assert compare(*(in_language(s, None, d) for s, d in zip((A, B), detected, strict=True)), language="en")


def test_decoding_that_is_not_stated_is_noted():
    assert compare(A, system("b", decode=None))["notes"] == [
        "b does not state how it was decoded: whether the systems decoded alike is not known."
    ]
    assert compare(system("a", decode=None), system("b", decode=None))["notes"][0].startswith("a and b do not ")
    assert compare(A, system("b", decode={"beam": 1, "engine": "x"}))["notes"] == [
        "Not all decoding options are stated for every system: only those stated were compared."
    ]


def test_several_processes_count_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("whispertune.comparison.PART", 5)
    told = []
    systems = A, system("b", [WRONG, WORSE] * 12)
    alone = compare(*systems, progress=lambda done, total: told.append((done, total)))
    assert told == [(5, 24), (10, 24), (15, 24), (20, 24), (24, 24)]
    assert compare(*systems, workers=2) == alone
    monkeypatch.undo()
    assert compare(*systems) == alone
