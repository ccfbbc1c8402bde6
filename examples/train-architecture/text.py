"""Text to learn from: 300,000 characters of Python's standard library, into text.txt."""

import sysconfig
from pathlib import Path

text = "".join(
    path.read_text(encoding="utf-8", errors="replace")
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("a*.py"))
)
Path("text.txt").write_text(text[:300_000], encoding="utf-8")
