"""Clips of a corpus through a model: the texts on which before and after are judged."""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

from transformers import WhisperConfig

from whispertune.clip import Clip
from whispertune.corpus import Corpus
from whispertune.engine.model import LoadedModel, LoadedTokenizer, load_tokenizer
from whispertune.engine.source import resolve
from whispertune.engine.tokens import LabelLayout
from whispertune.engine.transcribe import DecodeOptions, Progress, transcribe
from whispertune.plan import ModelFacts
from whispertune.scoring.keywords import Keyword

ShouldStop = Callable[[], bool]


class Layouts:
    """The label layout of each clip: its own language, else the one given, with the model's own tokens.

    Only tokenizer and configuration are read, so labels are checked before any weight is loaded.
    """

    def __init__(self, model: str, language: str | None, task: str) -> None:
        self._name = model
        self._language = language
        self._task = task
        self._made: dict[str | None, LabelLayout] = {}

    def of(self, clip: Clip) -> LabelLayout:
        """Raises ModelError where a multilingual model is given no language."""
        return self._layout(clip.language or self._language)

    @cached_property
    def default(self) -> LabelLayout:
        """The layout of the language given, else of the first clip's that was asked for."""
        if self._language is None and self._made:
            return next(iter(self._made.values()))
        return self._layout(self._language)

    def _layout(self, language: str | None) -> LabelLayout:
        if language not in self._made:
            files = self._files
            self._made[language] = LabelLayout.from_tokenizer(files.tokenizer, files, language, self._task)
        return self._made[language]

    @cached_property
    def _files(self) -> LoadedTokenizer:
        return load_tokenizer(resolve(self._name))

    @cached_property
    def facts(self) -> ModelFacts:
        sizes = WhisperConfig(**self._files.sizes)
        return ModelFacts(
            name=self._name,
            width=sizes.d_model,
            encoder_layers=sizes.encoder_layers,
            decoder_layers=sizes.decoder_layers,
            parameters=_parameters(sizes),
        )


class JudgedSet(NamedTuple):
    """Clips that models are judged on."""

    name: str
    corpus: Corpus
    clips: list[Clip]


@dataclass(frozen=True)
class Evaluation:
    """What models are judged on and how they are decoded: the same for each, so that they compare."""

    sets: Sequence[JudgedSet]
    """The test clips first, the guards behind them."""
    layouts: Layouts
    options: DecodeOptions
    keywords: tuple[Keyword, ...] = ()
    seed: int = 0

    def of(self, loaded: LoadedModel, progress: Callable[[str], Progress]) -> dict[str, Any]:
        """What a model makes of the sets.

        Args:
            loaded: on its device.
            progress: gives, for the name of a set, what is called with (clips done, clips in all).

        Returns:
            `{"model", "decode", "sets": {name: [{"id", "language", "reference", "hypothesis"}]}, "seconds":
            {name: decoding time}}`, clips in their order.
        """
        rows, seconds = {}, {}
        for judged in self.sets:
            begin = time.monotonic()
            rows[judged.name] = self._rows(loaded, judged, progress(judged.name))
            seconds[judged.name] = round(time.monotonic() - begin, 2)
        return {
            "model": {"name": loaded.name, "fingerprint": loaded.fingerprint},
            "decode": self.options.as_dict(),
            "sets": rows,
            "seconds": seconds,
        }

    def language_of(self, clip: Clip) -> str:
        """The language a clip is decoded in; `en` for an `.en` model, which is told none."""
        return self.layouts.of(clip).language or "en"

    def _rows(self, loaded: LoadedModel, judged: JudgedSet, progress: Progress) -> list[dict[str, str]]:
        texts = transcribe(
            loaded.model,
            [judged.corpus.audio(clip) for clip in judged.clips],
            [self.layouts.of(clip) for clip in judged.clips],
            self.options,
            progress,
        )
        return [
            {
                "id": clip.id,
                "language": self.language_of(clip),
                "reference": clip.text,
                "hypothesis": text,
            }
            for clip, text in zip(judged.clips, texts, strict=True)
        ]


def capped(clips: Sequence[Clip], minutes: float | Literal["all"]) -> list[Clip]:
    """At most so many minutes of clips, drawn by the hash of their id: the same ones every time."""
    if minutes == "all":
        return list(clips)
    left = minutes * 60
    chosen = set()
    for clip in sorted(clips, key=lambda clip: hashlib.sha256(clip.id.encode()).digest()):
        left -= clip.duration_s
        if left < 0 and chosen:
            break
        chosen.add(clip.id)
    return [clip for clip in clips if clip.id in chosen]


def _parameters(config: WhisperConfig) -> int:
    """Parameters of a Whisper of these dimensions, counted from its architecture (tied head counted once)."""
    d, ff_e, ff_d = config.d_model, config.encoder_ffn_dim, config.decoder_ffn_dim
    attention = 4 * d * d + 3 * d  # k_proj has no bias
    encoder = config.num_mel_bins * d * 3 + d + 3 * d * d + d + config.max_source_positions * d + 2 * d
    encoder += config.encoder_layers * (attention + 2 * d * ff_e + ff_e + d + 4 * d)
    decoder = config.vocab_size * d + config.max_target_positions * d + 2 * d
    decoder += config.decoder_layers * (2 * attention + 2 * d * ff_d + ff_d + d + 6 * d)
    return encoder + decoder
