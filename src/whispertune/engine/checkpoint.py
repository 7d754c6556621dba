"""Checkpoints that survive a kill: written beside, flushed, renamed; verified before they are used.

    checkpoints/<step>/  weights.safetensors  optimizer.safetensors  state.json  manifest.json

The manifest holds the SHA-256 of each other file and is written last. `best` is a link in state, not a copy:
the best checkpoint loses its optimizer once a newer one exists.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from whispertune.errors import ModelError
from whispertune.run import flush, partial_folder, writing

KEPT = 2
"""Newest checkpoints kept whole; the second is there in case the newest does not verify."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk; `newest` and `at_step` give only those that verify."""

    step: int
    folder: Path

    @property
    def state(self) -> dict[str, Any]:
        return json.loads((self.folder / "state.json").read_text("utf-8"))

    def weights(self) -> dict[str, torch.Tensor]:
        """Trained parameters by name, on the CPU."""
        return load_file(self.folder / "weights.safetensors")

    def optimizer(self) -> dict[str, torch.Tensor]:
        return load_file(self.folder / "optimizer.safetensors")

    @property
    def can_resume(self) -> bool:
        return (self.folder / "optimizer.safetensors").is_file()


def save(
    folder: Path,
    step: int,
    weights: Mapping[str, torch.Tensor],
    optimizer: Mapping[str, torch.Tensor],
    state: Mapping[str, Any],
) -> Checkpoint:
    """Write `folder/<step>`, whole or not at all.

    Raises:
        MachineError: the disk is full or cannot be written; earlier checkpoints are untouched.
    """
    final = folder / f"{step:06d}"
    with (
        writing(folder, f"the checkpoint of step {step} to {folder}"),
        partial_folder(folder / f".{step:06d}.partial") as beside,
    ):
        save_file(_plain(weights), beside / "weights.safetensors")
        save_file(_plain(optimizer), beside / "optimizer.safetensors")
        (beside / "state.json").write_text(json.dumps(dict(state), indent=1), "utf-8")
        hashes = {file.name: _sha256(file) for file in sorted(beside.iterdir())}
        (beside / "manifest.json").write_text(json.dumps(hashes, indent=1), "utf-8")
        flush(beside)
        if final.exists():  # it did not verify, or it could not be gone on from: an earlier one was
            shutil.rmtree(final)
        beside.rename(final)
        flush(folder)
    return Checkpoint(step, final)


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that verifies and can be resumed, and what was wrong with newer ones."""
    wrong: list[str] = []
    for checkpoint in _all(folder):
        fault = damage(checkpoint)
        if fault:
            wrong.append(f"checkpoint {checkpoint.step} is damaged ({fault}) and is passed over")
        elif not checkpoint.can_resume:
            wrong.append(f"checkpoint {checkpoint.step} has no optimizer state and is passed over")
        else:
            return checkpoint, wrong
    return None, wrong


def damage(checkpoint: Checkpoint) -> str:
    """What does not verify, or an empty string."""
    try:
        hashes = json.loads((checkpoint.folder / "manifest.json").read_text("utf-8"))
        if not isinstance(hashes, dict) or set(hashes) != _HASHED:
            return "manifest.json does not name its files"
        for name, expected in hashes.items():
            if name == "optimizer.safetensors" and not checkpoint.can_resume:
                continue  # the best one gave it up
            if _sha256(checkpoint.folder / name) != expected:
                return f"{name} does not match its hash"
    except (OSError, ValueError) as error:
        return str(error)
    return ""


_HASHED = {"weights.safetensors", "optimizer.safetensors", "state.json"}


def at_step(folder: Path, step: int) -> Checkpoint | None:
    """The checkpoint of a step, its weights fit to be delivered; None where there is none.

    Raises:
        ModelError: it is damaged.
    """
    found = Checkpoint(step, folder / f"{step:06d}")
    if not found.folder.is_dir():
        return None
    if fault := damage(found):
        raise ModelError(
            f"checkpoint {step} in {folder} is damaged ({fault})",
            f"take another, or remove {folder} and run the same train command again: it trains anew",
        )
    return found


def prune(folder: Path, saved: int) -> None:
    """Keep the newest two whole and the best without its optimizer; remove the rest and half-written ones.

    Each of the two may name another best: should the newest not verify, the run goes on from the one before,
    and may end with that one's best.

    Args:
        saved: the step just saved. What lies beyond it did not verify when the run was resumed.
    """
    for beside in folder.glob(".*.partial"):
        shutil.rmtree(beside, ignore_errors=True)
    for checkpoint in _all(folder):
        if checkpoint.step > saved:
            shutil.rmtree(checkpoint.folder, ignore_errors=True)
    found = list(_all(folder))
    best = {_best_of(checkpoint) for checkpoint in found[:KEPT]}
    for checkpoint in found[KEPT:]:
        if checkpoint.step in best:
            (checkpoint.folder / "optimizer.safetensors").unlink(missing_ok=True)
        else:
            shutil.rmtree(checkpoint.folder, ignore_errors=True)


def _best_of(checkpoint: Checkpoint) -> int | None:
    try:
        return checkpoint.state["progress"]["best_step"]
    except (OSError, ValueError, LookupError, TypeError):  # `newest` passes it over
        return None


def _all(folder: Path) -> Iterator[Checkpoint]:
    if not folder.is_dir():
        return
    steps = [path for path in folder.iterdir() if path.name.isdigit() and path.is_dir()]
    for path in sorted(steps, key=lambda path: int(path.name), reverse=True):
        yield Checkpoint(int(path.name), path)


def _plain(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}


def _sha256(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
