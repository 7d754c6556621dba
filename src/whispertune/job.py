"""The main job: check, plan, baseline, labels, training, evaluation, report.

Each stage leaves a file in the run and is passed over when that file is there, so a run goes on where it was
stopped.
"""

import io
import time
import wave
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from whispertune.clip import SAMPLE_RATE, Clip, counted
from whispertune.corpus import Corpus
from whispertune.data.general import ABOUT, general_speech
from whispertune.data.segment import snr_db
from whispertune.data.text import label_style
from whispertune.data.validate import check_tokens
from whispertune.delivery import Line, Point, Tradeoff, choose_share
from whispertune.engine import checkpoint as checkpoints
from whispertune.engine.device import machine_facts, pick_device, versions
from whispertune.engine.evaluate import Evaluation, ShouldStop
from whispertune.engine.labels import styled_labels
from whispertune.engine.layouts import Layouts
from whispertune.engine.method import Tuned, prepare
from whispertune.engine.model import LoadedModel, load
from whispertune.engine.rehearsal import Planner, Rehearsing, borrowed, own_words
from whispertune.engine.source import NEXT_SIZE, at_hand, resolve
from whispertune.engine.train import Progress, Training
from whispertune.engine.train import train as run_training
from whispertune.engine.transcribe import DecodeOptions, decode_options, transcribe
from whispertune.engine.windows import Renderer, Window, WindowPlanner
from whispertune.errors import DataError, MachineError, Stopped
from whispertune.hardware.detect import detect
from whispertune.judging import Judging
from whispertune.plan import CorpusFacts, Plan, make_plan
from whispertune.report import build_report, dev_wer, score_sets
from whispertune.report_page import render_page
from whispertune.run import Emit, Event, Run, line, read_json, warning, write_atomically, write_json
from whispertune.scoring.align import Rows, Totals
from whispertune.ship.hf import export_hf

SHOWN_CLIPS = 40
"""Clips in report.html, those that changed most first; each brings about 100 kB of audio."""
SHOWN_FINDINGS = 5
SHOWN_LABEL = 150
"""Characters of the first label that are shown: its special tokens stand at both ends."""


class Job:
    """A run being worked on: its corpora, its model, and the stages of `train`.

    Args:
        corpus: in place of the one that the recipe names, such as the same on other sides.
        judged: clips of it that are judged in place of its test split.
    """

    def __init__(
        self,
        run: Run,
        emit: Emit,
        should_stop: ShouldStop,
        notes: Sequence[str] = (),
        corpus: Corpus | None = None,
        judged: Sequence[Clip] | None = None,
    ) -> None:
        self.run = run
        self.recipe = run.recipe
        self.emit = run.recorder(emit)
        self.should_stop = should_stop
        self.notes = notes
        self.corpus = corpus or Corpus.open(Path(self.recipe.data.corpus))
        self._judged = judged
        self.source = resolve(self.recipe.model.name)
        self.layouts = Layouts(self.recipe.model.name, self.recipe.model.language, self.recipe.model.task)
        self.left_out: set[str] = set()

    # -- stages ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Leave out what the model cannot learn from, by name, before any weight is loaded."""
        findings = []
        for clip in self.corpus.clips:
            layout = self.layouts.of(clip)
            if clip.split != "test":  # several clips may share a file: they are told apart by id
                found = check_tokens([clip], layout.label_length, layout.max_target_positions)
                findings += found
                self.left_out |= {clip.id for _ in found}
        lines = [f"{f.file_name}: {f.message}" for f in findings]
        write_atomically(self.run.left_out_file, "".join(f"{named}\n" for named in lines))
        train_clips = self.train_clips
        if not train_clips:
            others = len(self.corpus.clips) - len(self.corpus.split("train"))
            raise DataError(
                f"{self.corpus.folder} has no clips to train on: of {len(self.corpus.clips)}, {others} are "
                f"in other splits and {len(self.corpus.split('train'))} are left out (left_out.txt)",
                "import it again without a split column, or with --split 90/10",
            )
        if few := self.judging.require(self.dev_clips):
            self.emit(warning(few))
        speakers = len({clip.speaker for clip in train_clips if clip.speaker})
        minutes = sum(clip.duration_s for clip in train_clips) / 60
        out = len(self.corpus.rejected) + len(self.left_out)
        speaking = f", {speakers} speakers" if speakers > 1 else ""
        leaving = f"; {out} left out (rejected.jsonl, left_out.txt)" if out else ""
        clips = counted(len(train_clips), "clip")
        self.emit(line("check", f"{clips} to train on, {_span(minutes)}{speaking}{leaving}"))
        for named in lines[:SHOWN_FINDINGS]:
            self.emit(warning(f"left out: {named}"))
        if len(lines) > SHOWN_FINDINGS:
            self.emit(
                Event(
                    "note",
                    {"text": f"and {len(lines) - SHOWN_FINDINGS} more: {self.run.left_out_file}"},
                )
            )

    def make_plan(self) -> None:
        """Choose what the recipe leaves open and freeze it; a run that goes on keeps its plan."""
        saved = self.run.plan
        if saved is not None:
            self.plan = Plan.from_dict(saved)
            pick_device(self.plan.device, detect())  # refuses where the planned one is gone
            self._warn_of_drift()
        else:
            self.plan = make_plan(
                self.recipe, self._corpus_facts(), self.layouts.facts, machine_facts(self.recipe.machine)
            )
            write_json(self.run.plan_file, self.plan.as_dict())
        self.device = torch.device(self.plan.device)
        torch.set_num_threads(self.plan.threads)
        plan, train = self.plan, self.recipe.train
        text = (
            f"{_METHODS[train.method]} · {plan.device} {plan.precision}, {plan.reasons['precision']}"
            f" · {plan.speech_per_step_s:.0f} s of speech a step · {counted(plan.steps, 'step')}"
            f" ({plan.steps / plan.steps_per_pass:.1f} passes) · learning rate {plan.learning_rate:g}"
        )
        self.emit(line("plan", text))
        for text in plan.warnings:
            self.emit(warning(text))

    def baseline(self) -> dict[str, Any]:
        """What the untuned model makes of the test clips and guards."""
        saved = self.run.baseline
        if saved is None:
            with self._stage("baseline"):
                saved = self._evaluated(self.loaded, "baseline")
            write_json(self.run.baseline_file, saved)
        self._say_scores("baseline", saved)
        return saved

    def alternatives(self) -> dict[str, Any]:
        """What would have been free, by name: the untuned model with the keywords as prompt, and the next
        larger one where its weights are at hand; both on the test clips."""
        saved = read_json(self.run.alternatives_file)
        if saved is None:
            saved = {}
            own = replace(self._evaluation, sets=self.judging.sets[:1])
            size = NEXT_SIZE.get(self.source.name) if self.source.kind == "size" else None
            with self._stage("alternatives"):
                if self.recipe.eval.free and self.judging.terms.keywords:
                    words = [keyword.term for keyword in self.judging.terms.keywords]
                    name = f"{self.source.name} with {len(words)} keywords as prompt"
                    saved[name] = own.of(self.loaded, self._trying(name), prompt=", ".join(words))
                if self.recipe.eval.free and size and at_hand(size):
                    layouts = Layouts(size, self.recipe.model.language, self.recipe.model.task)
                    larger = load(resolve(size))
                    larger.model.to(self.device)
                    saved[size] = replace(own, layouts=layouts).of(larger, self._trying(size))
            write_json(self.run.alternatives_file, saved)
        return saved

    def _trying(self, name: str) -> Callable[[str], Callable[[int, int], None]]:
        return lambda _: self._progress("for free", name)

    def training(self) -> Progress:
        """Train, and put the best checkpoint's merged weights into model/."""
        texts = self.labels()
        with self._stage("training"):
            tuned = prepare(self.loaded.model, self.recipe.train)
            try:
                progress = run_training(self._training(tuned, texts))
            except torch.OutOfMemoryError as error:
                raise MachineError(
                    f"{self.plan.device} ran out of memory with {self.plan.micro_batch} windows at once: "
                    f"{str(error).partition('. If reserved')[0]}",
                    "a smaller --set train.micro_batch=N in another --run; the loss stays the same",
                ) from None
            finally:
                self._board.close()
        if not (self.run.model_folder / "config.json").is_file():
            delivered = self._delivered(self._merged(tuned, progress.best_step or progress.step))
            layout = self.layouts.default
            export_hf(delivered, self.run.model_folder, language=layout.language, task=layout.task)
        self.emit(line("training", self._training_line(progress)))
        if (tradeoff := self.tradeoff) is not None and tradeoff.chosen < 1:
            self.emit(line("delivered", f"{tradeoff.chosen:g} of the way from the base: {tradeoff.reason}"))
        del self.loaded  # the base is no longer needed
        return progress

    def at_step(self, step: int) -> LoadedModel:
        """The model of a kept checkpoint, as a plain one.

        Raises:
            DataError: that checkpoint is not there.
        """
        saved = self.run.plan
        if saved is None:
            raise DataError(f"{self.run.folder} has no checkpoints yet", "train it first")
        self.plan, self.device = Plan.from_dict(saved), torch.device("cpu")
        merged = self._merged(prepare(self.loaded.model, self.recipe.train), step)
        share = self.tradeoff.chosen if self.tradeoff else self.recipe.train.share
        return Line(load(self.source), merged).at(share if isinstance(share, float) else 1.0)

    def _merged(self, tuned: Tuned, step: int) -> LoadedModel:
        found = checkpoints.at_step(self.run.checkpoints, step)
        if found is None:
            steps = sorted(int(path.name) for path in self.run.checkpoints.glob("[0-9]*"))
            kept = ", ".join(map(str, steps))
            raise DataError(f"{self.run.folder} has no checkpoint of step {step}; kept are {kept or 'none'}")
        tuned.load(found.weights())
        return replace(self.loaded, model=tuned.merged(), name=self.run.name)

    @property
    def tradeoff(self) -> Tradeoff | None:
        """What was measured between the base and the tuned weights, where that chose the delivered ones."""
        saved = read_json(self.run.tradeoff_file)
        return Tradeoff.from_dict(saved) if saved is not None else None

    def _delivered(self, merged: LoadedModel) -> LoadedModel:
        """The weights to deliver, on the line from the base to the tuned ones."""
        share = self.recipe.train.share
        if share == 1 or (share == "auto" and not self.plan.dev_windows):
            return merged
        way = Line(load(self.source), merged)
        if isinstance(share, float):
            return way.at(share)
        if self.tradeoff is None:
            with self._stage("delivery"):
                tolerance = self.judging.terms.tolerance if share == "recover" else None
                write_json(self.run.tradeoff_file, choose_share(self._measure(way), tolerance).as_dict())
        assert self.tradeoff is not None
        merged.model.to("cpu")
        return way.at(self.tradeoff.chosen)

    def _measure(self, way: Line) -> Callable[[float], Point]:
        """Scores on dev, and on the guards' halves that no report speaks of."""
        choosing = replace(self._evaluation, sets=self.judging.choosing)
        terms = self.judging.terms
        dev = self._dev_scorer(way.at(1.0).model)

        def measure(share: float) -> Point:
            model = way.at(share)
            model.model.to(self.device)
            progress = self._progress("delivery", f"{share:g} of the way from the base")
            progress(0, 1)
            heard = choosing.of(model, lambda _: progress)["sets"]
            rates = {name: Totals.of(terms.scored(rows)).wer or 0.0 for name, rows in heard.items()}
            return Point(share, dev(), rates)

        return measure

    def evaluation(self, heard: Mapping[str, Rows] | None = None) -> dict[str, Any]:
        """What the delivered model, read back from model/, makes of the same clips.

        Args:
            heard: rows of sets that others like it have decoded, by name.
        """
        saved = read_json(self.run.evaluation_file)
        if saved is None:
            with self._stage("evaluation"):
                delivered = load(resolve(str(self.run.model_folder)))
                delivered.model.to(self.device)
                saved = self._evaluated(delivered, "evaluate", heard)
            write_json(self.run.evaluation_file, saved)
        return saved

    def report(
        self, before: dict[str, Any], after: dict[str, Any], free: dict[str, Any], progress: Progress
    ) -> dict[str, Any]:
        """The verdict, as report.json and report.html."""
        report = build_report(
            self.run,
            self.plan,
            [(name, clips) for name, _, clips in self.judging.sets],
            before,
            after,
            self.judging.terms,
            curves={
                "loss": [[e["step"], e["loss"]] for e in self._steps_once()],
                "dev_wer": [[step, wer] for step, wer in progress.dev_wer],
                "best_step": progress.best_step or progress.step,
                "steps": progress.step,
            },
            ended=progress.ended,
            trained_s=progress.seconds,
            notes=self.notes,
            free=free,
            tradeoff=self.tradeoff.as_dict() if self.tradeoff else None,
            snr_db={
                clip.id: snr
                for clip in self.judging.sets[0].clips
                if (snr := snr_db(self.corpus.audio(clip))) is not None
            },
            corpus={
                "name": self.corpus.folder.name,
                "fingerprint": self.corpus.fingerprint,
                "clips": len(self.corpus.clips),
                "hours": round(self.corpus.duration_s / 3600, 3),
                "provenance": dict(Counter(clip.provenance for clip in self.corpus.clips).most_common()),
            },
        )
        shown = {clip["id"] for clip in report["clips_changed"][:SHOWN_CLIPS]}
        audio = {
            clip.id: wav_bytes(corpus.audio(clip))
            for _, corpus, clips in self.judging.sets
            for clip in clips
            if clip.id in shown
        }
        page = render_page({**report, "clips_changed": report["clips_changed"][:SHOWN_CLIPS]}, audio)
        write_atomically(self.run.page_file, page)
        write_json(self.run.report_file, report)  # last: its presence says that the run is finished
        return report

    # -- what the stages share ------------------------------------------------------------------------------

    @cached_property
    def loaded(self) -> LoadedModel:
        self.emit(Event("progress", {"label": "loading", "done": 0, "total": None, "text": self.source.name}))
        loaded = load(self.source)
        loaded.model.to(self.device)
        return loaded

    @cached_property
    def judging(self) -> Judging:
        saved = read_json(self.run.guards_file)
        if saved is None:
            saved = {"guards": self._guards()}
            write_json(self.run.guards_file, saved)
        guards = [Corpus.open(Path(name)) for name in saved["guards"]]
        return Judging(self.run, self.corpus, guards, self.layouts, self._judged)

    def _guards(self) -> list[str]:
        """The corpora that guard; general speech is fetched, and done without where nobody asked for it."""
        asked = self.recipe.data.guards
        languages = Counter(self.layouts.of(clip).language or "en" for clip in self.corpus.clips)

        def general() -> str:
            self.emit(line("guard", f"{ABOUT}, unless it is here already"))
            (language, _), *_ = languages.most_common(1)
            return str(general_speech(language, self._progress("guard", "fetching general speech")))

        if asked is not None:
            return [general() if name == "auto" else name for name in asked]
        try:
            return [general()]
        except DataError as error:
            self.emit(warning(f"general speech is not checked: {error.what}; --guard FOLDER checks it"))
            return []

    @property
    def train_clips(self) -> list[Clip]:
        return [clip for clip in self.corpus.split("train") if clip.id not in self.left_out]

    @cached_property
    def dev_clips(self) -> list[Clip]:
        return [clip for clip in self.corpus.split("dev") if clip.id not in self.left_out]

    @cached_property
    def rehearsed(self) -> list[Clip]:
        """General speech that is heard along."""
        named = self.recipe.data.rehearsal
        return borrowed(Corpus.open(Path(named))) if named else []

    def labels(self) -> Callable[[Clip], str]:
        """The text of each training clip in the planned style, decided once for the run."""
        styled = read_json(self.run.labels_file)
        if styled is None:
            clips = self.train_clips + self.dev_clips
            styled = styled_labels(clips, self.plan.text_style, self.layouts, self._heard)
            if self.rehearsed:
                styled |= own_words(self._heard(self.rehearsed), self.layouts)
            write_json(self.run.labels_file, styled)
        return lambda clip: styled.get(clip.id, clip.text)

    def _heard(self, clips: Sequence[Clip]) -> list[tuple[list[Clip], str]]:
        """What the base model makes of some clips; packed, it hears eight for the price of one."""
        windows = self._as_heard(clips)
        renderer = Renderer(self.corpus, self.layouts.of, lambda clip: clip.text)
        with self._stage("labels"):
            texts = transcribe(
                self.loaded.model,
                [renderer.audio(window) for window in windows],
                [self.layouts.of(window.clips[0]) for window in windows],
                self._packed_options(),
                self._progress("labels", "the base model's own words"),
            )
        return [(window.clips, text) for window, text in zip(windows, texts, strict=True)]

    def _as_heard(self, clips: Sequence[Clip]) -> list[Window]:
        return self._planner(clips, lambda clip: clip.text, packed_only=True).epoch(0)

    def _planner(
        self, clips: Sequence[Clip], text_of: Callable[[Clip], str], packed_only: bool = False
    ) -> WindowPlanner:
        section = self.recipe.windows
        if packed_only:
            section = section.model_copy(
                update={"unpacked": 0.0, "timestamps": 0.0, "prompt": 0.0, "no_speech": 0.0}
            )
        return WindowPlanner(self.corpus, clips, self.layouts.of, text_of, section, self.recipe.train.seed)

    def _training(self, tuned: Tuned, text_of: Callable[[Clip], str]) -> Training:
        planner: Planner = self._planner(self.train_clips, text_of)
        section = self.recipe.train
        if self.rehearsed and section.rehearsal_share:
            general = self._as_heard(self.rehearsed)
            labelled = [window for window in general if text_of(window.clips[0])]
            planner = Rehearsing(planner, labelled, section.rehearsal_share, section.seed)
        base = load(self.source).model.to(self.device).eval() if section.kl else None
        return Training(
            tuned=tuned,
            base=base,
            device=self.device,
            planner=planner,
            renderer=Renderer(self.corpus, self.layouts.of, text_of),
            layout=self.layouts.default,
            recipe=self.recipe,
            plan=self.plan,
            folder=self.run.checkpoints,
            dev_wer=self._dev_scorer(tuned.model) if self.plan.dev_windows else None,
            emit=self._with_bar,
            should_stop=self.should_stop,
        )

    def _dev_scorer(self, model: torch.nn.Module) -> Callable[[], float]:
        """WER on a fixed set of packed dev windows: it chooses a checkpoint and is never reported."""
        windows = self._planner(self.dev_clips, lambda clip: clip.text, packed_only=True).epoch(0)
        windows = windows[: self.plan.dev_windows]
        renderer = Renderer(self.corpus, self.layouts.of, lambda clip: clip.text)
        references = [" ".join(clip.text for clip in window.clips) for window in windows]
        layouts = [self.layouts.of(window.clips[0]) for window in windows]
        languages = [layout.language for layout in layouts]

        def score() -> float:
            audio = [renderer.audio(window) for window in windows]
            texts = transcribe(model, audio, layouts, self._packed_options())
            return dev_wer(references, texts, languages)

        return score

    def _evaluated(
        self, loaded: LoadedModel, label: str, heard: Mapping[str, Rows] | None = None
    ) -> dict[str, Any]:
        return self._evaluation.of(
            loaded, lambda name: self._progress(label, name), self.recipe.eval.probes, heard=heard
        )

    @cached_property
    def _evaluation(self) -> Evaluation:
        seed = self.recipe.train.seed
        return Evaluation(self.judging.sets, self.layouts, self._options(), self.judging.terms.keywords, seed)

    def _say_scores(self, label: str, system: dict[str, Any]) -> None:
        scores = score_sets(system, self.judging.terms)["sets"]
        parts = []
        for name, score in scores.items():
            wer = "undefined" if score["wer"] is None else f"{score['wer']:.1f} %"
            clips, words = counted(score["clips"], "clip"), counted(score["reference_words"], "word")
            parts.append(f"{wer} WER on {name} ({clips}, {words})")
        self.emit(line(label, " · ".join(parts)))

    def _training_line(self, progress: Progress) -> str:
        text = f"{progress.step} of {self.plan.steps} steps in {_span(progress.seconds / 60)}"
        if progress.ended != "all steps":
            text += f" ({progress.ended})"
        if progress.best_step is not None:
            text += f"; best dev WER {progress.best_wer:.1f} % at step {progress.best_step}"
        steps = self._steps_once()
        worked, waited = (sum(step[key] for step in steps) for key in ("seconds", "waiting_s"))
        return f"{text}; waiting for data {100 * waited / max(1e-9, worked + waited):.1f} %"

    def _options(self) -> DecodeOptions:
        return decode_options(self.recipe.eval, self.plan.device, self.plan.precision)

    def _packed_options(self) -> DecodeOptions:
        """A packed window may hold as much text as the decoder has positions for."""
        return replace(self._options(), max_new_tokens=self.layouts.default.max_target_positions)

    def _corpus_facts(self) -> CorpusFacts:
        clips, text_of = self.train_clips, lambda clip: clip.text
        dev = self._planner(self.dev_clips, text_of, packed_only=True).epoch(0) if self.dev_clips else []
        return CorpusFacts(
            train_speech_s=sum(clip.duration_s for clip in clips),
            train_windows=len(self._planner(clips, text_of).epoch(0)),
            dev_windows=len(dev),
            unstyled_labels=label_style([clip.text for clip in clips]).is_unstyled,
        )

    def _warn_of_drift(self) -> None:
        now = versions()
        changed = [
            f"{name} {was} then, {now.get(name)} now"
            for name, was in self.plan.versions.items()
            if now.get(name) != was
        ]
        if changed:
            self.emit(warning(f"{'; '.join(changed)}: the weights may differ from an undisturbed run's"))

    def _steps_once(self) -> list[dict[str, Any]]:
        """The recorded steps; those repeated after a resume count once."""
        return list({event["step"]: event for event in self.run.events("step")}.values())

    def _with_bar(self, event: Event) -> None:
        self.emit(event)
        data = event.data
        if event.kind == "dev":
            self._last_dev = f" · dev {data['wer']:.1f} %"
        if event.kind == "step":
            self._board.add_scalar("train/loss", data["loss"], data["step"])
            self._board.add_scalar("train/learning_rate", data["learning_rate"], data["step"])
            if data["grad_norm"] is not None:
                self._board.add_scalar("train/grad_norm", data["grad_norm"], data["step"])
            text = f"loss {data['loss']:.2f}{self._last_dev}"
            bar = {"label": "training", "done": data["step"], "total": data["steps"], "text": text}
            self.emit(Event("progress", bar))
        elif event.kind == "dev":
            self._board.add_scalar("dev/wer", data["wer"], data["step"])
            self._board.flush()
        elif event.kind == "batch":
            # What the decoder is to predict, special tokens and all: the classic label bugs are visible here.
            shown = data["rows"][1].removeprefix("out").strip()
            if len(shown) > SHOWN_LABEL:
                shown = f"{shown[: SHOWN_LABEL - 40].rpartition(' ')[0]} … {shown[-40:].partition(' ')[2]}"
            self.emit(line("label", f"the first one, as it is learned: {shown}"))

    _last_dev = ""

    @cached_property
    def _board(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self.run.tensorboard))

    def _progress(self, label: str, text: str) -> Callable[[int, int], None]:
        def show(done: int, total: int) -> None:
            self.emit(Event("progress", {"label": label, "done": done, "total": total, "text": text}))
            if self.should_stop():
                raise Stopped(f"stopped during {label}", "the same command goes on from here")

        return show

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        self.emit(Event("stage", {"name": name, "state": "begin"}))
        yield
        seconds = round(time.monotonic() - begin, 2)
        self.emit(Event("stage", {"name": name, "state": "end", "seconds": seconds}))


_METHODS = {"full": "all weights", "decoder": "decoder only", "lora": "LoRA"}


def wav_bytes(samples: Any) -> bytes:
    """A 16-bit 16 kHz WAV file in memory."""
    held = io.BytesIO()
    with wave.open(held, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(samples.tobytes())
    return held.getvalue()


def _span(minutes: float) -> str:
    if minutes < 1:
        return f"{minutes * 60:.0f} s"
    return f"{minutes:.1f} min" if minutes < 60 else f"{int(minutes // 60)} h {int(minutes % 60)} min"
