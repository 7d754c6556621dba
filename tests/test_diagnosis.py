"""doctor: each finding has a status, a reason and, where something is wrong, what mends it."""

from pathlib import Path

import pytest

from whispertune.hardware import diagnosis
from whispertune.hardware.detect import Gpu, Machine
from whispertune.hardware.diagnosis import diagnose
from whispertune.hardware.torch_build import Build

PLENTY = 1 << 40


def machine(**changes) -> Machine:
    values = {"system": "Linux", "arch": "x86_64", "cores": 8, "memory_bytes": 64 << 30, "disk_free_bytes": PLENTY}
    return Machine(**{**values, **changes})


def look(monkeypatch, machine: Machine, build: str | None):
    kind = "rocm" if build and "rocm" in build else "cuda" if build and "cu1" in build else "cpu"
    found = Build(build, kind, Path("site")) if build else None
    monkeypatch.setattr(diagnosis, "installed_build", lambda python: found)
    return {d.text: d for d in diagnose(Path("python"), machine)}


STRIX = machine(gpus=(Gpu("amd", "Strix Halo", "gfx1151", 96 << 30),), kfd="ok")


@pytest.mark.parametrize(
    "box,build,status,text,cure",
    [
        (STRIX, "2.13.0+cu130", "fault", "torch 2.13.0+cu130 (CUDA build) does not fit this machine, which needs a ROCm build", "make setup replaces it"),
        (STRIX, "2.13.0+rocm7.2", "ok", "torch 2.13.0+rocm7.2 (ROCm build) fits this machine", ""),
        (machine(), None, "fault", "torch is not installed: import, check and doctor work, training on this machine does not", "make setup, which chooses the build for this machine; see docs/install.md"),
        (machine(), "2.13.0+cpu", "note", "no GPU: training runs on the processor; tiny and base are within reach", ""),
        (machine(disk_free_bytes=1 << 30), "2.13.0+cpu", "warning", "1.0 GiB free here; a run of small keeps about 5.0 GiB", "free some room"),
        (machine(memory_bytes=2 << 30), "2.13.0+cpu", "warning", "2.0 GiB of memory; tuning tiny wants 4.0 GiB", ""),
    ],
)  # fmt: skip
def test_what_is_found(monkeypatch, box, build, status, text, cure):
    found = look(monkeypatch, box, build)[text]
    assert (found.status, found.cure) == (status, cure)


def test_a_closed_device_is_a_fault_with_its_command(monkeypatch):
    closed = machine(gpus=STRIX.gpus, kfd="denied")
    faults = [d for d in look(monkeypatch, closed, "2.13.0+rocm7.2").values() if d.status == "fault"]
    assert [d.cure for d in faults] == ["sudo usermod -aG render,video $USER, then log out and in again"]


def test_a_gpu_without_kernels_is_a_note_and_not_a_refusal(monkeypatch):
    old = machine(gpus=(Gpu("amd", "Vega iGPU", "gfx902"),), kfd="ok")
    assert not [d for d in look(monkeypatch, old, "2.13.0+cpu").values() if d.status == "fault"]
