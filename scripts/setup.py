"""Sets the project up in .venv: `make setup`. Standard library only; safe to run again at any time.

The right torch goes in first, and a constraint holds it there: nothing installed later can bring another.
This file must be readable by an old Python too, for that one to say what is missing.
"""

import hashlib
import importlib.util
import os
import shutil
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "whispertune-setup.txt"
HOLD = VENV / "whispertune-torch.txt"
"""A pip constraint: the torch that is in."""

OLDEST, NEWEST = (3, 11), (3, 14)
"""Pythons that torch 2.13 and everything else we need have wheels for."""
EXTRAS = "local,offline,demo"
PROJECT_MB = 700
"""Everything but torch, downloaded, rounded up."""
ANNOUNCE_MB = 500
START_AGAIN = "make clean, then the same command again"
UNPACKED = 3
"""A torch wheel takes about this many times its download, the download itself included."""


class SetupError(Exception):
    """What is wrong, and what to do about it."""

    def __init__(self, what, hint=""):
        super().__init__(what)
        self.what = what
        self.hint = hint


def python_to_use(path=None):
    """The Python to build .venv with: this one if it is in range, otherwise the first on PATH that is."""
    found = {sys.executable: sys.version_info[:2]}
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        for name in ("python3", "python3.13", "python3.12", "python3.14", "python3.11", "python"):
            program = shutil.which(name, path=path)
            if program and program not in found:
                version = _version_of(program)
                if version:
                    found[program] = version
    for program, version in found.items():
        if OLDEST <= version <= NEWEST:
            return program
    for program, version in found.items():
        if version > NEWEST:
            return program  # too new to promise anything, and better than nothing
    raise SetupError(
        "whispertune needs Python {} or newer; found here: {}".format(
            _dotted(OLDEST), ", ".join(f"{_dotted(v)} ({p})" for p, v in found.items())
        ),
        "install one ({}), then the same command again".format(_install_command("python3.13", "python@3.13")),
    )


def need_venv_module(find_spec=importlib.util.find_spec):
    """Debian and Ubuntu leave these two out of their python3."""
    missing = [name for name in ("venv", "ensurepip") if find_spec(name) is None]
    if missing:
        package = f"python{_dotted(sys.version_info[:2])}-venv"
        raise SetupError(
            "this Python ({}) lacks its module {}".format(sys.executable, " and ".join(missing)),
            "{}, then the same command again".format(_install_command(package, "python@3.13")),
        )


def index_reachable(url):
    """Whether `url`, a package index, answers for torch. Proxies and certificates as pip takes them."""
    try:
        context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
        with urllib.request.urlopen(url + "/torch/", timeout=10, context=context) as answer:
            return answer.status == 200
    except (OSError, ValueError):
        return False


def set_up():
    """Builds or completes .venv. Raises SetupError or one of whispertune's own errors."""
    from whispertune.hardware.detect import describe, detect
    from whispertune.hardware.torch_build import gpu_trouble

    machine = detect(folder=ROOT, ask_driver=False)
    if is_up_to_date(machine):
        print(f"set-up     up to date: {_build()}")
    else:
        machine = detect(folder=ROOT)
        print(f"machine    {describe(machine)}")
        make_venv()
        install_torch(machine)
        install_project(machine)
        STAMP.write_text(fingerprint(), encoding="utf-8")
        print("set-up     done: .venv/bin/whispertune is ready")
    trouble = gpu_trouble(machine)
    if trouble:
        print(f"GPU        {trouble.what}; everything runs on the processor meanwhile")
        print(f"           to use it: {trouble.cure}; then make setup")


def is_up_to_date(machine):
    """Whether nothing has changed since the last set-up: neither files, nor torch, nor this machine's GPU."""
    from whispertune.hardware.torch_build import fits

    if not STAMP.is_file() or STAMP.read_text(encoding="utf-8") != fingerprint():
        return False
    build = _build()
    return build is not None and fits(machine, build)


def fingerprint():
    """Of all that decides what is in .venv. Its place counts: a venv that is moved has wrong paths inside."""
    files = ["pyproject.toml", "scripts/setup.py", "src/whispertune/hardware/torch_build.py"]
    parts = [str(VENV).encode()] + [(ROOT / name).read_bytes() for name in files]
    return hashlib.sha256(b"\0".join(parts)).hexdigest() + "\n"


def make_venv():
    """Makes .venv, or keeps one that works: its Python in range, its pip there, nothing moved."""
    prefix = _ask(PYTHON, "import sys, pip; print(sys.prefix)")
    if prefix != str(VENV) or not OLDEST <= (_version_of(PYTHON) or (0,)) <= NEWEST:
        need_venv_module()
        # Run from an activated .venv, this Python is the one that is about to be cleared away.
        python = os.path.realpath(sys.executable) if sys.prefix == str(VENV) else sys.executable
        print(f"set-up     .venv with Python {_dotted(sys.version_info[:2])}")
        _run([python, "-m", "venv", "--clear", str(VENV)], "creating .venv failed")
    # --group came with pip 25.1
    pip("install", "--quiet", "--upgrade", "pip>=25.1")


def install_torch(machine):
    """Puts the fitting torch into .venv, or keeps it, and holds it."""
    from whispertune.hardware.torch_build import choose, fits, installed_build, usable

    build, theirs = _build(), installed_build(sys.executable)
    if build and fits(machine, build):
        print(f"torch      {build} is there and fits: kept")
    elif usable(machine) and theirs and fits(machine, theirs):
        # A vendor's container: its torch is gigabytes, and the one that its driver was tested with.
        print(f"torch      {theirs} of {sys.executable} fits: used from there")
        site_packages = Path(_ask(PYTHON, "import sysconfig; print(sysconfig.get_path('purelib'))"))
        site_packages.joinpath("vendor-torch.pth").write_text(f"{theirs.folder}\n", encoding="utf-8")
    else:
        if build:
            print(f"torch      {build} does not fit this machine: replaced")
        choice = choose(machine, index_reachable)
        print(f"torch      {choice.reason}")
        need_room(machine, choice.download_mb)
        if choice.download_mb > ANNOUNCE_MB:
            print(f"           downloads up to about {choice.download_mb:,} MB")
            pip("install", "--upgrade", *choice.pip_args)  # with its progress bar
        else:
            pip("install", "--quiet", "--upgrade", *choice.pip_args)
    build = _build()
    if build is None:
        raise SetupError("torch was installed, and .venv does not have it", START_AGAIN)
    if not fits(machine, build):
        pip("uninstall", "--yes", "--quiet", "torch")
        raise SetupError(
            f"{build} was installed, which does not fit this machine; it is removed again",
            "put a build that fits into .venv yourself: it will be kept",
        )
    HOLD.write_text(f"torch=={build.version}\n", encoding="utf-8")


def install_project(machine):
    held = _build()
    need_room(machine, PROJECT_MB)
    print(f"packages   whispertune[{EXTRAS}], tools for tests: up to about {PROJECT_MB:,} MB, some minutes")
    pip("install", "--quiet", "--constraint", HOLD, "--editable", f".[{EXTRAS}]", "--group", "dev")
    if _build() != held:
        raise SetupError(f"{held} was held, and .venv now has {_build()}", START_AGAIN)
    print(f"torch      {held}")


def need_room(machine, download_mb):
    free_mb, needed_mb = machine.disk_free_bytes // 10**6, UNPACKED * download_mb
    if free_mb < needed_mb:
        raise SetupError(
            f"{free_mb:,} MB of disk are free in {ROOT}, and about {needed_mb:,} MB are needed",
            "make room, then the same command again",
        )


def pip(*args):
    """Runs .venv's pip in the project's folder, where `--group` finds pyproject.toml."""
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check"] + [str(arg) for arg in args]
    _run(command, "pip could not finish")


def _run(command, complaint):
    sys.stdout.flush()
    done = subprocess.run(command, cwd=str(ROOT), env=dict(os.environ, PYTHONNOUSERSITE="1"))
    if done.returncode != 0:
        raise SetupError(
            f"{complaint} (exit code {done.returncode})",
            "its own words are above; the command was: {}".format(" ".join(command)),
        )


def _build():
    from whispertune.hardware.torch_build import installed_build

    return installed_build(PYTHON)


def _version_of(program):
    """(3, 12), or None where `program` is only a name: version managers leave such stand-ins on PATH."""
    answer = _ask(program, "import sys; print('%d.%d' % sys.version_info[:2])")
    return tuple(int(part) for part in answer.split(".")) if answer else None


def _ask(python, code):
    try:
        return subprocess.check_output([str(python), "-c", code], stderr=subprocess.DEVNULL).decode().strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _dotted(version):
    return ".".join(str(part) for part in version)


def _install_command(package, brew):
    """How this system installs a package, in its own words."""
    if sys.platform == "darwin":
        return f"brew install {brew}"
    for tool in ("apt", "dnf", "zypper", "pacman"):
        if shutil.which(tool):
            verb = "-S" if tool == "pacman" else "install"
            return f"sudo {tool} {verb} {package}"
    return f"install the package {package}"


def main():
    try:
        if sys.platform == "win32":
            raise SetupError(
                "whispertune does not run on native Windows",
                "use WSL: type `wsl --install` in PowerShell, then the same commands in its Linux",
            )
        python = python_to_use()
        if python != sys.executable:
            os.execv(python, [python, str(Path(__file__).resolve())])
    except SetupError as error:
        return _complain(error)

    sys.path.insert(0, str(ROOT / "src"))
    from whispertune.errors import WhispertuneError

    try:
        set_up()
    except (SetupError, WhispertuneError) as error:
        return _complain(error)
    except KeyboardInterrupt:
        print("\nset-up: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def _complain(error):
    print(f"set-up: {error.what}", file=sys.stderr)
    if error.hint:
        print(f"  to mend it: {error.hint}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
