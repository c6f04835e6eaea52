"""Shapes that an ONNX graph computes from the shape of its rows.

Exporters write ``x.view(x.size(0), -1)`` so.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

_SHAPE_OPS = frozenset(
    {"Cast", "Concat", "Constant", "Gather", "Identity", "Shape", "Slice", "Squeeze", "Unsqueeze"}
)


def computed_shape(onnx: Any, model: Any, name: str, rows: tuple[int, int]) -> list[int] | None:
    """Evaluate the tensor ``name`` for a table of shape ``rows``.

    Every Shape node is taken to see a table of that shape. None means that the tensor depends on
    more than shapes.
    """
    producers = {out: i for i, node in enumerate(model.graph.node) for out in node.output if out}
    needed: set[int] = set()
    tables: set[str] = set()
    stack = [name]
    while stack:
        i = producers.get(stack.pop())
        if i is None or i in needed:
            continue
        node = model.graph.node[i]
        if node.op_type not in _SHAPE_OPS or node.domain not in ("", "ai.onnx"):
            return None
        needed.add(i)
        if node.op_type == "Shape":
            tables.add(node.input[0])
        else:
            stack += list(node.input)
    nodes = [model.graph.node[i] for i in sorted(needed)]
    used = {tensor for node in nodes for tensor in node.input}
    helper, types = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        nodes,
        "shape",
        [helper.make_tensor_value_info(table, types.FLOAT, None) for table in tables],
        [helper.make_tensor_value_info(name, types.INT64, None)],
        [tensor for tensor in model.graph.initializer if tensor.name in used],
    )
    part = helper.make_model(graph, opset_imports=model.opset_import)
    # The evaluator of the onnx package itself, on a handful of integers.
    evaluator = importlib.import_module("onnx.reference").ReferenceEvaluator(part)
    (shape,) = evaluator.run(None, dict.fromkeys(tables, np.zeros(rows, dtype=np.float32)))
    return [int(size) for size in np.ravel(shape)]
