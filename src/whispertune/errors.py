"""What can go wrong that is not our fault: one line that says what, where and both numbers, and a hint.

Everything a user can cause or mend is a `WhispertuneError`; the command line prints it and exits with its
code. Any other exception is a bug of ours and keeps its traceback.
"""


class WhispertuneError(Exception):
    """One line for a person (`what`), and what to do about it (`hint`)."""

    exit_code = 1

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


class UsageError(WhispertuneError):
    """The words of a command do not fit: an unknown recipe key, a value out of range."""

    exit_code = 2


class DataError(WhispertuneError):
    """A source, a corpus or a file in it cannot be used."""


class ModelError(WhispertuneError):
    """A model cannot be found, or its files do not agree with each other."""


class MachineError(WhispertuneError):
    """The machine cannot do what is asked: no room, no usable GPU, a missing package."""


class TrainingError(WhispertuneError):
    """Training cannot go on: a loss that is not finite, a checkpoint that does not fit the run."""


class MissingExtra(MachineError):
    """A part of whispertune is not installed."""

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(
            f"{purpose} needs the extra '{extra}', which is not installed here",
            f"pip install 'whispertune[{extra}]'",
        )


class Refused(WhispertuneError):
    """A verdict stands against what is asked."""

    exit_code = 3


class Stopped(WhispertuneError):
    """The user stopped the run; everything is saved."""

    exit_code = 130
