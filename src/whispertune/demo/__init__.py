"""The demo: tiny.en taught names that it cannot know, in synthetic speech made on this machine."""

from pathlib import Path

from whispertune.corpus import is_corpus
from whispertune.data.importers import import_source
from whispertune.demo.sentences import JARGON
from whispertune.demo.voices import make_demo_folder
from whispertune.hardware.detect import detect
from whispertune.hardware.torch_build import gpu_trouble
from whispertune.recipe import Recipe
from whispertune.run import Emit, Event, Run, write_atomically

NOTES = (
    "The speech is synthetic: one voice was trained on, unseen-voice is one that training never heard.",
    "plain-sentences is a weak guard: the trained voice, in sentences that tiny.en hardly gets wrong.",
)

CHANGES = {
    "model.name": "tiny.en",
    # Names are new words, not a new accent: the decoder has to be moved further than usual, and is.
    "train.learning_rate": 5e-5,
    "train.passes": 5,
}


def prepare_demo(folder: Path, emit: Emit) -> Run:
    """Speak the sentences, import them, and set up a run of them in `folder`; a finished one gives way.

    Raises:
        MissingExtra: the voices are not installed.
    """

    def spoken(done: int, total: int) -> None:
        emit(Event("progress", {"label": "speaking", "done": done, "total": total, "text": "offline voices"}))

    sources = folder.parent / f"{folder.name}-speech"
    spoken_folders = make_demo_folder(sources, spoken)
    emit(Event("stage", {"name": "speaking", "state": "end", "seconds": 0.0}))
    corpora = {}
    for name, source in zip(("clips", "unseen-voice", "plain-sentences"), spoken_folders, strict=True):
        corpora[name] = sources / "corpora" / name
        if not is_corpus(corpora[name]):
            import_source(source, corpora[name])
    keywords = sources / "keywords.txt"
    write_atomically(keywords, "".join(f"{word}\n" for word in JARGON))
    trouble = gpu_trouble(detect())
    if trouble is not None:
        emit(
            Event(
                "warning",
                {"text": f"{trouble.what}; the demo runs on the CPU. To use the GPU: {trouble.cure}"},
            )
        )
    recipe = Recipe().with_changes(
        {
            **CHANGES,
            "data.corpus": str(corpora["clips"]),
            "data.guards": (str(corpora["unseen-voice"]), str(corpora["plain-sentences"])),
            "eval.keywords": str(keywords),
            "machine.device": "cpu" if trouble is not None else "auto",
        }
    )
    earlier = Run(folder)
    if earlier.is_finished and earlier.recipe == recipe:  # only the demo's own run gives way
        with earlier.locked():
            earlier.remove()
    return Run.create(folder, recipe)
