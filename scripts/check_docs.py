"""Hold docs to code: an entry and a test for every error code, a whole index, no dead link, console blocks that run.

python -m scripts.check_docs             error codes, index and links
python -m scripts.check_docs --execute   and every block that begins with ```console exec
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from scripts.console_blocks import run_page
from scripts.error_reference import PAGE, TABLE, check_table, read_table, reference
from scripts.tree import ROOT, python_files, tracked_files
from windlass.cli.error_table import ErrorCode, parse

SOURCE = ROOT / "src" / "windlass"
INDEX = ROOT / "docs" / "README.md"
# A code as tests assert it: `code == "x"`, `"[x]" in err`.
NAMED = re.compile(r"""(?<=["'\[])([a-z0-9]+(?:-[a-z0-9]+)*)(?=\\?["'\]])""")
# Calls whose argument at this place is a code.
CODE_ARGUMENT = {
    **dict.fromkeys(("Problem", "InvalidNumber", "spec_error", "self._note", "self._refuse"), 1),
    **dict.fromkeys(("Pattern", "diagnostics.add", "self._fail"), 2),
}
SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*$", re.MULTILINE)
FENCED = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)


def main(arguments: list[str]) -> int:
    """Exit 1 when something is wrong; print what and where."""
    pages = [path for path in tracked_files() if path.suffix == ".md"]
    problems = check_slugs() + check_index(pages) + [problem for page in pages for problem in check_links(page)]
    num_blocks = 0
    if "--execute" in arguments:
        for page in pages:
            count, found = run_page(page)
            num_blocks += count
            problems += found
    for problem in problems:
        print(problem)
    if not problems:
        ran = f", {num_blocks} commands ran as shown" if "--execute" in arguments else ""
        print(f"{len(pages)} pages, {len(parse(read_table()))} error codes: codes and links hold{ran}")
    return 1 if problems else 0


# ----------------------------------------------------------------------------------------------------------- codes


def check_slugs() -> list[str]:
    """Codes that the table lacks, that nothing uses or no test names; incomplete entries; a page that is not current."""
    table = read_table()
    listed = parse(table)
    used = used_slugs()
    text = "\n".join(path.read_text() for path in python_files(SOURCE))
    name = TABLE.relative_to(ROOT)
    problems = [
        f"{where}: error code {slug!r} is not in {name}" for slug, where in sorted(used.items()) if slug not in listed
    ]
    problems += [f"{name}: no code uses {slug!r}" for slug in listed if slug not in used and f'"{slug}"' not in text]
    problems += [f"{name}: no test names {slug!r}" for slug in untested(listed)]
    problems += check_table(table)
    if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != reference(table):
        problems.append(f"{PAGE.relative_to(ROOT)}: not current: python -m scripts.error_reference --write")
    return problems


def untested(listed: Mapping[str, ErrorCode]) -> list[str]:
    """Codes that no test names; the causes of failed runs are an enumeration with tests of its own."""
    tests = "\n".join(path.read_text(encoding="utf-8") for path in tracked_files() if _is_of_a_test(path))
    named = set(NAMED.findall(tests))
    return [code for code, entry in listed.items() if code not in named and entry.group != "causes"]


def _is_of_a_test(path: Path) -> bool:
    return path.relative_to(ROOT).parts[0] == "tests" and path.suffix in (".py", ".yaml")


def used_slugs() -> dict[str, str]:
    """Slug -> where it is first used, from the syntax trees of the product."""
    used: dict[str, str] = {}
    for path in python_files(SOURCE):
        for slug, line in slugs_of(ast.parse(path.read_text())):
            if SLUG.match(slug):
                used.setdefault(slug, f"{path.relative_to(ROOT)}:{line}")
    return used


def slugs_of(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Slugs of one file, wherever the product says one."""
    for node in ast.walk(tree):
        for value in _values(node):
            branches = (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)
            for branch in branches:
                if isinstance(branch, ast.Constant) and isinstance(branch.value, str):
                    yield branch.value, branch.lineno


def _values(node: ast.AST) -> list[ast.expr]:
    """What a node says as a slug.

    `code="x"` in a call, `default_code = "x"`, an argument of the calls of `CODE_ARGUMENT`, and the third of the four
    that a `check` of a dataclass yields.
    """
    if isinstance(node, ast.Call):
        place = CODE_ARGUMENT.get(ast.unparse(node.func))
        values = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
        return values if place is None else values + node.args[place : place + 1]
    if isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple) and len(node.value.elts) == 4:
        return node.value.elts[2:3]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        is_code = any(isinstance(target, ast.Name) and target.id == "default_code" for target in targets)
        return [node.value] if is_code and node.value is not None else []
    return []


# ----------------------------------------------------------------------------------------------------------- links


def check_links(page: Path) -> list[str]:
    """Links of a page that lead to no file or no heading of this repository."""
    problems = []
    for target in LINK.findall(FENCED.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            problems.append(f"{page.relative_to(ROOT)}: dead link to {target}")
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            problems.append(f"{page.relative_to(ROOT)}: no heading for {target}")
    return problems


def check_index(pages: list[Path]) -> list[str]:
    """Pages of docs/ and examples/ that no index links to: docs/README.md, or the README of their folder, if that is listed."""
    listed = linked_pages(INDEX)
    for page in pages:
        if page.name == "README.md" and page.resolve() in listed and page.parent.parent == INDEX.parent:
            listed |= linked_pages(page)
    missing = [page.relative_to(ROOT).as_posix() for page in pages if page != INDEX and page.resolve() not in listed]
    return [f"docs/README.md: no link to {name}" for name in missing if name.startswith(("docs/", "examples/"))]


def linked_pages(page: Path) -> set[Path]:
    """Files that a page links to."""
    return {(page.parent / target.partition("#")[0]).resolve() for target in LINK.findall(page.read_text())}


def anchors(page: Path) -> set[str]:
    """Anchors that a page's headings get on the usual hosts."""
    headings = HEADING.findall(FENCED.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
