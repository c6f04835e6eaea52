"""ONNX graphs, changed field by field; what is accepted is run with onnxruntime."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np

from fuzz.mutate import NUMBERS, damaged, nudged, some
from fuzz.reader import Reader
from fuzz.seeds import seeds_of
from proplace.loaders.model import Model
from proplace.loaders.verify import form_of, unscaled
from proplace.schema import Continuous

_OPS = (
    *("Gemm", "MatMul", "Add", "Sub", "Mul", "Div", "Relu", "Sigmoid", "Softmax"),
    *("LogSoftmax", "Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten"),
    *("Cast", "Constant", "Dropout", "Clip", "Neg", "ArgMax", "Greater", "Less"),
    *("GreaterOrEqual", "LessOrEqual", "Concat", "Slice", "Gather", "Shape", "Tanh", "Sqrt"),
    *("Max", "Min", "Abs", "Not", "Where", "ConstantOfShape", "Expand", "Tile", "Loop", "If"),
    *("Scan", "Scaler", "LinearClassifier", "ZipMap", "Normalizer", "LabelEncoder"),
    *("ArrayFeatureExtractor", "Round"),
)
_ATTRIBUTES = (
    *("alpha", "beta", "transA", "transB", "axis", "axes", "perm", "to", "value"),
    *("value_ints", "scale"),
)
_LOCATIONS = (
    *("weights.bin", "../secret.bin", "/etc/passwd", "./weights.bin", "missing.bin", ""),
    *("case.onnx", "\0"),
)
_MOST = 1e100  # beyond it, float32 models and real numbers part


class OnnxFiles(Reader):
    """Graphs of Gemm, MatMul, Add and Relu."""

    name = "onnx"
    suffix = ".onnx"

    def prepare(self, folder):
        import onnx
        import onnxruntime

        self._onnx, self._runtime = onnx, onnxruntime
        onnxruntime.set_default_logger_severity(4)
        self._seeds = [*seeds_of("onnx"), *_made(onnx)]
        (folder / "files" / "weights.bin").write_bytes(np.arange(12, dtype="<f4").tobytes())
        (folder / "secret.bin").write_bytes(bytes(48))
        self._parsed = [onnx.ModelProto.FromString(seed) for seed in self._seeds]
        self._rng = np.random.default_rng(0)

    def seeds(self):
        return self._seeds

    def make(self, rng):
        if rng.random() < 0.1:
            return damaged(rng, rng.choice(self._seeds), self._seeds)
        model = self._onnx.ModelProto()
        model.CopyFrom(rng.choice(self._parsed))
        for _ in range(some(rng)):
            kind = rng.randrange(10)
            if kind <= 3:
                self._change_node(rng, model.graph)
            elif kind <= 5 and model.graph.initializer:
                self._change_tensor(rng, rng.choice(model.graph.initializer))
            elif kind == 6:
                self._insert_node(rng, model.graph)
            else:
                self._change_field(rng, model)
        data = model.SerializeToString()
        return damaged(rng, data, self._seeds) if rng.random() < 0.05 else data

    def read(self, path, data):
        return Model.of(path)

    def judge(self, data, model):
        arrays = model.network._arrays().values()
        sizes = [abs(v) for array in (*arrays, *model.scaling) for v in (array.max(), array.min())]
        if max(sizes) > 1e15 or not all(isinstance(f, Continuous) for f in model.schema.features):
            return None
        X = self._rng.normal(size=(16, len(model.columns))).astype(np.float32).astype(np.float64)
        network, rows = unscaled(model.network, model.schema, model.table(X))
        with contextlib.suppress(Exception):  # what onnxruntime does not run has no second opinion
            session = self._runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
            (inputs,) = session.get_inputs()
            kind = np.float64 if "double" in inputs.type else np.float32
            if isinstance(inputs.shape[0], int):
                outputs = [session.run(None, {inputs.name: x[None].astype(kind)}) for x in X]
                outputs = [_stacked(values) for values in zip(*outputs, strict=True)]
            else:
                outputs = session.run(None, {inputs.name: X.astype(kind)})
            words = [_explained(network, rows, output) for output in outputs]
            wrong = [word for word in words if word]
            if len(wrong) == len(words) or any(word.startswith("labels") for word in wrong):
                return wrong[0]
        return None

    # -- mutations ---------------------------------------------------------------------------------

    def _change_node(self, rng, graph):
        if not graph.node:
            return
        node = rng.choice(graph.node)
        names = [name for other in graph.node for name in (*other.input, *other.output)]
        kind = rng.randrange(7)
        if kind == 0:
            node.op_type = rng.choice(_OPS)
        elif kind == 1 and node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice([*names, ""])
        elif kind == 2 and node.output:
            node.output[rng.randrange(len(node.output))] = rng.choice(names)
        elif kind == 3:
            node.attribute.append(self._attribute(rng))
        elif kind == 4 and node.attribute:
            del node.attribute[rng.randrange(len(node.attribute))]
        elif kind == 5:
            node.input.append(rng.choice(names))
        else:
            node.domain = rng.choice(("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "x"))

    def _attribute(self, rng):
        make = self._onnx.helper.make_attribute
        value = rng.choice(
            (0, 1, -1, 2, [0], [1], [1, 0], [-1], 0.5, -1.0, b"NONE", b"LOGISTIC", [1.0, 2.0])
        )
        if rng.random() < 0.1:
            value = self._onnx.helper.make_tensor("t", 1, [2], [1.0, 2.0])
        return make(rng.choice(_ATTRIBUTES), value)

    def _change_tensor(self, rng, tensor):
        kind = rng.randrange(6)
        if kind == 0 and tensor.dims:
            size = rng.choice((0, 1, 2, 3, -1, 2**31, 2**40, 2**62, 10**9))
            tensor.dims[rng.randrange(len(tensor.dims))] = size
        elif kind == 1:
            tensor.dims.append(rng.choice((1, 2, 0, 2**33)))
        elif kind == 2:
            tensor.data_type = rng.randrange(26)
        elif kind == 3 and tensor.raw_data:
            tensor.raw_data = damaged(rng, tensor.raw_data)
        elif kind == 4 and tensor.float_data:
            value = nudged(rng, tensor.float_data[0])
            with contextlib.suppress(OverflowError, TypeError):
                tensor.float_data[rng.randrange(len(tensor.float_data))] = value
        else:
            tensor.data_location = 1
            tensor.ClearField("raw_data")
            facts = {"location": rng.choice(_LOCATIONS)}
            facts |= rng.choice(
                ({}, {"offset": "4"}, {"length": "24"}, {"offset": "-1"}, {"length": "9" * 25})
            )
            facts |= rng.choice(({}, {"offset": "0x8"}, {"offset": "1e3"}, {"length": str(2**40)}))
            for key, value in facts.items():
                tensor.external_data.add(key=key, value=value)

    def _insert_node(self, rng, graph):
        """One more node, somewhere on the way of the rows or among the constants."""
        names = [name for node in graph.node for name in (*node.input, *node.output) if name]
        if not names:
            return
        node = rng.choice(graph.node)
        new = self._onnx.helper.make_node(rng.choice(_OPS), [rng.choice(names)], ["extra"])
        if rng.random() < 0.5:
            new.input.append(rng.choice(names))
        if node.input:
            i = rng.randrange(len(node.input))
            new.input[0] = node.input[i]
            node.input[i] = "extra"
        if rng.random() < 0.3:
            new.attribute.append(self._attribute(rng))
        graph.node.insert(rng.randrange(len(graph.node) + 1), new)
        if rng.random() < 0.2 and graph.output:
            graph.output[0].name = "extra"

    def _change_field(self, rng, model):
        """Any field of any message in the file."""
        message = model
        while True:
            fields = message.ListFields()
            if not fields:
                return
            field, value = rng.choice(fields)
            many = not isinstance(value, (str, bytes, int, float)) and hasattr(value, "__len__")
            if field.message_type is None:
                break
            if many and rng.random() < 0.25:
                self._change_list(rng, message, field, value)
                return
            message = rng.choice(value) if many else value
            if rng.random() < 0.05:
                message.Clear()
                return
        with contextlib.suppress(OverflowError, TypeError, ValueError, AttributeError):
            if many:
                value[rng.randrange(len(value))] = _other(rng, value[0])
            else:
                setattr(message, field.name, _other(rng, value))

    def _change_list(self, rng, message, field, values):
        i = rng.randrange(len(values))
        if rng.random() < 0.5:
            del values[i]
        else:
            values.add().CopyFrom(values[i])


def _other(rng, value):
    if isinstance(value, str):
        return rng.choice((value + "x", "", *_OPS, "input", "variable", "dense", value[:-1]))
    if isinstance(value, bytes):
        return damaged(rng, value)
    if isinstance(value, float):
        return float(nudged(rng, value))
    return rng.choice((0, 1, 2, 3, 7, 11, -1, *(v for v in NUMBERS if isinstance(v, int))))


def _stacked(values):
    if isinstance(values[0], list):
        return [value for row in values for value in row]
    return np.concatenate([np.atleast_1d(value) for value in values])


def _explained(network, X, output):
    """What is wrong with an output of the graph, given what the network says; None if nothing is."""
    if isinstance(output, list) and output and isinstance(output[0], dict):  # a ZipMap
        output = np.array([[row[key] for key in sorted(row)] for row in output])
    values = np.asarray(output)
    if values.ndim == 2 and values.shape[1] == 1 and values.dtype.kind in "bi":
        values = values[:, 0]
    if values.dtype.kind in "bi" and values.shape == (len(X),):
        return _labels(network, X, values)
    if values.dtype.kind in "USO":
        return None  # names of classes
    return _values(network, X, values.astype(np.float64))


def _labels(network, X, labels):
    """Labels may have other names than the classes, in their order; true and 1 are class 1."""
    clear = _gaps(network, X) > 1e-3
    pairs = {
        (int(a), int(b)) for a, b in zip(network.predict(X)[clear], labels[clear], strict=True)
    }
    rising = all(a < c and b < d for (a, b), (c, d) in itertools.pairwise(sorted(pairs)))
    plain = network.outputs == 1 and {b for _, b in pairs} <= {0, 1}
    if rising and not (plain and any(a != b for a, b in pairs)):
        return None
    return f"labels of the graph are not the classes of the network: {sorted(pairs)}"


def _values(network, X, values):
    if not np.isfinite(values).all() or np.abs(values).max(initial=0.0) > _MOST:
        return None
    if form_of(network, X, values, "float32") is not None:
        return None
    return f"outputs of the graph are not those of the network: {values.ravel()[:3]}"


def _gaps(network, X):
    ordered = np.sort(network.logits(X), axis=1)
    if network.outputs == 1:
        return np.abs(ordered[:, 0])
    return ordered[:, -1] - ordered[:, -2]


# -- seeds -----------------------------------------------------------------------------------------


def _made(onnx):
    """Graphs with one of everything that the reader knows."""
    helper, types, arrays = onnx.helper, onnx.TensorProto, onnx.numpy_helper
    rng = np.random.default_rng(0)
    W0, b0 = rng.normal(size=(3, 2)).astype("f4"), rng.normal(size=3).astype("f4")
    W1, b1 = rng.normal(size=(1, 3)).astype("f4"), rng.normal(size=1).astype("f4")
    node = helper.make_node

    def model(nodes, kind=types.FLOAT, **constants):
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", kind, ["n", 2])],
            [helper.make_tensor_value_info("y", kind, None)],
            [arrays.from_array(np.asarray(value), name) for name, value in constants.items()],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()

    gemms = [
        node("Gemm", ["x", "W0", "b0"], ["z"], transB=1),
        node("Relu", ["z"], ["h"]),
        node("Gemm", ["h", "W1", "b1"], ["y"], transB=1, alpha=0.5, beta=2.0),
    ]
    products = [
        node("Sub", ["x", "m"], ["a"]),
        node("Div", ["a", "s"], ["c"]),
        node("MatMul", ["c", "V0"], ["z0"]),
        node("Add", ["z0", "b0"], ["z"]),
        node("Relu", ["z"], ["h"]),
        node("Transpose", ["W1"], ["V1"], perm=[1, 0]),
        node("MatMul", ["h", "V1"], ["z1"]),
        node("Add", ["b1", "z1"], ["z2"]),
        node("Sigmoid", ["z2"], ["y"]),
    ]
    flat = [*gemms[:2], node("Gemm", ["h", "W1", "b1"], ["z1"], transB=1)]
    reshaped = [*flat, node("Reshape", ["z1", "shape"], ["y"])]
    labelled = [*flat, node("GreaterOrEqual", ["z1", "zero"], ["y"])]
    outside = onnx.ModelProto.FromString(model(gemms, W0=W0, b0=b0, W1=W1, b1=b1))
    tensor = outside.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = types.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    tensor.external_data.add(key="length", value="24")
    double = {
        "W0": W0.astype("f8"),
        "b0": b0.astype("f8"),
        "W1": W1.astype("f8"),
        "b1": b1.astype("f8"),
    }
    return [
        model(gemms, W0=W0, b0=b0, W1=W1, b1=b1),
        model(gemms, types.DOUBLE, **double),
        model(products, m=b0[:2], s=np.float32([2.0, 3.0]), V0=W0.T.copy(), b0=b0, W1=W1, b1=b1),
        model(reshaped, W0=W0, b0=b0, W1=W1, b1=b1, shape=np.array([-1])),
        outside.SerializeToString(),
        *([model(labelled, W0=W0, b0=b0, W1=W1, b1=b1, zero=np.float32(0.0))]),
    ]
