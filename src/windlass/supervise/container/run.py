"""`windlass.pyz contain`: process of a replica that runs the command in a container and exits with it.

It creates the container, forwards signals, connects the engine's client to the replica's pipe, determines why the
container ended, and removes it. If this process is killed, the sweeps of the supervisor, of the next command and of
`windlass gc` find the container by its labels.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from windlass.core.files import lock, write_atomic
from windlass.core.json_text import decode_json
from windlass.core.process import ProcessId, descendants, identify, is_alive
from windlass.record.causes import Cause
from windlass.supervise.builds.built_data import GENERATION, GENERATION_NAME
from windlass.supervise.container.args import (
    ContainerUser,
    create_arguments,
    network_name,
    replica_name,
    secrets_script,
)
from windlass.supervise.container.engine import RUN_LABEL, TOKEN_LABEL, ContainerEngine
from windlass.supervise.gang.messages import Order
from windlass.supervise.job import JobDocument
from windlass.supervise.remote.delivery import delivery_token
from windlass.supervise.replica.environment import TOKEN_NAME
from windlass.supervise.replica.exit_report import report_end
from windlass.supervise.replica.termination import parent_of, targets_of

__all__ = ["INHERITED_INSIDE", "contain_main", "contained", "order_inside"]

INHERITED_INSIDE = (
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
)
"""Variables of the machine that user code in a container gets."""

_INSIDE = "WINDLASS_INSIDE_"
_SECRETS = "WINDLASS_CONTAINER_SECRETS"
_INSIST_S = 0.5
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm"}


# --- called by the supervisor -----------------------------------------------------------------------------------


def order_inside(job: JobDocument, order: Order) -> Order:
    """Return the order as seen from inside the container: in a private network, replicas are found by name."""
    if job.container.network != "private":
        return order
    names = [replica_name(rank) for rank in range(job.num_replicas)]
    return replace(order, address=names[0], hosts=",".join(f"{name}={name}" for name in names))


def contained(
    job: JobDocument, folder: Path, rank: int, attempt: int, argv: Sequence[str], env: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the command and environment of the process that runs the container; secret values are passed in a file.

    Args:
        folder: the job's folder.
        argv, env: the user's command and variables inside the container.
    """
    secret = {use.name for use in job.settings.secrets if not use.is_file} & set(env)
    outer = {**os.environ, TOKEN_NAME: env[TOKEN_NAME]}
    outer.update({_INSIDE + name: value for name, value in env.items() if name not in secret})
    if secret:
        delivery = Path(job.paths.delivery)
        path = delivery.with_name(f"{delivery_token(delivery)}.{job.token}.{rank}.sh")  # removed with the delivery
        write_atomic(path, secrets_script({name: env[name] for name in secret}), mode=0o600, is_durable=False)
        outer[_SECRETS] = str(path)
    program = [
        sys.executable,
        "-I",
        "-S",
        os.path.abspath(sys.argv[0]),
        "contain",
        str(folder),
        str(rank),
        str(attempt),
    ]
    at = list(argv).index("--") + 1 if "data-build" in argv[:5] else 0  # it publishes what the container wrote
    return [*argv[:at], *program, *argv[at:]], outer


# --- the process itself ---------------------------------------------------------------------------------------------


def contain_main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one container to its end; return its exit code, or 125 to 127 if it could not be started."""
    folder, rank, attempt = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    job = _with_generation(JobDocument.read(folder / "job.json"), environ.get(GENERATION_NAME, ""))
    replica = _Replica(job, folder, rank, attempt, list(arguments[3:]), environ)
    signal.signal(signal.SIGTERM, lambda *_: replica.terminate())
    signal.signal(signal.SIGALRM, lambda *_: replica.insist())  # after the first SIGTERM
    problem = replica.make()
    if problem is not None:
        replica.engine.sweep(job.token, rank)
        return replica.say(*problem, 127)
    try:
        return replica.run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        replica.engine.sweep(job.token, rank)


def _with_generation(job: JobDocument, name: str) -> JobDocument:
    """Return a data build's job with the real name of its writable folder, which `data-build` chose."""
    if not name:
        return job
    stand_in = f"{name.rpartition('.')[0]}.{GENERATION}"
    writable = tuple(path.replace(stand_in, name) for path in job.container.writable)
    return replace(job, container=replace(job.container, writable=writable))


class _Replica:
    """Container of a replica, and the client process that is attached to it."""

    def __init__(
        self, job: JobDocument, folder: Path, rank: int, attempt: int, argv: list[str], environ: Mapping[str, str]
    ) -> None:
        self.engine = ContainerEngine(job.container.engine, job.container.variables)
        self._job, self._folder, self._rank, self._attempt, self._argv = job, folder, rank, attempt, argv
        self._env = {key[len(_INSIDE) :]: value for key, value in environ.items() if key.startswith(_INSIDE)}
        self._secrets = environ.get(_SECRETS, "")
        self._id = ""
        self._image: Mapping[str, Any] = {}
        self._is_terminated = self._is_delivered = False
        self._targets: list[ProcessId] = []

    def make(self) -> tuple[Cause, str] | None:
        """Create the network and the container; return why that failed, or None."""
        problem = self._find_image()
        if problem is not None:
            return problem
        problem_text = self._make_network()
        if problem_text:
            return Cause.START_FAILED, problem_text
        for path in self._job.container.writable:
            os.makedirs(path, exist_ok=True)
        words = create_arguments(
            self._job,
            self._rank,
            self._attempt,
            argv=self._argv,
            env=self._with_image_paths(),
            user=_own_user(),
            folders=self._shown(),
            secrets=self._secrets,
            init=_init_of(self.engine.program),
        )
        made = self.engine.create(words)
        if made.code:
            return Cause.START_FAILED, f"cannot create the container: {_last_line(made.stderr)}"
        self._id = made.stdout.split()[-1]
        return None

    def run(self) -> int:
        """Start the container and wait for its end; report a cause that its exit code does not show."""
        if self._is_terminated:
            return 128 + signal.SIGTERM
        client = subprocess.Popen(
            [self.engine.program, "start", "--attach", self._id],
            env=self.engine.env,
            stdin=subprocess.DEVNULL,
        )
        return self._ended(client.wait())

    def terminate(self) -> None:
        """Forward SIGTERM to the processes that would get it without a container; repeat until one is running."""
        self._is_terminated = True
        signal.setitimer(signal.ITIMER_REAL, _INSIST_S, _INSIST_S)
        first = self._first() if self._id else 0
        targets = targets_of(first, is_shell=self._job.command.is_shell) if first else []
        self._targets = [found for found in map(identify, targets) if found is not None]
        delivered = [_signal(pid) for pid in targets]
        if delivered and all(delivered):
            self._is_delivered = True
        elif self._id:
            self._is_delivered = self.engine.signal(f"{self._job.token}.{self._rank}", "TERM")

    def insist(self) -> None:
        """Repeat the SIGTERM for a shell that started its next command after the first one ended."""
        if not self._is_delivered:
            self.terminate()
        elif self._targets and not any(is_alive(found) for found in self._targets):
            self._targets = []
            first = self._first()
            if first:
                _signal(first)

    def _first(self) -> int:
        """Return the pid, on this machine, of the process below the container's init; 0 if it is not visible."""
        answer = self.engine.ask("inspect", "--type=container", "--format={{.State.Pid}}", self._id).stdout.strip()
        init = int(answer) if answer.isdigit() else 0
        if not init or identify(init) is None:
            return 0
        return next((pid for pid in descendants(init) if parent_of(pid) == init), 0)

    def say(self, cause: Cause, message: str, code: int) -> int:
        """Report a cause in the log and the journal; return the code."""
        place = {
            "WINDLASS_JOURNAL": str(Path(self._job.paths.run_dir) / "journal"),
            "WINDLASS_TASK": self._job.task,
            "WINDLASS_RANK": str(self._rank),
            "WINDLASS_ATTEMPT": str(self._attempt),
        }
        return report_end(place, cause, message, code=code)

    # --- making -----------------------------------------------------------------------------------------------------

    def _find_image(self) -> tuple[Cause, str] | None:
        """Inspect the image, downloading it if it is missing."""
        name = self._job.container.image
        for is_last in (False, True):
            found = self.engine.ask("image", "inspect", name)
            if found.code == 0:
                self._image = decode_json(found.stdout)[0]
                return None
            if found.code == 125 or "annot connect" in found.stderr:
                return Cause.START_FAILED, f"cannot connect to {self.engine.program}: {_last_line(found.stderr)}"
            if not is_last:
                fetched = self.engine.ask("pull", "--quiet", name, timeout_s=1800.0)
                if fetched.code:
                    reason = _last_line(fetched.stderr)
                    what = f"the image `{self._job.container.name}` ({name})"
                    return Cause.IMAGE_FAILED, f"{what} is missing and cannot be downloaded: {reason}"
        return Cause.IMAGE_FAILED, f"the image `{name}` was downloaded but is missing"

    def _make_network(self) -> str:
        """Create the job's network unless another replica did; return why that failed, or ""."""
        if self._job.container.network == "host":
            return ""
        name = network_name(self._job)
        with lock(self._folder / "network.lock"):
            if self.engine.ask("network", "inspect", name).code == 0:
                return ""
            labels = [f"--label={TOKEN_LABEL}={self._job.token}", f"--label={RUN_LABEL}={self._job.run}"]
            made = self.engine.ask("network", "create", *labels, name)
        return f"cannot create the network: {_last_line(made.stderr)}" if made.code else ""

    def _with_image_paths(self) -> dict[str, str]:
        """Return the variables, with the image's PYTHONPATH appended to windlass's entries."""
        words = (self._image.get("Config") or {}).get("Env") or []
        image = dict(word.partition("=")[::2] for word in words)
        env = dict(self._env)
        if env.get("PYTHONPATH") and image.get("PYTHONPATH"):
            env["PYTHONPATH"] += os.pathsep + image["PYTHONPATH"]
        return env

    def _shown(self) -> list[str]:
        """Return paths that are known only in the job: the control folder, and secrets as files."""
        control = [str(Path(self._env["WINDLASS_CONTROL"]).parent)] if "WINDLASS_CONTROL" in self._env else []
        return control + [
            self._env[use.name] for use in self._job.settings.secrets if use.is_file and use.name in self._env
        ]

    # --- ending -----------------------------------------------------------------------------------------------------

    def _ended(self, client_code: int) -> int:
        """Return the exit code; report a cause that the code does not show."""
        answer = self.engine.ask("inspect", "--type=container", "--format={{json .State}}", self._id)
        if answer.code:
            return (
                client_code if client_code > 128 else 128 + signal.SIGKILL
            )  # removed by a sweep, or the engine is down
        state = decode_json(answer.stdout)
        if state.get("Running"):  # its client was killed, so nothing reads its output
            self.engine.signal(f"{self._job.token}.{self._rank}", "KILL")
            return 128 + signal.SIGKILL
        if state.get("Status") in ("created", "configured", "initialized"):
            problem = self._why_not_executed(client_code) or _last_line(state.get("Error") or "") or "see the log"
            return self.say(Cause.START_FAILED, f"the container did not start: {problem}", 127)
        code = int(state.get("ExitCode", client_code))
        if code and state.get("OOMKilled"):
            limit = f"{self._job.shape.memory_bytes / 2**20:g} MiB"
            return self.say(Cause.OUT_OF_MEMORY, f"the container needed more memory than its limit of {limit}", code)
        if state.get("Error"):
            return self.say(Cause.START_FAILED, f"the container did not start: {_last_line(state['Error'])}", 127)
        problem = self._why_not_executed(code) if code else ""
        return self.say(Cause.START_FAILED, problem, 127) if problem else code

    def _why_not_executed(self, code: int) -> str:
        """Return why the command could not be started, or ""."""
        name, here = self._job.container.name, os.uname().machine
        architecture = str(self._image.get("Architecture") or "")
        if architecture and architecture != _MACHINES.get(here, here) and code in (1, 126, 127, 255):
            return f"the image `{name}` is for {architecture}, but this machine is {_MACHINES.get(here, here)}"
        needed = "/bin/sh" if self._secrets else self._argv[0]
        if code != 127 or self._has(needed):
            return ""
        if self._secrets:
            return f"the image `{name}` has no /bin/sh, which secrets as variables need; use secrets as files"
        return f"the image `{name}` has no `{needed}`"

    def _has(self, program: str) -> bool:
        """Return whether a program is in the container; a bare name is looked up on its PATH."""
        words = (self._image.get("Config") or {}).get("Env") or []
        path = self._env.get("PATH") or dict(word.partition("=")[::2] for word in words).get("PATH", "/usr/bin:/bin")
        places = [program] if "/" in program else [f"{folder}/{program}" for folder in path.split(":")]
        return any(self.engine.ask("cp", f"{self._id}:{place}", "-").code == 0 for place in places)


def _own_user() -> ContainerUser:
    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = ""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return ContainerUser(uid, os.getgid(), sorted(os.getgroups()), name, memory)


def _init_of(program: str) -> str | None:
    """Return an init program for the container if the engine has none, like podman without catatonit."""
    if program != "podman" or shutil.which("catatonit") or os.path.exists("/usr/libexec/podman/catatonit"):
        return None
    return shutil.which("tini-static") or shutil.which("tini")


def _signal(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("WARNING")]
    return lines[-1][:400] if lines else "no reason given"
