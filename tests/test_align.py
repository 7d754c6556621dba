"""Counts by hand for the edges, jiwer's for everything else, loops, and differences a person can read."""

import random

import jiwer
import pytest

from whispertune.scoring.align import (
    Counts,
    Totals,
    count_characters,
    count_words,
    is_loop,
    score_clip,
    word_differences,
)
from whispertune.scoring.normalize import normalizer_for

ENGLISH = normalizer_for("en")


def score(reference, hypothesis, clip_id="a", normalizer=ENGLISH):
    return score_clip(clip_id, reference, hypothesis, normalizer)


@pytest.mark.parametrize(
    "reference, hypothesis, counts, percent",
    [
        ("", "", Counts(), None),
        ("", "a b", Counts(insertions=2), None),
        ("a b", "", Counts(deletions=2), 100.0),
        ("a b", "a b", Counts(hits=2), 0.0),
        ("a b c", "a x c d", Counts(hits=2, substitutions=1, insertions=1), 200 / 3),
    ],
)
def test_case_25_empty_sides(reference, hypothesis, counts, percent):
    assert count_words(reference, hypothesis) == counts
    assert counts.percent == (percent and pytest.approx(percent))
    assert counts.errors == counts.substitutions + counts.deletions + counts.insertions


def test_case_25_undefined_rates_are_counted_and_nothing_is_dropped():
    scores = [score("[noise]", "um so", "a"), score("(laughs)", "", "b")]
    totals = Totals.of(scores)
    assert totals.wer is None and totals.cer is None
    assert (totals.clips, totals.undefined_references, totals.words.insertions) == (2, 2, 1)
    assert not any(s.empty for s in scores), "nothing was said, so hearing nothing is right"

    totals = Totals.of([*scores, score("hello there", "hello there", "c")])
    assert totals.wer == 50, "the word heard in the noise is an error of the set"
    assert totals.undefined_references == 2


def test_case_23_four_thousand_percent_is_not_capped():
    reference = "we saw a red fox"
    looping = score(reference, reference + " the" * 200)
    assert looping.words == Counts(hits=5, insertions=200)
    assert looping.words.percent == 4000
    assert looping.loop

    totals = Totals.of([looping, score(reference, "we saw a red box", "b")])
    assert totals.wer == 2010
    assert totals.wer_without_loops == 20
    assert (totals.loops, totals.over_100_percent, totals.empty_hypotheses) == (1, 1, 0)


def test_case_55_loops_are_shown_apart_on_both_sides_alike():
    before = [score("the boy ran", "the boy " * 30, "a"), score("a fox came by", "a box came by", "b")]
    after = [score("the boy ran", "the boy ran", "a"), score("a fox came by", "a fox came by", "b")]
    assert [s.loop for s in before] == [True, False]
    assert Totals.of(before).wer_without_loops == 25
    assert Totals.of(after).wer_without_loops == 0


@pytest.mark.parametrize(
    "text, loop",
    [
        ("no, no, no, no!", False),
        ("very very very very very very very good", False),
        ("The boy, the boy, the boy.", False),
        ("The boy, the boy, the boy, the boy", True),
        ("the the the the the the the the", True),
        ("Thank you for watching. " * 4, True),
        ("and then he said " + "I do not know what you mean by that " * 5, True),
        ("hahahaha", False),
        ("ha" * 20, True),
        ("谢谢观看。" * 6, True),
        ("今天天气很好，我们去公园散步吧，然后一起吃晚饭，好不好？", False),
        ("It costs 1,000,000,000 dollars", False),
        ("0" * 40, True),
        ("", False),
    ],
)
def test_what_a_loop_is(text, loop):
    assert is_loop(text) is loop


def test_repeating_what_was_said_is_no_loop():
    assert is_loop("no " * 12)
    assert not is_loop("no " * 12, reference="No, no, no, no, no, no, no, no, no, no, no, no")
    assert not is_loop("no " * 12, reference="no " * 8)
    assert is_loop("no " * 100, reference="no " * 8)
    assert not is_loop("哈" * 24, reference="哈" * 24)


def test_counts_equal_jiwers_on_random_pairs():
    random.seed(23)
    words = ["a", "b", "ab", "ba", "č", "का", "字"]
    for _ in range(1500):
        reference, hypothesis = (" ".join(random.choices(words, k=random.randint(0, 9))) for _ in range(2))
        for ours, theirs in (
            (count_words(reference, hypothesis), jiwer.process_words(reference, hypothesis)),
            (count_characters(reference, hypothesis), jiwer.process_characters(reference, hypothesis)),
        ):
            expected = Counts(theirs.hits, theirs.substitutions, theirs.deletions, theirs.insertions)
            assert ours == expected, (reference, hypothesis)


def test_a_set_is_the_ratio_of_the_sums():
    pairs = [("a b c d", "a b c x"), ("Yes", "no"), ("Hi you", "hi, you")]
    totals = Totals.of([score(reference, hypothesis) for reference, hypothesis in pairs])
    assert totals.words == Counts(hits=5, substitutions=2)
    assert totals.wer == pytest.approx(100 * 2 / 7)
    assert totals.sentence_accuracy == pytest.approx(100 / 3)
    assert totals.raw_wer == pytest.approx(100 * 3 / 7), "as written, 'Hi' and 'hi,' differ"
    assert Totals.of([]).sentence_accuracy is None


def test_an_empty_hypothesis_is_counted():
    assert Totals.of([score("a b", " . ")]).empty_hypotheses == 1


def operations(reference, hypothesis, normalizer=ENGLISH):
    differences = word_differences(reference, hypothesis, normalizer)
    assert [w for d in differences for w in d.reference] == reference.split()
    assert [w for d in differences for w in d.hypothesis] == hypothesis.split()
    return [(d.operation, " ".join(d.reference), " ".join(d.hypothesis)) for d in differences]


@pytest.mark.parametrize(
    "reference, hypothesis, expected",
    [
        ("", "", []),
        ("", "a b", [("insert", "", "a b")]),
        ("a b", "", [("delete", "a b", "")]),
        ("[noise]", "um", [("equal", "[noise]", "um")]),
        ("It's 6439.", "it's six four three nine", [("equal", "It's 6439.", "it's six four three nine")]),
        (
            "The monkey can't take it",
            "the monkey can take",
            [("equal", "The monkey", "the monkey"), ("substitute", "can't", "can"), ("equal", "take", "take"),
             ("delete", "it", "")],
        ),
        (
            "twenty five Dogs bark",
            "25 docks bark loudly",
            [("equal", "twenty five", "25"), ("substitute", "Dogs", "docks"), ("equal", "bark", "bark"),
             ("insert", "", "loudly")],
        ),
    ],
)  # fmt: skip
def test_differences_are_shown_in_the_words_as_written(reference, hypothesis, expected):
    assert operations(reference, hypothesis) == expected


def test_differences_hold_every_word_and_agree_with_the_counts():
    random.seed(5)
    words = ["a", "The", "can't", "twenty", "five", "25", "[x]", "um,", "$20", "one-off", "it's", "3.5", "—"]
    for _ in range(400):
        reference, hypothesis = (" ".join(random.choices(words, k=random.randint(0, 8))) for _ in range(2))
        errors = score(reference, hypothesis).words.errors
        assert (errors == 0) == all(op == "equal" for op, _, _ in operations(reference, hypothesis))
