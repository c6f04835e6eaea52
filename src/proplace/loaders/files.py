"""Model files: the suffixes that are read, their size limits, and the content of ``.npz`` files.

Nothing is ever unpickled. The statements of a zip archive are checked before anything is unpacked: it
begins and ends as a zip file does, so that it is not another file with an archive hidden in it. Each
name occurs once, and the unpacked members stay within the limit together. The header of each array
(type and shape) is checked against the bytes of the file.
"""

from __future__ import annotations

import hashlib
import io
import math
import warnings
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from proplace.core import limits
from proplace.core import shifts as shift_sets
from proplace.core.errors import ModelFileError, NetworkError
from proplace.core.network import NPZ_FORMAT, Network
from proplace.core.transforms import Fold, InputTransform

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from proplace.core.network import Precision

Values = npt.NDArray[Any]

_PICKLE = (
    "pickles are never read, because unpickling runs any code inside the file",
    "import joblib, proplace",
    "proplace.Model.of(joblib.load({name!r})).save({saved!r})",
)
_WEIGHTS = (
    "weights without an architecture are not read. Load the weights into their module",
    "import {package}, proplace",
    "module.load_state_dict({package}.{load}({name!r}))",
    "proplace.Model.of(module.eval()).save({saved!r})",
)
_KERAS = (
    "files of Keras are not read, because they may hold code",
    "import keras, proplace",
    "proplace.Model.of(keras.models.load_model({name!r})).save({saved!r})",
)
_REJECTED = {
    **dict.fromkeys((".pkl", ".pickle", ".joblib"), _PICKLE),
    **dict.fromkeys((".pt", ".pth", ".safetensors"), _WEIGHTS),
    **dict.fromkeys((".keras", ".h5", ".hdf5"), _KERAS),
}

_FIRST = b"PK\x03\x04"  # of the first member, at the very beginning
_LAST = b"PK\x05\x06"  # of the end record, which is 22 bytes long without a comment
_END = 22
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@dataclass(frozen=True)
class Origin:
    """Source of a model: the name of its file or the type of the object, and the digest of the file.

    ``digest`` is the SHA-256 of the file, None without a file.
    """

    name: str
    digest: str | None = None

    @classmethod
    def file(cls, path: Path) -> Origin:
        """Name a file and compute its digest."""
        with path.open("rb") as file:
            return cls(path.name, hashlib.file_digest(file, "sha256").hexdigest())


# -- any file --------------------------------------------------------------------------------------


def check_file(path: Path) -> str:
    """Return the suffix of a model file that can be read, or raise ModelFileError.

    The error about a file of another kind names the lines that convert it.
    """
    _check_size(path)
    suffix = path.suffix.lower()
    if suffix in _REJECTED:
        reason, *lines = _REJECTED[suffix]
        tensors = suffix == ".safetensors"
        package, load = ("safetensors.torch", "load_file") if tensors else ("torch", "load")
        saved = path.with_suffix(".npz").name
        words = {"name": path.name, "saved": saved, "package": package, "load": load}
        raise ModelFileError(
            f"{path.name}: {reason}. Convert it once, if you trust it:",
            code=[line.format(**words) for line in lines],
        )
    if suffix not in (".npz", ".onnx"):
        raise ModelFileError(
            f"{path.name}: files with suffix {suffix!r} are not read. Save the model as one of "
            ".npz, .onnx"
        )
    return suffix


def check_bytes(where: str, size: int, limit: int | None = None) -> None:
    """Raise ModelFileError for more than ``limit`` bytes (by default the limit of a model)."""
    limit = limits.MODEL_BYTES if limit is None else limit
    if size > limit:
        raise ModelFileError(
            f"{where} has {size:,} bytes. At most {limits.readable(limit)} are read"
        )


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, or raise ModelFileError."""
    _check_size(path)
    try:
        with path.open("rb") as file:
            # one byte more shows a file that grew after the check
            data = file.read(path.stat().st_size + 1)
    except OSError as error:
        raise ModelFileError(f"{path}: the file cannot be read ({error.strerror})") from None
    check_bytes(path.name, len(data))
    return data


def _check_size(path: Path) -> None:
    if not path.exists():
        raise ModelFileError(f"{path}: no such file", name=path.name)
    if path.is_dir():
        raise ModelFileError(
            f"{path}: this is a folder. Give the path of one model file", name=path.name
        )
    if not path.is_file():
        raise ModelFileError(f"{path}: this is not a regular file")
    check_bytes(path.name, path.stat().st_size)


# -- networks and shift sets -----------------------------------------------------------------------


def read_network(path: Path) -> Network:
    """Read the network of an ``.npz`` file that ``save`` of a network or a model wrote."""
    if check_file(path) != ".npz":
        raise ModelFileError(
            f"{path.name}: Network.load reads .npz files. Read the model with Model.of({path.name!r}), "
            "whose .network holds its layers",
            name=path.name,
        )
    return read_parts(path)[0]


def read_parts(path: Path) -> tuple[Network, str]:
    """Read a network and the description of the model around it, which is empty without one."""
    arrays = _arrays(path, texts=("format", "precision", "model"))
    if str(arrays.pop("format", None)) != NPZ_FORMAT:
        raise ModelFileError(
            f"{path.name}: not a network file of this package (format {NPZ_FORMAT!r})",
            name=path.name,
        )
    precision = cast("Precision", str(arrays.pop("precision", "float64")))
    model = str(arrays.pop("model", ""))
    parts = _transform(arrays)
    pairs = _layers(arrays)
    folds = [_fold(path, arrays, i) for i in range(len(pairs))]
    _check_empty(path, arrays)
    try:
        network = Network(pairs, **parts, precision=precision, folds=folds)
    except NetworkError as error:
        # The layers come from the file, so a wrong layer is a wrong file.
        raise ModelFileError(f"{path.name}: {error}", name=path.name) from None
    return network, model


def read_shifts(path: Path) -> shift_sets.Shifts:
    """Read a shift set that :meth:`Shifts.save` wrote."""
    _check_size(path)
    arrays = _arrays(path, texts=("format", "about", "encoding", "precision"))
    if str(arrays.pop("format", None)) != shift_sets.NPZ_FORMAT:
        raise ModelFileError(
            f"{path.name}: not a shifts file of this package (format {shift_sets.NPZ_FORMAT!r}); a "
            "network alone is no box: Shifts.of(net, 0.02).save(...) makes one",
            name=path.name,
        )
    if not {"about", "encoding"} <= arrays.keys():
        raise ModelFileError(
            f"{path.name}: was written by another version of proplace (its description or encoding is "
            "missing). Make it again",
            name=path.name,
        )
    about, encoding = str(arrays.pop("about")), str(arrays.pop("encoding"))
    parts = _transform(arrays)
    ends = []
    for end in ("low", "high"):
        pairs = _layers(arrays, f"{end}_")
        if not pairs:
            raise ModelFileError(
                f"{path.name}: holds no {end} ends of a layer. Save it again", name=path.name
            )
        ends.append(Network(pairs, **parts, precision="float64", folds=None))
    _check_empty(path, arrays)
    return shift_sets.Shifts(*ends, description=about, encoding=encoding)


def _transform(arrays: dict[str, Values]) -> dict[str, Values]:
    """Take the parts of an input transform out of the arrays of a file."""
    names = InputTransform.__dataclass_fields__
    return {name: arrays.pop(name) for name in names if name in arrays}


def _layers(arrays: dict[str, Values], prefix: str = "") -> list[tuple[Values, Values | None]]:
    """Take the weights and biases of the layers out of the arrays of a file."""
    pairs: list[tuple[Values, Values | None]] = []
    while (W := arrays.pop(f"{prefix}W{len(pairs)}", None)) is not None:
        pairs.append((W, arrays.pop(f"{prefix}b{len(pairs)}", None)))
    return pairs


def _fold(path: Path, arrays: dict[str, Values], layer: int) -> Fold | None:
    """Take the fixed numbers that were folded into a layer out of the arrays of a file."""
    names = {f"fold_{name}{layer}": name for name in Fold.__dataclass_fields__}
    found = {name: arrays.pop(key) for key, name in names.items() if key in arrays}
    if found and len(found) < len(names):
        raise ModelFileError(
            f"{path.name}: holds a part of what was folded into layer {layer + 1} "
            f"({', '.join(found)}). Save the network again",
            name=path.name,
        )
    return Fold(**found) if found else None


def _check_empty(path: Path, arrays: dict[str, Values]) -> None:
    if arrays:
        unknown = ", ".join(map(ascii, sorted(arrays)))[:200]
        raise ModelFileError(f"{path.name}: holds arrays of no layer ({unknown})", name=path.name)


# -- arrays of an archive --------------------------------------------------------------------------


def _arrays(path: Path, texts: tuple[str, ...]) -> dict[str, Values]:
    """Return the arrays of a file by name. ``texts`` must hold text, the others numbers."""
    arrays: dict[str, Values] = {}
    for name, data in members(path):
        key = name.removesuffix(".npy")
        if key in arrays:  # with the suffix and without it
            raise _damaged(path, f"{key!r} is in the archive twice")
        arrays[key] = _array(path, key, data, text=key in texts)
    return arrays


def _array(path: Path, key: str, data: bytes, *, text: bool) -> Values:
    where = f"{path.name}: array {ascii(key)[:100]}"
    stream = io.BytesIO(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a header that is no plain one: it is refused
            version = np.lib.format.read_magic(stream)
            shape, fortran, dtype = _HEADERS[version](stream)
    except Exception as error:
        raise ModelFileError(
            f"{where} is damaged ({error}). Save the network again", name=path.name
        ) from None
    # numpy lets True pass for 1
    if len(shape) > 2 or not all(type(size) is int and size > 0 for size in shape):
        raise ModelFileError(
            f"{where} has a shape that no layer has. Save the network again", name=path.name
        )
    kinds = "U" if text else "fiu"
    if dtype.kind not in kinds or (dtype.kind == "U" and shape):
        what = "one piece of text" if text else "real numbers"
        raise ModelFileError(f"{where} has type {dtype}. It must hold {what}", name=path.name)
    start = stream.tell()
    if len(data) - start != math.prod(shape) * dtype.itemsize:
        raise ModelFileError(
            f"{where} has {len(data) - start} bytes, not those of shape {shape}. Save the network "
            "again",
            name=path.name,
        )
    order: Literal["F", "C"] = "F" if fortran else "C"
    return np.ndarray(shape, dtype, buffer=data, offset=start, order=order)


def members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the members of a zip archive."""
    try:
        _check_ends(path)
        with zipfile.ZipFile(path) as archive:
            _check_members(path, archive.infolist())
            for member in archive.infolist():
                with archive.open(member) as file:
                    # With a size, no more than that is unpacked.
                    data = file.read(member.file_size + 1)
                if len(data) != member.file_size:
                    raise _damaged(
                        path,
                        f"{member.filename!r} does not have the {member.file_size:,} bytes it states",
                    )
                yield member.filename, data
    except ModelFileError:
        raise
    except Exception as error:  # zlib raises its own
        raise _damaged(path, str(error)) from None


def _check_ends(path: Path) -> None:
    with path.open("rb") as file:
        first = file.read(len(_FIRST))
        file.seek(max(0, path.stat().st_size - _END))
        last = file.read(_END)
    if first != _FIRST or len(last) != _END or not last.startswith(_LAST):
        raise _damaged(path, "it does not begin and end as a zip archive does")


def _check_members(path: Path, infos: list[zipfile.ZipInfo]) -> None:
    """Check the statements of an archive about its members, before any is unpacked."""
    size = path.stat().st_size
    names: set[str] = set()
    for member in infos:
        if member.filename in names:
            raise _damaged(path, f"{member.filename!r} is in the archive twice")
        names.add(member.filename)
        if member.filename != member.orig_filename:  # a zero byte, after which readers differ
            raise _damaged(path, f"{member.orig_filename!r} is no name of a member")
        if member.compress_type not in _METHODS or member.flag_bits & _ENCRYPTED:
            raise _damaged(path, f"{member.filename!r} is encrypted or compressed in a rare way")
        # memory is reserved for the packed bytes, too
        stored = member.compress_type == zipfile.ZIP_STORED
        if member.compress_size > size or (stored and member.file_size != member.compress_size):
            raise _damaged(path, f"{member.filename!r} does not have the bytes it states")
    check_bytes(f"{path.name}, unpacked,", sum(member.file_size for member in infos))
    if not infos or min(member.header_offset for member in infos) != 0:
        raise _damaged(path, "the archive does not begin where the file does")


def _damaged(path: Path, reason: str) -> ModelFileError:
    return ModelFileError(
        f"{path.name}: not a readable .npz network file ({reason})", name=path.name
    )
