"""General speech to guard with: fetched once, and done without where it cannot be and nobody asked for it."""

import pytest
from test_import import hub, parquet_bytes, table  # noqa: F401
from test_job import Told, english, make_corpus, run_of  # noqa: F401

from whispertune.corpus import Corpus
from whispertune.data import general
from whispertune.engine.layouts import Layouts
from whispertune.errors import DataError
from whispertune.scoring.languages import language_code


@pytest.fixture
def fleurs(hub, monkeypatch, tmp_path):  # noqa: F811
    """FLEURS as the Hub converts it: a folder for each language, one for each split, names in words."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(general, "FLEURS", "me/voice")
    monkeypatch.setattr(general, "CLIPS", 6)
    hub["main"]["fleurs.py"] = b"raise SystemExit('nobody runs this')"
    words = {"en_us": "English", "cs_cz": "Czech"}
    hub["refs/convert/parquet"] = {
        f"{name}/{split}/0000.parquet": parquet_bytes(table(first, 9).append_column("language", [[word] * 9]))
        for name, word in words.items()
        for first, split in ((0, "train"), (20, "test"))
    }
    return hub


def test_a_language_it_lacks():
    with pytest.raises(DataError) as refused:
        general.general_speech("la")
    assert (refused.value.what, refused.value.hint) == (
        "FLEURS has no speech in 'la'",
        "--guard FOLDER names speech of your own",
    )


def test_its_languages_are_whispers():
    for code in general._CONFIGS:
        assert language_code(code) == code


def test_it_is_fetched_once_and_is_all_test(fleurs):
    folder = general.general_speech("cs")
    fleurs.clear()  # the Hub is gone
    assert general.general_speech("cs") == folder
    corpus = Corpus.open(folder)
    assert folder.name == "fleurs-cs" and len(corpus.clips) == 6
    assert {(clip.split, clip.language) for clip in corpus.clips} == {("test", "cs")}
    assert {clip.text for clip in corpus.clips} <= set(table(20, 9)["sentence"].to_pylist()), "no training clip"


def checked(run, told=None):
    from whispertune.job import Job

    job = Job(run, (told or Told()).emit, lambda: False)
    job.check()
    return job


@pytest.mark.real
def test_a_run_that_names_no_guard_takes_it_and_keeps_it(fleurs, tmp_path, english):  # noqa: F811
    run = run_of(tmp_path / "r", english, make_corpus(tmp_path / "c"), data__guards=None)
    told = Told()
    assert [judged.name for judged in checked(run, told).judging.sets] == ["test", "fleurs-en"]
    assert told.lines("guard") == [f"{general.ABOUT}, unless it is here already"]
    fleurs.clear()
    told = Told()
    assert [judged.name for judged in checked(run, told).judging.sets] == ["test", "fleurs-en"]
    assert told.lines("guard") == []


@pytest.mark.real
def test_no_hub_is_said_and_only_stops_who_asked_for_it(tmp_path, english, monkeypatch):  # noqa: F811
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    corpus = make_corpus(tmp_path / "c")
    with pytest.raises(DataError, match="the Hub cannot be reached for google/fleurs"):
        checked(run_of(tmp_path / "asked", english, corpus, data__guards=("auto",)))
    told = Told()
    run = run_of(tmp_path / "r", english, corpus, data__guards=None)
    assert [judged.name for judged in checked(run, told).judging.sets] == ["test"]
    said = [text for text in told.warnings() if text.startswith("general speech is not checked: ")]
    assert len(said) == 1 and said[0].endswith("; --guard FOLDER checks it")


@pytest.mark.real
def test_the_layouts_of_an_english_model_name_no_language(english):  # noqa: F811
    assert Layouts(str(english), None, "transcribe").default.language is None, "so English is what it guards"
