from __future__ import annotations

from dataclasses import replace

import pytest

from tests.plan.sample_beaker import beaker_site
from windlass.config.loading import load_config
from windlass.core.errors import SpecError
from windlass.plan.beaker.keys import kept_keys
from windlass.plan.beaker.patch import asked_of_beaker, divided, mounts_of_storage
from windlass.plan.beaker.queue_target import beaker_target_of
from windlass.plan.capabilities import apply_rules
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.site import LOCAL, Site
from windlass.plan.slurm.queue_target import QueueTarget
from windlass.sites.beaker import Brought
from windlass.sites.profile import Profile
from windlass.spec import Experiment

SLURM = replace(LOCAL, name="lab", backend="slurm")


def judged(
    kept: str, more: str = "", site: Site = LOCAL, *, is_best_effort: bool = False
) -> tuple[list[str], list[str]]:
    """Notes, and messages of what is refused, for keys of a task."""
    text = f"{{name: x, tasks: {{t: {{run: [f, /results/a, x], nodes: 2, vars: {{WORD: w}}, beaker: {kept}}}}}{more}}}"
    experiment = load_config(Experiment, text, source="e").value
    diagnostics = Diagnostics({})
    notes = apply_rules(experiment, site, diagnostics, is_best_effort=is_best_effort)
    try:
        diagnostics.raise_all()
    except SpecError as error:
        return notes, [problem.message for problem in error.problems]
    return notes, []


_SATISFIED = [
    "{name: Any Name}",
    "{hostNetworking: true, leaderSelection: false, propagateFailure: null, propagatePreemption: true}",
    "{arguments: 1}",
    "{arguments: [x]}",
    "{arguments: []}",
    "{arguments: null}",
    "{command: [f, /results/a, x]}",
    "{replicas: 2}",
    "{timeout: null}",
    "{synchronizedStartTimeout: 10m}",
    "{envVars: []}",
    "{constraints: {cluster: [lab/a]}}",
    "{context: {cluster: lab/a, priority: null, preemptible: true, autoResume: true, minRuntime: 8h}}",
    "{context: {priority: normal}}",
    "{resources: {sharedMemory: null, cpuCount: 0}}",
    "{result: {path: /output}}",
    "{someday: null}",
    "{result: {$literal: null}}",
]


def test_what_the_place_does_anyway_is_noted_by_name() -> None:
    for site in [LOCAL, replace(LOCAL, backend="docker"), SLURM]:
        for kept in _SATISFIED:
            case = f"{kept} at {site.name}"
            notes, refused = judged(kept, site=site)
            assert not refused, case
            assert all(note.startswith("tasks.t.beaker.") for note in notes), case
            assert notes or kept == "{envVars: []}", case


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ("{replicas: 3}", "write `nodes`"),
        ("{timeout: 1h}", "write `limit.time`"),
        ("{timeout: 3600000000000}", "write `limit.time`"),
        ("{synchronizedStartTimeout: 5m}", "write `ready_timeout`"),
        ("{image: {docker: other}}", "one image"),
        ("{command: null}", "entry point"),
        ("{arguments: [y]}", "write it in `run`"),
        ("{envVars: [{name: odd-name, value: x}]}", "an invalid variable name"),
        ("{envVars: [{name: TOKEN, secret: T}]}", "use `env.secrets`"),
        ("{envVars: [{name: WORD, value: other}]}", "write `vars`"),
        ("{envVars: [{name: NEW, value: x}]}", "write `vars`"),
        ("{datasets: [{mountPath: /nowhere, source: {weka: b}}]}", "/nowhere is unknown at this site"),
        ("{datasets: [{mountPath: /d, source: {beaker: b}}]}", "`${data.NAME}` instead of /d"),
        ("{datasets: [{mountPath: /d, source: {result: t}}]}", "`${tasks.NAME.out}` instead of /d"),
        ("{datasets: [{mountPath: /d, source: {secret: s}}]}", "as: file"),
        ("{datasets: [{mountPath: /d, source: {volume: v}}]}", "only Beaker has volumes"),
        ("{result: {path: /results}}", "names /results"),
        ("{resources: {memory: 3GiB}}", "write `memory`"),
        ("{resources: {gpuType: h100}}", "not in Beaker's spec"),
        ("{context: {priority: high}}", "write `context.priority`"),
        ("{context: {autoResume: false}}", "retry.interrupted=0"),
        ("{constraints: {hostname: [n1]}}", "write `hosts`"),
        ("{someday: 1}", "not in Beaker's spec"),
        ("{image: {registry: 3}}", "one image"),
        ("{envVars: [{name: WORD, comment: x}]}", "not in Beaker's spec"),
        ("{context: {$literal: {priority: high}}}", "write `context.priority`"),
    ],
)
def test_what_the_place_cannot_do_is_refused_by_name(kept: str, words: str) -> None:
    notes, refused = judged(kept)
    assert not notes
    assert len(refused) == 1
    assert words in refused[0]
    assert refused[0].startswith("tasks.t.beaker.")


def test_best_effort_leaves_away_all_but_the_command() -> None:
    notes, refused = judged("{someday: 1, command: null}", is_best_effort=True)
    assert "is ignored (--best-effort)" in notes[0]
    assert ["entry point" in message for message in refused] == [True]


def test_keys_of_the_experiment() -> None:
    notes, refused = judged("{}", ", beaker: {version: v2-alpha, budget: a/b, retry: {allowedTaskRetries: 0}}")
    assert (len(notes), refused) == (3, [])
    assert len(judged("{}", ", beaker: {retry: {allowedTaskRetries: 2}, someday: 1}")[1]) == 2


def test_time_on_nodes_that_may_be_taken_is_not_protected_by_slurm() -> None:
    assert judged("{context: {minRuntime: 8h}}", ", context: {preemptible: true}", SLURM)[1]
    assert not judged("{context: {minRuntime: 8h}}", ", context: {preemptible: true}")[1]


def test_an_image_of_beaker_is_refused_elsewhere() -> None:
    refused = judged("{}", ", env: {image: 'beaker:me/img'}", replace(LOCAL, backend="docker"))[1]
    assert ["only Beaker has the image" in message for message in refused] == [True]


def test_a_mount_that_is_there_is_satisfied() -> None:
    kept = "{datasets: [{mountPath: /weka/d, source: {weka: d}}]}"
    assert judged(kept, site=replace(LOCAL, folders=("/weka/d",))) == (
        ["tasks.t.beaker.datasets.0=weka at /weka/d: the folder is there"],
        [],
    )


@pytest.mark.parametrize(
    ("paths", "run", "words", "is_met"),
    [
        ({"/weka": "/weka"}, "f /weka/d/x", "it is /weka/d here", True),
        ({"/weka": "/scratch"}, "f", "it is /scratch/d here", True),
        ({"/weka": "/scratch"}, "f /weka/d/x", "write that in `run`", False),
        ({"/other": "/scratch"}, "f", "/weka/d is unknown at this site", False),
    ],
)
def test_a_mount_that_the_profile_knows(paths: dict[str, str], run: str, words: str, is_met: bool) -> None:
    profile = Profile(name="lab", brought=Brought(paths=paths))
    kept = "{datasets: [{mountPath: /weka/d, source: {weka: d}}]}"
    text = f"{{name: x, tasks: {{t: {{run: {run}, beaker: {kept}}}}}}}"
    (key,) = kept_keys(load_config(Experiment, text, source="e").value, Site.of(profile), QueueTarget(profile=profile))
    assert (key.is_met, words in key.reason) == (is_met, True)


def test_storage_that_is_looked_for() -> None:
    text = "{name: x, tasks: {t: {run: f, beaker: {datasets: [{mountPath: /d, source: {weka: b}}, {source: 3}, 4]}}}}"
    assert mounts_of_storage(load_config(Experiment, text, source="e").value) == ("/d",)


def test_what_goes_along_to_beaker() -> None:
    mounts = [{"mountPath": "/d", "source": {"weka": "d"}}, {"mountPath": "/r", "source": {"result": "other"}}]
    kept = {
        "name": "Odd",
        "timeout": 3,
        "leaderSelection": False,
        "hostNetworking": True,
        "envVars": [{"name": "odd-name", "value": "x"}],
        "datasets": mounts,
        "context": {"minRuntime": "1h", "autoResume": None, "preemptible": True, "priority": "immediate"},
        "constraints": {"cluster": ["lab/a"], "gpuType": ["h100"]},
        "result": {"$literal": None},
        "someday": {"a": None},
    }
    assert divided(kept, ("lab/a", "lab/b"))[0] == {
        "hostNetworking": True,
        "datasets": mounts[:1],
        "context": {"minRuntime": 3600 * 10**9, "priority": "immediate"},
        "constraints": {"cluster": ["lab/a"], "gpuType": ["h100"]},
        "someday": {"a": None},
    }
    sent, ours = divided(kept, ("lab/b",))
    assert sent["constraints"] == {"gpuType": ["h100"]}
    assert ours == {
        **{key: kept[key] for key in ("name", "timeout", "leaderSelection", "envVars")},
        "datasets": mounts[1:],
        "context": {"autoResume": None, "preemptible": True},
        "constraints": {"cluster": ["lab/a"]},
        "result": None,
    }
    assert asked_of_beaker(kept)["constraints"] == kept["constraints"]


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ("{constraints: {cluster: [lab/alpha]}}", ""),
        ("{constraints: {cluster: [lab/alpha, lab/c]}}", "add them there"),
        ("{datasets: [{mountPath: /d, source: {weka: d}}]}", ""),
        ("{datasets: [{mountPath: /d, source: {result: t}}]}", "`${tasks.NAME.out}` instead of /d"),
        ("{envVars: [{name: TOKEN, secret: T}]}", "use `env.secrets`"),
        ("{context: {autoResume: false}}", "retry.interrupted=0"),
        ("{timeout: 1h}", "write `limit.time`"),
        ("{someday: 1}", ""),
    ],
)
def test_at_beaker_only_what_windlass_decides_is_judged(kept: str, words: str) -> None:
    site = beaker_site()
    text = f"{{name: x, env: {{image: i}}, tasks: {{t: {{run: f, beaker: {kept}}}}}}}"
    experiment = load_config(Experiment, text, source="e").value
    found = list(kept_keys(experiment, site, beaker_target_of(experiment, site, Diagnostics({}))))
    assert [words in key.reason and not key.is_met for key in found] == ([True] if words else [])
