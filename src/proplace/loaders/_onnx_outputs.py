"""What the outputs of an ONNX graph say, in terms of the logits that were found in it.

Behind its logits a graph may compute probabilities, labels, names of classes. Read carelessly,
``1 - sigmoid(z)`` swaps the classes and ``sigmoid(z) > 0.7`` moves the threshold. So that part of the
graph is evaluated on chosen logits, near the threshold and far from it, and each output must then be
one of the forms below. Where the package ``onnxruntime`` is installed, the whole graph is run on
random rows too and must give the same.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from proplace.core.errors import ModelNotSupportedError
from proplace.loaders._onnx_ops import Named
from proplace.loaders._verify import allowance, probabilities_of, probe_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proplace.core.network import Array, Network

    Form = Callable[[Array], Array]

_ROWS = 192
_BATCH = 4096  # a graph that takes more rows at once, and no other number, is not run
_CLOSE = 1e-6  # what float32 constants in the graph may change a probability by


def chosen_logits(outputs: int) -> Array:
    """Rows of logits of all sizes, some of them very near the point where the class changes."""
    rng = np.random.default_rng(0)
    gaps = 10.0 ** rng.uniform(-5.0, 1.0, size=_ROWS) * rng.choice([-1.0, 1.0], size=_ROWS)
    if outputs == 1:
        return np.asarray(gaps[:, None])
    Z = rng.standard_normal((_ROWS + 2 * outputs, outputs)) * rng.uniform(
        0.1, 3.0, size=(_ROWS + 2 * outputs, 1)
    )
    first = np.arange(len(Z)) % outputs  # each class wins somewhere, narrowly or clearly
    second = (first + 1 + rng.integers(outputs - 1, size=len(Z))) % outputs
    rows, top = np.arange(len(Z)), Z.max(axis=1)
    Z[rows, second] = top
    Z[rows, first] = top + np.abs(np.resize(gaps, len(Z)))
    return Z


def predicted(logits: Array) -> npt.NDArray[np.int64]:
    """Class of each row of logits, as :meth:`Network.predict` decides it."""
    if logits.shape[1] == 1:
        return (logits[:, 0] >= 0.0).astype(np.int64)
    return np.asarray(logits.argmax(axis=1), dtype=np.int64)


def _log_softmax(logits: Array) -> Array:
    return np.asarray(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))


def _sigmoid(logits: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-logits)))


_ONE: dict[str, Form] = {
    "logits": lambda z: z,
    "sigmoid": _sigmoid,
    "both probabilities": lambda z: np.hstack([1.0 - _sigmoid(z), _sigmoid(z)]),
    "both scores": lambda z: np.hstack([-z, z]),
}
_SEVERAL: dict[str, Form] = {
    "logits": lambda z: z,
    "softmax": lambda z: np.exp(_log_softmax(z)),
    "log_softmax": _log_softmax,
}


class Output:
    """An output of the graph that was understood: a form of the logits, or a label."""

    def __init__(self, name: str, form: Form | None, labels: list[Any]) -> None:
        self.name = name
        self._form = form
        self.labels = labels

    @property
    def threshold(self) -> float:
        """Value of a single column from which on the class is 1."""
        return 0.5 if self._form is _sigmoid else 0.0

    def probabilities(self, value: Any, count: int) -> Array | None:
        """Probability of each class for ``count`` rows; None where this is a label or a raw score."""
        known = {**_SEVERAL, **_ONE}
        name = next((name for name, form in known.items() if form is self._form), "both scores")
        if name == "both scores":
            return None
        P = np.asarray(value, dtype=np.float64).reshape(count, -1)
        if name == "both probabilities":
            return P
        return probabilities_of(P, name)  # type: ignore[arg-type]

    def agrees(self, value: Any, logits: Array, error: Array) -> bool:
        """Whether ``value`` is this output of rows with such logits, up to an error in them."""
        if self._form is None:
            margin = np.sort(logits, axis=1)
            gap = np.abs(margin[:, 0]) if logits.shape[1] == 1 else margin[:, -1] - margin[:, -2]
            clear = gap > 2.0 * error[:, 0]
            wanted = [self.labels[i] for i in predicted(logits)]
            return [v for v, c in zip(np.ravel(value).tolist(), clear, strict=True) if c] == [
                w for w, c in zip(wanted, clear, strict=True) if c
            ]
        expected = self._form(logits)
        array = np.asarray(value, dtype=np.float64)
        if array.size != expected.size:
            return False
        array = array.reshape(expected.shape)
        if self._form is _log_softmax:
            # The logarithm of a rounded probability may be anything, even minus infinity.
            array, expected = np.exp(array), np.exp(expected)
        difference = np.abs(array - expected)
        return bool((difference <= 2.0 * error + _CLOSE).all())


def understood(path: Path, name: str, value: Any, logits: Array) -> Output:
    """Say what an output is, given its ``value`` on ``logits``, or refuse the graph."""
    labels: list[Any] | None = None
    if isinstance(value, Named):
        labels, value = value.labels, value.values
        if len(labels) != max(2, logits.shape[1]) or not _rising(labels):
            raise _refused(path, name, f"names the classes {labels[:20]}, not in rising order")
    array = np.asarray(value)
    if array.dtype.kind == "f":
        forms = _ONE if logits.shape[1] == 1 else _SEVERAL
        for form in forms.values():
            expected = form(logits)
            flat = expected.shape[1] == 1 and array.shape == expected.shape[:1]
            if (array.shape == expected.shape or flat) and np.all(
                np.abs(array.reshape(expected.shape) - expected)
                <= _CLOSE * (1.0 + np.abs(expected))
            ):
                return Output(name, form, labels or [])
    if array.shape in ((len(logits),), (len(logits), 1)):
        found = _labels(np.ravel(array).tolist(), predicted(logits))
        if found is not None:
            return Output(name, None, found)
    raise _refused(
        path, name, "is neither the logits nor their sigmoid or softmax nor the class they decide"
    )


def _labels(values: list[Any], classes: npt.NDArray[np.int64]) -> list[Any] | None:
    """Return the label of each class, if the values are labels in the order of the classes."""
    table: dict[int, Any] = {}
    for value, number in zip(values, classes.tolist(), strict=True):
        if table.setdefault(number, value) != value:
            return None
    labels = [table[number] for number in sorted(table)]
    return labels if _rising(labels) else None


def _rising(labels: list[Any]) -> bool:
    return all(a < b for a, b in itertools.pairwise(labels))


def _refused(path: Path, name: str, why: str) -> ModelNotSupportedError:
    return ModelNotSupportedError(
        f"{path.name}: output {name!r} {why} (another threshold, classes in another order, a "
        "rescaled probability?); export the model with its logits or plain probabilities as output"
    )


def compare(path: Path, model: Any, network: Network, outputs: list[Output]) -> None:
    """Run the graph on random rows and refuse it where it does not say what the network says.

    Does nothing where onnxruntime is not installed or does not run such graphs.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        return
    rows = probe_rows(network).astype(np.float32).astype(np.float64)
    names = [output.name for output in outputs]
    values = _run(needed(model, names), names, rows)
    if values is None:
        return
    logits, error = network.logits(rows), allowance(network, rows, "float32")
    for output, value in zip(outputs, values, strict=True):
        if not output.agrees(value, logits, error):
            raise ModelNotSupportedError(
                f"{path.name}: output {output.name!r}, run by onnxruntime, differs from the "
                "network that was read; export the model again, with plain layers"
            )


def needed(model: Any, names: list[str]) -> Any:
    """Copy a model without the nodes and constants that no output needs: they were never read."""
    producers = {name: node for node in model.graph.node for name in node.output}
    asked: set[str] = set()
    stack = list(names)
    while stack:
        name = stack.pop()
        if name not in asked:
            asked.add(name)
            stack += producers[name].input if name in producers else ()
    part = type(model)()
    part.CopyFrom(model)
    graph = part.graph
    for field in ("node", "initializer", "sparse_initializer", "value_info"):
        graph.ClearField(field)
    graph.node.extend(node for node in model.graph.node if asked.intersection(node.output))
    graph.initializer.extend(t for t in model.graph.initializer if t.name in asked)
    part.ClearField("functions")
    return part


def _run(model: Any, names: list[str], rows: Array) -> list[Any] | None:
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # what it does not run is not the user's trouble
    options.intra_op_num_threads = 1
    try:
        session = runtime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        (entry,) = session.get_inputs()
        kind = {"tensor(float)": np.float32, "tensor(double)": np.float64}[entry.type]
        return run_in_batches(session, names, {entry.name: rows.astype(kind)}, len(rows))
    except Exception:
        return None


def run_in_batches(
    session: Any, names: list[str], feeds: dict[str, Any], count: int
) -> list[Any] | None:
    """Run a graph on some rows, as many at a time as it takes; None where it takes too many.

    A graph that was exported from an example may be fixed to the number of rows in that.
    """
    sizes = [entry.shape[0] for entry in session.get_inputs() if entry.shape]
    fixed = next((size for size in sizes if isinstance(size, int)), None)
    if fixed is not None and fixed > _BATCH:
        return None
    batch = fixed or count
    # Some rows are run twice to fill the last batch.
    filled = np.resize(np.arange(count), count + -count % batch)
    runs = [
        session.run(names, {name: rows[filled[i : i + batch]] for name, rows in feeds.items()})
        for i in range(0, len(filled), batch)
    ]
    return [_joined([run[i] for run in runs])[:count] for i in range(len(names))]


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], list):  # of dictionaries: a ZipMap
        return np.array([[row[key] for key in sorted(row)] for part in parts for row in part])
    return np.concatenate([np.atleast_1d(part) for part in parts])
