"""What would hurt a training run, found before it: each check is a function from values to findings.

`reject` keeps a row out of the corpus, `warn` keeps it and says why to look at it, `note` only tells.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from whispertune.clip import SAMPLE_RATE, WINDOW_S, WINDOW_SAMPLES, Clip, Finding
from whispertune.corpus import Corpus
from whispertune.data.audio import measure
from whispertune.data.segment import speech_bounds
from whispertune.data.split import text_key
from whispertune.data.text import label_style, main_script, spoken_letters, wrong_script
from whispertune.scoring.bootstrap import groups_of

MIN_S = 0.1
"""Shorter than the shortest word."""
MAX_LETTERS_S = 40.0
"""Ten syllables a second, about four written characters each, is where articulation ends (the fastest rap
reaches 10.7; ordinary speech has 4 to 6 a second, the fastest clip of our read corpora 21 characters). More
text was not spoken."""
FAST_LETTERS_S = 27.0
"""Seven syllables a second for a whole clip is faster than hasty talk: text and audio may not belong
together."""
QUIET_DBFS = -50.0
"""Read speech lies between -46 and -10 dB RMS in the real corpora we measured; 16-bit hiss begins to matter
below -50."""
CLIPPED_SHARE = 0.005
"""Loud but sound recordings reach full scale in up to 0.1 % of their samples."""
DC_SHARE = 0.05
"""Of full scale; above it the waveform is far off centre, a fault of the recording device."""
SILENT_SHARE = 0.4
MIN_CLIPS_FOR_SCRIPT = 10


def check_audio(name: str, samples: np.ndarray) -> list[Finding]:
    """Findings on one clip's int16 `(n,)`: length, silence, clipping, level, DC, pauses."""
    count = len(samples)
    duration_s = count / SAMPLE_RATE
    if count == 0:
        return [Finding("reject", name, "no_samples", "no samples")]
    if duration_s < MIN_S:
        return [Finding("reject", name, "too_short", f"{duration_s:.4f} s long; {MIN_S} s is the least")]
    levels = measure(samples)
    if levels.digital_silence:
        return [
            Finding("reject", name, "silence", f"{duration_s:.2f} s of digital silence: nothing was recorded")
        ]
    speech = speech_bounds(samples)
    if count > WINDOW_SAMPLES:
        # 480,001 samples are 30.0001 s: rounded, the message would contradict itself
        limit = f"Whisper hears {WINDOW_S:.0f} s ({WINDOW_SAMPLES:,})"
        message = f"{duration_s:.4f} s ({count:,} samples) long; {limit}"
        if speech and speech[-1][1] - speech[0][0] <= WINDOW_SAMPLES:
            first, end = speech[0][0] / SAMPLE_RATE, speech[-1][1] / SAMPLE_RATE
            message += (
                f"; all speech seems to lie from {first:.2f} to {end:.2f} s: give these as start and end"
            )
        return [Finding("reject", name, "too_long", message)]
    findings = []
    if levels.clipped_share > CLIPPED_SHARE:
        message = f"{levels.clipped_share:.1%} of the samples are at full scale: recorded too loud"
        findings.append(Finding("warn", name, "clipping", message))
    if levels.rms_dbfs < QUIET_DBFS:
        message = f"{levels.rms_dbfs:.0f} dBFS on average; below {QUIET_DBFS:.0f} little is left of speech"
        findings.append(Finding("warn", name, "quiet", message))
    if abs(levels.dc) > DC_SHARE:
        message = f"off centre by {levels.dc:+.2f} of full scale (DC offset); up to {DC_SHARE} is usual"
        findings.append(Finding("warn", name, "dc_offset", message))
    silent = 1 - sum(end - first for first, end in speech) / count
    if silent > SILENT_SHARE:
        message = f"{silent:.0%} of its {duration_s:.2f} s hold no speech; up to {SILENT_SHARE:.0%} is usual"
        findings.append(Finding("warn", name, "mostly_silent", message))
    return findings


def check_fit(name: str, text: str, samples: int, language: str | None = None) -> list[Finding]:
    """Can this text have been spoken in this many samples, and is it written in this language's script?"""
    findings = []
    letters, duration_s = spoken_letters(text), samples / SAMPLE_RATE
    rate = letters / duration_s if duration_s else float("inf")
    if rate > MAX_LETTERS_S:
        message = (
            f"{letters} characters of text for {duration_s:.2f} s of audio: {rate:.0f} a second, "
            f"and nobody speaks more than {MAX_LETTERS_S:.0f}"
        )
        findings.append(Finding("reject", name, "text_too_long", message))
    elif rate > FAST_LETTERS_S:
        message = (
            f"{rate:.0f} characters of text a second; above {FAST_LETTERS_S:.0f} "
            "text and audio seldom belong together"
        )
        findings.append(Finding("warn", name, "fast", message))
    if language and (script := wrong_script(text, language)):
        message = f"the text is in {script.capitalize()} script, the language is stated as '{language}'"
        findings.append(Finding("warn", name, "script", message))
    return findings


def check_tokens(clips: Iterable[Clip], count: Callable[[str], int], limit: int) -> list[Finding]:
    """Reject the clips whose label is longer than the model takes.

    `count(text)` is the length of the label sequence as it is fed to the model (special tokens included,
    start token cut); `limit` is the model's `max_target_positions`.
    """
    findings = []
    for clip in clips:
        tokens = count(clip.text)
        if tokens > limit:
            message = f"{tokens} tokens as the model counts them; it takes {limit}"
            findings.append(Finding("reject", clip.file_name, "too_many_tokens", message))
    return findings


def check_corpus(corpus: Corpus) -> list[Finding]:
    """All there is to say of a corpus: what import found in single files, and what `check_clips` finds.

    What import left out is in `corpus.rejected`.
    """
    return [*corpus.findings, *check_clips(corpus.clips, corpus.audio_sha)]


def check_clips(clips: Sequence[Clip], audio_sha: Callable[[Clip], str]) -> list[Finding]:
    """What only shows with all clips side by side: copies, overlaps, leaks, label style."""
    return [
        *_copies(clips, audio_sha),
        *_overlaps(clips),
        *_scripts(clips),
        *_leaks(clips, audio_sha),
        *_style(clips),
        *_sides(clips),
    ]


def _copies(clips: Sequence[Clip], audio_sha: Callable[[Clip], str]) -> list[Finding]:
    findings = []
    first: dict[str, Clip] = {}
    for clip in clips:
        known = first.setdefault(audio_sha(clip), clip)
        if known is clip:
            continue
        if text_key(known.text) == text_key(clip.text):
            message = f"the same audio and text as {known.file_name}"
            findings.append(Finding("warn", clip.file_name, "duplicate", message))
        else:
            message = f"the same audio as {known.file_name}, with another text: at least one of them is wrong"
            findings.append(Finding("warn", clip.file_name, "conflicting_texts", message))
    return findings


def _overlaps(clips: Sequence[Clip]) -> list[Finding]:
    findings = []
    last: dict[tuple[str, str], Clip] = {}
    for clip in sorted(clips, key=lambda c: (c.shard, c.offset)):
        before = last.get((clip.shard, clip.recording))
        if before and before.offset + before.samples > clip.offset:
            shared_s = (
                min(before.offset + before.samples, clip.offset + clip.samples) - clip.offset
            ) / SAMPLE_RATE
            message = f"overlaps the clip before it in the recording by {shared_s:.2f} s"
            findings.append(Finding("warn", clip.file_name, "overlap", message))
        if not before or before.offset + before.samples < clip.offset + clip.samples:
            last[clip.shard, clip.recording] = clip
    return findings


def _scripts(clips: Sequence[Clip]) -> list[Finding]:
    """Where no language is stated, a text in another script than nearly all others."""
    scripts = [(c, main_script(c.text)) for c in clips if not c.language]
    counts = Counter(script for _, script in scripts if script)
    if sum(counts.values()) < MIN_CLIPS_FOR_SCRIPT:
        return []
    usual, times = counts.most_common(1)[0]
    if times < 0.9 * sum(counts.values()):
        return []
    findings = []
    for clip, script in scripts:
        if script and script != usual:
            message = (
                f"the text is in {script.capitalize()} script, {times} others are in {usual.capitalize()}"
            )
            findings.append(Finding("warn", clip.file_name, "script", message))
    return findings


def _leaks(clips: Sequence[Clip], audio_sha: Callable[[Clip], str]) -> list[Finding]:
    """What test (and dev) share with train, with counts: identical audio, speakers, recordings, sentences."""
    kinds: dict[str, Callable[[Clip], str | None]] = {
        "audio": audio_sha,
        "speakers": lambda c: c.speaker,
        "recordings": lambda c: c.recording,
        "sentences": lambda c: text_key(c.text),
    }
    meaning = {
        "audio": "what is tested was heard in training, so a gain may be memory",
        "speakers": "the result speaks for these voices, not for new ones",
        "recordings": "the result speaks for these recordings, not for new ones",
        "sentences": "the model may have learned them by heart",
    }
    findings = []
    train = [c for c in clips if c.split == "train"]
    for kind, of in kinds.items():
        known = {of(c) for c in train} - {None}
        for side in ("test", "dev"):
            if kind != "audio" and side == "dev":
                continue  # dev only chooses a checkpoint: speakers and sentences of train are no harm there
            own = [c for c in clips if c.split == side and of(c) in known]
            if not own:
                continue
            shared, total = len({of(c) for c in own}), sum(c.split == side for c in clips)
            of_all = f"{len(own):,} of {total:,} clips"
            named = kind.removesuffix("s") if shared == 1 else kind
            message = f"{side} shares {shared:,} {named} with train ({of_all}): {meaning[kind]}"
            serious = kind in ("audio", "speakers")
            findings.append(Finding("warn" if serious else "note", "", f"shared_{kind}", message))
    return findings


def _style(clips: Sequence[Clip]) -> list[Finding]:
    style = label_style(c.text for c in clips)
    findings = []
    if style.shouts:
        message = (
            f"{style.capitals:.0%} of the texts are all capitals: taught as they are, the model would shout "
            "(text_style = base copies case and punctuation from the model's own transcript)"
        )
        findings.append(Finding("warn", "", "capitals", message))
    if style.bare:
        message = (
            f"{style.unpunctuated:.0%} of the texts have no punctuation: taught as they are, "
            "the model would lose its own"
        )
        findings.append(Finding("warn", "", "unpunctuated", message))
    return findings


def _sides(clips: Sequence[Clip]) -> list[Finding]:
    seconds: dict[str, float] = defaultdict(float)
    for clip in clips:
        seconds[clip.split] += clip.duration_s
    if not seconds["train"]:
        return []  # all test: a corpus that guards
    meaning = {
        "test": "whether training helps cannot be said",
        "dev": "which checkpoint is best cannot be chosen on clips of its own",
    }
    findings = [
        Finding("warn", "", f"no_{side}", f"no clip is left for {side}: {what}")
        for side, what in meaning.items()
        if not seconds[side]
    ]
    if seconds["test"] and (few := groups_of(c for c in clips if c.split == "test").too_few):
        findings.append(Finding("warn", "", "few_test", few))
    return findings
