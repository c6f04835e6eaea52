"""Repaired last layers that are put back into models of their frameworks."""

from __future__ import annotations

import os

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

os.environ.setdefault("KERAS_BACKEND", "torch")  # before anything imports keras

import proplace as pp
from proplace.core.errors import InputError, ModelNotSupportedError
from support.errors import raises

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
    "mlp": sklearn_mlp,
    "float32 mlp": lambda: sklearn_mlp(np.float32),
    "pipeline": lambda: make_pipeline(StandardScaler(), sklearn_mlp()).fit(X, Y),
    "logistic": lambda: LogisticRegression().fit(X, Y),
    "logistic, no bias": lambda: LogisticRegression(fit_intercept=False).fit(X, Y),
    "torch": torch_module,
    "torch, no bias": lambda: torch_module(bias=False),
    "float64 torch": lambda: torch_module(torch.float64),
    "keras": keras_model,
}


def read(model):
    return pp.Model.of(model).network


def broken_promises(net):
    """A promise of the class that the network does not give."""
    return X[:1], int(net.predict(X[:1])[0] + 1) % net.classes


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", SOURCES)
def test_model_of_repair_computes_repaired_network(name):
    source = SOURCES[name]()
    before = read(source)
    found = pp.retrain.repair(source, broken_promises(before))
    assert found.repaired_promises
    model = found.model
    assert type(model) is type(source)
    assert read(model) == found.network
    assert read(model) != before
    assert read(source) == before


def test_keras_model_of_repair_is_trained_alone():
    source = keras_model()
    before = read(source)
    model = pp.retrain.repair(source, broken_promises(before)).model
    repaired = read(model)
    model.fit(X, Y, verbose=0)
    assert read(source) == before
    assert read(model) != repaired


def test_networks_and_files_get_plain_network(tmp_path):
    net = read(sklearn_mlp())
    net.save(tmp_path / "net.npz")
    for source in (net, pp.Model.of(net), tmp_path / "net.npz", str(tmp_path / "net.npz")):
        found = pp.retrain.repair(source, broken_promises(net))
        assert found.model is found.network


class Chosen(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5))

    def forward(self, x):
        return self.body(x)[:, [3, 0]]


def test_outputs_that_are_not_used_keep_their_values():
    source = Chosen().double()
    found = pp.retrain.repair(source, broken_promises(read(source)))
    model = found.model
    assert read(model) == found.network
    for part in ("weight", "bias"):
        mine, theirs = (getattr(m.body[2], part)[[1, 2, 4]] for m in (model, source))
        assert torch.equal(mine, theirs)


def test_shared_last_layer_is_rejected_if_it_changes():
    torch.manual_seed(0)
    source = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3, bias=False)).double()
    source[2].weight = source[0].weight
    torch.nn.init.constant_(source[0].bias, 5.0)  # so that the last layer sees something
    net = read(source)
    point, other = broken_promises(net)
    with raises(ModelNotSupportedError, name="0.weight"):
        _ = pp.retrain.repair(source, (point, other)).model
    kept = pp.retrain.repair(source, (point, int(net.predict(point)[0])))
    assert not kept.repaired_promises
    assert read(kept.model) == net


def test_batch_norm_is_rejected_and_advice_works():
    torch.manual_seed(0)
    source = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1)).double()
    source[1].running_mean.normal_()
    source.eval()
    promises = broken_promises(read(source))
    with pytest.raises(ModelNotSupportedError, match="batch norm"):
        _ = pp.retrain.repair(source, promises).model
    fused = torch.nn.utils.fusion.fuse_linear_bn_eval(source[0], source[1])
    plain = nn.Sequential(fused, *source[2:])
    found = pp.retrain.repair(plain, promises)
    assert read(found.model) == found.network


def test_model_that_rounds_layer_is_rejected():
    """A proof about float64 numbers does not hold for the float32 numbers that are stored."""
    source = torch_module()
    net = read(source)
    exact = pp.Network([(layer.W, layer.b) for layer in net.layers], precision="float64")
    found = pp.retrain.repair(exact, broken_promises(net))
    object.__setattr__(found, "_source", source)
    with raises(InputError, match="rounds"):
        _ = found.model
