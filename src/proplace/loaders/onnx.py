"""ONNX graphs, from the inputs of the table to the logits.

Columns are followed to the last linear layer. The nodes after it (probabilities, labels, names of
classes) run on chosen logits, near the threshold and far from it, and each output must then be one
of the forms of :mod:`proplace.loaders.verify`. Last, the whole graph runs on made-up rows, by
onnxruntime or by the reference of the ``onnx`` package, and must agree.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from proplace.core import limits
from proplace.core.errors import ModelFileError, ModelNotSupportedError
from proplace.loaders.columns import Single
from proplace.loaders.layers import multi_label, per_column
from proplace.loaders.model import Model
from proplace.loaders.onnx_graph import KNOWN, Graph, Named, Values, describe, unreadable
from proplace.loaders.trace import ROWS, Trace, Value, check_labels
from proplace.loaders.verify import (
    SCORES,
    Output,
    allowance,
    chosen_logits,
    predicted,
    probe_table,
    understood,
    unscaled,
)
from proplace.schema.values import is_missing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pandas as pd

    from proplace.core.network import Array, Network
    from proplace.loaders.columns import DType
    from proplace.loaders.layers import Activation

_BATCH = 4096  # graphs that take more rows at once, and no other number, are not run
_INTEGERS = (2, 3, 4, 5, 6, 7, 12, 13)
_DTYPES: dict[int, DType] = {**dict.fromkeys(_INTEGERS, "integer"), 9: "boolean"}
_NUMPY = {1: np.float32, 11: np.float64, 7: np.int64, 6: np.int32, 9: np.bool_, 8: np.object_}
_READ = (
    "only Gemm, MatMul, Add, Relu, BatchNormalization, scaling by constants, encoders and selections "
    "of columns before the first layer, and a last Sigmoid or Softmax are read. Train the model with "
    "those, or give the original model to Model.of"
)


def from_onnx(path: Path) -> Model:
    """Read an ONNX file with all that its graph does to the table.

    Rows pass linear layers with a Relu between them. After a layer, fixed scaling such as batch norm
    is folded into that layer, or into the next one after a Relu. Shifts (delta) still refer to the
    weights in the file. The outputs must agree with the logits: classes in their order, threshold
    at one half. The precision is ``float64`` if all weights are stored so, else ``float32``.
    """
    with unreadable(path):
        return _OnnxModel(path).imported()


class _OnnxModel:
    """A graph and its trace."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.graph = Graph(path)
        self.trace = Trace(path.name, "Gemm or MatMul")
        self.double: list[bool] = []  # for each layer: True if its weights are float64
        self.columns: dict[str, list[str]] = {}  # of the table, for each input
        self.values: dict[str, Any] = {}
        self.turned: set[str] = set()  # tensors whose rows lie as columns, after a Transpose
        self.classifier: Callable[[Array], dict[str, Any]] | None = None
        self.consumers: dict[str, list[Any]] = {}
        for node in self.graph.nodes:
            for name in dict.fromkeys(node.input):
                self.consumers.setdefault(name, []).append(node)
        self._inputs()
        self._follow()
        self.outputs = self._understood()
        named = [output for output in self.outputs if output.labels]
        self.labels: tuple[Any, ...] = named[0].labels if named else ()
        for other in named[1:]:
            if other.labels != self.labels:
                raise ModelNotSupportedError(
                    f"{path.name}: outputs {named[0].name!r} and {other.name!r} name the classes in two "
                    f"ways ({str(list(self.labels))[:100]}, {str(list(other.labels))[:100]}). "
                    "Export the model again"
                )

    # -- results -------------------------------------------------------------------------------

    def imported(self) -> Model:
        """Return the model from the table to the class."""
        trace = self.trace
        schema, input_transform = trace.flow.finish(trace.columns)
        network = self._layers().with_input_transform(input_transform)
        table = probe_table(schema, integers=trace.flow.integers)
        runs = self._compare(*unscaled(network, schema, table), self._cells(table))
        has_probabilities = any(output.has_probabilities for output in self.outputs)
        return Model.imported(
            network,
            schema,
            self.labels or None,
            self._predict if runs else None,
            columns=tuple(trace.titles),
            has_column_names=len(self.columns) > 1,
            probabilities=self._probabilities if runs and has_probabilities else None,
        )

    def _layers(self) -> Network:
        network = self.trace.chain.network("float64" if all(self.double) else "float32")
        if network.outputs > limits.CLASSES:
            raise ModelNotSupportedError(
                f"{self.path.name}: the network has {network.outputs:,} outputs. Models of at most "
                f"{limits.CLASSES:,} classes are read"
            )
        return network

    def _predict(self, frame: pd.DataFrame) -> Any:
        """Label of each row by the graph: from an output of labels, else from scores."""
        results = self._run(self._cells(frame), len(frame))
        if results is None:
            return None
        labels = np.array(self.labels or range(max(2, self.trace.chain.width or 2)), dtype=object)
        pairs = list(zip(self.outputs, results, strict=True))
        for output, value in pairs:
            if output.is_label and (self.labels or all(o.is_label for o in self.outputs)):
                return np.array(np.ravel(value).tolist(), dtype=object)
        output, value = next(pair for pair in pairs if not pair[0].is_label)
        return labels[output.classes(value, len(frame))]

    def _probabilities(self, frame: pd.DataFrame) -> Any:
        results = self._run(self._cells(frame), len(frame))
        for output, value in zip(self.outputs, results or (), strict=False):
            if output.has_probabilities:
                return output.probabilities(value, len(frame))
        return None

    def _compare(self, network: Network, rows: Array, cells: dict[str, Any]) -> bool:
        """Compare the network with the graph, and return False if the graph is not run here."""
        results = self._run(cells, len(rows))
        logits, error = network.logits(rows), allowance(network, rows, "float32")
        for output, value in zip(self.outputs, results or (), strict=results is not None):
            if not output.agrees(value, logits, error):
                raise ModelNotSupportedError(
                    f"{self.path.name}: output {output.name!r} of the graph differs from the imported "
                    f"network; {SCORES}"
                )
        return results is not None

    # -- running the graph -----------------------------------------------------------------------

    @cached_property
    def _session(self) -> Callable[[dict[str, Any]], list[Any]]:
        """Function that runs the graph: by onnxruntime, or by the slower reference."""
        names = self.graph.outputs
        with suppress(Exception):  # not installed, another version, or types mixed as skl2onnx does
            runtime = importlib.import_module("onnxruntime")
            options = runtime.SessionOptions()
            options.log_severity_level = 4
            options.intra_op_num_threads = 1
            session = runtime.InferenceSession(
                self._runnable().SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            return lambda feeds: list(session.run(names, feeds))

        def by_reference(feeds: dict[str, Any]) -> list[Any]:
            known = dict(feeds)
            self.graph.evaluate(known, layers=True)
            found = [known[name] for name in names]
            return [value.array if isinstance(value, Named) else value for value in found]

        return by_reference

    def _runnable(self) -> Any:
        """Copy the nodes that are needed, with arrays for the dictionaries of a ZipMap."""
        model = self.graph.model
        part = type(model)()
        part.CopyFrom(model)
        graph = part.graph
        for field in ("node", "initializer", "sparse_initializer", "value_info"):
            graph.ClearField(field)
        graph.node.extend(self.graph.nodes)
        needed = self.consumers.keys() | set(self.graph.outputs)
        graph.initializer.extend(t for t in model.graph.initializer if t.name in needed)
        part.ClearField("functions")
        types = {value.name: value for value in graph.output}
        for node in graph.node:
            if node.op_type == "ZipMap":
                node.op_type, node.domain = "Identity", ""
                node.ClearField("attribute")
                if node.output[0] in types:
                    types[node.output[0]].ClearField("type")
        return part

    def _cells(self, frame: pd.DataFrame) -> dict[str, Any]:
        """Columns of a table, of which those without any effect may be absent."""
        return {
            str(name): [np.nan if is_missing(cell) else cell for cell in column.tolist()]
            for name, column in self.trace.table(frame).items()
        }

    def _run(self, cells: dict[str, Any], count: int) -> list[Any] | None:
        """Outputs of the graph, or None if it is not run here.

        A graph that was exported from an example may be fixed to the number of rows in it. Then
        some rows run twice to fill the last batch.
        """
        feeds: dict[str, Any] = {}
        batch = 0
        for value in self.graph.inputs:
            sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            batch = batch or (sizes[0] if sizes else 0)
            kind = _NUMPY.get(value.type.tensor_type.elem_type, np.float32)
            columns = [list(cells[name]) for name in self.columns[value.name]]
            array = np.array(columns, dtype=object).T.reshape(count, len(columns))
            if kind is np.object_:
                array = np.array([[str(cell) for cell in row] for row in array], dtype=object)
            array = array.astype(kind)
            feeds[value.name] = array.reshape(-1) if len(sizes) == 1 else array
        if batch > _BATCH:
            return None
        batch = batch or count
        filled = np.resize(np.arange(count), count + -count % batch)
        try:
            runs = [
                self._session({name: rows[filled[i : i + batch]] for name, rows in feeds.items()})
                for i in range(0, len(filled), batch)
            ]
        except Exception:
            return None
        parts = zip(*runs, strict=True)
        return [np.concatenate([np.atleast_1d(p) for p in part])[:count] for part in parts]

    # -- the graph -----------------------------------------------------------------------------

    def _inputs(self) -> None:
        inputs = self.graph.inputs
        for value in inputs:
            kind = value.type.tensor_type
            sizes = [dim.dim_value or None for dim in kind.shape.dim]
            if len(sizes) not in (0, 1, 2):
                raise ModelNotSupportedError(
                    f"{self.path.name}: input {value.name!r} has {len(sizes)} dimensions. It must take "
                    "rows, shape (n, d)"
                )
            width = sizes[1] if len(sizes) == 2 else 1 if sizes else None
            width = width or (self._first_width() if len(inputs) == 1 else None)
            if width is None:
                raise ModelNotSupportedError(
                    f"{self.path.name}: input {value.name!r} has an unknown number of columns. Export "
                    "the model with inputs of shape (None, d)"
                )
            if len(self.trace.titles) + width > limits.TABLE_COLUMNS:
                raise ModelFileError(
                    f"{self.path.name}: the graph takes {len(self.trace.titles) + width:,} columns. "
                    f"Models of at most {limits.TABLE_COLUMNS:,} are read"
                )
            if sizes and sizes[0]:
                self.trace.rows = sizes[0] if sizes[0] <= _BATCH else ROWS
            prefix = f"{value.name}_" if len(inputs) > 1 else "x"
            alone = width == 1 and len(inputs) > 1
            names = [value.name] if alone else [f"{prefix}{i}" for i in range(width)]
            shape = () if len(sizes) == 1 else (width,)
            self.columns[value.name] = names
            dtype = _DTYPES.get(kind.elem_type, "float")
            self.values[value.name] = self.trace.input(names, shape, dtype)

    def _first_width(self) -> int | None:
        """Number of columns that the first linear layer takes."""
        for node in self.graph.nodes:
            linear = node.op_type in ("Gemm", "MatMul")
            weights = self.graph.stored(node.input[1]) if linear else None
            if weights is not None and weights.ndim == 2:
                transposed = self.graph.attributes(node).get("transB", 0)
                return int(weights.shape[1 if transposed else 0])
        return None

    def _follow(self) -> None:
        """Follow the columns to the logits: the outputs of the last linear layer."""
        last = self._last_layer()
        before = {id(node) for node in self.graph.needed(last.output)}
        self.logits = str(last.output[0])
        for node in self.graph.nodes:
            inputs = [self._known(name) for name in node.input]
            if any(value is None and name for name, value in zip(node.input, inputs, strict=True)):
                continue  # it depends on outputs after the logits
            found: Any
            if not any(isinstance(value, Value) for value in inputs):
                found = self.graph.run(node, inputs)
            elif node.op_type == "Shape":
                found = [self._shape(node, inputs[0])]
            elif id(node) in before or self._continues(node):
                found = self._taken(node, inputs)
            else:
                continue
            self.values.update(zip(node.output, found, strict=False))
        self._merge_opposite()
        if self.classifier is None:
            self.trace.result(f"output {self.logits!r}", self.values[self.logits])

    def _last_layer(self) -> Any:
        depends, last = set(self.columns), None
        for node in self.graph.nodes:
            if depends.intersection(node.input):
                depends.update(node.output)
                last = node if node.op_type in _LINEAR else last
        if last is None:
            read = KNOWN | _HANDLERS.keys()
            odd = [describe(node) for node in self.graph.nodes if node.op_type not in read]
            raise ModelNotSupportedError(
                f"{self.path.name}: {odd[0]} is not part of a ReLU network; {_READ}"
                if odd
                else f"{self.path.name}: the graph has no Gemm or MatMul layer"
            )
        return last

    def _known(self, name: str) -> Any:
        """Value of a tensor: columns, neurons, constants, or None for an input that is left out."""
        return self.values.get(name, self.graph.stored(name))

    def _shape(self, node: Any, value: Value) -> Values:
        shape = (self.trace.rows, *value.entries.shape)
        attributes = self.graph.attributes(node)
        part = shape[attributes.get("start", 0) : attributes.get("end", len(shape))]
        return np.asarray(part, dtype=np.int64)

    def _continues(self, node: Any) -> bool:
        """Return True if a node belongs to the last layer: bias, batch norm, another shape."""
        tensor = self.logits
        alone = len(self.consumers.get(tensor, ())) == 1 and tensor not in self.graph.outputs
        if tensor not in node.input or not alone or self.classifier is not None:
            return False
        bias = node.op_type == "Add" or (node.op_type == "Sub" and node.input[0] == tensor)
        others = {name for name in node.input if name != tensor}
        if not (bias and len(others) == 1) and node.op_type not in _CONTINUING:
            return False
        self.logits = str(node.output[0])
        return True

    def _taken(self, node: Any, inputs: list[Any]) -> Any:
        """Values of a node on the way to the logits."""
        turned = any(name in self.turned for name in node.input)
        taken = _Node(node, inputs, self, turned=turned)
        handler = _HANDLERS.get(node.op_type)
        if handler is None or node.domain not in ("", "ai.onnx", "ai.onnx.ml"):
            taken.refuse()
        if turned and node.op_type not in _TURNED:
            raise ModelNotSupportedError(
                f"{taken.where} acts on transposed rows. Export it without Transpose"
            )
        found = handler(self, taken)
        if turned != (node.op_type == "Transpose"):
            self.turned.add(str(node.output[0]))
        return found if isinstance(found, (list, tuple)) else [found]

    def is_fixed(self, node: Any) -> bool:
        """Return True for a linear map without bias before another one: a PCA of a pipeline."""
        if self.graph.model.producer_name != "skl2onnx" or len(node.input) > 2:
            return False
        users = self.consumers.get(node.output[0], [])
        if any(user.op_type == "Add" for user in users):
            return False
        while len(users) == 1 and users[0].op_type in _PASSED:
            (user,) = users
            if user.op_type in _LINEAR:
                return True
            users = self.consumers.get(user.output[0], [])
        return False

    def _merge_opposite(self) -> None:
        """Turn scores (-z, z), given out or each through a sigmoid, into the one logit z."""
        self.halved = False
        if self.classifier is not None:
            return
        users = self.consumers.get(self.logits, [])
        sigmoid = next((node for node in users if node.op_type == "Sigmoid"), None)
        chain = self.trace.chain
        if any(node.op_type == "Relu" for node in users):
            chain.relu(self.logits)  # the chain then rejects its end
        if sigmoid is not None and (chain.width or 0) > 2:
            raise multi_label(f"{self.path.name}: {describe(sigmoid)}", chain.width or 0)
        softmax = any(node.op_type in ("LogSoftmax", "Softmax") for node in users)
        scores = self.logits in self.graph.outputs and not softmax and chain.is_opposite
        if chain.width == 2 and (sigmoid is not None or scores):
            self.halved = chain.one_logit()
            if not self.halved:
                raise _two_labels(f"{self.path.name}: {describe(sigmoid)}")

    # -- after the logits ------------------------------------------------------------------------

    def _understood(self) -> list[Output]:
        """Run the nodes after the logits on chosen ones, and find the form of each output."""
        logits = chosen_logits(self.trace.chain.network("float64").outputs)
        known: dict[str, Any] = {
            name: value for name, value in self.values.items() if not isinstance(value, Value)
        }
        if self.classifier is not None:
            known |= self.classifier(logits)
        else:
            value = np.hstack([-logits, logits]) if self.halved else logits
            known[self.logits] = value.reshape(len(logits), *self.values[self.logits].entries.shape)
        self.graph.evaluate(known)
        found = []
        for name in self.graph.outputs:
            result = known.get(name)
            if result is None:
                raise ModelNotSupportedError(
                    f"{self.path.name}: output {name!r} cannot be worked out from the logits of the "
                    "network. Export a single classifier with its logits or probabilities as output"
                )
            labels = result.labels if isinstance(result, Named) else None
            array = result.array if isinstance(result, Named) else result
            found.append(understood(self.path, name, np.asarray(array), labels, logits))
        return found


class _Node:
    """A node and its inputs."""

    def __init__(self, node: Any, inputs: list[Any], model: _OnnxModel, *, turned: bool) -> None:
        self.own, self.inputs, self.model, self.turned = node, inputs, model, turned
        self.where = f"{model.path.name}: {describe(node)}"
        self.attributes = model.graph.attributes(node)
        self.followed = [value for value in inputs if isinstance(value, Value)]

    @property
    def value(self) -> Value:
        """The one input that depends on the table."""
        if len(self.followed) != 1:
            self.model.trace.branches(self.where)
        return self.followed[0]

    def constant(self, i: int) -> Values:
        """Return a fixed input."""
        value = self.inputs[i] if i < len(self.inputs) else None
        if isinstance(value, Value):
            raise ModelNotSupportedError(
                f"{self.where} combines two values that both depend on the input. Only constant weights "
                "are read (no skip connections, no products of inputs)"
            )
        if not isinstance(value, np.ndarray):
            raise ModelNotSupportedError(
                f"{self.where} needs constants that are stored in the file"
            )
        return value

    def numbers(self, i: int) -> Array:
        """Return a fixed input as float64 numbers."""
        value = self.constant(i)
        if value.dtype == np.float16 or value.dtype.kind not in "fiub":
            raise ModelNotSupportedError(f"{self.where} has weights of type {value.dtype}")
        return value.astype(np.float64)

    def labels(self, prefix: str) -> list[Any]:
        """Return the labels in one of the attributes for text and numbers."""
        for kind in ("strings", "int64s", "floats"):
            found = self.attributes.get(f"{prefix}_{kind}")
            if found:
                return [item.decode() if isinstance(item, bytes) else item for item in found]
        return []

    def refuse(self) -> NoReturn:
        """Raise for a node that no ReLU network has."""
        raise ModelNotSupportedError(f"{self.where} is not part of a ReLU network; {_READ}")


def _two_labels(where: str) -> ModelNotSupportedError:
    return ModelNotSupportedError(
        f"{where} gives two outputs with a sigmoid each: a model of two labels, not of two classes. "
        "Use softmax, or one output"
    )


# -- operators -------------------------------------------------------------------------------------


def _gemm(model: _OnnxModel, node: _Node) -> Value:
    """Take Gemm, or MatMul, which has neither options nor a bias."""
    a = node.attributes
    if not isinstance(node.inputs[0], Value) or a.get("transA", 0):
        raise ModelNotSupportedError(
            f"{node.where} does not multiply rows by constant weights (A must be the rows, B the "
            "weights, transA 0). Export the layer as Linear"
        )
    B = node.numbers(1)
    W, b, names = (
        float(a.get("alpha", 1.0)) * (B if a.get("transB", 0) else B.T),
        None,
        node.own.input,
    )
    if W.ndim != 2:
        raise ModelNotSupportedError(
            f"{node.where} has weights of shape {W.shape}. It needs a matrix"
        )
    if node.value.step is None and model.is_fixed(node.own):
        return model.trace.matrix(node.where, node.value, W)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        b = float(a.get("beta", 1.0)) * per_column(node.numbers(2))
        b = np.broadcast_to(b, (len(W),)).astype(np.float64)
    model.double.append(node.constant(1).dtype == np.float64)
    titles = str(names[1]), str(names[2]) if b is not None else None
    return model.trace.linear(node.where, node.value, W, b, titles)


def _linear_classifier(model: _OnnxModel, node: _Node) -> Value:
    a = node.attributes
    labels = node.labels("classlabels") or a.get("classlabels_ints") or []
    named = a.get("post_transform", b"NONE")
    transform = named.decode() if isinstance(named, bytes) else str(named)[:100]
    coefficients = np.asarray(a["coefficients"], np.float32).astype(np.float64)
    intercepts = np.asarray(a.get("intercepts", []), np.float32).astype(np.float64)
    rows = intercepts.size or coefficients.size // max(1, node.value.entries.size)
    if transform not in ("NONE", "LOGISTIC", "SOFTMAX") or len(labels) < 2:
        raise ModelNotSupportedError(
            f"{node.where} has {len(labels)} classes and post_transform {transform!r}. It is read "
            "with two classes or more, and NONE, LOGISTIC or SOFTMAX"
        )
    if rows not in (len(labels), 1) or (rows == 1 and len(labels) > 2):
        raise ModelFileError(
            f"{node.where} has {rows} rows of coefficients for {len(labels)} classes. Export the "
            "model again"
        )
    W, b = coefficients.reshape(rows, -1), intercepts if intercepts.size else None
    model.double.append(False)
    value = model.trace.linear(node.where, node.value, W, b, ("coefficients", "intercepts"))
    chain = model.trace.chain
    if rows == 2 and transform == "LOGISTIC" and not chain.is_opposite:
        raise _two_labels(node.where)
    if transform != "SOFTMAX":
        chain.one_logit()

    def outputs(logits: Array) -> dict[str, Any]:
        """Outputs of the node for logits: the label and a score of each class."""
        scores = logits if logits.shape[1] > 1 else np.hstack([-logits, logits])
        with np.errstate(over="ignore"):
            if transform == "SOFTMAX":
                scores = np.exp(scores - np.logaddexp.reduce(scores, axis=1, keepdims=True))
            elif transform == "LOGISTIC":
                scores = 1.0 / (1.0 + np.exp(-scores))
        found = [np.asarray(labels)[predicted(logits)], scores]
        return {name: part for name, part in zip(node.own.output, found, strict=False) if name}

    model.classifier = outputs
    return value


def _arithmetic(model: _OnnxModel, node: _Node) -> Value:
    trace, sign = model.trace, _SIGNS[node.own.op_type]
    left, right = (
        value if isinstance(value, Value) else per_column(node.numbers(i))
        for i, value in enumerate(node.inputs)
    )
    fixed: Any = left if isinstance(right, Value) else right
    adds = sign == "+" or (sign == "-" and fixed is right)
    behind = len(node.followed) == 1 and node.value.step is not None and trace.chain.at_linear
    if adds and behind:
        return trace.bias(node.where, node.value, fixed if sign == "+" else -fixed)
    return trace.arithmetic(node.where, sign, left, right)


def _scaler(model: _OnnxModel, node: _Node) -> Value:
    offset, scale = (
        per_column(np.asarray(node.attributes[name], np.float32).astype(np.float64))
        for name in ("offset", "scale")
    )
    if not np.all(scale):
        raise ModelNotSupportedError(f"{node.where} multiplies a column by zero. Drop that column")
    return model.trace.standardise(node.where, node.value, offset, 1.0 / scale)


def _batch_norm(model: _OnnxModel, node: _Node) -> Value:
    if node.attributes.get("training_mode", 0) or any(node.own.output[1:]):
        raise ModelNotSupportedError(f"{node.where} is in training mode. Export with model.eval()")
    factor, shift, mean, variance = (node.numbers(i).reshape(-1) for i in range(1, 5))
    variance = variance + float(node.attributes.get("epsilon", 1e-5))
    if not (variance > 0.0).all():
        raise ModelFileError(
            f"{node.where} has a variance that is not positive. Export the model again"
        )
    model.double.append(node.constant(1).dtype == np.float64)
    deviation = np.sqrt(variance)
    return model.trace.batch_norm(node.where, node.value, mean, deviation, factor, shift)


def _relu(model: _OnnxModel, node: _Node) -> Value:
    """Take Relu, or Clip and Max as torch exports ``clamp(min=0)``."""
    bounds = [other for other in node.inputs if not isinstance(other, Value)]
    if node.own.op_type != "Relu":
        low, *high = bounds or [None]
        bounded = any(other is not None for other in high) or "max" in node.attributes
        if low is None or np.size(low) != 1 or np.any(low) or bounded:
            node.refuse()
    return model.trace.relu(node.where, node.value)


def _moved(model: _OnnxModel, node: _Node) -> Any:
    """Run a node that only moves numbers on the positions of the numbers."""

    def function(places: list[Any]) -> Any:
        rest = iter(np.transpose(part) if node.turned else part for part in places)
        inputs = [next(rest) if isinstance(v, Value) else v for v in node.inputs]
        results = model.graph.run(node.own, inputs)
        found = [np.asarray(part).astype(np.int64) for part in results if part is not None]
        found = [np.transpose(part) for part in found] if node.turned else found
        return tuple(found) if len(found) > 1 else found[0]

    return model.trace.move(node.where, node.followed, function)


def _transpose(model: _OnnxModel, node: _Node) -> Value:
    """Take rows as columns, or back."""
    if list(node.attributes.get("perm", [1, 0])) != [1, 0] or node.value.entries.ndim != 1:
        node.refuse()
    return node.value


def _gather(model: _OnnxModel, node: _Node) -> Any:
    """Select columns, or look up the vectors of categories: an embedding."""
    if isinstance(node.inputs[0], Value):
        return _moved(model, node)
    E = node.numbers(0)
    if E.ndim != 2 or node.turned or node.attributes.get("axis", 0) not in (0, -2):
        raise ModelNotSupportedError(f"{node.where} looks up more than the vectors of categories")
    return model.trace.vectors(node.where, node.value, E)


def _dropout(model: _OnnxModel, node: _Node) -> Value:
    if len(node.inputs) > 2 and node.inputs[2] is not None and np.any(node.constant(2)):
        raise ModelNotSupportedError(f"{node.where} is in training mode. Export with model.eval()")
    return node.value


def _cast(model: _OnnxModel, node: _Node) -> Value:
    """Take the same values in another type."""
    value, kinds = node.inputs[0], model.graph.onnx.TensorProto
    if not isinstance(value, Value):
        raise ModelNotSupportedError(
            f"{node.where} takes its type from the table, which is not read"
        )
    model.graph.check_cast(node.own)
    to = _like(model, node) if node.own.op_type == "CastLike" else int(node.attributes["to"])
    if to in (kinds.FLOAT, kinds.DOUBLE) or (value.step is None and _is_exact(model, value, to)):
        return value
    if value.step is not None or to not in (*_INTEGERS, kinds.STRING):
        raise ModelNotSupportedError(
            f"{node.where} rounds the values. Only casts to floats are read"
        )
    return Value(value.entries, whole=True)


def _is_exact(model: _OnnxModel, value: Value, to: int) -> bool:
    """Return True if columns keep their values in an integer or boolean type."""
    kept = {"integer", "boolean"} if to in _INTEGERS else {"boolean"} if to == 9 else set()
    sources = model.trace.flow.sources
    return all(
        isinstance(c, Single)
        and c == Single(c.feature, c.label)
        and (sources[c.feature].dtype in kept if c.label is None else bool(kept))
        for c in value.entries.flat
    )


def _like(model: _OnnxModel, node: _Node) -> int:
    """Type of the second input of a CastLike."""
    name, like = node.own.input[1], node.inputs[1]
    for value in model.graph.inputs:
        if value.name == name:
            return int(value.type.tensor_type.elem_type)
    if isinstance(like, np.ndarray):
        return int(model.graph.onnx.helper.np_dtype_to_tensor_dtype(like.dtype))
    return 1


def _one_hot(model: _OnnxModel, node: _Node) -> Value:
    labels = node.labels("cats")
    check_labels(node.where, len(labels))
    found = model.trace.categories(node.where, Value(node.value.entries), labels)
    return model.trace.one_hot(node.where, found, len(labels))


def _one_hot_of_codes(model: _OnnxModel, node: _Node) -> Value:
    depth, values = int(node.constant(1).reshape(-1)[0]), node.constant(2).reshape(-1)
    if depth > limits.LABELS or node.attributes.get("axis", -1) != -1 or list(values) != [0, 1]:
        raise ModelNotSupportedError(
            f"{node.where} has {depth} categories, values {values[:9]} or another axis; up to "
            f"{limits.LABELS} categories are read, as 0 and 1 along the last axis"
        )
    return model.trace.one_hot(node.where, node.value, depth)


def _equal(model: _OnnxModel, node: _Node) -> Value:
    """Compare codes with 0, 1, ...: a one-hot encoding, as torch exports it."""
    value = node.value
    codes = node.constant(1 if node.inputs[0] is value else 0).reshape(-1)
    shape = value.entries.shape
    if not shape or shape[-1] != 1 or codes.tolist() != list(range(len(codes))):
        node.refuse()
    check_labels(node.where, len(codes))
    found = model.trace.one_hot(node.where, Value(value.entries.reshape(shape[:-1])), len(codes))
    return Value(found.entries)


def _label_encoder(model: _OnnxModel, node: _Node) -> Value:
    keys, values = node.labels("keys"), node.labels("values")
    if any(isinstance(value, str) for value in values) or len(keys) != len(values):
        raise ModelNotSupportedError(f"{node.where} renames categories; encode them as numbers")
    check_labels(node.where, len(keys))
    pairs = sorted(zip(map(float, values), keys, strict=True), key=lambda pair: pair[0])
    codes = [code for code, _ in pairs]
    ordered = codes == [float(i) for i in range(len(codes))]
    return model.trace.categories(
        node.where,
        Value(node.value.entries),
        [key for _, key in pairs] if ordered else keys,
        codes=codes if ordered else [float(value) for value in values],
        ordered=ordered,
    )


def _imputer(model: _OnnxModel, node: _Node) -> Value:
    a = node.attributes
    replaced = a.get("replaced_value_float", a.get("replaced_value_int64", 0.0))
    if replaced == np.iinfo(np.int64).min:  # NaN as skl2onnx writes it for whole numbers
        replaced = np.nan
    if not (isinstance(replaced, float) and np.isnan(replaced)):
        raise ModelNotSupportedError(
            f"{node.where} takes {replaced!r} for a missing cell. Replace it by an empty cell in the "
            "table and fit the imputer with missing_values=nan"
        )
    given = a.get("imputed_value_floats") or a.get("imputed_value_int64s") or []
    value = node.value
    if len(given) not in (1, value.entries.size):
        raise ModelFileError(
            f"{node.where} has {len(given)} numbers for {value.entries.size} columns"
        )
    fills = np.broadcast_to(np.asarray(given, np.float64), (value.entries.size,)).tolist()
    return model.trace.impute(node.where, value, fills)


def _sum(model: _OnnxModel, node: _Node) -> Value:
    axes = node.constant(1).reshape(-1).tolist() if len(node.inputs) > 1 else None
    axes = list(axes or node.attributes.get("axes") or [])
    if len(axes) != 1 or axes[0] == 0:
        raise ModelNotSupportedError(f"{node.where} adds up more than the columns of a row")
    kept = bool(node.attributes.get("keepdims", 1))
    return model.trace.total(node.where, node.value, axes[0], keepdims=kept)


def _end(model: _OnnxModel, node: _Node) -> Value:
    """Take an activation before the last layer, which the chain then rejects."""
    return model.trace.activation(node.where, node.value, _ENDS[node.own.op_type])


_LINEAR = frozenset({"Gemm", "LinearClassifier", "MatMul"})
_SIGNS = {"Add": "+", "Div": "/", "Mul": "*", "Sub": "-"}
_MOVING = (
    "ArrayFeatureExtractor Concat FeatureVectorizer Flatten GatherND Identity Reshape Slice Split "
    "Squeeze Unsqueeze"
)
_PASSED = _LINEAR.union(
    _SIGNS, _MOVING.split(), ("Cast", "CastLike", "Dropout", "Gather", "Scaler")
)
_CONTINUING = ("BatchNormalization", "Cast", "Flatten", "Identity", "Reshape", "Squeeze")
_TURNED = ("Cast", "Gather", "GatherND", "Identity", "Transpose")
_ENDS: dict[str, Activation] = {
    "LogSoftmax": "log_softmax",
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
}
_HANDLERS: dict[str, Callable[[_OnnxModel, _Node], Any]] = {
    **dict.fromkeys(_SIGNS, _arithmetic),
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    **dict.fromkeys(("Clip", "Max", "Relu"), _relu),
    **dict.fromkeys(("Gemm", "MatMul"), _gemm),
    **dict.fromkeys(_ENDS, _end),
    **dict.fromkeys(_MOVING.split(), _moved),
    "BatchNormalization": _batch_norm,
    "Dropout": _dropout,
    "Equal": _equal,
    "Gather": _gather,
    "Imputer": _imputer,
    "LabelEncoder": _label_encoder,
    "LinearClassifier": _linear_classifier,
    "Neg": lambda model, node: model.trace.affine(node.where, node.value, -1.0, 0.0),
    "OneHot": _one_hot_of_codes,
    "OneHotEncoder": _one_hot,
    "ReduceSum": _sum,
    "Scaler": _scaler,
    "Transpose": _transpose,
}
