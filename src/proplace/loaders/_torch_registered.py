"""A torch module whose ``forward`` cannot be recorded, as the chain of its registered layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from proplace.core.errors import ModelNotSupportedError
from proplace.loaders._chain import Chain
from proplace.loaders._torch_layers import activation_of, check_leaf, numpy_of, where_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def registered(nn: Any, module: Any, reason: str) -> tuple[Chain, int]:
    """Return the chain of the layers and the number of columns it takes; the comparison decides.

    ``reason`` says why the module could not be recorded.
    """
    leaves = list(_leaves(nn, module, ""))
    for path, leaf in leaves:
        check_leaf(nn, path, leaf)
        if isinstance(leaf, (nn.BatchNorm1d, nn.Embedding)):
            raise ModelNotSupportedError(
                f"{where_of(path, leaf)} is read only where torch.fx can record forward, and here it "
                f"cannot ({reason}). Write forward for one tensor of rows, without an if or assert "
                "about them"
            )
    _check_parameters(module, [leaf for _, leaf in leaves])
    width = next((leaf.in_features for _, leaf in leaves if isinstance(leaf, nn.Linear)), 0)
    return _chain(nn, leaves, plain=is_plain(nn, module)), width


def _leaves(nn: Any, module: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the layers in registration order; a layer that is registered twice comes twice."""
    children = {name: child for name, child in module._modules.items() if child is not None}
    if isinstance(module, nn.Linear) or not children:
        yield path, module
        return
    for name, child in children.items():
        yield from _leaves(nn, child, f"{path}.{name}" if path else name)


def is_plain(nn: Any, module: Any) -> bool:
    """Whether a module is made of Sequential alone."""
    return all(
        isinstance(m, nn.Linear) or getattr(type(m), "forward", None) is nn.Sequential.forward
        for m in module.modules()
        if m._modules
    )


def _check_parameters(module: Any, leaves: list[Any]) -> None:
    # A parameter of the module itself would be trained too, so its shifts matter, even where its
    # present value (a scale of 1, say) does not show in the outputs.
    known = {id(p) for leaf in leaves for p in leaf.parameters()}
    for name, parameter in module.named_parameters():
        if id(parameter) not in known:
            raise ModelNotSupportedError(
                f"parameter {name!r} belongs to no Linear layer; only weights and biases of Linear "
                "layers are read"
            )


def _chain(nn: Any, leaves: list[tuple[str, Any]], *, plain: bool) -> Chain:
    """Return the chain of the layers.

    In a plain Sequential each layer stands where it acts. In other modules the ReLU may be a
    function in ``forward``, or one module used many times, so it is put between the Linear layers
    and the comparison decides.
    """
    chain = Chain("Linear")
    for path, leaf in leaves:
        where = where_of(path, leaf)
        if isinstance(leaf, nn.Linear):
            if not plain and chain.at_linear:
                chain.relu(where)
            bias = None if leaf.bias is None else numpy_of(leaf.bias)
            front = f"{path}." if path else ""
            names = f"{front}weight", None if bias is None else f"{front}bias"
            chain.linear(where, numpy_of(leaf.weight), bias, names)
        elif plain and isinstance(leaf, nn.ReLU):
            chain.relu(where)
        elif plain and (activation := activation_of(nn, leaf)) is not None:
            chain.finish(where, activation)
    return chain
