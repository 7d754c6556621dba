"""The probes: what they are made of, what is observed, and what two observations say."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import real_tokenizer
from test_windows import Part, alone, make_corpus

from whispertune.clip import SAMPLE_RATE, WINDOW_SAMPLES, Clip
from whispertune.corpus import Corpus
from whispertune.errors import DataError
from whispertune.scoring.keywords import Keyword
from whispertune.scoring.probes import Probe, compare_probes, segments_of, shows_text
from whispertune.scoring.verdict import judge_guards

torch = pytest.importorskip("torch")
from test_train import small_model
from test_transcribe import restless

from whispertune.engine import probes
from whispertune.engine.evaluate import Layouts
from whispertune.engine.model import LoadedModel, load, resolve
from whispertune.engine.probes import (
    long_audio,
    long_files,
    observe,
    prompt_of,
    prompts_for,
    windows_without_speech,
)
from whispertune.engine.transcribe import DecodeOptions

pytestmark = pytest.mark.usefixtures("quick_tokenizers")

OPTIONS = DecodeOptions(max_new_tokens=3, batch=8)
Row = dict[str, Any]


def silence(texts: Sequence[str], no_speech: float = 0.9, log_probability: float = -0.5) -> list[Row]:
    sure = {"no_speech": no_speech, "log_probability": log_probability}
    return [{"id": f"w{i}", "text": text, **sure} for i, text in enumerate(texts)]


def one(name: str, before: list[Row], after: list[Row], clips: Sequence[Clip] = (), **given: Any) -> Probe:
    (probe,) = compare_probes({name: before}, {name: after}, clips, resamples=1000, **given)
    assert probe.name == name
    json.dumps(probe.as_dict())
    return probe


def status(probe: Probe, others: int = 0) -> str:
    """As one of several: the others unchanged."""
    still = one("no speech", silence(["x"] * 24), silence(["x"] * 24))
    guards = [each.guard for each in (probe, *[still] * others)]
    return judge_guards([guard for guard in guards if guard])[0].status


# --- what two observations say: errors first


def test_other_inputs_are_refused():
    with pytest.raises(DataError) as error:
        compare_probes({"no speech": silence("ab")}, {"no speech": silence("abc")}, [])
    assert error.value.what == (
        "probe 'no speech' had other inputs: 2 before, 3 after, 1 of them differ (such as 'w2')"
    )
    assert error.value.hint == "observe both models with the same clips, keywords and seed"


@pytest.mark.parametrize("key", ["reference", "keywords", "language"])
def test_equal_names_with_other_content_are_refused(key):
    row = {"id": "a", "language": "en", "reference": "x", "hypothesis": "x", "keywords": [["x", []]]}
    with pytest.raises(DataError, match="probe 'prompt' had other inputs: 1 before, 1 after, 1 of them"):
        compare_probes({"prompt": [row]}, {"prompt": [row | {key: "de"}]}, [])


def test_what_was_not_tried_says_so():
    empty: dict[str, list[Row]] = {name: [] for name in ("long-form", "timestamps", "prompt", "language")}
    found = compare_probes(empty, empty, [])
    assert [(probe.name, probe.change) for probe in found] == [
        ("long-form", "not tried: the test clips of no language fill a minute"),
        ("timestamps", "not tried: there are no test clips"),
        ("prompt", "not tried: no test clip has a keyword or a rare word"),
        ("language", "not tried: there are no test clips"),
    ]
    assert all(probe.guard is None for probe in found)


def test_a_probe_that_only_one_model_has_is_left_out():
    assert compare_probes({"language": []}, {}, []) == compare_probes({}, {"language": []}, []) == ()


def test_references_without_words():
    row = {
        "id": "f",
        "language": "en",
        "reference": "[noise]",
        "hypothesis": "a",
        "clips": [],
        "seconds": 60.0,
    }
    assert one("long-form", [row], [row]).change == "not tried: its references have no words once normalised"
    row = {
        "id": "a",
        "language": "en",
        "reference": "[noise]",
        "hypothesis": "a",
        "keywords": [["noise", []]],
    }
    assert one("prompt", [row], [row]).change == "not tried: none of its keywords is said once normalised"


# --- few windows


def test_nothing_changed_is_no_certainty():
    """24 windows prove a fifth, 5 prove nothing."""
    many = one("no speech", silence(["x"] * 24), silence(["x"] * 24))
    assert many.difference.point == 0
    assert (many.difference.low, many.difference.high) == (
        pytest.approx(-7.54, abs=0.01),
        pytest.approx(7.54, abs=0.01),
    )
    assert status(many) == "passed"
    few = one("no speech", silence(["x"] * 5), silence(["x"] * 5))
    assert not few.difference.bounded and status(few) == "unproven"
    some = one("no speech", silence(["x"] * 7), silence(["x"] * 7))
    assert some.difference.high > 20 and status(some) == "unproven"


@pytest.mark.parametrize(
    ("worse", "better", "alone_", "of_five"),
    [
        (0, 0, "passed", "passed"),
        (1, 0, "passed", "passed"),
        (2, 0, "unproven", "unproven"),
        (5, 0, "unproven", "unproven"),  # a fair coin: 3 %
        (6, 0, "failed", "unproven"),
        (8, 0, "failed", "failed"),
        (8, 4, "unproven", "unproven"),
        (24, 0, "failed", "failed"),
        (0, 24, "passed", "passed"),
    ],
)
def test_so_many_of_24_windows(worse, better, alone_, of_five):
    before = silence(["x"] * better + [""] * (24 - better))
    after = silence([""] * (24 - worse) + ["x"] * worse)
    probe = one("no speech", before, after)
    assert (status(probe), status(probe, others=4)) == (alone_, of_five)
    assert probe.change == f"text on {better} → {worse} of 24 windows without speech"


@pytest.mark.real
def test_two_equal_models_seldom_differ():
    """Windows that fall either way by chance: none of five probes fails, but in 2.5 % of the cases."""
    rng, failures = np.random.default_rng(0), 0
    for _ in range(300):
        chances = rng.uniform(0, 1, 24)
        sides = [silence(["x" if hit else "" for hit in rng.random(24) < chances]) for _ in range(2)]
        failures += status(one("no speech", *sides)) == "failed"
    assert failures <= 12


# --- no speech


@pytest.mark.parametrize(
    ("text", "no_speech", "log_probability", "shown"),
    [
        ("", 0.0, 0.0, False),
        ("  ", 0.0, 0.0, False),
        ("you", 0.61, -1.01, False),
        ("you", 0.61, -1.0, True),
        ("you", 0.6, -3.0, True),
        (".", 0.9, -0.04, True),
    ],
)
def test_text_is_shown_as_transcribers_do(text, no_speech, log_probability, shown):
    assert shows_text(silence([text], no_speech, log_probability)[0]) is shown


def test_words_and_loops_on_silence():
    before = silence(["", "Thank you.", ". . . . . . . . . ."])
    after = silence(["the boy, " * 9, ".", ""])
    assert one("no speech", before, after).facts == {
        "windows": 3,
        "words": {"before": 2, "after": 18},
        "loops": {"before": 1, "after": 1},
    }


# --- timestamps


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("", "no times"),
        ("hello", "text before the first time"),
        ("<|notimestamps|> hello", "text before the first time"),
        ("<|0.00|> hello", "text without an end"),
        ("<|0.00|> hello<|2.00|><|2.00|> again", "text without an end"),
        ("<|0.00|><|1.00|> hello<|2.00|>", "not in pairs"),
        ("<|0.00|> hello<|2.00|> again<|3.00|>", "not in pairs"),
        ("<|0.00|> hello<|2.00|><|2.00|><|2.00|>", "not in pairs"),
        ("<|2.00|> hello<|1.00|>", "back in time"),
        ("<|0.00|> hello<|2.00|><|1.98|> again<|3.00|>", "back in time"),
        ("<|0.00|>", []),  # nothing is said
        ("<|0.00|> hello<|30.00|>", [(0.0, 30.0)]),
        ("<|0.00|> hello<|2.00|><|2.00|>", [(0.0, 2.0)]),  # it goes on behind the window
        ("<|0.32|> hello<|2.00|><|3.10|> again<|3.10|>", [(0.32, 2.0), (3.1, 3.1)]),
    ],
)
def test_segments(said, found):
    assert segments_of(said) == found


def test_timestamps():
    starts = {"starts_s": [0.3, 4.0, 9.0]}
    good = {"id": "a", "said": "<|0.00|> x<|3.00|><|4.10|> y<|8.00|><|9.00|> z<|10.00|>", **starts}
    one_segment = {"id": "b", "said": "<|0.00|> x y z<|10.00|>", **starts}
    probe = one("timestamps", [good, one_segment], [good, one_segment | {"said": "<|0.00|> x y z"}])
    assert probe.change == "invalid in 0 → 1 of 2 windows"
    assert probe.facts == {
        "windows": 2,
        "problems": {"text without an end": {"before": 0, "after": 1}},
        "median_s_from_segment_to_clip": {"before": 0.2, "after": 0.1},
        # 0.3, 0.1, 0 and, where all is one segment, 0.3, 4, 9
        "median_s_from_clip_to_segment": {"before": 0.3, "after": 0.1},
    }


# --- long-form


def file_row(i: int, reference: str, hypothesis: str) -> Row:
    return {
        "id": f"f{i}",
        "language": "en",
        "reference": reference,
        "hypothesis": hypothesis,
        "clips": [f"c{i}"],
        "seconds": 90.0,
    }


def test_long_form_is_a_word_error_rate_of_files():
    before = [file_row(i, "one river two stones", "One river, two stones.") for i in range(8)]
    after = [row | {"hypothesis": "one river"} for row in before]
    plain = [
        {"id": f"c{i}", **{k: before[i][k] for k in ("language", "reference", "hypothesis")}}
        for i in range(8)
    ]
    probe, style = compare_probes({"long-form": before}, {"long-form": after}, [], (plain, plain))
    assert probe.change == (
        "0.0 → 50.0 % WER on 8 files of a minute and more (their clips one by one: 0.0 → 0.0 %)"
    )
    assert (probe.tolerance, probe.facts["files"], probe.facts["minutes"]) == (1.0, 8, 12.0)
    assert status(probe) == "failed" and style.name == "style"
    assert status(one("long-form", before[:5], after[:5])) == "unproven"  # too few files
    assert "one by one" not in one("long-form", before, after, transcripts=None).change
    short = compare_probes({"long-form": before}, {"long-form": after}, [], (plain[1:], plain))[0]
    assert "one by one" not in short.change  # a clip of theirs is in no transcript


# --- prompt, language, style


def test_prompt_counts_misses_and_distractors():
    keywords = [["Denver", ["Denvre"]], ["Boston", []]]
    row = {"id": "a", "language": "en", "reference": "to Denver", "keywords": keywords}
    before = [row | {"hypothesis": "to denvre"}, row | {"id": "b", "hypothesis": "to Denver"}]
    after = [row | {"hypothesis": "to Boston"}, row | {"id": "b", "hypothesis": "to Denver, Boston"}]
    plain = [{k: r[k] for k in ("id", "language", "reference", "hypothesis")} for r in before]
    probe, _ = compare_probes({"prompt": before}, {"prompt": after}, [], (plain, plain))
    assert probe.change == "0 → 3 errors on 2 keywords in the prompt (without it 0 → 0)"
    assert probe.facts["distractors_heard"] == {"before": 0, "after": 2}
    assert (probe.difference.before, probe.difference.after) == (0.0, 150.0)


def test_clips_are_grouped_by_who_speaks():
    clips = [Clip(f"c{i}", "", "", "test", "", 0, 16_000, f"r{i}", speaker=f"s{i % 20}") for i in range(24)]
    before = [{"id": clip.id, "language": "cs", "detected": "cs"} for clip in clips]
    after = [row | {"detected": "sk"} if i < 8 else row for i, row in enumerate(before)]
    probe = one("language", before, after, clips)
    assert probe.change == "0 → 8 of 24 clips taken for another language"
    assert (probe.difference.level, probe.difference.groups) == ("speaker", 20)
    assert probe.difference.speaks_for == "these 20 speakers" and status(probe) == "failed"


def test_style_is_information():
    def rows(*texts: str) -> list[Row]:
        return [{"hypothesis": text} for text in texts]

    before = rows("He said “no.”", "Really?", "那是。", "", "…")
    after = rows("HE SAID NO", "really", "那是", "", "…")
    (probe,) = compare_probes({}, {}, [], (before, after))
    assert probe.guard is None
    assert probe.change == (
        "all capitals 0 → 50 %, no capital 0 → 50 %, no end punctuation 0 → 100 % of the texts"
    )


# --- what the inputs are


def few(seed: int) -> list[tuple[str, np.ndarray]]:
    return list(itertools.islice(windows_without_speech(seed), 3))


@pytest.mark.real
def test_windows_without_speech():
    windows = dict(windows_without_speech(0))
    assert len(windows) == 24 and all(w.shape == (WINDOW_SAMPLES,) for w in windows.values())
    assert len({w.tobytes() for w in windows.values()}) == 24
    levels = {}
    for name, samples in windows.items():
        assert samples.dtype == np.int16
        power = np.mean((samples / 32768) ** 2)
        levels[name] = 10 * np.log10(power) if power else -np.inf
        if levels[name] > -90:
            assert levels[name] == pytest.approx(float(name.split()[3]), abs=1)
    assert levels["digital silence"] == -np.inf
    assert sum(level < -65 for level in levels.values()) == 12
    again, other = ([name for name, _ in pairs] for pairs in map(few, (0, 1)))
    assert again == list(windows)[:3] and set(again) & set(other) == {"digital silence"}
    assert all((windows[name] == samples).all() for name, samples in few(0))


class FakeLayouts:
    """Every clip in its own language, English unless it says so."""

    def of(self, clip: Clip) -> Any:
        return type("Layout", (), {"language": clip.language})()


def sentences(count: int, seconds: float = 8.0) -> list[list[Part]]:
    return alone([seconds] * count, lambda i: f"number {'abcdefghijklmnopqrstuvwxyz'[i % 26]}.")


def test_clips_are_joined_by_speaker_to_files_of_a_minute(tmp_path):
    corpus = make_corpus(tmp_path / "c", sentences(20))
    clips = [replace(clip, speaker=f"s{i % 2}") for i, clip in enumerate(corpus.clips)]
    files = long_files(corpus, clips)
    used = [stretch[0] for file in files for stretch in file]
    assert len(files) == 2 and len({clip.id for clip in used}) == len(used) == 16
    speakers = [clip.speaker for clip in used]
    assert speakers == sorted(speakers)  # those of one follow each other
    for file in files:
        assert 60 <= len(long_audio(corpus, file)) / SAMPLE_RATE <= 180
    assert long_files(corpus, clips) == long_files(corpus, clips[::-1])
    audio = long_audio(corpus, files[0])
    pause = audio[8 * SAMPLE_RATE :][: SAMPLE_RATE // 2]
    assert not pause.any() and (audio[: 8 * SAMPLE_RATE] == corpus.audio(files[0][0][0])).all()


def test_languages_are_not_mixed_and_little_speech_makes_no_file(tmp_path):
    corpus = make_corpus(tmp_path / "c", sentences(12))
    clips = [replace(clip, language="cs" if i % 2 else "de") for i, clip in enumerate(corpus.clips)]
    assert long_files(corpus, clips) == []  # 48 s of either
    assert long_files(corpus, []) == []


def test_seven_files_whatever_the_clips_are_like(tmp_path):
    """Or there would be too few for an interval; they may be ten minutes of the longest clips."""
    corpus = make_corpus(tmp_path / "c", sentences(26, 29.0))
    files = long_files(corpus, corpus.clips)
    assert [len(long_audio(corpus, file)) / SAMPLE_RATE for file in files] == [88.0] * 7


def test_real_recordings_are_heard_as_they_are(tmp_path):
    """Where they fill a minute without a break: untranscribed speech is one, and so is a clip not judged."""
    whole: list[Part] = [(9.0, "eins."), (1.0, None)] * 7
    untranscribed: list[Part] = [*whole[:8], (2.0, ""), *whole[8:]]
    corpus = make_corpus(tmp_path / "c", [whole, untranscribed, whole, whole[:4]])
    judged = [clip for clip in corpus.clips if clip.id != "r2-6"]
    files = long_files(corpus, judged)
    assert [[clip.id for clip in stretch] for stretch in files[0]] == [[f"r0-{i}" for i in range(0, 14, 2)]]
    clip = files[0][0][0]
    assert len(long_audio(corpus, files[0])) == 69 * SAMPLE_RATE
    assert (long_audio(corpus, files[0])[: clip.samples] == corpus.audio(clip)).all()
    joined = [clip for file in files[1:] for stretch in file for clip in stretch]
    assert {clip.recording for clip in joined} <= {"r1", "r2", "r3"} and len(joined) >= 7


WORDS = ["Vorasept", "Denver", "lidocaine", "Kamerling", "Boston", "Ostrava"]


def texts_as_clips(*texts: str, language: str | None = None) -> list[Clip]:
    return [
        Clip(f"c{i}", f"c{i}.wav", text, "test", "", 0, 16_000, f"r{i}", language=language)
        for i, text in enumerate(texts)
    ]


def test_prompts_list_a_keyword_that_is_said_among_four_that_are_not():
    clips = texts_as_clips(*(f"We take {word} now." for word in WORDS), "We take it all now.")
    prompted = prompts_for(clips, FakeLayouts(), [Keyword(word) for word in WORDS])
    assert len(prompted) == 6
    for clip, listed in prompted:
        assert listed[0].term in clip.text and len(listed) == 5
        assert not any(word.term in clip.text for word in listed[1:])
        assert sorted(prompt_of(clip, listed).split(", ")) == sorted(word.term for word in listed)
    # The word that is said is not always the first.
    assert len({prompt_of(clip, listed).split(", ").index(listed[0].term) for clip, listed in prompted}) > 1
    assert prompted == prompts_for(clips, FakeLayouts(), [Keyword(word) for word in WORDS])


def test_another_spelling_is_said_as_well():
    clips = texts_as_clips("To דניאל only.", "Nobody.")
    prompted = prompts_for(clips, FakeLayouts(), [Keyword("Daniel", ("דניאל",))])
    assert prompted[0] == (clips[0], [Keyword("Daniel", ("דניאל",)), Keyword("Nobody")])


def test_without_keywords_a_clips_longest_rare_word():
    texts = ["SHE COULDN'T SEE THE GIRAFFE", "THE HOUSE IS VERY LARGE", "THE HOUSE IS RED", "so it is"]
    clips = texts_as_clips(*texts)
    found = {
        clip.id: [word.term for word in listed] for clip, listed in prompts_for(clips, FakeLayouts(), [])
    }
    # Not in capitals, no word of two clips, none that is two words once normalised; distractors are few here.
    assert found == {"c0": ["giraffe", "large"], "c1": ["large", "giraffe"]}


def test_languages_without_spaces_need_keywords():
    clips = texts_as_clips("我们明天去布拉格旅行", "今天天气很好", language="zh")
    assert prompts_for(clips, FakeLayouts(), []) == []
    (prompted,) = prompts_for(clips, FakeLayouts(), [Keyword("布拉格")])
    assert prompted == (clips[0], [Keyword("布拉格")])


# --- what is observed


def random_model(folder: Path, kind: str, vocabulary: int) -> LoadedModel:
    small_model(vocabulary).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(real_tokenizer(kind).read_bytes())
    return restless(load(resolve(str(folder))))


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory, quick_tokenizers) -> LoadedModel:
    return random_model(tmp_path_factory.mktemp("multilingual"), "multilingual", 51865)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    texts = ["Denver is far.", "A giraffe, certainly.", "Nothing here.", "Boston, perhaps."]
    return make_corpus(
        tmp_path_factory.mktemp("corpus") / "c", alone([9.0, 8.0, 7.0, 12.0], texts.__getitem__)
    )


@pytest.fixture
def brief(monkeypatch):
    """Four windows of silence, few tokens, and no dice of transformers over random text."""
    monkeypatch.setattr(probes, "LEVELS_DBFS", (-60, -40))
    heard = []

    def transcribe_long(loaded, samples, layout, temperatures):
        heard.append((len(samples), temperatures))
        return [
            {"start": 0.0, "end": 30.0, "text": "Denver is"},
            {"start": 30.0, "end": 60.0, "text": "far."},
        ]

    monkeypatch.setattr(probes, "transcribe_long", transcribe_long)
    monkeypatch.setattr(probes, "LONG_S", 15.0)
    monkeypatch.setattr(probes, "decode", limited(probes.decode))
    return heard


def limited(decode: Any) -> Any:
    def few_tokens(model, audio, layouts, options, progress):
        return decode(model, audio, layouts, replace(options, max_new_tokens=6), progress)

    return few_tokens


def observed(loaded: LoadedModel, corpus: Corpus, **given: Any) -> dict[str, list[Row]]:
    layouts = Layouts("unused", "cs" if loaded.is_multilingual else None, "transcribe")
    layouts.__dict__["_files"] = loaded  # its tokenizer, without reading it again
    clips = given.pop("clips", corpus.clips)
    return observe(loaded, corpus, clips, layouts, given.pop("options", OPTIONS), **given)


def test_everything_is_observed_once_and_is_json(multilingual, corpus, brief):
    calls = []
    found = observed(multilingual, corpus, progress=lambda *done: calls.append(done))
    assert json.loads(json.dumps(found)) == found
    assert {name: len(rows) for name, rows in found.items()} == {
        "no speech": 6,
        "long-form": 2,
        "timestamps": 2,
        "prompt": 4,
        "language": 4,
    }
    assert all(len({row["id"] for row in rows}) == len(rows) for rows in found.values())
    assert calls[-1][0] == calls[-1][1] and [done for done, _ in calls] == sorted(done for done, _ in calls)
    for row in found["long-form"]:
        assert row["hypothesis"] == "Denver is far." and len(row["clips"]) == 2
        assert row["reference"] == " ".join(
            clip.text for i in row["clips"] for clip in corpus.clips if clip.id == i
        )
    assert [temperatures for _, temperatures in brief] == [(0.0,)] * 2
    assert {row["language"] for row in found["language"]} == {"cs"}
    starts = [start for row in found["timestamps"] for start in row["starts_s"]]
    assert len(starts) == 4 and starts[0] == pytest.approx(0.0, abs=0.1)
    # Compared with itself nothing fails.
    same = compare_probes(found, found, corpus.clips)
    assert all(probe.difference.point == 0 for probe in same)


@pytest.mark.real
def test_it_depends_on_the_clips_and_not_on_their_order_or_batches(multilingual, corpus, brief):
    first = observed(multilingual, corpus, keywords=[Keyword("Denver")])
    assert first == observed(multilingual, corpus, keywords=[Keyword("Denver")], clips=corpus.clips[::-1])
    other = observed(multilingual, corpus, keywords=[Keyword("Denver")], options=replace(OPTIONS, batch=1))
    for name in ("timestamps", "prompt", "language"):
        assert other[name] == first[name]
    seeded = observed(multilingual, corpus, keywords=[Keyword("Denver")], seed=1)
    assert [row["id"] for row in seeded["no speech"]] != [row["id"] for row in first["no speech"]]


@pytest.mark.real
def test_an_english_model_detects_no_language(tmp_path, corpus, brief):
    loaded = random_model(tmp_path, "english", 51864)
    found = observed(loaded, corpus, clips=[])
    assert {name: len(rows) for name, rows in found.items()} == {
        "no speech": 6,
        "long-form": 0,
        "timestamps": 0,
        "prompt": 0,
    }


# --- real speech


@pytest.fixture(scope="module")
def children(shared_speech, tmp_path_factory) -> Corpus:
    from whispertune.data.importers import import_source

    folder = tmp_path_factory.mktemp("children") / "corpus"
    import_source(shared_speech / "child-en", folder)
    return Corpus.open(folder)


@pytest.fixture(scope="module")
def undamaged(children) -> dict[str, list[Row]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "ITEMS", 8)
        patch.setattr(probes, "LONG_FILES", 6)
        return observe(load(resolve("tiny.en")), children, children.split("test"), TINY, DECODED)


TINY = Layouts("tiny.en", None, "transcribe")
DECODED = DecodeOptions(max_new_tokens=32)


@pytest.mark.real
def test_a_model_that_forgot_its_time_tokens_is_seen(children, undamaged, monkeypatch):
    """Its words are as before: the time tokens alone are weaker, as after training without any."""
    monkeypatch.setattr(probes, "ITEMS", 8)
    monkeypatch.setattr(probes, "LONG_FILES", 0)
    loaded = load(resolve("tiny.en"))
    with torch.no_grad():
        loaded.model.model.decoder.embed_tokens.weight[-1501:] *= 0.3
    after = observe(loaded, children, children.split("test"), TINY, DECODED) | {"long-form": []}
    before = undamaged | {"long-form": []}
    results = judged(before, after, children)
    assert results["timestamps"].status == "failed", results["timestamps"].sentence
    assert (results["timestamps"].before, results["timestamps"].after) == (0, 100)
    for name in ("prompt", "no speech"):
        assert results[name].difference.point == 0
    assert before["prompt"] == after["prompt"]


@pytest.mark.real
def test_a_model_that_lost_the_thread_is_seen(children, undamaged, monkeypatch):
    """Noise in its decoder: long audio, time tokens, prompts and silence all get worse."""
    monkeypatch.setattr(probes, "ITEMS", 8)
    monkeypatch.setattr(probes, "LONG_FILES", 6)
    loaded = load(resolve("tiny.en"))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in loaded.model.model.decoder.named_parameters():
            if "fc" in name and weight.ndim == 2:
                weight += torch.randn(weight.shape, generator=generator) * weight.std()
    results = judged(undamaged, observe(loaded, children, children.split("test"), TINY, DECODED), children)
    assert results["long-form"].before < 45
    assert {name for name, each in results.items() if each.status == "failed"} >= {
        "no speech",
        "long-form",
        "timestamps",
    }
    assert results["prompt"].after > 90 > 50 > results["prompt"].before


def judged(before: dict[str, list[Row]], after: dict[str, list[Row]], corpus: Corpus) -> dict[str, Any]:
    compared = [probe.guard for probe in compare_probes(before, after, corpus.split("test"))]
    return {each.name: each for each in judge_guards([guard for guard in compared if guard])}
