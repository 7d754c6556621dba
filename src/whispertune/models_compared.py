"""Several models on the same clips, one after the other: what `compare --on-corpus` measures."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from whispertune.corpus import Corpus
from whispertune.data.split import capped
from whispertune.engine.device import MachineFacts, machine_facts
from whispertune.engine.evaluate import Evaluation, JudgedSet
from whispertune.engine.layouts import Layouts
from whispertune.engine.model import load
from whispertune.engine.source import ModelSource, resolve, weights_size
from whispertune.engine.transcribe import Progress, decode_options
from whispertune.errors import ModelError
from whispertune.recipe import Recipe
from whispertune.run import Run, read_json, write_json
from whispertune.scoring.transcripts import Transcripts, read_transcripts


def heard_by_models(
    models: Sequence[str],
    corpus: Corpus,
    settings: Recipe,
    language_of: Callable[[str], str | None],
    folder: Path,
    progress: Callable[[str], Progress],
) -> list[Transcripts]:
    """What each model makes of the test clips (of all, where there are none), decoded alike; kept in
    `folder/NAME.json`, and not decoded again while model, clips and options are the same.

    Args:
        language_of: the language of a model that has one of its own.
        progress: gives, for a model, what is called with (clips done, clips in all).

    Raises:
        ModelError: a model cannot be loaded.
        DataError: a language is missing.
    """
    sources = [resolve(name) for name in models]  # a wrong name is said before minutes are spent
    facts = machine_facts(settings.machine)
    names = _names(sources)
    language = settings.model.language or next(filter(None, map(language_of, models)), None)
    systems = []
    for name, source in zip(names, sources, strict=True):
        path = _heard(name, source, corpus, settings, language, facts, folder, progress(name))
        document = json.loads(path.read_text("utf-8"))
        rtf = document["seconds"]["test"] / document["audio_s"]
        size_mb = document["weights_bytes"] / 1e6
        systems.append(replace(read_transcripts(path), name=name, rtf=rtf, size_mb=size_mb))
    return systems


def costs(models: Sequence[str]) -> list[str]:
    """What the runs among some models took to train, in a sentence each."""
    found = []
    for model in models:
        if Run(Path(model)).recipe_file.is_file() and (report := Run.open(Path(model)).report):
            minutes = report["time"]["training_s"] / 60
            base = report["settings"]["model"]["name"]
            found.append(
                f"{model} was tuned from {base} in {minutes:.0f} min on {report['settings']['machine']}."
            )
    return found


def _heard(
    name: str,
    source: ModelSource,
    corpus: Corpus,
    settings: Recipe,
    language: str | None,
    facts: MachineFacts,
    folder: Path,
    progress: Progress,
) -> Path:
    clips = capped(corpus.split("test") or corpus.clips, settings.eval.test_minutes)
    options = decode_options(settings.eval, facts.device, facts.precision)
    loaded = load(source)
    stated = {
        "model": {"name": source.name, "fingerprint": loaded.fingerprint},
        "corpus": corpus.fingerprint,
        "clips": _digest([clip.id for clip in clips]),
        "language": language,
        "decode": options.as_dict(),
    }
    path = folder / f"{name}.json"
    kept = read_json(path)
    if kept is not None and all(kept.get(key) == value for key, value in stated.items()):
        return path
    loaded.model.to(facts.device)
    layouts = Layouts(source.name, language, settings.model.task)
    system = Evaluation([JudgedSet("test", corpus, clips)], layouts, options).of(loaded, lambda _: progress)
    about = {
        clip.id: {"file_name": clip.file_name, "speaker": clip.speaker, "recording": clip.recording}
        for clip in clips
    }
    rows = [{**row, **about[row["id"]]} for row in system["sets"]["test"]]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(
        path,
        {
            **system,
            **stated,
            "audio_s": sum(clip.duration_s for clip in clips),
            "weights_bytes": weights_size(source),
            "sets": {"test": rows},
        },
    )
    return path


def _names(sources: Sequence[ModelSource]) -> list[str]:
    """A name for each that a file can have, none twice.

    Raises:
        ModelError: one model is given twice.
    """
    twice = next(
        (s.name for k, s in enumerate(sources) if s.location in [o.location for o in sources[:k]]), None
    )
    if twice is not None:
        raise ModelError(f"{twice} is given twice", "a model compared with itself says nothing")
    names: list[str] = []
    for source in sources:
        parts = Path(source.name).expanduser().absolute().parts if source.kind not in ("size", "hub") else ()
        name = parts[-1] if parts else source.name.replace("/", "--")
        names.append(f"{parts[-2]}-{name}" if name in names and len(parts) > 1 else name)
    return [name if names.count(name) == 1 else f"{name}-{k}" for k, name in enumerate(names, 1)]


def _digest(ids: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(ids).encode()).hexdigest()[:16]
