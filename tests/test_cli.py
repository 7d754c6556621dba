"""The command line: the words of each verb, what it prints where, and the exit codes."""

import inspect
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from conftest import a_plan
from rich.console import Console
from test_job import make_corpus, make_source, sentences
from test_report import RIGHT, SETS, WRONG, system, terms

import whispertune.cli as cli
import whispertune.terminal as terminal_module
from whispertune.corpus import Corpus
from whispertune.errors import DataError, Stopped
from whispertune.recipe import Recipe, knob
from whispertune.report import compare_sets, score_sets
from whispertune.run import Event, Run, write_json
from whispertune.terminal import Terminal

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


class Said:
    """What one command did: `.code`, `.out`, `.err`, `.json`."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def error(self) -> tuple[str, str]:
        """The one line that says what is wrong, and the hint."""
        (what,) = re.findall(r"^(?:error|stopped) +(.*)$", self.err, re.M)
        return what, "".join(re.findall(r"^hint +(.*)$", self.err, re.M))


Command = Callable[..., Said]


@pytest.fixture
def whispertune(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*words: Any) -> Said:
        handlers = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        monkeypatch.setattr(sys, "argv", ["whispertune", *map(str, words)])
        capsys.readouterr()
        try:
            with pytest.raises(SystemExit) as left:
                cli.main()
        finally:
            for name, handler in handlers.items():
                signal.signal(name, handler)
        found = capsys.readouterr()
        assert "Traceback" not in found.err
        return Said(int(left.value.code or 0), found.out, found.err)

    return run


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The steps that were submitted, none of which is run."""
    steps: list[tuple[str, dict[str, Any]]] = []

    def followed(_: Any, step: str, /, **arguments: Any) -> None:
        steps.append((step, arguments))
        if "run" in arguments:  # a run that did nothing would be taken away
            Path(arguments["run"], "kept").touch()
        raise Stopped("not run")

    monkeypatch.setattr(cli, "_followed", followed)
    return steps


def verdict(before: str, after: str) -> dict[str, Any]:
    """A report as `compare_sets` makes it."""
    found = compare_sets(SETS, system(SETS, before, RIGHT), system(SETS, after, RIGHT), terms())
    return {**found, "next": "whispertune export r --format hf", "notes": []}


# -- usage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "what", "hint"),
    [
        (["trian"], "No such command 'trian'.", "whispertune --help shows the words"),
        (["train", "c", "--modle", "x"], "No such option: --modle", "whispertune train --help shows the words"),
        (["import", "c"], "Missing option '--to'.", "whispertune import --help shows the words"),
        (
            ["train", "c", "--steps", "many"],
            "Invalid value for '--steps': ",
            "whispertune train --help shows the words",
        ),
        (
            ["train", "c"],
            "which model? --model is missing",
            "for example --model tiny.en, or model = in whispertune.toml",
        ),
        (
            ["train", "--model", "tiny.en"],
            "tuned on what? CORPUS is missing",
            "whispertune train CORPUS --model tiny.en",
        ),
        (
            ["train", "c", "--model", "m", "--set", "train.learning_rat=1"],
            "there is no recipe key 'train.learning_rat'",
            "did you mean train.learning_rate?",
        ),
        (
            ["train", "c", "--model", "m", "--goal", "bleu"],
            "a recipe value does not fit: eval.goal = 'bleu'; expected wer, cer, "
            "keywords, slice:COLUMN=VALUE or unset",
            f"eval.goal: {knob('eval.goal').description}",
        ),
        (
            ["train", "c", "--model", "m", "--require", "best"],
            "--require best: only 'better' can be required",
            "",
        ),
        (
            ["train", "c", "--model", "m", "--recipe", "none.toml"],
            "cannot read the recipe none.toml: No such file or directory",
            "whispertune recipe > recipe.toml writes one to start from",
        ),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_words_that_do_not_fit(whispertune: Command, words: list[str], what: str, hint: str, as_json: bool):
    said = whispertune(*words, *(["--json"] if as_json else []))
    assert said.code == 2
    found, hinted = said.error()
    assert found.startswith(what) and hinted == hint
    if as_json:
        assert said.json == {"error": found, "hint": hint, "exit_code": 2}
    else:
        assert said.out == ""


def test_from_and_model_exclude_each_other(whispertune: Command):
    said = whispertune("train", "c", "--model", "m", "--from", "r")
    assert said.code == 2
    assert said.error() == ("--from says which model is tuned; --model says another", "give one of them")


def test_from_is_a_run(whispertune: Command):
    said = whispertune("train", "c", "--from", "r")
    assert said.code == 1 and said.error()[0] == "r is not a run: it has no recipe.toml"


def test_the_project_file(whispertune: Command, elsewhere: Path):
    for text, what in (
        ("model = ", "whispertune.toml is not TOML: "),
        ("modle = 'tiny'", "whispertune.toml has no key 'modle'"),
    ):
        (elsewhere / "whispertune.toml").write_text(text)
        said = whispertune("train", "c")
        assert said.code == 2 and said.error()[0].startswith(what)


def test_help_and_version(whispertune: Command):
    said = whispertune()
    assert said.code == 0 and "train" in said.out and "doctor" in said.out
    assert whispertune("train", "--help").code == 0
    assert re.fullmatch(r"whispertune \d+\.\d+\.\d+\S*\n", whispertune("--version").out)


# -- import and check ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["check", "train", "eval"])
def test_a_corpus_that_is_not_there(whispertune: Command, verb: str):
    words = {"check": ["none"], "train": ["none", "--model", "tiny.en"], "eval": ["tiny.en", "none"]}[verb]
    said = whispertune(verb, *words)
    assert said.code == 1
    assert said.error() == (
        "there is no folder or file none",
        "give a folder, a Parquet file or a Hub id owner/name",
    )


def test_a_folder_without_metadata(whispertune: Command, elsewhere: Path):
    make_source(elsewhere / "s", ["x"])
    (elsewhere / "s" / "metadata.csv").unlink()
    said = whispertune("import", "s", "--to", "c", "--json")
    assert said.code == 1 and "metadata" in f"{said.json['error']} {said.json['hint']}"
    assert not (elsewhere / "c").exists()


def test_import_and_again(whispertune: Command, elsewhere: Path):
    make_source(elsewhere / "s", sentences(12))
    said = whispertune("import", "s", "--to", "c")
    assert said.code == 0
    assert said.out.startswith("import    12 rows = 12 kept + 0 rejected, 0.2 min\nsplit     train ")
    assert "\nwarning   2 test clips in 2 groups (clip): with fewer than 6 there is no interval" in said.out
    assert said.out.endswith("next      whispertune check c\n") and said.err == ""
    said = whispertune("import", "s", "--to", "c")
    assert said.code == 1
    assert said.error() == ("c is a corpus already", "name another folder, or give --replace")
    assert whispertune("import", "s", "--to", "c", "--replace").code == 0


def test_import_says_with_its_exit_code_that_rows_were_rejected(whispertune: Command, elsewhere: Path):
    make_source(elsewhere / "s", sentences(12))
    (elsewhere / "s" / "c00.wav").write_bytes(b"")
    said = whispertune("import", "s", "--to", "c", "--json")
    assert said.code == 3
    found = said.json
    assert (found["rows"], found["kept"], found["rejected"]) == (12, 11, {"empty_file": 1})
    assert found["corpus"] == "c" and [f["file_name"] for f in found["findings"]] == ["c00.wav", ""]
    assert "rejected  c00.wav: the file is empty (0 bytes)" in said.err
    said = whispertune("check", "c")
    assert said.code == 3 and "reject    c00.wav  " in said.out
    assert "check     11 clips, 0.2 min; 1 rejected at import, 1 warning" in said.out


def test_check(whispertune: Command, elsewhere: Path):
    make_corpus(elsewhere / "good", sentences(12), split=["test"] * 6 + ["train"] * 5 + ["dev"])
    said = whispertune("check", "good", "--json")
    assert said.code == 0 and said.json == [] and "next      whispertune train good" in said.err
    make_corpus(elsewhere / "loud", [text.upper() for text in sentences(12)])
    said = whispertune("check", "loud")
    assert said.code == 3
    assert re.search(r"^warn +100% of the texts are all capitals", said.out, re.M)


def test_check_shows_the_first_few_of_a_kind(whispertune: Command, elsewhere: Path):
    source = make_source(elsewhere / "s", sentences(12))
    for i in range(8):
        shutil.copy(source / "c08.wav", source / f"c{i:02d}.wav")
    whispertune("import", "s", "--to", "c")
    said = whispertune("check", "c")
    assert len(re.findall(r"^warn .*the same audio as", said.out, re.M)) == 5
    assert "and 3 more of this kind (conflicting_texts): --json lists all" in said.out
    found = whispertune("check", "c", "--json").json
    assert sum(finding["reason"] == "conflicting_texts" for finding in found) == 8


# -- train: what is asked reaches the recipe ----------------------------------------------------------------


def recipe_of(asked: list[tuple[str, dict[str, Any]]]) -> Recipe:
    step, arguments = asked[-1]
    assert step == "train"
    return Run.open(Path(arguments["run"])).recipe


def test_every_option_reaches_the_recipe(whispertune: Command, elsewhere: Path, asked):
    for name in ("c", "g1", "g2"):
        make_corpus(elsewhere / name, sentences(12))
    options = {
        "--model": "tiny.en",
        "--method": "lora",
        "--goal": "cer",
        "--passes": "2",
        "--steps": "40",
        "--eval-every": "50",
        "--save-every": "100",
        "--max-minutes": "7",
        "--test-minutes": "all",
        "--language": "en",
        "--device": "cpu",
    }
    words = [word for pair in options.items() for word in pair]
    said = whispertune(
        "train", "c", *words, "--guard", "g1", "--guard", "g2", "--set", "train.seed=3", "--run", "r"
    )
    assert said.code == 130 and asked[-1][1] == {"run": "r"}
    recipe = recipe_of(asked)
    assert recipe == Recipe().with_changes(
        {
            "model.name": "tiny.en",
            "model.language": "en",
            "data.corpus": str(Path("c").absolute()),
            "data.guards": (str(Path("g1").absolute()), str(Path("g2").absolute())),
            "train.method": "lora",
            "train.passes": 2,
            "train.steps": 40,
            "train.eval_every": 50,
            "train.save_every": 100,
            "train.max_minutes": 7,
            "train.seed": 3,
            "eval.goal": "cer",
            "eval.test_minutes": "all",
            "machine.device": "cpu",
        }
    )


def test_a_recipe_file_gives_way_to_options_and_those_to_set(whispertune: Command, elsewhere: Path, asked):
    for name in ("c", "g"):
        make_corpus(elsewhere / name, sentences(12))
    make_source(elsewhere / "other", sentences(3), split=["test"] * 3)
    (elsewhere / "mine.toml").write_text(
        '[model]\nname = "base.en"\n[data]\ncorpus = "c"\nguards = ["g", "other"]\n'
        "[train]\nsteps = 1\npasses = 9.0\n"
    )
    (elsewhere / "whispertune.toml").write_text('model = "tiny"\nlanguage = "cs"\n')
    said = whispertune("train", "--recipe", "mine.toml", "--steps", "2", "--set", "train.steps=3")
    assert said.code == 130
    recipe = recipe_of(asked)
    assert (recipe.model.name, recipe.model.language) == ("base.en", "cs")
    assert (Path(recipe.data.corpus), recipe.train.steps, recipe.train.passes) == (elsewhere / "c", 3, 9.0)
    assert Path(recipe.data.guards[0]) == elsewhere / "g", "kept without --guard"
    assert Corpus.open(Path(recipe.data.guards[1])).folder.name == "other", "a source there is imported too"
    assert asked[-1][1]["run"] == "runs/c-base.en-1"


def test_project_defaults(whispertune: Command, elsewhere: Path, asked):
    make_corpus(elsewhere / "c", sentences(12))
    (elsewhere / "whispertune.toml").write_text('model = "tiny"\nlanguage = "cs"\n')
    whispertune("train", "c")
    assert (recipe_of(asked).model.name, recipe_of(asked).model.language) == ("tiny", "cs")
    whispertune("train", "c", "--model", "base", "--language", "de")
    assert (recipe_of(asked).model.name, recipe_of(asked).model.language) == ("base", "de")
    whispertune("transcribe", "tiny", "a.wav")
    assert asked[-1][1]["recipe"]["model"]["language"] == "cs"


def test_a_source_is_imported_once_and_a_language_given_later_counts(
    whispertune: Command, elsewhere: Path, asked
):
    make_source(elsewhere / "s", sentences(12))
    said = whispertune("train", "s", "--model", "tiny")
    assert "import    12 rows" in said.out
    first = recipe_of(asked)
    assert Path(first.data.corpus).name == "s" and asked[-1][1]["run"] == "runs/s-tiny-1"
    assert "import" not in whispertune("train", "s", "--model", "tiny").out
    whispertune("train", "s", "--model", "tiny", "--language", "cs")
    assert recipe_of(asked).model.language == "cs"
    assert {clip.language for clip in Corpus.open(Path(recipe_of(asked).data.corpus)).clips} == {"cs"}
    assert asked[-1][1]["run"] == "runs/s-tiny-2", "the first may be another command's, just begun"


def test_a_run_folder_that_is_taken(whispertune: Command, elsewhere: Path, asked):
    make_corpus(elsewhere / "c", sentences(12))
    words = ["train", "c", "--model", "tiny.en", "--run", "r"]
    whispertune(*words)
    run = Run(Path("r"))
    write_json(run.plan_file, a_plan())
    said = whispertune(*words, "--steps", "5")
    assert said.code == 2
    assert said.error() == (
        "r holds an unfinished run of another recipe: train.steps is None there and 5 here",
        "name another --run, or whispertune runs rm r",
    )
    run.model_folder.mkdir()
    (run.model_folder / "config.json").touch()
    write_json(run.report_file, {})
    said = whispertune(*words)
    assert said.code == 2
    assert said.error() == ("r holds a finished run", "name another --run, or whispertune runs rm r")


# -- what a command ends with -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "require", "code"),
    [
        (WRONG, RIGHT, [], 0),
        (WRONG, RIGHT, ["--require", "better"], 0),
        (WRONG, WRONG, [], 0),
        (WRONG, WRONG, ["--require", "better"], 3),
        (RIGHT, WRONG, [], 3),
    ],
)
def test_the_verdict_is_the_exit_code(
    whispertune: Command, elsewhere: Path, monkeypatch, before: str, after: str, require: list[str], code: int
):
    make_corpus(elsewhere / "c", sentences(12))
    report = verdict(before, after)
    monkeypatch.setattr(cli, "_followed", lambda *_, **__: report)
    said = whispertune("train", "c", "--model", "tiny.en", "--run", "r", *require)
    assert said.code == code
    lines = said.out.splitlines()
    assert lines[0] == f"verdict   {report['sentence']}"
    assert lines[-3:] == [
        f"guard     {report['guards'][-1]['sentence']}.",
        "report    r/report.html",
        "next      whispertune export r --format hf",
    ]
    shutil.rmtree("r")
    said = whispertune("train", "c", "--model", "tiny.en", "--run", "r", "--json", *require)
    assert said.code == code and said.json == report
    assert f"verdict   {report['sentence']}" in said.err


def test_eval_scores_or_compares(whispertune: Command, elsewhere: Path, monkeypatch):
    make_corpus(elsewhere / "c", sentences(12))
    scores = score_sets(system(SETS, WRONG, RIGHT), terms())
    monkeypatch.setattr(cli, "_followed", lambda *_, **__: scores)
    said = whispertune("eval", "tiny.en", "c")
    assert said.code == 0
    assert (
        "test      50.0 % WER · " in said.out
        and " · 120 words, 60 wrong, 0 missing, 0 too many" in said.out
    )
    assert (
        "          normaliser english" in said.out
        and "next      whispertune train c --model tiny.en" in said.out
    )
    assert whispertune("eval", "tiny.en", "c", "--json").json == scores
    for before, after, code, winner in ((WRONG, RIGHT, 0, "r"), (RIGHT, WRONG, 3, "tiny.en")):
        report = verdict(before, after)
        monkeypatch.setattr(cli, "_followed", lambda *_, report=report, **__: report)
        said = whispertune("eval", "r", "c", "--baseline", "tiny.en")
        assert said.code == code
        assert said.out.endswith(f"next      whispertune transcribe {winner} speech.wav\n")


@pytest.mark.parametrize(
    ("raised", "code", "label", "what", "hint"),
    [
        (DataError("no clips", "import some"), 1, "error", "no clips", "import some"),
        (Stopped("stopped at step 3", "go on"), 130, "stopped", "stopped at step 3", "go on"),
        (KeyboardInterrupt(), 130, "", "", ""),
        (
            OSError(28, "No space left on device", "/disk/x"),
            1,
            "error",
            "No space left on device: /disk/x",
            "free some room, or use a folder you may write to",
        ),
    ],
)
def test_what_goes_wrong_in_a_step_is_one_line(
    whispertune: Command, monkeypatch, raised: BaseException, code: int, label: str, what: str, hint: str
):
    def fails(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr(cli, "_followed", fails)
    said = whispertune("transcribe", "tiny.en", "a.wav")
    assert said.code == code and said.out == ""
    assert [line[:10].strip() for line in said.err.splitlines()] == ([label, "hint"] if label else [])
    if label:
        assert said.error() == (what, hint)


def test_a_bug_of_ours_keeps_its_traceback(whispertune: Command, monkeypatch):
    monkeypatch.setattr(cli, "_followed", lambda *_, **__: {}["no such key"])
    monkeypatch.setattr(sys, "argv", ["whispertune", "transcribe", "tiny.en", "a.wav"])
    with pytest.raises(KeyError):
        cli.main()


@pytest.mark.parametrize(
    ("words", "step", "given"),
    [
        (["train", "c", "--model", "m", "--run", "r"], "train", {"run": "r"}),
        (["eval", "m", "c"], "evaluate", {"model": "m", "corpus": "c", "baseline": None, "transcripts": None}),
        (["eval", "m", "c", "--baseline", "b"], "evaluate", {"model": "m", "corpus": "c", "baseline": "b", "transcripts": None}),
        (["compare", "m", "b", "--on-corpus", "c"], "compare", {"models": ["m", "b"], "corpus": "c", "to": "compare"}),
        (
            ["export", "done"],
            "export",
            {"run": "done", "format": "hf", "to": "done/exports/hf", "step": None, "force": False},
        ),
        (
            ["export", "done", "--format", "x", "--to", "t", "--step", "4", "--force"],
            "export",
            {"run": "done", "format": "x", "to": "t", "step": 4, "force": True},
        ),
        (["transcribe", "m", "a.wav", "b.wav"], "transcribe", {"model": "m", "files": ["a.wav", "b.wav"]}),
        (["demo", "--run", "d"], "demo", {"folder": "d"}),
    ],
)
def test_each_verb_reaches_its_step(
    whispertune: Command, elsewhere: Path, monkeypatch, words, step: str, given
):
    """Through the backend and its thread, with arguments that the step takes."""
    pytest.importorskip("torch")
    from whispertune import steps

    make_corpus(elsewhere / "c", sentences(12))
    Run.create(elsewhere / "done", Recipe())
    signature = inspect.signature(steps.STEPS[step])

    def called(**arguments: Any) -> None:
        signature.bind(**arguments)
        for name in ("emit", "should_stop", "recipe"):
            arguments.pop(name, None)
        raise DataError(f"{step} {arguments}")

    monkeypatch.setitem(steps.STEPS, step, called)
    said = whispertune(*words)
    if "corpus" in given:  # a run is asked again from other folders
        given = {**given, "corpus": str(elsewhere / given["corpus"])}
    assert said.code == 1 and said.error()[0] == f"{step} {given}"


class Hearing:
    """A backend whose `transcribe` hears a word in each file but `bad.wav`."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    def submit(self, step: str, /, **arguments: Any) -> "Hearing":
        self.files = arguments["files"]
        return self

    def events(self):
        for file in self.files:
            if file == "bad.wav":
                return
            text = {"a.wav": "One.", "b.wav": "Two."}[file]
            self.found.append({"file": file, "text": text, "segments": []})
            yield Event("transcript", {"file": file, "text": text, "of": len(self.files)})

    def result(self):
        if "bad.wav" in self.files:
            raise DataError("bad.wav is no audio")
        return self.found


def test_texts_go_to_stdout_and_nothing_else(whispertune: Command, monkeypatch):
    monkeypatch.setattr(cli, "LocalBackend", Hearing)
    found = [
        {"file": "a.wav", "text": "One.", "segments": []},
        {"file": "b.wav", "text": "Two.", "segments": []},
    ]
    assert whispertune("transcribe", "tiny.en", "a.wav").out == "One.\n"
    said = whispertune("transcribe", "tiny.en", "a.wav", "bad.wav", "b.wav")
    assert (said.code, said.out) == (1, "a.wav: One.\n"), "what was heard before is not lost"
    said = whispertune("transcribe", "tiny.en", "a.wav", "b.wav")
    assert (said.code, said.out) == (0, "a.wav: One.\nb.wav: Two.\n")
    assert said.err == "next      whispertune eval tiny.en CORPUS\n"
    assert whispertune("transcribe", "tiny.en", "a.wav", "b.wav", "--json").json == found
    said = whispertune("recipe")
    assert Recipe.from_toml(said.out) == Recipe() and said.err.startswith("next ")
    assert {"key", "kind", "default", "description"} == whispertune("recipe", "--json").json[0].keys()


def test_file_names_cannot_steer_the_terminal(whispertune: Command, monkeypatch):
    def fails(*_: Any, **__: Any) -> None:
        raise DataError("\x1b[2Jgone.wav is no audio")

    monkeypatch.setattr(cli, "_followed", fails)
    said = whispertune("transcribe", "tiny.en", "x")
    assert "\x1b" not in said.err and said.error()[0] == "\N{REPLACEMENT CHARACTER}[2Jgone.wav is no audio"


# -- runs, doctor -------------------------------------------------------------------------------------------


def test_runs(whispertune: Command, elsewhere: Path):
    said = whispertune("runs")
    assert (said.code, said.out) == (
        0,
        "runs      there are none in runs\nnext      whispertune train FOLDER --model tiny.en\n",
    )
    assert whispertune("runs", "--json").json == []
    recipe = Recipe().with_changes({"model.name": "tiny.en", "data.corpus": "data/clips"})
    for number, name in enumerate(("damaged", "begun", "done")):
        run = Run.create(Path("runs") / name, recipe)
        if name == "damaged":
            run.recipe_file.write_text("[train]\nno_such_key = 1\n")
        if name == "begun":
            write_json(run.plan_file, a_plan())
            run.events_file.write_text('{"kind": "step", "step": 4}\n')
        if name == "done":
            write_json(run.report_file, verdict(WRONG, RIGHT))
        os.utime(run.recipe_file, (number, number))
    said = whispertune("runs")
    assert [line.split("  ")[0] for line in said.out.splitlines()] == [
        "better",
        "unfinished",
        "damaged",
        "next",
    ]
    assert said.out.splitlines()[0].split(None, 1)[1] == (
        "runs/done     50.0 → 0.0 % WER" + said.out.splitlines()[0].split("% WER", 1)[1]
    )
    assert said.out.endswith("next      whispertune runs show runs/done\n")
    assert [row["state"] for row in whispertune("runs", "--json").json] == ["better", "unfinished", "damaged"]

    said = whispertune("runs", "show", "runs/done")
    assert "verdict   BETTER" in said.out and said.out.endswith(
        "next      whispertune export r --format hf\n"
    )
    assert whispertune("runs", "show", "runs/done", "--json").json["verdict"] == "better"
    said = whispertune("runs", "show", "runs/begun")
    assert "unfinished at step 4 of 9" in said.out
    assert said.out.endswith("next      whispertune train --recipe runs/begun/recipe.toml --run runs/begun\n")
    assert whispertune("runs", "show", "runs/begun", "--json").json["state"] == "unfinished"
    said = whispertune("runs", "show", "runs/damaged")
    assert said.code == 1 and said.error() == (
        "runs/damaged/recipe.toml: there is no recipe key 'train.no_such_key'",
        "put recipe.toml back as it was, or: whispertune runs rm runs/damaged",
    )
    said = whispertune("runs", "show", "runs/none")
    assert said.code == 1 and said.error()[0] == "runs/none is not a run: it has no recipe.toml"


def test_runs_rm(whispertune: Command, monkeypatch):
    run = Run.create(Path("runs/a"), Recipe())
    said = whispertune("runs", "rm", "runs/a", "--json")
    assert said.code == 2 and run.folder.exists()
    assert said.error() == ("runs/a is removed only after a yes, and nobody can be asked here", "give --yes")
    with run.locked():
        said = whispertune("runs", "rm", "runs/a", "--yes")
        assert said.code == 1 and said.error()[0] == "another process is working on runs/a"
    said = whispertune("runs", "rm", "runs/a", "--yes")
    assert (said.code, said.out) == (0, "removed   runs/a\nnext      whispertune runs\n")
    assert not run.folder.exists()


def test_doctor(whispertune: Command, monkeypatch):
    from whispertune.hardware import diagnosis
    from whispertune.hardware.diagnosis import Diagnosis

    found = [Diagnosis("ok", "2 cores")]
    monkeypatch.setattr(diagnosis, "diagnose", lambda _: found)
    said = whispertune("doctor")
    assert (said.code, said.out) == (0, "ok        2 cores\nnext      whispertune demo\n")
    found.append(Diagnosis("fault", "torch is not installed", "make setup"))
    said = whispertune("doctor")
    assert said.code == 1
    assert said.out.endswith(
        "fault     torch is not installed\n          → make setup\nnext      make setup\n"
    )
    assert whispertune("doctor", "--json").json[1]["status"] == "fault"


def test_what_is_missing_is_an_extra(whispertune: Command, monkeypatch):
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    said = whispertune("transcribe", "tiny.en", "a.wav")
    assert said.code == 1
    assert said.error() == (
        "running 'transcribe' on this machine needs the extra 'local', which is not installed here",
        "pip install 'whispertune[local]'",
    )


# -- how it looks -------------------------------------------------------------------------------------------


def shown(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> tuple[Terminal, io.StringIO]:
    held = io.StringIO()
    console = Console(file=held, width=50, force_terminal=is_terminal, color_system=None, soft_wrap=True)
    monkeypatch.setattr(terminal_module, "_console", lambda stderr: console)
    return Terminal(), held


SENTENCE = "NO MEASURABLE DIFFERENCE for these 2 clips: 100.0 → 100.0 % WER"


def test_long_lines_go_on_under_their_column(monkeypatch: pytest.MonkeyPatch):
    terminal, held = shown(monkeypatch, is_terminal=True)
    terminal.line("verdict", SENTENCE)
    terminal.next("whispertune train a/very/long/path --model tiny.en --guard another/long/path")
    assert held.getvalue() == (
        "verdict   NO MEASURABLE DIFFERENCE for these 2\n"
        "          clips: 100.0 → 100.0 % WER\n"
        "next      whispertune train a/very/long/path --model tiny.en --guard another/long/path\n"
    )


def test_nothing_is_broken_where_nobody_looks(monkeypatch: pytest.MonkeyPatch):
    terminal, held = shown(monkeypatch, is_terminal=False)
    terminal.line("verdict", SENTENCE)
    assert held.getvalue() == f"verdict   {SENTENCE}\n"


def test_without_a_terminal_it_says_now_and_then_how_far_it_is(monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    monkeypatch.setattr(terminal_module.time, "monotonic", lambda: clock[0])
    terminal, held = shown(monkeypatch, is_terminal=False)

    def events() -> Iterator[Event]:
        for second in range(0, 100, 5):
            clock[0] = float(second)
            yield Event("progress", {"label": "training", "done": second, "total": 100, "text": "loss 1.00"})
        yield Event("dev", {"step": 96, "wer": 12.34})

    terminal.show(events())
    assert held.getvalue() == (
        "training  35 of 100 · loss 1.00\n"
        "training  70 of 100 · loss 1.00\n"
        "training  step 96 of 100: dev WER 12.3 %\n"
    )


def test_a_bar_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    terminal, held = shown(monkeypatch, is_terminal=True)
    terminal.progress("starting", 0, None, "loading torch")
    terminal.line("check", "8 clips")
    terminal.progress("baseline", 1, 4, "test")
    terminal.line("warning", "beware", "warning")
    terminal.end()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", held.getvalue())
    kept = [
        line for line in plain.replace("\r", "\n").splitlines() if line.startswith(("check ", "warning "))
    ]
    assert kept == ["check     8 clips", "warning   beware"]
    assert held.getvalue().count("\x1b[?25l") == held.getvalue().count("\x1b[?25h"), (
        "the cursor is there again"
    )


# -- signals, pipes, folders that are gone -------------------------------------------------------------------


def test_a_working_folder_that_was_removed(whispertune: Command, monkeypatch):
    def gone() -> str:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "getcwd", gone)
    said = whispertune("runs")
    assert said.code == 1
    assert said.error() == (
        "the working folder cannot be used: No such file or directory",
        "cd to a folder that is there, and try again",
    )


class Asked:
    """A step that says a line, and saves and stops when it is asked to."""

    def __init__(self) -> None:
        self.cancelled = False

    def submit(self, step: str, /, **arguments: Any) -> "Asked":
        return self

    def events(self) -> Iterator[Event]:
        if not self.cancelled:
            yield Event("note", {"text": "working"})
            os.kill(os.getpid(), signal.SIGHUP)
            yield Event("note", {"text": "never said"})
        yield Event("note", {"text": "saved"})

    def cancel(self) -> None:
        self.cancelled = True

    def result(self) -> Any:
        assert self.cancelled
        raise Stopped("stopped at step 3; everything is saved", "the same command goes on")


def test_a_terminal_that_is_closed_lets_it_save(whispertune: Command, monkeypatch):
    handle = Asked()
    monkeypatch.setattr(cli, "LocalBackend", lambda: handle)
    monkeypatch.setattr(cli, "_say_nothing_more", lambda: None)
    said = whispertune("transcribe", "m", "a.wav", "--json")
    assert said.code == 130 and said.json["error"] == "stopped at step 3; everything is saved"


def test_a_reader_that_went_away_lets_it_save(whispertune: Command, monkeypatch):
    silenced = []
    handle = Asked()

    def events() -> Iterator[Event]:
        if not handle.cancelled:
            raise BrokenPipeError(32, "Broken pipe")
        yield Event("note", {"text": "saved"})

    monkeypatch.setattr(handle, "events", events)
    monkeypatch.setattr(cli, "LocalBackend", lambda: handle)
    monkeypatch.setattr(cli, "_say_nothing_more", lambda: silenced.append(True))
    assert whispertune("transcribe", "m", "a.wav").code == 130
    assert handle.cancelled and silenced == [True]


@pytest.mark.real
@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("after_s", [0.1, 0.3, 0.6, 1.0])
def test_a_signal_in_the_first_second_ends_it_without_a_traceback(name, after_s):
    words = [sys.executable, "-m", "whispertune", "transcribe", "tiny.en", __file__]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(after_s)
        process.send_signal(name)
        _, said = process.communicate(timeout=60)
    assert process.returncode in (130, -name) and "Traceback" not in said, said


@pytest.mark.real
def test_a_pipe_that_is_closed_early_is_no_error():
    words = [sys.executable, "-m", "whispertune", "recipe"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        said = process.stderr.read().decode()
    assert process.returncode == 130 and "Traceback" not in said and "BrokenPipe" not in said, said


def test_python_m_whispertune():
    done = subprocess.run(
        [sys.executable, "-m", "whispertune", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("whispertune ")


def test_words_that_cannot_be_meant(whispertune: Command) -> None:
    said = whispertune("import", "", "--to", "c")
    assert (said.code, said.error()) == (
        2,
        ("one of the words is empty", "is it a variable of the shell that is not set?"),
    )
    said = whispertune("import", "s", "--to", os.fsdecode(b"c\xff"))
    assert (said.code, said.error()) == (2, ("c\\udcff is not UTF-8", "rename the file or folder"))


def test_check_names_the_nearest_language(whispertune: Command) -> None:
    said = whispertune("check", "s", "--language", "chzech")
    assert (said.code, said.error()) == (2, ("Whisper has no language 'chzech'", "did you mean czech?"))


def test_a_project_file_that_is_none(whispertune: Command) -> None:
    Path("whispertune.toml").mkdir()
    said = whispertune("train", "s")
    assert (said.code, said.error()) == (
        2,
        ("whispertune.toml is no file", "move away what has its name here"),
    )
