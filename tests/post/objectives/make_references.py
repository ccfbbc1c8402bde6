"""Make references.json: losses and gradients of TRL's trainers and open-instruct's functions on fixed float64 inputs.

    python tests/post/objectives/make_references.py --open-instruct CHECKOUT/open_instruct

Needs TRL, which windlass does not depend on: run it in an environment of its own. TRL's methods run as they are, on an
object that holds only what they read; open-instruct's functions are taken out of their files by name, so that its other
requirements are not needed.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import inspect
import json
import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
import trl
from torch import Tensor
from torch.nn import functional as F
from trl.experimental.cpo import CPOTrainer
from trl.trainer import grpo_trainer
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.reward_trainer import RewardTrainer
from trl.trainer.rloo_trainer import RLOOTrainer
from trl.trainer.sft_trainer import SFTTrainer

TARGET = Path(__file__).with_name("references.json")
LENGTHS = [5, 3, 1, 4, 0, 5, 2, 4]
"""Labels of the 8 answers of at most 5; one has none."""

Case = dict[str, Any]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--open-instruct", type=Path, required=True, help="folder that holds grpo_utils.py")
    folder = parser.parse_args().open_instruct
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)  # TRL's nanstd divides integers
    inputs = make_inputs()
    cases = {
        **dict(policy_cases(inputs)),
        **dict(correction_cases(inputs)),
        **dict(advantage_cases(inputs)),
        **dict(preference_cases(inputs)),
        **dict(reward_cases(inputs)),
        **dict(supervised_cases(inputs)),
    }
    functions = open_instruct(folder)
    cases |= dict(open_instruct_cases(functions, inputs))
    versions = {"trl": trl.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    made = {
        "made_by": {**versions, "open_instruct_sha256": functions["sha256"]},
        "inputs": {name: tensor.tolist() for name, tensor in inputs.items()},
        "cases": cases,
    }
    lines = [f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items()]
    head = json.dumps({name: made[name] for name in ("made_by", "inputs")}, indent=1)
    TARGET.write_text(head[:-2] + ',\n "cases": {\n' + ",\n".join(lines) + "\n}}\n")


def make_inputs() -> dict[str, Tensor]:
    """Log-probabilities with ratios on both sides of every clip range; all are 0 where the mask is."""
    generator = torch.Generator().manual_seed(15)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mask = (torch.arange(5) < torch.tensor(LENGTHS)[:, None]).double()
    logp = -normal(8, 5).exp()
    found = {
        "logp": logp,
        "proximal": logp + 0.4 * normal(8, 5),
        "behaviour": logp + 0.5 * normal(8, 5),
        "reference": logp + 0.7 * normal(8, 5),
        "log_squares": -normal(8, 5).exp(),
        "entropy": normal(8, 5).exp(),
        "values": normal(8, 5),
    }
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 2.5, 2.5, 2.5, 2.5, -1.0, 0.5, 3.0, 0.25], dtype=torch.float64)
    scored = rewards.clone()
    scored[[1, 9, 10]] = math.nan
    masked = {name: tensor * mask for name, tensor in found.items()}
    return {
        **masked,
        "mask": mask,
        "advantage": normal(8),
        "rewards": rewards,
        "rewards_nan": scored,
        "margins": normal(4),
    }


def graded(call: Callable[[Tensor], Tensor], leaf: Tensor) -> Case:
    """Value and gradient of a scalar."""
    leaf = leaf.clone().requires_grad_()
    value = call(leaf)
    value.backward()
    assert leaf.grad is not None
    return {"value": float(value.detach()), "grad": leaf.grad.tolist()}


def accelerator() -> SimpleNamespace:
    return SimpleNamespace(
        device="cpu",
        num_processes=1,
        sync_gradients=True,
        parallelism_config=None,
        gather=lambda value: value,
        gather_for_metrics=lambda value: value,
        reduce=lambda value, reduction: value,
    )


def trainer(**own: Any) -> SimpleNamespace:
    """What the methods of TRL's trainers read of their object."""
    return SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=accelerator(),
        aux_loss_enabled=False,
        _metrics={"train": defaultdict(list)},
        current_gradient_accumulation_steps=1,
        _total_train_tokens=0,
        _tp_size=1,
        **own,
    )


def grpo(
    inputs: dict[str, Tensor], *, beta: float = 0.0, times_ratio: bool = True, delta: float | None = None, **own: Any
) -> Case:
    """`GRPOTrainer._compute_loss` on given log-probabilities."""
    settings = {
        "importance_sampling_level": "token",
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "entropy_coef": 0.0,
        "max_completion_length": 7,
        **own,
    }
    weights = settings.pop("correction", None)

    def call(logp: Tensor) -> Tensor:
        fake = trainer(
            _get_per_token_logps_and_entropies=lambda *_, **__: (logp, inputs["entropy"], None),
            top_entropy_quantile=1.0,
            off_policy_mask_threshold=None,
            beta=beta,
            use_vllm=weights is not None,
            vllm_importance_sampling_correction=weights is not None,
            args=SimpleNamespace(use_bias_correction_kl=times_ratio, delta=delta, steps_per_generation=1),
            _entropy_bonus_enabled=settings["entropy_coef"] != 0.0,
            use_adaptive_entropy=False,
            **settings,
        )
        mask = inputs["mask"]
        given = {
            "prompt_ids": torch.zeros(8, 1, dtype=torch.int64),
            "prompt_mask": torch.ones(8, 1),
            "completion_ids": torch.zeros(8, 5, dtype=torch.int64),
            "completion_mask": mask,
            "advantages": inputs["advantage"],
            "old_per_token_logps": inputs["proximal"],
            "ref_per_token_logps": inputs["reference"],
            "importance_sampling_ratio": weights,
            "num_items_in_batch": mask.sum(),
        }
        loss: Tensor = GRPOTrainer._compute_loss(fake, None, given)
        return loss

    return graded(call, inputs["logp"])


def policy_cases(inputs: dict[str, Tensor]) -> Iterator[tuple[str, Case]]:
    """Every loss type that a preset has, without KL, with it, and with it times the ratio."""
    kinds: dict[str, dict[str, Any]] = {
        "grpo": {"loss_type": "grpo"},
        "dr_grpo": {"loss_type": "dr_grpo"},
        "dapo@trl": {"loss_type": "dapo"},
        "dapo@paper": {"loss_type": "dapo", "epsilon_high": 0.28},
        "dapo": {"loss_type": "dapo", "epsilon_high": 0.272},
        "cispo@trl": {"loss_type": "cispo", "epsilon_high": 5.0},
        "cispo": {"loss_type": "cispo", "epsilon_high": 1.272},
        "gspo": {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon_low": 3e-4,
            "epsilon_high": 4e-4,
        },
        "reinforce++": {"loss_type": "dapo"},
        "reinforce++-baseline": {"loss_type": "dapo"},
        "maxrl": {"loss_type": "dapo", "epsilon_low": math.inf, "epsilon_high": math.inf},
    }
    for name, own in kinds.items():
        yield f"policy/{name}/plain", grpo(inputs, **own)
        yield f"policy/{name}/kl", grpo(inputs, beta=0.05, times_ratio=False, **own)
        yield f"policy/{name}/kl_times_ratio", grpo(inputs, beta=0.05, times_ratio=True, **own)
    yield "policy/rloo/plain", rloo(inputs)
    yield "policy/dual_clip", grpo(inputs, loss_type="dapo", delta=1.5)
    yield "policy/entropy_bonus", grpo(inputs, loss_type="grpo", entropy_coef=0.03)
    sequence: dict[str, Any] = {"loss_type": "dapo", "importance_sampling_level": "sequence"}
    yield "policy/gspo_token_mean", grpo(inputs, beta=0.05, times_ratio=True, **sequence)


def rloo(inputs: dict[str, Tensor]) -> Case:
    """`RLOOTrainer._compute_loss` on given log-probabilities."""
    mask = inputs["mask"]

    def call(logp: Tensor) -> Tensor:
        fake = trainer(
            _get_per_token_logps_and_entropies=lambda *_, **__: (logp, inputs["entropy"], None),
            epsilon_low=0.2,
            epsilon_high=0.2,
        )
        given = {
            "prompt_ids": torch.zeros(8, 1, dtype=torch.int64),
            "prompt_mask": torch.ones(8, 1),
            "completion_ids": torch.zeros(8, 5, dtype=torch.int64),
            "completion_mask": mask,
            "advantages": inputs["advantage"],
            "old_logps": (inputs["proximal"] * mask).sum(dim=-1),
        }
        loss: Tensor = RLOOTrainer._compute_loss(fake, None, given)
        return loss

    return graded(call, inputs["logp"])


def excerpt(function: Callable[..., Any], first: str, last: str, *, start: str = "", includes_last: bool = True) -> str:
    """Source lines of a function from the one that begins with `first`, after `start`, to the one with `last`."""
    lines = inspect.getsource(function).splitlines()
    begin = next(place for place, line in enumerate(lines) if start in line)
    begin = next(place for place in range(begin, len(lines)) if lines[place].strip().startswith(first))
    end = next(place for place in range(begin, len(lines)) if lines[place].strip().startswith(last))
    return textwrap.dedent("\n".join(lines[begin : end + includes_last]))


def correction_cases(inputs: dict[str, Tensor]) -> Iterator[tuple[str, Case]]:
    """TRL's correction for engines, and the loss that it weighs."""
    source = excerpt(
        GRPOTrainer._generate_and_score_completions,
        "mask = completion_mask if tool_mask is None",
        "# Compute the per-token log probabilities for the reference model",
        start="Compute the importance sampling ratio when using vLLM",
        includes_last=False,
    )
    for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"):
        for low, high in ((None, 2.0), (0.7, 1.5)):
            self = SimpleNamespace(
                vllm_importance_sampling_mode=mode,
                vllm_importance_sampling_clip_min=low,
                vllm_importance_sampling_clip_max=high,
            )
            space = {
                "self": self,
                "torch": torch,
                "math": math,
                "completion_mask": inputs["mask"],
                "tool_mask": None,
                "old_per_token_logps": inputs["proximal"],
                "sampling_per_token_logps": inputs["behaviour"],
            }
            exec(source, space)
            weights = space["vllm_importance_sampling_ratio"]
            yield f"correction/{mode}/{low}/{high}", grpo(inputs, loss_type="dapo", correction=weights, beta=0.05)


def advantage_cases(inputs: dict[str, Tensor]) -> Iterator[tuple[str, Case]]:
    """TRL's advantages of 3 groups of 4, with and without answers that could not be scored."""
    last = "advantages = torch.nan_to_num(advantages, nan=0.0)"
    source = excerpt(GRPOTrainer._generate_and_score_completions, "if self.multi_objective_aggregation ==", last)
    leave_one_out = excerpt(
        RLOOTrainer._generate_and_score_completions, "grouped_rewards = rewards.view(-1, num_generations)", last
    )
    for kind in ("rewards", "rewards_nan"):
        rewards = inputs[kind]
        space: dict[str, Any] = {
            "torch": torch,
            "nanstd": grpo_trainer.nanstd,
            "num_generations": 4,
            "device": "cpu",
            "rewards_per_func": rewards[:, None],
            "unscorable_mask": rewards.isnan(),
        }
        for scale in ("group", "batch", "none"):
            own = dict(space)
            own["self"] = SimpleNamespace(
                multi_objective_aggregation="sum_then_normalize",
                scale_rewards=scale,
                reward_weights=torch.ones(1, dtype=torch.float64),
            )
            exec(source, own)
            yield f"advantage/{kind}/{scale}", {"value": own["advantages"].tolist()}
        for normalises in (False, True):
            own = {**space, "rewards": rewards.clone(), "self": SimpleNamespace(normalize_advantages=normalises)}
            exec(leave_one_out, own)
            yield f"advantage/{kind}/rloo/{normalises}", {"value": own["advantages"].tolist()}


def preference_cases(inputs: dict[str, Tensor]) -> Iterator[tuple[str, Case]]:
    """`DPOTrainer._compute_loss`; the first four answers are chosen, the last four rejected."""
    mask = torch.cat([torch.zeros(8, 1, dtype=torch.float64), inputs["mask"]], dim=1)
    reference = (inputs["reference"] * inputs["mask"]).sum(dim=-1)

    def dpo(kinds: list[str], weights: list[float], beta: float, *, weighs: bool = False) -> Case:
        def call(logp: Tensor) -> Tensor:
            fake = trainer(
                ld_alpha=None,
                precompute_ref_logps=True,
                f_divergence_type="reverse_kl",
                loss_types=kinds,
                loss_weights=weights,
                beta=beta,
                label_smoothing=0.0,
                use_weighting=weighs,
            )
            flags = torch.zeros(8, 5, dtype=torch.bool)
            scores = SimpleNamespace(
                log_probs=logp * inputs["mask"],
                log_sum_sq_probs=inputs["log_squares"],
                entropy=inputs["entropy"],
                mean_logits=inputs["entropy"],
                is_top1=flags,
            )
            given = {
                "input_ids": torch.zeros(8, 6, dtype=torch.int64),
                "attention_mask": torch.ones(8, 6),
                "completion_mask": mask,
                "ref_chosen_logps": reference[:4],
                "ref_rejected_logps": reference[4:],
            }
            loss: Tensor = DPOTrainer._compute_loss(fake, lambda **_: scores, given, False)
            return loss

        return graded(call, inputs["logp"])

    yield "preference/dpo", dpo(["sigmoid"], [1.0], 0.1)
    yield "preference/dpo_norm", dpo(["sigmoid_norm"], [1.0], 5.0)
    yield "preference/ipo", dpo(["ipo"], [1.0], 0.1)
    yield "preference/wpo", dpo(["sigmoid"], [1.0], 0.1, weighs=True)
    yield "preference/nll", dpo(["sft"], [1.0], 0.1)
    yield "preference/dpo+nll", dpo(["sigmoid", "sft"], [0.8, 0.2], 0.1)
    yield "preference/dpo+ipo+nll", dpo(["sigmoid", "ipo", "sft"], [1.0, 0.5, 0.25], 0.3)
    lengths = inputs["mask"].sum(dim=-1).clamp(min=1.0)
    for smoothing in (0.0, 0.1):
        fake = trainer(alpha=0.0, loss_type="simpo", simpo_gamma=1.0, beta=2.0, label_smoothing=smoothing)

        def simpo(logp: Tensor, fake: SimpleNamespace = fake) -> Tensor:
            means = (logp * inputs["mask"]).sum(dim=-1) / lengths
            losses: Tensor = CPOTrainer.cpo_loss(fake, means[:4], means[4:])[0]
            return losses.mean()

        yield f"preference/simpo/{smoothing}", graded(simpo, inputs["logp"])


def reward_cases(inputs: dict[str, Tensor]) -> Iterator[tuple[str, Case]]:
    """`RewardTrainer.compute_loss`; a reward is the head's output at the first label."""
    for centring in (None, 0.01):
        for has_margin in (False, True):

            def call(values: Tensor, centring: float | None = centring, has_margin: bool = has_margin) -> Tensor:
                fake = trainer(args=SimpleNamespace(center_rewards_coefficient=centring))
                given: dict[str, Any] = {"attention_mask": torch.ones(8, 5)}
                if has_margin:
                    given["margin"] = inputs["margins"]
                outputs = SimpleNamespace(logits=values[:, :1])

                def model(**_: Any) -> SimpleNamespace:
                    return outputs

                loss: Tensor = RewardTrainer.compute_loss(fake, model, given)
                return loss

            yield f"reward/{centring}/{has_margin}", graded(call, inputs["values"])


def supervised_cases(inputs: dict[str, Tensor]) -> Iterator[tuple[str, Case]]:
    """`SFTTrainer.compute_loss`."""
    for kind in ("nll", "dft"):

        def call(logp: Tensor, kind: str = kind) -> Tensor:
            fake = trainer(
                compute_loss_func=None,
                label_smoother=None,
                args=SimpleNamespace(loss_type=kind, average_tokens_across_devices=False, max_length=None),
            )
            scores = SimpleNamespace(
                log_probs=logp * inputs["mask"],
                label_mask=inputs["mask"],
                entropy=inputs["entropy"],
                is_top1=torch.zeros(8, 5),
            )
            given = {"input_ids": None, "labels": None, "attention_mask": torch.ones(8, 5)}
            loss: Tensor = SFTTrainer.compute_loss(fake, lambda **_: scores, given)
            return loss

        yield f"supervised/{kind}", graded(call, inputs["logp"])


def open_instruct(folder: Path) -> dict[str, Any]:
    """Functions of open-instruct's loss, and a checksum of their sources."""
    wanted = {
        "grpo_utils.py": ["compute_grpo_loss", "_rho_drop_masks", "_sequence_level_mean", "compute_rho_correction"],
        "model_utils.py": ["estimate_kl"],
        "dpo_utils.py": ["dpo_loss", "simpo_loss"],
    }
    space: dict[str, Any] = {
        "torch": torch,
        "F": F,
        "GRPOLossType": SimpleNamespace(dapo="dapo", cispo="cispo"),
        "RhoCorrection": SimpleNamespace,
    }
    digest = hashlib.sha256()
    for file, names in wanted.items():
        text = (folder / file).read_text()
        found = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
        for name in names:
            body = found[name].body
            if ast.get_docstring(found[name]) is not None:
                del body[0]
            source = ast.unparse(found[name])
            digest.update(source.encode())
            exec("from __future__ import annotations\n" + source, space)
    space["model_utils"] = SimpleNamespace(estimate_kl=space["estimate_kl"])
    return {**space, "sha256": digest.hexdigest()}


def open_instruct_cases(functions: dict[str, Any], inputs: dict[str, Tensor]) -> Iterator[tuple[str, Case]]:
    """Its loss over the mean of tokens, as `masked_mean` takes it with loss_denominator=token, and its losses of pairs."""
    mask, advantages = inputs["mask"], inputs["advantage"][:, None].expand(8, 5)

    def policy(estimator: int, **own: Any) -> Case:
        settings = {
            "clip_lower": 0.2,
            "clip_higher": 0.272,
            "kl_estimator": estimator,
            "use_rho_correction": False,
            "rho_mask_sequence_level": False,
            "rho_mask_tv_divergence": False,
            "rho_clamp_lower_bound": 0.0,
            "rho_clamp_upper_bound": 0.0,
            "rho_mask_lower_bound": 0.0,
            "rho_mask_upper_bound": 0.0,
            **own,
        }
        beta = settings.pop("beta")
        config = SimpleNamespace(**settings)

        def call(logp: Tensor) -> Tensor:
            weights = functions["compute_rho_correction"](
                inputs["proximal"], inputs["behaviour"], mask.bool(), advantages, config
            ).weights
            loss, _, kl = functions["compute_grpo_loss"](
                logp, torch.exp(logp - inputs["proximal"]), advantages, inputs["reference"], config, weights
            )
            found: Tensor = ((loss + beta * kl) * mask).sum() / mask.sum()
            return found

        return graded(call, inputs["logp"])

    for kind in ("dapo", "cispo"):
        yield f"open_instruct/{kind}/0/plain", policy(2, loss_fn=kind, beta=0.0)
        for estimator in range(4):
            yield f"open_instruct/{kind}/{estimator}/kl", policy(estimator, loss_fn=kind, beta=0.05)
    rho = {"loss_fn": "dapo", "beta": 0.05, "use_rho_correction": True}
    yield "open_instruct/rho/clamp", policy(2, **rho, rho_clamp_upper_bound=2.0)
    both = {"rho_clamp_upper_bound": 1.3, "rho_mask_lower_bound": 0.5, "rho_mask_upper_bound": 1.6}
    yield "open_instruct/rho/both", policy(2, **rho, **both)
    narrow = {"rho_clamp_lower_bound": 0.9, "rho_mask_lower_bound": 0.7, "rho_mask_upper_bound": 1.2}
    yield "open_instruct/rho/sequence_mean", policy(2, **rho, **narrow, rho_mask_sequence_level=True)
    lengths = mask.sum(dim=-1).clamp(min=1.0)
    reference = (inputs["reference"] * mask).sum(dim=-1)
    for smoothing in (0.0, 0.1):

        def dpo(logp: Tensor, smoothing: float = smoothing) -> Tensor:
            sums = (logp * mask).sum(dim=-1)
            policy, fixed = (sums[:4], sums[4:]), (reference[:4], reference[4:])
            losses: Tensor = functions["dpo_loss"](*policy, *fixed, beta=0.1, label_smoothing=smoothing)[0]
            return losses.mean()

        def dpo_norm(logp: Tensor, smoothing: float = smoothing) -> Tensor:
            means, fixed = (logp * mask).sum(dim=-1) / lengths, reference / lengths
            losses: Tensor = functions["dpo_loss"](
                means[:4], means[4:], fixed[:4], fixed[4:], beta=5.0, label_smoothing=smoothing
            )[0]
            return losses.mean()

        def simpo(logp: Tensor, smoothing: float = smoothing) -> Tensor:
            means = (logp * mask).sum(dim=-1) / lengths
            losses: Tensor = functions["simpo_loss"](
                means[:4], means[4:], beta=2.0, gamma_beta_ratio=0.3, label_smoothing=smoothing
            )[0]
            return losses.mean()

        yield f"open_instruct/dpo/{smoothing}", graded(dpo, inputs["logp"])
        yield f"open_instruct/dpo_norm/{smoothing}", graded(dpo_norm, inputs["logp"])
        yield f"open_instruct/simpo/{smoothing}", graded(simpo, inputs["logp"])


if __name__ == "__main__":
    main()
