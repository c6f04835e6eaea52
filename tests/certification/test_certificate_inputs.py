"""Certificates about input boxes: everything proved is accepted, everything accepted is true."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction as Q

import numpy as np
import pytest

import proplace as pp
from certification.problems import Problem, counted_work, random_proof
from oracles import joint_attack, milp_box_margin, random_box
from proplace.certification import certify, checker
from proplace.core.errors import CertificateError, InputError
from support.errors import raises
from support.problems import dense

pytestmark = pytest.mark.usefixtures("any_margin")


def problem(rng, hidden, kind="inputs", **options):
    """A network, its shift set, rows with boxes, and a class."""
    one = Problem.random(rng, hidden, kind, **options)
    return one.net, one.shifts, one.X, one.box, one.target


def checked(net, shifts, facts):
    return Problem(net, shifts, None, None).checked(facts)


# -- what the producer makes is accepted -----------------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", ["inputs", "inputs shifts", "inputs matrix"])
@pytest.mark.parametrize("hidden", range(4))
def test_verdicts_near_margin_agree_with_mixed_integer_programs(hidden, kind):
    """A margin a little below the worst and one a little above it: trees, and shifts with a point."""
    rng = np.random.default_rng([2, hidden, len(kind)])
    for _ in range(3):
        net, shifts, X, box, target = problem(rng, hidden, kind, inputs=2, width=3)
        worst = milp_box_margin(net, box[0][0], box[1][0], shifts, target)
        away = 1e-5 * max(1.0, abs(worst))
        for margin, robust in ((worst - away, True), (worst + away, False)):
            report = certify(net, X, shifts, target, box=box, margin=margin, certificates=True)
            assert report.robust[0] == robust
            assert not report.undecided[0]
            assert (
                report.certificates[0].check(net, shifts if shifts.radii is None else None).accepted
            )
        met = joint_attack(net, box[0][0], box[1][0], shifts, target, rng, 200)
        assert met >= worst - away


def test_refutation_in_last_bit_needs_its_point_inside_of_box():
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
def test_box_of_one_point_is_point(hidden):
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
        net, shifts, X, box, target = problem(rng, hidden, kind="inputs shifts", rows=2)
        report = certify(net, X, shifts, target, box=box, margin=-1.0, certificates=True)
        for i in np.flatnonzero(report.robust):
            robust += 1
            met = joint_attack(net, box[0][i], box[1][i], shifts, target, rng, 300)
            assert met >= -1.0 - 1e-9
    assert robust >= 3


def test_model_in_float32_must_keep_margin_of_whole_box():
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
def test_invalid_input_box_is_rejected(box):
    net = pp.Network([([[1.0, -1.0]], [0.0])])
    with raises(InputError, name="box"):
        certify(net, [[0.25, 0.5]], 0.1, box=box)


# -- what is changed is rejected, or still true ----------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize("hidden", range(3))
def test_wider_box_is_rejected_or_true(hidden):
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


def test_at_zero_hidden_layers_checker_decides_ties_exactly():
    """Multipliers that are exact for known signs prove the worst-case margin itself."""
    rng = np.random.default_rng(9)
    proved = refuted = 0
    for _ in range(60):
        inputs = int(rng.integers(1, 4))
        W, b = np.round(8 * rng.normal(size=(1, inputs))) / 8, np.round(8 * rng.normal(size=1)) / 8
        net, delta = pp.Network([(W, b)]), 0.125
        x = np.round(8 * rng.normal(size=(1, inputs))) / 8
        reach = rng.integers(0, 9, (2, 1, inputs)) / 8
        box, shifts = (x - reach[0], x + reach[1]), pp.Shifts.of(net, delta)
        worst = Problem(net, shifts, x, 1, box).worst()
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


def test_fields_of_box():
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
    # The proof of a row has other layers than the proof of a box.
    forged = facts | {"format": checker.FORMAT_INPUTS, "low": low, "high": high}
    assert not checked(net, shifts, forged).accepted


def test_demands_for_box():
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
    assert "is required. The certificate proves only: robust: every network" in reason
    assert "at every point of the box [" in reason


def test_several_certificates_about_one_box():
    rng = np.random.default_rng(12)
    a, b = (pp.Network([(rng.normal(size=(n, 2)), None), (np.ones((1, n)), [0.0])]) for n in (2, 3))
    sets = [(a, pp.Shifts.of(a, 0.1)), (b, random_box(rng, b))]
    x = np.array([[0.5, -0.25]])

    def made(*boxes):
        return pp.certification.CertificateBundle.of(
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
    with raises(CertificateError, name="shifts"):
        both.certificates[1].check(b)


# -- the fast test of proofs, and how much work they are -------------------------------------------


@pytest.mark.parametrize("place", range(3))
def test_parameters_that_checker_cuts(place):
    """Weights of 2^-110 beside 1 are cut, with and without radii, and with a small scaler."""
    rng = np.random.default_rng([14, place])
    row, one = np.array([[1.0, 2.0**-110]]), np.ones((1, 1))
    weights = [np.eye(2)] * place + [row] + [one] * (2 - place)
    for scale, radius in itertools.product((None, [2.0**-100, 1.0]), (None, 0.0, 2.0**-120)):
        net = pp.Network([(W, np.zeros(len(W))) for W in weights], scale=scale)
        shifts = pp.Shifts(net, net) if radius is None else pp.Shifts.of(net, radius)
        for x, target in itertools.product(([0.0, 2.0**40], [0.0, -(2.0**40)]), (0, 1)):
            X, reach = np.array([x]), np.array([[0.0, 1.0]])
            one = Problem(net, shifts, X, target, (X - reach, X + reach))
            facts = random_proof(rng, one, lambda rng, shape: 0.0)
            assert checked(net, shifts, facts).accepted
            m, e = math.frexp(
                facts["margin"]
            )  # with fewer digits, so that these do not set the units
            less = math.ldexp(math.floor(8 * m) / 8, e)
            assert checked(net, shifts, {**facts, "margin": less}).accepted


@pytest.mark.parametrize("sizes", [(3, 1), (3, 4, 4, 1), (2, 2, 3, 2, 3), (12, 9, 1)])
@pytest.mark.parametrize("front", [(), ("scale",), ("matrix",), ("scale", "matrix")])
def test_work_is_counted_before_it_is_done(monkeypatch, sizes, front):
    rng = np.random.default_rng(sum(sizes))
    n = sizes[0]
    maps = {"scale": rng.normal(size=n), "matrix": rng.normal(size=(n, n))}
    net = dense(rng, sizes, **{name: maps[name] for name in front})
    shifts, X = random_box(rng, net), rng.normal(size=(1, n))
    facts = random_proof(
        rng, Problem(net, shifts, X, 1, (X - 1.0, X + 1.0)), lambda rng, shape: 1.0
    )
    told, done = counted_work(monkeypatch)
    assert checked(net, shifts, {**facts, "margin": facts["margin"] - 1.0}).accepted
    assert sum(done) <= told[0] <= 30 * sum(done)


def test_wide_network_is_refused_before_it_is_built():
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
    assert "checking this would take" in verdict.reason
