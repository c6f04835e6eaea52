"""A model that was followed by a :class:`~proplace.loaders.trace.Trace`, compared with the original.

Whatever a reader overlooked (a hook, a subclass, a custom ``forward``) shows in the outputs: the
original and what was read of it are run on made-up rows of very different sizes and must agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from proplace.core.errors import InputError, ModelNotSupportedError, SchemaError
from proplace.core.transforms import InputTransform
from proplace.loaders._chain import multi_label
from proplace.loaders._verify import form_of, probabilities_of, probe_rows, probe_table
from proplace.loaders._whole import Whole
from proplace.schema import Continuous

if TYPE_CHECKING:
    from collections.abc import Callable

    from proplace.core.network import Array, Network, Precision
    from proplace.loaders._verify import Form
    from proplace.loaders.trace import Trace
    from proplace.schema import Schema


@dataclass(frozen=True, eq=False)
class Reading:
    """A trace, and the original model that it must agree with.

    Attributes
    ----------
    trace
        What was read.
    run
        The original: from a table with the columns of the trace to its outputs, one row for each.
    precision
        The arithmetic of the original; float64 only if its outputs are that exact.
    advice
        What to do where both differ.
    has_column_names
        True if the model knows its columns by name.
    integers
        Columns that take whole numbers only.
    """

    trace: Trace
    run: Callable[[pd.DataFrame], Array]
    precision: Precision
    advice: str
    has_column_names: bool = False
    integers: frozenset[str] = frozenset()

    def network(self) -> Network:
        """Return the network of a model that takes rows of numbers."""
        trace = self.trace
        input_transform = trace.flow.numbers(trace.columns, trace.titles)
        network = trace.chain.network(self.precision).with_input_transform(input_transform)
        rows = probe_rows(network).astype(np.float32).astype(np.float64)
        table = pd.DataFrame(rows, columns=trace.titles)
        return network.with_input_transform(input_transform, self._compared(network, rows, table))

    def whole(self) -> Whole:
        """Return the model from the table to the class."""
        trace = self.trace
        try:
            schema, input_transform = trace.flow.finish(trace.columns)
        except SchemaError as error:
            raise ModelNotSupportedError(
                f"the inputs of {trace.title} are no columns of a table: {error}"
            ) from None
        network = trace.chain.network(self.precision).with_input_transform(input_transform)
        table = self._probe(schema)
        raw, rows = unscaled(network, schema, table)
        network = network.with_input_transform(input_transform, self._compared(raw, rows, table))

        def run(frame: pd.DataFrame) -> Array:
            return self._outputs(frame).reshape(len(frame), network.outputs)

        def predict(frame: pd.DataFrame) -> Any:
            outputs = run(frame)
            if network.outputs > 1:
                return np.asarray(outputs.argmax(axis=1), dtype=np.int64)
            return (outputs[:, 0] >= (0.5 if self.form == "sigmoid" else 0.0)).astype(np.int64)

        return Whole(
            network,
            schema,
            None,
            predict,
            columns=tuple(trace.titles),
            has_column_names=self.has_column_names,
            probabilities=lambda frame: probabilities_of(run(frame), self.form),
        )

    @property
    def form(self) -> Form:
        """What the outputs are."""
        return self.trace.chain.activation or "logits"

    def _probe(self, schema: Schema) -> pd.DataFrame:
        """Make up a table of values that the model takes as they are."""
        most = max((len(getattr(f, "labels", ())) for f in schema.features), default=0)
        table = probe_table(schema, max(64, 2 * most), self.integers)
        for feature in schema.features:
            if isinstance(feature, Continuous):
                cells = table[feature.name].to_numpy()
                if feature.name in self.integers:
                    cells = cells.round().clip(-(2.0**15), 2.0**15)
                table[feature.name] = cells.astype(np.float32).astype(np.float64)
        return table

    def _outputs(self, frame: pd.DataFrame) -> Array:
        """Run the original; columns that it never looks at may be left out."""
        trace = self.trace
        used = trace.used()
        cells: dict[str, Any] = {
            title: frame[title]
            if title in frame or title in used
            else [trace.flow.anything(title)] * len(frame)
            for title in trace.titles
        }
        for title, column in cells.items():
            source = trace.flow.sources[title]
            if source.labels is None or not isinstance(source.labels[0], str):
                cells[title] = self._numbers(title, list(column))
        return self.run(pd.DataFrame(cells, index=frame.index))

    def _numbers(self, title: str, column: list[Any]) -> Array:
        try:
            values = np.array(column, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError(f"column {title!r} must hold numbers for this model") from None
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise InputError(
                f"row {bad[0]}, column {title!r}: the model takes no missing or infinite values"
            )
        odd = np.flatnonzero((values != np.rint(values)) & (title in self.integers))
        if len(odd):
            raise InputError(
                f"row {odd[0]}, column {title!r}: the model takes whole numbers, not "
                f"{values[odd[0]]}; describe the column with step=1 and its range"
            )
        return values

    def _compared(self, network: Network, rows: Array, table: pd.DataFrame) -> Precision:
        """Say what the model computes in, having compared its outputs with the network's."""
        title = self.trace.title
        try:
            outputs = self._outputs(table)
        except (InputError, ModelNotSupportedError):
            raise
        except Exception as error:
            raise ModelNotSupportedError(
                f"{title} cannot be run on rows of {len(table.columns)} columns: {error}"
            ) from error
        if (
            self.precision == "float64"
            and form_of(network, rows, outputs, "float64", self.form) == self.form
        ):
            return "float64"
        found = form_of(network, rows, outputs, "float32", self.form)
        if found == self.form:
            return "float32"
        if found == "sigmoid" and network.outputs > 1:
            raise multi_label(title, network.outputs)
        raise ModelNotSupportedError(
            f"{title} does not compute what the chain of its layers says (a layer that was changed, a "
            f"hook, or a softmax along another axis?); {self.advice}"
        )


def unscaled(network: Network, schema: Schema, table: pd.DataFrame) -> tuple[Network, Array]:
    """Return the network that takes the numbers of the table as they are, and its rows.

    The original scales the table's numbers in its own precision, so its rounding is that of this
    network.
    """
    pairs = [
        (f.offset, f.scale) if isinstance(f, Continuous) else (0.0, 1.0)
        for f, span in zip(schema.features, schema.spans, strict=True)
        for _ in range(span.start, span.stop)
    ]
    offset, scale = np.array(pairs).T
    own = network.input_transform
    s = 1.0 if own.scale is None else own.scale
    t = 0.0 if own.shift is None else own.shift
    parts = {**own.parts, "scale": s / scale, "shift": t - s * offset / scale}
    raw = network.with_input_transform(InputTransform(**parts), "float64")
    return raw, offset + scale * schema.encode(table)
