"""Certificates of all kinds, true and changed, for two checkers that must agree about every one of them.

``python tests/two_checkers.py --seeds 20`` compares checker.py with that of verify.html under node.
"""

from __future__ import annotations

import argparse
import base64
import copy
import hashlib
import itertools
import json
import math
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np

import proplace as pp
from changed_proofs import paths
from oracles import random_box, random_case
from proplace import verify
from proplace.certification import Choice, FixedPredictionSearch, Space, certify, checker
from proplace.certification import certificate as documents
from support.problems import dense, raised

NODE = shutil.which("node")
NO_NODE = "node is not installed"
RUN = Path(__file__).parent / "verify" / "run.js"


@dataclass(frozen=True)
class Case:
    """A certificate as bytes, and the networks and the boxes that are given to check it."""

    kind: str
    text: bytes
    networks: tuple[pp.Network, ...]
    boxes: tuple[pp.Shifts, ...] = ()
    most: int | None = None  # work, if not the usual one
    demand: checker.Demand = checker.Demand()  # noqa: RUF009

    def changed(self, how: str, text: bytes | str) -> Case:
        data = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
        return replace(self, kind=f"{self.kind}: {how}", text=data)


# -- true certificates -----------------------------------------------------------------------------


def true_cases(rng):
    """Certificates as the package makes them, of all formats and both verdicts."""
    for hidden in range(5):
        for kind in ("delta", "box", "matrix", "extreme"):
            yield from _points(rng, hidden, kind)
            if kind != "extreme":
                yield from _boxes_of_inputs(rng, hidden, kind)
    yield from _branching(rng)
    yield _bundle(rng)
    yield stated_case(rng)
    yield from _fixed(rng)


def _problem(rng, hidden, kind):
    case = random_case(rng, hidden, rows=2, width=4, inputs=int(rng.integers(1, 4)))
    net, X = case.net, case.X
    if kind == "matrix":
        n = int(rng.integers(1, 4))
        front = {"matrix": rng.normal(size=(net.inputs, n))}
        front |= {"offset": rng.normal(size=net.inputs)} if rng.random() < 0.5 else {}
        front |= {"scale": rng.normal(size=n)} if rng.random() < 0.5 else {}
        front |= {"shift": rng.normal(size=n)} if rng.random() < 0.5 else {}
        net, X = net.with_layers([(a.W, a.b) for a in net.layers]), rng.normal(size=(2, n))
        net = pp.Network([(a.W, a.b) for a in net.layers], **front)
    if kind == "extreme":
        layers = [(a.W * _sizes(rng, a.W.shape), a.b) for a in net.layers]
        net = net.with_layers(layers)
    net = raised(net, case.target, float(rng.choice([0.0, 0.3, 1.0, 2.0])))
    boxed = kind == "box" or (kind != "delta" and rng.random() < 0.4)
    shifts = random_box(rng, net) if boxed else pp.Shifts.of(net, case.delta)
    return net, shifts, X, case.target


def _sizes(rng, shape):
    """Factors of very different size, some of them denormal."""
    kinds = (
        lambda: 2.0 ** rng.choice([0, -60, -96, -110, -200, -1000], shape),
        lambda: np.where(rng.random(shape) < 0.3, 5e-324, 1.0),
        lambda: 10.0 ** rng.integers(-40, 3, shape),
        lambda: 2.0 ** rng.choice([0.0, 30.0, 100.0], shape),
    )
    return kinds[int(rng.integers(len(kinds)))]()


def _given(net, shifts):
    return (net,), (() if shifts.radii is not None else (shifts,))


def _points(rng, hidden, kind):
    net, shifts, X, target = _problem(rng, hidden, kind)
    margin = float(rng.choice([0.0, 0.05, 0.3, 1.0]))
    with np.errstate(all="ignore"):
        report = pp.certify(net, X, shifts, target, margin=margin, certificates=True)
    for one in report.certificates:
        if one is not None:
            yield Case(f"{kind} {hidden}", one.text.encode(), *_given(net, shifts))


def _boxes_of_inputs(rng, hidden, kind):
    net, shifts, X, target = _problem(rng, hidden, kind)
    reach = rng.exponential(0.2, size=(2, *X.shape)) * (rng.random(X.shape) < 0.7)
    margin = float(rng.choice([0.0, 0.5, 1.0]))
    report = certify(
        net, X, shifts, target, margin=margin, box=(X - reach[0], X + reach[1]), certificates=True
    )
    for one in report.certificates:
        if one is not None:
            yield Case(f"inputs {kind} {hidden}", one.text.encode(), *_given(net, shifts))


def _branching(rng):
    """Proofs with trees: margins near the worst one."""
    for sizes in ((3, 4, 4, 1), (2, 3, 3, 3), (3, 4, 3, 4, 1)):
        net, x = raised(dense(rng, sizes, bias=0.1), 1, 500.0), rng.normal(size=(1, sizes[0]))
        worst = float(pp.certify(net, x, 0.1, 1, exact_margin=True).lower[0])
        report = pp.certify(net, x, 0.1, 1, margin=worst - 1e-6, certificates=True)
        if report.certificates[0] is not None:
            yield Case("branching", report.certificates[0].text.encode(), (net,))


def _bundle(rng):
    x, parts = rng.normal(size=2), []
    for boxed in (False, True):
        net = pp.Network([(rng.normal(size=(3, 2)), None), (rng.normal(size=(1, 3)), [0.5])])
        shifts = random_box(rng, net) if boxed else pp.Shifts.of(net, 0.1)
        net, *ends = (raised(each, 1, 500.0) for each in (net, shifts.low, shifts.high))
        shifts = pp.Shifts(*ends) if boxed else pp.Shifts.of(net, 0.1)
        worst = float(pp.certify(net, x, shifts, 1, exact_margin=True).lower[0])
        found = pp.certify(net, x, shifts, 1, margin=worst - 0.1, certificates=True)
        parts.append((net, shifts, found.certificates[0]))
    text = pp.certification.CertificateBundle.of(part[2] for part in parts).text
    return Case("bundle", text.encode(), (parts[0][0], parts[1][0]), (parts[1][1],))


WORDS = [
    "age",
    "income",
    "Wohnort",
    "größe",
    "no",
    "yes",
    "cook",
    "“clerk”",
    "a; b: c",
    "$",
    "x" * 200,
]
UNITS = ["", "year", "years", "% of income", "$", "€", "‰", "°", "thousand dollars"]


def stated_case(rng):
    """A bundle with a statement in original units, the box of which fits it to the last bit."""
    features, ends = [], []
    for _ in range(int(rng.integers(1, 5))):
        feature, codes = _stated_feature(rng)
        features.append(feature)
        ends.append(codes)
    low, x, high = (np.concatenate(parts) for parts in zip(*ends, strict=True))
    net = raised(
        pp.Network([(rng.normal(size=(3, len(x))), None), ([[1.0, -1.0, 0.5]], [0.5])]), 1, 1e9
    )
    report = certify(
        net, x[None], pp.Shifts.of(net, 0.01), 1, box=(low[None], high[None]), certificates=True
    )
    if not report.robust[0]:  # too large a number for the margin
        return stated_case(rng)
    statement = {
        "subject": str(rng.choice(WORDS)),
        "outcomes": [str(word) for word in rng.choice(WORDS, 2)],
        "features": features,
    }
    bundle = pp.certification.CertificateBundle.of(report.certificates, statement)
    return Case("stated", bundle.text.encode(), (net,))


def _stated_feature(rng):
    """A feature with its codes at the lower end, at the value and at the upper end."""
    names = {"name": str(rng.choice(WORDS)), "missing": bool(rng.random() < 0.2)}
    scaling = {"offset": float(rng.normal() * 10.0), "scale": float(rng.exponential(7.0))}
    if rng.random() < 0.5:
        scaling = {"offset": 0.0, "scale": 1.0}
    kind = rng.integers(3)
    if kind == 0:
        value = float(rng.choice([1.0, -1.0, 0.0, 38.0, 12_000.0, -123_456.5, 1e16, rng.normal()]))
        low, high = (
            value - float(rng.choice([0.0, rng.exponential()])),
            value + float(rng.choice([0.0, 1.0])),
        )
        facts = (
            names | scaling | {"today": float(rng.choice([value, 7.0])), "value": value, "low": low}
        )
        facts |= {"high": high, "unit": [str(u) for u in rng.choice(UNITS, 2)]}
        facts["end"] = str(rng.choice(["", "low", "high"]))
        return facts, [
            np.array([(v - scaling["offset"]) / scaling["scale"]]) for v in (low, value, high)
        ]
    labels = [str(w) for w in rng.choice(WORDS, int(rng.integers(2, 5)), replace=False)]
    today, place = str(rng.choice(labels)), int(rng.integers(len(labels)))
    facts = names | {"labels": labels, "today": today, "value": labels[place]}
    if kind == 1:
        first = int(rng.integers(2))
        return facts | {"first": first}, [np.eye(len(labels))[place][first:]] * 3
    numbers = [float(n) for n in np.sort(rng.normal(size=len(labels)))]
    code = np.array([(numbers[place] - scaling["offset"]) / scaling["scale"]])
    return facts | scaling | {"numbers": numbers}, [code] * 3


def stated_changes(case, rng, count):
    """Changed statements, with the certificate as it is."""
    facts = json.loads(case.text)
    places = [("statement", *path) for path in paths(facts["statement"]) if path]
    for _ in range(count):
        path = places[int(rng.integers(len(places)))]
        value = _at(facts, path)
        if isinstance(value, bool):
            new = [not value, 1, None]
        elif isinstance(value, int | float):
            new = _numbers(rng, value)
        elif isinstance(value, str):
            new = [
                *WORDS,
                *UNITS,
                "low",
                "high",
                value + " ",
                value[:-1],
                "a\u202eb",
                "\ud800",
                "x" * 201,
            ]
        else:
            new = _structures(rng, value)
        which = new[int(rng.integers(len(new)))]
        yield case.changed(f"{path} {which!r:.40}", json.dumps(_put(facts, path, which)))


def _fixed(rng):
    net = pp.Network(
        [
            (np.eye(3), None),
            ([[0.0, 0.0, 0.0], [1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]], [0.0, 0.5, 0.5]),
        ],
        scale=[1.0, 1.0, 2.0],
    )
    one = pp.Network([(rng.normal(size=(2, 2)), [0.1, 0.2]), ([[0.5, 0.25]], [0.25])])
    low, high = np.array([0.0, 0.0, 0.5]), np.array([1.0, 1.0, 0.5])
    two = Choice(np.array([1]), np.array([[0.0], [1.0]]))
    pairs = [
        (net, 0, [Space.of(low, high, [two])]),
        (one, 0, [Space.of(np.zeros(2), np.array([1.0, 0.5]))]),
    ]
    for network, target, spaces in pairs:
        ball = pp.Shifts.of(network, 0.01)
        for shifts in (ball, pp.Shifts(ball.low, ball.high)):
            refusal = FixedPredictionSearch(network, shifts, target)
            trees = refusal.prove(spaces)
            if trees is not None:
                text = refusal.certificate(trees).text
                yield Case("fixed", text.encode(), *_given(network, shifts))


# -- changed ones ----------------------------------------------------------------------------------

ODD = [
    "0", "-0", "-0.0", "0.0", "1", "1.0", "-1", "0.5", "1e0", "1E+2", "2e-1", "5e-324", "-5e-324",
    "2.2250738585072011e-308", "2e-324", "3e-324", "1e308", "1.7976931348623157e308",
    "1.7976931348623159e308", "1e309", "-1e400", "1e99999999999", "1e-99999999999",
    "9007199254740992", "9007199254740993", "9007199254740993.0", "-9007199254740994",
    str(2**1000), str(2**1000 + 1), str(10**308), str(2**1024), "1" * 400, "1" * 5000,
    "0." + "3" * 800, "0.5" + "0" * 900 + "1", "NaN", "Infinity", "-Infinity", "nan", "inf",
    '"NaN"', '"1"', '"0.5"', '"Infinity"', '""', "true", "false", "null", "[]", "{}", "[0.5]",
    "[[0.5]]", '{"lower":[]}', "01", "1.", ".5", "+1", "0x10", "1_000", "1e", "--1", "- 1",
    "\u0661", "1\u0000", "[1,]", "'a'", "[" * 40 + "]" * 40, "[" * 3000 + "]" * 3000,
    '{"__proto__":1}', '"\\ud800"', '"\\u0072obust"', '"\\u72"', '"\\x41"', '"a\tb"', "tru",
    "nulll",
]  # fmt: skip
"""Values for any field, as they may stand in a file."""

MARK = "<<here>>"


def _at(facts, path):
    for key in path:
        facts = facts[key]
    return facts


def _put(facts, path, value):
    changed = copy.deepcopy(facts)
    _at(changed, path[:-1])[path[-1]] = value
    return changed


def _numbers(rng, value):
    """Numbers beside a number: by an ulp, by a bit of it, by its sign, as another decimal of it."""
    if isinstance(value, int):
        return [value + 1, value - 1, -value, float(value), value + 2**60]
    with np.errstate(all="ignore"):
        return [
            float(np.nextafter(value, math.inf)),
            float(np.nextafter(value, -math.inf)),
            -value,
            value * 0.5,
            value * (1.0 + 2.0 ** float(rng.integers(-50, 0))),
            value + float(rng.normal()) * 10.0 ** float(rng.integers(-18, 2)),
            round(value, int(rng.integers(0, 6))),
            int(value) if abs(value) < 1e300 else value,
        ]


def _structures(rng, value):
    """Other lists and objects in the place of one."""
    if isinstance(value, list):
        more = copy.deepcopy(value[-1]) if value else 0
        shuffled = [value[i] for i in rng.permutation(len(value))]
        return [value[:-1], value[1:], [*value, more], value[::-1], shuffled, [value], {}, []]
    keys = list(value)
    dropped = [{k: v for k, v in value.items() if k != key} for key in keys]
    leaves = [{"gamma": [[1, 0, 0.5]]}, {"lower": [[1, 0, 0.25], [1, 0, 0.75]]}]
    leaves.append({"gamma": [[1, 0, 1e300], [1, 0, -0.0]]})
    return [*dropped, {**value, "more": 1}, {**value, "": None}, {}, [], *leaves]


def _texts(rng, value):
    if not value:
        return ["robust"]
    n = int(rng.integers(len(value)))
    other = chr(ord(value[n]) ^ int(rng.choice([1, 2, 32])))
    words = ("robust", "not robust", "proplace-certificate-1", "proplace-certificate-2")
    return [
        value[:n] + other + value[n + 1 :],
        value[:-1],
        value + " ",
        value.upper(),
        *words,
        "proplace-certificate-3",
        "proplace-bundle-1",
        "proplace-fixed-1",
    ]


def changed_cases(case, rng, count):
    """So many certificates with something changed, of all kinds."""
    facts = json.loads(case.text)
    places = [path for path in paths(facts) if path]
    for _ in range(count):
        path = places[int(rng.integers(len(places)))]
        if rng.random() < 0.35:  # a field of its own right, not one number of very many
            path = path[: int(rng.integers(1, 3))]
        value, how = _at(facts, path), rng.random()
        if how < 0.45 and isinstance(value, int | float) and not isinstance(value, bool):
            new = _numbers(rng, value)
        elif how < 0.5 and value is not None and not isinstance(value, int | float | str):
            new = _structures(rng, value)
        elif how < 0.5 and isinstance(value, str):
            new = _texts(rng, value)
        elif how < 0.85:
            odd = ODD[int(rng.integers(len(ODD)))]
            text = json.dumps(_put(facts, path, MARK)).replace(f'"{MARK}"', odd)
            yield case.changed(f"{path} {odd[:40]}", text)
            continue
        else:
            yield case.changed("text", _damaged(rng, case.text.decode()))
            continue
        which = new[int(rng.integers(len(new)))]
        if path == ("trees",) and isinstance(which, list) and len(which) > 50:
            continue
        yield case.changed(f"{path} {which!r:.40}", json.dumps(_put(facts, path, which)))


def _damaged(rng, text):
    """The text of a certificate as something else: JSON, or not quite."""
    n = int(rng.integers(len(text) + 1))
    sign = chr(int(rng.choice([*b' ,:"\\[]{}019-+.eEtfn\t\n', 0, 7, 127, 0xE9, 0x2028, 0xFEFF])))
    first = text[: text.index(":")] + ':"x",'
    return {
        0: lambda: text[:n],
        1: lambda: text[:n] + sign + text[n:],
        2: lambda: text[:n] + sign + text[n + 1 :],
        3: lambda: first + text[1:],  # the first field twice
        4: lambda: text[:-1] + "," + text[1:],  # all of them
        5: lambda: text.encode("utf-16" if n % 2 else "utf-32"),
        6: lambda: b"\xef\xbb\xbf" + text.encode(),
        7: lambda: text + " \n\t\r",
        8: lambda: json.dumps(json.loads(text), indent=2),
        9: lambda: text + "\u00a0",
        10: lambda: text.encode()[:n] + bytes([int(rng.integers(128, 256))]) + text.encode()[n:],
        11: lambda: json.dumps({"format": "proplace-bundle-1", "certificates": [json.loads(text)]}),
        12: lambda: json.dumps([json.loads(text)]),
        13: lambda: text.replace("e", "\\u0065", 1),
        14: lambda: text.replace("0.", "0.0", 1),
        15: lambda: text[:n] + text[n + 1 :],
    }[int(rng.integers(16))]()


def _change_multipliers(rng, facts):
    """Other slopes, multipliers and splits, which prove something as well."""
    for name in ("lower", "upper"):
        for row in facts[name] if rng.random() < 0.7 else []:
            for k in range(len(row)):
                if rng.random() < 0.3:
                    row[k] = float(rng.choice([0.0, 1.0, rng.uniform(), 2.0**-300]))
    facts["tighten"] = bool(rng.integers(2))
    widths = [len(row) for row in facts["lower"]]
    for tree in facts["trees"]:
        for n, node in enumerate(tree):
            if isinstance(node, dict) and widths and rng.random() < 0.6:
                i = int(rng.integers(len(widths)))
                at = [i + 1, int(rng.integers(widths[i]))]
                tree[n] = {"gamma": [[*at, float(rng.normal())]], "lower": [[*at, 0.375]]}
        if widths and len(tree) == 1 and rng.random() < 0.4:
            i = int(rng.integers(len(widths)))
            at = [i + 1, int(rng.integers(widths[i]))]
            sides = [{"gamma": [[*at, float(rng.normal())]]} for _ in range(2)]
            tree[:] = [at, *(sides if rng.random() < 0.7 else (tree[0], tree[0]))]


def tight_cases(case, rng):
    """The largest margin that a proof reaches, and the next double, with random multipliers."""
    facts = json.loads(case.text)
    if facts.get("verdict") != "robust":
        return
    _change_multipliers(rng, facts)
    for margin in margins_around(case, facts):
        yield case.changed(f"tight {margin!r}", json.dumps({**facts, "margin": margin}))


def margins_around(case, facts):
    """The largest margin for which a proof is accepted, and the next double. Empty if there is none."""

    def good(margin):
        return accepted(case.changed("", json.dumps({**facts, "margin": margin})))

    size = 2.0**-30  # it is likely to be near the one that was proved
    low = high = facts["margin"]
    while not good(low):
        low, size = low - size, size * 64.0
        if size > 1e12:
            return []
    size = 2.0**-30
    while good(high) and size <= 1e12:
        high, size = high + size, size * 64.0
    while (middle := low + (high - low) / 2.0) not in (low, high):
        low, high = (middle, high) if good(middle) else (low, middle)
    return [low, high]


def limited_cases(case):
    """As much work as the check takes, and a little less: by which the estimates must agree."""
    if not accepted(case):
        return
    low, high = 0, checker.MAX_WORK
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if accepted(replace(case, most=middle)) else (middle + 1, high)
    yield replace(case, most=low)
    yield replace(case, most=low - 1)


def _around(x):
    return [math.nextafter(x, -math.inf), x, math.nextafter(x, math.inf)]


def demands_around(case, rng):
    """Demands of exactly the proved statement, a little more and a little less, and others."""
    found = checker.check_all(*_given_to(case))
    said = next((p.statement for p in (found, *found.parts) if p.statement is not None), None)
    if said is None:
        return []
    known = {"input": said.input, "shifts": said.shifts, "target": said.target}
    low, high = said.ends
    near = [{"margin": x} for x in _around(said.margin)]
    near += [{"target": n} for n in range(3)] + [{"shifts": said.shifts or "0" * 64}, known]
    near += [{"shifts": "f" * 64}, {"input": said.input[:-1]}, {"input": [*said.input, 0.0]}]
    for name, end in (("input", said.input), ("low", low), ("high", high)):
        near.append({name: [-x + 0.0 if x == 0.0 else x for x in end]})
        for j in range(len(end)):
            near += [{name: [*end[:j], x, *end[j + 1 :]]} for x in _around(end[j])]
    picked = [near[int(n)] for n in rng.permutation(len(near))[:8]]
    picked += [{"delta": x} for x in _deltas(case, said)]
    picked += [{"digest": hashlib.sha256(case.text + end).hexdigest()} for end in (b"", b" ")]
    return [checker.Demand(**one) for one in picked]


def _given_to(case):
    networks = [documents.parameters(net) for net in case.networks]
    return case.text, networks, [documents.parameters_of_shifts(one) for one in case.boxes]


def _deltas(case, said):
    """The largest delta that is proved, and the doubles beside it."""
    if said.delta:
        return [*_around(min(x for pair in said.delta for x in pair)), 0.0, -1.0]
    net = next(n for n in case.networks if documents.digest(n) == said.network)
    box = next(b for b in case.boxes if b.digest == said.shifts)
    rooms = [
        min(Fraction(float(v)) - Fraction(float(a)), Fraction(float(b)) - Fraction(float(v)))
        for layer, down, up in zip(net.layers, box.low.layers, box.high.layers, strict=True)
        for x, y, z in ((layer.W, down.W, up.W), (layer.b, down.b, up.b))
        if x is not None
        for v, a, b in zip(x.flat, y.flat, z.flat, strict=True)
    ]
    return [*_around(float(min(rooms))), 0.0, 1.0]


def _lopsided(rng):
    """Proofs about boxes around their networks, wider on one side than on the other."""
    for hidden in range(4):
        net, _, X, target = _problem(rng, hidden, "delta")
        net = raised(net, target, 50.0)

        def moved(sign, net=net):
            def by(values):
                return (
                    None if values is None else values + sign * rng.uniform(0.01, 0.1, values.shape)
                )

            return net.with_layers([(by(layer.W), by(layer.b)) for layer in net.layers])

        shifts = pp.Shifts(moved(-1.0), moved(1.0))
        report = pp.certify(net, X[:1], shifts, target, margin=0.0, certificates=True)
        yield Case(f"lopsided {hidden}", report.certificates[0].text.encode(), (net,), (shifts,))


def demand_cases(rng):
    """True certificates of all kinds, each with demands around what it proves."""
    for case in itertools.chain(true_cases(rng), _lopsided(rng)):
        yield from (replace(case, demand=demand) for demand in demands_around(case, rng))


# -- the checkers ----------------------------------------------------------------------------------


def python_verdict(case):
    """The result of checker.py: accepted or not, and the proved statement or the failure."""
    usual = checker.MAX_WORK
    try:
        checker.MAX_WORK = usual if case.most is None else case.most
        found = checker.check_all(*_given_to(case), case.demand)
    finally:
        checker.MAX_WORK = usual
    return found.accepted, found.sentence + found.reason


def accepted(case):
    return python_verdict(case)[0]


def javascript_verdicts(cases, folder, page=None):
    """The result of the page's checker for each case, under node."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "verify.html" if page is None else page
    if not page.exists():
        verify.write_page(page)
    numbers, models, lines = {}, [], []
    for case in cases:
        for thing in (*case.networks, *case.boxes):
            if id(thing) not in numbers:
                numbers[id(thing)] = len(models)
                models.append(folder / f"{len(models)}.npz")
                thing.save(models[-1])
        given = (
            ",".join(str(numbers[id(x)]) for x in some) for some in (case.networks, case.boxes)
        )
        most = "" if case.most is None else str(case.most)
        asked = {name: x for name, x in case.demand._asdict().items() if x is not None}
        demand = json.dumps(asked) if asked else ""
        lines.append("|".join((*given, base64.b64encode(case.text).decode(), most, demand)))
    (folder / "models.txt").write_text("\n".join(map(str, models)))
    (folder / "cases.txt").write_text("\n".join(lines))
    out = node(page, folder / "models.txt", folder / "cases.txt")
    return [tuple(found) for found in out[len(models) :]]


def node(*words):
    """Lines of JSON from the script that runs the checker."""
    done = subprocess.run(
        [NODE, str(RUN), *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def all_cases(seed, changes):
    """True certificates of a seed, each with so many changed ones."""
    rng = np.random.default_rng(seed)
    for case in true_cases(rng):
        yield case
        yield from changed_cases(case, rng, changes)
        if rng.random() < 0.5:
            yield from tight_cases(case, rng)
        if rng.random() < 0.3:
            yield from limited_cases(case)


def differences(cases, folder):
    """Cases about which the checkers do not agree, and how many were accepted and rejected."""
    with ThreadPoolExecutor(1) as pool:  # both at once
        mine = pool.submit(javascript_verdicts, cases, folder)
        all_theirs = [python_verdict(case) for case in cases]
    bad, count = [], Counter()
    for case, (good, line), (theirs, reason) in zip(cases, mine.result(), all_theirs, strict=True):
        count[theirs] += 1
        if good != theirs or (good and line != reason):
            bad.append((case, (theirs, reason), (good, line)))
    return bad, count


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--changes", type=int, default=60, help="changed ones of each certificate")
    options = parser.parse_args()
    total, failed = Counter(), 0
    for seed in range(options.first, options.first + options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            bad, count = differences([*all_cases(seed, options.changes)], Path(folder))
        total += count
        failed += len(bad)
        for case, *verdicts in bad[:5]:
            print(case.kind, case.text[:300], *verdicts, sep="\n  ")
        print(f"seed {seed}: {count[True]} accepted, {count[False]} rejected, {len(bad)} differ")
    print(f"{sum(total.values())} certificates, {total[True]} accepted, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
