from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

import proplace as pp
from proplace.core.errors import ModelFileError
from proplace.core.network import Network
from proplace.loaders.model import Model
from support.models import export_torch

RNG = np.random.default_rng(0)
NETWORK = Network(
    [
        (RNG.standard_normal((4, 3)), RNG.standard_normal(4)),
        (RNG.standard_normal((4, 4)), None),
        (RNG.standard_normal((1, 4)), RNG.standard_normal(1)),
    ]
)


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark,)


# -- any file ----------------------------------------------------------------------------------


def test_npz(tmp_path):
    NETWORK.save(tmp_path / "model.npz")
    assert Network.load(tmp_path / "model.npz") == NETWORK
    (tmp_path / "model.npz").rename(tmp_path / "MODEL.NPZ")
    assert Network.load(str(tmp_path / "MODEL.NPZ")) == NETWORK


@pytest.mark.parametrize("suffix", [".npz", ".onnx"])
def test_missing_folder_and_garbage(tmp_path, suffix):
    if suffix != ".npz":
        pytest.importorskip(suffix[1:])
    with pytest.raises(ModelFileError, match="no such file"):
        Network.load(tmp_path / f"none{suffix}")
    folder = tmp_path / f"folder{suffix}"
    folder.mkdir()
    with pytest.raises(ModelFileError, match="this is a folder"):
        Network.load(folder)
    path = tmp_path / f"model{suffix}"
    for content in (b"", b"PK\x03\x04", b"garbage" * 200, bytes(100)):
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match=f"model{suffix}"):
            Network.load(path)


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        (".pkl", "pickles are never read.*to_onnx"),
        (".pickle", "pickles are never read"),
        (".joblib", "pickles are never read"),
        (".keras", r"load_model.*Model\.of\(model\)\.save\('model\.npz'\)"),
        (".h5", r"load_model.*Model\.of\(model\)\.save\('model\.npz'\)"),
        (".hdf5", r"load_model.*Model\.of\(model\)\.save\('model\.npz'\)"),
        (".bin", r"suffix '\.bin'.*\.npz, \.onnx"),
        ("", "suffix ''"),
    ],
)
def test_suffixes_that_are_not_read(tmp_path, suffix, message):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(b"anything")
    with pytest.raises(ModelFileError, match=message):
        Network.load(path)


@pytest.mark.parametrize("suffix", [".pkl", ".joblib", ".npz", ".pt", ".pth", ".onnx"])
def test_a_pickle_is_never_executed(tmp_path, suffix):
    if suffix == ".onnx":
        pytest.importorskip("onnx")
    mark = tmp_path / "mark"
    path = tmp_path / f"model{suffix}"
    path.write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(ModelFileError):
        Network.load(path)
    assert not mark.exists()


def test_a_pickle_inside_an_npz_is_never_executed(tmp_path):
    mark = tmp_path / "mark"
    NETWORK.save(tmp_path / "model.npz")
    arrays = dict(np.load(tmp_path / "model.npz"))
    arrays["W0"] = np.array([Bomb(mark)], dtype=object)
    np.savez(tmp_path / "model.npz", **arrays)
    with pytest.raises(ModelFileError, match=r"model\.npz"):
        Network.load(tmp_path / "model.npz")
    assert not mark.exists()


def test_truncated_npz(tmp_path):
    path = tmp_path / "model.npz"
    NETWORK.save(path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ModelFileError, match=r"model\.npz"):
        Network.load(path)


def test_npz_that_is_no_network(tmp_path):
    path = tmp_path / "model.npz"
    np.savez(path, a=np.zeros(3))
    with pytest.raises(ModelFileError, match="not a network file of this package"):
        Network.load(path)
    NETWORK.save(path)
    arrays = dict(np.load(path))
    arrays["W1"] = np.full((4, 4), np.nan)
    np.savez(path, **arrays)
    with pytest.raises(ModelFileError, match=r"model\.npz: W of layer 2 holds NaN"):
        Network.load(path)


# -- weights without an architecture -----------------------------------------------------------


def test_weights_without_an_architecture_are_rejected_and_the_advice_works(tmp_path):
    """The weights of a leaky or residual model would be read as another network."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)

    def build():
        return torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1))

    path = tmp_path / "model.pt"
    torch.save(build().state_dict(), path)
    words = r"weights without an architecture.*load_state_dict.*torch\.onnx\.export.*\.save\("
    for suffix in (".pt", ".pth", ".safetensors"):
        path.with_suffix(suffix).write_bytes(path.read_bytes())
        for read in (Network.load, Model.of, lambda p: pp.certify(p, np.zeros((1, 3)), 0.01)):
            with pytest.raises(ModelFileError, match=words):
                read(path.with_suffix(suffix))
    module = build()
    module.load_state_dict(torch.load(path, weights_only=True))
    rows = torch.randn(200, 3)
    with torch.no_grad():
        expected = (module(rows)[:, 0] >= 0).long().numpy()
    assert 0 < expected.mean() < 1
    export_torch(module.eval(), tmp_path / "model.onnx", rows, verbose=False)
    Network.from_torch(module).save(tmp_path / "model.npz")
    for source in (module, tmp_path / "model.onnx", tmp_path / "model.npz"):
        found = Model.of(source).predict(rows.numpy()).astype(int)
        np.testing.assert_array_equal(found, expected)


def test_keras_files_are_rejected_and_the_advice_works(tmp_path, binary):
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4, "relu"), keras.layers.Dense(1, "sigmoid")]
    keras.Sequential([keras.Input((5,)), *layers]).save(tmp_path / "model.keras")
    words = r"keras\.models\.load_model\('model\.keras'\), then Model\.of\(model\)\.save\('model\.npz'\)"
    with pytest.raises(ModelFileError, match=words):
        Model.of(tmp_path / "model.keras")

    model = keras.models.load_model(tmp_path / "model.keras")
    Model.of(model).save(tmp_path / "model.npz")

    given = np.asarray(keras.ops.convert_to_numpy(model(binary.Z)))[:, 0] >= 0.5
    assert (Model.of(tmp_path / "model.npz").predict(binary.Z) == given.astype(int)).all()


def test_pickles_are_rejected_and_the_advice_works(tmp_path, binary):
    skl2onnx = pytest.importorskip("skl2onnx")
    from sklearn.linear_model import LogisticRegression

    X = binary.Z.astype(np.float32)
    model = LogisticRegression().fit(X, binary.y)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))
    words = r"Model\.of\(model\).*skl2onnx\.to_onnx\(model, table\[:1\]\)\.SerializeToString"
    with pytest.raises(ModelFileError, match=words):
        Model.of(tmp_path / "model.pkl")
    (tmp_path / "model.onnx").write_bytes(skl2onnx.to_onnx(model, X[:1]).SerializeToString())
    for source in (model, tmp_path / "model.onnx"):
        np.testing.assert_array_equal(Model.of(source).predict(X), model.predict(X))
