import json

import pytest
import torch
from conftest import real_tokenizer
from transformers import WhisperConfig, WhisperTokenizer

from whispertune.engine.tokens import (
    LabelLayout,
    check_first_batch,
    default_suppressed,
    is_multilingual,
    language_ids,
    merges_of,
)
from whispertune.errors import ModelError, TrainingError, UsageError

CONFIG = WhisperConfig(max_target_positions=448)


def tokenizer_in(folder, kind, change=None):
    content = json.loads(real_tokenizer(kind).read_text(encoding="utf-8"))
    if change is not None:
        change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return WhisperTokenizer.from_pretrained(str(folder), local_files_only=True)


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory):
    return tokenizer_in(tmp_path_factory.mktemp("multilingual"), "multilingual")


@pytest.fixture(scope="module")
def english(tmp_path_factory):
    return tokenizer_in(tmp_path_factory.mktemp("english"), "english")


@pytest.fixture(scope="module")
def czech(multilingual):
    return LabelLayout.from_tokenizer(multilingual, CONFIG, "cs")


@pytest.fixture(scope="module")
def plain_english(english):
    return LabelLayout.from_tokenizer(english, CONFIG, None)


# --- errors first


def test_a_multilingual_model_wants_a_language(multilingual):
    with pytest.raises(UsageError, match="needs the language of the speech") as error:
        LabelLayout.from_tokenizer(multilingual, CONFIG, None)
    assert "--language" in error.value.hint


@pytest.mark.parametrize(("wrong", "nearest"), [("czeck", "'czech' (cs)"), ("englich", "'english' (en)")])
def test_an_unknown_language_names_the_nearest(multilingual, wrong, nearest):
    with pytest.raises(UsageError, match=f"Whisper has no language '{wrong}'") as error:
        LabelLayout.from_tokenizer(multilingual, CONFIG, wrong)
    assert error.value.hint == f"the nearest name is {nearest}"


def test_a_language_the_tokenizer_lacks_is_unknown(multilingual):
    with pytest.raises(UsageError, match="no language 'yue'"):  # only large-v3 has Cantonese
        LabelLayout.from_tokenizer(multilingual, CONFIG, "yue")


def test_english_only_refuses_other_languages_and_translation(english):
    with pytest.raises(UsageError, match=r"English-only model \(\.en\) cannot be used for language 'fr'"):
        LabelLayout.from_tokenizer(english, CONFIG, "fr")
    with pytest.raises(UsageError, match="cannot translate"):
        LabelLayout.from_tokenizer(english, CONFIG, "en", "translate")


def test_an_unknown_task(multilingual):
    with pytest.raises(UsageError, match="there is no task 'transcribe it'"):
        LabelLayout.from_tokenizer(multilingual, CONFIG, "cs", "transcribe it")


def test_a_tokenizer_that_is_not_whispers(tmp_path):
    def drop(content):
        content["added_tokens"] = [t for t in content["added_tokens"] if t["content"] != "<|startofprev|>"]
        content["post_processor"] = None

    with pytest.raises(ModelError, match=r"no token <\|startofprev\|>"):
        LabelLayout.from_tokenizer(tokenizer_in(tmp_path, "english", drop), CONFIG, None)


# --- layout


def test_multilingual_layout(czech, multilingual):
    assert czech.tokenizer.convert_ids_to_tokens(list(czech.prefix)) == [
        "<|startoftranscript|>",
        "<|cs|>",
        "<|transcribe|>",
        "<|notimestamps|>",
    ]
    assert czech.prefix_timestamps == czech.prefix[:-1]
    assert czech.language == "cs"
    assert multilingual.convert_ids_to_tokens([czech.no_speech, czech.prev, czech.eot]) == [
        "<|nospeech|>",
        "<|startofprev|>",
        "<|endoftext|>",
    ]
    assert czech.max_target_positions == 448


def test_english_only_layout_has_no_language_and_no_task(plain_english, english):
    for language in ("en", "English", "en-US"):
        assert LabelLayout.from_tokenizer(english, CONFIG, language) == plain_english
    assert english.convert_ids_to_tokens(list(plain_english.prefix)) == [
        "<|startoftranscript|>",
        "<|notimestamps|>",
    ]
    assert plain_english.language is None
    assert english.convert_ids_to_tokens([plain_english.no_speech]) == ["<|nocaptions|>"]
    assert plain_english.for_language("en") == plain_english
    with pytest.raises(UsageError, match="English-only"):
        plain_english.for_language("cs")


@pytest.mark.parametrize("name", ["cs", "czech", "Czech", "cs-CZ", "cs_CZ", " CS "])
def test_names_and_tags_are_languages(multilingual, czech, name):
    assert LabelLayout.from_tokenizer(multilingual, CONFIG, name) == czech


def test_rows_of_other_languages_and_tasks(czech, multilingual):
    german = czech.for_language("de", "translate")
    assert german == LabelLayout.from_tokenizer(multilingual, CONFIG, "de", "translate")
    assert czech.for_language(None) == czech
    with pytest.raises(UsageError, match="no language 'xx'"):
        czech.for_language("xx")


def test_hebrew_is_known_under_its_new_code_too(tmp_path):
    def old(content):
        for token in content["added_tokens"]:
            if token["content"] in ("<|he|>", "<|iw|>"):
                token["content"] = "<|iw|>"

    tokenizer = tokenizer_in(tmp_path, "multilingual", old)
    assert language_ids(tokenizer)["he"] == tokenizer.convert_tokens_to_ids("<|iw|>")


def test_which_family(multilingual, english):
    assert is_multilingual(multilingual)
    assert not is_multilingual(english)
    assert merges_of(multilingual) == merges_of(english) == 50_000


# --- text


@pytest.mark.parametrize(
    "text", ["Ahoj, světe!", "  There's iron, they say.  ", "12 příliš žluťoučký", "It's 5 o'clock"]
)
def test_encode_is_what_transformers_makes_of_the_text(multilingual, czech, text):
    # Case 49: transformers itself leaves language and task out until they are set.
    assert multilingual(" x").input_ids[1] == czech.no_timestamps
    multilingual.set_prefix_tokens(language="cs", task="transcribe")
    try:
        expected = multilingual(" " + text.strip()).input_ids
    finally:
        multilingual.language = multilingual.task = None
        multilingual.set_prefix_tokens()
    assert [*czech.prefix, *czech.encode(text), czech.eot] == expected
    assert czech.label_length(text) == len(expected) - 1
    assert czech.decode(czech.encode(text)) == text.strip()


def test_special_tokens_in_a_text_are_text(czech, plain_english):
    text = "say <|endoftext|> and <|cs|> at <|0.02|>"
    for layout in (czech, plain_english):
        ids = layout.encode(text)
        assert max(ids) < layout.eot
        assert layout.decode(ids) == text


def test_unspaced_languages_do_not_begin_with_a_space(czech):
    chinese = czech.for_language("zh")
    assert chinese.encode("你好") == czech.bpe.encode("你好").ids
    assert chinese.decode(chinese.encode("你好")) == "你好"


def test_a_space_of_its_own_is_left_out(czech):
    blank = czech.bpe.encode(" ").ids[0]
    text = "漢字"
    assert czech.bpe.encode(" " + text).ids[0] == blank  # or this test shows nothing
    assert czech.encode(text)[0] != blank


def test_empty_text(czech):
    assert czech.encode("  ") == []
    assert czech.label_length("") == 4


def test_label_length_at_the_limit(plain_english):
    words = "hello " * 446
    assert plain_english.label_length(words) == 448  # <|notimestamps|> + 446 + <|endoftext|>
    assert plain_english.label_length(words + "hello") == 449


def test_time_tokens(czech, plain_english, multilingual):
    assert czech.timestamp(0.0) == czech.timestamp_begin == multilingual.convert_tokens_to_ids("<|0.00|>")
    assert czech.timestamp(30.0) == multilingual.convert_tokens_to_ids("<|30.00|>") == 51864
    assert czech.timestamp(1.29) == multilingual.convert_tokens_to_ids("<|1.28|>")
    assert plain_english.timestamp(30.0) == 51863
    with pytest.raises(AssertionError):
        czech.timestamp(30.1)


def test_show_writes_every_token_out(plain_english):
    layout = plain_english
    ids = [*layout.prefix_timestamps, layout.timestamp(0.5), *layout.encode("hi"), layout.timestamp(1), -100]
    assert layout.show(ids) == "<|startoftranscript|><|0.50|> hi<|1.00|>·"


def test_default_suppressed_tokens_are_the_released_ones(multilingual, english):
    # The lists are those that released models carry in their configuration.
    for kind, tokenizer in (("multilingual", multilingual), ("english", english)):
        config = json.loads((real_tokenizer(kind).parent / "config.json").read_text())
        always, begin = default_suppressed(tokenizer)
        assert list(always) == config["suppress_ids"]
        assert list(begin) == config["suppress_ids_begin"]


# --- the first batch


def batch(layout, *rows):
    """Rows of (input ids, masked targets) as padded tensors."""
    width = max(len(ids) for ids, _ in rows) - 1
    inputs = torch.full((len(rows), width), layout.eot)
    labels = torch.full((len(rows), width), -100)
    for row, (ids, masked) in enumerate(rows):
        inputs[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        labels[row, masked : len(ids) - 1] = torch.tensor(ids[masked + 1 :])
    return inputs, labels


def rows_of(layout):
    text = layout.encode("dobrý den")
    prompt = [layout.prev, *layout.encode("dříve")]
    timed = [layout.timestamp(0.2), *text, layout.timestamp(1.5)]
    return [
        ([*layout.prefix, *text, layout.eot], 0),
        ([*prompt, *layout.prefix, *text, layout.eot], len(prompt)),
        ([*layout.prefix_timestamps, *timed, layout.eot], 0),
        ([layout.sot, layout.no_speech, layout.eot], 0),
        ([*layout.prefix, layout.eot], 0),
    ]


@pytest.mark.parametrize("which", ["czech", "plain_english"])
def test_good_rows_pass_and_are_shown(which, request):
    layout = request.getfixturevalue(which)
    text = check_first_batch(*batch(layout, *rows_of(layout)), layout)
    lines = text.splitlines()
    start = "<|cs|><|transcribe|>" if which == "czech" else ""
    assert lines[0] == f"in   <|startoftranscript|>{start}<|notimestamps|> dobrý den"
    assert lines[1] == f"out  {start}<|notimestamps|> dobrý den<|endoftext|>"
    assert lines[3].startswith("out  ··")
    assert "<|0.20|> dobrý den<|1.50|><|endoftext|>" in lines[5]
    assert lines[7] == f"out  {'<|nospeech|>' if which == 'czech' else '<|nocaptions|>'}<|endoftext|>"


def double_start(layout, inputs, labels):
    inputs[1, 1] = layout.sot


def masked_end(layout, inputs, labels):
    labels[labels == layout.eot] = -100  # case 50: pad = eos, masked by value


def end_as_padding(layout, inputs, labels):
    labels[0][labels[0] == -100] = layout.eot


def moved(layout, inputs, labels):
    labels[0, 2:5] = labels[0, 3:6].clone()


def prompt_counts(layout, inputs, labels):
    labels[1, 0] = inputs[1, 1]


def hole(layout, inputs, labels):
    labels[0, 4] = -100


def all_masked(layout, inputs, labels):
    labels[0] = -100


def no_prev(layout, inputs, labels):
    inputs[1, 0] = inputs[1, 1]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (double_start, "row 1 of the first batch is wrong: 2 start tokens, exactly one expected"),
        (masked_end, "row 0 .*: 0 end tokens among the targets"),
        (end_as_padding, "row 0 .*: [0-9]+ end tokens among the targets, exactly one expected, as the last"),
        (moved, "row 0 .*: target 2 is not input 3"),
        (
            prompt_counts,
            "row 1 .*: target 0 belongs to the prompt and is not masked|row 1 .*: target 1 is masked",
        ),
        (hole, "row 0 .*: target 4 is masked in the middle of the text"),
        (all_masked, "row 0 .*: every target is masked"),
        (no_prev, r"row 1 .*: the prompt does not begin with <\|startofprev\|>"),
    ],
)
def test_broken_rows_are_named(czech, damage, message):
    inputs, labels = batch(czech, *rows_of(czech))
    damage(czech, inputs, labels)
    with pytest.raises(TrainingError, match=message):
        check_first_batch(inputs, labels, czech)


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        (lambda c: [c.sot, c.no_timestamps], "no language token after the start token"),  # case 49
        (lambda c: [*c.prefix[:2], c.no_timestamps], "no task token after the language token"),
        (lambda c: c.prefix_timestamps, r"neither <\|notimestamps\|> nor a time token before the text"),
        (lambda c: [c.sot, c.no_speech], r"text after <\|nospeech\|>"),
    ],
)
def test_broken_prefixes_are_named(czech, prefix, message):
    row = ([*prefix(czech), *czech.encode("ahoj"), czech.eot], 0)
    with pytest.raises(TrainingError, match=message):
        check_first_batch(*batch(czech, row), czech)


def test_rows_longer_than_the_decoder_are_named(czech):
    row = ([*czech.prefix, *czech.encode("ne " * 500), czech.eot], 0)
    with pytest.raises(TrainingError, match="positions, the model has 448"):
        check_first_batch(*batch(czech, row), czech)
