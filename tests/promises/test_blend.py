"""The largest step that keeps every promise, against scans of the line, corners and exact fractions."""

import itertools
import sys
import types
from fractions import Fraction as Q

import numpy as np
import pytest

import exactly
import oracles
import proplace as pp
from proplace.core.errors import InputError, OptionError
from proplace.core.fold import Fold
from proplace.promises.line import Line


def random_net(rng, sizes, *, biased=True, size=1.0):
    return [
        (
            size * rng.normal(size=(b, a)) / np.sqrt(a),
            0.5 * size * rng.normal(size=b) if biased else None,
        )
        for a, b in itertools.pairwise(sizes)
    ]


def two_nets(seed, sizes, *, biased=True, step=1.0):
    rng = np.random.default_rng(seed)
    old = pp.Network(random_net(rng, sizes, biased=biased))
    moves = random_net(rng, sizes, biased=biased, size=step)
    new = old.with_layers(
        (layer.W + W, None if b is None else layer.b + b)
        for layer, (W, b) in zip(old.layers, moves, strict=True)
    )
    return rng, old, new


def on_line(old, new, t):
    """The network between two of them, by its definition."""
    return old.with_layers(
        (p.W + t * (q.W - p.W), None if p.b is None else p.b + t * (q.b - p.b))
        for p, q in zip(old.layers, new.layers, strict=True)
    )


def exact_margin(old, new, t, x, target):
    """Margin on the line in rational numbers."""
    layers = []
    for p, q in zip(old.layers, new.layers, strict=True):
        pairs = [(exactly.rational(p.W), exactly.rational(q.W))]
        W = [
            [a + t * (b - a) for a, b in zip(*rows, strict=True)]
            for rows in zip(*pairs[0], strict=True)
        ]
        ends = zip(exactly.rational(p.bias), exactly.rational(q.bias), strict=True)
        layers.append((W, [a + t * (b - a) for a, b in ends]))
    return exactly.margin(layers, exactly.seen(old, x), target)


def accepted(rng, net, count, least=0.05):
    X = rng.normal(size=(400, net.inputs))
    targets = net.predict(X)
    margins = np.array([net.margin(x, int(t))[0] for x, t in zip(X, targets, strict=True)])
    good = np.flatnonzero(margins > least)[:count]
    return X[good], targets[good]


def least_on_line(old, new, t, X, targets):
    """The least margin of all promises at t, by plain loops."""
    net = on_line(old, new, t)
    return min(
        oracles.margin_of(oracles.forward(net, x), int(c)) for x, c in zip(X, targets, strict=True)
    )


CASES = [
    ((3, 1), True),
    ((2, 4), True),
    ((3, 4, 1), True),
    ((3, 4, 1), False),
    ((2, 5, 3), True),
    ((3, 4, 4, 1), True),
    ((2, 4, 3, 3), False),
    ((2, 3, 3, 3, 2), True),
    ((2, 3, 3, 3, 3, 1), True),
]


@pytest.mark.parametrize(("sizes", "biased"), CASES)
@pytest.mark.parametrize("seed", range(3))
def test_as_a_scan_of_the_line_says(sizes, biased, seed):
    rng, old, new = two_nets(seed, sizes, biased=biased, step=1.5)
    X, targets = accepted(rng, old, 6)
    step = pp.blend(old, new, (X, targets), tolerance=1e-4)
    assert step.complete
    assert step.undecided == ()
    assert (step.network.predict(X) == targets).all()
    good = [t for t in np.linspace(0, 1, 201) if least_on_line(old, new, t, X, targets) > 1e-9]
    assert step.t >= max(good) - 1e-4
    if step.t < 1.0:
        above = np.linspace(step.t + 1.01e-4, 1.0, 80)
        assert all(least_on_line(old, new, t, X, targets) < 1e-9 for t in above)
        assert step.held_back
        rows = [int(name) for name in step.held_back]
        t = Q(step.t) + Q(1, 10**4)
        assert any(exact_margin(old, new, t, X[i], int(targets[i])) < Q(1, 10**9) for i in rows)


def with_gap(limit):
    """Promise A is kept up to 0.25 and from 0.75 on, promise B up to ``limit``."""
    k = 0.5 / limit
    old = pp.Network([([[1, 0], [-1, 0], [0, 1]], [0, 0, 0]), ([[1, 1, 1]], [-0.5])])
    new = pp.Network([([[-1, 0], [1, 0], [0, 1 - k]], [0, 0, 0]), ([[1, 1, 1]], [-0.5])])
    return old, new, np.array([[1.0, 0.0], [0.0, 1.0]])


def test_the_good_steps_need_not_be_an_interval():
    old, new, X = with_gap(0.85)
    assert least_on_line(old, new, 0.5, X, [1, 1]) == -0.5
    assert least_on_line(old, new, 0.8, X, [1, 1]) > 0.0
    step = pp.blend(old, new, (X, 1), tolerance=1e-7)
    assert step.complete
    assert 0.85 - 1e-7 <= step.t <= 0.85
    assert step.held_back == ("1",)


def test_a_second_stretch_that_is_out_of_reach_is_not_taken():
    old, new, X = with_gap(0.7)
    step = pp.blend(old, new, (X, 1), tolerance=1e-7)
    assert 0.25 - 1e-7 <= step.t <= 0.25
    assert "0" in step.held_back


def test_a_short_stretch_far_above_is_found():
    """Good below 0.2 and for a thousandth around 0.9: |t - 0.9| and a steep wall, by two promises."""
    # logit of A: 2 |t - 0.5501| - 0.7, so that A is good from 0.9001 on, and below 0.2001
    old = pp.Network([([[1.1002, 0], [-1.1002, 0], [0, 1]], None), ([[1, 1, 1]], [-0.7])])
    new = pp.Network(
        [([[-0.8998, 0], [0.8998, 0], [0, 1 - 0.3 / 0.901]], None), ([[1, 1, 1]], [-0.7])]
    )
    X = np.array([[1.0, 0.0], [0.0, 1.0]])
    step = pp.blend(old, new, (X, 1))
    assert step.complete
    assert step.t == pytest.approx(0.901, abs=2e-6)


def test_an_old_model_that_breaks_one_is_refused_by_name():
    old, new, X = with_gap(0.85)
    bad = pp.Promised(("fine", "Mrs. Sand"), np.array([[1.0, 0.0], [0.1, 0.1]]), np.array([1, 1]))
    with pytest.raises(InputError, match=r"old model itself does not keep promise 'Mrs\. Sand'"):
        pp.blend(old, new, bad)
    with pytest.raises(InputError, match="smaller delta"):
        pp.blend(old, new, (X, 1), delta=0.4)


def test_all_the_way():
    _, old, new = two_nets(0, (2, 3, 1))
    step = pp.blend(old, old, ([[0.0, 0.0]], int(old.predict([[0.0, 0.0]])[0])))
    assert (step.t, step.held_back, step.network) == (1.0, (), old)
    empty = pp.blend(old, new, (np.zeros((0, 2)), 1))
    assert (empty.t, empty.promises) == (1.0, 0)
    assert "t = 1" in str(empty)


def test_a_tie_along_the_whole_line_is_kept():
    """Nothing reaches the last layer of the first person: the logit is 0, which is class 1."""
    old = pp.Network([([[1.0], [2.0]], None), ([[1.0, 1.0]], None)])
    new = pp.Network([([[1.0], [2.0]], None), ([[-3.0, 1.0]], None)])
    step = pp.blend(old, new, ([[-1.0], [1.0]], 1))
    assert step.complete
    assert step.t == pytest.approx(0.75, abs=2e-6)
    assert step.held_back == ("1",)
    with pytest.raises(InputError, match="old model itself"):
        pp.blend(old, new, ([[-1.0]], 0))


def test_no_step_at_all():
    """The promise is lost at once: t is 0, and the network is the old one."""
    old, new = pp.Network([([[1.0]], [0.0])]), pp.Network([([[-1e9]], [0.0])])
    step = pp.blend(old, new, ([[1.0]], 1))
    assert step.t < 1e-6
    assert step.network.predict([[1.0]])[0] == 1


@pytest.mark.parametrize("sizes", [(2, 1), (2, 2, 1), (1, 2, 2, 1), (1, 2, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_robustly_against_all_corners(sizes, seed):
    rng, old, new = two_nets(seed, sizes, step=1.5)
    X, targets = accepted(rng, old, 30, 0.2)
    delta = 0.02
    strong = [
        i
        for i in range(len(X))
        if oracles.corner_margins(old, X[i], delta, int(targets[i])).min() > 0.01
    ][:3]
    X, targets = X[strong], targets[strong]
    step = pp.blend(old, new, (X, targets), delta=delta, tolerance=1e-4)
    assert step.complete
    worst = [
        oracles.corner_margins(step.network, x, delta, int(c)).min()
        for x, c in zip(X, targets, strict=True)
    ]
    assert min(worst) >= 0.0
    if step.t == 1.0:
        return
    for t in np.linspace(step.t + 1.01e-4, 1.0, 5):
        net = on_line(old, new, t)
        shifted = [
            oracles.corner_margins(net, x, delta, int(c)).min()
            for x, c in zip(X, targets, strict=True)
        ]
        assert min(shifted) < 1e-9, "an explicit shifted network breaks a promise"


def test_a_robust_step_is_shorter():
    _, old, new = two_nets(3, (3, 4, 1), step=1.5)
    X, targets = accepted(np.random.default_rng(5), old, 4, 0.3)
    plain = pp.blend(old, new, (X, targets))
    robust = pp.blend(old, new, (X, targets), delta=0.01)
    assert robust.t < plain.t < 1.0
    for target in np.unique(targets):
        rows = X[targets == target]
        assert pp.certify(robust.network, rows, 0.01, int(target)).robust.all()
    assert "within 0.01 of it" in str(robust)
    pairs = pp.blend(old, new, (X, targets), delta=[(0.01, 0.01)] * 2)
    assert pairs.t == robust.t


@pytest.mark.parametrize("seed", range(4))
def test_every_point_of_a_tolerance(seed):
    rng, old, new = two_nets(seed, (2, 4, 1), step=1.5)
    X, targets = accepted(rng, old, 20, 0.4)
    grid = np.stack(np.meshgrid(*[np.linspace(-0.1, 0.1, 21)] * 2), axis=-1).reshape(-1, 2)
    boxed = [i for i, c in enumerate(targets) if (old.margin(X[i] + grid, int(c)) > 0.05).all()][:3]
    X, targets = X[boxed], targets[boxed]
    promised = pp.Promised(tuple("abc"[: len(X)]), X, targets, X - 0.1, X + 0.1)
    step = pp.blend(old, new, promised, tolerance=1e-4)
    assert step.complete
    for x, c in zip(X, targets, strict=True):
        assert (step.network.predict(x + grid) == c).all()
    assert step.t <= pp.blend(old, new, (X, targets), tolerance=1e-4).t + 1e-4
    if step.t < 1.0:
        t = min(1.0, step.t + 0.05)
        low = [
            on_line(old, new, t).margin(x + grid, int(c)).min()
            for x, c in zip(X, targets, strict=True)
        ]
        # a grid misses the worst point by a little, so the check is a step further on
        assert min(low) < 0.02


def test_tolerance_and_delta_at_once():
    old, new = pp.Network([([[1.0, 0.0]], [0.0])]), pp.Network([([[0.0, 0.0]], [0.0])])
    promised = pp.Promised(
        ("a",), np.array([[1.0, 0.0]]), np.array([1]), [[0.9, -0.1]], [[1.1, 0.1]]
    )
    step = pp.blend(old, new, promised, delta=0.1)
    # (1 - t) 0.9 - 0.1 * (0.9 + 0.1 + 1) >= 0
    assert step.t == pytest.approx(1.0 - 0.2 / 0.9, abs=2e-6)
    assert step.t <= 1.0 - 0.2 / 0.9


def test_margin():
    old, new = pp.Network([([[1.0]], [0.0])]), pp.Network([([[-1.0]], [0.0])])
    assert pp.blend(old, new, ([[1.0]], 1), margin=0.5).t == pytest.approx(0.25, abs=2e-6)
    assert pp.blend(old, new, ([[1.0]], 1)).t == pytest.approx(0.5, abs=2e-6)
    with pytest.raises(OptionError, match=">= 0"):
        pp.blend(old, new, ([[1.0]], 1), margin=-0.5)
    with pytest.raises(OptionError, match="tolerance"):
        pp.blend(old, new, ([[1.0]], 1), tolerance=0.0)
    with pytest.raises(OptionError, match="stands where it is"):
        pp.blend(old, new, ([[1.0]], 1), delta=pp.Shifts.of(old, 0.1))


def forward32(net, X):
    h = np.asarray(X, dtype=np.float32)
    for i, layer in enumerate(net.layers):
        h = h @ layer.W.astype(np.float32).T + layer.bias.astype(np.float32)
        h = h if i == len(net.layers) - 1 else np.maximum(h, np.float32(0))
    return h


def test_parameters_of_a_float32_model_are_float32_numbers():
    _, old, new = two_nets(1, (4, 8, 1))
    old, new = (
        pp.Network(
            [(layer.W.astype(np.float32), layer.b.astype(np.float32)) for layer in net.layers],
            precision="float32",
        )
        for net in (old, new)
    )
    X, targets = accepted(np.random.default_rng(0), old, 50)
    X = X.astype(np.float32)
    # Near ends of the line the parameters are rounded by more than a step of the tolerance moves them.
    near = old.with_layers(
        ((layer.W + 1e-4 * last.W).astype(np.float32), layer.b)
        for layer, last in zip(old.layers, new.layers, strict=True)
    )
    for end in (new, near):
        step = pp.blend(old, end, (X, targets))
        assert step.complete
        assert step.network.precision == "float32"
        for layer in step.network.layers:
            assert (layer.W.astype(np.float32) == layer.W).all()
            assert (layer.b.astype(np.float32) == layer.b).all()
        said = (forward32(step.network, X)[:, 0] >= 0.0).astype(int)
        assert (said == targets).all()


def test_bounds_along_a_stretch_hold_and_are_of_second_order():
    for seed in range(12):
        sizes = [(3, 1), (3, 4, 1), (2, 4, 4, 3), (2, 3, 3, 3, 2)][seed % 4]
        rng, old, new = two_nets(seed, sizes)
        X = rng.normal(size=(20, sizes[0]))
        targets = rng.integers(0, old.classes, 20)
        line = Line(old, new)
        gaps = []
        for length in (0.3, 0.003):
            a = 0.4
            most = line.most(a, a + length, X, targets)
            seen = np.array(
                [
                    [
                        on_line(old, new, t).margin(x, int(c))[0]
                        for t in np.linspace(a, a + length, 9)
                    ]
                    for x, c in zip(X, targets, strict=True)
                ]
            ).max(axis=1)
            assert (most >= seen).all()
            gaps.append(np.median(most - seen))
        assert gaps[1] <= 0.01 * gaps[0] + 1e-5
        t = Q(2, 5)
        exact = [exact_margin(old, new, t, x, int(c)) for x, c in zip(X, targets, strict=True)]
        most = line.most(0.4 - 1e-15, 0.4 + 1e-15, X, targets)
        assert all(Q(float(m)) >= e for m, e in zip(most, exact, strict=True))
        assert all(float(m) - float(e) < 1e-9 for m, e in zip(most, exact, strict=True))


def test_bounds_along_a_displaced_stretch():
    rng, old, new = two_nets(2, (3, 4, 2))
    moved = [
        type(layer)(0.1 * rng.normal(size=layer.W.shape), 0.1 * rng.normal(size=layer.b.shape))
        for layer in old.layers
    ]
    X, targets = rng.normal(size=(20, 3)), np.zeros(20, dtype=int)
    most = Line(old, new).most(0.2, 0.25, X, targets, tuple(moved))
    for t in np.linspace(0.2, 0.25, 7):
        net = on_line(old, new, t)
        net = net.with_layers(
            (layer.W + d.W, layer.b + d.b) for layer, d in zip(net.layers, moved, strict=True)
        )
        assert (net.margin(X, 0) <= most).all()
    assert np.median(most - net.margin(X, 0)) < 0.2


def test_models_whose_scalers_were_fitted_again():
    import pandas as pd
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    tables = [
        pd.DataFrame(rng.normal(m, s, (200, 2)), columns=["a", "b"]) for m, s in ((3, 2), (4, 3))
    ]
    pipes = [
        make_pipeline(
            StandardScaler(), MLPClassifier((4,), solver="lbfgs", max_iter=40, random_state=0)
        ).fit(table, np.where(table["a"] > table["b"] + 2 * number, "yes", "no"))
        for number, table in enumerate(tables)
    ]
    model, new = map(pp.Model.of, pipes)
    answers = tables[0][model.network.margin(model.encode(tables[0]), 1) > 0.5]
    assert (pipes[1].predict(answers) == "no").any()
    step = pp.blend(*pipes, (answers, "yes"))
    assert step.complete
    assert 0.0 < step.t < 1.0
    assert (step.network.predict(model.encode(answers)) == 1).all()
    # The other end of the line is the new pipeline, behind the scaler of the old one.
    line = Line.between(model, new)
    both = np.vstack([t.to_numpy() for t in tables])
    logits = line.at(1.0).logits(model.encode(both))
    assert np.allclose(logits, new.network.logits(new.encode(both)))
    nearly = on_line(line.start, line.end, step.t + 2e-6)
    assert nearly.margin(model.encode(answers), 1).min() < 0.0


def test_other_architectures_are_refused():
    _, old, _ = two_nets(0, (2, 3, 1))
    _, new, _ = two_nets(0, (2, 4, 1))
    with pytest.raises(InputError, match="differ in architecture"):
        pp.blend(old, new, ([[0.0, 0.0]], 1))


def test_folded_batch_norms():
    """Equal ones scale delta; different ones leave only the folded layers to be blended."""
    _, old, new = two_nets(0, (2, 3, 1))
    fold = Fold(np.full(3, 2.0), np.ones(2), np.zeros(2), np.full(3, 2.0))

    def folded(net, fold):
        return pp.Network([(layer.W, layer.b) for layer in net.layers], folds=[fold, None])

    X, targets = accepted(np.random.default_rng(0), old, 3, 0.3)
    same = pp.blend(folded(old, fold), folded(new, fold), (X, targets), delta=0.01)
    assert not same.folded
    assert same.network.folds[0] is not None
    plain = pp.blend(old, new, (X, targets), delta=[(0.02, 0.02), (0.01, 0.01)])
    assert same.t == pytest.approx(plain.t, abs=1e-6)
    other = Fold(np.full(3, 3.0), np.ones(2), np.zeros(2), np.full(3, 3.0))
    mixed = pp.blend(folded(old, fold), folded(new, other), (X, targets))
    assert mixed.folded
    assert not mixed.network.folded
    assert mixed.t == 1.0 or "batch norm" in str(mixed)
    with pytest.raises(InputError, match="different batch norms"):
        pp.blend(folded(old, fold), folded(new, other), (X, targets), delta=0.01)


def test_what_cannot_be_decided_is_said(monkeypatch):
    """With too few steps the answer is still good, and says that it is not the proved largest."""
    from proplace.promises import blend as module

    monkeypatch.setattr(module, "_STEPS", 2)
    old, new, X = with_gap(0.85)
    step = pp.blend(old, new, (X, 1))
    assert not step.complete
    assert any(a <= 0.85 <= b for a, b in step.undecided)
    assert (step.network.predict(X) == 1).all()
    assert "undecided" in str(step)


def test_the_model_is_placed(monkeypatch):
    """By promises.placing, whose answer says what rounding did."""
    module = types.ModuleType("proplace.promises.placing")
    placed = types.SimpleNamespace(model="model", rounding=0.0)
    module.place = lambda network, source: placed
    monkeypatch.setitem(sys.modules, "proplace.promises.placing", module)
    _, old, new = two_nets(0, (2, 3, 1))
    step = pp.blend(old, new, ([[0.0, 0.0]], int(old.predict([[0.0, 0.0]])[0])))
    assert step.model is step.network
    object.__setattr__(step, "_source", object())
    assert step.model == "model"
    assert step.placed(object()) is placed
    placed.rounding = 1e-9
    with pytest.raises(InputError, match="rounds the parameters"):
        _ = step.model
