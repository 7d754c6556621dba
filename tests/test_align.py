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

ENGLISH, CZECH = normalizer_for("en"), normalizer_for("cs")


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


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(count_words, jiwer.process_words), (count_characters, jiwer.process_characters)],
    ids=["words", "characters"],
)
@pytest.mark.real
def test_counts_equal_jiwers_on_10_000_random_pairs(ours, theirs):
    random.seed(23)
    words = ["a", "b", "ab", "ba", "č", "का", "字"]
    references, hypotheses = (
        [" ".join(random.choices(words, k=random.randint(0, 9))) for _ in range(10_000)] for _ in range(2)
    )
    expected = []
    for chunks in theirs(references, hypotheses).alignments:  # one call for all: its set-up takes longest
        counts = dict.fromkeys(("equal", "substitute", "delete", "insert"), 0)
        for chunk in chunks:
            counts[chunk.type] += max(
                chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx
            )
        expected.append(Counts(*counts.values()))
    for reference, hypothesis, counts in zip(references, hypotheses, expected, strict=True):
        assert ours(reference, hypothesis) == counts, (reference, hypothesis)


def hits(n, *, s=0, d=0, i=0):
    return Counts(n, s, d, i)


@pytest.mark.parametrize(
    ("language", "reference", "hypothesis", "words", "characters"),
    [
        ("en", "", "", hits(0), hits(0)),
        ("en", "[noise]", "a fox", hits(0, i=2), hits(0, i=5)),
        ("en", "A red fox.", "", hits(0, d=3), hits(0, d=9)),
        ("en", "The cat sat down", "a cat sat down now", hits(3, s=1, i=1), hits(13, s=1, d=2, i=4)),
        ("en", "we saw a red fox", "we saw a red fox" + " the" * 200, hits(5, i=200), hits(16, i=800)),
        ("fr", "café au lait", "cafe\u0301 au lait", hits(3), hits(12)),
        ("fr", "café au lait", "cafe au lait", hits(2, s=1), hits(11, s=1)),
        ("en", "<|0.00|> Good day<|2.40|><|2.40|> sir.<|3.00|>", "good day, sir", hits(3), hits(12)),
        ("en", "six four three nine", "6, 4, 8, 9", hits(3, s=1), hits(6, s=1)),
        ("en", "twenty five", "2 6 5", hits(2, i=1), hits(3, i=2)),
        ("cs", "v roce 1995", "v roce 1 9 95", hits(6), hits(14)),
        # ह ि न ् द ी against ह ि ं द ी: न becomes the dot, the virama goes.
        ("hi", "यह हिन्दी है", "यह हिंदी है", hits(2, s=1), hits(10, s=1, d=1)),
        ("hi", "२५ किताबें", "25 किताबें", hits(3), hits(11)),
        # Seven signs, a space and six; two points on the first letter, one on the third; then two more.
        ("he", "שָׁלוֹם עוֹלָם", "שָׁלוֹם, עוֹלָם!", hits(2), hits(14)),
        ("he", "שָׁלוֹם עוֹלָם", "שלום עולם", hits(0, s=2), hits(9, d=5)),
        # Four marks on five letters, two on two.
        ("ar", "مَرْحَبًا بِكَ", "مرحبا بك", hits(0, s=2), hits(8, d=6)),
        ("ar", "الساعة ٣", "الساعة 3", hits(2), hits(8)),
        # The vowel ำ is a character of its own, ้ and ี belong to their consonant.
        ("th", "น้ำดี", "น้ำดีมาก", hits(3, i=3), hits(5, i=3)),
        ("th", "น้ำดี", "นำดี", hits(2, s=1), hits(4, d=1)),
        ("zh", "你好，世界。", "你 号世界", hits(3, s=1), hits(3, s=1)),
        ("zh", "你好，世界。", "世界", hits(2, d=2), hits(2, d=2)),
    ],
)
def test_counts_by_hand(language, reference, hypothesis, words, characters):
    found = score(reference, hypothesis, normalizer=normalizer_for(language))
    assert (found.words, found.characters) == (words, characters)


@pytest.mark.parametrize(
    ("hypothesis", "start", "end"),
    [
        ("We saw a red fox", 0, 0),
        ("a red fox", 2, 0),
        ("fox", 4, 0),
        ("we saw a", 0, 2),
        ("saw a red", 1, 1),
        ("we red fox", 0, 0),
        ("they saw a red box", 0, 0),
        ("so we saw a red fox now", 0, 0),
        ("so the red", 0, 1),
        ("", 0, 0),
    ],
)
def test_words_lost_at_the_edges_by_hand(hypothesis, start, end):
    found = score("We saw a red fox.", hypothesis)
    assert (found.lost_at_start, found.lost_at_end) == (start, end)


def test_words_lost_at_the_edges_add_up_and_a_clip_that_lost_all_is_empty_instead():
    pairs = [("a b c d", "c d"), ("a b c d", "b"), ("a b c d", ""), ("[noise]", "a"), ("[noise]", "")]
    totals = Totals.of([score(reference, hypothesis, normalizer=CZECH) for reference, hypothesis in pairs])
    assert (totals.lost_at_start, totals.lost_at_end, totals.empty_hypotheses) == (3, 2, 1)


def test_a_score_keeps_the_normalised_texts():
    found = score("The Colour’s 25!", "<|0.00|>the color is twenty five")
    assert found.said == found.heard == "the color is 2 5"


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
