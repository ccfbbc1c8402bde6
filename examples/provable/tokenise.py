"""Turns a text into numbers: one per letter, and the alphabet beside them."""

import json
import sys
from pathlib import Path


def main(source: str, target: str) -> None:
    text = Path(source).read_text()
    alphabet = sorted(set(text))
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "alphabet.json").write_text(json.dumps(alphabet))
    (folder / "tokens.json").write_text(json.dumps([alphabet.index(letter) for letter in text]))
    print(f"{len(text)} letters, {len(alphabet)} of them different")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
