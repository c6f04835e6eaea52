"""Is this row robust? For networks and whole models, rows of numbers and tables."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from proplace import certification
from proplace.core.errors import InputError
from proplace.core.guarantee import around
from proplace.core.text import listing
from proplace.loaders.coordinates import shifts_for
from proplace.tables.frames import as_frame
from proplace.tables.rows import are_encoded, model_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proplace.certification import CertificationResult, InputBox, Margin, WorstCase
    from proplace.core.network import Array
    from proplace.core.request import Tolerance
    from proplace.core.shifts import Delta
    from proplace.loaders.model import Model
    from proplace.schema import Schema
    from proplace.schema.values import Label
    from proplace.tables.rows import Table


def certify(
    source: object,
    X: Table,
    delta: Delta,
    target: Label = 1,
    *,
    schema: Schema | None = None,
    tolerance: Mapping[str, Tolerance] | None = None,
    margin: Margin | None = None,
    certificates: bool = False,
    exact_margin: bool = False,
    time_limit: float | None = None,
    progress: bool = False,
) -> CertificationResult:
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
    tolerance
        By how much features may be missed, in original units: ``{"income": 500}``, or a pair (less,
        more). Then the verdict is about every row that misses the given one by no more, in all of
        these features at once. It takes the place of the schema's tolerance.
    margin
        The least margin a robust row must keep. ``"float32"``: what covers the rounding of a
        model that is deployed in float32, a number for each row. None: ``"float32"`` for such a
        model, and 0 for float64.
    certificates
        Also write down each verdict's proof, so that anyone can check it in exact arithmetic; a row
        without such a proof is undecided.
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
    CertificationResult(2 of 3 rows robust)
    >>> report.robust
    array([ True,  True, False])
    >>> certify(net, [[1.0, 0.0], [0.1, 0.0], [0.0, 1.0]], delta=0.05, tolerance={"x1": 0.5}).robust
    array([False, False, False])
    """
    model = model_of(source, schema, X)
    net = model.network
    rows = _rows(model, X, declared=schema is not None)
    shifts, box = shifts_for(model, delta), _box(model, rows, tolerance)
    report = certification.certify(
        net,
        rows,
        shifts,
        model.target(target),
        margin=model.margins(shifts, rows, margin, box),
        box=box,
        certificates=certificates,
        exact_margin=exact_margin,
        time_limit=time_limit,
        progress=progress,
    )
    return dataclasses.replace(report, checked_with_original=model.has_original)


def worst_case(
    source: object,
    x: Table,
    delta: Delta,
    target: Label = 1,
    *,
    schema: Schema | None = None,
    tolerance: Mapping[str, Tolerance] | None = None,
    time_limit: float | None = None,
) -> WorstCase:
    """Find the network within ``delta`` that gives ``x`` the least margin for the target class.

    Source, row, target, schema and tolerance are given as to :func:`certify`; with a tolerance, the
    ``point`` at which the margin is the least is found, too.

    Examples
    --------
    >>> from proplace import Network
    >>> net = Network([([[1.0, -1.0], [0.5, 2.0]], [0.0, -1.0]), ([[1.0, -2.0]], [0.25])])
    >>> worst = worst_case(net, [1.0, 0.0], delta=0.05)
    >>> round(worst.margin, 6), net.distance(worst.network) <= 0.05
    (1.055, True)
    """
    model = model_of(source, schema, x)
    rows = _rows(model, x, declared=schema is not None)
    return certification.worst_case(
        model.network,
        rows,
        shifts_for(model, delta),
        model.target(target),
        box=_box(model, rows, tolerance),
        time_limit=time_limit,
    )


def output_range(
    source: object,
    X: Table,
    delta: Delta,
    *,
    schema: Schema | None = None,
    progress: bool = False,
) -> tuple[Array, Array]:
    """Exact range of each logit over Delta: the interval abstraction of the network.

    Returns two arrays of shape (n, outputs), right up to the rounding of float64 and the tolerance of
    the linear programs. With one logit and range [l, u], every network in Delta says class 1 if l >= 0
    and class 0 if u < 0; otherwise the class is open. For verdicts that no rounding touches, use
    :func:`certify`, to which source, rows and schema are given alike.

    Raises
    ------
    SolverError
        An end of a range could not be told exactly (parameters of very different sizes).

    Examples
    --------
    >>> from proplace import Network
    >>> net = Network([([[1.0, -1.0]], [0.5])])
    >>> low, high = output_range(net, [[2.0, -1.0]], delta=0.1)
    >>> low.round(6), high.round(6)
    (array([[3.1]]), array([[3.9]]))
    """
    model = model_of(source, schema, X)
    rows = _rows(model, X, declared=schema is not None)
    return certification.output_range(
        model.network, rows, shifts_for(model, delta), progress=progress
    )


def _box(model: Model, rows: Array, tolerance: Mapping[str, Tolerance] | None) -> InputBox | None:
    """Boxes of all rows that miss the given ones by no more than the tolerance."""
    reach = model.schema.encode_tolerance(model.schema.check_tolerance(tolerance))
    return None if reach is None else around(rows, reach)


def _rows(model: Model, X: Table, *, declared: bool) -> Array:
    """Encode rows, a table by its names and an array by its order, and compare with the original."""
    if are_encoded(model, X):
        rows = model.network.rows(X)
        model.check_rows(rows, what="X,")
        return rows
    frame = as_frame(X)
    if frame is None:
        frame = model.table(X)
    elif not (
        model.has_column_names or declared or set(model.schema.by_name) <= set(frame.columns)
    ):
        raise InputError(
            f"the network does not know the names of its columns, so the table's "
            f"({listing(frame.columns)}) cannot be matched; give the model itself or a schema=, or "
            "the rows in the network's own order: table.to_numpy()",
            name="X",
        )
    rows = model.network.rows(model.encode(frame))
    model.check_agreement(frame, what="X,")
    return rows
