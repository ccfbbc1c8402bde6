"""Rates of the log pump, in MB per CPU second of the pump (user and system): plain, with 50 secrets, with many hits.

A child process writes ready-made lines as fast as the pipe takes them; the pump runs with index and default settings.
Usage: python benches/bench_log_pump.py [megabytes]
"""

from __future__ import annotations

import base64
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from windlass.core.clock import SystemClock
from windlass.record.redact import Redactor
from windlass.supervise.logs.pipe import LogPipe
from windlass.supervise.logs.pump import LogPump

MEGABYTE = 1_000_000
WRITER = """
import sys
block, count = open(sys.argv[1], "rb").read(), int(sys.argv[2])
for _ in range(count):
    sys.stdout.buffer.write(block)
"""


def log_lines(dice: random.Random, secrets: list[bytes], share: float) -> bytes:
    """About a megabyte of training log; `share` of the lines hold a secret, half of them in base64."""
    lines: list[bytes] = []
    size = 0
    while size < MEGABYTE:
        line = b"%d step=%d loss=%.4f lr=1e-4 grad_norm=%.3f tok/s=%d path=/data/shard-%05d.bin" % (
            time.time_ns() // 10**6,
            len(lines),
            dice.random() * 3,
            dice.random(),
            dice.randrange(10**6),
            dice.randrange(10**5),
        )
        if dice.random() < share:
            secret = dice.choice(secrets)
            line += b" token=" + (secret if dice.random() < 0.5 else base64.b64encode(b"user:" + secret))
        lines.append(line + b"\n")
        size += len(lines[-1])
    return b"".join(lines)


def measure(folder: Path, name: str, block: bytes, megabytes: int, redactor: Redactor) -> None:
    """Pump `megabytes` of `block` from a child and print the rate."""
    source, log = folder / "block", folder / "0.log"
    source.write_bytes(block)
    channel = LogPipe.create()
    pump = LogPump(channel, log, redactor, SystemClock())
    argv = [sys.executable, "-c", WRITER, str(source), str(megabytes * MEGABYTE // len(block))]
    with subprocess.Popen(argv, stdout=channel.write_fd) as writer:
        channel = channel.close_writer()
        before = time.process_time()
        result = pump.drain(time.monotonic() + 600)
        used_s = time.process_time() - before
        assert result.is_eof
        assert writer.wait() == 0
    pump.close()
    channel.close()
    os.unlink(log)
    os.unlink(f"{log}.idx")
    print(f"{name:<34} {result.num_bytes / MEGABYTE / used_s:8.0f} MB per CPU s")


def main() -> None:
    """Print the table."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    dice = random.Random(1)
    letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+/"
    secrets = [bytes(dice.choices(letters, k=dice.randrange(20, 90))) for _ in range(50)]
    redactor = Redactor({f"SECRET_{number}": value for number, value in enumerate(secrets)})
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), "plain", log_lines(dice, secrets, 0.0), megabytes, Redactor({}))
        for share in (0.0, 0.001, 0.01, 0.1, 1.0):
            name = f"50 secrets, in {share:.1%} of the lines"
            measure(Path(folder), name, log_lines(dice, secrets, share), megabytes, redactor)


if __name__ == "__main__":
    main()
