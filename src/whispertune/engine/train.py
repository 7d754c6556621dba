"""The training loop: windows in, checkpoints out.

One loop for every method, size and device. A run killed at any moment and started again reaches the same
weights: the data order is a function of (seed, epoch), random numbers are reseeded from (seed, step), and
everything that a probe or a clock could change was frozen in the plan.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from whispertune.engine import checkpoint as checkpoints
from whispertune.engine.features import log_mel
from whispertune.engine.method import Tuned
from whispertune.engine.rehearsal import Planner
from whispertune.engine.tokens import IGNORED, LabelLayout, check_first_batch
from whispertune.engine.windows import Batch, Renderer, Window, steps_of
from whispertune.errors import Stopped, TrainingError
from whispertune.plan import Plan
from whispertune.recipe import Recipe
from whispertune.run import Emit, Event

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Progress:
    """Where training stands; saved with each checkpoint."""

    step: int = 0
    best_step: int | None = None
    best_wer: float | None = None
    since_best: int = 0
    """Dev evaluations since the best one."""
    dev_wer: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0
    """Spent in training steps and dev evaluations, earlier attempts included."""
    ended: str = ""
    """Why training is over, or empty: `all steps`, `early stop`, `time`."""


@dataclass(frozen=True)
class Training:
    """What one run of the loop needs.

    Attributes:
        base: the untuned model, on its device, for `train.kl`; None where that is 0.
        dev_wer: scores the model as it is, in percent; None where there is nothing to score on.
        should_stop: asked after each step; the user's Ctrl-C or a SIGTERM.
    """

    tuned: Tuned
    device: torch.device
    planner: Planner
    renderer: Renderer
    layout: LabelLayout
    recipe: Recipe
    plan: Plan
    folder: Path
    dev_wer: Callable[[], float] | None
    emit: Emit
    should_stop: Callable[[], bool]
    base: torch.nn.Module | None = None


def train(job: Training) -> Progress:
    """Train from the newest checkpoint, or from the start, to the end.

    Raises:
        TrainingError: the loss or the gradient is not finite.
        Stopped: `should_stop` said so; a checkpoint was written first.
        MachineError: a checkpoint cannot be written.
    """
    torch.set_num_threads(job.plan.threads)
    job.tuned.model.to(job.device)
    optimizer = torch.optim.AdamW(
        list(job.tuned.parameters.values()),
        lr=job.plan.learning_rate,
        betas=(0.9, 0.98),  # Whisper's own second moment (arXiv 2212.04356, table 17)
        eps=1e-6,  # likewise
        weight_decay=job.recipe.train.weight_decay,
        fused=True,
    )
    # fp16 gradients underflow without a scale; a step that overflows is skipped and the scale halved.
    scaler = torch.amp.GradScaler(job.device.type, enabled=job.plan.precision == "fp16")
    progress = _resumed(job, optimizer, scaler)
    if progress.ended:
        return progress
    started, saved_at = time.monotonic() - progress.seconds, time.monotonic()
    for step, batches, waited in _prefetched(job, progress.step):
        begin = time.monotonic()
        if step == 1:
            _show_first(job, batches)
        rate = learning_rate(step, job.plan.steps, job.plan.learning_rate, job.recipe.train.warmup)
        loss, norm = _update(job, optimizer, scaler, batches, step, rate)
        progress.step = step
        progress.seconds = time.monotonic() - started
        job.emit(
            Event(
                "step",
                {
                    "step": step,
                    "steps": job.plan.steps,
                    "loss": round(loss, 5),
                    "learning_rate": rate,
                    "grad_norm": round(norm, 4) if math.isfinite(norm) else None,  # JSON has no infinity
                    "seconds": round(time.monotonic() - begin, 4),
                    "waiting_s": round(waited, 4),
                },
            )
        )
        progress.ended = _ended(job, progress)
        # Judged whenever it ends: what was learned since the last evaluation shall count as well.
        if job.dev_wer is not None and (step % job.plan.eval_every == 0 or progress.ended):
            _evaluate(job, progress)
            progress.seconds = time.monotonic() - started
            progress.ended = _ended(job, progress)
        stop = job.should_stop()
        overdue = time.monotonic() - saved_at >= job.recipe.train.save_minutes * 60
        # A new best is saved at once: it is what the run delivers.
        if progress.ended or stop or overdue or step % job.plan.save_every == 0 or progress.best_step == step:
            _save(job, optimizer, scaler, progress)
            saved_at = time.monotonic()
        if progress.ended:
            break
        if stop:
            raise Stopped(
                f"stopped at step {step} of {job.plan.steps}; everything is saved",
                "the same command goes on from there",
            )
    return progress


def learning_rate(step: int, steps: int, peak: float, warmup: float) -> float:
    """The rate of update `step` (from 1): up to `peak` over the warm-up, then linearly towards 0."""
    rising = max(1, round(steps * warmup))
    if step <= rising:
        return peak * step / rising
    return peak * (steps - step + 1) / (steps - rising + 1)


def schedule(planner: Planner, steps_per_pass: int) -> Iterator[list[Window]]:
    """The windows of each update, pass after pass, without end."""
    for epoch in itertools.count():
        yield from steps_of(planner.epoch(epoch), steps_per_pass)


def loss_sum(
    model: torch.nn.Module,
    batch: Batch,
    device: torch.device,
    precision: str,
    base: torch.nn.Module | None = None,
    kl: float = 0.0,
) -> torch.Tensor:
    """Cross-entropy summed over a micro-batch's targets, float32; divide by the tokens of the whole update.

    Features are always float32: in half precision the powers of quiet speech would be rounded away.

    Args:
        base: adds `kl` times the divergence KL(base || model) of each target's distribution.
    """
    samples = batch.samples.to(device, non_blocking=True)
    with torch.no_grad():
        features = log_mel(samples, model.config.num_mel_bins)
    with _autocast(device, precision):
        frozen = not any(p.requires_grad for p in model.model.encoder.parameters())
        with torch.no_grad() if frozen else nullcontext():
            encoded = model.model.encoder(features).last_hidden_state
        labels = batch.labels.to(device)
        targets = labels != IGNORED
        inputs = batch.decoder_input_ids.to(device)
        logits = _logits(model, inputs, encoded, targets)
    loss = functional.cross_entropy(logits.float(), labels[targets], reduction="sum")
    if base is None:
        return loss
    with torch.no_grad(), _autocast(device, precision):
        theirs = _logits(base, inputs, base.model.encoder(features).last_hidden_state, targets)
    ours, theirs = (functional.log_softmax(each.float(), dim=-1) for each in (logits, theirs))
    return loss + kl * functional.kl_div(ours, theirs, reduction="sum", log_target=True)


def _logits(
    model: torch.nn.Module, inputs: torch.Tensor, encoded: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """(targets, vocabulary): only where there is something to predict."""
    hidden = model.model.decoder(input_ids=inputs, encoder_hidden_states=encoded, use_cache=False)
    return model.proj_out(hidden.last_hidden_state[targets])


def _update(
    job: Training,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    batches: Sequence[Batch],
    step: int,
    rate: float,
) -> tuple[float, float]:
    """One update: the mean loss per target token, and the norm of the gradient before clipping."""
    model = job.tuned.model
    model.train()
    torch.manual_seed(job.recipe.train.seed * 1_000_003 + step)
    tokens = sum(batch.target_tokens for batch in batches)
    total = 0.0
    for batch in batches:
        loss = loss_sum(model, batch, job.device, job.plan.precision, job.base, job.recipe.train.kl) / tokens
        scaler.scale(loss).backward()
        total += float(loss.detach())
    scaler.unscale_(optimizer)
    norm = float(torch.nn.utils.clip_grad_norm_(job.tuned.parameters.values(), job.recipe.train.clip_norm))
    _must_be_finite(job, "the loss", total, step, rate)
    # What overflows by its scale is skipped and the scale halved; below 1 it is not the scale's fault.
    if not scaler.is_enabled() or scaler.get_scale() < 1:
        _must_be_finite(job, "the gradient's norm", norm, step, rate)
    for group in optimizer.param_groups:
        group["lr"] = rate
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    # Asked here, so that such weights are neither judged nor saved: after the last step no loss would tell.
    weights = float(torch.nn.utils.get_total_norm([p.detach() for p in job.tuned.parameters.values()]))
    _must_be_finite(job, "the weights' norm", weights, step, rate)
    return total, norm


def _must_be_finite(job: Training, what: str, value: float, step: int, rate: float) -> None:
    if not math.isfinite(value):
        raise TrainingError(
            f"training diverged: {what} is {value} at step {step} of {job.plan.steps}, "
            f"learning rate {rate:.3g}",
            f"try --set train.learning_rate={job.plan.usual_learning_rate:g}; the base model is unchanged",
        )


def _prefetched(job: Training, done: int) -> Iterator[tuple[int, list[Batch], float]]:
    """(step, micro-batches, seconds waited) from the step after `done`; one step is prepared ahead."""
    groups = itertools.islice(schedule(job.planner, job.plan.steps_per_pass), done, job.plan.steps)

    def prepared(windows: list[Window]) -> list[Batch]:
        size = job.plan.micro_batch
        parts = [windows[first : first + size] for first in range(0, len(windows), size)]
        return [job.renderer.batch(part, job.layout) for part in parts]

    with ThreadPoolExecutor(1) as pool:
        ahead: Future[list[Batch]] | None = None
        for step, windows in enumerate(groups, done + 1):
            following = pool.submit(prepared, windows)
            if ahead is not None:
                yield step - 1, *_waited(ahead)
            ahead = following
        if ahead is not None:
            yield job.plan.steps, *_waited(ahead)


def _waited(ahead: "Future[list[Batch]]") -> tuple[list[Batch], float]:
    begin = time.monotonic()
    return ahead.result(), time.monotonic() - begin


def _evaluate(job: Training, progress: Progress) -> None:
    assert job.dev_wer is not None
    begin = time.monotonic()
    wer = job.dev_wer()
    progress.dev_wer.append((progress.step, wer))
    if progress.best_wer is None or wer < progress.best_wer:
        progress.best_wer, progress.best_step, progress.since_best = wer, progress.step, 0
    else:
        progress.since_best += 1
    seconds = round(time.monotonic() - begin, 2)
    job.emit(Event("dev", {"step": progress.step, "wer": round(wer, 3), "seconds": seconds}))


def _ended(job: Training, progress: Progress) -> str:
    section = job.recipe.train
    if progress.step >= job.plan.steps:
        return "all steps"
    if section.early_stop and progress.since_best >= section.early_stop:
        return "early stop"
    if section.max_minutes is not None and progress.seconds >= section.max_minutes * 60:
        return "time"
    return ""


def _show_first(job: Training, batches: Sequence[Batch]) -> None:
    """Check the label layout of the first update and show it decoded: the classic bugs are visible there."""
    texts = [check_first_batch(batch.decoder_input_ids, batch.labels, job.layout) for batch in batches]
    job.emit(Event("batch", {"rows": [row for text in texts for row in text.splitlines()]}))


def _save(
    job: Training, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, progress: Progress
) -> None:
    held: dict[str, torch.Tensor] = {}
    for name, parameter in job.tuned.parameters.items():
        for key, value in optimizer.state[parameter].items():
            held[f"{name}/{key}"] = torch.as_tensor(value)
    state: dict[str, Any] = {
        "progress": asdict(progress),
        "scaler": scaler.state_dict(),
        "recipe": job.recipe.model_dump(mode="json"),
        "versions": job.plan.versions,
    }
    checkpoints.save(job.folder, progress.step, job.tuned.snapshot(), held, state)
    checkpoints.prune(job.folder, progress.step)
    job.emit(Event("checkpoint", {"step": progress.step, "best": progress.best_step == progress.step}))


def _resumed(job: Training, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> Progress:
    found, wrong = checkpoints.newest(job.folder)
    for fault in wrong:
        job.emit(Event("warning", {"text": fault}))
    if found is None:
        return Progress()
    job.tuned.load(found.weights())
    for path, value in found.optimizer().items():
        name, _, key = path.rpartition("/")
        parameter = job.tuned.parameters[name]
        optimizer.state[parameter][key] = value.to(parameter.device)
    if scaler.is_enabled():
        scaler.load_state_dict(found.state["scaler"])
    saved = found.state["progress"]
    progress = Progress(**{**saved, "dev_wer": [(int(step), float(wer)) for step, wer in saved["dev_wer"]]})
    job.emit(Event("note", {"text": f"going on from step {progress.step} of {job.plan.steps}"}))
    return progress


def _autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    kind = _AUTOCAST.get(precision)
    return torch.autocast(device.type, kind) if kind else nullcontext()
