"""The model card: what an exported folder says of itself, the verdict first and no path of this machine."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SIZES = re.compile(r"(tiny|base|small|medium)(\.en)?|large-v[123]|large-v3-turbo")


def card(report: Mapping[str, Any]) -> str:
    """README.md of an exported model, from its run's report.json.

    It carries the verdict with its interval, guards and probes, the data with who vouches for its texts, the
    settings, and every caveat of the report, so that whoever is handed the folder knows what the author knew.
    """
    settings = report["settings"]
    base = _base_model(settings["model"]["name"])
    recipe = settings["recipe"]
    language = recipe["model"]["language"] or ("en" if base.endswith(".en") else None)
    front = {
        "library_name": "transformers",
        "pipeline_tag": "automatic-speech-recognition",
        "tags": ["whisper", "whispertune"],
        "base_model": base if "/" in base else None,
        "language": [language] if language else None,
        "metrics": ["cer" if report["goal"] == "cer" else "wer"],
    }
    checked = [f"{check['sentence']} ({check['status']})" for check in (*report["guards"], *report["probes"])]
    parts = [
        "---\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in front.items() if value) + "---",
        f"# {_text(_name(settings['model']['name']))}, fine-tuned on {_text(settings['corpus']['name'])}",
        f"**{_text(report['sentence'])}**",
        _scores(report),
        _section("How sure is that", report["reasons"]),
        _section("What it must not have forgotten", checked or ["Not checked: no guard was given."]),
        _section("Caveats", report["notes"]),
        _section("Data", _data(settings["corpus"])),
        _section("Settings", _settings(report)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def unjudged_card(run: str, step: int | None) -> str:
    """README.md of a model that no verdict speaks of: a checkpoint not delivered, a run not finished."""
    what = f"Step {step} of {_name(run)}" if step is not None else f"{_name(run)}, not finished"
    return f"# {_text(what)}\n\nA model from a training by whispertune. Nobody has judged it.\n"


def _scores(report: Mapping[str, Any]) -> str:
    rows = [
        "| | clips | words | WER before | WER after | CER before | CER after |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, scores in report["sets"].items():
        before, after = scores["before"], scores["after"]
        rates = [_percent(side[rate]) for rate in ("wer", "cer") for side in (before, after)]
        sizes = f"{before['clips']:,} | {before['reference_words']:,}"
        rows.append(f"| {_text(name)} | {sizes} | {' | '.join(rates)} |")
    return "\n".join(rows)


def _data(corpus: Mapping[str, Any]) -> list[str]:
    size = f"{corpus['clips']:,} clips, {corpus['hours']:g} h"
    lines = [f"{corpus['name']}: {size}, fingerprint {corpus['fingerprint']}"]
    vouched = ", ".join(f"{count:,} {who}" for who, count in (corpus.get("provenance") or {}).items())
    return [*lines, f"who vouches for the texts: {vouched}"] if vouched else lines


def _settings(report: Mapping[str, Any]) -> list[str]:
    settings = report["settings"]
    decode = ", ".join(f"{key} {value}" for key, value in settings["decode"].items())
    return [
        f"base model {_name(settings['model']['name'])}, fingerprint {settings['model']['fingerprint']}",
        f"method {settings['recipe']['train']['method']}",
        *(f"{row['name']} {row['value']}" for row in settings["plan"] if row["name"] != "threads"),
        "scored with the normaliser {name}: {description}".format(**settings["normalizer"]),
        f"decoded with {decode}",
    ]


def _section(title: str, lines: list[str]) -> str:
    return f"## {title}\n\n" + "\n".join(f"- {_text(line)}" for line in lines) if lines else ""


def _base_model(name: str) -> str:
    """The Hub id, where it has one."""
    return f"openai/whisper-{name}" if SIZES.fullmatch(name) else _name(name)


def _name(name: str) -> str:
    """A Hub id as it is; of a folder or file of this machine only the last part."""
    is_hub_id = re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None and not Path(name).exists()
    return name if is_hub_id else Path(name).name


def _percent(rate: float | None) -> str:
    return "undefined" if rate is None else f"{rate:.1f} %"


def _text(text: str) -> str:
    """A text from data, so that nothing in it is Markdown or HTML."""
    return re.sub(r"([\\`*_\[\]|#<>])", r"\\\1", " ".join(text.split()))
