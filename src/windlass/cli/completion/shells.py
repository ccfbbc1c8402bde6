"""Completion script for each shell, and the answers to its requests.

Only completions are printed, since the user is typing: an error on the line completes nothing, and a bug is written to a file
in the cache.
"""

from __future__ import annotations

import os
from typing import ClassVar

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    split_arg_string,
)

from windlass.cli.completion import COMPLETE
from windlass.core.errors import WindlassError

__all__ = ["answer", "script"]

_PROGRAM = "windlass"

_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' type value
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            open) COMPREPLY+=("$value"); compopt -o nospace ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD COMP_LINE="${COMP_LINE:0:COMP_POINT}" \\
        COMP_WORDBREAKS="$COMP_WORDBREAKS" %(complete_var)s=bash_complete "$1" 2>/dev/null)
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""
"""click's script, but without a space after `params.lr=`, and with whole words where bash splits at `=` and `:`."""


class _Answers(ShellComplete):
    """Behaviour shared by the three shells."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Complete the value in `--on=lo`, returning whole words; return nothing where any value is allowed."""
        option, equals, value = incomplete.partition("=")
        if not (equals and option.startswith("-")):
            return super().get_completions(args, incomplete)
        found = super().get_completions([*args, option], value)
        return [_behind(f"{option}=", item) for item in found if not item.value.endswith("=")]


def _behind(prefix: str, item: CompletionItem) -> CompletionItem:
    return item if item.type != "plain" else CompletionItem(prefix + item.value, help=item.help)


class _Bash(_Answers, BashComplete):
    source_template: ClassVar[str] = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor and the incomplete word.

        They are read from the whole line, because bash also splits words at `=` and `:`.
        """
        line = os.environ.get("COMP_LINE")
        if line is None:
            return super().get_completion_args()
        words = split_arg_string(line)
        incomplete = words.pop() if len(words) > 1 and not line[-1:].isspace() else ""
        breaks = [at for at, letter in enumerate(incomplete) if letter in os.environ.get("COMP_WORDBREAKS", "")]
        self._broken_off = incomplete[: breaks[-1] + 1] if breaks else ""
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """Return `type,value`, leaving out what precedes bash's last split: bash keeps that part itself."""
        value = item.value.removeprefix(getattr(self, "_broken_off", ""))
        kind = "open" if item.type == "plain" and value.endswith(("=", "/")) else item.type
        return f"{kind},{value}"


class _Zsh(_Answers, ZshComplete):
    pass


class _Fish(_Answers, FishComplete):
    pass


_SHELLS: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


def script(shell: str) -> str:
    """Return the completion script for a shell (bash, zsh or fish)."""
    # Not BashComplete.source: it starts bash only to check its version.
    return ShellComplete.source(_SHELLS[shell](click.Command(_PROGRAM), {}, _PROGRAM, COMPLETE)).rstrip()


def answer(instruction: str, program: click.Command) -> int:
    """Print the program's completions for the instruction `<shell>_complete` and return the exit code."""
    shell, _, verb = instruction.partition("_")
    if shell not in _SHELLS or verb != "complete":
        return 1
    try:
        text = _SHELLS[shell](program, {}, _PROGRAM, COMPLETE).complete()
    except (click.exceptions.Exit, click.ClickException, WindlassError, OSError):  # the line is incomplete
        return 0
    except Exception as error:  # noqa: BLE001 - no traceback in the user's prompt
        from windlass.cli.problems import from_bug  # lazy: a bug is rare

        from_bug(error)
        return 0
    click.echo(text)
    return 0
