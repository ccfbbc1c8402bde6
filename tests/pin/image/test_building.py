from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.core.errors import PreconditionError, UnreachableError
from windlass.pin.image.building import Builder, ImageRecipe, build_command, build_failure, num_cached
from windlass.pin.image.engine import ImageEngine

DOCKER = ImageEngine(kind="docker", program="docker")
PODMAN = ImageEngine(kind="podman", program="podman")


def recipe(**changes: object) -> ImageRecipe:
    given: dict[str, object] = {
        "context": Path("/c"),
        "dockerfile": Path("/d"),
        "tag": "n:k",
        "platform": "linux/amd64",
    }
    return ImageRecipe(**(given | changes))  # type: ignore[arg-type]


def arguments(engine: ImageEngine, builder: Builder, **changes: object) -> list[str]:
    return build_command(engine, builder, recipe(**changes))[0]


def test_buildkit_that_an_engine_has_built_in() -> None:
    made, variables = build_command(
        DOCKER,
        Builder(flavour="buildkit"),
        recipe(
            target="run", args={"A": "1 2"}, labels={"l": "v"}, secrets={"TOKEN": Path("/proc/1/fd/3")}, cache="r/n:c"
        ),
    )
    assert variables == {"DOCKER_BUILDKIT": "1"}
    assert made == [
        *(
            "build",
            "--progress=plain",
            "--platform=linux/amd64",
            "--build-arg=BUILDKIT_INLINE_CACHE=1",
            "--cache-from=r/n:c",
        ),
        *("--target=run", "--build-arg=A=1 2", "--label=l=v", "--secret=id=TOKEN,src=/proc/1/fd/3"),
        *("--file=/d", "--tag=n:k", "/c"),
    ]


def test_buildx_loads_what_it_builds_and_exports_all_layers_from_a_builder_of_its_own() -> None:
    own = arguments(DOCKER, Builder(flavour="buildx", is_separate=True), cache="r/n:c")
    assert own[:4] == ["buildx", "build", "--progress=plain", "--load"]
    assert {"--cache-from=type=registry,ref=r/n:c", "--cache-to=type=registry,ref=r/n:c,mode=max"} <= set(own)
    local = arguments(DOCKER, Builder(flavour="buildx", is_separate=True), local_cache=Path("/l"))
    assert {"--cache-from=type=local,src=/l", "--cache-to=type=local,dest=/l,mode=max"} <= set(local)
    inside = arguments(DOCKER, Builder(flavour="buildx"), cache="r/n:c", local_cache=Path("/l"))
    assert [each for each in inside if "cache" in each.lower()] == [
        "--build-arg=BUILDKIT_INLINE_CACHE=1",
        "--cache-from=r/n:c",
    ]


def test_the_classic_builder_leaves_no_containers() -> None:
    made, variables = build_command(DOCKER, Builder(flavour="classic", needs_host_network=True), recipe())
    assert (made[:3], variables) == (["build", "--force-rm", "--network=host"], {"DOCKER_BUILDKIT": "0"})
    assert not [each for each in made if each.startswith(("--platform", "--progress", "--cache"))]


def test_the_classic_builder_takes_no_secrets() -> None:
    with pytest.raises(PreconditionError, match=r"cannot keep secrets \(TOKEN\) out of the image") as caught:
        arguments(DOCKER, Builder(flavour="classic"), secrets={"TOKEN": Path("/x")})
    assert caught.value.code == "program-missing"


def test_podman_and_buildah_cache_in_a_repository() -> None:
    made = arguments(PODMAN, Builder(flavour="buildah"), cache="127.0.0.1:5000/n:c")
    assert made[:2] == ["build", "--layers"]
    assert {"--cache-from=127.0.0.1:5000/n", "--cache-to=127.0.0.1:5000/n"} <= set(made)


BUILDKIT = """\
#5 [2/3] COPY a /a
#5 CACHED

#6 [3/3] RUN make
#6 0.301 compiling
#6 0.402 error: no rule
#6 ERROR: executor failed running [/bin/sh -c make]: exit code: 2
------
 > [3/3] RUN make:
#6 0.301 compiling
#6 0.402 error: no rule
------
executor failed running [/bin/sh -c make]: exit code: 2
"""
CLASSIC = """\
Step 1/2 : FROM a
 ---> Using cache
Step 2/2 : RUN make
 ---> Running in 51c155b364af
error: no rule
The command '/bin/sh -c make' returned a non-zero code: 2
"""
BUILDAH = """\
STEP 1/2: FROM a
STEP 2/2: RUN make
error: no rule
Error: building at STEP "RUN make": while running runtime: exit status 2
"""


@pytest.mark.parametrize("text", [BUILDKIT, CLASSIC, BUILDAH])
def test_a_failing_step_is_named_with_its_last_lines(text: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(text)
    error = build_failure(log, "n:k", 1)
    assert error.code == "build-failed"
    assert error.message.splitlines()[0] == "building the image n:k failed at `RUN make`:"
    assert "  error: no rule" in error.message.splitlines()
    assert "2" in error.message.splitlines()[-1]
    assert str(log) in error.hint


def test_what_no_step_did_is_explained_as_what_it_is(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("#3 ERROR: failed to do request: connection refused\n")
    assert isinstance(build_failure(log, "n:k", 1), UnreachableError)
    log.write_text("#3 ERROR: write /var/lib/x: no space left on device\n")
    assert build_failure(log, "n:k", 1).code == "disk-full"


def test_cached_steps_are_counted_in_every_builders_log() -> None:
    assert [num_cached(text) for text in (BUILDKIT, CLASSIC, BUILDAH, "--> Using cache 1c610d\n")] == [1, 1, 0, 1]


def test_secrets_are_files_that_have_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windlass.pin.image import building

    with building._hidden({"TOKEN": b"canary"}) as files:
        assert files["TOKEN"].read_bytes() == b"canary"
        assert files["TOKEN"].is_relative_to(f"/proc/{os.getpid()}/fd")
    assert not files["TOKEN"].exists()
