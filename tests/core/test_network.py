"""The network as a value, against plain re-implementations."""

from __future__ import annotations

import io
import itertools
import pickle
import zipfile
from fractions import Fraction

import joblib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import proplace as pp
from oracles import forward, margin_of, random_case, seen
from proplace.core.errors import (
    InputError,
    ModelFileError,
    NetworkError,
    ProplaceError,
    TargetError,
)
from support.errors import raises
from support.tiers import examples

FAST = examples(60)


def make(sizes, seed=0, *, transform=False, bias=True):
    rng = np.random.default_rng(seed)
    layers = [
        (rng.normal(size=(n_out, n_in)), rng.normal(size=n_out) if bias else None)
        for n_in, n_out in itertools.pairwise(sizes)
    ]
    extra = {"scale": rng.normal(size=sizes[0]), "shift": rng.normal(size=sizes[0])}
    return pp.Network(layers, **(extra if transform else {}))


@st.composite
def networks(draw):
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=5))
    values = st.floats(-10, 10, allow_subnormal=False)
    layers = []
    for n_in, n_out in itertools.pairwise(sizes):
        W = draw(hnp.arrays(np.float64, (n_out, n_in), elements=values))
        b = draw(st.none() | hnp.arrays(np.float64, n_out, elements=values))
        layers.append((W, b))
    per_input = st.none() | hnp.arrays(np.float64, sizes[0], elements=values)
    return pp.Network(layers, scale=draw(per_input), shift=draw(per_input))


@st.composite
def networks_with_rows(draw):
    net = draw(networks())
    shape = (draw(st.integers(0, 3)), net.inputs)
    return net, draw(hnp.arrays(np.float64, shape, elements=st.floats(-10, 10)))


# -- computations ---------------------------------------------------------------------------------


@FAST
@given(networks_with_rows())
def test_forward_is_definition(problem):
    net, X = problem
    logits = net.logits(X)
    assert logits.shape == (len(X), net.outputs)
    plain = np.array([forward(net, x) for x in X]).reshape(logits.shape)
    np.testing.assert_allclose(logits, plain, rtol=1e-12, atol=1e-9)
    for target in range(net.classes):
        np.testing.assert_allclose(net.margin(X, target), margin_of(logits, target), rtol=0, atol=0)
        C = net.objectives(target)
        assert C.shape == (max(1, net.outputs - 1), net.outputs)
        if len(X):
            least = (logits @ C.T).min(axis=1)
            np.testing.assert_allclose(net.margin(X, target), least, rtol=1e-12, atol=1e-9)
    classes = net.predict(X)
    proba = net.predict_proba(X)
    assert proba.shape == (len(X), net.classes)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0)
    for i, k in enumerate(classes):
        assert net.margin(X[i], int(k))[0] >= 0.0
        assert proba[i, k] >= proba[i].max() - 1e-12


def test_margin_of_one_logit_by_hand():
    net = pp.Network([([[2.0, -1.0]], [0.5])])
    np.testing.assert_array_equal(net.margin([[1.0, 1.0], [0.0, 1.0]], 1), [1.5, -0.5])
    np.testing.assert_array_equal(net.margin([[1.0, 1.0], [0.0, 1.0]], 0), [-1.5, 0.5])
    np.testing.assert_array_equal(net.predict([[1.0, 1.0], [0.0, 1.0], [0.0, 0.5]]), [1, 0, 1])


def test_margin_of_several_logits_by_hand():
    net = pp.Network([(np.eye(3), [0.0, 0.0, 0.0])])
    X = [[3.0, 1.0, 2.0], [1.0, 1.0, 0.0]]
    np.testing.assert_array_equal(net.margin(X, 0), [1.0, 0.0])
    np.testing.assert_array_equal(net.margin(X, 1), [-2.0, 0.0])
    np.testing.assert_array_equal(net.margin(X, 2), [-1.0, -1.0])
    np.testing.assert_array_equal(net.predict(X), [0, 0])


def test_probabilities_do_not_overflow():
    net = pp.Network([([[1.0]], None)])
    np.testing.assert_allclose(net.predict_proba([[1e4], [-1e4]]), [[0, 1], [1, 0]], atol=1e-300)
    np.testing.assert_allclose(net.predict_proba([[1.0]])[0, 1], 1 / (1 + np.exp(-1.0)))


def test_transform_comes_before_first_layer():
    net = make((3, 4, 1), transform=True)
    bare = pp.Network([(layer.W, layer.b) for layer in net.layers])
    X = np.random.default_rng(1).normal(size=(5, 3))
    U = np.array([seen(net, x) for x in X])
    np.testing.assert_allclose(net.transform(X), U)
    np.testing.assert_allclose(net.logits(X), bare.logits(U))
    assert repr(net) == "Network(3-4-1, scaled input)"
    assert repr(bare) == "Network(3-4-1)"


def test_scalar_transform_holds_for_every_input():
    net = pp.Network([([[1.0, 1.0]], None)], scale=2.0, shift=1.0)
    np.testing.assert_array_equal(net.logits([[1.0, 2.0]]), [[8.0]])
    np.testing.assert_array_equal(net.scale, [2.0, 2.0])


def test_no_hidden_layers():
    net = make((3, 1))
    assert net.widths == ()
    assert net.classes == 2
    X = np.random.default_rng(1).normal(size=(4, 3))
    expected = X @ net.layers[0].W[0] + net.layers[0].b[0]
    np.testing.assert_allclose(net.margin(X), expected)
    np.testing.assert_allclose(net.gradient(X, 0), np.repeat(-net.layers[0].W, 4, axis=0))


@pytest.mark.parametrize(
    "sizes", [(3, 1), (3, 5, 1), (2, 6, 5, 1), (3, 3), (3, 5, 4), (3, 4, 4, 3)]
)
@pytest.mark.parametrize("transform", [False, True])
def test_gradient_against_central_differences(sizes, transform):
    net = make(sizes, seed=sum(sizes), transform=transform)
    X = np.random.default_rng(3).normal(size=(40, sizes[0]))
    step = 1e-5
    checked = 0
    for target in range(net.classes):
        G = net.gradient(X, target)
        for x, g in zip(X, G, strict=True):
            up, down = x + step * np.eye(len(x)), x - step * np.eye(len(x))
            ahead, behind = net.margin(up, target), net.margin(down, target)
            here = net.margin(x, target)
            curved = np.abs(ahead - 2 * here + behind) > 1e-9  # a kink lies in between
            slope = (ahead - behind) / (2 * step)
            np.testing.assert_allclose(g[~curved], slope[~curved], rtol=1e-6, atol=1e-6)
            checked += (~curved).sum()
    assert checked > 0.9 * 40 * sizes[0] * net.classes


def test_rows_takes_table_or_one_row():
    net = make((2, 3, 1))
    assert net.rows([1, 2]).shape == (1, 2)
    assert net.rows([[1, 2], [3, 4]]).shape == (2, 2)
    assert net.logits(np.empty((0, 2))).shape == (0, 1)
    assert net.gradient(np.empty((0, 2))).shape == (0, 2)
    assert make((1, 1)).rows([5.0]).shape == (1, 1)


# -- how far it is from another ------------------------------------------------------------------


def test_distance_by_hand():
    one = pp.Network([([[1.0, 2.0]], [0.0]), ([[3.0]], None)])
    two = pp.Network([([[1.0, 5.0]], [-4.0]), ([[3.0]], None)])
    assert one.distance(two) == 4.0
    assert one.distance(two, 0) == 2.0
    assert one.distance(two, 1) == 7.0
    assert one.distance(two, 2) == 5.0
    assert one.distance(two, np.inf) == two.distance(one, np.inf)


@pytest.mark.parametrize("p", [0, 1, 2, np.inf])
def test_distance_is_norm_of_all_parameters(p):
    one, two = make((3, 4, 2), seed=1, transform=True), make((3, 4, 2), seed=2)
    two = pp.Network([(layer.W, layer.b) for layer in two.layers], scale=one.scale, shift=one.shift)
    d = [
        Fraction(float(v)) - Fraction(float(w))
        for a, b in zip(one.layers, two.layers, strict=True)
        for v, w in [*zip(a.W.ravel(), b.W.ravel(), strict=True), *zip(a.b, b.b, strict=True)]
    ]
    expected = {
        0: sum(v != 0 for v in d),
        1: float(sum(abs(v) for v in d)),
        2: float(sum(v * v for v in d)) ** 0.5,
        np.inf: float(max(abs(v) for v in d)),
    }[p]
    assert one.distance(two, p) == pytest.approx(expected, rel=1e-12)
    assert one.distance(one, p) == 0.0


def test_distance_needs_one_architecture():
    net = make((2, 3, 1))
    pairs = [(layer.W, layer.b) for layer in net.layers]
    others = [
        make((2, 4, 1)),
        make((2, 3, 3, 1)),
        make((2, 3, 1), bias=False),
        pp.Network(pairs, scale=2.0),
    ]
    for other in others:
        with raises(NetworkError, name="other"):
            net.distance(other)
    one, two = pp.Network(pairs, shift=1.0), pp.Network(pairs, shift=2.0)
    with raises(NetworkError, name="shift"):
        one.distance(two)
    with raises(NetworkError, name="p", value=3):
        net.distance(net, 3)


# -- a value: immutable, comparable, storable ----------------------------------------------------


def test_arrays_are_read_only_and_copied():
    W, b, s = np.ones((1, 2)), np.ones(1), np.ones(2)
    net = pp.Network([(W, b)], scale=s, shift=s)
    W[:] = b[:] = s[:] = 9.0
    np.testing.assert_array_equal(net.logits([[1.0, 1.0]]), [[5.0]])
    for array in (net.layers[0].W, net.layers[0].b, net.scale, net.shift):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0.0
    with pytest.raises(AttributeError):
        net.layers = ()
    with pytest.raises(AttributeError):
        net.layers[0].W = W
    with pytest.raises(AttributeError):
        net.anything = 1


def test_computation_leaves_inputs_unchanged():
    net, X = make((2, 3, 3)), np.random.default_rng(0).normal(size=(3, 2))
    before = X.copy()
    net.gradient(X), net.margin(X, 2), net.predict_proba(X)
    np.testing.assert_array_equal(X, before)


def same_bits(one, two):
    pairs = zip(one.layers, two.layers, strict=True)
    arrays = [(one.scale, two.scale), (one.shift, two.shift)]
    arrays += [pair for a, b in pairs for pair in ((a.W, b.W), (a.b, b.b))]
    return one.precision == two.precision and all(
        (a is None and b is None) or (a.tobytes() == b.tobytes() and a.shape == b.shape)
        for a, b in arrays
    )


@FAST
@given(networks(), st.sampled_from(["float32", "float64"]))
def test_round_trips_are_bitwise(tmp_path_factory, net, precision):
    pairs = [(layer.W, layer.b) for layer in net.layers]
    net = pp.Network(pairs, scale=net.scale, shift=net.shift, precision=precision)
    path = tmp_path_factory.mktemp("round") / "net.npz"
    net.save(path)
    for other in (
        pp.Network.load(path),
        pp.Network.load(str(path)),
        pickle.loads(pickle.dumps(net)),
    ):
        assert same_bits(net, other)
        assert other == net
        assert hash(other) == hash(net)
    assert [p.name for p in path.parent.iterdir()] == ["net.npz"]


def test_joblib_and_workers(tmp_path):
    net = make((3, 4, 2), transform=True)
    joblib.dump(net, tmp_path / "net.joblib")
    other = joblib.load(tmp_path / "net.joblib")
    assert same_bits(net, other)
    with pytest.raises(ValueError, match="read-only"):
        other.layers[0].W[0, 0] = 1.0


def test_equality_and_hash():
    net = make((2, 3, 1))
    pairs = [(layer.W, layer.b) for layer in net.layers]
    assert net == pp.Network(pairs)
    assert len({net, pp.Network(pairs)}) == 1
    assert net != pp.Network(pairs, scale=1.0)
    assert net != pp.Network([(pairs[0][0] + 1e-15, pairs[0][1]), pairs[1]])
    assert net != make((2, 3, 1), bias=False)
    assert net != make((2, 4, 1))
    assert net != "net"
    assert net is not None


def test_equal_networks_hash_alike_with_signed_zeros():
    plus, minus = pp.Network([([[0.0]], [0.0])]), pp.Network([([[-0.0]], [-0.0])])
    assert plus == minus
    assert hash(plus) == hash(minus)


def test_save_replaces_whole_files_and_needs_npz(tmp_path):
    net, other = make((2, 3, 1)), make((2, 3, 1), seed=9)
    net.save(tmp_path / "net.npz")
    other.save(tmp_path / "net.npz")
    assert pp.Network.load(tmp_path / "net.npz") == other
    with raises(ModelFileError, name="net.pkl"):
        net.save(tmp_path / "net.pkl")
    with pytest.raises(OSError, match="missing"):
        net.save(tmp_path / "missing" / "net.npz")
    assert [p.name for p in tmp_path.iterdir()] == ["net.npz"]


def test_failed_save_leaves_old_file(tmp_path, monkeypatch):
    net = make((2, 3, 1))
    net.save(tmp_path / "net.npz")

    def full_disk(file, **arrays):
        file.write(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(OSError, match="no space"):
        make((2, 3, 1), seed=5).save(tmp_path / "net.npz")
    assert pp.Network.load(tmp_path / "net.npz") == net
    assert [p.name for p in tmp_path.iterdir()] == ["net.npz"]


class Bomb:
    """Unpickling this would raise the alarm."""

    def __reduce__(self):
        return _alarm, ()


def _alarm():
    raise SystemExit("something was unpickled")


def _file(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, format=np.array("proplace-network-1"), **arrays)
    return buffer.getvalue()


def _bomb():
    return _file(W0=np.array([[Bomb()]], dtype=object))


def _damaged():
    data = bytearray(_file(W0=np.ones((30, 30))))
    data[len(data) // 2] ^= 0xFF
    return bytes(data)


def _npy():
    buffer = io.BytesIO()
    np.save(buffer, np.ones(3))
    return buffer.getvalue()


def _zip_of_text():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("W0.npy", "hello")
    return buffer.getvalue()


BAD_FILES = {
    "empty": b"",
    "garbage": b"\x93garbage" * 100,
    "pickle": pickle.dumps([1, 2, 3]),
    "object_array": _bomb(),
    "truncated": _file(W0=np.ones((30, 30)), b0=np.ones(30))[:-300],
    "cut_in_half": _file(W0=np.ones((30, 30)))[:3000],
    "bit_flip": _damaged(),
    "an_array": _npy(),
    "zip_of_text": _zip_of_text(),
    "no_layers": _file(),
    "no_first_layer": _file(W1=np.ones((1, 1))),
    "wrong_shapes": _file(W0=np.ones((2, 2)), W1=np.ones((1, 3))),
    "not_finite": _file(W0=np.array([[np.nan]])),
    "bad_precision": _file(W0=np.ones((1, 1)), precision=np.array("float8")),
    "words": _file(W0=np.array([["a"]])),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_refused(tmp_path, name):
    (tmp_path / "bad.npz").write_bytes(BAD_FILES[name])
    with raises(ModelFileError, name="bad.npz") as caught:
        pp.Network.load(tmp_path / "bad.npz")
    assert isinstance(caught.value, ValueError)


def test_another_format_or_no_file(tmp_path):
    np.savez(tmp_path / "other.npz", W0=np.ones((1, 1)))
    with raises(ModelFileError, name="other.npz"):
        pp.Network.load(tmp_path / "other.npz")
    with raises(ModelFileError, name="gone.npz"):
        pp.Network.load(tmp_path / "gone.npz")


# -- errors name the next step ---------------------------------------------------------------------

NOT_NETWORKS = {
    "none": ({"layers": []}, "layers"),
    "not_pairs": ({"layers": [np.ones((3, 2))]}, "layers"),
    "not_a_list": ({"layers": 5}, "layers"),
    "triples": ({"layers": [([[1.0]], [1.0], "relu")]}, "layers"),
    "flat_W": ({"layers": [([1.0, 2.0], [1.0])]}, "W of layer 1"),
    "empty_W": ({"layers": [(np.ones((0, 2)), [])]}, "W of layer 1"),
    "ragged_W": ({"layers": [([[1.0], [1.0, 2.0]], None)]}, "W of layer 1"),
    "words_W": ({"layers": [([["a"]], None)]}, "W of layer 1"),
    "long_b": ({"layers": [([[1.0]], [1.0, 2.0])]}, "b of layer 1"),
    "column_b": ({"layers": [([[1.0]], [[1.0]])]}, "b of layer 1"),
    "nan_W": ({"layers": [([[np.nan]], None)]}, "W of layer 1"),
    "inf_b": ({"layers": [([[1.0]], None), ([[1.0]], [np.inf])]}, "b of layer 2"),
    "transposed": ({"layers": [(np.ones((3, 2)), None), (np.ones((3, 1)), None)]}, "layers"),
    "short_scale": ({"layers": [([[1.0, 2.0]], None)], "scale": [1.0]}, "input scale"),
    "nan_scale": ({"layers": [([[1.0]], None)], "scale": np.nan}, "input scale"),
    "word_scale": ({"layers": [([[1.0]], None)], "scale": "two"}, "input scale"),
    "inf_shift": ({"layers": [([[1.0]], None)], "shift": [np.inf]}, "input shift"),
    "table_shift": ({"layers": [([[1.0]], None)], "shift": [[1.0]]}, "input shift"),
    "precision": ({"layers": [([[1.0]], None)], "precision": "half"}, "precision"),
}


@pytest.mark.parametrize("name", NOT_NETWORKS)
def test_invalid_networks_are_rejected(name):
    arguments, wrong = NOT_NETWORKS[name]
    with raises(NetworkError, name=wrong) as caught:
        pp.Network(**arguments)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ProplaceError)


@pytest.mark.parametrize(
    ("X", "row"),
    [
        ([[1.0]], None),
        ([1.0, 2.0, 3.0], None),
        (5.0, None),
        (np.ones((1, 1, 2)), None),
        ([["a", "b"]], None),
        ([[1.0], [1.0, 2.0]], None),
        ([[0.0, 0.0], [0.0, np.nan]], 1),
        ([[np.inf, 0.0]], 0),
    ],
)
def test_rows_that_do_not_fit(X, row):
    net = make((2, 3, 1))
    calls = [net.logits, net.margin, net.gradient, net.transform, net.predict, net.predict_proba]
    calls += [lambda X: pp.certify(net, X, 0.1), lambda X: pp.worst_case(net, X, 0.1)]
    calls += [lambda X: pp.output_range(net, X, 0.1)]
    for call in calls:
        with raises(InputError, name="X", row=row) as caught:
            call(X)
        assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("target", [-1, 2, 7, 0.5, "1", None, True])
def test_targets_that_do_not_exist(target):
    net = make((2, 3, 1))
    for call in (net.margin, net.gradient):
        with raises(TargetError, name="target", value=target) as caught:
            call([[0.0, 0.0]], target)
        assert isinstance(caught.value, ValueError)
    with pytest.raises(TargetError):
        pp.certify(net, [[0.0, 0.0]], 0.1, target)
    with pytest.raises(TargetError):
        pp.worst_case(net, [0.0, 0.0], 0.1, target)


def test_targets_of_three_classes():
    net = make((2, 3))
    assert net.check_target(np.int32(2)) == 2
    with raises(TargetError, name="target", value=3):
        net.check_target(3)


def test_random_case_is_varied():
    """The generator behind the certification tests makes what it promises."""
    cases = [random_case(np.random.default_rng(i), i % 5) for i in range(200)]
    layers = [layer for case in cases for layer in case.net.layers]
    assert any(layer.b is None for layer in layers)
    assert any((layer.W == 0).any() for layer in layers)
    assert any(case.net.scale is not None for case in cases)
    assert any(np.ndim(case.delta) == 2 and (0.0, 0.0) in case.delta for case in cases)
    assert {case.net.outputs for case in cases} == {1, 3}
    assert {(case.net.outputs, case.target) for case in cases} >= {(1, 0), (1, 1), (3, 0), (3, 2)}
