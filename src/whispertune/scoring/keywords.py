"""Names and terms that matter more than other words: which they are, and whether they were heard.

A keyword counts wherever it stands in a clip, on both sides: **said** in the reference, **heard** in the
hypothesis. In each clip as many are hits as were both said and heard; the rest of those said were missed, the
rest of those heard are false alarms. So recall cannot be had by writing the keyword everywhere, which is what
a model does that saw little else in training.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from whispertune.errors import DataError
from whispertune.scoring.align import ClipScore
from whispertune.scoring.normalize import UNSPACED_LANGUAGES, Normalizer, strip_markers
from whispertune.scoring.phrases import Phrases, read_lines


class Keyword(NamedTuple):
    """A word or phrase to be heard right."""

    term: str
    """As its owner writes it, and as it is shown."""
    spellings: tuple[str, ...] = ()
    """What counts as well: other spellings, the same name in another script."""


def read_keywords(path: Path) -> tuple[Keyword, ...]:
    """Keywords from a text file in UTF-8, one a line, other accepted spellings behind bars.

        Vorasept | Vora-Sept | Voraseppt
        דניאל | Daniel

    Case and punctuation make no difference. Lines that begin with `#` are comments.

    Raises DataError, with file and line, when the file cannot be read, is not UTF-8, holds no keyword, or a
    spelling has neither letters nor digits.
    """
    keywords = []
    for line, text in read_lines(path):
        term, *spellings = (" ".join(part.split()) for part in text.split("|"))
        for spelling in (term, *spellings):
            if not any(c.isalnum() for c in spelling):
                raise DataError(
                    f"{path}:{line}: {spelling!r} is no keyword, it has no letters or digits: {text!r}",
                    "one keyword a line, other spellings of it behind |",
                )
        keywords.append(Keyword(term, tuple(spellings)))
    if not keywords:
        raise DataError(
            f"{path} has no keywords: 0 lines that are neither empty nor comments", "write one keyword a line"
        )
    return tuple(keywords)


@dataclass(frozen=True, slots=True)
class KeywordCounts:
    """How often keywords were said and heard. Adds up. Rates are percentages."""

    said: int = 0
    hits: int = 0
    heard: int = 0

    @property
    def misses(self) -> int:
        return self.said - self.hits

    @property
    def false_alarms(self) -> int:
        """Heard where not said."""
        return self.heard - self.hits

    @property
    def errors(self) -> int:
        """Misses and false alarms; one keyword taken for another is one of each."""
        return self.misses + self.false_alarms

    @property
    def recall(self) -> float | None:
        """Share of the keywords said that was heard; None where none was said."""
        return 100 * self.hits / self.said if self.said else None

    @property
    def precision(self) -> float | None:
        """Share of the keywords heard that was said; None where none was heard."""
        return 100 * self.hits / self.heard if self.heard else None

    @property
    def percent(self) -> float | None:
        """The keyword error rate: errors ÷ keywords said, not capped; None where none was said."""
        return 100 * self.errors / self.said if self.said else None

    def __add__(self, other: "KeywordCounts") -> "KeywordCounts":
        return KeywordCounts(self.said + other.said, self.hits + other.hits, self.heard + other.heard)


def count_keywords(
    score: ClipScore, keywords: tuple[Keyword, ...], normalizer: Normalizer
) -> KeywordCounts:
    """The keywords said and heard in one clip; `normalizer` is the one it was scored with.

    Keywords are found as whole words under the normaliser, all their spellings alike, whatever their script.
    Within one keyword the longest spelling goes first and a word is counted once: "Vora Sept" is not a
    "Sept" too. Different keywords do not mind each other; a spelling that two of them claim belongs to the
    first. What normalises to nothing is not looked for.
    """
    assert score.normalizer == normalizer.name, f"{score.normalizer} is not {normalizer.name}"
    phrases = _phrases(keywords, normalizer)
    said, heard = _occurrences(score.said, phrases), _occurrences(score.heard, phrases)
    if not said and not heard:
        return KeywordCounts()
    return KeywordCounts(said.total(), (said & heard).total(), heard.total())


@lru_cache(maxsize=64)
def _phrases(keywords: tuple[Keyword, ...], normalizer: Normalizer) -> Phrases:
    owners: dict[str, int] = {}
    for number, keyword in enumerate(keywords):
        for spelling in (keyword.term, *keyword.spellings):
            owners.setdefault(normalizer(spelling), number)
    owners.pop("", None)
    return Phrases(owners.items())


def _occurrences(text: str, phrases: Phrases) -> Counter[int]:
    found: Counter[int] = Counter()
    done: dict[int, int] = {}
    for start, end, number in phrases.within(text.split()):
        if start >= done.get(number, 0):
            found[number] += 1
            done[number] = end
    return found


RARE_ZIPF = 3.0
"""A word this rare or rarer may be a keyword: once in a million words of general text.

The Zipf scale is log10 of occurrences per billion words; at 3 and below are the low-frequency words (van
Heuven, Mandera, Keuleers and Brysbaert 2014, "SUBTLEX-UK", where the scale comes from).
"""
MIN_EXCESS = 10.0
"""… if it is at least so many times as frequent here as in general: large texts hold rare words by chance."""
MIN_COUNT = 2
"""… and occurs so often: a single rare word is in every text. Once is enough where general text lacks it."""
LIMIT = 50
"""Keywords found at most: a list that a person can read through."""

_NAMED_OTHERWISE = {"no": "nb", "nn": "nb", "sr": "sh", "hr": "sh", "bs": "sh", "tl": "fil"}
"""Whisper's code of a language to wordfreq's. Left to itself, wordfreq takes "the nearest": Dutch for
Afrikaans, English for Swahili, where every word would be a keyword."""
_LISTED_BY_MORPHEMES = frozenset({"ko"})
"""Written with spaces between groups of them."""


def find_keywords(
    texts: Iterable[str], language: str | None, normalizer: Normalizer, limit: int = LIMIT
) -> tuple[Keyword, ...]:
    """Words far more common in these texts than in general text: the names and terms of a domain.

    They come by how telling they are: by Dunning's log-likelihood of their count against general text (G²;
    Dunning 1993, Rayson and Garside 2000), so frequent and rare come before seldom and rare. Single letters
    and words with digits are left out. General text is the list of the library wordfreq; without it, or
    where it has no list of the language's words, nothing is found: `()`.

    Args:
        texts: as written, such as the references of a test set.
        language: a Whisper code; words are looked up in its list.
    """
    general = _general_text(language)
    if general is None:
        return ()
    zipf, list_ends = general
    texts = [strip_markers(text) for text in texts]
    counts = Counter(word for text in texts for word in normalizer(text).split())
    total = counts.total()
    rare = {word for word in counts if _is_term(word) and zipf(word) <= RARE_ZIPF}
    written = _as_written(texts, rare, normalizer)
    telling = {}
    for word in rare:
        # The normaliser may have taken what the list keeps, such as an apostrophe or an accent.
        known = max(zipf(word), zipf(written[word]))
        expected = total * 10 ** (max(known, list_ends) - 9)
        # Where the list ends at once in a million, a word it lacks need not be rare.
        once_is_enough = known == 0 and list_ends < RARE_ZIPF
        count = counts[word]
        if known <= RARE_ZIPF and count >= max(1 if once_is_enough else MIN_COUNT, MIN_EXCESS * expected):
            telling[word] = 2 * (count * math.log(count / expected) - (count - expected))
    best = sorted(telling, key=lambda word: (-telling[word], word))[:limit]
    return tuple(Keyword(written[word]) for word in best)


def _general_text(language: str | None) -> tuple[Callable[[str], float], float] | None:
    """The Zipf value of a word in general text, 0 where the list lacks it, and the value at which it ends.

    None where there is no list, or none that can be looked up word by word.
    """
    try:
        import wordfreq
    except ImportError:
        return None
    code = re.split(r"[-_]", (language or "").strip().lower())[0]
    code = _NAMED_OTHERWISE.get(code, code)
    if code in UNSPACED_LANGUAGES | _LISTED_BY_MORPHEMES or code not in wordfreq.available_languages("best"):
        return None
    # Large lists hold words down to once in 100 million, small ones down to once in a million.
    list_ends = 1.0 if code in wordfreq.available_languages("large") else 3.0
    return lambda word: wordfreq.zipf_frequency(word, code), list_ends


def _is_term(word: str) -> bool:
    return len(word) > 1 and not any(c.isdigit() for c in word)


def _as_written(texts: Iterable[str], words: Set[str], normalizer: Normalizer) -> dict[str, str]:
    """For each normalised word how it is mostly written; as normalised where it never stands alone."""
    spellings = Counter(spelling for text in texts for spelling in map(_bare, text.split()))
    written: dict[str, str] = {}
    for spelling, _ in spellings.most_common():
        word = normalizer(spelling)
        if word in words:
            written.setdefault(word, spelling)
    return {word: written.get(word, word) for word in words}


def _bare(word: str) -> str:
    """Without punctuation around it."""
    return re.sub(r"^[^\w]+|[^\w]+$", "", word)
