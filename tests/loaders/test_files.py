from __future__ import annotations

import io
import json
import os
import pickle
import struct
import sys
import zipfile
from collections import OrderedDict

import numpy as np
import pytest

from proplace.core.errors import ModelFileError, ModelNotSupported
from proplace.core.network import Network

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


def weights(names=("0", "2", "4"), dtype=np.float32):
    tensors = {}
    for name, layer in zip(names, NETWORK.layers, strict=True):
        tensors[f"{name}.weight"] = layer.W.astype(dtype)
        if layer.b is not None:
            tensors[f"{name}.bias"] = layer.b.astype(dtype)
    return tensors


def expected(dtype=np.float32):
    pairs = [
        (layer.W.astype(dtype), None if layer.b is None else layer.b.astype(dtype))
        for layer in NETWORK.layers
    ]
    return Network(pairs)


def load(path):
    """Read weights that are stated to be a chain of Linear and ReLU."""
    return Network.load(path, activation="relu")


# -- any file ----------------------------------------------------------------------------------


def test_npz(tmp_path):
    NETWORK.save(tmp_path / "model.npz")
    assert Network.load(tmp_path / "model.npz") == NETWORK
    (tmp_path / "model.npz").rename(tmp_path / "MODEL.NPZ")
    assert Network.load(str(tmp_path / "MODEL.NPZ")) == NETWORK


@pytest.mark.parametrize("suffix", [".npz", ".onnx", ".keras", ".pt", ".pth", ".safetensors"])
def test_missing_folder_and_garbage(tmp_path, suffix):
    if suffix in (".pt", ".pth"):
        pytest.importorskip("torch")
    elif suffix in (".onnx", ".keras"):
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
        (".h5", r"model\.save\('model\.keras'\)"),
        (".hdf5", r"model\.save\('model\.keras'\)"),
        (".bin", r"suffix '\.bin'.*\.npz, \.onnx, \.keras"),
        ("", "suffix ''"),
    ],
)
def test_suffixes_that_are_not_read(tmp_path, suffix, message):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(b"anything")
    with pytest.raises(ModelFileError, match=message):
        Network.load(path)


@pytest.mark.parametrize("suffix", [".pkl", ".joblib", ".npz", ".pt", ".safetensors", ".onnx"])
def test_a_pickle_is_never_executed(tmp_path, suffix):
    if suffix in (".pt", ".onnx"):
        pytest.importorskip("torch" if suffix == ".pt" else "onnx")
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


# -- torch weights -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def save(torch, tmp_path):
    def write(tensors, name="model.pt"):
        path = tmp_path / name
        content = OrderedDict(
            (key, torch.as_tensor(value) if isinstance(value, np.ndarray) else value)
            for key, value in tensors.items()
        )
        torch.save(content, path)
        return path

    return write


@pytest.mark.parametrize("name", ["model.pt", "model.pth"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_state_dict(save, name, dtype):
    network = load(save(weights(dtype=dtype), name))
    assert network == expected(dtype)
    assert network.precision == np.dtype(dtype).name


def test_state_dict_of_a_trained_module(torch, tmp_path, binary):
    nn = torch.nn
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 1), nn.Sigmoid())
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    X, y = torch.as_tensor(binary.Z).float(), torch.as_tensor(binary.y).float()
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy(module(X)[:, 0], y).backward()
        optimizer.step()
    torch.save(module.state_dict(), tmp_path / "model.pt")
    network = load(tmp_path / "model.pt")
    assert network == Network.from_torch(module)
    with torch.no_grad():
        p = module.double().eval()(torch.as_tensor(binary.fresh_Z))[:, 0].numpy()
    np.testing.assert_allclose(network.predict_proba(binary.fresh_Z)[:, 1], p, atol=1e-12)


def test_order_is_that_of_the_state_dict(save):
    assert load(save(weights(("z", "a", "m.x")))) == expected()


def test_bare_linear_layer(torch, tmp_path):
    layer = torch.nn.Linear(3, 2)
    torch.save(layer.state_dict(), tmp_path / "model.pt")
    assert load(tmp_path / "model.pt") == Network.from_torch(layer)


def test_bfloat16(torch, tmp_path):
    layer = torch.nn.Linear(3, 2).bfloat16()
    torch.save(layer.state_dict(), tmp_path / "model.pt")
    network = load(tmp_path / "model.pt")
    assert network.precision == "bfloat16"
    assert network == Network.from_torch(layer.float())


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"1.running_mean": np.zeros(4)}, "'1.running_mean' belongs to a BatchNorm layer, and"),
        ({"1.num_batches_tracked": np.array(3)}, "'1.num_batches_tracked' belongs to a BatchNorm"),
        ({"temperature": np.zeros(1)}, "'temperature' is neither a weight nor a bias"),
        ({"1.weight": np.zeros(4)}, "'1.weight' has 1 dimensions"),
        ({"1.weight": np.zeros((4, 4, 3))}, "'1.weight' has 3 dimensions"),
        ({"1.bias": np.zeros(4)}, "'1.bias' has no weight beside it"),
        ({"2.bias": np.zeros(5)}, r"'2.bias' has shape \(5,\)"),
        ({"5.weight": np.zeros((2, 7))}, r"'5.weight' takes 7 inputs but .*'4.weight' gives 1"),
        ({"5.weight": np.zeros((2, 1), dtype=np.int64)}, "'5.weight' has numbers of type int64"),
    ],
)
def test_other_tensors_are_refused_by_name(save, extra, message):
    with pytest.raises(ModelNotSupported, match=message):
        load(save(weights() | extra))


def test_batch_norm_is_named(torch, tmp_path):
    nn = torch.nn
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    torch.save(module.state_dict(), tmp_path / "model.pt")
    with pytest.raises(ModelNotSupported, match=r"'1\."):
        load(tmp_path / "model.pt")


def test_sparse_tensors_are_refused(torch, tmp_path):
    torch.save({"weight": torch.eye(3).to_sparse()}, tmp_path / "model.pt")
    with pytest.raises(ModelNotSupported, match="'weight' is sparse"):
        load(tmp_path / "model.pt")


def test_checkpoints_are_refused_by_name(torch, save):
    with pytest.raises(ModelFileError, match=r"entry 'epoch' is a int.*checkpoint"):
        load(save({"epoch": 3} | weights()))
    with pytest.raises(ModelFileError, match=r"entry 'state_dict' is a dict.*checkpoint"):
        load(save({"state_dict": {"0.weight": torch.zeros(1, 3)}}))


def test_no_weights(torch, tmp_path):
    torch.save({}, tmp_path / "model.pt")
    with pytest.raises(ModelFileError, match="holds no weights"):
        load(tmp_path / "model.pt")
    torch.save(torch.zeros(3), tmp_path / "model.pt")
    with pytest.raises(ModelFileError, match="holds a Tensor, not a state dict"):
        load(tmp_path / "model.pt")


def test_whole_modules_are_refused(torch, tmp_path):
    path = tmp_path / "model.pt"
    torch.save(torch.nn.Sequential(torch.nn.Linear(3, 1)), path)
    with pytest.raises(ModelFileError, match=r"torch\.save\(model\.state_dict\(\).*ONNX"):
        load(path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused(torch, tmp_path):
    path = tmp_path / "model.pt"
    torch.jit.save(torch.jit.trace(torch.nn.Linear(3, 1), torch.zeros(2, 3)), path)
    with pytest.raises(ModelFileError, match="TorchScript program"):
        load(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_saved_by_torch_is_never_executed(torch, tmp_path, zipped):
    mark = tmp_path / "mark"
    path = tmp_path / "model.pt"
    content = {"0.weight": torch.zeros(1, 3), "sly": Bomb(mark)}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ModelFileError, match=r"never read.*torch\.save\(model\.state_dict\(\)"):
        load(path)
    assert not mark.exists()


def test_damaged_torch_files(save):
    path = save(weights())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelFileError, match=r"model\.pt: not a torch file \(truncated"):
        load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(ModelFileError, match=r"model\.pt: not a readable torch file"):
        load(path)


def test_torch_never_sees_the_file(save, monkeypatch):
    """Its weights_only mode has had holes, so no version of it is trusted, or needed."""
    path = save(weights())
    monkeypatch.setitem(sys.modules, "torch", None)
    assert load(path) == expected()


def test_a_pickle_with_an_archive_behind_it_is_refused(torch, save, tmp_path):
    mark = tmp_path / "mark"
    good = save(weights())
    bad = tmp_path / "bad.pt"
    content = {"0.weight": torch.zeros(1, 3), "sly": Bomb(mark)}
    torch.save(content, bad, _use_new_zipfile_serialization=False)
    bad.write_bytes(bad.read_bytes() + good.read_bytes())
    assert zipfile.is_zipfile(bad)
    with pytest.raises(ModelFileError, match="does not begin and end as a zip archive"):
        load(bad)
    assert not mark.exists()


def test_precision_is_that_of_all_tensors(save):
    """One float32 tensor is enough for the model to compute in float32."""
    for key in weights():
        mixed = weights(dtype=np.float64)
        mixed[key] = mixed[key].astype(np.float32)
        assert load(save(mixed)).precision == "float32"


@pytest.mark.parametrize("parameter", [False, True])
def test_views_parameters_and_metadata(torch, tmp_path, parameter):
    """Whatever way a tensor lies in its storage, its numbers are read."""
    base = torch.arange(40, dtype=torch.float64)
    views = {
        "0.weight": base[4:24].reshape(4, 5)[:, ::2].t(),
        "0.bias": base[::15],
        "2.weight": base[7].expand(2, 3),
    }
    if parameter:
        views = {key: torch.nn.Parameter(value) for key, value in views.items()}
    torch.save(OrderedDict(views), tmp_path / "model.pt")
    network = load(tmp_path / "model.pt")
    np.testing.assert_array_equal(network.layers[0].W, views["0.weight"].detach().numpy())
    np.testing.assert_array_equal(network.layers[0].b, views["0.bias"].detach().numpy())
    np.testing.assert_array_equal(network.layers[1].W, views["2.weight"].detach().numpy())


def test_big_endian_files(tmp_path, save):
    path = save(weights())
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "big.pt", "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("byteorder"):
                content = b"big"
            elif "/data/" in name:
                content = np.frombuffer(content, "<f4").astype(">f4").tobytes()
            new.writestr(name, content)
    assert load(tmp_path / "big.pt") == expected()


def test_complex_weights_are_refused(save):
    with pytest.raises(ModelNotSupported, match=r"'0\.weight' has numbers of type complex64"):
        load(save(weights() | {"0.weight": np.ones((4, 3), dtype=np.complex64)}))


# -- safetensors -------------------------------------------------------------------------------

TYPES = {"float64": "F64", "float32": "F32", "float16": "F16"}


def safetensors(tensors, change=lambda header: None, tail=b""):
    """Write the format by hand: names sorted, as its library does."""
    header, body = {"__metadata__": {"format": "pt"}}, io.BytesIO()
    for name in sorted(tensors):
        start = body.tell()
        array = tensors[name]
        body.write(np.ascontiguousarray(array).tobytes())
        header[name] = {
            "dtype": TYPES.get(array.dtype.name, "BF16"),
            "shape": list(array.shape),
            "data_offsets": [start, body.tell()],
        }
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body.getvalue() + tail


def load_bytes(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    return load(path)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_safetensors(tmp_path, dtype):
    network = load_bytes(tmp_path, safetensors(weights(dtype=dtype)))
    assert network == expected(dtype)
    assert network.precision == np.dtype(dtype).name


def test_safetensors_bfloat16(tmp_path):
    values = np.array([[1.0, -2.5, 0.15625]], dtype=np.float32)
    stored = (values.view(np.uint32) >> 16).astype(np.uint16)
    network = load_bytes(tmp_path, safetensors({"weight": stored}))
    np.testing.assert_array_equal(network.layers[0].W, values)
    assert network.precision == "bfloat16"


@pytest.mark.parametrize(
    "names",
    [
        ("2", "10", "11"),  # not the order of the alphabet
        ("net.0", "net.2", "net.10"),
        ("fc1", "fc2", "fc3"),
        ("stem", "body", "head"),  # only one order of the shapes fits
    ],
)
def test_safetensors_order(tmp_path, names):
    assert load_bytes(tmp_path, safetensors(weights(names))) == expected()


def test_safetensors_order_that_is_not_known(tmp_path):
    square = {f"{name}.weight": np.eye(3) for name in ("first", "second")}
    with pytest.raises(ModelFileError, match=r"order of the layers 'first\.weight', 'second\.wei"):
        load_bytes(tmp_path, safetensors(square))
    many = {f"{chr(97 + i)}x.weight": np.zeros((2 + i % 2, 3 - i % 2)) for i in range(24)}
    with pytest.raises(ModelFileError, match="order of the layers"):
        load_bytes(tmp_path, safetensors(many))


def test_safetensors_with_other_tensors(tmp_path):
    with pytest.raises(ModelNotSupported, match=r"'1\.running_var' belongs to a BatchNorm"):
        load_bytes(tmp_path, safetensors(weights() | {"1.running_var": np.ones(4)}))
    with pytest.raises(ModelFileError, match="holds no weights"):
        load_bytes(tmp_path, safetensors({}))


def entry(key, value):
    def change(header):
        header["0.weight"][key] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (entry("dtype", "I64"), "'0.weight' has type 'I64'; only F64, F32, F16, BF16"),
        (entry("dtype", ["F32"]), "'0.weight'"),
        (entry("shape", [4, 4]), "'0.weight' has 48 bytes"),
        (entry("shape", [-4, -3]), "not whole numbers"),
        (entry("shape", [True, 12]), "not whole numbers"),
        (entry("shape", "43"), "not whole numbers"),
        (entry("shape", None), "incomplete"),
        (entry("data_offsets", [0, 10**30]), "outside of the file"),
        (entry("data_offsets", [0]), "incomplete"),
        (entry("data_offsets", [0, 48]), "overlap or leave a gap"),
        (lambda header: header.pop("0.weight"), "overlap or leave a gap"),
        (lambda header: header.pop("4.weight"), "belong to no tensor"),
        (lambda header: header.update({"0.weight": 3}), "incomplete"),
    ],
)
def test_damaged_safetensors_headers(tmp_path, change, message):
    with pytest.raises(ModelFileError, match=message):
        load_bytes(tmp_path, safetensors(weights(), change))


def test_damaged_safetensors(tmp_path):
    good = safetensors(weights())
    for content in (
        good[:5],
        good[:100],
        good[:-1],
        good + b"x",
        struct.pack("<Q", 2**63) + good[8:],
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 19) + b'{"a":1,"a":2,"b":3}',
        struct.pack("<Q", 100_000) + b"[" * 100_000,
    ):
        with pytest.raises(ModelFileError, match=r"damaged \.safetensors file"):
            load_bytes(tmp_path, content)


def test_safetensors_needs_no_torch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert load_bytes(tmp_path, safetensors(weights())) == expected()
