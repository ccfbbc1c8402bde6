"""Whether nodes can see the folder where runs are kept, as far as this machine knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.core.errors import PreconditionError
from windlass.launcher.remote import shared_home
from windlass.launcher.remote.shared_home import check_state_folder, state_folder_problem
from windlass.plan.site import Site
from windlass.runs.home import Home
from windlass.sites.profile import FileSystem, Profile


def site(*, ssh: str = "", shared: str = "", node_local: str = "/scratch") -> Site:
    return Site.of(Profile(name="lab", ssh=ssh, fs=FileSystem(shared=shared, node_local=node_local)))


@pytest.mark.parametrize(
    ("home", "kind", "shared", "said"),
    [
        ("/projects/abc/me", "nfs4", "/projects/abc", ""),
        ("/projects/abc/me", "tmpfs", "/projects/abc", ""),
        ("/home/me", "nfs4", "/projects/abc", ""),
        ("/home/me", "xfs", "", ""),
        ("/dev/shm/me", "tmpfs", "/projects/abc", "in the memory of this machine (tmpfs)"),
        ("/dev/shm/me", "tmpfs", "", "in the memory of this machine (tmpfs)"),
        ("/scratch/me", "xfs", "/projects/abc", "every node has its own /scratch"),
        ("/scratch/me", "xfs", "", ""),
    ],
)
def test_only_what_is_certainly_wrong_is_refused(
    monkeypatch: pytest.MonkeyPatch, home: str, kind: str, shared: str, said: str
) -> None:
    monkeypatch.setattr(shared_home, "file_system", lambda _path: kind)
    problem = state_folder_problem(site(shared=shared), Home(Path(home)))
    assert (problem is not None) == bool(said)
    if problem is not None:
        assert said in problem.message
        assert f"WINDLASS_HOME={home}" in problem.message
        assert problem.code == "home-not-shared"
        assert (
            problem.hint == f"export WINDLASS_HOME={f'{shared}/windlass' if shared else '/a/folder/that/all/nodes/see'}"
        )


def test_a_far_site_needs_a_shared_folder_and_no_home() -> None:
    memory = Home(Path("/dev/shm/me"))
    assert state_folder_problem(site(ssh="me@login", shared="/projects"), memory) is None
    with pytest.raises(PreconditionError, match="site lab has no shared folder"):
        check_state_folder(site(ssh="me@login"), memory)


def test_this_machine_is_no_site() -> None:
    assert state_folder_problem(Site(name="local", backend="local"), Home(Path("/dev/shm/me"))) is None
