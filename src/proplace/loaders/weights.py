"""Networks from bare torch weights: names and tensors without a model around them.

A file of weights does not say what happens between the layers. It is read as a chain of Linear
layers with a ReLU between them and no activation that changes the class behind the last one; models
that are something else must be exported to ONNX instead.
"""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.errors import ModelFileError, ModelNotSupported
from proplace.loaders._chain import Chain
from proplace.loaders._files import check_file
from proplace.optional import require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from proplace.network import Network

_HOW_TO_SAVE = (
    "save the weights with torch.save(model.state_dict(), 'model.pt'), or export the model to ONNX"
)
_RUNNING = ("running_mean", "running_var", "num_batches_tracked")


def read_torch_weights(path: Path) -> Network:
    """Read a state dict of Linear layers written by ``torch.save``.

    The layers come in the order of the state dict, which is the order in which the module
    registered them. A ReLU is assumed between them, and logits (or a sigmoid or softmax of them) at
    the end. The file is read with ``weights_only=True``: objects in it are refused, not built.
    """
    check_file(path)
    _check_archive(path)
    torch = require("torch", "torch", f"reading a {path.suffix} file")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if "Weights only load failed" in str(error):
            raise ModelFileError(
                f"{path.name}: the file holds more than weights (a whole pickled model?), and "
                f"pickled objects are never read; {_HOW_TO_SAVE}"
            ) from None
        raise ModelFileError(f"{path.name}: not a readable torch file ({error})") from None
    if not isinstance(content, dict):
        raise ModelFileError(
            f"{path.name}: the file holds a {type(content).__name__}, not a state dict; "
            f"{_HOW_TO_SAVE}"
        )
    tensors: dict[str, npt.NDArray[Any]] = {}
    for key, value in content.items():
        tensors[str(key)] = _tensor(torch, path, str(key), value)
    return network_of(path, tensors, list(tensors))


def _check_archive(path: Path) -> None:
    """Refuse everything but the zip archives that torch writes.

    The two older formats are pickles, and a TorchScript archive is a program.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        raise ModelFileError(
            f"{path.name}: not a torch file (truncated, or a plain pickle, which is never read); "
            f"{_HOW_TO_SAVE}"
        ) from None
    if any(name.endswith("constants.pkl") or "/code/" in name for name in names):
        raise ModelFileError(f"{path.name}: this is a TorchScript program; {_HOW_TO_SAVE}")


def _tensor(torch: Any, path: Path, key: str, value: Any) -> npt.NDArray[Any]:
    if not isinstance(value, torch.Tensor):
        raise ModelFileError(
            f"{path.name}: entry {key!r} is a {type(value).__name__}, not a tensor; if this is a "
            f"checkpoint of a training run, take the weights out of it: {_HOW_TO_SAVE}"
        )
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        raise ModelNotSupported(
            f"{path.name}: tensor {key!r} is sparse, quantized or empty; save plain weights"
        )
    value = value.detach()
    if value.is_floating_point() and value.dtype != torch.float64:
        value = value.float()  # numpy has no bfloat16
    array: npt.NDArray[Any] = value.numpy()
    return array


def network_of(
    path: Path, tensors: Mapping[str, npt.NDArray[Any]], order: Sequence[str]
) -> Network:
    """Chain the Linear layers ``<name>.weight``, ``<name>.bias`` in the given order of keys."""
    for key in order:
        _check_key(path, key, tensors)
    chain = Chain("Linear")
    weights = [key for key in order if _split(key)[1] == "weight"]
    for key in weights:
        bias = tensors.get(_join(_split(key)[0], "bias"))
        where = f"{path.name}: layer {key!r}"
        if chain.at_linear:
            chain.relu(where)
        chain.linear(where, _float64(tensors[key]), None if bias is None else _float64(bias))
    if not weights:
        raise ModelFileError(f"{path.name}: the file holds no weights; {_HOW_TO_SAVE}")
    double = all(tensors[key].dtype == np.float64 for key in weights)
    return chain.network("float64" if double else "float32")


def _check_key(path: Path, key: str, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    layer, part = _split(key)
    array, weight = tensors[key], tensors.get(_join(layer, "weight"))
    if part in _RUNNING:
        problem = (
            "belongs to a BatchNorm layer; fold it into the Linear layer before it after training"
        )
    elif part not in ("weight", "bias"):
        problem = "is neither a weight nor a bias of a Linear layer; export the model to ONNX"
    elif not np.issubdtype(array.dtype, np.floating):
        problem = f"has numbers of type {array.dtype}, not floats; save plain weights"
    elif part == "weight" and array.ndim != 2:
        problem = (
            f"has {array.ndim} dimensions, so it is no weight of a Linear layer (a normalization "
            "or a convolution?); export the model to ONNX, normalizations folded"
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
    return array.astype(np.float64)
