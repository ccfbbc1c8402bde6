from __future__ import annotations

import pytest

from windlass.supervise.launchers.wrapped import RoleVariables, WrappedCommand


def test_options_roles_and_the_command_are_told_apart() -> None:
    wrapped = WrappedCommand.parse(
        [
            "--num-gpus=4",
            "--scratch=/tmp/x",
            "--driver-set=LD_PRELOAD=/env/libnccl.so=1",
            "--worker-unset=LD_PRELOAD",
            "--worker-set=A=",
            "--",
            *("python", "train.py", "--", "--driver-set=B=2"),
        ]
    )
    assert wrapped.command == ("python", "train.py", "--", "--driver-set=B=2")
    assert wrapped.options == {"num-gpus": "4", "scratch": "/tmp/x"}
    environ = {"LD_PRELOAD": "/site.so", "HOME": "/h"}
    assert wrapped.driver.apply(environ) == {"LD_PRELOAD": "/env/libnccl.so=1", "HOME": "/h"}
    assert wrapped.worker.apply(environ) == {"HOME": "/h", "A": ""}
    assert (wrapped.number("num-gpus"), wrapped.number("memory", 7.0)) == (4.0, 7.0)


def test_what_a_role_sets_comes_after_what_it_takes_away() -> None:
    assert RoleVariables({"A": "new"}, ("A", "B")).apply({"A": "old", "B": "b"}) == {"A": "new"}


def test_words_without_a_command_are_refused() -> None:
    with pytest.raises(ValueError, match="--"):
        WrappedCommand.parse(["--num-gpus=4"])
