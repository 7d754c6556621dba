"""Steps on this machine, in a thread beside the one that shows them."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

from whispertune.errors import Stopped
from whispertune.run import Event
from whispertune.versions import require_extra


class LocalHandle:
    """A step running in this process."""

    def __init__(self, step: str, arguments: dict[str, Any]) -> None:
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None
        # A daemon, so that a second Ctrl-C ends the program at once; what was saved stays whole.
        self._thread = threading.Thread(target=self._work, args=(step, arguments), name=step, daemon=True)
        self._thread.start()

    def events(self) -> Iterator[Event]:
        while (event := self._events.get()) is not None:
            yield event

    def cancel(self) -> None:
        self._stop.set()

    def result(self) -> Any:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result

    def _work(self, step: str, arguments: dict[str, Any]) -> None:
        try:
            require_extra("local", f"running '{step}' on this machine")
            from whispertune import steps

            if self._stop.is_set():  # while torch was loaded
                raise Stopped("stopped before anything was done")
            self._result = steps.STEPS[step](
                **arguments, emit=self._events.put, should_stop=self._stop.is_set
            )
        except BaseException as error:  # handed to whoever asks for the result
            self._error = error
        finally:
            self._events.put(None)


class LocalBackend:
    """This machine."""

    name = "local"

    def submit(self, step: str, /, **arguments: Any) -> LocalHandle:
        return LocalHandle(step, arguments)
