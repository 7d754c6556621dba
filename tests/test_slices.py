"""Parts of a test set: which columns there are, where numbers are cut, and what says nothing."""

import dataclasses
import time

import pytest

from whispertune.clip import Clip
from whispertune.scoring.slices import columns_of, is_code_switched, slices_of


def clip(n, seconds=2.0, text="a b", **more):
    defaults = {
        "id": f"c{n}",
        "file_name": f"{n}.wav",
        "text": text,
        "split": "test",
        "shard": "audio-00000.wav",
        "offset": 0,
        "samples": round(16_000 * seconds),
        "recording": f"{n}.wav",
    }
    return Clip(**(defaults | more))


def sizes(columns):
    return {column: {value: len(ids) for value, ids in parts.items()} for column, parts in slices_of(columns).items()}


def test_nothing_is_known_of_no_clips():
    assert columns_of([]) == {} and slices_of({}) == {}


def test_what_is_known_of_a_clip():
    clips = [
        clip(1, 2.5, "שלום Daniel", speaker="ann", language="he", recording="r", source_rate=8000,
             extra={"region": " north ", "audio_sha": "ab", "source_duration_s": "2.5"}),
        clip(2, 1.0, "שלום", language="he", recording="r", extra={"region": ""}),
        clip(3, 1.0),
    ]  # fmt: skip
    assert columns_of(clips, {"c1": 12.0, "zz": 3.0}) == {
        "speaker": {"c1": "ann"},
        "recording": {"c1": "r", "c2": "r", "c3": "3.wav"},
        "language": {"c1": "he", "c2": "he"},
        "length": {"c1": 2.5, "c2": 1.0, "c3": 1.0},
        "snr": {"c1": 12.0},
        "source_rate": {"c1": "8000 Hz", "c2": "16000 Hz", "c3": "16000 Hz"},
        "code-switched": {"c1": "yes", "c2": "no"},
        "region": {"c1": "north"},
    }


def test_a_file_for_each_clip_is_no_recording():
    assert set(columns_of([clip(1), clip(2)])) == {"length", "source_rate"}


def test_the_sources_own_column_goes_first():
    assert columns_of([clip(1, extra={"length": "long", "snr": "7"})])["length"] == {"c1": "long"}
    assert columns_of([clip(1, extra={"snr": "7"})], {"c1": 3.0})["snr"] == {"c1": "7"}


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("the Löwenbräu café", "en", False),
        ("call דניאל now", "en", True),
        ("a हिन्दी word", "en", True),
        ("vitamin β", "en", False),
        ("שָׁלוֹם עוֹלָם", "he", False),
        ("קח Vorasept עכשיו", "he", True),
        ("ויטמין C", "he", False),
        ("我用Whisper模型", "zh", True),
        ("これはガラスと漢字です", "ja", False),
        ("इसे download करो", "hi", True),
        ("Привет, 25 км", "ru", False),
        ("co je download", "cs", False),
        ("שלום there", None, False),
        ("שלום there", "xx", False),
        ("", "he", False),
    ],
)
def test_what_is_code_switched(text, language, expected):
    assert is_code_switched(text, language) is expected


def test_values_with_few_clips_are_joined():
    values = ["ann"] * 6 + ["bob"] * 7 + ["cy"] * 4 + ["di"] * 3
    column = {f"c{n}": value for n, value in enumerate(values)}
    assert sizes({"speaker": column}) == {"speaker": {"bob": 7, "ann": 6, "other": 7}}
    assert list(slices_of({"speaker": column})["speaker"]) == ["bob", "ann", "other"]
    assert slices_of({"speaker": column})["speaker"]["other"] == [f"c{n}" for n in range(13, 20)]


def test_a_value_that_is_called_other_is_among_the_others():
    column = {f"c{n}": value for n, value in enumerate(["f"] * 6 + ["other"] * 9 + ["m"] * 4)}
    assert sizes({"gender": column}) == {"gender": {"f": 6, "other": 13}}


@pytest.mark.parametrize(
    "values",
    [["one"] * 20, [f"{n}.txt" for n in range(20)], ["a"] * 4 + ["b"] * 4, [1.0] * 20, ["a"]],
    ids=["one value", "a value a clip", "few clips a value", "one number", "one clip"],
)
def test_columns_that_say_nothing_are_left_out(values):
    assert slices_of({"column": {f"c{n}": value for n, value in enumerate(values)}}) == {}


def test_numbers_are_cut_in_thirds():
    lengths = {f"c{n}": 1 + n / 10 for n in range(30)}
    assert sizes({"length": lengths}) == {
        "length": {"under 2 s": 10, "2 to under 3 s": 10, "3 s and over": 10},
    }
    snr = {f"c{n}": -10.04 + n for n in range(30)}
    assert sizes({"snr": snr}) == {"snr": {"under -0.04 dB": 10, "-0.04 to under 9.96 dB": 10, "9.96 dB and over": 10}}


def test_a_slice_holds_what_its_name_says():
    """Borders are rounded before the clips are dealt out: 13.58016 lies below 13.6."""
    lengths = {f"c{n}": 1.23456 * (1 + n) for n in range(30)}
    parts = slices_of({"length": lengths})["length"]
    assert list(parts) == ["under 13.6 s", "13.6 to under 25.9 s", "25.9 s and over"]
    assert all(lengths[c] < 13.6 for c in parts["under 13.6 s"])
    assert all(13.6 <= lengths[c] < 25.9 for c in parts["13.6 to under 25.9 s"])
    assert sorted(c for ids in parts.values() for c in ids) == sorted(lengths)


def test_equal_numbers_stay_together():
    lengths = {f"c{n}": 2.0 if n < 25 else 3.0 for n in range(40)}
    assert sizes({"length": lengths}) == {"length": {"2 to under 3 s": 25, "3 s and over": 15}}
    large = {f"c{n}": 10_000.0 * (n + 1) for n in range(30)}
    assert next(iter(slices_of({"altitude": large})["altitude"])) == "under 110000"


def test_texts_of_many_numbers_are_numbers_and_of_few_are_values():
    ages = {f"c{n}": f"{4 + n % 5}" for n in range(50)}
    assert sizes({"age": ages}) == {"age": {"4": 10, "5": 10, "6": 10, "7": 10, "8": 10}}
    pauses = {f"c{n}": f"{n}" for n in range(30)}
    assert list(slices_of({"pause_ms": pauses})["pause_ms"]) == ["under 10 ms", "10 to under 20 ms", "20 ms and over"]
    assert slices_of({"mixed": pauses | {"c3": "unknown"}}) == {}
    assert slices_of({"mixed": pauses | {"c3": "nan"}}) == {}


@pytest.mark.parametrize("name", ["speaker", "recording", "id", "chapter_id", "Session ID"])
def test_numbers_that_are_names_are_not_cut(name):
    column = {f"c{n}": f"{n % 12}" for n in range(72)}
    assert sizes({name: column}) == {name: {f"{n}": 6 for n in sorted(range(12), key=str)}}


def test_what_clips_say_is_cut_and_joined():
    clips = [
        clip(n, 1 + n % 10, speaker=f"s{n % 3}", language="en", recording=f"r{n % 2}", extra={"age": f"{n % 4}"})
        for n in range(60)
    ]
    found = sizes(columns_of(clips))
    assert set(found) == {"speaker", "recording", "length", "age"}
    assert all(sum(parts.values()) == 60 for parts in found.values())


def test_a_hundred_thousand_clips_take_seconds():
    one = clip(0, text="take दवा and go home", speaker="s", language="en", extra={"region": "north"})
    clips = [dataclasses.replace(one, id=f"c{n}", samples=16_000 + n) for n in range(20_000)]
    start = time.process_time()
    assert set(slices_of(columns_of(clips))) == {"length"}
    assert 5 * (time.process_time() - start) < 15, "about 1 s for 100,000 on an idle machine"
