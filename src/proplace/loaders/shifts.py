"""Boxes of networks from ``.npz`` files, written by :meth:`proplace.Shifts.save`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proplace.core.errors import ModelFileError
from proplace.core.network import Network
from proplace.core.shifts import NPZ_FORMAT, Shifts
from proplace.core.transforms import InputTransform
from proplace.loaders.npz import Values, arrays_of

if TYPE_CHECKING:
    from pathlib import Path


def read_shifts(path: Path) -> Shifts:
    """Read a box written by :meth:`Shifts.save`, without pickle."""
    arrays = arrays_of(path, texts=("format", "about", "encoding", "precision"))
    if str(arrays.pop("format", None)) != NPZ_FORMAT:
        raise ModelFileError(
            f"{path.name}: not a shifts file of this package (format {NPZ_FORMAT!r}); a network alone "
            "is no box: Shifts.of(net, 0.02).save(...) makes one",
            name=path.name,
        )
    if not {"about", "encoding"} <= arrays.keys():
        raise ModelFileError(
            f"{path.name}: was written by another version of proplace (it does not say what the box is "
            "about, or for which encoding); make it again",
            name=path.name,
        )
    about, encoding = str(arrays.pop("about")), str(arrays.pop("encoding"))
    parts = {
        name: arrays.pop(name) for name in InputTransform.__dataclass_fields__ if name in arrays
    }
    ends = []
    for end in ("low", "high"):
        pairs: list[tuple[Values, Values | None]] = []
        while (W := arrays.pop(f"{end}_W{len(pairs)}", None)) is not None:
            pairs.append((W, arrays.pop(f"{end}_b{len(pairs)}", None)))
        if not pairs:
            raise ModelFileError(
                f"{path.name}: holds no {end} ends of a layer; save it again", name=path.name
            )
        ends.append(Network(pairs, **parts, precision="float64", folds=None))
    if arrays:
        unknown = ", ".join(map(ascii, sorted(arrays)))[:200]
        raise ModelFileError(f"{path.name}: holds arrays of no layer ({unknown})", name=path.name)
    return Shifts(*ends, description=about, encoding=encoding)
