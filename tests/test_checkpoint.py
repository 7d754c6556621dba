"""Checkpoints: whole or not there, verified before they are used."""

import json
import resource
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from whispertune.engine import checkpoint as checkpoints
from whispertune.errors import MachineError, ModelError


def save(folder: Path, step: int, best: int | None = None) -> checkpoints.Checkpoint:
    weights = {"a.weight": torch.full((100, 100), float(step)), "b": torch.arange(3.0)}
    optimizer = {"a.weight/step": torch.tensor(float(step)), "a.weight/exp_avg": torch.ones(100, 100)}
    return checkpoints.save(folder, step, weights, optimizer, {"progress": {"step": step, "best_step": best}})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


# --- errors first


def test_a_full_disk_leaves_the_earlier_checkpoint_as_it_is(tmp_path):
    folder = tmp_path / "checkpoints"
    save(folder, 1)
    before = {path: path.read_bytes() for path in (folder / "000001").iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(MachineError) as error:
            save(folder, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.value.what.startswith(f"cannot write the checkpoint of step 2 to {folder}: ")
    assert error.value.what.endswith(" GB free)")
    assert error.value.hint == (
        "free some room, or use a folder you may write to; the same command goes on with what was done"
    )
    assert names(folder) == ["000001"]
    assert {path: path.read_bytes() for path in (folder / "000001").iterdir()} == before


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(MachineError, match="cannot write the checkpoint of step 1 to "):
        save(tmp_path / "checkpoints", 1)


def test_a_bug_of_ours_is_not_called_a_full_disk(tmp_path):
    with pytest.raises(TypeError):
        checkpoints.save(tmp_path, 1, {}, {}, {"progress": object()})
    assert names(tmp_path) == []


@pytest.mark.parametrize("change", [cut, flip, Path.unlink])
@pytest.mark.parametrize(
    "name", ["weights.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]
)
def test_whatever_is_wrong_with_the_newest_the_one_before_is_used(tmp_path, name, change):
    for step in (1, 2):
        save(tmp_path, step)
    change(tmp_path / "000002" / name)
    found, wrong = checkpoints.newest(tmp_path)
    assert found is not None and found.step == 1
    assert len(wrong) == 1 and wrong[0].startswith("checkpoint 2 ") and wrong[0].endswith(" is passed over")
    if change is not Path.unlink and name != "manifest.json":
        assert wrong == [f"checkpoint 2 is damaged ({name} does not match its hash) and is passed over"]
    if (name, change) == ("optimizer.safetensors", Path.unlink):
        assert wrong == ["checkpoint 2 has no optimizer state and is passed over"]


def test_nothing_usable_is_none_and_says_why(tmp_path):
    assert checkpoints.newest(tmp_path / "none") == (None, [])
    save(tmp_path, 1)
    cut(tmp_path / "000001" / "weights.safetensors")
    found, wrong = checkpoints.newest(tmp_path)
    assert found is None and len(wrong) == 1


def test_a_damaged_checkpoint_is_never_delivered(tmp_path):
    assert checkpoints.at_step(tmp_path, 3) is None
    save(tmp_path, 3)
    flip(tmp_path / "000003" / "weights.safetensors")
    with pytest.raises(ModelError) as error:
        checkpoints.at_step(tmp_path, 3)
    assert error.value.what == (
        f"checkpoint 3 in {tmp_path} is damaged (weights.safetensors does not match its hash)"
    )
    assert error.value.hint == (
        f"take another, or remove {tmp_path} and run the same train command again: it trains anew"
    )


@pytest.mark.parametrize("content", ["{}", "[]", "null", '{"../x": "y"}'])
def test_a_manifest_must_name_the_files(tmp_path, content):
    for step in (1, 2):
        save(tmp_path, step)
    (tmp_path / "000002" / "manifest.json").write_text(content)
    found, wrong = checkpoints.newest(tmp_path)
    assert found.step == 1
    assert wrong == ["checkpoint 2 is damaged (manifest.json does not name its files) and is passed over"]
    (tmp_path / "000001" / "state.json").write_text("[]")
    checkpoints.prune(tmp_path, 2)


# --- what is written


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    save(tmp_path, 7)
    assert names(tmp_path) == ["000007"]
    assert names(tmp_path / "000007") == [
        "manifest.json",
        "optimizer.safetensors",
        "state.json",
        "weights.safetensors",
    ]
    found, wrong = checkpoints.newest(tmp_path)
    assert found is not None and not wrong and found.step == 7
    assert found.state == {"progress": {"step": 7, "best_step": None}}
    assert torch.equal(found.weights()["a.weight"], torch.full((100, 100), 7.0))
    assert found.optimizer()["a.weight/step"].shape == ()
    manifest = json.loads((tmp_path / "000007" / "manifest.json").read_text())
    assert sorted(manifest) == ["optimizer.safetensors", "state.json", "weights.safetensors"]


def test_a_checkpoint_of_the_same_step_takes_the_damaged_ones_place(tmp_path):
    save(tmp_path, 1)
    cut(tmp_path / "000001" / "weights.safetensors")
    save(tmp_path, 1)
    assert checkpoints.newest(tmp_path)[1] == []


def test_a_half_written_one_is_no_checkpoint(tmp_path):
    save(tmp_path, 1)
    (tmp_path / ".000002.partial").mkdir()
    (tmp_path / ".000002.partial" / "weights.safetensors").write_bytes(b"half")
    assert checkpoints.newest(tmp_path)[0].step == 1
    checkpoints.prune(tmp_path, 1)
    assert names(tmp_path) == ["000001"]


def test_the_newest_two_stay_whole_and_the_best_gives_up_its_optimizer(tmp_path):
    for step in (5, 10, 15, 20):
        save(tmp_path, step, best=5)
    checkpoints.prune(tmp_path, 20)
    assert names(tmp_path) == ["000005", "000015", "000020"]
    best = checkpoints.at_step(tmp_path, 5)
    assert best is not None and not best.can_resume and checkpoints.damage(best) == ""
    assert checkpoints.newest(tmp_path)[0].step == 20
    save(tmp_path, 25, best=25)
    save(tmp_path, 30, best=25)
    checkpoints.prune(tmp_path, 30)
    assert names(tmp_path) == ["000025", "000030"]
    assert checkpoints.at_step(tmp_path, 25).can_resume


def test_the_best_that_the_checkpoint_before_knew_is_kept_too(tmp_path):
    for step, best in ((5, 5), (10, 5), (15, 15)):
        save(tmp_path, step, best)
    checkpoints.prune(tmp_path, 15)
    assert names(tmp_path) == ["000005", "000010", "000015"]
    flip(tmp_path / "000015" / "weights.safetensors")
    found, _ = checkpoints.newest(tmp_path)
    assert checkpoints.at_step(tmp_path, found.state["progress"]["best_step"]).step == 5
    # One that cannot be read names none, and stops nothing.
    (tmp_path / "000010" / "state.json").write_text("{")
    checkpoints.prune(tmp_path, 15)
    assert names(tmp_path) == ["000010", "000015"]


def test_steps_sort_as_numbers_past_a_million(tmp_path):
    for step in (999_999, 1_000_000):
        save(tmp_path, step)
    assert checkpoints.newest(tmp_path)[0].step == 1_000_000


def test_one_that_did_not_verify_does_not_count_as_one_of_the_two(tmp_path):
    for step in (4, 6):
        save(tmp_path, step)
    cut(tmp_path / "000006" / "weights.safetensors")
    save(tmp_path, 5)  # resumed from 4
    checkpoints.prune(tmp_path, 5)
    assert names(tmp_path) == ["000004", "000005"]
