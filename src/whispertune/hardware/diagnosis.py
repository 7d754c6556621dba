"""`doctor`: what this machine shows, whether training here would run as asked, and the command that mends it.

Standard library only: it says the same on a machine where nothing else is installed yet.
"""

import importlib.util
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from whispertune.hardware.detect import Machine, detect, gib
from whispertune.hardware.torch_build import Build, fits, gpu_trouble, installed_build, usable

LOW_DISK_BYTES = 5 << 30
"""A run of small keeps about 4 GB: two whole checkpoints, the best one and the delivered model."""
LOW_MEMORY_BYTES = 4 << 30
"""Tuning tiny with one window at a time takes about 2 GB besides what the system needs."""
LOCAL_PACKAGES = ("transformers", "peft", "safetensors", "tensorboard")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at."""

    status: Literal["ok", "note", "warning", "fault"]
    text: str
    cure: str = ""
    """The command, or the words, that mend it."""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def diagnose(python: Path, machine: Machine | None = None) -> list[Diagnosis]:
    """Look at the machine and at what `python` has installed; `fault` where training here would not run."""
    machine = machine or detect()
    return [*_hardware(machine), *_torch(machine, installed_build(python)), *_packages(), *_room(machine)]


def _hardware(machine: Machine) -> list[Diagnosis]:
    found = [
        Diagnosis(
            "ok",
            f"{machine.cores} cores, {gib(machine.memory_bytes)} of memory, {machine.system} {machine.arch}",
        )
    ]
    found += [Diagnosis("ok", f"GPU: {gpu}") for gpu in machine.gpus]
    if not machine.gpus:
        found.append(
            Diagnosis("note", "no GPU: training runs on the processor; tiny and base are within reach")
        )
    trouble = gpu_trouble(machine)
    if trouble is not None:
        found.append(Diagnosis("fault" if trouble.mendable else "note", trouble.what, trouble.cure))
    if machine.engines:
        found.append(Diagnosis("ok", f"container engine: {', '.join(machine.engines)}"))
    return found


def _torch(machine: Machine, build: Build | None) -> list[Diagnosis]:
    if build is None:
        return [
            Diagnosis(
                "fault",
                "torch is not installed: import, check and doctor work, training on this machine does not",
                "make setup, which chooses the build for this machine; see docs/install.md",
            )
        ]
    if not fits(machine, build):
        wanted = {"cuda": "a CUDA build", "rocm": "a ROCm build", None: "another build"}[usable(machine)]
        return [
            Diagnosis(
                "fault", f"{build} does not fit this machine, which needs {wanted}", "make setup replaces it"
            )
        ]
    return [Diagnosis("ok", f"{build} fits this machine")]


def _packages() -> list[Diagnosis]:
    missing = [name for name in LOCAL_PACKAGES if importlib.util.find_spec(name) is None]
    if not missing:
        return []
    return [Diagnosis("fault", f"not installed: {', '.join(missing)}", "pip install 'whispertune[local]'")]


def _room(machine: Machine) -> list[Diagnosis]:
    found = []
    if machine.disk_free_bytes < LOW_DISK_BYTES:
        free, need = gib(machine.disk_free_bytes), gib(LOW_DISK_BYTES)
        found.append(
            Diagnosis("warning", f"{free} free here; a run of small keeps about {need}", "free some room")
        )
    if machine.memory_bytes < LOW_MEMORY_BYTES:
        have, need = gib(machine.memory_bytes), gib(LOW_MEMORY_BYTES)
        found.append(Diagnosis("warning", f"{have} of memory; tuning tiny wants {need}"))
    return found
