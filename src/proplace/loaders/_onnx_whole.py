"""Whole models from ONNX files: the table goes in by the names of the graph's inputs."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.errors import ModelNotSupported
from proplace.loaders._onnx_constants import Constants
from proplace.loaders._onnx_front import Front
from proplace.loaders._onnx_outputs import needed
from proplace.loaders._verify import allowance, probe_table
from proplace.loaders._whole import Whole, whole_network
from proplace.loaders.onnx import Reader, from_onnx, open_graph, unreadable
from proplace.network import Network
from proplace.schema._cells import is_missing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt
    import pandas as pd

    from proplace.network import Array
    from proplace.schema import Schema

_KINDS = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
}


def whole_onnx(path: Path) -> Whole:
    """Read an ONNX file with all that its graph does to the table.

    Where onnxruntime is installed, it runs the graph on made-up rows and must agree, and it is the
    referee of every answer later.
    """
    onnx, model = open_graph(path)
    with unreadable(path):
        try:
            front = Front(onnx, model, path, Constants(onnx, model, path))
        except ModelNotSupported:
            if len(model.graph.input) != 1:
                raise
            return whole_network(from_onnx(path))  # a chain of plain layers, or its own refusal
        reader = Reader(onnx, model, path, (front.start, len(front.columns)))
        trained = reader.network()
        schema, input_map = front.flow.finish(front.columns)
        # What the reader found in front of the first layer acts behind the columns.
        own = trained.input_map
        if own:
            raise ModelNotSupported(
                f"{path.name}: the graph rescales its columns once more in front of the first layer"
            )
        layers = [(layer.W, layer.b) for layer in trained.layers]
        network = Network(layers, **input_map.parts, precision=trained.precision)
        labels = tuple(reader.labels) or None
        predict = _referee(path, model, front, network, schema, labels)
    columns = tuple(name for names in front.inputs.values() for name in names)
    return Whole(network, schema, labels, predict, columns, named=len(front.inputs) > 1)


def _referee(
    path: Path,
    model: Any,
    front: Front,
    network: Network,
    schema: Schema,
    labels: tuple[Any, ...] | None,
) -> Callable[[pd.DataFrame], Any] | None:
    """Return the graph's own predictions, compared once; None where it cannot be run here."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    part = needed(model, [value.name for value in model.graph.output])
    try:
        session = runtime.InferenceSession(
            part.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:  # such as a file of a newer version than the runtime: there is no referee
        return None

    def predict(frame: pd.DataFrame) -> Any:
        results = session.run(None, _feeds(session, front, frame))
        return _classes(results, len(frame), network, labels)

    probe = probe_table(schema)
    rows = schema.encode(probe)
    logits, error = network.logits(rows), allowance(network, rows, "float32")[:, 0]
    top = np.sort(logits, axis=1)
    clear = (np.abs(top[:, 0]) if network.outputs == 1 else top[:, -1] - top[:, -2]) > 4.0 * error
    ours = network.predict(rows)
    known = np.array(range(network.classes) if labels is None else labels, dtype=object)
    if (np.asarray(predict(probe), dtype=object) != known[ours])[clear].any():
        raise ModelNotSupported(
            f"{path.name}: run by onnxruntime, the graph differs from what was read of it; export "
            "the model again, with plain layers"
        )
    return predict


def _feeds(session: Any, front: Front, frame: pd.DataFrame) -> dict[str, Any]:
    """Return a table as the graph takes it; what it never looks at may be left out."""
    used = set(front.flow.used(front.columns))
    feeds = {}
    for entry in session.get_inputs():
        columns = [
            [front.flow.anything(name)] * len(frame)
            if name not in frame and name not in used
            else [np.nan if is_missing(cell) else cell for cell in frame[name].tolist()]
            for name in front.inputs[entry.name]
        ]
        kind = _KINDS[entry.type]
        cells = np.array(columns, dtype=object).T
        if kind is np.object_:
            cells = np.array([[str(cell) for cell in row] for row in cells], dtype=object)
        array: npt.NDArray[Any] = cells.astype(kind)
        feeds[entry.name] = array.reshape(-1) if len(entry.shape) == 1 else array
    return feeds


def _classes(results: list[Any], n: int, network: Network, labels: tuple[Any, ...] | None) -> Any:
    """Read classes off the outputs of the graph: labels where there are any, else numbers."""
    for value in results:
        if labels is not None and isinstance(value, np.ndarray) and value.size == n:
            found = value.reshape(-1)
            if found.dtype.kind != "f":
                return np.array(found.tolist(), dtype=object)
    for value in results:
        if isinstance(value, list):  # of dictionaries: a ZipMap
            value = np.array([[row[key] for key in sorted(row)] for row in value])  # noqa: PLW2901
        array = np.asarray(value)
        if array.dtype.kind == "f":
            numbers = _numbers(array.reshape(n, -1).astype(np.float64), network)
            return np.array(range(network.classes) if labels is None else labels, dtype=object)[
                numbers
            ]
    found = np.asarray(results[0]).reshape(-1)
    return np.array(found.tolist(), dtype=object)


def _numbers(P: Array, network: Network) -> Any:
    """Class numbers of probabilities or scores."""
    if P.shape[1] > 1:
        return P.argmax(axis=1)
    # One column: a probability where all values lie between 0 and 1, else a logit.
    threshold = 0.5 if network.outputs == 1 and ((P >= 0.0) & (P <= 1.0)).all() else 0.0
    return (P[:, 0] >= threshold).astype(np.int64)
