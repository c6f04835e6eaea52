"""An ONNX file as data: its graph, its constants, and single nodes run on arrays.

Operators are run by the reference implementation in the ``onnx`` package, those on a list alone
and only where their results stay small.
"""

from __future__ import annotations

import importlib
import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from proplace.core import limits
from proplace.core.errors import ModelFileError, ModelNotSupportedError, ProplaceError, require
from proplace.loaders.files import check_bytes, read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Values = npt.NDArray[Any]

LARGEST = 2**22  #: numbers in the result of one operator on constants
KNOWN = frozenset(
    {
        *(
            "Abs",
            "Add",
            "And",
            "ArgMax",
            "ArgMin",
            "ArrayFeatureExtractor",
            "Cast",
            "CastLike",
            "Clip",
        ),
        *("Concat", "Constant", "Div", "Dropout", "Equal", "Exp", "FeatureVectorizer", "Flatten"),
        *(
            "Gather",
            "Greater",
            "GreaterOrEqual",
            "Identity",
            "LabelEncoder",
            "Less",
            "LessOrEqual",
            "Log",
        ),
        *("LogSoftmax", "Max", "Min", "Mul", "Neg", "Normalizer", "Not", "Or", "Reciprocal"),
        *("ReduceMax", "ReduceMin", "ReduceSum", "Reshape", "Shape", "Sigmoid", "Slice", "Softmax"),
        *("Split", "Sqrt", "Squeeze", "Sub", "TopK", "Transpose", "Unsqueeze", "Where", "ZipMap"),
    }
)
_TEXTS = 2**20  # numbers that are turned into text at once
#: Run on made-up rows alone, where onnxruntime does not run the graph.
LAYERS = frozenset(
    {
        *("BatchNormalization", "Gemm", "Imputer", "LinearClassifier", "MatMul", "OneHotEncoder"),
        *("OneHot", "Relu", "Scaler"),
    }
)
_ELEMENTWISE = frozenset(
    {
        *("Add", "And", "Clip", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
        *("Max", "Min", "Mul", "Or", "Sub", "Where"),
    }
)
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")


@dataclass(frozen=True, eq=False)
class Named:
    """Values by the names of the classes, as a ZipMap makes them."""

    labels: list[Any]
    array: Values


class Graph:
    """The graph of a file, functions written out.

    Attributes
    ----------
    inputs, outputs
        The names of its inputs with their types and shapes, and of its outputs.
    nodes
        The nodes that some output needs, each after those it takes values from.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.onnx = require("onnx", "onnx", "reading an ONNX file")
        self.model = self._opened()
        graph = self.model.graph
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._constants: dict[str, Values] = {}
        self.inputs = [value for value in graph.input if value.name not in self._tensors]
        self.outputs = [value.name for value in graph.output]
        if not self.outputs:
            raise ModelFileError(f"{path.name}: the graph has no output; export it again")
        self.nodes = self._needed()
        opsets = [e.version for e in self.model.opset_import if e.domain in ("", "ai.onnx")]
        ml = [e.version for e in self.model.opset_import if e.domain == "ai.onnx.ml"]
        self._opsets = {"": max(opsets, default=1), "ai.onnx.ml": max(ml, default=1)}

    def _opened(self) -> Any:
        path, onnx = self.path, self.onnx
        data = read_bytes(path)
        try:
            model = onnx.load_model_from_string(data)
            _check_nodes(path, model)
            if model.functions:
                model = importlib.import_module("onnx.inliner").inline_local_functions(model)
        except ProplaceError:
            raise
        except Exception as error:
            raise damaged(path, error) from None
        if not model.graph.node:
            raise ModelFileError(f"{path.name}: not an ONNX file, or one without a graph")
        for value in model.graph.input:
            kind = onnx.TensorProto.DataType
            if value.type.tensor_type.elem_type in (kind.FLOAT16, kind.BFLOAT16):
                name = kind.Name(value.type.tensor_type.elem_type).lower()
                raise half(f"{path.name}: input {value.name!r} takes {name} numbers")
        return model

    def _needed(self) -> list[Any]:
        nodes = list(self.model.graph.node)
        known = {*self._tensors, *(value.name for value in self.inputs), ""}
        producers = {name: node for node in nodes for name in node.output}
        asked, stack = set[str](), list(self.outputs)
        while stack:
            name = stack.pop()
            if name not in asked:
                asked.add(name)
                stack += producers[name].input if name in producers else ()
        found = [node for node in nodes if asked.intersection(node.output)]
        for node in found:
            for name in node.input:
                if name not in known:
                    raise ModelFileError(
                        f"{self.path.name}: {describe(node)} takes {name!r}, which nothing before it "
                        "gives; export the model again"
                    )
            known.update(node.output)
        for name in self.outputs:
            if name not in known:
                raise ModelFileError(
                    f"{self.path.name}: nothing in the graph gives the output {name!r}; export the "
                    "model again"
                )
        return found

    # -- constants -----------------------------------------------------------------------------

    def stored(self, name: str) -> Values | None:
        """Numbers that are stored in the file; None where a name is not among them."""
        if name not in self._constants and name in self._tensors:
            self._constants[name] = self._array(self._tensors[name])
        return self._constants.get(name)

    def constant(self, node: Any) -> Values:
        """Value of a Constant node."""
        attributes = self.attributes(node)
        (key, value) = next(iter(attributes.items()), ("", None))
        if key == "value" and isinstance(value, self.onnx.TensorProto):
            return self._array(value)
        if key in ("value_float", "value_floats"):
            return np.asarray(value, dtype=np.float32)
        if key in ("value_int", "value_ints"):
            return np.asarray(value, dtype=np.int64)
        raise ModelNotSupportedError(
            f"node {node.name!r} (Constant) holds {key!r}; only numbers are read"
        )

    def attributes(self, node: Any) -> dict[str, Any]:
        """Attributes of a node as Python values."""
        return {a.name: self.onnx.helper.get_attribute_value(a) for a in node.attribute}

    def _array(self, tensor: Any) -> Values:
        where = f"{self.path.name}: tensor {tensor.name!r}"
        if tensor.data_location == self.onnx.TensorProto.EXTERNAL:
            self._load_external(where, tensor)
        try:
            array: Values = self.onnx.numpy_helper.to_array(tensor)
        except Exception as error:
            raise ModelFileError(f"{where} is damaged ({error}); export the model again") from None
        if array.dtype.kind == "c":
            raise ModelNotSupportedError(
                f"{where} holds complex numbers; a ReLU network has real ones"
            )
        # bfloat16 and the like are types that numpy knows only by extension
        return array if array.dtype.kind in "fiubUSO" else array.astype(np.float32)

    def _load_external(self, where: str, tensor: Any) -> None:
        """Read numbers from a file beside the model, and from nowhere else."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        folder = self.path.parent.resolve()
        location = entries.get("location", "")
        file = (folder / location).resolve()
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
        tensor.data_location = self.onnx.TensorProto.DEFAULT

    # -- nodes ---------------------------------------------------------------------------------

    def run(self, node: Any, inputs: list[Any], *, layers: bool = False) -> list[Any]:
        """Run one node on arrays, if it is known; operators of layers only where it is asked for."""
        where = f"{self.path.name}: {describe(node)}"
        known = node.op_type in KNOWN or (layers and node.op_type in LAYERS)
        if not known or node.domain not in _DOMAINS:
            raise ModelNotSupportedError(
                f"{where} is not an operator that is read; export the model without that step"
            )
        self.check_cast(where, node)
        if any(isinstance(value, Named) for value in inputs):
            raise ModelNotSupportedError(f"{where} takes values by name, which is not read")
        if node.op_type == "ZipMap":
            return [_zip_map(self.attributes(node), inputs[0])]
        inputs = _of_one_type(inputs)
        largest = max((np.size(value) for value in inputs), default=0)
        text = (
            node.op_type == "Cast" and self.attributes(node)["to"] == self.onnx.TensorProto.STRING
        )
        if text and largest > _TEXTS:
            raise ModelFileError(f"{where} makes text of {largest:,} numbers; at most {_TEXTS:,}")
        if (size := self._result(node, inputs)) > max(LARGEST, largest):
            raise ModelFileError(f"{where} would make {size:,} numbers of constants; none is read")
        onnx = self.onnx
        names = {name: value for name, value in zip(node.input, inputs, strict=True) if name}
        graph = onnx.helper.make_graph(
            [node],
            "node",
            [onnx.ValueInfoProto(name=name) for name in names],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
        )
        reference = importlib.import_module("onnx.reference")
        evaluator = reference.ReferenceEvaluator(graph, opsets=self._opsets)
        with np.errstate(all="ignore"):
            results = iter(evaluator.run(None, names))
        return [next(results) if name else None for name in node.output]

    def _result(self, node: Any, inputs: list[Any]) -> int:
        """How many numbers the first output of an operator has at most."""
        arrays = [np.asarray(value) for value in inputs if value is not None]
        if node.op_type == "Concat":
            return sum(array.size for array in arrays)
        if node.op_type in ("Gather", "ArrayFeatureExtractor") and arrays[0].ndim:
            axis = self.attributes(node).get("axis", 0) if node.op_type == "Gather" else -1
            along = arrays[0].shape[axis] if -arrays[0].ndim <= axis < arrays[0].ndim else 1
            return arrays[1].size * (arrays[0].size // max(1, along))
        if node.op_type in _ELEMENTWISE:
            return math.prod(np.broadcast_shapes(*(array.shape for array in arrays)))
        return max((array.size for array in arrays), default=0)

    def check_cast(self, where: str, node: Any) -> None:
        """Raise if a Cast makes the numbers half precision."""
        kinds = self.onnx.TensorProto
        to = self.attributes(node).get("to")
        if node.op_type == "Cast" and to is None:
            raise ModelFileError(
                f"{self.path.name}: not a readable ONNX file (a Cast without a type); export the model "
                "again"
            )
        if node.op_type == "Cast" and to in (kinds.FLOAT16, kinds.BFLOAT16):
            raise half(f"{where} makes the numbers {kinds.DataType.Name(to).lower()}")


def _of_one_type(inputs: list[Any]) -> list[Any]:
    """Return floats in one type, which the reference asks for and skl2onnx does not keep."""
    kinds = {np.asarray(value).dtype for value in inputs if value is not None}
    if not {np.dtype(np.float32), np.dtype(np.float64)} <= kinds:
        return inputs
    return [
        np.asarray(value, np.float64)
        if value is not None and np.asarray(value).dtype == np.float32
        else value
        for value in inputs
    ]


def describe(node: Any) -> str:
    """Return what to call a node in messages."""
    return f"node {node.name or node.output[0]!r} ({node.op_type})"


def half(what: str) -> ModelNotSupportedError:
    """Return the refusal of a graph that computes in half precision."""
    return ModelNotSupportedError(
        f"{what}: the graph computes in half precision, whose rounding no margin covers; "
        "export the model in float32, as torch.onnx.export(model.float(), ...) does (every weight "
        "keeps its value), and use that file"
    )


def damaged(path: Path, error: Exception) -> ModelFileError:
    """Return the error of a file that is no ONNX file, or not any more."""
    return ModelFileError(
        f"{path.name}: not a readable ONNX file ({error}); export the model again"
    )


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Turn what a graph trips over into a word about the file."""
    try:
        yield
    except ProplaceError:
        raise
    except Exception as error:
        # A graph that no exporter writes: missing attributes, shapes that do not fit or are huge.
        raise damaged(path, error) from error


def _zip_map(attributes: dict[str, Any], value: Any) -> Named:
    labels = attributes.get("classlabels_int64s") or attributes.get("classlabels_strings") or []
    return Named([v.decode() if isinstance(v, bytes) else v for v in labels], np.asarray(value))


def _check_nodes(path: Path, model: Any) -> None:
    """Refuse graphs that are too long, or become so when their functions are written out."""
    functions = {(function.domain, function.name): function for function in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(nodes: Any) -> int:
        total = 0
        for node in nodes:
            total += 1
            for attribute in node.attribute:
                for graph in (attribute.g, *attribute.graphs):
                    total += size(graph.node)
            key = (node.domain, node.op_type)
            if key in functions:
                if key not in sizes:
                    sizes[key] = limits.GRAPH_NODES  # where a function calls itself
                    sizes[key] = size(functions[key].node)
                total += sizes[key]
            if total > limits.GRAPH_NODES:
                raise ModelFileError(
                    f"{path.name}: the graph has more than {limits.GRAPH_NODES:,} nodes, functions "
                    "written out; graphs of that length are not read"
                )
        return total

    size(model.graph.node)
