"""A guard whose supervisor is a stand-in; what the supervisor sees is in the file `seen`, until a file `end` is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from windlass.core.process import identify
from windlass.supervise.fencing.agent import FencingConfig
from windlass.supervise.fencing.guard import GuardContext, guard
from windlass.supervise.job import Fencing


def play(setting: dict[str, Any]) -> int:
    """Guard one replica whose user code is `program`; returns the guard's exit code."""
    folder = Path(setting["folder"])
    post = FencingConfig(folder, 0, "wardentoken", "7.0", Fencing(**setting["fencing"]))
    return guard(folder / "7.0", 0, lambda held: _supervise(held, folder, setting["argv"]), post)


def _supervise(held: GuardContext, folder: Path, argv: list[str]) -> int:
    user = subprocess.Popen(argv, start_new_session=True, env={**os.environ, "WINDLASS_TOKEN": "wardentoken.0"})
    while not (folder / "end").exists():
        user.poll()
        assert held.shared_memory is not None
        decision = held.decision()
        seen = {
            "supervisor": str(identify(os.getpid())),
            "user": str(identify(user.pid)),
            "agent": str(identify(held.shared_memory.agent())),
            "state": int(decision.state),
            "why": decision.why_killed(0.0),
            "lost_s": decision.lost_s,
        }
        temporary = folder / "seen.new"
        temporary.write_text(json.dumps(seen))
        temporary.rename(folder / "seen")
        time.sleep(0.01)
    return 0


if __name__ == "__main__":
    sys.exit(play(json.loads(sys.argv[1])))
