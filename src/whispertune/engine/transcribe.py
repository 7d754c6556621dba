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
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Of the fallback of openai/whisper's transcribe.py: the first is greedy, the others draw."""


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How text is decoded; two scores are only comparable where these are equal."""

    max_new_tokens: int = 224
    batch: int = 16
    precision: str = "fp32"
    engine: str = "torch"
    search: str = "greedy"
    timestamps: bool = False
    """Time tokens stand in the ids: see `_timed`."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class Decoded:
    """What was decoded of one clip, and how sure the model was."""

    ids: list[int]
    """Behind the prefix, up to the end token (left out)."""
    log_probability: float = 0.0
    """Mean over the tokens and the end token: `avg_logprob` of openai/whisper's decoding.py."""
    no_speech: float = 0.0
    """Probability of the no-speech token behind the start token."""


def decode_options(section: EvalSection, device: str, precision: str) -> DecodeOptions:
    """The options of a run: on a CPU always fp32, the numbers that every engine there can be held to."""
    return DecodeOptions(section.max_new_tokens, section.batch, "fp32" if device == "cpu" else precision)


def transcribe(
    model: WhisperForConditionalGeneration,
    audio: Sequence[np.ndarray],
    layouts: Sequence[LabelLayout],
    options: DecodeOptions,
    progress: Progress | None = None,
    prompts: Sequence[str] = (),
) -> list[str]:
    """The text of each clip of at most 30 s; arguments as in `decode`."""
    decoded = decode(model, audio, layouts, options, progress, prompts)
    return [layout.decode(each.ids) for layout, each in zip(layouts, decoded, strict=True)]


@torch.inference_mode()
def decode(
    model: WhisperForConditionalGeneration,
    audio: Sequence[np.ndarray],
    layouts: Sequence[LabelLayout],
    options: DecodeOptions,
    progress: Progress | None = None,
    prompts: Sequence[str] = (),
) -> list[Decoded]:
    """Free-running greedy decoding of clips of at most 30 s.

    Args:
        model: on its device, float32; the suppressed tokens are those of its generation config.
        audio: (samples,) int16 at 16 kHz each.
        layouts: the layout of each clip: its prefix says language and task.
        progress: called with (clips done, clips in all).
        prompts: the text before each clip, as `initial_prompt` elsewhere; none for all if left out.
    """
    assert len(audio) == len(layouts) == len(prompts or audio)
    was_training = model.training
    model.eval()
    found: dict[int, Decoded] = {}
    before = [
        _prompt_ids(layout, text) for layout, text in zip(layouts, prompts or [""] * len(audio), strict=True)
    ]
    # Rows of one batch share a prefix, and the length of their prompts, so clips are taken in that order.
    alike: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for index, layout in enumerate(layouts):
        alike.setdefault((layout.prefix, len(before[index])), []).append(index)
    for indices in alike.values():
        for first in range(0, len(indices), options.batch):
            chosen = indices[first : first + options.batch]
            rows = _batch(
                model, [audio[i] for i in chosen], layouts[chosen[0]], options, [before[i] for i in chosen]
            )
            found.update(zip(chosen, rows, strict=True))
            if progress is not None:
                progress(len(found), len(audio))
    model.train(was_training)
    return [found[index] for index in range(len(audio))]


def greedy_ids(
    model: WhisperForConditionalGeneration,
    audio: Sequence[np.ndarray],
    layout: LabelLayout,
    options: DecodeOptions,
) -> list[list[int]]:
    """Token ids after the prefix, up to the end token (left out), for one batch of clips of at most 30 s."""
    with torch.inference_mode():
        return [row.ids for row in _batch(model, audio, layout, options, [[]] * len(audio))]


@torch.inference_mode()
def detect_languages(
    model: WhisperForConditionalGeneration,
    audio: Sequence[np.ndarray],
    layout: LabelLayout,
    options: DecodeOptions,
) -> list[str]:
    """The likeliest language of each clip by a multilingual model: its code."""
    assert layout.languages, "an English-only model has no languages"
    codes = list(dict.fromkeys(layout.languages))
    tokens = torch.tensor([layout.languages[code] for code in codes], device=model.device)
    found = []
    for first in range(0, len(audio), options.batch):
        with _encoded(model, audio[first : first + options.batch], options) as encoded:
            start = torch.full((len(encoded), 1), layout.sot, device=model.device)
            hidden = model.model.decoder(input_ids=start, encoder_hidden_states=encoded).last_hidden_state
            logits = model.proj_out(hidden[:, 0]).float()
        found += [codes[i] for i in logits[:, tokens].argmax(-1).tolist()]
    return found


def _prompt_ids(layout: LabelLayout, text: str) -> list[int]:
    """`<|startofprev|>` and the newest ids of a prompt: openai/whisper keeps half the positions, less one."""
    ids = layout.encode(text)[-(layout.max_target_positions // 2 - 1) :]
    return [layout.prev, *ids] if ids else []


@contextmanager
def _encoded(
    model: WhisperForConditionalGeneration, audio: Sequence[np.ndarray], options: DecodeOptions
) -> Iterator[torch.Tensor]:
    """(B, 1500, width), and the precision in which to go on."""
    device = model.device
    kind = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[options.precision]
    # Features are always float32: in half precision the powers of quiet speech would be rounded away.
    features = log_mel(stacked(audio).to(device), model.config.num_mel_bins)
    with torch.autocast(device.type, kind, enabled=kind is not None):
        yield model.model.encoder(features).last_hidden_state


def _batch(
    model: WhisperForConditionalGeneration,
    audio: Sequence[np.ndarray],
    layout: LabelLayout,
    options: DecodeOptions,
    before: Sequence[list[int]],
) -> list[Decoded]:
    with _encoded(model, audio, options) as encoded:
        return _greedy(model, encoded, layout, options, before)


def _greedy(
    model: WhisperForConditionalGeneration,
    encoded: torch.Tensor,
    layout: LabelLayout,
    options: DecodeOptions,
    before: Sequence[list[int]],
) -> list[Decoded]:
    """`before`: the prompt of each row, all of one length."""
    device = encoded.device
    always, at_first = _suppressed(model, device)
    rows = [Decoded([]) for _ in range(len(encoded))]
    alive = list(range(len(encoded)))
    index, sums = torch.arange(len(encoded), device=device), torch.zeros(len(encoded), device=device)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    prefix = layout.prefix_timestamps if options.timestamps else layout.prefix
    fed = torch.tensor([[*prompt, *prefix] for prompt in before], device=device)
    length = min(options.max_new_tokens, layout.max_target_positions - fed.shape[1])
    for step in range(length):
        hidden = model.model.decoder(
            input_ids=fed, encoder_hidden_states=encoded, cache=cache, use_cache=True
        ).last_hidden_state
        if step == 0:
            first = model.proj_out(hidden[:, len(before[0])]).float()
            no_speech = first.softmax(-1)[:, layout.no_speech].tolist()
        logits = model.proj_out(hidden[:, -1]).float()
        logits.index_fill_(1, always, -torch.inf)
        if step == 0:
            logits.index_fill_(1, at_first, -torch.inf)
        if options.timestamps:
            _timed(logits, layout)
        chosen = logits.argmax(-1)
        sums[index] += logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(-1)
        going = chosen != layout.eot
        kept = []
        for row, token, goes_on in zip(alive, chosen.tolist(), going.tolist(), strict=True):
            if goes_on:
                rows[row].ids.append(token)
                kept.append(row)
        if not kept:
            break
        if len(kept) < len(alive):  # finished rows leave the batch, so that one loop does not pay for all
            left = going.nonzero().squeeze(1)
            cache.batch_select_indices(left)
            encoded, chosen, index = encoded[left], chosen[left], index[left]
        alive, fed = kept, chosen[:, None]
    for row, total, silent in zip(rows, sums.tolist(), no_speech, strict=True):
        row.log_probability, row.no_speech = total / (len(row.ids) + 1), silent
    return rows


def _timed(logits: torch.Tensor, layout: LabelLayout) -> None:
    """Where time tokens together are likelier than any other token, it is one of them.

    One moment is spread over neighbouring tokens, 0.02 s apart, so each alone loses against a word: the last
    rule of `ApplyTimestampRules` in openai/whisper's decoding.py. Its others force a time at the beginning,
    pairs, and an order; here the model is left to do so by itself.
    """
    logits[:, layout.no_timestamps] = -torch.inf
    times, others = logits[:, layout.timestamp_begin :], logits[:, : layout.timestamp_begin]
    is_time = times.logsumexp(-1) > others.amax(-1)
    others.masked_fill_(is_time[:, None], -torch.inf)


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
def transcribe_long(
    loaded: LoadedModel,
    samples: np.ndarray,
    layout: LabelLayout,
    temperatures: Sequence[float] = TEMPERATURES,
) -> list[dict[str, Any]]:
    """Segments of a recording of any length, window after window by the model's own time tokens.

    The sequential algorithm of Whisper (arXiv 2212.04356, section 4.5) with its temperature fallback, as
    transformers has it.

    Args:
        temperatures: tried in order until a window's text is neither repetitive nor unlikely.

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
            temperature=tuple(temperatures),
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
