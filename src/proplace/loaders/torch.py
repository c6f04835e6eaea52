"""Torch modules, by the graph that ``torch.export`` makes of their ``forward``."""

from __future__ import annotations

import copy
import inspect
import io
import itertools
import operator
import warnings
from contextlib import contextmanager, redirect_stderr
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from proplace.core.errors import ModelNotSupportedError, require
from proplace.loaders.trace import AmbiguousWidth, Trace, Value
from proplace.loaders.verify import Reading, rows_of_all_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pandas as pd

    from proplace.core.network import Array, Precision
    from proplace.loaders.layers import Activation, TrainedLayer
    from proplace.loaders.model import Model

_WIDEST = 5_000  # columns tried until a module runs
_READ = (
    "only Linear and ReLU layers, BatchNorm1d, Dropout, Identity, Flatten, an Embedding of a column "
    "before them and a last Sigmoid, Softmax or LogSoftmax are read. Train the model with those"
)
_NORMALISED_ROWS = (
    "It divides each row by that row's own spread, which no fixed layer does. Train the model with "
    "BatchNorm1d in its place"
)
_BEFORE = (
    "read there are scaling by fixed numbers, selections, concatenations, sums and differences of "
    "columns, F.one_hot and Embedding. Apply it to the table beforehand and leave it out of the module"
)


def from_torch(module: object) -> Model:
    """Read a torch module with all that its ``forward`` does to the table.

    Parameters
    ----------
    module
        An ``nn.Sequential``, or any module whose ``forward`` ``torch.export`` can follow: Linear
        layers with a ReLU between them (a layer, a function or a method). Dropout, Identity,
        Flatten and views are skipped. A last sigmoid, softmax or log-softmax is left out.

        Before the first Linear layer ``forward`` may select, join, add and scale columns with
        fixed numbers (buffers, constants, batch norm). They never shift. An Embedding (or
        ``F.one_hot``) of one column makes that column a category with the labels 0, 1, ... Its
        weights are a fixed linear map of the labels. Columns are called x0, x1, ... until a schema
        names them.

        Batch norm (in evaluation mode) after a Linear layer is folded into that layer, batch norm
        after a ReLU into the next Linear layer, and so are other fixed factors and shifts. Its
        weights and statistics count as fixed. Shifts (delta) still refer to the weights and biases
        of the Linear layers: see :mod:`proplace.core.transforms`. The float32 margin refers to the
        folded ones.

    Returns
    -------
    Model
        The module and the network run on made-up rows and must agree, so that a ``forward`` with
        unread steps is rejected. The module is not changed. The precision is that of its weights,
        float32 or float64.
    """
    return _TorchModel(module).reading().model()


def trained_torch(module: object) -> tuple[Any, tuple[TrainedLayer, ...]]:
    """Return the unwrapped module, and the names of the parameters of each layer in it."""
    read = _TorchModel(module)
    return read.original, read.trace.chain.trained


class _Parameter:
    """A trained parameter, by its name in the module."""

    def __init__(self, name: str, tensor: Any) -> None:
        self.name, self.tensor = name, tensor


class _TorchModel:
    """A module, and its trace.

    Attributes
    ----------
    original
        The module of the user, on its own device. It runs on legal rows only: a category out of
        range on a GPU would make CUDA unusable for the whole process.
    module
        The module if it is on the CPU, a copy there if it is not. All trials run on it.
    """

    def __init__(self, module: Any) -> None:
        self.torch = require("torch", "torch", "reading a torch module")
        self.original = _unwrapped(self.torch, module)
        self.name = type(self.original).__name__
        _check_module(self.torch, self.original)
        self.module = _on_cpu(self.torch, self.original)
        tensors = [*self.module.parameters(), *self.module.buffers()]
        self.precision = _precision_of(self.name, tensors)
        first = next((p for p in self.module.parameters()), None)
        self.dtype = self.torch.float32 if first is None else first.dtype
        self.trace = self._smallest()

    def reading(self) -> Reading:
        return Reading(
            self.trace,
            self.run,
            self.precision,
            "write it as nn.Sequential of the layers that are read, and train that",
        )

    def run(self, table: pd.DataFrame) -> Array:
        """Outputs of the original module, in its own arithmetic, on its own device."""
        first = next(self.original.parameters())
        rows = self._tensor(table.to_numpy(dtype=np.float64), self.dtype).to(first.device)
        with _evaluated(self.torch, self.original):
            return _to_numpy(self.original(rows))

    def _tensor(self, rows: Array, dtype: Any) -> Any:
        return self.torch.as_tensor(np.array(rows), dtype=dtype)

    def _tried(self, rows: Array, dtype: Any) -> Any:
        """Outputs of the copy on the CPU for any rows."""
        with _evaluated(self.torch, self.module):
            return self.module(self._tensor(rows, dtype))

    # -- number of columns -----------------------------------------------------------------------

    def _smallest(self) -> Trace:
        """Return the trace of the smallest number of columns that the module takes."""
        ambiguous: AmbiguousWidth | None = None
        for width, dtype in itertools.islice(self._widths(), 20):
            try:
                trace = self._traced(width, dtype)
            except AmbiguousWidth as error:
                ambiguous = ambiguous or error
                continue
            self.dtype = dtype
            self._check_wider(trace, width)
            return trace
        if ambiguous is not None:
            raise ambiguous
        self._check_leaves()
        reason = self._problem(self._first_width() or 1, self.dtype)
        device = "It is read on the CPU: write x.device in forward, not the name of a device"
        raise ModelNotSupportedError(
            f"{self.name} cannot be run on rows of numbers: {reason}. Its forward must take one tensor "
            f"of rows and return one tensor. {'' if self.module is self.original else device}".rstrip()
        )

    def _first_width(self) -> int | None:
        """Number of columns of the first layer, if it is a Linear layer or a batch norm."""
        nn = self.torch.nn
        leaves = (leaf for _, leaf in _leaves(nn, self.module))
        leaf = next((leaf for leaf in leaves if not isinstance(leaf, _skipped(nn))), None)
        if isinstance(leaf, nn.Linear):
            return int(leaf.in_features)
        return int(leaf.num_features) if isinstance(leaf, nn.BatchNorm1d) else None

    def _widths(self) -> Iterator[tuple[int, Any]]:
        """Yield numbers of columns on which the module runs, and the type of their numbers."""
        known = self._first_width()
        if known and not self._problem(known, self.dtype) and self._problem(known + 1, self.dtype):
            yield known, self.dtype
            return
        for width in range(1, _WIDEST + 1):
            for dtype in (self.dtype, self.torch.int64):
                if self._problem(width, dtype) is None:
                    yield width, dtype
                    break

    def _problem(self, width: int, dtype: Any) -> str | None:
        """Return the error of the module on rows of this width, or None."""
        try:
            self._tried(np.zeros((2, width)), dtype)
        except Exception as error:
            return str(error).partition("\n")[0]
        return None

    def _check_wider(self, trace: Trace, width: int) -> None:
        """Raise if a module runs on wider rows, too, and then uses other columns."""
        if self._problem(width + 1, self.dtype) is None and self._uses_more(trace):
            raise ModelNotSupportedError(
                f"the forward of {self.name} counts columns from the end of a row but runs on rows "
                "of any length; count them from the front, as in x[:, 5] for x[:, -1]"
            )
        if not self.dtype.is_floating_point and trace.used() & trace.flow.numeric:
            raise ModelNotSupportedError(
                f"the forward of {self.name} takes rows of whole numbers, with numbers beside "
                "categories. Let it take rows of decimals and cut the categories itself, as in "
                "x[:, 0].long()"
            )

    def _uses_more(self, trace: Trace) -> bool:
        """Return True if a further column changes the outputs."""
        rows = rows_of_all_sizes(64, len(trace.titles) + 1)
        for column, title in zip(rows.T, trace.titles, strict=False):
            labels = trace.flow.sources[title].labels
            if labels is not None:
                column[:] = np.resize(np.array(labels, dtype=np.float64), len(column))
        try:
            wide, narrow = (
                _to_numpy(self._tried(part, self.dtype)) for part in (rows, rows[:, :-1])
            )
        except Exception:
            return True
        return wide.shape != narrow.shape or not np.allclose(wide, narrow, rtol=1e-5, atol=1e-9)

    def _check_leaves(self) -> None:
        for path, leaf in _leaves(self.torch.nn, self.module):
            _check_leaf(self.torch.nn, path, leaf)

    # -- the graph -----------------------------------------------------------------------------

    def _traced(self, width: int, dtype: Any) -> Trace:
        trace = Trace(f"the forward of {self.name}", "Linear")
        program = self._exported(trace.rows, width, dtype)
        values: dict[Any, Any] = {}
        inputs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        for node in _needed(program.graph):
            if node.op == "placeholder":
                values[node] = self._input(trace, program, inputs[node.name], width)
            elif node.op == "call_function":
                values[node] = self._called(trace, node, values)
            elif node.op == "output":
                single = program.call_spec.out_spec.is_leaf()
                self._end(trace, values.get(node.args[0][0]) if single else None)
        return trace

    def _exported(self, rows: int, width: int, dtype: Any) -> Any:
        with (
            warnings.catch_warnings(),
            redirect_stderr(io.StringIO()),  # torch prints the graph of what it cannot follow
            _evaluated(self.torch, self.module),
        ):
            warnings.simplefilter("ignore")
            example = self._tensor(np.zeros((rows, width)), dtype)
            try:
                return self.torch.export.export(self.module, (example,), strict=False)
            except Exception as error:
                reason = str(error).strip().partition("\n")[0]
                raise ModelNotSupportedError(
                    f"torch.export cannot follow the forward of {self.name} ({reason}). Write forward "
                    "for one tensor of rows, without an if or assert about their values"
                ) from error

    def _input(self, trace: Trace, program: Any, spec: Any, width: int) -> Any:
        kind, target = spec.kind.name, spec.target
        if kind == "USER_INPUT":
            return trace.input([f"x{i}" for i in range(width)], (width,))
        if kind == "PARAMETER":
            tensor = self.module.get_parameter(target)
            first = next(name for name, p in self.module.named_parameters() if p is tensor)
            return _Parameter(first, tensor)
        found = program.state_dict.get(target)
        found = program.constants[target] if found is None else found
        return found.double() if found.is_floating_point() else found

    def _called(self, trace: Trace, node: Any, values: dict[Any, Any]) -> Any:
        call = _Call(self, trace, node, values)
        try:
            found = call.value()
        except AmbiguousWidth:
            raise
        except ModelNotSupportedError as error:
            if self.name in str(error):
                raise
            raise ModelNotSupportedError(f"in the forward of {self.name}, {error}") from None
        if call.operation.endswith("_"):  # in place: its argument takes the result
            values[node.args[0]] = found
        return found

    def _end(self, trace: Trace, value: Any) -> None:
        if not isinstance(value, Value):
            raise ModelNotSupportedError(
                f"{self.name} cannot be run as a classifier: its forward must return one tensor of "
                "logits or probabilities that depend on the rows, not a tuple, a dictionary or fixed "
                "numbers. Wrap it in a module whose forward returns that tensor"
            )
        trace.result(f"the output of {self.name}", value)


class _Call:
    """One operation of the graph, with the values of its arguments."""

    def __init__(self, model: _TorchModel, trace: Trace, node: Any, values: dict[Any, Any]) -> None:
        self.model, self.trace, self.node, self.torch = model, trace, node, model.torch
        self.args, self.kwargs = self.torch.fx.node.map_arg((node.args, node.kwargs), values.get)
        self.flat: list[Any] = []
        self.torch.fx.node.map_aggregate((self.args, self.kwargs), self.flat.append)
        self.followed = [value for value in self.flat if isinstance(value, Value)]
        self.trained = [value for value in self.flat if isinstance(value, _Parameter)]
        self.operation = str(getattr(node.target, "_schema", node.target)).partition("(")[0]
        self.operation = self.operation.removeprefix("aten::").partition(".")[0]
        written = (node.meta.get("torch_fn") or ("", ""))[0].rpartition("_")[0].strip("_")
        self.title = written or self.operation
        self.where = f"{self.title} in the forward of {model.name}"
        path, leaf = self._leaf()
        if leaf is not None:
            self.where = _describe(path, leaf)
            _check_leaf(self.torch.nn, path, leaf)

    def _leaf(self) -> tuple[str, Any]:
        """The layer of torch that runs this operation, if there is one."""
        stack = list((self.node.meta.get("nn_module_stack") or {}).values())
        path = stack[-1][0].partition(".parametrizations")[0] if stack else ""
        leaf = self.model.module.get_submodule(path)
        return path, leaf if _is_layer(self.torch.nn, leaf) else None

    def value(self) -> Any:
        """Take the operation."""
        if self.node.target is operator.getitem and isinstance(self.args[0], tuple):
            return self.args[0][self.args[1]]
        if "autocast" in str(self.node.target):
            raise ModelNotSupportedError(
                f"the forward of {self.model.name} computes under autocast, in less than "
                "float32; margins cover the rounding of float32 and float64 models only. Leave "
                "autocast out of forward, and use it around the training alone"
            )
        if not self.followed:
            if self.trained and self.operation != "alias":
                self.parameter(self.trained[0])
            return self._constant()
        handler = _OPERATIONS.get(self.operation.removesuffix("_"))
        if handler is None:
            self.unknown()
        if self.trained and handler not in (_linear, _batch_norm, _embedding):
            self.parameter(self.trained[0])
        return handler(self)

    def _constant(self) -> Any:
        """Work out fixed numbers, in float64."""
        if self.operation in ("to", "_to_copy") and self.torch.float32 in self.flat:
            return self.args[0]
        found = self.node.target(*self.args, **self.kwargs)
        floats = isinstance(found, self.torch.Tensor) and found.is_floating_point()
        return found.double() if floats else found

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument that is given by position or name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def on(self, places: list[Any]) -> Any:
        """Run the operation on positions instead of the values."""
        rest = map(self.torch.as_tensor, places)
        args, kwargs = self.torch.fx.node.map_aggregate(
            (self.args, self.kwargs), lambda part: next(rest) if isinstance(part, Value) else part
        )
        out = self.node.target(*args, **kwargs)
        many = isinstance(out, (tuple, list))
        return tuple(part.numpy() for part in out) if many else out.numpy()

    def parameter(self, value: _Parameter) -> NoReturn:
        """Reject a parameter that belongs to no layer."""
        raise ModelNotSupportedError(
            f"parameter {value.name!r} belongs to no Linear layer, or is used outside of it; trained "
            "numbers are read where Linear layers use them. Make it part of a Linear layer, or a "
            "buffer (register_buffer) if it is fixed"
        )

    def unknown(self) -> NoReturn:
        """Reject an operation that is not read."""
        for value in self.trained:
            self.parameter(value)
        if any(value.step is not None for value in self.followed):
            if len(self.followed) > 1:
                self.trace.branches(self.where)
            raise ModelNotSupportedError(f"{self.where} is not part of a ReLU network; {_READ}")
        raise ModelNotSupportedError(
            f"{self.where} comes before the first Linear layer and is not read; {_BEFORE}"
        )


# -- operations --------------------------------------------------------------------------------------


def _same(call: _Call) -> Any:
    return call.followed[0]


def _moved(call: _Call) -> Any:
    if call.operation in ("cat", "stack") and len(call.followed) != len(call.args[0]):
        call.unknown()  # fixed numbers beside the columns
    return call.trace.move(call.where, call.followed, call.on)


def _linear(call: _Call) -> Any:
    value, weight, bias = (call.argument(i, n) for i, n in enumerate(("input", "weight", "bias")))
    if not isinstance(weight, _Parameter) or not isinstance(bias, (_Parameter, type(None))):
        raise ModelNotSupportedError(
            f"{call.where} takes weights that are computed or fixed. Use nn.Linear layers"
        )
    if call.where.startswith(call.title):
        call.where = f"layer {weight.name!r} (F.linear)"
    b, names = (None, None) if bias is None else (_to_numpy(bias.tensor), bias.name)
    return call.trace.linear(call.where, value, _to_numpy(weight.tensor), b, (weight.name, names))


def _relu(call: _Call) -> Any:
    if call.operation.startswith("clamp"):
        low, high = call.argument(1, "min"), call.argument(2, "max")
        if not isinstance(low, (int, float)) or low != 0 or high is not None:
            call.unknown()
    return call.trace.relu(call.where, call.followed[0])


def _dropout(call: _Call) -> Any:
    if call.argument(2, "train") and call.argument(1, "p"):
        raise ModelNotSupportedError(
            f"{call.where} drops neurons at random in use, too. Give it training=self.training"
        )
    return call.followed[0]


def _last(call: _Call) -> Any:
    kind: Activation = call.operation  # type: ignore[assignment]
    dim = None if kind == "sigmoid" else call.argument(1, "dim")
    if dim not in (1, -1, None):
        raise ModelNotSupportedError(
            f"the forward of {call.model.name} takes the softmax over dim={dim}, so that rows "
            "depend on each other. Take it over dim=1"
        )
    return call.trace.activation(call.where, call.followed[0], kind)


def _batch_norm(call: _Call) -> Any:
    value, weight, bias, mean, variance, training, _, epsilon = call.args[:8]
    if training or mean is None or variance is None:
        raise ModelNotSupportedError(
            f"{call.where} normalises each batch by itself. Call module.eval() first, and keep "
            "track_running_stats=True, the default"
        )
    centre, deviation = _to_numpy(mean), np.sqrt(_to_numpy(variance) + epsilon)
    factor = np.ones_like(centre) if weight is None else _to_numpy(_tensor(weight))
    shift = np.zeros_like(centre) if bias is None else _to_numpy(_tensor(bias))
    if value.step is None:
        call.trace.plain_row(call.where, value)
    return call.trace.batch_norm(call.where, value, centre, deviation, factor, shift)


def _embedding(call: _Call) -> Any:
    weight, value = call.argument(0, "weight"), call.argument(1, "indices")
    if not isinstance(value, Value):
        call.unknown()
    return call.trace.vectors(call.where, value, _to_numpy(_tensor(weight)))


def _one_hot(call: _Call) -> Any:
    count = call.argument(1, "num_classes", -1)
    if not isinstance(count, int) or count < 1:
        raise ModelNotSupportedError(
            f"{call.where} counts the categories of the rows at hand. Give it num_classes"
        )
    return call.trace.one_hot(call.where, call.followed[0], count)


def _cast(call: _Call) -> Any:
    """Take the same numbers in another type, or on another device."""
    torch, value = call.torch, call.followed[0]
    dtypes = [part.dtype for part in call.flat if isinstance(part, torch.Tensor)]
    dtypes += [part for part in call.flat if isinstance(part, torch.dtype)]
    dtype = dtypes[-1] if dtypes else None
    if dtype in (None, torch.float32, torch.float64):
        return Value(call.trace.numbers(call.where, value)) if value.whole else value
    if dtype.is_floating_point:
        raise ModelNotSupportedError(
            f"{call.where} makes the numbers {str(dtype).removeprefix('torch.')}; margins cover the "
            "rounding of float32 and float64 models only. Leave the cast out"
        )
    if dtype not in (torch.int64, torch.int32) or value.step is not None:
        call.unknown()
    return Value(value.entries, whole=True)


def _arithmetic(call: _Call) -> Any:
    """Take ``left sign right``, in which one side may be fixed numbers."""
    if call.kwargs.get("alpha", 1) != 1 or call.kwargs.get("rounding_mode"):
        call.unknown()
    sign = _SIGNS[call.operation.removesuffix("_")]
    sides = [side if isinstance(side, Value) else _fixed(call, side) for side in call.args[:2]]
    left, right = sides if call.operation != "rsub" else sides[::-1]
    return call.trace.arithmetic(call.where, sign, left, right)


def _fixed(call: _Call, numbers: Any) -> Array:
    tensor = isinstance(numbers, call.torch.Tensor)
    return _to_numpy(numbers) if tensor else np.asarray(numbers, dtype=np.float64)


def _negative(call: _Call) -> Any:
    return call.trace.affine(call.where, call.followed[0], -1.0, 0.0)


_MOVING = (
    "cat chunk expand flatten flip index index_select movedim narrow permute repeat reshape select "
    "slice split split_with_sizes squeeze stack swapaxes t tensor_split transpose unbind unflatten "
    "unsqueeze view column_stack hstack concat"
)
_SIGNS = {"add": "+", "div": "/", "mul": "*", "rsub": "-", "sub": "-"}
_OPERATIONS: dict[str, Callable[[_Call], Any]] = {
    **dict.fromkeys(_MOVING.split(), _moved),
    **dict.fromkeys(
        ("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "requires_grad"), _same
    ),
    **dict.fromkeys(("relu", "clamp", "clamp_min"), _relu),
    **dict.fromkeys(
        ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"), _dropout
    ),
    **dict.fromkeys(("to", "_to_copy", "type_as"), _cast),
    **dict.fromkeys(("log_softmax", "sigmoid", "softmax"), _last),
    **dict.fromkeys(_SIGNS, _arithmetic),
    "batch_norm": _batch_norm,
    "embedding": _embedding,
    "linear": _linear,
    "neg": _negative,
    "one_hot": _one_hot,
}


# -- layers ------------------------------------------------------------------------------------------


def _describe(path: str, leaf: Any) -> str:
    """Return the name of a layer for messages."""
    kind = type(leaf).__name__
    return f"layer {path!r} ({kind})" if path else f"the module ({kind})"


def _to_numpy(tensor: Any) -> Array:
    return np.asarray(tensor.detach().cpu().double().numpy(), dtype=np.float64)


def _tensor(value: Any) -> Any:
    return value.tensor if isinstance(value, _Parameter) else value


def _check_leaf(nn: Any, path: str, leaf: Any) -> None:
    """Raise unless a layer is one of those that are read."""
    where = _describe(path, leaf)
    if isinstance(leaf, nn.Linear):
        _check_linear(where, leaf)
    elif isinstance(leaf, nn.BatchNorm1d):
        _check_batch_norm(where, leaf)
    elif isinstance(leaf, nn.Embedding):
        if leaf.max_norm is not None:
            raise ModelNotSupportedError(
                f"{where} has max_norm={leaf.max_norm}, which rescales its weights while it runs. Run "
                "it once on every category, so that all are rescaled, then set its max_norm to None"
            )
    elif not isinstance(leaf, (nn.ReLU, nn.Sigmoid, nn.Softmax, nn.LogSoftmax, *_skipped(nn))):
        norms = (nn.LayerNorm, nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)
        hint = _NORMALISED_ROWS if isinstance(leaf, norms) else _READ
        raise ModelNotSupportedError(f"{where} is not part of a ReLU network; {hint}")


def _skipped(nn: Any) -> tuple[type, ...]:
    """Layers without an effect on a row once training is over."""
    # Some training frameworks register losses. The comparison shows that they are unused.
    return (nn.modules.dropout._DropoutNd, nn.Identity, nn.Flatten, nn.modules.loss._Loss)


def _check_linear(where: str, leaf: Any) -> None:
    others = [name for name, _ in leaf.named_parameters() if name not in ("weight", "bias")]
    if not others:
        return
    if hasattr(leaf, "parametrizations"):
        bake = "parametrize.remove_parametrizations(layer, 'weight')"
    elif hasattr(leaf, "weight_mask"):
        bake = "prune.remove(layer, 'weight')"
    else:
        bake = f"remove_{'weight' if 'weight_g' in others else 'spectral'}_norm(layer)"
    raise ModelNotSupportedError(
        f"{where} computes its weights from {', '.join(others)}; bake them in first with "
        f"torch.nn.utils.{bake}"
    )


def _check_batch_norm(where: str, leaf: Any) -> None:
    if leaf.running_mean is None or leaf.running_var is None:
        raise ModelNotSupportedError(
            f"{where} has no running statistics, so its effect on a row depends on the other rows "
            "of the batch. Train it with track_running_stats=True, the default"
        )
    if leaf.training:
        raise ModelNotSupportedError(
            f"{where} is in training mode, in which it normalises each batch by itself. Call "
            "module.eval() first, as for the use of the model"
        )


def _precision_of(name: str, tensors: list[Any]) -> Precision:
    """Return the precision of a module: float64 only if all weights and statistics have it."""
    if any(tensor.is_complex() for tensor in tensors):
        raise ModelNotSupportedError(f"{name} has complex weights; a ReLU network has real ones")
    kinds = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    names = sorted(str(kind).removeprefix("torch.") for kind in kinds)
    if set(names) <= {"float32", "float64"}:
        return "float64" if names == ["float64"] else "float32"
    raise ModelNotSupportedError(
        f"the weights of {name} are {', '.join(names)}; margins cover the rounding of float32 and "
        "float64 models only. Read module.float() (every weight keeps its value), and use the model "
        "in float32, too"
    )


# -- modules -----------------------------------------------------------------------------------------


def _unwrapped(torch: Any, module: Any) -> Any:
    """Return the module inside of wrappers that distribute, average or compile it."""
    wrappers = (
        torch.nn.DataParallel,
        torch.nn.parallel.DistributedDataParallel,
        torch.optim.swa_utils.AveragedModel,
    )
    while True:
        if hasattr(module, "_orig_mod"):  # of torch.compile, which would compile once more
            module = module._orig_mod
        elif isinstance(module, wrappers):
            module = module.module
        else:
            return module


def _devices(module: Any) -> set[str]:
    return {tensor.device.type for tensor in (*module.parameters(), *module.buffers())}


def _on_cpu(torch: Any, module: Any) -> Any:
    """Return the module if it is on the CPU, else a copy there."""
    if _devices(module) <= {"cpu"}:
        return module
    try:
        twin = copy.deepcopy(module).cpu()
    except Exception as error:
        for path, leaf in _leaves(torch.nn, module):
            _check_leaf(torch.nn, path, leaf)
        raise ModelNotSupportedError(
            f"{type(module).__name__} cannot be copied to the CPU to be read there ({error}). Give "
            "module.cpu()"
        ) from error
    for part in twin.modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor):  # a plain attribute, which cpu() leaves out
                setattr(part, name, value.cpu())
    return twin


def _check_module(torch: Any, module: Any) -> None:
    nn = torch.nn
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelNotSupportedError(
            "the module is TorchScript, which does not keep its layers. Give the nn.Module it "
            "was made from, or export it to ONNX"
        )
    for path, leaf in module.named_modules():
        tensors = (*leaf.parameters(recurse=False), *leaf.buffers(recurse=False))
        if any(nn.parameter.is_lazy(tensor) or tensor.is_meta for tensor in tensors):
            raise ModelNotSupportedError(
                f"{_describe(path, leaf)} has no weights yet. Run or load the module first"
            )
    required = [
        p.name
        for p in inspect.signature(module.forward).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(required) > 1:
        raise ModelNotSupportedError(
            f"the forward of {type(module).__name__} takes {', '.join(required)}. Wrap it in a "
            "module whose forward takes one tensor of rows and hands on its columns, such as "
            "self.module(x[:, :3], x[:, 3:].long())"
        )


def _leaves(nn: Any, module: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the layers of torch in registration order, with their paths."""
    if _is_layer(nn, module):
        yield path, module
        return
    for name, child in module.named_children():
        yield from _leaves(nn, child, f"{path}.{name}" if path else name)


def _is_layer(nn: Any, module: Any) -> bool:
    """Return True for a layer of torch, or a Linear layer under another name."""
    if isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict)):
        return False
    own = type(module).__module__.startswith(("torch.nn.", "torch.ao."))
    return isinstance(module, nn.Linear) or (own and type(module) is not nn.Module)


@contextmanager
def _evaluated(torch: Any, module: Any) -> Iterator[None]:
    """Run a module in evaluation mode, and restore it and the random numbers afterwards."""
    flags = [(part, part.training) for part in module.modules()]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module.eval()
        try:
            yield
        finally:
            for part, flag in flags:
                part.training = flag


def _needed(graph: Any) -> list[Any]:
    """Return the nodes that the output depends on, in their order."""
    found: dict[Any, None] = {}
    for node in reversed(graph.nodes):
        in_place = str(node.target).split(".")[-2:][0].endswith("_") and node.args[0] in found
        if node.op in ("output", "placeholder") or node in found or in_place:
            found |= dict.fromkeys((node, *node.all_input_nodes))
    return [node for node in graph.nodes if node in found]
