"""Whole Keras models: the table goes in by the names of the model's inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.errors import ModelNotSupportedError, SchemaError
from proplace.core.transforms import InputTransform
from proplace.loaders._keras_inputs import WHOLE
from proplace.loaders._verify import probabilities_of, probe_table
from proplace.loaders._whole import Whole
from proplace.loaders.keras import file_runner, model_runner
from proplace.schema import Continuous

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from proplace.core.network import Array, Network
    from proplace.loaders._keras_front import Reading
    from proplace.loaders._keras_run import Runner
    from proplace.schema import Schema


def whole_keras(model: object) -> Whole:
    """Read a Keras model together with all that it does to the table.

    See :func:`proplace.loaders.keras.from_keras` for the layers. An input of one column is called by
    its name, several columns of an input ``name_0``, ``name_1``, ...; the columns of a single input
    are x0, x1, ... until a schema names them.

    Categories come from StringLookup and IntegerLookup (their vocabulary; an unknown word is not a
    legal value), or are the whole numbers that a CategoryEncoding or Embedding takes. The weights of
    an Embedding are a fixed linear map of the 0/1 columns of its category: shifts (delta) never touch
    them.

    Keras itself is the referee: the model is run on made-up rows and must agree, and again on every
    table later. Where Keras cannot look up words (it does so with TensorFlow alone), they are looked
    up here, and all layers behind them are run by Keras.
    """
    return _whole(model_runner(model))


def read_whole_keras(path: Path) -> Whole:
    """Read a ``.keras`` file in the same way; see :func:`proplace.loaders.keras.read_keras`."""
    return _whole(file_runner(path))


def _whole(runner: Runner) -> Whole:
    reading = runner.reading
    runner.check_precision()
    try:
        schema, input_transform = reading.flow.finish(reading.columns)
    except SchemaError as error:
        raise ModelNotSupportedError(
            f"the inputs of model {reading.file.name!r} are no columns of a table: {error}"
        ) from None
    network = reading.chain.network("float32").with_input_transform(input_transform)
    table = _probe(reading, schema)
    raw, rows = _unscaled(network, schema, table)
    precision = runner.precision(raw, rows, table)
    network = network.with_input_transform(input_transform, precision)

    def run(frame: pd.DataFrame) -> Array:
        return runner.outputs(frame).reshape(len(frame), network.outputs)

    def predict(frame: pd.DataFrame) -> Any:
        outputs = run(frame)
        if network.outputs > 1:
            return np.asarray(outputs.argmax(axis=1), dtype=np.int64)
        threshold = 0.5 if reading.chain.activation == "sigmoid" else 0.0
        return (outputs[:, 0] >= threshold).astype(np.int64)

    return Whole(
        network,
        schema,
        None,
        predict,
        columns=tuple(reading.all_titles),
        has_column_names=reading.has_column_names,
        probabilities=lambda frame: probabilities_of(
            run(frame), reading.chain.activation or "logits"
        ),
    )


def _probe(reading: Reading, schema: Schema) -> pd.DataFrame:
    """Make up a table of values that every input takes as they are."""
    most = max((len(getattr(f, "labels", ())) for f in schema.features), default=0)
    table = probe_table(schema, max(64, 2 * most))
    for port, titles in zip(reading.ports, reading.titles, strict=True):
        for title in titles:
            if not isinstance(schema.by_name.get(title), Continuous):
                continue
            if port.dtype in WHOLE:
                bounds = np.iinfo(port.dtype)
                table[title] = table[title].round().clip(bounds.min / 2, bounds.max / 2).round()
            else:
                table[title] = table[title].astype(np.float32).astype(np.float64)
    return table


def _unscaled(network: Network, schema: Schema, table: pd.DataFrame) -> tuple[Network, Array]:
    """Return the network that takes the numbers of the table as they are, and its rows.

    Keras scales the table's numbers in its own precision, so its rounding is that of this network.
    """
    pairs = [
        (f.offset, f.scale) if isinstance(f, Continuous) else (0.0, 1.0)
        for f, span in zip(schema.features, schema.spans, strict=True)
        for _ in range(span.start, span.stop)
    ]
    offset, scale = np.array(pairs).T
    own = network.input_transform
    s = 1.0 if own.scale is None else own.scale
    t = 0.0 if own.shift is None else own.shift
    parts = {**own.parts, "scale": s / scale, "shift": t - s * offset / scale}
    raw = network.with_input_transform(InputTransform(**parts), "float64")
    return raw, offset + scale * schema.encode(table)
