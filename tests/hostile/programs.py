"""What other programs answer: registries, engines, hubs, Slurm, workers of sweeps, archives; damaged in every way."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

from tests.hostile.mutations import mutated, mutated_words
from tests.hostile.trying import Target, write
from windlass.backends.beaker.account import _read as read_account
from windlass.backends.site_shell import ShellResult
from windlass.backends.slurm.client import SlurmClient, completion_file, read_completions, read_past
from windlass.backends.slurm.explain import can_start, why_it_waits, why_suspended
from windlass.backends.slurm.probe import profile_of, sections_of
from windlass.config.loading import load_config
from windlass.core.errors import WindlassError
from windlass.core.process import Completed
from windlass.launcher.archive.importing import import_run
from windlass.pin.data import hugging_face
from windlass.pin.environment.locked import locked_packages
from windlass.pin.environment.project import read_toml
from windlass.pin.image import registry
from windlass.pin.image.engine import ImageEngine
from windlass.pin.image.naming import parse_reference
from windlass.pin.image.registry import find_login
from windlass.runs.home import Home
from windlass.sites.profile import Profile
from windlass.supervise.chain.scheduler import PastLink, SchedulerError
from windlass.supervise.job import ChainConfig, JobDocument, JobPaths, QueueRequest, ReplicaCommand
from windlass.supervise.remote.framing import frame_line
from windlass.supervise.remote.server import receive_folders
from windlass.supervise.slurm.job_listing import LISTING, read_listing
from windlass.supervise.slurm.scheduler import SlurmScheduler

__all__ = ["PROGRAMS"]


def _reads(read: Callable[[Path, bytes], object], good: bytes, *allowed: type[Exception]) -> Target:
    """A target that reads JSON, YAML or bytes."""

    def run(folder: Path, rng: random.Random) -> None:
        content = mutated(good, rng) if rng.random() < 0.7 else mutated_words(good, rng)
        with contextlib.suppress(WindlassError, *allowed):
            read(folder, content)

    return run


# ---------------------------------------------------------------------------------- registries, engines and the hub

_TOKEN = b'{"token": "abc", "expires_in": 300, "access_token": "abc"}'
_CHALLENGE = b'Bearer realm="https://auth.example/token",service="registry.example",scope="repository:a/b:pull"'
_HUB = {
    "sha": "c" * 40,
    "siblings": [
        {"rfilename": "a.txt", "size": 1},
        {"rfilename": "d/b.bin", "size": 5, "lfs": {"sha256": "0" * 64, "size": 5}},
    ],
}
_INSPECT = [
    {
        "Id": "sha256:" + "0" * 64,
        "RepoDigests": ["a/b@sha256:" + "1" * 64],
        "RepoTags": ["a/b:1"],
        "Config": {"Labels": {"windlass.key": "k"}, "WorkingDir": "/w"},
        "Os": "linux",
        "Architecture": "amd64",
        "Size": 12,
    }
]
_BUILDAH = {
    "FromImage": "a/b:1",
    "FromImageID": "0" * 64,
    "FromImageDigest": "sha256:" + "1" * 64,
    "OCIv1": {"os": "linux", "architecture": "amd64", "config": {"Labels": {"a": "b"}, "WorkingDir": "/w"}},
}
_LOGINS = {
    "auths": {"ghcr.io": {"auth": "dXNlcjpwYXNz"}, "https://index.docker.io/v1/": {"identitytoken": "t"}},
    "credHelpers": {"other.example": "none"},
}


def _registry(folder: Path, rng: random.Random) -> None:
    """A challenge, a token and a digest, each damaged now and then; what comes out is a digest."""

    def often(good: bytes) -> bytes:
        return mutated_words(good, rng) if rng.random() < 0.5 else good

    answers = [
        (401, {"www-authenticate": often(_CHALLENGE).decode("latin-1")}, b""),
        (200, {}, mutated(_TOKEN, rng) if rng.random() < 0.5 else _TOKEN),
        (200, {"docker-content-digest": often(b"sha256:" + b"a" * 64).decode("latin-1")}, b"{}"),
    ]
    if rng.random() < 0.3:
        del answers[:2]

    def ask(address: str, *_: object) -> tuple[int, dict[str, str], bytes]:
        assert address.startswith("https://"), f"the registry's word leads to {address[:60]}"
        return answers.pop(0)

    with mock.patch.object(registry, "_get", ask), contextlib.suppress(WindlassError):
        found = registry.fetch_digest(parse_reference("registry.example/a/b:1"))
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", found), found[:100]


def _hub(folder: Path, content: bytes) -> None:
    opened = contextlib.closing(io.BytesIO(content))
    with mock.patch.object(hugging_face, "open_http", return_value=opened):
        listing = hugging_face.list_hub("d", "hf:org/name@main")
    for file in listing.files:
        assert file.path
        assert not file.path.startswith("/")
        assert ".." not in file.path.split("/")
        assert file.blob.size_bytes >= -1


class _Engine(ImageEngine):
    """Says what it is told to say."""

    def call(self, *arguments: str, **_: Any) -> Completed:
        return Completed(arguments, 0, self.program, "")


def _engine(kind: str) -> Callable[[Path, bytes], object]:
    return lambda folder, content: _Engine(kind=kind, program=content.decode(errors="replace")).look("a/b:1")


def _logins(folder: Path, content: bytes) -> None:
    place = {"DOCKER_CONFIG": str(folder), "HOME": str(folder)}
    write(folder / "config.json", content)
    with mock.patch("windlass.pin.image.registry._ask", return_value=None):
        for name in ("ghcr.io", "docker.io", "other.example"):
            find_login(name, place)


# ----------------------------------------------------------------------------------------------------------- Slurm

_MARK = "0123456789abcdef0123"
_LINE = LISTING
for _word, _value in {
    "%i": "12_3",
    "%T": "RUNNING",
    "%r": "QOSMaxGRESPerUser",
    "%S": "2026-01-02T03:04:05",
    "%e": "1700000000",
    "%N": "n[1-3],m2",
    "%j": "play",
    "%k": f"windlass:{_MARK}.2",
}.items():
    _LINE = _LINE.replace(_word, _value)
_LISTED = (_LINE + "\n").encode() * 3
_PAST = b"12|play|CANCELLED by 1000|0:9|n1\n13|play|FAILED|3:0|None assigned\n"
_ACCOUNTED = b"12|play|CANCELLED by 0|0:9|1700000000|1700000001|n1\n"
_COMPLETED = b"JobId=12 UserId=u(1) Name=play JobState=FAILED NodeList=n1 ExitCode=0:9\n"
_SHOWN = (
    b"JobId=12 JobName=play JobState=COMPLETING Reason=None Dependency=(null) Restarts=1 ExcNodeList=n[1-2],m3\n"
    b"   RunTime=00:01:02 TimeLimit=2-03:04:05 StartTime=1700000000 PreemptTime=None NodeList=n[1-2],m3\n"
    b"   Comment=windlass:" + _MARK.encode() + b".2\n"
)
_CONFIG = b"JobCompType             = jobcomp/filetxt\nJobCompLoc              = /var/log/jobs\nKillWait = 30 sec\n"
_PROBED = b"".join(
    b"@@windlass begin %s\n%s\n@@windlass end 0\n" % pair
    for pair in (
        (b"user", b"ann"),
        (b"machine", b"x86_64"),
        (
            b"partitions",
            (
                b"PartitionName=gpu AllowQos=ALL Default=YES MaxNodes=4 MaxTime=2-00:00:00 TotalNodes=8 PriorityTier=1 "
                b"PreemptMode=REQUEUE GraceTime=60 QoS=big State=UP"
            ),
        ),
        (
            b"nodes",
            (
                b"NodeName=n1 Arch=x86_64 CPUTot=64 CPUEfctv=60 RealMemory=512000 Gres=gpu:h100:8(S:0-1) "
                b"AvailableFeatures=a,b Partitions=gpu MemSpecLimit=1000"
            ),
        ),
        (
            b"config",
            (
                b"SLURM_VERSION = 22.05.8\nKillWait = 30 sec\nAccountingStorageType = accounting_storage/slurmdbd\n"
                b"PreemptType = preempt/partition_prio\nSelectTypeParameters = CR_CORE_MEMORY"
            ),
        ),
        (b"qos", b"big|10|low|1-00:00:00\nlow|1||"),
        (b"assoc", b"lab|big,low|low"),
        (b"account", b"lab"),
        (b"programs", b"scontrol /usr/bin/scontrol\nsbatch /usr/bin/sbatch\napptainer /usr/bin/apptainer"),
        (b"pythons", b"python3 3.11.2\npython3.9 3.9.1"),
        (b"module_init", b"/etc/profile.d/lmod.sh"),
        (b"folders", b"SCRATCH lustre 10% /scratch/ann\n/tmp tmpfs 1% /tmp"),
        (b"network", b"lo eth0 ib0\nmlx5_0"),
    )
)


def _words(read: Callable[[Path, str], object], good: bytes, *allowed: type[Exception]) -> Target:
    """A target that reads the text of a program; as from a pipe, decoded whatever it is."""

    def run(folder: Path, rng: random.Random) -> None:
        content = mutated_words(good, rng) if rng.random() < 0.7 else mutated(good, rng)
        with contextlib.suppress(WindlassError, *allowed):
            read(folder, content.decode(errors="replace"))

    return run


def _listing(folder: Path, text: str) -> None:
    for job in read_listing(text):
        assert isinstance(job.started_at, float)
        job.how_ended(has_begun=True)
        why_it_waits(job, ("train",))
        why_suspended(job)
        can_start(job)


def _accounting(folder: Path, text: str) -> None:
    for past in (*read_past(text), *read_completions(text)):
        past.how_ended(has_begun=True)
    completion_file(text)


class _Shell:
    """A site whose every program says the same."""

    name, is_local = "here", True

    def __init__(self, text: str) -> None:
        self.text = text

    def run(self, argv: Sequence[str], **_: Any) -> ShellResult:
        return ShellResult(0, self.text, "")

    run_bytes: Any = None


_SITE = load_config(Profile, "name: here\nkind: slurm\nfs:\n  shared: /shared\n", source="x").value


def _client(folder: Path, text: str) -> None:
    commands = SlurmClient(_SITE, _Shell(text))
    commands.jobs()
    commands.past(["play"])
    commands.reasons("n1")
    commands.cancelled_by("12", "play")
    assert re.fullmatch(r"[0-9]{1,20}", commands.submit(["sbatch"], QueueRequest()))


def _scheduler(folder: Path, rng: random.Random) -> None:
    """A supervisor asks Slurm all it ever asks; every answer may be damaged."""
    job = JobDocument(
        run="r",
        task="train",
        job=1,
        token="t",
        paths=JobPaths(str(folder), out=str(folder), checkpoints=str(folder)),
        command=ReplicaCommand(("true",), cwd="/"),
        chain=ChainConfig(mark=_MARK, submit=("sbatch", "--parsable", "x-${link}")),
    )
    good = {"squeue": _LISTED, "scontrol": _SHOWN, "sacct": _ACCOUNTED, "sinfo": b"idle*"}

    def answer(argv: Sequence[str], _: Mapping[str, str]) -> Completed:
        content = mutated_words(good.get(argv[0], b"34;cluster"), rng)
        return Completed(tuple(argv), 0, content.decode(errors="replace"), "")

    past = PastLink(job_id="12", began_at=1.7e9, mark=_MARK, name="play", link=2)
    asked = SlurmScheduler(job, link=2, environ={"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "0"}, runner=answer)
    for ask in (
        lambda: asked.queue(3, ["n1"]),
        asked.queued,
        asked.end_this_start,
        lambda: asked.avoid(["12"], ["n7"]),
        lambda: asked.explain_notice(has_time=True),
        lambda: asked.is_end_confirmed(past),
        lambda: asked.how_ended(past),
    ):
        with contextlib.suppress(SchedulerError):
            ask()


# --------------------------------------------------------------------------------------------- YAML, TOML and archives

_ACCOUNT = (
    b"user_token: abc\ndefault_workspace: org/ws\nagent_address: https://b.example\nx: &a [1, {b: 2001-01-02}]\ny: *a\n"
)
_LOCK = b"""version = 1
requires-python = ">=3.11"
[[package]]
name = "numpy"
version = "2.0.0"
marker = "sys_platform == 'linux'"
dependencies = [{name = "x", marker = "python_version > '3'"}]
"""


def _tar(names: Sequence[str] = ("k/a", "k/d/b")) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in (*names, "k/" + "x" * 120):
            info = tarfile.TarInfo(name)
            info.size = 3
            archive.addfile(info, io.BytesIO(b"abc"))
        link = tarfile.TarInfo("k/link")
        link.type, link.linkname = tarfile.SYMTYPE, "a"
        archive.addfile(link)
    return buffer.getvalue()


_TAR = _tar()


def _shipped(folder: Path, rng: random.Random) -> None:
    """An archive with a right digest: what is wrong is in the tar, as from a hostile client."""
    inside = Path(tempfile.mkdtemp(dir=folder))
    header = json.dumps({"targets": [["k", str(inside / "k")]]}).encode() + b"\n"
    whole = header + _tar_changed(_TAR, rng)
    message = frame_line(sha256(whole).hexdigest(), len(whole)) + whole
    before = set(folder.iterdir())
    with contextlib.suppress(ValueError, OSError, WindlassError):
        receive_folders(io.BytesIO(message))
    assert set(folder.iterdir()) == before
    assert {path.name for path in inside.iterdir()} <= {"k"}
    shutil.rmtree(inside)


def _tar_changed(content: bytes, rng: random.Random) -> bytes:
    """Fields of headers changed, with right checksums, so that they are believed."""
    if rng.random() < 0.3:
        return mutated(content, rng)
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = 512 * rng.randrange(len(changed) // 512)
        begin, end = rng.choice(((0, 100), (100, 108), (124, 136), (136, 148), (156, 157), (157, 257), (345, 500)))
        word = rng.choice(
            (b"../../x", b"/etc/x", b"\xff" * 12, b"77777777777", b"-1", b"\x80" + b"\0" * 6 + b"\x7f" * 5, b"k", b"\0")
        )
        word = rng.choice(b"LKxgS012345637").to_bytes(1, "big") if (begin, end) == (156, 157) else word
        changed[at + begin : at + end] = word[: end - begin].ljust(end - begin, b"\0")
        total = sum(changed[at : at + 148]) + 256 + sum(changed[at + 156 : at + 512])
        changed[at + 148 : at + 156] = b"%06o\0 " % total
    return bytes(changed)


def _imported(folder: Path, rng: random.Random) -> None:
    home = Home(folder / "home")
    home.runs.mkdir(parents=True, exist_ok=True)
    content = _tar_changed(_tar(("play-aaaaaaaa/archive.json", "play-aaaaaaaa/run/plan.json")), rng)
    with contextlib.suppress(WindlassError):
        import_run(write(folder / "in.tar", content), home)
    assert not list(home.runs.iterdir())


PROGRAMS: dict[str, Target] = {
    "registry": _registry,
    "hub": _reads(_hub, json.dumps(_HUB).encode()),
    "docker inspect": _reads(_engine("docker"), json.dumps(_INSPECT).encode()),
    "buildah inspect": _reads(_engine("buildah"), json.dumps(_BUILDAH).encode()),
    "logins": _reads(_logins, json.dumps(_LOGINS).encode()),
    "squeue": _words(_listing, _LISTED),
    "sacct": _words(_accounting, _PAST + _COMPLETED + _CONFIG),
    "slurm client": _words(_client, b"1234;cluster\n" + _LISTED + _PAST + _ACCOUNTED),
    "slurm in a job": _scheduler,
    "slurm probe": _words(lambda _, text: profile_of(sections_of(text), "here", today="2026-01-01"), _PROBED),
    "beaker account": _reads(lambda folder, content: read_account(write(folder / "c.yml", content)), _ACCOUNT),
    "pyproject.toml": _reads(
        lambda folder, content: read_toml(write(folder / "p.toml", content), code="c", hint="h"), _LOCK
    ),
    "uv.lock": _words(lambda _, text: locked_packages(text, "uv.lock"), _LOCK),
    "shipped folders": _shipped,
    "imported archive": _imported,
}
"""By what they read."""
