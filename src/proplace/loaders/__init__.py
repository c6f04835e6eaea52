"""Readers of trained models: one file or one object of another framework in, a model out.

Nothing is ever unpickled. A model that is not a plain ReLU network is rejected by the name of its first
other layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proplace.core.errors import ModelFileError, ModelNotSupportedError, NetworkError

if TYPE_CHECKING:
    from pathlib import Path

    from proplace.loaders.model import Model

__all__ = ["read_file", "read_object"]


def read_file(path: Path) -> Model:
    """Read an ``.onnx`` file.

    Raises
    ------
    ModelFileError
        The file is damaged.
    ModelNotSupportedError
        The model in the file is not a plain ReLU network.
    """
    from proplace.loaders.onnx import from_onnx  # noqa: PLC0415  (frameworks on demand)

    try:
        return from_onnx(path)
    except NetworkError as error:
        # The layers come from the file, so a wrong layer is a wrong file.
        raise ModelFileError(f"{path.name}: {error}", name=path.name) from None


def read_object(source: object) -> Model:
    """Read a model of another framework."""
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(source).__mro__}
    # With torch as its backend, a Keras model is a torch module too.
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
        f"a {type(source).__name__} is not a model that is read. Give a fitted scikit-learn "
        "classifier or pipeline, a torch module with its weights (module.load_state_dict), a Keras "
        "model, a Network, or the path of a model file (.npz, .onnx)"
    )
