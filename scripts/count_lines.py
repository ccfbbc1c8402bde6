"""A table of lines per file, and what is too large: files over 500 lines, functions over 60, folders over 20 files."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

from scripts.tree import ROOT, python_files

FILE_HOME = 300
FILE_LIMIT = 500
FUNCTION_SIGN = 60
FOLDER_LIMIT = 20


def main() -> int:
    """Print the table; exit 1 when a file or a folder of the product is over its limit (tables of cases in tests may be)."""
    lines = {path: path.read_text().count("\n") for top in ("src", "tests") for path in python_files(ROOT / top)}
    table = ROOT / "build" / "lines.txt"
    table.parent.mkdir(exist_ok=True)
    table.write_text("".join(f"{count:6d}  {path.relative_to(ROOT)}\n" for path, count in sorted(lines.items())))
    print_packages(lines)
    for path, count in sorted(lines.items(), key=lambda item: -item[1]):
        if count > FILE_HOME:
            print(f"{count:6d}  {path.relative_to(ROOT)}" + ("  over 500: split it" if count > FILE_LIMIT else ""))
    for path in lines:
        for name, length in long_functions(path):
            print(f"{length:6d}  {path.relative_to(ROOT)}: {name}() is over {FUNCTION_SIGN} lines")
    print(f"every file: {table.relative_to(ROOT)}")
    folders = Counter(path.parent for path in lines if place(path)[0] == "src" and path.name != "__init__.py")
    crowded = {folder: count for folder, count in folders.items() if count > FOLDER_LIMIT}
    for folder, count in sorted(crowded.items()):
        print(f"{folder.relative_to(ROOT)} has {count} files, over {FOLDER_LIMIT}: divide it by subject")
    is_long = any(count > FILE_LIMIT for path, count in lines.items() if place(path)[0] == "src")
    return 1 if is_long or crowded else 0


def print_packages(lines: dict[Path, int]) -> None:
    """One row per package: files, lines, longest, and its tests beside it."""
    files: Counter[tuple[str, str]] = Counter()
    totals: Counter[tuple[str, str]] = Counter()
    longest: Counter[tuple[str, str]] = Counter()
    for path, count in lines.items():
        kind, package = place(path)
        files[kind, package] += 1
        totals[kind, package] += count
        longest[kind, package] = max(longest[kind, package], count)
    print(f"{'package':<16}{'files':>6}{'lines':>8}{'longest':>9}{'test files':>12}{'lines':>8}{'longest':>9}")
    for package in sorted({package for _, package in files}):
        row = [table[kind, package] for kind in ("src", "tests") for table in (files, totals, longest)]
        print(f"{package:<16}{row[0]:>6}{row[1]:>8}{row[2]:>9}{row[3]:>12}{row[4]:>8}{row[5]:>9}")
    sums = [
        sum(count for (kind, _), count in table.items() if kind == top)
        for top in ("src", "tests")
        for table in (files, totals)
    ]
    print(f"{'all':<16}{sums[0]:>6}{sums[1]:>8}{'':>9}{sums[2]:>12}{sums[3]:>8}")


def place(path: Path) -> tuple[str, str]:
    """(`src` or `tests`, package) of a file; files at the top are `.`."""
    parts = path.relative_to(ROOT).parts
    inner = parts[2:] if parts[0] == "src" else parts[1:]
    return parts[0], inner[0] if len(inner) > 1 else "."


def long_functions(path: Path) -> list[tuple[str, int]]:
    """Functions of a file that are longer than the sign, with their lengths."""
    functions = (
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    lengths = ((node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in functions)
    return [(name, length) for name, length in lengths if length > FUNCTION_SIGN]


if __name__ == "__main__":
    sys.exit(main())
