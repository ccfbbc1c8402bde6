from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scripts import check_committed, check_docs, check_in_job, count_lines, error_reference

SOURCE = """
class GoneError(WindlassError):
    default_code = "gone"

def f(is_new: bool) -> None:
    raise NotFoundError("x", hint="y", code="not-here")
    Problem("message", "bad-thing", place)
    raise UsageError("x", code="new" if is_new else "old")
    report.finish(code=3)
    diagnostics.add("where", f"no {x}", "too-far", "come nearer")
    raise spec_error(message, "odd-flag", hint)
    found.add("no", "slug", "of-ours", "here")
    yield "source", "message", "two-sources", "keep one"
    yield "one", "two", "no-slug"
"""


def test_slugs_are_found_where_they_are_used() -> None:
    slugs = {slug for slug, _ in check_docs.slugs_of(ast.parse(SOURCE))}
    assert slugs == {"gone", "not-here", "bad-thing", "new", "old", "too-far", "odd-flag", "two-sources"}


def test_dead_links_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_docs, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# One `two`\n")
    page.write_text("[a](other.md) [b](other.md#one-two) [c](https://example.org) [d](gone.md) [e](other.md#three)\n")
    assert check_docs.check_links(page) == ["page.md: dead link to gone.md", "page.md: no heading for other.md#three"]


def test_a_page_that_the_index_lacks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_docs, "ROOT", tmp_path)
    monkeypatch.setattr(check_docs, "INDEX", tmp_path / "docs" / "README.md")
    texts = {
        "README.md": "",
        "docs/README.md": "[a](a.md), [b](guides/b.md#part), [own index](decisions/README.md)\n",
        "docs/a.md": "[c](guides/c.md)\n",
        "docs/guides/b.md": "",
        "docs/guides/c.md": "",
        "docs/decisions/README.md": "[d](d.md)\n",
        "docs/decisions/d.md": "",
        "docs/evidence/README.md": "[e](e.md)\n",
        "docs/evidence/e.md": "",
        "examples/f/README.md": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    missing = ("docs/guides/c.md", "docs/evidence/README.md", "docs/evidence/e.md", "examples/f/README.md")
    assert check_docs.check_index([tmp_path / name for name in texts]) == [
        f"docs/README.md: no link to {name}" for name in missing
    ]


def test_the_reference_of_error_codes_is_made_from_the_table() -> None:
    entry = {"meaning": "It is wrong.", "remedy": "Correct it.", "more": "    a\n    b\n"}
    page = error_reference.reference({"groups": {"one": "Group one"}, "one": {"x-y": entry}})
    assert page.endswith("\n## Group one\n\n### x-y\n\nIt is wrong.\n\nWhat to do: Correct it.\n\n    a\n    b\n")


def test_the_table_of_error_codes_is_checked() -> None:
    entry = {"meaning": "It is wrong.", "remedy": "Correct it."}
    table: dict[str, dict[str, object]] = {
        "groups": {"one": "Group one", "two": "Group two"},
        "one": {"b": entry, "a": entry},
        "two": {"a": {"meaning": "No stop", "hint": "x"}, "one": entry},
        "three": {},
    }
    assert error_reference.check_table(table) == [
        "docs/errors.toml: group 'three' has no title",
        "docs/errors.toml: the codes of 'one' are not in alphabetical order",
        "docs/errors.toml: a: `meaning` is missing or does not end with a full stop",
        "docs/errors.toml: a: `remedy` is missing or does not end with a full stop",
        "docs/errors.toml: a: unknown field `hint`",
        "docs/errors.toml: a is in the groups 'one' and 'two'",
        "docs/errors.toml: one is the name of a group",
    ]


def test_codes_that_the_table_lacks_that_nothing_uses_or_no_test_names_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry, unnamed = {"meaning": "It is.", "remedy": "Correct it."}, "never" + "-named"
    table = {"groups": {"one": "Group one"}, "one": {unnamed: entry, "never-used": entry}}
    monkeypatch.setattr(check_docs, "read_table", lambda: table)
    problems = check_docs.check_slugs()
    assert "docs/errors.toml: no code uses 'never-used'" in problems
    assert "docs/errors.toml: no test names 'never-used'" not in problems
    assert f"docs/errors.toml: no test names {unnamed!r}" in problems
    assert any(problem.endswith("error code 'dirty-tree' is not in docs/errors.toml") for problem in problems)
    assert "docs/errors.md: not current: python -m scripts.error_reference --write" in problems


@pytest.mark.parametrize("host", check_committed.REGISTRY_HOSTS)
def test_registry_hosts_are_found(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_committed, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"one\nsee https://{host}/simple\n")
    assert check_committed.check(page) == [f"page.md:2: names {host}"]


def test_options_of_pip_have_no_place_in_requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_committed, "ROOT", tmp_path)
    (tmp_path / "requirements").mkdir()
    lock = tmp_path / "requirements" / "x.txt"
    lock.write_text("--find-links somewhere\nclick==8\nfoo @ file:///x\n")
    assert check_committed.check(lock) == [
        f"requirements/x.txt:{line}: names where packages come from" for line in (1, 3)
    ]


def test_a_lock_with_addresses_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_committed, "ROOT", tmp_path)
    lock = tmp_path / ("uv" + ".lock")
    lock.write_text("")
    assert check_committed.check(lock)[0].startswith("uv.lock: such a lock names the registry it came from")


def test_newer_grammar_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_in_job, "ROOT", tmp_path)
    file = tmp_path / "x.py"
    file.write_text("match 1:\n    case 1:\n        pass\n")
    (problem,) = check_in_job.check_grammar(file)
    assert problem.startswith("x.py:3: not Python 3.9: Pattern matching")


def test_long_functions_are_named(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("def short():\n    pass\n\n\ndef long():\n" + "    pass\n" * 60)
    assert count_lines.long_functions(file) == [("long", 61)]
