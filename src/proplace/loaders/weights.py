"""Networks from bare torch weights: names and tensors without a model around them.

A file of weights does not say what happens between the layers. Where the user states it, it is read
as a chain of Linear layers with a ReLU between them and no activation that changes the class behind
the last one; models that are something else must be exported to ONNX instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from proplace import limits
from proplace.errors import ModelFileError, ModelNotSupported
from proplace.loaders._archive import Archive
from proplace.loaders._chain import Chain
from proplace.loaders._files import check_count, check_layers, count_of
from proplace.loaders._torch_pickle import NotPlainError, OtherTensor, Tensor, unpickled

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from proplace.network import Network, Precision

_HOW_TO_SAVE = (
    "save the weights with torch.save(model.state_dict(), 'model.pt'), or export the model to ONNX"
)
_STORAGES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": "<u2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
    "BoolStorage": "?",
    "ComplexFloatStorage": "<c8",
    "ComplexDoubleStorage": "<c16",
}
_RUNNING = ("running_mean", "running_var", "num_batches_tracked")


def read_torch_weights(path: Path) -> Network:
    """Read a state dict of Linear layers written by ``torch.save``.

    The layers come in the order of the state dict, which is the order in which the module
    registered them. A ReLU is assumed between them, and logits (or a sigmoid or softmax of them) at
    the end. Torch itself never sees the file, so its safety does not hang on the version of torch,
    and torch need not be installed: the pickle in it is read as data, and objects in it are
    refused, not built.
    """
    advice = (
        "not a torch file (truncated, or a plain pickle, which is never read: {why}); "
        + _HOW_TO_SAVE
    )
    with Archive(path, advice) as archive:
        prefix = _prefix(path, archive)
        content = _content(path, archive.read(f"{prefix}/data.pkl", limits.CONFIG_BYTES))
        tensors = _Tensors(path, archive, prefix)
        arrays = {str(key): tensors.array(str(key), value) for key, value in content.items()}
    return network_of(path, arrays, list(arrays), tensors.precisions)


def _prefix(path: Path, archive: Archive) -> str:
    """Return the one folder of the archive, if this is what torch writes and nothing else.

    A TorchScript archive is a program.
    """
    names = archive.names
    if any(name.endswith("/constants.pkl") or "/code/" in name for name in names):
        raise ModelFileError(f"{path.name}: this is a TorchScript program; {_HOW_TO_SAVE}")
    prefix = names[0].partition("/")[0]
    others = [name for name in names if not name.startswith(f"{prefix}/")]
    needed = {f"{prefix}/data.pkl", f"{prefix}/version"} - set(names)
    if others or needed:
        raise ModelFileError(
            f"{path.name}: not a readable torch file (its archive "
            f"{'lacks' if needed else 'also holds'} {min(needed or others)!r}); {_HOW_TO_SAVE}"
        )
    return prefix


def _content(path: Path, data: bytes) -> dict[str | int, Any]:
    try:
        content = unpickled(data)
    except NotPlainError as error:
        raise ModelFileError(
            f"{path.name}: the file holds more than weights ({error}; a whole pickled model?), and "
            f"pickled objects are never read; {_HOW_TO_SAVE}"
        ) from None
    if not isinstance(content, dict):
        raise ModelFileError(
            f"{path.name}: the file holds a {type(content).__name__}, not a state dict; "
            f"{_HOW_TO_SAVE}"
        )
    return content


class _Tensors:
    """The numbers of the tensors of one file."""

    def __init__(self, path: Path, archive: Archive, prefix: str) -> None:
        self._path = path
        self._archive = archive
        self._prefix = prefix
        order = f"{prefix}/byteorder"
        self._swapped = order in archive.names and archive.read(order, 16) == b"big"
        self._total = 0
        self.precisions: set[str] = set()  # of the tensors read so far

    def array(self, key: str, value: Any) -> npt.NDArray[Any]:
        where = f"{self._path.name}: tensor {key!r}"
        if isinstance(value, OtherTensor):
            raise ModelNotSupported(
                f"{where} is sparse, quantized, empty or of another rare kind; save plain weights"
            )
        if not isinstance(value, Tensor):
            raise ModelFileError(
                f"{self._path.name}: entry {key!r} is a {type(value).__name__}, not a tensor; if "
                "this is a checkpoint of a training run, take the weights out of it: "
                f"{_HOW_TO_SAVE}"
            )
        if value.storage.kind not in _STORAGES:
            raise ModelNotSupported(
                f"{where} is stored as {value.storage.kind}, which is not read; save plain weights"
            )
        self._total += count_of(where, value.size)
        check_count(self._path.name, self._total)
        array = self._view(where, value)
        if value.storage.kind == "BFloat16Storage":  # the upper half of a float32
            self.precisions.add("bfloat16")
            return (array.astype(np.uint32) << 16).view(np.float32)
        self.precisions.add(array.dtype.name)
        return array

    def _view(self, where: str, tensor: Tensor) -> npt.NDArray[Any]:
        storage = tensor.storage
        dtype = np.dtype(_STORAGES[storage.kind])
        member = f"{self._prefix}/data/{storage.key}"
        held = self._archive.size(member) if member in self._archive.names else -1
        if held != storage.count * dtype.itemsize:
            raise self._damaged(where, "does not have the bytes that it says")
        if len(tensor.size) != len(tensor.stride) or min((tensor.offset, *tensor.stride)) < 0:
            raise self._damaged(where, "has sizes and strides that do not fit")
        if 0 in tensor.size:
            return np.zeros(tensor.size, dtype)
        steps = zip(tensor.size, tensor.stride, strict=True)
        last = tensor.offset + sum((size - 1) * stride for size, stride in steps)
        if last >= storage.count:
            raise self._damaged(where, "reaches beyond its numbers")
        flat = np.frombuffer(self._archive.read(member), dtype)[tensor.offset :]
        # Where there is one number only no step is taken, however long it would be.
        steps = zip(tensor.size, tensor.stride, strict=True)
        strides = [stride * dtype.itemsize if size > 1 else 0 for size, stride in steps]
        # Inside of the bytes, as just checked; the copy is as large as was counted.
        array = np.lib.stride_tricks.as_strided(flat, tensor.size, strides).copy()
        return array.byteswap() if self._swapped else array

    def _damaged(self, where: str, why: str) -> ModelFileError:
        return ModelFileError(f"{where} {why}: a damaged file; {_HOW_TO_SAVE}")


def network_of(
    path: Path,
    tensors: Mapping[str, npt.NDArray[Any]],
    order: Sequence[str],
    precisions: Collection[str],
) -> Network:
    """Chain the Linear layers ``<name>.weight``, ``<name>.bias`` in the given order of keys.

    ``precisions`` are the types that the tensors are stored in, and so what the model computes in.
    """
    for key in order:
        _check_key(path, key, tensors)
    chain = Chain("Linear")
    weights = [key for key in order if _split(key)[1] == "weight"]
    check_layers(path.name, len(weights))
    for key in weights:
        bias = tensors.get(_join(_split(key)[0], "bias"))
        where = f"{path.name}: layer {key!r}"
        if chain.at_linear:
            chain.relu(where)
        chain.linear(where, _float64(tensors[key]), None if bias is None else _float64(bias))
    if not weights:
        raise ModelFileError(f"{path.name}: the file holds no weights; {_HOW_TO_SAVE}")
    return chain.network(_precision(path, precisions))


def _precision(path: Path, stored: Collection[str]) -> Precision:
    """Say what a model of such weights computes in; one float32 tensor is enough for float32."""
    kinds = set(stored)
    if kinds <= {"float32", "float64"}:
        return "float64" if kinds == {"float64"} else "float32"
    if kinds == {"float16"}:
        return "float16"
    if kinds == {"bfloat16"}:
        return "bfloat16"
    raise ModelNotSupported(
        f"{path.name}: the weights are stored as {', '.join(sorted(kinds))}, so that it is not known "
        "what the model computes in; save them in one type, such as torch.save("
        "model.float().state_dict(), 'model.pt') (every weight keeps its value), and use it so"
    )


def _check_key(path: Path, key: str, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    layer, part = _split(key)
    array, weight = tensors[key], tensors.get(_join(layer, "weight"))
    if part in _RUNNING:
        problem = (
            "belongs to a BatchNorm layer, and a file of weights does not say where that stands; give "
            "the module itself, or export it to ONNX after module.eval()"
        )
    elif part not in ("weight", "bias"):
        problem = "is neither a weight nor a bias of a Linear layer; export the model to ONNX"
    elif not np.issubdtype(array.dtype, np.floating):
        problem = f"has numbers of type {array.dtype}, not floats; save plain weights"
    elif part == "weight" and array.ndim != 2:
        problem = (
            f"has {array.ndim} dimensions, so it is no weight of a Linear layer (a normalization "
            "or a convolution?); batch norm is read from the module itself, or from its ONNX export "
            "after module.eval()"
        )
    elif weight is None:
        problem = "has no weight beside it; only Linear layers are read"
    elif part == "bias" and (weight.ndim != 2 or array.shape != weight.shape[:1]):
        problem = (
            f"has shape {array.shape}, which does not fit a weight of shape {weight.shape}; "
            "export the model to ONNX"
        )
    else:
        return
    raise ModelNotSupported(f"{path.name}: tensor {key!r} {problem}")


def _split(key: str) -> tuple[str, str]:
    """Split ``net.0.weight`` into ``net.0`` and ``weight``."""
    layer, _, part = key.rpartition(".")
    return layer, part


def _join(layer: str, part: str) -> str:
    return f"{layer}.{part}" if layer else part


def _float64(array: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # NaN is refused by the network, in words
        return array.astype(np.float64)
