"""What the page reads from .npz files is what checker.py reads, or is refused."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

import proplace as pp
from oracles import random_box
from proplace.apps import verify
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


@pytest.mark.parametrize("packed", [False, True])
def test_damaged_files_are_refused_or_read_alike(given, packed, tmp_path):
    """The page may refuse more than the checker, but never sees other numbers."""
    kind, arrays = given
    whole = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(whole, **arrays)
    data, rng, files = whole.getvalue(), np.random.default_rng(2), []
    for n in range(300):
        changed = bytearray(data)
        if n % 10 == 0:
            changed = changed[: int(rng.integers(len(data)))]
        else:
            start = 0 if n % 2 else len(data) - 300  # where the list of parts is
            changed[int(rng.integers(start, len(data)))] ^= int(rng.integers(1, 256))
        files.append(tmp_path / f"{n}.npz")
        files[-1].write_bytes(changed)
    theirs, mine = [read_by_checker(file, kind) for file in files], read_by_page(files, tmp_path)
    assert all(b in (a, None) for a, b in zip(theirs, mine, strict=True))
    assert sum(b is not None for b in mine) > 10  # dates and the like


def parts(*entries, comment=b"", prefix=b""):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in entries:
            archive.writestr(name, data)
        archive.comment = comment
    return prefix + file.getvalue()


def test_zips_that_two_readers_could_read_differently_are_refused(tmp_path):
    saved = io.BytesIO()
    np.save(saved, np.ones((1, 2)))
    W = ("W0.npy", saved.getvalue())
    other = ("W0.npy", saved.getvalue().replace(b"\xf0\x3f", b"\xf0\xbf"))
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = parts(W, other)
    bad = {
        "twice": twice,
        "in front": parts(W, prefix=b"MZ and more"),
        "a zip inside": parts(W, comment=parts(other)),
        "a folder": parts(("x/", b""), W),
        "nothing": parts(),
        "no zip": b"PK" + bytes(100),
        "empty": b"",
    }
    files = [tmp_path / f"{n}.npz" for n in range(len(bad) + 1)]
    for file, data in zip(files, (*bad.values(), parts(W, comment=b"hello")), strict=True):
        file.write_bytes(data)
    *refused, read = read_by_page(files, tmp_path)
    assert refused == [None] * len(bad)
    assert read == read_by_checker(files[-1], "network") is not None


def test_bombs_are_refused_before_they_are_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for n in range(3):
            archive.writestr(f"W{n}.npy", bytes(40_000_000))
    liar = bytearray(parts(("W0.npy", bytes(1000))))
    at = liar.rindex(b"PK\x01\x02")
    liar[at + 24 : at + 28] = (10).to_bytes(4, "little")  # says that it is smaller than it is
    (tmp_path / "liar.npz").write_bytes(liar)
    bomb, small = answers([tmp_path / "bomb.npz", tmp_path / "liar.npz"], tmp_path)
    assert bomb["reason"] == "refused: it has more than 65000000 bytes when it is unpacked"
    assert "damaged" in small["reason"]
