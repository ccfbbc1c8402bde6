"""Check of `image_options`: what windlass itself sets for a node's container is refused with the reason.

Words are read as the engines read them: `--name=VALUE`, `--name VALUE`, `-nVALUE`, `-n=VALUE`, `-n VALUE`, `-itP`.
Source: docker-run(1), podman-run(1), github.com/spf13/pflag.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["DEFAULTS", "option_problems"]

_NETWORK = "Ray needs the machine's network, which the container has"
_NUMBERS = "processes are supervised from outside: the container has the machine's process numbers"
_SHARED = "the container has the machine's /dev/shm"
_LIFE = "windlass makes and removes the container"
_USER = "the container runs as the user of the machine, whose files it shares"
_ENGINE = "windlass must find the container again, with the engine's own settings"
_OURS: Mapping[str, str] = {
    **dict.fromkeys(
        ("--network", "--net", "--publish", "--publish-all", "--hostname", "--pod", "--pod-id-file"), _NETWORK
    ),
    **dict.fromkeys(("--pid", "--init", "--cgroups", "--sdnotify"), _NUMBERS),
    **dict.fromkeys(("--ipc", "--shm-size"), _SHARED),
    **dict.fromkeys(
        ("--name", "--rm", "--rmi", "--replace", "--restart", "--timeout", "--cidfile", "--entrypoint"), _LIFE
    ),
    **dict.fromkeys(("--detach", "--attach", "--interactive", "--tty", "--rootfs", "--help"), _LIFE),
    **dict.fromkeys(("--user", "--userns", "--uidmap", "--gidmap", "--subuidname", "--subgidname", "--workdir"), _USER),
    **dict.fromkeys(
        ("--root", "--runroot", "--tmpdir", "--imagestore", "--storage-driver", "--url", "--remote"), _ENGINE
    ),
    **dict.fromkeys(("--connection", "--transient-store", "--label-file"), _ENGINE),
}
_FLAGS = frozenset(
    (
        *("--detach", "--disable-content-trust", "--env-host", "--help", "--http-proxy", "--init", "--interactive"),
        *("--no-healthcheck", "--no-hostname", "--no-hosts", "--oom-kill-disable", "--passwd", "--privileged"),
        *("--publish-all", "--quiet", "--read-only", "--read-only-tmpfs", "--remote", "--replace", "--rm", "--rmi"),
        *("--rootfs", "--sig-proxy", "--tls-verify", "--transient-store", "--tty", "--unsetenv-all"),
        "--use-api-socket",
    )
)
"""Options without a value, or with one only after `=`."""

_SHORT: Mapping[str, str] = {
    "a": "--attach",
    "c": "--cpu-shares",
    "d": "--detach",
    "e": "--env",
    "h": "--hostname",
    "i": "--interactive",
    "l": "--label",
    "m": "--memory",
    "P": "--publish-all",
    "p": "--publish",
    "q": "--quiet",
    "t": "--tty",
    "u": "--user",
    "v": "--volume",
    "w": "--workdir",
}
_PULLS = ("always", "missing", "never")
_NUMBER = re.compile(r"-\d")
_OWN_LABELS, _OWN_VARIABLES = "windlass.", "WINDLASS_"

DEFAULTS = ("--network=host", "--net=host", "--ipc=host", "--pid=host", "--rm", "--detach", "-d", "-i", "-t", "-it")
"""Options that state what every node's container has anyway."""


def option_problems(options: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Yield the index of each option that cannot be honoured, with the message and the hint."""
    words: list[tuple[int, str]] = []
    for index, text in enumerate(options):
        try:
            words += [(index, word) for word in shlex.split(text)]
        except ValueError as error:
            yield index, f"invalid option `{text}`: {error}", "quote it as in a shell"
    while words:
        index, word = words.pop(0)
        if len(word) < 2 or not word.startswith("-") or word == "--":
            yield index, f"`{word}` is not an option", "write one such as `--volume /data:/data`"
            continue
        for name, shown, given in _read(word):
            value = _next_value(words) if given is None and name not in _FLAGS else given or ""
            found = _problem(name, shown, value)
            if found:
                yield (index, *found)
                break


def _next_value(words: list[tuple[int, str]]) -> str | None:
    """Take the value of an option from the words after it; None if there is none."""
    if not words or (words[0][1].startswith("-") and not _NUMBER.match(words[0][1])):
        return None
    return words.pop(0)[1]


def _read(word: str) -> Iterator[tuple[str, str, str | None]]:
    """Yield the long name of each option of a word, the name as it is written, and the value, if that is in the word."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        yield name, name, value if equals else None
        return
    letters = word[1:]
    while letters:
        shown, letters = f"-{letters[0]}", letters[1:]
        name = _SHORT.get(shown[1], shown)
        if letters and (letters[0] == "=" or name not in _FLAGS):
            yield name, shown, letters.removeprefix("=")
            return
        yield name, shown, None


def _problem(name: str, shown: str, value: str | None) -> tuple[str, str] | None:
    """Return why an option cannot be honoured, and the hint."""
    if name in _OURS:
        return f"`{shown}` cannot be honoured: {_OURS[name]}", "remove it"
    if not name.startswith("--"):
        return f"`{shown}` is not an option of `docker run`", "write its long name"
    if value is None:
        return f"`{shown}` has no value", f"write `{name}=VALUE`, or `{name}=true` if it needs none"
    if name == "--label" and value.startswith(_OWN_LABELS):
        return f"`{shown} {value}` cannot be honoured: labels `{_OWN_LABELS}*` are windlass's", "write another name"
    if name == "--env" and value.startswith(_OWN_VARIABLES):
        return (
            f"`{shown} {value}` cannot be honoured: variables `{_OWN_VARIABLES}*` are windlass's",
            "write another name",
        )
    if name == "--pull" and value not in _PULLS:
        return f"invalid `{shown}={value}`", f"write `--pull=` and one of: {', '.join(_PULLS)}"
    return None
