"""A real Docker engine and a registry of its own on this machine, as root: `python -m tests.lab.docker --help`.

The engine has its own data, sockets, mounts and control groups, so it never meets a system's. It changes no firewall:
containers and builds use the host's network or a network that somebody makes. The registry listens on loopback.
There is no hub: `BASE`, Debian with Python, is made with mmdebstrap once and kept, as `docker save` wrote it, in the
user's cache folder; loaded from there it has the same id on every engine.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.engine_conf import write_engine_conf
from tests.lab.hosts import HOME, clean_environment, wait_until
from tests.lab.slots import Slot, claim, dismantle, find, group_of
from windlass.core import process

__all__ = ["BASE", "SAVED", "DockerLab", "docker_labs"]

BASE = "windlass/base:bookworm"
SUITE = "bookworm"
PACKAGES = "python3-minimal,python3-venv"
CACHE = HOME / ".cache" / "windlass-lab"
CLIENT = "/usr/bin/docker"  # Debian's has BuildKit built in; a newer one on the PATH wants a plugin for it
REMOVED = "usr/share/perl usr/lib/*/perl usr/lib/*/gconv usr/share/zoneinfo usr/lib/python3*/lib2to3"
EXCLUDED = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*")
SAVED = CACHE / f"{SUITE}-{hashlib.sha256(f'{BASE} {PACKAGES} {REMOVED}'.encode()).hexdigest()[:8]}.tar"
"""The base image as `docker save` wrote it; `podman load` reads it too."""

EPILOG = """\
python -m tests.lab.docker up                       an engine, a registry and the base image
eval "$(python -m tests.lab.docker env)"            docker and podman in this shell use the lab
docker run --rm --network host windlass/base:bookworm python3 --version
"""


class DockerLab:
    """One engine and one registry; `DockerLab(name=...).up()`. They end with this process unless they are kept.

    All methods block until what they say is true, and are idempotent.
    """

    def __init__(self, *, name: str = "") -> None:
        self.name = name or f"docker-of-{os.getpid()}"
        self._slot: Slot | None = None

    @classmethod
    def open(cls, name: str) -> DockerLab:
        """A lab that is up, in this process or in another; raises KeyError."""
        lab = cls(name=name)
        lab._slot = find(name)
        return lab

    def up(self, *, is_kept: bool = False) -> None:
        """Start everything; two or three seconds, and twenty more where the base image was never made."""
        if self._slot is not None:
            return
        self._slot = claim(self.name, is_kept=is_kept)
        try:
            self._make_folder()
            self.start_registry()
            self.start_engine()
            self._load_base()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """End everything at once; no container, network, image or file of the lab is left."""
        if self._slot is not None:
            dismantle(self._slot)
        self._slot = None

    # -------------------------------------------------------------------------------------------------------- looking

    @property
    def slot(self) -> Slot:
        assert self._slot is not None, f"lab {self.name} is down"
        return self._slot

    @property
    def folder(self) -> Path:
        """data/ (the engine's root), registry/ (blobs and tags), engine.log, registry.log."""
        return self.slot.folder / "docker"

    @property
    def registry(self) -> str:
        """Address of the registry, `127.0.0.1:<port>`; images there are `<registry>/<name>:<tag>`."""
        return f"127.0.0.1:{self.slot.port(0)}"

    @property
    def env(self) -> dict[str, str]:
        """What docker, podman and buildah need in their environment; PATH as well."""
        conf = self.folder / "conf"
        return {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "DOCKER_HOST": f"unix://{self.folder / 'engine.sock'}",
            "DOCKER_CONFIG": str(conf),
            "CONTAINERS_CONF": str(conf / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(conf / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(conf / "registries.conf"),
        }

    def command(self, *argv: str, check: bool = True, stdin: bytes | None = None) -> str:
        """Run a command (`docker`, `podman`, ...) and return what it printed, without white space at its ends."""
        done = process.run(argv, env={**os.environ, **self.env}, stdin=stdin, timeout_s=300)
        assert done.code == 0 or not check, f"{' '.join(argv)}: {done.code}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def inspect(self, name: str) -> dict[str, object]:
        """What the engine knows of a container, an image or a network."""
        found: list[dict[str, object]] = json.loads(self.command("docker", "inspect", name))
        return found[0]

    def left_overs(self) -> list[str]:
        """Containers (dead ones too), networks and volumes there are; the engine's own networks left out."""
        if not self.is_up:
            return []
        found = {
            "container": self.command("docker", "ps", "--all", "--format={{.ID}} {{.Names}} {{.Status}}"),
            "network": self.command("docker", "network", "ls", "--filter=type=custom", "--format={{.Name}}"),
            "volume": self.command("docker", "volume", "ls", "--format={{.Name}}"),
        }
        return [f"{kind} {line} in {self.name}" for kind, text in found.items() for line in text.splitlines()]

    @property
    def is_up(self) -> bool:
        """Whether the engine answers."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            try:
                client.connect(str(self.folder / "engine.sock"))
                client.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                return b"200 OK" in client.recv(100)
            except OSError:
                return False

    # ------------------------------------------------------------------------------------------------ starting, healing

    def heal(self) -> None:
        """Start what was killed; remove all containers, networks and volumes. Images stay."""
        self.start_registry()
        self.start_engine()
        for listing, removing in (
            (("ps", "--all", "--quiet"), ("rm", "--force", "--volumes")),
            (("network", "ls", "--quiet", "--filter=type=custom"), ("network", "rm")),
            (("volume", "ls", "--quiet"), ("volume", "rm", "--force")),
        ):
            found = self.command("docker", *listing).split()
            if found:
                self.command("docker", *removing, *found, check=False)

    def start_engine(self) -> None:
        """Start dockerd with what it has on disk."""
        if self.is_up:
            return
        network = self.slot.network
        argv = ["unshare", "--mount", "--propagation", "slave", "dockerd"]
        argv += [f"--data-root={self.folder}/data", f"--exec-root={self.folder}/exec"]
        argv += [f"--host={self.env['DOCKER_HOST']}", f"--pidfile={self.folder}/engine.pid"]
        argv += [
            f"--config-file={self.folder}/conf/daemon.json",
            f"--cgroup-parent=/{group_of(self.slot)}",
            "--bridge=none",
        ]
        argv += ["--iptables=false", "--ip6tables=false", "--ip-forward=false", "--userland-proxy=false"]
        argv += [f"--default-address-pool=base={network}.0/24,size=28", f"--insecure-registry={self.registry}"]
        (self.folder / "engine.pid").unlink(missing_ok=True)
        self._start(argv, "engine.log")
        self._wait(lambda: self.is_up, "engine.log")

    def stop_registry(self) -> None:
        """End the registry; its blobs stay."""
        for pid in process.find_by_environment("WINDLASS_LAB_REGISTRY", self.registry):
            process.send_signal(pid, 9)

    def start_registry(self) -> None:
        """Start the registry with what it has on disk."""
        if not self._registry_answers():
            self._start(["docker-registry", "serve", f"{self.folder}/conf/registry.yml"], "registry.log")
            self._wait(self._registry_answers, "registry.log")

    # --------------------------------------------------------------------------------------------------------- private

    def _make_folder(self) -> None:
        for part in ("bin", "conf", "data", "registry"):
            (self.folder / part).mkdir(parents=True)
        (self.folder / "bin" / "docker").symlink_to(CLIENT)
        write_engine_conf(self.folder, self.registry)

    def _start(self, argv: Sequence[str], log: str) -> None:
        env = {**clean_environment(self.slot), "WINDLASS_LAB_REGISTRY": self.registry if log[0] == "r" else ""}
        with (self.folder / log).open("ab") as file:
            subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, cwd="/"
            )

    def _wait(self, condition: object, log: str) -> None:
        try:
            wait_until(condition, log.removesuffix(".log"), timeout_s=300)  # type: ignore[arg-type]
        except TimeoutError as error:
            lines = (self.folder / log).read_text(errors="replace").splitlines()[-30:]
            raise TimeoutError("\n".join([str(error), *lines])) from None

    def _registry_answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.registry}/v2/", timeout=60) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _load_base(self) -> None:
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not SAVED.exists():
                self._make_base(SAVED)
                return
        self.command("docker", "load", "--quiet", "--input", str(SAVED))

    def _make_base(self, saved: Path) -> None:
        part = saved.with_suffix(".part")
        options = [f"--dpkgopt=path-exclude={each}" for each in EXCLUDED]
        argv = ["mmdebstrap", "--quiet", "--format=tar", "--variant=minbase", f"--include={PACKAGES}", *options]
        argv += [f'--customize-hook=cd "$1" && rm -rf {REMOVED} var/lib/apt/lists/*']
        subprocess.run([*argv, SUITE, str(part)], env=clean_environment(self.slot), check=True)
        self.command("docker", "import", '--change=CMD ["/bin/sh"]', str(part), BASE)
        self.command("docker", "save", "--output", str(part), BASE)
        part.rename(saved)


def docker_labs(slots: Sequence[Slot]) -> list[DockerLab]:
    """The labs with an engine among some slots."""
    return [DockerLab.open(slot.name) for slot in slots if (slot.folder / "docker" / "engine.sock").exists()]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab.docker",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--name", default="my-docker", help="of the lab, when there are several (default: my-docker)")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("up", help="start a lab that stays until `down`")
    verbs.add_parser("down", help="end it at once, with all that runs in it")
    verbs.add_parser("env", help="print what a shell needs to use it")
    verbs.add_parser("heal", help="remove all containers, networks and volumes; start what was killed")
    asked = parser.parse_args(argv)
    try:
        lab = DockerLab.open(asked.name)
    except KeyError as error:
        if asked.verb == "up":
            DockerLab(name=asked.name).up(is_kept=True)
            return 0
        sys.stderr.write(f"error: {error.args[0]}\n")
        return 4
    if asked.verb == "env":
        sys.stdout.write(_exports(lab.env | {"WINDLASS_LAB_REGISTRY_ADDRESS": lab.registry}))
    elif asked.verb != "up":
        getattr(lab, asked.verb)()
    return 0


def _exports(env: Mapping[str, str]) -> str:
    return "".join(f"export {name}='{value}'\n" for name, value in env.items())


if __name__ == "__main__":
    sys.exit(main())
