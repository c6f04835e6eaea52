r"""Typical points: how usual an encoded row is among the accepted people of the training data.

Three measures compare a point with its nearest neighbours among the distinct training rows that the
current model accepts: the local outlier factors :math:`\mathrm{LOF}_{10}` and
:math:`\mathrm{LOF}_{30}`, and the distance to the 5th neighbour. With the reachability distance
:math:`r_k(p, o) = \max(d_k(o), d(p, o))` and the k nearest rows :math:`N_k(p)`,

.. math::
    \mathrm{LOF}_k(p) = \frac{\rho_k(p)}{|N_k(p)|} \sum_{o \in N_k(p)} \frac{1}{\rho_k(o)},
    \qquad \rho_k(p) = \frac{1}{|N_k(p)|} \sum_{o \in N_k(p)} r_k(p, o) .

A row is never its own neighbour. The *plausibility* of a point is the smallest share, over the three
measures, of reference rows that are at least as unusual. A point is *typical* if it is at least .10.
One measure alone is not enough: a search finds small clusters where :math:`\mathrm{LOF}_{10}` is low.
This is a measurement, not a proof.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.spatial import KDTree

if TYPE_CHECKING:
    import numpy.typing as npt

    from proplace.core.network import Array

    Mask = npt.NDArray[np.bool_]
    Numbers = npt.NDArray[np.intp]

TYPICAL = 0.10
"""Smallest plausibility of a typical point."""

SAMPLE = 5_000
"""Largest number of reference rows. Larger tables are sampled."""

LEAST = 31
"""Smallest number of reference rows: each needs 30 neighbours."""

_NEAREST, _FEW, _MANY = 5, 10, 30  # neighbours of the three measures
_SAME = 1e-9  # distance up to which a point is a row
_TINY = 1e-10  # added to a mean distance, which may be 0


class Typical:
    """The accepted people whom points are compared with.

    Parameters
    ----------
    rows
        Distinct training rows that the current model accepts, at least ``LEAST``.
    units
        Weight of each column in a distance.
    """

    def __init__(self, rows: Array, units: Array) -> None:
        chosen = rows
        if len(rows) > SAMPLE:
            sample = np.random.default_rng(0).choice(len(rows), SAMPLE, replace=False)
            chosen = rows[np.sort(sample)]
        self.rows, self.units = rows, units
        self._tree = KDTree(chosen * units)
        self._all = self._tree if chosen is rows else KDTree(rows * units)
        distances, neighbours = _others(*self._query(chosen), np.arange(len(chosen)))
        self._reach = {k: distances[:, k - 1] for k in (_FEW, _MANY)}
        self._mean = {
            k: _reachability(distances, neighbours, reach, k) for k, reach in self._reach.items()
        }
        self._reference: Array = np.sort(self._scores(distances, neighbours), axis=0)

    @classmethod
    def of(cls, rows: Array, units: Array) -> Typical | None:
        """Fit distinct accepted rows, or return None if there are too few to compare with."""
        return cls(rows, units) if len(rows) >= LEAST else None

    def plausibility(self, points: Array) -> Array:
        """Return the plausibility of each point, between 0 and 1."""
        if not len(points):
            return np.zeros(0)
        distances, neighbours = self._query(points)
        itself = np.where(distances[:, 0] <= _SAME, neighbours[:, 0], -1)
        scores = self._scores(*_others(distances, neighbours, itself))
        ranks = [
            np.searchsorted(reference, score, side="left")
            for reference, score in zip(self._reference.T, scores.T, strict=True)
        ]
        result: Array = 1.0 - np.max(ranks, axis=0) / len(self._reference)
        return result

    def test(self, points: Array) -> Mask:
        """Test if each point is typical."""
        return is_typical(self.plausibility(points))

    def nearest(self, points: Array) -> Numbers:
        """Return the number of the nearest accepted row of each point."""
        found: Any = self._all.query(points * self.units, p=1.0)
        numbers: Numbers = found[1]
        return numbers

    def _query(self, points: Array) -> tuple[Array, Numbers]:
        """Return distances and numbers of the 31 nearest reference rows of each point."""
        found: Any = self._tree.query(points * self.units, k=_MANY + 1, p=1.0)
        return found[0], found[1]

    def _scores(self, distances: Array, neighbours: Numbers) -> Array:
        """Return the three measures of points with some neighbours, one column each."""
        columns = []
        for k, mean in self._mean.items():
            own = _reachability(distances, neighbours, self._reach[k], k)
            columns.append(own * np.mean(1.0 / mean[neighbours[:, :k]], axis=1))
        return np.column_stack([*columns, distances[:, _NEAREST - 1]])


def is_typical(plausibility: npt.ArrayLike) -> Mask:
    """Test if each plausibility is that of a typical point."""
    result: Mask = np.asarray(plausibility) >= TYPICAL - 1e-12
    return result


def _others(distances: Array, neighbours: Numbers, itself: Numbers) -> tuple[Array, Numbers]:
    """Leave out each point itself, or the last neighbour of a point that is not a row."""
    own = neighbours == itself[:, None]
    own[~own.any(axis=1), -1] = True
    shape = len(distances), distances.shape[1] - 1
    return distances[~own].reshape(shape), neighbours[~own].reshape(shape)


def _reachability(distances: Array, neighbours: Numbers, reach: Array, k: int) -> Array:
    """Return the mean reachability distance of each point from its k nearest rows."""
    result: Array = np.maximum(reach[neighbours[:, :k]], distances[:, :k]).mean(axis=1) + _TINY
    return result
