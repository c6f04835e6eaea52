"""Spaces of inputs that every network of Delta refuses, against mixed-integer programs and corners."""

from __future__ import annotations

import itertools
import json
import time

import numpy as np
import pytest

import proplace as pp
from oracles import BoxMilp, corner_margins, margins_of, random_box, random_case, size_of, spread
from proplace.certification import Choice, FixedPredictionSearch, Space, certify
from proplace.certification.fixed import STRICT
from proplace.core.errors import CertificateError
from support.errors import raises


def best_margin(net, low, high, delta, target):
    """Greatest margin of one of two classes over Delta and a box, by mixed-integer programs."""
    c = {(1, 0): [-1.0], (1, 1): [1.0], (2, 0): [1.0, -1.0], (2, 1): [-1.0, 1.0]}
    towards = np.array(c[net.outputs, target])
    programs = BoxMilp.cases(net, low, high, delta)
    return -min(program.least(-towards) for program in programs)


def around(rng, X):
    reach = rng.exponential(0.4, size=(2, *X.shape))
    reach[:, rng.random(X.shape) < 0.3] = 0.0
    return X - reach[0], X + reach[1]


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("hidden", range(4))
def test_box_is_refused_iff_no_network_accepts_point_of_it(hidden, outputs):
    met = {True: 0, False: 0}
    for seed in range(8):
        rng = np.random.default_rng([seed, hidden, outputs])
        case = random_case(rng, hidden, inputs=2, outputs=outputs, width=3)
        delta = random_box(rng, case.net) if seed % 3 == 2 else case.delta
        shifts = pp.Shifts.of(case.net, delta)
        for low, high in zip(*around(rng, case.X[:3]), strict=True):
            best = best_margin(case.net, low, high, delta, case.target)
            if abs(best) < 1e-6:
                continue
            found = FixedPredictionSearch(case.net, shifts, case.target).prove(
                [Space.of(low, high)]
            )
            assert (found is not None) == (best < 0.0)
            met[found is not None] += 1
    assert min(met.values()) >= 3


def test_of_several_classes_none_may_let_target_win():
    """Against networks at corners of Delta on a dense grid, with three classes."""
    proved = accepted = 0
    for seed in range(24):
        rng = np.random.default_rng([seed, 9])
        first = rng.normal(0, 1, (4, 2)), rng.normal(0, 0.5, 4)
        net = pp.Network([first, (rng.normal(0, 1, (3, 4)), rng.normal(0, 0.3, 3))])
        low = rng.uniform(-1, 0.5, 2)
        high = low + rng.uniform(0.1, 1.2, 2)
        signs = spread(net, 0.01, rng.choice([-1.0, 1.0], (40, size_of(net))))
        grid = itertools.product(*np.linspace(low, high, 9).T)
        best = max(margins_of(signs, np.array(x), 0).max() for x in grid)
        found = FixedPredictionSearch(net, pp.Shifts.of(net, 0.01), 0).prove([Space.of(low, high)])
        assert found is None or best < 0.0
        proved, accepted = proved + (found is not None), accepted + (best >= 0.0)
    assert proved >= 4
    assert accepted >= 4


@pytest.mark.parametrize("boxed", [False, True])
def test_different_classes_may_beat_target_in_different_places(boxed):
    """Class 1 wins on the right and class 2 on the left, but neither beats class 0 everywhere."""
    net = pp.Network([([[0.0], [1.0], [-1.0]], [0.0, 0.25, 0.25])])
    shifts = pp.Shifts.of(net, 0.05)
    if boxed:
        shifts = pp.Shifts(shifts.low, shifts.high)
    (root,) = FixedPredictionSearch(net, shifts, 0).prove(
        [Space.of(np.array([-1.0]), np.array([1.0]))]
    )
    assert {leaf.other for leaf in root.leaves()} == {1, 2}
    for leaf in root.leaves():
        ends = np.array([leaf.space.low, leaf.space.high])
        assert (net.logits(ends)[:, leaf.other] > 0.1).all()
    assert FixedPredictionSearch(net, pp.Shifts.of(net, 0.15), 0).prove([root.space]) is None


@pytest.mark.parametrize("target", [0, 1])
@pytest.mark.parametrize("outputs", [1, 2])
def test_tie_is_never_refusal(outputs, target):
    """Whatever a tie counts as: the margin of the target is 0, which reaches the class."""
    W = [[1.0]] if outputs == 1 else [[0.0], [1.0]]
    towards = 1.0 if target == 1 else -1.0
    net = pp.Network([(W, np.zeros(outputs))])
    shifts = pp.Shifts.of(net, 0.0)
    ends = sorted([-2.0 * towards, 0.0])
    touching = Space.of(np.array([ends[0]]), np.array([ends[1]]))
    assert net.margin([[0.0]], target)[0] == 0.0
    assert FixedPredictionSearch(net, shifts, target).prove([touching]) is None
    ends = sorted([-2.0 * towards, -2.0 * STRICT * towards])
    beside = Space.of(np.array([ends[0]]), np.array([ends[1]]))
    assert FixedPredictionSearch(net, shifts, target).prove([beside]) is not None


def test_point_that_one_corner_of_delta_accepts_is_not_refused():
    """The network clearly refuses. The most favourable network just accepts, or just refuses."""
    net = pp.Network([([[1.0, -1.0], [0.5, 2.0]], [0.0, -1.0]), ([[1.0, -2.0]], [-1.5])])
    x, shifts = np.array([1.0, 0.25]), []
    for delta in np.linspace(0.0, 0.4, 41):
        best = corner_margins(net, x, delta, 1).max()
        found = FixedPredictionSearch(net, pp.Shifts.of(net, delta), 1).prove([Space.of(x, x)])
        if abs(best) > 1e-6:
            assert (found is not None) == (best < 0.0)
            shifts.append(best < 0.0)
    assert 5 < sum(shifts) < len(shifts) - 5


def test_choices_are_exact_where_their_hull_is_not():
    """Between the two values of a column the network accepts, at both of them it refuses."""
    net = pp.Network([([[1.0], [-1.0]], [-0.5, 0.5]), ([[-4.0, -4.0]], [1.0])])  # |x - .5| <= .25
    shifts = pp.Shifts.of(net, 0.01)
    low, high = np.zeros(1), np.ones(1)
    assert FixedPredictionSearch(net, shifts, 1).prove([Space.of(low, high)]) is None
    two = Choice(np.array([0]), np.array([[0.0], [1.0]]))
    (root,) = FixedPredictionSearch(net, shifts, 1).prove([Space.of(low, high, [two])])
    assert [leaf.space.low[0] for leaf in root.leaves()] == [0.0, 1.0]
    three = Choice(np.array([0]), np.array([[0.0], [0.5], [1.0]]))
    assert FixedPredictionSearch(net, shifts, 1).prove([Space.of(low, high, [three])]) is None
    assert FixedPredictionSearch(net, shifts, 1).prove([Space.of(low, high, [two])], most=2) is None
    late = time.monotonic() - 1.0
    assert (
        FixedPredictionSearch(net, shifts, 1).prove([Space.of(low, high, [two])], deadline=late)
        is None
    )


def test_cuts_cover_their_space():
    """Random points of a space lie in exactly one leaf, or on the border of two."""
    rng = np.random.default_rng(3)
    space = Space.of(
        np.array([-1.0, 0.0, 0.0, 0.0, 2.0]),
        np.array([1.0, 0.0, 0.0, 0.0, 2.0]),
        [
            Choice(np.array([1, 2]), np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])),
            Choice(np.array([3]), np.array([[0.1], [0.2], [0.5], [0.9]])),
        ],
    )
    leaves = [space]
    for _ in range(40):
        i = int(rng.integers(len(leaves)))
        at = leaves[i].widest(rng.random(5))
        if at is not None:
            leaves[i : i + 1] = leaves[i].cut(at)
    assert len(leaves) > 12
    assert not any(leaf.widest(np.ones(5)) and leaf.low[4] < leaf.high[4] for leaf in leaves)
    for _ in range(300):
        x = np.array([rng.uniform(-1, 1), 0.0, 0.0, 0.0, 2.0])
        for choice in space.choices:
            x[choice.columns] = choice.values[rng.integers(len(choice.values))]
        assert any(((leaf.low <= x) & (x <= leaf.high)).all() for leaf in leaves)


# -- certificates ------------------------------------------------------------------------------------


def wide_case(kind):
    """A network, its set and a proof with cuts of an interval and of a choice, three classes."""
    net = pp.Network(
        [
            (np.eye(3), None),
            ([[0.0, 0.0, 0.0], [1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]], [0.0, 0.5, 0.5]),
        ],
        scale=[1.0, 1.0, 2.0],
    )
    shifts = pp.Shifts.of(net, 0.01)
    if kind == "box":
        shifts = pp.Shifts(shifts.low, shifts.high)
    low, high = np.array([0.0, 0.0, 0.5]), np.array([1.0, 1.0, 0.5])
    two = Choice(np.array([1]), np.array([[0.0], [1.0]]))
    refusal = FixedPredictionSearch(net, shifts, 0)
    space = Space.of(low, high, [two])
    return net, shifts, space, refusal.certificate(refusal.prove([space]))


@pytest.mark.parametrize("kind", ["delta", "box"])
def test_certificate_is_accepted_with_statement(kind, tmp_path):
    net, shifts, space, proof = wide_case(kind)
    verdict = proof.check(net, shifts, spaces=[space])
    assert verdict.accepted, verdict.reason
    said = verdict.statement
    assert (said.verdict, said.target, said.network) == ("fixed", 0, proof.facts["network"])
    assert said.margin >= STRICT
    kinds = {"cut" if "at" in node else "leaf" for node in proof.facts["trees"][0]}
    assert kinds == {"cut", "leaf"}
    proof.save(tmp_path / "proof.json")
    assert pp.certification.FixedPrediction.load(tmp_path / "proof.json") == proof


def test_certificate_of_another_set_network_or_space_is_rejected():
    net, _, space, proof = wide_case("delta")
    assert not proof.check(net, pp.Shifts.of(net, 0.011)).accepted
    assert proof.check(net, pp.Shifts.of(net, 0.009)).accepted
    other = pp.Network([(layer.W + 0.001, layer.b) for layer in net.layers], scale=net.scale)
    assert "another network" in proof.check(other).reason
    wider = Space.of(space.low, np.array([1.5, 1.0, 0.5]), space.choices)
    assert "other spaces of inputs" in proof.check(net, spaces=[wider]).reason
    _, _, _, boxed = wide_case("box")
    with raises(CertificateError, name="shifts"):
        boxed.check(net)
    assert not boxed.check(net, pp.Shifts.of(net, 0.02)).accepted


def leaf(facts, n=0):
    return [node for node in facts["trees"][0] if "certificate" in node][n]


def first_cut(facts, name):
    return next(node for node in facts["trees"][0] if name in node)


CHANGES = {
    "another target": lambda f: f.update(target=1),
    "a wider interval": lambda f: f["spaces"][0]["high"].__setitem__(0, 1.0 + 1e-9),
    "a kept column that moves": lambda f: f["spaces"][0]["low"].__setitem__(2, 0.499),
    "one more value": lambda f: f["spaces"][0]["choices"][0]["values"].append([0.5]),
    "a value outside": lambda f: f["spaces"][0]["choices"][0]["values"].append([2.0]),
    "the choice becomes an interval": lambda f: f["spaces"][0].update(choices=[]),
    "no space": lambda f: f.update(spaces=[], trees=[]),
    "one more space": lambda f: f["spaces"].append(f["spaces"][0]),
    "a larger delta": lambda f: f.update(delta=[[0.02, 0.02], [0.02, 0.02]]),
    "a larger delta everywhere": lambda f: (
        f.update(delta=[[0.5, 0.0], [0.5, 0.5]]),
        [
            node["certificate"].update(delta=[[0.5, 0.0], [0.5, 0.5]])
            for node in f["trees"][0]
            if "certificate" in node
        ],
    ),
    "a leaf less": lambda f: f["trees"][0].pop(),
    "a leaf more": lambda f: f["trees"][0].append(f["trees"][0][-1]),
    "leaves exchanged": lambda f: f["trees"][0].reverse(),
    "another winner": lambda f: leaf(f).update(other=3 - leaf(f)["other"]),
    "the target wins": lambda f: leaf(f).update(other=0),
    "the duel turned round": lambda f: leaf(f)["certificate"].update(target=1),
    "a margin of 0": lambda f: leaf(f)["certificate"].update(margin=0),
    "a smaller box": lambda f: leaf(f)["certificate"].update(
        high=leaf(f)["certificate"]["low"], input=leaf(f)["certificate"]["low"]
    ),
    "a cut elsewhere": lambda f: first_cut(f, "column").update(at=0.25),
    "a cut through a choice": lambda f: (
        first_cut(f, "choice") and first_cut(f, "column").update(column=1)
    ),
    "a cut of nothing": lambda f: first_cut(f, "choice").update(at=0),
    "a field more": lambda f: f.update(input=[0.0, 0.0, 0.5]),
    "nested": lambda f: leaf(f).update(certificate=json.loads(json.dumps(f))),
    "no certificate": lambda f: leaf(f).update(certificate=None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_certificate_is_rejected(change):
    """Each change claims more than was proved, or breaks the proof."""
    net, _, _, proof = wide_case("delta")
    facts = proof.facts
    CHANGES[change](facts)
    assert facts != proof.facts
    assert not pp.certification.FixedPrediction(json.dumps(facts)).check(net).accepted


@pytest.mark.parametrize("seed", range(6))
def test_certificates_of_random_networks_are_accepted(seed):
    rng = np.random.default_rng([seed, 4])
    met = 0
    for _ in range(6):
        case = random_case(rng, seed % 4, inputs=2, width=3)
        delta = random_box(rng, case.net) if seed % 3 == 2 else case.delta
        shifts = pp.Shifts.of(case.net, delta)
        low, high = (ends[0] for ends in around(rng, case.X[:1]))
        refusal = FixedPredictionSearch(case.net, shifts, case.target)
        trees = refusal.prove([Space.of(low, high)], most=16)
        if trees is not None:
            met += 1
            verdict = refusal.certificate(trees).check(case.net, shifts)
            assert verdict.accepted, verdict.reason
    assert met


@pytest.mark.parametrize("kind", ["the target wins", "not robust", "a point"])
def test_valid_proof_of_other_claim_is_rejected(kind):
    """Class 1 wins everywhere. A proof of this does not prove that class 1 is given nowhere."""
    net = pp.Network([([[1.0, -1.0]], [2.0])])
    low, high = np.zeros((1, 2)), np.full((1, 2), 0.5)
    box = None if kind == "a point" else (low, high)
    target, margin = (0, 0.5) if kind == "not robust" else (1, 0.5)
    report = certify(net, low, 0.01, target, margin=margin, box=box, certificates=True)
    (proof,) = report.certificates
    assert proof.check(net).accepted
    for other in (0, 1):
        facts = {
            "format": "proplace-fixed-1",
            "network": proof.facts["network"],
            "delta": proof.facts["delta"],
            "target": 1 - other,
            "spaces": [{"low": low[0].tolist(), "high": high[0].tolist(), "choices": []}],
            "trees": [[{"other": other, "certificate": proof.facts}]],
        }
        verdict = pp.certification.FixedPrediction(json.dumps(facts)).check(net)
        proves = kind == "the target wins" and other == 1  # that class 0 is given nowhere
        assert verdict.accepted == proves, verdict.reason
