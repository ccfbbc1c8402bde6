"""`windlass mason build SCRIPT`: build and push the image for the current commit, then run a launch script."""

from __future__ import annotations

import os
from pathlib import Path

from windlass.cli.screen import tell

__all__ = ["BUILD_PAGE", "run_build"]

BUILD_PAGE = """\
Usage: windlass mason build [OPTIONS] SCRIPT [ARGUMENT]...

  Build the image of the current commit, push it to Beaker if it is missing,
  and run SCRIPT with the image as its first argument.

  The tree must be clean. Without a Beaker account the image stays in this
  machine's container engine, for `--on docker`.

Options:
  --cuda-version 12|13    Build argument CUDA_VERSION. [12]
  --workspace ORG/NAME    The workspace of the image. [default]
  --dockerfile PATH       [Dockerfile]
  -h, --help              Show this message and exit.

Examples:
  windlass mason build scripts/train/my_run.sh"""


def run_build(words: tuple[str, ...]) -> int:
    """Build the image if it is missing, run the script and return its exit code."""
    from windlass.compat.mason.account import has_beaker  # lazy: only for this verb
    from windlass.compat.mason.build import build_branch_image, read_build, run_script
    from windlass.runs.home import Home

    options, folder, home = read_build(words), Path.cwd(), Home.default()
    if not has_beaker(os.environ):
        tell("note: no Beaker configuration or BEAKER_TOKEN found; the image stays in this machine's container engine")
        image = build_branch_image(options, folder, home, None, log=tell)
    else:
        from windlass.backends.beaker.service import BeakerService  # lazy: the client costs half a second
        from windlass.compat.mason.build import BeakerImages

        service = BeakerService()
        try:
            image = build_branch_image(options, folder, home, BeakerImages(service), log=tell)
        finally:
            service.close()
    tell(f"image {image.name} for commit {image.commit[:9]}")
    return run_script(options, image, folder, os.environ)
