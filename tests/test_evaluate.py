"""The layouts of a corpus' clips, the clips that are judged, and a model's size from its configuration."""

import hashlib
from collections.abc import Callable

import pytest

from whispertune.clip import SAMPLE_RATE, Clip
from whispertune.errors import ModelError, UsageError

torch = pytest.importorskip("torch")
from transformers import WhisperForConditionalGeneration

from whispertune.data.split import capped
from whispertune.engine.layouts import Layouts

pytestmark = pytest.mark.usefixtures("quick_tokenizers")


def clip(name: str, seconds: float = 10.0, language: str | None = None) -> Clip:
    samples = round(seconds * SAMPLE_RATE)
    return Clip(name, f"{name}.wav", "text", "test", "audio.wav", 0, samples, name, language=language)


# --- layouts


def test_a_multilingual_model_needs_a_language_from_somewhere(tiny_model_folder):
    layouts = Layouts(str(tiny_model_folder), None, "transcribe")
    for asked in (lambda: layouts.of(clip("a")), lambda: layouts.default):
        with pytest.raises(UsageError) as error:
            asked()
        assert error.value.what == "a multilingual model needs the language of the speech, and none was given"
        assert (
            error.value.hint
            == "give it with --language (a code or a name: cs, czech) or in a column 'language'"
        )


def test_an_english_model_takes_english_only(tiny_en_folder):
    layouts = Layouts(str(tiny_en_folder), None, "transcribe")
    assert layouts.of(clip("a")) == layouts.of(clip("b", language="en")) == layouts.default
    with pytest.raises(UsageError) as error:
        layouts.of(clip("c", language="fr"))
    assert error.value.what == "an English-only model (.en) cannot be used for language 'fr'"


def test_a_model_that_is_not_there():
    with pytest.raises(ModelError):
        Layouts("no/such/folder/at-all", None, "transcribe").of(clip("a"))


def test_a_clips_own_language_goes_before_the_one_given(tiny_model_folder):
    layouts = Layouts(str(tiny_model_folder), "cs", "translate")
    assert [layouts.of(clip("a", language=code)).language for code in (None, "de", "cs-CZ")] == [
        "cs",
        "de",
        "cs",
    ]
    assert layouts.default.language == "cs" and layouts.default.task == "translate"
    assert layouts.of(clip("a")) is layouts.of(clip("b"))  # made once a language


def test_without_one_given_the_first_clips_language_is_the_default(tiny_model_folder):
    layouts = Layouts(str(tiny_model_folder), None, "transcribe")
    layouts.of(clip("a", language="de"))
    layouts.of(clip("b", language="cs"))
    assert layouts.default.language == "de"


@pytest.mark.parametrize("which", ["tiny_model_folder", "tiny_en_folder"])
def test_parameters_are_counted_from_the_configuration_as_torch_counts_them(request, which):
    folder = request.getfixturevalue(which)
    facts = Layouts(str(folder), None, "transcribe").facts
    model = WhisperForConditionalGeneration.from_pretrained(folder)
    assert facts.parameters == sum(p.numel() for p in model.parameters())
    assert (facts.name, facts.width) == (str(folder), 64)
    assert (facts.encoder_layers, facts.decoder_layers) == (2, 2)


# --- the clips that are judged


def taken(clips: list[Clip], minutes: float) -> list[str]:
    return [each.id for each in capped(clips, minutes)]


@pytest.fixture
def half_hour() -> list[Clip]:
    return [clip(f"clip-{i}", 6.0 + i % 9) for i in range(180)]


def test_all_is_all(half_hour):
    assert capped(half_hour, "all") == half_hour
    assert capped(half_hour, 1e6) == half_hour
    assert capped([], 5.0) == []


@pytest.mark.parametrize("minutes", [1.0, 7.5, 20.0])
def test_as_many_minutes_as_asked_at_most(half_hour, minutes):
    chosen = capped(half_hour, minutes)
    length = sum(each.duration_s for each in chosen) / 60
    assert minutes - 14 / 60 <= length <= minutes
    assert chosen == [each for each in half_hour if each in chosen]  # in the order of the corpus


def test_one_clip_is_judged_however_little_was_asked_for(half_hour):
    assert len(capped(half_hour, 0.01)) == 1


def by_hash(each: Clip) -> str:
    return hashlib.sha256(each.id.encode()).hexdigest()


@pytest.mark.parametrize("order", [reversed, lambda clips: sorted(clips, key=by_hash)])
def test_the_choice_does_not_depend_on_the_order(half_hour, order: Callable[[list[Clip]], list[Clip]]):
    assert sorted(taken(list(order(half_hour)), 5.0)) == sorted(taken(half_hour, 5.0))


def test_a_longer_test_holds_the_shorter_one(half_hour):
    assert set(taken(half_hour, 5.0)) < set(taken(half_hour, 10.0))
    spread = {half_hour.index(each) // 60 for each in capped(half_hour, 5.0)}
    assert spread == {0, 1, 2}  # from all over the corpus, not its beginning
