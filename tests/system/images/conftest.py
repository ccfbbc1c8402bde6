"""A project with a Dockerfile on a tiny base, and somebody who builds its image."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.lab.docker import BASE, DockerLab
from windlass.core.names import new_token
from windlass.launcher.stage.image import build_image, pin_image
from windlass.pin.code.pinning import pin_code
from windlass.pin.image.engine import find_engine
from windlass.pin.image.ensuring import ImageMaker
from windlass.pin.image.pinned import BuiltImage, ImagePin
from windlass.plan.site import Site
from windlass.runs.home import Home
from windlass.spec.load import load_experiment

TINY = "windlass/tiny:shell"
"""The shell and a few programs of BASE: a registry gets it in no time."""

DOCKERFILE = f"""\
FROM {TINY}
WORKDIR /app
COPY deps.txt ./
RUN cat deps.txt >/deps
COPY . ./
"""

_GATHER = f"""\
FROM {BASE} AS all
RUN for each in sh cat head ls sleep wc; do \
  file=$(command -v $each); cp --parents -L $file $(ldd $file | grep -o '/[^ ]*') /srv; done; \\
  ln -s usr/bin /srv/bin
FROM scratch
COPY --from=all /srv /
CMD ["/bin/sh"]
"""


@dataclass
class Project:
    """A repository, and the home that builds its image; `said` is what builds told."""

    folder: Path
    home: Home
    said: list[str] = field(default_factory=list)

    def write(self, **files: str) -> None:
        """Write files (`train_py` is train.py) and commit."""
        for name, text in files.items():
            (self.folder / name.replace("_", ".")).write_text(text)
        self.commit()

    def commit(self) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "next")
        return self.git("rev-parse", "HEAD")

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=self.folder, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def build(self, *overrides: str, on: str = "docker") -> tuple[ImagePin, BuiltImage]:
        return build_image(self.folder / "e.yaml", overrides, on=on, home=self.home, log=self.said.append)

    def pinned(self) -> tuple[ImagePin, ImageMaker]:
        """What `build` hands to `ensure_image`."""
        experiment = load_experiment(self.folder / "e.yaml", ()).value
        code = pin_code(self.folder, store=self.home.cache / "code.git")
        pin = pin_image(experiment, code, self.folder, Site(name="docker", backend="docker"), self.home)
        return pin, ImageMaker(engine=find_engine("docker"), code=code, folder=self.folder, cache=self.home.cache)

    @property
    def num_builds(self) -> int:
        return sum(line.startswith("building the image") for line in self.said)

    def log_of(self, pin: ImagePin) -> str:
        return (self.home.cache / "images" / f"{pin.key}.log").read_text()

    def unfinished(self) -> list[str]:
        found = (self.home.cache / "images").glob("*")
        return sorted(path.name for path in found if path.name.endswith((".building", ".tmp")))


@pytest.fixture(scope="session")
def tiny(docker: DockerLab) -> str:
    """The image TINY, in the lab's engine."""
    build = ["docker", "build", "--quiet", "--network=host", f"--tag={TINY}", "-"]
    docker.command("env", "DOCKER_BUILDKIT=1", *build, stdin=_GATHER.encode())
    return TINY


@pytest.fixture
def real_packages() -> None:
    """For tests of what is said of an image's packages; to ask takes a container, which no other test starts."""


@pytest.fixture(autouse=True)
def _asks_no_packages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real_packages" not in request.fixturenames:
        monkeypatch.setattr("windlass.pin.image.ensuring.list_packages", lambda *_: ())


@pytest.fixture
def project(tmp_path: Path, home: Path, at_docker: DockerLab, tiny: str, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with one commit; a name of its own in every test, since the engine keeps images."""
    for name, value in {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}.items():
        monkeypatch.setenv(name, value)
    made = Project(tmp_path / f"p{new_token()[:8]}", Home(home))
    made.folder.mkdir()
    made.git("init", "--quiet", "--initial-branch=main")
    made.write(
        Dockerfile=DOCKERFILE.replace(">/deps", f">/deps && : {new_token()[:8]}"),
        deps_txt="torch==2.9.1\n",
        train_py="print('one')\n",
        e_yaml="name: t\nenv: {image: Dockerfile}\ntasks: {train: {run: python3 train.py}}\n",
        notes_log="ignored\n",
    )
    (made.folder / ".dockerignore").write_text("*.log\ne.yaml\n")
    made.commit()
    return made


@pytest.fixture
def cat(at_docker: DockerLab) -> Callable[..., str]:
    """What files of an image hold, one after the other: `cat(image, "/app/train.py")`."""

    def read(image: str, *paths: str) -> str:
        return at_docker.command("docker", "run", "--rm", "--network=none", image, "cat", *paths)

    return read
