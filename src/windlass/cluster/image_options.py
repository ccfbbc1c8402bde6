"""Check of `image_options`: what windlass itself sets for a node's container is refused with the reason."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["DEFAULTS", "option_problems"]

_NETWORK = "Ray needs the machine's network, which the container has"
_NUMBERS = "processes are supervised from outside: the container has the machine's process numbers"
_SHARED = "the container has the machine's /dev/shm"
_LIFE = "windlass makes and removes the container"
_USER = "the container runs as the user of the machine, whose files it shares"
_OURS: Mapping[str, str] = {
    **dict.fromkeys(("--network", "--net", "--publish", "-p", "--hostname", "-h"), _NETWORK),
    **dict.fromkeys(("--pid", "--init"), _NUMBERS),
    **dict.fromkeys(("--ipc", "--shm-size"), _SHARED),
    **dict.fromkeys(("--name", "--rm", "--detach", "-d", "--restart", "--cidfile", "--entrypoint"), _LIFE),
    **dict.fromkeys(("--interactive", "-i", "--tty", "-t", "-it", "-ti", "-itd", "-dit"), _LIFE),
    **dict.fromkeys(("--user", "-u", "--userns", "--workdir", "-w"), _USER),
}
_PULLS = ("always", "missing", "never")

DEFAULTS = ("--network=host", "--net=host", "--ipc=host", "--pid=host", "--rm", "--detach", "-d", "-i", "-t", "-it")
"""Options that state what every node's container has anyway."""


def option_problems(options: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Yield the index of each option that cannot be honoured, with the message and the hint."""
    for index, text in enumerate(options):
        try:
            words = shlex.split(text)
        except ValueError as error:
            yield index, f"invalid option `{text}`: {error}", "quote it as in a shell"
            continue
        if index == 0 and words and not words[0].startswith("-"):
            yield index, f"`{text}` is not an option", "write one such as `--volume /data:/data`"
        for number, word in enumerate(words):
            name, _, value = word.partition("=")
            if name in _OURS:
                yield index, f"`{name}` cannot be honoured: {_OURS[name]}", "remove it"
            elif name == "--pull" and (value or "".join(words[number + 1 : number + 2])) not in _PULLS:
                yield index, f"invalid `{text}`", f"write `--pull=` and one of: {', '.join(_PULLS)}"
