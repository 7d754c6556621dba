"""The style of labels: case and punctuation.

A model tuned on `BUT THERE WAS SOMEONE ELSE` learns to shout. `sentence` makes such labels lower case with a
capital and a full stop; `base` also copies case and punctuation from what the base model wrote, wherever it
heard the same word.
"""

import re
import unicodedata
from collections.abc import Sequence
from difflib import SequenceMatcher

_STOPS = {
    **dict.fromkeys(("zh", "yue", "ja"), "。"),
    **dict.fromkeys(("hi", "bn", "ne", "pa", "sa", "as"), "।"),
    **dict.fromkeys(("th", "lo"), ""),
    "am": "።",
    "bo": "།",
    "hy": "։",
    "km": "។",
    "my": "။",
    "ur": "۔",
}
"""What ends a sentence where it is not a full stop."""
_ENDS = ".!?…！？؟" + "".join(set(_STOPS.values()))
_DOTTED = ("tr", "az")
"""Languages in which i and ı are two letters, each with a capital of its own."""
_TRAILING = ",;:-–—"


def sentence_style(text: str, language: str | None) -> str:
    """Lower case with a capital at the start and a full stop at the end; words are untouched."""
    return _finished([_lowered(word, language) for word in text.split()], language)


def base_style(texts: Sequence[str], heard: str, language: str | None) -> list[str]:
    """Labels in the style of the base model's transcript.

    Args:
        texts: the labels, in the order in which they are spoken.
        heard: what the base model wrote for all of them together; it may be wrong or empty.

    Returns:
        The same words for each label; where the base model heard the same word, written as it wrote it.
    """
    words = [(number, word) for number, text in enumerate(texts) for word in text.split()]
    written = heard.split()
    # Base models hear "someone's" and write "someone's,": compare bare letters, keep what is written.
    matcher = SequenceMatcher(None, [_bare(w) for _, w in words], [_bare(w) for w in written], autojunk=False)
    styled = [_lowered(word, language) for _, word in words]
    for block in matcher.get_matching_blocks():
        for step in range(block.size):
            if _bare(written[block.b + step]):
                styled[block.a + step] = written[block.b + step]
    per_text: list[list[str]] = [[] for _ in texts]
    for (number, _), word in zip(words, styled, strict=True):
        per_text[number].append(word)
    return [_finished(words, language) for words in per_text]


def _finished(words: list[str], language: str | None) -> str:
    text = " ".join(words).rstrip(_TRAILING + " ")
    if not text:
        return text
    if text[-1] not in _ENDS and text[-1] not in "\"'”’)":
        text += _STOPS.get(language or "en", ".")
    first = re.search(r"[^\W\d_]", text)
    if first is None or not text.split()[0].islower():  # iPhone keeps the case it has
        return text
    capital = "İ" if language in _DOTTED and first[0] == "i" else first[0].upper()
    return text[: first.start()] + capital + text[first.end() :]


def _lowered(word: str, language: str | None) -> str:
    if not word.isupper() and any(c.islower() for c in word):
        return word  # it has a case of its own: McDonald, iPhone
    if language in _DOTTED:
        word = word.replace("I", "ı").replace("İ", "i")
    lower = word.lower()
    english_i = language in (None, "en") and re.fullmatch(r"\W*i(['’](m|d|ll|ve|s))?\W*", lower)
    return lower.replace("i", "I", 1) if english_i else lower


def _bare(word: str) -> str:
    word = unicodedata.normalize("NFC", word).casefold().replace("’", "'")
    return "".join(c for c in word if unicodedata.category(c)[0] in "LMN" or c == "'").strip("'")
