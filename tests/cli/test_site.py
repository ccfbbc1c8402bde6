from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from scripts.tree import ROOT
from tests.cli.conftest import Windlass
from windlass.backends import site_shell
from windlass.backends.site_shell import LocalShell, ShellResult
from windlass.launcher.sites import check
from windlass.launcher.sites.check_history import CheckResult, SiteCheck, save_check

LAB = ROOT / "tests" / "backends" / "slurm" / "texts" / "22.05.txt"


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every machine answers as the lab did."""
    text = LAB.read_text()
    monkeypatch.setattr(LocalShell, "run", lambda *_, **__: ShellResult(0, text, ""))


def test_a_site_is_asked_written_and_shown(windlass: Windlass, home: Path, lab: None) -> None:
    result = windlass("site", "add", "lab", "fs.shared=/projects/abc", "scheduler.account=abc")
    assert result.code == 0, result.err
    path = home / "sites" / "lab.yaml"
    assert result.err == f"wrote {path}\nnext: windlass site check lab\n"
    assert "default      partition main, account abc" in result.out
    assert "low        4      4     8     7.8 GiB  x86_64  1d00h    preemptible" in result.out
    assert "unknown: net.interconnect, net.interface" in result.out
    assert "never checked: windlass site check lab" in result.out
    assert "shared: /projects/abc" in path.read_text()
    assert windlass("site", "show", "lab").out == result.out


def test_lore_of_a_shipped_site_of_that_name_is_kept(windlass: Windlass, lab: None) -> None:
    shown = json.loads(windlass("site", "add", "isambard", "--json").out)
    assert shown["schema"] == "windlass.site/1"
    assert shown["profile"]["net"]["interface"] == "hsn"
    assert list(shown["profile"]["partitions"]) == ["main", "low", "short"]


def test_a_site_can_be_written_without_asking(windlass: Windlass, home: Path) -> None:
    result = windlass("site", "add", "mine", "--from", "frontier", "--no-probe", "--ssh", "me@login")
    assert result.code == 0, result.err
    assert "access       ssh me@login" in result.out
    assert "name: mine\n" in (home / "sites" / "mine.yaml").read_text()


def test_a_bad_override_is_answered_as_on_an_experiment(windlass: Windlass, home: Path) -> None:
    result = windlass("site", "add", "mine", "--no-probe", "scheduler.partiton=x")
    assert (result.code, result.out) == (3, "")
    assert "unknown key `partiton` in scheduler" in result.err
    assert "hint: did you mean `partition`?" in result.err
    assert not (home / "sites").exists()


def test_an_edited_profile_is_kept(windlass: Windlass, home: Path) -> None:
    windlass("site", "add", "mine", "--no-probe")
    path = home / "sites" / "mine.yaml"
    path.write_text(path.read_text() + "about: my words\n")
    refused = windlass("site", "add", "mine", "--no-probe")
    assert (refused.code, "[site-edited]" in refused.err) == (8, True)
    assert windlass("site", "add", "mine", "--no-probe", "--replace").code == 0
    assert "about: my words\n" in path.read_text()


def test_what_was_said_before_is_kept_when_a_site_is_asked_again(windlass: Windlass, home: Path, lab: None) -> None:
    windlass("site", "add", "lab", "fs.shared=/projects/abc")
    windlass("site", "add", "lab", "scheduler.account=abc")
    text = (home / "sites" / "lab.yaml").read_text()
    assert "shared: /projects/abc" in text
    assert "account: abc" in text
    assert text.count("as reported by Slurm") == 1


def test_a_machine_without_slurm_says_what_to_type(windlass: Windlass, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalShell, "run", lambda *_, **__: ShellResult(0, "", ""))
    result = windlass("site", "add", "mine")
    assert result.code == 8
    assert "[no-slurm]" in result.err
    assert "windlass site add NAME --ssh USER@HOST" in result.err


def test_an_unknown_base_is_answered_with_the_nearest(windlass: Windlass) -> None:
    result = windlass("site", "add", "mine", "--from", "isambrad")
    assert (result.code, "did you mean `isambard`?" in result.err) == (2, True)


def test_the_list_has_every_site_and_a_broken_one_is_named(windlass: Windlass, home: Path) -> None:
    windlass("site", "add", "mine", "--no-probe", "--ssh", "me@login")
    shutil.copy(home / "sites" / "mine.yaml", home / "sites" / "other.yaml")
    save_check(home, SiteCheck(site="mine", at="2026-11-21T05:04:09Z", facts={}))
    rows = {row["name"]: row for row in json.loads(windlass("site", "ls", "--json").out)["sites"]}
    assert rows["local"]["reached_by"] == "this machine"
    assert (rows["mine"]["from"], rows["mine"]["reached_by"]) == ("yours", "ssh me@login")
    assert rows["mine"]["checked"] == "2026-11-21 ok"
    assert (rows["isambard"]["from"], rows["isambard"]["checked"]) == ("windlass", "never")
    assert rows["other"]["about"] == "broken: the profile in other.yaml is named `mine` [conflicting-options]"
    assert "mine" in windlass("site", "ls").out


def test_showing_tells_facts_that_should_be_looked_at_again(windlass: Windlass, home: Path) -> None:
    windlass("site", "add", "mine", "--no-probe")
    path = home / "sites" / "mine.yaml"
    path.write_text("name: mine\nsources: [{facts: net, status: measured, seen: 2020-01-01, expires: 2020-06-01}]\n")
    assert (
        "measured  2020-01-01 (outdated; run `windlass site add --replace`)  net"
        in windlass("site", "show", "mine").out
    )
    assert json.loads(windlass("site", "show", "mine", "--json").out)["stale"] == [["net"]]


def test_showing_has_what_nodes_are_looked_at_for_and_how_much_memory_a_gpu_has(windlass: Windlass) -> None:
    shown = windlass("site", "show", "isambard").out
    assert "  preflight    gpu-count, disk, port, clock\n" in shown
    assert "4 x gh200 of 95.0 GiB" in shown


def test_local_has_no_profile(windlass: Windlass) -> None:
    for verb in ("show", "check"):
        result = windlass("site", verb, "local")
        assert (result.code, "`windlass doctor` checks this machine" in result.err) == (2, True)


def test_a_site_that_there_is_not_is_answered_with_the_nearest(windlass: Windlass) -> None:
    assert "did you mean `frontier`?" in windlass("site", "show", "frontir").err


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("failed", 8)])
def test_a_check_prints_its_table_and_its_exit_code(
    status: str, code: int, windlass: Windlass, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = (
        CheckResult(name="login", nodes=0, status="ok", message="slurm 25.05"),
        CheckResult(name="port", nodes=2, status=status, message="n1: refused", hint="a firewall"),  # type: ignore[arg-type]
        CheckResult(name="clock", nodes=2, status="not-tried", message="no answer", hint="unseen"),
    )
    asked: dict[str, object] = {}

    def check_site(profile: object, **options: object) -> SiteCheck:
        asked.update(options)
        return SiteCheck(site="mine", at="2026-11-21T05:04:09Z", results=results, facts={})

    monkeypatch.setattr(check, "check_site", check_site)
    monkeypatch.setattr(site_shell, "shell_for", lambda _: None)
    windlass("site", "add", "mine", "--no-probe")
    result = windlass("site", "check", "mine", "--nodes", "4", "--timeout", "2h")
    assert result.code == code
    assert (asked["num_nodes"], asked["timeout_s"], asked["python"]) == (4, 7200.0, "")
    assert result.out.startswith("ok        login    login       slurm 25.05\n")
    assert f"{status:<9} 2 nodes  port        n1: refused\n" in result.out
    assert ("hint: a firewall" in result.out) == (status == "failed")
    assert "unseen" not in result.out
    assert result.err == f"mine: {'ok' if code == 0 else 'failed: port'}\n"
    data = json.loads(windlass("site", "check", "mine", "--json").out)
    assert (data["schema"], data["ok"]) == ("windlass.site-check/1", code == 0)


def test_showing_has_the_last_check(windlass: Windlass, home: Path) -> None:
    windlass("site", "add", "mine", "--no-probe")
    for message in ("first", "second"):
        finding = CheckResult(name="login", nodes=0, status="ok", message=message)
        save_check(home, SiteCheck(site="mine", at="2026-11-21T05:04:09Z", results=(finding,), facts={}))
    shown = windlass("site", "show", "mine").out
    assert "last check 2026-11-21T05:04:09Z: ok\nok        login    login       second\n" in shown
    assert "first" not in shown
