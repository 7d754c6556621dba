"""Fine-tune Whisper on the hardware you have, and know whether it got better."""

__version__ = "0.1.0"
