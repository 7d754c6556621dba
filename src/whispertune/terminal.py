"""What a person sees in the terminal: a column of stages, one line each, and a bar under the one that runs."""

import json
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from whispertune.errors import WhispertuneError
from whispertune.run import Event

_LABEL = 10
_TONES = {"better": "green", "worse": "red", "no_difference": "bold", "warning": "yellow", "error": "red"}


class Terminal:
    """Prints stages, progress and results. With `json_only`, stdout is data and the rest goes to stderr."""

    def __init__(self, json_only: bool = False) -> None:
        self._json_only = json_only
        self._console = Console(stderr=json_only, highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._stage = ""

    def line(self, label: str, text: str, tone: str = "") -> None:
        """One line: a label in the left column, and what there is to say."""
        style = _TONES.get(tone, "")
        shown = Text.assemble((f"{label:<{_LABEL}}", "bold " + style if style else "dim"), (text, style if tone else ""))
        self._out().print(shown)

    def data(self, value: Any) -> None:
        """The result of a verb, when JSON was asked for."""
        if self._json_only:
            sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=1) + "\n")

    def text(self, text: str) -> None:
        """A result that is text: a transcript, a template."""
        if not self._json_only:
            self.end()
            sys.stdout.write(text + "\n")

    def error(self, error: WhispertuneError) -> None:
        self.end()
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        console.print(Text.assemble(("error", "bold red"), " " * (_LABEL - 5), error.what))
        if error.hint:
            console.print(Text.assemble(("hint", "bold"), " " * (_LABEL - 4), error.hint))
        if self._json_only:
            self.data({"error": error.what, "hint": error.hint, "exit_code": error.exit_code})

    def show(self, events: Iterable[Event]) -> None:
        """Follow a step's events to its end."""
        try:
            for event in events:
                self.event(event)
        finally:
            self.end()

    def event(self, event: Event) -> None:
        data = event.data
        match event.kind:
            case "line":
                self.line(data["label"], data["text"], data.get("tone", ""))
            case "note":
                self.line("", data["text"])
            case "warning":
                self.line("warning", data["text"], "warning")
            case "progress":
                self.progress(data["label"], data["done"], data["total"], data.get("text", ""))
            case "stage" if data["state"] == "end":
                self.end()

    def progress(self, label: str, done: int, total: int | None, text: str = "") -> None:
        """Move the bar of a stage, with the time it still takes."""
        if self._progress is None or self._stage != label:
            self.end()
            self._stage = label
            self._progress = Progress(
                TextColumn("[dim]{task.description:<9}[/dim]"),
                BarColumn(bar_width=24, complete_style="cyan", finished_style="cyan"),
                TextColumn("{task.completed:.0f}/{task.total:.0f}" if total else "{task.completed:.0f}"),
                TextColumn("{task.fields[text]}"),
                TimeRemainingColumn(compact=True),
                console=self._console,
                transient=True,
                disable=not self._console.is_terminal,
            )
            self._progress.start()
            self._task = self._progress.add_task(label, total=total, text=text)
        assert self._task is not None
        self._progress.update(self._task, completed=done, total=total, text=text)

    def end(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress, self._task, self._stage = None, None, ""

    def _out(self) -> Console:
        return self._progress.console if self._progress is not None else self._console
