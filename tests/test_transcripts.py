"""Transcripts made elsewhere: what is wrong is said with file and line, and each format gives its text."""

import json
from pathlib import Path
from typing import Any

import pytest

from whispertune.errors import DataError
from whispertune.scoring.languages import language_code
from whispertune.scoring.references import read_references
from whispertune.scoring.transcripts import read_transcripts


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, content: Any) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def lines(*rows: Any) -> str:
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)


def row(clip_id: str = "a", reference: str = "one two", hypothesis: str = "one", **more: Any) -> dict[str, Any]:
    return {"id": clip_id, "reference": reference, "hypothesis": hypothesis, **more}


def fault(path: Any, references: Any = None) -> tuple[str, str]:
    with pytest.raises(DataError) as caught:
        read_transcripts(path, read_references(references) if references else None)
    assert "\n" not in caught.value.what + caught.value.hint
    return caught.value.what, caught.value.hint


READ = "JSONL, verbose_json, faster-whisper's segments, whisper.cpp -oj and whispertune's own JSON are read"


# -- what is wrong with transcripts -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "what", "hint"),
    [
        ("", "t.jsonl holds no transcript", "it needs one for each clip"),
        ("\n \n", "t.jsonl holds no transcript", "it needs one for each clip"),
        (
            lines(row(), "", "{'id': 1}"),
            "t.jsonl:3 is not JSON: Expecting property name enclosed in double quotes at column 2",
            "one JSON object a line, or one a file",
        ),
        (lines(row(), "[1, 2]"), "t.jsonl:2 is no object: [1, 2]", "write one object a line"),
        ("[" * 100_000, "t.jsonl:1 is nested too deeply to be a clip", "write one flat object a line"),
        (
            lines(row()).encode() + b'{"id": "b", "hypothesis": "caf\xe9"}',
            "t.jsonl:2 is not UTF-8: byte 0xe9",
            "save it as UTF-8",
        ),
        (
            lines(row(), {"id": "b", "text": "one"}),
            "t.jsonl:2 has no 'hypothesis', only id, text",
            "name what was heard 'hypothesis'",
        ),
        (
            lines({"reference": "x", "hypothesis": "y"}),
            "t.jsonl:1 has no 'id' and no 'file_name', only reference, hypothesis",
            "give each clip a name",
        ),
        (lines(row(None)), "t.jsonl:1: 'id' is null, no name", "give each clip a name"),
        (lines(row(" ")), "t.jsonl:1: 'id' is \" \", no name", "give each clip a name"),
        (
            lines(row(hypothesis=None)),
            "t.jsonl:1: 'hypothesis' is null, no text",
            'for no words at all write ""',
        ),
        (lines(row(reference=7)), "t.jsonl:1: 'reference' is 7, no text", 'for no words at all write ""'),
        (
            lines(row("b"), row("a"), row("b")),
            "t.jsonl:3 is about 'b', as t.jsonl:1 was",
            "give each clip once",
        ),
        (
            lines(row(), {"id": "b", "hypothesis": "x"}, {"id": "c", "hypothesis": "x"}),
            "t.jsonl:2 has no 'reference', nor have 2 of 3 clips here",
            "give --references FILE, a table of file_name and transcription, or a key 'reference'",
        ),
        (
            lines(row(language="klingon")),
            "t.jsonl:1: 'klingon' is not a language code",
            "write a code such as en, cs, yue, or leave it out",
        ),
        (
            lines(row(language=["en"])),
            "t.jsonl:1: '[\"en\"]' is not a language code",
            "write a code such as en, cs, yue, or leave it out",
        ),
    ],
)
def test_a_fault_in_jsonl_is_one_line_with_its_place(content, what: str, hint: str):
    assert fault(write("t.jsonl", content)) == (what, hint)


@pytest.mark.parametrize(
    ("content", "what", "hint"),
    [
        ("{", "c.json:1 is not JSON: Expecting property name enclosed in double quotes at column 2", "one JSON object a line, or one a file"),
        ("", "c.json:1 is not JSON: Expecting value at column 1", "one JSON object a line, or one a file"),
        ("[" * 100_000, "c.json is nested too deeply to be a transcript", READ),
        ("7", "c.json is none of the formats read here: no object", READ),
        ({"words": [], "x": 1}, "c.json is none of the formats read here: an object with words, x", READ),
        ({}, "c.json is none of the formats read here: an object with nothing", READ),
        ({"sets": {"test": 3}}, "c.json is none of the formats read here: an object with sets", READ),
        ({"text": None}, "c.json: 'text' is null, no text", 'for no words at all write ""'),
        ({"segments": 3}, "c.json: 'text' is null, no text", 'for no words at all write ""'),
        ([{"start": 0, "end": 1}], "c.json: segment 1 of 1 has no 'text'", READ),
        ({"segments": [{"text": "a"}, {"text": 3}]}, "c.json: segment 2 of 2 has no 'text'", READ),
        ({"transcription": [3]}, "c.json: segment 1 of 1 has no 'text'", READ),
        ([{"file": "a.wav", "text": "x"}, {"file": "b.wav"}], "c.json, entry 2: 'hypothesis' is null, no text", 'for no words at all write ""'),
        ([row(), row()], "c.json, entry 2 is about 'a', as c.json, entry 1 was", "give each clip once"),
        (lines(row(), {"id": "b"}), "c.json:2 has no 'hypothesis', only id", "name what was heard 'hypothesis'"),
        (
            {"text": "x"},
            "c.json has no 'reference', nor have 1 of 1 clips here",
            "give --references FILE, a table of file_name and transcription, or a key 'reference'",
        ),
    ],
)  # fmt: skip
def test_a_fault_in_json_is_one_line(content, what: str, hint: str):
    assert fault(write("c.json", content)) == (what, hint)


def test_what_is_no_transcript_at_all():
    there = "give a file or a folder of transcripts or references"
    assert fault("none.jsonl") == ("none.jsonl does not exist", there)
    assert fault("none") == ("none does not exist", there)
    hint = "its name does not end in .jsonl or .json"
    assert fault(write("t.txt", "hello")) == (f"t.txt is no transcript: {hint}", READ)
    Path("empty").mkdir()
    assert fault("empty") == ("empty holds no .json file", f"a folder has one a clip; {READ}")


def test_a_folder_names_the_file_that_is_at_fault():
    write("out/a.json", {"text": "x"})
    write("out/sub/b.json", "{")
    assert fault("out")[0].startswith("out/sub/b.json:1 is not JSON: ")


# -- what is wrong with references --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("r.txt", "x", "r.txt is no table of references: its name does not end in .csv, .tsv or .jsonl"),
        ("r.csv", "", "r.csv holds no reference"),
        ("r.csv", "file_name,transcription\n", "r.csv holds no reference"),
        ("r.csv", "file_name,words\na.wav,x\n", "r.csv:2 has no text, only file_name, words"),
        ("r.csv", "audio,text\na.wav,x\n", "r.csv:2 has no 'id' and no 'file_name', only audio, text"),
        ("r.csv", "id,text\na,x\nb,one, two\n", "r.csv:3 has 3 cells, the first line 2"),
        ("r.csv", "id,text\na\n", "r.csv:2 has 1 cells, the first line 2"),
        ("r.csv", 'id,text\na,"x" y\n', "r.csv:2 is no table: ',' expected after '\"'"),
        ("r.csv", "id,text\na,x\n\na,y\n", "r.csv:4 is about 'a', as r.csv:2 was"),
        ("r.csv", 'id,text\na,"x\ny"\n,z\n', "r.csv:4: 'id' is \"\", no name"),
        ("r.csv", b"id,text\na,x\nb,caf\xe9\n", "r.csv:3 is not UTF-8: byte 0xe9"),
        ("r.jsonl", lines({"id": "a", "text": None}), "r.jsonl:1: 'text' is null, no text"),
        ("r.tsv", "id\ttext\tlanguage\na\tx\t??\n", "r.tsv:2: '??' is not a language code"),
    ],
)
def test_a_fault_in_references_is_one_line_with_its_place(name: str, content, what: str):
    with pytest.raises(DataError) as caught:
        read_references(write(name, content))
    assert caught.value.what == what and caught.value.hint


def test_a_clip_without_a_reference():
    refs = write("r.csv", "file_name,text\nx/a.wav,one\n")
    heard = write("t.jsonl", lines(*({"id": name, "hypothesis": ""} for name in "abc")))
    assert fault(heard, refs) == (
        "t.jsonl:2: no reference for 'b'; 2 of 3 clips lack one, and r.csv has 1, such as 'x/a.wav'",
        "a clip goes by its id, or by its file name with or without folder and ending",
    )


def test_a_name_that_could_mean_two_clips():
    refs = write("r.csv", "file_name,text\nx/a.wav,one\ny/a.wav,two\n")
    assert fault(write("a.json", {"text": "one"}), refs) == (
        "a.json: 'a' could be 2 clips of r.csv, as 'x/a.wav' and 'y/a.wav'",
        "name the transcripts as the references do, folders included",
    )
    write("out/x/a.json", {"text": "one"})
    write("out/y/a.wav.json", {"text": "two"})
    read = read_transcripts("out", read_references(refs))
    assert [(r["reference"], r["hypothesis"]) for r in read.rows] == [("one", "one"), ("two", "two")]


def test_two_files_about_one_clip():
    write("out/a.json", {"text": "one"})
    write("out/a.wav.json", {"text": "one"})
    refs = write("r.csv", "file_name,text\na.wav,one\n")
    assert fault("out", refs) == ("out/a.wav.json is about 'a.wav', as out/a.json was", "give each clip once")


# -- what is read -------------------------------------------------------------------------------------------


def test_jsonl():
    read = read_transcripts(
        write(
            "stock.jsonl",
            b"\xef\xbb\xbf"
            + lines(
                row(language="English", speaker="s1", snr=12.5, note=None, noise={"x": 1}, decode={"beam": 5, "n": 1}),
                "",
                row(7, "", "", speaker="", decode={"beam": 5, "n": 2}),
            ).encode(),
        )
    )
    assert (read.name, read.decode, read.rtf) == ("stock", {"beam": 5}, None)
    assert read.rows == [
        {"id": "a", "language": "en", "reference": "one two", "hypothesis": "one"},
        {"id": "7", "language": None, "reference": "", "hypothesis": ""},
    ]
    assert read.columns == {"speaker": {"a": "s1"}, "snr": {"a": "12.5"}}


def test_the_real_time_factor_is_that_of_all_clips():
    rows = [row("a", decode_s=1, duration_s=10), row("b", decode_s=2.0, duration_s="5")]
    assert read_transcripts(write("t.jsonl", lines(*rows))).rtf == pytest.approx(3 / 15)
    for bad in ({"duration_s": 0}, {"duration_s": "x"}, {}):
        assert read_transcripts(write("t.jsonl", lines(row(decode_s=1, **bad)))).rtf is None


SEGMENTS = [{"start": 0.0, "end": 1.5, "text": " Hello there."}, {"start": 1.5, "end": 2, "text": " You."}]
VERBOSE = {
    "task": "transcribe", "language": "english", "duration": 2.0, "text": "Hello there. You.",
    "segments": [{**s, "id": i, "seek": 0, "tokens": [1], "avg_logprob": -0.2} for i, s in enumerate(SEGMENTS)],
}  # fmt: skip
WHISPER_CPP = {
    "systeminfo": "AVX = 1", "model": {"type": "base", "multilingual": True},
    "params": {"model": "ggml-base.bin", "language": "auto", "translate": False},
    "result": {"language": "en"},
    "transcription": [
        {"timestamps": {"from": "00:00:00,000", "to": "00:00:01,500"}, "offsets": {"from": 0, "to": 1500},
         "text": s["text"], "tokens": [{"text": "[_BEG_]", "id": 50364, "p": 0.9, "t_dtw": -1}]}
        for s in SEGMENTS
    ],
}  # fmt: skip
FORMATS = {
    "OpenAI's verbose_json": VERBOSE,
    "openai-whisper": {"text": " Hello there. You.", "segments": SEGMENTS, "language": "en"},
    "faster-whisper's segments": SEGMENTS,
    "the same, stripped": [{**s, "text": s["text"].strip()} for s in SEGMENTS],
    "the same, as tuples": [[1, 0, 0.0, 1.5, " Hello there.", [7], -0.2], [2, 0, 1.5, 2.0, " You.", [8], -0.2]],
    "the same in an object": {"segments": SEGMENTS, "language": "en"},
    "whisper.cpp": WHISPER_CPP,
    "whisper.cpp, a token a segment": {
        **WHISPER_CPP, "transcription": [{"text": t} for t in ("", " Hel", "lo", " there", ".", " You", ".")],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_gives_its_text(name: str):
    refs = read_references(write("r.csv", "file_name,transcription,speaker\nclips/clip.wav,hello there you,s1\n"))
    for file in ("clip.json", "clip.wav.json", "out/clips/clip.json", "clip.mp3.json"):
        read = read_transcripts(write(file, FORMATS[name]), refs)
        assert read.rows == [
            {
                "id": "clips/clip.wav",
                "language": None,
                "reference": "hello there you",
                "hypothesis": "Hello there. You.",
            }
        ]
        assert read.columns.get("detected_language", {}).get("clips/clip.wav", "en") == "en"
        assert read.columns["speaker"] == {"clips/clip.wav": "s1"}


def test_what_the_formats_say_besides():
    refs = read_references(write("r.csv", "file_name,text,language\nclip.wav,x,cs\n"))
    read = read_transcripts(write("clip.json", VERBOSE), refs)
    assert read.columns == {"detected_language": {"clip.wav": "en"}, "duration_s": {"clip.wav": "2.0"}}
    assert read.rows[0]["language"] == "cs", "who wrote the references knows better than who detects"
    assert read.decode is None
    read = read_transcripts(write("clip.json", WHISPER_CPP), refs)
    assert read.decode == {"engine": "whisper.cpp", "task": "transcribe"}
    assert read_transcripts(write("clip.json", []), refs).rows[0]["hypothesis"] == "", "it heard nothing"


def test_broken_letters_of_a_token_list_do_not_matter():
    raw = json.dumps(WHISPER_CPP).encode().replace(b"[_BEG_]", b"\xe6\x97")
    refs = read_references(write("r.csv", "id,text\nclip,x\n"))
    assert read_transcripts(write("clip.json", raw), refs).rows[0]["hypothesis"] == "Hello there. You."


def test_windows_writes_utf_16():
    refs = read_references(write("r.csv", "id,text\nclip,x\n"))
    read = read_transcripts(write("clip.json", json.dumps({"text": "žluť"}, ensure_ascii=False).encode("utf-16")), refs)
    assert read.rows[0]["hypothesis"] == "žluť"
    read = read_transcripts(write("t.jsonl", lines(row()).encode("utf-16")))
    assert read.rows[0]["hypothesis"] == "one"


def test_what_whispertune_writes_is_read():
    decode = {"engine": "torch", "search": "greedy"}
    system = {"model": {"name": "tiny.en"}, "decode": decode, "sets": {"test": [row(language="en")], "guard": [row("g")]}}
    read = read_transcripts(write("baseline.json", system))
    assert (read.name, read.decode, [r["id"] for r in read.rows]) == ("baseline", decode, ["a"])
    refs = read_references(write("r.csv", "file_name,text\na.wav,x\nb.wav,y\n"))
    heard = [{"file": "/there/b.wav", "text": "Y.", "segments": []}, {"file": "a.wav", "text": "X.", "segments": []}]
    read = read_transcripts(write("heard.json", heard), refs)
    assert [(r["id"], r["reference"], r["hypothesis"]) for r in read.rows] == [("b.wav", "y", "Y."), ("a.wav", "x", "X.")]
    assert read_transcripts(write("one.json", row())).rows[0]["id"] == "a"
    assert len(read_transcripts(write("lines.json", lines(row("a"), row("b")))).rows) == 2


@pytest.mark.parametrize("column", ["reference", "transcription", "text", "sentence"])
@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_references(column: str, ending: str):
    if ending == "jsonl":
        content = lines({"id": "a", "file_name": "x.wav", column: "one, two", "speaker": "s1"})
    else:
        separator = "," if ending == "csv" else "\t"
        content = separator.join(["id", "file_name", column, "speaker"]) + "\r\n"
        content += separator.join(["a", "x.wav", '"one, two"', "s1"]) + "\r\n"
    refs = read_references(write(f"r.{ending}", b"\xef\xbb\xbf" + content.encode()))
    for name in ("a", "x.wav", "x"):
        found = refs.find([name], "here")
        assert (found.id, found.text, found.columns) == ("a", "one, two", {"speaker": "s1"})
    assert refs.find(["y"], "here") is None


def test_references_of_their_own_take_the_place_of_a_files():
    refs = read_references(write("r.csv", "id,text\na,right\nunheard,x\n"))
    assert read_transcripts(write("t.jsonl", lines(row())), refs).rows[0]["reference"] == "right"


@pytest.mark.parametrize(("name", "code"), [("english", "en"), ("Haitian Creole", "ht"), ("Mandarin", "zh"), ("cs", "cs"), (" en-GB ", "en-GB")])  # fmt: skip
def test_languages_by_name(name: str, code: str):
    assert language_code(name) == code


def test_every_language_of_whisper_is_known_by_its_name():
    pytest.importorskip("transformers")
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    assert {name: language_code(name) for name in TO_LANGUAGE_CODE} == TO_LANGUAGE_CODE
