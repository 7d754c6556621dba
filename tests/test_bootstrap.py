"""The interval on a difference: its width by formula, its coverage by simulation, and when there is none."""

import math
from dataclasses import replace

import numpy as np
import pytest

from whispertune.clip import Clip
from whispertune.errors import DataError
from whispertune.scoring.bootstrap import (
    MAX_BAGS,
    MIN_GROUPS_FOR_INTERVAL,
    _t_tail,
    bootstrap_all_pairs,
    choose_groups,
    groups_of,
    paired_bootstrap,
)


def test_without_reference_words_there_is_no_rate():
    with pytest.raises(DataError) as caught:
        paired_bootstrap([1, 0], [0, 0], [0, 0], ["a", "b"])
    assert caught.value.what == "WER is undefined: 2 references have 0 words between them once normalised"
    assert "speech" in caught.value.hint


def test_the_estimate_is_the_difference_of_corpus_rates():
    difference = paired_bootstrap([2, 0, 1, 5], [1, 0, 0, 2], [10, 2, 3, 5], "abcd")
    assert (difference.before, difference.after, difference.point) == (40, 15, -25)
    assert (difference.groups, difference.clips, difference.reference_length) == (4, 4, 20)


@pytest.mark.parametrize("groups", range(1, MIN_GROUPS_FOR_INTERVAL))
def test_few_groups_never_give_an_interval_of_zero_width(groups):
    difference = paired_bootstrap([3] * 12, [1] * 12, [5] * 12, [i % groups for i in range(12)])
    assert difference.point == -40
    assert (difference.low, difference.high) == (-math.inf, math.inf)
    assert (difference.bounded, difference.resamples, difference.p_value) == (False, 0, 1)
    as_json = difference.as_dict()
    assert (as_json["low"], as_json["high"]) == (None, None)


def test_six_groups_that_all_agree_may_say_so():
    difference = paired_bootstrap([3] * 6, [1] * 6, [5] * 6, range(6))
    assert difference.high < 0 and difference.p_value < 0.05


def errors(rng, clips, rate, p=0.3):
    lengths = rng.integers(3, 15, clips)
    return rng.binomial(lengths, p), rng.binomial(lengths, p * rate), lengths


def test_the_same_seed_gives_the_same_interval():
    before, after, lengths = errors(np.random.default_rng(1), 60, 0.8)
    one, two, other = (paired_bootstrap(before, after, lengths, range(60), seed=seed) for seed in (7, 7, 8))
    assert one == two
    assert one.low != other.low and one.low == pytest.approx(other.low, abs=0.5)


def test_the_order_of_labels_and_their_names_do_not_matter():
    before, after, lengths = errors(np.random.default_rng(1), 60, 0.8)
    letters = paired_bootstrap(before, after, lengths, [chr(65 + i // 2) for i in range(60)])
    numbers = paired_bootstrap(before, after, lengths, [1000 - i // 2 for i in range(60)])
    assert letters == numbers


@pytest.mark.parametrize("clips", [400, 3 * MAX_BAGS])
@pytest.mark.real
def test_width_follows_the_formula_for_a_ratio(clips):
    """For many independent clips the interval is ± 1.96 standard errors of the linearised ratio (Cochran,
    Sampling Techniques, 6.4), also where groups are dealt into bags."""
    before, after, lengths = errors(np.random.default_rng(3), clips, 0.9)
    difference = paired_bootstrap(before, after, lengths, range(clips), resamples=4000)
    residuals = (after - before) - difference.point / 100 * lengths
    error = 100 * np.sqrt((residuals**2).sum()) / lengths.sum()
    assert (difference.high - difference.low) / (2 * 1.96 * error) == pytest.approx(1, abs=0.05)
    assert (difference.low + difference.high) / 2 == pytest.approx(difference.point, abs=0.2 * error)


def test_clips_that_err_together_are_less_sure_when_drawn_together():
    rng = np.random.default_rng(0)
    lengths = np.full(400, 10)
    before = np.full(400, 3)
    after = np.clip(before + np.repeat(rng.integers(-3, 3, 20), 20), 0, None)
    alone = paired_bootstrap(before, after, lengths, range(400), resamples=2000)
    together = paired_bootstrap(before, after, lengths, [i // 20 for i in range(400)], resamples=2000)
    assert together.high - together.low > 3 * (alone.high - alone.low)


def test_p_values_and_probability_agree_with_the_interval():
    rng = np.random.default_rng(5)
    for rate in (0.4, 0.9, 1.0, 1.1, 1.8):
        before, after, lengths = errors(rng, 80, rate)
        d = paired_bootstrap(before, after, lengths, range(80))
        assert (d.p_value < 0.05) == (d.low > 0 or d.high < 0)
        assert (d.p_worse < 0.025) == (d.low > 0)
        assert (d.probability_better > 0.975) == (d.high < 0)
        mirrored = paired_bootstrap(after, before, lengths, range(80))
        assert mirrored.point == -d.point
        assert mirrored.low == pytest.approx(-d.high) and mirrored.high == pytest.approx(-d.low)


def test_far_out_few_groups_are_no_surer_than_student():
    """Gains of 1 to 7 errors in seven equal groups: t = 4.899 with 6 degrees of freedom, p = 0.00136."""
    d = paired_bootstrap([0] * 7, range(1, 8), [10] * 7, range(7))
    assert d.p_worse == pytest.approx(0.00136, rel=0.4), "the draws, all of them worse, would say 0.0001"
    assert (d.low > 0, d.p_value) == (True, 2 * d.p_worse)
    mirrored = paired_bootstrap(range(1, 8), [0] * 7, [10] * 7, range(7))
    assert (mirrored.p_value, mirrored.p_worse) == (pytest.approx(d.p_value, rel=0.1), 1)


@pytest.mark.parametrize(
    "t, nu, tail",
    [
        (12.706, 1, 0.025),
        (4.303, 2, 0.025),
        (2.447, 6, 0.025),
        (5.959, 6, 0.0005),
        (2.364, 100, 0.01),
        (1.965, 500, 0.025),
        (1.965, 501, 0.025),
    ],
)
def test_students_tail_is_that_of_the_tables(t, nu, tail):
    assert _t_tail(t, nu) == pytest.approx(tail, rel=0.02)


def test_a_system_against_itself_is_exactly_equal():
    before, _, lengths = errors(np.random.default_rng(2), 50, 1)
    d = paired_bootstrap(before, before, lengths, range(50))
    assert (d.point, d.low, d.high, d.p_value, d.p_worse, d.probability_better) == (0, 0, 0, 1, 1, 0.5)


def test_draws_without_a_reference_word_are_left_out():
    lengths = np.array([20] + [0] * 7)
    d = paired_bootstrap(np.full(8, 2), np.full(8, 1), lengths, range(8), resamples=1000)
    assert 0 < d.resamples < 1000 and math.isfinite(d.low)


@pytest.mark.parametrize("groups", [20, 40])
@pytest.mark.real
def test_a_known_difference_is_inside_about_95_times_in_100(groups):
    """300 simulated sets of speakers, five clips each, speakers differing in error rate and in gain.

    The bound is three standard errors of a count at 95 % (1.26 points each): 91.2 %. The plain percentile
    interval for 20 groups covers 91 % in the long run; the module's table has the finer figures.
    """
    rng = np.random.default_rng(42)
    index = np.repeat(np.arange(groups), 5)
    inside = 0
    for seed in range(300):
        lengths = rng.integers(3, 15, len(index))
        rate, gain = rng.beta(2, 4, groups), rng.uniform(0.4, 1.0, groups)
        before = rng.binomial(lengths, rate[index])
        after = rng.binomial(lengths, (rate * gain)[index])
        d = paired_bootstrap(before, after, lengths, index.tolist(), resamples=1000, seed=seed)
        inside += d.low <= 100 * (1 / 3) * (0.7 - 1) <= d.high
    assert 0.912 <= inside / 300 <= 0.988


def ids(n):
    return [f"clip{i}" for i in range(n)]


@pytest.mark.parametrize(
    "clips, speakers, recordings, starts, level, groups, speaks_for",
    [
        (60, 20, 60, None, "speaker", 20, "these 20 speakers"),
        (60, 19, 30, None, "recording", 30, "these 19 speakers"),
        (60, 1, 60, None, "clip", 60, "this voice"),
        (60, 7, 3, None, "clip", 60, "these 7 speakers"),
        (60, 0, 30, None, "recording", 30, "these 30 recordings"),
        (60, 0, 3, None, "clip", 60, "these 3 recordings"),
        (60, 0, 1, None, "clip", 60, "this recording"),
        (60, 0, 60, None, "clip", 60, "these 60 clips"),
        (60, 0, 0, None, "clip", 60, "these 60 clips"),
        (1, 1, 1, None, "clip", 1, "this voice"),
        (1, 0, 0, None, "clip", 1, "this clip"),
        (60, 1, 1, 100.0, "block", 20, "this voice"),
        (60, 1, 1, 90.0, "clip", 60, "this voice"),
        (60, 2, 2, 100.0, "block", 40, "these 2 speakers"),
    ],
)
def test_the_highest_level_with_twenty_groups_is_drawn(
    clips, speakers, recordings, starts, level, groups, speaks_for
):
    grouping = choose_groups(
        ids(clips),
        [f"s{i % speakers}" for i in range(clips)] if speakers else None,
        [f"r{i % recordings}" for i in range(clips)] if recordings else None,
        [i * starts for i in range(clips)] if starts else None,
    )
    assert (grouping.level, grouping.speaks_for) == (level, speaks_for)
    assert len(set(grouping.labels.values())) == groups
    assert list(grouping.labels) == ids(clips)


def test_a_level_that_is_not_known_for_every_clip_is_not_used():
    speakers = [f"s{i}" for i in range(39)] + [None]
    assert choose_groups(ids(40), speakers).level == "clip"


def test_blocks_of_a_corpus_are_counted_from_where_the_recording_begins():
    def clip(i, recording, second):
        offset = round((7_000 + second) * 16_000)
        return Clip(f"{recording}{i}", f"{recording}{i}.wav", "x", "test", "s.wav", offset, 16_000, recording)

    clips = [clip(i, recording, 60 * i) for recording in "ab" for i in range(60)]
    grouping = groups_of(clips)
    assert (grouping.level, grouping.speaks_for) == ("block", "these 2 recordings")
    assert grouping.labels["a0"] == grouping.labels["a4"] == ("a", 0)
    assert grouping.labels["a5"] == ("a", 1) and grouping.labels["b5"] == ("b", 1)


# -- several systems ----------------------------------------------------------------------------------------


def test_all_pairs_are_what_each_pair_gives_alone():
    rng = np.random.default_rng(4)
    lengths = rng.integers(0, 15, 90)
    systems = [rng.binomial(lengths, p) for p in (0.3, 0.25, 0.3)]
    groups = [i // 3 for i in range(90)]
    found = bootstrap_all_pairs(systems, lengths, groups, resamples=1500, seed=3)
    assert list(found) == [(0, 1), (0, 2), (1, 2)]
    for (i, j), difference in found.items():
        assert difference == paired_bootstrap(
            systems[i], systems[j], lengths, groups, resamples=1500, seed=3
        )


def test_words_that_would_decide_it():
    difference = paired_bootstrap([0], [0], [1], "a")
    known = replace(difference, point=-1.0, low=-3.5, high=1.0, reference_length=500)
    assert known.words_to_decide == 1500, "twice the half-width takes four times the words"
    assert replace(known, point=1.0, low=-0.5, high=9).words_to_decide == 625
    assert replace(known, high=0.0).words_to_decide == 0, "the end is at 0 already"
    for none in ({"high": -0.1}, {"low": 0.1, "high": 2, "point": 1}, {"point": 0.0}, {"high": math.inf}):
        assert replace(known, **none).words_to_decide is None


def test_with_so_many_more_words_of_the_same_kind_the_interval_ends_at_zero():
    before, after, lengths = errors(np.random.default_rng(9), 60, 0.85)
    d = paired_bootstrap(before, after, lengths, range(60))
    more = 1 + d.words_to_decide / d.reference_length
    assert d.point < 0 < d.high and 1.5 < more < 8
    times = round(more)
    before, after, lengths = (np.tile(x, times) for x in (before, after, lengths))
    wide = paired_bootstrap(before, after, lengths, range(60 * times))
    assert wide.point == pytest.approx(d.point)
    assert wide.high == pytest.approx(0, abs=0.15 * (d.high - d.point) / math.sqrt(times))
