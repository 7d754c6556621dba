"""The command line. It reads words, calls floors below, and shows what they say; it computes nothing itself."""

import signal
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import whispertune
from whispertune import recipe as recipes
from whispertune.backends.local import LocalBackend
from whispertune.errors import DataError, UsageError, WhispertuneError
from whispertune.recipe import Recipe
from whispertune.run import Run, find_runs
from whispertune.terminal import Terminal

app = typer.Typer(
    name="whispertune",
    help="Fine-tune Whisper on the hardware you have, and know whether it got better.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
runs_app = typer.Typer(help="List, show and remove runs.", invoke_without_command=True, rich_markup_mode=None)
app.add_typer(runs_app, name="runs")

WORSE = 3
PROJECT_FILE = "whispertune.toml"

Json = Annotated[bool, typer.Option("--json", help="stdout is JSON, the rest goes to stderr.")]
Language = Annotated[str | None, typer.Option(help="Language of the speech, such as cs; a language column comes first.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any recipe key; see whispertune recipe.")
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps; cpu says that the CPU is meant.")]


def main() -> None:
    """Run the command line; the exit codes are 0 done, 1 input or machine, 2 usage, 3 worse, 130 stopped."""
    signal.signal(signal.SIGTERM, _interrupt)
    json_only = "--json" in sys.argv
    try:
        code = app(standalone_mode=False)
    except WhispertuneError as error:
        Terminal(json_only).error(error)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # click's own usage errors
            Terminal(json_only).error(UsageError(error.format_message(), "whispertune --help shows the words"))
            code = error.exit_code
        elif isinstance(error, BrokenPipeError):
            code = 1
        else:
            raise
    sys.exit(code or 0)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False) -> None:
    if version:
        typer.echo(f"whispertune {whispertune.__version__}")
        raise typer.Exit


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what this machine has, and what mends what is wrong."""
    from whispertune.hardware.diagnosis import diagnose

    terminal = Terminal(as_json)
    findings = diagnose(Path(sys.executable))
    for finding in findings:
        terminal.line(finding.status, finding.text, {"fault": "error", "warning": "warning"}.get(finding.status, ""))
        if finding.cure:
            terminal.line("", f"→ {finding.cure}")
    terminal.data([finding.as_dict() for finding in findings])
    if any(finding.status == "fault" for finding in findings):
        raise typer.Exit(1)


@app.command("import")
def import_(
    source: Annotated[str, typer.Argument(help="Folder with metadata.csv, Parquet, a datasets folder, or a Hub id.")],
    to: Annotated[Path, typer.Option("--to", help="Corpus folder to make.")],
    language: Language = None,
    split: Annotated[str, typer.Option(help="90/10 (dev carved out of train) or 80/10/10.")] = "90/10",
    seed: Annotated[int, typer.Option(help="Of the split.")] = 0,
    streaming: Annotated[bool, typer.Option("--streaming", help="Read a Hub set row by row.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the corpus that is there.")] = False,
    as_json: Json = False,
) -> None:
    """Decode a source once into a corpus; bad rows are rejected by name."""
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
    _show_import(terminal, summary)
    terminal.line("next", f"whispertune train {to} --model tiny.en")
    terminal.data(_import_data(summary))


@app.command()
def check(
    corpus: Annotated[str, typer.Argument(help="Corpus or source.")],
    language: Language = None,
    as_json: Json = False,
) -> None:
    """Find the clips that would hurt, before anything is trained."""
    from whispertune.corpus import Corpus
    from whispertune.data.validate import check_corpus

    terminal = Terminal(as_json)
    opened = Corpus.open(_corpus(terminal, corpus, language))
    rejected = opened.rejected
    findings = [*rejected, *check_corpus(opened)]
    for finding in findings:
        tone = "warning" if finding.severity != "note" else ""
        terminal.line(finding.severity, f"{finding.file_name}  {finding.message}".strip(), tone)
    minutes = opened.duration_s / 60
    warnings = sum(finding.severity == "warn" for finding in findings)
    terminal.line(
        "check", f"{len(opened.clips)} clips, {minutes:.1f} min; {len(rejected)} rejected at import, {warnings} warnings"
    )
    terminal.line("next", f"whispertune train {corpus} --model tiny.en")
    terminal.data([_as_dict(finding) for finding in findings])
    if any(finding.severity == "reject" for finding in findings[len(rejected) :]):
        raise typer.Exit(WORSE)


@app.command()
def train(
    source: Annotated[str, typer.Argument(metavar="CORPUS", help="Corpus, or any source that import reads.")],
    model: Annotated[str | None, typer.Option(help="A size, a Hub id, a folder, a .pt or a run.")] = None,
    run: Annotated[Path | None, typer.Option(help="Run folder; an unfinished one goes on.")] = None,
    guard: Annotated[list[str] | None, typer.Option(help="Corpus on which it must not get worse.")] = None,
    continue_from: Annotated[
        Path | None, typer.Option("--from", help="A finished run whose model is tuned further.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="full, decoder or lora.")] = None,
    goal: Annotated[str | None, typer.Option(help="wer or cer: the score that decides.")] = None,
    passes: Annotated[float | None, typer.Option(help="Passes over the audio.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates, instead of passes.")] = None,
    eval_every: Annotated[int | None, typer.Option(help="Updates between dev evaluations.")] = None,
    save_every: Annotated[int | None, typer.Option(help="Updates between checkpoints.")] = None,
    max_minutes: Annotated[float | None, typer.Option(help="Save and end training after so many.")] = None,
    test_minutes: Annotated[str | None, typer.Option(help="Minutes of test audio, or all.")] = None,
    language: Language = None,
    device: Device = None,
    recipe: Annotated[Path | None, typer.Option(help="A recipe in TOML; see whispertune recipe.")] = None,
    assignments: Set = None,
    require: Annotated[str | None, typer.Option(help="better: exit 3 unless the verdict is better.")] = None,
    as_json: Json = False,
) -> None:
    """Check, baseline, training, verdict, report. The same command goes on with what was stopped."""
    if require not in (None, "better"):
        raise UsageError(f"--require {require}: only 'better' can be required")
    terminal = Terminal(as_json)
    name = _model(str(continue_from) if continue_from else model)
    if continue_from is not None and model is not None:
        raise UsageError("--from says which model is tuned; --model says another", "give one of them")
    chosen = _recipe(
        recipe,
        {
            "model.name": name,
            "model.language": language,
            "train.method": method,
            "eval.goal": goal,
            "train.passes": passes,
            "train.steps": steps,
            "train.eval_every": eval_every,
            "train.save_every": save_every,
            "train.max_minutes": max_minutes,
            "eval.test_minutes": test_minutes if test_minutes in (None, "all") else _number(test_minutes, "--test-minutes"),
            "machine.device": device,
            "data.corpus": str(_corpus(terminal, source, language)),
            "data.guards": tuple(str(_corpus(terminal, g, language)) for g in guard) if guard else None,
        },
        assignments,
    )
    folder = run or Path("runs") / f"{Path(source).name}-{Path(name).name}"
    opened = Run.create(folder, chosen)
    report = _followed(terminal, "train", run=str(opened.folder))
    _show_verdict(terminal, report)
    terminal.line("report", str(opened.page_file))
    terminal.line("next", report["next"])
    terminal.data(report)
    if report["verdict"] == "worse" or (require and report["verdict"] != "better"):
        raise typer.Exit(WORSE)


@app.command("eval")
def eval_(
    model: Annotated[str, typer.Argument(help="MODEL to score.")],
    corpus: Annotated[str, typer.Argument(help="Corpus or source: its test clips, or all where it has none.")],
    baseline: Annotated[str | None, typer.Option(help="MODEL to compare with.")] = None,
    language: Language = None,
    device: Device = None,
    assignments: Set = None,
    as_json: Json = False,
) -> None:
    """Score a model on a corpus, and say whether it is better than another."""
    terminal = Terminal(as_json)
    folder = _corpus(terminal, corpus, language)
    settings = _recipe(None, {"model.language": language, "machine.device": device}, assignments)
    arguments = {"model": model, "corpus": str(folder), "baseline": baseline, "recipe": settings.model_dump()}
    found = _followed(terminal, "evaluate", **arguments)
    if baseline is None:
        for name, scores in found["sets"].items():
            terminal.line(name, _scores_line(scores))
        terminal.line("", f"normaliser {found['normalizer']}, {found['decode']['search']} decoding")
    else:
        _show_verdict(terminal, found)
    terminal.data(found)
    if found.get("verdict") == "worse":
        raise typer.Exit(WORSE)


@app.command()
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A finished run.")],
    format: Annotated[str, typer.Option("--format", help="hf: a folder that plain transformers loads.")] = "hf",
    to: Annotated[Path | None, typer.Option("--to", help="Folder to make; default RUN/exports/FORMAT.")] = None,
    step: Annotated[int | None, typer.Option(help="A kept checkpoint instead of the delivered model.")] = None,
    as_json: Json = False,
) -> None:
    """Write the tuned model for where it is used, and prove there that it is the same model."""
    terminal = Terminal(as_json)
    target = to or Run.open(Path(run)).exports / format
    made = _followed(terminal, "export", run=run, format=format, to=str(target), step=step)
    terminal.line("next", f"whispertune transcribe {made['folder']} speech.wav")
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
    terminal = Terminal(as_json)
    settings = _recipe(None, {"model.language": language, "machine.device": device}, None)
    found = _followed(terminal, "transcribe", model=model, files=files, recipe=settings.model_dump())
    for result in found:
        terminal.text(result["text"] if len(files) == 1 else f"{result['file']}: {result['text']}")
    terminal.data(found)


@app.command("recipe")
def recipe_(as_json: Json = False) -> None:
    """Show every recipe key with its default and reason, as a TOML template."""
    from whispertune.reference import template

    terminal = Terminal(as_json)
    terminal.text(template())
    terminal.data([{"key": key, "type": kind, "default": default, "description": text} for key, kind, default, text in recipes.keys()])


@app.command()
def demo(
    run: Annotated[Path, typer.Option(help="Folder of the demo.")] = Path("runs/demo"),
    as_json: Json = False,
) -> None:
    """Teach tiny.en some invented names with offline voices, and see whether it learned them."""
    terminal = Terminal(as_json)
    terminal.line("demo", "tiny.en learns names it cannot know; the speech is synthetic")
    report = _followed(terminal, "demo", folder=str(run))
    _show_verdict(terminal, report)
    for name, found in report["keywords"]["sets"].items():
        before, after = found["before"], found["after"]
        terminal.line("names", f"{name}: {before['hits']} → {after['hits']} of {before['total']} names right")
    for note in report["notes"]:
        terminal.line("", note)
    terminal.line("report", str(Run(run).page_file))
    terminal.line("yours", "whispertune train FOLDER --model tiny.en    (a folder of clips with metadata.csv)")
    terminal.data(report)
    if report["verdict"] == "worse":
        raise typer.Exit(WORSE)


@runs_app.callback()
def runs(context: typer.Context, folder: Path = Path("runs"), as_json: Json = False) -> None:
    """List the runs in a folder, newest first."""
    if context.invoked_subcommand is not None:
        return
    terminal = Terminal(as_json)
    rows = [_run_row(run) for run in find_runs(folder)]
    for row in rows:
        terminal.line(row["state"], f"{row['run']}  {row['model']} on {row['corpus']}  {row['text']}", row["state"])
    if not rows:
        terminal.line("", f"no runs in {folder}")
    terminal.data(rows)


@runs_app.command("show")
def runs_show(run: Path, as_json: Json = False) -> None:
    """What a run was asked, and what came of it."""
    terminal = Terminal(as_json)
    opened = Run.open(run)
    report = opened.report
    if report is None:
        terminal.line("unfinished", f"{run}: the same train command goes on with it")
        terminal.text(opened.recipe_file.read_text("utf-8"))
    else:
        _show_verdict(terminal, report)
        terminal.line("report", str(opened.page_file))
    terminal.data(report or _run_row(opened))


@runs_app.command("rm")
def runs_rm(run: Path, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> None:
    """Remove a run with its checkpoints and model."""
    opened = Run.open(run)
    if not yes and not typer.confirm(f"Remove {run} with everything in it?"):
        raise typer.Exit(1)
    opened.remove()
    Terminal().line("removed", str(run))


def _followed(terminal: Terminal, step: str, **arguments: Any) -> Any:
    """Submit a step, show its events, and give back its result; Ctrl-C lets it save first."""
    handle = LocalBackend().submit(step, **arguments)
    try:
        terminal.show(handle.events())
    except KeyboardInterrupt:
        terminal.line("stopping", "saving; press Ctrl-C again to stop at once", "warning")
        handle.cancel()
        terminal.show(handle.events())
    return handle.result()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _corpus(terminal: Terminal, source: str, language: str | None) -> Path:
    """The corpus for a corpus or a source, which is imported once and remembered."""
    from whispertune.data.remembered import corpus_of

    folder, summary = corpus_of(source, language, lambda done, total: terminal.progress("import", done, total))
    terminal.end()
    if summary is not None:
        _show_import(terminal, summary)
    return folder


def _model(name: str | None) -> str:
    name = name or _project_defaults().get("model")
    if not name:
        raise UsageError("which model? --model is missing", "for example --model tiny.en, or model in whispertune.toml")
    return str(name)


def _recipe(file: Path | None, changes: dict[str, Any], assignments: list[str] | None) -> Recipe:
    """Defaults, then whispertune.toml, then a recipe file, then options, then --set: the later one wins."""
    base = recipes.load(file) if file is not None else Recipe()
    if base.model.language is None and (language := _project_defaults().get("language")):
        base = base.with_changes({"model.language": language})
    given = {key: value for key, value in changes.items() if value is not None}
    return base.with_changes({**given, **recipes.parse_assignments(assignments or [])})


def _project_defaults() -> dict[str, Any]:
    path = Path(PROJECT_FILE)
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{PROJECT_FILE} is not TOML: {error}") from None


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{option} {text}: expected minutes or 'all'") from None


def _show_import(terminal: Terminal, summary: Any) -> None:
    rejected = sum(summary.rejected.values())
    terminal.line("import", f"{summary.rows} rows = {summary.kept} kept + {rejected} rejected, {summary.duration_s / 60:.1f} min")
    if rejected:
        kinds = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in summary.rejected.items())
        terminal.line("", f"{kinds}: each by name in {summary.corpus / 'rejected.jsonl'}", "warning")
    if summary.warned:
        kinds = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in summary.warned.items())
        terminal.line("", f"{kinds}: whispertune check {summary.corpus} says which")
    shares = ", ".join(f"{name} {seconds / 60:.1f} min" for name, seconds in summary.split_s.items())
    terminal.line("split", f"{shares}. {summary.split}")


def _import_data(summary: Any) -> dict[str, Any]:
    values = {name: getattr(summary, name) for name in ("rows", "kept", "rejected", "warned", "duration_s", "split_s")}
    return {**values, "corpus": str(summary.corpus), "findings": [_as_dict(finding) for finding in summary.findings]}


def _show_verdict(terminal: Terminal, report: dict[str, Any]) -> None:
    terminal.line("verdict", report["sentence"], report["verdict"])
    for reason in report["reasons"]:
        terminal.line("", reason)
    for guard in report.get("guards", []):
        terminal.line("guard", f"{guard['name']} {guard['before']:.1f} → {guard['after']:.1f} %: {guard['status']}")


def _scores_line(scores: dict[str, Any]) -> str:
    def shown(value: float | None) -> str:
        return "undefined" if value is None else f"{value:.1f} %"

    return (
        f"WER {shown(scores['wer'])} · CER {shown(scores['cer'])} · {scores['reference_words']} words, "
        f"{scores['substitutions']} wrong, {scores['deletions']} missing, {scores['insertions']} too many · "
        f"{scores['loops']} loops"
    )


def _run_row(run: Run) -> dict[str, Any]:
    recipe, report = run.recipe, run.report
    row = {"run": str(run.folder), "model": recipe.model.name, "corpus": Path(recipe.data.corpus).name}
    if report is None:
        last = max((event["step"] for event in run.events("step")), default=0)
        return {**row, "state": "unfinished", "text": f"at step {last}"}
    text = f"{report['before']:.1f} → {report['after']:.1f} % {report['goal'].upper()}"
    return {**row, "state": report["verdict"], "text": text}


def _as_dict(finding: Any) -> dict[str, str]:
    return {name: getattr(finding, name) for name in ("severity", "file_name", "reason", "message")}


