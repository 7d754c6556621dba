"""Small sets, judged whole: each part is held out once from a training of its own, and what those models make
of the parts they never heard is judged together. The delivered model is trained on all of it."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whispertune.clip import Clip
from whispertune.corpus import Corpus
from whispertune.data.split import capped, folded
from whispertune.engine.evaluate import ShouldStop
from whispertune.job import Job
from whispertune.run import Emit, Event, Run, line, read_json, write_json
from whispertune.scoring.align import Rows


def train_folds(run: Run, emit: Emit, should_stop: ShouldStop, notes: Sequence[str] = ()) -> dict[str, Any]:
    """The main job with `data.folds` parts; returns report.json.

    Raises:
        DataError: the corpus has fewer groups than that.
        WhispertuneError: as the stages of the job say. What was done stays and is not done again.
    """
    count = run.recipe.data.folds
    assert count is not None
    corpus = Corpus.open(Path(run.recipe.data.corpus))
    *parts, whole = folded(corpus.clips, count, run.recipe.train.seed)
    judged = capped(corpus.clips, run.recipe.eval.test_minutes)
    note = (
        f"Judged by {count} models, each on the part of the clips that it never heard. The delivered "
        "model is one of their kind, trained on all clips; itself it was judged on the guards only."
    )
    job = Job(run, emit, should_stop, [note, *notes], corpus.with_clips(whole), judged)
    job.check()
    job.make_plan()
    before = job.baseline()
    free = job.alternatives()
    heard: list[dict[str, str]] = []
    for number, clips in enumerate(parts, 1):
        job.emit(line("fold", f"{number} of {count}"))
        held_out = {clip.id for clip in clips if clip.split == "test"}
        rows = [row for row in before["sets"]["test"] if row["id"] in held_out]
        heard += _fold(run, number, emit, should_stop, corpus.with_clips(clips), rows, before)
    by_id = {row["id"]: row for row in heard}
    progress = job.training()
    after = job.evaluation({"test": [by_id[clip.id] for clip in judged]})
    return job.report(before, after, free, progress)


def _fold(
    run: Run,
    number: int,
    emit: Emit,
    should_stop: ShouldStop,
    corpus: Corpus,
    base_rows: Rows,
    before: dict[str, Any],
) -> Rows:
    """What a model that never heard a part makes of it; the model itself is not kept."""
    recipe = run.recipe
    changes: dict[str, Any] = {"data.folds": None, "eval.probes": False, "eval.free": False}
    if recipe.train.share != "recover":  # a guard that chooses is needed here too
        changes["data.guards"] = ()
    part = Run.create(run.folder / "folds" / str(number), recipe.with_changes(changes))

    def quiet(event: Event) -> None:  # what is the same for all parts was said
        if event.kind in ("progress", "stage") or event.data.get("label") == "training":
            emit(event)

    saved = read_json(part.evaluation_file)
    if saved is None:
        ids = {row["id"] for row in base_rows}
        judged: list[Clip] = [clip for clip in corpus.clips if clip.id in ids]
        if not part.baseline_file.exists():
            own = {**before["sets"], "test": base_rows}
            write_json(part.baseline_file, {**before, "sets": own})
        job = Job(part, quiet, should_stop, (), corpus, judged)
        job.check()
        job.make_plan()
        job.baseline()
        job.training()
        saved = job.evaluation()
    shutil.rmtree(part.checkpoints, ignore_errors=True)
    shutil.rmtree(part.model_folder, ignore_errors=True)
    return saved["sets"]["test"]
