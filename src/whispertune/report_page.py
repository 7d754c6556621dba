"""The report as a page: one HTML file that needs no network, no font and no script, and reads like a letter.

`render_page` turns what `report.json` holds into words, tables and drawings. The words and the geometry are
computed here; how they look is in `templates/`. Every text comes from data and is escaped by Jinja.
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jinja2

from whispertune.report_figures import Chart, chart, defined, difference, duration, forest, number, percent
from whispertune.report_tables import (
    bars,
    flat,
    free_rows,
    keywords,
    probe_rows,
    set_table,
    slice_tables,
)

SHOWN_CONFUSIONS = 12
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
    "ker": Measure("KER", "keyword error rate", "keywords"),
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
        measure=_measure(report),
        heading=_heading(report),
        lead=_lead(report),
        # The bars show what the heading speaks of: what was forgotten, where that made the verdict.
        forgotten=_failed_guards(report)[0]["name"] if _forgot(report) else None,
        bars=bars(_failed_guards(report)[0] if _forgot(report) else report),
        forest=forest(report),
        sets=[set_table(name, values, report) for name, values in (report.get("sets") or {}).items()],
        keywords=keywords(report.get("keywords")),
        probes=probe_rows(report.get("probes")),
        free=free_rows(report),
        tradeoff=_tradeoff(report.get("tradeoff")),
        slices=slice_tables(report.get("slices")),
        confusions=(report.get("confusions") or [])[:SHOWN_CONFUSIONS],
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


def _measure(report: dict[str, Any]) -> Measure:
    """What the goal counts; a goal may be a slice, or keywords."""
    metric = (report.get("difference") or {}).get("metric") or report["goal"]
    return MEASURES[metric.lower()]


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
    measure = _measure(report)
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


def _tradeoff(found: dict[str, Any] | None) -> dict[str, Any] | None:
    """How dev and the choosing halves of the guards fared on the way from the base to the tuned weights."""
    if not found:
        return None

    def hundredth(share: Any) -> float | None:
        return 100 * share if defined(share) else None

    points, chosen = found.get("curve") or [], hundredth(found.get("chosen"))

    def drawn(title: str, value_of: Callable[[dict[str, Any]], Any]) -> Chart:
        curve = [[hundredth(point["share"]), value_of(point)] for point in points]
        words = {"x_name": "% of the way to the tuned weights", "mark": "delivered,"}
        return chart(title, "%", curve, chosen, dots=True, **words)

    guards = sorted({name for point in points for name in point["guards"]})
    charts = [drawn("Word error rate on dev", lambda point: point["dev"])]
    charts += [
        drawn(f"{name}, the half that chose", lambda point, name=name: point["guards"].get(name))
        for name in guards
    ]
    return {"charts": charts, "chosen": number(chosen), "reason": found["reason"]}


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
