"""Time and memory of audits.

``python benchmarks/audit.py [--promises 100000]``

A ledger is filled with promises of one model, a third of them with a box. Audits do not read
certificates, so these are placeholders. Then three models are audited on one thread: the current one,
which lies in the promised shift set, a retrained one, and one of another architecture. The other two
have scalers that were fitted again. Memory is the growth of the process.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import multiprocessing
import resource
import tempfile
import time
import warnings
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proplace as pp
from proplace.core.guarantee import Guarantee, Member
from proplace.explain.results import Setting
from proplace.ledger.chain import canonical
from proplace.ledger.issue import Draft, append_promise
from proplace.ledger.terms import terms_documents

COLUMNS = 20
DELTA = 0.01


def table_of(count: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return people and their labels."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, COLUMNS)) * rng.uniform(1, 100, COLUMNS)
    table = pd.DataFrame(X, columns=[f"c{n}" for n in range(COLUMNS)])
    return table, (X / X.std(axis=0) @ np.linspace(-1, 1, COLUMNS) > 0).astype(int)


def trained(seed: int, sizes: tuple[int, ...]) -> object:
    """Return a pipeline of a scaler and a network."""
    mlp = MLPClassifier(sizes, max_iter=30, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return make_pipeline(StandardScaler(), mlp).fit(*table_of(2_000, seed))


def fill(path: Path, pipe: object, count: int) -> None:
    """Write promises of rows that a pipeline accepts."""
    model = pp.Model.of(pipe)
    shifts = pp.Shifts.of(model.network, DELTA)
    guarantee = Guarantee((Member(model.network, shifts, "the current model"),))
    setting = Setting(guarantee, model.without_original())
    documents = terms_documents(setting, 1, None)
    table, _ = table_of(4 * count, 7)
    points = model.encode(table)
    chosen = np.flatnonzero(model.network.margin(points) > 1.0)[:count]
    certificate, rows = zlib.compress(b"{}" * 500), table.to_dict("records")
    with pp.Ledger(path) as ledger, ledger._database.write(None) as writer:
        writer.store_documents(documents)
        for n in chosen.tolist():
            reach = np.zeros(COLUMNS)
            reach[n % COLUMNS] = 0.02 * (n % 3 == 0)
            facts = {"original": rows[n], "answer": rows[n], "sentence": f"Be number {n}."}
            box = [
                (points[n] + sign * reach).tobytes() if reach.any() else None for sign in (-1, 1)
            ]
            draft = Draft(
                f"p{n}",
                canonical(facts),
                points[n].tobytes(),
                *box,
                certificate,
                documents[-1].digest,
            )
            append_promise(writer, draft, None)


def main() -> None:
    """Fill a ledger, audit it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--promises", type=int, default=100_000)
    options = parser.parse_args()
    pipe = trained(0, (20, 20))
    new = {
        "in the set": pipe,
        "not in the set": trained(1, (20, 20)),
        "another architecture": trained(2, (50, 50)),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "promises.db"
        start = time.perf_counter()
        writer = multiprocessing.Process(target=fill, args=(path, pipe, options.promises))
        writer.start()  # its memory is not counted
        writer.join()
        print(f"written in {time.perf_counter() - start:.1f} s, {path.stat().st_size / 1e6:.0f} MB")
        with pp.Ledger(path) as ledger:
            for name, model in new.items():
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                start, used = time.perf_counter(), time.process_time()
                audit = ledger.audit(model)
                seconds, used = time.perf_counter() - start, time.process_time() - used
                grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
                print(
                    f"{name}: {used:.1f} s of processor time ({seconds:.1f} s in all), "
                    f"{grown:.0f} MB more, {audit.counts}"
                )
            start = time.perf_counter()
            print(str(ledger.verify())[:60], f"in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
