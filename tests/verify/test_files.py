"""The page reads .npz files exactly as checker.py does, or rejects them."""

from __future__ import annotations

import io
import json
import subprocess
import zipfile

import numpy as np
import pytest

import proplace as pp
from oracles import random_box
from proplace import verify
from proplace.certification import checker
from two_checkers import NO_NODE, NODE, node

pytestmark = pytest.mark.skipif(NODE is None, reason=NO_NODE)

NET = pp.Network(
    [([[1.0, -1.0], [0.5, -0.0]], [0.0, 5e-324]), ([[1e300, -2.0]], None)],
    scale=[2.0, 0.1],
    shift=[0.0, -1.0],
)


def answers(files, folder):
    verify.write_page(folder / "verify.html")
    (folder / "models.txt").write_text("\n".join(map(str, files)))
    return node(folder / "verify.html", folder / "models.txt")


def read_by_page(files, folder):
    return [found.get("digest") for found in answers(files, folder)]


def read_by_checker(file, kind):
    try:
        return checker.digest(
            (checker.read_npz if kind == "network" else checker.read_shifts)(file)
        )
    except checker.Rejected:
        return None


def arrays_of(thing, folder):
    thing.save(folder / "whole.npz")
    with np.load(folder / "whole.npz") as file:
        return dict(file)


@pytest.fixture(params=["network", "shifts"])
def given(request, tmp_path):
    thing = NET if request.param == "network" else random_box(np.random.default_rng(0), NET)
    return request.param, arrays_of(thing, tmp_path)


def test_networks_and_boxes_have_their_digests(tmp_path):
    rng = np.random.default_rng(1)
    matrix = pp.Network([(rng.normal(size=(2, 3)), None)], matrix=rng.normal(size=(3, 2)))
    wide = pp.Network([(rng.normal(size=(70, 130)), rng.normal(size=70)), (np.ones((2, 70)), None)])
    things = [NET, matrix, wide, random_box(rng, NET), random_box(rng, matrix)]
    files = [tmp_path / f"{n}.npz" for n in range(len(things))]
    for thing, file in zip(things, files, strict=True):
        thing.save(file)
    kinds = ["shifts" if isinstance(thing, pp.Shifts) else "network" for thing in things]
    wanted = [*map(read_by_checker, files, kinds)]
    assert None not in wanted
    assert read_by_page(files, tmp_path) == wanted


def test_packed_files_are_read(given, tmp_path):
    kind, arrays = given
    np.savez_compressed(tmp_path / "packed.npz", **arrays)
    wanted = read_by_checker(tmp_path / "packed.npz", kind)
    assert wanted is not None
    assert read_by_page([tmp_path / "packed.npz"], tmp_path) == [wanted]


CHANGES = {
    "more": lambda a, W: a | {"more": np.ones(2)},
    "layers": lambda a, W: a | {"layers": np.ones(2)},
    "no first layer": lambda a, W: {k: v for k, v in a.items() if k != W},
    "float32": lambda a, W: a | {W: a[W].astype(np.float32)},
    "big endian": lambda a, W: a | {W: a[W].astype(">f8")},
    "fortran": lambda a, W: a | {W: np.asfortranarray(a[W])},
    "flat": lambda a, W: a | {W: a[W].ravel()},
    "cube": lambda a, W: a | {W: a[W][None]},
    "empty": lambda a, W: a | {W: np.ones((0, 2))},
    "infinite": lambda a, W: a | {W: np.where(a[W] > 0, np.inf, a[W])},
    "nan": lambda a, W: a | {W: np.full_like(a[W], np.nan)},
    "wide": lambda a, W: a | {W: np.ones((3, 2))},
    "a scale too long": lambda a, W: a | {"scale": np.ones(3)},
    "a layer behind a gap": lambda a, W: a | {W.replace("0", "5"): np.ones((1, 1))},
    "an offset alone": lambda a, W: a | {"offset": np.ones(2)},
}


@pytest.mark.parametrize("change", CHANGES)
def test_arrays_of_no_network_are_refused(change, given, tmp_path):
    kind, arrays = given
    changed = CHANGES[change](arrays, "W0" if kind == "network" else "low_W0")
    np.savez(tmp_path / "bad.npz", **changed)
    assert read_by_checker(tmp_path / "bad.npz", kind) is None
    assert read_by_page([tmp_path / "bad.npz"], tmp_path) == [None]


def alike(files, kind, folder):
    """The digest that each checker reads of each file, or nothing."""
    theirs, mine = [read_by_checker(file, kind) for file in files], read_by_page(files, folder)
    assert mine == theirs
    return mine


@pytest.mark.parametrize("packed", [False, True])
def test_damaged_files_are_read_alike_or_refused_by_both(given, packed, tmp_path):
    kind, arrays = given
    whole = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(whole, **arrays)
    data, rng, files = whole.getvalue(), np.random.default_rng(2), []
    for n in range(300):
        changed = bytearray(data)
        at = int(rng.integers(0 if n % 2 else len(data) - 300, len(data)))  # the list of parts
        if n % 10 == 0:
            changed = changed[:at]
        elif n % 10 == 2:
            changed[at:at] = rng.bytes(int(rng.integers(1, 30)))
        else:
            changed[at] ^= int(rng.integers(1, 256))
        files.append(tmp_path / f"{n}.npz")
        files[-1].write_bytes(changed)
    assert (
        sum(found is not None for found in alike(files, kind, tmp_path)) > 10
    )  # dates and the like


def parts(*entries, comment=b"", prefix=b"", method=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in entries:
            archive.writestr(name, data)
        archive.comment = comment
    return prefix + file.getvalue()


def npy(shape, values, start=b"\x93NUMPY\x01\x00"):
    """An array whose header is written by hand."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({shape}), }}".ljust(117) + "\n"
    size = len(header).to_bytes(2, "little")
    return start + size + header.encode() + np.asarray(values, "<f8").tobytes()


W = ("W0.npy", npy("1, 2", [[2.0, -1.0]]))
OTHER = ("W0.npy", npy("1, 2", [[-2.0, 1.0]]))


def moved(data, more):
    """A zip with bytes before its first part, counted by its list of parts."""
    end = len(data) - 22
    entry = int.from_bytes(data[end + 16 : end + 20], "little")
    changed = bytearray(more + data)
    for at in (end + 16, entry + 42):
        old = int.from_bytes(data[at : at + 4], "little")
        changed[at + len(more) : at + len(more) + 4] = (old + len(more)).to_bytes(4, "little")
    return bytes(changed)


def with_more_packed(data):
    """A zip whose only part has bytes behind the end of what is packed, which count as packed."""
    more, end = b"more", len(data) - 22
    entry = int.from_bytes(data[end + 16 : end + 20], "little")
    changed = bytearray(data[:entry] + more + data[entry:])
    for at in (18, entry + len(more) + 20):
        old = int.from_bytes(changed[at : at + 4], "little")
        changed[at : at + 4] = (old + len(more)).to_bytes(4, "little")
    start = end + len(more) + 16
    changed[start : start + 4] = (entry + len(more)).to_bytes(4, "little")
    return bytes(changed)


def with_entry(change):
    """A zip whose entry in the list of parts, or the end of the list, was changed."""
    data = bytearray(parts(W))
    change(data, data.index(b"PK\x01\x02"))
    return bytes(data)


def swapped():
    """Three parts, of which two are listed in another order than they lie in the file."""
    data = parts(W, ("b0.npy", npy("1,", [0.5])), ("format.npy", b""))
    last = data.rindex(b"PK\x01\x02")
    middle = data.rindex(b"PK\x01\x02", 0, last)
    return data[:middle] + data[last:-22] + data[middle:last] + data[-22:]


def put(at, value):
    return lambda data, entry: data.__setitem__(slice(entry + at, entry + at + len(value)), value)


PACKED = parts(W, method=zipfile.ZIP_DEFLATED)
ODD = {
    "in front": parts(W, prefix=b"MZ and more"),
    "in front, known": moved(parts(W), b"junk"),
    "behind": parts(W) + b"\0",
    "a comment": parts(W, comment=b"hello"),
    "an end in the comment": parts(W, comment=b"abcPK\x05\x06xyz"),
    "an empty list as the comment": parts(W, comment=b"PK\x05\x06" + bytes(18)),
    "a comment that is not there": parts(W)[:-2] + b"\x05\x00",
    "a zip inside": parts(W, comment=parts(OTHER)),
    "a zip behind": parts(W) + parts(OTHER),
    "a folder": parts(("x/", b""), W),
    "nothing": parts(),
    "no zip": b"PK" + bytes(100),
    "empty": b"",
    "ten digits": parts(("W0.npy", npy("0000000001, 2", [[2.0, -1.0]]))),
    "twelve digits": parts(W, ("b0.npy", npy("000000000001,", [0.5]))),
    "no array": parts(("W0.npy", npy("1, 2", [[2.0, -1.0]], start=b"XXXXXXXX"))),
    "another version": parts(("W0.npy", npy("1, 2", [[2.0, -1.0]], start=b"\x93NUMPY\x02\x00"))),
    "an array of nothing": parts(("W0.npy", b"")),
    "behind what is packed": with_more_packed(PACKED),
    "out of order": swapped(),
    "a password": with_entry(put(8, b"\x01")),
    "a later version": with_entry(put(6, b"\x40")),
    "another disk": with_entry(put(34, b"\x01")),
    "another start": with_entry(put(42, b"\x01")),
    "a start behind the end": with_entry(put(42, b"\0\0\0\x10")),
    "64 bits": with_entry(put(20, b"\xff\xff\xff\xff")),
    "packed otherwise": parts(W, method=zipfile.ZIP_BZIP2),
    "another name": with_entry(put(46, b"b")),
    "a name with a zero": parts(("W0.npy", W[1]), ("b0", b"")).replace(b"b0", b"b\0"),
}
USUAL = {
    "plain": parts(W),
    "packed": PACKED,
    "nine digits": parts(("W0.npy", npy("000000001, 2", [[2.0, -1.0]]))),
    "minus zero": parts(("W0.npy", npy("1, 2", [[-0.0, 1.0]]))),
}


def test_zips_that_two_readers_could_read_differently_are_refused(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = parts(W, OTHER)
    given = USUAL | ODD | {"twice": twice}
    for n, data in enumerate(given.values()):
        (tmp_path / f"{n}.npz").write_bytes(data)
    found = alike([tmp_path / f"{n}.npz" for n in range(len(given))], "network", tmp_path)
    read = {name for name, digest in zip(given, found, strict=True) if digest is not None}
    assert read == set(USUAL)


def test_bombs_are_refused_before_they_are_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for n in range(3):
            archive.writestr(f"W{n}.npy", bytes(40_000_000))
    liar = bytearray(parts(("W0.npy", bytes(1000))))
    at = liar.rindex(b"PK\x01\x02")
    liar[at + 24 : at + 28] = (10).to_bytes(4, "little")  # the listed size is too small
    (tmp_path / "liar.npz").write_bytes(liar)
    bomb, small = answers([tmp_path / "bomb.npz", tmp_path / "liar.npz"], tmp_path)
    assert "65000000" in bomb["reason"]
    assert "damaged" in small["reason"]


EXAMINE = """
const fs = require("fs"), vm = require("vm");
const whole = fs.readFileSync(process.argv[1], "utf8");
const source = /<script type="text\\/plain" id="checker">([^]*?)<\\/script>/.exec(whole)[1];
const worker = vm.runInThisContext(`${source}\\n;({ examine })`);
const files = process.argv.slice(2).map((path) => {
  const bytes = fs.readFileSync(path);
  const arrayBuffer = async () => new Uint8Array(bytes).buffer;
  return { name: require("path").basename(path), size: bytes.length, arrayBuffer };
});
worker.examine({ files, demand: {} }, (found) => console.log(JSON.stringify(found)));
"""


def examined(files, folder):
    """The messages of the page's worker about files."""
    verify.write_page(folder / "verify.html")
    asked = [NODE, "-e", EXAMINE, str(folder / "verify.html"), *map(str, files)]
    lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    told = [json.loads(line) for line in lines]
    return [one for one in told if "progress" not in one]


@pytest.mark.parametrize("kind", ["onnx", "keras", "h5", "pt", "pth", "safetensors", "ONNX"])
@pytest.mark.parametrize("content", [b"\x08\x07", b"PK\x03\x04"], ids=["plain", "zip"])
def test_model_of_another_program_is_not_certificate(kind, content, tmp_path):
    file = tmp_path / f"loan.{kind}"
    file.write_bytes(content)
    model, end = examined([file], tmp_path)
    assert model["model"]["name"] == file.name
    assert ".npz" in model["model"]["problem"]
    assert "ledger show --proof" in model["model"]["problem"]
    assert end == {"end": {"models": 0}}


def test_other_files_are_rejected(tmp_path):
    file = tmp_path / "loan.json"
    file.write_bytes(b"\x08\x07")
    proof, _ = examined([file], tmp_path)
    assert not proof["proof"]["accepted"]
    assert "JSON" in proof["proof"]["reason"]
