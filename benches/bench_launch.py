"""A trivial local launch, and a help page, beside the peers': `python benches/bench_launch.py [rounds]`.

Peers are driven from this interpreter's environment (`make bench` makes it): plain subprocess, torchrun, submitit and
TorchX; one that is not installed is left out. Cases are interleaved, so that a busy minute hits all alike, and one
round is thrown away. windlass runs with its defaults: a commit is pinned and checked out, journal and fsync are on.

Columns of a launch, from the moment the client is started: `first` to the job's first statement, `visible` to its
first line on the client's output, `exit` to the client's end (seconds). `client` is CPU of the client and the
children it waited for, `all` that of everything it started (CPU seconds: to be trusted on a busy machine).
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from windlass import Run, launch, load
from windlass.core.json_text import read_json
from windlass.core.process import ProcessId

ROOT = Path(__file__).parents[1] / "build" / "bench"
BIN = Path(sys.executable).parent
HELP_BUDGET_CPU_S, HELP_BUDGET_MODULES = 0.12, 250
FIRST_BUDGET_RATIO, CLIENT_BUDGET_CPU_S, SUPERVISOR_BUDGET = 1.2, 0.3, 0.005
SUPERVISED_S = 20.0
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, prctl(2)

JOB = """import sys, time
now = time.time()
print("FIRST-LINE", flush=True)
open(sys.argv[1], "w").write(repr(now))
"""
TALKER = "import time\nfor second in range(1000):\n    print(second, flush=True)\n    time.sleep(1)\n"
EXPERIMENT = "name: {name}\ntasks: {{t: {{run: [{python}, {script}, {stamp}]}}}}\n"
SUBPROCESS = "import subprocess, sys; subprocess.run([sys.executable, {job!r}, {stamp!r}], check=True)"
SUBMITIT = """import runpy, sys, submitit
def job():
    sys.argv = ["job", {stamp!r}]
    runpy.run_path({job!r})
executor = submitit.LocalExecutor(folder="logs/%j")
executor.update_parameters(timeout_min=2)
submitted = executor.submit(job)
submitted.result()
print(submitted.stdout())
"""
COMPONENT = """import torchx.specs as specs
def job() -> specs.AppDef:
    role = specs.Role(name="t", image="/tmp", entrypoint={python!r}, args=[{job!r}, {stamp!r}],
                      resource=specs.Resource(cpu=1, gpu=0, memMB=100))
    return specs.AppDef(name="bench", roles=[role])
"""
MODULES = """import sys
sys.argv = ["windlass", "--help"]
from windlass.cli import main
try:
    main()
except SystemExit:
    pass
print(len(sys.modules), file=sys.stderr)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One call: its clocks in seconds, its CPU seconds; `first` and `visible` are None for what launches nothing."""

    first: float | None
    visible: float | None
    exit: float
    client: float
    all: float


def main() -> int:
    """Print tables and budgets; 1 when a budget is missed."""
    num_rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # what a client leaves behind becomes our child, to be counted
    shutil.rmtree(ROOT, ignore_errors=True)
    work, stamp = ROOT / "work", ROOT / "stamp"
    work.mkdir(parents=True)
    helps, launches = _help_cases(), _launch_cases(work, stamp)
    rounds: dict[str, list[Round]] = {name: [] for name in (*helps, *launches)}
    for turn in range(num_rounds + 1):
        for name, argv in (helps | launches).items():
            measured = _measure(argv, work, stamp)
            if turn:
                rounds[name].append(measured)
    print(
        f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}"
    )
    print(f"medians of {num_rounds} interleaved rounds; load {os.getloadavg()[0]:.1f}\n")
    _print_helps(helps, rounds)
    _print_launches(launches, rounds)
    return _print_budgets(rounds)


def _help_cases() -> dict[str, list[str]]:
    cases = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "windlass --help": [str(BIN / "windlass"), "--help"],
        "torchx --help": [str(BIN / "torchx"), "--help"],
        "torchrun --help": [str(BIN / "torchrun"), "--help"],
        "import submitit": [sys.executable, "-c", "import submitit"],
    }
    return {name: argv for name, argv in cases.items() if _is_installed(name, argv)}


def _launch_cases(work: Path, stamp: Path) -> dict[str, list[str]]:
    job, words = work / "job.py", {"python": sys.executable, "stamp": str(stamp)}
    job.write_text(JOB)
    (work / "by_submitit.py").write_text(SUBMITIT.format(job=str(job), **words))
    (work / "component.py").write_text(COMPONENT.format(job=str(job), **words))
    project = _project(work / "trivial", "job.py", JOB, stamp)
    torchx = [str(BIN / "torchx"), "run", "--scheduler", "local_cwd", "--wait", "--log", "component.py:job"]
    cases = {
        "plain subprocess": [sys.executable, "-c", SUBPROCESS.format(job=str(job), **words)],
        "windlass launch": [str(BIN / "windlass"), "launch", str(project / "experiment.yaml")],
        "torchx run": torchx,
        "torchrun": [str(BIN / "torchrun"), "--standalone", "--nproc-per-node=1", str(job), str(stamp)],
        "submitit": [sys.executable, "by_submitit.py"],
    }
    return {name: argv for name, argv in cases.items() if _is_installed(name, argv)}


def _is_installed(name: str, argv: Sequence[str]) -> bool:
    is_there = Path(argv[0]).exists()
    if is_there and "submitit" in name:
        probe = [sys.executable, "-c", "import submitit"]
        is_there = subprocess.run(probe, capture_output=True, check=False).returncode == 0
    if not is_there:
        print(f"({name}: not installed, left out)")
    return is_there


def _project(folder: Path, script: str, text: str, stamp: Path) -> Path:
    """A repository with one commit, as windlass wants it."""
    folder.mkdir()
    (folder / script).write_text(text)
    content = EXPERIMENT.format(name=folder.name, python=sys.executable, script=script, stamp=stamp)
    (folder / "experiment.yaml").write_text(content)
    who = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "commit.gpgsign=false"]
    for words in (["init", "--quiet"], ["add", "--all"], [*who, "commit", "--quiet", "--message", "bench"]):
        subprocess.run(["git", *words], cwd=folder, env=_environment(), check=True)
    return folder


def _environment() -> dict[str, str]:
    """A user's, without what would make one of them slower than at home; nobody's home is written to."""
    left_out = ("PYTHON", "WINDLASS_", "GIT_", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    places = {"HOME": ROOT / "user", "XDG_CACHE_HOME": ROOT / "cache", "WINDLASS_HOME": ROOT / "home"}
    return env | {name: str(path) for name, path in places.items()}


def _measure(argv: list[str], work: Path, stamp: Path) -> Round:
    """Start a client, wait for it, and then for everything that it left running."""
    stamp.unlink(missing_ok=True)
    started, visible, lines = time.time(), None, []
    process = subprocess.Popen(argv, cwd=work, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line.decode(errors="replace"))
        if visible is None and b"FIRST-LINE" in line:
            visible = time.time() - started
    _, status, usage = os.wait4(process.pid, 0)
    ended, process.returncode = time.time() - started, os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{argv} ended with {process.returncode}:\n{''.join(lines[-15:])}")
    client = usage.ru_utime + usage.ru_stime
    first = float(stamp.read_text()) - started if stamp.exists() else None
    return Round(first=first, visible=visible, exit=ended, client=client, all=client + _cpu_of_the_rest())


def _cpu_of_the_rest() -> float:
    total = 0.0
    while True:
        try:
            _, _, usage = os.wait4(-1, 0)
        except ChildProcessError:
            return total
        total += usage.ru_utime + usage.ru_stime


def _median(rounds: Sequence[Round], column: str) -> float | None:
    values = [value for each in rounds if (value := getattr(each, column)) is not None]
    return statistics.median(values) if values else None


def _print_helps(names: Sequence[str] | dict[str, list[str]], rounds: dict[str, list[Round]]) -> None:
    ours = _median(rounds["windlass --help"], "client") or 0.0
    print(f"{'':<18}{'wall s':>9}{'CPU s':>9}{'CPU / ours':>12}")
    for name in names:
        wall, cpu = _median(rounds[name], "exit") or 0.0, _median(rounds[name], "client") or 0.0
        print(f"{name:<18}{wall:>9.3f}{cpu:>9.3f}{cpu / ours:>12.2f}")
    print()


def _print_launches(names: Sequence[str] | dict[str, list[str]], rounds: dict[str, list[Round]]) -> None:
    columns = ("first", "visible", "exit", "client", "all")
    print(f"{'seconds':<18}" + "".join(f"{column:>9}" for column in columns))
    for name in names:
        print(f"{name:<18}" + "".join(f"{_median(rounds[name], column) or 0.0:>9.3f}" for column in columns))
    ours = {column: _median(rounds["windlass launch"], column) or 0.0 for column in columns}
    print(f"\n{'as ratio to ours':<18}" + "".join(f"{column:>9}" for column in columns))
    for name in names:
        ratios = ((_median(rounds[name], column) or 0.0) / ours[column] for column in columns)
        print(f"{name:<18}" + "".join(f"{ratio:>9.2f}" for ratio in ratios))
    print()


def _print_budgets(rounds: dict[str, list[Round]]) -> int:
    found = [
        ("windlass --help, CPU seconds", _median(rounds["windlass --help"], "client"), HELP_BUDGET_CPU_S),
        ("windlass --help, modules", float(_num_modules()), float(HELP_BUDGET_MODULES)),
        ("client of a launch, CPU seconds", _median(rounds["windlass launch"], "client"), CLIENT_BUDGET_CPU_S),
        ("supervisor, CPU seconds per second", _supervisor_cost(), SUPERVISOR_BUDGET),
    ]
    theirs, ours = (_median(rounds.get(name, ()), "first") for name in ("torchx run", "windlass launch"))
    if theirs and ours:
        found.append(("first statement, ratio to TorchX's", ours / theirs, FIRST_BUDGET_RATIO))
    for label, value, budget in found:
        verdict = "pass" if value is not None and value <= budget else "MISS"
        print(f"{verdict}  {label:<36}{value or 0.0:>9.4g}   budget {budget:g}")
    return int(any(value is None or value > budget for _, value, budget in found))


def _num_modules() -> int:
    done = subprocess.run(
        [sys.executable, "-c", MODULES], env=_environment(), capture_output=True, text=True, check=True
    )
    return int(done.stderr.split()[-1])


def _supervisor_cost() -> float:
    """CPU of guard and supervisor over twenty quiet seconds of a job that prints a line a second."""
    os.environ.update(_environment())
    run = launch(load(_project(ROOT / "work" / "talker", "talker.py", TALKER, ROOT / "stamp") / "experiment.yaml"))
    try:
        while "process-started" not in _kinds(run):
            time.sleep(0.1)
        time.sleep(2.0)
        written = read_json(run.folder.jobs / "t-1" / "guard-0.json")
        assert isinstance(written, dict)
        pids = [ProcessId.parse(str(written[who])).pid for who in ("guard", "supervisor")]
        before, started = _cpu_of(pids), time.monotonic()
        time.sleep(SUPERVISED_S)
        return (_cpu_of(pids) - before) / (time.monotonic() - started)
    finally:
        run.stop(now=True)


def _kinds(run: Run) -> str:
    return "".join(path.read_text() for path in run.folder.journal.glob("*.wj"))


def _cpu_of(pids: Sequence[int]) -> float:
    """Seconds on a processor; source: kernel documentation, scheduler/sched-stats, /proc/pid/schedstat."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e9


if __name__ == "__main__":
    sys.exit(main())
