"""A lab's accounting: MariaDB and slurmdbd on this machine, and who may use what."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from tests.lab.hosts import clean_environment, wait_until
from tests.lab.slots import Slot
from tests.lab.slurm_conf import DBD_PORT, Options

__all__ = ["limit_gpus", "start_accounting"]

# sacctmgr(1), one call a line, and few of them: each takes half a second.
ASSOCIATIONS = """
add cluster lab
add qos low priority=1 gracetime={grace_s} preemptmode=requeue
add qos lowcancel priority=1 gracetime={grace_s} preemptmode=cancel
modify qos normal set priority=10 preempt=low,lowcancel gracetime={grace_s} preemptmode=requeue
add qos high priority=100 preempt=low,lowcancel,normal
add qos limited priority=10
modify account root set qos=low,lowcancel,normal,high,limited defaultqos=normal
add account lab,other
add user root account=lab,other
modify user root set defaultaccount=lab
"""
# The database knows GPUs only once the controller has told it. A user has two of `limited`'s at a time, so that a
# larger job waits for that reason.
LIMITS = "modify qos limited set maxtresperuser=gres/gpu=2"


def start_accounting(folder: Path, slot: Slot, options: Options) -> None:
    """Start the database and slurmdbd of a new lab and fill them; returns when sacctmgr works. Needs munge."""
    data, env = folder / "mariadb", clean_environment(slot)
    log = folder / "log" / "mariadb.log"
    install = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--skip-test-db"]
    install += ["--innodb-log-file-size=16M", "--auth-root-authentication-method=normal"]
    with log.open("wb") as file:
        subprocess.run(install, env=env, stdout=file, stderr=file, check=True)
        server = ["mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={folder}/mariadb.sock"]
        server += ["--skip-networking", "--skip-name-resolve"]
        server += ["--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=900", "--innodb-log-file-size=16M"]
        subprocess.Popen(server, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
    wait_until(lambda: _sql(folder, "select 1"), f"MariaDB, see {log}")
    assert _sql(
        folder, "create user slurm@localhost identified by 'slurm'; grant all on slurm_acct.* to slurm@localhost"
    )
    _write_slurmdbd_conf(folder, slot)
    env["SLURM_CONF"] = str(folder / "slurm.conf")
    env["MYSQL_UNIX_PORT"] = f"{folder}/mariadb.sock"
    subprocess.run(["slurmdbd"], env=env, check=True)
    wait_until(lambda: _sacctmgr("-n show cluster", env).returncode == 0, "slurmdbd")
    for line in ASSOCIATIONS.format(grace_s=options.grace_s).strip().splitlines():
        done = _sacctmgr(line, env)
        assert done.returncode == 0, f"sacctmgr {line}: {done.stdout}{done.stderr}"


def limit_gpus(folder: Path, slot: Slot) -> None:
    """Set the limits that need the controller; returns when they are in force."""
    env = {**clean_environment(slot), "SLURM_CONF": str(folder / "slurm.conf")}
    wait_until(lambda: _sacctmgr(LIMITS, env).returncode == 0, "the database to know GPUs")


def _sql(folder: Path, statement: str) -> bool:
    argv = ["mariadb", "--no-defaults", "-uroot", "-S", f"{folder}/mariadb.sock", "-e", statement]
    return subprocess.run(argv, capture_output=True).returncode == 0


def _sacctmgr(line: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sacctmgr", "-iQ", *line.split()], env=env, capture_output=True, text=True)


def _write_slurmdbd_conf(folder: Path, slot: Slot) -> None:
    settings = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge.socket",
        "DbdHost": socket.gethostname().partition(".")[0],
        "DbdAddr": "127.0.0.1",
        "DbdPort": str(slot.port(DBD_PORT)),
        "SlurmUser": "root",
        "PidFile": f"{folder}/slurmdbd.pid",
        "LogFile": f"{folder}/log/slurmdbd.log",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": "slurm",
        "StoragePass": "slurm",
        "StorageLoc": "slurm_acct",
    }
    path = folder / "slurmdbd.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    path.chmod(0o600)  # slurmdbd refuses it otherwise
