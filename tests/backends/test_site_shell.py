"""The way to a site: what arrives is what was said, and what is broken is named."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.hosts import Hosts
from windlass.backends import site_shell as site_shell_module
from windlass.backends.run_program import exchange
from windlass.backends.site_shell import LocalShell, SiteShell, SshShell, shell_for
from windlass.core.errors import AccessError, PreconditionError, UnreachableError
from windlass.sites.profile import Profile

SHOW = "import json, sys; print(json.dumps(sys.argv[1:]))"
NASTY = [
    "", " ", "a b", "it's", '"', "$HOME", "`id`", "a\\b\\\\c", "!!", "#x", "~", "*", "%s%%", "é\u4e16", "a\nb", "\t", "-n",
    "&& false", ";", "\\101", "x" * 5000, "{a,b}", "\udcff",
]  # fmt: skip


def test_the_way_follows_from_the_profile() -> None:
    assert isinstance(shell_for(Profile(name="here")), LocalShell)
    found = shell_for(Profile(name="there", ssh="me@login"))
    assert (found.name, found.is_local) == ("me@login", False)


class TestExchange:
    def test_bytes_go_in_and_come_out(self, tmp_path: Path) -> None:
        content = os.urandom(3_000_000)
        (tmp_path / "in").write_bytes(content)
        for stdin in (content, tmp_path / "in"):
            done = exchange(["cat"], stdin=stdin, timeout_s=60, limit_bytes=1 << 22)
            assert (done.code, done.out) == (0, content)

    def test_too_long_an_answer_is_cut_off(self) -> None:
        with pytest.raises(OverflowError, match="more than 1000 bytes"):
            exchange(["cat", "/dev/zero"], timeout_s=60, limit_bytes=1000)

    def test_of_standard_error_the_beginning_is_kept(self) -> None:
        done = exchange(["sh", "-c", "yes | head -c 1000000 >&2; exit 3"], timeout_s=60, limit_bytes=1000)
        assert done.code == 3
        assert done.err == "y\n" * 32768

    def test_what_goes_on_in_the_background_is_not_waited_for(self) -> None:
        began = time.monotonic()
        done = exchange(["sh", "-c", "sleep 300 & echo $!"], timeout_s=60, limit_bytes=1000)
        os.kill(int(done.out), 9)
        assert time.monotonic() - began < 200


class TestHere:
    def test_commands_get_a_scrubbed_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("SLURM_JOB_ID", "SBATCH_ACCOUNT", "SQUEUE_FORMAT", "WINDLASS_SECRET_X", "PYTHONPATH"):
            monkeypatch.setenv(name, "1")
        monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
        monkeypatch.setenv("LC_TIME", "C")
        found = dict(line.split("=", 1) for line in LocalShell().run(["env"], env={"X": "1"}).out.splitlines())
        assert found["SLURM_CONF"] == "/etc/slurm.conf"
        assert found["LC_TIME"] == "C"
        assert found["X"] == "1"
        allowed = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_TIME", "TZ", "TMPDIR", "SLURM_CONF", "X"]
        assert [name for name in found if name not in allowed and not name.startswith("LC_")] == []

    def test_a_failure_of_the_command_is_an_answer(self, tmp_path: Path) -> None:
        assert LocalShell().run(["sh", "-c", "echo no >&2; exit 255"]).code == 255
        missing = LocalShell().run([str(tmp_path / "nothing")])
        assert (missing.code, missing.err) == (127, f"{tmp_path}/nothing: No such file or directory")

    def test_no_answer_in_time_is_an_error(self) -> None:
        with pytest.raises(
            UnreachableError, match=r"this machine did not respond to `sleep 30` within 0.1 s"
        ) as caught:
            LocalShell().run(["sleep", "30"], timeout_s=0.1)
        assert caught.value.code == "site-unreachable"

    def test_an_answer_without_end_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(site_shell_module, "LIMIT_BYTES", 1000)
        with pytest.raises(PreconditionError, match="printed more than 1000 bytes"):
            LocalShell().run(["cat", "/dev/zero"])


@pytest.mark.parametrize("shell", [["sh"], ["bash"], ["dash"]], ids=lambda shell: shell[0])
def test_every_argument_survives_the_login_shell(shell: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    line = site_shell_module._remote_line(["env", "X=1", sys.executable, "-c", SHOW, *NASTY], "mark:")
    assert all(character not in line.partition("' '")[2] for character in '!$"`\n\t*~;&')
    done = subprocess.run([*shell, "-c", line], capture_output=True, check=True)
    mark, _, said = done.stdout.partition(b":")
    assert mark == b"mark"
    assert subprocess.run([sys.executable, "-c", SHOW, *NASTY], capture_output=True).stdout == said


class TestControlSockets:
    def test_their_folder_is_short_and_ours_alone(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("long" * 20)))
        folder = site_shell_module._socket_folder()
        assert len(str(folder)) < 40
        assert folder.stat().st_mode & 0o777 == 0o700

    def test_a_folder_that_others_can_enter_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        runtime = Path("/tmp") / f"wl{os.getpid()}"
        (runtime / "windlass-ssh").mkdir(parents=True)
        (runtime / "windlass-ssh").chmod(0o777)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        try:
            with pytest.raises(AccessError, match="must be a folder that you alone can access"):
                site_shell_module._socket_folder()
        finally:
            (runtime / "windlass-ssh").rmdir()
            runtime.rmdir()

    def test_two_configurations_share_no_connection(self, tmp_path: Path) -> None:
        paths = [SshShell("h", config=tmp_path / name)._control_path() for name in "ab"]
        assert paths[0] != paths[1]


@pytest.mark.system
class TestOverSsh:
    @pytest.fixture
    def there(self, hosts: Hosts) -> Iterator[SshShell]:
        shell = SshShell("h1", config=hosts.ssh_config, alive_s=2, connect_timeout_s=8)
        yield shell
        shell.close()

    def changed(self, hosts: Hosts, tmp_path: Path, old: str, new: str) -> Path:
        config = tmp_path / "config"
        config.write_text(hosts.ssh_config.read_text().replace(old, new))
        return config

    def test_it_is_another_machine_and_says_what_it_heard(self, there: SiteShell) -> None:
        assert there.run(["hostname"]).out == "h1\n"
        done = subprocess.run([sys.executable, "-c", SHOW, *NASTY], capture_output=True)
        assert there.run_bytes([sys.executable, "-c", SHOW, *NASTY]).out == done.stdout
        content = os.urandom(2_000_000)
        assert there.run_bytes(["cat"], stdin=content).out == content
        assert there.run(["sh", "-c", 'echo "$X"'], env={"X": "a  b"}).out == "a  b\n"

    def test_a_failure_of_the_command_is_an_answer(self, there: SiteShell) -> None:
        assert there.run(["sh", "-c", "exit 3"]).code == 3
        assert there.run(["sh", "-c", "exit 255"]).code == 254
        missing = there.run(["no-such-program"])
        assert missing.code == 127
        assert "no-such-program" in missing.err

    def test_one_connection_serves_all(self, there: SiteShell) -> None:
        ports = {there.run(["sh", "-c", "echo $SSH_CONNECTION"]).out for _ in range(3)}
        assert len(ports) == 1

    def test_what_start_up_files_of_the_shell_print_is_passed_over(self, hosts: Hosts, there: SiteShell) -> None:
        hosts.run("h1", ["sh", "-c", "echo 'echo welcome; export SBATCH_X=1' > ~/.bashrc"])
        try:
            assert there.run(["sh", "-c", "echo hello; env | grep SBATCH_"]).out == "hello\n"
        finally:
            hosts.run("h1", ["rm", str(Path.home() / ".bashrc")])

    def test_start_up_files_that_wait_are_what_the_hint_says(self, hosts: Hosts, there: SiteShell) -> None:
        hosts.run("h1", ["sh", "-c", "echo 'echo $$ >/dev/shm/waits; exec sleep 600' > ~/.bashrc"])
        try:
            with pytest.raises(UnreachableError, match="h1 did not respond to `true` within 3 s") as caught:
                there.run(["true"], timeout_s=3)
        finally:
            hosts.run("h1", ["sh", "-c", "rm ~/.bashrc; kill $(cat /dev/shm/waits)"])
        assert "start-up file" in caught.value.hint
        assert there.run(["hostname"]).out == "h1\n"

    def test_a_host_key_that_changed_is_refused(self, hosts: Hosts, tmp_path: Path) -> None:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
        public = (tmp_path / "key.pub").read_text()
        (tmp_path / "known").write_text(f"h1 {public}")
        config = self.changed(hosts, tmp_path, str(hosts.known_hosts), str(tmp_path / "known"))
        with pytest.raises(UnreachableError, match="cannot reach h1: its host key has changed") as caught:
            SshShell("h1", config=config).run(["true"])
        assert "ssh-keygen -R h1" in caught.value.hint
        assert (tmp_path / "known").read_text() == f"h1 {public}"

    def test_a_host_key_that_is_not_known_is_not_taken(self, hosts: Hosts, tmp_path: Path) -> None:
        (tmp_path / "known").write_text("")
        config = self.changed(hosts, tmp_path, str(hosts.known_hosts), str(tmp_path / "known"))
        config.write_text(config.read_text().replace("StrictHostKeyChecking yes", "StrictHostKeyChecking no"))
        with pytest.raises(UnreachableError, match="cannot reach h1: ssh does not know its host key") as caught:
            SshShell("h1", config=config).run(["true"])
        assert "fingerprint" in caught.value.hint
        assert (tmp_path / "known").read_text() == ""

    def test_without_a_key_nobody_gets_in_and_nobody_is_asked(self, hosts: Hosts, tmp_path: Path) -> None:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
        config = self.changed(hosts, tmp_path, str(hosts.identity), str(tmp_path / "key"))
        with pytest.raises(UnreachableError, match=r"cannot reach h1: .*Permission denied") as caught:
            SshShell("h1", config=config).run(["true"])
        assert "ssh-add" in caught.value.hint
        assert caught.value.exit_code == 6

    def test_a_name_that_nobody_knows(self, hosts: Hosts) -> None:
        with pytest.raises(UnreachableError, match=r"Could not resolve hostname nowhere\.invalid") as caught:
            SshShell("nowhere.invalid", config=hosts.ssh_config).run(["true"])
        assert "check the spelling of" in caught.value.hint

    def test_a_host_that_is_cut_off_is_told_and_comes_back(self, hosts: Hosts, there: SiteShell) -> None:
        there.run(["true"])
        hosts.cut("h1")
        try:
            with pytest.raises(UnreachableError, match="cannot reach h1"):
                there.run(["true"])
        finally:
            hosts.join("h1")
        assert there.run(["hostname"]).out == "h1\n"


def test_ssh_gets_no_secrets_of_ours_to_send_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    def fake(*_: object, env: dict[str, str], **__: object) -> None:
        seen.update(env)
        raise TimeoutError

    monkeypatch.setattr(site_shell_module, "exchange", fake)
    monkeypatch.setenv("WINDLASS_SECRET_TOKEN", "quiet")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/agent")
    with pytest.raises(UnreachableError):
        SshShell("me@login").run(["true"])
    assert seen["SSH_AUTH_SOCK"] == "/agent"
    assert "quiet" not in seen.values()


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: run the tests as root, who makes PID namespaces")
def test_a_program_in_another_namespace_is_reaped_by_who_entered_it() -> None:
    """A process that nobody reaps keeps its PID namespace alive, and this process adopts orphans in system tests."""
    before = zombies()
    for _ in range(20):
        with pytest.raises(TimeoutError):
            exchange(["unshare", "--pid", "--fork", "sleep", "60"], timeout_s=0.05, limit_bytes=1 << 20)
    assert zombies() - before == set()


def zombies() -> set[str]:
    """Return the dead children of this process that nobody has reaped."""
    status = subprocess.run(
        ["ps", "-o", "pid=,stat=,comm=", "--ppid", str(os.getpid())], capture_output=True, text=True
    )
    return {line for line in status.stdout.splitlines() if line.split()[1].startswith("Z")}
