r"""The largest step from an old network to a retrained one that keeps every promise.

On the line :math:`\theta(t) = \theta_0 + t (\theta_1 - \theta_0)` a promise may be kept, broken and
kept again as t grows: the set of good t need not be an interval. So nothing is concluded from single
points. The search halves stretches of [0, 1], the upper halves first. A stretch is dropped only where
one promise is proved to be broken on all of it (:mod:`proplace.promises.line`); a t counts as good
only where the network at t, with its parameters rounded as they will be used, passes the exact test of
every promise. What is left when all stretches above a good t (and a tolerance beyond it) are dropped
is the largest one.

A promise is broken at t where its margin is below the wanted one. On the line this is the margin that
the box around all networks of the line needs, and what rounding the parameters can do on top of it, so
that a t at which the line keeps every promise is a t at which the rounded network does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.errors import InputError, OptionError
from proplace.core.network import Layer, Network
from proplace.core.options import positive
from proplace.core.text import enumerated, short
from proplace.loaders.model import Model
from proplace.promises.keeping import Keeping, margins, model_like, placed, sentence_delta
from proplace.promises.line import Line
from proplace.promises.promised import Promised

if TYPE_CHECKING:
    from proplace.certification import Margin
    from proplace.core.network import Array
    from proplace.core.shifts import Delta
    from proplace.promises.keeping import Rows

_FINEST = 1e-12  # of a tolerance: floats near 1 are 1e-16 apart
_BELOW = 256.0  # a stretch so many times shorter than the tolerance is not halved again
_STEPS = 5_000  # stretches that are looked at
_REMEMBERED = 64  # promises that broke before are asked first
_TRIED = 3  # promises whose worst network is worked out for one stretch


@dataclass(frozen=True, eq=False)
class Blend:
    """The largest step that keeps every promise.

    Attributes
    ----------
    t
        How far the step goes: 0 is the old network, 1 the retrained one.
    network
        The network there, in the coordinates of the old one; its parameters are numbers of the
        precision in which the models are used. It is proved to keep every promise.
    held_back
        Names of the promises that the next step would break.
    complete
        Whether every t above ``t + tolerance`` is proved to break a promise; if not, all but
        those in ``undecided``.
    undecided
        Stretches of t of which nothing is known.
    promises
        How many promises are kept.
    delta, tolerance
        As asked for.
    folded
        Whether the step is one of layers into which different batch norms were folded.
    """

    t: float
    network: Network
    held_back: tuple[str, ...]
    complete: bool
    undecided: tuple[tuple[float, float], ...]
    promises: int
    delta: Delta
    tolerance: float
    folded: bool = False
    _source: object = field(default=None, repr=False)

    def __str__(self) -> str:
        """One sentence."""
        kept = f"all {self.promises} promise{'s' * (self.promises != 1)}"
        kept += sentence_delta(self.delta)
        if self.t == 1.0:
            return f"The retrained network itself keeps {kept} (t = 1)."
        names = enumerated([short(name) for name in self.held_back[:5]])
        more = len(self.held_back) - 5
        names += f" and {more} more" if more > 0 else ""
        folded = ", of layers with their batch norm folded in," if self.folded else ""
        except_ = (
            "" if self.complete else f", but for {len(self.undecided)} undecided stretches of t,"
        )
        return (
            f"The step to t = {_down(self.t)} of the way to the retrained network{folded} keeps {kept}; "
            f"every larger t{except_} is proved to break one (beyond {self.tolerance:g}), and what "
            f"holds it back is {names}."
        )

    def placed(self, source: object) -> Any:
        """Put the parameters of ``network`` into a copy of a model of the same architecture."""
        return placed(self.network, source)

    @property
    def model(self) -> Any:
        """The old model with these parameters; the network itself where no framework made it."""
        return model_like(self.network, self._source)


def blend(
    old: object,
    new: object,
    promises: object,
    *,
    delta: Delta | None = None,
    tolerance: float = 1e-6,
    margin: Margin | None = None,
) -> Blend:
    """Find the largest step from an old model to a retrained one that keeps every promise.

    Parameters
    ----------
    old, new
        Models of one architecture: networks, modules, pipelines or files. Where a scaler was fitted
        again, the new one is taken behind that of the old.
    promises
        A ledger, results of an explainer, or a pair (inputs, target): see :meth:`Promised.of`.
    delta
        Keep the promises also under every network within delta of the result: one number, or one
        (weight, bias) pair per layer.
    tolerance
        How far below the largest t the answer may lie.
    margin
        The least margin of a kept promise, as for :func:`certify`.

    Raises
    ------
    InputError
        The old model itself does not keep every promise, or the models cannot be compared.

    Examples
    --------
    >>> import proplace as pp
    >>> old = pp.Network([([[1.0, 0.0]], [0.0])])
    >>> new = pp.Network([([[0.0, 1.0]], [0.0])])
    >>> step = pp.blend(old, new, ([[1.0, -0.25]], 1))
    >>> round(step.t, 5), step.complete, step.held_back
    (0.8, True, ('0',))
    """
    if positive("tolerance", tolerance) < _FINEST:
        raise OptionError(f"tolerance must be at least {_FINEST:g}, not {tolerance!r}")
    base, other = Model.of(old), Model.of(new)
    line = Line.between(base, other)
    mixed = line.start.folded != (base.network.folded or other.network.folded)
    if mixed and delta is not None:
        raise InputError(
            "different batch norms are folded into the two models, so that a delta of the trained "
            "weights has no meaning between them; leave delta out, or keep the batch norm as it was "
            "when retraining (frozen statistics, scale and shift)"
        )
    keeping = Keeping.of(base, Promised.of(base, promises), delta, margin)
    _check_old(keeping, line.start)
    search = _Search.of(keeping, line, tolerance)
    search.run()
    return Blend(
        search.best,
        line.at(search.best),
        search.held_back(),
        not search.undecided(),
        search.undecided(),
        len(keeping.promised),
        keeping.delta,
        tolerance,
        mixed,
        old,
    )


def _check_old(keeping: Keeping, net: Network) -> None:
    """Refuse an old network that does not keep the promises."""
    wanted = keeping.wanted(net, keeping.shifts(net))
    kept, _ = keeping.asked(net, wanted)
    broken = np.flatnonzero(~kept)
    if not len(broken):
        return
    first = int(broken[0])
    found = margins(net, keeping.promised.take(broken[:1]))[0]
    robustly = sentence_delta(keeping.delta)
    raise InputError(
        f"the old model itself does not keep {keeping.called(broken)}{robustly}: the margin of "
        f"{short(keeping.promised.names[first])} is {found:.4g} today, and {wanted[first]:.4g} is asked "
        "for. A step cannot start there: give the model that made these promises, leave them out"
        f"{', or give a smaller delta' if robustly else ''}; repair(new, promises) needs no old model"
    )


@dataclass(frozen=True, eq=False)
class _Witness:
    """What breaks a promise: a point of its box, and a displacement of the parameters, if any."""

    row: int
    point: Array
    moved: tuple[Layer, ...] | None = None


@dataclass(eq=False)
class _Search:
    """The search from above; ``best`` is the largest good t so far.

    ``here`` are the margins that a rounded network must keep, ``on_line`` those below which a
    promise counts as broken on the line.
    """

    keeping: Keeping
    line: Line
    tolerance: float
    here: Array
    on_line: Array
    best: float = 0.0
    suspects: list[int] = field(default_factory=list)
    witnesses: list[_Witness] = field(default_factory=list)
    dropped: list[tuple[float, float, int]] = field(default_factory=list)
    left: list[tuple[float, float]] = field(default_factory=list)

    @classmethod
    def of(cls, keeping: Keeping, line: Line, tolerance: float) -> _Search:
        box = line.hull(keeping.shifts(line.start), keeping.shifts(line.end))
        here = keeping.wanted(line.start, box)
        return cls(keeping, line, tolerance, here, here + 3.0 * keeping.rounding(line.start, box))

    def run(self) -> None:
        """Look at stretches until none is left above the best t and its tolerance."""
        last = self.line.at(1.0)
        if self._keeps(last, self.keeping.wanted(last, self.keeping.shifts(last))):
            self.best = 1.0
            return
        stack, steps = [(0.0, 1.0)], 0
        while stack:
            a, b = stack.pop()
            if b <= self.best + self.tolerance or self._drop(a, b):
                continue
            steps += 1
            if b - a < self.tolerance / _BELOW or steps > _STEPS:
                self.left.append((a, b))
                continue
            middle = (a + b) / 2.0
            if self._keeps(self.line.at(middle), self.here):
                self.best = max(self.best, middle)
            else:
                self._learn(middle)
                if self._drop(a, b):
                    continue
                stack.append((a, middle))
            stack.append((middle, b))

    def undecided(self) -> tuple[tuple[float, float], ...]:
        """Stretches beyond the best t and its tolerance of which nothing is known, joined."""
        found: list[tuple[float, float]] = []
        for a, b in sorted(self.left):
            if b <= self.best + self.tolerance:
                continue
            if found and found[-1][1] == a:
                found[-1] = (found[-1][0], b)
            else:
                found.append((a, b))
        return tuple(found)

    def held_back(self) -> tuple[str, ...]:
        """Names of the promises that are broken where the lowest dropped stretch begins."""
        above = [(max(a, self.best), row) for a, b, row in self.dropped if b > self.best]
        if self.best == 1.0 or not above:
            return ()
        start, witness = min(above)
        kept, _ = self.keeping.asked(self.line.at(start), self.here)
        kept[witness] = False
        return self.keeping.names(np.flatnonzero(~kept))

    # -- inside ------------------------------------------------------------------------------

    def _keeps(self, net: Network, wanted: Array) -> bool:
        """Whether a network keeps every promise; those that broke before are asked first."""
        if self.suspects:
            rows = np.array(self.suspects, dtype=np.intp)
            kept, left = self.keeping.asked(net, wanted[rows], rows)
            if not kept.all():
                self._suspect(rows[~kept][np.argsort(left[~kept])])
                return False
        kept, left = self.keeping.asked(net, wanted)
        broken = np.flatnonzero(~kept)
        self._suspect(broken[np.argsort(left[broken], kind="stable")])
        return not len(broken)

    def _suspect(self, rows: Rows) -> None:
        """Remember promises that broke, the worst first."""
        new = rows[:_REMEMBERED].tolist()
        seen = set(new)
        self.suspects = [*new, *(row for row in self.suspects if row not in seen)][:_REMEMBERED]

    def _learn(self, t: float) -> None:
        """Work out what breaks the promises that the network at t does not keep."""
        promised, net = self.keeping.promised, self.line.at(t)
        shifts = self.keeping.shifts(net)
        if promised.box is None and shifts.frozen:
            self.witnesses = [_Witness(row, promised.points[row]) for row in self.suspects]
            return
        for row in self.suspects[:_TRIED]:
            worst = self.keeping.worst(net, row)
            layers = zip(net.layers, worst.network.layers, shifts.layers, strict=True)
            moved = [_displacement(p, q, *box.radius) for p, q, box in layers]
            point = np.ravel(worst.point)
            self.witnesses.insert(0, _Witness(row, point, None if shifts.frozen else tuple(moved)))
        del self.witnesses[_REMEMBERED:]

    def _drop(self, a: float, b: float) -> bool:
        """Whether some promise is proved to be broken on a whole stretch; then it is dropped."""
        targets = self.keeping.promised.targets
        still = [w for w in self.witnesses if w.moved is None]
        groups = [still] if still else []
        groups += [[w] for w in self.witnesses if w.moved is not None]
        for group in groups:
            rows = np.array([w.row for w in group], dtype=np.intp)
            points = np.array([w.point for w in group])
            most = self.line.most(a, b, points, targets[rows], group[0].moved)
            broken = np.flatnonzero(most < self.on_line[rows])
            if len(broken):
                self.dropped.append((a, b, int(rows[broken[0]])))
                return True
        return False


def _displacement(at: Layer, to: Layer, weight: Array | float, bias: Array | float) -> Layer:
    """The way from one layer to another, no longer than the radii."""
    inside = 1.0 - 2.0**-50  # radii of boxes are rounded
    W = np.clip(to.W - at.W, -inside * np.asarray(weight), inside * np.asarray(weight))
    b = np.clip(to.bias - at.bias, -inside * np.asarray(bias), inside * np.asarray(bias))
    return Layer(W, None if at.b is None else b)


def _down(t: float) -> str:
    return f"{math.floor(t * 1e6) / 1e6:g}"
