from __future__ import annotations

import ast
from pathlib import Path

from scripts.figures import fields_of, num_code_lines, with_column
from scripts.import_graph import circles, import_graph, single_importers
from scripts.language import class_names, dialect_hits, question_docstrings
from scripts.traces import count_called

FILES = {
    "p/__init__.py": "from p.a import A",
    "p/a.py": "from p import b\nfrom p.sub.d import D",
    "p/b.py": "import os\nimport p.c\nif TYPE_CHECKING:\n    from p.a import A",
    "p/c.py": "def f():\n    from p.b import B",
    "p/sub/__init__.py": "",
    "p/sub/d.py": "from p import A\nfrom p.sub import e, missing",
    "p/sub/e.py": "",
}
TREES = {Path(name): ast.parse(text) for name, text in FILES.items()}
A, B, C, D, E = (Path(f"p/{name}.py") for name in ("a", "b", "c", "sub/d", "sub/e"))
TOP, SUB = Path("p/__init__.py"), Path("p/sub/__init__.py")


def test_imports_at_the_top_of_files() -> None:
    graph = import_graph(TREES, inner=False)
    assert {path: set(targets) for path, targets in graph.items()} == {
        TOP: {A},
        A: {B, D},
        B: {C},
        C: set(),
        SUB: set(),
        D: {TOP, E, SUB},
        E: set(),
    }
    assert circles(graph) == [{TOP, A, D}]


def test_inner_imports_and_those_for_types() -> None:
    graph = import_graph(TREES, inner=True)
    assert (set(graph[B]), set(graph[C])) == ({A, C}, {B})
    assert circles(graph) == [{TOP, A, B, C, D}]


def test_circles_that_share_no_file_are_two() -> None:
    graph = {A: frozenset({B}), B: frozenset({A, C}), C: frozenset({D}), D: frozenset({C}), E: frozenset({A})}
    assert circles(graph) == [{A, B}, {C, D}]


def test_files_that_one_neighbour_needs() -> None:
    assert single_importers(import_graph(TREES, inner=False)) == {A: TOP, B: A, C: B, E: D}


def test_lines_of_code() -> None:
    text = '"""What it is.\n\nmore\n"""\n\nimport os  # why\n\n# a comment\nX = """a\nb"""\n\n\ndef f():\n    "Text."\n    return (\n        1\n    )\n'
    assert num_code_lines(text) == 7


def test_fields_and_classes() -> None:
    text = "class A:\n    nodes: int\n    X = 1\n    def __init__(self, gpus, *, cpus): ...\nclass _B: ...\n"
    tree = ast.parse(text)
    assert isinstance(tree.body[0], ast.ClassDef)
    assert fields_of(tree.body[0]) == {"nodes", "self", "gpus", "cpus"}
    assert class_names({Path("a.py"): tree, Path("b.py"): tree}) == {"A": ["a.py", "b.py"]}


def test_dialect_is_found_in_messages_and_not_in_docstrings() -> None:
    text = '"""Nobody said."""\nx = f"`{y}` is no moment"\nz = "there is no run; it is no longer needed"\nw = "written twice, stands"\n'
    hits = dialect_hits({Path("a.py"): ast.parse(text)})
    assert {name: found for name, found in hits.items() if found} == {
        "`is no`": ["a.py:2: ` is no moment"],
        "`stands`": ["a.py:4: written twice, stands"],
    }


def test_docstrings_that_begin_with_a_question() -> None:
    text = (
        '"""What it is."""\ndef f():\n    """Return one."""\ndef g():\n    """Whatever."""\nX = 1\n"""Where it is."""\n'
    )
    assert question_docstrings({Path("a.py"): ast.parse(text)}) == ["a.py:1: What it is.", "a.py:7: Where it is."]


def test_functions_and_files_called() -> None:
    listing = (
        "/s/w/a.py\t1\tf\n/s/w/a.py\t9\tg\n/s/w/b.py\t1\t<module>\n/lib/os.py\t1\tf\n/s/w/c.py\t2\th\n/s/w/c.py\t2\th\n"
    )
    assert count_called(listing, "/s/w") == (3, 2)


def test_a_column_is_added_and_replaced() -> None:
    first = with_column("# Figures\n\nWhy.\n", "before (1 May)", {"files": "10", "old": "1"})
    both = with_column(first, "after (2 May)", {"files": "7", "new": "2"})
    assert both == (
        "# Figures\n\nWhy.\n\n| figure | before (1 May) | after (2 May) |\n|---|---:|---:|\n"
        "| files | 10 | 7 |\n| new |  | 2 |\n| old | 1 |  |\n"
    )
    again = with_column(both, "after (3 May)", {"files": "6"})
    assert "| files | 10 | 6 |" in again
    assert "2 May" not in again
