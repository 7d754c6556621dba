"""Are the verdict's intervals true, and how often is it wrong where there is nothing: figures for docs/results.md.

    python benchmarks/coverage.py                        # simulated from coverage.json: about five minutes
    python benchmarks/coverage.py --speed                # 100,000 clips of two systems compared, time and memory
    python benchmarks/coverage.py --decode [TUNED_RUN]   # coverage.json anew: an hour of speech, three systems

**The population** is real: for each clip its errors before and after, its reference length and who speaks,
as stock and tuned models made them, loops included (`coverage.json`: counts, no texts). A test set is
speakers drawn from it with replacement, each with as many clips as it has, drawn with replacement from its
own; where clips are resampled, clips drawn from all. What is true is thereby known: the difference of the
rates of the whole population.

**A difference is imposed** by swapping before and after. Each drawn group keeps its sides with a chance of
(1 + λ)/2, else they are swapped, so the true difference is λ times the population's, and before and after
keep the errors that go together in a clip. At λ = 0 the two are exchangeable: nothing is there to be found.
"""

import argparse
import functools
import json
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from whispertune.clip import Clip
from whispertune.scoring import bootstrap
from whispertune.scoring.align import score_clip
from whispertune.scoring.bootstrap import Difference, choose_groups, paired_bootstrap
from whispertune.scoring.normalize import normalizer_for
from whispertune.scoring.keywords import Keyword, count_keywords
from whispertune.scoring.probes import compare_probes, segments_of, shows_text
from whispertune.scoring.verdict import Guard, judge, judge_guards

COUNTS = Path(__file__).with_suffix(".json")
SPEECH = Path(os.environ.get("WHISPERTUNE_SHARED", "../shared")) / "speech"
TIMES = 2_000
"""Simulated test sets of each row: a coverage of 95 % is then known to ± 0.5 (one standard error)."""
VERDICTS = 6_000
"""Whole verdicts under a true zero: 5 % is then known to ± 0.3."""


# The population -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Population:
    """Clips by speaker: rows of (errors before, errors after, reference words)."""

    speakers: Sequence[np.ndarray]

    @property
    def clips(self) -> np.ndarray:
        return np.concatenate(self.speakers)

    @property
    def difference(self) -> float:
        """In points: what is true of it."""
        return true_difference(self.clips)


def true_difference(clips: np.ndarray) -> float:
    before, after, words = clips.sum(axis=0)
    return float(100 * (after - before) / words)


def population(corpus: str, *, least: int = 1) -> Population:
    """Of speakers with at least so many clips."""
    kept = counts()["corpora"][corpus]
    rows = np.array([kept["before"], kept["after"], kept["words"]]).T
    speaker = np.array(kept["speaker"])
    of_each = [rows[speaker == number] for number in np.unique(speaker)]
    return Population([clips for clips in of_each if len(clips) >= least])


@functools.cache
def counts() -> dict[str, Any]:
    return json.loads(COUNTS.read_text())


class Sample(NamedTuple):
    """A simulated test set: (clips, 3) counts as in `Population`, and the speaker of each."""

    rows: np.ndarray
    speakers: Sequence[int]


def drawn_speakers(people: Population, groups: int, rng: np.random.Generator, kept: float) -> Sample:
    """Sides are kept or swapped speaker by speaker: λ is `kept`."""
    parts = []
    for speaker in rng.integers(len(people.speakers), size=groups):
        clips = people.speakers[speaker]
        clips = clips[rng.integers(len(clips), size=len(clips))]
        parts.append(clips if rng.random() < (1 + kept) / 2 else clips[:, [1, 0, 2]])
    sizes = [len(part) for part in parts]
    return Sample(np.concatenate(parts), np.repeat(np.arange(groups), sizes).tolist())


def drawn_clips(clips: np.ndarray, number: int, rng: np.random.Generator, kept: float) -> np.ndarray:
    """Sides are kept or swapped clip by clip."""
    rows = clips[rng.integers(len(clips), size=number)]
    swapped = rng.random(number) >= (1 + kept) / 2
    rows[swapped] = rows[swapped][:, [1, 0, 2]]
    return rows


def compared(rows: np.ndarray, groups: Sequence[Any], level: bootstrap.Level) -> Difference:
    return paired_bootstrap(rows[:, 0], rows[:, 1], rows[:, 2], groups, level=level)


def weights_are_drawn_once() -> None:
    """The seed of a verdict is always the same, so sets of as many groups share their resampling weights.

    Remembering them changes no figure and makes this some thirty times as fast.
    """
    draw = bootstrap._weights

    @functools.cache
    def of(groups: int, resamples: int) -> list[np.ndarray]:
        return list(draw(groups, resamples, np.random.Generator(np.random.PCG64(0))))

    bootstrap._weights = lambda groups, resamples, rng: of(groups, resamples)


# Coverage -------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """One row of the table: which population, how it is drawn, what is imposed."""

    corpus: str
    design: str
    """`speakers`, `clips`, `blocks`, or `few speakers`, whose clips are all drawn from so many speakers."""
    size: int
    kept: float
    seed: int


FEW_CLIPS = 60
"""Test clips where there are few speakers."""
IN_BLOCK = 12
"""Clips in five minutes of a recording."""


def covered(case: Case) -> dict[str, Any]:
    """How often, in %, the interval holds the truth."""
    weights_are_drawn_once()
    rng = np.random.default_rng(case.seed)
    few = case.design == "few speakers"
    people = population(case.corpus, least=10 if few else 1)
    everyone = case.kept * people.difference
    inside = inside_everyone = below = above = bounded = 0
    levels: Counter[str] = Counter()
    for _ in range(TIMES):
        truth = everyone
        if case.design == "clips":
            rows, level = drawn_clips(people.clips, case.size, rng, case.kept), "clip"
            groups: Sequence[Any] = range(case.size)
        elif case.design == "speakers":
            rows, groups = drawn_speakers(people, case.size, rng, case.kept)
            level = "speaker"
        else:
            chosen = rng.choice(len(people.speakers), case.size, replace=False)
            if few:
                share = max(1, FEW_CLIPS // case.size)
                theirs = [people.speakers[s] for s in chosen]
                truth = case.kept * _mean_difference(theirs)
                rows = np.concatenate([drawn_clips(t, share, rng, case.kept) for t in theirs])
                who = [str(s) for s in chosen for _ in range(share)]
                recordings = starts = None
            else:  # one voice in one recording, every five minutes as unlike as another speaker
                sample = [people.speakers[s] for s in chosen]
                rows = np.concatenate(
                    [
                        (own if rng.random() < (1 + case.kept) / 2 else own[:, [1, 0, 2]])[
                            rng.integers(len(own), size=IN_BLOCK)
                        ]
                        for own in sample
                    ]
                )
                truth = case.kept * _mean_difference(people.speakers)
                who, recordings = ["one"] * len(rows), ["long"] * len(rows)
                starts = [300.0 * (i // IN_BLOCK) + 20 * (i % IN_BLOCK) for i in range(len(rows))]
            ids = [str(i) for i in range(len(rows))]
            grouping = choose_groups(ids, who, recordings, starts)
            groups, level = [grouping.labels[i] for i in ids], grouping.level
        d = compared(rows, groups, level)
        levels[level] += 1
        bounded += d.bounded
        inside += d.low <= truth <= d.high
        inside_everyone += d.low <= everyone <= d.high
        below += d.high < truth
        above += d.low > truth
    return {
        "truth": everyone,
        "level": levels.most_common(1)[0][0],
        "covers": 100 * inside / TIMES,
        "covers_everyone": 100 * inside_everyone / TIMES,
        "below": 100 * below / TIMES,
        "above": 100 * above / TIMES,
        "bounded": 100 * bounded / TIMES,
    }


def _mean_difference(speakers: Sequence[np.ndarray]) -> float:
    """Of equally many clips of each."""
    return true_difference(np.array([clips.mean(axis=0) for clips in speakers]))


# Decoding -------------------------------------------------------------------------------------------------


class InNoise:
    """A corpus heard through white noise as loud as the speech (0 dB): decoders loop there."""

    def __init__(self, corpus: Any) -> None:
        self._corpus = corpus

    def audio(self, clip: Clip) -> np.ndarray:
        samples = self._corpus.audio(clip).astype(np.float64)
        rng = np.random.default_rng(int(clip.id[:12], 16))
        noise = rng.normal(0, np.sqrt((samples**2).mean()) + 1, len(samples))
        return np.clip(samples + noise, -32768, 32767).astype(np.int16)


def judged_sets(names: Sequence[str]) -> list[Any]:
    """`child-en` and `read-en`, and of the children that no tuned model heard `child-en in noise`."""
    from whispertune.corpus import Corpus
    from whispertune.data.remembered import corpus_of
    from whispertune.engine.evaluate import JudgedSet

    sets = []
    for name in names:
        source, _, noise = name.partition(" in ")
        corpus = Corpus.open(corpus_of(str(SPEECH / source), "en")[0])
        clips = sorted(corpus.clips, key=lambda clip: clip.id)
        if noise:
            clips = [clip for clip in clips if clip.split == "test"]
        sets.append(JudgedSet(name, InNoise(corpus) if noise else corpus, clips))
    return sets


def heard(model: str, sets: Sequence[Any], probes: bool = False) -> dict[str, Any]:
    """What a model makes of the sets: `Evaluation`'s own, greedy, without temperature fallback."""
    from whispertune.engine.evaluate import Evaluation
    from whispertune.engine.layouts import Layouts
    from whispertune.engine.model import load
    from whispertune.engine.source import resolve
    from whispertune.engine.transcribe import DecodeOptions

    def progress(name: str) -> Any:
        return lambda done, total: print(f"\r{model}: {name} {done}/{total} ", end="", file=sys.stderr)

    loaded = load(resolve(model))
    layouts = Layouts(model, "en" if loaded.is_multilingual else None, "transcribe")
    return Evaluation(sets, layouts, DecodeOptions()).of(loaded, progress, probes)


def decode(tuned: str) -> None:
    """`coverage.json` anew: counts of clips, no word of any text."""
    sets = judged_sets(["child-en", "child-en in noise", "read-en"])
    children = sets[0]
    test = children._replace(clips=[clip for clip in children.clips if clip.split == "test"])
    systems = {"before": heard("tiny.en", sets)["sets"], "after": heard(tuned, sets)["sets"]}
    observed = [heard(model, [test], probes=True)["probes"] for model in ("tiny.en", tuned)]
    write_counts(systems, observed, [clip for judged in sets for clip in judged.clips])


PROBES = ("no speech", "long-form", "timestamps", "prompt")


def write_counts(
    systems: dict[str, dict[str, Any]], observed: Sequence[dict[str, Any]], clips: Sequence[Clip]
) -> None:
    """Args: `systems` the rows of each set, by side; `observed` the probes before and after."""
    known = {clip.id: clip for clip in clips}
    corpora = {}
    for name in systems["before"]:
        before, after = ([scored(row) for row in systems[side][name]] for side in ("before", "after"))
        speakers = [known[score.clip_id].speaker for score in before]
        numbers = {speaker: n for n, speaker in enumerate(dict.fromkeys(speakers))}
        corpora[name] = {
            "speaker": [numbers[speaker] for speaker in speakers],
            "trained_on": [int(known[score.clip_id].split == "train") for score in before],
            "words": [score.words.reference_length for score in before],
            "before": [score.words.errors for score in before],
            "after": [score.words.errors for score in after],
            "loops": [sum(score.loop for score in side) for side in (before, after)],
        }
    probes = {
        name: [probe_row(name, *pair) for pair in zip(observed[0][name], observed[1][name], strict=True)]
        for name in PROBES
    }
    about = {
        "made_by": "python benchmarks/coverage.py --decode RUN",
        "before": "tiny.en",
        "after": "RUN: whispertune train child-en --model tiny.en --guard read-en",
        "decoding": "greedy, fp32, at most 224 tokens, no temperature fallback; english-1",
        "corpora": corpora,
        "probes": probes,
    }
    text = json.dumps(about, separators=(",", ":"))
    for key in (*corpora, *about):
        text = text.replace(f'"{key}":', f'\n"{key}":', 1)
    COUNTS.write_text(text + "\n")


def scored(row: dict[str, str]) -> Any:
    return score_clip(row["id"], row["reference"], row["hypothesis"], normalizer_for("en"))


def probe_row(name: str, before: dict[str, Any], after: dict[str, Any]) -> list[int]:
    """(errors before, errors after, length)."""
    sides = (before, after)
    if name == "no speech":
        return [*(int(shows_text(row)) for row in sides), 1]
    if name == "timestamps":
        return [*(int(isinstance(segments_of(row["said"]), str)) for row in sides), 1]
    if name == "long-form":
        scores = [scored(row) for row in sides]
        return [*(s.words.errors for s in scores), scores[0].words.reference_length]
    keywords = tuple(Keyword(term, tuple(others)) for term, others in before["keywords"])
    found = [count_keywords(scored(row), keywords, normalizer_for("en")) for row in sides]
    return [*(count.errors for count in found), found[0].said]


# False verdicts -------------------------------------------------------------------------------------------


class Nothing(NamedTuple):
    """A run in which nothing changed: before and after swapped at random."""

    goal: str
    guard: str
    guard_speakers: int
    """0: the guard's clips are drawn and swapped one by one, as its interval by clips assumes."""
    tolerance: float
    verdicts: int
    seed: int


def false_verdicts(run: Nothing) -> Counter[str]:
    """What is said of it, and which of the things judged said so."""
    weights_are_drawn_once()
    rng = np.random.default_rng(run.seed)
    people, others = population(run.goal), population(run.guard)
    said: Counter[str] = Counter()
    for _ in range(run.verdicts):
        rows, groups = drawn_speakers(people, len(people.speakers), rng, 0.0)
        goal = compared(rows, groups, "speaker")
        if run.guard_speakers:
            rows, who = drawn_speakers(others, run.guard_speakers, rng, 0.0)
        else:
            rows, who = drawn_clips(others.clips, len(others.clips), rng, 0.0), None
        ids = [str(i) for i in range(len(rows))]
        grouping = choose_groups(ids, [str(s) for s in who] if who else None)
        guard = Guard(
            "guard", compared(rows, list(grouping.labels.values()), grouping.level), run.tolerance
        )
        probes = [probe.guard for probe in unchanged_probes(rng) if probe.guard]
        results = judge_guards([guard, *probes], goal)
        verdict = judge(goal, results[:1], probes=results[1:]).verdict
        said[verdict] += 1
        said["goal better"] += goal.high < 0
        said["goal worse"] += goal.low > 0
        said.update(f"{each.name} failed" for each in results if each.status == "failed")
        said["only a guard or probe"] += verdict == "worse" and not goal.low > 0
    return said


def unchanged_probes(rng: np.random.Generator) -> Any:
    """Real observations, drawn with replacement, sides swapped at random, as rows that count the same."""
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for name, observed in counts()["probes"].items():
        drawn = drawn_clips(np.array(observed), len(observed), rng, 0.0).tolist()
        before[name] = [observation(name, k, b, length) for k, (b, _, length) in enumerate(drawn)]
        after[name] = [observation(name, k, a, length) for k, (_, a, length) in enumerate(drawn)]
    return compare_probes(before, after, [])


def observation(name: str, number: int, errors: int, length: int) -> dict[str, Any]:
    """A row as `engine.probes` makes it, with so many errors."""
    row: dict[str, Any] = {"id": f"{number}", "language": "cs"}
    if name == "no speech":
        return row | {"text": "text" * errors, "no_speech": 0.0, "log_probability": 0.0}
    if name == "timestamps":
        return row | {"said": "text" if errors else "<|0.00|>text<|1.00|>", "starts_s": []}
    if name == "prompt":
        heard = "said " * length + "other " * errors
        return row | {
            "reference": "said " * length,
            "hypothesis": heard,
            "keywords": [["said", []], ["other", []]],
        }
    heard = "other " * errors + "said " * max(0, length - errors)
    return row | {"reference": "said " * length, "hypothesis": heard, "clips": [], "seconds": 60.0}


# Speed ----------------------------------------------------------------------------------------------------

CLIPS = 100_000
FREQUENT = 30_000
"""Words that sentences are made of, drawn as often as they are used."""


def write_transcripts(folder: Path, language: str, clips: int) -> list[Path]:
    """Two systems' texts of made-up sentences of 4 to 20 words: 15 and 12 % of the words are wrong."""
    import wordfreq

    rng = np.random.default_rng(0)
    words = wordfreq.top_n_list(language, FREQUENT)
    chances = np.array([wordfreq.word_frequency(word, language) for word in words])
    sizes = rng.integers(4, 21, clips)
    chosen = rng.choice(len(words), sizes.sum(), p=chances / chances.sum())
    paths = []
    for system, wrong in (("stock", 0.15), ("tuned", 0.12)):
        spoiled = np.where(rng.random(len(chosen)) < wrong, rng.integers(len(words), size=len(chosen)), chosen)
        path = folder / f"{system}-{language}.jsonl"
        begin = 0
        with path.open("w", encoding="utf-8") as file:
            for number, size in enumerate(sizes):
                said, heard = (
                    " ".join(words[w] for w in side[begin : begin + size]) for side in (chosen, spoiled)
                )
                row = {"id": f"clip-{number:06}", "language": language, "speaker": f"s{number % 500}"}
                row |= {"reference": f"{said}.", "hypothesis": f"{heard.capitalize()}."}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                begin += size
        paths.append(path)
    return paths


def timed_comparison(paths: Sequence[Path], workers: int) -> tuple[str, float, float]:
    """The verdict, seconds, and GB of memory at the most: of this process and its largest worker, times all."""
    from whispertune.comparison import compare_transcripts
    from whispertune.scoring.transcripts import read_transcripts

    begin = time.perf_counter()
    found = compare_transcripts([read_transcripts(path) for path in paths], workers=workers)
    seconds = time.perf_counter() - begin
    own, child = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return found["sentence"], seconds, (own + workers * child) / 1024**2
