r"""Networks that must all accept a counterfactual: the guarantee and its members.

Each member is a shift set, which contains the retrainings of one model: the current model, a
challenger, last year's model, a retraining from scratch. A counterfactual must be robust for every
one of them,

.. math::
    \min_{\theta \in \Delta_s} \mathrm{margin}_\theta(x') \ge m_s \quad\text{for all members } s .

All members take the same encoded rows. Architectures may differ. So may the margins :math:`m_s`, if
they cover the rounding of models that are deployed in different precisions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.layer_box import sum_down, sum_up
from proplace.core.shifts import Shifts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from proplace.core.network import Array, Network


_ROUNDING = 2.0**-48  # relative: far more than the rounding error of an encoded value


def around(rows: Array, tolerance: Array) -> tuple[Array, Array]:
    """Return the box of all rows within the tolerance of each row, rounded outwards.

    The rows of ``tolerance`` are the amounts by which each column may be smaller and larger. The
    box contains the encoded values of all cells within the tolerance in original units, however
    they are rounded.
    """
    less, more = (
        np.where(reach > 0.0, reach + _ROUNDING * (np.abs(rows) + reach), 0.0)
        for reach in tolerance
    )
    return sum_down(rows, -less), sum_up(rows, more)


def off_centre(tolerance: Array) -> Array:
    """Return the offset of the centre of such a box from its row, per column."""
    less, more = tolerance
    result: Array = (more - less) / 2.0
    return result


CURRENT_MODEL = "the current model"
"""Name of the current model in sentences."""


@dataclass(frozen=True, eq=False)
class Deployment:
    """A model as it is deployed in float32, on the cells of its table.

    Attributes
    ----------
    network
        The network on these cells. Its input transform includes the scaling.
    offset, scale
        A cell is ``offset + scale * code``.
    cutoff
        Bound on the rounding error of the comparison with the cut-off.
    """

    network: Network
    offset: Array | float = 0.0
    scale: Array | float = 1.0
    cutoff: float = 0.0


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
        Smallest margin that every network must have, at all training rows and on their hulls.
    tolerance
        Tolerance below and above each encoded column of a counterfactual: two rows. Every input
        within it must be accepted too. None if counterfactuals are met exactly.
    deployment
        The model in float32, if margins must cover its rounding. Each row then has its own margin
        (:func:`proplace.certification.required_margins`). None: all rows have the same margin.
    """

    network: Network
    shifts: Shifts
    name: str = ""
    margin: float = 0.0
    tolerance: Array | None = None
    deployment: Deployment | None = None

    def around(self, rows: Array) -> tuple[Array, Array] | None:
        """Return the box of all points within the tolerance of a row, rounded outwards."""
        return None if self.tolerance is None else around(rows, self.tolerance)

    @property
    def radius(self) -> float | None:
        """The largest change of a trained parameter, or None if radii differ."""
        return self.shifts.trained_radius

    @property
    def delta(self) -> float | list[list[float]] | str:
        """The radius of all trained parameters, the radii of the layers, or a digest.

        Layers have (weight, bias) pairs. A digest stands for one interval per parameter.
        """
        if self.radius is not None:
            return self.radius
        radii = self.shifts.trained_radii
        return self.shifts.digest if radii is None else [list(pair) for pair in radii]

    @property
    def has_parameter_intervals(self) -> bool:
        """True if every parameter has its own interval, rather than a radius."""
        return self.shifts.trained_radii is None

    @property
    def description(self) -> str:
        """The shift set, as a phrase that follows "robust"."""
        return "for this shift set" if self.has_parameter_intervals else "at this delta"

    @property
    def advice(self) -> str:
        """A change of the shift set that makes more rows robust."""
        if self.has_parameter_intervals:
            return "take a smaller shift set (shifts.scaled(0.5))"
        return "lower delta"

    @cached_property
    def contains_network(self) -> bool:
        """True if the network lies in the shift set."""
        return self.shifts.contains(self.network)

    def rejects(self, x: Array, target: int) -> bool:
        """Test if the network lies in the shift set and gives a row another class."""
        return self.contains_network and int(self.network.predict(x)[0]) != target

    def to_dict(
        self, network: Callable[[Network], str], shifts: Callable[[Shifts], str] | None = None
    ) -> dict[str, Any]:
        """Return name, network and shift set as JSON. The margin follows from the network."""
        delta = self.delta
        if isinstance(delta, str) and shifts is not None:
            delta = shifts(self.shifts)
        return {
            "name": self.name,
            "network": network(self.network),
            "delta": delta,
            "about": self.shifts.description,
        }

    @classmethod
    def from_dict(
        cls,
        facts: Mapping[str, Any],
        network: Callable[[str], Network],
        shifts: Callable[[str], Shifts],
        tolerance: Array | None,
    ) -> Member:
        """Read the JSON of :meth:`to_dict`."""
        net, delta = network(facts["network"]), facts["delta"]
        box = Shifts.of(net, shifts(delta) if isinstance(delta, str) else delta)
        return cls(net, box, facts["name"], tolerance=tolerance)


@dataclass(frozen=True, eq=False)
class Guarantee:
    """All networks that must give the target class, with their margins and tolerance.

    ``members`` is never empty. The first belongs to the current model. Required models follow, then
    the current model alone if its own shift set does not contain it.
    """

    members: tuple[Member, ...]

    @property
    def current(self) -> Member:
        """The member of the current model."""
        return self.members[0]

    def with_slack(self, slack: float) -> Guarantee:
        """Return the guarantee with one margin for all rows, larger by the slack of a search."""
        members = (
            replace(member, margin=member.margin + slack, deployment=None)
            for member in self.members
        )
        return Guarantee(tuple(members))

    def cheapest_first(self) -> Guarantee:
        """Return the same guarantee with the cheapest robustness test first.

        A shift set of one network takes one pass. The cost of others grows with the hidden neurons.
        """

        def cost(member: Member) -> tuple[bool, int]:
            return not member.shifts.is_single_network, sum(member.network.widths)

        return Guarantee(tuple(sorted(self.members, key=cost)))

    def to_dict(
        self, network: Callable[[Network], str], shifts: Callable[[Shifts], str] | None = None
    ) -> dict[str, Any]:
        """Return the members as JSON. The tolerance is that of the request.

        Parameters
        ----------
        network
            Function that returns the digest under which a network is stored.
        shifts
            Function for the digest of a shift set that is not given by radii. Default:
            ``Shifts.digest``.
        """
        return {"members": [member.to_dict(network, shifts) for member in self.members]}

    @classmethod
    def from_dict(
        cls,
        facts: Mapping[str, Any],
        network: Callable[[str], Network],
        shifts: Callable[[str], Shifts],
        tolerance: Array | None,
    ) -> Guarantee:
        """Read the JSON of :meth:`to_dict`. The functions find networks and sets by digest."""
        members = (Member.from_dict(one, network, shifts, tolerance) for one in facts["members"])
        return cls(tuple(members))

    @property
    def is_single_model(self) -> bool:
        """True if the shift set of the current model contains only that model."""
        return self.current.shifts.is_single_network and self.current.contains_network
