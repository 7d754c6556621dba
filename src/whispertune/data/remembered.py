"""A source given where a corpus is expected is imported once, and found again."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from whispertune.corpus import is_corpus
from whispertune.data.importers import ImportSummary, import_source
from whispertune.errors import MachineError


def cache_folder() -> Path:
    """Where imported corpora and joined weights are kept: `$XDG_CACHE_HOME/whispertune`.

    Raises:
        MachineError: neither that nor a home is known.
    """
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named) / "whispertune"
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        raise MachineError(
            "there is no place for imported corpora and joined weights: HOME names no folder",
            "set HOME, or point XDG_CACHE_HOME to a folder that can be written",
        )
    return Path(home) / ".cache" / "whispertune"


def corpus_of(
    source: str,
    language: str | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> tuple[Path, ImportSummary | None]:
    """The corpus folder for a corpus or a source, and the summary of the import where one was needed.

    Raises:
        DataError: the source cannot be read.
    """
    folder = Path(source)
    if is_corpus(folder):
        return folder, None
    # The last part of the path is what a corpus is called in reports.
    name = Path(os.path.abspath(source)).name or "corpus"
    target = cache_folder() / "corpora" / _fingerprint(source, language) / name.replace(":", "-")
    if is_corpus(target):
        return target, None
    target.parent.mkdir(parents=True, exist_ok=True)
    return target, import_source(source, target, language=language, progress=progress)


def _fingerprint(source: str, language: str | None) -> str:
    """Changes when a file of a local source does: names, sizes and times, not contents."""
    digest = hashlib.sha256(f"{language}\0".encode())
    path = Path(source)
    if not path.exists():
        digest.update(source.encode())
        return digest.hexdigest()[:12]
    path = path.resolve()
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    digest.update(bytes(path))
    for file in files:
        status = file.stat()
        digest.update(bytes(file) + f"\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:12]
