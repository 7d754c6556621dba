"""Which clips are trained on, which choose the checkpoint, and which are only ever tested.

A group goes to one side whole, so that what is tested was not heard in training. The side is read from a hash
of the group's name: the same seed gives the same split on any machine, and a group stays where it is when
others are added.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from whispertune.clip import SAMPLE_RATE, Clip, Split, counted
from whispertune.errors import DataError, UsageError

MIN_GROUPS = 10
"""Fewer groups than this make a 90/10 split a matter of one or two of them."""
MIN_SPEAKERS = 4
"""Where clips are single files, so few speakers can still be kept apart; with two or three, a test would be
of somebody whom the user did not ask about."""
BLOCK_S = 300.0
DEV_SHARE = 0.1
"""Of what is not held out; it only chooses a checkpoint."""
RATIOS = {"90/10": (0.81, 0.09, 0.10), "80/10/10": (0.80, 0.10, 0.10)}
"""Shares of train, dev, test. 90/10 is train against test as people know it; dev is a tenth of that train."""


@dataclass(frozen=True, slots=True)
class SplitResult:
    clips: list[Clip]
    """As given, in the same order, each with its side."""
    level: str
    """`given`, `speaker`, `recording`, `block` or `clip`."""
    description: str
    """One sentence for the report."""


def split_clips(
    clips: Sequence[Clip],
    given: Sequence[Split | None],
    *,
    seed: int = 0,
    ratios: str = "90/10",
    existing: Mapping[str, Split] | None = None,
) -> SplitResult:
    """Give every clip a side. `given[i]` is the side that the source itself names for `clips[i]`, or None.

    A given side is kept. Sides the source lacks are carved out of its train: a dev where there is only train
    and test, a test where there is none; a source that is all test (or all dev) stays so. `existing` maps
    clip ids of an earlier version of this corpus to their sides: their groups stay there.

    Groups: speakers; with fewer than 10, recordings; with fewer of them, contiguous blocks of 5 minutes (a
    tenth of the speech where there is less than 50 minutes); where clips are files of their own, speakers
    from 4 on, else clips with equal texts together. Identical audio (`extra["audio_sha"]`) is one group at
    every level.

    Balance: a group whose hash, in [0, 1), is below the share of test is test, below test + dev it is dev.
    Only where a side has less than half or more than twice its share of the seconds, the groups with the
    nearest hashes are moved.
    """
    if ratios not in RATIOS:
        raise UsageError(f"ratios '{ratios}' are not known", f"use {' or '.join(RATIOS)}")
    assert len(clips) == len(given)
    _, dev_share, test_share = RATIOS[ratios]
    sides: list[Split] = [side or "train" for side in given]
    named = {side for side in given if side}
    if named and "train" not in sides:
        return _result(clips, sides, "given", "The split is the source's own.")
    wanted: dict[Split, float] = {}
    if "test" not in named:
        wanted["test"] = test_share
    if "dev" not in named:
        wanted["dev"] = dev_share
    pool = [i for i, side in enumerate(sides) if side == "train"]
    if not wanted or len(pool) < 2:
        return _result(
            clips, sides, "given", "The split is the source's own." if named else "One clip: no split."
        )
    level, groups = _groups([clips[i] for i in pool])
    # With few groups, dev costs too much of them: it only chooses a checkpoint, so clips of train's groups
    # will do.
    apart = "test" in wanted and "dev" in wanted and len(groups) < MIN_GROUPS
    before = dict(existing or {})
    first, pins = wanted, before
    if apart:
        first = {"test": wanted["test"]}
        pins = {k: "test" if side == "test" else "train" for k, side in before.items()}
    chosen = _assign([clips[i] for i in pool], groups, first, seed, pins)
    if apart:
        rest = [k for k, side in enumerate(chosen) if side == "train"]
        rest_clips = [clips[pool[k]] for k in rest]
        pins = {k: side for k, side in before.items() if side != "test"}
        again = _assign(rest_clips, _by_text(rest_clips), {"dev": wanted["dev"]}, seed, pins)
        for k, side in zip(rest, again, strict=True):
            chosen[k] = side
    for i, side in zip(pool, chosen, strict=True):
        sides[i] = side
    return _result(clips, sides, level, _describe(level, len(groups), named, list(wanted), apart))


def folded(clips: Sequence[Clip], count: int, seed: int = 0) -> list[list[Clip]]:
    """The clips `count` times, each time with another part of their groups as test, so that each is test
    once; and once more with no test. A tenth of the rest is dev. Sides that were there before do not matter.

    Raises:
        DataError: there are fewer groups than that.
    """
    level, groups = _groups(list(clips))
    if len(groups) < count:
        raise DataError(
            f"{count} folds need as many groups that can be held out; the clips have {len(groups)} ({level})",
            f"--folds {len(groups)}, or more recordings" if len(groups) > 1 else "record more",
        )
    place = {key: _unit_hash(f"{seed}:{key}") for key in groups}
    weight = {key: sum(clips[i].samples for i in members) for key, members in groups.items()}
    filled = [0] * count
    held_out: list[set[int]] = [set() for _ in range(count)]
    for key in sorted(groups, key=lambda key: (-weight[key], place[key])):
        part = filled.index(min(filled))  # the longest group first, each to the part that has least
        filled[part] += weight[key]
        held_out[part].update(groups[key])
    return [_without(clips, part, seed) for part in [*held_out, set()]]


def _without(clips: Sequence[Clip], test: set[int], seed: int) -> list[Clip]:
    """The clips with some of them as test, and dev carved from the others."""
    rest = [i for i in range(len(clips)) if i not in test]
    rest_clips = [clips[i] for i in rest]
    _, groups = _groups(rest_clips)
    if len(groups) < MIN_GROUPS:
        groups = _by_text(rest_clips)
    chosen = dict(zip(rest, _assign(rest_clips, groups, {"dev": DEV_SHARE}, seed, {}), strict=True))
    return [replace(clip, split=chosen.get(i, "test")) for i, clip in enumerate(clips)]


def text_key(text: str) -> str:
    """Equal for sentences that differ only in case, punctuation and spacing."""
    return " ".join(re.sub(r"[^\w\s]|_", "", text.casefold()).split())


def _result(clips: Sequence[Clip], sides: list[Split], level: str, description: str) -> SplitResult:
    return SplitResult([replace(c, split=s) for c, s in zip(clips, sides, strict=True)], level, description)


def _describe(level: str, count: int, named: set[Split], carved: list[Split], apart: bool) -> str:
    groups = counted(count, "group")
    how = {
        "speaker": f"by speaker ({groups}): nobody who is tested was trained on",
        "recording": f"by recording ({groups}): no recording is on two sides",
        "block": f"by contiguous blocks of recordings ({groups}): it speaks for these recordings",
        "clip": f"by clip, equal sentences together ({groups}): it speaks for these voices only",
    }[level]
    tail = "; dev is taken from train by clip" if apart else ""
    if named:
        own = f"The source names its own {' and '.join(sorted(named))}"
        return f"{own}; {' and '.join(carved)} carved out of train {how}{tail}."
    return f"Split {how}{tail}."


def _groups(clips: list[Clip]) -> tuple[str, dict[str, list[int]]]:
    """The level, and the indices of each group by its name."""
    speakers = {c.speaker for c in clips if c.speaker}
    recordings: dict[str, list[int]] = defaultdict(list)
    for i, clip in enumerate(clips):
        recordings[clip.recording].append(i)
    in_long = sum(len(r) for r in recordings.values() if len(r) > 1)
    by_speaker = [f"s:{c.speaker}" if c.speaker else f"r:{c.recording}" for c in clips]
    if len(speakers) >= MIN_GROUPS:
        return "speaker", _joined(clips, by_speaker)
    if in_long * 2 > len(clips):
        if len(recordings) >= MIN_GROUPS:
            return "recording", _joined(clips, [f"r:{c.recording}" for c in clips])
        return "block", _joined(clips, _blocks(clips, recordings))
    if len(speakers) >= MIN_SPEAKERS:
        return "speaker", _joined(clips, by_speaker)
    return "clip", _by_text(clips)


def _by_text(clips: list[Clip]) -> dict[str, list[int]]:
    return _joined(clips, [f"t:{text_key(c.text)}" for c in clips])


def _blocks(clips: list[Clip], recordings: Mapping[str, list[int]]) -> list[str]:
    total = sum(c.samples for c in clips)
    block = max(1, min(int(BLOCK_S * SAMPLE_RATE), total // MIN_GROUPS))
    keys = [""] * len(clips)
    for name, members in recordings.items():
        # Counted in the recording's own time, so that a clip added in front moves no border.
        start = min(clips[i].offset for i in members)
        for i in members:
            keys[i] = f"b:{name}:{(clips[i].offset - start) // block}"
    return keys


def _joined(clips: list[Clip], keys: list[str]) -> dict[str, list[int]]:
    """Groups of equal keys, those that share identical audio made one (union-find over keys)."""
    parent = {key: key for key in keys}

    def root(key: str) -> str:
        while parent[key] != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    first: dict[str, str] = {}
    for clip, key in zip(clips, keys, strict=True):
        if sha := clip.extra.get("audio_sha"):
            a, b = root(first.setdefault(sha, key)), root(key)
            parent[max(a, b)] = min(a, b)
    groups: dict[str, list[int]] = defaultdict(list)
    for i, key in enumerate(keys):
        groups[root(key)].append(i)
    return dict(groups)


def _assign(
    clips: list[Clip],
    groups: Mapping[str, list[int]],
    shares: Mapping[Split, float],
    seed: int,
    pins: Mapping[str, Split],
) -> list[Split]:
    """A side for each clip: `shares` of the seconds for test and dev, train the rest. `pins` holds clip ids
    in place."""
    place = {key: _unit_hash(f"{seed}:{key}") for key in groups}
    weight = {key: sum(clips[i].samples for i in members) for key, members in groups.items()}
    held: dict[str, Split] = {}
    side: dict[str, Split] = {}
    for key, members in groups.items():
        below: float = 0.0
        side[key] = "train"
        for name, share in shares.items():
            if below <= place[key] < below + share:
                side[key] = name
            below += share
        for i in members:
            if clips[i].id in pins:
                held[key] = side[key] = pins[clips[i].id]
                break

    def seconds(name: Split) -> int:
        return sum(w for key, w in weight.items() if side[key] == name)

    def movable(name: Split) -> list[str]:
        return sorted((key for key in groups if side[key] == name and key not in held), key=place.__getitem__)

    total = sum(weight.values())
    for name, share in shares.items():
        target = share * total
        while seconds(name) > 2 * target and (free := movable(name)):
            lighter = any(weight[key] < weight[free[-1]] for key in movable("train"))
            if len(free) == 1 and not lighter:
                break  # it is the least that this side can have
            side[free[-1]] = "train"
        while (
            seconds(name) < target / 2
            and list(side.values()).count("train") > 1
            and (free := movable("train"))
        ):
            fitting = [key for key in free if seconds(name) + weight[key] <= 2 * target]
            side[fitting[0] if fitting else min(free, key=weight.__getitem__)] = name
    out: list[Split] = ["train"] * len(clips)
    for key, members in groups.items():
        for i in members:
            out[i] = side[key]
    return out


def _unit_hash(name: str) -> float:
    """A number in [0, 1) that depends on the name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64


def capped(clips: Sequence[Clip], minutes: float | Literal["all"]) -> list[Clip]:
    """At most so many minutes of clips, drawn by the hash of their id: the same ones every time."""
    if minutes == "all":
        return list(clips)
    left = minutes * 60
    chosen = set()
    for clip in sorted(clips, key=lambda clip: hashlib.sha256(clip.id.encode()).digest()):
        left -= clip.duration_s
        if left < 0 and chosen:
            break
        chosen.add(clip.id)
    return [clip for clip in clips if clip.id in chosen]
