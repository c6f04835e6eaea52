r"""Check certificates in exact arithmetic: ``python checker.py proof.json net.npz``.

It prints the proved statement. The options ``--target``, ``--delta``, ``--input``, ``--margin``,
``--low`` and ``--high`` (the ends of an input box) state what must be proved. A certificate that proves
less is rejected. ``--digest`` rejects any other file. If a certificate names a shift set, give the file
of the set: ``--shifts set.npz``. A bundle of certificates needs all of its networks and shift sets:
``bundle.json a.npz b.npz --shifts c.npz``.

*The claim.* Let u = scale * x + shift be the input of the first layer (or, if the network has a
fixed matrix before it, matrix (scale * x + shift) + offset). The margin of a network is its logit
(target 1) or minus its logit (target 0). With several logits, it is the target's logit minus the
largest other logit. Every weight and every bias has an interval. In format 1, it contains all values
within ``delta`` of the given network. In format 2, the ends are those of the shifts file that the
certificate names by its digest. The network file then gives only the shapes and the input transform,
and its parameters may lie outside the set. "Robust" claims that every network with parameters in these
intervals has a margin of at least ``margin`` >= 0 at x. "Not robust" claims that the network in the
field ``shifted`` is one of them and has a smaller margin. Format 3 is about every point of the input
box from ``low`` to ``high``, which contains x, and about a delta or a shifts file. Its "not robust"
gives one ``point`` of the box.

*Robust.* Let W, b be the lower ends of a layer's intervals and W', b' the upper ends. Parameters
move independently, so over all of these networks the first activations fill the box between
max(0, p) and max(0, q) with

    p = sum_j min(W_j u_j, W'_j u_j) + b,    q = sum_j max(W_j u_j, W'_j u_j) + b' .

A later hidden layer has inputs h >= 0, so each neuron v has

    max(0, L) <= v <= max(0, U),    L = W h + b,    U = W' h + b',

and the smallest difference of two logits is a . v + const, a = W_target - W'_rival (one logit: W, or
-W' for target 0). From the last hidden layer back to the second, a_k v_k is replaced by a lower bound
that is linear in h. Let [lo, hi] be an interval that contains U_k.

    a_k >= 0:   a_k alpha_k L_k         for any alpha_k in [0, 1],
    a_k <  0:   a_k (s_k U_k + t_k)     for any s_k, with t_k = max (max(0, U) - s_k U) over [lo, hi].

The terms - gamma_k (U_k - lo) with gamma_k > 0 and - gamma_k (U_k - hi) with gamma_k < 0 are at most 0,
and may be added to either. The result is linear in the first activations, and its minimum over their
box is a bound. A tree cuts the intervals at 0 and follows both sides. The bound of each leaf must reach
the margin. Any multipliers give a valid bound, so their origin need not be trusted.

*Robust at every point of an input box.* A point y of the box is p - q with p = max(0, y) in [max(0,
low), max(0, high)] and q = max(0, -y) in [max(0, -high), max(0, -low)]. The scaler is a layer v+ =
max(0, M (p - q) + t), v- = max(0, -M (p - q) - t) with M = diag(scale), t = shift (1 and 0 if there
is none). A fixed matrix is one more such layer, on v+ - v- (or the only one, without a scaler).
Then u = u+ - u- with the output of the last of them, and the first layer of the network acts on
(u+, u-) with weights in [W, W'] and [-W', -W]. A larger network therefore computes the output of every
network of the claim at every point of the box. Its first activations fill the box of (p, q), and the
layers above follow. A bound for the larger network, found as before, is a bound for the claim.

*Fixed.* The claim is that none of these networks gives the ``target`` to any input of some spaces. A
space is a product of intervals and of choices. A choice is a list of values that some columns take
together. Each node of a tree splits a space in two: the interval of a column at a number, or the list
of a choice at a position. Each leaf has a certificate of format 3 that another class wins, with a
margin > 0, on a box that contains the part of the space at the leaf. With more than two logits, it
refers to the network restricted to two logits, the winner's and the target's, in this order. All leaves
refer to the networks of the claim.

*The statement.* A bundle of format 2 also states in original units what is proved: each feature
with its name, its value today, the value that is enough (or the smallest and the largest one), and
its encoding. A number v becomes (v - offset) / scale. A label becomes one number, or one-hot columns
for the labels from the position ``first`` on. Both operations round to the nearest double, as they do
in the encoder, and there is no other tolerance: the code of each value must be the entry of x, and the
codes of the ends must lie in the input box. Rounding is monotone, so the code of every double
between the ends lies in the box as well. Names and the values of today are not proved. If you received
a letter, compare its digest with the digest of the file.

*Numbers.* Every given number is an IEEE double, so it is an integer in units of 2^-K for one K
("fine"). Every computed number is a sum of products of at most D of them, so it is an integer in
units of 2^-KD ("exact"), and both fine * exact >> K and exact * exact >> KD are lossless. No
operation rounds, with one exception on the safe side: if weights of very different size would make
K huge, parameters are cut to units of 2^-K, lower ends down and upper ends up (delta grows by one
unit), which only adds networks to the claim "robust".
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import struct
import sys
import zlib
from fractions import Fraction
from itertools import chain, zip_longest
from operator import mul
from typing import Any, NamedTuple, TypeAlias

FORMAT = "proplace-certificate-1"  # the networks within delta
FORMAT_BOX = "proplace-certificate-2"  # the networks of a shifts file
FORMAT_INPUTS = "proplace-certificate-3"  # either of them, at every point of an input box
FORMAT_BUNDLE = "proplace-bundle-1"
FORMAT_STATED = "proplace-bundle-2"  # with a statement in original units
BUNDLES = FORMAT_BUNDLE, FORMAT_STATED
FORMAT_FIXED = "proplace-fixed-1"  # a class that no network gives in some spaces of inputs
MAX_BYTES = 32_000_000  # of a certificate
MAX_LISTS = 1_000_000  # lists and objects of a certificate, because each takes much memory
MAX_NUMBERS = 4_000_000  # numbers in a network file. A shifts file may have twice as many
MAX_WORK = 60_000_000_000  # estimated nanoseconds of a check: about a minute
MIN_MARGIN = 0.0  # smallest margin of a robust certificate, because the class needs a margin of 0
FACTS = {"format", "network", "input", "target", "delta", "margin", "verdict"}
MAX_LETTERS = 200  # of a name, a label or a unit
NOT_REDONE = "The file has no values in original units, so only encoded numbers were checked."
REDONE = (  # beside the sentence, with the parts that no proof covers and the digest of the file
    "The values of the sentence were encoded again, and the proof covers them. {} and the values of "
    "today are the sender's. Compare this SHA-256 digest with the one in your letter: {}"
)
STATED = {"subject", "outcomes", "features"}
VALUES = {"name", "today", "missing", "value"}  # fields of every stated feature
CODES = (  # further fields of a stated feature: a number, or one of two kinds of labels
    {"unit", "offset", "scale", "low", "high", "end"},
    {"labels", "first"},
    {"labels", "numbers", "offset", "scale"},
)
PROOFS = {"robust": {"tighten", "lower", "upper", "trees"}, "not robust": {"shifted"}}

_HEADER = rb"{'descr': '<f8', 'fortran_order': False, 'shape': \((\d{1,9}),(?: (\d{1,9}))?\), } *\n"
_END, _ENTRY, _LOCAL = map(struct.Struct, ("<4s4H2LH", "<4s6H3L5H2L", "<4s5H3L2H"))  # of a zip
_UNSEEN = re.compile(  # invisible characters, and those that reverse the order of others
    "[\0-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    "\ufff0-\uffff\U000e0000-\U000e0fff]"
)
_Part: TypeAlias = tuple[bytes, int, int, int, int, int]  # name, method, crc, packed, size, start
_At: TypeAlias = dict[tuple[int, int], float]


class Parameters(NamedTuple):
    """A network as plain numbers: (rows of W, b or None) per layer, and the fixed input transform."""

    layers: list[tuple[list[list[float]], list[float] | None]]
    scale: list[float] | None = None
    shift: list[float] | None = None
    matrix: list[list[float]] | None = None
    offset: list[float] | None = None


class Shifts(NamedTuple):
    """A shift set: the lower and the upper ends of all intervals, and one input transform."""

    low: Parameters
    high: Parameters


class Statement(NamedTuple):
    """The proved statement of a certificate. Numbers are the float64 values in the certificate.

    It covers the networks within ``delta``, or those of the shift set with the digest ``shifts``
    (``delta`` is then empty). ``inside`` is True if the network itself is one of them. ``network``
    is its digest. ``low`` and ``high`` are the ends of its input box, or None if it covers only the
    ``input``. A verdict "fixed" has no input, and its box is the one around ``spaces``.
    """

    verdict: str
    target: int
    delta: list[list[float]]
    input: list[float]
    margin: float
    shifts: str | None = None
    inside: bool = True
    network: str = ""
    low: list[float] | None = None
    high: list[float] | None = None
    spaces: list[dict[str, Any]] | None = None

    @property
    def ends(self) -> tuple[list[float], list[float]]:
        """Ends of the input box, which may be a single point."""
        return self.low or self.input, self.high or self.input

    def __str__(self) -> str:
        delta = "; ".join(f"{w!r}, {b!r}" for w, b in self.delta)
        delta = f"(weights, biases of each layer: {delta})"
        if len({*chain(*self.delta)}) == 1:
            delta = repr(self.delta[0][0])
        where = f"within delta {delta}"
        if self.shifts is not None:
            itself = "lies" if self.inside else "does not lie"
            where = f"of the shift set {self.shifts} (the network itself {itself} in it)"
        if self.spaces is not None:
            what = f"no network {where} gives class {self.target}"
            return f"{self.verdict}: {what} at any input of {_spoken(self.spaces, self.ends)}"
        good = self.verdict == "robust"
        some, size = ("every", "with a margin of at least") if good else ("a", "a margin below")
        has = f"{'gives' if good else 'has for'} class {self.target} {size} {self.margin!r}"
        what = f"{some} network {where} {has}"
        x = ", ".join(map(repr, self.input))
        if self.low is None:
            return f"{self.verdict}: {what} at input {x}"
        ends = zip(*self.ends, strict=True)
        box = ", ".join(f"[{low!r}, {high!r}]" if low < high else repr(low) for low, high in ends)
        return f"{self.verdict}: {what} at {some} point of the box {box} around input {x}"


class Demand(NamedTuple):
    """Statement that a certificate must prove. None stands for anything.

    A shift set that contains all networks within ``delta`` satisfies ``delta``. The set with the digest
    ``shifts`` satisfies ``shifts``. An input box that extends down to ``low`` and up to ``high``
    satisfies these two. ``digest`` is the SHA-256 of the file, without a line end after it.
    """

    target: int | None = None
    delta: float | None = None
    input: list[float] | None = None
    margin: float | None = None
    shifts: str | None = None
    low: list[float] | None = None
    high: list[float] | None = None
    digest: str | None = None


class Verdict(NamedTuple):
    """Result of a check. ``reason`` gives the proved statement or the failure.

    ``statement`` is the proved statement, even if it is weaker than the demand. It is None if
    nothing was proved, or for a bundle: ``parts`` then holds the verdicts on its certificates, up
    to the first rejected one. ``sentence`` states in original units what an accepted bundle proves.
    It is empty if the encoding was not redone.
    """

    accepted: bool
    reason: str
    statement: Statement | None = None
    parts: tuple[Verdict, ...] = ()
    sentence: str = ""


class Rejected(Exception):
    """The first error in a certificate."""


def check(
    text: bytes | str,
    network: Parameters,
    demand: Demand = Demand(),  # noqa: B008
    shifts: Shifts | None = None,
    most_work: int | None = None,
) -> Verdict:
    """Check the certificate in ``text`` against the parameters of its network.

    A certificate that names a shift set needs it: ``shifts``. If the estimated work exceeds
    ``most_work`` nanoseconds, the certificate is rejected without a check.
    """
    try:
        demand = _without_digest(text, demand)
        return _check(parse(text), network, demand, shifts, most_work or MAX_WORK)[0]
    except Rejected as failure:
        return Verdict(False, str(failure))


def check_all(
    text: bytes | str,
    networks: list[Parameters],
    shifts: list[Shifts],
    demand: Demand = Demand(),  # noqa: B008
) -> Verdict:
    """Check a certificate, or a bundle, against all of its networks and boxes.

    Each certificate finds its network and its shift set by their digests and must meet the demand.
    Every given network and shift set must belong to a certificate. A bundle claims one class for one
    input, so its certificates must all agree on these, and be robust.
    """
    parts: list[Verdict] = []
    bundle, sentence = False, ""
    try:
        demand, facts = _without_digest(text, demand), parse(text)
        bundle = facts.get("format") in BUNDLES
        nets, boxes = {digest(one): one for one in networks}, {digest(one): one for one in shifts}
        unnamed, left = {*nets, *boxes}, MAX_WORK * (len(networks) + len(shifts))
        for proof in bundled(facts) if bundle else [facts]:
            named = str(proof.get("network")), str(proof.get("shifts"))
            network, box = nets.get(named[0], networks[0]), boxes.get(named[1], [*shifts, None][0])
            verdict, work = _check(proof, network, demand, box, min(left, MAX_WORK))
            parts, unnamed, left = [*parts, verdict], unnamed - {*named}, left - work
            if not verdict.accepted:
                raise Rejected(verdict.reason)
        if unnamed:
            raise Rejected(f"no certificate is about the network or box {min(unnamed)}")
        said = [part.statement for part in parts if part.statement is not None]
        if bundle and {p.verdict for p in said} != {"robust"}:
            raise Rejected("each certificate of a bundle must have the verdict robust")
        about = [(p.input, *p.ends, p.target) for p in said]
        if any(each != about[0] for each in about):
            raise Rejected("the certificates of the bundle have different inputs or classes")
        if facts.get("format") == FORMAT_STATED:
            classes = max(2, len(nets[said[0].network].layers[-1][0]))
            sentence = Stated(facts["statement"], classes).check(said[0])
    except Rejected as failure:
        statement = parts[0].statement if parts and not bundle else None
        return Verdict(False, str(failure), statement, tuple(parts))
    reason = "; ".join(f"network {p.network}: {p}" for p in said)
    return Verdict(True, reason, None, tuple(parts), sentence) if bundle else parts[0]


def _without_digest(text: bytes | str, demand: Demand) -> Demand:
    """Compare the digest of a file with the demanded one, and return what else is required."""
    found = file_digest(text)
    if demand.digest not in (None, found):
        raise Rejected(f"another file is required: the SHA-256 digest of this one is {found}")
    return demand._replace(digest=None)


def file_digest(text: bytes | str) -> str:
    """Return the SHA-256 of a certificate, without a line end after it."""
    data = text if isinstance(text, bytes) else text.encode(errors="replace")
    return hashlib.sha256(data.removesuffix(b"\n")).hexdigest()


def bundled(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the certificates of a bundle."""
    more = {FORMAT_BUNDLE: set[str](), FORMAT_STATED: {"statement"}}.get(str(facts.get("format")))
    if more is None or set(facts) != {"format", "certificates"} | more:
        raise Rejected(
            "a bundle must have exactly the fields format and certificates, and in format 2 statement"
        )
    proofs = _list("certificates", facts["certificates"])
    if not proofs or not all(isinstance(proof, dict) for proof in proofs):
        raise Rejected("certificates of a bundle must be a list of one or more certificates")
    return proofs


def _check(
    facts: dict[str, Any], network: Parameters, demand: Demand, shifts: Shifts | None, most: int
) -> tuple[Verdict, int]:
    """Check the fields of a certificate within a work limit, and return the work too."""
    verdict, kind = facts.get("verdict"), facts.get("format")
    if kind == FORMAT_FIXED:
        return _Fixed(facts, network, shifts).check(demand, most)
    kinds = (FORMAT, FORMAT_BOX, FORMAT_INPUTS)
    if kind not in kinds or verdict not in ("robust", "not robust"):
        raise Rejected(
            f"format must be one of {', '.join(kinds)}, and verdict robust or not robust"
        )
    wide = kind == FORMAT_INPUTS
    named = kind == FORMAT_BOX or (wide and "delta" not in facts)
    fields = FACTS - {"delta"} | {"shifts"} if named else FACTS
    fields = fields | PROOFS[verdict] | ({"low", "high"} if wide else set())
    fields = fields | ({"point"} if wide and verdict != "robust" else set())
    if wrong := set(facts) ^ fields:
        raise Rejected(f"fields missing or unknown: {ascii(sorted(wrong))[1:-1][:200]}")
    _check_network(facts, network)
    box = _box(facts["shifts"], network, shifts) if named else None
    claim = _Claim(facts, network, box, most)
    claim.robust() if verdict == "robust" else claim.not_robust()
    inside = box is None or _holds(box, network, 0.0)
    said = verdict, claim.target, claim.delta, claim.x, claim.asked
    low, high = claim.ends or (None, None)
    proved = Statement(*said, facts.get("shifts"), inside, facts["network"], low, high)
    lacking = _lacking(proved, demand, network, box)
    reason = f"{lacking}. The certificate proves only: {proved}" if lacking else str(proved)
    return Verdict(not lacking, reason, proved), claim.work


def _check_network(facts: dict[str, Any], network: Parameters) -> None:
    if facts["network"] != digest(network):
        raise Rejected("the certificate names another network: the digests differ")


def _lacking(  # noqa: PLR0911
    proved: Statement, demand: Demand, network: Parameters, box: Shifts | None
) -> str | None:
    """Return the part of the demand that is not proved, if any."""
    fixed = proved.verdict == "fixed"  # which networks it covers may be demanded too
    asked = demand._replace(delta=None, shifts=None) if fixed else demand
    if proved.verdict != "robust" and asked != Demand():
        return "the certificate has another verdict than the required one"
    if demand.target not in (None, proved.target):
        return f"class {demand.target} is required"
    if demand.delta is not None:
        pairs = zip(proved.delta, network.layers, strict=box is None)
        radii = [weight if b is None else min(weight, bias) for (weight, bias), (_, b) in pairs]
        if not (_holds(box, network, demand.delta) if box else min(radii) >= demand.delta):
            return f"delta {demand.delta!r} is required"
    if demand.input is not None and demand.input != proved.input:
        return "another input is required"
    if demand.margin is not None and not proved.margin >= demand.margin:
        return f"a margin of {demand.margin!r} is required"
    if demand.shifts not in (None, proved.shifts):
        return f"the shift set {demand.shifts!a} is required"
    (low, high), n = proved.ends, len(proved.input)
    down, up = demand.low, demand.high
    if down is not None and (len(down) != n or _outside(low, down, down)):
        return f"an input box down to {down!r} is required"
    if up is not None and (len(up) != n or _outside(up, up, high)):
        return f"an input box up to {up!r} is required"
    return None


def _box(name: Any, network: Parameters, shifts: Shifts | None) -> Shifts:
    """Return the box that a certificate names, if it is the given one and fits the network."""
    if shifts is None:
        raise Rejected("the certificate names a shift set: its file is needed")
    alike = _shape(shifts.low) == _shape(shifts.high)
    if alike and name != digest(shifts):
        raise Rejected("the certificate names another shift set: the digests differ")
    if any(_shape(end) != _shape(network) or end[1:] != network[1:] for end in shifts):
        raise Rejected("the shifts have other shapes, biases or input maps than the network")
    if any(low > high for low, high in zip(*map(_flat, shifts), strict=True)):
        raise Rejected("a lower end of the shifts lies above its upper end")
    return shifts


def _holds(box: Shifts, network: Parameters, delta: float) -> bool:
    """Test exactly if all networks within ``delta`` of the network lie in the box."""
    if not 0.0 <= delta < math.inf:
        return False
    ends, d = zip(_flat(box.low), _flat(network), _flat(box.high), strict=True), Fraction(delta)
    if not delta:
        return all(low <= v <= high for low, v, high in ends)
    return all(Fraction(low) + d <= Fraction(v) <= Fraction(high) - d for low, v, high in ends)


def _shape(network: Parameters) -> list[tuple[int, int, bool]]:
    return [(len(W), len(W[0]), b is None) for W, b in network.layers]


def _flat(network: Parameters) -> list[float]:
    return [*chain(*(chain(*W, b or []) for W, b in network.layers))]


def digest(given: Parameters | Shifts) -> str:
    """Return the SHA-256 of a network or box: per array its name and shape, then its doubles."""
    sha = hashlib.sha256()

    def add(name: str, shape: tuple[int, ...], values: list[float]) -> None:
        sha.update(f"{name} {' '.join(map(str, shape))}\n".encode())
        sha.update(struct.pack(f"<{len(values)}d", *(v + 0.0 for v in values)))  # -0.0 is 0.0

    ends = (
        {"": given} if isinstance(given, Parameters) else {"low_": given.low, "high_": given.high}
    )
    for i, layers in enumerate(zip(*(network.layers for network in ends.values()), strict=True)):
        for end, (W, b) in zip(ends, layers, strict=True):
            add(f"{end}W{i}", (len(W), len(W[0])), [*chain(*W)])
            if b is not None:
                add(f"{end}b{i}", (len(b),), b)
    for name, part in [*next(iter(ends.values()))._asdict().items()][1:]:
        if part is not None:
            rows = part if name == "matrix" else [part]
            add(name, (len(rows), len(rows[0]))[name != "matrix" :], [*chain(*rows)])
    return sha.hexdigest()


class _Claim:
    """A certificate in the shapes of its network, or of the larger one that takes an input box.

    ``low`` and ``high`` are the ends of all intervals: per layer the rows in fine and the biases in
    exact units. ``ends`` are those of the input box, ``front`` the sizes of the maps after it.
    """

    def __init__(
        self, facts: dict[str, Any], network: Parameters, box: Shifts | None, most: int
    ) -> None:
        self.facts, self.net, self.shifts, self.most = facts, network, box, most
        self.asked = _number("margin", facts["margin"])
        self.widths = [len(W) for W, _ in network.layers]
        n = len((network.matrix or network.layers[0][0])[0])
        self.x = self.at = _numbers("input", facts["input"], n)
        self.target = _index("target", facts["target"], max(2, self.widths[-1]))
        self.delta: list[list[float]] = []
        if box is None:
            self.delta = _table("delta", facts["delta"], [2] * len(self.widths))
            if min(chain(*self.delta)) < 0.0:
                raise Rejected("delta is negative")
        self.ends = [_numbers(end, facts[end], n) for end in ("low", "high") if end in facts]
        self.front: list[int] = []
        if self.ends:
            self.within("the input", self.x)
        if self.ends and facts["verdict"] == "robust":
            scaled = network.scale or network.shift or not network.matrix
            self.front = [n] * bool(scaled) + [len(network.matrix or [])] * bool(network.matrix)
            self.widths = [2 * n, *(2 * size for size in self.front), *self.widths]
        self.inner = self.widths[1:-1]

    def within(self, name: str, point: list[float]) -> None:
        if _outside(self.ends[0], point, self.ends[1]):
            raise Rejected(f"{name} lies outside the input box")

    def limit(self, work: int) -> None:
        if work > self.most:
            seconds, most = (f"{n / 1e9:.0f} s" for n in (work, self.most))
            raise Rejected(f"checking this would take about {seconds}, the limit is {most}")
        self.work = work

    def integers(self, more: list[list[float]], D: int, fine: int, exact: int, cut: bool) -> None:
        """Choose the units and convert all numbers to integers, unless the work is too much.

        ``fine`` and ``exact`` are the numbers of products that follow: of a fine and an exact number,
        and of two exact ones. A product takes some 100 ns, and 4 ns for each pair of 64-bit words.
        """
        scale = self.net.scale or [1.0] * len(self.x)
        shift = self.net.shift or [0.0] * len(self.x)
        matrix, offset = (
            self.net.matrix or [],
            self.net.offset or [0.0] * len(self.net.matrix or []),
        )
        D, fine = D + bool(matrix), fine + len(matrix) * len(self.x)  # one product more
        ends = [net.layers for net in self.shifts or [self.net]]
        layers = [*chain(*([*W, b or []] for W, b in chain(*ends)))]
        sizes = [
            max(map(abs, chain(*chain(*(W for W, _ in same))))) for same in zip(*ends, strict=True)
        ]
        coarse = 96 - min([math.frexp(size)[1] for size in sizes if size], default=0)
        given = [*self.x, *scale, *shift, *offset, self.asked, *chain(*matrix, *self.delta, *more)]
        given += [*self.at, *chain(*self.ends)]
        self.K = max(_bits(given), min(_bits(chain(*layers)), coarse if cut else sys.maxsize))
        self.N = self.K * D
        bits = self.K + max(0, *(math.frexp(v)[1] for v in chain(given, *layers)))
        short, long = 1 + bits // 64, 1 + bits * D // 64
        work = fine * (100 + 4 * short * long) + exact * (100 + 4 * long * long)
        numbers = [*map(len, [given, *layers]), *(4 * len(self.x) * size for size in self.front)]
        work += sum(numbers) * (3000 + 4 * long)  # to convert them to integers
        self.limit(work)
        self.margin = self.exact([self.asked])[0]
        self.take_ends()
        triples = zip(self.exact(self.at), self.fine(scale), self.exact(shift), strict=True)
        self.u = [(x * s >> self.K) + t for x, s, t in triples]
        rows = [self.fine(row) for row in matrix]
        self.u = self.affine(rows, self.u, self.exact(offset)) if matrix else self.u

    def take_ends(self) -> None:
        """Convert the ends of all intervals to integers, cut outwards if at all."""
        self.low: list[tuple[list[list[int]], list[int]]] = []
        self.high: list[tuple[list[list[int]], list[int]]] = []
        for i, (W, b) in enumerate(self.net.layers):
            if self.shifts is None:
                dw = self.fine(self.delta[i])[0] + (_bits(chain(*W)) > self.K)
                db = self.fine(self.delta[i])[1] + (_bits(b) > self.K) if b else 0
                rows, bias = [self.fine(row) for row in W], self.fine(b or [0.0] * len(W))
                low = [[w - dw for w in row] for row in rows], [v - db for v in bias]
                high = [[w + dw for w in row] for row in rows], [v + db for v in bias]
            else:
                (rows_low, b_low), (rows_high, b_high) = (end.layers[i] for end in self.shifts)
                low = [self.fine(row) for row in rows_low], self.fine(b_low or [0.0] * len(W))
                high = (
                    [self.ceiling(row) for row in rows_high],
                    self.ceiling(b_high or [0.0] * len(W)),
                )
            for ends, (rows, bias) in ((self.low, low), (self.high, high)):
                ends.append((rows, [v << (self.N - self.K) for v in bias]))
        if self.front:
            self.take_front()

    def take_front(self) -> None:
        """Prepend the layers of the larger network, whose first is the input box."""
        net, n, maps = self.net, len(self.x), []
        if len(self.front) == 2 or not net.matrix:
            diagonal = self.fine(net.scale or [1.0] * n)
            scaler = [[s if i == j else 0 for j in range(n)] for i, s in enumerate(diagonal)]
            maps.append((scaler, self.exact(net.shift or [0.0] * n)))
        if net.matrix:
            rows = [self.fine(row) for row in net.matrix]
            maps.append((rows, self.exact(net.offset or [0.0] * len(rows))))
        fixed: list[tuple[list[list[int]], list[int]]] = [([], [])]
        for rows, bias in maps:
            up = [[*row, *(-w for w in row)] for row in rows]
            down = [[*(-w for w in row), *row] for row in rows]
            fixed.append(([*up, *down], [*bias, *(-v for v in bias)]))
        (low, b_low), (high, b_high) = self.low[0], self.high[0]
        wide_low, wide_high = (
            [[*row, *(-w for w in other)] for row, other in zip(*pair, strict=True)]
            for pair in ((low, high), (high, low))
        )
        self.low = [*fixed, (wide_low, b_low), *self.low[1:]]
        self.high = [*fixed, (wide_high, b_high), *self.high[1:]]

    def fine(self, values: list[float]) -> list[int]:
        """Convert doubles n / 2^k to fine units, rounded down if they are cut."""
        ratios = map(float.as_integer_ratio, values)
        return [n << self.K >> d.bit_length() - 1 for n, d in ratios]

    def ceiling(self, values: list[float]) -> list[int]:
        """Convert doubles to fine units, rounded up if they are cut."""
        return [-v for v in self.fine([-v for v in values])]

    def exact(self, values: list[float]) -> list[int]:
        return [v << (self.N - self.K) for v in self.fine(values)]

    def affine(self, W: list[list[int]], h: list[int], b: list[int]) -> list[int]:
        return [(_dot(row, h) >> self.K) + c for row, c in zip(W, b, strict=True)]

    def first(self) -> list[list[int]]:
        """Return the smallest and largest pre-activations of the first layer, for u of any sign."""
        found = []
        for (W, b), (V, _) in zip(
            (self.low[0], self.high[0]), (self.high[0], self.low[0]), strict=True
        ):
            pairs = (zip(row, other, self.u, strict=True) for row, other in zip(W, V, strict=True))
            rows = [[p if v >= 0 else q for p, q, v in columns] for columns in pairs]
            found.append(self.affine(rows, self.u, b))
        return found

    def inputs(self) -> list[list[int]]:
        """Return the smallest and largest values of a point of the input box, and of minus it."""
        low, high = map(self.exact, self.ends)
        return [[*low, *(-v for v in high)], [*high, *(-v for v in low)]]

    def rivals(self, low: Any, high: Any) -> list[tuple[int, int]]:
        """Pair the target's lower value with each rival's upper one, or with 0 for a single logit."""
        if len(low) == 1:
            return [(low[0], 0) if self.target else (0, high[0])]
        return [(low[self.target], v) for o, v in enumerate(high) if o != self.target]

    def not_robust(self) -> None:
        """Run the network of the certificate and test that it misses the margin."""
        layers = _list("shifted", self.facts["shifted"], len(self.widths))
        moved: list[tuple[list[list[float]], list[float]]] = []
        for layer, (W, b) in zip(layers, self.net.layers, strict=True):
            if not isinstance(layer, dict) or set(layer) != {"W", "b"}:
                raise Rejected("each layer of the shifted network must have exactly W and b")
            if b is None and layer["b"] is not None:
                raise Rejected("the shifted network has a bias where the network has none")
            bias = [0.0] * len(W) if b is None else _numbers("b", layer["b"], len(W))
            moved.append((_table("W", layer["W"], [len(W[0])] * len(W)), bias))
        if self.ends:
            self.at = _numbers("point", self.facts["point"], len(self.x))
            self.within("the point", self.at)
        values = [*chain(*([*W, b] for W, b in moved))]
        self.integers(values, len(moved) + 2, sum(map(len, values)), 0, False)
        h = self.u
        for i, (W, b) in enumerate(moved):
            rows, shift = [self.fine(row) for row in W], self.exact(b)
            far = _outside(chain(*self.low[i][0]), chain(*rows), chain(*self.high[i][0]))
            if far or _outside(self.low[i][1], shift, self.high[i][1]):
                where = "delta" if self.shifts is None else "the shift set"
                raise Rejected(f"a {'weight' if far else 'bias'} of layer {i} lies outside {where}")
            h = self.affine(rows, [max(v, 0) for v in h] if i else h, shift)
        if min(v - w for v, w in self.rivals(h, h)) >= self.margin:
            raise Rejected("the shifted network has the margin, so it refutes nothing")

    def robust(self) -> None:
        """Follow one tree per rival class and bound the margin at each leaf."""
        if self.asked < MIN_MARGIN:
            raise Rejected(f"margin is {self.asked!r}: the class is reached from {MIN_MARGIN} on")
        lower = _table("lower", self.facts["lower"], self.inner)
        upper = _table("upper", self.facts["upper"], self.inner)
        trees = _list("trees", self.facts["trees"], max(1, self.widths[-1] - 1))
        count = sum(isinstance(node, dict) for tree in trees for node in _list("tree", tree))
        if 2 * count != sum(map(len, trees)) + len(trees):
            raise Rejected("a tree is incomplete, or has nodes after its last leaf")
        # Estimated products: one for each weight of the layers before in a backward pass, and some for
        # each of their neurons. A range takes three sums for each neuron, or two backward passes.
        sizes = [n * m for n, m in zip(self.inner, self.widths, strict=False)]
        passes = [2 * n if self.facts["tighten"] and i else 0 for i, n in enumerate(self.inner)]
        seen = 0 if self.front else len(self.net.layers[0][0][0])  # an input box takes no product
        fine, exact = 2 * self.widths[0] * seen + 3 * sum(sizes), 0
        for i, n in enumerate([*passes, count]):
            fine += n * (sum(sizes[:i]) + 8 * sum(self.widths[: i + 1]))
            exact += n * 4 * sum(self.widths[: i + 1])
        self.limit(100 * (fine + exact))
        trees = [[self.node(node) for node in tree] for tree in trees]
        leaves = [node for node in chain(*trees) if isinstance(node[0], dict)]
        fine += sum(self.widths[i] for _, gamma in leaves for i, _ in gamma)
        if not all(0.0 <= v <= 1.0 for v in chain(*lower, *(leaf[0].values() for leaf in leaves))):
            raise Rejected("the slope of a lower side lies outside [0, 1]")
        if not isinstance(self.facts["tighten"], bool):
            raise Rejected("tighten is neither true nor false")
        values = [*lower, *upper, *([*part.values()] for leaf in leaves for part in leaf)]
        self.integers(values, 4 + 2 * len(self.inner), fine, exact, True)
        low, high = self.inputs() if self.front else self.first()
        self.box = [max(v, 0) for v in low], [max(v, 0) for v in high]
        self.lower, self.upper = [self.fine(v) for v in lower], [self.fine(v) for v in upper]
        self.find_ranges()
        if len(self.widths) > 1:  # otherwise the output rows act on u itself
            low, high = self.low[-1][1], self.high[-1][1]
        columns = [
            *zip(*(zip(*end[-1][0], strict=True) for end in (self.low, self.high)), strict=True)
        ]
        for rival, tree in enumerate(trees):
            v, w = self.rivals(low, high)[rival]
            rows = [self.rivals(*pair)[rival] for pair in columns] if len(self.widths) > 1 else []
            a = [(p - q) << (self.N - self.K) for p, q in rows]
            self.follow(f"tree {rival}", tree, a, v - w)

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
        """Return the position among the inner layers (after the first hidden one) and in its layer."""
        i = _index("layer", layer, len(self.inner) + 1)
        if i == 0:
            raise Rejected(
                "a tree must not split layer 0, because its activations form an exact box"
            )
        return i - 1, _index("neuron", neuron, self.inner[i - 1])

    def find_ranges(self) -> None:
        """Find the range of U of each inner neuron by intervals, or also by backward passes."""
        low, high = self.box
        self.range: list[list[tuple[int, int]]] = []
        self.line: list[list[int]] = []  # t of each neuron
        for i, ((W, b), (V, c)) in enumerate(zip(self.low[1:-1], self.high[1:-1], strict=True)):
            least = [self.least(row, low, high) + v for row, v in zip(W, b, strict=True)]
            ranges = [
                (self.least(row, low, high) + v, self.least(row, high, low) + v)
                for row, v in zip(V, c, strict=True)
            ]
            low, high = [max(v, 0) for v in least], [max(v, 0) for _, v in ranges]
            if self.facts["tighten"] and i:
                for k, (row, v) in enumerate(zip(V, c, strict=True)):
                    up = [w << (self.N - self.K) for w in row]
                    lo, hi = (
                        self.bound(up, v, {}, {}, {}),
                        -self.bound([-w for w in up], -v, {}, {}, {}),
                    )
                    ranges[k] = max(lo, ranges[k][0]), min(hi, ranges[k][1])
            self.range.append(ranges)
            chords = zip(self.upper[i], ranges, strict=True)
            self.line.append([self.offset(s, *ends) for s, ends in chords])

    def least(self, row: list[int], low: list[int], high: list[int]) -> int:
        """Return the smallest row . h over a box (the largest, if its ends are swapped)."""
        return (
            _dot(row, [p if w >= 0 else q for w, p, q in zip(row, low, high, strict=True)])
            >> self.K
        )

    def offset(self, s: int, lo: int, hi: int) -> int:
        """Return the maximum of max(0, U) - s U over [lo, hi], which is convex, so it is at an end."""
        return max(max(lo, 0) - (s * lo >> self.K), max(hi, 0) - (s * hi >> self.K))

    def bound(self, a: list[int], total: int, signs: _At, alpha: _At, gamma: _At) -> int:
        """Bound a . v + total from below, v the activations after the ranges found so far."""
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
            on_U = [c - g for c, g in zip(on_U, push, strict=True)]
            sides = (on_L, *self.low[i + 1]), (on_U, *self.high[i + 1])
            used = [part for side in sides for part in zip(*side, strict=True) if part[0]]
            total += sum(c * b for c, _, b in used) >> self.N
            c, rows = [c for c, _, _ in used], [row for _, row, _ in used]
            a = [_dot(c, w) >> self.K for w in zip(*rows, strict=True)] or [0] * self.widths[i]
        return total + (self.least(a, *self.box) >> (self.N - self.K)) if a else total

    def follow(self, name: str, tree: list[Any], a: list[int], const: int) -> None:
        """Follow a tree in preorder: a split, then its sides U <= 0 and U >= 0."""
        todo: list[_At] = [{}]
        for node in tree:
            if not todo:
                raise Rejected(f"{name} has nodes after its last leaf")
            signs = todo.pop()
            if not isinstance(node[0], dict):
                if node in signs:
                    raise Rejected(f"{name} splits a neuron twice")
                todo += [{**signs, node: 1}, {**signs, node: -1}]
            elif self.bound(a, const, signs, *node) < self.margin:
                raise Rejected(f"{name}: a leaf does not prove the margin")
        if todo:
            raise Rejected(f"{name} ends before its last leaf")


class _Space(NamedTuple):
    """Rest of a space: ends of all columns, and the open choices of each block."""

    low: list[float]
    high: list[float]
    choices: list[tuple[list[int], list[list[float]]]]

    @classmethod
    def read(cls, space: Any, n: int) -> _Space:
        """Read a space. The ends of the columns of a choice are those of its values."""
        if not isinstance(space, dict) or set(space) != {"low", "high", "choices"}:
            raise Rejected("a space must have exactly the fields low, high and choices")
        low, high = (_numbers(end, space[end], n) for end in ("low", "high"))
        choices, seen = [], set[int]()
        for choice in _list("choices", space["choices"]):
            if not isinstance(choice, dict) or set(choice) != {"columns", "values"}:
                raise Rejected("a choice must have exactly the fields columns and values")
            columns = [_index("columns", j, n) for j in _list("columns", choice["columns"])]
            rows = _list("values", choice["values"])
            if not rows or not columns or len(seen.union(columns)) < len(seen) + len(columns):
                raise Rejected("a choice has no values or columns, or a column twice")
            seen |= {*columns}
            choices.append((columns, _table("values", rows, [len(columns)] * len(rows))))
        found = cls(low, high, choices)
        if _outside(low, low, high) or found.ends() != (low, high):
            raise Rejected("the ends of a space are crossed, or not those of its choices")
        return found

    def ends(self) -> tuple[list[float], list[float]]:
        """Return the ends of the smallest box around the rest."""
        low, high = self.low[:], self.high[:]
        for columns, rows in self.choices:
            for j, values in zip(columns, zip(*rows, strict=True), strict=True):
                low[j], high[j] = min(values), max(values)
        return low, high

    def parts(self, node: dict[str, Any]) -> tuple[_Space, _Space]:
        """Cut the space: a column at a number, or the values of a choice after the first few."""
        if set(node) == {"column", "at"}:
            j, at = _index("column", node["column"], len(self.low)), _number("at", node["at"])
            if any(j in columns for columns, _ in self.choices):
                raise Rejected("a cut goes through the columns of a choice")
            low, high = self.low[:], self.high[:]
            low[j], high[j] = max(at, low[j]), min(at, high[j])
            return self._replace(high=high), self._replace(low=low)
        i = _index("choice", node["choice"], len(self.choices))
        columns, rows = self.choices[i]
        at = _index("at", node["at"], len(rows))
        if not at:
            raise Rejected("a cut leaves one of its parts without values")
        before, behind = self.choices[:i], self.choices[i + 1 :]
        first, second = ([*before, (columns, part), *behind] for part in (rows[:at], rows[at:]))
        return self._replace(choices=first), self._replace(choices=second)


class _Fixed:
    """A certificate that no network gives a class to any input of some spaces."""

    def __init__(self, facts: dict[str, Any], network: Parameters, shifts: Shifts | None) -> None:
        named = "shifts" if "shifts" in facts else "delta"
        if wrong := set(facts) ^ {"format", "network", "target", named, "spaces", "trees"}:
            raise Rejected(f"fields missing or unknown: {ascii(sorted(wrong))[1:-1][:200]}")
        _check_network(facts, network)
        self.facts, self.net, self.shifts = facts, network, None
        self.delta: list[list[float]] = []
        if named == "shifts":
            self.shifts = _box(facts["shifts"], network, shifts)
        else:
            self.delta = _table("delta", facts["delta"], [2] * len(network.layers))
        self.outputs = len(network.layers[-1][0])
        self.target = _index("target", facts["target"], max(2, self.outputs))
        n = len((network.matrix or network.layers[0][0])[0])
        self.spaces = [_Space.read(space, n) for space in _list("spaces", facts["spaces"])]
        if not self.spaces:
            raise Rejected("the list of spaces is empty")

    def check(self, demand: Demand, most: int) -> tuple[Verdict, int]:
        """Follow the trees within a work limit, and return the work too."""
        self.left, self.margin = most, math.inf
        trees = _list("trees", self.facts["trees"], len(self.spaces))
        for space, tree in zip(self.spaces, trees, strict=True):
            todo = [space]
            for node in _list("tree", tree):
                if not todo or not isinstance(node, dict):
                    raise Rejected(
                        "a tree has nodes after its last leaf, or an item that is not a node"
                    )
                here = todo.pop()
                if set(node) == {"other", "certificate"}:
                    self.leaf(node, here)
                elif set(node) in ({"column", "at"}, {"choice", "at"}):
                    todo += reversed(here.parts(node))
                else:
                    raise Rejected("a node is neither a cut nor a leaf with a certificate")
            if todo:
                raise Rejected("a tree ends before its last leaf")
        ends = zip(*((space.low, space.high) for space in self.spaces), strict=True)
        low, high = (zip(*end, strict=True) for end in ends)
        proved = Statement(
            "fixed",
            self.target,
            self.delta,
            [],
            self.margin,
            self.facts.get("shifts"),
            self.shifts is None or _holds(self.shifts, self.net, 0.0),
            self.facts["network"],
            [*map(min, low)],
            [*map(max, high)],
            self.facts["spaces"],
        )
        lacking = _lacking(proved, demand, self.net, self.shifts)
        reason = f"{lacking}. The certificate proves only: {proved}" if lacking else str(proved)
        return Verdict(not lacking, reason, proved), most - self.left

    def leaf(self, node: dict[str, Any], space: _Space) -> None:
        """Check that another class wins on a box that contains the rest of the space."""
        other, proof = _index("other", node["other"], max(2, self.outputs)), node["certificate"]
        if other == self.target:
            raise Rejected("other must not be the target class")
        if not isinstance(proof, dict) or proof.get("format") != FORMAT_INPUTS:
            raise Rejected(f"a leaf has no certificate of format {FORMAT_INPUTS!r}")
        net, box = self.net, self.shifts
        if self.outputs > 2:
            net = _duel(net, other, self.target)
            box = box and Shifts(*(_duel(end, other, self.target) for end in box))
        verdict, work = _check(proof, net, Demand(), box, self.left)
        proved, winner = verdict.statement, 0 if self.outputs > 2 else other
        if proved is None or (proved.verdict, proved.target) != ("robust", winner):
            raise Rejected("the certificate of a leaf must prove that the other class wins")
        if not proved.margin > 0.0:
            raise Rejected("a leaf proves no positive margin: a tie may count as acceptance")
        (low, high), ends = proved.ends, space.ends()
        if _outside(low, ends[0], high) or _outside(low, ends[1], high):
            raise Rejected("a leaf does not cover what is left of its space")
        if (proved.delta, proved.shifts is None) != (self.delta, self.shifts is None):
            raise Rejected("a leaf names another shift set")
        self.margin, self.left = min(self.margin, proved.margin), self.left - work


def _duel(network: Parameters, other: int, target: int) -> Parameters:
    """Return the network with the logits of two classes only."""
    *hidden, (W, b) = network.layers
    last = [W[other], W[target]], b and [b[other], b[target]]
    return network._replace(layers=[*hidden, last])


def _spoken(spaces: list[dict[str, Any]], ends: tuple[list[float], list[float]]) -> str:
    """Describe the inputs of a statement."""
    box = ", ".join(f"[{p!r}, {q!r}]" if p < q else repr(p) for p, q in zip(*ends, strict=True))
    choices = sum(len(choice["values"]) > 1 for space in spaces for choice in space["choices"])
    if len(spaces) == 1 and not choices:
        return f"the box {box}"
    count = f"{len(spaces)} spaces" if len(spaces) > 1 else "the space"
    return f"{count} in the box {box}, of certain values in {choices} choices"


class Stated:
    """The statement of a bundle in original units: what is enough, and how it is encoded."""

    def __init__(self, facts: Any, classes: int) -> None:
        if not isinstance(facts, dict) or set(facts) != STATED:
            raise Rejected(
                "a statement must have exactly the fields subject, outcomes and features"
            )
        words = _list("outcomes", facts["outcomes"], classes)
        self.subject = _text("the subject", facts["subject"])
        self.outcomes = [_text("an outcome", word) for word in words]
        self.features = [_Feature(each) for each in _list("features", facts["features"])]

    def sentence(self, target: int) -> str:
        """Return what is enough for a class, and what stays."""
        changes = [f"{f.name}: {f.goal} (today: {f.today})" for f in self.features if f.changes]
        rest = [f"{f.name}: {f.goal}" for f in self.features if not f.changes]
        made = f" with {'; '.join(changes)}." if changes else " without any change."
        kept = f" Everything else must stay as stated: {'; '.join(rest)}." if rest else ""
        return f"{self.subject}: {self.outcomes[target]}{made}{kept}"

    def check(self, proved: Statement) -> str:
        """Encode all values again and return the sentence; raise if the proof does not cover it."""
        (low, high), at = proved.ends, 0
        for feature in self.features:
            for down, code, up in zip(*feature.codes(), strict=True):
                if at >= len(low) or code != proved.input[at]:
                    raise Rejected(f"the stated {feature.name!a} is not the certified input")
                if not low[at] <= down <= up <= high[at]:
                    raise Rejected(f"the stated range of {feature.name!a} was not proved")
                at += 1
        if at < len(low):
            raise Rejected(f"the statement has {at} encoded columns, and the input {len(low)}")
        return self.sentence(proved.target)


class _Feature:
    """A stated feature: a number, or a label in one column or in one for each label."""

    def __init__(self, facts: Any) -> None:
        fields = set(facts) - VALUES if isinstance(facts, dict) else set()
        if fields not in CODES or set(facts) != fields | VALUES:
            raise Rejected("a stated feature has missing or unknown fields")
        self.facts, self.is_number = facts, "unit" in facts
        self.name = _text("a name", facts["name"])
        if type(facts["missing"]) is not bool:
            raise Rejected("missing is neither true nor false")
        if "scale" in facts:
            self.offset, self.scale = (_number(name, facts[name]) for name in ("offset", "scale"))
            if not self.scale > 0.0:
                raise Rejected("a scale is not positive")
        self._read_number() if self.is_number else self._read_label()

    def _read_number(self) -> None:
        facts = self.facts
        names = ("today", "value", "low", "high")
        self.before, self.after, self.low, self.high = (_number(n, facts[n]) for n in names)
        if not self.low <= self.high:
            raise Rejected("the low end of a stated range lies above its high end")
        self.unit = [_text("a unit", form, least=0) for form in _list("unit", facts["unit"], 2)]
        self.changes, low, high = self.before != self.after, self.low, self.high
        goal = f"{self.amount(low, bare=True)} to {self.amount(high)}"
        goal = goal if low < high else self.amount(self.after)
        ends = {
            "": goal,
            "high": f"{self.amount(low)} or more (up to {self.amount(high)})",
            "low": f"{self.amount(high)} or less (down to {self.amount(low)})",
        }
        if type(facts["end"]) is not str or facts["end"] not in ends:
            raise Rejected("the end of a stated range must be low, high or empty")
        self.goal, self.today = ends[facts["end"]], self._today(self.amount(self.before))

    def _read_label(self) -> None:
        facts = self.facts
        labels = [_text("a label", label) for label in _list("labels", facts["labels"])]
        if len({*labels}) < len(labels):
            raise Rejected("two labels are the same")
        for name in ("today", "value"):
            if type(facts[name]) is not str or facts[name] not in labels:
                raise Rejected(f"{name} is none of the labels")
        self.labels, self.goal, self.today = labels, facts["value"], self._today(facts["today"])
        self.changes = facts["today"] != facts["value"]
        if "first" in facts:
            self.first = _index(
                "first", facts["first"], min(2, len(labels))
            )  # 0, or 1 without a column
        else:
            self.numbers = _numbers("numbers", facts["numbers"], len(labels))

    def _today(self, text: str) -> str:
        return f"missing, the model uses {text}" if self.facts["missing"] else text

    def codes(self) -> tuple[list[float], list[float], list[float]]:
        """Encode the lower end, the value and the upper end, column by column."""
        if self.is_number:
            low, value, high = ([self._scaled(v)] for v in (self.low, self.after, self.high))
            return low, value, high
        place = self.labels.index(self.facts["value"])
        if "first" in self.facts:
            found = [float(k == place) for k in range(self.first, len(self.labels))]
        else:
            found = [self._scaled(self.numbers[place])]
        return found, found, found

    def _scaled(self, v: float) -> float:
        return (v - self.offset) / self.scale

    def amount(self, v: float, *, bare: bool = False) -> str:
        """Write a number with its unit. If ``bare``, write a sign such as $ or % but no other unit."""
        text = repr(v + 0.0).removesuffix(".0")
        if abs(v) >= 10_000.0 and "e" not in text:
            whole, point, more = text.partition(".")
            text = f"{int(whole):,}{point}{more}"
        unit = self.unit[abs(v) != 1.0]
        if unit in ("$", "\u20ac", "\u00a3", "\u00a5"):
            return f"-{unit}{text[1:]}" if text.startswith("-") else f"{unit}{text}"
        if unit[:1] in ("%", "\u2030", "\u00b0"):
            return text + (unit[:1] if bare else unit)
        return text if bare or not unit else f"{text} {unit}"


def _text(name: str, value: Any, least: int = 1) -> str:
    """Return a text that can be read on one line."""
    if type(value) is not str or not least <= len(value) <= MAX_LETTERS or _UNSEEN.search(value):
        raise Rejected(f"{name} is not a text of {least} to {MAX_LETTERS} visible characters")
    return value


def _bits(values: Any) -> int:
    """Return the smallest K such that all values are integers in units of 2^-K."""
    return max((v.as_integer_ratio()[1].bit_length() - 1 for v in values), default=0)


def _outside(low: Any, values: Any, high: Any) -> bool:
    return not all(p <= v <= q for p, v, q in zip(low, values, high, strict=True))


def _dot(a: Any, b: Any) -> int:
    return sum(map(mul, a, b))


def parse(text: bytes | str) -> dict[str, Any]:
    """Read a JSON object without repeated fields."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise Rejected("a field is given twice")
        return dict(pairs)

    data = text if isinstance(text, bytes) else text.encode(errors="replace")
    if len(data) > MAX_BYTES or data.count(b"[") + data.count(b"{") > MAX_LISTS:
        raise Rejected(f"it is larger than {MAX_BYTES} bytes or {MAX_LISTS} lists and objects")
    try:
        facts = json.loads(data.decode("utf-8-sig"), object_pairs_hook=unique)
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
    """Return a JSON number as a double. A decimal is rounded, an integer must be exact."""
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise Rejected(f"{name} holds something that is not a finite number")
    if (double := float(value)) == value:
        return double
    raise Rejected(f"{name} holds an integer that no double represents exactly")


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
    left = _unzip(path, "network", 1)
    network = _read(left, "network", "")
    about = {"format.npy", "precision.npy"} | {  # neither affects what a network computes
        f"fold_{name}{i}.npy"
        for i in range(len(network.layers))
        for name in ("rows", "columns", "shift", "bias")
    }
    if left.keys() - about:
        raise Rejected(f"the network file holds unknown arrays: {ascii([*left])[:200]}")
    return network


def read_shifts(path: str) -> Shifts:
    """Read a box from a file written by ``Shifts.save``."""
    left = _unzip(path, "shifts", 2)
    fixed = {name: left[name] for name in left if name[:-4] in Parameters._fields}
    low = _read(left, "shifts", "low_")
    high = _read(left := left | fixed, "shifts", "high_")
    if left.keys() - {"format.npy", "about.npy", "encoding.npy"}:
        raise Rejected(f"the shifts file holds unknown arrays: {ascii([*left])[:200]}")
    if _shape(low) != _shape(high):
        raise Rejected("the shifts file holds lower and upper ends of different shapes")
    return Shifts(low, high)


def _read(left: dict[str, bytes], file: str, end: str) -> Parameters:
    """Take the arrays of a network, whose names begin with ``end``, from those of a file."""

    def take(name: str, *shape: int) -> Any:
        return _take(left, file, name, *shape)

    layers: list[tuple[list[list[float]], list[float] | None]] = []
    while W := take(f"{end}W{len(layers)}", 0, len(layers[-1][0]) if layers else 0):
        layers.append((W, take(f"{end}b{len(layers)}", len(W))))
    if not layers:
        raise Rejected(f"the {file} file holds no layer: {ascii([*left])[:200]}")
    n = len(layers[0][0][0])  # entries of u
    matrix, offset = take("matrix", n, 0), take("offset", n)
    if offset and not matrix:
        raise Rejected(f"the {file} file holds an offset without a matrix")
    scale, shift = (take(name, len(matrix[0]) if matrix else n) for name in ("scale", "shift"))
    return Parameters(layers, scale, shift, matrix, offset)


def _unzip(path: str, file: str, networks: int) -> dict[str, bytes]:
    """Return the files of a zip by name. Raise if they are too large, unusual or given twice.

    Only the output of numpy is read: no bytes before or after, no comments, no password, no sizes
    of 64 bits, no parts that overlap or are out of order. No two readers can therefore see
    different arrays in a file.
    """
    most = 8 * (numbers := networks * MAX_NUMBERS) + 1_000_000
    if (length := os.path.getsize(path)) > most:
        raise Rejected(f"the {file} file has more than {most} bytes")
    with open(path, "rb") as stream:
        data = stream.read(length)  # in memory, so it ends at the end of the file
    try:
        parts, ends = _listed(data)
        if sum(part[4] for part in parts) > most:
            raise Rejected(f"the {file} file has more than {numbers} numbers")
        if len({part[0] for part in parts}) < len(parts):
            raise Rejected(f"the {file} file holds an array twice")
        return {p[0].decode(): _unpacked(data, p, end) for p, end in zip(parts, ends, strict=True)}
    except (ValueError, struct.error, zlib.error) as error:
        raise Rejected(f"the {file} file is not an .npz file: {ascii(str(error))[1:100]}") from None


def _listed(data: bytes) -> tuple[list[_Part], list[int]]:
    """Return the parts in the order of the list, and the start of the data after each of them."""
    stop = len(data) - _END.size  # the list is the last thing in the file
    mark, *disks, here, count, size, at, comment = _END.unpack_from(data, max(stop, 0))
    odd = mark != b"PK\5\6" or any(disks) or here != count or comment or at + size != stop
    parts, end = [], at
    for _ in range(0 if odd else count):
        mark, _, version, flags, method, _, _, *numbers = _ENTRY.unpack_from(data, at)
        crc, packed, size, length, *zeros, _, _, start = numbers
        name, at = data[at + 46 : at + 46 + length], at + 46 + length
        odd = odd or mark != b"PK\1\2" or any((version & 0xC0, flags & 0x61, method & ~8, *zeros))
        odd = odd or 2**32 - 1 in (packed, size, start) or not re.fullmatch(rb"[!-~]+", name)
        parts.append((name, method, crc, packed, size, start))
    starts = [*(part[-1] for part in parts), end]
    odd = odd or at != stop or data[stop - 20 : stop - 16] == b"PK\6\7"
    if odd or starts[0]:
        raise ValueError("it is packed in an unusual way, not as numpy does")
    return parts, starts[1:]


def _unpacked(data: bytes, part: _Part, limit: int) -> bytes:
    """Take a part between its own header and the next part."""
    name, method, crc, packed, size, at = part
    mark, *_, length, extra = _LOCAL.unpack_from(data, at)
    start = at + _LOCAL.size + length
    named = mark == b"PK\3\4" and data[start - length : start] == name
    content = data[start + extra : start + extra + packed]
    if method:
        stream = zlib.decompressobj(-zlib.MAX_WBITS)
        content = stream.decompress(content, size + 1)  # never more, even for a crafted file
        named = named and stream.eof and not stream.unused_data
    inside = start + extra + packed <= limit  # so parts lie in the order of the list
    if not named or not inside or len(content) != size or zlib.crc32(content) != crc:
        raise ValueError("a part is damaged, or not where it should be")
    return content


def _take(left: dict[str, bytes], file: str, name: str, *shape: int) -> Any:
    """Read a .npy file of doubles, row by row, if there is one. 0 stands for any length."""
    if (data := left.pop(f"{name}.npy", None)) is None:
        return None
    start = 10 + int.from_bytes(data[8:10], "little")
    header = data[:8] == b"\x93NUMPY\1\0" and re.fullmatch(_HEADER, data[10:start])
    sizes = [int(size) for size in header.groups() if size] if header else []
    wanted = [n or m for n, m in zip_longest(shape, sizes, fillvalue=-1)]
    if sizes != wanted or 0 in sizes or len(data) != start + 8 * math.prod(sizes):
        raise Rejected(f"{name} of the {file} file has another type, order or shape than needed")
    flat, m = [*struct.unpack(f"<{math.prod(sizes)}d", data[start:])], sizes[-1]
    if not all(map(math.isfinite, flat)):
        raise Rejected(f"{name} of the {file} file has NaN or infinite values")
    return [flat[i : i + m] for i in range(0, len(flat), m)] if len(sizes) > 1 else flat


def row(text: str) -> list[float]:
    """Read numbers with commas between them."""
    return [float(cell) for cell in text.split(",")]


def main() -> int:
    """Check one file. Returns 0: accepted, 1: rejected, 2: wrong usage."""
    about = "Check a certificate and print its proved statement. Options reject a weaker statement."
    parser = argparse.ArgumentParser(prog="checker.py", description=about)
    parser.add_argument("proof", help="certificate or bundle: a .json file")
    parser.add_argument(
        "network",
        nargs="+",
        help="network: an .npz file of Network.save. A bundle needs all of its networks",
    )
    parser.add_argument(
        "--shifts",
        action="append",
        default=[],
        help="shift set of a certificate: an .npz file of Shifts.save",
    )
    kinds: dict[str, tuple[Any, str]] = {
        "target": (int, "required class, by its number"),
        "delta": (float, "required delta, at least"),
        "margin": (float, "required margin, at least"),
        "input": (row, "required input: --input=0.5,-1"),
        "low": (row, "required lower ends of the input box: --low=0.5,-1"),
        "high": (row, "required upper ends of the input box: --high=0.5,-1"),
        "digest": (str, "required SHA-256 of the certificate"),
    }
    for name, (kind, meaning) in kinds.items():
        parser.add_argument(f"--{name}", type=kind, help=meaning)
    given = vars(parser.parse_args())
    try:
        with open(given.pop("proof"), "rb") as proof:
            text = proof.read(MAX_BYTES + 1)
        networks = [read_npz(path) for path in given.pop("network")]
        shifts = [read_shifts(path) for path in given.pop("shifts")]
        found = check_all(text, networks, shifts, Demand(**given))
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}")
    except Rejected as failure:
        found = Verdict(False, str(failure))
    if found.sentence:
        code = sys.stdout.encoding
        print(found.sentence.encode(code, "backslashreplace").decode(code))
    print("accepted" if found.accepted else "rejected", found.reason, sep=": ")
    if found.accepted:
        redone = REDONE.format("Its words, its encoding", file_digest(text))
        print(redone if found.sentence else NOT_REDONE)
    return 0 if found.accepted else 1


if __name__ == "__main__":
    sys.exit(main())
