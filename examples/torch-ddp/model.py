"""A small decoder-only transformer over characters. Shapes: B batch, T time, D width, V vocabulary."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Attention and a feed-forward layer, each normalised before and added after."""

    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x_BTD):
        batch, time, width = x_BTD.shape
        heads = self.qkv(self.norm_1(x_BTD)).view(batch, time, 3, self.num_heads, width // self.num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x_BTD = x_BTD + self.merge(mixed.transpose(1, 2).reshape(batch, time, width))
        return x_BTD + self.feed_forward(self.norm_2(x_BTD))


class CharacterModel(nn.Module):
    """Predicts the next character at every place."""

    def __init__(self, vocabulary, context, width=64, num_heads=4, num_layers=2):
        super().__init__()
        self.characters, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens_BT):
        places_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        return self.head(self.norm(self.blocks(self.characters(tokens_BT) + self.places(places_T))))
