"""From clips to 30 s windows, and from windows to batches.

An unpacked 4 s clip pays for 30 s of encoder, so short clips share a window. Which clips, in which order and
under which label form is a pure function of (corpus, recipe, seed, epoch); rendering one window is a pure
function of the window. Workers, micro-batches and devices therefore change no sample.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from whispertune.clip import SAMPLE_RATE, WINDOW_SAMPLES, Clip
from whispertune.corpus import Corpus
from whispertune.data.segment import speech_bounds, speech_in_gap
from whispertune.engine.tokens import LabelLayout
from whispertune.recipe import WindowsSection

Form = Literal["plain", "timestamps"]
OPEN_WINDOWS = 8
"""Windows kept open while packing; 8 fill to about 97 % with 3 s clips, more changes little."""
PROMPT_TOKENS = 223
"""The most prompt that Whisper's decoders keep: half of 448, less `<|startofprev|>`."""
TRUE_GAP_S = 5.0
"""The longest silence of a recording that is kept inside a window; a longer one ends the window."""
GLOSSARY_WORDS = 4
"""Words said, and as many not said, in a glossary prompt."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A stretch of clips of one recording in a window: the audio from the first to the last, gaps included."""

    at: int
    """Sample in the window at which the first clip begins."""
    clips: tuple[Clip, ...]

    @property
    def samples(self) -> int:
        return self.clips[-1].offset + self.clips[-1].samples - self.clips[0].offset


@dataclass(frozen=True, slots=True)
class Window:
    """What the model hears in 30 s and how the label is written."""

    parts: tuple[Placed, ...]
    """Empty for a window without speech."""
    form: Form = "plain"
    prompt: str = ""
    noise_seed: int = 0
    """Of the noise in a window without speech."""
    silent_label: bool = False
    """A window without speech: the label is empty text (else it is the no-speech token)."""

    @property
    def clips(self) -> list[Clip]:
        return [clip for part in self.parts for clip in part.clips]

    @property
    def speech_s(self) -> float:
        return sum(clip.samples for clip in self.clips) / SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows as they go to the device."""

    samples: torch.Tensor
    """(B, 480000) int16."""
    decoder_input_ids: torch.Tensor
    """(B, T) int64, right-padded with the end token."""
    labels: torch.Tensor
    """(B, T) int64: the inputs moved by one; -100 over prompt and padding, by length and not by value."""

    @property
    def target_tokens(self) -> int:
        return int((self.labels != -100).sum())


class WindowPlanner:
    """Composes the windows of each epoch.

    Args:
        corpus, clips: where the audio is, and the clips to place; labels are taken from `text_of`.
        layouts: the label layout for each language in the clips.
        text_of: the label of a clip.
    """

    def __init__(
        self,
        corpus: Corpus,
        clips: Sequence[Clip],
        layout_of: Callable[[Clip], LabelLayout],
        text_of: Callable[[Clip], str],
        section: WindowsSection,
        seed: int,
    ) -> None:
        self._corpus = corpus
        self._layout_of = layout_of
        self._text_of = text_of
        self._section = section
        self._seed = seed
        self._join = round(section.join_silence_s * SAMPLE_RATE)
        self._tokens = {clip.id: len(layout_of(clip).encode(text_of(clip))) for clip in clips}
        self._preceding: dict[str, str] = {}
        self._runs = self._contiguous_runs(clips)
        self._rare = _rare_words(text_of(clip) for clip in clips)

    def epoch(self, number: int) -> list[Window]:
        """The windows of one pass, in training order: each clip exactly once, then the no-speech share."""
        rng = np.random.default_rng([self._seed, number])
        order = rng.permutation(len(self._runs))
        windows = self._packed([self._runs[i] for i in order], rng)
        windows = [self._in_form(window, rng) for window in windows]
        for _ in range(round(len(windows) * self._section.no_speech)):
            windows.append(
                Window((), noise_seed=int(rng.integers(2**31)), silent_label=bool(rng.random() < 0.5))
            )
        return [windows[i] for i in rng.permutation(len(windows))]

    def _contiguous_runs(self, clips: Sequence[Clip]) -> list[tuple[Clip, ...]]:
        """Clips that follow each other in a recording with nothing untranscribed between them."""
        by_recording: dict[tuple[str, str], list[Clip]] = {}
        for clip in clips:
            by_recording.setdefault((clip.shard, clip.recording), []).append(clip)
        runs: list[tuple[Clip, ...]] = []
        for siblings in by_recording.values():
            siblings.sort(key=lambda clip: clip.offset)
            run = [siblings[0]]
            for before, after in zip(siblings, siblings[1:], strict=False):
                if self._follows(before, after):
                    self._preceding[after.id] = self._text_of(before)
                    fits = after.offset + after.samples - run[0].offset <= WINDOW_SAMPLES
                    if fits and self._room(sum(self._tokens[c.id] for c in run), after, len(run) + 1):
                        run.append(after)
                        continue
                runs.append(tuple(run))
                run = [after]
            runs.append(tuple(run))
        return runs

    def _follows(self, before: Clip, after: Clip) -> bool:
        gap = after.offset - (before.offset + before.samples)
        if gap < 0 or gap > TRUE_GAP_S * SAMPLE_RATE or before.language != after.language:
            return False
        between = self._corpus.audio_between(before, after)
        return gap == 0 or not speech_in_gap(self._corpus.audio(before), between, self._corpus.audio(after))

    def _room(self, tokens: int, clip: Clip, clips: int) -> bool:
        """Whether a clip's label still fits, with specials, time tokens and the longest prompt."""
        layout = self._layout_of(clip)
        specials = len(layout.prefix) + 1 + 2 * clips
        prompt = 1 + PROMPT_TOKENS if self._section.prompt > 0 and clips > 1 else 0
        return tokens + self._tokens[clip.id] + specials + prompt <= layout.max_target_positions

    def _packed(self, runs: list[tuple[Clip, ...]], rng: np.random.Generator) -> list[Window]:
        """Best fit over a few open windows; the unpacked share is set aside first."""
        mean_s = sum(_length(run) + self._join for run in runs) / max(1, len(runs)) / SAMPLE_RATE
        per_window = max(1.0, 30.0 / mean_s)
        # `unpacked` is a share of windows: n alone among n + (runs - n) / per_window.
        share = self._section.unpacked
        alone = round(share * len(runs) / (share + (1 - share) * per_window)) if share < 1 else len(runs)
        windows = [Window((Placed(0, run),)) for run in runs[:alone]]
        opened: list[list[tuple[Clip, ...]]] = []
        for run in runs[alone:]:
            length, language = _length(run), run[0].language
            best: list[tuple[Clip, ...]] | None = None
            best_free = WINDOW_SAMPLES
            for candidate in opened:
                free = WINDOW_SAMPLES - sum(_length(r) + self._join for r in candidate) - length
                if 0 <= free < best_free and candidate[0][0].language == language and self._fits(candidate, run):
                    best, best_free = candidate, free
            if best is not None:
                best.append(run)
                continue
            if len(opened) == OPEN_WINDOWS:
                fullest = max(opened, key=lambda w: sum(_length(r) + self._join for r in w))
                opened.remove(fullest)
                windows.append(self._placed(fullest))
            opened.append([run])
        windows += [self._placed(w) for w in opened]
        return [windows[i] for i in rng.permutation(len(windows))]

    def _fits(self, window: list[tuple[Clip, ...]], run: tuple[Clip, ...]) -> bool:
        held = [clip for part in window for clip in part]
        tokens = sum(self._tokens[clip.id] for clip in [*held, *run[:-1]])
        return self._room(tokens, run[-1], len(held) + len(run))

    def _placed(self, runs: list[tuple[Clip, ...]]) -> Window:
        parts, at = [], 0
        for run in runs:
            parts.append(Placed(at, run))
            at += _length(run) + self._join
        return Window(tuple(parts))

    def _in_form(self, window: Window, rng: np.random.Generator) -> Window:
        clips = window.clips
        tokens = sum(self._tokens[clip.id] for clip in clips[:-1])
        timed = rng.random() < self._section.timestamps and self._room(tokens, clips[-1], len(clips))
        form: Form = "timestamps" if timed else "plain"
        prompt = ""
        if rng.random() < self._section.prompt:
            prompt = self._preceding.get(clips[0].id) or self._glossary(window, rng)
        return Window(window.parts, form, prompt)

    def _glossary(self, window: Window, rng: np.random.Generator) -> str:
        """Rare words that are said, among as many that are not: a prompt as people write `initial_prompt`."""
        said = sorted({word for clip in window.clips for word in _words(self._text_of(clip)) if word in self._rare})
        if not said:
            return ""
        chosen = [said[i] for i in rng.permutation(len(said))[:GLOSSARY_WORDS]]
        others = sorted(self._rare - set(said))
        chosen += [others[i] for i in rng.permutation(len(others))[: len(chosen)]]
        return ", ".join(chosen[i] for i in rng.permutation(len(chosen)))


class Renderer:
    """Turns windows into batches: audio into int16 rows, texts into labels."""

    def __init__(
        self, corpus: Corpus, layout_of: Callable[[Clip], LabelLayout], text_of: Callable[[Clip], str]
    ) -> None:
        self._corpus = corpus
        self._layout_of = layout_of
        self._text_of = text_of
        self._any_layout: LabelLayout | None = None

    def batch(self, windows: Sequence[Window], default_layout: LabelLayout) -> Batch:
        """Rows for some windows; labels are padded to the longest of them."""
        rows = [self.label(window, default_layout) for window in windows]
        width = max(len(ids) - 1 for ids, _ in rows)
        inputs = torch.full((len(rows), width), default_layout.eot, dtype=torch.int64)
        labels = torch.full((len(rows), width), -100, dtype=torch.int64)
        for row, (ids, masked) in enumerate(rows):
            inputs[row, : len(ids) - 1] = torch.tensor(ids[:-1])
            labels[row, masked : len(ids) - 1] = torch.tensor(ids[1:])[masked:]
        samples = torch.from_numpy(np.stack([self.audio(window) for window in windows]))
        return Batch(samples, inputs, labels)

    def audio(self, window: Window) -> np.ndarray:
        """(480000,) int16."""
        if not window.parts:
            return _noise(window.noise_seed)
        row = np.zeros(WINDOW_SAMPLES, np.int16)
        for part in window.parts:
            stretch = replace(part.clips[0], samples=part.samples)
            row[part.at : part.at + part.samples] = self._corpus.audio(stretch)
        return row

    def label(self, window: Window, default_layout: LabelLayout) -> tuple[list[int], int]:
        """Token ids from the first special to the end token, and how many targets are masked at the front.

        Masked are the prompt and `<|startoftranscript|>`: context, not something to predict.
        """
        if not window.parts:
            layout = default_layout
            start = list(layout.prefix) if window.silent_label else [layout.sot, layout.no_speech]
            return [*start, layout.eot], 0
        layout = self._layout_of(window.clips[0])
        if window.form == "timestamps":
            ids = [*layout.prefix_timestamps, *self._timed(window, layout)]
        else:
            ids = [*layout.prefix, *layout.encode(self._plain(window))]
        ids.append(layout.eot)
        before: list[int] = []
        if window.prompt:
            room = min(PROMPT_TOKENS, layout.max_target_positions - len(ids))
            prompt = layout.encode(window.prompt)[-room:] if room > 0 else []
            before = [layout.prev, *prompt] if prompt else []
        return before + ids, len(before)

    def _plain(self, window: Window) -> str:
        return " ".join(text for clip in window.clips if (text := self._text_of(clip).strip()))

    def _timed(self, window: Window, layout: LabelLayout) -> list[int]:
        """`<|0.32|> text<|2.40|>` for each clip; times are those of its speech, not of its borders."""
        ids: list[int] = []
        earliest = 0.0
        for part in window.parts:
            for clip in part.clips:
                begin = part.at + clip.offset - part.clips[0].offset
                bounds = speech_bounds(self._corpus.audio(clip)) or [(0, clip.samples)]
                start = max(earliest, (begin + bounds[0][0]) / SAMPLE_RATE)
                end = min(30.0, max(start, (begin + bounds[-1][1]) / SAMPLE_RATE))
                ids += [layout.timestamp(start), *layout.encode(self._text_of(clip)), layout.timestamp(end)]
                earliest = end
        return ids


def steps_of(windows: Sequence[Window], steps: int) -> list[list[Window]]:
    """The windows of a pass cut into updates of about equal speech; packing does not change their number."""
    heard = np.cumsum([window.speech_s for window in windows])
    total = heard[-1] if len(heard) else 0.0
    groups: list[list[Window]] = [[] for _ in range(steps)]
    for window, upto in zip(windows, heard, strict=True):
        middle = upto - window.speech_s / 2
        groups[min(steps - 1, int(middle / total * steps)) if total else 0].append(window)
    return [group for group in groups if group]


def _length(run: tuple[Clip, ...]) -> int:
    return run[-1].offset + run[-1].samples - run[0].offset


def _words(text: str) -> list[str]:
    return [word.strip(".,;:!?\"'()[]") for word in text.split()]


def _rare_words(texts: Iterable[str]) -> set[str]:
    """Words of four letters and more said in at most a hundredth of the clips: what people put in a prompt."""
    counts: dict[str, int] = {}
    clips = 0
    for text in texts:
        clips += 1
        for word in set(_words(text)):
            counts[word] = counts.get(word, 0) + 1
    return {word for word, n in counts.items() if len(word) >= 4 and n <= max(1, clips // 100)}


def _noise(seed: int) -> np.ndarray:
    """30 s of silence or noise, from digital zero to -30 dBFS, white to brown."""
    rng = np.random.default_rng(seed)
    level = 0.0 if rng.random() < 0.2 else 10 ** (rng.uniform(-80, -30) / 20)
    if level == 0.0:
        return np.zeros(WINDOW_SAMPLES, np.int16)
    slope = rng.uniform(0, 1)  # amplitude falls with frequency to this power
    spectrum = rng.standard_normal(WINDOW_SAMPLES // 2 + 1) + 1j * rng.standard_normal(WINDOW_SAMPLES // 2 + 1)
    spectrum *= np.maximum(1.0, np.arange(WINDOW_SAMPLES // 2 + 1)) ** -slope
    wave = np.fft.irfft(spectrum, WINDOW_SAMPLES)
    wave *= level / max(1e-12, float(np.sqrt(np.mean(wave**2))))
    return np.clip(wave * 32768, -32768, 32767).astype(np.int16)
