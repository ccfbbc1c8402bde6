"""Clusters: three hosts that ssh reaches to one Ray, beside `ray start` over ssh and beside Ray's own launcher.

`python benches/bench_cluster.py [ROUNDS]`, as root, with Ray in this environment. The hosts are network namespaces of this machine
(`make lab`). Rounds alternate, and each way begins on hosts without Ray; the first round also copies our zipapp. By hand: `ray start
--head` on one host, then `ray start` on two at once, each over a new ssh connection; the time ends when the last returns. Ray's launcher
(`ray up`, provider `local`): until three nodes are in Ray's table.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.lab.hosts import Hosts
from tests.lab.slots import claim, dismantle

GOAL_HAND, GOAL_AGAIN_S = 1.2, 2.0
RAY = str(Path(sys.executable).with_name("ray"))
STORE = 80_000_000
LAUNCHER_STATE = Path("/tmp/ray/cluster-bench.state")
COUNT = """
import sys, time
from ray._raylet import GcsClient
client = GcsClient(address=sys.argv[1])
while sum(node.state == 0 for node in client.get_all_node_info(timeout=5).values()) < 3:
    time.sleep(0.05)
"""


class Bench:
    """Three hosts, and the ways to make one Ray of them."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self.env = {
            **os.environ,
            "WINDLASS_HOME": str(folder / "home"),
            "WINDLASS_SSH_CONFIG": str(hosts.ssh_config),
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self.file = folder / "cluster.yaml"
        node = f"resources: {{CPU: 2, object_store_memory: {STORE}}}"
        self.file.write_text(
            f"name: bench\nplace: {{ssh: {{hosts: [h1, h2, h3]}}}}\npython: {sys.executable}\n"
            f"head: {{{node}}}\ngroups: {{workers: {{count: 2, {node}}}}}\n"
        )

    def windlass(self, verb: str, *more: str) -> float:
        """Return the seconds of a command of windlass."""
        argv = [sys.executable, "-m", "windlass", "cluster", verb, *more]
        return self._timed(lambda: subprocess.run(argv, env=self.env, check=True, capture_output=True))

    def by_hand(self) -> float:
        """Return the seconds of `ray start` on all hosts over ssh."""

        def start() -> None:
            head = f"{self.hosts.ip('h1')}:6379"
            self._ssh("h1", "--head --port=6379 --include-dashboard=false").wait()
            running = [self._ssh(name, f"--address={head}") for name in ("h2", "h3")]
            codes = [each.wait() for each in running]
            assert codes == [0, 0], codes

        return self._timed(start)

    def _ssh(self, host: str, options: str) -> subprocess.Popen[bytes]:
        line = (
            f"RAY_AUTH_MODE=disabled RAY_USAGE_STATS_ENABLED=0 {RAY} start {options} --num-cpus=2 "
            f"--node-ip-address={self.hosts.ip(host)} --object-store-memory={STORE} --temp-dir=/tmp/by-hand-{host}"
        )
        argv = ["ssh", "-F", str(self.hosts.ssh_config), host, line]
        return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def launcher(self) -> float:
        """Return the seconds of `ray up`, until three nodes are in Ray's table."""
        ips = [self.hosts.ip(name) for name in self.hosts.names]
        start = (
            f"RAY_AUTH_MODE=disabled RAY_enable_autoscaler_v2=0 {RAY} start --num-cpus=2 --object-store-memory={STORE}"
        )
        LAUNCHER_STATE.unlink(missing_ok=True)  # with it, Ray's launcher would not copy again what `stop_ray` removes
        file = self.folder / "ray.yaml"
        file.write_text(
            f"cluster_name: bench\nprovider: {{type: local, head_ip: {ips[0]}, worker_ips: [{ips[1]}, {ips[2]}]}}\n"
            f"auth: {{ssh_user: root, ssh_private_key: {self.hosts.identity}}}\n"
            f"head_start_ray_commands:\n  - {start} --head --port=6379 --autoscaling-config=~/ray_bootstrap_config.yaml\n"
            f"worker_start_ray_commands:\n  - {start} --address=$RAY_HEAD_IP:6379\n"
        )

        def up() -> None:
            argv = [RAY, "up", "-y", "--no-config-cache", str(file)]
            subprocess.run(argv, env=self.env, check=True, capture_output=True)
            self.hosts.run("h1", [sys.executable, "-c", COUNT, f"{ips[0]}:6379"], env=self.env)

        return self._timed(up)

    def stop_ray(self) -> None:
        """End every Ray on the hosts, by a power cut of each."""
        for name in self.hosts.names:
            self.hosts.kill(name)
            self.hosts.start(name)
            self.hosts.run(name, ["sh", "-c", "rm -rf ~/ray_bootstrap* /tmp/by-hand-$HOSTNAME /tmp/ray"])

    def _timed(self, do: Callable[[], object]) -> float:
        began_s = time.perf_counter()
        do()
        return time.perf_counter() - began_s


def main() -> int:
    """Print the table; 1 if a goal is missed."""
    num_rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    found: dict[str, list[float]] = {"windlass": [], "again": [], "down": [], "by hand": [], "ray up": []}
    slot = claim(f"bench-of-{os.getpid()}")
    try:
        with tempfile.TemporaryDirectory(prefix="windlass-bench-") as name:
            hosts = Hosts(slot, ("h1", "h2", "h3"), own=("/dev/shm", "/tmp"))
            hosts.up()
            bench = Bench(hosts, Path(name))
            for _ in range(num_rounds):
                found["windlass"].append(bench.windlass("up", str(bench.file), "--yes"))
                found["again"].append(bench.windlass("up", str(bench.file), "--yes"))
                found["down"].append(bench.windlass("down", "bench", "--yes"))
                found["by hand"].append(bench.by_hand())
                bench.stop_ray()
                found["ray up"].append(bench.launcher())
                bench.stop_ray()
                last = ", ".join(f"{key} {values[-1]:.2f}" for key, values in found.items())
                print(f"{last}; load {os.getloadavg()[0]:.1f}", flush=True)
    finally:
        dismantle(slot)
    median = {key: statistics.median(values) for key, values in found.items()}
    for key, values in found.items():
        print(f"{key:<10}{median[key]:8.2f} s   ({', '.join(f'{each:.2f}' for each in values)})")
    hand, launcher = median["windlass"] / median["by hand"], median["windlass"] / median["ray up"]
    print(f"windlass / by hand {hand:.2f} (goal {GOAL_HAND}), / ray up {launcher:.2f} (goal 1)")
    print(f"a second `up` without change {median['again']:.2f} s (goal {GOAL_AGAIN_S})")
    return 0 if hand <= GOAL_HAND and launcher < 1 and median["again"] < GOAL_AGAIN_S else 1


if __name__ == "__main__":
    sys.exit(main())
