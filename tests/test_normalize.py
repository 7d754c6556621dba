"""One common form for two texts: the numbers policy, marks, markers, and English rules only for English."""

import hashlib
import random
import re
import unicodedata

import pytest
from whisper_normalizer.english import EnglishNumberNormalizer

from whispertune.errors import DataError, UsageError
from whispertune.scoring.align import score_clip
from whispertune.scoring.normalize import normalizer_for, read_rules, strip_markers

ENGLISH = normalizer_for("en")


@pytest.mark.parametrize("language", ["english", "", "e", "12", "Czech language"])
def test_what_is_no_language_code_is_refused(language):
    with pytest.raises(UsageError) as caught:
        normalizer_for(language)
    assert caught.value.what == f"{language!r} is not a language code"
    assert "en, cs, yue" in caught.value.hint


@pytest.mark.parametrize(
    "spellings, words",
    [
        (["six four three nine", "6439", "6, 4, 3, 9", "6-4-3-9", "6 4 3 9", "six 4 three 9"], "6 4 3 9"),
        (["twenty five", "Twenty-five", "25"], "2 5"),
        (["nineteen nineties", "1990s"], "1 9 9 0s"),
        (["twenty first", "21st"], "2 1st"),
        (["first", "1st"], "1st"),
        (["one", "1"], "1"),
        (["double oh seven", "007", "0-0-7"], "0 0 7"),
        (["three point five", "3.5"], "3 point 5"),
        (["zero point one", "0.1"], "0 point 1"),
        (["twenty dollars", "$20"], "2 0 dollars"),
        (["one dollar", "$1"], "1 dollars"),
        (["two dollars and fifty cents", "$2.50"], "2 point 5 0 dollars"),
        (["fifty cents", "$0.50"], "5 0 cents"),
        (["ten percent", "10%", "10 per cent"], "1 0 percent"),
        (["one percent", "1%"], "1 percent"),
        (["minus five", "-5", "−5"], "minus 5"),
        (["plus four four", "+44"], "plus 4 4"),
        (["three thirty", "3:30"], "3 3 0"),
        (["nine eleven", "9/11"], "9 1 1"),
        (["one million", "1,000,000"], "1 0 0 0 0 0 0"),
        (["room 101b", "room one oh one b"], "room 1 0 1 b"),
    ],
)
def test_english_numbers_compare_digit_by_digit(spellings, words):
    assert {spelling: ENGLISH(spelling) for spelling in spellings} == dict.fromkeys(spellings, words)


def test_case_53_four_spoken_digits_are_four_words():
    score = score_clip("a", "six four three nine", "6, 4, 3, 9", ENGLISH)
    assert (score.words.errors, score.words.reference_length) == (0, 4)
    score = score_clip("a", "six four three nine", "6, 4, 8, 9", ENGLISH)
    assert score.words.percent == 25


@pytest.mark.parametrize(
    "text, words",
    [
        ("The colour can't fade — it's Mr. Hale’s!", "the color can not fade it is mister hale is"),
        ("We can’t, Uh, go", "we can not go"),
        ("wait...5 of them, wait…5", "wait 5 of them wait 5"),
        ("H.323", "h 3 2 3"),
        ("Café", "cafe"),
        ("$", ""),
        ("costs a $", "costs a"),
        ("9" * 5000, " ".join("9" * 5000)),
    ],
)
def test_english_follows_the_field(text, words):
    assert ENGLISH(text) == words


@pytest.mark.real
def test_english_never_fails_whatever_number_words_follow_each_other():
    random.seed(0)
    written = ["5", "20", "1990s", "$3", "0.5", "a", "half", "%", ".", "-7", "+", "¢5", "£", "1st", "٣", "½"]
    vocabulary = [*EnglishNumberNormalizer().words, *written]
    for _ in range(2000):
        text = " ".join(random.choices(vocabulary, k=random.randint(1, 7)))
        words = ENGLISH(text)
        assert not set(words) & set(".%$€£¢+-"), text


@pytest.mark.parametrize("language", ["en", "cs", "he", "zh", None])
@pytest.mark.parametrize(
    "text", ["<|0.00|> hello<|1.00|>", "<|startoftranscript|><|en|>Hello", "[noise] hello", "(laughs) Hello!"]
)
def test_case_45_markers_and_notes_are_no_words(language, text):
    assert normalizer_for(language)(text) == normalizer_for(language)("hello")


@pytest.mark.parametrize("language", ["en", "cs", "zh"])
def test_a_marker_or_note_between_two_words_does_not_join_them(language):
    normalizer = normalizer_for(language)
    assert normalizer("so<|1.00|><|1.00|>yes") == normalizer("so[noise]yes") == normalizer("so yes")
    assert normalizer("[noise]") == normalizer("(laughs)") == normalizer("<|nospeech|>") == ""


@pytest.mark.parametrize("language", ["en", "fr", None])
def test_case_45_composed_and_decomposed_letters_are_the_same(language):
    score = score_clip("a", "café", "cafe\u0301", normalizer_for(language))
    assert score.words.errors == score.characters.errors == score.raw_words.errors == 0


@pytest.mark.parametrize(
    "language, text",
    [
        ("he", "שָׁלוֹם עוֹלָם"),
        ("hi", "नमस्ते दुनिया क़लम हिन्दी"),
        ("ar", "مَرْحَبًا بِالعَالَمِ"),
        ("ta", "வணக்கம் உலகம்"),
        ("bn", "বাংলা ভাষা"),
    ],
)
def test_case_54_marks_are_kept_and_split_no_word(language, text):
    words = normalizer_for(language)(text)
    assert len(words.split()) == len(text.split())
    assert words == unicodedata.normalize("NFC", text)
    assert any(unicodedata.category(c)[0] == "M" for c in words)


@pytest.mark.parametrize(
    "language, text, words",
    [
        ("cs", "Co je to za „divnou“ loď? LC-10", "co je to za divnou loď lc 1 0"),
        ("de", "STRASSE, Straße", "strasse strasse"),
        ("fr", "L’homme d'Aix", "l homme d aix"),
        ("tr", "İSTANBUL IRMAK", "istanbul ırmak"),
        ("uk", "П'ять, п’ять, пʼять", "пять пять пять"),
        ("he", 'צה"ל צה״ל', "צהל צהל"),
        ("ar", "كـــتاب ٣٫٥", "كتاب 3 5"),
        ("hi", "१२ किताबें।", "1 2 किताबें"),
        ("es", "1.000.000 o 1000000", "1 0 0 0 0 0 0 o 1 0 0 0 0 0 0"),
        (None, "\u2764\ufe0f ok \u0301", "ok"),
        ("fa", "می\u200cخواهم", "میخواهم"),
    ],
)
def test_other_languages(language, text, words):
    assert normalizer_for(language)(text) == words


def test_english_rules_stay_in_english():
    text = "colour can't twenty five Mr one"
    for language in ("cs", "de", "zh", None):
        assert normalizer_for(language)(text) == "colour can t twenty five mr one"


@pytest.mark.parametrize(
    "language, text, words, characters",
    [
        ("zh", "你好，Whisper 模型１２。", "你 好 whisper 模 型 1 2", "你好whisper模型12"),
        ("ja", "これは、ｶﾞラスです", "こ れ は ガ ラ ス で す", "これはガラスです"),
        ("th", "น้ำ ดี", "น้ ำ ดี", "น้ำดี"),
    ],
)
def test_without_spaces_characters_come_first(language, text, words, characters):
    normalizer = normalizer_for(language)
    assert (normalizer.name, normalizer.scores_by) == ("characters-1", "cer")
    assert normalizer(text) == words
    assert normalizer.characters(words) == characters


def test_spacing_is_no_error_where_writing_has_none():
    score = score_clip("a", "你好 世界", "你好世界", normalizer_for("zh"))
    assert score.words.errors == score.characters.errors == 0
    assert score.characters.reference_length == 4


def test_names_tell_rules_apart():
    names = {code: normalizer_for(code).name for code in ("en", "en-GB", "EN", "cs", "hi", "tr", "zh_TW")}
    assert names == {
        "en": "english-1",
        "en-GB": "english-1",
        "EN": "english-1",
        "cs": "unicode-1",
        "hi": "unicode-1",
        "tr": "unicode-1:tr",
        "zh_TW": "characters-1",
    }
    assert normalizer_for(None).scores_by == normalizer_for("cs").scores_by == "wer"
    assert "digit by digit" in ENGLISH.description


def test_the_raw_text_keeps_everything_but_markers():
    assert strip_markers(" <|0.00|>Hello,  cafe\u0301!<|1.00|>") == "Hello, café!"


def rules(tmp_path, *lines):
    path = tmp_path / "rules.tsv"
    path.write_text("\n".join(lines), "utf-8")
    return read_rules(path)


TABS = "what is written, one tab, what it counts as; what shall not count has the tab and nothing behind it"


@pytest.mark.parametrize(
    ("content", "what", "hint"),
    [
        (b"okay\tok\ncaf\xe9\tcafe\n", "{path}:2 is not UTF-8 text (byte 11)", "save it again as UTF-8"),
        (b"# ours\nokay\tok\num\n", "{path}:3 has 0 tabs where 1 is expected: 'um'", TABS),
        (b"okay ok\n", "{path}:1 has 0 tabs where 1 is expected: 'okay ok'", TABS),
        (b"a\tb\tc\n", "{path}:1 has 2 tabs where 1 is expected: 'a\\tb\\tc'", TABS),
    ],
)
def test_a_file_of_rules_that_is_none_is_refused(tmp_path, content, what, hint):
    path = tmp_path / "rules.tsv"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_rules(path)
    assert (caught.value.what, caught.value.hint) == (what.format(path=path), hint)


def test_rules_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(DataError) as caught:
        read_rules(tmp_path / "none.tsv")
    assert caught.value.what == f"cannot read {tmp_path / 'none.tsv'}: No such file or directory"


@pytest.mark.parametrize("left", ["", "...", "[noise]", "uh"])
def test_a_rule_for_nothing_is_refused_where_the_language_is_known(tmp_path, left):
    listed = rules(tmp_path, "# ours", "okay\tok", f"{left}\tx")
    with pytest.raises(DataError) as caught:
        normalizer_for("en", listed)
    path = tmp_path / "rules.tsv"
    assert caught.value.what == f"{path}:3: nothing is left of {left!r} once it is normalised (english-1)"
    assert caught.value.hint == "delete the line: it has no words to find"
    if left == "uh":
        assert normalizer_for("cs", listed)("uh") == "x", "a word in other languages"


def test_two_rules_with_one_left_side_are_refused(tmp_path):
    listed = rules(tmp_path, "Colour\thue", "", "color!\tshade")
    with pytest.raises(DataError) as caught:
        normalizer_for("en", listed)
    assert caught.value.what == (
        f"{tmp_path / 'rules.tsv'}:3 has the same left side as line 1 once both are normalised: 'color' (english-1)"
    )
    assert caught.value.hint == "keep one of the two lines"
    assert normalizer_for("cs", listed)("colour color") == "hue shade"


@pytest.mark.parametrize(
    ("lines", "text", "words"),
    [
        (["Dr Vora\tdoktor vora"], "Dr. VORA, dr vorax", "doktor vora doctor vorax"),
        (["okay\tOK", "o.k.\tOK"], "Okay, o.k.? okays", "ok ok okays"),
        (["like\t"], "I, like, went", "i went"),
        (["like\t"], "Like!", ""),
        (["a b\tx", "a b c\ty"], "a b c a b a", "y x a"),
        (["a\tb", "b\tc"], "a b a", "b c b"),
        (["a a\ta"], "a a a a a", "a a a"),
        (["five mg\t5 milligrams"], "25 mg, 5 mg, five mg", "2 5 mg 5 milligrams 5 milligrams"),
        (["Written\tcounts as", "a\tb"], "written a", "written b"),
        (["a\tb", "Written\tcounts as"], "written a", "counts as b"),
        (["um\t", "[noise]\t", "a\tb"], "um, [noise] a", "b"),
        ([], "A b.", "a b"),
    ],
)
def test_rules_apply_to_whole_words_the_longest_first_and_once(tmp_path, lines, text, words):
    assert normalizer_for("en", rules(tmp_path, *lines))(text) == words


def test_rules_in_writing_without_spaces(tmp_path):
    normalizer = normalizer_for("zh", rules(tmp_path, "臺\t台", "哈\t"))
    score = score_clip("a", "臺北哈哈", "台北", normalizer)
    assert (score.words.errors, score.characters.errors, score.characters.reference_length) == (0, 0, 2)
    assert normalizer.scores_by == "cer"


def test_the_name_tells_one_file_of_rules_from_another(tmp_path):
    plain = normalizer_for("en")
    first = rules(tmp_path, "okay\tok")
    digits = hashlib.sha256((tmp_path / "rules.tsv").read_bytes()).hexdigest()[:8]
    named = normalizer_for("en", first)
    assert named.name == f"english-1 + rules.tsv {digits}"
    assert named.description == f"{plain.description}; then 1 rule of rules.tsv"
    other = normalizer_for("en", rules(tmp_path, "okay\tok", "um\t"))
    assert len({plain.name, named.name, other.name}) == 3
    assert normalizer_for("en", None) == plain
    assert score_clip("a", "okay", "ok", named).normalizer == named.name


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_rules_from_any_editor(tmp_path, newline, mark):
    path = tmp_path / "rules.tsv"
    path.write_bytes((mark + newline.join(["# ours", "", "ok\tokay", "like\t", ""])).encode())
    assert normalizer_for("cs", read_rules(path))("ok, like so") == "okay so"


@pytest.mark.real
def test_the_short_cut_for_plain_texts_changes_nothing(monkeypatch):
    """Most texts are letters and common punctuation; the rules on digits and symbols are then passed over."""
    from whispertune.scoring import normalize

    fast, slow = normalize._English(), normalize._English()
    slow._field.standardize_numbers.number_words = {"the"}
    words = ["won't", "ma'am", "mr", "Dr.", "he's", "gonna", "the", "colour", "half", "and", "a", "one", "5", "$2"]
    words += ["'bout", "it’s", "prof", "st", "y'all", "let's", "um", "café", "-", ".", "-.", "...", ".um.", "been"]
    words += ["'s got", "'d", "double", "oh", "uh-huh", "second", "'t", "twenty", "five-six", "_um_", "\x1c", "!?"]
    rng = random.Random(4)
    texts = [rng.choice(["", " ", "'"]).join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(700)]
    texts += [" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(700)]
    plain = [fast(text) for text in texts]
    monkeypatch.setattr(normalize, "_PLAIN", re.compile("(?!)"))
    for text, words_of in zip(texts, plain, strict=True):
        assert words_of == slow(text + " the").removesuffix("the").strip(), text
