"""Weights without an architecture: what lies between the layers must be stated."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest

import proplace as pp
from proplace.core.errors import ModelNotSupported, OptionError

torch = pytest.importorskip("torch")
nn = torch.nn


class Residual(nn.Module):
    """Registers its layers as a chain does, and adds a skip connection."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        h = torch.relu(self.a(x))
        return self.c(h + torch.relu(self.b(h)))


def chain(activation=nn.ReLU):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), activation(), nn.Linear(6, 1))


def safetensors_file(module, path):
    library = pytest.importorskip("safetensors.torch")
    library.save_file(module.state_dict(), path)


@pytest.fixture
def exported(tmp_path):
    """The first step as the message says it, in an example of some rows."""
    pytest.importorskip("onnxscript")

    def export(module, rows):
        logging.disable(logging.WARNING)  # of what torch traces
        try:
            torch.onnx.export(module.eval(), rows, tmp_path / "model.onnx", verbose=False)
        finally:
            logging.disable(logging.NOTSET)
        return pp.Model.of(tmp_path / "model.onnx")

    return export


def torch_file(module, path):
    torch.save(module.state_dict(), path)


WRITERS = {"m.pt": torch_file, "m.pth": torch_file, "m.safetensors": safetensors_file}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("module", [chain(), chain(nn.LeakyReLU), chain(nn.Tanh), Residual()])
def test_weights_alone_are_refused_everywhere(name, module, tmp_path):
    """Those of a leaky or residual model were read as another network, without a word."""
    path = tmp_path / name
    WRITERS[name](module, path)
    X = np.zeros((4, 3))
    for read in (
        pp.Network.load,
        pp.Model.of,
        lambda p: pp.Model.of(str(p)),
        lambda p: pp.Proplace(p, 0.01).fit(X),
        lambda p: pp.certify(p, X, 0.01),
        lambda p: pp.worst_case(p, X[0], 0.01),
    ):
        with pytest.raises(ModelNotSupported) as caught:
            read(path)
        words = str(caught.value)
        assert re.search(rf"{name}: .*do not say what lies between the layers", words)
        assert "skip connection would be read as another network" in words
        assert "torch.onnx.export(model, rows, 'model.onnx')" in words
        assert 'Model.of(path, activation="relu")' in words
        assert "--assume relu-chain" in words


@pytest.mark.parametrize("name", WRITERS)
def test_both_next_steps_work(name, tmp_path, exported):
    """Torch itself is asked what the model says."""
    module = chain()
    WRITERS[name](module, tmp_path / name)
    rows = torch.randn(200, 3)
    with torch.no_grad():
        expected = (module(rows)[:, 0] >= 0).long().numpy()
    assert 0 < expected.mean() < 1
    for net in (
        pp.Network.load(tmp_path / name, activation="relu"),
        pp.Model.of(tmp_path / name, activation="relu").network,
    ):
        assert net == pp.Network.from_torch(module)
        np.testing.assert_array_equal(net.predict(rows.numpy()), expected)
    for example in (rows, rows[:1], rows[:7]):  # the graph then takes that many at a time
        model = exported(module, example)
        np.testing.assert_array_equal(model.predict(rows.numpy()).astype(int), expected)
        np.testing.assert_array_equal(model.original(rows.numpy()).astype(int), expected)


def test_the_first_step_tells_what_the_model_really_is(exported):
    """What weights hide, the exported graph says: another activation is refused by its name."""
    with pytest.raises(ModelNotSupported, match="LeakyRelu"):
        exported(chain(nn.LeakyReLU), torch.zeros(2, 3))


@pytest.mark.parametrize("stated", ["leaky_relu", "ReLU", "tanh", ""])
def test_other_activations_cannot_be_stated(stated, tmp_path):
    torch_file(chain(), tmp_path / "m.pt")
    for read in (pp.Network.load, pp.Model.of):
        with pytest.raises(OptionError, match=f"activation must be 'relu', not '{stated}'"):
            read(tmp_path / "m.pt", activation=stated)


def test_a_source_with_an_architecture_takes_no_statement(tmp_path):
    from sklearn.linear_model import LogisticRegression

    module = chain()
    net = pp.Network.from_torch(module)
    net.save(tmp_path / "m.npz")
    (tmp_path / "m.onnx").touch()
    (tmp_path / "m.keras").touch()
    fitted = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    words = "says itself what lies between its layers; leave activation='relu' .*out"
    for source in (net, pp.Model.of(net), module, fitted):
        with pytest.raises(OptionError, match=f"a {type(source).__name__} {words}"):
            pp.Model.of(source, activation="relu")
    for name in ("m.npz", "m.onnx", "m.keras"):
        for read in (pp.Network.load, pp.Model.of):
            with pytest.raises(OptionError, match=f"{name} {words}"):
                read(tmp_path / name, activation="relu")
