"""What a comparison is decided by, fixed before training: the goal, the keywords, and own spelling rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from whispertune.clip import Clip
from whispertune.errors import DataError
from whispertune.recipe import EvalSection
from whispertune.scoring.align import ClipScore, Rows, score_clip
from whispertune.scoring.bootstrap import RESAMPLES
from whispertune.scoring.keywords import Keyword, KeywordCounts, count_keywords, find_keywords, read_keywords
from whispertune.scoring.normalize import Normalizer, Rules, normalizer_for, read_rules
from whispertune.scoring.slices import columns_of
from whispertune.scoring.verdict import RATES, TOLERANCE, Rate


@dataclass(frozen=True, slots=True)
class Goal:
    """An error rate, over all test clips or over those with a value in a column."""

    name: str
    """As it is written in the recipe: `wer`, `cer`, `keywords`, `slice:speaker=ana`."""
    rate: Literal["wer", "cer", "keywords"]
    column: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """What decides, and how texts are counted."""

    goal: Goal
    keywords: tuple[Keyword, ...] = ()
    keywords_from: Literal["", "file", "texts"] = ""
    """Whose choice they are: the user's, or found in the test texts."""
    rules: Rules | None = field(default=None, repr=False)
    tolerance: float = TOLERANCE
    """By how many points a guard may get worse."""
    resamples: int = RESAMPLES

    def normalizer(self, language: str) -> Normalizer:
        return normalizer_for(language, self.rules)

    def scored(self, rows: Rows) -> list[ClipScore]:
        """The scores of a system's transcripts, in their order."""
        return [
            score_clip(row["id"], row["reference"], row["hypothesis"], self.normalizer(row["language"]))
            for row in rows
        ]

    def counted_keywords(self, rows: Rows, scores: Sequence[ClipScore]) -> list[KeywordCounts]:
        """The keywords said and heard in each clip."""
        return [
            count_keywords(score, self.keywords, self.normalizer(row["language"]))
            for row, score in zip(rows, scores, strict=True)
        ]

    def rate(self, rows: Rows) -> Rate:
        """The goal's error rate, for clips whose languages are those of these rows."""
        if self.goal.rate != "keywords":
            return RATES[self.goal.rate]
        normalizers = {row["id"]: self.normalizer(row["language"]) for row in rows}

        def count(score: ClipScore) -> tuple[int, int]:
            counts = count_keywords(score, self.keywords, normalizers[score.clip_id])
            return counts.errors, counts.said

        return Rate("KER", count)

    def in_goal(self, clips: Sequence[Clip]) -> list[Clip]:
        """The test clips that the goal is about.

        Raises:
            DataError: no clip has the value, or none knows the column.
        """
        if not self.goal.column:
            return list(clips)
        columns = columns_of(clips)
        if self.goal.column not in columns:
            raise DataError(
                f"the goal {self.goal.name}: the test clips have no column '{self.goal.column}'",
                f"columns: {', '.join(columns)}",
            )
        values = {clip_id: _shown(value) for clip_id, value in columns[self.goal.column].items()}
        chosen = [clip for clip in clips if values.get(clip.id) == self.goal.value]
        if not chosen:
            known = sorted(set(values.values()))
            shown = ", ".join(known[:12]) + (" …" if len(known) > 12 else "")
            raise DataError(
                f"the goal {self.goal.name}: none of {len(clips)} test clips has that value",
                f"values of {self.goal.column}: {shown}",
            )
        return chosen


def terms_of(section: EvalSection, clips: Sequence[Clip], languages: Mapping[str, str]) -> Terms:
    """The terms of a recipe for some test clips.

    Args:
        languages: the language each clip is decoded in, by clip id.

    Raises:
        DataError: a file cannot be read, the goal is about clips there are not, or about keywords that no
            test text holds.
    """
    rules = read_rules(Path(section.normalizer)) if section.normalizer else None
    keywords, source = _keywords(section, clips, languages, rules)
    goal = _goal(section.goal, [normalizer_for(languages[clip.id]) for clip in clips])
    terms = Terms(goal, keywords, source, rules, section.tolerance, section.resamples)
    terms.in_goal(clips)
    if goal.rate == "keywords":
        rows = [
            {"id": c.id, "language": languages[c.id], "reference": c.text, "hypothesis": ""} for c in clips
        ]
        if not any(counts.said for counts in terms.counted_keywords(rows, terms.scored(rows))):
            raise DataError(
                f"the goal is keywords, and none of {len(keywords)} is in the {len(clips)} test texts",
                "name words that are said in the test clips, in a file: --keywords FILE",
            )
    return terms


def _keywords(
    section: EvalSection, clips: Sequence[Clip], languages: Mapping[str, str], rules: Rules | None
) -> tuple[tuple[Keyword, ...], Literal["", "file", "texts"]]:
    if section.keywords:
        return read_keywords(Path(section.keywords)), "file"
    texts: dict[str, list[str]] = {}
    for clip in clips:
        texts.setdefault(languages[clip.id], []).append(clip.text)
    found = [
        keyword
        for language, said in texts.items()
        for keyword in find_keywords(said, language, normalizer_for(language, rules))
    ]
    return tuple(found), "texts" if found else ""


def _goal(name: str | None, normalizers: Sequence[Normalizer]) -> Goal:
    """Words, where nothing is said; characters, where a language has no spaces between words."""
    usual: Literal["wer", "cer"] = "cer" if any(n.scores_by == "cer" for n in normalizers) else "wer"
    if name is None:
        return Goal(usual, usual)
    if name in ("wer", "cer", "keywords"):
        return Goal(name, name)
    column, _, value = name.removeprefix("slice:").partition("=")
    return Goal(name, usual, column, value)


def _shown(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"
