"""Decoding against transformers' own, with small random models on generated sound."""

import csv
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import read_audio, real_tokenizer
from test_train import small_model

from whispertune.clip import SAMPLE_RATE

torch = pytest.importorskip("torch")

from whispertune.engine.features import log_mel
from whispertune.engine.model import LoadedModel, load, resolve
from whispertune.engine.tokens import LabelLayout
from whispertune.engine.transcribe import (
    DecodeOptions,
    _timed,
    decode,
    decode_options,
    detect_languages,
    greedy_ids,
    stacked,
    transcribe,
    transcribe_long,
)
from whispertune.recipe import EvalSection

pytestmark = pytest.mark.usefixtures("quick_tokenizers")


def restless(loaded: LoadedModel) -> LoadedModel:
    """Other random weights, so large that what is said depends on what is heard, and ends at different times."""
    generator, ends = torch.Generator().manual_seed(0), torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, weight in sorted(loaded.model.named_parameters()):
            if "layer_norm" not in name and "encoder.embed_positions" not in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.7)
        end = loaded.model.model.decoder.embed_tokens.weight[loaded.tokenizer.eos_token_id]
        # Without a prompt for times nobody says any; transformers takes two for the end of a segment.
        loaded.model.model.decoder.embed_tokens.weight[-1501:] *= 0.1
        end.copy_(torch.randn(end.shape, generator=ends) * 1.87)
    return loaded


def loaded_from(folder: Path, kind: str, vocabulary: int, positions: int = 448) -> LoadedModel:
    small_model(vocabulary, positions).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(real_tokenizer(kind).read_bytes())
    return restless(load(resolve(str(folder))))


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory, quick_tokenizers) -> LoadedModel:
    return loaded_from(tmp_path_factory.mktemp("multilingual"), "multilingual", 51865)


@pytest.fixture(scope="module")
def english(tmp_path_factory, quick_tokenizers) -> LoadedModel:
    return loaded_from(tmp_path_factory.mktemp("english"), "english", 51864)


@pytest.fixture(scope="module")
def short(tmp_path_factory, quick_tokenizers) -> LoadedModel:
    """With 12 decoder positions, so that it comes to an end soon."""
    return loaded_from(tmp_path_factory.mktemp("short"), "english", 51864, positions=12)


@pytest.fixture
def model(multilingual):
    """The multilingual one; its generation config may be changed."""
    config = multilingual.model.generation_config
    kept = config.suppress_tokens, config.begin_suppress_tokens
    yield multilingual.model
    config.suppress_tokens, config.begin_suppress_tokens = kept


@pytest.fixture(scope="module")
def czech(multilingual) -> LabelLayout:
    return layout_of(multilingual, "cs")


def layout_of(loaded: LoadedModel, language: str | None, task: str = "transcribe") -> LabelLayout:
    return LabelLayout.from_tokenizer(loaded.tokenizer, loaded, language, task)


def clips(count: int) -> list[np.ndarray]:
    """Warbling tones of 1 to 5 s, each another one."""
    rng, made = np.random.default_rng(0), []
    for i in range(count):
        t = np.arange(SAMPLE_RATE * (1 + i % 5)) / SAMPLE_RATE
        tone = np.sin(2 * np.pi * (200 + 150 * i) * t) * (1 + np.sin(2 * np.pi * (1 + i) * t)) * 4000
        made.append((tone + rng.standard_normal(len(t)) * 200).astype(np.int16))
    return made


def by_transformers(model, audio, layout: LabelLayout, **options) -> list[list[int]]:
    """What its greedy search says after the prefix, up to the end token."""
    told = {"language": layout.language, "task": layout.task} if layout.language else {}
    with torch.inference_mode():
        features = log_mel(stacked(audio), model.config.num_mel_bins)
        found = model.generate(features, num_beams=1, do_sample=False, **told, **options)
    rows = []
    for row in found.tolist():
        if tuple(row[: len(layout.prefix)]) == layout.prefix:
            row = row[len(layout.prefix) :]
        rows.append(row[: row.index(layout.eot)] if layout.eot in row else row)
    return rows


# --- against transformers


def test_ids_are_those_of_transformers(model, czech):
    audio, options = clips(8), DecodeOptions(max_new_tokens=40)
    ours = greedy_ids(model, audio, czech, options)
    assert ours == by_transformers(model, audio, czech, max_new_tokens=40)
    # Or this shows little: rows differ, and end one by one, one of them only where it is cut.
    assert len({tuple(row) for row in ours}) == 8
    assert len({len(row) for row in ours}) > 4 and max(map(len, ours)) == 40


def test_english_only_models_as_well(english):
    layout = layout_of(english, None)
    ours = greedy_ids(english.model, clips(5), layout, DecodeOptions(max_new_tokens=30))
    assert ours == by_transformers(english.model, clips(5), layout, max_new_tokens=30)
    assert len({tuple(row) for row in ours}) == 5


@pytest.mark.real
def test_suppressed_tokens_are_never_said(model, czech):
    audio, options = clips(5), DecodeOptions(max_new_tokens=20)
    said = {token for row in greedy_ids(model, audio, czech, options) for token in row}
    suppressed = sorted(said)[::2]
    model.generation_config.suppress_tokens = suppressed
    ours = greedy_ids(model, audio, czech, options)
    assert not set(suppressed) & {token for row in ours for token in row}
    assert ours == by_transformers(model, audio, czech, max_new_tokens=20)


def test_some_tokens_are_not_said_first(model, czech):
    audio, options = clips(5), DecodeOptions(max_new_tokens=20)
    usual = greedy_ids(model, audio, czech, options)
    first = sorted({row[0] for row in usual})
    model.generation_config.begin_suppress_tokens = first
    ours = greedy_ids(model, audio, czech, options)
    assert not set(first) & {row[0] for row in ours if row}
    assert set(first) & {token for row in ours for token in row[1:]}
    assert ours == by_transformers(model, audio, czech, max_new_tokens=20)


def test_a_model_without_such_lists(model, czech):
    model.generation_config.suppress_tokens = model.generation_config.begin_suppress_tokens = None
    ours = greedy_ids(model, clips(5), czech, DecodeOptions(max_new_tokens=20))
    assert ours == by_transformers(model, clips(5), czech, max_new_tokens=20)


def test_the_decoders_positions_are_the_last_limit(short, monkeypatch):
    layout = layout_of(short, None)
    # It would go on for ever; at two time tokens transformers would begin another window.
    endless = [layout.eot, *range(layout.timestamp_begin, 51864)]
    monkeypatch.setattr(short.model.generation_config, "suppress_tokens", endless)
    ours = greedy_ids(short.model, clips(2), layout, DecodeOptions())
    assert [len(row) for row in ours] == [12 - len(layout.prefix)] * 2
    assert ours == by_transformers(short.model, clips(2), layout)


# --- many clips


def test_no_clips(multilingual):
    assert transcribe(multilingual.model, [], [], DecodeOptions()) == []


@pytest.mark.real
def test_the_text_does_not_depend_on_the_batch(multilingual, czech):
    """Case 34."""
    audio = clips(9)
    texts = {
        batch: transcribe(
            multilingual.model, audio, [czech] * 9, DecodeOptions(max_new_tokens=12, batch=batch)
        )
        for batch in (1, 4, 8)
    }
    assert texts[1] == texts[4] == texts[8]
    assert len(set(texts[1])) == 9


def test_max_new_tokens(model, czech):
    model.generation_config.suppress_tokens = [czech.eot]
    for most in (1, 7):
        ids = greedy_ids(model, clips(2), czech, DecodeOptions(max_new_tokens=most))
        assert [len(row) for row in ids] == [most, most]


def test_each_clip_in_its_own_language_and_task(multilingual, czech):
    layouts = [czech, layout_of(multilingual, "de"), layout_of(multilingual, "cs", "translate")] * 2
    audio, options = [clips(1)[0]] * 3 + [clips(2)[1]] * 3, DecodeOptions(max_new_tokens=8, batch=4)
    calls = []
    texts = transcribe(multilingual.model, audio, layouts, options, lambda *done: calls.append(done))
    for samples, layout, text in zip(audio, layouts, texts, strict=True):
        assert text == layout.decode(greedy_ids(multilingual.model, [samples], layout, options)[0])
    assert len(set(texts)) > 4  # the prefix is heard
    assert calls == [(2, 6), (4, 6), (6, 6)]


def test_a_model_in_training_is_judged_without_dropout_and_goes_on_training(model, czech):
    audio, options = clips(2), DecodeOptions(max_new_tokens=8)
    expected = transcribe(model, audio, [czech] * 2, options)
    model.train()
    for layer in [*model.model.encoder.layers, *model.model.decoder.layers]:
        layer.dropout = 0.5
    try:
        assert transcribe(model, audio, [czech] * 2, options) == expected
        assert model.training
    finally:
        for layer in [*model.model.encoder.layers, *model.model.decoder.layers]:
            layer.dropout = 0.0
        model.eval()


def peak_of(work: Callable[[], object]) -> int:
    """Bytes resident at most while something is done."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    work()
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory peaks are read from /proc")
@pytest.mark.real
def test_logits_are_not_kept(model, czech):
    """Case 34: kept, those of 12 clips more would be 12 × 60 × 51,865 × 4 bytes = 149 MB."""
    model.generation_config.suppress_tokens = [czech.eot]
    audio, options = clips(4) * 4, DecodeOptions(max_new_tokens=60, batch=4)
    transcribe(model, audio[:4], [czech] * 4, options)
    few = peak_of(lambda: transcribe(model, audio[:4], [czech] * 4, options))
    many = peak_of(lambda: transcribe(model, audio, [czech] * 16, options))
    assert many - few < 60e6


def test_half_precision_hears_float32_features(model, czech):
    heard = []
    hook = model.model.encoder.register_forward_pre_hook(lambda _, given: heard.append(given[0]))
    try:
        ids = greedy_ids(model, clips(1), czech, DecodeOptions(max_new_tokens=3, precision="bf16"))
    finally:
        hook.remove()
    assert torch.equal(heard[0], log_mel(stacked(clips(1)), 80))
    assert all(0 <= token < 51865 for token in ids[0])


def test_a_cpu_decodes_in_float32_whatever_trained():
    section = EvalSection(max_new_tokens=100, batch=3)
    assert decode_options(section, "cpu", "bf16") == DecodeOptions(100, 3, "fp32")
    assert decode_options(section, "cuda", "bf16") == DecodeOptions(100, 3, "bf16")
    assert decode_options(section, "cuda", "bf16").as_dict() == {
        "max_new_tokens": 100,
        "batch": 3,
        "precision": "bf16",
        "engine": "torch",
        "search": "greedy",
        "timestamps": False,
    }


# --- recordings of any length


def assert_in_order(segments: list[dict], seconds: float) -> None:
    ends = [0.0]
    for segment in segments:
        assert ends[-1] <= segment["start"] <= segment["end"] <= seconds + 0.005
        ends.append(segment["end"])


@pytest.mark.real
def test_a_long_recording(short, capfd, caplog, monkeypatch):
    """A random model falls back through every temperature, hears things in the silence behind, and loops."""
    from transformers.generation import utils

    utils.logger.warning_once.cache_clear()  # what was said once is not said again
    # Few are suppressed: transformers takes its time over each.
    monkeypatch.setattr(short.model.generation_config, "suppress_tokens", [1, 2])
    samples = np.concatenate(clips(22))[: 65 * SAMPLE_RATE]
    capfd.readouterr()
    segments = transcribe_long(short, samples, layout_of(short, None))
    assert capfd.readouterr() == ("", "") and not caplog.records  # the library never prints
    assert_in_order(segments, 65.0)
    assert segments[-1]["end"] > 30 and any(segment["text"] for segment in segments)
    assert all(segment.keys() == {"start", "end", "text"} for segment in segments)
    assert segments == transcribe_long(short, samples, layout_of(short, None))  # its dice have a fixed seed


def test_nothing_is_said_behind_the_end(short, monkeypatch):
    """There the last window is filled up with silence, in which not every model says nothing."""
    said = [(0.0, 29.0), (29.0, 43.14), (43.68, 49.98)]
    ids = torch.tensor([318])
    segments = [{"start": torch.tensor(a), "end": torch.tensor(b), "tokens": ids} for a, b in said]
    monkeypatch.setattr(short.model, "generate", lambda *_, **__: {"segments": [segments]})
    found = transcribe_long(short, np.zeros(31 * SAMPLE_RATE, np.int16), layout_of(short, None))
    assert [(each["start"], each["end"]) for each in found] == [(0.0, 29.0), (29.0, 31.0)]
    assert {each["text"] for each in found} == {"is"}


@pytest.mark.real
def test_a_minute_of_real_speech(shared_speech):
    import jiwer

    with (shared_speech / "odd" / "manifest.csv").open(encoding="utf-8", newline="") as file:
        texts = {row["file_name"]: row["transcription"] for row in csv.DictReader(file)}
    loaded = load(resolve("tiny.en"))
    samples = read_audio(shared_speech / "odd" / "long_over30.flac")
    segments = transcribe_long(loaded, samples, layout_of(loaded, None))
    assert_in_order(segments, len(samples) / SAMPLE_RATE)
    assert segments[-1]["end"] > 50
    heard = " ".join(segment["text"] for segment in segments)
    words = re.sub(r"[^a-z' ]", " ", heard.lower())
    assert jiwer.wer(texts["long_over30.flac"], " ".join(words.split())) < 0.25


# --- prompts, times, and how sure a model is


def test_a_prompt_is_heard_as_transformers_hears_it(model, multilingual, czech):
    """As in openai/whisper: `<|startofprev|> word, word` before the start token."""
    audio, options, text = clips(4), DecodeOptions(max_new_tokens=20), "Vorasept, Denver"
    prompt = torch.tensor(multilingual.tokenizer.get_prompt_ids(text))
    found = decode(model, audio, [czech] * 4, options, prompts=[text] * 4)
    theirs = by_transformers(model, audio, czech, max_new_tokens=20, prompt_ids=prompt)
    assert [each.ids for each in found] == theirs
    assert [each.ids for each in found] != greedy_ids(model, audio, czech, options)  # or this shows little


def test_each_clip_with_its_own_prompt(multilingual, czech):
    """Batches hold prompts of one length, so none is padded; no prompt is no prompt."""
    audio, options = clips(6), DecodeOptions(max_new_tokens=8, batch=4)
    prompts = ["", "Denver", "Vorasept and Denver", "", "Boston", "  "]
    calls = []
    texts = transcribe(
        multilingual.model, audio, [czech] * 6, options, lambda *done: calls.append(done), prompts
    )
    for samples, prompt, text in zip(audio, prompts, texts, strict=True):
        alone = transcribe(multilingual.model, [samples], [czech], options, prompts=[prompt])
        assert [text] == alone
        if not prompt.strip():
            assert alone == transcribe(multilingual.model, [samples], [czech], options)
    assert calls[-1] == (6, 6)


def test_of_a_long_prompt_the_newest_half_of_the_positions_is_kept(short):
    layout = layout_of(short, None)
    words = " one two three four five six seven eight nine"
    texts = [
        transcribe(short.model, clips(1), [layout], DecodeOptions(), prompts=[prompt])
        for prompt in (words, "five six seven eight nine", "two")
    ]
    assert texts[0] == texts[1] != texts[2]


def test_how_sure_it_was(model, czech):
    """Against one pass over the whole row: `avg_logprob` and `no_speech_prob` of openai/whisper."""
    audio, options = clips(5), DecodeOptions(max_new_tokens=12)
    suppressed = model.generation_config.suppress_tokens = [13, 30]
    ended = 0
    for samples, found in zip(audio, decode(model, audio, [czech] * 5, options), strict=True):
        row = [*czech.prefix, *found.ids]
        target = [*found.ids, czech.eot][:12]
        features = log_mel(stacked([samples]), 80)
        with torch.no_grad():
            logits = model(features, decoder_input_ids=torch.tensor([row])).logits[0]
        no_speech = logits[0].softmax(-1)[czech.no_speech]
        said = logits[len(czech.prefix) - 1 :][: len(target)]
        said[:, suppressed] = -torch.inf
        said[0, model.generation_config.begin_suppress_tokens] = -torch.inf
        total = said.log_softmax(-1)[range(len(target)), target].sum()
        assert found.log_probability == pytest.approx(float(total) / (len(found.ids) + 1), abs=1e-4)
        assert found.no_speech == pytest.approx(float(no_speech), rel=1e-3)
        ended += len(found.ids) < 12
    assert 0 < ended < 5  # with an end token and without


def test_time_tokens_are_chosen_together(czech):
    """Each alone loses against the word; together they win, and the likeliest of them is said."""
    first = czech.timestamp_begin
    logits = torch.full((3, 51865), -20.0)
    logits[:, 100] = 2.0
    logits[0, first + 5 : first + 9] = torch.tensor([1.0, 1.5, 1.2, 1.0])
    logits[1, first + 5] = 1.9
    logits[2, czech.no_timestamps] = 9.0
    _timed(logits, czech)
    assert logits.argmax(-1).tolist() == [first + 6, 100, 100]


def test_with_time_tokens_the_row_is_left_to_the_model(model, czech):
    options = DecodeOptions(max_new_tokens=20, timestamps=True)
    said = [each.ids for each in decode(model, clips(5), [czech] * 5, options)]
    assert all(czech.no_timestamps not in row for row in said)
    assert said != greedy_ids(model, clips(5), czech, DecodeOptions(max_new_tokens=20))


def test_the_likeliest_language(multilingual, czech):
    audio = clips(5)
    with torch.inference_mode():
        features = log_mel(stacked(audio), 80)
        theirs = multilingual.model.detect_language(input_features=features).tolist()
    ours = detect_languages(multilingual.model, audio, czech, DecodeOptions(batch=2))
    assert [czech.languages[code] for code in ours] == theirs
