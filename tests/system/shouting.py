"""Four ranks that print as fast as they can while their supervisors are killed, and a look at what arrived."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from tests.system.stage import Stage
from windlass import Run
from windlass.core.process import send_signal
from windlass.record.state import State
from windlass.secrets.vault import Vault

__all__ = ["SECRET", "Shouting", "shout"]

SECRET = f"xK9-planted/secret+value=42&more{os.getpid()}"  # looked for on the whole machine, where others test as well
NUM_RANKS = 4
_KILL_EVERY_S = 0.7  # a guard gives up a supervisor that ends again and again within two seconds

_SHOUTER = """
import base64, os, sys, urllib.parse
from windlass import report
rank, num_lines, secret = report.place().rank, int(sys.argv[1]), os.environ["PLANTED"]
encoded = [secret, base64.b64encode(secret.encode()).decode(), urllib.parse.quote(secret, safe="")]
write = sys.stdout.buffer.write
for start in range(0, num_lines, 1000):
    lines = [f"{number} of rank {rank}: a line of about the usual length, with a loss of 0.{number}" for number in range(start, min(start + 1000, num_lines))]
    lines.insert(500, "secret " + encoded[start // 1000 % 3])
    text = ("\\n".join(lines) + "\\n").encode()
    cut = text.index(b"secret ") + 12                  # in the middle of the secret
    write(text[:cut]); sys.stdout.buffer.flush()
    write(text[cut:]); sys.stdout.buffer.flush()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shouting:
    """What became of the lines."""

    run: Run
    state: State
    causes: tuple[str, ...]
    num_lines: int
    num_bytes: int
    num_kills: int
    seconds: float
    problems: tuple[str, ...]


def shout(stage: Stage, num_lines: int, seed: int = 0, timeout_s: float = 120.0) -> Shouting:
    """Print `num_lines` in all from four ranks, killing a random supervisor again and again."""
    Vault(stage.home.vault).set("PLANTED", SECRET.encode())
    per_rank = num_lines // NUM_RANKS
    spec = stage.python(_SHOUTER, nodes=NUM_RANKS)
    spec["tasks"]["main"]["run"].append(str(per_rank))
    spec["env"] = {"secrets": ["PLANTED"]}
    began = time.monotonic()
    run = stage.launch(spec)
    num_kills = _kill_supervisors(stage, run, random.Random(seed), began + timeout_s)
    state = stage.end(run, timeout_s)
    seconds = time.monotonic() - began
    paths = [run.folder.logs / "1" / "main" / f"{rank}.log" for rank in range(NUM_RANKS)]
    problems = [problem for rank, path in enumerate(paths) for problem in _differences(path, rank, per_rank)]
    return Shouting(
        run=run,
        state=state,
        causes=tuple(stage.causes(run)),
        num_lines=per_rank * NUM_RANKS,
        num_bytes=sum(path.stat().st_size for path in paths),
        num_kills=num_kills,
        seconds=seconds,
        problems=tuple(problems),
    )


def _kill_supervisors(stage: Stage, run: Run, random_: random.Random, deadline: float) -> int:
    num_kills, order = 0, random_.sample(range(NUM_RANKS), NUM_RANKS)
    stage.wait_for_user(run)
    while not run.state.is_terminal and time.monotonic() < deadline:
        time.sleep(random_.uniform(0.6, 1.0) * _KILL_EVERY_S)
        pid = stage.ours(run, "supervisor", order[num_kills % NUM_RANKS])
        num_kills += bool(pid and stage.user(run, order[num_kills % NUM_RANKS]) and send_signal(pid, signal.SIGKILL))
    return num_kills


def _differences(path: Path, rank: int, count: int) -> list[str]:
    """What is lost, doubled, out of order or not hidden."""
    expected, num_hidden = 0, 0
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.startswith("secret "):
                num_hidden += 1
                if line != "secret [secret PLANTED]\n" and "***" not in line:
                    return [f"rank {rank}: {line!r}"]
                continue
            if line != f"{expected} of rank {rank}: a line of about the usual length, with a loss of 0.{expected}\n":
                return [f"rank {rank}: {line[:80]!r} where line {expected} should be"]
            expected += 1
    found = [] if expected == count else [f"rank {rank}: {expected} lines of {count}"]
    return found if num_hidden == -(-count // 1000) else [*found, f"rank {rank}: {num_hidden} lines with a secret"]
