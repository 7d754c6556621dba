"""The wheel in a clean environment: whole, and of use without torch."""

import json
import subprocess
import sys
import wave
import zipfile
from pathlib import Path

import numpy as np
import pytest

import whispertune

pytestmark = pytest.mark.real

PROJECT = Path(__file__).resolve().parent.parent


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=cwd)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = run(
        *(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, PROJECT), cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The bin folder of a new environment that has the wheel and its base dependencies, and nothing else."""
    folder = tmp_path_factory.mktemp("clean")
    made = run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    assert made.returncode == 0, made.stdout + made.stderr
    python = folder / "venv/bin/python"
    done = run(python, "-m", "pip", "install", "--quiet", wheel, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return python.parent


def test_the_wheel_carries_every_file_of_the_package(wheel):
    package = PROJECT / "src/whispertune"
    ours = {
        str(file.relative_to(package.parent))
        for file in package.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    names = set(zipfile.ZipFile(wheel).namelist())
    assert ours - names == set()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "scripts/", "benchmarks/")) for name in names)


def test_nothing_in_the_base_package_brings_torch(installed, tmp_path):
    done = run(installed / "python", "-c", "import torch", cwd=tmp_path)
    assert "ModuleNotFoundError: No module named 'torch'" in done.stderr
    assert run(installed / "python", "-m", "pip", "check", cwd=tmp_path).returncode == 0


def test_the_command_works_there(installed, tmp_path):
    version = run(installed / "whispertune", "--version", cwd=tmp_path)
    assert (version.returncode, version.stderr) == (0, "")
    assert whispertune.__version__ in version.stdout
    asked = run(installed / "whispertune", "--help", cwd=tmp_path)
    assert (asked.returncode, asked.stderr) == (0, "")
    for verb in ("import", "train", "eval", "export", "transcribe", "runs", "demo"):
        assert verb in asked.stdout


def test_import_check_and_doctor_work_there_and_train_names_what_is_missing(installed, tmp_path):
    clips = tmp_path / "clips"
    clips.mkdir()
    rows = ["file_name,transcription"]
    for number in range(12):
        tone = (3000 * np.sin(2 * np.pi * (200 + 20 * number) * np.arange(32_000) / 16_000)).astype("<i2")
        with wave.open(str(clips / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 16_000, 0, "NONE", ""))
            file.writeframes(tone.tobytes())
        rows.append(f"{number}.wav,Clip number {number} is a tone.")
    (clips / "metadata.csv").write_text("\n".join(rows))

    imported = run(installed / "whispertune", "import", "clips", "--to", "corpus", "--json", cwd=tmp_path)
    assert imported.returncode == 0, imported.stderr
    assert json.loads(imported.stdout)["kept"] == 12
    checked = run(installed / "whispertune", "check", "corpus", "--json", cwd=tmp_path)
    found = [finding["reason"] for finding in json.loads(checked.stdout)]
    assert (checked.returncode, found) == (3, ["few_test"]), checked.stderr
    doctor = run(installed / "whispertune", "doctor", cwd=tmp_path)
    assert doctor.returncode == 1 and "torch is not installed" in doctor.stdout
    trained = run(installed / "whispertune", "train", "corpus", "--model", "tiny.en", cwd=tmp_path)
    assert trained.returncode == 1
    assert "needs the extra 'local', which is not installed here" in trained.stderr
    assert "Traceback" not in trained.stderr
