import http.server
import importlib.metadata
import json
import os
import pickle
import shutil
import threading

import pytest
import torch
from conftest import real_tokenizer
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import WhisperForConditionalGeneration

from whispertune.engine import source as sources
from whispertune.engine.model import fingerprint, load, load_tokenizer, resolve
from whispertune.engine.source import SIZES, locate
from whispertune.errors import MachineError, MissingExtra, ModelError

pytestmark = pytest.mark.usefixtures("quick_tokenizers")


@pytest.fixture
def copy(tiny_model_folder, tmp_path):
    """A copy of the tiny model, to damage."""
    return shutil.copytree(tiny_model_folder, tmp_path / "copy")


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """A Hub cache and a cache of ours with nothing in them."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def edit(path, **fields):
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | fields))


def refused(folder, message):
    with pytest.raises(ModelError, match=message) as error:
        load(resolve(str(folder)))
    return error.value


# --- names


@pytest.mark.parametrize(
    ("name", "near"), [("larg-v3", "large-v3"), ("turbo", "large-v3-turbo"), ("tiny-en", "tiny.en")]
)
def test_an_unknown_name_names_the_nearest_size(name, near):
    with pytest.raises(
        ModelError, match=f"there is no model '{name}': no such size, file or folder"
    ) as error:
        resolve(name)
    assert error.value.hint == f"did you mean '{near}'?"


def test_a_name_like_nothing_lists_the_sizes():
    with pytest.raises(ModelError) as error:
        resolve("zzzzzz")
    assert error.value.hint == "sizes: " + " ".join(SIZES)


@pytest.mark.parametrize("name", ["a\0b", "a" * 300, "~nobody/x"])
def test_a_name_that_no_file_can_have(name):
    with pytest.raises(ModelError) as error:
        resolve(name)
    assert error.value.what == f"there is no model '{name}': no such size, file or folder"


def test_an_empty_name():
    with pytest.raises(ModelError) as error:
        resolve(" ")
    assert error.value.what == "the name of the model is empty"
    assert error.value.hint == f"a folder, an OpenAI .pt, or a size: {' '.join(SIZES)}"


def test_a_missing_checkpoint_is_not_taken_for_a_hub_id():
    with pytest.raises(ModelError, match=r"there is no model 'weights/tiny\.pt'"):
        resolve("weights/tiny.pt")


def test_files_and_folders_that_are_no_model(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"model\.bin is a file but not an OpenAI checkpoint") as error:
        resolve(str(tmp_path / "model.bin"))
    assert error.value.hint == "give the folder it lies in"
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"neither config\.json \(Hugging Face\) nor model\.bin"):
        resolve(str(tmp_path / "empty"))


def test_a_run_without_a_model_and_a_bare_adapter(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text("")
    with pytest.raises(ModelError, match="run has no delivered model yet"):
        resolve(str(tmp_path / "run"))
    (tmp_path / "lora").mkdir()
    edit(tmp_path / "lora" / "adapter_config.json", base_model_name_or_path="openai/whisper-small")
    with pytest.raises(
        ModelError, match="holds a LoRA adapter, not a model; its base is 'openai/whisper-small'"
    ):
        resolve(str(tmp_path / "lora"))


def test_kinds(tiny_model_folder, tmp_path):
    assert resolve("large-v3-turbo").location == "openai/whisper-large-v3-turbo"
    assert [resolve(size).kind for size in SIZES] == ["size"] * 11
    assert resolve("someone/whisper-mine").kind == "hub"
    assert resolve(str(tiny_model_folder)).kind == "hf"
    run = tmp_path / "run"
    shutil.copytree(tiny_model_folder, run / "model")
    (run / "plan.json").write_text("{}")
    assert (resolve(str(run)).kind, resolve(str(run)).location) == ("run", str(run / "model"))
    assert load_tokenizer(resolve(str(run))).vocab_size == 51865
    (tmp_path / "x.pt").write_bytes(b"")
    assert resolve(str(tmp_path / "x.pt")).kind == "openai"


# --- a Hugging Face folder with something wrong


def test_a_model_of_another_kind(copy):
    edit(copy / "config.json", model_type="wav2vec2")
    refused(copy, "is a model of type 'wav2vec2', not a Whisper")


def test_configuration_that_cannot_be_read(copy):
    (copy / "config.json").write_text("{")
    refused(copy, r"config\.json is not valid JSON")


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("content", ["[]", "null", '"x"', "3"])
def test_json_of_another_shape(copy, name, content):
    (copy / name).write_text(content)
    error = refused(copy, ".")
    assert error.what == f"{copy / name} is damaged: names and values expected, {content} found"
    assert error.hint == "download or copy the model again"


@pytest.mark.parametrize(
    ("name", "key", "value", "what"),
    [
        ("config", "d_model", 0, "its d_model is 0, a whole number from 1 to 100,000 expected"),
        ("config", "d_model", 10**12, "its d_model is 1000000000000, a whole number from 1 to 100,000 expected"),
        ("config", "encoder_layers", 10**9, "its encoder_layers is 1000000000, a whole number from 1 to 100 expected"),
        ("config", "num_mel_bins", "80", "its num_mel_bins is '80', a whole number from 1 to 1,000 expected"),
        (
            "config",
            "decoder_attention_heads",
            7,
            "its d_model is 64, a multiple of its 7 decoder_attention_heads expected",
        ),
        (
            "generation_config",
            "suppress_tokens",
            [1, "a"],
            "its suppress_tokens are [1, 'a'], a list of token ids below 51865 expected",
        ),
        (
            "generation_config",
            "alignment_heads",
            [1],
            "its alignment_heads are [1], a list of pairs of a layer and a head expected",
        ),
    ],
)
def test_values_that_no_whisper_has(copy, name, key, value, what):
    edit(copy / f"{name}.json", **{key: value})
    with pytest.raises(ModelError) as error:
        load_tokenizer(resolve(str(copy)))
    assert error.value.what == f"{copy} is damaged: {what}"
    assert error.value.hint == "download or copy the model again"


def test_values_that_transformers_refuses(copy):
    edit(copy / "config.json", activation_function="nope")
    with pytest.raises(ModelError) as error:
        load_tokenizer(resolve(str(copy)))
    assert error.value.what == f"the config.json in {copy} describes no Whisper: KeyError: 'nope'"


@pytest.mark.parametrize("files", ["[]", "{}", '{"a": 3}', '{"a": "../../b"}'])
def test_an_index_that_does_not_say_where_weights_are(copy, files):
    (copy / "model.safetensors").unlink()
    index = copy / "model.safetensors.index.json"
    index.write_text(f'{{"weight_map": {files}}}')
    error = refused(copy, ".")
    assert error.what == f"{index} does not say in which file of the folder each weight is"


def test_the_damaged_model_of_a_run_can_be_made_anew(copy, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    copy.rename(run / "model")
    (run / "recipe.toml").touch()
    whole = (run / "model" / "model.safetensors").read_bytes()
    (run / "model" / "model.safetensors").write_bytes(whole[:-100])
    error = refused(run, r"model\.safetensors is cut or damaged")
    assert error.hint == (
        f"remove {run / 'model'} and run the same train command again: a checkpoint has it"
    )


def test_a_pickle_never_runs_code(tmp_path):
    class Code:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"dims": {}, "model_state_dict": Code()}, tmp_path / "x.pt")
    (tmp_path / "y.pt").write_bytes(pickle.dumps(Code()))
    for name in ("x.pt", "y.pt"):
        refused(tmp_path / name, "cannot be read as an OpenAI checkpoint: it is damaged or holds more than")
    assert not (tmp_path / "ran").exists()


def test_a_configuration_without_sizes(copy):
    content = json.loads((copy / "config.json").read_text())
    del content["d_model"]
    (copy / "config.json").write_text(json.dumps(content))
    refused(copy, r"config\.json lacks d_model")


def test_no_weights_and_pickled_weights(copy):
    (copy / "model.safetensors").unlink()
    assert refused(copy, r"has no model\.safetensors").hint == "give the folder of a whole model"
    (copy / "pytorch_model.bin").write_bytes(b"")
    assert "are not loaded: whoever made one can run code here" in refused(copy, "has no model").hint


def test_cut_weights(copy):
    whole = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(whole[:-100])
    refused(copy, r"model\.safetensors is cut or damaged")


def damaged(copy, change):
    weights = load_file(copy / "model.safetensors")
    change(weights)
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})


def test_missing_superfluous_and_misshapen_weights(copy):
    norm, bias = "model.decoder.layer_norm.weight", "model.encoder.conv1.bias"
    damaged(copy, lambda w: w.pop(norm))
    refused(copy, f"lacks the weight {norm}")
    damaged(copy, lambda w: w.update({norm: torch.ones(64), "extra.weight": torch.ones(1)}))
    refused(copy, r"has a weight that a Whisper of this size does not have: extra\.weight")
    damaged(copy, lambda w: (w.pop("extra.weight"), w.update({bias: torch.ones(63)})))
    refused(copy, rf"{bias} has shape \[63\], \[64\] expected")


def test_a_head_of_its_own(copy):
    """Case 43: folded where it is equal, refused where it is not, never ignored."""
    embedding = "model.decoder.embed_tokens.weight"
    damaged(copy, lambda w: w.update({"proj_out.weight": w[embedding].clone()}))
    edit(copy / "config.json", tie_word_embeddings=False)
    loaded = load(resolve(str(copy)))
    assert loaded.model.proj_out.weight is loaded.model.model.decoder.embed_tokens.weight
    assert loaded.model.config.tie_word_embeddings
    damaged(copy, lambda w: w.update({"proj_out.weight": w[embedding] + 1}))
    refused(copy, "the output head of .* differs from its token embedding")


def test_no_tokenizer(copy):
    (copy / "tokenizer.json").unlink()
    refused(copy, r"has no tokenizer\.json")


@pytest.mark.real
def test_a_tokenizer_that_lost_one_merge(copy):
    """Case 51."""
    content = json.loads((copy / "tokenizer.json").read_text(encoding="utf-8"))
    del content["model"]["merges"][31_000]
    (copy / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    error = refused(copy, "has 49,999 merges, a Whisper tokenizer has 50,000")
    assert "openai/whisper" in error.hint
    with pytest.raises(ModelError, match="49,999 merges"):
        load_tokenizer(resolve(str(copy)))


def test_a_tokenizer_that_cannot_be_read(copy):
    (copy / "tokenizer.json").write_text('{"model": {}}')
    refused(copy, "the tokenizer in .* cannot be read")


def test_the_tokenizer_of_another_family(copy):
    """Case 16."""
    shutil.copy(real_tokenizer("english"), copy / "tokenizer.json")
    refused(copy, "do not belong together: the tokenizer has 51864 tokens, the weights 51865")


# --- a Hugging Face folder as it should be


def test_loaded(tiny_model_folder, tiny_en_folder):
    loaded = load(resolve(str(tiny_model_folder)))
    assert not loaded.model.training
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert {p.device.type for p in loaded.model.parameters()} == {"cpu"}
    assert (loaded.n_mels, loaded.is_multilingual, loaded.max_target_positions) == (80, True, 448)
    assert (len(loaded.suppress_tokens), loaded.begin_suppress_tokens) == (88, (220, 50257))
    original = WhisperForConditionalGeneration.from_pretrained(tiny_model_folder).state_dict()
    assert all(torch.equal(weight, original[name]) for name, weight in loaded.model.state_dict().items())
    english = load(resolve(str(tiny_en_folder)))
    assert not english.is_multilingual
    assert english.model.generation_config.is_multilingual is False
    assert (
        not hasattr(english.model.generation_config, "task") or english.model.generation_config.task is None
    )


def test_sharded_half_precision_weights(tiny_model_folder, copy):
    weights = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    names = sorted(weights)
    shards = {"model-00001-of-00002.safetensors": names[:20], "model-00002-of-00002.safetensors": names[20:]}
    for shard, held in shards.items():
        save_file({n: weights[n].half() for n in held}, copy / shard, metadata={"format": "pt"})
    edit(
        copy / "model.safetensors.index.json",
        weight_map={name: shard for shard, held in shards.items() for name in held},
    )
    loaded = load(resolve(str(copy)))
    assert loaded.model.dtype == torch.float32
    assert torch.equal(loaded.model.state_dict()[names[0]], weights[names[0]].half().float())
    (copy / "model-00002-of-00002.safetensors").unlink()
    refused(copy, r"has no model-00002-of-00002\.safetensors")


def test_the_fingerprint_is_that_of_the_weights(tiny_model_folder, copy):
    loaded = load(resolve(str(tiny_model_folder)))
    assert load(resolve(str(copy))).fingerprint == loaded.fingerprint == fingerprint(loaded.model)
    with torch.no_grad():
        loaded.model.model.decoder.layers[0].fc1.weight[3, 3] += 1e-6
    assert fingerprint(loaded.model) != load(resolve(str(copy))).fingerprint


@pytest.mark.parametrize("max_length", [20, None])
def test_legacy_fields_are_not_carried_along(copy, max_length):
    """Cases 7 and 12."""
    legacy = {"forced_decoder_ids": [[1, 50259], [2, 50359], [3, 50363]], "max_length": max_length}
    edit(copy / "config.json", suppress_tokens=[], begin_suppress_tokens=[220, 50257], **legacy)
    edit(copy / "generation_config.json", suppress_tokens=[], **legacy)
    loaded = load(resolve(str(copy)))
    config = loaded.model.generation_config
    assert loaded.suppress_tokens == ()
    assert config.suppress_tokens is None
    assert getattr(config, "forced_decoder_ids", None) is None
    assert not hasattr(loaded.model.config, "forced_decoder_ids")
    assert config.max_length == 448
    torch.manual_seed(0)
    ids = loaded.model.generate(torch.randn(1, 80, 3000), language="cs", max_new_tokens=60)
    assert ids.shape[1] >= 60  # a random model does not stop by itself


def test_generation_without_a_language_is_given_the_task(copy):
    """Case 48: what the decoder is fed first, whatever the base's own generation config lacks."""
    (copy / "generation_config.json").unlink(missing_ok=True)
    model = load(resolve(str(copy))).model
    assert model.generation_config.task == "transcribe"
    fed = []
    model.model.decoder.register_forward_pre_hook(
        lambda _module, _args, kwargs: fed.append(kwargs["input_ids"].tolist()), with_kwargs=True
    )
    model.generate(torch.zeros(1, 80, 3000), max_new_tokens=2)
    start = next(ids[0] for ids in fed if len(ids[0]) > 1)  # before it, the language is detected
    assert start[0] == 50258
    assert start[1] in model.generation_config.lang_to_id.values()
    assert start[2:] == [50359, 50363]


def test_dropout_of_the_base_is_kept(copy):
    edit(copy / "config.json", dropout=0.125, apply_spec_augment=True)
    config = load(resolve(str(copy))).model.config
    assert (config.dropout, config.apply_spec_augment) == (0.125, True)


# --- OpenAI checkpoints


def openai_checkpoint(folder, path, **change):
    """The tiny model in OpenAI's names: what transformers' conversion script replaces, backwards."""
    names = {
        "model.": "",
        "layers": "blocks",
        "fc1": "mlp.0",
        "fc2": "mlp.2",
        "final_layer_norm": "mlp_ln",
        ".self_attn.q_proj": ".attn.query",
        ".self_attn.k_proj": ".attn.key",
        ".self_attn.v_proj": ".attn.value",
        ".self_attn.out_proj": ".attn.out",
        ".self_attn_layer_norm": ".attn_ln",
        ".encoder_attn.q_proj": ".cross_attn.query",
        ".encoder_attn.k_proj": ".cross_attn.key",
        ".encoder_attn.v_proj": ".cross_attn.value",
        ".encoder_attn.out_proj": ".cross_attn.out",
        ".encoder_attn_layer_norm": ".cross_attn_ln",
        "decoder.layer_norm.": "decoder.ln.",
        "encoder.layer_norm.": "encoder.ln_post.",
        "embed_tokens": "token_embedding",
        "embed_positions.weight": "positional_embedding",
    }
    state = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        state[name] = weight
    dims = {
        "n_mels": 80,
        "n_audio_ctx": 1500,
        "n_audio_state": 64,
        "n_audio_head": 2,
        "n_audio_layer": 2,
        "n_vocab": 51865,
        "n_text_ctx": 448,
        "n_text_state": 64,
        "n_text_head": 2,
        "n_text_layer": 2,
    }
    torch.save({"dims": dims | change.pop("dims", {}), "model_state_dict": state | change}, path)
    return path


@pytest.fixture
def packaged_tokenizer(tiny_model_folder, empty_cache, monkeypatch):
    """Stands for the packages' folder: its tokenizer is theirs, without copying 145 MB for it."""
    monkeypatch.setattr(sources, "packaged", lambda size: tiny_model_folder)
    monkeypatch.setattr(
        "whispertune.engine.model.locate",
        lambda s, weights=True: ("hf", tiny_model_folder) if s.kind == "size" else locate(s, weights=weights),
    )


def test_an_openai_checkpoint(tiny_model_folder, packaged_tokenizer, tmp_path):
    source = resolve(str(openai_checkpoint(tiny_model_folder, tmp_path / "tiny.pt")))
    loaded = load(source)
    assert loaded.fingerprint == load(resolve(str(tiny_model_folder))).fingerprint
    assert loaded.suppress_tokens[:2] == (1, 2)
    assert loaded.model.generation_config.alignment_heads == [[1, 0], [1, 1]]
    assert load_tokenizer(source).max_target_positions == 448


def test_an_openai_checkpoint_equals_openais_own_model(packaged_tokenizer, tmp_path):
    whisper = pytest.importorskip("whisper.model")
    torch.manual_seed(1)
    theirs = whisper.Whisper(whisper.ModelDimensions(80, 1500, 64, 2, 2, 51865, 448, 64, 2, 2)).eval()
    for parameter in theirs.parameters():  # the positions of the decoder are left uninitialised
        torch.nn.init.normal_(parameter, std=0.05)
    torch.save({"dims": vars(theirs.dims), "model_state_dict": theirs.state_dict()}, tmp_path / "own.pt")
    ours = load(resolve(str(tmp_path / "own.pt"))).model
    mel, ids = torch.randn(1, 80, 3000), torch.tensor([[50258, 50259, 50359, 50363, 440]])
    with torch.inference_mode():
        expected = theirs(mel, ids)
        found = ours(input_features=mel, decoder_input_ids=ids).logits
    assert torch.allclose(found, expected, atol=1e-4)


def test_checkpoints_that_are_refused(tiny_model_folder, tmp_path):
    path = tmp_path / "x.pt"
    path.write_bytes(b"not a checkpoint")
    refused(path, "cannot be read as an OpenAI checkpoint: it is damaged or holds more than weights")
    torch.save({"dims": print, "model_state_dict": {}}, path)  # a pickle that names code
    assert "weights_only=True" in refused(path, "cannot be read as an OpenAI checkpoint").hint
    torch.save({"weights": {}}, path)
    refused(path, "is not an OpenAI checkpoint: it has no 'dims' and 'model_state_dict'")
    openai_checkpoint(tiny_model_folder, path, dims={"n_mels": None})
    refused(path, "is damaged: its num_mel_bins is None, a whole number from 1 to 1,000 expected")
    torch.save({"dims": {"n_mels": 80}, "model_state_dict": {}}, path)
    refused(path, "dims lacks n_audio_ctx, n_audio_state, ")
    torch.save({"dims": [80], "model_state_dict": {}}, path)
    refused(path, "is damaged: 'dims' and 'model_state_dict' are list and dict, not dict and dict")
    openai_checkpoint(tiny_model_folder, path, dims={"n_text_state": 32})
    refused(path, "encoder width 64 and decoder width 32 differ")
    openai_checkpoint(tiny_model_folder, path, **{"decoder.blocks.0.gate.weight": torch.ones(1)})
    refused(path, r"the weight decoder\.blocks\.0\.gate\.weight is not one of a Whisper model")
    openai_checkpoint(tiny_model_folder, path, dims={"n_vocab": 50000})
    refused(path, "has a vocabulary of 50000 tokens; Whisper's have 51864, 51865, 51866")


def test_a_checkpoint_whose_tokenizer_is_not_here(tiny_model_folder, empty_cache):
    path = openai_checkpoint(tiny_model_folder, empty_cache / "v3.pt", dims={"n_vocab": 51866})
    refused(
        path,
        "carries no tokenizer, and that of large-v3, which it needs, is not here: .*Hub cannot be reached",
    )


# --- the Hub, and what there is without it


def test_without_the_hub_other_sizes_say_what_they_need(empty_cache):
    with pytest.raises(
        ModelError, match="model 'small' is not in the local cache and the Hub cannot be reached"
    ) as e:
        load(resolve("small"))
    assert "HF_HUB_OFFLINE is set" in e.value.what
    assert e.value.hint.startswith("connect to the Hub, or give a local model folder or an OpenAI .pt")
    with pytest.raises(ModelError, match="model 'some/one' is not in the local cache"):
        load_tokenizer(resolve("some/one"))


def test_an_unreachable_hub_is_not_an_error_of_ours(empty_cache, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # the discard port: nobody listens
    with pytest.raises(ModelError, match=r"the Hub cannot be reached \(\w+\)"):
        load(resolve("small"))


@pytest.mark.parametrize("size", ["tiny.en", "base"])
def test_without_hub_and_packages_the_extra_is_named(empty_cache, monkeypatch, size):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(MissingExtra, match=f"model '{size}' without the Hub") as error:
        load(resolve(size))
    assert error.value.hint == "pip install 'whispertune[offline]'"


@pytest.fixture
def small_package(tmp_path, monkeypatch):
    """A packaged model of two parts, so that joining and verifying are tested without 145 MB."""
    import hashlib

    class Distribution:
        def locate_file(self, path):
            return tmp_path / "site" / path

    (tmp_path / "site").mkdir()
    for name, content in (("part1", b"one,"), ("part2", b"two"), ("config", b"{}"), ("tokenizer", b"{}")):
        (tmp_path / "site" / name).write_bytes(content)
    files = {
        "model.bin": (hashlib.sha256(b"one,two").hexdigest(), (("p1", "part1"), ("p2", "part2"))),
        "config.json": (hashlib.sha256(b"{}").hexdigest(), (("p2", "config"),)),
        "tokenizer.json": (hashlib.sha256(b"{}").hexdigest(), (("p2", "tokenizer"),)),
    }
    monkeypatch.setattr(sources, "PACKAGED", {"base": files})
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Distribution())
    return tmp_path / "site"


def test_packaged_parts_are_joined_and_verified(empty_cache, small_package):
    kind, folder = locate(resolve("base"))
    assert kind == "ct2"
    assert folder.parent == empty_cache / "cache" / "whispertune"
    assert (folder / "model.bin").read_bytes() == b"one,two"
    (folder / "model.bin").write_bytes(b"one,tw")  # damaged in the cache: made again
    assert (locate(resolve("base"))[1] / "model.bin").read_bytes() == b"one,two"
    partial = folder.with_name(f".{folder.name}.partial")
    partial.mkdir()  # left by a kill
    (folder / "model.bin").unlink()
    assert (locate(resolve("base"))[1] / "model.bin").read_bytes() == b"one,two"
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, ".base.lock"}


def test_a_package_that_is_not_the_released_one(empty_cache, small_package):
    (small_package / "part2").write_bytes(b"2")
    with pytest.raises(
        ModelError, match=r"model\.bin of the packaged model 'base' is not the released file: SHA-256"
    ):
        locate(resolve("base"))
    (small_package / "part2").unlink()
    with pytest.raises(ModelError, match="the package p2 lacks part2"):
        locate(resolve("base"))


def test_a_cache_that_cannot_be_written(empty_cache, small_package):
    (empty_cache / "cache").write_text("a file where a folder should be")
    with pytest.raises(MachineError, match="cannot put the weights of 'base' into") as error:
        locate(resolve("base"))
    assert "XDG_CACHE_HOME" in error.value.hint


def cached(cache, repo, files, revision="a" * 40):
    """A repository as huggingface_hub lays it in its cache."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(revision)
    snapshot = folder / "snapshots" / revision
    snapshot.mkdir(parents=True)
    for path in files:
        shutil.copy(path, snapshot / path.name)
    return snapshot


def test_a_cached_snapshot_comes_first(empty_cache, tiny_en_folder):
    snapshot = cached(empty_cache / "hub", "openai/whisper-tiny.en", tiny_en_folder.iterdir())
    assert locate(resolve("tiny.en")) == ("hf", snapshot)
    assert load(resolve("tiny.en")).fingerprint == load(resolve(str(tiny_en_folder))).fingerprint
    (snapshot / "model.safetensors").unlink()  # half a snapshot is none, except for who wants no weights
    assert locate(resolve("tiny.en"), weights=False) == ("hf", snapshot)
    with pytest.raises(ModelError, match=r"'openai/whisper-tiny\.en' is not in the local cache"):
        locate(resolve("openai/whisper-tiny.en"))


@pytest.fixture
def hub(empty_cache, monkeypatch):
    """An address that answers every question as the Hub does for a repository that is not there."""
    answers = {"code": "RepoNotFound", "status": 404}

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(answers["status"])
            self.send_header("X-Error-Code", answers["code"])
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield answers
    server.shutdown()
    server.server_close()


def test_a_repository_that_does_not_exist(hub):
    with pytest.raises(
        ModelError, match="neither a folder 'no/such' here nor a model of that name on the Hub"
    ):
        load(resolve("no/such"))


def test_a_gated_repository(hub):
    hub.update(code="GatedRepo", status=403)
    with pytest.raises(ModelError, match="the model some/gated asks its users to accept its terms first"):
        load(resolve("some/gated"))


def test_the_loaded_tokenizer_knows_its_special_tokens(tiny_model_folder):
    """transformers lets time tokens begin behind the last special one; a bare tokenizer.json names none."""
    tokenizer = load(resolve(str(tiny_model_folder))).tokenizer
    assert tokenizer.all_special_ids[-1] == 50363
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 50257
    assert tokenizer.decode([50364 + 25, 50364 + 50], decode_with_timestamps=True) == "<|0.50|><|1.00|>"
