"""`import`: any source to a corpus. Every row of the source is either in the corpus or named in
`rejected.jsonl`."""

import contextlib
import dataclasses
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from whispertune.clip import SAMPLE_RATE, Clip, Finding, Split
from whispertune.corpus import SAMPLE_BYTES, SCHEMA, Corpus, CorpusWriter, audio_hash, is_corpus
from whispertune.data.audio import Decoded, NotAudio, declared_seconds, decode
from whispertune.data.hub import is_hub_id, read_hub
from whispertune.data.sources import (
    SPLIT_NAMES,
    Row,
    Source,
    is_saved,
    metadata_of,
    parquet_in,
    read_folder,
    read_parquet,
    read_saved,
)
from whispertune.data.split import RATIOS, split_clips
from whispertune.data.text import clean_text
from whispertune.data.validate import check_audio, check_clips, check_fit
from whispertune.errors import DataError, UsageError
from whispertune.scoring.languages import whisper_code

END_TOLERANCE_S = 0.1
"""A segment's end may lie this far behind the recording's: times are rounded, and encoders cut the last
frame."""
MEASURED_FILES = 50

Progress = Callable[[int, int | None], None]
"""Called with rows done and rows in all (None where the source does not say)."""


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """What came of an import. `rows == kept + sum(rejected.values())`."""

    corpus: Path
    rows: int
    kept: int
    rejected: dict[str, int]
    """Reason: number of rows."""
    warned: dict[str, int]
    """Reason of warnings and notes: how many. Corpus-wide ones are in `findings` with an empty
    `file_name`."""
    findings: list[Finding]
    duration_s: float
    split_s: dict[Split, float]
    """Seconds of train, dev, test."""
    split_clips: dict[Split, int]
    speakers: int
    split: str
    """One sentence on how the corpus was split."""

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {**dataclasses.asdict(self), "corpus": str(self.corpus)}


def read_source(
    source: str | Path,
    *,
    streaming: bool = False,
    limit: int | None = None,
    speaker_column: str | None = None,
) -> Source:
    """Open a folder with metadata, Parquet, a `datasets` folder, or a Hub id `owner/name[:config]`. Nothing
    is decoded.

    `streaming` reads a Hub id over the network, storing nothing but the corpus; local sources are always read
    row by row. `limit` takes the first rows. Raises DataError when the source is none of these.
    """
    path = Path(source)
    if not path.exists():
        if not is_hub_id(str(source)):
            raise DataError(
                f"there is no folder or file {source}", "give a folder, a Parquet file or a Hub id owner/name"
            )
        opened = read_hub(str(source), streaming=streaming, speaker_column=speaker_column)
    elif is_corpus(path):
        raise DataError(
            f"{source} is a corpus already, not a source", f"use it as it is: whispertune check {source}"
        )
    elif not path.is_dir():
        if not path.is_file():
            raise DataError(f"{source} is neither a folder nor a file", "give a folder or a Parquet file")
        if path.suffix != ".parquet":
            raise DataError(
                f"{source} is a file, and not Parquet",
                "give the folder that holds the audio and metadata.csv",
            )
        opened = read_parquet(path, speaker_column)
    elif is_saved(path):
        opened = read_saved(path, speaker_column)
    elif metadata_of(path) is None and parquet_in(path):
        opened = read_parquet(path, speaker_column)
    else:
        opened = read_folder(path, speaker_column)
    if limit is None:
        return opened
    total = limit if opened.total is None else min(limit, opened.total)
    return dataclasses.replace(opened, rows=itertools.islice(opened.rows, limit), total=total)


def import_source(
    source: str | Path,
    to: str | Path,
    *,
    language: str | None = None,
    split_seed: int = 0,
    ratios: str = "90/10",
    speaker_column: str | None = None,
    streaming: bool = False,
    limit: int | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> ImportSummary:
    """Decode every row once into a corpus at `to`, checked and split.

    `language` (a code or English name of Whisper's) is for rows whose source names none. With `replace` a
    corpus at `to` gives way, and clips that it held keep their side of the split. Raises UsageError for a
    language that Whisper lacks, DataError for a source that holds the corpus or that
    cannot be read or none of whose rows can be used, and what `CorpusWriter` raises.
    """
    if ratios not in RATIOS:
        raise UsageError(f"ratios '{ratios}' are not known", f"use {' or '.join(RATIOS)}")
    if Path(source).resolve() in Path(to).resolve().parents:
        raise DataError(
            f"the corpus {to} would lie inside its source {source}", "name a folder beside the source"
        )
    opened = read_source(source, streaming=streaming, limit=limit, speaker_column=speaker_column)
    return import_rows(
        opened,
        source,
        to,
        language=language,
        split_seed=split_seed,
        ratios=ratios,
        replace=replace,
        progress=progress,
    )


def import_rows(
    opened: Source,
    source: str | Path,
    to: str | Path,
    *,
    language: str | None = None,
    split_seed: int = 0,
    ratios: str = "90/10",
    replace: bool = False,
    progress: Progress | None = None,
) -> ImportSummary:
    """`import_source` for a source that is open already; `source` is what errors call it."""
    to = Path(to)
    language = whisper_code(language) if language else None
    existing: dict[str, Split] = {}
    if replace and is_corpus(to):
        existing = {clip.id: clip.split for clip in Corpus.open(to).clips}
    findings = list(opened.findings)
    clips: list[Clip] = []
    given: list[Split | None] = []
    done = 0
    expected_bytes, rows = _estimate(opened)
    with CorpusWriter(to, expected_bytes=expected_bytes, replace=replace) as writer:
        for recording in _recordings(rows):
            added = _add_recording(writer, recording, language, findings)
            for clip, side in added:
                clips.append(clip)
                given.append(side)
            done += len(recording)
            if progress:
                progress(done, opened.total)
        rejected = [f for f in findings if f.severity == "reject"]
        # Each row ends in exactly one place: this is the promise of the summary.
        assert done == len(clips) + len(rejected), f"{done} rows, {len(clips)} kept, {len(rejected)} rejected"
        if not clips:
            raise DataError(*_nothing(source, rejected))
        result = split_clips(clips, given, seed=split_seed, ratios=ratios, existing=existing)
        shas = {clip.id: clip.extra["audio_sha"] for clip in clips}
        about = {
            "split": result.description,
            "split_level": result.level,
            "seed": str(split_seed),
            "test": "given" if "test" in given else "carved",
        }
        writer.finish(result.clips, findings, about)
    findings += check_clips(result.clips, lambda clip: shas[clip.id])
    return _summary(to, done, result.clips, findings, result.description)


def _estimate(source: Source) -> tuple[int, Iterable[Row]]:
    """Bytes of the corpus (0 where nothing tells), and the source's rows, of which some were looked at.

    The stored size, times what the headers of some files say about seconds a byte: reading every header first
    would take minutes for 100,000 files, and these tell enough for a yes or no.
    """
    rows: Iterable[Row] = source.rows
    if isinstance(rows, list):
        heads = rows[:: max(1, len(rows) // MEASURED_FILES)]
    else:
        rows = iter(rows)
        heads = list(itertools.islice(rows, MEASURED_FILES))
        rows = itertools.chain(heads, rows)
    size = duration_s = 0.0
    for audio in (row.audio for row in heads):
        if audio is not None and (seconds := declared_seconds(audio)):
            with contextlib.suppress(OSError):  # decoding it says what is wrong
                size += len(audio) if isinstance(audio, bytes) else audio.stat().st_size
                duration_s += seconds
    if not size or source.bytes is None:
        return 0, rows
    return int(source.bytes / size * duration_s * SAMPLE_RATE * SAMPLE_BYTES), rows


def _recordings(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows that share one file, together. Readers give them one after another."""
    for _, group in itertools.groupby(rows, key=lambda r: r.audio if r.audio is not None else object()):
        yield list(group)


def _add_recording(
    writer: CorpusWriter, rows: list[Row], language: str | None, findings: list[Finding]
) -> list[tuple[Clip, Split | None]]:
    """Decode one file, judge each of its rows, and store it when one of them is kept."""
    if rows[0].problem:
        findings += [row.problem for row in rows if row.problem]
        return []
    audio = rows[0].audio
    assert audio is not None
    name = rows[0].file_name
    bad = [row.problem for row in rows if row.problem]
    rows = [row for row in rows if not row.problem]
    findings += bad
    try:
        decoded = decode(audio, name)
    except NotAudio as error:
        message = error.what.removeprefix(f"{name}: ")
        findings += [Finding("reject", row.file_name, error.reason, message) for row in rows]
        return []
    kept: list[tuple[Clip, Split | None]] = []
    seen: dict[int, Row] = {}
    for row in sorted(rows, key=lambda r: r.start_s or 0.0):
        made, own = _judge(row, decoded, language, seen)
        findings += own
        if made:
            kept.append(made)
    findings += decoded.findings
    if not kept:
        return []
    try:
        shard, offset = writer.add_recording(decoded.samples)
    except DataError as error:
        findings += [Finding("reject", clip.file_name, "recording_too_long", error.what) for clip, _ in kept]
        return []
    return [
        (dataclasses.replace(clip, shard=shard, offset=clip.offset + offset), side) for clip, side in kept
    ]


def _judge(
    row: Row, decoded: Decoded, language: str | None, seen: dict[int, Row]
) -> tuple[tuple[Clip, Split | None] | None, list[Finding]]:
    """One row against its decoded file: the clip (offsets within the file) and its side, or None; and the
    findings.

    A row is rejected once, for the first thing that is wrong with it.
    """
    name, count = row.file_name, len(decoded.samples)

    def reject(reason: str, message: str) -> tuple[None, list[Finding]]:
        return None, [Finding("reject", name, reason, message)]

    side: Split | None = None
    if row.split:
        side = SPLIT_NAMES.get(row.split.strip().lower())
        if side is None:
            return reject("unknown_split", f"split '{row.split}' is none of {', '.join(SPLIT_NAMES)}")
    start_s = row.start_s or 0.0
    end_s = decoded.duration_s if row.end_s is None else row.end_s
    if not 0 <= start_s < end_s:
        return reject("bad_times", f"start {start_s:g} s and end {end_s:g} s are no stretch of time")
    if end_s > decoded.duration_s + END_TOLERANCE_S:
        return reject("bad_times", f"ends at {end_s:.2f} s, but the recording has {decoded.duration_s:.2f} s")
    start, end = round(start_s * SAMPLE_RATE), min(round(end_s * SAMPLE_RATE), count)
    if start in seen:
        other = "the same text" if seen[start].text == row.text else "another text"
        at = f" at {start_s:.2f} s" if row.start_s is not None else ""
        return reject("duplicate_row", f"listed already{at}, with {other}: the first is kept")
    seen[start] = row
    findings = check_audio(name, decoded.samples[start:end])
    text, about_text = clean_text(row.text, name)
    findings += about_text
    try:
        code = whisper_code(row.language) if row.language else language
    except UsageError as error:
        return reject("unknown_language", f"{error.what}; {error.hint}")
    if all(f.severity != "reject" for f in findings):
        findings += check_fit(name, text, end - start, code)
    if wrong := next((f for f in findings if f.severity == "reject"), None):
        return None, [wrong]
    whole = start == 0 and end == count
    clip = Clip(
        id=hashlib.sha256(f"{name}\0{start}".encode()).hexdigest()[:16],
        file_name=name,
        text=text,
        split="train",
        shard="",
        offset=start,
        samples=end - start,
        recording=name,
        speaker=row.speaker,
        language=code,
        source_rate=decoded.source_rate,
        extra=_extra(row.extra)
        | {"audio_sha": audio_hash(decoded.samples if whole else decoded.samples[start:end])},
    )
    return (clip, side), findings


def _extra(columns: Mapping[str, str]) -> dict[str, str]:
    """The source's other columns; one that is called like a column of the corpus becomes `source_…`."""
    own = {*SCHEMA.names, "audio_sha"}
    renamed: dict[str, str] = {}
    for name, value in columns.items():
        while name in own or name in renamed:
            name = f"source_{name}"
        renamed[name] = value
    return renamed


def _nothing(source: str | Path, rejected: list[Finding]) -> tuple[str, str]:
    if not rejected:
        return f"{source} has no rows", "is the metadata file empty below its header?"
    reasons = ", ".join(
        f"{count} {reason}" for reason, count in Counter(f.reason for f in rejected).most_common()
    )
    return (
        f"none of the {len(rejected)} rows of {source} can be used: {reasons}",
        f"the first: {rejected[0].file_name}: {rejected[0].message}",
    )


def _summary(to: Path, rows: int, clips: list[Clip], findings: list[Finding], split: str) -> ImportSummary:
    split_s: dict[Split, float] = {"train": 0.0, "dev": 0.0, "test": 0.0}
    for clip in clips:
        split_s[clip.split] += clip.duration_s
    return ImportSummary(
        corpus=to,
        rows=rows,
        kept=len(clips),
        rejected=dict(Counter(f.reason for f in findings if f.severity == "reject").most_common()),
        warned=dict(Counter(f.reason for f in findings if f.severity != "reject").most_common()),
        findings=findings,
        duration_s=sum(split_s.values()),
        split_s=split_s,
        split_clips={side: sum(clip.split == side for clip in clips) for side in split_s},
        speakers=len({clip.speaker for clip in clips if clip.speaker}),
        split=split,
    )
