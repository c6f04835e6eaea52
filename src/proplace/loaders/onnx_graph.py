"""An ONNX file as data: its graph, its constants, and single nodes that run on arrays.

Nodes run on the reference implementation in the ``onnx`` package, if their operator is on a list and
their result stays small.
"""

from __future__ import annotations

import importlib
import math
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from proplace.core import limits
from proplace.core.errors import ModelFileError, ModelNotSupportedError, ProplaceError, require
from proplace.loaders.files import check_bytes, read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

Values = npt.NDArray[Any]

LARGEST = 2**22  #: numbers in the result of one operator on constants
_TEXTS = 2**20  # numbers that are turned into text at once
_ELEMENTWISE = (
    "Add And Clip Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mul Or Sub Where"
)
_OTHERS = (
    "Abs ArgMax ArgMin ArrayFeatureExtractor Cast CastLike Concat Constant Dropout Exp "
    "FeatureVectorizer Flatten Gather GatherND Identity LabelEncoder Log LogSoftmax Neg Normalizer "
    "Not Reciprocal ReduceMax ReduceMin ReduceSum Reshape Shape Sigmoid Slice Softmax Split Sqrt "
    "Squeeze TopK Transpose Unsqueeze ZipMap"
)
_LAYERS = "BatchNormalization Gemm Imputer LinearClassifier MatMul OneHot OneHotEncoder Relu Scaler"
KNOWN = frozenset([*_ELEMENTWISE.split(), *_OTHERS.split()])
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")


@dataclass(frozen=True, eq=False)
class Named:
    """Values by the names of the classes, as a ZipMap makes them."""

    labels: list[Any]
    array: Values


class Graph:
    """The graph of a file, with its functions inlined.

    Attributes
    ----------
    inputs, outputs
        Inputs with names, types and shapes, and the names of the outputs.
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
            raise ModelFileError(f"{path.name}: the graph has no output. Export it again")
        self.nodes = self.needed(self.outputs)
        self._check_order()
        self._opsets = {"": 1, "ai.onnx.ml": 1}
        for entry in self.model.opset_import:
            self._opsets["" if entry.domain == "ai.onnx" else entry.domain] = entry.version

    def _opened(self) -> Any:
        path, onnx = self.path, self.onnx
        data = read_bytes(path)
        try:
            model = onnx.load_model_from_string(data)
            _check_length(path, model)
            if model.functions:
                model = importlib.import_module("onnx.inliner").inline_local_functions(model)
        except ProplaceError:
            raise
        except Exception as error:
            raise _damaged(path, error) from None
        if not model.graph.node:
            raise ModelFileError(f"{path.name}: not an ONNX file, or one without a graph")
        for value in model.graph.input:
            self._check_kind(f"input {value.name!r} takes", value.type.tensor_type.elem_type)
        return model

    def _check_kind(self, where: str, kind: int) -> None:
        """Raise for half precision."""
        kinds = self.onnx.TensorProto
        if kind in (kinds.FLOAT16, kinds.BFLOAT16):
            raise ModelNotSupportedError(
                f"{self.path.name}: {where} {kinds.DataType.Name(kind).lower()} numbers: the graph "
                "computes in half precision, whose rounding no margin covers. Export the model in "
                "float32, as torch.onnx.export(model.float(), ...) does (every weight keeps its "
                "value), and use that file"
            )

    def needed(self, outputs: Iterable[str]) -> list[Any]:
        """Return the nodes that some of these tensors depend on."""
        nodes = self.model.graph.node
        producers = {name: node for node in nodes for name in node.output}
        found, waiting = set[str](), list(outputs)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += producers[name].input if name in producers else ()
        return [node for node in nodes if found.intersection(node.output)]

    def _check_order(self) -> None:
        """Raise unless every tensor that is needed comes from somewhere."""
        known = {*self._tensors, *(value.name for value in self.inputs), ""}
        for node in self.nodes:
            for name in node.input:
                if name not in known:
                    raise ModelFileError(
                        f"{self.path.name}: {describe(node)} takes {name!r}, which nothing before it "
                        "gives. Export the model again"
                    )
            known.update(node.output)
        for name in self.outputs:
            if name not in known:
                raise ModelFileError(
                    f"{self.path.name}: nothing in the graph gives the output {name!r}. Export the "
                    "model again"
                )

    # -- constants -----------------------------------------------------------------------------

    def stored(self, name: str) -> Values | None:
        """Return numbers that are stored in the file under a name, or None."""
        if name not in self._constants and name in self._tensors:
            self._constants[name] = self._array(self._tensors[name])
        return self._constants.get(name)

    def attributes(self, node: Any) -> dict[str, Any]:
        """Return the attributes of a node as Python values."""
        return {a.name: self.onnx.helper.get_attribute_value(a) for a in node.attribute}

    def _constant(self, node: Any) -> Values:
        (key, value) = next(iter(self.attributes(node).items()), ("", None))
        if key == "value" and isinstance(value, self.onnx.TensorProto):
            return self._array(value)
        if key in ("value_float", "value_floats"):
            return np.asarray(value, dtype=np.float32)
        if key in ("value_int", "value_ints"):
            return np.asarray(value, dtype=np.int64)
        raise ModelNotSupportedError(
            f"node {node.name!r} (Constant) holds {key!r}. Only numbers are read"
        )

    def _array(self, tensor: Any) -> Values:
        where = f"{self.path.name}: tensor {tensor.name!r}"
        if tensor.data_location == self.onnx.TensorProto.EXTERNAL:
            self._load_external(where, tensor)
        try:
            array: Values = self.onnx.numpy_helper.to_array(tensor)
        except Exception as error:
            raise ModelFileError(f"{where} is damaged ({error}). Export the model again") from None
        if array.dtype.kind == "c":
            raise ModelNotSupportedError(
                f"{where} holds complex numbers; a ReLU network has real ones"
            )
        # NumPy has bfloat16 and the like only by extension.
        return array if array.dtype.kind in "fiubUSO" else array.astype(np.float32)

    def _load_external(self, where: str, tensor: Any) -> None:
        """Read numbers from a file beside the model, and from nowhere else."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        folder, location = self.path.parent.resolve(), entries.get("location", "")
        file = (folder / location).resolve()
        if not location or not file.is_relative_to(folder):
            raise ModelFileError(
                f"{where} points to {location!r}, outside of the model's folder; such files are "
                "not read"
            )
        if not file.is_file():
            raise ModelFileError(
                f"{where} is stored in {location!r}, which is missing. Keep that file beside the "
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

    def evaluate(self, known: dict[str, Any], *, layers: bool = False) -> None:
        """Run every node whose inputs are known, and add its outputs to ``known``."""
        for node in self.nodes:
            inputs = [known.get(name, self.stored(name)) for name in node.input]
            missing = any(v is None and n for n, v in zip(node.input, inputs, strict=True))
            if not missing and not any(name in known for name in node.output):
                known.update(zip(node.output, self.run(node, inputs, layers=layers), strict=True))

    def run(self, node: Any, inputs: list[Any], *, layers: bool = False) -> list[Any]:
        """Run one node on arrays if its operator is on the list.

        Parameters
        ----------
        layers
            Run operators of layers, too. Constants never need them.
        """
        where = f"{self.path.name}: {describe(node)}"
        listed = node.op_type in KNOWN or (layers and node.op_type in _LAYERS.split())
        if not listed or node.domain not in _DOMAINS:
            raise ModelNotSupportedError(
                f"{where} is not an operator that is read. Export the model without that step"
            )
        self.check_cast(node)
        if any(isinstance(value, Named) for value in inputs):
            raise ModelNotSupportedError(f"{where} takes values by name, which is not read")
        if node.op_type == "Constant":
            return [self._constant(node)]
        if node.op_type == "ZipMap":
            return [_zip_map(self.attributes(node), inputs[0])]
        inputs = _of_one_type(inputs)
        self._check_size(where, node, inputs)
        if node.op_type == "LinearClassifier":
            node = self._with_intercepts(node)
        if node.op_type == "Scaler" and inputs[0].dtype.kind in "iub":
            inputs = [inputs[0].astype(np.float32)]  # the reference would round its results
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

    def _with_intercepts(self, node: Any) -> Any:
        """Write zeros for missing intercepts of a LinearClassifier, which the reference makes NaN."""
        attributes = self.attributes(node)
        if attributes.get("intercepts"):
            return node
        labels = attributes.get("classlabels_ints") or attributes.get("classlabels_strings") or []
        zeros = self.onnx.helper.make_attribute("intercepts", [0.0] * len(labels))
        copy = type(node)()
        copy.CopyFrom(node)
        copy.attribute.append(zeros)
        return copy

    def _check_size(self, where: str, node: Any, inputs: list[Any]) -> None:
        """Raise if an operator would make many numbers of few."""
        arrays = [np.asarray(value) for value in inputs if value is not None]
        largest = max((array.size for array in arrays), default=0)
        attributes = self.attributes(node)
        text = node.op_type == "Cast" and attributes["to"] == self.onnx.TensorProto.STRING
        if text and largest > _TEXTS:
            raise ModelFileError(f"{where} makes text of {largest:,} numbers. At most {_TEXTS:,}")
        size = largest
        if node.op_type == "Concat":
            size = sum(array.size for array in arrays)
        elif node.op_type in ("ArrayFeatureExtractor", "Gather", "GatherND") and arrays[0].ndim:
            axis = attributes.get("axis", 0) if node.op_type != "ArrayFeatureExtractor" else -1
            along = arrays[0].shape[axis] if -arrays[0].ndim <= axis < arrays[0].ndim else 1
            size = arrays[1].size * (arrays[0].size // max(1, along))
        elif node.op_type in _ELEMENTWISE.split():
            size = math.prod(np.broadcast_shapes(*(array.shape for array in arrays)))
        if size > max(LARGEST, largest):
            raise ModelFileError(f"{where} would make {size:,} numbers of constants; none is read")

    def check_cast(self, node: Any) -> None:
        """Raise if a Cast makes the numbers half precision."""
        to = self.attributes(node).get("to")
        if node.op_type == "Cast" and to is None:
            raise _damaged(self.path, "a Cast without a type")
        if node.op_type == "Cast":
            self._check_kind(f"{describe(node)} makes", int(to or 0))


def _of_one_type(inputs: list[Any]) -> list[Any]:
    """Return floats of one type, which the reference needs and skl2onnx mixes."""
    kinds = {np.asarray(value).dtype for value in inputs if value is not None}
    if not {np.dtype(np.float32), np.dtype(np.float64)} <= kinds:
        return inputs
    return [
        value if value is None or value.dtype != np.float32 else value.astype(np.float64)
        for value in inputs
    ]


def describe(node: Any) -> str:
    """Return the name of a node for messages."""
    return f"node {node.name or node.output[0]!r} ({node.op_type})"


def _damaged(path: Path, reason: object) -> ModelFileError:
    return ModelFileError(
        f"{path.name}: not a readable ONNX file ({reason}). Export the model again"
    )


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Turn any error about a graph into an error about its file."""
    try:
        yield
    except ProplaceError:
        raise
    except Exception as error:
        # A graph that no exporter writes: missing attributes, shapes that do not fit or are huge.
        raise _damaged(path, error) from error


def _zip_map(attributes: dict[str, Any], value: Any) -> Named:
    labels = attributes.get("classlabels_int64s") or attributes.get("classlabels_strings") or []
    return Named([v.decode() if isinstance(v, bytes) else v for v in labels], np.asarray(value))


def _check_length(path: Path, model: Any) -> None:
    """Raise if a graph is too long, or becomes too long when its functions are inlined."""
    bodies = {(function.domain, function.name): function.node for function in model.functions}

    @cache
    def length_of(domain: str, name: str) -> float:
        return length(bodies.get((domain, name), ()))

    def length(nodes: Any) -> float:
        graphs = [graph for n in nodes for a in n.attribute for graph in (a.g, *a.graphs)]
        calls = sum(length_of(node.domain, node.op_type) for node in nodes)
        return len(nodes) + calls + sum(length(graph.node) for graph in graphs)

    try:
        found = length(model.graph.node)
    except RecursionError:  # a function that calls itself
        found = math.inf
    if found > limits.GRAPH_NODES:
        raise ModelFileError(
            f"{path.name}: the graph has more than {limits.GRAPH_NODES:,} nodes with its functions "
            "inlined; graphs of that length are not read"
        )
