"""Where the arithmetic runs and in which precision: measured, not assumed."""

import platform
import time
from dataclasses import dataclass
from importlib.metadata import version

import torch

import whispertune
from whispertune.errors import MachineError
from whispertune.hardware.detect import Machine, describe, detect
from whispertune.hardware.torch_build import Trouble, gpu_trouble, usable
from whispertune.plan import MachineFacts
from whispertune.recipe import MachineSection

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_TOLERANCE = {"bf16": 2e-2, "fp16": 4e-3}
"""Largest relative error of a product: a few units in the last place (2^-8, 2^-11) of the format."""
PROBE_S = 0.3
"""A product that takes longer is not made larger: a CPU without bf16 units runs bf16 400 times slower."""


@dataclass(frozen=True, slots=True)
class Precision:
    """A chosen format, why, and what each one reached in TFLOP/s (None: wrong numbers, or none at all)."""

    name: str
    reason: str
    tflops: dict[str, float | None]


def pick_device(requested: str, machine: Machine) -> tuple[torch.device, str]:
    """The device and the reason.

    Raises:
        MachineError: it is not usable; with `auto`, when there is a GPU that torch cannot use: never a silent
            CPU.
    """
    if requested == "cpu":
        return torch.device("cpu"), "as asked"
    has = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    build = f"torch {torch.__version__}"
    if requested != "auto":
        if not has[requested]:
            raise MachineError(
                f"--device {requested}: {build} sees no such device", "whispertune doctor says why"
            )
        return torch.device(requested), "as asked"
    if has["cuda"]:
        return torch.device("cuda"), f"{torch.cuda.get_device_name(0)}, {build}"
    if has["mps"]:
        return torch.device("mps"), f"Apple GPU, {build}"
    trouble = gpu_trouble(machine)
    if trouble is None and (usable(machine) is not None or machine.of("apple")):
        cards = ", ".join(str(gpu) for gpu in machine.gpus)
        trouble = Trouble(
            f"{cards} is here, and {build} cannot use it", "whispertune doctor says how to mend it"
        )
    if trouble is not None and trouble.mendable:
        raise MachineError(
            f"{trouble.what}; training would run on the CPU",
            f"{trouble.cure}; or --device cpu, if the CPU is meant",
        )
    if trouble is not None:
        return torch.device("cpu"), trouble.what
    return torch.device("cpu"), "there is no GPU"


def probe_precision(device: torch.device, requested: str) -> Precision:
    """Time the matrix product in each format, from 256² on, and check its numbers against float32.

    Raises:
        MachineError: fp16 asked for on a CPU; fp32, or the asked format, gives wrong numbers here.
    """
    if device.type == "cpu" and requested == "fp16":
        raise MachineError("fp16 cannot train on a CPU", "leave machine.precision=auto: it takes fp32 here")
    formats = ["fp32", "bf16", "fp16"] if device.type == "cuda" else ["fp32", "bf16"]
    tflops = {name: _speed(device, name) for name in formats}
    if tflops["fp32"] is None:
        # Everything rests on it: weights, optimizer and features are fp32 whatever the products are.
        raise MachineError(
            f"this {device.type} device multiplies matrices wrongly or not at all ({_figures(tflops)})",
            "whispertune doctor says what torch has kernels for; or --device cpu",
        )
    if requested != "auto":
        if tflops.get(requested) is None:
            raise MachineError(
                f"{requested} does not work on this {device.type} device ({_figures(tflops)})",
                "use machine.precision=fp32",
            )
        return Precision(requested, f"as asked ({_figures(tflops)})", tflops)
    right = {name: speed for name, speed in tflops.items() if speed is not None}
    # bf16 keeps fp32's range and needs no scaler, so fp16 has to be clearly faster to be chosen.
    best = max(right, key=lambda name: right[name] * (0.7 if name == "fp16" else 1.0))
    return Precision(best, _figures(tflops), tflops)


def _figures(tflops: dict[str, float | None]) -> str:
    def shown(speed: float | None) -> str:
        if speed is None:
            return "wrong or no numbers"
        if speed >= 1:
            return f"{speed:.1f} TFLOP/s"
        return f"{speed * 1000:.0f} GFLOP/s" if speed >= 0.01 else f"{speed * 1000:.2g} GFLOP/s"

    return ", ".join(f"{name} {shown(speed)}" for name, speed in tflops.items())


def _speed(device: torch.device, name: str) -> float | None:
    """TFLOP/s of the largest product that stays under `PROBE_S`, or None where it is not right.

    A card that the build has no kernels for, or a format that a device lacks, raises in torch: None as well.
    """
    try:
        return _measured(device, name)
    except (RuntimeError, TypeError):
        return None


def _measured(device: torch.device, name: str) -> float | None:
    size, speed = 256, 0.0
    while size <= 4096:
        generator = torch.Generator().manual_seed(size)
        left, right = (torch.randn(size, size, generator=generator).to(device) for _ in range(2))
        a, b = left.to(_DTYPES[name]), right.to(_DTYPES[name])
        product = a @ b  # also warms up
        if not _is_right(product, left, right, name):
            return None
        _wait(device)
        begin = time.perf_counter()
        a @ b
        _wait(device)
        seconds = max(1e-9, time.perf_counter() - begin)
        speed = max(speed, 2 * size**3 / seconds / 1e12)
        if seconds * 8 > PROBE_S:
            break
        size *= 2
    return speed


def _is_right(product: torch.Tensor, left: torch.Tensor, right: torch.Tensor, name: str) -> bool:
    if name == "fp32":
        rows = left[:8].cpu().double() @ right.cpu().double()
        tolerance = 1e-3  # TF32 and the like count as fp32
    else:
        rows = (left[:8] @ right).cpu().double()
        tolerance = _TOLERANCE[name]
    error = (product[:8].cpu().double() - rows).norm() / rows.norm()
    return bool(torch.isfinite(product).all()) and float(error) < tolerance


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def machine_facts(section: MachineSection) -> MachineFacts:
    """Where a run will be trained: device, precision and threads, chosen once and then frozen in its plan.

    Raises:
        MachineError: as `pick_device` and `probe_precision` say.
    """
    machine = detect()
    threads = section.threads or machine.cores
    torch.set_num_threads(threads)
    device, why = pick_device(section.device, machine)
    precision = probe_precision(device, section.precision)
    memory = machine.memory_bytes
    if device.type == "cuda":
        memory = torch.cuda.mem_get_info(device)[0]
    return MachineFacts(
        device=device.type,
        device_reason=why,
        precision=precision.name,
        precision_reason=precision.reason,
        memory_bytes=memory,
        threads=threads,
        versions=versions(),
        description=describe(machine),
    )


def versions() -> dict[str, str]:
    """Of what can change a run's numbers."""
    return {
        "whispertune": whispertune.__version__,
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "transformers", "peft", "numpy")},
    }
