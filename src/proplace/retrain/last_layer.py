r"""The smallest change of the last layer that makes a network keep every promise.

Let :math:`h_j` be the last hidden activations of promise j (the inputs of a network without hidden
layers), :math:`c` a row over the logits with margin :math:`\min_c c \cdot \text{logits}`, and
:math:`W, b` the last layer. With a change :math:`D, d` of it, a promise is kept iff for each of its
rows c

.. math::
    c \cdot (D h_j + d) \ge r_{jc} = m_j - c \cdot (W h_j + b) ,

which is linear in the change. The least L-infinity change is a linear program,

.. math::
    \min\ \varepsilon \quad \text{s.t.} \quad a_i \cdot x \ge r_i, \qquad
    |x_k| \le \rho_k\, \varepsilon ,

with :math:`\rho = 1`, or the factors of a batch norm that is folded into the layer, so that
:math:`\varepsilon` is the change of the trained parameters. Of all changes of this size the one with the
least sum is taken, which leaves most parameters as they are.

Only violated rows are added, the worst first, until none is violated. Where a whole box was promised,
or every network within delta must keep the promise, the worst point and the worst hidden layers for
the present last layer are worked out (:func:`proplace.certification.worst_case`): their activations
:math:`h'` give a row that the change must satisfy, less what delta does to the last layer itself,
:math:`\sum_k |c_k| (\delta^w |h'|_1 + \delta^b)`.

*Least.* For any multipliers :math:`y \ge 0` of rows,

.. math::
    \varepsilon \ \ge\ \frac{\sum_i y_i r_i}{\sum_k \rho_k\, |\sum_i y_i a_{ik}|} ,

whatever the solver did; its dual values make this bound meet the optimum. Roundings are covered. Where
the divisor vanishes and the numerator does not, no change keeps the promises with :math:`y_i > 0`
together.
"""

from __future__ import annotations

import copy
import os
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.certification import DOUBLE, rounding_error
from proplace.core.errors import InputError, ModelNotSupportedError, SolverError
from proplace.core.network import Network
from proplace.core.shifts import Shifts
from proplace.loaders.coordinates import with_cutoff_of
from proplace.loaders.model import Model
from proplace.retrain.promised import (
    UNITS,
    Keeping,
    Promised,
    chunks,
    margins,
    rounded,
    sentence_delta,
)
from proplace.solvers import INF, WITH_DUALS, LinearProgram
from proplace.tables.rows import as_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from proplace.certification import Margin
    from proplace.core.network import Array
    from proplace.core.shifts import Delta
    from proplace.loaders.cutoffs import Cutoff, Threshold
    from proplace.retrain.projection import Parameters
    from proplace.retrain.promised import Mask


_U = 2.0**-53
_ADDED = 50  # promises that one round adds
_CANDIDATES = 2_000  # from among so many that miss the most
_WORKED_OUT = 20  # promises whose worst case one round works out
_ROUNDS = 500
_SLACK = 1e-7  # relative to the least change of a single row: above the tolerance of the program
_PARALLEL = 1e-7  # multipliers below this share of the largest play no part


@dataclass(frozen=True, eq=False)
class Repair:
    """The smallest change of the last layer that keeps every promise.

    Attributes
    ----------
    network
        The network with the changed last layer, proved to keep every promise; its parameters are
        numbers of the precision in which the model is used.
    change
        The largest change of any parameter.
    bound
        No change of the last layer smaller than this keeps every promise with its margin: proved.
    mended
        Names of the promises that the given network does not keep.
    promises
        How many promises are kept.
    accuracy_before, accuracy_after
        Share of the rows of ``data`` that get their label; None without data.
    delta
        As asked for.
    folded
        Whether the change is one of parameters into which a batch norm is folded, not of the trained
        ones.
    threshold
        The cut-off of the model, which the output bias of ``network`` holds; None without one.
    """

    network: Network
    change: float
    bound: float
    mended: tuple[str, ...]
    promises: int
    delta: Delta
    accuracy_before: float | None = None
    accuracy_after: float | None = None
    folded: bool = False
    threshold: Threshold | None = None
    _source: object = field(default=None, repr=False)

    def __str__(self) -> str:
        """One sentence."""
        kept = f"all {self.promises} promise{'s' * (self.promises != 1)}"
        kept += sentence_delta(self.delta)
        if not self.mended:
            return f"The network keeps {kept} as it is."
        layer = "the last layer" + (" with its batch norm folded in" if self.folded else "")
        text = (
            f"A change of {layer} by at most {self.change:.4g} mends {len(self.mended)} broken "
            f"promise{'s' * (len(self.mended) != 1)}, so that the network keeps {kept}; no change below "
            f"{self.bound:.4g} does"
        )
        if self.accuracy_before is not None and self.accuracy_after is not None:
            text += (
                f". Accuracy {self.accuracy_before:.4f} before and {self.accuracy_after:.4f} after"
            )
        return f"{text}."

    @property
    def model(self) -> Any:
        """The given model with these parameters; the network itself where no framework made it."""
        return with_last_layer(self._source, self.network, self.threshold)


def repair(
    new: object,
    promises: object,
    *,
    delta: Delta | None = None,
    margin: Margin | None = None,
    data: tuple[Any, Any] | None = None,
    cutoff: Cutoff | None = None,
) -> Repair:
    """Find the smallest change of the last layer that makes a network keep every promise.

    Parameters
    ----------
    new
        The retrained model: a network, module, pipeline or file.
    promises
        A ledger, results of an explainer, or a pair (inputs, target): see :meth:`Promised.of`.
    delta
        Keep the promises also under every network within delta of the result: one number, or one
        (weight, bias) pair per layer.
    margin
        The least margin of a kept promise, as for :func:`certify`.
    data
        A table as the model takes it and the label of each row, on which to compare the accuracy.
    cutoff
        As for :meth:`proplace.Model.of`; by default that with which the promises were made.
        :attr:`Repair.model` holds the trained parameters, to which no cut-off was applied.

    Raises
    ------
    InputError
        No change of the last layer keeps all promises; the message names those that exclude each other.

    Examples
    --------
    >>> import proplace as pp
    >>> new = pp.Network([([[1.0, -1.0]], [0.0])])
    >>> mended = pp.retrain.repair(new, ([[1.0, 2.0], [3.0, 1.0]], 1), margin=0.2)
    >>> round(mended.change, 6), round(mended.bound, 6), mended.mended
    (0.3, 0.3, ('0',))
    >>> mended.network.margin([[1.0, 2.0], [3.0, 1.0]]).round(6)
    array([0.2, 3.5])
    """
    model = Model.of(new, cutoff=cutoff)
    promised = Promised.of(model, promises)
    if promised.base is not None:
        model = with_cutoff_of(promised.base, model)
    keeping = Keeping.of(model, promised, delta, margin)
    table = None if data is None else _table(model, data)
    net = model.network
    kept, _ = keeping.asked(net, keeping.wanted(net, keeping.shifts(net)))
    mended, change, bound = net, 0.0, 0.0
    space = _Space.of(net, model.threshold)
    if not kept.all():
        mended, bound = _mend(keeping, space, kept)
        change = space.size(mended)
    return Repair(
        mended,
        change,
        min(bound, change),
        keeping.names(np.flatnonzero(~kept)),
        len(kept),
        keeping.delta,
        None if table is None else _accuracy(net, *table),
        None if table is None else _accuracy(mended, *table),
        space.folded,
        model.threshold,
        new,
    )


def _mend(keeping: Keeping, space: _Space, before: Mask) -> tuple[Network, float]:
    """A network that keeps every promise, and the proved bound on its change.

    ``before`` says which promises are kept without one.
    """
    shifts = keeping.shifts(space.net)
    wanted = keeping.wanted(space.net, shifts) + keeping.guard(space.net, shifts)
    for _ in range(_ROUNDS):
        cuts = _Cuts(keeping, space, wanted, before)
        found = cuts.run()
        need = keeping.wanted(found, keeping.shifts(found))
        kept, _ = keeping.asked(found, need)
        if kept.all():
            return found, cuts.bound
        # Larger weights round by more: ask for what the mended network itself needs.
        wanted = np.where(kept, wanted, np.maximum(wanted, need) * (1.0 + 2.0**-10))
    raise SolverError("no margin was found that covers the rounding of the mended network")


@dataclass(frozen=True, eq=False)
class _Space:
    """The changes of the last layer: a flat vector of weights, then of biases where there are some.

    ``reach`` is by how much each may change for one unit of the change of the trained parameters.
    """

    net: Network
    reach: Array
    folded: bool
    offset: Array  # of each bias, by the cut-off

    @classmethod
    def of(cls, net: Network, threshold: Threshold | None = None) -> _Space:
        last, fold = net.layers[-1], net.folds[-1]
        W, b = np.ones(last.W.shape), np.ones(len(last.W))
        folded = False
        if fold is not None:
            # A shift in front of the layer moves a bias with the weights: not a change of one number.
            folded = bool(fold.shift.any())
            if not folded:
                W, b = fold.rows[:, None] * fold.columns, fold.bias
        parts = [W.ravel()] if last.b is None else [W.ravel(), b]
        offset = np.zeros(net.outputs) if threshold is None else threshold.offset(net.outputs)
        return cls(net, np.concatenate(parts), folded, offset)

    def rows(self, H: Array, C: Array) -> Array:
        """The coefficients ``a`` of objectives ``C`` over the logits, at activations ``H``."""
        weights = (C[:, :, None] * H[:, None, :]).reshape(len(H), -1)
        return weights if self.net.layers[-1].b is None else np.hstack([weights, C])

    def changed(self, change: Array) -> Network:
        """The network with a change of its last layer; what moves is rounded to its precision."""
        last = self.net.layers[-1]
        precision = "float64" if self.net.folded else self.net.precision
        parts = [last.W.ravel()] if last.b is None else [last.W.ravel(), last.b]
        before = np.concatenate(parts)
        # A model stores its bias without the cut-off: this is what will be read of it.
        offset = np.zeros(before.size)
        offset[last.W.size :] = self.offset if last.b is not None else 0.0
        stored = rounded(before + change + offset, precision)
        after = np.where(change != 0.0, stored - offset, before)
        W, b = after[: last.W.size].reshape(last.W.shape), after[last.W.size :]
        pairs = [(layer.W, layer.b) for layer in self.net.layers[:-1]]
        return self.net.with_layers([*pairs, (W, None if last.b is None else b)])

    def size(self, other: Network) -> float:
        """The largest change, in units of ``reach``."""
        mine, theirs = self.net.layers[-1], other.layers[-1]
        parts = [np.abs(theirs.W - mine.W).ravel()]
        parts += [] if mine.b is None else [np.abs(theirs.bias - mine.bias)]
        moved = np.concatenate(parts)
        return float(np.max(moved[moved > 0.0] / self.reach[moved > 0.0], initial=0.0))


@dataclass(frozen=True, eq=False)
class _Cut:
    """One row ``a . x >= r`` that a change must satisfy, and the promise that it comes from.

    ``r_error`` and ``a_error`` bound what roundings did to r, and to a in the sum of ``reach * |a|``.
    """

    promise: int
    a: Array
    r: float
    r_error: float
    a_error: float


class _Cuts:
    """The linear program with the rows added so far.

    Its columns are the positive and the negative parts of the change, in units of ``reach`` and of the
    largest change that a single row of the first round asks for, and epsilon in these units.
    """

    def __init__(self, keeping: Keeping, space: _Space, wanted: Array, before: Mask) -> None:
        self.keeping, self.space, self.wanted = keeping, space, wanted
        self.net = space.net
        self.shifts = keeping.shifts(self.net)
        self.plain = keeping.promised.box is None and self.shifts.is_single_network
        self.cuts: list[_Cut] = []
        self.before = before
        self.tied = np.zeros(len(wanted), dtype=bool)  # kept by a tie, whatever the last layer is
        self.bound = 0.0
        self.unit = 0.0
        self.columns = np.arange(2 * space.reach.size + 1, dtype=np.int32)
        self.program = LinearProgram(WITH_DUALS)

    def run(self) -> Network:
        """The network with the least change and, of those, the least sum of changes."""
        size = self.space.reach.size
        found = self._solved(self.net)
        if not self.cuts:
            return found  # rounding alone decides: the margin is raised
        self.bound = self._dual_bound()
        least = float(self.program.values[-1])
        self.program.set_column_bounds(2 * size, 0.0, least * (1.0 + _SLACK))
        self.program.set_costs(self.columns, np.append(np.ones(2 * size), 0.0))
        try:
            return self._solved(found, again=True)
        except (InputError, SolverError):
            return found  # rows that came later leave no room at this size

    def _solved(self, present: Network, *, again: bool = False) -> Network:
        """Add violated rows and solve, until there are none."""
        if again:
            present = self._solve()
        for _ in range(_ROUNDS):
            new = self._violated(present)
            if not new:
                return present
            self._add(new)
            present = self._solve() if self.cuts else present
        raise SolverError(
            f"the promises are not all kept after {_ROUNDS} rounds of the linear program; give a larger "
            "margin, or fewer promises"
        )

    def _solve(self) -> Network:
        verdict = self.program.solve()
        if verdict == "infeasible":
            raise InputError(self._excluded())
        if verdict != "optimal":
            raise SolverError("the linear program of the repair has no answer (HiGHS gave up)")
        size, values = self.space.reach.size, self.program.values
        change = self.unit * self.space.reach * (values[:size] - values[size : 2 * size])
        return self.space.changed(change)

    # -- rows --------------------------------------------------------------------------------

    def _violated(self, present: Network) -> list[_Cut]:
        """Rows that a network does not satisfy, the worst first; none if it keeps every promise."""
        return self._at_points(present) if self.plain else self._at_worst(present)

    def _at_points(self, present: Network) -> list[_Cut]:
        promised, net = self.keeping.promised, self.net
        short = self.wanted - margins(present, promised)
        rows = np.flatnonzero((short > 0.0) & ~self.tied)
        if not len(rows):
            return []
        if len(rows) > _CANDIDATES:
            rows = rows[np.argpartition(-short[rows], _CANDIDATES)[:_CANDIDATES]]
        H = _hidden(net, promised.points[rows])
        size = np.abs(H).sum(axis=1) + 1.0
        order = np.argsort(-short[rows] / size, kind="stable")[:_ADDED]
        cuts = []
        for row, h in zip(rows[order], H[order], strict=True):
            point = promised.points[row : row + 1]
            logits = present.logits(point)[0]
            cuts += [
                self._cut(int(row), h, c, net, point)
                for c in net.objectives(int(promised.targets[row]))
                if c @ logits < self.wanted[row]
            ]
        return cuts

    def _at_worst(self, present: Network) -> list[_Cut]:
        """By the worst point and the worst hidden layers for a last layer."""
        rows = np.unique([cut.promise for cut in self.cuts]).astype(np.intp)
        for asked in (rows, np.flatnonzero(~self.tied)):
            if not len(asked):
                continue
            kept, left = self.keeping.asked(present, self.wanted[asked], asked)
            broken = asked[~kept][np.argsort(left[~kept], kind="stable")]
            if len(broken):
                break
        else:
            return []
        cuts = []
        for row in broken[:_WORKED_OUT].tolist():
            worst = self.keeping.worst(present, row)
            objectives = present.objectives(int(self.keeping.promised.targets[row]))
            values = objectives @ worst.network.logits(worst.point)[0]
            c = objectives[int(np.argmin(values))]
            point = np.reshape(worst.point, (1, -1))
            cuts.append(self._cut(row, _hidden(worst.network, point)[0], c, worst.network, point))
        return cuts

    def _cut(self, row: int, h: Array, c: Array, net: Network, point: Array) -> _Cut:
        """The row of a promise, for activations that a network has at a point."""
        last, (weight, bias) = self.net.layers[-1], self.shifts.layers[-1].radius
        W, n = last.W, len(h)
        moves = np.broadcast_to(weight, W.shape) @ np.abs(h)
        moves = moves + (0.0 if last.b is None else np.broadcast_to(bias, len(W)))
        loss = float(np.abs(c) @ moves)
        r = self.wanted[row] + loss - float(c @ (W @ h + last.bias))
        error = _hidden_error(net, point)
        sizes = np.abs(c) @ (np.abs(W) @ np.abs(h) + np.abs(last.bias)) + loss + self.wanted[row]
        reached = np.abs(c) @ (np.abs(W).sum(axis=1) + np.broadcast_to(weight, W.shape).sum(axis=1))
        a = self.space.rows(h[None], c[None])[0]
        return _Cut(
            row,
            a,
            r,
            float(reached * error + 8.0 * (n + len(c) + 8) * _U * sizes),
            float(np.abs(c).sum() * self.space.reach.max() * n * error),
        )

    def _add(self, cuts: Sequence[_Cut]) -> None:
        """Put rows into the program, each divided by what one unit of change can do for it."""
        cuts = [cut for cut in cuts if not self._is_tied(cut)]
        if not cuts:
            return
        scaled = np.array([cut.a for cut in cuts]) * self.space.reach
        norms = np.abs(scaled).sum(axis=1)
        r = np.array([cut.r for cut in cuts]) / norms
        if not self.cuts:
            self.unit = float(r.max())
            if not self.unit > 0.0:
                raise SolverError("a promise is so near to its margin that no side of it is proved")
            self._start()
        # What moves is rounded to the precision: by a share of itself and of the change.
        share = 2.0 * UNITS["float64" if self.net.folded else self.net.precision]
        last = self.net.layers[-1]
        before = np.concatenate([last.W.ravel(), *([] if last.b is None else [last.b])])
        lost = share * (np.abs([cut.a for cut in cuts]) @ np.abs(before)) / norms
        low = (r + lost) / self.unit + _SLACK
        signed = scaled / norms[:, None]
        A = np.hstack([signed, -signed, np.full((len(cuts), 1), -share)])
        A[np.abs(A) < 1e-12] = 0.0
        self.program.add_rows(low, np.full(len(cuts), INF), A, self.columns)
        self.cuts += cuts

    def _is_tied(self, cut: _Cut) -> bool:
        """Whether no change does anything for a promise, which is kept by a tie; else it is refused."""
        if np.abs(cut.a * self.space.reach).any():
            return False
        if not self.before[cut.promise]:
            raise InputError(self._helpless(cut.promise))
        self.tied[cut.promise] = True
        return True

    def _start(self) -> None:
        """Columns, and the rows that tie them to epsilon."""
        size = self.space.reach.size
        low, high = np.zeros(2 * size + 1), np.full(2 * size + 1, INF)
        self.program.add_columns(low, high, np.append(np.zeros(2 * size), 1.0))
        one = np.eye(size)
        ties = np.hstack([one, one, -np.ones((size, 1))])
        self.program.add_rows(np.full(size, -INF), np.zeros(size), ties, self.columns)

    # -- what is proved ----------------------------------------------------------------------

    def _dual_bound(self) -> float:
        """No smaller change satisfies the rows, by the dual values of the last run."""
        _, duals = self.program.values_and_duals()
        return _least_change(self.space, self.cuts, np.maximum(duals[self.space.reach.size :], 0.0))

    def _excluded(self) -> str:
        """Which promises exclude each other, by the multipliers of the solver."""
        ray = self.program.dual_ray()
        rows = list(range(len(self.cuts)))
        if ray is not None:
            y = ray[self.space.reach.size :]
            y = np.maximum(y if y.sum() >= 0.0 else -y, 0.0)
            if y.max(initial=0.0) > 0.0:
                rows = np.flatnonzero(y > _PARALLEL * y.max()).tolist()
        promises = sorted({self.cuts[row].promise for row in rows})
        return (
            f"no change of the last layer keeps {self.keeping.called(promises)} together: the last "
            "layer sees the same of them, or so much the same, that what mends one breaks another. "
            "Leave one of them out, or change the hidden layers as well by training within the "
            "promised shifts (stay_within, StayWithin, refit_within)"
        )

    def _helpless(self, promise: int) -> str:
        last = self.net.layers[-1]
        why = "and it has no bias" if last.b is None else "and its bias cannot move"
        return (
            f"no change of the last layer keeps {self.keeping.called([promise])}: the last layer sees "
            f"nothing but zeros there, {why}. Leave it out, or change the hidden layers as well by "
            "training within the promised shifts (stay_within, StayWithin, refit_within)"
        )


def _least_change(space: _Space, cuts: Sequence[_Cut], y: Array) -> float:
    """The bound that multipliers of rows, divided by their norms, prove; 0 if they prove nothing."""
    A = np.array([cut.a for cut in cuts])
    y = y / np.maximum(np.abs(A * space.reach).sum(axis=1), np.finfo(float).tiny)
    terms = y * (np.array([cut.r for cut in cuts]) - np.array([cut.r_error for cut in cuts]))
    slack = 4.0 * (len(cuts) + space.reach.size + 8) * _U
    gained = terms.sum() - slack * np.abs(terms).sum()
    paid = float(np.abs(y @ A) @ space.reach + y @ np.array([cut.a_error for cut in cuts]))
    paid += slack * float(y @ np.abs(A) @ space.reach)
    return max(0.0, float(gained) / paid * (1.0 - 1e-12)) if paid > 0.0 else 0.0


def _hidden(net: Network, X: Array) -> Array:
    """What the last layer sees."""
    h = net.transform(X)
    for layer in net.layers[:-1]:
        h = np.maximum(h @ layer.W.T + layer.bias, 0.0)
    return h


def _hidden_error(net: Network, X: Array) -> float:
    """Bound on the rounding error of each number that the last layer sees of a point."""
    if not net.widths:
        return float(16.0 * (net.inputs + 8) * _U * net.input_transform.size(X).max() + 2.0**-900)
    layers = [(layer.W, layer.b) for layer in net.layers[:-1]]
    front = Network(layers, **net.input_transform.parts, precision="float64", folds=None)
    return float(rounding_error(front, Shifts.of(front, 0.0), X, DOUBLE)[0])


def _table(model: Model, data: tuple[Any, Any]) -> tuple[Array, npt.NDArray[np.intp]]:
    """Rows of a network, and the number of each one's class."""
    if not (isinstance(data, tuple) and len(data) == 2):
        raise InputError(
            "data must be a pair (X, y): a table as the model takes it, and its labels", name="data"
        )
    X, y = data
    frame = as_frame(X)
    encode = frame is not None or model.has_preprocessing
    rows = model.encode(X if frame is None else frame) if encode else model.network.rows(X)
    labels = np.asarray(y, dtype=object).ravel().tolist()
    if len(labels) != len(rows):
        raise InputError(f"data has {len(rows)} rows and {len(labels)} labels", name="data")
    numbers = {label: model.target(label) for label in set(labels)}
    return rows, np.array([numbers[label] for label in labels], dtype=np.intp)


def _accuracy(net: Network, rows: Array, labels: npt.NDArray[np.intp]) -> float:
    right = sum(
        int((net.predict(rows[part]) == labels[part]).sum()) for part in chunks(net, len(rows))
    )
    return right / max(len(rows), 1)


# -- write-back into the model of a framework ------------------------------------------------------


def with_last_layer(source: object, network: Network, threshold: Threshold | None = None) -> Any:
    """Return a copy of a model that has the last layer of a network.

    ``threshold`` is the cut-off that the network holds and the model does not.

    ``network`` is the network of the source but for its last layer. For a network, a ``Model`` or a file
    it is returned itself, since they have no framework to write to.

    Raises
    ------
    ModelNotSupportedError
        The model cannot store such a layer: it shares the parameter, or has a batch norm.
    InputError
        The model would round the layer.
    """
    if isinstance(source, (Network, Model, str, os.PathLike)):
        return network
    with warnings.catch_warnings():  # Keras, of the state of an optimizer that was never used
        warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
        twin = copy.deepcopy(source)
    parameters = _parameters(twin)
    if not all(layer.columns is None and not layer.steps for layer in parameters.layers):
        raise ModelNotSupportedError(
            "the model has a batch norm (or other fixed numbers) behind its first layer, and the "
            "repaired layer is that with it folded in; fold it into the layers of the model first "
            "(torch.nn.utils.fusion.fuse_linear_bn_eval, or build the model without it), or use "
            "Repair.network"
        )
    last, layer = parameters.layers[-1], network.layers[-1]
    _write(parameters, last.weight, last.taken, layer.W)
    if last.bias is not None and layer.b is not None:
        offset = (
            np.zeros(network.outputs) if threshold is None else threshold.offset(network.outputs)
        )
        _write(parameters, last.bias, last.taken, layer.b, offset)
    there = Model.of(twin).network
    _check(network, there if threshold is None else threshold.network(there))
    return twin


def _parameters(source: object) -> Parameters:
    """Return the parameters of a model of a framework."""
    kinds = {kind.__module__.partition(".")[0] for kind in type(source).__mro__}
    if "keras" in kinds:  # with torch behind it, a Keras model is a torch module too
        from proplace.retrain.keras import KerasParameters  # noqa: PLC0415  (on demand)

        return KerasParameters(source)
    if "torch" in kinds:
        from proplace.retrain.torch import TorchParameters  # noqa: PLC0415

        return TorchParameters(source)
    from proplace.retrain.sklearn import SklearnParameters  # noqa: PLC0415

    return SklearnParameters(source)


def _write(
    parameters: Parameters, name: str, taken: Any, values: Array, offset: Array | float = 0.0
) -> None:
    """Write values of the last layer plus ``offset``; outputs that are not used stay as they are."""
    before = parameters.get(name)
    after = np.array(before, dtype=np.float64)
    used = slice(None) if taken is None else taken
    after[used] = np.where(after[used] - offset == values, after[used], values + offset)
    if np.array_equal(after, before):
        return
    if any(name in (layer.weight, layer.bias) for layer in parameters.layers[:-1]):
        raise ModelNotSupportedError(
            f"{name} is shared by several layers of the model, and the repair changes the last one "
            "alone; give the last layer a parameter of its own",
            name=name,
        )
    parameters.set(name, after)


def _check(network: Network, there: Network) -> None:
    """Raise unless the network that is read of the model is the repaired one."""
    moved = max(
        float(np.abs(x - y).max())
        for one, other in zip(network.layers, there.layers, strict=True)
        for x, y in ((one.W, other.W), (one.bias, other.bias))
    )
    if moved:
        raise InputError(
            f"the model rounds the parameters by {moved:.2g}, so that what was proved of the "
            "network is not proved of it; read and use the model in the precision that it stores"
        )
