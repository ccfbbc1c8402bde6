"""Code of a user that the tests of this folder name in recipes; written into a file of its own."""

from __future__ import annotations

from pathlib import Path

__all__ = ["CODE", "write_parts"]

CODE = '''\
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import nn

from windlass import train
from windlass.config import Doc, Range


class Net(nn.Module):
    """Each token alone: the smallest model there is."""

    def __init__(self, vocab_size: int, width: int = 16, dropout: float = 0.0):
        super().__init__()
        self.vocab_size = vocab_size
        self.embed = nn.Embedding(vocab_size, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)])
        self.drop = nn.Dropout(dropout)
        self.scale = nn.Parameter(torch.full((width,), 0.5))
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens_BT):
        x_BTD = self.embed(tokens_BT) * self.scale
        for block in self.blocks:
            x_BTD = self.drop(torch.relu(block(x_BTD)))
        return self.head(x_BTD)


@dataclass(frozen=True, kw_only=True)
class NetConfig:
    vocab_size: int
    width: Annotated[int, Range(min=1), Doc("Of each layer.")] = 16
    kind_of_norm: Literal["none", "rms"] = "none"

    def build(self):
        return Net(self.vocab_size, self.width)


class Counting(torch.optim.Optimizer):
    """Signs of gradients; counts its steps in Python."""

    def __init__(self, params, lr=0.1, slow: int = 1):
        super().__init__(params, {"lr": lr, "slow": slow})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["step"] = state.get("step", 0) + 1
                    share = group["lr"] / (1 + state["step"] // group["slow"])
                    parameter.add_(parameter.grad.sign(), alpha=-share)


class InGroups(torch.optim.SGD):
    """Counts where no checkpoint looks."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
        return super().step(closure)


def half(params, lr):
    return torch.optim.SGD(params[0]["params"][:1], lr=lr)


def saw(step, tokens, *, period: int = 4):
    return 1.0 - (step % period) / period


class Halving:
    def __init__(self, every: int, duration):
        self.every, self.total = every, duration.value

    def __call__(self, step, progress):
        assert progress == min(1.0, step / self.total)
        return 0.5 ** (step // self.every)


def nothing(step):
    return "much"


def numbers(count: int = 40):
    for number in range(count):
        yield [(number + place) % 32 for place in range(24)]


def words():
    yield from ["one two three four five six seven"] * 40


def broken():
    yield [1, 2, 3]
    raise KeyError("document")


class Vectors:
    """Batches of vectors, and a number for each to find."""

    batches_per_epoch = None

    def __init__(self, share, seed, batch_tokens, width: int = 4):
        self.share, self.size, self.seed, self.width, self.next = share, batch_tokens, seed, width, 0

    def __iter__(self):
        while True:
            generator = torch.Generator().manual_seed(1000 * self.seed + self.next)
            x_BD = torch.randn(self.size, self.width, generator=generator)
            self.next += 1
            yield x_BD[self.share.rank :: self.share.world], x_BD.sum(dim=1)[self.share.rank :: self.share.world]

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def regression(model, optimizer, world, seed):
    def loss(net, batch):
        x_BD, y_B = batch
        return ((net(x_BD)[:, 0] - y_B) ** 2).sum(), len(y_B)

    return train.BasicModule(model, optimizer, loss, world=world, seed=seed)


def linear(width: int = 4):
    return nn.Linear(width, 1)


def positional(width, /):
    return nn.Linear(width, 1)


def no_module(vocab_size: int):
    return 3


def fails(vocab_size: int):
    raise ValueError("a width of 3\\nis odd")
'''


def write_parts(folder: Path) -> Path:
    """The file, in this folder."""
    path = folder / "parts.py"
    path.write_text(CODE)
    return path
