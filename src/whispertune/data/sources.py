"""Readers: each turns one kind of source into rows. Nothing is decoded here.

A folder with a metadata file, Parquet, a folder that `datasets` saved, a data set on the Hub.
"""

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from whispertune.clip import Finding, Split
from whispertune.data.audio import is_audio
from whispertune.errors import DataError

METADATA = ("metadata.csv", "metadata.tsv", "metadata.jsonl")
TEXT_COLUMNS = ("transcription", "text", "sentence")
SPEAKER_COLUMNS = ("speaker", "speaker_id", "client_id")
EXAMPLE = "a first line file_name,transcription and a line for each clip: audio/001.wav,What is said in it."
SPLIT_NAMES: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "dev": "dev",
    "valid": "dev",
    "validation": "dev",
    "val": "dev",
    "test": "test",
}
_SPLIT_FILE = re.compile(r"^(train|training|dev|validation|valid|val|test)(?=$|[-_.])")
csv.field_size_limit(2**31 - 1)  # other columns may be long; a quotation mark left open is found all the same
_BATCH_ROWS = 64
"""Rows of Parquet in memory at a time: each holds a file's bytes."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a source, before its audio is looked at."""

    file_name: str
    text: str
    audio: Path | bytes | None
    """Where the audio is, or the bytes of its file; None where `problem` says why there is none."""
    start_s: float | None = None
    end_s: float | None = None
    speaker: str | None = None
    language: str | None = None
    split: str | None = None
    """As the source writes it."""
    extra: dict[str, str] = field(default_factory=dict)
    problem: Finding | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Rows to come, and what is known before the first of them is read."""

    rows: Iterable[Row]
    total: int | None
    """Number of rows; None where only reading can tell."""
    bytes: int | None
    """Size of the audio as stored."""
    findings: list[Finding] = field(default_factory=list)


def read_folder(folder: Path, speaker_column: str | None = None) -> Source:
    """A folder with one metadata file, or one in each of its `train`, `test` … sub-folders.

    Raises DataError when there is none (saying what is expected), two at one place, or one that cannot be
    read.
    """
    places: list[tuple[Path, str | None]] = [(folder, None)]
    if not metadata_of(folder):
        places = [
            (p, p.name)
            for p in sorted(folder.iterdir())
            if p.is_dir() and p.name in SPLIT_NAMES and metadata_of(p)
        ]
    if not places:
        raise DataError(
            f"{folder} has no {', '.join(METADATA[:-1])} or {METADATA[-1]}",
            f"write {METADATA[0]} there: {EXAMPLE}",
        )
    rows: list[Row] = []
    findings: list[Finding] = []
    for place, split in places:
        path = metadata_of(place)
        assert path
        own = list(_folder_rows(place, path, speaker_column))
        findings += _unlisted(place, {r.audio for r in own}, path)
        if place != folder:
            own = [replace(r, file_name=f"{place.name}/{r.file_name}", split=r.split or split) for r in own]
        rows += own
    # Rows of one recording come together, so that it is decoded once.
    first: dict[Any, int] = {}
    order = sorted(range(len(rows)), key=lambda i: first.setdefault(rows[i].audio or ("", i), i))
    sizes = {r.audio: r.audio.stat().st_size for r in rows if isinstance(r.audio, Path)}
    return Source([rows[i] for i in order], len(rows), sum(sizes.values()), findings)


def metadata_of(folder: Path) -> Path | None:
    """The folder's metadata file. Raises DataError when there are two."""
    found = [folder / name for name in METADATA if (folder / name).is_file()]
    if len(found) > 1:
        raise DataError(f"{folder} has both {found[0].name} and {found[1].name}", "keep one of them")
    return found[0] if found else None


def _folder_rows(folder: Path, path: Path, speaker_column: str | None) -> Iterator[Row]:
    columns = _Columns(speaker_column)
    for line, record in _records(path):
        if isinstance(record, str):
            finding = Finding("reject", f"{path.name}:{line}", "bad_row", record)
            yield Row(finding.file_name, "", None, problem=finding)
            continue
        row = columns.row(record, f"{path}:{line}")
        yield place_audio(row, folder) if row.problem is None else row


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """`(line, columns)` of each row, or `(line, what is wrong with it)`."""
    raw = path.read_bytes()
    try:
        # Spreadsheets save "Unicode text" as UTF-16.
        file = io.StringIO(raw.decode("utf-16" if raw[:2] in _UTF_16 else "utf-8-sig"), newline="")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        what = f"{path}:{line} is not UTF-8 text (byte {raw[error.start]:#04x})"
        raise DataError(what, "save it again as UTF-8") from error
    if path.suffix == ".jsonl":
        for line, text in enumerate(file, 1):
            if text.strip():
                yield line, _json_record(text)
        return
    head = file.readline()
    file.seek(0)
    delimiter = "\t" if path.suffix == ".tsv" else ";" if head.count(";") > head.count(",") else ","
    reader = csv.DictReader(file, delimiter=delimiter, strict=True)
    try:
        _refuse_twice(reader.fieldnames or (), f"{path}:1")
        for record in reader:
            yield reader.line_num, _csv_record(record, len(reader.fieldnames or ()))
    except csv.Error as error:
        what = f"{path}:{reader.line_num + 1} cannot be read as a table: {error}"
        raise DataError(what, "is a quotation mark left open?") from error


_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def _refuse_twice(names: Iterable[str], where: str) -> None:
    names = list(names)
    if twice := next((name for name in names if name and names.count(name) > 1), None):
        raise DataError(f"{where}: the column '{twice}' is there {names.count(twice)} times", "rename one")


def _json_record(text: str) -> dict[str, Any] | str:
    try:
        record = json.loads(text)
    except ValueError as error:
        return f"not JSON: {error}"
    except RecursionError:
        return "not JSON: nested too deeply"
    return record if isinstance(record, dict) else f"a JSON {type(record).__name__}, not an object"


def _csv_record(record: dict[Any, Any], fields: int) -> dict[str, Any] | str:
    if None in record:
        count = fields + len(record[None])
        return f"{count} fields where the header has {fields}: put texts with the separator in them in quotes"
    short = sum(value is None for value in record.values())
    return f"{fields - short} fields where the header has {fields}" if short else record


class _Columns:
    """Which column of a table means what. Found once, in the first row."""

    def __init__(self, speaker_column: str | None = None, audio_column: str = "file_name") -> None:
        self.audio = audio_column
        self.wanted_speaker = speaker_column
        self.text: str | None = None
        self.speaker: str | None = None

    def find(self, names: Iterable[str], where: str) -> None:
        names = list(names)
        _refuse_twice(names, where)
        listed = ", ".join(str(n) for n in names)
        self.text = next((n for n in TEXT_COLUMNS if n in names), None)
        if self.audio not in names:
            raise DataError(f"{where}: no column '{self.audio}' (columns: {listed})", f"expected: {EXAMPLE}")
        if not self.text:
            raise DataError(
                f"{where}: no text column (columns: {listed})", f"name it one of {', '.join(TEXT_COLUMNS)}"
            )
        if self.wanted_speaker and self.wanted_speaker not in names:
            raise DataError(f"{where}: no column '{self.wanted_speaker}' for the speaker (columns: {listed})")
        self.speaker = self.wanted_speaker or next((n for n in SPEAKER_COLUMNS if n in names), None)

    def row(self, record: Mapping[str, Any], where: str, file_name: str | None = None) -> Row:
        if self.text is None or (self.text not in record and self.audio not in record):
            self.find(record, where)
        assert self.text
        own = {self.audio, self.text, self.speaker, "start", "end", "language", "split"}
        name = file_name if file_name is not None else _string(record.get(self.audio)) or ""
        row = Row(
            file_name=name,
            text=_string(record.get(self.text)) or "",
            audio=None,
            speaker=_string(record.get(self.speaker)) if self.speaker else None,
            language=_string(record.get("language")),
            split=_string(record.get("split")),
            extra={
                _whole(str(key)): value
                for key, raw in record.items()
                if key not in own and not isinstance(raw, bytes) and (value := _string(raw)) is not None
            },
        )
        if not name:
            finding = Finding("reject", where.rpartition("/")[2], "bad_row", f"no {self.audio} in this row")
            return replace(row, file_name=finding.file_name, problem=finding)
        try:
            return replace(row, start_s=_seconds(record, "start"), end_s=_seconds(record, "end"))
        except ValueError as error:
            return replace(row, problem=Finding("reject", name, "bad_times", str(error)))


def _string(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return _whole(text) if text.strip() else None


def _whole(text: str) -> str:
    """Without halves of characters, which JSON can escape and no file can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _seconds(record: Mapping[str, Any], name: str) -> float | None:
    value = record.get(name)
    if value is None or value == "":
        return None
    try:
        return float(value)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"{name} = {str(value)[:40]!r} is no number of seconds") from None


def place_audio(row: Row, folder: Path) -> Row:
    """The row with its audio's place in the folder, or the problem: the name leads out of it, or to
    nothing."""
    pure = PurePosixPath(row.file_name)
    inside = os.path.normpath(row.file_name)
    if pure.is_absolute() or os.path.isabs(row.file_name) or inside.split(os.sep)[0] == "..":
        message = "the name leads out of the source's folder; it is not opened"
        return replace(row, problem=Finding("reject", row.file_name, "outside", message))
    path = folder / inside
    try:
        exists = path.is_file()
    except (OSError, ValueError):  # a name too long, or with a NUL in it
        exists = False
    if not exists:
        return replace(
            row,
            problem=Finding("reject", row.file_name, "missing", f"there is no such file in {folder.name}/"),
        )
    return replace(row, audio=path)


def _unlisted(folder: Path, listed: set[Any], metadata: Path) -> list[Finding]:
    findings = []
    for path in sorted(folder.rglob("*")):
        if (
            path.is_file()
            and path not in listed
            and path != metadata
            and path.name not in METADATA
            and is_audio(path)
        ):
            name = path.relative_to(folder).as_posix()
            findings.append(
                Finding("warn", name, "unlisted", f"audio that {metadata.name} does not list: not imported")
            )
    return findings


def read_parquet(source: Path, speaker_column: str | None = None, files: list[Path] | None = None) -> Source:
    """One Parquet file or a folder of them; the split is read from names such as
    `train-00000-of-00002.parquet`.

    `files` names the ones meant, where not all in the folder are.
    """
    files = files or ([source] if source.is_file() else parquet_in(source))
    tables: list[Table] = []
    total = 0
    for path in files:
        inside = path.relative_to(source) if path != source else Path(path.name)
        try:
            total += pq.read_metadata(path).num_rows
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{inside} cannot be read as Parquet: {error}") from error
        tables.append((batches(path), inside.as_posix(), split_in(inside), path.parent))
    return Source(table_rows(tables, speaker_column), total, sum(path.stat().st_size for path in files))


def parquet_in(folder: Path) -> list[Path]:
    """Opening what is no file, such as a pipe, would wait for ever."""
    return sorted(path for path in folder.rglob("*.parquet") if path.is_file())


def split_in(path: Path | PurePosixPath) -> str | None:
    """The split that a file's name or the folders above it begin with."""
    for part in (path.name, *(p.name for p in path.parents)):
        if found := _SPLIT_FILE.match(part):
            return found[1]
    return None


def batches(path: Any) -> Iterator[pa.RecordBatch]:
    """Of a Parquet file: a path, or a file open on the Hub."""
    try:
        # Threads would read whole columns ahead.
        yield from pq.ParquetFile(path).iter_batches(batch_size=_BATCH_ROWS, use_threads=False)
    except pa.ArrowException as error:
        raise DataError(f"{path} is damaged: {error}", "get the file again") from error


def read_saved(folder: Path, speaker_column: str | None = None) -> Source:
    """A folder that `datasets` wrote with `save_to_disk`: Arrow files beside `state.json`, one folder a
    split."""
    parts: list[tuple[Path, str | None]] = [(folder, None)]
    if (listing := folder / "dataset_dict.json").is_file():
        try:
            parts = [(folder / name, name) for name in json.loads(listing.read_text("utf-8"))["splits"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{listing} cannot be read: {error}", "save the data set again") from error
    tables = []
    size = total = 0
    for place, split in parts:
        try:
            state = json.loads((place / "state.json").read_text("utf-8"))
            files = [place / entry["filename"] for entry in state["_data_files"]]
            if state.get("_indices_data_files"):
                raise DataError(
                    f"{place} keeps its rows' order in an index", "call flatten_indices() and save it again"
                )
            size += sum(path.stat().st_size for path in files)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{place} is no whole data set saved by `datasets`: {error}") from error
        total += sum(batch.num_rows for path in files for batch in _arrow_batches(path))
        tables += [(_arrow_batches(path), str(path.relative_to(folder)), split, place) for path in files]
    return Source(table_rows(tables, speaker_column), total, size)


def is_saved(folder: Path) -> bool:
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def _arrow_batches(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        yield from stream


Table = tuple[Iterable[pa.RecordBatch], str, str | None, Path | None]
"""Batches, the name of the file for messages, its split, and the folder that paths in it start from."""


def table_rows(tables: Iterable[Table], speaker_column: str | None = None) -> Iterator[Row]:
    """Rows of tables as `datasets` and the Hub write them: `audio` is a struct of bytes and path, or a
    path."""
    seen: dict[str, Path | None] = {}
    for batches, name, split, folder in tables:
        columns, number = None, 0
        for batch in batches:
            if columns is None:
                columns = _Columns(speaker_column, _audio_column(batch.schema, name))
                columns.find(batch.schema.names, name)
            for record in batch.to_pylist():
                yield _table_row(record, columns, f"{name}:{number}", split, folder, seen)
                number += 1


def _table_row(
    record: dict[str, Any],
    columns: _Columns,
    where: str,
    split: str | None,
    folder: Path | None,
    seen: dict[str, Path | None],
) -> Row:
    audio = record[columns.audio]
    audio = audio if isinstance(audio, dict) else {"path": audio, "bytes": None}
    path, content = audio.get("path"), audio.get("bytes")
    if content is None and not path:
        finding = Finding("reject", where, "bad_row", "neither audio nor a path in this row")
        return Row(where, "", None, problem=finding)
    # Embedded files are often all called `audio.wav`: the place in the table tells them apart.
    name = record.get("file_name") or path or where
    if content is not None and (name in seen or not path):
        name = where
    # Files of the same name in two tables' folders are two files.
    twin = content is None and folder is not None and seen.get(name, folder) != folder
    seen.setdefault(name, folder)
    row = columns.row({k: v for k, v in record.items() if k != "file_name"}, where, name)
    row = replace(row, split=row.split or split)
    if row.problem:
        return row
    if content is not None:
        return replace(row, audio=content)
    if folder is None:
        finding = Finding(
            "reject", name, "missing", "the table holds a path, not the audio, and is read over the network"
        )
        return replace(row, problem=finding)
    placed = place_audio(row, folder)
    return replace(placed, file_name=f"{folder.name}/{name}") if twin else placed


def _audio_column(schema: pa.Schema, name: str) -> str:
    for column in ("audio", "file_name", "path"):
        if column in schema.names:
            return column
    for column in schema:
        if pa.types.is_struct(column.type) and {f.name for f in column.type} == {"bytes", "path"}:
            return column.name
    raise DataError(f"{name}: no column 'audio' (columns: {', '.join(schema.names)})")
