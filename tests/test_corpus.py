"""The corpus folder: whole or not there, movable, read by memory map."""

import errno
import shutil
import wave
from pathlib import Path

import numpy as np
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
