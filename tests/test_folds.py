"""k-fold: every clip is test once, nobody is on both sides, and what is delivered has heard all."""

from dataclasses import replace

import pytest
from test_job import Told, corpus, english, measured_once_and_offline, run_of  # noqa: F401
from test_report import clips

from whispertune.data.split import folded
from whispertune.errors import DataError, Stopped


def spoken(count, speakers):
    return [
        replace(c, speaker=f"s{i % speakers}", recording=c.id, text=f"Sentence {i}.")
        for i, c in enumerate(clips("c", count))
    ]


def test_more_folds_than_groups():
    with pytest.raises(DataError) as refused:
        folded(spoken(20, 4), 5)
    assert refused.value.what == (
        "5 folds need as many groups that can be held out; the clips have 4 (speaker)"
    )
    assert refused.value.hint == "--folds 4, or more recordings"


@pytest.mark.parametrize(("speakers", "count"), [(4, 2), (12, 5), (40, 10)])
def test_each_clip_is_test_once_and_no_speaker_on_both_sides(speakers, count):
    given = spoken(120, speakers)
    *parts, whole = folded(given, count)
    assert len(parts) == count
    for part in [*parts, whole]:
        assert [c.id for c in part] == [c.id for c in given]
        assert any(c.split == "dev" for c in part) and any(c.split == "train" for c in part)
    tested = [c.id for part in parts for c in part if c.split == "test"]
    assert sorted(tested) == sorted(c.id for c in given)
    for part in parts:
        test, rest = ({c.speaker for c in part if (c.split == "test") is side} for side in (True, False))
        assert test.isdisjoint(rest)
        seconds = sum(c.samples for c in part if c.split == "test")
        assert seconds <= 2 * sum(c.samples for c in given) / count
    assert {c.split for c in whole} == {"train", "dev"}
    assert folded(given, count) == [*parts, whole], "the same every time"


@pytest.mark.real
def test_a_stopped_run_of_folds_goes_on_and_judges_every_clip(tmp_path, english, corpus):  # noqa: F811
    from whispertune import steps
    from whispertune.corpus import Corpus

    run = run_of(tmp_path / "r", english, corpus, data__folds=3, eval__probes=False)
    told = Told(lambda e: e.kind == "line" and e.data["label"] == "fold" and e.data["text"] == "2 of 3")
    with pytest.raises(Stopped):
        steps.train(str(run.folder), told.emit, lambda: told.stop)
    assert not run.is_finished
    told = Told()
    report = steps.train(str(run.folder), told.emit, lambda: False)
    assert told.lines("fold") == ["1 of 3", "2 of 3", "3 of 3"]
    assert told.stages().count("training") == 3, "the first was done: two parts, and the one on all clips"
    assert report["clips"] == len(Corpus.open(corpus).clips)
    assert "3 models, each on the part of the clips that it never heard" in report["notes"][0]
    assert (run.model_folder / "model.safetensors").is_file()
    assert not list((run.folder / "folds").rglob("model.safetensors")), "models of parts are not kept"
