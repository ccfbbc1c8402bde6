"""Names made definite with an account, and what is refused before anything is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from windlass.compat.gantry import Recipe
from windlass.compat.gantry.account import GantryCluster
from windlass.compat.gantry.checkout import Checkout
from windlass.compat.gantry.request import GantryRequest, prepare
from windlass.core.errors import WindlassError

HERE = Checkout(repo="a/b", url="https://github.com/a/b", ref="0" * 40, files=frozenset(), is_public=True)


class GantryAccount:
    """An account that counts what is written."""

    workspace, user, organization = "lab/main", "me", "lab"

    def __init__(self, **facts: Any) -> None:
        self.facts = {"budget": True, "secrets": ("TOKEN",), "experiments": (), **facts}
        self.writes: list[str] = []

    def has_budget(self) -> bool:
        return bool(self.facts["budget"])

    def clusters(self) -> list[GantryCluster]:
        return [
            GantryCluster(organization="lab", name="one", tags=("a", "b")),
            GantryCluster(organization="lab", name="two", aliases=("second",), tags=("a",)),
            GantryCluster(organization="lab", name="sessions", takes_batch_jobs=False),
            GantryCluster(organization="other", name="one"),
        ]

    def gpu_type(self, cluster: GantryCluster) -> str:
        return {"lab/one": "NVIDIA H100", "lab/two": "NVIDIA A100 80GB"}.get(cluster.full_name, "")

    def secrets(self) -> tuple[str, ...]:
        return tuple(self.facts["secrets"])

    def image_id(self, name: str) -> str | None:
        return {"me/image": "the-image", "beaker-py/gantry-v3.7.0": "x"}.get(name)

    def dataset_id(self, name: str) -> str | None:
        return {"data": "the-data"}.get(name)

    def group(self, name: str) -> str | None:
        return {"known": "me/known", "other/known": "other/known"}.get(name)

    def has_experiment(self, name: str) -> bool:
        return name in self.facts["experiments"]

    def write_secret(self, name: str, value: str) -> None:
        self.writes.append(name)

    def create_group(self, name: str) -> str:
        self.writes.append(name)
        return f"me/{name}"

    def create_dataset(self, name: str, source: Path) -> str:
        self.writes.append(name)
        return "id"


def resolved(
    account: GantryAccount | None = None, environ: dict[str, str] | None = None, **settings: Any
) -> GantryRequest:
    account = account or GantryAccount()
    recipe = Recipe(["x"], **{"name": "n", "git_repo": HERE, **settings})
    request = prepare(recipe, account=account, environ=environ or {})
    assert account.writes == []
    return request


def clusters(**settings: Any) -> list[str]:
    found = resolved(**settings).spec["tasks"][0]["constraints"]["cluster"]
    assert isinstance(found, list)
    return found


def test_clusters_are_found_by_every_wish_together() -> None:
    assert clusters(clusters=["*"]) == ["lab/one", "lab/two"]
    assert clusters(clusters=["second"]) == ["lab/two"]
    assert clusters(clusters=["other/*", "lab/two"]) == ["lab/two", "other/one"]
    assert clusters(tags=["a", "b"]) == ["lab/one"]
    assert clusters(gpu_types=["a100", "h100"], tags=["a"]) == ["lab/one", "lab/two"]
    assert clusters(gpu_types=["A100"], clusters=["lab/*"]) == ["lab/two"]


def test_names_become_ids() -> None:
    task = resolved(beaker_image="me/image", datasets=["data:/d"]).spec["tasks"][0]
    assert task["image"] == {"beaker": "the-image"}
    assert task["datasets"] == [{"source": {"beaker": "the-data"}, "mountPath": "/d"}]
    assert resolved().spec["tasks"][0]["image"] == {"beaker": "beaker-py/gantry-v3.7.0"}


def test_what_is_written_is_said_first() -> None:
    request = resolved(group_names=["known", "fresh", "me/mine"], env_secrets=["MINE"], environ={"MINE": "hidden"})
    assert request.spec["groups"] == ["me/known", "me/fresh", "me/mine"]
    secret = request.resolved.secret_variables[0][1]
    assert [str(write) for write in request.resolved.writes] == ["group fresh", "group mine", f"secret {secret}"]
    assert "hidden" not in repr(request.resolved)


def test_a_free_name_is_found_in_a_few_steps() -> None:
    assert resolved(GantryAccount(experiments=("n", "n-2"))).name == "n-3"
    taken = {"n", *(f"n-{number}" for number in range(2, 500))}
    assert resolved(GantryAccount(experiments=taken)).name == "n-549"


def test_ports_differ_by_name() -> None:
    gang: dict[str, Any] = {"gpus": 1, "replicas": 2, "torchrun": True}
    ports = set()
    for name in ("a", "b", "a"):
        variables = {
            each["name"]: each.get("value") for each in resolved(**gang, name=name).spec["tasks"][0]["envVars"]
        }
        ports.add(variables["GANTRY_RDZV_PORT"])
        assert 29_000 <= int(str(variables["GANTRY_RDZV_PORT"])) <= 29_999
    assert len(ports) == 2


@pytest.mark.parametrize(
    ("settings", "code", "hint"),
    [
        ({"clusters": ["lab/onr"]}, "unknown-queue", "did you mean `lab/one`?"),
        ({"clusters": ["sessions"]}, "unknown-queue", ""),
        ({"tags": ["a", "c"]}, "unknown-queue", "name another cluster, or fewer tags and GPU types"),
        ({"beaker_image": "me/none"}, "beaker-not-found", "`--docker-image` is for public images"),
        ({"datasets": ["none:/d"]}, "beaker-not-found", "check its name"),
        ({"group_names": ["other/none"]}, "beaker-not-found", "ask its owner to create it"),
        ({"env_secrets": ["A=TOKENS"]}, "beaker-secret-missing", "did you mean `TOKEN`?"),
        ({"dataset_secrets": ["NONE:/s"]}, "beaker-secret-missing", "windlass beaker secret push NONE"),
        ({"aws_config_secret": "NONE"}, "beaker-secret-missing", "windlass beaker secret push NONE"),
        (
            {"git_repo": Checkout(repo="a/b", url="https://github.com/a/b", ref="0" * 40, is_public=False)},
            "beaker-secret-missing",
            "windlass secret set GITHUB_TOKEN; windlass beaker secret push GITHUB_TOKEN",
        ),
    ],
)
def test_what_is_not_there_is_refused(settings: dict[str, Any], code: str, hint: str) -> None:
    with pytest.raises(WindlassError) as refused:
        resolved(**settings)
    assert refused.value.code == code
    assert hint in refused.value.hint


def test_somebody_must_pay() -> None:
    with pytest.raises(WindlassError) as refused:
        resolved(GantryAccount(budget=False))
    assert refused.value.code == "beaker-workspace"
    assert resolved(GantryAccount(budget=False), budget="lab/b").spec["budget"] == "lab/b"
