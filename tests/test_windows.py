"""Windows from clips on generated sound: what is packed with what, how labels are written, and the limits."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from conftest import real_tokenizer

from whispertune.clip import SAMPLE_RATE, WINDOW_SAMPLES, Clip
from whispertune.corpus import Corpus, CorpusWriter
from whispertune.recipe import WindowsSection

torch = pytest.importorskip("torch")
from transformers import WhisperConfig, WhisperTokenizer

from whispertune.engine.tokens import LabelLayout, check_first_batch
from whispertune.engine.windows import (
    PROMPT_TOKENS,
    Placed,
    Renderer,
    Window,
    WindowPlanner,
    steps_of,
)

PLAIN = {"unpacked": 0.0, "timestamps": 0.0, "prompt": 0.0, "no_speech": 0.0}
LIMIT = 448


def read_layout(folder: Path, kind: str, language: str | None) -> LabelLayout:
    (folder / "tokenizer.json").write_bytes(real_tokenizer(kind).read_bytes())
    tokenizer = WhisperTokenizer.from_pretrained(str(folder), local_files_only=True)
    return LabelLayout.from_tokenizer(tokenizer, WhisperConfig(max_target_positions=LIMIT), language)


@pytest.fixture(scope="module")
def english(tmp_path_factory) -> LabelLayout:
    return read_layout(tmp_path_factory.mktemp("english"), "english", None)


@pytest.fixture(scope="module")
def czech(tmp_path_factory) -> LabelLayout:
    return read_layout(tmp_path_factory.mktemp("multilingual"), "multilingual", "cs")


@cache
def hum(seconds: float, pitch: int = 150) -> np.ndarray:
    """Something that voice detection takes for speech: a buzz in syllables, 0.1 s of quiet at either end."""
    t = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    buzz = np.sign(np.sin(2 * np.pi * pitch * t)) * (0.3 + 0.7 * np.abs(np.sin(2 * np.pi * 2 * t)))
    buzz[(t < 0.1) | (t > seconds - 0.1)] = 0
    rng = np.random.default_rng(pitch)
    return (buzz * 6000 + rng.standard_normal(len(t)) * 3).astype(np.int16)


def room(seconds: float) -> np.ndarray:
    """The sound of a room in which nobody speaks."""
    return (np.random.default_rng(7).standard_normal(round(seconds * SAMPLE_RATE)) * 3).astype(np.int16)


Part = tuple[float, str | None]
"""Seconds with a text, or, without one (`""`: hum that nobody transcribed, None: room)."""


def make_corpus(folder: Path, recordings: Sequence[Sequence[Part]], language: str | None = None) -> Corpus:
    """A corpus of recordings, each given as its parts in order; clips are `r<recording>-<part>`."""
    clips = []
    with CorpusWriter(folder) as writer:
        for r, parts in enumerate(recordings):
            sounds = [room(s) if text is None else hum(s, 120 + 10 * (r % 20)) for s, text in parts]
            shard, offset = writer.add_recording(np.concatenate(sounds))
            for p, ((_, text), sound) in enumerate(zip(parts, sounds, strict=True)):
                if text:
                    name = f"r{r}-{p}"
                    at = {"shard": shard, "offset": offset, "samples": len(sound), "recording": f"r{r}"}
                    clips.append(Clip(name, f"{name}.wav", text, "train", language=language, **at))
                offset += len(sound)
        writer.finish(clips)
    return Corpus.open(folder)


def alone(seconds: Sequence[float], text: Callable[[int], str] = "clip {}.".format) -> list[list[Part]]:
    """Recordings of one clip each."""
    return [[(s, text(i))] for i, s in enumerate(seconds)]


def planner(corpus: Corpus, layout: LabelLayout, seed: int = 1, **section: float) -> WindowPlanner:
    settings = WindowsSection(**{**PLAIN, **section})
    return WindowPlanner(corpus, corpus.clips, lambda _: layout, lambda clip: clip.text, settings, seed)


def renderer(corpus: Corpus, layout: LabelLayout) -> Renderer:
    return Renderer(corpus, lambda _: layout, lambda clip: clip.text)


def names(window: Window) -> list[str]:
    return [clip.id for clip in window.clips]


def end_of(window: Window) -> int:
    return window.parts[-1].at + window.parts[-1].samples


def times(ids: Sequence[int], layout: LabelLayout) -> list[float]:
    return [(i - layout.timestamp_begin) * 0.02 for i in ids if i >= layout.timestamp_begin]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Corpus:
    """60 recordings: single clips of 1 to 29 s, and some of several clips with pauses between them."""
    rng = np.random.default_rng(3)
    recordings: list[list[Part]] = []
    for r in range(60):
        said = " ".join(f"word{r}x{i}" for i in range(int(rng.integers(1, 9))))
        if r % 4:
            recordings.append([(round(float(rng.uniform(1, 6)), 3), said)])
        else:
            recordings.append([(4.0, f"First {said}."), (0.8, None), (3.0, "Then this."), (9.0, "And that.")])
    recordings.append([(29.0, "A long one."), (4.0, "Its end.")])
    return make_corpus(tmp_path_factory.mktemp("mixed") / "corpus", recordings)


# --- the limits


def text_of_length(layout: LabelLayout, tokens: int) -> str:
    """A text whose label has so many tokens, as the model counts them."""
    text = "no " * (tokens - layout.label_length(""))
    assert layout.label_length(text) == tokens
    return text


@pytest.mark.parametrize(
    "section", [{}, {"timestamps": 1.0}, {"prompt": 1.0}, {"timestamps": 1.0, "prompt": 1.0}]
)
@pytest.mark.parametrize("which", ["english", "czech"])
@pytest.mark.real
def test_a_label_of_448_tokens_trains_plain_and_alone(tmp_path, request, which, section):
    layout = request.getfixturevalue(which)
    said = [text_of_length(layout, LIMIT - 5), text_of_length(layout, LIMIT), "Short."]
    corpus = make_corpus(tmp_path / "c", [[(9.0, said[0]), (9.0, said[1])], [(2.0, said[2])]])
    windows = planner(corpus, layout, **section).epoch(0)
    assert sorted(map(len, map(names, windows))) == [1, 1, 1]
    full = next(window for window in windows if window.clips[0].text == said[1])
    batch = renderer(corpus, layout).batch([full], layout)
    assert full.form == "plain"
    assert batch.decoder_input_ids.shape == (1, LIMIT)
    assert batch.decoder_input_ids[0, 0] == layout.sot  # no room for a prompt
    assert batch.labels[0, -1] == layout.eot
    check_first_batch(*rows_of(renderer(corpus, layout), windows, layout), layout)


def test_a_longer_label_is_a_bug_of_ours(tmp_path, english):
    corpus = make_corpus(tmp_path / "c", [[(9.0, text_of_length(english, LIMIT + 1))]])
    with pytest.raises(AssertionError):
        renderer(corpus, english).batch(planner(corpus, english).epoch(0), english)


@pytest.mark.parametrize("free", range(4))
def test_a_prompt_is_cut_to_what_is_left(tmp_path, english, free):
    corpus = make_corpus(tmp_path / "c", [[(9.0, "one two three four five six"), (9.0, "no " * 300)]])
    said = text_of_length(english, LIMIT - free)
    row = Renderer(corpus, lambda _: english, lambda _: said)
    ids, masked = row.label(Window((Placed(0, (corpus.clips[1],)),), prompt=corpus.clips[0].text), english)
    # <|startofprev|> takes one itself; a prompt of nothing is no prompt.
    assert masked == (free if free > 1 else 0)
    assert len(ids) - 1 <= LIMIT
    assert ids[1:masked] == english.encode("one two three four five six")[6 - max(0, masked - 1) :]


@pytest.mark.parametrize("section", [{}, {"timestamps": 1.0, "prompt": 1.0, "unpacked": 0.2}])
def test_no_window_is_longer_than_30_s_or_448_positions(mixed, english, section):
    for epoch in range(3):
        windows = planner(mixed, english, **section).epoch(epoch)
        for window in windows:
            assert end_of(window) <= WINDOW_SAMPLES
            ids, _ = renderer(mixed, english).label(window, english)
            assert len(ids) - 1 <= LIMIT


def test_dense_text_closes_a_window_before_30_s(tmp_path, english):
    dense = " ".join("tiny words in a row" for _ in range(12))  # 60 tokens
    corpus = make_corpus(tmp_path / "c", alone([2.0] * 24, lambda _: dense))
    per_window = {}
    for prompt in (0.0, 1.0):
        windows = planner(corpus, english, prompt=prompt).epoch(0)
        per_window[prompt] = max(len(window.clips) for window in windows)
        assert sum(len(window.clips) for window in windows) == 24
    # 60 tokens and two for its times each, beside <|startoftranscript|><|notimestamps|> and <|endoftext|>; a
    # prompt keeps 224 positions free.
    assert per_window == {0.0: (LIMIT - 3) // 62, 1.0: (LIMIT - 3 - 1 - PROMPT_TOKENS) // 62}


# --- every clip, once


def placed(windows: Sequence[Window]) -> Counter[str]:
    return Counter(name for window in windows for name in names(window))


@pytest.mark.parametrize("unpacked", [0.0, 0.3, 1.0])
def test_every_clip_is_heard_whole_once_a_pass(mixed, english, unpacked):
    sound = renderer(mixed, english)
    for epoch in range(2):
        windows = planner(mixed, english, unpacked=unpacked, no_speech=0.1).epoch(epoch)
        assert placed(windows) == Counter(clip.id for clip in mixed.clips)
        for window in windows:
            row = sound.audio(window)
            for part in window.parts:
                for clip in part.clips:
                    at = part.at + clip.offset - part.clips[0].offset
                    assert np.array_equal(row[at : at + clip.samples], mixed.audio(clip))


def test_a_clip_of_exactly_30_s_fits(tmp_path, english):
    corpus = make_corpus(tmp_path / "c", alone([30.0, 1.0]))
    windows = planner(corpus, english).epoch(0)
    assert sorted(map(names, windows)) == [["r0-0"], ["r1-0"]]
    whole = next(window for window in windows if names(window) == ["r0-0"])
    assert np.array_equal(renderer(corpus, english).audio(whole), corpus.audio(corpus.clips[0]))


def test_a_pass_is_a_function_of_seed_and_epoch(mixed, english):
    section = {"timestamps": 0.5, "prompt": 0.5, "no_speech": 0.1, "unpacked": 0.2}
    one, two = planner(mixed, english, **section), planner(mixed, english, **section)
    later = one.epoch(5)
    assert one.epoch(0) == two.epoch(0)
    assert two.epoch(5) == later  # whatever was asked before
    orders = [tuple(itertools.chain(*map(names, windows))) for windows in (one.epoch(0), later)]
    orders.append(tuple(itertools.chain(*map(names, planner(mixed, english, seed=2, **section).epoch(0)))))
    assert len(set(orders)) == 3


def test_micro_batches_change_no_sample(mixed, english):
    section = {"timestamps": 0.5, "prompt": 0.5, "no_speech": 0.1}
    windows = planner(mixed, english, **section).epoch(0)[:6]
    sound = renderer(mixed, english)
    together = sound.batch(windows, english)
    assert together.samples.shape == (6, WINDOW_SAMPLES) and together.samples.dtype == torch.int16
    assert together.labels.shape == together.decoder_input_ids.shape
    assert together.labels.dtype == together.decoder_input_ids.dtype == torch.int64
    singly = [sound.batch([window], english) for window in windows]
    assert together.target_tokens == sum(batch.target_tokens for batch in singly)
    for row, batch in enumerate(singly):
        width = batch.labels.shape[1]
        assert torch.equal(together.samples[row], batch.samples[0])
        assert torch.equal(together.decoder_input_ids[row, :width], batch.decoder_input_ids[0])
        assert torch.equal(together.labels[row, :width], batch.labels[0])
        assert (together.labels[row, width:] == -100).all()
        assert (together.decoder_input_ids[row, width:] == english.eot).all()


# --- what shares a window


def test_three_second_clips_fill_their_windows(tmp_path, english):
    rng = np.random.default_rng(0)
    corpus = make_corpus(tmp_path / "c", alone(rng.uniform(2, 4, 150).round(3)))
    windows = planner(corpus, english).epoch(0)
    filled = np.mean([end_of(window) / WINDOW_SAMPLES for window in windows])
    speech = sum(window.speech_s for window in windows) / (30 * len(windows))
    assert filled > 0.95 and speech > 0.9, f"{filled:.3f}, speech {speech:.3f}"  # 0.958 and 0.906


def test_a_recording_keeps_its_own_pauses(tmp_path, english):
    corpus = make_corpus(tmp_path / "c", [[(3.0, "One."), (1.5, None), (4.0, "Two."), (3.0, "Three.")]])
    (window,) = planner(corpus, english).epoch(0)
    assert names(window) == ["r0-0", "r0-2", "r0-3"]
    row = renderer(corpus, english).audio(window)
    own = corpus.audio(replace(corpus.clips[0], samples=round(11.5 * SAMPLE_RATE)))
    assert np.array_equal(row[: len(own)], own)
    assert not row[len(own) :].any()


def test_different_recordings_are_joined_by_the_short_silence(tmp_path, english):
    corpus = make_corpus(tmp_path / "c", alone([3.0, 4.0, 5.0]))
    (window,) = planner(corpus, english, join_silence_s=0.25).epoch(0)
    row = renderer(corpus, english).audio(window)
    at = 0
    for part in window.parts:
        assert part.at == at and len(part.clips) == 1
        at += part.samples + SAMPLE_RATE // 4
        assert not row[at - SAMPLE_RATE // 4 : at].any()


@pytest.mark.parametrize(
    ("between", "why"),
    [((2.0, ""), "untranscribed speech"), ((5.5, None), "a pause over five seconds")],
)
def test_what_ends_a_stretch_of_a_recording(tmp_path, english, between, why):
    corpus = make_corpus(tmp_path / "c", [[(3.0, "One."), between, (4.0, "Two.")]])
    (window,) = planner(corpus, english, prompt=1.0, timestamps=1.0).epoch(0)
    assert [len(part.clips) for part in window.parts] == [1, 1], why
    row = renderer(corpus, english).audio(window)
    # Heard are the two clips and the join between them, and nothing of what lay between.
    assert not row[round(7.2 * SAMPLE_RATE) :].any()
    assert "One" not in window.prompt or names(window)[0] != "r0-2"


def test_a_clip_of_another_split_ends_a_stretch(tmp_path, english):
    """However short it is: its audio is not heard in training, and what came before it is no prompt."""
    corpus = make_corpus(tmp_path / "c", [[(3.0, "One."), (0.25, "Yes."), (4.0, "Two.")]])
    one, _, two = corpus.clips
    section = WindowsSection(**{**PLAIN, "prompt": 1.0})
    made = WindowPlanner(corpus, [one, two], lambda _: english, lambda clip: clip.text, section, 1)
    for number in range(4):
        (window,) = made.epoch(number)
        assert [len(part.clips) for part in window.parts] == [1, 1]
        assert "One." not in window.prompt


def test_overlapping_clips_do_not_share_a_stretch(tmp_path, english):
    corpus = make_corpus(tmp_path / "c", [[(3.0, "One."), (4.0, "Two.")]])
    first, second = corpus.clips
    corpus.clips = [first, replace(second, offset=second.offset - 8000)]
    (window,) = planner(corpus, english).epoch(0)
    assert [len(part.clips) for part in window.parts] == [1, 1]


def test_no_text_without_its_audio_at_30_s(tmp_path, english):
    """Case 38: 0–12, 12–28, 28–34 s. The first window ends at 28 s, and the next one starts there."""
    corpus = make_corpus(tmp_path / "c", [[(12.0, "Alpha."), (16.0, "Bravo."), (6.0, "Charlie.")]])
    windows = planner(corpus, english, timestamps=1.0).epoch(0)
    by_name = {tuple(names(window)): window for window in windows}
    assert by_name.keys() == {("r0-0", "r0-1"), ("r0-2",)}
    sound = renderer(corpus, english)
    ids, _ = sound.label(by_name["r0-0", "r0-1"], english)
    assert "Charlie" not in english.decode(ids)
    assert times(ids, english)[-1] == pytest.approx(28.0, abs=0.101)
    row = sound.audio(by_name["r0-0", "r0-1"])
    assert not row[28 * SAMPLE_RATE :].any()
    later = sound.audio(by_name[("r0-2",)])
    assert np.array_equal(later[: 6 * SAMPLE_RATE], corpus.audio(corpus.clips[2]))


def test_languages_never_share_a_window(tmp_path, czech):
    german = czech.for_language("de")
    corpus = make_corpus(tmp_path / "c", [[(2.0, f"clip {i}"), (2.0, f"next {i}")] for i in range(20)])
    corpus.clips = [replace(clip, language="de" if i % 3 else "cs") for i, clip in enumerate(corpus.clips)]

    def layout_of(clip: Clip) -> LabelLayout:
        return german if clip.language == "de" else czech

    settings = WindowsSection(**{**PLAIN, "no_speech": 0.2, "timestamps": 0.5, "prompt": 0.5})
    plan = WindowPlanner(corpus, corpus.clips, layout_of, lambda clip: clip.text, settings, 1)
    windows = plan.epoch(0)
    assert placed(windows) == Counter(clip.id for clip in corpus.clips)
    heard = [window for window in windows if window.parts]
    assert all(len({clip.language for clip in window.clips}) == 1 for window in heard)
    assert max(len(window.clips) for window in heard) > 2
    render = Renderer(corpus, layout_of, lambda clip: clip.text)
    check_first_batch(*rows_of(render, windows, czech), czech)
    for window in heard:
        ids, masked = render.label(window, czech)
        assert ids[masked + 1] == czech.languages[window.clips[0].language]


# --- labels


def rows_of(render: Renderer, windows: Sequence[Window], layout: LabelLayout):
    batch = render.batch(windows, layout)
    return batch.decoder_input_ids, batch.labels


def test_each_row_ends_in_one_end_token_of_its_own(mixed, english):
    """Case 5: padding is the same token, and is masked by length."""
    section = {"timestamps": 0.5, "prompt": 0.5, "no_speech": 0.2, "unpacked": 0.3}
    windows = planner(mixed, english, **section).epoch(0)
    render = renderer(mixed, english)
    inputs, labels = rows_of(render, windows, english)
    assert check_first_batch(inputs, labels, english).count("\n") == 2 * len(windows) - 1
    for row, window in enumerate(windows):
        ids, masked = render.label(window, english)
        last = len(ids) - 2
        assert labels[row].tolist().count(english.eot) == 1
        assert labels[row, last] == english.eot and (labels[row, last + 1 :] == -100).all()
        assert (labels[row, :masked] == -100).all() and (labels[row, masked : last + 1] != -100).all()
        assert inputs[row].tolist().count(english.sot) == 1


def test_a_plain_label_is_the_texts_in_order(tmp_path, english, czech):
    corpus = make_corpus(tmp_path / "c", [[(2.0, " One, two. "), (2.0, "Three.")]])
    (window,) = planner(corpus, english).epoch(0)
    for layout in (english, czech):
        ids, masked = renderer(corpus, layout).label(window, layout)
        assert masked == 0
        assert ids == [*layout.prefix, *layout.encode("One, two. Three."), layout.eot]


def test_languages_without_spaces_are_joined_without(tmp_path, czech):
    corpus = make_corpus(tmp_path / "c", [[(2.0, "你好。"), (2.0, "再见。")]])
    (window,) = planner(corpus, czech).epoch(0)
    for language, expected in (("zh", "你好。再见。"), ("ja", "你好。再见。"), ("th", "你好。 再见。")):
        layout = czech.for_language(language)
        ids, _ = renderer(corpus, layout).label(window, layout)
        assert layout.decode(ids) == expected


@pytest.mark.parametrize("which", ["english", "czech"])
def test_time_tokens(mixed, request, which):
    """Case 9: multiples of 0.02 s, never decreasing, at most 30 s, and no <|notimestamps|> in such rows."""
    layout = request.getfixturevalue(which)
    render = renderer(mixed, layout)
    windows = planner(mixed, layout, timestamps=1.0).epoch(0)
    check_first_batch(*rows_of(render, windows, layout), layout)
    for window in windows:
        assert window.form == "timestamps"
        ids, _ = render.label(window, layout)
        assert layout.no_timestamps not in ids
        assert tuple(ids[: len(layout.prefix_timestamps)]) == layout.prefix_timestamps
        stamps = times(ids, layout)
        assert len(stamps) == 2 * len(window.clips)
        assert stamps == sorted(stamps) and stamps[0] >= 0 and stamps[-1] <= 30.0
        clips = [(part, clip) for part in window.parts for clip in part.clips]
        for (part, clip), start, end in zip(clips, stamps[::2], stamps[1::2], strict=True):
            begin = (part.at + clip.offset - part.clips[0].offset) / SAMPLE_RATE
            assert begin - 0.011 <= start < end <= begin + clip.duration_s + 0.011


def test_times_are_those_of_the_speech_and_not_of_the_border(tmp_path, english):
    corpus = make_corpus(tmp_path / "c", [[(1.2, None), (3.0, "Here."), (2.0, None)]])
    (clip,) = corpus.clips
    padded = replace(clip, offset=0, samples=round(6.2 * SAMPLE_RATE))
    window = Window((Placed(0, (padded,)),), form="timestamps")
    ids, _ = renderer(corpus, english).label(window, english)
    # Speech from 1.3 to 4.1 s, and the 0.1 s that is kept around it.
    assert times(ids, english) == pytest.approx([1.2, 4.2], abs=0.041)


def test_a_clip_without_words_leaves_no_time_tokens(tmp_path, english):
    corpus = make_corpus(tmp_path / "c", [[(2.0, "One."), (2.0, "-"), (2.0, "Two.")]])
    texts = {"One.": "One.", "-": " ", "Two.": "Two."}
    render = Renderer(corpus, lambda _: english, lambda clip: texts[clip.text])
    window = Window((Placed(0, tuple(corpus.clips)),), form="timestamps")
    assert len(times(render.label(window, english)[0], english)) == 4
    wordless = Window((Placed(0, (corpus.clips[1],)),), form="timestamps")
    assert render.label(wordless, english)[0] == [*english.prefix, english.eot]


@pytest.mark.parametrize("which", ["english", "czech"])
def test_windows_without_speech(mixed, request, which):
    layout = request.getfixturevalue(which)
    windows = [window for window in planner(mixed, layout, no_speech=0.6).epoch(0) if not window.parts]
    render = renderer(mixed, layout)
    inputs, labels = rows_of(render, windows, layout)
    check_first_batch(inputs, labels, layout)
    rows = {tuple(render.label(window, layout)[0]) for window in windows}
    assert rows == {(layout.sot, layout.no_speech, layout.eot), (*layout.prefix, layout.eot)}


def test_what_is_heard_without_speech(mixed, english):
    """Digital silence now and then, else noise of up to -30 dBFS; the same one each time it is rendered."""
    render, levels = renderer(mixed, english), []
    for seed in range(12):
        row = render.audio(Window((), noise_seed=seed))
        assert row.shape == (WINDOW_SAMPLES,) and row.dtype == np.int16
        levels.append(float(np.sqrt(np.mean(np.square(row.astype(np.float32))))) / 32768)
    assert np.array_equal(row, render.audio(Window((), noise_seed=11)))
    assert min(levels) == 0 and 0.001 < max(levels) < 10 ** (-29.9 / 20)


# --- shares


def share(windows: Sequence[Window], is_so: Callable[[Window], bool]) -> float:
    heard = [window for window in windows if window.parts]
    return sum(map(is_so, heard)) / len(heard)


IS = {
    "timestamps": lambda window: window.form == "timestamps",
    "prompt": lambda window: bool(window.prompt),
    "unpacked": lambda window: len(window.clips) == 1,
}


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Corpus:
    """400 short clips of 2 and 3 s in recordings of one to three; each has a word of its own."""
    recordings = [
        [(2.0 + p % 2, f"This is about topic{r}n{p}.") for p in range(1 + r % 3)] for r in range(200)
    ]
    return make_corpus(tmp_path_factory.mktemp("many") / "corpus", recordings)


@pytest.mark.parametrize("knob", IS)
def test_shares_are_as_asked(many, english, knob):
    for asked in (0.0, 0.3, 1.0):
        windows = [w for epoch in range(3) for w in planner(many, english, **{knob: asked}).epoch(epoch)]
        found = share(windows, IS[knob])
        if asked in (0.0, 1.0):
            assert found == asked
        else:
            # Binomial: three standard errors.
            assert found == pytest.approx(asked, abs=3 * math.sqrt(asked * (1 - asked) / len(windows)))


def test_the_share_without_speech(many, english):
    for asked in (0.0, 0.03, 0.2):
        windows = planner(many, english, no_speech=asked).epoch(0)
        silent = sum(not window.parts for window in windows)
        share = asked * (len(windows) - silent)
        assert math.floor(share) <= silent <= math.ceil(share)


def test_a_small_corpus_has_windows_without_speech_too(tmp_path, english):
    corpus = make_corpus(tmp_path / "c", alone([20.0] * 5))
    made = planner(corpus, english, no_speech=0.1)
    silent = [sum(not window.parts for window in made.epoch(number)) for number in range(200)]
    assert set(silent) == {0, 1} and 70 <= sum(silent) <= 130  # half of the passes


def test_unpacked_is_one_clip_alone_also_where_a_recording_goes_on(tmp_path, english):
    recordings = [[(3.0, f"one {r}"), (3.0, "two"), (3.0, "three")] for r in range(30)]
    corpus = make_corpus(tmp_path / "c", recordings)
    windows = planner(corpus, english, unpacked=0.5).epoch(0)
    assert share(windows, IS["unpacked"]) == pytest.approx(0.5, abs=0.1)
    assert placed(windows) == Counter(clip.id for clip in corpus.clips)


# --- prompts


def test_a_prompt_is_the_text_before_in_the_same_recording(mixed, many, english):
    for corpus in (mixed, many):
        of_recording: dict[str, list[Clip]] = {}
        for clip in sorted(corpus.clips, key=lambda clip: clip.offset):
            of_recording.setdefault(clip.recording, []).append(clip)
        said = {word.strip(".") for clip in corpus.clips for word in clip.text.split()}
        kinds = Counter()
        for window in planner(corpus, english, prompt=1.0, unpacked=0.5).epoch(0):
            first = window.clips[0]
            before = of_recording[first.recording]
            before = [clip.text for clip in before[: before.index(first)]]
            if before:
                assert window.prompt == " ".join(before)
                kinds["before"] += 1
            elif window.prompt:
                assert set(window.prompt.split(", ")) <= said
                kinds["glossary"] += 1
        assert kinds["glossary"] and kinds["before"]


def test_a_prompt_does_not_give_away_what_the_window_says(tmp_path, english):
    corpus = make_corpus(tmp_path / "c", [[(5.0, "Alpha."), (28.0, "Bravo."), (5.0, "Charlie.")]])
    made = planner(corpus, english, prompt=1.0)
    windows = [window for number in range(12) for window in made.epoch(number)]
    turned = [window.prompt for window in windows if names(window) == ["r0-2", "r0-0"]]
    assert set(turned) == {"Bravo."}  # and not "Alpha. Bravo."


def test_the_newest_223_tokens_are_kept(tmp_path, english):
    numbers = [" ".join(f"{i}{j}" for j in range(10, 60)) for i in range(10, 16)]
    corpus = make_corpus(tmp_path / "c", [[(20.0, text) for text in numbers]])
    windows = {names(w)[0]: w for w in planner(corpus, english, prompt=1.0, unpacked=1.0).epoch(0)}
    ids, masked = renderer(corpus, english).label(windows["r0-5"], english)
    everything = english.encode(" ".join(numbers[:5]))
    assert len(everything) > PROMPT_TOKENS + 1
    assert masked == 1 + PROMPT_TOKENS
    assert ids[:masked] == [english.prev, *everything[-PROMPT_TOKENS:]]


def test_a_glossary_has_words_said_and_as_many_not_said(many, english):
    sizes = Counter()
    for window in planner(many, english, prompt=1.0).epoch(0):
        text = " ".join(clip.text for clip in window.clips)
        words = window.prompt.split(", ")
        if "This" in words or not window.prompt.startswith("topic"):
            continue  # the text before
        there = [word for word in words if word in text]
        assert len(set(words)) == len(words) == 2 * len(there)
        sizes[len(there)] += 1
    assert sizes[4] and max(sizes) == 4


def test_no_glossary_where_words_are_not_told_apart(tmp_path, czech):
    """It would be the label itself."""
    texts = [f"我们明天去第{number}站" for number in "一二三四五六七八九十"]
    corpus = make_corpus(tmp_path / "c", alone([3.0] * 10, texts.__getitem__))
    layout = czech.for_language("zh")
    assert {window.prompt for window in planner(corpus, layout, prompt=1.0).epoch(0)} == {""}


# --- updates


@pytest.mark.parametrize("unpacked", [0.0, 0.5, 1.0])
def test_packing_changes_no_count_of_updates(many, english, unpacked):
    windows = planner(many, english, unpacked=unpacked, no_speech=0.1).epoch(0)
    groups = steps_of(windows, 10)
    assert len(groups) == 10
    assert list(itertools.chain(*groups)) == windows
    each = [sum(window.speech_s for window in group) for group in groups]
    assert sum(each) == pytest.approx(sum(clip.duration_s for clip in many.clips))
    assert max(each) - min(each) < 2 * 30  # a window at either end


def test_no_update_is_empty_however_many_are_asked(mixed, english):
    windows = planner(mixed, english, no_speech=0.5).epoch(0)
    for steps in (1, 2, len(windows) - 1, len(windows), len(windows) + 5):
        groups = steps_of(windows, steps)
        assert len(groups) == min(steps, len(windows)) and all(groups)
        assert list(itertools.chain(*groups)) == windows
    silent = [window for window in windows if not window.parts]
    assert list(itertools.chain(*steps_of(silent, 2))) == silent
    assert steps_of([], 3) == []
