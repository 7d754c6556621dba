"""`whispertune compare --transcripts`: its words, what it prints, its exit codes, and no torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import Command, elsewhere, whispertune  # noqa: F401
from test_comparison import RIGHT, SAID, WORSE, WRONG
from test_floors import SOURCE, TORCH_AND_WHAT_BRINGS_IT


def write(name: str, hypothesis: str, clips: int = 24, **more: str) -> str:
    rows = [
        {"id": f"c{k:02}", "reference": SAID, "hypothesis": hypothesis, "language": "en", **more}
        for k in range(clips)
    ]
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return name


@pytest.mark.parametrize(
    ("words", "code", "what", "hint"),
    [
        ([], 2, "Missing argument 'SYSTEM'.", "whispertune compare --help shows the words"),
        (
            ["a.jsonl", "b.jsonl"],
            2,
            "compared on which speech? give one of --on-corpus and --transcripts",
            "whispertune compare tiny.en runs/mine --on-corpus CORPUS",
        ),
        (
            ["--transcripts", "a.jsonl"],
            2,
            "1 system to compare, and it takes 2 or more",
            "give stock first, then what is measured against it",
        ),
        (
            ["--transcripts", "a.jsonl", "none.jsonl"],
            1,
            "none.jsonl does not exist",
            "give a file or a folder of transcripts or references",
        ),
        (
            ["--transcripts", "a.jsonl", "b.jsonl", "--references", "r.txt"],
            1,
            "r.txt is no table of references: its name does not end in .csv, .tsv or .jsonl",
            "its columns are id or file_name, and transcription",
        ),
        (
            ["--transcripts", "a.jsonl", "b.jsonl", "--goal", "keywords"],
            2,
            "there is no goal 'keywords' here",
            "goals are wer and cer",
        ),
    ],
)
def test_what_is_wrong_is_one_line(whispertune: Command, words, code: int, what: str, hint: str):  # noqa: F811
    write("a.jsonl", RIGHT)
    write("b.jsonl", WRONG)
    said = whispertune("compare", *words)
    assert (said.code, said.out) == (code, "")
    assert said.error() == (what, hint)
    assert not Path("compare").exists()


@pytest.mark.parametrize(("before", "after", "code"), [(WRONG, RIGHT, 0), (RIGHT, WRONG, 3), (RIGHT, RIGHT, 0)])
def test_two_systems_have_a_verdict(whispertune: Command, before: str, after: str, code: int):  # noqa: F811
    said = whispertune("compare", "--transcripts", write("stock.jsonl", before), write("tuned.jsonl", after))
    assert said.code == code
    lines = said.out.splitlines()
    assert lines[0].startswith("verdict   ") and lines[-2] == "page      compare/compare.html"
    assert lines[-1] == (
        "next      whispertune compare --transcripts stock.jsonl tuned.jsonl --to compare --goal cer"
    )
    assert {"1  tuned", "2  tuned"} & {line[:8] for line in lines}
    assert "<h1>" in Path("compare/compare.html").read_text("utf-8")


def test_several_are_ranked(whispertune: Command):  # noqa: F811
    names = write("stock.jsonl", WRONG), write("good.jsonl", RIGHT), write("bad.jsonl", WORSE)
    said = whispertune("compare", *names, "--transcripts", "--to", "out/here")
    assert said.code == 0, "a rank is no verdict"
    assert said.out.splitlines()[0].startswith("ranking   good is best for these 24 clips: 0.0")
    assert [line[:8].rstrip() for line in said.out.splitlines()[3:6]] == ["1  good", "2  stock", "3  bad"]
    said = whispertune("compare", *names, "--transcripts", "--to", "out/here", "--json", "--goal", "cer")
    assert said.json == json.loads(Path("out/here/compare.json").read_text("utf-8"))
    assert said.json["goal"] == "cer"


def test_references_and_language_of_their_own(whispertune: Command):  # noqa: F811
    for name, text in (("stock", "won day"), ("tuned", "one day")):
        Path(name).mkdir()
        for k in range(8):
            Path(f"{name}/c{k}.wav.json").write_text(json.dumps({"text": text}), "utf-8")
    Path("r.csv").write_text("file_name,transcription\n" + "".join(f"c{k}.wav,1 day\n" for k in range(8)), "utf-8")
    words = ("compare", "--transcripts", "stock", "tuned", "--references", "r.csv")
    said = whispertune(*words, "--language", "en", "--json")
    assert (said.json["before"], said.json["after"], said.json["verdict"]) == (50.0, 0.0, "better")
    said = whispertune(*words)
    assert "No language is stated for 8 of 8 clips" in said.out
    Path("whispertune.toml").write_text('language = "en"\n', "utf-8")
    assert whispertune(*words, "--json").json["after"] == 0.0, "the project's language"


def test_it_needs_no_torch(elsewhere: Path):  # noqa: F811
    arguments = ["whispertune", "compare", "--transcripts", write("a.jsonl", WRONG), write("b.jsonl", RIGHT)]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({sorted(TORCH_AND_WHAT_BRINGS_IT)!r}))\n"
        f"sys.argv = {arguments!r}\n"
        "from whispertune.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(SOURCE)}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("verdict   BETTER")
