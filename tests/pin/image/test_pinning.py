from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from windlass.core.errors import PreconditionError, WindlassError
from windlass.pin.code.pinning import pin_code
from windlass.pin.image import pinning
from windlass.pin.image.catalogue import catalogue, expand
from windlass.pin.image.naming import parse_reference
from windlass.pin.image.pinned import ImagePin
from windlass.pin.image.pinning import ImageSource, pin_built, pin_named

Shell = Callable[..., str]
DIGEST = "sha256:" + "d" * 64


@pytest.fixture(autouse=True)
def digests(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a registry would say; no engine is asked."""
    known: dict[str, str] = {"base:1": DIGEST}
    monkeypatch.setattr(pinning, "fetch_digest", lambda reference: known[str(reference)])
    return known


@pytest.fixture
def project(repo: Path, sh: Shell) -> Path:
    (repo / "Dockerfile").write_text("ARG V=1\nFROM base:$V AS run\nCOPY . /app\nFROM run AS test\n")
    (repo / ".dockerignore").write_text("*.md\nDockerfile\n.dockerignore\n")
    (repo / "notes.md").write_text("one")
    (repo / "docs").mkdir()
    (repo / "docs/a.txt").write_text("a")
    sh("git add . && git commit -qm image", repo)
    return repo


def pin(folder: Path, *, snapshot: bool = False, write: bool = True, **changes: object) -> ImagePin:
    source = ImageSource(**({"dockerfile": "Dockerfile", "args": {}, "target": "run"} | changes))  # type: ignore[arg-type]
    code = pin_code(folder, snapshot=snapshot, write=write)
    return pin_built(source, code, folder, engine=None, has_own_code=True, network="host", platform="linux/amd64")


def test_the_same_content_has_the_same_key(project: Path, sh: Shell) -> None:
    first = pin(project)
    (project / "notes.md").write_text("two")
    sh("git commit -qam 'what is ignored'", project)
    assert pin(project) == first
    sh("git commit -q --allow-empty -m again", project)
    assert pin(project) == first


@pytest.mark.parametrize(
    "line",
    [
        "echo >>train.py",
        "chmod +x train.py",
        "rm link && ln -s run.sh link",
        "git mv train.py other.py",
        "echo '# more' >>Dockerfile",
        "echo '**/*.txt' >>.dockerignore",
    ],
)
def test_any_other_change_has_another(line: str, project: Path, sh: Shell) -> None:
    first = pin(project)
    sh(f"{line}\ngit add . && git commit -qm change", project)
    assert pin(project).key != first.key


def test_arguments_stage_platform_and_base_count(project: Path, digests: dict[str, str]) -> None:
    digests["base:2"] = DIGEST
    keys = [
        pin(project, **change).key for change in ({}, {"target": "test"}, {"args": {"V": "2"}}, {"args": {"X": "1"}})
    ]
    digests["base:1"] = "sha256:" + "e" * 64
    assert len({*keys, pin(project).key}) == 5


def test_only_the_context_counts(project: Path, sh: Shell) -> None:
    first = pin(project, context="docs")
    sh("echo >>train.py && git commit -qam code", project)
    assert pin(project, context="docs") == first
    sh("echo b >docs/b && git add . && git commit -qm docs", project)
    assert pin(project, context="docs").key != first.key


def test_a_snapshot_is_pinned_as_it_is_and_a_dry_plan_leaves_nothing(project: Path, sh: Shell) -> None:
    clean = pin(project)
    (project / "train.py").write_text("print('edited')\n")
    (project / "new.py").write_text("")
    before = sh("git count-objects -v; git for-each-ref", project)
    dry = pin(project, snapshot=True, write=False)
    assert sh("git count-objects -v; git for-each-ref", project) == before
    assert dry.key != clean.key
    assert pin(project, snapshot=True).key == dry.key
    sh("git add . && git commit -qm same", project)
    assert pin(project).key == dry.key


def test_code_that_runs_in_place_makes_no_image(project: Path) -> None:
    (project / "train.py").write_text("")
    code = pin_code(project, allow_dirty=True)
    source = ImageSource(dockerfile="Dockerfile", args={})
    with pytest.raises(PreconditionError, match=r"neither: train\.py") as caught:
        pin_built(source, code, project, engine=None, has_own_code=True, network="host")
    assert caught.value.code == "code-not-pinned"


def test_a_project_is_called_by_its_remote_and_branch(project: Path, sh: Shell) -> None:
    assert pin(project).name == "windlass/repo-main"
    sh("git remote add origin git@example.org:lab/Thing.git && git checkout -qb feature/x", project)
    assert pin(project).name.startswith("windlass/thing-")
    assert "-feature-x-" in pin(project).name


def test_a_tag_is_pinned_and_a_digest_asks_nobody(digests: dict[str, str]) -> None:
    found = pin_named("base:1", engine=None, has_own_code=False, network="host")
    assert (found.kind, found.name, found.digest) == ("named", "base:1", DIGEST)
    other = "sha256:" + "f" * 64
    assert pin_named(f"other@{other}", engine=None, has_own_code=False, network="host").digest == other
    assert pin_named("/images/x.sif", engine=None, has_own_code=False, network="host").digest == ""


def test_the_catalogue_names_images() -> None:
    for name, entry in catalogue().items():
        assert str(parse_reference(expand(f"windlass:{name}")))
        assert entry.about
    with pytest.raises(WindlassError, match="no image `pytorhc` in windlass") as caught:
        expand("windlass:pytorhc")
    assert caught.value.hint == "did you mean `windlass:pytorch`?"
