"""Operations of torch that only move numbers around: they are run on the places of the numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.errors import ModelNotSupportedError
from proplace.loaders._torch_values import BATCH, Neurons, Trained, entries

if TYPE_CHECKING:
    from collections.abc import Callable

    from proplace.loaders._torch_graph import Graph
    from proplace.loaders._torch_values import Call


def rearranged(graph: Graph, call: Call) -> Any:
    """Lead one tensor through an operation that moves, selects or reshapes its numbers."""
    if len(call.held) > 1:
        graph.unknown(call)
    return placed(graph, call.where, call.held, call.on)


def joined(graph: Graph, call: Call) -> Any:
    """Put several tensors beside each other."""
    parts = call.argument(0, "tensors", ())
    neurons = [value for value in call.held if isinstance(value, Neurons)]
    if neurons and len(parts) > 1:
        graph.branches(call.where)
    if len(call.held) != len(parts):  # fixed numbers beside the columns
        graph.unknown(call)
    if len({type(value) for value in call.held}) > 1:
        for value in call.held:
            graph.numbers(call.where, value)
    return placed(graph, call.where, call.held, call.on)


def placed(graph: Graph, where: str, held: list[Any], function: Callable[[list[Any]], Any]) -> Any:
    """Run a function on the places of the numbers of tensors: ``row * total + place``."""
    for value in held:
        if isinstance(value, Trained):
            graph.parameter(value)
        if isinstance(value, Neurons):
            graph.current(where, value)
    total = sum(value.entries.size for value in held)
    rows = total * np.arange(BATCH).reshape(-1, 1)
    tensors, start = [], 0
    for value in held:
        ids = rows + np.arange(start, start + value.entries.size)
        tensors.append(graph.torch.as_tensor(ids.reshape(BATCH, *value.entries.shape)))
        start += value.entries.size
    try:
        out = function(tensors)
    except Exception as error:
        raise ModelNotSupportedError(f"{where} cannot be run: {error}") from error
    if not isinstance(out, (tuple, list)):
        return _collected(graph, where, held, out.numpy())
    if isinstance(held[0], Neurons):
        graph.branches(where)
    return tuple(_collected(graph, where, held, part.numpy()) for part in out)


def _collected(graph: Graph, where: str, held: list[Any], ids: Any) -> Any:
    """Return the tensor whose numbers came to these places."""
    total = sum(value.entries.size for value in held)
    places = ids[0] if ids.ndim else ids
    own = total * np.arange(BATCH).reshape(-1, *[1] * places.ndim) + places
    if ids.shape != own.shape or not np.array_equal(ids, own) or (places >= total).any():
        raise ModelNotSupportedError(
            f"{where} mixes rows; every row must keep its place in the first dimension"
        )
    chosen = places.reshape(-1)
    if not isinstance(held[0], Neurons):
        known = [column for value in held for column in value.entries.reshape(-1)]
        return type(held[0])(entries([known[i] for i in chosen]).reshape(places.shape))
    if np.array_equal(chosen, np.arange(total)):
        return Neurons(held[0].step, places)
    return graph.take(where, chosen.tolist(), places.shape)
