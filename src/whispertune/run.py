"""A Run is a folder: what was asked, what was planned, what happened, and what came of it.

    recipe.toml  plan.json  events.jsonl  checkpoints/<step>/  model/
    baseline.json  report.json  report.html  exports/

Files are written beside their place and renamed, so a run killed at any moment holds only whole files.
"""

import fcntl
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter, ValidationError

from whispertune import recipe as recipes
from whispertune.errors import DataError, MachineError, UsageError
from whispertune.plan import Plan
from whispertune.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run; the one stream that every face shows.

    Kinds: `stage` (name, state: begin|end, seconds), `progress` (label, done, total, text), `step` (step,
    steps, loss, learning_rate, grad_norm: null where fp16 overflowed and the step was skipped, seconds,
    waiting_s), `dev` (step, wer, seconds), `checkpoint` (step, best), `batch` (rows of the first one),
    `transcript` (file, text, of: how many files), `line` (label, text), `note` (text), `warning` (text).
    """

    kind: str
    data: dict[str, Any] = field(default_factory=dict)
    at: float = 0.0
    """Seconds since the epoch."""


Emit = Callable[[Event], None]


def line(label: str, text: str) -> Event:
    """Something to show for good, under the name of its stage."""
    return Event("line", {"label": label, "text": text})


def warning(text: str) -> Event:
    return Event("warning", {"text": text})


@contextmanager
def writing(path: Path, what: str = "") -> Iterator[None]:
    """Around what writes to `path` (said as `what`).

    Raises:
        MachineError: the disk is full, or the place cannot be written.
    """
    try:
        yield
    except Exception as error:
        # safetensors has an exception of its own for a full disk.
        if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
            raise
        there = next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
        free = shutil.disk_usage(there).free / 1e9
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise MachineError(
            f"cannot write {what or path}: {reason} ({free:.1f} GB free)",
            "free some room, or use a folder you may write to; the same command goes on with what was done",
        ) from error


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a whole file or none of it: beside it, flushed to disk, then renamed.

    Raises:
        OSError: it cannot be written, with its name; what was there is untouched.
    """
    beside = path.with_name(f".{path.name}.partial")
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error  # a full disk does not name the file


@contextmanager
def partial_folder(beside: Path) -> Iterator[Path]:
    """An empty folder to write into and then rename; whatever a kill left there goes first."""
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        yield beside
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def flush(folder: Path) -> None:
    """Bring the files of a folder, and their names, to the disk."""
    for path in (*folder.iterdir(), folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


CHOSEN = {"guards.json", "keywords.txt", "rules.tsv"}
"""What a recipe's words led to; another recipe may lead elsewhere."""
BEFORE_THE_PLAN = {"recipe.toml", "events.jsonl", "left_out.txt", ".lock"} | CHOSEN
"""What a run may hold before anything was done in it."""


class Run:
    """One run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    recipe_file = property(lambda self: self.folder / "recipe.toml")
    plan_file = property(lambda self: self.folder / "plan.json")
    events_file = property(lambda self: self.folder / "events.jsonl")
    baseline_file = property(lambda self: self.folder / "baseline.json")
    guards_file = property(lambda self: self.folder / "guards.json")
    labels_file = property(lambda self: self.folder / "labels.json")
    left_out_file = property(lambda self: self.folder / "left_out.txt")
    alternatives_file = property(lambda self: self.folder / "alternatives.json")
    tradeoff_file = property(lambda self: self.folder / "tradeoff.json")
    evaluation_file = property(lambda self: self.folder / "evaluation.json")
    report_file = property(lambda self: self.folder / "report.json")
    page_file = property(lambda self: self.folder / "report.html")
    checkpoints = property(lambda self: self.folder / "checkpoints")
    model_folder = property(lambda self: self.folder / "model")
    exports = property(lambda self: self.folder / "exports")
    tensorboard = property(lambda self: self.folder / "tensorboard")

    @classmethod
    def create(cls, folder: Path, recipe: Recipe) -> "Run":
        """A new run, or the unfinished one of the same recipe that lies there.

        A run that failed before it had a plan has nothing to lose: the new recipe takes its place.

        Raises:
            UsageError: the folder holds a finished run, a run of another recipe, or other files.
        """
        run = cls(folder)
        done = run._done()
        if run.recipe_file.is_file() and done:
            return run._continued(recipe)
        if done:
            raise UsageError(f"{folder} is not empty and is not a run", "name another folder with --run")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            hint = "name another folder with --run"
            raise DataError(f"cannot make the run folder {folder}: {error.strerror}", hint) from None
        for name in CHOSEN:
            (folder / name).unlink(missing_ok=True)
        write_atomically(run.recipe_file, recipe.to_toml())
        return run

    @classmethod
    def numbered(cls, folder: Path, recipe: Recipe) -> "Run":
        """The unfinished run of this recipe among `folder-1`, `folder-2`, …, or the next one after them.

        Raises:
            DataError: the folder cannot be made.
        """
        for number in itertools.count(1):
            numbered = cls(folder.with_name(f"{folder.name}-{number}"))
            # A run that another command has just made is that command's, plan or no plan.
            try:
                if numbered.recipe_file.is_file() and numbered._differences(recipe):
                    continue
                return cls.create(numbered.folder, recipe)
            except (UsageError, DamagedRecipe):
                continue  # taken
        raise AssertionError("counting ends")

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """The run in a folder.

        Raises:
            DataError: there is none.
        """
        run = cls(folder)
        if not run.recipe_file.is_file():
            near = Path("runs") / folder
            raise DataError(
                f"{folder} is not a run: it has no recipe.toml",
                f"did you mean {near}?" if cls(near).recipe_file.is_file() else "whispertune runs lists them",
            )
        return run

    def _continued(self, recipe: Recipe) -> "Run":
        if self.is_finished:
            raise UsageError(
                f"{self.folder} holds a finished run",
                f"name another --run, or whispertune runs rm {self.folder}",
            )
        if changed := self._differences(recipe):
            raise UsageError(
                f"{self.folder} holds an unfinished run of another recipe: {'; '.join(changed[:3])}",
                f"name another --run, or whispertune runs rm {self.folder}",
            )
        return self

    def _differences(self, recipe: Recipe) -> list[str]:
        ours, theirs = self.recipe.model_dump(), recipe.model_dump()
        return [
            f"{section}.{name} is {ours[section][name]!r} there and {value!r} here"
            for section, values in theirs.items()
            for name, value in values.items()
            if ours[section][name] != value
        ]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def recipe(self) -> Recipe:
        """Raises DamagedRecipe where it cannot be read or does not say what is trained on what."""
        try:
            found = recipes.load(self.recipe_file)
        except UsageError as error:
            raise DamagedRecipe(self.folder, error.what) from None
        if not (found.model.name and found.data.corpus):
            raise DamagedRecipe(self.folder, f"{self.recipe_file} is damaged: it names no model or no corpus")
        return found

    @property
    def is_finished(self) -> bool:
        """The report is there, and the model that it speaks of."""
        return self.report_file.is_file() and (self.model_folder / "config.json").is_file()

    @property
    def plan(self) -> dict[str, Any] | None:
        return read_json(self.plan_file)

    @property
    def baseline(self) -> dict[str, Any] | None:
        return read_json(self.baseline_file)

    @property
    def report(self) -> dict[str, Any] | None:
        return read_json(self.report_file)

    def recorder(self, also: Emit | None = None) -> Emit:
        """A function that appends events to events.jsonl and hands them on."""
        held = self.events_file.read_bytes() if self.events_file.is_file() else b""
        if held and not held.endswith(b"\n"):  # a kill cut the last line: the next one shall not join it
            with writing(self.events_file), open(self.events_file, "ab") as file:
                file.write(b"\n")

        def emit(event: Event) -> None:
            event = Event(event.kind, event.data, event.at or time.time())
            line = json.dumps(
                {"at": round(event.at, 3), "kind": event.kind, **event.data}, ensure_ascii=False
            )
            if event.kind != "progress":  # a progress bar is not history
                with writing(self.events_file), open(self.events_file, "a", encoding="utf-8") as file:
                    file.write(line + "\n")
            if also is not None:
                also(event)

        return emit

    def events(self, kind: str | None = None) -> Iterator[dict[str, Any]]:
        """The recorded events, oldest first; a line cut by a kill is passed over."""
        if not self.events_file.is_file():
            return
        for line in self.events_file.read_text("utf-8", errors="replace").splitlines():
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict) and (kind is None or event.get("kind") == kind):
                yield event

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from working on this run; a killed one leaves nothing to clean up.

        Raises:
            DataError: one does.
        """
        with open(self.folder / ".lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataError(
                    f"another process is working on {self.folder}", "wait for it, or name another --run"
                ) from None
            yield

    def keep(self, name: str, given: Path) -> Path:
        """The run's own copy of a file of the user's, made when it is first asked for.

        Raises:
            DataError: the file cannot be read.
        """
        copy = self.folder / name
        if not copy.is_file():
            try:
                write_atomically(copy, given.read_bytes())
            except FileNotFoundError:
                raise DataError(f"there is no file {given}", "check its path") from None
        return copy

    def discard_if_nothing_was_done(self) -> None:
        """Take the folder away if the run failed before it had a plan, and so holds nothing to go on from."""
        tells = self.left_out_file.is_file() and self.left_out_file.stat().st_size > 0
        if self.folder.is_dir() and not self._done() and not tells:
            self.remove()

    def remove(self) -> None:
        """The recipe goes last: until then it is a run, and can be removed again."""
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path != self.recipe_file:
                path.unlink()
        shutil.rmtree(self.folder)

    def _done(self) -> set[str]:
        """Names of what is there and would be lost; what a kill left half-written is not."""
        held = {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set()
        return {name for name in held - BEFORE_THE_PLAN if not fnmatch(name, ".*.partial")}


class DamagedRecipe(DataError):
    """A run's recipe cannot be read: nobody knows what was asked."""

    def __init__(self, folder: Path, what: str) -> None:
        super().__init__(what, f"put recipe.toml back as it was, or: whispertune runs rm {folder}")


class _Row(BaseModel):
    id: str
    language: str
    reference: str
    hypothesis: str


class _Heard(BaseModel):
    model: dict[str, Any]
    decode: dict[str, Any]
    sets: dict[str, list[_Row]]


class _Guards(BaseModel):
    guards: list[str]


class _Point(BaseModel):
    share: float
    dev: float
    guards: dict[str, float]


class _Tradeoff(BaseModel):
    curve: list[_Point]
    chosen: float
    reason: str


class _Guard(BaseModel):
    status: str
    sentence: str


class _Report(BaseModel):
    verdict: Literal["better", "no_difference", "worse"]
    goal: str
    before: float
    after: float
    difference: dict[str, Any]
    guards: list[_Guard]
    sentence: str
    reasons: list[str]
    sets: dict[str, Any]
    next: str


_SHAPES: dict[str, Any] = {
    "plan.json": Plan,
    "baseline.json": _Heard,
    "evaluation.json": _Heard,
    "alternatives.json": dict[str, _Heard],
    "guards.json": _Guards,
    "labels.json": dict[str, str],
    "tradeoff.json": _Tradeoff,
    "report.json": _Report,
}
"""What each of a run's files must hold at least to be worked on."""


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON file of a run, or None where there is none.

    Raises:
        DataError: it is not whole, or holds something else.
    """
    try:
        text = path.read_bytes()
        found = json.loads(text)
        TypeAdapter(_SHAPES.get(path.name, dict[str, Any])).validate_json(text, strict=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        fault = error.strerror or "it cannot be read"
    except ValidationError as error:
        first = error.errors()[0]
        fault = f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"
    except (ValueError, RecursionError) as error:
        fault = str(error)
    else:
        return found
    raise DataError(
        f"{path} is damaged: {fault}", "remove it and run the same train command again: it is made anew"
    )


def find_runs(folder: Path) -> list[Run]:
    """The runs in a folder, newest first."""
    if not folder.is_dir():
        return []
    found = [Run(p.parent) for p in folder.glob("*/recipe.toml") if p.is_file()]
    return sorted(found, key=lambda run: run.recipe_file.stat().st_mtime, reverse=True)
