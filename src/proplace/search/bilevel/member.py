"""One model of Delta', with the margin that it must keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proplace.core.network import Array, Network


@dataclass(frozen=True, eq=False)
class Member:
    """One model of Delta', with the margin of the set that it comes from."""

    network: Network
    margin: float

    def surplus(self, point: Array, target: int) -> float:
        """The margin of a point, by a plain forward pass, less what it must be."""
        return float(self.network.margin(point, target)[0]) - self.margin
