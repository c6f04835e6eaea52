"""Any table as a pandas one: the columns keep their names, one person is a table of one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd


def as_frame(X: object) -> pd.DataFrame | None:
    """Return a table with named columns as a pandas DataFrame; None for plain rows of numbers.

    Tables are pandas, polars, pyarrow or any other frame that narwhals reads; a dictionary or a
    Series of one person; a dictionary of columns; a list of dictionaries.

    Examples
    --------
    >>> as_frame({"age": 30, "job": "cook"})
       age   job
    0   30  cook
    >>> as_frame([[30.0, 1.0]]) is None
    True
    """
    if isinstance(X, pd.DataFrame):
        return X
    if isinstance(X, pd.Series):
        # A Series of numbered entries is a row without names.
        named = all(isinstance(name, str) for name in X.index)
        return X.to_frame().T.infer_objects() if named and len(X) else None
    if isinstance(X, Mapping):
        columns = all(
            isinstance(cells, (list, tuple, np.ndarray, pd.Series)) for cells in X.values()
        )
        return pd.DataFrame(dict(X) if columns and X else [dict(X)])
    if isinstance(X, Sequence) and not isinstance(X, str) and X and isinstance(X[0], Mapping):
        return pd.DataFrame([dict(cast("Mapping[str, Any]", row)) for row in X])
    frame = nw.from_native(cast("Any", X), pass_through=True)
    if isinstance(frame, nw.LazyFrame):
        frame = frame.collect()
    if not isinstance(frame, nw.DataFrame):
        return None
    # Column by column: polars itself would need pyarrow on the way to pandas.
    return pd.DataFrame({name: frame[name].to_list() for name in frame.columns})
