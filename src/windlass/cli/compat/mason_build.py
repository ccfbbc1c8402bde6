"""`windlass mason build SCRIPT`: the branch's image, built and sent where it is missing, then the launch script."""

from __future__ import annotations

import os
from pathlib import Path

from windlass.cli.screen import tell

__all__ = ["BUILD_PAGE", "run_build"]

BUILD_PAGE = """\
Usage: windlass mason build [OPTIONS] SCRIPT [ARGUMENT]...

  Build the image of this branch's commit, send it to Beaker where it is
  missing, and run SCRIPT with the image as its first argument.

  The tree must be clean. Without an account on Beaker the image stays in
  this machine's engine, for `--on docker`.

Options:
  --cuda-version 12|13    Build argument CUDA_VERSION. [12]
  --workspace ORG/NAME    The workspace of the image. [yours]
  --dockerfile PATH       [Dockerfile]
  -h, --help              Show this message and exit.

Examples:
  windlass mason build scripts/train/my_run.sh"""


def run_build(words: tuple[str, ...]) -> int:
    """Build what is missing and run the script; returns the script's exit code."""
    from windlass.compat.mason.account import has_beaker  # lazy: only this verb
    from windlass.compat.mason.build import build_branch_image, read_build, run_script
    from windlass.runs.home import Home

    options, folder, home = read_build(words), Path.cwd(), Home.default()
    if not has_beaker(os.environ):
        tell("note: there is no configuration of Beaker and no BEAKER_TOKEN: the image stays in this machine's engine")
        image = build_branch_image(options, folder, home, None, log=tell)
    else:
        from windlass.backends.beaker.service import BeakerService  # lazy: the client costs half a second
        from windlass.compat.mason.beaker_images import BeakerImages

        service = BeakerService()
        try:
            image = build_branch_image(options, folder, home, BeakerImages(service), log=tell)
        finally:
            service.close()
    tell(f"image {image.name} of commit {image.commit[:9]}")
    return run_script(options, image, folder, os.environ)
