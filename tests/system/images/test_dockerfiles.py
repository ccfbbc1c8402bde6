"""The Dockerfiles that we ship build, from bases that need no hub."""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.docker import BASE, DockerLab
from windlass.cli import main
from windlass.core.version import VERSION
from windlass.launcher.stage.image import build_image
from windlass.pin.image import building
from windlass.runs.home import Home

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[3]


@pytest.fixture
def uv_image(at_docker: DockerLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An image that holds uv and nothing else, as the one in the Dockerfiles does."""
    import uv

    folder = tmp_path / "uv"
    folder.mkdir()
    shutil.copy(uv.find_uv_bin(), folder / "uv")
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY uv /uv\n")
    monkeypatch.setenv("DOCKER_BUILDKIT", "1")
    at_docker.command("docker", "build", "--quiet", "--tag", "windlass/uv:test", str(folder))
    return "windlass/uv:test"


def test_what_init_writes_runs_in_its_image(
    at_docker: DockerLab, uv_image: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert main(["init", "hello", "--docker"]) == 0
    image = f"env.image={{dockerfile: Dockerfile, args: {{BASE: '{BASE}', UV: '{uv_image}'}}}}"
    file = tmp_path / "hello" / "experiment.yaml"
    pin, built = build_image(file, (image,), on="docker", home=Home(home))
    assert (pin.has_own_code, built.workdir) == (True, "/app")
    run = ("docker", "run", "--rm", "--network=none", built.reference)
    assert at_docker.command(*run, "python", "-c", "import sys; print(sys.prefix)") == "/opt/venv"
    assert at_docker.command(*run, "ls") == "pyproject.toml\ntrain.py\nuv.lock"
    (tmp_path / "hello" / "train.py").write_text("print('two')\n")
    changed, _ = build_image(file, (image,), on="docker", home=Home(home), snapshot=True)
    log = (Home(home).cache / "images" / f"{changed.key}.log").read_text()
    assert building.num_cached(log) >= 4  # all but the code
    assert re.search(r"RUN uv sync.*\n(?:#\d+ sha256.*\n)?#\d+ CACHED", log)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """A package index on loopback with the locked base and what builds windlass."""
    wheels = tmp_path / "wheels"
    for lock in ("base", "build"):
        arguments = ["download", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "-d", str(wheels)]
        subprocess.run(
            [sys.executable, "-m", "pip", *arguments, "-r", str(ROOT / f"requirements/{lock}.txt")], check=True
        )
    for wheel in list(wheels.iterdir()):
        place = tmp_path / "simple" / re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()
        place.mkdir(parents=True, exist_ok=True)
        wheel.rename(place / wheel.name)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nothing on standard error."""

    handler = functools.partial(Quiet, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/simple"
    server.shutdown()
    server.server_close()


def test_our_own_image_has_windlass_in_it(at_docker: DockerLab, uv_image: str, index: str) -> None:
    given = {"BASE": BASE, "UV": uv_image, "EXTRAS": "", "INDEX": index}
    arguments = " ".join(["--quiet --network=host", *(f"--build-arg {name}={value}" for name, value in given.items())])
    argv = ["make", "docker-image", "IMAGE=windlass/windlass:test", f"DOCKER_ARGS={arguments}"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHON": sys.executable})
    assert done.returncode == 0, done.stderr
    run = ("docker", "run", "--rm", "--network=none", "windlass/windlass:test")
    assert VERSION in at_docker.command(*run, "windlass", "--version")
    assert at_docker.command(*run, "windlass", "explain", "dirty-tree")
