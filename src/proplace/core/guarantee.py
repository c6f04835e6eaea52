r"""Networks that must all accept a counterfactual: the guarantee, and its members.

Each member is a shift set, which contains the retrainings of one model: the current model, a
challenger, last year's model, a retraining from scratch. A counterfactual must be robust for every
one of them,

.. math::
    \min_{\theta \in \Delta_s} \mathrm{margin}_\theta(x') \ge m_s \quad\text{for all members } s .

All members take the same encoded rows. Architectures may differ. So may the margins :math:`m_s`, if
they cover the rounding of models that are deployed in different precisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from proplace.core.layer_box import sum_down, sum_up

if TYPE_CHECKING:
    from proplace.core.network import Array, Network
    from proplace.core.shifts import Shifts


_ROUNDING = 2.0**-48  # relative: far more than the roundings on the way from a cell to its code


def around(rows: Array, tolerance: Array) -> tuple[Array, Array]:
    """Return the box of what misses each row by no more than the tolerance; its ends lie outside.

    The rows of ``tolerance`` are how much less and how much more each column may be. The box holds the
    codes of all cells that miss by no more in original units, however they are rounded.
    """
    less, more = (
        np.where(reach > 0.0, reach + _ROUNDING * (np.abs(rows) + reach), 0.0)
        for reach in tolerance
    )
    return sum_down(rows, -less), sum_up(rows, more)


def off_centre(tolerance: Array) -> Array:
    """Return how far the centre of such a box lies from its row, per column."""
    less, more = tolerance
    result: Array = (more - less) / 2.0
    return result


@dataclass(frozen=True, eq=False)
class Member:
    """A shift set whose networks must all accept.

    Attributes
    ----------
    network
        A network with the shape and input transform of the shift set. It need not lie in the set.
    shifts
        The shift set: an interval for every parameter.
    name
        Name in sentences.
    margin
        Smallest margin that every network must keep.
    tolerance
        How much less and how much more each encoded column may be than in a counterfactual, which
        must be accepted all the same: two rows. None if counterfactuals are met exactly.
    """

    network: Network
    shifts: Shifts
    name: str = ""
    margin: float = 0.0
    tolerance: Array | None = None

    def around(self, rows: Array) -> tuple[Array, Array] | None:
        """The box of all points that miss a row by no more than the tolerance; its ends lie outside."""
        return None if self.tolerance is None else around(rows, self.tolerance)

    @property
    def where(self) -> str:
        """The box, in words that follow "robust"."""
        return "for this box of shifts" if self.shifts.trained_radii is None else "at this delta"

    @property
    def smaller(self) -> str:
        """The advice if too few rows are robust."""
        if self.shifts.trained_radii is None:
            return "take a smaller box (shifts.scaled(0.5))"
        return "lower delta"

    @property
    def work(self) -> tuple[bool, int]:
        """Sorts sets by the work of a robustness test, the least first.

        One network alone takes a single pass; else the hidden neurons count.
        """
        return not self.shifts.frozen, sum(self.network.widths)

    @cached_property
    def contains_network(self) -> bool:
        """True if the network lies in the box."""
        return self.shifts.contains(self.network)

    def rejects(self, x: Array, target: int) -> bool:
        """Return True if the network lies in the box and gives the row another class."""
        return self.contains_network and int(self.network.predict(x)[0]) != target
