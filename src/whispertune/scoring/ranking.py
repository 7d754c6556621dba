"""Several systems on the same clips: which are better than which, and ranks that admit ties.

All pairs are judged from the same resamples, and all are tried together: with five systems there are ten
pairs, and one in ten sets would show a difference that is none. Holm's procedure over the two-sided p-values
keeps the chance of any false one at 5 %. A **rank** is one more than the number of systems that are better
beyond chance, so systems that nothing tells apart can share one. "Not told apart" does not carry over: A may
be beyond chance better than C while B ties with both.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from whispertune.scoring.bootstrap import CONFIDENCE, RESAMPLES, Difference, Level, bootstrap_all_pairs
from whispertune.scoring.verdict import holm

RESAMPLES_A_PAIR = 400
"""A p-value is never below 2 ÷ (1 + resamples), and Holm asks the smallest of m for 0.05 ÷ m: with fewer than
40 m resamples no difference could ever be shown. Ten times as many hold that p-value to a third of itself."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two of the systems. `difference` is second − first: negative where the second makes fewer errors."""

    first: str
    second: str
    difference: Difference
    beyond_chance: bool
    """Whether chance explains it no longer, all pairs tried together."""

    @property
    def better(self) -> str | None:
        """Name of the system that is better beyond chance; None where nothing tells the two apart."""
        if not self.beyond_chance:
            return None
        return self.second if self.difference.point < 0 else self.first

    def as_dict(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "second": self.second,
            "difference": self.difference.as_dict(),
            "better": self.better,
            "words_to_decide": self.difference.words_to_decide,
        }


@dataclass(frozen=True, slots=True)
class Ranked:
    """One system's place."""

    name: str
    rank: int
    rate: float
    """Errors ÷ reference length, in percent."""
    difference: Difference | None
    """To the first system; None for that one."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The systems in the order given, the first being what the others are measured against; and all pairs."""

    systems: tuple[Ranked, ...]
    pairs: tuple[Pair, ...]

    @property
    def leaders(self) -> tuple[Ranked, ...]:
        """The systems of rank 1, the lowest rate first."""
        return tuple(sorted((s for s in self.systems if s.rank == 1), key=lambda s: s.rate))


def rank_systems(
    names: Sequence[str],
    errors: Sequence[npt.ArrayLike],
    lengths: npt.ArrayLike,
    groups: Sequence[Hashable],
    *,
    metric: str = "WER",
    level: Level = "clip",
    speaks_for: str = "these clips",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Ranking:
    """Rates, differences and ranks of at least two systems of different names.

    Args:
        errors: of each system, (clips,) errors in each clip.
        lengths: (clips,) reference length of each clip, in words or characters.
        groups: (clips,) label of the group each clip is drawn with.
        resamples: raised where so many pairs need more, see `RESAMPLES_A_PAIR`.

    Raises DataError when no reference has any length.
    """
    assert len(names) == len(set(names)) == len(errors) >= 2, "two systems or more, each with its name"
    differences = bootstrap_all_pairs(
        errors,
        lengths,
        groups,
        metric=metric,
        level=level,
        speaks_for=speaks_for,
        resamples=max(resamples, RESAMPLES_A_PAIR * math.comb(len(names), 2)),
        seed=seed,
    )
    if len(differences) == 1:  # as in the verdict, whose word is the interval's
        beyond = [difference.decided for difference in differences.values()]
    else:
        beyond = holm([difference.p_value for difference in differences.values()], 1 - CONFIDENCE)
    pairs = tuple(
        Pair(names[i], names[j], difference, told_apart)
        for ((i, j), difference), told_apart in zip(differences.items(), beyond, strict=True)
    )
    losses = [pair.first if pair.better == pair.second else pair.second for pair in pairs if pair.better]
    rates = [differences[0, 1].before, *(differences[0, j].after for j in range(1, len(names)))]
    return Ranking(
        tuple(
            Ranked(name, 1 + losses.count(name), rate, differences[0, k] if k else None)
            for k, (name, rate) in enumerate(zip(names, rates, strict=True))
        ),
        pairs,
    )
