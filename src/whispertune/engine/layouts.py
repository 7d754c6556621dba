"""How the text of each clip is written in tokens, read from the model's own tokenizer and configuration."""

from functools import cached_property

from transformers import WhisperConfig

from whispertune.clip import Clip
from whispertune.engine.model import LoadedTokenizer, load_tokenizer
from whispertune.engine.source import resolve
from whispertune.engine.tokens import LabelLayout
from whispertune.plan import ModelFacts


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


def _parameters(config: WhisperConfig) -> int:
    """Parameters of a Whisper of these dimensions, counted from its architecture (tied head counted once)."""
    d, ff_e, ff_d = config.d_model, config.encoder_ffn_dim, config.decoder_ffn_dim
    attention = 4 * d * d + 3 * d  # k_proj has no bias
    encoder = config.num_mel_bins * d * 3 + d + 3 * d * d + d + config.max_source_positions * d + 2 * d
    encoder += config.encoder_layers * (attention + 2 * d * ff_e + ff_e + d + 4 * d)
    decoder = config.vocab_size * d + config.max_target_positions * d + 2 * d
    decoder += config.decoder_layers * (2 * attention + 2 * d * ff_d + ff_d + d + 6 * d)
    return encoder + decoder
