"""The vault: values come back, nobody else reads them, writers do not lose each other's, damage is explained."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.core.errors import AccessError, NotFoundError, UsageError
from windlass.secrets.store import check_value
from windlass.secrets.vault import Vault

VALUE = b"s3cr3t-value-0123"


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    made = Vault(tmp_path / "vault")
    made.set("HF_TOKEN", VALUE)
    return made


def test_value_comes_back(vault: Vault, tmp_path: Path) -> None:
    assert Vault(tmp_path / "vault").get("HF_TOKEN") == VALUE


def test_empty_vault_makes_nothing(tmp_path: Path) -> None:
    assert Vault(tmp_path / "vault").names() == []
    assert not (tmp_path / "vault").exists()


def test_names_are_sorted_and_values_replaced(vault: Vault) -> None:
    vault.set("A_KEY", b"first")
    vault.set("A_KEY", b"second\n\xff")
    assert vault.names() == ["A_KEY", "HF_TOKEN"]
    assert vault.get("A_KEY") == b"second\n\xff"


def test_removed_is_gone(vault: Vault) -> None:
    vault.remove("HF_TOKEN")
    assert vault.names() == []
    with pytest.raises(NotFoundError, match="no secret `HF_TOKEN`"):
        vault.remove("HF_TOKEN")


def test_near_name_is_proposed(vault: Vault) -> None:
    with pytest.raises(NotFoundError) as caught:
        vault.get("HF_TOKE")
    assert (caught.value.code, caught.value.hint) == ("secret-not-found", "did you mean `HF_TOKEN`?")


def test_files_are_private_and_hold_no_plain_text(vault: Vault, tmp_path: Path) -> None:
    folder = tmp_path / "vault"
    assert folder.stat().st_mode & 0o777 == 0o700
    for name in ("identity", "vault.age", "lock"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    assert not any(VALUE in path.read_bytes() or b"HF_TOKEN" in path.read_bytes() for path in folder.iterdir())


@pytest.mark.parametrize(
    ("name", "mode", "hint"),
    [("", 0o755, "chmod 700"), ("identity", 0o644, "chmod 600"), ("vault.age", 0o604, "chmod 600")],
)
def test_wrong_permissions(vault: Vault, tmp_path: Path, name: str, mode: int, hint: str) -> None:
    path = tmp_path / "vault" / name
    path.chmod(mode)
    with pytest.raises(AccessError, match=f"can be read by other users \\(mode {mode:o}\\)") as caught:
        vault.get("HF_TOKEN")
    assert (caught.value.code, caught.value.hint) == ("secret-exposed", f"{hint} {path}")


def test_missing_key(vault: Vault, tmp_path: Path) -> None:
    (tmp_path / "vault" / "identity").unlink()
    for use in (vault.names, lambda: vault.set("OTHER", b"other")):
        with pytest.raises(AccessError, match="the key of the vault is missing") as caught:
            use()
        assert caught.value.code == "vault-unreadable"
        assert "from a backup" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("identity", b"AGE-SECRET-KEY-WRONG\n", "cannot decrypt .*identity: invalid age key"),
        ("identity", b"\xff\xfe", "no valid age key"),
        ("vault.age", b"", "cannot decrypt"),
        ("vault.age", b"age-encryption.org/v1\n", "cannot decrypt"),
    ],
)
def test_damage(vault: Vault, tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / "vault" / name).write_bytes(content)
    with pytest.raises(AccessError, match=message) as caught:
        vault.get("HF_TOKEN")
    assert caught.value.code == "vault-unreadable"
    assert "WRONG" not in "".join(traceback.format_exception(caught.value))


def test_key_of_another_vault(vault: Vault, tmp_path: Path) -> None:
    Vault(tmp_path / "other").set("HF_TOKEN", VALUE)
    (tmp_path / "vault" / "identity").write_bytes((tmp_path / "other" / "identity").read_bytes())
    with pytest.raises(AccessError, match="No matching keys found"):
        vault.get("HF_TOKEN")


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "A\n", "\u00c4"])
def test_name_that_is_no_variable(vault: Vault, name: str) -> None:
    with pytest.raises(UsageError, match="invalid secret name") as caught:
        vault.set(name, VALUE)
    assert caught.value.code == "invalid-name"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "is empty"),
        (b"abc", "is shorter than 4 bytes and cannot be masked in logs"),
        (b"  abc \n", "is shorter than 4 bytes"),
        (b"ab\0cdef", "contains a NUL byte"),
        (b"x" * 70_000, "has 70000 bytes"),
    ],
)
def test_value_that_is_refused(vault: Vault, value: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=f"the value of `KEY` {message}") as caught:
        vault.set("KEY", value)
    assert caught.value.code == "invalid-value"
    assert vault.names() == ["HF_TOKEN"]


@settings(max_examples=50, deadline=None)
@given(value=st.binary(max_size=40))
def test_no_error_quotes_a_value(value: bytes) -> None:
    marked = b"\0" + VALUE + value
    with pytest.raises(UsageError) as caught:
        check_value("KEY", marked)
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value)) + caught.value.render()


WRITER = """
import sys
from pathlib import Path
from windlass.secrets.vault import Vault
for number in range(4):
    Vault(Path(sys.argv[1])).set(f"KEY_{sys.argv[2]}_{number}", b"value of " + sys.argv[2].encode())
"""


@pytest.mark.system
def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "vault"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(folder), str(number)]) for number in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    vault = Vault(folder)
    assert vault.names() == sorted(f"KEY_{writer}_{number}" for writer in range(4) for number in range(4))
    assert vault.get("KEY_3_0") == b"value of 3"
