"""The recipe: what does not fit is named with what would; every knob is documented where it lives."""

import datetime
import runpy
import tomllib
from pathlib import Path

import pytest

from whispertune import recipe as recipes
from whispertune.errors import UsageError
from whispertune.recipe import Recipe, keys, knob, load, parse_assignments
from whispertune.reference import recipe_page, template

ROOT = Path(__file__).parent.parent


def changed(*assignments: str) -> Recipe:
    return Recipe().with_changes(parse_assignments(assignments))


@pytest.mark.parametrize(
    ("assignment", "what", "hint"),
    [
        (
            "train.learning_rat=1",
            "there is no recipe key 'train.learning_rat'",
            "did you mean train.learning_rate?",
        ),
        ("learning_rate=1", "there is no recipe key 'learning_rate'", "did you mean train.learning_rate?"),
        ("quux=1", "there is no recipe key 'quux'", "whispertune recipe lists them"),
        ("train.steps", "--set train.steps: expected key=value", "for example --set train.passes=2"),
        (
            "train.steps=0",
            "a recipe value does not fit: train.steps = 0; expected whole number ≥ 1 or unset",
            "train.steps: Length in updates; overrides passes.",
        ),
        (
            "train.method=half",
            "a recipe value does not fit: train.method = 'half'; expected full, decoder or lora",
            "train.method: Which parameters train: all, the decoder's, or LoRA's.",
        ),
        (
            "train.learning_rate=nan",
            "a recipe value does not fit: train.learning_rate = nan; expected number > 0 or unset",
            f"train.learning_rate: {knob('train.learning_rate').description}",
        ),
        (
            "train.learning_rate=inf",
            "a recipe value does not fit: train.learning_rate = inf; expected number > 0 or unset",
            f"train.learning_rate: {knob('train.learning_rate').description}",
        ),
        (
            "eval.test_minutes=some",
            "a recipe value does not fit: eval.test_minutes = 'some'; expected number or all",
            f"eval.test_minutes: {knob('eval.test_minutes').description}",
        ),
        (
            "windows.join_silence_s=3",
            "a recipe value does not fit: windows.join_silence_s = 3; expected number ≥ 0 and ≤ 2",
            f"windows.join_silence_s: {knob('windows.join_silence_s').description}",
        ),
        (
            "model.name=",
            "a recipe value does not fit: model.name = None; expected text",
            f"model.name: {knob('model.name').description}",
        ),
    ],
)
def test_an_assignment_that_does_not_fit(assignment: str, what: str, hint: str):
    with pytest.raises(UsageError) as error:
        changed(assignment)
    assert (error.value.what, error.value.hint) == (what, hint)
    assert error.value.exit_code == 2


SECTIONS = "sections: [model], [data], [train], [windows], [eval], [machine]"


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("x = 1", "mine.toml: 'x' stands outside a section", SECTIONS),
        ("[tran]", "mine.toml: there is no recipe section [tran]", SECTIONS),
        ("[tran]\nsteps = 1", "mine.toml: there is no recipe key 'tran.steps'", "did you mean train.steps?"),
        (
            "[train]\nsteps = 'x'",
            "mine.toml: train.steps = 'x'; expected whole number ≥ 1 or unset",
            f"train.steps: {knob('train.steps').description}",
        ),
    ],
)
def test_a_recipe_file_that_does_not_fit(text: str, what: str, hint: str):
    with pytest.raises(UsageError) as error:
        Recipe.from_toml(text, "mine.toml")
    assert (error.value.what, error.value.hint) == (what, hint)


def test_not_toml_and_no_file(tmp_path: Path):
    with pytest.raises(UsageError, match=r"^mine\.toml is not TOML: "):
        Recipe.from_toml("[train", "mine.toml")
    with pytest.raises(
        UsageError, match=f"^cannot read the recipe {tmp_path}/none: No such file or directory$"
    ):
        load(tmp_path / "none")


def test_values_are_read_as_what_they_are():
    recipe = changed(
        "train.passes=2",
        "train.learning_rate=1e-5",
        "eval.test_minutes=all",
        'data.guards=["a", "b=c"]',
        "model.language=no",
        "data.corpus=2024-05-01",
    )
    assert recipe.train.passes == 2.0 and recipe.train.learning_rate == 1e-5
    assert recipe.eval.test_minutes == "all" and recipe.data.guards == ("a", "b=c")
    assert recipe.model.language == "no"
    assert recipe.data.corpus == "2024-05-01" and not isinstance(recipe.data.corpus, datetime.date)
    assert changed("data.corpus=2024").data.corpus == "2024"
    assert changed("eval.test_minutes=2.5").eval.test_minutes == 2.5
    assert Recipe().with_changes({"train.steps": 5}).with_changes({"train.steps": None}).train.steps is None


def test_a_recipe_survives_its_file(tmp_path: Path):
    recipe = changed('data.guards=["one", "t w o"]', "train.learning_rate=1.5e-05", "eval.test_minutes=all")
    recipe = recipe.with_changes({"data.corpus": 'C:\\clips "new"\n\x7fž'})
    (tmp_path / "recipe.toml").write_text(recipe.to_toml(), "utf-8")
    assert load(tmp_path / "recipe.toml") == recipe
    assert Recipe.from_toml(Recipe().to_toml()) == Recipe()


def test_the_template_changes_nothing_and_each_line_of_it_can_be_switched_on():
    assert Recipe.from_toml(template()) == Recipe()
    for each in keys():
        section, _, name = each.key.partition(".")
        line = next(line for line in template().splitlines() if line.startswith(f"# {name} ="))
        if each.default is not None:
            value = tomllib.loads(line.removeprefix("# "))[name]
            assert Recipe().with_changes({each.key: value}) == Recipe(), section
        else:
            assert line == f"# {name} =  # unset"


def test_every_knob_says_what_it_is_for_and_what_it_takes():
    assert len({each.key for each in keys()}) == len(keys()) > 30
    for each in keys():
        assert each.description.rstrip().endswith("."), each.key
        assert each.kind and "typing" not in each.kind, each
    kinds = {each.key: each.kind for each in keys()}
    assert kinds["train.lora_dropout"] == "number ≥ 0 and < 1"
    assert kinds["data.text_style"] == "keep, sentence, base or unset"
    assert kinds["data.guards"] == "a list of texts or unset"
    assert recipes.to_toml_value(True) == "true"


def test_the_pages_are_those_that_the_code_gives():
    script = runpy.run_path(str(ROOT / "scripts" / "reference.py"))
    for name, page in (("recipe.md", recipe_page()), ("cli.md", script["cli_page"]())):
        assert (ROOT / "docs" / name).read_text("utf-8") == page, f"docs/{name} is out of date: make docs"


def test_a_recipe_that_is_not_utf_8_is_refused_in_a_line(tmp_path: Path):
    (tmp_path / "r.toml").write_bytes(b'[model]\nname = "caf\xe9"\n')
    with pytest.raises(UsageError) as error:
        recipes.load(tmp_path / "r.toml")
    assert error.value.what == f"the recipe {tmp_path / 'r.toml'} is not a text in UTF-8: invalid continuation byte"


@pytest.mark.parametrize("minutes", [0, -5])
def test_minutes_of_test_audio_are_some_or_all(minutes: float):
    with pytest.raises(UsageError, match="expected number or all"):
        Recipe().with_changes({"eval.test_minutes": minutes})


@pytest.mark.parametrize("value", ["9" * 5_000, "[" * 5_000])
def test_a_value_beyond_toml_is_a_text_and_shown_short(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        Recipe().with_changes(parse_assignments([f"train.passes={value}"]))
    assert caught.value.what == (
        f"a recipe value does not fit: train.passes = '{value[:78]}…; expected number > 0"
    )


@pytest.mark.parametrize("text", ["x = " + "9" * 5_000, "x = " + "[" * 9_000])
def test_toml_that_overflows_its_reader(text: str) -> None:
    with pytest.raises(UsageError, match=r"^r\.toml is not TOML: "):
        Recipe.from_toml(text, "r.toml")


def test_an_absurd_weight_decay_and_a_seed_beyond_numbers() -> None:
    for key, value, kind in [
        ("train.weight_decay", 2, "number ≥ 0 and ≤ 1"),
        ("train.seed", 10**10, "whole number ≥ 0 and ≤ 1e+09"),
    ]:
        with pytest.raises(UsageError) as caught:
            Recipe().with_changes({key: value})
        assert caught.value.what == f"a recipe value does not fit: {key} = {value}; expected {kind}"
