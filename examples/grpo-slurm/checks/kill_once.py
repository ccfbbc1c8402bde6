"""Step 5 of the ladder: run a program, kill it once after some steps, and write down which steps each attempt saved.

    python checks/kill_once.py PROGRAM ARGUMENT...      # KILL_AFTER_STEPS=10

It knows the program only by its checkpoints, `state/global_step*` below ${checkpoints}. In the first attempt it sends SIGKILL
to the program, and to itself, when one of that many steps or more has stopped changing.
"""

import json
import os
import signal
import subprocess
import sys
import time

from windlass import report

AFTER_STEPS = int(os.environ.get("KILL_AFTER_STEPS", "10"))
LOOK_EVERY_S = 0.5


class Watcher:
    """The checkpoints that were begun since this process started, and whether they still change."""

    def __init__(self, folder):
        self._folder, self._since = folder, time.time()
        self._sizes = {}
        self.steps = set()

    def look(self):
        """The newest step that is whole, or 0."""
        before, self._sizes = self._sizes, {}
        for path in self._folder.glob("*/global_step*"):
            files = [(str(file), file.stat()) for file in sorted(path.rglob("*")) if file.is_file()]
            if files and max(stat.st_mtime for _, stat in files) >= self._since:
                step = int(path.name[len("global_step") :])
                self._sizes[step] = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in files]
        self.steps |= set(self._sizes)
        return max((step for step, sizes in self._sizes.items() if sizes == before.get(step)), default=0)


def main():
    place = report.place()
    watcher = Watcher(place.checkpoints)
    child = subprocess.Popen([sys.executable, *sys.argv[1:]])
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda received, _: child.send_signal(received))
    place.out.mkdir(parents=True, exist_ok=True)
    while child.poll() is None:
        time.sleep(LOOK_EVERY_S)
        try:
            newest = watcher.look()
        except FileNotFoundError:  # an old checkpoint went while we looked
            continue
        (place.out / f"steps-{place.attempt}.json").write_text(json.dumps(sorted(watcher.steps)))
        if place.attempt == 1 and newest >= AFTER_STEPS:
            print(f"kill_once: step {newest} is saved; killing {sys.argv[1]}", flush=True)
            child.kill()
            child.wait()
            os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(child.returncode if child.returncode >= 0 else 128 - child.returncode)


if __name__ == "__main__":
    main()
