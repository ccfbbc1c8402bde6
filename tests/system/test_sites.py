"""`windlass site` against a real Slurm: what it says of itself is written down, and real jobs prove it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.slurm import SlurmLab
from windlass.backends.site_shell import LocalShell, SshShell, shell_for
from windlass.launcher.sites.add import add_site
from windlass.launcher.sites.check import check_site
from windlass.launcher.sites.check_history import last_check
from windlass.sites.store import find_site
from windlass.supervise.archive import ensure_archive

pytestmark = pytest.mark.system


@pytest.fixture
def shared(at_slurm: SlurmLab, tmp_path: Path) -> Path:
    """A folder that all nodes see."""
    path = tmp_path / "shared"
    path.mkdir()
    return path


def test_a_site_is_added_and_proved(at_slurm: SlurmLab, home: Path, shared: Path, tmp_path: Path) -> None:
    add_site("lab", home, overrides=[f"fs.shared={shared}"], today="2026-11-21")
    profile = find_site("lab", home)
    assert profile.partitions["main"].gpus == at_slurm.options.gpus
    assert profile.partitions["main"].num_nodes == at_slurm.options.num_nodes
    check = check_site(profile, home=home, shell=LocalShell(), archive=ensure_archive(tmp_path / "archives"))
    verdicts = {(finding.nodes, finding.name): finding.status for finding in check.results}
    assert check.is_ok, check.results
    assert {key for key, status in verdicts.items() if status == "not-tried"} == {
        (1, "port"), (1, "clock"), (1, "all-reduce"), (2, "all-reduce"),
    }  # fmt: skip
    assert verdicts[2, "port"] == verdicts[2, "clock"] == verdicts[1, "gpus"] == verdicts[2, "shared"] == "ok"
    assert len(check.facts) >= 2
    assert last_check(home, "lab") == check
    assert list((shared / "windlass" / "checks").iterdir()) == []


def test_a_site_is_added_and_proved_over_ssh(
    slurm: SlurmLab, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("WINDLASS_SSH_CONFIG", str(slurm.hosts.ssh_config))
    shared = tmp_path / "shared"
    shared.mkdir()
    try:
        add_site("far", home, ssh="login", overrides=[f"fs.shared={shared}"], today="2026-11-21")
        profile = find_site("far", home)
        assert profile.ssh == "login"
        check = check_site(profile, home=home, shell=shell_for(profile), archive=ensure_archive(tmp_path / "archives"))
        assert check.is_ok, check.results
    finally:
        SshShell("login").close()


def test_what_is_wrong_with_a_site_is_named(at_slurm: SlurmLab, home: Path, shared: Path, tmp_path: Path) -> None:
    wrong = ["net.interface=hsn", "partitions.main.gpus=2", "env.modules=[no/such]"]
    add_site("lab", home, overrides=[f"fs.shared={shared}", *wrong], today="2026-11-21")
    archive = ensure_archive(tmp_path / "archives")
    check = check_site(find_site("lab", home), home=home, shell=LocalShell(), archive=archive, num_nodes=1)
    failed = {finding.name: finding.message for finding in check.results if finding.status == "failed"}
    assert set(failed) == {"modules", "interface"}
    assert failed["modules"] == "cannot load: no/such"
    assert "no network interface `hsn`" in failed["interface"]


def test_a_folder_that_only_the_login_node_sees_is_named(at_slurm: SlurmLab, home: Path, tmp_path: Path) -> None:
    private = Path("/dev/shm") / f"windlass-{tmp_path.name}"
    private.mkdir()
    try:
        add_site("lab", home, overrides=[f"fs.shared={private}"], today="2026-11-21")
        archive = ensure_archive(tmp_path / "archives")
        check = check_site(find_site("lab", home), home=home, shell=LocalShell(), archive=archive, num_nodes=1)
        (shared,) = [finding for finding in check.results if finding.status == "failed"]
        assert shared.name == "shared"
        assert f"cannot see {private}/windlass/checks/" in shared.message
    finally:
        for path in sorted(private.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        private.rmdir()


def test_accounts_and_qualities_are_found(
    slurm_accounting: SlurmLab, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm_accounting.env["SLURM_CONF"])
    path = add_site("lab", home, today="2026-11-21")
    scheduler = find_site("lab", home).scheduler
    assert (scheduler.accounting, scheduler.account) == (True, "lab")
    assert set(scheduler.accounts) >= {"lab", "other"}
    assert scheduler.preemptible is not None
    assert scheduler.preemptible.qos == "low"
    assert "accounting: true" in path.read_text()
