"""The table of bad inputs: what each one is told, word for word, and that nothing half-written remains."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.pin.conftest import Shell
from tests.pin.projects import lock, make_project, uv
from windlass.core.errors import WindlassError
from windlass.pin.code.checkouts import checkout
from windlass.pin.code.pinned import CodePin
from windlass.pin.code.pinning import pin_code
from windlass.pin.data.pinning import pin_data
from windlass.pin.environment.pinning import pin_environment

UNTRACKED_HINT = (
    "commit them (or list files that are not code in .gitignore), or add --snapshot (stores this exact tree) "
    "or --allow-dirty (runs in place and records it)"
)
COMMIT_HINT = "commit them, or add --snapshot (stores this exact tree) or --allow-dirty (runs in place and records it)"


@dataclass(frozen=True)
class Bad:
    """One bad input. `{t}` in the texts is the test's folder; `...` at an end leaves the rest to git, uv or TOML."""

    name: str
    make: Callable[[Path, Shell], None]
    call: Callable[[Path], object]
    code: str
    message: str
    hint: str
    exit_code: int = 8
    variables: dict[str, str] = field(default_factory=dict)


def shell(line: str) -> Callable[[Path, Shell], None]:
    def make(folder: Path, sh: Shell) -> None:
        sh(line, folder)

    return make


def nothing(folder: Path, sh: Shell) -> None:
    del folder, sh


REPO = "git init -q -b main repo && cd repo && echo 1 > a.py && git add . && git commit -qm one"


def project(change: Callable[[Path], object] = lambda folder: None, **options: object) -> Callable[[Path, Shell], None]:
    def make(folder: Path, sh: Shell) -> None:
        del sh
        change(lock(make_project(folder / "p", **options)))  # type: ignore[arg-type]

    return make


def replace(name: str, before: str, after: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text((folder / name).read_text().replace(before, after))


def unlocked(name: str, text: str) -> Callable[[Path, Shell], None]:
    def make(folder: Path, sh: Shell) -> None:
        del sh
        (make_project(folder / "p") / name).write_text(text)

    return make


def compiled(folder: Path, sh: Shell) -> None:
    del sh
    uv(
        make_project(folder / "p"),
        "pip",
        "compile",
        "-q",
        "--generate-hashes",
        "pyproject.toml",
        "-o",
        "requirements.txt",
    )


def compiled_and_stale(folder: Path, sh: Shell) -> None:
    compiled(folder, sh)
    replace("pyproject.toml", "'tiny'", "'tiny', 'other'")(folder / "p")


def make_socket(folder: Path, sh: Shell) -> None:
    del sh
    (folder / "d").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(folder / "d/s"))


def env(folder: Path, **options: list[str] | str) -> object:
    return pin_environment("uv", folder / "p", **options)  # type: ignore[arg-type]


PIN = CodePin(kind="commit", commit="1" * 40, tree="2" * 40)
DATA_HINT = "`data:` names a file or a folder, such as `file:data/prompts.jsonl`"
CODE = [
    Bad("dirty-tree", shell(REPO + " && echo 2 > a.py && echo > b.py"), lambda t: pin_code(t / "repo"), "dirty-tree",
        "2 files differ from the last commit in {t}/repo: a.py, b.py (untracked)", UNTRACKED_HINT),
    Bad("not a repository", shell("mkdir loose"), lambda t: pin_code(t / "loose"), "no-commit",
        "{t}/loose is not in a git repository, so there is no commit to pin",
        "add --snapshot (stores this exact tree), or `git init` and commit"),
    Bad("no commit", shell("git init -q repo && touch repo/a"), lambda t: pin_code(t / "repo"), "no-commit",
        "the repository at {t}/repo has no commit yet", "commit first, or add --snapshot (stores this exact tree)"),
    Bad("bare repository", shell("git init -q --bare repo.git"), lambda t: pin_code(t / "repo.git"), "no-commit",
        "{t}/repo.git is in a bare repository, which has no files to run", "use a clone of it, or an explicit revision"),
    Bad("inside .git", shell(REPO), lambda t: pin_code(t / "repo/.git/refs"), "no-commit",
        "{t}/repo/.git/refs is in a bare repository, which has no files to run", "use a clone of it, or an explicit revision"),
    Bad("broken repository", shell(REPO + " && echo '[nonsense' > .git/config"), lambda t: pin_code(t / "repo"), "git-failed",
        "git cannot read the repository at {t}/repo: fatal: bad config line 1 in file .git/config", "run `git status` there"),
    Bad("missing folder", nothing, lambda t: pin_code(t / "nowhere"), "file-not-found", "no such folder: {t}/nowhere",
        "`code:` names a folder, relative to the experiment file", 4),
    Bad("a file as folder", shell("touch f"), lambda t: pin_code(t / "f"), "file-not-found", "{t}/f is not a folder",
        "`code:` names the folder of the code"),
    Bad("ignored folder", shell(REPO + " && mkdir skip && touch skip/x && echo skip > .gitignore && git add . && git commit -qm i"),
        lambda t: pin_code(t / "repo/skip"), "code-not-in-commit",
        re.compile("commit [0-9a-f]{12} has no folder skip \\(it is ignored, empty, or not committed\\)"),  # type: ignore[arg-type]
        "commit its files, or remove it from .gitignore in {t}/repo"),
    Bad("ignored folder, snapshot", shell(REPO + " && mkdir skip && touch skip/x && echo skip > .gitignore"),
        lambda t: pin_code(t / "repo/skip", snapshot=True), "code-not-in-commit",
        "the folder skip is ignored or empty, so it is not in a snapshot", "remove it from .gitignore in {t}/repo"),
    Bad("unknown revision", shell(REPO + " && git tag v1.0"), lambda t: pin_code(t / "repo", revision="v1.1"), "revision-not-found",
        "no commit `v1.1` in the repository at {t}/repo", "did you mean `v1.0`?", 4),
    Bad("an option as revision", shell(REPO), lambda t: pin_code(t / "repo", revision="--all"), "revision-not-found",
        "no commit `--all` in the repository at {t}/repo",
        "fetch it (`git fetch --all --tags`; `git fetch --unshallow` for a shallow clone)", 4),
    Bad("options that are mutually exclusive", shell(REPO), lambda t: pin_code(t / "repo", snapshot=True, allow_dirty=True), "usage",
        "--snapshot, --allow-dirty and an explicit revision are mutually exclusive", "use one of them", 2),
    Bad("credentials in a snapshot", shell(REPO + " && touch .env k.pem"), lambda t: pin_code(t / "repo", snapshot=True),
        "snapshot-refused", "2 files look like credentials and are left out of the snapshot:  .env, k.pem",
        "list them in .gitignore (keep values that a run needs with `windlass secret set`)"),
    Bad("a large file in a snapshot", shell(REPO + " && truncate -s 150M big.bin"), lambda t: pin_code(t / "repo", snapshot=True),
        "snapshot-refused", "1 file is over 100 MB and is left out of the snapshot:  big.bin (150MiB)",
        "list them in .gitignore, and in `data:` if the run needs them"),
    Bad("a pipe where a file was", shell(REPO + " && rm a.py && mkfifo a.py"), lambda t: pin_code(t / "repo", snapshot=True),
        "special-file", "{t}/repo/a.py is neither a file, a folder nor a link", "remove it or list it in .gitignore: a.py"),
    Bad("submodule not checked out",
        shell("git init -q s && cd s && git commit -q --allow-empty -m s && cd .. && " + REPO + " && git -c protocol.file.allow=always"
              " submodule -q add ../s lib && git commit -qm sub && git submodule -q deinit -f lib && rm -rf .git/modules"),
        lambda t: pin_code(t / "repo"), "submodule-missing",
        re.compile("submodule `lib` has no commit [0-9a-f]{12} here"),  # type: ignore[arg-type]
        "git submodule update --init --recursive"),
    Bad("git is not installed", shell(REPO), lambda t: pin_code(t / "repo"), "program-missing",
        "`git` is not installed or not on the PATH", "install git and try again", variables={"PATH": "/nowhere"}),
    Bad("unreachable commit", shell(REPO), lambda t: checkout(PIN, t / "repo", t / "code"), "revision-not-found",
        "commit 111111111111 is not in the repository at {t}/repo",
        "fetch it (`git fetch --all`; `git fetch --unshallow` for a shallow clone), or launch the current tree", 4),
    Bad("a checkout over something else", shell(REPO + " && mkdir ../code && echo 9 > ../code/a.py"),
        lambda t: checkout(pin_code(t / "repo"), t / "repo", t / "code"), "already-exists",
        re.compile(".*/code exists and is not a checkout of [0-9a-f]{12}: a.py"),  # type: ignore[arg-type]
        "remove that folder, or start a new run"),
]  # fmt: skip
ENVIRONMENT = [
    Bad("no lock file", shell("mkdir p && echo > p/pyproject.toml"), env, "lock-invalid",
        "no lock file in {t}/p: neither uv.lock nor pylock.toml nor a hashed requirements.txt", "uv lock --project {t}/p"),
    Bad("no project at all", shell("mkdir p"), env, "lock-invalid",
        "no lock file in {t}/p: neither uv.lock nor pylock.toml nor a hashed requirements.txt",
        "add a pyproject.toml and run `uv lock --project {t}/p`"),
    Bad("no folder", nothing, env, "file-not-found", "no such folder: {t}/p", "`env.uv` names the folder of a pyproject.toml", 4),
    Bad("lock that is no TOML", project(replace("uv.lock", "[[package]]", "[[package")), env, "lock-invalid",
        "{t}/p/uv.lock is not valid TOML: ...", "restore it from git, or `uv lock --project {t}/p`"),
    Bad("lock of another shape", project(replace("uv.lock", "version = 1\n", "version = 99\n")), env, "lock-invalid",
        "{t}/p/uv.lock is broken\n  uv: error: ...", "restore it from git, or `uv lock --project {t}/p`"),
    Bad("stale lock", project(replace("pyproject.toml", "'tiny'", "'tiny<2'")), env, "lock-invalid",
        "{t}/p/uv.lock does not match {t}/p/pyproject.toml\n"
        "  uv: error: The lockfile at `uv.lock` needs to be updated, but `--check` was provided.\n"
        "  uv: hint: To update the lockfile, run `uv lock`.", "uv lock --project {t}/p"),
    Bad("lock without a manifest", project(lambda folder: (folder / "pyproject.toml").unlink()), env, "lock-invalid",
        "{t}/p/uv.lock has no pyproject.toml next to it", "add the project's pyproject.toml"),
    Bad("manifest that is no TOML", project(replace("pyproject.toml", "[project]", "[project")), env, "invalid-file",
        "{t}/p/pyproject.toml is not valid TOML: ...", "correct that line"),
    Bad("requirements without hashes", unlocked("requirements.txt", "tiny==1.0\nother>=1 # any\n-e ./lib\n"), env, "unpinned-package",
        "{t}/p/requirements.txt has 3 lines without a hash: tiny==1.0, other>=1, -e ./lib",
        "uv pip compile --universal --generate-hashes pyproject.toml -o requirements.txt"),
    Bad("requirements behind the manifest", compiled_and_stale, env, "lock-invalid",
        "{t}/p/requirements.txt lacks packages that pyproject.toml requires: other",
        "uv pip compile --universal --generate-hashes pyproject.toml -o requirements.txt"),
    Bad("extras from requirements", compiled, lambda t: env(t, extras=["fast"]), "unsupported-setting",
        "requirements.txt is already resolved: it has no extras or groups to choose (fast)",
        "add their packages to that lock file, or use uv.lock"),
    Bad("two pylocks", shell("mkdir p && touch p/pylock.a.toml p/pylock.b.toml"), env, "conflicting-options",
        "{t}/p has 2 lock files: pylock.a.toml, pylock.b.toml", "keep one, or name one pylock.toml"),
    Bad("a pylock of nothing", shell("mkdir p && echo 'x = 1' > p/pylock.toml"), env, "lock-invalid",
        "{t}/p/pylock.toml has no `lock-version` or no `packages`", "write it again: uv export --format pylock.toml -o pylock.toml"),
    Bad("a pylock without hashes",
        shell("mkdir p && printf 'lock-version=\"1.0\"\\n[[packages]]\\nname=\"tiny\"\\n' > p/pylock.toml"), env,
        "unpinned-package", "{t}/p/pylock.toml has no hash for `tiny`", "write it again: uv export --format pylock.toml -o pylock.toml"),
    Bad("a pylock with a folder",
        shell("mkdir p && printf 'lock-version=\"1.0\"\\n[[packages]]\\nname=\"lib\"\\ndirectory={path=\"lib\"}\\n' > p/pylock.toml"), env,
        "lock-local", "{t}/p/pylock.toml installs `lib` from a folder; this could mix two commits in one environment",
        "remove it (the run's checkout is on the path), or use uv.lock"),
    Bad("unknown extra", project(more="[project.optional-dependencies]\nfast = []\n"), lambda t: env(t, extras=["fats"]), "unknown-extra",
        "{t}/p/pyproject.toml has no extra `fats`", "did you mean `fast`?"),
    Bad("unknown group", project(), lambda t: env(t, groups=["test"]), "unknown-extra",
        "{t}/p/pyproject.toml has no group `test`", "available: none"),
    Bad("unpinned package", project(), lambda t: env(t, unhashed=["torch>=2"]), "unpinned-package",
        "`torch>=2` is not pinned to one version", "write name==version, such as torch==2.13.0"),
    Bad("no such Python", project(), lambda t: env(t, python="3.99"), "python-unusable",
        "no Python 3.99 on this machine\n  uv: error: ...", "uv python install 3.99"),
    Bad("missing interpreter", nothing, lambda t: pin_environment("python", t, python="venv/bin/python"), "python-unusable",
        "no such Python: {t}/venv/bin/python", "`python:` must name a program or a virtual environment", 4),
    Bad("folder without an interpreter", shell("mkdir venv"), lambda t: pin_environment("python", t, python="venv"), "python-unusable",
        "no Python in {t}/venv: neither bin/python nor bin/python3", "`python:` must name a program or a virtual environment", 4),
    Bad("a virtual environment whose base is gone", shell("mkdir -p v/bin && ln -s /gone/python3 v/bin/python"),
        lambda t: pin_environment("python", t, python="v/bin/python"), "python-unusable",
        "{t}/v/bin/python points at /gone/python3, which does not exist", "create that virtual environment again"),
    Bad("not executable", shell("touch py"), lambda t: pin_environment("python", t, python="py"), "python-unusable",
        "{t}/py cannot be executed", "chmod +x {t}/py"),
    Bad("not a Python", shell("printf '#!/bin/sh\\necho I am no snake >&2; exit 3' > py && chmod +x py"),
        lambda t: pin_environment("python", t, python="py"), "python-unusable",
        "{t}/py is not a working Python >= 3.9 (code 3): I am no snake", "set it to a working Python interpreter or virtual environment"),
    Bad("not a program", shell("echo text > py && chmod +x py"), lambda t: pin_environment("python", t, python="py"), "python-unusable",
        "{t}/py is not a program: Exec format error", "name a Python interpreter"),
    Bad("no interpreter named", nothing, lambda t: pin_environment("python", t), "python-unusable",
        "`python:` needs the path of an interpreter", "python: /path/to/venv"),
]  # fmt: skip
DATA = [
    Bad("another scheme", nothing, lambda t: pin_data("d", "beaker:x", t), "unsupported-source",
        "data `d`: unsupported source `beaker:` (`beaker:x`)", "supported: file:, run:, store:, s3:, gs:, http:, https:, hf:; or fetch it first and use the local path, or let its jobs mount it: `tasks.NAME.beaker.datasets`"),
    Bad("no scheme", nothing, lambda t: pin_data("d", "data/x", t), "unsupported-source",
        "data `d`: `data/x` has no scheme", "write `file:data/x` for a local file or folder"),
    Bad("no path", nothing, lambda t: pin_data("d", "file:", t), "invalid-value", "data `d`: `file:` does not name a path", DATA_HINT),
    Bad("missing data", nothing, lambda t: pin_data("d", "file:x/y", t), "file-not-found",
        "data `d`: no such file or folder: {t}/x/y", DATA_HINT, 4),
    Bad("a link that leaves", shell("mkdir d && ln -s /etc/hostname d/l"), lambda t: pin_data("d", "file:d", t), "special-file",
        "data `d`: the link {t}/d/l points outside the folder (to /etc/hostname)",
        "copy the data with `cp -rL`, or use the folder with the files themselves"),
    Bad("a link to nothing", shell("mkdir d && ln -s gone d/l"), lambda t: pin_data("d", "file:d", t), "file-not-found",
        "data `d`: broken link {t}/d/l (to {t}/d/gone)", "remove or repair the link", 4),
    Bad("a link in a circle", shell("ln -s b a && ln -s a b"), lambda t: pin_data("d", "file:a", t), "file-unreadable",
        "data `d`: cannot read {t}/a: ...", "ls -ld {t}/a", 5),
    Bad("a pipe", shell("mkfifo p"), lambda t: pin_data("d", "file:p", t), "special-file",
        "data `d`: {t}/p is a pipe, which cannot be pinned", "keep only files, folders and links in the data"),
    Bad("a socket in a folder", make_socket, lambda t: pin_data("d", "file:d", t), "special-file",
        "data `d`: {t}/d/s is a socket, which cannot be pinned", "keep only files, folders and links in the data"),
]  # fmt: skip


@pytest.mark.parametrize("bad", [*CODE, *DATA], ids=lambda bad: bad.name)
def test_bad_code_and_data(bad: Bad, tmp_path: Path, sh: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    check(bad, tmp_path, sh, monkeypatch)


@pytest.mark.system
@pytest.mark.parametrize("bad", ENVIRONMENT, ids=lambda bad: bad.name)
def test_bad_environments(bad: Bad, tmp_path: Path, sh: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    check(bad, tmp_path, sh, monkeypatch)


def check(bad: Bad, tmp_path: Path, sh: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # uv would wrap its words; pytest-xdist sets it
    bad.make(tmp_path, sh)
    for name, value in bad.variables.items():
        monkeypatch.setenv(name, value)
    before = inventory(tmp_path)
    with pytest.raises(WindlassError) as caught:
        bad.call(tmp_path)
    error = caught.value
    assert (error.code, error.exit_code) == (bad.code, bad.exit_code)
    assert_text(error.message, bad.message, tmp_path)
    assert_text(error.hint, bad.hint, tmp_path)
    assert inventory(tmp_path) == before


def assert_text(found: str, expected: str | re.Pattern[str], folder: Path) -> None:
    if isinstance(expected, re.Pattern):
        assert expected.fullmatch(found), found
        return
    wanted = expected.replace("{t}", str(folder))
    if wanted.endswith("..."):
        assert found.startswith(wanted.removesuffix("..."))
        assert len(found) > len(wanted)
    else:
        assert found == wanted


def inventory(folder: Path) -> set[str]:
    """Everything below a folder, by name."""
    return {str(path) for path in folder.rglob("*")}


def test_unreadable_folders_and_files(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root reads everything, so the question itself is answered in its place.
    (repo / "new.py").touch()
    monkeypatch.setattr("windlass.pin.code.snapshot.os.access", lambda path, mode: Path(path).name != "new.py")
    with pytest.raises(WindlassError) as caught:
        pin_code(repo, snapshot=True)
    assert (caught.value.code, caught.value.message) == ("file-unreadable", f"cannot read {repo}/new.py")
    monkeypatch.setattr("windlass.pin.code.git.os.access", lambda path, mode: False)
    with pytest.raises(WindlassError) as caught:
        pin_code(repo)
    assert (caught.value.code, caught.value.exit_code, caught.value.message) == (
        "file-unreadable",
        5,
        f"cannot read the folder {repo}",
    )


def test_a_repository_of_somebody_else(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own switch for its tests
    with pytest.raises(WindlassError) as caught:
        pin_code(repo)
    assert caught.value.code == "repository-not-trusted"
    assert caught.value.hint == f"git config --global --add safe.directory {repo}"
