"""Better, no measurable difference, worse: refusals, the whole table of verdicts, sentences for people."""

import itertools
import json
import math
from dataclasses import replace

import pytest

from whispertune.errors import DataError
from whispertune.scoring.align import score_clip
from whispertune.scoring.bootstrap import Difference, choose_groups
from whispertune.scoring.normalize import normalizer_for
from whispertune.scoring.verdict import RATES, Guard, GuardResult, compare, holm, judge, judge_guards

ENGLISH = normalizer_for("en")


def scores(hypotheses, references=None, normalizer=ENGLISH):
    references = references or ["the red fox ran home"] * len(hypotheses)
    pairs = zip(references, hypotheses, strict=True)
    return [score_clip(f"c{i}", r, h, normalizer) for i, (r, h) in enumerate(pairs)]


BEFORE = scores(["the red box ran home", "a red box ran"] * 20)
AFTER = scores(["the red fox ran home", "the red fox ran"] * 20)
CLIPS = choose_groups([s.clip_id for s in BEFORE])


def refusal(kind, *args, **kwargs):
    with pytest.raises(kind) as caught:
        compare(*args, **kwargs)
    assert caught.value.hint
    return caught.value.what


def test_other_clips_are_refused():
    what = refusal(DataError, BEFORE, AFTER[:-1], CLIPS)
    assert what == "the clips differ: 40 before, 39 after, 39 in both ('c39' only before)"
    what = refusal(DataError, BEFORE[1:], AFTER, CLIPS)
    assert what == "the clips differ: 39 before, 40 after, 39 in both ('c0' only after)"
    assert refusal(DataError, [], [], CLIPS) == "there is nothing to compare: 0 clips before, 0 after"


def test_a_clip_scored_twice_is_refused():
    what = refusal(DataError, BEFORE, [*AFTER, AFTER[0]], CLIPS)
    assert what == "clip 'c0' is scored twice after: 'the red fox ran home' and 'the red fox ran home'"


def test_other_references_are_refused():
    other = [replace(AFTER[0], reference="a red fox"), *AFTER[1:]]
    what = refusal(DataError, BEFORE, other, CLIPS)
    assert what == "clip 'c0' has two references: 'the red fox ran home' before, 'a red fox' after"


def test_other_normalisers_are_refused():
    other = scores(["the red fox"] * 40, normalizer=normalizer_for("cs"))
    what = refusal(DataError, BEFORE, other, CLIPS)
    assert what == "clip 'c0' was normalised in two ways: english-1 before, unicode-1 after"


def test_other_decoding_is_refused_and_the_same_is_not():
    options = {"engine": "ctranslate2", "beam_size": 1, "suppress": (1, 2)}
    what = refusal(
        DataError, BEFORE, AFTER, CLIPS, decoding_before=options, decoding_after=options | {"beam_size": 5}
    )
    assert what == "the two were decoded differently: beam_size was 1 before, 5 after"
    what = refusal(DataError, BEFORE, AFTER, CLIPS, decoding_before=options)
    assert what == "the two were decoded differently: beam_size was 1 before, null after"
    read_back = json.loads(json.dumps(options))
    assert compare(BEFORE, AFTER, CLIPS, decoding_before=options, decoding_after=read_back).point < 0


def test_a_clip_outside_the_grouping_is_refused():
    what = refusal(DataError, BEFORE, AFTER, choose_groups(["c0", "c1"]))
    assert what == "clip 'c2' is scored but not among the 2 clips of the test set"


def test_compare_pairs_clips_by_id_and_counts_what_the_goal_says():
    wer = compare(BEFORE, list(reversed(AFTER)), CLIPS, RATES["wer"])
    assert wer == compare(BEFORE, AFTER, CLIPS)
    assert (wer.metric, wer.before, wer.after, wer.point) == ("WER", 40, 10, -30)
    cer = compare(BEFORE, AFTER, CLIPS, RATES["cer"])
    assert (cer.metric, cer.reference_length) == ("CER", 40 * len("the red fox ran home"))
    # Of 20 characters: b for f; a for the, b for f and no " home" (3 + 1 + 5); after: nothing; no " home".
    assert (cer.before, cer.after, cer.point) == (100 * (1 + 9) / 40, 100 * 5 / 40, -12.5)


def difference(point, low, high, p_worse=None, before=20.0, **changes):
    if p_worse is None:
        p_worse = 0.0001 if low > 0 else 0.5
    values = {
        "metric": "WER", "before": before, "after": before + point, "point": point, "low": low, "high": high,
        "level": "speaker", "groups": 64, "speaks_for": "these 64 speakers", "clips": 150,
        "reference_length": 1104, "resamples": 10_000, "seed": 0, "probability_better": 0.5, "p_value": 0.5,
        "p_worse": p_worse,
    }  # fmt: skip
    return Difference(**(values | changes))


GOALS = {
    "better": difference(-18.3, -21.0, -15.7, before=43.2),
    "no_difference": difference(-0.3, -1.9, 1.2, before=14.2),
    "worse": difference(5.4, 2.0, 8.8, before=14.2),
}
GUARDS = {
    "passed": difference(0.2, -0.4, 0.9),
    "passed though certainly worse": difference(0.5, 0.2, 0.8),
    "unproven": difference(0.8, -0.4, 2.1),
    "unproven, certainly worse, within tolerance": difference(0.9, 0.2, 1.6),
    "unproven, far over tolerance, by chance": difference(4.0, -1.0, 9.0),
    "failed": difference(3.3, 1.9, 4.8, before=16.1),
}
STATUS = {name: name.split()[0].strip(",") for name in GUARDS}


def judged(*differences: Difference) -> tuple[GuardResult, ...]:
    return judge_guards(
        [Guard(name, d, 1.0) for name, d in zip(("read-en", "more"), differences, strict=False)]
    )


@pytest.mark.parametrize("name", GUARDS)
def test_one_guard_has_the_status_of_the_rule(name):
    (guard,) = judged(GUARDS[name])
    assert guard.status == STATUS[name]
    assert (guard.name, guard.before, guard.tolerance) == ("read-en", GUARDS[name].before, 1)


def test_the_tolerance_can_be_set():
    (guard,) = judge_guards([Guard("read-en", GUARDS["failed"], 5.0)])
    assert guard.status == "passed"
    assert guard.sentence.endswith("within +5")


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("names", [(), *itertools.product(GUARDS), *itertools.product(GUARDS, GUARDS)])
def test_the_whole_table_of_verdicts(goal, names):
    guards = judge_guards([Guard(f"guard{i}", GUARDS[name], 1.0) for i, name in enumerate(names)])
    statuses = [STATUS[name] for name in names]
    assert [guard.status for guard in guards] == statuses
    judgement = judge(GOALS[goal], guards)

    assert judgement.verdict == ("worse" if "failed" in statuses else goal)
    assert judgement.recommended == ("tuned" if judgement.verdict == "better" else "base")
    opening = {"better": "BETTER ", "no_difference": "NO MEASURABLE DIFFERENCE ", "worse": "WORSE"}
    assert judgement.sentence.startswith(opening[judgement.verdict])
    assert ("Keep the base model" in judgement.sentence) == (judgement.recommended == "base")
    assert ("general speech not checked" in judgement.sentence) == (not names and goal == "better")
    for i, status in enumerate(statuses):
        assert judgement.as_dict()["guards"][i]["sentence"].startswith(f"guard{i}"), "each is accounted for"
        if status == "failed":
            assert f"guard{i} got worse" in judgement.sentence
        if status == "unproven" and judgement.verdict == "better":
            assert f"Guard guard{i}: 20.0" in judgement.sentence and "not proven" in judgement.sentence


def test_sentences_are_the_ones_people_read():
    guards = judged(GUARDS["passed"])
    assert judge(GOALS["better"], guards).sentence == (
        "BETTER for these 64 speakers: 43.2 → 24.9 % WER, difference −18.3 points [−21.0, −15.7]."
    )
    assert judge(GOALS["better"]).sentence == (
        "BETTER on your clips (these 64 speakers): 43.2 → 24.9 % WER, difference −18.3 points "
        "[−21.0, −15.7]; general speech not checked."
    )
    guards = judged(GUARDS["failed"])
    assert judge(GOALS["better"], guards).sentence == (
        "WORSE: it got better on your clips (these 64 speakers, 43.2 → 24.9 % WER, difference −18.3 points "
        "[−21.0, −15.7]), but read-en got worse: 16.1 → 19.4 %, +3.3 points [+1.9, +4.8], "
        "tolerance +1. Keep the base model."
    )
    assert judge(GOALS["no_difference"]).sentence == (
        "NO MEASURABLE DIFFERENCE for these 64 speakers: 14.2 → 13.9 % WER, difference −0.3 points "
        "[−1.9, +1.2]. Keep the base model."
    )
    guards = judged(GUARDS["unproven"])
    assert judge(GOALS["better"], guards).sentence.endswith(
        "[−21.0, −15.7]. Guard read-en: 20.0 → 20.8 %, +0.8 points [−0.4, +2.1], not proven to be within +1."
    )


def test_case_19_a_worse_model_is_never_called_an_improvement():
    judgement = judge(GOALS["worse"], judged(GUARDS["failed"]))
    assert judgement.sentence == (
        "WORSE for these 64 speakers: 14.2 → 19.6 % WER, difference +5.4 points [+2.0, +8.8]; read-en "
        "got worse: 16.1 → 19.4 %, +3.3 points [+1.9, +4.8], tolerance +1. Keep the base model."
    )
    assert "improv" not in judgement.sentence.lower() and "better" not in judgement.sentence.lower()
    assert (judgement.verdict, judgement.recommended) == ("worse", "base")


def test_case_19_end_to_end_from_texts():
    forgotten = compare(AFTER, BEFORE, CLIPS)
    judgement = judge(compare(BEFORE, AFTER, CLIPS), judged(forgotten))
    assert judgement.verdict == "worse"
    assert "it got better on your clips (these 40 clips, 40.0 → 10.0 % WER" in judgement.sentence
    assert judge(compare(AFTER, BEFORE, CLIPS)).verdict == "worse"
    assert judge(compare(BEFORE, BEFORE, CLIPS)).verdict == "no_difference"
    assert judge(compare(BEFORE, AFTER, CLIPS)).verdict == "better"


def test_too_few_clips_never_decide():
    few = compare(BEFORE[:5], AFTER[:5], CLIPS)
    assert few.point == pytest.approx(-28)
    judgement = judge(few, judged(compare(AFTER[:5], BEFORE[:5], CLIPS)))
    assert judgement.verdict == "no_difference"
    assert judgement.guards[0].status == "unproven"
    assert "[no interval: too few clips]" in judgement.sentence
    assert judgement.reasons[0].startswith("5 clips with 25 words in 5 groups are too few for an interval")
    assert json.dumps(judgement.as_dict(), allow_nan=False)


def test_holm_by_hand():
    assert holm([], 0.025) == []
    assert holm([0.02], 0.025) == [True]
    assert holm([0.02, 0.02], 0.025) == [False, False], "the smaller of two must be below 0.0125"
    assert holm([0.02, 0.01], 0.025) == [True, True], "then the other one below 0.025"
    assert holm([0.008, 0.013, 0.001], 0.025) == [True, True, True]
    assert holm([0.03, 0.001, 0.013], 0.025) == [False, True, False]


def test_guards_are_judged_together():
    doubtful = difference(3.0, 0.1, 6.0, p_worse=0.02)
    assert [g.status for g in judged(doubtful)] == ["failed"]
    assert [g.status for g in judged(doubtful, GUARDS["passed"])] == ["unproven", "passed"]
    assert [g.status for g in judged(doubtful, GUARDS["failed"])] == ["failed", "failed"]


@pytest.mark.parametrize("goal, status", [("better", "failed"), ("worse", "failed"), ("no_difference", "unproven")])
def test_beside_a_goal_that_shows_nothing_a_guard_needs_a_tenth_of_the_chance(goal, status):
    """Its 95 % interval excludes 0 all the same, and is shown."""
    doubtful = difference(3.0, 0.4, 5.6, p_worse=0.01)
    (guard,) = guards = judge_guards([Guard("read-en", doubtful, 1.0)], GOALS[goal])
    assert guard.status == status
    verdict = judge(GOALS[goal], guards).verdict
    assert verdict == ("worse" if status == "failed" else "no_difference")
    certain = replace(doubtful, p_worse=0.0024)
    assert judge_guards([Guard("read-en", certain, 1.0)], GOALS[goal])[0].status == "failed"
    two = judge_guards([Guard("read-en", certain, 1.0), Guard("more", certain, 1.0)], GOALS["no_difference"])
    assert [each.status for each in two] == ["unproven", "unproven"], "tried together"


def test_small_numbers_are_not_shown_as_zero():
    sentence = judge(difference(-0.2, -0.41, -0.03)).sentence
    assert "difference −0.20 points [−0.41, −0.03]" in sentence
    assert "difference 0.0 points [0.0, 0.0]" in judge(difference(0.0, 0.0, 0.0)).sentence


@pytest.mark.parametrize(
    "level, note",
    [
        ("speaker", "speakers like them"),
        ("recording", "further recordings like them"),
        ("block", "more speech of the same recordings"),
        ("clip", "more clips of the same kind and no others"),
    ],
)
def test_the_reasons_say_whom_the_result_speaks_for(level, note):
    reasons = judge(difference(-3, -5, -1, level=level, probability_better=0.9996)).reasons
    assert reasons[0] == (
        "150 clips with 1,104 words; 95 % interval from 10,000 paired resamples of 64 groups; "
        "the probability of being better is above 99.9 %."
    )
    assert reasons[1].startswith("Of these 64 speakers, ") and reasons[1].endswith(f"{note}.")


def test_the_json_begins_as_the_report_does():
    judgement = judge(GOALS["better"], judged(GUARDS["failed"]))
    values = json.loads(json.dumps(judgement.as_dict(), allow_nan=False))
    assert list(values)[:6] == ["verdict", "goal", "before", "after", "difference", "guards"]
    assert (values["verdict"], values["goal"], values["before"]) == ("worse", "wer", 43.2)
    assert {"point": -18.3, "low": -21.0, "high": -15.7}.items() <= values["difference"].items()
    (guard,) = values["guards"]
    assert guard["name"] == "read-en" and guard["status"] == "failed" and guard["difference"]["point"] == 3.3
    assert not any(isinstance(x, float) and math.isinf(x) for x in values["difference"].values())
