"""Set-up: which torch is chosen for which machine, what is kept, and every sentence that stops it."""

import ast
import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from whispertune.errors import MachineError
from whispertune.hardware.detect import Gpu, Machine
from whispertune.hardware.torch_build import (
    INDEX,
    Build,
    choose,
    fits,
    gpu_trouble,
    installed_build,
    rocm_container_command,
    usable,
)

PROJECT = Path(__file__).resolve().parent.parent
GIB = 2**30


def machine(*gpus: Gpu, **facts) -> Machine:
    plain = {
        "system": "Linux",
        "arch": "x86_64",
        "cores": 8,
        "memory_bytes": 32 * GIB,
        "disk_free_bytes": 99 * GIB,
    }
    return Machine(**{**plain, **facts, "gpus": gpus})


def amd(arch: str, name: str = "") -> Gpu:
    return Gpu("amd", name, arch)


def nvidia(name: str, arch: str = "") -> Gpu:
    return Gpu("nvidia", "NVIDIA " + name, arch)


STRIX_HALO = machine(amd("gfx1151"), kfd="ok", engines=("podman",))
RX_7700_XT = machine(amd("gfx1101", "AMD Radeon RX 7700 XT"), kfd="ok", engines=("docker",))
CLOSED_KFD = machine(amd("gfx1151"), kfd="denied")
RAPHAEL_IGPU = machine(amd("gfx1036"), kfd="ok")
AMD_WITHOUT_KFD = machine(amd(""))
RTX_4090 = machine(nvidia("GeForce RTX 4090", "sm_89"), nvidia_driver="580.65.06")
RTX_4090_AND_IGPU = machine(
    nvidia("GeForce RTX 4090", "sm_89"), amd("gfx1036"), nvidia_driver="580.65.06", kfd="ok"
)
A100 = machine(nvidia("A100-SXM4-80GB", "sm_80"), nvidia_driver="550.54.14")
P100 = machine(nvidia("Tesla P100", "sm_60"), nvidia_driver="580.65.06")
RTX_5090_OLD_DRIVER = machine(nvidia("GeForce RTX 5090", "sm_120"), nvidia_driver="570.86.10")
GTX_1080_OLD_DRIVER = machine(nvidia("GeForce GTX 1080", "sm_61"), nvidia_driver="470.82.01")
K80 = machine(nvidia("Tesla K80", "sm_37"), nvidia_driver="470.82.01")
CONTAINER_GPU = machine(Gpu("nvidia"), nvidia_driver="")
NVIDIA_WITHOUT_DRIVER = machine(Gpu("nvidia"))
WSL = machine(nvidia("GeForce RTX 4070", "sm_89"), nvidia_driver="566.36", wsl=True)
WSL_BARE = machine(wsl=True)
MAC = machine(Gpu("apple", "Apple GPU"), system="Darwin", arch="arm64")
INTEL_MAC = machine(system="Darwin", arch="x86_64")
NO_GPU = machine()
ARM_NO_GPU = machine(arch="aarch64")


@pytest.mark.parametrize(
    ("here", "kind", "index", "reason"),
    [
        (STRIX_HALO, "rocm", "rocm7.2", "AMD gfx1151, with /dev/kfd: the ROCm build rocm7.2"),
        (
            RX_7700_XT,
            "rocm",
            "rocm7.2",
            "AMD Radeon RX 7700 XT (gfx1101), with /dev/kfd: the ROCm build rocm7.2",
        ),
        (CLOSED_KFD, "rocm", "rocm7.2", "AMD gfx1151, with /dev/kfd: the ROCm build rocm7.2"),
        (
            RTX_4090,
            "cuda",
            "cu130",
            "NVIDIA GeForce RTX 4090 (sm_89), with driver 580.65.06 loaded: the CUDA build cu130",
        ),
        (
            RTX_4090_AND_IGPU,
            "cuda",
            "cu130",
            "NVIDIA GeForce RTX 4090 (sm_89), with driver 580.65.06 loaded: the CUDA build cu130",
        ),
        (
            A100,
            "cuda",
            "cu126",
            "NVIDIA A100-SXM4-80GB (sm_80), with driver 550.54.14 loaded: the CUDA build cu126",
        ),
        (
            P100,
            "cuda",
            "cu126",
            "NVIDIA Tesla P100 (sm_60), with driver 580.65.06 loaded: the CUDA build cu126",
        ),
        (
            RTX_5090_OLD_DRIVER,
            "cuda",
            "cu130",
            "NVIDIA GeForce RTX 5090 (sm_120), with driver 570.86.10 loaded: the CUDA build cu130",
        ),
        (CONTAINER_GPU, "cuda", "cu126", "NVIDIA GPU, with its driver loaded: the CUDA build cu126"),
        (
            WSL,
            "cuda",
            "cu126",
            "NVIDIA GeForce RTX 4070 (sm_89), with driver 566.36 loaded: the CUDA build cu126",
        ),
        (NO_GPU, "cpu", "cpu", "no NVIDIA or AMD GPU: the CPU build"),
        (ARM_NO_GPU, "cpu", "cpu", "no NVIDIA or AMD GPU: the CPU build"),
        (WSL_BARE, "cpu", "cpu", "no NVIDIA or AMD GPU: the CPU build"),
        (
            AMD_WITHOUT_KFD,
            "cpu",
            "cpu",
            "AMD GPU is here, and its compute device /dev/kfd is not: the CPU build",
        ),
        (
            RAPHAEL_IGPU,
            "cpu",
            "cpu",
            "AMD gfx1036 is here, and no PyTorch build has kernels for it: the CPU build",
        ),
        (
            NVIDIA_WITHOUT_DRIVER,
            "cpu",
            "cpu",
            "NVIDIA GPU is here, and NVIDIA's driver is not loaded: the CPU build",
        ),
        (
            K80,
            "cpu",
            "cpu",
            "NVIDIA Tesla K80 (sm_37) is here, and PyTorch's oldest CUDA build has kernels from sm_50 on: "
            "the CPU build",
        ),
    ],
)
def test_the_build_for_each_machine(here, kind, index, reason):
    asked = []
    choice = choose(here, lambda url: asked.append(url) or True)
    assert choice.kind == kind
    assert choice.pip_args == (f"torch==2.13.0+{index}", "--index-url", INDEX + index)
    assert choice.reason == reason
    assert asked == [INDEX + index]
    # What set-up announces: every GPU build is over 500 MB, the CPU build is not.
    assert (choice.download_mb > 500) == (kind != "cpu")


def test_macos_takes_the_registrys_build_and_asks_no_index():
    choice = choose(MAC, lambda url: pytest.fail(f"asked {url}"))
    assert (choice.kind, choice.pip_args) == ("cpu", ("torch==2.13.0",))
    assert (
        choice.reason == "macOS on Apple silicon: the package registry's build uses the Apple GPU through MPS"
    )


@pytest.mark.parametrize("here", [NO_GPU, ARM_NO_GPU, WSL_BARE, NVIDIA_WITHOUT_DRIVER])
def test_without_a_gpu_the_registry_is_the_last_resort(here):
    choice = choose(here, lambda url: False)
    assert (choice.kind, choice.pip_args) == ("cpu", ("torch==2.13.0",))
    assert choice.reason.endswith(
        "; https://download.pytorch.org/whl/cpu cannot be reached, so it comes from the package registry, "
        "whose build for Linux may carry CUDA: larger, and of no harm here"
    )
    assert (choice.download_mb > 500) == (here.arch == "x86_64")


@pytest.mark.parametrize(
    ("here", "what", "hint"),
    [
        (
            STRIX_HALO,
            "AMD gfx1151 needs PyTorch's ROCm build, and https://download.pytorch.org/whl/rocm7.2 cannot be "
            "reached; another build would train on the processor without a word",
            "run it in AMD's container, which has that build: podman run --group-add=keep-groups "
            "--security-opt=label=disable --rm -it --device=/dev/kfd --device=/dev/dri --ipc=host "
            '--security-opt=seccomp=unconfined -v "$PWD":/work -w /work '
            "docker.io/rocm/pytorch:rocm7.2_ubuntu24.04_py3.12_pytorch_release_2.9.1 make demo",
        ),
        (
            RX_7700_XT,
            "AMD Radeon RX 7700 XT (gfx1101) needs PyTorch's ROCm build, and "
            "https://download.pytorch.org/whl/rocm7.2 cannot be reached; another build would train on the "
            "processor without a word",
            "run it in AMD's container, which has that build: docker run --group-add=video "
            '--group-add="$(getent group render | cut -d: -f3)" --rm -it --device=/dev/kfd --device=/dev/dri '
            '--ipc=host --security-opt=seccomp=unconfined -v "$PWD":/work -w /work '
            "docker.io/rocm/pytorch:rocm7.2_ubuntu24.04_py3.12_pytorch_release_2.9.1 make demo",
        ),
        (
            AMD_WITHOUT_KFD,
            "https://download.pytorch.org/whl/cpu cannot be reached, and the package registry's torch for "
            "Linux is a CUDA build, which has no place on a machine with an AMD GPU",
            "let this machine reach https://download.pytorch.org/whl/cpu, or put a CPU build of torch 2.13.0 "
            "into .venv yourself: it will be kept",
        ),
        (
            A100,
            "NVIDIA A100-SXM4-80GB (sm_80) needs PyTorch's CUDA build, and "
            "https://download.pytorch.org/whl/cu126 cannot be reached",
            "let this machine reach https://download.pytorch.org/whl/cu126, or put a CUDA build of torch "
            "2.13.0 into .venv yourself: it will be kept",
        ),
        (
            INTEL_MAC,
            "PyTorch 2.13.0 has no build for x86_64 Python on macOS (Intel ended with 2.2)",
            "on a Mac with Apple silicon install an arm64 Python (python.org or Homebrew) and run this again",
        ),
    ],
)
def test_a_machine_whose_build_cannot_be_had_stops(here, what, hint):
    with pytest.raises(MachineError) as stopped:
        choose(here, lambda url: False)
    assert stopped.value.what == what
    assert stopped.value.hint == hint


def test_without_a_container_engine_the_hint_begins_with_one():
    with pytest.raises(MachineError) as stopped:
        choose(CLOSED_KFD, lambda url: False)
    assert stopped.value.hint.startswith("install podman (or docker), then run it in AMD's container")
    assert rocm_container_command(CLOSED_KFD).startswith("podman run ")


@pytest.mark.parametrize(
    ("here", "what", "cure"),
    [
        (
            CLOSED_KFD,
            "AMD gfx1151 is here, and this user may not open /dev/kfd",
            "sudo usermod -aG render,video $USER, then log out and in again",
        ),
        (
            AMD_WITHOUT_KFD,
            "AMD GPU is here, and its compute device /dev/kfd is not",
            "load the driver (sudo modprobe amdgpu); in a container, start it with --device=/dev/kfd "
            "--device=/dev/dri",
        ),
        (
            RAPHAEL_IGPU,
            "AMD gfx1036 is here, and no PyTorch build has kernels for it",
            "nothing on this machine: it trains on the processor",
        ),
        (
            NVIDIA_WITHOUT_DRIVER,
            "NVIDIA GPU is here, and NVIDIA's driver is not loaded",
            "install your distribution's driver for it (Ubuntu: sudo ubuntu-drivers install) and reboot; in "
            "a container, start it with --gpus all",
        ),
        (
            RTX_5090_OLD_DRIVER,
            "NVIDIA GeForce RTX 5090 (sm_120) is here, and its driver 570.86.10 is older than 580, the first "
            "that PyTorch's CUDA build runs on",
            "update NVIDIA's driver to 580 or newer and reboot",
        ),
        (
            GTX_1080_OLD_DRIVER,
            "NVIDIA GeForce GTX 1080 (sm_61) is here, and its driver 470.82.01 is older than 525, the first "
            "that PyTorch's CUDA build runs on",
            "update NVIDIA's driver to 525 or newer and reboot",
        ),
        (
            K80,
            "NVIDIA Tesla K80 (sm_37) is here, and PyTorch's oldest CUDA build has kernels from sm_50 on",
            "nothing on this machine: it trains on the processor",
        ),
    ],
)
def test_an_unusable_gpu_is_named_with_its_cure(here, what, cure):
    trouble = gpu_trouble(here)
    assert (trouble.what, trouble.cure) == (what, cure)


@pytest.mark.parametrize(
    "here", [STRIX_HALO, RX_7700_XT, RTX_4090, RTX_4090_AND_IGPU, A100, CONTAINER_GPU, WSL, MAC, NO_GPU]
)
def test_no_trouble_where_all_is_well(here):
    assert gpu_trouble(here) is None


def build(version: str) -> Build:
    local = version.partition("+")[2]
    kind = "rocm" if local.startswith("rocm") else "cuda" if local.startswith("cu") else "cpu"
    return Build(version, kind, Path("site-packages"))


@pytest.mark.parametrize(
    ("here", "kept", "replaced"),
    [
        (STRIX_HALO, ["2.13.0+rocm7.2", "2.9.1+rocm7.2.0"], ["2.13.0+cu130", "2.13.0+cpu", "2.8.0+rocm6.4"]),
        (RTX_4090, ["2.13.0+cu130", "2.9.0+cu126", "2.14.1+cu132"], ["2.13.0+cpu", "2.13.0+rocm7.2"]),
        # The trap that this project began with: CUDA beside an AMD card computes on the processor.
        (AMD_WITHOUT_KFD, ["2.13.0+cpu", "2.13.0+rocm7.2"], ["2.13.0+cu130"]),
        (RAPHAEL_IGPU, ["2.13.0+cpu"], ["2.13.0+cu130"]),
        (NO_GPU, ["2.13.0+cpu", "2.13.0", "2.13.0+cu130", "3.0.0"], ["2.8.1+cpu", "1.13.1"]),
        (MAC, ["2.13.0"], ["2.2.2"]),
    ],
)
def test_a_fitting_torch_is_kept_and_no_other(here, kept, replaced):
    assert [version for version in kept if not fits(here, build(version))] == []
    assert [version for version in replaced if fits(here, build(version))] == []


@pytest.mark.parametrize(
    ("here", "kind"),
    [(STRIX_HALO, "rocm"), (RTX_4090_AND_IGPU, "cuda"), (CLOSED_KFD, "rocm"), (MAC, None), (K80, None)],
)
def test_usable(here, kind):
    assert usable(here) == kind


# The torch that is there, read without importing it.


@pytest.fixture(scope="module")
def venv(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("venv") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder


def torch_files(version: str, cuda: str | None = None, hip: str | None = None) -> dict[str, str]:
    """The two files that matter, `version.py` as torch's own build writes it."""
    return {
        "torch/__init__.py": "raise ImportError('libcudart.so.13: cannot open shared object file')\n",
        "torch/version.py": (
            "from typing import Optional\n\n__all__ = ['__version__', 'debug', 'cuda', 'hip']\n"
            f"__version__ = {version!r}\ndebug = False\ncuda: Optional[str] = {cuda!r}\n"
            f"git_version = 'cf30153'\nhip: Optional[str] = {hip!r}\n"
        ),
    }


@pytest.mark.parametrize(
    ("version", "cuda", "hip", "kind", "text"),
    [
        ("2.13.0+cpu", None, None, "cpu", "torch 2.13.0+cpu (CPU build)"),
        ("2.13.0", "13.0", None, "cuda", "torch 2.13.0 (CUDA build)"),  # the registry's own, without a suffix
        ("2.9.1+rocm7.2.0", None, "7.2.26015", "rocm", "torch 2.9.1+rocm7.2.0 (ROCm build)"),
    ],
)
def test_the_installed_build_is_read_from_its_files(venv, version, cuda, hip, kind, text):
    site_packages = next(venv.glob("lib/python*/site-packages"))
    for name, content in torch_files(version, cuda, hip).items():
        (site_packages / name).parent.mkdir(exist_ok=True)
        (site_packages / name).write_text(content)
    found = installed_build(venv / "bin/python")
    assert found == Build(version, kind, site_packages)
    assert str(found) == text


def test_no_torch_and_no_python(venv, tmp_path):
    site_packages = next(venv.glob("lib/python*/site-packages"))
    for file in (site_packages / "torch").glob("*.py"):
        file.unlink()  # an empty folder is what a half-done removal leaves behind
    assert installed_build(venv / "bin/python") is None
    assert installed_build(tmp_path / "no/such/python") is None


def test_the_real_torch_here_is_read_right():
    torch = pytest.importorskip("torch")
    found = installed_build(sys.executable)
    assert found.version == torch.__version__
    assert found.kind == ("rocm" if torch.version.hip else "cuda" if torch.version.cuda else "cpu")


# The script itself.


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("whispertune_setup", PROJECT / "scripts/setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def interpreter(folder: Path, name: str, version: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\necho {version}\n" if version else "#!/bin/sh\nexit 127\n")
    (folder / name).chmod(0o755)


def test_an_old_python_can_read_the_script_and_say_what_is_missing():
    ast.parse((PROJECT / "scripts/setup.py").read_text(), feature_version=(3, 6))


def test_a_newer_python_on_path_is_found(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script.sys, "version_info", (3, 9, 6))
    interpreter(tmp_path, "python3", "3.9")
    interpreter(tmp_path, "python3.13", "")  # a version manager's stand-in for a Python that is not there
    interpreter(tmp_path, "python3.12", "3.12")
    assert script.python_to_use(path=str(tmp_path)) == str(tmp_path / "python3.12")


def test_all_pythons_too_old(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script.sys, "version_info", (3, 9, 6))
    monkeypatch.setattr(script.sys, "executable", "/usr/bin/python3")
    monkeypatch.setattr(script.sys, "platform", "darwin")
    interpreter(tmp_path, "python3", "3.10")
    with pytest.raises(script.SetupError) as stopped:
        script.python_to_use(path=str(tmp_path))
    assert stopped.value.what == (
        "whispertune needs Python 3.11 or newer; found here: 3.9 (/usr/bin/python3), "
        f"3.10 ({tmp_path / 'python3'})"
    )
    assert stopped.value.hint == "install one (brew install python@3.13), then the same command again"


def test_a_python_newer_than_we_know_is_used_when_it_is_the_only_one(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script.sys, "version_info", (3, 16, 0))
    assert script.python_to_use(path=str(tmp_path)) == sys.executable
    interpreter(tmp_path, "python3.12", "3.12")
    assert script.python_to_use(path=str(tmp_path)) == str(tmp_path / "python3.12")


@pytest.mark.parametrize(
    ("tool", "command"),
    [
        ("apt", "sudo apt install python3.11-venv"),
        ("dnf", "sudo dnf install python3.11-venv"),
        ("pacman", "sudo pacman -S python3.11-venv"),
        (None, "install the package python3.11-venv"),
    ],
)
def test_a_python_without_ensurepip(script, monkeypatch, tmp_path, tool, command):
    monkeypatch.setattr(script.sys, "version_info", (3, 11, 2))
    monkeypatch.setattr(script.sys, "executable", "/usr/bin/python3")
    monkeypatch.setattr(script.sys, "platform", "linux")
    if tool:
        interpreter(tmp_path, tool, "0")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(script.SetupError) as stopped:
        script.need_venv_module(find_spec=lambda name: None if name == "ensurepip" else object())
    assert stopped.value.what == "this Python (/usr/bin/python3) lacks its module ensurepip"
    assert stopped.value.hint == f"{command}, then the same command again"


def test_native_windows(script, monkeypatch, capsys):
    monkeypatch.setattr(script.sys, "platform", "win32")
    assert script.main() == 1
    assert capsys.readouterr().err == (
        "set-up: whispertune does not run on native Windows\n"
        "  to mend it: use WSL: type `wsl --install` in PowerShell, then the same commands in its Linux\n"
    )


def test_no_room(script):
    with pytest.raises(script.SetupError) as stopped:
        script.need_room(machine(disk_free_bytes=3_000 * 10**6), 5_200)
    assert stopped.value.what == (f"3,000 MB of disk are free in {PROJECT}, and about 15,600 MB are needed")
    assert stopped.value.hint == "make room, then the same command again"
    script.need_room(machine(disk_free_bytes=15_600 * 10**6), 5_200)


def test_an_index_out_of_reach(script, tmp_path):
    assert not script.index_reachable("http://127.0.0.1:9/whl/cpu")
    assert not script.index_reachable("not an address")


def test_set_up_is_done_again_when_something_changed(script, tmp_path, monkeypatch):
    """The stamp, the project's files, the torch in .venv and the GPU each count."""
    stamp = tmp_path / "stamp"
    monkeypatch.setattr(script, "STAMP", stamp)
    monkeypatch.setattr(script, "_build", lambda: build("2.13.0+cpu"))
    assert not script.is_up_to_date(NO_GPU)
    stamp.write_text(script.fingerprint())
    assert script.is_up_to_date(NO_GPU)
    assert not script.is_up_to_date(RTX_4090)  # a card was put in
    monkeypatch.setattr(script, "_build", lambda: None)
    assert not script.is_up_to_date(NO_GPU)
    stamp.write_text("of an older pyproject.toml\n")
    assert not script.is_up_to_date(NO_GPU)


@pytest.fixture
def trial(script, tmp_path, monkeypatch):
    """The script, working on an empty .venv of its own instead of the project's."""
    folder = tmp_path / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    monkeypatch.setattr(script, "VENV", folder)
    monkeypatch.setattr(script, "PYTHON", folder / "bin/python")
    monkeypatch.setattr(script, "HOLD", folder / "held.txt")
    return script


def put_torch(python: Path, version: str, **kind: str) -> None:
    site_packages = next(python.parent.parent.glob("lib/python*/site-packages"))
    for name, content in torch_files(version, **kind).items():
        (site_packages / name).parent.mkdir(exist_ok=True)
        (site_packages / name).write_text(content)


def test_set_up_keeps_a_fitting_torch(trial, monkeypatch, capsys):
    put_torch(trial.PYTHON, "2.9.1+rocm7.2", hip="7.2")
    monkeypatch.setattr(trial, "pip", lambda *args: pytest.fail(f"pip {args}"))
    trial.install_torch(STRIX_HALO)
    assert capsys.readouterr().out == "torch      torch 2.9.1+rocm7.2 (ROCm build) is there and fits: kept\n"
    assert trial.HOLD.read_text() == "torch==2.9.1+rocm7.2\n"


def test_set_up_never_leaves_cuda_on_an_amd_machine(trial, monkeypatch, capsys):
    put_torch(trial.PYTHON, "2.13.0", cuda="13.0")
    monkeypatch.setattr(trial, "index_reachable", lambda url: False)
    monkeypatch.setattr(trial, "pip", lambda *args: pytest.fail(f"pip {args}"))
    with pytest.raises(MachineError, match="needs PyTorch's ROCm build"):
        trial.install_torch(STRIX_HALO)
    assert (
        capsys.readouterr().out
        == "torch      torch 2.13.0 (CUDA build) does not fit this machine: replaced\n"
    )
    assert not trial.HOLD.exists()


def test_set_up_checks_what_pip_brought(trial, monkeypatch, capsys):
    asked = []

    def pip(*args):
        asked.append(args)
        if args[0] == "install":
            put_torch(trial.PYTHON, "2.13.0", cuda="13.0")

    monkeypatch.setattr(trial, "index_reachable", lambda url: True)
    monkeypatch.setattr(trial, "pip", pip)
    with pytest.raises(trial.SetupError) as stopped:
        trial.install_torch(STRIX_HALO)
    assert stopped.value.what == (
        "torch 2.13.0 (CUDA build) was installed, which does not fit this machine; it is removed again"
    )
    assert stopped.value.hint == "put a build that fits into .venv yourself: it will be kept"
    assert asked == [
        ("install", "--upgrade", "torch==2.13.0+rocm7.2", "--index-url", INDEX + "rocm7.2"),
        ("uninstall", "--yes", "--quiet", "torch"),
    ]
    assert "           downloads up to about 5,200 MB\n" in capsys.readouterr().out


def test_set_up_says_when_torch_is_not_where_pip_put_it(trial, monkeypatch):
    monkeypatch.setattr(trial, "index_reachable", lambda url: True)
    monkeypatch.setattr(trial, "pip", lambda *args: None)
    with pytest.raises(trial.SetupError) as stopped:
        trial.install_torch(NO_GPU)
    assert stopped.value.what == "torch was installed, and .venv does not have it"
    assert stopped.value.hint == "make clean, then the same command again"


def test_set_up_notices_a_torch_that_was_replaced_behind_its_back(trial, monkeypatch):
    put_torch(trial.PYTHON, "2.13.0+cpu")
    monkeypatch.setattr(trial, "pip", lambda *args: put_torch(trial.PYTHON, "2.14.0", cuda="13.2"))
    with pytest.raises(trial.SetupError) as stopped:
        trial.install_project(NO_GPU)
    assert stopped.value.what == (
        "torch 2.13.0+cpu (CPU build) was held, and .venv now has torch 2.14.0 (CUDA build)"
    )


def test_a_failing_pip_is_named_with_its_command(trial):
    with pytest.raises(trial.SetupError) as stopped:
        trial.pip("install", "something")  # this .venv has no pip
    assert stopped.value.what == "pip could not finish (exit code 1)"
    assert stopped.value.hint == (
        f"its own words are above; the command was: {trial.PYTHON} -m pip --disable-pip-version-check "
        "install something"
    )


def test_in_a_vendors_container_its_torch_is_used(trial, tmp_path, monkeypatch, capsys):
    """AMD's image has its torch in a virtual environment, which a new one would not see."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "image")], check=True)
    image = tmp_path / "image/bin/python"
    put_torch(image, "2.9.1+rocm7.2", hip="7.2")
    monkeypatch.setattr(trial.sys, "executable", str(image))
    monkeypatch.setattr(trial, "pip", lambda *args: pytest.fail(f"pip {args}"))
    trial.install_torch(STRIX_HALO)
    assert capsys.readouterr().out == (
        f"torch      torch 2.9.1+rocm7.2 (ROCm build) of {image} fits: used from there\n"
    )
    assert trial.HOLD.read_text() == "torch==2.9.1+rocm7.2\n"
    found = installed_build(trial.PYTHON)
    assert (found.version, found.folder) == (
        "2.9.1+rocm7.2",
        next((tmp_path / "image").glob("lib/*/site-packages")),
    )


def wheel(folder: Path, name: str, version: str, files: dict[str, str], requires: str = "") -> None:
    """A small real wheel, as pip wants it."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        **files,
        f"{info}/METADATA": metadata + (f"Requires-Dist: {requires}\n" if requires else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)


@pytest.mark.real
def test_a_held_torch_survives_whatever_is_installed_after_it(tmp_path):
    """Set-up's constraint, with real pip: ROCm's torch stays, and a package that wants another fails."""
    python = tmp_path / "venv/bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel(wheels, "torch", "2.9.1+rocm7.2", torch_files("2.9.1+rocm7.2", hip="7.2"))
    wheel(wheels, "torch", "2.13.0", torch_files("2.13.0", cuda="13.0"))
    wheel(wheels, "modest", "1.0", {"modest.py": ""}, requires="torch>=2.9")
    wheel(wheels, "greedy", "1.0", {"greedy.py": ""}, requires="torch>=2.10")
    held = tmp_path / "held.txt"
    held.write_text("torch==2.9.1+rocm7.2\n")

    def pip(*args: str) -> subprocess.CompletedProcess:
        # --isolated: no index, cache or wheel folder of this machine has a say
        own = [sys.executable, "-m", "pip", "--isolated", "--python", str(python), "install", "--no-index"]
        return subprocess.run([*own, "--find-links", str(wheels), *args], capture_output=True, text=True)

    assert pip("torch==2.9.1+rocm7.2").returncode == 0
    assert pip("--constraint", str(held), "--upgrade", "modest").returncode == 0
    refused = pip("--constraint", str(held), "greedy")
    assert refused.returncode != 0
    assert "conflicting dependencies" in refused.stderr
    assert fits(STRIX_HALO, installed_build(python))
    # Without the constraint it would have been replaced: the trap is real.
    assert pip("greedy").returncode == 0
    assert not fits(STRIX_HALO, installed_build(python))
