"""Recipes from command lines of open-instruct: each flag is converted, refused with the reason, or noted.

Defaults are open-instruct's, so the recipe is that of the command line and not a shipped recipe with some changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from windlass.config.encode import to_data
from windlass.core.errors import Problem, SpecError
from windlass.core.json_text import decode_json
from windlass.core.names import as_name
from windlass.post.data.config import from_mixer_list
from windlass.post.data.templates import TEMPLATES
from windlass.post.open_instruct.flags import UNSUPPORTED, Flags, flag_table, peeled

__all__ = ["ConvertedLine", "convert_line"]

_TRANSFORMS: Mapping[str, str] = {
    **dict.fromkeys(("sft_tulu_tokenize_and_truncate_v1", "preference_tulu_tokenize_and_truncate_v1"), "truncate"),
    **dict.fromkeys(("sft_tulu_filter_v1", "preference_tulu_filter_v1", "rlvr_tokenize_v1", "rlvr_tokenize_v2"), ""),
    **dict.fromkeys(("rlvr_tokenize_v3", "preference_tokenize_v1", "sft_tokenize_mask_out_prompt_v1"), ""),
    **dict.fromkeys(("rlvr_filter_v1", "rlvr_max_length_filter_v1", "rlvr_max_length_filter_v2"), "drop"),
    **dict.fromkeys(("preference_filter_v1", "sft_filter_v1"), "drop"),
}
"""Transforms of open-instruct that ours always do, and what they do with longer sequences."""
_R1_FORMAT = r".*?</think>\s*<answer>.*?</answer>"
_VERIFIERS = {"gsm": "gsm8k", "math": "math", "if": "ifeval", "code": "code"}
"""Parts of names of data sets, and the verifier that open-instruct uses for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedLine:
    """A converted command line: a shipped recipe, overrides of it, and notes for the user."""

    recipe: str
    overrides: tuple[str, ...]
    notes: tuple[str, ...]


def convert_line(line: str) -> ConvertedLine:
    """Convert a command line of one of open-instruct's entry points, with the launchers in front of it.

    Raises:
        UsageError: it starts none of them.
        SpecError: flags are unknown, refused or have invalid values; reports all of them.
    """
    script, before, words = peeled(line)
    entry = flag_table()["scripts"][script]
    entry = flag_table()["scripts"][entry["same_as"]] if "same_as" in entry else entry
    flags = Flags(script=script, recipe=entry["recipe"])
    flags.read(words, entry["defaults"])
    _launcher(flags, before)
    flags.refuse()
    for part in (_start, _parallel, _optimiser, _length, _data, _PARTS[flags.recipe]):
        part(flags)
    flags.finish()
    return ConvertedLine(recipe=flags.recipe, overrides=tuple(flags.overrides), notes=tuple(dict.fromkeys(flags.notes)))


def _launcher(flags: Flags, before: Sequence[str]) -> None:
    """Read the number of processes and the precision from the launchers, and note that they are left out."""
    named: dict[str, str] = {}
    for at, word in enumerate(before):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            named[name[2:].replace("-", "_")] = value if equals else "".join(before[at + 1 : at + 2])
    tools = [word for word in ("mason.py", "accelerate", "torchrun", "ray_node_setup.sh") if word in " ".join(before)]
    if tools:
        flags.notes.append(f"{', '.join(tools)} and its options are left out: `windlass launch` starts processes")
    each, nodes = named.get("gpus", named.get("nproc_per_node", "")), named.get("num_nodes", named.get("nnodes", "1"))
    total = named.get("num_processes", "")
    if each.isdigit() and nodes.isdigit():
        flags.values["processes"] = [str(int(each) * int(nodes))]
    elif total.isdigit():
        flags.values["processes"] = [total]
    elif flags.recipe != "grpo":
        flags.notes.append("the number of processes is unknown: one is assumed in `data.batch_rows`")
    if named.get("mixed_precision") == "bf16":
        flags.values.setdefault("model_dtype", ["bfloat16"])
    if re.search(r"stage[23]", named.get("deepspeed_config_file", "")):
        flags.values.setdefault("zero_stage", ["3"])
        flags.notes.append(
            "gradients are clipped only by the command line's own flag, not by DeepSpeed's configuration"
        )


def _start(flags: Flags) -> None:
    """Convert the name, the model, its tokenizer and its template."""
    name = as_name(flags.text("exp_name")) if "$" not in "".join(flags.values.get("exp_name", [])) else ""
    if name:
        flags.set("name", name)
    model, revision = flags.text("model_name_or_path"), flags.text("model_revision")
    if model:
        flags.set("model.from", f"hf:{model}" + (f"@{revision}" if revision not in ("", "main") else ""))
    else:
        flags.problems.append(Problem("no `--model_name_or_path`", "missing-key", hint="name the starting model"))
    tokenizer = flags.text("tokenizer_name_or_path")
    if tokenizer and tokenizer != model:
        flags.set("data.tokenizer.path", tokenizer)
    if flags.switch("add_bos"):
        flags.notes.append("--add_bos: the template writes the begin token, as it does there")
    template = flags.text("chat_template_name")
    if template and template not in TEMPLATES:
        flags.problems.append(
            Problem(f"template `{template}` of open-instruct is not shipped", UNSUPPORTED, hint=_TEMPLATE)
        )
    flags.set("data.template", template or "auto")


def _parallel(flags: Flags) -> None:
    """Convert precision, division of the model and recomputation, and where metrics go."""
    if flags.text("model_dtype") == "bfloat16":
        flags.set("parallel.precision", "bfloat16")
    if flags.recipe != "grpo" and flags.whole("zero_stage") >= 2:
        flags.set("parallel.data", "fsdp")
    if flags.whole("tensor_parallel_degree", 1) > 1:
        flags.set("parallel.tensor", flags.whole("tensor_parallel_degree"))
    budget = flags.number("activation_memory_budget", 1.0)
    if budget < 1.0:
        flags.set("parallel.checkpointing", {"kind": "budget", "share": budget})
    elif flags.switch("gradient_checkpointing"):
        flags.set("parallel.checkpointing", {"kind": "full"})
    if flags.switch("compile_model") or budget < 1.0:
        flags.set("parallel.compile", value=True)
    if flags.switch("with_tracking") and {"all", "wandb"} & set(flags.words("report_to") or ["all"]):
        names = {"project": flags.text("wandb_project_name"), "entity": flags.text("wandb_entity")}
        flags.set("callbacks.wandb", {"kind": "wandb", **{key: value for key, value in names.items() if value}})


_TEMPLATE = "save it as a file of Jinja, leave the flag out, and set `data.template` to the file after the conversion"


def _optimiser(flags: Flags) -> None:
    """Convert the optimiser and the shape of the schedule."""
    flags.set("optim.lr", flags.number("learning_rate"))
    flags.set("optim.weight_decay", flags.number("weight_decay"))
    norm = flags.number("max_grad_norm", -1.0)
    flags.set("optim.max_grad_norm", norm if norm > 0 else None)
    if betas := flags.text("betas"):
        flags.set("optim.betas", betas)
    kind, final = flags.text("lr_scheduler_type", "linear"), flags.text("final_lr_ratio")
    shapes: dict[str, dict[str, object]] = {
        "linear": {"kind": "linear", "final": float(final or 0.0)},
        "polynomial": {"kind": "linear", "final": 0.0},
        "cosine": {"kind": "cosine", "final": 0.0},
        "cosine_with_restarts": {"kind": "cosine", "final": 0.0},
        "constant": {"kind": "constant"},
        "constant_with_warmup": {"kind": "constant"},
    }
    if kind not in shapes:
        flags.wrong("lr_scheduler_type", f"is none of {', '.join(shapes)}")
    elif warmup := _warmup(flags) if kind != "constant" else 0:
        flags.set("schedule", {**shapes[kind], "warmup": f"{warmup} steps"})
    else:
        flags.set("schedule", shapes.get(kind))


def _warmup(flags: Flags) -> int:
    """Return the steps of the warm-up; a ratio precedes a number of steps, as it does there."""
    ratio, steps = flags.number("warmup_ratio"), flags.whole("warm_up_steps")
    if not ratio:
        return steps
    total = _num_steps(flags)
    if total is None:
        flags.notes.append(
            f"--warmup_ratio: the number of steps depends on the rows; set `schedule.warmup` to {ratio:g} of them"
        )
    return int(total * ratio) if total else 0


def _num_steps(flags: Flags) -> int | None:
    """Return the optimiser steps of the run; None if they depend on the number of rows."""
    if flags.recipe == "grpo":
        episodes = flags.whole("num_unique_prompts_rollout") * flags.whole("num_samples_per_prompt_rollout")
        per_batch = flags.whole("num_mini_batches", 1) * flags.whole("num_epochs", 1)
        return flags.whole("total_episodes") // max(1, episodes) * per_batch
    if flags.text("max_train_steps"):
        return flags.whole("max_train_steps")
    if flags.recipe == "reward" and flags.text("total_episodes"):
        return flags.whole("total_episodes") // _batch_rows(flags)
    counts = [word for word in flags.values.get("dataset_mixer_list", [])[1::2] if "." not in word]
    if not counts or len(counts) * 2 < len(flags.values["dataset_mixer_list"]) or not all(map(str.isdigit, counts)):
        return None
    return sum(map(int, counts)) // _batch_rows(flags) * flags.whole("num_epochs", 1)


def _batch_rows(flags: Flags) -> int:
    each = flags.whole("per_device_train_batch_size", 1) * flags.whole("gradient_accumulation_steps", 1)
    return max(1, each * flags.whole("processes", 1))


def _length(flags: Flags) -> None:
    """Convert the length of the run, checkpoints and their folder."""
    steps = _num_steps(flags) if flags.recipe == "grpo" or flags.text("max_train_steps") else None
    if flags.recipe == "reward" and flags.text("total_episodes"):
        steps = _num_steps(flags)
    flags.set("duration", f"{steps} steps" if steps is not None else f"{flags.whole('num_epochs', 1)} epochs")
    every = flags.text("save_freq" if flags.recipe == "grpo" else "checkpointing_steps")
    if every == "epoch":
        flags.set("checkpoint.every", "1 epochs")
    else:
        flags.set("checkpoint.every", f"{every} steps" if every.isdigit() and int(every) else None)
    ephemeral = flags.whole("ephemeral_save_interval", -1)
    if flags.recipe == "grpo" and flags.text("checkpoint_state_dir"):
        ephemeral = flags.whole("checkpoint_state_freq", -1)
        flags.notes.append("--checkpoint_state_dir: weights and training state are in the same checkpoints")
    if ephemeral > 0 and f"{ephemeral}" != every:
        flags.set("checkpoint.ephemeral_every", f"{ephemeral} steps")
    keep = flags.whole("keep_last_n_checkpoints", -1)
    if keep > 0 and flags.recipe != "grpo":
        flags.set("checkpoint.keep", keep)
    folder, is_fixed = flags.text("output_dir").rstrip("/"), flags.switch("do_not_randomize_output_dir")
    if folder:
        name = as_name(flags.text("exp_name")) or flags.recipe
        flags.set("checkpoint.folder", folder if is_fixed else f"{folder}/{name}")


def _data(flags: Flags) -> None:
    """Convert the mixture and what is done with its rows."""
    flags.set("data.mix", list(_mixture(flags)))
    names = flags.words("dataset_transform_fn")
    unknown = [name for name in names if name not in _TRANSFORMS]
    for name in unknown:
        message = f"transform `{name}` of open-instruct is not shipped"
        hint = "write it as `module:function`, leave the flag out, and set `data.transforms` after the conversion"
        flags.problems.append(Problem(message, UNSUPPORTED, hint=hint))
    cut = next((_TRANSFORMS[name] for name in names if _TRANSFORMS.get(name)), "")
    usual = "drop" if flags.recipe in ("grpo", "reward") else "truncate"
    is_dropped = flags.text("over_length_strategy") == "drop"
    flags.set("data.long_sequences", "drop" if is_dropped else cut or usual)
    if flags.recipe == "grpo":
        return
    lengths = ("max_token_length", "max_seq_length") if flags.recipe == "reward" else ("max_seq_length",)
    longest = next((flags.whole(name) for name in lengths if flags.text(name)), 4096)
    each = flags.whole("per_device_train_batch_size", 1) * (1 if flags.recipe == "sft" else 2)
    flags.set("data.max_length", longest)
    flags.set("data.batch_rows", _batch_rows(flags))
    flags.set("data.microbatch_tokens", each * longest)


def _mixture(flags: Flags) -> Iterator[dict[str, object]]:
    words, splits = flags.words("dataset_mixer_list"), flags.words("dataset_mixer_list_splits") or ["train"]
    if "dataset_mixer" in flags.values:
        parts = decode_json(flags.text("dataset_mixer") or "{}")
        words = [word for name, amount in parts.items() for word in (name, str(amount))]
    if file := flags.text("train_file"):
        words = [file, "1.0"]
    if not words:
        name, subset = flags.text("dataset_name"), flags.text("dataset_config_name")
        if not name:
            hint = "name it, such as `--dataset_mixer_list NAME 1.0`"
            flags.problems.append(Problem("no data set", "missing-key", hint=hint))
        yield {"source": f"hf:{name}", "subset": subset}
        return
    try:
        yield from (to_data(source) for source in from_mixer_list(words, splits=splits))
    except SpecError as error:
        flags.problems += error.problems


def _sft(flags: Flags) -> None:
    if flags.text("reduce_loss", "mean") == "sum":
        flags.notes.append("--reduce_loss sum: every token of a batch has the same weight, and the loss is their mean")


def _reward(flags: Flags) -> None:
    if flags.text("max_prompt_token_length"):
        flags.notes.append("--max_prompt_token_length: `data.max_length` limits the prompt and the answer together")


def _dpo(flags: Flags) -> None:
    kind = flags.text("loss_type")
    loss: dict[str, object] = {"kind": kind, "beta": flags.number("beta")}
    if smoothing := flags.number("label_smoothing"):
        loss["label_smoothing"] = smoothing
    if kind == "simpo":
        loss["target_margin"] = flags.number("gamma_beta_ratio", 0.3)
    if kind == "wpo":
        loss["alignment"] = "none"
    flags.set("objective.losses", [loss])


def _grpo(flags: Flags) -> None:
    prompt, answer = flags.whole("max_prompt_token_length"), flags.whole("response_length")
    flags.set("data.max_length", prompt)
    flags.set("data.batch_rows", flags.whole("num_unique_prompts_rollout"))
    flags.set("data.microbatch_tokens", flags.whole("pack_length") * flags.whole("per_device_train_batch_size", 1))
    flags.set("rollout.group_size", flags.whole("num_samples_per_prompt_rollout"))
    flags.set("rollout.max_new_tokens", answer)
    flags.set("rollout.minibatches", flags.whole("num_mini_batches", 1))
    flags.set("rollout.epochs", flags.whole("num_epochs", 1))
    if batches := flags.whole("async_steps"):
        steps = flags.whole("num_mini_batches", 1) * flags.whole("num_epochs", 1)
        flags.set("async.bound", (batches + 1) * steps - 1)
        flags.set("async.ahead", batches)
        is_in_flight, is_new = map(flags.switch, ("inflight_updates", "inflight_updates_recompute_kv_cache"))
        flags.set("async.in_flight", ("recompute" if is_new else "keep") if is_in_flight else "finish")
    if rate := flags.number("no_resampling_pass_rate", 0.0):
        flags.set("rollout.retire", {"rate": rate, "reward": flags.number("verification_reward", 10.0)})
    if (top_p := flags.number("vllm_top_p", 1.0)) < 1.0:
        flags.set("rollout.top_p", top_p)
    if flags.switch("active_sampling"):
        flags.set("rollout.refills", 10)
        flags.notes.append("--active_sampling: batches are filled in at most 10 rounds, `rollout.refills`")
    if stops := flags.words("stop_strings"):
        flags.set("rollout.stop_texts", stops)
    scales = {"centered": "none", "standard": "group_std", "maxrl": "group_mean"}
    scale = scales.get(flags.text("advantage_normalization_type"))
    if scale is None:
        flags.wrong("advantage_normalization_type", f"is none of {', '.join(scales)}")
    flags.set("advantage", {"scale": scale or "none", "std": "population", "epsilon": 1e-8})
    _policy_loss(flags)
    _verifiers(flags)


def _policy_loss(flags: Flags) -> None:
    kind = flags.text("loss_fn")
    if kind not in ("dapo", "cispo"):
        flags.wrong("loss_fn", "is not supported: dapo and cispo are")
    flags.set("objective.clip", "cispo" if kind == "cispo" else "ppo")
    flags.set("objective.clip_low", None if kind == "cispo" else flags.number("clip_lower"))
    flags.set("objective.clip_high", flags.number("clip_higher"))
    estimator = {"kl1": 0, "kl2": 1, "kl3": 2, "kl4": 3}.get(flags.text("kl_estimator"))
    number = flags.whole("kl_estimator") if estimator is None else estimator
    if beta := flags.number("beta"):
        if number > 2:
            flags.wrong("kl_estimator", "is not supported: 0, 1 and 2 are")
        flags.set("objective.kl", {"coefficient": beta, "estimator": f"k{number + 1}"})
    bounds = {
        "clamp_max": flags.number("truncated_importance_sampling_ratio_cap"),
        "mask_min": flags.number("tis_mask_lower"),
        "mask_max": flags.number("tis_mask_upper"),
    }
    found = {name: bound for name, bound in bounds.items() if bound > 0}
    flags.set("objective.correction", {**found, "max_log_ratio": 10.0} if found else None)


def _verifiers(flags: Flags) -> None:
    weight = flags.number("verification_reward", 10.0)
    words = re.split(r"[^a-z0-9]+", " ".join(flags.values.get("dataset_mixer_list", [])[::2]).lower())
    names = {found for part, found in _VERIFIERS.items() if any(word.startswith(part) for word in words)}
    if not flags.switch("apply_verifiable_reward", default=True):
        names = set()
    else:
        names = names or {"math"}
        flags.notes.append(
            "rewards: open-instruct chooses a verifier for each row by its column `dataset`; here all of "
            f"`reward.verifiers` score every row, and {', '.join(sorted(names))} is a guess from the names of the data"
        )
    found: list[dict[str, object]] = [{"name": name, "weight": weight} for name in sorted(names)]
    if flags.switch("apply_r1_style_format_reward"):
        if not flags.switch("additive_format_reward") and found:
            flags.wrong("apply_r1_style_format_reward", "needs `--additive_format_reward true`: rewards are sums here")
        settings = {"regex": _R1_FORMAT}
        found.append({"name": "format", "settings": settings, "weight": flags.number("r1_style_format_reward", 1.0)})
    if flags.switch("non_stop_penalty"):
        flags.set("reward.truncated", flags.number("non_stop_penalty_value"))
    if found:
        flags.set("reward.verifiers", found)
    else:
        flags.problems.append(
            Problem("no reward is applied", UNSUPPORTED, hint="leave `--apply_verifiable_reward` out")
        )


_PARTS: Mapping[str, Callable[[Flags], None]] = {"sft": _sft, "reward": _reward, "dpo": _dpo, "grpo": _grpo}
