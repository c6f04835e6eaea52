"""Models in float16 and bfloat16: torch itself runs them, and exact values are rational."""

from __future__ import annotations

import itertools
import logging
from fractions import Fraction as Q

import numpy as np
import pytest

import exactly
import proplace as pp
from proplace.certification.precision_margin import deployed_margin
from proplace.core.errors import InputError, ModelNotSupported

torch = pytest.importorskip("torch")
nn = torch.nn

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def exact_logits(net, x):
    h = exactly.seen(net, x)
    for i, layer in enumerate(net.layers):
        W, b = exactly.rational(layer.W), exactly.rational(layer.bias)
        z = [sum((w * v for w, v in zip(r, h, strict=True)), c) for r, c in zip(W, b, strict=True)]
        h = z if i == len(net.layers) - 1 else [max(v, Q(0)) for v in z]
    return h


def rounded(values, dtype):
    return torch.as_tensor(np.asarray(values)).to(dtype).double().numpy()


def random_net(rng, sizes, factor, name):
    dtype = HALVES[name]
    layers = [
        (
            rounded(rng.normal(size=(m, n)) * factor, dtype),
            rounded(rng.normal(size=m) * factor, dtype),
        )
        for n, m in itertools.pairwise(sizes)
    ]
    return pp.Network(layers, precision=name)


def within(net, delta, rng):
    """A network of half precision inside Delta, most of it at its border."""
    dtype = HALVES[net.precision]
    pairs = []
    for layer in net.layers:
        moved = []
        for part in (layer.W, layer.b):
            new = rounded(part + delta * rng.choice([-1.0, 1.0, 0.3], size=part.shape), dtype)
            moved.append(np.where(np.abs(new - part) <= delta, new, part))
        pairs.append(tuple(moved))
    return pp.Network(pairs, precision=net.precision)


def by_layers(net, x, rng):
    """As torch runs its layers: sums are kept in float32 on most machines."""
    h = torch.as_tensor(x).to(HALVES[net.precision])[None]
    for i, layer in enumerate(net.layers):
        W, b = (torch.as_tensor(np.array(p)).to(h.dtype) for p in (layer.W, layer.b))
        h = nn.functional.linear(h, W, b)
        h = h if i == len(net.layers) - 1 else torch.relu(h)
    return h[0].double().numpy()


def term_by_term(net, x, rng):
    """The worst way to sum: each product and each sum is rounded, in a random order."""
    h = torch.as_tensor(x).to(HALVES[net.precision])
    for i, layer in enumerate(net.layers):
        W, z = (torch.as_tensor(np.array(p)).to(h.dtype) for p in (layer.W, layer.b))
        for j in rng.permutation(W.shape[1]):
            z = z + W[:, j] * h[j]
        h = z if i == len(net.layers) - 1 else torch.relu(z)
    return h.double().numpy()


NETS = {
    "plain": ((6, 20, 20, 1), 0.5, 2.0),
    "classes": ((5, 12, 3), 0.7, 1.0),
    "linear": ((60, 1), 1.0, 3.0),
    "small": ((6, 10, 1), 1e-3, 1e-3),  # below the normal numbers of float16
    "deep": ((4, 12, 12, 12, 1), 0.5, 1.0),
}


@pytest.mark.parametrize("run", [by_layers, term_by_term])
@pytest.mark.parametrize("shape", NETS)
@pytest.mark.parametrize("name", HALVES)
def test_the_margin_covers_every_pass_in_half_precision(name, shape, run):
    """Of every network in Delta; the bound is not an empty one either."""
    sizes, factor, reach = NETS[shape]
    rng = np.random.default_rng([len(name), len(shape)])
    largest = 0.0
    for _ in range(8):
        net = random_net(rng, sizes, factor, name)
        delta = 0.05 * float(max(np.abs(layer.W).max() for layer in net.layers))
        x = rng.normal(size=net.inputs) * reach  # not a number of half precision
        bound = float(deployed_margin(net, pp.Shifts.of(net, delta), x[None], name)[0])
        assert np.isfinite(bound)
        for model in (net, within(net, delta, rng)):
            exact = exact_logits(model, x)
            logits = run(model, x, rng)
            for target in range(net.classes):
                true = exactly.margin_of(exact, target)
                computed = exactly.margin_of([Q(float(v)) for v in logits], target)
                assert abs(true - computed) <= Q(bound)
                largest = max(largest, float(abs(true - computed)) / bound)
    if shape != "small":
        assert largest > 1e-4
        full = deployed_margin(net, pp.Shifts.of(net, delta), x[None], "float32")[0]
        assert bound > 500 * full  # the bound of float32 would be far too small


@pytest.mark.parametrize("name", HALVES)
def test_over_a_box_and_a_hull_the_margin_is_the_largest(name):
    rng = np.random.default_rng(1)
    net = random_net(rng, (4, 10, 10, 1), 0.5, name)
    shifts = pp.Shifts.of(net, 0.05)
    V = rng.normal(size=(6, 4))
    each = deployed_margin(net, shifts, V, name).max()
    assert deployed_margin(net, shifts, rng.dirichlet(np.ones(6), 200) @ V, name).max() <= each
    low, high = V.min(axis=0, keepdims=True), V.max(axis=0, keepdims=True)
    box = rng.uniform(low, high, (300, 4))
    most = deployed_margin(net, shifts, low, name, high)[0]
    assert deployed_margin(net, shifts, box, name).max() <= most


@pytest.mark.parametrize("name", HALVES)
def test_probabilities_of_robust_rows_are_not_rounded_to_a_tie(name):
    """A logit of .001 is right in bfloat16, and its sigmoid is one half all the same."""
    x = np.concatenate([s * np.geomspace(1e-6, 1.0, 400) for s in (-1.0, 1.0)])[:, None]
    module = nn.Linear(1, 2).to(HALVES[name])
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[0.0], [1.0]]))
        module.bias.zero_()
        rows = torch.as_tensor(x).to(HALVES[name])
        softmax = torch.softmax(module(rows), dim=1).double().numpy()
        sigmoid = torch.sigmoid(rows[:, 0]).double().numpy()
    one = pp.Network([([[1.0]], [0.0])], precision=name)
    assert (np.abs(x[sigmoid == 0.5]) > 1e-4).any()
    for target in (0, 1):
        sign = 2 * target - 1
        robust = pp.certify(module, x, 0.0, target).robust
        assert robust.any()
        assert (sign * (softmax[robust, 1] - softmax[robust, 0]) > 0).all()
        robust = pp.certify(one, x, 0.0, target).robust
        assert robust.any()
        assert (sign * (sigmoid[robust] - 0.5) > 0).all()


@pytest.fixture(scope="module")
def trained():
    """A module of few inputs, trained in float32."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    X = rng.random((400, 3))
    y = (X @ [1.0, 2.0, -1.0] > 1.0).astype(float)
    module = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1), nn.Sigmoid())
    optimiser = torch.optim.Adam(module.parameters(), 0.05)
    inputs, labels = torch.tensor(X).float(), torch.tensor(y)[:, None].float()
    for _ in range(300):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy(module(inputs), labels).backward()
        optimiser.step()
    return module, X


def in_half(trained, name):
    module, X = trained
    half = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1), nn.Sigmoid())
    half.load_state_dict(module.state_dict())
    return half.to(HALVES[name]), X


@pytest.mark.parametrize("target", [0, 1])
@pytest.mark.parametrize("name", HALVES)
def test_every_answer_is_accepted_by_the_module_itself(trained, name, target):
    """And by others within delta, in their own half precision, behind their sigmoid."""
    half, X = in_half(trained, name)
    explainer = pp.Proplace(half, 0.004, k=5).fit(X)
    assert explainer.prover_.judges[0].margin == explainer.net_.precision == name
    others = X[explainer.model_.original(X) == 1 - target][:25]
    found = [e for e in explainer.explain(others, target) if e.found]
    assert len(found) > 10
    points = np.array([e.point for e in found])
    net, rng = explainer.net_, np.random.default_rng(1)
    asked = deployed_margin(net, explainer.shifts_, points, name)
    assert all(e.margin >= m for e, m in zip(found, asked, strict=True))
    assert all(e.certificate.check(net).accepted for e in found)
    for model in (net, *(within(net, 0.004, rng) for _ in range(20))):
        for leaf, layer in zip((half[0], half[2]), model.layers, strict=True):
            leaf.load_state_dict(
                {"weight": torch.as_tensor(layer.W.copy()), "bias": torch.as_tensor(layer.b.copy())}
            )
        with torch.no_grad():
            p = half(torch.as_tensor(points).to(HALVES[name]))[:, 0].double().numpy()
        assert ((p > 0.5) if target else (p < 0.5)).all()


def full_works(module, X):
    """The step that the refusals name: float32, and every weight as it was."""
    weights = [p.detach().double().numpy() for p in module.parameters()]
    model = pp.Model.of(module.float())
    assert model.network.precision == "float32"
    np.testing.assert_array_equal(model.network.layers[0].W, weights[0])
    pp.Proplace(model, 0.0001).fit(X)


def test_what_leaves_the_range_of_half_is_never_robust():
    """65,504 is the largest number of float16."""
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).half()
    X = np.array([[40_000.0, 1.0], [0.5, 0.5]])
    for target in (0, 1):
        report = pp.certify(module, X, 0.0, target)
        assert np.isinf(report.threshold[0])
        assert np.isfinite(report.threshold[1])
        assert not report.robust[0]
    with pytest.raises(
        InputError, match=r"range of float16 .*module\.float\(\) keeps every weight"
    ):
        pp.Proplace(module, 0.0001).fit(X)
    full_works(module, X)


def test_too_many_terms_have_no_bound():
    module = nn.Linear(130, 1).bfloat16()
    X = np.zeros((2, 130))
    with pytest.raises(InputError, match=r"130 inputs has no bound in bfloat16 \(at most 125\)"):
        pp.Proplace(module, 0.0001).fit(X)
    full_works(module, X)
    widest = nn.Linear(125, 1).bfloat16()
    assert np.isfinite(pp.certify(widest, X[:, :125], 0.0).threshold).all()
    assert np.isinf(pp.certify(nn.Linear(126, 1).bfloat16(), X[:, :126], 0.0).threshold).all()


class Scaled(nn.Module):
    """Scales its inputs, in its own precision."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([100.0, 2.0]))
        self.first, self.last = nn.Linear(2, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.last(torch.relu(self.first(x - self.mean)))


class Sum(nn.Module):
    """Adds a constant behind a layer."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(2, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.last(torch.relu(self.first(x) * 3.0))


NORMED = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1))


@pytest.mark.parametrize("module", [Scaled(), Sum(), NORMED.eval()])
@pytest.mark.parametrize("name", HALVES)
def test_more_than_linear_and_relu_is_refused_in_half(name, module):
    """Each step rounds, and what was folded into a layer is not covered by that layer's bound."""
    module = module.to(HALVES[name])
    for read in (pp.Network.from_torch, pp.Model.of):
        with pytest.raises(ModelNotSupported, match=rf"is {name} and does more.*module\.float\(\)"):
            read(module)
    pp.Model.of(module.float())


def test_mixed_precisions_are_refused_by_name():
    module = nn.Sequential(nn.Linear(2, 3).half(), nn.ReLU(), nn.Linear(3, 1).bfloat16())
    with pytest.raises(ModelNotSupported, match=r"bfloat16, float16.*\.float\(\)"):
        pp.Network.from_torch(module)
    assert pp.Network.from_torch(module.float()).precision == "float32"


def exported(module, path, dtype):
    pytest.importorskip("onnxscript")
    logging.disable(logging.WARNING)
    try:
        rows = torch.zeros(5, 3, dtype=dtype)
        torch.onnx.export(module.eval(), (rows,), path, verbose=False)
    finally:
        logging.disable(logging.NOTSET)
    return path


def test_graphs_in_half_precision_are_refused_with_a_step_that_works(trained, tmp_path):
    """They were labelled float32."""
    half, _ = in_half(trained, "float16")
    path = exported(half, tmp_path / "half.onnx", torch.float16)
    for read in (pp.Network.load, pp.Model.of):
        with pytest.raises(ModelNotSupported, match=r"float16 numbers.*export\(model\.float\(\)"):
            read(path)
    model = pp.Model.of(exported(half.float(), tmp_path / "full.onnx", torch.float32))
    assert model.network.precision == "float32"
    np.testing.assert_array_equal(model.network.layers[0].W, half[0].weight.detach().double())


class Within(nn.Module):
    """Computes in half precision between two casts."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3).half(), nn.Linear(3, 1)

    def forward(self, x):
        return self.last(torch.relu(self.first(x.half())).float())


def test_a_cast_to_half_inside_of_a_graph_is_refused(tmp_path):
    path = exported(Within(), tmp_path / "cast.onnx", torch.float32)
    for read in (pp.Network.load, pp.Model.of):
        with pytest.raises(ModelNotSupported, match=r"\(Cast\) makes the numbers float16"):
            read(path)
