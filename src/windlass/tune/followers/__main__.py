"""`python -m windlass.tune.followers FOLDER --to csv`: follow a sweep until it ends."""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType

from windlass.core.errors import WindlassError
from windlass.core.json_text import decode_json
from windlass.tune.followers.following import SweepFollower
from windlass.tune.followers.target import TARGETS, make_target


def main(arguments: list[str] | None = None) -> int:
    """Follow a sweep and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m windlass.tune.followers", description=__doc__)
    parser.add_argument("folder", help="folder of the sweep")
    parser.add_argument("--to", required=True, metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--options", default="{}", metavar="JSON", help="arguments of the target")
    parser.add_argument("--once", action="store_true", help="write the current content and exit")
    parser.add_argument("--fresh", action="store_true", help="discard earlier output and start again")
    given = parser.parse_args(arguments)
    try:
        follower = SweepFollower(given.folder, make_target(given.to, decode_json(given.options)), is_fresh=given.fresh)

        def stop(number: int, frame: FrameType | None) -> None:
            follower.stop()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        follower.run(follows=not given.once)
    except WindlassError as error:
        sys.stderr.write(error.render() + "\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
