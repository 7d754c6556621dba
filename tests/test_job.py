"""The whole job with a small random model on generated sound: each stage real, resumable, and offline."""

import csv
import functools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import wave
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import real_tokenizer

from whispertune.corpus import Corpus
from whispertune.data.importers import import_source
from whispertune.errors import DataError, ModelError, Refused, Stopped, UsageError, WhispertuneError
from whispertune.recipe import Recipe, to_toml_value
from whispertune.run import Event, Run, write_json

pytest.importorskip("torch")

WORDS = ["apple", "river", "stone", "garden", "window", "yellow", "market", "silver", "planet", "candle"]
QUICK = {
    "data.guards": (),
    "eval.probes": False,
    "machine.device": "cpu",
    "machine.precision": "fp32",
    "machine.threads": 1,
    "train.steps": 2,
    "train.eval_every": 1,
    "eval.resamples": 1000,
    "eval.max_new_tokens": 4,
}


def make_source(folder: Path, texts: Sequence[str], seed: int = 0, **columns: Sequence[str]) -> Path:
    """A folder of short tones, each another one, with metadata.csv."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    t = np.arange(16_000) / 16_000
    rows = []
    for i, text in enumerate(texts):
        tone = np.sin(2 * np.pi * (200 + 37 * i) * t) * (0.5 + 0.5 * np.sin(2 * np.pi * 3 * t))
        samples = (tone * 8000 + rng.standard_normal(len(t)) * 500).astype("<i2")
        with wave.open(str(folder / f"c{i:02d}.wav"), "wb") as file:
            file.setparams((1, 2, 16_000, 0, "NONE", ""))
            file.writeframes(samples.tobytes())
        rows.append({"file_name": f"c{i:02d}.wav", "text": text, **{k: v[i] for k, v in columns.items()}})
    with (folder / "metadata.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return folder


def sentences(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [f"{' '.join(rng.choice(WORDS, 3)).capitalize()}, {2 * chr(97 + i)}." for i in range(count)]


SPLIT = ["train"] * 6 + ["dev"] * 2 + ["test"] * 4


def make_corpus(folder: Path, texts: Sequence[str] | None = None, **columns: Sequence[str]) -> Path:
    columns = {"split": SPLIT, **columns}
    source = make_source(folder.with_name(f"{folder.name}-source"), texts or sentences(12), **columns)
    import_source(source, folder)
    return folder


def make_model(folder: Path, kind: str) -> Path:
    """A random Whisper of width 16, one layer on each side, with a real tokenizer."""
    import torch
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    vocabulary = {"multilingual": 51865, "english": 51864}[kind]
    eot = vocabulary - 1501 - 107
    config = WhisperConfig(
        vocab_size=vocabulary,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=1,
        decoder_attention_heads=1,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        bos_token_id=eot,
        eos_token_id=eot,
        pad_token_id=eot,
        decoder_start_token_id=eot + 1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        WhisperForConditionalGeneration(config).save_pretrained(folder)
    shutil.copy(real_tokenizer(kind), folder / "tokenizer.json")
    WhisperFeatureExtractor().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "small.en", "english")


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "small", "multilingual")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its labels shout, so they are written as the base model would write them."""
    texts = [text.upper().strip(".") for text in sentences(12)]
    return make_corpus(tmp_path_factory.mktemp("corpus") / "clips", texts)


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guard") / "general"
    return make_corpus(folder, sentences(3, seed=9), split=["test"] * 3)


@pytest.fixture(scope="module", autouse=True)
def measured_once_and_offline(quick_tokenizers):
    """The machine is probed once, not once a run (1.5 s); and nothing may reach for the network (case 46)."""
    from whispertune.engine import device

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was asked for")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex"):
            patch.setattr(socket.socket, name, refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        patch.setattr(device, "probe_precision", functools.cache(device.probe_precision))
        yield


class Told:
    """What a job says, and a way to stop it: `stop_at` is asked of each event."""

    def __init__(self, stop_at: Callable[[Event], bool] = lambda _: False) -> None:
        self.events: list[Event] = []
        self.stop = False
        self._stop_at = stop_at

    def emit(self, event: Event) -> None:
        self.events.append(event)
        self.stop = self.stop or self._stop_at(event)

    def lines(self, label: str) -> list[str]:
        return [e.data["text"] for e in self.events if e.kind == "line" and e.data["label"] == label]

    def warnings(self) -> list[str]:
        return [e.data["text"] for e in self.events if e.kind == "warning"]

    def stages(self) -> list[str]:
        return [e.data["name"] for e in self.events if e.kind == "stage" and e.data["state"] == "end"]


def run_of(folder: Path, model: Path, corpus: Path, **changes: Any) -> Run:
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    recipe = Recipe().with_changes({**QUICK, "model.name": str(model), "data.corpus": str(corpus), **changes})
    return Run.create(folder, recipe)


def train(run: Run, told: Told | None = None) -> dict[str, Any]:
    from whispertune import steps

    told = told or Told()
    return steps.train(str(run.folder), told.emit, lambda: told.stop)


def refused(run: Run) -> WhispertuneError:
    with pytest.raises(WhispertuneError) as error:
        train(run)
    return error.value


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch):
    """No weight may be loaded."""
    from whispertune import job

    def load(*_: Any) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(job, "load", load)


# -- what is refused before any weight is loaded ------------------------------------------------------------


@pytest.mark.usefixtures("no_weights")
class TestRefused:
    def test_a_model_that_is_not_there_names_the_nearest(self, tmp_path: Path, corpus: Path):
        error = refused(run_of(tmp_path / "r", Path("tiny.em"), corpus))
        assert error.what == "there is no model 'tiny.em': no such size, file or folder"
        assert error.hint == "did you mean 'tiny.en'?" and isinstance(error, ModelError)

    def test_a_corpus_that_is_not_there(self, tmp_path: Path, english: Path):
        error = refused(run_of(tmp_path / "r", english, tmp_path / "none"))
        assert error.what == f"there is no corpus at {tmp_path / 'none'}"

    def test_a_multilingual_model_without_a_language(self, tmp_path: Path, multilingual: Path, corpus: Path):
        error = refused(run_of(tmp_path / "r", multilingual, corpus))
        assert "language" in error.what and "--language" in f"{error.what} {error.hint}"

    def test_an_english_model_with_french(self, tmp_path: Path, english: Path, corpus: Path):
        error = refused(run_of(tmp_path / "r", english, corpus, model__language="fr"))
        assert "fr" in error.what and "English" in error.what

    def test_a_guard_in_a_language_that_the_model_lacks(self, tmp_path: Path, english: Path, corpus: Path):
        french = make_corpus(tmp_path / "french", sentences(2), split=["test"] * 2, language=["fr"] * 2)
        error = refused(run_of(tmp_path / "r", english, corpus, data__guards=(str(french),)))
        assert "fr" in error.what and "English" in error.what

    def test_no_clips_to_train_on(self, tmp_path: Path, english: Path):
        tests = make_corpus(tmp_path / "tests", sentences(3), split=["test"] * 3)
        error = refused(run_of(tmp_path / "r", english, tests))
        assert error.what == (
            f"{tests} has no clips to train on: of 3, 3 are in other splits and 0 are left out (left_out.txt)"
        )
        assert error.hint == "import it again without a split column, or with --split 90/10"

    def test_no_clips_to_test_on(self, tmp_path: Path, english: Path):
        source = make_source(tmp_path / "one", ["Only one."])
        import_source(source, tmp_path / "clips")
        error = refused(run_of(tmp_path / "r", english, tmp_path / "clips"))
        assert error.what == (
            f"{tmp_path / 'clips'} has no test clips, so nobody could say whether the model got better"
        )

    def test_a_run_that_somebody_works_on(self, tmp_path: Path, english: Path, corpus: Path):
        run = run_of(tmp_path / "r", english, corpus)
        with run.locked():
            assert refused(run).what == f"another process is working on {run.folder}"


def test_clips_over_the_token_limit_are_named_before_any_weight_is_loaded(
    tmp_path: Path, english: Path, monkeypatch: pytest.MonkeyPatch
):
    """448 tokens as the model is fed are trained on, 449 are left out by name; case 2."""
    from whispertune import job as job_module
    from whispertune.data import importers, validate
    from whispertune.engine.model import load_tokenizer, resolve

    monkeypatch.setattr(validate, "MAX_LETTERS_S", 1e9)  # a second of sound that says 448 tokens
    monkeypatch.setattr(validate, "FAST_LETTERS_S", 1e9)
    tokenizer = load_tokenizer(resolve(str(english))).tokenizer
    special = 2  # <|startoftranscript|><|notimestamps|>; the end token is not fed
    fits, long = (" a" * (448 - special)).strip(), (" a" * (449 - special)).strip()
    assert len(tokenizer(" " + fits, add_special_tokens=False).input_ids) == 448 - special
    texts = sentences(12)
    texts[0], texts[1] = fits, long
    corpus = make_corpus(tmp_path / "clips", texts)
    assert importers  # the importer asks `validate`

    def load(*_: Any) -> None:
        raise KeyError("weights")

    monkeypatch.setattr(job_module, "load", load)
    run, told = run_of(tmp_path / "r", english, corpus), Told()
    with pytest.raises(KeyError, match="weights"):
        train(run, told)
    message = "c01.wav: 449 tokens as the model counts them; it takes 448"
    assert (run.folder / "left_out.txt").read_text() == f"{message}\n"
    assert told.warnings()[-1] == f"left out: {message}"
    assert told.warnings()[0].startswith("4 test clips in 4 groups (clip): with fewer than 6")
    assert told.lines("check") == ["5 clips to train on, 5 s; 1 left out (rejected.jsonl, left_out.txt)"]


def test_a_segment_left_out_takes_no_other_segment_of_its_recording_along(
    tmp_path: Path, english: Path, monkeypatch: pytest.MonkeyPatch, no_weights: None
):
    from whispertune.data import validate

    monkeypatch.setattr(validate, "MAX_LETTERS_S", 1e9)
    source = make_source(tmp_path / "source", ["x"] * 2)
    (source / "metadata.csv").write_text(
        "file_name,text,start,end,split\n"
        f"c00.wav,{'a ' * 500},0,0.3,train\nc00.wav,Short.,0.3,0.6,train\nc00.wav,Dev.,0.6,1,dev\n"
        "c01.wav,Test.,0,1,test\n"
    )
    import_source(source, tmp_path / "clips")
    told = Told()
    with pytest.raises(AssertionError, match="weights were loaded"):
        train(run_of(tmp_path / "r", english, tmp_path / "clips"), told)
    assert told.lines("check")[0].startswith("1 clips to train on")


# -- the job ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, english: Path, corpus: Path, guard: Path
) -> tuple[Run, dict[str, Any], Told]:
    """A run from end to end, with two guards of one name."""
    again = tmp_path_factory.mktemp("again") / "general"
    shutil.copytree(guard, again)
    run = run_of(tmp_path_factory.mktemp("run") / "r", english, corpus, data__guards=(str(guard), str(again)))
    told = Told()
    return run, train(run, told), told


@pytest.mark.real
def test_the_run_holds_what_the_design_names(finished):
    run, report, _ = finished
    names = {path.name for path in run.folder.iterdir()}
    assert names >= {
        "recipe.toml",
        "plan.json",
        "events.jsonl",
        "checkpoints",
        "model",
        "baseline.json",
        "report.json",
        "report.html",
        "left_out.txt",
    }
    assert list(json.loads(run.report_file.read_text("utf-8")))[:8] == [
        "verdict",
        "goal",
        "before",
        "after",
        "difference",
        "guards",
        "words",
        "clips",
    ]
    assert run.report == json.loads(json.dumps(report))
    assert (report["clips"], report["words"]) == (4, 16)
    assert [guard["name"] for guard in report["guards"]] == ["general", "general-2"]
    assert not [path for path in run.folder.rglob("*.partial")]


@pytest.mark.real
def test_it_says_what_it_does(finished):
    run, _, told = finished
    assert told.lines("check") == ["6 clips to train on, 6 s"]
    assert told.lines("plan")[0].startswith("all weights · cpu fp32, as asked (")
    assert "WER on test (4 clips, 16 words) · " in told.lines("baseline")[0]
    assert told.lines("label")[0].endswith("<|endoftext|>")
    assert told.lines("training")[0].startswith("2 of 2 steps in ")
    assert told.stages() == ["baseline", "alternatives", "labels", "training", "delivery", "evaluation"]
    assert [e["step"] for e in run.events("step")] == [1, 2]
    assert list(run.tensorboard.glob("events.out.tfevents.*"))


@pytest.mark.real
def test_labels_without_case_are_written_as_the_base_model_would(finished, corpus: Path):
    run, _, told = finished
    assert (run.plan or {})["text_style"] == "base"
    labels = json.loads((run.folder / "labels.json").read_text("utf-8"))
    held = [clip for clip in Corpus.open(corpus).clips if clip.split != "test"]
    assert labels.keys() == {clip.id for clip in held}
    for clip in held:
        bare = [word.strip(".,!?").casefold() for word in labels[clip.id].split()]
        assert bare == [word.strip(".,!?").casefold() for word in clip.text.split()]
        assert not labels[clip.id].isupper()
    assert all(word not in told.lines("label")[0] for word in map(str.upper, WORDS))


@pytest.mark.real
def test_the_delivered_model_loads_and_is_not_the_base(finished, english: Path):
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

    run, report, _ = finished
    model = WhisperForConditionalGeneration.from_pretrained(run.model_folder, local_files_only=True)
    WhisperProcessor.from_pretrained(run.model_folder, local_files_only=True)
    config = json.loads((run.model_folder / "generation_config.json").read_text())
    assert "language" not in config and "task" not in config, "an English model takes neither"
    assert getattr(model.generation_config, "forced_decoder_ids", None) is None
    settings = report["settings"]
    assert settings["model"]["fingerprint"] != settings["tuned"]["fingerprint"]


@pytest.mark.real
def test_one_model_gets_one_number(finished, english: Path, corpus: Path):
    """Evaluated twice, or through train and eval: case 12."""
    from whispertune import steps

    run, report, _ = finished
    settings = run.recipe.model_dump()
    told = Told()

    def score(model: Path) -> dict[str, Any]:
        found = steps.evaluate(str(model), str(corpus), None, settings, told.emit, lambda: False)
        assert found["decode"] == report["settings"]["decode"]
        return found["sets"]["test"]

    assert score(english) == score(english) == report["sets"]["test"]["before"]
    assert score(run.folder) == report["sets"]["test"]["after"]
    both = steps.evaluate(str(run.folder), str(corpus), str(english), settings, told.emit, lambda: False)
    for key in ("verdict", "before", "after", "difference"):
        assert both["verdict"] in ("better", "worse", "no_difference") and key in both
    assert (both["before"], both["after"]) == (report["before"], report["after"])


@pytest.mark.real
def test_export_is_proved_and_refuses_what_it_cannot_do(finished, tmp_path: Path):
    from whispertune import steps

    run, report, told = finished
    arguments = {"emit": told.emit, "should_stop": lambda: False}
    with pytest.raises(UsageError) as unknown:
        steps.export(str(run.folder), "mp3", str(tmp_path / "x"), None, **arguments)
    assert (unknown.value.what, unknown.value.hint) == ("there is no export format 'mp3'", "formats: hf")
    with pytest.raises(DataError) as missing:
        steps.export(str(run.folder), "hf", str(tmp_path / "x"), 99, **arguments)
    assert missing.value.what == f"{run.folder} has no checkpoint of step 99; kept are 1, 2"
    judged = run.report_file.read_text("utf-8")
    try:
        write_json(run.report_file, report | {"verdict": "worse", "sentence": "WORSE for you. Keep the base model."})
        with pytest.raises(Refused) as gate:
            steps.export(str(run.folder), "hf", str(tmp_path / "x"), None, **arguments)
    finally:
        run.report_file.write_text(judged, "utf-8")
    assert gate.value.what == f"{run.folder} is not exported: WORSE for you. Keep the base model."
    assert "--force" in gate.value.hint and gate.value.exit_code == 3 and not (tmp_path / "x").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("")
    with pytest.raises(ModelError, match="exists already"):
        steps.export(str(run.folder), "hf", str(tmp_path / "mine"), None, **arguments)
    assert (tmp_path / "mine" / "notes.txt").exists()


@pytest.mark.real
def test_a_recording_is_transcribed(finished, tmp_path: Path):
    from whispertune import steps

    run, _, told = finished
    source = make_source(tmp_path / "s", ["x"])
    arguments = {"recipe": run.recipe.model_dump(), "emit": told.emit, "should_stop": lambda: False}
    (found,) = steps.transcribe(str(run.folder), [str(source / "c00.wav")], **arguments)
    assert found["file"] == str(source / "c00.wav") and found["segments"][0]["end"] == 1.0
    with pytest.raises(DataError, match=r"^there is no file none\.wav$"):
        steps.transcribe(str(run.folder), ["none.wav"], **arguments)


@pytest.mark.real
def test_a_tuned_model_is_tuned_further_on_a_corpus_that_was_moved(finished, tmp_path: Path):
    """`--from RUN`; a corpus holds no absolute path (case 30); without a dev split the last checkpoint
    counts."""
    run, report, _ = finished
    moved = make_corpus(tmp_path / "clips", sentences(4), split=["train", "test", "test", "test"])
    moved = moved.rename(tmp_path / "elsewhere")
    assert not Corpus.open(moved).split("dev")
    found = train(run_of(tmp_path / "r", run.folder, moved))
    assert found["settings"]["model"]["fingerprint"] == report["settings"]["tuned"]["fingerprint"]
    assert found["curves"]["best_step"] == 2 and found["curves"]["dev_wer"] == []
    assert found["notes"] == [
        "General speech was not checked: give a corpus of it with --guard.",
        "There were no dev clips, so the last checkpoint was delivered.",
    ]


# -- going on -----------------------------------------------------------------------------------------------


def weights(run: Run) -> bytes:
    return (run.model_folder / "model.safetensors").read_bytes()


@pytest.mark.real
def test_it_goes_on_after_a_stop_in_each_stage(tmp_path: Path, english: Path, corpus: Path, finished):
    """Stopped in the baseline, in training and in the evaluation; killed before the report: the same weights
    and the same report as an undisturbed run."""
    from whispertune import job as job_module

    run = run_of(tmp_path / "r", english, corpus, data__guards=finished[0].recipe.data.guards)

    def in_bar(label: str) -> Callable[[Event], bool]:
        return lambda e: e.kind == "progress" and e.data["label"] == label

    def stopped(at: Callable[[Event], bool]) -> tuple[Stopped, Told]:
        told = Told(at)
        with pytest.raises(Stopped) as error:
            train(run, told)
        assert error.value.exit_code == 130
        return error.value, told

    error, _ = stopped(in_bar("baseline"))
    assert (error.what, error.hint) == ("stopped during baseline", "the same command goes on from here")
    assert not run.baseline_file.exists()
    error, told = stopped(lambda e: e.kind == "step")
    assert error.what == "stopped at step 1 of 2; everything is saved"
    assert [path.name for path in run.checkpoints.iterdir()] == ["000001"]
    error, told = stopped(in_bar("evaluate"))
    assert error.what == "stopped during evaluate" and told.stages() == ["training", "delivery"]
    assert any(e.kind == "note" and e.data["text"] == "going on from step 1 of 2" for e in told.events)

    def killed(*_: Any) -> None:
        raise MemoryError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_module, "render_page", killed)
        with pytest.raises(MemoryError):
            train(run)
    assert not run.is_finished
    told = Told()
    report = train(run, told)
    assert told.stages() == ["training"], "nothing was done twice"
    assert weights(run) == weights(finished[0])
    same = finished[1]
    for key in ("before", "after", "difference", "guards", "sets", "clips_changed", "curves"):
        assert report[key] == same[key], key
    assert [e["step"] for e in run.events("step")] == [1, 2]


# -- models and labels --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's
@pytest.mark.real
def test_a_multilingual_model_keeps_its_language(tmp_path: Path, multilingual: Path):
    """Cases 4 and 7: an old base's fields are not carried along, language and task are written, and used."""
    from whispertune import steps

    base = shutil.copytree(multilingual, tmp_path / "old")
    config = json.loads((base / "config.json").read_text())
    config |= {"forced_decoder_ids": [[1, 50259], [2, 50359]], "suppress_tokens": [], "max_length": 20}
    (base / "config.json").write_text(json.dumps(config))
    generation = json.loads((base / "generation_config.json").read_text())
    generation |= {"forced_decoder_ids": [[1, None]], "suppress_tokens": [], "max_length": None}
    (base / "generation_config.json").write_text(json.dumps(generation))
    texts = [f"<script>alert({i})</script> & žluťoučký {i}" for i in range(12)]
    clips = make_corpus(tmp_path / "clips", texts, language=["cs"] * 12)  # by column; none is asked for
    changes = {"train__method": "lora", "data__text_style": "sentence"}
    run, told = run_of(tmp_path / "r", base, clips, **changes), Told()
    report = train(run, told)
    assert told.lines("label")[0].startswith("the first one, as it is learned: <|cs|><|transcribe|><|notimestamps|>")
    saved = json.loads((run.model_folder / "generation_config.json").read_text())
    assert (saved["language"], saved["task"]) == ("<|cs|>", "transcribe")
    for name in ("config.json", "generation_config.json"):
        assert "forced_decoder_ids" not in json.loads((run.model_folder / name).read_text())
    settings = {"recipe": run.recipe.model_dump(), "emit": told.emit, "should_stop": lambda: False}
    steps.transcribe(str(run.folder), [str(next(tmp_path.rglob("c00.wav")))], **settings)
    with pytest.raises(UsageError, match="needs the language of the speech"):
        steps.transcribe(str(base), [str(next(tmp_path.rglob("c00.wav")))], **settings)
    page = run.page_file.read_text("utf-8")
    assert "<script" not in page
    labels = json.loads((run.folder / "labels.json").read_text("utf-8"))
    assert sorted(labels.values())[0] == "<Script>alert(0)</script> & žluťoučký 0."
    assert (run.plan or {})["text_style"] == "sentence" and told.stages().count("labels") == 0
    assert report["settings"]["decode"]["max_new_tokens"] == 4


@pytest.mark.real
def test_a_silly_learning_rate_is_warned_of_and_never_delivered(tmp_path: Path, english: Path, corpus: Path):
    run, told = run_of(tmp_path / "r", english, corpus, train__learning_rate=1e3, train__steps=6), Told()
    with pytest.raises(WhispertuneError) as error:
        train(run, told)
    assert error.value.exit_code == 1 and "training diverged: the " in error.value.what
    usual = (run.plan or {})["usual_learning_rate"]
    assert error.value.hint == f"try --set train.learning_rate={usual:g}; the base model is unchanged"
    assert any("training may diverge" in text for text in told.warnings())
    assert not run.model_folder.exists() and not run.is_finished


# -- a real child process -----------------------------------------------------------------------------------

DRIVER = """
import sys
from whispertune.cli import main
for _ in range(2):
    try:
        main()
    except SystemExit as left:
        print("exit", left.code, flush=True)
"""


@pytest.mark.real
def test_a_stop_by_signal_saves_and_the_same_command_goes_on(tmp_path: Path, english: Path, corpus: Path):
    changes = {**QUICK, "train.steps": 100_000, "train.eval_every": 100_000}
    run = run_of(tmp_path / "r", english, corpus, **{k.replace(".", "__"): v for k, v in changes.items()})
    with pytest.raises(Stopped):
        train(run, Told(lambda event: event.kind == "step"))
    words = ["train", str(corpus), "--model", str(english), "--run", str(run.folder)]
    words += [word for key, value in changes.items() for word in ("--set", f"{key}={to_toml_value(value)}")]

    def steps() -> int:
        return max(event["step"] for event in run.events("step"))

    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as child:
        assert child.stdout is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            before, deadline = steps(), time.monotonic() + 120
            while steps() < before + 2 and child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            child.send_signal(number)
            heard: list[str] = []
            while not heard or not heard[-1].startswith("exit"):
                heard.append(child.stdout.readline().rstrip())
                assert heard[-1] or child.poll() is None, heard
            said = "\n".join(heard)
            assert heard[-1] == "exit 130" and "Traceback" not in said, said
            assert re.search(r"^ +going on from step \d+ of 100000$", said, re.M), said
            assert "stopping  saving; press Ctrl-C again to stop at once" in said
            assert re.search(r"^stopped   stopped at step \d+ of 100000; everything is saved$", said, re.M), (
                said
            )
            assert "hint      the same command goes on from there" in said
            assert max(int(path.name) for path in run.checkpoints.iterdir()) == steps()
