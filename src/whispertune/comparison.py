"""From transcripts of several systems to compare.json: scores, ranks, differences, and where they part most.

Like is compared with like: the same clips, references and normaliser, and no decoding option that two of the
systems state differently. What a file does not state cannot be refused, so it is noted.
"""

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial, reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from whispertune.errors import DataError, UsageError
from whispertune.report_figures import in_points, interval, number, percent
from whispertune.scoring.align import ClipScore, Counts, Totals, score_clip, word_differences
from whispertune.scoring.bootstrap import RESAMPLES, Grouping, choose_groups
from whispertune.scoring.normalize import Normalizer, normalizer_for
from whispertune.scoring.ranking import Ranked, Ranking, rank_systems
from whispertune.scoring.transcripts import Transcripts
from whispertune.scoring.verdict import judge

GOALS: dict[str, Callable[[ClipScore], Counts]] = {
    "wer": lambda score: score.words,
    "cer": lambda score: score.characters,
}
SHOWN_CLIPS = 60
"""Clips that come with their texts: those on which the systems differ most."""

PART = 2_000
"""Clips that are scored at a time."""

NormalizerOf = Callable[[str | None], Normalizer]
"""The normaliser of a language code."""


@dataclass(frozen=True, slots=True)
class _Clip:
    """A clip, and what each system heard in it."""

    id: str
    reference: str
    language: str | None
    hypotheses: tuple[str, ...]


def compare_transcripts(
    systems: Sequence[Transcripts],
    *,
    goal: str | None = None,
    language: str | None = None,
    normalizer_of: NormalizerOf = normalizer_for,
    resamples: int = RESAMPLES,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Compares at least two systems on the same clips; the first is what the others are measured against.

    Args:
        goal: the rate that decides, `wer` or `cer`; None: `cer` where most clips are in a language without
            spaces between words.
        language: code of the clips for which neither files nor references name one.
        workers: processes that score, where there is enough for several; with more than one the caller's
            main module is imported anew (it needs the usual `if __name__ == "__main__"`).
        progress: is told how many clips are scored, of how many.

    Returns:
        compare.json. Two systems: what report.json begins with, `verdict`, `goal`, `before`, `after`,
        `difference`, `guards` (none), `words`, `clips`, `sentence`, `reasons`, …; more: `goal`, `words`,
        `clips`, `sentence`, `reasons`. Then `speaks_for`, `systems`, `pairs`, `clips_changed`, `settings`,
        `notes`. Rates in percent, differences in points.

    Raises:
        DataError: other clips or references, two languages for a clip, other decoding options; no words.
        UsageError: a goal there is not; fewer than two systems.
    """
    if len(systems) < 2:
        hint = "give stock first, then what is measured against it"
        raise UsageError(f"{len(systems)} system to compare, and it takes 2 or more", hint)
    if goal is not None and goal not in GOALS:
        raise UsageError(f"there is no goal {goal!r} here", f"goals are {' and '.join(GOALS)}")
    systems = _told_apart(systems)
    for system in systems[1:]:
        _refuse_other_decoding(systems[0], system)
    clips = _clips(systems, language, normalizer_of)
    spoken = Counter(clip.language for clip in clips)
    used = [normalizer_of(language) for language in spoken]
    if goal is None:
        by_cer = sum(n for code, n in spoken.items() if normalizer_of(code).scores_by == "cer")
        goal = "cer" if 2 * by_cer > len(clips) else "wer"
    totals, errors, lengths = _score(clips, normalizer_of, goal, workers, progress)
    grouping = _grouping(systems, clips)
    ranking = rank_systems(
        [system.name for system in systems],
        list(errors),
        lengths,
        [grouping.labels[clip.id] for clip in clips],
        metric=goal.upper(),
        level=grouping.level,
        speaks_for=grouping.speaks_for,
        resamples=resamples,
        seed=seed,
    )
    return {
        **_opening(ranking, goal, totals[0].words.reference_length),
        "speaks_for": grouping.speaks_for,
        "systems": [
            _system(system, ranked, total, own - errors[0])
            for system, ranked, total, own in zip(systems, ranking.systems, totals, errors, strict=True)
        ],
        "pairs": [pair.as_dict() for pair in ranking.pairs],
        "clips_changed": _changed(systems, clips, normalizer_of, errors, lengths),
        "settings": {
            "normalizer": {
                "name": ", ".join(dict.fromkeys(n.name for n in used)),
                "description": " ".join(dict.fromkeys(n.description for n in used)),
            },
            "decode": {system.name: dict(system.decode or {}) for system in systems},
            "sources": {system.name: str(system.source) for system in systems},
        },
        "notes": _notes(systems, clips, language),
    }


# Like with like -------------------------------------------------------------------------------------------


def _told_apart(systems: Sequence[Transcripts]) -> list[Transcripts]:
    """Each with a name of its own: with its folder in front, or a number behind, where two have one."""
    names = [system.name for system in systems]
    if len(set(names)) < len(names):
        names = [
            f"{system.source.absolute().parent.name}/{name}" if names.count(name) > 1 else name
            for name, system in zip(names, systems, strict=True)
        ]
    numbered = [
        f"{name} ({names[: k + 1].count(name)})" if names.count(name) > 1 else name
        for k, name in enumerate(names)
    ]
    return [replace(system, name=name) for system, name in zip(systems, numbered, strict=True)]


def _refuse_other_decoding(first: Transcripts, other: Transcripts) -> None:
    one, two = first.decode or {}, other.decode or {}
    for option in sorted(one.keys() & two.keys()):
        if one[option] != two[option]:
            raise DataError(
                f"{first.name} and {other.name} were decoded differently: {option} was {one[option]!r} and "
                f"{two[option]!r}",
                "transcribe again with the same engine and options",
            )


def _clips(systems: Sequence[Transcripts], language: str | None, normalizer_of: NormalizerOf) -> list[_Clip]:
    """The clips in the order of the first system."""
    rows = [{row["id"]: row for row in system.rows} for system in systems]
    for system, own in zip(systems, rows, strict=True):
        _refuse_other_clips(systems[0], rows[0], system, own)
    clips = []
    for clip_id, first in rows[0].items():
        of_clip = [own[clip_id] for own in rows]
        for system, row in zip(systems, of_clip, strict=True):
            if row["reference"] != first["reference"]:
                raise DataError(
                    f"clip {clip_id!r} has two references: {first['reference']!r} in {systems[0].name}, "
                    f"{row['reference']!r} in {system.name}",
                    "score all systems against the same texts: --references FILE",
                )
        stated = {s.name: row["language"] for s, row in zip(systems, of_clip, strict=True) if row["language"]}
        if not stated and not language:
            stated = {s.name: code for s in systems if (code := _detected(s, clip_id))}
        if len(set(stated.values())) > 1:
            _refuse_two_languages(clip_id, stated, normalizer_of)
        spoken = next(iter(stated.values()), language)
        clips.append(_Clip(clip_id, first["reference"], spoken, tuple(row["hypothesis"] for row in of_clip)))
    return clips


def _refuse_other_clips(
    first: Transcripts, ids: Mapping[str, Any], other: Transcripts, others: Mapping[str, Any]
) -> None:
    if ids.keys() == others.keys():
        return
    missing, extra = sorted(ids.keys() - others.keys()), sorted(others.keys() - ids.keys())
    example = f"{missing[0]!r} only in {first.name}" if missing else f"{extra[0]!r} only in {other.name}"
    raise DataError(
        f"the clips differ: {len(ids):,} in {first.name}, {len(others):,} in {other.name}, "
        f"{len(ids.keys() & others.keys()):,} in both ({example})",
        "transcribe the same clips with every system",
    )


def _refuse_two_languages(clip_id: str, stated: Mapping[str, str], normalizer_of: NormalizerOf) -> None:
    rules = {normalizer_of(code).name: (system, code) for system, code in stated.items()}
    if len(rules) > 1:
        (one, code), (two, other), *_ = rules.values()
        raise DataError(
            f"clip {clip_id!r} is {code} in {one} and {other} in {two}, and their texts are normalised by "
            f"different rules",
            "a column language in --references says which it is, or --language where no file does",
        )


def _detected(system: Transcripts, clip_id: str) -> str | None:
    return system.columns.get("detected_language", {}).get(clip_id)


def _grouping(systems: Sequence[Transcripts], clips: Sequence[_Clip]) -> Grouping:
    ids = [clip.id for clip in clips]

    def column(name: str) -> list[str | None] | None:
        return next(
            ([s.columns[name].get(clip_id) for clip_id in ids] for s in systems if name in s.columns), None
        )

    return choose_groups(ids, column("speaker"), column("recording"))


# Scores ---------------------------------------------------------------------------------------------------


def _score(
    clips: Sequence[_Clip],
    normalizer_of: NormalizerOf,
    goal: str,
    workers: int,
    progress: Callable[[int, int], None],
) -> tuple[list[Totals], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(totals of each system, (systems, clips) errors of the goal, (clips,) reference lengths)."""
    parts = [clips[start : start + PART] for start in range(0, len(clips), PART)]
    score = partial(_score_part, normalizer_of=normalizer_of, goal=goal)
    scored = []
    pool = None
    try:
        if workers > 1 and len(parts) >= 2 * workers:
            pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
        for part in (pool.map if pool else map)(score, parts):
            scored.append(part)
            progress(min(PART * len(scored), len(clips)), len(clips))
    finally:
        if pool:
            pool.shutdown(cancel_futures=True)
    totals = [reduce(_added, of_system) for of_system in zip(*(part[0] for part in scored), strict=True)]
    errors = np.concatenate([part[1] for part in scored], axis=1)
    return totals, errors, np.concatenate([part[2] for part in scored])


def _score_part(
    clips: Sequence[_Clip], normalizer_of: NormalizerOf, goal: str
) -> tuple[list[Totals], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    scores: list[list[ClipScore]] = [[] for _ in clips[0].hypotheses]
    for clip in clips:  # clip by clip: the normaliser remembers the reference
        normalizer = normalizer_of(clip.language)
        for own, hypothesis in zip(scores, clip.hypotheses, strict=True):
            own.append(score_clip(clip.id, clip.reference, hypothesis, normalizer))
    counts = [[GOALS[goal](score) for score in own] for own in scores]
    return (
        [Totals.of(own) for own in scores],
        np.array([[count.errors for count in own] for own in counts]),
        np.array([count.reference_length for count in counts[0]]),
    )


def _added(one: Totals, two: Totals) -> Totals:
    """The totals of two sets of clips: every one of them is a sum."""
    return Totals(*(getattr(one, f.name) + getattr(two, f.name) for f in fields(Totals)))


def _opening(ranking: Ranking, goal: str, words: int) -> dict[str, Any]:
    """What compare.json begins with: for two systems what report.json begins with."""
    difference = ranking.pairs[0].difference
    if len(ranking.systems) == 2:
        judged = judge(difference, (), goal).as_dict()
        first = ("verdict", "goal", "before", "after", "difference", "guards")
        return {
            **{key: judged[key] for key in first},
            "words": words,
            "clips": difference.clips,
            **{key: value for key, value in judged.items() if key not in first},
        }
    unit = "characters" if goal == "cer" else "words"
    size = f"{difference.clips:,} clips with {difference.reference_length:,} {unit}"
    reasons = [f"{size} in {difference.groups} groups are too few for an interval."]
    if difference.bounded:
        reasons = [
            f"{size}; 95 % intervals from {difference.resamples:,} resamples of {difference.groups:,} "
            f"{difference.level}s, the same for all systems.",
            f"Two systems of different rank differ beyond chance, all {len(ranking.pairs)} pairs tried "
            f"together (Holm).",
        ]
    return {
        "goal": goal,
        "words": words,
        "clips": difference.clips,
        "sentence": _sentence(ranking, goal),
        "reasons": reasons,
    }


def _sentence(ranking: Ranking, goal: str) -> str:
    """Who leads, in words."""
    first, metric = ranking.systems[0], goal.upper()
    leaders, about = ranking.leaders, ranking.pairs[0].difference.speaks_for
    best = leaders[0]
    if len(leaders) == len(ranking.systems):
        return (
            f"Nothing tells these {len(leaders)} systems apart for {about}: {number(best.rate, 1)} to "
            f"{percent(leaders[-1].rate)} {metric}."
        )
    if len(leaders) == 1:
        against = f", {_against(best, first)}" if best.difference else ""
        return f"{best.name} is best for {about}: {percent(best.rate)} {metric}{against}."
    shared = (
        f"{_listed(s.name for s in leaders)} share the first place for {about}: {number(best.rate, 1)} to "
        f"{percent(leaders[-1].rate)} {metric}; nothing tells them apart."
    )
    if first in leaders:
        return f"{shared} None is better than {first.name} beyond chance."
    return shared


def _against(system: Ranked, first: Ranked) -> str:
    assert system.difference is not None
    d = system.difference
    known = interval(d.low, d.high) if d.bounded else "without an interval"
    return f"{in_points(d.point)} {known} against {first.name}"


def _listed(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _system(
    system: Transcripts,
    ranked: Ranked,
    totals: Totals,
    changes: npt.NDArray[np.int64],
) -> dict[str, Any]:
    """A system's row; `changes` are its errors less those of the first, clip by clip."""
    words = totals.words
    return {
        "name": system.name,
        "rank": ranked.rank,
        "wer": totals.wer,
        "cer": totals.cer,
        "substitutions": words.substitutions,
        "deletions": words.deletions,
        "insertions": words.insertions,
        "loops": totals.loops,
        "sentence_accuracy": totals.sentence_accuracy,
        "difference": ranked.difference.as_dict() if ranked.difference else None,
        "words_to_decide": ranked.difference.words_to_decide if ranked.difference else None,
        "clips_better": int((changes < 0).sum()),
        "clips_worse": int((changes > 0).sum()),
        "clips_same": int((changes == 0).sum()),
        "empty": totals.empty_hypotheses,
        "over_100": totals.over_100_percent,
        "undefined": totals.undefined_references,
        "wer_without_loops": totals.wer_without_loops,
        "raw_wer": totals.raw_wer,
        "rtf": system.rtf,
        "size_mb": system.size_mb,
        "cost_per_hour": system.cost_per_hour,
    }


def _changed(
    systems: Sequence[Transcripts],
    clips: Sequence[_Clip],
    normalizer_of: NormalizerOf,
    errors: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
) -> list[dict[str, Any]]:
    """The clips on which the systems' errors lie furthest apart, with what each heard."""
    spread = errors.max(axis=0) - errors.min(axis=0)
    furthest = [int(k) for k in np.argsort(-spread, kind="stable")[:SHOWN_CLIPS] if spread[k]]
    speakers: Mapping[str, str] = next((s.columns["speaker"] for s in systems if "speaker" in s.columns), {})
    return [
        {
            "id": clips[k].id,
            "speaker": speakers.get(clips[k].id),
            "reference": clips[k].reference,
            "reference_length": int(lengths[k]),
            "heard": [
                {
                    "system": system.name,
                    "text": text,
                    "errors": int(own[k]),
                    "differences": _differences(clips[k].reference, text, normalizer_of(clips[k].language)),
                }
                for system, text, own in zip(systems, clips[k].hypotheses, errors, strict=True)
            ],
        }
        for k in furthest
    ]


def _differences(reference: str, hypothesis: str, normalizer: Normalizer) -> list[dict[str, str]]:
    return [
        {"op": d.operation, "reference": " ".join(d.reference), "hypothesis": " ".join(d.hypothesis)}
        for d in word_differences(reference, hypothesis, normalizer)
    ]


def _notes(systems: Sequence[Transcripts], clips: Sequence[_Clip], language: str | None) -> list[str]:
    notes = []
    silent = [system.name for system in systems if not system.decode]
    if silent:
        states = "does" if len(silent) == 1 else "do"
        notes.append(
            f"{_listed(silent)} {states} not state how it was decoded: whether the systems decoded alike "
            f"is not known."
        )
    elif len({frozenset(system.decode or {}) for system in systems}) > 1:
        notes.append("Not all decoding options are stated for every system: only those stated were compared.")
    unsaid = [clip for clip in clips if clip.language is None]
    if unsaid:
        notes.append(
            f"No language is stated for {len(unsaid):,} of {len(clips):,} clips: they were compared without "
            f"the rules of any language. --language says which it is."
        )
    said = language or any(row["language"] for system in systems for row in system.rows)
    if not said and len(unsaid) < len(clips):
        codes = Counter(clip.language for clip in clips if clip.language).most_common(3)
        heard = ", ".join(f"{code} in {count:,} clips" for code, count in codes)
        notes.append(f"The language is what the systems detected: {heard}. --language says which it is.")
    return notes
