"""What the user set, in one recipe: defaults, `whispertune.toml`, a recipe file, options, `--set`."""

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whispertune import recipe as recipes
from whispertune.errors import UsageError
from whispertune.recipe import Recipe

PROJECT_FILE = "whispertune.toml"
PROJECT_KEYS = {"model": "model.name", "language": "model.language"}
"""What the project file may set, and the recipe key of each."""


def chosen_recipe(
    file: Path | None, options: Mapping[str, Any], assignments: Sequence[str] | None = None
) -> Recipe:
    """One recipe from all that was said; the later in this order wins: defaults, the project file in the
    working folder, a recipe file, options (by recipe key; None is unsaid), `--set`.

    Raises:
        UsageError: a key or a value is wrong; which, and where, is said.
    """
    base = recipes.load(file) if file is not None else Recipe()
    defaults = {
        key: value
        for key, value in _project_defaults().items()
        if not getattr(base.model, key.removeprefix("model."))
    }
    given = {key: value for key, value in options.items() if value is not None}
    return base.with_changes({**defaults, **given, **recipes.parse_assignments(assignments or [])})


def require_model_and_corpus(chosen: Recipe) -> None:
    """Raises UsageError where a training lacks one of the two."""
    if not chosen.model.name:
        raise UsageError(
            "which model? --model is missing", f"for example --model tiny.en, or model = in {PROJECT_FILE}"
        )
    if not chosen.data.corpus:
        raise UsageError("tuned on what? CORPUS is missing", "whispertune train CORPUS --model tiny.en")


def _project_defaults() -> dict[str, Any]:
    """What whispertune.toml says, by recipe key."""
    path = Path(PROJECT_FILE)
    if not os.path.lexists(path):
        return {}
    if not path.is_file():
        raise UsageError(f"{PROJECT_FILE} is no file", "move away what has its name here")
    try:
        found = tomllib.loads(path.read_text("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{PROJECT_FILE} is not TOML: {error}", 'for example: model = "tiny.en"') from None
    for key in found:
        if key not in PROJECT_KEYS:
            raise UsageError(
                f"{PROJECT_FILE} has no key '{key}'", f"its keys are {' and '.join(PROJECT_KEYS)}"
            )
    return {PROJECT_KEYS[key]: value for key, value in found.items()}
