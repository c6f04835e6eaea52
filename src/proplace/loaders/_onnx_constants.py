"""Values in an ONNX graph that can be told without running it on rows.

These are initializers, Constant nodes and functions of them; with shapes given, what the graph
computes from shapes; with the values of one tensor given, what it computes from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from proplace.core import limits
from proplace.core.errors import ModelFileError, ModelNotSupportedError
from proplace.loaders._files import check_bytes
from proplace.loaders._onnx_ops import Call, UnknownError, apply

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from proplace.core.network import Array

Values = npt.NDArray[Any]


class Constants:
    """Values of tensors, worked out when asked for.

    Parameters
    ----------
    onnx, model, path
        The package, the model and the file it was read from.
    given
        Values of tensors that are taken as known.
    shapes
        Shapes that Shape nodes see, by tensor; ``""`` stands for every tensor without an entry.
    """

    def __init__(
        self,
        onnx: Any,
        model: Any,
        path: Path,
        given: Mapping[str, Any] | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self._onnx = onnx
        self._path = path
        self._shapes = dict(shapes or {})
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._nodes = {name: node for node in model.graph.node for name in node.output if name}
        self._opset = max(
            (entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")),
            default=1,
        )
        self._known: dict[str, Any] = dict(given or {})

    def get(self, name: str) -> Any | None:
        """Value of a tensor, or None if it depends on something that is not known."""
        if name not in self._known:
            self._known[name] = None  # a cycle, which no valid graph has, ends here
            self._evaluate(name)
        return self._known[name]

    def _evaluate(self, name: str) -> None:
        if name in self._tensors:
            self._known[name] = self._array(self._tensors[name])
            return
        node = self._nodes.get(name)
        if node is None:
            return
        attributes = attributes_of(self._onnx, node)
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            self._known[name] = self._constant(node, attributes)
        elif node.op_type == "Shape" and node.domain in ("", "ai.onnx"):
            self._known[name] = self._shape(node, attributes)
        else:
            self._apply(node, attributes)

    def _apply(self, node: Any, attributes: dict[str, Any]) -> None:
        inputs = [self.get(name) if name else None for name in node.input]
        if not inputs or any(
            value is None for name, value in zip(node.input, inputs, strict=True) if name
        ):
            return
        if node.op_type == "Cast":
            check_cast(
                self._onnx, f"{self._path.name}: node {node.name!r} (Cast)", attributes.get("to")
            )
        try:
            results = apply(node.op_type, node.domain, Call(attributes, inputs, self._opset))
        except UnknownError:
            return
        for name, value in zip(node.output, results, strict=False):
            if name:
                self._known[name] = value

    def _shape(self, node: Any, attributes: dict[str, Any]) -> Values | None:
        shape = self._shapes.get(node.input[0], self._shapes.get(""))
        if shape is None and isinstance(value := self.get(node.input[0]), np.ndarray):
            shape = value.shape
        if shape is None:
            return None
        part = shape[attributes.get("start", 0) : attributes.get("end", len(shape))]
        return np.asarray(part, dtype=np.int64)

    def _constant(self, node: Any, attributes: dict[str, Any]) -> Values:
        (key, value) = next(iter(attributes.items()), ("", None))
        if key == "value" and isinstance(value, self._onnx.TensorProto):
            return self._array(value)
        if key in ("value_float", "value_floats"):
            return np.asarray(value, dtype=np.float32)
        if key in ("value_int", "value_ints"):
            return np.asarray(value, dtype=np.int64)
        raise ModelNotSupportedError(
            f"node {node.name!r} (Constant) holds {key!r}; only numbers are read"
        )

    def _array(self, tensor: Any) -> Values:
        onnx = self._onnx
        where = f"{self._path.name}: tensor {tensor.name!r}"
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            self._load_external(tensor)
        try:
            array: Values = onnx.numpy_helper.to_array(tensor)
        except Exception as error:
            raise ModelFileError(f"{where} is damaged ({error}); export the model again") from None
        if array.dtype.kind == "c":
            raise ModelNotSupportedError(
                f"{where} holds complex numbers; a ReLU network has real ones"
            )
        # bfloat16 and the like are types that numpy knows only by extension
        return array if array.dtype.kind in "fiubUSO" else array.astype(np.float32)

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
        check_bytes(where, length, limits.MODEL_BYTES)
        with file.open("rb") as stream:
            stream.seek(start)
            tensor.raw_data = stream.read(length)
        tensor.data_location = self._onnx.TensorProto.DEFAULT


def attributes_of(onnx: Any, node: Any) -> dict[str, Any]:
    """Attributes of a node as Python values."""
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def half(what: str) -> ModelNotSupportedError:
    """Return the refusal of a graph that computes in half precision."""
    return ModelNotSupportedError(
        f"{what}: the graph computes in half precision, whose rounding no margin covers; "
        "export the model in float32, as torch.onnx.export(model.float(), ...) does (every weight "
        "keeps its value), and use that file"
    )


def check_cast(onnx: Any, where: str, to: int | None) -> None:
    """Raise if a Cast makes the numbers half precision."""
    kinds = onnx.TensorProto
    if to in (kinds.FLOAT16, kinds.BFLOAT16):
        raise half(f"{where} makes the numbers {kinds.DataType.Name(to).lower()}")


def batch_norm_of(
    where: str, node: Any, attributes: dict[str, Any], parts: Sequence[Values]
) -> tuple[Array, Array, Array, Array]:
    """Return mean, deviation, factor and shift: ``(h - mean) / deviation * factor + shift``.

    ``parts`` are the constants of the BatchNormalization: factor, shift, running mean and variance.
    """
    if attributes.get("training_mode", 0) or any(node.output[1:]):
        raise ModelNotSupportedError(f"{where} is in training mode; export with model.eval()")
    factor, shift, mean, variance = (part.reshape(-1).astype(np.float64) for part in parts)
    variance = variance + float(attributes.get("epsilon", 1e-5))
    if not (variance > 0.0).all():
        raise ModelFileError(f"{where} has a variance that is not positive; export the model again")
    return mean, np.sqrt(variance), factor, shift
