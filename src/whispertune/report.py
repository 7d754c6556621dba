"""From transcripts before and after to report.json: scores, verdict, and the clips that changed most."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whispertune.clip import Clip
from whispertune.errors import DataError
from whispertune.plan import Plan
from whispertune.recipe import Recipe
from whispertune.run import Run, write_atomically
from whispertune.scoring.align import (
    ClipScore,
    Counts,
    Rows,
    Totals,
    confusions,
    score_clip,
    word_differences,
)
from whispertune.scoring.bootstrap import Difference, groups_of
from whispertune.scoring.keywords import KeywordCounts
from whispertune.scoring.normalize import normalizer_for
from whispertune.scoring.probes import Probe, compare_probes
from whispertune.scoring.slices import columns_of, slices_of
from whispertune.scoring.terms import Terms
from whispertune.scoring.verdict import RATES, Guard, Rate, compare, judge, judge_guards

NamedClips = Sequence[tuple[str, Sequence[Clip]]]
"""The sets that are judged, `test` first, the guards behind it."""


def score_sets(system: Mapping[str, Any], terms: Terms) -> dict[str, Any]:
    """The scores of one system's transcripts, set by set.

    Args:
        system: `{"model", "decode", "sets": {name: [{"id", "language", "reference", "hypothesis"}]}}`; the
            language is the one the clip was decoded in, and decides how it is normalised.
    """
    return {
        "model": system["model"],
        "decode": system["decode"],
        "normalizer": _normalizer(system["sets"], terms)["name"],
        "sets": {name: _totals(Totals.of(terms.scored(rows))) for name, rows in system["sets"].items()},
    }


def compare_sets(
    sets: NamedClips,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    terms: Terms,
    snr_db: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The verdict on two systems' transcripts of the same clips; the first set decides, others are guards.

    Args:
        snr_db: of the clips of the first set, by clip id; their slices are shown where it is given.

    Returns:
        What report.json begins with, then `sets`, `keywords`, `slices`, `confusions`, `clips_changed`,
        `settings`.

    Raises:
        DataError: other clips, references, normalisers or decoding options on either side.
    """
    scored = {
        name: (terms.scored(before["sets"][name]), terms.scored(after["sets"][name])) for name, _ in sets
    }
    own, *guards = (name for name, _ in sets)
    clips = dict(sets)
    rate = terms.rate(before["sets"][own])
    goal_clips = terms.in_goal(clips[own])
    goal_ids = {clip.id for clip in goal_clips}
    # A guard is judged by words or characters, as the goal is; keywords of one's own are not said there.
    guard_rate = rate if rate in RATES.values() else RATES["wer"]

    def compared(name: str, chosen: Sequence[Clip], rate: Rate) -> Difference:
        ids = {clip.id for clip in chosen}
        return compare(
            *([score for score in side if score.clip_id in ids] for side in scored[name]),
            groups_of(chosen),
            rate,
            decoding_before=before["decode"],
            decoding_after=after["decode"],
            resamples=terms.resamples,
        )

    difference = compared(own, goal_clips, rate)
    probes = _probes(before, after, own, clips[own], terms)
    judged_together = judge_guards(
        [
            *(Guard(name, compared(name, clips[name], guard_rate), terms.tolerance) for name in guards),
            *(probe.guard for probe in probes if probe.guard),
        ],
        difference,
    )
    judgement = judge(
        difference, judged_together[: len(guards)], terms.goal.name, judged_together[len(guards) :]
    )
    judged = judgement.as_dict()
    results = {result["name"]: result for result in judged["probes"]}
    judged["probes"] = [
        probe.as_dict() | results.get(probe.name, {"status": "information"}) for probe in probes
    ]
    # What others rely on comes first, in this order.
    first = ("verdict", "goal", "before", "after", "difference", "guards")
    return {
        **{key: judged[key] for key in first},
        "words": sum(s.words.reference_length for s in scored[own][0] if s.clip_id in goal_ids),
        "clips": len(goal_clips),
        **{key: value for key, value in judged.items() if key not in first},
        "speaks_for": difference.speaks_for,
        "words_to_decide": difference.words_to_decide,
        "sets": {name: _before_after(*pair) for name, pair in scored.items()},
        "speed": _speed(sets, before, after),
        "keywords": _keywords(before["sets"], scored, terms) if terms.keywords else None,
        "slices": _slices(clips[own], scored[own], guard_rate, terms.resamples, snr_db),
        "confusions": _confusions(*scored[own]),
        "clips_changed": _changed(sets, before["sets"], scored, guard_rate, terms),
        "settings": {
            "decode": dict(before["decode"]),
            "normalizer": _normalizer(before["sets"], terms),
            "model": dict(before["model"]),
            "tuned": dict(after["model"]),
        },
    }


def build_report(
    run: Run,
    plan: Plan,
    sets: NamedClips,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    terms: Terms,
    *,
    curves: Mapping[str, Any],
    corpus: Mapping[str, Any],
    ended: str,
    trained_s: float,
    notes: Sequence[str] = (),
    snr_db: Mapping[str, float] | None = None,
    free: Mapping[str, Any] | None = None,
    tradeoff: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """report.json of a run.

    Args:
        trained_s: seconds of training, over all attempts.
    """
    recipe = run.recipe
    compared = compare_sets(sets, before, after, terms, snr_db)
    compared["settings"] |= {
        "plan": _plan_rows(plan),
        "corpus": dict(corpus),
        "recipe": recipe.model_dump(mode="json"),
        "versions": plan.versions,
        "machine": plan.machine,
    }
    free_rows = _free(free or {}, after, sets[0], terms)
    if compared["verdict"] == "better":
        compared["reasons"] += [
            f"Untuned {row['name']} is not measurably worse than the tuned model, and costs no training: "
            f"{row['rate']:.1f} %."
            for row in free_rows
            if row["matches"]
        ]
    seconds = {event["name"]: event["seconds"] for event in run.events("stage") if event["state"] == "end"}
    seconds["training"] = round(trained_s, 2)  # the last attempt's event knows only its own
    return {
        **compared,
        "curves": dict(curves),
        "tradeoff": tradeoff,
        "free": free_rows,
        "time": {
            **{
                f"{name}_s": seconds.get(name, 0.0)
                for name in ("baseline", "labels", "alternatives", "training", "delivery", "evaluation")
            },
            "total_s": round(sum(seconds.values()), 1),
        },
        "next": _next(run.folder, compared, plan, recipe),
        "notes": [*notes, *_notes(plan, sets, ended)],
    }


def dev_wer(references: Sequence[str], hypotheses: Sequence[str], languages: Sequence[str | None]) -> float:
    """Corpus-level WER in percent; 100 where no reference has a word."""
    total = Counts()
    for reference, hypothesis, language in zip(references, hypotheses, languages, strict=True):
        total += score_clip("", reference, hypothesis, normalizer_for(language or "en")).words
    return 100.0 if total.percent is None else total.percent


def write_transcripts(path: Path, clips: Sequence[Clip], rows: Rows, terms: Terms) -> None:
    """One system's transcripts as JSONL, a clip a line with its word errors, for `compare --transcripts`.

    Raises:
        DataError: the file cannot be written.
    """
    lines = []
    for clip, row, score in zip(clips, rows, terms.scored(rows), strict=True):
        about = {"file_name": clip.file_name, "speaker": clip.speaker, "recording": clip.recording}
        counts = {"words": score.words.reference_length, "word_errors": score.words.errors}
        lines.append(json.dumps({**row, **about, **counts}, ensure_ascii=False))
    try:
        write_atomically(path, "".join(f"{line}\n" for line in lines))
    except OSError as error:
        what = f"cannot write {path}: {error.strerror}"
        raise DataError(what, "name a file in a folder that is there") from None


def has_words(texts: Sequence[str], languages: Sequence[str | None]) -> bool:
    """Whether anything is left of some texts to judge by, once they are normalised."""
    return any(
        normalizer_for(language or "en")(text) for text, language in zip(texts, languages, strict=True)
    )


def _normalizer(sets: Mapping[str, Rows], terms: Terms) -> dict[str, str]:
    """The normalisers of all rows, as one name and description."""
    languages = dict.fromkeys(row["language"] for rows in sets.values() for row in rows)
    used = {n.name: n.description for n in map(terms.normalizer, languages)}
    return {"name": ", ".join(used), "description": " ".join(used.values())}


def _totals(totals: Totals) -> dict[str, Any]:
    words = totals.words
    return {
        "clips": totals.clips,
        "wer": totals.wer,
        "cer": totals.cer,
        "substitutions": words.substitutions,
        "deletions": words.deletions,
        "insertions": words.insertions,
        "reference_words": words.reference_length,
        "sentence_accuracy": totals.sentence_accuracy,
        "loops": totals.loops,
        "lost_at_start": totals.lost_at_start,
        "lost_at_end": totals.lost_at_end,
        "empty": totals.empty_hypotheses,
        "over_100": totals.over_100_percent,
        "undefined": totals.undefined_references,
        "wer_without_loops": totals.wer_without_loops,
        "raw_wer": totals.raw_wer,
    }


def _before_after(before: Sequence[ClipScore], after: Sequence[ClipScore]) -> dict[str, Any]:
    changes = [a.words.errors - b.words.errors for b, a in zip(before, after, strict=True)]
    return {
        "before": _totals(Totals.of(before)),
        "after": _totals(Totals.of(after)),
        "clips_better": sum(change < 0 for change in changes),
        "clips_worse": sum(change > 0 for change in changes),
        "clips_same": sum(change == 0 for change in changes),
    }


def _keywords(
    sets: Mapping[str, Rows],
    scored: Mapping[str, tuple[list[ClipScore], list[ClipScore]]],
    terms: Terms,
) -> dict[str, Any]:
    """How many of the keywords said were heard, before and after: in the first set, and in each."""
    by_set: dict[str, dict[str, dict[str, Any]]] = {}
    for name, rows in sets.items():
        before, after = (
            sum(terms.counted_keywords(rows, scores), KeywordCounts()) for scores in scored[name]
        )
        if before.said:
            by_set[name] = {"before": _keyword_row(before), "after": _keyword_row(after)}
    none = {side: _keyword_row(KeywordCounts()) for side in ("before", "after")}
    own = by_set.get(next(iter(sets)), none)
    words = [keyword.term for keyword in terms.keywords]
    return {"words": words, "chosen_by": terms.keywords_from, **own, "sets": by_set}


def _keyword_row(counts: KeywordCounts) -> dict[str, Any]:
    return {
        "hits": counts.hits,
        "total": counts.said,
        "false_alarms": counts.false_alarms,
        "recall": counts.recall,
        "precision": counts.precision,
    }


def _probes(
    before: Mapping[str, Any], after: Mapping[str, Any], own: str, clips: Sequence[Clip], terms: Terms
) -> tuple[Probe, ...]:
    if "probes" not in before or "probes" not in after:
        return ()
    return compare_probes(
        before["probes"],
        after["probes"],
        clips,
        (before["sets"][own], after["sets"][own]),
        normalizer_of=lambda language: terms.normalizer(language or "en"),
        resamples=terms.resamples,
    )


def _free(
    alternatives: Mapping[str, Any], tuned: Mapping[str, Any], own: tuple[str, Sequence[Clip]], terms: Terms
) -> list[dict[str, Any]]:
    """What would have been free, measured against the tuned model on the goal.

    `matches` says that it is not measurably worse than the tuned model: its interval reaches zero.
    """
    name, clips = own
    chosen = terms.in_goal(clips)
    ids = {clip.id for clip in chosen}
    rate = terms.rate(tuned["sets"][name])

    def scores(system: Mapping[str, Any]) -> list[ClipScore]:
        return [score for score in terms.scored(system["sets"][name]) if score.clip_id in ids]

    after = scores(tuned)
    rows = []
    for alternative, system in alternatives.items():
        # Not the same decoding, on purpose: a prompt is what is tried.
        difference = compare(after, scores(system), groups_of(chosen), rate, resamples=terms.resamples)
        rows.append(
            {
                "name": alternative,
                "rate": difference.after,
                "difference_to_tuned": difference.as_dict(),
                "matches": not difference.low > 0,
            }
        )
    return rows


def _slices(
    clips: Sequence[Clip],
    scored: tuple[list[ClipScore], list[ClipScore]],
    rate: Rate,
    resamples: int,
    snr_db: Mapping[str, float] | None,
) -> dict[str, list[dict[str, Any]]]:
    """{column: [{value, clips, words, before, after, difference}]}; information that decides nothing."""
    sides = [{score.clip_id: score for score in side} for side in scored]
    by_id = {clip.id: clip for clip in clips}

    def slice_row(ids: Sequence[str]) -> dict[str, Any] | None:
        before, after = ([side[i] for i in ids] for side in sides)
        return _slice([by_id[i] for i in ids], before, after, rate, resamples)

    return {
        column: [
            {"value": value} | row
            for value, ids in values.items()
            if (row := slice_row(ids))
        ]
        for column, values in slices_of(columns_of(clips, snr_db)).items()
    }


def _slice(
    clips: Sequence[Clip],
    before: Sequence[ClipScore],
    after: Sequence[ClipScore],
    rate: Rate,
    resamples: int,
) -> dict[str, Any] | None:
    if not any(rate.count(score)[1] for score in before):
        return None
    difference = compare(before, after, groups_of(clips), rate, resamples=resamples)
    return {
        "clips": len(clips),
        "words": sum(score.words.reference_length for score in before),
        "before": difference.before,
        "after": difference.after,
        "difference": difference.as_dict(),
    }


SHOWN_CONFUSIONS = 30


def _confusions(before: Sequence[ClipScore], after: Sequence[ClipScore]) -> list[dict[str, Any]]:
    """The words most often taken for another, before and after together."""
    counts = [confusions(before), confusions(after)]
    frequent = (counts[0] + counts[1]).most_common(SHOWN_CONFUSIONS)
    return [
        {"said": said, "heard": heard, "before": counts[0][said, heard], "after": counts[1][said, heard]}
        for (said, heard), count in frequent
        if count > 1
    ]


def _speed(
    sets: NamedClips, before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, dict[str, float]] | None:
    """Seconds of decoding for a second of audio (RTF), all sets together."""
    audio_s = sum(clip.duration_s for _, clips in sets for clip in clips)
    sides = {"before": before, "after": after}
    spent = {name: sum((side.get("seconds") or {}).values()) for name, side in sides.items()}
    if not audio_s or not all(spent.values()):
        return None
    return {name: {"seconds": round(s, 1), "rtf": s / audio_s} for name, s in spent.items()}


def _changed(
    sets: NamedClips,
    heard: Mapping[str, Rows],
    scored: Mapping[str, tuple[list[ClipScore], list[ClipScore]]],
    rate: Rate,
    terms: Terms,
) -> list[dict[str, Any]]:
    """Every clip whose errors changed, those that changed most first."""
    changed = []
    for name, clips in sets:
        for clip, row, before, after in zip(clips, heard[name], *scored[name], strict=True):
            errors = rate.count(before)[0], rate.count(after)[0]
            if errors[0] == errors[1]:
                continue
            normalizer = terms.normalizer(row["language"])
            changed.append(
                {
                    "set": name,
                    "id": clip.id,
                    "file_name": clip.file_name,
                    "speaker": clip.speaker,
                    "reference": before.reference,
                    "before": before.hypothesis,
                    "after": after.hypothesis,
                    "errors_before": errors[0],
                    "errors_after": errors[1],
                    "reference_words": before.words.reference_length,
                    "differences_before": _differences(before, normalizer),
                    "differences_after": _differences(after, normalizer),
                }
            )
    return sorted(changed, key=lambda row: -abs(row["errors_after"] - row["errors_before"]))


def _differences(score: ClipScore, normalizer: Any) -> list[dict[str, str]]:
    return [
        {"op": d.operation, "reference": " ".join(d.reference), "hypothesis": " ".join(d.hypothesis)}
        for d in word_differences(score.reference, score.hypothesis, normalizer)
    ]


def _plan_rows(plan: Plan) -> list[dict[str, str]]:
    shown = {
        "device": plan.device,
        "precision": plan.precision,
        "threads": f"{plan.threads}",
        "text_style": plan.text_style,
        "learning_rate": f"{plan.learning_rate:g}",
        "speech_per_step_s": f"{plan.speech_per_step_s:g} s",
        "steps": f"{plan.steps}",
        "micro_batch": f"{plan.micro_batch} windows",
        "eval_every": f"{plan.eval_every} steps",
        "save_every": f"{plan.save_every} steps",
    }
    return [
        {"name": name.replace("_", " "), "value": value, "reason": plan.reasons.get(name, "")}
        for name, value in shown.items()
    ]


def _notes(plan: Plan, sets: NamedClips, ended: str) -> list[str]:
    notes = list(plan.warnings)
    if len(sets) == 1:
        notes.append("General speech was not checked: give a corpus of it with --guard.")
    if plan.dev_windows == 0:
        notes.append("There were no dev clips, so the last checkpoint was delivered.")
    if ended == "early stop":
        notes.append("Training stopped early: the dev score had stopped getting better.")
    if ended == "time":
        notes.append("Training stopped when its minutes were up; more may help.")
    return notes


def _next(folder: Path, compared: Mapping[str, Any], plan: Plan, recipe: Recipe) -> str:
    """The command to try now."""
    verdict = compared["verdict"]
    if compared["difference"]["low"] is None and verdict == "no_difference":
        # More training cannot tell what too few test clips do not.
        return "whispertune import MORE_CLIPS --to CORPUS --split 80/10/10"
    if verdict == "better":
        return shlex.join(["whispertune", "export", str(folder), "--format", "hf"])
    words = ["whispertune", "train", "--recipe", str(folder / "recipe.toml")]
    if verdict == "worse":
        gentler = min(plan.learning_rate / 4, plan.usual_learning_rate)
        words += ["--set", f"train.learning_rate={gentler:.2g}"]
    elif recipe.train.steps is not None:
        words += ["--steps", f"{2 * recipe.train.steps}"]
    else:
        words += ["--passes", f"{2 * recipe.train.passes:g}"]
    return shlex.join(words)
