"""Script that a rented machine runs when it boots: first its deadline, then its node from the head's store.

The deadline is a process of its own session that ignores signals other than SIGKILL, and, where systemd runs, a timer of
systemd besides, so that it does not depend on any process of ours. A machine that cannot start its node ends itself.
POSIX sh, and Python 3.9 or newer for the node.
"""

from __future__ import annotations

import inspect
import json
import re
import shlex
from types import ModuleType

from windlass.core.dataclass import dataclass
from windlass.core.errors import InternalError
from windlass.supervise.node import metadata, store_client

__all__ = ["MAX_BYTES", "NodeBoot", "render_boot"]

MAX_BYTES = 16 << 10
"""Most that EC2 accepts as user data."""

_FUTURE = "from __future__ import annotations\n"

_START = """\
#!/bin/sh
umask 077
work=$(mktemp -d "${TMPDIR:-/var/tmp}/windlass.XXXXXX" || mktemp -d /dev/shm/windlass.XXXXXX) || work=$HOME
"""

_DEADLINE = """\
left=$(({at} - $(date +%s)))
if [ "$left" -lt 1 ] || [ "$left" -gt {most} ]; then left={most}; fi
cat > "$work/deadline" <<'WINDLASS_END'
trap '' HUP INT TERM QUIT
sleep "$1"
while :; do {shutdown}
sleep 5; done
WINDLASS_END
setsid nohup sh "$work/deadline" "$left" </dev/null >/dev/null 2>&1 &
if command -v systemd-run >/dev/null 2>&1 && [ -d /run/systemd/system ]; then
  systemd-run --quiet --unit=windlass-deadline --on-active="$left" sh -c {quoted} || true
fi
"""

_NODE = """\
cat > "$work/boot.py" <<'WINDLASS_END'
{program}
WINDLASS_END
cat > "$work/token" <<'WINDLASS_END'
{token}
WINDLASS_END
python=
for each in python3 python3.13 python3.12 python3.11 python3.10 python3.9; do
  if command -v "$each" >/dev/null 2>&1 && "$each" -c 'import sys; sys.exit(sys.version_info < (3, 9))'; then
    python=$each; break
  fi
done
if [ -n "$python" ] && "$python" -I -S "$work/boot.py" "$work" >> "$work/boot.log" 2>&1; then exit 0; fi
{give_up}
"""

_PROGRAM = """
import json, os, pwd, subprocess, sys
SETTINGS = json.loads(%s)

def main(work):
    # Start the node; a machine whose head is silent for too long gives up.
    with open(os.path.join(work, "token")) as file:
        token = file.read().strip()
    client = StoreClient(SETTINGS["store"], token)
    end_s, pause_s = time.monotonic() + SETTINGS["patience_s"], 0.5
    while 1:
        try:
            instance = fetch_instance(SETTINGS["metadata"])
            spec = json.loads(client.call("GET", "/spec?group=%s&instance=%s" % (SETTINGS["group"], instance)))
            archive = client.call("GET", "/archive")
            break
        except (StoreError, MetadataError) as error:
            print(error, file=sys.stderr, flush=True)
            if time.monotonic() > end_s:
                return 1
            time.sleep(pause_s)
            pause_s = min(5.0, 1.5 * pause_s)
    user = pwd.getpwnam(SETTINGS["user"]) if SETTINGS["user"] and os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    if user.pw_uid != os.geteuid():
        os.initgroups(user.pw_name, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    os.environ.update(HOME=user.pw_dir, USER=user.pw_name, LOGNAME=user.pw_name)
    os.chdir(user.pw_dir)
    os.umask(0o077)
    folder = os.path.join(user.pw_dir, ".windlass", "clusters", spec["cluster"], spec["token"])
    os.makedirs(folder, exist_ok=True)
    spec["auth_token"] = token
    program = os.path.join(folder, "windlass.pyz")
    for path, content in ((program, archive), (os.path.join(folder, "spec.json"), json.dumps(spec).encode())):
        with open(path, "wb") as file:
            file.write(content)
    return subprocess.call([sys.executable, "-I", "-S", program, "node-start", folder])

sys.exit(main(sys.argv[1]))
"""


@dataclass(frozen=True)
class NodeBoot:
    """A node that a machine fetches from the head's store.

    Attributes:
        store: address and port of the store.
        token: the cluster's token.
        group: the node's group.
        metadata: service that knows the machine's id: `aws` or `virtual`.
        user: user that runs the node; empty: the one that runs the script.
        patience_s: seconds without the head after which the machine ends itself.
    """

    store: str
    token: str
    group: str
    metadata: str
    user: str = ""
    patience_s: float = 600.0


def render_boot(
    *, shutdown: str, deadline_at: float | None = None, deadline_s: float | None = None, node: NodeBoot | None = None
) -> bytes:
    """Return the script; pure.

    Args:
        shutdown: shell command that ends the machine.
        deadline_at: when it ends itself, in seconds since the epoch; None: never.
        deadline_s: the same, from now on: a machine whose clock is wrong counts these instead.
        node: what is started on it; None: nothing, as on a head, which the client reaches.
    """
    parts = [_START]
    if deadline_at is not None and deadline_s is not None and shutdown:
        parts.append(
            _DEADLINE.format(
                at=int(deadline_at), most=max(1, int(deadline_s)), shutdown=shutdown, quoted=shlex.quote(shutdown)
            )
        )
    if node is not None:
        program = _FUTURE + "\n".join((_source(store_client), _source(metadata), _main_of(node)))
        parts.append(_NODE.format(program=program, token=node.token, give_up=shutdown or "exit 1"))
    script = "".join(parts).encode()
    if len(script) > MAX_BYTES:
        raise InternalError(f"the boot script has {len(script)} bytes, and at most {MAX_BYTES} are possible")
    return script


def _main_of(node: NodeBoot) -> str:
    settings = {name: getattr(node, name) for name in ("store", "group", "metadata", "user", "patience_s")}
    head, _, tail = _PROGRAM.partition("%s")
    return head + repr(json.dumps(settings)) + tail


def _source(module: ModuleType) -> str:
    """Return a module's text without its first docstring; found in an archive, too."""
    text = re.sub(r'\A""".*?"""\n', "", inspect.getsource(module), count=1, flags=re.DOTALL)
    return text.replace(_FUTURE, "", 1)
