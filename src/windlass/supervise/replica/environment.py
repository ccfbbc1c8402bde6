"""Environment of the user's process: a few inherited variables, the plan's, windlass's, and secrets.

Nothing else is inherited, so that the environment of a run can be recorded and reproduced.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from windlass.supervise.job import JobDocument

__all__ = ["INHERITED", "INHERITED_PREFIXES", "TOKEN_NAME", "replace_tokens", "user_environment"]

TOKEN_NAME = "WINDLASS_TOKEN"  # noqa: S105 - the name of a variable
"""Variable with `<token>.<rank>` in every process of a replica, to identify leftover processes."""

INHERITED = frozenset(
    [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "TERM",
        "LD_LIBRARY_PATH",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "all_proxy",
        "CONDA_PREFIX",
        "HF_HOME",
        "TORCH_HOME",
    ]
)
INHERITED_PREFIXES = ("LC_", "XDG_", "NVIDIA_", "SLURM_")


def replace_tokens(text: str, tokens: Mapping[str, str]) -> str:
    """Replace `${name}` with its value for the names in `tokens`, and nothing else."""
    for name, value in tokens.items():
        text = text.replace("${" + name + "}", value)
    return text


def user_environment(
    job: JobDocument,
    *,
    tokens: Mapping[str, str],
    ours: Mapping[str, str],
    secrets: Mapping[str, str],
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return all variables for the user's process; later sources override earlier ones.

    Args:
        tokens: values of `${leader.address}` and other tokens.
        ours: variables that only the job knows (control file, devices, token).
        secrets: values or file paths by variable name.
        base: the environment to inherit from; this process's by default.
    """
    base = os.environ if base is None else base
    names = INHERITED | {name for name in job.site.inherit if not name.endswith("*")}
    taken = frozenset(job.command.unset)
    prefixes = INHERITED_PREFIXES + tuple(name[:-1] for name in job.site.inherit if name.endswith("*"))
    env = {
        name: value
        for name, value in base.items()
        if name not in taken and (name in names or name.startswith(prefixes))
    }
    env["PWD"] = os.path.abspath(job.command.cwd)
    env.update({name: replace_tokens(value, tokens) for name, value in job.command.env.items()})
    for name, entries in (("PATH", job.command.path), ("PYTHONPATH", job.command.python_path)):
        if entries:
            env[name] = os.pathsep.join([*entries, *([env[name]] if env.get(name) else [])])
    env.update(ours)
    env.update(secrets)
    return env
