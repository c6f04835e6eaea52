"""Robustness of given rows: tables and encoded rows, models and networks."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from proplace import certification
from proplace.core.errors import InputError
from proplace.core.guarantee import around
from proplace.core.text import listing
from proplace.loaders.align import shifts_for
from proplace.tables.rows import are_encoded, as_frame, model_of

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
    model: object,
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
    """Decide for each row if every network within ``delta`` gives it the target class.

    The verdict is exact: robust iff the smallest margin over the shift set, in real numbers, is at least
    ``margin``. A row is ``undecided`` if neither verdict can be proved.

    Parameters
    ----------
    model
        The trained model, or a :class:`Network`.
    X
        A table in original units, matched by its column names, or encoded rows.
    delta
        Largest change of any parameter, or one (weight, bias) pair per layer.
    target
        The target class, by its label.
    schema
        Description of the columns of a table, if the model has none.
    tolerance
        Largest miss per feature, in original units: ``{"income": 500}``, or a pair (less, more). The
        verdict then covers every row that misses the given one by at most this much, in all of these
        features at once. It replaces the tolerance of the schema.
    margin
        The smallest margin of a robust row. ``"float32"`` covers the rounding of a model that is
        deployed in float32, with one number for each row. Default: ``"float32"`` for such a model, and
        0 for float64.
    certificates
        If True, also create certificates, which anyone can check in exact arithmetic. A row without
        one is then undecided.
    exact_margin
        If True, close the gap between ``lower`` and ``upper`` for each row, which is slower.
    time_limit
        Seconds for the whole table. Rows without a verdict by then are ``undecided``.
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
    imported = model_of(model, schema, X)
    net = imported.network
    rows = _rows(imported, X, declared=schema is not None)
    shifts, box = shifts_for(imported, delta), _box(imported, rows, tolerance)
    report = certification.certify(
        net,
        rows,
        shifts,
        imported.target(target),
        margin=imported.margins(shifts, rows, margin, box),
        box=box,
        certificates=certificates,
        exact_margin=exact_margin,
        time_limit=time_limit,
        progress=progress,
    )
    return dataclasses.replace(report, checked_with_original=imported.has_original)


def worst_case(
    model: object,
    x: Table,
    delta: Delta,
    target: Label = 1,
    *,
    schema: Schema | None = None,
    tolerance: Mapping[str, Tolerance] | None = None,
    time_limit: float | None = None,
) -> WorstCase:
    """Find the network within ``delta`` that gives ``x`` the smallest margin for the target class.

    The parameters are those of :func:`certify`. With a tolerance, the result also contains the ``point``
    with the smallest margin.

    Examples
    --------
    >>> from proplace import Network
    >>> net = Network([([[1.0, -1.0], [0.5, 2.0]], [0.0, -1.0]), ([[1.0, -2.0]], [0.25])])
    >>> worst = worst_case(net, [1.0, 0.0], delta=0.05)
    >>> round(worst.margin, 6), net.distance(worst.network) <= 0.05
    (1.055, True)
    """
    imported = model_of(model, schema, x)
    rows = _rows(imported, x, declared=schema is not None)
    return certification.worst_case(
        imported.network,
        rows,
        shifts_for(imported, delta),
        imported.target(target),
        box=_box(imported, rows, tolerance),
        time_limit=time_limit,
    )


def output_range(
    model: object,
    X: Table,
    delta: Delta,
    *,
    schema: Schema | None = None,
    progress: bool = False,
) -> tuple[Array, Array]:
    """Compute the exact range of each logit over the shift set: the interval abstraction.

    Return two arrays of shape (n, outputs), exact up to the rounding of float64 and the tolerance of the
    linear programs. With one logit and range [l, u], every network of the set gives class 1 if l >= 0
    and class 0 if u < 0. Otherwise the class differs between networks. For verdicts that do not depend
    on rounding, use :func:`certify`, which has the same parameters.

    Raises
    ------
    SolverError
        If an end of a range cannot be computed exactly (parameters of very different sizes).

    Examples
    --------
    >>> from proplace import Network
    >>> net = Network([([[1.0, -1.0]], [0.5])])
    >>> low, high = output_range(net, [[2.0, -1.0]], delta=0.1)
    >>> low.round(6), high.round(6)
    (array([[3.1]]), array([[3.9]]))
    """
    imported = model_of(model, schema, X)
    rows = _rows(imported, X, declared=schema is not None)
    return certification.output_range(
        imported.network, rows, shifts_for(imported, delta), progress=progress
    )


def _box(model: Model, rows: Array, tolerance: Mapping[str, Tolerance] | None) -> InputBox | None:
    """Return the input boxes of all rows within the tolerance of the given ones."""
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
            f"A network has no column names, so the columns of the table ({listing(frame.columns)}) "
            "cannot be matched. Give the original model or a schema=, or rows in the order of the "
            "network: table.to_numpy().",
            name="X",
        )
    rows = model.network.rows(model.encode(frame))
    model.check_agreement(frame, what="X,")
    return rows
