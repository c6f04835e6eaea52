"""Networks from ONNX graphs, read with the ``onnx`` package alone.

Where ``onnxruntime`` is installed too, the graph is run once for comparison, after it was read.
"""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core import limits
from proplace.core.errors import ModelFileError, ModelNotSupportedError, ProplaceError, require
from proplace.loaders._chain import Activation, Chain, per_column
from proplace.loaders._files import read_bytes
from proplace.loaders._onnx_constants import (
    Constants,
    Values,
    attributes_of,
    batch_norm_of,
    check_cast,
    half,
)
from proplace.loaders._onnx_ops import KNOWN
from proplace.loaders._onnx_outputs import chosen_logits, compare, predicted, understood

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from proplace.core.network import Array, Network
    from proplace.loaders._onnx_outputs import Output

_FINAL: dict[str, Activation] = {
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
}
_FLOATS = ("FLOAT", "DOUBLE")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div")
# What may come behind the logits beside the probabilities.
_LABELS = frozenset({"ArgMax", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "TopK"})


def from_onnx(path: Path) -> Network:
    """Read an ONNX graph of Gemm, MatMul, Add, Relu and BatchNormalization nodes.

    Parameters
    ----------
    path
        The file. The graph must have one input of rows, shape (n, d), which passes linear layers
        with a Relu between them. Subtractions, divisions and the like by constants in front become
        the network's input transform, and batch norm behind a layer is folded into it, or into the
        next one behind a Relu; shifts (delta) still speak of the weights in the file. The graph is
        read up to its Sigmoid, Softmax or LogSoftmax; what comes behind (labels, names of classes,
        the probability of the other class) is checked and left out: it must say the same as the
        logits, with the classes in that order and the threshold at one half. ``Scaler`` and
        ``LinearClassifier`` of skl2onnx are read.

    Returns
    -------
    Network
        One sigmoid output is read as the probability of class 1, and classes are decided by the
        logits. The precision is ``float64`` if all weights are stored so, else ``float32``. Where
        onnxruntime is installed and runs the graph, both are run on random rows and must agree.
    """
    onnx, model = open_graph(path)
    with unreadable(path):
        return Reader(onnx, model, path).network()


def open_graph(path: Path) -> tuple[Any, Any]:
    """Read the graph of a file, functions written out; the ``onnx`` package comes with it."""
    onnx = require("onnx", "onnx", "reading an ONNX file")
    data = read_bytes(path)
    try:
        model = onnx.load_model_from_string(data)
        _check_nodes(path, model)
        if model.functions:
            model = importlib.import_module("onnx.inliner").inline_local_functions(model)
    except ProplaceError:
        raise
    except Exception as error:
        raise _damaged(path, error) from None
    if not model.graph.node:
        raise ModelFileError(f"{path.name}: not an ONNX file, or one without a graph")
    for value in model.graph.input:
        kind = onnx.TensorProto.DataType
        if value.type.tensor_type.elem_type in (kind.FLOAT16, kind.BFLOAT16):
            name = kind.Name(value.type.tensor_type.elem_type).lower()
            raise half(f"{path.name}: input {value.name!r} takes {name} numbers")
    return onnx, model


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Turn what a graph trips over into a word about the file."""
    try:
        yield
    except ProplaceError:
        raise
    except (
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        RecursionError,
        MemoryError,
    ) as error:
        # A graph that no exporter writes: missing attributes, shapes that do not fit or are huge.
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> ModelFileError:
    return ModelFileError(
        f"{path.name}: not a readable ONNX file ({error}); export the model again"
    )


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


class Reader:
    """Follows the rows through a graph, node by node.

    ``start`` names the tensor to begin with and its number of columns, where that is not the one
    input of the graph.
    """

    def __init__(
        self, onnx: Any, model: Any, path: Path, start: tuple[str, int] | None = None
    ) -> None:
        graph = model.graph
        self.onnx = onnx
        self.model = model
        self.graph = graph
        self.path = path
        self.constants = Constants(onnx, model, path)
        self.chain = Chain("Gemm or MatMul")
        self.outputs = {value.name for value in graph.output}
        self.consumers: dict[str, list[Any]] = {}
        for node in graph.node:
            for name in dict.fromkeys(node.input):
                self.consumers.setdefault(name, []).append(node)
        self.columns = False  # whether the rows lie as columns, behind a Transpose
        self.flat = False  # whether a single output was squeezed to shape (n,)
        self.double: list[bool] = []  # of each layer: weights stored as float64?
        self.batch: int | None = None
        self.inputs: int | None = None
        self._given_start = start
        self.start = self.end = ""  # the tensors that hold the rows and the logits
        self.read: list[Output] = []  # what each output of the graph says
        self.labels: list[Any] = []  # names of the classes, where an output says them
        self.halved = False  # whether scores (-z, z) were read as the one logit z
        self.classifier: Callable[[Array], dict[str, Any]] | None = None  # its outputs on logits

    def network(self) -> Network:
        """Follow the rows to the end and return what they passed."""
        self.start = self.end = self._input()
        tensor: str | None = self.start
        seen = 0
        while tensor is not None and (node := self._next(tensor)) is not None:
            seen += 1
            if seen > len(self.graph.node):
                raise ModelFileError(f"{self.path.name}: the graph runs in a circle")
            self.end = tensor
            tensor = self._step(node, tensor)
        self.end = self.end if tensor is None else tensor
        network = self.chain.network("float64" if all(self.double) else "float32")
        if self.inputs is not None and network.inputs != self.inputs:
            raise ModelFileError(
                f"{self.path.name}: the graph takes {self.inputs} inputs but its first layer "
                f"{network.inputs}; export the model again"
            )
        self._check_outputs(network)
        return network

    def _check_outputs(self, network: Network) -> None:
        """Refuse a graph whose outputs say something else than the logits."""
        if network.outputs > limits.CLASSES:
            raise ModelNotSupportedError(
                f"{self.path.name}: the network has {network.outputs:,} outputs; models of at most "
                f"{limits.CLASSES:,} classes are read"
            )
        logits = chosen_logits(network.outputs)
        known = Constants(
            self.onnx,
            self.model,
            self.path,
            self._given(logits),
            {self.start: (len(logits), network.inputs)},
        )
        outputs = self.read
        for value in self.graph.output:
            result = known.get(value.name)
            if result is None:
                raise ModelNotSupportedError(
                    f"{self.path.name}: output {value.name!r} cannot be worked out from the logits "
                    "of the network; export the model with its logits or probabilities as output"
                )
            outputs.append(understood(self.path, value.name, result, logits))
        if not outputs:
            raise ModelFileError(f"{self.path.name}: the graph has no output; export it again")
        named = [output for output in outputs if output.labels]
        self.labels = named[0].labels if named else []
        for other in named[1:]:
            if other.labels != self.labels:
                raise ModelNotSupportedError(
                    f"{self.path.name}: outputs {named[0].name!r} and {other.name!r} name the "
                    f"classes in two ways ({str(self.labels)[:100]}, {str(other.labels)[:100]}); "
                    "export the model again"
                )
        if self._given_start is None:
            compare(self.path, self.model, network, outputs)

    def _given(self, logits: Array) -> dict[str, Any]:
        """Return the tensors at the end of the network, on the logits chosen for a test."""
        if self.classifier is not None:
            return self.classifier(logits)
        value = np.hstack([-logits, logits]) if self.halved else logits
        if self.flat:
            value = value[:, 0]
        return {self.end: value.T if self.columns else value}

    def _input(self) -> str:
        if self._given_start is not None:
            name, self.inputs = self._given_start
            return name
        constants = {tensor.name for tensor in self.graph.initializer}
        inputs = [value for value in self.graph.input if value.name not in constants]
        if len(inputs) != 1:
            names = ", ".join(repr(value.name) for value in inputs)
            raise ModelNotSupportedError(
                f"{self.path.name}: the graph has {len(inputs)} inputs ({names}); read it whole with "
                "Model.of(path), or export it with one input that holds all columns"
            )
        kind = inputs[0].type.tensor_type
        if kind.HasField("shape"):
            sizes = [dim.dim_value or None for dim in kind.shape.dim]
            if len(sizes) != 2:
                raise ModelNotSupportedError(
                    f"{self.path.name}: input {inputs[0].name!r} has {len(sizes)} dimensions; it "
                    "must take rows, shape (n, d)"
                )
            self.batch, self.inputs = sizes
        return str(inputs[0].name)

    # -- from one node to the next -------------------------------------------------------------

    def _next(self, tensor: str) -> Any | None:
        """Return the node that takes the rows on, or None at the end of the network."""
        nodes = [node for node in self.consumers.get(tensor, []) if node.op_type != "Shape"]
        at_logits = self.chain.at_linear
        ahead = [node for node in nodes if not (at_logits and node.op_type in _LABELS)]
        if not ahead:
            if tensor not in self.outputs and not nodes:
                raise ModelFileError(
                    f"{self.path.name}: tensor {tensor!r} leads nowhere; export the model again"
                )
            for node in nodes:
                self._check_post_processing(node, str(node.op_type))
            return None
        # Logits may be an output, or give a label, beside the probabilities; no other value may.
        branches = len(ahead) > 1 or len(nodes) > len(ahead) or tensor in self.outputs
        if branches and not (len(ahead) == 1 and at_logits and ahead[0].op_type in _FINAL):
            users = ", ".join(_where(node) for node in nodes)
            also = " and is an output of the graph" if tensor in self.outputs else ""
            raise ModelNotSupportedError(
                f"{self.path.name}: tensor {tensor!r} goes to {users}{also}; only graphs in which "
                "each layer feeds exactly the next are read (no skip connections). Export a model "
                "without branches"
            )
        return ahead[0]

    def _check_post_processing(self, node: Any, final: str) -> None:
        """Refuse a network that goes on behind what was taken for its end."""
        stack, seen = [node], set()
        while stack:
            node = stack.pop()
            if node.op_type not in KNOWN:
                raise ModelNotSupportedError(
                    f"{self.path.name}: {final} is followed by {_where(node)}; it is read only as "
                    "the end of a network. Hidden layers need Relu"
                )
            for name in node.output:
                if name and name not in seen:
                    seen.add(name)
                    stack += self.consumers.get(name, [])

    def _step(self, node: Any, tensor: str) -> str | None:
        where = f"{self.path.name}: {_where(node)}"
        attributes = attributes_of(self.onnx, node)
        op = node.op_type
        if node.domain == "ai.onnx.ml" and op == "Scaler":
            self._scaler(where, attributes)
        elif node.domain == "ai.onnx.ml" and op == "LinearClassifier":
            self._linear_classifier(where, node, attributes)
            return None
        elif node.domain not in ("", "ai.onnx"):
            raise _unsupported(where)
        elif op in _FINAL:
            self._final(where, node, attributes)
            return None
        elif op == "Gemm":
            self._gemm(where, node, attributes, tensor)
        elif op == "MatMul":
            self._matmul(where, node, tensor)
        elif op in _ARITHMETIC:
            self._arithmetic(where, node, tensor)
        elif op == "Relu":
            self.chain.relu(where)
        elif op == "BatchNormalization":
            self._batch_norm(where, node, attributes)
        else:
            self._same_values(where, node, attributes)
        return str(node.output[0])

    def _width(self) -> int | None:
        return self.inputs if self.chain.at_input else self.chain.width

    # -- layers --------------------------------------------------------------------------------

    def _gemm(self, where: str, node: Any, attributes: dict[str, Any], tensor: str) -> None:
        weights = self._numbers(node.input[1])
        if node.input[0] != tensor or weights is None or attributes.get("transA", 0):
            raise ModelNotSupportedError(
                f"{where} does not multiply rows by constant weights (A must be the rows, B the "
                "weights, transA 0); export the layer as Linear"
            )
        self._rows_only(where)
        W = weights if attributes.get("transB", 0) else weights.T
        self._layer(where, float(attributes.get("alpha", 1.0)) * _float64(W), weights)
        if len(node.input) > 2 and node.input[2]:
            bias = self._constant(where, node.input[2])
            beta = float(attributes.get("beta", 1.0))
            self.chain.add_bias(where, beta * self._columns_of(where, bias))

    def _matmul(self, where: str, node: Any, tensor: str) -> None:
        left = node.input[0] != tensor
        weights = self._constant(where, node.input[0 if left else 1])
        if left != self.columns:
            raise ModelNotSupportedError(
                f"{where} multiplies across the rows, not along their columns; export the layer as "
                "Linear (rows times constant weights)"
            )
        self._layer(where, _float64(weights if left else weights.T), weights)

    def _layer(self, where: str, W: Array, stored: Values) -> None:
        if W.ndim != 2:
            raise ModelNotSupportedError(
                f"{where} has weights of shape {W.shape}; it needs a matrix"
            )
        if stored.dtype == np.float16:
            raise half(f"{where} has float16 weights")
        self.chain.linear(where, W, None)
        self.double.append(stored.dtype == np.float64)

    def _arithmetic(self, where: str, node: Any, tensor: str) -> None:
        op = node.op_type
        first = node.input[0] == tensor
        if len(set(node.input)) != 2:
            raise ModelNotSupportedError(f"{where} combines the rows with themselves")
        c = self._columns_of(where, self._constant(where, node.input[1 if first else 0]))
        if self.chain.at_linear and (op == "Add" or (op == "Sub" and first)):
            self.chain.add_bias(where, c if op == "Add" else -c)
        elif op == "Add":
            self.chain.scale(where, None, c)
        elif op == "Sub" and first:
            self.chain.scale(where, None, -c)
        elif op == "Sub":
            self.chain.scale(where, np.asarray(-1.0), c)
        elif op == "Mul":
            self.chain.scale(where, c, None)
        elif first and np.all(c != 0.0):
            self.chain.scale(where, 1.0 / c, None)
        else:
            raise ModelNotSupportedError(
                f"{where} divides by the rows or by zero; only a division by constants is read"
            )

    def _batch_norm(self, where: str, node: Any, attributes: dict[str, Any]) -> None:
        self._rows_only(where)
        parts = [self._constant(where, name) for name in node.input[1:5]]
        mean, deviation, factor, shift = batch_norm_of(where, node, attributes, parts)
        self.chain.batch_norm(where, factor / deviation, shift - factor / deviation * mean)
        self.double.append(parts[0].dtype == np.float64)

    def _rows_only(self, where: str) -> None:
        if self.columns:
            raise ModelNotSupportedError(
                f"{where} acts on transposed rows; export it without Transpose"
            )

    def _scaler(self, where: str, attributes: dict[str, Any]) -> None:
        self._rows_only(where)
        # The values are float32 in the file, and the operator subtracts first.
        self.chain.scale(where, None, -per_column(_float32(attributes["offset"])))
        self.chain.scale(where, per_column(_float32(attributes["scale"])), None)

    def _linear_classifier(self, where: str, node: Any, attributes: dict[str, Any]) -> None:
        labels = attributes.get("classlabels_ints") or attributes.get("classlabels_strings") or []
        named = attributes.get("post_transform", b"NONE")
        transform = named.decode() if isinstance(named, bytes) else str(named)[:100]
        coefficients = _float32(attributes["coefficients"])
        intercepts = _float32(attributes.get("intercepts", []))
        rows = intercepts.size or (coefficients.size // self.inputs if self.inputs else len(labels))
        if transform not in ("NONE", "LOGISTIC", "SOFTMAX") or len(labels) < 2:
            raise ModelNotSupportedError(
                f"{where} has {len(labels)} classes and post_transform {transform!r}; it is read "
                "with two classes or more, and NONE, LOGISTIC or SOFTMAX"
            )
        if rows not in (len(labels), 1) or (rows == 1 and len(labels) > 2):
            raise ModelFileError(
                f"{where} has {rows} rows of coefficients for {len(labels)} classes; export the "
                "model again"
            )
        self._rows_only(where)
        self.chain.linear(where, coefficients.reshape(rows, -1), None)
        self.double.append(False)
        if intercepts.size:
            self.chain.add_bias(where, intercepts)
        for name in node.output:
            for user in self.consumers.get(name, []):
                self._check_post_processing(user, where)
        self.classifier = _classifier_outputs(node, labels, transform, rows)
        if transform == "SOFTMAX":
            self.chain.finish(where, "softmax")
        elif transform == "NONE":
            self.chain.one_logit()
        elif rows == 2:
            self._two_opposite(where)
        elif rows > 2:
            raise ModelNotSupportedError(
                f"{where} was fitted one-vs-rest, so its probabilities are not a softmax; fit a "
                "multinomial model"
            )

    def _final(self, where: str, node: Any, attributes: dict[str, Any]) -> None:
        axis = attributes.get("axis", 1)
        along = (0, -2) if self.columns else (1, -1)
        if node.op_type != "Sigmoid" and (self.flat or axis not in along):
            raise ModelNotSupportedError(
                f"{where} runs along axis {axis}, not over the classes of a row; export it with "
                "axis 1"
            )
        if node.op_type == "Sigmoid" and self.chain.at_linear and self.chain.width == 2:
            self._two_opposite(where)
        self.chain.finish(where, _FINAL[node.op_type])
        for user in self.consumers.get(node.output[0], []):
            self._check_post_processing(user, where)

    def _two_opposite(self, where: str) -> None:
        """Two classes as exported by skl2onnx: scores (-z, z), each through a sigmoid."""
        self.halved = True
        if not self.chain.one_logit():
            raise ModelNotSupportedError(
                f"{where} gives two outputs with a sigmoid each: a model of two labels, not of "
                "two classes. Use softmax, or one output"
            )

    # -- nodes that move values without changing them ---------------------------------------------

    def _same_values(self, where: str, node: Any, attributes: dict[str, Any]) -> None:
        op = node.op_type
        if op == "Identity":
            return
        if op == "Dropout":
            given = len(node.input) > 2 and node.input[2]
            training = self._numbers(node.input[2]) if given else np.asarray(False)
            if training is None or bool(training.any()):
                raise ModelNotSupportedError(
                    f"{where} is in training mode; export with model.eval()"
                )
        elif op == "Cast":
            self._cast(where, int(attributes["to"]))
        elif op == "Transpose":
            if self.flat or list(attributes.get("perm", [1, 0])) != [1, 0]:
                raise _unsupported(where)
            self.columns = not self.columns
        elif op == "Flatten":
            if self.columns or self.flat or attributes.get("axis", 1) not in (1, -1):
                raise self._reshapes(where)
        elif op == "Squeeze":
            axes = self._numbers(node.input[1]) if len(node.input) > 1 else None
            self._squeeze(where, attributes.get("axes", axes))
        elif op == "Reshape":
            self._reshape(where, node)
        else:
            raise _unsupported(where)

    def _cast(self, where: str, to: int) -> None:
        name = self.onnx.TensorProto.DataType.Name(to)
        check_cast(self.onnx, where, to)
        if name not in _FLOATS:
            raise ModelNotSupportedError(
                f"{where} rounds the values; only casts to floats are read"
            )

    def _squeeze(self, where: str, axes: Any) -> None:
        if not (self.chain.at_linear and self.chain.width == 1) or self.columns or self.flat:
            raise self._reshapes(where)
        if axes is None or [int(axis) for axis in np.ravel(axes)] not in ([1], [-1]):
            raise self._reshapes(where)
        self.flat = True

    def _reshape(self, where: str, node: Any) -> None:
        shape = self._numbers(node.input[1])
        width = self._width()
        if self.columns or self.flat:
            raise self._reshapes(where)
        if shape is None:
            for n in (3, 5):
                d = width or 7
                seen = Constants(self.onnx, self.model, self.path, shapes={"": (n, d)})
                value = seen.get(node.input[1])
                computed = None if value is None else [int(size) for size in np.ravel(value)]
                if computed not in ([n, d], [n, -1], [-1, d]):
                    raise self._reshapes(where)
            return
        sizes = [int(size) for size in shape.ravel()]
        if sizes == [-1] and self.chain.at_linear and width == 1:
            self.flat = True
            return
        keeps_rows = len(sizes) == 2 and (sizes[0] in (0, -1) or sizes[0] == self.batch)
        keeps_columns = len(sizes) == 2 and (sizes[1] in (0, width) or sizes[1] == -1 != sizes[0])
        if not (keeps_rows and keeps_columns):
            raise self._reshapes(where)

    def _reshapes(self, where: str) -> ModelNotSupportedError:
        return ModelNotSupportedError(
            f"{where} changes the shape of the rows; only reshapes that keep (n, d) are read"
        )

    # -- constants -----------------------------------------------------------------------------

    def _numbers(self, name: str) -> Values | None:
        """Return a constant array of numbers; None where the tensor is not one."""
        value = self.constants.get(name)
        return value if isinstance(value, np.ndarray) and value.dtype.kind in "fiub" else None

    def _constant(self, where: str, name: str) -> Values:
        value = self._numbers(name)
        if value is None:
            raise ModelNotSupportedError(
                f"{where} combines two values that both depend on the input ({name!r}); only "
                "constant weights are read (no skip connections, no products of inputs)"
            )
        return value

    def _columns_of(self, where: str, value: Values) -> Array:
        """Return a constant as a scalar or as one number for each column."""
        array = _float64(value)
        # Behind a Transpose, a vector would hold one number for each row of the table.
        across = self.columns and array.ndim == 1 and array.size > 1
        array = per_column(array.T if self.columns else array)
        width = self._width()
        misfit = array.ndim == 1 and width is not None and len(array) != width
        if across or misfit or array.ndim > 1:
            raise ModelNotSupportedError(
                f"{where} has a constant of shape {value.shape}; it must be one number, or one for "
                f"each of the {width} columns"
            )
        return array


def _classifier_outputs(
    node: Any, labels: list[Any], transform: str, rows: int
) -> Callable[[Array], dict[str, Any]]:
    """Return what a LinearClassifier gives for logits: the label and a score of each class."""
    names = [label.decode() if isinstance(label, bytes) else label for label in labels]

    def outputs(logits: Array) -> dict[str, Any]:
        if logits.shape[1] > 1:
            scores = logits
            if transform == "SOFTMAX":
                scores = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
        else:
            scores = np.hstack([-logits, logits])
            if transform == "LOGISTIC":
                with np.errstate(over="ignore"):
                    scores = 1.0 / (1.0 + np.exp(-scores))
        values = [np.asarray(names)[predicted(logits)], scores]
        return {name: value for name, value in zip(node.output, values, strict=False) if name}

    return outputs


def _where(node: Any) -> str:
    return f"node {node.name or node.output[0]!r} ({node.op_type})"


def _unsupported(where: str) -> ModelNotSupportedError:
    return ModelNotSupportedError(
        f"{where} is not part of a ReLU network; only Gemm, MatMul, Add, Relu, BatchNormalization, "
        "scaling by constants in front, and a last Sigmoid or Softmax are read. Train the model with "
        "those"
    )


def _float64(values: Values) -> Array:
    return values.astype(np.float64)


def _float32(values: Any) -> Array:
    return np.asarray(values, dtype=np.float32).astype(np.float64)
