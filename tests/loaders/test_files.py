from __future__ import annotations

import os
import pickle
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import proplace as pp
from proplace.core.errors import ModelFileError
from proplace.core.network import Network
from proplace.loaders.model import Model

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
        Model.of(tmp_path / f"none{suffix}")
    folder = tmp_path / f"folder{suffix}"
    folder.mkdir()
    with pytest.raises(ModelFileError, match="this is a folder"):
        Model.of(folder)
    path = tmp_path / f"model{suffix}"
    for content in (b"", b"PK\x03\x04", b"garbage" * 200, bytes(100)):
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match=f"model{suffix}"):
            Model.of(path)


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        (".PKL", "pickles are never read"),
        (".hdf5", "files of Keras are not read"),
        (".bin", r"suffix '\.bin'.*\.npz, \.onnx"),
        ("", "suffix ''"),
    ],
)
def test_suffixes_that_are_not_read(tmp_path, suffix, message):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(b"anything")
    with pytest.raises(ModelFileError, match=message):
        Model.of(path)


@pytest.mark.parametrize("suffix", [".pkl", ".joblib", ".npz", ".pt", ".pth", ".onnx"])
def test_pickle_is_never_executed(tmp_path, suffix):
    if suffix == ".onnx":
        pytest.importorskip("onnx")
    mark = tmp_path / "mark"
    path = tmp_path / f"model{suffix}"
    path.write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(ModelFileError):
        Model.of(path)
    assert not mark.exists()


def test_pickle_inside_npz_is_never_executed(tmp_path):
    mark = tmp_path / "mark"
    NETWORK.save(tmp_path / "model.npz")
    arrays = dict(np.load(tmp_path / "model.npz"))
    arrays["W0"] = np.array([Bomb(mark)], dtype=object)
    np.savez(tmp_path / "model.npz", **arrays)
    with pytest.raises(ModelFileError, match=r"model\.npz"):
        Model.of(tmp_path / "model.npz")
    assert not mark.exists()


def test_truncated_npz(tmp_path):
    path = tmp_path / "model.npz"
    NETWORK.save(path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ModelFileError, match=r"model\.npz"):
        Model.of(path)


def test_npz_that_is_no_network(tmp_path):
    path = tmp_path / "model.npz"
    np.savez(path, a=np.zeros(3))
    with pytest.raises(ModelFileError, match="not a network file of this package"):
        Model.of(path)
    NETWORK.save(path)
    arrays = dict(np.load(path))
    arrays["W1"] = np.full((4, 4), np.nan)
    np.savez(path, **arrays)
    with pytest.raises(ModelFileError, match=r"model\.npz: W of layer 2 has NaN"):
        Model.of(path)


# -- files that are converted once -------------------------------------------------------------


def converted(path, **names):
    """Run the lines of the message about a file in its folder, and load what they save."""
    with pytest.raises(ModelFileError, match="Convert it once") as caught:
        Model.of(path)
    _, *lines = str(caught.value).splitlines()
    exec("\n".join(map(str.strip, lines)), names)
    return Model.of(path.with_suffix(".npz"))


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
def test_weights_are_rejected_with_lines_that_work(tmp_path, monkeypatch, suffix):
    """The weights of a leaky or residual model would be read as another network."""
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)

    def build():
        return torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1))

    trained, path = build(), tmp_path / f"model{suffix}"
    torch.save(trained.state_dict(), path)
    tensors = SimpleNamespace(load_file=lambda _: trained.state_dict())
    monkeypatch.setitem(sys.modules, "safetensors", SimpleNamespace(torch=tensors))
    monkeypatch.setitem(sys.modules, "safetensors.torch", tensors)
    rows = torch.randn(200, 3)
    with torch.no_grad():
        expected = (trained(rows)[:, 0] >= 0).long().numpy()
    assert 0 < expected.mean() < 1
    found = converted(path, module=build()).predict(rows.numpy()).astype(int)
    np.testing.assert_array_equal(found, expected)
    for read in (Model.of, lambda p: pp.certify(p, np.zeros((1, 3)), 0.01)):
        with pytest.raises(ModelFileError, match="weights without an architecture"):
            read(path)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_keras_files_are_rejected_with_lines_that_work(tmp_path, monkeypatch, binary, suffix):
    keras = pytest.importorskip("keras")
    if suffix == ".h5":
        pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4, "relu"), keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential([keras.Input((5,)), *layers])
    model.save(tmp_path / f"model{suffix}")

    given = np.asarray(keras.ops.convert_to_numpy(model(binary.Z)))[:, 0] >= 0.5
    found = converted(tmp_path / f"model{suffix}").predict(binary.Z)
    assert (found == given.astype(int)).all()


@pytest.mark.parametrize("suffix", [".pkl", ".pickle", ".joblib"])
def test_pickles_are_rejected_with_lines_that_work(tmp_path, monkeypatch, binary, suffix):
    import joblib
    from sklearn.linear_model import LogisticRegression

    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"model{suffix}"
    model = LogisticRegression().fit(binary.Z, binary.y)
    if suffix == ".joblib":
        joblib.dump(model, path)
    else:
        path.write_bytes(pickle.dumps(model))
    np.testing.assert_array_equal(converted(path).predict(binary.Z), model.predict(binary.Z))


def test_network_load_names_next_step_for_other_files(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"anything")
    with pytest.raises(ModelFileError, match=r"Model.of\('model.onnx'\)"):
        Network.load(tmp_path / "model.onnx")
    (tmp_path / "model.pkl").write_bytes(b"anything")
    with pytest.raises(ModelFileError, match="pickles are never read"):
        Network.load(tmp_path / "model.pkl")
