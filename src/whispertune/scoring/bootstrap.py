"""How sure a difference between two systems is: a paired bootstrap over speakers, recordings or clips.

The statistic is a difference of corpus rates, Σ(errors after − errors before) ÷ Σ length, in percentage
points. Groups of clips are drawn with replacement and both systems are summed over the same draw (Bisani &
Ney 2004), so what makes a clip hard for both cancels. Clips of one speaker err together: drawing clips alone
would call too much certain (Liu & Peng 2019, arXiv 1912.09508), hence groups.

**Interval.** Percentiles of the draws, with every draw moved away from the estimate by t(G−1)/z · √(G/(G−1)):
the expanded percentile interval (Hesterberg 2015, "What Teachers Should Know About the Bootstrap"), because
the plain one is too narrow for few groups. How often, in %, a nominal 95 % held the known difference, 600
simulated test sets each; loops insert 30 to 200 words into 0.5 to 2 % of the clips:

    groups × clips each                   20 × 12           40 × 12           100 × 8
    loops                               no  yes  yes      no  yes  yes      no  yes  yes
    true difference, points              0    0  −39       0    0  −39       0    0  −39
    percentile                          91   88   88      95   92   95      94   95   92
    expanded percentile (used)          94   93   90      96   94   95      94   96   92
    basic                               92   97   90      95   97   94      94   97   92
    BCa, expanded                       93   86   90      95   90   95      94   94   92
    studentised (bootstrap-t)           93   88   90      95   90   94      95   94   92

What is left below 95 is loops: where one clip in a hundred inserts a hundred words, a small test set may hold
none, and no resampling can know of what was not seen. That is one reason to show scores without loops beside.
`benchmarks/coverage.py` measures the same on the errors of real clips.

**p-values** are shares of the draws up to the interval's end, and beyond it no smaller than Student's t says.
"""

import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from whispertune.clip import SAMPLE_RATE, Clip
from whispertune.errors import DataError

RESAMPLES = 10_000
CONFIDENCE = 0.95

MIN_GROUPS = 20
"""A level with fewer groups is not resampled: the next finer one is, and the result speaks for less."""
MIN_GROUPS_FOR_INTERVAL = 6
"""Below this nothing can differ at 95 %: even if all n groups agree, chance does that in 2^(1−n) of the
cases (sign test), 6 % at n = 5. The interval is then unbounded, where equal groups would give it no width."""
BLOCK_S = 300
"""Stretches of a long recording that are resampled as one, in seconds."""
MAX_BAGS = 5_000
"""More groups than this are dealt at random into so many bags, which are resampled: independent groups make
independent bags, the width of the interval moves by about 1 % (as 10,000 resamples do), and time and memory
stop growing."""
_CHUNK = 2_000_000
"""Resampling weights held at once: 16 MB as float64."""

Level = Literal["speaker", "recording", "block", "clip"]


@dataclass(frozen=True, slots=True)
class Grouping:
    """Which clips are drawn together, and whom a result then speaks for."""

    level: Level
    labels: Mapping[str, Hashable]
    """Group of each clip, by clip id."""
    speaks_for: str
    """Such as "these 64 speakers", "this voice", "these 12 recordings"."""

    @property
    def too_few(self) -> str:
        """Why no verdict can come of them, where they are too few for an interval; else empty."""
        count = len(set(self.labels.values()))
        if count >= MIN_GROUPS_FOR_INTERVAL:
            return ""
        clips = f"{len(self.labels)} test {'clip' if len(self.labels) == 1 else 'clips'}"
        return (
            f"{clips} in {count} {'group' if count == 1 else 'groups'} ({self.level}): "
            f"with fewer than {MIN_GROUPS_FOR_INTERVAL} there is no interval and so no verdict; "
            f"{MIN_GROUPS} or more are wanted"
        )


def choose_groups(
    clip_ids: Sequence[str],
    speakers: Sequence[str | None] | None = None,
    recordings: Sequence[str | None] | None = None,
    starts_s: Sequence[float] | None = None,
) -> Grouping:
    """The highest level with at least `MIN_GROUPS` groups: speaker, recording, 5-minute block, clip.

    The sequences run beside `clip_ids`; `starts_s` is where a clip begins in its recording, in seconds. A
    level that is not known for every clip is not used.
    """
    speakers = _if_complete(speakers)
    recordings = _if_complete(recordings)
    if recordings and len(set(recordings)) == len(clip_ids):
        recordings = None  # a file for each clip says no more than the clip does
    levels: list[tuple[Level, Sequence[Hashable]]] = []
    if speakers:
        levels.append(("speaker", speakers))
    if recordings:
        levels.append(("recording", recordings))
        if starts_s is not None:
            blocks = [(r, int(start // BLOCK_S)) for r, start in zip(recordings, starts_s, strict=True)]
            levels.append(("block", blocks))
    levels.append(("clip", clip_ids))
    level, labels = next((x for x in levels if len(set(x[1])) >= MIN_GROUPS), levels[-1])
    speaks_for = _speaks_for(len(clip_ids), speakers, recordings)
    return Grouping(level, dict(zip(clip_ids, labels, strict=True)), speaks_for)


def groups_of(clips: Iterable[Clip]) -> Grouping:
    """`choose_groups` for clips of a corpus."""
    clips = list(clips)
    first: dict[str, int] = {}
    for clip in clips:
        first[clip.recording] = min(clip.offset, first.get(clip.recording, clip.offset))
    return choose_groups(
        [clip.id for clip in clips],
        [clip.speaker for clip in clips],
        [clip.recording for clip in clips],
        [(clip.offset - first[clip.recording]) / SAMPLE_RATE for clip in clips],
    )


def _if_complete(values: Sequence[str | None] | None) -> list[str] | None:
    known = [value for value in values or () if value]
    return known if values is not None and known and len(known) == len(values) else None


def _speaks_for(clips: int, speakers: list[str] | None, recordings: list[str] | None) -> str:
    if speakers:
        n = len(set(speakers))
        return "this voice" if n == 1 else f"these {n:,} speakers"
    if recordings:
        n = len(set(recordings))
        return "this recording" if n == 1 else f"these {n:,} recordings"
    return "this clip" if clips == 1 else f"these {clips:,} clips"


@dataclass(frozen=True, slots=True)
class Difference:
    """Two systems on the same clips: rates in percent, their difference (after − before) in points."""

    metric: str
    """`WER` or `CER`."""
    before: float
    after: float
    point: float
    low: float
    high: float
    """95 % interval; −inf and +inf where there are fewer than `MIN_GROUPS_FOR_INTERVAL` groups."""
    level: Level
    groups: int
    speaks_for: str
    clips: int
    reference_length: int
    """Words (or characters) in the references."""
    resamples: int
    """Draws that count; a draw without any reference word does not."""
    seed: int
    probability_better: float
    """Share of the draws below 0; ties count half. 0.5 where there is no interval."""
    p_value: float
    """Two-sided, against "no difference": below 0.05 when the interval excludes 0."""
    p_worse: float
    """One-sided, against "not worse": below 0.025 when the interval lies above 0, and then never below what
    Student's t has so far out."""

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def decided(self) -> bool:
        """Whether the interval lies on one side of 0."""
        return self.high < 0 or self.low > 0

    @property
    def words_to_decide(self) -> int | None:
        """More reference words (characters for CER) with which the interval would just end at 0.

        An interval narrows with the root of the material: words × ((half-width ÷ |point|)² − 1), with the
        half of the interval that reaches past 0. It assumes that the difference measured is the true one and
        that what is added is like what is there, in new groups as large as these. Even then chance has a
        say: with so many words it is decided every second time, with twice the words in all four times in
        five (normal errors: 1.96 against 1.96 √2 standard errors).

        None where it is decided, where the point is 0 (no amount would do), and where there is no interval.
        """
        if self.decided or self.point == 0 or not self.bounded:
            return None
        half = self.high - self.point if self.point < 0 else self.point - self.low
        return math.ceil(self.reference_length * ((half / self.point) ** 2 - 1))

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON; an unbounded end is None."""
        values = asdict(self)
        for end in ("low", "high"):
            values[end] = values[end] if math.isfinite(values[end]) else None
        return values


def paired_bootstrap(
    errors_before: npt.ArrayLike,
    errors_after: npt.ArrayLike,
    lengths: npt.ArrayLike,
    groups: Sequence[Hashable],
    *,
    metric: str = "WER",
    level: Level = "clip",
    speaks_for: str = "these clips",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Difference:
    """The difference between two systems on the same clips, with its interval.

    Args:
        errors_before, errors_after: (clips,) errors of either system in each clip.
        lengths: (clips,) reference length of each clip, in words or characters.
        groups: (clips,) label of the group each clip is drawn with.

    Raises DataError when no reference has any length: then there is no rate.
    """
    return bootstrap_all_pairs(
        [errors_before, errors_after],
        lengths,
        groups,
        metric=metric,
        level=level,
        speaks_for=speaks_for,
        resamples=resamples,
        seed=seed,
    )[0, 1]


def bootstrap_all_pairs(
    errors: Sequence[npt.ArrayLike],
    lengths: npt.ArrayLike,
    groups: Sequence[Hashable],
    *,
    metric: str = "WER",
    level: Level = "clip",
    speaks_for: str = "these clips",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[tuple[int, int], Difference]:
    """The difference of every two of several systems, {(i, j): j − i} for i < j, all from the same draws.

    Args:
        errors: of each system, (clips,) errors in each clip; the rest as in `paired_bootstrap`, whose result
            for two systems is one of these to the last bit.
    """
    counts = [np.asarray(system, dtype=np.float64) for system in errors]
    length = np.asarray(lengths, dtype=np.float64)
    assert all(x.shape == (len(groups),) for x in (*counts, length)), "one count and one label a clip"
    total = length.sum()
    if total == 0:
        unit = "characters" if metric == "CER" else "words"
        raise DataError(
            f"{metric} is undefined: {len(groups):,} references have 0 {unit} between them once normalised",
            "compare on clips with speech in them",
        )
    index = _codes(groups)
    count = int(index.max()) + 1
    sums = _sums(index, np.stack([*counts, length], axis=1))
    draws = None
    if count >= MIN_GROUPS_FOR_INTERVAL:
        draws = _draw(sums, resamples, np.random.Generator(np.random.PCG64(seed)))
    found = {}
    for i, j in itertools.combinations(range(len(counts)), 2):
        point = float(100 * (counts[j].sum() - counts[i].sum()) / total)
        low, high, better, p_better, p_worse, used = -math.inf, math.inf, 0.5, 1.0, 1.0, 0
        if draws is not None:
            drawn = 100 * (draws[:, j] - draws[:, i]) / draws[:, -1]
            drawn = point + _expansion(count) * (drawn - point)
            used = len(drawn)
            tail = (1 - CONFIDENCE) / 2
            low, high = (float(q) for q in np.quantile(drawn, [tail, 1 - tail]))
            better = float(((drawn < 0).sum() + 0.5 * (drawn == 0).sum()) / used)
            # One is added to both counts: the observed set is one of the draws, and p is never 0.
            p_worse = float((1 + (drawn <= 0).sum()) / (1 + used))
            p_better = float((1 + (drawn >= 0).sum()) / (1 + used))
            if low > 0:
                p_worse = max(p_worse, _beyond(point, low, count))
            elif high < 0:
                p_better = max(p_better, _beyond(-point, -high, count))
        found[i, j] = Difference(
            metric=metric,
            before=float(100 * counts[i].sum() / total),
            after=float(100 * counts[j].sum() / total),
            point=point,
            low=low,
            high=high,
            level=level,
            groups=count,
            speaks_for=speaks_for,
            clips=len(groups),
            reference_length=int(total),
            resamples=used,
            seed=seed,
            probability_better=better,
            p_value=min(1.0, 2 * min(p_better, p_worse)),
            p_worse=p_worse,
        )
    return found


def _codes(groups: Sequence[Hashable]) -> npt.NDArray[np.int64]:
    """Labels as numbers, in order of first appearance."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(label, len(seen)) for label in groups], dtype=np.int64)


def _sums(index: npt.NDArray[np.int64], rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(groups, columns) sums of the rows that share an index."""
    sums = np.zeros((int(index.max()) + 1, rows.shape[1]))
    np.add.at(sums, index, rows)
    return sums


def _draw(sums: npt.NDArray[np.float64], resamples: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """(draws, columns) sums over groups drawn with replacement; `sums` is (groups, columns).

    The last column is the reference length; a draw without any is left out.
    """
    if len(sums) > MAX_BAGS:
        bag = rng.permutation(len(sums)) % MAX_BAGS
        sums = _sums(bag, sums)
    drawn = np.concatenate([weights @ sums for weights in _weights(len(sums), resamples, rng)])
    return drawn[drawn[:, -1] > 0]


def _weights(
    groups: int, resamples: int, rng: np.random.Generator
) -> Iterator[npt.NDArray[np.float64]]:
    """(some draws, groups) how often each group is in a draw with replacement, until there are enough."""
    chances = np.full(groups, 1 / groups)
    rows = max(1, _CHUNK // groups)
    for done in range(0, resamples, rows):
        yield rng.multinomial(groups, chances, size=min(rows, resamples - done)).astype(np.float64)


def _expansion(groups: int) -> float:
    """How far to spread the draws of so many groups: t ÷ z at the interval's ends, times √(G/(G−1))."""
    return _t_end(groups - 1) / _Z * math.sqrt(groups / (groups - 1))


_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def _t_end(nu: int) -> float:
    """Where the central 95 % of Student's t end; off by 0.1 % at 5 degrees of freedom.

    Abramowitz & Stegun 26.7.5.
    """
    z = _Z
    return (
        z
        + (z**3 + z) / (4 * nu)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * nu**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * nu**3)
    )


def _beyond(point: float, end: float, groups: int) -> float:
    """One-sided p of an interval that ends on this side of 0: Student's tail behind its 2.5 %.

    Draws of few groups end early: all seven worse make every draw worse, which chance does in 0.8 % of the
    cases and the share of draws calls 0.01 %. The interval is spread for that at its ends; this spreads what
    lies beyond. `point` and `end` (the end nearer 0) are positive.
    """
    if point == end:
        return 0.0
    tail = _t_tail(_t_end(groups - 1) * point / (point - end), groups - 1)
    return min((1 - CONFIDENCE) / 2, tail)  # `_t_end` is a little short


def _t_tail(t: float, nu: int) -> float:
    """Chance that Student's t with ν degrees of freedom exceeds t > 0 (Abramowitz & Stegun 26.7.3 and 4)."""
    if nu > 500:
        return NormalDist().cdf(-t)
    angle = math.atan(t / math.sqrt(nu))
    sine, cosine = math.sin(angle), math.cos(angle)
    term = total = cosine if nu % 2 else 1.0
    for k in range(3 if nu % 2 else 2, nu, 2):
        term *= (k - 1) / k * cosine**2
        total += term
    inside = sine * total
    if nu % 2:
        inside = 2 / math.pi * (angle + (inside if nu > 1 else 0.0))
    return max(0.0, (1 - inside) / 2)
