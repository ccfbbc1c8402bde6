"""The same weights in windlass, transformers and ai2-olmo-core: logits, 30 steps of AdamW, OLMo-core's own checkpoints.

    python benches/bench_train_parity.py

Needs transformers and ai2-olmo-core beside windlass (`make .venv-bench/.made`); CPU, float32, a minute. Ends with an
error when logits differ by more than 1e-5, a loss of the trajectories by more than 1e-6 (absolute), or a checkpoint that OLMo-core
wrote is not read back to the last bit. A run that is stopped and resumed must be the one that was not, in OLMo-core's
format too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
from olmo_core.distributed.checkpoint import save_model_and_optim_state
from olmo_core.nn.attention import SlidingWindowAttentionConfig
from olmo_core.nn.rope import YaRNRoPEScalingConfig
from olmo_core.nn.transformer import TransformerBlockType, TransformerConfig
from olmo_core.optim import AdamWConfig
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from windlass.train.batch import IGNORE, Batch
from windlass.train.hf.check import compare_layers
from windlass.train.hf.convert_weights import export_model
from windlass.train.hf.mapped import ModuleWeights, fill
from windlass.train.hf.warm_start import warm_start
from windlass.train.model.decoder import Decoder
from windlass.train.modules.language import LanguageModule
from windlass.train.modules.protocol import StepFacts
from windlass.train.modules.state import training_state
from windlass.train.olmo_core.checkpoint import OLMO_CORE, open_olmo_core
from windlass.train.optim.build import build_optimizer
from windlass.train.optim.config import AdamWConfig as WindlassAdamW

VOCAB, WIDTH, LAYERS, STEPS = 512, 128, 4, 30
LOGITS_BOUND, LOSS_BOUND = 1e-5, 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One family's figures.

    The columns of losses compare what each reports, a float32 mean. `module_hf` and `module_olmo_core` compare what windlass's
    train module reports, with its own loss and optimiser, with the peers' losses from their own logits, summed in float64
    as the module sums: `rounding` is how far off its value the float32 mean is that transformers reports.
    """

    family: str
    logits_hf: float
    logits_olmo_core: float
    loss_hf: float
    loss_olmo_core: float
    module_hf: float
    module_olmo_core: float
    rounding: float
    first_loss: float
    last_loss: float
    resumed_bits: bool
    read_bits: bool

    @property
    def is_within(self) -> bool:
        """Whether every bound holds."""
        logits = max(self.logits_hf, self.logits_olmo_core)
        return (
            logits <= LOGITS_BOUND
            and max(self.loss_hf, self.loss_olmo_core, self.module_hf, self.module_olmo_core) <= LOSS_BOUND
            and self.resumed_bits
            and self.read_bits
        )


def families() -> dict[str, TransformerConfig]:
    """Tiny models of each family, as OLMo-core builds them."""
    base: dict[str, Any] = {"vocab_size": VOCAB, "d_model": WIDTH, "n_layers": LAYERS, "n_heads": 4}
    reordered = {"block_name": TransformerBlockType.reordered_norm, "qk_norm": True}
    olmo3 = TransformerConfig.llama_like(
        rope_theta=500_000,
        layer_norm_eps=1e-6,
        sliding_window=SlidingWindowAttentionConfig(
            pattern=[16, 16, 16, -1],
            force_full_attention_on_first_layer=False,
            force_full_attention_on_last_layer=True,
        ),
        **reordered,
        **base,
    )
    return {
        "llama": TransformerConfig.llama_like(rope_theta=10_000, layer_norm_eps=1e-5, n_kv_heads=2, **base),
        "olmo2": TransformerConfig.llama_like(rope_theta=500_000, layer_norm_eps=1e-6, **reordered, **base),
        "olmo3": olmo3,
        "olmo3, yarn": olmo3.with_rope_scaling(YaRNRoPEScalingConfig(factor=8.0, old_context_len=32)),
        "qwen3": TransformerConfig.llama_like(
            rope_theta=1_000_000,
            layer_norm_eps=1e-6,
            qk_norm=True,
            use_head_qk_norm=True,
            n_kv_heads=2,
            head_dim=32,
            **base,
        ),
    }


def measure(family: str, config: TransformerConfig, folder: Path) -> Row:
    """All comparisons of one family; the weights are OLMo-core's, read by windlass from its checkpoint."""
    torch.manual_seed(0)
    peer = config.build(init_device="cpu")
    peer.init_weights(max_seq_len=64, device=torch.device("cpu"))
    with torch.no_grad():
        for parameter in peer.parameters():
            if parameter.dim() == 1:  # norms that are not 1, so that one in a wrong place shows
                parameter.add_(0.1 * torch.randn_like(parameter))
    ours = read(peer, config, folder / "step1")
    hf = to_transformers(ours, folder / "hf")
    tokens_BT = torch.randint(0, VOCAB, (2, 64), generator=torch.Generator().manual_seed(1))
    logits_hf = compare_layers(ours, hf, tokens_BT)
    logits_peer = compare_layers(ours, peer, tokens_BT)
    resumed = resumes(ours, folder / "step2", config)
    by_module = module_trajectory(copy_of(ours))
    losses, exact = zip(*(trajectory(net) for net in (ours, hf, peer)), strict=True)
    return Row(
        family=family,
        logits_hf=logits_hf.logits.difference,
        logits_olmo_core=logits_peer.logits.difference,
        loss_hf=apart(losses[0], losses[1]),
        loss_olmo_core=apart(losses[0], losses[2]),
        module_hf=apart(by_module, exact[1]),
        module_olmo_core=apart(by_module, exact[2]),
        rounding=apart(losses[1], exact[1]),
        first_loss=losses[0][0],
        last_loss=losses[0][-1],
        resumed_bits=resumed,
        read_bits=reads_training_state(peer, config, folder / "step31"),
    )


def read(peer: nn.Module, config: TransformerConfig, folder: Path) -> Decoder:
    """OLMo-core writes a checkpoint, windlass reads it."""
    write(peer, config, folder)
    with open_olmo_core(str(folder)) as found:
        ours = Decoder(found.config)
        fill(dict(ours.named_parameters()), found, found.source)
    return ours


def write(peer: nn.Module, config: TransformerConfig, folder: Path, optimizer: Any = None) -> None:
    """A checkpoint as OLMo-core's trainer leaves it."""
    folder.mkdir(parents=True)
    save_model_and_optim_state(folder / "model_and_optim", peer, optimizer)
    record = {"model": config.as_config_dict(), "dataset": {"sequence_length": 256}}
    (folder / "config.json").write_text(json.dumps(record))


def to_transformers(ours: Decoder, folder: Path) -> nn.Module:
    """Windlass exports, transformers loads."""
    export_model(ours.config, ModuleWeights(ours), folder)
    made: nn.Module = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32)
    return made


def logits_of(net: nn.Module, tokens_BT: Tensor) -> Tensor:
    """Logits, whatever the model wraps them in."""
    made: Any = net(tokens_BT)
    logits_BTV: Tensor = made.logits if hasattr(made, "logits") else made
    return logits_BTV


def batches(first: int, last: int) -> Iterator[Tensor]:
    """Batches of steps, each a function of its number; few tokens, so that there is something to learn."""
    for step in range(first, last):
        yield torch.randint(0, 64, (4, 64), generator=torch.Generator().manual_seed(1000 + step))


def train(net: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> tuple[list[float], list[float]]:
    """Plain steps of next-token prediction; the loss of each, a float32 mean, and the same summed in float64."""
    losses, exact = [], []
    for tokens_BT in batches(first, last):
        logits_NV, labels_N = logits_of(net, tokens_BT)[:, :-1].reshape(-1, VOCAB), tokens_BT[:, 1:].reshape(-1)
        loss = nn.functional.cross_entropy(logits_NV, labels_N)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        exact.append(float(nn.functional.cross_entropy(logits_NV.detach().double(), labels_N)))
    return losses, exact


def adamw(net: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of all trajectories."""
    return torch.optim.AdamW(net.parameters(), lr=1e-3)


def trajectory(net: nn.Module) -> tuple[list[float], list[float]]:
    """Losses of 30 steps, rounded and not."""
    net.train()
    return train(net, adamw(net), 0, STEPS)


def module_trajectory(ours: Decoder) -> list[float]:
    """The same steps by windlass's own train module."""
    config = WindlassAdamW(lr=1e-3, weight_decay=1e-2, betas=(0.9, 0.999), max_grad_norm=None, is_fused=False)
    module = LanguageModule(ours, build_optimizer(ours, config), max_grad_norm=None)
    losses = []
    for step, tokens_BT in enumerate(batches(0, STEPS), 1):
        labels_BT = nn.functional.pad(tokens_BT[:, 1:], (0, 1), value=IGNORE)
        batch = Batch(tokens_BT=tokens_BT, labels_BT=labels_BT, num_rows_step=len(tokens_BT))
        facts = StepFacts(step=step, tokens=0, total_weight=module.weigh(batch), lr_factor=1.0)
        losses.append(float(module.train_batch(batch, facts)["loss"]))
        module.optim_step(facts)
    return losses


def apart(left: Sequence[float], right: Sequence[float]) -> float:
    """The largest difference of two trajectories."""
    return max(abs(a - b) for a, b in zip(left, right, strict=True))


def resumes(ours: Decoder, folder: Path, config: TransformerConfig) -> bool:
    """Ten steps in OLMo-core, a checkpoint of it, and ten more in windlass: the bits of twenty in windlass.

    The steps in front are reserved, put into OLMo-core's model and optimiser, so that only the way over their
    checkpoint is compared.
    """
    straight, first = copy_of(ours), copy_of(ours)
    train(straight, adamw(straight), 0, 20)
    optimizer = adamw(first)
    train(first, optimizer, 0, 10)
    peer, peer_optimizer = handed_over(first, optimizer, config)
    write(peer, config, folder, peer_optimizer)
    resumed = copy_of(ours)
    resumed_optimizer = adamw(resumed)
    state = training_state(resumed, resumed_optimizer)
    warm_start(state, str(folder), optim=True)
    train(resumed, resumed_optimizer, 10, 20)
    return all(map(torch.equal, straight.parameters(), resumed.parameters()))


def copy_of(ours: Decoder) -> Decoder:
    """Another model with the same weights."""
    made = Decoder(ours.config)
    made.load_state_dict(ours.state_dict())
    return made


def handed_over(ours: Decoder, optimizer: torch.optim.Optimizer, config: TransformerConfig) -> tuple[nn.Module, Any]:
    """The same weights and moments in OLMo-core's model and torch's optimiser."""
    peer = config.build(init_device="cpu")
    peer.init_weights(max_seq_len=64, device=torch.device("cpu"))
    parameters, mine = dict(peer.named_parameters()), dict(ours.named_parameters())
    other = adamw(peer)
    with torch.no_grad():
        for weight in OLMO_CORE.weights(ours.config):
            parameters[weight.theirs[0]].copy_(mine[weight.ours])
            other.state[parameters[weight.theirs[0]]] = {
                key: value.clone() for key, value in optimizer.state[mine[weight.ours]].items()
            }
    return peer, other


def reads_training_state(peer: nn.Module, config: TransformerConfig, folder: Path) -> bool:
    """A checkpoint of OLMo-core's own optimiser, after a step of it, is read to the last bit."""
    optimizer = AdamWConfig(lr=1e-3).build(peer)
    train(peer, optimizer, 0, 1)
    write(peer, config, folder, optimizer)
    with open_olmo_core(str(folder)) as found:
        theirs = dict(peer.named_parameters())
        for ours, weight in found.names().items():
            parameter = theirs[weight.theirs[0]]
            same = torch.equal(found.tensor(ours), parameter) and all(
                torch.equal(found.optim_tensor(f"{ours}.{key}"), optimizer.state[parameter][key].cpu())
                for key in ("step", "exp_avg", "exp_avg_sq")
            )
            if not same:
                return False
    return True


def table(rows: Sequence[Row]) -> str:
    """The figures, aligned."""
    head = (
        "family",
        "logits: hf",
        "olmo-core",
        "loss, 30 steps: hf",
        "olmo-core",
        "module: hf",
        "olmo-core",
        "hf's rounding",
        "loss from",
        "to",
        "resumed",
        "read",
    )
    cells: list[tuple[str, ...]] = [head]
    for row in rows:
        numbers = (
            *(row.logits_hf, row.logits_olmo_core, row.loss_hf, row.loss_olmo_core),
            *(row.module_hf, row.module_olmo_core, row.rounding),
        )
        flags = ("equal" if row.resumed_bits else "DIFFERS", "equal" if row.read_bits else "DIFFERS")
        cells.append(
            (
                row.family,
                *(f"{value:.1e}" for value in numbers),
                f"{row.first_loss:.4f}",
                f"{row.last_loss:.4f}",
                *flags,
            )
        )
    widths = [max(len(line[place]) for line in cells) for place in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say by the exit code whether the bounds hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", action="append", help="only this one; may be repeated")
    chosen = parser.parse_args(arguments).family
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        rows = [
            measure(name, config, Path(root) / name.replace(", ", "-"))
            for name, config in families().items()
            if not chosen or name in chosen
        ]
    print(table(rows))
    return 0 if all(row.is_within for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
