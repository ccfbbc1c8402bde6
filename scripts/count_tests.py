"""Add up pytest's JUnit files and print one closing line: `total: 812 passed, 0 failed, 3 skipped`."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path


def main(paths: list[str]) -> int:
    """Print the sum; exit 1 when no test ran or one failed."""
    num_tests = num_failed = num_skipped = 0
    for path in paths:
        if not Path(path).is_file():
            print(f"{path}: pytest wrote no report")
            continue
        for suite in ET.parse(path).getroot().iter("testsuite"):  # noqa: S314 (our own pytest wrote it)
            num_tests += int(suite.get("tests", "0"))
            num_failed += int(suite.get("failures", "0")) + int(suite.get("errors", "0"))
            num_skipped += int(suite.get("skipped", "0"))
    num_passed = num_tests - num_failed - num_skipped
    print(f"total: {num_passed} passed, {num_failed} failed, {num_skipped} skipped")
    return 1 if num_failed or not num_passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
