"""Images at a Slurm site, with a stand-in for the site's runtime that shows what it was told to and nothing else."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.system.slurm.slurm_stage import SlurmStage
from tests.system.stage import PYTHON, until
from windlass.record.state import State

pytestmark = pytest.mark.system

_RUNTIME = """\
#!{python} -IS
import os, sys
IMAGE = ["/usr", "/bin", "/lib", "/lib64", "/etc", "/dev", "/proc", *{prefixes!r}]
shown, pwd, rest = [], "/", sys.argv[2:]
while rest[0].startswith("-"):
    option, value, rest = rest[0], rest[1], rest[2:]
    if option in ("--bind", "--mount"):
        shown.append(value.split(":")[0])
    pwd = value if option == "--pwd" else pwd
image, command = rest[0], rest[1:]
assert image == "/images/rl.img", image
root, lines = {root!r}, ["set -e", "mount -t tmpfs none {root}"]
for path in sorted({{*IMAGE, *shown}}):
    there = root + path
    made = f"mkdir -p {{there}}" if os.path.isdir(path) else f"mkdir -p {{os.path.dirname(there)}}; touch {{there}}"
    lines.append(f"test -e {{path}}; {{made}}; mount --rbind {{path}} {{there}}")
lines.append(f'exec chroot {{root}} /bin/sh -c \\'cd "$0" && exec "$@"\\' {{pwd}} "$@"')
os.execvp("unshare", ["unshare", "--mount", "--propagation=private", "sh", "-c", "\\n".join(lines), "sh", *command])
"""

_USER = """
import os, time
from windlass import report
print("inside", os.path.exists(os.environ["UNSEEN"]), len(open(os.environ["PLANTED"]).read()), flush=True)
report.metrics({"loss": 1.0}, step=1)
while not report.should_stop():
    time.sleep(0.05)
with report.checkpoint_dir(step=1) as folder:
    (folder / "weights").write_text("1")
report.finish(75)
raise SystemExit(75)
"""


@pytest.mark.parametrize("kind", ["apptainer", "enroot"])
def test_code_in_an_image_has_its_secret_file_and_hears_that_it_is_to_stop(
    slurm_stage: SlurmStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    stage, runtime, root = slurm_stage, tmp_path / "runtime", tmp_path / "root"
    root.mkdir()
    (tmp_path / "unseen").touch()
    prefixes = sorted({sys.prefix, sys.base_prefix, str(Path(os.path.realpath(sys.executable)).parents[1])})
    runtime.write_text(_RUNTIME.format(python=PYTHON, prefixes=prefixes, root=str(root)))
    runtime.chmod(0o755)
    profile = stage.home.path / "sites" / "lab.yaml"
    with profile.open("a") as file:
        file.write(f"containers: {{kind: {kind}, program: {shlex.quote(str(runtime))}}}\n")
    monkeypatch.setenv("WINDLASS_SECRET_PLANTED", "planted-12345")
    spec = stage.python(_USER, nodes=2)
    spec["env"] = {
        "image": "/images/rl.img",
        "secrets": [{"name": "PLANTED", "as": "file"}],
        "vars": {"UNSEEN": str(tmp_path / "unseen")},
    }
    run = stage.start(spec)
    for rank in (0, 1):
        stage.wait_for_line(run, "inside False 13", rank=rank)
    until(lambda: bool(run.metrics("loss")), "its report is in the journal")
    run.stop(checkpoint=True)
    assert stage.end(run) is State.STOPPED, stage.story(run)
    assert [path.name for path in (run.folder.path / "checkpoints" / "main").glob("step-*")] == ["step-1"], stage.story(
        run
    )
    stage.wait_until_queue_is_empty()
