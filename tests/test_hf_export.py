import json
import shutil

import numpy as np
import pytest
import torch
from conftest import make_tiny_whisper, read_audio, real_tokenizer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor

from whispertune.engine.model import load, resolve
from whispertune.engine.tokens import LabelLayout
from whispertune.errors import MachineError, ModelError, UsageError
from whispertune.ship.hf import export_hf, prove_hf

pytestmark = pytest.mark.usefixtures("quick_tokenizers")


@pytest.fixture(scope="module")
def loaded(tiny_model_folder, quick_tokenizers):
    return load(resolve(str(tiny_model_folder)))


@pytest.fixture(scope="module")
def exported(loaded, tmp_path_factory):
    return export_hf(loaded, tmp_path_factory.mktemp("exports") / "hf", language="czech")


@pytest.fixture(scope="module")
def short(tmp_path_factory, quick_tokenizers):
    """The export of a model with 24 decoder positions: a random one never stops by itself."""
    folder = tmp_path_factory.mktemp("short")
    made = make_tiny_whisper(folder / "base", real_tokenizer("multilingual"), 51865, positions=24)
    return export_hf(load(resolve(str(made))), folder / "hf", language="czech")


@pytest.fixture(scope="module")
def noise():
    """Two clips, int16."""
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(n) * 3000).astype(np.int16) for n in (16_000, 48_000)]


def said_by(folder, clips):
    """What plain transformers hears in this process."""
    model = AutoModelForSpeechSeq2Seq.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder)
    texts = []
    for clip in clips:
        mel = processor(audio=clip / np.float32(32768), sampling_rate=16_000, return_tensors="pt")
        ids = model.generate(mel.input_features, num_beams=1, do_sample=False)
        texts.append(processor.batch_decode(ids, skip_special_tokens=True)[0])
    return texts


# --- errors first


def test_an_existing_target_is_refused(loaded, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(ModelError, match="there exists already") as error:
        export_hf(loaded, tmp_path / "there", language="cs")
    assert error.value.hint == "remove it, or export to another folder"


def test_a_wrong_language_leaves_nothing_behind(loaded, tmp_path):
    with pytest.raises(UsageError, match="no language 'xx'"):
        export_hf(loaded, tmp_path / "out", language="xx")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_nothing_behind(loaded, tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    (tmp_path / ".out.partial").mkdir()  # left by a kill
    monkeypatch.setattr("whispertune.ship.hf.save_file", full)
    with pytest.raises(MachineError) as error:
        export_hf(loaded, tmp_path / "out", language="cs")
    assert error.value.what.startswith(f"cannot write {tmp_path}/out: No space left on device (")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real
def test_the_proof_fails_for_damaged_weights(short, noise, tmp_path):
    """Case 29."""
    folder = tmp_path / "damaged"
    shutil.copytree(short, folder)
    expected = said_by(folder, noise[:1])
    weights = load_file(folder / "model.safetensors")
    weights["model.decoder.layers.0.fc2.weight"].zero_()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="is not the model that was trained: clip 0 gives"):
        prove_hf(folder, noise[:1], expected)


@pytest.mark.real
def test_the_proof_fails_where_the_folder_does_not_load(short, noise, tmp_path):
    """Case 6."""
    folder = tmp_path / "damaged"
    shutil.copytree(short, folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match="does not load or run in plain transformers"):
        prove_hf(folder, noise[:1], ["anything"])


# --- what is written


def test_every_file_is_there(exported):
    """Cases 6 and 16: what transformers 5 no longer writes, converters still look for."""
    assert {path.name for path in exported.iterdir()} == {
        "model.safetensors",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "normalizer.json",
        "preprocessor_config.json",
    }
    added = json.loads((exported / "added_tokens.json").read_text())
    vocabulary = json.loads((exported / "vocab.json").read_text(encoding="utf-8"))
    assert len(vocabulary | added) == 51865
    assert len((exported / "merges.txt").read_text(encoding="utf-8").splitlines()) == 1 + 50_000
    assert json.loads((exported / "preprocessor_config.json").read_text())["feature_size"] == 80


def test_nothing_of_this_machine_is_written(exported, tiny_model_folder):
    for path in exported.glob("*.json"):
        assert str(tiny_model_folder.parent) not in path.read_text(encoding="utf-8"), path.name
        assert str(exported) not in path.read_text(encoding="utf-8"), path.name


def test_configuration(exported):
    """Cases 7 and 48: no legacy fields; the task is always there."""
    config = json.loads((exported / "config.json").read_text())
    decoding = json.loads((exported / "generation_config.json").read_text())
    for field in ("forced_decoder_ids", "suppress_tokens"):
        assert field not in config
        assert decoding.get(field) is None or field == "suppress_tokens"
    assert "max_length" not in config
    assert config["dtype"] == config["torch_dtype"] == "float32"
    assert (decoding["language"], decoding["task"]) == ("<|cs|>", "transcribe")
    assert decoding["max_length"] == 448
    assert decoding["lang_to_id"]["<|cs|>"] == 50283
    assert decoding["suppress_tokens"][:2] == [1, 2]


def test_labels_made_with_the_exported_tokenizer_have_language_and_task(exported):
    """Case 49, for whoever goes on from this folder."""
    tokenizer = AutoProcessor.from_pretrained(exported).tokenizer
    assert tokenizer.convert_ids_to_tokens(tokenizer(" ahoj").input_ids[:4]) == [
        "<|startoftranscript|>",
        "<|cs|>",
        "<|transcribe|>",
        "<|notimestamps|>",
    ]
    assert tokenizer.decode([50258, 50364 + 25, 50257], decode_with_timestamps=True).endswith(
        "<|0.50|><|endoftext|>"
    )


def test_english_normalising_after_reload(exported):
    """Case 6."""
    assert AutoProcessor.from_pretrained(exported).tokenizer.normalize("colour") == "color"


def test_reload_has_every_weight_and_a_tied_head(exported, loaded):
    """Case 43."""
    model, info = AutoModelForSpeechSeq2Seq.from_pretrained(exported, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.proj_out.weight.data_ptr() == model.model.decoder.embed_tokens.weight.data_ptr()
    for name, weight in loaded.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name
    assert load(resolve(str(exported))).fingerprint == loaded.fingerprint


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.real
def test_smaller_types(loaded, tmp_path, dtype):
    export_hf(loaded, tmp_path / "hf", language=None, dtype=dtype)
    assert {w.dtype for w in load_file(tmp_path / "hf" / "model.safetensors").values()} == {
        getattr(torch, dtype)
    }
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["dtype"] == dtype
    back = load(resolve(str(tmp_path / "hf")))
    for name, weight in loaded.model.state_dict().items():
        assert torch.equal(back.model.state_dict()[name], weight.to(getattr(torch, dtype)).float()), name


@pytest.mark.real
def test_english_only_has_no_language_and_no_task(tiny_en_folder, tmp_path):
    export_hf(load(resolve(str(tiny_en_folder))), tmp_path / "hf", language="en")
    decoding = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    assert decoding["is_multilingual"] is False
    assert not {"language", "task", "lang_to_id", "task_to_id"} & decoding.keys()
    tokenizer = AutoProcessor.from_pretrained(tmp_path / "hf").tokenizer
    assert len(tokenizer(" x").input_ids) == 4  # start, no times, x, end


@pytest.mark.real
def test_the_proof(short, noise):
    """A fresh process, offline, plain transformers: the same texts as here."""
    expected = said_by(short, noise)
    assert all(expected)
    assert prove_hf(short, noise, expected) == [text.strip() for text in expected]


@pytest.mark.real
def test_released_weights_survive_export(shared_speech, tmp_path):
    """Base, real speech: what the loaded model says is what plain transformers says from the folder."""
    loaded = load(resolve("base"))
    clips = [read_audio(path) for path in sorted((shared_speech / "czech" / "audio").iterdir())[:2]]
    folder = export_hf(loaded, tmp_path / "base", language="cs")
    processor = AutoProcessor.from_pretrained(folder)
    layout = LabelLayout.from_tokenizer(loaded.tokenizer, loaded.model.config, "cs")
    expected = []
    for clip in clips:
        mel = processor(
            audio=clip / np.float32(32768), sampling_rate=16_000, return_tensors="pt"
        ).input_features
        ids = loaded.model.generate(mel, num_beams=1, do_sample=False, language="cs", task="transcribe")[0]
        expected.append(layout.decode(ids.tolist()))
    assert all(expected)
    prove_hf(folder, clips, expected)
