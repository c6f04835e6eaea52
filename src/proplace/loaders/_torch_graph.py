"""The graph of a torch module, followed from the columns of a table to its outputs.

``torch.fx`` records what ``forward`` does. In front of the first Linear layer every tensor is followed
as columns of the table (see :mod:`proplace.loaders._flow`), in the shape that one row has there; behind
it the layers go into a :class:`~proplace.loaders._chain.Chain`.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from proplace.core.errors import ModelNotSupportedError
from proplace.core.limits import LABELS
from proplace.loaders._chain import Activation, Chain
from proplace.loaders._flow import Flow, Flowing, Mixture, Single
from proplace.loaders._torch_layers import (
    READ,
    RELU_INSTEAD,
    activation_of,
    batch_norm_of,
    numpy_of,
    where_of,
)
from proplace.loaders._torch_operations import METHODS, functions, times
from proplace.loaders._torch_places import placed
from proplace.loaders._torch_values import (
    Call,
    Codes,
    Followed,
    Neurons,
    Rows,
    Trained,
    entries,
    flat,
    run,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proplace.core.network import Array

_IN_FRONT = (
    "read there are scaling by fixed numbers, selections, concatenations, sums and differences of "
    "columns, F.one_hot and Embedding. Apply it to the table beforehand and leave it out of the module"
)
_BEHIND = (
    f"{READ}. Write ReLU as F.relu or nn.ReLU, leave other steps out of forward, and let it return "
    "logits or probabilities"
)
_ACTIVATIONS = (
    *("celu", "clamp", "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish"),
    *("prelu", "relu6", "rrelu", "selu", "silu", "softplus", "softsign", "tanh", "tanhshrink"),
)


class Graph:
    """What a module does to rows of ``width`` columns.

    Attributes
    ----------
    flow, titles, columns
        The table in front of the first layer, and what that layer sees of it.
    chain
        The trained layers.
    """

    def __init__(self, torch: Any, traced: Any, name: str, width: int) -> None:
        self.torch, self.traced, self.name = torch, traced, name
        self.titles = [f"x{i}" for i in range(width)]
        self.flow, self.chain = Flow(), Chain("Linear")
        self.columns: list[Flowing] = []
        self._step = 0
        self._functions = functions(torch)
        self._follow()

    def _follow(self) -> None:
        values: dict[Any, Any] = {}
        needed = needed_nodes(self.traced.graph)
        for node in self.traced.graph.nodes:
            if node.op == "output":
                self._end(values, node.args[0])
            elif node in needed:
                values[node] = self._value(node, values)

    def _value(self, node: Any, values: dict[Any, Any]) -> Any:
        if node.op == "placeholder":
            return Rows(entries([self.flow.column(title) for title in self.titles]))
        if node.op == "get_attr":
            found = operator.attrgetter(node.target)(self.traced)
            trained = isinstance(found, self.torch.nn.Parameter)
            return Trained(inside(node.target), found) if trained else found
        args, kwargs = self.torch.fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
        if node.op == "call_module":
            leaf = self.traced.get_submodule(node.target)
            return self._layer(inside(node.target), leaf, *args, *kwargs.values())
        if node.target is operator.getitem and isinstance(args[0], tuple):
            return args[0][args[1]]  # of what split and the like give, or of a shape
        held = [value for value in flat((args, kwargs)) if isinstance(value, Followed)]
        if not held:
            return run(node, args, kwargs)  # fixed numbers
        method = node.op == "call_method"
        title = node.meta.get("written", node.target) if method else node.target.__name__
        call = Call(title, f"{title} in the forward of {self.name}", node, args, kwargs, held)
        handler = (METHODS if method else self._functions).get(node.target)
        return self.unknown(call) if handler is None else handler(self, call)

    def _end(self, values: dict[Any, Any], out: Any) -> None:
        value = values[out] if isinstance(out, self.torch.fx.Node) else None
        if isinstance(value, Neurons):
            self.current(f"the output of {self.name}", value)
            if value.entries.ndim > 1:
                self.plain_row(f"the output of {self.name}", value)
        elif isinstance(value, Followed):
            if not self.chain.at_input:
                self.branches(f"the output of {self.name}")
        else:
            raise ModelNotSupportedError(
                f"{self.name} cannot be run as a classifier: its forward gives several values, or "
                "fixed ones; it must take one tensor of rows and return one tensor of logits or "
                "probabilities"
            )

    # -- layers --------------------------------------------------------------------------------

    def _layer(self, path: str, leaf: Any, value: Any, *others: Any) -> Any:
        nn, where = self.torch.nn, where_of(path, leaf)
        activation = activation_of(nn, leaf)
        if others or not isinstance(value, Followed):
            raise ModelNotSupportedError(f"{where} takes more than the rows; give it those alone")
        handlers: list[tuple[type, Callable[[], Any]]] = [
            (nn.Linear, lambda: self.linear(where, *parameters_of(path, leaf), value)),
            (nn.BatchNorm1d, lambda: self._batch_norm(where, leaf, value)),
            (nn.Embedding, lambda: self.categories(where, value, numpy_of(leaf.weight))),
            (nn.ReLU, lambda: self.relu(where, value)),
            (nn.Flatten, lambda: placed(self, where, [value], lambda tensors: leaf(*tensors))),
        ]
        for kind, handler in handlers:
            if isinstance(leaf, kind):
                return handler()
        if activation is not None:
            return self.finish(where, activation, value, getattr(leaf, "dim", None))
        return value  # those that do nothing: others were refused before

    def linear(self, where: str, weight: Trained, bias: Trained | None, value: Any) -> Neurons:
        """Take a Linear layer."""
        W, b = numpy_of(weight.tensor), None if bias is None else numpy_of(bias.tensor)
        if isinstance(value, Neurons):
            self.plain_row(where, self.current(where, value))
        else:
            columns = self.numbers(where, value)
            if not self.chain.at_input:
                self.branches(where)
            self.plain_row(where, value)
            if columns.size != W.shape[1]:
                raise ModelNotSupportedError(
                    f"{where} takes {W.shape[1]} inputs, but a row has {columns.size} columns there"
                )
            self.columns = columns.tolist()
        self.chain.linear(where, W, b, (weight.name, None if bias is None else bias.name))
        return self.neurons((len(W),))

    def _batch_norm(self, where: str, leaf: Any, value: Any) -> Any:
        mean, deviation, factor, shift = batch_norm_of(leaf)
        if isinstance(value, Neurons):
            scale = factor / deviation
            return self.affine(where, value, scale, shift - scale * mean)
        columns = self.numbers(where, value)
        self.plain_row(where, value)
        numbers = np.stack([mean, deviation, factor, shift], axis=1).tolist()
        scaled = [
            times(column.then(m, d), g).then(-t, 1.0)
            for column, (m, d, g, t) in zip(columns.tolist(), numbers, strict=True)
        ]
        return Rows(entries(scaled))

    def categories(self, where: str, value: Any, weights: Array) -> Rows:
        """Take each column for a category whose labels 0, 1, ... stand for rows of ``weights``."""
        if not isinstance(value, (Rows, Codes)):
            raise ModelNotSupportedError(
                f"{where} stands behind the first Linear layer; categories are read only in front "
                "of it, from columns of the table"
            )
        labels, size = weights.shape
        if labels > LABELS:
            raise ModelNotSupportedError(
                f"{where} has {labels} categories, more than {LABELS}; put rare ones into one "
                "category, and train the model with that"
            )
        found = np.empty((value.entries.size, size), dtype=object)
        for i, column in enumerate(value.entries.reshape(-1)):
            feature = self.flow.labels(where, column, range(labels), ordered=False)
            singles = [Single(feature, n) for n in range(labels)]
            found[i] = [_of_labels(singles, values) for values in weights.T.tolist()]
        return Rows(found.reshape(*value.entries.shape, size))

    def relu(self, where: str, value: Any) -> Neurons:
        """Take a ReLU."""
        shape = self._shape_behind(where, value)
        self.chain.relu(where)
        return self.neurons(shape)

    def finish(self, where: str, activation: Activation, value: Any, dim: Any) -> Neurons:
        """Take the activation of the outputs."""
        shape = self._shape_behind(where, value)
        if activation != "sigmoid" and dim not in (1, -1, None):
            raise ModelNotSupportedError(
                f"the forward of {self.name} takes the softmax over dim={dim}, so that rows depend "
                "on each other; take it over dim=1"
            )
        self.chain.finish(where, activation)
        return self.neurons(shape)

    def affine(self, where: str, value: Neurons, scale: Any, shift: Any) -> Neurons:
        """Take fixed numbers that scale and move the neurons."""
        self.current(where, value)
        if value.entries.ndim > 1:
            self.plain_row(where, value)
        self.chain.batch_norm(where, np.asarray(scale), np.asarray(shift))
        return self.neurons(value.entries.shape)

    def take(self, where: str, places: Sequence[int], shape: tuple[int, ...]) -> Neurons:
        """Take some of the neurons."""
        self.chain.take(where, places)
        return self.neurons(shape)

    # -- values --------------------------------------------------------------------------------

    def neurons(self, shape: tuple[int, ...]) -> Neurons:
        """Return what the chain holds after one more step."""
        self._step += 1
        count = int(np.prod(shape, initial=1))
        return Neurons(self._step, np.arange(count).reshape(shape))

    def current(self, where: str, value: Neurons) -> Neurons:
        """Return the value if it is what the chain holds now; else it goes two ways."""
        if value.step != self._step:
            self.branches(where)
        return value

    def _shape_behind(self, where: str, value: Any) -> tuple[int, ...]:
        """Shape of a row of neurons; in front of the first layer the chain will refuse it."""
        if isinstance(value, Neurons):
            return self.current(where, value).entries.shape
        columns = self.numbers(where, value)
        if not self.chain.at_input:
            self.branches(where)
        return columns.shape

    def numbers(self, where: str, value: Any) -> npt.NDArray[np.object_]:
        """Columns of a tensor of numbers in front of the first layer."""
        if isinstance(value, Trained):
            self.parameter(value)
        if isinstance(value, Codes):
            raise ModelNotSupportedError(
                f"{where} takes a column that was cut to whole numbers; that is read only for an "
                "Embedding or F.one_hot. Round the column in the table and leave the cast out"
            )
        columns: npt.NDArray[np.object_] = value.entries
        return columns

    def plain_row(self, where: str, value: Any) -> None:
        """Raise unless a row is a plain list of numbers."""
        if value.entries.ndim != 1:
            raise ModelNotSupportedError(
                f"{where} takes rows of shape {value.entries.shape}, not plain lists of numbers; "
                "bring them into shape (n, d) first, with x.flatten(1) or x.unsqueeze(1)"
            )

    # -- what is refused -----------------------------------------------------------------------

    def parameter(self, value: Trained) -> NoReturn:
        """Refuse a parameter that belongs to no layer."""
        raise ModelNotSupportedError(
            f"parameter {value.name!r} belongs to no Linear layer, or is used outside of it; trained "
            "numbers are read where Linear layers use them. Make it part of a Linear layer, or a "
            "buffer (register_buffer) if it is fixed"
        )

    def branches(self, where: str) -> NoReturn:
        """Refuse a value that goes two ways behind the first layer."""
        raise ModelNotSupportedError(
            f"the forward of {self.name} does not equal the chain of its Linear layers with a ReLU "
            f"between them: {where} stands where two ways meet behind the first layer (a skip "
            "connection or branches), which is read from no other format either. Train the model "
            "without them: join columns in front of the first Linear layer, and let every layer "
            "take the one before it"
        )

    def unknown(self, call: Call) -> NoReturn:
        """Refuse an operation that is not read."""
        for value in call.held:
            if isinstance(value, Trained):
                self.parameter(value)
        if any(isinstance(value, Neurons) for value in call.held):
            if len(call.held) > 1:
                self.branches(call.where)
            hint = RELU_INSTEAD if call.title in _ACTIVATIONS else _BEHIND
            raise ModelNotSupportedError(f"{call.where} is not part of a ReLU network; {hint}")
        raise ModelNotSupportedError(
            f"{call.where} stands in front of the first Linear layer and is not read; {_IN_FRONT}"
        )


def inside(target: str) -> str:
    """Return the path of a layer in the user's module, which was wrapped for the recording."""
    return target.removeprefix("module").removeprefix(".")


def parameters_of(path: str, leaf: Any) -> tuple[Trained, Trained | None]:
    """Weights and biases of a Linear layer, by their names in the user's module."""
    front = f"{path}." if path else ""
    bias = None if leaf.bias is None else Trained(f"{front}bias", leaf.bias)
    return Trained(f"{front}weight", leaf.weight), bias


def _of_labels(labels: Sequence[Single], values: Sequence[float]) -> Flowing:
    """Return the column that holds ``values[n]`` for label ``n``."""
    if len(labels) == 1:
        return Mixture((), values[0])
    if values.count(0.0) == len(values) - 1 and 1.0 in values:
        return labels[values.index(1.0)]
    return Mixture(tuple(zip(values, labels, strict=True)))


def needed_nodes(graph: Any) -> set[Any]:
    """Nodes that the output depends on."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    found: set[Any] = set()
    waiting = list(output.all_input_nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found
