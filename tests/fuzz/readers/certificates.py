"""Certificates, and the networks that they speak of.

An input is the network as one line of JSON, then the certificate. What is accepted must be true: the
worst margin is found again here from the definitions, in rational arithmetic. With two hidden layers
it is the least value of a piecewise linear function over a box, which lies at a corner of the box cut
by the planes on which a neuron of the second layer turns on.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from fractions import Fraction as Q
from functools import lru_cache

import numpy as np

import exactly
import proplace as pp
from fuzz.mutate import NUMBERS, change_tree, json_text, nudged, some
from fuzz.reader import Reader, Refused
from proplace.certification import checker

_STATED = re.compile(r"margin (?:of at least|of|below) (-?[\d.]+(?:e[-+]?\d+)?)")


class Certificates(Reader):
    """The checker of certificates."""

    name = "checker"
    suffix = ".json"

    def prepare(self, folder):
        self._seeds = list(_seeds())
        self._texts = [json.dumps(seed) for seed in self._seeds]
        self._trees = [facts for _, facts in self._seeds]

    def seeds(self):
        return [_joined(net, json.dumps(facts).encode()) for net, facts in self._seeds]

    def make(self, rng):
        net, facts = json.loads(rng.choice(self._texts))
        kind = rng.randrange(10)
        if kind <= 1:
            _change_network(rng, net)
            facts["network"] = checker.digest(_parameters(net))
        if kind == 2:
            facts = _forged(rng, net, facts)
        for _ in range(some(rng)):
            if rng.random() < 0.4:
                _change_claim(rng, net, facts)
            else:
                change_tree(rng, facts, self._trees)
        return _joined(net, json_text(rng, facts))

    def read(self, path, data):
        line, _, text = data.partition(b"\n")
        net = _parameters(json.loads(line))
        verdict = checker.check(text, net)
        if not verdict.accepted:
            raise Refused
        return verdict

    def judge(self, data, verdict):
        line, _, text = data.partition(b"\n")
        facts = json.loads(text)
        margins = [Q(float(facts["margin"]))]  # a number in a file means the double nearest to it
        if stated := _STATED.search(verdict.reason):
            whole = stated[1].lstrip("-").isdigit()
            margins.append(Q(int(stated[1])) if whole else Q(float(stated[1])))
        if (stated := getattr(verdict, "statement", None)) and not _same(stated, facts):
            return f"another statement than in the file: {stated}"
        if facts["verdict"] == "not robust":
            found = _margin_of_shifted(json.loads(line), facts)
            if found is None:
                return "the shifted network lies outside of delta"
            true = found < min(margins)
        else:
            found = _worst(
                line,
                tuple(map(float, facts["input"])),
                facts["target"],
                tuple((float(dw), float(db)) for dw, db in facts["delta"]),
            )
            true = found >= max(margins)
        return (
            None
            if true
            else f"{facts['verdict']}: the margin is {float(found)!r}, {verdict.reason}"
        )


def _same(stated, facts):
    """Whether a statement is word for word that of the file."""
    names = ("verdict", "target", "delta", "input", "margin")
    return all(getattr(stated, name) == facts[name] for name in names)


def _joined(net, text):
    return json.dumps(net).encode() + b"\n" + text


def _parameters(net):
    return checker.Parameters([(W, b) for W, b in net["layers"]], net["scale"], net["shift"])


# -- seeds -----------------------------------------------------------------------------------------


def _seeds():
    """Tiny networks of all shapes, with certificates of both verdicts."""
    rng = np.random.default_rng(0)
    shapes = [(2, 1), (1, 1), (2, 3), (2, 2, 1), (1, 3, 1), (2, 2, 3), (3, 2, 1)]
    shapes += [
        (1, 1, 1, 1),
        (2, 2, 2, 1),
        (2, 2, 3, 1),
        (2, 2, 2, 3),
        (1, 2, 2, 1),
        (1, 1, 2, 1, 1),
    ]
    for number, sizes in enumerate(shapes * 3):
        net = _network(rng, sizes, whole=number % 3 == 0)
        if number == 0:  # beyond 2^53 not every whole number is a double
            net = pp.Network([([[1.0, -1.0]], [2.0**53])])
        X = rng.normal(size=(6, sizes[0]))
        X = X.round() if number % 3 == 0 else X
        delta, target = float(rng.choice([0.0, 0.0625, 0.01, 0.2])), int(rng.integers(net.classes))
        report = pp.certify(net, X, delta, target=target, certificates=True)
        for verdict in (True, False):
            for row in np.flatnonzero(report.robust == verdict)[:2]:
                if report.certificates[row] is not None:
                    yield _plain(net), report.certificates[row].facts
    yield from itertools.islice(_tight(rng), 12)


def _tight(rng):
    """Certificates of margins so near to the worst that their proofs branch."""
    for _ in range(200):
        net = _network(rng, (2, 2, 3, 1), whole=False)
        x, delta = rng.normal(size=2), 0.1
        line = json.dumps(_plain(net)).encode()
        worst = float(_worst(line, tuple(x), 1, ((delta, delta),) * 3))
        margin = worst - 1e-7 * abs(worst)
        if margin < 0.0:  # of which no certificate is written
            continue
        report = pp.certify(net, x, delta, margin=margin, certificates=True)
        if report.robust[0] and report.certificates[0] is not None:
            facts = report.certificates[0].facts
            if len(facts["trees"][0]) > 1 or "gamma" in facts["trees"][0][0]:
                yield _plain(net), facts


def _network(rng, sizes, *, whole):
    """A random network; whole numbers make exact ties."""
    layers = []
    for n, m in itertools.pairwise(sizes):
        W = rng.integers(-3, 4, (m, n)) * 1.0 if whole else rng.normal(size=(m, n))
        b = rng.integers(-2, 3, m) * 1.0 if whole else rng.normal(size=m) * 0.5
        layers.append((W, None if rng.random() < 0.2 else b))
    scaled = rng.random() < 0.3
    return pp.Network(
        layers,
        scale=rng.normal(size=sizes[0]) if scaled else None,
        shift=rng.normal(size=sizes[0]) if scaled else None,
    )


def _plain(net):
    return {
        "layers": [[p.W.tolist(), None if p.b is None else p.b.tolist()] for p in net.layers],
        "scale": None if net.scale is None else net.scale.tolist(),
        "shift": None if net.shift is None else net.shift.tolist(),
    }


# -- mutations -------------------------------------------------------------------------------------


def _change_network(rng, net):
    """Other parameters, all of them finite doubles."""
    for _ in range(some(rng)):
        W, b = rng.choice(net["layers"])
        row = rng.choice(W) if b is None or rng.random() < 0.7 else b
        at = rng.randrange(len(row))
        value = nudged(rng, row[at])
        if isinstance(value, (int, float)) and abs(value) < 1e308 and math.isfinite(value):
            row[at] = float(value)


def _change_claim(rng, net, facts):
    """Change what is claimed, by little: margin, delta, input, target, verdict."""
    kind = rng.randrange(8)
    if kind <= 1:
        facts["margin"] = _near_the_truth(rng, net, facts)
    elif kind == 2 and isinstance(facts.get("delta"), list):
        change_tree(rng, facts["delta"])
    elif kind == 3 and isinstance(facts.get("input"), list):
        change_tree(rng, facts["input"])
    elif kind == 4:
        facts["target"] = rng.choice((0, 1, 2, True, -1))
    elif kind == 5 and isinstance(facts.get("trees"), list):
        facts["trees"] = [_tree(rng, net) for _ in facts["trees"]]
    elif kind == 6 and isinstance(facts.get("shifted"), list):
        change_tree(rng, facts["shifted"])
    else:
        facts["margin"] = nudged(rng, facts.get("margin"))


def _near_the_truth(rng, net, facts):
    """A margin within a hair of the worst one, above or below."""
    try:
        delta = tuple((float(dw), float(db)) for dw, db in facts["delta"])
        x = tuple(map(float, facts["input"]))
        worst = float(_worst(json.dumps(net).encode(), x, int(facts["target"]) % 2, delta))
    except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError):
        return rng.choice(NUMBERS)
    if worst.is_integer() and rng.random() < 0.3:
        return int(worst) + rng.choice((0, 1, -1))
    return rng.choice((worst, math.nextafter(worst, math.inf), math.nextafter(worst, -math.inf)))


def _forged(rng, net, facts):
    """A certificate of the right shape with multipliers out of thin air."""
    inner = [len(W) for W, _ in net["layers"]][1:-1]
    outputs = len(net["layers"][-1][0])
    facts = {key: facts[key] for key in checker.FACTS if key in facts}
    facts["verdict"] = "robust"

    def slopes():
        return [
            [rng.choice((0, 1, rng.random(), nudged(rng, 1.0))) for _ in range(n)] for n in inner
        ]

    trees = [_tree(rng, net) for _ in range(max(1, outputs - 1))]
    return {
        **facts,
        "tighten": rng.random() < 0.5,
        "lower": slopes(),
        "upper": slopes(),
        "trees": trees,
    }


def _tree(rng, net):
    inner = [(i + 1, k) for i, (W, _) in enumerate(net["layers"][1:-1]) for k in range(len(W))]

    def triples():
        return [[*rng.choice(inner), nudged(rng, rng.random())] for _ in range(rng.randrange(3))]

    def grow(depth):
        if not inner or depth == 0 or rng.random() < 0.4:
            return [
                {"lower": triples(), "gamma": triples()} if inner and rng.random() < 0.5 else {}
            ]
        return [list(rng.choice(inner)), *grow(depth - 1), *grow(depth - 1)]

    return grow(3)


# -- the truth -------------------------------------------------------------------------------------


def _rational(net):
    layers = [
        ([[Q(w) for w in row] for row in W], [Q(v) for v in b] if b else [Q(0)] * len(W))
        for W, b in net["layers"]
    ]
    return layers, [b is not None for _, b in net["layers"]]


def _seen(net, x):
    scale, shift = net["scale"] or [1.0] * len(x), net["shift"] or [0.0] * len(x)
    return [Q(s) * Q(v) + Q(t) for s, v, t in zip(scale, x, shift, strict=True)]


def _margin_of_shifted(net, facts):
    """Margin of the network in a certificate; None if it lies outside of delta."""
    layers, biased = _rational(net)
    moved = []
    for part, (W, b), has_bias, (dw, db) in zip(
        facts["shifted"], layers, biased, facts["delta"], strict=True
    ):
        rows = [[Q(float(w)) for w in row] for row in part["W"]]
        bias = [Q(float(v)) for v in part["b"]] if has_bias else [Q(0)] * len(W)
        far = [
            abs(v - w) > Q(float(dw))
            for r, s in zip(rows, W, strict=True)
            for v, w in zip(r, s, strict=True)
        ]
        far += [abs(v - w) > Q(float(db)) for v, w in zip(bias, b, strict=True)]
        if any(far) or (not has_bias and part["b"] is not None):
            return None
        moved.append((rows, bias))
    return exactly.margin(moved, _seen(net, tuple(map(float, facts["input"]))), facts["target"])


@lru_cache(maxsize=4096)
def _worst(line, x, target, delta):
    """Worst margin over all networks within delta; with three hidden layers, one that occurs."""
    net = json.loads(line)
    if len(net["layers"]) > 3:
        network = pp.Network(
            [(W, b) for W, b in net["layers"]], scale=net["scale"], shift=net["shift"]
        )
        return exactly.worst_found(network, x, delta, target, np.random.default_rng(0))
    layers, biased = _rational(net)
    radii = [(Q(dw), Q(db) if has else Q(0)) for (dw, db), has in zip(delta, biased, strict=True)]
    u = _seen(net, x)
    (W, b), (dw, db) = layers[0], radii[0]
    z = [_dot(row, u) + c for row, c in zip(W, b, strict=True)]
    r = dw * sum(map(abs, u)) + db
    if len(layers) == 1:
        return exactly.margin_of(z, target) - min(2, len(z)) * r
    box = [(max(v - r, Q(0)), max(v + r, Q(0))) for v in z]
    (W, b), (dw, db) = layers[-1], radii[-1]
    logits = range(len(W))
    if len(W) == 1:
        sign = 1 if target == 1 else -1
        goals = [([sign * w - dw for w in W[0]], sign * b[0] - db)]
    else:
        goals = [
            (
                [v - w - 2 * dw for v, w in zip(W[target], W[o], strict=True)],
                b[target] - b[o] - 2 * db,
            )
            for o in logits
            if o != target
        ]
    return min(_least(a, const, layers[1:-1], radii[1:-1], box) for a, const in goals)


def _least(a, const, inner, radii, box):
    """Least a . v + const over the activations v of the last hidden layer."""
    if not inner:
        return const + sum(c * (lo if c >= 0 else hi) for c, (lo, hi) in zip(a, box, strict=True))
    ((W, b),), ((dw, db),) = inner, radii
    side = [-1 if c >= 0 else 1 for c in a]  # the neuron at its least, or at its greatest
    planes = [([w + s * dw for w in row], v + s * db) for row, v, s in zip(W, b, side, strict=True)]
    n = len(box)
    faces = [([Q(j == i) for j in range(n)], -end) for i in range(n) for end in {*box[i]}]
    best = None
    for chosen in itertools.combinations([*faces, *planes], n):
        h = _solved([row for row, _ in chosen], [-c for _, c in chosen])
        if h is None or any(not lo <= v <= hi for v, (lo, hi) in zip(h, box, strict=True)):
            continue
        neurons = [max(_dot(row, h) + c, Q(0)) for row, c in planes]
        value = const + _dot(a, neurons)
        best = value if best is None or value < best else best
    return best


def _dot(a, b):
    return sum((v * w for v, w in zip(a, b, strict=True)), Q(0))


def _solved(A, b):
    """The solution of A h = b, or None if there is not exactly one."""
    n = len(A)
    rows = [[*row, c] for row, c in zip(A, b, strict=True)]
    for i in range(n):
        pivot = next((k for k in range(i, n) if rows[k][i]), None)
        if pivot is None:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [v / rows[i][i] for v in rows[i]]
        for k in range(n):
            if k != i and rows[k][i]:
                rows[k] = [v - rows[k][i] * w for v, w in zip(rows[k], rows[i], strict=True)]
    return [row[-1] for row in rows]
