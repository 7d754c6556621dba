"""A corpus on disk: a folder of `clips.parquet`, WAV shards, `rejected.jsonl` and `findings.jsonl`.

Shards are plain 16-bit 16 kHz mono WAV, read by memory map; every path inside is relative, so the folder can
be moved. `clips.parquet` opens with pandas or DuckDB; positions in it are whole samples.
"""

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import shutil
import struct
import tempfile
import wave
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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
FORMAT = 1
"""Of the folder; written with `about`, and raised when an older whispertune could not read a corpus."""
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
MAY_BE_NULL = ("speaker", "language")
_AGAIN = "import the source again"


def is_corpus(folder: Path) -> bool:
    """True for a folder that `CorpusWriter` finished: our mark is in its `clips.parquet`."""
    path = Path(folder) / CLIPS
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return ABOUT_KEY in (pq.read_schema(file).metadata or {})
    except PermissionError:
        raise
    except (OSError, pa.ArrowException):
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

    `expected_bytes` is compared with the free space before anything is written. What a killed writer left
    beside the place is taken away, and a corpus that it had moved aside is put back. Raises DataError when
    the folder is taken (a corpus is replaced only with `replace`, any other folder never), MachineError when
    space is short or the folder cannot be made.
    """

    def __init__(
        self, folder: Path, *, expected_bytes: int = 0, replace: bool = False, shard_bytes: int = SHARD_BYTES
    ) -> None:
        self.folder = Path(os.path.realpath(folder))  # behind a link: a folder cannot take a link's place
        self.replace = replace
        self.shard_samples = (shard_bytes - HEADER_BYTES) // SAMPLE_BYTES
        self._finished = False
        self._shard: wave.Wave_write | None = None
        self._shards = 0
        self._in_shard = 0
        try:
            _clear_up(self.folder)
            if is_corpus(self.folder):
                if not replace:
                    raise DataError(
                        f"{folder} is a corpus already", "name another folder, or give --replace"
                    )
            elif os.path.lexists(self.folder) and (not self.folder.is_dir() or any(self.folder.iterdir())):
                raise DataError(
                    f"{folder} is there already and is no corpus; it is left as it is", "name a new folder"
                )
            require_space(self.folder, expected_bytes, "the corpus")
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self._partial = _beside(self.folder, "partial")
        except OSError as error:
            raise MachineError(
                f"the corpus cannot be written at {folder}: {error.strerror}",
                "name a folder where you may write",
            ) from error
        self._lock = _lock(self._partial)
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
            raise self._unwritten(error) from error
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
            mark = json.dumps({"format": FORMAT, **(about or {})})
            table = table.replace_schema_metadata({ABOUT_KEY: mark.encode()})
            with (self._partial / CLIPS).open("wb") as file:
                pq.write_table(table, file)
            _write_lines(self._partial / REJECTED, [f for f in findings if f.severity == "reject"])
            _write_lines(self._partial / FINDINGS, [f for f in findings if f.severity != "reject"])
        except OSError as error:
            raise self._unwritten(error) from error
        self._finished = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._leave(kind)
        finally:
            if self._lock is not None:
                os.close(self._lock)

    def _leave(self, kind: type[BaseException] | None) -> None:
        # On a full disk closing fails as well; the first error is the one to tell.
        with contextlib.suppress(OSError) if kind is not None else contextlib.nullcontext():
            self._close_shard()
        if kind is not None or not self._finished:
            shutil.rmtree(self._partial, ignore_errors=True)
            assert kind is not None, "a corpus was written but never finished"
            return
        if self.folder.exists():
            old = _beside(self.folder, "old")
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

    def _unwritten(self, error: OSError) -> MachineError:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "the disk is full" if full else f"the corpus cannot be written ({error.strerror})"
        written = sum(p.stat().st_size for p in self._partial.iterdir())
        return MachineError(
            f"{what}: {_size(written)} of the corpus were written, "
            f"{_size(shutil.disk_usage(self._partial).free)} are free",
            "free some space, or name a folder on a larger disk"
            if full
            else "name a folder on another disk; ulimit -f shows how large a file may be",
        )


def _beside(folder: Path, kind: str) -> Path:
    """A new hidden folder beside it."""
    return Path(tempfile.mkdtemp(prefix=f".{folder.name}.{kind}-", dir=folder.parent))


def _clear_up(folder: Path) -> None:
    """Take away what a writer of this corpus left when it was killed. One that still runs holds a lock."""
    left = f".{glob.escape(folder.name)}."
    for partial in folder.parent.glob(f"{left}partial-*"):
        lock = _lock(partial)
        if lock is None:
            return
        shutil.rmtree(partial, ignore_errors=True)
        os.close(lock)
    for old in folder.parent.glob(f"{left}old-*"):
        if is_corpus(old) and not folder.exists():
            os.replace(old, folder)
        else:
            shutil.rmtree(old, ignore_errors=True)


def _lock(folder: Path) -> int | None:
    """A lock on the folder, which ends with the process if not before; None where another has it."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    return held


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
        """Raises DataError where there is no corpus, or one that is damaged: a table that does not hold what
        it should, a shard that is missing, of another format, or shorter than its clips need."""
        folder = Path(folder)
        if not is_corpus(folder):
            what = f"{folder} is no corpus" if folder.exists() else f"there is no corpus at {folder}"
            raise DataError(what, f"make one: whispertune import SOURCE --to {folder}")
        path = folder / CLIPS
        try:
            with path.open("rb") as file, pq.ParquetFile(file) as parquet:
                table = parquet.read()
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path} cannot be read: {str(error).splitlines()[0]}", _AGAIN) from error
        about = _about(table, path)
        corpus = cls(folder, _clips(table, path), about)
        ends: dict[str, int] = {}
        for clip in corpus.clips:
            ends[clip.shard] = max(ends.get(clip.shard, 0), clip.offset + clip.samples)
        for shard, end in ends.items():
            held = len(corpus._samples(shard))
            if held < end:
                raise DataError(f"{folder / shard} holds {held:,} samples, its clips need {end:,}", _AGAIN)
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
            if not path.is_file():
                raise DataError(f"{path} is missing: the corpus is not whole", _AGAIN)
            count = max(0, path.stat().st_size - HEADER_BYTES) // SAMPLE_BYTES
            if count and (wrong := _not_ours(path)):
                raise DataError(f"{path} is no 16-bit mono WAV of {SAMPLE_RATE:,} Hz: {wrong}", _AGAIN)
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


def _about(table: pa.Table, path: Path) -> dict[str, str]:
    try:
        about = json.loads(table.schema.metadata[ABOUT_KEY])
        written = about.pop("format", 1)
        newer = written > FORMAT
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise DataError(f"{path} is damaged: what it says of the corpus is no JSON object", _AGAIN) from None
    if newer:
        raise DataError(
            f"{path} is a corpus of format {written}; this whispertune reads format {FORMAT}",
            "use the whispertune that wrote it, or a newer one",
        )
    return about


def _clips(table: pa.Table, path: Path) -> list[Clip]:
    """The clips of a table that may have been damaged, or edited, since it was written."""
    own = [field for field in SCHEMA if field.name != "duration_s"]
    columns: dict[str, list[Any]] = {}
    for field in own:
        places = table.schema.get_all_field_indices(field.name)
        if len(places) != 1:
            times = "no column" if not places else f"{len(places)} columns"
            raise DataError(f"{path} is damaged: {times} '{field.name}'", _AGAIN)
        column = table.column(places[0])
        try:
            columns[field.name] = column.cast(field.type).to_pylist()
        except (pa.ArrowException, ValueError):
            what = f"the column '{field.name}' holds {column.type}, not {field.type}"
            raise DataError(f"{path} is damaged: {what}", _AGAIN) from None
    extra = {
        name: table.column(place).to_pylist()
        for place, name in enumerate(table.column_names)
        if name not in SCHEMA.names
    }
    clips: list[Clip] = []
    for row in range(table.num_rows):
        fields = {name: values[row] for name, values in columns.items()}
        if wrong := _wrong(fields):
            raise DataError(f"{path} is damaged: row {row + 1} {wrong}", _AGAIN)
        rest = {name: str(values[row]) for name, values in extra.items() if values[row] is not None}
        clips.append(Clip(**fields, extra=rest))
    ids = Counter(clip.id for clip in clips)
    if ids and (most := ids.most_common(1)[0])[1] > 1:
        raise DataError(f"{path} is damaged: {most[1]} rows have the id '{most[0]}'", _AGAIN)
    shards: dict[str, str] = {}
    for clip in clips:
        if shards.setdefault(clip.recording, clip.shard) != clip.shard:
            both = f"{shards[clip.recording]} and {clip.shard}"
            raise DataError(f"{path} is damaged: the recording '{clip.recording}' is in {both}", _AGAIN)
    return clips


def _wrong(row: Mapping[str, Any]) -> str | None:
    """What cannot be in a row of the table; None where it is sound."""
    if missing := [name for name, value in row.items() if value is None and name not in MAY_BE_NULL]:
        return f"has no '{missing[0]}'"
    if row["split"] not in SPLITS:
        return f"has the split '{row['split']}', which is none of {', '.join(SPLITS)}"
    if row["offset"] < 0 or row["samples"] < 1:
        return f"has {row['samples']:,} samples from {row['offset']:,} on, which is no stretch of audio"
    if row["shard"] != Path(row["shard"]).name:
        return f"has its audio at '{row['shard']}', outside of the corpus"
    return None


def _not_ours(shard: Path) -> str | None:
    """How a WAV differs from those that are written here; None where it does not."""
    with shard.open("rb") as file:
        head = file.read(HEADER_BYTES)
    if (head[:4], head[8:16], head[36:40]) != (b"RIFF", b"WAVEfmt ", b"data"):
        return "its header is damaged"
    coding, channels, rate, _, _, bits = struct.unpack("<HHIIHH", head[20:36])
    if (coding, channels, rate, bits) == (1, 1, SAMPLE_RATE, 8 * SAMPLE_BYTES):
        return None
    return f"its header says {bits}-bit, {channels} channels, {rate:,} Hz"


def _write_lines(path: Path, findings: list[Finding]) -> None:
    # Half a character, as in a file's name that is not UTF-8, is escaped as JSON does it.
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for finding in findings:
            file.write(json.dumps(asdict(finding), ensure_ascii=False) + "\n")


def _read_lines(path: Path, severity: str) -> list[Finding]:
    if not path.exists():
        return []
    findings = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            findings.append(Finding(**{"severity": severity, **json.loads(line)}))
        except (ValueError, TypeError, RecursionError):
            hint = f"{_AGAIN}, or delete the file: it only tells what import found"
            raise DataError(f"{path}:{number} is damaged: no finding as import writes them", hint) from None
    return findings


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
