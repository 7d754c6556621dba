"""Keywords: what a file may hold, which words are found to be some, and how they are counted on both sides."""

import random
import re
import sys
import time

import pytest

from whispertune.errors import DataError
from whispertune.scoring.align import score_clip
from whispertune.scoring.keywords import (
    Keyword,
    KeywordCounts,
    count_keywords,
    find_keywords,
    read_keywords,
)
from whispertune.scoring.normalize import Normalizer, normalizer_for

ENGLISH = normalizer_for("en")


def count(reference, hypothesis, *keywords, language="en"):
    normalizer = normalizer_for(language)
    listed = tuple(Keyword(k) if isinstance(k, str) else k for k in keywords)
    return count_keywords(score_clip("a", reference, hypothesis, normalizer), listed, normalizer)


@pytest.mark.parametrize(
    ("content", "what", "hint"),
    [
        (b"Vorasept\nZolvarin\nJos\xe9\n", "{path}:3 is not UTF-8 text (byte 21)", "save it again as UTF-8"),
        ("Vorasept\n".encode("utf-16"), "{path}:1 is not UTF-8 text (byte 0)", "save it again as UTF-8"),
        (
            b"# ours\n\n  \n",
            "{path} has no keywords: 0 lines that are neither empty nor comments",
            "write one keyword a line",
        ),
        (
            b"# ours\nVorasept | | Vora\n",
            "{path}:2: '' is no keyword, it has no letters or digits: 'Vorasept | | Vora'",
            "one keyword a line, other spellings of it behind |",
        ),
        (
            b"Vorasept\n|\n",
            "{path}:2: '' is no keyword, it has no letters or digits: '|'",
            "one keyword a line, other spellings of it behind |",
        ),
        (
            b"Vorasept | ...\n",
            "{path}:1: '...' is no keyword, it has no letters or digits: 'Vorasept | ...'",
            "one keyword a line, other spellings of it behind |",
        ),
    ],
)
def test_a_file_that_is_no_list_is_refused(tmp_path, content, what, hint):
    path = tmp_path / "keywords.txt"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_keywords(path)
    assert (caught.value.what, caught.value.hint) == (what.format(path=path), hint)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(DataError) as caught:
        read_keywords(tmp_path / "none.txt")
    assert caught.value.what == f"cannot read {tmp_path / 'none.txt'}: No such file or directory"
    with pytest.raises(DataError) as caught:
        read_keywords(tmp_path)
    assert caught.value.what == f"cannot read {tmp_path}: Is a directory"


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_what_a_file_may_hold(tmp_path, newline, mark):
    lines = ["# our products", "Vorasept | Vora-Sept|Voraseppt", "", "  Fort   Kessel ", "דניאל | Daniel", "C#"]
    path = tmp_path / "keywords.txt"
    path.write_bytes((mark + newline.join(lines)).encode())
    assert read_keywords(path) == (
        Keyword("Vorasept", ("Vora-Sept", "Voraseppt")),
        Keyword("Fort Kessel"),
        Keyword("דניאל", ("Daniel",)),
        Keyword("C#"),
    )


@pytest.mark.parametrize(
    ("reference", "hypothesis", "said", "hits", "heard"),
    [
        ("", "", 0, 0, 0),
        ("no jargon here", "no jargon here", 0, 0, 0),
        ("Zolvarin helps.", "zolvarin HELPS", 1, 1, 1),
        ("Zolvarin helps", "Zolverine helps", 1, 0, 0),
        ("the other one", "the Zolvarin one", 0, 0, 1),
        ("Zolvarin, zolvarin!", "zolvarin", 2, 1, 1),
        ("zolvarin", "zolvarin zolvarin zolvarin", 1, 1, 3),
        ("Zolvarin's maker", "zolvarin is maker", 1, 1, 1),
        ("zolvarins", "xzolvarin", 0, 0, 0),
        ("zolvarin first", "", 1, 0, 0),
    ],
)
def test_counts_by_hand(reference, hypothesis, said, hits, heard):
    assert count(reference, hypothesis, "Zolvarin") == KeywordCounts(said, hits, heard)


def test_rates_by_hand():
    counts = KeywordCounts(said=5, hits=3, heard=4)
    assert (counts.misses, counts.false_alarms, counts.errors) == (2, 1, 3)
    assert (counts.recall, counts.precision, counts.percent) == (60, 75, 60)
    assert counts + KeywordCounts(1, 0, 6) == KeywordCounts(6, 3, 10)
    assert KeywordCounts(1, 1, 5).percent == 400, "not capped"
    nothing = KeywordCounts()
    assert (nothing.recall, nothing.precision, nothing.percent, nothing.errors) == (None, None, None, 0)
    assert KeywordCounts(0, 0, 3).percent is None and KeywordCounts(0, 0, 3).precision == 0


def test_one_keyword_taken_for_another_is_a_miss_and_a_false_alarm():
    assert count("take zolvarin", "take mistrel", "Zolvarin", "Mistrel") == KeywordCounts(1, 0, 1)


def test_a_hit_needs_the_same_keyword_in_the_same_clip_wherever_it_stands():
    assert count("zolvarin then mistrel", "mistrel then zolvarin", "Zolvarin", "Mistrel").hits == 2


def test_the_longest_spelling_goes_first_and_no_word_counts_twice():
    vora = Keyword("Vora", ("Vora Sept", "Sept"))
    assert count("vora sept and sept", "vora and sept", vora) == KeywordCounts(2, 2, 2)
    assert count("duran duran duran", "duran duran duran duran", "Duran Duran") == KeywordCounts(1, 1, 2)


def test_keywords_do_not_mind_each_other_but_a_shared_spelling_has_one_owner():
    assert count("fort kessel", "fort kessel", "Fort Kessel", "Kessel").said == 2
    assert count("zolvarin", "zolvarin", "Zolvarin", "zolvarin!", "ZOLVARIN") == KeywordCounts(1, 1, 1)


def test_all_spellings_count_alike():
    vorasept = Keyword("Vorasept", ("Vora-Sept", "Vora Sept's"))
    assert count("Vorasept", "vora sept", vorasept) == KeywordCounts(1, 1, 1)
    assert count("colour chart", "color chart", "Colour Chart") == KeywordCounts(1, 1, 1), "as the score has it"
    assert count("anything", "...", Keyword("...")) == KeywordCounts(), "nothing is left to look for"


@pytest.mark.parametrize(
    ("keyword", "reference", "hypothesis", "expected"),
    [
        ("5 mg", "take 5 mg", "take five mg", KeywordCounts(1, 1, 1)),
        ("5 mg", "take 5 mg", "take 25 mg", KeywordCounts(1, 0, 0)),
        ("Route 6", "on Route 6 here", "on route 66 here", KeywordCounts(1, 0, 0)),
        ("B-52", "a B-52 flew", "a b fifty two flew", KeywordCounts(1, 1, 1)),
        ("four", "three four five", "345", KeywordCounts(1, 1, 1)),
    ],
)
def test_a_number_in_a_keyword_is_whole(keyword, reference, hypothesis, expected):
    assert count(reference, hypothesis, keyword) == expected


@pytest.mark.parametrize(
    ("keyword", "written"),
    [
        ("דניאל", "דניאל"),
        ("שלום", "שָׁלוֹם"),
        ('צה"ל', "צה״ל"),
        ("ג'ירפה", "ג׳ירפה"),
        ("محمد", "مُحَمَّد"),
        ("Москва", "МОСКВА"),
        ("हिन्दी", "हिन्दी"),
        ("北京", "北京"),
        ("กรุงเทพ", "กรุงเทพ"),
    ],
)
def test_a_keyword_in_another_script_inside_english(keyword, written):
    """Whisper's English rules drop the marks of other scripts or split words at them: on both sides alike."""
    both = Keyword("Latin Name", (keyword,))
    assert count(f"I met {written} there", f"i met {keyword}, there", both) == KeywordCounts(1, 1, 1)
    assert count(f"I met {written} there", "I met Latin Name there", both) == KeywordCounts(1, 1, 1)
    assert count(f"I met {written} there", "I met him there", both) == KeywordCounts(1, 0, 0)


@pytest.mark.parametrize(
    ("language", "keyword", "text"),
    [
        ("zh", "北京大学", "我在北京大学学习"),
        ("th", "กรุงเทพ", "ฉันอยู่กรุงเทพนาน"),
        ("he", "תל אביב", "גר בתל אביב, תל אביב"),
        ("hi", "हिन्दी", "यह हिन्दी है"),
    ],
)
def test_other_writing_systems(language, keyword, text):
    assert count(text, text, keyword, language=language) == KeywordCounts(1, 1, 1)
    assert count(text, "", keyword, language=language) == KeywordCounts(1, 0, 0)


def test_counts_equal_those_of_a_search_word_by_word():
    random.seed(3)
    words = ["a", "b", "c", "vora", "sept"]
    keywords = tuple(Keyword(k) for k in ("vora sept", "a b", "c", "vora"))
    for _ in range(2000):
        texts = [" ".join(random.choices(words, k=random.randint(0, 12))) for _ in range(2)]
        found = [[len(re.findall(rf"\b{k.term}\b", text)) for k in keywords] for text in texts]
        hits = sum(min(pair) for pair in zip(*found, strict=True))
        assert count(*texts, *keywords, language="cs") == KeywordCounts(sum(found[0]), hits, sum(found[1])), texts


def test_a_hundred_thousand_clips_and_fifty_keywords_take_seconds():
    random.seed(4)
    vocabulary = ["".join(random.choices("abcdefghij", k=6)) for _ in range(5000)]
    keywords = tuple(Keyword(w, (f"{w} x", f"{w}y")) for w in vocabulary[:50])
    normalizer = normalizer_for("cs")
    scores = [
        score_clip("a", " ".join(random.choices(vocabulary, k=15)), " ".join(random.choices(vocabulary, k=15)), normalizer)
        for _ in range(2000)
    ]  # fmt: skip
    start = time.process_time()
    total = sum((count_keywords(score, keywords, normalizer) for score in scores), KeywordCounts())
    seconds = time.process_time() - start
    assert 200 < total.said < 400
    assert 50 * seconds < 15, "about 1 s for 100,000 on an idle machine"


def test_without_the_library_no_keywords_are_found(monkeypatch):
    monkeypatch.setitem(sys.modules, "wordfreq", None)
    assert find_keywords(["Zolvarin helps, Zolvarin heals"], "en", ENGLISH) == ()


wordfreq = pytest.importorskip("wordfreq", reason="pip install 'whispertune[keywords]'")


@pytest.mark.parametrize("language", [None, "", "th", "zh", "ja", "ko", "sw", "af", "yi", "xx"])
def test_without_a_list_of_the_languages_words_none_are_found(language):
    texts = ["Zolvarin Zolvarin Zolvarin"]
    assert find_keywords(texts, language, normalizer_for(language or None)) == ()


TEXTS = [
    "We gave her Zolvarin twice, zolvarin and then Zolvarin's cousin.",
    "Aortic stenosis was seen; the stenosis is aortic, he said.",
    "The PBX has 2 lines, PBX is what it is, B 52 and 5G and 1990s.",
    "It was a good day for all of us, and we went home. Mistrel.",
    "The clopidogrel came.",
]


def test_words_far_more_common_here_than_in_general_are_found():
    found = find_keywords(TEXTS, "en", ENGLISH)
    assert [k.term for k in found] == ["Zolvarin", "PBX", "stenosis", "Mistrel"]
    assert found == find_keywords(iter(TEXTS), "en-GB", ENGLISH), "any iterable, any region"
    assert find_keywords(TEXTS, "en", ENGLISH, limit=2) == found[:2]
    assert find_keywords([], "en", ENGLISH) == ()


def test_a_rare_word_of_a_large_text_is_there_by_chance():
    lower_case = Normalizer("lower-case", "", "wer", str.lower)
    rare = "ventricular and ventricular "
    assert find_keywords([rare], "en", lower_case) == (Keyword("ventricular"),)
    assert find_keywords([rare + "it was a good day " * 10_000], "en", lower_case) == (Keyword("ventricular"),)
    assert find_keywords([rare + "it was a good day " * 60_000], "en", lower_case) == ()


def test_where_the_list_ends_early_a_word_must_come_twice():
    assert "hi" not in wordfreq.available_languages("large")
    hindi = normalizer_for("hi")
    assert find_keywords(["यह ज़ोल्वारिन है"], "hi", hindi) == ()
    assert find_keywords(["यह ज़ोल्वारिन है और वह ज़ोल्वारिन"], "hi", hindi) == (Keyword("ज़ोल्वारिन"),)


def test_what_the_normaliser_takes_from_a_word_does_not_make_it_rare():
    assert find_keywords(["п'ять і п'ять"], "uk", normalizer_for("uk")) == ()
    assert find_keywords(["the naïve café's façade and façade"], "en", ENGLISH) == ()


def test_serbian_has_the_list_of_its_neighbours():
    assert find_keywords(["Ovo je dobar dan, dobar dan"], "sr", normalizer_for("sr")) == ()
