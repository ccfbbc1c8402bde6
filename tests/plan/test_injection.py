"""A value of a parameter is never code: each quoting context, executed by real shells."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.core.errors import SpecError
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.tokens.resolve import Scope, fill_tokens, resolve_text

SHELLS = [["/bin/sh"], *([["bash", "--posix"]] if shutil.which("bash") else [])]
ATTACKS = [
    "$(touch X)",
    "`touch X`",
    "; touch X #",
    "; touch X; echo ",
    "x\ntouch X\n",
    "'; touch X; '",
    '"; touch X; "',
    "\\'; touch X #",
    "a[$(touch X)]",
    ")); touch X; ((",
    "} ; touch X; {",
    "} $(touch X)",
    ") ; touch X; (",
    "x) touch X;; ",
    "a b",
    "",
]
QUOTED = {
    "bare": "printf '%s\\0' ${params.v}",
    "single": "printf '%s\\0' '${params.v}'",
    "double": "printf '%s\\0' \"${params.v}\"",
    "substitution": "printf '%s\\0' \"$(printf '%s.' ${params.v})\"",
    "single in substitution": "printf '%s\\0' \"$(printf '%s.' '${params.v}')\"",
    "double in substitution": "printf '%s\\0' \"$(printf '%s.' \"${params.v}\")\"",
    "subshell": "(printf '%s\\0' ${params.v})# it's",
    "behind a comment": "# it's\nprintf '%s\\0' ${params.v}",
    "behind a brace": "printf '%s\\0' ${NONE:-}${params.v}",
    "behind a hash": "printf '%s\\0' $#\"${params.v}\"",
    "behind a continuation": "printf '%s\\0' \\\n  ${params.v}",
    "behind arithmetic": "true $((1 + (2))) $(echo)# $((1)) # it's\nprintf '%s\\0' ${params.v}",
    "case": "case x in x) printf '%s\\0' ${params.v};; esac",
    "behind a pid": "printf '%s\\0' ${params.v} $$'' ''",
}
"""Contexts that must take any value."""
HAZARDS = {
    "arithmetic": "echo $(( '${params.v}' 0 ))",
    "bare arithmetic": 'echo "$((${params.v}))"',
    "double in arithmetic": 'echo $(( "${params.v}" ))',
    "command arithmetic": "((x = '${params.v}'))",
    "old arithmetic": "echo $['${params.v}']",
    "test": "[[ '${params.v}' -eq 1 ]]",
    "subscript": "a['${params.v}']=1",
    "comment": "echo hi # note: ${params.v}\n",
    "comment behind a parenthesis": "(true)# ${params.v}",
    "comment behind a redirection": "echo <# ${params.v}",
    "comment behind a continuation": "echo \\\n# ${params.v}\n",
    "backslash": "echo \\${params.v}",
    "backslash in double quotes": 'echo "\\${params.v}"',
    "case in a substitution": 'echo "$(case x in x) echo ${params.v};; esac)"',
    "split case": 'echo "$(ca\\\nse x in x) echo ${params.v};; esac)"',
    "dollar quotes": "printf '%s\\0' $'${params.v}'",
    "dollar quotes with a backslash": "printf '%s\\0' $'\\'' '${params.v}' '",
    "backquote": "echo `echo ${params.v}`",
    "here-document": "cat <<E\n${params.v}\nE\n",
    "brace": "echo ${NONE:-${params.v}}",
    "brace in double quotes": 'echo "${NONE:-${params.v}}"',
    "quotes in a quoted brace": 'echo "${NONE#\'"\'}" ${params.v}',
    "substring": "HOME=/; echo ${HOME:'${params.v}'}",
    "operator over two lines": "echo $\\\n((${params.v}))",
}
"""Contexts in which nothing is sure, so a value that needs quotes is refused (`unsafe-insert`)."""


def literal(line: str) -> str:
    """The line as a spec has it: the shell's own `${` written `$${`."""
    return line.replace("${", "$${").replace("$${params.v}", "${params.v}")


def inserted(line: str, value: str | list[str]) -> str:
    diagnostics = Diagnostics()
    scope = Scope(task="t", values={"params.v": list(value) if isinstance(value, list) else value})
    text = resolve_text(literal(line), scope, diagnostics, "tasks.t.run", is_shell=True)
    diagnostics.raise_all()
    return fill_tokens(text, {}, is_shell=True)


def executed(shell: list[str], line: str) -> str:
    """What a line prints; fails when it had a side effect."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*shell, "-c", line], cwd=folder, capture_output=True, stdin=subprocess.DEVNULL)
        assert list(Path(folder).iterdir()) == [], line
    return done.stdout.decode()


def check_verbatim(context: str, value: str) -> None:
    line = inserted(QUOTED[context], value)
    expected = f"0{value}" if context == "behind a hash" else f"{value}." if "substitution" in context else value
    for shell in SHELLS:
        words = executed(shell, line).split("\0")
        assert (words[0], len(words)) == (expected, 4 if context == "behind a pid" else 2)


def refused(line: str, value: str | list[str]) -> str:
    """The message when a value is refused, else empty."""
    try:
        inserted(line, value)
    except SpecError as error:
        return "\n".join(f"{problem.code}: {problem.message}" for problem in error.problems)
    return ""


def check_harmless(context: str, value: str) -> None:
    if not refused(HAZARDS[context], value).startswith("unsafe-insert"):
        for shell in SHELLS:
            executed(shell, inserted(HAZARDS[context], value))


@pytest.mark.parametrize("context", QUOTED)
def test_an_attack_arrives_as_one_word(context: str) -> None:
    for value in ATTACKS:
        check_verbatim(context, value)


@pytest.mark.parametrize("context", HAZARDS)
def test_an_attack_is_refused_where_quotes_do_not_protect(context: str) -> None:
    for value in ATTACKS:
        assert refused(HAZARDS[context], value).startswith("unsafe-insert: `${params.v}` in tasks.t.run follows") or (
            refused(HAZARDS[context], value).startswith(
                "unsafe-insert: the value of `${params.v}` in tasks.t.run needs"
            )
        )


_HOSTILE = st.text(alphabet="ab0 $`'\"\\{}()[]#*~\n;&|<>=!-x", max_size=14)


@settings(max_examples=120, deadline=None)
@given(st.sampled_from([*QUOTED]), _HOSTILE)
def test_a_hostile_value_arrives_as_one_word(context: str, value: str) -> None:
    check_verbatim(context, value)


@settings(max_examples=120, deadline=None)
@given(st.sampled_from([*HAZARDS]), _HOSTILE)
def test_a_hostile_value_has_no_side_effect(context: str, value: str) -> None:
    check_harmless(context, value)


@pytest.mark.parametrize("context", [name for name in HAZARDS if "backslash" not in name])
def test_a_plain_value_is_fine_everywhere(context: str) -> None:
    assert "aB1-_./:=+,@%" in inserted(HAZARDS[context], "aB1-_./:=+,@%")


@pytest.mark.parametrize("value", ["a", "1", [], ["a"]])
def test_nothing_goes_directly_behind_a_backslash(value: str | list[str]) -> None:
    assert "follows a backslash" in refused("echo \\${params.v} x", value)


def test_an_empty_list_leaves_what_follows_as_it_is() -> None:
    diagnostics = Diagnostics()
    scope = Scope(task="t", values={"params.none": [], "params.v": "x\ntouch X"})
    resolve_text("echo ${params.none}# it's ${params.v}", scope, diagnostics, "tasks.t.run", is_shell=True)
    with pytest.raises(SpecError, match="in a comment"):
        diagnostics.raise_all()


def test_a_path_directly_behind_a_backslash() -> None:
    with pytest.raises(ValueError, match="follows a backslash"):
        fill_tokens("echo \\${out}", {"out": "/o"}, is_shell=True)
    diagnostics = Diagnostics()
    resolve_text("echo \\${out}", Scope(task="t", later=frozenset({"out"})), diagnostics, "run", is_shell=True)
    with pytest.raises(SpecError, match="follows a backslash"):
        diagnostics.raise_all()
