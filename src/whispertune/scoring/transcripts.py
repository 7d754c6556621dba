"""Transcripts made elsewhere: what other programs write about clips, and the texts that were really said.

What is read, by what is inside rather than by who says to have written it:

    JSONL                  a clip a line: id (or file_name), reference, hypothesis, and any other column
    verbose_json           OpenAI's API and openai-whisper: {"text", "segments", "language", "duration"}
    faster-whisper         its segments as people dump them, [{"start", "end", "text"}] or {"segments": […]};
                           tuples, as older versions had them; and what whisper-ctranslate2 writes
    whisper.cpp -oj, -ojf  {"transcription": [{"timestamps", "offsets", "text"}], "params", "result"}
    whispertune            `transcribe --json`; a run's baseline.json and evaluation.json, the first set

All but JSONL are a file a clip, or a folder of such files; the clip's name is the file's, less `.json`, with
or without the ending of the audio (whisper.cpp writes `clip.wav.json`). They know what was heard and not what
was said: that comes from a table of references. Sources: openai/openai-openapi
(CreateTranscriptionResponseVerboseJson), faster_whisper/transcribe.py, whisper-ctranslate2's writers.py,
whisper.cpp's examples/cli (output_json).
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whispertune.errors import DataError
from whispertune.scoring.references import (
    References,
    columns_of,
    id_of,
    json_lines,
    keys_of,
    language_of,
    names_of,
    not_json,
    read_bytes,
    refuse_twice,
    text_of,
)

_READ = "JSONL, verbose_json, faster-whisper's segments, whisper.cpp -oj and whispertune's own JSON are read"


@dataclass(frozen=True, slots=True)
class Transcripts:
    """What one system made of some clips."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    """`id`, `reference`, `hypothesis`, and `language`: None where nothing but the system itself says it."""
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Everything else said of clips: {column: {clip id: value}}. `detected_language` is the system's word."""
    decode: Mapping[str, Any] | None = None
    """The decoding options that the file states for all its clips; None where it states none."""
    source: Path = Path()
    rtf: float | None = None
    """Seconds of computing a second of speech."""
    size_mb: float | None = None
    """Of the weights, in MB."""
    cost_per_hour: float | None = None
    """US$ an hour of speech."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """One clip as a file tells of it."""

    where: str
    names: Sequence[str]
    hypothesis: str
    reference: str | None = None
    language: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    decode: Mapping[str, Any] | None = None


def read_transcripts(path: Path | str, references: References | None = None) -> Transcripts:
    """Reads one system's transcripts: a file, or a folder with a `.json` a clip.

    Args:
        references: what was said; takes the place of references that the file carries itself. Its language
            and columns count before those of the file.

    Columns `decode_s` and `duration_s` (seconds of computing, and of speech) give the real-time factor.

    Raises DataError, in one line with file and line: nothing there, not JSON, a key that is missing or no
    text, a clip twice or without a reference, a language that is none.
    """
    path = Path(path)
    heard = _heard(path)
    if not heard:
        raise DataError(f"{path} holds no transcript", "it needs one for each clip")
    rows: list[dict[str, Any]] = []
    seen: dict[str, str] = {}
    unknown: list[_Heard] = []
    columns: dict[str, dict[str, str]] = defaultdict(dict)
    for clip in heard:
        known = references.find(clip.names, clip.where) if references else None
        if known is None and (references or clip.reference is None):
            unknown.append(clip)
            continue
        clip_id = known.id if known else clip.names[0]
        refuse_twice(clip_id, clip.where, seen)
        rows.append(
            {
                "id": clip_id,
                "language": (known and known.language) or clip.language,
                "reference": known.text if known else clip.reference,
                "hypothesis": clip.hypothesis,
            }
        )
        for column, value in {**clip.columns, **(known.columns if known else {})}.items():
            columns[column][clip_id] = value
    if unknown:
        _refuse_unknown(unknown, len(heard), references)
    return Transcripts(
        name=path.name if path.is_dir() else path.stem,
        rows=rows,
        columns=dict(columns),
        decode=_common([clip.decode for clip in heard]),
        source=path,
        rtf=_rtf(columns, len(rows)),
    )


def _refuse_unknown(unknown: Sequence[_Heard], clips: int, references: References | None) -> None:
    first = unknown[0]
    if references is None:
        raise DataError(
            f"{first.where} has no 'reference', nor have {len(unknown):,} of {clips:,} clips here",
            "give --references FILE, a table of file_name and transcription, or a key 'reference'",
        )
    known = next(iter(references.rows))
    raise DataError(
        f"{first.where}: no reference for {first.names[0]!r}; {len(unknown):,} of {clips:,} clips lack one, "
        f"and {references.path} has {len(references.rows):,}, such as {known!r}",
        "a clip goes by its id, or by its file name with or without folder and ending",
    )


def _heard(path: Path) -> list[_Heard]:
    if path.is_dir():
        files = sorted(file for file in path.rglob("*.json") if not file.name.startswith("."))
        if not files:
            raise DataError(f"{path} holds no .json file", f"a folder has one a clip; {_READ}")
        return [clip for file in files for clip in _in_file(file, file.relative_to(path).as_posix())]
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        return [_of_row(where, row) for where, row in json_lines(path, read_bytes(path))]
    if path.suffix.lower() == ".json" or not path.exists():
        return _in_file(path, path.name)
    raise DataError(f"{path} is no transcript: its name does not end in .jsonl or .json", _READ)


def _in_file(path: Path, name: str) -> list[_Heard]:
    """The clips of a JSON file; a file about one clip gives it the name of the file."""
    raw = read_bytes(path)
    # Older whisper.cpp cuts letters in two in its lists of tokens (its issue 1798): not ours to refuse.
    text = raw.decode(json.detect_encoding(raw), "replace").lstrip("\ufeff")
    try:
        document = json.loads(text, strict=False)
    except RecursionError:
        raise DataError(f"{path} is nested too deeply to be a transcript", _READ) from None
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and error.lineno > 1:  # one JSON behind the other: JSONL by another name
            return [_of_row(where, row) for where, row in json_lines(path, raw)]
        raise not_json(f"{path}:{error.lineno}", error) from None
    where = str(path)
    names = names_of(name[: -len(".json")])
    rows = _rows(document)
    if rows is not None:
        return [_of_row(f"{where}, entry {k}", row) for k, row in enumerate(rows, start=1)]
    if isinstance(document, dict) and isinstance(document.get("transcription"), list):
        return [_of_whisper_cpp(where, names, document)]
    if isinstance(document, list):
        return [_Heard(where, names, _joined(document, where))]
    if isinstance(document, dict) and ("text" in document or "segments" in document):
        if isinstance(document.get("segments"), list) and not isinstance(document.get("text"), str):
            hypothesis = _joined(document["segments"], where)
        else:
            hypothesis = text_of({"text": None, **document}, "text", where).strip()
        columns = _detected(document.get("language"), where)
        if isinstance(document.get("duration"), int | float | str):
            columns["duration_s"] = str(document["duration"])
        return [_Heard(where, names, hypothesis, columns=columns)]
    found = f"an object with {keys_of(document)}" if isinstance(document, dict) else "no object"
    raise DataError(f"{where} is none of the formats read here: {found}", _READ)


def _rows(document: Any) -> list[dict[str, Any]] | None:
    """The rows of a JSON about many clips, or about one in JSONL's words; None for any other."""
    if isinstance(document, dict) and isinstance(document.get("sets"), dict):  # whispertune's own
        first = next(iter(document["sets"].values()), None)
        if isinstance(first, list) and all(isinstance(row, dict) for row in first):
            return [{**row, "decode": document.get("decode")} for row in first]
    if isinstance(document, dict) and "hypothesis" in document:
        return [document]
    if isinstance(document, list) and document and all(isinstance(entry, dict) for entry in document):
        if "hypothesis" in document[0]:
            return document
        if "file" in document[0] and "text" in document[0]:  # whispertune transcribe --json
            return [{"file_name": e.get("file"), "hypothesis": e.get("text")} for e in document]
    return None


def _of_row(where: str, row: Mapping[str, Any]) -> _Heard:
    if "hypothesis" not in row:
        raise DataError(
            f"{where} has no 'hypothesis', only {keys_of(row)}", "name what was heard 'hypothesis'"
        )
    clip_id = id_of(row, where)
    names = [clip_id] if "id" in row else [clip_id, *names_of(clip_id)]
    if isinstance(row.get("file_name"), str):
        names += names_of(row["file_name"])
    return _Heard(
        where,
        list(dict.fromkeys(names)),
        text_of(row, "hypothesis", where),
        text_of(row, "reference", where) if "reference" in row else None,
        language_of(row.get("language"), where),
        columns_of(row),
        row["decode"] if isinstance(row.get("decode"), dict) else None,
    )


def _of_whisper_cpp(where: str, names: Sequence[str], document: Mapping[str, Any]) -> _Heard:
    parameters, result = document.get("params"), document.get("result")
    decode = None
    if isinstance(parameters, dict):
        task = "translate" if parameters.get("translate") else "transcribe"
        decode = {"engine": "whisper.cpp", "task": task}
    language = result.get("language") if isinstance(result, dict) else None
    hypothesis = _joined(document["transcription"], where)
    return _Heard(where, names, hypothesis, columns=_detected(language, where), decode=decode)


def _detected(language: Any, where: str) -> dict[str, str]:
    code = language_of(language, where)
    return {"detected_language": code} if code else {}


def _joined(segments: Sequence[Any], where: str) -> str:
    """The text of segments. Whisper writes a space in front of each; where people stripped it, one is set."""
    texts = []
    for number, segment in enumerate(segments, start=1):
        text = segment.get("text") if isinstance(segment, dict) else None
        if isinstance(segment, list):  # faster-whisper's tuples: (id, seek, start, end, text, …)
            text = next((value for value in segment if isinstance(value, str)), None)
        if not isinstance(text, str):
            raise DataError(f"{where}: segment {number} of {len(segments)} has no 'text'", _READ)
        texts.append(text)
    stripped = all(text == text.strip() for text in texts)
    return (" " if stripped else "").join(texts).strip()


def _common(options: Iterable[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The options that are the same for all clips; None where none is stated."""
    distinct: list[Mapping[str, Any]] = []
    for each in options:
        if each is None:
            return None
        if each not in distinct:
            distinct.append(each)
    first, *others = distinct
    return {k: v for k, v in first.items() if all(k in o and o[k] == v for o in others)} or None


def _rtf(columns: Mapping[str, Mapping[str, str]], clips: int) -> float | None:
    spent, speech = columns.get("decode_s", {}), columns.get("duration_s", {})
    if not len(spent) == len(speech) == clips:
        return None
    try:
        rtf = sum(map(float, spent.values())) / sum(map(float, speech.values()))
    except (ValueError, ZeroDivisionError):
        return None
    return rtf if 0 < rtf < float("inf") else None
