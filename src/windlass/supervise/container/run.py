"""`windlass.pyz contain`: the user's process of a replica where that is a container; it lives as long as the container.

It makes the container, passes signals on, lets the engine's client write into the replica's own pipe, finds out why the
container ended, and removes it. What is left when this process is killed, the sweeps of the supervisor, of the next
command and of `windlass gc` find by its labels.
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
"""What user code in a container gets of the machine's environment."""

_INSIDE = "WINDLASS_INSIDE_"
_SECRETS = "WINDLASS_CONTAINER_SECRETS"
_INSIST_S = 0.5
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm"}


# --- what the supervisor asks for -----------------------------------------------------------------------------------


def order_inside(job: JobDocument, order: Order) -> Order:
    """The order as it is true inside: in a private network replicas are found by name."""
    if job.container.network != "private":
        return order
    names = [replica_name(rank) for rank in range(job.num_replicas)]
    return replace(order, address=names[0], hosts=",".join(f"{name}={name}" for name in names))


def contained(
    job: JobDocument, folder: Path, rank: int, attempt: int, argv: Sequence[str], env: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Command and environment of the process that stands for the container; secret values go into a file beside it.

    Args:
        folder: the job's.
        argv, env: the user's, as they are to be inside.
    """
    secret = {use.name for use in job.secrets if not use.is_file} & set(env)
    outer = {**os.environ, TOKEN_NAME: env[TOKEN_NAME]}
    outer.update({_INSIDE + name: value for name, value in env.items() if name not in secret})
    if secret:
        delivery = Path(job.delivery)
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
    at = list(argv).index("--") + 1 if "data-build" in argv[:5] else 0  # that one publishes what the container wrote
    return [*argv[:at], *program, *argv[at:]], outer


# --- the process itself ---------------------------------------------------------------------------------------------


def contain_main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one container to its end; returns its exit code, 125 to 127 where it could not be started."""
    folder, rank, attempt = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    job = _with_generation(JobDocument.read(folder / "job.json"), environ.get(GENERATION_NAME, ""))
    replica = _Replica(job, folder, rank, attempt, list(arguments[3:]), environ)
    signal.signal(signal.SIGTERM, lambda *_: replica.terminate())
    signal.signal(signal.SIGALRM, lambda *_: replica.insist())  # from the first SIGTERM on
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
    """The job of a build of data, with the folder that it may write to; only `data-build` knows its name."""
    if not name:
        return job
    stand_in = f"{name.rpartition('.')[0]}.{GENERATION}"
    writable = tuple(path.replace(stand_in, name) for path in job.container.writable)
    return replace(job, container=replace(job.container, writable=writable))


class _Replica:
    """One container of a replica and the client that is attached to it."""

    def __init__(
        self, job: JobDocument, folder: Path, rank: int, attempt: int, argv: list[str], environ: Mapping[str, str]
    ) -> None:
        self.engine = ContainerEngine(job.container.engine, job.container.variables)
        self._job, self._folder, self._rank, self._attempt, self._argv = job, folder, rank, attempt, argv
        self._env = {key[len(_INSIDE) :]: value for key, value in environ.items() if key.startswith(_INSIDE)}
        self._secrets = environ.get(_SECRETS, "")
        self._id = ""
        self._image: Mapping[str, Any] = {}
        self._is_terminated = self._is_heard = False
        self._targets: list[ProcessId] = []

    def make(self) -> tuple[Cause, str] | None:
        """Create network and container; returns why that cannot be done, or None."""
        problem = self._find_image()
        if problem is not None:
            return problem
        said = self._make_network()
        if said:
            return Cause.START_FAILED, said
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
            return Cause.START_FAILED, f"the container cannot be made: {_last_line(made.stderr)}"
        self._id = made.stdout.split()[-1]
        return None

    def run(self) -> int:
        """Start it, wait for its end, say why it ended where its code alone would not."""
        if self._is_terminated:
            return 128 + signal.SIGTERM
        client = subprocess.Popen(
            [self.engine.program, "start", "--attach", self._id],
            env=self.engine.env,
            stdin=subprocess.DEVNULL,
        )
        return self._ended(client.wait())

    def terminate(self) -> None:
        """Pass SIGTERM on, to whom it is for on a machine without containers too; again later while nothing runs yet."""
        self._is_terminated = True
        signal.setitimer(signal.ITIMER_REAL, _INSIST_S, _INSIST_S)
        first = self._first() if self._id else 0
        targets = targets_of(first, is_shell=self._job.is_shell) if first else []
        self._targets = [found for found in map(identify, targets) if found is not None]
        heard = [_signal(pid) for pid in targets]
        if heard and all(heard):
            self._is_heard = True
        elif self._id:
            self._is_heard = self.engine.signal(f"{self._job.token}.{self._rank}", "TERM")

    def insist(self) -> None:
        """A shell that went on to its next command when the first had left goes too."""
        if not self._is_heard:
            self.terminate()
        elif self._targets and not any(is_alive(found) for found in self._targets):
            self._targets = []
            first = self._first()
            if first:
                _signal(first)

    def _first(self) -> int:
        """The process below the container's init, by this machine's numbers; 0 where that cannot be seen."""
        told = self.engine.ask("inspect", "--type=container", "--format={{.State.Pid}}", self._id).stdout.strip()
        init = int(told) if told.isdigit() else 0
        if not init or identify(init) is None:
            return 0
        return next((pid for pid in descendants(init) if parent_of(pid) == init), 0)

    def say(self, cause: Cause, message: str, code: int) -> int:
        """Tell people and the journal; returns the code."""
        place = {
            "WINDLASS_JOURNAL": str(Path(self._job.run_dir) / "journal"),
            "WINDLASS_TASK": self._job.task,
            "WINDLASS_RANK": str(self._rank),
            "WINDLASS_ATTEMPT": str(self._attempt),
        }
        return report_end(place, cause, message, code=code)

    # --- making -----------------------------------------------------------------------------------------------------

    def _find_image(self) -> tuple[Cause, str] | None:
        """Know the image; one that is not here any more is fetched again."""
        name = self._job.container.image
        for is_last in (False, True):
            found = self.engine.ask("image", "inspect", name)
            if found.code == 0:
                self._image = decode_json(found.stdout)[0]
                return None
            if found.code == 125 or "annot connect" in found.stderr:
                return Cause.START_FAILED, f"{self.engine.program} does not answer: {_last_line(found.stderr)}"
            if not is_last:
                fetched = self.engine.ask("pull", "--quiet", name, timeout_s=1800.0)
                if fetched.code:
                    said = _last_line(fetched.stderr)
                    what = f"the image `{self._job.container.name}` ({name})"
                    return Cause.IMAGE_FAILED, f"{what} is not here and cannot be fetched: {said}"
        return Cause.IMAGE_FAILED, f"the image `{name}` was fetched and is not here"

    def _make_network(self) -> str:
        """The job's network, made by the first replica that comes; returns why it cannot be had."""
        if self._job.container.network == "host":
            return ""
        name = network_name(self._job)
        with lock(self._folder / "network.lock"):
            if self.engine.ask("network", "inspect", name).code == 0:
                return ""
            labels = [f"--label={TOKEN_LABEL}={self._job.token}", f"--label={RUN_LABEL}={self._job.run}"]
            made = self.engine.ask("network", "create", *labels, name)
        return f"the network cannot be made: {_last_line(made.stderr)}" if made.code else ""

    def _with_image_paths(self) -> dict[str, str]:
        """The variables, with what the image itself has behind our own entries of PYTHONPATH."""
        words = (self._image.get("Config") or {}).get("Env") or []
        image = dict(word.partition("=")[::2] for word in words)
        env = dict(self._env)
        if env.get("PYTHONPATH") and image.get("PYTHONPATH"):
            env["PYTHONPATH"] += os.pathsep + image["PYTHONPATH"]
        return env

    def _shown(self) -> list[str]:
        """Files that only the job knows: requests of the supervisor to the code, secrets as files."""
        control = [str(Path(self._env["WINDLASS_CONTROL"]).parent)] if "WINDLASS_CONTROL" in self._env else []
        return control + [self._env[use.name] for use in self._job.secrets if use.is_file and use.name in self._env]

    # --- ending -----------------------------------------------------------------------------------------------------

    def _ended(self, client_code: int) -> int:
        """The code to leave with; a cause that the code does not show is said."""
        told = self.engine.ask("inspect", "--type=container", "--format={{json .State}}", self._id)
        if told.code:
            return client_code if client_code > 128 else 128 + signal.SIGKILL  # removed by a sweep, or the engine died
        state = decode_json(told.stdout)
        if state.get("Running"):  # its client was killed: nobody would take its output
            self.engine.signal(f"{self._job.token}.{self._rank}", "KILL")
            return 128 + signal.SIGKILL
        if state.get("Status") in ("created", "configured", "initialized"):
            problem = self._why_not_executed(client_code) or _last_line(state.get("Error") or "") or "see the log"
            return self.say(Cause.START_FAILED, f"the container did not start: {problem}", 127)
        code = int(state.get("ExitCode", client_code))
        if code and state.get("OOMKilled"):
            limit = f"{self._job.memory_bytes / 2**20:g} MiB"
            return self.say(Cause.OUT_OF_MEMORY, f"the container needed more memory than its limit of {limit}", code)
        if state.get("Error"):
            return self.say(Cause.START_FAILED, f"the container did not start: {_last_line(state['Error'])}", 127)
        problem = self._why_not_executed(code) if code else ""
        return self.say(Cause.START_FAILED, problem, 127) if problem else code

    def _why_not_executed(self, code: int) -> str:
        """Why the command itself could not begin; empty when it did."""
        name, here = self._job.container.name, os.uname().machine
        architecture = str(self._image.get("Architecture") or "")
        if architecture and architecture != _MACHINES.get(here, here) and code in (1, 126, 127, 255):
            return f"the image `{name}` is for {architecture}, and this machine is {_MACHINES.get(here, here)}"
        needed = "/bin/sh" if self._secrets else self._argv[0]
        if code != 127 or self._has(needed):
            return ""
        if self._secrets:
            return f"the image `{name}` has no /bin/sh, which secrets as variables need; take them as files"
        return f"the image `{name}` has no `{needed}`"

    def _has(self, program: str) -> bool:
        """Whether a program is in the container; one without a folder, anywhere on its PATH."""
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
    """A program for process 1 where the engine brings none: podman without catatonit."""
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
    return lines[-1][:400] if lines else "it did not say why"
