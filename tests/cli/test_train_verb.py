"""`windlass train`, without training: what it prints, refuses and hands on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Windlass
from windlass.cli.completion.files import complete_recipes
from windlass.cli.verbs.run.train import train_command
from windlass.train.recipes.shipped import SHIPPED
from windlass.train.resolve import ResolvedRecipe


def test_a_dry_run_shows_every_value_with_its_origin(windlass: Windlass) -> None:
    result = windlass("train", "tiny", "--dry-run", "optim.lr=3e-4", "stop=100steps")
    assert (result.code, result.err) == (0, "")
    lines = [line.split() for line in result.out.splitlines()]
    assert ["lr:", "0.0003", "#", "command", "line"] in lines
    assert ["stop:", "100", "steps", "#", "command", "line"] in lines
    assert ["d_model:", "128", "#", "tiny"] in lines
    assert ["tensor:", "1", "#", "default"] in lines


def test_what_a_dry_run_prints_is_a_recipe(windlass: Windlass, tmp_path: Path) -> None:
    first = windlass("train", "olmo3-7b", "--dry-run", "optim.kind=muon")
    path = tmp_path / "kept.yaml"
    path.write_text(first.out)
    one = json.loads(windlass("train", str(path), "--dry-run", "--json").out)
    other = json.loads(windlass("train", "olmo3-7b", "optim.kind=muon", "--dry-run", "--json").out)
    assert one["schema"] == other["schema"] == "windlass.recipe/1"
    assert one["recipe"] == other["recipe"]
    assert other["overrides"] == ["optim.kind=muon"]
    assert other["origins"]["optim.kind"] == "command line"
    assert one["origins"]["optim.kind"].startswith(f"{path}:")


def test_an_option_of_the_recipe_may_have_dashes(windlass: Windlass) -> None:
    plain = windlass("train", "tiny", "no_evals=true", "~checkpoint.keep", "--dry-run", "--json")
    dashed = windlass("train", "--no_evals", "--dry-run", "tiny", "--checkpoint.keep=null", "--json")
    assert json.loads(plain.out)["recipe"] == json.loads(dashed.out)["recipe"]


def test_all_mistakes_come_at_once_and_nothing_is_printed(windlass: Windlass) -> None:
    result = windlass("train", "tiny", "--dry-run", "optim.lr=-1", "model.num_layer=3")
    assert (result.code, result.out) == (3, "")
    assert result.err == (
        "error: unknown key `num_layer` in model                       [unknown-key]\n"
        "  command line   model.num_layer=3\n"
        "hint: did you mean `num_layers`?\n"
        "error: `optim.lr` is `-1`, which is out of range              [invalid-value]\n"
        "  command line   optim.lr=-1\n"
        "hint: it must be between 0 and 1000\n"
        "more: windlass explain unknown-key\n"
        "more: windlass explain invalid-value\n"
    )


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        ((), 2, "`windlass train` needs a RECIPE "),
        (("optim.lr=1",), 2, "`windlass train` needs a RECIPE; `optim.lr=1` is an override"),
        (("tinny",), 4, "unknown recipe `tinny`"),
        (("tiny", "--dryrun"), 2, "`windlass train` has no option `--dryrun`"),
        (("tiny", "--optm.lr=1"), 2, "`windlass train` has no option `--optm.lr`"),
        (("tiny", "stop"), 3, "the override `stop` sets nothing"),
        (("tiny", "--plan", "gpu=h20"), 2, "unknown GPU `h20`"),
        (("tiny", "--plan", "world=3"), 3, "data.batch_tokens: 32 rows of 128 tokens are not divisible by 3"),
        (
            ("tiny", "--plan", "--ray-learners", "3"),
            3,
            "data.batch_tokens: 32 rows of 128 tokens are not divisible by 3",
        ),
        (("tiny", "--ray-learners", "3"), 3, "data.batch_tokens: 32 rows of 128 tokens are not divisible by 3"),
        (("tiny", "world=3", "--dry-run"), 3, "unknown key `world` at the top level"),
    ],
)
def test_a_line_that_cannot_be_is_refused(windlass: Windlass, words: tuple[str, ...], code: int, error: str) -> None:
    result = windlass("train", *words)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith(f"error: {error}")
    assert "hint: " in result.err


def test_the_plan_is_printed_and_warnings_go_elsewhere(windlass: Windlass, monkeypatch: pytest.MonkeyPatch) -> None:
    from windlass.train.plan import plan as planning

    monkeypatch.setattr(planning, "_applied", lambda recipe, machine: planning.Applied(note="not here", facts={}))
    words = ("train", "olmo2-7b", "--plan", "world=64", "gpu=h100-80gb", "mfu=0.4", "stop=100steps")
    result = windlass(*words)
    assert result.code == 0
    assert result.out.startswith("olmo2-7b on 64 processes: dp_shard 64\n")
    assert "  length        100 steps, 419M tokens (0.0575 for each parameter)\n" in result.out
    assert "at 40% of the peak" in result.out
    assert result.out.endswith("not applied to a model without weights: not here\n")
    assert result.err == "warning: checkpoint.every is 10000 steps and the run has 100: only the last one is kept\n"
    data = json.loads(windlass(*words, "--json").out)
    assert (data["schema"], data["parameters"]["total"], data["shape"]["dp_shard"]) == (
        "windlass.train-plan/1",
        7_298_617_344,
        64,
    )


def test_the_plan_of_post_training_has_engine_devices_and_sandbox(windlass: Windlass) -> None:
    words = ("train", "grpo", "--plan", "model=llama-1m", "gpu=h100-80gb", "rollout.num_slots=512")
    result = windlass(*words)
    assert result.code == 0
    assert "\nengine: 512 slots of 1280 tokens, 2.5 MiB each; weights 6.0 MiB; 1 in all\n" in result.out
    assert "\nmemory of a learner (estimate)\n" in result.out
    assert "sandbox" not in result.out
    assert "warning: rollout.num_slots=512, but an engine has at most 256 answers to generate" in result.err
    data = json.loads(windlass(*words, "--json").out)
    assert (data["schema"], data["post"]["engine"]["num_slots"]) == ("windlass.train-plan/1", 512)
    assert data["post"]["memory_total_bytes"].keys() == {"a learner"}


def test_fields_and_help_of_a_recipe_show_its_values(windlass: Windlass) -> None:
    fields, helped = windlass("train", "olmo2-1b", "--fields"), windlass("train", "olmo2-1b", "--help")
    assert fields == helped
    lines = [" ".join(line.split()) for line in fields.out.splitlines()]
    assert "optim.lr 0.0004 a number from 0 to 1000 Peak learning rate." in lines
    assert any(line.startswith("optim.momentum 0.95 a number from 0 to 1 [muon, normuon, dion]") for line in lines)
    defaults = json.loads(windlass("train", "--fields", "--json").out)["fields"]
    assert {
        "path": "optim.lr",
        "kinds": [],
        "takes": "a number from 0 to 1000",
        "value": "0.0003",
        "doc": "Peak learning rate.",
    } in (defaults)
    assert windlass("train", "--help").out.startswith("Usage: windlass train ")


def test_the_schema_names_every_field(windlass: Windlass) -> None:
    schema = json.loads(windlass("train", "--schema").out)
    assert schema["$defs"]["Recipe"]["required"] == ["name", "model", "data", "duration"]
    assert schema["$defs"]["ModelConfig"]["properties"]["num_layers"]["minimum"] == 1


def test_the_list_has_every_shipped_recipe(windlass: Windlass) -> None:
    assert [line.split()[0] for line in windlass("train", "--list").out.splitlines()[1:]] == list(SHIPPED)
    assert json.loads(windlass("train", "--list", "--json").out)["recipes"]["tiny"] == SHIPPED["tiny"].summary


def test_a_run_gets_the_resolved_recipe_and_its_exit_code_comes_back(
    windlass: Windlass, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ResolvedRecipe] = []

    class Run:
        @staticmethod
        def run_recipe(resolved: ResolvedRecipe) -> int:
            seen.append(resolved)
            return 75

    monkeypatch.setitem(sys.modules, "windlass.train.run", Run)
    assert windlass("train", "tiny", "stop=3steps").code == 75
    assert (seen[0].recipe.stop is not None, seen[0].source, seen[0].overrides) == (True, "tiny", ("stop=3steps",))


def test_a_run_whose_shapes_do_not_divide_never_begins(windlass: Windlass, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "windlass.train.run", None)
    monkeypatch.setenv("WORLD_SIZE", "3")
    result = windlass("train", "tiny")
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("error: data.batch_tokens: 32 rows of 128 tokens are not divisible by 3")


def test_of_many_processes_one_prints_and_one_of_each_machine_complains(
    windlass: Windlass, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert windlass("train", "tiny", "--dry-run") == windlass("train", "tiny", "--fields")
    quiet = windlass("train", "tiny", "--dry-run", "optim.lr=-1")
    assert (quiet.code, quiet.out, quiet.err) == (3, "", "")
    monkeypatch.setenv("LOCAL_RANK", "0")
    told = windlass("train", "tiny", "--dry-run", "optim.lr=-1")
    assert (told.code, "out of range" in told.err) == (3, True)


def test_shells_complete_recipes_files_and_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("")
    context = train_command.make_context("train", [], resilient_parsing=True)
    file, overrides = train_command.params[:2]
    assert complete_recipes(context, file, "olmo3-3") == [
        "olmo3-32b",
        "olmo3-32b-midtraining",
        "olmo3-32b-long-context",
    ]
    assert complete_recipes(context, file, "mi") == ["mine.py"]
    context.params["file"] = "tiny"
    assert complete_recipes(context, overrides, "optim.lr") == ["optim.lr="]
    assert complete_recipes(context, overrides, "--no_") == ["--no_checkpoints=", "--no_evals="]


def test_learners_on_ray_need_ray_and_no_torchrun(windlass: Windlass, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    result = windlass("train", "tiny", "--ray-learners", "2", "data.sources.0.path=text.txt")
    assert result.code == 8
    assert "--ray-learners needs Ray, but RAY_ADDRESS is not set" in result.err
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    result = windlass("train", "tiny", "--ray-learners", "2")
    assert result.code == 2
    assert "--ray-learners starts processes, and this is one of 2 already" in result.err
