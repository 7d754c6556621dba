"""GPUs, processor, memory, disk and container engines as the system shows them, without torch."""

import math
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Vendor = Literal["nvidia", "amd", "apple"]
Access = Literal["missing", "denied", "ok"]

PCI_VENDORS: dict[str, Vendor] = {"0x10de": "nvidia", "0x1002": "amd"}
PCI_CLASS_DISPLAY = "0x03"
"""First byte of the PCI class of every display controller: VGA 0x0300, 3D 0x0302, other 0x0380."""
SMI_TIMEOUT_S = 15
"""`nvidia-smi` waits for a card to wake up; more than this and the driver is stuck."""


@dataclass(frozen=True, slots=True)
class Gpu:
    vendor: Vendor
    name: str = ""
    """As the driver says it; empty when no driver does."""
    arch: str = ""
    """`gfx1151`, `sm_90`; empty when the system does not show it."""
    memory_bytes: int | None = None
    """The GPU's own memory; on an APU the part carved out for it."""
    shared_bytes: int | None = None
    """System memory that the GPU may use besides (AMD's GTT)."""

    @property
    def label(self) -> str:
        """`NVIDIA GeForce RTX 4090 (sm_89)`, `AMD gfx1151`, `AMD GPU`."""
        vendor = {"nvidia": "NVIDIA", "amd": "AMD", "apple": "Apple"}[self.vendor]
        name = self.name.removeprefix(vendor).strip()
        if name and self.arch:
            return f"{vendor} {name} ({self.arch})"
        return f"{vendor} {name or self.arch or 'GPU'}"

    def __str__(self) -> str:
        what = self.label
        if self.memory_bytes:
            what += f", {gib(self.memory_bytes)}"
        if self.shared_bytes:
            what += f" + {gib(self.shared_bytes)} of system memory"
        return what


@dataclass(frozen=True, slots=True)
class Machine:
    system: str
    """`Linux`, `Darwin`, `Windows`, as `platform.system()` says it."""
    arch: str
    """`x86_64`, `aarch64`, `arm64`."""
    cores: int
    """Processors that this process may use: affinity and cgroup quota counted, never less than 1."""
    memory_bytes: int
    """Memory that this process may use: the machine's, or less by cgroup."""
    disk_free_bytes: int
    gpus: tuple[Gpu, ...] = ()
    nvidia_driver: str | None = None
    """`580.65.06`; empty when a driver is loaded and does not say which; None without one."""
    kfd: Access = "missing"
    """`/dev/kfd`, the door to AMD compute: readable and writable by this user?"""
    wsl: bool = False
    engines: tuple[str, ...] = ()
    """Container engines on PATH, `podman` first."""

    def of(self, vendor: Vendor) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in self.gpus if gpu.vendor == vendor)


def gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB"


def describe(machine: Machine) -> str:
    """One line for a person: GPUs, processors, memory, disk, container engines."""
    parts = [str(gpu) for gpu in machine.gpus] or ["no GPU"]
    cores = "1 core" if machine.cores == 1 else f"{machine.cores} cores"
    parts.append(f"{cores}, {gib(machine.memory_bytes)} of memory")
    parts.append(f"{gib(machine.disk_free_bytes)} free on disk")
    if machine.wsl:
        parts.append("WSL")
    if machine.engines:
        parts.append(" and ".join(machine.engines) + " found")
    return "; ".join(parts)


def detect(
    root: Path = Path("/"),
    *,
    path: str | None = None,
    system: str | None = None,
    arch: str | None = None,
    folder: Path = Path("."),
    ask_driver: bool = True,
) -> Machine:
    """Looks at the system below `root`; nothing is loaded, allocated or changed.

    `path` is the search path for programs (default: this process's PATH), `folder` where free disk space is
    counted. `ask_driver=False` leaves out what only `nvidia-smi` tells (memory and architecture of NVIDIA
    cards), which may take a second.
    """
    system = system or platform.system()
    arch = arch or platform.machine()
    path = os.environ.get("PATH", "") if path is None else path
    wsl = (root / "dev/dxg").exists()
    gpus: tuple[Gpu, ...]
    if system == "Darwin":
        gpus = (Gpu("apple", "Apple GPU (shares the system's memory)"),) if arch == "arm64" else ()
        driver = None
    else:
        nvidia, driver = _nvidia(root, path, wsl, ask_driver)
        gpus = nvidia + _amd(root)
    return Machine(
        system=system,
        arch=arch,
        cores=_cores(root),
        memory_bytes=_memory_bytes(root),
        disk_free_bytes=shutil.disk_usage(folder).free,
        gpus=gpus,
        nvidia_driver=driver,
        kfd=_access(root / "dev/kfd"),
        wsl=wsl,
        engines=tuple(engine for engine in ("podman", "docker") if shutil.which(engine, path=path)),
    )


def _nvidia(root: Path, path: str, wsl: bool, ask_driver: bool) -> tuple[tuple[Gpu, ...], str | None]:
    """The cards and the driver's version, from the kernel module, from `nvidia-smi`, or from the PCI bus."""
    driver = None
    if version := _read(root / "proc/driver/nvidia/version"):
        found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)*)\b", version)
        driver = found.group(1) if found else ""
    elif any((root / "dev").glob("nvidia[0-9]*")):
        driver = ""

    smi = shutil.which("nvidia-smi", path=path)
    if smi is None and wsl:
        # Windows' driver puts it here, and distributions leave the folder out of PATH under sudo and cron.
        smi = shutil.which("nvidia-smi", path=str(root / "usr/lib/wsl/lib"))
    if smi and (ask_driver or driver is None):
        cards, smi_driver = _ask_nvidia_smi(smi)
        if cards:
            return cards, smi_driver

    models = []
    for information in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        found = re.search(r"^Model:\s*(.+?)\s*$", _read(information), re.MULTILINE)
        models.append(found.group(1) if found else "")
    if not models:
        count = len(_pci(root, "nvidia")) or len(list((root / "dev").glob("nvidia[0-9]*")))
        models = [""] * count
    return tuple(Gpu("nvidia", model) for model in models), driver


def _ask_nvidia_smi(smi: str) -> tuple[tuple[Gpu, ...], str | None]:
    query = "--query-gpu=name,memory.total,compute_cap,driver_version"
    try:
        answer = subprocess.run(
            [smi, query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=SMI_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return (), None  # the program is there and its driver is not
    cards, driver = [], None
    for line in answer.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != 4:
            continue
        name, mib, capability, driver = fields
        cards.append(
            Gpu(
                "nvidia",
                name,
                arch="sm_" + capability.replace(".", "") if re.fullmatch(r"\d+\.\d", capability) else "",
                memory_bytes=int(mib) * 2**20 if mib.isdigit() else None,  # "[N/A]" on a shared-memory board
            )
        )
    return tuple(cards), driver


def _amd(root: Path) -> tuple[Gpu, ...]:
    """The GPUs of the KFD topology; without that driver, those on the PCI bus, of unknown architecture."""
    gpus = []
    nodes = (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")
    for node in sorted(nodes, key=lambda file: int(file.parent.name)):
        properties = dict(line.split(maxsplit=1) for line in _read(node).splitlines() if " " in line)
        target = int(properties.get("gfx_target_version", 0))
        if target == 0:
            continue  # a processor: its node has no shader units
        render = root / f"sys/class/drm/renderD{properties.get('drm_render_minor', '')}/device"
        memory = _read(render / "mem_info_vram_total") or properties.get("local_mem_size")
        gpus.append(
            Gpu(
                "amd",
                _read(render / "product_name").strip(),
                arch=gfx_name(target),
                memory_bytes=_int(memory),
                shared_bytes=_int(_read(render / "mem_info_gtt_total")),
            )
        )
    return tuple(gpus) or tuple(Gpu("amd") for _ in _pci(root, "amd"))


def gfx_name(target_version: int) -> str:
    """`gfx1151` for 110501: major × 10,000 + minor × 100 + stepping, the last two written in hexadecimal."""
    return f"gfx{target_version // 10_000}{target_version // 100 % 100:x}{target_version % 100:x}"


def _pci(root: Path, vendor: Vendor) -> list[Path]:
    return [
        device
        for device in sorted((root / "sys/bus/pci/devices").glob("*"))
        if PCI_VENDORS.get(_read(device / "vendor").strip()) == vendor
        and _read(device / "class").startswith(PCI_CLASS_DISPLAY)
    ]


def _access(device: Path) -> Access:
    if not device.exists():
        return "missing"
    effective = os.access in os.supports_effective_ids
    return "ok" if os.access(device, os.R_OK | os.W_OK, effective_ids=effective) else "denied"


def _cores(root: Path) -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    for group in _cgroups(root):
        quota, _, period = _read(group / "cpu.max").strip().partition(" ")
        if quota.isdigit() and period.isdigit():
            cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(cores, 1)


def _memory_bytes(root: Path) -> int:
    found = re.search(r"^MemTotal:\s+(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    if found:
        memory = int(found.group(1)) * 1024
    elif hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        memory = 0
    limits = [_int(_read(group / "memory.max")) for group in _cgroups(root)]  # "max" is no number
    return min([memory, *(limit for limit in limits if limit)])


def _cgroups(root: Path) -> list[Path]:
    """The process's cgroup (version 2) and its ancestors: the tightest of their limits holds."""
    found = re.search(r"^0::/(.*)$", _read(root / "proc/self/cgroup"), re.MULTILINE)
    if not found:
        return []
    top = root / "sys/fs/cgroup"
    own = top / found.group(1)
    return [group for group in (own, *own.parents) if group.is_relative_to(top)]


def _int(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isdigit() and int(text) else None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
