"""The service against the fake Beaker, by the genuine client: what goes wrong, and what must not happen then."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import certifi
import pytest

from tests.backends.beaker.sample_jobs import plain_spec
from windlass.backends.beaker import client, experiments
from windlass.backends.beaker.account import BeakerAccount, read_account
from windlass.backends.beaker.service import BeakerService
from windlass.backends.beaker.submit import check_secrets
from windlass.core.errors import AccessError, NotFoundError, PreconditionError, UnreachableError, UsageError
from windlass.testing.beaker import FakeBeaker, Status

pytestmark = pytest.mark.system

_SOON_S = 10.0
"""A server that is not there is named within so long; a promise, not a measurement."""


def test_an_experiment_is_made_as_it_is(beaker: FakeBeaker, service: BeakerService) -> None:
    made = service.create(plain_spec("exit 0"), name="first")
    assert (made.name, made.url) == ("first", f"{beaker.address}/ex/{made.id}")
    beaker.wait(made.id)
    assert service.spec(made.id)["tasks"][0]["command"] == ["/bin/sh", "-c", "exit 0"]
    found = service.find("lab/main", "first")
    assert found == made
    assert service.find("lab/main", "second") is None
    assert service.get("me/first").status == "succeeded"


@pytest.mark.parametrize("how", ["drop", "hang"])
def test_a_lost_reply_makes_one_experiment(
    beaker: FakeBeaker, service: BeakerService, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(experiments, "_POST_S", 1.0)
    beaker.scenario.lose_next_reply("CreateExperiment", how=how)  # type: ignore[arg-type]
    made = service.create(plain_spec("exit 0"), name="once")
    assert [experiment.id for experiment in beaker.experiments] == [made.id]


def test_a_lost_reply_of_an_experiment_without_a_name_makes_one(beaker: FakeBeaker, service: BeakerService) -> None:
    beaker.scenario.lose_next_reply("CreateExperiment", times=2)
    made = service.create(plain_spec("exit 0"))
    assert [experiment.id for experiment in beaker.experiments] == [made.id]
    assert made.name.startswith("main-")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_fails_is_asked_again(beaker: FakeBeaker, service: BeakerService, status: int) -> None:
    beaker.scenario.refuse("CreateExperiment", "out of breath", status=status)
    made = service.create(plain_spec("exit 0"), name="again")
    assert [experiment.id for experiment in beaker.experiments] == [made.id]


def test_a_refused_spec_is_told_in_beakers_words(beaker: FakeBeaker, service: BeakerService) -> None:
    spec = plain_spec("exit 0", image={"beaker": "me/nowhere"})
    with pytest.raises(PreconditionError) as caught:
        service.create(spec, name="refused")
    assert caught.value.code == "beaker-refused"
    assert caught.value.message.startswith("Beaker rejected the request, creating experiment `refused`: invalid spec: ")
    assert beaker.experiments == []
    assert beaker.calls["CreateExperiment"] == 1


def test_a_name_that_is_taken_is_an_error(beaker: FakeBeaker, service: BeakerService) -> None:
    made = service.create(plain_spec("exit 0"), name="mine")
    with pytest.raises(PreconditionError) as caught:
        service.create(plain_spec("exit 0"), name="mine")
    assert (caught.value.code, caught.value.hint) == ("already-exists", "choose another name: --name NAME")
    assert service.create(plain_spec("exit 0"), name="mine", is_mine=True) == made
    with pytest.raises(PreconditionError) as caught:
        service.create(plain_spec("exit 1"), name="mine", is_mine=True)
    assert caught.value.message == (
        f"the name `mine` is taken at Beaker by experiment {made.id}, which runs other work"
    )
    assert len(beaker.experiments) == 1


def test_a_name_that_is_taken_is_no_lost_reply(beaker: FakeBeaker, service: BeakerService) -> None:
    service.create(plain_spec("exit 0"), name="mine")
    beaker.scenario.lose_next_reply("CreateExperiment")
    with pytest.raises(PreconditionError, match="runs other work"):
        service.create(plain_spec("exit 1"), name="mine")


def test_an_expired_token_is_named(beaker: FakeBeaker, service: BeakerService) -> None:
    service.user()
    workspace = service.workspace().id
    beaker.scenario.expire_token()
    for ask in (service.secrets, lambda: service.create(plain_spec("exit 0"), workspace=workspace)):
        with pytest.raises(AccessError) as caught:
            ask()
        assert caught.value.code == "beaker-token"
        assert caught.value.message.startswith("Beaker rejected the token, ")
        assert "export BEAKER_TOKEN=" in caught.value.hint
    assert beaker.experiments == []


def test_a_wrong_token_is_named_at_the_first_question(beaker: FakeBeaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEAKER_TOKEN", "wrong")
    with pytest.raises(AccessError, match="rejected the token, looking up the user of the token"):
        BeakerService().user()


def test_a_missing_right_is_named(beaker: FakeBeaker, service: BeakerService) -> None:
    beaker.scenario.refuse("ListSecrets", "you may not", status=403)
    with pytest.raises(AccessError) as caught:
        service.secrets()
    assert caught.value.code == "beaker-forbidden"
    assert caught.value.message == ("Beaker denied access, listing the secrets of the default workspace: you may not")


def test_a_dead_server_is_named_soon(beaker: FakeBeaker) -> None:
    beaker.stop()
    account = read_account()
    began_at = time.monotonic()
    with pytest.raises(UnreachableError) as caught:
        BeakerService(account).user()
    assert time.monotonic() - began_at < _SOON_S
    assert caught.value.code == "beaker-unreachable"
    assert caught.value.message.startswith(f"cannot connect to Beaker at {beaker.rpc_address}: ")


def test_a_server_that_dies_is_named_soon_on_either_way(
    beaker: FakeBeaker, service: BeakerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.PATIENCE_S < client.CONNECT_S < _SOON_S
    monkeypatch.setattr(client, "PATIENCE_S", 1.0)
    workspace = service.workspace().id
    service.user()
    beaker.stop()
    for ask in (service.secrets, lambda: service.write_secret("A", "1", workspace=workspace)):
        began_at = time.monotonic()
        with pytest.raises(UnreachableError) as caught:
            ask()
        assert time.monotonic() - began_at < _SOON_S
        assert caught.value.code == "beaker-unreachable"


def test_a_server_that_comes_back_is_used_again(beaker: FakeBeaker, service: BeakerService) -> None:
    service.user()
    beaker.stop()
    threading.Timer(1.0, beaker.start).start()
    assert service.secrets("lab/main") == ()


def test_a_program_ends_although_the_server_is_dead(beaker: FakeBeaker) -> None:
    beaker.stop()
    code = "from windlass.backends.beaker import BeakerService; BeakerService(deadline_s=5.0).user()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "UnreachableError: cannot connect to Beaker at" in done.stderr


def test_a_slow_server_is_given_up_in_time(beaker: FakeBeaker, service: BeakerService) -> None:
    service.user()
    service.deadline_s = 0.5
    beaker.scenario.delay("ListSecrets", 3.0)
    with pytest.raises(UnreachableError) as caught:
        service.secrets(service.workspace().id)
    assert caught.value.code == "beaker-unreachable"
    assert caught.value.message.startswith("Beaker did not respond within 0.5 s: listing the secrets of workspace ")


def test_many_are_looked_at_with_one_question(beaker: FakeBeaker, service: BeakerService) -> None:
    ids = [service.create(plain_spec("exit 0"), name=f"many-{number}").id for number in range(5)]
    beaker.calls.clear()
    assert set(service.observe(ids, workspace="lab/main")) == set(ids)
    assert (beaker.calls["ListWorkloads"], beaker.calls["GetWorkload"]) == (1, 0)


def test_what_beaker_does_not_know_is_left_out(service: BeakerService) -> None:
    made = service.create(plain_spec("exit 0"))
    assert set(service.observe([made.id, "01J00000000000000000000000"])) == {made.id}
    with pytest.raises(NotFoundError) as caught:
        service.get("me/nowhere")
    assert caught.value.code == "beaker-not-found"


def test_jobs_tell_rank_attempt_and_end(beaker: FakeBeaker, service: BeakerService) -> None:
    made = service.create(plain_spec("exit $BEAKER_REPLICA_RANK", replicas=3, propagateFailure=False))
    beaker.wait(made.id)
    jobs = service.jobs(made.id)
    assert [(job.rank, job.size, job.attempt, job.exit_code, job.is_leader) for job in jobs] == [
        (0, 3, 1, 0, True),
        (1, 3, 1, 1, False),
        (2, 3, 1, 2, False),
    ]
    assert all(job.is_over and job.results and job.started_ns <= job.exited_ns for job in jobs)


def test_a_preemption_makes_a_second_job(beaker: FakeBeaker, service: BeakerService) -> None:
    made = service.create(plain_spec("[ -e /results/../tmp/none ] || sleep 0.2"), name="preempted")
    beaker.scenario.preempt("preempted")
    beaker.wait(made.id)
    first, second = service.jobs(made.id)
    assert (first.attempt, first.canceled_code, first.is_over) == (1, "system_preemption", True)
    assert (second.attempt, second.exit_code, second.retry_of) == (2, 0, first.id)


def test_the_reason_of_a_slot_limit_is_the_schedulers_own(beaker: FakeBeaker, service: BeakerService) -> None:
    beaker.scenario.slot_limit("workspace lab/main uses 8 of its 8 preemptible slots")
    made = service.create(plain_spec("exit 0", replicas=2))
    beaker.wait(made.id, Status.QUEUED)
    _until(lambda: bool(service.why(made.id)[0].partition(": ")[2]))
    assert service.why(made.id) == (
        "replicas 0-1 are not scheduled: workspace lab/main uses 8 of its 8 preemptible slots",
    )
    beaker.scenario.slot_limit("")
    beaker.wait(made.id)
    assert service.why(made.id) == ()


def test_a_replica_that_never_gets_ready_is_named(beaker: FakeBeaker, service: BeakerService) -> None:
    beaker.scenario.never_ready(1)
    made = service.create(plain_spec("exit 0", replicas=2, synchronizedStartTimeout=60_000_000_000))
    _until(lambda: len(service.why(made.id)) == 2)
    waiting, unready = service.why(made.id)
    assert waiting == "replica 0 is ready, waiting for the other replicas"
    assert unready.startswith("replica 1 is scheduled and not ready: ")
    service.cancel(made.id)


def test_a_cancelled_experiment_has_ended_and_says_why(beaker: FakeBeaker, service: BeakerService) -> None:
    made = service.create(plain_spec("sleep 600", replicas=2))
    beaker.wait(made.id, Status.RUNNING)
    service.cancel(made.id, "a better idea")
    seen = service.get(made.id)
    assert (seen.status, seen.description) == ("canceled", "[cancelled: a better idea]")
    assert {job.canceled_code for job in service.jobs(made.id)} == {"manual"}
    service.cancel(made.id, "a better idea")
    assert service.get(made.id).description == "[cancelled: a better idea]"


def test_secrets_are_kept_and_their_case_counts(beaker: FakeBeaker, service: BeakerService) -> None:
    service.write_secret("HF_TOKEN", "one")
    service.write_secret("HF_TOKEN", b"two")
    assert service.secrets("lab/main") == ("HF_TOKEN",)
    spec = plain_spec("exit 0", envVars=[{"name": "A", "secret": "hf_token"}])
    with pytest.raises(AccessError) as caught:
        check_secrets(spec, service.secrets(), "lab/main")
    assert caught.value.code == "beaker-secret-missing"
    assert caught.value.message == "workspace lab/main has no secret `hf_token` (variable A)"
    assert caught.value.hint.startswith("did you mean `HF_TOKEN`: letter case matters? ")
    with pytest.raises(UsageError):
        service.write_secret("a/b", "c")


def test_workspaces_are_made_and_given_a_budget(service: BeakerService) -> None:
    made = service.create_workspace("lab/mine", description="mine", budget="lab/budget")
    assert (made.name.rpartition("/")[2], made.description) == ("mine", "mine")
    assert made.budget_id
    assert service.create_workspace("lab/mine").id == made.id
    with pytest.raises(UsageError, match="`mine` is not the full name of a workspace"):
        service.create_workspace("mine")
    with pytest.raises(NotFoundError):
        service.set_budget("lab/mine", "lab/nowhere")


def test_a_workspace_must_be_named_where_there_is_no_default(beaker: FakeBeaker) -> None:
    account = read_account()
    bare = BeakerAccount(
        token=account.token, agent_address=account.agent_address, rpc_address=account.rpc_address, default_org="lab"
    )
    with pytest.raises(UsageError) as caught:
        BeakerService(bare).secrets()
    assert caught.value.code == "beaker-workspace"


def test_only_the_replicas_that_are_wanted_are_asked_for(beaker: FakeBeaker, service: BeakerService) -> None:
    made = service.create(plain_spec("exit 0", replicas=4))
    beaker.wait(made.id)
    before = beaker.calls["ListJobs"]
    assert [job.rank for job in service.jobs(made.id, ranks=(0, 2))] == [0, 2]
    assert beaker.calls["ListJobs"] - before == 2
    assert [job.rank for job in service.jobs(made.id)] == [0, 1, 2, 3]


def test_groups_hold_experiments(service: BeakerService) -> None:
    ids = [service.create(plain_spec("exit 0")).id for _ in range(2)]
    first = service.add_to_group("sweep", ids[:1])
    assert service.add_to_group("sweep", ids[1:]).id == first.id
    assert service.add_to_group("me/sweep", ids).id == first.id
    assert [group.name for group in service.groups()] == ["me/sweep"]
    with pytest.raises(NotFoundError, match="no group `you/sweep`"):
        service.add_to_group("you/sweep", ids)


def test_an_image_is_known_by_its_digest(beaker: FakeBeaker, service: BeakerService) -> None:
    beaker.add_image("mine", docker_id="sha256:1234")
    seen = service.image("me/mine")
    assert (seen.docker_id, seen.is_committed) == ("sha256:1234", True)
    with pytest.raises(NotFoundError) as caught:
        service.image("mine")
    assert caught.value.hint == "write AUTHOR/NAME, such as `me/mine`"


def test_without_the_client_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "beaker", None)
    monkeypatch.delitem(sys.modules, "windlass.backends.beaker.client", raising=False)
    with pytest.raises(PreconditionError) as caught:
        BeakerService(BeakerAccount(token="t")).user()
    assert (caught.value.code, caught.value.hint) == ("extra-missing", "pip install 'windlass[beaker]'")


def test_asking_nothing_imports_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from windlass.backends.beaker.backend import BeakerBackend; "
        "from windlass.backends.beaker import BeakerService; BeakerService();"
        "sys.exit(any(name in sys.modules for name in ('grpc', 'beaker', 'requests')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0


def _until(is_so: object) -> None:
    assert callable(is_so)
    ends_at = time.monotonic() + 300.0  # hung
    while not is_so():
        assert time.monotonic() < ends_at
        time.sleep(0.05)


def test_a_lost_reply_to_a_cancel_is_asked_again(beaker: FakeBeaker, service: BeakerService) -> None:
    made = service.create(plain_spec("sleep 600"))
    beaker.scenario.lose_next_reply("CancelWorkloads")
    service.cancel(made.id)
    assert service.get(made.id).status == "canceled"


def test_authorities_that_cannot_be_read_are_named(beaker: FakeBeaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "/nowhere/roots.pem")
    with pytest.raises(PreconditionError) as caught:
        BeakerService().user()
    assert caught.value.message == (
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH names /nowhere/roots.pem, which cannot be read: No such file or directory"
    )


def test_a_server_that_is_not_trusted_is_named_soon(
    beaker: FakeBeaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", certifi.where())  # those of the public, which do not know it
    with pytest.raises(UnreachableError, match="cannot connect to Beaker at "):
        BeakerService().user()
