"""A rerun that pins something anew says so before it asks anything over the network."""

from __future__ import annotations

import pytest

from tests.launcher.bench import Bench, PickyBackend, commit
from windlass import Options, launch
from windlass.core.errors import WindlassError
from windlass.launcher.rerun import Rerun, prepare_rerun
from windlass.launcher.stage import image
from windlass.pin.image import pinning


def test_a_rerun_with_another_image_says_that_it_asks_the_registry(
    bench: Bench, backend: PickyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bench.code / "train.py").write_text("pass\n")
    commit(bench.code)
    run = launch(bench.prepare({"run": "true"}, Options()))
    events: list[str] = []

    def fetch_digest(reference: object) -> str:
        events.append("registry asked")
        return "sha256:" + "0" * 64

    monkeypatch.setattr(pinning, "fetch_digest", fetch_digest)
    monkeypatch.setattr(image, "_engine", lambda site: None)
    how = Rerun(on="docker", overrides=("env.image=python:3.12",))
    try:
        prepare_rerun(run.folder, bench.home, how=how, log=events.append)
    except WindlassError as error:
        pytest.fail(f"{events} {error}")
    assert events == ["querying the registry docker.io for the digest of `python:3.12`", "registry asked"]
