"""The folder of a batch: whatever its files hold, the results are those of a quiet run, or none.

An input is a folder as JSON: names and contents (one character a byte). Files of other people lie
beside those of the batch and stay as they are.
"""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd

import proplace as pp
from fuzz.mutate import change_tree, damaged, json_text, some
from fuzz.reader import Reader
from proplace.batch import explain_file

_OWN = {"notes.tmp": b"mine", "results.csv.bak": b"mine too"}
_ROWS = 6


class _Stop(Exception):
    pass


class Batches(Reader):
    """Going on with a batch."""

    name = "batch"
    suffix = ".json"
    # It writes, and removes what it wrote.
    allowed = (
        *("open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.chmod"),
        *("shutil.rmtree", "tempfile.mkstemp"),
    )

    def prepare(self, folder):
        rng = np.random.default_rng(4)
        self._folder = folder / "batch"
        net = pp.Network(
            [([[1.0, -0.5]], [5.0])]
        )  # everybody is accepted: the answers cost nothing
        frame = pd.DataFrame(rng.random((20, 2)).round(3), columns=["a", "b"])
        self._explainer = pp.Proplace(net, 0.001, k=3).fit(frame)
        self._table = folder / "people.csv"
        people = frame.head(_ROWS).assign(id=[f"n{i}" for i in range(_ROWS)]).astype(object)
        people.loc[2, "b"] = "?"
        people.to_csv(self._table, index=False)
        self._states = []
        for parts in (1, 3, None):
            self._run_until(parts)
            self._states.append(_files(self._folder))
        self._quiet = self._states[-1]["results.csv"]

    def _run_until(self, parts):
        """Run the batch, and stop it after some parts as if it were killed."""
        shutil.rmtree(self._folder, ignore_errors=True)
        original = self._explainer.stream

        def stream(*given, **options):
            for n, part in enumerate(original(*given, **options)):
                if n == parts:
                    raise _Stop
                yield part

        self._explainer.stream = stream
        try:
            self._ask()
        except _Stop:
            pass
        finally:
            del self._explainer.stream

    def _ask(self):
        return explain_file(self._explainer, self._table, self._folder, ids=["id"], every=1e-9)

    def seeds(self):
        return [_packed({**state, **_OWN}) for state in self._states]

    def make(self, rng):
        files = dict(rng.choice(self._states))
        for _ in range(some(rng)):
            name, kind = rng.choice([*files, *(["manifest.json"] * 2)]), rng.randrange(8)
            if name not in files:
                continue
            if kind <= 2 and name.endswith(".json"):
                facts = json.loads(self._states[0][name])
                for _ in range(some(rng)):
                    change_tree(rng, facts)
                files[name] = json_text(rng, facts)
            elif kind <= 4:
                files[name] = damaged(rng, files[name], list(files.values()))
            elif kind == 5:
                files[name] = rng.choice([*files.values(), b""])
            elif kind == 6:
                del files[name]
            else:
                files[
                    rng.choice((name + ".tmp", name.replace("0", "1", 1), name.replace("3", "5")))
                ] = files[name]
            if not files:
                break
        return _packed({**files, **_OWN})

    def put(self, path, data):
        shutil.rmtree(self._folder, ignore_errors=True)
        for name, content in json.loads(data).items():
            place = self._folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.encode("latin-1"))

    def read(self, path, data):
        return self._ask()

    def judge(self, data, summary):
        found = _files(self._folder)
        if found["results.csv"] != self._quiet:
            return "other results than those of a quiet run"
        if summary.rows != _ROWS or sum(summary.statuses.values()) != _ROWS:
            return f"another number of rows: {summary}"
        given = json.loads(data)
        own = {name: given[name].encode("latin-1") for name in _OWN if name in given}
        if any(found.get(name) != content for name, content in own.items()):
            return "files of somebody else were changed or removed"
        return None


def _files(folder):
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def _packed(files):
    return json.dumps({name: data.decode("latin-1") for name, data in files.items()}).encode()
