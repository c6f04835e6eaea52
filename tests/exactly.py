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
    if len(h) == 1:
        return h[0] if target == 1 else -h[0]
    return h[target] - max(v for o, v in enumerate(h) if o != target)


def seen(net, x):
    scale = [1.0] * net.inputs if net.scale is None else net.scale
    shift = [0.0] * net.inputs if net.shift is None else net.shift
    return [
        Q(float(s)) * Q(float(v)) + Q(float(t)) for s, v, t in zip(scale, x, shift, strict=True)
    ]


def shifted(net, delta, place):
    """The network at ``place(layer, part, index)`` in [-1, 1] of its box, as rationals."""
    layers = []
    for i, (layer, (dw, db)) in enumerate(zip(net.layers, delta, strict=True)):
        W = [
            [Q(float(w)) + Q(float(dw)) * place(i, "W", (k, j)) for j, w in enumerate(row)]
            for k, row in enumerate(layer.W)
        ]
        if layer.b is None:
            b = [Q(0)] * len(W)
        else:
            b = [Q(float(v)) + Q(float(db)) * place(i, "b", k) for k, v in enumerate(layer.b)]
        layers.append((W, b))
    return layers


def worst_found(net, x, delta, target, rng, tries=60):
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
    if count <= 8:
        corners = list(itertools.product((-1, 1), repeat=count))
    else:
        corners = rng.choice([-1, 1], size=(tries, count)).tolist()

    def split(flat):
        return [flat[sum(widths[:i]) : sum(widths[: i + 1])] for i in range(len(widths))]

    best, where = min((value(split(corner)), corner) for corner in corners)
    if count > 8:
        where = list(where)
        for _ in range(2):
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
