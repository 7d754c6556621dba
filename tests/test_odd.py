"""Real speech: each odd file is kept right or rejected with its reason; real corpora import whole."""

import csv
import time
from pathlib import Path

import numpy as np
import pytest

from whispertune.corpus import Corpus
from whispertune.data.importers import ImportSummary, import_source
from whispertune.data.validate import check_corpus

pytestmark = pytest.mark.real

FOUND = {
    "video_no_audio.mp4": "no_audio_stream",
    "silence_5s.wav": "silence",
    "silence_45s.wav": "silence",
    "noise_only.wav": "empty_text",
    "padded_40s.wav": "too_long",
    "tiny_20ms.wav": "too_short",
    "no_frames.wav": "no_samples",
    "empty.wav": "empty_file",
    "random.wav": "undecodable",
    "text.wav": "undecodable",
    "html_404.mp3": "undecodable",
    "long_over30.flac": "too_long",
    "long_minutes.flac": "too_long",
    "label_empty.wav": "empty_text",
    "label_too_long.wav": "text_too_long",
    "stereo_antiphase.wav": "antiphase",
    "clipped.wav": "clipping",
    "quiet.wav": "quiet",
    "dc_offset.wav": "dc_offset",
    "truncated.wav": "truncated",
    "truncated.flac": "truncated",
    "corrupt_middle.flac": "truncated",
    "label_wrong.wav": "conflicting_texts",
    "label_tokens.wav": "special_tokens",
    "label_html.wav": "html",
    "label_rtl.wav": "script",
    "duplicate_of_ref.wav": "duplicate",
}
"""The finding that must be there, for each file that the manifest does not call `ok`."""


@pytest.fixture(scope="module")
def manifest(shared_speech: Path) -> list[dict[str, str]]:
    with (shared_speech / "odd" / "manifest.csv").open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def odd(
    shared_speech: Path, manifest: list[dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[ImportSummary, Corpus]:
    folder = tmp_path_factory.mktemp("odd")
    source = folder / "source"
    source.mkdir()
    spoken = manifest[0]["transcription"]
    with (source / "metadata.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["file_name", "transcription"])
        for row in manifest:
            (source / row["file_name"]).symlink_to(shared_speech / "odd" / row["file_name"])
            # The damaged files come without a text: give them one, so that their sound is what is judged.
            damaged = row["file_name"].startswith(("truncated", "corrupt"))
            writer.writerow([row["file_name"], spoken if damaged else row["transcription"]])
    return import_source(source, folder / "corpus", language="en"), Corpus.open(folder / "corpus")


def test_every_odd_file_is_kept_or_rejected_as_expected(odd, manifest: list[dict[str, str]]) -> None:
    summary, corpus = odd
    kept = {clip.file_name for clip in corpus.clips}
    assert summary.rows == len(manifest) == summary.kept + sum(summary.rejected.values())
    for row in manifest:
        name, expected = row["file_name"], row["expected"]
        own = [f for f in summary.findings if f.file_name == name]
        serious = [f for f in own if f.severity != "note"]
        if expected == "ok":
            assert name in kept, own
            # three of the good ones are the same recording as the reference, and that is said
            assert {f.reason for f in serious} <= {"duplicate"}, own
        elif expected == "reject":
            assert name not in kept, name
        else:
            assert serious, name
        if expected in ("warn", "warn: duplicate"):
            assert name in kept, own
        if expected != "ok":
            assert FOUND[name] in {f.reason for f in own}, own


def test_what_is_kept_of_the_odd_files_is_the_speech(odd, manifest: list[dict[str, str]]) -> None:
    _, corpus = odd
    by_name = {clip.file_name: clip for clip in corpus.clips}
    reference = corpus.audio(by_name["ref_16k.wav"]).astype(float)
    same = [
        r["file_name"]
        for r in manifest
        if r["expected"] == "ok" and r["transcription"].startswith("And so my")
    ]
    assert len(same) > 15
    for name in [*same, "stereo_antiphase.wav", "clipped.wav", "quiet.wav", "dc_offset.wav"]:
        audio = corpus.audio(by_name[name]).astype(float)
        assert abs(len(audio) - len(reference)) <= 110, name  # AAC and Opus pad by a frame
        count = min(len(audio), len(reference))
        # Codecs delay by up to some milliseconds: the best correlation over a small shift, either polarity.
        spectrum = np.fft.rfft(audio[:count] - audio.mean()) * np.conj(np.fft.rfft(reference[:count]))
        together = np.abs(np.fft.irfft(spectrum)).max()
        size = np.linalg.norm(audio[:count] - audio.mean()) * np.linalg.norm(reference[:count])
        assert together / size > (0.65 if name == "noisy_0db.wav" else 0.8), (name, together / size)
    assert by_name["low_rate_8k.mp3"].source_rate == 8_000
    assert by_name["label_tokens.wav"].text == manifest[0]["transcription"]
    assert by_name["label_html.wav"].text == "And so my fellow Americans, ask not"


@pytest.mark.parametrize(
    ("name", "kept", "minutes", "sides", "limit_s"),
    [
        ("child-en", 773, 45.1, {"train": 513, "dev": 91, "test": 169}, 30),
        ("read-en", 100, 12.8, {"train": 0, "dev": 0, "test": 100}, 30),
        ("czech", 1394, 78.3, {"train": 1099, "dev": 85, "test": 210}, 120),
    ],
)
def test_real_corpora_import_whole(
    shared_speech: Path, tmp_path: Path, name: str, kept: int, minutes: float, sides: dict, limit_s: float
) -> None:
    started = time.monotonic()
    summary = import_source(shared_speech / name, tmp_path / "c")
    took_s = time.monotonic() - started
    assert took_s < limit_s, f"{took_s:.0f} s"
    assert (summary.rows, summary.kept, summary.rejected) == (kept, kept, {})
    assert summary.duration_s / 60 == pytest.approx(minutes, abs=0.1)
    corpus = Corpus.open(tmp_path / "c")
    assert {side: len(corpus.split(side)) for side in sides} == sides
    found = {f.reason: f.message for f in check_corpus(corpus) if not f.file_name}
    if name == "child-en":
        assert set(found) == {"capitals", "unpunctuated"}
        assert all(abs(c.duration_s - float(c.extra["source_duration_s"])) < 0.01 for c in corpus.clips)
    if name == "czech":
        assert found["shared_speakers"].startswith("test shares 2 speakers with train (210 of 210 clips)")
