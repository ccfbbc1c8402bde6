from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.tree import ROOT
from tests.lab import leaks, slots
from tests.lab.guests import inhabitants
from tests.lab.hosts import HOME, Hosts, wait_until
from tests.lab.slurm import SlurmLab

pytestmark = pytest.mark.system


def test_each_node_has_its_own_address_and_gpus(slurm: SlurmLab) -> None:
    said = slurm.command("srun", "-N4", "--gres=gpu:2", "sh", "-c", "echo $(hostname -I) $CUDA_VISIBLE_DEVICES")
    assert sorted(said.splitlines()) == [f"{slurm.ip(node)} 0,1" for node in slurm.nodes]
    slurm.expect_empty_queue()


def test_a_killed_node_is_back_after_its_start(slurm: SlurmLab) -> None:
    slurm.run("n2", ["touch", "/dev/shm/volatile"])
    slurm.kill("n2")
    assert not slurm.hosts.is_up("n2")
    assert not slurm.is_whole()
    slurm.start("n2")
    slurm.wait_until_idle()
    assert slurm.command("srun", "-w", "n2", "sh", "-c", "hostname -I; ls /dev/shm") == slurm.ip("n2")


def test_a_cut_node_goes_on_unseen(slurm: SlurmLab, tmp_path: Path) -> None:
    job = slurm.command(
        "sbatch", "--parsable", "-w", "n3", "-o", "/dev/null", "--wrap", f"date >{tmp_path}/began; sleep 600"
    )
    wait_until((tmp_path / "began").exists, "the job to begin")
    knock = ["bash", "-c", f"exec 3<>/dev/tcp/{slurm.ip('n3')}/22"]
    slurm.run("n1", knock)
    slurm.cut("n3")
    assert slurm.hosts.is_cut("n3")
    assert slurm.run("n1", ["timeout", "1", *knock], check=False).code != 0
    assert slurm.state(job) == "RUNNING"
    assert inhabitants(slurm.slot).guests
    slurm.join("n3")
    slurm.run("n1", knock)  # whose first question for the address may go unanswered for a second
    slurm.command("scancel", job)
    assert slurm.wait_for_state(job) == "CANCELLED"


def test_a_killed_controller_comes_back(slurm: SlurmLab) -> None:
    slurm.kill_controller()
    assert "is DOWN" in slurm.command("scontrol", "ping", check=False)
    slurm.start_controller()
    slurm.heal()
    assert slurm.command("srun", "-w", "n1", "hostname") == "n1"


def test_numbers_that_a_killed_controller_forgot_are_not_given_again(slurm: SlurmLab) -> None:
    slurm.wait_until_remembered()
    forgotten = int(slurm.command("sbatch", "--parsable", "--nodes=1", "--output=/dev/null", "--wrap=sleep 600"))
    slurm.kill_controller()
    slurm.start_controller()
    slurm.heal()
    assert int(slurm.command("sbatch", "--parsable", "--output=/dev/null", "--wrap=true")) > forgotten
    slurm.heal()
    assert slurm.is_whole()


def test_two_labs_are_up_at_once(slurm: SlurmLab, slurm_accounting: SlurmLab) -> None:
    assert slurm.ip("n1") != slurm_accounting.ip("n1")
    for lab in (slurm, slurm_accounting):
        assert lab.command("srun", "-w", "n1", "hostname", "-I") == lab.ip("n1")


def test_the_login_host_submits_and_sees_the_same_files(slurm: SlurmLab, tmp_path: Path) -> None:
    command = f"cd {tmp_path} && srun -w n4 sh -c 'hostname >written'"
    subprocess.run(["ssh", "-F", str(slurm.hosts.ssh_config), "login", command], check=True)
    assert (tmp_path / "written").read_text() == "n4\n"


def test_hosts_have_their_own_home_and_know_each_other(hosts: Hosts) -> None:
    ssh = ["ssh", "-F", str(hosts.ssh_config)]
    subprocess.run([*ssh, "h1", "echo mine >~/lab-file"], check=True)
    assert subprocess.run([*ssh, "h2", "test -e ~/lab-file"]).returncode == 1
    assert not (Path.home() / "lab-file").exists()
    assert hosts.run("h1", ["sh", "-c", "ls ~/.bashrc ~/.profile 2>/dev/null; true"]).stdout == "", "no start-up files"
    assert hosts.run("h1", ["getent", "hosts", "h2"]).stdout.split() == [hosts.ip("h2"), "h2"]


def test_a_job_that_outlives_its_test_is_named_and_removed(slurm: SlurmLab, tmp_path: Path) -> None:
    left: list[str] = []

    def leave_a_job() -> None:
        line = f"date >{tmp_path}/began; sleep 4321"
        argv = ["--parsable", "--export=NIL", "-J", "left", "-o", "/dev/null", "--wrap", line]
        left.append(slurm.command("sbatch", *argv))
        wait_until((tmp_path / "began").exists, "the job to begin")

    named = r"(?s)sleep 4321.*Slurm job \d+ in slurm-of-\d+: RUNNING left"
    with pytest.raises(leaks.LeakError, match=named), leaks.watch(tmp_path, grace_s=1):
        leave_a_job()
    assert slurm.state(left[0]) == "CANCELLED"
    assert slurm.is_whole()


def test_a_process_in_a_host_that_outlives_its_test_is_named_and_removed(hosts: Hosts, tmp_path: Path) -> None:
    named = r"sleep 4322"
    with pytest.raises(leaks.LeakError, match=named), leaks.watch(tmp_path, grace_s=0.2):
        subprocess.run(
            ["ssh", "-F", str(hosts.ssh_config), "h2", "setsid sleep 4322 >/dev/null 2>&1 </dev/null &"], check=True
        )
    assert not inhabitants(hosts.slot).guests


def test_a_killed_controller_and_node_are_no_leak(slurm: SlurmLab, tmp_path: Path) -> None:
    with leaks.watch(tmp_path, grace_s=1):
        slurm.kill_controller()
        slurm.kill("n1")
    assert slurm.is_whole()


CLAIM = (
    "import sys, time; from tests.lab.slots import claim; print(claim(sys.argv[1]).folder, flush=True); time.sleep(600)"
)


def test_the_lab_of_a_killed_process_is_taken_down_by_the_next_claim() -> None:
    child = subprocess.Popen([sys.executable, "-c", CLAIM, "doomed"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    folder = Path(child.stdout.readline().strip())
    assert "doomed" in {slot.name for slot in slots.claimed()}
    child.kill()
    child.wait()
    child.stdout.close()
    slot = slots.claim("heir")
    try:
        assert "doomed" not in {slot.name for slot in slots.claimed()}
        assert slot.folder == folder
    finally:
        slots.dismantle(slot)


def test_a_host_may_have_its_own_tmp(need: Callable[[str], None], tmp_path: Path) -> None:
    need("ssh")
    slot = slots.claim("own-tmp")
    try:
        alone = Hosts(slot, ("a",), own=("/tmp", "/dev/shm"))
        alone.up()
        assert alone.run("a", ["ls", "/tmp"]).stdout == ""
    finally:
        slots.dismantle(slot)


@pytest.mark.parametrize("above", ["/tmp", str(HOME)])
def test_what_is_shared_is_seen_below_a_folder_that_is_each_hosts_own(
    need: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, above: str
) -> None:
    """A clone of this repository, with its interpreter, may be below /tmp."""
    need("ssh")
    slot = slots.claim(f"shared-below-{Path(above).name}")
    with tempfile.TemporaryDirectory(dir=above, prefix="windlass-shared-") as clone:
        monkeypatch.setattr("tests.lab.hosts.SHARED", (Path(clone),))
        try:
            alone = Hosts(slot, ("a", "b"), own=("/tmp", "/dev/shm"))
            alone.up()
            alone.run("a", ["sh", "-c", f"echo shared > {clone}/file; echo mine > {above}/windlass-own"])
            assert alone.run("b", ["cat", f"{clone}/file"]).stdout == "shared\n"
            assert not (Path(above) / "windlass-own").exists()
        finally:
            slots.dismantle(slot)


def test_a_name_is_taken_once() -> None:
    slot = slots.claim("once")
    try:
        with pytest.raises(ValueError, match="a lab named once is up already"):
            slots.claim("once")
    finally:
        slots.dismantle(slot)
    with pytest.raises(KeyError, match="no lab named once is up"):
        slots.find("once")


@pytest.mark.parametrize("name", ["hosts", "slurm"])
def test_a_lab_asked_for_by_name_is_known_to_be_used(request: pytest.FixtureRequest, name: str) -> None:
    request.getfixturevalue(name)
    assert name in request.fixturenames  # conftest's leak watch looks here, after the test
