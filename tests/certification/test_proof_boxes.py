"""Certificates about boxes of networks: everything proved is accepted, everything accepted is true."""

from __future__ import annotations

import io
import itertools
import json
import math
import subprocess
import sys
import zipfile
from fractions import Fraction as Q
from pathlib import Path

import numpy as np
import pytest

import exactly
import proplace as pp
from changed_proofs import mutants
from oracles import accepted_rows, random_box, random_case
from proplace.certification import checker, proof
from proplace.certification.batched_bnb import Nodes
from proplace.certification.bounds import Abstraction, chords, start_slopes
from proplace.certification.certificates import Evidence
from proplace.certification.engine import Rows, traced_least_values
from proplace.certification.rounding import Enclosure
from proplace.core.errors import CertificateError

OLD = json.loads((Path(__file__).parent / "files" / "certificates_0_1.json").read_text())


def problem(rng, hidden, *, matrix=False, **options):
    """A network, a box of networks of its shape, rows, and a class."""
    case = random_case(rng, hidden, **{"rows": 1, **options})
    net, X = case.net, case.X
    if matrix:
        inputs = int(rng.integers(1, 4))
        front = {
            "matrix": rng.normal(size=(net.inputs, inputs)),
            "offset": rng.normal(size=net.inputs),
        }
        net = pp.Network([(layer.W, layer.b) for layer in net.layers], **front)
        X = rng.normal(size=(len(X), inputs))
    return net, random_box(rng, net), X, case.target


def whole_numbers(rng, hidden, **options):
    """The same with parameters, ends and inputs multiples of small powers of 2: margins are floats.

    Upper ends have more digits than lower ones.
    """
    net, box, X, target = problem(rng, hidden, width=3, inputs=2, **options)

    def snapped(network, snap, n):
        return pp.Network(
            [
                (snap(n * p.W) / n, None if p.b is None else snap(n * p.b) / n)
                for p in network.layers
            ]
        )

    box = pp.Shifts(snapped(box.low, np.floor, 8), snapped(box.high, np.ceil, 512))
    return snapped(net, np.floor, 8), box, np.round(8 * X) / 8, target


def linear_proof(net, box, x, target, margin):
    """A claim whose proof needs no multipliers: at most one hidden layer."""
    facts = proof.claim(proof.digest(net), box, np.asarray(x), target, margin, "robust")
    trees = [[{}]] * max(1, net.outputs - 1)
    return facts | {"tighten": False, "lower": [], "upper": [], "trees": trees}


def checked(net, box, facts, demand=checker.Demand()):  # noqa: B008
    given = proof.parameters(net), demand, proof.parameters_of_shifts(box)
    return checker.check(json.dumps(facts), *given)


# -- what the producer makes is accepted -----------------------------------------------------------


@pytest.mark.parametrize("matrix", [False, True])
@pytest.mark.parametrize("hidden", range(5))
def test_every_verdict_has_a_certificate_that_is_accepted(hidden, matrix):
    rng = np.random.default_rng([1, hidden, matrix])
    found = {"robust": 0, "not robust": 0}
    for _ in range(40):
        net, box, X, target = problem(rng, hidden, matrix=matrix, rows=2)
        plain = pp.certify(net, X, box, target)
        report = pp.certify(net, X, box, target, certificates=True)
        np.testing.assert_array_equal(report.robust, plain.robust)
        assert not report.undecided.any()
        for robust, certificate in zip(plain.robust, report.certificates, strict=True):
            assert certificate.verdict == ("robust" if robust else "not robust")
            facts = certificate.facts
            assert (facts["format"], facts["shifts"]) == (checker.FORMAT_BOX, box.digest)
            assert "delta" not in facts
            verdict = certificate.check(net, box)
            assert verdict.accepted, verdict.reason
            assert exactly.is_true(net, facts, rng, box)
            found[certificate.verdict] += 1
    assert min(found.values()) >= 4


@pytest.mark.parametrize("sizes", [(6, 20, 20, 1), (6, 12, 12, 12, 1), (6, 15, 15, 3)])
def test_rows_near_the_margin_need_trees_and_get_them(sizes):
    """Margins just below each row's worst one: the bounds do not reach them without splits."""
    rng = np.random.default_rng([2, *sizes])
    net, X = accepted_rows(5, sizes, 40)
    ends = [
        [(p.W + t * rng.uniform(0.0, 0.06, p.W.shape), p.b) for p in net.layers] for t in (-1, 1)
    ]
    box = pp.Shifts(*(net.with_layers(pairs) for pairs in ends))
    lower, splits = pp.certify(net, X[:8], box, exact_margin=True).lower, 0
    for x, worst in zip(X[:8], lower, strict=True):
        for away in (-1e-6, 1e-6):
            report = pp.certify(net, x, box, margin=float(worst) + away, certificates=True)
            assert report.robust[0] == (away < 0)
            certificate = report.certificates[0]
            assert certificate.check(net, box).accepted
            trees = certificate.facts.get("trees", [])
            splits += sum(isinstance(node, list) for tree in trees for node in tree)
    assert splits >= 5


@pytest.mark.parametrize("hidden", [0, 1])
@pytest.mark.parametrize("certificates", [False, True])
def test_the_last_bit_is_decided_by_a_proof(hidden, certificates):
    """The worst margin itself and its two neighbours among the floats."""
    rng = np.random.default_rng([3, hidden])
    decided = 0
    for _ in range(60):
        net, box, X, target = problem(rng, hidden)
        worst = exactly.worst(net, X[0], box, target)
        near = float(worst)
        for margin in (near, math.nextafter(near, math.inf), math.nextafter(near, -math.inf)):
            report = pp.certify(net, X, box, target, margin=margin, certificates=certificates)
            if not report.undecided[0]:
                decided += 1
                assert report.robust[0] == (worst >= Q(margin))
    assert decided >= 90


@pytest.mark.parametrize("hidden", [0, 1])
def test_ties_are_exact(hidden):
    """A margin that is just kept is kept: one float more is not."""
    rng = np.random.default_rng([4, hidden])
    for _ in range(60):
        net, box, X, target = whole_numbers(rng, hidden)
        x = X[0]
        worst = float(exactly.worst(net, x, box, target))
        assert Q(worst) == exactly.worst(net, x, box, target)
        assert checked(net, box, linear_proof(net, box, x, target, worst)).accepted
        above = math.nextafter(worst, math.inf)
        assert not checked(net, box, linear_proof(net, box, x, target, above)).accepted
        shifted = pp.worst_case(net, x, box, target).network
        fields = {"shifted": proof.shifted_fields(shifted)}
        for margin in (worst, above):
            facts = proof.claim(proof.digest(net), box, x, target, margin, "not robust") | fields
            assert checked(net, box, facts).accepted == (margin > worst)


def test_all_corners_of_a_box_agree_with_the_checker():
    """Every corner in rational arithmetic: behind one hidden layer the worst network is one of them."""
    rng = np.random.default_rng(5)
    tried = 0
    while tried < 12:
        hidden = int(rng.integers(2))
        net, box, X, target = whole_numbers(rng, hidden, outputs=int(rng.choice([1, 2])))
        ends = exactly.intervals(net, box)
        flat = [
            [*zip(itertools.chain(*W, b), itertools.chain(*V, c), strict=True)]
            for W, V, b, c in ends
        ]
        moving = sum(low != high for layer in flat for low, high in layer)
        if not 3 <= moving <= 9:
            continue
        tried += 1
        u, best = exactly.seen(net, X[0]), None
        sides = [{low, high} for layer in flat for low, high in layer]
        for corner in itertools.product(*sides):
            rest, layers = [*corner], []
            for W, *_ in ends:
                rows = [[rest.pop(0) for _ in row] for row in W]
                layers.append((rows, [rest.pop(0) for _ in W]))
            value = exactly.margin(layers, u, target)
            best = value if best is None else min(best, value)
        assert best == exactly.worst(net, X[0], box, target)
        assert checked(net, box, linear_proof(net, box, X[0], target, float(best))).accepted
        above = math.nextafter(float(best), math.inf)
        assert not checked(net, box, linear_proof(net, box, X[0], target, above)).accepted


def test_evidence_about_a_box():
    rng = np.random.default_rng(6)
    net, box, X, target = problem(rng, 2)
    rows = Rows(net.transform(X), np.array([-np.inf]))
    found, trace = traced_least_values(Abstraction(net, box), rows, net.objectives(target))
    evidence = Evidence(X[0], float(found.lower[0]), float(found.upper[0]), trace)
    made = evidence.certificate(net, box, target, float(found.lower[0]) - 1.0)
    assert made.facts["shifts"] == box.digest
    assert made.check(net, box).accepted


def test_certificates_of_the_first_release_are_accepted():
    """Written by 0.1 with its own code; they mean what they meant."""
    assert len(OLD) >= 10
    for item in OLD:
        given = item["network"]
        network = checker.Parameters(
            [(W, b) for W, b in given["layers"]], given["scale"], given["shift"]
        )
        net = pp.Network(given["layers"], scale=given["scale"], shift=given["shift"])
        for text in item["certificates"]:
            facts = json.loads(text)
            verdict = checker.check(text, network)
            assert verdict.accepted, verdict.reason
            assert verdict == pp.Certificate(text).check(net)
            said = facts["verdict"], facts["target"], facts["delta"], facts["input"]
            about = None, True, facts["network"], None, None, None
            assert verdict.statement == (*said, facts["margin"], *about)
            assert exactly.is_true(net, facts, np.random.default_rng(0))
            for margin in (facts["margin"] + 100.0, facts["margin"] - 100.0):
                wrong = (margin > facts["margin"]) == (facts["verdict"] == "robust")
                mutant = json.dumps({**facts, "margin": margin})
                assert checker.check(mutant, network).accepted != wrong


# -- what is changed is rejected, or still true ----------------------------------------------------


@pytest.mark.parametrize("hidden", range(5))
def test_a_changed_certificate_is_rejected_or_still_true(hidden):
    rng = np.random.default_rng([7, hidden])
    tried = accepted = 0
    for _ in range(3 if hidden < 3 else 1):
        net, box, X, target = problem(rng, hidden, width=2, inputs=2, outputs=1 + 2 * (hidden % 2))
        worst = float(pp.certify(net, X, box, target, exact_margin=True).lower[0])
        for margin in (worst - 0.01, worst + 0.01):
            report = pp.certify(net, X, box, target, margin=margin, certificates=True)
            for path, mutant in mutants(report.certificates[0].facts):
                tried += 1
                if checked(net, box, mutant).accepted:
                    accepted += 1
                    assert path[0] not in ("network", "shifts", "format", "verdict"), path
                    assert exactly.is_true(net, mutant, rng, box), (path, mutant)
    assert tried > 200
    assert accepted  # some changes are harmless: a smaller margin, another slope


@pytest.mark.parametrize("hidden", range(4))
def test_a_certificate_about_another_box_is_rejected_or_true(hidden):
    """Ends are moved, and the certificate names the new box: then it must be true of that one."""
    rng = np.random.default_rng([8, hidden])
    wrong = right = 0
    for _ in range(25):
        net, box, X, target = problem(rng, hidden, width=2, inputs=2)
        worst = float(pp.certify(net, X, box, target, exact_margin=True).lower[0])
        for margin in (worst - 1e-3, worst + 1e-3):
            report = pp.certify(net, X, box, target, margin=margin, certificates=True)
            facts = report.certificates[0].facts
            for _ in range(6):
                other = moved(rng, box)
                assert not checked(net, other, facts).accepted or other.digest == box.digest
                forged = {**facts, "shifts": other.digest}
                if checked(net, other, forged).accepted:
                    right += 1
                    assert exactly.is_true(net, forged, rng, other)
                else:
                    wrong += 1
    assert min(wrong, right) > 20


def moved(rng, box):
    """A box in which a few ends lie elsewhere."""
    ends = []
    for network in (box.low, box.high):
        ends.append([[p.W.copy(), None if p.b is None else p.b.copy()] for p in network.layers])
    for _ in range(rng.integers(1, 4)):
        i, part = int(rng.integers(len(ends[0]))), int(rng.integers(2))
        low, high = ends[0][i][part], ends[1][i][part]
        if low is None:
            continue
        at = tuple(rng.integers(size) for size in low.shape)
        values = sorted([low[at], high[at] + rng.normal() * rng.choice([1e-3, 0.1, 1.0])])
        low[at], high[at] = values
    return pp.Shifts(*(box.low.with_layers(pairs) for pairs in ends))


def test_a_weight_one_float_outside_the_box_is_outside():
    """Each end of each parameter, of a network that is as bad as it gets."""
    rng = np.random.default_rng(9)
    for hidden in (0, 1, 2):
        net, box, X, target = problem(rng, hidden, width=2, inputs=2)
        facts = proof.claim(proof.digest(net), box, X[0], target, 1e6, "not robust")
        for end, way in ((box.low, -math.inf), (box.high, math.inf)):
            fields = proof.shifted_fields(end)
            assert checked(net, box, facts | {"shifted": fields}).accepted
            for i, layer in enumerate(fields):
                for row in [*layer["W"], *([layer["b"]] if layer["b"] else [])]:
                    for k, value in enumerate(row):
                        row[k] = math.nextafter(value, way)
                        verdict = checked(net, box, facts | {"shifted": fields})
                        assert f"of layer {i} lies outside the box" in verdict.reason
                        row[k] = value


# -- boxes that do not fit -------------------------------------------------------------------------


def test_the_box_is_needed_and_must_be_the_one():
    rng = np.random.default_rng(10)
    net, box, X, target = problem(rng, 1, outputs=1)
    certificate = pp.certify(net, X, box, target, certificates=True).certificates[0]
    assert certificate.check(net, box).accepted
    with pytest.raises(CertificateError, match=r"certificate\.check\(net, shifts\)"):
        certificate.check(net)
    assert "shifts file is needed" in checker.check(certificate.text, proof.parameters(net)).reason
    wider = box.scaled(1.01)
    assert "another box of shifts" in certificate.check(net, wider).reason
    other = pp.Network([(p.W, p.b) for p in net.layers], scale=np.full(net.inputs, 3.0))
    assert "another network" in certificate.check(other, box).reason


def test_a_box_of_another_shape_or_input_map_is_refused():
    def box(low, high=None, **front):
        return pp.Shifts(pp.Network(low, **front), pp.Network(high or low, **front))

    W, b = np.eye(2), np.zeros(2)
    last = (np.ones((1, 2)), np.zeros(1))
    net = pp.Network([(W, b), last], scale=[1.0, 2.0])
    good = box([(W, b), last], scale=[1.0, 2.0])
    facts = linear_proof(net, good, [1.0, 1.0], 1, -9.0)
    assert checked(net, good, facts).accepted
    for wrong in (
        box([(W, b), last]),
        box([(W, b), last], scale=[1.0, 2.5]),
        box([(W, b), last], scale=[1.0, 2.0], shift=[0.0, 0.0]),
        box([(W, None), last], scale=[1.0, 2.0]),
        box([(np.eye(2), b), (np.ones((1, 2)), None)], scale=[1.0, 2.0]),
        box([last], scale=[1.0, 2.0]),
        box([(W, b), (W, b), last], scale=[1.0, 2.0]),
        box([(np.ones((3, 2)), np.zeros(3)), (np.ones((1, 3)), [0.0])], scale=[1.0, 2.0]),
    ):
        verdict = checked(net, wrong, {**facts, "shifts": wrong.digest})
        assert "other shapes, biases or input maps" in verdict.reason
    ends = proof.parameters_of_shifts(good)
    for low, high in itertools.permutations(
        [ends.low, ends.high._replace(layers=[([[2.0]], None)])]
    ):
        uneven = checker.check(
            json.dumps(facts), proof.parameters(net), shifts=checker.Shifts(low, high)
        )
        assert "other shapes" in uneven.reason


def test_ends_that_cross_are_refused():
    net = pp.Network([([[1.0]], [0.0])])
    low, high = checker.Parameters([([[1.0]], [1.0])]), checker.Parameters([([[2.0]], [0.5])])
    crossed = checker.Shifts(low, high)
    facts = linear_proof(net, pp.Shifts(net, net), [1.0], 1, -9.0)
    facts["shifts"] = checker.digest(crossed)
    verdict = checker.check(json.dumps(facts), proof.parameters(net), shifts=crossed)
    assert "lies above its upper end" in verdict.reason


# -- what was proved -------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [True, False])
def test_the_statement_names_the_box_and_says_whether_the_network_lies_in_it(inside):
    net = pp.Network([([[1.0]], [0.25 if inside else 0.75])])
    box = pp.Shifts(pp.Network([([[1.0]], [0.0])]), pp.Network([([[1.5]], [0.5])]))
    certificate = pp.certify(net, [[1.0]], box, certificates=True).certificates[0]
    verdict = certificate.check(net, box)
    name = proof.digest(net)
    assert verdict.statement[:8] == ("robust", 1, [], [1.0], 0.0, box.digest, inside, name)
    itself = "lies in it" if inside else "does not lie in it"
    assert verdict.reason == (
        f"robust: every network of the box of shifts {box.digest} (the network itself {itself}) "
        "gives class 1 with a margin of at least 0.0 at input 1.0"
    )
    broken = pp.certify(net, [[1.0]], box, 0, certificates=True).certificates[0].check(net, box)
    assert broken.reason.startswith(f"not robust: a network of the box of shifts {box.digest} (")


def test_a_demanded_delta_is_met_by_a_box_that_holds_the_whole_ball():
    """Exactly: one float less of any end is too little, and rounding does not help."""
    third = 1.0 / 3.0
    net = pp.Network([([[third, -2.0]], [0.1]), ([[1.0], [0.5]], None)])
    box = pp.Shifts.of(net, 0.1)
    box = pp.Shifts(box.low, box.high)  # rounded outwards
    bounds = [
        [(np.array(p.W), None if p.b is None else np.array(p.b)) for p in end.layers]
        for end in (box.low, box.high)
    ]
    demand = checker.Demand(delta=0.1)

    def verdict(box, **wanted):
        demand = checker.Demand(**wanted)
        return checked(net, box, linear_proof(net, box, [0.5, 0.5], 1, -99.0), demand)

    assert verdict(box, delta=0.1).accepted
    assert verdict(box, delta=0.0).accepted
    for delta in (math.nextafter(0.1, 1.0) + 1e-15, math.inf, math.nan, -0.1):
        assert f"delta {delta!r} is demanded" in verdict(box, delta=delta).reason
    tight = 0
    for side, way in ((0, math.inf), (1, -math.inf)):
        for i, part in ((0, 0), (0, 1), (1, 0)):
            values = bounds[side][i][part]
            for at in np.ndindex(values.shape):
                old = values[at]
                while True:
                    values[at] = np.nextafter(values[at], way)
                    smaller = pp.Shifts(*(net.with_layers(pairs) for pairs in bounds))
                    centre = net.layers[i].W if part == 0 else net.layers[i].b
                    room = abs(Q(float(values[at])) - Q(float(centre[at])))
                    facts = linear_proof(net, smaller, [0.5, 0.5], 1, -99.0)
                    assert checked(net, smaller, facts, demand).accepted == (room >= Q(0.1))
                    if room < Q(0.1):
                        break
                values[at] = old
                tight += 1
    assert tight == 10
    away = pp.Shifts(pp.Network([([[5.0, 5.0]], [5.0]), ([[1.0], [0.5]], None)]), box.high.with_layers(
        [([[6.0, 6.0]], [6.0]), ([[1.0], [0.5]], None)]))  # fmt: skip
    assert not verdict(away, delta=0.0).accepted


def test_a_demanded_box_is_the_one_that_was_proved():
    rng = np.random.default_rng(11)
    net, box, X, target = problem(rng, 1)
    low = float(pp.certify(net, X, box, target, exact_margin=True).lower[0]) - 1.0
    facts = pp.certify(net, X, box, target, margin=low, certificates=True).certificates[0].facts
    assert checked(net, box, facts, checker.Demand(shifts=box.digest)).accepted
    wanted = checker.Demand(shifts="0" * 64)
    assert "the box of shifts '0000" in checked(net, box, facts, wanted).reason
    ball = pp.certify(net, X, 0.01, target, margin=-99.0, certificates=True).certificates[0]
    verdict = checker.check(ball.text, proof.parameters(net), checker.Demand(shifts=box.digest))
    assert not verdict.accepted
    assert "proved is only: robust: every network within delta" in verdict.reason


def test_a_given_box_must_lie_within_delta():
    """A certificate about a radius, checked for a box: the box must lie within it, exactly."""
    net = pp.Network([([[1.0, -1.0]], [0.5])])
    certificate = pp.certify(net, [[3.0, 1.0]], 0.125, certificates=True).certificates[0]
    assert certificate.check(net).accepted
    ball = pp.Shifts.of(net, 0.125)
    for shifts, covered in (
        (ball, True),
        (pp.Shifts.of(net, 0.0), True),
        (pp.Shifts(ball.low, ball.high), True),
        (pp.Shifts.of(net, 0.126), False),
        (pp.Shifts.of(net, [(0.125, 0.13)]), False),
        (pp.Shifts(ball.low, net.with_layers([([[1.125, -0.87]], [0.5])])), False),
        (pp.Shifts(net.with_layers([([[0.8, -1.0]], [0.5])]), ball.high), False),
        (pp.Shifts.of(net.with_layers([([[1.1, -1.0]], [0.5])]), 0.125), False),
    ):
        verdict = certificate.check(net, shifts)
        assert verdict.accepted == covered
        assert covered or "does not cover" in verdict.reason


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["low", "high"])
@pytest.mark.parametrize("part", ["weight", "bias"])
def test_ends_that_are_cut_are_cut_outwards(end, part):
    """2^-110 beside 1 is cut to units of 2^-96: what is only nearly true must not be proved."""
    for tiny, other in itertools.product((2.0**-110, -(2.0**-110)), (0.0, 2.0**-90, -(2.0**-90))):
        ends = sorted([tiny, other])
        values = [ends[0], ends[0]] if end == "low" else [ends[1], ends[1]]
        pairs = [([[1.0, v]], [0.0]) if part == "weight" else ([[1.0, 0.0]], [v]) for v in values]
        net = pp.Network([pairs[0]])
        box = pp.Shifts(*(pp.Network([pair]) for pair in pairs))
        for x, target in itertools.product(([0.0, 1.0], [0.0, -1.0]), (0, 1)):
            worst = exactly.worst(net, x, box, target)
            for margin in (2.0**-100, 2.0**-96, 0.0, -(2.0**-111), float(worst)):
                if Q(margin) > worst:
                    facts = linear_proof(net, box, x, target, margin)
                    assert not checked(net, box, facts).accepted
            low = linear_proof(net, box, x, target, float(worst) - 2.0**-94)
            assert checked(net, box, low).accepted  # the loss is small


def sized(rng, shape):
    """Factors of all kinds: alike, of very different size, denormal, huge."""
    kinds = (
        lambda: np.ones(shape),
        lambda: 10.0 ** rng.integers(-12, 12, shape),
        lambda: np.full(shape, 10.0 ** rng.integers(-300, 100)),
        lambda: 2.0 ** rng.choice([0, -60, -90, -96, -100, -110, -200, -1060], shape),
        lambda: 2.0 ** rng.choice([0.0, 30.0, 100.0], shape),
        lambda: np.where(rng.random(shape) < 0.3, 5e-324, 1.0),
        lambda: 10.0 ** rng.integers(-40, 3, shape),
    )
    return kinds[int(rng.integers(len(kinds)))]()


def extreme(rng, hidden):
    """A problem with parameters of extreme sizes, and a network far from its box."""
    net, box, X, target = problem(rng, hidden, width=4)
    ends, base = ([], []), []
    for low, high, layer in zip(box.low.layers, box.high.layers, net.layers, strict=True):
        f, g = sized(rng, low.W.shape), sized(rng, len(low.W))
        digits = int(rng.choice([1, 17]))
        W = np.sort([np.round(low.W, digits) * f, np.round(high.W, digits) * f], axis=0)
        b = np.sort([np.round(low.bias, digits) * g, np.round(high.bias, digits) * g], axis=0)
        for side in (0, 1):
            ends[side].append((W[side], None if low.b is None else b[side]))
        base.append((layer.W * sized(rng, layer.W.shape), layer.b))
    box = pp.Shifts(*(net.with_layers(pairs) for pairs in ends))
    return net.with_layers(base), box, X * rng.choice([1.0, 1e-9, 2.0**40]), target


def cancelling(rng, hidden):
    """Large terms that cancel: what a sum in floats has too much is more than its own last bit."""
    sizes, layers = [int(rng.integers(5, 60)) * 2, *[20] * hidden, 1], []
    for n, m in itertools.pairwise(sizes):
        half = np.round(rng.normal(size=(m, n // 2)), 1) * 1e6
        W = np.hstack([half, -half])[:, rng.permutation(n)]
        reach = rng.choice([0.0, 0.1], (2, m, n)) * (rng.random((2, m, n)) < 0.1)
        layers.append([(W - reach[0], np.ones(m)), (W + reach[1], np.full(m, 1.1))])
    low, high = (pp.Network([pair[side] for pair in layers]) for side in (0, 1))
    x = np.full((1, sizes[0]), 1.0 / 3.0) * rng.choice([-1.0, 1.0])
    return low, pp.Shifts(low, high), x, int(rng.integers(2))


def random_leaves(rng, root):
    """Leaves of a small random tree with random multipliers."""
    widths = [level.L_min.shape[1] for level in root.preactivations]
    pick = None
    if widths and rng.random() < 0.6:
        i = int(rng.integers(len(widths)))
        pick = i, int(rng.integers(widths[i]))
    splits = [np.zeros((1 if pick is None else 2, n), np.int8) for n in widths]
    if pick is not None:
        splits[pick[0]][:, pick[1]] = -1, 1
    count = 1 if pick is None else 2
    alpha = [rng.choice([0.0, 1.0, rng.uniform()], size=(count, n)) for n in widths]
    gamma = [
        rng.normal(size=(count, n)) * 10.0 ** rng.integers(-20, 5, (count, n))
        * (rng.random((count, n)) < 0.2)
        for n in widths
    ]  # fmt: skip
    return Nodes(np.zeros(count, np.intp), splits, alpha, gamma)


def fast_bound(rng, net, box, X, target):
    """What the outward-rounded pass proves with some multipliers, and the certificate of it."""
    lower, upper, nodes, tighten = [], [], None, bool(rng.integers(2))
    with np.errstate(all="ignore"):
        if net.widths:
            root = Abstraction(net, box).interval_bounds(net.transform(X))
            lower = start_slopes(root)
            slopes = [np.clip(chords(level, None)[0], 0.0, 1.0) for level in root.preactivations]
            upper = [np.round(s, int(rng.choice([1, 4, 17]))) for s in slopes]
            nodes = random_leaves(rng, root)
        enclosure = Enclosure.of(net, box, X, lower, upper, tighten=tighten)
        values = [enclosure.bounds(c, nodes)[0].min() for c in net.objectives(target)]
    trees = [[{}] if nodes is None else proof.tree(nodes, [v[0] for v in lower]) for _ in values]
    margin = float(min(values))
    facts = proof.claim(proof.digest(net), box, X[0], target, margin, "robust")
    return facts | {
        "tighten": tighten,
        "lower": [layer[0].tolist() for layer in lower],
        "upper": [layer[0].tolist() for layer in upper],
        "trees": trees,
    }


@pytest.mark.parametrize("hidden", range(4))
def test_no_accepted_certificate_of_an_extreme_box_is_false(hidden):
    """Also where floats overflow or lose everything: what has a verdict is true, by exact arithmetic."""
    rng = np.random.default_rng([18, hidden])
    decided = 0
    for _ in range(25):
        net, box, X, target = extreme(rng, hidden)
        for margin in (0.0, 1e-9, -1e-9):
            with np.errstate(all="ignore"):
                report = pp.certify(net, X, box, target, margin=margin, certificates=True)
            certificate = report.certificates[0]
            assert (certificate is None) == report.undecided[0]
            if certificate is not None:
                decided += 1
                assert certificate.check(net, box).accepted
                assert (certificate.verdict == "robust") == report.robust[0]
                assert exactly.is_true(net, certificate.facts, rng, box)
                if hidden <= 1:
                    worst = exactly.worst(net, X[0], box, target)
                    assert report.robust[0] == (worst >= Q(margin))
    assert decided > 40


@pytest.mark.parametrize("kind", [extreme, cancelling])
@pytest.mark.parametrize("hidden", range(5))
def test_the_fast_bound_never_says_more_than_the_checker(kind, hidden):
    """Exact arithmetic proves the very float that the outward-rounded pass gave."""
    rng = np.random.default_rng([12, hidden])
    said = 0
    for _ in range(60 if kind is extreme else 8):
        net, box, X, target = kind(rng, hidden)
        facts = fast_bound(rng, net, box, X, target)
        if math.isfinite(facts["margin"]):
            verdict = checked(net, box, facts)
            assert verdict.accepted or "refused" in verdict.reason, verdict.reason
            said += verdict.accepted
    assert said >= (30 if kind is extreme else 5)


@pytest.mark.parametrize("hidden", range(5))
def test_the_fast_bound_is_nearly_as_good(hidden):
    rng = np.random.default_rng([13, hidden])
    for _ in range(15):
        net, box, X, target = problem(rng, hidden)
        facts = fast_bound(rng, net, box, X, target)
        facts["margin"] += 1e-9 * max(1.0, abs(facts["margin"])) * 1e6
        assert not checked(net, box, facts).accepted


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_ends_that_the_checker_cuts(depth):
    """Ends 2^-110 beside 1 are cut, so the pass must say less too; the network's own size is nothing."""
    rng = np.random.default_rng(14)
    row, one = np.array([[1.0, 2.0**-110]]), np.ones((1, 1))
    for place, size in itertools.product(range(depth), (1.0, 2.0**-500)):
        weights = [np.eye(2)] * place + [row] + [one] * (depth - 1 - place)
        ends = pp.Network([(W, np.zeros(len(W))) for W in weights])
        net = pp.Network([(size * W, np.zeros(len(W))) for W in weights])
        box = pp.Shifts(ends, ends)
        for x, target in itertools.product(([0.0, 2.0**40], [0.0, -(2.0**40)]), (0, 1)):
            for _ in range(3):
                facts = fast_bound(rng, net, box, np.array([x]), target)
                if facts["margin"] >= 0.0:
                    assert checked(net, box, {**facts, "margin": 0.0}).accepted
                assert checked(net, box, facts).accepted


@pytest.mark.parametrize("sizes", [(3, 4, 4, 1), (2, 3, 5, 4, 1), (2, 2, 3, 2, 3, 3), (30, 9, 1)])
def test_the_work_is_counted_before_it_is_done(monkeypatch, sizes):
    """Boxes and multipliers count: what is multiplied is at most what the limit was told."""
    rng = np.random.default_rng(sum(sizes))
    net = pp.Network(
        [(rng.normal(size=(m, n)), rng.normal(size=m)) for n, m in itertools.pairwise(sizes)]
    )
    box, inner = random_box(rng, net), sizes[2:-1]
    facts = proof.claim(proof.digest(net), box, rng.normal(size=sizes[0]), 1, -1e9, "robust")
    gamma = [[i + 1, k, 0.5] for i, n in enumerate(inner) for k in range(n)]
    tree = [[1, 0], {"gamma": gamma}, {"gamma": gamma}] if inner else [{}]
    facts |= {"tighten": True, "trees": [tree] * max(1, sizes[-1] - 1)}
    facts |= {name: [[0.5] * n for n in inner] for name in ("lower", "upper")}
    told, done = [], []
    integers, dot = checker._Claim.integers, checker._dot

    def watched(claim, more, D, fine, exact, cut):
        told.append(fine + exact)
        done.clear()
        integers(claim, more, D, fine, exact, cut)

    monkeypatch.setattr(checker._Claim, "integers", watched)
    monkeypatch.setattr(checker, "_dot", lambda a, b: done.append(len(a)) or dot(a, b))
    assert checked(net, box, facts).accepted
    assert sum(done) <= told[0] <= 20 * sum(done)


def test_multipliers_count_as_work(monkeypatch):
    """A neuron with a gamma takes both ends of its row."""
    n, told, done = 40, [], []
    W = np.ones((n, n))
    net = pp.Network([(W[:, :1], np.ones(n)), (W, np.ones(n)), (W[:1], [0.0])])
    box = pp.Shifts(net, net)
    leaf = {"gamma": [[1, k, 0.5] for k in range(n)]}
    tree = [leaf]
    for k in range(4):
        tree = [[1, k], *tree, *tree]
    facts = proof.claim(proof.digest(net), box, np.ones(1), 1, -1e9, "robust")
    facts |= {"tighten": False, "trees": [tree], "lower": [[0.5] * n], "upper": [[0.5] * n]}
    integers, dot = checker._Claim.integers, checker._dot
    monkeypatch.setattr(
        checker._Claim, "integers", lambda *a: told.append(a[3] + a[4]) or integers(*a)
    )
    monkeypatch.setattr(checker, "_dot", lambda a, b: done.append(len(a)) or dot(a, b))
    assert checked(net, box, facts).accepted
    assert sum(done) <= told[0] <= 4 * sum(done)


def test_both_ends_of_a_box_count_as_work(monkeypatch):
    """Denormal ends make long numbers; the network's own numbers are short."""
    net = pp.Network([(np.ones((2, 2)), np.zeros(2)), (np.ones((1, 2)), [0.0])])
    least = {}
    for size in (1.0, 5e-324):
        box = pp.Shifts(
            net, net.with_layers([(np.ones((2, 2)) * 2, [size] * 2), (np.ones((1, 2)), [1.0])])
        )
        tiny = net.with_layers(
            [(np.full((2, 2), size), np.zeros(2)), (np.full((1, 2), size), [0.0])]
        )
        box = pp.Shifts(tiny, box.high)
        shifted = {"shifted": proof.shifted_fields(tiny)}
        facts = proof.claim(proof.digest(net), box, np.zeros(2), 1, 1e3, "not robust") | shifted
        for power in range(160):
            monkeypatch.setattr(checker, "MOST_WORK", int(2 ** (power / 4)))
            if checked(net, box, facts).accepted:
                break
        least[size] = power
        monkeypatch.undo()
    assert least[5e-324] > least[1.0]


# -- files -----------------------------------------------------------------------------------------


def shifts_file(path, **changes):
    """A shifts file with some arrays changed, added or (None) left out."""
    arrays = {
        "low_W0": np.eye(2), "low_b0": np.zeros(2), "high_W0": np.eye(2) * 2, "high_b0": np.ones(2),
        "low_W1": np.ones((1, 2)), "high_W1": np.ones((1, 2)), "scale": np.ones(2),
    }  # fmt: skip
    arrays = {name: a for name, a in (arrays | changes).items() if a is not None}
    np.savez(path, format=np.array("proplace-shifts-1"), about=np.array("a test"), **arrays)
    return str(path)


@pytest.mark.parametrize("hidden", range(4))
@pytest.mark.parametrize("matrix", [False, True])
def test_the_checker_reads_what_is_saved(tmp_path, hidden, matrix):
    rng = np.random.default_rng([15, hidden])
    for _ in range(4):
        net, box, _, _ = problem(rng, hidden, matrix=matrix)
        box.save(tmp_path / "box.npz")
        read = checker.read_shifts(str(tmp_path / "box.npz"))
        assert read == proof.parameters_of_shifts(box)
        assert checker.digest(read) == box.digest == pp.Shifts.load(tmp_path / "box.npz").digest
        pp.Shifts.of(net, 0.1).save(tmp_path / "ball.npz")
        ball = checker.digest(checker.read_shifts(str(tmp_path / "ball.npz")))
        assert ball == pp.Shifts.of(net, 0.1).digest


def test_the_digest_of_a_box_is_documented_bytes():
    """The encoding of docs/certificates.md, written once more."""
    import hashlib

    low = pp.Network([([[1.0, -0.0]], [2.0]), ([[3.0]], None)], scale=[1.0, 2.0], shift=[0.0, 1.0])
    high = low.with_layers([([[1.5, 0.0]], [2.0]), ([[4.0]], None)])
    text = b""
    for name, values in (
        ("low_W0 1 2", [1.0, 0.0]), ("low_b0 1", [2.0]),
        ("high_W0 1 2", [1.5, 0.0]), ("high_b0 1", [2.0]),
        ("low_W1 1 1", [3.0]), ("high_W1 1 1", [4.0]), ("scale 2", [1.0, 2.0]), ("shift 2", [0.0, 1.0]),
    ):  # fmt: skip
        text += name.encode() + b"\n" + np.array(values).astype("<f8").tobytes()
    box = pp.Shifts(low, high)
    expected = hashlib.sha256(text).hexdigest()
    assert checker.digest(proof.parameters_of_shifts(box)) == box.digest == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"low_W0": None},
        {"high_W0": None},
        {"high_b0": None},
        {"low_b0": None},
        {"high_W1": np.ones((2, 2))},
        {"high_W1": None},
        {"high_b1": np.zeros(1), "low_W1": None},
        {"low_W2": np.ones((1, 1))},
        {"W0": np.eye(2)},
        {"b0": np.zeros(2)},
        {"low_W0": np.asfortranarray([[1.0, 2.0], [3.0, 4.0]])},
        {"low_W0": np.eye(2, dtype=np.float32)},
        {"high_W0": np.full((2, 2), np.inf)},
        {"low_b0": np.array([np.nan, 0.0])},
        {"low_b0": np.zeros(3)},
        {"high_b0": np.zeros((1, 2))},
        {"low_W1": np.ones((1, 3)), "high_W1": np.ones((1, 3))},
        {"scale": np.ones(3)},
        {"precision": np.array("float64")},
        {"more": np.ones(2)},
    ],
)
def test_a_shifts_file_is_read_whole_or_refused(tmp_path, changes):
    assert len(checker.read_shifts(shifts_file(tmp_path / "good.npz")).low.layers) == 2
    with pytest.raises(checker.Rejected, match="shifts file"):
        checker.read_shifts(shifts_file(tmp_path / "box.npz", **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"low_W0": 3 * np.eye(2)},
        {"low_b0": np.full(2, 1.5)},
        {"scale": None},
        {"shift": np.zeros(2)},
        {"matrix": np.eye(2), "offset": np.zeros(2)},
    ],
)
def test_a_file_that_is_no_box_of_the_network_is_rejected(tmp_path, changes):
    net = pp.Network([(np.eye(2), np.zeros(2)), (np.ones((1, 2)), None)], scale=np.ones(2))
    good = checker.read_shifts(shifts_file(tmp_path / "good.npz"))
    facts = linear_proof(net, pp.Shifts.load(tmp_path / "good.npz"), [1.0, 1.0], 1, -9.0)
    assert checker.check(json.dumps(facts), proof.parameters(net), shifts=good).accepted
    box = checker.read_shifts(shifts_file(tmp_path / "box.npz", **changes))
    facts["shifts"] = checker.digest(box)
    verdict = checker.check(json.dumps(facts), proof.parameters(net), shifts=box)
    assert not verdict.accepted
    assert verdict.statement is None


def test_damaged_shifts_files_are_refused_or_another_box(tmp_path):
    """Bytes changed at random, in a file whose checksums were mended: never the same name."""
    path = shifts_file(tmp_path / "box.npz")
    good = checker.read_shifts(path)
    with zipfile.ZipFile(path) as file:
        parts = {part: file.read(part) for part in file.namelist()}
    rng = np.random.default_rng(16)
    other = refused = 0
    for _ in range(1000):
        part = str(rng.choice(list(parts)))
        data = bytearray(parts[part])
        start = int(rng.choice([0, 128]))  # in the header, or behind it
        data[rng.integers(start, len(data))] = rng.integers(256)
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as file:
            for key, content in parts.items():
                file.writestr(key, bytes(data) if key == part else content)
        (tmp_path / "odd.npz").write_bytes(made.getvalue())
        try:
            box = checker.read_shifts(str(tmp_path / "odd.npz"))
        except checker.Rejected:
            refused += 1
            continue
        same = box == good
        assert (checker.digest(box) == checker.digest(good)) == same
        other += not same
    assert min(other, refused) > 100


def test_shifts_files_are_limited_before_they_are_unpacked(tmp_path, monkeypatch):
    path = shifts_file(tmp_path / "box.npz", low_W0=np.eye(400)[:2, :2] * 1.0)
    monkeypatch.setattr(checker, "MOST_NUMBERS", -62_500)  # so that 2 * 8 * numbers + 10^6 is 0
    with pytest.raises(checker.Rejected, match="the shifts file has more than 0 bytes"):
        checker.read_shifts(path)


def run_alone(*words):
    """A copy of the checker's one file, without the package and without site-packages."""
    words = [sys.executable, "-S", "-I", *map(str, words)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_the_checker_alone_takes_a_box(tmp_path):
    alone = tmp_path / "alone.py"
    alone.write_text(Path(checker.__file__).read_text())
    rng = np.random.default_rng(17)
    net, box, X, target = problem(rng, 2)
    certificate = pp.certify(net, X, box, target, certificates=True).certificates[0]
    files = [tmp_path / name for name in ("proof.json", "net.npz", "box.npz", "wide.npz")]
    certificate.save(files[0])
    net.save(files[1])
    box.save(files[2])
    box.scaled(1.5).save(files[3])
    done = run_alone(alone, *files[:2], "--shifts", files[2])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"accepted: {certificate.verdict}: ")
    assert box.digest in done.stdout
    for words, reason in (
        ([*files[:2]], "its shifts file is needed"),
        ([*files[:2], "--shifts", files[3]], "another box of shifts"),
        ([*files[:2], "--shifts", files[2], "--shifts", files[3]], "no certificate is about"),
        ([*files[:2], "--shifts", files[1]], "the shifts file holds no layer"),
        ([files[0], files[2], "--shifts", files[2]], "the network file holds no layer"),
    ):
        done = run_alone(alone, *words)
        assert (done.returncode, done.stderr) == (1, "")
        assert done.stdout.startswith("rejected: ")
        assert reason in done.stdout
    done = run_alone(alone, *files[:2], "--shifts", tmp_path / "none.npz")
    assert done.returncode == 2
    assert "No such file" in done.stderr
