"""Language of the source: refuse forms of its old dialect, docstrings that begin with a question word, and repeated class names.

python -m scripts.language           list them, and exit with 1 if there are any
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from scripts.tree import ROOT, python_files

SOURCE = ROOT / "src" / "windlass"
DIALECT = {
    "`is no`": r"(?<!\bthere )\b(?:is|are|was|were) no (?!longer\b|more\b)",
    "`stands`": r"\b(?:stands?|stood)\b",
    "`nobody`": r"\bnobody\b",
    "`said`": r"(?<!\$)\bsaid\b(?!=)|\bsays? (?:nothing|so)\b|\bnothing says\b",
    "inverted": r"\b(?:is|are|was) not there\b|\b(?:so|thus) which\b|\bends? well\b|\bby what (?:it|they) (?:is|are)\b"
    r"|\b(?:told|asked) of\b|(?:^|[.:;] )(?:Nothing|None|No \w+) (?:stands|lies|goes|comes|speaks)\b",
}
"""Word or form -> pattern of the old dialect (HOUSE_STYLE, Language), searched in every text that is not a docstring."""
QUESTION = re.compile(r"(?:What|Whether|One|Where|How)\b")
ONE_IDEA = frozenset({"Cluster", "Experiment", "Recipe", "TuneReportCheckpointCallback"})
"""Classes of one name on purpose: a cluster and Beaker's, an experiment with methods and its fields, gantry's own name, Ray's names."""


def main() -> int:
    """List every hit; return 1 if there are any."""
    trees = {path.relative_to(SOURCE.parent): ast.parse(path.read_text()) for path in python_files(SOURCE)}
    found = {name: hits for name, hits in all_hits(trees).items() if hits}
    for name, hits in found.items():
        print(f"{name}: {len(hits)}")
        print("".join(f"  {hit}\n" for hit in hits), end="")
    return 1 if found else 0


def all_hits(trees: Mapping[Path, ast.Module]) -> dict[str, list[str]]:
    """Return every form with its hits, each `file:line: text`."""
    twice = {name: places for name, places in class_names(trees).items() if len(places) > 1 and name not in ONE_IDEA}
    return {
        **dialect_hits(trees),
        "docstrings that begin with a question word": question_docstrings(trees),
        "public classes of one name": [f"{name}: {', '.join(places)}" for name, places in sorted(twice.items())],
    }


def docstring_nodes(tree: ast.Module) -> Iterator[ast.Constant]:
    """Texts that stand alone as a statement: docstrings, and those of attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def class_names(trees: Mapping[Path, ast.Module]) -> dict[str, list[str]]:
    """Public class -> files that define one of that name."""
    found = defaultdict(list)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path))
    return found


def dialect_hits(trees: Mapping[Path, ast.Module]) -> dict[str, list[str]]:
    """Form of the old dialect -> `file:line: text` of every text with it, docstrings left out."""
    patterns = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in DIALECT.items()}
    found: dict[str, list[str]] = {name: [] for name in DIALECT}
    for path, tree in trees.items():
        docstrings = {id(node) for node in docstring_nodes(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                for name, pattern in patterns.items():
                    if pattern.search(node.value):
                        found[name].append(f"{path}:{node.lineno}: {' '.join(node.value.split())[:120]}")
    return found


def question_docstrings(trees: Mapping[Path, ast.Module]) -> list[str]:
    """Return `file:line: text` of every docstring that begins with What, Whether, One, Where or How."""
    return [
        f"{path}:{node.lineno}: {str(node.value).splitlines()[0][:120]}"
        for path, tree in trees.items()
        for node in docstring_nodes(tree)
        if QUESTION.match(str(node.value)) is not None
    ]


if __name__ == "__main__":
    sys.exit(main())
