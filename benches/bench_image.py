"""Images: a build after a change of the code alone beside a cold build, and an unchanged commit beside both.

`python benches/bench_image.py`, as root on a machine where the lab's engine can run (`make lab`). Dependencies are a virtual
environment whose library is compiled several times over, as heavy on disk and CPU as installing a large one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.lab.docker import BASE, DockerLab
from windlass.launcher.stage.image import build_image
from windlass.pin.image.building import num_cached
from windlass.runs.home import Home

GOAL = 1 / 15
UNCHANGED_S = 2.0
DOCKERFILE = f"""\
FROM {BASE}
WORKDIR /app
COPY deps.txt ./
RUN for each in 1 2 3 4 5 6; do python3 -m venv /opt/venv$each && cp -r /usr/lib/python3.11 /opt/venv$each/deps \\
 && python3 -m compileall -q -f /opt/venv$each/deps >/dev/null || true; done
COPY . ./
"""


def _commit(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "add", "--all"], cwd=folder, check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", name], cwd=folder, check=True)


def _timed(folder: Path, home: Home) -> tuple[float, str]:
    start = time.perf_counter()
    pin, _ = build_image(folder / "e.yaml", on="docker", home=home)
    return time.perf_counter() - start, (home.cache / "images" / f"{pin.key}.log").read_text()


def main() -> int:
    """Print the table; 1 where a goal is missed."""
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as name:
        folder, home = Path(name) / "project", Home(Path(name) / "home")
        folder.mkdir()
        lab = DockerLab(name=f"bench-of-{os.getpid()}")
        lab.up()
        os.environ.update(lab.env)
        try:
            subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
            (folder / "Dockerfile").write_text(DOCKERFILE)
            (folder / "e.yaml").write_text("name: t\nenv: {image: Dockerfile}\ntasks: {train: {run: 'true'}}\n")
            (folder / "deps.txt").write_text("heavy\n")
            _commit(folder, "train.py", "print(1)\n")
            cold_s, _ = _timed(folder, home)
            warm = []
            for number in range(3):
                _commit(folder, "train.py", f"print({number + 2})\n")
                seconds, log = _timed(folder, home)
                assert num_cached(log) >= 3, log
                warm.append(seconds)
            unchanged_s, _ = _timed(folder, home)
        finally:
            lab.down()
    code_s = min(warm)
    print(f"{'cold build':<24}{cold_s:8.2f} s")
    print(f"{'code changed':<24}{code_s:8.2f} s   {code_s / cold_s:.3f} of cold, goal {GOAL:.3f}")
    print(f"{'unchanged':<24}{unchanged_s:8.2f} s   goal {UNCHANGED_S:.1f} s")
    return 0 if code_s / cold_s <= GOAL and unchanged_s <= UNCHANGED_S else 1


if __name__ == "__main__":
    sys.exit(main())
