"""What this machine does in a second, each beside a limit or a peer in the same run: `make bench`.

Matrix products by precision; a training step as a share of them; evaluation against transformers' `generate`.
The model is tiny.en, the audio the demo's own voices (seeded noise where they are not installed).
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from whispertune.clip import SAMPLE_RATE
from whispertune.data.audio import decode
from whispertune.engine.device import machine_facts, probe_precision
from whispertune.engine.layouts import Layouts
from whispertune.engine.method import prepare
from whispertune.engine.model import load, resolve
from whispertune.engine.train import loss_sum
from whispertune.engine.transcribe import DecodeOptions, greedy_ids
from whispertune.engine.windows import Batch
from whispertune.errors import MissingExtra
from whispertune.recipe import MachineSection, TrainSection

REPEATS = 3
CLIPS = 16


def main() -> int:
    facts = machine_facts(MachineSection())
    device = torch.device(facts.device)
    peaks = probe_precision(device, "auto").tflops
    print(f"{facts.description}; {facts.threads} threads; torch {torch.__version__}")
    rows: dict[str, object] = {f"matrix product {name}, TFLOP/s": peak for name, peak in peaks.items()}

    loaded = load(resolve("tiny.en"))
    tuned = prepare(loaded.model, TrainSection())
    tuned.model.to(device)
    for name, peak in peaks.items():
        if peak is None or name == "fp16":
            continue
        seconds = best_of(lambda name=name: step(tuned.model, device, name))
        share = training_flops(loaded.model.config) / seconds / (peak * 1e12)
        rows[f"training step {name}, s a window"] = seconds
        rows[f"training step {name}, share of its product's rate"] = share

    audio = speech()
    layout = Layouts("tiny.en", None, "transcribe").default
    options = DecodeOptions(batch=CLIPS)
    loaded.model.eval()
    ours = best_of(lambda: greedy_ids(loaded.model, audio, layout, options))
    peer = best_of(lambda: generate(loaded.model, audio))
    rows["evaluation, clips/s"] = CLIPS / ours
    rows["evaluation against generate(), times"] = peer / ours
    for name, value in rows.items():
        print(f"{name:<48} {value:.3g}" if isinstance(value, float) else f"{name:<48} {value}")
    print(json.dumps(rows), file=sys.stderr)
    return 0


def best_of(work) -> float:
    """Seconds of the fastest of a few runs, after one that warms up."""
    work()
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def step(model, device: torch.device, precision: str) -> None:
    generator = torch.Generator().manual_seed(0)
    samples = torch.randint(-3000, 3000, (1, 480_000), generator=generator, dtype=torch.int16)
    ids = torch.randint(0, 50_000, (1, 110), generator=generator)
    loss_sum(model, Batch(samples, ids, ids), device, precision).backward()
    model.zero_grad(set_to_none=True)


def training_flops(config) -> float:
    """Multiply-adds × 2 of one window, forward and backward (twice the forward): matrix products only."""
    d, ff, positions, tokens = config.d_model, config.encoder_ffn_dim, 1500, 110
    encoder = config.encoder_layers * (positions * (4 * d * d + 2 * d * ff) + 2 * positions**2 * d)
    encoder += 3000 * config.num_mel_bins * d * 3 + positions * d * d * 3
    cross = 2 * positions * d * d + 2 * tokens * d * d + 2 * tokens * positions * d
    decoder = config.decoder_layers * (tokens * (4 * d * d + 2 * d * ff) + 2 * tokens**2 * d + cross)
    return 3 * 2 * (encoder + decoder + tokens * d * config.vocab_size)


def generate(model, audio) -> None:
    from transformers import WhisperFeatureExtractor

    features = WhisperFeatureExtractor()(
        [clip.astype(np.float32) / 32768 for clip in audio], sampling_rate=SAMPLE_RATE, return_tensors="pt"
    )
    with torch.inference_mode():
        model.generate(features.input_features.to(model.device), max_new_tokens=224)


def speech() -> list[np.ndarray]:
    try:
        from whispertune.demo.sentences import GUARD
        from whispertune.demo.voices import Line, speak

        with tempfile.TemporaryDirectory() as folder:
            speak([Line(text, "test") for text in GUARD[:CLIPS]], "hibari", Path(folder))
            return [decode(file).samples for file in sorted(Path(folder).glob("*.wav"))]
    except MissingExtra:
        rng = np.random.default_rng(0)
        return [rng.integers(-3000, 3000, 4 * SAMPLE_RATE).astype(np.int16) for _ in range(CLIPS)]


if __name__ == "__main__":
    sys.exit(main())
