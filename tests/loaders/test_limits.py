"""Small files that need much: rejected with the limit, in a process with little memory."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from fuzz.zips import Member, archive_of, bomb
from proplace.core import limits
from proplace.core.errors import ModelFileError, ModelNotSupportedError
from proplace.core.network import Network
from proplace.loaders.files import members
from proplace.loaders.model import Model

# Loads each file with 400 MiB to spare, and prints what became of it.
PROGRAM = """
import json, resource, sys
from pathlib import Path
import numpy, onnx
import onnx.inliner, onnx.numpy_helper
from proplace.loaders.model import Model
pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (pages + 400 * 2**20,) * 2)
for path in sys.argv[1:]:
    try:
        print(json.dumps([path, "read", str(Model.of(path))]), flush=True)
    except BaseException as error:
        print(json.dumps([path, type(error).__name__, str(error)]), flush=True)
"""


def load_with_little_memory(*paths):
    """Type and message of the error of each file, by name."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(paths), done.stderr[-2000:]
    return {path.name: (kind, text) for path, (_, kind, text) in zip(paths, lines, strict=True)}


def assert_refused(found, expected):
    assert found.keys() == expected.keys()
    for name, (kind, message) in found.items():
        assert kind in ("ModelFileError", "ModelNotSupportedError"), (name, kind, message)
        assert expected[name] in message, (name, message)
        assert len(message) < 1000


# -- all kinds ---------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".npz", ".onnx"])
def test_long_files_are_not_read(tmp_path, suffix):
    if suffix == ".onnx":
        pytest.importorskip("onnx")
    path = tmp_path / f"model{suffix}"
    with path.open("wb") as file:
        file.truncate(limits.MODEL_BYTES + 1)  # holes use no space
    with pytest.raises(ModelFileError, match=r"268,435,457 bytes. At most 256 MiB are read"):
        Model.of(path)


def zip_bomb(path, members, bomb, size):
    """Write an archive in which ``bomb`` unpacks to ``size`` zeros."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        with archive.open(bomb, "w") as file:
            block = bytes(2**22)
            for _ in range(size // len(block)):
                file.write(block)
    return path


def test_archives_that_unpack_to_more(tmp_path):
    size = limits.MODEL_BYTES + 2**22
    path = zip_bomb(tmp_path / "a.npz", {}, "W0.npy", size)
    assert path.stat().st_size < 2**22
    assert_refused(load_with_little_memory(path), {"a.npz": "At most 256 MiB are read"})


def test_archive_is_rejected_if_its_members_together_unpack_to_more(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MODEL_BYTES", 1000)
    path = zip_bomb(tmp_path / "a.npz", {"W0.npy": bytes(600), "b0.npy": bytes(600)}, "W1.npy", 0)
    assert path.stat().st_size < 1000
    with pytest.raises(ModelFileError, match="At most"):
        list(members(path))


def test_archives_that_lie_about_their_members(tmp_path):
    """The packed size differs from the listed one. Neither is unpacked, and no memory is allocated."""
    much = bomb(1000)
    expected = {}
    for name, member, message in [
        ("more", {"packed": much, "method": 8, "size": 10}, "Bad CRC-32"),
        ("less", {"packed": bomb(1), "method": 8, "size": 2**28 - 2**20, "crc": 0}, "Bad CRC-32"),
        ("short", {"packed": bomb(0), "method": 8, "size": 2**20}, "not have the 1,048,576 bytes"),
        ("packed", {"claimed": 2**31, "method": 8}, "does not have the bytes it states"),
        ("stored", {"size": 2**27, "claimed": 2**27}, "does not have the bytes it states"),
        ("other", {"size": 2**27}, "does not have the bytes it states"),
    ]:
        facts = {"packed": b"x", "method": 0, "size": 1, "crc": 0} | member
        path = tmp_path / f"{name}.npz"
        path.write_bytes(archive_of([Member(b"W0.npy", **facts), Member.of("b0.npy", b"")]))
        expected[path.name] = message
    found = load_with_little_memory(*(tmp_path / name for name in expected))
    assert_refused(found, expected)


def test_damaged_end_or_beginning_is_no_archive(tmp_path):
    path = tmp_path / "model.npz"
    Network([([[1.0]], [0.0])]).save(path)
    good = path.read_bytes()
    for content in (b"x" + good, good + b"x", good[:-2] + b"\x01\x00c", b"GIF89a" + good):
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match="begin and end as a zip archive"):
            Model.of(path)
    # An archive before the archive: the first member of the second is not where the file begins.
    path.write_bytes(good + good)
    with pytest.raises(ModelFileError, match="does not begin where the file does"):
        Model.of(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_that_occur_twice_or_are_packed_otherwise(tmp_path):
    path = tmp_path / "model.npz"
    for method, names, message in (
        (zipfile.ZIP_STORED, ["W0.npy", "W0.npy"], "in the archive twice"),
        (zipfile.ZIP_LZMA, ["W0.npy"], "compressed in a rare way"),
        (zipfile.ZIP_BZIP2, ["W0.npy"], "compressed in a rare way"),
    ):
        with zipfile.ZipFile(path, "w", method) as archive:
            for name in names:
                archive.writestr(name, b"x")
        with pytest.raises(ModelFileError, match=message):
            Model.of(path)


# -- npz ---------------------------------------------------------------------------------------


def npy(shape, dtype="<f8", data=b""):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def test_npz_headers(tmp_path):
    expected = {}
    for name, content, message in [
        ("long", npy((10**9,)), "has 0 bytes, not those of shape (1000000000,)"),
        ("wide", npy((0, 10**12)), "no layer has"),
        ("text", npy((), "<U500000000"), "type <U500000000"),
        ("complex", npy((1,), "<c16", bytes(16)), "must hold real numbers"),
        ("object", npy((1,), "|O", bytes(8)), "must hold real numbers"),
        ("axes", npy((1,) * 40, data=bytes(8)), "no layer has"),
        ("true", npy((True, 2), data=bytes(16)), "no layer has"),
    ]:
        with zipfile.ZipFile(tmp_path / f"{name}.npz", "w") as archive:
            archive.writestr("W0.npy", content)
        expected[f"{name}.npz"] = message
    found = load_with_little_memory(*(tmp_path / name for name in expected))
    assert_refused(found, expected)


def test_array_with_and_without_its_suffix(tmp_path):
    """Readers of such a file would see one array or the other."""
    path = tmp_path / "model.npz"
    Network([([[1.0, 2.0]], None)]).save(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("W0", npy((1, 2), data=bytes(16)))
    with pytest.raises(ModelFileError, match="'W0' is in the archive twice"):
        Model.of(path)


# -- ONNX --------------------------------------------------------------------------------------


@pytest.fixture
def onnx_file(tmp_path):
    onnx = pytest.importorskip("onnx")
    helper, types = onnx.helper, onnx.TensorProto

    def write(name, nodes, constants=None, *, shape=("n", 3), tensors=(), functions=()):
        nodes = [helper.make_node(op, given, made, **options) for op, given, made, options in nodes]
        graph = helper.make_graph(
            nodes,
            "graph",
            [helper.make_tensor_value_info("x", types.FLOAT, shape)],
            [helper.make_tensor_value_info("y", types.FLOAT, None)],
            [
                *(
                    onnx.numpy_helper.from_array(np.asarray(value), key)
                    for key, value in (constants or {}).items()
                ),
                *tensors,
            ],
        )
        sets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        model = helper.make_model(graph, opset_imports=sets, ir_version=8, functions=functions)
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(model.SerializeToString())
        assert path.stat().st_size < 2**20
        return path

    write.onnx = onnx
    return write


def doubling_functions(onnx, depth):
    """Each function calls the one before twice."""
    helper = onnx.helper
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    inner = [helper.make_node("Identity", ["a"], ["b"])]
    functions = []
    for i in range(depth):
        functions.append(helper.make_function("own", f"f{i}", ["a"], ["b"], inner, sets))
        inner = [
            helper.make_node(f"f{i}", ["a"], ["c"], domain="own"),
            helper.make_node(f"f{i}", ["c"], ["b"], domain="own"),
        ]
    return functions


def test_graphs_that_need_much_memory_are_refused(onnx_file):
    onnx = onnx_file.onnx
    side = np.ones(60_000, dtype=np.float32)
    matmul = ("MatMul", ["x", "W"], ["y"], {})
    claimed = onnx.TensorProto(name="W", data_type=onnx.TensorProto.FLOAT, dims=[10**6, 10**6])
    empty = onnx.TensorProto(name="W", data_type=onnx.TensorProto.FLOAT, dims=[0, 10**12])
    itself = [("f0", ["x"], ["h"], {"domain": "own"}), ("MatMul", ["h", "W"], ["y"], {})]
    own = onnx.helper.make_function(
        "own", "f0", ["a"], ["b"], [onnx.helper.make_node("f0", ["a"], ["b"], domain="own")],
        [onnx.helper.make_opsetid("own", 1)],
    )  # fmt: skip
    weights = np.ones((3, 1), dtype=np.float32)
    cases = {
        "constant_of_shape": (
            [("ConstantOfShape", ["s"], ["W"], {}), matmul],
            {"s": np.int64([10**6, 10**6])},
            {},
            "not an operator that is read",
        ),
        "expand": (
            [("Expand", ["a", "s"], ["W"], {}), matmul],
            {"a": side[:1], "s": np.int64([10**6, 10**6])},
            {},
            "not an operator that is read",
        ),
        "tile": (
            [("Tile", ["a", "s"], ["W"], {}), matmul],
            {"a": side[:1], "s": np.int64([10**12])},
            {},
            "not an operator that is read",
        ),
        "product": (
            [("MatMul", ["a", "b"], ["W"], {}), matmul],
            {"a": side[:, None], "b": side[None]},
            {},
            "not an operator that is read",
        ),
        "text": (
            [
                ("Concat", ["a"] * 40, ["b"], {"axis": 0}),
                ("Cast", ["b"], ["t"], {"to": 8}),
                ("Reshape", ["t", "s"], ["W"], {}),
                matmul,
            ],
            {"a": side, "s": np.int64([3, -1])},
            {},
            "makes text of 2,400,000 numbers",
        ),
        "sum": (
            [("Add", ["a", "b"], ["W"], {}), matmul],
            {"a": side[:, None], "b": side[None]},
            {},
            "3,600,000,000 numbers of constants; none is read",
        ),
        "dims": ([matmul], {}, {"tensors": [claimed]}, "tensor 'W' is damaged"),
        "empty_dims": ([matmul], {}, {"tensors": [empty]}, "takes 0 inputs"),
        "input": (
            [
                ("Shape", ["x"], ["s"], {}),
                ("Reshape", ["x", "s"], ["h"], {}),
                ("MatMul", ["h", "W"], ["y"], {}),
            ],
            {"W": weights},
            {"shape": ("n", 10**12)},
            "takes 1,000,000,000,000 columns",
        ),
        "outputs": (
            [("MatMul", ["x", "W"], ["z"], {}), ("Concat", ["z", "z"], ["w0"], {"axis": 1})]
            + [("Concat", [f"w{i}", f"w{i}"], [f"w{i + 1}"], {"axis": 1}) for i in range(40)]
            + [("Identity", ["w40"], ["y"], {})],
            {"W": weights},
            {},
            "rescales",
        ),
        "functions": (
            [("f39", ["x"], ["h"], {"domain": "own"}), ("MatMul", ["h", "W"], ["y"], {})],
            {"W": weights},
            {"functions": doubling_functions(onnx, 40)},
            "20,000 nodes",
        ),
        "endless_function": (itself, {"W": weights}, {"functions": [own]}, "20,000 nodes"),
        "classes": ([matmul], {"W": np.ones((3, 1001), np.float32)}, {}, "at most 1,000 classes"),
    }
    cases["outputs"] = (*cases["outputs"][:3], "numbers of constants; none is read")
    paths = [onnx_file(name, nodes, constants, **options)
             for name, (nodes, constants, options, _) in cases.items()]  # fmt: skip
    expected = {f"{name}.onnx": message for name, (*_, message) in cases.items()}
    assert_refused(load_with_little_memory(*paths), expected)


def test_complex_weights_in_graph(onnx_file):
    path = onnx_file("m", [("MatMul", ["x", "W"], ["y"], {})], {"W": np.ones((3, 1)) * 1j})
    with pytest.raises(ModelNotSupportedError, match="'W' holds complex numbers"):
        Model.of(path)


def test_columns_that_are_only_claimed(tmp_path):
    """Each of them would get a name, and the file need not grow for that."""
    onnx = pytest.importorskip("onnx")
    info = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("MatMul", ["x", "W"], ["y"])
    weights = onnx.TensorProto(name="W", data_type=1, dims=[1, 1], float_data=[1.0])
    for inputs in ([info("x", 1, [1, 200_000])], [info(n, 1, [1, 60_000]) for n in "xz"]):
        graph = onnx.helper.make_graph([node], "g", inputs, [info("y", 1, [1, 1])], [weights])
        (tmp_path / "m.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
        with pytest.raises(ModelFileError, match=r"takes [12][20]0,000 columns"):
            Model.of(tmp_path / "m.onnx")


# -- complex numbers in memory -----------------------------------------------------------------


def test_complex_numbers_are_refused():
    with pytest.raises(ValueError, match=r"W of layer 1 must be an array of real numbers"):
        Network([(np.array([[1.0 + 2.0j]]), None)])
    with pytest.raises(ValueError, match="b of layer 1 must be an array of real numbers"):
        Network([([[1.0]], [1j])])
    with pytest.raises(ValueError, match="input scale must be an array of real numbers"):
        Network([([[1.0]], None)], scale=np.complex128(1j))
    with pytest.raises(ValueError, match="rows must be real numbers: the array is complex"):
        Network([([[1.0]], None)]).logits(np.array([[1.0 + 1.0j]]))
