"""CPU seconds of the loss and of a step of AdamW, beside torch's own: `python benches/bench_train_loss.py [repeats]`.

One process, one thread, the ways of a line interleaved; the least time of each counts. Exits with 1 where our loss, forward
and backward, takes more than 1.05 times `F.cross_entropy` on all logits, or the kernel we choose more than another one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from windlass.train import AdamWConfig, LossConfig, build_optimizer, language_loss

BUDGET = 1.05
SHAPES = ((2048, 64, 256), (2048, 256, 2048), (2048, 256, 8192), (1024, 256, 32_000))


def least_cpu_s(ways: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The least CPU seconds of each way, taken in turn."""
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(repeats):
        for name, way in ways.items():
            begin_s = time.process_time()
            way()
            least[name] = min(least[name], time.process_time() - begin_s)
    return least


def loss_ways(positions: int, width: int, vocabulary: int) -> dict[str, Callable[[], object]]:
    """Forward and backward from hidden states to both gradients."""
    torch.manual_seed(0)
    hidden = torch.randn(1, positions, width, requires_grad=True)
    head = (0.02 * torch.randn(vocabulary, width)).requires_grad_()
    labels = torch.randint(0, vocabulary, (1, positions))

    def ours(kind: str, z_loss: float = 0.0) -> Tensor:
        loss, squares = language_loss(hidden, head, labels, loss=LossConfig(kind=kind, z_loss=z_loss))  # type: ignore[arg-type]
        return loss + squares

    def torchs() -> Tensor:
        return nn.functional.cross_entropy(
            nn.functional.linear(hidden, head).flatten(0, -2), labels.flatten(), reduction="sum"
        )

    def timed(loss: Callable[[], Tensor]) -> Callable[[], object]:
        def run() -> None:
            hidden.grad = head.grad = None
            loss().backward()

        return run

    return {
        "torch": timed(torchs),
        "ours": timed(lambda: ours("auto")),
        "ours with z-loss": timed(lambda: ours("auto", 1e-4)),
        "plain with z-loss": timed(lambda: ours("plain", 1e-4)),
    }


def step_ways() -> dict[str, Callable[[], object]]:
    """A step over 5M weights in 86 tensors."""
    made: dict[str, Callable[[], object]] = {}
    for name, config in (("ours", AdamWConfig()), ("foreach", AdamWConfig(is_fused=False))):
        shapes = [(256, 256)] * 64 + [(256,)] * 20 + [(2048, 256)] * 2
        model = nn.ParameterList([nn.Parameter(torch.randn(shape)) for shape in shapes])
        for weight in model:
            weight.grad = torch.randn_like(weight)
        made[name] = build_optimizer(model, config).step
    return made


def main() -> int:
    """Print a line for each, and whether all are within their budget."""
    torch.set_num_threads(1)
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    is_within = True
    for shape in SHAPES:
        least = least_cpu_s(loss_ways(*shape), repeats)
        is_within = is_within and least["ours"] <= BUDGET * least["torch"]
        print(f"loss {shape}", {name: round(1e3 * value, 1) for name, value in least.items()}, "ms", flush=True)
    least = least_cpu_s(step_ways(), repeats)
    is_within = is_within and least["ours"] <= BUDGET * least["foreach"]
    print("AdamW", {name: round(1e3 * value, 1) for name, value in least.items()}, "ms")
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
