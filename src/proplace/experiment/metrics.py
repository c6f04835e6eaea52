r"""Measures of counterfactuals: distance, plausibility, validity now and after retraining.

For an input :math:`x` and its counterfactual :math:`x'` with d encoded columns:

- ``valid``: the network gives :math:`x'` the target class;
- ``l1`` :math:`= \frac1d \sum_i |x'_i - x_i|`, the normalised distance of the paper;
- ``changed``: number of columns that differ;
- ``lof``: local outlier factor of :math:`x'` among reference rows (those of the desired class) with 10
  neighbours, about 1 for an inlier;
- ``plausible``: the local outlier factor is at most 1.5, above which the paper reads it as an outlier;
- ``vr``: share of retrained networks that give :math:`x'` the target class, and ``all``: all do;
- ``vdelta``: every network within delta does, by the exact test.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from sklearn.neighbors import LocalOutlierFactor

from proplace.certification import certify
from proplace.core.errors import InputError, TableError
from proplace.core.text import short
from proplace.explain.results import Explanations
from proplace.schema import Schema
from proplace.schema.values import refuse
from proplace.tables.files import open_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from proplace.core.network import Array, Network
    from proplace.core.shifts import Delta

    Mask = npt.NDArray[np.bool_]
    Answers = Explanations | pd.DataFrame | npt.ArrayLike | str | os.PathLike[str]

NEIGHBOURS = 10
OUTLIER = 1.5  # local outlier factor above which a point is an outlier
CHANGED = 1e-6  # smallest difference of a column that counts


def l1(originals: npt.ArrayLike, counterfactuals: npt.ArrayLike) -> Array:
    """Mean absolute difference over columns, one number per pair of rows.

    Examples
    --------
    >>> l1([[0.0, 0.5]], [[0.25, 0.75]])
    array([0.25])
    """
    a, b = np.asarray(originals, dtype=float), np.asarray(counterfactuals, dtype=float)
    if a.shape != b.shape or a.ndim != 2:
        raise InputError(
            f"two tables of the same shape are needed, not {a.shape} and {b.shape}",
            name="counterfactuals",
        )
    result: Array = np.abs(a - b).mean(axis=1)
    return result


def outlier_model(reference: npt.ArrayLike) -> LocalOutlierFactor:
    """Fit the local outlier factor to reference rows, for several calls of :func:`lof`."""
    rows = np.asarray(reference, dtype=float)
    if len(rows) <= NEIGHBOURS:
        raise InputError(
            f"lof needs more than {NEIGHBOURS} reference rows, not {len(rows)}", name="reference"
        )
    return LocalOutlierFactor(n_neighbors=NEIGHBOURS, novelty=True).fit(rows)


def lof(counterfactuals: npt.ArrayLike, reference: npt.ArrayLike | LocalOutlierFactor) -> Array:
    """Local outlier factor of each row among reference rows (or a model fitted to them)."""
    model = reference if isinstance(reference, LocalOutlierFactor) else outlier_model(reference)
    return -np.asarray(model.score_samples(np.asarray(counterfactuals, dtype=float)))


def vr(retrained: Sequence[Network], counterfactuals: npt.ArrayLike, target: int = 1) -> Array:
    """Share of retrained networks that give each row the target class."""
    if not len(retrained):
        raise InputError("vr needs at least one retrained network", name="retrained")
    result: Array = np.mean([net.predict(counterfactuals) == target for net in retrained], axis=0)
    return result


def vdelta(net: Network, counterfactuals: npt.ArrayLike, delta: Delta, target: int = 1) -> Mask:
    """Test exactly that every network within delta gives each row the target class."""
    return certify(net, counterfactuals, delta, target).robust


def evaluate(
    counterfactuals: Answers,
    originals: pd.DataFrame | npt.ArrayLike,
    net: Network,
    *,
    schema: Schema | None = None,
    retrained: Sequence[Network] = (),
    delta: Delta | None = None,
    reference: npt.ArrayLike | LocalOutlierFactor | None = None,
    target: int = 1,
) -> pd.DataFrame:
    """Measure counterfactuals of any origin: one row per counterfactual.

    Parameters
    ----------
    counterfactuals
        The result of an explainer, a DataFrame, an array of encoded rows, or the path of a CSV or
        Parquet file (in original units with a schema, else with the network's columns. Other
        columns are left out). A row with a missing value stands for "none found".
    originals
        The explained rows, in the same order: DataFrame or array of encoded rows.
    net
        The network that was explained.
    schema
        How to encode tables. Without one, tables hold the network's columns.
    retrained, delta, reference
        For ``vr``, ``vdelta`` and ``lof``. Default: their columns are left out.
    target
        The target class.

    Returns
    -------
    DataFrame
        Columns ``found``, ``valid``, ``l1`` and ``changed``, with ``reference`` also ``lof`` and
        ``plausible``, with ``retrained`` also ``vr`` and ``all``, with ``delta`` also ``vdelta``. For a
        person without a counterfactual, ``l1``, ``lof`` and ``changed`` are missing and the other
        columns are 0.

    Examples
    --------
    >>> import proplace as pp
    >>> net = pp.Network([([[1.0]], [-0.5])])
    >>> evaluate([[0.7], [0.5]], [[0.2], [0.1]], net, delta=0.1)
       found  valid   l1  changed  vdelta
    0   True    1.0  0.5      1.0     1.0
    1   True    1.0  0.4      1.0     0.0
    """
    X = _encoded(originals, net, schema, "originals")
    points = _points(counterfactuals, net, schema)
    if len(points) != len(X):
        raise InputError(
            f"there are {len(points)} counterfactuals for {len(X)} originals. Give one row each (an "
            "empty one where none was found)",
            name="counterfactuals",
        )
    found = np.isfinite(points).all(axis=1)
    given = points[found]
    table = pd.DataFrame({"found": found})

    def column(name: str, values: npt.ArrayLike, otherwise: float) -> None:
        full = np.full(len(points), otherwise)
        full[found] = values
        table[name] = full

    some = bool(found.any())
    column("valid", net.predict(given) == target if some else [], 0.0)
    column("l1", l1(X[found], given), np.nan)
    column("changed", (np.abs(given - X[found]) > CHANGED).sum(axis=1), np.nan)
    if reference is not None:
        factors = lof(given, reference) if some else np.empty(0)
        column("lof", factors, np.nan)
        column("plausible", factors <= OUTLIER, 0.0)
    if len(retrained):
        shares = vr(retrained, given, target) if some else np.empty(0)
        column("vr", shares, 0.0)
        column("all", shares == 1.0, 0.0)
    if delta is not None:
        column("vdelta", vdelta(net, given, delta, target) if some else [], 0.0)
    if isinstance(originals, pd.DataFrame):
        table.index = originals.index
    return table


def _points(answers: Answers, net: Network, schema: Schema | None) -> Array:
    """Encoded counterfactuals, with NaN for a person without one."""
    if isinstance(answers, Explanations):
        first = [e for e in answers if e.rank == 0]
        none = np.full(net.inputs, np.nan)
        return np.array(
            [none if e.encoded_counterfactual is None else e.encoded_counterfactual for e in first]
        ).reshape(-1, net.inputs)
    if isinstance(answers, (str, os.PathLike)):
        answers = _read(answers, net, schema)
    if isinstance(answers, pd.DataFrame):
        names = _names(answers, net, schema)
        table = answers[names]
        points = np.full((len(table), net.inputs), np.nan)
        whole = table.notna().all(axis=1).to_numpy()
        if whole.any():
            points[whole] = _encoded(table[whole], net, schema, "counterfactuals")
        return points
    points = np.atleast_2d(np.asarray(answers, dtype=float))
    if points.shape[1] != net.inputs:
        raise InputError(
            f"counterfactuals must have {net.inputs} columns, not {points.shape[1]}",
            name="counterfactuals",
        )
    if np.isinf(points).any():
        row = int(np.flatnonzero(np.isinf(points).any(axis=1))[0])
        raise InputError(
            f"counterfactuals: row {row} is infinite. Leave it empty (NaN) if none",
            name="counterfactuals",
            row=row,
        )
    return points


def _read(path: str | os.PathLike[str], net: Network, schema: Schema | None) -> pd.DataFrame:
    """A table file, its cells read as the features they are."""
    try:
        source = open_table(path)
    except TableError as error:
        raise InputError(str(error), name=error.name) from None
    if schema is None:
        schema = Schema.encoded(net.inputs, names=_first(source.columns, net))
    frame, broken = source.read(schema)
    if broken:
        row, what = next(iter(broken.items()))
        raise InputError(f"{source.path}: row {row}: {what}", name=source.path.name, row=row)
    return frame


def _names(table: pd.DataFrame, net: Network, schema: Schema | None) -> list[str]:
    """The feature columns of a table that may hold others, such as a status."""
    if schema is not None:
        wanted = [feature.name for feature in schema.features]
        missing = [name for name in wanted if name not in table]
        if missing:
            raise InputError(
                f"the counterfactuals lack the column {short(missing[0])}", name=missing[0]
            )
        return wanted
    return _first(table.columns, net)


def _first(columns: Iterable[str], net: Network) -> list[str]:
    """The columns of the network, which come first."""
    names = list(columns)[: net.inputs]
    if len(names) < net.inputs:
        raise InputError(
            f"counterfactuals must have {net.inputs} columns, not {len(names)}",
            name="counterfactuals",
        )
    return names


def _encoded(
    rows: pd.DataFrame | npt.ArrayLike, net: Network, schema: Schema | None, what: str
) -> Array:
    if isinstance(rows, pd.DataFrame) and schema is not None:
        encoded, problems = schema.encode_people(rows)
        refuse(problems)
        return encoded
    try:
        return net.rows(rows.to_numpy() if isinstance(rows, pd.DataFrame) else rows)
    except InputError as error:
        raise InputError(f"{what}: {error}", name=what, row=error.row) from None
