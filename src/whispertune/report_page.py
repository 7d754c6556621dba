"""The report as a page: one HTML file that needs no network, no font and no script, and reads like a letter.

`render_page` turns what `report.json` holds into words, tables and drawings. The words and the geometry are
computed here; how they look is in `templates/`. Every text comes from data and is escaped by Jinja.
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jinja2

from whispertune.report_figures import (
    Chart,
    chart,
    defined,
    difference,
    duration,
    forest,
    in_points,
    interval,
    number,
    percent,
    unbroken,
)
from whispertune.report_tables import (
    PROBE_NAMES,
    bars,
    flat,
    free_rows,
    kept,
    keywords,
    more_speech,
    set_table,
    slice_tables,
)

SHOWN_CONFUSIONS = 8
"""More of them are folded."""
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
        bars=bars(_shown(report)),
        caption=_caption(report),
        guards=_guards_unsaid(report),
        forest=forest(report),
        sets=[set_table(name, values, report) for name, values in (report.get("sets") or {}).items()],
        keywords=keywords(report.get("keywords")),
        kept=kept(report.get("probes")),
        free=free_rows(report),
        tradeoff=_tradeoff(report.get("tradeoff")),
        slices=slice_tables(report.get("slices")),
        confusions=(report.get("confusions") or []),
        shown_confusions=SHOWN_CONFUSIONS,
        spent=_spent(report.get("time") or {}),
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


def _lost(report: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """The failed ones among the `guards` or the `probes`."""
    return [each for each in report.get(kind) or [] if each.get("status") == "failed"]


def _forgot(report: dict[str, Any]) -> bool:
    """Worse only because of what was lost: the goal's own interval does not lie above zero."""
    low = (report.get("difference") or {}).get("low")
    lost = _lost(report, "guards") or _lost(report, "probes")
    return report["verdict"] == "worse" and bool(lost) and not (defined(low) and low > 0)


def _shown(report: dict[str, Any]) -> dict[str, Any]:
    """What the heading speaks of: the goal, or what was lost first, where that made the verdict."""
    return [*_lost(report, "guards"), *_lost(report, "probes")][0] if _forgot(report) else report


def _caption(report: dict[str, Any]) -> list[str]:
    """What the bars are rates of, and how far apart they are."""
    shown, measure = _shown(report), _measure(report)
    found = shown.get("difference") or {}
    low, high = found.get("low"), found.get("high")
    if shown is report:
        of = f"{number(report.get('clips'))} test clips, {number(report.get('words'))} words"
    else:
        of = PROBE_NAMES[shown["name"]].lower() if shown["name"] in PROBE_NAMES else shown["name"]
    what = "share of tries that went wrong" if found.get("metric") == "share" else measure.name
    lines = [f"{what[0].upper()}{what[1:]} on {of}. Lower is better."]
    if defined(low) and defined(high):
        lines.append(f"Difference {in_points(found.get('point'))}, 95 % interval {interval(low, high)}.")
    return lines


def _guards_unsaid(report: dict[str, Any]) -> list[str]:
    """The sentences of the guards that the verdict's own sentence does not hold already."""
    sentences = [guard.get("sentence") for guard in report.get("guards") or []]
    return [each for each in sentences if each and each not in (report.get("sentence") or "")]


def _heading(report: dict[str, Any]) -> tuple[str, str]:
    if _forgot(report):
        names = [guard["name"] for guard in _lost(report, "guards")]
        names += [PROBE_NAMES.get(each["name"], each["name"]).lower() for each in _lost(report, "probes")]
        return VERDICTS["worse"], "on " + " and ".join(names)
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
            if more := more_speech(report, measure.counted):
                lines.append(f"{more[0].upper()}{more[1:]}.")
    for guard in _lost(report, "guards"):
        was, now = number(guard.get("before"), 1), number(guard.get("after"), 1)
        allowed = number(guard.get("tolerance"), 1, sign=True)
        lines.append(
            f"On {guard['name']}, which it must not forget, it went from {was} to {now}; "
            f"at most {allowed} was allowed."
        )
    for probe in _lost(report, "probes"):
        name = PROBE_NAMES.get(probe["name"], probe["name"])
        lines.append(f"{name}, which it must not lose: {probe.get('change')}.")
    if report["verdict"] == "worse":
        lines.append(f"Keep using {model} as it was.")
    return lines


_STAGES = {
    "baseline_s": "baseline",
    "labels_s": "labels",
    "alternatives_s": "what would have been free",
    "training_s": "training",
    "delivery_s": "choice of the delivered weights",
    "evaluation_s": "evaluation",
}


def _spent(time: dict[str, Any]) -> str:
    """`12 min in all: baseline 2 min 23 s, training …`; a stage that took no time is left out."""
    stages = [f"{name} {duration(time[key])}" for key, name in _STAGES.items() if time.get(key)]
    return f"{duration(time.get('total_s'))} in all" + (": " if stages else "") + ", ".join(stages)


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
    if len(parts) <= 1.5 * SHOWN_WORDS:  # a few words are not worth the cut
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
ENVIRONMENT.filters.update(number=number, percent=percent, duration=duration, unbroken=unbroken)
