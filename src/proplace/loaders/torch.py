"""Networks and whole models from torch modules."""

from __future__ import annotations

import copy
import inspect
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from proplace.core.errors import InputError, ModelNotSupportedError, require
from proplace.loaders._chain import multi_label
from proplace.loaders._flow import Flow
from proplace.loaders._torch_graph import Graph, inside, needed_nodes
from proplace.loaders._torch_layers import check_leaf, numpy_of, precision_of, where_of
from proplace.loaders._torch_record import NotRecorded, Recording, same
from proplace.loaders._torch_registered import is_plain, registered
from proplace.loaders._torch_values import Spread
from proplace.loaders._verify import form_of, probabilities_of, probe_rows, probe_table
from proplace.loaders._whole import Whole

if TYPE_CHECKING:
    from proplace.core.network import Array, Network, Precision
    from proplace.core.transforms import InputTransform
    from proplace.loaders._chain import Activation, Chain
    from proplace.loaders._flow import Flowing
    from proplace.loaders._verify import Form
    from proplace.loaders.trained_layer import TrainedLayer


def from_torch(module: object) -> Network:
    """Read a torch module whose rows are plain numbers.

    Parameters
    ----------
    module
        An ``nn.Sequential``, or any module whose ``forward`` ``torch.fx`` can record: Linear layers
        with a ReLU between them (a layer, a function or a method). Dropout, Identity, Flatten and
        views are skipped; a last sigmoid, softmax or log-softmax is recognised and left out.

        In front of the first Linear layer ``forward`` may select, join, add and scale columns with
        fixed numbers (buffers, constants, batch norm): this becomes the network's input transform, which
        is not trained and never shifts. A module with an Embedding takes categories: see
        ``Model.of``.

        Batch norm (in evaluation mode) behind a Linear layer is folded into that layer, batch norm
        between a ReLU and a Linear layer into the latter, other fixed factors and shifts likewise.
        Its own weights and statistics count as fixed. Shifts (delta) still speak of the weights and
        biases of the Linear layers: see :mod:`proplace.core.transforms`. The float32 margin speaks of
        the folded ones. Nothing else touches a trained weight.

        A module that ``torch.fx`` cannot record (``forward`` branches on values, say) is taken for
        the chain of its Linear layers in the order in which they were registered.

    Returns
    -------
    Network
        The module and the network are run on random rows and must agree, so a ``forward`` that
        does something else than was read is refused. The module itself is not changed. The precision
        is that of the weights, float32 or float64.
    """
    reading = _read(module)
    network = reading.network(reading.flow.numbers(reading.columns, reading.source.titles))
    rows = probe_rows(network)
    reading.form(network, rows, rows)
    return network


def whole_torch(module: object) -> Whole:
    """Read a torch module together with all that its ``forward`` does to the table.

    See :func:`from_torch` for what is read. An Embedding (or ``F.one_hot``) of one column makes that
    column a category with the labels 0, 1, ...; its weights are a fixed linear map of the labels and
    never shift. Columns are called x0, x1, ... until a schema names them.
    """
    reading = _read(module)
    schema, input_transform = reading.flow.finish(reading.columns)
    network = reading.network(input_transform)
    most = max((len(getattr(f, "labels", ())) for f in schema.features), default=0)
    probe = probe_table(schema, max(64, 2 * most))
    form = reading.form(network, schema.encode(probe), reading.rows(probe))

    def run(frame: pd.DataFrame) -> Array:
        return reading.source.run(reading.rows(frame)).reshape(len(frame), network.outputs)

    def predict(frame: pd.DataFrame) -> Any:
        outputs = run(frame)
        if network.outputs > 1:
            return np.asarray(outputs.argmax(axis=1), dtype=np.int64)
        return (outputs[:, 0] >= (0.5 if form == "sigmoid" else 0.0)).astype(np.int64)

    return Whole(
        network,
        schema,
        None,
        predict,
        columns=tuple(reading.source.titles),
        has_column_names=False,
        probabilities=lambda frame: probabilities_of(run(frame), form),
    )


def trained_torch(module: object) -> tuple[Any, tuple[TrainedLayer, ...]]:
    """Return the module itself, unwrapped, and by their names in it the parameters of each layer."""
    reading = _read(module)
    return reading.source.module, reading.chain.trained


@dataclass(frozen=True, eq=False)
class _Source:
    """The user's own module, run as it is used: in its own arithmetic, on its own device."""

    torch: Any
    module: Any
    dtype: Any
    device: Any
    width: int

    @property
    def titles(self) -> list[str]:
        return [f"x{i}" for i in range(self.width)]

    def run(self, rows: Array) -> Array:
        return _outputs(self.torch, self.module, rows, self.dtype, self.device)


@dataclass(frozen=True, eq=False)
class _Reading:
    """What was read of a module: columns on their way to the first layer, and the layers."""

    source: _Source
    recording: Recording | None
    flow: Flow
    columns: list[Flowing]
    layers: Network
    chain: Chain

    @property
    def activation(self) -> Activation | None:
        return self.chain.activation

    def network(self, input_transform: InputTransform) -> Network:
        return self.layers.with_input_transform(input_transform)

    def rows(self, frame: pd.DataFrame) -> Array:
        """Rows of a table as the module takes them; what it never looks at may be left out."""
        used = self.flow.used(self.columns)
        cells = {
            title: frame[title]
            if title in frame or title in used
            else np.full(len(frame), self.flow.anything(title))
            for title in self.source.titles
        }
        rows = pd.DataFrame(cells, index=frame.index).to_numpy(dtype=np.float64)
        if not np.isfinite(rows).all():
            row, column = np.argwhere(~np.isfinite(rows))[0]
            raise InputError(
                f"row {row}, column {self.source.titles[column]!r}: the module takes no missing or "
                "infinite values"
            )
        return rows

    def form(self, network: Network, X: Array, rows: Array) -> Form:
        """Say what the module's outputs are, having compared them with the network's."""
        name = type(self.source.module).__name__
        try:
            outputs, arithmetic = self._outputs(rows)
        except ModelNotSupportedError:
            raise
        except Exception as error:
            raise ModelNotSupportedError(
                f"{name} cannot be run on rows of shape (n, {self.source.width}): {error}. Its "
                "forward must take one tensor of rows and return one tensor"
            ) from error
        form = form_of(network, X, outputs, arithmetic, self.activation or "logits")
        if form == "sigmoid" and network.outputs > 1:
            raise multi_label(name, network.outputs)
        recorded = self.recording is not None
        if form is None or (recorded and form != (self.activation or "logits")):
            raise ModelNotSupportedError(
                f"the forward of {name} does not equal the chain of its Linear layers with a ReLU "
                "between them (a hook, a skip connection, another activation, a transform of the "
                "input?). Write it as nn.Sequential of the layers that are read, and train that"
            )
        return form

    def _outputs(self, rows: Array) -> tuple[Array, Precision]:
        """Run the module on rows, in float64 where that can be."""
        source, torch = self.source, self.source.torch
        own = self.layers.precision
        if self.recording is None:
            try:
                twin = copy.deepcopy(source.module).to(device="cpu", dtype=torch.float64)
                return _outputs(torch, twin, rows, torch.float64, "cpu"), "float64"
            except Exception:
                # Not every module can be copied or takes float64 rows; then it is run itself.
                return source.run(rows), own
        outputs = source.run(rows)
        if not same(outputs, self.recording.run(self.recording.as_used, rows, source.dtype)):
            raise ModelNotSupportedError(
                f"the forward of {type(source.module).__name__} does something else than what "
                "torch.fx recorded of it (does it ask for types, or change while it runs?). Write "
                "it as nn.Sequential of the layers that are read"
            )
        whole = not source.dtype.is_floating_point
        try:
            exact = torch.int64 if whole else torch.float64
            return self.recording.run(self.recording.exact, rows, exact), "float64"
        except Exception:  # a cast to float32 in a form that was not recognised
            return outputs, own


def _read(module: object) -> _Reading:
    torch = require("torch", "torch", "reading a torch module")
    plain = _unwrapped(torch, module)
    _check_module(torch, plain)
    first = next((p for p in plain.parameters()), None)
    dtype = torch.float32 if first is None else first.dtype
    device = "cpu" if first is None else first.device
    try:
        recording = Recording(torch, plain, dtype, device)
        _check_layers(torch, plain, recording)
        return _recorded(torch, plain, recording)
    except NotRecorded as error:
        return _registered(torch, plain, dtype, device, str(error))


def _unwrapped(torch: Any, module: Any) -> Any:
    """Return the module inside of what only distributes, averages or compiles it."""
    # torch.compile wraps the module; the wrapper would compile again for the comparison.
    wrappers = (
        torch.nn.DataParallel,
        torch.nn.parallel.DistributedDataParallel,
        torch.optim.swa_utils.AveragedModel,
    )
    while True:
        if hasattr(module, "_orig_mod"):
            module = module._orig_mod
        elif isinstance(module, wrappers):
            module = module.module
        else:
            return module


def _check_module(torch: Any, module: Any) -> None:
    nn = torch.nn
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelNotSupportedError(
            "the module is TorchScript, whose layers cannot be told apart; give the nn.Module it "
            "was made from, or export it to ONNX"
        )
    if not isinstance(module, nn.Module):
        raise ModelNotSupportedError(
            f"from_torch takes a torch.nn.Module, not {type(module).__name__}; load the "
            "weights of a state dict into their module (module.load_state_dict) and give that"
        )
    for path, leaf in module.named_modules():
        if isinstance(leaf, (nn.Linear, nn.modules.batchnorm._NormBase)) and any(
            nn.parameter.is_lazy(p) or p.is_meta for p in leaf.parameters()
        ):
            raise ModelNotSupportedError(
                f"{where_of(path, leaf)} has no weights yet; run or load the module first"
            )
        if isinstance(leaf, nn.Linear) and not leaf.weight.is_floating_point():
            raise ModelNotSupportedError(
                f"{where_of(path, leaf)} has weights of type {leaf.weight.dtype}; a ReLU network has "
                "real ones"
            )
    _precision(torch, module)
    required = [
        p.name
        for p in inspect.signature(module.forward).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(required) > 1:
        raise ModelNotSupportedError(
            f"the forward of {type(module).__name__} takes {', '.join(required)}; wrap it in a "
            "module whose forward takes one tensor of rows and hands on its columns, such as "
            "self.module(x[:, :3], x[:, 3:].long())"
        )


# -- the recorded graph ----------------------------------------------------------------------------


def _check_layers(torch: Any, module: Any, recording: Recording) -> None:
    needed = needed_nodes(recording.exact.graph)
    for node in recording.exact.graph.nodes:
        if node in needed and node.op == "call_module":
            path = inside(node.target)
            check_leaf(torch.nn, path, module.get_submodule(path))


def _recorded(torch: Any, module: Any, recording: Recording) -> _Reading:
    name = type(module).__name__
    graph, dtype = _graph(torch, module, recording)
    width = len(graph.titles)
    if recording.problem(width + 1, dtype) is None:
        wider = Graph(torch, recording.exact, name, width + 1)
        if repr(wider.columns) != repr(graph.columns):
            raise ModelNotSupportedError(
                f"the forward of {name} counts columns from the end of a row but runs on rows of "
                "any length; count them from the front, as in x[:, 5] for x[:, -1]"
            )
    used = graph.flow.used(graph.columns)
    if not dtype.is_floating_point and any(graph.flow.sources[n].labels is None for n in used):
        raise ModelNotSupportedError(
            f"the forward of {name} takes rows of whole numbers, with numbers beside categories; "
            "let it take rows of decimals and cut the categories itself, as in x[:, 0].long()"
        )
    source = _Source(torch, module, dtype, recording.device, width)
    layers = graph.chain.network(_precision(torch, module))
    return _Reading(source, recording, graph.flow, graph.columns, layers, graph.chain)


def _graph(torch: Any, module: Any, recording: Recording) -> tuple[Graph, Any]:
    """Return the graph for the smallest number of columns that it takes, and their type."""
    name = type(module).__name__
    spread: Spread | None = None
    for width, dtype in itertools.islice(recording.widths(), 20):
        try:
            return Graph(torch, recording.exact, name, width), dtype
        except Spread as error:
            spread = spread or error
        except ModelNotSupportedError as error:
            if name in str(error) or is_plain(torch.nn, module):
                raise
            raise ModelNotSupportedError(f"in the forward of {name}, {error}") from None
    if spread is not None:
        raise spread
    raise NotRecorded(
        f"it does not run on rows of numbers: {recording.problem(1, recording.dtype)}"
    )


def _registered(torch: Any, module: Any, dtype: Any, device: Any, reason: str) -> _Reading:
    chain, width = registered(torch.nn, module, reason)
    source = _Source(torch, module, dtype, device, width)
    flow = Flow()
    columns: list[Flowing] = [flow.column(title) for title in source.titles]
    layers = chain.network(_precision(torch, module))
    return _Reading(source, None, flow, columns, layers, chain)


# -- running the module ----------------------------------------------------------------------------


def _precision(torch: Any, module: Any) -> Precision:
    return precision_of(torch, type(module).__name__, [*module.parameters(), *module.buffers()])


def _outputs(torch: Any, module: Any, X: Array, dtype: Any, device: Any) -> Array:
    """Run a module on rows in evaluation mode, and leave it as it was."""
    training = [(m, m.training) for m in module.modules()]
    rows = torch.as_tensor(np.array(X), dtype=dtype, device=device)
    try:
        module.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return numpy_of(module(rows))
    finally:
        for m, flag in training:
            m.training = flag
