"""General speech heard along with what is tuned on, labelled with the base model's own words.

A model forgets less where it goes on saying what it said (replay; arXiv 2112.09427, 2307.07280); words of its
own pull it less than a stranger's would (arXiv 2509.04259).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from whispertune.clip import Clip
from whispertune.corpus import Corpus
from whispertune.engine.layouts import Layouts
from whispertune.engine.windows import Window
from whispertune.scoring.align import is_loop


class Planner(Protocol):
    """What composes the windows of each pass."""

    def epoch(self, number: int) -> list[Window]: ...


def borrowed(corpus: Corpus) -> list[Clip]:
    """The clips of another corpus, so named and placed that any corpus can read them beside its own."""
    return [
        replace(clip, id=f"rehearsal/{clip.id}", shard=str((corpus.folder / clip.shard).absolute()))
        for clip in corpus.clips
    ]


@dataclass(frozen=True)
class Rehearsing:
    """A planner's windows with some of general speech among them.

    Attributes:
        planner: of what is tuned on.
        windows: general speech, all of it.
        share: of all windows, those that are rehearsed; below 1.
    """

    planner: Planner
    windows: Sequence[Window]
    share: float
    seed: int

    def epoch(self, number: int) -> list[Window]:
        """The planner's windows and their share of the others, in an order of (seed, number)."""
        own = self.planner.epoch(number)
        rng = np.random.default_rng([self.seed, number, 1])
        count = min(len(self.windows), round(len(own) * self.share / (1 - self.share)))
        mixed = own + [self.windows[i] for i in rng.permutation(len(self.windows))[:count]]
        return [mixed[i] for i in rng.permutation(len(mixed))]


def own_words(heard: Sequence[tuple[Sequence[Clip], str]], layouts: Layouts) -> dict[str, str]:
    """Label by clip id, from what the base wrote for groups of clips that share a window: the first clip of a
    group holds the text of all. Of a loop, or of more than a label holds, nothing is kept."""
    labels: dict[str, str] = {}
    for clips, text in heard:
        layout = layouts.of(clips[0])
        loops = is_loop(text, " ".join(clip.text for clip in clips))
        kept = not loops and layout.label_length(text) <= layout.max_target_positions
        labels |= {clip.id: text if kept and clip is clips[0] else "" for clip in clips}
    return labels
