"""Functions and methods of torch on the way of a row, one small handler for each."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from proplace.core.errors import ModelNotSupportedError
from proplace.loaders._flow import Mixture
from proplace.loaders._torch_layers import numpy_of
from proplace.loaders._torch_places import joined, rearranged
from proplace.loaders._torch_values import (
    BATCH,
    Codes,
    Followed,
    Neurons,
    Rows,
    Spread,
    Trained,
    entries,
    flat,
    run,
)

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.loaders._chain import Activation
    from proplace.loaders._flow import Flowing
    from proplace.loaders._torch_graph import Graph
    from proplace.loaders._torch_values import Call

Handler = Callable[["Graph", "Call"], Any]


# -- layers written as functions -------------------------------------------------------------------


def _relu(graph: Graph, call: Call) -> Any:
    return graph.relu(call.where, call.argument(0, "input"))


def _clamp(graph: Graph, call: Call) -> Any:
    low, high = call.argument(1, "min"), call.argument(2, "max")
    if not isinstance(low, (int, float)) or low != 0 or high is not None:
        graph.unknown(call)
    return graph.relu(call.where, call.argument(0, "input"))


def _dropout(graph: Graph, call: Call) -> Any:
    bound = inspect.signature(call.node.target).bind(*call.args, **call.kwargs)
    bound.apply_defaults()
    if bound.arguments["training"] and bound.arguments["p"]:
        raise ModelNotSupportedError(
            f"{call.where} drops neurons at random in use, too; give it training=self.training"
        )
    return call.held[0]


def _last(activation: Activation) -> Handler:
    def handler(graph: Graph, call: Call) -> Any:
        dim = None if activation == "sigmoid" else call.argument(1, "dim")
        return graph.finish(call.where, activation, call.argument(0, "input"), dim)

    return handler


def _linear(graph: Graph, call: Call) -> Any:
    value = call.argument(0, "input")
    weight, bias = call.argument(1, "weight"), call.argument(2, "bias")
    if not isinstance(weight, Trained) or not isinstance(bias, (Trained, type(None))):
        raise ModelNotSupportedError(
            f"{call.where} takes weights that are computed or fixed; use nn.Linear layers"
        )
    where = f"layer {weight.name!r} (F.linear)"
    return graph.linear(where, weight, bias, value)


def _one_hot(graph: Graph, call: Call) -> Any:
    count = call.argument(1, "num_classes", -1)
    if not isinstance(count, int) or count < 1:
        raise ModelNotSupportedError(
            f"{call.where} counts the categories of the rows at hand; give it num_classes"
        )
    return graph.categories(call.where, call.argument(0, "tensor"), np.eye(count))


# -- the same numbers ------------------------------------------------------------------------------


def _same(graph: Graph, call: Call) -> Any:
    return call.held[0]


def _cast(graph: Graph, call: Call) -> Any:
    """Lead on the same numbers in another type, or on another device."""
    value, dtype, torch = call.held[0], _dtype(graph.torch, call), graph.torch
    if isinstance(value, Trained):
        graph.parameter(value)
    if dtype is None:
        return value
    if dtype in (torch.float32, torch.float64):
        if isinstance(value, Codes):
            graph.numbers(call.where, value)
        return value
    if dtype.is_floating_point:
        raise ModelNotSupportedError(
            f"{call.where} makes the numbers {str(dtype).removeprefix('torch.')}; margins cover the "
            "rounding of float32 and float64 models only. Leave the cast out"
        )
    if dtype not in (torch.int64, torch.int32) or isinstance(value, Neurons):
        graph.unknown(call)
    return Codes(value.entries)


_TYPES = {
    "bfloat16": "bfloat16",
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "int": "int32",
    "long": "int64",
}


def _dtype(torch: Any, call: Call) -> Any:
    """Return the type that a cast makes; None where it moves the numbers to a device."""
    if call.node.target in _TYPES:
        return getattr(torch, _TYPES[call.node.target])
    for item in flat((call.args[1:], call.kwargs)):
        if isinstance(item, torch.dtype):
            return item
        if isinstance(item, str) and item.endswith("Tensor"):
            return torch.empty(0).type(item).dtype
        if isinstance(item, Trained):
            return item.tensor.dtype
        if isinstance(item, torch.Tensor):
            return item.dtype
    return None


def _facts(graph: Graph, call: Call) -> Any:
    """Return what a tensor says of itself, with as many rows as a run on places has."""
    value, torch = call.held[0], graph.torch
    if call.args[1:] == ("data",):
        return value
    if isinstance(value, Trained):
        tensor = value.tensor
    else:
        kind = torch.int64 if isinstance(value, Codes) else torch.float32
        tensor = torch.empty((BATCH, *value.entries.shape), dtype=kind)
    found = run(call.node, (tensor, *call.args[1:]), call.kwargs)
    if not isinstance(found, (int, tuple, torch.dtype, torch.device)):
        graph.unknown(call)
    return found


# -- arithmetic ------------------------------------------------------------------------------------


def _arithmetic(sign: str) -> Handler:
    def handler(graph: Graph, call: Call) -> Any:
        for value in call.held:
            if isinstance(value, Trained):
                graph.parameter(value)
        if not set(call.kwargs) <= {"input", "other"} or len(call.args) > 2:
            graph.unknown(call)  # alpha, rounding_mode and the like
        first, second = call.argument(0, "input"), call.argument(1, "other")
        if len(call.held) > 1:
            return _of_two(graph, call, sign, first, second)
        if isinstance(first, Followed):
            return _with_fixed(graph, call.where, sign, first, second)
        if sign == "/":
            _not_affine(call.where)
        if sign == "-":  # c - x = -x + c
            negative = _with_fixed(graph, call.where, "*", second, -1.0)
            return _with_fixed(graph, call.where, "+", negative, first)
        return _with_fixed(graph, call.where, sign, second, first)

    return handler


def _negative(graph: Graph, call: Call) -> Any:
    return _with_fixed(graph, call.where, "*", call.held[0], -1.0)


def _with_fixed(graph: Graph, where: str, sign: str, value: Any, fixed: Any) -> Any:
    """Take ``value sign fixed``."""
    numbers = _fixed(graph, where, fixed, value)
    if sign == "/" and (numbers == 0.0).any():
        raise ModelNotSupportedError(f"{where} divides by zero; drop that column")
    if isinstance(value, Neurons):
        one, zero = np.asarray(1.0), np.asarray(0.0)
        steps = {"+": (one, numbers), "-": (one, -numbers), "*": (numbers, zero)}
        scale, shift = steps[sign] if sign != "/" else (1.0 / numbers, zero)
        return graph.affine(where, value, scale, shift)
    columns = graph.numbers(where, value)
    left, right = np.broadcast_arrays(columns, numbers)
    _not_spread(where, left.shape, columns)
    pairs = zip(left.reshape(-1).tolist(), right.reshape(-1).tolist(), strict=True)
    return Rows(entries([_MOVES[sign](column, c) for column, c in pairs]).reshape(left.shape))


def times(column: Flowing, factor: float) -> Flowing:
    """Return a column times a number; times zero nothing is left of it."""
    if factor == 1.0:
        return column
    return column.then(0.0, 1.0 / factor) if factor != 0.0 else Mixture(())


_MOVES: dict[str, Callable[[Flowing, float], Flowing]] = {
    "+": lambda column, c: column.then(-c, 1.0),
    "-": lambda column, c: column.then(c, 1.0),
    "*": times,
    "/": lambda column, c: column.then(0.0, c),
}


def _of_two(graph: Graph, call: Call, sign: str, first: Any, second: Any) -> Any:
    """Add or subtract two tensors that both depend on the rows."""
    if any(isinstance(value, Neurons) for value in call.held):
        graph.branches(call.where)
    left, right = graph.numbers(call.where, first), graph.numbers(call.where, second)
    if sign not in "+-":
        _not_affine(call.where)
    if left.ndim != right.ndim:
        raise ModelNotSupportedError(
            f"{call.where} takes rows of shapes {left.shape} and {right.shape}; give both the same"
        )
    sides = (left, right)
    left, right = np.broadcast_arrays(left, right)
    _not_spread(call.where, left.shape, *sides)
    row = np.array([[1.0, 1.0 if sign == "+" else -1.0]])
    pairs = zip(left.reshape(-1).tolist(), right.reshape(-1).tolist(), strict=True)
    sums = [graph.flow.mix(pair, row, np.zeros(1))[0] for pair in pairs]
    return Rows(entries(sums).reshape(left.shape))


def _not_spread(where: str, shape: tuple[int, ...], *sides: npt.NDArray[np.object_]) -> None:
    """Raise where one column is used against several; rows of fewer columns would pass so."""
    if any(side.shape != shape for side in sides):
        raise Spread(
            f"{where} takes one column against several numbers or columns; write the column as "
            "often as it is used, as in x[:, [0, 0, 0]]"
        )


def _not_affine(where: str) -> NoReturn:
    raise ModelNotSupportedError(
        f"{where} multiplies or divides columns by columns, which is no affine map; compute that "
        "column in the table and give the module the result"
    )


def _fixed(graph: Graph, where: str, fixed: Any, value: Any) -> Array:
    """Fixed numbers in the shape of one row."""
    numbers = numpy_of(graph.torch.as_tensor(fixed, dtype=graph.torch.float64))
    shape = value.entries.shape
    if numbers.ndim == len(shape) + 1 and len(numbers) == 1:
        numbers = numbers[0]  # one row for all
    try:
        np.broadcast_shapes(numbers.shape, shape)
        fits = numbers.ndim <= len(shape) and bool(np.isfinite(numbers).all())
    except ValueError:
        fits = False
    if not fits:
        raise ModelNotSupportedError(
            f"{where} takes fixed numbers of shape {numbers.shape} for rows of shape {shape}, or "
            "numbers that are not finite; give one finite number for each column"
        )
    return numbers


# -- tables ----------------------------------------------------------------------------------------

_MOVING = (
    "chunk contiguous expand flatten flip getitem index_select movedim narrow permute repeat reshape "
    "select split squeeze swapaxes tensor_split transpose unbind unflatten unsqueeze view"
)
_JOINING = "cat column_stack concat concatenate hstack stack"
_NAMED: dict[str, Handler] = {
    "add": _arithmetic("+"),
    "clamp": _clamp,
    "clamp_min": _clamp,
    "div": _arithmetic("/"),
    "divide": _arithmetic("/"),
    "log_softmax": _last("log_softmax"),
    "mul": _arithmetic("*"),
    "multiply": _arithmetic("*"),
    "neg": _negative,
    "relu": _relu,
    "relu_": _relu,
    "sigmoid": _last("sigmoid"),
    "softmax": _last("softmax"),
    "sub": _arithmetic("-"),
    "subtract": _arithmetic("-"),
    "true_divide": _arithmetic("/"),
    "truediv": _arithmetic("/"),
    **dict.fromkeys(_MOVING.split(), rearranged),
}

#: Handlers of methods of tensors, by name.
METHODS: dict[str, Handler] = {
    **_NAMED,
    **dict.fromkeys(("clone", "detach", "requires_grad_"), _same),
    **dict.fromkeys((*_TYPES, "cpu", "cuda", "to", "type", "type_as"), _cast),
    **dict.fromkeys(("dim", "ndimension", "size"), _facts),
}


def functions(torch: Any) -> dict[Any, Handler]:
    """Handlers of functions, by the function itself."""
    functional = torch.nn.functional
    by_name: dict[str, Handler] = {**_NAMED, **dict.fromkeys(_JOINING.split(), joined)}
    table = {
        getattr(home, name): handler
        for name, handler in by_name.items()
        for home in (torch, functional, operator)
        if hasattr(home, name)
    }
    return table | {
        getattr: _facts,
        functional.alpha_dropout: _dropout,
        functional.dropout: _dropout,
        functional.linear: _linear,
        functional.one_hot: _one_hot,
    }
