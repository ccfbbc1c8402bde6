"""Write pages of docs/errors from lines on standard input: `slug | what it means | what to do`.

Pages that exist are left alone; `--replace` writes them anew.
"""

from __future__ import annotations

import sys
import textwrap

from scripts.check_docs import PAGES, SLUG

WIDTH = 110


def main(arguments: list[str]) -> int:
    """Exit 1 when a line has not the form."""
    num_bad = 0
    for number, line in enumerate(sys.stdin, 1):
        if not line.strip() or line.startswith("#"):
            continue
        slug, *parts = (part.strip() for part in line.split(" | "))
        if len(parts) != 2 or not SLUG.match(slug):
            print(f"line {number}: the form is `slug | what it means | what to do`")
            num_bad += 1
            continue
        path = PAGES / f"{slug}.md"
        if not path.exists() or "--replace" in arguments:
            path.write_text(page(slug, *parts))
            print(path.name)
    return 1 if num_bad else 0


def page(slug: str, meaning: str, remedy: str) -> str:
    """The text of a page."""
    wrapped = [
        textwrap.fill(sentence(text), WIDTH, break_on_hyphens=False, break_long_words=False)
        for text in (meaning, remedy)
    ]
    return f"# {slug}\n\n## What it means\n\n{wrapped[0]}\n\n## What to do\n\n{wrapped[1]}\n"


def sentence(text: str) -> str:
    """Text that begins with a capital and ends with a stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", ":", "!", "?")) else ".")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
