"""The lines of `windlass show` that say what a run was made from."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Windlass
from tests.runs.journals import RunScript
from windlass.pin.data.pinned import BuildPin, DataPin
from windlass.pin.image.pinned import ImagePin
from windlass.plan.pins import Pins
from windlass.plan.plan import Plan
from windlass.runs.home import Home
from windlass.runs.store import RunFolder


def test_the_image_and_the_data_are_named(windlass: Windlass, home: Path) -> None:
    image = ImagePin(
        kind="built", name="windlass/p-main", key="e" * 64, dockerfile="Dockerfile", platform="linux/amd64"
    )
    data = DataPin(name="raw", source="store:raw", digest="d" * 64, size_bytes=2048, kind="folder", num_files=2)
    builds = {
        "here": BuildPin(name="here", key="a" * 40),
        "there": BuildPin(name="there", key="b" * 40, is_hit=True, digest="c" * 64),
    }
    plan = Plan(name="hello", pins=Pins(image=image, data={"raw": data}, builds=builds))
    RunScript(Home(home), "hello-aaaaaaaa").submit().start().end("succeeded", "ok").close()
    run = RunFolder(Home(home).runs / "hello-aaaaaaaa")
    (run.path / "plan.json").write_text(json.dumps(plan.to_data()))
    record = run.out("data.here") / "built.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"digest": "f" * 64}))
    lines = windlass("show", run.id).out.splitlines()
    assert [line for line in lines if line.startswith(("environment", "image", "data"))] == [
        "image        windlass/p-main, from Dockerfile by content eeeeeeeeeeee, for linux/amd64",
        "data         raw: store:raw  sha256:dddddddddddd  2.0 KiB, 2 files",
        "data         here: prepared, key aaaaaaaaaaaa  sha256:ffffffffffff",
        "data         there: prepared, key bbbbbbbbbbbb  sha256:cccccccccccc",
    ]
