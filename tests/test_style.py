"""Labels in another style keep their words."""

import pytest

from whispertune.data.style import base_style, sentence_style


@pytest.mark.parametrize(
    ("label", "language", "styled"),
    [
        ("", "en", ""),
        ("HELLO WORLD", "en", "Hello world."),
        ("hello world", "en", "Hello world."),
        ("WHAT IS IT?", "en", "What is it?"),
        ("I'M SURE I SAW IT", "en", "I'm sure I saw it."),
        ("I'M SURE", None, "I'm sure."),  # an .en model names no language
        ("ŽLUŤOUČKÝ KŮŇ", "cs", "Žluťoučký kůň."),
        ("McDonald met an iPhone", "en", "McDonald met an iPhone."),
        ("iPhone met McDonald", "en", "iPhone met McDonald."),
        ("AND THEN,", "en", "And then."),
        ("42", "en", "42."),
        ('HE SAID "NO"', "en", 'He said "no"'),
        ("ISPARTA İZMİR", "tr", "Isparta izmir."),  # ı has the capital I, i has İ
        ("İZMİR", "tr", "İzmir."),
        ("今日は雨です", "ja", "今日は雨です。"),
        ("नमस्ते दुनिया", "hi", "नमस्ते दुनिया।"),
        ("สวัสดีครับ", "th", "สวัสดีครับ"),
    ],
)
def test_sentence_style(label: str, language: str | None, styled: str):
    assert sentence_style(label, language) == styled


def test_base_style_copies_case_and_punctuation_only_where_the_words_agree():
    labels = ["MR SMITH'S DOG RAN", "AND THEN HE SLEPT", "UNHEARD WORDS"]
    heard = "Mr. Smith's dog, Rex, ran. And then he swept!"
    assert base_style(labels, heard, "en") == [
        "Mr. Smith's dog, ran.",
        "And then he slept.",
        "Unheard words.",
    ]


def test_base_style_keeps_every_word_whatever_the_base_model_heard():
    labels = ["THE QUICK BROWN FOX", "JUMPS"]
    for heard in ("", "the the the the the", "Something else entirely.", "Quick, FOX! jumps? The"):
        styled = base_style(labels, heard, "en")
        assert [[w.strip(".,!?").casefold() for w in text.split()] for text in styled] == [
            ["the", "quick", "brown", "fox"],
            ["jumps"],
        ], heard


def test_base_style_matches_letters_written_in_two_ways():
    assert base_style(["CAFE\u0301 OLE"], "Café olé,", "fr") == ["Café ole."]
    assert base_style(["DON’T GO"], "don't GO", "en") == ["Don't GO."]
