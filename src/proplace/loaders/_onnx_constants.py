"""Constants of an ONNX graph: initializers, Constant nodes, and simple functions of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from proplace.errors import ModelFileError, ModelNotSupported

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Values = npt.NDArray[Any]

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Neg": np.negative,
    "Sqrt": np.sqrt,
    "Max": np.maximum,
}


class Constants:
    """The constants of a graph, evaluated when asked for."""

    def __init__(self, onnx: Any, graph: Any, path: Path) -> None:
        self._onnx = onnx
        self._path = path
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._nodes = {name: node for node in graph.node for name in node.output if name}
        self._known: dict[str, Values | None] = {}

    def get(self, name: str) -> Values | None:
        """Value of a tensor, or None if it depends on the input of the graph."""
        if name not in self._known:
            self._known[name] = None  # a cycle, which no valid graph has, ends here
            self._known[name] = self._evaluate(name)
        return self._known[name]

    def _evaluate(self, name: str) -> Values | None:
        if name in self._tensors:
            return self._array(self._tensors[name])
        node = self._nodes.get(name)
        if node is None or node.domain not in ("", "ai.onnx"):
            return None
        attributes = attributes_of(self._onnx, node)
        if node.op_type == "Constant":
            return self._constant(node, attributes)
        values = [value for name in node.input if (value := self.get(name)) is not None]
        if not values or len(values) != len(node.input):
            return None
        return _folded(self._onnx, node.op_type, attributes, values)

    def _constant(self, node: Any, attributes: dict[str, Any]) -> Values:
        (key, value) = next(iter(attributes.items()), ("", None))
        if key == "value":
            return self._array(value)
        if key in ("value_float", "value_floats"):
            return np.asarray(value, dtype=np.float32)
        if key in ("value_int", "value_ints"):
            return np.asarray(value, dtype=np.int64)
        raise ModelNotSupported(
            f"node {node.name!r} (Constant) holds {key!r}; only numbers are read"
        )

    def _array(self, tensor: Any) -> Values:
        onnx = self._onnx
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            self._load_external(tensor)
        try:
            array: Values = onnx.numpy_helper.to_array(tensor)
        except Exception as error:
            raise ModelFileError(
                f"{self._path.name}: tensor {tensor.name!r} is damaged ({error}); export the model "
                "again"
            ) from None
        # bfloat16 and the like are types that numpy knows only by extension
        return array if array.dtype.kind in "fiub" else array.astype(np.float32)

    def _load_external(self, tensor: Any) -> None:
        """Read numbers from a file beside the model, and from nowhere else."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        folder = self._path.parent.resolve()
        location = entries.get("location", "")
        file = (folder / location).resolve()
        where = f"{self._path.name}: tensor {tensor.name!r}"
        if not location or not file.is_relative_to(folder):
            raise ModelFileError(
                f"{where} points to {location!r}, outside of the model's folder; such files are "
                "not read"
            )
        if not file.is_file():
            raise ModelFileError(
                f"{where} is stored in {location!r}, which is missing; keep that file beside the "
                "model"
            )
        size = file.stat().st_size
        start = int(entries.get("offset", 0))
        length = int(entries.get("length", size - start))
        if start < 0 or length < 0 or start + length > size:
            raise ModelFileError(
                f"{where} needs bytes {start} to {start + length} of {location!r}, which has "
                f"{size}; the file is truncated, export the model again"
            )
        with file.open("rb") as stream:
            stream.seek(start)
            tensor.raw_data = stream.read(length)
        tensor.data_location = self._onnx.TensorProto.DEFAULT


def attributes_of(onnx: Any, node: Any) -> dict[str, Any]:
    """Attributes of a node as Python values."""
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def _folded(onnx: Any, op: str, attributes: dict[str, Any], values: list[Values]) -> Values | None:
    """Apply an operator to constants; None if it is not one of the simple ones."""
    first = values[0]
    result: Values | None = None
    if op in _ARITHMETIC:
        result = np.asarray(_ARITHMETIC[op](*values))
    elif op == "Identity":
        result = first
    elif op == "Transpose":
        result = np.transpose(first, attributes.get("perm"))
    elif op == "Cast":
        result = first.astype(onnx.helper.tensor_dtype_to_np_dtype(attributes["to"]))
    elif op == "Reshape":
        sizes = [int(size) for size in values[1].ravel()]
        # A size of 0 keeps that of the input.
        result = first.reshape([first.shape[i] if n == 0 else n for i, n in enumerate(sizes)])
    elif op == "Unsqueeze":
        result = np.expand_dims(first, _axes(attributes, values) or ())
    elif op == "Squeeze":
        result = np.squeeze(first, _axes(attributes, values))
    return result


def _axes(attributes: dict[str, Any], values: list[Values]) -> tuple[int, ...] | None:
    # An attribute up to opset 12, an input from 13 on.
    axes = values[1] if len(values) > 1 else attributes.get("axes")
    return None if axes is None else tuple(int(axis) for axis in np.ravel(axes))
