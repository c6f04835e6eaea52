"""What an ONNX graph does to a table in front of its trained layers.

Graphs written by skl2onnx hold the whole pipeline: an input for each column (or one for all), scalers,
encoders, selections, and linear maps such as PCA; those of torch hold scaling, embeddings and batch
norm. Every tensor in front of the first trained layer is followed as a list of columns (see
:mod:`proplace.loaders._flow`).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.errors import ModelFileError, ModelNotSupportedError
from proplace.core.limits import LABELS, TABLE_COLUMNS
from proplace.loaders._flow import Flow, Mixture, Single
from proplace.loaders._onnx_constants import attributes_of, batch_norm_of, check_cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proplace.loaders._flow import DType, Flowing
    from proplace.loaders._onnx_constants import Constants, Values

Columns = list["Flowing"]
_INTEGERS = (2, 3, 4, 5, 6, 7, 12, 13)
_DTYPES: dict[int, DType] = {**dict.fromkeys(_INTEGERS, "integer"), 9: "boolean"}
_LINEAR = frozenset({"MatMul", "Gemm", "LinearClassifier"})
_SAME = frozenset(
    {"Cast", "CastLike", "Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
)
_ELEMENTWISE = _SAME | {"Add", "Div", "Mul", "Scaler", "Sub"}


class Front:
    """The columns of each tensor, from the inputs of the graph to its first trained layer.

    Attributes
    ----------
    flow
        What is known of the columns of the table.
    inputs
        Name and columns of each input of the graph.
    start
        The tensor that the first trained layer takes, and ``columns``, what it holds.
    """

    def __init__(self, onnx: Any, model: Any, path: Path, constants: Constants) -> None:
        self.onnx, self.graph, self.path, self.constants = onnx, model.graph, path, constants
        self._fixed = model.producer_name == "skl2onnx"
        self.flow = Flow()
        self.tensors: dict[str, Columns] = {}
        self.consumers: dict[str, list[Any]] = {}
        for node in self.graph.node:
            for name in dict.fromkeys(node.input):
                self.consumers.setdefault(name, []).append(node)
        self.inputs = self._inputs()
        self.start = self._follow()
        self.columns = self.tensors[self.start]

    def _inputs(self) -> dict[str, list[str]]:
        constant = {tensor.name for tensor in self.graph.initializer}
        values = [value for value in self.graph.input if value.name not in constant]
        found: dict[str, list[str]] = {}
        known = 0
        for value in values:
            sizes = [dim.dim_value or None for dim in value.type.tensor_type.shape.dim]
            width = sizes[1] if len(sizes) == 2 else 1 if len(sizes) == 1 else None
            if width is None:
                raise ModelNotSupportedError(
                    f"{self.path.name}: input {value.name!r} does not say how many columns it has; "
                    "export the model with inputs of shape (None, d)"
                )
            known += width
            if known > TABLE_COLUMNS:
                raise ModelFileError(
                    f"{self.path.name}: the graph takes {known:,} columns; models of at most "
                    f"{TABLE_COLUMNS:,} are read"
                )
            single = width == 1 and len(values) > 1
            prefix = "x" if len(values) == 1 else f"{value.name}_"
            names = [value.name] if single else [f"{prefix}{i}" for i in range(width)]
            found[value.name] = names
            dtype = _DTYPES.get(value.type.tensor_type.elem_type, "float")
            self.tensors[value.name] = [self.flow.column(name, dtype) for name in names]
        return found

    def _follow(self) -> str:
        """Lead the columns through the graph; return the tensor that enters the trained layers."""
        for node in self.graph.node:
            held = [name for name in node.input if name in self.tensors]
            if not held:
                continue
            where = f"{self.path.name}: node {node.name!r} ({node.op_type})"
            if node.op_type in _LINEAR and not (self._fixed and self._leads_to_linear(node)):
                return str(held[0])
            handler = _HANDLERS.get(node.op_type)
            if handler is None:
                raise ModelNotSupportedError(
                    f"{where} is not read in front of the first layer; read are scalers, encoders, "
                    "selections and concatenations of columns. Export the model without that step "
                    "and apply it to the table beforehand"
                )
            outputs = handler(self, where, node, attributes_of(self.onnx, node))
            for name, columns in zip(node.output, outputs, strict=False):
                self.tensors[name] = columns
        raise ModelNotSupportedError(f"{self.path.name}: the graph has no Gemm or MatMul layer")

    def _leads_to_linear(self, node: Any) -> bool:
        """Whether another linear map follows before anything else happens to the columns."""
        while True:
            users = self.consumers.get(node.output[0], [])
            if len(users) != 1 or users[0].op_type not in _ELEMENTWISE | _LINEAR:
                return False
            node = users[0]
            if node.op_type in _LINEAR:
                return True

    # -- what handlers ask ---------------------------------------------------------------------

    def columns_of(self, where: str, name: str) -> Columns:
        """Columns of a tensor that depends on the table."""
        if name not in self.tensors:
            raise ModelNotSupportedError(f"{where} takes a tensor that is not part of the table")
        return self.tensors[name]

    def constant(self, where: str, name: str) -> Values:
        """Value of a tensor that does not depend on the table."""
        value = self.constants.get(name)
        if value is None:
            raise ModelNotSupportedError(f"{where} needs a constant for {name!r}")
        return np.asarray(value)


def _spread(where: str, values: Any, count: int) -> list[float]:
    """One number for each column; a single one stands for all."""
    flat = np.asarray(values, dtype=np.float64).reshape(-1)
    if flat.size not in (1, count):
        raise ModelFileError(f"{where} has {flat.size} numbers for {count} columns")
    return [float(v) for v in np.broadcast_to(flat, (count,))]


def _same(front: Front, where: str, node: Any, _: dict[str, Any]) -> list[Columns]:
    return [front.columns_of(where, node.input[0])]


def _cast(front: Front, where: str, node: Any, attributes: dict[str, Any]) -> list[Columns]:
    """Another type for the same values, unless it cuts off decimals."""
    check_cast(front.onnx, where, attributes.get("to"))
    kinds = front.onnx.TensorProto
    encoded = all(
        user.op_type in ("OneHotEncoder", "LabelEncoder")
        or (user.op_type == "Gather" and node.output[0] not in user.input[:1])  # an embedding
        for user in front.consumers.get(node.output[0], [])
    )
    if attributes.get("to") not in (kinds.FLOAT, kinds.DOUBLE) and not encoded:
        raise ModelNotSupportedError(
            f"{where} cuts off decimals or makes text; only categories may be whole numbers or text"
        )
    return [front.columns_of(where, node.input[0])]


def _cast_like(front: Front, where: str, node: Any, _: dict[str, Any]) -> list[Columns]:
    columns, like = front.columns_of(where, node.input[0]), node.input[1]
    if like in front.tensors:  # the type of an input of the graph
        taken = {Single(name) for name in front.inputs.get(like, ())}
        whole = {Single(name) for name in front.flow.integers}
        exact = bool(taken) and (not taken <= whole or whole.issuperset(columns))
    else:
        exact = front.constant(where, like).dtype in (np.float32, np.float64)
    if not exact:
        raise ModelNotSupportedError(f"{where} rounds the values; only casts to floats are read")
    return [columns]


def _concat(front: Front, where: str, node: Any, attributes: dict[str, Any]) -> list[Columns]:
    if attributes.get("axis", 1) not in (1, -1):
        raise ModelNotSupportedError(f"{where} joins rows, not columns")
    return _join(front, where, node, attributes)


def _join(front: Front, where: str, node: Any, _: dict[str, Any]) -> list[Columns]:
    return [[column for name in node.input for column in front.columns_of(where, name)]]


def _select(front: Front, where: str, node: Any, attributes: dict[str, Any]) -> list[Columns]:
    if node.op_type == "Gather" and attributes.get("axis", 0) not in (1, -1):
        raise ModelNotSupportedError(f"{where} selects rows, not columns")
    columns = front.columns_of(where, node.input[0])
    places = front.constant(where, node.input[1]).reshape(-1).astype(np.int64)
    return [[columns[int(i)] for i in places]]


def _gather(front: Front, where: str, node: Any, attributes: dict[str, Any]) -> list[Columns]:
    """Select columns, or look up the vectors of a category: an embedding, as torch writes it."""
    if node.input[0] in front.tensors:
        return _select(front, where, node, attributes)
    vectors = np.asarray(front.constant(where, node.input[0]), dtype=np.float64)
    columns = front.columns_of(where, node.input[1])
    if vectors.ndim != 2 or len(columns) != 1 or attributes.get("axis", 0) not in (0, -2):
        raise ModelNotSupportedError(
            f"{where} looks up several columns at once; look up one column of categories at a time, "
            "as x[:, 3].long()"
        )
    if len(vectors) > LABELS:
        raise ModelNotSupportedError(
            f"{where} has {len(vectors)} categories, more than {LABELS}; put rare ones into one "
            "category, and train the model with that"
        )
    name = front.flow.labels(where, columns[0], range(len(vectors)), ordered=False)
    labels: Columns = [Single(name, n) for n in range(len(vectors))]
    return [front.flow.mix(labels, vectors.T, np.zeros(vectors.shape[1]))]


def _split(front: Front, where: str, node: Any, attributes: dict[str, Any]) -> list[Columns]:
    columns = front.columns_of(where, node.input[0])
    if attributes.get("axis", 0) not in (1, -1):
        raise ModelNotSupportedError(f"{where} splits rows, not columns")
    if len(node.input) > 1:
        sizes = front.constant(where, node.input[1]).reshape(-1).tolist()
    else:
        count = len(node.output)
        sizes = attributes.get("split") or [-(-len(columns) // count)] * count
    ends = np.cumsum([0, *sizes]).tolist()
    return [columns[a:b] for a, b in itertools.pairwise(ends)]


def _slice(front: Front, where: str, node: Any, _: dict[str, Any]) -> list[Columns]:
    parts = [front.constant(where, name).reshape(-1).tolist() for name in node.input[1:] if name]
    if len(parts) < 3 or any(len(part) != 1 for part in parts) or parts[2][0] not in (1, -1):
        raise ModelNotSupportedError(f"{where} is not a slice of columns")
    step = parts[3][0] if len(parts) > 3 else 1
    return [front.columns_of(where, node.input[0])[parts[0][0] : parts[1][0] : step]]


def _sum(front: Front, where: str, node: Any, attributes: dict[str, Any]) -> list[Columns]:
    axes = (
        front.constant(where, node.input[1]).reshape(-1).tolist() if len(node.input) > 1 else None
    )
    if (axes or attributes.get("axes")) not in ([1], [-1]) or not attributes.get("keepdims", 1):
        raise ModelNotSupportedError(f"{where} adds up more than the columns of a row")
    columns = front.columns_of(where, node.input[0])
    return [front.flow.mix(columns, np.ones((1, len(columns))), np.zeros(1))]


def _arithmetic(front: Front, where: str, node: Any, _: dict[str, Any]) -> list[Columns]:
    first = node.input[0] in front.tensors
    name, other = node.input if first else node.input[::-1]
    columns = front.columns_of(where, name)
    c = _spread(where, front.constant(where, other), len(columns))
    op = node.op_type
    if (op == "Div" and not first) or (op == "Div" and 0.0 in c) or (op == "Mul" and 0.0 in c):
        raise ModelNotSupportedError(
            f"{where} divides by a column or by zero, or multiplies by zero"
        )
    return [[column.then(*_moved(op, v, first)) for column, v in zip(columns, c, strict=True)]]


def _moved(op: str, v: float, first: bool) -> tuple[float, float]:
    """Offset and scale of an operation with a constant."""
    if op == "Add":
        return -v, 1.0
    if op == "Sub":
        return v, 1.0 if first else -1.0
    return (0.0, 1.0 / v) if op == "Mul" else (0.0, v)


def _scaler(front: Front, where: str, node: Any, attributes: dict[str, Any]) -> list[Columns]:
    columns = front.columns_of(where, node.input[0])
    offset = _spread(where, np.asarray(attributes["offset"], np.float32), len(columns))
    scale = _spread(where, np.asarray(attributes["scale"], np.float32), len(columns))
    if 0.0 in scale:
        raise ModelNotSupportedError(f"{where} multiplies a column by zero; drop that column")
    return [[c.then(o, 1.0 / s) for c, o, s in zip(columns, offset, scale, strict=True)]]


def _batch_norm(front: Front, where: str, node: Any, attributes: dict[str, Any]) -> list[Columns]:
    columns = front.columns_of(where, node.input[0])
    parts = [front.constant(where, name) for name in node.input[1:5]]
    numbers = [
        _spread(where, part, len(columns)) for part in batch_norm_of(where, node, attributes, parts)
    ]
    if 0.0 in numbers[2]:
        raise ModelNotSupportedError(f"{where} multiplies a column by zero; drop that column")
    return [
        [
            column.then(mean, deviation / factor).then(-shift, 1.0)
            for column, mean, deviation, factor, shift in zip(columns, *numbers, strict=True)
        ]
    ]


def _one_hot(front: Front, where: str, node: Any, attributes: dict[str, Any]) -> list[Columns]:
    labels = _labels(attributes, "cats")
    out: Columns = []
    for column in front.columns_of(where, node.input[0]):
        name = front.flow.labels(where, column, labels, ordered=False)
        out += [Single(name, n) for n in range(len(labels))]
    return [out]


def _label_encoder(
    front: Front, where: str, node: Any, attributes: dict[str, Any]
) -> list[Columns]:
    keys, values = _labels(attributes, "keys"), _labels(attributes, "values")
    (column,) = front.columns_of(where, node.input[0])
    if any(isinstance(value, str) for value in values) or len(keys) != len(values):
        raise ModelNotSupportedError(f"{where} renames categories; encode them as numbers")
    order = sorted(range(len(keys)), key=lambda i: float(values[i]))
    codes = [float(values[i]) for i in order]
    if codes == [float(i) for i in range(len(codes))]:
        return [[Single(front.flow.labels(where, column, [keys[i] for i in order], ordered=True))]]
    name = front.flow.labels(where, column, keys, ordered=False)
    terms = tuple((float(v), Single(name, n)) for n, v in enumerate(values) if v)
    return [[Mixture(terms)]]


def _labels(attributes: dict[str, Any], prefix: str) -> list[Any]:
    for kind in ("strings", "int64s", "floats"):
        found = attributes.get(f"{prefix}_{kind}")
        if found:
            return [item.decode() if isinstance(item, bytes) else item for item in found]
    return []


def _imputer(front: Front, where: str, node: Any, attributes: dict[str, Any]) -> list[Columns]:
    columns = front.columns_of(where, node.input[0])
    replaced = attributes.get("replaced_value_float", attributes.get("replaced_value_int64", 0.0))
    if not (isinstance(replaced, float) and np.isnan(replaced)):
        raise ModelNotSupportedError(
            f"{where} takes {replaced!r} for a missing cell; replace it by an empty cell in the "
            "table and fit the imputer with missing_values=nan"
        )
    given = attributes.get("imputed_value_floats") or attributes.get("imputed_value_int64s") or []
    for column, value in zip(columns, _spread(where, given, len(columns)), strict=True):
        front.flow.fill(where, column, value)
    return [columns]


def _matrix(front: Front, where: str, node: Any, attributes: dict[str, Any]) -> list[Columns]:
    """Take a fixed linear map such as PCA."""
    columns = front.columns_of(where, node.input[0])
    W = np.asarray(front.constant(where, node.input[1]), dtype=np.float64)
    W = W if attributes.get("transB", 0) else W.T
    constant = np.zeros(len(W))
    if len(node.input) > 2 and node.input[2]:
        c = _spread(where, front.constant(where, node.input[2]), len(W))
        constant = float(attributes.get("beta", 1.0)) * np.asarray(c)
    return [front.flow.mix(columns, float(attributes.get("alpha", 1.0)) * W, constant)]


_HANDLERS: dict[str, Callable[[Front, str, Any, dict[str, Any]], list[Columns]]] = {
    **dict.fromkeys(_SAME, _same),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _arithmetic),
    "ArrayFeatureExtractor": _select,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Concat": _concat,
    "FeatureVectorizer": _join,
    "Gather": _gather,
    "Gemm": _matrix,
    "Imputer": _imputer,
    "LabelEncoder": _label_encoder,
    "MatMul": _matrix,
    "OneHotEncoder": _one_hot,
    "ReduceSum": _sum,
    "Scaler": _scaler,
    "Slice": _slice,
    "Split": _split,
}
