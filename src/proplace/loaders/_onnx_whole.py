"""Whole models from ONNX files: the table goes in by the names of the graph's inputs."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from proplace.core.errors import ModelNotSupportedError
from proplace.loaders._onnx_constants import Constants
from proplace.loaders._onnx_front import Front
from proplace.loaders._onnx_outputs import needed, run_in_batches
from proplace.loaders._verify import allowance, probe_table
from proplace.loaders._whole import Whole, whole_network
from proplace.loaders.onnx import Reader, open_graph, unreadable
from proplace.schema.cells import is_missing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt
    import pandas as pd

    from proplace.core.network import Network
    from proplace.schema import Schema

_Ask: TypeAlias = "Callable[[pd.DataFrame], Any] | None"

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
        except ModelNotSupportedError as refusal:
            return whole_network(_plain(onnx, model, path, refusal))
        reader = Reader(onnx, model, path, (front.start, len(front.columns)))
        trained = reader.network()
        schema, input_map = front.flow.finish(front.columns)
        # What the reader found in front of the first layer acts behind the columns.
        own = trained.input_map
        if own:
            raise ModelNotSupportedError(
                f"{path.name}: the graph rescales its columns once more in front of the first layer"
            )
        network = trained.behind(input_map)
        labels = tuple(reader.labels) or None
        predict, probabilities = _referee(path, front, network, schema, reader)
    columns = tuple(name for names in front.inputs.values() for name in names)
    named = len(front.inputs) > 1
    return Whole(network, schema, labels, predict, columns, named, probabilities)


def _plain(onnx: Any, model: Any, path: Path, refusal: ModelNotSupportedError) -> Network:
    """Read a chain of plain layers; what cannot be read in front of them was refused already."""
    reader = Reader(onnx, model, path)
    try:
        return reader.network()
    except ModelNotSupportedError:
        if reader.chain.at_input:
            raise refusal from None
        raise


def _referee(
    path: Path, front: Front, network: Network, schema: Schema, reader: Reader
) -> tuple[_Ask, _Ask]:
    """Return the graph's own predictions, compared once, and its probabilities.

    Both are None where the graph cannot be run here, the latter also where it has none.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        return None, None
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    model = reader.model
    part = needed(model, [value.name for value in model.graph.output])
    try:
        session = runtime.InferenceSession(
            part.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:  # such as a file of a newer version than the runtime: there is no referee
        return None, None

    names = [value.name for value in model.graph.output]

    def run(frame: pd.DataFrame) -> list[Any] | None:
        return run_in_batches(session, names, _feeds(session, front, frame), len(frame))

    def predict(frame: pd.DataFrame) -> Any:
        results = run(frame)
        return None if results is None else _classes(results, len(frame), network, reader)

    def probabilities(frame: pd.DataFrame) -> Any:
        results = run(frame)
        return None if results is None else _probabilities(results, len(frame), reader)

    probe = probe_table(schema)
    rows = schema.encode(probe)
    said = predict(probe)
    if said is None:  # a graph for far more rows at a time
        return None, None
    logits, error = network.logits(rows), allowance(network, rows, "float32")[:, 0]
    top = np.sort(logits, axis=1)
    clear = (np.abs(top[:, 0]) if network.outputs == 1 else top[:, -1] - top[:, -2]) > 4.0 * error
    ours = network.predict(rows)
    known = np.array(reader.labels or range(network.classes), dtype=object)
    if (np.asarray(said, dtype=object) != known[ours])[clear].any():
        raise ModelNotSupportedError(
            f"{path.name}: run by onnxruntime, the graph differs from what was read of it; export "
            "the model again, with plain layers"
        )
    return predict, None if probabilities(probe) is None else probabilities


def _probabilities(results: list[Any], count: int, reader: Reader) -> Any:
    """Read probabilities off the outputs of the graph; None where it has none."""
    found = (
        output.probabilities(value, count)
        for value, output in zip(results, reader.read, strict=True)
    )
    return next((P for P in found if P is not None), None)


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


def _classes(results: list[Any], n: int, network: Network, reader: Reader) -> Any:
    """Read classes off the outputs of the graph: labels where there are any, else numbers."""
    for value in results:
        if reader.labels and isinstance(value, np.ndarray) and value.size == n:
            found = value.reshape(-1)
            if found.dtype.kind != "f":
                return np.array(found.tolist(), dtype=object)
    for value, output in zip(results, reader.read, strict=True):
        array = np.asarray(value)
        if array.dtype.kind == "f":
            P = array.reshape(n, -1).astype(np.float64)
            one = P.shape[1] == 1
            numbers = (P[:, 0] >= output.threshold).astype(int) if one else P.argmax(axis=1)
            return np.array(reader.labels or range(network.classes), dtype=object)[numbers]
    found = np.asarray(results[0]).reshape(-1)
    return np.array(found.tolist(), dtype=object)
