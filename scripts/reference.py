"""Write docs/recipe.md and docs/cli.md from the code: `make docs`. A test keeps them equal to it."""

from pathlib import Path
from typing import Any

import typer

from whispertune.cli import app
from whispertune.reference import recipe_page

DOCS = Path(__file__).resolve().parent.parent / "docs"

_EXIT_CODES = """\
| exit code | what it says |
|---|---|
| 0 | done |
| 1 | the input or the machine is at fault: one line says what, where and by how much, another what to do |
| 2 | the words of the command do not fit |
| 3 | what was found would hurt: rows rejected, warnings of `check`, the verdict *worse* |
| 130 | stopped by you (Ctrl-C, SIGTERM, a closed terminal or pipe), everything saved: the same command goes on |

`train --require better` exits with 3 for any other verdict, too."""


def cli_page() -> str:
    """docs/cli.md."""
    lines = [
        "# The command line",
        "",
        "Every command takes `--json`: stdout is then data and nothing else, and the rest goes to stderr. "
        "Every command ends with the next one to try. What is wrong is said in one line, with a hint.",
        "",
        _EXIT_CODES,
        "",
        "`whispertune.toml` in the folder where you work holds defaults for `model` and `language`. "
        "A MODEL is a size (tiny … large-v3-turbo), a Hub id, a Hugging Face or CTranslate2 folder, an "
        "OpenAI `.pt`, or a run. A CORPUS is what `import` made, or any source that it reads: that is "
        "imported once and remembered.",
        "",
        "This page is generated from `src/whispertune/cli.py` by `make docs`.",
    ]
    for path, command in _commands("whispertune", typer.main.get_command(app)):
        lines += ["", f"## {path}", "", *_command(path, command)]
    return "\n".join(lines) + "\n"


def _commands(path: str, command: Any) -> list[tuple[str, Any]]:
    """(words, command) of every command; a group that does something alone comes before its own."""
    inner = getattr(command, "commands", None)
    if inner is None:
        return [(path, command)]
    below = [found for name, each in inner.items() for found in _commands(f"{path} {name}", each)]
    return below if path == "whispertune" else [(path, command), *below]


def _command(path: str, command: Any) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    required = [f"{p.opts[0]} {_metavar(p)}" for p in options if p.required]
    words = [path, *(_argument(p) for p in arguments), *required, "[OPTIONS]"]
    lines = ["```", " ".join(words), "```", "", " ".join((command.help or "").split())]
    rows = [(f"`{_metavar(p)}`", p.help) for p in arguments if p.help]
    rows += [(f"`{', '.join(p.opts)}{_value(p)}`", p.help or "") for p in options if p.name != "help"]
    return [
        *lines,
        "",
        "| word | what it says |",
        "|---|---|",
        *(f"| {word} | {text} |" for word, text in rows),
    ]


def _argument(parameter: Any) -> str:
    word = _metavar(parameter) + ("…" if parameter.nargs == -1 else "")
    return word if parameter.required else f"[{word}]"


def _metavar(parameter: Any) -> str:
    return parameter.metavar or parameter.name.upper()


def _value(parameter: Any) -> str:
    if parameter.is_flag:
        return ""
    return f" {parameter.metavar or parameter.opts[0].lstrip('-').upper().replace('-', '_')}" + (
        " …" if parameter.multiple else ""
    )


if __name__ == "__main__":
    (DOCS / "recipe.md").write_text(recipe_page(), "utf-8")
    (DOCS / "cli.md").write_text(cli_page(), "utf-8")
