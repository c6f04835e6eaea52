"""The smallest change of the last layer, against plain linear programs, corners and closed forms."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

import oracles
import proplace as pp
from proplace.core.errors import InputError, OptionError, SolverError
from proplace.core.transforms import Fold
from proplace.retrain import last_layer as module
from support.errors import raises
from support.problems import dense
from support.tiers import seeds


def random_net(rng, sizes, *, biased=True):
    return dense(rng, sizes, gain=1.0, bias=0.5 if biased else 0.0)


def hidden(net, x):
    """Inputs of the last layer, computed with loops."""
    h = oracles.seen(net, x)
    for W, b in oracles.pairs_of(net)[:-1]:
        h = np.array([max(0.0, float(row @ h + c)) for row, c in zip(W, b, strict=True)])
    return h


def rows_of(net, H, targets, margins):
    """All rows ``a . x >= r`` of the linear program, one for each promise and rival."""
    last = net.layers[-1]
    A, r = [], []
    for h, target, margin in zip(H, targets, margins, strict=True):
        logits = last.W @ h + last.bias
        rivals = [None] if net.outputs == 1 else [o for o in range(net.outputs) if o != target]
        for o in rivals:
            c = np.zeros(net.outputs)
            if o is None:
                c[0] = 1.0 if target == 1 else -1.0
            else:
                c[target], c[o] = 1.0, -1.0
            A.append(np.concatenate([np.outer(c, h).ravel(), *([] if last.b is None else [c])]))
            r.append(margin - c @ logits)
    return np.array(A), np.array(r)


def plain_program(A, r, reach=None):
    """Least epsilon by scipy, with every row."""
    n = A.shape[1]
    reach = np.ones(n) if reach is None else reach
    one = np.eye(n)
    G = np.vstack(
        [
            np.hstack([-A, np.zeros((len(A), 1))]),
            np.hstack([one, -reach[:, None]]),
            np.hstack([-one, -reach[:, None]]),
        ]
    )
    h = np.concatenate([-r, np.zeros(2 * n)])
    cost = np.append(np.zeros(n), 1.0)
    return linprog(cost, G, h, bounds=[(None, None)] * n + [(0, None)], method="highs-ds")


CASES = [
    ((3, 1), True),
    ((3, 1), False),
    ((3, 3), True),
    ((3, 5, 1), True),
    ((3, 5, 1), False),
    ((3, 5, 3), True),
    ((2, 6, 4, 1), True),
    ((2, 6, 4, 4), False),
    ((2, 5, 5, 5, 5, 2), True),
]


def crowd(seed, sizes, *, biased, margin):
    """A network, promises some of which it breaks, and the rows of the whole program."""
    rng = np.random.default_rng(seed)
    for _ in range(100):
        net, other = (random_net(rng, sizes, biased=biased) for _ in range(2))
        pairs = [(layer.W, layer.b) for layer in (*net.layers[:-1], other.layers[-1])]
        goal = net.with_layers(pairs)  # of the same hidden layers, so that promises can be kept
        X = rng.normal(size=(60, sizes[0]))
        targets = goal.predict(X)
        clear = [goal.margin(x, int(t))[0] > 0.1 for x, t in zip(X, targets, strict=True)]
        X, targets = X[clear][:25], targets[clear][:25]
        if len(X) and (net.predict(X) != targets).any():
            break
    else:
        raise AssertionError("no promise is broken")
    A, r = rows_of(net, [hidden(net, x) for x in X], targets, [margin] * len(X))
    return net, X, targets, A, r


@pytest.mark.parametrize(("sizes", "biased"), CASES)
@pytest.mark.parametrize("seed", seeds(2, 4))
def test_repair_agrees_with_plain_linear_program(sizes, biased, seed):
    net, X, targets, A, r = crowd(seed, sizes, biased=biased, margin=0.05)
    answer = plain_program(A, r)
    assert answer.status == 0  # the network that gave the targets is one solution
    found = pp.retrain.repair(net, (X, targets), margin=0.05)
    assert found.change == pytest.approx(answer.fun, rel=1e-5, abs=1e-9)
    assert found.bound == pytest.approx(answer.fun, rel=1e-5, abs=1e-9)
    assert found.bound <= answer.fun * (1 + 1e-9) + 1e-12
    assert found.bound <= found.change
    assert (found.network.predict(X) == targets).all()
    margins = [
        oracles.margin_of(oracles.forward(found.network, x), int(t))
        for x, t in zip(X, targets, strict=True)
    ]
    assert min(margins) >= 0.05
    before = [
        oracles.margin_of(oracles.forward(net, x), int(t)) for x, t in zip(X, targets, strict=True)
    ]
    assert found.repaired_promises == tuple(str(i) for i, m in enumerate(before) if m < 0.05)
    for first, last in zip(net.layers[:-1], found.network.layers[:-1], strict=True):
        assert np.array_equal(first.W, last.W)
    assert net.distance(found.network) == found.change


def test_one_weight_and_one_bias_in_closed_form():
    net = pp.Network([([[1.0]], [-2.0])])
    found = pp.retrain.repair(net, ([[1.0], [3.0], [-1.0]], [1, 1, 0]), margin=0.1)
    # x = 1: (1 + e) + (-2 + e) = 0.1
    assert found.change == pytest.approx(0.55, rel=1e-5)
    assert "0.55" in str(found)


def test_bound_is_that_of_multipliers_not_of_solver():
    """Any multipliers give a true bound, and the returned bound is below every feasible change."""
    net, X, targets, A, r = crowd(1, (3, 5, 1), biased=True, margin=0.05)
    best = plain_program(A, r).fun
    cuts = module._Cuts(
        module.PromiseCheck.of(
            pp.Model.of(net), pp.retrain.Promised.of(pp.Model.of(net), (X, targets)), None, 0.05
        ),
        module._LastLayer.of(net),
        np.full(len(X), 0.05),
        np.zeros(len(X), dtype=bool),
    )
    cuts.run()
    rng = np.random.default_rng(0)
    for _ in range(50):
        y = rng.exponential(size=len(cuts.cuts)) * (rng.random(len(cuts.cuts)) < 0.3)
        assert module._least_change(cuts.last_layer, cuts.cuts, y) <= best * (1 + 1e-9)


def test_kept_promises_leave_model_unchanged():
    net = pp.Network([([[1.0, 0.0]], [0.0])])
    found = pp.retrain.repair(net, ([[1.0, 0.0]], 1))
    assert found.network is net
    assert (found.change, found.bound, found.repaired_promises) == (0.0, 0.0, ())
    assert "as it is" in str(found)
    assert pp.retrain.repair(net, (np.zeros((0, 2)), 1)).promises == 0


def test_promises_that_exclude_each_other_are_named():
    """The hidden layer sees no difference between two people with different promises."""
    net = pp.Network([([[1.0, 0.0], [1.0, 0.0]], None), ([[1.0, 1.0]], [0.0])])
    promised = pp.retrain.Promised(
        ("other", "first", "second"),
        np.array([[3.0, 0.0], [1.0, 2.0], [1.0, -2.0]]),
        np.array([1, 1, 0]),
    )
    with raises(InputError, match="'first', 'second'"):
        pp.retrain.repair(net, promised)
    with raises(InputError, match="'0', '1', '2'"):
        # a line of three points with classes 1, 0, 1
        pp.retrain.repair(pp.Network([([[1.0]], [0.0])]), ([[1.0], [2.0], [3.0]], [1, 0, 1]))


def test_repair_without_any_effect_is_rejected():
    net = pp.Network([([[1.0], [2.0]], [0.0, 0.0]), ([[1.0, 1.0]], None)])
    with raises(InputError, match="no bias"):
        pp.retrain.repair(net, ([[-1.0]], 1), margin=0.1)
    biased = pp.Network([([[1.0], [2.0]], [0.0, 0.0]), ([[1.0, 1.0]], [-0.5])])
    assert pp.retrain.repair(biased, ([[-1.0]], 1), margin=0.1).change == pytest.approx(
        0.6, rel=1e-5
    )


def test_tie_is_not_acceptance():
    """Class 0 needs a logit below 0: predict must return 0, in addition to the margin."""
    net = pp.Network([([[1.0]], [0.0])])
    found = pp.retrain.repair(net, ([[0.0]], 0))
    assert found.repaired_promises == ("0",)
    assert found.network.predict([[0.0]])[0] == 0
    assert found.change < 1e-9
    both = pp.Network([([[0.0], [0.0], [0.0]], [0.0, 0.0, 0.0])])
    assert pp.retrain.repair(both, ([[1.0]], 2)).network.predict([[1.0]])[0] == 2


def test_accepted_tie_leaves_model_unchanged():
    """Nothing reaches the last layer of the first person: the logit is 0, which is class 1."""
    layers = [([[1.0], [2.0]], [0.0, 0.0]), ([[1.0, -2.0]], None)]
    net = pp.Network(layers)
    assert net.predict([[-1.0]])[0] == 1
    assert pp.retrain.repair(net, ([[-1.0]], 1)).repaired_promises == ()
    found = pp.retrain.repair(net, ([[-1.0], [1.0]], 1), margin=0.0)
    assert found.repaired_promises == ("1",)
    assert found.change == pytest.approx(1.0, rel=1e-5)
    assert (found.network.predict([[-1.0], [1.0]]) == 1).all()
    with raises(InputError, match="are 0 there"):
        pp.retrain.repair(net, ([[-1.0], [1.0]], 0))


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_tolerances_without_hidden_layers(outputs, seed):
    """The worst point of a box is a corner, so that all corners give the plain program."""
    rng = np.random.default_rng(seed)
    net, goal = random_net(rng, (3, outputs)), random_net(rng, (3, outputs))
    X = rng.normal(size=(40, 3))
    signs = np.array(list(itertools.product((-0.1, 0.1), repeat=3)))
    targets = goal.predict(X)
    good = [i for i, t in enumerate(targets) if goal.margin(X[i] + signs, int(t)).min() > 0.1][:10]
    X, targets = X[good], targets[good]
    promised = pp.retrain.Promised(tuple(map(str, good)), X, targets, X - 0.1, X + 0.1)
    found = pp.retrain.repair(net, promised, margin=0.05)
    corners = (X[:, None] + signs).reshape(-1, 3)
    A, r = rows_of(net, corners, np.repeat(targets, 8), [0.05] * len(corners))
    best = plain_program(A, r).fun
    assert found.change == pytest.approx(best, rel=1e-5)
    assert found.bound == pytest.approx(best, rel=1e-5)
    assert (found.network.predict(corners) == np.repeat(targets, 8)).all()


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_tolerances_and_delta_with_hidden_layers(seed):
    rng = np.random.default_rng(seed)
    net = random_net(rng, (2, 3, 1))
    goal = net.with_layers(
        [(net.layers[0].W, net.layers[0].b), (net.layers[1].W + rng.normal(size=(1, 3)), [0.2])]
    )
    delta = 0.02
    X = rng.normal(size=(80, 2))
    targets = goal.predict(X)
    box = (X - 0.05, X + 0.05)
    good = np.zeros(len(X), dtype=bool)
    for target in (0, 1):
        report = pp.certification.certify(goal, X, delta, target, margin=0.02, box=box)
        good |= report.robust & (targets == target)
    rows = np.flatnonzero(good)[:8]
    X, targets = X[rows], targets[rows]
    promised = pp.retrain.Promised(tuple(map(str, rows)), X, targets, X - 0.05, X + 0.05)
    found = pp.retrain.repair(net, promised, delta=delta, margin=0.01)
    grid = np.stack(np.meshgrid(*[np.linspace(-0.05, 0.05, 5)] * 2), axis=-1).reshape(-1, 2)
    for x, t in zip(X, targets, strict=True):
        for p in x + grid:
            assert oracles.sampled_margins(found.network, p, delta, int(t), rng, 200).min() >= 0.01
    # From below: activations at corners of the hidden box and of the points, each a row that must hold.
    W, b = net.layers[0].W, net.layers[0].b
    A, r = [], []
    for x, t in zip(X, targets, strict=True):
        for p in x + 0.05 * np.array(list(itertools.product((-1, 1), repeat=2))):
            for side in itertools.product((-1, 1), repeat=3):
                z = W @ p + b + np.array(side) * delta * (np.abs(p).sum() + 1.0)
                h = np.maximum(z, 0.0)
                sign = 1.0 if t == 1 else -1.0
                loss = delta * (h.sum() + 1.0)
                A.append(sign * np.append(h, 1.0))
                r.append(0.01 + loss - sign * (net.layers[1].W[0] @ h + net.layers[1].b[0]))
    lower = plain_program(np.array(A), np.array(r)).fun
    assert found.change >= lower - 1e-9
    assert found.change == pytest.approx(lower, rel=0.05, abs=1e-3)
    assert found.bound == pytest.approx(found.change, rel=1e-5, abs=1e-9)


def test_delta_in_closed_form():
    """Without hidden layers delta costs delta (|x|_1 + 1)."""
    net = pp.Network([([[1.0, -1.0]], [0.0])])
    found = pp.retrain.repair(net, ([[1.0, 2.0]], 1), delta=0.1)
    # -1 + 4 e - 0.1 * 4 = 0
    assert found.change == pytest.approx(0.35, rel=1e-5)
    assert found.bound == pytest.approx(0.35, rel=1e-5)
    assert pp.certify(found.network, [[1.0, 2.0]], 0.1).robust.all()
    assert not pp.certify(found.network, [[1.0, 2.0]], 0.1001).robust.any()
    pairs = pp.retrain.repair(net, ([[1.0, 2.0]], 1), delta=[(0.1, 0.0)])
    assert pairs.change == pytest.approx(0.325, rel=1e-5)


def test_batch_norm_behind_last_layer():
    """Rows and columns are scaled: the change is one of the trained weights."""
    W, b = np.array([[1.0, -1.0]]), np.array([0.25])
    fold = Fold(np.array([2.0]), np.array([0.5, 3.0]), np.zeros(2), np.array([2.0]))
    net = pp.Network([(np.eye(2), None), (W, b)], folds=[None, fold])
    X = np.array([[1.0, 2.0]])
    found = pp.retrain.repair(net, (X, 1), margin=0.05)
    # largest changes of the folded ones: 1, 6 and 2, and -0.75 + e (1 + 12 + 2) = 0.05
    assert found.change == pytest.approx(0.8 / 15.0, rel=1e-5)
    assert found.change == pytest.approx(net.distance(found.network), rel=1e-12)
    assert not found.folded
    A, r = rows_of(net, X, [1], [0.05])
    assert found.bound == pytest.approx(
        plain_program(A, r, np.array([1.0, 6.0, 2.0])).fun, rel=1e-5
    )
    no_bias = Fold(np.array([2.0]), np.array([0.5, 3.0]), np.zeros(2), np.array([0.0]))
    still = pp.Network([(np.eye(2), None), (W, b)], folds=[None, no_bias])
    fixed = pp.retrain.repair(still, (X, 1), margin=0.05)
    assert fixed.network.layers[-1].b == b
    assert fixed.change == pytest.approx(0.8 / 13.0, rel=1e-5)


def test_batch_norm_with_shift_is_reported_to_be_folded():
    fold = Fold(np.ones(1), np.array([0.5, 3.0]), np.array([1.0, 0.0]), np.ones(1))
    net = pp.Network([(np.eye(2), None), ([[1.0, -1.0]], [0.25])], folds=[None, fold])
    found = pp.retrain.repair(net, ([[1.0, 2.0]], 1), margin=0.05)
    assert found.folded
    assert found.change == pytest.approx(0.8 / 4.0, rel=1e-5)
    assert "batch norm folded in" in str(found)


def test_float32():
    rng = np.random.default_rng(0)
    net, X, targets, _, _ = crowd(2, (4, 8, 1), biased=True, margin=0.0)
    net = pp.Network(
        [(layer.W.astype(np.float32), layer.b.astype(np.float32)) for layer in net.layers],
        precision="float32",
    )
    X = X.astype(np.float32)
    found = pp.retrain.repair(net, (X, targets))
    assert found.repaired_promises
    last = found.network.layers[-1]
    assert (last.W.astype(np.float32) == last.W).all()
    assert (last.b.astype(np.float32) == last.b).all()
    for _ in range(20):  # sums in any order
        h = X[:, rng.permutation(4)] * 0 + X
        for i, layer in enumerate(found.network.layers):
            order = rng.permutation(layer.W.shape[1])
            W = layer.W.astype(np.float32)
            z = layer.b.astype(np.float32) + np.zeros((len(X), 1), dtype=np.float32)
            for j in order:
                z = z + h[:, [j]] * W[:, j]
            h = z if i == len(found.network.layers) - 1 else np.maximum(z, np.float32(0))
        assert ((h[:, 0] >= 0) == (targets == 1)).all()
    assert found.change <= found.bound * (1 + 1e-4) + 1e-6


def test_margins_grow_with_repaired_weights():
    """A large change has larger rounding errors, so the repaired network keeps a larger margin."""
    net = pp.Network([([[1e-4, -1e-4]], [1e-4])], precision="float32")
    X = np.array([[1.0, 1.0], [1.0, 1.00001]])
    found = pp.retrain.repair(net, (X, [1, 0]))
    assert (pp.certify(found.network, X[:1], 0.0, 1).robust).all()
    assert (pp.certify(found.network, X[1:], 0.0, 0).robust).all()


def test_accuracy():
    net = pp.Network([([[1.0]], [-2.0])])
    data = np.array([[0.0], [1.0], [1.5], [3.0]]), [0, 1, 0, 1]
    found = pp.retrain.repair(net, ([[1.0]], 1), data=data)
    assert (found.accuracy_before, found.accuracy_after) == (0.75, 0.75)
    assert "Accuracy 0.7500 before" in str(found)
    assert pp.retrain.repair(net, ([[1.0]], 1)).accuracy_after is None
    with raises(InputError, name="data"):
        pp.retrain.repair(net, ([[1.0]], 1), data=(data[0], [1]))


def test_of_changes_of_one_size_one_with_least_sum():
    """The second promise alone decides the size. No other parameter must move that far."""
    net = pp.Network([([[1.0, 1.0, 1.0]], None)])
    X = np.array([[-1.0, 0.0, 0.0]])
    found = pp.retrain.repair(net, (X, 1), margin=0.1)
    assert np.array_equal(found.network.layers[0].W[0, 1:], [1.0, 1.0])


def test_many_promises_take_few_rows(monkeypatch):
    rng = np.random.default_rng(0)
    net = random_net(rng, (10, 20, 20, 1))
    goal = net.with_layers(
        (layer.W + 0.1 * rng.normal(size=layer.W.shape) * (i == 2), layer.b)
        for i, layer in enumerate(net.layers)
    )
    X = rng.normal(size=(20_000, 10))
    targets = goal.predict(X)
    clear = np.abs(goal.logits(X)[:, 0]) > 0.02
    added = []
    add = module._Cuts._add
    monkeypatch.setattr(
        module._Cuts, "_add", lambda self, cuts: (added.append(len(cuts)), add(self, cuts))
    )
    found = pp.retrain.repair(net, (X[clear], targets[clear]))
    assert (found.network.predict(X[clear]) == targets[clear]).all()
    assert len(found.repaired_promises) > 200
    assert sum(added) < 2_000
    assert found.change <= found.bound * (1 + 1e-5)


def test_solver_that_gives_up_is_not_answer(monkeypatch):
    monkeypatch.setattr(module.LinearProgram, "solve", lambda self: "failed")
    with pytest.raises(SolverError, match="did not solve"):
        pp.retrain.repair(pp.Network([([[1.0]], [0.0])]), ([[1.0]], 0))


def test_margins_and_deltas_that_mean_nothing_are_rejected():
    net = pp.Network([([[1.0]], [0.0])])
    with raises(OptionError, name="margin", value=-0.5):
        pp.retrain.repair(net, ([[1.0]], 1), margin=-0.5)
    with raises(OptionError, name="delta", match="stay_within"):
        pp.retrain.repair(net, ([[1.0]], 1), delta=pp.Shifts.of(net, 0.1))
