from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Windlass

VALUE = "sk-planted-4711"


def test_a_value_comes_in_by_standard_input_and_never_out(windlass: Windlass, home: Path) -> None:
    result = windlass("secret", "set", "HF_TOKEN", stdin=VALUE.encode() + b"\n")
    assert (result.code, result.out, result.err) == (0, "", "stored HF_TOKEN in the vault\n")
    listed = windlass("secret", "ls")
    assert listed.out == "NAME      SOURCE\nHF_TOKEN  vault\n"
    content = json.loads(windlass("secret", "ls", "--json").out)
    assert content == {"schema": "windlass.secrets/1", "secrets": [{"name": "HF_TOKEN", "source": "vault"}]}
    assert not [path for path in home.rglob("*") if path.is_file() and VALUE.encode() in path.read_bytes()]


def test_one_line_end_is_dropped_and_no_more(windlass: Windlass, home: Path) -> None:
    from windlass.secrets.lookup import open_secrets

    for given, kept in (
        (b"abcdef\n", b"abcdef"),
        (b"abcdef\r\n", b"abcdef"),
        (b"abcdef\n\n", b"abcdef\n"),
        (b"abcdef", b"abcdef"),
    ):
        windlass("secret", "set", "X", stdin=given)
        assert open_secrets(home).store.get("X") == kept


def test_a_value_on_the_command_line_is_refused_unseen(windlass: Windlass) -> None:
    for arguments in (("HF_TOKEN", VALUE), (f"HF_TOKEN={VALUE}",)):
        result = windlass("secret", "set", *arguments, stdin=b"other-value")
        assert result.code == 2
        assert VALUE not in result.err + result.out
        assert "value of `HF_TOKEN` given on the command line" in result.err
        assert "[secret-on-command-line]" in result.err
    assert windlass("secret", "ls").err == "no secrets yet; add one with `windlass secret set NAME < FILE`\n"


def test_removing(windlass: Windlass) -> None:
    windlass("secret", "set", "HF_TOKEN", stdin=b"abcdef")
    missing = windlass("secret", "rm", "HF_TOKE")
    assert missing.code == 4
    assert "did you mean `HF_TOKEN`?" in missing.err
    assert windlass("secret", "rm", "HF_TOKEN").err == "removed HF_TOKEN from the vault\n"


def test_an_empty_value_is_refused(windlass: Windlass) -> None:
    result = windlass("secret", "set", "HF_TOKEN")
    assert result.code == 2
    assert "[invalid-value]" in result.err
