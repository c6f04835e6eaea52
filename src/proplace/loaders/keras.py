"""Networks from Keras 3 models and ``.keras`` files."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from proplace.core.errors import (
    MissingExtraError,
    ModelFileError,
    ModelNotSupportedError,
    ProplaceError,
    require,
)
from proplace.loaders._keras_build import built
from proplace.loaders._keras_file import read_model
from proplace.loaders._keras_front import Reading
from proplace.loaders._keras_inputs import WHOLE
from proplace.loaders._keras_memory import described
from proplace.loaders._keras_run import Runner
from proplace.loaders._verify import probe_rows

if TYPE_CHECKING:
    from pathlib import Path

    from proplace.core.network import Network
    from proplace.loaders.trained_layer import TrainedLayer


def read_keras(path: Path) -> Network:
    """Read a model saved with ``model.save('model.keras')``.

    Keras is never asked to read the file. Its configuration and its weights are read as data, and
    the network is made of them. Then the model is built anew by this package, of the layers on its
    own list and of plain values: it and the network are run on random rows and must agree. Nothing
    else in the file (optimizer, loss, initializers, code of a Lambda layer) is built or run.
    """
    return _plain(file_runner(path))


def from_keras(model: object) -> Network:
    """Read a Keras 3 model of Dense layers whose rows are plain numbers.

    Parameters
    ----------
    model
        A Sequential model, or a functional one in which each layer feeds exactly the next. Dense
        layers must have the activation relu, the last one linear, sigmoid or softmax. Normalization,
        Rescaling and BatchNormalization layers in front become the network's input transform. Dropout
        and Flatten are skipped. A model with categories or several inputs is a whole model: see
        ``Model.of``.

        BatchNormalization behind a Dense layer is folded into that layer, one between a ReLU and a
        Dense layer into the latter. Its own weights and statistics count as fixed. Shifts (delta)
        still speak of the weights and biases of the Dense layers: see :mod:`proplace.core.transforms`.
        Margins speak of the folded ones. Nothing else touches a trained weight.

    Returns
    -------
    Network
        The model and the network are run on random rows and must agree. The precision is
        ``float64`` only if the model computes so, which takes more than float64 weights: Keras
        multiplies matrices in float32 on some of its backends all the same.
    """
    return _plain(model_runner(model))


def trained_keras(model: object) -> tuple[TrainedLayer, ...]:
    """Return the parameters of each layer: names of layers, the outermost first, then which it is."""
    return model_runner(model).reading.chain.trained


def model_runner(model: object) -> Runner:
    """Read a model in memory, and make it ready to run."""
    keras = _require_keras("reading a Keras model")
    if not isinstance(model, keras.Model):
        raise ModelNotSupportedError(
            f"from_keras takes a Keras 3 model, not {type(model).__name__}; models of the old "
            "tf.keras must be saved as .keras and loaded with keras 3"
        )
    reading = Reading(described(keras, model), keras.backend.epsilon())
    return Runner.of(keras, model, reading)


def file_runner(path: Path) -> Runner:
    """Read a model in a file, and build it anew, ready to run."""
    file = read_model(path)
    keras = _require_keras(f"reading the file {path.name}")
    try:
        reading = Reading(file, keras.backend.epsilon())
        model = built(keras, file)
    except ProplaceError:
        raise
    except Exception as error:
        raise ModelFileError(
            f"{path.name}: not a readable .keras file ({error}); save the model again with "
            "model.save('model.keras')"
        ) from None
    return Runner.of_built(keras, model, reading)


def _plain(runner: Runner) -> Network:
    """Return the network of a model that takes rows of numbers."""
    reading = runner.reading
    runner.check_precision()
    if len(reading.ports) != 1:
        raise ModelNotSupportedError(
            f"model {reading.file.name!r} has {len(reading.ports)} inputs and 1 outputs; a network "
            "takes rows of numbers, one input. Read the model whole with Model.of(model), or give "
            "the model itself where a network is asked for"
        )
    input_transform = reading.flow.numbers(reading.columns, reading.all_titles)
    if reading.ports[0].dtype in WHOLE:
        raise ModelNotSupportedError(
            f"model {reading.file.name!r} takes whole numbers ({reading.ports[0].dtype}), which rows "
            "of a network need not be; declare its input with dtype='float32', or read it whole with "
            "Model.of(model)"
        )
    network = reading.chain.network("float32").with_input_transform(input_transform)
    # A float64 model may still round its input to float32, so the rows are of that precision.
    rows = probe_rows(network).astype(np.float32).astype(np.float64)
    precision = runner.precision(network, rows, pd.DataFrame(rows, columns=reading.all_titles))
    return network.with_input_transform(input_transform, precision)


def _require_keras(purpose: str) -> Any:
    try:
        return require("keras", "keras", purpose)
    except MissingExtraError as error:
        missing = getattr(error.__cause__, "name", None) or "keras"
        if importlib.util.find_spec("keras") is None or missing.partition(".")[0] == "keras":
            raise
        # Keras is there but what it computes with is not.
        raise MissingExtraError.of(
            "torch",
            "torch",
            f"Keras is set to compute with {missing!r}, which is not installed; setting "
            "KERAS_BACKEND=torch in the environment",
        ) from error
