"""The generation config that a Whisper needs: rebuilt from tokenizer and sizes, whatever the files said."""

from collections.abc import Sequence
from typing import Any

from transformers import GenerationConfig, WhisperConfig, WhisperTokenizer

from whispertune.engine.tokens import TIME_STEP_S, is_multilingual, language_ids, special_ids


def roles(tokenizer: WhisperTokenizer) -> dict[str, Any]:
    """The ids that both configurations name: begin, end and padding are one token, `<|endoftext|>`."""
    ids = special_ids(tokenizer)
    eot = ids["<|endoftext|>"]
    return {
        "bos_token_id": eot,
        "eos_token_id": eot,
        "pad_token_id": eot,
        "decoder_start_token_id": ids["<|startoftranscript|>"],
    }


def generation_config(
    tokenizer: WhisperTokenizer,
    config: WhisperConfig,
    suppress: Sequence[int],
    begin_suppress: Sequence[int],
    alignment_heads: Sequence[Sequence[int]] | None,
) -> GenerationConfig:
    """A complete one: `generate` on a multilingual model without `task` adds no task token and loops.

    Args:
        suppress: ids never chosen. begin_suppress: ids not chosen first.
        alignment_heads: (layer, head) pairs for word times; None takes every head of the upper half of the
            decoder, as CTranslate2 and openai/whisper do where nobody has measured them.
    """
    ids = special_ids(tokenizer)
    multilingual = is_multilingual(tokenizer)
    languages = {
        "lang_to_id": {f"<|{code}|>": i for code, i in language_ids(tokenizer).items()},
        "task_to_id": {task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")},
        "task": "transcribe",
    }
    heads = alignment_heads or [
        (layer, head)
        for layer in range(config.decoder_layers // 2, config.decoder_layers)
        for head in range(config.decoder_attention_heads)
    ]
    return GenerationConfig(
        **roles(tokenizer),
        max_length=config.max_target_positions,
        # An empty list crashes transformers' logits processor; None means the same.
        suppress_tokens=list(suppress) or None,
        begin_suppress_tokens=list(begin_suppress) or None,
        alignment_heads=[list(pair) for pair in heads],
        no_timestamps_token_id=ids["<|notimestamps|>"],
        prev_sot_token_id=ids["<|startofprev|>"],
        # The first time token is at most 1 s: `max_initial_timestamp` of openai/whisper's decoding.py.
        max_initial_timestamp_index=round(1.0 / TIME_STEP_S),
        return_timestamps=False,
        is_multilingual=multilingual,
        **(languages if multilingual else {}),
    )
