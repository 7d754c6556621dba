"""Who is trained on and who is tested: groups stay whole, sides stay put."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import pytest

from whispertune.clip import Clip, Split
from whispertune.data.split import split_clips, text_key
from whispertune.errors import UsageError


def clip(i: int, **fields) -> Clip:
    own = {
        "text": f"sentence number {i}",
        "offset": 0,
        "samples": 48_000,
        "recording": f"f{i}",
        "split": "train",
    }
    return Clip(**{"id": f"c{i}", "file_name": f"f{i}", "shard": "s", **own, **fields})


def split(clips: list[Clip], given: Sequence[Split | None] | None = None, **options):
    return split_clips(clips, given or [None] * len(clips), **options)


def sides(clips: list[Clip], of: Callable[[Clip], str | None]) -> dict[str | None, set[str]]:
    found = defaultdict(set)
    for c in clips:
        found[of(c)].add(c.split)
    return found


def whole(clips: list[Clip], of: Callable[[Clip], str | None]) -> bool:
    return all(len(s) == 1 for s in sides(clips, of).values())


def share(clips: list[Clip], side: str) -> float:
    return sum(c.samples for c in clips if c.split == side) / sum(c.samples for c in clips)


def test_unknown_ratios_name_the_known() -> None:
    with pytest.raises(UsageError, match="ratios '70/30' are not known") as caught:
        split([clip(1)], ratios="70/30")
    assert caught.value.hint == "use 90/10 or 80/10/10"


def test_ten_speakers_are_kept_apart() -> None:
    clips = [clip(i, speaker=f"p{i % 30}") for i in range(300)]
    result = split(clips)
    assert result.level == "speaker"
    assert whole(result.clips, lambda c: c.speaker)
    assert 0.05 <= share(result.clips, "test") <= 0.2
    assert 0.045 <= share(result.clips, "dev") <= 0.18
    assert result.description == "Split by speaker (30 groups): nobody who is tested was trained on."


@pytest.mark.parametrize("seed", range(20))
def test_every_side_gets_clips_whatever_the_seed(seed: int) -> None:
    for clips in (
        [clip(i, speaker=f"p{i % 11}") for i in range(110)],
        [clip(i, speaker="me") for i in range(12)],
        [clip(i, recording="long", offset=i * 60_000) for i in range(40)],
        [clip(i, text="one of two"[: 6 + i % 2]) for i in range(3)] + [clip(i) for i in range(3, 9)],
    ):
        result = split(clips, seed=seed).clips
        assert {c.split for c in result} == {"train", "dev", "test"}
        assert share(result, "train") > 0.5


def test_80_10_10_differs_in_train() -> None:
    clips = [clip(i) for i in range(4_000)]
    for ratios, train in (("90/10", 0.81), ("80/10/10", 0.80)):
        result = split(clips, ratios=ratios).clips
        assert share(result, "test") == pytest.approx(0.1, abs=0.02)
        assert share(result, "train") == pytest.approx(train, abs=0.03)


def test_the_same_seed_gives_the_same_split_in_any_order() -> None:
    clips = [clip(i, speaker=f"p{i % 20}") for i in range(200)]
    first = {c.id: c.split for c in split(clips, seed=5).clips}
    assert {c.id: c.split for c in split(clips[::-1], seed=5).clips} == first
    assert {c.id: c.split for c in split(clips, seed=6).clips} != first


def test_groups_never_move_when_clips_are_added() -> None:
    clips = [clip(i, speaker=f"p{i % 40}") for i in range(400)]
    before = {c.id: c.split for c in split(clips).clips}
    more = [*clips, *(clip(i, speaker=f"p{i % 50}") for i in range(400, 600))]
    after = {c.id: c.split for c in split(more).clips}
    assert {k: after[k] for k in before} == before
    # Few groups, where balance would move them: the earlier sides are handed in.
    clips = [clip(i, speaker=f"p{i % 4}") for i in range(40)]
    before = {c.id: c.split for c in split(clips, seed=3).clips}
    assert set(before.values()) == {"train", "dev", "test"}
    more = [*clips, *(clip(i, speaker=f"p{i % 9}") for i in range(40, 200))]
    after = split(more, seed=3, existing=before).clips
    assert {c.id: c.split for c in after if c.id in before} == before
    assert all(len(s - {"dev"}) == 1 for s in sides(after, lambda c: c.speaker).values())


def test_few_speakers_and_long_recordings_go_by_recording_or_block() -> None:
    clips = [
        clip(100 * r + i, recording=f"r{r}", offset=i * 60_000, speaker=f"p{r % 3}")
        for r in range(12)
        for i in range(9)
    ]
    result = split(clips)
    assert result.level == "recording"
    assert whole(result.clips, lambda c: c.recording)
    few = [c for c in clips if c.recording in ("r0", "r1", "r2")]
    long = [clip(i, recording="hour", offset=i * 160_000, samples=150_000, speaker="me") for i in range(360)]
    for given in (few, long):
        result = split(given)
        assert result.level == "block"
        for recording in {c.recording for c in given}:
            runs = [c.split for c in result.clips if c.recording == recording]
            changes = sum(a != b for a, b in itertools.pairwise(runs))
            assert changes < len(runs) / 2
    # An hour is cut at each 5 minutes of the recording's own time and nowhere else.
    per_block = sides(split(long).clips, lambda c: str(c.offset // (300 * 16_000)))
    assert len(per_block) == 12
    assert all(len(s) == 1 for s in per_block.values())


def test_case_11_copies_speakers_and_sentences() -> None:
    clips = [
        clip(
            i,
            speaker=f"p{i % 4}",
            text=f"sentence {i % 13}",
            extra={"audio_sha": f"h{i}" if i > 9 else "same"},
        )
        for i in range(40)
    ]
    clips = [c if c.extra["audio_sha"] != "same" else clip(int(c.id[1:]), **{"speaker": "p0", "text": c.text, "extra": c.extra}) for c in clips]  # fmt: skip
    for seed in range(10):
        result = split(clips, seed=seed)
        assert {"train", "test"} <= {c.split for c in result.clips}
        trained = [c for c in result.clips if c.split != "test"]
        tested = [c for c in result.clips if c.split == "test"]
        for of in (lambda c: c.extra["audio_sha"], lambda c: c.speaker):
            assert not {of(c) for c in trained} & {of(c) for c in tested}
        assert split(clips, seed=seed) == result


def test_identical_audio_is_one_group_at_every_level() -> None:
    clips = [clip(i, extra={"audio_sha": f"h{i // 4}"}) for i in range(80)]
    assert whole(split(clips).clips, lambda c: c.extra["audio_sha"])
    by_speaker = [clip(i, speaker=f"p{i % 20}", extra={"audio_sha": f"h{i // 2}"}) for i in range(20)]
    result = split(by_speaker).clips
    assert whole(result, lambda c: c.extra["audio_sha"])
    assert whole(result, lambda c: c.speaker)


def test_equal_sentences_stay_together_where_nothing_better_is_known() -> None:
    clips = [
        clip(i, text=("Good morning!", "good  morning", f"only once {i}")[i % 3], speaker="me")
        for i in range(90)
    ]
    result = split(clips)
    assert result.level == "clip"
    assert whole(result.clips, lambda c: text_key(c.text))
    assert "it speaks for these voices only" in result.description


def test_the_sources_own_split_is_kept_and_completed() -> None:
    clips = [clip(i) for i in range(100)]
    own: list[Split | None] = ["test" if i < 30 else "dev" if i < 40 else "train" for i in range(100)]
    result = split(clips, own)
    assert [c.split for c in result.clips] == own
    assert (result.level, result.description) == ("given", "The split is the source's own.")
    no_dev: list[Split | None] = ["test" if i < 30 else "train" for i in range(100)]
    result = split(clips, no_dev)
    assert [c.split for c in result.clips[:30]] == ["test"] * 30
    assert Counter(c.split for c in result.clips)["dev"] in range(3, 15)
    assert result.description.startswith(
        "The source names its own test and train; dev carved out of train by clip"
    )
    only_train = split(clips, ["train"] * 100)
    assert {c.split for c in only_train.clips} == {"train", "dev", "test"}
    partly = split(clips, ["test"] * 30 + [None] * 70)
    assert {c.split for c in partly.clips[30:]} == {"train", "dev"}


def test_a_corpus_that_is_all_test_stays_a_guard() -> None:
    result = split([clip(i) for i in range(20)], ["test"] * 20)
    assert {c.split for c in result.clips} == {"test"}


def test_one_clip_cannot_be_split() -> None:
    assert [c.split for c in split([clip(1)]).clips] == ["train"]
    assert split([clip(1)]).description == "One clip: no split."
