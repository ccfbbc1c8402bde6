"""Learns which letter follows which: a table of weights, by gradient descent, in plain Python. Same seed, same bits."""

import argparse
import json
import math
import random
from pathlib import Path


def softmax(weights: list[float]) -> list[float]:
    largest = max(weights)
    powers = [math.exp(weight - largest) for weight in weights]
    return [power / math.fsum(powers) for power in powers]


def train(tokens: list[int], size: int, seed: int, steps: int, learning_rate: float) -> list[list[float]]:
    chance = random.Random(seed)
    table = [[0.0] * size for _ in range(size)]
    for step in range(1, steps + 1):
        loss = 0.0
        for place in (chance.randrange(len(tokens) - 1) for _ in range(32)):
            now, following = tokens[place], tokens[place + 1]
            shares = softmax(table[now])
            loss -= math.log(shares[following]) / 32
            for letter, share in enumerate(shares):
                table[now][letter] -= learning_rate * (share - (letter == following))
        if step % 100 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--output_dir", type=Path, required=True)
    settings = parser.parse_args()
    alphabet = json.loads((settings.tokens / "alphabet.json").read_text())
    tokens = json.loads((settings.tokens / "tokens.json").read_text())
    table = train(tokens, len(alphabet), settings.seed, settings.steps, settings.learning_rate)
    settings.output_dir.mkdir(parents=True, exist_ok=True)
    (settings.output_dir / "model.json").write_text(json.dumps({"alphabet": alphabet, "table": table}))


if __name__ == "__main__":
    main()
