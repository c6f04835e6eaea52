"""Networks from torch modules."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.errors import ModelNotSupported
from proplace.loaders._chain import Activation, Chain, multi_label
from proplace.loaders._verify import form_of, probe_rows
from proplace.optional import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proplace.loaders._verify import Arithmetic
    from proplace.network import Array, Network, Precision

_BATCH_NORM = (
    "fold it into the Linear layer before it after training (torch.nn.utils.fusion."
    "fuse_linear_bn_eval), or train without it"
)


def from_torch(module: object) -> Network:
    """Read a torch module of Linear and ReLU layers.

    Parameters
    ----------
    module
        An ``nn.Sequential`` (also nested), or any module whose ``forward`` passes its Linear layers
        in the order in which they were registered, with a ReLU between them. Dropout, Identity and
        Flatten are skipped; a last sigmoid, softmax or log-softmax is recognised and left out.

    Returns
    -------
    Network
        The module and the network are run on random rows and must agree, so a ``forward`` that
        does something else than its layers say is refused. The module itself is not changed.
        Half-precision weights are read as they are; the network then says ``float32``.
    """
    torch = require("torch", "torch", "reading a torch module")
    nn = torch.nn
    # torch.compile wraps the module; the wrapper would compile again for the comparison.
    module = getattr(module, "_orig_mod", module)
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelNotSupported(
            "the module is TorchScript, whose layers cannot be told apart; give the nn.Module it "
            "was made from, or export it to ONNX"
        )
    if not isinstance(module, nn.Module):
        raise ModelNotSupported(
            f"from_torch takes a torch.nn.Module, not {type(module).__name__}; weights in a "
            "state dict are read from a file with Network.load"
        )
    leaves = list(_leaves(nn, module, ""))
    for path, leaf in leaves:
        _check_leaf(torch, path, leaf)
    _check_parameters(module, [leaf for _, leaf in leaves])
    plain = all(_is_sequential(nn, m) for m in module.modules() if m._modules)
    network = _chain(nn, leaves, plain=plain).network(_precision(torch, module))
    _verify(torch, module, network)
    return network


def _leaves(nn: Any, module: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the layers in registration order; a layer that is registered twice comes twice."""
    children = {name: child for name, child in module._modules.items() if child is not None}
    if isinstance(module, nn.Linear) or not children:
        yield path, module
        return
    for name, child in children.items():
        yield from _leaves(nn, child, f"{path}.{name}" if path else name)


def _where(path: str, leaf: Any) -> str:
    kind = type(leaf).__name__
    return f"layer {path!r} ({kind})" if path else f"the module ({kind})"


def _is_sequential(nn: Any, module: Any) -> bool:
    return isinstance(module, nn.Linear) or getattr(type(module), "forward", None) is (
        nn.Sequential.forward
    )


def _skipped(nn: Any) -> tuple[type, ...]:
    # Losses are registered by some training frameworks; the comparison shows that they are unused.
    return (
        nn.modules.dropout._DropoutNd,
        nn.Identity,
        nn.Flatten,
        nn.modules.loss._Loss,
    )


def _activation(nn: Any, leaf: Any) -> Activation | None:
    kinds: list[tuple[type, Activation]] = [
        (nn.Sigmoid, "sigmoid"),
        (nn.Softmax, "softmax"),
        (nn.LogSoftmax, "log_softmax"),
    ]
    return next((name for kind, name in kinds if isinstance(leaf, kind)), None)


def _check_leaf(torch: Any, path: str, leaf: Any) -> None:
    nn = torch.nn
    if isinstance(leaf, nn.Linear):
        if nn.parameter.is_lazy(leaf.weight) or leaf.weight.is_meta:
            raise ModelNotSupported(
                f"{_where(path, leaf)} has no weights yet; run or load the module first"
            )
        if not leaf.weight.is_floating_point():
            raise ModelNotSupported(
                f"{_where(path, leaf)} has weights of type {leaf.weight.dtype}; a ReLU network has "
                "real ones"
            )
        others = [name for name, _ in leaf.named_parameters() if name not in ("weight", "bias")]
        if others:
            raise ModelNotSupported(
                f"{_where(path, leaf)} computes its weights from {', '.join(others)}; bake them in "
                "first with torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight')"
            )
        return
    if isinstance(leaf, (nn.ReLU, *_skipped(nn))) or _activation(nn, leaf) is not None:
        return
    if isinstance(leaf, nn.modules.batchnorm._NormBase):
        hint = _BATCH_NORM
    else:
        hint = (
            "only Linear and ReLU layers, Dropout, Identity, Flatten and a last Sigmoid, Softmax "
            "or LogSoftmax are read. Train the model with those"
        )
    raise ModelNotSupported(f"{_where(path, leaf)} is not part of a ReLU network; {hint}")


def _check_parameters(module: Any, leaves: list[Any]) -> None:
    # A parameter of the module itself would be trained too, so its shifts matter, even where its
    # present value (a scale of 1, say) does not show in the outputs.
    known = {id(p) for leaf in leaves for p in leaf.parameters()}
    for name, parameter in module.named_parameters():
        if id(parameter) not in known:
            raise ModelNotSupported(
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
        where = _where(path, leaf)
        if isinstance(leaf, nn.Linear):
            if not plain and chain.at_linear:
                chain.relu(where)
            bias = None if leaf.bias is None else _numpy(leaf.bias)
            chain.linear(where, _numpy(leaf.weight), bias)
        elif plain and isinstance(leaf, nn.ReLU):
            chain.relu(where)
        elif plain and (activation := _activation(nn, leaf)) is not None:
            chain.finish(where, activation)
    return chain


def _numpy(tensor: Any) -> Array:
    return np.asarray(tensor.detach().cpu().double().numpy(), dtype=np.float64)


def _precision(torch: Any, module: Any) -> Precision:
    doubles = [p.dtype == torch.float64 for p in module.parameters()]
    return "float64" if doubles and all(doubles) else "float32"


def _verify(torch: Any, module: Any, network: Network) -> None:
    X = probe_rows(network)
    name = type(module).__name__
    try:
        outputs, arithmetic = _run(torch, module, X)
    except Exception as error:
        raise ModelNotSupported(
            f"{name} cannot be run on rows of shape (n, {network.inputs}): {error}. Its forward "
            "must take one tensor of rows and return one tensor"
        ) from error
    form = form_of(network, X, outputs, arithmetic)
    if form == "sigmoid" and network.outputs > 1:
        raise multi_label(name, network.outputs)
    if form is None:
        raise ModelNotSupported(
            f"the forward of {name} does not equal the chain of its Linear layers with a ReLU "
            "between them (a skip connection, another activation, a transform of the input?). "
            "Write it as nn.Sequential, or export it to ONNX and read that file"
        )


def _run(torch: Any, module: Any, X: Array) -> tuple[Array, Arithmetic]:
    """Run the module on the rows, in float64 where it allows that."""
    try:
        twin = copy.deepcopy(module).to(device="cpu", dtype=torch.float64)
        return _outputs(torch, twin, X, torch.float64, "cpu"), "float64"
    except Exception:
        # Not every module can be copied or takes float64 rows (a float32 constant in forward);
        # then the module itself is run.
        first = next(module.parameters())
        outputs = _outputs(torch, module, X, first.dtype, first.device)
        exact: dict[Any, Arithmetic] = {torch.float64: "float64", torch.float32: "float32"}
        return outputs, exact.get(first.dtype, "half")


def _outputs(torch: Any, module: Any, X: Array, dtype: Any, device: Any) -> Array:
    training = [(m, m.training) for m in module.modules()]
    rows = torch.as_tensor(X, dtype=dtype, device=device)
    try:
        module.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return _numpy(module(rows))
    finally:
        for m, flag in training:
            m.training = flag
