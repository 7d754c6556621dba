"""What `detect` sees in made-up system trees, as sysfs and procfs show the real machines."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from whispertune.hardware.detect import Gpu, Machine, describe, detect, gfx_name

GIB = 2**30


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def program(folder: Path, name: str, script: str) -> str:
    """Puts a real program on a search path of its own, and returns that path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(folder)


def kfd_node(target: int, render_minor: int) -> str:
    """As amdgpu writes it: one name and one number a line."""
    return f"simd_count 80\ngfx_target_version {target}\nvendor_id 4098\ndrm_render_minor {render_minor}\n"


PROCESSOR_NODE = "cpu_cores_count 32\nsimd_count 0\ngfx_target_version 0\nvendor_id 0\ndrm_render_minor 0\n"

STRIX_HALO = {
    "sys/class/kfd/kfd/topology/nodes/0/properties": PROCESSOR_NODE,
    "sys/class/kfd/kfd/topology/nodes/1/properties": kfd_node(110501, 128),
    "sys/class/drm/renderD128/device/mem_info_vram_total": f"{96 * GIB}\n",
    "sys/class/drm/renderD128/device/mem_info_gtt_total": f"{15 * GIB}\n",
    "dev/kfd": "",
    "proc/meminfo": "MemTotal:       32505856 kB\nMemFree: 1 kB\n",
}


def look(root: Path, path: str = "", **kwargs) -> Machine:
    return detect(root, path=path, **{"system": "Linux", "arch": "x86_64", "folder": root, **kwargs})


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (110501, "gfx1151"),
        (110001, "gfx1101"),
        (90010, "gfx90a"),
        (90402, "gfx942"),
        (100306, "gfx1036"),
        (120001, "gfx1201"),
    ],
)
def test_gfx_names(target, name):
    assert gfx_name(target) == name


def test_strix_halo(tmp_path):
    write(tmp_path, STRIX_HALO)
    bin_folder = program(tmp_path / "bin", "podman", "exit 0")
    machine = look(tmp_path, bin_folder)
    assert machine.gpus == (Gpu("amd", "", "gfx1151", 96 * GIB, 15 * GIB),)
    assert machine.kfd == "ok"
    assert machine.engines == ("podman",)
    assert machine.memory_bytes == 31 * GIB
    line = describe(machine)
    assert line.startswith("AMD gfx1151, 96.0 GiB + 15.0 GiB of system memory; ")
    assert "31.0 GiB of memory" in line
    assert line.endswith("podman found")


def test_two_amd_gpus_in_node_order_and_memory_from_the_node_when_drm_is_silent(tmp_path):
    nodes = "sys/class/kfd/kfd/topology/nodes"
    write(
        tmp_path,
        {
            f"{nodes}/0/properties": PROCESSOR_NODE,
            f"{nodes}/2/properties": kfd_node(110001, 129) + f"local_mem_size {12 * GIB}\n",
            f"{nodes}/10/properties": kfd_node(100306, 130),
            "sys/class/drm/renderD129/device/product_name": "AMD Radeon RX 7700 XT\n",
        },
    )
    first, second = look(tmp_path).gpus
    assert str(first) == "AMD Radeon RX 7700 XT (gfx1101), 12.0 GiB"
    assert str(second) == "AMD gfx1036"


def test_a_closed_kfd_is_told_from_a_missing_one():
    # Not tmp_path: its parents are closed to anyone else, and a root user's right to open everything must
    # be given up to see a refusal.
    root = Path(tempfile.mkdtemp())
    try:
        root.chmod(0o755)
        write(root, STRIX_HALO)
        (root / "dev/kfd").chmod(0)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            machine = look(root)
        finally:
            os.seteuid(user)
        assert machine.kfd == "denied"
    finally:
        shutil.rmtree(root)


def test_amd_without_its_driver_is_found_on_the_pci_bus(tmp_path):
    write(
        tmp_path,
        {
            "sys/bus/pci/devices/0000:65:00.0/vendor": "0x1002\n",
            "sys/bus/pci/devices/0000:65:00.0/class": "0x030000\n",
            "sys/bus/pci/devices/0000:65:00.1/vendor": "0x1002\n",
            "sys/bus/pci/devices/0000:65:00.1/class": "0x040300\n",  # its sound output is no GPU
            "sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n",
            "sys/bus/pci/devices/0000:00:02.0/class": "0x030000\n",
        },
    )
    machine = look(tmp_path)
    assert machine.gpus == (Gpu("amd"),)
    assert machine.kfd == "missing"
    assert describe(machine).startswith("AMD GPU; ")


@pytest.mark.parametrize(
    "version",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:10:33 UTC 2026\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n",
    ],
)
def test_nvidia_by_its_kernel_module(tmp_path, version):
    information = "proc/driver/nvidia/gpus/0000:01:00.0/information"
    write(
        tmp_path,
        {
            "proc/driver/nvidia/version": version,
            information: "Model: \t\t NVIDIA GeForce RTX 4090\nIRQ:   \t\t 177\n",
        },
    )
    machine = look(tmp_path)
    assert machine.gpus == (Gpu("nvidia", "NVIDIA GeForce RTX 4090"),)
    assert machine.nvidia_driver == "580.65.06"
    assert describe(machine).startswith("NVIDIA GeForce RTX 4090; ")


def test_nvidia_smi_adds_memory_and_architecture(tmp_path):
    write(
        tmp_path,
        {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14\n"},
    )
    answer = "NVIDIA A100-SXM4-80GB, 81920, 8.0, 550.54.14"
    path = program(tmp_path / "bin", "nvidia-smi", f"echo '{answer}'; echo '{answer}'")
    card = Gpu("nvidia", "NVIDIA A100-SXM4-80GB", "sm_80", 80 * GIB)
    machine = look(tmp_path, path)
    assert machine.gpus == (card, card)
    assert machine.nvidia_driver == "550.54.14"
    assert str(card) == "NVIDIA A100-SXM4-80GB (sm_80), 80.0 GiB"


def test_nvidia_smi_is_not_asked_when_told_so(tmp_path):
    write(
        tmp_path,
        {"proc/driver/nvidia/version": "NVRM version: NVIDIA Kernel Module  550.54.14\n", "dev/nvidia0": ""},
    )
    path = program(tmp_path / "bin", "nvidia-smi", f"touch {tmp_path}/asked")
    machine = look(tmp_path, path, ask_driver=False)
    assert not (tmp_path / "asked").exists()
    assert machine.gpus == (Gpu("nvidia"),)
    assert machine.nvidia_driver == "550.54.14"


def test_a_board_whose_memory_nvidia_smi_cannot_tell(tmp_path):
    path = program(tmp_path / "bin", "nvidia-smi", "echo 'NVIDIA GB10, [N/A], 12.1, 580.95.05'")
    assert look(tmp_path, path).gpus == (Gpu("nvidia", "NVIDIA GB10", "sm_121"),)


def test_nvidia_card_without_a_driver(tmp_path):
    write(
        tmp_path,
        {
            "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
            "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
        },
    )
    says = "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver."
    path = program(tmp_path / "bin", "nvidia-smi", f"echo '{says}'; exit 9")
    machine = look(tmp_path, path)
    assert machine.gpus == (Gpu("nvidia"),)
    assert machine.nvidia_driver is None


def test_nvidia_devices_alone_as_in_some_containers(tmp_path):
    write(tmp_path, {"dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidiactl": "", "dev/nvidia-uvm": ""})
    machine = look(tmp_path)
    assert machine.gpus == (Gpu("nvidia"), Gpu("nvidia"))
    assert machine.nvidia_driver == ""


def test_nvidia_under_wsl(tmp_path):
    write(tmp_path, {"dev/dxg": ""})
    program(tmp_path / "usr/lib/wsl/lib", "nvidia-smi", "echo 'NVIDIA GeForce RTX 4070, 12282, 8.9, 566.36'")
    machine = look(tmp_path)
    assert machine.wsl
    assert [gpu.arch for gpu in machine.gpus] == ["sm_89"]
    assert machine.nvidia_driver == "566.36"
    assert "; WSL" in describe(machine)


def test_wsl_without_nvidia(tmp_path):
    write(tmp_path, {"dev/dxg": ""})
    machine = look(tmp_path)
    assert machine.wsl
    assert machine.gpus == ()


def test_apple(tmp_path):
    silicon = look(tmp_path, system="Darwin", arch="arm64")
    assert describe(silicon).startswith("Apple GPU (shares the system's memory); ")
    assert look(tmp_path, system="Darwin", arch="x86_64").gpus == ()


def test_nothing(tmp_path):
    path = program(tmp_path / "bin", "docker", "exit 0")
    machine = look(tmp_path, path)
    assert machine.gpus == ()
    assert machine.kfd == "missing"
    assert machine.nvidia_driver is None
    assert machine.memory_bytes > 0  # from the C library when /proc is not there
    assert machine.cores >= 1
    assert machine.disk_free_bytes > 0
    assert describe(machine).startswith("no GPU; ")
    assert describe(machine).endswith("docker found")


def test_the_tightest_cgroup_limit_holds(tmp_path):
    write(
        tmp_path,
        {
            "proc/meminfo": "MemTotal:       33554432 kB\n",
            "proc/self/cgroup": "0::/user.slice/job\n",
            "sys/fs/cgroup/user.slice/job/memory.max": "max\n",
            "sys/fs/cgroup/user.slice/job/cpu.max": "max 100000\n",
            "sys/fs/cgroup/user.slice/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/user.slice/cpu.max": "50000 100000\n",
        },
    )
    machine = look(tmp_path)
    assert machine.memory_bytes == 4 * GIB
    assert machine.cores == 1  # half a processor is still one thread
    assert "; 1 core, 4.0 GiB of memory; " in describe(machine)
