"""Network files: what the package and what the checker alone read in them, beside numpy."""

from __future__ import annotations

import io
import struct
import zipfile

import numpy as np

from fuzz.mutate import damaged, some
from fuzz.reader import Reader, Refused
from fuzz.zips import bombs, change_archive, members_of
from proplace.certification import certificate as documents
from proplace.certification import checker
from proplace.core.errors import ProplaceError
from proplace.core.network import Network

_TYPES = (
    *("<f8", ">f8", "<f4", "<f2", "<i8", "|b1", "|u1", "<c16", "|O", "<U5", "|V8", "<M8[s]"),
    *("|S3", "f8"),
)
_SHAPES = (
    *("()", "(0,)", "(1,)", "(2,)", "(2, 2)", "(-1, 2)", "(2, -1)", "(1, 2, 2)", "(True, 2)"),
    *("(2.0,)", "(10**3,)", "(1000000000000,)", "(2147483648, 2147483648)"),
    *("(4294967296, 4294967296)", "2", "None", "(99999999999999999999,)", "(300000000,)"),
    *("(1, 134217728)", "(0, 9999999999)", "(((((2,),),),),)"),
)
_NAMES = (
    *("W0.npy", "b0.npy", "W1.npy", "W2.npy", "b1.npy", "scale.npy", "shift.npy", "W00.npy"),
    *("W-1.npy", "W0"),
)


class NpzFiles(Reader):
    """``Network.load`` and the checker's ``read_npz`` on the same file."""

    name = "npz"
    suffix = ".npz"

    def prepare(self, folder):
        rng = np.random.default_rng(0)
        nets = [
            Network([(rng.normal(size=(1, 2)), None)]),
            Network([(rng.normal(size=(3, 2)), np.zeros(3)), (rng.normal(size=(1, 3)), [0.5])]),
            Network(
                [(rng.normal(size=(2, 2)), None), (rng.normal(size=(3, 2)), [1.0, 0.0, -0.0])],
                scale=[2.0, 0.5],
                shift=[0.1, -1.0],
                precision="float32",
            ),
        ]
        self._seeds = []
        for i, net in enumerate(nets):
            net.save(folder / f"{i}.npz")
            self._seeds.append((folder / f"{i}.npz").read_bytes())
        packed = io.BytesIO()
        with np.load(folder / "1.npz") as arrays:
            np.savez_compressed(packed, **arrays)
        self._seeds.append(packed.getvalue())
        self._files = [members_of(seed) for seed in self._seeds]

    def seeds(self):
        return self._seeds

    def kept(self):
        return [*super().kept(), *bombs(self._files[0])]

    def make(self, rng):
        if rng.random() < 0.15:
            return damaged(rng, rng.choice(self._seeds), self._seeds)
        files = list(rng.choice(self._files))
        for _ in range(some(rng)):
            i, kind = rng.randrange(len(files)), rng.randrange(8)
            name, data = files[i]
            if kind <= 2:
                files[i] = name, _change_header(rng, data)
            elif kind == 3:
                files[i] = name, _change_numbers(rng, data)
            elif kind == 4:
                files[i] = rng.choice(_NAMES), data
            elif kind == 5:
                files.append((rng.choice(_NAMES), data))
            elif kind == 6:
                files[i] = name, rng.choice(rng.choice(self._files))[1]
            else:
                files[i] = name, damaged(rng, data)
        if rng.random() < 0.4:
            return change_archive(rng, files)
        whole = io.BytesIO()
        with zipfile.ZipFile(whole, "w", rng.choice((0, 8))) as archive:
            for name, data in dict(files).items():
                archive.writestr(name, data)
        return whole.getvalue()

    def read(self, path, data):
        found = []
        for reader, errors in ((Network.load, ProplaceError), (checker.read_npz, checker.Rejected)):
            try:
                found.append(reader(str(path)))
            except errors as error:
                if isinstance(error.__context__, MemoryError):
                    raise
                found.append(None)
        if found == [None, None]:
            raise Refused
        return found

    def judge(self, data, found):
        network, alone = found
        if network is not None and alone is not None and documents.parameters(network) != alone:
            return "the two readers read different numbers"
        if network is None:
            return None
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            for name, mine in network._arrays().items():
                theirs = file[name]
                if theirs.shape != mine.shape and theirs.size != 1:
                    return f"{name} has the shape {mine.shape}, in the file {theirs.shape}"
                if not np.array_equal(np.broadcast_to(theirs, mine.shape), mine):
                    return "other numbers than in the file: " + name
            extra = {name for name in file.files if name[:1] in "Wb"} - network._arrays().keys()
        return f"arrays were left out: {sorted(extra)}" if extra else None


def _change_header(rng, data):
    """Another type, order, shape, version or length in the header of a .npy file."""
    kind = rng.randrange(9)
    header = data[10 : 10 + int.from_bytes(data[8:10], "little")].decode("latin-1")
    body = data[10 + len(header) :]
    version, stated = data[6:8], None
    if kind <= 1:
        header = header.replace("<f8", rng.choice(_TYPES))
    elif kind == 2:
        header = header.replace("False", rng.choice(("True", "0", "None", "[]")))
    elif kind <= 4 and "(" in header and ")" in header:
        start, end = header.index("("), header.index(")") + 1
        header = header[:start] + rng.choice(_SHAPES) + header[end:]
        if rng.random() < 0.3:
            body = body[: rng.randrange(len(body) + 1)] + rng.randbytes(rng.choice((0, 8, 800)))
    elif kind == 5:
        version = rng.choice((b"\1\0", b"\2\0", b"\3\0", b"\0\0", b"\xff\xff"))
    elif kind == 6:
        stated = rng.choice((0, 1, 9, len(header) - 1, len(header) + 1, 65_535))
    elif kind == 7:
        header = rng.choice(
            ("(" * 300, "{" * 20_000, "[" * 50, "-" * 3000 + "1", header.replace("{", "{'x': 1, "))
        )
    else:
        header = damaged(rng, header.encode("latin-1")).decode("latin-1")
    length = len(header) if stated is None else stated
    size = (
        struct.pack("<I", length)
        if version[:1] in (b"\2", b"\3")
        else struct.pack("<H", length % 65_536)
    )
    return data[:6] + version + size + header.encode("latin-1") + body


def _change_numbers(rng, data):
    value = rng.choice((float("nan"), float("inf"), 1e308, 5e-324, -0.0, 2.0**53 + 2, 0.1))
    at = len(data) - 8 * rng.randint(1, 2)
    return data[:at] + struct.pack("<d", value) + data[at + 8 :]
