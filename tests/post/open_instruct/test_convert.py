"""Command lines of open-instruct: published ones convert, and every flag has a row in the table."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from windlass.config.encode import to_data
from windlass.config.field_types import fields_of
from windlass.core.errors import SpecError, UsageError
from windlass.post.open_instruct.convert import ConvertedLine, convert_line
from windlass.post.open_instruct.flags import Flags, flag_table, known_flags
from windlass.train.resolve import resolve

HERE = Path(__file__).parent
LINES: list[dict[str, Any]] = tomllib.loads((HERE / "lines.toml").read_text())["lines"]
SOURCES = tomllib.loads((HERE / "flags.toml").read_text())
GRPO = "python open_instruct/grpo_fast.py --model_name_or_path a/b --dataset_mixer_list gsm8k.jsonl 1.0 --beta 0.0"


def without(line: str, refused: list[str]) -> str:
    for flag in refused:
        assert f" {flag} " in line
        line = line.replace(f" {flag} ", " ")
    return line


def value_at(data: Any, path: str) -> Any:
    """Return the value at a dotted path; a duration as it is written."""
    for part in path.split("."):
        data = data[int(part)] if isinstance(data, list) else data[part]
    return f"{data['value']} {data['unit']}" if isinstance(data, dict) and list(data) == ["value", "unit"] else data


def problems_of(line: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        convert_line(line)
    return [problem.message for problem in caught.value.problems]


def overrides_of(line: str) -> dict[str, str]:
    return dict(override.split("=", 1) for override in convert_line(line).overrides)


@pytest.mark.parametrize("published", LINES, ids=lambda published: published["source"].split(",")[0])
def test_a_published_line_converts(published: dict[str, Any]) -> None:
    line, refused = published["line"].replace("\\\n", " "), published["refused"]
    if refused:
        assert len(problems_of(line)) == len(refused)
        line = without(line, refused)
    converted = convert_line(line)
    recipe = to_data(resolve(converted.recipe, converted.overrides).recipe, keep_defaults=True)
    for path, value in published["holds"].items():
        found = value_at(recipe, path)
        if isinstance(value, list) and isinstance(value[0], dict):
            assert [{key: each[key] for key in value[0]} for each in found] == value
        else:
            assert found == value


@pytest.mark.parametrize("entry", SOURCES["entries"])
def test_every_flag_of_an_entry_point_is_in_the_table(entry: str) -> None:
    assert entry in flag_table()["scripts"]
    flags = [flag for part in SOURCES["entries"][entry] for flag in SOURCES["files"][part]["flags"].split()]
    assert [flag for flag in flags if flag not in known_flags()] == []


def test_a_flag_is_in_the_table_once_and_an_alias_names_one() -> None:
    table = flag_table()
    rows = [*table["read"], *table["same"], *table["alias"], *table["refused"]]
    rows += [flag for flags in table["unused"].values() for flag in flags]
    assert sorted(rows) == sorted(set(rows))
    assert set(table["alias"].values()) <= set(rows) - set(table["alias"])


def test_flags_that_are_converted_are_read_for_some_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[str] = set()
    monkeypatch.setattr(Flags, "finish", lambda flags: used.update(flags.used))
    for line in (
        "python finetune.py --model_name_or_path a/b --dataset_mixer '{}' --warmup_ratio 0 --with_tracking",
        "python dpo.py --model_name_or_path a/b --mixer_list x.jsonl 1.0 --loss_type simpo --max_train_steps 3",
        "python reward_modeling.py --model_name_or_path a/b --dataset_mixer_list x.jsonl 1.0",
        f"{GRPO} --apply_r1_style_format_reward --checkpoint_state_dir d --non_stop_penalty",
    ):
        convert_line(line)
    assert set(flag_table()["read"]) - used == set()


def test_names_are_read_as_argparse_reads_them() -> None:
    line = GRPO + " --clip-higher=0.3 --temp 0.5 --no_filter_zero_std_samples --seed 1 --seed 2 --with_tracking no"
    found = overrides_of(line)
    assert found["objective.clip_high"] == "0.3"
    assert found["rollout.temperature"] == "0.5"
    assert found["rollout.drop_constant_groups"] == "false"
    assert found["seed"] == "2"
    assert "callbacks.wandb" not in found


def test_amounts_of_a_mixer_list_are_shares_or_numbers_of_rows() -> None:
    line = "finetune.py --model_name_or_path a/b --dataset_mixer_list a 1.0 b.jsonl 1 c 0.5 --dataset_mixer_list_splits"
    mix = overrides_of(f"python {line} train test train[:9]")["data.mix"]
    assert mix == (
        '[{"source": "hf:a", "fraction": 1.0}, {"source": "b.jsonl", "count": 1, "split": "test"}, '
        '{"source": "hf:c", "fraction": 0.5, "split": "train[:9]"}]'
    )
    older = overrides_of('python finetune.py --model_name_or_path a/b --dataset_mixer \'{"a": 1.0, "b": 30}\'')
    assert older["data.mix"] == '[{"source": "hf:a", "fraction": 1.0}, {"source": "hf:b", "count": 30}]'


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--lerning_rate 1e-6", "unknown flag `--lerning_rate` of grpo_fast.py"),
        ("--beta x", "`--beta x` is not a number"),
        ("--beta 0.1 --kl_estimator 3", "`--kl_estimator 3` is not supported: 0, 1 and 2 are"),
        ("--num_mini_batches 1.5", "`--num_mini_batches 1.5` is not a whole number"),
        ("--seed 1 2", "`--seed 1 2` takes one value"),
        ("--loss_fn dppo", "`--loss_fn dppo` is not supported: dapo and cispo are"),
        ("--learning_rate $LR", "`--learning_rate $LR` has a variable; write its value"),
        ("--gradient_checkpointing maybe", "`--gradient_checkpointing maybe` is neither true nor false"),
        ("--tools python", "`--tools python` cannot be converted"),
        ("--apply_verifiable_reward false", "no reward is applied"),
        ("--dataset_transform_fn rlvr_tokenize_v9", "transform `rlvr_tokenize_v9` of open-instruct is not shipped"),
        ("--lr_scheduler_type wavy", "`--lr_scheduler_type wavy` is none of linear"),
    ],
)
def test_what_cannot_be_converted_is_refused_with_its_value(flags: str, problem: str) -> None:
    found = problems_of(f"{GRPO} {flags}")
    assert len(found) == 1
    assert found[0].startswith(problem)


def test_refusals_come_all_at_once_with_their_reasons() -> None:
    with pytest.raises(SpecError) as caught:
        convert_line(f"{GRPO} --use_qlora --load_in_4bit --tools python")
    assert {problem.code for problem in caught.value.problems} == {"unsupported-setting"}
    assert len(caught.value.problems) == 3
    assert all(problem.hint for problem in caught.value.problems)


def test_values_without_effect_are_not_refused() -> None:
    plain = convert_line(GRPO)
    off = convert_line(f"{GRPO} --use_lora False --vllm_top_p 1 --remap_verifier None --load_in_8bit 0")
    assert off.overrides == plain.overrides


@pytest.mark.parametrize(
    ("line", "word"), [("python train.py --x", "no entry point"), ("python 'grpo.py", "No closing quotation")]
)
def test_a_line_without_an_entry_point_is_refused(line: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        convert_line(line)


def test_a_module_of_python_and_a_line_with_redirections_are_read() -> None:
    line = "torchrun --nproc_per_node 4 -m open_instruct.dpo --model_name_or_path a/b --mixer_list x.jsonl 8 2>&1 | tee log"
    converted: ConvertedLine = convert_line(line)
    assert converted.recipe == "dpo"
    assert "data.batch_rows=32" in converted.overrides
    assert any("torchrun" in note for note in converted.notes)


def test_paths_of_the_table_are_fields_of_the_recipe() -> None:
    for path in flag_table()["same"].values():
        assert path.split(".")[0] in {*fields_of(type(resolve("grpo").recipe))}
