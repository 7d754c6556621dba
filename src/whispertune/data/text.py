"""What a label is made of: what cannot be spoken is taken out, and how a set of labels is written is
measured."""

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from whispertune.clip import Finding

_SPECIAL = re.compile(r"<\|([^<>|]*)\|>")
_NOT_HEARD = {"startofprev", "nospeech", "nocaptions", "startoflm"}
"""Whisper tokens that say that the text beside them is not what the audio holds: nothing can be mended
there."""
_TAG = re.compile(
    r"</?(?:a|abbr|b|big|blockquote|body|br|center|code|div|em|font|h[1-6]|hr|html|i|img|li|ol|p|pre|q|s|small|span|"
    r"strong|style|sub|sup|table|tbody|td|th|tr|tt|u|ul)(?:\s[^<>]*)?/?>",
    re.IGNORECASE,
)
_ENTITY = re.compile(r"&(?:[a-zA-Z][a-zA-Z0-9]{1,31}|#\d{1,7}|#[xX][0-9a-fA-F]{1,6});")
_INVISIBLE = set("\u00ad\u200b\u200e\u200f\u2060\ufeff") | {
    chr(c) for c in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""Marks of layout. Not the joiners U+200C and U+200D, which belong to the spelling of Persian and the Indic
languages."""


def clean_text(text: str, name: str) -> tuple[str, list[Finding]]:
    """The text as it can be learned, and what was found in it.

    In order: Whisper's special tokens (language, task, time …) are taken out with a warning, since what is
    left is what Whisper's own tokenizer shows; tokens that mark text as not heard reject the row. HTML tags
    and entities, control characters and invisible marks are taken out with a warning. White space becomes
    single spaces and letters their composed form (NFC), which changes no word. A text without a letter or
    digit left is rejected.
    """
    findings = []
    if special := _SPECIAL.findall(text):
        shown = ", ".join(f"<|{t}|>" for t in dict.fromkeys(special))
        if _NOT_HEARD & set(special):
            message = f"the text holds {shown}: part of it is marked as not heard"
            return text, [Finding("reject", name, "special_tokens", message)]
        text = _SPECIAL.sub(" ", text)
        findings.append(
            Finding("warn", name, "special_tokens", f"Whisper's own tokens taken out of the text: {shown}")
        )
    markup = _TAG.findall(text) + [e for e in _ENTITY.findall(text) if html.unescape(e) != e]
    if markup:
        shown = ", ".join(dict.fromkeys(markup))
        text = _ENTITY.sub(lambda m: html.unescape(m[0]), _TAG.sub(" ", text))
        findings.append(Finding("warn", name, "html", f"HTML taken out of the text: {shown}"))
    odd = [c for c in text if c in _INVISIBLE or (unicodedata.category(c) == "Cc" and not c.isspace())]
    if odd:
        shown = ", ".join(f"U+{ord(c):04X}" for c in dict.fromkeys(odd))
        text = "".join(" " if unicodedata.category(c) == "Cc" else "" if c in odd else c for c in text)
        message = f"control characters taken out of the text: {shown}"
        findings.append(Finding("warn", name, "control_characters", message))
    if "\ufffd" in text:
        message = (
            f"{text.count(chr(0xFFFD))} characters were lost earlier (U+FFFD): "
            "the text was once read in a wrong encoding"
        )
        findings.append(Finding("warn", name, "encoding", message))
    text = unicodedata.normalize("NFC", " ".join(text.split()))
    if not any(c.isalnum() for c in text):
        what = f"the text '{text}' has no letter or digit" if text else "the text is empty"
        findings.append(Finding("reject", name, "empty_text", what))
    return text, findings


def spoken_letters(text: str) -> int:
    """Letters, digits and spaces in the text; a Chinese character, kana or Hangul syllable counts as four.

    Four, as one of them is a syllable, and an English syllable is written with about four characters, spaces
    included.
    """
    wide = sum(unicodedata.east_asian_width(c) == "W" for c in text if c.isalnum())
    return sum(c.isalnum() or c == " " for c in text) + 3 * wide


_SCRIPTS = {
    "ARABIC": "ar fa ur ps sd",
    "ARMENIAN": "hy",
    "BENGALI": "bn as",
    "CYRILLIC": "ru uk bg mk be kk mn tg tt ba sr",
    "CJK": "zh yue ja",
    "DEVANAGARI": "hi mr ne sa",
    "ETHIOPIC": "am",
    "GEORGIAN": "ka",
    "GREEK": "el",
    "GUJARATI": "gu",
    "GURMUKHI": "pa",
    "HANGUL": "ko",
    "HEBREW": "he yi",
    "HIRAGANA": "ja",
    "KANNADA": "kn",
    "KATAKANA": "ja",
    "KHMER": "km",
    "LAO": "lo",
    "LATIN": "en de es fr pt tr pl ca nl sv it id fi vi ms cs ro da hu no hr sk lt la mi cy lv sl et br eu "
    "is nn sq sw gl yo so af oc uz tk mt lb bs mg tl ha ln haw jw su fo ht sr az",
    "MALAYALAM": "ml",
    "MYANMAR": "my",
    "SINHALA": "si",
    "TAMIL": "ta",
    "TELUGU": "te",
    "THAI": "th",
    "TIBETAN": "bo",
}
"""Scripts (the first word of a letter's Unicode name) and the Whisper languages written in them."""


def main_script(text: str) -> str | None:
    """The script of most letters, as Unicode names it (`LATIN`, `HEBREW`); None without letters."""
    counts = Counter(unicodedata.name(c, "?").split(" ")[0] for c in text if c.isalpha())
    return counts.most_common(1)[0][0] if counts else None


def wrong_script(text: str, language: str) -> str | None:
    """The text's main script when the language is not written in it; None when it fits or the language is not
    known."""
    fitting = {script for script, codes in _SCRIPTS.items() if language in codes.split()}
    script = main_script(text)
    return script if fitting and script and script not in fitting else None


@dataclass(frozen=True, slots=True)
class LabelStyle:
    """How labels are written, as shares of those that have a letter with case (for case) or a letter (for
    marks)."""

    capitals: float
    """All in capitals, two letters or more."""
    lower: float
    """Without any capital."""
    unpunctuated: float
    """Without a mark of punctuation; an apostrophe or hyphen inside a word is none."""

    @property
    def shouts(self) -> bool:
        """Most labels are all capitals: taught as they are, the model would shout."""
        return self.capitals > 0.5

    @property
    def bare(self) -> bool:
        """Most labels have no punctuation: taught as they are, the model would lose its own."""
        return self.unpunctuated > 0.8

    @property
    def is_unstyled(self) -> bool:
        """Taught as they are, the labels would cost the model its case or its punctuation."""
        return self.shouts or self.bare


def label_style(texts: Iterable[str]) -> LabelStyle:
    """Measure how the labels are written; all zero when there is nothing to see."""
    cased = capitals = lower = lettered = unpunctuated = 0
    for text in texts:
        letters = [c for c in text if c.isalpha()]
        if len(letters) < 2:
            continue
        lettered += 1
        outside = re.sub(r"(?<=\w)['’\-](?=\w)", "", text)
        unpunctuated += not any(unicodedata.category(c).startswith("P") for c in outside)
        if any(c.lower() != c.upper() for c in letters):
            cased += 1
            capitals += text == text.upper()
            lower += text == text.lower()
    return LabelStyle(
        capitals=capitals / cased if cased else 0.0,
        lower=lower / cased if cased else 0.0,
        unpunctuated=unpunctuated / lettered if lettered else 0.0,
    )
