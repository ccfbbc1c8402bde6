"""How surprised the model is by the whole text: bits per letter, written as JSON."""

import argparse
import itertools
import json
import math
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--output_dir", type=Path, required=True)
    settings = parser.parse_args()
    table = json.loads(settings.model.read_text())["table"]
    tokens = json.loads((settings.tokens / "tokens.json").read_text())
    bits = []
    for now, following in itertools.pairwise(tokens):
        largest = max(table[now])
        total = math.fsum(math.exp(weight - largest) for weight in table[now])
        bits.append((math.log(total) + largest - table[now][following]) / math.log(2))
    score = {"bits_per_letter": math.fsum(bits) / len(bits), "letters": len(bits)}
    settings.output_dir.mkdir(parents=True, exist_ok=True)
    (settings.output_dir / "score.json").write_text(json.dumps(score))
    print(f"{score['bits_per_letter']:.4f} bits per letter")


if __name__ == "__main__":
    main()
