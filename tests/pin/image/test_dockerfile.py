from __future__ import annotations

import pytest

from windlass.core.errors import PreconditionError
from windlass.pin.image.dockerfile import Dockerfile, parse_dockerfile


def parse(text: str, *, target: str = "", platform: str = "", **args: str) -> Dockerfile:
    return parse_dockerfile(text, path="Dockerfile", args=args, target=target, platform=platform)


@pytest.mark.parametrize(
    ("text", "images"),
    [
        ("FROM python:3.12", ("python:3.12",)),
        ("# a comment\n\nfrom python:3.12 as build", ("python:3.12",)),
        ("FROM scratch", ()),
        ("FROM a AS one\nFROM one\n", ("a",)),
        ("FROM a AS One\nFROM ONE AS two\nFROM two", ("a",)),
        ("FROM --platform=linux/amd64 a", ("a",)),
        ("FROM a\nCOPY --from=b /x /x", ("a", "b")),
        ("FROM a\nCOPY --from=b --chown=1:1 /x /x", ("a", "b")),
        ("FROM a\nRUN --mount=type=cache,target=/c --mount=type=bind,from=b,target=/b true", ("a", "b")),
        ("FROM a AS x\nFROM b\nCOPY --from=0 /x /x", ("a", "b")),
        ("FROM a AS x\nFROM b AS y\nFROM c", ("c",)),
        ("FROM \\\n  a \\\n# between\n  AS x", ("a",)),
        ("# escape=`\nFROM `\n a", ("a",)),
        ("FROM a\nRUN <<EOF\nFROM b\nEOF\nCOPY --from=c / /", ("a", "c")),
        ("FROM a\nRUN echo FROM b", ("a",)),
        ("FROM a\nRUN --mount=type=secret,id=x cat /run/secrets/x", ("a",)),
        ("FROM a\nFROM a\nCOPY --from=0 / /", ("a",)),
    ],
)
def test_which_images_it_begins_with(text: str, images: tuple[str, ...]) -> None:
    assert parse(text).images() == images


@pytest.mark.parametrize(
    ("written", "args", "image"),
    [
        ("ARG V=3.12\nFROM python:$V", {}, "python:3.12"),
        ("ARG V=3.12\nFROM python:${V}", {"V": "3.13"}, "python:3.13"),
        ("ARG V\nFROM python:${V:-3.11}", {}, "python:3.11"),
        ("ARG V=\nFROM python:3${V:+.12}", {}, "python:3"),
        ("ARG V=1\nFROM python:3${V:+.12}", {}, "python:3.12"),
        ('ARG BASE="a:1"\nARG NEXT=${BASE}\nFROM ${NEXT}', {}, "a:1"),
        ("ARG CUDA=cpu\nFROM base-${CUDA}", {"CUDA": "cu130"}, "base-cu130"),
    ],
)
def test_arguments_are_filled_in(written: str, args: dict[str, str], image: str) -> None:
    assert parse(written, **args).images() == (image,)


def test_the_builders_own_arguments_are_those_of_the_platform() -> None:
    assert parse("FROM base-$TARGETARCH", platform="linux/arm64").images() == ("base-arm64",)


def test_the_target_decides_what_is_needed() -> None:
    text = "FROM a AS one\nFROM b AS two\nCOPY --from=one / /\nFROM c AS three\n"
    assert parse(text, target="two").images() == ("a", "b")
    assert parse(text, target="one").images() == ("a",)
    assert parse(text, target="0").images() == ("a",)
    assert parse(text).images() == ("c",)


def test_an_unknown_target_is_answered_with_the_nearest_stage() -> None:
    with pytest.raises(PreconditionError, match="has no stage `runtme`") as caught:
        parse("FROM a AS runtime", target="runtme")
    assert (caught.value.code, caught.value.hint) == ("unknown-name", "did you mean `runtime`?")


@pytest.mark.parametrize("text", ["", "RUN true", "# FROM a"])
def test_a_file_without_from_is_broken(text: str) -> None:
    with pytest.raises(PreconditionError, match="Dockerfile has no FROM line") as caught:
        parse(text)
    assert caught.value.code == "invalid-file"


def test_an_argument_without_a_value_is_named_with_its_line() -> None:
    with pytest.raises(PreconditionError, match=r"Dockerfile:3: `FROM \$\{BASE\}` names no image"):
        parse("ARG BASE\n\nFROM ${BASE}")


def test_pinning_names_images_by_digest_and_leaves_the_rest() -> None:
    text = (
        "ARG V=3\n# from a\nFROM --platform=linux/amd64 python:$V AS build\nRUN echo python:$V\n"
        "FROM build\nCOPY --from=tool:1 /x /x\nRUN --mount=type=bind,from=tool:1,target=/t true\n"
    )
    pinned = parse(text).pinned({"python:3": "python@sha256:p", "tool:1": "tool@sha256:t", "build": "wrong"})
    assert pinned == text.replace("amd64 python:$V", "amd64 python@sha256:p").replace(
        "from=tool:1", "from=tool@sha256:t"
    )


def test_pinning_without_digests_changes_nothing() -> None:
    text = "FROM a\r\nRUN true\n"
    assert parse(text).pinned({}) == text
