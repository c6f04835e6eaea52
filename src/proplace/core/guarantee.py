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

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.layer_box import sum_down, sum_up
from proplace.core.shifts import Shifts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from proplace.core.network import Array, Network


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


CURRENT_MODEL = "the model in use"
"""Name of the current model in sentences."""


@dataclass(frozen=True, eq=False)
class Deployment:
    """A model as it is deployed in float32, on the cells of its table.

    Attributes
    ----------
    network
        The network on these cells: the scaling is part of its input transform.
    offset, scale
        A cell is ``offset + scale * code``.
    cutoff
        Bound on what the comparison with the cut-off rounds.
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
        Smallest margin that every network must keep, at all training rows and on their hulls.
    tolerance
        How much less and how much more each encoded column may be than in a counterfactual, which
        must be accepted all the same: two rows. None if counterfactuals are met exactly.
    deployment
        The model in float32, if margins must cover its rounding. Then each row has a margin of its own
        (:func:`proplace.certification.required_margins`). None: every row has the margin.
    """

    network: Network
    shifts: Shifts
    name: str = ""
    margin: float = 0.0
    tolerance: Array | None = None
    deployment: Deployment | None = None

    def around(self, rows: Array) -> tuple[Array, Array] | None:
        """Return the box of all points that miss a row by at most the tolerance, rounded outwards."""
        return None if self.tolerance is None else around(rows, self.tolerance)

    @property
    def radius(self) -> float | None:
        """The largest change of a trained parameter, if all have the same."""
        return self.shifts.trained_radius

    @property
    def delta(self) -> float | list[list[float]] | str:
        """The radius of all trained parameters, (weight, bias) radii of the layers, or a digest.

        The digest is that of a shift set with an interval for every parameter.
        """
        if self.radius is not None:
            return self.radius
        radii = self.shifts.trained_radii
        return self.shifts.digest if radii is None else [list(pair) for pair in radii]

    @property
    def has_parameter_intervals(self) -> bool:
        """True if every parameter has an interval of its own, rather than a radius."""
        return self.shifts.trained_radii is None

    @property
    def description(self) -> str:
        """The shift set, in words that follow "robust"."""
        return "for this box of shifts" if self.has_parameter_intervals else "at this delta"

    @property
    def advice(self) -> str:
        """What to do if too little is robust."""
        if self.has_parameter_intervals:
            return "take a smaller box (shifts.scaled(0.5))"
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
        """Return name, network and shift set as JSON; the margin follows from the network."""
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
        """Read what :meth:`to_dict` has made."""
        net, delta = network(facts["network"]), facts["delta"]
        box = Shifts.of(net, shifts(delta) if isinstance(delta, str) else delta)
        return cls(net, box, facts["name"], tolerance=tolerance)


@dataclass(frozen=True, eq=False)
class Guarantee:
    """Which networks must give the target class, with what margin, at what points.

    ``members`` has at least one. The first is that of the current model. Required models follow, and
    the current model by itself if it does not lie in its own shift set.
    """

    members: tuple[Member, ...]

    @property
    def current(self) -> Member:
        """The member of the current model."""
        return self.members[0]

    def with_slack(self, slack: float) -> Guarantee:
        """Return the guarantee that a search asks for: one margin for all rows, more by the slack."""
        members = (
            replace(member, margin=member.margin + slack, deployment=None)
            for member in self.members
        )
        return Guarantee(tuple(members))

    def cheapest_first(self) -> Guarantee:
        """Return the same guarantee, the members with the cheapest robustness test first.

        A single network takes one pass. For others the hidden neurons count.
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
            Digest of a network, by which it is found again.
        shifts
            Digest of a shift set that is not given by radii. Default: ``Shifts.digest``.
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
        """Read what :meth:`to_dict` has made; networks and shift sets come by their digests."""
        members = (Member.from_dict(one, network, shifts, tolerance) for one in facts["members"])
        return cls(tuple(members))

    @property
    def is_single_model(self) -> bool:
        """True if the shift set of the current model holds that model and no other."""
        return self.current.shifts.is_single_network and self.current.contains_network
