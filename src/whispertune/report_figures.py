"""Numbers as a reader expects them, and the geometry of the report's two drawings: the interval and a curve.

Everything here is sums and text; the templates draw it.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

MINUS = "−"
NO_BREAK_SPACE = "\u00a0"
THIN_SPACE = "\u202f"

SHOWN_POINTS = 400
"""Points of a curve; a longer one is averaged, because the drawing has no more pixels than that."""


# Numbers --------------------------------------------------------------------------------------------------


def defined(value: object) -> TypeGuard[float]:
    """Whether `value` is a finite number: an error rate without reference words is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number(value: Any, digits: int = 0, sign: bool = False) -> str:
    """`1,204`, `−18.3`, `+0.4`; a value that rounds to zero has no sign."""
    if not defined(value):
        return "undefined"
    text = f"{value:{'+' if sign else ''},.{digits}f}"
    if not text.strip("+-0.,"):
        text = text.lstrip("+-")
    return text.replace("-", MINUS)


def percent(value: Any) -> str:
    """`43.2 %`, with a narrow space that does not break."""
    return f"{number(value, 1)}{THIN_SPACE}%" if defined(value) else "undefined"


def in_points(value: Any) -> str:
    """`−18.3 points`: a difference of two rates in percent."""
    return f"{number(value, 1, sign=True)}{THIN_SPACE}points" if defined(value) else "undefined"


def interval(low: float, high: float) -> str:
    """`[−21.0, −15.7]`."""
    return f"[{number(low, 1, sign=True)}, {number(high, 1, sign=True)}]"


def unbroken(text: str) -> str:
    """`text` whose figures stay on one line: `39.3 → 27.5 %`, `−11.8 points`, `[−15.9, −8.0]`."""
    return re.sub(r" (?=[→%]|points)|(?<=→) |(?<=\d,) (?=[+−]?\d+(\.\d+)?\])", NO_BREAK_SPACE, text)


def duration(seconds: Any) -> str:
    """`45 s`, `6 min 40 s`, `1 h 32 min`."""
    if not defined(seconds):
        return "undefined"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def difference(before: Any, after: Any) -> float | None:
    """`after` − `before`; None when one of them is undefined."""
    return after - before if defined(before) and defined(after) else None


# Axes and the interval ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Axis:
    """A range whose ends and ticks are round numbers."""

    low: float
    high: float
    ticks: tuple[float, ...]
    digits: int

    def fraction(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)


def _axis(values: Iterable[float], most_ticks: int = 6) -> Axis:
    """The range of `values`, widened to the next multiples of 1, 2 or 5 times a power of ten."""
    values = list(values) or [0.0, 1.0]
    low, high = min(values), max(values)
    if low == high:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    power = 10.0 ** math.floor(math.log10((high - low) / most_ticks))
    step = next(power * size for size in (1, 2, 5, 10, 20) if (high - low) / (power * size) <= most_ticks - 1)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(step * index for index in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], ticks, max(0, -math.floor(math.log10(step) + 1e-9)))


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    label: str
    zero: bool = False


@dataclass(frozen=True, slots=True)
class ForestRow:
    """One interval. Positions are percent of the drawing's width; None where the value is undefined."""

    name: str
    kind: str
    rates: str
    point: float | None
    low: float | None
    high: float | None
    difference: str
    interval: str
    tone: str
    """`better` or `worse` where the interval lies on one side of zero."""
    status: str = ""
    tolerance: float | None = None
    """Where the interval of what must not get worse has to end."""
    allowed: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Forest:
    rows: list[ForestRow]
    ticks: list[Tick]
    zero: float


def forest(report: dict[str, Any]) -> Forest:
    """The intervals of the goal and of every guard in a report, with their tolerances, on one axis."""
    goal = {**report, "name": report.get("speaks_for") or "test", "kind": "goal"}
    return intervals([goal, *({**guard, "kind": "guard"} for guard in report.get("guards") or [])])


def intervals(entries: list[dict[str, Any]]) -> Forest:
    """Intervals on one axis, a row each.

    Args:
        entries: `name`, `kind`, `before`, `after`, `difference` {`point`, `low`, `high`}, perhaps a `note`;
            what must not get worse, a guard or a probe, also `status` and `tolerance`.
    """
    differences = [entry.get("difference") or {} for entry in entries]
    values = [difference.get(key) for difference in differences for key in ("point", "low", "high")]
    values += [entry.get("tolerance") for entry in entries]
    axis = _axis([0.0, *(value for value in values if defined(value))])

    def at(value: Any) -> float | None:
        # A margin of 3 % on both sides, so that the outer labels are not cut.
        return round(3 + 94 * axis.fraction(value), 2) if defined(value) else None

    def row(entry: dict[str, Any], difference: dict[str, Any]) -> ForestRow:
        point, low, high = (difference.get(key) for key in ("point", "low", "high"))
        bounded = defined(low) and defined(high)
        must_not_rise = "status" in entry
        tolerance = entry.get("tolerance")
        return ForestRow(
            name=entry["name"],
            kind=entry["kind"],
            rates=f"{number(entry.get('before'), 1)} → {percent(entry.get('after'))}",
            point=at(point),
            low=at(low) if bounded else None,
            high=at(high) if bounded else None,
            difference=in_points(point),
            tone="" if not bounded else "better" if high < 0 else "worse" if low > 0 else "",
            interval=interval(low, high) if bounded else "interval undefined",
            status=entry.get("status") or "",
            tolerance=at(tolerance) if must_not_rise else None,
            allowed=number(tolerance, 1, sign=True) if must_not_rise else "",
            note=entry.get("note") or "",
        )

    rows = [row(entry, difference) for entry, difference in zip(entries, differences, strict=True)]
    ticks = [Tick(at(tick), number(tick, axis.digits, sign=True), abs(tick) < 1e-9) for tick in axis.ticks]
    return Forest(rows, ticks, at(0.0))


# Curves ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chart:
    """A curve in a drawing of `WIDTH` × `HEIGHT`; every position is in those units."""

    title: str
    unit: str
    lines: list[str]
    """`points` of a polyline each; a value that is not finite parts the curve in two."""
    dots: list[tuple[float, float]]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    best: tuple[float, float | None, str] | None
    averaged: int
    """Values that one point is the mean of; 1 where all are drawn."""
    summary: str
    x_name: str
    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int


WIDTH, HEIGHT = 400, 236
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, WIDTH - 14, 26, HEIGHT - 42


def _runs(points: list[list[float]]) -> Iterator[list[list[float]]]:
    """The stretches of `points` whose numbers are all finite."""
    run: list[list[float]] = []
    for point in points:
        if all(map(defined, point)):
            run.append(point)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _averaged(points: list[list[float]], size: int) -> list[list[float]]:
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [[sum(column) / len(group) for column in zip(*group, strict=True)] for group in groups]


def chart(
    title: str,
    unit: str,
    points: list[list[float]],
    best_step: Any,
    dots: bool,
    x_name: str = "optimizer step",
    mark: str = "best, step",
) -> Chart:
    """A curve through `points` ([step, value] each), the best step marked; `dots` for exact values."""
    size = math.ceil(len(points) / SHOWN_POINTS) or 1
    runs = [_averaged(run, size) for run in _runs(points)]
    drawn = [point for run in runs for point in run]
    steps = [step for step, _ in points if defined(step)]
    x_axis = _axis([0, *steps])
    y_axis = _axis(point[1] for point in drawn)
    last_step = max(steps, default=x_axis.high)

    def x(step: float) -> float:
        # The curve ends where training ended, not at the next round number.
        return round(_LEFT + (_RIGHT - _LEFT) * (step - x_axis.low) / ((last_step - x_axis.low) or 1), 1)

    def y(value: float) -> float:
        return round(_BOTTOM - (_BOTTOM - _TOP) * y_axis.fraction(value), 1)

    best = None
    if defined(best_step) and drawn and x_axis.low <= best_step <= last_step:
        value = dict(points).get(best_step) if dots else None
        value = value if defined(value) else None
        label = f"{mark} {number(best_step)}" + (f": {number(value, 1)}" if value is not None else "")
        best = (x(best_step), y(value) if value is not None else None, label)
    return Chart(
        title, unit,
        lines=[" ".join(f"{x(step)},{y(value)}" for step, value in run) for run in runs if len(run) > 1],
        dots=[(x(step), y(value)) for step, value in drawn] if dots and len(drawn) <= 60 else
             [(x(run[0][0]), y(run[0][1])) for run in runs if len(run) == 1],
        x_ticks=[Tick(x(tick), number(tick, x_axis.digits)) for tick in x_axis.ticks if tick <= last_step],
        y_ticks=[Tick(y(tick), number(tick, y_axis.digits)) for tick in y_axis.ticks],
        best=best,
        averaged=size,
        summary=f"from {drawn[0][1]:.3g} to {drawn[-1][1]:.3g}" if drawn else "",
        x_name=x_name,
        width=WIDTH, height=HEIGHT, left=_LEFT, right=_RIGHT, top=_TOP, bottom=_BOTTOM,
    )  # fmt: skip
