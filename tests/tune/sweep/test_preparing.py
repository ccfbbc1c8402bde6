from __future__ import annotations

import pytest

from windlass.core.errors import SpecError
from windlass.sites.profile import FileSystem, Profile
from windlass.spec import Sweep
from windlass.spec.sweep import KeptBySweep
from windlass.tune.sweep.preparing import check_keep


def test_checkpoints_behind_ssh_cannot_be_dropped_by_a_head_here() -> None:
    far = Profile(name="far", ssh="login", fs=FileSystem(shared="/shared"))
    near = Profile(name="near", fs=FileSystem(shared="/shared"))
    keeping = Sweep(metric=("loss",), mode=("min",), samples=2, space={}, keep=KeptBySweep(best=1))
    with pytest.raises(SpecError, match="cannot be honoured at far, which is reached over ssh"):
        check_keep(keeping, far, {})
    check_keep(keeping, near, {})
    check_keep(keeping, None, {})
    check_keep(Sweep(metric=("loss",), mode=("min",), samples=2, space={}), far, {})
