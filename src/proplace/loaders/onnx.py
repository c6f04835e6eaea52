"""ONNX graphs, from the inputs of the table to the logits; what follows the logits is verified.

The graph is followed to its last linear layer. What stands behind it (probabilities, labels, names
of classes) is run on chosen logits, near the threshold and far from it, and each output must then
be one of the forms of :mod:`proplace.loaders.outputs`. At last the whole graph is run on made-up
rows, by onnxruntime or by the reference of the ``onnx`` package, and must agree.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core import limits
from proplace.core.errors import ModelFileError, ModelNotSupportedError
from proplace.loaders.columns import Single
from proplace.loaders.layers import multi_label, per_column
from proplace.loaders.onnx_graph import KNOWN, Graph, Named, Values, describe, unreadable
from proplace.loaders.outputs import SCORES, Output, chosen_logits, predicted, understood
from proplace.loaders.trace import ROWS, Trace, Value, check_labels
from proplace.loaders.verify import Whole, allowance, probe_rows, probe_table, unscaled
from proplace.schema.values import is_missing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pandas as pd

    from proplace.core.network import Array, Network
    from proplace.loaders.columns import DType

_LINEAR = frozenset({"Gemm", "LinearClassifier", "MatMul"})
_BATCH = 4096  # a graph that takes more rows at once, and no other number, is not run
_INTEGERS = (2, 3, 4, 5, 6, 7, 12, 13)
_DTYPES: dict[int, DType] = {**dict.fromkeys(_INTEGERS, "integer"), 9: "boolean"}
_NUMPY = {1: np.float32, 11: np.float64, 7: np.int64, 6: np.int32, 9: np.bool_, 8: np.object_}
_READ = (
    "only Gemm, MatMul, Add, Relu, BatchNormalization, scaling by constants, encoders and selections "
    "of columns in front, and a last Sigmoid or Softmax are read. Train the model with those"
)


def from_onnx(path: Path) -> Network:
    """Read an ONNX graph that takes rows of numbers.

    Parameters
    ----------
    path
        The file. The graph must have one input of rows, shape (n, d), which passes linear layers
        with a Relu between them. Subtractions, divisions and the like by constants in front become
        the network's input transform; behind a layer, like batch norm, they are folded into it, or
        into the next one behind a Relu. Shifts (delta) still speak of the weights in the file.
        What comes behind the logits must say the same as they do, with the classes in that order
        and the threshold at one half.

    Returns
    -------
    Network
        One sigmoid output is read as the probability of class 1, and classes are decided by the
        logits. The precision is ``float64`` if all weights are stored so, else ``float32``.
    """
    with unreadable(path):
        return _OnnxModel(path).network()


def whole_onnx(path: Path) -> Whole:
    """Read an ONNX file with all that its graph does to the table."""
    with unreadable(path):
        return _OnnxModel(path).whole()


class _OnnxModel:
    """A graph, and what was read of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.graph = Graph(path)
        self.trace = Trace(path.name, "Gemm or MatMul")
        self.double: list[bool] = []  # of each layer: weights stored as float64?
        self.columns: dict[str, list[str]] = {}  # of the table, for each input
        self.values: dict[str, Any] = {}
        self.turned: set[str] = set()  # tensors whose rows lie as columns, behind a Transpose
        self.classifier: Callable[[Array], dict[str, Any]] | None = None
        self.consumers: dict[str, list[Any]] = {}
        for node in self.graph.nodes:
            for name in dict.fromkeys(node.input):
                self.consumers.setdefault(name, []).append(node)
        self._fixed = self.graph.model.producer_name == "skl2onnx"
        self._inputs()
        self._follow()
        self.outputs = self._understood()
        named = [output for output in self.outputs if output.labels]
        self.labels: list[Any] = named[0].labels if named else []
        for other in named[1:]:
            if other.labels != self.labels:
                raise ModelNotSupportedError(
                    f"{path.name}: outputs {named[0].name!r} and {other.name!r} name the classes in two "
                    f"ways ({str(self.labels)[:100]}, {str(other.labels)[:100]}); export the model again"
                )

    # -- results -------------------------------------------------------------------------------

    def network(self) -> Network:
        """Return the network of a graph that takes rows of numbers."""
        if len(self.columns) != 1:
            names = ", ".join(map(repr, self.columns))
            raise ModelNotSupportedError(
                f"{self.path.name}: the graph has {len(self.columns)} inputs ({names}); read it whole "
                "with Model.of(path), or export it with one input that holds all columns"
            )
        trace = self.trace
        input_transform = trace.flow.numbers(trace.columns, trace.titles)
        network = self._layers().with_input_transform(input_transform)
        rows = probe_rows(network).astype(np.float32).astype(np.float64)
        for name in trace.flow.integers:
            rows[:, trace.titles.index(name)] = np.round(rows[:, trace.titles.index(name)])
        self._session = self._started()
        self._compare(
            network, rows, self._run(dict(zip(trace.titles, rows.T, strict=True)), len(rows))
        )
        return network

    def whole(self) -> Whole:
        """Return the model from the table to the class."""
        trace = self.trace
        schema, input_transform = trace.flow.finish(trace.columns)
        network = self._layers().with_input_transform(input_transform)
        table = probe_table(schema, integers=trace.flow.integers)
        raw, rows = unscaled(network, schema, table)
        self._session = self._started()
        results = self._run(self._cells(table), len(table))
        self._compare(raw, rows, results)
        known = results is not None
        has_probabilities = any(output.has_probabilities for output in self.outputs)
        return Whole(
            network,
            schema,
            tuple(self.labels) or None,
            self._predict if known else None,
            columns=tuple(trace.titles),
            has_column_names=len(self.columns) > 1,
            probabilities=self._probabilities if known and has_probabilities else None,
        )

    def _layers(self) -> Network:
        network = self.trace.chain.network("float64" if all(self.double) else "float32")
        if network.outputs > limits.CLASSES:
            raise ModelNotSupportedError(
                f"{self.path.name}: the network has {network.outputs:,} outputs; models of at most "
                f"{limits.CLASSES:,} classes are read"
            )
        return network

    def _predict(self, frame: pd.DataFrame) -> Any:
        """Label of each row by the graph itself: from an output of labels, else from scores."""
        results = self._run(self._cells(frame), len(frame))
        if results is None:
            return None
        labels = np.array(self.labels or range(max(2, self.trace.chain.width or 2)), dtype=object)
        pairs = list(zip(self.outputs, results, strict=True))
        for output, value in pairs:
            if output.is_label and (self.labels or not any(not o.is_label for o in self.outputs)):
                return np.array(np.ravel(value).tolist(), dtype=object)
        for output, value in pairs:
            if not output.is_label:
                return labels[output.classes(value, len(frame))]
        return None

    def _probabilities(self, frame: pd.DataFrame) -> Any:
        results = self._run(self._cells(frame), len(frame))
        for output, value in zip(self.outputs, results or (), strict=False):
            if output.has_probabilities:
                return output.probabilities(value, len(frame))
        return None

    # -- running the graph -----------------------------------------------------------------------

    def _started(self) -> Callable[[dict[str, Any]], list[Any]]:
        """Return what runs the graph: onnxruntime, or the slower reference."""
        model = self._runnable()
        names = self.graph.outputs
        with suppress(Exception):  # not installed, another version, or types mixed as skl2onnx does
            runtime = importlib.import_module("onnxruntime")
            options = runtime.SessionOptions()
            options.log_severity_level = 4
            options.intra_op_num_threads = 1
            session = runtime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            return lambda feeds: list(session.run(names, feeds))
        return lambda feeds: self._by_reference(model.graph, feeds)

    def _by_reference(self, graph: Any, feeds: dict[str, Any]) -> list[Any]:
        """Run the graph node by node with the reference implementation."""
        known = dict(feeds)
        for node in graph.node:
            self._with_intercepts(node)
            inputs = [known.get(n, self.graph.stored(n)) if n else None for n in node.input]
            constant = node.op_type == "Constant"
            results = (
                [self.graph.constant(node)]
                if constant
                else self.graph.run(node, inputs, layers=True)
            )
            known.update(zip(node.output, results, strict=True))
        return [known[name] for name in self.graph.outputs]

    def _with_intercepts(self, node: Any) -> None:
        """Write zeros where a LinearClassifier has no intercepts: the reference makes NaN of that."""
        names = [attribute.name for attribute in node.attribute]
        if node.op_type == "LinearClassifier" and "intercepts" not in names:
            (labels,) = (a for a in node.attribute if a.name.startswith("classlabels"))
            zeros = [0.0] * (len(labels.ints) or len(labels.strings))
            node.attribute.append(self.graph.onnx.helper.make_attribute("intercepts", zeros))

    def _runnable(self) -> Any:
        """Copy the model: what was read of it alone, and arrays for the dictionaries of a ZipMap."""
        model = self.graph.model
        part = type(model)()
        part.CopyFrom(model)
        graph = part.graph
        for field in ("node", "initializer", "sparse_initializer", "value_info"):
            graph.ClearField(field)
        graph.node.extend(self.graph.nodes)
        asked = {name for node in self.graph.nodes for name in node.input} | set(self.graph.outputs)
        graph.initializer.extend(t for t in model.graph.initializer if t.name in asked)
        part.ClearField("functions")
        types = {value.name: value for value in graph.output}
        for node in graph.node:
            if node.op_type == "ZipMap":
                node.op_type, node.domain = "Identity", ""
                node.ClearField("attribute")
                types[node.output[0]].ClearField("type") if node.output[0] in types else None
        return part

    def _cells(self, frame: pd.DataFrame) -> dict[str, Any]:
        """Columns of a table; those that the graph never looks at may be left out."""
        used = self.trace.used()
        return {
            name: [self.trace.flow.anything(name)] * len(frame)
            if name not in frame and name not in used
            else [np.nan if is_missing(cell) else cell for cell in frame[name].tolist()]
            for name in self.trace.titles
        }

    def _run(self, cells: dict[str, Any], count: int) -> list[Any] | None:
        """Outputs of the graph; None where it is not run here.

        A graph that was exported from an example may be fixed to the number of rows in that; then
        some rows are run twice to fill the last batch.
        """
        feeds: dict[str, Any] = {}
        fixed = None
        for value in self.graph.inputs:
            sizes = [dim.dim_value or None for dim in value.type.tensor_type.shape.dim]
            fixed = fixed or (sizes[0] if sizes else None)
            kind = _NUMPY.get(value.type.tensor_type.elem_type, np.float32)
            columns = [list(cells[name]) for name in self.columns[value.name]]
            array = np.array(columns, dtype=object).T.reshape(count, len(columns))
            if kind is np.object_:
                array = np.array([[str(cell) for cell in row] for row in array], dtype=object)
            array = array.astype(kind)
            feeds[value.name] = array.reshape(-1) if len(sizes) == 1 else array
        if fixed is not None and fixed > _BATCH:
            return None
        batch = fixed or count
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

    def _compare(self, network: Network, rows: Array, results: list[Any] | None) -> None:
        if results is None:
            return
        logits, error = network.logits(rows), allowance(network, rows, "float32")
        for output, value in zip(self.outputs, results, strict=True):
            if not output.agrees(value, logits, error):
                raise ModelNotSupportedError(
                    f"{self.path.name}: output {output.name!r}, run by itself, differs from the network "
                    f"that was read; {SCORES}"
                )

    # -- the graph -----------------------------------------------------------------------------

    def _inputs(self) -> None:
        inputs = self.graph.inputs
        for value in inputs:
            kind = value.type.tensor_type
            sizes = [dim.dim_value or None for dim in kind.shape.dim]
            if len(sizes) not in (0, 1, 2):
                raise ModelNotSupportedError(
                    f"{self.path.name}: input {value.name!r} has {len(sizes)} dimensions; it must take "
                    "rows, shape (n, d)"
                )
            width = sizes[1] if len(sizes) == 2 else 1 if sizes else None
            width = width or (self._first_width() if len(inputs) == 1 else None)
            if width is None:
                raise ModelNotSupportedError(
                    f"{self.path.name}: input {value.name!r} does not say how many columns it has; "
                    "export the model with inputs of shape (None, d)"
                )
            if len(self.trace.titles) + width > limits.TABLE_COLUMNS:
                raise ModelFileError(
                    f"{self.path.name}: the graph takes {len(self.trace.titles) + width:,} columns; "
                    f"models of at most {limits.TABLE_COLUMNS:,} are read"
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
        """How many columns the first linear layer takes."""
        for node in self.graph.nodes:
            weights = (
                self.graph.stored(node.input[1]) if node.op_type in ("Gemm", "MatMul") else None
            )
            if weights is not None and weights.ndim == 2:
                transposed = self.graph.attributes(node).get("transB", 0)
                return int(weights.shape[1 if transposed else 0])
        return None

    def _follow(self) -> None:
        """Lead the columns to the logits: the outputs of the last linear layer."""
        depends = set(self.columns)
        for node in self.graph.nodes:
            if depends.intersection(node.input):
                depends.update(node.output)
        layers = [n for n in self.graph.nodes if n.op_type in _LINEAR and depends & set(n.input)]
        if not layers:
            read = KNOWN | _HANDLERS.keys()
            odd = [describe(node) for node in self.graph.nodes if node.op_type not in read]
            raise ModelNotSupportedError(
                f"{self.path.name}: {odd[0]} is not part of a ReLU network; {_READ}"
                if odd
                else f"{self.path.name}: the graph has no Gemm or MatMul layer"
            )
        before = self._before(layers[-1])
        for node in self.graph.nodes:
            if self._is_constant(node):
                self._constants(node)
            elif any(node is other for other in before):
                self._value(node)
                if node is layers[-1]:
                    break
        self.logits = str(layers[-1].output[0])
        while self.classifier is None and (node := self._continued(self.logits)) is not None:
            for other in self._before(node)[::-1]:
                if self._is_constant(other):
                    self._constants(other)
            self._value(node)
            self.logits = str(node.output[0])
        self._merge_opposite()
        if self.classifier is None:
            self.trace.result(f"output {self.logits!r}", self.values[self.logits])

    def _is_constant(self, node: Any) -> bool:
        """Return True if the outputs of a node follow from constants and shapes, not known yet."""
        known = [self._known(name) for name in node.input if name]
        shape = node.op_type == "Shape" and known and known[0] is not None
        fixed = not any(value is None or isinstance(value, Value) for value in known)
        return bool(shape or fixed) and not any(name in self.values for name in node.output)

    def _before(self, last: Any) -> list[Any]:
        """The nodes that a node depends on, and itself."""
        producers = {name: node for node in self.graph.nodes for name in node.output}
        found, stack = [], [last]
        seen: set[int] = set()
        while stack:
            node = stack.pop()
            if id(node) not in seen:
                seen.add(id(node))
                found.append(node)
                stack += [producers[name] for name in node.input if name in producers]
        return found

    def _continued(self, tensor: str) -> Any | None:
        """Return a node behind the last layer that belongs to it: bias, batch norm, another shape."""
        users = self.consumers.get(tensor, [])
        if len(users) != 1 or tensor in self.graph.outputs:
            return None
        (node,) = users
        others = {name for name in node.input if name != tensor}
        bias = node.op_type == "Add" or (node.op_type == "Sub" and node.input[0] == tensor)
        return node if (bias and len(others) == 1) or node.op_type in _CONTINUING else None

    def _constants(self, node: Any) -> None:
        if node.op_type == "Constant":
            self.values[node.output[0]] = self.graph.constant(node)
            return
        if node.op_type == "Shape" and isinstance(self.values.get(node.input[0]), Value):
            shape = (self.trace.rows, *self.values[node.input[0]].entries.shape)
            attributes = self.graph.attributes(node)
            part = shape[attributes.get("start", 0) : attributes.get("end", len(shape))]
            self.values[node.output[0]] = np.asarray(part, dtype=np.int64)
            return
        results = self.graph.run(node, [self._known(name) for name in node.input])
        self.values.update(zip(node.output, results, strict=True))

    def _known(self, name: str) -> Any:
        """Value of a tensor: columns, neurons or constants; None for an input that is left out."""
        if name in self.values:
            return self.values[name]
        return self.graph.stored(name) if name else None

    def _value(self, node: Any) -> None:
        """Take a node on the way to the logits."""
        where = f"{self.path.name}: {describe(node)}"
        handler = _HANDLERS.get(node.op_type)
        domain = node.domain in ("", "ai.onnx", "ai.onnx.ml")
        if handler is None or not domain:
            raise ModelNotSupportedError(f"{where} is not part of a ReLU network; {_READ}")
        turned = any(name in self.turned for name in node.input)
        if turned and node.op_type not in _TURNED:
            raise ModelNotSupportedError(
                f"{where} acts on transposed rows; export it without Transpose"
            )
        found = handler(self, _Node(node, where, self, turned))
        results = found if isinstance(found, (list, tuple)) else [found]
        self.values.update(zip(node.output, results, strict=False))
        if turned != (node.op_type == "Transpose"):
            self.turned.add(str(node.output[0]))

    def leads_to_linear(self, node: Any) -> bool:
        """Return True if a linear map of a pipeline is followed by another one, before all else."""
        while self._fixed:
            users = self.consumers.get(node.output[0], [])
            if len(users) != 1 or users[0].op_type not in _ELEMENTWISE | _SELECTING | _LINEAR:
                return False
            (node,) = users
            if node.op_type in _LINEAR:
                return True
        return False

    def _merge_opposite(self) -> None:
        """Turn scores (-z, z), each through a sigmoid, into the one logit z."""
        self.halved = False
        users = self.consumers.get(self.logits, [])
        sigmoid = next((node for node in users if node.op_type == "Sigmoid"), None)
        chain = self.trace.chain
        if any(node.op_type == "Relu" for node in users):
            chain.relu(self.logits)  # the network then refuses to end so
        if sigmoid is not None and (chain.width or 0) > 2:
            raise multi_label(f"{self.path.name}: {describe(sigmoid)}", chain.width or 0)
        if chain.width == 2 and sigmoid is not None:
            self.halved = chain.one_logit()
            if not self.halved:
                raise ModelNotSupportedError(
                    f"{self.path.name}: {describe(sigmoid)} gives two outputs with a sigmoid each: a "
                    "model of two labels, not of two classes. Use softmax, or one output"
                )

    # -- behind the logits -----------------------------------------------------------------------

    def _understood(self) -> list[Output]:
        """Run what stands behind the logits on chosen ones, and say what each output is."""
        network = self.trace.chain.network("float64")
        logits = chosen_logits(network.outputs)
        known: dict[str, Any] = {
            name: value for name, value in self.values.items() if not isinstance(value, Value)
        }
        if self.classifier is not None:
            known |= self.classifier(logits)
        else:
            value = np.hstack([-logits, logits]) if self.halved else logits
            value = value.reshape(len(logits), *self.values[self.logits].entries.shape)
            known[self.logits] = value.T if self.logits in self.turned else value
        for node in self.graph.nodes:
            inputs = [known.get(n, self.graph.stored(n)) if n else None for n in node.input]
            missing = any(v is None and n for n, v in zip(node.input, inputs, strict=True))
            if missing or any(name in known for name in node.output):
                continue
            if node.op_type == "Shape":
                results: list[Any] = [np.array(np.asarray(inputs[0]).shape, dtype=np.int64)]
            elif node.op_type == "Constant":
                results = [self.graph.constant(node)]
            else:
                results = self.graph.run(node, inputs)
            known.update(zip(node.output, results, strict=True))
        found = []
        for name in self.graph.outputs:
            said = known.get(name)
            if said is None:
                raise ModelNotSupportedError(
                    f"{self.path.name}: output {name!r} cannot be worked out from the logits of the "
                    "network; export the model with its logits or probabilities as output"
                )
            labels = said.labels if isinstance(said, Named) else None
            array = said.array if isinstance(said, Named) else said
            found.append(understood(self.path, name, np.asarray(array), labels, logits))
        return found


class _Node:
    """A node and what it takes."""

    def __init__(self, node: Any, where: str, model: _OnnxModel, turned: bool) -> None:
        self.own, self.where, self.model, self.turned = node, where, model, turned
        self.attributes = model.graph.attributes(node)
        self.inputs = [model._known(name) for name in node.input]
        self.followed = [value for value in self.inputs if isinstance(value, Value)]

    @property
    def value(self) -> Value:
        """The one input that depends on the table."""
        if len(self.followed) != 1:
            self.model.trace.branches(self.where)
        return self.followed[0]

    def constant(self, i: int) -> Values:
        """A fixed input."""
        value = self.inputs[i] if i < len(self.inputs) else None
        if isinstance(value, Value):
            raise ModelNotSupportedError(
                f"{self.where} combines two values that both depend on the input; only constant weights "
                "are read (no skip connections, no products of inputs)"
            )
        if not isinstance(value, np.ndarray):
            raise ModelNotSupportedError(
                f"{self.where} needs constants that are stored in the file"
            )
        return value

    def numbers(self, i: int) -> Array:
        """A fixed input as float64 numbers, turned as rows are."""
        value = self.constant(i)
        if value.dtype == np.float16 or value.dtype.kind not in "fiub":
            raise ModelNotSupportedError(f"{self.where} has weights of type {value.dtype}")
        array = value.astype(np.float64)
        return array.T if self.turned and array.ndim == 2 else array

    def labels(self, prefix: str) -> list[Any]:
        """Labels in one of the attributes for text and numbers."""
        for kind in ("strings", "int64s", "floats"):
            found = self.attributes.get(f"{prefix}_{kind}")
            if found:
                return [item.decode() if isinstance(item, bytes) else item for item in found]
        return []


# -- operators -------------------------------------------------------------------------------------


def _gemm(model: _OnnxModel, node: _Node) -> Value:
    a = node.attributes
    if not isinstance(node.inputs[0], Value) or a.get("transA", 0):
        raise ModelNotSupportedError(
            f"{node.where} does not multiply rows by constant weights (A must be the rows, B the "
            "weights, transA 0); export the layer as Linear"
        )
    B = node.numbers(1)
    W = float(a.get("alpha", 1.0)) * (B if a.get("transB", 0) else B.T)
    b = None
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        b = float(a.get("beta", 1.0)) * per_column(node.numbers(2))
    return _linear(model, node, W, b, node.constant(1))


def _matmul(model: _OnnxModel, node: _Node) -> Value:
    left = not isinstance(node.inputs[0], Value)
    if left != node.turned:
        raise ModelNotSupportedError(
            f"{node.where} multiplies across the rows, not along their columns; export the layer as "
            "Linear (rows times constant weights)"
        )
    stored = node.constant(0 if left else 1)
    # ``numbers`` turns weights with the rows.
    W = stored.astype(np.float64) if left else node.numbers(1).T
    return _linear(model, node, W, None, stored)


def _linear(model: _OnnxModel, node: _Node, W: Array, b: Any, stored: Values) -> Value:
    if W.ndim != 2:
        raise ModelNotSupportedError(
            f"{node.where} has weights of shape {W.shape}; it needs a matrix"
        )
    if node.value.step is None and model.leads_to_linear(node.own):
        return model.trace.matrix(node.where, node.value, W, 0.0 if b is None else b)
    if b is not None:
        b = np.broadcast_to(b, (len(W),)).astype(np.float64)
    model.double.append(stored.dtype == np.float64)
    names = str(node.own.input[1]), str(node.own.input[2]) if b is not None else None
    return model.trace.linear(node.where, node.value, W, b, names)


def _linear_classifier(model: _OnnxModel, node: _Node) -> Value:
    a = node.attributes
    labels = a.get("classlabels_ints") or a.get("classlabels_strings") or []
    named = a.get("post_transform", b"NONE")
    transform = named.decode() if isinstance(named, bytes) else str(named)[:100]
    coefficients = np.asarray(a["coefficients"], np.float32).astype(np.float64)
    intercepts = np.asarray(a.get("intercepts", []), np.float32).astype(np.float64)
    inputs = node.value.entries.size
    rows = intercepts.size or coefficients.size // max(1, inputs)
    if transform not in ("NONE", "LOGISTIC", "SOFTMAX") or len(labels) < 2:
        raise ModelNotSupportedError(
            f"{node.where} has {len(labels)} classes and post_transform {transform!r}; it is read "
            "with two classes or more, and NONE, LOGISTIC or SOFTMAX"
        )
    if rows not in (len(labels), 1) or (rows == 1 and len(labels) > 2):
        raise ModelFileError(
            f"{node.where} has {rows} rows of coefficients for {len(labels)} classes; export the "
            "model again"
        )
    W = coefficients.reshape(rows, -1)
    model.double.append(False)
    value = model.trace.linear(
        node.where,
        node.value,
        W,
        intercepts if intercepts.size else None,
        ("coefficients", "intercepts"),
    )
    if rows == 2 and transform == "LOGISTIC" and not model.trace.chain.is_opposite:
        raise ModelNotSupportedError(
            f"{node.where} gives two outputs with a sigmoid each: a model of two labels, not of two "
            "classes. Use softmax, or one output"
        )
    if transform != "SOFTMAX":
        model.trace.chain.one_logit()
    model.classifier = _classifier(node.own, labels, transform)
    return value


def _classifier(node: Any, labels: list[Any], transform: str) -> Callable[[Array], dict[str, Any]]:
    """Return what a LinearClassifier gives for logits: the label and a score of each class."""
    names = [label.decode() if isinstance(label, bytes) else label for label in labels]

    def outputs(logits: Array) -> dict[str, Any]:
        scores = logits if logits.shape[1] > 1 else np.hstack([-logits, logits])
        with np.errstate(over="ignore"):
            if transform == "SOFTMAX":
                scores = np.exp(scores - np.logaddexp.reduce(scores, axis=1, keepdims=True))
            elif transform == "LOGISTIC":
                scores = 1.0 / (1.0 + np.exp(-scores))
        values = [np.asarray(names)[predicted(logits)], scores]
        return {name: value for name, value in zip(node.output, values, strict=False) if name}

    return outputs


def _arithmetic(model: _OnnxModel, node: _Node) -> Value:
    op, trace = node.own.op_type, model.trace
    if len(node.followed) > 1:
        return _of_two(model, node)
    first = isinstance(node.inputs[0], Value)
    c = per_column(node.numbers(1 if first else 0))
    value = node.value
    adds = op == "Add" or (op == "Sub" and first)
    if adds and value.step is not None and trace.chain.at_linear:
        return trace.bias(node.where, value, c if op == "Add" else -c)
    if op == "Sub" and first:
        return trace.standardise(node.where, value, c, 1.0)
    if op in ("Add", "Mul", "Sub"):
        factor, shift = {"Add": (1.0, c), "Mul": (c, 0.0), "Sub": (-1.0, c)}[op]
        return trace.affine(node.where, value, factor, shift)
    if not first or not np.all(c != 0.0):
        raise ModelNotSupportedError(
            f"{node.where} divides by the rows or by zero; only a division by constants is read"
        )
    return trace.standardise(node.where, value, 0.0, c)


def _of_two(model: _OnnxModel, node: _Node) -> Value:
    left, right = node.followed
    if node.own.op_type not in ("Add", "Sub"):
        raise ModelNotSupportedError(
            f"{node.where} combines the rows with themselves; compute that column in the table"
        )
    return model.trace.add(node.where, left, right, 1.0 if node.own.op_type == "Add" else -1.0)


def _negative(model: _OnnxModel, node: _Node) -> Value:
    return model.trace.affine(node.where, node.value, -1.0, 0.0)


def _scaler(model: _OnnxModel, node: _Node) -> Value:
    offset, scale = (
        per_column(np.asarray(node.attributes[name], np.float32).astype(np.float64))
        for name in ("offset", "scale")
    )
    if not np.all(scale):
        raise ModelNotSupportedError(f"{node.where} multiplies a column by zero; drop that column")
    return model.trace.standardise(node.where, node.value, offset, 1.0 / scale)


def _batch_norm(model: _OnnxModel, node: _Node) -> Value:
    if node.attributes.get("training_mode", 0) or any(node.own.output[1:]):
        raise ModelNotSupportedError(f"{node.where} is in training mode; export with model.eval()")
    factor, shift, mean, variance = (node.numbers(i).reshape(-1) for i in range(1, 5))
    variance = variance + float(node.attributes.get("epsilon", 1e-5))
    if not (variance > 0.0).all():
        raise ModelFileError(
            f"{node.where} has a variance that is not positive; export the model again"
        )
    deviation, value = np.sqrt(variance), node.value
    model.double.append(node.constant(1).dtype == np.float64)
    if value.step is not None:
        scale = factor / deviation
        return model.trace.affine(node.where, value, scale, shift - scale * mean)
    if factor.all():
        value = model.trace.standardise(node.where, value, mean, deviation / factor)
        return model.trace.affine(node.where, value, 1.0, shift)
    value = model.trace.standardise(node.where, value, mean, deviation)
    return model.trace.affine(node.where, value, factor, shift)


def _relu(model: _OnnxModel, node: _Node) -> Value:
    if node.own.op_type == "Clip":
        low, high = ([*node.inputs, None, None])[1:3]
        if low is None or np.any(low) or high is not None or "max" in node.attributes:
            raise ModelNotSupportedError(f"{node.where} is not part of a ReLU network; {_READ}")
    if node.own.op_type == "Max":  # of 0 and the rows, as torch exports clamp(min=0)
        others = [other for other in node.inputs if other is not node.value]
        if len(others) != 1 or np.size(others[0]) != 1 or np.any(others[0]):
            raise ModelNotSupportedError(f"{node.where} is not part of a ReLU network; {_READ}")
    return model.trace.relu(node.where, node.value)


def _moved(model: _OnnxModel, node: _Node) -> Any:
    """Run what only moves numbers on their places."""

    def function(places: list[Any]) -> Any:
        rest = iter(places)
        inputs = [next(rest) if isinstance(v, Value) else v for v in node.inputs]
        results = model.graph.run(node.own, inputs)
        found = [np.asarray(part).astype(np.int64) for part in results if part is not None]
        return tuple(found) if len(found) > 1 else found[0]

    return model.trace.move(node.where, node.followed, function)


def _reshape(model: _OnnxModel, node: _Node) -> Any:
    """Take another shape; one that mixes rows is refused."""
    try:
        return _moved(model, node)
    except ModelNotSupportedError:
        raise ModelNotSupportedError(
            f"{node.where} changes the shape of the rows; only reshapes that keep each row are read"
        ) from None


def _transpose(model: _OnnxModel, node: _Node) -> Value:
    """Lay rows as columns, or back."""
    if list(node.attributes.get("perm", [1, 0])) != [1, 0] or node.value.entries.ndim != 1:
        raise ModelNotSupportedError(f"{node.where} is not part of a ReLU network; {_READ}")
    return node.value


def _gather(model: _OnnxModel, node: _Node) -> Any:
    """Select columns, or look up the vectors of categories: an embedding."""
    if isinstance(node.inputs[0], Value):
        return _moved(model, node)
    E, value = node.numbers(0), node.value
    if E.ndim != 2 or node.attributes.get("axis", 0) not in (0, -2):
        raise ModelNotSupportedError(f"{node.where} looks up more than the vectors of categories")
    return model.trace.vectors(node.where, value, E)


def _dropout(model: _OnnxModel, node: _Node) -> Value:
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if training is not None and np.any(node.constant(2)):
        raise ModelNotSupportedError(f"{node.where} is in training mode; export with model.eval()")
    return node.value


def _cast(model: _OnnxModel, node: _Node) -> Value:
    """Take another type for the same values; what is cut to whole numbers can be categories alone."""
    value, kinds = node.inputs[0], model.graph.onnx.TensorProto
    if not isinstance(value, Value):
        raise ModelNotSupportedError(
            f"{node.where} takes its type from the table, which is not read"
        )
    model.graph.check_cast(node.where, node.own)
    to = node.attributes.get("to")
    if node.own.op_type == "CastLike":
        to = _like(model, node)
    if to in (kinds.FLOAT, kinds.DOUBLE):
        return value
    flow = model.trace.flow
    exact = (
        {"integer", "boolean"} if to in _INTEGERS else {"boolean"} if to == kinds.BOOL else set()
    )
    untouched = value.step is None and all(
        isinstance(c, Single) and c == Single(c.feature) and flow.sources[c.feature].dtype in exact
        for c in value.entries.flat
    )
    if untouched:
        return value
    if value.step is not None or to not in (*_INTEGERS, kinds.STRING):
        raise ModelNotSupportedError(
            f"{node.where} rounds the values; only casts to floats are read"
        )
    return Value(value.entries, whole=True)


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
    value = Value(node.value.entries)
    found = model.trace.categories(node.where, value, labels)
    return model.trace.one_hot(node.where, found, len(labels))


def _one_hot_of_codes(model: _OnnxModel, node: _Node) -> Value:
    depth, values = int(node.constant(1).reshape(-1)[0]), node.constant(2).reshape(-1)
    if depth > limits.LABELS or node.attributes.get("axis", -1) != -1 or list(values) != [0, 1]:
        raise ModelNotSupportedError(
            f"{node.where} has {depth} categories, values {values[:9]} or another axis; up to "
            f"{limits.LABELS} categories are read, as 0 and 1 along the last axis"
        )
    return model.trace.one_hot(node.where, node.value, depth)


def _label_encoder(model: _OnnxModel, node: _Node) -> Value:
    keys, values = node.labels("keys"), node.labels("values")
    if any(isinstance(value, str) for value in values) or len(keys) != len(values):
        raise ModelNotSupportedError(f"{node.where} renames categories; encode them as numbers")
    check_labels(node.where, len(keys))
    order = sorted(range(len(keys)), key=lambda i: float(values[i]))
    codes = [float(values[i]) for i in order]
    ordered = codes == [float(i) for i in range(len(codes))]
    labels = [keys[i] for i in order] if ordered else keys
    return model.trace.categories(
        node.where,
        Value(node.value.entries),
        labels,
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
            f"{node.where} takes {replaced!r} for a missing cell; replace it by an empty cell in the "
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


def _final(model: _OnnxModel, node: _Node) -> Value:
    raise ModelNotSupportedError(
        f"{node.where} is followed by another layer; a sigmoid or softmax is read only at the end of "
        "the model. Hidden layers need Relu"
    )


_ARITHMETIC = ("Add", "Div", "Mul", "Sub")
_ELEMENTWISE = frozenset(
    {
        *_ARITHMETIC,
        *("Cast", "CastLike", "Dropout", "Flatten", "Identity", "Reshape", "Scaler", "Squeeze"),
        "Unsqueeze",
    }
)
_SELECTING = frozenset({"ArrayFeatureExtractor", "Concat", "Gather", "Slice"})
_CONTINUING = ("BatchNormalization", "Cast", "Flatten", "Identity", "Reshape", "Squeeze")
_TURNED = frozenset({*_ARITHMETIC, "Cast", "Identity", "MatMul", "Neg", "Relu", "Transpose"})
_HANDLERS: dict[str, Callable[[_OnnxModel, _Node], Any]] = {
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    **dict.fromkeys(("Clip", "Max", "Relu"), _relu),
    **dict.fromkeys(("LogSoftmax", "Sigmoid", "Softmax"), _final),
    **dict.fromkeys(
        ("ArrayFeatureExtractor", "Concat", "FeatureVectorizer", "Identity", "Slice", "Split"),
        _moved,
    ),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshape),
    "BatchNormalization": _batch_norm,
    "Dropout": _dropout,
    "Gather": _gather,
    "Gemm": _gemm,
    "Imputer": _imputer,
    "LabelEncoder": _label_encoder,
    "LinearClassifier": _linear_classifier,
    "MatMul": _matmul,
    "Neg": _negative,
    "OneHot": _one_hot_of_codes,
    "OneHotEncoder": _one_hot,
    "ReduceSum": _sum,
    "Scaler": _scaler,
    "Transpose": _transpose,
}
