"""The command line: it reads words, calls floors below, and shows what they say. It computes nothing."""

import errno
import io
import os
import shlex
import signal
import stat
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import whispertune
from whispertune import recipe as recipes
from whispertune.backends.local import LocalBackend
from whispertune.clip import counted
from whispertune.errors import MachineError, UsageError, WhispertuneError
from whispertune.project import chosen_recipe, require_model_and_corpus
from whispertune.recipe import Recipe, keys
from whispertune.run import Run, find_runs
from whispertune.terminal import Terminal, scores_line, show_findings, show_free, show_import, show_verdict

app = typer.Typer(
    name="whispertune",
    help="Fine-tune Whisper on the hardware you have, and know whether it got better.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
runs_app = typer.Typer(help="List, show and remove runs.", invoke_without_command=True, rich_markup_mode=None)
app.add_typer(runs_app, name="runs")

HURTS = 3
STOPPED = 130
_OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS)
"""A full or failing disk; other errors of the system name the file that they are about."""


def _knob(key: str, *words: str, **more: Any) -> Any:
    """An option that sets a recipe key; what it is for is said there."""
    knob = recipes.knob(key)
    choices = knob.kind.removesuffix(" or unset").replace(" or ", ", ").split(", ")
    if len(choices) > 1:
        more.setdefault("metavar", "|".join(choices))
    return typer.Option(*words, help=knob.description, **more)


Json = Annotated[bool, typer.Option("--json", help="stdout is JSON, the rest goes to stderr.")]
Language = Annotated[str | None, _knob("model.language", metavar="CODE")]
Goal = Annotated[str | None, _knob("eval.goal")]
Keywords = Annotated[Path | None, _knob("eval.keywords", "--keywords", metavar="FILE")]
Spelling = Annotated[Path | None, _knob("eval.normalizer", "--normalizer", metavar="FILE")]
Device = Annotated[str | None, _knob("machine.device")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any recipe key: whispertune recipe lists them."),
]


def main() -> None:
    """Run the command line; exit codes are those of docs/cli.md."""
    for name, handler in (
        (signal.SIGINT, _interrupt),
        (signal.SIGTERM, _interrupt),
        (signal.SIGHUP, _hung_up),
    ):
        if signal.getsignal(name) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(name, handler)
    if not sys.warnoptions:  # what libraries will change is for our tests to see, where it is an error
        warnings.simplefilter("ignore", FutureWarning)
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files need not be UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    terminal = Terminal("--json" in sys.argv)
    code: int | None
    try:
        _require_working_folder()
        _refuse_odd(sys.argv[1:])
        code = app(prog_name="whispertune", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        _say_nothing_more()
        code = STOPPED
    except WhispertuneError as error:
        terminal.error(error)
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = STOPPED
    except OSError as error:
        if not error.filename and error.errno not in _OF_THE_MACHINE:
            raise
        where = f": {error.filename}" if error.filename else ""
        terminal.error(
            MachineError(f"{error.strerror}{where}", "free some room, or use a folder you may write to")
        )
        code = 1
    except Exception as error:
        # A usage error of click, whichever copy of click typer uses.
        if not (hasattr(error, "format_message") and hasattr(error, "exit_code")):
            raise
        verb = getattr(getattr(error, "ctx", None), "info_name", None)
        words = "whispertune" if verb in (None, "whispertune") else f"whispertune {verb}"
        terminal.error(UsageError(error.format_message(), f"{words} --help shows the words"))
        code = UsageError.exit_code
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a late one shall not make an error of it
        signal.signal(name, signal.SIG_IGN)
    sys.exit(code or 0)


def _refuse_odd(words: Sequence[str]) -> None:
    """What cannot be written into a recipe or a table, and what a shell's unset variable leaves."""
    for word in words:
        if not word:
            raise UsageError("one of the words is empty", "is it a variable of the shell that is not set?")
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            shown = word.encode("utf-8", "backslashreplace").decode()
            raise UsageError(f"{shown} is not UTF-8", "rename the file or folder")


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        typer.echo(f"whispertune {whispertune.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what this machine has, and what mends what is wrong."""
    from whispertune.hardware.diagnosis import diagnose

    terminal = Terminal(as_json)
    findings = diagnose(Path(sys.executable))
    for finding in findings:
        terminal.line(
            finding.status, finding.text, {"fault": "error", "warning": "warning"}.get(finding.status, "")
        )
        if finding.cure:
            terminal.line("", f"→ {finding.cure}")
    cures = [finding.cure for finding in findings if finding.status == "fault"]
    terminal.next(cures[0] if cures else "whispertune demo")
    terminal.data([finding.as_dict() for finding in findings])
    if any(finding.status == "fault" for finding in findings):
        raise typer.Exit(1)


@app.command("import")
def import_(
    source: Annotated[
        str, typer.Argument(help="Folder with metadata.csv, Parquet, a datasets folder, or a Hub id.")
    ],
    to: Annotated[Path, typer.Option("--to", help="Corpus folder to make.")],
    language: Annotated[str | None, typer.Option(help="Language code of the rows that name none.")] = None,
    split: Annotated[str, typer.Option(help="90/10 (dev carved out of train) or 80/10/10.")] = "90/10",
    seed: Annotated[int, typer.Option(help="Of the split.")] = 0,
    streaming: Annotated[bool, typer.Option("--streaming", help="Read a Hub set row by row.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the corpus that is there.")] = False,
    as_json: Json = False,
) -> None:
    """Decode a source once into a corpus. Bad rows are rejected by name, and the exit code is then 3."""
    from whispertune.data.importers import import_source

    terminal = Terminal(as_json)
    summary = import_source(
        source,
        to,
        language=language,
        ratios=split,
        split_seed=seed,
        streaming=streaming,
        replace=replace,
        progress=lambda done, total: terminal.progress("import", done, total),
    )
    terminal.end()
    show_import(terminal, summary)
    terminal.next(f"whispertune check {shlex.quote(str(to))}")
    terminal.data(summary.as_dict())
    if summary.rejected:
        raise typer.Exit(HURTS)


@app.command()
def check(
    corpus: Annotated[str, typer.Argument(help="Corpus or source.")],
    language: Language = None,
    as_json: Json = False,
) -> None:
    """Find the clips that would hurt, before anything is trained; where there are some the exit code is 3."""
    from whispertune.corpus import Corpus
    from whispertune.data.validate import check_corpus
    from whispertune.scoring.languages import whisper_code

    terminal = Terminal(as_json)
    language = whisper_code(language) if language else None
    opened = Corpus.open(_corpus(terminal, corpus, language))
    rejected = opened.rejected
    findings = [*rejected, *check_corpus(opened)]
    show_findings(terminal, findings)
    warnings = sum(finding.severity == "warn" for finding in findings)
    minutes = opened.duration_s / 60
    found = f"{len(rejected)} rejected at import, {counted(warnings, 'warning')}"
    terminal.line("check", f"{counted(len(opened.clips), 'clip')}, {minutes:.1f} min; {found}")
    terminal.next(f"whispertune train {shlex.quote(corpus)} --model tiny.en")
    terminal.data([_as_dict(finding) for finding in findings])
    if rejected or warnings:
        raise typer.Exit(HURTS)


@app.command()
def train(
    source: Annotated[
        str | None, typer.Argument(metavar="CORPUS", help="Corpus, or any source that import reads.")
    ] = None,
    model: Annotated[str | None, _knob("model.name", metavar="MODEL")] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Run folder; an unfinished one goes on. Unset: runs/CORPUS-MODEL-1, -2, …"
        ),
    ] = None,
    guard: Annotated[list[str] | None, _knob("data.guards", "--guard", metavar="CORPUS")] = None,
    continue_from: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="A finished run whose model is tuned further."),
    ] = None,
    method: Annotated[str | None, _knob("train.method")] = None,
    folds: Annotated[int | None, _knob("data.folds")] = None,
    recover: Annotated[
        bool,
        typer.Option("--recover", help="Choose by half of each guard how much of the base to keep."),
    ] = False,
    goal: Goal = None,
    keywords: Keywords = None,
    normalizer: Spelling = None,
    passes: Annotated[float | None, _knob("train.passes")] = None,
    steps: Annotated[int | None, _knob("train.steps")] = None,
    eval_every: Annotated[int | None, _knob("train.eval_every")] = None,
    save_every: Annotated[int | None, _knob("train.save_every")] = None,
    max_minutes: Annotated[float | None, _knob("train.max_minutes")] = None,
    test_minutes: Annotated[str | None, _knob("eval.test_minutes", metavar="MINUTES|all")] = None,
    language: Language = None,
    device: Device = None,
    recipe: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A recipe in TOML: whispertune recipe shows one.")
    ] = None,
    assignments: Set = None,
    require: Annotated[
        str | None, typer.Option(help="better: exit with 3 unless the verdict is that.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check, baseline, training, verdict, report. The same command goes on with what was stopped."""
    if require not in (None, "better"):
        raise UsageError(f"--require {require}: only 'better' can be required")
    if continue_from is not None and model is not None:
        raise UsageError("--from says which model is tuned; --model says another", "give one of them")
    terminal = Terminal(as_json)
    options = {
        "model.name": str(Run.open(continue_from).folder) if continue_from is not None else model,
        "model.language": language,
        "data.corpus": source,
        "data.guards": () if guard == ["none"] else tuple(guard) if guard else None,
        "data.folds": folds,
        "train.method": method,
        "train.share": "recover" if recover else None,
        "train.passes": passes,
        "train.steps": steps,
        "train.eval_every": eval_every,
        "train.save_every": save_every,
        "train.max_minutes": max_minutes,
        **_judging(goal, keywords, normalizer),
        "eval.test_minutes": test_minutes,
        "machine.device": device,
    }
    chosen = chosen_recipe(recipe, options, assignments)
    require_model_and_corpus(chosen)
    chosen = _with_corpora(terminal, chosen)
    named = f"{Path(chosen.data.corpus).absolute().name}-{Path(chosen.model.name).name}"
    opened = Run.create(run, chosen) if run is not None else Run.numbered(Path("runs") / named, chosen)
    try:
        report = _followed(terminal, "train", run=str(opened.folder))
    except WhispertuneError:
        opened.discard_if_nothing_was_done()
        raise
    show_verdict(terminal, report)
    show_free(terminal, report)
    terminal.line("report", str(opened.page_file), wrap=False)
    terminal.next(report["next"])
    terminal.data(report)
    if report["verdict"] == "worse" or (require and report["verdict"] != "better"):
        raise typer.Exit(HURTS)


@app.command("eval")
def eval_(
    model: Annotated[str, typer.Argument(help="MODEL to score.")],
    corpus: Annotated[
        str, typer.Argument(help="Corpus or source: its test clips, or all where it has none.")
    ],
    baseline: Annotated[str | None, typer.Option(help="MODEL to compare with.")] = None,
    transcripts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSONL to write: each clip's text and word errors."),
    ] = None,
    goal: Goal = None,
    keywords: Keywords = None,
    normalizer: Spelling = None,
    language: Language = None,
    device: Device = None,
    assignments: Set = None,
    as_json: Json = False,
) -> None:
    """Score a model on a corpus, and say whether it is better than another."""
    terminal = Terminal(as_json)
    options = {"model.language": language, "machine.device": device}
    settings = chosen_recipe(None, options | _judging(goal, keywords, normalizer), assignments)
    folder = _corpus(terminal, corpus, settings.model.language)
    arguments = {"model": model, "corpus": str(folder), "baseline": baseline, "recipe": settings.model_dump()}
    arguments["transcripts"] = str(transcripts) if transcripts else None
    found = _followed(terminal, "evaluate", **arguments)
    if baseline is None:
        for name, scores in found["sets"].items():
            terminal.line(name, scores_line(scores))
        terminal.line("", f"normaliser {found['normalizer']}, {found['decode']['search']} decoding")
        terminal.next(shlex.join(["whispertune", "train", corpus, "--model", model]))
    else:
        show_verdict(terminal, found)
        winner = model if found["recommended"] == "tuned" else baseline
        terminal.next(shlex.join(["whispertune", "transcribe", winner, "speech.wav"]))
    terminal.data(found)
    if found.get("verdict") == "worse":
        raise typer.Exit(HURTS)


@app.command()
def compare(
    systems: Annotated[
        list[str], typer.Argument(metavar="SYSTEM", help="What is compared, 2 or more; the first is stock.")
    ],
    on_corpus: Annotated[
        str | None,
        typer.Option(metavar="CORPUS", help="The systems are MODELs, tried on its test clips, or on all."),
    ] = None,
    transcripts: Annotated[
        bool,
        typer.Option(
            "--transcripts",
            help="The systems are transcripts made elsewhere: JSONL of id, reference, hypothesis and any "
            "column, or a JSON a clip, or a folder of those, from faster-whisper, whisper.cpp or OpenAI.",
        ),
    ] = False,
    references: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV, TSV or JSONL of file_name (or id) and transcription; for transcripts that do not tell "
            "what was said.",
        ),
    ] = None,
    goal: Annotated[
        str | None,
        typer.Option(help="wer or cer. Unset: cer for languages written without spaces, else wer."),
    ] = None,
    normalizer: Spelling = None,
    language: Annotated[
        str | None, typer.Option(help="Language code of clips for which nothing states one.")
    ] = None,
    device: Device = None,
    to: Annotated[
        Path, typer.Option("--to", help="Folder for compare.html, compare.json and what the models said.")
    ] = Path("compare"),
    assignments: Set = None,
    as_json: Json = False,
) -> None:
    """Rank systems on the same clips, and say which differences are beyond chance; exit code 3 if two
    compare worse."""
    from whispertune.compare_page import write_comparison
    from whispertune.report_figures import in_points, interval, percent

    if transcripts == (on_corpus is not None):
        raise UsageError(
            "compared on which speech? give one of --on-corpus and --transcripts",
            "whispertune compare tiny.en runs/mine --on-corpus CORPUS",
        )
    terminal = Terminal(as_json)
    options = {"model.language": language, "machine.device": device, **_judging(goal, None, normalizer)}
    settings = chosen_recipe(None, options, assignments)
    if on_corpus is not None:
        corpus = str(_corpus(terminal, on_corpus, settings.model.language))
        arguments = {"models": systems, "corpus": corpus, "to": str(to), "recipe": settings.model_dump()}
        found = _followed(terminal, "compare", **arguments)
    else:
        found = _compared(terminal, list(map(Path, systems)), references, settings)
    terminal.end()
    page = write_comparison(found, to)
    if "verdict" in found:
        show_verdict(terminal, found)
    else:
        terminal.line("ranking", found["sentence"])
        for reason in found["reasons"]:
            terminal.line("", reason)
    rate, rows = found["goal"], []
    for system in sorted(found["systems"], key=lambda system: (system["rank"], system[rate])):
        difference = system["difference"] or {"point": None, "low": None}
        bounded = difference["low"] is not None
        rows.append(
            [
                f"{system['rank']}",
                system["name"],
                f"{percent(system[rate])} {rate.upper()}",
                in_points(difference["point"]) if system["difference"] else "stock",
                interval(difference["low"], difference["high"]) if bounded else "",
            ]
        )
    terminal.table(rows, ["better" if row[0] == "1" else "" for row in rows])
    for note in found["notes"]:
        terminal.line("", note)
    terminal.line("page", str(page), wrap=False)
    words = ["whispertune", "compare", *(["--transcripts"] if transcripts else []), *systems]
    words += ["--on-corpus", on_corpus] if on_corpus else []
    words += ["--to", str(to)]
    words += ["--references", str(references)] if references else []
    words += ["--language", language] if language else []
    terminal.next(shlex.join([*words, "--goal", "wer" if rate == "cer" else "cer"]))
    terminal.data(found)
    if found.get("verdict") == "worse":
        raise typer.Exit(HURTS)


@app.command()
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A finished run.")],
    format: Annotated[
        str, typer.Option("--format", help="hf: a folder that plain transformers loads.")
    ] = "hf",
    to: Annotated[
        Path | None, typer.Option("--to", help="Folder to make; default RUN/exports/FORMAT.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="A kept checkpoint instead of the delivered model.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Export a model whose verdict is worse; its card says so.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the tuned model for where it is used, and prove there that it is the same model."""
    terminal = Terminal(as_json)
    target = to or Run.open(Path(run)).exports / format
    made = _followed(terminal, "export", run=run, format=format, to=str(target), step=step, force=force)
    terminal.next(shlex.join(["whispertune", "transcribe", made["folder"], "speech.wav"]))
    terminal.data(made)


@app.command()
def transcribe(
    model: Annotated[str, typer.Argument(help="MODEL, such as a run.")],
    files: Annotated[list[str], typer.Argument(help="Audio files of any length and format.")],
    language: Language = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Transcribe audio files."""
    terminal = Terminal(as_json, text_only=True)
    settings = chosen_recipe(None, {"model.language": language, "machine.device": device})
    found = _followed(terminal, "transcribe", model=model, files=files, recipe=settings.model_dump())
    terminal.next(shlex.join(["whispertune", "eval", model, "CORPUS"]))
    terminal.data(found)


@app.command("recipe")
def recipe_(as_json: Json = False) -> None:
    """Show every recipe key with its default and reason, as a TOML template."""
    from whispertune.reference import template

    terminal = Terminal(as_json, text_only=True)
    terminal.text(template())
    terminal.next(
        "whispertune recipe > recipe.toml; whispertune train CORPUS --model tiny.en --recipe recipe.toml"
    )
    terminal.data([knob._asdict() for knob in keys()])


@app.command()
def demo(
    run: Annotated[Path, typer.Option(help="Folder of the demo.")] = Path("runs/demo"),
    as_json: Json = False,
) -> None:
    """Teach tiny.en some invented names with offline voices, and see whether it learned them."""
    terminal = Terminal(as_json)
    terminal.line("demo", "tiny.en learns names it cannot know; the speech is synthetic")
    report = _followed(terminal, "demo", folder=str(run))
    show_verdict(terminal, report)
    for name, found in report["keywords"]["sets"].items():
        before, after = found["before"], found["after"]
        terminal.line("names", f"{name}: {before['hits']} → {after['hits']} of {before['total']} names right")
    for note in report["notes"]:
        terminal.line("", note)
    terminal.line("report", str(Run(run).page_file), wrap=False)
    terminal.line("", "The same with your own folder of clips and metadata.csv:")
    terminal.next("whispertune train FOLDER --model tiny.en")
    terminal.data(report)
    if report["verdict"] == "worse":
        raise typer.Exit(HURTS)


@runs_app.callback()
def runs(
    context: typer.Context,
    folder: Annotated[Path, typer.Option(help="Where the runs are.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List, show and remove runs; alone: list those in a folder, newest first."""
    if context.invoked_subcommand is not None:
        return
    terminal = Terminal(as_json)
    rows = [_run_row_or_damage(run) for run in find_runs(folder)]
    if rows:
        columns = ("state", "run", "score", "model", "corpus")
        terminal.table(
            [
                [row[name].replace("_", " ") if name == "state" else row[name] for name in columns]
                for row in rows
            ],
            [row["state"] for row in rows],
        )
        terminal.next(shlex.join(["whispertune", "runs", "show", rows[0]["run"]]))
    else:
        terminal.line("runs", f"there are none in {folder}")
        terminal.next("whispertune train FOLDER --model tiny.en")
    terminal.data(rows)


@runs_app.command("show")
def runs_show(run: Path, as_json: Json = False) -> None:
    """What a run was asked, and what came of it."""
    terminal = Terminal(as_json)
    opened = Run.open(run)
    row, report = _run_row(opened), opened.report
    terminal.line("run", f"{row['model']} on {row['corpus']}")
    if report is None:
        terminal.line("unfinished", row["score"])
        terminal.next(
            shlex.join(["whispertune", "train", "--recipe", str(opened.recipe_file), "--run", str(run)])
        )
    else:
        show_verdict(terminal, report)
        terminal.line("report", str(opened.page_file), wrap=False)
        terminal.next(report["next"])
    terminal.data(report or row)


@runs_app.command("rm")
def runs_rm(
    run: Path,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove a run with its checkpoints and model."""
    terminal = Terminal(as_json)
    opened = Run.open(run)
    if not yes and (as_json or not sys.stdin.isatty()):
        raise UsageError(f"{run} is removed only after a yes, and nobody can be asked here", "give --yes")
    if not yes and not typer.confirm(f"Remove {run} with everything in it?"):
        raise typer.Exit(1)
    with opened.locked():
        opened.remove()
    terminal.line("removed", str(run))
    terminal.next("whispertune runs")
    terminal.data({"removed": str(run)})


def _followed(terminal: Terminal, step: str, /, **arguments: Any) -> Any:
    """Submit a step, show its events, and give back its result; Ctrl-C lets it save first."""
    handle = LocalBackend().submit(step, **arguments)
    try:
        terminal.progress("starting", 0, None, "loading torch")
        terminal.show(handle.events())
    except (KeyboardInterrupt, BrokenPipeError) as error:
        try:
            handle.cancel()
            if isinstance(error, BrokenPipeError):
                _say_nothing_more()
            terminal.line("stopping", "saving; press Ctrl-C again to stop at once", "warning")
            terminal.show(handle.events())
        except KeyboardInterrupt:
            _stop_at_once(terminal)
    try:
        return handle.result()
    except KeyboardInterrupt:
        _stop_at_once(terminal)


def _stop_at_once(terminal: Terminal) -> NoReturn:
    terminal.end()
    sys.stdout.flush()
    os._exit(STOPPED)  # torch aborts an interpreter that leaves while it still computes in a thread


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _hung_up(*_: object) -> None:
    """The terminal is gone: what would be said to it goes nowhere, and the work is saved."""
    _say_nothing_more()
    raise KeyboardInterrupt


def _say_nothing_more() -> None:
    """What is said from now on goes nowhere, except into a file."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        with suppress(OSError):
            if not stat.S_ISREG(os.fstat(stream).st_mode):
                os.dup2(nowhere, stream)


def _require_working_folder() -> None:
    """Raises MachineError where the folder that paths begin from is gone."""
    try:
        os.getcwd()
    except OSError as error:
        raise MachineError(
            f"the working folder cannot be used: {error.strerror}",
            "cd to a folder that is there, and try again",
        ) from None


def _corpus(terminal: Terminal, source: str, language: str | None) -> Path:
    """The corpus for a corpus or a source, which is imported once and remembered."""
    from whispertune.data.remembered import corpus_of

    folder, summary = corpus_of(
        source, language, lambda done, total: terminal.progress("import", done, total)
    )
    terminal.end()
    if summary is not None:
        show_import(terminal, summary)
    return folder.absolute()  # a run is asked again from other folders


def _compared(
    terminal: Terminal, systems: list[Path], references: Path | None, settings: Recipe
) -> dict[str, Any]:
    """Transcripts made elsewhere, compared without torch."""
    from whispertune.comparison import compare_transcripts
    from whispertune.scoring.normalize import normalizer_for, read_rules
    from whispertune.scoring.references import read_references
    from whispertune.scoring.transcripts import read_transcripts

    said = read_references(references) if references else None
    rules = read_rules(Path(settings.eval.normalizer)) if settings.eval.normalizer else None
    return compare_transcripts(
        [read_transcripts(path, said) for path in systems],
        goal=settings.eval.goal,
        language=settings.model.language,
        normalizer_of=partial(normalizer_for, rules=rules),
        resamples=settings.eval.resamples,
        workers=os.cpu_count() or 1,
        progress=lambda done, total: terminal.progress("compare", done, total),
    )


def _with_corpora(terminal: Terminal, chosen: Recipe) -> Recipe:
    """The recipe with corpora where it named sources."""
    language = chosen.model.language
    corpus = str(_corpus(terminal, chosen.data.corpus, language))
    guards = chosen.data.guards
    if guards is not None:  # auto is fetched by the run, which knows the language
        guards = tuple(name if name == "auto" else str(_corpus(terminal, name, language)) for name in guards)
    general = chosen.data.rehearsal
    rehearsal = str(_corpus(terminal, general, language)) if general else None
    return chosen.with_changes({"data.corpus": corpus, "data.guards": guards, "data.rehearsal": rehearsal})


def _judging(goal: str | None, keywords: Path | None, normalizer: Path | None) -> dict[str, Any]:
    """What decides, by recipe key; a run is asked again from other folders, so paths are absolute."""
    files = {"eval.keywords": keywords, "eval.normalizer": normalizer}
    return {"eval.goal": goal} | {key: str(file.absolute()) for key, file in files.items() if file}


def _run_row_or_damage(run: Run) -> dict[str, str]:
    try:
        return _run_row(run)
    except WhispertuneError as error:
        return {"run": str(run.folder), "state": "damaged", "score": error.what, "model": "", "corpus": ""}


def _run_row(run: Run) -> dict[str, str]:
    recipe, plan, report = run.recipe, run.plan, run.report
    row = {"run": str(run.folder), "model": recipe.model.name, "corpus": Path(recipe.data.corpus).name}
    if report is None:
        last = max((event["step"] for event in run.events("step")), default=0)
        steps = (plan or {}).get("steps")
        return {**row, "state": "unfinished", "score": f"at step {last} of {steps}" if steps else "not begun"}
    score = f"{report['before']:.1f} → {report['after']:.1f} % {report['goal'].upper()}"
    return {**row, "state": report["verdict"], "score": score}


def _as_dict(finding: Any) -> dict[str, str]:
    return {name: getattr(finding, name) for name in ("severity", "file_name", "reason", "message")}
