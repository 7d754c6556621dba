"""A corpus on disk: a folder of `clips.parquet`, WAV shards, `rejected.jsonl` and `findings.jsonl`.

Shards are plain 16-bit 16 kHz mono WAV, read by memory map; every path inside is relative, so the folder can
be moved. `clips.parquet` opens with pandas or DuckDB; positions in it are whole samples.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
import wave
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from whispertune.clip import SAMPLE_RATE, SPLITS, Clip, Finding, Split
from whispertune.errors import DataError, MachineError

CLIPS, REJECTED, FINDINGS = "clips.parquet", "rejected.jsonl", "findings.jsonl"
ABOUT_KEY = b"whispertune"
"""Where the Parquet schema keeps what is said about the corpus as a whole (JSON)."""
SHARD_BYTES = 1_000_000_000
HEADER_BYTES = 44
"""What the standard library's `wave` writes before the samples."""
SAMPLE_BYTES = 2

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("file_name", pa.string()),
        ("text", pa.string()),
        ("duration_s", pa.float64()),
        ("split", pa.string()),
        ("speaker", pa.string()),
        ("language", pa.string()),
        ("provenance", pa.string()),
        ("shard", pa.string()),
        ("offset", pa.int64()),
        ("samples", pa.int64()),
        ("recording", pa.string()),
        ("source_rate", pa.int32()),
    ]
)
"""Columns of `clips.parquet`; the source's own columns follow as strings."""


def is_corpus(folder: Path) -> bool:
    """True for a folder that `CorpusWriter` finished: our mark is in its `clips.parquet`."""
    try:
        return ABOUT_KEY in (pq.read_schema(Path(folder) / CLIPS).metadata or {})
    except (OSError, pa.ArrowInvalid):
        return False


def audio_hash(samples: np.ndarray) -> str:
    """A name for exactly these samples: equal audio, equal name (64 bits of SHA-256, hexadecimal)."""
    return hashlib.sha256(np.ascontiguousarray(samples, dtype="<i2").tobytes()).hexdigest()[:16]


def require_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Raises MachineError, with both numbers, when the disk of `folder` (which need not exist yet) has less
    free."""
    folder = Path(folder).absolute()
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if needed_bytes > free:
        raise MachineError(
            f"{what} needs about {_size(needed_bytes)}, but only {_size(free)} are free at {existing}",
            "free some space, or name a folder on a larger disk",
        )


class CorpusWriter:
    """Write a corpus beside its place and rename it there when it is whole; on any error nothing is left.

        with CorpusWriter(folder) as writer:
            shard, offset = writer.add_recording(samples)
            writer.finish([Clip(…, shard=shard, offset=offset, samples=len(samples), …)], findings)

    `expected_bytes` is compared with the free space before anything is written. Raises DataError when the
    folder is taken (a corpus is replaced only with `replace`, any other folder never), MachineError when
    space is short.
    """

    def __init__(
        self, folder: Path, *, expected_bytes: int = 0, replace: bool = False, shard_bytes: int = SHARD_BYTES
    ) -> None:
        self.folder = Path(folder)
        self.replace = replace
        self.shard_samples = (shard_bytes - HEADER_BYTES) // SAMPLE_BYTES
        self._finished = False
        self._shard: wave.Wave_write | None = None
        self._shards = 0
        self._in_shard = 0
        if is_corpus(self.folder):
            if not replace:
                raise DataError(
                    f"{folder} is a corpus already", "name another folder, or give --replace"
                )
        elif self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise DataError(
                f"{folder} is there already and is no corpus; it is left as it is", "name a new folder"
            )
        require_space(self.folder, expected_bytes, "the corpus")
        parent = self.folder.absolute().parent
        parent.mkdir(parents=True, exist_ok=True)
        self._partial = Path(tempfile.mkdtemp(prefix=f".{self.folder.name}.partial-", dir=parent))
        self._partial.chmod(0o777 & ~_umask())  # mkdtemp makes it private; a corpus has the usual rights

    def __enter__(self) -> Self:
        return self

    def add_recording(self, samples: np.ndarray) -> tuple[str, int]:
        """Append int16 `(n,)` at 16 kHz, whole, to one shard: `(shard, offset of its first sample)`.

        Raises DataError for a recording longer than a shard holds, MachineError when the disk is full.
        """
        assert samples.dtype == np.int16 and samples.ndim == 1
        if len(samples) > self.shard_samples:
            raise DataError(
                f"a recording of {len(samples) / SAMPLE_RATE / 3600:.1f} h is longer than the "
                f"{self.shard_samples / SAMPLE_RATE / 3600:.1f} h that a shard holds",
                "cut it into parts of a few hours",
            )
        try:
            if self._shard is None or self._in_shard + len(samples) > self.shard_samples:
                self._next_shard()
            offset = self._in_shard
            assert self._shard
            self._shard.writeframesraw(samples.astype("<i2", copy=False).tobytes())
        except OSError as error:
            raise self._no_space(error) from error
        self._in_shard += len(samples)
        return self._shard_name, offset

    def finish(
        self, clips: Iterable[Clip], findings: Iterable[Finding] = (), about: Mapping[str, str] | None = None
    ) -> None:
        """Write the tables. Findings that reject go to `rejected.jsonl`, the others to `findings.jsonl`.

        `about` is said of the corpus as a whole (how it was split, where it came from) and read back as
        `Corpus.about`.
        """
        findings, clips = list(findings), list(clips)
        assert len({clip.id for clip in clips}) == len(clips), "an id names one clip"
        try:
            self._close_shard()
            table = _table(clips)
            mark = json.dumps(dict(about or {}))
            table = table.replace_schema_metadata({ABOUT_KEY: mark.encode()})
            pq.write_table(table, self._partial / CLIPS)
            _write_lines(self._partial / REJECTED, [f for f in findings if f.severity == "reject"])
            _write_lines(self._partial / FINDINGS, [f for f in findings if f.severity != "reject"])
        except OSError as error:
            raise self._no_space(error) from error
        self._finished = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # On a full disk closing fails as well; the first error is the one to tell.
        with contextlib.suppress(OSError) if kind is not None else contextlib.nullcontext():
            self._close_shard()
        if kind is not None or not self._finished:
            shutil.rmtree(self._partial, ignore_errors=True)
            assert kind is not None, "a corpus was written but never finished"
            return
        if self.folder.exists():
            old = Path(
                tempfile.mkdtemp(prefix=f".{self.folder.name}.old-", dir=self.folder.absolute().parent)
            )
            os.replace(self.folder, old)  # `old` is empty, so the rename may take its place
            os.replace(self._partial, self.folder)
            shutil.rmtree(old)
        else:
            os.replace(self._partial, self.folder)

    @property
    def _shard_name(self) -> str:
        return f"audio-{self._shards - 1:05d}.wav"

    def _next_shard(self) -> None:
        self._close_shard()
        self._shards += 1
        self._shard = wave.open(str(self._partial / self._shard_name), "wb")  # noqa: SIM115 (open until it is full)
        self._shard.setnchannels(1)
        self._shard.setsampwidth(SAMPLE_BYTES)
        self._shard.setframerate(SAMPLE_RATE)
        self._in_shard = 0

    def _close_shard(self) -> None:
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.close()  # writes the true length into the header

    def _no_space(self, error: OSError) -> Exception:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return error
        written = sum(p.stat().st_size for p in self._partial.iterdir())
        return MachineError(
            f"the disk is full: {_size(written)} of the corpus were written, "
            f"{_size(shutil.disk_usage(self._partial).free)} are free",
            "free some space, or name a folder on a larger disk",
        )


class Corpus:
    """A finished corpus, opened for reading. `Corpus.open(folder)`."""

    def __init__(self, folder: Path, clips: list[Clip], about: dict[str, str]) -> None:
        self.folder = folder
        self.clips = clips
        self.about = about
        """What was said of the corpus when it was written; `split` tells in a sentence how it was split."""
        self._shards: dict[str, np.ndarray] = {}

    @classmethod
    def open(cls, folder: Path) -> "Corpus":
        """Raises DataError where there is no corpus, or a shard is missing or shorter than its clips need."""
        folder = Path(folder)
        if not is_corpus(folder):
            what = f"{folder} is no corpus" if folder.exists() else f"there is no corpus at {folder}"
            raise DataError(what, f"make one: whispertune import SOURCE --to {folder}")
        try:
            table = pq.read_table(folder / CLIPS)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{folder / CLIPS} cannot be read: {error}", "import the source again") from error
        about = json.loads(table.schema.metadata[ABOUT_KEY])
        corpus = cls(folder, _clips(table), about)
        ends: dict[str, int] = {}
        for clip in corpus.clips:
            ends[clip.shard] = max(ends.get(clip.shard, 0), clip.offset + clip.samples)
        for shard, end in ends.items():
            held = len(corpus._samples(shard))
            if held < end:
                raise DataError(
                    f"{folder / shard} holds {held:,} samples, its clips need {end:,}",
                    "import the source again",
                )
        return corpus

    def with_clips(self, clips: list[Clip]) -> "Corpus":
        """The same audio under other clips, such as its own on other sides."""
        return Corpus(self.folder, clips, self.about)

    def split(self, name: Split) -> list[Clip]:
        """The clips of `train`, `dev` or `test`, in the corpus' order."""
        assert name in SPLITS
        return [c for c in self.clips if c.split == name]

    def audio(self, clip: Clip) -> np.ndarray:
        """int16 `(clip.samples,)` at 16 kHz: a read-only view of the shard."""
        return self._samples(clip.shard)[clip.offset : clip.offset + clip.samples]

    def audio_between(self, before: Clip, after: Clip) -> np.ndarray:
        """int16 `(gap,)`: the recording's own audio from the end of one clip to the start of a later one.

        Empty where they touch or overlap. Both must be of one recording.
        """
        assert before.recording == after.recording and before.shard == after.shard
        return self._samples(before.shard)[before.offset + before.samples : max(before.offset, after.offset)]

    @property
    def duration_s(self) -> float:
        return sum(c.samples for c in self.clips) / SAMPLE_RATE

    @cached_property
    def fingerprint(self) -> str:
        """A name for this content (64 bits, hexadecimal): audio, texts, splits, speakers and languages of all
        clips.

        The place of the folder, the layout of the shards and the order of the clips do not matter.
        """
        lines = sorted(
            json.dumps([c.id, self.audio_sha(c), c.text, c.split, c.speaker, c.language]) for c in self.clips
        )
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    def audio_sha(self, clip: Clip) -> str:
        """The clip's `audio_hash`, as stored or computed."""
        return clip.extra.get("audio_sha") or audio_hash(self.audio(clip))

    @property
    def rejected(self) -> list[Finding]:
        """What import left out, with the reason of each."""
        return _read_lines(self.folder / REJECTED, "reject")

    @property
    def findings(self) -> list[Finding]:
        """What import had to say about rows that it kept."""
        return _read_lines(self.folder / FINDINGS, "warn")

    def _samples(self, shard: str) -> np.ndarray:
        if shard not in self._shards:
            path = self.folder / shard
            try:
                size = path.stat().st_size
            except OSError as error:
                raise DataError(
                    f"{path} is missing: the corpus is not whole", "import the source again"
                ) from error
            count = max(0, size - HEADER_BYTES) // SAMPLE_BYTES
            # numpy cannot map zero bytes
            self._shards[shard] = (
                np.memmap(path, "<i2", "r", offset=HEADER_BYTES, shape=(count,))
                if count
                else np.zeros(0, "<i2")
            )
        return self._shards[shard]


def _table(clips: list[Clip]) -> pa.Table:
    columns = {name: [getattr(c, name) for c in clips] for name in SCHEMA.names}
    fields = list(SCHEMA)
    for name in dict.fromkeys(key for c in clips for key in c.extra):
        assert name not in columns, f"the column {name} is the corpus' own"
        columns[name] = [c.extra.get(name) for c in clips]
        fields.append(pa.field(name, pa.string()))
    return pa.table(columns, schema=pa.schema(fields))


def _clips(table: pa.Table) -> list[Clip]:
    own = [name for name in SCHEMA.names if name != "duration_s"]
    extra = [name for name in table.column_names if name not in SCHEMA.names]
    clips = []
    for row in table.to_pylist():
        rest = {name: row[name] for name in extra if row[name] is not None}
        clips.append(Clip(**{name: row[name] for name in own}, extra=rest))
    return clips


def _write_lines(path: Path, findings: list[Finding]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for finding in findings:
            file.write(json.dumps(asdict(finding), ensure_ascii=False) + "\n")


def _read_lines(path: Path, severity: str) -> list[Finding]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return [Finding(**{"severity": severity, **json.loads(line)}) for line in file]


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
