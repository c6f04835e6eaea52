"""A small data set for tests of the experiment, with the interface of the real ones."""

from __future__ import annotations

import numpy as np
import pandas as pd

import proplace as pp
from proplace.experiment.data import Dataset, halves
from proplace.experiment.settings import Counts, Settings

COUNTS = Counts(1, 1, 1, 1, 1, calibration=4, history=14, people=12)
SETTINGS = Settings(widths=(6, 6), epochs=25, delta=0.02, k=8, counts=COUNTS)


def toy(rows=700):
    """People with three numbers and one category. The label is 1 for a large weighted sum."""
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(
        {
            "a": rng.uniform(0, 10, rows),
            "b": rng.uniform(-1, 1, rows),
            "c": rng.uniform(0, 1, rows),
            "job": rng.choice(["no", "yes"], rows),
        }
    )
    score = frame["a"] / 10 + (frame["b"] + 1) / 2 + 0.3 * (frame["job"] == "yes")
    y = (score + rng.normal(scale=0.1, size=rows) > 1.1).to_numpy().astype(np.int64)
    schema = pp.Schema(
        [
            pp.Continuous("a", 0, 10, direction="increasing"),
            pp.Continuous("b", -1, 1),
            pp.Continuous("c", 0, 1, immutable=True),
            pp.Binary("job", ["no", "yes"]),
        ]
    )
    return Dataset("compas", frame, y, schema, *halves(y))
