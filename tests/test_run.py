"""A run folder: whole at any moment, never two recipes in one, and never two workers."""

import json
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from conftest import a_plan

from whispertune.errors import DataError, MachineError, UsageError
from whispertune.recipe import Recipe
from whispertune.run import Event, Run, find_runs, line, read_json, warning, write_atomically, write_json

RECIPE = Recipe().with_changes({"model.name": "tiny.en", "data.corpus": "clips"})
Free = namedtuple("Free", "free")
OTHER = RECIPE.with_changes({"train.steps": 7, "data.guards": ("general",)})


@pytest.fixture
def begun(tmp_path: Path) -> Run:
    run = Run.create(tmp_path / "r", RECIPE)
    write_json(run.plan_file, a_plan())
    return run


def finish(run: Run) -> None:
    run.model_folder.mkdir()
    (run.model_folder / "config.json").write_text("{}")
    run.report_file.write_text("{}")


def refused(folder: Path, recipe: Recipe) -> UsageError:
    with pytest.raises(UsageError) as error:
        Run.create(folder, recipe)
    return error.value


def test_a_finished_run_is_not_touched(begun: Run):
    finish(begun)
    error = refused(begun.folder, RECIPE)
    assert error.what == f"{begun.folder} holds a finished run"
    assert error.hint == f"name another --run, or whispertune runs rm {begun.folder}"
    (begun.model_folder / "config.json").unlink()
    assert not Run.create(begun.folder, RECIPE).is_finished, "a model that is gone is made anew"


def test_an_unfinished_run_of_another_recipe_is_not_touched(begun: Run):
    error = refused(begun.folder, OTHER)
    assert error.what == (
        f"{begun.folder} holds an unfinished run of another recipe: "
        "data.guards is None there and ('general',) here; train.steps is None there and 7 here"
    )
    assert error.hint == f"name another --run, or whispertune runs rm {begun.folder}"
    assert begun.recipe == RECIPE


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    error = refused(tmp_path, RECIPE)
    assert error.what == f"{tmp_path} is not empty and is not a run"
    assert error.hint == "name another folder with --run"
    write_atomically(tmp_path / "recipe.toml", OTHER.to_toml())  # not even with a recipe in it
    assert "another recipe" in refused(tmp_path, RECIPE).what
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for folder, why in ((tmp_path / "file" / "r", "Not a directory"), (tmp_path / "file", "File exists")):
        with pytest.raises(DataError, match=rf"^cannot make the run folder {folder}: {why}$") as error:
            Run.create(folder, RECIPE)
        assert error.value.hint == "name another folder with --run"


def test_not_a_run(tmp_path: Path):
    with pytest.raises(DataError) as error:
        Run.open(tmp_path)
    assert error.value.what == f"{tmp_path} is not a run: it has no recipe.toml"
    assert error.value.hint == "whispertune runs lists them"


ROW = {"id": "a", "language": "en", "reference": "b"}


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("baseline.json", "", "Expecting value: line 1 column 1 (char 0)"),
        ("baseline.json", '{"model": ', "Expecting value: line 1 column 11 (char 10)"),
        ("baseline.json", "[]", "all of it: Input should be an object"),
        ("baseline.json", '{"model": {}, "decode": {}}', "sets: Field required"),
        (
            "evaluation.json",
            json.dumps({"model": {}, "decode": {}, "sets": {"test": [ROW]}}),
            "sets.test.0.hypothesis: Field required",
        ),
        ("alternatives.json", '{"base.en": 3}', "base.en: Input should be an object"),
        ("plan.json", json.dumps(a_plan(steps="9")), "steps: Input should be a valid integer"),
        ("labels.json", '{"a": null}', "a: Input should be a valid string"),
        ("guards.json", '{"guards": "a"}', "guards: Input should be a valid array"),
        ("tradeoff.json", '{"curve": [{}]}', "curve.0.share: Field required"),
        ("report.json", "{}", "verdict: Field required"),
        ("report.json", '{"verdict": "good"}', "verdict: Input should be 'better', 'no_difference' or 'worse'"),
        ("other.json", "3", "all of it: Input should be an object"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: str, fault: str):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as error:
        read_json(tmp_path / name)
    assert error.value.what == f"{tmp_path / name} is damaged: {fault}"
    assert error.value.hint == "remove it and run the same train command again: it is made anew"


def test_no_file_is_no_damage_and_a_folder_is(begun: Run):
    assert begun.baseline is None
    begun.baseline_file.mkdir()
    with pytest.raises(DataError, match=rf"^{begun.baseline_file} is damaged: Is a directory$"):
        _ = begun.baseline


def test_a_damaged_recipe_is_named_and_stands_in_nobodys_way(tmp_path: Path):
    base = tmp_path / "r"
    run = Run.numbered(base, RECIPE)
    write_json(run.plan_file, a_plan())
    for content, what in (
        ("", f"{run.recipe_file} is damaged: it names no model or no corpus"),
        ("[train]\nstep", f"{run.recipe_file} is not TOML: "),
    ):
        run.recipe_file.write_text(content)
        with pytest.raises(DataError) as error:
            _ = run.recipe
        assert error.value.what.startswith(what)
        assert error.value.hint == f"put recipe.toml back as it was, or: whispertune runs rm {run.folder}"
    assert Run.numbered(base, RECIPE).name == "r-2"


def test_what_a_kill_left_half_written_is_nothing(tmp_path: Path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / ".recipe.toml.partial").write_text("[mod")
    run = Run.create(tmp_path / "r", RECIPE)
    run.discard_if_nothing_was_done()
    assert not run.folder.exists()


def test_a_removal_that_was_killed_can_be_said_again(begun: Run, monkeypatch: pytest.MonkeyPatch):
    finish(begun)
    begun.checkpoints.mkdir()

    def killed(folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            begun.remove()
    Run.open(begun.folder).remove()
    assert not begun.folder.exists()


def test_the_same_recipe_goes_on(begun: Run):
    again = Run.create(begun.folder, RECIPE)
    assert again.plan == a_plan() and again.recipe == RECIPE


def test_a_run_that_failed_before_its_plan_gives_way(tmp_path: Path):
    run = Run.create(tmp_path / "r", RECIPE)
    run.recorder()(warning("there is no model 'tinny'"))
    write_atomically(run.folder / "left_out.txt", "")
    with run.locked():
        pass
    assert Run.create(tmp_path / "r", OTHER).recipe == OTHER


def test_numbered_runs(tmp_path: Path):
    base = tmp_path / "runs" / "clips-tiny.en"

    def begin(recipe: Recipe) -> Run:
        run = Run.numbered(base, recipe)
        write_json(run.plan_file, a_plan())
        return run

    first = begin(RECIPE)
    assert first.name == "clips-tiny.en-1"
    assert begin(RECIPE).name == "clips-tiny.en-1", "an unfinished one goes on"
    assert begin(OTHER).name == "clips-tiny.en-2", "one of another recipe is left alone"
    finish(first)
    assert begin(RECIPE).name == "clips-tiny.en-3", "a finished one is left alone"
    assert begin(OTHER).name == "clips-tiny.en-2"


def test_files_are_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_json(tmp_path / "a.json", {"ž": 1})
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == {"ž": 1}

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError) as error:
        write_json(tmp_path / "a.json", {"ž": 2})
    assert str(error.value) == f"[Errno 28] No space left on device: '{tmp_path}/a.json'"
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == {"ž": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_history_that_cannot_be_written(begun: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: Free(0))
    begun.events_file.mkdir()
    with pytest.raises(MachineError) as error:
        begun.recorder()(warning("hot"))
    assert error.value.what == f"cannot write {begun.events_file}: Is a directory (0.0 GB free)"
    assert error.value.hint == (
        "free some room, or use a folder you may write to; the same command goes on with what was done"
    )


def test_events_are_kept_and_handed_on(begun: Run):
    seen: list[Event] = []
    emit = begun.recorder(seen.append)
    emit(line("check", "8 clips"))
    emit(Event("progress", {"label": "baseline", "done": 1, "total": 2}))
    emit(Event("step", {"step": 1, "loss": 2.5}))
    with begun.events_file.open("a") as file:
        file.write('{"at": 1, "kind": "st')  # a kill in the middle of a line
    assert [event.kind for event in seen] == ["line", "progress", "step"] and seen[0].at > 0
    assert [event["kind"] for event in begun.events()] == ["line", "step"], "a bar is no history"
    assert [event["loss"] for event in begun.events("step")] == [2.5]
    assert list(Run(begun.folder / "none").events()) == []


def test_a_line_cut_by_a_kill_does_not_swallow_the_next(begun: Run):
    with begun.events_file.open("a") as file:
        file.write('{"at": 1, "kind": "st')
    begun.recorder()(Event("step", {"step": 2}))
    assert [event["step"] for event in begun.events("step")] == [2]


def test_one_process_at_a_time(begun: Run):
    code = (
        "import sys; from pathlib import Path; from whispertune.run import Run\n"
        "try:\n    with Run(Path(sys.argv[1])).locked(): print('free')\n"
        "except Exception as error: print(error.what, '|', error.hint)\n"
    )

    def other() -> str:
        command = [sys.executable, "-c", code, str(begun.folder)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    with begun.locked():
        assert other() == (
            f"another process is working on {begun.folder} | wait for it, or name another --run"
        )
    assert other() == "free"


def test_find_runs_newest_first(tmp_path: Path):
    assert find_runs(tmp_path / "none") == []
    for number, name in enumerate(("b", "a", "c")):
        run = Run.create(tmp_path / name, RECIPE)
        os.utime(run.recipe_file, (number, number))
    (tmp_path / "not-a-run").mkdir()
    assert [run.name for run in find_runs(tmp_path)] == ["c", "a", "b"]
    find_runs(tmp_path)[0].remove()
    assert [run.name for run in find_runs(tmp_path)] == ["a", "b"]
