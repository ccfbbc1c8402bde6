from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Windlass
from windlass.runs.home import Home
from windlass.store.local import LocalStore


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text("alpha")
    return folder


def write_run(home: Path, digest: str) -> None:
    folder = home / "runs" / "exp-abcd2345"
    (folder / "journal").mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"pins": {"data": {"d": {"digest": digest}}}}))


def test_from_a_folder_to_a_bucket_like_store_and_back(
    windlass: Windlass, home: Path, corpus: Path, tmp_path: Path
) -> None:
    added = windlass("data", "add", str(corpus), "--name", "corpus")
    assert added.code == 0
    digest = added.out.strip().removeprefix("sha256:")
    listed = windlass("data", "ls").out.splitlines()
    assert listed[0].split() == ["NAME", "DIGEST", "SIZE", "FILES", "MADE", "SOURCE"]
    assert listed[1].startswith(f"corpus  {digest[:12]}  5 B   1 file")
    url = f"file://{tmp_path}/remote"
    pushed = windlass("data", "push", "corpus", "--to", url)
    assert (pushed.code, pushed.out) == (0, f"sha256:{digest}\n")
    assert pushed.err.startswith("pushed 5 B at ")
    assert json.loads(windlass("data", "ls", "--store", url, "--json").out)["versions"][0]["names"] == ["corpus"]
    assert windlass("data", "rm", "corpus").err == f"removed corpus; {digest[:12]} has no name now\n"
    assert windlass("data", "rm", digest).err == f"removed {digest}\n"
    windlass("data", "gc", "--older-than", "0s")
    assert windlass("data", "ls").err == "no data yet; add some with `windlass data add PATH --name NAME`\n"
    assert windlass("data", "pull", "corpus", "--from", url).code == 0
    shown = windlass("data", "show", "corpus", "--files").out.splitlines()
    assert shown[0].split() == ["digest", f"sha256:{digest}"]
    assert shown[-1].split()[0] == "a.txt"


def test_what_a_run_needs_stays(windlass: Windlass, home: Path, corpus: Path) -> None:
    digest = windlass("data", "add", str(corpus)).out.strip().removeprefix("sha256:")
    write_run(home, digest)
    refused = windlass("data", "rm", digest, "--force")
    assert (refused.code, refused.err.splitlines()[0].split("  ")[0]) == (
        8,
        f"error: run exp-abcd2345 needs data {digest[:12]}",
    )
    assert "[data-pinned]" in refused.err
    kept = windlass("data", "gc", "--older-than", "0s", "--drop-pinned")
    assert f"kept          {digest[:12]}  exp-abcd2345" in kept.out
    assert LocalStore.of(Home(home).path).versions() == [digest]


def test_what_a_run_that_succeeded_needs_goes_only_when_that_is_said(
    windlass: Windlass, home: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = windlass("data", "add", str(corpus)).out.strip().removeprefix("sha256:")
    write_run(home, digest)
    monkeypatch.setattr("windlass.launcher.data._has_succeeded", lambda run: True)
    assert f"kept          {digest[:12]}" in windlass("data", "gc", "--older-than", "0s").out
    dry = windlass("data", "gc", "--older-than", "0s", "--drop-pinned", "--dry-run")
    assert (dry.out, dry.err) == (f"would remove  {digest[:12]}\n", "would free 5 B, 1 object\n")
    assert windlass("data", "gc", "--older-than", "0s", "--drop-pinned").out == f"removed       {digest[:12]}\n"
    assert windlass("data", "ls").out == ""


def test_mistakes_are_answered(windlass: Windlass, tmp_path: Path) -> None:
    missing = windlass("data", "add", "none")
    assert (missing.code, missing.err.splitlines()[0].split("  ")[0]) == (4, "error: no such file or folder: none")
    unknown = windlass("data", "add", "ftp://host/file")
    assert (unknown.code, unknown.err.splitlines()[0].split("  ")[0]) == (
        2,
        "error: `ftp:` is not supported as a source of data (`ftp://host/file`)",
    )
    named = windlass("data", "add", "http://127.0.0.1:1/x", "--name", "a name")
    assert (named.code, named.err.splitlines()[0].split("  ")[0]) == (2, "error: invalid name for data `a name`")
    assert "[data-not-found]" in windlass("data", "show", "none").err
    assert windlass("data", "show", "none").code == 4
