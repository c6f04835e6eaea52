"""Counterfactuals of one published package, in an environment of its own.

    python benchmarks/rival_answers.py "ElliCE, continuous" problem.npz answers.npz

``rivals.py`` starts this file. It needs NumPy and the package of the method, and nothing of proplace.
The problem has the layers ``W0``, ``b0``, ..., the people ``X``, the training ``rows`` with labels
``y``, and ``binary``: the columns that are 0 or 1. The answers have one point per person (NaN if there
is none), the processor seconds of each, and the reason if there is no point.
"""

from __future__ import annotations

import contextlib
import io
import logging
import random
import sys
import time
import warnings

import numpy as np

TARGET = 1
NAMES = "x{}"  # of columns


class Problem:
    """A network as NumPy arrays, people, and labelled training rows."""

    def __init__(self, path: str) -> None:
        with np.load(path, allow_pickle=False) as file:
            self.layers = [
                (file[f"W{i}"], file[f"b{i}"]) for i in range(sum(n.startswith("W") for n in file))
            ]
            self.X, self.rows, self.y = file["X"], file["rows"], file["y"]
            self.binary = np.flatnonzero(file["binary"])
        self.names = [NAMES.format(j) for j in range(self.X.shape[1])]

    def logits(self, X: np.ndarray) -> np.ndarray:
        """Return the logit of each row."""
        h = np.asarray(X, dtype=float)
        for i, (W, b) in enumerate(self.layers):
            h = h @ W.T + b
            h = np.maximum(h, 0.0) if i < len(self.layers) - 1 else h
        return h[:, 0]

    def probabilities(self, X: np.ndarray) -> np.ndarray:
        """Return the probability of each class, per row."""
        p = 0.5 * (1.0 + np.tanh(0.5 * self.logits(X)))
        return np.column_stack([1.0 - p, p])


# Each function below prepares a method and returns a function from a person to a point.


def ellice(problem: Problem, method: str, **options):
    """Return ElliCE with its default epsilon, 10% of the training loss; answers must be robust."""
    import ellice as package
    import pandas as pd
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = torch.nn.Sequential()
    for i, (W, b) in enumerate(problem.layers):
        layer = torch.nn.Linear(W.shape[1], len(b))
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(W))
            layer.bias.copy_(torch.tensor(b))
        network.append(layer)
        if i < len(problem.layers) - 1:
            network.append(torch.nn.ReLU())
    frame = pd.DataFrame(problem.rows, columns=problem.names).assign(label=problem.y)
    data = package.Data(dataframe=frame, target_column="label", continuous_features=problem.names)
    explainer = package.Explainer(model=network, data=data, backend="pytorch", device="cpu")
    loss = float(np.mean(np.logaddexp(0.0, -(2 * problem.y - 1) * problem.logits(problem.rows))))
    allowed = {problem.names[j]: [0.0, 1.0] for j in problem.binary}

    def answer(x: np.ndarray) -> np.ndarray | None:
        found = explainer.generate_counterfactuals(
            pd.Series(x, index=problem.names),
            method=method,
            target_class=TARGET,
            robustness_epsilon=0.1 * loss,
            requires="robust",
            allowed_values=allowed or None,
            progress_bar=False,
            optimization_params=dict(options),
        )
        return None if found.empty else found[problem.names].to_numpy(dtype=float)[0]

    return answer


def nice(problem: Problem, optimization: str):
    """Return NICE. It has no option for robustness."""
    from nice import NICE

    explainer = NICE(
        predict_fn=problem.probabilities,
        X_train=problem.rows.copy(),
        cat_feat=problem.binary.tolist(),
        y_train=problem.y,
        optimization=optimization,
    )
    return lambda x: explainer.explain(x[None].copy(), target_class=[TARGET])[0]


def dice(problem: Problem, method: str, **options):
    """Return DiCE. Its nearest option to robustness is the probability that answers must reach."""
    import dice_ml
    import pandas as pd

    class Model:
        def predict_proba(self, frame: pd.DataFrame) -> np.ndarray:
            return problem.probabilities(frame[problem.names].astype(float).to_numpy())

        def predict(self, frame: pd.DataFrame) -> np.ndarray:
            return self.predict_proba(frame).argmax(axis=1)

    flags = [problem.names[j] for j in problem.binary]

    def framed(X: np.ndarray) -> pd.DataFrame:
        frame = pd.DataFrame(X, columns=problem.names)
        return frame.astype(dict.fromkeys(flags, int)).astype(dict.fromkeys(flags, str))

    data = dice_ml.Data(
        dataframe=framed(problem.rows).assign(label=problem.y),
        continuous_features=[name for name in problem.names if name not in flags],
        outcome_name="label",
    )
    explainer = dice_ml.Dice(data, dice_ml.Model(model=Model(), backend="sklearn"), method=method)

    def answer(x: np.ndarray) -> np.ndarray | None:
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002  (the package draws from it)
        found = explainer.generate_counterfactuals(
            framed(x[None]), total_CFs=1, desired_class=TARGET, **options
        )
        points = found.cf_examples_list[0].final_cfs_df
        return None if points is None else points[problem.names].astype(float).to_numpy()[0]

    return answer


METHODS = {
    "ElliCE, continuous": lambda p: ellice(p, "continuous"),
    "ElliCE, continuous, proximity 1": lambda p: ellice(p, "continuous", proximity_weight=1.0),
    "ElliCE, data-supported": lambda p: ellice(p, "data_supported"),
    "NICE, nearest instance": lambda p: nice(p, "none"),
    "NICE, proximity": lambda p: nice(p, "proximity"),
    "NICE, sparsity": lambda p: nice(p, "sparsity"),
    "DiCE, random": lambda p: dice(p, "random", random_seed=0),
    "DiCE, random, threshold .9": lambda p: dice(
        p, "random", random_seed=0, stopping_threshold=0.9
    ),
    "DiCE, genetic": lambda p: dice(p, "genetic", verbose=False),
    "DiCE, genetic, threshold .9": lambda p: dice(
        p, "genetic", stopping_threshold=0.9, verbose=False
    ),
}


def main(name: str, given: str, result: str) -> None:
    """Answer all people and write the answers."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    problem = Problem(given)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        start = time.process_time()
        answer = METHODS[name](problem)
        preparation = time.process_time() - start
        points = np.full(problem.X.shape, np.nan)
        seconds, reasons = [], []
        for i, x in enumerate(problem.X):
            start, reason = time.process_time(), ""
            try:
                point = answer(x)
                if point is None:
                    reason = "no point"
                else:
                    points[i] = point
            except Exception as error:  # whatever the package raises
                reason = f"{type(error).__name__}: {error}"
            seconds.append(time.process_time() - start)
            reasons.append(reason[:200])
    np.savez(result, points=points, seconds=seconds, reasons=reasons, preparation=preparation)


if __name__ == "__main__":
    main(*sys.argv[1:])
