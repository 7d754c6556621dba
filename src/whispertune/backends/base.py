"""A backend only decides where a step is called: here, in a container, on rented GPUs."""

from collections.abc import Iterator
from typing import Any, Protocol

from whispertune.run import Event


class Handle(Protocol):
    """A step that was submitted."""

    def events(self) -> Iterator[Event]:
        """What happens in it, until it ends."""

    def cancel(self) -> None:
        """Ask it to save and stop."""

    def result(self) -> Any:
        """What the step returned. Raises what it raised."""


class Backend(Protocol):
    """Somewhere a step can run."""

    name: str

    def submit(self, step: str, /, **arguments: Any) -> Handle:
        """Start a step of `whispertune.steps` by name, with JSON-like arguments."""
