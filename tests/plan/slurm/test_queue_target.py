from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.plan.sample import PINS
from tests.plan.sample_site import planned, refused, site
from windlass.config.loading import load_config
from windlass.core.errors import SpecError
from windlass.pin.image.pinned import ImagePin
from windlass.plan.job import RunPaths, job_document
from windlass.plan.placement import choose_site, split_place
from windlass.plan.plan import Plan
from windlass.plan.planner import make_plan
from windlass.spec import Experiment
from windlass.supervise.gang.incarnation import Incarnation
from windlass.supervise.replica.control import ControlFile

PLAIN = "name: x\ntasks: {main: {gpus: 2, run: f}}\nlimit: {time: 1h}\n"


@pytest.mark.parametrize(
    ("overrides", "code", "message", "hint"),
    [
        (["context.account=alfa"], "unknown-queue", "you have no account `alfa` at `lab`", "`context.account=alpha`"),
        (["context.account=zz"], "unknown-queue", "no account `zz`", "the accounts are: alpha, beta"),
        (
            ["context.priority=urgent"],
            "unsupported-setting",
            "context.priority=urgent is not supported on `lab`: the site's profile does not map this priority",
            "~context.priority, or run without it: --best-effort",
        ),
        (["tasks.main.gpus=2 x a100"], "does-not-fit", "asks for `a100`, and `lab/gpu` has gh200", "tasks.main.gpus=2"),
        (["tasks.main.gpus=2 x h100"], "does-not-fit", "asks for `h100`", "a partition that has them: --on lab/big"),
        (["tasks.main.cpus=300"], "does-not-fit", "300 CPUs of a node, and one of `lab/gpu` has 288", "cpus=288"),
        (["tasks.main.memory=500GiB"], "does-not-fit", "500GiB of a node, and one of `lab/gpu` has 400GiB", "lab/big"),
        (["tasks.main.nodes=17"], "does-not-fit", "17 nodes of `lab/gpu`, and a job may have 16", "nodes=16, or"),
        (["tasks.main.features=[nvme]"], "does-not-fit", "no node of `lab/gpu` has the feature `nvme`", "are: ib"),
        (["tasks.main.hosts=[n1,n2]"], "does-not-fit", "the task takes 1 node", "tasks.main.nodes=2"),
        (
            ["tasks.main.hosts=n1,n2"],
            "does-not-fit",
            "`n1,n2`, which is not a single host name",
            "hosts=[n1,n2]",
        ),
        (["tasks.main.hosts='n[1-2]'"], "does-not-fit", "`n[1-2]`, which is not a single host", "hosts=[n1,n2]"),
        (["tasks.main.hosts=n13"], "does-not-fit", "`n13`, which `lab` excludes: ECC errors", "another host"),
        (["limit.time=30h"], "over-walltime", "limit.time is 1d6h, and a job in `lab/gpu` may run 1d", "per_job=1d,"),
        (["limit.time=30h"], "over-walltime", "at most", "or another partition: --on lab/big"),
        (
            ["limit.time=90h", "limit.per_job=25h"],
            "over-walltime",
            "limit.per_job is 1d1h, and a job in `lab/gpu` may run 1d at most",
            "limit.per_job=1d, or another partition: --on lab/big",
        ),
        (["env.image=torch:2"], "unsupported-setting", "does not say how to run containers", "~env.image"),
        (["tasks.main.shared_memory=1GiB"], "unsupported-setting", "shared memory has the node", "--best-effort"),
        (["context={priority: high, preemptible: true}"], "", "", ""),
    ],
)
def test_what_a_site_cannot_do_is_refused(overrides: list[str], code: str, message: str, hint: str) -> None:
    if not code:
        assert planned(PLAIN, *overrides).tasks[0].queue.partition == "spare"
        return
    found = refused(PLAIN, *overrides)
    assert message in found[code][0]
    assert hint in found[code][1]


@pytest.mark.parametrize(
    ("partition", "code", "message", "hint"),
    [
        ("gpuu", "unknown-queue", "`lab` has no partition `gpuu`", "did you mean `--on lab/gpu`?"),
        ("zz", "unknown-queue", "`lab` has no partition `zz`", "the partitions are: gpu, big, cpu, spare"),
        ("cpu", "does-not-fit", "task `main` needs GPUs, but the nodes of `lab/cpu` have none", "--on lab/gpu"),
    ],
)
def test_a_partition_that_is_not_there_or_has_no_gpus(partition: str, code: str, message: str, hint: str) -> None:
    found = refused(PLAIN, at=site(partition=partition))
    assert list(found) == [code]
    assert message in found[code][0]
    assert hint in found[code][1]


def test_refusals_have_places() -> None:
    with pytest.raises(SpecError) as caught:
        planned("name: x\nwhere: lab/gpuu\nrun: f\n", at=site(partition="gpuu"))
    place = caught.value.problems[0].place
    assert place is not None
    assert (place.source, place.line) == ("exp.yaml", 2)


def test_wishes_become_qos_partition_and_nice() -> None:
    high, low = (planned(PLAIN, f"context.priority={wish}") for wish in ("high", "low"))
    assert (high.tasks[0].queue.qos, high.tasks[0].queue.nice) == ("high", 0)
    assert (low.tasks[0].queue.qos, low.tasks[0].queue.nice) == ("", 100)
    assert "context.priority=high: here it is QOS high" in high.notes
    spare = planned(PLAIN, "context.preemptible=true")
    assert spare.tasks[0].queue.partition == "spare"
    assert "context.preemptible=true: here it is partition spare" in spare.notes
    nowhere = planned(PLAIN, "context.preemptible=true", at=site("~scheduler.preemptible"))
    assert any("the site has no preemptible queue" in note for note in nowhere.notes)


def test_a_wish_for_a_partition_and_another_named_one() -> None:
    message, hint = refused(PLAIN, "context.preemptible=true", at=site(partition="gpu"))["conflicting-options"]
    assert message == "context.preemptible means partition `spare` at `lab`, and where means `gpu`"
    assert hint == "keep one of them: ~context.preemptible, or --on lab/spare"


def test_a_qos_that_is_not_there() -> None:
    message, hint = refused(PLAIN, at=site("scheduler.qos=normal", "partitions.gpu.qos=[high]"))["unknown-queue"]
    assert message == "QOS `normal` is not allowed in partition `gpu` of `lab`"
    assert hint == "partition `gpu` takes: high"


def test_accounts_come_from_the_experiment_or_the_site() -> None:
    assert planned(PLAIN).tasks[0].queue.account == "alpha"
    assert planned(PLAIN, "context.account=beta").tasks[0].queue.account == "beta"


def test_what_is_asked_of_the_scheduler() -> None:
    overrides = ["tasks.main.disk=10GiB", "tasks.main.features=ib", "tasks.main.hosts=n1", "tasks.main.cpus=1.5"]
    queue = planned(PLAIN, *overrides, "tasks.main.memory=8GiB").tasks[0].queue
    assert (queue.tmp_bytes, queue.constraint, queue.nodelist) == (10 << 30, "ib", ("n1",))
    assert (queue.cpus_per_node, queue.memory_bytes, queue.gres_type) == (2, 8 << 30, "gh")
    assert queue.setup == (". /etc/profile.d/modules.sh", "module purge", "module load cuda/12.6 'brics/aws ofi'")
    forbidding = planned(PLAIN, at=site("env.modules_forbidden=[brics/nccl]")).tasks[0].queue
    assert forbidding.setup == (*queue.setup, "forbid_module brics/nccl")
    assert (queue.exclude, queue.options) == (("n13",), ("--network=single_node_vni",))


def test_a_site_whose_jobs_state_no_memory() -> None:
    task = planned(PLAIN, "tasks.main.memory=8GiB", at=site("scheduler.asks_memory=false")).tasks[0]
    assert (task.queue.memory_bytes, task.shape.memory_bytes) == (0, 8 << 30)


def test_a_partition_of_which_nothing_is_known() -> None:
    plan = planned(PLAIN, at=site("~scheduler.partition", "~partitions", "~scheduler.preemptible"))
    assert plan.tasks[0].queue.partition == ""
    assert any("the default partition of `lab` have is unknown" in note for note in plan.notes)


def test_gpus_between_nodes_want_a_declared_interconnect() -> None:
    wide = ("tasks.main.nodes=2",)
    warning = "the profile of `lab` declares no interconnect"
    assert any(warning in note for note in planned(PLAIN, *wide, at=site("~net.interconnect")).notes)
    assert not any(warning in note for note in planned(PLAIN, *wide).notes)
    assert not any(warning in note for note in planned(PLAIN, at=site("~net.interconnect")).notes)


def test_gpus_without_cpus_are_noticed() -> None:
    said = "task main asks for GPUs and not for CPUs (tasks.main.cpus)"
    assert any(note.startswith(said) for note in planned(PLAIN).notes)
    for plan in (planned(PLAIN, "tasks.main.cpus=8"), planned(PLAIN, at=site("scheduler.exclusive=true"))):
        assert not any(note.startswith(said) for note in plan.notes)


def test_a_partition_that_loses_nodes_is_named() -> None:
    assert any("nodes of `lab/spare` can be preempted" in n for n in planned(PLAIN, at=site(partition="spare")).notes)


def test_places_of_where() -> None:
    assert split_place("isambard/gpu") == ("isambard", "gpu")
    assert split_place("local") == ("local", "")


def experiment(*overrides: str) -> Experiment:
    return load_config(Experiment, PLAIN, source="exp.yaml", overrides=overrides).value


def test_best_effort_notes_what_the_site_cannot_do() -> None:
    loaded = load_config(Experiment, PLAIN, source="x", overrides=["tasks.main.shared_memory=1GiB"])
    plan = make_plan(loaded.value, PINS, site(), best_effort=True)
    said = "tasks.main.shared_memory=1GiB is ignored (--best-effort): shared memory has the node's default size"
    assert said in plan.notes


def test_a_gpu_type_that_the_site_does_not_name() -> None:
    wish = "tasks.main.gpus=2 x gh200"
    assert not any("gh200" in note for note in planned(PLAIN, wish).notes)
    nameless = site("~partitions.gpu.gpu_type", "~partitions.gpu.gres")
    message, _ = refused(PLAIN, wish, at=nameless)["unsupported-setting"]
    assert message.endswith("the site's profile does not name the GPUs of this partition")


def test_a_plan_of_a_site_reads_back() -> None:
    plan = planned(PLAIN, "context.priority=low")
    assert Plan.from_data(json.loads(json.dumps(plan.to_data()))) == plan


def test_the_first_place_that_fits_is_chosen() -> None:
    places = [site(partition="cpu"), site(partition="gpu"), site(partition="big")]
    chosen = choose_site(experiment(), places)
    assert chosen.partition == "gpu"
    assert chosen.passed_over == ("lab/cpu: task `main` needs GPUs, but the nodes of `lab/cpu` have none",)
    assert f"passed over: {chosen.passed_over[0]}" in planned(PLAIN, at=chosen).notes
    assert choose_site(experiment("tasks.main.gpus=8"), places).partition == "big"
    assert choose_site(experiment("tasks.main.gpus=8"), places, reshape=True).partition == "gpu"


def test_a_site_without_a_default_partition_stands_for_all() -> None:
    anywhere = site("~scheduler.partition")
    assert choose_site(experiment(), [anywhere]).partition == "gpu"
    assert choose_site(experiment("limit.time=40h"), [anywhere]).partition == "big"
    assert choose_site(experiment("~tasks.main.gpus", "limit.time=4d"), [anywhere]).partition == "cpu"


def test_one_place_is_returned_as_it_is() -> None:
    place = site(partition="cpu")
    assert choose_site(experiment(), [place]) == place
    other = replace(place, partition="")
    assert choose_site(experiment("tasks.main.gpus=8"), [other]) == other


def test_where_nothing_fits_every_place_says_why() -> None:
    with pytest.raises(SpecError) as caught:
        choose_site(experiment("tasks.main.gpus=16"), [site(partition="cpu"), site(partition="big")])
    assert [problem.message for problem in caught.value.problems] == [
        "lab/cpu: task `main` needs GPUs, but the nodes of `lab/cpu` have none",
        "lab/big: task `main` needs 16 GPUs of a node, and a node of `lab/big` has 8",
    ]


def test_an_image_runs_where_the_site_runs_containers() -> None:
    at = site("containers.kind=apptainer", "containers.program=/opt/apptainer")
    name = "nvcr.io/nvidia/pytorch:25.10-py3"
    pins = replace(PINS, image=ImagePin(kind="named", name=name))
    plan = planned(PLAIN, f"env.image={name}", "tasks.main.gpus=4", at=at, pins=pins)
    places = RunPaths(run="r-00000000", run_dir=Path("/shared/r"), code=Path("/shared/r/code"))
    document = job_document(plan, plan.task("main"), places=places, job=1, token="t")
    argv = document.command.argv
    assert argv[3:6] == ("/opt/apptainer", "exec", "--nv")
    assert argv[-4:-2] == ("docker://nvcr.io/nvidia/pytorch:25.10-py3", "/bin/sh")
    assert plan.plan_hash != planned(PLAIN, "tasks.main.gpus=4", at=at).plan_hash


def test_a_secret_file_and_the_supervisors_requests_are_shown_in_an_image() -> None:
    at = site("containers.kind=apptainer")
    pins = replace(PINS, image=ImagePin(kind="named", name="base:1"))
    plan = planned(PLAIN, "env.image=base:1", "env.secrets=[{name: TOKEN, as: file}]", at=at, pins=pins)
    run, delivery = Path("/shared/r"), Path("/shared/delivery/1f.json")
    places = RunPaths(run="r-00000000", run_dir=run, code=run / "code", delivery=delivery)
    document = job_document(plan, plan.task("main"), places=places, job=1, token="t")
    words = " ".join(document.command.argv)
    assert "--bind /shared/delivery/1f.TOKEN --pwd" in words
    assert '--bind "${WINDLASS_CONTROL%/*}"' in words


def test_a_runtime_that_passes_only_what_it_is_told_to_is_told_of_every_variable(tmp_path: Path) -> None:
    at = site("containers.kind=enroot", "env.vars=[{name: CC, value: gcc-12, role: driver}, HF_HOME=/hf]")
    settings = (
        "env.image=/images/rl.sqsh",
        "env.secrets=[TOKEN]",
        "env.vars.MINE=1",
        "tasks.main.checkpoints.every=5m",
    )
    pins = replace(PINS, image=ImagePin(kind="named", name="/images/rl.sqsh"))
    plan = planned(PLAIN, *settings, at=at, pins=pins)
    places = RunPaths(run="r-00000000", run_dir=tmp_path, code=tmp_path, delivery=tmp_path / "1f.json")
    document = job_document(plan, plan.task("main"), places=places, job=1, token="t" * 12)
    argv = document.command.argv
    told = {argv[index + 1] for index, word in enumerate(argv) if word == "--env"}
    control = ControlFile(document, 0, Incarnation("7.0", link=1))
    given = {*document.command.env, *control.variables(""), "WINDLASS_HOSTS", "TOKEN"}
    assert given <= told


@pytest.mark.parametrize(
    ("kind", "overrides", "code", "message", "hint"),
    [
        (
            "apptainer",
            ("env.image=base:1", "tasks.main.cluster=ray"),
            "unsupported-setting",
            "task `main` has `cluster: ray`, which cannot start processes in the image `base:1`",
            "use `env.uv`, or start the cluster inside your own command",
        ),
        (
            "enroot",
            ("env.image=base:1",),
            "image-unsupported",
            "`env.image` is `base:1`, and enroot starts image files only",
            "`enroot import -o image.sqsh docker://base:1` there, then use the file's absolute path",
        ),
        (
            "apptainer",
            ("env.image.name=base:1", "env.image.network=private"),
            "unsupported-setting",
            "env.image.network=private is not supported on `lab`: apptainer uses the node's network",
            "remove it: ~env.image.network",
        ),
        (
            "apptainer",
            ("env.image.name=base:1", "env.image.code=image"),
            "unsupported-setting",
            "env.image.code=image is not supported on `lab`: the code folder of a named image is not known",
            "remove it: ~env.image.code",
        ),
        (
            "none",
            ("env.image=base:1",),
            "unsupported-setting",
            (
                "env.image=base:1 is not supported on `lab`: the site's profile does not say how to run containers "
                "(containers.kind); use `env.uv` or `env.python`"
            ),
            "remove it: ~env.image",
        ),
    ],
)
def test_what_a_site_cannot_do_with_an_image_is_refused_when_it_is_planned(
    kind: str, overrides: tuple[str, ...], code: str, message: str, hint: str
) -> None:
    found = refused(PLAIN, *overrides, at=site(f"containers.kind={kind}"))
    assert found == {code: (message, hint)}


def test_an_image_file_of_the_site_is_said_not_to_be_pinned() -> None:
    pins = replace(PINS, image=ImagePin(kind="named", name="/images/rl.sif"))
    plan = planned(PLAIN, "env.image=/images/rl.sif", at=site("containers.kind=apptainer"), pins=pins)
    assert plan.pins.image.text() == "/images/rl.sif (a file of the site: its content is not pinned)"
