"""Everything beside jobs, through the genuine client: workspaces, secrets, datasets, clusters, images, groups."""

from __future__ import annotations

from pathlib import Path

import pytest
from beaker import Beaker
from beaker.exceptions import (
    BeakerBudgetNotFound,
    BeakerClusterNotFound,
    BeakerDatasetConflict,
    BeakerDatasetNotFound,
    BeakerError,
    BeakerImageNotFound,
    BeakerSecretNotFound,
    BeakerWorkspaceNotFound,
)

from tests.testing.beaker.conftest import Submit, make_spec
from windlass.testing.beaker import FakeBeaker

pytestmark = pytest.mark.system


def test_the_user_and_where_they_are(fake: FakeBeaker, client: Beaker) -> None:
    assert client.user_name == fake.user == "me"
    assert client.org_name == "lab"
    assert client.workspace.get().name == fake.workspace == "lab/main"
    with pytest.raises(BeakerWorkspaceNotFound):
        client.workspace.get("lab/none")


def test_workspaces_are_made_and_changed(client: Beaker) -> None:
    made = client.workspace.create("lab/other", description="why")
    assert not made.HasField("budget_id")
    with pytest.raises(BeakerBudgetNotFound):
        client.workspace.update(made, budget="lab/none")
    changed = client.workspace.update(made, budget="lab/budget", description="because")
    assert (changed.budget_id, changed.description) == (client.workspace.get().budget_id, "because")
    assert [workspace.name for workspace in client.workspace.list()] == ["lab/main", "lab/other"]


def test_a_workspace_without_a_budget_needs_one(fake: FakeBeaker, client: Beaker) -> None:
    fake.add_workspace("lab/poor")
    poor = client.workspace.get("lab/poor")
    with pytest.raises(BeakerError, match="budget is required"):
        client.experiment.create(spec=make_spec("true"), workspace=poor)
    spec = make_spec("true")
    spec.budget = "lab/budget"
    assert client.experiment.create(spec=spec, workspace=poor).budget_id


def test_secrets(fake: FakeBeaker, client: Beaker) -> None:
    secret = client.secret.write("me_TOKEN", "first")
    client.secret.write("me_TOKEN", "second")
    assert client.secret.read(secret) == "second"
    assert [known.name for known in client.secret.list()] == ["me_TOKEN"]
    with pytest.raises(BeakerSecretNotFound):
        client.secret.get("me_token")  # over gRPC the case counts
    client.secret.delete(secret)
    with pytest.raises(BeakerSecretNotFound):
        client.secret.get("me_TOKEN")


def test_datasets(client: Beaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.dataset, "REQUEST_SIZE_LIMIT", 1000)  # the large file goes up in parts
    folder = tmp_path / "files"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "small").write_text("x")
    (folder / "large").write_bytes(bytes(range(256)) * 10)
    dataset = client.dataset.create("data", folder, description="mine", commit=False)
    client.dataset.upload(dataset, b"more", "b/c d")
    dataset = client.dataset.commit(dataset)
    assert dataset.full_name == "me/data"
    assert [(file.path, file.size) for file in client.dataset.list_files(dataset)] == [
        ("a/small", 1),
        ("b/c d", 4),
        ("large", 2560),
    ]
    assert [file.path for file in client.dataset.list_files(dataset, prefix="a/")] == ["a/small"]
    assert b"".join(client.dataset.stream_file(dataset, "large")) == bytes(range(256)) * 10
    assert b"".join(client.dataset.stream_file(dataset, "b/c d")) == b"more"
    with pytest.raises(BeakerDatasetConflict):
        client.dataset.create("data")
    again = client.dataset.create("data", force=True)
    assert again.id != dataset.id
    with pytest.raises(BeakerDatasetNotFound):
        client.dataset.get(dataset.id)
    assert [known.name for known in client.dataset.list(results=False)] == ["data"]


def test_results_are_datasets_of_their_own_kind(fake: FakeBeaker, client: Beaker, submit: Submit) -> None:
    submit("true")
    job = fake.wait("run").tasks[0].job
    (results,) = client.dataset.list(results=True)
    assert results.source_execution == job.id
    assert list(client.dataset.list(results=False)) == []


def test_clusters_and_their_nodes(fake: FakeBeaker, client: Beaker) -> None:
    cluster = client.cluster.get("ai2/jupiter")
    assert cluster.id == client.cluster.get("ai2/jupiter-cirrascale").id
    assert len(list(client.node.list(cluster=cluster))) == cluster.node_count
    assert [known.name for known in client.cluster.list()] == ["alpha", "beta"]
    fake.add_cluster("lab/gamma", num_nodes=1, gpus_per_node=2, tags=["small"])
    assert list(client.cluster.get("lab/gamma").tags) == ["small"]
    with pytest.raises(BeakerClusterNotFound):
        client.cluster.get("lab/none")


def test_images(fake: FakeBeaker, client: Beaker) -> None:
    fake.add_image("tool", description="Git commit: abc")
    image = client.image.get("me/tool")
    assert image.description == "Git commit: abc"
    assert client.image.get(image.id).full_name == "me/tool"
    assert client.image.update(image, name="old-tool").name == "old-tool"
    with pytest.raises(BeakerImageNotFound):
        client.image.get("me/tool")
    assert [known.name for known in client.image.list(author=client.user.get())] == ["image", "old-tool"]


def test_groups(client: Beaker, submit: Submit) -> None:
    workload = submit("true")
    group = client.group.create("sweep", experiment_ids=[workload.experiment.id])
    other = client.experiment.create(spec=make_spec("true"), name="second")
    client.group.update(group, add_experiment_ids=[other.experiment.id])
    spec = make_spec("true")
    spec.groups = [group.full_name]
    client.experiment.create(spec=spec, name="third")
    assert [metrics.experiment_name for metrics in client.group.list_task_metrics(group)] == ["run", "second", "third"]
    assert [known.full_name for known in client.group.list()] == ["me/sweep"]


def test_what_the_fake_cannot_do_says_so(client: Beaker) -> None:
    with pytest.raises(NotImplementedError):
        list(client.queue.list())
