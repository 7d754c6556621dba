"""Which weights a run delivers: a point on the line from the base to the tuned ones.

Averaging a model with what it was tuned from gives up a little of what was learned and most of what was
forgotten (WiSE-FT, Wortsman et al. 2022, arXiv 2109.01903; for speech recognition arXiv 2210.15282). How far
to go is chosen on speech that no report speaks of:

**auto**: seven tenths of the way, or on the dev clips the smallest larger share that keeps `KEPT_GAIN` of the
gain that the whole way has there. On `child-en`, 0.7 keeps 98 % of the gain on the test clips and less than
half of the forgetting (docs/results.md).

**recover**: on the dev clips and on one half of each guard's speakers, the share with the best dev score
whose guards stay within the tolerance. The report then speaks of the other halves.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from whispertune.clip import Clip
from whispertune.engine.model import LoadedModel
from whispertune.errors import DataError

SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
AUTO_SHARES = tuple(share for share in SHARES if share >= 0.7)
"""Below, `auto` does not go: dev is a few hundred words, and says too little of what less would cost."""
KEPT_GAIN = 0.7


class Line:
    """The models between a base and what was tuned from it, LoRA merged; float32, on the CPU."""

    def __init__(self, base: LoadedModel, tuned: LoadedModel) -> None:
        self._base = base.model.state_dict()
        self._model = tuned
        self._tuned = {name: weight.clone() for name, weight in tuned.model.state_dict().items()}
        assert self._base.keys() == self._tuned.keys()

    @torch.no_grad()
    def at(self, share: float) -> LoadedModel:
        """The model at a share of the way, 0 the base and 1 the tuned one; until the next call."""
        for name, weight in self._model.model.state_dict().items():
            if share == 1 or not weight.is_floating_point():
                weight.copy_(self._tuned[name])
            else:
                weight.copy_(torch.lerp(self._base[name], self._tuned[name], share))
        return self._model


@dataclass(frozen=True, slots=True)
class Point:
    """A place on the line and what was measured there, in percent."""

    share: float
    dev: float
    guards: dict[str, float]
    """Error rate on the choosing half of each guard."""


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """The points measured, the base first, and the share that was chosen."""

    curve: tuple[Point, ...]
    chosen: float
    reason: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "Tradeoff":
        return cls(tuple(Point(**point) for point in saved["curve"]), saved["chosen"], saved["reason"])


def choose_share(measure: Callable[[float], Point], tolerance: float | None) -> Tradeoff:
    """How far to go from the base (share 0) to the tuned weights (share 1).

    Args:
        measure: what a share of the way gives.
        tolerance: by how many points a guard may get worse; None: only the dev score chooses.
    """
    base, whole = measure(0.0), measure(1.0)
    if tolerance is None:
        return _keeping_the_gain(measure, base, whole)
    curve = (base, *(measure(share) for share in SHARES[:-1]), whole)

    def harm(point: Point) -> float:
        return max((rate - base.guards[name] for name, rate in point.guards.items()), default=0.0)

    within = [point for point in curve[1:] if harm(point) <= tolerance]
    if within:
        best = min(within, key=lambda point: (point.dev, point.share))
        reason = f"the best dev score of those within {tolerance:+g} on the guards"
    else:
        best = min(curve[1:], key=lambda point: (harm(point), point.share))
        reason = f"no share keeps the guards within {tolerance:+g}: the one that harms them least"
    return Tradeoff(curve, best.share, reason)


def _keeping_the_gain(measure: Callable[[float], Point], base: Point, whole: Point) -> Tradeoff:
    gain = base.dev - whole.dev
    curve = [base]
    if gain <= 0:
        return Tradeoff((base, whole), 1.0, "there is no gain on dev that a share of the way could keep")
    for share in AUTO_SHARES[:-1]:  # from the base on, so that no more is measured than is needed
        point = measure(share)
        curve.append(point)
        if base.dev - point.dev >= KEPT_GAIN * gain:
            kept = 100 * (base.dev - point.dev) / gain
            return Tradeoff((*curve, whole), share, f"keeps {kept:.0f} % of the gain on dev, forgets less")
    return Tradeoff((*curve, whole), 1.0, f"less keeps under {100 * KEPT_GAIN:.0f} % of the gain on dev")


def halves(clips: Sequence[Clip], name: str) -> tuple[list[Clip], list[Clip]]:
    """A guard's clips to choose by and to report on, no speaker on both sides; every time the same.

    Speakers where there are several, else recordings, else the first and the second half in time.

    Raises:
        DataError: there are fewer than two clips.
    """
    for group in (lambda clip: clip.speaker, lambda clip: clip.recording):
        groups = sorted({group(clip) for clip in clips if group(clip)}, key=_digest)
        if len(groups) > 1 and all(group(clip) for clip in clips):
            choosing = set(groups[: len(groups) // 2])
            break
    else:
        group = lambda clip: clip.id  # noqa: E731
        choosing = {clip.id for clip in clips[: len(clips) // 2]}
    sides = (
        [clip for clip in clips if group(clip) in choosing],
        [clip for clip in clips if group(clip) not in choosing],
    )
    if not all(sides):
        raise DataError(
            f"the guard {name} has {len(clips)} clip: it takes 2 to choose by one half and report the other",
            "give a larger guard, or leave out --recover",
        )
    return sides


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
