"""Deliveries as the job sees them: values, variables, files, removal, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.core.errors import AccessError
from windlass.supervise.job import JobDocument, JobPaths, JobSecret, ReplicaCommand, TaskSettings
from windlass.supervise.remote.delivery import (
    delivery_token,
    pack_delivery,
    read_delivery,
    remove_delivery,
    secret_values,
    secret_variables,
)

TOKEN = "0123456789abcdef"
VALUES = {"HF_TOKEN": b"s3cr3t-value", "KEY": b"line one\nline two\n\xff"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "delivery"
    folder.mkdir(mode=0o700)
    return write(folder / f"{TOKEN}.json", pack_delivery(VALUES))


def write(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(content)
    path.chmod(mode)
    return path


def job_with(path: Path, *secrets: JobSecret) -> JobDocument:
    paths, settings = JobPaths("/r", delivery=str(path)), TaskSettings(secrets=secrets)
    return JobDocument("r", "t", 1, "x", ReplicaCommand(("true",)), paths, settings=settings)


def test_values_come_back(path: Path) -> None:
    assert read_delivery(path) == VALUES
    assert b"s3cr3t" not in path.read_bytes()


def test_job_without_secrets_needs_no_delivery() -> None:
    assert secret_values(job_with(Path("/nowhere"))) == {}


def test_job_gets_what_it_names_and_no_more(path: Path) -> None:
    assert secret_values(job_with(path, JobSecret("HF_TOKEN"))) == {"HF_TOKEN": b"s3cr3t-value"}


def test_missing_secret_is_named(path: Path) -> None:
    with pytest.raises(AccessError, match="no value for `OTHER`") as caught:
        secret_values(job_with(path, JobSecret("HF_TOKEN"), JobSecret("OTHER")))
    assert caught.value.code == "secret-missing"


def test_variable_holds_the_value_or_a_path(path: Path) -> None:
    variables = secret_variables(job_with(path, JobSecret("HF_TOKEN"), JobSecret("KEY", is_file=True)))
    assert variables["HF_TOKEN"] == "s3cr3t-value"
    assert Path(variables["KEY"]).read_bytes() == VALUES["KEY"]
    assert Path(variables["KEY"]).stat().st_mode & 0o777 == 0o600
    assert Path(variables["KEY"]).parent == path.parent


def test_removal_takes_the_files_too_and_can_be_repeated(path: Path) -> None:
    other = write(path.with_name("fedcba9876543210.json"), b"{}")
    secret_variables(job_with(path, JobSecret("KEY", is_file=True)))
    write(path.with_name(f".{path.name}.1.ab.tmp"), b"left by a crash")
    remove_delivery(path)
    assert list(path.parent.iterdir()) == [other]
    remove_delivery(path)


def test_removal_overwrites(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").hardlink_to(path)
    size = path.stat().st_size
    remove_delivery(path)
    assert (tmp_path / "link").read_bytes() == b"\0" * size


def test_token_of_every_file() -> None:
    names = [f"{TOKEN}.json", f"{TOKEN}.KEY", f".{TOKEN}.json.12.ab.tmp"]
    assert {delivery_token(Path("/x") / name) for name in names} == {TOKEN}


def test_gone(path: Path) -> None:
    remove_delivery(path)
    with pytest.raises(AccessError, match="no longer at") as caught:
        read_delivery(path)
    assert caught.value.code == "secret-missing"


def test_readable_by_others(path: Path) -> None:
    path.chmod(0o640)
    with pytest.raises(AccessError, match="can be read by other users \\(mode 640\\)") as caught:
        read_delivery(path)
    assert (caught.value.code, caught.value.hint) == ("secret-exposed", f"chmod 600 {path}")


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"values": 1}', b'{"values": {"A": "s3cr3t!"}}', b"\xff"])
def test_damaged(path: Path, content: bytes) -> None:
    write(path, content)
    with pytest.raises(AccessError, match="is damaged") as caught:
        read_delivery(path)
    assert caught.value.code == "secret-missing"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
