"""Features against those of transformers, on every mel size that Whisper has."""

import numpy as np
import pytest
from conftest import read_audio

torch = pytest.importorskip("torch")
from transformers import WhisperFeatureExtractor

from whispertune.clip import SAMPLE_RATE, WINDOW_SAMPLES
from whispertune.engine.features import log_mel
from whispertune.engine.transcribe import stacked


def sounds() -> list[np.ndarray]:
    """int16 clips: silence, the softest and the loudest noise, a sweep over all frequencies, one of 30 s."""
    rng = np.random.default_rng(0)
    t = np.arange(5 * SAMPLE_RATE) / SAMPLE_RATE
    noise = rng.standard_normal(WINDOW_SAMPLES)
    return [
        np.zeros(SAMPLE_RATE, np.int16),
        np.sign(noise[:SAMPLE_RATE]).astype(np.int16),
        np.clip(noise[: 3 * SAMPLE_RATE] * 30_000, -32_768, 32_767).astype(np.int16),
        (np.sin(2 * np.pi * 800 * t**2) * 9_000).astype(np.int16),
        (noise * 1_000).astype(np.int16),
    ]


def by_transformers(clips: list[np.ndarray], n_mels: int) -> torch.Tensor:
    floats = [clip.astype(np.float32) / 32_768 for clip in clips]
    extract = WhisperFeatureExtractor(feature_size=n_mels)
    return extract(floats, sampling_rate=SAMPLE_RATE, return_tensors="pt").input_features


def test_only_whole_windows_are_heard():
    with pytest.raises(AssertionError, match="480001"):
        log_mel(torch.zeros(1, WINDOW_SAMPLES + 1, dtype=torch.int16), 80)
    with pytest.raises(AssertionError, match=r"30\.00 s"):
        stacked([np.zeros(WINDOW_SAMPLES + 1, np.int16)])


@pytest.mark.parametrize("n_mels", [80, 128])
def test_features_are_those_of_transformers(n_mels):
    clips = sounds()
    ours = log_mel(stacked(clips), n_mels)
    assert ours.shape == (len(clips), n_mels, 3000) and ours.dtype == torch.float32
    torch.testing.assert_close(ours, by_transformers(clips, n_mels), rtol=0, atol=1e-4)


def test_float_samples_give_the_same_as_whole_ones():
    rows = stacked(sounds())
    assert torch.equal(log_mel(rows, 80), log_mel(rows.to(torch.float32) / 32_768, 80))


def test_a_clip_does_not_depend_on_its_neighbours():
    """The floor is 8 below the clip's own peak, not the batch's."""
    clips = sounds()
    together = log_mel(stacked(clips), 80)
    for row, clip in zip(together, clips, strict=True):
        torch.testing.assert_close(row, log_mel(stacked([clip]), 80)[0], rtol=0, atol=1e-6)


@pytest.mark.real
def test_features_of_real_speech_are_those_of_transformers(shared_speech):
    files = sorted((shared_speech / "read-en").rglob("*.flac"))[:8]
    assert files, "read-en has no FLAC files"
    clips = [read_audio(file)[:WINDOW_SAMPLES] for file in files]
    for n_mels in (80, 128):
        torch.testing.assert_close(
            log_mel(stacked(clips), n_mels), by_transformers(clips, n_mels), rtol=0, atol=1e-4
        )
