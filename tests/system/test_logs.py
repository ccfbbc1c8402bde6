from __future__ import annotations

import base64
import binascii
import json
import urllib.parse
from pathlib import Path

import pytest

from tests.system.bursts import burst
from tests.system.shouting import SECRET, shout
from tests.system.stage import Stage, living
from windlass.record.state import State
from windlass.secrets.vault import Vault

pytestmark = pytest.mark.system

NUM_LINES = 1_000_000


def test_every_line_arrives_once_and_in_order_whatever_is_killed(stage: Stage) -> None:
    found = shout(stage, NUM_LINES)
    assert found.problems == ()
    assert (found.state, found.causes) == (State.SUCCEEDED, ("ok",)), stage.story(found.run)
    assert found.num_kills > 0
    assert artefacts_with(SECRET.encode(), found.run.folder.path, stage.home.cache) == []


@pytest.mark.parametrize("seed", range(3))
def test_what_is_in_the_log_is_whole_when_everything_of_a_replica_is_killed_at_once(stage: Stage, seed: int) -> None:
    printed, lost = burst(stage, seed)
    assert lost < printed


def artefacts_with(secret: bytes, *folders: Path) -> list[Path]:
    """Files in which the secret can be read, in any of the forms it is likely to take."""
    text = secret.decode()
    forms = {
        secret,
        base64.b64encode(secret),
        base64.urlsafe_b64encode(secret).rstrip(b"="),
        binascii.hexlify(secret),
        urllib.parse.quote(text, safe="").encode(),
        json.dumps(text)[1:-1].encode(),
    }
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return [path for path in files if any(form in content_of(path) for form in forms)]


def content_of(path: Path) -> bytes:
    """Content of a file; nothing of one that ends with its writer, such as a journal's reserve, which may be ending."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


LEAKS = """
import base64, json, os, sys, time, urllib.parse
from windlass import report
secret = os.environ["PLANTED"]
print(secret)
print("b64", base64.b64encode(secret.encode()).decode(), "in", base64.b64encode(b"x:" + secret.encode()).decode())
print("url", urllib.parse.quote(secret, safe=""), "json", json.dumps({"key": secret}), "hex", secret.encode().hex())
for half in (secret[:9], secret[9:]):
    sys.stdout.write(half); sys.stdout.flush(); time.sleep(0.3)
print()
print("ready", flush=True)
while not os.path.exists("seen"): time.sleep(0.02)
raise RuntimeError("refused with " + secret)
"""


def test_a_secret_is_in_no_artefact_of_a_failed_run(stage: Stage) -> None:
    Vault(stage.home.vault).set("PLANTED", SECRET.encode())
    spec = stage.python(LEAKS)
    spec["env"] = {"secrets": ["PLANTED"]}
    run = stage.launch(spec)
    stage.wait_for_line(run, "ready")
    users = {stage.user(run)}
    assert set(living(SECRET)) == users
    stage.write("seen", "")
    assert stage.end(run) is State.FAILED
    end = stage.ends(run)[0]
    assert "RuntimeError: refused with" in end.traceback
    assert artefacts_with(SECRET.encode(), run.folder.path, stage.home.cache) == []
    assert living(SECRET) == {}
