"""report.json from transcripts: what decides, what guards, and what it says to do next."""

import importlib.resources
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from whispertune.clip import Clip
from whispertune.errors import DataError
from whispertune.plan import Plan
from whispertune.recipe import Recipe
from whispertune.report import build_report, compare_sets, dev_wer, score_sets
from whispertune.report_page import render_page
from whispertune.run import Event, Run
from whispertune.scoring.terms import Terms, terms_of

RECIPE = Recipe().with_changes({"model.name": "tiny.en", "data.corpus": "my clips", "eval.resamples": 1000})
PLAN = Plan(
    device="cpu",
    precision="fp32",
    threads=1,
    text_style="keep",
    learning_rate=1e-3,
    usual_learning_rate=2e-5,
    speech_per_step_s=60.0,
    steps_per_pass=5,
    steps=15,
    micro_batch=4,
    eval_every=2,
    save_every=2,
    dev_windows=3,
    versions={"torch": "2.13"},
    machine="a machine",
    reasons={"steps": "3 passes of 5"},
    warnings=("learning rate 0.001 is 50 times the usual",),
)
GREEDY = {"search": "greedy", "max_new_tokens": 224}


def clips(name: str, count: int, text: str = "one two three four", language: str | None = None) -> list[Clip]:
    return [
        Clip(
            id=f"{name}{i}",
            file_name=f"{name}{i}.wav",
            text=text,
            split="test",
            shard="audio-00000.wav",
            offset=16_000 * i,
            samples=16_000,
            recording=f"{name}{i}.wav",
            language=language,
        )
        for i in range(count)
    ]


def system(sets: list[tuple[str, list[Clip]]], *said: str, decode: dict[str, Any] = GREEDY) -> dict[str, Any]:
    """What a system made of some sets: the same text on every clip of one."""
    rows = {
        name: [
            {"id": c.id, "language": c.language or "en", "reference": c.text, "hypothesis": text} for c in clips_
        ]
        for (name, clips_), text in zip(sets, said, strict=True)
    }
    return {"model": {"name": "m", "fingerprint": "f"}, "decode": decode, "sets": rows}


def terms(recipe: Recipe = RECIPE, sets: list[tuple[str, list[Clip]]] | None = None) -> Terms:
    own = (sets or SETS)[0][1]
    return terms_of(recipe.eval, own, {clip.id: clip.language or "en" for clip in own})


def goal(name: str) -> Recipe:
    return RECIPE.with_changes({"eval.goal": name})


SETS = [("test", clips("t", 30)), ("general", clips("g", 30))]
RIGHT, WRONG = "One, two, three, four!", "one two tree for"


def report(
    tmp_path: Path,
    before: tuple[str, str],
    after: tuple[str, str],
    observed: tuple[dict[str, Any], dict[str, Any]] = ({}, {}),
    **more: Any,
) -> dict[str, Any]:
    run = Run.create(tmp_path / "r", more.pop("recipe", RECIPE))
    emit = run.recorder()
    for name, seconds in (("baseline", 20.0), ("training", 3.0), ("evaluation", 10.0)):
        emit(Event("stage", {"name": name, "state": "begin"}))
        emit(Event("stage", {"name": name, "state": "end", "seconds": seconds}))
    return build_report(
        run,
        PLAN,
        SETS,
        system(SETS, *before) | observed[0],
        system(SETS, *after) | observed[1],
        terms(run.recipe),
        curves={"loss": [[1, 0.5], [2, 0.4]], "dev_wer": [[4, 20.0]], "best_step": 4, "steps": 15},
        corpus={"name": "clips"},
        trained_s=70.0,
        **{"ended": "all steps", **more},
    )


def test_systems_that_did_not_do_the_same_are_not_compared():
    other = system(SETS, RIGHT, RIGHT, decode={**GREEDY, "search": "beam"})
    with pytest.raises(DataError, match=r'search was "greedy" before, "beam" after'):
        compare_sets(SETS, system(SETS, RIGHT, RIGHT), other, terms())


SCHEMA = json.loads(importlib.resources.files("whispertune").joinpath("report.schema.json").read_text("utf-8"))


def offences(found: dict[str, Any]) -> list[str]:
    """Where a report is not as report.schema.json says."""
    return [
        f"{each.json_path}: {each.message}" for each in Draft202012Validator(SCHEMA).iter_errors(json.loads(json.dumps(found)))
    ]


def heard_in_silence(text: str) -> dict[str, Any]:
    rows = [{"id": f"{i}", "text": text, "no_speech": 0.1, "log_probability": -0.2} for i in range(24)]
    return {"probes": {"no speech": rows, "language": []}, "seconds": {"test": 3.0}}


def everything(tmp_path: Path, in_silence: str = "") -> dict[str, Any]:
    (tmp_path / "words.txt").write_text("four\n")
    return report(
        tmp_path,
        (WRONG, RIGHT),
        (RIGHT, RIGHT),
        observed=(heard_in_silence(""), heard_in_silence(in_silence)),
        recipe=RECIPE.with_changes({"eval.keywords": str(tmp_path / "words.txt")}),
        snr_db={clip.id: float(number) for number, clip in enumerate(SETS[0][1])},
        free={"base.en": system(SETS[:1], RIGHT)},
        tradeoff={
            "curve": [{"share": 0.0, "dev": 30.0, "guards": {}}, {"share": 1.0, "dev": 20.0, "guards": {"general": 4.0}}],
            "chosen": 1.0,
            "reason": "keeps all of it",
        },
    )


def test_the_schema_refuses_what_it_does_not_know(tmp_path: Path):
    Draft202012Validator.check_schema(SCHEMA)
    found = everything(tmp_path)
    found["probes"][0]["status"] = "perhaps"
    found["difference"]["low"] = "none"
    del found["sets"]["test"]["after"]["wer"]
    assert offences(found | {"mood": "good"}) == [
        "$.difference.low: 'none' is not of type 'number', 'null'",
        "$.probes[0].status: 'perhaps' is not one of ['passed', 'failed', 'unproven', 'information']",
        "$.sets.test.after: 'wer' is a required property",
        "$: Additional properties are not allowed ('mood' was unexpected)",
    ]


def test_a_report_is_as_its_schema_says(tmp_path: Path):
    for name, in_silence, verdict in (("kept", "", "better"), ("lost", "thank you", "worse")):
        (tmp_path / name).mkdir()
        found = everything(tmp_path / name, in_silence)
        assert offences(found) == []
        assert found["verdict"] == verdict
        assert found.keys() == SCHEMA["properties"].keys()
        for part in ("guards", "probes", "speed", "keywords", "slices", "confusions", "tradeoff", "free"):
            assert found[part], f"{part} was not tried"
    bare = report(tmp_path, (WRONG, RIGHT), (WRONG, RIGHT))
    assert offences(bare) == [] and bare["keywords"] is bare["tradeoff"] is bare["speed"] is None


def test_a_lost_ability_heads_the_page(tmp_path: Path):
    page = render_page(everything(tmp_path, "thank you"), {})
    assert "<strong>Worse</strong> on silence" in page
    assert "text on 0\u00a0→\u00a024 of 24 windows without speech" in page


def test_nothing_to_count_is_undefined_and_no_crash(tmp_path: Path):
    sets = [("test", clips("t", 8, text="..."))]
    scores = score_sets(system(sets, ""), terms(sets=sets))["sets"]["test"]
    assert scores["wer"] is None and scores["undefined"] == 8 and scores["reference_words"] == 0


def test_it_begins_as_others_rely_on(tmp_path: Path):
    found = report(tmp_path, (WRONG, RIGHT), (RIGHT, RIGHT))
    first = ["verdict", "goal", "before", "after", "difference", "guards", "words", "clips"]
    assert list(found)[: len(first)] == first
    assert {"point", "low", "high"} <= found["difference"].keys()
    assert list(found["guards"][0])[:5] == ["name", "before", "after", "difference", "status"]
    assert (found["verdict"], found["goal"], found["before"], found["after"]) == ("better", "wer", 50.0, 0.0)
    assert found["difference"]["point"] == -50.0 and found["difference"]["high"] < 0
    assert (found["words"], found["clips"]) == (120, 30)
    assert [(g["name"], g["status"]) for g in found["guards"]] == [("general", "passed")]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize(
    ("before", "after", "verdict", "says"),
    [
        ((WRONG, RIGHT), (RIGHT, RIGHT), "better", "BETTER"),
        ((RIGHT, RIGHT), (WRONG, RIGHT), "worse", "Keep the base model."),
        ((WRONG, RIGHT), (RIGHT, WRONG), "worse", "general got worse"),
        ((WRONG, RIGHT), (WRONG, RIGHT), "no_difference", "NO MEASURABLE DIFFERENCE"),
    ],
)
def test_the_verdict_and_what_to_do(tmp_path: Path, before, after, verdict: str, says: str):
    found = report(tmp_path, before, after)
    assert found["verdict"] == verdict and says in found["sentence"]
    train = f"whispertune train --recipe {tmp_path / 'r' / 'recipe.toml'}"
    assert (
        found["next"]
        == {
            "better": f"whispertune export {tmp_path / 'r'} --format hf",
            "worse": f"{train} --set train.learning_rate=2e-05",
            "no_difference": f"{train} --passes 6",
        }[verdict]
    )
    if verdict == "worse":
        assert "better" not in found["next"] and found["recommended"] == "base"


def test_the_next_command_keeps_the_recipe_and_steps_where_steps_were_asked(tmp_path: Path):
    recipe = RECIPE.with_changes({"train.steps": 40})
    found = report(tmp_path, (WRONG, RIGHT), (WRONG, RIGHT), recipe=recipe)
    assert found["next"] == f"whispertune train --recipe {tmp_path / 'r' / 'recipe.toml'} --steps 80"


def test_what_would_have_been_free_is_said(tmp_path: Path):
    alternatives = {"base.en": system(SETS[:1], RIGHT), "tiny.en with a prompt": system(SETS[:1], WRONG)}
    found = report(tmp_path, (WRONG, RIGHT), (RIGHT, RIGHT), free=alternatives)
    assert [(row["name"], row["rate"], row["matches"]) for row in found["free"]] == [
        ("base.en", 0.0, True),
        ("tiny.en with a prompt", 50.0, False),
    ]
    assert found["reasons"][-1] == (
        "Untuned base.en is not measurably worse than the tuned model, and costs no training: 0.0 %."
    )
    assert "Untuned" not in report(tmp_path / "2", (WRONG, RIGHT), (RIGHT, RIGHT))["reasons"][-1]


def test_a_goal_of_keywords_counts_false_alarms_too(tmp_path: Path):
    (tmp_path / "words.txt").write_text("four\n")
    recipe = RECIPE.with_changes({"eval.keywords": str(tmp_path / "words.txt"), "eval.goal": "keywords"})
    found = report(tmp_path, (WRONG, RIGHT), ("one two three four four", RIGHT), recipe=recipe)
    assert (found["goal"], found["before"], found["after"]) == ("keywords", 100.0, 100.0)
    assert found["verdict"] == "no_difference" and found["difference"]["metric"] == "KER"
    assert found["reasons"][0].startswith("30 clips with 30 keywords;")
    assert found["guards"][0]["difference"]["metric"] == "WER", "keywords of one's own are not said in a guard"


def test_a_goal_of_keywords_that_nobody_says_is_refused():
    with pytest.raises(DataError) as refused:
        terms(RECIPE.with_changes({"eval.goal": "keywords"}))
    assert refused.value.what == "the goal is keywords, and none of 0 is in the 30 test texts"
    assert refused.value.hint == "name words that are said in the test clips, in a file: --keywords FILE"


def test_a_goal_of_a_slice(tmp_path: Path):
    sets = [("test", [replace(c, speaker="ana" if i < 10 else "ben") for i, c in enumerate(clips("t", 30))])]
    before, after = system(sets, WRONG), system(sets, RIGHT)
    for row in after["sets"]["test"][10:]:
        row["hypothesis"] = "nothing right here at all"
    found = compare_sets(sets, before, after, terms(goal("slice:speaker=ana"), sets))
    assert (found["verdict"], found["before"], found["after"]) == ("better", 50.0, 0.0)
    assert (found["clips"], found["words"], found["goal"]) == (10, 40, "slice:speaker=ana")
    assert found["sets"]["test"]["after"]["wer"] > 50, "the set as a whole is information"
    assert [(row["value"], row["after"]) for row in found["slices"]["speaker"]] == [("ben", 125.0), ("ana", 0.0)]
    for wrong, what, hint in (
        ("slice:who=ana", "the test clips have no column 'who'", "columns: speaker, length, source_rate"),
        ("slice:speaker=eve", "none of 30 test clips has that value", "values of speaker: ana, ben"),
    ):
        with pytest.raises(DataError) as refused:
            terms(goal(wrong), sets)
        assert refused.value.what == f"the goal {wrong}: {what}" and refused.value.hint == hint


def test_characters_come_first_where_words_have_no_spaces():
    assert terms(sets=[("test", clips("t", 3, "你好", "zh"))]).goal.name == "cer"
    assert terms(goal("wer"), [("test", clips("t", 3, "你好", "zh"))]).goal.rate == "wer"


def test_confusions_are_counted_on_both_sides(tmp_path: Path):
    found = report(tmp_path, (WRONG, RIGHT), ("one two tree four", RIGHT))["confusions"]
    assert found == [
        {"said": "3", "heard": "tree", "before": 30, "after": 30},
        {"said": "4", "heard": "for", "before": 30, "after": 0},
    ]


def test_a_goal_of_characters(tmp_path: Path):
    found = report(tmp_path, (WRONG, RIGHT), (RIGHT, RIGHT), recipe=RECIPE.with_changes({"eval.goal": "cer"}))
    scores = found["sets"]["test"]
    assert found["goal"] == "cer" and found["before"] == scores["before"]["cer"] != scores["before"]["wer"]
    assert found["words"] == 120


def test_each_set_is_counted_before_and_after(tmp_path: Path):
    found = report(tmp_path, (WRONG, RIGHT), (RIGHT, WRONG))
    test, general = found["sets"]["test"], found["sets"]["general"]
    assert test["before"] | {"cer": None} == {
        "clips": 30,
        "wer": 50.0,
        "cer": None,
        "substitutions": 60,
        "deletions": 0,
        "insertions": 0,
        "reference_words": 120,
        "sentence_accuracy": 0.0,
        "loops": 0,
        "lost_at_start": 0,
        "lost_at_end": 0,
        "empty": 0,
        "over_100": 0,
        "undefined": 0,
        "wer_without_loops": 50.0,
        "raw_wer": 50.0,
    }
    assert (test["clips_better"], test["clips_worse"], test["clips_same"]) == (30, 0, 0)
    assert (general["clips_better"], general["clips_worse"], general["clips_same"]) == (0, 30, 0)
    assert test["after"]["raw_wer"] > 0, "raw counts case and punctuation"


def test_a_runaway_is_counted_apart_and_not_capped():
    sets = [("test", clips("t", 1))]
    loop = "one two three four " + "the " * 200
    scores = score_sets(system(sets, loop), terms(sets=sets))["sets"]["test"]
    assert (scores["wer"], scores["insertions"], scores["loops"], scores["over_100"]) == (5000.0, 200, 1, 1)
    assert scores["wer_without_loops"] is None


def test_clips_that_changed_come_with_their_word_differences(tmp_path: Path):
    found = report(tmp_path, (RIGHT, "four"), (WRONG, RIGHT))["clips_changed"]
    assert [row["set"] for row in found] == ["general"] * 30 + ["test"] * 30, "most changed first"
    assert (found[0]["errors_before"], found[0]["errors_after"]) == (3, 0)
    differences = found[-1]["differences_after"]
    assert [d for d in differences if d["op"] != "equal"] == [
        {"op": "substitute", "reference": "three", "hypothesis": "tree"},
        {"op": "substitute", "reference": "four", "hypothesis": "for"},
    ]


def test_the_normaliser_follows_each_clips_language():
    sets = [("test", [*clips("a", 1, "naïve", "cs"), *clips("b", 1, "colour", "en")])]
    heard = system(sets, "x")
    for row, text in zip(heard["sets"]["test"], ("naive", "color"), strict=True):
        row["hypothesis"] = text
    found = score_sets(heard, terms(sets=sets))
    assert found["sets"]["test"]["substitutions"] == 1, "English spelling is forgiven, a Czech letter is not"
    assert len(found["normalizer"].split(", ")) == 2


def test_keywords(tmp_path: Path):
    (tmp_path / "words.txt").write_text("four\nabsent | missing\n")
    recipe = RECIPE.with_changes({"eval.keywords": str(tmp_path / "words.txt")})
    found = report(tmp_path, (WRONG, RIGHT), (RIGHT, RIGHT), recipe=recipe)["keywords"]
    none, every = ({"hits": n, "total": 30, "false_alarms": 0, "recall": 100 * n / 30} for n in (0, 30))
    assert (found["words"], found["chosen_by"]) == (["four", "absent"], "file")
    assert found["before"] == {**none, "precision": None} and found["after"] == {**every, "precision": 100}
    assert found["sets"]["general"]["before"] == {**every, "precision": 100}
    assert report(tmp_path / "2", (WRONG, RIGHT), (RIGHT, RIGHT))["keywords"] is None


def test_notes_say_what_a_reader_must_know(tmp_path: Path):
    notes = report(tmp_path, (WRONG, RIGHT), (RIGHT, RIGHT), ended="early stop", notes=["Synthetic."])[
        "notes"
    ]
    assert notes == [
        "Synthetic.",
        "learning rate 0.001 is 50 times the usual",
        "Training stopped early: the dev score had stopped getting better.",
    ]
    assert (
        "more may help" in report(tmp_path / "2", (WRONG, WRONG), (RIGHT, RIGHT), ended="time")["notes"][-1]
    )


def test_time_counts_every_attempt(tmp_path: Path):
    time = report(tmp_path, (WRONG, RIGHT), (RIGHT, RIGHT))["time"]
    assert time == {
        "baseline_s": 20.0,
        "labels_s": 0.0,
        "alternatives_s": 0.0,
        "training_s": 70.0,
        "delivery_s": 0.0,
        "evaluation_s": 10.0,
        "total_s": 100.0,
    }


def test_text_from_data_is_escaped_in_the_page(tmp_path: Path):
    evil = "<script>alert(1)</script> <img src=x onerror=alert(2)>"
    sets = [("test", clips("t", 8, evil))]
    found = compare_sets(sets, system(sets, evil), system(sets, "<b>x</b>"), terms(sets=sets))
    page = render_page({**found, "next": "", "notes": [evil], "settings": {}}, {})
    assert "<script" not in page and "<img src=x" not in page and "<b>x</b>" not in page
    assert "&lt;script&gt;" in page


def test_dev_wer():
    assert dev_wer(["a b", "c d"], ["a b", "c"], [None, "cs"]) == 25.0
    assert dev_wer(["..."], ["a"], ["en"]) == 100.0
