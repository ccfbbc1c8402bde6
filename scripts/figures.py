"""Figures of the source's shape: how much there is, how it hangs together, how it speaks, what a launch goes through.

python -m scripts.figures                          the table; --details also says which files, circles and names
python -m scripts.figures --write 'before (DATE)'  a column of docs/evidence/figures.md, made or made again
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.import_graph import circles, import_graph, single_importers
from scripts.language import class_names, dialect_hits, docstring_nodes, question_docstrings
from scripts.public_surface import surface
from scripts.traces import collection, traces
from scripts.tree import ROOT, python_files

SOURCE = ROOT / "src" / "windlass"
TABLE = ROOT / "docs" / "evidence" / "figures.md"
MANY_FILES = 20
FEW_LINES = 100
CARRIERS = ("spec/", "plan/", "supervise/job", "record/")
"""Where the types are that a task's number of nodes goes through on its way from the file to job.json and the journal."""
NODES = ("nodes", "num_nodes", "replicas", "num_replicas")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and write it where that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m scripts.figures", description="Figures of the source's shape.")
    parser.add_argument("--details", action="store_true", help="also list what was counted")
    parser.add_argument("--write", metavar="COLUMN", help="add this column to docs/evidence/figures.md")
    parser.add_argument("--static", action="store_true", help="only what is read from files: no traces, no collection")
    asked = parser.parse_args(arguments)
    figures, details = static_figures(SOURCE)
    if not asked.static:
        figures |= collection() | traces()
    for name, value in figures.items():
        print(f"{name:<72}{value:>10}")
    if asked.details:
        for title, lines in details.items():
            print(f"\n{title}\n" + "\n".join(f"  {line}" for line in lines))
    if asked.write:
        TABLE.write_text(with_column(TABLE.read_text(), asked.write, figures))
    return 0


def static_figures(source: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Figures by name, and by title what was counted, of all Python files below `source`."""
    texts = {path.relative_to(source.parent): path.read_text() for path in python_files(source)}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = {path: text.count("\n") for path, text in texts.items()}
    folders = Counter(path.parent for path in texts)
    crowded = {str(folder): count for folder, count in folders.items() if count > MANY_FILES}
    at_top, everywhere = import_graph(trees, inner=False), import_graph(trees, inner=True)
    alone = single_importers(everywhere)
    short = [path for path in alone if lines[path] < FEW_LINES]
    rings = {"at the top of files": circles(at_top), "inner ones too": circles(everywhere)}
    carriers = carriers_of(trees, NODES)
    twice = {name: places for name, places in class_names(trees).items() if len(places) > 1}
    hits = dialect_hits(trees)
    questions = question_docstrings(trees)
    docstrings = sum(1 for tree in trees.values() for _ in docstring_nodes(tree))
    figures = {
        "source files": len(texts),
        "lines": sum(lines.values()),
        "lines of code (no blank lines, comments, docstrings)": sum(num_code_lines(text) for text in texts.values()),
        f"folders with over {MANY_FILES} files": len(crowded),
        "files imported by exactly one other file, of the same folder": len(alone),
        f"of these under {FEW_LINES} lines": len(short),
        "import circles by imports at the top of files": len(rings["at the top of files"]),
        "import circles with inner imports and those for types": len(rings["inner ones too"]),
        "files in the largest of them": max(map(len, rings["inner ones too"]), default=0),
        "types that carry `nodes` or `replicas` from experiment to job and journal": len(carriers),
        "names of public classes defined more than once": len(twice),
        "public names (`__all__` of packages)": surface().count("\n"),
        **{f"dialect in messages and other texts: {name}": len(found) for name, found in hits.items()},
        "docstrings": docstrings,
        "of these beginning with What, Whether, One, Where, How": len(questions),
    }
    details = {
        "crowded folders": [f"{count:4d} {folder}" for folder, count in sorted(crowded.items())],
        "single-importer files": [f"{lines[path]:4d} {path} <- {alone[path].name}" for path in sorted(alone)],
        **{f"circles, {kind}": [" ".join(map(str, sorted(ring))) for ring in found] for kind, found in rings.items()},
        "types that carry `nodes`": carriers,
        "classes defined more than once": [f"{name}: {' '.join(places)}" for name, places in sorted(twice.items())],
        **{f"dialect: {name}": found for name, found in hits.items()},
    }
    return {name: f"{value:,}" for name, value in figures.items()}, details


# ------------------------------------------------------------------------------------------------- what files hold


def num_code_lines(text: str) -> int:
    """Lines that hold something other than a comment or a docstring."""
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for token in tokens if token.type not in blank for line in range(token.start[0], token.end[0] + 1)}
    for node in docstring_nodes(ast.parse(text)):
        lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def carriers_of(trees: Mapping[Path, ast.Module], names: Sequence[str]) -> list[str]:
    """Classes of `CARRIERS` with a field, or a parameter of `__init__`, of one of the names."""
    found = []
    for path, tree in trees.items():
        if "/".join(path.parts[1:]).startswith(CARRIERS):
            classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
            found += [f"{path}: {node.name}" for node in classes if fields_of(node) & set(names)]
    return found


def fields_of(node: ast.ClassDef) -> set[str]:
    """Names of a class's annotated fields and of the parameters of its `__init__`."""
    fields = {
        part.target.id for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            fields |= {argument.arg for argument in (*part.args.args, *part.args.kwonlyargs)}
    return fields


# ------------------------------------------------------------------------------------------------------ the table


def with_column(page: str, column: str, figures: Mapping[str, str]) -> str:
    """The page with its table's column of that name set to the figures; columns with the same first word are replaced."""
    head, rows, rest = read_table(page)
    kept = [place for place, name in enumerate(head) if place and name.split()[:1] != column.split()[:1]]
    names = [*figures, *(name for name in rows if name not in figures)]
    table = [["figure", *(head[place] for place in kept), column]]
    for name in names:
        row = rows.get(name, [])
        table.append([name, *(row[place - 1] if place <= len(row) else "" for place in kept), figures.get(name, "")])
    lines = ["| " + " | ".join(row) + " |" for row in table]
    lines.insert(1, "|---" + "|---:" * (len(table[0]) - 1) + "|")
    return rest.rstrip("\n") + "\n\n" + "\n".join(lines) + "\n"


def read_table(page: str) -> tuple[list[str], dict[str, list[str]], str]:
    """(head, rows by their first cell, the text before) of the table at a page's end."""
    lines = page.splitlines()
    start = next((place for place, line in enumerate(lines) if line.startswith("| figure")), len(lines))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:] if line.startswith("|")]
    head = cells[0] if cells else ["figure"]
    return head, {row[0]: row[1:] for row in cells[2:]}, "\n".join(lines[:start])


if __name__ == "__main__":
    sys.exit(main())
