"""docs/coming-from.md: what it tells people to type exists."""

import json
import re
from pathlib import Path

import pytest

from whispertune.recipe import Recipe, keys

PAGE = (Path(__file__).parents[1] / "docs" / "coming-from.md").read_text("utf-8")
CELLS = [row.strip("| ").split(" | ")[-1] for row in PAGE.splitlines() if row.startswith("| ")]
LATER = {"record", "review", "plan", "push"}
"""Verbs of later versions; the page says so of each."""


@pytest.fixture(scope="module")
def commands():
    typer = pytest.importorskip("typer")
    from whispertune.cli import app

    return typer.main.get_command(app).commands


def test_every_recipe_key_exists():
    sections = "|".join(Recipe.model_fields)
    named = set(re.findall(rf"\b((?:{sections})\.[a-z_]+)", " ".join(CELLS)))
    assert len(named) > 15
    assert named <= {row[0] for row in keys()}


def test_every_verb_exists_or_is_said_to_be_later(commands):
    for cell in CELLS:
        for verb in re.findall(r"`whispertune ([a-z]+)", cell):
            if verb in LATER:
                assert "**not in this version**" in cell, cell
            else:
                assert verb in commands, cell


def test_every_option_exists(commands):
    known = {option for command in commands.values() for p in command.params for option in p.opts}
    named = {option for cell in CELLS for code in re.findall("`([^`]+)`", cell) for option in code.split()}
    named = {option for option in named if option.startswith("--")}
    assert len(named) > 10
    assert named - known == set()


def test_listenrs_recordings_become_a_source(tmp_path, monkeypatch):
    from whispertune.data.sources import read_folder

    clips = tmp_path / ".listenr" / "audio_clips"
    (clips / "audio" / "2026-02-28").mkdir(parents=True)
    record = {"uuid": "a1", "duration_s": 2.4, "whisper_model": "Whisper-Base", "is_improved": False}
    texts = [("their there", "They're there.", "They're there."), ("Ende gut.", "", "Ende gut.")]
    with open(clips / "manifest.jsonl", "w", encoding="utf-8") as manifest:
        for number, (raw, corrected, _) in enumerate(texts):
            audio = clips / "audio" / "2026-02-28" / f"clip_{number}.wav"
            audio.write_bytes(b"RIFF")
            fields = {
                "audio_path": str(audio),
                "raw_transcription": raw,
                "corrected_transcription": corrected,
            }
            manifest.write(json.dumps({**record, **fields}) + "\n")

    monkeypatch.setenv("HOME", str(tmp_path))
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(snippet, "coming-from.md", "exec"), {})

    source = read_folder(clips)
    rows = list(source.rows)
    assert source.findings == []
    assert [row.problem for row in rows] == [None, None]
    assert [row.text for row in rows] == [text for *_, text in texts]
    assert [row.file_name for row in rows] == [f"audio/2026-02-28/clip_{n}.wav" for n in (0, 1)]
