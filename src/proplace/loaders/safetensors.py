"""Networks from ``.safetensors`` files.

The format: eight bytes with the length of a JSON header, the header (name, type, shape and place of
each tensor), and the raw numbers.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace import limits
from proplace.errors import ModelFileError
from proplace.loaders._files import check_bytes, check_count, check_layers, count_of, read_bytes
from proplace.loaders.weights import network_of

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from proplace.network import Network

    Tensors = dict[str, npt.NDArray[Any]]

# BF16 is the upper half of a float32: read as integers, then widened.
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_PRECISIONS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_UNNUMBERED = 64  # layers whose order is looked for in their shapes


def read_safetensors(path: Path) -> Network:
    """Read the weights of Linear layers from a ``.safetensors`` file.

    As for ``.pt`` files, a ReLU is assumed between the layers. The format does not keep the order
    of the layers, so it is taken from the numbers in their names (``0.weight``, ``2.weight``) or,
    for other names, from the shapes if only one order fits.
    """
    tensors, precisions = _tensors(path, read_bytes(path))
    return network_of(path, tensors, _ordered(path, tensors), precisions)


def _tensors(path: Path, data: bytes) -> tuple[Tensors, set[str]]:
    """Return the numbers of each tensor, and the types they are stored in."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise _damaged(path, "it is shorter than its header says")
    check_bytes(f"{path.name}: its header", length, limits.CONFIG_BYTES)
    try:
        header = json.loads(data[8 : 8 + length], object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is not valid JSON: {error}") from None
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not a JSON object")
    header.pop("__metadata__", None)
    body = memoryview(data)[8 + length :]
    tensors: Tensors = {}
    spans = []
    total = 0
    for name, entry in header.items():
        start, end, tensor = _tensor(path, name, entry, body)
        total += tensor.size
        check_count(path.name, total)
        spans.append((start, end))
        tensors[name] = tensor
    expected = 0
    for start, end in sorted(spans):
        if start != expected:
            raise _damaged(path, "its tensors overlap or leave a gap")
        expected = end
    if expected != len(body):
        raise _damaged(path, f"{len(body) - expected} bytes at its end belong to no tensor")
    return tensors, {_PRECISIONS[entry["dtype"]] for entry in header.values()}


def _tensor(
    path: Path, name: str, entry: Any, body: memoryview
) -> tuple[int, int, npt.NDArray[Any]]:
    try:
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        sizes = (*shape, start, end)
    except (TypeError, KeyError, ValueError):
        raise _damaged(path, f"the header entry of {name!r} is incomplete") from None
    if not isinstance(dtype, str) or dtype not in _TYPES:
        raise ModelFileError(
            f"{path.name}: tensor {name!r} has type {dtype!r}; only {', '.join(_TYPES)} are read"
        )
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise _damaged(path, f"shape or place of {name!r} are not whole numbers >= 0")
    kind = np.dtype(_TYPES[dtype])
    if not start <= end <= len(body):
        raise _damaged(path, f"tensor {name!r} lies outside of the file")
    if end - start != count_of(f"{path.name}: tensor {name!r}", shape) * kind.itemsize:
        raise _damaged(path, f"tensor {name!r} has {end - start} bytes, not those of {shape}")
    array: npt.NDArray[Any] = np.frombuffer(body[start:end], dtype=kind)
    if dtype == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return start, end, array.reshape(shape)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def _damaged(path: Path, why: str) -> ModelFileError:
    return ModelFileError(f"{path.name}: damaged .safetensors file; {why}. Save the weights again")


def _ordered(path: Path, tensors: Tensors) -> list[str]:
    """Return the keys in the order of the layers."""
    weights = [key for key in tensors if key.rpartition(".")[2] == "weight"]
    check_layers(path.name, len(weights))
    others = [key for key in tensors if key.rpartition(".")[2] != "weight"]
    if len({re.sub(r"[0-9]+", "#", key) for key in weights}) <= 1:
        return sorted(weights, key=_numbers_in) + others
    shapes = [tensors[key].shape for key in weights]
    if any(len(shape) != 2 for shape in shapes):
        return weights + others  # refused by name later
    orders = _chains(shapes)
    if len(orders) != 1:
        raise ModelFileError(
            f"{path.name}: the order of the layers {', '.join(map(repr, weights))} does not follow "
            "from their names or shapes, and .safetensors files do not keep it; number the layers "
            "(as nn.Sequential does), or save a .pt file or ONNX"
        )
    return [weights[i] for i in orders[0]] + others


def _numbers_in(key: str) -> list[tuple[int, str]]:
    """Return what sorts a name by its numbers, of however many digits."""
    digits = [number.lstrip("0") for number in re.findall(r"[0-9]+", key)]
    return [(len(number), number) for number in digits]


def _chains(shapes: list[tuple[int, ...]]) -> list[list[int]]:
    """Orders in which the layers chain up: at most two of them, none if the search is too long."""
    if len(shapes) > _UNNUMBERED:
        return []
    found: list[list[int]] = []
    stack = [[i] for i in range(len(shapes))]
    for _ in range(10_000):
        if not stack or len(found) == 2:
            return found
        chain = stack.pop()
        if len(chain) == len(shapes):
            found.append(chain)
        used, out = set(chain), shapes[chain[-1]][0]
        stack += [
            [*chain, i] for i, shape in enumerate(shapes) if i not in used and shape[1] == out
        ]
    return []
