"""Free-running greedy decoding: the encoder once, a key-value cache, and rows that stop singly.

This is how baseline and tuned model are judged, so the options are values that the report prints, and the
same for both.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from whispertune.clip import SAMPLE_RATE, WINDOW_SAMPLES
from whispertune.engine.features import log_mel
from whispertune.engine.model import LoadedModel
from whispertune.engine.tokens import LabelLayout
from whispertune.recipe import EvalSection

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How text is decoded; two scores are only comparable where these are equal."""

    max_new_tokens: int = 224
    batch: int = 16
    precision: str = "fp32"
    engine: str = "torch"
    search: str = "greedy"
    timestamps: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def decode_options(section: EvalSection, device: str, precision: str) -> DecodeOptions:
    """The options of a run: on a CPU always fp32, the numbers that every engine there can be held to."""
    return DecodeOptions(section.max_new_tokens, section.batch, "fp32" if device == "cpu" else precision)


@torch.inference_mode()
def transcribe(
    model: WhisperForConditionalGeneration,
    audio: Sequence[np.ndarray],
    layouts: Sequence[LabelLayout],
    options: DecodeOptions,
    progress: Progress | None = None,
) -> list[str]:
    """The text of each clip of at most 30 s.

    Args:
        model: on its device, float32; the suppressed tokens are those of its generation config.
        audio: (samples,) int16 at 16 kHz each.
        layouts: the layout of each clip: its prefix says language and task.
        progress: called with (clips done, clips in all).
    """
    assert len(audio) == len(layouts)
    was_training = model.training
    model.eval()
    texts = [""] * len(audio)
    done = 0
    # Rows of one batch share a prefix, so clips are taken language by language, in order.
    by_prefix: dict[tuple[int, ...], list[int]] = {}
    for index, layout in enumerate(layouts):
        by_prefix.setdefault(tuple(layout.prefix), []).append(index)
    for indices in by_prefix.values():
        for first in range(0, len(indices), options.batch):
            chosen = indices[first : first + options.batch]
            layout = layouts[chosen[0]]
            ids = greedy_ids(model, [audio[i] for i in chosen], layout, options)
            for index, row in zip(chosen, ids, strict=True):
                texts[index] = layout.decode(row)
            done += len(chosen)
            if progress is not None:
                progress(done, len(audio))
    model.train(was_training)
    return texts


@torch.inference_mode()
def greedy_ids(
    model: WhisperForConditionalGeneration,
    audio: Sequence[np.ndarray],
    layout: LabelLayout,
    options: DecodeOptions,
) -> list[list[int]]:
    """Token ids after the prefix, up to the end token (left out), for one batch of clips of at most 30 s."""
    device = model.device
    kind = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[options.precision]
    # Features are always float32: in half precision the powers of quiet speech would be rounded away.
    features = log_mel(stacked(audio).to(device), model.config.num_mel_bins)
    with torch.autocast(device.type, kind, enabled=kind is not None):
        encoded = model.model.encoder(features).last_hidden_state
        return _greedy(model, encoded, layout, options.max_new_tokens)


def _greedy(
    model: WhisperForConditionalGeneration, encoded: torch.Tensor, layout: LabelLayout, max_new_tokens: int
) -> list[list[int]]:
    device = encoded.device
    always, at_first = _suppressed(model, device)
    rows: list[list[int]] = [[] for _ in range(len(encoded))]
    alive = list(range(len(encoded)))
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    fed = torch.tensor([layout.prefix] * len(encoded), device=device)
    length = min(max_new_tokens, layout.max_target_positions - len(layout.prefix))
    for step in range(length):
        hidden = model.model.decoder(
            input_ids=fed, encoder_hidden_states=encoded, cache=cache, use_cache=True
        ).last_hidden_state[:, -1]
        logits = model.proj_out(hidden).float()
        logits.index_fill_(1, always, -torch.inf)
        if step == 0:
            logits.index_fill_(1, at_first, -torch.inf)
        chosen = logits.argmax(-1)
        going = chosen != layout.eot
        kept = []
        for row, token, goes_on in zip(alive, chosen.tolist(), going.tolist(), strict=True):
            if goes_on:
                rows[row].append(token)
                kept.append(row)
        if not kept:
            break
        if len(kept) < len(alive):  # finished rows leave the batch, so that one loop does not pay for all
            index = going.nonzero().squeeze(1)
            cache.batch_select_indices(index)
            encoded, chosen = encoded[index], chosen[index]
        alive, fed = kept, chosen[:, None]
    return rows


def stacked(audio: Sequence[np.ndarray]) -> torch.Tensor:
    """(B, 480000) int16, each clip followed by silence.

    Clips over 30 s never come here: `import` rejects them and long files are cut by `transcribe_file`.
    """
    window = np.zeros((len(audio), WINDOW_SAMPLES), np.int16)
    for row, samples in zip(window, audio, strict=True):
        assert len(samples) <= WINDOW_SAMPLES, f"{len(samples) / SAMPLE_RATE:.2f} s"
        row[: len(samples)] = samples
    return torch.from_numpy(window)


def _suppressed(
    model: WhisperForConditionalGeneration, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    config = model.generation_config
    always = [token for token in (config.suppress_tokens or []) if token >= 0]
    first = list(config.begin_suppress_tokens or [])
    return (
        torch.tensor(always, dtype=torch.int64, device=device),
        torch.tensor(first, dtype=torch.int64, device=device),
    )


@torch.inference_mode()
def transcribe_long(loaded: LoadedModel, samples: np.ndarray, layout: LabelLayout) -> list[dict[str, Any]]:
    """Segments of a recording of any length, window after window by the model's own time tokens.

    The sequential algorithm of Whisper (arXiv 2212.04356, section 4.5) with its temperature fallback, as
    transformers has it.

    Returns:
        `[{"start", "end", "text"}]`, seconds.
    """
    features = WhisperFeatureExtractor(feature_size=loaded.n_mels)(
        samples.astype(np.float32) / 32768,
        sampling_rate=SAMPLE_RATE,
        return_tensors="pt",
        truncation=False,
        padding="longest",
        return_attention_mask=True,
    )
    told = {"language": layout.language, "task": layout.task} if layout.language else {}
    torch.manual_seed(0)  # the fallback samples
    with _quiet():
        found = loaded.model.generate(
            features.input_features.to(loaded.model.device),
            attention_mask=features.attention_mask.to(loaded.model.device),
            return_timestamps=True,
            return_segments=True,
            condition_on_prev_tokens=False,
            temperature=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
            compression_ratio_threshold=1.35,
            logprob_threshold=-1.0,
            no_speech_threshold=0.6,
            **told,
        )
    seconds = len(samples) / SAMPLE_RATE  # behind it the last window is silence, where nothing is said
    return [
        {
            "start": round(float(segment["start"]), 2),
            "end": round(min(float(segment["end"]), seconds), 2),
            "text": layout.decode(segment["tokens"].tolist()),
        }
        for segment in found["segments"][0]
        if float(segment["start"]) < seconds
    ]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the notice of transformers about arguments that it hands on to itself."""
    logger = logging.getLogger("transformers.generation.utils")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
