"""A run folder: whole at any moment, never two recipes in one, and never two workers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from whispertune.errors import DataError, UsageError
from whispertune.recipe import Recipe
from whispertune.run import Event, Run, find_runs, line, read_json, warning, write_atomically, write_json

RECIPE = Recipe().with_changes({"model.name": "tiny.en", "data.corpus": "clips"})
OTHER = RECIPE.with_changes({"train.steps": 7, "data.guards": ("general",)})


@pytest.fixture
def begun(tmp_path: Path) -> Run:
    run = Run.create(tmp_path / "r", RECIPE)
    write_json(run.plan_file, {"steps": 9})
    return run


def refused(folder: Path, recipe: Recipe) -> UsageError:
    with pytest.raises(UsageError) as error:
        Run.create(folder, recipe)
    return error.value


def test_a_finished_run_is_not_touched(begun: Run):
    write_json(begun.report_file, {"verdict": "better"})
    error = refused(begun.folder, RECIPE)
    assert error.what == f"{begun.folder} holds a finished run"
    assert error.hint == f"name another --run, or whispertune runs rm {begun.folder}"


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
    (tmp_path / "recipe.toml").write_text("[train]\nsteps = 1\n")  # not even with a recipe in it
    assert "another recipe" in refused(tmp_path, RECIPE).what
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=rf"^cannot make the run folder {tmp_path}/file/r: Not a directory$"):
        Run.create(tmp_path / "file" / "r", RECIPE)


def test_not_a_run(tmp_path: Path):
    with pytest.raises(DataError) as error:
        Run.open(tmp_path)
    assert error.value.what == f"{tmp_path} is not a run: it has no recipe.toml"
    assert error.value.hint == "whispertune runs lists them"


def test_a_damaged_file_is_named(begun: Run):
    begun.baseline_file.write_text('{"model": ')
    with pytest.raises(DataError) as error:
        _ = begun.baseline
    assert error.value.what.startswith(f"{begun.baseline_file} is damaged: Expecting value")
    assert error.value.hint == "remove it and run the same command again"
    assert read_json(begun.folder / "none.json") is None


def test_the_same_recipe_goes_on(begun: Run):
    again = Run.create(begun.folder, RECIPE)
    assert again.plan == {"steps": 9} and again.recipe == RECIPE


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
        write_json(run.plan_file, {})
        return run

    first = begin(RECIPE)
    assert first.name == "clips-tiny.en-1"
    assert begin(RECIPE).name == "clips-tiny.en-1", "an unfinished one goes on"
    assert begin(OTHER).name == "clips-tiny.en-2", "one of another recipe is left alone"
    write_json(first.report_file, {})
    assert begin(RECIPE).name == "clips-tiny.en-3", "a finished one is left alone"
    assert begin(OTHER).name == "clips-tiny.en-2"


def test_files_are_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_json(tmp_path / "a.json", {"ž": 1})
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == {"ž": 1}

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_json(tmp_path / "a.json", {"ž": 2})
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == {"ž": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


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
