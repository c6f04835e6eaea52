"""Delta refers to the trained weights of models with batch norm: attacks in their own frameworks.

The trained parameters of a model move by at most delta, at random and along the gradient of the margin,
and its own framework runs it. A row that is certified must keep its class, whatever is found.
"""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace.calibrate.delta import CalibrationWarning
from proplace.loaders.align import in_coordinates_of
from proplace.report.page import Moves
from support.lenders import setting_of

torch = pytest.importorskip("torch")
nn = torch.nn

DELTA = 0.03
INPUTS = 4


def settled(module, seed):
    """Give a module parameters and statistics that are far from those at the start."""
    generator = torch.Generator().manual_seed(seed)

    def normal(like):
        return torch.randn(like.shape, generator=generator, dtype=torch.float64)

    with torch.no_grad():
        for leaf in module.double().modules():
            if isinstance(leaf, nn.BatchNorm1d):
                leaf.weight.copy_(1.5 * normal(leaf.weight))  # negative ones, too
                leaf.weight[-1] = 0.0 if len(leaf.weight) > INPUTS else leaf.weight[-1]
                leaf.bias.copy_(normal(leaf.bias))
                leaf.running_mean.copy_(normal(leaf.running_mean))
                leaf.running_var.copy_(normal(leaf.running_var).square() + 0.05)
            elif isinstance(leaf, nn.Linear):
                for parameter in leaf.parameters():
                    parameter.copy_(normal(parameter))
        module.eval()
        last = [leaf for leaf in module.modules() if isinstance(leaf, (nn.Linear, nn.BatchNorm1d))][
            -1
        ]
        rows = torch.randn(500, INPUTS, generator=generator, dtype=torch.float64)
        last.bias -= module(rows).quantile(0.5, dim=0)  # about half of all rows are accepted
    return module


def module_of(places, *, bias=True, outputs=1, seed=0):
    """Linear and ReLU, with batch norm in some places."""

    def norm(place, n):
        return [nn.BatchNorm1d(n)] if place in places else []

    return settled(
        nn.Sequential(
            *norm("front", INPUTS),
            nn.Linear(INPUTS, 6, bias=bias),
            *norm("behind", 6),
            nn.ReLU(),
            *norm("between", 6),
            nn.Linear(6, 5, bias=bias),
            *norm("deep", 5),
            nn.ReLU(),
            nn.Linear(5, outputs),
            *norm("end", outputs),
        ),
        seed,
    )


def linear_parameters(module):
    layers = [leaf for leaf in module.modules() if isinstance(leaf, nn.Linear)]
    return [parameter for leaf in layers for parameter in leaf.parameters()]


def margins(outputs, target):
    if outputs.shape[1] == 1:
        return outputs[:, 0] if target == 1 else -outputs[:, 0]
    others = [k for k in range(outputs.shape[1]) if k != target]
    return outputs[:, target] - outputs[:, others].amax(dim=1)


def attacked(module, row, target, delta, steps=8):
    """Yield copies of a module whose trained parameters moved by at most delta."""
    x = torch.tensor(row)[None]
    own = linear_parameters(module)
    generator = torch.Generator().manual_seed(1)
    for start in range(3):
        moved = copy.deepcopy(module)
        parameters = linear_parameters(moved)
        with torch.no_grad():
            for p in parameters if start else []:
                signs = torch.rand(p.shape, generator=generator, dtype=p.dtype) < 0.5
                p.add_(torch.where(signs, delta, -delta).to(p.dtype))
        for step in range(steps):
            yield moved
            with torch.enable_grad():
                gradients = torch.autograd.grad(margins(moved(x), target).sum(), parameters)
            with torch.no_grad():
                for p, q, g in zip(parameters, own, gradients, strict=True):
                    size = delta if step == 0 else delta / 2.0
                    p.copy_(torch.clamp(p - size * g.sign(), q - delta, q + delta))
        yield moved


def certified(source, X, target, delta=DELTA):
    return pp.certify(source, X, delta, target)


PLACES = [
    ("front",),
    ("behind",),
    ("between",),
    ("front", "behind", "end"),
    ("behind", "between", "deep", "end"),
]


@pytest.mark.every(3)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("places", PLACES)
def test_no_attack_on_trained_weights_breaks_certified_row(places, outputs, bias):
    module = module_of(places, bias=bias, outputs=outputs, seed=len(places))
    rng = np.random.default_rng([1, outputs])
    X, target = rng.normal(size=(250, INPUTS)), 0 if outputs > 1 else 1
    net = pp.Model.of(module).network
    assert net.folded == (places != ("front",))
    tried = 0
    for delta in (DELTA, 0.3 * DELTA, 0.05 * DELTA, 0.01 * DELTA):
        found = certified(module, X, target, delta)
        # those whose proof has the least to spare
        rows = X[found.robust][np.argsort(found.lower[found.robust])[:2]]
        tried += len(rows)
        for row in rows:
            for moved in attacked(module, row, target, delta):
                with torch.no_grad():
                    assert margins(moved(torch.tensor(row)[None]), target)[0] >= -1e-9
    assert tried


def test_attacks_reach_proved_margin_behind_linear_layers():
    """The box is no larger than it must be: just outside of what is proved, attacks succeed."""
    module = module_of(("behind", "end"), seed=3)
    X = np.random.default_rng(2).normal(size=(15, INPUTS))
    found = pp.certify(module, X, DELTA, 1, exact_margin=True)
    gaps = []
    for row, least in zip(X, found.lower, strict=True):
        with torch.no_grad():
            rows = torch.tensor(row)[None]
            reached = min(
                float(margins(moved(rows), 1)[0]) for moved in attacked(module, row, 1, DELTA)
            )
        assert reached >= least - 1e-9
        gaps.append((reached - least) / (1.0 + abs(least)))
    assert np.quantile(gaps, 0.5) < 0.02


def test_delta_of_folded_weights_would_break():
    """Rows certified while Delta ignored batch norm: attacks break them."""
    module = module_of(("behind",), seed=4)
    with torch.no_grad():
        module[1].weight *= 8.0
    net = pp.Model.of(module).network
    folded = pp.Network([(layer.W, layer.b) for layer in net.layers])
    X = np.random.default_rng(3).normal(size=(300, INPUTS))
    old, new = (certified(source, X, 1).robust for source in (folded, net))
    broken = 0
    for row in X[old & ~new][:10]:
        with torch.no_grad():
            rows = torch.tensor(row)[None]
            broken += any(margins(m(rows), 1)[0] < 0.0 for m in attacked(module, row, 1, DELTA))
    assert broken >= 3
    assert not (new & ~old).any()


def test_answers_survive_attacks_on_trained_weights(tmp_path):
    module = module_of(("front", "behind"), seed=5)
    rng = np.random.default_rng(4)
    table = pd.DataFrame(rng.normal(size=(300, INPUTS)), columns=list("abcd"))
    explainer = pp.Proplace(module, 0.01, k=10).fit(table)
    refused = table[explainer.model_.predict(table) == 0][:3]
    answers = explainer.explain(refused)
    assert sum(e.found for e in answers) >= 2
    for e in answers:
        if e.found:
            row = e.counterfactual.to_numpy(dtype=np.float64)
            for moved in attacked(module, row, 1, 0.01):
                with torch.no_grad():
                    assert moved(torch.tensor(row)[None])[0, 0] >= -1e-9


def test_retrained_modules_are_compared_by_their_trained_weights():
    module = module_of(("behind", "end"), seed=6)
    moved = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in linear_parameters(moved):
            parameter.add_(0.02 * torch.sign(torch.randn_like(parameter)))
    model, other = pp.Model.of(module), pp.Model.of(moved)
    assert model.network.distance(in_coordinates_of(model, other)) == pytest.approx(0.02)
    assert pp.Shifts.of(model.network, 0.0201).contains(other.network)


def test_scaler_that_was_fitted_again_keeps_folds():
    module, other = (module_of(("front", "behind"), seed=7) for _ in range(2))
    with torch.no_grad():
        other[0].running_mean += 0.5
        other[0].running_var *= 2.0
        other[0].weight[-1] = module[0].weight[-1] = 0.7
    model, retrained = pp.Model.of(module), pp.Model.of(other)
    net = in_coordinates_of(model, retrained)
    assert net.input_transform is not retrained.network.input_transform
    np.testing.assert_array_equal(net.folds[0].rows, retrained.network.folds[0].rows)
    X = np.random.default_rng(5).normal(size=(20, INPUTS))
    rows = model.encode(X)
    with torch.no_grad():
        np.testing.assert_allclose(net.logits(rows), other(torch.as_tensor(X)).numpy(), atol=1e-9)


# -- other frameworks ------------------------------------------------------------------------------


def leaves(module):
    return [leaf for leaf in module if not isinstance(leaf, nn.ReLU)]


def numbers(leaf):
    return [p.detach().numpy() for p in leaf.parameters()]


def as_keras(module):
    keras = pytest.importorskip("keras")
    L = keras.layers
    model = keras.Sequential([keras.Input((INPUTS,), dtype="float64")])
    for leaf in module:
        if isinstance(leaf, nn.ReLU):
            model.add(L.ReLU(dtype="float64"))
        elif isinstance(leaf, nn.Linear):
            made = L.Dense(leaf.out_features, use_bias=leaf.bias is not None, dtype="float64")
            model.add(made)
            W, *b = numbers(leaf)
            made.set_weights([W.T, *b])
        else:
            made = L.BatchNormalization(epsilon=leaf.eps, dtype="float64")
            model.add(made)
            made.set_weights([*numbers(leaf), leaf.running_mean.numpy(), leaf.running_var.numpy()])
    return model


def as_onnx(module, path):
    onnx = pytest.importorskip("onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    nodes, constants, value = [], [], "x"

    def constant(array):
        constants.append(numpy_helper.from_array(np.ascontiguousarray(array), f"c{len(constants)}"))
        return constants[-1].name

    for n, leaf in enumerate(module):
        before, value = value, f"v{n}"
        if isinstance(leaf, nn.ReLU):
            nodes.append(helper.make_node("Relu", [before], [value]))
        elif isinstance(leaf, nn.Linear):
            W, *b = numbers(leaf)
            last = value if not b else f"m{n}"
            nodes.append(helper.make_node("MatMul", [before, constant(W.T)], [last]))
            if b:
                nodes.append(helper.make_node("Add", [last, constant(b[0])], [value]))
        else:
            parts = [*numbers(leaf), leaf.running_mean.numpy(), leaf.running_var.numpy()]
            given = [before, *map(constant, parts)]
            node = helper.make_node("BatchNormalization", given, [value], epsilon=leaf.eps)
            nodes.append(node)
    kind = onnx.TensorProto.DOUBLE
    ends = [
        helper.make_tensor_value_info(name, kind, ["n", size])
        for name, size in (("x", INPUTS), (value, leaves(module)[-1].weight.shape[0]))
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("places", PLACES)
def test_every_framework_gives_same_delta(places, bias, tmp_path):
    module = module_of(places, bias=bias, seed=8)
    net = pp.Model.of(module).network
    box = pp.Shifts.of(net, DELTA)
    others = [
        pp.Model.of(source).network
        for source in (as_keras(module), as_onnx(module, tmp_path / "model.onnx"))
    ]
    for other in others:
        there = pp.Shifts.of(other, DELTA)
        assert there.trained_radius == box.trained_radius == DELTA
        for mine, theirs in zip(box.layers, there.layers, strict=True):
            for a, b in zip(mine.radius, theirs.radius, strict=True):
                np.testing.assert_allclose(
                    np.broadcast_to(a, np.shape(b)), b, rtol=1e-9, atol=1e-15
                )


def run_keras(module, row, folder):
    return np.asarray(as_keras(module)(row[None]).detach())


def run_onnx(module, row, folder):
    runtime = pytest.importorskip("onnxruntime")
    path = as_onnx(module, folder / "moved.onnx")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": row[None]})[0]


@pytest.mark.every(3)
@pytest.mark.parametrize("run", [run_keras, run_onnx])
@pytest.mark.parametrize("places", [("behind",), ("front", "behind", "between", "end")])
def test_no_attack_in_another_framework_breaks_certified_row(places, run, tmp_path):
    module = module_of(places, seed=9)
    X = np.random.default_rng(6).normal(size=(200, INPUTS))
    source = as_keras(module) if run is run_keras else as_onnx(module, tmp_path / "model.onnx")
    found = pp.certify(source, X, 0.1 * DELTA, 1)
    rows = X[found.robust][np.argsort(found.lower[found.robust])[:4]]
    assert len(rows)
    for row in rows:
        for moved in [*attacked(module, row, 1, 0.1 * DELTA)][2::6]:
            assert run(moved, row, tmp_path)[0, 0] >= -1e-9


# -- retraining that moves the batch norm itself -----------------------------------------------------


def test_batch_norm_that_moved_counts_as_trained_parameters_that_moved():
    module = module_of(("behind",), seed=10)
    moved = copy.deepcopy(module)
    with torch.no_grad():
        moved[1].bias += 0.01 * (moved[1].weight != 0.0)
    net, other = (pp.Model.of(m).network for m in (module, moved))
    factor = (module[1].weight / torch.sqrt(module[1].running_var + module[1].eps)).detach().numpy()
    moves = 0.01 / np.abs(factor[factor != 0.0])
    assert net.distance(other) == pytest.approx(moves.max())
    assert pp.Shifts.of(net, 1.001 * moves.max()).contains(other)


def test_calibration_names_changes_that_no_delta_includes():
    module = module_of(("behind",), bias=False, seed=11)
    moved = copy.deepcopy(module)
    with torch.no_grad():
        moved[1].bias += 0.001  # a layer without bias cannot do the same
    X = np.random.default_rng(8).normal(size=(120, INPUTS))
    with pytest.warns(CalibrationWarning, match=r"no delta includes them.*Shifts\.bounding"):
        found = pp.calibrate_delta(module, X, retrained=[moved], people=X[:20], deltas=[1e-4], k=5)
    assert found.max_change == np.inf
    box = pp.Shifts.bounding([module, moved])
    assert box.contains(pp.Model.of(moved).network)
    assert pp.certify(module, X, box, 1).robust.any()


def test_page_names_changes_that_no_delta_includes():
    module = module_of(("behind",), bias=False, seed=11)
    moved = copy.deepcopy(module)
    with torch.no_grad():
        moved[1].bias += 0.001
    net, other = (pp.Model.of(m).network for m in (module, moved))
    box = pp.Shifts.of(net, 0.01)
    setting = setting_of(pp.Model.of(net), box)
    said = Moves.of(setting, [other]).words
    assert "batch norm moved what no change of weights and biases does; it does not lie" in said
