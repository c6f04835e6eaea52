"""Measure how long a single prediction takes while one request about many people is answered.

``python benchmarks/serve_bulk.py [--people 10000]``

The demonstration's model is served by a process of its own. One client asks for single predictions, one
after the other; another one asks once about many people. Times are what the machine gives.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from common import machine
from proplace.apps.demo import load_loans, loan_schema, train
from serve import NAME, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proplace.client import Client


@contextmanager
def beside(client: Client, person: dict[str, Any], what: str) -> Iterator[None]:
    """Ask for single predictions all the while, and print how long they took."""
    took, over = list[float](), threading.Event()

    def ask() -> None:
        while not over.is_set():
            start = time.perf_counter()
            client.predict(person)
            took.append(1e3 * (time.perf_counter() - start))
            time.sleep(0.005)

    thread = threading.Thread(target=ask)
    thread.start()
    start = time.perf_counter()
    yield
    whole = time.perf_counter() - start
    over.set()
    thread.join()
    half, most, all_ = np.percentile(took, [50, 95, 100])
    print(
        f"{what:>8}: {whole:5.2f} s; beside it {len(took)} predictions, median {half:.0f} ms, "
        f"p95 {most:.0f} ms, longest {all_:.0f} ms"
    )


def main() -> None:
    """Serve, ask and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--people", type=int, default=10_000)
    given = parser.parse_args()
    print(machine())
    loans = load_loans()
    rows = json.loads(loans.frame.to_json(orient="records"))
    many = (rows * (given.people // len(rows) + 1))[: given.people]
    with tempfile.TemporaryDirectory() as folder:
        net = train(loan_schema().encode(loans.frame), loans.approved)
        server = Server(Path(folder), net, loans.frame, 1)
        server.start()
        try:
            one, another = server.client("one"), server.client("another")
            another.certify(many)  # its process has started
            with beside(one, rows[0], "nothing"):
                time.sleep(3.0)
            with beside(one, rows[0], "predict"):
                another.predict(many)
            with beside(one, rows[0], "certify"):
                another.certify(many)
            with beside(one, rows[0], "explain"):
                asked = {"people": many}
                job = another._http.ask("POST", f"models/{NAME}/explain", json=asked)["job"]
            another.cancel(job)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
