r"""Bounds that follow from dual values, whatever they are.

The solver of the node programs (:mod:`proplace.certification.node_program`) is not trusted. Of its
answer only the dual values :math:`p, q, r \ge 0` of the rows ``h >= L``, ``h >= U`` (after a split to
-1) and ``h <= s U + t`` are used. With the coefficients :math:`a` of a layer's activations,

.. math::
    a_k h_k \ \ge\ p_k L_k + q_k U_k - r_k (s_k U_k + t_k)

holds for *any* :math:`p, q, r \ge 0` with :math:`r \ge p + q - a` (the rest falls on ``h >= 0``).
Layer by layer, from the last hidden one to the second, this leaves a linear function of :math:`h_1`,
whose minimum over the exact box is the bound. Duals that violate the conditions are first moved to
where they hold.

An objective of 0 has the value 0 at every point. So multipliers that bound it from below by more than
0 prove that a node has no point at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from proplace.certification.batched_bnb import Nodes
from proplace.certification.bounds import Objective, chords, start_slopes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.certification.bounds import Index, Splits, WorstCaseProblem
    from proplace.core.network import Array

_SHOWS = 1e-6  # a rounding error, relative to the value or to the last layer's parameters
_EMPTY = 1e-9  # by this much a ray of largest entry 1 must bound 0 from below
_DOUBLINGS = 100  # of a ray, until it proves a threshold


class NodeDuals(NamedTuple):
    """What the bound of a node rests on: the solver's duals, or its dual ray if the node is empty.

    Without duals (the solver gave no answer) it rests on the slopes to start from.
    """

    splits: tuple[Splits, ...]
    duals: Array | None
    empty: bool


class DualBound(NamedTuple):
    """A bound, and what its multipliers add to the sizes of which rounding takes its share.

    See :mod:`proplace.certification.roundoff`.
    """

    value: float
    multiplier_size: float


class _LayerMultipliers(NamedTuple):
    """Valid multipliers of one inner layer, and its upper sides ``slope * U + offset``."""

    p: Array
    q: Array
    r: Array
    slope: Array
    offset: Array


@dataclass(frozen=True, eq=False)
class DualBounds:
    """Bounds from duals for the nodes of one row.

    Attributes
    ----------
    problem
        The problem of this row.
    sizes
        Largest sizes of the pre-activations of each inner layer.
    rows
        Where, among all duals, those of each block of rows begin: for each inner layer the blocks
        ``h >= L``, ``h <= s U + t``, and ``h <= U`` or ``h >= U``.
    """

    problem: WorstCaseProblem
    sizes: Sequence[Array]
    rows: Index

    def bound(self, duals: Array, splits: tuple[Splits, ...]) -> DualBound:
        """The bound of the problem's objective at a node."""
        return self._bound(duals, splits, self.problem.objective)

    def proof_of_emptiness(self, ray: Array, splits: tuple[Splits, ...]) -> Array | None:
        """The ray, or its negative, if it proves that a node is empty, also after rounding."""
        ray = ray / max(float(np.abs(ray).max()), 1e-300)
        zero = Objective(np.zeros_like(self.problem.objective.a), 0.0)
        better = max((ray, -ray), key=lambda r: self._bound(r, splits, zero).value)
        value, size = self._bound(better, splits, zero)
        error = self.problem.abstraction.roundoff.unit * size
        return better if value - error > _EMPTY else None

    def leaf(self, node: NodeDuals, threshold: float) -> Nodes:
        r"""Turn the multipliers behind a bound into slopes and split multipliers.

        With :math:`a^+ = \max(a, 0)` and the excess :math:`e = \max(p - a^+, 0)`, the part
        :math:`e\,(L - s U - t)` of a neuron's bound is at most :math:`e (1 - s)(U - \max U)`, since
        :math:`L \le U` wherever the activations before are :math:`\ge 0`. What is left has
        :math:`p \le a^+`, a slope :math:`p / a^+`, and all else on U is a multiplier of its range.
        """
        splits, duals, empty = node
        alpha = [slopes[0].copy() for slopes in start_slopes(self.problem.activations)]
        gamma = [np.zeros(len(split)) for split in splits]
        if duals is not None and empty:  # any multiple of the ray is valid: take enough of it
            for _ in range(_DOUBLINGS):
                if self.bound(duals, splits).value >= threshold:
                    break
                duals = duals * 2.0
        if duals is not None:
            a = self.problem.objective.a
            for index in reversed(range(len(splits))):
                p, q, r, slope, _ = self._multipliers(index, duals, splits, a)
                up, down = np.maximum(a, 0.0), np.minimum(a, 0.0)
                excess = np.maximum(p - up, 0.0)
                on_low = p - excess
                on_high = q - (r - excess) * slope + excess * (1.0 - slope)
                np.divide(on_low, up, out=alpha[index], where=up > 0.0)
                gamma[index] = down * slope - on_high
                inner = self.problem.abstraction.inner[index]
                a = on_low @ inner.W_low + on_high @ inner.W_high
        return Nodes(
            np.zeros(1, dtype=np.intp),
            [split[None] for split in splits],
            [slopes[None] for slopes in alpha],
            [multipliers[None] for multipliers in gamma],
        )

    def _bound(self, duals: Array, splits: tuple[Splits, ...], objective: Objective) -> DualBound:
        """The bound of any objective; where multipliers are so large that rounding shows, less it."""
        abstraction, activations = self.problem.abstraction, self.problem.activations
        a, value = objective
        size = 0.0
        for index in reversed(range(len(splits))):
            inner = abstraction.inner[index]
            p, q, r, slope, offset = self._multipliers(index, duals, splits, a)
            on_high = q - r * slope
            value += float(p @ inner.b_low + on_high @ inner.b_high - r @ offset)
            size += float((p + q + r) @ self.sizes[index])
            a = p @ inner.W_low + on_high @ inner.W_high
        value += float(a @ np.where(a >= 0.0, activations.low[0], activations.high[0]))
        error = abstraction.roundoff.unit * size
        shows = not error <= _SHOWS * max(abstraction.unit, abs(value))
        return DualBound(value - error if shows else value, size)

    def _multipliers(
        self, index: int, duals: Array, splits: tuple[Splits, ...], a: Array
    ) -> _LayerMultipliers:
        """Valid multipliers of one inner layer, whose activations have the coefficients ``a``."""
        ranges, split = self.problem.activations.preactivations[index], splits[index]
        slope, offset = (part[0] for part in chords(ranges, split[None]))
        first, chord, side, end = self.rows[3 * index : 3 * index + 4]
        p = np.maximum(duals[first:chord], 0.0)
        q = np.where(split < 0, np.maximum(duals[side:end], 0.0), 0.0)
        r = np.where(split < 0, 0.0, -duals[chord:side] - duals[side:end])
        r = np.maximum(r, np.maximum(p + q - a, 0.0))
        return _LayerMultipliers(p, q, r, slope, offset)
