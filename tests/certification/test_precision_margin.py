"""The float32 margin against float32 models as they really run."""

from __future__ import annotations

from fractions import Fraction as Q

import numpy as np
import pytest

import exactly
import proplace as pp
from proplace.certification.roundoff import float32_margin
from proplace.core.errors import InputError, OptionError
from support.errors import raises


def random_net(rng, sizes, factors, *, scaled=False):
    layers = [
        (
            (rng.normal(size=(m, n)) * f).astype(np.float32),
            (rng.normal(size=m) * f).astype(np.float32),
        )
        for n, m, f in zip(sizes, sizes[1:], factors, strict=False)
    ]
    scale = rng.uniform(0.1, 3.0, sizes[0]).astype(np.float32) if scaled else None
    shift = rng.normal(size=sizes[0]).astype(np.float32) if scaled else None
    return pp.Network(layers, scale=scale, shift=shift, precision="float32")


def within(net, delta, rng):
    """A float32 network inside Delta."""
    pairs = []
    for layer in net.layers:
        moved = []
        for part in (layer.W, layer.b):
            t = rng.choice([-1.0, 1.0, 0.3], size=part.shape)
            new = (part + 0.999 * delta * t).astype(np.float32).astype(np.float64)
            moved.append(np.where(np.abs(new - part) <= delta, new, part))
        pairs.append(tuple(moved))
    return pp.Network(pairs, scale=net.scale, shift=net.shift, precision="float32")


def exact_logits(net, x):
    """Logits in rational arithmetic."""
    h = exactly.seen(net, x)
    for i, layer in enumerate(net.layers):
        W, b = exactly.rational(layer.W), exactly.rational(layer.bias)
        z = [sum((w * v for w, v in zip(r, h, strict=True)), c) for r, c in zip(W, b, strict=True)]
        h = z if i == len(net.layers) - 1 else [max(v, Q(0)) for v in z]
    return h


def numpy_pass(net, x, order):
    """One term after the other, in float32, in a random order: the worst way to sum."""
    h = x.astype(np.float32)
    if net.scale is not None:
        h = h * net.scale.astype(np.float32)
    if net.shift is not None:
        h = h + net.shift.astype(np.float32)
    for i, layer in enumerate(net.layers):
        W, z = layer.W.astype(np.float32), layer.b.astype(np.float32)
        for j in order.permutation(W.shape[1]):
            z = z + W[:, j] * h[j]
        h = z if i == len(net.layers) - 1 else np.maximum(z, np.float32(0.0))
    return h


def torch_pass(net, x, order):
    torch = pytest.importorskip("torch")
    h = torch.as_tensor(x, dtype=torch.float32)[None]
    if net.scale is not None:
        h = h * torch.as_tensor(np.array(net.scale), dtype=torch.float32)
    if net.shift is not None:
        h = h + torch.as_tensor(np.array(net.shift), dtype=torch.float32)
    for i, layer in enumerate(net.layers):
        W, b = (torch.as_tensor(np.array(part), dtype=torch.float32) for part in (layer.W, layer.b))
        h = torch.nn.functional.linear(h, W, b)
        h = h if i == len(net.layers) - 1 else torch.relu(h)
    return h[0].numpy()


def onnx_pass(net, x, order):
    runtime = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    helper, numbers = onnx.helper, onnx.numpy_helper
    nodes, weights, name = [], [], "x"
    for label, kind, values in (("scale", "Mul", net.scale), ("shift", "Add", net.shift)):
        if values is not None:
            weights.append(numbers.from_array(values.astype(np.float32), label))
            nodes.append(helper.make_node(kind, [name, label], [label + "_out"]))
            name = label + "_out"
    for i, layer in enumerate(net.layers):
        weights.append(numbers.from_array(layer.W.astype(np.float32), f"W{i}"))
        weights.append(numbers.from_array(layer.b.astype(np.float32), f"b{i}"))
        nodes.append(helper.make_node("Gemm", [name, f"W{i}", f"b{i}"], [f"z{i}"], transB=1))
        name = f"z{i}"
        if i < len(net.layers) - 1:
            nodes.append(helper.make_node("Relu", [name], [f"h{i}"]))
            name = f"h{i}"
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "net",
        [value("x", onnx.TensorProto.FLOAT, [1, net.inputs])],
        [value(name, onnx.TensorProto.FLOAT, [1, net.outputs])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x[None].astype(np.float32)})[0][0]


NETS = {
    "plain": ((6, 20, 20, 1), (0.5, 0.5, 0.5), 2.0),
    "classes": ((6, 20, 20, 3), (0.5, 0.5, 0.5), 2.0),
    "linear": ((30, 1), (1.0,), 100.0),
    "large layers": ((6, 20, 20, 1), (1e3, 1e-3, 1e3), 1e3),
    "small layers": ((6, 20, 20, 2), (1e-6, 1e-6, 1e-6), 1.0),
    "underflow": ((6, 10, 10, 1), (1e-20, 1e-20, 1.0), 1e-3),
    "deep": ((4, 12, 12, 12, 12, 1), (0.7,) * 5, 1.0),
}


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("run", [numpy_pass, torch_pass, onnx_pass])
def test_margin_covers_every_float32_pass(name, scaled, run):
    """For every network in Delta, in any order of summation. Exact values are rational."""
    sizes, factors, reach = NETS[name]
    rng = np.random.default_rng([len(name), scaled])
    largest = 0.0
    for _ in range(3):
        net = random_net(rng, sizes, factors, scaled=scaled)
        delta = 0.05 * float(max(np.abs(layer.W).max() for layer in net.layers))
        x = rng.normal(size=net.inputs) * reach  # not a float32: its rounding counts too
        bound = float(float32_margin(net, pp.Shifts.of(net, delta), x[None])[0])
        for model in (net, within(net, delta, rng)):
            exact = exact_logits(model, x)
            logits = run(model, x, rng)
            for target in range(net.classes):
                true = exactly.margin_of(exact, target)
                computed = exactly.margin_of([Q(float(v)) for v in logits], target)
                assert abs(true - computed) <= Q(bound)
                largest = max(largest, float(abs(true - computed)) / bound)
    if name != "underflow":
        assert largest > 1e-5  # a bound, and not an empty one


def test_keras_runs_within_margin():
    keras = pytest.importorskip("keras")
    rng = np.random.default_rng(3)
    model = keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(16, "relu"),
            keras.layers.Dense(16, "relu"),
            keras.layers.Dense(1),
        ]
    )
    net = pp.Model.of(model).network
    assert net.precision == "float32"
    X = rng.normal(size=(5, 5)) * 3.0
    bounds = float32_margin(net, pp.Shifts.of(net, 0.0), X)
    outputs = keras.ops.convert_to_numpy(model(X.astype(np.float32)))[:, 0]
    for x, output, bound in zip(X, outputs, bounds, strict=True):
        assert abs(exact_logits(net, x)[0] - Q(float(output))) <= Q(float(bound))


def test_overflow_is_never_robust():
    net = random_net(np.random.default_rng(0), (3, 4, 1), (1e30, 1e30))
    assert np.isinf(float32_margin(net, pp.Shifts.of(net, 0.0), np.ones((1, 3)))[0])
    assert not pp.certify(net, np.ones((2, 3)), 0.0, margin="float32", target=0).robust.any()
    assert not pp.certify(net, np.ones((2, 3)), 0.0, margin="float32", target=1).robust.any()


def test_over_box_and_hull_margin_is_largest():
    rng = np.random.default_rng(1)
    for scaled in (False, True):
        net = random_net(rng, (4, 10, 10, 1), (0.5,) * 3, scaled=scaled)
        shifts = pp.Shifts.of(net, 0.05)
        V = rng.normal(size=(6, 4))
        inside = rng.dirichlet(np.ones(6), 200) @ V
        each = float32_margin(net, shifts, V)
        assert float32_margin(net, shifts, inside).max() <= each.max()
        low, high = V.min(axis=0, keepdims=True), V.max(axis=0, keepdims=True)
        box = rng.uniform(low, high, (300, 4))
        assert float32_margin(net, shifts, box).max() <= float32_margin(net, shifts, low, high)[0]


def test_precision_margin_is_default_for_float32_model():
    rng = np.random.default_rng(2)
    net = random_net(rng, (4, 10, 10, 1), (0.5,) * 3)
    X = rng.normal(size=(40, 4))
    asked = float32_margin(net, pp.Shifts.of(net, 0.01), X)
    report = pp.certify(net, X, 0.01, certificates=True)
    np.testing.assert_array_equal(report.threshold, asked)
    same = pp.certify(net, X, 0.01, margin="float32")
    np.testing.assert_array_equal(report.robust, same.robust)
    for i, certificate in enumerate(report.certificates):
        assert certificate.facts["margin"] == asked[i]
        assert certificate.check(net).accepted
    double = pp.Network([(layer.W, layer.b) for layer in net.layers])
    assert pp.certify(double, X, 0.01).threshold == 0.0
    worst = pp.certify(double, X[:1], 0.01, exact_margin=True).lower[0]
    for margin, robust in ((worst - 1e-6, True), (worst + 1e-6, False)):
        assert pp.certify(net, X[:1], 0.01, margin=float(margin)).robust[0] == robust
    for margin in ("float8", np.nan, np.inf):
        with pytest.raises(OptionError):
            pp.certify(net, X, 0.01, margin=margin)


def test_explainer_requires_precision_margin():
    rng = np.random.default_rng(4)
    net = random_net(rng, (4, 10, 10, 1), (0.5,) * 3)
    train = rng.normal(size=(200, 4))
    explainer = pp.Proplace(net, 0.005, k=10).fit(train)
    assert explainer.guarantee_.current.deployment is not None
    result = explainer.explain(train[net.predict(train) == 0][:4])
    found = [answer for answer in result if answer.found]
    assert found
    for answer in found:
        asked = float32_margin(net, explainer.shifts_, answer.encoded_counterfactual[None])[0]
        assert answer.certificate.facts["margin"] == asked
        assert answer.certificate.check(net).accepted
        assert answer.margin >= asked
    with pytest.raises(OptionError):
        pp.Proplace(net, 0.005, margin="float8").fit(train)


@pytest.mark.parametrize(
    ("W", "b", "x", "scale", "shift"),
    [
        ([[1e-5, -1.0]], [0.0], [1e39, 2e34], None, None),
        ([[-1.0]], [8.0], [3e38], [1e-38], [3.0]),  # x - mean overflows
        ([[2.0**30]], [-32.0], [2.0**-150 * 0.99], [2.0**127], None),
        ([[2.0**30]], [-32.0], [2.0**126], [2.0**-150 * 0.99], None),
        ([[1e39, 1.0]], [1.0], [0.0, 1.0], None, None),  # 0 times an infinite weight
    ],
)
def test_intermediate_overflow_is_never_robust(W, b, x, scale, shift):
    net = pp.Network([(W, b)], scale=scale, shift=shift, precision="float32")
    for target in (0, 1):
        report = pp.certify(net, [x], 0.0, target, margin="float32", certificates=True)
        assert np.isinf(report.threshold[0])
        assert not report.robust[0]
        assert report.certificates[0] is None
    with raises(InputError, name="X_train", row=0):
        pp.Proplace(net, 0.0).fit([x])


def test_inputs_and_scales_that_are_flushed_to_zero():
    for x, scale in ((2.0**-127, 2.0**100), (2.0**100, 2.0**-126.5)):
        net = pp.Network([([[1.0]], [0.0])], scale=[scale], precision="float32")
        margin = float32_margin(net, pp.Shifts.of(net, 0.0), np.array([[x]]))[0]
        assert margin >= x * scale  # the pass may return 0
