"""A new architecture in one file: no attention, each block mixes tokens by a short causal convolution."""

from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Tokens are mixed by a convolution of each channel, then channels by a gated layer."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.mix_norm, self.gate_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.mix = nn.Conv1d(width, width, kernel, groups=width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        past_BDT = functional.pad(self.mix_norm(x_BTD).mT, (self.kernel - 1, 0))  # no token sees one after it
        x_BTD = x_BTD + self.mix(past_BDT).mT
        gate_BTH, value_BTH = self.up(self.gate_norm(x_BTD)).chunk(2, dim=-1)
        return x_BTD + self.down(functional.silu(gate_BTH) * value_BTH)


class Mixer(nn.Module):
    """From tokens to logits. `blocks` is the name by which layers are sharded, compiled and checkpointed one by one."""

    def __init__(self, vocab_size: int, width: int = 64, num_layers: int = 4, kernel: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, width)
        self.blocks = nn.ModuleList(Block(width, kernel) for _ in range(num_layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTD = self.embed(tokens_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.head(self.norm(x_BTD))
