"""`compare --on-corpus`: models decode the same clips alike, once, and are ranked."""

import json
from pathlib import Path

import pytest
from test_job import QUICK, Told, english, make_corpus, make_model, measured_once_and_offline  # noqa: F401

from whispertune.data.importers import import_source
from whispertune.errors import ModelError
from whispertune.recipe import Recipe
from whispertune.scoring.transcripts import read_transcripts

QUICKLY = Recipe().with_changes({**QUICK, "data.guards": None}).model_dump()


def compared(models, corpus, to, told=None, recipe=QUICKLY):
    from whispertune import steps

    told = told or Told()
    return steps.compare(list(map(str, models)), str(corpus), str(to), recipe, told.emit, lambda: told.stop)


def decoded(told: Told) -> set[str]:
    return {e.data["text"] for e in told.events if e.kind == "progress" and e.data["label"] == "compare"}


def test_a_wrong_name_is_said_before_anything_is_decoded(tmp_path, english):  # noqa: F811
    told = Told()
    corpus = make_corpus(tmp_path / "c")
    with pytest.raises(ModelError, match=r"there is no model 'tiny\.em'"):
        compared([english, "tiny.em"], corpus, tmp_path / "out", told)
    with pytest.raises(ModelError, match="is given twice"):
        compared([english, english], corpus, tmp_path / "out", told)
    assert decoded(told) == set() and not (tmp_path / "out").exists()


@pytest.mark.real
def test_each_is_decoded_once_and_what_it_said_can_be_compared_again(tmp_path, english):  # noqa: F811
    corpus = make_corpus(tmp_path / "c", speaker=[f"s{n}" for n in range(12)])
    other = make_model(tmp_path / "other" / "small.en", "multilingual")
    told = Told()
    recipe = Recipe.model_validate(QUICKLY).with_changes({"model.language": "en"}).model_dump()
    found = compared([english, other], corpus, tmp_path / "out", told, recipe)
    assert decoded(told) == {"small.en", "other-small.en"}
    assert [system["name"] for system in found["systems"]] == ["small.en", "other-small.en"]
    for system in found["systems"]:
        assert system["rtf"] > 0 and 1 < system["size_mb"] < 20
    assert found["clips"] == 4, "the test clips"
    again = Told()
    assert compared([english, other], corpus, tmp_path / "out", again, recipe) == found
    assert decoded(again) == set(), "nothing is decoded twice"
    changed = Recipe.model_validate(recipe).with_changes({"eval.max_new_tokens": 3}).model_dump()
    compared([english, other], corpus, tmp_path / "out", again, changed)
    assert decoded(again) == {"small.en", "other-small.en"}
    kept = read_transcripts(tmp_path / "out" / "transcripts" / "small.en.json")
    assert set(kept.columns["speaker"].values()) <= {f"s{n}" for n in range(12)} and len(kept.rows) == 4


@pytest.mark.real
def test_evaluate_writes_transcripts_with_the_errors_of_each_clip(tmp_path, english):  # noqa: F811
    from whispertune import steps

    corpus = make_corpus(tmp_path / "c")
    path = tmp_path / "said.jsonl"
    arguments = str(english), str(corpus), None, QUICKLY, Told().emit, lambda: False
    found = steps.evaluate(*arguments, transcripts=str(path))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    scores = found["sets"]["test"]
    wrong = scores["substitutions"] + scores["deletions"] + scores["insertions"]
    assert sum(row["word_errors"] for row in rows) == wrong
    assert sum(row["words"] for row in rows) == scores["reference_words"]
    assert len(read_transcripts(path).rows) == 4


@pytest.mark.real
def test_tiny_and_base_on_real_speech(tmp_path, shared_speech: Path):
    import_source(shared_speech / "read-en", tmp_path / "c", limit=12)
    recipe = Recipe().with_changes({"model.language": "en"}).model_dump()
    found = compared(["tiny.en", "base"], tmp_path / "c", tmp_path, recipe=recipe)
    assert {round(system["size_mb"]) for system in found["systems"]} == {76, 145}
    assert found["after"] < 30 and found["before"] < 30
