"""Walk through every cell of the matrix and print the counts of accepted counterfactuals.

    python tests/end_to_end/run.py [--tables loans adult compas] [--people 6]

A row has the kind of source, the counterfactuals that its own framework accepts, the certificates that
the exact checker accepts, and the counterfactuals that moved models within delta accept.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from end_to_end import walks
from end_to_end.matrix import cells
from end_to_end.tables import TABLES


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=["loans", "adult"])
    parser.add_argument("--people", type=int, default=walks.PEOPLE)
    arguments = parser.parse_args()
    walks.PEOPLE = arguments.people
    totals = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for cell in cells(arguments.tables):
            found = cell.walk(Path(folder))
            totals[cell.source.split(":")[0], cell.way].append(found)
            print(f"{cell}: {found}", flush=True)
    print("\n| source | way | answers | accepted | proofs accepted | held when moved |")
    print("|---|---|---|---|---|---|")
    for (kind, way), found in totals.items():
        people, answers, accepted, proofs, held, moved = (
            sum(getattr(walk, name) for walk in found)
            for name in ("people", "answers", "accepted", "proofs", "held", "moved")
        )
        of = f"{held} of {moved}" if moved else ""
        print(f"| {kind} | {way} | {answers} of {people} | {accepted} | {proofs} | {of} |")


if __name__ == "__main__":
    main()
