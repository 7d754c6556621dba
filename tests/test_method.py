"""What trains, and that a merged LoRA model is the adapted one."""

import pytest
from test_train import small_model

from whispertune.errors import TrainingError
from whispertune.recipe import Recipe

torch = pytest.importorskip("torch")
from transformers import WhisperForConditionalGeneration

from whispertune.engine.method import Tuned, prepare

POSITIONS = "model.encoder.embed_positions.weight"


def prepared(method: str, **changes: object) -> Tuned:
    settings = {f"train.{key}": value for key, value in changes.items()}
    return prepare(small_model(), Recipe().with_changes({"train.method": method, **settings}).train)


def logits(model: WhisperForConditionalGeneration) -> "torch.Tensor":
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        return model.eval()(
            input_features=torch.randn(1, 80, 3000, generator=generator),
            decoder_input_ids=torch.tensor([[50257, 50362, 11, 287, 262]]),
        ).logits


def stir(tuned: Tuned) -> None:
    """As training would: every parameter moves, LoRA's zero matrices too."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in tuned.parameters.values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


# --- errors first


def test_weights_of_another_model_are_refused():
    tuned = prepared("full")
    weights = tuned.snapshot()
    del weights["model.decoder.embed_tokens.weight"]
    weights["model.decoder.layer_norm.bias"] = torch.zeros(17)
    before = tuned.snapshot()
    with pytest.raises(TrainingError) as error:
        tuned.load(weights)
    assert error.value.what == (
        "the checkpoint does not fit the model: 2 parameters differ, first model.decoder.embed_tokens.weight"
    )
    assert error.value.hint == "start a new run with another --run"
    assert all(torch.equal(weight, before[name]) for name, weight in tuned.snapshot().items())


# --- which parameters


@pytest.mark.parametrize("method", ["full", "decoder", "lora"])
def test_what_trains_is_float32_and_nothing_else_has_a_gradient(method):
    model = small_model().half()
    tuned = prepare(model, Recipe().with_changes({"train.method": method}).train)
    assert {p.dtype for p in tuned.model.parameters()} == {torch.float32}
    trained = {name for name, p in tuned.model.named_parameters() if p.requires_grad}
    assert trained == tuned.parameters.keys() and POSITIONS not in trained
    everything = {name for name, _ in small_model().named_parameters()}
    if method == "full":
        assert trained == everything - {POSITIONS}
    elif method == "decoder":
        assert trained == {name for name in everything if name.startswith("model.decoder.")}
    else:
        assert all(".lora_A." in name or ".lora_B." in name for name in trained)
        # 6 linear layers an encoder layer, 10 a decoder layer, two matrices each.
        assert len(trained) == 2 * (1 * 6 + 2 * 10)


def test_rank_and_scale_are_the_recipes():
    tuned = prepared("lora", lora_rank=3, lora_alpha=12.0, lora_dropout=0.25)
    shapes = {p.shape[0] for name, p in tuned.parameters.items() if ".lora_A." in name}
    layer = tuned.model.model.decoder.layers[0].fc1
    assert shapes == {3} and layer.scaling == {"default": 4.0}
    assert layer.lora_dropout["default"].p == 0.25


def test_the_same_seed_begins_with_the_same_adapter():
    first, again, other = prepared("lora"), prepared("lora"), prepared("lora", seed=2)
    name = next(name for name in first.parameters if ".lora_A." in name)
    assert torch.equal(first.parameters[name], again.parameters[name])
    assert not torch.equal(first.parameters[name], other.parameters[name])


# --- merging


def test_a_merged_adapter_is_the_adapted_model_and_not_the_base():
    """Cases 21 and 24."""
    tuned = prepared("lora", lora_rank=4)
    base = logits(small_model())
    assert torch.equal(logits(tuned.model), base)  # B begins at zero: nothing has been learnt
    stir(tuned)
    adapted = logits(tuned.model)
    assert (adapted - base).abs().max() > 0.1
    merged = tuned.merged()
    torch.testing.assert_close(logits(merged), adapted, rtol=0, atol=1e-4)
    # A plain Whisper, its head still the embedding; the adapted model is as it was.
    assert merged.state_dict().keys() == small_model().state_dict().keys()
    assert merged.proj_out.weight is merged.model.decoder.embed_tokens.weight
    assert not merged.training
    assert torch.equal(logits(tuned.model), adapted)


def test_a_merged_adapter_saves_and_loads_as_a_plain_model(tmp_path):
    tuned = prepared("lora")
    stir(tuned)
    merged = tuned.merged()
    merged.save_pretrained(tmp_path)
    loaded = WhisperForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(logits(loaded), logits(merged))


@pytest.mark.parametrize("method", ["full", "decoder"])
def test_merged_is_a_copy(method):
    tuned = prepared(method)
    stir(tuned)
    merged = tuned.merged()
    expected = logits(tuned.model)
    stir(tuned)
    assert torch.equal(logits(merged), expected) and not torch.equal(logits(tuned.model), expected)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_snapshot_loads_into_a_fresh_model(method):
    tuned, fresh = prepared(method), prepared(method)
    stir(tuned)
    fresh.load(tuned.snapshot())
    assert torch.equal(logits(fresh.model), logits(tuned.model))
