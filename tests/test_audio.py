"""Decoding: whatever the file is called, 16 kHz mono comes out, or one line that says why not."""

import struct
import subprocess
import sys
import wave
from pathlib import Path

import av
import numpy as np
import pytest

from whispertune.data.audio import NotAudio, declared_seconds, decode, is_audio, measure
from whispertune.data.segment import speech_bounds, speech_in_gap


def tone(seconds: float, rate: int = 16_000, hz: float = 440.0, level: float = 0.5) -> np.ndarray:
    """int16 `(n,)`."""
    return (np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate) * level * 32_767).astype(
        np.int16
    )


def write_wav(path: Path, samples: np.ndarray, rate: int = 16_000) -> Path:
    """int16 `(n,)` or `(channels, n)`."""
    planes = np.atleast_2d(samples)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(len(planes))
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(planes.T.astype("<i2").tobytes())
    return path


def encode(path: Path, samples: np.ndarray, codec: str, container: str, rate: int = 16_000) -> Path:
    """int16 mono `(n,)` through one of PyAV's encoders."""
    with av.open(str(path), "w", format=container) as out:
        stream = out.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = rate
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            out.mux(packet)
    return path


def peak_hz(samples: np.ndarray) -> float:
    return float(np.abs(np.fft.rfft(samples * np.hanning(len(samples)))).argmax() * 16_000 / len(samples))


@pytest.mark.parametrize(
    ("content", "reason", "message"),
    [
        (b"", "empty_file", "x: the file is empty (0 bytes)"),
        (
            b"<!DOCTYPE html><html>404</html>",
            "undecodable",
            "x: not audio: it is a web page (a failed download?)",
        ),
        (b"hello there\n" * 60, "undecodable", "x: not audio: it is text"),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "undecodable",
            "x: not audio: it is a Git LFS pointer",
        ),
        (
            bytes(range(128, 256)) * 9,
            "undecodable",
            "x: not audio: nothing in its 1,152 bytes can be decoded",
        ),
        (
            b"RIFF\x24\x00\x00\x00WAVEfmt ",
            "undecodable",
            "x: not audio: its header is damaged or cut off (16 bytes)",
        ),
    ],
)
def test_what_is_no_audio_says_why(tmp_path: Path, content: bytes, reason: str, message: str) -> None:
    path = tmp_path / "x.wav"
    path.write_bytes(content)
    for source in (path, content):
        with pytest.raises(NotAudio) as caught:
            decode(source, "x")
        assert caught.value.reason == reason
        assert caught.value.what.startswith(message)


def test_missing_file_and_file_without_samples(tmp_path: Path) -> None:
    with pytest.raises(NotAudio, match=r"a\.wav: no such file"):
        decode(tmp_path / "a.wav", "a.wav")
    with pytest.raises(NotAudio, match="no samples in it: it is no audio, or cut behind its header") as caught:
        decode(write_wav(tmp_path / "b.wav", tone(0)))
    assert caught.value.reason == "no_samples"


def test_video_without_sound_has_no_audio_stream(tmp_path: Path) -> None:
    path = tmp_path / "film.wav"
    with av.open(str(path), "w", format="mp4") as out:
        stream = out.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for _ in range(3):
            for packet in stream.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8))):
                out.mux(packet)
        for packet in stream.encode(None):
            out.mux(packet)
    assert not is_audio(path)
    with pytest.raises(NotAudio, match=r"no audio stream in it \(streams: video\)"):
        decode(path, "film.wav")


def _pcm24(path: Path, samples: np.ndarray, rate: int) -> Path:
    data = b"".join(struct.pack("<i", int(s) << 8)[:3] for s in samples)
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 1, 1, rate, rate * 3, 3, 24, b"data", len(data))  # fmt: skip
    path.write_bytes(head + data)
    return path


def test_case_15_any_rate_becomes_32000_samples_of_440_hz(tmp_path: Path) -> None:
    right_only = np.stack([np.zeros(88_200, np.int16), tone(2, 44_100)])
    files = {
        8_000: write_wav(tmp_path / "8k.wav", tone(2, 8_000), 8_000),
        44_100: write_wav(tmp_path / "right.wav", right_only, 44_100),
        48_000: _pcm24(tmp_path / "24bit.wav", tone(2, 48_000), 48_000),
    }
    for rate, path in files.items():
        decoded = decode(path)
        assert abs(len(decoded.samples) - 32_000) <= 1
        assert decoded.samples.dtype == np.int16
        assert abs(peak_hz(decoded.samples) - 440) < 1
        assert measure(decoded.samples).rms_dbfs == pytest.approx(
            -9.03, abs=0.1
        )  # half scale: nothing was halved
        assert decoded.source_rate == rate
        assert decoded.declared_s == pytest.approx(2.0)
        narrow = [f.message for f in decoded.findings if f.reason == "narrow_band"]
        assert bool(narrow) == (rate == 8_000)
    assert "recorded at 8,000 Hz: nothing above 4,000 Hz is in it" in decode(files[8_000]).findings[0].message


def test_channels_are_averaged_unless_silent_or_cancelling(tmp_path: Path) -> None:
    one, other = tone(1, hz=440), tone(1, hz=880)
    both = decode(write_wav(tmp_path / "both.wav", np.stack([one, other])))
    assert not both.findings
    np.testing.assert_allclose(both.samples, (one.astype(float) + other) / 2, atol=1)
    anti = decode(write_wav(tmp_path / "anti.wav", np.stack([one, -one])))
    assert [f.reason for f in anti.findings] == ["antiphase"]
    np.testing.assert_array_equal(anti.samples, one)
    hiss = np.random.default_rng(0).normal(0, 300, (4, 16_000)).astype(np.int16)
    five = decode(write_wav(tmp_path / "five.wav", np.concatenate([hiss[:2], one[None], hiss[2:]])))
    assert five.channels == 5
    assert [f.message for f in five.findings] == ["channel 3 of 5 used: the others are silent or far softer"]
    np.testing.assert_array_equal(five.samples, one)


def test_cut_files_are_compared_with_their_header(tmp_path: Path) -> None:
    whole = write_wav(tmp_path / "whole.wav", tone(3))
    for source in (whole, whole.read_bytes()):
        assert not decode(source).findings
    cut = tmp_path / "cut.wav"
    cut.write_bytes(whole.read_bytes()[:32_044])
    for source in (cut, cut.read_bytes()):
        decoded = decode(source, "cut.wav")
        assert decoded.declared_s == 3.0
        assert [f.reason for f in decoded.findings] == ["truncated"]
        assert (
            decoded.findings[0].message
            == "the header says 3.00 s, 1.00 s could be decoded: 2.00 s are missing"
        )
    streamed = bytearray(whole.read_bytes())
    streamed[40:44] = b"\xff\xff\xff\xff"  # what a program writes that cannot seek back
    assert not decode(bytes(streamed)).findings
    noise = np.random.default_rng(0).normal(0, 3000, 160_000).astype(np.int16)
    flac = encode(tmp_path / "a.flac", noise, "flac", "flac")
    assert not decode(flac).findings
    content = bytearray(flac.read_bytes())
    broken = decode(bytes(content[: len(content) // 3]))
    assert [f.reason for f in broken.findings] == ["truncated"]
    assert "the header says 10.00 s, 3." in broken.findings[0].message
    content[100_000:104_000] = bytes(4_000)
    damaged = decode(bytes(content))
    assert [f.reason for f in damaged.findings] in (["truncated"], ["damaged"])


def test_a_guessed_length_is_no_promise(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(0, 3000, 64_000).astype(np.int16)
    indexed = encode(tmp_path / "a.mp3", noise, "libmp3lame", "mp3").read_bytes()
    assert decode(indexed).declared_s == pytest.approx(4.0, abs=0.1)
    assert [f.reason for f in decode(indexed[: len(indexed) // 2]).findings] == ["truncated"]
    bare = indexed.replace(b"Xing", b"\0\0\0\0").replace(b"Info", b"\0\0\0\0")
    assert decode(bare).declared_s is None
    adts = encode(tmp_path / "a.aac", noise, "aac", "adts").read_bytes()
    assert decode(adts).declared_s is None
    assert not decode(adts).findings


def test_the_name_says_nothing(tmp_path: Path) -> None:
    for codec, container, name in (
        ("libmp3lame", "mp3", "mp3.wav"),
        ("flac", "flac", "no_extension"),
        ("libopus", "ogg", "a.txt"),
        ("aac", "mp4", "b.mp3"),
        ("libopus", "webm", "c.flac"),
    ):
        rate = 48_000 if codec == "libopus" else 16_000
        path = encode(tmp_path / name, tone(1, rate), codec, container, rate)
        decoded = decode(path)
        assert decoded.duration_s == pytest.approx(1.0, abs=0.1), name
        assert abs(peak_hz(decoded.samples) - 440) < 3, name
        assert declared_seconds(path) == pytest.approx(1.0, abs=0.1)
        np.testing.assert_array_equal(decode(path.read_bytes()).samples, decoded.samples)


def test_case_14_no_torchcodec_and_no_ffmpeg_program_is_needed(tmp_path: Path) -> None:
    for codec, container in (("pcm_s16le", "wav"), ("flac", "flac"), ("libmp3lame", "mp3"), ("aac", "mp4")):
        encode(tmp_path / container, tone(1), codec, container)
    encode(tmp_path / "webm", tone(1, 48_000), "libopus", "webm", 48_000)
    encode(tmp_path / "ogg", tone(1, 48_000), "libopus", "ogg", 48_000)
    code = (
        "import sys\n"
        "for name in ('torchcodec', 'soundfile', 'torch', 'torchaudio'): sys.modules[name] = None\n"
        "from pathlib import Path\n"
        "from whispertune.data.audio import decode\n"
        "for p in sorted(Path(sys.argv[1]).iterdir()): print(p.name, round(decode(p).duration_s))\n"
    )
    env = {"PATH": "/nowhere", "PYTHONPATH": str(Path(__file__).parent.parent / "src")}
    command = [sys.executable, "-c", code, str(tmp_path)]
    shown = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["flac", "1", "mp3", "1", "mp4", "1", "ogg", "1", "wav", "1", "webm", "1"]
    assert shown.stderr == ""


def test_levels() -> None:
    assert measure(tone(1, level=1.0)).peak == pytest.approx(1.0, abs=1e-3)
    assert measure(np.full(1_600, 3_277, np.int16)).digital_silence
    assert measure(np.full(1_600, 3_277, np.int16)).dc == pytest.approx(0.1, abs=1e-4)
    assert measure(np.full(1_600, -32_768, np.int16)).clipped_share == 1.0
    clipped = np.clip(tone(1).astype(int) * 4, -32_768, 32_767).astype(np.int16)
    assert measure(clipped).clipped_share > 0.5
    assert measure(tone(1)).clipped_share == 0


def bursts(pattern: str, level: float = 0.2, floor: float = 0.001) -> np.ndarray:
    """A second of noise at `level` for each `x`, at `floor` for each `.`."""
    noise = np.random.default_rng(0).normal(0, 1, 16_000 * len(pattern))
    loud = np.repeat([level if c == "x" else floor for c in pattern], 16_000)
    return np.clip(noise * loud * 32_768, -32_768, 32_767).astype(np.int16)


def test_speech_bounds_find_loud_stretches_and_pad_them() -> None:
    for floor in (0.0, 0.001, 0.01):
        found = speech_bounds(bursts(".x..xx.", floor=floor))
        assert len(found) == 2
        for (first, end), (true_first, true_end) in zip(found, [(1, 2), (4, 6)], strict=True):
            assert true_first - 0.13 <= first / 16_000 <= true_first
            assert true_end <= end / 16_000 <= true_end + 0.13


def test_speech_bounds_at_the_edges() -> None:
    assert speech_bounds(np.zeros(0, np.int16)) == []
    assert speech_bounds(np.zeros(16_000, np.int16)) == []
    assert speech_bounds(np.full(16_000, 9_000, np.int16)) == []  # only DC
    assert speech_bounds(bursts("xx")) == [(0, 32_000)]  # no pause to compare with: all of it
    assert speech_bounds(tone(0.01)) == [(0, 160)]
    click = np.zeros(32_000, np.int16)
    click[16_000:16_160] = 20_000
    assert speech_bounds(click) == []  # 10 ms is no speech


def test_speech_in_a_gap_is_judged_by_the_clips_beside_it() -> None:
    voice, room = bursts(".x."), bursts("..")
    assert not speech_in_gap(voice, room, voice)
    assert speech_in_gap(voice, bursts("x."), voice)
    assert speech_in_gap(voice, bursts(".x."), voice)
    assert not speech_in_gap(voice, np.zeros(0, np.int16), voice)
    tail = np.concatenate([bursts("x")[:3_200], room])  # 0.2 s of the clip's last word
    assert not speech_in_gap(bursts(".x"), tail, voice)
