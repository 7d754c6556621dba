"""What a model does beside the task it is tuned for, observed on the user's own test clips.

Tuning on short clips can cost a model its silence, its time tokens, long audio, prompts and the ear for
languages, none of which a word error rate of short clips shows. Each probe is a fixed set of inputs, a pure
function of (clips, keywords, seed), so a base and a tuned model are observed on the same ones;
`scoring.probes` compares them. What is observed is raw: texts, time tokens, probabilities.

All of it takes a tiny model on two cores about a minute, half of it for the long files.
"""

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from whispertune.clip import SAMPLE_RATE, WINDOW_S, WINDOW_SAMPLES, Clip
from whispertune.corpus import Corpus
from whispertune.data.segment import speech_bounds, speech_in_gap
from whispertune.data.split import capped
from whispertune.engine.layouts import Layouts
from whispertune.engine.model import LoadedModel
from whispertune.engine.tokens import LabelLayout
from whispertune.engine.transcribe import (
    DecodeOptions,
    Progress,
    decode,
    detect_languages,
    transcribe,
    transcribe_long,
)
from whispertune.engine.windows import TRUE_GAP_S, Renderer, Stretch, Window, WindowPlanner
from whispertune.recipe import WindowsSection
from whispertune.scoring.keywords import Keyword
from whispertune.scoring.normalize import UNSPACED_LANGUAGES, normalizer_for

Rows = list[dict[str, Any]]
File = Sequence[Stretch]
"""Stretches of speech that are heard one after the other, with pauses between them."""

ITEMS = 24
"""Windows or clips of a probe."""
LONG_S = 60.0
"""A long file ends with the clip that takes it so far: at least two windows, and many files soon."""
LONG_FILES = 7
"""Long files: one more than an interval needs, ten minutes at most."""
PAUSE_S = 0.5
"""Between clips that are joined to a long file."""
DISTRACTORS = 4
"""Words in a prompt that are not said, beside the one that is."""
RARE_LETTERS = 5
"""A rare word has so many letters at least: shorter ones are function words, even where they are rare."""

COLOURS = {"white": 0.0, "pink": 0.5, "brown": 1.0}
"""Amplitude falls with frequency to this power."""
SILENCE_TOKENS = 64
"""Enough to see that there is text, or a loop, where nothing is said."""
LEVELS_DBFS = (-96, -84, -78, -72, -60, -50, -40, -30)
"""The quieter half lies under a quiet room through a close microphone (-60), -96 is 16-bit dither; the louder
half is what people record beside speech. At -20 and above no pause in speech is as loud."""


def observe(
    loaded: LoadedModel,
    corpus: Corpus,
    clips: Sequence[Clip],
    layouts: Layouts,
    options: DecodeOptions,
    *,
    keywords: Sequence[Keyword] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Rows]:
    """What a model makes of every probe: rows by the probe's name, ready for JSON.

    `no speech`   {"id", "text", "no_speech", "log_probability"}: the last two as `Decoded` has them.
    `long-form`   {"id", "language", "reference", "hypothesis", "clips", "seconds"}: a row a file.
    `timestamps`  {"id", "said", "starts_s"}: what was decoded, time tokens written out, and where speech of
                  each clip begins. One row a 30 s window.
    `prompt`      {"id", "language", "reference", "hypothesis", "keywords"}: the keywords are those of the
                  prompt, `[[term, spellings]]`, the first of them said.
    `language`    {"id", "language", "detected"}: only of multilingual models.

    A row's `id` names its input: equal ids are equal inputs. A probe for which the clips hold nothing has no
    rows.

    Args:
        clips: the test clips, of `corpus`; at most `ITEMS` of them or ten minutes are used for each probe.
        keywords: words for the prompts; clips without any get a rare word of theirs.
        progress: called with (inputs done, inputs in all).
    """
    clips = sorted(clips, key=lambda clip: clip.id)
    default = layouts.of(clips[0]) if clips else layouts.default
    files = long_files(corpus, clips)
    windows = packed_windows(corpus, clips, layouts, seed)
    prompted = prompts_for(clips, layouts, keywords)
    silent = len(LEVELS_DBFS) * len(COLOURS)
    shown = _one_after_the_other(progress, silent + len(files) + len(windows) + len(prompted))
    observed = {
        "no speech": _silence(loaded, default, options, seed, shown()),
        "long-form": _long_form(loaded, corpus, files, layouts, shown()),
        "timestamps": _timestamps(loaded, corpus, windows, layouts, options, shown()),
        "prompt": _prompted(loaded, corpus, prompted, layouts, options, shown()),
    }
    if loaded.is_multilingual:
        observed["language"] = _languages(loaded, corpus, _drawn(clips, ITEMS), layouts, options)
    return observed


def _silence(
    loaded: LoadedModel, layout: LabelLayout, options: DecodeOptions, seed: int, progress: Progress
) -> Rows:
    names, audio = zip(*windows_without_speech(seed), strict=True)
    brief = replace(options, max_new_tokens=min(SILENCE_TOKENS, options.max_new_tokens))
    decoded = decode(loaded.model, audio, [layout] * len(audio), brief, progress)
    return [
        {
            "id": name,
            "text": layout.decode(each.ids),
            "no_speech": round(each.no_speech, 4),
            "log_probability": round(each.log_probability, 4),
        }
        for name, each in zip(names, decoded, strict=True)
    ]


def _long_form(
    loaded: LoadedModel, corpus: Corpus, files: Sequence[File], layouts: Layouts, progress: Progress
) -> Rows:
    rows: Rows = []
    for file in files:
        layout, members = layouts.of(file[0][0]), [clip for stretch in file for clip in stretch]
        samples = long_audio(corpus, file)
        # Greedy alone: the fallback's dice would hide what the model does by itself (on tiny.en they change
        # nothing: 36.5 for 36.7 % WER), and a broken model would throw them for half an hour.
        segments = transcribe_long(loaded, samples, layout, temperatures=(0.0,))
        rows.append(
            {
                "id": _name(clip.id for clip in members),
                "language": layout.language or "en",  # only .en models have none
                "reference": " ".join(clip.text for clip in members),
                "hypothesis": " ".join(segment["text"] for segment in segments),
                "clips": [clip.id for clip in members],
                "seconds": round(len(samples) / SAMPLE_RATE, 2),
            }
        )
        progress(len(rows), len(files))
    return rows


def _timestamps(
    loaded: LoadedModel,
    corpus: Corpus,
    windows: Sequence[Window],
    layouts: Layouts,
    options: DecodeOptions,
    progress: Progress,
) -> Rows:
    renderer = Renderer(corpus, layouts.of, lambda clip: clip.text)
    of_windows = [layouts.of(window.clips[0]) for window in windows]
    decoded = decode(
        loaded.model,
        [renderer.audio(window) for window in windows],
        of_windows,
        replace(options, timestamps=True, max_new_tokens=loaded.max_target_positions),
        progress,
    )
    return [
        {
            "id": _name(clip.id for clip in window.clips),
            "said": layout.show(each.ids),
            "starts_s": _starts(corpus, window),
        }
        for window, layout, each in zip(windows, of_windows, decoded, strict=True)
    ]


def _prompted(
    loaded: LoadedModel,
    corpus: Corpus,
    prompted: Sequence[tuple[Clip, list[Keyword]]],
    layouts: Layouts,
    options: DecodeOptions,
    progress: Progress,
) -> Rows:
    texts = transcribe(
        loaded.model,
        [corpus.audio(clip) for clip, _ in prompted],
        [layouts.of(clip) for clip, _ in prompted],
        options,
        progress,
        [prompt_of(clip, listed) for clip, listed in prompted],
    )
    return [
        {
            "id": clip.id,
            "language": layouts.of(clip).language or "en",
            "reference": clip.text,
            "hypothesis": text,
            "keywords": [[keyword.term, list(keyword.spellings)] for keyword in listed],
        }
        for (clip, listed), text in zip(prompted, texts, strict=True)
    ]


def _languages(
    loaded: LoadedModel, corpus: Corpus, clips: Sequence[Clip], layouts: Layouts, options: DecodeOptions
) -> Rows:
    if not clips:
        return []
    audio, layout = [corpus.audio(clip) for clip in clips], layouts.of(clips[0])
    detected = detect_languages(loaded.model, audio, layout, options)
    return [
        {"id": clip.id, "language": layouts.of(clip).language, "detected": code}
        for clip, code in zip(clips, detected, strict=True)
    ]


def _one_after_the_other(progress: Progress | None, total: int) -> Callable[[], Progress]:
    """Makes the progress of one probe after the other that of them all."""
    done = 0

    def next_probe() -> Progress:
        before = done

        def show(in_probe: int, _: int) -> None:
            nonlocal done
            done = before + in_probe
            if progress is not None:
                progress(done, total)

        return show

    return next_probe


def _name(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _drawn(clips: Iterable[Clip], most: int) -> list[Clip]:
    """At most so many, by the hash of their id, as `capped`: the same ones every time."""
    return sorted(clips, key=lambda clip: hashlib.sha256(clip.id.encode()).digest())[:most]


# --- no speech


def windows_without_speech(seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """24 windows of 30 s, name and (480000,) int16: one of digital silence, the others noise."""
    yield "digital silence", np.zeros(WINDOW_SAMPLES, np.int16)
    kinds = list(itertools.product(LEVELS_DBFS, COLOURS))[1:]  # all zero but for single bits, the first is
    for number, (level, colour) in enumerate(kinds):
        rng = np.random.default_rng([seed, number])
        yield f"{colour} noise at {level} dBFS, seed {seed}", _noise(level, COLOURS[colour], rng)


def _noise(level_dbfs: float, slope: float, rng: np.random.Generator) -> np.ndarray:
    bins = WINDOW_SAMPLES // 2 + 1
    spectrum = rng.standard_normal(bins) + 1j * rng.standard_normal(bins)
    spectrum *= np.maximum(1.0, np.arange(bins)) ** -slope
    wave = np.fft.irfft(spectrum, WINDOW_SAMPLES)
    wave *= 10 ** (level_dbfs / 20) / np.sqrt(np.mean(wave**2))
    return np.clip(np.rint(wave * 32768), -32768, 32767).astype(np.int16)


# --- long-form


def long_files(corpus: Corpus, clips: Sequence[Clip]) -> list[File]:
    """Files of 60 to 90 s and pauses: stretches of recordings where they are so long, else clips joined.

    Clips are joined within a language, those of a speaker one after the other. Each clip is in one file at
    most; `LONG_FILES` in all.
    """
    real: list[File] = [[stretch] for stretch in _long_stretches(corpus, clips)]
    used = {clip.id for file in real for stretch in file for clip in stretch}
    most = LONG_FILES * (LONG_S + WINDOW_S) / 60
    rest = capped([clip for clip in clips if clip.id not in used], most)
    rest.sort(key=lambda clip: (clip.language or "", clip.speaker or "", _name([clip.id])))
    joined: list[File] = []
    for _, siblings in itertools.groupby(rest, key=lambda clip: clip.language):
        file: list[Stretch] = []
        for clip in siblings:
            file.append((clip,))
            if _seconds(file) >= LONG_S:
                joined.append(file)
                file = []
    return [*_in_chance_order(real), *_in_chance_order(joined)][:LONG_FILES]


def _in_chance_order(files: Iterable[File]) -> list[File]:
    """The same every time."""
    return sorted(files, key=lambda file: _name(clip.id for stretch in file for clip in stretch))


def _long_stretches(corpus: Corpus, clips: Sequence[Clip]) -> Iterator[Stretch]:
    """A minute or more of a recording in which every word is in one of the clips."""
    chosen = {clip.id for clip in clips}
    in_order = sorted(corpus.clips, key=lambda clip: (clip.shard, clip.recording, clip.offset))
    run: list[Clip] = []
    for clip in in_order:
        if run and not (clip.id in chosen and _follows(corpus, run[-1], clip)):
            run = []
        if clip.id in chosen:
            run.append(clip)
            if _seconds([tuple(run)]) >= LONG_S:
                yield tuple(run)
                run = []


def _follows(corpus: Corpus, before: Clip, after: Clip) -> bool:
    if (before.shard, before.recording, before.language) != (after.shard, after.recording, after.language):
        return False
    gap = after.offset - (before.offset + before.samples)
    if not 0 <= gap <= TRUE_GAP_S * SAMPLE_RATE:
        return False
    between = corpus.audio_between(before, after)
    return gap == 0 or not speech_in_gap(corpus.audio(before), between, corpus.audio(after))


def _samples(stretch: Stretch) -> int:
    return stretch[-1].offset + stretch[-1].samples - stretch[0].offset


def _seconds(file: File) -> float:
    return sum(map(_samples, file)) / SAMPLE_RATE + PAUSE_S * (len(file) - 1)


def long_audio(corpus: Corpus, file: File) -> np.ndarray:
    """(samples,) int16: the stretches with pauses between them."""
    pause = np.zeros(round(PAUSE_S * SAMPLE_RATE), np.int16)
    parts: list[np.ndarray] = []
    for stretch in file:
        parts += [pause, corpus.audio(replace(stretch[0], samples=_samples(stretch)))]
    return np.concatenate(parts[1:])


# --- timestamps


def packed_windows(corpus: Corpus, clips: Sequence[Clip], layouts: Layouts, seed: int) -> list[Window]:
    """At most `ITEMS` windows of packed clips."""
    some = capped(clips, ITEMS * WINDOW_S / 60)
    if not some:
        return []
    section = WindowsSection(unpacked=0.0, timestamps=0.0, prompt=0.0, no_speech=0.0)
    return WindowPlanner(corpus, some, layouts.of, lambda clip: clip.text, section, seed).epoch(0)[:ITEMS]


def _starts(corpus: Corpus, window: Window) -> list[float]:
    """Where the speech of each clip begins in the window, in seconds."""
    starts = []
    for part in window.parts:
        for clip in part.clips:
            bounds = speech_bounds(corpus.audio(clip)) or [(0, clip.samples)]
            at = part.at + clip.offset - part.clips[0].offset + bounds[0][0]
            starts.append(round(at / SAMPLE_RATE, 2))
    return starts


# --- prompt


def prompts_for(
    clips: Sequence[Clip], layouts: Layouts, keywords: Sequence[Keyword]
) -> list[tuple[Clip, list[Keyword]]]:
    """At most `ITEMS` clips, each with a keyword that is said in it and some that are not.

    Clips with one of `keywords` come first; in the others it is the longest of their rare words.
    """
    said: dict[str, str] = {clip.id: f" {_normalized(clip, layouts)} " for clip in clips}
    rare = _rare_words(clips, layouts)
    chosen: list[tuple[Clip, Keyword]] = []
    order = _drawn(clips, len(clips))
    for clip in order:
        first = next((word for word in keywords if _is_said(word, clip, layouts, said)), None)
        if first is not None:
            chosen.append((clip, first))
    taken = {clip.id for clip, _ in chosen}
    chosen += [(clip, rare[clip.id]) for clip in order if clip.id not in taken and clip.id in rare]
    chosen = chosen[:ITEMS]

    pool = list(dict.fromkeys([*keywords, *rare.values()]))
    prompted = []
    for clip, word in chosen:
        rng = np.random.default_rng(int(_name([clip.id]), 16))
        others = [pool[i] for i in rng.permutation(len(pool)) if pool[i].term != word.term]
        unsaid = (each for each in others if not _is_said(each, clip, layouts, said))
        prompted.append((clip, [word, *itertools.islice(unsaid, DISTRACTORS)]))
    return prompted


def prompt_of(clip: Clip, listed: Sequence[Keyword]) -> str:
    """The keywords in an order of the clip's own, as people write a prompt: "Vorasept, Denver, lidocaine"."""
    rng = np.random.default_rng(int(_name([clip.id, "order"]), 16))
    return ", ".join(listed[i].term for i in rng.permutation(len(listed)))


def _normalized(clip: Clip, layouts: Layouts) -> str:
    return normalizer_for(layouts.of(clip).language or "en")(clip.text)


def _is_said(word: Keyword, clip: Clip, layouts: Layouts, said: dict[str, str]) -> bool:
    normalizer = normalizer_for(layouts.of(clip).language or "en")
    spellings = (normalizer(spelling) for spelling in (word.term, *word.spellings))
    return any(spelling and f" {spelling} " in said[clip.id] for spelling in spellings)


def _rare_words(clips: Sequence[Clip], layouts: Layouts) -> dict[str, Keyword]:
    """By clip id the longest of the words that no other clip has; none where words have no spaces between.

    As written, but a text in capitals is no reason to prompt in capitals.
    """
    words: dict[str, list[str]] = {}
    for clip in clips:
        if layouts.of(clip).language not in UNSPACED_LANGUAGES:
            text = clip.text.lower() if clip.text.isupper() else clip.text
            bare = [re.sub(r"^\W+|\W+$", "", word) for word in text.split()]
            # No "couldn't" and no "4th": what a normaliser makes of it may be several words.
            words[clip.id] = [w for w in bare if len(w) >= RARE_LETTERS and not re.search(r"[\d'’_-]", w)]
    clips_with = Counter(word for found in words.values() for word in {w.casefold() for w in found})
    rare = {
        clip_id: [word for word in found if clips_with[word.casefold()] == 1]
        for clip_id, found in words.items()
    }
    return {clip_id: Keyword(max(found, key=len)) for clip_id, found in rare.items() if found}
