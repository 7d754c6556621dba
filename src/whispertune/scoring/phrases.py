"""Lists of words that their owner writes in a file, and where such words stand in a normalised text."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from whispertune.errors import DataError


def read_lines(path: Path) -> tuple[tuple[int, str], ...]:
    """(line number from 1, line) of a text file in UTF-8, without empty lines and those that begin with `#`.

    Raises DataError when it cannot be read or is not UTF-8.
    """
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}:{line} is not UTF-8 text (byte {error.start})", "save it again as UTF-8"
        ) from None
    # Not splitlines, which also ends a line at characters that editors do not count, such as U+2028.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return tuple((n, line) for n, line in enumerate(lines, 1) if line.strip() and not line.startswith("#"))


class Phrases:
    """Finds phrases of whole words in normalised texts, in time that hardly grows with their number.

    A normalised number is one digit a word. A phrase of words and a number is found only with that number
    whole: "5 mg" does not stand in "25 mg", which reads 2 5 mg. A phrase of digits alone stands in any
    number, as "six four" may be said one by one.
    """

    def __init__(self, phrases: Iterable[tuple[str, int]]) -> None:
        """`phrases`: (normalised words joined by spaces, a number to know it by)."""
        self._by_first_word: dict[str, list[tuple[list[str], int, bool]]] = {}
        for phrase, number in phrases:
            words = phrase.split()
            whole = not phrase.replace(" ", "").isdigit()
            self._by_first_word.setdefault(words[0], []).append((words, number, whole))
        for group in self._by_first_word.values():
            group.sort(key=lambda entry: -len(entry[0]))

    def within(self, words: Sequence[str]) -> Iterator[tuple[int, int, int]]:
        """(start, end, number) of every place, from the left, the longest first where several begin.

        Places may overlap: the caller knows which then counts.
        """
        if self._by_first_word.keys().isdisjoint(words):
            return
        for start, first in enumerate(words):
            for phrase, number, whole in self._by_first_word.get(first, ()):
                end = start + len(phrase)
                if words[start:end] != phrase:
                    continue
                if not (whole and (_inside_number(words, start) or _inside_number(words, end))):
                    yield start, end, number


def _inside_number(words: Sequence[str], border: int) -> bool:
    """Whether the border before a word lies between two digits."""
    return 0 < border < len(words) and words[border - 1][-1].isdigit() and words[border][0].isdigit()
