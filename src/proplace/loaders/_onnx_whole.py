"""Whole models from ONNX files: the table goes in by the names of the graph's inputs."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

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
_TYPES = dict(zip((1, 11, 7, 6, 9, 8), _KINDS, strict=True))  # their numbers in a file


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
        schema, input_transform = front.flow.finish(front.columns)
        # What the reader found in front of the first layer acts behind the columns.
        own = trained.input_transform
        if own:
            raise ModelNotSupportedError(
                f"{path.name}: the graph rescales its columns once more in front of the first layer"
            )
        network = trained.with_input_transform(input_transform)
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
    model = reader.model
    part = without_zipmaps(needed(model, [value.name for value in model.graph.output]))
    session = _session(part, front)
    if session is None:
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

    probe = probe_table(schema, integers=front.flow.integers)
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


def _session(model: Any, front: Front) -> Any | None:
    """Return what runs a graph: onnxruntime, or the reference of onnx, which is slower; or None."""
    with contextlib.suppress(Exception):  # not installed, another version, mixed types of skl2onnx
        runtime = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        return runtime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    try:
        session = _Reference(model, front)
        session.run(None, _feeds(session, front, probe_table(front.flow.finish(front.columns)[0])))
    except Exception:
        return None
    return session


class _Input(NamedTuple):
    name: str
    type: str
    shape: list[int | None]


class _Reference:
    """The reference implementation of ONNX, called as onnxruntime is."""

    def __init__(self, model: Any, front: Front) -> None:
        reference = importlib.import_module("onnx.reference")
        for node in model.graph.node:
            names = [attribute.name for attribute in node.attribute]
            if node.op_type == "LinearClassifier" and "intercepts" not in names:
                classes = next(a for a in node.attribute if a.name.startswith("classlabels"))
                count = len(classes.ints) or len(classes.strings)
                node.attribute.append(front.onnx.helper.make_attribute("intercepts", [0.0] * count))
        self._run = reference.ReferenceEvaluator(model).run
        self._inputs = [
            _Input(
                value.name,
                _TYPES[value.type.tensor_type.elem_type],
                [dim.dim_value or None for dim in value.type.tensor_type.shape.dim],
            )
            for value in model.graph.input
            if value.name in front.inputs
        ]

    def get_inputs(self) -> list[_Input]:
        return self._inputs

    def run(self, names: list[str] | None, feeds: dict[str, Any]) -> list[Any]:
        with np.errstate(all="ignore"):
            results: list[Any] = self._run(names, feeds)
        return results


def without_zipmaps(model: Any) -> Any:
    """Return a copy whose outputs are arrays of probabilities, not a dictionary for each row.

    onnxruntime has no ZipMap of float64.
    """
    changed = type(model)()
    changed.CopyFrom(model)
    outputs = {value.name: value for value in changed.graph.output}
    for node in changed.graph.node:
        if node.op_type == "ZipMap" and node.domain == "ai.onnx.ml":
            node.op_type, node.domain = "Identity", ""
            node.ClearField("attribute")
            for name in node.output:
                if name in outputs:
                    outputs[name].ClearField("type")
    return changed


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
