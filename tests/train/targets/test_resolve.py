"""Recipes that name code of the user's own: what `--dry-run`, `--fields` and errors make of them. Nothing is trained."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.train.targets.own_parts import write_parts
from windlass.core.errors import WindlassError
from windlass.train.help import field_help
from windlass.train.page import recipe_page
from windlass.train.resolve import ResolvedRecipe, resolve
from windlass.train.targets.config import ModelTarget

RECIPE = """\
name: own
model:
  kind: python
  target: parts.py:Net
  args: {vocab_size: 260, width: 8}
data:
  sources: [{path: text.txt}]
  tokenizer: {path: bytes}
  sequence_length: 16
  batch_tokens: 64
duration: 8steps
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a user's file and recipe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    write_parts(tmp_path)
    (tmp_path / "own.yaml").write_text(RECIPE)
    return tmp_path


def own(*overrides: str) -> ResolvedRecipe:
    return resolve("own.yaml", overrides)


def told(*overrides: str, name: str = "own.yaml") -> list[tuple[str, str, str, str]]:
    with pytest.raises(WindlassError) as caught:
        resolve(name, overrides)
    return [
        (problem.message, problem.code, str(problem.place).split("   ")[0], problem.hint)
        for problem in caught.value.problems
    ]


@pytest.mark.usefixtures("folder")
def test_every_argument_is_shown_with_its_origin() -> None:
    found = own("model.args.dropout=0.5")
    assert isinstance(found.recipe.model, ModelTarget)
    assert found.recipe.model.args == {"vocab_size": 260, "width": 8, "dropout": 0.5}
    assert {name: origin for name, origin in found.origins.items() if name.startswith("model.")} == {
        "model.kind": "own.yaml:3",
        "model.target": "own.yaml:4",
        "model.args.vocab_size": "own.yaml:5",
        "model.args.width": "own.yaml:5",
        "model.args.dropout": "command line",
    }
    assert own().origins["model.args.dropout"] == "default"
    rows = {row.path: (row.value, row.takes) for row in field_help(found.recipe)}
    assert rows["model.args.width"] == ("8", "a whole number")


def test_the_page_is_a_recipe(folder: Path) -> None:
    found = own("model.args.width=128", "optim.lr=0.1")
    (folder / "page.yaml").write_text("\n".join(recipe_page(found)))
    assert resolve("page.yaml").recipe == found.recipe
    (folder / "config.json").write_text(json.dumps(found.record()))
    assert resolve("config.json").recipe == found.recipe
    code: Any = found.record()["code"]
    assert code["model"]["target"] == "parts.py:Net"
    assert len(code["model"]["sha256"]) == 64


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "message", "place", "hint"),
    [
        (["model.args.widht=3"], "unknown key `widht` in model.args, of parts.py:Net", "command line", "`width`?"),
        (["model.args.width=wide"], "must be a whole number, not the text `wide`", "command line", ""),
        (["~model.args.vocab_size"], "missing key `vocab_size` in model.args, of parts.py:Net", "own.yaml:5:9", "add"),
        (["model.target=parts.py:Nett"], "`parts.py` has no `Nett`", "command line", "did you mean `parts.py:Net`?"),
        (["model.target=part.py:Net"], "no such file: `part.py`", "command line", "did you mean `parts.py`?"),
        (["model.target=no_such_module:Net"], "no module `no_such_module`", "command line", "check the name"),
        (
            ["model.target=parts.py:positional"],
            "has the positional-only parameter `width`",
            "command line",
            "remove the `/`",
        ),
        (["model.target=parts.py:torch"], "which cannot be called", "command line", "name a function"),
        (["model.target=Net"], "invalid Python name `Net`", "command line", "write `module:name`"),
        (
            ["model.target=parts.py:NetConfig", "model.args.width=0"],
            "`model.args.width` is `0`, which is out of range",
            "command line",
            "at least 1",
        ),
        (
            ["model.target=parts.py:NetConfig", "model.args.kind_of_norm=rmss"],
            "`model.args.kind_of_norm` cannot be the text `rmss`",
            "command line",
            "did you mean `rms`?",
        ),
        (
            ["optim.kind=python", "optim.target=torch.optim:NAdam", "optim.args.lr=1"],
            "`optim.args.lr` is passed to torch.optim:NAdam by windlass",
            "command line",
            "remove it",
        ),
        (
            ["schedule={kind: python, target: 'parts.py:saw', args: {perod: 3}}"],
            "unknown key `perod` in schedule.args",
            "command line",
            "`period`?",
        ),
        (
            ["data.sources=[{kind: python, target: 'parts.py:numbers', args: {count: x}}]"],
            "`data.sources.0.args.count` must be a whole number",
            "command line",
            "",
        ),
        (
            ["callbacks.mine={kind: python, target: 'parts.py:Net'}"],
            "missing key `vocab_size` in callbacks.mine.args",
            "command line",
            "add",
        ),
        (["train_module.target=parts.py:regresion"], "has no `regresion`", "command line", "parts.py:regression`?"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(words: list[str], message: str, place: str, hint: str) -> None:
    found = told(*words)
    assert [message in problem[0] for problem in found].count(True) == 1, found
    (problem,) = [problem for problem in found if message in problem[0]]
    assert problem[2] == place
    assert hint in problem[3]


def test_an_import_that_fails_is_told_with_its_line(folder: Path) -> None:
    (folder / "bad.py").write_text("import json\n\nimport no_such_package\n")
    (message, code, _, hint) = told("model.target=bad.py:Net")[0]
    assert message == (
        "model.target: cannot import `bad.py`: ModuleNotFoundError: No module named 'no_such_package' "
        f"({folder / 'bad.py'}:3)"
    )
    assert (code, hint.split(" in ")[0]) == ("user-code-failed", "install `no_such_package`")
    (folder / "worse.py").write_text("def build(:\n")
    assert "SyntaxError" in told("model.target=worse.py:build")[0][0]
    assert "worse.py:1)" in told("model.target=worse.py:build")[0][0]


@pytest.mark.usefixtures("folder")
def test_all_wrong_arguments_are_told_together() -> None:
    schedule = "schedule={kind: python, target: 'parts.py:saw', args: {perod: 3}}"
    assert len(told("model.args.widht=3", "model.args.dropout=much", schedule)) == 3


def test_a_changed_file_has_another_digest(folder: Path) -> None:
    def digest() -> str:
        code: Any = own().record()["code"]
        return str(code["model"]["sha256"])

    first = digest()
    with open(folder / "parts.py", "a") as file:
        file.write("\n# changed\n")
    assert digest() != first


MINE = """\
from dataclasses import dataclass, replace
from typing import Annotated

from windlass import train
from windlass.config import Doc, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder(train.Recipe):
    '''A recipe with a field of its own.'''

    rung: Annotated[int, Range(min=1), Doc("Size of the model.")] = 1

    def check(self):
        yield from train.Recipe.check(self)
        if self.rung > 9:
            yield "rung", f"there is no rung {self.rung}", "invalid-value", "write 9 or less"


def recipe() -> Ladder:
    model = train.ModelTarget(target="parts.py:Net", args={"vocab_size": 260})
    data = train.DataConfig(sources=(train.SourceConfig(path=("a",)),), batch_tokens=1024)
    return Ladder(name="ladder", model=model, data=data, duration=train.Duration.steps(9), rung=3)
"""


def test_a_recipe_class_of_the_users_own(folder: Path) -> None:
    (folder / "mine.py").write_text(MINE)
    found = resolve("mine.py", ["rung=4"])
    assert (getattr(found.recipe, "rung", None), found.origins["rung"]) == (4, "command line")
    assert resolve("mine.py").origins["rung"] == "mine.py:recipe"
    assert {row.path: row.value for row in field_help(found.recipe)}["rung"] == "4"
    ((message, code, place, _),) = told("rnug=4", name="mine.py")
    assert (message, code, place) == ("unknown key `rnug` at the top level", "unknown-key", "command line")
    assert told("rung=12", name="mine.py")[0][0] == "there is no rung 12"
    assert told("rung=0", name="mine.py")[0][0] == "`rung` is `0`, which is out of range"
    (folder / "config.json").write_text(json.dumps(found.record()))
    again = resolve("config.json", ["rung=5"])
    assert type(again.recipe).__name__ == "Ladder"
    assert again.origins["rung"] == "command line"


def test_a_recipe_class_by_its_name_begins_from_its_defaults(folder: Path) -> None:
    (folder / "mine.py").write_text(MINE)
    words = [
        *("name=named", "model=llama-1m", "duration=5steps"),
        *("data.sources=[{path: a}]", "data.batch_tokens=1024", "rung=2"),
    ]
    found = resolve("mine.py:Ladder", words)
    assert (found.recipe.name, found.origins["rung"], found.origins["seed"]) == ("named", "command line", "default")
    missing = {problem[0] for problem in told(name="mine.py:Ladder")}
    assert missing == {f"missing key `{key}`" for key in ("name", "model", "data", "duration")}


def test_looking_at_a_checkpoint_imports_none_of_its_code(folder: Path) -> None:
    """Whoever shows or compares a foreign checkpoint must not run what it names."""
    from windlass.config.loading import from_data
    from windlass.train.recipe import Recipe

    record = own().record()
    os.remove(folder / "parts.py")
    assert from_data(Recipe, record["recipe"]).name == "own"
