"""The floors of the architecture: an import only ever goes down (docs/design.md).

Imports are read from the source, those inside functions too: a lazy import is still a dependency.
"""

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src"

FLOORS = {
    "whispertune": 0,  # the package's own __init__
    "errors": 0,
    "clip": 0,
    "recipe": 0,
    "corpus": 1,
    "plan": 1,
    "project": 1,
    "run": 1,
    "versions": 1,
    "report": 1,
    "comparison": 1,
    "compare_page": 1,
    "report_figures": 1,
    "report_page": 1,
    "report_tables": 1,
    "reference": 1,
    "data": 1,
    "scoring": 1,
    "hardware": 1,
    "engine": 2,
    "ship": 2,
    "steps": 3,
    "job": 3,
    "delivery": 3,
    "judging": 3,
    "models_compared": 3,
    "folds": 3,
    "demo": 3,
    "capture": 3,
    "backends": 4,
    "cli": 5,
    "terminal": 5,
    "studio": 5,
    "__main__": 5,
}
"""A module nobody placed here fails the test: say first how deep it lies."""

TORCH_AND_WHAT_BRINGS_IT = {"torch", "transformers", "peft", "accelerate", "torchaudio", "openai-whisper"}
FACES = {"cli", "terminal", "studio"}
FACES_NEVER_IMPORT = {"engine", "ship"}


@dataclass(frozen=True)
class Import:
    file: str
    line: int
    importer: str
    """Name in FLOORS."""
    module: str
    """Dotted and absolute: `whispertune.data.audio`, `torch.nn`."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.importer}) imports {self.module}"

    @property
    def own(self) -> str | None:
        """Name in FLOORS of what is imported, or None when it is not ours."""
        return part_of(self.module) if self.module.split(".")[0] == "whispertune" else None


def part_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def imports_of(file: Path, root: Path) -> list[Import]:
    """Every import of a source file below `root`, wherever in it."""
    dotted = list(file.relative_to(root).with_suffix("").parts)
    package = dotted[:-1]
    module = ".".join(package if dotted[-1] == "__init__" else dotted)
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *filter(None, [node.module])])
            # `from whispertune import engine` and `from . import engine` name the module last.
            names = [f"{source}.{a.name}" for a in node.names] if source == "whispertune" else [source]
        else:
            continue
        relative = str(file.relative_to(root))
        found += [Import(relative, node.lineno, part_of(module), name) for name in names]
    return found


def wrong(found: list[Import]) -> list[str]:
    """The rules, each broken one as a sentence."""
    complaints = []
    for each in found:
        if each.importer not in FLOORS:
            complaints.append(f"{each.file} has no floor: place '{each.importer}' in FLOORS")
        elif each.own is None:
            top = each.module.split(".")[0]
            if FLOORS[each.importer] <= 1 and top in TORCH_AND_WHAT_BRINGS_IT:
                complaints.append(f"{each}: torch starts at floor 2")
            if each.importer == "hardware" and top not in sys.stdlib_module_names:
                complaints.append(f"{each}: hardware/ is standard library only")
            if top == "modal" and each.importer != "backends":
                complaints.append(f"{each}: modal is for backends/ only")
        elif each.own in FLOORS:
            if FLOORS[each.own] > FLOORS[each.importer]:
                complaints.append(f"{each}: upwards, {FLOORS[each.importer]} to {FLOORS[each.own]}")
            if each.importer in FACES and each.own in FACES_NEVER_IMPORT:
                complaints.append(f"{each}: a face goes through steps or backends")
            if each.importer == "hardware" and each.own not in ("hardware", "errors"):
                complaints.append(f"{each}: set-up imports hardware/ before anything is installed")
        # Otherwise a name of the package itself, such as __version__.
    return complaints


def test_no_import_goes_up():
    files = sorted((SOURCE / "whispertune").rglob("*.py"))
    found = [each for file in files for each in imports_of(file, SOURCE)]
    assert len(found) > len(files)
    assert wrong(found) == []


def test_every_module_has_a_floor():
    entries = [
        file for file in (SOURCE / "whispertune").iterdir() if file.suffix == ".py" or any(file.rglob("*.py"))
    ]
    names = {file.stem for file in entries} - {"__init__"}
    assert names - FLOORS.keys() == set()


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        (
            "whispertune/corpus.py",
            "def load():\n    from whispertune.engine.model import read\n",
            "whispertune/corpus.py:2 (corpus) imports whispertune.engine.model: upwards, 1 to 2",
        ),
        (
            "whispertune/clip.py",
            "from whispertune import run\n",
            "whispertune/clip.py:1 (clip) imports whispertune.run: upwards, 0 to 1",
        ),
        (
            "whispertune/data/audio.py",
            "from .. import steps\n",
            "whispertune/data/audio.py:1 (data) imports whispertune.steps: upwards, 1 to 3",
        ),
        (
            "whispertune/data/audio.py",
            "from ..steps import train\n",
            "whispertune/data/audio.py:1 (data) imports whispertune.steps: upwards, 1 to 3",
        ),
        (
            "whispertune/plan.py",
            "if True:\n    import torch.nn as nn\n",
            "whispertune/plan.py:2 (plan) imports torch.nn: torch starts at floor 2",
        ),
        (
            "whispertune/scoring/align.py",
            "from transformers import WhisperTokenizer\n",
            "whispertune/scoring/align.py:1 (scoring) imports transformers: torch starts at floor 2",
        ),
        (
            "whispertune/cli.py",
            "from whispertune.engine import train\n",
            "whispertune/cli.py:1 (cli) imports whispertune.engine: a face goes through steps or backends",
        ),
        (
            "whispertune/hardware/detect.py",
            "import numpy\n",
            "whispertune/hardware/detect.py:1 (hardware) imports numpy: hardware/ is standard library only",
        ),
        (
            "whispertune/hardware/detect.py",
            "from whispertune.clip import Clip\n",
            "whispertune/hardware/detect.py:1 (hardware) imports whispertune.clip: set-up imports hardware/ "
            "before anything is installed",
        ),
        (
            "whispertune/engine/train.py",
            "import modal\n",
            "whispertune/engine/train.py:1 (engine) imports modal: modal is for backends/ only",
        ),
        (
            "whispertune/utils.py",
            "import os\n",
            "whispertune/utils.py has no floor: place 'utils' in FLOORS",
        ),
    ],
)
def test_a_broken_rule_is_seen(tmp_path, file, source, complaint):
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(source)
    assert wrong(imports_of(tmp_path / file, tmp_path)) == [complaint]


def test_what_may_be_imported_is_not_complained_of(tmp_path):
    file = tmp_path / "whispertune/engine/train.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "import torch\nfrom . import model\nfrom ..errors import DataError\n"
        "from whispertune import __version__\nfrom whispertune.ship.hub import push\n"
    )
    assert wrong(imports_of(file, tmp_path)) == []


@pytest.mark.parametrize("module", ["cli", "hardware.torch_build", "corpus", "plan", "run", "report", "comparison", "compare_page"])
def test_importing_it_leaves_torch_out(module):
    code = (
        f"import sys, whispertune.{module}; print(sorted(sys.modules.keys() & {TORCH_AND_WHAT_BRINGS_IT!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin"},
    )
    assert done.stderr == ""
    assert done.stdout == "[]\n"
