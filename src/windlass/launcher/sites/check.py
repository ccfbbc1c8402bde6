"""Check of a site with real jobs, on one node and on several; the results are recorded.

Jobs are queued in Slurm like those of a run. Their nodes check themselves and each other
(windlass.supervise.slurm.node_check) and write results to a folder on the site's shared file system.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path

from windlass.backends.site_shell import ShellResult, SiteShell
from windlass.core.clock import Clock, SystemClock, format_time
from windlass.core.dataclass import dataclass
from windlass.core.errors import UnreachableError, UsageError
from windlass.core.json_text import decode_json
from windlass.launcher.sites.check_history import CheckResult, SiteCheck, Status, save_check
from windlass.launcher.sites.check_script import CANNOT_SEE, NO_PYTHON, OLD_PYTHON, check_script, check_variables
from windlass.sites.profile import Partition, Profile
from windlass.supervise.slurm.job_listing import program_path
from windlass.supervise.slurm.node_check import CHECK_FILE, CheckSpec

__all__ = ["check_site"]

_STATES = re.compile(r"^@@windlass job (\S+)\|(\S*)\|(.*)$", re.MULTILINE)
_FILES = re.compile(r"^@@windlass file (\S+)\n(.*?)\n?^@@windlass end$", re.MULTILINE | re.DOTALL)
_EXIT = re.compile(r"ExitCode=(\d+):(\d+)")
_ORDER = (
    "login",
    "queue",
    "shared",
    "modules",
    "python",
    "node-local",
    "gpus",
    "driver",
    "file locks",
    "file clock",
    "interface",
    "port",
    "clock",
    "all-reduce",
)
_LIVING = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED")
_LATE_S = 10.0
_LEAVING_S = 60.0
_MAX_LISTED = 3
_RANK = {"failed": 0, "ok": 1, "not-tried": 2}


@dataclass(slots=True)
class _Job:
    """Job that a check submits; times are relative to the start of the check."""

    id: str
    nodes: int
    folder: str
    state: str = "PENDING"
    reason: str = ""
    began_s: float | None = None
    ended_s: float | None = None
    answered_s: float | None = None
    missing_modules: tuple[str, ...] = ()
    results: dict[int, Mapping[str, object]] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Return whether all nodes have written their results."""
        return len(self.results) == self.nodes

    def is_settled(self, now_s: float) -> bool:
        """Return whether no more results are expected; on network file systems files may appear late.

        A job that has answered gets some time to end.
        """
        if self.answered_s is not None:
            return self.ended_s is not None or now_s - self.answered_s >= _LEAVING_S
        return self.ended_s is not None and now_s - self.ended_s >= _LATE_S


def check_site(
    profile: Profile,
    *,
    home: Path,
    shell: SiteShell,
    archive: Path,
    num_nodes: int = 2,
    partition: str = "",
    python: str = "",
    timeout_s: float = 600.0,
    clock: Clock | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> SiteCheck:
    """Check a site on one node and on `num_nodes` nodes, and record the results. Blocking.

    Its jobs are cancelled after `timeout_s`, or if this call is interrupted.

    Args:
        home: WINDLASS_HOME, where the history is.
        archive: the local zipapp.
        partition: the profile's if empty.
        python: interpreter with torch at the site, for an all-reduce, which is skipped if empty.
        tell: called with a line about what the check waits for.

    Raises:
        UnreachableError: the site cannot be reached.
        UsageError: `fs.shared` is not set.
    """
    run = _Check(profile, shell, partition or profile.scheduler.partition, python, clock or SystemClock(), tell)
    found = run.carry_out(archive, sorted({1, num_nodes}), timeout_s)
    save_check(home, found)
    return found


class _Check:
    """Check in progress, with its folder and jobs at the site."""

    def __init__(
        self, profile: Profile, shell: SiteShell, partition: str, python: str, clock: Clock, tell: Callable[[str], None]
    ) -> None:
        self._profile, self._shell, self._partition, self._python = profile, shell, partition, python
        self._clock, self._tell = clock, tell
        self._there = profile.partitions.get(partition, Partition())

    def carry_out(self, archive: Path, sizes: Sequence[int], timeout_s: float) -> SiteCheck:
        run = SiteCheck(site=self._profile.name, at=format_time(self._clock.now()), facts={})
        if not self._profile.fs.shared:
            hint = f"add `fs: {{shared: /a/folder/that/all/nodes/see}}` to the profile of `{self._profile.name}`"
            raise UsageError("`fs.shared` is not set in the profile", hint=hint, code="site-no-shared-folder")
        user = self._run(["id", "-un"]).out.strip()
        version = self._run([self._program("sbatch"), "--version"])
        if version.code:
            message = f"{self._shell.name} has no sbatch: {_last(version)}"
            return replace(run, results=(CheckResult(name="login", nodes=0, status="failed", message=message),))
        shared = self._profile.fs.shared.replace("${user}", user).rstrip("/")
        folder = f"{shared}/windlass/checks/{os.urandom(4).hex()}"
        failed = self._prepare(folder, archive, user, sizes)
        if failed is not None:
            return replace(run, results=(failed,))
        login = CheckResult(name="login", nodes=0, status="ok", message=f"{version.out.strip()}; wrote {folder}")
        jobs: list[_Job] = []
        try:
            refused = self._queue(folder, sizes, jobs, timeout_s)
            self._wait(jobs, timeout_s)
        finally:
            living = [job.id for job in jobs if job.ended_s is None]
            if living:
                with contextlib.suppress(UnreachableError):  # Slurm cancels them at their deadline
                    self._run([self._program("scancel"), *living])
        found = [login, *refused, *(finding for job in jobs for finding in self._verdicts(job, timeout_s))]
        found.sort(key=lambda finding: (finding.nodes, _ORDER.index(finding.name)))
        result = replace(run, results=tuple(found), jobs=tuple(job.id for job in jobs), facts=_facts(jobs))
        if result.is_ok:
            self._run(["rm", "-rf", folder])
        return result

    def _prepare(self, folder: str, archive: Path, user: str, sizes: Sequence[int]) -> CheckResult | None:
        """Create the check's folder with the program and its input; return a failed result on error."""
        nonce = os.urandom(16).hex()
        files: dict[str, bytes | Path] = {"nonce": nonce.encode(), "windlass.pyz": archive}
        prefix = posixpath.dirname(posixpath.dirname(self._python)) if self._python else ""
        tokens = {"user": user, "fs.shared": self._profile.fs.shared, "fs.node_local": self._profile.fs.node_local}
        tokens = {name: value.replace("${user}", user) for name, value in tokens.items()}
        for nodes in sizes:
            known = {**tokens, **({"env.path": prefix} if prefix else {})}
            spec = CheckSpec(
                nodes=nodes,
                nonce=nonce,
                interface=self._profile.net.interface,
                gpus=self._there.gpus,
                cuda=self._there.cuda,
                node_local=tokens["fs.node_local"],
                python=self._python,
                env=check_variables(self._profile, nodes=nodes, gpus=self._there.gpus or 0, tokens=known),
            )
            files[f"{nodes}/{CHECK_FILE}"] = json.dumps(asdict(spec)).encode()
        made = self._run(["mkdir", "-p", *(f"{folder}/{nodes}" for nodes in sizes)])
        for name, content in files.items() if made.code == 0 else ():
            made = self._run(["sh", "-c", 'cat >"$0"', f"{folder}/{name}"], stdin=content)
            if made.code:
                break
        if made.code == 0:
            return None
        hint = "set fs.shared to a folder with free space that you can write to"
        return CheckResult(
            name="shared", nodes=0, status="failed", message=f"cannot write to {folder}: {_last(made)}", hint=hint
        )

    def _queue(self, folder: str, sizes: Sequence[int], jobs: list[_Job], patience_s: float) -> list[CheckResult]:
        """Queue one job per size; return a failed result for each that is refused."""
        refused = []
        guard = self._profile.scheduler.submit_guard
        for nodes in sizes:
            asked = self._run(guard) if guard else ShellResult(0, "", "")
            if asked.code:
                message = f"`{shlex.join(guard)}` refused: {_last(asked)}"
                refused.append(CheckResult(name="queue", nodes=nodes, status="failed", message=message))
                continue
            script = check_script(
                self._profile,
                self._partition,
                folder=f"{folder}/{nodes}",
                archive=f"{folder}/windlass.pyz",
                nodes=nodes,
                has_torch=bool(self._python),
                patience_s=patience_s,
            )
            answer = self._run([self._program("sbatch"), "--parsable"], stdin=script.encode())
            match = re.search(r"^(\d+)", answer.out.strip().rpartition("\n")[2])
            if answer.code or match is None:
                hint = f"correct partition, account and QOS in the profile: windlass site show {self._profile.name}"
                message = _last(answer).removeprefix("sbatch: error: ")
                refused.append(CheckResult(name="queue", nodes=nodes, status="failed", message=message, hint=hint))
            else:
                jobs.append(_Job(match[1], nodes, f"{folder}/{nodes}"))
                self._tell(f"job {match[1]} on {nodes} node{'s' if nodes > 1 else ''} is queued")
        return refused

    def _wait(self, jobs: list[_Job], timeout_s: float) -> None:
        start, now_s, pause_s = self._clock.monotonic(), 0.0, 0.2
        told: dict[str, str] = {}
        while now_s < timeout_s and not all(job.is_settled(now_s) for job in jobs):
            self._clock.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 1.0 if self._shell.is_local else 5.0)
            now_s = self._clock.monotonic() - start
            try:
                self._look(jobs, now_s)
            except UnreachableError as error:
                if told.get("way") != error.message:
                    self._tell(f"{error.message}; trying again")
                told["way"] = error.message
                continue
            for job in jobs:
                if job.state == "PENDING" and job.reason not in ("", "None", told.get(job.id, "")):
                    self._tell(f"job {job.id} waits: {job.reason}")
                    told[job.id] = job.reason

    def _look(self, jobs: list[_Job], now_s: float) -> None:
        """Read the states and result files of all jobs with one command."""
        ids = ",".join(job.id for job in jobs)
        folders = " ".join(shlex.quote(job.folder) for job in jobs)
        script = (
            f"{shlex.quote(self._program('squeue'))} -h -t all -j {ids} -o '@@windlass job %i|%T|%r' 2>&1\n"
            'echo "@@windlass squeue $?"\n'
            f'for d in {folders}; do for f in "$d"/result-*.json "$d"/modules.missing; do\n'
            'if [ -f "$f" ]; then echo "@@windlass file $f"; cat "$f"; printf "\\n@@windlass end\\n"; fi; done; done\n'
        )
        text = self._run(["sh", "-c", script]).out
        states = {match[1]: (match[2], match[3]) for match in _STATES.finditer(text)}
        files = {match[1]: match[2] for match in _FILES.finditer(text)}
        is_answered = "@@windlass squeue 0\n" in text or "Invalid job id" in text
        for job in jobs:
            if job.id in states or is_answered:
                job.state, job.reason = states.get(job.id, ("GONE", ""))
            if job.state != "PENDING" and job.began_s is None:
                job.began_s = now_s
            if job.state not in _LIVING and job.ended_s is None:
                job.ended_s = now_s
            job.missing_modules = tuple(files.get(f"{job.folder}/modules.missing", "").splitlines())
            for rank in range(job.nodes):
                content = files.get(f"{job.folder}/result-{rank}.json")
                if content is not None:
                    job.results[rank] = decode_json(content)
            if job.is_whole and job.answered_s is None:
                job.answered_s = now_s

    def _verdicts(self, job: _Job, timeout_s: float) -> Iterator[CheckResult]:
        if job.began_s is None:
            message = f"job {job.id} is still queued after {timeout_s:g} s: {job.reason or 'no reason given'}"
            hint = "wait longer with --timeout 2h, or use another partition"
            yield CheckResult(name="queue", nodes=job.nodes, status="failed", message=message, hint=hint)
            return
        message = f"job {job.id} started within {job.began_s:.0f} s"
        yield CheckResult(name="queue", nodes=job.nodes, status="ok", message=message)
        if job.missing_modules:
            hint = f"correct env.modules; output of `module load`: {job.folder}/modules.log"
            message = f"cannot load: {', '.join(job.missing_modules)}"
            yield CheckResult(name="modules", nodes=job.nodes, status="failed", message=message, hint=hint)
        elif self._profile.env.modules:
            message = ", ".join(self._profile.env.modules)
            yield CheckResult(name="modules", nodes=job.nodes, status="ok", message=message)
        if not job.is_whole:
            yield self._silent(job)
        yield from _merged(job.nodes, list(job.results.values()))

    def _silent(self, job: _Job) -> CheckResult:
        """Explain missing results by the script's exit code, which Slurm reports even without shared files."""
        shown = self._run([self._program("scontrol"), "show", "job", job.id]).out
        host = (re.search(r"BatchHost=(\S+)", shown) or ["", "the node"])[1]
        match = _EXIT.search(shown)
        code = int(match[1]) if match else 0
        python = self._profile.env.python
        reasons = {
            CANNOT_SEE: ("shared", f"{host} cannot see {job.folder}", "correct fs.shared: all nodes must see it"),
            NO_PYTHON: ("python", f"{host} has no `{python}`", "correct env.python: use a full path, or load a module"),
            OLD_PYTHON: ("python", f"`{python}` of {host} is older than 3.9", "set env.python to a newer one"),
        }
        unknown = f"{len(job.results)} of {job.nodes} nodes answered; job {job.id} is {job.state}, exit code {code}"
        where = f"output of the job: {job.folder}/job.out"
        name, message, hint = reasons.get(code, ("shared", unknown, where))
        return CheckResult(name=name, nodes=job.nodes, status="failed", message=message, hint=hint)

    def _program(self, name: str) -> str:
        return program_path(self._profile.scheduler.bin, name)

    def _run(self, argv: Sequence[str], *, stdin: bytes | Path = b"") -> ShellResult:
        return self._shell.run(argv, stdin=stdin)


def _merged(nodes: int, results: Sequence[Mapping[str, object]]) -> Iterator[CheckResult]:
    """Merge the results of all nodes; a failed result names the nodes."""
    found: dict[str, list[tuple[str, Mapping[str, str]]]] = {}
    for result in results:
        findings = result["findings"]
        assert isinstance(findings, list)
        for finding in findings:
            found.setdefault(finding["name"], []).append((str(result["host"]), finding))
    for name, verdicts in found.items():
        worst = min((finding for _, finding in verdicts), key=lambda finding: _RANK[finding["status"]])
        hosts_by_message: dict[str, list[str]] = {}
        for host, finding in verdicts:
            if finding["status"] == worst["status"]:
                hosts_by_message.setdefault(finding["message"], []).append(host)
        lines = [f"{', '.join(hosts)}: {text}" for text, hosts in hosts_by_message.items()]
        more = f"; and {len(lines) - _MAX_LISTED} more" if len(lines) > _MAX_LISTED else ""
        is_same = len(hosts_by_message) == 1 and worst["status"] != "failed"
        message = next(iter(hosts_by_message)) if is_same else "; ".join(lines[:_MAX_LISTED]) + more
        status: Status = "failed" if worst["status"] == "failed" else "ok" if worst["status"] == "ok" else "not-tried"
        yield CheckResult(name=name, nodes=nodes, status=status, message=message, hint=worst["hint"])


def _facts(jobs: Sequence[_Job]) -> dict[str, Mapping[str, object]]:
    found: dict[str, Mapping[str, object]] = {}
    for job in jobs:
        for result in job.results.values():
            facts = result["facts"]
            assert isinstance(facts, dict)
            found[str(result["host"])] = facts
    return found


def _last(answer: ShellResult) -> str:
    lines = [line for line in (answer.err or answer.out).strip().splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with {answer.code}"
