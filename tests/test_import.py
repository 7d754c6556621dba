"""Import: every row of a source is in the corpus or named with its reason."""

import dataclasses
import io
import json
import os
import shutil
import threading
import urllib.parse
import wave
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from whispertune.corpus import Corpus
from whispertune.data.importers import ImportSummary, import_rows, import_source, read_source
from whispertune.errors import DataError, MachineError, UsageError


def sound(i: int, seconds: float = 1.0) -> np.ndarray:
    """int16 `(n,)`; another one for each `i`."""
    t = np.arange(round(seconds * 16_000)) / 16_000
    return (np.sin(2 * np.pi * (200 + 37 * i) * t) * 9_000).astype(np.int16)


def wav_bytes(samples: np.ndarray) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(samples.astype("<i2").tobytes())
    return out.getvalue()


def source_of(
    folder: Path, files: dict[str, bytes], metadata: str | bytes, name: str = "metadata.csv"
) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(metadata.encode() if isinstance(metadata, str) else metadata)
    return folder


def ten(
    folder: Path, header: str = "file_name,text", row: str = "a{i}.wav,Sentence {i}.", count: int = 10
) -> Path:
    files = {f"a{i}.wav": wav_bytes(sound(i)) for i in range(count)}
    return source_of(folder, files, "\n".join([header, *(row.format(i=i) for i in range(count))]))


def told(summary: ImportSummary, name: str) -> list[tuple[str, str, str]]:
    return [(f.severity, f.reason, f.message) for f in summary.findings if f.file_name == name]


def texts(folder: Path) -> dict[str, str]:
    return {c.file_name: c.text for c in Corpus.open(folder).clips}


# Sources that cannot be read


def test_a_folder_without_metadata_says_what_is_expected(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav_bytes(sound(1)))
    with pytest.raises(DataError, match=r"has no metadata\.csv, metadata\.tsv or metadata\.jsonl") as caught:
        read_source(tmp_path)
    assert caught.value.hint == (
        "write metadata.csv there: a first line file_name,transcription and a line for each clip: "
        "audio/001.wav,What is said in it."
    )


@pytest.mark.parametrize(
    ("metadata", "what"),
    [
        ("file,text\na.wav,Hi\n", "no column 'file_name' (columns: file, text)"),
        ("file_name,words\na.wav,Hi\n", "no text column (columns: file_name, words)"),
        (b"file_name,text\na.wav,caf\xe9\n", "is not UTF-8 text"),
        ('file_name,text\na.wav,"never closed\n', "cannot be read as a table: unexpected end of data"),
        ("file_name,text\n", "has no rows"),
        ("", "has no rows"),
    ],
)
def test_metadata_that_cannot_be_read(tmp_path: Path, metadata: str | bytes, what: str) -> None:
    source = source_of(tmp_path / "s", {"a.wav": wav_bytes(sound(1))}, metadata)
    with pytest.raises(DataError) as caught:
        import_source(source, tmp_path / "c")
    assert what in caught.value.what
    assert not (tmp_path / "c").exists()


def test_other_sources_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder or file"):
        read_source(tmp_path / "none")
    source = ten(tmp_path / "s")
    with pytest.raises(DataError, match=r"a0\.wav is a file, and not Parquet"):
        read_source(source / "a0.wav")
    with pytest.raises(DataError, match="no column 'who' for the speaker"):
        import_source(source, tmp_path / "c", speaker_column="who")
    (source / "metadata.tsv").write_text("file_name\ttext\n")
    with pytest.raises(DataError, match=r"has both metadata\.csv and metadata\.tsv"):
        read_source(source)
    (source / "metadata.tsv").unlink()
    import_source(source, tmp_path / "c")
    with pytest.raises(DataError, match="c is a corpus already, not a source"):
        read_source(tmp_path / "c")
    with pytest.raises(DataError, match="c is a corpus already"):
        import_source(source, tmp_path / "c")
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"x\.parquet cannot be read as Parquet"):
        read_source(tmp_path / "x.parquet")


def test_a_source_with_nothing_usable_names_the_reasons(tmp_path: Path) -> None:
    source = source_of(tmp_path / "s", {"a.wav": b""}, "file_name,text\na.wav,Hi\nb.wav,Hi\nc.wav,Hi\n")
    with pytest.raises(
        DataError, match=r"none of the 3 rows of .* can be used: 2 missing, 1 empty_file"
    ) as caught:
        import_source(source, tmp_path / "c")
    assert caught.value.hint == "the first: a.wav: the file is empty (0 bytes)"
    assert not (tmp_path / "c").exists()


def test_case_35_too_little_space_stops_before_anything_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ten(tmp_path / "s")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 250_000))
    done = []
    with pytest.raises(MachineError, match=r"the corpus needs about 0\.3 MB, but only 0\.2 MB are free at"):
        import_source(source, tmp_path / "c", progress=lambda *a: done.append(a))
    assert not done
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


def test_the_space_for_parquet_is_estimated_by_its_sound_not_by_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s").mkdir()
    pq.write_table(
        table(0, 10), tmp_path / "s" / "x.parquet", compression=None
    )  # 10 s of WAV: 0.32 MB either way
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 300_000))
    with pytest.raises(MachineError, match=r"the corpus needs about 0\.3 MB, but only 0\.3 MB are free at"):
        import_source(tmp_path / "s", tmp_path / "c")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 400_000))
    assert import_source(tmp_path / "s", tmp_path / "c").kept == 10


# Rows that cannot be kept


def test_case_13_bad_files_are_rejected_with_a_reason_each(tmp_path: Path) -> None:
    source = ten(tmp_path / "s")
    bad = {
        "zero.mp3": (b"", "empty_file"),
        "cut.wav": (wav_bytes(sound(1))[:30], "undecodable"),
        "none.wav": (wav_bytes(sound(1, 0)), "no_samples"),
        "text.wav": (b"this is no sound\n" * 40, "undecodable"),
    }
    with (source / "metadata.csv").open("a") as file:
        for name, (content, _) in bad.items():
            (source / name).write_bytes(content)
            file.write(f"\n{name},Words.")
    summary = import_source(source, tmp_path / "c")
    assert (summary.rows, summary.kept) == (14, 10)
    assert summary.rejected == {"undecodable": 2, "empty_file": 1, "no_samples": 1}
    lines = [json.loads(line) for line in (tmp_path / "c" / "rejected.jsonl").read_text().splitlines()]
    assert {line["file_name"]: line["reason"] for line in lines} == {n: r for n, (_, r) in bad.items()}
    assert all(line["message"] for line in lines)


def test_case_30_every_row_is_kept_or_named(tmp_path: Path) -> None:
    names = [f"a{i}.wav" for i in range(10)]
    names += [
        "b.MP3",
        "sub/c.wav",
        "./d.wav",
        "train/test/e.wav",
        "no_extension",
        "wrong.txt",
        "with space.wav",
        "ü.wav",
    ]
    listed = [*names, "gone.wav", "sub/gone.wav"]
    source = source_of(
        tmp_path / "s",
        {name: wav_bytes(sound(i)) for i, name in enumerate([*names, "unlisted.wav"])}
        | {"README.txt": b"Hi"},
        "\n".join(["file_name,text", *(f"{name},Words {i}." for i, name in enumerate(listed))]),
    )
    summary = import_source(source, tmp_path / "c")
    assert (summary.rows, summary.kept, summary.rejected) == (20, 18, {"missing": 2})
    assert told(summary, "gone.wav") == [("reject", "missing", "there is no such file in s/")]
    assert told(summary, "unlisted.wav") == [
        ("warn", "unlisted", "audio that metadata.csv does not list: not imported")
    ]
    assert not told(summary, "README.txt")
    corpus = Corpus.open(tmp_path / "c")
    assert sorted(c.file_name for c in corpus.clips) == sorted(names)
    for clip in corpus.clips:
        np.testing.assert_array_equal(corpus.audio(clip), sound(names.index(clip.file_name)))
    shutil.move(tmp_path / "c", tmp_path / "moved")
    shutil.rmtree(source)
    moved = Corpus.open(tmp_path / "moved")
    assert sum(len(moved.audio(c)) for c in moved.clips) == 18 * 16_000


def test_names_that_lead_out_of_the_folder_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "secret.wav").write_bytes(wav_bytes(sound(3)))
    source = ten(tmp_path / "s")
    out = ["../secret.wav", "sub/../../secret.wav", str(tmp_path / "secret.wav")]
    with (source / "metadata.csv").open("a") as file:
        file.write("".join(f"\n{name},Words." for name in out))
    summary = import_source(source, tmp_path / "c")
    assert (summary.kept, summary.rejected) == (10, {"outside": 3})
    for name in out:
        assert told(summary, name)[0][2] == "the name leads out of the source's folder; it is not opened"


def test_rows_that_do_not_fit_their_header_or_file(tmp_path: Path) -> None:
    source = source_of(
        tmp_path / "s",
        {"a.wav": wav_bytes(sound(1, 3)), "b.wav": wav_bytes(sound(2))},
        "file_name,text,start,end,split\n"
        "a.wav,First.,0,1,\n"
        "a.wav,Again.,0,1,\n"
        "a.wav,Backwards.,2,1,\n"
        "a.wav,Too far.,2,9.5,\n"
        "a.wav,No number.,x,2,\n"
        "a.wav,Typo.,1,2,tset\n"
        "a.wav,One, two.,1,2,train,\n"
        "b.wav,\n"
        ",No name.,0,1,\n"
        "b.wav,Whole.,,,\n",
    )
    summary = import_source(source, tmp_path / "c")
    assert (summary.rows, summary.kept) == (10, 2)
    messages = {f.message for f in summary.findings if f.severity == "reject"}
    assert messages == {
        "listed already at 0.00 s, with another text: the first is kept",
        "start 2 s and end 1 s are no stretch of time",
        "ends at 9.50 s, but the recording has 3.00 s",
        "start = 'x' is no number of seconds",
        "split 'tset' is none of train, training, dev, valid, validation, val, test",
        "7 fields where the header has 5: put texts with the separator in them in quotes",
        "2 fields where the header has 5",
        "no file_name in this row",
    }


def test_a_file_listed_twice_is_reported(tmp_path: Path) -> None:
    source = ten(tmp_path / "s")
    with (source / "metadata.csv").open("a") as file:
        file.write("\n./a0.wav,Sentence 0.")
    summary = import_source(source, tmp_path / "c")
    assert (summary.rows, summary.kept) == (11, 10)
    assert told(summary, "./a0.wav") == [
        ("reject", "duplicate_row", "listed already, with the same text: the first is kept")
    ]


# What is kept


def test_bom_crlf_quoted_newlines_and_semicolons(tmp_path: Path) -> None:
    files = {f"a{i}.wav": wav_bytes(sound(i)) for i in range(3)}
    metadata = (
        '\ufefffile_name,sentence\r\na0.wav,"Two\r\nlines, one text."\r\n'
        'a1.wav,"He said ""no""."\r\na2.wav,Ende.\r\n'
    )
    import_source(source_of(tmp_path / "s", files, metadata), tmp_path / "c")
    expected = {"a0.wav": "Two lines, one text.", "a1.wav": 'He said "no".', "a2.wav": "Ende."}
    assert texts(tmp_path / "c") == expected
    for name, separator in (("metadata.csv", ";"), ("metadata.tsv", "\t")):
        metadata = f'file_name{separator}text\na0.wav{separator}"Two\nlines, one text."\na1.wav{separator}"He said ""no""."\na2.wav{separator}Ende.\n'
        import_source(source_of(tmp_path / name, files, metadata, name), tmp_path / f"c{name}")
        assert texts(tmp_path / f"c{name}") == expected
    lines = "".join(
        json.dumps({"file_name": k, "transcription": v, "age": 9}) + "\n" for k, v in expected.items()
    )
    summary = import_source(
        source_of(tmp_path / "j", files, lines + "[1]\n{\n", "metadata.jsonl"), tmp_path / "cj"
    )
    assert texts(tmp_path / "cj") == expected
    assert summary.rejected == {"bad_row": 2}
    assert {c.extra["age"] for c in Corpus.open(tmp_path / "cj").clips} == {"9"}


def test_every_other_column_is_kept(tmp_path: Path) -> None:
    header, row = (
        "file_name,text,client_id,language,split,age,duration_s,note",
        "a{i}.wav,Text {i}.,p{i},EN-us,valid,{i},9.9,",
    )
    import_source(ten(tmp_path / "s", header, row), tmp_path / "c", language="cs")
    clip = Corpus.open(tmp_path / "c").clips[3]
    assert (clip.speaker, clip.language, clip.split, clip.provenance) == ("p3", "en", "dev", "published")
    assert {k: v for k, v in clip.extra.items() if k != "audio_sha"} == {
        "age": "3",
        "source_duration_s": "9.9",
    }
    columns = pq.read_schema(tmp_path / "c" / "clips.parquet").names
    assert columns[-3:] == ["age", "source_duration_s", "audio_sha"]
    import_source(ten(tmp_path / "s2", header, row), tmp_path / "c2", speaker_column="age")
    assert Corpus.open(tmp_path / "c2").clips[3].speaker == "3"


def test_segments_are_views_of_one_recording(tmp_path: Path) -> None:
    audio = sound(1, 10)
    source = source_of(
        tmp_path / "s",
        {"long.wav": wav_bytes(audio), "other.wav": wav_bytes(sound(2))},
        "file_name,text,start,end\nlong.wav,Second.,4.5,6\nother.wav,Other.,,\nlong.wav,First.,0.25,2.0\nlong.wav,Last.,8,10.05\n",
    )
    import_source(source, tmp_path / "c")
    corpus = Corpus.open(tmp_path / "c")
    first, second, last = (c for c in corpus.clips if c.file_name == "long.wav")
    assert [c.text for c in (first, second, last)] == ["First.", "Second.", "Last."]
    assert (first.shard, first.offset, first.samples) == (second.shard, 4_000, 28_000)
    np.testing.assert_array_equal(corpus.audio(second), audio[72_000:96_000])
    np.testing.assert_array_equal(corpus.audio(last), audio[128_000:])
    np.testing.assert_array_equal(corpus.audio_between(first, second), audio[32_000:72_000])
    shards = sum((p.stat().st_size - 44) for p in (tmp_path / "c").glob("*.wav"))
    assert shards == 2 * (160_000 + 16_000)  # each file once


def test_sub_folders_with_their_own_metadata_are_splits(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / "s").mkdir(exist_ok=True)
        ten(tmp_path / "s" / split)
    summary = import_source(tmp_path / "s", tmp_path / "c")
    assert summary.kept == 20
    clips = Corpus.open(tmp_path / "c").clips
    assert {c.file_name.split("/")[0] for c in clips if c.split == "test"} == {"test"}
    assert {c.split for c in clips if c.file_name.startswith("train/")} == {"train", "dev"}


def test_importing_more_keeps_the_sides(tmp_path: Path) -> None:
    import_source(ten(tmp_path / "s", count=12), tmp_path / "c")
    before = {c.file_name: c.split for c in Corpus.open(tmp_path / "c").clips}
    summary = import_source(ten(tmp_path / "s", count=30), tmp_path / "c", replace=True)
    after = {c.file_name: c.split for c in Corpus.open(tmp_path / "c").clips}
    assert {k: after[k] for k in before} == before
    assert summary.kept == 30


def test_the_summary_and_the_progress(tmp_path: Path) -> None:
    source = ten(tmp_path / "s", "file_name,text,speaker", "a{i}.wav,Sentence {i}.,me")
    with (source / "metadata.csv").open("a") as file:
        file.write("\ngone.wav,Words.,me")
    seen: list[tuple[int, int | None]] = []
    summary = import_source(source, tmp_path / "c", progress=lambda done, total: seen.append((done, total)))
    assert (summary.rows, summary.kept, summary.rejected, summary.speakers) == (11, 10, {"missing": 1}, 1)
    assert summary.split.startswith("Split by clip")
    assert seen[-1] == (11, 11)
    assert json.loads(json.dumps(summary.as_dict()))["rejected"] == {"missing": 1}
    assert Corpus.open(tmp_path / "c").about["split"] == summary.split


# Parquet, `datasets` folders, the Hub


def table(first: int, count: int, **columns: list) -> pa.Table:
    audio = [{"bytes": wav_bytes(sound(i)), "path": "audio.wav"} for i in range(first, first + count)]
    own = {"audio": audio, "sentence": [f"Sentence {i}." for i in range(first, first + count)]}
    return pa.table({**own, **columns})


def test_parquet_with_bytes_and_named_splits(tmp_path: Path) -> None:
    (tmp_path / "s" / "data").mkdir(parents=True)
    pq.write_table(table(0, 12, speaker_id=[f"p{i}" for i in range(12)], n=list(range(12))), tmp_path / "s/data/train-00000-of-00001.parquet")  # fmt: skip
    pq.write_table(table(20, 3), tmp_path / "s/data/test-00000-of-00001.parquet")
    pq.write_table(table(30, 2), tmp_path / "s/data/validation.parquet")
    summary = import_source(tmp_path / "s", tmp_path / "c")
    assert (summary.rows, summary.kept, summary.rejected) == (17, 17, {})
    corpus = Corpus.open(tmp_path / "c")
    assert {s: len(corpus.split(s)) for s in ("train", "dev", "test")} == {"train": 12, "dev": 2, "test": 3}
    assert len({c.file_name for c in corpus.clips}) == len({c.id for c in corpus.clips}) == 17
    third = next(c for c in corpus.clips if c.text == "Sentence 2.")
    assert (third.speaker, third.extra["n"]) == ("p2", "2")
    np.testing.assert_array_equal(corpus.audio(third), sound(2))
    limited = import_source(tmp_path / "s", tmp_path / "few", limit=4)
    assert limited.rows == 4


def test_parquet_with_paths_and_faults(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "a.wav").write_bytes(wav_bytes(sound(1)))
    rows = {"audio": ["a.wav", "gone.wav", "../out.wav", None], "text": ["Hi.", "Hi.", "Hi.", "Hi."]}
    pq.write_table(pa.table(rows), tmp_path / "s" / "x.parquet")
    for source, name in ((tmp_path / "s", "c1"), (tmp_path / "s" / "x.parquet", "c2")):
        summary = import_source(source, tmp_path / name)
        assert (summary.rows, summary.kept) == (4, 1)
        assert summary.rejected == {"missing": 1, "outside": 1, "bad_row": 1}
    pq.write_table(pa.table({"sound": ["a.wav"], "text": ["Hi."]}), tmp_path / "s" / "x.parquet")
    with pytest.raises(DataError, match=r"x\.parquet: no column 'audio' \(columns: sound, text\)"):
        import_source(tmp_path / "s", tmp_path / "c3")


def test_a_datasets_folder_needs_neither_datasets_nor_torchcodec(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="`datasets` writes the folder for this test")

    def make(first: int, count: int):
        data = datasets.Dataset.from_dict(table(first, count).to_pydict())
        return data.cast_column("audio", datasets.Audio(decode=False))

    datasets.DatasetDict({"train": make(0, 8), "validation": make(20, 2), "test": make(30, 3)}).save_to_disk(
        tmp_path / "d"
    )
    make(50, 5).shuffle(seed=1).save_to_disk(tmp_path / "one")
    summary = import_source(tmp_path / "d", tmp_path / "c")
    assert (summary.rows, summary.kept) == (13, 13)
    corpus = Corpus.open(tmp_path / "c")
    assert {s: len(corpus.split(s)) for s in ("train", "dev", "test")} == {"train": 8, "dev": 2, "test": 3}
    import_source(tmp_path / "one", tmp_path / "c1")
    assert set(texts(tmp_path / "c1").values()) == {f"Sentence {i}." for i in range(50, 55)}
    (tmp_path / "one" / "state.json").write_text("{}")
    with pytest.raises(DataError, match="is no whole data set saved by `datasets`"):
        read_source(tmp_path / "one")


class Hub(ThreadingHTTPServer):
    """What huggingface_hub asks of a hub, on 127.0.0.1: `files[revision][path]`."""

    def __init__(self, files: dict[str, dict[str, bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.files = files
        self.sent = 0


class HubHandler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            self.server.sent += len(body)

    def do_GET(self) -> None:
        path = urllib.parse.urlparse(self.path).path
        for revision, files in self.server.files.items():
            quoted = urllib.parse.quote(revision, safe="")
            commit = f"{list(self.server.files).index(revision):040d}"
            for at in (quoted, revision, commit):
                if path == f"/api/datasets/me/voice/revision/{at}" or (
                    path == "/api/datasets/me/voice" and revision == "main"
                ):
                    siblings = [{"rfilename": name, "size": len(content)} for name, content in files.items()]
                    body = {
                        "id": "me/voice",
                        "sha": commit,
                        "siblings": siblings,
                        "private": False,
                        "tags": [],
                        "downloads": 0,
                    }
                    return self.reply(200, json.dumps(body).encode(), Content_Type="application/json")
                if path.startswith(f"/api/datasets/me/voice/tree/{at}"):
                    tree = [
                        {"type": "file", "path": n, "size": len(c), "oid": f"{hash(n) & (2**160 - 1):040x}"}
                        for n, c in files.items()
                    ]
                    return self.reply(200, json.dumps(tree).encode(), Content_Type="application/json")
                prefix = f"/datasets/me/voice/resolve/{at}/"
                name = urllib.parse.unquote(path.removeprefix(prefix))
                if path.startswith(prefix) and name in files:
                    return self.file(files[name], commit)
        body = json.dumps({"error": "Repository not found"}).encode()
        code = "RevisionNotFound" if path.startswith("/api/datasets/me/voice") else "RepoNotFound"
        return self.reply(404, body, X_Error_Code=code, Content_Type="application/json")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        files = next(iter(self.server.files.values()))
        infos = [{"type": "file", "path": n, "size": len(c), "oid": "0" * 40} for n, c in files.items()]
        self.reply(200, json.dumps(infos).encode(), Content_Type="application/json")

    def file(self, content: bytes, commit: str) -> None:
        about = {"X_Repo_Commit": commit, "ETag": f'"{len(content)}-{commit[-4:]}"', "Accept_Ranges": "bytes"}
        if ranged := self.headers.get("Range"):
            first, _, last = ranged.removeprefix("bytes=").partition("-")
            end = min(int(last) + 1 if last else len(content), len(content))
            about["Content_Range"] = f"bytes {first}-{end - 1}/{len(content)}"
            self.reply(206, content[int(first) : end], **about)
        else:
            self.reply(200, content, **about)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, dict[str, bytes]]]:
    """Files to serve as the data set me/voice; a cache of its own."""
    from huggingface_hub import constants

    files: dict[str, dict[str, bytes]] = {"main": {}}
    server = Hub(files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        constants.ENDPOINT + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setattr("huggingface_hub.HfFileSystem.cachable", False)
    yield files
    server.shutdown()
    server.server_close()


def parquet_bytes(data: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(data, out)
    return out.getvalue()


@pytest.mark.parametrize("streaming", [False, True])
def test_case_47_a_hub_set_downloaded_or_streamed_has_a_length(
    tmp_path: Path, hub: dict, streaming: bool
) -> None:
    hub["main"] |= {
        "data/train-00000-of-00001.parquet": parquet_bytes(table(0, 9)),
        "data/test-00000-of-00001.parquet": parquet_bytes(table(20, 3)),
        "README.md": b"# voice",
    }
    assert read_source("me/voice", streaming=streaming).total == 12
    summary = import_source("me/voice", tmp_path / "c", streaming=streaming)
    assert (summary.rows, summary.kept) == (12, 12)
    assert sorted(texts(tmp_path / "c").values()) == sorted(
        f"Sentence {i}." for i in (*range(9), *range(20, 23))
    )
    assert len(Corpus.open(tmp_path / "c").split("test")) == 3
    stored = list((tmp_path / "cache").rglob("*.parquet"))
    assert bool(stored) != streaming


def test_configurations_are_chosen_by_name(tmp_path: Path, hub: dict) -> None:
    hub["main"] |= {
        "cs/train-0.parquet": parquet_bytes(table(0, 4)),
        "de/train-0.parquet": parquet_bytes(table(10, 5)),
    }
    with pytest.raises(DataError, match="me/voice has 2 configurations: cs, de") as caught:
        read_source("me/voice")
    assert caught.value.hint == "name one: me/voice:cs"
    assert import_source("me/voice:de", tmp_path / "de").kept == 5
    assert import_source("me/voice:cs", tmp_path / "cs").kept == 4
    with pytest.raises(
        DataError, match="configuration 'fr' of me/voice on the Hub has neither Parquet nor metadata"
    ):
        read_source("me/voice:fr")


def test_an_audio_folder_on_the_hub(tmp_path: Path, hub: dict) -> None:
    hub["main"] |= {f"train/a[{i}].wav": wav_bytes(sound(i)) for i in range(5)}
    hub["main"]["train/metadata.csv"] = b"file_name,text\n" + b"".join(
        b"a[%d].wav,Text %d.\n" % (i, i) for i in range(5)
    )
    assert import_source("me/voice", tmp_path / "c").kept == 5
    hub["refs/convert/parquet"] = {"default/train/0000.parquet": parquet_bytes(table(0, 6))}
    assert import_source("me/voice", tmp_path / "c2", streaming=True).kept == 6


def test_the_hub_has_no_such_set(hub: dict) -> None:
    with pytest.raises(
        DataError, match="there is no folder clips/mine here, and no data set clips/mine on the Hub"
    ):
        read_source("clips/mine")


def test_a_set_that_vanishes_half_way_is_one_plain_line(hub: dict) -> None:
    hub["main"]["train.parquet"] = parquet_bytes(table(0, 3))
    opened = read_source("me/voice", streaming=True)
    hub["main"].clear()
    with pytest.raises(DataError, match="no data set me/voice on the Hub that you may read"):
        list(opened.rows)


def test_no_hub_at_all_is_one_plain_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        DataError, match="there is no folder me/voice here, and the Hub cannot be reached for"
    ) as caught:
        read_source("me/voice")
    assert "\n" not in caught.value.what
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError, match="the Hub cannot be reached for me/voice") as caught:
        read_source("me/voice", streaming=True)
    assert "\n" not in caught.value.what


def test_files_of_one_name_below_two_tables_are_two_clips(tmp_path: Path) -> None:
    """Parquet with paths, a folder a split: `a.wav` in each is another recording."""
    for i, split in enumerate(("train", "test")):
        place = tmp_path / "d" / split
        place.mkdir(parents=True)
        (place / "a.wav").write_bytes(wav_bytes(sound(i)))
        rows = pa.table({"audio": ["a.wav"], "text": [f"A tone of {split}."]})
        pq.write_table(rows, place / f"{split}-00000.parquet")
    import_source(tmp_path / "d", tmp_path / "c")
    clips = Corpus.open(tmp_path / "c").clips
    assert sorted((c.split, c.text) for c in clips) == [
        ("test", "A tone of test."),
        ("train", "A tone of train."),
    ]
    assert len({c.id for c in clips}) == 2 and len({c.file_name for c in clips}) == 2


def test_a_split_that_is_not_known_is_refused_before_anything_is_decoded(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        import_source(tmp_path / "nothing here", tmp_path / "c", ratios="70/30")
    assert error.value.what == "ratios '70/30' are not known"
    assert error.value.hint == "use 90/10 or 80/10/10"


# Odd metadata


@pytest.mark.parametrize(
    ("metadata", "what", "hint"),
    [
        (b"file_name,text,text\na.wav,x,y\n", ":1: the column 'text' is there 2 times", "rename one"),
        (b"file_name,text\na.wav,caf\xe9\n", ":2 is not UTF-8 text (byte 0xe9)", "save it again as UTF-8"),
        (
            b'file_name,text\na.wav,"open\n',
            ":2 cannot be read as a table: unexpected end of data",
            "is a quotation mark left open?",
        ),
    ],
)
def test_a_table_that_cannot_be_read_is_named_by_line(
    tmp_path: Path, metadata: bytes, what: str, hint: str
) -> None:
    source = source_of(tmp_path / "s", {}, metadata)
    with pytest.raises(DataError) as caught:
        read_source(source)
    assert (caught.value.what, caught.value.hint) == (f"{source / 'metadata.csv'}{what}", hint)


def test_utf16_and_long_fields_are_read(tmp_path: Path) -> None:
    files = {"a.wav": wav_bytes(sound(1))}
    long = "x" * 200_000
    metadata = f"file_name,text,note\na.wav,Hi there.,{long}\n".encode("utf-16")
    import_source(source_of(tmp_path / "s", files, metadata), tmp_path / "c")
    (clip,) = Corpus.open(tmp_path / "c").clips
    assert (clip.text, clip.extra["note"]) == ("Hi there.", long)


def test_odd_json_costs_only_its_row(tmp_path: Path) -> None:
    rows = [
        '{"file_name": "a0.wav", "text": "Good \\ud800 one.", "note\\udfff": 1}',
        "[" * 100_000,
        '{"file_name": "a1.wav", "text": "x", "end": [1]}',
        '{"file_name": "a2.wav", "text": "x", "start": 1' + "0" * 400 + "}",
        '{"file_name": "a3.wav", "text": "x", "language": "klingon"}',
        '{"file_name": "a4.wav", "text": "Yes.", "language": "English"}',
    ]
    files = {f"a{i}.wav": wav_bytes(sound(i)) for i in range(5)}
    summary = import_source(
        source_of(tmp_path / "s", files, "\n".join(rows), "metadata.jsonl"), tmp_path / "c", language="EN_us"
    )
    rejected = {f.file_name: f.message for f in summary.findings if f.severity == "reject"}
    hint = rejected.pop("a3.wav")
    assert hint.startswith("Whisper has no language 'klingon'; did you mean ")
    assert rejected == {
        "metadata.jsonl:2": "not JSON: nested too deeply",
        "a1.wav": "end = '[1]' is no number of seconds",
        "a2.wav": f"start = '1{'0' * 39}' is no number of seconds",
    }
    clips = Corpus.open(tmp_path / "c").clips
    assert [(c.text, c.language) for c in clips] == [("Good \ufffd one.", "en"), ("Yes.", "en")]


def test_a_language_that_is_none_stops_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        import_source(ten(tmp_path / "s"), tmp_path / "c", language="chzech")
    assert (caught.value.what, caught.value.hint) == (
        "Whisper has no language 'chzech'",
        "did you mean czech?",
    )


def test_a_file_that_cannot_be_read_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ten(tmp_path / "s", count=3)
    of = Path.stat

    def stat(path: Path, **options: bool):
        if path.name == "a1.wav" and read:
            raise PermissionError(13, "Permission denied", str(path))
        return of(path, **options)

    read: list[int] = []
    opened = read_source(source)
    monkeypatch.setattr(Path, "stat", stat)
    read.append(1)
    summary = import_rows(dataclasses.replace(opened, bytes=None, rows=iter(opened.rows)), source, tmp_path / "c")
    assert told(summary, "a1.wav") == [("reject", "unreadable", "cannot be read: Permission denied")]
    assert summary.kept == 2


def test_a_corpus_inside_its_source_and_a_pipe_as_source_are_refused(tmp_path: Path) -> None:
    source = ten(tmp_path / "s", count=2)
    with pytest.raises(DataError) as caught:
        import_source(source, source / "c")
    assert caught.value.what == f"the corpus {source / 'c'} would lie inside its source {source}"
    assert caught.value.hint == "name a folder beside the source"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError) as caught:
        import_source(tmp_path / "pipe", tmp_path / "c")
    assert caught.value.what == f"{tmp_path / 'pipe'} is neither a folder nor a file"


def test_a_pipe_called_parquet_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "clips.parquet")
    with pytest.raises(DataError) as caught:
        read_source(tmp_path)
    assert caught.value.what == f"{tmp_path} has no metadata.csv, metadata.tsv or metadata.jsonl"
