"""A comparison as a page, in the look of the report: one HTML file, no network, no font, no script."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whispertune import __version__
from whispertune.report_figures import (
    Tick,
    defined,
    difference,
    in_points,
    interval,
    intervals,
    number,
    percent,
)
from whispertune.report_page import ENVIRONMENT, MEASURES, VERDICTS, Measure, stretches
from whispertune.report_tables import Bar, flat, more_speech
from whispertune.run import write_atomically, write_json


def write_comparison(comparison: dict[str, Any], folder: Path) -> Path:
    """Writes compare.json and compare.html into a folder; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "compare.json", comparison)
    page = folder / "compare.html"
    write_atomically(page, render_comparison(comparison))
    return page


def render_comparison(comparison: dict[str, Any]) -> str:
    """The page for `comparison` (the content of compare.json) as HTML text.

    A value that is None, missing or not finite is shown as "undefined".
    """
    measure, systems = MEASURES[comparison["goal"]], comparison["systems"]
    stock, *others = systems
    if others[1:]:
        others.sort(key=lambda s: (s["rank"], _or_inf(s.get(comparison["goal"]))))
    settings = comparison.get("settings") or {}
    tone, heading = _heading(comparison)
    return ENVIRONMENT.get_template("compare.html.j2").render(
        comparison=comparison,
        settings=settings,
        version=__version__,
        measure=measure,
        stock=stock["name"],
        tone=tone,
        heading=heading,
        lead=_lead(comparison, measure),
        bars=_bars(comparison),
        forest=intervals([_forest_entry(stock, other, comparison["goal"]) for other in others]),
        first_difference=others[0].get("difference") or {},
        columns=_columns(systems),
        systems=sorted([stock, *others], key=lambda s: s["rank"]) if others[1:] else systems,
        pairs=[_pair(pair, comparison["goal"]) for pair in comparison.get("pairs") or []]
        if others[1:]
        else [],
        charts=[
            drawn
            for key, title, unit in _COSTS
            if (drawn := _scatter(title, unit, key, systems, comparison["goal"], measure.short))
        ],
        clips=[_clip(clip) for clip in comparison.get("clips_changed") or []],
        sources=settings.get("sources") or {},
        folded=[(name, flat(options)) for name, options in (settings.get("decode") or {}).items()],
    )


# In words -------------------------------------------------------------------------------------------------


def _leaders(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    goal = comparison["goal"]
    return sorted((s for s in comparison["systems"] if s["rank"] == 1), key=lambda s: _or_inf(s.get(goal)))


def _or_inf(rate: Any) -> float:
    return rate if defined(rate) else math.inf


def _heading(comparison: dict[str, Any]) -> tuple[str, tuple[str, str]]:
    """(class of the page, (what is printed bold, what follows))."""
    about = comparison.get("speaks_for")
    about = f"for {about}" if about else ""
    if "verdict" in comparison:
        return comparison["verdict"], (VERDICTS[comparison["verdict"]], about)
    leaders = _leaders(comparison)
    # As in the verdict: better is what is better than the first system.
    tone = "better" if comparison["systems"][0]["rank"] > 1 else "no_difference"
    if len(leaders) == 1:
        return tone, (leaders[0]["name"], f"is best {about}".strip())
    if len(leaders) == len(comparison["systems"]):
        return "no_difference", (VERDICTS["no_difference"], about)
    of_all = f"{len(leaders)} of {len(comparison['systems'])}"
    return tone, (of_all, f"share the first place {about}".strip())


def _lead(comparison: dict[str, Any], measure: Measure) -> list[str]:
    """The result in sentences that need no knowledge of speech recognition."""
    goal, (stock, *others) = comparison["goal"], comparison["systems"]
    leaders = _leaders(comparison) if others[1:] else [others[0]]
    if not all(defined(system.get(goal)) for system in (stock, *leaders)):
        return [f"The {measure.name} is undefined for these clips, so there is nothing to compare."]
    makes = f"For every 100 {measure.counted}, {stock['name']} makes {_rate(stock, goal)} mistakes"
    best = leaders[0]
    if best is stock:
        lines = [f"{makes}."]
    elif len(leaders) == 1:
        lines = [f"{makes}, {best['name']} {_rate(best, goal)}."]
    elif stock in leaders:
        lines = [f"{makes}. None is better beyond chance: {best['name']} makes {_rate(best, goal)}."]
    else:
        lines = [
            f"{makes}. The {len(leaders)} that lead make {_rate(best, goal)} to {_rate(leaders[-1], goal)}, "
            f"and chance alone can explain what lies between those."
        ]
    verdict = comparison.get("verdict")
    if verdict == "no_difference":
        lines.append("Chance alone can explain a difference like that.")
        if more := more_speech(others[0], measure.counted):
            lines.append(f"{more[0].upper()}{more[1:]}.")
    if verdict == "worse":
        lines.append(f"Keep using {stock['name']}.")
    return lines


def _rate(system: dict[str, Any], goal: str) -> str:
    return number(system[goal], 1)


def _bars(comparison: dict[str, Any]) -> list[tuple[Bar, bool]]:
    """(bar, whether filled) of each system; of several the lowest rate first."""
    goal, systems = comparison["goal"], list(comparison["systems"])
    filled = [systems[1]] if "verdict" in comparison else _leaders(comparison)
    if "verdict" not in comparison:
        systems.sort(key=lambda s: _or_inf(s.get(goal)))
    longest = max((s[goal] for s in systems if defined(s.get(goal))), default=0) or 1
    return [
        (
            Bar(s["name"], percent(s.get(goal)), 100 * s[goal] / longest if defined(s.get(goal)) else 0),
            any(s is each for each in filled),
        )
        for s in systems
    ]


# Tables ---------------------------------------------------------------------------------------------------


def _forest_entry(stock: dict[str, Any], system: dict[str, Any], goal: str) -> dict[str, Any]:
    return {
        "name": system["name"],
        "kind": "goal",
        "before": stock.get(goal),
        "after": system.get(goal),
        "difference": system.get("difference"),
        "note": more_speech(system, MEASURES[goal].counted),
    }


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of scores."""

    key: str
    label: str
    hint: str
    show: Callable[[Any], str]


_SCORES = [
    Column("wer", "WER", "word error rate", percent),
    Column("cer", "CER", "character error rate", percent),
    Column("substitutions", "Sub.", "words taken for another", number),
    Column("deletions", "Del.", "words left out", number),
    Column("insertions", "Ins.", "words nobody said", number),
    Column("loops", "Loops", "clips that repeat themselves", number),
    Column("sentence_accuracy", "Right", "clips without any error", percent),
    Column("clips_better", "Fewer", "clips with fewer errors than the first system", number),
    Column("clips_worse", "More", "clips with more", number),
]
_COSTS = [
    ("rtf", "Speed", "seconds of computing a second of speech"),
    ("size_mb", "Size", "MB of weights"),
    ("cost_per_hour", "Cost", "US$ an hour of speech"),
]
_KNOWN = [
    Column("rtf", "RTF", "seconds of computing a second of speech", lambda x: number(x, 3)),
    Column("size_mb", "MB", "size of the weights", number),
    Column("cost_per_hour", "US$/h", "US$ an hour of speech", lambda x: number(x, 2)),
]


def _columns(systems: list[dict[str, Any]]) -> list[Column]:
    """Those that say something: what is known of no system is left out."""
    return _SCORES + [column for column in _KNOWN if any(defined(s.get(column.key)) for s in systems)]


def _pair(pair: dict[str, Any], goal: str) -> dict[str, str]:
    found = pair.get("difference") or {}
    low, high = (_or_inf(found.get(end)) for end in ("low", "high"))
    bounded = math.isfinite(low) and math.isfinite(high)
    note = "" if pair.get("better") else more_speech(pair, MEASURES[goal].counted)
    if not pair.get("better") and bounded and (high < 0 or low > 0):
        note = "beyond chance only if it were the one pair"
    return {
        "first": pair["first"],
        "second": pair["second"],
        "difference": in_points(found.get("point")),
        "interval": interval(low, high) if bounded else "interval undefined",
        "better": pair.get("better") or "",
        "note": note,
    }


# Clips ----------------------------------------------------------------------------------------------------


def _clip(clip: dict[str, Any]) -> dict[str, Any]:
    heard = clip.get("heard") or []
    errors = [each.get("errors") for each in heard]
    change = difference(errors[0], errors[1]) if len(errors) == 2 else None
    return {
        **clip,
        "way": "" if change is None else "fewer" if change < 0 else "more" if change > 0 else "same",
        "counts": " → ".join(map(number, errors)) if len(errors) == 2 else "",
        "range": f"{number(min(errors))} to {number(max(errors))}"
        if errors and all(map(defined, errors))
        else "",
        "heard": [{**each, "stretches": stretches(each.get("differences"))} for each in heard],
    }


# Error rate against what it costs -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spot:
    """A system in a drawing, and where its name stands."""

    name: str
    x: float
    y: float
    text_y: float
    flipped: bool
    leads: bool


@dataclass(frozen=True, slots=True)
class Scatter:
    """A drawing of `width` × `height`; every position is in those units."""

    title: str
    unit: str
    rate: str
    spots: list[Spot]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    width: int = 400
    height: int = 250
    left: int = 44
    right: int = 374
    top: int = 16
    bottom: int = 200


_LABEL_HEIGHT, _LETTER_WIDTH = 14.0, 6.6
_NEAREST_FIRST = [0, *(move for k in range(1, 180) for move in (k, -k))]


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:23]}…"


def _fits(spot: Spot, others: Sequence[Spot], dots: Sequence[tuple[float, float]], frame: Scatter) -> bool:
    """Whether a name is within the drawing, and over no other name and no dot."""
    start, end = _span(spot)
    spans = [(*_span(other), other.text_y) for other in others]
    spans += [(x - 6, x + 6, y + 4) for x, y in dots]
    inside = start >= frame.left and end <= frame.width and spot.text_y <= frame.bottom + 4
    return inside and not any(
        a < end and start < b and abs(spot.text_y - y) < _LABEL_HEIGHT for a, b, y in spans
    )


def _span(spot: Spot) -> tuple[float, float]:
    width = 16 + _LETTER_WIDTH * len(spot.name)
    return (spot.x - width, spot.x) if spot.flipped else (spot.x, spot.x + width)


def _scatter(
    title: str, unit: str, key: str, systems: Sequence[dict[str, Any]], goal: str, rate: str
) -> Scatter | None:
    """Error rates against what they cost, the latter in powers; None where fewer than two are known."""
    known = [s for s in systems if defined(s.get(key)) and s[key] > 0 and defined(s.get(goal))]
    if len(known) < 2:
        return None
    frame = Scatter(title, unit, rate, [], [], [])
    low, high = _decades([s[key] for s in known])
    most = max(s[goal] for s in known) or 1.0
    step = next(s for s in (0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e9) if most / s <= 5)
    levels = [k * step for k in range(math.ceil(most / step) + 1)]
    top, middle = levels[-1], (frame.left + frame.right) / 2

    def x(value: float) -> float:
        share = math.log(value / low) / math.log(high / low)
        return round(frame.left + (frame.right - frame.left) * share, 1)

    def y(value: float) -> float:
        return round(frame.bottom - (frame.bottom - frame.top) * value / top, 1)

    spots: list[Spot] = []
    for system in sorted(known, key=lambda s: -s[goal]):  # from the top down, no name over another
        at_x, at_y = x(system[key]), y(system[goal])
        dots = [(x(other[key]), y(other[goal])) for other in known if other is not system]
        spot = Spot(_short(system["name"]), at_x, at_y, at_y + 4, at_x > middle, system["rank"] == 1)
        other_side = replace(spot, flipped=not spot.flipped)
        if _fits(other_side, spots, dots, frame) and not _fits(spot, spots, dots, frame):
            spot = other_side
        moved = (replace(spot, text_y=round(spot.text_y + move, 1)) for move in _NEAREST_FIRST)
        spot = next((m for m in moved if frame.top <= m.text_y and _fits(m, spots, [], frame)), spot)
        spots.append(spot)
    return Scatter(
        title,
        unit,
        rate,
        spots,
        [Tick(x(value), f"{value:g}") for value in _marks(low, high)],
        [Tick(y(value), f"{value:g}") for value in levels],
    )


_STEPS = (1.0, 2.0, 5.0)


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """The 1-2-5 figures on either side of all values."""
    exponents = range(math.floor(math.log10(min(values))) - 1, math.ceil(math.log10(max(values))) + 2)
    marks = [step * 10.0**e for e, step in itertools.product(exponents, _STEPS)]
    return max(m for m in marks if m < min(values)), min(m for m in marks if m > max(values))


def _marks(low: float, high: float) -> list[float]:
    """1-2-5 figures from `low` to `high`; of many only the powers of ten."""
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    marks = [step * 10.0**e for e, step in itertools.product(exponents, _STEPS)]
    within = [mark for mark in marks if low * 0.999 <= mark <= high * 1.001]
    if len(within) <= 7:
        return within
    return [mark for mark in within if math.isclose(math.log10(mark) % 1, 0, abs_tol=1e-6)] or within[::3]
