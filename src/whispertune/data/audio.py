"""Any audio file to what Whisper hears: 16 kHz, one channel, 16-bit, decoded to the end and compared with its
header.

PyAV decodes (its wheel carries FFmpeg's libraries), so neither an `ffmpeg` program nor torchcodec is needed
and the file's name says nothing: the content decides.
"""

import io
import math
import struct
from dataclasses import dataclass, field
from pathlib import Path

import av
import numpy as np

from whispertune.clip import SAMPLE_RATE, Finding, counted
from whispertune.errors import DataError

FULL_SCALE = 32_768
NEAR_PEAK_DB = 12.0
"""Channels this far below the loudest carry crosstalk or hiss, not a second speaker: averaging them in only
weakens the speech."""
NARROW_BAND_HZ = 12_000
"""Below this rate nothing above 6 kHz was recorded (telephone: 8 kHz); half of Whisper's mel bands stay
empty."""
HEADER_TOLERANCE_S = 0.06
"""Encoders pad by up to a codec frame on either side (AAC 1,024 samples at 22 kHz = 46 ms)."""
HEADER_TOLERANCE_SHARE = 0.005
"""The length of a file without an index is estimated from its bit rate."""
READABLE = "WAV, FLAC, MP3, Ogg, Opus, M4A, WebM, MP4, AIFF and what else FFmpeg reads"


class NotAudio(DataError):
    """A file that gives no samples. `reason`: missing, empty_file, undecodable, no_audio_stream,
    no_samples or unreadable."""

    def __init__(self, reason: str, what: str, hint: str = "") -> None:
        super().__init__(what, hint)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Decoded:
    """One file's audio: `samples` is int16 `(n,)` at 16 kHz mono."""

    samples: np.ndarray
    source_rate: int
    """Hz, as recorded."""
    channels: int
    declared_s: float | None
    """Seconds that the container's header promises; None where it does not say."""
    findings: list[Finding] = field(default_factory=list)
    """Warnings and notes about the file as a whole; `file_name` is the name given to `decode`."""

    @property
    def duration_s(self) -> float:
        return len(self.samples) / SAMPLE_RATE


def decode(source: Path | bytes, name: str = "") -> Decoded:
    """Decode a file, or the bytes of one. `name` is what findings and errors call it.

    Raises NotAudio for a missing file, zero bytes, content that is not audio, a file without an audio stream,
    and a header with no samples behind it; its `reason` is the short name of the kind.
    """
    name = name or (str(source) if isinstance(source, Path) else "audio")
    try:
        if isinstance(source, Path) and not source.is_file():
            raise NotAudio("missing", f"{name}: no such file")
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        if size == 0:
            raise NotAudio("empty_file", f"{name}: the file is empty (0 bytes)")
        planes, rate, channels, declared_s, errors = _read(source, name, size)
    except OSError as error:
        hint = "may you read it, and is its disk sound?"
        raise NotAudio("unreadable", f"{name}: cannot be read: {error.strerror}", hint) from error
    if not planes.size:
        raise NotAudio("no_samples", f"{name}: no samples in it: it is no audio, or cut behind its header")
    samples, findings = _one_channel(planes, name)
    findings += _compare(len(samples) / SAMPLE_RATE, declared_s, errors, name)
    if rate < NARROW_BAND_HZ:
        message = (
            f"recorded at {rate:,} Hz: nothing above {rate // 2:,} Hz is in it (Whisper hears up to 8,000)"
        )
        findings.append(Finding("note", name, "narrow_band", message))
    return Decoded(samples, rate, channels, declared_s, findings)


def declared_seconds(source: Path | bytes) -> float | None:
    """The length the header gives, in seconds, without decoding; None when it is no audio or does not say."""
    try:
        with av.open(_opened(source)) as container:
            stream = container.streams.audio[0]
            return _declared(container, stream)
    except (av.FFmpegError, IndexError, OSError):
        return None


def is_audio(path: Path) -> bool:
    """True when the content (not the name) holds an audio stream."""
    try:
        with av.open(str(path)) as container:
            return bool(container.streams.audio)
    except (av.FFmpegError, OSError):
        return False


def _opened(source: Path | bytes):
    return io.BytesIO(source) if isinstance(source, bytes) else str(source)


def _declared(container, stream) -> float | None:
    if stream.duration:
        return float(stream.duration * stream.time_base)
    return container.duration / av.time_base if container.duration else None


def _read(source: Path | bytes, name: str, size: int) -> tuple[np.ndarray, int, int, float | None, int]:
    """`(channels, n)` int16 at 16 kHz, source rate, channel count, declared seconds, packets that would not
    decode."""
    try:
        container = av.open(_opened(source))
    except (av.FFmpegError, OSError, ValueError) as error:
        what = f"{name}: not audio: {_looks_like(source, size)}"
        raise NotAudio("undecodable", what, f"readable: {READABLE}") from error
    with container:
        if not container.streams.audio:
            kinds = ", ".join(sorted({s.type for s in container.streams})) or "none"
            raise NotAudio("no_audio_stream", f"{name}: no audio stream in it (streams: {kinds})")
        stream = container.streams.audio[0]
        # A mono WAV opens as the layout "1 channels"; the resampler keeps whatever layout comes.
        resampler = av.AudioResampler(format="s16p", rate=SAMPLE_RATE)
        blocks: list[np.ndarray] = []
        rate, errors = stream.rate, 0
        packets = container.demux(stream)
        try:
            while True:
                try:
                    packet = next(packets)
                except StopIteration:
                    break
                except (av.FFmpegError, OSError):
                    errors += 1
                    break  # the container itself is damaged from here on
                try:
                    frames = packet.decode()
                except av.FFmpegError:
                    errors += 1  # one damaged packet: the next may be sound
                    continue
                for frame in frames:
                    frame.pts = (
                        None  # gaps in the time stamps are no reason to stop; the length check reports them
                    )
                    blocks += [out.to_ndarray() for out in resampler.resample(frame)]
            blocks += [out.to_ndarray() for out in resampler.resample(None)] if blocks else []
        except (av.FFmpegError, ValueError) as error:
            raise NotAudio(
                "undecodable", f"{name}: the audio changes its format half-way ({error})"
            ) from error
        declared_s = None
        if not _guessed(source, container):
            declared_s = _wav_declared(source, stream) or _declared(container, stream)
        planes = np.concatenate(blocks, axis=1) if blocks else np.zeros((stream.channels or 1, 0), np.int16)
        return planes, rate, planes.shape[0], declared_s, errors


def _guessed(source: Path | bytes, container) -> bool:
    """MP3 and ADTS without a table of contents: FFmpeg guesses their length from the first frames' bit
    rate."""
    head = source[:65_536] if isinstance(source, bytes) else _head(source, 65_536)
    indexed = any(mark in head for mark in (b"Xing", b"Info", b"VBRI"))
    return container.format.name == "aac" or (container.format.name == "mp3" and not indexed)


def _wav_declared(source: Path | bytes, stream) -> float | None:
    """What a RIFF header itself promises, for PCM: FFmpeg reports the length that is there, which hides a cut
    file."""
    if not stream.codec_context.name.startswith("pcm_"):
        return None
    head = source[:4096] if isinstance(source, bytes) else _head(source, 4096)
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        return None
    at, frame_bytes = 12, 0
    while at + 8 <= len(head):
        chunk, length = head[at : at + 4], struct.unpack_from("<I", head, at + 4)[0]
        if chunk == b"fmt " and at + 22 <= len(head):
            frame_bytes = struct.unpack_from("<H", head, at + 20)[0]
        if chunk == b"data":
            # 0 and 0xFFFFFFFF (and near it) are what a program writes that could not seek back: they promise
            # nothing.
            known = frame_bytes and 0 < length < 0xFFFF_0000
            return length / frame_bytes / stream.rate if known else None
        at += 8 + length + (length & 1)
    return None


def _head(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        return file.read(count)


def _looks_like(source: Path | bytes, size: int) -> str:
    head = source[:512] if isinstance(source, bytes) else _head(source, 512)
    if head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page (a failed download?)"
    if head.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer; fetch the real file with `git lfs pull`"
    if head[:4] in (b"RIFF", b"fLaC", b"OggS", b"FORM"):
        return f"its header is damaged or cut off ({size:,} bytes)"
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError:
        return f"nothing in its {size:,} bytes can be decoded"
    return (
        "it is text"
        if text.isprintable() or "\n" in text
        else f"nothing in its {size:,} bytes can be decoded"
    )


def _one_channel(planes: np.ndarray, name: str) -> tuple[np.ndarray, list[Finding]]:
    """`(channels, n)` int16 to `(n,)`: the average of the channels that carry sound, or the loudest where
    they cancel."""
    if planes.shape[0] == 1:
        return planes[0], []
    energy = np.array([np.square(p, dtype=np.float32).mean(dtype=np.float64) for p in planes])
    loudest = int(energy.argmax())
    if energy[loudest] == 0:
        return planes[0], []
    near = np.flatnonzero(energy >= energy[loudest] * 10 ** (-NEAR_PEAK_DB / 10))
    findings = []
    if len(near) < len(planes):
        kept = ", ".join(str(i + 1) for i in near)
        message = f"channel {kept} of {len(planes)} used: the others are silent or far softer"
        findings.append(Finding("note", name, "channels", message))
    if len(near) == 1:
        return planes[loudest], findings
    mean = planes[near].mean(axis=0, dtype=np.float32)
    # Unrelated channels of energies e average to sum(e) / n²; a quarter of that or less means that they
    # cancel.
    unrelated = energy[near].sum() / len(near) ** 2
    if np.square(mean).mean(dtype=np.float64) < unrelated / 4:
        message = (
            f"channels cancel each other (antiphase): channel {loudest + 1} of {len(planes)} used, "
            "not the average"
        )
        return planes[loudest], [*findings, Finding("warn", name, "antiphase", message)]
    return np.rint(mean).astype(np.int16), findings


def _compare(duration_s: float, declared_s: float | None, errors: int, name: str) -> list[Finding]:
    if declared_s is None:
        return [_damaged(name, duration_s, errors)] if errors else []
    missing_s = declared_s - duration_s
    tolerance_s = max(HEADER_TOLERANCE_S, HEADER_TOLERANCE_SHARE * declared_s)
    if missing_s > tolerance_s:
        message = (
            f"the header says {declared_s:.2f} s, {duration_s:.2f} s could be decoded: "
            f"{missing_s:.2f} s are missing"
        )
        return [Finding("warn", name, "truncated", message)]
    if missing_s < -tolerance_s and declared_s > 0:
        message = f"the header says {declared_s:.2f} s, {duration_s:.2f} s are there"
        return [Finding("note", name, "header_length", message)]
    return [_damaged(name, duration_s, errors)] if errors else []


def _damaged(name: str, duration_s: float, errors: int) -> Finding:
    skipped = counted(errors, "damaged packet")
    return Finding("warn", name, "damaged", f"{skipped} skipped; {duration_s:.2f} s could be decoded")


@dataclass(frozen=True, slots=True)
class Levels:
    """What can be measured of int16 samples, as shares of full scale."""

    peak: float
    rms_dbfs: float
    """RMS without the DC part, in dB below full scale; -inf for digital silence."""
    dc: float
    clipped_share: float
    """Share of samples within 0.1 % of full scale."""
    digital_silence: bool
    """No sample differs from the mean by more than one step: nothing was recorded."""


def measure(samples: np.ndarray) -> Levels:
    """Levels of int16 `(n,)`, n ≥ 1."""
    low, high = int(samples.min()), int(samples.max())
    floats = samples.astype(np.float32)
    dc = float(floats.mean(dtype=np.float64))
    power = float(np.square(floats - dc).mean(dtype=np.float64))
    limit = int(FULL_SCALE * 0.999)
    clipped = (
        int(np.count_nonzero((samples >= limit) | (samples <= -limit))) if max(high, -low) >= limit else 0
    )
    return Levels(
        peak=max(high, -low) / FULL_SCALE,
        rms_dbfs=10 * math.log10(power / FULL_SCALE**2) if power > 0 else -math.inf,
        dc=dc / FULL_SCALE,
        clipped_share=clipped / len(samples),
        digital_silence=high - low <= 2,
    )
