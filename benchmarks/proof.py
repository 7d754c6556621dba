"""The long proofs, on real speech: `make proof` (about an hour on two cores), figures for docs/results.md.

Each proof is a command that a user types; what must hold is checked, and the table is printed either way.
The speech is found by WHISPERTUNE_SHARED (default ../shared). Or some: `benchmarks/proof.py kill czech`.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SHARED = Path(os.environ.get("WHISPERTUNE_SHARED", "../shared"))
SPEECH = SHARED / "speech"
COMMAND = [str(Path(sys.executable).with_name("whispertune"))]


def whispertune(*arguments: object, expect: tuple[int, ...] = (0,)) -> tuple[int, str, float]:
    """Exit code, output and minutes of a command."""
    begin = time.monotonic()
    print("$ whispertune", *arguments, flush=True)
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    minutes = (time.monotonic() - begin) / 60
    print(done.stdout, flush=True)
    assert done.returncode in expect, f"exit {done.returncode}, expected {expect}"
    assert "Traceback" not in done.stdout
    return done.returncode, done.stdout, minutes


def child(work: Path) -> str:
    """Children reading, full fine-tuning: down by a third of itself, interval below 0, in 30 minutes."""
    code, _, minutes = whispertune(
        "train",
        SPEECH / "child-en",
        "--model",
        "tiny.en",
        "--guard",
        SPEECH / "read-en",
        "--run",
        work / "child",
        expect=(0, 3),
    )
    report = json.loads((work / "child" / "report.json").read_text())
    assert minutes <= 30, f"{minutes:.1f} min"
    assert report["after"] <= report["before"] * 2 / 3, (report["before"], report["after"])
    assert report["difference"]["high"] < 0
    failed = [guard["name"] for guard in report["guards"] if guard["status"] == "failed"]
    assert (code == 3) == (report["verdict"] == "worse") == bool(failed)
    return f"{report['sentence']} Exit {code}, {minutes:.1f} min in all."


def czech(work: Path) -> str:
    """Two Czech actors, base, decoder only: better, in 60 minutes."""
    _, _, minutes = whispertune(
        "train",
        SPEECH / "czech",
        "--model",
        "base",
        "--language",
        "cs",
        "--method",
        "decoder",
        "--run",
        work / "czech",
    )
    report = json.loads((work / "czech" / "report.json").read_text())
    assert minutes <= 60, f"{minutes:.1f} min"
    assert report["verdict"] == "better", report["verdict"]
    return f"{report['sentence']} {minutes:.1f} min in all."


def silly(work: Path) -> str:
    """A silly learning rate: stopped with exit 1, or worse with exit 3; the base model is recommended."""
    code, output, _ = whispertune(
        "train", SPEECH / "child-en", "--model", "tiny.en", "--run", work / "silly", "--passes", 1,
        "--set", "train.learning_rate=0.02", "--set", "eval.test_minutes=3", expect=(1, 3),
    )  # fmt: skip
    assert ("Keep the base model" in output) or ("the base model is unchanged" in output)
    last = [line for line in output.splitlines() if line.startswith(("verdict", "error"))]
    return f"exit {code}: {' '.join(last)}"


def kill(work: Path) -> str:
    """kill -9 in mid-training, the same command again: bit-identical to an undisturbed run."""
    common = ["train", SPEECH / "child-en", "--model", "tiny.en", "--steps", "12"]
    common += ["--eval-every", "4", "--save-every", "3", "--set", "eval.test_minutes=0.5"]
    whispertune(*common, "--run", work / "undisturbed")
    shutil.rmtree(work / "killed", ignore_errors=True)
    kills = 0
    for at_step in (4, 8):
        process = subprocess.Popen(
            [*COMMAND, *map(str, common), "--run", str(work / "killed")], stdout=subprocess.DEVNULL
        )
        while _steps(work / "killed") < at_step and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    _, output, _ = whispertune(*common, "--run", work / "killed")
    assert "going on from step" in output
    hashes = [_sha256(work / run / "model" / "model.safetensors") for run in ("undisturbed", "killed")]
    assert hashes[0] == hashes[1], hashes
    return f"killed {kills} times, resumed; model.safetensors {hashes[0][:16]} both times"


def _steps(run: Path) -> int:
    events = run / "events.jsonl"
    if not events.is_file():
        return 0
    return max(
        (json.loads(line)["step"] for line in events.read_text().splitlines() if '"kind": "step"' in line),
        default=0,
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


PROOFS: dict[str, Callable[[Path], str]] = {"child": child, "czech": czech, "silly": silly, "kill": kill}


def main() -> int:
    if not SPEECH.is_dir():
        print(f"no speech at {SPEECH}: set WHISPERTUNE_SHARED", file=sys.stderr)
        return 1
    chosen = sys.argv[1:] or list(PROOFS)
    work = Path(os.environ.get("WHISPERTUNE_PROOFS") or tempfile.mkdtemp(prefix="whispertune-proof-"))
    rows, missed = [], 0
    for name in chosen:
        try:
            rows.append((name, "held", PROOFS[name](work)))
        except AssertionError as error:
            rows.append((name, "MISSED", str(error)))
            missed += 1
    print(f"\nruns in {work}\n\n| proof | outcome | measured |\n| --- | --- | --- |")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
