"""The report as a page: one HTML file that needs no network, no font and no script, and reads like a letter.

`render_page` turns what `report.json` holds into words, tables and drawings. The words and the geometry are
computed here; how they look is in `templates/`. Every text comes from data and is escaped by Jinja.
"""

import base64
import json
from dataclasses import dataclass
from typing import Any

import jinja2

from whispertune.report_figures import (
    THIN_SPACE,
    chart,
    defined,
    difference,
    duration,
    forest,
    number,
    percent,
)

SHOWN_WORDS = 24
"""Words of one stretch that a word difference shows; a loop would otherwise fill the page."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What an error rate is called, and what it counts."""

    short: str
    name: str
    counted: str


MEASURES = {
    "wer": Measure("WER", "word error rate", "words"),
    "cer": Measure("CER", "character error rate", "characters"),
}
VERDICTS = {"better": "Better", "no_difference": "No measurable difference", "worse": "Worse"}


def render_page(report: dict[str, Any], audio: dict[str, bytes]) -> str:
    """The page for `report` (the content of report.json) as HTML text.

    `audio` maps a clip's id to the bytes of a WAV file; the clips under `clips_changed` that have one get a
    player. A value that is None, missing or not finite is shown as "undefined".
    """
    settings = report.get("settings") or {}
    curves = report.get("curves") or {}
    best = curves.get("best_step")
    return ENVIRONMENT.get_template("report.html.j2").render(
        report=report,
        settings=settings,
        measure=MEASURES[report["goal"]],
        heading=_heading(report),
        lead=_lead(report),
        # The bars show what the heading speaks of: what was forgotten, where that made the verdict.
        forgotten=_failed_guards(report)[0]["name"] if _forgot(report) else None,
        bars=_bars(_failed_guards(report)[0] if _forgot(report) else report),
        forest=forest(report),
        sets=[_set_table(name, values, report) for name, values in (report.get("sets") or {}).items()],
        keywords=_keywords(report.get("keywords")),
        charts=[
            chart("Training loss", "nats per token", curves.get("loss") or [], best, dots=False),
            chart("Word error rate on dev", "%", curves.get("dev_wer") or [], best, dots=True),
        ],
        clips=[_clip(clip, audio.get(clip["id"])) for clip in report.get("clips_changed") or []],
        folded=[
            ("Recipe", flat(settings.get("recipe"))),
            ("Decoding", flat(settings.get("decode"))),
            ("Versions", flat(settings.get("versions"))),
        ],
    )


# The verdict in words -------------------------------------------------------------------------------------


def _failed_guards(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [guard for guard in report.get("guards") or [] if guard["status"] == "failed"]


def _forgot(report: dict[str, Any]) -> bool:
    """Worse only because of a guard: the goal's own interval does not lie above zero."""
    low = (report.get("difference") or {}).get("low")
    return report["verdict"] == "worse" and bool(_failed_guards(report)) and not (defined(low) and low > 0)


def _heading(report: dict[str, Any]) -> tuple[str, str]:
    if _forgot(report):
        return VERDICTS["worse"], "on " + " and ".join(guard["name"] for guard in _failed_guards(report))
    about = report.get("speaks_for")
    return VERDICTS[report["verdict"]], f"for {about}" if about else ""


def _lead(report: dict[str, Any]) -> list[str]:
    """The verdict in sentences that need no knowledge of speech recognition."""
    measure = MEASURES[report["goal"]]
    before, after = report.get("before"), report.get("after")
    model = ((report.get("settings") or {}).get("model") or {}).get("name") or "the model"
    if not (defined(before) and defined(after)):
        lines = [f"The {measure.name} is undefined for these clips, so there is nothing to compare."]
    elif _forgot(report):
        lines = [
            f"On the speech it was tuned for, {model} went from {number(before, 1)} to {number(after, 1)} "
            f"mistakes for every 100 {measure.counted}."
        ]
    else:
        lines = [
            f"For every 100 {measure.counted}, {model} made {number(before, 1)} mistakes. "
            f"After tuning it makes {number(after, 1)}."
        ]
        if report["verdict"] == "no_difference":
            lines.append("Chance alone can explain a difference like that.")
    for guard in _failed_guards(report):
        was, now = number(guard.get("before"), 1), number(guard.get("after"), 1)
        allowed = number(guard.get("tolerance"), 1, sign=True)
        lines.append(
            f"On {guard['name']}, which it must not forget, it went from {was} to {now}; "
            f"at most {allowed} was allowed."
        )
    if report["verdict"] == "worse":
        lines.append(f"Keep using {model} as it was.")
    return lines


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: str
    width: float
    """Percent of the room there is."""


def _bars(shown: dict[str, Any]) -> list[Bar]:
    """Bars for the `before` and `after` of a report or a guard."""
    values = {"Before": shown.get("before"), "After": shown.get("after")}
    longest = max((value for value in values.values() if defined(value)), default=0) or 1
    return [
        Bar(label, percent(value), 100 * value / longest if defined(value) else 0)
        for label, value in values.items()
    ]


# Tables ---------------------------------------------------------------------------------------------------


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
    shares: list[tuple[str, int, float]]
    """(`better`, clips, percent of all), and so on for `same` and `worse`."""


# key, label, what it means, whether it is a rate in percent (else a count)
_ROWS = [
    ("wer", "Word error rate", "", True),
    ("cer", "Character error rate", "", True),
    ("sentence_accuracy", "Sentences right", "without any error", True),
    ("substitutions", "Substitutions", "a word taken for another", False),
    ("deletions", "Deletions", "a word left out", False),
    ("insertions", "Insertions", "a word nobody said", False),
    ("loops", "Loops", "clips that repeat themselves", False),
    ("empty", "Empty", "clips without any text", False),
    ("over_100", "Over 100 %", "clips with more errors than words", False),
    ("wer_without_loops", "WER without loops", "looping clips left out", True),
    ("raw_wer", "Raw WER", "case and punctuation count", True),
]


def _set_table(name: str, values: dict[str, Any], report: dict[str, Any]) -> SetTable:
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
        rows,
        [(label, count, 100 * count / total) for label, count in counts if defined(count)] if total else [],
    )


def _keywords(keywords: dict[str, Any] | None) -> dict[str, Any] | None:
    if not keywords:
        return None
    rows = []
    for label in ("Before", "After"):
        found = keywords.get(label.lower()) or {}
        hits, total = found.get("hits"), found.get("total")
        share = 100 * hits / total if defined(hits) and defined(total) and total else None
        rows.append((Bar(label, percent(share), share or 0), f"{number(hits)} of {number(total)}"))
    return {"rows": rows, "words": keywords.get("words") or []}


def flat(tree: Any, prefix: str = "") -> list[tuple[str, str]]:
    """(`train.learning_rate`, `1e-05`), …: the names that `--set` takes."""
    if isinstance(tree, dict):
        start = f"{prefix}." if prefix else ""
        return [pair for key, value in tree.items() for pair in flat(value, f"{start}{key}")]
    if not prefix:
        return []
    return [(prefix, tree if isinstance(tree, str) else json.dumps(tree, ensure_ascii=False, default=str))]


# Clips ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stretch:
    """Words that were heard right, missed, added or replaced, cut to `SHOWN_WORDS`."""

    op: str
    reference: str
    hypothesis: str


def _cut(words: str) -> str:
    parts = words.split()
    if len(parts) <= SHOWN_WORDS:
        return words
    return f"{' '.join(parts[:SHOWN_WORDS])} … ({number(len(parts) - SHOWN_WORDS)} more words)"


def stretches(differences: list[dict[str, str]] | None) -> list[Stretch]:
    """Word differences as the page shows them."""
    return [
        Stretch(part["op"], _cut(part.get("reference") or ""), _cut(part.get("hypothesis") or ""))
        for part in differences or []
    ]


def _clip(clip: dict[str, Any], wav: bytes | None) -> dict[str, Any]:
    change = difference(clip.get("errors_before"), clip.get("errors_after"))
    return {
        **clip,
        "way": "same" if not change else "fewer" if change < 0 else "more",
        "heard": [
            ("Before", clip.get("before"), stretches(clip.get("differences_before"))),
            ("After", clip.get("after"), stretches(clip.get("differences_after"))),
        ],
        "audio": f"data:audio/wav;base64,{base64.b64encode(wav).decode('ascii')}" if wav else None,
    }


class _Missing(jinja2.ChainableUndefined):
    """A key that the report lacks, at any depth, reads as a value that is None does."""

    def __str__(self) -> str:
        return "undefined"


ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("whispertune"),
    autoescape=True,
    undefined=_Missing,
    finalize=lambda value: "undefined" if value is None else value,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters.update(number=number, percent=percent, duration=duration)
