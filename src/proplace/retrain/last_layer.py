r"""The smallest change of the last layer that makes a network keep every promise.

Let :math:`h_j` be the last hidden activations of promise j (the inputs of a network without hidden
layers), :math:`c` a row over the logits with margin :math:`\min_c c \cdot \text{logits}`, and
:math:`W, b` the last layer. With a change :math:`D, d` of it, a promise is kept iff for each of its
rows c

.. math::
    c \cdot (D h_j + d) \ge r_{jc} = m_j - c \cdot (W h_j + b) ,

which is linear in the change. The smallest L-infinity change is a linear program,

.. math::
    \min\ \varepsilon \quad \text{s.t.} \quad a_i \cdot x \ge r_i, \qquad
    |x_k| \le \rho_k\, \varepsilon ,

with :math:`\rho = 1`, or the factors of a batch norm that is folded into the layer, so that
:math:`\varepsilon` is the change of the trained parameters. Of all changes of this size the one with the
smallest sum is taken, which leaves most parameters unchanged.

Only violated rows are added, the worst first, until none is violated. For a box, or for a delta, the
worst point and the worst hidden layers of the present last layer are computed
(:func:`proplace.certification.worst_case`). Their activations :math:`h'` give a row that the change must
satisfy, less the effect of delta on the last layer, :math:`\sum_k |c_k| (\delta^w |h'|_1 + \delta^b)`.

*Lower bound.* For any multipliers :math:`y \ge 0` of rows,

.. math::
    \varepsilon \ \ge\ \frac{\sum_i y_i r_i}{\sum_k \rho_k\, |\sum_i y_i a_{ik}|} ,

for any result of the solver. With its dual values the bound meets the optimum. Rounding errors are
covered. If only the divisor vanishes, no change keeps the promises with :math:`y_i > 0` together.
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
from proplace.loaders.align import with_cutoff_of
from proplace.loaders.model import Model
from proplace.retrain.promised import (
    UNITS,
    PromiseCheck,
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
_CANDIDATES = 2_000  # among which these are chosen
_WORKED_OUT = 20  # promises whose worst case one round computes
_ROUNDS = 500
_SLACK = 1e-7  # relative to the change for a single row, above the tolerance of the program
_PARALLEL = 1e-7  # multipliers below this share of the largest are ignored


@dataclass(frozen=True, eq=False)
class Repair:
    """The smallest change of the last layer that keeps every promise.

    Attributes
    ----------
    network
        Network with the changed last layer, proved to keep every promise. Its parameters are numbers
        of the model's own precision.
    change
        Largest change of any parameter.
    bound
        Proved lower bound of the change that keeps every promise with its margin.
    repaired_promises
        Names of the promises that the given network does not keep.
    promises
        Number of all promises.
    accuracy_before, accuracy_after
        Share of the rows of ``data`` with their own label. None without data.
    delta
        Delta of the request.
    folded
        True if a batch norm is folded into the changed parameters.
    threshold
        Cut-off of the model, in the output bias of ``network``. None without one.
    """

    network: Network
    change: float
    bound: float
    repaired_promises: tuple[str, ...]
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
        if not self.repaired_promises:
            return f"The network keeps {kept} as it is."
        layer = "the last layer" + (" with its batch norm folded in" if self.folded else "")
        count = len(self.repaired_promises)
        text = (
            f"A change of {layer} by at most {self.change:.4g} repairs {count} broken "
            f"promise{'s' * (count != 1)}, so the network keeps {kept}; no change below "
            f"{self.bound:.4g} does"
        )
        if self.accuracy_before is not None and self.accuracy_after is not None:
            text += (
                f". Accuracy {self.accuracy_before:.4f} before and {self.accuracy_after:.4f} after"
            )
        return f"{text}."

    @property
    def model(self) -> Any:
        """The given model with these parameters, or ``network`` for a network, ``Model`` or file."""
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
        Retrained model: a network, module, pipeline or file.
    promises
        A ledger, results of an explainer, or a pair (inputs, target): see :meth:`Promised.of`.
    delta
        Radius around the result within which every network must keep the promises: one number, or one
        (weight, bias) pair per layer. Default: 0.
    margin
        Required margin of each promise, as for :func:`certify`.
    data
        Table and labels for a comparison of the accuracy.
    cutoff
        Cut-off as for :meth:`proplace.Model.of`. Default: that of the promises. :attr:`Repair.model`
        holds trained parameters without a cut-off.

    Raises
    ------
    InputError
        No change of the last layer keeps all promises. The message names those that exclude each other.

    Examples
    --------
    >>> import proplace as pp
    >>> new = pp.Network([([[1.0, -1.0]], [0.0])])
    >>> found = pp.retrain.repair(new, ([[1.0, 2.0], [3.0, 1.0]], 1), margin=0.2)
    >>> round(found.change, 6), round(found.bound, 6), found.repaired_promises
    (0.3, 0.3, ('0',))
    >>> found.network.margin([[1.0, 2.0], [3.0, 1.0]]).round(6)
    array([0.2, 3.5])
    """
    model = Model.of(new, cutoff=cutoff)
    promised = Promised.of(model, promises)
    if promised.base is not None:
        model = with_cutoff_of(promised.base, model)
    check = PromiseCheck.of(model, promised, delta, margin)
    table = None if data is None else _table(model, data)
    net = model.network
    kept, _ = check.check(net, check.required_margin(net, check.shifts(net)))
    repaired, change, bound = net, 0.0, 0.0
    last_layer = _LastLayer.of(net, model.threshold)
    if not kept.all():
        repaired, bound = _repair_network(check, last_layer, kept)
        change = last_layer.size(repaired)
    return Repair(
        repaired,
        change,
        min(bound, change),
        check.names(np.flatnonzero(~kept)),
        len(kept),
        check.delta,
        None if table is None else _accuracy(net, *table),
        None if table is None else _accuracy(repaired, *table),
        last_layer.folded,
        model.threshold,
        new,
    )


def _repair_network(
    check: PromiseCheck, last_layer: _LastLayer, before: Mask
) -> tuple[Network, float]:
    """Return a network that keeps every promise, and the proved lower bound of its change.

    ``before`` marks the promises that the given network keeps.
    """
    shifts = check.shifts(last_layer.net)
    required = check.required_margin(last_layer.net, shifts) + check.float64_error(
        last_layer.net, shifts
    )
    for _ in range(_ROUNDS):
        cuts = _Cuts(check, last_layer, required, before)
        found = cuts.run()
        need = check.required_margin(found, check.shifts(found))
        kept, _ = check.check(found, need)
        if kept.all():
            return found, cuts.bound
        # Larger weights round by more, so require the margin of the repaired network.
        required = np.where(kept, required, np.maximum(required, need) * (1.0 + 2.0**-10))
    raise SolverError("no margin was found that covers the rounding of the repaired network")


@dataclass(frozen=True, eq=False)
class _LastLayer:
    """The changes of the last layer: a flat vector of weights, then of biases if there are any.

    ``scale`` is the change of each for one unit of change of the trained parameters.
    """

    net: Network
    scale: Array
    folded: bool
    offset: Array  # of each bias, by the cut-off

    @classmethod
    def of(cls, net: Network, threshold: Threshold | None = None) -> _LastLayer:
        last, fold = net.layers[-1], net.folds[-1]
        W, b = np.ones(last.W.shape), np.ones(len(last.W))
        folded = False
        if fold is not None:
            # A shift before the layer moves a bias with the weights.
            folded = bool(fold.shift.any())
            if not folded:
                W, b = fold.rows[:, None] * fold.columns, fold.bias
        parts = [W.ravel()] if last.b is None else [W.ravel(), b]
        offset = np.zeros(net.outputs) if threshold is None else threshold.offset(net.outputs)
        return cls(net, np.concatenate(parts), folded, offset)

    def rows(self, H: Array, C: Array) -> Array:
        """Return the coefficients ``a`` of objectives ``C`` over the logits, at activations ``H``."""
        weights = (C[:, :, None] * H[:, None, :]).reshape(len(H), -1)
        return weights if self.net.layers[-1].b is None else np.hstack([weights, C])

    def changed(self, change: Array) -> Network:
        """Return the network with a changed last layer, rounded to its precision."""
        last = self.net.layers[-1]
        precision = "float64" if self.net.folded else self.net.precision
        parts = [last.W.ravel()] if last.b is None else [last.W.ravel(), last.b]
        before = np.concatenate(parts)
        # A model stores its bias without the cut-off.
        offset = np.zeros(before.size)
        offset[last.W.size :] = self.offset if last.b is not None else 0.0
        stored = rounded(before + change + offset, precision)
        after = np.where(change != 0.0, stored - offset, before)
        W, b = after[: last.W.size].reshape(last.W.shape), after[last.W.size :]
        pairs = [(layer.W, layer.b) for layer in self.net.layers[:-1]]
        return self.net.with_layers([*pairs, (W, None if last.b is None else b)])

    def size(self, other: Network) -> float:
        """Return the largest change, in units of ``scale``."""
        mine, theirs = self.net.layers[-1], other.layers[-1]
        parts = [np.abs(theirs.W - mine.W).ravel()]
        parts += [] if mine.b is None else [np.abs(theirs.bias - mine.bias)]
        moved = np.concatenate(parts)
        return float(np.max(moved[moved > 0.0] / self.scale[moved > 0.0], initial=0.0))


@dataclass(frozen=True, eq=False)
class _Cut:
    """One row ``a . x >= r`` that a change must satisfy, with its promise.

    ``r_error`` and ``a_error`` bound the rounding errors of r, and of a in the sum of ``scale * |a|``.
    """

    promise: int
    a: Array
    r: float
    r_error: float
    a_error: float


class _Cuts:
    """The linear program with the rows added so far.

    Its columns are the positive and the negative parts of the change, then epsilon. Their unit is
    ``scale`` times the largest change that a single row of the first round needs.
    """

    def __init__(
        self, check: PromiseCheck, last_layer: _LastLayer, required: Array, before: Mask
    ) -> None:
        self.check, self.last_layer, self.required = check, last_layer, required
        self.net = last_layer.net
        self.shifts = check.shifts(self.net)
        self.plain = check.promised.box is None and self.shifts.is_single_network
        self.cuts: list[_Cut] = []
        self.before = before
        self.degenerate = np.zeros(len(required), dtype=bool)  # kept by a tie, for every last layer
        self.bound = 0.0
        self.unit = 0.0
        self.columns = np.arange(2 * last_layer.scale.size + 1, dtype=np.int32)
        self.program = LinearProgram(WITH_DUALS)

    def run(self) -> Network:
        """Return the network with the smallest change and, of those, the smallest sum of changes."""
        size = self.last_layer.scale.size
        found = self._solved(self.net)
        if not self.cuts:
            return found  # rounding decides, so the caller raises the margin
        self.bound = self._dual_bound()
        least = float(self.program.values[-1])
        self.program.set_column_bounds(2 * size, 0.0, least * (1.0 + _SLACK))
        self.program.set_costs(self.columns, np.append(np.ones(2 * size), 0.0))
        try:
            return self._solved(found, again=True)
        except (InputError, SolverError):
            return found  # later rows exclude changes of this size

    def _solved(self, present: Network, *, again: bool = False) -> Network:
        """Add violated rows and solve until there are none."""
        if again:
            present = self._solve()
        for _ in range(_ROUNDS):
            new = self._violated(present)
            if not new:
                return present
            self._add(new)
            present = self._solve() if self.cuts else present
        raise SolverError(
            f"the promises are not all kept after {_ROUNDS} rounds of the linear program. Give a larger "
            "margin, or fewer promises"
        )

    def _solve(self) -> Network:
        verdict = self.program.solve()
        if verdict == "infeasible":
            raise InputError(self._conflict_message())
        if verdict != "optimal":
            raise SolverError(
                "HiGHS did not solve the linear program of the repair. Leave promises out"
            )
        size, values = self.last_layer.scale.size, self.program.values
        change = self.unit * self.last_layer.scale * (values[:size] - values[size : 2 * size])
        return self.last_layer.changed(change)

    # -- rows --------------------------------------------------------------------------------

    def _violated(self, present: Network) -> list[_Cut]:
        """Return rows that a network violates, the worst first."""
        return self._at_points(present) if self.plain else self._at_worst(present)

    def _at_points(self, present: Network) -> list[_Cut]:
        promised, net = self.check.promised, self.net
        short = self.required - margins(present, promised)
        rows = np.flatnonzero((short > 0.0) & ~self.degenerate)
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
                if c @ logits < self.required[row]
            ]
        return cuts

    def _at_worst(self, present: Network) -> list[_Cut]:
        """Return violated rows at the worst points and the worst hidden layers."""
        rows = np.unique([cut.promise for cut in self.cuts]).astype(np.intp)
        for chosen in (rows, np.flatnonzero(~self.degenerate)):
            if not len(chosen):
                continue
            kept, slack = self.check.check(present, self.required[chosen], chosen)
            broken = chosen[~kept][np.argsort(slack[~kept], kind="stable")]
            if len(broken):
                break
        else:
            return []
        cuts = []
        for row in broken[:_WORKED_OUT].tolist():
            worst = self.check.worst(present, row)
            objectives = present.objectives(int(self.check.promised.targets[row]))
            values = objectives @ worst.network.logits(worst.point)[0]
            c = objectives[int(np.argmin(values))]
            point = np.reshape(worst.point, (1, -1))
            cuts.append(self._cut(row, _hidden(worst.network, point)[0], c, worst.network, point))
        return cuts

    def _cut(self, row: int, h: Array, c: Array, net: Network, point: Array) -> _Cut:
        """Return the row of a promise for the activations of a network at a point."""
        last, (weight, bias) = self.net.layers[-1], self.shifts.layers[-1].radius
        W, n = last.W, len(h)
        moves = np.broadcast_to(weight, W.shape) @ np.abs(h)
        moves = moves + (0.0 if last.b is None else np.broadcast_to(bias, len(W)))
        loss = float(np.abs(c) @ moves)
        r = self.required[row] + loss - float(c @ (W @ h + last.bias))
        error = _hidden_error(net, point)
        sizes = np.abs(c) @ (np.abs(W) @ np.abs(h) + np.abs(last.bias)) + loss + self.required[row]
        reached = np.abs(c) @ (np.abs(W).sum(axis=1) + np.broadcast_to(weight, W.shape).sum(axis=1))
        a = self.last_layer.rows(h[None], c[None])[0]
        return _Cut(
            row,
            a,
            r,
            float(reached * error + 8.0 * (n + len(c) + 8) * _U * sizes),
            float(np.abs(c).sum() * self.last_layer.scale.max() * n * error),
        )

    def _add(self, cuts: Sequence[_Cut]) -> None:
        """Add rows to the program, each divided by the effect of one unit of change."""
        cuts = [cut for cut in cuts if not self._is_degenerate(cut)]
        if not cuts:
            return
        scaled = np.array([cut.a for cut in cuts]) * self.last_layer.scale
        norms = np.abs(scaled).sum(axis=1)
        r = np.array([cut.r for cut in cuts]) / norms
        if not self.cuts:
            self.unit = float(r.max())
            if not self.unit > 0.0:
                raise SolverError(
                    "a promise is too near to its margin for a proof. Give a larger margin"
                )
            self._start()
        # Changed parameters are rounded, by a share of themselves and of the change.
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

    def _is_degenerate(self, cut: _Cut) -> bool:
        """Test if no change affects a promise that a tie keeps; raise if it is broken."""
        if np.abs(cut.a * self.last_layer.scale).any():
            return False
        if not self.before[cut.promise]:
            raise InputError(self._no_effect_message(cut.promise))
        self.degenerate[cut.promise] = True
        return True

    def _start(self) -> None:
        """Add the columns, and the rows that bound them by epsilon."""
        size = self.last_layer.scale.size
        low, high = np.zeros(2 * size + 1), np.full(2 * size + 1, INF)
        self.program.add_columns(low, high, np.append(np.zeros(2 * size), 1.0))
        one = np.eye(size)
        ties = np.hstack([one, one, -np.ones((size, 1))])
        self.program.add_rows(np.full(size, -INF), np.zeros(size), ties, self.columns)

    # -- lower bound and conflicts -------------------------------------------------------------------

    def _dual_bound(self) -> float:
        """Return the lower bound that the dual values of the last run prove."""
        _, duals = self.program.values_and_duals()
        return _least_change(
            self.last_layer, self.cuts, np.maximum(duals[self.last_layer.scale.size :], 0.0)
        )

    def _conflict_message(self) -> str:
        """Name the promises that exclude each other, by the multipliers of the solver."""
        ray = self.program.dual_ray()
        rows = list(range(len(self.cuts)))
        if ray is not None:
            y = ray[self.last_layer.scale.size :]
            y = np.maximum(y if y.sum() >= 0.0 else -y, 0.0)
            if y.max(initial=0.0) > 0.0:
                rows = np.flatnonzero(y > _PARALLEL * y.max()).tolist()
        promises = sorted({self.cuts[row].promise for row in rows})
        return (
            f"no change of the last layer keeps {self.check.describe(promises)} together, because their "
            "inputs of the last layer are too similar. Leave one of them out, or train all layers "
            "within the promised shift set (stay_within, StayWithin, refit_within)"
        )

    def _no_effect_message(self, promise: int) -> str:
        bias = "has no bias" if self.net.layers[-1].b is None else "cannot move its bias"
        return (
            f"no change of the last layer keeps {self.check.describe([promise])}: all inputs of the "
            f"layer are 0 there, and it {bias}. Leave it out, or train all layers within the promised "
            "shift set (stay_within, StayWithin, refit_within)"
        )


def _least_change(last_layer: _LastLayer, cuts: Sequence[_Cut], y: Array) -> float:
    """Return the lower bound that multipliers of normalised rows prove, at least 0."""
    A = np.array([cut.a for cut in cuts])
    y = y / np.maximum(np.abs(A * last_layer.scale).sum(axis=1), np.finfo(float).tiny)
    terms = y * (np.array([cut.r for cut in cuts]) - np.array([cut.r_error for cut in cuts]))
    slack = 4.0 * (len(cuts) + last_layer.scale.size + 8) * _U
    gained = terms.sum() - slack * np.abs(terms).sum()
    paid = float(np.abs(y @ A) @ last_layer.scale + y @ np.array([cut.a_error for cut in cuts]))
    paid += slack * float(y @ np.abs(A) @ last_layer.scale)
    return max(0.0, float(gained) / paid * (1.0 - 1e-12)) if paid > 0.0 else 0.0


def _hidden(net: Network, X: Array) -> Array:
    """Return the inputs of the last layer."""
    h = net.transform(X)
    for layer in net.layers[:-1]:
        h = np.maximum(h @ layer.W.T + layer.bias, 0.0)
    return h


def _hidden_error(net: Network, X: Array) -> float:
    """Bound the rounding error of each input of the last layer at a point."""
    if not net.widths:
        return float(16.0 * (net.inputs + 8) * _U * net.input_transform.size(X).max() + 2.0**-900)
    layers = [(layer.W, layer.b) for layer in net.layers[:-1]]
    front = Network(layers, **net.input_transform.parts, precision="float64", folds=None)
    return float(rounding_error(front, Shifts.of(front, 0.0), X, DOUBLE)[0])


def _table(model: Model, data: tuple[Any, Any]) -> tuple[Array, npt.NDArray[np.intp]]:
    """Encode a table, and return the class numbers of its labels."""
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
    """Return a copy of a model with the last layer of a network.

    ``network`` differs from the network of the model only in its last layer, and in the cut-off
    ``threshold``. For a network, a ``Model`` or a file, ``network`` itself is returned.

    Raises
    ------
    ModelNotSupportedError
        The model cannot store such a layer: it shares the parameter, or has a batch norm.
    InputError
        The model would round the layer.
    """
    if isinstance(source, (Network, Model, str, os.PathLike)):
        return network
    with warnings.catch_warnings():  # of Keras, about an optimizer that was never used
        warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
        twin = copy.deepcopy(source)
    parameters = _parameters(twin)
    if not all(layer.columns is None and not layer.steps for layer in parameters.layers):
        raise ModelNotSupportedError(
            "the model has a batch norm (or other fixed numbers) after its first layer, which is folded "
            "into the repaired layer; fold it into the layers of the model first "
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
    if "keras" in kinds:  # with the backend torch, a Keras model is also a torch module
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
    """Write values of the last layer plus ``offset``. Unused outputs stay unchanged."""
    before = parameters.get(name)
    after = np.array(before, dtype=np.float64)
    used = slice(None) if taken is None else taken
    after[used] = np.where(after[used] - offset == values, after[used], values + offset)
    if np.array_equal(after, before):
        return
    if any(name in (layer.weight, layer.bias) for layer in parameters.layers[:-1]):
        raise ModelNotSupportedError(
            f"several layers of the model share {name}, and the repair changes only the last one. Give "
            "the last layer its own parameter",
            name=name,
        )
    parameters.set(name, after)


def _check(network: Network, there: Network) -> None:
    """Raise unless the imported network of the model is the repaired one."""
    moved = max(
        float(np.abs(x - y).max())
        for one, other in zip(network.layers, there.layers, strict=True)
        for x, y in ((one.W, other.W), (one.bias, other.bias))
    )
    if moved:
        raise InputError(
            f"the model rounds the parameters by {moved:.2g}, so the proof does not hold for it; import "
            "and use the model in the precision that it stores"
        )
