"""The Hugging Face folder: every file that plain `transformers` or a converter looks for; and its proof."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (
    GenerationConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

from whispertune.clip import SAMPLE_RATE, WINDOW_SAMPLES
from whispertune.engine.model import LoadedModel
from whispertune.engine.tokens import LabelLayout, Task
from whispertune.errors import ModelError
from whispertune.run import flush, partial_folder, writing

Dtype = Literal["float32", "float16", "bfloat16"]
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def export_hf(
    loaded: LoadedModel,
    folder: Path,
    *,
    language: str | None,
    task: Task = "transcribe",
    dtype: Dtype = "float32",
) -> Path:
    """Write a model as a Hugging Face folder that loads offline with plain `transformers`.

    Everything is written beside the target and renamed, so that the folder is whole or not there.

    Args:
        loaded: the model; LoRA already merged into it.
        language: the default language of `generate` (a code or a name); None leaves it to detection, and is
            all that an `.en` model needs.

    Raises:
        ModelError: the folder exists.
        UsageError: a language or task that the model does not have.
        MachineError: the disk is full or cannot be written.
    """
    assert isinstance(loaded.model, WhisperForConditionalGeneration), type(loaded.model)
    if folder.exists():
        raise ModelError(f"{folder} exists already", "remove it, or export to another folder")
    code = None
    if language is not None or not loaded.is_multilingual:
        layout = LabelLayout.from_tokenizer(loaded.tokenizer, loaded.model.config, language, task)
        code, task = layout.language, layout.task
    with writing(folder), partial_folder(folder.with_name(f".{folder.name}.partial")) as partial:
        _write_weights(loaded, partial, _DTYPES[dtype])
        _generation_config(loaded, code, task).save_pretrained(partial)
        _write_tokenizer(loaded, partial, code, task)
        WhisperFeatureExtractor(feature_size=loaded.n_mels).save_pretrained(partial)
        flush(partial)
        partial.rename(folder)
    return folder


def _write_weights(loaded: LoadedModel, folder: Path, dtype: torch.dtype) -> None:
    model = loaded.model
    embedding = model.model.decoder.embed_tokens.weight
    assert model.proj_out.weight.data_ptr() == embedding.data_ptr(), "the output head is not tied"
    state = {
        name: weight.detach().cpu().to(dtype).contiguous()
        for name, weight in model.state_dict().items()
        if name != "proj_out.weight"
    }
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors writes it private
    config = model.config.to_dict()
    for legacy in (
        "forced_decoder_ids",
        "suppress_tokens",
        "begin_suppress_tokens",
        "max_length",
        "_name_or_path",
    ):
        config.pop(legacy, None)
    # transformers 5 reads `dtype`, its predecessors and other tools `torch_dtype`.
    config |= {
        "dtype": str(dtype).removeprefix("torch."),
        "tie_word_embeddings": True,
        "begin_suppress_tokens": None,
    }
    config["torch_dtype"] = config["dtype"]
    config["architectures"] = ["WhisperForConditionalGeneration"]
    _write_json(folder / "config.json", config)


def _generation_config(loaded: LoadedModel, code: str | None, task: Task) -> GenerationConfig:
    fields = loaded.model.generation_config.to_dict()
    assert fields.get("forced_decoder_ids") is None
    if loaded.is_multilingual:
        fields |= {"task": task, "language": None if code is None else f"<|{code}|>"}
    return GenerationConfig(**fields)


def _write_tokenizer(loaded: LoadedModel, folder: Path, code: str | None, task: Task) -> None:
    """transformers 5 writes only tokenizer.json; converters and older versions need the others too."""
    loaded.tokenizer.save_pretrained(folder)  # a copy: the caller's keeps its prefix
    tokenizer = WhisperTokenizer.from_pretrained(str(folder), local_files_only=True)
    if loaded.is_multilingual:
        tokenizer.set_prefix_tokens(language=code, task=task)
    if tokenizer.english_spelling_normalizer is None:
        tokenizer.english_spelling_normalizer = english_spelling()
    tokenizer.save_pretrained(folder)
    tokenizer.save_vocabulary(str(folder))  # vocab.json, merges.txt, normalizer.json
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    added = {str(token): i for i, token in tokenizer.added_tokens_decoder.items()}
    _write_json(folder / "added_tokens.json", {t: i for t, i in added.items() if t not in vocabulary})
    eot = tokenizer.eos_token
    special = [str(token) for _, token in sorted(tokenizer.added_tokens_decoder.items()) if token.special]
    _write_json(
        folder / "special_tokens_map.json",
        {
            "additional_special_tokens": special,
            **dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), eot),
        },
    )
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    for passing in ("is_local", "local_files_only", "normalizer_file", "name_or_path"):
        settings.pop(passing, None)  # how it was loaded here, not what it is
    # transformers 5 lists them under another key, which its predecessors take for a dictionary and fail on.
    settings.pop("extra_special_tokens", None)
    settings["additional_special_tokens"] = special
    _write_json(path, settings | {"language": code, "task": task if loaded.is_multilingual else None})


def english_spelling() -> dict[str, str]:
    """British to American spellings, as OpenAI's English normaliser has them.

    From `english.json` of the package whisper-normalizer (MIT): transformers has the code but not the table.
    """
    return json.loads(
        (files("whisper_normalizer") / "normalizers" / "english.json").read_text(encoding="utf-8")
    )


def _write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# --- proof

# Runs in a process of its own and knows nothing of whispertune: what a user of plain transformers would
# write.
_PROOF = """
import json, sys
import numpy as np, torch
from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor
folder, clips, answer = sys.argv[1:]
model, info = AutoModelForSpeechSeq2Seq.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
model.eval()
processor = AutoProcessor.from_pretrained(folder)
texts = []
with np.load(clips) as audio:
    for name in audio.files:
        features = processor(
            audio=audio[name].astype(np.float32) / 32768, sampling_rate=16000, return_tensors="pt"
        ).input_features
        with torch.inference_mode():
            ids = model.generate(features, num_beams=1, do_sample=False)
        texts.append(processor.batch_decode(ids, skip_special_tokens=True)[0].strip())
json.dump({
    "texts": texts,
    "missing": sorted(map(str, info["missing_keys"])),
    "unexpected": sorted(map(str, info["unexpected_keys"])),
    "tied": model.proj_out.weight.data_ptr() == model.model.decoder.embed_tokens.weight.data_ptr(),
    "spelling": processor.tokenizer.normalize("colour"),
}, open(answer, "w"))
"""


def prove_hf(folder: Path, clips_audio: Sequence[np.ndarray], expected_texts: Sequence[str]) -> list[str]:
    """Transcribe clips with the exported folder in a fresh process, offline, with plain `transformers`.

    Args:
        clips_audio: (samples,) int16 at 16 kHz each, at most 30 s.
        expected_texts: what the model said before the export, greedily, in the language and task of the
            export.

    Returns:
        The texts, equal to the expected ones (outer spaces aside).

    Raises:
        ModelError: it does not load as it should, or a text differs: the export is not the same model.
    """
    assert len(clips_audio) == len(expected_texts)
    for audio in clips_audio:
        assert audio.dtype == np.int16 and len(audio) <= WINDOW_SAMPLES, (
            audio.dtype,
            len(audio) / SAMPLE_RATE,
        )
    with (
        writing(folder.parent, "the clips of the proof to a temporary folder"),
        tempfile.TemporaryDirectory(prefix="whispertune-proof-") as work,
    ):
        clips, answer = Path(work, "clips.npz"), Path(work, "answer.json")
        named: dict[str, Any] = {f"clip{i:04d}": audio for i, audio in enumerate(clips_audio)}
        np.savez(clips, **named)
        done = subprocess.run(
            [sys.executable, "-c", _PROOF, str(folder.resolve()), str(clips), str(answer)],
            cwd=work,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise ModelError(f"{folder} does not load or run in plain transformers: {last}")
        found = json.loads(answer.read_text(encoding="utf-8"))
    if found["missing"] or found["unexpected"]:
        raise ModelError(
            f"{folder} reloads with weights missing {found['missing']} or unexpected {found['unexpected']}"
        )
    if not found["tied"]:
        raise ModelError(f"{folder} reloads with an output head that is not the token embedding")
    if found["spelling"] != "color":
        raise ModelError(
            f"{folder} normalises 'colour' to {found['spelling']!r} after reload, not to 'color'"
        )
    for number, (text, expected) in enumerate(zip(found["texts"], expected_texts, strict=True)):
        if text != expected.strip():
            raise ModelError(
                f"{folder} is not the model that was trained: clip {number} gives {text!r}, "
                f"{expected.strip()!r} expected"
            )
    return found["texts"]
