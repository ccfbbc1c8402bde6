"""Files of a node: what is damaged is an error that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.core.errors import PreconditionError
from windlass.supervise.node.spec import NodeFolder, NodeSpec, NodeStatus


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"cluster": "lab"}', b'{"setup": 1}', b"\0" * (5 << 20)])
def test_a_damaged_spec_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "spec.json").write_bytes(content)
    with pytest.raises(PreconditionError, match=r"spec\.json") as caught:
        NodeFolder(tmp_path).read_spec()
    assert caught.value.code == "node-damaged"


def test_spec_and_status_are_read_back(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path)
    spec = NodeSpec(cluster="lab-1", token="t", number=1, setup=("echo 1",), resources={"CPU": 2.0}, ttl_s=40.0)
    (tmp_path / "spec.json").write_bytes(spec.to_json())
    assert folder.read_spec() == spec
    assert folder.read_status() is None
    status = NodeStatus(token="t", state="ready", ready_at=1.0)
    folder.write_status(status)
    assert folder.read_status() == status
