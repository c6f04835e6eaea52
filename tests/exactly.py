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
    front = net.input_map
    if front.matrix is not None:
        u = [
            sum((Q(float(m)) * v for m, v in zip(row, u, strict=True)), Q(0))
            for row in front.matrix
        ]
    if front.offset is not None:
        u = [v + Q(float(c)) for v, c in zip(u, front.offset, strict=True)]
    return u


def worst_found(net, x, delta, target, rng, tries=12):
    """Least margin of a search over the neurons' sides: an upper bound on the worst margin, exact.

    All weights of a neuron move together: by ``t * sign(h)`` times the radius, which reaches every value
    of its pre-activation. With few neurons all corners are tried, else random ones, then single flips.
    """
    u = seen(net, x)
    widths = [len(layer.W) for layer in net.layers]

    def value(sides):
        h, layers = u, []
        for (layer, (dw, db)), t in zip(zip(net.layers, delta, strict=True), sides, strict=True):
            sign = [(v > 0) - (v < 0) for v in h]
            W = [
                [Q(float(w)) + Q(float(dw)) * tk * s for w, s in zip(row, sign, strict=True)]
                for row, tk in zip(layer.W, t, strict=True)
            ]
            bias = np.zeros(len(W)) if layer.b is None else layer.b
            move = Q(0) if layer.b is None else Q(float(db))
            b = [Q(float(v)) + move * tk for v, tk in zip(bias, t, strict=True)]
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


def is_true(net, facts, rng):
    """Whether the claim of a certificate can be refuted; True where no counterexample is found.

    "not robust" must come with its own counterexample, so there the answer is exact.
    """
    x, target, delta, wanted = facts["input"], facts["target"], facts["delta"], Q(facts["margin"])
    if facts["verdict"] == "robust":
        return worst_found(net, x, delta, target, rng) >= wanted
    layers = []
    for moved, layer, (dw, db) in zip(facts["shifted"], net.layers, delta, strict=True):
        W, old = rational(moved["W"]), rational(layer.W)
        for row, before in zip(W, old, strict=True):
            assert all(abs(v - w) <= Q(dw) for v, w in zip(row, before, strict=True))
        if layer.b is None:
            assert moved["b"] is None
            b = [Q(0)] * len(W)
        else:
            b = rational(moved["b"])
            assert all(abs(v - w) <= Q(db) for v, w in zip(b, rational(layer.b), strict=True))
        layers.append((W, b))
    return margin(layers, seen(net, x), target) < wanted


def worst(net, x, delta, target):
    """Least margin over Delta, exactly, of a network with at most one hidden layer behind a box.

    ``delta`` has one (weight, bias) pair per layer. Layers without a radius give points. The first that
    has one gives a box, over which the output layer is solved neuron by neuron; one more hidden layer
    may follow where a single activation of the box is free: the margin is piecewise linear in it then.
    """
    radii = [
        (Q(float(dw)), Q(0) if layer.b is None else Q(float(db)))
        for (dw, db), layer in zip(delta, net.layers, strict=True)
    ]
    low = high = seen(net, x)
    logits = len(net.layers) - 1
    for i in range(logits):
        if low != high:
            break
        low, high = _ends(net.layers[i], *radii[i], low)
        low, high = ([max(v, Q(0)) for v in side] for side in (low, high))
    else:
        i = logits
    objectives = _objectives(net, target)
    if i == logits:
        return min(_output(net.layers[-1], *radii[-1], c, low, high) for c in objectives)
    assert i == logits - 1, "more layers than this can do"
    free = [k for k, (v, w) in enumerate(zip(low, high, strict=True)) if v != w]
    assert len(free) == 1, "more free activations than this can do"
    k = free[0]

    def at(value):
        point = [*low[:k], value, *low[k + 1 :]]
        ends = _ends(net.layers[i], *radii[i], point)
        box = [[max(v, Q(0)) for v in side] for side in ends]
        return min(_output(net.layers[-1], *radii[-1], c, *box) for c in objectives)

    first, last = _ends(net.layers[i], *radii[i], low), _ends(net.layers[i], *radii[i], high)
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


def _ends(layer, dw, db, h):
    """Least and greatest pre-activations at the point ``h`` (of any sign)."""
    W = rational(layer.W)
    b = [Q(0)] * len(W) if layer.b is None else rational(layer.b)
    z = [sum((w * v for w, v in zip(r, h, strict=True)), c) for r, c in zip(W, b, strict=True)]
    radius = dw * sum(map(abs, h)) + db
    return [v - radius for v in z], [v + radius for v in z]


def _output(layer, dw, db, c, low, high):
    """Least ``c . logits`` over a box of activations."""
    size = sum(map(abs, c))
    if low == high:  # of any sign
        z = [sum((w * v for w, v in zip(r, low, strict=True)), Q(0)) for r in rational(layer.W)]
        value = sum((q * v for q, v in zip(c, z, strict=True)), Q(0)) - size * dw * sum(
            map(abs, low)
        )
    else:
        value = Q(0)
        for k, column in enumerate(zip(*rational(layer.W), strict=True)):
            a = sum((q * w for q, w in zip(c, column, strict=True)), Q(0)) - size * dw
            value += a * (low[k] if a >= 0 else high[k])
    bias = [Q(0)] * len(c) if layer.b is None else rational(layer.b)
    return value + sum((q * v for q, v in zip(c, bias, strict=True)), Q(0)) - size * db
