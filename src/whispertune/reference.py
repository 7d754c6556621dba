"""The recipe as a page and as a template, both from its fields."""

import textwrap

from whispertune import recipe as recipes
from whispertune.recipe import Knob, Recipe, keys

_WIDTH = 100


def template() -> str:
    """A TOML recipe with every key commented out at its default, so that it changes nothing as it is."""
    lines = [
        "# A recipe for `whispertune train --recipe FILE`. A key left out or commented out, as all are here,",
        "# has the default shown. Unset means that the plan chooses, and says what it chose and why.",
    ]
    for section, knobs in _sections():
        lines += ["", f"[{section}]  # {_about(section)}"]
        for knob in knobs:
            text = f"{knob.description} ({knob.kind})"
            lines += ["", *textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")]
            name = knob.key.partition(".")[2]
            lines.append(
                f"# {name} = {_default(knob)}" if knob.default is not None else f"# {name} =  # unset"
            )
    return "\n".join(lines) + "\n"


def recipe_page() -> str:
    """docs/recipe.md."""
    lines = [
        "# The recipe",
        "",
        "Everything that defines a run, once. `--set KEY=VALUE` sets any key, `--recipe FILE` reads a TOML "
        "file of them, `whispertune recipe` prints one to start from. Where the default is *unset* the plan "
        "chooses, for this model, corpus and machine, and says what and why.",
        "",
        "This page is generated from `src/whispertune/recipe.py` by `make docs`.",
    ]
    for section, knobs in _sections():
        lines += [
            "",
            f"## {section}",
            "",
            _about(section),
            "",
            "| key | value | default | why |",
            "|---|---|---|---|",
        ]
        for knob in knobs:
            default = f"`{_default(knob)}`" if knob.default is not None else "*unset*"
            lines.append(f"| `{knob.key}` | {knob.kind} | {default} | {knob.description} |")
    return "\n".join(lines) + "\n"


def _sections() -> list[tuple[str, list[Knob]]]:
    knobs = keys()
    return [(name, [k for k in knobs if k.key.startswith(f"{name}.")]) for name in Recipe.model_fields]


def _about(section: str) -> str:
    return (Recipe.model_fields[section].annotation.__doc__ or "").strip()  # type: ignore[union-attr]


def _default(knob: Knob) -> str:
    return recipes.to_toml_value(knob.default)
