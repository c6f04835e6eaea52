"""Exact second opinions on certificates: rational arithmetic, written from the definitions alone."""

from __future__ import annotations

import itertools
from fractions import Fraction as Q

import numpy as np


def rational(values):
    return [rational(v) for v in values] if np.ndim(values) else Q(float(values))


def margin(layers, u, target):
    """Margin of one network, given as rational (W, b), at the rational input ``u``."""
    h = u
    for i, (W, b) in enumerate(layers):
        z = [
            sum((w * v for w, v in zip(row, h, strict=True)), c)
            for row, c in zip(W, b, strict=True)
        ]
        h = z if i == len(layers) - 1 else [max(v, Q(0)) for v in z]
    return margin_of(h, target)


def margin_of(logits, target):
    if len(logits) == 1:
        return logits[0] if target == 1 else -logits[0]
    return logits[target] - max(v for o, v in enumerate(logits) if o != target)


def seen(net, x):
    scale = [1.0] * net.inputs if net.scale is None else net.scale
    shift = [0.0] * net.inputs if net.shift is None else net.shift
    u = [Q(float(s)) * Q(float(v)) + Q(float(t)) for s, v, t in zip(scale, x, shift, strict=True)]
    front = net.input_transform
    if front.matrix is not None:
        u = [
            sum((Q(float(m)) * v for m, v in zip(row, u, strict=True)), Q(0))
            for row in front.matrix
        ]
    if front.offset is not None:
        u = [v + Q(float(c)) for v, c in zip(u, front.offset, strict=True)]
    return u


def intervals(net, delta):
    """Rational ends (W, W', b, b') of each layer: ``delta`` holds (weight, bias) pairs or is a box."""
    if hasattr(delta, "layers"):  # a Shifts: the ends are floats
        return [
            tuple(map(rational, (low.W, high.W, low.bias, high.bias)))
            for low, high in zip(delta.low.layers, delta.high.layers, strict=True)
        ]
    found = []
    for layer, (dw, db) in zip(net.layers, delta, strict=True):
        W, b = rational(layer.W), rational(layer.bias)
        r, s = Q(float(dw)), Q(0) if layer.b is None else Q(float(db))
        rows = ([[w + t for w in row] for row in W] for t in (-r, r))
        found.append((*rows, [v - s for v in b], [v + s for v in b]))
    return found


def worst_found(net, x, delta, target, rng, tries=12):
    """Least margin of a search over the neurons' sides: an upper bound on the worst margin, exact.

    All weights of a neuron move together, up or down for a positive activation in front and the other
    way for a negative one. With few neurons all corners are tried, else random ones, then single flips.
    """
    u = seen(net, x)
    widths = [len(layer.W) for layer in net.layers]
    ends = intervals(net, delta)

    def value(sides):
        h, layers = u, []
        for (low, high, b_low, b_high), t in zip(ends, sides, strict=True):
            W = [
                [q if tk * v > 0 else p for p, q, v in zip(*rows, h, strict=True)]
                for *rows, tk in zip(low, high, t, strict=True)
            ]
            b = [q if tk > 0 else p for p, q, tk in zip(b_low, b_high, t, strict=True)]
            layers.append((W, b))
            h = [
                max(sum((w * v for w, v in zip(row, h, strict=True)), c), Q(0))
                for row, c in zip(W, b, strict=True)
            ]
        return margin(layers, u, target)

    count = sum(widths)
    if count <= 5:
        corners = list(itertools.product((-1, 1), repeat=count))
    else:
        corners = rng.choice([-1, 1], size=(tries, count)).tolist()

    def split(flat):
        return [flat[sum(widths[:i]) : sum(widths[: i + 1])] for i in range(len(widths))]

    best, where = min((value(split(corner)), corner) for corner in corners)
    if count > 5:
        where = list(where)
        for _ in range(1):
            for i in range(count):
                where[i] = -where[i]
                new = value(split(where))
                if new < best:
                    best = new
                else:
                    where[i] = -where[i]
    return best


def is_true(net, facts, rng, shifts=None):
    """Whether the claim of a certificate can be refuted; True where no counterexample is found.

    "not robust" must come with its own counterexample, so there the answer is exact. ``shifts`` is the
    box that a certificate names.
    """
    delta = facts["delta"] if shifts is None else shifts
    x, target, wanted = facts["input"], facts["target"], Q(facts["margin"])
    if "low" in facts:
        assert all(p <= v <= q for p, v, q in zip(facts["low"], x, facts["high"], strict=True))
    if facts["verdict"] == "robust":
        points = [x, *some_points(facts["low"], facts["high"], rng)] if "low" in facts else [x]
        return all(worst_found(net, p, delta, target, rng) >= wanted for p in points)
    if "low" in facts:
        x = facts["point"]
        assert all(p <= v <= q for p, v, q in zip(facts["low"], x, facts["high"], strict=True))
    layers = []
    ends = intervals(net, delta)
    for moved, layer, (low, high, b_low, b_high) in zip(
        facts["shifted"], net.layers, ends, strict=True
    ):
        W = rational(moved["W"])
        b = [Q(0)] * len(W) if layer.b is None else rational(moved["b"])
        assert (moved["b"] is None) == (layer.b is None)
        for p, v, q in zip([*low, b_low], [*W, b], [*high, b_high], strict=True):
            assert all(r <= s <= t for r, s, t in zip(p, v, q, strict=True))
        layers.append((W, b))
    return margin(layers, seen(net, x), target) < wanted


def some_points(low, high, rng, count=4):
    """Corners of a box of inputs, a few points inside, and where its columns are 0."""
    low, high = np.array(low, dtype=float), np.array(high, dtype=float)
    if 2 ** (low < high).sum() <= count:
        ends = [sorted({p, q}) for p, q in zip(low.tolist(), high.tolist(), strict=True)]
        corners = [*itertools.product(*ends)]
    else:
        corners = np.where(rng.random((count, len(low))) < 0.5, low, high).tolist()
    inside = low + rng.random((2, len(low))) * (high - low)
    inside = np.clip([*inside, np.zeros(len(low))], low, high)
    return [*corners, *inside.tolist()]


def worst(net, x, delta, target):
    """Least margin over Delta, exactly, of a network with at most one hidden layer behind a box.

    ``delta`` is a box, or has one (weight, bias) pair per layer. Layers that do not move give points.
    The first that moves gives a box, over which the output layer is solved neuron by neuron; one more
    hidden layer may follow where a single activation of the box is free: the margin is piecewise linear
    in it then.
    """
    layers = intervals(net, delta)
    low = high = seen(net, x)
    logits = len(layers) - 1
    for i in range(logits):
        if low != high:
            break
        low, high = _ends(layers[i], low)
        low, high = ([max(v, Q(0)) for v in side] for side in (low, high))
    else:
        i = logits
    objectives = _objectives(net, target)
    if i == logits:
        return min(_output(layers[-1], c, low, high) for c in objectives)
    assert i == logits - 1, "more layers than this can do"
    free = [k for k, (v, w) in enumerate(zip(low, high, strict=True)) if v != w]
    assert len(free) == 1, "more free activations than this can do"
    k = free[0]

    def at(value):
        point = [*low[:k], value, *low[k + 1 :]]
        box = [[max(v, Q(0)) for v in side] for side in _ends(layers[i], point)]
        return min(_output(layers[-1], c, *box) for c in objectives)

    first, last = _ends(layers[i], low), _ends(layers[i], high)
    points = [low[k], high[k]]
    for before, after in zip(itertools.chain(*first), itertools.chain(*last), strict=True):
        if before * after < 0:  # a kink of the ReLU
            points.append(low[k] + (high[k] - low[k]) * before / (before - after))
    return min(at(value) for value in points)


def _objectives(net, target):
    if net.outputs == 1:
        return [[Q(1 if target == 1 else -1)]]
    others = [o for o in range(net.outputs) if o != target]
    return [[Q((o == target) - (o == other)) for o in range(net.outputs)] for other in others]


def _ends(layer, h):
    """Least and greatest pre-activations at the point ``h`` (of any sign)."""
    low, high, b_low, b_high = layer

    def sums(choose, biases):
        return [
            sum((choose(p * v, q * v) for p, q, v in zip(*rows, h, strict=True)), b)
            for *rows, b in zip(low, high, biases, strict=True)
        ]

    return sums(min, b_low), sums(max, b_high)


def _output(layer, c, low, high):
    """Least ``c . logits`` over a box of activations."""
    W, V, b, d = layer
    if low == high:  # of any sign
        least, most = _ends(layer, low)
        return sum((q * (v if q > 0 else w) for q, v, w in zip(c, least, most, strict=True)), Q(0))
    value = sum((q * (v if q > 0 else w) for q, v, w in zip(c, b, d, strict=True)), Q(0))
    for k, (p, q) in enumerate(zip(low, high, strict=True)):
        a = sum((s * (W if s > 0 else V)[o][k] for o, s in enumerate(c)), Q(0))
        value += a * (p if a >= 0 else q)
    return value
