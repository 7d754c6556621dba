"""What a person sees in the terminal: a column of labels, and a bar under the stage that runs."""

import json
import sys
import textwrap
import time
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from whispertune.clip import Finding, counted
from whispertune.errors import Stopped, WhispertuneError
from whispertune.run import Event

LABEL_WIDTH = 10
SHOWN_OF_A_KIND = 5
"""Findings of one kind that `check` prints; --json has all."""
SHOWN_REJECTED = 3
QUIET_S = 30.0
"""Where there is no terminal for a bar, a line of progress is due after so many seconds."""
_TONES = {"better": "green", "worse": "red", "no_difference": "bold", "warning": "yellow", "error": "red"}


class Terminal:
    """Prints stages, progress and results.

    Args:
        json_only: stdout is JSON, the rest goes to stderr.
        text_only: stdout is a text that somebody may pipe on, the rest goes to stderr.
    """

    def __init__(self, json_only: bool = False, text_only: bool = False) -> None:
        self._json_only = json_only
        self._console = _console(stderr=json_only or text_only)
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._stage = ""
        self._total: int | None = None
        self._said_at = time.monotonic()

    def line(self, label: str, text: str, tone: str = "", wrap: bool = True) -> None:
        """A label in the left column, and what there is to say; long texts go on under their column.

        Args:
            wrap: False for what is to be copied, such as a command.
        """
        if self._total is None:  # a bar without an end is over when something is said
            self.end()
        style = _TONES.get(tone, "")
        shown = _hanging(self._console, text) if wrap else _printable(text)
        self._out().print(
            Text.assemble(
                (f"{label:<{LABEL_WIDTH - 1}} ", f"bold {style}" if style else "dim"),
                (shown, style if tone in ("better", "worse", "no_difference") else ""),
            )
        )
        self._said_at = time.monotonic()

    def next(self, command: str) -> None:
        """The command to try now."""
        self.line("next", command, wrap=False)

    def table(self, rows: Sequence[Sequence[str]], tones: Sequence[str]) -> None:
        """Rows in columns as wide as they need; the first column of a row in its tone."""
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row, tone in zip(rows, tones, strict=True):
            cells = [_printable(f"{cell:<{width}}") for cell, width in zip(row, widths, strict=True)]
            self._out().print(
                Text.assemble((cells[0], _TONES.get(tone, "")), "  " + "  ".join(cells[1:]).rstrip())
            )

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
        console = _console(stderr=True)
        label, style = ("stopped", "bold yellow") if isinstance(error, Stopped) else ("error", "bold red")
        console.print(Text.assemble((f"{label:<{LABEL_WIDTH}}", style), _hanging(console, error.what)))
        if error.hint:
            hint = _hanging(console, error.hint)
            console.print(Text.assemble((f"{'hint':<{LABEL_WIDTH}}", "dim"), hint))
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
            case "transcript":
                self.text(data["text"] if data["of"] == 1 else f"{data['file']}: {data['text']}")
            case "warning":
                self.line("warning", data["text"], "warning")
            case "progress":
                self.progress(data["label"], data["done"], data["total"], data.get("text", ""))
            case "dev" if not self._console.is_terminal:  # the bar shows it too
                self.line("training", f"step {data['step']} of {self._total}: dev WER {data['wer']:.1f} %")
            case "stage" if data["state"] == "end":
                self.end()

    def progress(self, label: str, done: int, total: int | None, text: str = "") -> None:
        """Move the bar of a stage, with the time it still takes; without a terminal, say so now and then."""
        self._total = total
        if not self._console.is_terminal:
            if time.monotonic() - self._said_at > QUIET_S:
                self.line(label, f"{done} of {total} · {text}" if total else text)
            return
        if self._progress is None or self._stage != label:
            self.end()
            self._stage = label
            self._progress = Progress(
                TextColumn("[dim]{task.description:<9}[/dim]"),
                BarColumn(bar_width=20, complete_style="cyan", finished_style="cyan"),
                TextColumn("{task.completed:.0f}/{task.total:.0f}" if total else ""),
                TextColumn("{task.fields[text]}", markup=False),
                TimeRemainingColumn(compact=True),
                console=self._console,
                transient=True,
            )
            # What was done before counts as done, not as speed.
            self._task = self._progress.add_task(label, total=total, completed=done, text=_printable(text))
            self._progress.start()
        assert self._task is not None
        self._progress.update(self._task, completed=done, total=total, text=_printable(text))

    def end(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress, self._task, self._stage = None, None, ""

    def _out(self) -> Console:
        return self._progress.console if self._progress is not None else self._console


class _Plain(Console):
    def on_broken_pipe(self) -> None:
        """Whoever shows things shall know: rich would leave at once, with the work half done."""
        raise


def _console(stderr: bool) -> Console:
    return _Plain(stderr=stderr, highlight=False, soft_wrap=True)


def _hanging(console: Console, text: str) -> str:
    """The text in lines that begin under its column; as it is where nobody's eyes need that."""
    text = _printable(text)
    if not console.is_terminal:
        return text
    width = max(30, console.width - LABEL_WIDTH)
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return ("\n" + " " * LABEL_WIDTH).join(lines)


def _printable(text: str) -> str:
    """Without control characters: file names and labels are data, and a terminal would obey them."""
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) == "Cc" else c for c in text)


def show_import(terminal: Terminal, summary: Any) -> None:
    rejected = sum(summary.rejected.values())
    rows, minutes = counted(summary.rows, "row"), summary.duration_s / 60
    terminal.line("import", f"{rows} = {summary.kept} kept + {rejected} rejected, {minutes:.1f} min")
    if rejected:
        kinds = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in summary.rejected.items())
        named = [finding for finding in summary.findings if finding.severity == "reject"]
        for finding in named[:SHOWN_REJECTED]:
            terminal.line("rejected", f"{finding.file_name}: {finding.message}", "warning")
        if rejected > SHOWN_REJECTED:
            where = summary.corpus / "rejected.jsonl"
            terminal.line("", f"{kinds} in all: each by name in {where}", "warning")
    of_clips = Counter(f.reason for f in summary.findings if f.severity != "reject" and f.file_name)
    if of_clips:
        kinds = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in of_clips.most_common())
        terminal.line("", f"{kinds}: whispertune check {summary.corpus} says which")
    shares = ", ".join(
        f"{name} {counted(summary.split_clips[name], 'clip')}, {seconds / 60:.1f} min"
        for name, seconds in summary.split_s.items()
    )
    terminal.line("split", f"{shares}. {summary.split}")
    for finding in summary.findings:
        if finding.severity == "warn" and not finding.file_name:
            terminal.line("warning", finding.message, "warning")


def show_findings(terminal: Terminal, findings: Sequence[Finding]) -> None:
    """What hurts most first; of each kind the first few."""
    kinds: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for severity in ("reject", "warn", "note"):
        for finding in findings:
            if finding.severity == severity:
                kinds[severity, finding.reason].append(finding)
    for (severity, reason), same in kinds.items():
        tone = {"reject": "error", "warn": "warning"}.get(severity, "")
        for finding in same[:SHOWN_OF_A_KIND]:
            terminal.line(severity, f"{finding.file_name}  {finding.message}".strip(), tone)
        if len(same) > SHOWN_OF_A_KIND:
            terminal.line(
                "", f"and {len(same) - SHOWN_OF_A_KIND} more of this kind ({reason}): --json lists all"
            )


def show_verdict(terminal: Terminal, report: Mapping[str, Any]) -> None:
    terminal.line("verdict", report["sentence"], report["verdict"])
    for reason in report["reasons"]:
        terminal.line("", reason)
    for guard in report["guards"]:
        tone = {"failed": "worse", "unproven": "warning"}.get(guard["status"], "")
        terminal.line("guard", f"{guard['sentence']}.", tone)


def show_free(terminal: Terminal, report: Mapping[str, Any]) -> None:
    metric = report["difference"]["metric"]
    tried = [f"untuned {row['name']} {row['rate']:.1f} % {metric}" for row in report.get("free") or []]
    if tried:
        terminal.line("for free", ", ".join(tried))


def scores_line(scores: Mapping[str, Any]) -> str:
    def shown(value: float | None) -> str:
        return "undefined" if value is None else f"{value:.1f} %"

    words = counted(scores["reference_words"], "word")
    return (
        f"{shown(scores['wer'])} WER · {shown(scores['cer'])} CER · {words}, "
        f"{scores['substitutions']} wrong, {scores['deletions']} missing, {scores['insertions']} too many · "
        f"{counted(scores['loops'], 'loop')}"
    )
