"""Read an OpenAI checkpoint (`.pt`) into Hugging Face names."""

from pathlib import Path

import torch

from whispertune.engine.source import AGAIN
from whispertune.errors import ModelError

# Fields of `ModelDimensions` in openai/whisper's model.py, and what they are called in WhisperConfig.
_DIMENSIONS = {
    "n_mels": "num_mel_bins",
    "n_audio_ctx": "max_source_positions",
    "n_audio_state": "d_model",
    "n_audio_head": "encoder_attention_heads",
    "n_audio_layer": "encoder_layers",
    "n_vocab": "vocab_size",
    "n_text_ctx": "max_target_positions",
    "n_text_head": "decoder_attention_heads",
    "n_text_layer": "decoder_layers",
}
_MODULES = {
    "attn": "self_attn",
    "attn_ln": "self_attn_layer_norm",
    "cross_attn": "encoder_attn",
    "cross_attn_ln": "encoder_attn_layer_norm",
    "mlp_ln": "final_layer_norm",
}
_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
_OUTSIDE_BLOCKS = {
    "encoder.conv1": "encoder.conv1",
    "encoder.conv2": "encoder.conv2",
    "encoder.positional_embedding": "encoder.embed_positions.weight",
    "encoder.ln_post": "encoder.layer_norm",
    "decoder.token_embedding": "decoder.embed_tokens",
    "decoder.positional_embedding": "decoder.embed_positions.weight",
    "decoder.ln": "decoder.layer_norm",
}


def read_checkpoint(path: Path) -> tuple[dict[str, int], dict[str, torch.Tensor]]:
    """Sizes (arguments of `WhisperConfig`) and weights (HF names, as stored) of an OpenAI checkpoint.

    The file is mapped, not read: sizes alone cost nothing. `weights_only` keeps a pickle from running code.

    Raises:
        ModelError: not such a checkpoint, or a weight that no Whisper model has (named).
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # whatever torch, zipfile and pickle make of other bytes
        raise ModelError(
            f"{path} cannot be read as an OpenAI checkpoint: it is damaged or holds more than weights",
            "only files that load with weights_only=True are accepted",
        ) from error
    if not isinstance(content, dict) or not {"dims", "model_state_dict"} <= content.keys():
        raise ModelError(f"{path} is not an OpenAI checkpoint: it has no 'dims' and 'model_state_dict'")
    dims, state = content["dims"], content["model_state_dict"]
    if not isinstance(dims, dict) or not isinstance(state, dict):
        kinds = f"{type(dims).__name__} and {type(state).__name__}"
        raise ModelError(
            f"{path} is damaged: 'dims' and 'model_state_dict' are {kinds}, not dict and dict", AGAIN
        )
    missing = [name for name in (*_DIMENSIONS, "n_text_state") if name not in dims]
    if missing:
        raise ModelError(f"{path}: dims lacks {', '.join(missing)}")
    if dims["n_audio_state"] != dims["n_text_state"]:
        raise ModelError(
            f"{path}: encoder width {dims['n_audio_state']} and decoder width {dims['n_text_state']} differ"
        )
    sizes = {ours: dims[theirs] for theirs, ours in _DIMENSIONS.items()}
    # The MLP of ResidualAttentionBlock in model.py is four times as wide as the model.
    sizes |= {"encoder_ffn_dim": 4 * sizes["d_model"], "decoder_ffn_dim": 4 * sizes["d_model"]}
    return sizes, {_name(path, key): value for key, value in state.items()}


def _name(path: Path, key: str) -> str:
    parts = str(key).split(".")
    if key in _OUTSIDE_BLOCKS:
        return f"model.{_OUTSIDE_BLOCKS[key]}"
    if (module := ".".join(parts[:-1])) in _OUTSIDE_BLOCKS:
        return f"model.{_OUTSIDE_BLOCKS[module]}.{parts[-1]}"
    match parts:
        case [side, "blocks", layer, ("attn" | "cross_attn") as block, projection, leaf] if (
            projection in _PROJECTIONS
        ):
            return f"model.{side}.layers.{layer}.{_MODULES[block]}.{_PROJECTIONS[projection]}.{leaf}"
        case [side, "blocks", layer, "mlp", ("0" | "2") as index, leaf]:
            return f"model.{side}.layers.{layer}.{'fc1' if index == '0' else 'fc2'}.{leaf}"
        case [side, "blocks", layer, norm, leaf] if norm in _MODULES:
            return f"model.{side}.layers.{layer}.{_MODULES[norm]}.{leaf}"
    raise ModelError(f"{path}: the weight {key} is not one of a Whisper model")
