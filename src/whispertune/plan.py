"""The Plan: every value the recipe left open, chosen for model, corpus and machine, each with its reason.

It is frozen in the run: a resumed run reads it and never probes or counts again.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from whispertune.recipe import Recipe, TextStyle

ENCODER_POSITIONS = 1500

_FULL_RATES = {384: 2.5e-5, 512: 2e-5, 768: 1e-5, 1024: 6.25e-6, 1280: 5e-6}
"""Peak learning rate of full and decoder-only tuning by model width (tiny, base, small, medium, large).

OpenAI fine-tuned with a fortieth of each size's pre-training rate, 6.25e-6 for medium, which would be 3.75e-5
for tiny and 2.5e-5 for base. Tiny forgets at that rate: on real speech 3e-5 gained 15 points and lost 2.6 on
other speech, 2e-5 gained 13 and lost 1.9 (docs/results.md), so the small sizes get less. 5e-6 was a grid
search's choice for large.
"""
_LORA_FACTOR = 25
"""LoRA's rate over full tuning's: its B matrices start at zero, and peers use 1e-3 to 1e-4."""
RATE_WARNING = 10
"""A rate over this many times the usual one is warned of before anything runs."""
PASSES_WARNING = 10
MINIMUM_DEV_WINDOWS = 4
"""Two minutes of dev speech: with less, the choice of a checkpoint is noise."""
_EVALUATION_COST = {"full": 0.6, "lora": 0.6, "decoder": 0.9}
"""Decoding a packed window over training on it, measured on tiny.en and base on two CPU cores."""


@dataclass(frozen=True, slots=True)
class CorpusFacts:
    train_speech_s: float
    train_windows: int
    """Windows of the first pass, the share without speech included."""
    dev_windows: int
    unstyled_labels: bool
    """Nearly all labels lack case or punctuation."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    name: str
    width: int
    encoder_layers: int
    decoder_layers: int
    parameters: int


@dataclass(frozen=True, slots=True)
class MachineFacts:
    device: str
    device_reason: str
    precision: str
    precision_reason: str
    memory_bytes: int
    threads: int
    versions: dict[str, str]
    description: str


@dataclass(frozen=True)
class Plan:
    """What will be done. `reasons` has a sentence for each value that was chosen."""

    device: str
    precision: str
    threads: int
    text_style: TextStyle
    learning_rate: float
    usual_learning_rate: float
    speech_per_step_s: float
    steps_per_pass: int
    steps: int
    micro_batch: int
    eval_every: int
    save_every: int
    dev_windows: int
    versions: dict[str, str]
    machine: str
    reasons: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "Plan":
        return cls(**{**saved, "warnings": tuple(saved["warnings"])})


def make_plan(recipe: Recipe, corpus: CorpusFacts, model: ModelFacts, machine: MachineFacts) -> Plan:
    """Choose what the recipe leaves open.

    Memory is bytes, speech seconds; `steps` counts updates.
    """
    train = recipe.train
    reasons = {"device": machine.device_reason, "precision": machine.precision_reason}
    warnings: list[str] = []

    usual = usual_learning_rate(model.width, train.method)
    rate = train.learning_rate or usual
    reasons["learning_rate"] = _asked(train.learning_rate) or f"usual for {train.method} tuning of this size"
    if rate > RATE_WARNING * usual:
        warnings.append(
            f"learning rate {rate:g} is {rate / usual:.0f} times the usual {usual:g} for {train.method} "
            f"tuning of {model.name}: training may diverge"
        )
    speech_per_step = train.speech_per_step_s or _speech_per_step(corpus.train_speech_s, train.passes)
    reasons["speech_per_step_s"] = (
        _asked(train.speech_per_step_s) or "about 100 updates in all, 60 to 240 s each"
    )
    steps_per_pass = max(1, min(corpus.train_windows, round(corpus.train_speech_s / speech_per_step)))
    steps = train.steps or max(1, round(train.passes * steps_per_pass))
    reasons["steps"] = _asked(train.steps) or f"{train.passes:g} passes of {steps_per_pass}"
    passes = train.passes if train.steps is None else steps / steps_per_pass
    if passes > PASSES_WARNING:
        warnings.append(
            f"{passes:.4g} passes over the same clips: past {PASSES_WARNING} a model learns them by heart"
        )
    windows_per_step = corpus.train_windows / steps_per_pass

    micro_batch = train.micro_batch or _micro_batch(model, machine, windows_per_step)
    reasons["micro_batch"] = (
        _asked(train.micro_batch) or "windows at once that fit the memory; the loss is the same"
    )

    eval_every, dev_windows, reasons["eval_every"] = _dev_evaluation(recipe, corpus, steps, steps_per_pass)
    save_every = train.save_every or eval_every
    reasons["save_every"] = (
        _asked(train.save_every) or f"with each dev evaluation, and after {train.save_minutes:g} minutes"
    )

    style: TextStyle = recipe.data.text_style or ("base" if corpus.unstyled_labels else "keep")
    reasons["text_style"] = _asked(recipe.data.text_style) or (
        "labels lack case or punctuation and would teach the model to shout: both are copied from the base "
        "model"
        if corpus.unstyled_labels
        else "labels have case and punctuation"
    )
    reasons["threads"] = _asked(recipe.machine.threads) or "the cores at hand"
    return Plan(
        device=machine.device,
        precision=machine.precision,
        threads=machine.threads,
        text_style=style,
        learning_rate=rate,
        usual_learning_rate=usual,
        speech_per_step_s=speech_per_step,
        steps_per_pass=steps_per_pass,
        steps=steps,
        micro_batch=micro_batch,
        eval_every=eval_every,
        save_every=save_every,
        dev_windows=dev_windows,
        versions=machine.versions,
        machine=machine.description,
        reasons=reasons,
        warnings=tuple(warnings),
    )


def usual_learning_rate(width: int, method: str) -> float:
    """The default peak rate for a model of this width (d_model) and method; see `_FULL_RATES`."""
    nearest = min(_FULL_RATES, key=lambda known: abs(known - width))
    return _FULL_RATES[nearest] * (_LORA_FACTOR if method == "lora" else 1)


def _asked(value: object) -> str:
    return "as asked" if value is not None else ""


def _speech_per_step(train_speech_s: float, passes: float) -> float:
    return round(min(240.0, max(60.0, train_speech_s * passes / 100)), 1)


def _micro_batch(model: ModelFacts, machine: MachineFacts, windows_per_step: float) -> int:
    """Windows computed at once: what fits in half of the memory left by weights, gradients and moments.

    Activations per window: about 34 values of 4 bytes a position, layer and width (Korthikanti et al. 2022,
    arXiv 2205.05198, equation 1 without attention scores, which SDPA does not keep). On a CPU more than four
    at once only costs memory.
    """
    layers = model.encoder_layers + model.decoder_layers
    activations = 34 * 4 * ENCODER_POSITIONS * model.width * layers
    left = machine.memory_bytes - 16 * model.parameters
    fitting = int(left / 2 / activations)
    most = 4 if machine.device == "cpu" else 16
    return max(1, min(most, fitting, math.ceil(windows_per_step)))


def _dev_evaluation(
    recipe: Recipe, corpus: CorpusFacts, steps: int, steps_per_pass: int
) -> tuple[int, int, str]:
    """(updates between evaluations, dev windows in each, why): about four a pass, at most a tenth of the
    time."""
    if corpus.dev_windows == 0:
        return steps, 0, "there are no dev clips: the last checkpoint is delivered"
    windows = corpus.train_windows * steps / steps_per_pass
    affordable = recipe.eval.dev_share * windows / _EVALUATION_COST[recipe.train.method]
    if recipe.train.eval_every is not None:
        every = recipe.train.eval_every
        why = "as asked"
    else:
        for a_pass in (4, 2, 1):
            every = max(1, round(steps_per_pass / a_pass))
            if affordable / _evaluations(steps, every) >= MINIMUM_DEV_WINDOWS:
                break
        why = f"{round(steps_per_pass / every)} a pass"
    each = int(affordable / _evaluations(steps, every))
    count = min(corpus.dev_windows, max(MINIMUM_DEV_WINDOWS, each))
    share = recipe.eval.dev_share * 100
    reason = f"{why}, on {count} packed dev windows of {corpus.dev_windows}"
    return every, count, f"{reason}: about {share:g} % of the time" if each >= count else reason


def _evaluations(steps: int, every: int) -> int:
    """How often the dev set is decoded: every so many updates, and after the last."""
    return math.ceil(steps / every)
