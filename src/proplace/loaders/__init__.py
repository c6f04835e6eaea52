"""Readers of trained models: one file or one object of another framework in, a model out.

Nothing is ever unpickled, and a model that is not a plain ReLU network is refused with the name of
the layer that makes it something else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proplace.core.errors import ModelFileError, ModelNotSupportedError, NetworkError

if TYPE_CHECKING:
    from pathlib import Path

    from proplace.loaders.verify import Whole

__all__ = ["check_suffix", "read_file", "read_object"]

_PICKLE = (
    "pickles are never read, because unpickling runs any code inside the file",
    "import joblib, proplace",
    "proplace.Model.of(joblib.load({name!r})).save({saved!r})",
)
_WEIGHTS = (
    "weights without an architecture are not read. Load the weights into their module",
    "module.load_state_dict({load}({name!r}))",
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


def check_suffix(path: Path) -> str:
    """Return the suffix of a file that is read, or raise with the two lines that convert it."""
    suffix = path.suffix.lower()
    if suffix in _REJECTED:
        reason, *lines = _REJECTED[suffix]
        load = "safetensors.torch.load_file" if suffix == ".safetensors" else "torch.load"
        words = {"name": path.name, "saved": path.with_suffix(".npz").name, "load": load}
        code = "".join(f"\n    {line.format(**words)}" for line in lines)
        raise ModelFileError(f"{path.name}: {reason}. Convert it once, if you trust it:{code}")
    if suffix not in (".npz", ".onnx"):
        raise ModelFileError(
            f"{path.name}: files with suffix {suffix!r} are not read; save the model as one of "
            ".npz, .onnx"
        )
    return suffix


def read_file(path: Path) -> Whole:
    """Read an ``.onnx`` file.

    Raises
    ------
    ModelFileError
        The file is missing, damaged or of a kind that is not read.
    ModelNotSupportedError
        The file is fine but the model in it is not a plain ReLU network.
    """
    from proplace.loaders.onnx import from_onnx  # noqa: PLC0415  (frameworks on demand)

    try:
        return from_onnx(path)
    except NetworkError as error:
        # The layers came from the file, so a wrong layer is a wrong file.
        raise ModelFileError(f"{path.name}: {error}", name=path.name) from None


def read_object(source: object) -> Whole:
    """Read a model of another framework from the table to the class."""
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(source).__mro__}
    # With torch behind it, a Keras model is a torch module too.
    if any(kind.partition(".")[0] in ("keras", "tensorflow", "tf_keras") for kind in kinds):
        from proplace.loaders.keras import from_keras  # noqa: PLC0415

        return from_keras(source)
    if any(kind.startswith("torch.nn.") for kind in kinds):
        from proplace.loaders.torch import from_torch  # noqa: PLC0415

        return from_torch(source)
    if any(kind.startswith("sklearn.") for kind in kinds):
        from proplace.loaders.sklearn import from_sklearn  # noqa: PLC0415

        return from_sklearn(source)
    raise ModelNotSupportedError(
        f"a {type(source).__name__} is not a model that is read; give a fitted scikit-learn "
        "classifier or pipeline, a torch module, a Keras model, a Network, or the path of a model "
        "file (.npz, .onnx)"
    )
