"""Checks: each finding with its message and both numbers."""

import numpy as np
import pytest

from whispertune.clip import Clip, Finding
from whispertune.data.text import clean_text, label_style, spoken_letters, wrong_script
from whispertune.data.validate import check_audio, check_clips, check_fit, check_tokens


def tone(samples: int, level: float = 0.3) -> np.ndarray:
    return (np.sin(np.arange(samples) * 0.17) * level * 32_767).astype(np.int16)


def reasons(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(f.severity, f.reason) for f in findings]


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


@pytest.mark.parametrize(
    ("samples", "severity", "reason", "message"),
    [
        (tone(0), "reject", "no_samples", "no samples"),
        (tone(1_599), "reject", "too_short", "0.0999 s long; 0.1 s is the least"),
        (np.full(16_000, 5_000, np.int16), "reject", "silence", "1.00 s of digital silence: nothing was recorded"),
        (tone(16_000, 0.001), "warn", "quiet", "-63 dBFS on average; below -50 little is left of speech"),
        (tone(16_000) + np.int16(6_554), "warn", "dc_offset", "off centre by +0.20 of full scale (DC offset); up to 0.05 is usual"),
    ],
)  # fmt: skip
def test_audio_findings(samples: np.ndarray, severity: str, reason: str, message: str) -> None:
    finding = only(check_audio("x.wav", samples))
    assert (finding.severity, finding.reason, finding.message) == (severity, reason, message)
    assert finding.file_name == "x.wav"


def test_clipping_and_pauses() -> None:
    loud = np.clip(tone(16_000).astype(int) * 9, -32_768, 32_767).astype(np.int16)
    assert only(check_audio("x", loud)).message.endswith(
        "of the samples are at full scale: recorded too loud"
    )
    padded = np.concatenate([np.zeros(16_000, np.int16), tone(16_000)])
    assert only(check_audio("x", padded)).reason == "mostly_silent"
    assert "of its 2.00 s hold no speech; up to 40% is usual" in only(check_audio("x", padded)).message
    assert check_audio("x", tone(16_000)) == []


def test_case_1_480000_samples_are_kept_and_480001_rejected_with_the_length() -> None:
    assert check_audio("x", tone(480_000)) == []
    finding = only(check_audio("x", tone(480_001)))
    assert finding.reason == "too_long"
    assert finding.message == "30.0001 s (480,001 samples) long; Whisper hears 30 s (480,000)"
    padded = np.concatenate([np.zeros(320_000, np.int16), tone(160_000), np.zeros(160_000, np.int16)])
    assert (
        "all speech seems to lie from 19.90 to 30.10 s: give these as start and end"
        in only(check_audio("x", padded)).message
    )


def test_text_that_cannot_fit() -> None:
    assert check_fit("x", "a" * 27, 16_000) == []
    assert only(check_fit("x", "a" * 30, 16_000)).message == (
        "30 characters of text a second; above 27 text and audio seldom belong together"
    )
    rejected = only(check_fit("x", "word " * 100, 5 * 16_000))
    assert reasons([rejected]) == [("reject", "text_too_long")]
    assert rejected.message == (
        "500 characters of text for 5.00 s of audio: 100 a second, and nobody speaks more than 40"
    )
    assert spoken_letters("你好 ok!") == 11  # two syllables of four, a space, two letters
    assert reasons(check_fit("x", "你" * 12, 16_000)) == [("reject", "text_too_long")]


def test_script_against_language() -> None:
    finding = only(check_fit("x", "שלום עולם", 160_000, "en"))
    assert (finding.severity, finding.message) == (
        "warn",
        "the text is in Hebrew script, the language is stated as 'en'",
    )
    for text, language in (
        ("שלום", "he"),
        ("Ahoj", "cs"),
        ("你好", "zh"),
        ("こんにちは", "ja"),
        ("123", "en"),
        ("שלום", "xx"),
    ):
        assert wrong_script(text, language) is None
    assert wrong_script("Привет", "en") == "CYRILLIC"


@pytest.mark.parametrize(
    ("text", "clean", "found"),
    [
        ("plain text, kept. ", "plain text, kept.", []),
        ("\ufeff<b>And so</b>\tmy fellow&nbsp;Americans,\r\nask not", "And so my fellow Americans, ask not", ["html", "control_characters"]),
        ("<|startoftranscript|><|en|><|0.00|> hi there<|endoftext|>", "hi there", ["special_tokens"]),
        ("AT&T; 2 < 3 > 1 &unknown; <x>", "AT&T; 2 < 3 > 1 &unknown; <x>", []),
        ("AT&amp;T &copy", "AT&T &copy", ["html"]),
        ("bell\x07 rings\x00", "bell rings", ["control_characters"]),
        ("cafe\u0301", "caf\u00e9", []),
        ("می\u200cروم", "می\u200cروم", []),
        ("lost \ufffd", "lost \ufffd", ["encoding"]),
    ],
)  # fmt: skip
def test_clean_text_mends_with_a_warning(text: str, clean: str, found: list[str]) -> None:
    cleaned, findings = clean_text(text, "x")
    assert cleaned == clean
    assert reasons(findings) == [("warn", reason) for reason in found]


@pytest.mark.parametrize(
    ("text", "reason", "message"),
    [
        ("", "empty_text", "the text is empty"),
        (" \r\n\t", "empty_text", "the text is empty"),
        ("...", "empty_text", "the text '...' has no letter or digit"),
        ("<|startofprev|> before <|startoftranscript|> now", "special_tokens", "the text holds <|startofprev|>, <|startoftranscript|>: part of it is marked as not heard"),
        ("<|nospeech|>", "special_tokens", "the text holds <|nospeech|>: part of it is marked as not heard"),
    ],
)  # fmt: skip
def test_clean_text_rejects(text: str, reason: str, message: str) -> None:
    _, findings = clean_text(text, "x")
    assert (findings[-1].severity, findings[-1].reason, findings[-1].message) == ("reject", reason, message)


def clip(i: int, **fields) -> Clip:
    own = {"text": f"Sentence number {i}.", "offset": i * 20_000, "recording": f"f{i}", "split": "train"}
    return Clip(**{"id": f"c{i}", "file_name": f"f{i}.wav", "shard": "s", "samples": 16_000, **own, **fields})


def by_id(c: Clip) -> str:
    return c.extra.get("audio_sha", c.id)


def corpus_of(count: int) -> list[Clip]:
    return [clip(i, split="test" if i < 6 else "dev" if i == 6 else "train") for i in range(count)]


def test_case_2_449_tokens_are_rejected_as_the_model_counts_them() -> None:
    clips = [clip(1, text="x" * 448), clip(2, text="x" * 449)]
    finding = only(check_tokens(clips, len, 448))
    assert finding == Finding(
        "reject", "f2.wav", "too_many_tokens", "449 tokens as the model counts them; it takes 448"
    )


def test_a_sound_corpus_has_nothing_to_say() -> None:
    assert check_clips(corpus_of(20), by_id) == []
    assert check_clips([clip(i, split="test") for i in range(5)], by_id) == []


def test_copies_of_audio() -> None:
    same = {"extra": {"audio_sha": "h"}}
    clips = [
        *corpus_of(10),
        clip(16, text="Hello!", **same),
        clip(17, text="hello", **same),
        clip(18, text="Bye.", **same),
    ]
    found = check_clips(clips, by_id)
    assert reasons(found) == [("warn", "duplicate"), ("warn", "conflicting_texts")]
    assert found[0].message == "the same audio and text as f16.wav"
    assert found[1].message == "the same audio as f16.wav, with another text: at least one of them is wrong"


def test_overlapping_segments() -> None:
    clips = [
        *corpus_of(10),
        clip(16, recording="r", offset=0, samples=32_000),
        clip(17, recording="r", offset=24_000),
    ]
    assert only(check_clips(clips, by_id)).message == "overlaps the clip before it in the recording by 0.50 s"


def test_case_11_a_split_that_leaks_is_told_with_counts() -> None:
    clips = [
        clip(i, speaker=f"p{i % 4}", extra={"audio_sha": f"h{i % 7}"}, text=f"Sentence {i % 9}.")
        for i in range(20)
    ]
    clips += [
        clip(i, speaker=f"p{i % 8}", extra={"audio_sha": f"h{i}"}, text=f"Sentence {i}.", split="test")
        for i in range(20)
    ]
    clips.append(clip(50, split="dev"))
    found = {f.reason: f for f in check_clips(clips, by_id) if not f.file_name}
    assert found["shared_audio"].message == (
        "test shares 7 audio with train (7 of 20 clips): "
        "what is tested was heard in training, so a gain may be memory"
    )
    assert found["shared_speakers"].message.startswith("test shares 4 speakers with train (12 of 20 clips): ")
    assert found["shared_sentences"].message.startswith(
        "test shares 9 sentences with train (9 of 20 clips): "
    )
    assert found["shared_audio"].severity == found["shared_speakers"].severity == "warn"


def test_a_lone_script_and_a_missing_side() -> None:
    clips = [*corpus_of(30), clip(40, text="שלום עולם")]
    assert only(check_clips(clips, by_id)).message == "the text is in Hebrew script, 30 others are in Latin"
    found = check_clips([clip(i) for i in range(4)], by_id)
    assert [f.message for f in found] == [
        "no clip is left for test: whether training helps cannot be said",
        "no clip is left for dev: which checkpoint is best cannot be chosen on clips of its own",
    ]


def test_too_few_test_clips_are_told_before_anything_is_trained() -> None:
    clips = [clip(i, split="test" if i < 4 else "dev" if i == 4 else "train") for i in range(20)]
    assert only(check_clips(clips, by_id)).message == (
        "4 test clips in 4 groups (clip): with fewer than 6 there is no interval and so no verdict; "
        "20 or more are wanted"
    )


def test_label_style_is_measured_and_told() -> None:
    style = label_style(["DON'T GO", "WELL DONE", "Hello there.", "no capitals", "I", "42", "你好"])
    assert (style.capitals, style.lower, style.unpunctuated) == (0.5, 0.25, 4 / 5)
    assert not style.is_unstyled
    assert label_style([]).unpunctuated == 0
    shouting = [
        clip(i, text=f"SENTENCE {i} WITHOUT MARKS", split=("test", "dev", "train")[max(0, min(i - 5, 2))])
        for i in range(14)
    ]
    found = check_clips(shouting, by_id)
    assert [f.reason for f in found] == ["capitals", "unpunctuated"]
    assert found[0].message.startswith(
        "100% of the texts are all capitals: taught as they are, the model would shout"
    )
    assert found[1].message.startswith("100% of the texts have no punctuation: taught as they are")
    assert label_style(["A CHILD", "A DOG"]).is_unstyled
