"""Keras itself as the referee: its outputs for the rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.errors import InputError, ModelNotSupportedError
from proplace.loaders._keras_build import Built, Feed, built
from proplace.loaders._keras_inputs import WHOLE
from proplace.loaders._keras_memory import as_numpy
from proplace.loaders._verify import form_of

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

    from proplace.core.network import Array, Network, Precision
    from proplace.loaders._keras_front import Reading
    from proplace.loaders._keras_inputs import Port
    from proplace.loaders._verify import Form


@dataclass(frozen=True, eq=False)
class Runner:
    """A Keras model, run on tables in its own arithmetic.

    Attributes
    ----------
    model, feeds
        The model, and what its inputs take.
    reading
        What was read of it: the names of the columns, and which of them it looks at.
    """

    keras: Any
    model: Any
    feeds: tuple[Feed, ...]
    reading: Reading

    @classmethod
    def of(cls, keras: Any, model: Any, reading: Reading) -> Runner:
        """Run the model itself, or where Keras cannot look up words here, all that is behind them."""
        text = any(port.dtype == "string" for port in reading.ports)
        if text and keras.backend.backend() != "tensorflow":
            return cls.of_built(keras, built(keras, reading.file), reading)
        return cls(keras, model, tuple(map(Feed, reading.ports)), reading)

    @classmethod
    def of_built(cls, keras: Any, made: Built, reading: Reading) -> Runner:
        """Run a model that was built anew."""
        return cls(keras, made.model, made.feeds, reading)

    def outputs(self, table: pd.DataFrame) -> Array:
        """Outputs of the model for each row of a table."""
        arrays = [self._array(feed, table) for feed in self.feeds]
        given = None if isinstance(self.model, self.keras.Sequential) else self.model.input
        feeds: Any = arrays[0]
        if isinstance(given, dict):
            by_name = {f.port.name: array for f, array in zip(self.feeds, arrays, strict=True)}
            feeds = {name: by_name[name] for name in given}
        elif isinstance(given, (list, tuple)):
            feeds = arrays
        value = self.model(feeds, training=False)
        if isinstance(value, dict):
            value = next(iter(value.values()))
        elif isinstance(value, (list, tuple)):
            value = value[0]
        return as_numpy(self.keras, value)

    @property
    def dtypes(self) -> set[str]:
        """Types of numbers that the layers compute with."""
        # The input has a type of its own, which no layer computes in; nor do those of categories.
        layers = [layer for layer in self.model.layers if type(layer).__name__ != "InputLayer"]
        return {name for layer in layers if "float" in (name := str(layer.compute_dtype))}

    def check_precision(self) -> None:
        """Raise if a layer computes in less than float32: no margin covers what Keras does then."""
        if any(dtype.endswith("float16") for dtype in self.dtypes):
            raise ModelNotSupportedError(
                f"model {self.reading.file.name!r} computes in half precision "
                f"({', '.join(sorted(self.dtypes))}), which no margin covers; build it again with the "
                "dtype policy 'float32' and give that model the same weights (set_weights)"
            )

    def precision(self, network: Network, rows: Array, table: pd.DataFrame) -> Precision:
        """Say what the model computes in, having compared its outputs with the network's."""
        name, dtypes = self.reading.file.name, self.dtypes
        try:
            outputs = self.outputs(table)
        except InputError:
            raise
        except Exception as error:
            raise ModelNotSupportedError(
                f"model {name!r} cannot be run on rows of {len(table.columns)} columns: {error}"
            ) from error
        said: Form = self.reading.chain.activation or "logits"
        if dtypes == {"float64"} and form_of(network, rows, outputs, "float64", said) == said:
            return "float64"
        if form_of(network, rows, outputs, "float32", said) != said:
            raise ModelNotSupportedError(
                f"model {name!r} does not compute what the chain of its layers says (a layer that "
                "was changed, or a softmax along another axis?); build it of plain layers"
            )
        return "float32"

    def _array(self, feed: Feed, table: pd.DataFrame) -> Any:
        """Return the cells of an input; columns that the model never looks at may be left out."""
        port = feed.port
        titles = self.reading.titles[self.reading.ports.index(port)]
        flow, used = self.reading.flow, self.reading.flow.used(self.reading.columns)
        columns = [
            [flow.anything(title)] * len(table)
            if title not in table and title not in used
            else table[title].tolist()
            for title in titles
        ]
        if feed.codes is not None:
            columns = [_coded(t, c, feed.codes) for t, c in zip(titles, columns, strict=True)]
            cells: Any = np.array(columns, dtype=np.int64)
        elif port.dtype == "string":
            cells = np.array([[str(cell) for cell in column] for column in columns])
        else:
            cells = np.array([_numbers(t, c) for t, c in zip(titles, columns, strict=True)])
            cells = _typed(port, titles, cells)
        return cells.T.reshape((len(table), *port.shape))


def _coded(title: str, column: list[Any], codes: Any) -> list[int]:
    found = [codes.get(cell) for cell in column]
    if None in found:
        row = found.index(None)
        raise InputError(
            f"row {row}, column {title!r}: {column[row]!r} is not in the vocabulary of the model"
        )
    return found


def _numbers(title: str, column: list[Any]) -> Array:
    try:
        values = np.array(column, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"column {title!r} must hold numbers for this model") from None
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise InputError(
            f"row {bad[0]}, column {title!r}: the model takes no missing or infinite values"
        )
    return values


def _typed(port: Port, titles: list[str], cells: Array) -> npt.NDArray[Any]:
    """Return numbers in the type of their input, which must not change them."""
    if port.dtype not in WHOLE:
        # Half precision is left to Keras: numpy does not have all its types.
        return cells if port.dtype == "float64" else cells.astype(np.float32)
    bounds = np.iinfo(port.dtype)
    odd = np.argwhere((cells != np.rint(cells)) | (cells < bounds.min) | (cells > bounds.max))
    if len(odd):
        column, row = odd[0]
        raise InputError(
            f"row {row}, column {titles[column]!r}: the model takes whole numbers ({port.dtype}), "
            f"not {cells[column, row]}; describe the column with step=1 and its range"
        )
    return cells.astype(port.dtype)
