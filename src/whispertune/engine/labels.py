"""The texts that are learned: the corpus' own, or the same words in another style."""

from collections.abc import Callable, Sequence

from whispertune.clip import Clip
from whispertune.data.style import base_style, sentence_style
from whispertune.engine.layouts import Layouts
from whispertune.recipe import TextStyle

Hear = Callable[[Sequence[Clip]], list[tuple[list[Clip], str]]]
"""Clips in the groups in which a model heard them, and what it wrote for each group."""


def styled_labels(clips: Sequence[Clip], style: TextStyle, layouts: Layouts, hear: Hear) -> dict[str, str]:
    """Label by clip id, in a style; a clip that is not there keeps its text.

    Args:
        hear: asks the base model; called for `base` only.
    """
    if style == "keep":
        return {}
    if style == "sentence":
        styled = {clip.id: sentence_style(clip.text, layouts.of(clip).language) for clip in clips}
    else:
        styled = {}
        for group, heard in hear(clips):
            texts = base_style([clip.text for clip in group], heard, layouts.of(group[0]).language)
            styled |= zip((clip.id for clip in group), texts, strict=True)
    # A full stop more can be one token too many.
    fits = {
        clip.id
        for clip in clips
        if layouts.of(clip).label_length(styled[clip.id]) <= layouts.of(clip).max_target_positions
    }
    return {name: text for name, text in styled.items() if name in fits}
