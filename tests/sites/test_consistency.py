from __future__ import annotations

import pytest

from windlass.config.emit import to_yaml
from windlass.config.loading import load_config
from windlass.core.errors import SpecError
from windlass.sites.consistency import stale_sources, unknown_facts
from windlass.sites.profile import Profile

GOOD = """\
name: mine
scheduler: {partition: gpu, accounts: [abc], qos_known: [normal, spare], preemptible: {qos: spare}}
partitions:
  gpu: {num_nodes: 4, gpus: 4, gpu_type: h100, cpus: 64, memory: 512GiB, arch: x86_64, time_max: 24h}
net: {vars: [NCCL_PROTO=^LL128, {name: NCCL_NET, value: OFI, when: multi-node}]}
fs: {shared: "/projects/abc/${user}"}
"""


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_config(Profile, text, source="mine.yaml")
    return [
        f"{problem.place} | {problem.message} | {problem.code} | {problem.hint}" for problem in caught.value.problems
    ]


def test_a_good_profile_has_no_findings() -> None:
    assert load_config(Profile, GOOD, source="mine.yaml").value.net.vars[0].value == "^LL128"


@pytest.mark.parametrize(
    ("more", "message", "code", "hint"),
    [
        ("scheduler: {priority: {hihg: {nice: 5}}}", "unknown priority `hihg`", "unknown-name", "did you mean `high`?"),
        ("scheduler: {partition: gpo}\npartitions: {gpu: {}}", "unknown partition `gpo`", "unknown-queue", "`gpu`"),
        ("scheduler: {account: abd, accounts: [abc]}", "unknown account `abd`", "unknown-queue", "`abc`"),
        ("scheduler: {qos: fast, qos_known: [normal]}", "unknown QOS `fast`", "unknown-queue", "known: normal"),
        ("scheduler: {preemptible: {partition: x}}\npartitions: {gpu: {}}", "unknown partition `x`", "unknown-queue", ""),
        ("env: {build_partition: x}\npartitions: {gpu: {}}", "unknown partition `x`", "unknown-queue", "known: gpu"),
        ("partitions: {gpu: {gpus: 0, gpu_type: h100}}", "has `gpus: 0` and GPUs of type `h100`", "conflicting-options", ""),
        ("partitions: {gpu: {num_nodes: 2, max_nodes: 3}}", "`max_nodes` of `gpu` is 3, but it has 2 nodes", "conflicting-options", ""),
        ("net: {vars: [A=1, A=2]}", "`A` is set twice", "conflicting-options", "keep one"),
        ("net: {vars: [{name: A, value: x, when: [multi-node, one-node]}]}", "is never set", "conflicting-options", ""),
        ("env: {vars: ['A=${env.pth}']}", "unknown variable `${env.pth}`", "unknown-token", "${env.path}"),
        ("fs: {shared: scratch}", "`scratch` is not an absolute path", "invalid-value", "start it with `/`"),
        ("fs: {shared: '/x/${fs.shared}'}", "unknown variable `${fs.shared}`", "unknown-token", "${user}"),
        ("env: {modules: brics/nccl/2.1, modules_forbidden: brics/nccl}", "is in both `modules` and `modules_forbidden`", "conflicting-options", ""),
        ("env: {overrides: [{package: torch==2.9}, {package: torch==2.8}]}", "`torch` is overridden twice", "conflicting-options", ""),
        (
            "containers: {kind: apptainer, options: [--nv, --cleanenv]}",
            "`--cleanenv` would remove the task's variables from its container",
            "conflicting-options",
            "remove it",
        ),
        ("containers: {options: --nv}", "`kind: none`", "setting-unused", "kind: apptainer"),
        ("scheduler: {exclude: [{host: n1, seen: 02.11.2026}]}", "invalid date `02.11.2026`", "invalid-value", "YYYY-MM-DD"),
        ("sources: [{facts: net, expires: 2026-02-30}]", "invalid date `2026-02-30`", "invalid-value", "YYYY-MM-DD"),
        ("sources: [{facts: net.varz}]", "unknown field `net.varz`: no `varz`", "unknown-key", "did you mean `vars`?"),
        ("sources: [{facts: partitions.gpu}]", "no `gpu`", "unknown-key", "known: none"),
        ("sources: [{facts: net.vars.NCCL_X}]", "no `NCCL_X`", "unknown-key", ""),
        ("sources: [{facts: ''}]", "unknown field", "unknown-key", ""),
        ("sources: [{facts: net, status: official, seen: 2026-01-01}]", "needs a `url`", "conflicting-options", "url:"),
        ("sources: [{facts: net, status: measured}]", "a source with the status measured needs a date", "conflicting-options", "outdated"),
        ("sources: [{facts: net, seen: 2026-02-01, expires: 2026-01-01}]", "before they were seen", "conflicting-options", ""),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(more: str, message: str, code: str, hint: str) -> None:
    found = problems(f"name: mine\n{more}\n")
    assert len(found) == 1, found
    place, what, slug, help_ = found[0].split(" | ")
    assert message in what
    assert slug == code
    assert hint in help_
    assert place.startswith("mine.yaml:")


def test_every_problem_is_reported_at_once() -> None:
    text = GOOD.replace("partition: gpu,", "partition: gpo,").replace("num_nodes: 4", "num_nodes: four")
    assert [line.split(" | ")[2] for line in problems(text)] == ["unknown-queue", "invalid-value"]
    assert "mine.yaml:2:" in problems(text)[0]


def test_facts_may_name_items_of_lists_and_keys_of_maps() -> None:
    facts = "[net.vars.NCCL_PROTO, partitions.gpu.gpus, scheduler.accounts.abc, fs]"
    load_config(Profile, GOOD + f"sources: [{{facts: {facts}}}]\n", source="mine.yaml")


def test_short_forms_come_back_as_they_were_written() -> None:
    text = "name: mine\nnet: {vars: [A=1, 'B=x=y', {name: C, role: worker}]}\nscheduler: {exclude: [n1, {host: n2, reason: slow}]}\n"
    profile = load_config(Profile, text, source="mine.yaml").value
    assert [(v.name, v.value, v.role) for v in profile.net.vars] == [
        ("A", "1", "all"),
        ("B", "x=y", "all"),
        ("C", None, "worker"),
    ]
    written = to_yaml(profile)
    assert "[A=1" not in written  # one entry is a mapping, so each has a line
    assert "- A=1\n" in written
    assert "- n1\n" in written
    assert load_config(Profile, written, source="again").value == profile


def test_a_variable_without_a_value_is_not_guessed_at() -> None:
    assert (
        "write `NCCL_NET=VALUE` to set it, or `{name: NCCL_NET}` to unset it"
        in problems("name: m\nnet: {vars: [NCCL_NET]}\n")[0]
    )


def test_facts_that_expired_are_named() -> None:
    text = "name: m\nsources: [{facts: fs, expires: 2026-03-01}, {facts: net, expires: 2026-03-02}, {facts: env}]\n"
    profile = load_config(Profile, text, source="m.yaml").value
    assert [source.facts for source in stale_sources(profile, "2026-03-02")] == [("fs",)]


def test_what_is_not_known_is_listed_and_no_gpus_are_known() -> None:
    text = "name: m\npartitions: {a: {gpus: 0, cpus: 4, arch: x86_64, time_max: 1h}, b.c: {}}\n"
    profile = load_config(Profile, text, source="m.yaml").value
    assert unknown_facts(profile) == [
        "fs.shared",
        "scheduler.partition",
        "net.interconnect",
        "net.interface",
        "partitions.a.memory",
        'partitions."b.c".gpus',
        'partitions."b.c".cpus',
        'partitions."b.c".memory',
        'partitions."b.c".arch',
        'partitions."b.c".time_max',
    ]
    assert unknown_facts(load_config(Profile, GOOD, source="m.yaml").value) == ["net.interconnect", "net.interface"]
