"""Files that are small and ask for much: refused with the limit, in a process with little memory."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from fuzz.zips import Member, archive_of, bomb, members_of
from proplace.core import limits
from proplace.core.errors import ModelFileError, ModelNotSupported
from proplace.core.network import Network
from proplace.loaders._torch_pickle import NotPlainError, unpickled
from proplace.loaders.model import Model

MANY = "10,000,000"
# Loads each file with 400 MiB to spare, and prints what became of it.
PROGRAM = """
import json, resource, sys
from pathlib import Path
import numpy, onnx, h5py
import onnx.inliner, onnx.numpy_helper
from proplace.core.network import Network
pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (pages + 400 * 2**20,) * 2)
for path in sys.argv[1:]:
    try:
        print(json.dumps([path, "read", str(Network.load(path))]), flush=True)
    except BaseException as error:
        print(json.dumps([path, type(error).__name__, str(error)]), flush=True)
"""


def load_with_little_memory(*paths):
    """Type and message of the error of each file, by name."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(paths), done.stderr[-2000:]
    return {path.name: (kind, text) for path, (_, kind, text) in zip(paths, lines, strict=True)}


def assert_refused(found, expected):
    assert found.keys() == expected.keys()
    for name, (kind, message) in found.items():
        assert kind in ("ModelFileError", "ModelNotSupported"), (name, kind, message)
        assert expected[name] in message, (name, message)
        assert len(message) < 1000


# -- all kinds ---------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".npz", ".onnx", ".keras", ".pt", ".pth", ".safetensors"])
def test_long_files_are_not_read(tmp_path, suffix):
    if suffix == ".onnx":
        pytest.importorskip("onnx")
    path = tmp_path / f"model{suffix}"
    with path.open("wb") as file:
        file.truncate(limits.MODEL_BYTES + 1)  # holes take no room
    with pytest.raises(ModelFileError, match=r"268,435,457 bytes; at most 256 MiB are read"):
        Network.load(path)


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
    files = [
        zip_bomb(tmp_path / "a.npz", {}, "W0.npy", size),
        zip_bomb(tmp_path / "b.pt", {"m/data.pkl": b"", "m/version": b"3"}, "m/data/0", size),
        zip_bomb(tmp_path / "c.keras", {"config.json": "{}"}, "model.weights.h5", size),
        zip_bomb(tmp_path / "d.keras", {"model.weights.h5": b""}, "config.json", 2**25),
        zip_bomb(tmp_path / "e.pt", {"m/version": b"3"}, "m/data.pkl", 2**25),
    ]
    assert all(path.stat().st_size < 2**22 for path in files)
    whole, part = "at most 256 MiB are read", "33,554,432 bytes; at most 16 MiB are read"
    expected = dict(zip("abcde", [whole, whole, whole, part, part], strict=True))
    found = load_with_little_memory(*files)
    assert_refused(found, {path.name: expected[path.stem] for path in files})


def test_archives_that_lie_about_their_members(tmp_path):
    """More is packed than is said, or less; neither is unpacked, nor is room made for it."""
    much = bomb(1000)
    expected = {}
    for name, member, message in [
        ("more", {"packed": much, "method": 8, "size": 10}, "Bad CRC-32"),
        ("less", {"packed": bomb(1), "method": 8, "size": 2**28 - 2**20, "crc": 0}, "Bad CRC-32"),
        ("short", {"packed": bomb(0), "method": 8, "size": 2**20}, "not have the 1,048,576 bytes"),
        ("packed", {"claimed": 2**31, "method": 8}, "does not have the bytes it says"),
        ("stored", {"size": 2**27, "claimed": 2**27}, "does not have the bytes it says"),
        ("other", {"size": 2**27}, "does not have the bytes it says"),
    ]:
        facts = {"packed": b"x", "method": 0, "size": 1, "crc": 0} | member
        for suffix, inside, other in [
            (".npz", b"W0.npy", "b0.npy"),
            (".keras", b"config.json", "model.weights.h5"),
            (".pt", b"m/data.pkl", "m/version"),
        ]:
            if name == "less" and suffix != ".npz":
                continue  # larger than a description may be
            path = tmp_path / f"{name}{suffix}"
            path.write_bytes(archive_of([Member(inside, **facts), Member.of(other, b"")]))
            expected[path.name] = message
    found = load_with_little_memory(*(tmp_path / name for name in expected))
    assert_refused(found, expected)


def test_a_damaged_end_or_beginning_is_no_archive(tmp_path):
    path = tmp_path / "model.npz"
    Network([([[1.0]], [0.0])]).save(path)
    good = path.read_bytes()
    for content in (b"x" + good, good + b"x", good[:-2] + b"\x01\x00c", b"GIF89a" + good):
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match="begin and end as a zip archive"):
            Network.load(path)
    # An archive before the archive: the first member of the second is not where the file begins.
    path.write_bytes(good + good)
    with pytest.raises(ModelFileError, match="does not begin where the file does"):
        Network.load(path)


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
            Network.load(path)


def test_members_that_are_folders(tmp_path):
    """One with content is a file to some readers and nothing to others."""
    path = tmp_path / "model.npz"
    Network([([[1.0]], None)]).save(path)
    members = [Member.of(name, data) for name, data in members_of(path.read_bytes())]
    data = archive_of(members)
    path.write_bytes(data)
    assert Network.load(path).inputs == 1
    attributes = data.index(b"PK\1\2") + 38
    path.write_bytes(data[:attributes] + b"\x10" + data[attributes + 1 :])
    with pytest.raises(ModelFileError, match="is a folder and has content"):
        Network.load(path)


# -- npz ---------------------------------------------------------------------------------------


def npy(shape, dtype="<f8", data=b""):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def test_npz_headers(tmp_path):
    expected = {}
    for name, content, message in [
        ("long", npy((10**9,)), MANY),
        ("wide", npy((0, 10**12)), MANY),
        ("missing", npy((1000, 1000)), "has 0 bytes, not those of shape (1000, 1000)"),
        ("text", npy((), "<U500000000"), "type <U500000000"),
        ("complex", npy((1,), "<c16", bytes(16)), "must hold real numbers"),
        ("object", npy((1,), "|O", bytes(8)), "must hold real numbers"),
        ("axes", npy((1,) * 40, data=bytes(8)), "no array has"),
        ("true", npy((True, 2), data=bytes(16)), "no array has"),
    ]:
        with zipfile.ZipFile(tmp_path / f"{name}.npz", "w") as archive:
            archive.writestr("W0.npy", content)
        expected[f"{name}.npz"] = message
    found = load_with_little_memory(*(tmp_path / name for name in expected))
    assert_refused(found, expected)


def test_an_array_with_and_without_its_suffix(tmp_path):
    """Readers of such a file would see one array or the other."""
    path = tmp_path / "model.npz"
    Network([([[1.0, 2.0]], None)]).save(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("W0", npy((1, 2), data=bytes(16)))
    with pytest.raises(ModelFileError, match="'W0' is in the archive twice"):
        Network.load(path)


def test_many_arrays_count_together(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "PARAMETERS", 10)
    path = tmp_path / "model.npz"
    Network([(np.ones((2, 3)), None)]).save(path)  # 6 numbers and two texts
    assert Network.load(path).inputs == 3
    Network([(np.ones((2, 3)), np.ones(2)), (np.ones((1, 2)), None)]).save(path)
    with pytest.raises(ModelFileError, match=r"model\.npz holds 12 numbers; .* at most 10 are"):
        Network.load(path)


# -- torch -------------------------------------------------------------------------------------


def number(n):
    return b"\x8a\x09" + n.to_bytes(9, "little", signed=True)


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def state_dict(count, offset, size, stride, kind="FloatStorage"):
    """The pickle of one tensor, as torch writes it."""
    return b"".join(
        [
            b"\x80\x02}" + text("0.weight") + b"ctorch._utils\n_rebuild_tensor_v2\n((",
            text("storage") + b"ctorch\n" + kind.encode() + b"\n" + text("0") + text("cpu"),
            number(count) + b"tQ" + number(offset),
            b"(" + b"".join(map(number, size)) + b"t(" + b"".join(map(number, stride)) + b"t",
            b"\x89ccollections\nOrderedDict\n)RtRs.",
        ]
    )


def torch_file(path, pickle, data=bytes(48), extra=None):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {"data.pkl": pickle, "version": b"3\n", "data/0": data}.items():
            archive.writestr(f"m/{name}", content)
        for name, content in (extra or {}).items():
            archive.writestr(name, content)
    return path


def test_a_tensor_made_by_hand_is_read(tmp_path):
    values = np.arange(12, dtype="<f4")
    path = torch_file(tmp_path / "m.pt", state_dict(12, 1, (2, 3), (1, 4)), values.tobytes())
    np.testing.assert_array_equal(
        Network.load(path, activation="relu").layers[0].W, [[1, 5, 9], [2, 6, 10]]
    )


def test_a_step_that_is_never_taken(tmp_path):
    values = np.arange(12, dtype="<f4")
    path = torch_file(tmp_path / "m.pt", state_dict(12, 1, (1, 3), (2**63, 2)), values.tobytes())
    np.testing.assert_array_equal(Network.load(path, activation="relu").layers[0].W, [[1, 3, 5]])


def test_tensors_that_ask_for_much(tmp_path):
    huge = 10**9
    cases = {
        "expanded": (state_dict(12, 0, (huge, 3), (0, 1)), MANY),
        "wide": (state_dict(12, 0, (0, huge), (1, 1)), MANY),
        "claimed": (state_dict(huge, 0, (3, 3), (3, 1)), "does not have the bytes that it says"),
        "behind": (state_dict(12, 10, (3, 3), (3, 1)), "reaches beyond its numbers"),
        "just_behind": (state_dict(12, 4, (3, 3), (3, 1)), "reaches beyond its numbers"),
        "stride": (state_dict(12, 0, (2, 2), (huge, 1)), "reaches beyond its numbers"),
        "negative": (state_dict(12, 6, (2, 2), (-3, 1)), "do not fit"),
        "negative_offset": (state_dict(12, -1, (2, 2), (2, 1)), "do not fit"),
        "negative_size": (state_dict(12, 0, (-2, -2), (2, 1)), "no array has"),
        "strides": (state_dict(12, 0, (2, 2), (2,)), "do not fit"),
        "rare": (state_dict(12, 0, (2, 2), (2, 1), "QInt8Storage"), "QInt8Storage"),
        "complex": (state_dict(3, 0, (1, 3), (3, 1), "ComplexDoubleStorage"), "complex128"),
    }
    paths = [torch_file(tmp_path / f"{name}.pt", pickle) for name, (pickle, _) in cases.items()]
    expected = {f"{name}.pt": message for name, (_, message) in cases.items()}
    assert_refused(load_with_little_memory(*paths), expected)


def test_expanded_tensor_saved_by_torch(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "model.pt"
    torch.save({"0.weight": torch.zeros(1).expand(10**9, 3)}, path)
    assert path.stat().st_size < 2000
    assert_refused(load_with_little_memory(path), {"model.pt": MANY})


def test_tensors_count_together(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(limits, "PARAMETERS", 100)
    shared = torch.zeros(1).expand(6, 6)
    torch.save({f"{i}.weight": shared for i in range(2)}, tmp_path / "two.pt")
    torch.save({f"{i}.weight": shared for i in range(3)}, tmp_path / "three.pt")
    assert Network.load(tmp_path / "two.pt", activation="relu").inputs == 6
    with pytest.raises(ModelFileError, match="108 numbers"):
        Network.load(tmp_path / "three.pt")


@pytest.mark.parametrize(
    ("pickle", "message"),
    [
        (b"\x80\x02cos\nsystem\n" + text("touch mark") + b"\x85R.", "object of os.system"),
        (b"\x80\x02cbuiltins\neval\n" + text("1") + b"\x85R.", "object of builtins.eval"),
        (b"\x80\x02ctorch._utils\neval\n)R.", "object of torch._utils.eval"),
        (b"\x80\x02ctorch\nFloatStorage\n)R.", "object of torch.FloatStorage"),
        (b"\x80\x02ccollections\nOrderedDict\n)R)Rs.", "object"),
        (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "instruction NEWOBJ"),
        (b"\x80\x02(ios\nsystem\n.", "instruction INST"),
        (b"\x80\x02ctorch\nnn\n}b.", "state of its own"),
        (b"\x80\x02})" + b"\x85" * 9 + b"K\x01s.", "key of type tuple"),
        (b"\x80\x02}h\x07.", "damaged"),
        (b"\x80\x02}r\xff\xff\xff\x7f", "damaged"),
        (b"\x80\x02K\x01K\x02s.", "damaged"),
        (b"\x80\x02.", "damaged"),
        (b"\x80\x02((.", "damaged"),
        (b"\x80\x02" + text("storage") + b"\x85Q.", "no storage"),
        (b"\x8a\xff", "damaged"),
        (b"", "damaged"),
    ],
)
def test_pickles_are_data(pickle, message, tmp_path):
    with pytest.raises(NotPlainError, match=message):
        unpickled(pickle)
    path = torch_file(tmp_path / "model.pt", pickle)
    with pytest.raises(ModelFileError, match="pickled objects are never read"):
        Network.load(path)


def test_a_key_that_takes_forever_to_hash(tmp_path):
    """Each tuple holds the one before twice; hashing the last one would take 2**60 steps."""
    nested = b"\x80\x02)q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"}h\x00K\x01s."
    with pytest.raises(NotPlainError, match="key of type tuple"):
        unpickled(nested)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"other/data.pkl": b""}, "also holds 'other/data.pkl'"),
        ({"readme": b""}, "also holds 'readme'"),
        ({"m/code/x.py": b""}, "TorchScript"),
        ({"m/constants.pkl": b""}, "TorchScript"),
    ],
)
def test_archives_with_something_else_inside(tmp_path, extra, message):
    path = torch_file(tmp_path / "m.pt", state_dict(12, 0, (4, 3), (3, 1)), extra=extra)
    with pytest.raises(ModelFileError, match=message):
        Network.load(path)


# -- safetensors -------------------------------------------------------------------------------


def test_safetensors_headers(tmp_path):
    def entry(shape, end):
        return {"0.weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}

    cases = {
        "long": (entry([10**9], 48), MANY),
        "wide": (entry([0, 10**30], 0), MANY),
        "axes": (entry([1] * 100_000, 4), "no array has"),
        "giant": (entry([10**300] * 10_000, 4), "no array has"),
        "pad": (entry([4, 3], 48) | {"__metadata__": "x" * 2**24}, "at most 16 MiB"),
        "layers": (
            {
                f"{i}.weight": {"dtype": "F32", "shape": [0, 1], "data_offsets": [0, 0]}
                for i in range(1001)
            },
            "1,001 layers",
        ),
    }
    for name, (header, _) in cases.items():
        data = json.dumps(header).encode()
        size = 48 if name in ("long", "pad") else 4 if name in ("axes", "giant") else 0
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(struct.pack("<Q", len(data)) + data + bytes(size))
    expected = {f"{name}.safetensors": message for name, (_, message) in cases.items()}
    found = load_with_little_memory(*(tmp_path / name for name in expected))
    assert_refused(found, expected)


def test_safetensors_names_with_very_long_numbers(tmp_path):
    names = ["1" + "0" * 5000 + ".weight", "9" * 5000 + ".weight"]
    header = {
        name: {"dtype": "F64", "shape": [1, 1], "data_offsets": [8 * i, 8 * i + 8]}
        for i, name in enumerate(names)
    }
    data = json.dumps(header).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(data)) + data + np.float64([2.0, 3.0]).tobytes())
    assert [layer.W.item() for layer in Network.load(path, activation="relu").layers] == [3.0, 2.0]


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


def test_graphs_that_ask_for_much(onnx_file):
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
        "broadcast": (
            [("Add", ["a", "b"], ["W"], {}), matmul],
            {"a": side[:, None], "b": side[None, :]},
            {},
            MANY,
        ),
        "three_way_broadcast": (
            [("Where", ["c", "a", "b"], ["W"], {}), matmul],
            {"a": side[:5000, None], "b": side[None, :5000], "c": np.array(True)},
            {},
            MANY,
        ),
        "doubling": (
            [("Concat", [f"w{i}", f"w{i}"], [f"w{i + 1}"], {"axis": 0}) for i in range(40)]
            + [("MatMul", ["x", "w40"], ["y"], {})],
            {"w0": side[:3, None]},
            {},
            MANY,
        ),
        "gather": (
            [("Gather", ["a", "i"], ["W"], {"axis": 0}), matmul],
            {"a": np.ones((1, 1000), np.float32), "i": np.zeros(20_000, np.uint8)},
            {},
            MANY,
        ),
        "many_results": (
            [("Neg", [f"w{i}"], [f"w{i + 1}"], {}) for i in range(200)]
            + [("MatMul", ["x", "w200"], ["y"], {})],
            {"w0": side},
            {},
            MANY,
        ),
        "constant_of_shape": (
            [("ConstantOfShape", ["s"], ["W"], {}), matmul],
            {"s": np.int64([10**6, 10**6])},
            {},
            "MatMul",
        ),
        "expand": (
            [("Expand", ["a", "s"], ["W"], {}), matmul],
            {"a": side[:1], "s": np.int64([10**6, 10**6])},
            {},
            "MatMul",
        ),
        "tile": (
            [("Tile", ["a", "s"], ["W"], {}), matmul],
            {"a": side[:1], "s": np.int64([10**12])},
            {},
            "MatMul",
        ),
        "dims": ([matmul], {}, {"tensors": [claimed]}, MANY),
        "empty_dims": ([matmul], {}, {"tensors": [empty]}, MANY),
        "input": (
            [
                ("Shape", ["x"], ["s"], {}),
                ("Reshape", ["x", "s"], ["h"], {}),
                ("MatMul", ["h", "W"], ["y"], {}),
            ],
            {"W": weights},
            {"shape": ("n", 10**12)},
            "takes 1000000000000 inputs",
        ),
        "outputs": (
            [("MatMul", ["x", "W"], ["z"], {}), ("Concat", ["z", "z"], ["w0"], {"axis": 1})]
            + [("Concat", [f"w{i}", f"w{i}"], [f"w{i + 1}"], {"axis": 1}) for i in range(40)]
            + [("Identity", ["w40"], ["y"], {})],
            {"W": weights},
            {},
            "rescales",
        ),
        "behind_sigmoid": (
            [("MatMul", ["x", "W"], ["z"], {}), ("Sigmoid", ["z"], ["w0"], {})]
            + [("Concat", [f"w{i}", f"w{i}"], [f"w{i + 1}"], {"axis": 1}) for i in range(40)]
            + [("Identity", ["w40"], ["y"], {})],
            {"W": weights},
            {},
            MANY,
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
    cases["outputs"] = (*cases["outputs"][:3], "Concat")
    paths = [onnx_file(name, nodes, constants, **options)
             for name, (nodes, constants, options, _) in cases.items()]  # fmt: skip
    expected = {f"{name}.onnx": message for name, (*_, message) in cases.items()}
    assert_refused(load_with_little_memory(*paths), expected)


@pytest.mark.parametrize("path", [[7, 1], [7, 5], [7, 1, 5], [7, 11, 2, 1, 2, 1], [25, 7]])
def test_files_of_very_many_small_parts(tmp_path, path):
    """Two bytes for each part, which takes a hundred in memory."""
    pytest.importorskip("onnx")

    def varint(value):
        return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)

    def field(number, content):
        return varint(number << 3 | 2) + varint(len(content)) + content

    content = field(path[-1], b"") * 5_000_000
    for number in path[-2::-1]:
        content = field(number, content)
    file = tmp_path / "model.onnx"
    file.write_bytes(content)
    assert_refused(load_with_little_memory(file), {"model.onnx": "more than 500,000 fields"})


def test_complex_weights_in_a_graph(onnx_file):
    path = onnx_file("m", [("MatMul", ["x", "W"], ["y"], {})], {"W": np.ones((3, 1)) * 1j})
    with pytest.raises(ModelNotSupported, match="'W' holds complex numbers"):
        Network.load(path)


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


# -- Keras -------------------------------------------------------------------------------------


def dense(name, units):
    config = {"name": name, "units": units, "activation": "relu", "use_bias": False}
    return {"module": "keras.layers", "class_name": "Dense", "config": config}


def sequential(name, layers):
    config = {"name": name, "layers": layers}
    return {"module": "keras", "class_name": "Sequential", "config": config}


def keras_input(shape):
    config = {"name": "input", "batch_shape": shape}
    return {"module": "keras.layers", "class_name": "InputLayer", "config": config}


def twice(inner, name):
    """A functional model that calls ``inner`` twice."""

    def value(layer, call):
        config = {"keras_history": [layer, call, 0]}
        return {"args": [{"class_name": "__keras_tensor__", "config": config}], "kwargs": {}}

    part = inner["config"]["name"]
    layers = [
        keras_input([None, 3]) | {"inbound_nodes": []},
        inner | {"inbound_nodes": [value("input", 0), value(part, 0)]},
    ]
    config = {
        "name": name,
        "layers": layers,
        "input_layers": [["input", 0, 0]],
        "output_layers": [[part, 1, 0]],
    }
    return {"module": "keras.src.models", "class_name": "Functional", "config": config}


def nested_twice(depth, folder):
    model = twice(dense("d", 3), "m0")
    for i in range(1, depth):
        model = twice(model, f"m{i}")
    return model, folder + "layers/functional/" * (depth - 1) + "layers/dense/vars"


def test_keras_files_that_ask_for_much(tmp_path):
    h5py = pytest.importorskip("h5py")
    pytest.importorskip("keras")

    def write(name, config, path="layers/dense/vars", **dataset):
        with h5py.File(tmp_path / "w.h5", "w") as file:
            if dataset:
                file.create_group(path).create_dataset("0", **dataset)
        with zipfile.ZipFile(tmp_path / f"{name}.keras", "w") as archive:
            archive.writestr(
                "config.json", config if isinstance(config, str) else json.dumps(config)
            )
            archive.write(tmp_path / "w.h5", "model.weights.h5")
        assert (tmp_path / f"{name}.keras").stat().st_size < 2**20

    def model(units=1, shape=(None, 3)):
        return sequential("m", [keras_input(list(shape)), dense("d", units)])

    small = {"data": np.ones((3, 1), np.float32)}
    write("declared", model(), shape=(10**6, 10**6), dtype="f4")
    write("wide", model(), shape=(0, 10**12), dtype="f4")
    write("filled", model(10**6), shape=(3, 10**6), dtype="f4")
    write("packed", model(10**6), shape=(3, 10**6), dtype="f4", compression="gzip")
    doubling, path = nested_twice(30, "")
    write("doubling", doubling, path, data=np.ones((3, 3), np.float32))
    many = sequential("m", [keras_input([None, 3]), *(dense(f"d{i}", 3) for i in range(1001))])
    write("layers", many, **small)
    before, after = json.dumps(sequential("m", ["HERE"])).split('"HERE"')
    for name, depth in (("deep", 200), ("deeper", 5000)):
        write(name, before * depth + json.dumps(dense("d", 1)) + after * depth, **small)
    expected = {
        "declared.keras": MANY,
        "wide.keras": MANY,
        "filled.keras": "does not have the bytes of its shape",
        "packed.keras": "not stored plainly",
        "doubling.keras": "models of at most 1,000 are read",
        "layers.keras": "models of at most 1,000 are read",
        "deep.keras": "layer 'd' (Dense) has no weights",
        "deeper.keras": "not a .keras file, or a damaged one",
    }
    assert_refused(load_with_little_memory(*(tmp_path / name for name in expected)), expected)
    # What is refused where the model is built, which takes Keras itself and its memory.
    write("units", model(10**9), **small)
    write("input", model(1, (None, 10**12)), **small)
    write("columns", model(1, (None, 10**6)), **small)
    write("inputs", model(1, (None, 10**5)), **small)
    for name, message in [
        ("units", "1000000000 outputs and weights of the shapes"),
        ("input", MANY),
        ("columns", "at most 100,000 columns are read"),
        ("inputs", "takes 3 inputs but is given 100000;"),
    ]:
        with pytest.raises((ModelFileError, ModelNotSupported), match=message):
            Network.load(tmp_path / f"{name}.keras")


# -- complex numbers in memory -----------------------------------------------------------------


def test_complex_numbers_are_refused():
    with pytest.raises(ValueError, match=r"W of layer 1 must be an array of numbers \(real ones\)"):
        Network([(np.array([[1.0 + 2.0j]]), None)])
    with pytest.raises(ValueError, match="b of layer 1 must be an array of numbers"):
        Network([([[1.0]], [1j])])
    with pytest.raises(ValueError, match="input scale must be an array of numbers"):
        Network([([[1.0]], None)], scale=np.complex128(1j))
    with pytest.raises(ValueError, match="rows must be numbers: complex"):
        Network([([[1.0]], None)]).logits(np.array([[1.0 + 1.0j]]))
