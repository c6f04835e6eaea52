r"""Whether a network keeps promises: asked of many networks, exactly.

A promise is kept by a network if its margin for the promised class is at least :math:`m` at the promised
point, or at every point of its box; with a delta, under every network within delta of it. The margin
:math:`m` is the one asked for. The network's own ``predict`` must say the promised class as well: where
two logits are equal, only one of the classes wins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from proplace.certification import DOUBLE, UNCOVERED_ADVICE, certify, rounding_error, worst_case
from proplace.core.errors import InputError, OptionError
from proplace.core.shifts import Shifts
from proplace.core.text import listing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from proplace.certification import InputBox, Margin, WorstCase
    from proplace.core.network import Array, Network, Precision
    from proplace.core.shifts import Delta
    from proplace.loaders.model import Model
    from proplace.retrain.promised import Promised

Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

UNITS: dict[Precision, float] = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
}
"""Unit roundoff of each arithmetic, from the finest to the coarsest."""

NO_TIE = 2.0**-200
"""The least margin that is told from a tie."""

_CHUNK = 1_000_000  # numbers of the widest array of a chunk


@dataclass(frozen=True, eq=False)
class Keeping:
    """Promises, and what keeping them means.

    Attributes
    ----------
    model
        The model whose rows the promises are.
    promised
        The promises.
    delta
        How far parameters may move from a network that is asked; 0 for the network alone.
    margin
        The margin asked for.
    """

    model: Model
    promised: Promised
    delta: Delta
    margin: Margin | None

    @classmethod
    def of(
        cls, model: Model, promised: Promised, delta: Delta | None, margin: Margin | None
    ) -> Keeping:
        """Check the options."""
        if isinstance(delta, Shifts):
            raise OptionError(
                "delta must be a number or one (weight, bias) pair per layer: it moves with the "
                "network, and a box of shifts stands where it is. To train inside a box: stay_within",
                name="delta",
                value=delta,
            )
        if isinstance(margin, (int, float)) and not (math.isfinite(margin) and margin >= 0.0):
            raise OptionError(
                f"margin must be a number >= 0 or 'float32', not {margin!r}",
                name="margin",
                value=margin,
            )
        return cls(model, promised, 0.0 if delta is None else delta, margin)

    def shifts(self, net: Network) -> Shifts:
        """The networks that must all keep the promises."""
        return Shifts.of(net, self.delta)

    def wanted(self, net: Network, shifts: Shifts, rows: Rows | None = None) -> Array:
        """The margin of each promise that all networks of a box must keep."""
        promised = self.promised if rows is None else self.promised.take(rows)
        model, found = replace(self.model, network=net), np.empty(len(promised))
        for part in chunks(net, len(promised)):
            points, box = promised.points[part], _part(promised.box, part)
            found[part] = model.margins(shifts, points, self.margin, box)
            if box is not None:  # inside a box, a tie may be decided either way
                wide = (box[0] < box[1]).any(axis=1)
                found[part] = np.where(wide, np.maximum(found[part], NO_TIE), found[part])
        lost = np.flatnonzero(~np.isfinite(found))
        if len(lost):
            raise InputError(
                f"no margin covers the rounding of {_named(promised, lost)}; {UNCOVERED_ADVICE}"
            )
        return found

    def guard(self, net: Network, shifts: Shifts) -> Array:
        """Bound on what float64 can do to the margins: beyond it ``predict`` says the class."""
        found, box = np.empty(len(self.promised)), self.promised.box
        for part in chunks(net, len(found)):
            low, high = _part(box, part) or (self.promised.points[part], None)
            found[part] = rounding_error(net, shifts, low, DOUBLE, high)
        return found

    def asked(self, net: Network, wanted: Array, rows: Rows | None = None) -> tuple[Mask, Array]:
        """Which promises a network keeps, as is proved, with the wanted margins; and what is left.

        The second is the least margin found for each promise, less the wanted one; where it is
        negative, a point of the box and a network within delta are known that fall short.
        """
        promised = self.promised if rows is None else self.promised.take(rows)
        robust, left = np.zeros(len(promised), dtype=bool), np.zeros(len(promised))
        for target, numbers in promised.by_target():
            report = certify(
                net,
                promised.points[numbers],
                self.delta,
                target,
                margin=wanted[numbers],
                box=_part(promised.box, numbers),
            )
            said = np.concatenate(
                [net.predict(promised.points[numbers[part]]) for part in chunks(net, len(numbers))]
            )
            robust[numbers] = report.robust & (said == target)
            left[numbers] = report.upper - wanted[numbers]
        return robust, left

    def worst(self, net: Network, row: int) -> WorstCase:
        """The network within delta, and the point of the box, with the least margin for a promise."""
        promised, one = self.promised, slice(row, row + 1)
        return worst_case(
            net,
            promised.points[one],
            self.delta,
            int(promised.targets[row]),
            box=_part(promised.box, one),
        )

    def names(self, rows: Iterable[int]) -> tuple[str, ...]:
        """Names of some promises."""
        return tuple(self.promised.names[row] for row in rows)

    def called(self, rows: Iterable[int]) -> str:
        """Some promises in a message."""
        return _named(self.promised, rows)


def margins(net: Network, promised: Promised) -> Array:
    """The margin of each promised point for its own class, in float64."""
    found = np.empty(len(promised))
    for part in chunks(net, len(promised)):
        logits = net.logits(promised.points[part])
        targets, count = promised.targets[part], np.arange(len(logits))
        if net.outputs == 1:
            found[part] = np.where(targets == 1, logits[:, 0], -logits[:, 0])
            continue
        own = logits[count, targets]
        logits[count, targets] = -np.inf
        found[part] = own - logits.max(axis=1)
    return found


def chunks(net: Network, rows: int) -> Iterator[slice]:
    """Slices of rows, so that memory stays bounded."""
    size = max(1, _CHUNK // max(net.inputs, net.outputs, *net.widths, 1))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def rounded(values: Array, precision: Precision) -> Array:
    """The nearest numbers of a precision, as float64."""
    if precision == "float64":
        return values
    result: Array = np.asarray(values, dtype=precision).astype(np.float64)
    return result


def sentence_delta(delta: Any) -> str:
    """Words that follow a promise that is kept robustly; empty without a delta."""
    number = isinstance(delta, (int, float, np.number))
    if number and not delta:
        return ""
    return f", also under every network within {f'{delta:g}' if number else 'the radii'} of it"


def _part(box: InputBox | None, rows: Any) -> InputBox | None:
    return None if box is None else (box[0][rows], box[1][rows])


def _named(promised: Promised, rows: Iterable[int]) -> str:
    names = [promised.names[row] for row in rows]
    return f"promise{'s' * (len(names) != 1)} {listing(names, 6)}"
