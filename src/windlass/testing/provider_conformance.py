"""Conformance tests for providers of machines: subclass `ProviderConformance` and define `open_bench`.

class TestMyCloud(ProviderConformance):
    @contextmanager
    def open_bench(self, folder: Path) -> Iterator[ProviderBench]:
        yield ProviderBench(MyCloud(), config, cluster="lab-1", faults=my_faults)

Every bench is ended by the suite itself: its machines are terminated, and the provider lists none.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from windlass.cluster.config import HEAD, ClusterConfig
from windlass.cluster.machine import Choice, Machine
from windlass.cluster.providers.protocol import (
    CreateRequest,
    NoCapacityError,
    Provider,
    ProviderError,
    RefusedError,
    ThrottledError,
    UncertainError,
)
from windlass.core.clock import Clock, SystemClock

__all__ = ["ProviderBench", "ProviderConformance"]

_LIMIT_S = 300.0
_POLL_S = 0.2


class ProviderBench:
    """An open provider, with what the suite may do to it.

    Args:
        config: a cluster's file with a group `workers`.
        cluster: id of the cluster, new for each bench.
        faults: a context in which every request to create has a fault: `lost-reply` (it is carried out), `dropped` (it
            is not), `no-capacity`, `throttled` or `refused`.
        cut: ends a machine as its provider would, without a request.
        boot: script with which a machine ends itself at a time, where the provider itself does not see to it.
        unknown_id: id that no machine ever had.
    """

    def __init__(
        self,
        provider: Provider,
        config: ClusterConfig,
        *,
        cluster: str,
        clock: Clock | None = None,
        faults: Callable[[str], AbstractContextManager[None]] | None = None,
        cut: Callable[[str], None] | None = None,
        boot: Callable[[float], bytes] = lambda at: b"",
        unknown_id: str = "unknown",
    ) -> None:
        self.provider, self.config, self.cluster = provider, config, cluster
        self.clock = clock or SystemClock()
        self.faults, self.cut, self.boot, self.unknown_id = faults, cut, boot, unknown_id
        self.is_uncertain = False  # whether a machine may exist that no reply named

    def request(self, count: int = 1, **fields: Any) -> CreateRequest:
        """Return a request with a token of its own, of the first kind that is not in use."""
        used = {machine.choice for machine in self.listed()}
        choices = self.provider.choices(self.config, "workers")
        choice = next((each for each in choices if not (each.most and each in used)), choices[0])
        fields = {
            "token": secrets.token_hex(8),
            "cluster": self.cluster,
            "group": "workers",
            "choice": choice,
            **fields,
        }
        return CreateRequest(count=count, **fields)

    def listed(self) -> list[Machine]:
        """Return what the provider lists, asking again while the list may be incomplete."""
        end_s = self.clock.monotonic() + _LIMIT_S
        while True:
            try:
                return list(self.provider.list_machines(self.cluster))
            except (UncertainError, ThrottledError):
                assert self.clock.monotonic() < end_s, "no list"
            self.clock.sleep(_POLL_S)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition."""
        end_s = self.clock.monotonic() + _LIMIT_S
        while not condition():
            assert self.clock.monotonic() < end_s, f"waited {_LIMIT_S:g} s for {what}"
            self.clock.sleep(_POLL_S)

    def wait_window(self) -> None:
        """Wait for as long as lists may lag behind."""
        self.clock.sleep(self.provider.window_s)

    def wait_listed(self, ids: Sequence[str]) -> None:
        """Wait until machines are listed; a list that is asked for after the provider's window must show them."""
        end_s = self.clock.monotonic() + self.provider.window_s
        while True:
            began_s = self.clock.monotonic()
            listed = {machine.id for machine in self.listed()}
            if listed >= set(ids):
                return
            assert began_s <= end_s, f"not listed after the window of {self.provider.window_s:g} s: {ids}"
            self.clock.sleep(_POLL_S)

    def wait_ended(self, ids: Sequence[str]) -> None:
        """Wait until the provider lists none of some machines."""
        self.until(lambda: not {machine.id for machine in self.listed()} & set(ids), f"the end of {ids}")

    def wait_running(self, ids: Sequence[str]) -> list[Machine]:
        """Wait until machines run; return them."""
        found: list[Machine] = []

        def are_running() -> bool:
            found[:] = [machine for machine in self.listed() if machine.id in ids]
            return len(found) == len(ids) and all(machine.state == "running" for machine in found)

        self.until(are_running, f"{ids} to run")
        return found

    def close(self) -> None:
        """End all machines of the bench."""

        def are_gone() -> bool:
            machines = [machine.id for machine in self.listed() if machine.state != "ending"]
            try:
                self.provider.terminate(machines)
            except (UncertainError, ThrottledError):
                return False
            return not self.listed()

        if self.is_uncertain:
            self.wait_window()
        self.until(are_gone, "the end of all machines")


class ProviderConformance:
    """Conformance suite for providers of machines.

    Class attributes state what a bench can do; other tests are left out.
    """

    can_fail: ClassVar[bool] = True
    """The bench has `faults`."""
    can_cut: ClassVar[bool] = True
    """The bench has `cut`."""
    is_rented: ClassVar[bool] = True
    """Machines are made and ended; a request may ask for several, and for a deadline."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cannot = {
            "test_a_lost_reply_is_found_by_its_token": not cls.can_fail,
            "test_a_dropped_request_made_nothing": not cls.can_fail,
            "test_without_capacity_nothing_is_made": not cls.can_fail,
            "test_too_many_requests_say_how_long_to_wait": not cls.can_fail,
            "test_a_refusal_makes_nothing": not cls.can_fail,
            "test_a_machine_that_is_taken_away_is_not_listed": not cls.can_cut,
            "test_several_machines_are_made_by_one_request": not cls.is_rented,
            "test_a_deadline_ends_a_machine_by_itself": not cls.is_rented,
            "test_machines_have_tags": not cls.is_rented,
        }
        for test in (name for name, is_left_out in cannot.items() if is_left_out):
            getattr(ProviderConformance, test)  # a test that was renamed is an error here
            setattr(cls, test, None)

    def open_bench(self, folder: Path) -> AbstractContextManager[ProviderBench]:
        """Return a new bench; each subclass defines it."""
        raise AssertionError(f"{type(self).__name__} opens no bench")

    @contextmanager
    def bench(self, folder: Path) -> Iterator[ProviderBench]:
        """Yield an open bench, and end its machines afterwards."""
        with self.open_bench(folder) as found:
            assert found.provider.is_rented == self.is_rented
            try:
                yield found
            finally:
                found.close()

    # ------------------------------------------------------------------------------------------------- what there is

    def test_a_place_without_problems_makes_nothing(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            assert list(bench.provider.check(bench.config)) == []
            for group in (HEAD, "workers"):
                choices = bench.provider.choices(bench.config, group)
                assert 0 < len(set(choices)) == len(choices)
            assert bench.listed() == []
            assert list(bench.provider.find("unknown")) == []

    def test_a_machine_is_listed_found_and_described(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            before = bench.clock.now()
            request = bench.request()
            (made,) = bench.provider.create(request)
            bench.wait_listed([made.id])
            (running,) = bench.wait_running([made.id])
            (described,) = bench.provider.describe([made.id])
            for seen in (made, running, described, *bench.provider.find(request.token)):
                assert (seen.id, seen.token, seen.group) == (made.id, request.token, "workers")
                assert seen.choice.type == request.choice.type
                assert before - 5.0 <= seen.born_at <= bench.clock.now() + 5.0
                assert seen.ended_at is None
            assert running.address

    def test_another_cluster_sees_nothing_of_it(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            (made,) = bench.provider.create(bench.request())
            bench.wait_listed([made.id])
            assert list(bench.provider.list_machines(f"{bench.cluster}-other")) == []
            bench.listed()  # a provider may keep the cluster that was last asked for

    def test_machines_have_tags(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            request = bench.request()
            bench.provider.create(request)
            (found,) = self._settled(bench, request)
            expected = {
                "windlass-cluster": bench.cluster,
                "windlass-group": "workers",
                "windlass-token": request.token,
            }
            assert {name: found.tags.get(name) for name in expected} == expected

    # --------------------------------------------------------------------------------------------------- all or none

    def test_a_token_makes_machines_once(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            request = bench.request()
            first, second = bench.provider.create(request), bench.provider.create(request)
            assert [each.id for each in first] == [each.id for each in second]
            bench.wait_window()
            assert [each.id for each in bench.listed()] == [each.id for each in first]

    def test_a_token_makes_machines_once_at_the_same_time(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            request = bench.request()
            bench.is_uncertain = True
            with ThreadPoolExecutor(4) as pool:
                asked = [pool.submit(bench.provider.create, request) for _ in range(4)]
                answers = [_outcome(each.result) for each in asked]
            ids = {machine.id for answer in answers if not isinstance(answer, ProviderError) for machine in answer}
            errors = [answer for answer in answers if isinstance(answer, ProviderError)]
            assert all(isinstance(error, ThrottledError | UncertainError) for error in errors), errors
            assert len(ids) == 1
            bench.wait_window()
            assert {machine.id for machine in bench.listed()} == ids

    def test_several_machines_are_made_by_one_request(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            request = bench.request(3)
            made = bench.provider.create(request)
            ids = {machine.id for machine in made}
            assert len(ids) == 3
            bench.wait_listed(sorted(ids))
            addresses = {machine.address for machine in bench.wait_running(sorted(ids))}
            assert len(addresses) == 3
            assert {machine.id for machine in bench.provider.find(request.token)} == ids
            assert {machine.id for machine in bench.provider.describe(sorted(ids))} == ids

    def test_a_lost_reply_is_found_by_its_token(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            request = bench.request()
            with _faults(bench, "lost-reply"):
                assert isinstance(_outcome(lambda: bench.provider.create(request)), UncertainError)
            (found,) = self._settled(bench, request)
            assert [each.id for each in bench.provider.create(request)] == [found.id]
            assert [each.id for each in bench.listed()] == [found.id]

    def test_a_dropped_request_made_nothing(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            request = bench.request()
            with _faults(bench, "dropped"):
                assert isinstance(_outcome(lambda: bench.provider.create(request)), UncertainError)
            assert self._settled(bench, request) == []
            assert bench.listed() == []
            (made,) = bench.provider.create(request)
            bench.wait_listed([made.id])

    def test_without_capacity_nothing_is_made(self, tmp_path: Path) -> None:
        assert isinstance(self._failure(tmp_path, "no-capacity"), NoCapacityError)

    def test_too_many_requests_say_how_long_to_wait(self, tmp_path: Path) -> None:
        error = self._failure(tmp_path, "throttled")
        assert isinstance(error, ThrottledError)
        assert 0 < error.after_s < _LIMIT_S

    def test_a_refusal_makes_nothing(self, tmp_path: Path) -> None:
        assert isinstance(self._failure(tmp_path, "refused"), RefusedError)

    def test_an_unknown_kind_is_an_error_of_the_protocol(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            request = bench.request(choice=Choice(type="no-such-type", zone="no-such-zone"))
            bench.is_uncertain = True
            answer = _outcome(lambda: bench.provider.create(request))
            if isinstance(answer, ProviderError):
                assert isinstance(answer, NoCapacityError | RefusedError)
                assert answer.message
                assert self._settled(bench, request) == []

    # -------------------------------------------------------------------------------------------------------- the end

    def test_the_end_of_a_machine_is_final(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            request = bench.request()
            (made,) = bench.provider.create(request)
            bench.wait_listed([made.id])
            for _ in range(2):
                bench.provider.terminate([made.id])
            bench.wait_ended([made.id])
            bench.provider.terminate([made.id])
            bench.wait_window()
            assert bench.listed() == []
            self._check_ended(bench, made, [*bench.provider.describe([made.id]), *bench.provider.find(request.token)])

    def test_machines_that_never_were_count_as_ended(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            (made,) = bench.provider.create(bench.request())
            bench.wait_listed([made.id])
            bench.provider.terminate([])
            bench.provider.terminate([bench.unknown_id])
            described = bench.provider.describe([bench.unknown_id, made.id])
            assert [each.state for each in described if each.id == bench.unknown_id] in ([], ["ended"])
            assert [each.id for each in described if each.state != "ended"] == [made.id]
            bench.provider.terminate([bench.unknown_id, made.id])
            bench.wait_ended([made.id])

    def test_a_machine_that_is_taken_away_is_not_listed(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            request = bench.request()
            (made,) = bench.provider.create(request)
            bench.wait_running([made.id])
            assert bench.cut is not None
            bench.cut(made.id)
            bench.wait_ended([made.id])
            self._check_ended(bench, made, bench.provider.describe([made.id]))

    def test_a_deadline_ends_a_machine_by_itself(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            deadline_at = bench.clock.now() + 6.0
            (made,) = bench.provider.create(bench.request(deadline_at=deadline_at, boot=bench.boot(deadline_at)))
            bench.until(lambda: self._is_known(bench, made.id), "the machine to be listed, unless it has ended already")
            bench.wait_ended([made.id])
            described = bench.provider.describe([made.id])
            self._check_ended(bench, made, described)
            assert all(deadline_at - 1.5 <= (each.ended_at or 0.0) <= deadline_at + 60.0 for each in described)

    # ------------------------------------------------------------------------------------------------------- private

    def _settled(self, bench: ProviderBench, request: CreateRequest) -> list[Machine]:
        """Return what came of a request, once the window has passed."""
        bench.wait_window()
        return list(bench.provider.find(request.token))

    def _failure(self, folder: Path, fault: str) -> ProviderError:
        """Return the error of a request with a fault, which made nothing and may be made again."""
        with self.bench(folder) as bench:
            request = bench.request()
            with _faults(bench, fault):
                error = _outcome(lambda: bench.provider.create(request))
            assert isinstance(error, ProviderError), error
            assert error.message
            assert self._settled(bench, request) == []
            assert bench.listed() == []
            (made,) = bench.provider.create(request)
            bench.wait_listed([made.id])
        return error

    def _is_known(self, bench: ProviderBench, machine: str) -> bool:
        """Return whether a machine is listed, or described as ended."""
        described = bench.provider.describe([machine])
        return machine in {each.id for each in bench.listed()} or any(each.state == "ended" for each in described)

    def _check_ended(self, bench: ProviderBench, made: Machine, seen: Sequence[Machine]) -> None:
        """Check what a provider that still knows a machine says of its end."""
        for each in seen:
            assert each.id == made.id
            assert each.state == "ended"
            assert each.why
            assert each.ended_at is not None
            assert made.born_at <= each.ended_at <= bench.clock.now() + 5.0


def _faults(bench: ProviderBench, kind: str) -> AbstractContextManager[None]:
    assert bench.faults is not None
    bench.is_uncertain = True
    return bench.faults(kind)


def _outcome(do: Callable[[], Sequence[Machine]]) -> Sequence[Machine] | ProviderError:
    try:
        return do()
    except ProviderError as error:
        return error
