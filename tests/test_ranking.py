"""Ranks of several systems: beyond chance over all pairs, ties where nothing tells two apart."""

import numpy as np
import pytest

from whispertune.errors import DataError
from whispertune.scoring.bootstrap import paired_bootstrap
from whispertune.scoring.ranking import rank_systems


def errors(rates, clips=200, seed=0):
    """(errors of each system, lengths); a clip's difficulty is common to all."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 15, clips)
    hard = rng.uniform(0.5, 1.5, clips)
    return [rng.binomial(lengths, np.clip(rate * hard, 0, 1)) for rate in rates], lengths


def test_without_words_there_is_no_rank():
    with pytest.raises(DataError) as caught:
        rank_systems(["a", "b", "c"], [[1, 0]] * 3, [0, 0], "xy")
    assert caught.value.what == "WER is undefined: 2 references have 0 words between them once normalised"


@pytest.mark.parametrize("names", [["a"], ["a", "a"], ["a", "b", "c"]])
def test_two_systems_or_more_each_with_its_name(names):
    with pytest.raises(AssertionError):
        rank_systems(names, [[1, 0]] * 2, [3, 3], "xy")


def test_a_rank_is_one_more_than_the_systems_that_are_better():
    heard, lengths = errors([0.30, 0.10, 0.30, 0.50])
    heard[2] = heard[0].copy()
    heard[2][:6] += [1, -1, 1, -1, 1, -1]
    ranking = rank_systems(["stock", "best", "same", "worst"], heard, lengths, range(200))
    assert [(s.name, s.rank) for s in ranking.systems] == [("stock", 2), ("best", 1), ("same", 2), ("worst", 4)]
    assert [s.name for s in ranking.leaders] == ["best"]
    assert {(p.first, p.second): p.better for p in ranking.pairs} == {
        ("stock", "best"): "best",
        ("stock", "same"): None,
        ("stock", "worst"): "stock",
        ("best", "same"): "best",
        ("best", "worst"): "best",
        ("same", "worst"): "same",
    }
    assert ranking.systems[0].difference is None
    assert ranking.systems[1].difference == paired_bootstrap(heard[0], heard[1], lengths, range(200))
    assert ranking.systems[3].rate == pytest.approx(100 * heard[3].sum() / lengths.sum())


def test_equal_systems_share_the_first_rank():
    heard, lengths = errors([0.2])
    ranking = rank_systems("abc", heard * 3, lengths, range(200))
    assert [s.rank for s in ranking.systems] == [1, 1, 1]
    assert [pair.as_dict()["words_to_decide"] for pair in ranking.pairs] == [None] * 3


def test_too_few_groups_tell_nothing_apart():
    ranking = rank_systems("ab", [[9] * 5, [0] * 5], [10] * 5, range(5))
    assert [s.rank for s in ranking.systems] == [1, 1]
    assert ranking.pairs[0].as_dict()["difference"]["low"] is None


def test_two_systems_are_told_apart_by_their_interval():
    """As in the verdict: its word and the ranks never contradict each other."""
    for seed in range(20):
        heard, lengths = errors([0.30, 0.28], 60, seed)
        pair = rank_systems("ab", heard, lengths, range(60), resamples=1000).pairs[0]
        assert pair.beyond_chance == (pair.difference.high < 0 or pair.difference.low > 0)


@pytest.mark.real
def test_equal_systems_are_seldom_told_apart_though_there_are_ten_pairs():
    """Holm holds the chance of any false difference at 5 %: at most 6 in 40 sets, three standard errors
    (1.4) above the 2 expected. Ten pairs each at 5 % would show one in about 17 sets."""
    false = 0
    for seed in range(40):
        heard, lengths = errors([0.25] * 5, 80, seed)
        false += any(
            pair.better for pair in rank_systems("abcde", heard, lengths, range(80), resamples=1000).pairs
        )
    assert false <= 6


def test_many_pairs_get_the_resamples_that_they_need():
    heard, lengths = errors([0.5, *[0.1] * 7])
    ranking = rank_systems("abcdefgh", heard, lengths, range(200), resamples=1000)
    assert ranking.pairs[0].difference.resamples == 28 * 400
    assert ranking.systems[0].rank == 8
