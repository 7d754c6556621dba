"""The Recipe: every knob once, with its unit, default and reason.

The command line's `--set section.key=value`, the TOML template and docs/recipe.md all come from here.
`None` as a default means that the plan chooses; the plan says what it chose and why.
"""

import datetime
import difflib
import json
import tomllib
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from whispertune.errors import UsageError

Method = Literal["full", "decoder", "lora"]
Goal = Annotated[
    str,
    Field(
        pattern=r"^(wer|cer|keywords|slice:[^=]+=.+)$",
        json_schema_extra={"words": ["wer", "cer", "keywords", "slice:COLUMN=VALUE"]},
    ),
]
TextStyle = Literal["keep", "sentence", "base"]


class _Section(BaseModel):
    # A folder may be called 2024: what stands for a text is read as one.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True)


class ModelSection(_Section):
    """Which model is tuned, and what it is told to do."""

    name: str = Field("", description="MODEL: a size, a Hub id, a folder, a .pt file or a run.")
    language: str | None = Field(
        None,
        description="Whisper language code, such as cs. A clip's own language column comes first. "
        "Required for multilingual models when there is no such column; not used by .en models.",
    )
    task: Literal["transcribe", "translate"] = Field("transcribe", description="What the texts are.")


class DataSection(_Section):
    """What it is tuned on."""

    corpus: str = Field("", description="Corpus folder, or any source that import reads.")
    guards: tuple[str, ...] | None = Field(
        None,
        description="Corpora on which it must not get worse; --guard may be given several times. auto: some "
        "general speech of the corpus' language from FLEURS, fetched once. none: nothing is guarded. Unset: "
        "auto where it can be fetched, and the verdict says so where it cannot.",
    )
    folds: int | None = Field(
        None,
        ge=2,
        description="For small sets: parts that are each held out once from a training of its own, so that "
        "all clips are judged; the delivered model is trained on all. It takes as many trainings and one.",
    )
    rehearsal: str | None = Field(
        None,
        description="Corpus of general speech that is heard along, labelled by the base model itself, so "
        "that less is forgotten; none of it may be in a guard. Unset: none.",
    )
    text_style: TextStyle | None = Field(
        None,
        description="keep the labels, make them sentence case, or copy case and punctuation from the base "
        "model where the words agree. Unset: base when nearly all labels lack case or punctuation (they "
        "would teach the model to shout), else keep.",
    )


class TrainSection(_Section):
    """How it is tuned."""

    method: Method = Field("full", description="Which parameters train: all, the decoder's, or LoRA's.")
    passes: float = Field(
        3.0, gt=0, description="Length in passes over the audio; packed, three take most of the gain."
    )
    steps: int | None = Field(None, ge=1, description="Length in updates; overrides passes.")
    learning_rate: float | None = Field(
        None, gt=0, description="Peak, 1/update. Unset: by model size and method; the report says why."
    )
    warmup: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Share of the updates in which the rate rises from 0; then it falls to 0.",
    )
    weight_decay: float = Field(
        0.0, ge=0, le=1, description="1/update. 0 as in OpenAI's own fine-tuning; few passes need none."
    )
    clip_norm: float = Field(
        1.0,
        gt=0,
        description="Gradients of a larger norm are scaled down to it; 1 as in Whisper's own training.",
    )
    speech_per_step_s: float | None = Field(
        None,
        gt=0,
        description="Seconds of speech an update; packing does not change it. Unset: 1/100 of all the "
        "speech heard, between 60 and 240.",
    )
    micro_batch: int | None = Field(
        None, ge=1, description="Windows computed at once; the loss does not depend on it. Unset: plan."
    )
    lora_rank: int = Field(16, ge=1, description="Rank of LoRA's updates.")
    lora_alpha: float = Field(32.0, gt=0, description="LoRA's scale times its rank; twice the rank is usual.")
    lora_dropout: float = Field(0.0, ge=0, lt=1, description="Share of LoRA's inputs dropped.")
    share: Annotated[float, Field(gt=0, le=1)] | Literal["auto", "recover"] = Field(
        "auto",
        description="How far from the base to the tuned weights the delivered model lies (WiSE-FT's alpha): "
        "less forgets less. auto: 0.7, or as much more as keeps 70 % of the gain on dev. recover: the best "
        "on dev that keeps half of each guard's speakers within tolerance; the other half is reported.",
    )
    rehearsal_share: float = Field(
        0.2, ge=0, lt=1, description="Share of the windows that are of data.rehearsal, where there is one."
    )
    kl: float = Field(
        0.0,
        ge=0,
        description="Weight in the loss of the divergence from the base model's word probabilities. Holding "
        "on to them costs a forward pass of the base.",
    )
    eval_every: int | None = Field(
        None, ge=1, description="Updates between dev evaluations. Unset: about four a pass."
    )
    save_every: int | None = Field(
        None, ge=1, description="Updates between checkpoints. Unset: at each dev evaluation."
    )
    save_minutes: float = Field(
        5.0, gt=0, description="Minutes after which a checkpoint is due anyway: the most that a crash costs."
    )
    early_stop: int = Field(
        8,
        ge=0,
        description="Dev evaluations without a better one after which training stops: two passes. 0: never.",
    )
    max_minutes: float | None = Field(None, gt=0, description="Minutes after which training saves and ends.")
    seed: int = Field(1, ge=0, le=1_000_000_000, description="Order of the data, and every random number.")


class WindowsSection(_Section):
    """How clips become the 30 s windows that Whisper hears. Shares are of windows."""

    join_silence_s: float = Field(
        0.2,
        ge=0,
        le=2,
        description="Silence between different recordings, seconds: a short pause, as between sentences.",
    )
    unpacked: float = Field(
        0.1, ge=0, le=1, description="Share with one clip alone, as short clips are transcribed in use."
    )
    timestamps: float = Field(
        0.2, ge=0, le=1, description="Share with time tokens. Over 0.5 hurts the text (Distil-Whisper: 0.2)."
    )
    prompt: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Share with a prompt: the true preceding text, or a glossary of words said and not said.",
    )
    no_speech: float = Field(
        0.03,
        ge=0,
        le=1,
        description="Windows without speech for each one with, so that the model stays silent there.",
    )


class EvalSection(_Section):
    """How before and after are judged."""

    goal: Goal | None = Field(
        None,
        description="What decides, fixed before training: the error rate of words, of characters, of "
        "keywords, or of the clips with a value in a column. Unset: words, or characters where a language "
        "puts no spaces between words.",
    )
    keywords: str | None = Field(
        None,
        description="File of words that matter, one a line, other accepted spellings behind a |. Unset: "
        "those in the test texts that are rare in general.",
    )
    normalizer: str | None = Field(
        None,
        description="File of own spelling rules, written form and what it counts as with a tab between; "
        "they come after the language's own.",
    )
    test_minutes: Annotated[float, Field(gt=0)] | Literal["all"] = Field(
        60.0, description="Minutes of test audio used, the same clips before and after; or all."
    )
    probes: bool = Field(
        True,
        description="Whether it is tried what else tuning may have cost: text on silence, long audio, time "
        "tokens, prompts, telling languages apart. About a minute on two CPU cores, twice.",
    )
    free: bool = Field(
        True,
        description="Whether it is tried what would have been free: the untuned model with the keywords as "
        "prompt, and the next larger one where its weights are at hand.",
    )
    max_new_tokens: int = Field(
        224,
        ge=1,
        le=448,
        description="Tokens after which decoding stops, as in OpenAI's decoder; loops run to it.",
    )
    batch: int = Field(16, ge=1, description="Clips decoded at once; the text does not depend on it.")
    resamples: int = Field(
        10_000,
        ge=1_000,
        description="Bootstrap resamples for the intervals; 10,000 hold their ends to about 0.1 point.",
    )
    tolerance: float = Field(
        1.0, ge=0, description="Points by which a guard may get worse; less is seldom heard."
    )
    dev_share: float = Field(
        0.1,
        gt=0,
        le=0.5,
        description="Share of the run's time for dev evaluations: a tenth, since they teach nothing.",
    )


class MachineSection(_Section):
    """What it runs on."""

    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "auto", description="auto refuses to fall back to the CPU where there is a GPU; cpu says it is meant."
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="auto: the fastest format whose products are right, by a short measurement."
    )
    threads: int | None = Field(
        None, ge=1, description="CPU threads. Unset: the cores at hand, frozen in the run."
    )


class Recipe(_Section):
    """Everything that defines a run. Frozen; `with_changes` makes another."""

    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    train: TrainSection = TrainSection()
    windows: WindowsSection = WindowsSection()
    eval: EvalSection = EvalSection()
    machine: MachineSection = MachineSection()

    def with_changes(self, changes: Mapping[str, Any]) -> "Recipe":
        """A recipe with `{"train.learning_rate": 1e-5, …}` changed.

        Raises:
            UsageError: an unknown key (names the nearest), or a value that does not fit.
        """
        tree = self.model_dump()
        for key, value in changes.items():
            section, _, name = _known_key(key, "there is no recipe key").partition(".")
            tree[section][name] = value
        return _validated(tree, "a recipe value does not fit")

    @classmethod
    def from_toml(cls, text: str, where: str = "recipe") -> "Recipe":
        """The recipe in a TOML text; keys left out have their defaults.

        Raises:
            UsageError: not TOML, an unknown key, or a value that does not fit.
        """
        try:
            tree = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where} is not TOML: {error}", _TEMPLATE) from None
        for section, values in tree.items():
            known = "sections: " + ", ".join(f"[{name}]" for name in Recipe.model_fields)
            if not isinstance(values, dict):
                raise UsageError(f"{where}: '{section}' stands outside a section", known)
            if not values and section not in Recipe.model_fields:
                raise UsageError(f"{where}: there is no recipe section [{section}]", known)
            for name in values:
                _known_key(f"{section}.{name}", f"{where}: there is no recipe key")
        return _validated(tree, where)

    def to_toml(self) -> str:
        """This recipe as TOML; `from_toml` gives it back. Unset keys are written as comments."""
        lines: list[str] = []
        for section, values in self.model_dump().items():
            lines.append(f"[{section}]")
            lines += [
                f"{name} = {to_toml_value(v)}" if v is not None else f"# {name}: unset"
                for name, v in values.items()
            ]
            lines.append("")
        return "\n".join(lines)


_TEMPLATE = "whispertune recipe > recipe.toml writes one to start from"


class Knob(NamedTuple):
    """One key of the recipe, as help, template and reference page show it."""

    key: str
    kind: str
    """The values it takes, in words: `whole number ≥ 1, or unset`."""
    default: Any
    description: str


def keys() -> list[Knob]:
    """Every knob, in order."""
    return [
        Knob(f"{section}.{name}", _kind(knob), knob.default, knob.description or "")
        for section, info in Recipe.model_fields.items()
        for name, knob in info.annotation.model_fields.items()  # type: ignore[union-attr]
    ]


def knob(key: str) -> Knob:
    return next(knob for knob in keys() if knob.key == key)


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """`["train.passes=2", "eval.test_minutes=all"]` as changes; values are read as TOML, else as text.

    Raises:
        UsageError: no `=` in it.
    """
    changes: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise UsageError(f"--set {assignment}: expected key=value", "for example --set train.passes=2")
        changes[key.strip()] = _from_text(value.strip())
    return changes


def load(path: Path) -> Recipe:
    """The recipe in a file.

    Raises:
        UsageError: the file cannot be read, or `from_toml` refuses it.
    """
    try:
        return Recipe.from_toml(path.read_text("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        raise UsageError(f"the recipe {path} is not a text in UTF-8: {error.reason}") from None
    except OSError as error:
        raise UsageError(f"cannot read the recipe {path}: {error.strerror}", _TEMPLATE) from None


def _from_text(value: str) -> Any:
    if value in ("", "none", "unset"):
        return None
    try:
        read = tomllib.loads(f"v = {value}")["v"]
    except (ValueError, RecursionError):
        return value
    # 2024-05-01 is TOML for a day; here it can only be a name.
    return value if isinstance(read, (datetime.date, datetime.time)) else read


def _known_key(key: str, what: str) -> str:
    known = [knob.key for knob in keys()]
    if key in known:
        return key
    by_name = {k.partition(".")[2]: k for k in known}
    near = difflib.get_close_matches(key, known, 1, 0.5) or [
        by_name[n] for n in difflib.get_close_matches(key.rpartition(".")[2], by_name, 1, 0.5)
    ]
    raise UsageError(
        f"{what} '{key}'", f"did you mean {near[0]}?" if near else "whispertune recipe lists them"
    )


def _validated(tree: dict[str, Any], where: str) -> Recipe:
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"][:2])
        knob = next(knob for knob in keys() if knob.key == key)
        raise UsageError(
            f"{where}: {key} = {_short(first['input'])}; expected {knob.kind}", f"{key}: {knob.description}"
        ) from None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def to_toml_value(value: Any) -> str:
    """A value of the recipe as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(to_toml_value(item) for item in value) + "]"
    return repr(value)


_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def _kind(knob: FieldInfo) -> str:
    choices = _choices(knob.annotation)
    bounds = [
        f"{sign} {getattr(limit, name):g}"
        for limit in knob.metadata
        for name, sign in _SIGNS.items()
        if getattr(limit, name, None) is not None
    ]
    if bounds:
        choices[0] += " " + " and ".join(bounds)
    return ", ".join(choices[:-1]) + " or " + choices[-1] if len(choices) > 1 else choices[0]


def _choices(annotation: Any) -> list[str]:
    """What a value of a type can be, each in a word; `None` is `unset`."""
    if annotation is type(None):
        return ["unset"]
    if get_origin(annotation) is Annotated:
        of, *about = get_args(annotation)
        words = [a.json_schema_extra["words"] for a in about if getattr(a, "json_schema_extra", None)]
        return words[0] if words else _choices(of)
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    if get_origin(annotation) in (Union, types.UnionType):
        return [word for each in get_args(annotation) for word in _choices(each)]
    if get_origin(annotation) is tuple:
        return ["a list of texts"]
    return [_WORDS[annotation]]
