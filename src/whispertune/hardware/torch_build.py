"""Which build of PyTorch fits this machine, which one is installed, and why a GPU cannot be used.

PyTorch comes in builds that share one name: for CUDA, for ROCm, for the processor alone. Whichever package
asks for torch first decides, and on Linux the registry's answer is a CUDA build, which computes on an AMD
machine without an error, on its processor. So the build is chosen here, by its full version, before anything
else is installed.
"""

import ast
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from whispertune.errors import MachineError
from whispertune.hardware.detect import Gpu, Machine

Kind = Literal["cuda", "rocm", "cpu"]

TORCH_VERSION = "2.13.0"
"""The release that every index below carries and that we test with."""
OLDEST_TORCH = (2, 9)
"""As pyproject.toml has it."""
INDEX = "https://download.pytorch.org/whl/"
CUDA_NEW, CUDA_OLD, ROCM, CPU = "cu130", "cu126", "rocm7.2", "cpu"
"""The builds of PyTorch 2.13 (its RELEASE.md; CUDA 12.8 went with 2.12)."""

# Compute capabilities with kernels in the two CUDA builds, and the oldest Linux driver each runs on
# (pytorch/pytorch issue 190355; CUDA's minor-version compatibility: 525 for 12.x, 580 for 13.x).
CUDA_NEW_SINCE, CUDA_NEW_DRIVER = 75, 580
CUDA_OLD_SINCE, CUDA_OLD_UNTIL, CUDA_OLD_DRIVER = 50, 90, 525

ROCM_ARCHS = frozenset(
    {
        *("gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1101"),
        *("gfx1102", "gfx1150", "gfx1151", "gfx1200", "gfx1201"),
    }
)
"""Architectures with kernels in the rocm7.2 build (pytorch/pytorch, .ci/docker/manywheel/build.sh)."""

ROCM_IMAGE = "docker.io/rocm/pytorch:rocm7.2_ubuntu24.04_py3.12_pytorch_release_2.9.1"
"""AMD's own image: torch 2.9.1 for ROCm 7.2 is in it."""

# Megabytes fetched, libraries included, rounded up: what to announce, not what to rely on.
CUDA_MB, ROCM_MB, CPU_MB, MACOS_MB = 2_600, 5_200, 200, 120


@dataclass(frozen=True, slots=True)
class Build:
    """A torch that is installed."""

    version: str
    """`2.13.0+cpu`"""
    kind: Kind
    folder: Path
    """The site-packages it lies in."""

    def __str__(self) -> str:
        label = {"cuda": "CUDA", "rocm": "ROCm", "cpu": "CPU"}[self.kind]
        return f"torch {self.version} ({label} build)"


@dataclass(frozen=True, slots=True)
class TorchChoice:
    kind: Kind
    pip_args: tuple[str, ...]
    """What follows `pip install`."""
    reason: str
    download_mb: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """A GPU that is here and cannot be used."""

    what: str
    cure: str
    mendable: bool = True
    """False: no build has kernels for it, so the processor is the right choice and not a silent fallback."""


def usable(machine: Machine) -> Kind | None:
    """The GPU build that this machine can use; None where it computes on the processor (or on Apple's MPS).

    An NVIDIA card goes before an AMD one. A closed /dev/kfd or an old driver counts as usable: mended without
    another build.
    """
    if machine.nvidia_driver is not None and any(
        not gpu.arch or _capability(gpu) >= CUDA_OLD_SINCE for gpu in machine.of("nvidia")
    ):
        return "cuda"
    if machine.kfd != "missing" and any(gpu.arch in ROCM_ARCHS for gpu in machine.of("amd")):
        return "rocm"
    return None


def choose(machine: Machine, index_reachable: Callable[[str], bool]) -> TorchChoice:
    """The build to install.

    The full version (`2.13.0+rocm7.2`) is asked for, so no other index or folder of wheels that pip also
    looks into can hand out another build. Raises MachineError where no build can be had, or only a wrong one.
    """
    if machine.system == "Darwin":
        return _choose_for_macos(machine)
    kind = usable(machine)
    if kind == "cuda":
        return _choose_cuda(machine, index_reachable)
    if kind == "rocm":
        return _choose_rocm(machine, index_reachable)

    reason = _why_cpu(machine)
    if index_reachable(INDEX + CPU):
        return TorchChoice("cpu", _from_index(CPU), reason, CPU_MB)
    if machine.of("amd"):
        raise MachineError(
            f"{INDEX}{CPU} cannot be reached, and the package registry's torch for Linux is a CUDA build, "
            "which has no place on a machine with an AMD GPU",
            f"let this machine reach {INDEX}{CPU}, or put a CPU build of torch {TORCH_VERSION} into .venv "
            "yourself: it will be kept",
        )
    return TorchChoice(
        "cpu",
        (f"torch=={TORCH_VERSION}",),
        f"{reason}; {INDEX}{CPU} cannot be reached, so it comes from the package registry, whose build for "
        "Linux may carry CUDA: larger, and of no harm here",
        CUDA_MB if machine.arch == "x86_64" else CPU_MB,
    )


def fits(machine: Machine, build: Build) -> bool:
    """Whether a torch that is there can stay: new enough, and built for what this machine computes on."""
    major, minor = build.version.split(".")[:2]
    if (int(major), int(minor)) < OLDEST_TORCH:
        return False
    if machine.system == "Darwin":
        return True
    wanted = usable(machine)
    if wanted:
        return build.kind == wanted
    # Only the processor computes, which any build can do; but a CUDA build beside an AMD card is the trap.
    return not (build.kind == "cuda" and machine.of("amd"))


def installed_build(python: Path | str) -> Build | None:
    """The torch that `python` would import, read from its files; None where there is none.

    Importing torch takes seconds, and fails or hangs under just those broken drivers that we look for.
    """
    try:
        found = subprocess.run(
            [
                str(python),
                "-I",
                "-c",
                "import importlib.util as u; s = u.find_spec('torch'); print(s and s.origin or '')",
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    if not found or not (version_file := Path(found).with_name("version.py")).is_file():
        return None
    values = {}
    for node in ast.parse(version_file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                values[target.id] = node.value.value
    version = values.get("__version__")
    if not version:
        return None
    kind: Kind = "rocm" if values.get("hip") else "cuda" if values.get("cuda") else "cpu"
    return Build(str(version), kind, Path(found).parent.parent)


def gpu_trouble(machine: Machine) -> Trouble | None:
    """Why no GPU can be used although one is here, and how to mend it; None if all is well."""
    kind = usable(machine)
    if kind == "cuda":
        return _nvidia_trouble(machine)
    if kind == "rocm" and machine.kfd == "ok":
        return None
    no_cure = "nothing on this machine: it trains on the processor"
    for card in machine.of("nvidia"):
        if machine.nvidia_driver is None:
            return Trouble(
                f"{card.label} is here, and NVIDIA's driver is not loaded",
                "install your distribution's driver for it (Ubuntu: sudo ubuntu-drivers install) and reboot; "
                "in a container, start it with --gpus all",
            )
        return Trouble(
            f"{card.label} is here, and PyTorch's oldest CUDA build has kernels from sm_{CUDA_OLD_SINCE} on",
            no_cure,
            mendable=False,
        )
    for card in machine.of("amd"):
        if kind == "rocm":
            return Trouble(
                f"{card.label} is here, and this user may not open /dev/kfd",
                "sudo usermod -aG render,video $USER, then log out and in again",
            )
        if machine.kfd == "missing":
            return Trouble(
                f"{card.label} is here, and its compute device /dev/kfd is not",
                "load the driver (sudo modprobe amdgpu); in a container, start it with --device=/dev/kfd "
                "--device=/dev/dri",
            )
        return Trouble(
            f"{card.label} is here, and no PyTorch build has kernels for it", no_cure, mendable=False
        )
    return None


def rocm_container_command(machine: Machine) -> str:
    """The line that opens AMD's PyTorch image here, with the GPU, in the project's folder."""
    if "podman" in machine.engines or "docker" not in machine.engines:
        engine = "podman run --group-add=keep-groups --security-opt=label=disable"
    else:
        engine = 'docker run --group-add=video --group-add="$(getent group render | cut -d: -f3)"'
    return (
        f"{engine} --rm -it --device=/dev/kfd --device=/dev/dri --ipc=host --security-opt=seccomp=unconfined "
        f'-v "$PWD":/work -w /work {ROCM_IMAGE} make demo'
    )


def _choose_for_macos(machine: Machine) -> TorchChoice:
    if machine.arch != "arm64":
        raise MachineError(
            f"PyTorch {TORCH_VERSION} has no build for {machine.arch} Python on macOS (Intel ended with 2.2)",
            "on a Mac with Apple silicon install an arm64 Python (python.org or Homebrew) and run this again",
        )
    return TorchChoice(
        "cpu",
        (f"torch=={TORCH_VERSION}",),
        "macOS on Apple silicon: the package registry's build uses the Apple GPU through MPS",
        MACOS_MB,
    )


def _choose_cuda(machine: Machine, index_reachable: Callable[[str], bool]) -> TorchChoice:
    build, card = _cuda_index(machine), machine.of("nvidia")[0].label
    if not index_reachable(INDEX + build):
        raise MachineError(
            f"{card} needs PyTorch's CUDA build, and {INDEX}{build} cannot be reached",
            f"let this machine reach {INDEX}{build}, or put a CUDA build of torch {TORCH_VERSION} into .venv "
            "yourself: it will be kept",
        )
    driver = f"driver {machine.nvidia_driver}" if machine.nvidia_driver else "its driver"
    reason = f"{card}, with {driver} loaded: the CUDA build {build}"
    return TorchChoice("cuda", _from_index(build), reason, CUDA_MB)


def _choose_rocm(machine: Machine, index_reachable: Callable[[str], bool]) -> TorchChoice:
    card = next(gpu for gpu in machine.of("amd") if gpu.arch in ROCM_ARCHS).label
    if not index_reachable(INDEX + ROCM):
        none = "" if machine.engines else "install podman (or docker), then "
        raise MachineError(
            f"{card} needs PyTorch's ROCm build, and {INDEX}{ROCM} cannot be reached; another build would "
            "train on the processor without a word",
            f"{none}run it in AMD's container, which has that build: {rocm_container_command(machine)}",
        )
    return TorchChoice("rocm", _from_index(ROCM), f"{card}, with /dev/kfd: the ROCm build {ROCM}", ROCM_MB)


def _from_index(build: str) -> tuple[str, ...]:
    return (f"torch=={TORCH_VERSION}+{build}", "--index-url", INDEX + build)


def _why_cpu(machine: Machine) -> str:
    trouble = gpu_trouble(machine)
    return f"{trouble.what}: the CPU build" if trouble else "no NVIDIA or AMD GPU: the CPU build"


def _capabilities(machine: Machine) -> list[int]:
    """Compute capabilities of the NVIDIA cards (`sm_90` → 90), as far as they are known."""
    return [_capability(gpu) for gpu in machine.of("nvidia") if gpu.arch]


def _capability(gpu: Gpu) -> int:
    return int(gpu.arch.removeprefix("sm_"))


def _cuda_index(machine: Machine) -> str:
    """CUDA 13 where card and driver are new enough, otherwise CUDA 12, which runs on more of both."""
    capabilities = _capabilities(machine)
    if capabilities and min(capabilities) > CUDA_OLD_UNTIL:
        return CUDA_NEW  # Blackwell: CUDA 12.6 has no kernels for it, whatever the driver
    new_cards = bool(capabilities) and min(capabilities) >= CUDA_NEW_SINCE
    return CUDA_NEW if new_cards and _driver_major(machine) >= CUDA_NEW_DRIVER else CUDA_OLD


def _driver_major(machine: Machine) -> int:
    return int((machine.nvidia_driver or "0").split(".")[0])


def _nvidia_trouble(machine: Machine) -> Trouble | None:
    card, driver = machine.of("nvidia")[0], machine.nvidia_driver
    needed = CUDA_NEW_DRIVER if _cuda_index(machine) == CUDA_NEW else CUDA_OLD_DRIVER
    if driver and _driver_major(machine) < needed:
        return Trouble(
            f"{card.label} is here, and its driver {driver} is older than {needed}, the first that PyTorch's "
            "CUDA build runs on",
            f"update NVIDIA's driver to {needed} or newer and reboot",
        )
    return None
