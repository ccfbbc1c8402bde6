"""Run a fake Beaker: `python -m windlass.testing.beaker FOLDER` prints variables to export, and serves until Ctrl-C."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from windlass.testing.beaker.fake import FakeBeaker

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted; the fake and all its jobs end with this process."""
    parser = argparse.ArgumentParser(prog="python -m windlass.testing.beaker", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder for all data of the fake; created if missing")
    parser.add_argument("--secret", action="append", default=[], metavar="NAME=VALUE", help="add a secret to lab/main")
    parser.add_argument("--image", action="append", default=[], metavar="NAME", help="add the image me/NAME")
    given = parser.parse_args(argv)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: ended.set())
    with FakeBeaker(given.folder) as fake:
        for secret in given.secret:
            name, _, value = secret.partition("=")
            fake.add_secret(name, value)
        for image in given.image:
            fake.add_image(image)
        for name, value in fake.environ.items():
            sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
        sys.stdout.flush()
        ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
