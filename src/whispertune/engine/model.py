"""A Whisper model in torch from any of the formats people have: float32 and a right configuration.

Every format is brought to the same three things: sizes, weights under Hugging Face names, a tokenizer. What
the files say beyond that (old decoder prompts, a `max_length` of 20) is rebuilt, not carried along.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration, WhisperTokenizer

from whispertune.clip import WINDOW_S
from whispertune.engine import ctranslate2_weights, openai_weights
from whispertune.engine.generation import generation_config, roles
from whispertune.engine.source import AGAIN, Format, ModelSource, locate, read_json, resolve, shards
from whispertune.engine.tokens import (
    MERGES,
    TIME_STEP_S,
    default_suppressed,
    is_multilingual,
    merges_of,
    special_ids,
)
from whispertune.errors import ModelError

__all__ = [
    "LoadedModel",
    "LoadedTokenizer",
    "ModelSource",
    "fingerprint",
    "load",
    "load_tokenizer",
    "resolve",
]


@dataclass(frozen=True)
class LoadedTokenizer:
    """What of a model is known without reading its weights: enough to count the tokens of a label."""

    name: str
    tokenizer: WhisperTokenizer
    n_mels: int
    is_multilingual: bool
    vocab_size: int
    max_target_positions: int
    """Decoder positions: the most tokens of a label."""
    sizes: Mapping[str, Any] = field(repr=False)
    """Arguments of `WhisperConfig`: widths, layers, heads."""


@dataclass(frozen=True)
class LoadedModel:
    """A model on the CPU, float32, in evaluation mode, its generation config complete."""

    name: str
    model: WhisperForConditionalGeneration
    tokenizer: WhisperTokenizer
    n_mels: int
    is_multilingual: bool
    suppress_tokens: tuple[int, ...]
    """Never chosen in decoding."""
    begin_suppress_tokens: tuple[int, ...]
    """Not chosen as the first token of the text."""
    fingerprint: str
    """Of the weights as loaded: see `fingerprint`."""

    @property
    def max_target_positions(self) -> int:
        return self.model.config.max_target_positions


@dataclass(frozen=True)
class _Files:
    """What a model's files say, in one shape. None = the format or the model does not say it."""

    sizes: Mapping[str, Any]
    """Arguments of `WhisperConfig`: sizes, and of a Hugging Face folder also dropout and the like."""
    tokenizer: WhisperTokenizer
    suppress_tokens: list[int] | None
    begin_suppress_tokens: list[int] | None
    alignment_heads: list[list[int]] | None


def load_tokenizer(source: ModelSource) -> LoadedTokenizer:
    """Tokenizer and limits of a model, without loading its weights (or downloading them from the Hub).

    Raises:
        ModelError: as `load`.
    """
    kind, path = locate(source, weights=False)
    with _delivered_again(source):
        files = _read_files(kind, path)
        _without_weights(path, files)  # refuses what no model can be made of
    return LoadedTokenizer(
        source.name,
        files.tokenizer,
        files.sizes["num_mel_bins"],
        is_multilingual(files.tokenizer),
        files.sizes["vocab_size"],
        files.sizes["max_target_positions"],
        files.sizes,
    )


def load(source: ModelSource) -> LoadedModel:
    """Load a model on the CPU as float32.

    Raises:
        ModelError: a file is missing or cut, a weight is missing or of no use, tokenizer and weights do not
            belong together, the output head is not the token embedding.
    """
    kind, path = locate(source)
    with _delivered_again(source):
        files = _read_files(kind, path)
        model = _assemble(path, _without_weights(path, files), _read_weights(kind, path))
    config = model.config
    default, begin_default = default_suppressed(files.tokenizer)
    suppress = tuple(default if files.suppress_tokens is None else files.suppress_tokens)
    begin = tuple(begin_default if files.begin_suppress_tokens is None else files.begin_suppress_tokens)
    model.generation_config = generation_config(
        files.tokenizer, config, suppress, begin, files.alignment_heads
    )
    return LoadedModel(
        source.name,
        model,
        files.tokenizer,
        config.num_mel_bins,
        is_multilingual(files.tokenizer),
        suppress,
        begin,
        fingerprint(model),
    )


@contextmanager
def _delivered_again(source: ModelSource) -> Iterator[None]:
    """A run can make its model anew: that is what to do about a damaged one."""
    try:
        yield
    except ModelError as error:
        if source.kind != "run":
            raise
        hint = f"remove {source.location} and run the same train command again: a checkpoint has it"
        raise ModelError(error.what, hint) from error


def fingerprint(model: WhisperForConditionalGeneration) -> str:
    """SHA-256 over names, shapes and values of the weights, the first 16 hex digits (1 to 2 GB/s)."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        if name != "proj_out.weight":  # the token embedding once more
            digest.update(f"{name}{list(weight.shape)}{weight.dtype}".encode())
            digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


# --- configuration and tokenizer


def _read_files(kind: Format, path: Path) -> _Files:
    if kind == "openai":
        sizes, _ = openai_weights.read_checkpoint(path)
        tokenizer = _tokenizer_for_vocabulary(path, sizes["vocab_size"])
        files = _Files(sizes, tokenizer, None, None, None)
    elif kind == "ct2":
        if not (path / "tokenizer.json").exists():
            raise ModelError(
                f"{path} has no tokenizer.json",
                "copy it from the model it was converted from: a guessed tokenizer would give wrong texts",
            )
        sizes = ctranslate2_weights.dimensions(ctranslate2_weights.read_binary(path / "model.bin"))
        config = read_json(path / "config.json") if (path / "config.json").exists() else {}
        files = _Files(
            sizes,
            _read_tokenizer(path),
            config.get("suppress_ids"),
            config.get("suppress_ids_begin"),
            config.get("alignment_heads"),
        )
    else:
        files = _read_hf_files(path)
    _check_sizes(path, files.sizes)
    _check_vocabulary(path, files.tokenizer, files.sizes["vocab_size"])
    _check_decoding(path, files)
    return files


_MOST = {
    "vocab_size": 1_000_000,
    "num_mel_bins": 1_000,
    "d_model": 100_000,
    "encoder_layers": 100,
    "decoder_layers": 100,
    "encoder_attention_heads": 1_000,
    "decoder_attention_heads": 1_000,
    "encoder_ffn_dim": 1_000_000,
    "decoder_ffn_dim": 1_000_000,
    "max_source_positions": 100_000,
    "max_target_positions": 100_000,
}
"""Far beyond any Whisper: more is damage, and would take the machine's memory before a weight is missed."""


def _check_sizes(path: Path, sizes: Mapping[str, Any]) -> None:
    for name, most in _MOST.items():
        value = sizes.get(name, 1)  # what a config.json leaves out has a default
        if type(value) is not int or not 1 <= value <= most:
            raise ModelError(
                f"{path} is damaged: its {name} is {value!r}, a whole number from 1 to {most:,} expected",
                AGAIN,
            )
    for heads in ("encoder_attention_heads", "decoder_attention_heads"):
        width, count = sizes["d_model"], sizes.get(heads, 1)
        if width % count:
            what = f"its d_model is {width}, a multiple of its {count} {heads} expected"
            raise ModelError(f"{path} is damaged: {what}", AGAIN)


def _check_decoding(path: Path, files: _Files) -> None:
    def is_id(value: object) -> bool:
        return type(value) is int and 0 <= value < files.sizes["vocab_size"]

    def is_pair(value: object) -> bool:
        return isinstance(value, list) and [type(each) for each in value] == [int, int]

    for name, expected, fits in (
        ("suppress_tokens", f"token ids below {files.sizes['vocab_size']}", is_id),
        ("begin_suppress_tokens", f"token ids below {files.sizes['vocab_size']}", is_id),
        ("alignment_heads", "pairs of a layer and a head", is_pair),
    ):
        found = getattr(files, name)
        if found is not None and not (isinstance(found, list) and all(map(fits, found))):
            raise ModelError(
                f"{path} is damaged: its {name} are {found!r:.40}, a list of {expected} expected", AGAIN
            )


# Fields of a config.json that are rebuilt from the tokenizer, belong in a generation config, or describe the
# file.
_REBUILT = {
    "begin_suppress_tokens",
    "suppress_tokens",
    "forced_decoder_ids",
    "max_length",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "architectures",
    "model_type",
    "tie_word_embeddings",
    "is_encoder_decoder",
    "use_cache",
}


def _read_hf_files(path: Path) -> _Files:
    if not (path / "config.json").exists():
        raise ModelError(f"{path} has no config.json", "give the folder of a whole model")
    config = read_json(path / "config.json")
    if config.get("model_type") != "whisper":
        raise ModelError(f"{path} is a model of type {config.get('model_type')!r}, not a Whisper")
    known = WhisperConfig().to_dict().keys() & WhisperConfig.__annotations__.keys()
    sizes = {k: v for k, v in config.items() if k in known and k not in _REBUILT}
    missing = [k for k in ("vocab_size", "num_mel_bins", "d_model", "max_target_positions") if k not in sizes]
    if missing:
        raise ModelError(f"{path}/config.json lacks {', '.join(missing)}")
    decoding = (
        read_json(path / "generation_config.json") if (path / "generation_config.json").exists() else {}
    )

    def listed(key: str) -> list[int] | None:
        # Older models list them in config.json; an empty list is a choice (nothing is suppressed), null is
        # none.
        return decoding[key] if decoding.get(key) is not None else config.get(key)

    return _Files(
        sizes,
        _read_tokenizer(path),
        listed("suppress_tokens"),
        listed("begin_suppress_tokens"),
        decoding.get("alignment_heads"),
    )


def _read_tokenizer(folder: Path) -> WhisperTokenizer:
    if not (folder / "tokenizer.json").exists() and not (folder / "vocab.json").exists():
        raise ModelError(
            f"{folder} has no tokenizer.json",
            "copy the tokenizer files from the model this one was made from",
        )
    try:
        tokenizer = WhisperTokenizer.from_pretrained(str(folder), local_files_only=True)
        merges = merges_of(tokenizer)
        if merges != MERGES:
            raise ModelError(
                f"the tokenizer in {folder} has {merges:,} merges, a Whisper tokenizer has {MERGES:,}: "
                "texts would be cut into other tokens than the model learned",
                "take tokenizer.json from the original model (openai/whisper-…)",
            )
        special_ids(tokenizer)
        # A bare tokenizer.json does not tell transformers which of its tokens are special; without it, time
        # tokens are taken to begin after <|endoftext|>.
        special = [str(t) for _, t in sorted(tokenizer.added_tokens_decoder.items()) if t.special]
        tokenizer.add_special_tokens({"extra_special_tokens": special, "pad_token": tokenizer.eos_token})
    except ModelError:
        raise
    except Exception as error:  # whatever transformers and tokenizers make of other content
        raise ModelError(
            f"the tokenizer in {folder} cannot be read: {_first_line(error)}",
            "take its tokenizer files from the original model (openai/whisper-…)",
        ) from error
    return tokenizer


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# n_vocab of an OpenAI checkpoint → the released size whose tokenizer it has (openai/whisper, model.py and
# tokenizer.py).
_TOKENIZER_OF = {51864: "tiny.en", 51865: "base", 51866: "large-v3"}


def _tokenizer_for_vocabulary(path: Path, vocab_size: int) -> WhisperTokenizer:
    """An OpenAI checkpoint carries no tokenizer; the vocabulary's size says which of the three it needs."""
    size = _TOKENIZER_OF.get(vocab_size)
    if size is None:
        raise ModelError(
            f"{path} has a vocabulary of {vocab_size} tokens; "
            f"Whisper's have {', '.join(map(str, _TOKENIZER_OF))}",
            "convert it to a Hugging Face folder with its own tokenizer",
        )
    try:
        _, folder = locate(resolve(size), weights=False)
    except ModelError as error:
        raise ModelError(
            f"{path} carries no tokenizer, and that of {size}, which it needs, is not here: {error.what}",
            error.hint,
        ) from error
    return _read_tokenizer(folder)


def _check_vocabulary(path: Path, tokenizer: WhisperTokenizer, vocab_size: int) -> None:
    """Tokenizer and weights must be of one family: v3 has a language more, so every later id differs."""
    time_tokens = round(WINDOW_S / TIME_STEP_S) + 1
    needed = max(
        special_ids(tokenizer)["<|notimestamps|>"] + 1 + time_tokens, max(tokenizer.get_vocab().values()) + 1
    )
    if needed != vocab_size:
        raise ModelError(
            f"tokenizer and weights in {path} do not belong together: "
            f"the tokenizer has {needed} tokens, the weights {vocab_size}",
            "take tokenizer.json from the model the weights come from",
        )


# --- weights


def _read_weights(kind: Format, path: Path) -> dict[str, torch.Tensor]:
    if kind == "openai":
        return openai_weights.read_checkpoint(path)[1]
    if kind == "ct2":
        arrays = ctranslate2_weights.state_dict(ctranslate2_weights.read_binary(path / "model.bin"))
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
    return _read_safetensors(path)


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    index = path / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.exists() and not (path / names[0]).exists():
        names = shards(index)
    state: dict[str, torch.Tensor] = {}
    for name in names:
        if not (path / name).is_file():
            raise ModelError(
                f"{path} has no {name}",
                "weights in a pickle (pytorch_model.bin) are not loaded: whoever made one can run code here"
                if (path / "pytorch_model.bin").exists()
                else "give the folder of a whole model",
            )
        try:
            state |= load_file(path / name)
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{path / name} is cut or damaged: {error}", "download or copy it again"
            ) from error
    return state


def _without_weights(path: Path, files: _Files) -> WhisperForConditionalGeneration:
    """A model of these sizes whose weights are yet to come."""
    try:
        config = WhisperConfig(**files.sizes, **roles(files.tokenizer), begin_suppress_tokens=None)
        config.architectures = ["WhisperForConditionalGeneration"]
        with torch.device("meta"):
            return WhisperForConditionalGeneration(config)
    except Exception as error:  # whatever transformers makes of other values
        raise ModelError(
            f"the config.json in {path} describes no Whisper: {type(error).__name__}: {_first_line(error)}",
            AGAIN,
        ) from error


def _assemble(
    path: Path, model: WhisperForConditionalGeneration, state: dict[str, torch.Tensor]
) -> WhisperForConditionalGeneration:
    """Put weights into a model; each must be there, of the right shape, and none left over."""
    embedding = state.get("model.decoder.embed_tokens.weight")
    head = state.pop("proj_out.weight", embedding)
    if (
        head is not None
        and embedding is not None
        and head is not embedding
        and not torch.equal(head, embedding)
    ):
        raise ModelError(
            f"the output head of {path} differs from its token embedding",
            "Whisper shares the two, and so do all formats it is exported to; such a model cannot be loaded",
        )
    expected = {
        name: weight.shape for name, weight in model.state_dict().items() if name != "proj_out.weight"
    }
    for problem, names in (
        ("lacks the weight", sorted(expected.keys() - state.keys())),
        ("has a weight that a Whisper of this size does not have:", sorted(state.keys() - expected.keys())),
    ):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ModelError(f"{path} {problem} {names[0]}{more}", AGAIN)
    for name, shape in expected.items():
        found = getattr(state[name], "shape", None)
        if found != shape:
            held = list(found) if found is not None else type(state[name]).__name__
            raise ModelError(f"{path}: {name} has shape {held}, {list(shape)} expected", AGAIN)
    # Copies: what was read may be a map of a file that others may change or remove.
    own = {
        name: torch.empty(shape, dtype=torch.float32).copy_(state.pop(name))
        for name, shape in expected.items()
    }
    own["proj_out.weight"] = own["model.decoder.embed_tokens.weight"]
    model.load_state_dict(own, assign=True)
    model.tie_weights()
    assert model.proj_out.weight is model.model.decoder.embed_tokens.weight
    return model.eval()
