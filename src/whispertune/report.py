"""From transcripts before and after to report.json: scores, verdict, and the clips that changed most."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whispertune.clip import Clip
from whispertune.plan import Plan
from whispertune.recipe import Recipe
from whispertune.run import Run
from whispertune.scoring.align import ClipScore, Counts, Totals, score_clip, word_differences
from whispertune.scoring.bootstrap import groups_of
from whispertune.scoring.keywords import Keyword, KeywordCounts, count_keywords
from whispertune.scoring.normalize import Normalizer, normalizer_for
from whispertune.scoring.verdict import RATES, Guard, Rate, compare, judge, judge_guards

Rows = Sequence[Mapping[str, str]]
"""Transcripts of a set: id, language, reference and hypothesis of each clip."""
NamedClips = Sequence[tuple[str, Sequence[Clip]]]
"""The sets that are judged, `test` first, the guards behind it."""


def score_sets(system: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of one system's transcripts, set by set.

    Args:
        system: `{"model", "decode", "sets": {name: [{"id", "language", "reference", "hypothesis"}]}}`; the
            language is the one the clip was decoded in, and decides how it is normalised.
    """
    scores = {name: _scored(rows) for name, rows in system["sets"].items()}
    return {
        "model": system["model"],
        "decode": system["decode"],
        "normalizer": _normalizer(system["sets"])["name"],
        "sets": {name: _totals(Totals.of(rows)) for name, rows in scores.items()},
    }


def compare_sets(
    sets: NamedClips,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    recipe: Recipe,
    keywords: Sequence[str] = (),
) -> dict[str, Any]:
    """The verdict on two systems' transcripts of the same clips; the first set decides, others are guards.

    Returns:
        What report.json begins with, then `sets`, `keywords`, `clips_changed`, `settings`.

    Raises:
        DataError: other clips, references, normalisers or decoding options on either side.
    """
    section = recipe.eval
    goal = section.goal or "wer"
    rate = RATES[goal]
    scored = {name: (_scored(before["sets"][name]), _scored(after["sets"][name])) for name, _ in sets}
    differences = {
        name: compare(
            *scored[name],
            groups_of(clips),
            # A guard is judged by the goal's own rate.
            rate,
            decoding_before=before["decode"],
            decoding_after=after["decode"],
            resamples=section.resamples,
        )
        for name, clips in sets
    }
    own, *guards = (name for name, _ in sets)
    judgement = judge(
        differences[own],
        judge_guards([Guard(name, differences[name], section.tolerance) for name in guards]),
        goal,
    )
    judged = judgement.as_dict()
    # What others rely on comes first, in this order.
    first = ("verdict", "goal", "before", "after", "difference", "guards")
    return {
        **{key: judged[key] for key in first},
        "words": Totals.of(scored[own][0]).words.reference_length,
        "clips": len(scored[own][0]),
        **{key: value for key, value in judged.items() if key not in first},
        "speaks_for": differences[own].speaks_for,
        "sets": {name: _before_after(*pair) for name, pair in scored.items()},
        "keywords": _keywords(before["sets"], scored, keywords) if keywords else None,
        "clips_changed": _changed(sets, before["sets"], scored, rate),
        "settings": {
            "decode": dict(before["decode"]),
            "normalizer": _normalizer(before["sets"]),
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
    *,
    curves: Mapping[str, Any],
    corpus: Mapping[str, Any],
    ended: str,
    trained_s: float,
    keywords: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """report.json of a run.

    Args:
        trained_s: seconds of training, over all attempts.
    """
    recipe = run.recipe
    compared = compare_sets(sets, before, after, recipe, keywords)
    compared["settings"] |= {
        "plan": _plan_rows(plan),
        "corpus": dict(corpus),
        "recipe": recipe.model_dump(mode="json"),
        "versions": plan.versions,
        "machine": plan.machine,
    }
    seconds = {event["name"]: event["seconds"] for event in run.events("stage") if event["state"] == "end"}
    seconds["training"] = round(trained_s, 2)  # the last attempt's event knows only its own
    return {
        **compared,
        "curves": dict(curves),
        "time": {
            **{
                f"{name}_s": seconds.get(name, 0.0)
                for name in ("baseline", "labels", "training", "evaluation")
            },
            "total_s": round(sum(seconds.values()), 1),
        },
        "next": _next(run.folder, compared["verdict"], plan, recipe),
        "notes": [*notes, *_notes(plan, sets, ended)],
    }


def dev_wer(references: Sequence[str], hypotheses: Sequence[str], languages: Sequence[str | None]) -> float:
    """Corpus-level WER in percent; 100 where no reference has a word."""
    total = Counts()
    for reference, hypothesis, language in zip(references, hypotheses, languages, strict=True):
        total += score_clip("", reference, hypothesis, normalizer_for(language or "en")).words
    return 100.0 if total.percent is None else total.percent


def has_words(texts: Sequence[str], languages: Sequence[str | None]) -> bool:
    """Whether anything is left of some texts to judge by, once they are normalised."""
    return any(
        normalizer_for(language or "en")(text) for text, language in zip(texts, languages, strict=True)
    )


def _scored(rows: Rows) -> list[ClipScore]:
    return [
        score_clip(row["id"], row["reference"], row["hypothesis"], _of_row(row))
        for row in rows
    ]


def _normalizer(sets: Mapping[str, Rows]) -> dict[str, str]:
    """The normalisers of all rows, as one name and description."""
    used = {n.name: n.description for rows in sets.values() for n in map(_of_row, rows)}
    return {"name": ", ".join(used), "description": " ".join(used.values())}


def _of_row(row: Mapping[str, str]) -> Normalizer:
    return normalizer_for(row["language"])


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
    words: Sequence[str | Keyword],
) -> dict[str, Any]:
    """How many of the keywords said were heard, before and after: in the first set, and in each."""
    keywords = tuple(Keyword(word) if isinstance(word, str) else word for word in words)
    by_set: dict[str, dict[str, dict[str, Any]]] = {}
    own = {side: _keyword_row(KeywordCounts()) for side in ("before", "after")}
    for name, rows in sets.items():
        normalizers = [_of_row(row) for row in rows]
        before, after = (
            sum(
                (count_keywords(s, keywords, n) for s, n in zip(scores, normalizers, strict=True)),
                KeywordCounts(),
            )
            for scores in scored[name]
        )
        if before.said:
            by_set[name] = {"before": _keyword_row(before), "after": _keyword_row(after)}
    own = by_set.get(next(iter(sets)), own)
    return {"words": [keyword.term for keyword in keywords], **own, "sets": by_set}


def _keyword_row(counts: KeywordCounts) -> dict[str, Any]:
    return {
        "hits": counts.hits,
        "total": counts.said,
        "false_alarms": counts.false_alarms,
        "recall": counts.recall,
        "precision": counts.precision,
    }


def _changed(
    sets: NamedClips,
    heard: Mapping[str, Rows],
    scored: Mapping[str, tuple[list[ClipScore], list[ClipScore]]],
    rate: Rate,
) -> list[dict[str, Any]]:
    """Every clip whose errors changed, those that changed most first."""
    changed = []
    for name, clips in sets:
        for clip, row, before, after in zip(clips, heard[name], *scored[name], strict=True):
            errors = rate.count(before)[0], rate.count(after)[0]
            if errors[0] == errors[1]:
                continue
            normalizer = _of_row(row)
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


def _next(folder: Path, verdict: str, plan: Plan, recipe: Recipe) -> str:
    """The command to try now."""
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
