"""Networks that are put back into models of their frameworks."""

from __future__ import annotations

import copy
import os

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

os.environ.setdefault("KERAS_BACKEND", "torch")  # before anything imports keras

import proplace as pp
from proplace.core.errors import DeltaError, InputError, ModelNotSupported

torch = pytest.importorskip("torch")
keras = pytest.importorskip("keras")
nn = torch.nn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3)) * [1.0, 5.0, 0.2]
Y = (X[:, 0] > 0.1).astype(int)


def sklearn_mlp(dtype=float):
    return MLPClassifier((4, 3), max_iter=3, tol=10.0, random_state=0).fit(X.astype(dtype), Y)


def torch_module(dtype=torch.float32, bias=True):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4, bias=bias), nn.ReLU(), nn.Linear(4, 2)).to(dtype)


def keras_model():
    keras.utils.set_random_seed(0)
    steps = [
        keras.layers.Normalization(mean=[1.0, 0.0, 0.5], variance=[1.0, 2.0, 0.25]),
        keras.layers.Dense(4, activation="relu"),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
    model = keras.Sequential([keras.Input((3,)), *steps])
    model.compile("adam", "binary_crossentropy")
    return model


SOURCES = {
    "mlp": (sklearn_mlp, pp.Network.from_sklearn, True),
    "float32 mlp": (lambda: sklearn_mlp(np.float32), pp.Network.from_sklearn, False),
    "pipeline": (
        lambda: make_pipeline(StandardScaler(), sklearn_mlp()).fit(X, Y),
        pp.Network.from_sklearn,
        True,
    ),
    "logistic": (lambda: LogisticRegression().fit(X, Y), pp.Network.from_sklearn, True),
    "torch": (torch_module, pp.Network.from_torch, False),
    "torch, no bias": (lambda: torch_module(bias=False), pp.Network.from_torch, False),
    "float64 torch": (lambda: torch_module(torch.float64), pp.Network.from_torch, True),
    "bfloat16 torch": (lambda: torch_module(torch.bfloat16), pp.Network.from_torch, False),
    "keras": (keras_model, pp.Network.from_keras, False),
}


def other(net, seed=1):
    rng = np.random.default_rng(seed)
    return net.with_layers(
        (v.W + rng.normal(size=v.W.shape), None if v.b is None else v.b + rng.normal(size=len(v.b)))
        for v in net.layers
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", SOURCES)
def test_a_copy_computes_what_the_network_says(name, whole):
    make, read, exact = SOURCES[name]
    source = make()
    reading = (lambda model: pp.Model.of(model).network) if whole else read
    before = reading(source)
    wanted = other(before)
    placed = pp.place(wanted, source)
    assert placed.network == reading(placed.model)
    assert type(placed.model) is type(source)
    assert reading(source) == before
    assert (placed.rounding == 0.0) == exact == (placed.network == wanted)
    differences = [
        np.abs(a.W - b.W).max() / np.abs(a.W).max()
        for a, b in zip(wanted.layers, placed.network.layers, strict=True)
    ]
    assert max(differences) <= (2.0**-8 if "bfloat16" in name else 2.0**-24)
    assert placed.rounding == max(
        max(np.abs(a.W - b.W).max(), np.abs(a.bias - b.bias).max())
        for a, b in zip(wanted.layers, placed.network.layers, strict=True)
    )


def test_a_float32_copy_stays_in_a_box_that_holds_the_network():
    source = torch_module()
    centre = pp.Network.from_torch(source)
    shifts = pp.Shifts.of(centre, 0.03)
    corner = centre.with_layers((box.high.W, box.high.b) for box in shifts.layers)
    corner = shifts.nearest(corner)
    assert not shifts.contains(pp.place(corner, source).network)
    placed = pp.place(corner, source, within=shifts)
    assert shifts.contains(pp.Network.from_torch(placed.model))
    assert 0.0 < placed.rounding < 1e-6


def test_a_keras_copy_can_be_trained_and_is_another_model():
    source = keras_model()
    placed = pp.place(other(pp.Network.from_keras(source)), source)
    before = pp.Network.from_keras(source)
    placed.model.fit(X, Y, verbose=0)
    assert pp.Network.from_keras(source) == before
    assert pp.Network.from_keras(placed.model) != placed.network


class Chosen(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5))

    def forward(self, x):
        return self.body(x)[:, [3, 0]]


def test_outputs_that_are_not_used_keep_their_values():
    source = Chosen().double()
    wanted = other(pp.Network.from_torch(source))
    placed = pp.place(wanted, source)
    assert placed.network == wanted
    assert torch.equal(placed.model.body[2].weight[[1, 2, 4]], source.body[2].weight[[1, 2, 4]])


def test_shared_parameters_need_equal_values():
    source = torch_module(torch.float64)
    source = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    source[2].weight = source[0].weight
    source = source.double()
    net = pp.Network.from_torch(source)
    with pytest.raises(ModelNotSupported, match=r"0.weight is shared by several layers"):
        pp.place(other(net), source)
    halved = net.with_layers((v.W / 2, v.b / 4) for v in net.layers)
    assert pp.place(halved, source).network == halved


def test_batch_norm_is_refused_and_the_advice_works():
    torch.manual_seed(0)
    source = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1)).double()
    source[1].running_mean.normal_()
    source.eval()
    net = pp.Network.from_torch(source)
    with pytest.raises(ModelNotSupported, match="batch norm"):
        pp.place(other(net), source)
    fused = torch.nn.utils.fusion.fuse_linear_bn_eval(source[0], source[1])
    plain = nn.Sequential(fused, *source[2:])
    wanted = other(net)
    assert pp.place(wanted, plain).rounding == 0.0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_network_behind_another_scaler_is_refused():
    mine, theirs = (make_pipeline(StandardScaler(), sklearn_mlp()).fit(k * X, Y) for k in (1, 2))
    with pytest.raises(InputError, match="scaler"):
        pp.place(pp.Network.from_sklearn(theirs), mine)


def test_what_does_not_fit_is_said():
    source = torch_module()
    with pytest.raises(InputError, match="differ in widths"):
        pp.place(pp.Network([(np.eye(3), None), (np.eye(2, 3), None)]), source)
    with pytest.raises(InputError, match="scaler"):
        pp.place(
            pp.Network([(v.W, v.b) for v in pp.Network.from_torch(source).layers], scale=[1, 2, 3]),
            source,
        )
    net = pp.Network.from_torch(source)
    with pytest.raises(ModelNotSupported, match=r"network\.save"):
        pp.place(net, net)
    elsewhere = pp.Shifts.of(pp.Network.from_torch(copy.deepcopy(source).double()), 0.1).behind(net)
    with pytest.raises(DeltaError):
        pp.place(net, source, within=pp.Shifts.of(pp.Network([(np.eye(3), None)]), 0.1))
    assert elsewhere.contains(pp.place(net, source, within=elsewhere).network)
