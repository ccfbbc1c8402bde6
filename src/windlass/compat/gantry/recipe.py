"""Launching from Python as with gantry: its `Recipe`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.compat.gantry.following import FollowOptions
from windlass.compat.gantry.request import GantryRequest, Launched, launch, prepare
from windlass.compat.gantry.settings import RecipeSettings
from windlass.core.dataclass import dataclass

if TYPE_CHECKING:
    from windlass.compat.gantry.account import GantryAccount

__all__ = ["Recipe"]


@dataclass(frozen=True, slots=True)
class Recipe(RecipeSettings):
    """Workload with the fields and methods of gantry's own `Recipe`; `args` is the command."""

    def dry_run(self, account: GantryAccount | None = None) -> GantryRequest:
        """Return the request that a launch would submit, with names resolved through `account` if given.

        Writes nothing.
        """
        return prepare(self, account=account)

    def launch(
        self,
        show_logs: bool | None = None,
        timeout: int | None = None,
        start_timeout: int | None = None,
        inactive_timeout: int | None = None,
        inactive_soft_timeout: int | None = None,
        auto_cancel: bool = False,
    ) -> Launched:
        """Submit the recipe to Beaker, and wait for the end if `timeout` or `show_logs` is set.

        Raises:
            WindlassError: see `prepare` and `windlass.compat.gantry.request.launch`.
        """
        following = FollowOptions.of(
            show_logs=show_logs,
            timeout_s=timeout,
            start_timeout_s=start_timeout,
            inactive_timeout_s=inactive_timeout,
            inactive_soft_timeout_s=inactive_soft_timeout,
            is_canceled_with_us=auto_cancel,
        )
        return launch(self, following=following)
