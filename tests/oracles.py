"""Second opinions for the tests: slow, plain ways to the same numbers.

Nothing here calls the certification code. Each oracle is written from the definitions: a network is
a list of (W, b), Delta is a box around the parameters, the worst-case margin its minimum over the box.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import highspy
import numpy as np

import proplace as pp


def pairs_of(net):
    """The layers as plain (W, b), with zeros for an absent bias."""
    return [
        (np.array(layer.W), np.zeros(len(layer.W)) if layer.b is None else np.array(layer.b))
        for layer in net.layers
    ]


def radii_of(net, delta):
    """One (weight, bias) radius per layer. A layer without bias has no bias to shift."""
    if np.ndim(delta) == 0:
        delta = [(delta, delta)] * len(net.layers)
    return [
        (float(dw), 0.0 if layer.b is None else float(db))
        for (dw, db), layer in zip(delta, net.layers, strict=True)
    ]


def seen(net, x):
    """Inputs of the first trained layer, number by number."""
    scale = [1.0] * net.inputs if net.scale is None else net.scale
    shift = [0.0] * net.inputs if net.shift is None else net.shift
    u = np.array([s * v + t for s, v, t in zip(scale, x, shift, strict=True)])
    matrix, offset = net.input_transform.matrix, net.input_transform.offset
    if matrix is not None:
        u = np.array([sum(m * v for m, v in zip(row, u, strict=True)) for row in matrix])
    return u if offset is None else u + offset


def forward(net, x):
    """Logits of one row, with Python loops."""
    h = list(seen(net, x))
    for i, (W, b) in enumerate(pairs_of(net)):
        z = [
            sum(w * v for w, v in zip(row, h, strict=True)) + c for row, c in zip(W, b, strict=True)
        ]
        h = z if i == len(net.layers) - 1 else [v if v > 0 else 0.0 for v in z]
    return np.array(h)


def margin_of(logits, target):
    """The definition of the margin, for an array whose last axis is the logits."""
    if logits.shape[-1] == 1:
        return logits[..., 0] if target == 1 else -logits[..., 0]
    return logits[..., target] - np.delete(logits, target, axis=-1).max(axis=-1)


def scale_of(value):
    return max(1.0, abs(float(value)))


# -- many networks at once ---------------------------------------------------------------------


def spread(net, delta, T):
    """Networks at relative positions ``T`` in [-1, 1] of the box, one row of ``T`` per network."""
    theta, start = [], 0
    for (W, dW), (b, db) in middles_of(net, delta):
        tW = T[:, start : start + W.size].reshape(-1, *W.shape)
        tb = T[:, start + W.size : start + W.size + b.size]
        start += W.size + b.size
        theta.append((W + dW * tW, b + db * tb))
    return theta


def middles_of(net, delta):
    """Middle and radius of the weights and of the biases of each layer, all as arrays."""
    if isinstance(delta, pp.Shifts):
        ends = zip(delta.low.layers, delta.high.layers, strict=True)
        for low, high in ends:
            yield tuple(
                ((p + q) / 2.0, (q - p) / 2.0) for p, q in ((low.W, high.W), (low.bias, high.bias))
            )
        return
    for (W, b), (dw, db) in zip(pairs_of(net), radii_of(net, delta), strict=True):
        yield (W, np.full_like(W, dw)), (b, np.full_like(b, db))


def size_of(net):
    return sum(W.size + b.size for W, b in pairs_of(net))


def margins_of(theta, u, target):
    """Margin of the one row ``u`` in each of the networks."""
    h = np.broadcast_to(u, (len(theta[0][0]), len(u)))
    for i, (W, b) in enumerate(theta):
        z = (W @ h[:, :, None])[:, :, 0] + b
        h = z if i == len(theta) - 1 else np.maximum(z, 0.0)
    return margin_of(h, target)


def corner_margins(net, x, delta, target):
    """Margins at every corner of the box. Parameters with radius 0 have one position."""
    sides = []
    for layer in middles_of(net, delta):
        for _, radius in layer:
            sides += [(-1.0, 1.0) if r else (0.0,) for r in radius.ravel()]
    T = np.array(list(itertools.product(*sides)))
    return margins_of(spread(net, delta, T), seen(net, x), target)


def sampled_margins(net, x, delta, target, rng, count=2000):
    """Margins at random inner points and random corners."""
    T = rng.uniform(-1.0, 1.0, (count, size_of(net)))
    T[::2] = np.sign(T[::2])
    return margins_of(spread(net, delta, T), seen(net, x), target)


def attack(net, x, delta, target, T, steps=40):
    """Smallest margin by projected sign-gradient descent on the parameters from the positions ``T``."""
    u, T, best = seen(net, x), T.copy(), np.inf
    for step in range(steps):
        theta = spread(net, delta, T)
        inputs, h = [], np.broadcast_to(u, (len(T), len(u)))
        for i, (W, b) in enumerate(theta):
            inputs.append(h)
            z = (W @ h[:, :, None])[:, :, 0] + b
            h = z if i == len(theta) - 1 else np.maximum(z, 0.0)
        best = min(best, float(margin_of(h, target).min()))
        g = np.zeros_like(h)  # of the margin with respect to the logits
        if h.shape[1] == 1:
            g[:] = 1.0 if target == 1 else -1.0
        else:
            others = h.copy()
            others[:, target] = -np.inf
            g[np.arange(len(h)), others.argmax(axis=1)] = -1.0
            g[:, target] = 1.0
        parts = []
        for i in reversed(range(len(theta))):
            W, _ = theta[i]
            dW, db = (radius for _, radius in list(middles_of(net, delta))[i])
            parts.append(g * db)
            parts.append(((g[:, :, None] * inputs[i][:, None, :]) * dW).reshape(len(T), -1))
            if i:
                g = (g[:, None, :] @ W)[:, 0] * (inputs[i] > 0.0)
        gradient = np.concatenate(parts[::-1], axis=1)
        T = np.clip(T - 0.5 * 0.9**step * np.sign(gradient), -1.0, 1.0)
    return best


# -- one mixed-integer program per row and objective ---------------------------------------------


class Infeasible(AssertionError):
    """A program without a solution."""


class Milp:
    """Least ``c . logits`` over Delta at ``x``: every layer with its z, h and one binary per ReLU.

    Layer 1: z in its exact interval, product by product. Later layers see h >= 0, so
    ``(W - d) h + b - d <= z <= (W + d) h + b + d``. ReLU by big-M with interval bounds from here.
    """

    def __init__(self, net, x, delta):
        self.low, self.high, self.binary = [], [], []
        self.rows, self.row_low, self.row_high = [], [], []
        u = seen(net, x)
        layers = list(middles_of(net, delta))
        h = None
        for i, ((W, dw), (b, db)) in enumerate(layers):
            if h is None:
                products = np.stack([(W - dw) * u, (W + dw) * u])
                z_low = products.min(axis=0).sum(axis=1) + b - db
                z_high = products.max(axis=0).sum(axis=1) + b + db
                z = [self.variable(lo, hi) for lo, hi in zip(z_low, z_high, strict=True)]
            else:
                h_low = np.array([self.low[j] for j in h])
                h_high = np.array([self.high[j] for j in h])
                ends = np.stack([(W + s * dw) * v for s in (-1, 1) for v in (h_low, h_high)])
                z_low = ends.min(axis=0).sum(axis=1) + b - db
                z_high = ends.max(axis=0).sum(axis=1) + b + db
                z = [self.variable(lo, hi) for lo, hi in zip(z_low, z_high, strict=True)]
                for k, column in enumerate(z):
                    below = dict(zip(h, -(W[k] - dw[k]), strict=True))
                    above = dict(zip(h, -(W[k] + dw[k]), strict=True))
                    self.row({column: 1.0, **below}, b[k] - db[k], np.inf)
                    self.row({column: 1.0, **above}, -np.inf, b[k] + db[k])
            if i < len(layers) - 1:
                h = [self.relu(column) for column in z]
        self.logits = z

    def variable(self, low, high, *, binary=False):
        self.low.append(low)
        self.high.append(high)
        self.binary.append(binary)
        return len(self.low) - 1

    def row(self, entries, low, high):
        self.rows.append(entries)
        self.row_low.append(low)
        self.row_high.append(high)

    def relu(self, z):
        low, high = self.low[z], self.high[z]
        h = self.variable(max(0.0, low), max(0.0, high))
        if high <= 0.0:
            return h
        if low >= 0.0:
            self.row({h: 1.0, z: -1.0}, 0.0, 0.0)
            return h
        s = self.variable(0.0, 1.0, binary=True)
        self.row({h: 1.0, z: -1.0}, 0.0, np.inf)
        self.row({h: 1.0, z: -1.0, s: -low}, -np.inf, -low)
        self.row({h: 1.0, s: -high}, -np.inf, 0.0)
        return h

    def least(self, c):
        """The optimum: binaries from the mixed-integer solve, value from the program they leave."""
        cost = np.zeros(len(self.low))
        cost[self.logits] = c
        binary = np.array(self.binary)
        low, high = np.array(self.low), np.array(self.high)
        if binary.any():
            x = self._solve(cost, low, high, binary)
            low[binary] = high[binary] = np.round(x[binary])
        x = self._solve(cost, low, high, np.zeros_like(binary))
        return float(cost @ x)

    def _solve(self, cost, low, high, binary):
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(cost), len(self.rows)
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, low, high
        lp.row_lower_, lp.row_upper_ = np.array(self.row_low), np.array(self.row_high)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0, *(len(row) for row in self.rows)]).astype(np.int32)
        lp.a_matrix_.index_ = np.array([j for row in self.rows for j in row], dtype=np.int32)
        lp.a_matrix_.value_ = np.array([v for row in self.rows for v in row.values()], dtype=float)
        kinds = highspy.HighsVarType
        if binary.any():
            lp.integrality_ = [kinds.kInteger if flag else kinds.kContinuous for flag in binary]
        solver = highspy.Highs()
        solver.silent()
        solver.setOptionValue("threads", 1)
        for name in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
            solver.setOptionValue(name, 1e-9)
        solver.setOptionValue("mip_feasibility_tolerance", 1e-9)
        solver.setOptionValue("mip_rel_gap", 0.0)
        solver.setOptionValue("mip_abs_gap", 1e-9)
        solver.passModel(lp)
        solver.run()
        if solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            raise Infeasible
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise AssertionError(f"the oracle's solver says {solver.getModelStatus()}")
        return np.array(solver.getSolution().col_value)


class BoxMilp(Milp):
    """Least ``c . logits`` over Delta and over a box of inputs, for given signs of what layer 1 sees.

    Where each u_j keeps its sign, the interval of its product with a weight is linear in u_j.
    """

    def __init__(self, net, low, high, delta, signs):
        self.low, self.high, self.binary = [], [], []
        self.rows, self.row_low, self.row_high = [], [], []
        x = [self.variable(lo, hi) for lo, hi in zip(low, high, strict=True)]
        shift = seen(net, np.zeros(net.inputs))
        M = np.array([seen(net, unit) - shift for unit in np.eye(net.inputs)]).T
        ends = np.stack([M * low, M * high])
        u_low, u_high = ends.min(axis=0).sum(axis=1) + shift, ends.max(axis=0).sum(axis=1) + shift
        u = []
        for j, sign in enumerate(signs):
            limits = (
                (max(0.0, u_low[j]), u_high[j]) if sign > 0 else (u_low[j], min(0.0, u_high[j]))
            )
            u.append(self.variable(*limits))
            self.row({u[j]: 1.0, **dict(zip(x, -M[j], strict=True))}, shift[j], shift[j])
        h, sides, layers = u, np.array(signs), list(middles_of(net, delta))
        for i, ((W, dw), (b, db)) in enumerate(layers):
            h_low, h_high = (np.array([ends[j] for j in h]) for ends in (self.low, self.high))
            least, most = W - sides * dw, W + sides * dw
            z_low = np.minimum(least * h_low, least * h_high).sum(axis=1) + b - db
            z_high = np.maximum(most * h_low, most * h_high).sum(axis=1) + b + db
            z = [self.variable(lo, hi) for lo, hi in zip(z_low, z_high, strict=True)]
            for k, column in enumerate(z):
                self.row(
                    {column: 1.0, **dict(zip(h, -least[k], strict=True))}, b[k] - db[k], np.inf
                )
                self.row(
                    {column: 1.0, **dict(zip(h, -most[k], strict=True))}, -np.inf, b[k] + db[k]
                )
            if i < len(layers) - 1:
                h, sides = [self.relu(column) for column in z], np.ones(len(z))
        self.logits = z

    def least(self, c):
        """The optimum, or infinity if the box has no point with these signs."""
        try:
            return super().least(c)
        except Infeasible:
            return np.inf

    @classmethod
    def cases(cls, net, low, high, delta):
        """One program for each combination of signs that the box leaves."""
        shift = seen(net, np.zeros(net.inputs))
        M = np.array([seen(net, unit) - shift for unit in np.eye(net.inputs)]).T
        ends = np.stack([M * low, M * high])
        u_low, u_high = ends.min(axis=0).sum(axis=1) + shift, ends.max(axis=0).sum(axis=1) + shift
        both = zip(u_low, u_high, strict=True)
        signs = [[s for s in (1, -1) if max(s * lo, s * hi) >= 0.0] for lo, hi in both]
        for chosen in itertools.product(*signs):
            yield cls(net, low, high, delta, chosen)


def milp_box_margin(net, low, high, delta, target):
    """Worst-case margin over Delta and over an input box, by mixed-integer programs."""
    return min(
        program.least(c)
        for program in BoxMilp.cases(net, low, high, delta)
        for c in objectives_of(net, target)
    )


def joint_attack(net, low, high, delta, target, rng, count=400):
    """Smallest margin of random corners of Delta at random points and corners of an input box."""
    T = rng.choice([-1.0, 1.0], (count, size_of(net)))
    least = np.inf
    for _ in range(8):
        share = rng.choice([0.0, 1.0, rng.random()], len(low))
        x = np.minimum(np.maximum(low + share * (high - low), low), high)
        least = min(least, margins_of(spread(net, delta, T), seen(net, x), target).min())
        least = min(least, attack(net, x, delta, target, T[:6].copy(), steps=8))
    return float(least)


def objectives_of(net, target):
    """The rows c with margin = least c . logits, one by one."""
    if net.outputs == 1:
        return [np.array([1.0 if target == 1 else -1.0])]
    rows = []
    for other in range(net.outputs):
        if other != target:
            c = np.zeros(net.outputs)
            c[target], c[other] = 1.0, -1.0
            rows.append(c)
    return rows


def milp_margin(net, x, delta, target):
    """Worst-case margin over Delta by mixed-integer programs."""
    program = Milp(net, x, delta)
    return min(program.least(c) for c in objectives_of(net, target))


# -- random problems -----------------------------------------------------------------------------


@dataclass
class Case:
    net: pp.Network
    X: np.ndarray
    delta: object
    target: int


def random_case(rng, hidden, *, outputs=None, rows=2, width=5, inputs=None):
    """A small problem with everything that may go wrong in it, at random."""
    inputs = inputs or int(rng.integers(1, 5))
    outputs = outputs or int(rng.choice([1, 3]))
    sizes = [inputs, *rng.integers(1, width + 1, size=hidden), outputs]
    layers = []
    for n_in, n_out in itertools.pairwise(sizes):
        W = rng.normal(size=(n_out, n_in)) * rng.uniform(0.5, 1.5)
        b = rng.normal(size=n_out) * 0.5
        if rng.random() < 0.3:  # zero weights
            W[rng.random(W.shape) < 0.4] = 0.0
        if rng.random() < 0.2:  # a dead neuron
            b[rng.integers(n_out)] = -20.0
        if n_out > 1 and rng.random() < 0.15:  # twins: ties between neurons or classes
            W[1], b[1] = W[0], b[0]
        layers.append((W, None if rng.random() < 0.2 else b))
    scaled = rng.random() < 0.3
    net = pp.Network(
        layers,
        scale=rng.normal(size=inputs) if scaled else None,
        shift=rng.normal(size=inputs) if scaled and rng.random() < 0.7 else None,
    )
    if rng.random() < 0.5:
        delta = float(rng.choice([0.01, 0.05, 0.1, 0.2]))
    else:
        delta = [(float(w), float(b)) for w, b in rng.choice([0, 0.02, 0.1, 0.3], (hidden + 1, 2))]
    X = rng.normal(size=(rows, inputs)) * 1.5
    X[rng.random(X.shape) < 0.1] = 0.0
    return Case(net, X, delta, int(rng.integers(net.classes)))


def random_box(rng, net):
    """Intervals of all kinds around, beside and far from the parameters of a network."""
    ends = []
    for layer in net.layers:
        pair = []
        for values in (layer.W, layer.b):
            if values is None:
                pair.append((None, None))
                continue
            centre = values + rng.normal(size=values.shape) * rng.choice([0.0, 0.05, 0.5])
            centre = np.where(rng.random(values.shape) < 0.1, -centre, centre)
            reach = rng.exponential(size=(2, *values.shape)) * rng.choice([0.01, 0.1, 0.3])
            reach[:, rng.random(values.shape) < 0.25] = 0.0  # frozen
            reach[0][rng.random(values.shape) < 0.2] = 0.0  # one-sided
            pair.append((centre - reach[0], centre + reach[1]))
        ends.append(pair)
    low, high = ([(W[i], b[i]) for W, b in ends] for i in (0, 1))
    return pp.Shifts(net.with_layers(low), net.with_layers(high))


def accepted_rows(seed, sizes, rows):
    """A network with weights as large as training leaves them, and the rows of class 1."""
    rng = np.random.default_rng(seed)
    net = pp.Network(
        [
            (rng.normal(size=(m, n)) / np.sqrt(n), 0.1 * rng.normal(size=m))
            for n, m in itertools.pairwise(sizes)
        ]
    )
    X = rng.normal(size=(rows, sizes[0]))
    return net, X[net.predict(X) == 1]


# -- solver failures -----------------------------------------------------------------------------


class Trouble:
    """HiGHS that answers, at times, with an unknown status or with useless multipliers."""

    def __init__(self, solver, *, unknown=0.0, noise=0.0, seed=0):
        self._solver, self._unknown, self._noise = solver, unknown, noise
        self._rng = np.random.default_rng(seed)

    def __getattr__(self, name):
        return getattr(self._solver, name)

    def getModelStatus(self):  # noqa: N802
        if self._rng.random() < self._unknown:
            return highspy.HighsModelStatus.kUnknown
        return self._solver.getModelStatus()

    def getSolution(self):  # noqa: N802
        solution = self._solver.getSolution()
        if self._noise:
            duals = np.array(solution.row_dual)
            solution.row_dual = list(duals + self._noise * self._rng.normal(size=len(duals)))
            values = np.array(solution.col_value)
            solution.col_value = list(values + self._noise * self._rng.normal(size=len(values)))
        return solution
