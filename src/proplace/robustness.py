"""Is this row robust? For networks and whole models, rows of numbers and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proplace.certification import api
from proplace.errors import InputError
from proplace.frames import as_frame
from proplace.schema._model import listing
from proplace.shifts import Shifts
from proplace.tables import model_of

if TYPE_CHECKING:
    from proplace.certification import Report, WorstCase
    from proplace.certification.deployed import Margin
    from proplace.model import Model
    from proplace.network import Array
    from proplace.schema import Schema
    from proplace.schema._model import Label
    from proplace.shifts import Delta
    from proplace.tables import Table


def certify(
    source: object,
    X: Table,
    delta: Delta,
    target: Label = 1,
    *,
    schema: Schema | None = None,
    margin: Margin | None = None,
    certificates: bool = False,
    exact_margin: bool = False,
    time_limit: float | None = None,
    progress: bool = False,
) -> Report:
    """Say for each row whether every network within ``delta`` gives it the target class.

    The verdict is exact: robust iff the least margin over Delta, in real numbers, is at least
    ``margin``. A row for which that cannot be decided is ``undecided``.

    Parameters
    ----------
    source
        The trained model itself, or a :class:`Network`.
    X
        A table in original units, matched by the names of its columns, or rows of numbers as the
        source takes them.
    delta
        Largest change of any parameter, or one (weight, bias) pair per layer.
    target
        The wanted class, by its label.
    schema
        What the columns of a table mean, where the source does not say it itself.
    margin
        The least margin a robust row must keep. ``"float32"``: what covers the rounding of a model
        that is deployed in float32, a number for each row. None: ``"float32"`` for such a model,
        else 0.
    certificates
        Also write down each verdict's proof, so that anyone can check it in exact arithmetic.
    exact_margin
        Also close the gap between ``lower`` and ``upper`` for each row (slower).
    time_limit
        Seconds for the whole table; rows without a verdict by then are ``undecided``.
    progress
        Show a progress bar on standard error.

    Examples
    --------
    >>> from proplace import Network
    >>> net = Network([([[1.0, -1.0], [0.5, 2.0]], [0.0, -1.0]), ([[1.0, -2.0]], [0.25])])
    >>> report = certify(net, [[1.0, 0.0], [0.1, 0.0], [0.0, 1.0]], delta=0.05)
    >>> report
    Report(2 of 3 rows robust)
    >>> report.robust
    array([ True,  True, False])
    """
    model = model_of(source, schema)
    net, rows = model.network, _rows(model, X, declared=schema is not None)
    asked: Margin | Array | None = margin
    if model.preprocesses:
        asked = model.margins(Shifts.of(net, delta), net.rows(rows), margin)
    return api.certify(
        net,
        rows,
        delta,
        model.target(target),
        margin=asked,
        certificates=certificates,
        exact_margin=exact_margin,
        time_limit=time_limit,
        progress=progress,
    )


def worst_case(
    source: object,
    x: Table,
    delta: Delta,
    target: Label = 1,
    *,
    schema: Schema | None = None,
    time_limit: float | None = None,
) -> WorstCase:
    """Find the network within ``delta`` that gives ``x`` the least margin for the target class.

    Source, row, target and schema are given as to :func:`certify`.

    Examples
    --------
    >>> from proplace import Network
    >>> net = Network([([[1.0, -1.0], [0.5, 2.0]], [0.0, -1.0]), ([[1.0, -2.0]], [0.25])])
    >>> worst = worst_case(net, [1.0, 0.0], delta=0.05)
    >>> round(worst.margin, 6), net.distance(worst.network) <= 0.05
    (1.055, True)
    """
    model = model_of(source, schema)
    rows = _rows(model, x, declared=schema is not None)
    return api.worst_case(model.network, rows, delta, model.target(target), time_limit=time_limit)


def output_range(
    source: object,
    X: Table,
    delta: Delta,
    *,
    schema: Schema | None = None,
    progress: bool = False,
) -> tuple[Array, Array]:
    """Exact range of each logit over Delta: the interval abstraction of the network.

    Returns two arrays of shape (n, outputs). With one logit and range [l, u], every network in
    Delta says class 1 if l >= 0 and class 0 if u < 0; otherwise the class is open. Source, rows and
    schema are given as to :func:`certify`.

    Examples
    --------
    >>> from proplace import Network
    >>> net = Network([([[1.0, -1.0]], [0.5])])
    >>> low, high = output_range(net, [[2.0, -1.0]], delta=0.1)
    >>> low.round(6), high.round(6)
    (array([[3.1]]), array([[3.9]]))
    """
    model = model_of(source, schema)
    rows = _rows(model, X, declared=schema is not None)
    return api.output_range(model.network, rows, delta, progress=progress)


def _rows(model: Model, X: Table, *, declared: bool) -> Table:
    """Rows as the network takes them: a table by its names, an array by its order."""
    frame = as_frame(X)
    if frame is None:
        return model.encode(X) if model.preprocesses else X
    if not (model.named or declared or set(model.schema.by_name) <= set(frame.columns)):
        raise InputError(
            f"the network does not know the names of its columns, so the table's "
            f"({listing(frame.columns)}) cannot be matched; give the model itself or a schema=, or "
            "the rows in the network's own order: table.to_numpy()"
        )
    return model.encode(frame)
