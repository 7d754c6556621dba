"""How far from the base to the tuned weights: chosen on dev, or on half of each guard."""

import copy
from dataclasses import replace

import pytest
import torch
from test_report import clips

from whispertune.delivery import KEPT_GAIN, Line, Point, Tradeoff, choose_share, halves
from whispertune.engine.model import load, resolve
from whispertune.errors import DataError


def curve(dev, guard=lambda share: 10.0):
    return lambda share: Point(share, dev(share), {"general": guard(share)})


def test_a_guard_of_one_clip_cannot_be_halved():
    with pytest.raises(DataError) as refused:
        halves(clips("g", 1), "general")
    assert refused.value.what == (
        "the guard general has 1 clip: it takes 2 to choose by one half and report the other"
    )


@pytest.mark.parametrize("attribute", ["speaker", "recording", None])
def test_no_speaker_is_on_both_sides(attribute):
    guard = clips("g", 12)
    if attribute == "speaker":
        guard = [replace(clip, speaker=f"s{i % 4}") for i, clip in enumerate(guard)]
    if attribute is None:
        guard = [replace(clip, recording="one.wav") for clip in guard]
    choosing, reported = halves(guard, "general")
    assert sorted(c.id for c in choosing + reported) == sorted(c.id for c in guard)
    assert len(choosing) == len(reported) == 6
    assert halves(guard, "general") == (choosing, reported), "the same halves every time"
    if attribute == "speaker":
        assert {c.speaker for c in choosing}.isdisjoint(c.speaker for c in reported)
    if attribute is None:
        assert choosing == guard[:6]


def test_auto_stops_at_the_least_that_keeps_the_gain():
    asked: list[float] = []

    def measure(share):
        asked.append(share)
        return Point(share, 40 - 20 * max(0.0, share - 0.1), {})

    found = choose_share(measure, None)
    assert found.chosen == 0.8 and asked == [0.0, 1.0, 0.7, 0.8], "no more is measured than is needed"
    assert found.reason == "keeps 78 % of the gain on dev, forgets less"
    assert [point.share for point in found.curve] == [0.0, 0.7, 0.8, 1.0]


def test_auto_goes_the_whole_way_where_less_would_lose_what_was_learned():
    found = choose_share(curve(lambda share: 40.0 if share < 1 else 10.0), None)
    assert found.chosen == 1.0 and found.reason == f"less keeps under {100 * KEPT_GAIN:.0f} % of the gain on dev"
    found = choose_share(curve(lambda share: 40.0 + share), None)
    assert found.chosen == 1.0 and "no gain on dev" in found.reason


def test_recover_takes_the_best_on_dev_within_the_tolerance():
    found = choose_share(curve(lambda share: 40 - 20 * share, lambda share: 10 + 2 * share), 1.0)
    assert found.chosen == 0.5 and found.reason == "the best dev score of those within +1 on the guards"
    assert len(found.curve) == 9, "the whole curve is shown"


def test_recover_that_cannot_says_so_and_harms_least():
    found = choose_share(curve(lambda share: 40 - 20 * share, lambda share: 20.0 if share else 10.0), 1.0)
    assert found.chosen == 0.3
    assert found.reason == "no share keeps the guards within +1: the one that harms them least"


def test_a_choice_is_read_back(tmp_path):
    found = choose_share(curve(lambda share: 40 - 20 * share), None)
    assert Tradeoff.from_dict(found.as_dict()) == found


@pytest.mark.usefixtures("quick_tokenizers")
@pytest.mark.real
def test_the_ends_of_the_line_are_its_models(tiny_model_folder):
    base, tuned = (load(resolve(str(tiny_model_folder))) for _ in range(2))
    with torch.no_grad():
        for weight in tuned.model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    whole = copy.deepcopy(tuned.model.state_dict())
    line = Line(base, tuned)
    between = {name: w.clone() for name, w in line.at(0.25).model.state_dict().items()}
    for name, weight in base.model.state_dict().items():
        torch.testing.assert_close(between[name], weight + 0.25 * (whole[name] - weight))
        assert torch.equal(line.at(0.0).model.state_dict()[name], weight)
        assert torch.equal(line.at(1.0).model.state_dict()[name], whole[name])
