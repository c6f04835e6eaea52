"""Torch modules that are trained within a box: what is read of them lies in it, and answers hold."""

from __future__ import annotations

import copy
import itertools
from fractions import Fraction

import numpy as np
import pytest

import proplace as pp
from proplace.core.errors import DeltaError, ModelNotSupportedError, OptionError
from support.errors import raises
from support.tiers import quick

torch = pytest.importorskip("torch")
nn = torch.nn

HIDDEN = [(), (4,), (5, 3), (4, 4, 3), (3, 4, 3, 4)]


def build(hidden, outputs=1, *, bias=True, dtype=None, seed=0):
    torch.manual_seed(seed)
    widths, steps = [3, *hidden, outputs], []
    for i, (a, b) in enumerate(itertools.pairwise(widths)):
        steps += [nn.Linear(a, b, bias=bias if isinstance(bias, bool) else bias[i]), nn.ReLU()]
    return nn.Sequential(*steps[:-1]).to(dtype or torch.float32)


def with_norms(*, bias=True, dtype=None, seed=0):
    """Batch norm before and after layers and ReLUs, twice after a layer, with factors of every sign."""
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.BatchNorm1d(3), nn.Linear(3, 7, bias=bias), nn.BatchNorm1d(7), nn.ReLU(),
        nn.BatchNorm1d(7), nn.Linear(7, 6, bias=bias), nn.BatchNorm1d(6), nn.BatchNorm1d(6), nn.ReLU(),
        nn.BatchNorm1d(6), nn.BatchNorm1d(6), nn.Linear(6, 2, bias=bias),
    ).to(dtype or torch.float32)  # fmt: skip
    for norm in norms(module):
        with torch.no_grad():
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2.0)
            norm.weight.normal_()
            norm.bias.normal_()
            norm.weight[0] = 0.0
    return freeze(module)


def norms(module):
    return [leaf for leaf in module.modules() if isinstance(leaf, nn.BatchNorm1d)]


def freeze(module):
    for norm in norms(module):
        norm.eval()
        norm.requires_grad_(False)
    return module


def data(module, n=96):
    rng = np.random.default_rng(3)
    dtype = next(module.parameters()).dtype
    X = torch.as_tensor(rng.normal(size=(n, 3)), dtype=dtype)
    return X, (X[:, 0] - X[:, 1] < 0.1).long()


def loss_of(module, X, y):
    out = module(X)
    if out.shape[1] == 1:
        return nn.functional.binary_cross_entropy_with_logits(out[:, 0], y.to(out.dtype))
    return nn.functional.cross_entropy(out, y)


def steps(module, optimizer, X, y, count=25, after=lambda: None):
    for _ in range(count):
        optimizer.zero_grad()
        loss_of(module, X, y).backward()
        optimizer.step()
        after()


def adam(module, lr=0.02):
    return torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=lr)


def network(module):
    return pp.Model.of(module).network


def moved(before, after):
    """Largest change of a parameter of the layers."""
    pairs = zip(before.layers, after.layers, strict=True)
    return max(max(np.abs(a.W - b.W).max(), np.abs(a.bias - b.bias).max()) for a, b in pairs)


def trained_within(module, shifts):
    """Train a module inside a box, and return the network before the training."""
    optimizer = adam(module)
    with pp.retrain.stay_within(module, shifts, optimizer):
        start = network(module)
        steps(module, optimizer, *data(module))
    assert shifts.contains(network(module))
    assert moved(start, network(module)) > 1e-3  # it was trained, not only projected
    return start


def variants(module, count, size, seed=5):
    """Networks read of copies whose trained parameters differ from the module's."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        twin = copy.deepcopy(module)
        with torch.no_grad():
            for p in twin.parameters():
                if p.requires_grad:
                    p.add_(size * torch.randn(p.shape, generator=generator, dtype=p.dtype))
        found.append(network(twin))
    return found


def frozen_and_uneven(module):
    """Radii of each parameter by itself, some of them 0, and a frozen layer."""
    net, rng = network(module), np.random.default_rng(1)
    pairs = [
        (0.05 * rng.random(layer.W.shape) * (rng.random(layer.W.shape) < 0.7), 0.02)
        for layer in net.layers
    ]
    if len(pairs) > 1:
        pairs[1] = (0.0, 0.0)
    return pp.Shifts.of(net, pairs)


def one_sided(module):
    """The module lies at an end of every interval."""
    net = network(module)
    high = net.with_layers(
        (layer.W + 0.0625, None if layer.b is None else layer.b + 0.125) for layer in net.layers
    )
    return pp.Shifts(net, high)


BOXES = {
    "number": lambda module: pp.Shifts.of(network(module), 0.03),
    "layers": lambda module: pp.Shifts.of(
        network(module), [(0.02, 0.0)] * (len(network(module).layers) - 1) + [(0.0, 0.1)]
    ),
    "uneven": frozen_and_uneven,
    "one-sided": one_sided,
    "hull": lambda module: pp.Shifts.bounding(variants(module, 3, 0.05)),
    "learned": lambda module: pp.Shifts.learn(variants(module, 12, 0.02), coverage=0.8),
    "elsewhere": lambda module: pp.Shifts.of(variants(module, 1, 0.5)[0], 0.01),
}


@pytest.mark.every(5)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("hidden", quick(2, [(hidden,) for hidden in HIDDEN]), ids=str)
def test_imported_network_of_trained_module_lies_in_shift_set(hidden, box, dtype):
    module = build(hidden, outputs=1 + 2 * (len(hidden) % 2), dtype=dtype)
    shifts = BOXES[box](module)
    before = network(module)
    assert shifts.contains(trained_within(module, shifts))
    free = copy.deepcopy(build(hidden, outputs=1 + 2 * (len(hidden) % 2), dtype=dtype))
    steps(free, adam(free), *data(free))
    assert not shifts.contains(network(free))
    if box != "learned":
        assert shifts.contains(before) == (box not in ("hull", "elsewhere"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_projection_gives_outermost_floats_inside_by_exact_fractions(dtype):
    module = build((4,), dtype=dtype)
    centre = {name: p.detach().clone() for name, p in module.named_parameters()}
    delta = 0.03  # no float32 number
    project = pp.retrain.stay_within(module, delta)
    for sign in (1.0, -1.0):
        with torch.no_grad():
            for p in module.parameters():
                p.add_(sign * 5.0)
        project()
        project.check()
        for name, p in module.named_parameters():
            outwards = torch.nextafter(p, torch.full_like(p, sign * np.inf))
            for c, v, next_ in zip(*(t.flatten().tolist() for t in (centre[name], p, outwards)),
                                   strict=True):  # fmt: skip
                assert abs(Fraction(v) - Fraction(c)) <= Fraction(delta)
                assert abs(Fraction(next_) - Fraction(c)) > Fraction(delta)


@pytest.mark.parametrize("bias", [False, (True, False, True), (False, True, False)], ids=str)
def test_layers_without_bias(bias):
    module = build((5, 4), 3, bias=bias)
    trained_within(module, pp.Shifts.of(network(module), 0.02))


@pytest.mark.parametrize("box", quick(1, ["number", "layers", "uneven", "hull", "elsewhere"]))
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_batch_norm(dtype, bias, box):
    module = with_norms(bias=bias, dtype=dtype)
    shifts = BOXES[box](module).assume_encoding_of(module)
    fixed = [copy.deepcopy(norm.state_dict()) for norm in norms(module)]
    trained_within(module, shifts)
    for norm, state in zip(norms(module), fixed, strict=True):
        assert all(torch.equal(norm.state_dict()[key], value) for key, value in state.items())
    free = with_norms(bias=bias, dtype=dtype)
    steps(free, adam(free), *data(free))
    assert not shifts.contains(network(free))


@pytest.mark.parametrize("seed", quick(2, range(5)))
def test_far_from_box_batch_norm_and_no_bias_are_still_projected(seed):
    """The weights alone must bring the folded biases into their intervals."""
    module = with_norms(bias=False, seed=seed)
    shifts = pp.Shifts.of(network(module), 0.01)
    project = pp.retrain.stay_within(module, shifts)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(5):
        with torch.no_grad():
            for p in module.parameters():
                if p.requires_grad:
                    p.add_(torch.randn(p.shape, generator=generator))
        project()
        assert shifts.contains(network(module))


def test_batch_norm_that_is_trained_is_refused_and_advice_works():
    module = with_norms()
    box = pp.Shifts.of(network(module), 0.02)
    X, y = data(module)
    trained = copy.deepcopy(module).train()
    for norm in norms(trained):
        norm.requires_grad_(True)
    with raises(ModelNotSupportedError, name="0", match="eval"):
        pp.retrain.stay_within(trained, box)
    for norm in norms(trained):
        norm.eval()
    with raises(ModelNotSupportedError, name="0", match="requires_grad_"):
        pp.retrain.stay_within(trained, box)
    freeze(trained)
    optimizer = adam(trained)
    within = pp.retrain.stay_within(trained, box, optimizer)
    steps(trained, optimizer, X, y, 3)
    trained.train()
    with raises(ModelNotSupportedError, name="0", match="training mode"):
        steps(trained, optimizer, X, y, 1)
    for norm, kept in zip(norms(trained), norms(module), strict=True):
        norm.load_state_dict(kept.state_dict())
        norm.eval()
    steps(trained, optimizer, X, y, 3)
    within.check()


def test_box_behind_other_batch_norms_is_refused():
    module, other = with_norms(bias=False), with_norms(bias=False, seed=1)
    for mine, theirs in zip(norms(module)[:1], norms(other)[:1], strict=True):
        theirs.load_state_dict(mine.state_dict())
    box = pp.Shifts.of(network(other), 0.01).assume_encoding_of(module)
    with raises(DeltaError, name=None, match="batch norm"):
        pp.retrain.stay_within(module, box)


class Shared(nn.Module):
    """One layer, used twice."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(self.inner(x))
        return self.last(torch.relu(self.inner(x)))


def tied():
    """Two layers with the same weights and biases of their own."""
    torch.manual_seed(0)
    module = nn.Sequential(
        *(nn.Linear(3, 3), nn.ReLU()) * 1, nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)
    )
    module[2].weight = module[0].weight
    return module


@pytest.mark.parametrize("make", [Shared, tied])
def test_shared_parameter_lies_in_all_of_its_intervals(make):
    torch.manual_seed(0)
    module = make()
    net = network(module)
    number = len(net.layers)
    radii = [(0.04, 0.01 * (n + 1)) for n in range(number)]
    radii[1] = (0.005, 0.02)  # the shared one, here less than in the other place
    trained_within(module, pp.Shifts.of(net, radii))
    i = 2 if make is Shared else 0
    apart = net.with_layers(
        (layer.W + 0.5 * (n == i), layer.b) for n, layer in enumerate(net.layers)
    )
    with raises(DeltaError, name="inner.weight" if make is Shared else "0.weight"):
        pp.retrain.stay_within(module, pp.Shifts.of(apart, 0.01))


class Chosen(nn.Module):
    """Takes some of the outputs, in another order."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5))

    def forward(self, x):
        return self.body(x)[:, [3, 0, 2]]


def test_outputs_that_are_not_used_are_left_alone():
    torch.manual_seed(0)
    module = Chosen()
    shifts = pp.Shifts.of(network(module), [(0.01, 0.02), (0.03, 0.005)])
    project = pp.retrain.stay_within(module, shifts)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(1.0)
    unused, used = (module.body[2].weight[rows].clone() for rows in ([1, 4], [0, 2, 3]))
    project()
    project.check()
    assert shifts.contains(network(module))
    assert torch.equal(module.body[2].weight[[1, 4]], unused)
    assert (module.body[2].weight[[0, 2, 3]] < used - 0.9).all()


class Functional(nn.Module):
    """Layers written as functions."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        hidden = nn.functional.linear(x, self.first.weight, self.first.bias).relu()
        return nn.functional.linear(hidden, self.last.weight, self.last.bias)


def test_modules_with_forward_of_their_own():
    torch.manual_seed(0)
    module = Functional()
    trained_within(module, pp.Shifts.of(network(module), 0.01))


def test_delta_is_centred_on_current_module():
    module = build((4,))
    start, optimizer = network(module), adam(module)
    within = pp.retrain.stay_within(module, 0.01, optimizer)
    steps(module, optimizer, *data(module))
    within.check()
    assert within.shifts == pp.Shifts.of(start, 0.01)
    assert 0.009 < start.distance(network(module)) <= 0.01


def test_projection_without_optimizer_is_called_by_hand():
    module = build((4,))
    shifts = pp.Shifts.of(network(module), 0.01)
    project, optimizer = pp.retrain.stay_within(module, shifts), adam(module)
    steps(module, optimizer, *data(module), after=project)
    project.check()
    assert shifts.contains(network(module))
    steps(module, optimizer, *data(module), 3)
    with raises(DeltaError, match="Project"):
        project.check()
    project()
    project.check()


def test_module_that_is_changed_by_hand_is_noticed_at_end():
    module = build((4,))
    with (
        raises(DeltaError, match="left"),
        pp.retrain.stay_within(module, 0.01, adam(module)),
        torch.no_grad(),
    ):
        module[0].weight.add_(1.0)


def test_error_inside_is_not_hidden_and_hook_is_taken_off():
    module = build((4,))
    optimizer = adam(module)

    def broken_training():
        with pp.retrain.stay_within(module, 0.001, optimizer):
            module[0].weight.data.add_(1.0)  # out of the box
            raise KeyError

    with pytest.raises(KeyError):
        broken_training()
    start = network(module)
    steps(module, optimizer, *data(module), 5)
    assert start.distance(network(module)) > 0.01


def test_box_without_number_of_modules_precision_is_refused_and_advice_works():
    module = build((4,), 2)
    net = network(module)
    third = net.with_layers((layer.W / 3.0, layer.bias / 3.0) for layer in net.layers)
    narrow = pp.Shifts.of(third, 1e-12)
    with raises(DeltaError, name="0.weight", match="float32"):
        pp.retrain.stay_within(module, narrow)
    double = module.double()
    pp.retrain.stay_within(double, narrow)()
    assert narrow.contains(network(double))


def test_half_precision_is_refused_and_advice_works():
    module = build((4,)).half()
    with raises(ModelNotSupportedError, match="float16"):
        pp.retrain.stay_within(module, 0.1)
    project = pp.retrain.stay_within(module.float(), 0.1)
    project()
    module.half()
    with raises(DeltaError, name="0.weight", match="half precision"):
        project()
    module.float()
    project()


def test_module_that_changes_its_precision_on_way():
    module = build((4,), dtype=torch.float64)
    shifts = pp.Shifts.of(network(module), 0.03)
    project = pp.retrain.stay_within(module, shifts)
    project()
    module.float()
    with torch.no_grad():
        for p in module.parameters():
            p.add_(1.0)
    project()
    assert module[0].weight.dtype == torch.float32
    assert shifts.contains(network(module))


def test_shift_set_of_other_shape_is_rejected():
    module = build((4,))
    with raises(DeltaError, name=None, match="architecture"):
        pp.retrain.stay_within(module, pp.Shifts.of(network(build((5,))), 0.1))
    with raises(DeltaError, name="delta"):
        pp.retrain.stay_within(module, -0.1)
    with raises(OptionError, name="optimizer"):
        pp.retrain.stay_within(module, 0.1, adam(build((4,))))
    with raises(OptionError, name="optimizer", value="adam"):
        pp.retrain.stay_within(module, 0.1, "adam")
    with raises(OptionError, name="module", match="refit_within"):
        pp.retrain.stay_within(network(module), 0.1)


class Categories(nn.Module):
    """An embedding of the first column, and numbers."""

    def __init__(self):
        super().__init__()
        self.kinds = nn.Embedding(4, 2)
        self.body = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))

    def forward(self, x):
        return self.body(torch.cat([self.kinds(x[:, 0].long()), x[:, 1:]], dim=1))


def test_categories_are_frozen_and_box_is_of_models():
    torch.manual_seed(0)
    module = Categories()
    model = pp.Model.of(module)
    shifts = pp.Shifts.of(model.network, 0.02)
    with raises(ModelNotSupportedError, name="kinds.weight", match="get_submodule"):
        pp.retrain.stay_within(module, shifts)
    module.get_submodule("kinds").requires_grad_(False)
    rng = np.random.default_rng(0)
    X = torch.tensor(np.c_[rng.integers(0, 4, 90), rng.normal(size=(90, 2))], dtype=torch.float32)
    optimizer = adam(module)
    with pp.retrain.stay_within(module, shifts, optimizer):
        steps(module, optimizer, X, (X[:, 1] > 0).long())
    later = pp.Model.of(module)
    assert shifts.contains(later.network)
    assert later.encoding == model.encoding
    assert moved(model.network, later.network) > 1e-3


class Scaled(nn.Module):
    """A scaler in front, which never moves."""

    def __init__(self, shift):
        super().__init__()
        self.register_buffer("shift", torch.tensor(shift))
        self.body = build((4,))

    def forward(self, x):
        return self.body((x - self.shift) / 2.0)


def test_box_of_models_is_of_those_that_scale_alike():
    module = Scaled([1.0, 2.0, 3.0])
    later = copy.deepcopy(module)
    steps(later, adam(later), *data(later), 3)
    hull = pp.Shifts.bounding([module, later])
    assert hull.encoding
    optimizer = adam(module)
    with pp.retrain.stay_within(module, hull, optimizer):
        start = network(module)
        steps(module, optimizer, *data(module))
    assert hull.contains(pp.Model.of(module).network)
    assert moved(start, network(module)) > 1e-3
    bare = pp.Shifts.of(network(module), 0.01)  # after the known scaler
    with pp.retrain.stay_within(module, bare):
        pass
    other = Scaled([0.0, 2.0, 3.0])
    for box in (hull, bare):
        with pytest.raises(DeltaError):
            pp.retrain.stay_within(other, box)


@pytest.mark.parametrize("outputs", [1, 3])
def test_answers_that_were_proved_are_accepted_by_trained_module(outputs):
    """Free training on swapped labels breaks promises. Training within the shift set breaks none."""
    module = build((8, 6), outputs, seed=2)
    X, y = data(module, 300)
    steps(module, adam(module), X, y, 150)
    shifts = pp.Shifts.of(network(module), 0.01)
    rows = X.double().numpy()
    explainer = pp.Proplace(module, shifts, k=10).fit(rows)
    refused = rows[network(module).predict(rows) == 0][:12]
    answers = explainer.explain(refused, target=1)
    points = np.array(
        [e.encoded_counterfactual for e in answers if e.found and e.certificate is not None]
    )
    assert len(points) >= 10

    def accepted(trained):
        with torch.no_grad():
            out = trained(torch.as_tensor(points, dtype=torch.float32))
        return (out[:, 0] >= 0) if out.shape[1] == 1 else out.argmax(dim=1) == 1

    free, start = copy.deepcopy(module), network(module)
    steps(free, adam(free), X, 1 - y, 150)
    assert not accepted(free).all()
    optimizer = adam(module)
    with pp.retrain.stay_within(module, shifts, optimizer):
        steps(module, optimizer, X, 1 - y, 150)
    assert accepted(module).all()
    assert shifts.contains(network(module))
    assert moved(start, network(module)) > 0.009
