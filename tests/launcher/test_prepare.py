from __future__ import annotations

import os
from typing import Any

import pytest

from tests.launcher.bench import Bench, commit
from windlass import Options
from windlass.core.errors import AccessError, PreconditionError, SpecError, UsageError, WindlassError
from windlass.launcher.prepare import prepare_file
from windlass.secrets.vault import Vault
from windlass.sites.profile import Partition, Profile
from windlass.sites.store import save_site

MAIN = {"run": "true"}


def refusal(bench: Bench, data: dict[str, Any], options: Options | None = None) -> WindlassError:
    """The error of an experiment that cannot be planned, of which nothing was left."""
    with pytest.raises(WindlassError) as caught:
        bench.prepare(data, options)
    assert bench.left() == []
    return caught.value


def test_an_unknown_site(bench: Bench) -> None:
    for error in (refusal(bench, MAIN, Options(on="lokal")), refusal(bench, {**MAIN, "where": "lokal"})):
        assert isinstance(error, UsageError)
        assert (error.message, error.code) == ("no site `lokal`", "unknown-site")
        assert error.hint.startswith("did you mean `local`?")


def test_a_site_that_is_nowhere(bench: Bench) -> None:
    error = refusal(bench, {**MAIN, "where": ["local", "elsewhere"]})
    assert (error.message, error.code) == ("no site `elsewhere`", "unknown-site")


def test_the_first_place_that_fits_is_planned_for(bench: Bench) -> None:
    partitions = {"cpu": Partition(num_nodes=4, gpus=0), "gpu": Partition(num_nodes=4, gpus=4, time_max=3600.0)}
    save_site(Profile(name="lab", partitions=partitions), bench.home.path)
    data = {"tasks": {"main": {"run": "true", "gpus": 4}}, "where": ["lab/cpu", "lab/gpu"]}
    plan = bench.prepare(data, Options(allow_dirty=True)).plan
    assert (plan.site.name, plan.site.partition, plan.tasks[0].queue.partition) == ("lab", "gpu", "gpu")
    assert any(note.startswith("passed over: lab/cpu: ") for note in plan.notes)
    assert refusal(bench, data, Options(on="lab/cpu", allow_dirty=True)).code == "does-not-fit"
    wide = {"tasks": {"main": {"run": "true", "gpus": 8}}}
    assert refusal(bench, wide, Options(on="lab/gpu", allow_dirty=True)).code == "needs-reshape"
    reshaped = bench.prepare(wide, Options(on="lab/gpu", reshape=True, allow_dirty=True)).plan.tasks[0]
    assert (reshaped.shape.nodes, reshaped.shape.gpus) == (2, 4)


def test_an_override_that_is_given_twice_is_noted(bench: Bench) -> None:
    path = bench.code / "play.yaml"
    path.write_text("{name: play, params: {lr: 1}, run: 'train ${params.lr}'}\n")
    plan = prepare_file(path, ["params.lr=2", "--params.lr=3"], Options(allow_dirty=True), home=bench.home).plan
    assert "params.lr is set twice; the last one is used: --params.lr=3" in plan.notes


def test_a_secret_without_a_value(bench: Bench) -> None:
    error = refusal(bench, {**MAIN, "env": {"secrets": ["HF_TOKEN"]}})
    assert isinstance(error, AccessError)
    assert (error.message, error.hint) == ("no value for the secret `HF_TOKEN`", "windlass secret set HF_TOKEN")
    assert error.code == "secret-missing"


def test_every_missing_secret_is_named(bench: Bench) -> None:
    Vault(bench.home.vault).set("B", b"value")
    error = refusal(bench, {**MAIN, "env": {"secrets": ["C", "B", "A"]}})
    assert error.message == "no value for the secrets `A`, `C`"
    assert error.hint == "windlass secret set A; windlass secret set C"


def test_a_missing_secret_is_named_as_the_vault_would(bench: Bench) -> None:
    error = refusal(bench, {**MAIN, "env": {"secrets": {"name": "TOKEN", "from": "me_TOKEN"}}})
    assert (error.message, error.hint) == ("no value for the secret `me_TOKEN`", "windlass secret set me_TOKEN")


def test_folders_that_beaker_would_mount_are_looked_for(bench: Bench) -> None:
    mounts = [{"mountPath": str(bench.code), "source": {"weka": "code"}}]
    data = {"tasks": {"main": {"run": "true", "beaker": {"datasets": mounts}}}}
    notes = bench.prepare(data).plan.notes
    assert f"tasks.main.beaker.datasets.0=weka at {bench.code}: the folder is there" in notes
    mounts[0]["mountPath"] = str(bench.code / "none")
    assert "brought.paths" in refusal(bench, data).message


def test_data_that_is_not_there(bench: Bench) -> None:
    error = refusal(bench, {**MAIN, "data": {"corpus": "file:corpus.txt"}})
    assert "corpus" in error.message
    assert str(bench.code / "corpus.txt") in error.message
    assert (error.code, error.exit_code) == ("file-not-found", 4)


def test_data_that_cannot_be_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (bench.code / "corpus").mkdir()
    (bench.code / "corpus" / "text").write_text("x")
    scan = os.scandir

    def denied(path: Any = ".") -> Any:  # root may read everything, so permissions cannot be taken away
        if str(path).endswith("corpus"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", denied)
    error = refusal(bench, {**MAIN, "data": {"corpus": "file:corpus"}})
    assert error.code == "file-unreadable"
    assert str(bench.code / "corpus") in error.message


@pytest.mark.parametrize(("name", "slug"), [("nowhere", "file-not-found"), ("file", "file-not-found")])
def test_a_folder_of_code_that_is_none(name: str, slug: str, bench: Bench) -> None:
    (bench.code / "file").write_text("")
    error = refusal(bench, {**MAIN, "code": name})
    assert error.code == slug
    assert str(bench.code / name) in error.message


def test_code_without_a_repository(bench: Bench) -> None:
    error = refusal(bench, MAIN, Options())
    assert error.code == "no-commit"
    assert str(bench.code) in error.message
    assert error.hint == "add --snapshot (stores this exact tree), or `git init` and commit"


def test_a_dirty_tree(bench: Bench) -> None:
    (bench.code / "train.py").write_text("one")
    commit(bench.code)
    assert bench.prepare(MAIN, Options()).plan.pins.code.kind == "commit"
    (bench.code / "train.py").write_text("two")
    (bench.code / "new.py").write_text("new")
    error = refusal(bench, MAIN, Options())
    assert isinstance(error, PreconditionError)
    assert (error.code, error.exit_code) == ("dirty-tree", 8)
    assert "train.py" in error.message
    assert "new.py" in error.message
    assert "--snapshot" in error.hint
    assert bench.prepare(MAIN, Options(snapshot=True)).plan.pins.code.kind == "snapshot"
    assert bench.prepare(MAIN, Options(allow_dirty=True)).plan.pins.code.kind == "in-place"


def test_a_dry_plan_leaves_nothing_behind(bench: Bench) -> None:
    (bench.code / "train.py").write_text("one")
    commit(bench.code)
    (bench.code / "train.py").write_text("two")
    before = sorted(bench.code.rglob("*"))
    prepared = bench.prepare(MAIN, Options(snapshot=True, dry_run=True))
    assert prepared.plan.pins.code.kind == "snapshot"
    assert sorted(bench.code.rglob("*")) == before
    assert bench.left() == []
    stored = bench.prepare(MAIN, Options(snapshot=True))
    assert stored.plan.plan_hash == prepared.plan.plan_hash
    assert sorted(bench.code.rglob("*")) != before


def test_everything_that_is_wrong_comes_at_once_with_its_place(bench: Bench) -> None:
    path = bench.code / "play.yaml"
    path.write_text(
        "name: play\n"
        "params: {lr: 1}\n"
        "env: {image: torch}\n"
        "tasks:\n"
        "  a: {run: 'python train.py ${params.lrr}', nodes: 2, memory: 900TiB}\n"
        "  b: {run: 'true'}\n"
    )
    with pytest.raises(SpecError) as caught:
        prepare_file(path, options=Options(allow_dirty=True), home=bench.home)
    found = {problem.code: problem for problem in caught.value.problems}
    assert set(found) == {"unknown-token", "does-not-fit", "unsupported-setting"}
    assert found["unknown-token"].message == "unknown token `${params.lrr}` in tasks.a.run"
    assert found["unknown-token"].hint == "did you mean `${params.lr}`?"
    places = {code: problem.place for code, problem in found.items()}
    assert {code: place.line for code, place in places.items() if place is not None} == {
        "unknown-token": 5,
        "does-not-fit": 5,
        "unsupported-setting": 3,
    }


def test_best_effort_notes_what_is_not_kept(bench: Bench) -> None:
    data = {"tasks": {"main": {"run": "true", "disk": "1GiB"}}}
    assert [problem.code for problem in refusal(bench, data).problems] == ["unsupported-setting"]
    plan = bench.prepare(data, Options(allow_dirty=True, best_effort=True)).plan
    assert len(plan.notes) == 2  # the other: code in place
    assert plan.notes[0].startswith("tasks.main.disk=1GiB is ignored (--best-effort): ")
    assert plan.is_best_effort


def test_overrides_of_a_file_are_part_of_the_plan(bench: Bench) -> None:
    path = bench.code / "play.yaml"
    path.write_text("{name: play, params: {lr: 1}, run: 'train ${params.lr}'}\n")
    options = Options(allow_dirty=True)
    plain = prepare_file(path, options=options, home=bench.home)
    changed = prepare_file(path, ["params.lr=2"], options, home=bench.home)
    assert changed.plan.overrides == ("params.lr=2",)
    assert changed.plan.task("main").argv[-1] == "train 2"
    assert changed.plan.plan_hash != plain.plan.plan_hash
    assert changed.base == bench.code
    assert changed.code_folder == bench.code
