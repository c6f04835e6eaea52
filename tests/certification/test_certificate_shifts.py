"""Certificates about shift sets: every proof is accepted, and every accepted claim is true."""

from __future__ import annotations

import io
import itertools
import json
import math
import zipfile
from fractions import Fraction as Q

import numpy as np
import pytest

import exactly
import proplace as pp
from certification.problems import Problem, counted_work, random_proof, whole_numbers
from proplace.certification import certificate as documents
from proplace.certification import checker
from proplace.core.errors import CertificateError
from support.errors import raises

pytestmark = pytest.mark.usefixtures("any_margin")


def problem(rng, hidden, kind="shifts", **options):
    """A network, a shift set of its shape, rows, and a class."""
    return parts(Problem.random(rng, hidden, kind, **options))


def parts(one):
    return one.net, one.shifts, one.X, one.target


def linear_proof(net, box, x, target, margin):
    return Problem(net, box, np.array([x]), target).linear_proof(margin)


def checked(net, box, facts, **demand):
    return Problem(net, box, None, None).checked(facts, **demand)


def fast_bound(rng, net, box, X, target):
    return random_proof(rng, Problem(net, box, X, target))


# -- what the producer makes is accepted -----------------------------------------------------------


def test_all_corners_of_box_agree_with_checker():
    """Every corner in rational arithmetic: behind one hidden layer the worst network is one of them."""
    rng = np.random.default_rng(5)
    tried = 0
    while tried < 12:
        hidden = int(rng.integers(2))
        net, box, X, target = parts(whole_numbers(rng, hidden, outputs=int(rng.choice([1, 2]))))
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


# -- what is changed is rejected, or still true ----------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize("hidden", range(4))
def test_certificate_about_another_box_is_rejected_or_true(hidden):
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


def test_weight_one_float_outside_box_is_outside():
    """Each end of each parameter, of a network that is as bad as it gets."""
    rng = np.random.default_rng(9)
    for hidden in (0, 1, 2):
        net, box, X, target = problem(rng, hidden, width=2, inputs=2)
        facts = documents.claim(documents.digest(net), box, X[0], target, 1e6, "not robust")
        for end, way in ((box.low, -math.inf), (box.high, math.inf)):
            fields = documents.shifted_fields(end)
            assert checked(net, box, facts | {"shifted": fields}).accepted
            for i, layer in enumerate(fields):
                for row in [*layer["W"], *([layer["b"]] if layer["b"] else [])]:
                    for k, value in enumerate(row):
                        row[k] = math.nextafter(value, way)
                        verdict = checked(net, box, facts | {"shifted": fields})
                        assert f"of layer {i} lies outside the shift set" in verdict.reason
                        row[k] = value


# -- boxes that do not fit -------------------------------------------------------------------------


def test_box_is_needed_and_must_be_one():
    rng = np.random.default_rng(10)
    net, box, X, target = problem(rng, 1, outputs=1)
    certificate = pp.certify(net, X, box, target, certificates=True).certificates[0]
    assert certificate.check(net, box).accepted
    with raises(CertificateError, name="shifts", match="check"):
        certificate.check(net)
    assert "its file is needed" in checker.check(certificate.text, documents.parameters(net)).reason
    wider = box.scaled(1.01)
    assert "another shift set" in certificate.check(net, wider).reason
    other = pp.Network([(p.W, p.b) for p in net.layers], scale=np.full(net.inputs, 3.0))
    assert "another network" in certificate.check(other, box).reason


def test_box_of_another_shape_or_input_map_is_refused():
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
    ends = documents.parameters_of_shifts(good)
    for low, high in itertools.permutations(
        [ends.low, ends.high._replace(layers=[([[2.0]], None)])]
    ):
        uneven = checker.check(
            json.dumps(facts), documents.parameters(net), shifts=checker.Shifts(low, high)
        )
        assert "other shapes" in uneven.reason


def test_ends_that_cross_are_refused():
    net = pp.Network([([[1.0]], [0.0])])
    low, high = checker.Parameters([([[1.0]], [1.0])]), checker.Parameters([([[2.0]], [0.5])])
    crossed = checker.Shifts(low, high)
    facts = linear_proof(net, pp.Shifts(net, net), [1.0], 1, -9.0)
    facts["shifts"] = checker.digest(crossed)
    verdict = checker.check(json.dumps(facts), documents.parameters(net), shifts=crossed)
    assert "lies above its upper end" in verdict.reason


# -- what was proved -------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [True, False])
def test_statement_names_shift_set_and_membership(inside):
    net = pp.Network([([[1.0]], [0.25 if inside else 0.75])])
    box = pp.Shifts(pp.Network([([[1.0]], [0.0])]), pp.Network([([[1.5]], [0.5])]))
    certificate = pp.certify(net, [[1.0]], box, certificates=True).certificates[0]
    verdict = certificate.check(net, box)
    name = documents.digest(net)
    assert verdict.statement[:8] == ("robust", 1, [], [1.0], 0.0, box.digest, inside, name)
    itself = "lies in it" if inside else "does not lie in it"
    assert verdict.reason == (
        f"robust: every network of the shift set {box.digest} (the network itself {itself}) "
        "gives class 1 with a margin of at least 0.0 at input 1.0"
    )
    broken = pp.certify(net, [[1.0]], box, 0, certificates=True).certificates[0].check(net, box)
    assert broken.reason.startswith(f"not robust: a network of the shift set {box.digest} (")


def test_demanded_delta_is_met_by_box_that_holds_whole_ball():
    """Exactly: one float less of any end is too little, and rounding does not help."""
    third = 1.0 / 3.0
    net = pp.Network([([[third, -2.0]], [0.1]), ([[1.0], [0.5]], None)])
    box = pp.Shifts.of(net, 0.1)
    box = pp.Shifts(box.low, box.high)  # rounded outwards
    bounds = [
        [(np.array(p.W), None if p.b is None else np.array(p.b)) for p in end.layers]
        for end in (box.low, box.high)
    ]

    def verdict(box, **wanted):
        return checked(net, box, linear_proof(net, box, [0.5, 0.5], 1, -99.0), **wanted)

    assert verdict(box, delta=0.1).accepted
    assert verdict(box, delta=0.0).accepted
    for delta in (math.nextafter(0.1, 1.0) + 1e-15, math.inf, math.nan, -0.1):
        assert f"delta {delta!r} is required" in verdict(box, delta=delta).reason
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
                    assert checked(net, smaller, facts, delta=0.1).accepted == (room >= Q(0.1))
                    if room < Q(0.1):
                        break
                values[at] = old
                tight += 1
    assert tight == 10
    away = pp.Shifts(pp.Network([([[5.0, 5.0]], [5.0]), ([[1.0], [0.5]], None)]), box.high.with_layers(
        [([[6.0, 6.0]], [6.0]), ([[1.0], [0.5]], None)]))  # fmt: skip
    assert not verdict(away, delta=0.0).accepted


def test_demanded_box_is_one_that_was_proved():
    rng = np.random.default_rng(11)
    net, box, X, target = problem(rng, 1)
    low = float(pp.certify(net, X, box, target, exact_margin=True).lower[0]) - 1.0
    facts = pp.certify(net, X, box, target, margin=low, certificates=True).certificates[0].facts
    assert checked(net, box, facts, shifts=box.digest).accepted
    assert "the shift set '0000" in checked(net, box, facts, shifts="0" * 64).reason
    ball = pp.certify(net, X, 0.01, target, margin=-99.0, certificates=True).certificates[0]
    verdict = checker.check(ball.text, documents.parameters(net), checker.Demand(shifts=box.digest))
    assert not verdict.accepted
    assert "proves only: robust: every network within delta" in verdict.reason


def test_given_box_must_lie_within_delta():
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


@pytest.mark.every(3)
@pytest.mark.parametrize("hidden", range(4))
def test_no_accepted_certificate_of_extreme_box_is_false(hidden):
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


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", [extreme, cancelling])
@pytest.mark.parametrize("hidden", range(5))
def test_fast_bound_never_states_more_than_checker(kind, hidden):
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


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_ends_that_checker_cuts(depth):
    """Ends of 2^-110 beside 1 are cut, so the bound of the pass must be lower, too."""
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


def test_multipliers_count_as_work(monkeypatch):
    """A neuron with a gamma takes both ends of its row."""
    n = 40
    W = np.ones((n, n))
    net = pp.Network([(W[:, :1], np.ones(n)), (W, np.ones(n)), (W[:1], [0.0])])
    box = pp.Shifts(net, net)
    tree = [{"gamma": [[1, k, 0.5] for k in range(n)]}]
    for k in range(4):
        tree = [[1, k], *tree, *tree]
    facts = documents.claim(documents.digest(net), box, np.ones(1), 1, -1e9, "robust")
    facts |= {"tighten": False, "trees": [tree], "lower": [[0.5] * n], "upper": [[0.5] * n]}
    told, done = counted_work(monkeypatch)
    assert checked(net, box, facts).accepted
    assert sum(done) <= told[0] <= 4 * sum(done)


def test_both_ends_of_box_count_as_work(monkeypatch):
    """Denormal ends make long numbers, although the numbers of the network are short."""
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
        shifted = {"shifted": documents.shifted_fields(tiny)}
        facts = (
            documents.claim(documents.digest(net), box, np.zeros(2), 1, 1e3, "not robust") | shifted
        )
        for power in range(160):
            monkeypatch.setattr(checker, "MAX_WORK", int(2 ** (power / 4)))
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
def test_checker_reads_saved_shift_sets(tmp_path, hidden, matrix):
    rng = np.random.default_rng([15, hidden])
    for _ in range(4):
        net, box, _, _ = problem(rng, hidden, "shifts matrix" if matrix else "shifts")
        box.save(tmp_path / "box.npz")
        read = checker.read_shifts(str(tmp_path / "box.npz"))
        assert read == documents.parameters_of_shifts(box)
        assert checker.digest(read) == box.digest == pp.Shifts.load(tmp_path / "box.npz").digest
        pp.Shifts.of(net, 0.1).save(tmp_path / "ball.npz")
        ball = checker.digest(checker.read_shifts(str(tmp_path / "ball.npz")))
        assert ball == pp.Shifts.of(net, 0.1).digest


def test_digest_of_box_is_documented_bytes():
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
    assert checker.digest(documents.parameters_of_shifts(box)) == box.digest == expected


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
def test_shifts_file_is_read_whole_or_refused(tmp_path, changes):
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
def test_file_that_is_not_box_of_network_is_rejected(tmp_path, changes):
    net = pp.Network([(np.eye(2), np.zeros(2)), (np.ones((1, 2)), None)], scale=np.ones(2))
    good = checker.read_shifts(shifts_file(tmp_path / "good.npz"))
    high = net.with_layers([(2 * np.eye(2), np.ones(2)), (np.ones((1, 2)), None)])
    facts = linear_proof(net, pp.Shifts(net, high), [1.0, 1.0], 1, -9.0)
    assert checker.check(json.dumps(facts), documents.parameters(net), shifts=good).accepted
    box = checker.read_shifts(shifts_file(tmp_path / "box.npz", **changes))
    facts["shifts"] = checker.digest(box)
    verdict = checker.check(json.dumps(facts), documents.parameters(net), shifts=box)
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
    monkeypatch.setattr(checker, "MAX_NUMBERS", -62_500)  # so that 2 * 8 * numbers + 10^6 is 0
    with pytest.raises(checker.Rejected, match="bytes"):
        checker.read_shifts(path)
