"""What the plan chooses for a model, a corpus and a machine, with the reasons and warnings it gives."""

import json
import math
from dataclasses import replace

import pytest

from whispertune.plan import CorpusFacts, MachineFacts, ModelFacts, Plan, make_plan, usual_learning_rate
from whispertune.recipe import Recipe

GB = 2**30
TINY = ModelFacts("tiny.en", 384, 4, 4, 37_760_256)
SMALL = ModelFacts("small", 768, 12, 12, 241_734_912)
LARGE = ModelFacts("large-v3", 1280, 32, 32, 1_543_490_560)
CPU = MachineFacts(
    "cpu", "there is no GPU", "fp32", "fp32 100 GFLOP/s", 16 * GB, 2, {"torch": "2.13.0"}, "2 cores"
)
GPU = replace(CPU, device="cuda", device_reason="a card", precision="bf16", memory_bytes=24 * GB)
HOUR = CorpusFacts(3600.0, 140, 20, unstyled_labels=False)
QUARTER = CorpusFacts(900.0, 36, 6, unstyled_labels=False)


def plan(
    corpus: CorpusFacts = HOUR, model: ModelFacts = TINY, machine: MachineFacts = CPU, **changes: object
) -> Plan:
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return make_plan(Recipe().with_changes(named), corpus, model, machine)


# --- warnings first


@pytest.mark.parametrize(
    ("method", "model", "rate", "warned"),
    [
        (
            "full",
            TINY,
            1e3,
            "learning rate 1000 is 40000000 times the usual 2.5e-05 for full tuning of tiny.en",
        ),
        (
            "lora",
            LARGE,
            3e-3,
            "learning rate 0.003 is 24 times the usual 0.000125 for lora tuning of large-v3",
        ),
        ("full", LARGE, 1e-4, "learning rate 0.0001 is 20 times the usual 5e-06 for full tuning of large-v3"),
        ("full", TINY, 2.5e-4, None),  # ten times is bold, not silly
        ("lora", TINY, 1e-3, None),
    ],
)
def test_a_silly_learning_rate_is_warned_of(method, model, rate, warned):
    made = plan(model=model, train__method=method, train__learning_rate=rate)
    assert made.warnings == ((f"{warned}: training may diverge",) if warned else ())
    assert made.learning_rate == rate  # as asked all the same
    assert made.reasons["learning_rate"] == "as asked"


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({"train__passes": 12.0}, "12 passes over the same clips: past 10 a model learns them by heart"),
        ({"train__passes": 10.0}, None),
        # 33 updates are a pass: so many steps are passes too.
        ({"train__steps": 500}, "15.15 passes over the same clips: past 10 a model learns them by heart"),
        ({"train__steps": 330}, None),
        ({"train__steps": 10, "train__passes": 50.0}, None),  # steps win
    ],
)
def test_more_than_ten_passes_are_warned_of(changes, warned):
    made = plan(**{"train__speech_per_step_s": 108.0, **changes})
    assert made.steps_per_pass == 33
    assert made.warnings == ((warned,) if warned else ())


# --- what is chosen


@pytest.mark.parametrize(
    ("width", "full"), [(384, 2.5e-5), (512, 2e-5), (768, 1e-5), (1024, 6.25e-6), (1280, 5e-6), (64, 2.5e-5)]
)
def test_learning_rates_by_size_and_method(width, full):
    assert usual_learning_rate(width, "full") == usual_learning_rate(width, "decoder") == full
    assert usual_learning_rate(width, "lora") == pytest.approx(25 * full)


@pytest.mark.parametrize(
    ("speech_s", "windows", "changes", "per_step", "per_pass", "steps"),
    [
        (3600.0, 140, {}, 108.0, 33, 99),  # a hundredth of three hours
        (900.0, 36, {}, 60.0, 15, 45),  # not under 60 s
        (360_000.0, 13_000, {}, 240.0, 1500, 4500),  # not over 240 s
        (3600.0, 140, {"train__passes": 0.5}, 60.0, 60, 30),
        (3600.0, 140, {"train__speech_per_step_s": 30.0}, 30.0, 120, 360),
        (3600.0, 140, {"train__steps": 7}, 108.0, 33, 7),  # overrides passes
        (20.0, 1, {}, 60.0, 1, 3),
        (3600.0, 140, {"train__speech_per_step_s": 1.0}, 1.0, 140, 420),  # never an update without a window
        (3600.0, 140, {"train__passes": 0.001}, 60.0, 60, 1),
    ],
)
def test_steps_are_counted_in_speech(speech_s, windows, changes, per_step, per_pass, steps):
    made = plan(CorpusFacts(speech_s, windows, 4, False), **changes)
    assert (made.speech_per_step_s, made.steps_per_pass, made.steps) == (per_step, per_pass, steps)
    asked = "train__steps" in changes
    passes = changes.get("train__passes", 3.0)
    assert made.reasons["steps"] == ("as asked" if asked else f"{passes:g} passes of {per_pass}")
    named = "train__speech_per_step_s" in changes
    expected = "as asked" if named else "about 100 updates in all, 60 to 240 s each"
    assert made.reasons["speech_per_step_s"] == expected


def test_packing_changes_no_count_of_updates():
    packed, single = HOUR, replace(HOUR, train_windows=900)
    assert plan(packed).steps == plan(single).steps


@pytest.mark.parametrize(
    ("model", "machine", "changes", "batch"),
    [
        (TINY, CPU, {}, 4),  # more only costs memory on a CPU
        (TINY, GPU, {}, 5),  # no more than an update has
        (LARGE, GPU, {}, 1),  # weights and moments alone take 23 GiB
        (LARGE, replace(GPU, memory_bytes=8 * GB), {}, 1),
        (SMALL, replace(GPU, memory_bytes=12 * GB), {}, 1),
        (SMALL, GPU, {"train__speech_per_step_s": 3600.0}, 2),
        (TINY, GPU, {"train__speech_per_step_s": 3600.0}, 16),
        (LARGE, CPU, {"train__micro_batch": 32}, 32),
    ],
)
def test_micro_batches_fit_the_memory(model, machine, changes, batch):
    made = plan(model=model, machine=machine, **changes)
    assert made.micro_batch == batch
    asked = "train__micro_batch" in changes
    assert made.reasons["micro_batch"] == (
        "as asked" if asked else "windows at once that fit the memory; the loss is the same"
    )


@pytest.mark.parametrize(
    ("asked", "unstyled", "style", "why"),
    [
        (None, False, "keep", "labels have case and punctuation"),
        (
            None,
            True,
            "base",
            "labels lack case or punctuation and would teach the model to shout: both are copied from the "
            "base model",
        ),
        ("keep", True, "keep", "as asked"),
        ("sentence", False, "sentence", "as asked"),
    ],
)
def test_text_style(asked, unstyled, style, why):
    made = plan(replace(HOUR, unstyled_labels=unstyled), data__text_style=asked)
    assert (made.text_style, made.reasons["text_style"]) == (style, why)


def test_what_the_machine_decided_is_taken_over():
    made = plan(machine=replace(GPU, threads=3), machine__threads=3)
    assert (made.device, made.precision, made.threads) == ("cuda", "bf16", 3)
    assert made.reasons["device"] == "a card" and made.reasons["precision"] == "fp32 100 GFLOP/s"
    assert made.reasons["threads"] == "as asked" and plan().reasons["threads"] == "the cores at hand"
    assert (made.versions, made.machine) == ({"torch": "2.13.0"}, "2 cores")


# --- dev evaluations


@pytest.mark.parametrize(
    ("corpus", "changes", "every", "windows", "reason"),
    [
        # An hour, packed in 140 windows, three times: what decoding 70 windows takes may go into dev.
        (HOUR, {}, 8, 5, "4 a pass, on 5 packed dev windows of 20: about 10 % of the time"),
        # With less, rather fewer evaluations than under four windows each.
        (
            replace(HOUR, train_windows=80),
            {},
            16,
            5,
            "2 a pass, on 5 packed dev windows of 20: about 10 % of the time",
        ),
        (QUARTER, {}, 15, 6, "1 a pass, on 6 packed dev windows of 6: about 10 % of the time"),
        (
            CorpusFacts(36_000.0, 1400, 200, False),
            {},
            38,
            58,
            "4 a pass, on 58 packed dev windows of 200: about 10 % of the time",
        ),
        (
            HOUR,
            {"train__eval_every": 50},
            50,
            20,
            "as asked, on 20 packed dev windows of 20: about 10 % of the time",
        ),
        # Four windows are heard even where a tenth of the time does not pay for them: then no share is said.
        (QUARTER, {"train__eval_every": 1}, 1, 4, "as asked, on 4 packed dev windows of 6"),
        (QUARTER, {"train__steps": 1}, 15, 4, "1 a pass, on 4 packed dev windows of 6"),
        (CorpusFacts(40.0, 1, 1, False), {}, 1, 1, "1 a pass, on 1 packed dev windows of 1"),
        (replace(HOUR, dev_windows=0), {}, 99, 0, "there are no dev clips: the last checkpoint is delivered"),
    ],
)
def test_dev_evaluations_cost_a_tenth_at_most(corpus, changes, every, windows, reason):
    made = plan(corpus, **changes)
    assert (made.eval_every, made.dev_windows, made.reasons["eval_every"]) == (every, windows, reason)


@pytest.mark.parametrize("method", ["full", "decoder", "lora"])
@pytest.mark.parametrize("steps", [10, 37, 100, 1000])
@pytest.mark.parametrize("every", [None, 3, 7, 50])
def test_what_is_said_to_be_a_tenth_is_one(method, steps, every):
    """The evaluation after the last update is counted too."""
    corpus = CorpusFacts(7200.0, 280, 100, False)
    made = plan(corpus, train__method=method, train__steps=steps, train__eval_every=every)
    trained = corpus.train_windows * steps / made.steps_per_pass
    evaluations = len({*range(made.eval_every, steps + 1, made.eval_every), steps})
    cost = {"full": 0.6, "lora": 0.6, "decoder": 0.9}[method] * made.dev_windows * evaluations
    if "10 % of the time" in made.reasons["eval_every"]:
        assert cost <= 0.1 * trained * 1.0001
    else:
        assert made.dev_windows == 4
    assert math.ceil(steps / made.eval_every) == evaluations


def test_dev_share_buys_more_windows():
    big = replace(HOUR, dev_windows=500)
    less, more = plan(big, eval__dev_share=0.05), plan(big, eval__dev_share=0.5)
    assert less.dev_windows * math.ceil(less.steps / less.eval_every) < more.dev_windows * math.ceil(
        more.steps / more.eval_every
    )
    assert more.reasons["eval_every"].endswith("about 50 % of the time")


@pytest.mark.parametrize(
    ("asked", "every", "why"),
    [(None, 8, "with each dev evaluation, and after 5 minutes"), (100, 100, "as asked")],
)
def test_checkpoints(asked, every, why):
    made = plan(train__save_every=asked)
    assert (made.save_every, made.reasons["save_every"]) == (every, why)


# --- frozen


def test_a_plan_comes_back_from_json_as_it_was():
    made = plan(train__learning_rate=1.0, train__passes=11.0)
    assert len(made.warnings) == 2
    assert Plan.from_dict(json.loads(json.dumps(made.as_dict()))) == made


def test_every_reason_is_of_a_value():
    made = plan()
    assert set(made.reasons) <= set(made.as_dict())
    assert all(made.reasons.values())
