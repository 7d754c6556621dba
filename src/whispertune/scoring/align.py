"""Errors of one clip, counted by minimal edit distance, and their sums over a test set.

The alignment is rapidfuzz's, the kernel of jiwer: the same counts (tested on random pairs), without jiwer's
set-up of some 30 µs a call. A rate is errors ÷ reference length, never capped: insertions take it past
100 %. Over a set it is the ratio of the sums, not the mean of the clips' rates.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rapidfuzz.distance import Editops, Levenshtein

from whispertune.scoring.normalize import Normalizer, strip_markers

Rows = Sequence[Mapping[str, str]]
"""What a system made of a set: id, language, reference and hypothesis of each clip."""

LOOP_REPEATS = 4
"""A phrase so often in a row looks like a loop: people seldom say one, a decoder that loops goes on."""
LOOP_WORDS = 8
"""… if the repeats fill as many words: "no, no, no, no" is speech, "the boy, the boy, …" hardly."""
LOOP_CHARACTERS = 20
"""… or as many characters of one word, or of a text without spaces: "hahahaha" is speech."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Hits and errors of an alignment, in words or in characters. Adds up."""

    hits: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    @property
    def reference_length(self) -> int:
        return self.hits + self.substitutions + self.deletions

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def percent(self) -> float | None:
        """Errors ÷ reference length in percent; None, undefined, where the reference is empty."""
        return 100 * self.errors / self.reference_length if self.reference_length else None

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.hits + other.hits,
            self.substitutions + other.substitutions,
            self.deletions + other.deletions,
            self.insertions + other.insertions,
        )


def _count(operations: Editops) -> Counts:
    substitutions = deletions = insertions = 0
    for operation in operations:
        if operation.tag == "replace":
            substitutions += 1
        elif operation.tag == "delete":
            deletions += 1
        else:
            insertions += 1
    return Counts(operations.src_len - substitutions - deletions, substitutions, deletions, insertions)


def _lost_at_edges(operations: Editops) -> tuple[int, int]:
    """Reference words deleted in a row from the first on, and up to the last; (0, 0) where none was heard."""
    length = operations.src_len
    if operations.dest_len == 0:
        return 0, 0
    deleted = {operation.src_pos for operation in operations if operation.tag == "delete"}
    start = next(n for n in range(length + 1) if n not in deleted)
    end = next(n for n in range(length + 1) if length - 1 - n not in deleted)
    return start, end


def count_words(reference: str, hypothesis: str) -> Counts:
    """Counts over the words of two texts, split at white space."""
    return _count(Levenshtein.editops(reference.split(), hypothesis.split()))


def count_characters(reference: str, hypothesis: str) -> Counts:
    """Counts over the characters of two texts; a space is a character, as in jiwer."""
    return _count(Levenshtein.editops(reference.strip(), hypothesis.strip()))


@dataclass(frozen=True, slots=True)
class ClipScore:
    """One clip's reference and hypothesis, as written, and what their comparison counts."""

    clip_id: str
    reference: str
    hypothesis: str
    normalizer: str
    """Name of the normaliser behind `said`, `heard`, `words` and `characters`."""
    said: str
    """The reference, normalised: words joined by single spaces."""
    heard: str
    """The hypothesis, normalised."""
    words: Counts
    characters: Counts
    raw_words: Counts
    """Without normalising: case and punctuation count. Only Whisper's markers are taken out."""
    loop: bool
    """The hypothesis runs away: see `is_loop`."""
    empty: bool
    """The hypothesis has no words where the reference has some."""
    lost_at_start: int
    """Words of the reference, from its first on, that are missing in a row: a late start. 0 if `empty`."""
    lost_at_end: int
    """Words of the reference, up to its last, that are missing in a row: an early stop. 0 if `empty`."""


def score_clip(clip_id: str, reference: str, hypothesis: str, normalizer: Normalizer) -> ClipScore:
    """Compares what was said with what was heard, in one clip."""
    heard, said = normalizer(hypothesis), normalizer(reference)
    operations = Levenshtein.editops(said.split(), heard.split())
    lost_at_start, lost_at_end = _lost_at_edges(operations)
    return ClipScore(
        clip_id=clip_id,
        reference=reference,
        hypothesis=hypothesis,
        normalizer=normalizer.name,
        said=said,
        heard=heard,
        words=_count(operations),
        characters=count_characters(normalizer.characters(said), normalizer.characters(heard)),
        raw_words=count_words(strip_markers(reference), strip_markers(hypothesis)),
        loop=is_loop(hypothesis, reference),
        empty=bool(said) and not heard,
        lost_at_start=lost_at_start,
        lost_at_end=lost_at_end,
    )


def is_loop(hypothesis: str, reference: str = "") -> bool:
    """Whether a hypothesis repeats itself as a decoder that has run away does.

    It does if the same words come at least `LOOP_REPEATS` times in a row and fill `LOOP_WORDS` words, or the
    same characters fill `LOOP_CHARACTERS` of one word or of a text without spaces, and the reference repeats
    itself less than half as long. Words are taken as written, less case and punctuation: in normalised text a
    "1,000,000,000" would be a run of nine noughts.
    """
    heard = _bare_words(hypothesis)
    words = _longest_repeat(heard)
    characters = max((_longest_repeat(word) for word in heard if len(word) >= LOOP_CHARACTERS), default=0)
    if words < LOOP_WORDS and characters < LOOP_CHARACTERS:
        return False  # most texts: whether the reference repeats itself does not matter
    said = _bare_words(reference)
    if words >= LOOP_WORDS and 2 * _longest_repeat(said) < words:
        return True
    return characters >= LOOP_CHARACTERS and 2 * max(map(_longest_repeat, said), default=0) < characters


def _bare_words(text: str) -> list[str]:
    words = (word.strip(_PUNCTUATION) for word in strip_markers(text).casefold().split())
    return [word for word in words if word]


_PUNCTUATION = "".join(c for c in map(chr, range(0x3100)) if unicodedata.category(c)[0] == "P")


def _longest_repeat(sequence: Sequence[str]) -> int:
    """Length of the longest stretch that is one phrase `LOOP_REPEATS` times or more; 0 if there is none."""
    if len(sequence) - len(set(sequence)) < LOOP_REPEATS - 1:
        return 0  # a phrase in a row is at least its first word so often
    longest = 0
    for period in range(1, len(sequence) // LOOP_REPEATS + 1):
        run = 0
        for now, before in zip(sequence[period:], sequence, strict=False):
            run = run + 1 if now == before else 0
            if run >= (LOOP_REPEATS - 1) * period:
                longest = max(longest, run + period)
    return longest


def confusions(scores: Iterable[ClipScore]) -> Counter[tuple[str, str]]:
    """How often each word was taken for another: {(said, heard): times}, in normalised words."""
    counts: Counter[tuple[str, str]] = Counter()
    for score in scores:
        said, heard = score.said.split(), score.heard.split()
        for operation in Levenshtein.editops(said, heard):
            if operation.tag == "replace":
                counts[said[operation.src_pos], heard[operation.dest_pos]] += 1
    return counts


@dataclass(frozen=True, slots=True)
class WordDifference:
    """A stretch of an alignment, in the words as they are written."""

    operation: Literal["equal", "substitute", "delete", "insert"]
    reference: tuple[str, ...]
    hypothesis: tuple[str, ...]


def word_differences(reference: str, hypothesis: str, normalizer: Normalizer) -> list[WordDifference]:
    """How two texts differ under a normaliser, shown in their own words.

    Every written word of both texts is in the result once, in order. Stretches are as short as the
    normaliser allows: where several written words are one (or one several), they stay together.
    """
    said, heard = strip_markers(reference).split(), strip_markers(hypothesis).split()
    said_tokens, said_ends = _token_ends(said, normalizer)
    heard_tokens, heard_ends = _token_ends(heard, normalizer)

    # Single steps through both token lists; a written word ends where its tokens do.
    steps: list[tuple[str, int, int]] = []
    for op in Levenshtein.opcodes(said_tokens, heard_tokens):
        for k in range(1, 1 + max(op.src_end - op.src_start, op.dest_end - op.dest_start)):
            steps.append((op.tag, min(op.src_start + k, op.src_end), min(op.dest_start + k, op.dest_end)))

    differences: list[WordDifference] = []
    tags: set[str] = set()
    i = j = 0
    for n, (tag, token_i, token_j) in enumerate(steps):
        tags.add(tag)
        last = n == len(steps) - 1
        if not last and (token_i not in said_ends or token_j not in heard_ends):
            continue
        next_i = len(said) if last else said_ends[token_i]
        next_j = len(heard) if last else heard_ends[token_j]
        differences.append(_difference(tags, said[i:next_i], heard[j:next_j]))
        i, j, tags = next_i, next_j, set()
    if not steps and (said or heard):
        differences.append(WordDifference("equal", tuple(said), tuple(heard)))
    return _joined(differences)


def _difference(tags: set[str], said: list[str], heard: list[str]) -> WordDifference:
    operation: Literal["equal", "substitute", "delete", "insert"]
    if tags == {"equal"}:
        operation = "equal"
    elif tags == {"delete"}:
        operation = "delete"
    elif tags == {"insert"}:
        operation = "insert"
    else:
        operation = "substitute"
    return WordDifference(operation, tuple(said), tuple(heard))


def _joined(differences: list[WordDifference]) -> list[WordDifference]:
    """Neighbours of one kind as one; substitutions stay pair by pair."""
    result: list[WordDifference] = []
    for this in differences:
        if result and result[-1].operation == this.operation != "substitute":
            before = result.pop()
            this = WordDifference(
                this.operation, before.reference + this.reference, before.hypothesis + this.hypothesis
            )
        result.append(this)
    return result


def _token_ends(words: list[str], normalizer: Normalizer) -> tuple[list[str], dict[int, int]]:
    """The normalised tokens of a text, and where written words end among them.

    Returns (tokens, {tokens so far: written words so far}). Rules look at neighbours ("twenty five" is 2 5),
    so the tokens of the whole text are aligned with those of each word alone.
    """
    tokens = normalizer(" ".join(words)).split()
    alone = [normalizer(word).split() for word in words]
    flat = [token for part in alone for token in part]
    position = [0] * (len(flat) + 1)  # tokens of the whole text behind so many tokens of the words alone
    for op in Levenshtein.opcodes(flat, tokens):
        for k in range(op.src_start + 1, op.src_end + 1):
            position[k] = op.dest_end if op.tag == "delete" else op.dest_end - (op.src_end - k)
        if op.tag == "insert":
            position[op.src_start] = op.dest_end
    ends = {0: 0}
    behind = 0
    for count, part in enumerate(alone, start=1):
        behind += len(part)
        ends[position[behind]] = count
    ends[len(tokens)] = len(words)
    return tokens, ends


@dataclass(frozen=True, slots=True)
class Totals:
    """The scores of one system over a test set. Rates are percentages; None where no reference has a word."""

    clips: int
    words: Counts
    characters: Counts
    raw_words: Counts
    words_without_loops: Counts
    """`words` without the clips whose hypothesis loops: what is left of a gain that was loops going away."""
    correct_clips: int
    """Clips without a word error."""
    loops: int
    empty_hypotheses: int
    """Clips with words in the reference and none in the hypothesis."""
    over_100_percent: int
    """Clips with more word errors than reference words."""
    undefined_references: int
    """Clips whose reference normalises to nothing, such as `[noise]`; what is heard there is inserted."""
    lost_at_start: int
    lost_at_end: int
    """Words missing in a row at the clips' edges, where something was heard."""

    @classmethod
    def of(cls, scores: Iterable[ClipScore]) -> "Totals":
        scores = list(scores)
        return cls(
            clips=len(scores),
            words=sum((s.words for s in scores), Counts()),
            characters=sum((s.characters for s in scores), Counts()),
            raw_words=sum((s.raw_words for s in scores), Counts()),
            words_without_loops=sum((s.words for s in scores if not s.loop), Counts()),
            correct_clips=sum(s.words.errors == 0 for s in scores),
            loops=sum(s.loop for s in scores),
            empty_hypotheses=sum(s.empty for s in scores),
            over_100_percent=sum(s.words.errors > s.words.reference_length > 0 for s in scores),
            undefined_references=sum(s.words.reference_length == 0 for s in scores),
            lost_at_start=sum(s.lost_at_start for s in scores),
            lost_at_end=sum(s.lost_at_end for s in scores),
        )

    @property
    def wer(self) -> float | None:
        return self.words.percent

    @property
    def cer(self) -> float | None:
        return self.characters.percent

    @property
    def raw_wer(self) -> float | None:
        return self.raw_words.percent

    @property
    def wer_without_loops(self) -> float | None:
        return self.words_without_loops.percent

    @property
    def sentence_accuracy(self) -> float | None:
        return 100 * self.correct_clips / self.clips if self.clips else None
