"""Spaces of inputs that every network of Delta refuses, against mixed-integer programs and enumeration."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

import proplace as pp
from oracles import BoxMilp, corner_margins, margins_of, random_box, random_case, size_of, spread
from proplace.certification import Choice, Refusal, Space
from proplace.certification.refusal import STRICT


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
def test_a_box_is_refused_iff_no_network_accepts_a_point_of_it(hidden, outputs):
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
            found = Refusal(case.net, shifts, case.target).prove([Space.of(low, high)])
            assert (found is not None) == (best < 0.0)
            met[found is not None] += 1
    assert min(met.values()) >= 3


def test_of_several_classes_none_may_let_the_target_win():
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
        found = Refusal(net, pp.Shifts.of(net, 0.01), 0).prove([Space.of(low, high)])
        assert found is None or best < 0.0
        proved, accepted = proved + (found is not None), accepted + (best >= 0.0)
    assert proved >= 4
    assert accepted >= 4


@pytest.mark.parametrize("boxed", [False, True])
def test_different_classes_may_beat_the_target_in_different_places(boxed):
    """Class 1 wins on the right, class 2 on the left; neither beats class 0 everywhere."""
    net = pp.Network([([[0.0], [1.0], [-1.0]], [0.0, 0.25, 0.25])])
    shifts = pp.Shifts.of(net, 0.05)
    if boxed:
        shifts = pp.Shifts(shifts.low, shifts.high)
    (root,) = Refusal(net, shifts, 0).prove([Space.of(np.array([-1.0]), np.array([1.0]))])
    assert {leaf.other for leaf in root.leaves()} == {1, 2}
    for leaf in root.leaves():
        ends = np.array([leaf.space.low, leaf.space.high])
        assert (net.logits(ends)[:, leaf.other] > 0.1).all()
    assert Refusal(net, pp.Shifts.of(net, 0.15), 0).prove([root.space]) is None


@pytest.mark.parametrize("target", [0, 1])
@pytest.mark.parametrize("outputs", [1, 2])
def test_a_tie_is_never_a_refusal(outputs, target):
    """Whatever a tie counts as: the margin of the target is 0, which reaches the class."""
    W = [[1.0]] if outputs == 1 else [[0.0], [1.0]]
    towards = 1.0 if target == 1 else -1.0
    net = pp.Network([(W, np.zeros(outputs))])
    shifts = pp.Shifts.of(net, 0.0)
    ends = sorted([-2.0 * towards, 0.0])
    touching = Space.of(np.array([ends[0]]), np.array([ends[1]]))
    assert net.margin([[0.0]], target)[0] == 0.0
    assert Refusal(net, shifts, target).prove([touching]) is None
    ends = sorted([-2.0 * towards, -2.0 * STRICT * towards])
    beside = Space.of(np.array([ends[0]]), np.array([ends[1]]))
    assert Refusal(net, shifts, target).prove([beside]) is not None


def test_a_point_that_one_corner_of_delta_accepts_is_not_refused():
    """The network itself refuses by far; the most favourable one just accepts, or just does not."""
    net = pp.Network([([[1.0, -1.0], [0.5, 2.0]], [0.0, -1.0]), ([[1.0, -2.0]], [-1.5])])
    x, shifts = np.array([1.0, 0.25]), []
    for delta in np.linspace(0.0, 0.4, 41):
        best = corner_margins(net, x, delta, 1).max()
        found = Refusal(net, pp.Shifts.of(net, delta), 1).prove([Space.of(x, x)])
        if abs(best) > 1e-6:
            assert (found is not None) == (best < 0.0)
            shifts.append(best < 0.0)
    assert 5 < sum(shifts) < len(shifts) - 5


def test_choices_are_exact_where_their_hull_is_not():
    """Between the two values of a column the network accepts, at both of them it refuses."""
    net = pp.Network([([[1.0], [-1.0]], [-0.5, 0.5]), ([[-4.0, -4.0]], [1.0])])  # |x - .5| <= .25
    shifts = pp.Shifts.of(net, 0.01)
    low, high = np.zeros(1), np.ones(1)
    assert Refusal(net, shifts, 1).prove([Space.of(low, high)]) is None
    two = Choice(np.array([0]), np.array([[0.0], [1.0]]))
    (root,) = Refusal(net, shifts, 1).prove([Space.of(low, high, [two])])
    assert [leaf.space.low[0] for leaf in root.leaves()] == [0.0, 1.0]
    three = Choice(np.array([0]), np.array([[0.0], [0.5], [1.0]]))
    assert Refusal(net, shifts, 1).prove([Space.of(low, high, [three])]) is None
    assert Refusal(net, shifts, 1).prove([Space.of(low, high, [two])], most=2) is None
    late = time.monotonic() - 1.0
    assert Refusal(net, shifts, 1).prove([Space.of(low, high, [two])], deadline=late) is None


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
