"""Zip archives in which everything may be a lie: names, sizes, checksums, places, bombs."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from dataclasses import dataclass, replace

from fuzz.mutate import damaged, some

_LOCAL = "<4s5H3I2H"
_CENTRAL = "<4s6H3I5H2I"
_END = "<4s4H2IH"
_NAMES = (*("", "/etc/x", "../x", "a/../b", "C:\\x", "x" * 70_000, "\u202ex", "W0.npy"),)


@dataclass(frozen=True)
class Member:
    """One file in an archive, with what its headers claim."""

    name: bytes
    packed: bytes
    method: int
    size: int
    crc: int
    flags: int = 0
    claimed: int | None = None  # packed size in the headers, if it is another
    local_name: bytes | None = None
    offset: int | None = None

    @classmethod
    def of(cls, name, data, method=0):
        packed = data if method == 0 else zlib.compress(data, 6, wbits=-15)
        return cls(
            name.encode("utf-8", "surrogatepass"), packed, method, len(data), zlib.crc32(data)
        )


def members_of(data):
    """The files of an archive that the standard library reads."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def archive_of(members, comment=b"", count=None):
    """Bytes of an archive, as its members say."""
    out, places = io.BytesIO(), []
    for m in members:
        places.append(out.tell())
        claimed = len(m.packed) if m.claimed is None else m.claimed
        name = (m.name if m.local_name is None else m.local_name)[:65_535]
        sizes = (m.crc % 2**32, claimed % 2**32, m.size % 2**32)
        out.write(
            struct.pack(_LOCAL, b"PK\3\4", 20, m.flags, m.method, 0, 33, *sizes, len(name), 0)
        )
        out.write(name + m.packed)
    start = out.tell()
    for m, begin in zip(members, places, strict=True):
        claimed = len(m.packed) if m.claimed is None else m.claimed
        name = m.name[:65_535]
        sizes = (m.crc % 2**32, claimed % 2**32, m.size % 2**32)
        place = begin if m.offset is None else m.offset
        rest = (len(name), 0, 0, 0, 0, 0, place % 2**32)
        out.write(struct.pack(_CENTRAL, b"PK\1\2", 20, 20, m.flags, m.method, 0, 33, *sizes, *rest))
        out.write(name)
    n = (len(members) if count is None else count) % 65_536
    size = out.tell() - start
    out.write(struct.pack(_END, b"PK\5\6", 0, 0, n, n, size, start, len(comment)) + comment)
    return out.getvalue()


def bomb(megabytes):
    """Deflated zeros: about a thousandth of their size."""
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    last = zlib.compressobj(9, wbits=-15).flush()
    return block * megabytes + last


def bombs(files):
    """Archives whose first member unpacks to 1.5 GB, said and unsaid; too large to be kept."""
    first, *rest = (Member.of(name, data) for name, data in files)
    for stated in (1500 * 2**20, first.size):
        yield archive_of([replace(first, packed=bomb(1500), method=8, size=stated), *rest])


def _size(rng, size):
    return rng.choice((0, 1, size - 1, size + 1, 2 * size, 2**31 - 1, 2**31, 2**32 - 1))


def _bombed(rng, member):
    megabytes = rng.choice((100, 700, 1500, 3000))
    stated = rng.choice((megabytes * 2**20, 10, member.size))
    return replace(member, packed=bomb(megabytes), method=8, size=stated)


_LIES = (
    lambda rng, m, others: replace(m, name=rng.choice(_NAMES).encode("utf-8")),
    lambda rng, m, others: replace(m, name=rng.choice(others).name),
    lambda rng, m, others: replace(m, size=_size(rng, m.size)),
    lambda rng, m, others: replace(m, claimed=_size(rng, len(m.packed))),
    lambda rng, m, others: replace(m, crc=rng.getrandbits(32)),
    lambda rng, m, others: replace(m, method=rng.choice((0, 1, 8, 9, 12, 14, 93, 99))),
    lambda rng, m, others: replace(m, flags=rng.choice((1, 8, 9, 64, 0x800, 0x2000, 0xFFFF))),
    lambda rng, m, others: replace(m, local_name=rng.choice(others).name),
    lambda rng, m, others: replace(m, offset=rng.choice((0, 1, 30, 2**31, 2**32 - 1))),
    lambda rng, m, others: replace(m, packed=damaged(rng, m.packed)),
    lambda rng, m, others: _bombed(rng, m) if rng.random() < 0.05 else replace(m, crc=0),
)


def change_archive(rng, files):
    """An archive of (name, data) pairs with a few lies in it."""
    members = [Member.of(name, data, rng.choice((0, 0, 8))) for name, data in files]
    comment, count, before = b"", None, b""
    for _ in range(some(rng)):
        kind = rng.randrange(16)
        if kind == 0:
            before = rng.choice((b"\x80\x02.", b"PK\3\4", b"#!/bin/sh\n", rng.randbytes(20)))
        elif kind == 1:
            comment = rng.randbytes(rng.choice((0, 5, 300)))
            count = rng.choice((None, 0, 1, 65_535))
        elif kind == 2:
            rng.shuffle(members)
        elif kind == 3 and members:
            members.append(_LIES[-2](rng, rng.choice(members), members))  # one name, two contents
        elif kind == 4 and members:
            del members[rng.randrange(len(members))]
        elif members:
            i = rng.randrange(len(members))
            members[i] = rng.choice(_LIES)(rng, members[i], members)
    data = before + archive_of(members, comment, count)
    return damaged(rng, data) if rng.random() < 0.1 else data
