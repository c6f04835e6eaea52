"""Delta refers to trained weights, even if fixed numbers were folded into them."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from fractions import Fraction as Q

import numpy as np
import pytest

import proplace as pp
from proplace.certification import checker, digest
from proplace.core.errors import DeltaError, ModelFileError, NetworkError
from proplace.core.transforms import Fold, InputTransform, folds_digest
from proplace.loaders.layers import Chain
from support.errors import raises

DELTA = 0.07


def _linear(W, b, h):
    return W @ h + (0.0 if b is None else b)


def _fixed(numbers, h):
    return h if numbers is None else numbers[0] * h + numbers[1]


@dataclasses.dataclass
class Trained:
    """Linear, fixed numbers, ReLU, fixed numbers, Linear, fixed numbers: written out once more."""

    layers: list  # (W, b) of the two Linear layers
    behind: tuple | None  # (factors, shifts) behind the first
    between: tuple | None  # behind the ReLU
    end: tuple | None  # behind the second

    @property
    def net(self):
        chain = Chain()
        chain.linear("one", *self.layers[0])
        if self.behind:
            chain.batch_norm("norm", *self.behind)
        chain.relu("relu")
        if self.between:
            chain.batch_norm("norm", *self.between)
        chain.linear("two", *self.layers[1])
        if self.end:
            chain.batch_norm("norm", *self.end)
        return chain.network("float64")

    def logit(self, x):
        (W, b), (W2, b2) = self.layers
        h = np.maximum(_fixed(self.behind, _linear(W, b, x)), 0.0)
        return float(_fixed(self.end, _linear(W2, b2, _fixed(self.between, h)))[0])

    @property
    def size(self):
        return sum(W.size + (0 if b is None else b.size) for W, b in self.layers)

    def moved(self, moves):
        """The same network after a move of the trained parameters. moves is a flat array."""
        layers, used = [], 0
        for W, b in self.layers:
            new = W + moves[used : used + W.size].reshape(W.shape)
            used += W.size
            layers.append((new, None if b is None else b + moves[used : used + b.size]))
            used += 0 if b is None else b.size
        return dataclasses.replace(self, layers=layers)


def trained(rng, *places, bias=(True, True), inputs=2, width=2):
    def norm(n):
        factor = rng.normal(0.0, 1.5, n)
        factor[rng.random(n) < 0.15] = 0.0
        return factor, rng.normal(0.0, 1.0, n)

    layers = [
        (rng.normal(size=(out, taken)), rng.normal(size=out) if some else None)
        for (out, taken), some in zip(((width, inputs), (1, width)), bias, strict=True)
    ]
    made = {place: norm(1 if place == "end" else width) for place in places}
    return Trained(layers, made.get("behind"), made.get("between"), made.get("end"))


def least(source, x, delta):
    signs = np.array([*itertools.product((-1.0, 1.0), repeat=source.size)])
    return min(source.moved(delta * move).logit(x) for move in signs)


def proved(net, x, delta):
    found = pp.certify(net, x[None], delta, 1, exact_margin=True)
    assert found.lower[0] == pytest.approx(found.upper[0], abs=1e-7)
    return float(found.lower[0])


ROWS = [("behind",), ("end",), ("behind", "end"), ()]
BIAS = [(True, True), (False, True), (True, False), (False, False)]


@pytest.mark.parametrize("bias", BIAS)
@pytest.mark.parametrize("places", ROWS)
def test_behind_linear_layer_nothing_is_lost(places, bias):
    """The worst-case margin is the smallest margin over all corners of the trained weights."""
    rng = np.random.default_rng([1, len(places), sum(bias)])
    for _ in range(6):
        source, x = trained(rng, *places, bias=bias), rng.normal(size=2)
        assert proved(source.net, x, DELTA) == pytest.approx(least(source, x, DELTA), abs=1e-6)


@pytest.mark.parametrize("bias", BIAS)
def test_in_front_of_linear_layer_box_is_sound(bias):
    rng = np.random.default_rng([2, sum(bias)])
    gaps = []
    for _ in range(12):
        source = trained(rng, "behind", "between", "end", bias=bias)
        x = rng.normal(size=2)
        gaps.append(least(source, x, DELTA) - proved(source.net, x, DELTA))
    assert min(gaps) >= -1e-6
    assert max(gaps) > 1e-3  # and larger than the networks it stands for


@pytest.mark.parametrize("bias", BIAS)
def test_in_front_of_linear_layer_nothing_is_lost_where_factor_and_shift_agree(bias):
    rng = np.random.default_rng([3, sum(bias)])
    for _ in range(6):
        source, x = trained(rng, "between", bias=bias), rng.normal(size=2)
        factor, shift = source.between
        source.between = factor, np.where(factor < 0.0, -np.abs(shift), np.abs(shift))
        assert proved(source.net, x, DELTA) == pytest.approx(least(source, x, DELTA), abs=1e-6)


def test_linear_model_with_fixed_factor():
    chain = Chain()
    chain.linear("one", np.array([[1.0, -2.0]]), np.array([0.5]))
    chain.batch_norm("norm", np.array([-3.0]), np.array([4.0]))
    net, x = chain.network("float64"), np.array([1.0, 0.25])
    # -3 (w x + b) + 4, with w x + b = 1 up to 0.1 (1 + 0.25 + 1)
    assert proved(net, x, 0.1) == pytest.approx(-3.0 * (1.0 + 0.225) + 4.0)


def test_every_interval_by_hand():
    W, b = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, -1.0])
    chain = Chain()
    chain.linear("zero", np.eye(2), None)
    chain.batch_norm("fixed", np.array([0.5, -2.0]), np.array([0.0, 7.0]))
    chain.relu("relu")
    chain.batch_norm("norm", np.array([-2.0, 0.0]), np.array([3.0, -1.0]))
    chain.linear("one", W, b)
    chain.batch_norm("norm", np.array([4.0, 0.0]), np.array([0.0, 5.0]))
    net = chain.network("float64")
    shifts = pp.Shifts.of(net, [(0.5, 0.25), (0.25, 0.5)])
    first, second = (box.radius for box in shifts.layers)
    np.testing.assert_allclose(first[0], [[0.25, 0.25], [1.0, 1.0]])
    np.testing.assert_array_equal(first[1], [0.0, 0.0])  # trained without bias
    np.testing.assert_allclose(second[0], [[2.0, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(second[1], [4.0 * (0.5 + 0.25 * (3.0 + 1.0)), 0.0])
    arrays = pp.Shifts.of(net, [(np.full((2, 2), 0.5), 0.25), (np.full((2, 2), 0.25), [0.5, 9.0])])
    assert arrays == shifts
    per_weight = pp.Shifts.of(net, [(0.0, 0.0), ([[1.0, 0.0], [1.0, 1.0]], [0.0, 0.0])])
    np.testing.assert_allclose(per_weight.layers[1].radius[1], [4.0 * 3.0, 0.0])
    assert (shifts.radii, shifts.radius) == (None, None)
    assert shifts.trained_radii == ((0.5, 0.0), (0.25, 0.5))
    assert arrays.trained_radii is None


def test_no_interval_is_rounded_inwards():
    """In rational numbers: what the trained parameters can make of the folded ones lies inside."""
    rng = np.random.default_rng(4)
    for _ in range(40):
        W, t = rng.normal(size=(2, 3)), rng.normal(size=3)
        fold = Fold(
            *(np.abs(rng.normal(size=n)) for n in (2, 3)), np.abs(t), np.abs(rng.normal(size=2))
        )
        D, d = (float(v) for v in np.abs(rng.normal(size=2)) * 10.0 ** rng.uniform(-5, 0))
        weight, bias = fold.radii(D, d)
        weights, biases = fold.radii(np.full(W.shape, D), np.full(2, d))
        assert (weight == weights).all()
        assert (bias == biases).all()
        for i in range(2):
            r = Q(float(fold.rows[i]))
            for j in range(3):
                exact = r * Q(float(fold.columns[j])) * Q(D)
                assert exact <= Q(float(weight[i, j])) <= exact * (1 + Q(1, 10**14))
            exact = Q(float(fold.bias[i])) * Q(d) + r * Q(D) * sum(Q(float(v)) for v in fold.shift)
            assert exact <= Q(float(bias[i])) <= exact * (1 + Q(1, 10**14))


def test_product_too_small_for_number_still_moves():
    fold = Fold(np.full(1, 1e-200), np.full(1, 1e-200), np.zeros(1), np.full(1, 1e-200))
    weight, bias = fold.radii(0.1, 1e-200)
    assert weight[0, 0] > 0.0
    assert bias[0] > 0.0


@pytest.mark.parametrize("places", [*ROWS, ("between",), ("behind", "between", "end")])
def test_networks_within_delta_lie_in_box(places):
    rng = np.random.default_rng([5, len(places)])
    for bias in BIAS:
        source = trained(rng, *places, bias=bias, inputs=3, width=4)
        net = source.net
        box = pp.Shifts.of(net, DELTA)
        assert box.trained_radius == DELTA
        for _ in range(20):
            move = rng.uniform(-0.999, 0.999, source.size) * DELTA
            other = source.moved(move).net
            assert box.contains(other)
            assert net.distance(other) <= np.abs(move).max() * (1.0 + 1e-9)
            # the least delta whose networks include the other one
            d = net.distance(other)
            assert pp.Shifts.of(net, d * (1.0 + 1e-9)).contains(other)
            assert not pp.Shifts.of(net, d * (1.0 - 1e-9)).contains(other)


def test_distances_behind_linear_layer_are_those_of_trained_parameters():
    rng = np.random.default_rng(6)
    source = trained(rng, "behind", "end", inputs=3, width=4)
    source.behind = rng.choice([-2.0, -0.5, 1.0, 3.0], 4), source.behind[1]
    source.end = np.array([-0.3]), source.end[1]
    move = rng.normal(size=source.size) * (rng.random(source.size) < 0.6)
    other = source.moved(move).net
    for p in (0, 1, 2, np.inf):
        assert source.net.distance(other, p) == pytest.approx(np.linalg.norm(move, p), rel=1e-9)


def test_distance_that_no_delta_covers():
    rng = np.random.default_rng(7)
    source = trained(rng, "behind")
    source.behind = np.array([0.0, 2.0]), np.array([1.0, 1.0])
    net = source.net
    other = dataclasses.replace(source, behind=(np.array([0.0, 2.0]), np.array([1.5, 1.0]))).net
    assert net.distance(other) == np.inf  # its batch norm shifts a neuron that has no weights
    assert not pp.Shifts.of(net, 1e6).contains(other)
    assert net.distance(net) == 0.0
    other = dataclasses.replace(source, behind=(np.array([0.0, 2.0]), np.array([1.0, 1.5]))).net
    assert net.distance(other) == pytest.approx(0.25)  # as if the bias had moved, times 2


def test_boxes_of_trained_weights():
    rng = np.random.default_rng(8)
    source = trained(rng, "behind", inputs=3, width=4)
    net = source.net
    box = pp.Shifts.of(net, DELTA)
    assert "within 0.07 of the trained weights and biases" in repr(box)
    half = box.scaled(0.5)
    assert half.trained_radius == 0.5 * DELTA
    assert half == pp.Shifts.of(net, 0.5 * DELTA)
    assert box.contains(half.low)
    assert box.contains(half.high)
    assert box.scaled(0.0).is_single_network
    assert pickle.loads(pickle.dumps(box)).trained_radius == DELTA
    assert pp.Shifts.of(net, box) is box
    layers = [(layer.W * 1.001, layer.b) for layer in net.layers]
    assert pp.Shifts.of(net.with_layers(layers), box) == box
    assert (
        pp.Shifts.of(net.with_layers(layers), box).trained_radii is None
    )  # around another network
    plain = pp.Network([(layer.W, layer.b) for layer in net.layers])
    assert pp.Shifts.of(plain, box).trained_radii is None
    given = pp.Shifts.of(plain, DELTA)  # of the folded weights
    assert given.trained_radius == DELTA
    assert pp.Shifts.of(net, given).trained_radii is None
    assert pp.Shifts.bounding([net, plain]).trained_radii is None
    pairs = pp.Shifts.of(net, [(0.1, 0.2), (0.3, 0.4)])
    assert (pairs.trained_radius, pairs.trained_radii) == (None, ((0.1, 0.2), (0.3, 0.4)))
    assert "radii per layer around the trained weights" in pairs.description


def test_no_delta_and_nothing_folded_keep_short_form():
    rng = np.random.default_rng(9)
    net = trained(rng, "behind", "between").net
    still = pp.Shifts.of(net, 0.0)
    assert still.radius == still.trained_radius == 0.0
    assert still.is_single_network
    assert pp.Shifts.of(net, still) is still
    source = trained(rng, "behind")
    source.behind = np.array([-1.0, 1.0]), np.array([3.0, -4.0])
    net = source.net
    assert not net.folded
    assert pp.Shifts.of(net, DELTA).radius == DELTA
    with raises(DeltaError, name="delta"):
        pp.Shifts.of(Trained(source.layers, (np.full(2, 1e300), np.zeros(2)), None, None).net, 1e10)


def test_bias_added_behind_fixed_numbers_counts_as_trained():
    chain = Chain()
    chain.linear("one", np.ones((1, 2)), np.ones(1))
    chain.batch_norm("norm", np.array([-3.0]), np.zeros(1))
    chain.add_bias("more", np.ones(1))
    box = pp.Shifts.of(chain.network("float64"), 0.1).layers[0]
    np.testing.assert_allclose(box.radius[1], [0.3 + 0.1])
    chain = Chain()
    chain.linear("one", np.ones((1, 2)), None)
    chain.add_bias("bias", np.ones(1))
    chain.add_bias("more", np.ones(1))
    assert pp.Shifts.of(chain.network("float64"), 0.1).radius == 0.1


def test_outputs_that_are_skipped_take_their_factors_along():
    chain = Chain()
    chain.linear("one", np.array([[-1.0, 2.0], [1.0, -2.0]]), np.zeros(2))
    chain.batch_norm("norm", np.array([3.0, 3.0]), np.zeros(2))
    assert chain.one_logit()
    np.testing.assert_array_equal(chain.network("float64").folds[0].rows, [3.0])
    chain = Chain()
    chain.linear("one", np.ones((3, 2)), np.zeros(3))
    chain.batch_norm("norm", np.array([1.0, 2.0, 3.0]), np.zeros(3))
    chain.take("take", [2, 0])
    fold = chain.network("float64").folds[0]
    np.testing.assert_array_equal(fold.rows, [3.0, 1.0])
    np.testing.assert_array_equal(fold.bias, [3.0, 1.0])


def test_folded_batch_norms_stay_with_network(tmp_path):
    rng = np.random.default_rng(10)
    net = trained(rng, "behind", "between", bias=(False, True), inputs=3, width=4).net
    box = pp.Shifts.of(net, DELTA)
    net.save(tmp_path / "net.npz")
    copies = [
        pickle.loads(pickle.dumps(net)),
        pp.Network.load(tmp_path / "net.npz"),
        net.with_layers((layer.W, layer.b) for layer in net.layers),
    ]
    for copy in copies:
        assert copy == net
        assert hash(copy) == hash(net)
        assert copy.folded
        assert folds_digest(copy.folds) == folds_digest(net.folds)
        assert pp.Shifts.of(copy, DELTA) == box
    mapped = net.with_input_transform(InputTransform(scale=np.full(3, 2.0)))
    assert folds_digest(mapped.folds) == folds_digest(net.folds)
    plain = pp.Network([(layer.W, layer.b) for layer in net.layers])
    assert plain != net
    assert folds_digest(plain.folds) == ""
    assert digest(plain) == digest(net)  # it computes the same
    checker.read_npz(tmp_path / "net.npz")


def test_files_with_other_arrays_are_refused(tmp_path):
    net = trained(np.random.default_rng(11), "behind", "between").net
    net.save(tmp_path / "net.npz")
    arrays = dict(np.load(tmp_path / "net.npz"))

    def saved(**changed):
        kept = {k: v for k, v in (arrays | changed).items() if v is not None}
        np.savez(tmp_path / "other.npz", **kept)
        return tmp_path / "other.npz"

    assert pp.Network.load(saved()) == net
    with raises(ModelFileError, name="other.npz", match="columns"):
        pp.Network.load(saved(fold_rows0=None))
    with raises(ModelFileError, name="other.npz", match="fold_rows2"):
        pp.Network.load(saved(fold_rows2=np.ones(1)))
    with pytest.raises(checker.Rejected, match="unknown arrays"):
        checker.read_npz(str(saved(fold_rows2=np.ones(1))))
    for wrong in (np.ones(3), -np.ones(2), np.ones((2, 1))):
        with raises(ModelFileError, name="other.npz", match="rows"):
            pp.Network.load(saved(fold_rows0=wrong))
    with raises(ModelFileError, name="other.npz", match="NaN"):
        pp.Network.load(saved(fold_bias1=np.full(1, np.nan)))
    with raises(ModelFileError, name="other.npz", match="input transform"):
        pp.Network.load(saved(fold_columns0=np.full(2, 2.0)))
    with raises(ModelFileError, name="other.npz", match="bias"):
        pp.Network.load(saved(b1=None))


def test_as_many_folds_as_layers():
    with raises(NetworkError, name="folds"):
        pp.Network([([[1.0]], None)], folds=[None, None])
