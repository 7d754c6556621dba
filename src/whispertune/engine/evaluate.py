"""Clips of a corpus through a model: the texts on which before and after are judged."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from whispertune.clip import Clip
from whispertune.corpus import Corpus
from whispertune.engine.layouts import Layouts
from whispertune.engine.model import LoadedModel
from whispertune.engine.probes import observe
from whispertune.engine.transcribe import DecodeOptions, Progress, transcribe
from whispertune.scoring.align import Rows
from whispertune.scoring.keywords import Keyword

ShouldStop = Callable[[], bool]


class JudgedSet(NamedTuple):
    """Clips that models are judged on."""

    name: str
    corpus: Corpus
    clips: list[Clip]


@dataclass(frozen=True)
class Evaluation:
    """What models are judged on and how they are decoded: the same for each, so that they compare."""

    sets: Sequence[JudgedSet]
    """The test clips first, the guards behind them."""
    layouts: Layouts
    options: DecodeOptions
    keywords: tuple[Keyword, ...] = ()
    seed: int = 0

    def of(
        self,
        loaded: LoadedModel,
        progress: Callable[[str], Progress],
        probes: bool = False,
        prompt: str = "",
        heard: Mapping[str, Rows] | None = None,
    ) -> dict[str, Any]:
        """What a model makes of the sets, and of the probes made from the first of them.

        Args:
            loaded: on its device.
            prompt: the text before every clip, as `initial_prompt` elsewhere.
            heard: rows of sets that need not be decoded, by name.
            progress: gives, for the name of a set, what is called with (clips done, clips in all).

        Returns:
            `{"model", "decode", "sets": {name: [{"id", "language", "reference", "hypothesis"}]}, "seconds":
            {name: decoding time}}`, clips in their order.
        """
        rows, seconds = {}, {}
        for judged in self.sets:
            if heard and judged.name in heard:
                rows[judged.name] = heard[judged.name]
                continue
            begin = time.monotonic()
            rows[judged.name] = self._rows(loaded, judged, progress(judged.name), prompt)
            seconds[judged.name] = round(time.monotonic() - begin, 2)
        system = {
            "model": {"name": loaded.name, "fingerprint": loaded.fingerprint},
            "decode": self.options.as_dict(),
            "sets": rows,
            "seconds": seconds,
        }
        if probes:
            _, corpus, clips = self.sets[0]
            system["probes"] = observe(
                loaded,
                corpus,
                clips,
                self.layouts,
                self.options,
                keywords=self.keywords,
                seed=self.seed,
                progress=progress("probes"),
            )
        return system

    def language_of(self, clip: Clip) -> str:
        """The language a clip is decoded in; `en` for an `.en` model, which is told none."""
        return self.layouts.of(clip).language or "en"

    def _rows(
        self, loaded: LoadedModel, judged: JudgedSet, progress: Progress, prompt: str
    ) -> list[dict[str, str]]:
        texts = transcribe(
            loaded.model,
            [judged.corpus.audio(clip) for clip in judged.clips],
            [self.layouts.of(clip) for clip in judged.clips],
            self.options,
            progress,
            [prompt] * len(judged.clips),
        )
        return [
            {
                "id": clip.id,
                "language": self.language_of(clip),
                "reference": clip.text,
                "hypothesis": text,
            }
            for clip, text in zip(judged.clips, texts, strict=True)
        ]
