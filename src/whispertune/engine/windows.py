"""From clips to 30 s windows, and from windows to batches.

An unpacked 4 s clip pays for 30 s of encoder, so short clips share a window. Which clips, in which order and
under which label form is a pure function of (corpus, recipe, seed, epoch); rendering one window is a pure
function of the window. Workers, micro-batches and devices therefore change no sample.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch

from whispertune.clip import SAMPLE_RATE, WINDOW_SAMPLES, Clip
from whispertune.corpus import Corpus
from whispertune.data.segment import speech_bounds, speech_in_gap
from whispertune.engine.tokens import IGNORED, LabelLayout
from whispertune.recipe import WindowsSection
from whispertune.scoring.normalize import UNSPACED_LANGUAGES

Form = Literal["plain", "timestamps"]
Stretch = tuple[Clip, ...]
"""Clips that follow each other in a recording and share a window with its own audio between them."""
OPEN_WINDOWS = 8
"""Windows kept open while packing; 8 fill to about 97 % with 3 s clips, more changes little."""
PROMPT_TOKENS = 223
"""The most prompt that Whisper's decoders keep: half of 448, less `<|startofprev|>`."""
TRUE_GAP_S = 5.0
"""The longest silence of a recording that is kept inside a window; a longer one ends the window."""
GLOSSARY_WORDS = 4
"""Words said, and as many not said, in a glossary prompt."""
_NEVER_SPACED = frozenset({"zh", "yue", "ja"})
"""Those without spaces between sentences as well."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Clips of one recording in a window: its audio from the first to the last, gaps included."""

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
        return int((self.labels != IGNORED).sum())


@dataclass(slots=True)
class _Open:
    """A window that is being packed."""

    runs: list[Stretch] = field(default_factory=list)
    clips: list[Clip] = field(default_factory=list)
    samples: int = 0
    """Where the next run would begin: a short silence after the last one."""
    tokens: int = 0


class WindowPlanner:
    """Composes the windows of each epoch.

    Args:
        corpus, clips: where the audio is, and the clips to place, of at most 30 s each.
        layout_of: the label layout of a clip.
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
        self._before: dict[str, Clip] = {}
        self._runs = self._contiguous_runs(clips)
        spaced = [text_of(clip) for clip in clips if layout_of(clip).language not in UNSPACED_LANGUAGES]
        self._rare_words = sorted(_rare_words(spaced))
        self._rare = frozenset(self._rare_words)

    def epoch(self, number: int) -> list[Window]:
        """The windows of one pass, in training order: each clip exactly once, then the no-speech share."""
        rng = np.random.default_rng([self._seed, number])
        order = rng.permutation(len(self._runs))
        windows = self._packed([self._runs[i] for i in order], rng)
        windows = [self._in_form(window, rng) for window in windows]
        # Rounded by chance: a small corpus gets its share too, over some passes.
        for _ in range(int(len(windows) * self._section.no_speech + rng.random())):
            windows.append(
                Window((), noise_seed=int(rng.integers(2**31)), silent_label=bool(rng.random() < 0.5))
            )
        return [windows[i] for i in rng.permutation(len(windows))]

    def _contiguous_runs(self, clips: Sequence[Clip]) -> list[Stretch]:
        """Clips that follow each other in a recording with nothing untranscribed between them."""
        by_recording: dict[tuple[str, str], list[Clip]] = {}
        for clip in clips:
            by_recording.setdefault((clip.shard, clip.recording), []).append(clip)
        # A clip of another split, or one that was left out, may lie between two of these: it ends a run.
        in_order = sorted(self._corpus.clips, key=lambda clip: (clip.shard, clip.recording, clip.offset))
        neighbours = {(before.id, after.id) for before, after in itertools.pairwise(in_order)}
        runs: list[Stretch] = []
        for siblings in by_recording.values():
            siblings.sort(key=lambda clip: clip.offset)
            run = [siblings[0]]
            for before, after in itertools.pairwise(siblings):
                if (before.id, after.id) in neighbours and self._follows(before, after):
                    self._before[after.id] = before
                    longer = [*run, after]
                    if _length(longer) <= WINDOW_SAMPLES and self._room(self._count(longer), longer):
                        run = longer
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

    def _count(self, clips: Sequence[Clip]) -> int:
        return sum(self._tokens[clip.id] for clip in clips)

    def _room(self, tokens: int, clips: Sequence[Clip]) -> bool:
        """Whether so many tokens of text fit, with specials, two time tokens a clip and the longest prompt.

        A clip alone may be as long as the model takes: it then has no prompt, or a shorter one.
        """
        layout = self._layout_of(clips[0])
        specials = len(layout.prefix) + 1 + 2 * len(clips)
        prompt = 1 + PROMPT_TOKENS if self._section.prompt > 0 and len(clips) > 1 else 0
        return tokens + specials + prompt <= layout.max_target_positions

    def _packed(self, runs: Sequence[Stretch], rng: np.random.Generator) -> list[Window]:
        """The unpacked share first, then best fit over a few open windows."""
        windows, rest = self._unpacked(runs)
        opened: list[_Open] = []
        for run in rest:
            fitting = [window for window in opened if self._fits(window, run)]
            if fitting:
                chosen = max(fitting, key=lambda window: window.samples)
            else:
                if len(opened) == OPEN_WINDOWS:
                    fullest = max(opened, key=lambda window: window.samples)
                    opened.remove(fullest)
                    windows.append(self._placed(fullest.runs))
                chosen = _Open()
                opened.append(chosen)
            chosen.runs.append(run)
            chosen.clips += run
            chosen.samples += _length(run) + self._join
            chosen.tokens += self._count(run)
        windows += [self._placed(window.runs) for window in opened]
        return [windows[i] for i in rng.permutation(len(windows))]

    def _unpacked(self, runs: Sequence[Stretch]) -> tuple[list[Window], Sequence[Stretch]]:
        """Clips alone, until they are their share of all windows; and the runs that are left."""
        windows: list[Window] = []
        left = sum(_length(run) + self._join for run in runs)
        for number, run in enumerate(runs):
            in_all = len(windows) + math.ceil(left / WINDOW_SAMPLES)
            if len(windows) >= round(self._section.unpacked * in_all):
                return windows, runs[number:]
            windows += [Window((Placed(0, (clip,)),)) for clip in run]
            left -= _length(run) + self._join
        return windows, []

    def _fits(self, window: "_Open", run: Stretch) -> bool:
        return (
            window.samples + _length(run) <= WINDOW_SAMPLES
            and window.clips[0].language == run[0].language
            and self._room(window.tokens + self._count(run), [*window.clips, *run])
        )

    def _placed(self, runs: Sequence[Stretch]) -> Window:
        parts, at = [], 0
        for run in runs:
            parts.append(Placed(at, run))
            at += _length(run) + self._join
        return Window(tuple(parts))

    def _in_form(self, window: Window, rng: np.random.Generator) -> Window:
        clips = window.clips
        timed = rng.random() < self._section.timestamps and self._room(self._count(clips), clips)
        form: Form = "timestamps" if timed else "plain"
        prompt = ""
        if rng.random() < self._section.prompt:
            prompt = self._text_before(clips) or self._glossary(window, rng)
        return Window(window.parts, form, prompt)

    def _text_before(self, clips: Sequence[Clip]) -> str:
        """What was said before a window's first clip in its recording, as far back as a prompt reaches, and
        not what the window itself will say."""
        texts: list[str] = []
        layout, tokens, own = self._layout_of(clips[0]), 0, {clip.id for clip in clips}
        before = self._before.get(clips[0].id)
        while before is not None and before.id not in own and tokens < PROMPT_TOKENS:
            texts.insert(0, self._text_of(before))
            tokens += self._tokens[before.id]
            before = self._before.get(before.id)
        return _joined(texts, layout)

    def _glossary(self, window: Window, rng: np.random.Generator) -> str:
        """Rare words that are said, among as many that are not: a prompt as people write `initial_prompt`."""
        words = {word for clip in window.clips for word in _words(self._text_of(clip))}
        said = sorted(words & self._rare)
        if not said:
            return ""
        chosen = [said[i] for i in rng.permutation(len(said))[:GLOSSARY_WORDS]]
        drawn = [self._rare_words[i] for i in rng.integers(len(self._rare_words), size=8 * len(chosen))]
        others = dict.fromkeys(word for word in drawn if word not in words)
        chosen += list(others)[: len(chosen)]
        return ", ".join(chosen[i] for i in rng.permutation(len(chosen)))


class Renderer:
    """Turns windows into batches: audio into int16 rows, texts into labels."""

    def __init__(
        self, corpus: Corpus, layout_of: Callable[[Clip], LabelLayout], text_of: Callable[[Clip], str]
    ) -> None:
        self._corpus = corpus
        self._layout_of = layout_of
        self._text_of = text_of

    def batch(self, windows: Sequence[Window], default_layout: LabelLayout) -> Batch:
        """Rows for some windows; labels are padded to the longest of them."""
        rows = [self.label(window, default_layout) for window in windows]
        width = max(len(ids) - 1 for ids, _ in rows)
        inputs = torch.full((len(rows), width), default_layout.eot, dtype=torch.int64)
        labels = torch.full((len(rows), width), IGNORED, dtype=torch.int64)
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
        timed = self._timed(window, layout) if window.form == "timestamps" else []
        if timed:
            ids = [*layout.prefix_timestamps, *timed, layout.eot]
        else:
            text = _joined([self._text_of(clip) for clip in window.clips], layout)
            ids = [*layout.prefix, *layout.encode(text), layout.eot]
        before: list[int] = []
        if window.prompt:
            room = min(PROMPT_TOKENS, layout.max_target_positions - len(ids))
            prompt = layout.encode(window.prompt)[-room:] if room > 0 else []
            before = [layout.prev, *prompt] if prompt else []
        assert len(before) + len(ids) - 1 <= layout.max_target_positions, window.clips
        return before + ids, len(before)

    def _timed(self, window: Window, layout: LabelLayout) -> list[int]:
        """`<|0.32|> text<|2.40|>` for each clip; times are those of its speech, not of its borders."""
        ids: list[int] = []
        earliest = 0.0
        for part in window.parts:
            for clip in part.clips:
                text = layout.encode(self._text_of(clip))
                if not text:
                    continue
                begin = part.at + clip.offset - part.clips[0].offset
                bounds = speech_bounds(self._corpus.audio(clip)) or [(0, clip.samples)]
                start = max(earliest, (begin + bounds[0][0]) / SAMPLE_RATE)
                end = min(30.0, max(start, (begin + bounds[-1][1]) / SAMPLE_RATE))
                ids += [layout.timestamp(start), *text, layout.timestamp(end)]
                earliest = end
        return ids


def steps_of(windows: Sequence[Window], steps: int) -> list[list[Window]]:
    """The windows of a pass cut into updates of about equal speech; packing does not change their number."""
    steps = min(steps, len(windows))
    total = sum(window.speech_s for window in windows)
    groups: list[list[Window]] = [[] for _ in range(steps)]
    heard, group = 0.0, 0
    for number, window in enumerate(windows):
        middle = heard + window.speech_s / 2
        heard += window.speech_s
        due = int(middle / total * steps) if total else 0
        # None is left out and none left empty: each window goes on by one group at most, and leaves enough.
        following = min(due, group + bool(groups[group]), steps - 1)
        group = max(group, following, steps - (len(windows) - number))
        groups[group].append(window)
    return groups


def _joined(texts: Sequence[str], layout: LabelLayout) -> str:
    """Texts that are spoken one after the other as one text."""
    between = "" if layout.language in _NEVER_SPACED else " "
    return between.join(stripped for text in texts if (stripped := text.strip()))


def _length(run: Sequence[Clip]) -> int:
    return run[-1].offset + run[-1].samples - run[0].offset


def _words(text: str) -> list[str]:
    return [word.strip(".,;:!?\"'()[]") for word in text.split()]


def _rare_words(texts: Iterable[str]) -> set[str]:
    """Words of four letters and more in at most a hundredth of the clips: what people put in a prompt."""
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
    bins = WINDOW_SAMPLES // 2 + 1
    spectrum = rng.standard_normal(bins) + 1j * rng.standard_normal(bins)
    spectrum *= np.maximum(1.0, np.arange(bins)) ** -slope
    wave = np.fft.irfft(spectrum, WINDOW_SAMPLES)
    wave *= level / max(1e-12, float(np.sqrt(np.mean(wave**2))))
    return np.clip(wave * 32768, -32768, 32767).astype(np.int16)
