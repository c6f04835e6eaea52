r"""Check a certificate in exact arithmetic: ``python checker.py proof.json net.npz``.

It prints what was proved; ``--target``, ``--delta``, ``--input``, ``--margin`` reject what proves less.

*The claim.* Let u = scale * x + shift be what the first layer sees (or, where the network has a
fixed matrix in front, matrix (scale * x + shift) + offset). Every network whose weights and
biases lie within the certificate's ``delta`` of the given ones has at least the ``margin`` at x
("robust"), or the network in the certificate has less ("not robust"). Margin: the logit (target 1)
or minus the logit (target 0); of several logits, the target's minus the largest other.

*Robust.* Over all of these networks the first activations form the box max(0, z -/+ r), z = W u + b,
r = dw |u|_1 + db. A later hidden layer sees h >= 0, so each neuron v has

    max(0, L) <= v <= max(0, U),    L = (W - dw) h + b - db,    U = (W + dw) h + b + db,

and the least output is a . v + const, a = W_target - W_rival - 2 dw (one logit: +/-W - dw). From
the last hidden layer back to the second, a_k v_k is replaced by something below it, linear in h:

    a_k >= 0:   a_k alpha_k L_k          for any alpha_k in [0, 1],
    a_k <  0:   a_k (s_k U_k + t_k)      for any s_k, t_k the greatest max(0, U) - s_k U on [lo, hi],
    and also    - gamma_k (U_k - lo)     for any gamma_k > 0,  - gamma_k (U_k - hi) for gamma_k < 0,

with [lo, hi] a range of U_k. What is left is linear in the first activations; its minimum over their
box is a bound. A tree cuts the ranges at 0 and follows both sides; each leaf must bound its
objective by the margin. Any multipliers give a true bound, so their maker need not be trusted.

*Numbers.* Every given number is an IEEE double, so an integer in units of 2^-K for one K ("fine").
Everything computed is a sum of products of at most D of them, so an integer in units of 2^-KD
("exact"); fine * exact >> K and exact * exact >> KD lose nothing. No operation rounds, with one
exception on the safe side: where weights of very different size would make K huge, parameters are
cut to units of 2^-K and delta grows by one unit, which only adds networks to the claim "robust".
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import os
import re
import struct
import sys
import zipfile
import zlib
from itertools import chain, zip_longest
from operator import mul
from typing import Any, NamedTuple, TypeAlias

FORMAT = "proplace-certificate-1"
MOST_BYTES = 32_000_000
MOST_LISTS = 1_000_000  # and objects: each takes many times its bytes in memory
MOST_NUMBERS = 4_000_000  # in a network file
MOST_WORK = 60_000_000_000  # nanoseconds of an ordinary core, estimated beforehand: about a minute
FACTS = {"format", "network", "input", "target", "delta", "margin", "verdict"}
PROOFS = {"robust": {"tighten", "lower", "upper", "trees"}, "not robust": {"shifted"}}

_HEADER = rb"{'descr': '<f8', 'fortran_order': False, 'shape': \((\d+),(?: (\d+))?\), } *\n"
_NO_ZIP = (ValueError, ArithmeticError, EOFError, RuntimeError)
_At: TypeAlias = dict[tuple[int, int], float]


class Parameters(NamedTuple):
    """A network as plain numbers: (rows of W, b or None) per layer, and the fixed input transform."""

    layers: list[tuple[list[list[float]], list[float] | None]]
    scale: list[float] | None = None
    shift: list[float] | None = None
    matrix: list[list[float]] | None = None
    offset: list[float] | None = None


class Statement(NamedTuple):
    """What a certificate says; every number is the double that the proof is about."""

    verdict: str
    target: int
    delta: list[list[float]]
    input: list[float]
    margin: float

    def __str__(self) -> str:
        delta = "; ".join(f"{w!r}, {b!r}" for w, b in self.delta)
        delta = f"(weights, biases of each layer: {delta})"
        if len({*chain(*self.delta)}) == 1:
            delta = repr(self.delta[0][0])
        good = self.verdict == "robust"
        some, size = ("every", "with a margin of at least") if good else ("a", "a margin below")
        what = (
            f"{some} network within delta {delta} gives class {self.target} {size} {self.margin!r}"
        )
        return f"{self.verdict}: {what} at input {', '.join(map(repr, self.input))}"


class Demand(NamedTuple):
    """What a certificate must prove to be of use; None: anything."""

    target: int | None = None
    delta: float | None = None
    input: list[float] | None = None
    margin: float | None = None


class Verdict(NamedTuple):
    """Whether the certificate proves its claim; ``reason`` says what was proved or what failed.

    ``statement`` is what was proved, also where that is less than was demanded; None if nothing was.
    """

    accepted: bool
    reason: str
    statement: Statement | None = None


class Rejected(Exception):
    """The first thing that is wrong with a certificate."""


def check(text: bytes | str, network: Parameters, demand: Demand = Demand()) -> Verdict:  # noqa: B008
    """Check the certificate in ``text`` against the parameters of the network it speaks of."""
    try:
        facts = parse(text)
        verdict = facts.get("verdict")
        if facts.get("format") != FORMAT or verdict not in ("robust", "not robust"):
            raise Rejected(f"not a certificate of format {FORMAT!r} with a known verdict")
        if wrong := set(facts) ^ FACTS ^ PROOFS[verdict]:
            raise Rejected(f"fields missing or unknown: {ascii(sorted(wrong))[1:-1][:200]}")
        if facts["network"] != digest(network):
            raise Rejected("the certificate speaks of another network: the digests differ")
        claim = _Claim(facts, network)
        claim.robust() if verdict == "robust" else claim.not_robust()
        proved = Statement(verdict, claim.target, claim.delta, claim.x, claim.asked)
    except Rejected as failure:
        return Verdict(False, str(failure))
    if lacking := _lacking(proved, demand, network):
        return Verdict(False, f"{lacking}; proved is only: {proved}", proved)
    return Verdict(True, str(proved), proved)


def _lacking(proved: Statement, demand: Demand, network: Parameters) -> str | None:
    """Say what is demanded and not proved, if anything is."""
    pairs = zip(proved.delta, network.layers, strict=True)
    delta = min(weight if b is None else min(weight, bias) for (weight, bias), (_, b) in pairs)
    if proved.verdict != "robust" and demand != Demand():
        return "the certificate proves the opposite of what is demanded"
    if demand.target not in (None, proved.target):
        return f"class {demand.target} is demanded"
    if demand.delta is not None and not delta >= demand.delta:
        return f"delta {demand.delta!r} is demanded"
    if demand.input is not None and demand.input != proved.input:
        return "another input is demanded"
    if demand.margin is not None and not proved.margin >= demand.margin:
        return f"a margin of {demand.margin!r} is demanded"
    return None


def digest(network: Parameters) -> str:
    """SHA-256 of the parameters: per array an ASCII line with name and shape, then its doubles."""
    sha = hashlib.sha256()

    def add(name: str, shape: tuple[int, ...], values: list[float]) -> None:
        sha.update(f"{name} {' '.join(map(str, shape))}\n".encode())
        sha.update(struct.pack(f"<{len(values)}d", *(v + 0.0 for v in values)))  # -0.0 is 0.0

    for i, (W, b) in enumerate(network.layers):
        add(f"W{i}", (len(W), len(W[0])), [*chain(*W)])
        if b is not None:
            add(f"b{i}", (len(b),), b)
    for name, part in [*network._asdict().items()][1:]:
        if part is not None:
            rows = part if name == "matrix" else [part]
            add(name, (len(rows), len(rows[0]))[name != "matrix" :], [*chain(*rows)])
    return sha.hexdigest()


class _Claim:
    """A certificate in the shapes of its network."""

    def __init__(self, facts: dict[str, Any], network: Parameters) -> None:
        self.facts, self.net = facts, network
        self.asked = _number("margin", facts["margin"])
        self.widths = [len(W) for W, _ in network.layers]
        self.inner = self.widths[1:-1]
        self.x = _numbers("input", facts["input"], len((network.matrix or network.layers[0][0])[0]))
        self.target = _index("target", facts["target"], max(2, self.widths[-1]))
        self.delta = _table("delta", facts["delta"], [2] * len(self.widths))
        if min(chain(*self.delta)) < 0.0:
            raise Rejected("delta is negative")

    def integers(self, more: list[list[float]], D: int, fine: int, exact: int, cut: bool) -> None:
        """Choose the units and take all numbers to integers, unless the work is too much.

        ``fine`` counts the products of a fine and an exact number to come, ``exact`` those of two exact
        ones. A product takes some 100 ns, and 4 ns for each pair of 64-bit words.
        """
        scale = self.net.scale or [1.0] * len(self.x)
        shift = self.net.shift or [0.0] * len(self.x)
        matrix, offset = (
            self.net.matrix or [],
            self.net.offset or [0.0] * len(self.net.matrix or []),
        )
        D, fine = D + bool(matrix), fine + len(matrix) * len(self.x)  # one product more
        layers = [*chain(*([*W, b or []] for W, b in self.net.layers))]
        sizes = [max(map(abs, chain(*W))) for W, _ in self.net.layers]
        coarse = 96 - min([math.frexp(size)[1] for size in sizes if size], default=0)
        given = [*self.x, *scale, *shift, *offset, self.asked, *chain(*matrix, *self.delta, *more)]
        self.K = max(_bits(given), min(_bits(chain(*layers)), coarse if cut else sys.maxsize))
        self.N = self.K * D
        bits = self.K + max(0, *(math.frexp(v)[1] for v in chain(given, *layers)))
        short, long = 1 + bits // 64, 1 + bits * D // 64
        work = fine * (100 + 4 * short * long) + exact * (100 + 4 * long * long)
        work += sum(map(len, [given, *layers])) * (3000 + 4 * long)  # to take them to integers
        _limit(work)
        self.margin = self.exact([self.asked])[0]
        self.W = [[self.fine(row) for row in W] for W, _ in self.net.layers]
        self.columns = [[*zip(*W, strict=True)] for W in self.W]
        self.b = [self.exact(b or [0.0] * len(W)) for W, b in self.net.layers]
        pairs = [*zip(self.delta, self.net.layers, strict=True)]  # without bias, nothing shifts
        self.dw = [self.fine(d)[0] + (_bits(chain(*W)) > self.K) for d, (W, _) in pairs]
        grown = [self.fine(d)[1] + (_bits(b) > self.K) if b else 0 for d, (_, b) in pairs]
        self.db = [d << (self.N - self.K) for d in grown]
        triples = zip(self.exact(self.x), self.fine(scale), self.exact(shift), strict=True)
        self.u = [(x * s >> self.K) + t for x, s, t in triples]
        rows = [self.fine(row) for row in matrix]
        self.u = self.affine(rows, self.u, self.exact(offset)) if matrix else self.u

    def fine(self, values: list[float]) -> list[int]:
        return [(n << self.K) // d for n, d in map(float.as_integer_ratio, values)]

    def exact(self, values: list[float]) -> list[int]:
        return [v << (self.N - self.K) for v in self.fine(values)]

    def affine(self, W: list[list[int]], h: list[int], b: list[int]) -> list[int]:
        return [(_dot(row, h) >> self.K) + c for row, c in zip(W, b, strict=True)]

    def least(self, a: list[int], low: list[int], high: list[int]) -> int:
        """Return the least a . h over a box, all in exact units."""
        return _dot(a, [p if c >= 0 else q for c, p, q in zip(a, low, high, strict=True)]) >> self.N

    def rivals(self, values: list[int]) -> list[tuple[int, int]]:
        """Pair the target's value with each rival's; the rival of a single logit has 0."""
        if len(values) == 1:
            return [(values[0], 0) if self.target else (0, values[0])]
        return [(values[self.target], v) for o, v in enumerate(values) if o != self.target]

    def not_robust(self) -> None:
        """Run the network of the certificate and see that it misses the margin."""
        layers = _list("shifted", self.facts["shifted"], len(self.widths))
        moved: list[tuple[list[list[float]], list[float]]] = []
        for layer, (W, b) in zip(layers, self.net.layers, strict=True):
            if not isinstance(layer, dict) or set(layer) != {"W", "b"}:
                raise Rejected("a layer of the shifted network does not hold W and b alone")
            if b is None and layer["b"] is not None:
                raise Rejected("the shifted network has a bias where the network has none")
            bias = [0.0] * len(W) if b is None else _numbers("b", layer["b"], len(W))
            moved.append((_table("W", layer["W"], [len(W[0])] * len(W)), bias))
        values = [*chain(*([*W, b] for W, b in moved))]
        self.integers(values, len(moved) + 2, sum(map(len, values)), 0, False)
        h = self.u
        for i, (W, b) in enumerate(moved):
            rows, shift = [self.fine(row) for row in W], self.exact(b)
            far = _apart(chain(*rows), chain(*self.W[i])) > self.dw[i]
            if far or _apart(shift, self.b[i]) > self.db[i]:
                raise Rejected(f"a {'weight' if far else 'bias'} of layer {i} lies outside delta")
            h = self.affine(rows, [max(v, 0) for v in h] if i else h, shift)
        if min(v - w for v, w in self.rivals(h)) >= self.margin:
            raise Rejected("the shifted network keeps the margin")

    def robust(self) -> None:
        """Follow one tree per rival class and bound the margin at each leaf."""
        lower = _table("lower", self.facts["lower"], self.inner)
        upper = _table("upper", self.facts["upper"], self.inner)
        trees = _list("trees", self.facts["trees"], max(1, self.widths[-1] - 1))
        count = sum(isinstance(node, dict) for tree in trees for node in _list("tree", tree))
        if 2 * count != sum(map(len, trees)) + len(trees):
            raise Rejected("a tree ends before its last leaf, or goes on behind it")
        # A backward pass from behind inner layer i multiplies each matrix before it once, and its
        # neurons some times; ranges take three sums a neuron, or two passes more.
        sizes = [n * m for n, m in zip(self.inner, self.widths, strict=False)]
        passes = [2 * n if self.facts["tighten"] and i else 0 for i, n in enumerate(self.inner)]
        products = [
            self.widths[0] * len(self.x),
            3 * sum(sizes),
        ]  # with fine numbers, of exact ones
        for i, n in enumerate([*passes, count]):
            products[0] += n * (sum(sizes[:i]) + 8 * sum(self.widths[: i + 1]))
            products[1] += n * 4 * sum(self.widths[: i + 1])
        _limit(100 * sum(products))
        trees = [[self.node(node) for node in tree] for tree in trees]
        leaves = [node for node in chain(*trees) if isinstance(node[0], dict)]
        if not all(0.0 <= v <= 1.0 for v in chain(*lower, *(leaf[0].values() for leaf in leaves))):
            raise Rejected("the slope of a lower side lies outside [0, 1]")
        if not isinstance(self.facts["tighten"], bool):
            raise Rejected("tighten is neither true nor false")
        values = [*lower, *upper, *([*part.values()] for leaf in leaves for part in leaf)]
        self.integers(values, 4 + 2 * len(self.inner), products[0], products[1], True)
        z = self.affine(self.W[0], self.u, self.b[0])
        r = (self.dw[0] * sum(map(abs, self.u)) >> self.K) + self.db[0]
        self.box = [max(v - r, 0) for v in z], [max(v + r, 0) for v in z]
        self.lower, self.upper = [self.fine(v) for v in lower], [self.fine(v) for v in upper]
        self.find_ranges()
        for rival, tree in enumerate(trees):
            if len(self.widths) == 1:  # no hidden layer: the output rows see u itself
                v, w = self.rivals(z)[rival]
                a, const = [], v - w - min(2, len(z)) * r
            else:
                rows = [self.rivals([*column])[rival] for column in zip(*self.W[-1], strict=True)]
                size, (b, c) = min(2, self.widths[-1]), self.rivals(self.b[-1])[rival]
                a = [(v - w - size * self.dw[-1]) << (self.N - self.K) for v, w in rows]
                const = b - c - size * self.db[-1]
            self.follow(f"tree {rival}", tree, a, const)

    def node(self, node: Any) -> Any:
        """Read a split [layer, neuron], or a leaf's own ({neuron: alpha}, {neuron: gamma})."""
        if isinstance(node, list):
            return self.neuron(*_list("split", node, 2))
        if not isinstance(node, dict) or not node.keys() <= {"lower", "gamma"}:
            raise Rejected("a node is neither a split nor a leaf with lower and gamma")
        parts: list[_At] = []
        for name in ("lower", "gamma"):
            triples = [_list(name, t, 3) for t in _list(name, node.get(name, []))]
            parts.append({self.neuron(i, k): _number(name, value) for i, k, value in triples})
        return tuple(parts)

    def neuron(self, layer: Any, neuron: Any) -> tuple[int, int]:
        """Position among the inner layers (those behind the first hidden one) and in its layer."""
        i = _index("layer", layer, len(self.inner) + 1)
        if i == 0:
            raise Rejected("neurons of layer 0 are never open: their activations form an exact box")
        return i - 1, _index("neuron", neuron, self.inner[i - 1])

    def find_ranges(self) -> None:
        """Range of U of each inner neuron: by intervals, and where asked by backward passes."""
        low, high = self.box
        self.range: list[list[tuple[int, int]]] = []
        self.line: list[list[int]] = []  # t of each neuron
        for i, (W, b) in enumerate(zip(self.W[1:-1], self.b[1:-1], strict=True)):
            dw, db, big = self.dw[i + 1], self.db[i + 1], self.N - self.K
            ranges, L = [], []
            for row, c in zip(W, b, strict=True):
                up = [(w + dw) << big for w in row]
                down = [-w for w in up]
                lo, hi = self.least(up, low, high) + c + db, c + db - self.least(down, low, high)
                L.append(self.least([(w - dw) << big for w in row], low, high) + c - db)
                high_i = hi
                if self.facts["tighten"] and i:
                    lo = max(lo, self.bound(up, c + db, {}, {}, {}))
                    hi = min(hi, -self.bound(down, -c - db, {}, {}, {}))
                ranges.append((lo, hi, high_i))
            low, high = [max(v, 0) for v in L], [max(v, 0) for _, _, v in ranges]
            self.range.append([(lo, hi) for lo, hi, _ in ranges])
            chords = zip(self.upper[i], self.range[i], strict=True)
            self.line.append([self.offset(s, *ends) for s, ends in chords])

    def offset(self, s: int, lo: int, hi: int) -> int:
        """Return the greatest max(0, U) - s U over [lo, hi]: it is convex, so at an end."""
        return max(max(lo, 0) - (s * lo >> self.K), max(hi, 0) - (s * hi >> self.K))

    def bound(self, a: list[int], total: int, signs: _At, alpha: _At, gamma: _At) -> int:
        """Bound a . v + total from below, v the activations behind the ranges found so far."""
        special: list[set[int]] = [set() for _ in self.range]
        for i, k in chain(signs, alpha, gamma):
            special[i].add(k)
        for i in reversed(range(len(self.range))):
            lower, upper, line = self.lower[i][:], self.upper[i][:], self.line[i][:]
            push = [0] * len(line)
            for k in special[i]:
                if (i, k) in alpha:
                    lower[k] = self.fine([alpha[i, k]])[0]
                (lo, hi), sign = self.range[i][k], signs.get((i, k), 0)
                lo, hi = max(lo, 0) if sign > 0 else lo, min(hi, 0) if sign < 0 else hi
                if sign:  # here the ReLU is 0, or U
                    upper[k], line[k] = (sign > 0) << self.K, 0
                push[k] = self.exact([gamma.get((i, k), 0.0)])[0]
                total += push[k] * (lo if push[k] > 0 else hi) >> self.N
            total += sum(c * t for c, t in zip(a, line, strict=True) if c < 0) >> self.N
            on_L = [c * s >> self.K if c > 0 else 0 for c, s in zip(a, lower, strict=True)]
            on_U = [c * s >> self.K if c < 0 else 0 for c, s in zip(a, upper, strict=True)]
            both = [p + q - g for p, q, g in zip(on_L, on_U, push, strict=True)]  # times W and b
            apart = sum(on_U) - sum(push) - sum(on_L)  # times dw and db
            total += (_dot(both, self.b[i + 1]) + apart * self.db[i + 1]) >> self.N
            a = [(_dot(both, w) + apart * self.dw[i + 1]) >> self.K for w in self.columns[i + 1]]
        return total + self.least(a, *self.box) if a else total

    def follow(self, name: str, tree: list[Any], a: list[int], const: int) -> None:
        """Go through a tree in preorder: a split, then what follows U <= 0, then U >= 0."""
        todo: list[_At] = [{}]
        for node in tree:
            if not todo:
                raise Rejected(f"{name} goes on behind its last leaf")
            signs = todo.pop()
            if not isinstance(node[0], dict):
                if node in signs:
                    raise Rejected(f"{name} splits a neuron twice")
                todo += [{**signs, node: 1}, {**signs, node: -1}]
            elif self.bound(a, const, signs, *node) < self.margin:
                raise Rejected(f"{name}: a leaf does not prove the margin")
        if todo:
            raise Rejected(f"{name} ends before its last leaf")


def _limit(work: int) -> None:
    if work > MOST_WORK:
        seconds, most = (f"{n / 1e9:.0f} s" for n in (work, MOST_WORK))
        raise Rejected(f"refused: checking this would take about {seconds}, the limit is {most}")


def _bits(values: Any) -> int:
    """Return the least K such that all values are integers in units of 2^-K."""
    return max((v.as_integer_ratio()[1].bit_length() - 1 for v in values), default=0)


def _apart(a: Any, b: Any) -> Any:
    return max(abs(v - w) for v, w in zip(a, b, strict=True))


def _dot(a: Any, b: Any) -> int:
    return sum(map(mul, a, b))


def parse(text: bytes | str) -> dict[str, Any]:
    """Read a JSON object without repeated fields."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise Rejected("a field is given twice")
        return dict(pairs)

    data = text if isinstance(text, bytes) else text.encode(errors="replace")
    if len(data) > MOST_BYTES or data.count(b"[") + data.count(b"{") > MOST_LISTS:
        raise Rejected(f"refused: larger than {MOST_BYTES} bytes or {MOST_LISTS} lists and objects")
    try:
        facts = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise Rejected(f"not readable as JSON: {str(error)[:100]}") from None
    if not isinstance(facts, dict):
        raise Rejected("not a JSON object")
    return facts


def _list(name: str, value: Any, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or length not in (None, len(value)):
        raise Rejected(f"{name} is not a list{'' if length is None else f' of {length}'}")
    return value


def _number(name: str, value: Any) -> float:
    """Return a JSON number as a double: a decimal is the nearest one, an integer must be one."""
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise Rejected(f"{name} holds something that is not a finite number")
    if (double := float(value)) == value:
        return double
    raise Rejected(f"{name} holds an integer that is not a double")


def _numbers(name: str, value: Any, length: int) -> list[float]:
    return [_number(name, item) for item in _list(name, value, length)]


def _table(name: str, value: Any, lengths: list[int]) -> list[list[float]]:
    rows = zip(_list(name, value, len(lengths)), lengths, strict=True)
    return [_numbers(name, row, length) for row, length in rows]


def _index(name: str, value: Any, count: int) -> int:
    if type(value) is not int or not 0 <= value < count:
        raise Rejected(f"{name} is not a whole number from 0 to {count - 1}")
    return value


def read_npz(path: str) -> Parameters:
    """Read the parameters from a file written by ``Network.save``: plain .npy arrays in a zip."""
    most = 8 * MOST_NUMBERS + 1_000_000
    if (size := os.path.getsize(path)) > most:
        raise Rejected(f"refused: the network file has more than {most} bytes")
    with open(path, "rb") as file:
        data = file.read(size)  # in memory nothing is read from where nothing is
    try:
        left = _unzip(data, most)
    except (*_NO_ZIP, zipfile.BadZipFile, zlib.error) as error:
        raise Rejected(f"the network file is no .npz file: {ascii(str(error))[1:100]}") from None
    layers: list[tuple[list[list[float]], list[float] | None]] = []
    while W := _take(left, f"W{len(layers)}", 0, len(layers[-1][0]) if layers else 0):
        layers.append((W, _take(left, f"b{len(layers)}", len(W))))
    n = len(layers[0][0][0]) if layers else 0  # entries of u
    matrix, offset = _take(left, "matrix", n, 0), _take(left, "offset", n)
    scale, shift = (
        _take(left, name, len(matrix[0]) if matrix else n) for name in ("scale", "shift")
    )
    network = Parameters(layers, scale, shift, matrix, offset)
    about = {"format.npy", "precision.npy"} | {  # neither is any part of what a network computes
        f"fold_{name}{i}.npy"
        for i in range(len(layers))
        for name in ("rows", "columns", "shift", "bias")
    }
    if not layers or left.keys() - about:
        raise Rejected(f"the network file holds arrays of no layer: {ascii([*left])[:200]}")
    return network


def _unzip(data: bytes, most: int) -> dict[str, bytes]:
    """Files of a zip by name, unless they are too large, compressed oddly or given twice."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        parts = file.infolist()
        if sum(part.file_size for part in parts) > most:
            raise Rejected(f"refused: the network has more than {MOST_NUMBERS} numbers")
        if {part.compress_type for part in parts} - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise Rejected("refused: the network file is compressed in an unusual way")
        if len({part.filename for part in parts}) < len(parts):
            raise Rejected("the network file holds an array twice")
        # Asked for a number of bytes, zipfile unpacks no more, whatever is packed.
        return {part.filename: file.open(part).read(part.file_size + 1) for part in parts}


def _take(left: dict[str, bytes], name: str, *shape: int) -> Any:
    """Read a .npy file of doubles, row by row, if there is one; 0 stands for any length."""
    if (data := left.pop(f"{name}.npy", None)) is None:
        return None
    start = 10 + int.from_bytes(data[8:10], "little")
    header = re.fullmatch(_HEADER, data[10:start])
    sizes = [int(size) for size in header.groups() if size] if header else []
    wanted = [n or m for n, m in zip_longest(shape, sizes, fillvalue=-1)]
    if sizes != wanted or 0 in sizes or len(data) != start + 8 * math.prod(sizes):
        raise Rejected(f"{name} of the network file has another type, order or shape than needed")
    flat, m = [*struct.unpack(f"<{math.prod(sizes)}d", data[start:])], sizes[-1]
    if not all(map(math.isfinite, flat)):
        raise Rejected(f"{name} of the network file holds NaN or infinite values")
    return [flat[i : i + m] for i in range(0, len(flat), m)] if len(sizes) > 1 else flat


def row(text: str) -> list[float]:
    """Read numbers with commas between them."""
    return [float(cell) for cell in text.split(",")]


def main() -> int:
    """Check one file; 0: accepted, 1: rejected, 2: not called as it should be."""
    about = "Check a certificate and print what it proves; the options reject what proves less."
    parser = argparse.ArgumentParser(prog="checker.py", description=about)
    parser.add_argument("proof", help="the certificate: a .json file")
    parser.add_argument("network", help="the network: an .npz file written by Network.save")
    for name, kind in (("target", int), ("delta", float), ("margin", float), ("input", row)):
        parser.add_argument(f"--{name}", type=kind, help="--input=0.5,-1" if kind is row else None)
    given = vars(parser.parse_args())
    try:
        with open(given.pop("proof"), "rb") as proof:
            text = proof.read(MOST_BYTES + 1)
        found = check(text, read_npz(given.pop("network")), Demand(**given))
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}")
    except Rejected as failure:
        found = Verdict(False, str(failure))
    print("accepted" if found.accepted else "rejected", found.reason, sep=": ")
    return 0 if found.accepted else 1


if __name__ == "__main__":
    sys.exit(main())
