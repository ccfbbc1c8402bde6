"""Addresses of a machine: what its network interfaces have."""

from __future__ import annotations

import pytest

from windlass.core.errors import PreconditionError
from windlass.supervise.gang.address import own_address


def test_an_interface_is_found_by_the_beginning_of_its_name() -> None:
    assert own_address("lo") == "127.0.0.1"


def test_an_interface_that_the_machine_does_not_have_is_named_with_those_it_has() -> None:
    with pytest.raises(
        PreconditionError, match=r"no network interface `hsn9` with an address on .*; it has .*lo"
    ) as caught:
        own_address("hsn9")
    assert caught.value.code == "no-interface"
