"""General speech heard along: its share, its order, its labels."""

from types import SimpleNamespace

import pytest
from test_job import Told, corpus, english, make_corpus, measured_once_and_offline, run_of  # noqa: F401
from test_report import clips

from whispertune.engine.rehearsal import Rehearsing, borrowed, own_words
from whispertune.engine.windows import Placed, Window

OWN = [Window((Placed(0, (clip,)),)) for clip in clips("own", 8)]
GENERAL = [Window((Placed(0, (clip,)),)) for clip in clips("general", 20)]


class Fixed:
    def epoch(self, number):
        return OWN


def names(windows):
    return [window.clips[0].id for window in windows]


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.2, 2), (0.5, 8), (0.9, 20)])
def test_it_has_its_share_and_costs_no_window_of_ones_own(share, count):
    mixed = names(Rehearsing(Fixed(), GENERAL, share, 1).epoch(0))
    assert len(mixed) == len(set(mixed)) == 8 + count
    assert set(names(OWN)) <= set(mixed)


def test_its_order_is_a_function_of_seed_and_pass():
    first = Rehearsing(Fixed(), GENERAL, 0.2, 1)
    assert first.epoch(3) == Rehearsing(Fixed(), GENERAL, 0.2, 1).epoch(3)
    others = [first.epoch(4), Rehearsing(Fixed(), GENERAL, 0.2, 2).epoch(3)]
    assert all(names(first.epoch(3)) != names(other) for other in others)


def test_a_loop_and_a_label_too_long_are_not_taught():
    layout = SimpleNamespace(label_length=lambda text: len(text.split()), max_target_positions=40)
    layouts = SimpleNamespace(of=lambda clip: layout)
    one, two, three, four = clips("g", 4)
    heard = [
        ([one, two], "What they say."),
        ([three], "and so on " * 60),
        ([four], " ".join(f"word{n}" for n in range(41))),
    ]
    labels = own_words(heard, layouts)
    assert labels == {one.id: "What they say.", two.id: "", three.id: "", four.id: ""}


def test_a_borrowed_clip_is_read_from_any_corpus(tmp_path):
    from whispertune.corpus import Corpus

    ours, theirs = (Corpus.open(make_corpus(tmp_path / name, [f"{name} {n}." for n in range(12)])) for name in "ab")
    for clip, lent in zip(theirs.clips, borrowed(theirs), strict=True):
        assert (ours.audio(lent) == theirs.audio(clip)).all()
        assert lent.id not in {own.id for own in ours.clips}, "the same file names are in both"


@pytest.mark.real
def test_a_run_rehearses_and_may_hold_on_to_the_base(tmp_path, english, corpus):  # noqa: F811
    from whispertune import steps

    general = make_corpus(tmp_path / "general")
    changes = {"data__rehearsal": str(general), "train__rehearsal_share": 0.5, "train__kl": 0.5, "eval__probes": False}
    run = run_of(tmp_path / "r", english, corpus, **changes)
    steps.train(str(run.folder), Told().emit, lambda: False)
    import json

    labels = json.loads(run.labels_file.read_text())
    assert sum(name.startswith("rehearsal/") for name in labels) == 12
    assert run.is_finished
