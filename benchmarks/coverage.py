"""Are the verdict's intervals true, and how often does it speak where there is nothing: for docs/results.md.

    python benchmarks/coverage.py                # simulated from coverage.json: minutes
    python benchmarks/coverage.py --speed        # 100,000 clips of two systems compared: time and memory
    python benchmarks/coverage.py --decode RUN   # coverage.json anew, by tiny.en and the model of a run

**The population** is real: of each clip its errors before and after, its reference length and who speaks, as
tiny.en and the model of a run made them, loops included (`coverage.json`: counts, no texts). No clip was
trained on. A test set is speakers drawn from it with replacement, each with as many clips as it has, drawn
with replacement from its own; where clips are resampled, clips drawn from all. So what is true is known: the
difference of the rates of the whole population.

**A difference is imposed** by swapping before and after: each drawn speaker (or clip) keeps its sides with a
chance of (1 + λ) ÷ 2, else they are swapped. The true difference is then λ times the population's, and what
makes a clip hard for both stays. At λ = 0 the sides are exchangeable: there is nothing to be found.
"""

import argparse
import functools
import json
import math
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
from whispertune.scoring.keywords import Keyword, count_keywords
from whispertune.scoring.normalize import normalizer_for
from whispertune.scoring.probes import compare_probes, segments_of, shows_text
from whispertune.scoring.verdict import TOLERANCE, Guard, judge, judge_guards

COUNTS = Path(__file__).with_suffix(".json")
SPEECH = Path(os.environ.get("WHISPERTUNE_SHARED", "../shared")) / "speech"
TIMES = 2_000
"""Simulated test sets of each row: a coverage of 95 % is then known to ± 0.5 (one standard error)."""
VERDICTS = 4_000
"""Whole verdicts under a true zero: 5 % is then known to ± 0.35."""


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


MADE_UP_LOOPS = (40, 100, 200)
"""Words that so many clips (2 %) are made to insert before: the models loop too seldom by themselves."""


def population(corpus: str) -> Population:
    """A corpus of `coverage.json`; `child-en + loops` has loops that are made up."""
    corpus, _, loops = corpus.partition(" + ")
    kept = counts()["corpora"][corpus]
    rows = np.array([kept["before"], kept["after"], kept["words"]]).T
    if loops:
        rows[:: len(rows) // len(MADE_UP_LOOPS), 0][: len(MADE_UP_LOOPS)] += MADE_UP_LOOPS
    speaker = np.array(kept["speaker"])
    return Population([rows[speaker == number] for number in np.unique(speaker)])


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
    """One row of the table."""

    corpus: str
    design: str
    """`speakers`; `clips`; `blocks`: five minutes of one recording each; `these speakers`, who are given."""
    size: int
    """So many of them are drawn."""
    kept: float
    seed: int


FEW_CLIPS = 60
"""Test clips where there are few speakers."""
IN_BLOCK = 6
"""Clips in five minutes of a recording."""


def covered(case: Case) -> list[Any]:
    """A row: how often, in %, the interval holds what is true, and where it ends beside it."""
    weights_are_drawn_once()
    rng = np.random.default_rng(case.seed)
    people = population(case.corpus)
    difference = case.kept * people.difference
    inside = below = above = decided = 0
    for _ in range(TIMES):
        d, truth = DESIGNS[case.design](people, case, rng)
        inside += d.low <= truth <= d.high
        below += d.high < truth
        above += d.low > truth
        decided += d.decided
    shares = [f"{100 * count / TIMES:.1f}" for count in (inside, below, above, decided)]
    return [case.corpus, f"{case.size} {case.design}", d.level, f"{difference + 0.0:+.1f}", *shares]


def of_speakers(people: Population, case: Case, rng: np.random.Generator) -> tuple[Difference, float]:
    rows, groups = drawn_speakers(people, case.size, rng, case.kept)
    return compared(rows, groups, "speaker"), case.kept * people.difference


def of_clips(people: Population, case: Case, rng: np.random.Generator) -> tuple[Difference, float]:
    rows = drawn_clips(people.clips, case.size, rng, case.kept)
    return compared(rows, range(case.size), "clip"), case.kept * people.difference


def of_these_speakers(people: Population, case: Case, rng: np.random.Generator) -> tuple[Difference, float]:
    """What is true of the few: the interval by clips claims no more."""
    chosen = rng.choice(len(people.speakers), case.size, replace=False)
    theirs = [people.speakers[number] for number in chosen]
    share = FEW_CLIPS // case.size
    rows = np.concatenate([drawn_clips(clips, share, rng, case.kept) for clips in theirs])
    grouping = choose_groups(
        [str(i) for i in range(len(rows))], [str(number) for number in chosen for _ in range(share)]
    )
    truth = case.kept * true_difference(np.array([clips.mean(axis=0) for clips in theirs]))
    return compared(rows, list(grouping.labels.values()), grouping.level), truth


def of_all_speakers(people: Population, case: Case, rng: np.random.Generator) -> tuple[Difference, float]:
    """The same intervals against what is true of all speakers, which they do not claim to hold."""
    d, _ = of_these_speakers(people, case, rng)
    return d, case.kept * true_difference(np.array([clips.mean(axis=0) for clips in people.speakers]))


def of_blocks(people: Population, case: Case, rng: np.random.Generator) -> tuple[Difference, float]:
    """One voice in one recording, each five minutes of it as unlike the next as another speaker."""
    parts = []
    for number in rng.integers(len(people.speakers), size=case.size):
        clips = people.speakers[number]
        clips = clips[rng.integers(len(clips), size=IN_BLOCK)]
        parts.append(clips if rng.random() < (1 + case.kept) / 2 else clips[:, [1, 0, 2]])
    rows = np.concatenate(parts)
    count = len(rows)
    starts = [bootstrap.BLOCK_S * (i / IN_BLOCK) for i in range(count)]
    grouping = choose_groups([str(i) for i in range(count)], ["one"] * count, ["long"] * count, starts)
    truth = case.kept * true_difference(np.array([clips.mean(axis=0) for clips in people.speakers]))
    return compared(rows, list(grouping.labels.values()), grouping.level), truth


DESIGNS = {
    "speakers": of_speakers,
    "clips": of_clips,
    "blocks": of_blocks,
    "of these speakers": of_these_speakers,
    "of all such speakers": of_all_speakers,
}


def cases() -> Iterator[Case]:
    seeds = iter(range(1, 1000))
    for corpus in ("child-en", "child-en in noise", "child-en + loops"):
        for groups in (20, 40, 100):
            for kept in (0.0, 1.0):
                yield Case(corpus, "speakers", groups, kept, next(seeds))
    for corpus, clips in (("read-en", 100), ("child-en", 100), ("child-en", 40)):
        for kept in (0.0, 1.0):
            yield Case(corpus, "clips", clips, kept, next(seeds))
    for blocks in (20, 40):
        yield Case("child-en", "blocks", blocks, 1.0, next(seeds))
    for design in ("of these speakers", "of all such speakers"):
        for speakers in (1, 2, 5, 10):
            yield Case("read-en", design, speakers, 1.0, next(seeds))
    for groups in (5, 6, 10):
        yield Case("child-en", "clips", groups, 0.0, next(seeds))


# Words that would decide it -------------------------------------------------------------------------------


class Lacking(NamedTuple):
    """A test set that is too small: `times` its words would decide it."""

    times: float
    seed: int


LACKING_GROUPS = 40


def foretold(lacking: Lacking) -> list[Any]:
    """A row: what `words_to_decide` says of sets that are undecided, against what is true."""
    weights_are_drawn_once()
    rng = np.random.default_rng(lacking.seed)
    people = population("child-en")
    kept = 0.5
    for _ in range(3):  # the imposed difference changes the spread a little
        points = [
            true_difference(drawn_speakers(people, LACKING_GROUPS, rng, kept).rows) for _ in range(1000)
        ]
        half = 1.96 * statistics.stdev(points)
        kept = half / math.sqrt(lacking.times) / abs(people.difference)
    said, words = [], []
    for _ in range(TIMES):
        rows, groups = drawn_speakers(people, LACKING_GROUPS, rng, kept)
        d = compared(rows, groups, "speaker")
        words.append(d.reference_length)
        if d.words_to_decide is not None:
            said.append(1 + d.words_to_decide / d.reference_length)
    quarters = statistics.quantiles([each / lacking.times for each in said], n=4)
    return [
        f"{statistics.mean(words):.0f}",
        f"{lacking.times:g}",
        f"{kept * people.difference:+.1f}",
        f"{100 * len(said) / TIMES:.0f}",
        *(f"{each:.2f}" for each in quarters),
    ]


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


def judged_sets() -> list[Any]:
    """The test clips of `child-en`, clean and in noise, and `read-en`."""
    from whispertune.corpus import Corpus
    from whispertune.data.remembered import corpus_of
    from whispertune.engine.evaluate import JudgedSet

    children, readers = (
        Corpus.open(corpus_of(str(SPEECH / name), "en")[0]) for name in ("child-en", "read-en")
    )
    tested = children.split("test")
    return [
        JudgedSet("child-en", children, tested),
        JudgedSet("read-en", readers, readers.clips),
        JudgedSet("child-en in noise", InNoise(children), tested),
    ]


def decode(tuned: str) -> None:
    """`coverage.json` anew, greedy and without temperature fallback, as `Evaluation` decodes."""
    from whispertune.engine.evaluate import Evaluation
    from whispertune.engine.layouts import Layouts
    from whispertune.engine.model import load
    from whispertune.engine.source import resolve
    from whispertune.engine.transcribe import DecodeOptions

    def progress(name: str) -> Any:
        return lambda done, total: print(f"\r{name} {done}/{total} ", end="", file=sys.stderr)

    sets = judged_sets()
    before, after = (
        Evaluation(sets, Layouts(model, None, "transcribe"), DecodeOptions()).of(
            load(resolve(model)), progress, probes=True
        )
        for model in ("tiny.en", tuned)
    )
    write_counts(before, after, [clip for judged in sets for clip in judged.clips])


PROBES = ("no speech", "long-form", "timestamps", "prompt")


def write_counts(before: dict[str, Any], after: dict[str, Any], clips: Sequence[Clip]) -> None:
    """Counts of clips and of probes; no word of any text."""
    speaker_of = {clip.id: clip.speaker for clip in clips}
    corpora = {}
    for name, rows in before["sets"].items():
        sides = [[scored(row) for row in side] for side in (rows, after["sets"][name])]
        speakers = [speaker_of[row["id"]] for row in rows]
        numbers = {speaker: number for number, speaker in enumerate(dict.fromkeys(speakers))}
        corpora[name] = {
            "speaker": [numbers[speaker] for speaker in speakers],
            "words": [score.words.reference_length for score in sides[0]],
            "before": [score.words.errors for score in sides[0]],
            "after": [score.words.errors for score in sides[1]],
            "loops": [sum(score.loop for score in side) for side in sides],
        }
    probes = {
        name: [
            probe_row(name, *pair) for pair in zip(before["probes"][name], after["probes"][name], strict=True)
        ]
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
    seed: int


def false_verdicts(run: Nothing) -> Counter[str]:
    """What is said of it, and which of the things judged said so."""
    weights_are_drawn_once()
    rng = np.random.default_rng(run.seed)
    people, others = population(run.goal), population(run.guard)
    said: Counter[str] = Counter()
    for _ in range(VERDICTS // 2):
        rows, groups = drawn_speakers(people, len(people.speakers), rng, 0.0)
        goal = compared(rows, groups, "speaker")
        if run.guard_speakers:
            rows, who = drawn_speakers(others, run.guard_speakers, rng, 0.0)
        else:
            rows, who = drawn_clips(others.clips, len(others.clips), rng, 0.0), None
        ids = [str(i) for i in range(len(rows))]
        grouping = choose_groups(ids, [str(s) for s in who] if who else None)
        guard = Guard("guard", compared(rows, list(grouping.labels.values()), grouping.level), TOLERANCE)
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
    heard = OTHER_WORDS[:errors] + SAID_WORDS[errors:length]
    return row | {
        "reference": " ".join(SAID_WORDS[:length]),
        "hypothesis": " ".join(heard),
        "clips": [],
        "seconds": 60,
    }


LETTERS = "abcdefghijklmnopqrstuvwxyz"
SAID_WORDS, OTHER_WORDS = ([f"{kind}{a}{b}" for a in LETTERS for b in LETTERS] for kind in "so")


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
        spoiled = np.where(
            rng.random(len(chosen)) < wrong, rng.integers(len(words), size=len(chosen)), chosen
        )
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


def timed_comparison(paths: Sequence[Path], workers: int) -> list[str]:
    """Seconds, seconds of CPU in all processes, GB at the most (of this one, and its largest worker times all
    of them), and what is said."""
    from whispertune.comparison import compare_transcripts
    from whispertune.scoring.transcripts import read_transcripts

    begin = time.perf_counter()
    found = compare_transcripts([read_transcripts(path) for path in paths], workers=workers)
    seconds = time.perf_counter() - begin
    own, child = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu = sum(each.ru_utime + each.ru_stime for each in (own, child))
    gigabytes = (own.ru_maxrss + workers * child.ru_maxrss) / 1024**2
    return [f"{seconds:.1f}", f"{cpu:.1f}", f"{gigabytes:.2f}", found["sentence"]]


# The tables -----------------------------------------------------------------------------------------------

SAID = ("goal better", "goal worse", "guard failed", *(f"{name} failed" for name in PROBES))


def show(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |", flush=True)


def simulate(workers: int) -> None:
    for name, corpus in counts()["corpora"].items():
        people = population(name)
        before, after, words = people.clips.sum(axis=0)
        print(
            f"{name}: {len(people.clips)} clips, {len(people.speakers)} speakers, {words} words, "
            f"{100 * before / words:.1f} → {100 * after / words:.1f} % WER, "
            f"{corpus['loops'][0]} → {corpus['loops'][1]} clips with loops"
        )
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        runs = [Nothing("child-en", "read-en", speakers, seed) for speakers in (0, 10) for seed in (1, 2)]
        verdicts = list(pool.map(false_verdicts, runs))
        rows = []
        for first in range(0, len(runs), 2):
            said = verdicts[first] + verdicts[first + 1]
            guard = f"{runs[first].guard_speakers} speakers" if runs[first].guard_speakers else "100 clips"
            told = said["better"], said["worse"], said["better"] + said["worse"]
            rows.append([guard, *(f"{100 * n / VERDICTS:.2f}" for n in (*told, *(said[k] for k in SAID)))])
        show(
            f"Nothing changed, and what is said, in % of {VERDICTS:,} (child-en, guard read-en, probes)",
            ["guard", "better", "worse", "together", *SAID],
            rows,
        )
        show(
            f"How often the 95 % interval holds what is true, in % of {TIMES:,}",
            [
                "speech",
                "drawn",
                "resampled",
                "true points",
                "inside",
                "ends below",
                "begins above",
                "decided",
            ],
            list(pool.map(covered, cases())),
        )
        show(
            "Words that would decide it, of test sets that are undecided",
            [
                "words",
                "times as many decide",
                "true points",
                "undecided, %",
                "said ÷ true: quarter",
                "median",
                "three quarters",
            ],
            list(pool.map(foretold, [Lacking(times, 7) for times in (1.5, 2, 4, 8)])),
        )


def speed(workers: int) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for language in ("en", "cs"):
            paths = write_transcripts(Path(folder), language, CLIPS)
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as own:
                found = own.submit(timed_comparison, paths, workers).result()
            rows.append([language, f"{CLIPS:,}", workers, *found])
    show("Two systems compared", ["language", "clips", "processes", "s", "s of CPU", "GB", "verdict"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--decode", metavar="TUNED_RUN", help="make coverage.json anew")
    parser.add_argument("--speed", action="store_true", help="100,000 clips of two systems")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    begin = time.perf_counter()
    if given.decode:
        decode(given.decode)
    elif given.speed:
        speed(given.workers)
    else:
        simulate(given.workers)
    print(f"\n{(time.perf_counter() - begin) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
