"""The parts of a test set that are scored apart: by speaker, by length, by anything in a metadata column."""

import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from whispertune.clip import Clip
from whispertune.data.text import wrong_script

MIN_CLIPS = 5
"""Values with fewer clips are joined: a rate of four clips says nothing."""
MANY_VALUES = 10
"""A column of numbers with more different ones than this is cut in thirds; with fewer, each is a value."""
OTHER = "other"

_NO_COLUMNS = frozenset({"audio_sha", "source_duration_s"})
"""Ours, for finding copies; and the source's own word on what `length` says."""
_UNITS = {"length": "s", "snr": "dB"}
_UNITS_BY_SUFFIX = {"_s": "s", "_ms": "ms", "_db": "dB", "_hz": "Hz"}
_RUN = re.compile(r"[A-Za-z]+|[^A-Za-z\s]+")


def columns_of(
    clips: Iterable[Clip], snr_db: Mapping[str, float] | None = None
) -> dict[str, dict[str, str | float]]:
    """What is known of each clip, as {column: {clip id: value}}; a clip without a value is not in the column.

    Columns: `speaker`; `recording`, where it has several clips; `language`; `length` in seconds; `snr` in
    decibels, where given; `source_rate`; `code-switched`, yes or no; then the metadata's own, which go first
    where names are the same.

    Args:
        snr_db: speech over noise by clip id, in decibels.
    """
    clips = list(clips)
    columns: dict[str, dict[str, str | float]] = {
        "speaker": {c.id: c.speaker for c in clips if c.speaker},
        "recording": {c.id: c.recording for c in clips},
        "language": {c.id: c.language for c in clips if c.language},
        "length": {c.id: c.duration_s for c in clips},
        "snr": {c.id: snr_db[c.id] for c in clips if snr_db and c.id in snr_db},
        "source_rate": {c.id: f"{c.source_rate} Hz" for c in clips},
        "code-switched": {
            c.id: "yes" if is_code_switched(c.text, c.language) else "no" for c in clips if c.language
        },
    }
    if len(set(columns["recording"].values())) == len(clips):
        del columns["recording"]
    for name in dict.fromkeys(name for c in clips for name in c.extra if name not in _NO_COLUMNS):
        columns[name] = {c.id: value for c in clips if (value := c.extra.get(name, "").strip())}
    return {name: values for name, values in columns.items() if values}


def slices_of(columns: Mapping[str, Mapping[str, str | float]]) -> dict[str, dict[str, list[str]]]:
    """The clips of each value, as {column: {value: [clip ids]}}, those with most clips first.

    A column of numbers, floats or texts of more than `MANY_VALUES` that all read as numbers, is cut in thirds
    of its clips, from low to high, with equal numbers in one slice and the unit where it is known: "under
    2.4 s". Names that end in "id" are no numbers. Values with fewer than `MIN_CLIPS` clips are joined as
    "other", which comes last. Columns that say nothing are left out: one value, or a clip or few for each.
    """
    slices = {}
    for name, values in columns.items():
        numbers = _numbers(name, values)
        parts = _thirds(numbers, _unit(name)) if numbers else _by_value(values)
        large = {value: ids for value, ids in parts.items() if len(ids) >= MIN_CLIPS and value != OTHER}
        rest = {clip_id for value, ids in parts.items() if value not in large for clip_id in ids}
        if rest:
            large[OTHER] = [clip_id for clip_id in values if clip_id in rest]
        if len(large) > 1:
            slices[name] = large
    return slices


def is_code_switched(text: str, language: str | None) -> bool:
    """Whether words of two letters or more are in a script that the language is not written in.

    Two languages of one script cannot be told apart this way; without a language nothing is.
    """
    return language is not None and any(_is_foreign(run, language) for run in _RUN.findall(text))


@lru_cache(maxsize=65_536)
def _is_foreign(run: str, language: str) -> bool:
    return sum(c.isalpha() for c in run) > 1 and wrong_script(run, language) is not None


def _numbers(name: str, values: Mapping[str, str | float]) -> dict[str, float] | None:
    """The column's values as numbers, if that is what they are."""
    if name.casefold().endswith("id") or name in ("speaker", "recording"):
        return None
    try:
        numbers = {clip_id: float(value) for clip_id, value in values.items()}
    except ValueError:
        return None
    if not all(map(math.isfinite, numbers.values())):
        return None
    measured = any(isinstance(value, float) for value in values.values())
    return numbers if measured or len(set(numbers.values())) > MANY_VALUES else None


def _thirds(numbers: Mapping[str, float], unit: str) -> dict[str, list[str]]:
    ordered = sorted(numbers.values())
    count = len(ordered)
    # The borders are rounded before the clips are dealt out, so that what a slice is called is what it holds.
    low, high = (_rounded(ordered[k * count // 3]) for k in (1, 2))
    parts: dict[str, list[str]] = {
        f"under {low:.10g}{unit}": [i for i, x in numbers.items() if x < low],
        f"{low:.10g} to under {high:.10g}{unit}": [i for i, x in numbers.items() if low <= x < high],
        f"{high:.10g}{unit} and over": [i for i, x in numbers.items() if x >= high],
    }
    return {value: ids for value, ids in parts.items() if ids}


def _rounded(x: float) -> float:
    """To three digits."""
    return round(x, 2 - math.floor(math.log10(abs(x)))) if x else 0.0


def _unit(name: str) -> str:
    suffix = next((u for s, u in _UNITS_BY_SUFFIX.items() if name.casefold().endswith(s)), "")
    unit = _UNITS.get(name, suffix)
    return f" {unit}" if unit else ""


def _by_value(values: Mapping[str, str | float]) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {}
    for clip_id, value in values.items():
        parts.setdefault(str(value), []).append(clip_id)
    return dict(sorted(parts.items(), key=lambda part: (-len(part[1]), part[0])))
