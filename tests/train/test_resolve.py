from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train.narrow import decoder_of
from windlass.config.loading import from_data
from windlass.core.errors import Problem, SpecError, WindlassError
from windlass.train.callbacks.build import build_callbacks
from windlass.train.callbacks.config import WandbConfig
from windlass.train.duration import Duration
from windlass.train.hf.config import to_hf
from windlass.train.model.presets import preset
from windlass.train.optim.config import AdamWConfig, LionConfig
from windlass.train.page import recipe_page
from windlass.train.recipe import Recipe
from windlass.train.recipes.shipped import SHIPPED
from windlass.train.resolve import ResolvedRecipe, resolve

MINE = """\
from windlass import train
from windlass.train.optim.config import AdamWConfig

def recipe() -> train.Recipe:
    return train.Recipe(
        name="mine",
        model=train.preset("llama-1m"),
        data=train.DataConfig(sources=(train.SourceConfig(path=("a.txt",)),), batch_tokens=16_384),
        duration=train.Duration.steps(100),
        optim=AdamWConfig(lr=1e-3, eps=1e-6),
    )
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe file of a user, in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def problems(name: str, *overrides: str) -> list[Problem]:
    with pytest.raises(WindlassError) as caught:
        resolve(name, overrides)
    return list(caught.value.problems)


def told(name: str, *overrides: str) -> list[tuple[str, str, str]]:
    return [(problem.message, problem.code, problem.hint) for problem in problems(name, *overrides)]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_recipe_is_whole_and_named_like_itself(name: str) -> None:
    assert resolve(name).recipe.name == name


def test_a_file_a_function_and_a_module_name_the_same_recipe(mine: Path) -> None:
    by_file, by_function, by_module = resolve("mine.py"), resolve("mine.py:recipe"), resolve("mine:recipe")
    assert by_file.recipe == by_function.recipe == by_module.recipe
    assert (by_file.source, by_module.source) == ("mine.py:recipe", "mine:recipe")


def test_a_file_with_one_function_that_returns_a_recipe(mine: Path) -> None:
    mine.write_text(MINE.replace("def recipe()", "def other()") + "\ndef noise() -> int:\n    return 1\n")
    assert resolve("mine.py").source == "mine.py:other"


def test_origins_name_function_default_and_command_line(mine: Path) -> None:
    origins = resolve("mine.py", ["stop=5steps", "optim.betas.0=0.8"]).origins
    assert origins["optim.lr"] == "mine.py:recipe"
    assert origins["optim.weight_decay"] == "default"
    assert origins["stop.value"] == origins["optim.betas"] == "command line"
    assert origins["data.sources.0.path"] == "mine.py:recipe"


def test_every_field_has_an_origin() -> None:
    resolved = resolve("olmo3-7b")
    leaves = [line for line in recipe_page(resolved) if not line.rstrip().endswith(":")]
    assert len(leaves) > 80
    assert all("  # " in line for line in leaves)


def test_a_yaml_file_gives_the_line_of_each_value(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        "name: mine\nmodel: llama-1m\ndata:\n  sources: [{path: a.txt}]\n  batch_tokens: 8192\n"
        "duration: 5 steps\noptim: {lr: 1e-3}\n"
    )
    resolved = resolve(str(path), ["optim.weight_decay=0"])
    assert resolved.recipe.optim == AdamWConfig(lr=1e-3, weight_decay=0.0)
    assert resolved.recipe.model == preset("llama-1m")
    assert resolved.origins["optim.lr"] == f"{path}:7"
    assert resolved.origins["optim.eps"] == "default"
    assert resolved.origins["duration.value"] == f"{path}:6"


@pytest.mark.parametrize("name", SHIPPED)
def test_record_and_page_resolve_to_the_same_recipe(name: str, tmp_path: Path) -> None:
    resolved = resolve(name, ["stop=7steps", "callbacks.console.every=3"])
    (tmp_path / "config.json").write_text(json.dumps(resolved.record()))
    (tmp_path / "page.yaml").write_text("\n".join(recipe_page(resolved)))
    assert resolve(str(tmp_path)).recipe == resolved.recipe
    assert resolve(str(tmp_path / "config.json"), ["stop=7steps"]).recipe == resolved.recipe
    assert resolve(str(tmp_path / "page.yaml")).recipe == resolved.recipe


def test_a_record_without_a_recipe_is_told_from_one(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"schema": "windlass.model/1", "source": "hf:x", "model": {}}))
    ((message, code, hint),) = told(str(tmp_path))
    assert (message, code) == (f"`{path}` describes a model, not a recipe", "recipe-wrong")
    assert hint == f"pass it to a recipe: `checkpoint.load.path={tmp_path}`"
    path.write_text(json.dumps({"recipe": resolve("tiny").record()["recipe"]}))
    assert resolve(str(tmp_path)).recipe == resolve("tiny").recipe


def test_files_and_checkpoints_by_an_address(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(resolve("tiny").record()))
    (tmp_path / "page.yaml").write_text("\n".join(recipe_page(resolve("tiny"))))
    assert (
        resolve(f"file://{tmp_path}").recipe == resolve(f"file://{tmp_path}/page.yaml").recipe == resolve("tiny").recipe
    )
    assert told(f"file://{tmp_path}/none")[0][1] == "file-not-found"


def test_a_preset_by_name_and_a_change_on_top() -> None:
    found = decoder_of(resolve("tiny", ["model=olmo2-1b", "model.num_layers=4", "model.attention.window=128"]).recipe)
    assert found == preset(
        "olmo2-1b",
        num_layers=4,
        attention=decoder_of(resolve("tiny", ["model=olmo2-1b", "model.attention.window=128"]).recipe).attention,
    )
    assert (found.num_layers, found.d_model, found.attention.window) == (4, 2048, 128)


def test_another_kind_of_optimiser_keeps_rate_and_decay(mine: Path) -> None:
    changed = resolve("olmo2-1b", ["optim.kind=lion"]).recipe.optim
    before = resolve("olmo2-1b").recipe.optim
    assert isinstance(changed, LionConfig)
    assert (changed.lr, changed.weight_decay, changed.groups, changed.skip) == (
        before.lr,
        before.weight_decay,
        before.groups,
        before.skip,
    )
    assert changed.betas == LionConfig().betas
    hint = "`eps` is a key of kind adamw, muon, normuon, dion; remove it, or write that `kind`"
    assert told("mine.py", "optim.kind=lion") == [("unknown key `eps` in optim", "unknown-key", hint)]
    assert resolve("mine.py", ["optim.kind=lion", "~optim.eps"]).recipe.optim == LionConfig(lr=1e-3)


def test_a_callback_by_the_name_of_its_kind() -> None:
    found = resolve("tiny", ["callbacks.console.every=3", "callbacks.wandb.project=x"]).recipe.callbacks
    assert [(name, config.kind) for name, config in found.items()] == [("console", "console"), ("wandb", "wandb")]


@pytest.mark.parametrize(
    ("override", "message", "code", "hint"),
    [
        ("optim.lrr=1", "unknown key `lrr` in optim", "unknown-key", "did you mean `lr`?"),
        ("modle.num_layers=1", "unknown key `modle` at the top level", "unknown-key", "did you mean `model`?"),
        (
            "optim.lr=fast",
            "`optim.lr` must be a number, not the text `fast`",
            "invalid-value",
            "",
        ),
        (
            "optim.lr=-1",
            "`optim.lr` is `-1`, which is out of range",
            "invalid-value",
            "it must be between 0 and 1000",
        ),
        (
            "optim.lr=1e9",
            "`optim.lr` is `1e9`, which is out of range",
            "invalid-value",
            "it must be between 0 and 1000",
        ),
        (
            "optim.weight_decay=.inf",
            "`optim.weight_decay` is `.inf`, which is out of range",
            "invalid-value",
            "it must be at least 0 and finite",
        ),
        (
            "model.init_std=.nan",
            "`model.init_std` is `.nan`, which is out of range",
            "invalid-value",
            "it must be above 0",
        ),
        (
            "stop=0steps",
            "invalid `stop` `0 steps`: nothing would be trained",
            "invalid-value",
            "write at least 1, such as `stop=1step`",
        ),
        (
            "trainer.hard_stop=100steps",
            "unknown key `trainer` at the top level",
            "unknown-key",
            "`trainer.hard_stop` is `stop` here",
        ),
        (
            "trainer.max_duration=2epochs",
            "unknown key `trainer` at the top level",
            "unknown-key",
            "`trainer.max_duration` is `duration` here",
        ),
        ("init_seed=3", "unknown key `init_seed` at the top level", "unknown-key", "`init_seed` is `seed` here"),
        (
            "duration=100",
            "`duration` must be text or a mapping, not the number `100`",
            "invalid-value",
            "add a unit: `100steps`, `100tokens` or `100epochs`",
        ),
        (
            "duration=5 parsecs",
            "`duration` cannot be the text `5 parsecs`",
            "invalid-value",
            "write a whole number and its unit, such as `100steps`, `5e9 tokens` or `2 epochs`",
        ),
        (
            "data.batch_tokens=1000",
            "batch_tokens 1000 is not a multiple of sequence_length 128",
            "shape-conflict",
            "try 1024",
        ),
        (
            "model.attention.num_heads=3",
            "d_model 128 does not divide into 3 heads",
            "shape-conflict",
            "change one of them, or give `attention.head_dim`",
        ),
        (
            "data.sequence_length=4096",
            "rows of 4096 tokens are longer than the model's 512",
            "shape-conflict",
            "lower it, or raise `model.max_length`",
        ),
        (
            "optim.kind=adam",
            "`optim.kind` cannot be the text `adam`",
            "invalid-value",
            "did you mean `adamw`? it must be one of adamw, lion, muon, normuon, dion, python",
        ),
    ],
)
def test_a_wrong_setting_is_named_with_what_to_type(override: str, message: str, code: str, hint: str) -> None:
    found = told("tiny", override)
    assert (message, code) == found[0][:2]
    assert found[0][2] == hint


def test_an_unknown_preset_is_told_with_near_ones() -> None:
    ((message, code, hint),) = told("tiny", "model=olmo2-1bb")
    assert (message, code) == ("`model` cannot be the text `olmo2-1bb`", "invalid-value")
    assert hint.startswith("unknown preset `olmo2-1bb`; did you mean `olmo2-1b`")


def test_all_problems_come_together_each_with_the_words_of_the_user() -> None:
    found = problems("tiny", "optim.lr=-1", "stop=5 parsecs", "data.layuot=pack", "model.num_layers=0")
    assert [problem.place.excerpt for problem in found if problem.place is not None] == [
        "model.num_layers=0",
        "data.layuot=pack",
        "stop=5 parsecs",
        "optim.lr=-1",
    ]


def test_a_recipe_that_is_not_there_is_told_with_the_nearest(mine: Path) -> None:
    assert told("lama-271m") == [
        ("unknown recipe `lama-271m`", "recipe-not-found", "did you mean `llama-271m`?"),
    ]
    assert told("olmo2_1b")[0][2] == "did you mean `olmo2-1b`?"
    assert told("mine")[0][2] == "did you mean `mine.py`?"
    assert told("mime.py") == [("no such file: `mime.py`", "file-not-found", "did you mean `mine.py`?")]
    assert told("nowhere.yaml")[0][1] == "file-not-found"
    assert told("nowhere:recipe")[0][:2] == ("no module `nowhere`", "module-not-found")
    assert told("mine.py:recpie")[0] == (
        "`mine.py` has no `recpie`",
        "module-not-found",
        "did you mean `mine.py:recipe`?",
    )


def test_a_recipe_file_that_fails_names_its_line(mine: Path) -> None:
    mine.write_text("def recipe():\n    x = 1\n    return 1 / 0\n")
    (problem,) = problems("mine.py")
    assert (problem.message, problem.code) == (
        "the recipe failed: ZeroDivisionError: division by zero",
        "user-code-failed",
    )
    assert problem.place is not None
    assert (Path(problem.place.source).name, problem.place.line) == ("mine.py", 3)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import no_such_thing\n", "user-code-failed"),
        ("import sys\nsys.exit(0)\n", "user-code-failed"),
        ("x = 1\n", "recipe-not-found"),
        ("def recipe():\n    return 3\n", "recipe-wrong"),
        ("from windlass.train import Recipe\ndef a() -> Recipe: ...\ndef b() -> Recipe: ...\n", "recipe-wrong"),
    ],
)
def test_a_file_without_a_recipe_says_what_is_missing(mine: Path, text: str, code: str) -> None:
    mine.write_text(text)
    (problem,) = problems("mine.py")
    assert (problem.code, bool(problem.hint)) == (code, True)


def test_values_of_python_recipes_are_checked_too(mine: Path) -> None:
    mine.write_text(MINE.replace("lr=1e-3", "lr=-1.0").replace('train.preset("llama-1m")', '"llama-1m"'))
    assert told("mine.py") == [
        ("`optim.lr` is `-1.0`, which is out of range", "invalid-value", "it must be between 0 and 1000")
    ]
    assert resolve("mine.py", ["optim.lr=1"]).recipe.model == preset("llama-1m")


NUMBERS = {
    "optim.lr": st.floats(0, 10),
    "optim.weight_decay": st.floats(0, 1),
    "seed": st.integers(0, 2**63),
    "model.num_layers": st.integers(1, 200),
    "stop": st.builds(Duration, value=st.integers(1, 10**15), unit=st.sampled_from(["steps", "tokens", "epochs"])),
    "parallel.compile": st.booleans(),
    "checkpoint.folder": st.sampled_from(["a", "s3://b/c", "x=y", "yes: no", "é"]),
}


@settings(max_examples=25)
@given(st.data())
def test_overrides_commute_with_python(data: st.DataObject) -> None:
    """What an override sets is what the field is, in any order, and all else stays."""
    chosen = {path: data.draw(values) for path, values in NUMBERS.items() if data.draw(st.booleans())}
    words = [f"{path}={_written(value)}" for path, value in chosen.items()]
    found = resolve("tiny", data.draw(st.permutations(words)))
    plain = resolve("tiny")
    for path in NUMBERS:
        assert _at(found.recipe, path) == chosen.get(path, _at(plain.recipe, path))
    typed = {path for path, origin in found.origins.items() if origin == "command line"}
    assert {path.removesuffix(".value").removesuffix(".unit") for path in typed} == set(chosen)
    assert resolve_record(found).recipe == found.recipe


def resolve_record(resolved: ResolvedRecipe) -> ResolvedRecipe:
    recipe = from_data(Recipe, json.loads(json.dumps(resolved.record()))["recipe"])
    return ResolvedRecipe(recipe=recipe, source="record", origins={})


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _at(recipe: object, path: str) -> object:
    for part in path.split("."):
        recipe = getattr(recipe, part)
    return recipe


@settings(max_examples=50)
@given(st.text(max_size=12), st.text(max_size=12))
def test_any_words_are_an_override_or_an_error(path: str, value: str) -> None:
    refused: tuple[Problem, ...] = ()
    try:
        resolve("tiny", [f"{path}={value}"])
    except SpecError as error:
        refused = tuple(error.problems)
    assert all(problem.message and problem.code for problem in refused)


@pytest.mark.parametrize(
    "line", [["train", "tiny", "--dry-run"], ["train", "olmo3-32b", "--fields"], ["train", "--schema"]]
)
def test_looking_imports_no_torch(line: list[str]) -> None:
    code = (
        "import sys; from windlass.cli import main; sys.stdout = open('/dev/null', 'w'); code = main(sys.argv[1:]); "
        "heavy = {'torch', 'numpy', 'transformers'} & set(sys.modules); sys.exit(f'{heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_json_without_an_end_of_depth_is_told(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(SpecError):
        resolve(str(tmp_path / "deep.json"))


def test_no_callback_takes_the_place_of_checkpoints() -> None:
    with pytest.raises(SpecError, match="would replace the checkpointer"):
        resolve("tiny", ["callbacks.checkpointer.kind=jsonl"])


@pytest.mark.parametrize("name", ["lm-eval", "downstream", "wandb", "console", "mine"])
def test_a_callback_that_nothing_configures_may_be_switched_off(name: str) -> None:
    found = resolve("tiny", [f"callbacks.{name}.enabled=false"])
    assert found.recipe.callbacks[name].enabled is False
    assert build_callbacks(found.recipe.callbacks)[name] is None
    again = from_data(Recipe, found.record()["recipe"])
    assert again == found.recipe


def test_a_configured_callback_is_switched_off_as_it_is() -> None:
    words = ["callbacks.mine.kind=wandb", "callbacks.mine.project=p", "callbacks.mine.enabled=false"]
    assert resolve("tiny", words).recipe.callbacks["mine"] == WandbConfig(project="p", enabled=False)


def test_checkpoints_are_not_switched_off_by_the_name_of_their_callback() -> None:
    ((message, _, hint),) = told("tiny", "callbacks.checkpointer.enabled=false")
    assert message == "the checkpointer cannot be disabled by its name"
    assert hint == "set `no_checkpoints: true`"


def test_a_callback_without_a_kind_is_still_asked_for_one() -> None:
    ((message, _, _),) = told("tiny", "callbacks.mine.enabled=true")
    assert message == "missing key `kind` in callbacks.mine"


def test_the_architecture_of_a_folder_of_hugging_face(tmp_path: Path) -> None:
    config = preset("llama-1m")
    (tmp_path / "config.json").write_text(json.dumps(to_hf(config)))
    found = resolve("tiny", [f"model=hf:{tmp_path}", "model.num_layers=3"])
    assert decoder_of(found.recipe) == replace(config, num_layers=3)
    assert (found.origins["model.d_model"], found.origins["model.num_layers"]) == ("command line", "command line")
    assert from_data(Recipe, found.record()["recipe"]) == found.recipe


def test_a_folder_that_cannot_be_a_model_is_told_with_what_to_type(tmp_path: Path) -> None:
    ((message, _, hint),) = told("tiny", "model=hf:allenai/OLMo-2")
    assert message == "`model` cannot be the text `hf:allenai/OLMo-2`"
    assert hint == (
        "no folder `allenai/OLMo-2`; download it first: `hf download allenai/OLMo-2 --local-dir DIR`, then `hf:DIR`"
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    assert "mamba" in told("tiny", f"model=hf:{tmp_path}")[0][2]


def test_no_number_of_a_recipe_may_be_endless_or_none_at_all() -> None:
    """Each numeric field of several recipes with `.inf`, `-.inf` and `.nan`: refused, but for repeats without a limit."""
    bases: tuple[list[str], ...] = (
        [],
        ["optim={kind: muon, skip: {window: 8}, groups: [{match: a, lr: 1, weight_decay: 0}]}"],
        ["model.rope.scaling={kind: yarn, factor: 2, old_length: 8}", "model.moe={num_experts: 4, hidden: 8}"],
        ["schedule={kind: wsd, decay: 10steps}", "optim={kind: lion}"],
    )
    taken = set()
    for base in bases:
        for name, value in _leaves(resolve("tiny", base).record()["recipe"]):
            if value is None or isinstance(value, (bool, str)):
                continue
            for text in (".inf", "-.inf", ".nan"):
                with contextlib.suppress(SpecError):
                    resolve("tiny", [*base, f"{name}={text}"])
                    taken.add((name, text))
    assert taken == {("data.sources.0.max_repeats", ".inf")}


def _leaves(data: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(data, (dict, list)):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, data
