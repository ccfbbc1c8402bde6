"""Comparison of a run's code, environment and image with their pins.

A pin keeps its content (a commit with its lock file, an image by digest), so a later change of the source is not a
failure. A changed source without history is reported as `changed`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError, WindlassError
from windlass.core.files import sha256_file
from windlass.core.phrases import count
from windlass.launcher.verify.finding import Finding, Status
from windlass.launcher.verify.image_as_run import image_as_run
from windlass.pin.code.comparing import FileChange, changed_since
from windlass.pin.code.git import open_repository
from windlass.pin.environment.pinned import EnvironmentPin
from windlass.plan.plan import Plan
from windlass.runs.home import Home
from windlass.runs.store import RunFolder

__all__ = ["Present", "check_code", "check_environment", "check_image"]

_MAX_LISTED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """Run to check, with the paths of its sources as they are now.

    Attributes:
        base: folder for the experiment's relative paths; None if unknown.
        compares_sources: also compare the user's own folders, not only the pinned content.
    """

    run: RunFolder
    plan: Plan
    base: Path | None
    home: Home
    compares_sources: bool = True

    @property
    def code_folder(self) -> Path:
        """Return the path of the user's code folder."""
        return (self.base or Path.cwd()) / str(self.plan.experiment.get("code", "."))

    @property
    def store(self) -> Path:
        """Return the path of windlass's own repository, which has the snapshots of folders outside any repository."""
        return self.home.cache / "code.git"

    def env(self, key: str) -> str:
        """Return a setting of the experiment's `env`."""
        env = self.plan.experiment.get("env")
        value = env.get(key, "") if isinstance(env, dict) else ""
        return value if isinstance(value, str) else ""

    @property
    def own_files(self) -> dict[str, str]:
        """Return the code files that are checked as part of the environment or image, by path in the repository."""
        pins, found = self.plan.pins, {}
        root = PurePosixPath(pins.code.subdir)
        if pins.environment.kind == "uv":
            project = root / self.env("uv")
            for name in (pins.environment.lock_file, "pyproject.toml" if pins.environment.manifest_sha256 else ""):
                if name:
                    found[_normal(project / name)] = "environment"
        if pins.image.dockerfile:
            found[_normal(root / pins.image.dockerfile)] = "image"
        return found

    @property
    def data_paths(self) -> set[str]:
        """Return the paths in the repository that are checked as data."""
        repository = open_repository(self.code_folder) if self.code_folder.is_dir() else None
        root = (repository.toplevel if repository is not None else None) or self.code_folder
        paths = [
            ((self.base or Path.cwd()) / pin.source.removeprefix("file:")).resolve()
            for pin in self.plan.pins.data.values()
            if pin.source.startswith("file:")
        ]
        return {str(path.relative_to(root.resolve())) for path in paths if path.is_relative_to(root.resolve())}


def _is_below(path: str, folders: set[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def _normal(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts:
            parts.pop()
        elif part not in (".", ".."):
            parts.append(part)
    return "/".join(parts)


def check_code(present: Present) -> Iterator[Finding]:
    """Check that the pinned tree exists and matches the run's checkout; report later changes."""
    pin, folder = present.plan.pins.code, present.code_folder
    if pin.kind in ("in-place", "none"):
        yield Finding(what="code", status="skipped", message=f"not pinned ({pin.kind})")
        return
    what = f"commit {pin.commit[:12]}, tree {pin.tree[:12]}" if pin.kind == "commit" else f"snapshot {pin.tree[:12]}"
    try:
        if present.run.code.is_dir():
            torn = changed_since(pin, folder, root=present.run.code, store=present.store)
            if torn:
                yield _code_finding(present, "failed", f"the run's checkout no longer matches {what}", torn)
                return
        now = changed_since(pin, folder, store=present.store) if present.compares_sources and folder.is_dir() else []
    except WindlassError as error:
        yield Finding(what="code", status="failed", message=error.message)
        return
    own, data = present.own_files, present.data_paths
    mine = [each for each in now if each.path not in own and not _is_below(each.path, data)]
    yield _kept("code", what, [each.path for each in mine])


def _kept(what: str, message: str, changed: list[str]) -> Finding:
    """Return an `ok` finding that mentions later changes in the folder, committed or not."""
    if not changed:
        return Finding(what=what, status="ok", message=message)
    listed = ", ".join(changed[:_MAX_LISTED])
    listed += f" and {len(changed) - _MAX_LISTED} more" if len(changed) > _MAX_LISTED else ""
    return Finding(what=what, status="ok", message=f"{message}\nchanged since then: {listed}", files=tuple(changed))


def _code_finding(present: Present, status: Status, message: str, changes: list[FileChange]) -> Finding:
    lines = [f"{_WORDS.get(change.status, 'changed')}: {change.path}" for change in changes[:_MAX_LISTED]]
    lines += [f"and {len(changes) - _MAX_LISTED} more"] if len(changes) > _MAX_LISTED else []
    return Finding(
        what="code",
        status=status,
        message="\n".join([message, *lines]),
        files=tuple(change.path for change in changes),
    )


_WORDS = {"M": "changed", "A": "new", "D": "deleted", "T": "changed"}


def check_environment(present: Present) -> Iterator[Finding]:
    """Check that the lock file or the interpreter's packages match the pin."""
    pin = present.plan.pins.environment
    if pin.kind == "uv":
        yield _check_lock(present, pin)
    elif pin.kind == "python":
        yield _check_interpreter(present, pin)
    elif present.plan.pins.image.kind == "none":
        yield Finding(what="environment", status="skipped", message="not pinned: the machine's programs are used")


def _check_lock(present: Present, pin: EnvironmentPin) -> Finding:
    wanted = {pin.lock_file: pin.lock_sha256}
    if pin.manifest_sha256:
        wanted["pyproject.toml"] = pin.manifest_sha256
    found = f"{pin.lock_file} sha256:{pin.lock_sha256[:12]}, Python {pin.python_version}"
    kept = present.run.code / present.plan.pins.code.subdir
    if present.plan.pins.code.kind not in ("in-place", "none") and kept.is_dir():
        torn = _differing(kept / present.env("uv"), wanted)
        if torn:
            return _lock_finding("failed", f"{found}; different in the run's checkout", torn)
    if not present.compares_sources:
        return Finding(what="environment", status="ok", message=found)
    project = present.code_folder / present.env("uv")
    now = _differing(project, wanted)
    if now and present.plan.pins.code.kind in ("in-place", "none"):  # this is the only copy
        return _lock_finding("changed", f"{found}; different in {project}", now)
    return _kept("environment", found, now)


def _lock_finding(status: Status, message: str, files: list[str]) -> Finding:
    listed = [f"changed: {name}" for name in files]
    return Finding(what="environment", status=status, message="\n".join([message, *listed]), files=tuple(files))


def _differing(folder: Path, wanted: dict[str, str]) -> list[str]:
    """Return the names of files that are missing or whose digest differs."""
    return [
        name for name, digest in wanted.items() if not (folder / name).is_file() or sha256_file(folder / name) != digest
    ]


def _check_interpreter(present: Present, pin: EnvironmentPin) -> Finding:
    """Check the interpreter; it is used in place, so changed packages count as a failure."""
    from windlass.pin.environment.pinning import pin_environment  # lazy: starts the interpreter

    try:
        now = pin_environment("python", present.code_folder, python=present.env("python"))
    except WindlassError as error:
        return Finding(what="environment", status="failed", message=error.message)
    found = f"Python {pin.python_version} at {pin.interpreter}, {count(len(pin.packages), 'package')}"
    before, after = _versions(pin.packages), _versions(now.packages)
    changes = [
        f"{name} {before.get(name) or 'not installed'} -> {after.get(name) or 'removed'}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]
    if now.python_version != pin.python_version:
        changes.insert(0, f"Python {pin.python_version} -> {now.python_version}")
    if not changes:
        return Finding(what="environment", status="ok", message=found)
    shown = changes[:_MAX_LISTED] + ([f"and {len(changes) - _MAX_LISTED} more"] if len(changes) > _MAX_LISTED else [])
    return Finding(what="environment", status="failed", message="\n".join([f"{found}; packages changed", *shown]))


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    return {name: version for name, _, version in (package.partition("==") for package in packages)}


def check_image(present: Present) -> Iterator[Finding]:
    """Check that the Dockerfile and its base images, or the named image, match the pin."""
    pin = present.plan.pins.image
    if pin.kind == "none":
        return
    found = f"{pin.name} {pin.digest[:19]}" if pin.kind == "named" else f"{pin.dockerfile}, key {pin.key[:12]}"
    try:
        used = image_as_run(present.run, present.plan)
    except WindlassError as error:
        yield Finding(what="image", status="skipped", message=f"{found}\nnot checked: {error.message}")
        return
    if used is not None and used.sentence:
        found += f"\n{used.sentence}"
    if used is not None and used.state in ("rebuilt", "missing"):
        yield Finding(what="image", status="failed", message=found)
        return
    if not present.compares_sources:
        yield Finding(what="image", status="ok", message=found)
        return
    if pin.dockerfile and present.plan.pins.code.kind not in ("in-place", "none"):
        path = present.code_folder / pin.dockerfile
        if not path.is_file() or sha256_file(path) != pin.dockerfile_sha256:
            found += f"\nchanged since then: {pin.dockerfile}"
    yield _check_digests(present, found)


def _check_digests(present: Present, found: str) -> Finding:
    from windlass.pin.image.engine import find_engine  # lazy: only needed for runs in containers
    from windlass.pin.image.pinning import resolve_digests  # lazy: as above

    pin, site = present.plan.pins.image, present.plan.site
    wanted = dict(pin.bases) if pin.kind == "built" else {pin.name: pin.digest}
    try:
        engine = find_engine(site.name) if site.backend == "docker" else None
    except WindlassError as error:
        return Finding(what="image", status="skipped", message=f"{found}\nnot checked: {error.message}")
    moved: list[str] = []
    for name, digest in wanted.items():
        try:
            now = resolve_digests([name], engine)[name]
        except NotFoundError as error:
            message = f"{found}\n{error.message}"
            return Finding(what="image", status="failed", message=message, files=(name,))
        except WindlassError as error:
            return Finding(what="image", status="skipped", message=f"{found}\nnot checked: {error.message}")
        if digest and now != digest:
            kind = "base image" if pin.kind == "built" else "image"
            moved.append(f"{kind} {name} is now {now[:19]}, but {digest[:19]} was pinned")
    if moved:
        return Finding(what="image", status="changed", message="\n".join([found, *moved]), files=tuple(wanted))
    return Finding(what="image", status="ok", message=found)
