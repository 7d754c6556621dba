"""Where it runs and in which precision, refusals first; nothing depends on how fast this machine is."""

import platform
import re

import pytest

from whispertune.errors import MachineError
from whispertune.hardware.detect import Gpu, Machine, describe
from whispertune.recipe import MachineSection

torch = pytest.importorskip("torch")

from whispertune.engine import device as module
from whispertune.engine.device import (
    machine_facts,
    pick_device,
    probe_precision,
    versions,
)

GB = 2**30
CPU = torch.device("cpu")
BARE = Machine("Linux", "x86_64", 8, 32 * GB, 100 * GB)
STRIX = Machine("Linux", "x86_64", 16, 96 * GB, 100 * GB, (Gpu("amd", arch="gfx1151"),), kfd="ok")
NVIDIA = Machine(
    "Linux", "x86_64", 8, 32 * GB, 100 * GB, (Gpu("nvidia", "RTX 4090", "sm_89"),), nvidia_driver="580.65.06"
)
APPLE = Machine("Darwin", "arm64", 8, 32 * GB, 100 * GB, (Gpu("apple", "Apple GPU"),))
UNKNOWN = Machine("Linux", "x86_64", 8, 32 * GB, 100 * GB, (Gpu("amd", arch="gfx803"),), kfd="ok")
OLD = Machine(
    "Linux", "x86_64", 8, 32 * GB, 100 * GB, (Gpu("nvidia", "GT 710", "sm_35"),), nvidia_driver="470"
)


@pytest.fixture(autouse=True)
def no_gpu_in_torch(monkeypatch):
    """As on a machine without one, wherever the tests run."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")


# --- which device


@pytest.mark.parametrize(
    ("machine", "what", "cure"),
    [
        (
            STRIX,
            "AMD gfx1151 is here, and torch 2.13.0+cpu cannot use it",
            "whispertune doctor says how to mend it",
        ),
        (
            NVIDIA,
            "NVIDIA RTX 4090 (sm_89) is here, and torch 2.13.0+cpu cannot use it",
            "whispertune doctor says how to mend it",
        ),
        (
            APPLE,
            "Apple GPU is here, and torch 2.13.0+cpu cannot use it",
            "whispertune doctor says how to mend it",
        ),
        (
            Machine("Linux", "x86_64", 8, 32 * GB, 100 * GB, STRIX.gpus, kfd="denied"),
            "AMD gfx1151 is here, and this user may not open /dev/kfd",
            "sudo usermod -aG render,video $USER, then log out and in again",
        ),
        (
            Machine("Linux", "x86_64", 8, 32 * GB, 100 * GB, STRIX.gpus),
            "AMD gfx1151 is here, and its compute device /dev/kfd is not",
            "load the driver (sudo modprobe amdgpu); in a container, start it with --device=/dev/kfd "
            "--device=/dev/dri",
        ),
        (
            Machine("Linux", "x86_64", 8, 32 * GB, 100 * GB, NVIDIA.gpus),
            "NVIDIA RTX 4090 (sm_89) is here, and NVIDIA's driver is not loaded",
            "install your distribution's driver for it (Ubuntu: sudo ubuntu-drivers install) and reboot; in "
            "a container, start it with --gpus all",
        ),
        (
            Machine("Linux", "x86_64", 8, 32 * GB, 100 * GB, NVIDIA.gpus, nvidia_driver="450.1"),
            "NVIDIA RTX 4090 (sm_89) is here, and its driver 450.1 is older than 525, the first that "
            "PyTorch's CUDA build runs on",
            "update NVIDIA's driver to 525 or newer and reboot",
        ),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_never_a_silent_cpu(machine, what, cure):
    with pytest.raises(MachineError) as error:
        pick_device("auto", machine)
    assert error.value.what == f"{what}; training would run on the CPU"
    assert error.value.hint == f"{cure}; or --device cpu, if the CPU is meant"
    assert pick_device("cpu", machine) == (CPU, "as asked")


@pytest.mark.parametrize("asked", ["cuda", "mps"])
def test_a_device_asked_for_that_is_not_there(asked):
    with pytest.raises(MachineError) as error:
        pick_device(asked, BARE)
    assert error.value.what == f"--device {asked}: torch 2.13.0+cpu sees no such device"
    assert error.value.hint == "whispertune doctor says why"


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        (BARE, "there is no GPU"),
        (UNKNOWN, "AMD gfx803 is here, and no PyTorch build has kernels for it"),
        (OLD, "NVIDIA GT 710 (sm_35) is here, and PyTorch's oldest CUDA build has kernels from sm_50 on"),
    ],
)
def test_a_machine_whose_gpu_nothing_can_use_trains_on_the_cpu_and_says_why(machine, why):
    assert pick_device("auto", machine) == (CPU, why)


def test_a_usable_gpu_is_taken(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device("auto", APPLE) == (torch.device("mps"), "Apple GPU, torch 2.13.0+cpu")
    assert pick_device("mps", APPLE) == (torch.device("mps"), "as asked")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "AMD Radeon 8060S")
    device, why = pick_device("auto", STRIX)
    assert (device.type, why) == ("cuda", "AMD Radeon 8060S, torch 2.13.0+cpu")


# --- which precision


@pytest.fixture
def products(monkeypatch):
    """Real products, spoiled by format, at speeds of our choosing: `products(bf16=spoil, fp32=10.0)`.

    A number is a speed in TFLOP/s, a function is applied to each product.
    """

    def arrange(**formats):
        monkeypatch.setattr(
            module, "_measured", lambda device, name: _one(device, name, formats.get(name, 1.0))
        )

    def _one(device, name, how):
        if isinstance(how, float):
            return how
        generator = torch.Generator().manual_seed(0)
        left, right = (torch.randn(256, 256, generator=generator).to(device) for _ in range(2))
        kind = module._DTYPES[name]
        product = how(left.to(kind) @ right.to(kind))
        return 9.0 if module._is_right(product, left, right, name) else None

    return arrange


def not_a_number(product):
    product[200, 3] = float("nan")
    return product


def raises(product):
    raise RuntimeError("no kernel image is available for execution on the device")


def test_fp16_does_not_train_on_a_cpu():
    with pytest.raises(MachineError) as error:
        probe_precision(CPU, "fp16")
    assert error.value.what == "fp16 cannot train on a CPU"
    assert error.value.hint == "leave machine.precision=auto: it takes fp32 here"


@pytest.mark.parametrize(
    "spoil", [not_a_number, lambda p: p * 1.05, lambda p: p.flip(0), torch.zeros_like, raises]
)
def test_wrong_bf16_falls_to_fp32_and_says_so(products, spoil):
    """Case 41: NaN, a wrong scale, rows out of order, nothing written, no kernel."""
    products(fp32=2.5, bf16=spoil)
    chosen = probe_precision(CPU, "auto")
    assert (chosen.name, chosen.tflops) == ("fp32", {"fp32": 2.5, "bf16": None})
    assert chosen.reason == "fp32 2.5 TFLOP/s, bf16 wrong or no numbers"
    with pytest.raises(MachineError) as error:
        probe_precision(CPU, "bf16")
    assert (
        error.value.what
        == "bf16 does not work on this cpu device (fp32 2.5 TFLOP/s, bf16 wrong or no numbers)"
    )
    assert error.value.hint == "use machine.precision=fp32"


@pytest.mark.parametrize("asked", ["auto", "fp32", "bf16"])
@pytest.mark.parametrize("spoil", [not_a_number, lambda p: p * 1.01, raises])
def test_a_device_that_cannot_multiply_is_refused(products, spoil, asked):
    products(fp32=spoil, bf16=5.0)
    with pytest.raises(MachineError) as error:
        probe_precision(CPU, asked)
    assert error.value.what == (
        "this cpu device multiplies matrices wrongly or not at all (fp32 wrong or no numbers, "
        "bf16 5.0 TFLOP/s)"
    )
    assert error.value.hint == "whispertune doctor says what torch has kernels for; or --device cpu"


@pytest.mark.parametrize(
    ("speeds", "chosen", "why"),
    [
        ({"fp32": 0.2, "bf16": 0.0005}, "fp32", "fp32 200 GFLOP/s, bf16 0.5 GFLOP/s"),  # no bf16 units
        ({"fp32": 2.4, "bf16": 23.7}, "bf16", "fp32 2.4 TFLOP/s, bf16 23.7 TFLOP/s"),
        ({"fp32": 1.0, "bf16": 1.0}, "fp32", "fp32 1.0 TFLOP/s, bf16 1.0 TFLOP/s"),
    ],
)
def test_the_fastest_that_is_right(products, speeds, chosen, why):
    products(**speeds)
    found = probe_precision(CPU, "auto")
    assert (found.name, found.reason) == (chosen, why)
    asked = probe_precision(CPU, "fp32")
    assert (asked.name, asked.reason) == ("fp32", f"as asked ({why})")


@pytest.mark.parametrize(("fp16", "chosen"), [(10.0, "bf16"), (14.0, "bf16"), (15.0, "fp16")])
def test_fp16_has_to_be_clearly_faster(products, fp16, chosen):
    products(fp32=1.0, bf16=10.0, fp16=fp16)
    assert probe_precision(torch.device("cuda"), "auto").name == chosen


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_true_products_are_right_and_the_probe_is_short(monkeypatch, name):
    """Whatever the machine: one product of 256² on a clock that says each takes a second."""
    clock = iter(range(1000))
    monkeypatch.setattr(module.time, "perf_counter", lambda: float(next(clock)))
    assert module._speed(CPU, name) == pytest.approx(2 * 256**3 / 1e12)
    assert next(clock) == 2


def test_the_product_grows_while_it_is_quick(monkeypatch):
    """To 1024²: by the next doubling it would take eight times as long, over 0.3 s."""
    sizes = []
    real = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *size, **how: (sizes.append(size[0]), real(*size, **how))[1])
    took = {256: 0.001, 512: 0.008, 1024: 0.064}
    stamps = iter([t for seconds in took.values() for t in (0.0, seconds)])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(stamps))
    assert module._speed(CPU, "fp32") == pytest.approx(2 * 256**3 / 0.001 / 1e12)
    assert sizes[::2] == [256, 512, 1024]


# --- the facts of a run


def test_facts_are_those_of_this_machine(monkeypatch, products):
    products(fp32=0.1, bf16=0.05)
    threads = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(module, "detect", lambda: UNKNOWN)
    facts = machine_facts(MachineSection())
    assert (facts.device, facts.precision, facts.threads, facts.memory_bytes) == ("cpu", "fp32", 8, 32 * GB)
    assert facts.device_reason == "AMD gfx803 is here, and no PyTorch build has kernels for it"
    assert facts.precision_reason == "fp32 100 GFLOP/s, bf16 50 GFLOP/s"
    assert facts.description == describe(UNKNOWN)
    asked = machine_facts(MachineSection(device="cpu", precision="bf16", threads=3))
    assert (asked.device_reason, asked.precision, asked.threads) == ("as asked", "bf16", 3)
    assert threads == [8, 3]  # set before the measurement, so that it measures what will be used


def test_versions_of_what_can_change_a_number():
    found = versions()
    assert set(found) == {"whispertune", "python", "torch", "transformers", "peft", "numpy"}
    assert found["python"] == platform.python_version()
    assert all(re.match(r"\d+\.\d+", version) for version in found.values())
