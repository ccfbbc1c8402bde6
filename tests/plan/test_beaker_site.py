from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.plan.sample_beaker import PLACE, beaker_plan, beaker_site
from windlass.backends.beaker.render import experiment_spec
from windlass.config.emit import to_yaml
from windlass.config.loading import from_data, load_config
from windlass.core.errors import SpecError
from windlass.plan.job import RunPaths, job_document
from windlass.plan.page import plan_page
from windlass.plan.placement import choose_site
from windlass.plan.plan import Plan
from windlass.sites.profile import Profile
from windlass.spec import Experiment
from windlass.supervise.job import JobDocument

GANG = "{name: x, why: does it learn, tasks: {t: {run: python t.py, nodes: 3, gpus: 2, memory: 4GiB}}}"
ONE = "{name: x, run: python t.py}"
PLACES = RunPaths(run="x-1", run_dir=Path("/weka/main/me/w/runs/x-1"), code=Path("/weka/main/me/w/runs/x-1/code"))


def document(plan: Plan, places: RunPaths = PLACES) -> JobDocument:
    return job_document(plan, plan.tasks[0], places=places, job=1, token="t" * 32)


def test_what_beaker_is_asked_for() -> None:
    task = beaker_plan(GANG).task("t")
    ask = task.beaker
    assert (ask.workspace, ask.budget, ask.image) == ("lab/main", "lab/money", "beaker:me/image")
    assert (ask.clusters, ask.priority, ask.description) == (("lab/alpha", "lab/beta"), "normal", "does it learn")
    assert (task.shape.gpus, task.shape.memory_bytes, ask.results) == (2, 4 << 30, "/results")
    assert ask.datasets == ({"mountPath": "/weka/main", "source": {"weka": "main"}},)


def test_one_cluster_has_all_its_mounts() -> None:
    ask = beaker_plan(GANG, site=beaker_site("alpha")).task("t").beaker
    assert ask.clusters == ("lab/alpha",)
    mount = {"mountPath": "/scratch", "source": {"hostPath": "/local/scratch"}, "mode": "readonly"}
    assert ask.datasets[1] == mount


def test_wishes_become_beakers_own() -> None:
    text = (
        "{name: x, run: f, context: {priority: high, preemptible: true, account: lab/other}, env: {image: 'python:3'}}"
    )
    plan = beaker_plan(text, "tasks.main.hosts=node-1", "tasks.main.shared_memory=8GiB")
    ask = plan.task("main").beaker
    assert (ask.priority, ask.is_preemptible, ask.budget, ask.image) == ("high", True, "lab/other", "docker:python:3")
    assert (ask.hostnames, plan.task("main").shape.shared_memory_bytes) == (("node-1",), 8 << 30)
    assert plan.notes == ("not mounted, since not all of these clusters have it: /scratch",)


def test_kept_keys_reach_the_ask() -> None:
    kept = "{context: {minRuntime: 2h}, arguments: 1, replicas: 1, envVars: [{name: A}]}"
    ask = (
        beaker_plan(
            f"{{name: x, beaker: {{groups: [g]}}, tasks: {{t: {{run: [f, x], vars: {{A: a}}, beaker: {kept}}}}}}}"
        )
        .task("t")
        .beaker
    )
    assert (ask.experiment, ask.task) == ({"groups": ["g"]}, {"context": {"minRuntime": 7200 * 10**9}})


def test_a_spec_that_said_nothing_takes_nothing_away() -> None:
    kept = "{context: null, constraints: {$literal: null}, resources: null, datasets: null}"
    text = f"{{name: x, tasks: {{t: {{run: f, gpus: 1, beaker: {kept}}}}}}}"
    for site, resumes in ((beaker_site(), True), (beaker_site(fs={}), False)):  # nothing outlives a job at the other
        (task,) = experiment_spec(document(beaker_plan(text, site=site)), Path("/f"), Path("/w.pyz"))["tasks"]
        assert (task["context"]["autoResume"], task["constraints"]["cluster"]) == (resumes, ["lab/alpha", "lab/beta"])
        assert (task["resources"]["gpuCount"], len(task["datasets"])) == (1, 1)


@pytest.mark.parametrize(("group", "groups"), [("me/sweep", ("me/sweep",)), ("a-sweep", ())])
def test_a_group_of_beaker_is_joined(group: str, groups: tuple[str, ...]) -> None:
    plan = beaker_plan(ONE, f"context.group={group}")
    assert plan.task("main").beaker.groups == groups
    said = f"context.group={group}: the experiment joins this Beaker group"
    assert (said in plan.notes) is bool(groups)


def test_the_chain_is_one_job_that_beaker_starts_again() -> None:
    chain = beaker_plan(GANG, "limit.jobs=4").task("t").chain
    assert (chain.scheduler, chain.mode, chain.num_links, chain.submit) == ("beaker", "requeue", 4, ())


def test_a_plan_survives_its_json() -> None:
    plan = beaker_plan(GANG)
    assert Plan.from_data(plan.to_data()) == plan


def test_the_place_is_not_in_the_hash() -> None:
    assert beaker_plan(GANG).plan_hash == beaker_plan(GANG, site=beaker_site("alpha")).plan_hash


def test_the_page_says_what_is_asked_for() -> None:
    text = plan_page(beaker_plan(GANG))
    assert "queue        workspace lab/main, budget lab/money, cluster lab/alpha or lab/beta, priority normal" in text
    assert "one, restarted by Beaker after a preemption, at most 51 times in all" in text


REFUSED = [
    (GANG, {"fs": {}}, "site-no-shared-folder", "takes 3 nodes"),
    (ONE, {"beaker": {"workspace": "lab/main"}, "fs": {}}, "no-image", "neither the experiment nor `lab` names one"),
    (ONE, {"beaker": {"image": "beaker:i"}, "fs": {}}, "beaker-workspace", "has no Beaker workspace"),
    ("{name: x, run: f, env: {uv: .}}", {}, "unsupported-setting", "contains its environment"),
    ("{name: x, run: f, env: {python: /usr/bin/python3}}", {}, "unsupported-setting", "contains its environment"),
    ("{name: x, tasks: {t: {run: f, disk: 1GiB}}}", {}, "unsupported-setting", "does not reserve disk space"),
    ("{name: x, tasks: {t: {run: f, features: big}}}", {}, "unsupported-setting", "by cluster and host only"),
    ("{name: x, run: f, env: {image: {name: i, network: private}}}", {}, "unsupported-setting", "network=private"),
    ("{name: x, tasks: {t: {run: f, gpus: 5}}}", {}, "needs-reshape", "a node of `lab` has 4"),
    ("{name: x, tasks: {t: {run: f, gpus: 1 x b200}}}", {}, "does-not-fit", "`lab` has h100"),
]


@pytest.mark.parametrize(("text", "changes", "code", "message"), REFUSED)
def test_what_is_refused(text: str, changes: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        beaker_plan(text, site=beaker_site(**changes))
    assert code in [problem.code for problem in caught.value.problems]
    assert message in str(caught.value)


def test_an_unknown_cluster_is_answered_with_the_nearest() -> None:
    with pytest.raises(SpecError) as caught:
        beaker_plan(ONE, site=beaker_site("alpah"))
    assert caught.value.problems[0].code == "unknown-queue"
    assert caught.value.problems[0].hint.startswith("did you mean --on lab/alpha?")


def test_storage_that_a_cluster_lacks_is_refused_with_one_that_has_it() -> None:
    mounts = [{**mount, "read_only": False} for mount in PLACE["beaker"]["mounts"]]
    place = {**PLACE["beaker"], "mounts": mounts}
    with pytest.raises(SpecError) as caught:
        beaker_plan(ONE, site=beaker_site(fs={"shared": "/scratch/me"}, beaker=place))
    assert caught.value.problems[0].code == "site-no-shared-folder"
    assert "--on lab/lab/alpha" in caught.value.problems[0].hint


def test_one_node_needs_no_shared_folder() -> None:
    assert beaker_plan(ONE, site=beaker_site(fs={})).task("main").beaker.image == "beaker:me/image"


def test_a_site_is_one_place_whatever_its_clusters() -> None:
    loaded = load_config(Experiment, ONE, source="e.yaml")
    assert choose_site(loaded.value, [beaker_site()]).partition == ""


def test_a_job_listens_to_others_and_inherits_beakers_variables() -> None:
    job = document(beaker_plan(GANG))
    assert (job.site.host_address, job.site.interface) == ("", "ib")
    assert "BEAKER_*" in job.site.inherit
    assert job.site.fencing.renew_s > 0
    assert job.command.argv[:2] == ("/bin/sh", "-c") or job.command.argv[0] == "python"


def test_secrets_are_named_as_the_workspace_has_them() -> None:
    plan = beaker_plan("{name: x, run: f, env: {secrets: [HF_TOKEN]}}")
    places = RunPaths(
        run="x-1",
        run_dir=PLACES.run_dir,
        code=PLACES.code,
        secrets={"HF_TOKEN": "me_HF_TOKEN"},
        delivery=Path("/dev/shm/windlass-x-1/secrets.json"),
    )
    job = document(plan, places)
    assert job.beaker.secrets == {"WINDLASS_FROM_BEAKER_HF_TOKEN": "me_HF_TOKEN"}
    assert job.paths.delivery == "/dev/shm/windlass-x-1/secrets.json"


def test_compat_there_leaves_beakers_own_alone() -> None:
    job = document(beaker_plan("{name: x, tasks: {t: {run: f, compat: beaker}}}"))
    assert not [name for name in job.command.env if name.startswith("BEAKER_")]
    assert job.command.env["RESULTS_DIR"] == "/results"


def test_a_job_is_read_as_it_was_written(tmp_path: Path) -> None:
    import json

    job = document(beaker_plan(GANG, site=beaker_site("alpha")))
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job.to_data()))
    assert JobDocument.read(path) == job


def test_a_profile_with_clusters_of_unequal_nodes_plans_for_the_smaller() -> None:
    plan = beaker_plan("{name: x, tasks: {t: {run: f, total_gpus: 8}}}")
    assert (plan.task("t").shape.nodes, plan.task("t").shape.gpus) == (2, 4)


def test_samples_are_valid_profiles() -> None:
    site = beaker_site()
    assert site.profile is not None
    text = to_yaml(site.profile)
    assert load_config(Profile, text, source="lab").value == from_data(Profile, dict(site.profile_data), source="lab")
