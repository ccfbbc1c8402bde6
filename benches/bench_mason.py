"""CPU seconds of `windlass mason --emit ...`, start of Python included: `python benches/bench_mason.py [repeats]`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

BUDGET_S = 0.3
"""Of `--emit spec`."""

_LINE = ("--cluster", "ai2/jupiter", "--gpus", "8", "--num_nodes", "2", "--pure_docker_mode", "--user", "me")
_COMMAND = ("--", "source", "configs/beaker_configs/ray_node_setup.sh", "&&", "python", "open_instruct/grpo_fast.py")
_CLIENT = "{'beaker', 'grpc', 'google.protobuf'}"


def _cpu_s(arguments: tuple[str, ...], num_repeats: int, bytecode: str) -> float:
    """The least CPU seconds of so many calls: what the program needs where nothing else disturbs it.

    Compiled beforehand, as an installed program is.
    """
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ["PYTHONPYCACHEPREFIX"] = bytecode
    argv = [sys.executable, "-m", "windlass", *arguments]
    subprocess.run(argv, check=True, capture_output=True, env=environ)
    least = float("inf")
    for _ in range(num_repeats):
        before = os.times()
        subprocess.run(argv, check=True, capture_output=True, env=environ)
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        least = min(least, used)
    return least


def _imports_client(arguments: tuple[str, ...]) -> bool:
    code = (
        f"import sys; from windlass.cli import main; main({arguments!r}); sys.exit(bool({_CLIENT} & set(sys.modules)))"
    )
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode != 0


def main() -> int:
    """Print the table; 1 when `--emit spec` is over its budget or Beaker's client is imported."""
    num_repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    is_over = False
    print(f"{'windlass':<24}{'CPU-s':>8}")
    with tempfile.TemporaryDirectory() as bytecode:
        print(f"{'version':<24}{_cpu_s(('version',), num_repeats, bytecode):>8.3f}")
        for emitted in ("beaker", "spec"):
            arguments = ("mason", *_LINE, "--emit", emitted, *_COMMAND)
            used = _cpu_s(arguments, num_repeats, bytecode)
            imports = _imports_client(arguments)
            print(f"{f'mason --emit {emitted}':<24}{used:>8.3f}{'   imports the client of Beaker' if imports else ''}")
            is_over |= imports or (emitted == "spec" and used > BUDGET_S)
    return int(is_over)


if __name__ == "__main__":
    sys.exit(main())
