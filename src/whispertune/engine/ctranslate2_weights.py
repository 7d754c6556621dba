"""Read a CTranslate2 Whisper folder back into Hugging Face names: the weights that faster-whisper users have.

The layout of `model.bin` is that of CTranslate2's `python/ctranslate2/specs/model_spec.py` (binary version
6): little-endian; a string is a uint16 length that counts its closing zero byte, then the bytes. In order:
uint32 version, string spec, uint32 revision, uint32 count, then a variable each: string name, uint8 rank,
uint32 dimensions, uint8 type, uint32 bytes, the values; then uint32 count and the aliases: string alias,
string name.
"""

import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from whispertune.errors import ModelError

BINARY_VERSION = 6
SPEC = "WhisperSpec"
REVISION = 3
_BFLOAT16 = 5
# Order of the DataType enum in CTranslate2's include/ctranslate2/types.h. numpy has no bfloat16: its bits are
# read.
_TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16, np.uint16)

# Scalars that steer CTranslate2's graph, with the values that mean "as Whisper does it". All else is refused.
_SETTINGS = {
    "activation": {3},  # GELU, in the enum of specs/common_spec.py
    "alibi": {0},
    "alibi_use_positive_positions": {0, 1},  # without ALiBi both mean nothing
    "scale_alibi": {0, 1},
    "pre_norm": {1},
    "scale_embeddings": {0},
    "start_from_zero_embedding": {0},
    "multi_query": {0},
    "layernorm_embedding": {0},
    "post_norm": {0},
    "alignment_heads": None,  # how many heads, of which layer: for attention maps of translation models
    "alignment_layer": None,
}


@dataclass(frozen=True)
class Binary:
    """The content of a `model.bin`, memory-mapped: no weight is read before it is used."""

    path: Path
    variables: dict[str, np.ndarray]
    """By name, as stored (quantised weights as integers, bfloat16 as uint16)."""
    bfloat16: frozenset[str]
    """Names of the variables stored as bfloat16."""
    aliases: dict[str, str]


def read_binary(path: Path) -> Binary:
    """Map a `model.bin`.

    Raises:
        ModelError: another version, spec or revision; a cut file; bytes after the end.
    """
    with open(path, "rb") as file:
        if path.stat().st_size < 4:
            raise ModelError(
                f"{path} is cut: 4 bytes expected at its start, {path.stat().st_size} are there",
                "download or copy it again",
            )
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    reader = _Reader(path, content)
    version = reader.number("I", "the version")
    if version != BINARY_VERSION:
        raise ModelError(
            f"{path} has CTranslate2 binary version {version}, {BINARY_VERSION} is what can be read",
            "convert the model again with a current ct2-transformers-converter",
        )
    spec, revision = reader.string("the spec"), reader.number("I", "the revision")
    if (spec, revision) != (SPEC, REVISION):
        raise ModelError(
            f"{path} holds a {spec} revision {revision}, not a {SPEC} revision {REVISION}",
            "only Whisper models can be loaded",
        )
    variables, bfloat16 = {}, set()
    for _ in range(reader.number("I", "the number of variables")):
        name = reader.string("a variable's name")
        shape = tuple(
            reader.number("I", f"the shape of {name}") for _ in range(reader.number("B", f"{name}"))
        )
        type_id, size = reader.number("B", f"the type of {name}"), reader.number("I", f"the size of {name}")
        if type_id >= len(_TYPES):
            raise ModelError(f"{path}: {name} has the unknown type {type_id}")
        dtype = np.dtype(_TYPES[type_id])
        expected = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size != expected:
            raise ModelError(
                f"{path}: {name} of shape {list(shape)} needs {expected} bytes, its header says {size}"
            )
        offset = reader.skip(size, name)
        variables[name] = np.frombuffer(
            content, dtype, count=expected // dtype.itemsize, offset=offset
        ).reshape(shape)
        if type_id == _BFLOAT16:
            bfloat16.add(name)
    aliases = {}
    for _ in range(reader.number("I", "the number of aliases")):
        alias = reader.string("an alias")
        aliases[alias] = reader.string(f"what {alias} stands for")
    if reader.position != len(content):
        raise ModelError(f"{path}: {len(content)} bytes, but the model ends after {reader.position}")
    return Binary(path, variables, frozenset(bfloat16), aliases)


class _Reader:
    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path, self.content, self.position = path, content, 0

    def skip(self, size: int, what: str) -> int:
        """Move over `size` bytes; returns where they begin."""
        start = self.position
        if start + size > len(self.content):
            raise ModelError(
                f"{self.path} is cut: {what} reaches to byte {start + size}, "
                f"the file has {len(self.content)}",
                "download or copy it again",
            )
        self.position = start + size
        return start

    def number(self, kind: str, what: str) -> int:
        return struct.unpack_from("<" + kind, self.content, self.skip(struct.calcsize("<" + kind), what))[0]

    def string(self, what: str) -> str:
        start = self.skip(self.number("H", what), what)
        try:
            return self.content[start : self.position].rstrip(b"\0").decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelError(
                f"{self.path}: {what} at byte {start} is not text; the file is damaged"
            ) from error


def dimensions(binary: Binary) -> dict[str, int]:
    """The sizes of the model, as arguments of `WhisperConfig`, from the shapes alone.

    Raises:
        ModelError: a variable that tells a size is not there.
    """

    def shape(name: str, rank: int) -> tuple[int, ...]:
        found = binary.variables.get(name)
        if found is None or found.ndim != rank:
            raise ModelError(
                f"{binary.path} has no variable {name} of {rank} dimensions: not a Whisper model"
            )
        return found.shape

    def layers(side: str) -> int:
        numbers = {int(m[1]) for name in binary.variables if (m := re.match(rf"{side}/layer_(\d+)/", name))}
        return max(numbers) + 1 if numbers else 0

    def heads(side: str) -> int:
        # The converter stores it; 64 dimensions a head is what every released Whisper has.
        stored = binary.variables.get(f"{side}/num_heads")
        return int(stored.flat[0]) if stored is not None and stored.size else width // 64

    vocab_size, width = shape("decoder/embeddings/weight", 2)
    return {
        "vocab_size": vocab_size,
        "d_model": width,
        "num_mel_bins": shape("encoder/conv1/weight", 3)[1],
        "encoder_layers": layers("encoder"),
        "decoder_layers": layers("decoder"),
        "encoder_attention_heads": heads("encoder"),
        "decoder_attention_heads": heads("decoder"),
        "encoder_ffn_dim": shape("encoder/layer_0/ffn/linear_0/weight", 2)[0],
        "decoder_ffn_dim": shape("decoder/layer_0/ffn/linear_0/weight", 2)[0],
        "max_source_positions": shape("encoder/position_encodings/encodings", 2)[0],
        "max_target_positions": shape("decoder/position_encodings/encodings", 2)[0],
    }


def state_dict(binary: Binary) -> dict[str, np.ndarray]:
    """The weights as float32 under the names of `WhisperForConditionalGeneration` (head tied, so not in it).

    Fused projections are split: self-attention keeps q, k and v in `linear_0`; cross-attention q in
    `linear_0`, k and v in `linear_1`. Integers are divided by their scale (a row each for int8, one for
    int16).

    Raises:
        ModelError: a variable is missing, has another shape, or is of no use to a Whisper model (named).
    """
    sizes = dimensions(binary)
    width = sizes["d_model"]
    weights = _Weights(binary)
    state: dict[str, np.ndarray] = {}

    def linear(ours: str, theirs: str, rows: int, columns: int) -> None:
        state[f"{ours}.weight"] = weights.take(f"{theirs}/weight", (rows, columns))
        state[f"{ours}.bias"] = weights.take(f"{theirs}/bias", (rows,))

    def norm(ours: str, theirs: str) -> None:
        state[f"{ours}.weight"] = weights.take(f"{theirs}/gamma", (width,))
        state[f"{ours}.bias"] = weights.take(f"{theirs}/beta", (width,))

    def fused(ours: str, theirs: str, projections: str) -> None:
        parts = len(projections)
        matrix = weights.take(f"{theirs}/weight", (parts * width, width))
        bias = weights.take(f"{theirs}/bias", (parts * width,))
        for i, projection in enumerate(projections):
            rows = slice(i * width, (i + 1) * width)
            state[f"{ours}.{projection}_proj.weight"] = matrix[rows]
            if projection != "k":
                state[f"{ours}.{projection}_proj.bias"] = bias[rows]
            elif bias[rows].any():
                raise ModelError(
                    f"{binary.path}: {theirs}/bias has a bias for keys, which Whisper does not have"
                )

    for side in ("encoder", "decoder"):
        for layer in range(sizes[f"{side}_layers"]):
            ours, theirs = f"model.{side}.layers.{layer}", f"{side}/layer_{layer}"
            fused(f"{ours}.self_attn", f"{theirs}/self_attention/linear_0", "qkv")
            linear(f"{ours}.self_attn.out_proj", f"{theirs}/self_attention/linear_1", width, width)
            norm(f"{ours}.self_attn_layer_norm", f"{theirs}/self_attention/layer_norm")
            if side == "decoder":
                fused(f"{ours}.encoder_attn", f"{theirs}/attention/linear_0", "q")
                fused(f"{ours}.encoder_attn", f"{theirs}/attention/linear_1", "kv")
                linear(f"{ours}.encoder_attn.out_proj", f"{theirs}/attention/linear_2", width, width)
                norm(f"{ours}.encoder_attn_layer_norm", f"{theirs}/attention/layer_norm")
            inner = sizes[f"{side}_ffn_dim"]
            linear(f"{ours}.fc1", f"{theirs}/ffn/linear_0", inner, width)
            linear(f"{ours}.fc2", f"{theirs}/ffn/linear_1", width, inner)
            norm(f"{ours}.final_layer_norm", f"{theirs}/ffn/layer_norm")
        norm(f"model.{side}.layer_norm", f"{side}/layer_norm")
        positions = sizes["max_source_positions" if side == "encoder" else "max_target_positions"]
        state[f"model.{side}.embed_positions.weight"] = weights.take(
            f"{side}/position_encodings/encodings", (positions, width)
        )
    for name, channels in (("conv1", sizes["num_mel_bins"]), ("conv2", width)):
        state[f"model.encoder.{name}.weight"] = weights.take(f"encoder/{name}/weight", (width, channels, 3))
        state[f"model.encoder.{name}.bias"] = weights.take(f"encoder/{name}/bias", (width,))
    embedding = weights.take("decoder/embeddings/weight", (sizes["vocab_size"], width))
    state["model.decoder.embed_tokens.weight"] = embedding
    weights.check_head(embedding)
    weights.check_rest()
    return state


class _Weights:
    """The variables of a file, each handed out once, so that what is left over can be named."""

    def __init__(self, binary: Binary) -> None:
        self.binary = binary
        self.left = set(binary.variables) | set(binary.aliases)

    def take(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        stored = self._stored(name)
        if stored is None:
            raise ModelError(f"{self.binary.path} lacks the variable {name}")
        if stored.shape != shape:
            raise ModelError(
                f"{self.binary.path}: {name} has shape {list(stored.shape)}, {list(shape)} expected"
            )
        self.left.discard(name)
        real = self.binary.aliases.get(name, name)
        if real in self.binary.bfloat16:  # the upper half of a float32
            return (stored.astype(np.uint32) << 16).view(np.float32)
        value = stored.astype(np.float32)
        if stored.dtype not in (np.int8, np.int16):
            return value
        scale = self._stored(f"{name}_scale")
        if scale is None:  # an alias may leave the scale to the variable it stands for
            scale = self._stored(f"{real}_scale")
        rows = (shape[0],) if stored.dtype == np.int8 else ()
        if scale is None or scale.shape != rows:
            found = "none is there" if scale is None else f"one of shape {list(scale.shape)} is there"
            raise ModelError(
                f"{self.binary.path}: {name} is quantised and needs a scale of shape {list(rows)}; {found}"
            )
        self.left.discard(f"{name}_scale")
        return value / scale.astype(np.float32).reshape(rows + (1,) * (len(shape) - 1) if rows else ())

    def _stored(self, name: str) -> np.ndarray | None:
        return self.binary.variables.get(self.binary.aliases.get(name, name))

    def check_head(self, embedding: np.ndarray) -> None:
        """The output head must be the token embedding: a Whisper model has no other."""
        head = "decoder/projection/weight"
        same = self.binary.aliases.get(head) == "decoder/embeddings/weight" or np.array_equal(
            self.take(head, embedding.shape), embedding
        )
        if not same:
            raise ModelError(
                f"{self.binary.path}: the output head differs from the token embedding",
                "Whisper shares the two; a model with a head of its own cannot be loaded",
            )
        self.left -= {head, f"{head}_scale"}

    def check_rest(self) -> None:
        for name in sorted(self.left):
            side, _, setting = name.partition("/")
            if name in ("encoder/num_heads", "decoder/num_heads"):
                continue
            if side in ("encoder", "decoder") and setting in _SETTINGS and name in self.binary.variables:
                allowed, value = _SETTINGS[setting], self.binary.variables[name]
                if allowed is None or (value.ndim == 0 and value.item() in allowed):
                    continue
                # As a float it is the factor itself, as an integer it says whether to multiply by
                # sqrt(d_model).
                if setting == "scale_embeddings" and value.dtype == np.float32 and value.item() == 1.0:
                    continue
                raise ModelError(
                    f"{self.binary.path}: {name} is {value.tolist()}; Whisper models have {allowed}"
                )
            rest = sorted(n for n in self.left if n.partition("/")[2] not in {*_SETTINGS, "num_heads"})
            raise ModelError(
                f"{self.binary.path} has {len(rest)} variable(s) that a Whisper model does not have: "
                + ", ".join(rest[:5])
                + (", …" if len(rest) > 5 else ""),
                "the file is of another kind of model or of a newer CTranslate2",
            )
