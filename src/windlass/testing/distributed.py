"""Run a function in several processes that form a gloo group on this machine, and raise the first error.

    def check(world: World, factor: int) -> float:
        return world.sum_on_host([world.rank * factor])[0]

    def test_sum() -> None:
        assert run_distributed_test(check, num_processes=2, args=(10,)) == [10.0, 10.0]

A new interpreter imports torch and the function's module once and forks the ranks, so that a test pays for one import
whatever its number of processes. They meet through a file, and gloo takes free ports of the loopback device.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from windlass.core.json_text import read_json

if TYPE_CHECKING:
    from windlass.train.parallel.world import World

__all__ = ["DistributedTestError", "run_distributed_test"]

_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from windlass.testing import distributed
distributed._fork_ranks(sys.argv[2])
"""
# Seconds for the other ranks to fail after the first failure: their tracebacks may be more informative.
_GRACE_S = 1.0
_POLL_S = 0.01
_LOST_PEER = "gloo/transport"


class DistributedTestError(AssertionError):
    """Error for a rank that raised, died or timed out; the message has its traceback."""


def run_distributed_test(
    func: Callable[..., Any],
    num_processes: int = 2,
    args: tuple[Any, ...] = (),
    timeout_s: float = 120.0,
) -> list[Any]:
    """Call `func(world, *args)` in each of several processes that form one gloo group.

    One thread for each process. Costs one import of torch and of the function's module; blocks until all have ended, and
    leaves no process behind, whatever happens.

    Args:
        func: defined at the top level of a module, such as the test's file.
        args: picklable arguments; the return value of `func` must be picklable too.
        timeout_s: after it all ranks are killed, and the error shows each one's stack.

    Returns:
        The return values by rank.

    Raises:
        DistributedTestError: with the traceback of the rank that failed first.
        TypeError: `func` is not at the top level of a module.
    """
    module = sys.modules.get(func.__module__)
    if "." in func.__qualname__ or "<" in func.__qualname__ or module is None:
        raise TypeError(f"{func!r} must be at the top level of a module: other processes import it by name")
    with tempfile.TemporaryDirectory(prefix="windlass-ranks-") as name:
        folder = Path(name)
        job = {
            "module": module.__name__,
            "file": getattr(module, "__file__", None),
            "func": func.__name__,
            "num_processes": num_processes,
            "timeout_s": timeout_s,
        }
        (folder / "job.json").write_text(json.dumps(job))
        (folder / "args.pickle").write_bytes(pickle.dumps(args))
        _run_launcher(folder, timeout_s)
        _raise_first_failure(folder, num_processes, timeout_s)
        return [pickle.loads((folder / f"{rank}.result").read_bytes()) for rank in range(num_processes)]  # noqa: S301 - ours


def _run_launcher(folder: Path, timeout_s: float) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    argv = [sys.executable, "-c", _START, json.dumps(sys.path), str(folder)]
    with subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL) as launcher:
        try:
            # The launcher ends its ranks in time; the rest allows for importing torch on a busy machine.
            code = launcher.wait(timeout_s + 90.0)
        except BaseException:
            launcher.kill()  # its ranks die with it: see _run_rank
            raise
    if code:
        raise DistributedTestError(f"the launcher of the ranks ended with code {code}; its error is above")


def _raise_first_failure(folder: Path, num_processes: int, timeout_s: float) -> None:
    failures = [read_json(path) for path in folder.glob("*.failure")]
    if failures:
        # A rank that lost its peer fails too, sometimes before the launcher has seen how the peer ended.
        first = min(failures, key=lambda failure: (_LOST_PEER in failure["text"], failure["time"]))
        raise DistributedTestError(f"rank {first['rank']} of {num_processes} failed:\n{first['text']}")
    missing = [rank for rank in range(num_processes) if not (folder / f"{rank}.result").exists()]
    if missing:
        stacks = "\n".join(f"rank {rank} was at:\n{_read(folder / f'{rank}.stack')}" for rank in missing)
        raise DistributedTestError(f"ranks {missing} did not end within {timeout_s:g} s, or were killed\n{stacks}")


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


# ------------------------------------------------------------------------------------------ in the new interpreter


def _fork_ranks(path: str) -> None:
    """Import the modules, fork the ranks and wait for them: the main function of the new interpreter."""
    folder = Path(path)
    job = read_json(folder / "job.json")
    module = _import(job["module"], job["file"])
    importlib.import_module("torch.distributed")  # before the fork, or each rank would pay for it
    if "torch.distributed.tensor" in sys.modules:
        importlib.import_module("torch.distributed.fsdp")  # code that shards models imports it late
    func = getattr(module, job["func"])
    pids: dict[int, int] = {}
    for rank in range(job["num_processes"]):
        pid = os.fork()
        if pid == 0:
            _run_rank(folder, rank, job["num_processes"], job["timeout_s"], func)
        pids[pid] = rank
    _wait(folder, pids, job["timeout_s"])


def _import(name: str, file: str | None) -> ModuleType:
    """Import a module from its file, under the name it has in the test's process, so that pickles find it."""
    is_script = name == "__main__"  # pickles name it so; its own main part must not run
    if file is None or (name in sys.modules and not is_script):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location("__mp_main__" if is_script else name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _wait(folder: Path, pids: dict[int, int], timeout_s: float) -> None:
    """Wait until all ranks have ended; kill them by id if one fails or the time limit is reached."""
    end_s = time.monotonic() + timeout_s + 2.0  # the ranks write their stacks at `timeout_s`
    while pids:
        for pid in list(pids):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                rank, code = pids.pop(pid), os.waitstatus_to_exitcode(status)
                if code:
                    _note_death(folder, rank, code)
                    end_s = min(end_s, time.monotonic() + _GRACE_S)
            elif time.monotonic() > end_s:
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def _note_death(folder: Path, rank: int, code: int) -> None:
    """Record a rank that died without a message, unless its stack shows that it timed out."""
    if not (folder / f"{rank}.failure").exists() and not _read(folder / f"{rank}.stack"):
        _write_failure(folder, rank, f"it ended with code {code} (a negative code is a signal number)")


def _write_failure(folder: Path, rank: int, text: str) -> None:
    failure = {"rank": rank, "time": time.monotonic(), "text": text}
    part = folder / f"{rank}.part"
    part.write_text(json.dumps(failure))
    part.rename(folder / f"{rank}.failure")


# ------------------------------------------------------------------------------------------------------ in a rank


def _run_rank(folder: Path, rank: int, size: int, timeout_s: float, func: Callable[..., Any]) -> None:
    """Call the function as this rank, write the result, and exit without the interpreter's cleanup."""
    code = 1
    try:
        _die_with_parent()
        with (folder / f"{rank}.stack").open("w") as stack:
            faulthandler.dump_traceback_later(timeout_s, file=stack)
            args = pickle.loads((folder / "args.pickle").read_bytes())  # noqa: S301 - ours
            result = func(_join(folder, rank, size, timeout_s), *args)
            _leave()
            faulthandler.cancel_dump_traceback_later()
        part = folder / f"{rank}.result.part"
        part.write_bytes(pickle.dumps(result))
        part.rename(folder / f"{rank}.result")
        code = 0
    except BaseException:  # noqa: BLE001 - the test's process raises it again
        _write_failure(folder, rank, traceback.format_exc())
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        import ctypes  # lazy: only a rank needs it

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, prctl(2)


def _join(folder: Path, rank: int, size: int, timeout_s: float) -> World:
    import torch
    import torch.distributed as dist

    from windlass.train.data.protocol import Share
    from windlass.train.parallel.world import World

    torch.set_num_threads(1)
    # What torchrun sets, for code that asks for it; the group exists already, so nobody listens on a port.
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    patience = timedelta(seconds=timeout_s + 60.0)  # or gloo's own error would come before the stacks
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=patience)
    share = Share(rank=rank, world=size)
    return World(rank=rank, size=size, local_rank=rank, device=torch.device("cpu"), share=share)


def _leave() -> None:
    """Wait for the other ranks, because a rank that exits early breaks their connections."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
