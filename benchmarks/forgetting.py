"""What keeps a tuned model from forgetting: each means on the same speech, figures for docs/results.md.

    python benchmarks/forgetting.py child          # every variant, about 8 minutes each on two cores
    python benchmarks/forgetting.py czech kl-0.5   # one

Each variant is an ordinary run; beside the whole way, points between the base and the tuned weights are
judged, on test clips and guard alike. A stopped study goes on. The speech is found by WHISPERTUNE_SHARED.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from whispertune import steps
from whispertune.data.remembered import corpus_of
from whispertune.delivery import Line
from whispertune.engine.evaluate import Evaluation
from whispertune.engine.model import load
from whispertune.engine.source import resolve
from whispertune.engine.transcribe import decode_options
from whispertune.job import Job
from whispertune.recipe import Recipe
from whispertune.report import compare_sets
from whispertune.run import Event, Run, read_json, write_json

SPEECH = Path(os.environ.get("WHISPERTUNE_SHARED", "../shared")) / "speech"
SHARES = (1.0, 0.7, 0.5)
THREADS = int(os.environ.get("THREADS", "2"))

MEANS: dict[str, dict[str, Any]] = {
    "full": {},
    "low-rate": {"train.learning_rate": 1e-5},
    "decoder": {"train.method": "decoder"},
    "lora": {"train.method": "lora"},
    "rehearsal-0.2": {"data.rehearsal": "telephone-en"},
    "rehearsal-0.4": {"data.rehearsal": "telephone-en", "train.rehearsal_share": 0.4},
    "kl-0.5": {"train.kl": 0.5},
    "rehearsal-0.4-kl-0.5": {
        "data.rehearsal": "telephone-en",
        "train.rehearsal_share": 0.4,
        "train.kl": 0.5,
    },
    "unpacked-0.5": {"windows.unpacked": 0.5},
}
CORPORA: dict[str, dict[str, Any]] = {
    "child": {"model.name": "tiny.en", "data.corpus": "child-en"},
    "czech": {"model.name": "base", "data.corpus": "czech", "model.language": "cs"},
}
BASE = {
    "train.share": 1.0,
    "eval.probes": False,
    "eval.free": False,
    "machine.device": "cpu",
    "machine.threads": THREADS,
}


def imported(name: str, language: str) -> str:
    folder, _ = corpus_of(str(SPEECH / name), language)
    return str(folder.absolute())


def recipe_of(study: str, means: dict[str, Any]) -> Recipe:
    own = CORPORA[study]
    changes = {
        **BASE,
        **own,
        **means,
        "data.corpus": imported(own["data.corpus"], own.get("model.language", "en")),
    }
    changes["data.guards"] = (imported("read-en", "en"),)
    if "data.rehearsal" in changes:
        changes["data.rehearsal"] = imported(changes["data.rehearsal"], "en")
    return Recipe().with_changes(changes)


def tell(event: Event) -> None:
    if event.kind in ("line", "warning"):
        print(f"  {event.data.get('label', event.kind)}: {event.data['text']}", flush=True)


def judged(job: Job, run: Run, share: float) -> dict[str, Any]:
    """The verdict's figures at a share of the way from the base."""
    kept = run.folder / f"share-{share:g}.json"
    if (found := read_json(kept)) is None:
        plan = run.plan
        assert plan is not None
        sets, terms = job.judging.sets, job.judging.terms
        options = decode_options(run.recipe.eval, plan["device"], plan["precision"])
        own = Evaluation(sets, job.layouts, options)
        if share == 1:
            after = read_json(run.evaluation_file)
        else:
            line = Line(load(job.source), load(resolve(str(run.model_folder))))
            after = own.of(line.at(share), lambda _: lambda done, total: None)
        before = read_json(run.baseline_file)
        named = [(judged.name, judged.clips) for judged in sets]
        full = compare_sets(named, before, after, terms)
        found = {key: full[key] for key in ("verdict", "before", "after", "difference", "guards")}
        write_json(kept, found)
    return found


def study(name: str, chosen: list[str], work: Path) -> None:
    print(f"{'means':<22} share  test WER (difference)          guard (difference)", flush=True)
    for means in chosen:
        run = Run(work / name / means)
        if not run.is_finished:
            run = Run.create(run.folder, recipe_of(name, MEANS[means]))
            # The untuned model says the same whatever the means.
            known = next((work / name).glob("*/baseline.json"), None)
            if known is not None and not run.baseline_file.exists():
                write_json(run.baseline_file, json.loads(known.read_text()))
            steps.train(str(run.folder), tell, lambda: False)
        job = Job(run, tell, lambda: False)
        for share in SHARES:
            found = judged(job, run, share)
            (guard,) = found["guards"]
            shown = [
                f"{each['after']:5.2f} ({d['point']:+.2f} [{d['low']:+.2f}, {d['high']:+.2f}])"
                for each, d in ((found, found["difference"]), (guard, guard["difference"]))
            ]
            print(f"{means:<22} {share:<5g}  {shown[0]:<31}  {shown[1]}  {guard['status']}", flush=True)


if __name__ == "__main__":
    studied, *variants = sys.argv[1:] or ["child"]
    study(studied, variants or list(MEANS), Path(os.environ.get("WORK", "runs/forgetting")))
