from __future__ import annotations

import sys

import numpy as np
import pytest

from proplace.core.errors import MissingExtra, ModelNotSupported
from proplace.core.network import Network
from proplace.loaders.model import Model

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional


def train(module, data, steps=30):
    """Train on log-probabilities or logits, whatever the module returns."""
    X = torch.as_tensor(data.Z, dtype=torch.float32)
    y = torch.as_tensor(data.y)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        out = module(X)
        loss = F.mse_loss(out[:, -1], y.float()) if out.shape[1] == 1 else F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
    return module


def run(module, X):
    """Outputs of the module in float64; the module stays as it is."""
    training, dtype = module.training, next(module.parameters()).dtype
    with torch.no_grad():
        out = module.double().eval()(torch.as_tensor(X)).numpy()
    module.to(dtype).train(training)
    return out


def layers(outputs, *last):
    torch.manual_seed(0)
    return [nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, outputs), *last]


class Functional(nn.Module):
    """Only Linear layers are registered, in the order of their use."""

    def __init__(self, outputs=1, last=lambda z: z, between=F.relu):
        super().__init__()
        torch.manual_seed(1)
        self.hidden = nn.ModuleList([nn.Linear(5, 8), nn.Linear(8, 5)])
        self.out = nn.Linear(5, outputs)
        self.last, self.between = last, between

    def forward(self, x):
        for layer in self.hidden:
            x = self.between(layer(x))
        return self.last(self.out(x))


class SharedReLU(nn.Module):
    """One ReLU module, registered last and used twice; the loss is registered too."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.drop, self.relu, self.sigmoid = nn.Dropout(), nn.ReLU(), nn.Sigmoid()
        self.criterion = nn.BCELoss()

    def forward(self, x):
        x = self.drop(self.relu(self.fc1(x)))
        return self.sigmoid(self.fc3(self.relu(self.fc2(x)))).squeeze(-1)


class Wrapper(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)


@pytest.mark.parametrize("wrap", [lambda m: m, Wrapper], ids=["sequential", "wrapped"])
def test_logits(data, wrap):
    outputs = len(set(data.y))
    module = train(wrap(nn.Sequential(*layers(outputs))), data)
    network = Network.from_torch(module)
    logits = run(module, data.fresh_Z)
    np.testing.assert_allclose(network.logits(data.fresh_Z), logits, atol=1e-12)
    assert (network.predict(data.fresh_Z) == logits.argmax(axis=1)).all()
    assert network.precision == "float32"
    assert network.widths == (8, 6)


@pytest.mark.parametrize("wrap", [lambda m: m, Wrapper], ids=["sequential", "wrapped"])
def test_sigmoid_is_left_out(binary, wrap):
    module = train(wrap(nn.Sequential(*layers(1, nn.Sigmoid()))), binary)
    network = Network.from_torch(module)
    p = run(module, binary.fresh_Z)[:, 0]
    np.testing.assert_allclose(network.predict_proba(binary.fresh_Z)[:, 1], p, atol=1e-12)
    assert (network.predict(binary.fresh_Z) == (p >= 0.5)).all()


@pytest.mark.parametrize("last", [nn.Softmax(dim=1), nn.LogSoftmax(dim=-1)])
def test_softmax_is_left_out(multi, last):
    module = train(nn.Sequential(*layers(3, last)), multi)
    out = run(module, multi.fresh_Z)
    p = np.exp(out) if isinstance(last, nn.LogSoftmax) else out
    network = Network.from_torch(module)
    np.testing.assert_allclose(network.predict_proba(multi.fresh_Z), p, atol=1e-12)


def test_skipped_layers_and_nesting(binary):
    a, r1, b, r2, c = layers(1)
    inner = nn.Sequential(nn.Identity(), r1, nn.Sequential(nn.Dropout(0.5), b, r2))
    module = train(nn.Sequential(nn.Flatten(), a, inner, nn.AlphaDropout(), c), binary)
    network = Network.from_torch(module)
    assert module.training, "the training flag is kept"
    np.testing.assert_allclose(
        network.logits(binary.fresh_Z), run(module, binary.fresh_Z), atol=1e-12
    )


def test_no_bias():
    module = nn.Sequential(nn.Linear(3, 2, bias=False), nn.ReLU(), nn.Linear(2, 1))
    network = Network.from_torch(module)
    assert network.layers[0].b is None
    assert network.layers[1].b is not None


def test_single_linear_layer():
    assert Network.from_torch(nn.Linear(3, 2)).outputs == 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_other_dtypes(dtype):
    module = nn.Sequential(*layers(2)).to(dtype)
    network = Network.from_torch(module)
    assert f"torch.{network.precision}" == str(dtype)
    assert next(module.parameters()).dtype == dtype, "the module is not changed"
    X = np.random.default_rng(0).standard_normal((50, 5))
    np.testing.assert_allclose(network.logits(X), run(module, X), atol=1e-12)


@pytest.mark.parametrize(
    ("outputs", "last"),
    [
        (1, lambda z: z),
        (1, torch.sigmoid),
        (1, lambda z: z.squeeze(1)),
        (3, lambda z: z),
        (3, lambda z: F.softmax(z, dim=1)),
        (3, lambda z: F.log_softmax(z, dim=-1)),
    ],
)
def test_functional_activations(outputs, last):
    module = Functional(outputs, last)
    network = Network.from_torch(module)
    X = np.random.default_rng(0).standard_normal((50, 5))
    module.last = lambda z: z
    np.testing.assert_allclose(network.logits(X), run(module, X), atol=1e-12)


def test_one_relu_used_twice(binary):
    module = SharedReLU()
    network = Network.from_torch(module)
    np.testing.assert_allclose(
        network.predict_proba(binary.fresh_Z)[:, 1], run(module, binary.fresh_Z), atol=1e-12
    )
    assert module.training


def test_module_that_only_runs_in_float32():
    class Strict(Wrapper):
        def forward(self, x):
            assert x.dtype == torch.float32
            return self.net(x)

    module = Strict(nn.Sequential(*layers(1))).train()
    assert Network.from_torch(module).outputs == 1
    assert all(m.training for m in module.modules())


def test_precision_is_that_of_all_parameters():
    """One float32 layer is enough for the module to compute in float32."""

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(5, 4).double(), nn.Linear(4, 1)

        def forward(self, x):
            return self.last(self.first(x.double()).relu().to(self.last.weight.dtype))

    assert Network.from_torch(Mixed().double()).precision == "float64"
    assert Network.from_torch(Mixed()).precision == "float32"


class OnlyFloat32(Wrapper):
    def forward(self, x):
        assert x.dtype == torch.float32
        return self.net(x) * self.factor


def test_small_differences_show_in_float32():
    """A module that runs in float32 alone is compared to the rounding of float32, no wider."""
    module = OnlyFloat32(nn.Sequential(*layers(1)))
    module.factor = 1.0
    assert Network.from_torch(module).outputs == 1
    module.factor = 1.001
    with pytest.raises(ModelNotSupported, match="forward of OnlyFloat32"):
        Network.from_torch(module)


@pytest.mark.parametrize("kinds", [("half", "half"), ("bfloat16", "bfloat16"), ("half", "float")])
@pytest.mark.parametrize("normed", [False, True])
def test_half_precision_is_rejected_and_the_advice_works(kinds, normed):
    parts = [nn.Linear(3, 4), nn.BatchNorm1d(4) if normed else nn.Identity()]
    first, last = nn.Sequential(*parts), nn.Linear(4, 1)
    for part, kind in zip((first, last), kinds, strict=True):
        getattr(part, kind)()
    module = nn.Sequential(first, nn.ReLU(), last).eval()
    for read in (Network.from_torch, Model.of):
        with pytest.raises(ModelNotSupported, match=r"float16.*module\.float\(\)"):
            read(module)
    weights = [p.detach().double().numpy() for p in module.parameters()]
    X = np.random.default_rng(0).normal(size=(200, 3))
    for net in (Network.from_torch(module.float()), Model.of(module.float()).network):
        assert net.precision == "float32"
        np.testing.assert_array_equal(net.layers[-1].W, weights[-2])
        np.testing.assert_allclose(net.logits(X), run(module, X), atol=1e-5)


def test_complex_weights_are_refused():
    with pytest.raises(
        ModelNotSupported, match=r"the module .Linear. has weights of type .*complex"
    ):
        Network.from_torch(nn.Linear(3, 2, dtype=torch.complex64))


def test_weight_norm():
    module = nn.Sequential(*layers(1))
    torch.nn.utils.parametrizations.weight_norm(module[0])
    with pytest.raises(ModelNotSupported, match=r"layer '0'.*remove_parametrizations"):
        Network.from_torch(module)
    torch.nn.utils.parametrize.remove_parametrizations(module[0], "weight")
    X = np.ones((1, 5))
    np.testing.assert_allclose(Network.from_torch(module).logits(X), run(module, X), atol=1e-12)


def test_random_state_is_not_touched():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    module = Functional(1, between=lambda z: F.relu(F.dropout(z, training=False)))
    torch.set_rng_state(state)
    Network.from_torch(module)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("layer", "hint"),
    [
        (nn.BatchNorm1d(8), r"training mode.*call module.eval\(\)"),
        (nn.BatchNorm1d(8, track_running_stats=False), "no running statistics.*track_running"),
        (nn.LayerNorm(8), "only Linear and ReLU.*with BatchNorm1d in its place"),
        (nn.GroupNorm(2, 8), "only Linear and ReLU.*with BatchNorm1d in its place"),
        (nn.InstanceNorm1d(8), "only Linear and ReLU.*with BatchNorm1d in its place"),
        (nn.LSTM(8, 8), "only Linear and ReLU.*Train the model with those"),
        (nn.MultiheadAttention(8, 2), "only Linear and ReLU.*Train the model with those"),
        (nn.Tanh(), "only Linear and ReLU.*with ReLU in its place"),
        (nn.GELU(), "only Linear and ReLU.*with ReLU in its place"),
        (nn.LeakyReLU(), "only Linear and ReLU.*with ReLU in its place"),
        (nn.ReLU6(), "only Linear and ReLU"),
        (nn.PReLU(), "only Linear and ReLU"),
        (nn.Conv1d(1, 1, 1), "only Linear and ReLU"),
        (nn.Embedding(2, 2), "stands behind the first Linear layer"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_layers_are_refused_by_name(layer, hint):
    first, *rest = layers(1)
    module = nn.Sequential(first, nn.Sequential(layer), *rest)
    name = rf"layer '1\.0' \({type(layer).__name__}\).*{hint}"
    with pytest.raises(ModelNotSupported, match=name):
        Network.from_torch(module)


def test_two_linear_layers_in_a_row_are_refused():
    module = nn.Sequential(nn.Linear(3, 2), nn.Dropout(), nn.Linear(2, 2), nn.ReLU())
    with pytest.raises(ModelNotSupported, match=r"'0' \(Linear\) and layer '2' \(Linear\).*merge"):
        Network.from_torch(module)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU()), "ends in a ReLU behind layer '0'"),
        (nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), "layer '0'.*in front of the first"),
        (nn.Sequential(nn.Linear(3, 2), nn.Sigmoid(), nn.Linear(2, 1)), "'1' .Sigmoid. is foll"),
        (nn.Sequential(nn.Linear(3, 2), nn.Sigmoid()), "'1' .Sigmoid.*2 outputs"),
        (nn.Sequential(nn.Linear(3, 1), nn.Softmax(1)), "'1' .Softmax.*always 1"),
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Softmax(1)), "'2' .Softmax. does not follow"),
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(4, 1)), "'2' .Linear. takes 4 inputs"),
        (nn.Sequential(nn.Linear(3, 2), nn.Softmax(0)), "forward of Sequential"),
        (nn.Sequential(nn.Flatten()), "no Linear layer"),
        (nn.Sequential(nn.LazyLinear(2)), "'0' .LazyLinear. has no weights"),
        (nn.Linear(3, 2, device="meta"), "has no weights"),
        ({"weight": 1}, "takes a torch.nn.Module, not dict"),
    ],
)
def test_other_chains_are_refused(module, message):
    with pytest.raises(ModelNotSupported, match=message):
        Network.from_torch(module)


class Skip(Functional):
    def forward(self, x):
        h = F.relu(self.hidden[0](x))
        return self.out(F.relu(self.hidden[1](h)) + x)


class Scaled(Functional):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return super().forward(x) * self.temperature


class Pair(Functional):
    def forward(self, x):
        return super().forward(x), x


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Skip(), "forward of Skip does not equal the chain"),
        (Functional(between=torch.tanh), "forward of Functional"),
        (Functional(between=lambda z: z), "forward of Functional"),
        (Functional(between=lambda z: F.leaky_relu(z, 1e-3)), "forward of Functional"),
        (Functional(between=F.relu6), "forward of Functional"),
        (Functional(between=lambda z: F.dropout(F.relu(z))), "forward of Functional"),
        (Functional(3, last=torch.sigmoid), "Functional applies a sigmoid to 3 outputs"),
        (Functional(last=lambda z: 1 - torch.sigmoid(z)), "forward of Functional"),
        (Scaled(), "parameter 'temperature' belongs to no Linear layer"),
        (Pair(), "Pair cannot be run.*return one tensor"),
    ],
)
def test_a_forward_that_does_something_else_is_refused(module, message):
    with pytest.raises(ModelNotSupported, match=message):
        Network.from_torch(module)


def test_hooks_are_seen():
    module = nn.Sequential(*layers(1))
    module[0].register_forward_hook(lambda m, args, out: out * 2)
    with pytest.raises(ModelNotSupported, match="forward of Sequential"):
        Network.from_torch(module)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused():
    script = torch.jit.trace(nn.Sequential(*layers(1)).eval(), torch.zeros(2, 5))
    with pytest.raises(ModelNotSupported, match="TorchScript"):
        Network.from_torch(script)


def test_missing_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"proplace\[torch\]"):
        Network.from_torch(object())
