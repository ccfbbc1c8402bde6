"""Text to learn from: `text.py FOLDER [FILE]` writes train.txt and held.txt, of FILE or the standard library's source."""

import sys
import sysconfig
from pathlib import Path

SIZE = 2_000_000  # characters


def standard_library():
    parts, size = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        parts.append(path.read_text(encoding="utf-8", errors="replace"))
        size += len(parts[-1])
        if size >= SIZE:
            break
    return "".join(parts)[:SIZE]


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    text = Path(sys.argv[2]).read_text(encoding="utf-8") if len(sys.argv) > 2 else standard_library()
    end = len(text) * 95 // 100
    (folder / "train.txt").write_text(text[:end], encoding="utf-8")
    (folder / "held.txt").write_text(text[end:], encoding="utf-8")


if __name__ == "__main__":
    main()
