"""The four data sets of the paper, in the encoding of the paper and in schemas that are guessed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from proplace.schema import Binary, Continuous, Schema
from real_data import folder
from support.tiers import only

TARGET = {
    "adult": "income",
    "compas": "score",
    "gmc": "SeriousDlqin2yrs",
    "heloc": "RiskPerformance",
}


def load(name):
    return pd.read_csv(folder() / f"{name}.csv.gz").drop(columns=TARGET[name])


def written(name):
    """A schema in the paper's order of columns, with the ranges of the table."""
    frame, features = load(name), []
    numbers = list(frame.select_dtypes("number"))
    for column in [*numbers, *sorted(set(frame) - set(numbers))]:
        values = sorted(frame[column].unique())
        if len(values) == 2:
            features.append(Binary(column, values))
        else:
            step = 1 if (frame[column] % 1 == 0).all() else None
            features.append(Continuous(column, values[0], values[-1], step=step))
    return Schema(features)


def carla(frame):
    """The encoding of the paper: numbers scaled to [0, 1], then one 0/1 column per text column."""
    numbers = frame.select_dtypes("number").astype(float)
    numbers = (numbers - numbers.min()) / (numbers.max() - numbers.min())
    text = sorted(set(frame) - set(numbers))
    ones = {f"{c}_{max(frame[c])}": (frame[c] == max(frame[c])).astype(float) for c in text}
    return pd.concat([numbers, pd.DataFrame(ones)], axis=1)


@pytest.mark.parametrize("name", only(["compas"], TARGET))
def test_min_max_ranges_give_encoding_of_paper(name):
    frame = load(name)
    schema = written(name)
    X = schema.encode(frame)
    expected = carla(frame)
    assert [column.name for column in schema.columns] == list(expected)
    assert np.abs(X - expected.to_numpy()).max() < 1e-15
    assert schema.legal(X).all()


@pytest.mark.filterwarnings("ignore::proplace.core.errors.DraftWarning")
@pytest.mark.parametrize("name", only(["compas"], TARGET))
@pytest.mark.parametrize("how", ["written", "inferred"])
def test_real_tables_survive_round_trip(name, how):
    frame = load(name)
    schema = written(name) if how == "written" else Schema.infer(frame)
    X = schema.encode(frame)
    decoded = schema.decode(X)
    again = schema.encode(decoded)
    assert schema.canonical(X).tobytes() == again.tobytes()
    assert schema.canonical(again).tobytes() == again.tobytes()
    if how == "written":  # otherwise some cells lie off the grid
        assert again.tobytes() == X.tobytes()
    for column in frame:
        old, new = frame[column], decoded[column]
        step = getattr(schema.by_name[column], "step", None)
        if step is not None and how == "inferred":
            assert (abs(old - new) <= step * 0.500001).all()
        elif schema.by_name[column].kind == "continuous" and step is None:
            # Cells with more than 15 digits (means, noise of an old parser) may lose the last.
            short = old.map(lambda v: float(f"{v:.15g}") == v)
            assert (old[short] == new[short]).all()
            assert (abs(old - new) <= 4e-15 * frame[column].abs().max()).all()
        else:
            assert (old == new).all()
    kept = schema.decode(X, like=frame)
    pd.testing.assert_frame_equal(kept[list(frame)], frame, check_exact=True, check_dtype=False)
