"""Shell at a site: runs a command there and reads its output, on this machine or over ssh."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from windlass.backends.run_program import Exchanged, exchange
from windlass.core.dataclass import dataclass
from windlass.core.errors import AccessError, PreconditionError, UnreachableError
from windlass.sites.profile import Profile

__all__ = [
    "LocalShell",
    "RawShellResult",
    "ShellResult",
    "SiteShell",
    "SshShell",
    "TextShell",
    "exchanged",
    "shell_for",
]

LIMIT_BYTES = 64 << 20
_ALLOWED = re.compile(r"(?:PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_[A-Z]+|TZ|TMPDIR|SLURM_CONF)\Z")
_CANNOT_RUN = 127
_SSH_FAILED = 255
_CLOSE_S = 10.0
_CONFIG_NAME = "WINDLASS_SSH_CONFIG"
_NOT_LITERAL = re.compile(r"[^A-Za-z0-9_@+=:,./ -]")
# The command is $1 in octal, which any login shell leaves intact; the mark ends the output of start-up files.
# 255 stays reserved for ssh. Slurm's variables must not reach its programs: the profile holds those settings.
_WRAPPER = (
    "printf %s {mark}; "
    'unset _ $(env | cut -d= -f1 | grep -E "^(SLURM|SBATCH|SRUN|SALLOC|SQUEUE|SACCT|SINFO|SCANCEL|SCONTROL)_"'
    ' | grep -vx SLURM_CONF); eval "$(printf "$1")"; c=$?; [ $c != 255 ] || c=254; exit $c'
)


@dataclass(frozen=True, slots=True)
class ShellResult:
    """Exit code and output of a command at a site."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class RawShellResult:
    """Like `ShellResult`, but with standard output as bytes."""

    code: int
    out: bytes
    err: str


class SiteShell(Protocol):
    """Shell that runs commands at one site."""

    @property
    def name(self) -> str:
        """Return the site's address, for use in messages."""

    @property
    def is_local(self) -> bool:
        """Return True if the site is this machine, so that it shares its files."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Path = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> ShellResult:
        """Run a command until it exits. Blocking; nothing is raised if the command fails or is missing (code 127).

        Args:
            stdin: its input, or the path of a file with the input; the only way to pass secrets.
            env: additional variables; not for secrets, as other users of the site may see them.

        Raises:
            UnreachableError: the connection failed or timed out; the command may still have run.
            PreconditionError: it printed more than the output limit.
        """

    def run_bytes(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Path = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> RawShellResult:
        """Run a command like `run`, but return standard output as bytes."""


class TextShell(ABC):
    """Base class of site shells, which decodes output to text."""

    @abstractmethod
    def run_bytes(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Path = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> RawShellResult:
        """See `SiteShell.run_bytes`."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Path = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> ShellResult:
        """See `SiteShell.run`."""
        raw = self.run_bytes(argv, stdin=stdin, timeout_s=timeout_s, env=env)
        return ShellResult(raw.code, raw.out.decode(errors="replace"), raw.err)


class LocalShell(TextShell):
    """Shell on this machine; commands inherit only a few variables (for Slurm, only SLURM_CONF)."""

    name = "this machine"
    is_local = True

    def run_bytes(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Path = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> RawShellResult:
        """See `SiteShell.run_bytes`."""
        scrubbed = {name: value for name, value in os.environ.items() if _ALLOWED.match(name)}
        try:
            variables = {**scrubbed, **(env or {})}
            done = exchanged(self.name, argv, argv, stdin, variables, timeout_s, "try again later")
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            return RawShellResult(_CANNOT_RUN, b"", f"{argv[0]}: {error.strerror}")
        return RawShellResult(done.code, done.out, done.err)


class SshShell(TextShell):
    """Shell on a login node, reached with the OpenSSH client.

    Commands share one connection, which is kept for ten minutes.

    Args:
        target: `user@host`, or a name in the user's ssh configuration.
        config: replaces the user's configuration file (`ssh -F`); by default `$WINDLASS_SSH_CONFIG`.
        alive_s: seconds between keepalive messages; the connection ends after three without a response.
        options: more options of ssh_config(5), which take precedence over windlass's own.
    """

    is_local = False

    def __init__(
        self,
        target: str,
        *,
        config: Path | None = None,
        connect_timeout_s: int = 10,
        alive_s: int = 5,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.name = target
        self._options = dict(options or {})
        stated = os.environ.get(_CONFIG_NAME, "")
        self._config = config or (Path(stated) if stated else None)
        self._connect_timeout_s = connect_timeout_s
        self._alive_s = alive_s

    def run_bytes(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Path = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> RawShellResult:
        """See `SiteShell.run_bytes`."""
        mark = f"windlass-{os.urandom(8).hex()}:"
        variables = [f"{name}={value}" for name, value in (env or {}).items()]
        command = [*(["env", *variables] if variables else []), *argv]
        ssh = [*self._ssh(), _remote_line(command, mark)]
        try:
            hint = f"check that `ssh {self.name} true` returns at once; a start-up file that waits delays every command"
            done = exchanged(self.name, ssh, argv, stdin, _without_secrets(), timeout_s, hint)
        except FileNotFoundError as error:
            hint = "install the OpenSSH client and try again"
            raise PreconditionError(
                "`ssh` is not installed or not on the PATH", hint=hint, code="program-missing"
            ) from error
        _, found, out = done.out.partition(mark.encode())
        if done.code == _SSH_FAILED or not found:
            raise _unreachable(self.name, done.err, done.code)
        return RawShellResult(done.code, out, done.err)

    def session(self, *options: str, command: Sequence[str] = ()) -> list[str]:
        """Return the command line of an ssh session of its own, for a terminal (`-t`) or a forwarded port (`-L`)."""
        line = [_remote_line(command, "")] if command else []
        return [*self._ssh(*options, ControlMaster="no", ControlPath="none"), *line]

    def close(self) -> None:
        """Close the shared connection, if there is one; the next command opens another."""
        exchange(self._ssh("-O", "exit"), timeout_s=_CLOSE_S, limit_bytes=LIMIT_BYTES)

    def _ssh(self, *more: str, **others: str) -> list[str]:
        options = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": "yes",
            "ConnectTimeout": self._connect_timeout_s,
            "ServerAliveInterval": self._alive_s,
            "ServerAliveCountMax": 3,
            "ControlMaster": "auto",
            "ControlPersist": 600,
            "ControlPath": self._control_path(),
            "ForwardX11": "no",
            "ForwardAgent": "no",
            "LogLevel": "ERROR",
            "RemoteCommand": "none",
            **self._options,
            **others,
        }
        stated = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return ["ssh", *(["-F", str(self._config)] if self._config else []), "-T", *stated, *more, "--", self.name]

    def _control_path(self) -> str:
        """Return the socket's path.

        Each address and configuration has its own, and `%C` distinguishes the resolved hosts.
        """
        settings = "".join(f"\0{name}={value}" for name, value in sorted(self._options.items()))
        key = hashlib.sha256(f"{self.name}\0{self._config}{settings}".encode()).hexdigest()[:8]
        return f"{_socket_folder()}/{key}-%C"


def shell_for(profile: Profile) -> SiteShell:
    """Return the shell for a profile's site."""
    return SshShell(profile.ssh) if profile.ssh else LocalShell()


def exchanged(
    name: str,
    argv: Sequence[str],
    shown: Sequence[str],
    stdin: bytes | Path,
    env: Mapping[str, str] | None,
    timeout_s: float,
    hint: str,
) -> Exchanged:
    """Run a program that reaches a site, and return its output.

    Args:
        name: the site's, for messages.
        argv: the program.
        shown: the command that it carries out there, for messages.
        hint: what to do when there is no response in time.

    Raises:
        UnreachableError: no response within the time.
        PreconditionError: too much output.
    """
    words = " ".join(shown)[:80]
    try:
        return exchange(argv, stdin=stdin, env=env, timeout_s=timeout_s, limit_bytes=LIMIT_BYTES)
    except TimeoutError as error:
        message = f"{name} did not respond to `{words}` within {timeout_s:g} s"
        raise UnreachableError(message, hint=hint, code="site-unreachable") from error
    except OverflowError as error:
        raise PreconditionError(f"{name}: `{words}`: {error}", code="invalid-reply") from error


def _without_secrets() -> dict[str, str]:
    """Return this process's environment without secrets, for ssh, which may forward any variable (`SendEnv`)."""
    return {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_SECRET_")}


def _remote_line(command: Sequence[str], mark: str) -> str:
    """Return a command line that every login shell parses the same way, because it has no special characters."""
    encoded = _NOT_LITERAL.sub(_octal, shlex.join(command))
    return f"exec /bin/sh -c '{_WRAPPER.format(mark=mark)}' sh '{encoded}'"


def _octal(match: re.Match[str]) -> str:
    return "".join(f"\\{byte:03o}" for byte in os.fsencode(match[0]))


def _socket_folder() -> Path:
    """Return the path of a private folder with a short name: a socket's path has at most 107 characters."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    is_fit = runtime.is_absolute() and runtime.is_dir() and len(str(runtime)) <= 24
    folder = runtime / "windlass-ssh" if is_fit else Path(f"/tmp/windlass-ssh-{os.geteuid()}")  # noqa: S108 - checked
    folder.mkdir(mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise AccessError(
            f"{folder} must be a folder that you alone can access", hint=f"rm -rf {folder}", code="not-allowed"
        )
    return folder


def _unreachable(name: str, err: str, code: int) -> UnreachableError:
    """Return an error that explains ssh's message and says what to do; source: OpenSSH 9.2, ssh.c, sshconnect.c."""
    said = [line for line in err.strip().splitlines() if line.strip(" @")]
    last = said[-1] if said else f"ssh exited with {code} and no message"
    hint = f"run it yourself: ssh {name} true"
    if "IDENTIFICATION HAS CHANGED" in err:
        last = "its host key has changed; the connection may be intercepted"
        hint = f"ask the site whether its keys have changed; if so `ssh-keygen -R {name.rpartition('@')[2]}`, then `ssh {name}`"
    elif "Host key verification failed" in err or "host key is known for" in err:
        last = "ssh does not know its host key"
        hint = f"run `ssh {name}` once, and compare the fingerprint with the one that the site publishes"
    elif "Permission denied" in err:
        hint = f"`ssh {name}` must log in without a prompt: load your key with ssh-add, or renew its certificate"
    elif "Could not resolve hostname" in err:
        hint = f"check the spelling of `{name}` and the network"
    return UnreachableError(f"cannot reach {name}: {last}", hint=hint, code="site-unreachable")
