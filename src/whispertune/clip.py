"""The nouns of speech data: a Clip, and what can be found wrong with one."""

from dataclasses import dataclass, field
from typing import Literal

SAMPLE_RATE = 16_000
"""Samples a second that Whisper hears (mono)."""
WINDOW_SAMPLES = 480_000
"""Samples in the 30 s window of the encoder: 3,000 mel frames, 1,500 encoder positions."""
WINDOW_S = WINDOW_SAMPLES / SAMPLE_RATE

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")

Provenance = Literal["published", "read prompt", "person", "agreement", "model"]
"""Who vouches for a text: its publisher, the prompt read, a person, two agreeing models, one model."""


def counted(count: int, noun: str) -> str:
    """`1 clip`, `2 clips`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Clip:
    """A stretch of audio in a corpus, with its text.

    Offsets and lengths are whole samples at 16 kHz: seconds are always derived from them.
    """

    id: str
    file_name: str
    """The name the source gives it, as in its metadata."""
    text: str
    split: Split
    shard: str
    """The WAV file in the corpus that holds the audio, relative to the corpus."""
    offset: int
    """First sample in the shard."""
    samples: int
    recording: str
    """Clips of one recording lie in order in one shard, so the audio between two of them is there too."""
    speaker: str | None = None
    language: str | None = None
    """A Whisper language code such as `cs`."""
    provenance: Provenance = "published"
    source_rate: int = SAMPLE_RATE
    """Sampling rate of the file it came from, in Hz."""
    extra: dict[str, str] = field(default_factory=dict)
    """Every other column of the source's metadata."""

    @property
    def duration_s(self) -> float:
        return self.samples / SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class Finding:
    """What `import` or `check` has to say about one row; about the corpus where `file_name` is empty."""

    severity: Literal["reject", "warn", "note"]
    file_name: str
    reason: str
    """A short stable name of the kind, for counting: `too_long`, `empty_text`."""
    message: str
    """The sentence for a person, with both numbers."""
