"""The account is read as Beaker's own tools read it, and a file that is not theirs is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from windlass.backends.beaker.account import read_account, set_default_workspace
from windlass.core.errors import AccessError, PreconditionError


def _environ(tmp_path: Path, text: str | None = None, **more: str) -> dict[str, str]:
    path = tmp_path / ".beaker" / "config.yml"
    if text is not None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return {"HOME": str(tmp_path), **more}


def test_the_file_of_the_home_folder_is_read(tmp_path: Path) -> None:
    text = "user_token: t\nagent_address: https://b.example/\nrpc_address: b.example:443\ndefault_org: lab\n"
    account = read_account(_environ(tmp_path, text + "default_workspace: lab/main\nupdater_timestamp: 3\n"))
    assert (account.token, account.agent_address, account.rpc_address) == ("t", "https://b.example", "b.example:443")
    assert (account.default_org, account.default_workspace, account.notes) == ("lab", "lab/main", ())
    assert account.source == str(tmp_path / ".beaker" / "config.yml")
    assert "t" not in repr(account).split("token of")[0].replace("beaker", "").replace("https", "").split()


def test_variables_come_before_the_file(tmp_path: Path) -> None:
    environ = _environ(tmp_path, "user_token: old\n", BEAKER_TOKEN="new", BEAKER_ADDR="http://here:1")
    account = read_account(environ)
    assert (account.token, account.agent_address, account.source) == ("new", "http://here:1", "BEAKER_TOKEN")
    assert account.rpc_address == "beaker.org:443"


def test_a_token_alone_is_enough(tmp_path: Path) -> None:
    account = read_account(_environ(tmp_path, BEAKER_TOKEN="t"))
    assert (account.token, account.default_org, account.path) == ("t", "ai2", None)


def test_the_named_file_is_the_only_one(tmp_path: Path) -> None:
    environ = _environ(tmp_path, "user_token: home\n", BEAKER_CONFIG=str(tmp_path / "other.yml"))
    with pytest.raises(AccessError) as caught:
        read_account(environ)
    assert caught.value.message == (
        f"no token for Beaker: BEAKER_TOKEN is not set, and {tmp_path / 'other.yml'} does not exist"
    )
    (tmp_path / "other.yml").write_text("user_token: other\n")
    assert read_account(environ).token == "other"


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("default_org: lab\n", {}, "{path} has no `user_token`, and BEAKER_TOKEN is not set"),
        ("user_token: ''\n", {}, "{path} has no `user_token`, and BEAKER_TOKEN is not set"),
        ("user_token: t\n", {"BEAKER_TOKEN": ""}, "the variable BEAKER_TOKEN is set and empty"),
    ],
)
def test_a_missing_token_is_an_error_of_its_own(tmp_path: Path, text: str, more: dict[str, str], message: str) -> None:
    with pytest.raises(AccessError) as caught:
        read_account(_environ(tmp_path, text, **more))
    assert caught.value.code == "beaker-token"
    assert caught.value.message == message.format(path=tmp_path / ".beaker" / "config.yml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\n", "{path} is not YAML: expected ',' or ']', but got '<stream end>'"),
        ("- a\n", "{path} is not a Beaker config file: it holds a list, not keys with values"),
        ("user_token: 12\n", "`user_token` in {path} is a int, not a text"),
    ],
)
def test_a_file_that_is_not_beakers_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PreconditionError) as caught:
        read_account(_environ(tmp_path, text))
    assert caught.value.code == "beaker-config"
    assert caught.value.message == message.format(path=tmp_path / ".beaker" / "config.yml")


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    environ = _environ(tmp_path, "")
    (tmp_path / ".beaker" / "config.yml").write_bytes(b"\xff\xfe")
    with pytest.raises(PreconditionError, match="cannot be read: it is not UTF-8"):
        read_account(environ)


def test_keys_of_a_newer_file_are_noted_and_the_rest_is_used(tmp_path: Path) -> None:
    account = read_account(_environ(tmp_path, "user_token: t\ndefault_workspac: lab/main\n"))
    path = tmp_path / ".beaker" / "config.yml"
    assert account.notes == (
        f"`default_workspac` in {path} is an unknown key and has no effect; did you mean `default_workspace`?",
    )


def test_an_empty_entry_is_none(tmp_path: Path) -> None:
    account = read_account(_environ(tmp_path, "user_token: t\ndefault_org: ''\nagent_address: ''\n"))
    assert (account.default_org, account.agent_address) == ("", "https://beaker.org")


def test_the_default_workspace_is_written_and_the_rest_stays(tmp_path: Path) -> None:
    environ = _environ(tmp_path, "user_token: t\nnew_key: 1\ndefault_workspace: lab/old\n")
    path = tmp_path / ".beaker" / "config.yml"
    path.chmod(0o640)
    assert set_default_workspace("lab/new", environ) == path
    assert yaml.safe_load(path.read_text()) == {"user_token": "t", "new_key": 1, "default_workspace": "lab/new"}
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_new_config_file_is_private(tmp_path: Path) -> None:
    path = set_default_workspace("lab/new", _environ(tmp_path))
    assert path.stat().st_mode & 0o777 == 0o600


def test_beakers_own_tools_read_what_we_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from beaker.config import Config  # lazy: grpc costs half a second

    path = set_default_workspace("lab/new", _environ(tmp_path, "user_token: t\n"))
    for name in ("BEAKER_TOKEN", "BEAKER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BEAKER_CONFIG", str(path))
    theirs, ours = Config.from_env(), read_account()
    assert theirs.default_workspace == ours.default_workspace == "lab/new"
    assert (theirs.user_token, theirs.agent_address) == (ours.token, ours.agent_address)
    assert (theirs.rpc_address, theirs.default_org) == (ours.rpc_address, ours.default_org)


@pytest.mark.parametrize("token", ["two words", "a\nb", "t\u00f6ken"])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(tmp_path: Path, token: str) -> None:
    with pytest.raises(AccessError) as caught:
        read_account(_environ(tmp_path, BEAKER_TOKEN=token))
    assert caught.value.code == "beaker-token"
    assert caught.value.message.startswith("the token of BEAKER_TOKEN has a blank")
    assert token not in caught.value.message + caught.value.hint


def test_an_address_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError) as caught:
        read_account(_environ(tmp_path, "user_token: t\nagent_address: localhost:1\n"))
    path = tmp_path / ".beaker" / "config.yml"
    assert (
        caught.value.message == f"`agent_address` in {path} is `localhost:1`, which is not the address of a web server"
    )
    with pytest.raises(PreconditionError, match="BEAKER_ADDR is `ftp://x`"):
        read_account(_environ(tmp_path, BEAKER_TOKEN="t", BEAKER_ADDR="ftp://x"))
