"""The corpus folder: whole or not there, movable, read by memory map."""

import errno
import os
import shutil
import wave
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from whispertune import corpus as corpus_module
from whispertune.clip import Clip, Finding
from whispertune.corpus import Corpus, CorpusWriter, audio_hash, is_corpus
from whispertune.errors import DataError, MachineError


def ramp(count: int, start: int = 0) -> np.ndarray:
    return (np.arange(start, start + count) % 20_000).astype(np.int16)


def clip(name: str, shard: str, offset: int, samples: int, **fields) -> Clip:
    own = {"id": name, "text": f"text of {name}", "split": "train", "recording": name, **fields}
    return Clip(file_name=f"{name}.wav", shard=shard, offset=offset, samples=samples, **own)


def small_corpus(folder: Path, **options) -> list[Clip]:
    with CorpusWriter(folder, **options) as writer:
        shard, offset = writer.add_recording(ramp(3_000))
        clips = [
            clip("a", shard, offset, 1_000, recording="r", speaker="s1", extra={"age": "9"}),
            clip("b", shard, offset + 1_500, 1_500, recording="r", split="test", language="cs"),
        ]
        shard, offset = writer.add_recording(ramp(800, 7))
        clips.append(clip("c", shard, offset, 800, split="dev", source_rate=8_000, provenance="person"))
        findings = [
            Finding("reject", "bad.wav", "empty_file", "the file is empty (0 bytes)"),
            Finding("warn", "a.wav", "clipping", "3.0% of the samples are at full scale"),
        ]
        writer.finish(clips, findings, {"split": "by hand"})
    return clips


def left_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_there_is_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no corpus at .*nothing"):
        Corpus.open(tmp_path / "nothing")
    with pytest.raises(DataError, match="is no corpus") as caught:
        Corpus.open(tmp_path)
    assert "whispertune import SOURCE --to" in caught.value.hint
    (tmp_path / "clips.parquet").write_bytes(b"PAR1 nonsense")
    assert not is_corpus(tmp_path)


def test_an_existing_corpus_is_only_replaced_when_asked(tmp_path: Path) -> None:
    small_corpus(tmp_path / "c")
    with pytest.raises(DataError, match="c is a corpus already"):
        CorpusWriter(tmp_path / "c")
    with CorpusWriter(tmp_path / "c", replace=True) as writer:
        shard, offset = writer.add_recording(ramp(10))
        writer.finish([clip("new", shard, offset, 10)])
    assert [c.id for c in Corpus.open(tmp_path / "c").clips] == ["new"]
    assert left_in(tmp_path) == ["c"]


def test_a_folder_that_is_no_corpus_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").write_bytes(b"x")
    with pytest.raises(DataError, match="photos is there already and is no corpus; it is left as it is"):
        CorpusWriter(tmp_path / "photos", replace=True)
    assert left_in(tmp_path / "photos") == ["one.jpg"]


def test_nothing_half_written_stays(tmp_path: Path) -> None:
    small_corpus(tmp_path / "c")
    before = Corpus.open(tmp_path / "c").fingerprint
    with pytest.raises(RuntimeError), CorpusWriter(tmp_path / "c", replace=True) as writer:
        writer.add_recording(ramp(10))
        assert len(left_in(tmp_path)) == 2
        raise RuntimeError
    assert left_in(tmp_path) == ["c"]
    assert Corpus.open(tmp_path / "c").fingerprint == before


def test_too_little_space_stops_at_once_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(
        MachineError, match=r"the corpus needs about 9000000.0 GB, but only [\d.]+ .B are free at"
    ):
        CorpusWriter(tmp_path / "c", expected_bytes=9 * 10**15)
    assert left_in(tmp_path) == []


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(MachineError, match=r"the disk is full: 0\.0 MB of the corpus were written"):  # noqa: SIM117
        with CorpusWriter(tmp_path / "c") as writer:
            writer.add_recording(ramp(10))
            monkeypatch.setattr(wave.Wave_write, "writeframesraw", full)
            writer.add_recording(ramp(10))
    assert left_in(tmp_path) == []


def test_a_recording_longer_than_a_shard_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match=r"a recording of 0\.1 h is longer than the 0\.0 h that a shard holds"),
        CorpusWriter(tmp_path / "c", shard_bytes=1_000) as writer,
    ):
        writer.add_recording(np.zeros(16_000 * 360, np.int16))
    assert left_in(tmp_path) == []


def test_a_missing_or_short_shard_is_named(tmp_path: Path) -> None:
    small_corpus(tmp_path / "c")
    shard = tmp_path / "c" / "audio-00000.wav"
    content = shard.read_bytes()
    shard.write_bytes(content[:2_044])
    with pytest.raises(DataError, match=r"audio-00000\.wav holds 1,000 samples, its clips need 3,800"):
        Corpus.open(tmp_path / "c")
    shard.unlink()
    with pytest.raises(DataError, match=r"audio-00000\.wav is missing"):
        Corpus.open(tmp_path / "c")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    written = small_corpus(tmp_path / "c")
    corpus = Corpus.open(tmp_path / "c")
    assert corpus.clips == written
    assert corpus.split("test") == [written[1]]
    assert corpus.duration_s == 3_300 / 16_000
    assert corpus.about["split"] == "by hand"
    assert corpus.rejected == [Finding("reject", "bad.wav", "empty_file", "the file is empty (0 bytes)")]
    assert [f.reason for f in corpus.findings] == ["clipping"]
    np.testing.assert_array_equal(corpus.audio(written[1]), ramp(1_500, 1_500))
    np.testing.assert_array_equal(corpus.audio(written[2]), ramp(800, 7))
    np.testing.assert_array_equal(corpus.audio_between(written[0], written[1]), ramp(500, 1_000))
    assert not corpus.audio_between(written[1], written[0]).size
    view = corpus.audio(written[0])
    assert isinstance(view, np.memmap) and view.dtype == np.int16
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_tables_are_plain(tmp_path: Path) -> None:
    small_corpus(tmp_path / "c")
    table = pq.read_table(tmp_path / "c" / "clips.parquet")
    assert table.column_names == [
        "id", "file_name", "text", "duration_s", "split", "speaker", "language", "provenance",
        "shard", "offset", "samples", "recording", "source_rate", "age",
    ]  # fmt: skip
    assert table["duration_s"].to_pylist() == [1_000 / 16_000, 1_500 / 16_000, 800 / 16_000]
    assert table["age"].to_pylist() == ["9", None, None]
    with wave.open(str(tmp_path / "c" / "audio-00000.wav")) as shard:
        assert (shard.getframerate(), shard.getnchannels(), shard.getsampwidth()) == (16_000, 1, 2)
        assert shard.getnframes() == 3_800


def test_shards_are_filled_and_recordings_stay_whole(tmp_path: Path) -> None:
    with CorpusWriter(tmp_path / "c", shard_bytes=44 + 2 * 100) as writer:
        places = [writer.add_recording(ramp(n)) for n in (60, 40, 1, 99, 100)]
        writer.finish([clip(str(i), s, o, n) for i, ((s, o), n) in enumerate(zip(places, (60, 40, 1, 99, 100), strict=True))])  # fmt: skip
    assert places == [
        ("audio-00000.wav", 0), ("audio-00000.wav", 60), ("audio-00001.wav", 0), ("audio-00001.wav", 1),
        ("audio-00002.wav", 0),
    ]  # fmt: skip
    corpus = Corpus.open(tmp_path / "c")
    assert [len(corpus.audio(c)) for c in corpus.clips] == [60, 40, 1, 99, 100]


def test_case_30_a_moved_corpus_is_the_same_corpus(tmp_path: Path) -> None:
    small_corpus(tmp_path / "c")
    before = Corpus.open(tmp_path / "c").fingerprint
    shutil.move(tmp_path / "c", tmp_path / "elsewhere")
    moved = Corpus.open(tmp_path / "elsewhere")
    assert moved.fingerprint == before
    assert len(moved.audio(moved.clips[0])) == 1_000
    for path in (tmp_path / "elsewhere").iterdir():
        assert str(tmp_path).encode() not in path.read_bytes(), f"{path.name} holds an absolute path"


def test_the_fingerprint_follows_the_content_only(tmp_path: Path) -> None:
    def fingerprint(name: str, audio: np.ndarray, clips: list[tuple[str, dict]]) -> str:
        with CorpusWriter(tmp_path / name) as writer:
            shard, offset = writer.add_recording(audio)
            writer.finish([clip(i, shard, offset, len(audio), **fields) for i, fields in clips])
        return Corpus.open(tmp_path / name).fingerprint

    first = fingerprint("1", ramp(50), [("a", {}), ("b", {})])
    assert fingerprint("2", ramp(50), [("b", {}), ("a", {})]) == first
    stored = {"extra": {"audio_sha": audio_hash(ramp(50))}}
    assert fingerprint("3", ramp(50), [("a", stored), ("b", stored)]) == first
    assert fingerprint("4", ramp(50, 1), [("a", {}), ("b", {})]) != first
    assert fingerprint("5", ramp(50), [("a", {"text": "other"}), ("b", {})]) != first
    assert fingerprint("6", ramp(50), [("a", {"split": "test"}), ("b", {})]) != first


def test_shards_hold_at_most_a_gigabyte() -> None:
    assert corpus_module.SHARD_BYTES <= 10**9


# A damaged folder


def edit(folder: Path, **columns: list) -> None:
    """Other values in columns of the table; None instead of values: without the column."""
    path = folder / "clips.parquet"
    table = pq.read_table(path)
    for name, values in columns.items():
        place = table.column_names.index(name)
        if values is None:
            table = table.remove_column(place)
        else:
            table = table.set_column(place, name, pa.array(values))
    pq.write_table(table, path)


def refused(folder: Path) -> tuple[str, str]:
    with pytest.raises(DataError) as caught:
        Corpus.open(folder)
    return caught.value.what.replace(str(folder), "C"), caught.value.hint


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"samples": None}, "no column 'samples'"),
        ({"text": ["a", None, "b"]}, "row 2 has no 'text'"),
        ({"split": ["train", "left", "dev"]}, "row 2 has the split 'left', which is none of train, dev, test"),
        ({"offset": [-1, 1_500, 3_000]}, "row 1 has 1,000 samples from -1 on, which is no stretch of audio"),
        ({"samples": [1_000, 0, 800]}, "row 2 has 0 samples from 1,500 on, which is no stretch of audio"),
        ({"offset": ["a", "b", "c"]}, "the column 'offset' holds string, not int64"),
        ({"text": [["a"], ["b"], ["c"]]}, "the column 'text' holds list<element: string>, not string"),
        ({"shard": ["../../x.wav"] * 3}, "row 1 has its audio at '../../x.wav', outside of the corpus"),
        ({"shard": ["/etc/passwd"] * 3}, "row 1 has its audio at '/etc/passwd', outside of the corpus"),
        ({"id": ["a", "a", "b"]}, "2 rows have the id 'a'"),
        (
            {"shard": ["audio-00000.wav", "b.wav", "b.wav"]},
            "the recording 'r' is in audio-00000.wav and b.wav",
        ),
    ],
)
def test_a_damaged_table_is_named(tmp_path: Path, columns: dict, what: str) -> None:
    small_corpus(tmp_path / "c")
    edit(tmp_path / "c", **columns)
    assert refused(tmp_path / "c") == (f"C/clips.parquet is damaged: {what}", "import the source again")


def test_a_column_twice_is_named(tmp_path: Path) -> None:
    small_corpus(tmp_path / "c")
    path = tmp_path / "c" / "clips.parquet"
    table = pq.read_table(path)
    pq.write_table(table.append_column("text", table["text"]), path)
    assert refused(tmp_path / "c")[0] == "C/clips.parquet is damaged: 2 columns 'text'"


def test_columns_that_were_edited_elsewhere_are_taken(tmp_path: Path) -> None:
    small_corpus(tmp_path / "c")
    edit(tmp_path / "c", text=[1, 2, 3], age=[9, None, 10], duration_s=None)
    clips = Corpus.open(tmp_path / "c").clips
    assert [(c.text, c.extra) for c in clips] == [("1", {"age": "9"}), ("2", {}), ("3", {"age": "10"})]


@pytest.mark.parametrize(
    ("mark", "what", "hint"),
    [
        (b"nope", "is damaged: what it says of the corpus is no JSON object", "import the source again"),
        (b"[1]", "is damaged: what it says of the corpus is no JSON object", "import the source again"),
        (
            b'{"format": 2}',
            "is a corpus of format 2; this whispertune reads format 1",
            "use the whispertune that wrote it, or a newer one",
        ),
    ],
)
def test_what_is_said_of_the_corpus_is_damaged_or_newer(
    tmp_path: Path, mark: bytes, what: str, hint: str
) -> None:
    small_corpus(tmp_path / "c")
    path = tmp_path / "c" / "clips.parquet"
    pq.write_table(pq.read_table(path).replace_schema_metadata({b"whispertune": mark}), path)
    assert refused(tmp_path / "c") == (f"C/clips.parquet {what}", hint)


def test_a_shard_of_another_format_is_named(tmp_path: Path) -> None:
    small_corpus(tmp_path / "c")
    shard = tmp_path / "c" / "audio-00000.wav"
    head = bytearray(shard.read_bytes())
    head[24:28] = (8_000).to_bytes(4, "little")
    shard.write_bytes(head)
    assert refused(tmp_path / "c")[0] == (
        "C/audio-00000.wav is no 16-bit mono WAV of 16,000 Hz: its header says 16-bit, 1 channels, 8,000 Hz"
    )
    shard.write_bytes(b"\0" * len(head))
    assert refused(tmp_path / "c")[0] == (
        "C/audio-00000.wav is no 16-bit mono WAV of 16,000 Hz: its header is damaged"
    )
    shard.unlink()
    os.mkfifo(shard)
    assert refused(tmp_path / "c")[0] == "C/audio-00000.wav is missing: the corpus is not whole"


@pytest.mark.parametrize("line", [b'{"file_name": "x", "rea', b"[1]", b'{"a": 1}', b"\xff", b"[" * 9_999])
def test_damaged_findings_are_named_by_line(tmp_path: Path, line: bytes) -> None:
    small_corpus(tmp_path / "c")
    path = tmp_path / "c" / "rejected.jsonl"
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(DataError) as caught:
        _ = Corpus.open(tmp_path / "c").rejected
    assert caught.value.what == f"{path}:2 is damaged: no finding as import writes them"
    assert caught.value.hint == "import the source again, or delete the file: it only tells what import found"


def test_a_pipe_is_no_corpus(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "clips.parquet")
    assert not is_corpus(tmp_path)


# Odd places, and writers that were killed


def test_names_that_are_not_utf8_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    with CorpusWriter(folder) as writer:
        shard, offset = writer.add_recording(ramp(10))
        name = os.fsdecode(b"\xfe.wav")
        writer.finish([clip("a", shard, offset, 10)], [Finding("warn", name, "unlisted", "m")])
    assert Corpus.open(folder).findings == [Finding("warn", name, "unlisted", "m")]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, why in [(tmp_path / "file" / "c", "File exists"), (tmp_path / ("c" * 250), "File name too long")]:
        with pytest.raises(MachineError) as caught:
            CorpusWriter(folder)
        assert caught.value.what == f"the corpus cannot be written at {folder}: {why}"
        assert caught.value.hint == "name a folder where you may write"
    assert left_in(tmp_path) == ["file"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(DataError, match="loop is there already and is no corpus; it is left as it is"):
        CorpusWriter(tmp_path / "loop")
    (tmp_path / "link").symlink_to("real")
    small_corpus(tmp_path / "link")
    small_corpus(tmp_path / "link", replace=True)
    assert (tmp_path / "link").is_symlink()
    assert left_in(tmp_path) == ["link", "loop", "real"]


def test_a_file_that_may_not_grow_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def limited(*_: object) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(wave.Wave_write, "writeframesraw", limited)
    with pytest.raises(MachineError) as caught, CorpusWriter(tmp_path / "c") as writer:
        writer.add_recording(ramp(10))
    assert caught.value.what.startswith("the corpus cannot be written (File too large): 0.0 MB of the corpus")
    assert caught.value.hint == "name a folder on another disk; ulimit -f shows how large a file may be"
    assert left_in(tmp_path) == []


def test_what_a_killed_writer_left_goes_and_a_live_one_stays(tmp_path: Path) -> None:
    dead = tmp_path / ".c.partial-dead"
    dead.mkdir()
    (dead / "audio-00000.wav").write_bytes(b"x" * 99)
    live = CorpusWriter(tmp_path / "c")
    assert left_in(tmp_path) == [live._partial.name]
    small_corpus(tmp_path / "c")
    assert left_in(tmp_path) == [live._partial.name, "c"]
    live.__exit__(KeyboardInterrupt, None, None)
    assert left_in(tmp_path) == ["c"]


def test_a_corpus_that_a_killed_writer_had_moved_aside_is_put_back(tmp_path: Path) -> None:
    small_corpus(tmp_path / "c")
    (tmp_path / "c").rename(tmp_path / ".c.old-x")
    with pytest.raises(DataError, match="c is a corpus already"):
        CorpusWriter(tmp_path / "c")
    assert left_in(tmp_path) == ["c"]
    (tmp_path / ".c.old-y").mkdir()
    small_corpus(tmp_path / "c", replace=True)
    assert left_in(tmp_path) == ["c"]
