"""The fake Beaker: a folder, two servers on the loopback, and jobs that run as processes."""

from __future__ import annotations

import atexit
import collections
import contextlib
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from concurrent import futures
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from windlass.core.errors import PreconditionError
from windlass.core.process import run
from windlass.testing.beaker.authority import trusted_here, write_certificates
from windlass.testing.beaker.engine import Engine
from windlass.testing.beaker.furnishing import Furnishing
from windlass.testing.beaker.messages import Messages
from windlass.testing.beaker.records import Cluster, Dataset, Status, StoredExperiment, StoredImage, StoredSecret
from windlass.testing.beaker.scenario import Scenario
from windlass.testing.beaker.web import Routes, WebServer
from windlass.testing.beaker.world import BeakerState

__all__ = ["FakeBeaker", "SmallDisks"]


class SmallDisks:
    """Collection of small disks by name, each mounted as an ordinary folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mounted: dict[str, Path] = {}

    def make(self, name: str, size_bytes: int) -> None:
        """Mount a small disk.

        Raises:
            PreconditionError: this process is not root, or the mount fails.
        """
        if os.geteuid() != 0:
            raise PreconditionError(
                "a disk that fills up is a mount, and only root can mount",
                hint="run the test as root, or in a container",
                code="precondition",
            )
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        done = run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "fake-beaker", str(folder)])
        if done.code != 0:
            raise PreconditionError(
                f"cannot mount a small disk at {folder}: {done.stderr.strip()}", code="precondition"
            )
        self._mounted[name] = folder
        atexit.register(self.close)

    def find(self, name: str) -> Path | None:
        """Return the folder of a small disk, or None if there is no disk with that name."""
        return self._mounted.get(name)

    def close(self) -> None:
        """Unmount all disks. Idempotent."""
        for folder in self._mounted.values():
            run(["umount", "-l", str(folder)])
        self._mounted.clear()
        atexit.unregister(self.close)


_PUBLIC_CLUSTERS = ("jupiter", "saturn", "ceres", "neptune", "titan", "augusta", "prior", "rhea", "phobos", "triton")


class FakeBeaker:
    """Fake Beaker that runs for the duration of a `with` block.

    Args:
        folder: holds all data; created if missing. Nothing is left anywhere else.
        environ: variables that the "image" of jobs sets in addition to PATH and HOME.
        hidden: folders of this machine that are empty for jobs, so that a test can show that nothing reads them.

    Jobs run as local processes in separate namespaces (as root or with user namespaces) for mounts, host name and
    process ids. Images are not pulled: jobs use this machine's programs, with this Python first on the PATH.
    """

    user = "me"
    organization = "lab"
    workspace = "lab/main"

    def __init__(self, folder: Path, *, environ: Mapping[str, str] | None = None, hidden: Sequence[Path] = ()) -> None:
        self.folder = Path(folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.token = f"fake-token-{os.urandom(8).hex()}"
        self.calls: collections.Counter[str] = collections.Counter()
        self._certificates = write_certificates(self.folder)
        self._world = BeakerState(self.folder, user=self.user, organization=self.organization, workspace=self.workspace)
        self._disks = SmallDisks(self.folder / "disks")
        self.scenario = Scenario(
            lock=self._world.lock,
            wake=self._wake,
            stop_server=self.stop,
            start_server=self.start,
            make_small=self._disks.make,
        )
        self._furnishing = Furnishing(
            self._world, environ=dict(environ or {}), hidden=tuple(hidden), small=self._disks.find
        )
        self._engine = Engine(self._world, self.scenario, self._furnishing)
        self._messages = Messages(self._world)
        self._grpc: Any = None
        self._pool = futures.ThreadPoolExecutor(1)
        self._web: WebServer | None = None
        self._ports = (0, 0)
        self._trust = contextlib.ExitStack()
        self._stock()

    def __enter__(self) -> Self:
        self._trust.enter_context(trusted_here())
        self.start()
        self._engine.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._engine.close()
        self._disks.close()
        self._trust.close()

    # what clients need ---------------------------------------------------------------------------------------------

    @property
    def environ(self) -> dict[str, str]:
        """Return the variables that the official client needs."""
        return {
            "BEAKER_CONFIG": str(self.config_file),
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(self._certificates.roots_file),
        }

    @property
    def config_file(self) -> Path:
        """Return the path to the official tools' config file."""
        return self.folder / "config.yml"

    @property
    def address(self) -> str:
        """Return the HTTP address."""
        return f"http://127.0.0.1:{self._ports[1]}"

    @property
    def rpc_address(self) -> str:
        """Return the gRPC address (TLS)."""
        return f"127.0.0.1:{self._ports[0]}"

    def start(self) -> None:
        """Start both servers, on the same ports as before. Idempotent."""
        import grpc  # type: ignore[import-untyped]  # lazy: 0.2 s

        if self._web is not None:
            return
        from windlass.testing.beaker.rpc import Gate, add_to_server

        gate = Gate(self.scenario, self.token, self._count)
        self._pool = futures.ThreadPoolExecutor(max_workers=64, thread_name_prefix="fake-beaker-rpc")
        self._grpc = grpc.server(
            self._pool,
            interceptors=[gate],
            options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 64 << 20)],
        )
        add_to_server(self._grpc, self._world, self._engine, self._messages)
        credentials = grpc.ssl_server_credentials([(self._certificates.key, self._certificates.chain)])
        rpc_port = self._grpc.add_secure_port(f"127.0.0.1:{self._ports[0]}", credentials)
        self._web = WebServer(self._ports[1], Routes(self._world, self.token), self.scenario, self.token, self._count)
        self._ports = (rpc_port, self._web.server_address[1])
        self._grpc.start()
        threading.Thread(
            target=self._web.serve_forever, kwargs={"poll_interval": 0.02}, name="fake-beaker-web", daemon=True
        ).start()
        self._write_config()

    def stop(self) -> None:
        """Stop both servers: connections break, new ones are refused; jobs continue. Idempotent."""
        if self._web is None:
            return
        stopped = self._grpc.stop(0)
        self._wake()
        self._web.close()
        stopped.wait()
        self._pool.shutdown(wait=False)
        self._web = self._grpc = None

    # what tests read and prepare -----------------------------------------------------------------------------------

    @property
    def experiments(self) -> list[StoredExperiment]:
        """Return all accepted experiments, oldest first."""
        with self._world.lock:
            return list(self._world.experiments)

    def experiment(self, key: str) -> StoredExperiment:
        """Return an experiment by its id or name; raise KeyError."""
        for experiment in self.experiments:
            if key in (experiment.id, experiment.name):
                return experiment
        raise KeyError(key)

    def wait(self, experiment: StoredExperiment | str, *states: Status, timeout_s: float = 120.0) -> StoredExperiment:
        """Block until an experiment has one of these states, by default until it has finished.

        Raises:
            TimeoutError: it did not; the message has the output of its jobs.
        """
        found = experiment if isinstance(experiment, StoredExperiment) else self.experiment(experiment)
        with self._world.changed:
            is_there = self._world.changed.wait_for(
                lambda: found.status in states if states else found.status.is_final, timeout=timeout_s
            )
        if not is_there:
            printed = "".join(f"--- {job.id} {job.status.name}\n{job.text}" for job in found.jobs)
            raise TimeoutError(f"{found.name} is {found.status.name} after {timeout_s:g} s\n{printed}")
        return found

    def wait_for_line(self, experiment: StoredExperiment | str, text: str, *, timeout_s: float = 120.0) -> None:
        """Block until any job of an experiment has printed a string; raise TimeoutError if none does."""
        found = experiment if isinstance(experiment, StoredExperiment) else self.experiment(experiment)
        with self._world.changed:
            if not self._world.changed.wait_for(lambda: any(text in job.text for job in found.jobs), timeout=timeout_s):
                printed = "".join(f"--- {job.id} {job.status.name}\n{job.text}" for job in found.jobs)
                raise TimeoutError(f"{found.name} never printed {text!r}\n{printed}")

    def add_secret(self, name: str, value: str, *, workspace: str = "") -> StoredSecret:
        """Add a secret to a workspace."""
        return self._world.write_secret(self._world.workspace(workspace or self.workspace), name, value)

    def add_dataset(self, name: str, folder: Path, *, workspace: str = "") -> Dataset:
        """Add a committed dataset with a copy of a folder."""
        dataset = self._world.add_dataset(name, self._world.workspace(workspace or self.workspace))
        shutil.copytree(folder, dataset.folder, dirs_exist_ok=True)
        self._world.commit(dataset)
        return dataset

    def add_image(self, name: str, *, docker_id: str = "", description: str = "") -> StoredImage:
        """Add an empty image, which specs can name as `me/<name>`, or another author's image (`author/name`)."""
        workspace = self._world.workspace(self.workspace)
        image = self._world.add_image(
            name, workspace=workspace, docker_id=docker_id or f"sha256:{os.urandom(32).hex()}", description=description
        )
        image.committed_ns = image.created_ns
        return image

    def add_cluster(
        self,
        name: str,
        *,
        num_nodes: int = 4,
        gpus_per_node: int = 8,
        aliases: Sequence[str] = (),
        tags: Sequence[str] = (),
    ) -> Cluster:
        """Add a cluster (`organization/name`) whose nodes are this machine under other names."""
        return self._world.add_cluster(
            name, num_nodes=num_nodes, gpus_per_node=gpus_per_node, aliases=tuple(aliases), tags=tuple(tags)
        )

    def add_workspace(self, name: str) -> None:
        """Add a workspace (`owner/name`) without a default budget."""
        self._world.add_workspace(name)

    def weka(self, bucket: str) -> Path:
        """Return the folder of a Weka bucket, creating it if necessary."""
        return self._furnishing.weka(bucket)

    def results(self, experiment: StoredExperiment | str, *, rank: int = 0) -> Path:
        """Return the results folder of the latest job of a replica."""
        found = experiment if isinstance(experiment, StoredExperiment) else self.experiment(experiment)
        dataset = found.tasks[rank].job.results
        assert dataset is not None, f"{found.name} has not been scheduled"
        return dataset.folder

    def _stock(self) -> None:
        self.add_cluster("lab/alpha", num_nodes=8, tags=("gpu", "storage:weka", "interconnect:ib"))
        self.add_cluster("lab/beta", num_nodes=2, gpus_per_node=4)
        for name in _PUBLIC_CLUSTERS:
            self.add_cluster(f"ai2/{name}", aliases=(f"{name}-cirrascale",))
        self.add_image("image", description="Git commit: 0000000")
        self.add_image("beaker-py/gantry")  # gantry's default image

    def _write_config(self) -> None:
        config = {
            "user_token": self.token,
            "agent_address": self.address,
            "rpc_address": self.rpc_address,
            "default_workspace": self.workspace,
            "default_org": self.organization,
        }
        self.config_file.touch(mode=0o600)
        self.config_file.write_text(yaml.safe_dump(config))

    def _count(self, method: str) -> None:
        self.calls[method] += 1

    def _wake(self) -> None:
        with self._world.changed:
            self._world.changed.notify_all()
