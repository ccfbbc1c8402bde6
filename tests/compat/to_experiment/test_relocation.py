"""Paths of Beaker's jobs in a line become those of another place; bash is asked what the line means."""

from __future__ import annotations

import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.compat.to_experiment.bash_line import BashLine
from windlass.compat.to_experiment.relocation import OUT, Relocation, command_of

MOVED = {"/weka/d": "/there/a 'b'", "/output": "/run/out put"}
PATHS = (*MOVED, "/weka/dd", "/weka", "/outputs", "/x/weka/d")
STARTS, ENDS = ("", "--a=", "b:", "x y=", "gs:/"), ("", "/", "/e f", "/e.txt")
STYLES = st.sampled_from(("'{}'", '"{}"'))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(STARTS), st.sampled_from(PATHS), st.sampled_from(ENDS), STYLES), max_size=5))
def test_bash_sees_the_same_words_with_other_folders(words: list[tuple[str, str, str, str]]) -> None:
    line = " ".join(["cp", *(style.format(start + path + end) for start, path, end, style in words)])
    command = command_of(BashLine.read(Relocation(paths=dict(MOVED) | {"/output": OUT.text}).line(line)))
    found = words_of(command[2].replace("$${", "${")) if command[0] == "bash" else list(command)
    moved = [start + (path if start.endswith("/") else MOVED.get(path, path)) + end for start, path, end, _ in words]
    assert [word.replace("${out}", MOVED["/output"]) for word in found] == ["cp", *moved]


def words_of(line: str) -> list[str]:
    """What bash makes of a line; one empty word where it cannot be read."""
    program = f"set -f; words() {{ builtin printf '%s\\0' \"$@\"; }}; words {line}\n"
    done = subprocess.run(
        ["bash", "-c", program], env={"WINDLASS_OUT": "/run/out put"}, capture_output=True, text=True, check=False
    )
    return done.stdout.split("\0")[:-1] if done.returncode == 0 and not done.stderr else [""]
