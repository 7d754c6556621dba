"""The layout of a label row, read from the model's own tokenizer; no token id is written down here.

Decoder input:  `<|startoftranscript|> <|lang|> <|task|> <|notimestamps|> text`; `.en` models have no language
and no task. Targets are the same moved by one and end in one `<|endoftext|>`.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal, Protocol

import tokenizers
from transformers import WhisperTokenizer
from transformers.models.whisper.tokenization_whisper import LANGUAGES, TO_LANGUAGE_CODE

from whispertune.clip import WINDOW_S
from whispertune.errors import ModelError, TrainingError, UsageError

Task = Literal["transcribe", "translate"]

TIME_STEP_S = 0.02
"""Seconds between two time tokens: one encoder position."""
IGNORED = -100
"""The label that the loss leaves out."""
BYTES = 256
MERGES = 50_000
"""Whisper's byte-level BPE is GPT-2's: 256 bytes and 50,000 merges (Radford et al. 2022, section 2.2)."""

# Whisper does not begin their text with a space (`split_to_word_tokens` in openai/whisper's tokenizer.py has
# the same list); the scores know some more languages without spaces between words.
_NO_LEADING_SPACE = frozenset({"zh", "ja", "th", "lo", "my", "yue"})


class ModelLimits(Protocol):
    """What of a model's configuration a label depends on."""

    @property
    def max_target_positions(self) -> int: ...


@dataclass(frozen=True)
class LabelLayout:
    """Token ids of one language and task, and text to ids.

    Rows of another language of the same model: `for_language`.
    """

    tokenizer: WhisperTokenizer = field(repr=False, compare=False)
    prefix: tuple[int, ...]
    """`<|startoftranscript|> <|lang|> <|task|> <|notimestamps|>` (`.en`: first and last)."""
    prefix_timestamps: tuple[int, ...]
    """The same without `<|notimestamps|>`."""
    sot: int
    eot: int
    prev: int
    no_timestamps: int
    no_speech: int
    timestamp_begin: int
    """`<|0.00|>`."""
    max_target_positions: int
    language: str | None
    """A code such as `cs`; None for `.en` models."""
    task: Task
    languages: Mapping[str, int] = field(repr=False, compare=False)
    """Every language code the model has a token for; empty for `.en` models."""
    tasks: Mapping[str, int] = field(repr=False, compare=False)
    bpe: tokenizers.Tokenizer = field(repr=False, compare=False)
    """The tokenizer without its special tokens, so that they are text when they stand in a text."""

    @classmethod
    def from_tokenizer(
        cls, tokenizer: WhisperTokenizer, config: ModelLimits, language: str | None, task: Task = "transcribe"
    ) -> "LabelLayout":
        """The layout for a language and task.

        Args:
            language: a code (`cs`), a name (`czech`) or None, which only `.en` models allow.

        Raises:
            UsageError: no language for a multilingual model; one that Whisper lacks; one that is not English,
                or translation, for an `.en` model; an unknown task.
            ModelError: the tokenizer is not a Whisper tokenizer.
        """
        if task not in ("transcribe", "translate"):
            raise UsageError(f"there is no task '{task}'", "tasks: transcribe, translate (into English)")
        ids = special_ids(tokenizer)
        sot, no_timestamps = ids["<|startoftranscript|>"], ids["<|notimestamps|>"]
        if is_multilingual(tokenizer):
            languages = language_ids(tokenizer)
            tasks = {name: ids[f"<|{name}|>"] for name in ("transcribe", "translate")}
            code = language_code(language, languages)
            start: tuple[int, ...] = (sot, languages[code], tasks[task])
        else:
            languages, tasks, code, start = {}, {}, None, (sot,)
            if language is not None and _as_code(language) != "en":
                raise UsageError(
                    f"an English-only model (.en) cannot be used for language '{language}'",
                    "use the multilingual model of the same size: its name has no .en",
                )
            if task == "translate":
                raise UsageError(
                    "an English-only model (.en) cannot translate",
                    "use the multilingual model of the same size: its name has no .en",
                )
        return cls(
            tokenizer=tokenizer,
            prefix=(*start, no_timestamps),
            prefix_timestamps=start,
            sot=sot,
            eot=ids["<|endoftext|>"],
            prev=ids["<|startofprev|>"],
            no_timestamps=no_timestamps,
            no_speech=ids["<|nospeech|>"],
            timestamp_begin=no_timestamps + 1,
            max_target_positions=config.max_target_positions,
            language=code,
            task=task,
            languages=languages,
            tasks=tasks,
            bpe=plain_bpe(tokenizer),
        )

    def for_language(self, language: str | None, task: Task | None = None) -> "LabelLayout":
        """The layout of other rows; None keeps what this one has. Ask once a language, not once a row."""
        return LabelLayout.from_tokenizer(self.tokenizer, self, language or self.language, task or self.task)

    @cached_property
    def _starts_with_space(self) -> bool:
        return self.language not in _NO_LEADING_SPACE

    def encode(self, text: str) -> list[int]:
        """Ids of a text as Whisper would write it: with a space before the first word.

        A space that would be a token of its own is left out: Whisper never begins with it (it is the blank
        that decoding suppresses at the beginning). `<|en|>` and its like are text here, never special tokens.
        """
        text = text.strip()
        if not text:
            return []
        if self._starts_with_space:
            ids = self.bpe.encode(" " + text).ids
            if ids[0] != self._space:
                return ids
        return self.bpe.encode(text).ids

    @cached_property
    def _space(self) -> int:
        return self.bpe.encode(" ").ids[0]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of decoded ids, without special and time tokens and outer spaces."""
        return self.bpe.decode([i for i in ids if i < self.eot]).strip()

    def label_length(self, text: str) -> int:
        """Tokens of a label as the model counts them: the prefix without its start token, the text, the end.

        At most `max_target_positions` fit.
        """
        return len(self.prefix) - 1 + len(self.encode(text)) + 1

    def timestamp(self, seconds: float) -> int:
        """The time token nearest to `seconds`, from 0 to 30."""
        assert -1e-6 <= seconds <= WINDOW_S + TIME_STEP_S / 2, seconds
        return self.timestamp_begin + round(seconds / TIME_STEP_S)

    def show(self, ids: Sequence[int]) -> str:
        """Ids as text with every special and time token written out; -100 as `·`."""
        parts, text = [], []
        for i in [*ids, self.eot]:
            if 0 <= i < self.eot:
                text.append(i)
                continue
            if text:
                parts.append(self.bpe.decode(text))
                text = []
            if i == IGNORED:
                parts.append("·")
            elif i >= self.timestamp_begin:
                parts.append(f"<|{(i - self.timestamp_begin) * TIME_STEP_S:.2f}|>")
            else:
                parts.append(str(self.tokenizer.convert_ids_to_tokens(i)))
        return "".join(parts[:-1])


# --- reading a tokenizer


def plain_bpe(tokenizer: WhisperTokenizer) -> tokenizers.Tokenizer:
    """The byte-level BPE inside a Whisper tokenizer, without special tokens and prefix."""
    return _bpe(tokenizer)[0]


def merges_of(tokenizer: WhisperTokenizer) -> int:
    """Number of merges of its BPE; 50,000 in every whole Whisper tokenizer."""
    return _bpe(tokenizer)[1]


@lru_cache(maxsize=8)  # 0.3 s, and asked for every language of a corpus
def _bpe(tokenizer: WhisperTokenizer) -> tuple[tokenizers.Tokenizer, int]:
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    return tokenizers.Tokenizer.from_str(json.dumps(content)), len(content["model"].get("merges", ()))


def special_ids(tokenizer: WhisperTokenizer) -> dict[str, int]:
    """Ids of the special tokens every Whisper has; `<|nospeech|>` also where it is called `<|nocaptions|>`.

    Raises:
        ModelError: one of them is missing.
    """
    added = {str(token): i for i, token in tokenizer.added_tokens_decoder.items()}
    ids = {}
    for token in (
        "<|endoftext|>",
        "<|startoftranscript|>",
        "<|translate|>",
        "<|transcribe|>",
        "<|startoflm|>",
        "<|startofprev|>",
        "<|nospeech|>",
        "<|notimestamps|>",
    ):
        found = added.get(token)
        if found is None and token == "<|nospeech|>":
            found = added.get("<|nocaptions|>")
        if found is None:
            raise ModelError(f"the tokenizer has no token {token}: it is not a Whisper tokenizer")
        ids[token] = found
    first_time = added.get("<|0.00|>", ids["<|notimestamps|>"] + 1)
    if first_time != ids["<|notimestamps|>"] + 1:
        raise ModelError(
            f"the tokenizer has <|0.00|> at {first_time}, Whisper has it after <|notimestamps|>, at "
            f"{ids['<|notimestamps|>'] + 1}"
        )
    return ids


def is_multilingual(tokenizer: WhisperTokenizer) -> bool:
    """Whether it is the tokenizer of a multilingual model.

    The English-only models use GPT-2's vocabulary with `<|endoftext|>` as its last entry, right behind bytes
    and merges; the multilingual one has an entry more before it.
    """
    return special_ids(tokenizer)["<|endoftext|>"] > BYTES + MERGES


def language_ids(tokenizer: WhisperTokenizer) -> dict[str, int]:
    """Code to token id, for the languages that this tokenizer has (large-v3 added `yue`)."""
    added = {str(token): i for i, token in tokenizer.added_tokens_decoder.items()}
    if "<|iw|>" in added:  # older releases have Hebrew under its former code
        added["<|he|>"] = added["<|iw|>"]
    return {code: added[f"<|{code}|>"] for code in LANGUAGES if f"<|{code}|>" in added}


def language_code(language: str | None, known: Mapping[str, Any]) -> str:
    """A language's code from its code, English name or tag (`cs`, `czech`, `cs-CZ`).

    Raises:
        UsageError: none was given, or the model has no such language; the nearest is named.
    """
    if language is None or not language.strip():
        raise UsageError(
            "a multilingual model needs the language of the speech, and none was given",
            "give it with --language (a code or a name: cs, czech) or in a column 'language'",
        )
    code = _as_code(language)
    if code in known:
        return code
    names = {**{c: c for c in known}, **{name: c for name, c in TO_LANGUAGE_CODE.items() if c in known}}
    near = difflib.get_close_matches(language.strip().lower(), names, n=1, cutoff=0.4)
    raise UsageError(
        f"Whisper has no language '{language}'",
        f"the nearest name is '{near[0]}' ({names[near[0]]})"
        if near
        else f"it has: {' '.join(sorted(known))}",
    )


def _as_code(language: str) -> str:
    word = language.strip().lower().replace("_", "-")
    word = TO_LANGUAGE_CODE.get(word, word)
    return word if word in LANGUAGES else word.partition("-")[0]


def default_suppressed(tokenizer: WhisperTokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tokens that decoding never chooses, and those it does not begin with, where a model lists none.

    As `non_speech_tokens` of openai/whisper's tokenizer.py and `_get_suppress_tokens` of its decoding.py:
    what is not spoken (brackets, musical notes, dashes between speakers), and the special tokens that are no
    output.
    """
    bpe = plain_bpe(tokenizer)
    notes = "♩♪♫♬♭♮♯"  # no note has a token of its own; their common first bytes are suppressed
    signs = [*'"#()*+/:;<=>@[\\]^_`{|}~「」『』']
    signs += ["<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))"]
    signs += ["[[", "]]", "{{", "}}", "♪♪", "♪♪♪", *notes]
    # A hyphen or an apostrophe is speech inside a word, not at its beginning.
    suppressed = {bpe.encode(" -").ids[0], bpe.encode(" '").ids[0]}
    for sign in signs:
        for ids in (bpe.encode(sign).ids, bpe.encode(" " + sign).ids):
            if len(ids) == 1 or sign in notes:
                suppressed.add(ids[0])
    special = special_ids(tokenizer)
    suppressed |= {i for token, i in special.items() if token not in ("<|endoftext|>", "<|notimestamps|>")}
    return tuple(sorted(suppressed)), (bpe.encode(" ").ids[0], special["<|endoftext|>"])


# --- the check of every run's first batch


def check_first_batch(decoder_input_ids: Any, labels: Any, layout: LabelLayout) -> str:
    """Check the rows of a batch and return them as text, to be shown.

    Args:
        decoder_input_ids: (B, T) integers: optional `<|startofprev|> prompt`, then the layout; padded behind.
        labels: (B, T) the same moved by one; -100 on the prompt, on the start token and behind the end.
        layout: of any of the model's languages; rows may be of others.

    Returns:
        Two lines a row: what the decoder is given, what it is to predict (`·` = masked).

    Raises:
        TrainingError: a row that is not so, with its number.
    """
    rows = list(zip(decoder_input_ids.tolist(), labels.tolist(), strict=True))
    shown = []
    for number, (inputs, targets) in enumerate(rows):
        problem = _problem(inputs, targets, layout)
        if problem:
            raise TrainingError(
                f"row {number} of the first batch is wrong: {problem}; it is {layout.show(inputs)!r} "
                f"→ {layout.show(targets)!r}",
                "this is a bug of whispertune, not of your data: please report it with this line",
            )
        end = max(t for t, target in enumerate(targets) if target != IGNORED)
        shown.append(f"in   {layout.show(inputs[: end + 1])}\nout  {layout.show(targets[: end + 1])}")
    return "\n".join(shown)


def _problem(inputs: list[int], targets: list[int], layout: LabelLayout) -> str | None:
    if len(inputs) != len(targets):
        return f"{len(inputs)} inputs and {len(targets)} targets"
    if inputs.count(layout.sot) != 1:
        return f"{inputs.count(layout.sot)} start tokens, exactly one expected"
    start = inputs.index(layout.sot)
    if start and inputs[0] != layout.prev:
        return "the prompt does not begin with <|startofprev|>"
    if len(inputs) > layout.max_target_positions:
        return f"{len(inputs)} positions, the model has {layout.max_target_positions}"
    kept = [t for t, target in enumerate(targets) if target != IGNORED]
    if not kept:
        return "every target is masked"
    if kept[0] < start:
        return f"target {kept[0]} belongs to the prompt and is not masked"
    end = kept[-1]
    if kept != list(range(start, end + 1)):
        masked = next(t for t in range(start, end + 1) if targets[t] == IGNORED)
        return f"target {masked} is masked in the middle of the text"
    if targets[end] != layout.eot or targets.count(layout.eot) != 1:
        return f"{targets.count(layout.eot)} end tokens among the targets, exactly one expected, as the last"
    moved = next((t for t in range(start, end) if targets[t] != inputs[t + 1]), None)
    if moved is not None:
        return f"target {moved} is not input {moved + 1}"
    return _prefix_problem(targets[start : end + 1], layout)


def _prefix_problem(after_start: list[int], layout: LabelLayout) -> str | None:
    """After the start token: language and task (multilingual), then no times or a time; or no speech."""
    if after_start[0] == layout.no_speech:
        return None if after_start == [layout.no_speech, layout.eot] else "text after <|nospeech|>"
    if layout.languages:
        if after_start[0] not in layout.languages.values():
            return "no language token after the start token"
        if after_start[1] not in layout.tasks.values():
            return "no task token after the language token"
        after_start = after_start[2:]
    if not after_start or (
        after_start[0] != layout.no_timestamps and after_start[0] < layout.timestamp_begin
    ):
        return "neither <|notimestamps|> nor a time token before the text"
    return None
