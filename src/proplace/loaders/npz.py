"""Networks and models from ``.npz`` files, which ``save`` of either writes.

The header of each array (type and shape) is checked against the bytes of the file.
"""

from __future__ import annotations

import io
import math
import warnings
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from proplace.core.errors import ModelFileError, NetworkError
from proplace.core.network import NPZ_FORMAT, Network
from proplace.core.transforms import Fold, InputTransform
from proplace.loaders import check_suffix
from proplace.loaders.files import Archive, check_file

if TYPE_CHECKING:
    from pathlib import Path

    from proplace.core.network import Precision

Values = npt.NDArray[Any]

_TEXTS = ("format", "precision", "model")
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npz(path: Path) -> Network:
    """Read the network of a file, without pickle."""
    check_file(path)
    if check_suffix(path) != ".npz":
        raise ModelFileError(
            f"{path.name}: Network.load reads .npz files; read the model with Model.of({path.name!r}), "
            "whose .network holds its layers",
            name=path.name,
        )
    return read_parts(path)[0]


def read_parts(path: Path) -> tuple[Network, str]:
    """Read the network of a file and the description of the model around it; empty without one."""
    try:
        return _parts(path)
    except NetworkError as error:
        # The layers came from the file, so a wrong layer is a wrong file.
        raise ModelFileError(f"{path.name}: {error}", name=path.name) from None


def _parts(path: Path) -> tuple[Network, str]:
    arrays = arrays_of(path)
    if str(arrays.get("format")) != NPZ_FORMAT:
        raise ModelFileError(
            f"{path.name}: not a network file of this package (format {NPZ_FORMAT!r})",
            name=path.name,
        )
    pairs: list[tuple[Values, Values | None]] = []
    while (key := f"W{len(pairs)}") in arrays:
        pairs.append((arrays[key], arrays.get(f"b{len(pairs)}")))
    folds = _folds(path, arrays, len(pairs))
    known = {f"{kind}{i}" for i in range(len(pairs)) for kind in "Wb"}
    parts = {name: arrays[name] for name in InputTransform.__dataclass_fields__ if name in arrays}
    if unknown := arrays.keys() - known - parts.keys() - {*_TEXTS}:
        raise ModelFileError(
            f"{path.name}: holds arrays of no layer ({', '.join(map(ascii, sorted(unknown)))[:200]})",
            name=path.name,
        )
    precision = cast("Precision", str(arrays.get("precision", "float64")))
    network = Network(pairs, **parts, precision=precision, folds=folds)
    return network, str(arrays.get("model", ""))


def _folds(path: Path, arrays: dict[str, Values], layers: int) -> list[Fold | None]:
    """Take what was folded into the layers out of the arrays of a file."""
    folds: list[Fold | None] = []
    for i in range(layers):
        names = {f"fold_{name}{i}": name for name in Fold.__dataclass_fields__}
        found = {name: arrays.pop(key) for key, name in names.items() if key in arrays}
        if found and len(found) < len(names):
            raise ModelFileError(
                f"{path.name}: holds a part of what was folded into layer {i + 1} "
                f"({', '.join(found)}); save the network again",
                name=path.name,
            )
        folds.append(Fold(**found) if found else None)
    return folds


def arrays_of(path: Path, texts: tuple[str, ...] = _TEXTS) -> dict[str, Values]:
    """The arrays of a file by name; those called ``texts`` must hold text, the others numbers."""
    arrays: dict[str, Values] = {}
    with Archive(path, "not a readable .npz network file ({why})") as archive:
        for name in archive.names:
            key = name.removesuffix(".npy")
            if key in arrays:  # with the suffix and without it
                raise archive.damaged(f"{key!r} is in the archive twice")
            array = _array(path, key, archive.read(name), text=key in texts)
            arrays[key] = array
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
            f"{where} is damaged ({error}); save the network again", name=path.name
        ) from None
    # numpy lets True pass for 1
    if len(shape) > 2 or not all(type(size) is int and size > 0 for size in shape):
        raise ModelFileError(
            f"{where} has a shape that no layer has; save the network again", name=path.name
        )
    kinds = "U" if text else "fiu"
    if dtype.kind not in kinds or (dtype.kind == "U" and shape):
        what = "one piece of text" if text else "real numbers"
        raise ModelFileError(f"{where} has type {dtype}; it must hold {what}", name=path.name)
    start = stream.tell()
    if len(data) - start != math.prod(shape) * dtype.itemsize:
        raise ModelFileError(
            f"{where} has {len(data) - start} bytes, not those of shape {shape}; save the network "
            "again",
            name=path.name,
        )
    order: Literal["F", "C"] = "F" if fortran else "C"
    return np.ndarray(shape, dtype, buffer=data, offset=start, order=order)
