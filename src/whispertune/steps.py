"""The waist: what can be done with a model and a corpus, each a function a backend can call anywhere.

Arguments are plain values, so that a call can travel; `emit` takes events, `should_stop` is asked between
units of work.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from whispertune.clip import SAMPLE_RATE, WINDOW_SAMPLES
from whispertune.comparison import compare_transcripts
from whispertune.corpus import Corpus
from whispertune.data.audio import decode
from whispertune.data.split import capped
from whispertune.demo import NOTES, prepare_demo
from whispertune.engine.device import machine_facts
from whispertune.engine.evaluate import Evaluation, JudgedSet, ShouldStop
from whispertune.engine.layouts import Layouts
from whispertune.engine.model import LoadedModel, load, resolve
from whispertune.engine.source import read_json
from whispertune.engine.transcribe import DecodeOptions, decode_options, transcribe_long
from whispertune.engine.transcribe import transcribe as transcribe_clips
from whispertune.errors import DataError, MachineError, ModelError, Refused, Stopped, UsageError
from whispertune.folds import train_folds
from whispertune.job import Job
from whispertune.models_compared import costs, heard_by_models
from whispertune.recipe import Recipe
from whispertune.report import compare_sets, score_sets, write_transcripts
from whispertune.run import Emit, Event, Run, line, write_atomically, writing
from whispertune.scoring.normalize import normalizer_for, read_rules
from whispertune.scoring.terms import terms_of
from whispertune.ship.card import card, unjudged_card
from whispertune.ship.hf import export_hf, prove_hf

PROOF_CLIPS = 20
EXPORT_FORMATS = ("hf",)


def train(run: str, emit: Emit, should_stop: ShouldStop, notes: Sequence[str] = ()) -> dict[str, Any]:
    """The whole job in a run folder; returns report.json.

    Args:
        notes: what the report has to say besides, such as that the speech is synthetic.

    Raises:
        WhispertuneError: as its stages say. What was done stays and is not done again.
    """
    opened = Run.open(Path(run))
    with opened.locked():
        if opened.recipe.data.folds:
            return train_folds(opened, emit, should_stop, notes)
        job = Job(opened, emit, should_stop, notes)
        job.check()
        job.make_plan()
        before = job.baseline()
        free = job.alternatives()
        progress = job.training()
        after = job.evaluation()
        return job.report(before, after, free, progress)


def evaluate(
    model: str,
    corpus: str,
    baseline: str | None,
    recipe: dict[str, Any],
    emit: Emit,
    should_stop: ShouldStop,
    transcripts: str | None = None,
) -> dict[str, Any]:
    """Scores of a model on a corpus' test clips (all clips where there is no such split), and a verdict
    against a baseline model where one is given.

    Args:
        transcripts: a file for the model's transcripts, JSONL with the errors of each clip.
    """
    settings = Recipe.model_validate(recipe)
    opened = Corpus.open(Path(corpus))
    clips = capped(opened.split("test") or opened.clips, settings.eval.test_minutes)
    facts = machine_facts(settings.machine)
    options = decode_options(settings.eval, facts.device, facts.precision)

    language = settings.model.language or _language_of(model) or (baseline and _language_of(baseline))

    def evaluation(name: str) -> Evaluation:
        layouts = Layouts(name, language, settings.model.task)
        return Evaluation([JudgedSet("test", opened, clips)], layouts, options)

    def decoded(name: str) -> dict[str, Any]:
        loaded = load(resolve(name))
        loaded.model.to(facts.device)
        return evaluation(name).of(loaded, lambda _: _progress("eval", name, emit, should_stop))

    own = evaluation(model)
    terms = terms_of(settings.eval, clips, {clip.id: own.language_of(clip) for clip in clips})
    after = decoded(model)
    if transcripts is not None:
        write_transcripts(Path(transcripts), clips, after["sets"]["test"], terms)
    if baseline is None:
        return score_sets(after, terms)
    return compare_sets([("test", clips)], decoded(baseline), after, terms)


def compare(
    models: Sequence[str], corpus: str, to: str, recipe: dict[str, Any], emit: Emit, should_stop: ShouldStop
) -> dict[str, Any]:
    """compare.json of several models on a corpus' test clips (on all, where there are none); the first is
    what the others are measured against."""
    settings = Recipe.model_validate(recipe)
    rules = read_rules(Path(settings.eval.normalizer)) if settings.eval.normalizer else None
    systems = heard_by_models(
        models,
        Corpus.open(Path(corpus)),
        settings,
        _language_of,
        Path(to) / "transcripts",
        lambda name: _progress("compare", name, emit, should_stop),
    )
    found = compare_transcripts(
        systems,
        goal=settings.eval.goal,
        normalizer_of=lambda language: normalizer_for(language or "en", rules),
        resamples=settings.eval.resamples,
    )
    found["notes"] += costs(models)
    return found


def export(
    run: str, format: str, to: str, step: int | None, emit: Emit, should_stop: ShouldStop, force: bool = False
) -> dict[str, Any]:
    """Write a run's delivered model, or a kept checkpoint, in a format with its card, and prove in its own
    engine that it is the same model: a failed proof leaves nothing behind.

    Raises:
        UsageError: no such format.
        Refused: the verdict on the run is *worse*, and `force` does not say that it is wanted all the same.
        ModelError: the folder exists, or the proof failed.
    """
    if format not in EXPORT_FORMATS:
        raise UsageError(f"there is no export format '{format}'", f"formats: {', '.join(EXPORT_FORMATS)}")
    if Path(to).exists():  # said before minutes are spent on it
        raise ModelError(f"{to} exists already", "remove it, or export to another folder")
    opened = Run.open(Path(run))
    with writing(Path(to)):
        Path(to).parent.mkdir(parents=True, exist_ok=True)
    report = opened.report
    if report and report["verdict"] == "worse" and not force:
        raise Refused(
            f"{run} is not exported: {report['sentence']}",
            "use the base model, or give --force to have it all the same; its card will say so",
        )
    job = Job(opened, emit, should_stop)
    loaded = job.at_step(step) if step is not None else load(resolve(run))
    judged = job.judging.sets[0].clips
    layout = job.layouts.of(judged[0])
    clips = [clip for clip in judged if job.layouts.of(clip) == layout][:PROOF_CLIPS]
    audio = [np.asarray(job.corpus.audio(clip)) for clip in clips]
    # To the model's own limit, as `generate` goes.
    options = DecodeOptions(max_new_tokens=loaded.max_target_positions, batch=1)
    expected = transcribe_clips(
        loaded.model,
        audio,
        [layout] * len(audio),
        options,
        _progress("export", "what it says", emit, should_stop),
    )
    # Under another name until it is proved, so that a kill leaves no folder that looks finished.
    unproved = Path(to).with_name(f".{Path(to).name}.unproved")
    shutil.rmtree(unproved, ignore_errors=True)
    try:
        export_hf(loaded, unproved, language=layout.language, task=layout.task)
        about = card(report) if report and step is None else unjudged_card(run, step)
        write_atomically(unproved / "README.md", about)
        emit(Event("progress", {"label": "proof", "done": 0, "total": None, "text": "in a fresh process"}))
        prove_hf(unproved, audio, expected)
        unproved.rename(to)
    except (ModelError, MachineError) as error:
        raise type(error)(error.what.replace(str(unproved), to), error.hint) from error
    finally:
        shutil.rmtree(unproved, ignore_errors=True)
    emit(line("export", f"{to}, as transformers reads it"))
    proof = {"clips": len(clips), "engine": "transformers", "text_equal": True}
    emit(line("proof", f"transformers, in a fresh process: the same text on {len(clips)} clips"))
    return {"folder": to, "format": format, "proof": proof}


def transcribe(
    model: str, files: Sequence[str], recipe: dict[str, Any], emit: Emit, should_stop: ShouldStop
) -> list[dict[str, Any]]:
    """Transcripts of audio files of any length: `[{"file", "text", "segments": [{"start", "end", "text"}]}]`.

    Raises:
        DataError: a file is missing or not audio.
    """
    settings = Recipe.model_validate(recipe)
    for file in files:
        if not Path(file).is_file():
            if Path(file).is_dir():
                raise DataError(f"{file} is a folder, not an audio file", f"name its files: {file}/*")
            raise DataError(f"there is no file {file}", "check its path")
    facts = machine_facts(settings.machine)
    loaded: LoadedModel = load(resolve(model))
    loaded.model.to(facts.device)
    layout = Layouts(model, settings.model.language or _language_of(model), settings.model.task).default
    results = []
    for number, file in enumerate(files):
        samples = decode(Path(file)).samples
        if should_stop():
            raise Stopped(f"stopped before {file}")
        seconds = len(samples) / SAMPLE_RATE
        emit(
            Event(
                "progress",
                {"label": "hearing", "done": number, "total": len(files), "text": f"{file}, {seconds:.0f} s"},
            )
        )
        if len(samples) <= WINDOW_SAMPLES:
            options = decode_options(settings.eval, facts.device, facts.precision)
            text = transcribe_clips(loaded.model, [samples], [layout], options)[0]
            segments = [{"start": 0.0, "end": round(seconds, 2), "text": text}]
        else:
            segments = transcribe_long(loaded, samples, layout)
            text = " ".join(segment["text"] for segment in segments)
        results.append({"file": file, "text": text, "segments": segments})
        emit(Event("transcript", {"file": file, "text": text, "of": len(files)}))
    return results


def demo(folder: str, emit: Emit, should_stop: ShouldStop) -> dict[str, Any]:
    """The whole job on speech made here; returns report.json."""
    run = prepare_demo(Path(folder), emit)
    return train(str(run.folder), emit, should_stop, NOTES)


def _language_of(model: str) -> str | None:
    """The language that a tuned model was tuned to, as its folder says."""
    source = resolve(model)
    config = Path(source.location) / "generation_config.json"
    if source.kind not in ("hf", "run") or not config.is_file():
        return None
    language = read_json(config).get("language")
    return str(language).strip("<|>") if language else None


def _progress(label: str, text: str, emit: Emit, should_stop: ShouldStop) -> Callable[[int, int], None]:
    def show(done: int, total: int) -> None:
        emit(Event("progress", {"label": label, "done": done, "total": total, "text": text}))
        if should_stop():
            raise Stopped(f"stopped during {label}")

    return show


STEPS: dict[str, Callable[..., Any]] = {
    "train": train,
    "evaluate": evaluate,
    "compare": compare,
    "export": export,
    "transcribe": transcribe,
    "demo": demo,
}
