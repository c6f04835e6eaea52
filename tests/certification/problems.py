"""Random problems for certificates of all kinds: shift sets, input boxes and input transforms."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import subprocess
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np

import exactly
import proplace as pp
from oracles import random_box, random_case
from proplace.certification import InputBoxes, certify, checker
from proplace.certification import certificate as documents
from proplace.certification.batched_bnb import Nodes
from proplace.certification.bounds import Abstraction, chords, start_slopes
from proplace.certification.proofs import Claims
from proplace.core.transforms import Fold

KINDS = (
    "delta", "shifts", "shifts matrix",
    "inputs", "inputs shifts", "inputs matrix", "inputs fold",
)  # fmt: skip
"""Radii or intervals of the parameters, rows or input boxes, and an input transform."""


def boxes_around(rng, X):
    """Boxes of all kinds: some columns exact, some one-sided, many across 0."""
    reach = rng.exponential(rng.choice([0.1, 0.6]), size=(2, *X.shape))
    reach[:, rng.random(X.shape) < 0.3] = 0.0
    reach[0][rng.random(X.shape) < 0.2] = 0.0
    return X - reach[0], X + reach[1]


def behind_a_matrix(rng, net):
    inputs = int(rng.integers(1, 4))
    front = {"matrix": rng.normal(size=(net.inputs, inputs))}
    if rng.random() < 0.5:
        front["offset"] = rng.normal(size=net.inputs)
    if rng.random() < 0.5:
        front |= {"scale": rng.normal(size=inputs), "shift": rng.normal(size=inputs)}
    return pp.Network([(layer.W, layer.b) for layer in net.layers], **front)


def with_folds(rng, net):
    layers = [(layer.W, layer.b) for layer in net.layers]
    gains = (Fold.none(W, b).scaled(rng.uniform(0.2, 2.0, len(W))) for W, b in layers)
    return pp.Network(layers, **net.input_transform.parts, folds=list(gains))


@dataclass(frozen=True)
class Problem:
    """A network, its shift set, rows, a class, and boxes around the rows if there are any."""

    net: pp.Network
    shifts: pp.Shifts
    X: np.ndarray
    target: int
    box: tuple[np.ndarray, np.ndarray] | None = None

    @classmethod
    def random(cls, rng, hidden, kind="delta", **options):
        parts = kind.split()
        if "inputs" in parts:
            options = {"inputs": int(rng.integers(1, 4)), **options}
        case = random_case(rng, hidden, **{"rows": 1, **options})
        net, X = case.net, case.X
        if "matrix" in parts:
            net = behind_a_matrix(rng, net)
            X = rng.normal(size=(len(X), net.inputs))
        if "fold" in parts:
            net = with_folds(rng, net)
        shifts = random_box(rng, net) if "shifts" in parts else pp.Shifts.of(net, case.delta)
        box = boxes_around(rng, X) if "inputs" in parts else None
        return cls(net, shifts, X, case.target, box)

    def row(self, i):
        """Return the problem of one row."""
        box = None if self.box is None else tuple(end[i : i + 1] for end in self.box)
        return replace(self, X=self.X[i : i + 1], box=box)

    def ends(self, i=0):
        return None if self.box is None else (self.box[0][i], self.box[1][i])

    def certify(self, **asked):
        return certify(self.net, self.X, self.shifts, self.target, box=self.box, **asked)

    def certificate(self, margin):
        return self.certify(margin=margin, certificates=True).certificates[0]

    @property
    def least(self):
        """Worst-case margin of the first row."""
        return float(self.certify(exact_margin=True).lower[0])

    @property
    def given(self):
        """Shifts that a checker needs: those that a certificate names by their digest."""
        return self.shifts if self.shifts.radii is None else None

    def check(self, certificate, **demanded):
        return certificate.check(self.net, self.given, **demanded)

    def checked(self, facts, **demand):
        """Return the verdict of the checker on the fields of a certificate."""
        named = None if self.given is None else documents.parameters_of_shifts(self.given)
        wanted = checker.Demand(**demand)
        return checker.check(json.dumps(facts), documents.parameters(self.net), wanted, named)

    def is_true(self, facts, rng):
        return exactly.is_true(self.net, facts, rng, self.given)

    def worst(self):
        """Return the worst-case margin of the first row as a fraction.

        A network with a box of inputs must have no hidden layer. Its smallest margin over the shift
        set is concave in the input, so over the box it lies at a corner.
        """
        delta = self.given or self.shifts.radii
        low, high = self.ends() or (self.X[0], self.X[0])
        corners = itertools.product(*(sorted({p, q}) for p, q in zip(low, high, strict=True)))
        return min(exactly.worst(self.net, x, delta, self.target) for x in corners)

    def claim(self, margin, verdict="robust"):
        digest = documents.digest(self.net)
        return documents.claim(
            digest, self.shifts, self.X[0], self.target, margin, verdict, box=self.ends()
        )

    def linear_proof(self, margin):
        """Return a claim whose proof needs no multipliers: at most one hidden layer."""
        trees = [[{}]] * max(1, self.net.outputs - 1)
        return self.claim(margin) | {"tighten": False, "lower": [], "upper": [], "trees": trees}


def random_leaves(rng, widths, sizes):
    """Return leaves of a small random tree with random multipliers."""
    pick = None
    if widths and rng.random() < 0.6:
        i = int(rng.integers(len(widths)))
        pick = i, int(rng.integers(widths[i]))
    count = 1 if pick is None else 2
    splits = [np.zeros((count, n), np.int8) for n in widths]
    if pick is not None:
        splits[pick[0]][:, pick[1]] = -1, 1
    alpha = [rng.choice([0.0, 1.0, rng.uniform()], size=(count, n)) for n in widths]
    gamma = [
        rng.normal(size=(count, n)) * sizes(rng, (count, n)) * (rng.random((count, n)) < 0.2)
        for n in widths
    ]
    return Nodes(np.zeros(count, np.intp), splits, alpha, gamma)


def random_proof(rng, problem, sizes=lambda rng, shape: 10.0 ** rng.integers(-20, 5, shape)):
    """Return the bound of the outward-rounded pass with some multipliers, as a certificate."""
    net, shifts = problem.net, problem.shifts
    larger = None if problem.box is None else InputBoxes(net, shifts)
    claims = Claims(net, shifts, problem.target, problem.X, np.zeros(1), problem.box, larger)
    lower, upper, nodes, tighten = [], [], None, bool(rng.integers(2))
    with np.errstate(all="ignore"):
        if larger or net.widths:
            whole = Abstraction(larger.net, larger.shifts) if larger else Abstraction(net, shifts)
            root = whole.interval_bounds(claims.seen)
            lower = start_slopes(root)
            slopes = [np.clip(chords(level, None)[0], 0.0, 1.0) for level in root.preactivations]
            upper = [np.round(slope, int(rng.choice([1, 4, 17]))) for slope in slopes]
            nodes = random_leaves(rng, [layer.shape[1] for layer in lower], sizes)
        enclosure = claims.enclosure(np.zeros(1, np.intp), lower, upper, tighten=tighten)
        values = [enclosure.bounds(c, nodes)[0].min() for c in claims.objectives]
    tree = [{}] if nodes is None else documents.tree(nodes, [layer[0] for layer in lower])
    return problem.claim(float(min(values))) | {
        "tighten": tighten,
        "lower": [layer[0].tolist() for layer in lower],
        "upper": [layer[0].tolist() for layer in upper],
        "trees": [tree] * len(values),
    }


def full_tree(depth, layers):
    """All sign patterns of some neurons. An impossible pattern repeats another one."""
    names = [[i, k] for i, width in layers for k in range(width)]
    tree = [{}]
    for level in range(depth):
        tree = [names[level % len(names)], *tree, *tree]
    return tree


def counted_work(monkeypatch):
    """Record the work that the checker announces and the products that it then computes."""
    told, done = [], []
    integers, dot = checker._Claim.integers, checker._dot

    def watched(claim, more, D, fine, exact, cut):
        told.append(fine + exact)
        done.clear()
        integers(claim, more, D, fine, exact, cut)

    monkeypatch.setattr(checker._Claim, "integers", watched)
    monkeypatch.setattr(checker, "_dot", lambda a, b: done.append(len(a)) or dot(a, b))
    return told, done


def whole_numbers(rng, hidden, kind="shifts", **options):
    """Return a problem in multiples of small powers of 2: its margins are floats.

    Upper ends have more digits than lower ones.
    """
    problem = Problem.random(rng, hidden, kind, width=3, inputs=2, **options)

    def snapped(network, snap, n):
        return pp.Network(
            [
                (snap(n * p.W) / n, None if p.b is None else snap(n * p.b) / n)
                for p in network.layers
            ]
        )

    net, X = snapped(problem.net, np.floor, 8), np.round(8 * problem.X) / 8
    if kind == "delta":
        return Problem(net, pp.Shifts.of(net, 0.125), X, problem.target)
    low, high = problem.shifts.low, problem.shifts.high
    shifts = pp.Shifts(snapped(low, np.floor, 8), snapped(high, np.ceil, 512))
    return Problem(net, shifts, X, problem.target)


def called(*words):
    """Run the program of the checker within this process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch("sys.argv", ["checker.py", *map(str, words)]),
    ):
        try:
            status = checker.main()
        except SystemExit as end:
            status = end.code
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())
