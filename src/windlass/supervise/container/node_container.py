"""Making of a node's container, as its agent does: the engine is found, the image pulled, the container started."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Callable

from windlass.core.errors import PreconditionError, WaitTimeoutError
from windlass.core.process import run
from windlass.supervise.container.args import ContainerUser, mount_words, user_words
from windlass.supervise.container.engine import TOKEN_LABEL, ContainerEngine, engine_variables
from windlass.supervise.node.container import NodeContainer, enter, last_line, write_container
from windlass.supervise.node.processes import last_lines
from windlass.supervise.node.ray_node import make_private, scratch_of
from windlass.supervise.node.spec import NODE_VARIABLE, NodeFolder, NodeSpec

__all__ = [
    "check_linger",
    "find_engine",
    "gpu_words",
    "open_container",
    "pull_command",
    "python_inside",
    "run_step",
    "run_words",
    "split_options",
    "start_container",
]

_ENGINES = ("docker", "podman")
_ASK_S = 60.0
_START_S = 300.0
_LOOK_S = 0.25
_IDLE = "trap '' HUP INT TERM; while :; do sleep 86400; done"
_INFO = {"docker": "{{.ServerVersion}} {{.SecurityOptions}}", "podman": "{{.Version.Version}} none"}
_REMEDY = "install docker or podman in `host_setup`, and let this user use it; or remove `image`"


def find_engine(spec: NodeSpec, environ: Mapping[str, str]) -> NodeContainer:
    """Return the container that a node is to have, at the first engine that responds; nothing is made.

    Raises:
        PreconditionError: no engine can be used (`engine-failed`).
    """
    reasons = []
    for program in [spec.image_engine] if spec.image_engine else _ENGINES:
        label = f"{spec.token}.{spec.number}"
        name = f"windlass-{spec.cluster}-{spec.token[:12]}"
        found = NodeContainer(program, False, engine_variables(environ), name, label)
        said = found.engine.ask("--version", timeout_s=_ASK_S)
        if said.code:
            reasons.append(f"no `{program}` on the PATH")
            continue
        is_podman = "podman" in said.stdout
        info = found.engine.ask("info", f"--format={_INFO['podman' if is_podman else 'docker']}", timeout_s=_ASK_S)
        if info.code or not info.stdout[:1].isdigit():
            reasons.append(f"{program}: {last_line(info.stderr)}")
        elif "rootless" in info.stdout:
            reasons.append(f"{program}: the daemon has no root, so its containers have another network")
        else:
            return NodeContainer(program, is_podman, found.variables, name, label)
    raise PreconditionError(f"`image` needs docker or podman: {'; '.join(reasons)}", hint=_REMEDY, code="engine-failed")


def pull_command(container: NodeContainer, spec: NodeSpec) -> list[str]:
    """Return the command that fetches the image; empty if it is there and `--pull=always` is not set."""
    pull, _ = split_options(spec.image_options)
    if pull != "always" and container.engine.ask("image", "inspect", spec.image, timeout_s=_ASK_S).code == 0:
        return []
    return [] if pull == "never" else [container.program, "pull", spec.image]


def start_container(container: NodeContainer, spec: NodeSpec, scratch: Path) -> None:
    """Make the container, whose first process does nothing.

    Args:
        scratch: Ray's folder.

    Raises:
        PreconditionError: the engine refused (`engine-failed`).
    """
    user = ContainerUser(os.geteuid(), os.getegid(), sorted(os.getgroups()))
    home = os.path.expanduser("~")
    mounts = sorted({home, os.path.realpath(home), str(scratch)})
    engine = ContainerEngine(container.program, {**container.variables, NODE_VARIABLE: spec.token})
    answer = engine.ask(*run_words(container, spec, user, home, mounts), timeout_s=_START_S)
    if answer.code:
        message = f"{container.program} cannot start a container of `{spec.image}`: {last_line(answer.stderr)}"
        raise PreconditionError(message, hint="check `image` and `image_options`", code="engine-failed")


def run_words(
    container: NodeContainer, spec: NodeSpec, user: ContainerUser, home: str, mounts: Sequence[str]
) -> list[str]:
    """Return the words after the engine's name; the image's entry point is not run. Pure but for `nvidia-smi`."""
    _, options = split_options(spec.image_options)
    words = ["run", "--detach", "--rm", f"--name={container.name}"]
    words += ["--network=host", "--pid=host", "--ipc=host", "--pids-limit=-1", "--security-opt=label=disable"]
    words += ["--pull=never", "--log-driver=none", "--stop-timeout=0", f"--workdir={home}"]
    words += _rootless_words(user, options) if container.is_podman and user.uid else user_words(user)
    words += [word for path in mounts for word in mount_words(path, path, "")]
    words += gpu_words(container, options)
    ours = [f"--label={TOKEN_LABEL}={container.label}", "--entrypoint=/bin/sh"]  # after the file's, so these hold
    return [*words, *options, *ours, spec.image, "-c", _IDLE]


def _rootless_words(user: ContainerUser, options: Sequence[str]) -> list[str]:
    """Return the options that run as the user of a podman without root, which has no numbers of its other groups.

    Source: podman-run(1), --group-add: `keep-groups` excludes any other.
    """
    words = ["--userns=keep-id", *user_words(replace(user, groups=()))]
    has_own = any(each.partition("=")[0] == "--group-add" for each in options)
    return words if has_own or not set(user.groups) - {user.gid} else [*words, "--group-add=keep-groups"]


def check_linger(container: NodeContainer, uid: int, *, root: Path = Path("/")) -> None:
    """Raise PreconditionError if systemd would end a container with the last session of the user.

    Source: podman's troubleshooting, "rootless containers exit once the user session exits"; sd_booted(3), loginctl(1).

    Args:
        root: the machine's files, but for tests.
    """
    if not container.is_podman or uid == 0 or not (root / "run/systemd/system").is_dir():
        return
    if b"/user.slice/" not in (root / "proc/self/cgroup").read_bytes():
        return  # this process is of no session, such as on a machine that starts its node itself
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    if not (root / "var/lib/systemd/linger" / user).exists():
        command = f"loginctl enable-linger {user}"
        message = f"podman's containers end with the last session of {user}; `{command}` lets them stay"
        raise PreconditionError(message, hint=f"type `{command}` on the node", code="engine-failed")


def gpu_words(container: NodeContainer, options: Sequence[str]) -> list[str]:
    """Return the options that give the container all GPUs, if the machine has some and the file's options do not."""
    if any(each.startswith(("--gpus", "--runtime", "--device=nvidia.com", "nvidia.com/gpu")) for each in options):
        return []
    try:
        has_gpus = run(["nvidia-smi", "-L"], timeout_s=_ASK_S).code == 0
    except (PreconditionError, WaitTimeoutError):
        has_gpus = False
    if not has_gpus:
        return []
    return ["--device=nvidia.com/gpu=all"] if container.is_podman else ["--gpus=all"]


def split_options(options: Sequence[str]) -> tuple[str, list[str]]:
    """Return when the image is pulled (empty, `always`, `missing` or `never`), and the other words of `image_options`."""
    words = iter([word for each in options for word in shlex.split(each)])
    pull, others = "", []
    for word in words:
        if word == "--pull":
            pull = next(words, "")
        elif word.startswith("--pull="):
            pull = word.partition("=")[2]
        else:
            others.append(word)
    return pull, others


def open_container(
    folder: NodeFolder, spec: NodeSpec, look: Callable[[], None], say: Callable[[str], None]
) -> NodeContainer | None:
    """Make a node's container, if it is to have one; its image is pulled first.

    Args:
        look: called while something runs; what it raises ends that.
        say: called with what is done.

    Raises:
        PreconditionError: there is no engine, the image cannot be pulled, or the container cannot be started.
    """
    if not spec.image:
        return None
    container = find_engine(spec, os.environ)
    check_linger(container, os.geteuid())
    write_container(folder.path, container)
    pull = pull_command(container, spec)
    if pull:
        say(f"pulling {spec.image}")
        log = folder.log("setup")
        if run_step(" ".join(pull), pull, {**container.engine.env, NODE_VARIABLE: spec.token}, log, look):
            message = f"{container.program} cannot pull `{spec.image}`: {last_lines(log, 1)}"
            raise PreconditionError(message, hint="check its name and your access to it", code="image-not-found")
    say(f"starting a container of {spec.image}")
    make_private(scratch_of(spec.token))
    look()
    start_container(container, spec, scratch_of(spec.token))
    look()
    return container


def run_step(title: str, argv: Sequence[str], environ: Mapping[str, str], log: Path, look: Callable[[], None]) -> int:
    """Run a command of a node's set-up with its output in a log; return its exit code.

    Args:
        look: called while it runs; what it raises ends the set-up.
    """
    with open(str(log), "ab") as file:
        file.write(b"$ %s\n" % title.encode())
        file.flush()
        child = subprocess.Popen(argv, env=environ, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        while child.returncode is None:
            look()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_LOOK_S)
    return child.returncode


def python_inside(container: NodeContainer, spec: NodeSpec, environ: Mapping[str, str]) -> str:
    """Return the path of the user's Python in a container; raises PreconditionError."""
    argv, outer = enter(container, ["/bin/sh", "-c", 'command -v -- "$1"', "sh", spec.python], environ)
    done = run(argv, env=outer, timeout_s=_ASK_S)
    if done.code or not done.stdout.strip():
        message = f"no `{spec.python}` on the PATH of the image `{spec.image}`"
        raise PreconditionError(message, hint="install it in `setup`, or set `python`", code="setup-failed")
    return done.stdout.strip()
