"""What the ``forward`` of a torch module does, recorded by ``torch.fx``."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.errors import ModelNotSupportedError
from proplace.loaders._torch_layers import numpy_of, skipped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proplace.core.network import Array

_WIDEST = 5_000  # columns tried until a module runs


class NotRecorded(Exception):
    """``torch.fx`` cannot record this module: it cannot be copied, or branches on values."""


class Recording:
    """The graph of a module, on a copy of it in evaluation mode.

    Attributes
    ----------
    exact
        The graph in float64, casts to float32 included: for comparisons that are not blurred by
        rounding.
    as_used
        The graph in the arithmetic of the module itself.
    """

    def __init__(self, torch: Any, module: Any, dtype: Any, device: Any) -> None:
        self.torch, self.dtype, self.device = torch, dtype, device
        try:
            twin = copy.deepcopy(module).double().eval()
            root = _wrapped(torch, twin)
            tracer = _tracer(torch)
            graph = tracer.trace(root)
        except Exception as error:
            raise NotRecorded(str(error).partition("\n")[0]) from error
        if tracer.reduced:
            raise ModelNotSupportedError(
                f"the forward of {type(module).__name__} computes under autocast, in less than "
                "float32; margins cover the rounding of float32 and float64 models only. Leave "
                "autocast out of forward, and use it around the training alone"
            )
        self.as_used = copy.deepcopy(torch.fx.GraphModule(root, graph)).to(dtype)
        self.exact = torch.fx.GraphModule(root, _in_doubles(torch, graph))

    def widths(self) -> Iterator[tuple[int, Any]]:
        """Yield numbers of columns on which the module runs, and the type of their numbers."""
        known = self._first_layer_width()
        if known is not None:
            yield known, self.dtype
            return
        for width in range(1, _WIDEST + 1):
            for dtype in (self.dtype, self.torch.int64):
                if self.problem(width, dtype) is None:
                    yield width, dtype
                    break

    def problem(self, width: int, dtype: Any) -> str | None:
        """Say why the module does not run on rows of this width; None if it does."""
        zeros = self.torch.zeros((2, width), dtype=dtype, device=self.device)
        try:
            with self.torch.no_grad(), self.torch.random.fork_rng(devices=[]):
                self.as_used.forward(zeros)  # a call would print what was generated
        except Exception as error:
            return str(error).partition("\n")[0]
        return None

    def _first_layer_width(self) -> int | None:
        """Width of a module whose rows go to a layer as they are."""
        nn = self.torch.nn
        node = next(node for node in self.as_used.graph.nodes if node.op == "placeholder")
        while len(node.users) == 1:
            (node,) = node.users
            if node.op != "call_module":
                return None
            leaf = self.as_used.get_submodule(node.target)
            if isinstance(leaf, nn.Linear):
                return int(leaf.in_features)
            if isinstance(leaf, nn.BatchNorm1d):
                return int(leaf.num_features)
            if not isinstance(leaf, skipped(nn)):
                return None
        return None

    def run(self, graph: Any, rows: Array, dtype: Any) -> Array:
        """Run one of the two graphs on rows."""
        tensor = self.torch.as_tensor(np.array(rows), dtype=dtype, device=self.device)
        with self.torch.no_grad(), self.torch.random.fork_rng(devices=[]):
            return numpy_of(graph.forward(tensor))


def same(a: Array, b: Array) -> bool:
    """Whether two runs of the same operations agree, up to their rounding."""
    if a.shape != b.shape:
        return False
    size = float(np.median(np.abs(b))) if b.size else 0.0
    return bool(np.allclose(a, b, rtol=1e-3, atol=1e-3 * size, equal_nan=True))


def _wrapped(torch: Any, module: Any) -> Any:
    """Return a module that calls the given one with rows alone, so that options keep their values."""

    class Alone(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, rows: Any) -> Any:
            return self.module(rows)

    return Alone()


def _tracer(torch: Any) -> Any:
    """Return a recorder that sees Linear layers as one step, and whether autocast is on."""

    class Tracer(torch.fx.Tracer):  # type: ignore[misc]
        reduced = False

        def is_leaf_module(self, m: Any, name: str) -> bool:
            forward = getattr(type(m), "forward", None)
            return forward is torch.nn.Linear.forward or super().is_leaf_module(m, name)

        def create_node(self, *args: Any, **kwargs: Any) -> Any:
            self.reduced = self.reduced or _autocast(torch)
            return super().create_node(*args, **kwargs)

    return Tracer()


def _autocast(torch: Any) -> bool:
    try:
        return any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))
    except TypeError:  # torch before 2.4
        return bool(torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled())


def _in_doubles(torch: Any, graph: Any) -> Any:
    """Return the graph with casts to float64 in the place of casts to float32."""
    result = copy.deepcopy(graph)
    for node in result.nodes:
        if node.op == "call_method" and node.target == "float":
            node.target, node.meta["written"] = "double", "float"
        args, kwargs = torch.fx.node.map_aggregate(
            (node.args, node.kwargs), lambda a: torch.float64 if a is torch.float32 else a
        )
        node.args, node.kwargs = args, kwargs
    return result
