from __future__ import annotations

from pathlib import Path

import pytest

from windlass.record.redact import Redactor
from windlass.supervise.gang.messages import Order
from windlass.supervise.logs.ray_logs import MAX_FILE_BYTES, collect_ray_logs
from windlass.supervise.replica import scratch
from windlass.supervise.replica.scratch import attempt_tokens, clear_scratch, host_addresses, scratch_folder

SECRET = b"s3cr3t-value-of-hf-token"


def test_a_socket_of_ray_fits_below_it(tmp_path: Path) -> None:
    sockets = "r/session_2026-11-21_08-36-06_595857_4194304/sockets/plasma_store"
    for root in ("/tmp", "", str(tmp_path / ("x" * 60))):
        folder = scratch_folder("token", 12, 345, {"TMPDIR": root})
        assert folder.parent == Path("/tmp")
        assert len(f"{folder}/{sockets}") <= 107
        assert "token" not in folder.name


def test_a_short_folder_that_the_site_names_is_used() -> None:
    assert scratch_folder("t", 0, 1, {"TMPDIR": "/var/tmp/"}).parent == Path("/var/tmp")


def test_every_attempt_and_replica_has_its_own() -> None:
    found = {scratch_folder("t", rank, attempt) for rank in (0, 1) for attempt in (1, 2)}
    assert len(found) == 4


def test_tokens_of_an_attempt() -> None:
    tokens = attempt_tokens("t", 1, 2, Order(epoch=1, address="10.0.0.1", port=29500), ["${hostfile}"])
    assert (tokens["leader.address"], tokens["leader.port"], tokens["rank"]) == ("10.0.0.1", "29500", "1")
    assert tokens["hostfile"] == str(scratch_folder("t", 1, 2) / "hosts")


def test_hosts_by_rank() -> None:
    assert host_addresses("a=10.0.0.1,b=10.0.0.2") == [("a", "10.0.0.1"), ("b", "10.0.0.2")]
    assert host_addresses("") == []


def session(folder: Path) -> Path:
    logs = folder / "r" / "session_2026" / "logs"
    (logs / "old").mkdir(parents=True)
    (folder / "r" / "session_latest").symlink_to(folder / "r" / "session_2026")
    return logs


def test_logs_are_kept_without_secrets_and_the_folder_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "wl"
    monkeypatch.setattr(scratch, "scratch_folder", lambda *_: folder)
    logs = session(folder)
    (logs / "raylet.out").write_bytes(b"env: " + SECRET + b"\n")
    (logs / "empty").touch()
    (folder / "start.log").write_text("started\n")
    assert clear_scratch("t", 1, 1, tmp_path / "out", Redactor({"HF_TOKEN": SECRET})) == ""
    assert not folder.exists()
    kept = tmp_path / "out" / "ray-1"
    assert sorted(path.name for path in kept.iterdir()) == ["raylet.out", "start.log"]
    assert (kept / "raylet.out").read_bytes() == b"env: [secret HF_TOKEN]\n"
    assert clear_scratch("t", 1, 1, tmp_path / "out", Redactor({})) == ""


def test_no_part_of_a_secret_is_left_where_a_long_log_is_cut(tmp_path: Path) -> None:
    logs = session(tmp_path / "wl")
    tail = b"y" * (MAX_FILE_BYTES - 5)
    (logs / "raylet.out").write_bytes(b"x" * 1000 + SECRET + tail)
    collect_ray_logs(tmp_path / "wl", tmp_path / "out", Redactor({"HF_TOKEN": SECRET}))
    content = (tmp_path / "out" / "raylet.out").read_bytes()
    assert SECRET[-5:] not in content
    assert content.endswith(b"y" * 1000)
    assert len(content) <= MAX_FILE_BYTES
