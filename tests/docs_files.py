"""Files that pages of the docs speak of as the reader's own, made in the current folder."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import proplace as pp
from support.lenders import INCOME_DEBT, NET, TRAINING, refused


def lender():
    """For the page on the command line: a pipeline as ONNX file, retrained ones, and its tables."""
    from skl2onnx import to_onnx

    rng = np.random.default_rng(0)
    n = 300
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n).astype(float),
            "income": rng.normal(40_000, 9_000, n).round(-2),
            "job": rng.choice(["cook", "clerk", "smith"], n),
            "sex": rng.choice(["f", "m"], n),
        }
    )
    score = frame.income / 10_000 + frame.age / 40 + (frame.job == "clerk")
    approved = (score > score.median()).astype(int)
    steps = make_column_transformer(
        (StandardScaler(), ["age", "income"]), (OneHotEncoder(), ["job", "sex"])
    )
    mlp = MLPClassifier((6,), alpha=0.5, solver="lbfgs", max_iter=80, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe = make_pipeline(steps, mlp).fit(frame, approved)
    numbers = frame.astype({"age": np.float32, "income": np.float32})
    refused = frame[pipe.predict(frame) == 0].iloc[:4]
    for name in ("m", "later-1", "later-2"):
        graph = to_onnx(pipe, numbers[:1], options={"zipmap": False})
        Path(f"{name}.onnx").write_bytes(graph.SerializeToString())
        pipe[-1].coefs_ = [W + rng.normal(0, 0.003, W.shape) for W in pipe[-1].coefs_]
    frame.assign(approved=approved).to_csv("train.csv", index=False)
    refused.assign(customer=[f"c{i}" for i in range(4)]).to_csv("people.csv", index=False)


def retrained():
    """For the page on the experiment: networks of a bare table of numbers."""
    rng = np.random.default_rng(0)
    X = rng.random((300, 3))
    y = (X @ [1.0, 2.0, -1.0] > 1.0).astype(int)
    for seed, name in enumerate(("net", "later-1", "later-2")):
        mlp = MLPClassifier((4,), alpha=0.3, solver="lbfgs", max_iter=100, random_state=0)
        rows = rng.choice(len(X), len(X)) if seed else slice(None)
        pp.Model.of(mlp.fit(X[rows], y[rows])).network.save(f"{name}.npz")
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    table.to_csv("train.csv", index=False)
    table[y == 0][:5].to_csv("people.csv", index=False)
    Path("proplace.yaml").write_text("model: net.npz\ntables: {train: train.csv}\n")


def last_ten():
    """For the page on shifts: a network in use, ten retrainings of one start, and five from scratch."""
    rng = np.random.default_rng(0)
    X = rng.random((600, 4))
    y = (X @ [1.0, 2.0, -1.0, 0.5] + 0.2 * rng.normal(size=600) > 1.2).astype(int)
    first = MLPClassifier((6,), alpha=0.01, solver="lbfgs", max_iter=150, random_state=0)
    first.fit(X, y)

    def further():
        mlp = MLPClassifier((6,), alpha=0.01, learning_rate_init=1e-3, random_state=0)
        mlp.partial_fit(X[:1], y[:1], classes=[0, 1])
        mlp.coefs_[:] = [W.copy() for W in first.coefs_]
        mlp.intercepts_[:] = [b.copy() for b in first.intercepts_]
        rows = rng.choice(len(X), len(X))
        return mlp.partial_fit(X[rows], y[rows])

    def scratch(seed):
        mlp = MLPClassifier((6,), alpha=0.01, solver="lbfgs", max_iter=150, random_state=seed)
        rows = rng.choice(len(X), len(X))
        return mlp.fit(X[rows], y[rows])

    names = ["m", *(f"past-{n}" for n in range(1, 11)), *(f"scratch-{n}" for n in range(1, 6))]
    models = [first, *(further() for _ in range(10)), *(scratch(n) for n in range(1, 6))]
    for name, model in zip(names, models, strict=True):
        pp.Model.of(model).network.save(f"{name}.npz")
    table = pd.DataFrame(X, columns=["income", "savings", "debts", "years"])
    table.to_csv("train.csv", index=False)
    refused = table[pp.Network.load("m.npz").predict(X) == 0][:12]
    refused.to_csv("people.csv", index=False)


def workbench():
    """The project file that the page shows, its files, and a workbench of the demonstration."""
    from served import demonstration

    page = Path(__file__).resolve().parents[1] / "docs" / "workbench.md"
    text = page.read_text(encoding="utf-8").partition("```text\n")[2].partition("```")[0]
    Path("proplace.yaml").write_text(text, encoding="utf-8")
    INCOME_DEBT.write("schema.yaml")
    NET.save("model.npz")
    TRAINING.assign(approved=1).to_csv("train.csv", index=False)
    refused(5).assign(customer=range(5)).to_csv("people.csv", index=False)
    os.environ["PROPLACE_URL"], os.environ["PROPLACE_TOKEN"] = demonstration(Path.cwd())


PREPARED = {
    "cli.md": lender,
    "experiment.md": retrained,
    "promises.md": lender,
    "delta.md": last_ten,
    "workbench.md": workbench,
}
