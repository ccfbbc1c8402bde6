"""mason's command line, unchanged: converted to Beaker's specification or to an experiment for any site."""

from windlass.compat.mason.account import KnownAccount, MasonAccount
from windlass.compat.mason.options import MasonOptions, OwnOptions
from windlass.compat.mason.reading import MasonCommand, MasonLaunch, read_command_line

__all__ = [
    "KnownAccount",
    "MasonAccount",
    "MasonCommand",
    "MasonLaunch",
    "MasonOptions",
    "OwnOptions",
    "read_command_line",
]
