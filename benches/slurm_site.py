"""What the Slurm benches share: the lab's real Slurm, a project with one commit, a site profile, and verdicts.

The lab is that of the system tests (as root, after `make lab`): a bench that cannot have it fails and says so.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))  # a bench is run as a file

from tests.lab.components import COMPONENTS, is_present  # noqa: E402
from tests.lab.slurm import SlurmLab  # noqa: E402
from tests.lab.slurm_conf import Options  # noqa: E402

__all__ = ["SITE", "Bench", "Options", "Verdicts", "bench", "head", "until"]

BIN = Path(sys.executable).parent
SITE = "lab"
_LEFT_OUT = ("PYTHON", "WINDLASS_", "GIT_", "VIRTUAL_ENV", "UV_", "SLURM_", "SBATCH_")
_PROFILE = """\
name: {site}
about: the bench's own Slurm of virtual nodes
scheduler: {{version: 22.05.8, partition: main, kill_wait: 5s{bin}}}
partitions:
  main: {{num_nodes: 4, gpus: 4, gpu_type: fake, cpus: 8, memory: 8000MiB, time_max: 24h}}
net: {{interconnect: ethernet}}
fs: {{shared: "{home}"}}
env: {{python: "{python}"}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A Slurm that is up, and a folder that its nodes share."""

    lab: SlurmLab
    folder: Path

    @property
    def work(self) -> Path:
        """The user's project, the repository of which has one commit once `commit` was called."""
        return self.folder / "work"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def env(self) -> dict[str, str]:
        """A user's environment at this site, without what would make any contestant slower than at home."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)}
        places = {"HOME": self.folder / "user", "XDG_CACHE_HOME": self.folder / "cache", "WINDLASS_HOME": self.home}
        path = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        return kept | {name: str(value) for name, value in places.items()} | self.lab.env | path

    def write_site(self, programs: Path | None = None) -> None:
        """Write the profile; `programs` is a folder with what stands in for Slurm's."""
        path = self.home / "sites" / f"{SITE}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        words = f', bin: "{programs}"' if programs is not None else ""
        path.write_text(_PROFILE.format(site=SITE, bin=words, home=self.home, python=sys.executable))

    def commit(self, files: Mapping[str, str]) -> None:
        """Write the project and commit it."""
        self.work.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (self.work / name).write_text(text)
        who = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "commit.gpgsign=false"]
        for words in (["init", "--quiet"], ["add", "--all"], [*who, "commit", "--quiet", "--message", "bench"]):
            subprocess.run(["git", *words], cwd=self.work, env=self.env, check=True)

    def call(self, *argv: str, env: Mapping[str, str] | None = None) -> str:
        """Run a command of a user in the project to its end; what it printed."""
        done = subprocess.run(argv, cwd=self.work, env={**self.env, **(env or {})}, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    def windlass(self, *argv: str) -> str:
        """Run windlass in the project; what it printed."""
        return self.call(str(BIN / "windlass"), *argv)

    def wait_until_idle(self) -> None:
        """Wait until no job is queued or running, and every node can take the next."""
        until(lambda: not self.lab.queued(), "the queue is empty", 60)
        self.lab.wait_until_idle()


@contextmanager
def bench(name: str, options: Options | None = None) -> Iterator[Bench]:
    """A Slurm of its own for one bench; ends this process with a message where none can be had."""
    if not is_present("slurm"):
        raise SystemExit(f"FAIL: this bench needs a real Slurm of virtual nodes: {COMPONENTS['slurm'].remedy}")
    folder = REPO / "build" / f"bench-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    lab = SlurmLab(options or Options(has_login=False), name=f"bench-{name}-{os.getpid()}")
    lab.up()
    try:
        found = Bench(lab=lab, folder=folder)
        found.write_site()
        yield found
    finally:
        lab.down()


@dataclass(slots=True)
class Verdicts:
    """Budgets, and whether they are kept."""

    num_missed: int = field(default=0)

    def check(self, label: str, value: float, budget: float, unit: str = "") -> None:
        """Print a figure beside its budget, which is the largest that passes."""
        is_kept = value <= budget
        self.num_missed += not is_kept
        print(f"{'pass' if is_kept else 'MISS'}  {label:<62}{value:>9.4g}{unit}   budget {budget:.4g}{unit}")


def head(lab: SlurmLab) -> str:
    """The machine, the day, and what Slurm this is."""
    words = [platform.platform(), f"{os.cpu_count()} cores", f"Python {platform.python_version()}"]
    slurm = lab.command("sinfo", "--version")
    return ", ".join([*words, slurm, time.strftime("%Y-%m-%d"), f"load {os.getloadavg()[0]:.1f}"])


def until(condition: Callable[[], object], what: str, timeout_s: float) -> None:
    """Wait for something; ends this process when it does not come."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"FAIL: waited {timeout_s:g} s until {what}")
        time.sleep(0.02)
