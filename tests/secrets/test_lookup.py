"""Where a value comes from: environment before store; all that are missing are named at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.core.errors import AccessError, NotFoundError, UsageError
from windlass.secrets.keyring_store import KeyringStore
from windlass.secrets.lookup import Secrets, open_secrets
from windlass.secrets.vault import Vault

VALUE = b"s3cr3t-value-0123"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Vault(tmp_path / "vault").set("HF_TOKEN", VALUE)
    return tmp_path


def test_value_of_the_vault(home: Path) -> None:
    found = open_secrets(home, {}).find("HF_TOKEN")
    assert found is not None
    assert (found.value, found.source) == (VALUE, "vault")
    assert "s3cr3t" not in repr(found)


def test_environment_goes_before(home: Path) -> None:
    found = open_secrets(home, {"WINDLASS_SECRET_HF_TOKEN": "from-ci"}).find("HF_TOKEN")
    assert found is not None
    assert (found.value, found.source) == (b"from-ci", "environment")


def test_empty_variable_counts_as_absent(home: Path) -> None:
    secrets = open_secrets(home, {"WINDLASS_SECRET_HF_TOKEN": "", "WINDLASS_SECRET_OTHER": ""})
    assert secrets.sources() == {"HF_TOKEN": "vault"}
    assert secrets.find("OTHER") is None


def test_variable_that_is_too_short_is_refused(home: Path) -> None:
    with pytest.raises(UsageError, match="`WINDLASS_SECRET_HF_TOKEN` is shorter than 4 bytes"):
        open_secrets(home, {"WINDLASS_SECRET_HF_TOKEN": "abc"}).find("HF_TOKEN")


def test_sources_of_all(home: Path) -> None:
    secrets = open_secrets(home, {"WINDLASS_SECRET_A": "from-ci", "PATH": "/bin"})
    assert secrets.sources() == {"A": "environment", "HF_TOKEN": "vault"}


def test_required_values(home: Path) -> None:
    assert open_secrets(home, {}).require(["HF_TOKEN", "HF_TOKEN"]) == {"HF_TOKEN": VALUE}


def test_all_missing_are_named(home: Path) -> None:
    with pytest.raises(AccessError, match="no value for the secrets `B`, `A`") as caught:
        open_secrets(home, {}).require(["B", "HF_TOKEN", "A"])
    assert caught.value.exit_code == 5
    assert caught.value.code == "secret-missing"
    assert caught.value.hint == "windlass secret set B; windlass secret set A"


def test_one_missing_is_one(home: Path) -> None:
    with pytest.raises(AccessError, match="no value for the secret `B`"):
        open_secrets(home, {}).require(["B"])


def test_unknown_store(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown store `keyrin` in WINDLASS_VAULT") as caught:
        open_secrets(tmp_path, {"WINDLASS_VAULT": "keyrin"})
    assert (caught.value.code, caught.value.hint) == ("invalid-value", "did you mean `keyring`?")


# --- keyring


@pytest.fixture
def passwords() -> Iterator[dict[tuple[str, str], str]]:
    """The real keyring package over a backend in memory."""
    import keyring
    from keyring.backend import KeyringBackend
    from keyring.errors import PasswordDeleteError

    kept: dict[tuple[str, str], str] = {}

    class Memory(KeyringBackend):
        priority = 1

        def get_password(self, service: str, username: str) -> str | None:
            return kept.get((service, username))

        def set_password(self, service: str, username: str, password: str) -> None:
            kept[service, username] = password

        def delete_password(self, service: str, username: str) -> None:
            if kept.pop((service, username), None) is None:
                raise PasswordDeleteError(username)

    before = keyring.get_keyring()
    keyring.set_keyring(Memory())  # type: ignore[no-untyped-call]  # keyring does not annotate its __init__
    yield kept
    keyring.set_keyring(before)


def test_keyring_keeps_text(tmp_path: Path, passwords: dict[tuple[str, str], str]) -> None:
    store = open_secrets(tmp_path, {"WINDLASS_VAULT": "keyring"}).store
    store.set("HF_TOKEN", VALUE)
    store.set("A", b"other")
    assert store.names() == ["A", "HF_TOKEN"]
    assert passwords["windlass", "HF_TOKEN"] == VALUE.decode()
    assert Secrets(store, {}).sources() == {"A": "keyring", "HF_TOKEN": "keyring"}
    store.remove("A")
    assert store.names() == ["HF_TOKEN"]
    with pytest.raises(NotFoundError, match="no secret `A`"):
        store.get("A")
    with pytest.raises(NotFoundError, match="no secret `A`"):
        store.remove("A")


def test_keyring_refuses_bytes(tmp_path: Path, passwords: dict[tuple[str, str], str]) -> None:
    with pytest.raises(UsageError, match="the value of `KEY` is not text"):
        KeyringStore(tmp_path).set("KEY", b"\xff\xfe\xfd\xfc")
    assert passwords == {}


def test_keyring_without_backend(tmp_path: Path, passwords: dict[tuple[str, str], str]) -> None:
    import keyring
    from keyring.backends.fail import Keyring

    keyring.set_keyring(Keyring())
    with pytest.raises(AccessError, match="cannot access the keyring: NoKeyringError") as caught:
        KeyringStore(tmp_path).names()
    assert caught.value.code == "vault-unreadable"


def test_keyring_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(AccessError, match="keyring is not installed") as caught:
        KeyringStore(tmp_path).names()
    assert "pip install 'windlass[keyring]'" in caught.value.hint
