"""What was said in each clip, where transcripts do not tell; and how fields of a clip are read from files."""

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from whispertune.errors import DataError, UsageError
from whispertune.scoring.languages import language_code

TEXT_COLUMNS = ("reference", "transcription", "text", "sentence")
"""What the text that was said is called in a table of references; the first that is there counts."""
ID_COLUMNS = ("id", "file_name")
AUDIO_ENDINGS = frozenset(
    {"wav", "mp3", "flac", "ogg", "oga", "opus", "m4a", "mp4", "mpeg", "mpga", "aac", "webm", "wma", "aif"}
)
OWN_COLUMNS = frozenset({*ID_COLUMNS, "reference", "hypothesis", "language", "decode"})
"""Keys of a clip that are no further column of it."""
_decode = json.JSONDecoder(strict=False).decode  # not strict: some programs write line breaks inside texts


@dataclass(frozen=True, slots=True)
class Reference:
    """What was said in a clip."""

    id: str
    text: str
    language: str | None
    columns: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class References:
    """A table of them, found by any name that a clip goes by."""

    path: Path
    rows: Mapping[str, Reference]
    """By id: the column `id`, else `file_name`."""
    _by_name: Mapping[str, frozenset[str]] = field(repr=False)
    """Ids by id, path, file name, and both without the audio's ending."""

    def find(self, names: Sequence[str], where: str) -> Reference | None:
        """The clip that goes by one of some names, the first that is known; None where none is.

        Raises DataError where a name could mean several.
        """
        for name in names:
            if name in self.rows:
                return self.rows[name]
        for name in names:
            ids = self._by_name.get(name, frozenset())
            if len(ids) > 1:
                one, two, *_ = sorted(ids)
                raise DataError(
                    f"{where}: {name!r} could be {len(ids)} clips of {self.path}, as {one!r} and {two!r}",
                    "name the transcripts as the references do, folders included",
                )
            if ids:
                return self.rows[next(iter(ids))]
        return None


def read_references(path: Path | str) -> References:
    """A CSV, TSV or JSONL with `id` or `file_name` (or both), and the text in one of `TEXT_COLUMNS`.

    Raises DataError, with the line, for a table that cannot be read, lacks a column or names a clip twice.
    """
    path = Path(path)
    rows: dict[str, Reference] = {}
    seen: dict[str, str] = {}
    by_name: dict[str, set[str]] = defaultdict(set)
    for where, record in _records(path):
        clip_id = id_of(record, where)
        column = next((name for name in TEXT_COLUMNS if name in record), None)
        if column is None:
            raise DataError(
                f"{where} has no text, only {keys_of(record)}",
                f"a reference is in a column named {', '.join(TEXT_COLUMNS[:-1])} or {TEXT_COLUMNS[-1]}",
            )
        refuse_twice(clip_id, where, seen)
        rows[clip_id] = Reference(
            clip_id,
            text_of(record, column, where),
            language_of(record.get("language"), where),
            columns_of(record, {column}),
        )
        for name in (clip_id, record.get("file_name")):
            for known in names_of(name) if isinstance(name, str) and name else ():
                by_name[known].add(clip_id)
    if not rows:
        raise DataError(f"{path} holds no reference", "it needs a line for each clip")
    return References(path, rows, {name: frozenset(ids) for name, ids in by_name.items()})


def names_of(path: str) -> list[str]:
    """What else a clip of this path goes by, the most particular first."""
    path = path.replace("\\", "/").removeprefix("./")
    names = [path, _without_ending(path), PurePosixPath(path).name, _without_ending(PurePosixPath(path).name)]
    return list(dict.fromkeys(names))


def _without_ending(path: str) -> str:
    stem, _, ending = path.rpartition(".")
    return stem if ending.lower() in AUDIO_ENDINGS and stem else path


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(`file:line`, record) of a table."""
    match path.suffix.lower():
        case ".jsonl" | ".ndjson":
            yield from json_lines(path, read_bytes(path))
        case ".csv":
            yield from _cells(path, ",")
        case ".tsv":
            yield from _cells(path, "\t")
        case _:
            raise DataError(
                f"{path} is no table of references: its name does not end in .csv, .tsv or .jsonl",
                "its columns are id or file_name, and transcription",
            )


def _cells(path: Path, separator: str) -> Iterator[tuple[str, dict[str, Any]]]:
    text = _utf8(read_bytes(path), str(path)).removeprefix("\ufeff")
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        header = next(rows, [])
        for row in rows:
            where = f"{path}:{rows.line_num}"
            if row and len(row) != len(header):
                raise DataError(
                    f"{where} has {len(row)} cells, the first line {len(header)}",
                    "a text with the separator in it is put in double quotes",
                )
            if row:
                yield where, dict(zip(header, row, strict=True))
    except csv.Error as error:
        hint = "save the table again as CSV with quoted texts"
        raise DataError(f"{path}:{rows.line_num} is no table: {error}", hint) from None


# Files and fields -----------------------------------------------------------------------------------------


def read_bytes(path: Path) -> bytes:
    """Raises DataError where there is no file."""
    if not path.exists():
        raise DataError(f"{path} does not exist", "give a file or a folder of transcripts or references")
    return path.read_bytes()


def json_lines(path: Path, raw: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """(`file:line`, object) of each line that is not blank."""
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raw = raw.decode("utf-16", "replace").encode()
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        where = f"{path}:{number}"
        if not line.strip():
            continue
        try:
            record = _decode(_utf8(line, where))
        except json.JSONDecodeError as error:
            raise not_json(where, error) from None
        except RecursionError:
            hint = "write one flat object a line"
            raise DataError(f"{where} is nested too deeply to be a clip", hint) from None
        if not isinstance(record, dict):
            raise DataError(f"{where} is no object: {line.decode()[:40].strip()}", "write one object a line")
        yield where, record


def _utf8(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n")
        at = f"{where}:{line + 1}" if line else where
        raise DataError(f"{at} is not UTF-8: byte {raw[error.start]:#04x}", "save it as UTF-8") from None


def not_json(where: str, error: json.JSONDecodeError) -> DataError:
    return DataError(
        f"{where} is not JSON: {error.msg} at column {error.colno}", "one JSON object a line, or one a file"
    )


def id_of(record: Mapping[str, Any], where: str) -> str:
    for name in ID_COLUMNS:
        value = record.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, str) and value.strip():
            return value
        if name in record:
            raise DataError(f"{where}: {name!r} is {shown(value)}, no name", "give each clip a name")
    raise DataError(
        f"{where} has no 'id' and no 'file_name', only {keys_of(record)}", "give each clip a name"
    )


def text_of(record: Mapping[str, Any], key: str, where: str) -> str:
    if not isinstance(record[key], str):
        raise DataError(f"{where}: {key!r} is {shown(record[key])}, no text", 'for no words at all write ""')
    return record[key]


def refuse_twice(clip_id: str, where: str, seen: dict[str, str]) -> None:
    if clip_id in seen:
        raise DataError(f"{where} is about {clip_id!r}, as {seen[clip_id]} was", "give each clip once")
    seen[clip_id] = where


def columns_of(record: Mapping[str, Any], others: Set[str] = frozenset()) -> dict[str, str]:
    """Every further column with a plain value, as text."""
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in record.items()
        if key not in OWN_COLUMNS | others and isinstance(value, str | int | float) and value != ""
    }


def keys_of(record: Mapping[str, Any]) -> str:
    keys = [str(key) for key in record]
    return (", ".join(keys[:8]) + (", …" if len(keys) > 8 else "")) or "nothing"


def shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else text[:39] + "…"


def language_of(value: Any, where: str) -> str | None:
    """A Whisper code; None where none is given."""
    if value is None or value == "":
        return None
    try:
        return language_code(value if isinstance(value, str) else shown(value))
    except UsageError as error:
        hint = "write a code such as en, cs, yue, or leave it out"
        raise DataError(f"{where}: {error.what}", hint) from None
