"""A source is imported once; it is imported again only when it, or what is asked of it, has changed."""

import os
import wave
from pathlib import Path

import numpy as np
import pytest

from whispertune.corpus import Corpus, is_corpus
from whispertune.data.remembered import corpus_of
from whispertune.errors import DataError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    folder = tmp_path / "my clips"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(4):
        with wave.open(str(folder / f"{i}.wav"), "wb") as file:
            file.setparams((1, 2, 16_000, 0, "NONE", ""))
            file.writeframes((rng.standard_normal(16_000) * 3000).astype("<i2").tobytes())
    (folder / "metadata.csv").write_text(
        "file_name,text\n" + "".join(f"{i}.wav,Word {i}.\n" for i in range(4))
    )
    return folder


def test_nothing_there(cache: Path):
    with pytest.raises(DataError, match="there is no folder or file nowhere"):
        corpus_of("nowhere")
    assert not list(cache.rglob("clips.parquet"))


def test_a_source_that_cannot_be_read_leaves_nothing(clips: Path, cache: Path):
    (clips / "metadata.csv").unlink()
    with pytest.raises(DataError):
        corpus_of(str(clips))
    assert not list(cache.rglob("*.parquet"))


def test_imported_once_and_found_again_by_any_path(clips: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    folder, summary = corpus_of(str(clips))
    assert summary is not None and summary.kept == 4
    assert folder.name == "my clips" and folder.is_relative_to(cache)
    monkeypatch.chdir(clips)
    for word in (str(clips), ".", "../my clips", "../my clips/"):
        assert corpus_of(word) == (folder, None), word


def test_a_corpus_is_taken_as_it_is(clips: Path):
    folder, _ = corpus_of(str(clips))
    assert corpus_of(str(folder)) == (folder, None)


def test_a_change_in_the_source_is_seen(clips: Path):
    first, _ = corpus_of(str(clips))
    (clips / "metadata.csv").write_text("file_name,text\n0.wav,Another word.\n")
    second, summary = corpus_of(str(clips))
    assert summary is not None and second != first
    assert [clip.text for clip in Corpus.open(second).clips] == ["Another word."]
    os.utime(clips / "0.wav", (1, 1))
    assert corpus_of(str(clips))[0] not in (first, second)


def test_the_language_stands_in_the_corpus_so_another_one_is_another_import(clips: Path):
    plain, _ = corpus_of(str(clips))
    czech, summary = corpus_of(str(clips), "cs")
    assert summary is not None and czech != plain and is_corpus(plain)
    assert {clip.language for clip in Corpus.open(plain).clips} == {None}
    assert {clip.language for clip in Corpus.open(czech).clips} == {"cs"}
    assert corpus_of(str(clips), "cs") == (czech, None)
