"""What a run is judged on and by: its test clips, its guards, and the terms, all fixed before training."""

import itertools
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from whispertune.clip import Clip
from whispertune.corpus import Corpus
from whispertune.data.split import capped
from whispertune.delivery import halves
from whispertune.engine.evaluate import JudgedSet
from whispertune.engine.layouts import Layouts
from whispertune.errors import DataError, UsageError
from whispertune.report import has_words
from whispertune.run import Run
from whispertune.scoring.bootstrap import groups_of
from whispertune.scoring.terms import Terms, terms_of


class Judging:
    """The sets that decide, and how they are counted.

    Args:
        own: clips of the corpus that are judged in place of its test split.
    """

    def __init__(
        self,
        run: Run,
        corpus: Corpus,
        guards: Sequence[Corpus],
        layouts: Layouts,
        own: Sequence[Clip] | None = None,
    ) -> None:
        self._own = own
        self._run = run
        self._corpus = corpus
        self._guards = guards
        self._layouts = layouts

    @cached_property
    def sets(self) -> list[JudgedSet]:
        """The clips that are judged: the corpus' test split, then each guard."""
        own = self._corpus.split("test") if self._own is None else self._own
        own = capped(own, self._run.recipe.eval.test_minutes)
        return [JudgedSet("test", self._corpus, own), *self._split_guards[0]]

    @property
    def choosing(self) -> list[JudgedSet]:
        """Clips of the guards that choose the delivered weights and are not reported: only on --recover."""
        return self._split_guards[1]

    @cached_property
    def terms(self) -> Terms:
        """What decides; the files that the recipe names are read as they were when the run began."""
        section, clips = self._run.recipe.eval, self.sets[0].clips
        frozen = {
            knob: str(self._run.keep(name, Path(given)))
            for knob, name in (("keywords", "keywords.txt"), ("normalizer", "rules.tsv"))
            if (given := getattr(section, knob))
        }
        languages = {clip.id: self._layouts.of(clip).language or "en" for clip in clips}
        return terms_of(section.model_copy(update=frozen), clips, languages)

    def require(self, dev_clips: Sequence[Clip]) -> str | None:
        """Refuse, before anything is trained, what could not be judged afterwards.

        Returns:
            Why there will be no verdict, where the test clips are too few for an interval.

        Raises:
            DataError: a set has no words or no clips, or a language that the model lacks.
            UsageError: `--recover` without a guard or dev clips to choose by.
        """
        for name, _, clips in [*self.sets, *self.choosing]:
            languages = [self._layouts.of(clip).language for clip in clips]
            if clips and not has_words([clip.text for clip in clips], languages):
                raise DataError(f"no text of {name} has a word in it: nothing could be judged on it")
        if not self.sets[0].clips:
            raise DataError(
                f"{self._corpus.folder} has no test clips, so nobody could say whether the model got better",
                "import it again without a split column: 10 % are then held out",
            )
        for language in {self._layouts.of(clip).language for judged in self.sets for clip in judged.clips}:
            self.terms.normalizer(language or "en")
        if self._run.recipe.train.share == "recover" and not (self._guards and dev_clips):
            lacking = "a guard" if not self._guards else "dev clips"
            raise UsageError(
                f"--recover chooses by a guard and by dev clips, and there is no {lacking}",
                "--guard FOLDER" if not self._guards else "import the corpus again with --split 80/10/10",
            )
        return groups_of(self.terms.in_goal(self.sets[0].clips)).too_few

    @cached_property
    def _split_guards(self) -> tuple[list[JudgedSet], list[JudgedSet]]:
        """What of each guard is reported, and what chooses.

        Of a guard that is its own test split, where its source names one; else all: nothing is trained on it.
        """
        reported: list[JudgedSet] = []
        choosing: list[JudgedSet] = []
        recipe = self._run.recipe
        for guard in self._guards:
            name, taken = guard.folder.absolute().name, ["test", *(judged.name for judged in reported)]
            if name in taken:
                name = next(n for i in itertools.count(2) if (n := f"{name}-{i}") not in taken)
            clips = guard.split("test") if guard.about.get("test") == "given" else guard.clips
            clips = capped(clips, recipe.eval.test_minutes)
            if recipe.train.share == "recover":
                half, clips = halves(clips, name)
                choosing.append(JudgedSet(name, guard, half))
            reported.append(JudgedSet(name, guard, clips))
        return reported, choosing
