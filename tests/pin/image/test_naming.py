from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.errors import PreconditionError
from windlass.pin.image.naming import built_name, key_tag, parse_reference, sanitised

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag", "digest", "shown"),
    [
        ("python", "docker.io", "library/python", "latest", "", "python:latest"),
        ("python:3.12", "docker.io", "library/python", "3.12", "", "python:3.12"),
        ("lab/x:1", "docker.io", "lab/x", "1", "", "lab/x:1"),
        ("docker.io/library/python:3", "docker.io", "library/python", "3", "", "python:3"),
        ("ghcr.io/lab/x", "ghcr.io", "lab/x", "latest", "", "ghcr.io/lab/x:latest"),
        ("127.0.0.1:5000/x:1", "127.0.0.1:5000", "x", "1", "", "127.0.0.1:5000/x:1"),
        ("localhost/x", "localhost", "x", "latest", "", "localhost/x:latest"),
        (f"python@{DIGEST}", "docker.io", "library/python", "", DIGEST, f"python@{DIGEST}"),
        (f"python:3@{DIGEST}", "docker.io", "library/python", "3", DIGEST, f"python:3@{DIGEST}"),
        (
            "docker://nvcr.io/nvidia/pytorch:25.10-py3",
            "nvcr.io",
            "nvidia/pytorch",
            "25.10-py3",
            "",
            "nvcr.io/nvidia/pytorch:25.10-py3",
        ),
    ],
)
def test_names_are_taken_apart(text: str, registry: str, repository: str, tag: str, digest: str, shown: str) -> None:
    found = parse_reference(text)
    assert (found.registry, found.repository, found.tag, found.digest) == (registry, repository, tag, digest)
    assert str(found) == shown


@pytest.mark.parametrize("text", ["", "Python", "a b", "a:", "a@sha256:12", "a//b", "-a", "a:b:c", "a$(x)"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(PreconditionError) as caught:
        parse_reference(text)
    assert (caught.value.code, f"`{text}`" in caught.value.message) == ("invalid-name", True)


def test_one_name_for_each_project_and_branch() -> None:
    assert built_name("windlass", "main") == "windlass/windlass-main"
    assert built_name("windlass", "") == "windlass/windlass-detached"
    assert built_name("Open_Instruct", "feature/x") != built_name("open-instruct", "feature-x")


@given(st.text(max_size=80), st.text(max_size=80))
def test_sanitised_names_are_names_and_stay_apart(one: str, other: str) -> None:
    parse_reference(f"{built_name(one, other)}:{key_tag('f' * 64)}")
    assert (sanitised(one) == sanitised(other)) == (one == other)
