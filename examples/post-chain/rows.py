"""Rows of two-digit addition: `rows.py FOLDER` writes chats, pairs and prompts, and held-out ones of each."""

import json
import random
import sys
from pathlib import Path

HELD = 1000  # sums that no stage learns


def prompt(a: int, b: int) -> str:
    return f"{a}+{b}="


def answer(total: int) -> str:
    """The digits from the last to the first, in which order they can be computed, then the sum after GSM8K's mark."""
    return f"{str(total)[::-1]}\n#### {total}"


def main() -> None:
    folder, chance = Path(sys.argv[1]), random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    sums = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    chance.shuffle(sums)

    def write(name: str, rows: list[dict[str, str]]) -> None:
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def wrong(total: int) -> int:
        return chance.choice([other for other in range(20, 199) if other != total])

    for begin, part in (("held-", sums[:HELD]), ("", sums[HELD:])):
        write(f"{begin}chats.jsonl", [{"prompt": prompt(a, b), "completion": answer(a + b)} for a, b in part])
        pairs = [{"prompt": prompt(a, b), "chosen": answer(a + b), "rejected": answer(wrong(a + b))} for a, b in part]
        write(f"{begin}pairs.jsonl", pairs)
        write(f"{begin}prompts.jsonl", [{"prompt": prompt(a, b), "answer": str(a + b)} for a, b in part])


if __name__ == "__main__":
    main()
