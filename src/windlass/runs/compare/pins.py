"""Removal of differences that follow from other differences, so that each is reported once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["tidied"]

_Tree = dict[str, object]
_CODE_CONTENT = ("kind", "commit", "subdir", "dirty_files")
_IMAGE_PARTS = ("name", "target", "args", "bases", "platform", "has_own_code", "network")
_DATA_RESULTS = ("digest", "size_bytes", "num_files", "source", "name")
_BUILT_FROM = ("code", "environment", "image", "env", "params", "data")
_BUILDS = "data."
"""Prefix of tasks that prepare data."""
_IMAGE_RESULTS = ("digest", "registry_digest", "image_id", "reference", "key", "workdir", "sbom")


def tidied(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[_Tree, _Tree]:
    """Return both trees without the differences that follow from others. Pure."""
    left, right = dict(before), dict(after)
    is_code_same = _tidy_code(left, right)
    _tidy_environment(left, right)
    _tidy_image(left, right, is_code_same=is_code_same)
    _tidy_data(left, right)
    rebuilt = _tidy_builds(left, right)
    _tidy_place(left, right)
    _tidy_outputs(left, right, rebuilt)
    return left, right


def _tidy_code(left: _Tree, right: _Tree) -> bool:
    """Keep what identifies the code.

    Equal trees mean equal code, whatever the commit. Return whether the code is equal.
    """
    one, other = _section(left, "code"), _section(right, "code")
    is_same = (
        bool(one.get("tree")) and one.get("tree") == other.get("tree") and one.get("subdir") == other.get("subdir")
    )
    for tree, pin in ((left, one), (right, other)):
        kept = {} if is_same else {name: pin[name] for name in _CODE_CONTENT if pin.get(name)}
        if pin.get("kind") != "in-place":
            kept.pop("dirty_files", None)
        tree["code"] = kept
    if not is_same and _section(left, "code").get("commit") != _section(right, "code").get("commit"):
        _drop(left, right, "code", ("kind",) if one.get("kind") == other.get("kind") else ())
    return is_same or left["code"] == right["code"]


def _tidy_environment(left: _Tree, right: _Tree) -> None:
    one, other = _section(left, "environment"), _section(right, "environment")
    _drop(left, right, "environment", ("interpreter", "key", "lock_file"))
    if one.get("kind") != other.get("kind"):
        is_declared = left.get("env") != right.get("env")  # `env` shows it instead
        _keep(left, right, "environment", ("packages",) if is_declared else ("kind", "packages"))
    if one.get("packages") != other.get("packages"):
        _drop(left, right, "environment", ("lock_sha256", "manifest_sha256", "unhashed"))
    elif one.get("lock_sha256") != other.get("lock_sha256"):
        _drop(left, right, "environment", ("manifest_sha256",))
    if one.get("python_version") != other.get("python_version"):
        _drop(left, right, "host", ("python_version",))
    if one.get("platform") != other.get("platform"):
        _drop(left, right, "host", ("libc", "machine"))
    if one.get("extras") != other.get("extras"):
        _drop(left, right, "env", ("extras",))
    if one.get("groups") != other.get("groups"):
        _drop(left, right, "env", ("groups",))


def _tidy_image(left: _Tree, right: _Tree, *, is_code_same: bool) -> None:
    """Keep the causes of a changed image (bases, Dockerfile, arguments), or else its digest."""
    one, other = _section(left, "image"), _section(right, "image")
    if one.get("kind", "none") == other.get("kind", "none") == "none":
        left["image"] = right["image"] = {}
        return
    if one.get("kind") != other.get("kind"):
        is_declared = left.get("env") != right.get("env")
        _keep(left, right, "image", () if is_declared else ("kind", "name"))
        return
    _drop(left, right, "env", ("image",))
    for tree, image in ((left, one), (right, other)):
        listed = image.get("packages")
        tree["image"] = {**image, "packages": _packages(listed if isinstance(listed, list) else ())}
    if not is_code_same:
        _drop(left, right, "image", ("context_sha256",))
    has_cause = any(one.get(part) != other.get(part) for part in (*_IMAGE_PARTS, "dockerfile_sha256"))
    has_cause |= is_code_same and one.get("context_sha256") != other.get("context_sha256")
    has_packages = _section(left, "image")["packages"] != _section(right, "image")["packages"]
    if has_cause or has_packages or (not is_code_same and one.get("kind") == "built"):
        _drop(left, right, "image", _IMAGE_RESULTS)
    else:
        first = next((name for name in _IMAGE_RESULTS if one.get(name) != other.get(name)), "")
        _drop(left, right, "image", tuple(name for name in _IMAGE_RESULTS if name != first))


def _tidy_data(left: _Tree, right: _Tree) -> None:
    """Keep only the digest of data; size and count follow from it, and the path does not matter."""
    for tree in (left, right):
        entries: _Tree = {}
        for name in _section(tree, "data"):
            pin = _section(_section(tree, "data"), name)
            content = {key: pin[key] for key in _DATA_RESULTS if pin.get(key)}
            entries[name] = {"digest": pin["digest"]} if pin.get("digest") else content
        tree["data"] = entries


def _tidy_builds(left: _Tree, right: _Tree) -> set[str]:
    """Keep the declaration of a changed build, since its key follows from that or other differences.

    Returns:
        The names of builds whose key differs.
    """
    one, other = _section(left, "builds"), _section(right, "builds")
    pairs = {name: (_section(one, name), _section(other, name)) for name in {*one, *other}}
    rebuilt = {name for name, (a, b) in pairs.items() if a.get("key") != b.get("key")}
    declared = {name for name in rebuilt if pairs[name][0].get("declared") != pairs[name][1].get("declared")}
    is_reported = bool(declared) or any(left.get(part) != right.get(part) for part in _BUILT_FROM)
    is_code_reported = left.get("code") != right.get("code")
    found: tuple[_Tree, _Tree] = {}, {}
    for name in rebuilt:
        is_explained = is_reported and (is_code_reported or pairs[name][0].get("code") == pairs[name][1].get("code"))
        if name in declared and all(pairs[name]):
            part = "declared"
        elif is_explained and all(pairs[name]):
            continue
        else:
            part = "key"
        for tree, pin in zip(found, pairs[name], strict=True):
            if pin:
                tree[name] = _section(pin, part) if part == "declared" else {"key": pin.get("key")}
    left["builds"], right["builds"] = found
    return rebuilt


def _tidy_place(left: _Tree, right: _Tree) -> None:
    one, other = _section(left, "site"), _section(right, "site")
    _drop(left, right, "site", ("machine", "passed_over"))  # the machine is reported as hardware
    if one.get("name") != other.get("name"):
        _keep(left, right, "site", ("name",))
        left.pop("where", None)
        right.pop("where", None)
    one, other = _section(left, "hosts"), _section(right, "hosts")
    for tree, own, another in ((left, one, other), (right, other, one)):
        tree["hosts"] = {task: hosts for task, hosts in own.items() if task in another}


def _tidy_outputs(left: _Tree, right: _Tree, rebuilt: Iterable[str]) -> None:
    """Keep the lists of output files if both sides have one, otherwise the total digests.

    Outputs of data builds are compared only if both runs built the same data.
    """
    one, other = _section(left, "outputs"), _section(right, "outputs")
    found: tuple[_Tree, _Tree] = {}, {}
    alone = {task for task in {*one} ^ {*other} if task.startswith(_BUILDS)}
    for task in {*one, *other} - alone - {f"{_BUILDS}{name}" for name in rebuilt}:
        sides = [_section(side, task) for side in (one, other)]
        if sides[0].get("digest") == sides[1].get("digest"):
            continue
        key = "files" if all("files" in side for side in sides) else "digest"
        for tree, side in zip(found, sides, strict=True):
            if side:
                tree[task] = side.get(key, {}) if key == "files" else {"digest": side.get("digest")}
    left["outputs"], right["outputs"] = found


def _packages(listed: Iterable[object]) -> _Tree:
    found: _Tree = {}
    for package in listed:
        name, _, version = str(package).partition("==")
        if not version:
            name, _, version = str(package).partition("=")
        found[name] = version
    return found


def _section(tree: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = tree.get(name)
    return value if isinstance(value, Mapping) else {}


def _drop(left: _Tree, right: _Tree, section: str, names: Iterable[str]) -> None:
    gone = frozenset(names)
    for tree in (left, right):
        if isinstance(tree.get(section), Mapping):
            tree[section] = {key: value for key, value in _section(tree, section).items() if key not in gone}


def _keep(left: _Tree, right: _Tree, section: str, names: Iterable[str]) -> None:
    kept = frozenset(names)
    for tree in (left, right):
        tree[section] = {key: value for key, value in _section(tree, section).items() if key in kept}
