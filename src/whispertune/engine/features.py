"""Log-mel features on the device that trains, from 16-bit samples.

The numbers are those of `WhisperFeatureExtractor` (to 1e-4): STFT of 400 samples (25 ms) every 160 (10 ms),
Hann window, power, Slaney mel filters, log10, at most 8 below the clip's own peak, then (x + 4) / 4.
Source: Radford et al. 2022 (arXiv 2212.04356), section 2.2, and openai/whisper's audio.py.
"""

from functools import lru_cache

import numpy as np
import torch
from transformers.audio_utils import mel_filter_bank

from whispertune.clip import SAMPLE_RATE, WINDOW_SAMPLES

N_FFT = 400
HOP = 160


@lru_cache(maxsize=8)
def _filters(n_mels: int, device: str) -> torch.Tensor:
    filters = mel_filter_bank(
        num_frequency_bins=1 + N_FFT // 2,
        num_mel_filters=n_mels,
        min_frequency=0.0,
        max_frequency=SAMPLE_RATE / 2,
        sampling_rate=SAMPLE_RATE,
        norm="slaney",
        mel_scale="slaney",
    )
    return torch.from_numpy(filters.T.astype(np.float32)).to(device)  # (n_mels, 201)


def log_mel(samples: torch.Tensor, n_mels: int) -> torch.Tensor:
    """Features of whole windows.

    Args:
        samples: (B, 480000) int16, or float32 in [-1, 1], on the device to compute on.
        n_mels: 80 or 128.

    Returns:
        (B, n_mels, 3000) float32.
    """
    assert samples.shape[-1] == WINDOW_SAMPLES, samples.shape
    if samples.dtype == torch.int16:
        samples = samples.to(torch.float32) / 32768.0
    window = torch.hann_window(N_FFT, device=samples.device)
    stft = torch.stft(samples, N_FFT, HOP, window=window, return_complex=True)
    power = stft[..., :-1].abs() ** 2  # (B, 201, 3000)
    mel = _filters(n_mels, str(samples.device)) @ power
    log = mel.clamp(min=1e-10).log10()
    peak = log.amax(dim=(1, 2), keepdim=True)
    return (torch.maximum(log, peak - 8.0) + 4.0) / 4.0
