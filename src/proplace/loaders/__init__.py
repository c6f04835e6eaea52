"""Readers of trained models: one file or one object of another framework in, a Network out.

Nothing is ever unpickled, and a model that is not a plain ReLU network is refused with the name of
the layer that makes it something else.

It may import ``core``, ``schema`` and ``certification``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from proplace.core.errors import ModelFileError, ModelNotSupported, NetworkError, OptionError
from proplace.loaders._files import check_file
from proplace.loaders._whole import Whole, whole_network

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proplace.core.network import Network

__all__ = ["check_activation", "is_bare", "load", "load_whole", "whole_of"]

# Where the reader of a suffix lives; imported only when such a file is read.
_READERS = {
    ".npz": ("proplace.loaders.npz", "read_npz"),
    ".onnx": ("proplace.loaders.onnx", "from_onnx"),
    ".keras": ("proplace.loaders.keras", "read_keras"),
    ".pt": ("proplace.loaders.weights", "read_torch_weights"),
    ".pth": ("proplace.loaders.weights", "read_torch_weights"),
    ".safetensors": ("proplace.loaders.safetensors", "read_safetensors"),
}

# Files of names and numbers: what lies between the layers is not in them.
_BARE = (".pt", ".pth", ".safetensors")

_PICKLE = (
    "reading a pickle runs whatever code is inside it, so pickles are never read; where the model "
    "was trained, export it to ONNX (skl2onnx.to_onnx(model, table[:1])) and give that file, or give "
    "the model itself in Python: Model.of(model)"
)
_HDF5 = (
    "old HDF5 models are not read; save the model again with model.save('model.keras') "
    "and load that file"
)
_REFUSED = {
    ".pkl": _PICKLE,
    ".pickle": _PICKLE,
    ".joblib": _PICKLE,
    ".h5": _HDF5,
    ".hdf5": _HDF5,
}


def load(path: Path, activation: str | None = None) -> Network:
    """Read a network by the suffix of its file.

    Parameters
    ----------
    path
        ``.npz`` (written by :meth:`Network.save`), ``.onnx``, ``.keras``, or torch weights
        (``.pt``, ``.pth``, ``.safetensors``).
    activation
        What lies between the layers, where the file does not say it: ``"relu"`` for weights.

    Raises
    ------
    ModelFileError
        The file is missing, damaged or of a kind that is not read.
    ModelNotSupported
        The file is fine but the model in it is not a plain ReLU network, or does not say that it is.
    """
    check_file(path)
    _check_stated(path, activation)
    suffix = path.suffix.lower()
    if suffix in _REFUSED:
        raise ModelFileError(f"{path.name}: {_REFUSED[suffix]}")
    if suffix not in _READERS:
        raise ModelFileError(
            f"{path.name}: files with suffix {suffix!r} are not read; save the model as one of "
            f"{', '.join(_READERS)}"
        )
    module, function = _READERS[suffix]
    reader = cast("Callable[[Path], Network]", getattr(importlib.import_module(module), function))
    try:
        network = reader(path)
    except NetworkError as error:
        # The layers came from the file, so a wrong layer is a wrong file.
        raise ModelFileError(f"{path.name}: {error}") from None
    if is_bare(path) and activation is None:
        raise ModelNotSupported(
            f"{path.name}: weights alone do not say what lies between the layers, and a model with "
            "another activation or a skip connection would be read as another network without a word; "
            "export the model to ONNX (torch.onnx.export(model, rows, 'model.onnx')) and give that "
            "file. If it is a chain of Linear layers with a ReLU between each two and nothing else, "
            'say so: Model.of(path, activation="relu"), or --assume relu-chain on the command line'
        )
    return network


def check_activation(activation: str | None, source: str, *, bare: bool) -> None:
    """Raise unless a stated activation is one that is read, of a source that does not say it."""
    if activation is None:
        return
    if activation != "relu":
        raise OptionError(
            f"activation must be 'relu', not {activation!r}: networks of ReLU layers alone are read"
        )
    if not bare:
        raise OptionError(
            f"{source} says itself what lies between its layers; leave activation='relu' "
            "(--assume relu-chain) out"
        )


def is_bare(path: Path) -> bool:
    """Whether a file holds weights alone, by its suffix."""
    return path.suffix.lower() in _BARE


def _check_stated(path: Path, activation: str | None) -> None:
    check_activation(activation, path.name, bare=is_bare(path))


def load_whole(path: Path, activation: str | None = None) -> Whole:
    """Read a model file from the table to the class."""
    check_file(path)
    _check_stated(path, activation)
    suffix = path.suffix.lower()
    try:
        if suffix == ".onnx":
            from proplace.loaders._onnx_whole import whole_onnx  # noqa: PLC0415

            return whole_onnx(path)
        if suffix == ".keras":
            from proplace.loaders._keras_whole import read_whole_keras  # noqa: PLC0415

            return read_whole_keras(path)
    except NetworkError as error:  # as above
        raise ModelFileError(f"{path.name}: {error}") from None
    return whole_network(load(path, activation))


def whole_of(source: object) -> Whole:
    """Read a model of another framework from the table to the class."""
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(source).__mro__}
    # With torch behind it, a Keras model is a torch module too.
    if any(kind.partition(".")[0] in ("keras", "tensorflow", "tf_keras") for kind in kinds):
        from proplace.loaders._keras_whole import whole_keras  # noqa: PLC0415  (it takes a while)

        return whole_keras(source)
    if any(kind.startswith("torch.nn.") for kind in kinds):
        from proplace.loaders.torch import whole_torch  # noqa: PLC0415  (frameworks on demand)

        return whole_torch(source)
    if any(kind.startswith("sklearn.") for kind in kinds):
        from proplace.loaders.sklearn import whole_sklearn  # noqa: PLC0415  (it takes a while)

        return whole_sklearn(source)
    raise ModelNotSupported(
        f"a {type(source).__name__} is not a model that is read; give a fitted scikit-learn "
        "classifier or pipeline, a torch module, a Keras model, a Network, or the path of a model "
        f"file ({', '.join(_READERS)})"
    )
