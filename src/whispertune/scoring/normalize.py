"""The common form of two texts before their words are compared. Its name is printed with each score.

**English** (`english-1`) is OpenAI's Whisper normaliser (Radford et al. 2022, appendix C; the package
`whisper-normalizer`), so figures compare with the field: lower case, US spelling, contractions written out,
"hmm" and "uh" dropped, punctuation and diacritics removed, spoken numbers as digits. Then our policy:

**Numbers compare digit by digit**, on both sides, because the field's rules turn "six four three nine" into
the one word "6439" and leave "6, 4, 3, 9" as four, so the same four spoken digits score 100 % and more.

    six four three nine, 6439, 6, 4, 3, 9      6 4 3 9
    twenty five, twenty-five, 25               2 5
    nineteen nineties, 1990s                   1 9 9 0s         a suffix stays with the last digit
    twenty first, 21st                         2 1st
    one, 1                                     1
    double oh seven, 007                       0 0 7
    three point five, 3.5                      3 point 5        a spoken point is a word
    twenty dollars, $20                        2 0 dollars      so are a currency, a percent, a sign
    ten percent, 10%                           1 0 percent
    minus five, -5                             minus 5
    one million, 1,000,000                     1 0 0 0 0 0 0    price of the rule: seven words, not two

**Every other language** (`unicode-1`): letters, digits and combining marks are kept (vowel signs of Hindi,
points of Hebrew and Arabic carry sound, and dropping or splitting at them changes the number of words),
composed (NFC), case folded; punctuation and symbols become spaces; full-width letters become ordinary ones;
digits of any script become 0-9 and compare digit by digit. Number words and spelling are left alone: those
rules exist for English only. Turkish and Azerbaijani fold I to ı. Where an apostrophe is a letter of the word
(Ukrainian, Hebrew gershayim, ...) it is dropped without splitting the word.

**Languages written without spaces between words** (`characters-1`: Chinese, Cantonese, Japanese, Thai, Lao,
Burmese, Khmer, Tibetan): as above, each written character is a word of its own, Latin words stay whole, and
the character error rate comes first. Traditional and simplified characters are different.

Everywhere: Whisper's markers `<|...|>` and notes in brackets such as `[noise]` or `(laughs)` are no words.

**Own rules** (`english-1 + rules.tsv 1a2b3c4d`; the digits are the first of the file's SHA-256) come last, on
the normalised words of both sides: see `read_rules`.
"""

import hashlib
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

from whisper_normalizer.english import EnglishNumberNormalizer, EnglishTextNormalizer

from whispertune.errors import DataError, UsageError
from whispertune.scoring.phrases import Phrases, read_lines

UNSPACED_LANGUAGES = frozenset({"zh", "yue", "ja", "th", "lo", "my", "km", "bo"})
"""Whisper's languages whose writing puts no space between words: their words cannot be counted."""

DOTTED_I_LANGUAGES = frozenset({"tr", "az"})
"""I and ı, İ and i are the pairs of upper and lower case."""

LETTER_APOSTROPHE_LANGUAGES = frozenset({"uk", "be", "he", "yi", "uz", "haw", "br"})
"""An apostrophe (geresh, gershayim) inside a word is part of its spelling, not an elision as in l'homme."""

_MARKER = re.compile(r"<\|[^|>]*\|>")
_NOTE = re.compile(r"[<\[【][^>\]】]*[>\]】]|\([^)]+\)")
_INNER_APOSTROPHE = re.compile(r"(?<=\S)['’‘ʼʻ`\"”״׳](?=\w)")
_BETWEEN_DIGITS = re.compile(r"(?<=[0-9])(?=[0-9])")
_FULL_OR_HALF_WIDTH = re.compile(
    "[\u20a9\u3000\uff01-\uffbe\uffc2-\uffc7\uffca-\uffcf\uffd2-\uffd7\uffda-\uffdc\uffe0-\uffe6\uffe8-\uffee]"
)
_UNSPACED_SCRIPT = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"  # Thai and Lao, Tibetan, Myanmar, Khmer
    "\u3005-\u3007\u3031-\u3035\u3040-\u30ff\u31f0-\u31ff"  # kana and iteration marks
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"  # Han
)


@dataclass(frozen=True, slots=True)
class Normalizer:
    """Turns a text into its words, joined by single spaces; the same on both sides of a comparison."""

    name: str
    """Printed with each score; only scores of one name compare. The digit is the version of the rules."""
    description: str
    scores_by: Literal["wer", "cer"]
    """The rate that comes first for this language."""
    _rules: Callable[[str], str] = field(repr=False, compare=False)

    def __call__(self, text: str) -> str:
        return self._rules(text)

    def characters(self, normalized: str) -> str:
        """The characters that the character error rate compares.

        Spaces between words count, as in jiwer; languages without such spaces have none.
        """
        return normalized.replace(" ", "") if self.scores_by == "cer" else normalized


@dataclass(frozen=True, slots=True)
class Rules:
    """A list of what its owner lets count as something else, as read from a file."""

    path: Path
    sha256: str
    """Of the file, hexadecimal."""
    rows: tuple[tuple[int, str, str], ...]
    """(line number, what is written, what it counts as)."""

    @property
    def name(self) -> str:
        return f"{self.path.name} {self.sha256[:8]}"


def read_rules(path: Path) -> Rules:
    """Rules from a text file in UTF-8, one a line: what is written, a tab, what it counts as.

        Dr Vora<tab>doctor vora
        okay<tab>ok
        uh-huh<tab>

    Both sides are normalised like any text before they are used, so case and punctuation make no difference.
    A rule applies to whole words (in Chinese and its like to whole characters), where several begin the
    longest first, and not to the outcome of another rule. Nothing behind the tab: the words do not count.
    Lines that begin with `#` are comments; so is a first line that says `written<tab>counts as`.

    Raises DataError, with file and line, when the file cannot be read, is not UTF-8 or a line has no or more
    than one tab. Whether a left side means anything depends on the language: see `normalizer_for`.
    """
    path = Path(path)
    rows: list[tuple[int, str, str]] = []
    for line, text in read_lines(path):
        columns = text.split("\t")
        if len(columns) != 2:
            raise DataError(
                f"{path}:{line} has {len(columns) - 1} tabs where 1 is expected: {text!r}",
                "what is written, one tab, what it counts as; "
                "what shall not count has the tab and nothing behind it",
            )
        if not rows and [c.strip().casefold() for c in columns] == ["written", "counts as"]:
            continue
        rows.append((line, columns[0], columns[1]))
    return Rules(path, hashlib.sha256(path.read_bytes()).hexdigest(), tuple(rows))


def normalizer_for(language: str | None, rules: Rules | None = None) -> Normalizer:
    """The normaliser of a language: a Whisper code such as `en`, also `en-GB`; None when it is not known.

    Raises UsageError for anything that is not a language code; DataError, with file and line, when the left
    side of a rule has no words once it is normalised (and the right side has), or the words of another's.
    """
    return _with_rules(_own(language), rules) if rules else _own(language)


def _own(language: str | None) -> Normalizer:
    if language is None:
        return _normalizer("")
    code = re.split(r"[-_]", language.strip().lower())[0]
    if not re.fullmatch(r"[a-z]{2,3}", code):
        hint = "Whisper's codes have two or three letters, such as en, cs, yue"
        raise UsageError(f"{language!r} is not a language code", hint)
    return _normalizer(code)


@cache
def _normalizer(code: str) -> Normalizer:
    if code == "en":
        description = (
            "Whisper's English normaliser (lower case, US spelling, contractions written out, "
            "no punctuation); numbers digit by digit"
        )
        return Normalizer("english-1", description, "wer", lru_cache(maxsize=65_536)(_English()))
    own_rules = code in DOTTED_I_LANGUAGES | LETTER_APOSTROPHE_LANGUAGES
    description = "case folded, no punctuation, combining marks kept, numbers digit by digit"
    if code in UNSPACED_LANGUAGES:
        description += ", each character a word"
        return Normalizer(
            "characters-1", description, "cer", lambda text: _split_characters(_unicode(text, code))
        )
    name = f"unicode-1:{code}" if own_rules else "unicode-1"
    return Normalizer(name, description, "wer", lambda text: _unicode(text, code))


@cache
def _with_rules(plain: Normalizer, rules: Rules) -> Normalizer:
    lines: dict[str, int] = {}
    outcomes: list[list[str]] = []
    for line, written, counts_as in rules.rows:
        words, outcome = plain(written), plain(counts_as)
        if not words and not outcome:
            continue  # "um" does not count, and in English it does not count anyway
        if not words:
            raise DataError(
                f"{rules.path}:{line}: nothing is left of {written!r} once it is normalised ({plain.name})",
                "delete the line: it has no words to find",
            )
        if words in lines:
            raise DataError(
                f"{rules.path}:{line} has the same left side as line {lines[words]} "
                f"once both are normalised: {words!r} ({plain.name})",
                "keep one of the two lines",
            )
        lines[words] = line
        outcomes.append(outcome.split())
    phrases = Phrases((words, number) for number, words in enumerate(lines))

    def apply(text: str) -> str:
        words = plain(text).split()
        result: list[str] = []
        done = 0
        for start, end, number in phrases.within(words):
            if start >= done:
                result += words[done:start] + outcomes[number]
                done = end
        return " ".join(result + words[done:])

    count = len(outcomes)
    description = f"{plain.description}; then {count:,} rule{'s' * (count != 1)} of {rules.path.name}"
    return Normalizer(f"{plain.name} + {rules.name}", description, plain.scores_by, apply)


def strip_markers(text: str) -> str:
    """The text as written, in composed form (NFC), without Whisper's own markers such as `<|0.00|>`."""
    return " ".join(unicodedata.normalize("NFC", _MARKER.sub(" ", text)).split())


def _speech_only(text: str) -> str:
    """Without markers and notes in brackets; one encoding for each letter and digit."""
    text = _MARKER.sub(" ", text)
    if not text.isascii():
        text = _FULL_OR_HALF_WIDTH.sub(lambda c: unicodedata.normalize("NFKC", c.group()), text)
    # A space in place of the note, where Whisper's rules put nothing: "so[noise]yes" is two words.
    return _NOTE.sub(" ", unicodedata.normalize("NFC", text))


class _Characters(dict[int, str]):
    """For `str.translate`: what becomes of each character, worked out when first met."""

    def __missing__(self, codepoint: int) -> str:
        self[codepoint] = result = self._replacement(chr(codepoint))
        return result

    @staticmethod
    def _replacement(c: str) -> str:
        category = unicodedata.category(c)
        if category == "Nd":
            return str(unicodedata.decimal(c))
        # Nothing to hear: joiners, direction marks, enclosing marks, variation selectors, the Arabic stretch.
        if category in ("Cf", "Me") or c == "\u0640" or "VARIATION SELECTOR" in unicodedata.name(c, ""):
            return ""
        return c if category[0] in "LNM" else " "


_CHARACTERS = _Characters()


def _unicode(text: str, language: str) -> str:
    text = _speech_only(text)
    if language in DOTTED_I_LANGUAGES:
        text = text.replace("İ", "i").replace("I", "ı")
    if language in LETTER_APOSTROPHE_LANGUAGES:
        text = _INNER_APOSTROPHE.sub("", text)
    text = unicodedata.normalize("NFC", text.casefold()).translate(_CHARACTERS)
    words = (_without_orphan_marks(word) for word in _BETWEEN_DIGITS.sub(" ", text).split())
    return " ".join(word for word in words if word)


def _without_orphan_marks(word: str) -> str:
    """A mark whose letter was a symbol (an accent over an emoji) is no word."""
    while word and unicodedata.category(word[0])[0] == "M":
        word = word[1:]
    return word


def _split_characters(text: str) -> str:
    """Each character of an unspaced script, with its marks, a word of its own."""
    parts: list[str] = []
    previous_unspaced = False
    for c in text:
        unspaced = _UNSPACED_SCRIPT.match(c) is not None
        if unicodedata.category(c)[0] != "M":
            if unspaced or previous_unspaced:
                parts.append(" ")
            previous_unspaced = unspaced
        parts.append(c)
    return " ".join("".join(parts).split())


_NUMERIC = re.compile(r"[\d$€£¢%+-]|\.|\bhalf\b")


class _EnglishNumbers(EnglishNumberNormalizer):
    """The field's numbers, then each digit, point, sign and unit as a word of its own."""

    CURRENCIES = (("$", "dollars"), ("€", "euros"), ("£", "pounds"), ("¢", "cents"))

    def __init__(self) -> None:
        super().__init__()
        self.number_words = self.words - {"and"}

    def __call__(self, s: str) -> str:
        if not _NUMERIC.search(s) and self.number_words.isdisjoint(s.split()):
            return s  # most texts: nothing below would touch them
        # The field writes 1 as "one" for readability, also inside "$1" and "0.1", which later rules break up.
        s = re.sub(r"\bone(s?)\b", r"1\1", super().__call__(s))
        for symbol, word in self.CURRENCIES:
            s = re.sub(rf"[{symbol}]([0-9.]*[0-9])", rf"\1 {word}", s)
        s = re.sub(r"(?<=[0-9])%", " percent", s)
        s = re.sub(r"(?<!\S)-(?=[0-9.])", "minus ", s)
        s = re.sub(r"(?<!\S)\+(?=[0-9.])", "plus ", s)
        s = re.sub(r"(?:(?<=[0-9])|(?<!\S))\.(?=[0-9])", " point ", s)
        return _BETWEEN_DIGITS.sub(" ", s)


_PLAIN = re.compile(r"""(?:[a-z\s'",;:?!]|-(?!\.)|\.(?![a-z]))*""", re.ASCII)
_PLAIN_SYMBOLS = str.maketrans(dict.fromkeys("'\",.;:?!-", " "))


class _English:
    def __init__(self) -> None:
        self._field = EnglishTextNormalizer()
        self._field.standardize_numbers = numbers = _EnglishNumbers()
        self._number_words = numbers.number_words | {"half"}
        self._fillers = re.compile(self._field.ignore_patterns)
        self._contractions = [
            (pattern.replace(r"\b", ""), re.compile(pattern), words)
            for pattern, words in self._field.replacers.items()
        ]

    def __call__(self, text: str) -> str:
        text = _speech_only(text).lower()
        text = re.sub(r"[’‘ʼ]", "'", text)  # the field's contractions know only the straight apostrophe
        text = re.sub(r"…|\.{2,}", " ", text)  # "wait...5" has no decimal point
        if _PLAIN.fullmatch(text):
            return self._plain(text)
        # The field drops a written sign and keeps a spoken one.
        text = re.sub(r"(?<!\S)[-−](?=[0-9.])", "minus ", text)
        text = re.sub(r"(?<!\S)\+(?=[0-9.])", "plus ", text)
        text = re.sub(r"(?<=[0-9]),(?=[0-9])", "", text)
        # The field reads digits as a number, which loses leading zeros (007) and fails on a loop of digits.
        text = re.sub(r"(?<![0-9.])0[0-9]+|[0-9]{16,}", lambda digits: " ".join(digits.group()), text)
        return self._separated(self._field(text))

    def _plain(self, text: str) -> str:
        """The same for letters and common punctuation, as most texts are: a tenth of the time (tested).

        The field's rules in their order, less those on digits and symbols, which such a text has none of.
        """
        text = re.sub(r"\s+'", "'", self._fillers.sub("", text))
        for literal, pattern, words in self._contractions:
            if literal in text:
                text = pattern.sub(words, text)
        said = text.translate(_PLAIN_SYMBOLS).split()
        numbers = not self._number_words.isdisjoint(said)
        if numbers:
            said = self._field.standardize_numbers(" ".join(said)).split()
        spelling = self._field.standardize_spellings.mapping
        said = [spelling.get(word, word) for word in said]
        return self._separated(" ".join(said)) if numbers else " ".join(said)

    @staticmethod
    def _separated(text: str) -> str:
        return " ".join(re.sub(r"[.%$€£¢+-]", " ", text).split())
