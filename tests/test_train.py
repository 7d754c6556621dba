"""The training loop with a small random model on generated sound."""

import math
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import real_tokenizer

from whispertune.clip import Clip
from whispertune.corpus import Corpus, CorpusWriter
from whispertune.errors import DataError, MachineError, Stopped, TrainingError
from whispertune.plan import Plan
from whispertune.recipe import Recipe
from whispertune.run import Event

torch = pytest.importorskip("torch")
from transformers import WhisperConfig, WhisperForConditionalGeneration, WhisperTokenizer

from whispertune.engine import checkpoint as checkpoints
from whispertune.engine import train as train_module
from whispertune.engine.features import log_mel
from whispertune.engine.method import Tuned, prepare
from whispertune.engine.tokens import IGNORED, LabelLayout
from whispertune.engine.train import Training, learning_rate, loss_sum, train
from whispertune.engine.windows import Placed, Renderer, Window

VOCABULARY = 51864
TEXTS = [
    "One.",
    "Two rivers meet here.",
    "A longer sentence, so that the labels differ in length.",
    "Four.",
    "The market opens at nine and closes at five in the afternoon.",
    "Six stones.",
]
CPU = torch.device("cpu")


def small_model(vocabulary: int = VOCABULARY, positions: int = 448) -> WhisperForConditionalGeneration:
    """1 + 2 layers, width 16; its weights depend on nothing but torch's generator."""
    eot = vocabulary - 1501 - 107
    config = WhisperConfig(
        vocab_size=vocabulary,
        max_target_positions=positions,
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=1,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        bos_token_id=eot,
        eos_token_id=eot,
        pad_token_id=eot,
        decoder_start_token_id=eot + 1,
    )
    with torch.random.fork_rng():
        model = WhisperForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if "layer_norm" not in name and "encoder.embed_positions" not in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model


def small_corpus(folder: Path, texts: Sequence[str] = TEXTS) -> Corpus:
    rng = np.random.default_rng(0)
    clips = []
    with CorpusWriter(folder) as writer:
        for i, text in enumerate(texts):
            t = np.arange(16_000 * (2 + i % 3)) / 16_000
            tone = np.sin(2 * np.pi * (200 + 90 * i) * t) * 6000 + rng.standard_normal(len(t)) * 300
            shard, offset = writer.add_recording(tone.astype(np.int16))
            clips.append(Clip(f"c{i}", f"c{i}.wav", text, "train", shard, offset, len(t), f"r{i}"))
        writer.finish(clips)
    return Corpus.open(folder)


def make_layout(folder: Path) -> LabelLayout:
    (folder / "tokenizer.json").write_bytes(real_tokenizer("english").read_bytes())
    tokenizer = WhisperTokenizer.from_pretrained(str(folder), local_files_only=True)
    return LabelLayout.from_tokenizer(tokenizer, WhisperConfig(max_target_positions=448), None)


class Pairs:
    """Windows of two clips in an order that only the pass decides, so that nothing here hangs on packing."""

    def __init__(self, corpus: Corpus) -> None:
        self.clips = corpus.clips

    def epoch(self, number: int) -> list[Window]:
        order = [self.clips[i] for i in np.random.default_rng(number).permutation(len(self.clips))]
        windows = []
        for first, second in zip(order[::2], order[1::2], strict=True):
            parts = (Placed(0, (first,)), Placed(first.samples + 3200, (second,)))
            windows.append(Window(parts, prompt="" if windows else "Two rivers"))
        return windows


def plan_of(**changes: Any) -> Plan:
    values = {
        "device": "cpu",
        "precision": "fp32",
        "threads": 1,
        "text_style": "keep",
        "learning_rate": 1e-3,
        "usual_learning_rate": 2e-5,
        "speech_per_step_s": 8.0,
        "steps_per_pass": 2,
        "steps": 4,
        "micro_batch": 2,
        "eval_every": 100,
        "save_every": 100,
        "dev_windows": 0,
        "versions": {"torch": torch.__version__},
        "machine": "here",
    }
    return Plan(**{**values, **changes})


@dataclass
class Told:
    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.events if event.kind == kind]


def make_job(
    folder: Path,
    corpus: Corpus,
    layout: LabelLayout,
    method: str = "full",
    recipe: dict[str, Any] | None = None,
    dev_wer: Callable[[], float] | None = None,
    emit: Callable[[Event], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    **plan: Any,
) -> Training:
    # LoRA's dropout: random numbers must not differ after a resume either.
    lora = {"train.lora_rank": 4, "train.lora_dropout": 0.1}
    settings = Recipe().with_changes({"train.method": method, **lora, **(recipe or {})})
    return Training(
        tuned=prepare(small_model(), settings.train),
        device=CPU,
        planner=Pairs(corpus),  # type: ignore[arg-type]
        renderer=Renderer(corpus, lambda _: layout, lambda clip: clip.text),
        layout=layout,
        recipe=settings,
        plan=plan_of(**plan),
        folder=folder / "checkpoints",
        dev_wer=dev_wer,
        emit=emit or Told(),
        should_stop=should_stop,
    )


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> LabelLayout:
    return make_layout(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return small_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture(autouse=True)
def one_thread():
    """The loop sets the plan's threads; other tests shall not notice."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def kept(job: Training) -> list[str]:
    return sorted(path.name for path in job.folder.iterdir()) if job.folder.is_dir() else []


def assert_identical(ours: Tuned, theirs: dict[str, Any]) -> None:
    weights = ours.snapshot()
    assert weights.keys() == theirs.keys()
    differing = [name for name, weight in weights.items() if not torch.equal(weight, theirs[name])]
    assert not differing


# --- errors first


@pytest.mark.parametrize(
    ("method", "rate", "what"),
    [
        ("full", 1e3, r"the gradient's norm is (nan|inf)"),
        ("decoder", 1e3, r"the gradient's norm is (nan|inf)"),
        ("full", 1e38, r"the weights' norm is (nan|inf)"),
    ],
)
def test_a_silly_learning_rate_stops_and_leaves_no_such_checkpoint(
    tmp_path, corpus, layout, method, rate, what
):
    scores = iter([90.0, 80.0, 70.0, 60.0, 50.0, 40.0])
    job = make_job(
        tmp_path,
        corpus,
        layout,
        method,
        dev_wer=lambda: next(scores),
        learning_rate=rate,
        steps=12,
        eval_every=1,
    )
    told = f"training diverged: {what} at step [1-6] of 12, learning rate [0-9.e+]+$"
    with pytest.raises(TrainingError, match=told) as e:
        train(job)
    assert e.value.hint == "try --set train.learning_rate=2e-05; the base model is unchanged"
    for name in kept(job):
        found = checkpoints.at_step(job.folder, int(name))
        assert all(torch.isfinite(weight).all() for weight in found.weights().values())
    if rate == 1e38:  # the very first update: nothing was judged or saved
        assert not kept(job) and next(scores) == 90.0


def test_a_loss_that_is_not_finite_names_step_and_rate(tmp_path, corpus, layout, monkeypatch):
    real = train_module.loss_sum
    monkeypatch.setattr(train_module, "loss_sum", lambda *args: real(*args) * math.nan)
    job = make_job(tmp_path, corpus, layout)
    with pytest.raises(TrainingError) as error:
        train(job)
    assert error.value.what == "training diverged: the loss is nan at step 1 of 4, learning rate 0.001"
    assert not kept(job)


def test_overflow_that_is_not_the_scales_fault_ends_fp16(tmp_path, corpus, layout, monkeypatch):
    """Else each update would be skipped, to the end of the run."""
    real = train_module.loss_sum

    def broken(model, *rest):
        loss = real(model, *rest)
        return loss + (0 * next(model.parameters()).sum()).sqrt()  # adds 0; its gradient is not finite

    monkeypatch.setattr(train_module, "loss_sum", broken)
    job = make_job(tmp_path, corpus, layout, precision="fp16")
    batches = [job.renderer.batch(job.planner.epoch(0)[:1], layout)]
    optimizer, scaler = torch.optim.AdamW(job.tuned.parameters.values()), torch.amp.GradScaler("cpu", 1.0)
    before = job.tuned.snapshot()
    train_module._update(job, optimizer, scaler, batches, 1, 1e-3)
    assert_identical(job.tuned, before)
    assert scaler.get_scale() == 0.5
    with pytest.raises(TrainingError, match=r"the gradient's norm is nan at step 2 of"):
        train_module._update(job, optimizer, scaler, batches, 2, 1e-3)


def test_an_error_while_a_batch_is_prepared_reaches_the_caller(tmp_path, corpus, layout):
    """Case 35: an error and not a hang. The step before it is done first."""
    told = Told()
    job = make_job(tmp_path, corpus, layout, emit=told)
    real, calls = job.renderer.batch, []

    def broken(windows, default):
        calls.append(1)
        if len(calls) > 1:
            raise DataError("audio-00000.wav is gone")
        return real(windows, default)

    job.renderer.batch = broken
    with pytest.raises(DataError, match=r"audio-00000\.wav is gone"):
        train(job)
    assert [event["step"] for event in told.of("step")] == [1]


def test_a_wrong_label_layout_is_refused_before_any_update(tmp_path, corpus, layout):
    job = make_job(tmp_path, corpus, layout, micro_batch=1, steps_per_pass=1)
    real, before = job.renderer.batch, job.tuned.snapshot()
    made = []

    def end_masked(windows, default):
        batch = real(windows, default)
        made.append(1)
        if len(made) == 2:  # the second micro-batch of the first update is looked at too
            batch.labels[batch.labels == default.eot] = -100
        return batch

    job.renderer.batch = end_masked
    with pytest.raises(TrainingError, match="row 0 of the first batch is wrong: 0 end tokens among the t"):
        train(job)
    assert_identical(job.tuned, before)


def test_a_full_disk_is_said_and_the_earlier_checkpoint_stays(tmp_path, corpus, layout):
    job = make_job(tmp_path, corpus, layout, save_every=1)
    seen = []

    def emit(event):
        if event.kind == "checkpoint":
            seen.append(event.data["step"])
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))

    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    try:
        with pytest.raises(MachineError) as error:
            train(replace(job, emit=emit))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert error.value.what.startswith(f"cannot write the checkpoint of step 2 to {job.folder}: ")
    assert "GB free)" in error.value.what
    assert error.value.hint == (
        "free some room, or use a folder you may write to; the same command goes on with what was done"
    )
    assert seen == [1] and kept(job) == ["000001"]
    assert checkpoints.newest(job.folder)[0].step == 1


# --- the loss


def whole_pass(job: Training, micro_batch: int) -> tuple[float, dict[str, Any]]:
    """Loss and gradients of one update of four windows."""
    windows = [*job.planner.epoch(0), job.planner.epoch(1)[0]]
    parts = [windows[i : i + micro_batch] for i in range(0, len(windows), micro_batch)]
    batches = [job.renderer.batch(part, job.layout) for part in parts]
    tokens = sum(batch.target_tokens for batch in batches)
    total = 0.0
    for batch in batches:
        loss = loss_sum(job.tuned.model, batch, CPU, "fp32") / tokens
        loss.backward()
        total += float(loss.detach())
    return total, {name: p.grad for name, p in job.tuned.parameters.items()}


def test_four_micro_batches_of_one_are_one_of_four(tmp_path, corpus, layout):
    """Case 36: labels of unequal length; loss and gradients do not depend on how an update is cut."""
    first, first_grads = whole_pass(make_job(tmp_path, corpus, layout), 1)
    second, second_grads = whole_pass(make_job(tmp_path, corpus, layout), 4)
    assert first == pytest.approx(second, abs=1e-4)
    for name, grad in first_grads.items():
        torch.testing.assert_close(grad, second_grads[name], rtol=0, atol=1e-4)
        assert grad.abs().max() > 0, name


def test_the_loop_reports_the_same_loss_however_an_update_is_cut(tmp_path, corpus, layout):
    losses = []
    for size in (1, 3):
        told = Told()
        cut = {"micro_batch": size, "steps_per_pass": 1, "steps": 2}
        train(make_job(tmp_path / str(size), corpus, layout, emit=told, **cut))
        losses.append([(event["loss"], event["grad_norm"]) for event in told.of("step")])
    np.testing.assert_allclose(losses[0], losses[1], atol=2e-4)


def test_the_loss_is_that_of_transformers(tmp_path, corpus, layout):
    job = make_job(tmp_path, corpus, layout)
    batch = job.renderer.batch(job.planner.epoch(0), layout)
    model = job.tuned.model.eval()
    with torch.no_grad():
        ours = float(loss_sum(model, batch, CPU, "fp32")) / batch.target_tokens
        features = log_mel(batch.samples, 80)
        theirs = model(
            input_features=features, decoder_input_ids=batch.decoder_input_ids, labels=batch.labels
        ).loss
    assert ours == pytest.approx(float(theirs), abs=1e-4)


def test_the_divergence_from_the_base_is_added(tmp_path, corpus, layout):
    job = make_job(tmp_path, corpus, layout)
    batch = job.renderer.batch(job.planner.epoch(0), layout)
    base, model = small_model().eval(), job.tuned.model.eval()

    def loss(*more: Any) -> float:
        with torch.no_grad():
            return float(loss_sum(model, batch, CPU, "fp32", *more))

    assert loss(base, 1.0) == pytest.approx(loss()), "no distance"
    with torch.no_grad():
        for weight in job.tuned.parameters.values():
            weight.add_(torch.randn_like(weight), alpha=0.05)
    half, whole = (loss(base, weight) - loss() for weight in (0.5, 1.0))
    assert half > 0 and whole == pytest.approx(2 * half, rel=1e-4)

    def probabilities(of: Any) -> torch.Tensor:
        features, inputs = log_mel(batch.samples, 80), batch.decoder_input_ids
        with torch.no_grad():
            return of(input_features=features, decoder_input_ids=inputs).logits[batch.labels != IGNORED].softmax(-1)

    p, q = probabilities(base), probabilities(model)
    assert whole == pytest.approx(float((p * (p / q).log()).sum()), rel=1e-3)
    gradients = torch.autograd.grad(
        loss_sum(model, batch, CPU, "fp32", base, 1.0), list(job.tuned.parameters.values()), allow_unused=True
    )
    assert sum(gradient is not None for gradient in gradients) > 5
    assert all(parameter.grad is None for parameter in base.parameters())


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_features_stay_float32_whatever_the_precision(tmp_path, corpus, layout, precision):
    job = make_job(tmp_path, corpus, layout)
    batch = job.renderer.batch(job.planner.epoch(0)[:1], layout)
    heard = []
    job.tuned.model.model.encoder.register_forward_pre_hook(lambda _, given: heard.append(given[0]))
    loss = loss_sum(job.tuned.model, batch, CPU, precision)
    assert torch.equal(heard[0], log_mel(batch.samples, 80)) and heard[0].dtype == torch.float32
    assert loss.dtype == torch.float32 and math.isfinite(float(loss.detach()))


# Mean loss a target token of the first five updates. Other devices have other arithmetic: numbers measured on
# one go beside these under its name, and the test runs where such a device is.
GOLDEN: dict[str, dict[str, list[float]]] = {
    "cpu": {
        "full": [10.90798, 10.95147, 10.89176, 10.79792, 10.74003],
        "decoder": [10.90798, 10.95463, 10.90399, 10.81035, 10.75435],
        "lora": [10.90798, 10.96266, 10.94201, 10.86255, 10.81877],
    },
    "cuda": {},
    "rocm": {},
}


def device_named(name: str) -> "torch.device":
    kind = "rocm" if torch.version.hip else "cuda"
    if name != "cpu" and (name != kind or not torch.cuda.is_available()):
        pytest.skip(f"no {name} device here")
    return torch.device("cpu" if name == "cpu" else "cuda")


@pytest.mark.parametrize(
    ("name", "method"), [(name, method) for name, known in GOLDEN.items() for method in known]
)
def test_golden_losses(tmp_path, corpus, layout, name, method):
    told = Told()
    recipe = {"train.lora_dropout": 0.0}
    job = make_job(tmp_path, corpus, layout, method, recipe, emit=told, steps=5)
    train(replace(job, device=device_named(name)))
    losses = [event["loss"] for event in told.of("step")]
    np.testing.assert_allclose(losses, GOLDEN[name][method], atol=1e-4, rtol=0)


# --- the schedule


def test_the_rate_rises_over_the_warm_up_and_falls_towards_nothing():
    rates = [learning_rate(step, 10, 1.0, 0.2) for step in range(1, 11)]
    assert rates[:2] == [0.5, 1.0]
    np.testing.assert_allclose(rates[2:], [(11 - step) / 9 for step in range(3, 11)])
    assert [learning_rate(step, 4, 1.0, 0.0) for step in range(1, 5)] == [1.0, 0.75, 0.5, 0.25]
    assert [learning_rate(step, 4, 1.0, 1.0) for step in range(1, 5)] == [0.25, 0.5, 0.75, 1.0]
    assert learning_rate(1, 1, 3e-4, 0.1) == 3e-4


def test_evaluations_and_checkpoints_come_when_asked(tmp_path, corpus, layout):
    told, scores = Told(), iter([50.0, 60.0, 40.0, 45.0])
    job = make_job(
        tmp_path,
        corpus,
        layout,
        dev_wer=lambda: next(scores),
        emit=told,
        steps=7,
        eval_every=2,
        save_every=3,
    )
    progress = train(job)
    # At 2, 4, 6 and the end.
    assert progress.dev_wer == [(2, 50.0), (4, 60.0), (6, 40.0), (7, 45.0)]
    assert [(event["step"], event["wer"]) for event in told.of("dev")] == progress.dev_wer
    # Every third step, each new best and the end.
    saved = [(event["step"], event["best"]) for event in told.of("checkpoint")]
    assert saved == [(2, True), (3, False), (6, True), (7, False)]
    assert (progress.best_step, progress.best_wer, progress.ended) == (6, 40.0, "all steps")
    assert kept(job) == ["000006", "000007"]


def test_the_best_is_kept_without_optimizer_beside_the_newest_two(tmp_path, corpus, layout):
    scores = iter([50.0, 60.0, 60.0, 60.0])
    job = make_job(tmp_path, corpus, layout, dev_wer=lambda: next(scores), eval_every=1, save_every=1)
    train(job)
    assert kept(job) == ["000001", "000003", "000004"]
    assert not (job.folder / "000001" / "optimizer.safetensors").exists()
    assert checkpoints.at_step(job.folder, 1).weights().keys() == job.tuned.parameters.keys()


def test_a_checkpoint_is_due_by_the_clock(tmp_path, corpus, layout):
    told = Told()
    train(make_job(tmp_path, corpus, layout, recipe={"train.save_minutes": 1e-6}, emit=told, steps=3))
    assert [event["step"] for event in told.of("checkpoint")] == [1, 2, 3]


def test_early_stop(tmp_path, corpus, layout):
    scores = iter([50.0, 60.0, 49.0, 55.0, 49.0, 1.0])
    job = make_job(
        tmp_path,
        corpus,
        layout,
        recipe={"train.early_stop": 2},
        dev_wer=lambda: next(scores),
        steps=9,
        eval_every=1,
    )
    progress = train(job)
    assert (progress.ended, progress.step, progress.best_step) == ("early stop", 5, 3)
    # It is over: the same command does nothing more.
    again = make_job(tmp_path, corpus, layout, recipe={"train.early_stop": 2}, steps=9, eval_every=1)
    assert train(again).ended == "early stop"
    assert_identical(again.tuned, job.tuned.snapshot())


def test_max_minutes_counts_earlier_attempts(tmp_path, corpus, layout):
    recipe = {"train.max_minutes": 1e-3}  # 60 ms, about one step
    job = make_job(tmp_path, corpus, layout, recipe=recipe, steps=50)
    progress = train(job)
    assert progress.ended == "time" and progress.step < 10 and progress.seconds >= 0.06
    again = train(make_job(tmp_path, corpus, layout, recipe=recipe, steps=50))
    assert (again.ended, again.step) == ("time", progress.step)

    scores = iter([50.0])  # whatever ended it, the last weights are judged
    judged = make_job(
        tmp_path / "judged", corpus, layout, recipe=recipe, steps=50, dev_wer=lambda: next(scores, 60.0)
    )
    progress = train(judged)
    assert progress.dev_wer == [(progress.step, 50.0)] and progress.best_step == progress.step

    long = make_job(tmp_path / "long", corpus, layout, steps=3, should_stop=lambda: True)
    with pytest.raises(Stopped):
        train(long)
    first = checkpoints.newest(long.folder)[0].state["progress"]["seconds"]
    assert 0 < first < train(make_job(tmp_path / "long", corpus, layout, steps=3)).seconds


def test_what_a_step_tells(tmp_path, corpus, layout):
    told = Told()
    train(make_job(tmp_path, corpus, layout, emit=told, steps=2, micro_batch=1, steps_per_pass=1))
    kinds = [event.kind for event in told.events]
    assert kinds == ["batch", "step", "step", "checkpoint"]
    rows = told.of("batch")[0]["rows"]
    assert rows[0].startswith("in   <|startofprev|> Two rivers<|startoftranscript|><|notimestamps|> ")
    assert rows[1].startswith("out  ···<|notimestamps|> ") and rows[3].startswith("out  <|notimestamps|> ")
    assert rows[1].endswith("<|endoftext|>") and len(rows) == 6  # every window of the first update
    first = told.of("step")[0]
    assert first.keys() == {
        "step",
        "steps",
        "loss",
        "learning_rate",
        "grad_norm",
        "seconds",
        "waiting_s",
    }
    assert (first["step"], first["steps"], first["learning_rate"]) == (1, 2, 1e-3)
    assert 10 < first["loss"] < 12 and first["grad_norm"] > 0 and first["seconds"] > 0


# --- stopped, killed, damaged


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, corpus, layout) -> dict[str, dict[str, Any]]:
    """The weights after four steps of each method."""
    final = {}
    for method in ("full", "decoder", "lora"):
        job = make_job(tmp_path_factory.mktemp(method), corpus, layout, method)
        train(job)
        final[method] = job.tuned.snapshot()
    return final


@pytest.mark.parametrize("method", ["full", "decoder", "lora"])
def test_stopped_after_every_step_reaches_the_same_weights(tmp_path, corpus, layout, undisturbed, method):
    for step in range(1, 4):
        with pytest.raises(Stopped) as error:
            train(make_job(tmp_path, corpus, layout, method, should_stop=lambda: True))
        assert error.value.what == f"stopped at step {step} of 4; everything is saved"
        assert error.value.hint == "the same command goes on from there"
    told = Told()
    last = make_job(tmp_path, corpus, layout, method, emit=told, should_stop=lambda: True)
    assert train(last).ended == "all steps"  # there is nothing left to stop
    assert told.of("note") == [{"text": "going on from step 3 of 4"}] and not told.of("warning")
    assert_identical(last.tuned, undisturbed[method])


def test_a_damaged_checkpoint_is_passed_over(tmp_path, corpus, layout, undisturbed):
    asked = iter([False, False, True])
    with pytest.raises(Stopped):
        train(make_job(tmp_path, corpus, layout, save_every=1, should_stop=lambda: next(asked)))
    file = tmp_path / "checkpoints" / "000003" / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    told = Told()
    job = make_job(tmp_path, corpus, layout, emit=told)
    train(job)
    fault = "optimizer.safetensors does not match its hash"
    assert told.of("warning") == [{"text": f"checkpoint 3 is damaged ({fault}) and is passed over"}]
    assert told.of("note") == [{"text": "going on from step 2 of 4"}]
    assert_identical(job.tuned, undisturbed["full"])


def test_a_checkpoint_of_another_shape_is_refused(tmp_path, corpus, layout):
    with pytest.raises(Stopped):
        train(make_job(tmp_path, corpus, layout, "lora", should_stop=lambda: True))
    with pytest.raises(TrainingError, match="the checkpoint does not fit the model: "):
        train(make_job(tmp_path, corpus, layout, "lora", recipe={"train.lora_rank": 8}))


KILLED = {
    "full": [
        "in a step",
        "half a file",
        "before the rename",
        "after the rename",
        "in a step",
        "while pruning",
    ],
    "decoder": ["after the rename", "at any time"],
    "lora": ["after the rename", "at any time"],
}
"""Where the attempts at one run are killed, one after the other; one killed at any time may be through."""


def killed_runs(folder: Path, corpus: Corpus, layout: LabelLayout) -> None:
    """Run each method again and again, killed each time; called where torch has not worked yet (fork)."""
    for method, places in KILLED.items():
        for place in places:
            child = os.fork()
            if child == 0:
                _run_until(place, folder / method, corpus, layout, method)
                os._exit(1)  # it got through
            if place == "at any time":
                time.sleep(random.uniform(0.0, 0.6))
                os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            survived = not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL
            assert not survived or place == "at any time", (method, place, status)


def _run_until(place: str, folder: Path, corpus: Corpus, layout: LabelLayout, method: str) -> None:
    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def emit(event: Event) -> None:
        if place == "in a step" and event.kind == "step" and event.data["step"] >= 2:
            die()

    def half(tensors: dict[str, Any], file: Path) -> None:
        save_file(tensors, file)
        os.truncate(file, file.stat().st_size // 2)
        die()

    save_file, replace_, rmtree = checkpoints.save_file, os.replace, checkpoints.shutil.rmtree
    if place == "half a file":
        checkpoints.save_file = half
    elif place == "before the rename":
        checkpoints.os.replace = die
    elif place == "after the rename":
        checkpoints.os.replace = lambda *paths: (replace_(*paths), die())
    elif place == "while pruning":

        def pruned(path: Path, ignore_errors: bool = False) -> None:
            if path.name.isdigit():
                (path / "weights.safetensors").unlink()
                die()
            rmtree(path, ignore_errors=ignore_errors)

        checkpoints.shutil.rmtree = pruned
    train(make_job(folder, corpus, layout, method, emit=emit, save_every=1))


@pytest.fixture(scope="module")
def killed(tmp_path_factory, corpus, layout) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import test_train as t;"
        "folder = Path(sys.argv[2]); corpus = t.Corpus.open(Path(sys.argv[3]));"
        "t.killed_runs(folder, corpus, t.make_layout(folder))"
    )
    given = [Path(__file__).parent, folder, corpus.folder]
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, given)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.mark.real  # a process of its own
@pytest.mark.parametrize("method", ["full", "decoder", "lora"])
def test_killed_at_any_moment_reaches_the_same_weights(killed, corpus, layout, undisturbed, method):
    told = Told()
    job = make_job(killed / method, corpus, layout, method, emit=told, save_every=1)
    assert train(job).ended == "all steps"
    assert_identical(job.tuned, undisturbed[method])
    assert not told.of("warning")  # a kill damages nothing: there is only more to do again
    if method == "full":  # the last kill was after the checkpoint of step 3
        assert told.of("note") == [{"text": "going on from step 3 of 4"}]
        assert kept(job) == ["000003", "000004"]


# --- what trains


def test_decoder_tuning_leaves_the_encoder_bit_identical(tmp_path, corpus, layout, undisturbed):
    base = dict(small_model().named_parameters())
    trained = undisturbed["decoder"]
    changed = {name for name, weight in trained.items() if not torch.equal(weight, base[name])}
    assert trained.keys() == changed == {name for name in base if name.startswith("model.decoder.")}
    # What is not among the trained is the model itself, which the loop ran.
    encoder = {name: weight for name, weight in base.items() if name.startswith("model.encoder.")}
    job = make_job(tmp_path, corpus, layout, "decoder", steps=1)
    train(job)
    after = dict(job.tuned.model.named_parameters())
    assert all(torch.equal(after[name], weight) for name, weight in encoder.items())


def test_encoder_positions_never_train(undisturbed):
    positions = "model.encoder.embed_positions.weight"
    names = {name for name, _ in small_model().named_parameters()}
    assert undisturbed["full"].keys() == names - {positions}
    before = small_model().state_dict()
    assert all(not torch.equal(weight, before[name]) for name, weight in undisturbed["full"].items())


def test_everything_that_trains_is_float32_under_autocast(tmp_path, corpus, layout):
    """Case 40: an update of 1e-5 added to a bf16 weight is rounded away."""
    job = make_job(tmp_path, corpus, layout, precision="bf16", learning_rate=1e-6, steps=1)
    before = job.tuned.snapshot()
    train(job)
    found = checkpoints.newest(job.folder)[0]
    assert {weight.dtype for weight in found.weights().values()} == {torch.float32}
    assert {value.dtype for value in found.optimizer().values()} == {torch.float32}
    moved = [name for name, weight in job.tuned.snapshot().items() if not torch.equal(weight, before[name])]
    assert set(moved) >= {name for name in before if "embed" in name or "fc1.weight" in name}
