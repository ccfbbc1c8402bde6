"""The answer to a shell that completes a command line, and the script that makes it ask.

Nothing but completions is ever printed, since a person is typing: a mistake on the line completes nothing, and a bug of ours
goes to a file in the cache.
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

from windlass.cli import COMPLETE
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
"""click's, and: no blank behind what goes on (`params.lr=`), whole words where bash breaks at `=` and `:`."""


class _Answers(ShellComplete):
    """What the three shells have in common."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Like click's; the values of `--on=lo` are whole words again, and nothing stands for a value that is free."""
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
        """The words before the cursor and the one at it, as they were typed; bash itself breaks them at `=` and `:`."""
        line = os.environ.get("COMP_LINE")
        if line is None:
            return super().get_completion_args()
        words = split_arg_string(line)
        incomplete = words.pop() if len(words) > 1 and not line[-1:].isspace() else ""
        breaks = [at for at, letter in enumerate(incomplete) if letter in os.environ.get("COMP_WORDBREAKS", "")]
        self._broken_off = incomplete[: breaks[-1] + 1] if breaks else ""
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """`type,value`, without what stands before the last break: bash keeps that."""
        value = item.value.removeprefix(getattr(self, "_broken_off", ""))
        kind = "open" if item.type == "plain" and value.endswith(("=", "/")) else item.type
        return f"{kind},{value}"


class _Zsh(_Answers, ZshComplete):
    pass


class _Fish(_Answers, FishComplete):
    pass


_SHELLS: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


def _shell(name: str) -> ShellComplete:
    from windlass.cli.program import windlass  # lazy: it imports this module

    return _SHELLS[name](windlass, {}, _PROGRAM, COMPLETE)


def script(shell: str) -> str:
    """What a person evaluates in the shell (bash, zsh, fish)."""
    # The plain method: click's for bash starts a bash only to look at its version.
    return ShellComplete.source(_shell(shell)).rstrip()


def answer(instruction: str) -> int:
    """Print the completions that `<shell>_complete` asks for; returns the exit code."""
    shell, _, verb = instruction.partition("_")
    if shell not in _SHELLS or verb != "complete":
        return 1
    try:
        text = _shell(shell).complete()
    except (click.exceptions.Exit, click.ClickException, WindlassError, OSError):  # of a line that is not finished yet
        return 0
    except Exception as error:  # noqa: BLE001 - no traceback goes into somebody's prompt
        from windlass.cli.problems import from_bug  # lazy: a bug is rare

        from_bug(error)
        return 0
    click.echo(text)
    return 0
