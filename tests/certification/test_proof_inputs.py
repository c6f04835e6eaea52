"""Certificates about boxes of inputs: everything proved is accepted, everything accepted is true."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from fractions import Fraction as Q
from pathlib import Path

import numpy as np
import pytest

import exactly
import proplace as pp
from changed_proofs import mutants
from oracles import accepted_rows, joint_attack, milp_box_margin, random_box, random_case
from proplace.certification import Evidence, InputBoxes, certify, checker, proof
from proplace.certification.batched_bnb import Nodes
from proplace.certification.bounds import Abstraction, chords, start_slopes
from proplace.certification.certificates import Claims
from proplace.certification.engine import Rows, traced_least_values
from proplace.core.errors import CertificateError, InputError
from proplace.core.fold import Fold


def boxes_around(rng, X):
    """Boxes of all kinds: some columns exact, some one-sided, many across 0."""
    reach = rng.exponential(rng.choice([0.1, 0.6]), size=(2, *X.shape))
    reach[:, rng.random(X.shape) < 0.3] = 0.0
    reach[0][rng.random(X.shape) < 0.2] = 0.0
    return X - reach[0], X + reach[1]


def problem(rng, hidden, *, kind="delta", rows=1, **options):
    """A network, its Delta, rows with boxes, and a class."""
    case = random_case(rng, hidden, **{"rows": rows, "inputs": int(rng.integers(1, 4)), **options})
    net, X = case.net, case.X
    if kind == "matrix":
        inputs = int(rng.integers(1, 4))
        front = {"matrix": rng.normal(size=(net.inputs, inputs))}
        if rng.random() < 0.5:
            front["offset"] = rng.normal(size=net.inputs)
        if rng.random() < 0.5:
            front |= {"scale": rng.normal(size=inputs), "shift": rng.normal(size=inputs)}
        net = pp.Network([(layer.W, layer.b) for layer in net.layers], **front)
        X = rng.normal(size=(rows, inputs))
    if kind == "fold":
        layers = [(layer.W, layer.b) for layer in net.layers]
        gains = (Fold.none(W, b).scaled(rng.uniform(0.2, 2.0, len(W))) for W, b in layers)
        net = pp.Network(layers, **net.input_map.parts, folds=list(gains))
    shifts = random_box(rng, net) if kind == "shifts" else pp.Shifts.of(net, case.delta)
    return net, shifts, X, boxes_around(rng, X), case.target


def given(shifts):
    """What must be given to check a certificate: a box that is named by its digest."""
    return shifts if shifts.radii is None else None


def checked(net, shifts, facts, **demand):
    """The verdict of the checker on the fields of a certificate."""
    named = None if shifts.radii is not None else proof.parameters_of_shifts(shifts)
    demanded = checker.Demand(**demand)
    return checker.check(json.dumps(facts), proof.parameters(net), demanded, named)


def corners(low, high):
    return itertools.product(*(sorted({p, q}) for p, q in zip(low, high, strict=True)))


def exact_worst(net, shifts, low, high, target):
    """Least margin over Delta and box of a network without hidden layers, as a fraction.

    The least over Delta is concave in the input, so that over the box it lies at a corner.
    """
    delta = shifts if shifts.radii is None else shifts.radii
    return min(exactly.worst(net, x, delta, target) for x in corners(low, high))


# -- what the producer makes is accepted -----------------------------------------------------------


@pytest.mark.parametrize("kind", ["delta", "shifts", "matrix", "fold"])
@pytest.mark.parametrize("hidden", range(5))
def test_every_verdict_has_a_certificate_that_is_accepted(hidden, kind):
    rng = np.random.default_rng([1, hidden, len(kind)])
    found = {"robust": 0, "not robust": 0}
    for _ in range(8):
        net, shifts, X, box, target = problem(rng, hidden, kind=kind, rows=2, width=3)
        margin = float(2.0 * rng.normal()) - 0.5
        plain = certify(net, X, shifts, target, box=box, margin=margin)
        report = certify(net, X, shifts, target, box=box, margin=margin, certificates=True)
        np.testing.assert_array_equal(report.robust, plain.robust)
        assert not report.undecided.any()
        for i, certificate in enumerate(report.certificates):
            facts, ends = certificate.facts, (box[0][i], box[1][i])
            assert facts["format"] == checker.FORMAT_INPUTS
            assert facts["network"] == proof.digest(net)
            assert (facts["low"], facts["high"]) == tuple(end.tolist() for end in ends)
            assert facts["input"] == X[i].tolist()
            assert ("shifts" in facts) == (shifts.radii is None) == ("delta" not in facts)
            verdict = certificate.check(net, given(shifts))
            assert verdict.accepted, verdict.reason
            assert (verdict.statement.low, verdict.statement.high) == (facts["low"], facts["high"])
            assert certificate.verdict == ("robust" if report.robust[i] else "not robust")
            assert certificate.check(net, given(shifts), box=ends).accepted == report.robust[i]
            assert exactly.is_true(net, facts, rng, given(shifts))
            found[certificate.verdict] += 1
    assert min(found.values()) >= 2


@pytest.mark.parametrize("kind", ["delta", "shifts", "matrix"])
@pytest.mark.parametrize("hidden", range(4))
def test_verdicts_near_the_margin_agree_with_mixed_integer_programs(hidden, kind):
    """A margin a little below the worst and one a little above it: trees, and shifts with a point."""
    rng = np.random.default_rng([2, hidden, len(kind)])
    for _ in range(3):
        net, shifts, X, box, target = problem(rng, hidden, kind=kind, inputs=2, width=3)
        worst = milp_box_margin(net, box[0][0], box[1][0], shifts, target)
        away = 1e-5 * max(1.0, abs(worst))
        for margin, robust in ((worst - away, True), (worst + away, False)):
            report = certify(net, X, shifts, target, box=box, margin=margin, certificates=True)
            assert report.robust[0] == robust
            assert not report.undecided[0]
            assert report.certificates[0].check(net, given(shifts)).accepted
        met = joint_attack(net, box[0][0], box[1][0], shifts, target, rng, 200)
        assert met >= worst - away


@pytest.mark.parametrize("sizes", [(6, 12, 1), (5, 8, 8, 1), (5, 6, 6, 3)])
def test_rows_near_the_margin_need_trees_and_get_them(sizes):
    net, X = accepted_rows(5, sizes, 40)
    box = X - 0.1, X + 0.1
    worst = certify(net, X[:3], 0.02, box=(box[0][:3], box[1][:3]), exact_margin=True).lower
    splits = 0
    for i, value in enumerate(worst):
        ends = box[0][i : i + 1], box[1][i : i + 1]
        for away in (-1e-6, 1e-6):
            asked = {"margin": float(value) + away, "certificates": True, "box": ends}
            report = certify(net, X[i : i + 1], 0.02, **asked)
            assert report.robust[0] == (away < 0)
            assert report.certificates[0].check(net).accepted
            trees = report.certificates[0].facts.get("trees", [])
            splits += sum(isinstance(node, list) for tree in trees for node in tree)
    assert splits


@pytest.mark.parametrize("kind", ["delta", "shifts"])
@pytest.mark.parametrize("certificates", [False, True])
def test_the_last_bit_is_decided_by_a_proof_about_the_network_itself(kind, certificates):
    """The worst margin and its two neighbours among the floats; larger boxes are rounded outwards."""
    rng = np.random.default_rng([3, len(kind)])
    decided = 0
    for _ in range(40):
        net, shifts, X, box, target = problem(rng, 0, kind=kind)
        worst = exact_worst(net, shifts, box[0][0], box[1][0], target)
        near = float(worst)
        for margin in (near, math.nextafter(near, math.inf), math.nextafter(near, -math.inf)):
            report = certify(
                net, X, shifts, target, box=box, margin=margin, certificates=certificates
            )
            if not report.undecided[0]:
                decided += 1
                assert report.robust[0] == (worst >= Q(margin))
    assert decided >= 60


def test_a_refutation_in_the_last_bit_needs_its_point_inside_of_the_box():
    """Centre and radius of [0.1, 0.3] are rounded: their box is a little larger than that."""
    net, x = pp.Network([([[1.0]], [0.0])]), np.array([[0.2]])
    for low, high in ((0.1, 0.3), (0.1, 0.7), (-0.3, 0.9), (1e-9, 1.1)):
        box = np.array([[low]]), np.array([[high]])
        for margin, robust in ((low, True), (math.nextafter(low, math.inf), False)):
            for certificates in (False, True):
                asked = {"box": box, "margin": margin, "certificates": certificates}
                report = certify(net, x, 0.0, **asked)
                assert report.robust[0] == robust or (report.undecided[0] and low < 0.0)


@pytest.mark.parametrize("hidden", range(4))
def test_a_box_of_one_point_is_the_point(hidden):
    rng = np.random.default_rng([4, hidden])
    for _ in range(6):
        net, shifts, X, _, target = problem(rng, hidden, rows=2)
        report = certify(net, X, shifts, target, box=(X, X), certificates=True)
        plain = certify(net, X, shifts, target, certificates=True)
        np.testing.assert_array_equal(report.robust, plain.robust)
        for certificate, one in zip(report.certificates, plain.certificates, strict=True):
            assert certificate.check(net).accepted
            statement = certificate.check(net).statement
            assert statement.ends == one.check(net).statement.ends


@pytest.mark.parametrize("hidden", range(4))
def test_attacks_on_shift_and_miss_break_nothing(hidden):
    rng = np.random.default_rng([5, hidden])
    robust = 0
    for _ in range(8):
        net, shifts, X, box, target = problem(rng, hidden, kind="shifts", rows=2)
        report = certify(net, X, shifts, target, box=box, margin=-1.0, certificates=True)
        for i in np.flatnonzero(report.robust):
            robust += 1
            met = joint_attack(net, box[0][i], box[1][i], shifts, target, rng, 300)
            assert met >= -1.0 - 1e-9
    assert robust >= 3


@pytest.mark.parametrize("kind", ["delta", "shifts", "matrix"])
def test_evidence_about_a_box(kind):
    """What a search has proved with a tolerance is written down as it is."""
    rng = np.random.default_rng([6, len(kind)])
    for hidden in range(4):
        net, shifts, X, box, target = problem(rng, hidden, kind=kind)
        larger = InputBoxes(net, shifts)
        rows = Rows(larger.rows(*box), np.array([-np.inf]))
        abstraction = Abstraction(larger.net, larger.shifts)
        found, trace = traced_least_values(abstraction, rows, net.objectives(target))
        low, high = float(found.lower[0]), float(found.upper[0])
        evidence = Evidence(X[0], low, high, trace, (box[0][0], box[1][0]))
        made = evidence.certificate(net, shifts, target, low - 1.0)
        assert made.check(net, given(shifts), box=evidence.box).accepted
        assert evidence.certificate(net, shifts, target, low + 1.0) is None


def test_a_model_in_float32_must_keep_the_margin_of_the_whole_box():
    net = pp.Network([([[1.0, -1.0]], [0.0])], precision="float32")
    x = np.array([[2.0, 1.0]])
    report = certify(net, x, 0.0, box=(x - 0.25, x + 0.25), certificates=True)
    assert report.certificates[0].facts["margin"] == report.threshold[0] > 0.0


@pytest.mark.parametrize(
    "box",
    [
        ([[0.0]], [[1.0]]),
        ([[0.5, 0.0]], [[1.0, 1.0]]),
        ([[0.0, 0.0]], [[1.0, np.nan]]),
        ([[0.0, 0.0]], [[1.0, np.inf]]),
        ([[-1e308, 0.0]], [[1e308, 1.0]]),
    ],
)
def test_what_is_no_box_around_the_row_is_refused(box):
    net = pp.Network([([[1.0, -1.0]], [0.0])])
    with pytest.raises(InputError, match="give"):
        certify(net, [[0.25, 0.5]], 0.1, box=box)


# -- what is changed is rejected, or still true ----------------------------------------------------


@pytest.mark.parametrize("kind", ["delta", "shifts", "matrix"])
@pytest.mark.parametrize("hidden", range(4))
def test_a_changed_certificate_is_rejected_or_still_true(hidden, kind):
    rng = np.random.default_rng([7, hidden, len(kind)])
    tried = accepted = 0
    truths = {}  # many proofs are proofs of one claim
    options = {"width": 2, "inputs": 2, "outputs": 1 + 2 * (hidden % 2)}
    net, shifts, X, box, target = problem(rng, hidden, kind=kind, **options)
    worst = float(certify(net, X, shifts, target, box=box, exact_margin=True).lower[0])
    for margin in (worst - 0.01, worst + 0.01):
        asked = {"box": box, "margin": margin, "certificates": True}
        facts = certify(net, X, shifts, target, **asked).certificates[0].facts
        for path, mutant in mutants(facts):
            tried += 1
            if checked(net, shifts, mutant).accepted:
                accepted += 1
                assert path[0] not in ("network", "shifts", "format", "verdict"), path
                proofs = ("tighten", "lower", "upper", "trees")
                claim = json.dumps({k: v for k, v in mutant.items() if k not in proofs})
                if claim not in truths:
                    truths[claim] = exactly.is_true(net, mutant, rng, given(shifts))
                assert truths[claim], (path, mutant)
    assert tried > 120
    assert accepted  # some changes are harmless: a smaller margin, another slope


@pytest.mark.parametrize("hidden", range(3))
def test_a_wider_box_is_rejected_or_true(hidden):
    """Ends that were moved outwards by all sizes, from a last bit on."""
    rng = np.random.default_rng([8, hidden])
    wrong = right = 0
    for _ in range(6):
        net, shifts, X, box, target = problem(rng, hidden, inputs=2, width=2)
        worst = float(certify(net, X, shifts, target, box=box, exact_margin=True).lower[0])
        report = certify(net, X, shifts, target, box=box, margin=worst - 1e-6, certificates=True)
        facts = report.certificates[0].facts
        for _ in range(20):
            j, size = int(rng.integers(net.inputs)), 10.0 ** rng.integers(-12, 2)
            end, sign = (("low", -1.0), ("high", 1.0))[rng.integers(2)]
            moved = [*facts[end]]
            moved[j] += sign * size
            forged = {**facts, end: moved}
            if checked(net, shifts, forged).accepted:
                right += 1
                low, high = np.array(forged["low"]), np.array(forged["high"])
                assert milp_box_margin(net, low, high, shifts, target) >= worst - 1.5e-6
            else:
                wrong += 1
    assert min(wrong, right) > 10


def test_at_zero_hidden_layers_the_checker_decides_ties_exactly():
    """Multipliers that are exact for signs that are known: the worst margin itself is proved."""
    rng = np.random.default_rng(9)
    proved = refuted = 0
    for _ in range(60):
        inputs = int(rng.integers(1, 4))
        W, b = np.round(8 * rng.normal(size=(1, inputs))) / 8, np.round(8 * rng.normal(size=1)) / 8
        net, delta = pp.Network([(W, b)]), 0.125
        x = np.round(8 * rng.normal(size=(1, inputs))) / 8
        reach = rng.integers(0, 9, (2, 1, inputs)) / 8
        box, shifts = (x - reach[0], x + reach[1]), pp.Shifts.of(net, delta)
        worst = exact_worst(net, shifts, box[0][0], box[1][0], 1)
        margin = float(worst)
        assert Q(margin) == worst
        above = math.nextafter(margin, math.inf)
        report = certify(net, x, delta, box=box, margin=margin, certificates=True)
        if not report.undecided[0]:
            proved += 1
            facts = report.certificates[0].facts
            assert facts["verdict"] == "robust"
            assert checked(net, shifts, facts).accepted
            assert not checked(net, shifts, {**facts, "margin": above}).accepted
        report = certify(net, x, delta, box=box, margin=above, certificates=True)
        if not report.undecided[0]:
            refuted += 1
            facts = report.certificates[0].facts
            assert facts["verdict"] == "not robust"
            assert checked(net, shifts, facts).accepted
            assert not checked(net, shifts, {**facts, "margin": margin}).accepted
    assert min(proved, refuted) >= 20


def test_fields_of_a_box():
    rng = np.random.default_rng(10)
    net, shifts, X, box, target = problem(rng, 1, inputs=2)
    good = certify(net, X, shifts, target, box=box, margin=-50.0, certificates=True)
    bad = certify(net, X, shifts, target, box=box, margin=50.0, certificates=True)
    robust, broken = good.certificates[0].facts, bad.certificates[0].facts
    assert "point" not in robust
    low, high = robust["low"], robust["high"]
    beyond = [math.nextafter(v, math.inf) for v in high]
    for facts, reason in (
        ({**robust, "shifts": shifts.digest}, "fields"),
        ({**robust, "point": robust["input"]}, "fields"),
        ({k: v for k, v in robust.items() if k != "low"}, "fields"),
        ({k: v for k, v in robust.items() if k != "delta"}, "fields"),
        ({k: v for k, v in broken.items() if k != "point"}, "fields"),
        ({**robust, "format": checker.FORMAT}, "fields"),
        ({**robust, "format": checker.FORMAT_BOX}, "fields"),
        ({**robust, "format": "proplace-certificate-4"}, "format"),
        ({**robust, "low": low[:1]}, "low is not a list of 2"),
        ({**robust, "low": [*low, 0.0]}, "low is not a list of 2"),
        ({**robust, "high": "high"}, "high is not a list"),
        ({**robust, "input": beyond}, "the input lies outside"),
        ({**robust, "low": beyond}, "the input lies outside"),
        ({**broken, "point": beyond}, "the point lies outside"),
        ({**broken, "point": low[:1]}, "point is not a list"),
    ):
        verdict = checked(net, shifts, facts)
        assert not verdict.accepted
        assert reason in verdict.reason, verdict.reason
    plain = pp.certify(net, X, shifts, target, margin=-50.0, certificates=True)
    facts = plain.certificates[0].facts
    for extra in ({"low": low, "high": high}, {"format": checker.FORMAT_INPUTS}):
        assert not checked(net, shifts, facts | extra).accepted
    # What proves the row alone has other layers than what proves the box.
    forged = facts | {"format": checker.FORMAT_INPUTS, "low": low, "high": high}
    assert not checked(net, shifts, forged).accepted


def test_demands_for_a_box():
    rng = np.random.default_rng(11)
    net, shifts, X, _, target = problem(rng, 1, inputs=2)
    low, high = X[0] - 0.5, X[0] + [0.5, 0.0]
    box, x = (low[None], high[None]), X[0]
    report = certify(net, X, shifts, target, box=box, margin=-50.0, certificates=True)
    made = report.certificates[0]
    one = pp.certify(net, X, shifts, target, margin=-50.0, certificates=True).certificates[0]
    eps = np.array([0.0, 1e-9])
    for ends, by_box, by_point in (
        ((low, high), True, False),
        ((x, high), True, False),
        ((low + eps, high - eps), True, False),
        ((x, x), True, True),
        ((low - eps, high), False, False),
        ((low, high + eps), False, False),
        ((low[:1], high[:1]), False, False),
        ((low, high * np.nan), False, False),
    ):
        assert made.check(net, box=ends).accepted == by_box
        assert one.check(net, box=ends).accepted == by_point
    reason = made.check(net, box=(low - eps, high)).reason
    assert "demanded; proved is only: robust: every network" in reason
    assert "at every point of the box [" in reason


def test_several_certificates_about_one_box():
    rng = np.random.default_rng(12)
    a, b = (pp.Network([(rng.normal(size=(n, 2)), None), (np.ones((1, n)), [0.0])]) for n in (2, 3))
    sets = [(a, pp.Shifts.of(a, 0.1)), (b, random_box(rng, b))]
    x = np.array([[0.5, -0.25]])

    def made(*boxes):
        return pp.Bundle.of(
            certify(net, x, shifts, box=box, margin=-9.0, certificates=True).certificates[0]
            for (net, shifts), box in zip(sets, boxes, strict=True)
        )

    box, wide = (x - 0.25, x + 0.5), (x - 0.25, x + 0.75)
    both = made(box, box)
    assert both.check(sets).accepted
    assert both.check(sets, box=box).accepted
    assert not both.check(sets, box=wide).accepted
    assert "different inputs" in made(box, wide).check(sets).reason
    assert "different inputs" in made(None, box).check(sets).reason
    assert made(None, (x, x)).check(sets).accepted
    with pytest.raises(CertificateError, match="give the box"):
        both.certificates[1].check(b)


# -- the fast test of proofs, and how much work they are -------------------------------------------


def random_proof(rng, net, shifts, X, box, target, scale=1.0):
    """What the outward-rounded pass proves with some multipliers, and the certificate of it."""
    larger = InputBoxes(net, shifts)
    rows, tighten = larger.rows(*box), bool(rng.integers(2))
    with np.errstate(all="ignore"):
        root = Abstraction(larger.net, larger.shifts).interval_bounds(rows)
        lower = start_slopes(root)
        slopes = [np.clip(chords(level, None)[0], 0.0, 1.0) for level in root.preactivations]
        upper = [np.round(s, int(rng.choice([1, 4, 17]))) for s in slopes]
        split = int(rng.integers(len(lower))), 0
        signs = [np.zeros((2, layer.shape[1]), np.int8) for layer in lower]
        signs[split[0]][:, 0] = -1, 1
        gamma = [np.zeros((2, layer.shape[1])) for layer in lower]
        gamma[split[0]][:, 0] = -scale * rng.exponential(), scale * rng.exponential()
        alpha = [np.repeat(layer, 2, axis=0) for layer in lower]
        nodes = Nodes(np.zeros(2, np.intp), signs, alpha, gamma)
        claims = Claims(net, shifts, target, X, np.zeros(1), box, larger)
        enclosure = claims.enclosure(np.zeros(1, np.intp), lower, upper, tighten=tighten)
        values = [enclosure.bounds(c, nodes)[0].min() for c in net.objectives(target)]
    tree = proof.tree(nodes, [layer[0] for layer in lower])
    ends = box[0][0], box[1][0]
    digest, margin = proof.digest(net), float(min(values))
    facts = proof.claim(digest, shifts, X[0], target, margin, "robust", box=ends)
    return facts | {
        "tighten": tighten,
        "lower": [layer[0].tolist() for layer in lower],
        "upper": [layer[0].tolist() for layer in upper],
        "trees": [tree] * len(values),
    }


@pytest.mark.parametrize("kind", ["delta", "shifts", "matrix"])
@pytest.mark.parametrize("hidden", range(4))
def test_the_fast_bound_never_says_more_than_the_checker(hidden, kind):
    """Exact arithmetic proves the very float that the outward-rounded pass gave."""
    rng = np.random.default_rng([13, hidden, len(kind)])
    for _ in range(10):
        net, shifts, X, box, target = problem(rng, hidden, kind=kind)
        facts = random_proof(rng, net, shifts, X, box, target)
        verdict = checked(net, shifts, facts)
        assert verdict.accepted, verdict.reason
        facts["margin"] += 1e-3 * max(1.0, abs(facts["margin"]))
        assert not checked(net, shifts, facts).accepted


@pytest.mark.parametrize("place", range(3))
def test_parameters_that_the_checker_cuts(place):
    """Weights of 2^-110 beside 1 are cut, with radii and without; a scaler may be as small."""
    rng = np.random.default_rng([14, place])
    row, one = np.array([[1.0, 2.0**-110]]), np.ones((1, 1))
    weights = [np.eye(2)] * place + [row] + [one] * (2 - place)
    for scale, radius in itertools.product((None, [2.0**-100, 1.0]), (None, 0.0, 2.0**-120)):
        net = pp.Network([(W, np.zeros(len(W))) for W in weights], scale=scale)
        shifts = pp.Shifts(net, net) if radius is None else pp.Shifts.of(net, radius)
        for x, target in itertools.product(([0.0, 2.0**40], [0.0, -(2.0**40)]), (0, 1)):
            X, reach = np.array([x]), np.array([[0.0, 1.0]])
            facts = random_proof(rng, net, shifts, X, (X - reach, X + reach), target, 0.0)
            assert checked(net, shifts, facts).accepted
            m, e = math.frexp(
                facts["margin"]
            )  # with fewer digits, so that these do not set the units
            less = math.ldexp(math.floor(8 * m) / 8, e)
            assert checked(net, shifts, {**facts, "margin": less}).accepted


@pytest.mark.parametrize("sizes", [(3, 1), (3, 4, 4, 1), (2, 2, 3, 2, 3), (12, 9, 1)])
@pytest.mark.parametrize("front", [(), ("scale",), ("matrix",), ("scale", "matrix")])
def test_the_work_is_counted_before_it_is_done(monkeypatch, sizes, front):
    rng = np.random.default_rng(sum(sizes))
    n = sizes[0]
    maps = {"scale": rng.normal(size=n), "matrix": rng.normal(size=(n, n))}
    layers = [(rng.normal(size=(m, k)), rng.normal(size=m)) for k, m in itertools.pairwise(sizes)]
    net = pp.Network(layers, **{name: maps[name] for name in front})
    shifts, X = random_box(rng, net), rng.normal(size=(1, n))
    facts = random_proof(rng, net, shifts, X, (X - 1.0, X + 1.0), 1)
    told, done = [], []
    integers, dot = checker._Claim.integers, checker._dot

    def watched(claim, more, D, fine, exact, cut):
        told.append(fine + exact)
        done.clear()
        integers(claim, more, D, fine, exact, cut)

    monkeypatch.setattr(checker._Claim, "integers", watched)
    monkeypatch.setattr(checker, "_dot", lambda a, b: done.append(len(a)) or dot(a, b))
    assert checked(net, shifts, {**facts, "margin": facts["margin"] - 1.0}).accepted
    assert sum(done) <= told[0] <= 30 * sum(done)


def test_a_wide_network_is_refused_before_it_is_built():
    """Four numbers for each pair of inputs: 3,000 inputs would take 36 million."""
    n = 3_000
    net = checker.Parameters([([[1.0] * n], [0.0])])
    facts = {
        "format": checker.FORMAT_INPUTS, "network": checker.digest(net), "input": [0.0] * n,
        "low": [0.0] * n, "high": [1.0] * n, "delta": [[0.0, 0.0]], "target": 1, "margin": -1.0,
        "verdict": "robust", "tighten": False, "trees": [[{}]],
        "lower": [[1.0] * 2 * n], "upper": [[1.0] * 2 * n],
    }  # fmt: skip
    verdict = checker.check(json.dumps(facts), net)
    assert not verdict.accepted
    assert "refused: checking this would take" in verdict.reason


# -- files -----------------------------------------------------------------------------------------


def test_the_checker_alone(tmp_path):
    alone = tmp_path / "alone.py"
    alone.write_text(Path(checker.__file__).read_text())

    def run(*words):
        words = [sys.executable, "-S", "-I", str(alone), *map(str, words)]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)

    net = pp.Network([([[1.0, -1.0], [0.5, 2.0]], [0.0, -1.0]), ([[1.0, -2.0]], [0.25])])
    box = np.array([[0.75, -0.125]]), np.array([[1.25, 0.0]])
    made = certify(net, [[1.0, 0.0]], 0.05, box=box, certificates=True).certificates[0]
    made.save(tmp_path / "proof.json")
    net.save(tmp_path / "net.npz")
    files = tmp_path / "proof.json", tmp_path / "net.npz"
    done = run(*files, "--low=0.75,-0.125", "--high=1.25,0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "every point of the box [0.75, 1.25], [-0.125, 0.0] around input 1.0, 0.0" in done.stdout
    for words in (["--low=0.7,0"], ["--high=1,0.1"], ["--low=0.75"], ["--high=nan,0"]):
        done = run(*files, *words)
        assert (done.returncode, done.stderr) == (1, "")
        assert "of inputs" in done.stdout
    assert pp.Certificate.load(tmp_path / "proof.json").check(net).accepted
