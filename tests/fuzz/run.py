"""Fuzz the readers of files from outside: ``python tests/fuzz/run.py --seconds 60``.

Every input that makes a reader crash, hang, take too much memory, run code or accept what is false is
kept in a folder and named at the end; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from fuzz.campaign import Campaign
from fuzz.worker import START

READERS = {
    "checker": "fuzz.readers.certificates:Certificates",
    "npz": "fuzz.readers.npz_files:NpzFiles",
    "onnx": "fuzz.readers.onnx_files:OnnxFiles",
    "yaml": "fuzz.readers.schemas:Schemas",
    "csv": "fuzz.readers.tables:CsvTables",
    "parquet": "fuzz.readers.tables:ParquetTables",
    "batch": "fuzz.readers.batches:Batches",
}


def options(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, help="for all readers together (default: 60)")
    parser.add_argument(
        "--inputs", type=int, help="to each reader; with --seconds, what comes first"
    )
    parser.add_argument(
        "--only", default=",".join(READERS), help="readers, with commas between them"
    )
    parser.add_argument("--seed", default="0", help="another seed gives other inputs (default: 0)")
    parser.add_argument(
        "--first", type=int, default=START, help="number of the first input, to go on"
    )
    parser.add_argument("--jobs", type=int, default=1, help="readers at a time (default: 1)")
    parser.add_argument(
        "--findings", type=Path, default=Path("build/fuzz"), help="folder for inputs"
    )
    found = parser.parse_args(words)
    if unknown := set(found.only.split(",")) - set(READERS):
        parser.error(
            f"no such readers: {', '.join(sorted(unknown))}; there are {', '.join(READERS)}"
        )
    return found


def main(words):
    """Run the readers asked for; return the exit status."""
    asked = options(words)
    names = asked.only.split(",")
    seconds = asked.seconds
    if seconds is None and asked.inputs is None:
        seconds = 60.0
    share = None if seconds is None else seconds * min(asked.jobs, len(names)) / len(names)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("KERAS_BACKEND", "torch")

    def one(name):
        def tell(finding):
            print(f"{name}: {finding.signature}\n    {finding.words}", flush=True)

        campaign = Campaign(
            name,
            READERS[name],
            seed=asked.seed,
            inputs=asked.inputs,
            seconds=share,
            first=asked.first,
        )
        summary = campaign.run(tell)
        for findings in summary.findings.values():
            for finding in findings:
                place = asked.findings / name / finding.file
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(finding.data)
        print(summary.line(), flush=True)
        return summary

    with ThreadPoolExecutor(asked.jobs) as pool:
        summaries = list(pool.map(one, names))
    count = sum(len(summary.findings) for summary in summaries)
    if count:
        print(f"{count} findings; the inputs are in {asked.findings}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
