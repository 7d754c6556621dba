"""Where speech is in a stretch of audio: voice activity by energy, with no model.

Good enough to trim a clip's border to its speech and to ask whether a gap holds speech that nobody
transcribed. It tells loud from soft, not speech from music: in steady noise without pauses it answers "all of
it", which is the safe answer for both uses (nothing is trimmed away, no gap is taken for silence).
"""

import numpy as np

from whispertune.clip import SAMPLE_RATE

FRAME = SAMPLE_RATE // 50
"""20 ms: short enough to place a border within one of Whisper's time tokens (0.02 s), long enough for one
pitch period."""
FLOOR_PERCENTILE = 10
"""Speech pauses for at least a tenth of the time: the softest tenth of the frames is the background."""
PEAK_PERCENTILE = 95
START_DB = 12.0
"""A frame this far above the background starts speech…"""
STAY_DB = 6.0
"""…and speech goes on while frames stay this far above it (hysteresis: soft word endings belong to the
word)."""
BELOW_PEAK_DB = 40.0
"""Sounds this far below the loud frames are breath and room, however quiet the background (digital zero, say)
is."""
SILENCE_DBFS = -65.0
"""Below this nothing is speech: 16-bit dither is at -96, a quiet room through a close microphone at about
-60."""
MIN_RANGE_DB = 9.0
"""With less between background and loud frames there are no pauses to see: all is taken for speech."""
MIN_SPEECH_S = 0.06
"""Shorter bursts are clicks: the shortest spoken syllable takes about 80 ms."""
PADDING_S = 0.1
"""Kept on either side, for soft onsets (f, h, s) under the threshold. Stretches that come to touch become
one, so a pause is at least 0.2 s: shorter ones are inside words (the closure of a stop lasts up to 0.15
s)."""
OVERHANG_S = 0.3
"""The end of a word that runs from a clip into the gap beside it: segment times are rarely better than
this."""


def speech_bounds(samples: np.ndarray, padding_s: float = PADDING_S) -> list[tuple[int, int]]:
    """Stretches of speech in int16 `(n,)` at 16 kHz: `(first, end)` sample indices, in order, never touching.

    Empty when nothing rises above silence.
    """
    level = _frame_dbfs(samples)
    if not level.size:
        return []
    floor, peak = np.percentile(level, [FLOOR_PERCENTILE, PEAK_PERCENTILE])
    loudest = float(level.max())
    if loudest < SILENCE_DBFS:
        return []
    if loudest - floor < MIN_RANGE_DB:
        return [(0, len(samples))]
    # Where speech fills little of the stretch the 95th percentile may itself be background.
    peak = peak if peak - floor >= START_DB else loudest
    least = max(SILENCE_DBFS, peak - BELOW_PEAK_DB)
    # A clip that is nearly all speech has a high "background": the thresholds must stay under the speech
    # itself.
    start = min(max(floor + START_DB, least), peak - START_DB / 2)
    stay = min(max(floor + STAY_DB, least), peak - START_DB)
    padding = int(padding_s * SAMPLE_RATE)
    bounds: list[tuple[int, int]] = []
    for a, b in _runs(level >= stay):
        if level[a:b].max() < start or (b - a) * FRAME < MIN_SPEECH_S * SAMPLE_RATE:
            continue
        first, end = max(0, a * FRAME - padding), min(len(samples), b * FRAME + padding)
        if bounds and first <= bounds[-1][1]:
            bounds[-1] = (bounds[-1][0], end)
        else:
            bounds.append((first, end))
    return bounds


def speech_in_gap(before: np.ndarray, gap: np.ndarray, after: np.ndarray) -> bool:
    """Is there speech between two clips of a recording that neither of them contains?

    The clips tell what loud is: judged alone, a gap of steady room noise has no pauses to compare with.
    """
    first, end = len(before), len(before) + len(gap)
    overhang = int(OVERHANG_S * SAMPLE_RATE)
    for a, b in speech_bounds(np.concatenate((before, gap, after)), padding_s=0.0):
        a_in, b_in = max(a, first), min(b, end)
        # A word that overhangs from a clip is that clip's, up to 0.3 s.
        allowed = (overhang if a < first else 0) + (overhang if b > end else 0)
        if b_in - a_in > max(allowed, MIN_SPEECH_S * SAMPLE_RATE):
            return True
    return False


def snr_db(samples: np.ndarray) -> float | None:
    """Power of speech over power of what is between it, in decibels, in int16 `(n,)` at 16 kHz.

    Both as mean powers of 20 ms frames; what is in the pauses is in the speech as well and is taken off. None
    where there is no speech, no pause to measure the background in, or nothing in the pauses.
    """
    level = _frame_dbfs(samples)
    speech = np.zeros(len(level), bool)
    for first, end in speech_bounds(samples, padding_s=0.0):
        speech[first // FRAME : end // FRAME] = True
    if not speech.any() or speech.all():
        return None
    power = 10 ** (level / 10)
    noise = float(power[~speech].mean())
    above = float(power[speech].mean()) - noise
    if above <= 0 or noise <= 1e-10:
        return None
    return float(10 * np.log10(above / noise))


def _frame_dbfs(samples: np.ndarray) -> np.ndarray:
    """`(frames,)` level of each 20 ms in dB below full scale, without DC; the rest after the last whole
    frame is left out."""
    if not len(samples):
        return np.zeros(0)
    frames = max(1, len(samples) // FRAME)
    floats: np.ndarray = samples[: frames * FRAME].astype(np.float32).reshape(frames, -1) / 32_768
    power: np.ndarray = np.square(floats - floats.mean()).mean(axis=1)
    return 10 * np.log10(np.maximum(power, 1e-10))


def _runs(mask: np.ndarray) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(np.int8), [0]))))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
