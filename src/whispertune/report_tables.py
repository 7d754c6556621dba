"""The tables of the report page, as rows of text: a row's words and numbers are chosen here, its look is in
`templates/`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whispertune.report_figures import (
    THIN_SPACE,
    Forest,
    ForestRow,
    defined,
    difference,
    in_points,
    interval,
    intervals,
    number,
    percent,
    unbroken,
)

SHOWN_SLICES = 12
"""Rows of a column's slices; where there are more, those with most words."""


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: str
    width: float
    """Percent of the room there is."""


def bars(shown: Mapping[str, Any]) -> list[Bar]:
    """Bars for the `before` and `after` of a report or a guard."""
    values = {"Before": shown.get("before"), "After": shown.get("after")}
    longest = max((value for value in values.values() if defined(value)), default=0) or 1
    return [
        Bar(label, percent(value), 100 * value / longest if defined(value) else 0)
        for label, value in values.items()
    ]


def more_speech(found: Mapping[str, Any], counted: str) -> str:
    """How much more speech would decide a difference; nothing where it is decided or no amount would."""
    words = found.get("words_to_decide")
    if not defined(words) or not words:
        return ""
    digits = max(0, len(str(words)) - 2)  # two figures say all that is known
    return f"about {number(round(words, -digits))} more {counted} would decide it"


def keywords(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if not found:
        return None
    rows = []
    for label in ("Before", "After"):
        side = found.get(label.lower()) or {}
        hits, total = side.get("hits"), side.get("total")
        share = 100 * hits / total if defined(hits) and defined(total) and total else None
        rows.append((Bar(label, percent(share), share or 0), f"{number(hits)} of {number(total)}"))
    chosen = "found in the test texts" if found.get("chosen_by") == "texts" else ""
    return {"rows": rows, "words": found.get("words") or [], "chosen": chosen}


@dataclass(frozen=True, slots=True)
class TableRow:
    label: str
    hint: str
    before: str
    after: str
    change: str


@dataclass(frozen=True, slots=True)
class SetTable:
    name: str
    kind: str
    clips: str
    words: str
    rows: list[TableRow]
    folded: list[TableRow]
    shares: list[tuple[str, int, float]]
    """(`better`, clips, percent of all), and so on for `same` and `worse`."""


_SHOWN_ROWS = 6
"""More of them are folded."""
# key, label, what it means, whether it is a rate in percent (else a count)
_ROWS = [
    ("wer", "Word error rate", "", True),
    ("cer", "Character error rate", "", True),
    ("sentence_accuracy", "Sentences right", "without any error", True),
    ("substitutions", "Substitutions", "a word taken for another", False),
    ("deletions", "Deletions", "a word left out", False),
    ("insertions", "Insertions", "a word nobody said", False),
    ("lost_at_start", "Lost at the start", "words missing there, in all clips", False),
    ("lost_at_end", "Lost at the end", "words missing there, in all clips", False),
    ("loops", "Loops", "clips that repeat themselves", False),
    ("empty", "Empty", "clips without any text", False),
    ("over_100", "Over 100 %", "clips with more errors than words", False),
    ("wer_without_loops", "WER without loops", "looping clips left out", True),
    ("raw_wer", "Raw WER", "case and punctuation count", True),
]


def set_table(name: str, values: Mapping[str, Any], report: Mapping[str, Any]) -> SetTable:
    before, after = values.get("before") or {}, values.get("after") or {}
    rows = []
    for key, label, hint, is_rate in _ROWS:
        show = percent if is_rate else number
        change = difference(before.get(key), after.get(key))
        moved = number(change, 1 if is_rate else 0, sign=True)
        unit = f"{THIN_SPACE}pt" if is_rate and change is not None else ""
        rows.append(TableRow(label, hint, show(before.get(key)), show(after.get(key)), moved + unit))
    counts = [(label, values.get(f"clips_{label}")) for label in ("better", "same", "worse")]
    total = sum(count for _, count in counts if defined(count))
    guards = {guard["name"] for guard in report.get("guards") or []}
    return SetTable(
        name,
        "guard" if name in guards else "",
        number(after.get("clips")),
        number(after.get("reference_words")),
        rows[:_SHOWN_ROWS],
        rows[_SHOWN_ROWS:],
        [(label, count, 100 * count / total) for label, count in counts if defined(count)] if total else [],
    )


@dataclass(frozen=True, slots=True)
class KeptRow:
    """What was tried beside the goal, and what came of it."""

    name: str
    asks: str
    found: str
    status: str
    drawn: ForestRow | None
    """None where nothing was judged."""


PROBE_NAMES = {
    "no speech": "Silence",
    "long-form": "Long recordings",
    "timestamps": "Timestamps",
    "prompt": "Prompts",
    "language": "Languages",
    "style": "Case and punctuation",
}
_ASKS = {
    "no speech": "Does it write nothing where nobody speaks?",
    "long-form": "Does it hold through a minute and more?",
    "timestamps": "Does it still say when?",
    "prompt": "Does a list of words still help it?",
    "language": "Does it still tell them apart?",
}
_STATUS = {"passed": "kept", "failed": "lost", "unproven": "not proven"}


def kept(probes: Sequence[Mapping[str, Any]] | None) -> tuple[list[KeptRow], Forest] | None:
    """A row for each probe, and the axis on which those that were judged are drawn; None without probes."""
    if not probes:
        return None
    judged = {probe["name"]: probe for probe in probes if probe.get("difference")}
    forest = intervals([{**probe, "kind": "probe"} for probe in judged.values()])
    drawn = dict(zip(judged, forest.rows, strict=True))
    rows = [
        KeptRow(
            PROBE_NAMES.get(probe["name"], probe["name"]),
            _ASKS.get(probe["name"], ""),
            unbroken(probe.get("change") or ""),
            _STATUS.get(probe.get("status") or "", ""),
            drawn.get(probe["name"]),
        )
        for probe in probes
    ]
    return rows, forest


@dataclass(frozen=True, slots=True)
class SliceRow:
    value: str
    clips: str
    words: str
    rates: str
    change: str
    interval: str
    tone: str


def slice_tables(
    slices: Mapping[str, Sequence[Mapping[str, Any]]] | None,
) -> list[tuple[str, list[SliceRow]]]:
    """For each column of the test clips, its values and how each fared; a value of few words says little."""
    tables = []
    for column, rows in (slices or {}).items():
        if len(rows) > SHOWN_SLICES:
            rows = sorted(rows, key=lambda row: -(row.get("words") or 0))[:SHOWN_SLICES]
        if rows:
            name = "SNR" if column == "snr" else column.replace("_", " ").capitalize()
            tables.append((name, [_slice(row) for row in rows]))
    return tables


def _slice(row: Mapping[str, Any]) -> SliceRow:
    found = row.get("difference") or {}
    low, high = found.get("low"), found.get("high")
    bounded = defined(low) and defined(high)
    return SliceRow(
        str(row.get("value")),
        number(row.get("clips")),
        number(row.get("words")),
        f"{number(row.get('before'), 1)} → {percent(row.get('after'))}",
        in_points(found.get("point")),
        interval(low, high) if bounded else "",
        "better" if bounded and high < 0 else "worse" if bounded and low > 0 else "",
    )


@dataclass(frozen=True, slots=True)
class FreeRow:
    name: str
    rate: str
    compared: str


def free_rows(report: Mapping[str, Any]) -> list[FreeRow]:
    """What would have been had without training, against the tuned model."""
    rows = []
    for row in report.get("free") or []:
        found = row.get("difference_to_tuned") or {}
        low, high = found.get("low"), found.get("high")
        ends = f" {interval(low, high)}" if defined(low) and defined(high) else ""
        verdict = "not measurably worse than tuning" if row.get("matches") else "worse than tuning"
        rows.append(
            FreeRow(
                row["name"], percent(row.get("rate")), f"{verdict}: {in_points(found.get('point'))}{ends}"
            )
        )
    return rows


def flat(tree: Any, prefix: str = "") -> list[tuple[str, str]]:
    """(`train.learning_rate`, `1e-05`), …: the names that `--set` takes."""
    if isinstance(tree, dict):
        start = f"{prefix}." if prefix else ""
        return [pair for key, value in tree.items() for pair in flat(value, f"{start}{key}")]
    if not prefix:
        return []
    return [(prefix, tree if isinstance(tree, str) else json.dumps(tree, ensure_ascii=False, default=str))]
