"""Better, no measurable difference, or worse: said from intervals, by rules fixed before training.

The **goal** decides: better if its 95 % interval lies below 0 and no guard failed; worse if it lies above 0
or a guard failed; else no measurable difference.

A **guard** is speech the model must not unlearn, a **probe** an ability it must not lose (silence on silence,
long audio, time tokens, prompts); both are judged alike. One fails when it got worse beyond chance *and* its
point estimate exceeds the tolerance: a harm too small to matter is none, and one that chance explains is not
shown. It passes when the upper end of its interval is within the tolerance. Otherwise it is unproven, and
said so: too little speech to tell.

**Beyond chance, with several guards and probes**, follows Holm (1979): the one-sided p-values
(`Difference.p_worse`) are tried from the smallest, the i-th of m against 0.025 ÷ (m − i + 1), up to the first
that does not fall below. So the chance that any fails for nothing stays at 2.5 %, as with one guard whose
interval excludes 0.

**Beside a goal that shows nothing** they are tried at a tenth of that. The goal's interval has then spent the
5 % in which chance may speak, either way, and 2.5 % of failures for nothing would come on top. A goal that is
decided hands its share on (the fallback procedure of Wiens 2003): a gain is guarded at the full 2.5 %. So a
verdict other than "no measurable difference" where there is none stays near the goal's own 5 %
(`benchmarks/coverage.py`), and every interval shown is a 95 % one.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from whispertune.errors import DataError
from whispertune.scoring.align import ClipScore
from whispertune.scoring.bootstrap import CONFIDENCE, RESAMPLES, Difference, Grouping, paired_bootstrap

Verdict = Literal["better", "no_difference", "worse"]
GuardStatus = Literal["passed", "failed", "unproven"]

TOLERANCE = 1.0
"""By how many percentage points a guard may get worse."""
BESIDE_NOTHING = 0.1
"""Share of their chance to fail for nothing that guards and probes have where the goal is undecided."""
UNITS = {"WER": "words", "CER": "characters", "KER": "keywords"}
"""What the length of an error rate counts; KER is the keyword error rate."""


@dataclass(frozen=True, slots=True)
class Rate:
    """An error rate: what a clip adds to it, in errors and in the length they are relative to."""

    metric: str
    count: Callable[[ClipScore], tuple[int, int]]


RATES = {
    "wer": Rate("WER", lambda s: (s.words.errors, s.words.reference_length)),
    "cer": Rate("CER", lambda s: (s.characters.errors, s.characters.reference_length)),
}


def compare(
    before: Sequence[ClipScore],
    after: Sequence[ClipScore],
    grouping: Grouping,
    rate: Rate = RATES["wer"],
    *,
    decoding_before: Mapping[str, Any] | None = None,
    decoding_after: Mapping[str, Any] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Difference:
    """The difference of two systems on the same clips; negative points are fewer errors after than before.

    Raises DataError when the two did not do the same task: other clips, references, normalisers or decoding
    options (engine included).
    """
    pairs = _paired(before, after)
    _refuse_other_decoding(decoding_before or {}, decoding_after or {})
    errors_before, lengths = zip(*(rate.count(b) for b, _ in pairs), strict=True)
    return paired_bootstrap(
        errors_before,
        [rate.count(a)[0] for _, a in pairs],
        lengths,
        [_label(grouping, b.clip_id) for b, _ in pairs],
        metric=rate.metric,
        level=grouping.level,
        speaks_for=grouping.speaks_for,
        resamples=resamples,
        seed=seed,
    )


def _paired(before: Sequence[ClipScore], after: Sequence[ClipScore]) -> list[tuple[ClipScore, ClipScore]]:
    """(before, after) of each clip, in the order of `before`."""
    first, second = _by_id(before, "before"), _by_id(after, "after")
    if first.keys() != second.keys():
        missing, extra = sorted(first.keys() - second.keys()), sorted(second.keys() - first.keys())
        example = f"{missing[0]!r} only before" if missing else f"{extra[0]!r} only after"
        raise DataError(
            f"the clips differ: {len(first):,} before, {len(second):,} after, "
            f"{len(first.keys() & second.keys()):,} in both ({example})",
            "score both systems on the same clips",
        )
    if not first:
        hint = "give a test split with clips in it"
        raise DataError("there is nothing to compare: 0 clips before, 0 after", hint)
    pairs = [(b, second[clip_id]) for clip_id, b in first.items()]
    for b, a in pairs:
        if b.reference != a.reference:
            raise DataError(
                f"clip {b.clip_id!r} has two references: {b.reference!r} before, {a.reference!r} after",
                "score both systems against the same texts",
            )
        if b.normalizer != a.normalizer:
            raise DataError(
                f"clip {b.clip_id!r} was normalised in two ways: {b.normalizer} before, {a.normalizer} after",
                "score both systems again with one normaliser",
            )
    return pairs


def _by_id(scores: Sequence[ClipScore], side: str) -> dict[str, ClipScore]:
    by_id: dict[str, ClipScore] = {}
    for score in scores:
        if score.clip_id in by_id:
            raise DataError(
                f"clip {score.clip_id!r} is scored twice {side}: {by_id[score.clip_id].hypothesis!r} and "
                f"{score.hypothesis!r}",
                "give each clip once",
            )
        by_id[score.clip_id] = score
    return by_id


def _refuse_other_decoding(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    # Through JSON, because one side may have been read back from a file: a tuple is then a list.
    for option in sorted(before.keys() | after.keys()):
        values = [json.dumps(side.get(option), sort_keys=True, default=str) for side in (before, after)]
        if values[0] != values[1]:
            raise DataError(
                f"the two were decoded differently: {option} was {values[0]} before, {values[1]} after",
                "transcribe again with the same engine and options",
            )


def _label(grouping: Grouping, clip_id: str) -> Any:
    if clip_id not in grouping.labels:
        raise DataError(
            f"clip {clip_id!r} is scored but not among the {len(grouping.labels):,} clips of the test set",
            "group the clips that were scored",
        )
    return grouping.labels[clip_id]


@dataclass(frozen=True, slots=True)
class Guard:
    """Something that tuning must not harm, measured before and after."""

    name: str
    difference: Difference
    tolerance: float
    """By how many points it may get worse."""
    change: str = ""
    """What changed, in words of its own, such as "text on 0 → 3 of 24 windows without speech"."""


@dataclass(frozen=True, slots=True)
class GuardResult:
    """What became of a guard or a probe. Rates in percent."""

    name: str
    before: float
    after: float
    difference: Difference
    status: GuardStatus
    tolerance: float
    change: str = ""

    @property
    def sentence(self) -> str:
        change = self.change or f"{_rates(self.difference)}, {_points(self.difference)}"
        if self.status == "failed":
            return f"{self.name} got worse: {change}, tolerance {_tolerance(self)}"
        if self.status == "passed":
            return f"{self.name}: {change}, within {_tolerance(self)}"
        return f"{self.name}: {change}, not proven to be within {_tolerance(self)}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "before": self.before,
            "after": self.after,
            "difference": self.difference.as_dict(),
            "status": self.status,
            "tolerance": self.tolerance,
            "sentence": self.sentence,
        }


def judge_guards(guards: Sequence[Guard], goal: Difference | None = None) -> tuple[GuardResult, ...]:
    """The status of each guard and probe, all tried together (Holm).

    Args:
        goal: the difference that decides; None where they are judged by themselves.
    """
    alpha = (1 - CONFIDENCE) / 2
    if goal is not None and not goal.decided:
        alpha *= BESIDE_NOTHING
    worse = holm([guard.difference.p_worse for guard in guards], alpha)
    results = []
    for guard, beyond_chance in zip(guards, worse, strict=True):
        d = guard.difference
        status: GuardStatus = "unproven"
        if beyond_chance and d.point > guard.tolerance:
            status = "failed"
        elif d.high <= guard.tolerance:
            status = "passed"
        results.append(GuardResult(guard.name, d.before, d.after, d, status, guard.tolerance, guard.change))
    return tuple(results)


def holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Which hypotheses fall when the chance of any falling wrongly is to stay within `alpha`.

    Holm, "A Simple Sequentially Rejective Multiple Test Procedure", 1979.
    """
    rejected = [False] * len(p_values)
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[i] > alpha / (len(p_values) - rank):
            break
        rejected[i] = True
    return rejected


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict, in a word, in a sentence and with its reasons; each guard has a sentence of its own."""

    verdict: Verdict
    sentence: str
    reasons: tuple[str, ...]
    recommended: Literal["tuned", "base"]
    """The model to use: the base one unless the tuned one is better."""
    goal: str
    difference: Difference
    guards: tuple[GuardResult, ...]
    probes: tuple[GuardResult, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, in the order in which `report.json` begins."""
        return {
            "verdict": self.verdict,
            "goal": self.goal,
            "before": self.difference.before,
            "after": self.difference.after,
            "difference": self.difference.as_dict(),
            "guards": [guard.as_dict() for guard in self.guards],
            "sentence": self.sentence,
            "reasons": list(self.reasons),
            "probes": [probe.as_dict() for probe in self.probes],
            "recommended": self.recommended,
        }


def judge(
    goal_difference: Difference,
    guards: Sequence[GuardResult] = (),
    goal: str = "wer",
    probes: Sequence[GuardResult] = (),
) -> Judgement:
    """The verdict on a goal, given what became of the guards and probes, judged together and beside it."""
    on_goal = _on_goal(goal_difference)
    failed = [each for each in (*guards, *probes) if each.status == "failed"]
    verdict: Verdict = "worse" if failed else on_goal
    return Judgement(
        verdict=verdict,
        sentence=_sentence(goal_difference, on_goal, guards, probes),
        reasons=tuple(_reasons(goal_difference)),
        recommended="tuned" if verdict == "better" else "base",
        goal=goal,
        difference=goal_difference,
        guards=tuple(guards),
        probes=tuple(probes),
    )


def _on_goal(difference: Difference) -> Verdict:
    if difference.high < 0:
        return "better"
    return "worse" if difference.low > 0 else "no_difference"


def _sentence(
    d: Difference, on_goal: Verdict, guards: Sequence[GuardResult], probes: Sequence[GuardResult]
) -> str:
    change = f"{_rates(d)} {d.metric}, difference {_points(d)}"
    failed = [each.sentence for each in (*guards, *probes) if each.status == "failed"]
    if failed and on_goal != "worse":
        own = "it got better" if on_goal == "better" else "there is no measurable difference"
        link = "but" if on_goal == "better" else "and"
        change = f"{d.speaks_for}, {change}"
        return f"WORSE: {own} on your clips ({change}), {link} {'; '.join(failed)}. Keep the base model."
    if on_goal == "worse":
        also = "".join(f"; {sentence}" for sentence in failed)
        return f"WORSE for {d.speaks_for}: {change}{also}. Keep the base model."
    if on_goal == "no_difference":
        return f"NO MEASURABLE DIFFERENCE for {d.speaks_for}: {change}. Keep the base model."
    if not guards:
        return f"BETTER on your clips ({d.speaks_for}): {change}; general speech not checked."
    unproven = "".join(f" Guard {guard.sentence}." for guard in guards if guard.status == "unproven")
    return f"BETTER for {d.speaks_for}: {change}.{unproven}"


_DRAWN_NOTES = {
    "speaker": "speakers were drawn, so it speaks for speakers like them",
    "recording": "recordings were drawn, so it speaks for further recordings like them",
    "block": "5-minute stretches were drawn, so it speaks for more speech of the same recordings",
    "clip": "single clips were drawn, so it speaks for more clips of the same kind and no others",
}


def _reasons(d: Difference) -> list[str]:
    unit = UNITS[d.metric]
    size = f"{d.clips:,} {'clip' if d.clips == 1 else 'clips'} with {d.reference_length:,} {unit}"
    if not d.bounded:
        return [
            f"{size} in {d.groups} {'group' if d.groups == 1 else 'groups'} are too few for an interval: "
            f"below 6, even groups that all agree may do so by chance."
        ]
    return [
        f"{size}; 95 % interval from {d.resamples:,} paired resamples of {d.groups:,} groups; "
        f"the probability of being better is {_probability(d.probability_better)}.",
        f"Of {d.speaks_for}, {_DRAWN_NOTES[d.level]}.",
    ]


def _rates(d: Difference) -> str:
    digits = _digits(d)
    return f"{d.before:.{digits}f} → {d.after:.{digits}f} %"


def _digits(d: Difference) -> int:
    """One decimal, or more where it would show as 0 what is not."""
    shown = [abs(x) for x in (d.point, d.low, d.high) if x]
    return next((digits for digits in (1, 2, 3) if all(round(x, digits) for x in shown)), 4)


def _points(d: Difference) -> str:
    digits = _digits(d)
    ends = (
        f"{_signed(d.low, digits)}, {_signed(d.high, digits)}" if d.bounded else "no interval: too few clips"
    )
    return f"{_signed(d.point, digits)} points [{ends}]"


def _signed(x: float, digits: int) -> str:
    rounded = round(x, digits)
    if rounded == 0:
        return f"{0:.{digits}f}"
    return f"{'−' if rounded < 0 else '+'}{abs(rounded):.{digits}f}"


def _tolerance(guard: GuardResult) -> str:
    return f"+{guard.tolerance:g}"


def _probability(p: float) -> str:
    if p > 0.999:
        return "above 99.9 %"
    return "below 0.1 %" if p < 0.001 else f"{100 * p:.1f} %"
