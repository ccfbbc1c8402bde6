from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass.supervise.launchers.ray_cluster import RayPlace, count_cpus
from windlass.supervise.launchers.wrapped import WrappedCommand

SITE = "n1=10.0.0.1,n2=10.0.0.2"


def place(rank: int = 0, hosts: str = SITE, nodes: int = 2, *options: str, **more: str) -> RayPlace:
    environ = environment(rank, hosts, nodes) | more
    return RayPlace.read(WrappedCommand.parse(["--scratch=/tmp/wl-1", "--num-gpus=4", *options, "--", "x"]), environ)


def environment(rank: int, hosts: str, nodes: int) -> dict[str, str]:
    address = hosts.split(",", maxsplit=1)[0].partition("=")[2] or "10.0.0.1"
    return {
        "WINDLASS_RANK": str(rank),
        "WINDLASS_NUM_REPLICAS": str(nodes),
        "WINDLASS_HOSTS": hosts,
        "WINDLASS_LEADER_ADDRESS": address,
        "WINDLASS_LEADER_PORT": "29500",
        "WINDLASS_TOKEN": f"secret.{rank}",
        "WINDLASS_ATTEMPT": "2",
    }


def test_the_head_listens_where_the_leader_said() -> None:
    head = place(0, SITE, 2, "--num-cpus=32")
    assert head.head == "10.0.0.1:29500"
    assert head.options() == (
        "--node-name=windlass-0",
        "--temp-dir=/tmp/wl-1/r",
        "--num-cpus=32",
        "--num-gpus=4",
        "--disable-usage-stats",
        "--node-ip-address=10.0.0.1",
        "--port=29500",
        "--include-dashboard=false",
        "--no-monitor",
    )


def test_a_worker_joins_with_its_own_address() -> None:
    worker = place(1, SITE, 2, "--num-cpus=32")
    assert (worker.head, worker.own_address) == ("10.0.0.1:29500", "10.0.0.2")
    assert not [option for option in worker.options() if option.startswith(("--port", "--include", "--no-monitor"))]


def test_on_one_machine_every_node_has_an_address_of_its_own() -> None:
    here = "vm=127.0.0.1,vm=127.0.0.1,vm=127.0.0.1"
    places = [place(rank, here, 3, "--num-cpus=1") for rank in range(3)]
    assert [found.own_address for found in places] == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    assert {found.head for found in places} == {"127.0.0.2:29500"}
    assert places[0].memory_bytes > 0
    assert place(300, ",".join(["vm=127.0.0.1"] * 301), 301).own_address == "127.0.1.52"


def test_one_node_keeps_to_the_loopback_wherever_it_is() -> None:
    alone = place(0, "n1=10.0.0.1", 1)
    assert (alone.head, alone.own_address) == ("127.0.0.1:29500", "127.0.0.1")
    assert alone.variables({})["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"


def test_memory_of_the_plan_is_split_between_objects_and_code() -> None:
    options = place(0, SITE, 2, f"--memory={100 << 30}", "--num-cpus=1").options()
    numbers = {key: int(value) for key, _, value in (option.partition("=") for option in options) if "memory" in key}
    assert sum(numbers.values()) == 100 << 30
    assert numbers["--object-store-memory"] <= 30 << 30


def test_all_nodes_of_an_attempt_share_a_token_that_no_other_attempt_has() -> None:
    tokens: list[Any] = [place(rank).variables({})["RAY_AUTH_TOKEN"] for rank in (0, 1)]
    later = place(0, WINDLASS_ATTEMPT="3").variables({})["RAY_AUTH_TOKEN"]
    assert tokens[0] == tokens[1] != later
    assert "secret" not in tokens[0]


def test_what_the_user_says_about_authentication_stays() -> None:
    variables = place().variables({"RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": "auto", "HF_TOKEN": "x"})
    assert variables == {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "HF_TOKEN": "x"}
    assert "RAY_AUTH_TOKEN" not in place().variables({"RAY_AUTH_TOKEN_PATH": "/p"})


def test_cpus_are_those_of_the_allocation_where_the_plan_does_not_know() -> None:
    assert count_cpus({"SLURM_CPUS_ON_NODE": "32"}, 1) == 32
    assert count_cpus({"SLURM_CPUS_ON_NODE": "3"}, 2) == 1
    assert count_cpus({}, 10_000) == 1
    assert place(SLURM_CPUS_ON_NODE="72").num_cpus == 72


def test_replicas_are_named_with_their_hosts() -> None:
    assert place().name(1) == "replica 1 (n2)"
    assert place(hosts="").name(1) == "replica 1"
    assert place(1, hosts="").own_address == ""
    assert place().folder == Path("/tmp/wl-1")
