import csv
import inspect
import json
import shutil
import struct
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from conftest import make_tiny_whisper, read_audio, real_tokenizer
from safetensors.torch import load_file
from transformers import DynamicCache, EncoderDecoderCache, WhisperFeatureExtractor

from whispertune.engine.ctranslate2_weights import read_binary, state_dict
from whispertune.engine.model import load, load_tokenizer, resolve
from whispertune.engine.source import locate
from whispertune.engine.tokens import LabelLayout
from whispertune.errors import ModelError

_TYPE_IDS = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4, "uint16": 5}

pytestmark = pytest.mark.usefixtures("quick_tokenizers")


@dataclass
class File:
    """A model.bin to be written with something wrong in it; the writer is as CTranslate2's `_serialize`."""

    variables: dict
    aliases: dict
    version: int = 6
    spec: str = "WhisperSpec"
    revision: int = 3

    def write(self, path):
        def string(text):
            return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"

        parts = [struct.pack("<I", self.version), string(self.spec), struct.pack("<I", self.revision)]
        parts.append(struct.pack("<I", len(self.variables)))
        for name, value in self.variables.items():
            parts += [string(name), struct.pack("<B", value.ndim)]
            parts += [struct.pack("<I", size) for size in value.shape]
            parts += [struct.pack("<BI", _TYPE_IDS[value.dtype.name], value.nbytes), value.tobytes()]
        parts.append(struct.pack("<I", len(self.aliases)))
        parts += [string(alias) + string(name) for alias, name in self.aliases.items()]
        path.write_bytes(b"".join(parts))


def convert(hf_folder, target, quantization):
    """With CTranslate2's own converter."""
    converters = pytest.importorskip("ctranslate2.converters")
    converter = converters.TransformersConverter(str(hf_folder), copy_files=["tokenizer.json"])
    converter.convert(str(target), quantization=quantization)
    return target


@pytest.fixture(scope="module")
def ct2_folder(tiny_model_folder, tmp_path_factory):
    return convert(tiny_model_folder, tmp_path_factory.mktemp("ct2") / "tiny", "float32")


@pytest.fixture
def broken(ct2_folder, tmp_path):
    """A copy to damage: (folder, File)."""
    folder = tmp_path / "broken"
    shutil.copytree(ct2_folder, folder)
    binary = read_binary(ct2_folder / "model.bin")
    return folder, File(dict(binary.variables), dict(binary.aliases))


def refused(folder, message):
    with pytest.raises(ModelError, match=message) as error:
        load(resolve(str(folder)))
    return error.value


# --- what is refused


@pytest.mark.parametrize("size", [2, 30, 1_000, -4, -1])
def test_a_cut_file(ct2_folder, tmp_path, size):
    shutil.copytree(ct2_folder, tmp_path / "cut")
    whole = (ct2_folder / "model.bin").read_bytes()
    (tmp_path / "cut" / "model.bin").write_bytes(whole[:size])
    left = len(whole[:size])
    refused(tmp_path / "cut", rf"model\.bin is cut: .*(the file has {left}$|{left} are there)")


def test_bytes_after_the_end(ct2_folder, tmp_path):
    shutil.copytree(ct2_folder, tmp_path / "long")
    whole = (ct2_folder / "model.bin").read_bytes()
    (tmp_path / "long" / "model.bin").write_bytes(whole + b"more")
    refused(tmp_path / "long", rf"{len(whole) + 4} bytes, but the model ends after {len(whole)}")


def test_another_version_spec_or_revision(broken):
    folder, file = broken
    file.version = 5
    file.write(folder / "model.bin")
    error = refused(folder, "has CTranslate2 binary version 5, 6 is what can be read")
    assert "ct2-transformers-converter" in error.hint
    file.version, file.spec = 6, "TransformerSpec"
    file.write(folder / "model.bin")
    refused(folder, "holds a TransformerSpec revision 3, not a WhisperSpec revision 3")
    file.spec, file.revision = "WhisperSpec", 4
    file.write(folder / "model.bin")
    refused(folder, "holds a WhisperSpec revision 4, not a WhisperSpec revision 3")


@pytest.mark.real
def test_variables_a_whisper_does_not_have_are_named(broken):
    folder, file = broken
    file.variables["decoder/layer_0/self_attention/rotary_base"] = np.zeros((), np.float32)
    file.variables["encoder/layer_1/attention/linear_7/weight"] = np.zeros((2, 2), np.float32)
    file.write(folder / "model.bin")
    refused(
        folder,
        r"has 2 variable\(s\) that a Whisper model does not have: "
        "decoder/layer_0/self_attention/rotary_base, encoder/layer_1/attention/linear_7/weight",
    )


def test_a_missing_variable_is_named(broken):
    folder, file = broken
    del file.variables["decoder/layer_1/attention/linear_1/weight"]
    file.write(folder / "model.bin")
    refused(folder, "lacks the variable decoder/layer_1/attention/linear_1/weight")


def test_a_wrong_shape_is_named_with_both_shapes(broken):
    folder, file = broken
    name = "decoder/layer_1/self_attention/linear_0/weight"
    file.variables[name] = file.variables[name][:128]
    file.write(folder / "model.bin")
    refused(folder, rf"{name} has shape \[128, 64\], \[192, 64\] expected")


def test_a_size_that_does_not_fit_the_shape(broken):
    folder, file = broken
    file.write(folder / "model.bin")
    content = bytearray((folder / "model.bin").read_bytes())
    name = b"encoder/conv1/weight\0"
    at = content.index(name) + len(name) + 1 + 3 * 4 + 1  # rank, three dimensions, type
    assert struct.unpack_from("<I", content, at) == (64 * 80 * 3 * 4,)
    struct.pack_into("<I", content, at, 255)
    (folder / "model.bin").write_bytes(content)
    refused(folder, r"encoder/conv1/weight of shape \[64, 80, 3\] needs 61440 bytes, its header says 255")


def test_another_activation_and_other_settings(broken):
    folder, file = broken
    file.variables["decoder/activation"] = np.array(0, np.int8)
    file.write(folder / "model.bin")
    refused(folder, r"decoder/activation is 0; Whisper models have \{3\}")


def test_a_head_of_its_own(broken):
    # Case 43, on the way in.
    folder, file = broken
    del file.aliases["decoder/projection/weight"]
    file.variables["decoder/projection/weight"] = file.variables["decoder/embeddings/weight"].copy()
    file.write(folder / "model.bin")
    load(resolve(str(folder)))  # equal: nothing is lost
    file.variables["decoder/projection/weight"][7, 7] += 1
    file.write(folder / "model.bin")
    refused(folder, "the output head differs from the token embedding")


def test_a_bias_for_keys(broken):
    folder, file = broken
    bias = file.variables["decoder/layer_0/attention/linear_1/bias"].copy()
    bias[3] = 0.5
    file.variables["decoder/layer_0/attention/linear_1/bias"] = bias
    file.write(folder / "model.bin")
    refused(folder, "decoder/layer_0/attention/linear_1/bias has a bias for keys")


def test_int8_without_its_scale(broken):
    folder, file = broken
    name = "encoder/layer_0/ffn/linear_0/weight"
    file.variables[name] = np.ones(file.variables[name].shape, np.int8)
    file.write(folder / "model.bin")
    refused(folder, rf"{name} is quantised and needs a scale of shape \[256\]; none is there")


def test_no_tokenizer(ct2_folder, tmp_path):
    shutil.copytree(ct2_folder, tmp_path / "bare")
    (tmp_path / "bare" / "tokenizer.json").unlink()
    error = refused(tmp_path / "bare", "has no tokenizer.json")
    assert "the model it was converted from" in error.hint


def test_the_tokenizer_of_another_family(ct2_folder, tmp_path):
    shutil.copytree(ct2_folder, tmp_path / "other")
    shutil.copy(real_tokenizer("english"), tmp_path / "other" / "tokenizer.json")
    refused(tmp_path / "other", "the tokenizer has 51864 tokens, the weights 51865")


# --- what is read


@pytest.mark.parametrize(
    ("quantization", "tolerance"),
    # Relative to the largest weight of a row: half a step of 127 (int8), 10 bits (int16), 8 bits of mantissa.
    [("float32", 0.0), ("float16", 2**-11), ("bfloat16", 2**-8), ("int8", 0.5 / 127), ("int16", 2**-9)],
)
@pytest.mark.real
def test_every_type_comes_back(tiny_model_folder, tmp_path, quantization, tolerance):
    weights = load_file(tiny_model_folder / "model.safetensors")
    folder = convert(tiny_model_folder, tmp_path / "ct2", quantization)
    back = state_dict(read_binary(folder / "model.bin"))
    assert back.keys() == weights.keys()
    for name, weight in weights.items():
        assert back[name].dtype == np.float32
        difference = np.abs(back[name] - weight.numpy()).max()
        # 1.5: fused projections share a scale in int16, and the scale is rounded itself
        assert difference <= 1.5 * tolerance * weight.abs().max().item(), name


def test_the_loaded_model_is_the_original(tiny_model_folder, ct2_folder):
    source = resolve(str(ct2_folder))
    assert source.kind == "ct2"
    back = load(source)
    assert back.fingerprint == load(resolve(str(tiny_model_folder))).fingerprint
    assert back.model.config.encoder_attention_heads == 2  # stored, where 64 dimensions a head would give 1
    assert len(back.suppress_tokens) == 88  # the converter wrote none: from the tokenizer
    known = load_tokenizer(source)
    assert (known.vocab_size, known.max_target_positions, known.n_mels) == (51865, 448, 80)


@pytest.mark.real
def test_large_v3_sizes(tmp_path):
    """Case 16, on the way in: 128 mel bins and a language more; v2's tokenizer is refused."""
    v2 = json.loads(real_tokenizer("multilingual").read_text(encoding="utf-8"))
    for token in v2["added_tokens"]:
        token["id"] += token["id"] >= 50358  # <|yue|> stands before <|translate|>
    v2["added_tokens"].append({**v2["added_tokens"][1], "id": 50358, "content": "<|yue|>"})
    v2["added_tokens"].sort(key=lambda token: token["id"])
    v2["post_processor"]["special_tokens"]["<|notimestamps|>"]["ids"] = [50364]
    (tmp_path / "v3.json").write_text(json.dumps(v2), encoding="utf-8")
    hf = make_tiny_whisper(tmp_path / "hf", tmp_path / "v3.json", 51866, n_mels=128)
    folder = convert(hf, tmp_path / "ct2", "float16")
    loaded = load(resolve(str(folder)))
    assert loaded.n_mels == loaded.model.config.num_mel_bins == 128
    config = loaded.model.generation_config
    assert config.lang_to_id["<|yue|>"] == 50358
    assert config.task_to_id["transcribe"] == 50360
    shutil.copy(real_tokenizer("multilingual"), folder / "tokenizer.json")
    refused(folder, "the tokenizer has 51865 tokens, the weights 51866")


# --- the proof on real speech


@pytest.mark.real
@pytest.mark.parametrize("size", ["tiny.en", "base"])
def test_greedy_ids_equal_ctranslate2s(size, shared_speech):
    """On 20 real clips: same mel, prompt and suppress list, float32 both. Ids, not texts."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    source = resolve(size)
    loaded = load(source)
    kind, folder = locate(source)
    if kind != "ct2":
        pytest.skip("the Hub gave other files than the packages: nothing to compare with")
    reference = ctranslate2.models.Whisper(str(folder), device="cpu", compute_type="float32")
    layout = LabelLayout.from_tokenizer(loaded.tokenizer, loaded.model.config, "en")
    clips = []
    for corpus in ("read-en", "child-en"):
        with open(shared_speech / corpus / "metadata.csv", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        clips += [shared_speech / corpus / row["file_name"] for row in rows[:: len(rows) // 10][:10]]
    assert len(clips) == 20
    extract = WhisperFeatureExtractor(feature_size=loaded.n_mels)
    compared = 0
    for first in range(0, len(clips), 5):
        audio = [read_audio(path).astype(np.float32) / 32768 for path in clips[first : first + 5]]
        mel = extract(audio, sampling_rate=16_000, return_tensors="np").input_features
        theirs = reference.generate(
            ctranslate2.StorageView.from_array(mel),
            [list(layout.prefix)] * len(mel),
            beam_size=1,
            max_length=448,
            suppress_blank=True,
            suppress_tokens=list(loaded.suppress_tokens),
        )
        for path, features, result in zip(clips[first : first + 5], mel, theirs, strict=True):
            ours = greedy(loaded, torch.from_numpy(features)[None], layout)
            assert ours == result.sequences_ids[0], f"{path.name}: {layout.show(ours)}"
            compared += len(ours)
    assert compared > 300  # or they all said nothing


@torch.inference_mode()
def greedy(loaded, features, layout):
    """Written out here, so that neither `generate` nor the engine's decoder is part of the proof."""
    model = loaded.model
    encoded = model.model.encoder(features).last_hidden_state
    ids = fed = list(layout.prefix)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    decoder = model.model.decoder
    # Renamed within transformers 5, with a warning for the former name.
    name = "cache" if "cache" in inspect.signature(decoder.forward).parameters else "past_key_values"
    while len(ids) < layout.max_target_positions:
        out = decoder(torch.tensor([fed]), encoder_hidden_states=encoded, use_cache=True, **{name: cache})
        logits = model.proj_out(out.last_hidden_state[0, -1])
        logits[list(loaded.suppress_tokens)] = -torch.inf
        if len(ids) == len(layout.prefix):
            logits[list(loaded.begin_suppress_tokens)] = -torch.inf
        token = int(logits.argmax())
        if token == layout.eot:
            break
        fed = [token]
        ids = ids + fed
    return ids[len(layout.prefix) :]
