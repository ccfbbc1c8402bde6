"""What is cleared away at a site: the other half of a run, checkpoints by its rules, environments."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab.archives import warm
from tests.launcher.bench import Bench
from tests.launcher.site_fakes import Elsewhere, FolderShell, live_elsewhere
from windlass.cli import main
from windlass.core.errors import UsageError
from windlass.core.files import lock
from windlass.launcher.gc import at_site
from windlass.launcher.gc.at_site import collect_environments
from windlass.launcher.gc.removable import Kept, Removal
from windlass.record.manifest import commit_manifest
from windlass.runs.home import Home
from windlass.sites.profile import FileSystem, Profile
from windlass.supervise.builds.once import READY, build_once, remove_built

RETAIN = {"checkpoints": {"last": 1}}
DAY = 86400.0


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend of these runs knows no job that is over."""
    for module in ("removable", "retain_rules"):
        monkeypatch.setattr(f"windlass.launcher.gc.{module}.has_processes", lambda run: False)


@pytest.fixture
def elsewhere(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    return live_elsewhere(bench.launch({"run": "true", "retain": RETAIN}), tmp_path / "shared", monkeypatch)


def over(elsewhere: Elsewhere, verdict: str = "succeeded", cause: str = "ok") -> None:
    """The run has ended there, and that is known here."""
    elsewhere.says_ended(verdict, cause)
    elsewhere.run.reconcile()


def saved(elsewhere: Elsewhere, *steps: int) -> Path:
    folder = elsewhere.there.checkpoints("main")
    for step in steps:
        (folder / f"step-{step}").mkdir(parents=True)
        (folder / f"step-{step}" / "w").write_text(f"{step}" * 5000)
        commit_manifest(folder / f"step-{step}", step=step, at=float(step))
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestRuns:
    def gc(self) -> int:
        return main(["gc", "--runs", "--older-than", "0s", "--yes"])

    def test_a_run_goes_at_both_ends(self, elsewhere: Elsewhere, capsys: pytest.CaptureFixture[str]) -> None:
        saved(elsewhere, 1)
        over(elsewhere)
        assert self.gc() == 0
        assert capsys.readouterr().out.startswith("removed       run")
        assert names(elsewhere.there.path.parent) == []
        assert not elsewhere.run.folder.path.exists()

    def test_while_its_site_is_silent_it_stays_whole(
        self, elsewhere: Elsewhere, capsys: pytest.CaptureFixture[str]
    ) -> None:
        over(elsewhere)
        elsewhere.is_silent()
        assert self.gc() == 0
        out = capsys.readouterr().out
        assert out == f"kept          run          {elsewhere.run.folder.path}  cut\n"
        assert elsewhere.there.journal.is_dir()
        assert elsewhere.run.folder.journal.is_dir()

    def test_a_removal_whose_answer_was_lost_is_finished_by_the_next(self, elsewhere: Elsewhere) -> None:
        over(elsewhere)
        elsewhere.shell.cuts = [("down", 0)]
        self.gc()
        assert not elsewhere.there.path.exists()
        assert elsewhere.run.folder.path.exists()
        self.gc()
        assert not elsewhere.run.folder.path.exists()

    def test_what_goes_on_there_stays_whatever_is_known_here(
        self, elsewhere: Elsewhere, bench: Bench, capsys: pytest.CaptureFixture[str]
    ) -> None:
        bench.say_ended(elsewhere.run, "succeeded", "ok")  # not told to the site
        assert elsewhere.run.state.is_terminal
        assert self.gc() == 0
        assert "is active at the site" in capsys.readouterr().out
        assert elsewhere.there.journal.is_dir()
        assert elsewhere.run.folder.journal.is_dir()

    def test_what_was_removed_there_already_goes_here(self, elsewhere: Elsewhere) -> None:
        over(elsewhere)
        os.rename(elsewhere.there.path, elsewhere.there.path.with_name(f".trash-{elsewhere.run.id}"))
        self.gc()
        assert names(elsewhere.there.path.parent) == []
        assert not elsewhere.run.folder.path.exists()


class TestCheckpoints:
    def test_rules_hold_there(self, elsewhere: Elsewhere, capsys: pytest.CaptureFixture[str]) -> None:
        folder = saved(elsewhere, 1, 2, 3)
        over(elsewhere)
        assert main(["gc"]) == 0
        out = capsys.readouterr().out
        site = elsewhere.run.plan.site.name
        assert f"due           checkpoint   {site}:{folder}/step-1  " in out
        assert f"kept          checkpoint   {site}:{folder}/step-3  one of the last 1\n" in out
        assert names(folder) == ["step-1", "step-2", "step-3"]
        assert main(["gc", "--yes"]) == 0
        assert names(folder) == ["step-3"]
        assert main(["gc", "--json"]) == 0

    def test_a_failed_run_keeps_what_it_goes_on_from(self, elsewhere: Elsewhere) -> None:
        folder = saved(elsewhere, 1, 2, 3)
        os.truncate(folder / "step-3" / "w", 7)
        over(elsewhere, "failed", "user-error")
        main(["gc", "--yes"])
        assert names(folder) == ["step-2", "step-3"]

    def test_in_motion_nothing_is_asked(self, elsewhere: Elsewhere) -> None:
        folder = saved(elsewhere, 1, 2)
        before = elsewhere.shell.asked.count("clear")
        main(["gc", "--yes"])
        assert elsewhere.shell.asked.count("clear") == before
        assert names(folder) == ["step-1", "step-2"]

    def test_a_silent_site_keeps_them(self, elsewhere: Elsewhere, capsys: pytest.CaptureFixture[str]) -> None:
        folder = saved(elsewhere, 1, 2)
        over(elsewhere)
        elsewhere.is_silent()
        assert main(["gc", "--yes"]) == 0
        assert "kept" in capsys.readouterr().out
        assert names(folder) == ["step-1", "step-2"]

    def test_a_removal_that_was_cut_off_is_finished_by_the_next(
        self, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = saved(elsewhere, 1, 2, 3)
        over(elsewhere)
        with monkeypatch.context() as patch:
            patch.setattr("windlass.supervise.remote.gc.delete", lambda path: None)  # killed before it deleted
            main(["gc", "--yes"])
        assert [name for name in names(folder) if name[0] != "."] == ["step-3"]
        saved(elsewhere, 4)
        main(["gc", "--yes"])
        assert names(folder) == ["step-4"]

    def test_where_nobody_can_be_asked_they_stay(
        self, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        over(elsewhere)
        made = elsewhere.mirror

        def unheard(*unused: object) -> Any:
            mirror = made()
            mirror.transport.has_server = False
            return mirror

        monkeypatch.setattr(at_site, "mirror_of", unheard)
        assert main(["gc", "--yes"]) == 0
        assert "windlass has no ssh access to the site" in capsys.readouterr().out


@pytest.fixture
def envs(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`envs` of a site whose site shell works on a folder."""
    monkeypatch.setattr(at_site, "shell_for", lambda profile: FolderShell())
    warm(Home(home))
    return tmp_path / "shared" / "windlass" / "envs"


def environment(envs: Path, key: str, age_s: float = 2 * DAY) -> Path:
    place = envs / key

    def build(folder: Path) -> Mapping[str, object]:
        (folder / "lib.py").write_text("x" * 9000)
        return {}

    build_once(place, build, lambda _: None)
    (envs / f"{key}.tar").write_text("packed")
    os.utime(place / READY, (time.time() - age_s,) * 2)
    return place


def profile_of(envs: Path) -> Profile:
    return Profile(name="far", kind="slurm", fs=FileSystem(shared=str(envs.parent.parent)))


def cleared(home: Path, envs: Path, *, older_than_s: float = DAY, is_dry: bool = False) -> dict[str, str]:
    """Why each stays; empty for those that go."""
    found = list(collect_environments(Home(home), profile_of(envs), older_than_s, is_dry=is_dry))
    assert all(each.num_bytes >= 9000 and each.site == "far" for each in found if isinstance(each, Removal))
    return {each.path.name: each.why if isinstance(each, Kept) else "" for each in found}


class TestEnvironments:
    def test_old_ones_go_and_the_others_say_why_not(self, home: Path, envs: Path) -> None:
        environment(envs, "a" * 64)
        environment(envs, "b" * 64, age_s=7200.0)
        (envs / "pythons").mkdir()
        for is_dry in (True, False):
            assert (envs / ("a" * 64)).is_dir()
            told = cleared(home, envs, is_dry=is_dry)
            assert told.keys() == {"a" * 64, "b" * 64}
            assert told["a" * 64] == ""
            assert told["b" * 64].startswith("used 2h")
        assert names(envs) == [f"{'a' * 64}.lock", "b" * 64, f"{'b' * 64}.lock", f"{'b' * 64}.tar", "pythons"]
        assert cleared(home, envs).keys() == {"b" * 64}

    @pytest.mark.parametrize("is_here", [True, False], ids=["known here", "known there"])
    @pytest.mark.parametrize(("verdict", "cause"), [("failed", "user-error"), ("succeeded", "ok")])
    def test_what_a_run_may_go_on_with_stays(
        self, bench: Bench, envs: Path, verdict: str, cause: str, is_here: bool
    ) -> None:
        environment(envs, "a" * 64)
        run = bench.launch()
        bench.say_ended(run, verdict, cause)
        places = run.folder.path / "places.json"
        places.write_text(json.dumps({"python": f"{envs}/{'a' * 64}/bin/python"}))
        if not is_here:
            (envs.parent / "runs").mkdir(parents=True)
            os.rename(run.folder.path, envs.parent / "runs" / run.id)
        (why,) = cleared(bench.home.path, envs).values()
        assert bool(why) == (verdict == "failed")
        assert (run.id in why) == (verdict == "failed")

    def test_one_that_is_being_built_stays(self, home: Path, envs: Path) -> None:
        place = environment(envs, "a" * 64)
        with lock(place.with_name(place.name + ".lock")):
            assert cleared(home, envs) == {place.name: "it is being built"}

    def test_one_that_is_found_meanwhile_stays(self, home: Path, envs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        place = environment(envs, "a" * 64)

        def remove(place: Path, used_at: float) -> bool:
            os.utime(place / READY)
            return remove_built(place, used_at)

        monkeypatch.setattr("windlass.supervise.remote.gc.remove_built", remove)
        assert cleared(home, envs) == {place.name: "it was used meanwhile"}
        assert place.is_dir()

    def test_a_site_without_any_has_nothing(self, home: Path, envs: Path) -> None:
        assert cleared(home, envs) == {}

    def test_the_command_line(self, home: Path, envs: Path, capsys: pytest.CaptureFixture[str]) -> None:
        environment(envs, "a" * 64)
        (home / "sites").mkdir(parents=True, exist_ok=True)
        (home / "sites" / "far.yaml").write_text(
            f"name: far\nkind: slurm\nfs: {{shared: {envs.parent.parent}}}\npartitions: {{main: {{}}}}\n"
        )
        assert main(["gc", "--environments", "--on", "far", "--dry-run"]) == 0
        assert f"would remove  environment  far:{envs}/{'a' * 64}" in capsys.readouterr().out
        assert main(["gc", "--environments", "--on", "far", "--json"]) == 0
        (removed,) = json.loads(capsys.readouterr().out)["removed"]
        assert removed["site"] == "far"
        assert not (envs / ("a" * 64)).exists()

    @pytest.mark.parametrize("words", [[], ["--runs", "--older-than", "1d"], ["--environments", "--yes"]])
    def test_what_it_cannot_do_there_is_said(self, home: Path, words: list[str]) -> None:
        assert main(["gc", "--on", "far", *words]) == UsageError.exit_code
