"""What tuning cost a model beside its task: the observations of `engine.probes`, before and after.

Each probe becomes a rate of errors per window, file or clip, compared like a guard:

no speech    share of windows without speech that would show text. Decoding always says something, so what
             counts is what transcribers show: they drop a window in which the no-speech token is likely *and*
             the text is not.
long-form    word error rate of files of a minute and more, decoded window after window.
timestamps   share of windows whose time tokens a player could not use. Transcribers force an order on them;
             they were decoded without, so this is what the model knows by itself.
prompt       keyword error rate of clips whose prompt lists a word that is said among four that are not:
             misses of the one, and any of the four.
language     share of clips taken for another language.
style        information only: how texts are written. Their owner may want them so.

**Few windows, hence exact.** Where one window in 24 changes, resampling knows too little: it gives two equal
systems an interval of no width, and calls five changes of five certain (p = 0.4 %), which a fair coin brings
in 3 % of the cases. So all but long-form also go through the exact sign test over the groups that changed,
and their interval is at least that of Agresti and Min (2005, "Simple improved confidence intervals for
comparing matched proportions": half a window more in each cell).
"""

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import NormalDist, median
from typing import Any

from whispertune.clip import Clip
from whispertune.data.text import label_style
from whispertune.errors import DataError
from whispertune.scoring.align import LOOP_REPEATS, LOOP_WORDS, is_loop, score_clip
from whispertune.scoring.bootstrap import (
    CONFIDENCE,
    RESAMPLES,
    Difference,
    Level,
    groups_of,
    paired_bootstrap,
)
from whispertune.scoring.keywords import Keyword, KeywordCounts, count_keywords
from whispertune.scoring.normalize import Normalizer, normalizer_for
from whispertune.scoring.verdict import TOLERANCE, Guard

Rows = Sequence[Mapping[str, Any]]
NormalizerOf = Callable[[str | None], Normalizer]

SHARE_TOLERANCE = 20.0
"""Points by which a share of windows or clips may grow: what 24 of them can prove. If none changes, the
interval ends at +7.5; if one gets worse, at +14; if two do, at +20.4. A fifth of them is no small harm, but a
failure takes more anyway: where five guards and probes are judged, eight that changed, all for the worse, and
eleven where the goal is undecided."""
NO_SPEECH = 0.6
"""Above this probability of the no-speech token a window counts as silent …"""
SILENT_LOG_PROBABILITY = -1.0
"""… unless its text is likelier than this. Both are the thresholds of openai/whisper's transcribe.py, which
faster-whisper and transformers share."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One ability before and after."""

    name: str
    change: str
    """In words, with both figures: "text on 0 → 3 of 24 windows without speech"."""
    difference: Difference | None = None
    """None where it cannot fail: information only, or the clips held nothing to try it on."""
    tolerance: float = SHARE_TOLERANCE
    facts: Mapping[str, Any] = field(default_factory=dict)
    """More figures, each `{"before", "after"}` or a number."""

    @property
    def guard(self) -> Guard | None:
        """To be judged with the guards."""
        return Guard(self.name, self.difference, self.tolerance, self.change) if self.difference else None

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "name": self.name,
            "change": self.change,
            "tolerance": self.tolerance,
            "difference": self.difference.as_dict() if self.difference else None,
            "facts": dict(self.facts),
        }


def compare_probes(
    before: Mapping[str, Rows],
    after: Mapping[str, Rows],
    clips: Sequence[Clip],
    transcripts: tuple[Rows, Rows] | None = None,
    *,
    normalizer_of: NormalizerOf = normalizer_for,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[Probe, ...]:
    """Every probe that both systems were put to.

    Args:
        before, after: what `engine.probes.observe` gave for either.
        clips: the test clips, for who speaks in them.
        transcripts: of the same clips by either system, `{"id", "language", "reference", "hypothesis"}` each:
            the style of texts, and what prompts and joining changed.

    Raises:
        DataError: the two were not observed on the same inputs.
    """
    compared = _Compared({clip.id: clip for clip in clips}, transcripts, normalizer_of, resamples, seed)
    probes = []
    for name, probe in _PROBES.items():
        if name in before and name in after:
            rows = _paired(name, before[name], after[name])
            probes.append(probe(compared, *rows) if rows[0] else Probe(name, _NOTHING[name]))
    if transcripts is not None:
        probes.append(_style(*transcripts))
    return tuple(probes)


_NOTHING = {
    "no speech": "not tried",
    "long-form": "not tried: the test clips of no language fill a minute",
    "timestamps": "not tried: there are no test clips",
    "prompt": "not tried: no test clip has a keyword or a rare word",
    "language": "not tried: there are no test clips",
}


def _paired(name: str, before: Rows, after: Rows) -> tuple[Rows, Rows]:
    """Both in the order of `before`."""
    first, second = ({row["id"]: row for row in rows} for rows in (before, after))
    differing = sorted(first.keys() ^ second.keys()) or [
        i
        for i in first
        if any(
            first[i].get(key) != second[i].get(key)
            for key in ("reference", "keywords", "starts_s", "language")
        )
    ]
    if differing:
        raise DataError(
            f"probe '{name}' had other inputs: {len(before)} before, {len(after)} after, "
            f"{len(differing)} of them differ (such as {differing[0]!r})",
            "observe both models with the same clips, keywords and seed",
        )
    return before, [second[row["id"]] for row in before]


@dataclass(frozen=True, slots=True)
class _Compared:
    clips: Mapping[str, Clip]
    transcripts: tuple[Rows, Rows] | None
    normalizer_of: NormalizerOf
    resamples: int
    seed: int

    def shares(
        self,
        before: Sequence[int],
        after: Sequence[int],
        lengths: Sequence[int],
        clips: Sequence[str] = (),
        noun: str = "clips",
    ) -> Difference:
        """Of counts of rare events; `clips` are the ids whose groups are drawn together, else each alone."""
        labels: Sequence[Hashable] = range(len(before))
        level: Level = "clip"
        speaks_for = f"these {len(before)} {noun}"
        if clips and all(clip in self.clips for clip in clips):
            grouping = groups_of(self.clips[clip] for clip in clips)
            labels, level = [grouping.labels[clip] for clip in clips], grouping.level
            speaks_for = grouping.speaks_for
        difference = paired_bootstrap(
            before,
            after,
            lengths,
            labels,
            metric="share",
            level=level,
            speaks_for=speaks_for,
            resamples=self.resamples,
            seed=self.seed,
        )
        gains: dict[Hashable, int] = {}
        for label, b, a in zip(labels, before, after, strict=True):
            gains[label] = gains.get(label, 0) + a - b
        return _at_least_exact(difference, list(gains.values()))

    def errors_alone(
        self, side: int, clips: Sequence[str], count: Callable[[Mapping[str, Any]], int]
    ) -> int | None:
        """Errors of one system in the plain transcripts of some clips; None where one of them has none."""
        if self.transcripts is None:
            return None
        rows = {row["id"]: row for row in self.transcripts[side]}
        return sum(count(rows[clip]) for clip in clips) if all(clip in rows for clip in clips) else None


def _at_least_exact(d: Difference, gains: Sequence[int]) -> Difference:
    """A difference no surer than the sign test and the interval of Agresti and Min over groups allow."""
    if not d.bounded:
        return d
    n, worse, better = len(gains), sum(g > 0 for g in gains), sum(g < 0 for g in gains)
    p_worse, p_better = _sign_test(worse, better), _sign_test(better, worse)
    middle, changed = (worse - better) / (n + 2), worse + better + 1
    width = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * math.sqrt(changed - (n + 2) * middle**2) / (n + 2)
    low, high = min(d.low, 100 * (middle - width)), max(d.high, 100 * (middle + width))
    tail = (1 - CONFIDENCE) / 2
    return replace(
        d,
        low=low if p_worse <= tail else min(low, 0.0),
        high=high if p_better <= tail else max(high, 0.0),
        p_worse=max(d.p_worse, p_worse),
        p_value=max(d.p_value, min(1.0, 2 * min(p_worse, p_better))),
    )


def _sign_test(more: int, less: int) -> float:
    """How often a fair coin shows at least so many more among those that changed; one-sided, exact."""
    n = more + less
    return sum(math.comb(n, k) for k in range(more, n + 1)) / 2**n


def _both(
    count: Callable[[Mapping[str, Any]], Any], before: Rows, after: Rows
) -> tuple[list[Any], list[Any]]:
    return [count(row) for row in before], [count(row) for row in after]


def _fact(before: Any, after: Any) -> dict[str, Any]:
    return {"before": before, "after": after}


# --- the probes


def _no_speech(compared: _Compared, before: Rows, after: Rows) -> Probe:
    b, a = _both(shows_text, before, after)
    shown = [[row["text"].split() for row in rows if shows_text(row)] for rows in (before, after)]
    words = [sum(any(c.isalnum() for c in word) for text in side for word in text) for side in shown]
    loops = [sum(_loops(text) for text in side) for side in shown]
    return Probe(
        "no speech",
        f"text on {sum(b)} → {sum(a)} of {len(b)} windows without speech",
        compared.shares(b, a, [1] * len(b), noun="windows"),
        facts={"windows": len(b), "words": _fact(*words), "loops": _fact(*loops)},
    )


def shows_text(row: Mapping[str, Any]) -> bool:
    """Whether a transcriber would show the text of a window without speech."""
    silent = row["no_speech"] > NO_SPEECH and row["log_probability"] < SILENT_LOG_PROBABILITY
    return bool(row["text"].strip()) and not silent


def _loops(text: Sequence[str]) -> bool:
    """As `is_loop`; of dots alone, ". . . .", too, which is how a decoder loops where nothing is said."""
    return is_loop(" ".join(text)) or (len(text) >= LOOP_WORDS and LOOP_REPEATS * len(set(text)) <= len(text))


def _long_form(compared: _Compared, before: Rows, after: Rows) -> Probe:
    def words(row: Mapping[str, Any]) -> Any:
        normalizer = compared.normalizer_of(row["language"])
        return score_clip(row["id"], row["reference"], row["hypothesis"], normalizer)

    b, a = _both(words, before, after)
    lengths = [score.words.reference_length for score in b]
    if not sum(lengths):
        return Probe("long-form", "not tried: its references have no words once normalised")
    difference = paired_bootstrap(
        [score.words.errors for score in b],
        [score.words.errors for score in a],
        lengths,
        range(len(b)),
        speaks_for=f"these {len(b)} files",
        resamples=compared.resamples,
        seed=compared.seed,
    )
    facts: dict[str, Any] = {
        "files": len(b),
        "minutes": round(sum(row["seconds"] for row in before) / 60, 1),
        "loops": _fact(sum(score.loop for score in b), sum(score.loop for score in a)),
    }
    change = f"{difference.before:.1f} → {difference.after:.1f} % WER on {len(b)} files of a minute and more"
    clips = [clip for row in before for clip in row["clips"]]
    alone = [compared.errors_alone(side, clips, lambda row: words(row).words.errors) for side in (0, 1)]
    if alone[0] is not None and alone[1] is not None:
        facts["wer_clip_by_clip"] = _fact(*(100 * errors / sum(lengths) for errors in alone))
        change += " (their clips one by one: {before:.1f} → {after:.1f} %)".format(
            **facts["wer_clip_by_clip"]
        )
    return Probe("long-form", change, difference, TOLERANCE, facts)


def _timestamps(compared: _Compared, before: Rows, after: Rows) -> Probe:
    timed = _both(lambda row: segments_of(row["said"]), before, after)
    b, a = ([isinstance(each, str) for each in side] for side in timed)
    problems = sorted({each for side in timed for each in side if isinstance(each, str)})
    errors: list[tuple[float | None, float | None]] = []
    for rows, side in zip((before, after), timed, strict=True):
        late, missed = [], []
        for row, segments in zip(rows, side, strict=True):
            if not isinstance(segments, str) and segments and row["starts_s"]:
                late += [_nearest(start, row["starts_s"]) for start, _ in segments]
                missed += [_nearest(start, [s for s, _ in segments]) for start in row["starts_s"]]
        errors.append((_median(late), _median(missed)))
    return Probe(
        "timestamps",
        f"invalid in {sum(b)} → {sum(a)} of {len(b)} windows",
        compared.shares(b, a, [1] * len(b), noun="windows"),
        facts={
            "windows": len(b),
            "problems": {p: _fact(*(sum(each == p for each in side) for side in timed)) for p in problems},
            "median_s_from_segment_to_clip": _fact(errors[0][0], errors[1][0]),
            "median_s_from_clip_to_segment": _fact(errors[0][1], errors[1][1]),
        },
    )


_TIME = re.compile(r"<\|(\d+\.\d\d)\|>")


def segments_of(said: str) -> list[tuple[float, float]] | str:
    """Start and end of each segment in seconds, or what is wrong with them, in words.

    A start, text, an end, and so on, never back in time. A start without text may stand at the end: by it
    the model says that speech goes on behind the window.
    """
    text, *rest = _TIME.split(said)
    times = list(zip(map(float, rest[::2]), (each.strip() for each in rest[1::2]), strict=True))
    if text.strip() or not times:
        return "text before the first time" if text.strip() else "no times"
    if any(after < before for (before, _), (after, _) in pairwise(times)):
        return "back in time"
    segments: list[tuple[float, float]] = []
    while times:
        (start, text), *times = times
        if not times:
            return "text without an end" if text else segments
        (end, behind), *times = times
        if behind or not text:
            return "not in pairs"
        segments.append((start, end))
    return segments


def _nearest(second: float, among: Sequence[float]) -> float:
    return min(abs(second - each) for each in among)


def _median(seconds: Sequence[float]) -> float | None:
    return round(median(seconds), 2) if seconds else None


def _prompt(compared: _Compared, before: Rows, after: Rows) -> Probe:
    def counts(row: Mapping[str, Any], keywords: Any) -> KeywordCounts:
        normalizer = compared.normalizer_of(row["language"])
        score = score_clip(row["id"], row["reference"], row["hypothesis"], normalizer)
        return count_keywords(
            score, tuple(Keyword(term, tuple(others)) for term, others in keywords), normalizer
        )

    listed = {row["id"]: row["keywords"] for row in before}
    b, a = _both(lambda row: counts(row, listed[row["id"]]), before, after)
    said = [count.said for count in b]
    if not sum(said):
        return Probe("prompt", "not tried: none of its keywords is said once normalised")
    errors = [count.errors for count in b], [count.errors for count in a]
    facts: dict[str, Any] = {
        "clips": len(b),
        "said": sum(said),
        "errors": _fact(*map(sum, errors)),
        "distractors_heard": _fact(*(sum(c.false_alarms for c in side) for side in (b, a))),
    }
    change = f"{sum(errors[0])} → {sum(errors[1])} errors on {sum(said)} keywords in the prompt"
    alone = [
        compared.errors_alone(side, list(listed), lambda row: counts(row, listed[row["id"]]).errors)
        for side in (0, 1)
    ]
    if alone[0] is not None and alone[1] is not None:
        facts["errors_without_prompt"] = _fact(*alone)
        change += f" (without it {alone[0]} → {alone[1]})"
    difference = compared.shares(*errors, said, list(listed))
    return Probe("prompt", change, difference, facts=facts)


def _language(compared: _Compared, before: Rows, after: Rows) -> Probe:
    b, a = _both(lambda row: row["detected"] != row["language"], before, after)
    return Probe(
        "language",
        f"{sum(b)} → {sum(a)} of {len(b)} clips taken for another language",
        compared.shares(b, a, [1] * len(b), [row["id"] for row in before]),
        facts={"clips": len(b)},
    )


_PROBES: Mapping[str, Callable[[_Compared, Rows, Rows], Probe]] = {
    "no speech": _no_speech,
    "long-form": _long_form,
    "timestamps": _timestamps,
    "prompt": _prompt,
    "language": _language,
}


def _style(before: Rows, after: Rows) -> Probe:
    """Case and punctuation of the transcripts; texts of scripts without case have none to lose."""
    b, a = (label_style(row["hypothesis"] for row in rows) for rows in (before, after))
    unended = [_without_end([row["hypothesis"] for row in rows]) for rows in (before, after)]
    shares = {
        "all capitals": (b.capitals, a.capitals),
        "no capital": (b.lower, a.lower),
        "no end punctuation": (unended[0], unended[1]),
    }
    facts = {
        name.replace(" ", "_"): _fact(round(100 * x, 1), round(100 * y, 1)) for name, (x, y) in shares.items()
    }
    change = ", ".join(f"{name} {100 * x:.0f} → {100 * y:.0f} %" for name, (x, y) in shares.items())
    return Probe("style", f"{change} of the texts", facts=facts)


def _without_end(texts: Sequence[str]) -> float:
    """Share of the texts with words whose last character, quotes and brackets aside, ends no sentence."""
    ended = [text.rstrip(" \"'”’»」』)]")[-1:] for text in texts if any(c.isalnum() for c in text)]
    return sum(end.isalnum() or end in ",;:-–—、،" for end in ended) / len(ended) if ended else 0.0
