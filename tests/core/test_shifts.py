"""Shift sets."""

from __future__ import annotations

import itertools
import pickle
from fractions import Fraction as Q

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import proplace as pp
from oracles import random_box, random_case
from proplace.core.errors import DeltaError, ModelFileError, NetworkError, ProplaceError
from refits import SHAPES, fitted, people, retrained
from support.errors import raises
from support.tiers import examples

NET = pp.Network([([[1.0, 2.0]], [0.5]), ([[1.0]], None), ([[1.0], [2.0]], [0.0, 1.0])])
PAIRS = [(layer.W, layer.b) for layer in NET.layers]
RADII = st.floats(0, 1e6)


def moved(net, rng, size):
    """A network with other parameters."""
    return net.with_layers(
        [
            (
                layer.W + rng.normal(size=layer.W.shape) * size,
                None if layer.b is None else layer.b + rng.normal(size=layer.b.shape) * size,
            )
            for layer in net.layers
        ]
    )


def parameters(net):
    return np.concatenate([np.append(layer.W.ravel(), layer.bias) for layer in net.layers])


# -- short forms -------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.25, np.float32(0.25), np.float64(0.25)])
def test_one_number_holds_for_all_layers(delta):
    shifts = pp.Shifts.of(NET, delta)
    assert shifts.radii == ((0.25, 0.25), (0.25, 0.0), (0.25, 0.25))  # no bias, nothing to shift
    assert shifts.radius == 0.25


@pytest.mark.parametrize("delta", [0, 1, np.int64(1)])
def test_whole_numbers(delta):
    shifts = pp.Shifts.of(NET, delta)
    assert shifts.radius == float(delta)
    assert all(isinstance(radius, float) for pair in shifts.radii for radius in pair)


@examples(50)
@given(st.lists(st.tuples(RADII, RADII), min_size=3, max_size=3))
def test_one_pair_per_layer(pairs):
    for delta in (pairs, tuple(pairs), np.array(pairs)):
        shifts = pp.Shifts.of(NET, delta)
        assert shifts.radii == (pairs[0], (pairs[1][0], 0.0), pairs[2])
    assert pp.Shifts.of(NET, shifts) == shifts
    assert hash(pp.Shifts.of(NET, pairs)) == hash(shifts)


@pytest.mark.parametrize(
    ("delta", "name", "word"),
    [
        (-0.1, "delta", "layer 1"),
        (np.nan, "delta", "layer 1"),
        (np.inf, "delta", "layer 1"),
        ([(0.1, 0.1), (0.1, -0.1), (0.1, 0.1)], "delta", "layer 2"),
        ([(0.1, 0.1), (0.1, 0.1), (np.nan, 0.1)], "delta", "layer 3"),
        ([(0.1, 0.1)], "delta", "3 layers"),
        ([(0.1, 0.1)] * 4, "delta", "3 layers"),
        ([], "delta", "3 layers"),
        ([0.1, 0.1, 0.1], "delta", "per layer"),
        ([(0.1, 0.1, 0.1)] * 3, "delta", "per layer"),
        ("0.1", "delta", "per layer"),
        ([("a", "b")] * 3, "delta", "per layer"),
        (None, "delta", "per layer"),
        (True, "delta", "per layer"),
        ([([0.1], 0.1), (0.1, 0.1), (0.1, 0.1)], "delta", "shape"),
        ([([[0.1, -0.2]], 0.1), (0.1, 0.1), (0.1, 0.1)], "delta", "layer 1"),
        (pp.Shifts.of(pp.Network([([[1.0]], [0.0])]), 0.1), None, "architecture"),
        (pp.Shifts.of(pp.Network([([[1.0, 2.0]], None), *PAIRS[1:]]), 0.1), None, "architecture"),
    ],
)
def test_invalid_deltas_are_rejected(delta, name, word):
    calls = [
        lambda: pp.Shifts.of(NET, delta),
        lambda: pp.certify(NET, [[0.0, 0.0]], delta),
        lambda: pp.worst_case(NET, [0.0, 0.0], delta),
        lambda: pp.output_range(NET, [[0.0, 0.0]], delta),
    ]
    for call in calls:
        with raises(DeltaError, name=name, match=word) as caught:
            call()
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, ProplaceError)


def test_one_radius_is_that_of_every_parameter():
    assert pp.Shifts.of(NET, 0.25).radius == 0.25  # the layer without bias has none to shift
    assert pp.Shifts.of(NET, 0.0).radius == 0.0
    for frozen in ([(0.1, 0.0)] * 3, [(0.1, 0.1), (0.1, 0.0), (0.1, 0.0)], [(0.1, 0.2)] * 3):
        assert pp.Shifts.of(NET, frozen).radius is None
    assert pp.Shifts.of(NET, [(0.1, 0.1), (0.1, 0.7), (0.1, 0.1)]).radius == 0.1


def test_radii_around_another_network_are_general_box():
    other = moved(NET, np.random.default_rng(0), 0.3)
    shifts = pp.Shifts.of(other, 0.1)
    assert shifts.radius == 0.1
    here = pp.Shifts.of(NET, shifts)
    assert here.radii is None
    assert here.contains(other)
    assert not here.contains(NET)


def test_radius_for_each_parameter():
    radii = [([[0.1, 0.0]], [0.2]), (0.0, None), ([[0.5], [0.0]], 0.25)]
    shifts = pp.Shifts.of(NET, radii)
    assert shifts.radii is None
    np.testing.assert_allclose(shifts.high.layers[0].W, [[1.1, 2.0]], atol=1e-12)
    np.testing.assert_allclose(shifts.low.layers[2].bias, [-0.25, 0.75], atol=1e-12)
    assert shifts.low.layers[1].b is None
    assert shifts.low.layers[0].W[0, 1] == shifts.high.layers[0].W[0, 1] == 2.0


def test_shifts_are_immutable():
    shifts = pp.Shifts.of(NET, 0.1)
    with pytest.raises(AttributeError):
        shifts.layers = ()
    with pytest.raises(ValueError, match="read-only"):
        shifts.low.layers[0].W[0, 0] = 3.0


def test_ends_of_radii_are_rounded_outwards():
    rng = np.random.default_rng(1)
    for _ in range(200):
        w, d = (
            rng.normal() * 10.0 ** rng.integers(-8, 8),
            rng.exponential() * 10.0 ** rng.integers(-8, 2),
        )
        shifts = pp.Shifts.of(pp.Network([([[w]], [w])]), d)
        low, high = shifts.low.layers[0], shifts.high.layers[0]
        for p, q in ((low.W[0, 0], high.W[0, 0]), (low.b[0], high.b[0])):
            assert Q(p) <= Q(w) - Q(d) < Q(np.nextafter(p, np.inf))
            assert Q(np.nextafter(q, -np.inf)) < Q(w) + Q(d) <= Q(q)


# -- sets --------------------------------------------------------------------------------------------


def test_low_above_high_is_refused():
    low, high = pp.Network([([[1.0]], [0.0])]), pp.Network([([[0.5]], [0.0])])
    with raises(DeltaError, name="low", match="layer 1"):
        pp.Shifts(low, high)


def test_membership_is_exact():
    """0.1 + 0.2 is not 0.3 in floats. The real number decides."""
    rng = np.random.default_rng(2)
    for _ in range(300):
        w, d = (
            rng.normal() * 10.0 ** rng.integers(-3, 4),
            rng.exponential() * 10.0 ** rng.integers(-6, 1),
        )
        shifts = pp.Shifts.of(pp.Network([([[w]], None)]), d)
        for start in (w + d, w - d):
            for v in (start, np.nextafter(start, np.inf), np.nextafter(start, -np.inf)):
                inside = abs(Q(float(v)) - Q(w)) <= Q(d)
                assert shifts.contains(pp.Network([([[v]], None)])) == inside


def test_box_contains_its_ends_and_nothing_beyond():
    rng = np.random.default_rng(3)
    for hidden in (0, 1, 3):
        net = random_case(rng, hidden).net
        box = random_box(rng, net)
        assert box.contains(box.low)
        assert box.contains(box.high)
        for i, layer in enumerate(box.high.layers):
            for name in ("W", "b") if layer.b is not None else ("W",):
                for place in np.ndindex(getattr(layer, name).shape):
                    parts = {"W": layer.W.copy(), "b": None if layer.b is None else layer.b.copy()}
                    parts[name][place] = np.nextafter(parts[name][place], np.inf)
                    pairs = [(x.W, x.b) for x in box.high.layers]
                    pairs[i] = (parts["W"], parts["b"])
                    assert not box.contains(box.high.with_layers(pairs))


def test_network_of_another_shape_or_input_map_is_not_in_box():
    net = pp.Network([([[1.0, 2.0]], [0.5])])
    box = pp.Shifts.of(net, 1e6)
    assert box.contains(net)
    for other in (
        pp.Network([([[1.0, 2.0]], None)]),
        pp.Network([([[1.0]], [0.5])]),
        pp.Network([([[1.0, 2.0]], [0.5])], scale=[1.0, 2.0]),
        pp.Network([([[1.0, 2.0]], [0.5]), ([[1.0]], [0.0])]),
    ):
        assert not box.contains(other)


def test_nearest_network_lies_in_shift_set():
    rng = np.random.default_rng(4)
    for hidden in (0, 2):
        net = random_case(rng, hidden).net
        for box in (random_box(rng, net), pp.Shifts.of(moved(net, rng, 0.5), 0.1)):
            near = box.project(net)
            assert box.contains(near)
            theta, found = parameters(net), parameters(near)
            low, high = parameters(box.low), parameters(box.high)
            np.testing.assert_allclose(found, np.clip(theta, low, high), rtol=1e-12, atol=1e-12)
            if box.contains(net):
                assert near == net


def test_hull_is_smallest_box():
    rng = np.random.default_rng(5)
    net = random_case(rng, 2).net
    nets = [moved(net, rng, 0.2) for _ in range(5)]
    hull = pp.Shifts.bounding(nets)
    assert all(hull.contains(one) for one in nets)
    theta = np.array([parameters(one) for one in nets])
    np.testing.assert_array_equal(parameters(hull.low), theta.min(axis=0))
    np.testing.assert_array_equal(parameters(hull.high), theta.max(axis=0))
    assert pp.Shifts.bounding([net]).is_single_network
    assert "bounding set of 5 networks" in repr(hull)


def test_networks_without_common_box_are_refused():
    a = pp.Network([([[1.0, 2.0]], [0.5])])
    with raises(DeltaError, name="scale"):
        pp.Shifts.bounding([a, pp.Network([([[1.0, 2.0]], [0.5])], scale=[1.0, 2.0])])
    with raises(DeltaError, name=None, match="architecture"):
        pp.Shifts.bounding([a, NET])
    with raises(DeltaError, name="networks"):
        pp.Shifts.bounding([])


def test_scaled_boxes_are_nested():
    rng = np.random.default_rng(6)
    net = random_case(rng, 2).net
    for box in (random_box(rng, net), pp.Shifts.of(net, 0.1), pp.Shifts.of(net, [(0.1, 0.2)] * 3)):
        family = [
            box.scaled(t)
            for t in (0.0, 0.3, np.nextafter(1.0, 0.0), 1.0, np.nextafter(1.0, 2.0), 2.5)
        ]
        for small, large in itertools.pairwise(pp.Shifts(one.low, one.high) for one in family):
            assert large.contains(small.low)
            assert large.contains(small.high)
        assert box.scaled(1.0) == box
        width = parameters(box.high) - parameters(box.low)
        twice = box.scaled(2.0)
        np.testing.assert_allclose(
            parameters(twice.high) - parameters(twice.low), 2.0 * width, atol=1e-9
        )
    assert pp.Shifts.of(net, 0.1).scaled(2.0).radius == 0.2
    with raises(DeltaError, name="t", value=-1.0):
        pp.Shifts.of(net, 0.1).scaled(-1.0)


def test_frozen_parameter_stays_frozen_when_scaled():
    low = pp.Network([([[1.0 / 3.0, 1.0]], [0.0])])
    high = pp.Network([([[1.0 / 3.0, 2.0]], [0.0])])
    wide = pp.Shifts(low, high).scaled(7.0)
    assert wide.low.layers[0].W[0, 0] == wide.high.layers[0].W[0, 0] == 1.0 / 3.0
    assert wide.high.layers[0].b[0] == 0.0


def test_intersection_contains_common_networks():
    rng = np.random.default_rng(7)
    net = random_case(rng, 1).net
    a, b = pp.Shifts.of(net, 0.2), pp.Shifts.of(moved(net, rng, 0.05), 0.3)
    both = a.intersect(b)
    for _ in range(100):
        one = moved(net, rng, 0.08)
        inside = a.contains(one) and b.contains(one)
        assert both.contains(one) == inside
    with raises(DeltaError, name="other"):
        a.intersect(pp.Shifts.of(moved(net, rng, 5.0), 0.1))


def test_intersection_keeps_encoding():
    """A box behind a scaler must not be taken for one behind another scaler."""
    table, decided = people(60, 0)
    pipe = fitted(SHAPES["standard"](), table, decided, epochs=3)
    later = [
        retrained(pipe, SHAPES["standard"](), *people(60, seed), epochs=1) for seed in range(1, 4)
    ]
    a, b = (pp.Shifts.bounding([pipe, *some], source=pipe) for some in (later[:2], later[1:]))
    both = a.intersect(b)
    assert both.encoding == pp.Model.of(pipe).encoding != ""
    assert both.contains(pp.Model.of(pipe).network)


# -- files and names ---------------------------------------------------------------------------------


def test_files_keep_every_bit(tmp_path):
    rng = np.random.default_rng(8)
    for i, hidden in enumerate((0, 1, 3)):
        net = random_case(rng, hidden).net
        box = random_box(rng, net)
        box.save(tmp_path / f"{i}.npz")
        read = pp.Shifts.load(tmp_path / f"{i}.npz")
        assert read == box
        assert read.digest == box.digest
        assert read.low == box.low
        assert read.high == box.high
        assert pickle.loads(pickle.dumps(box)) == box
        short = pp.Shifts.of(net, 0.1)
        short.save(tmp_path / "short.npz")
        read = pp.Shifts.load(tmp_path / "short.npz")
        assert read.radii is None
        assert read.digest == short.digest
        assert read.contains(net)


def test_description_is_kept_and_not_part_of_digest(tmp_path):
    hull = pp.Shifts.bounding([NET])
    plain = pp.Shifts(hull.low, hull.high)
    assert plain.digest == hull.digest
    hull.save(tmp_path / "a.npz")
    assert pp.Shifts.load(tmp_path / "a.npz").description == "bounding set of 1 network"


def test_digest_names_every_end_and_input_transform():
    rng = np.random.default_rng(9)
    net = pp.Network([([[1.0, -2.0]], [0.5]), ([[1.0]], None)], scale=[1.0, 2.0])
    box = random_box(rng, net)
    seen = {box.digest}
    for end, i, name in [("low", 0, "W"), ("low", 0, "b"), ("low", 1, "W"), ("high", 1, "W")]:
        ends = {"low": box.low, "high": box.high}
        pairs = [[layer.W, layer.b] for layer in ends[end].layers]
        step = -1.0 if end == "low" else 1.0
        pairs[i][name == "b"] = pairs[i][name == "b"] + step
        ends[end] = ends[end].with_layers(pairs)
        seen.add(pp.Shifts(ends["low"], ends["high"]).digest)
    low, high = (
        pp.Network([(x.W, x.b) for x in end.layers], scale=[1.0, 2.5])
        for end in (box.low, box.high)
    )
    seen.add(pp.Shifts(low, high).digest)
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("change", "error", "name", "word"),
    [
        (lambda a: a.pop("format"), ModelFileError, "b.npz", "format"),
        (
            lambda a: a.update(format=np.array("proplace-network-1")),
            ModelFileError,
            "b.npz",
            "format",
        ),
        (lambda a: a.pop("encoding"), ModelFileError, "b.npz", "version"),
        (lambda a: a.pop("low_W0"), ModelFileError, "b.npz", "low"),
        (lambda a: a.update(more=np.zeros(2)), ModelFileError, "b.npz", "more"),
        (lambda a: a.update(high_W0=a["high_W0"] * np.nan), NetworkError, "W of layer 1", "NaN"),
        (lambda a: a.update(high_W0=a["low_W0"] - 1.0), DeltaError, "low", "layer 1"),
        (lambda a: a.pop("high_b0"), DeltaError, None, "architecture"),
    ],
)
def test_damaged_file_is_refused(tmp_path, change, error, name, word):
    box = pp.Shifts.of(NET, 0.25)
    box.save(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as file:
        arrays = dict(file)
    change(arrays)
    np.savez(tmp_path / "b.npz", **arrays)
    with raises(error, name=name, match=word):
        pp.Shifts.load(tmp_path / "b.npz")


def test_network_file_is_not_box(tmp_path):
    NET.save(tmp_path / "net.npz")
    with raises(ModelFileError, name="net.npz"):
        pp.Shifts.load(tmp_path / "net.npz")
    with raises(DeltaError, name="a.json"):
        pp.Shifts.of(NET, 0.1).save(tmp_path / "a.json")


def test_repr_of_shift_sets():
    assert repr(pp.Shifts.of(NET, 0.25)) == "Shifts(2-1-1-2, within 0.25)"
    assert repr(pp.Shifts.of(NET, [(0.1, 0.2)] * 3)) == "Shifts(2-1-1-2, radii per layer)"
    assert "3 of 8 parameters move" in repr(
        pp.Shifts.of(NET, [([[0.1, 0.0]], 0.1), (0.0, 0.0), ([[0.0], [0.2]], 0.0)])
    )


@pytest.mark.parametrize("bias", [True, False])
def test_moved_box_has_same_intervals_around_another_network(bias):
    """In exact rationals each end is moved by the difference of the networks, up to its rounding."""
    rng = np.random.default_rng(3)

    def network(offset=0.0):
        sizes = ((3, 2), (1, 3))
        return pp.Network(
            [(rng.normal(size=s) + offset, rng.normal(size=s[0]) if bias else None) for s in sizes]
        )

    old, new, others = network(), network(5.0), [network() for _ in range(3)]
    box = pp.Shifts.bounding([old, *others])
    frozen = pp.Shifts.bounding([old])
    assert frozen.recentred(old, new) == pp.Shifts.bounding([new])
    there = box.recentred(old, new)
    assert there.contains(new)
    assert not there.contains(old)
    for end in ("low", "high"):
        layers = zip(
            getattr(there, end).layers,
            getattr(box, end).layers,
            old.layers,
            new.layers,
            strict=True,
        )
        for parts in layers:
            for m, b, o, n in zip(*(layer.W.ravel() for layer in parts), strict=True):
                exact = Q(b) + Q(n) - Q(o)
                assert abs(Q(m) - exact) <= Q(2) ** -50 * (1 + abs(exact))
    assert box.recentred(old, old).contains(old)
    with raises(DeltaError, name=None, match="architecture"):
        box.recentred(old, pp.Network([([[1.0, 2.0]], [0.0])]))
