"""The folder of a batch: whatever happens to its files, the answers stay those of a quiet run."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace.batch import Summary, explain_file
from proplace.batch.manifest import FORMAT, _sha256
from proplace.cli.explain import _summarise as summarise
from proplace.core.distances import L1
from proplace.core.errors import OutputError, TableError, WorkerError
from proplace.explain.results import Explanations, Status
from proplace.report import page
from proplace.tables import files as tables
from proplace.tables.writing import TableWriter
from support.errors import raises
from support.tiers import quick

ROWS = 10
HALF = 6  # shards of an interrupted run, each with one row


class Stop(Exception):
    """A run ends here, as if killed."""


@pytest.fixture(scope="module")
def explainer():
    rng = np.random.default_rng(4)
    X = rng.random((80, 2))
    first, last = (rng.normal(size=(5, 2)), np.zeros(5)), rng.normal(size=(1, 5))
    middle = np.median(pp.Network([first, (last, [0.0])]).logits(X))
    net = pp.Network([first, (last, [-middle])])
    return pp.Proplace(net, 0.01, k=3).fit(pd.DataFrame(X, columns=["a", "b"]))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("people") / "p.csv"
    people = pd.DataFrame(np.random.default_rng(5).random((ROWS, 2)).round(3), columns=["a", "b"])
    people.insert(0, "name", [f"n{i:02d}" for i in range(ROWS)])
    people = people.astype(object)
    people.loc[[4, 5], "b"] = "?"  # they have no proofs
    people.to_csv(path, index=False)
    return path


@pytest.fixture(params=quick(1, ["csv", "parquet"]))
def batch(request, explainer, table, tmp_path, quiet):
    """A batch in a folder, with its proofs, and what a run that nothing disturbs makes of it."""
    if request.param == "parquet":
        pytest.importorskip("pyarrow")
    return SimpleNamespace(
        explainer=explainer,
        table=table,
        out=tmp_path / "out",
        kind=request.param,
        shards=tmp_path / "out" / "shards",
        proofs=tmp_path / "out" / "certificates",
        expected=quiet(request.param),
    )


@pytest.fixture(scope="module")
def quiet(explainer, table, tmp_path_factory):
    """The folder after an undisturbed run, with shards of one row each."""
    seen = {}

    def content(kind):
        if kind not in seen:
            out = tmp_path_factory.mktemp("quiet")
            explain_file(explainer, table, out, **options(kind))
            seen[kind] = files(out)
        return seen[kind]

    return content


def options(kind="csv"):
    return {"kind": kind, "ids": ["name"], "certificates": True, "every": 1e-9}


def files(folder):
    """All files in a folder, with what is in them."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def ask(batch, table=None, *, stream=None):
    """Run or resume the batch. ``stream`` changes the output of the explainer."""
    if stream is not None:
        original = batch.explainer.stream
        batch.explainer.stream = lambda *args, **kw: stream(original(*args, **kw))
    try:
        return explain_file(batch.explainer, table or batch.table, batch.out, **options(batch.kind))
    finally:
        if stream is not None:
            del batch.explainer.stream


def first(number):
    """Parts of a stream until it is stopped."""

    def stream(parts):
        for n, part in enumerate(parts):
            if n == number:
                raise Stop
            yield part

    return stream


def stopped(batch, number=HALF):
    with pytest.raises(Stop):
        ask(batch, stream=first(number))
    shards = sorted(batch.shards.glob("rows-*"))
    assert len(shards) == number
    return shards


def same_rows(found, expected):
    """Test if the results and the certificates are those of an undisturbed run."""
    names = {name for name in expected if name != "manifest.json"}
    assert {name: found[name] for name in names} == {name: expected[name] for name in names}
    return set(found) - set(expected)


# -- shards ----------------------------------------------------------------------------------------


def test_quiet_run_has_something_to_show(quiet):
    names = quiet("csv")
    assert {"manifest.json", "results.csv"} < set(names)
    assert len(names) > ROWS // 2
    found = pd.read_csv(io.BytesIO(names["results.csv"]))
    assert len(found) == ROWS
    assert {"optimal", "already_valid", "bad_input"} == set(found["status"])


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def emptied(path):
    path.write_bytes(b"")


def garbage(path):
    path.write_bytes(os.urandom(len(path.read_bytes())))


def one_bit(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, emptied, garbage, one_bit])
def test_rows_of_damaged_shard_are_done_again(batch, damage):
    shard = stopped(batch)[2]
    damage(shard)
    damaged = shard.read_bytes()
    summary = ask(batch)
    more = same_rows(files(batch.out), batch.expected)
    assert summary.resumed == HALF - 1
    (aside,) = summary.quarantined
    assert aside.name == f"{shard.name}.damaged"
    assert aside.read_bytes() == damaged  # nothing is thrown away
    assert more == {f"shards/{aside.name}"}
    assert ask(batch).resumed == ROWS


@pytest.mark.parametrize("row", [2, 4])
def test_shard_under_number_of_another_row(batch, row):
    shards = stopped(batch)
    numbers = len("rows-000000000002-000000000003")
    other = shards[row + 1]
    other.unlink()
    shards[row].rename(batch.shards / (other.name[:numbers] + shards[row].name[numbers:]))
    summary = ask(batch)
    assert (summary.resumed, len(summary.quarantined)) == (HALF - 2, 1)
    same_rows(files(batch.out), batch.expected)


def test_two_shards_whose_contents_are_swapped(batch):
    shards = stopped(batch)
    one, other = shards[1].read_bytes(), shards[4].read_bytes()
    shards[1].write_bytes(other)
    shards[4].write_bytes(one)
    summary = ask(batch)
    assert (summary.resumed, len(summary.quarantined)) == (HALF - 2, 2)
    same_rows(files(batch.out), batch.expected)


@pytest.mark.parametrize("gone", [[0], [2, 3], [5], [0, 2, 4]])
def test_rows_of_missing_shard_are_done_again(batch, gone):
    shards = stopped(batch)
    for number in gone:
        shards[number].unlink()
    summary = ask(batch)
    assert (summary.resumed, summary.quarantined) == (HALF - len(gone), ())
    assert not same_rows(files(batch.out), batch.expected)


def test_shard_of_another_batch_is_no_shard(batch, tmp_path):
    stopped(batch)
    other = replace_table(batch, tmp_path, "n00,", "m00,")
    theirs = SimpleNamespace(**{**vars(batch), "out": tmp_path / "other", "table": other})
    theirs.shards = theirs.out / "shards"
    copied = stopped(theirs)[5]
    for path in batch.shards.glob("rows-000000000005*"):
        path.unlink()
    shutil.copy(copied, batch.shards)
    summary = ask(batch)
    assert (summary.resumed, len(summary.quarantined)) == (HALF - 1, 1)
    same_rows(files(batch.out), batch.expected)


def replace_table(batch, folder, old, new):
    path = folder / "changed.csv"
    text = batch.table.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def test_second_damage_takes_no_older_file_away(batch):
    shards = stopped(batch)
    before = shards[2].with_name(shards[2].name + ".damaged")
    before.write_text("older")
    emptied(shards[2])
    (aside,) = ask(batch).quarantined
    assert aside.name == shards[2].name + ".damaged1"
    assert before.read_text() == "older"


def test_shard_that_is_damaged_just_before_merge(batch):
    def stream(parts):
        yield from parts
        garbage(min(batch.shards.glob("rows-*.*")))

    once = [stream]
    summary = ask(batch, stream=lambda parts: once.pop()(parts) if once else parts)
    assert len(summary.quarantined) == 1
    same_rows(files(batch.out), batch.expected)


def test_disk_that_damages_everything_ends_run(batch):
    def stream(parts):
        yield from parts
        garbage(min(batch.shards.glob("rows-*.*")))

    with raises(OutputError, name="out", match="shards"):
        ask(batch, stream=stream)
    assert len(list(batch.shards.glob("rows-*.damaged*"))) == 3
    ask(batch)
    same_rows(files(batch.out), batch.expected)


def test_unanswered_rows_are_not_omitted(batch):
    def stream(parts):
        yield from list(parts)[: ROWS - 2]

    with raises(OutputError, name="shards", match="8 to 9"):
        ask(batch, stream=stream)
    assert not list(batch.out.glob("results*"))
    assert ask(batch).resumed == ROWS - 2
    same_rows(files(batch.out), batch.expected)


# -- nothing goes before something else is there ---------------------------------------------------


def test_removed_shards_are_on_disk_elsewhere_before(batch, monkeypatch):
    """In a power cut: content before name, proofs before shards, all of it before shards go."""
    safe, done = set(), []
    fsync, place, remove = os.fsync, os.replace, os.unlink
    proofs = sum(name.startswith("certificates") for name in batch.expected)

    def synced(handle):
        fsync(handle)
        safe.add(os.fstat(handle).st_ino)

    def placed(name, path):
        assert os.stat(name).st_ino in safe
        place(name, path)
        safe.discard(os.stat(os.path.dirname(path)).st_ino)  # it has a new name
        done.append(os.path.basename(path))

    def removed(path, **more):
        if os.path.basename(path).startswith("rows-"):
            assert {"manifest.json", batch.expected_results} <= set(done)
            assert os.stat(batch.out).st_ino in safe
            done.append("removed")
        remove(path, **more)

    batch.expected_results = f"results.{batch.kind}"
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", placed)
    monkeypatch.setattr(os, "unlink", removed)
    ask(batch)
    assert done[:2] == ["manifest.json", "network.npz"]
    assert done[-ROWS:] == ["removed"] * ROWS
    assert done[-ROWS - 3 : -ROWS] == [".proplace-merged", "manifest.json", batch.expected_results]
    middle = done[2 : -ROWS - 3]
    assert len(middle) == ROWS + proofs
    for n, name in enumerate(middle):  # the proof of a row stands before its shard
        if name.startswith("row-"):
            assert re.match(f"rows-{name[4:16]}-", middle[n + 1])


def test_merge_that_fails_leaves_all_shards(batch, monkeypatch):
    def full(self, contents, file):
        next(iter(contents))
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(TableWriter, "join", full)
        with raises(OutputError, name="out", match="No space"):
            ask(batch)
    assert len(list(batch.shards.glob("rows-*"))) == ROWS
    assert not list(batch.out.glob("results*"))
    assert ask(batch).resumed == ROWS
    assert not same_rows(files(batch.out), batch.expected)


@pytest.mark.parametrize("last", ["manifest.json", "results", ".proplace-merged"])
def test_killed_while_results_are_put_in_place(batch, monkeypatch, last):
    """Killed right after a file gets its name, the next run finds the file."""
    place = os.replace

    def placed(name, path):
        place(name, path)
        seen = os.path.basename(path)
        if seen.startswith(last) and not (seen == "manifest.json" and not ready()):
            raise Stop

    def ready():
        return bool(json.loads((batch.out / "manifest.json").read_text())["results"])

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", placed)
        with pytest.raises(Stop):
            ask(batch)
    assert len(list(batch.shards.glob("rows-*"))) == ROWS
    assert ask(batch).resumed == ROWS
    assert not same_rows(files(batch.out), batch.expected)


# -- files of others -------------------------------------------------------------------------------


def test_files_of_others_stay_as_they_are(batch):
    """Whatever they are called, before the first run or between two."""
    names = ["a.tmp", "shards.tmp", "tmpabc.tmp", "notes.txt", "results.txt", "rows.csv"]
    batch.out.mkdir()
    for name in names:
        (batch.out / name).write_text("mine")
    stopped(batch)
    more = [f"{folder}/{name}" for folder in ("shards", "certificates") for name in names]
    for name in more:
        (batch.out / name).write_text("mine")
    ask(batch)
    assert same_rows(files(batch.out), batch.expected) == {*names, *more}
    ask(batch)
    found = files(batch.out)
    assert {found[name] for name in (*names, *more)} == {b"mine"}


@pytest.mark.parametrize("name", ["results", "shards/x", "certificates/row-000000000000-0.json"])
def test_names_that_are_taken_are_refused(batch, name):
    path = batch.out / (f"results.{batch.kind}" if name == "results" else name)
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with raises(OutputError, name=path.relative_to(batch.out).parts[0]):
        ask(batch)
    assert files(batch.out) == {str(path.relative_to(batch.out)): b"mine"}


def test_results_of_others_stay(batch):
    results = batch.out / f"results.{batch.kind}"

    def stream(parts):
        yield from parts
        results.write_text("mine")

    with raises(OutputError, name=results.name, match="Move it away"):
        ask(batch, stream=stream)
    assert results.read_text() == "mine"
    results.rename(batch.out / "mine.txt")
    assert ask(batch).resumed == ROWS
    assert same_rows(files(batch.out), batch.expected) == {"mine.txt"}


def test_results_that_were_changed_are_not_called_done(batch):
    results = ask(batch).results
    results.write_bytes(results.read_bytes()[:-30])
    with raises(OutputError, name=results.name, match="Move it away"):
        ask(batch)
    results.unlink()
    assert ask(batch).resumed == 0
    same_rows(files(batch.out), batch.expected)


def test_killed_before_there_was_manifest(batch):
    for folder in (batch.shards, batch.proofs):
        folder.mkdir(parents=True)
    (batch.shards / ".proplace-unfinished").write_text('{"form')
    ask(batch)
    assert not same_rows(files(batch.out), batch.expected)


def manifest(**changes):
    """A manifest with a good seal, of the right shape but for the changes."""
    facts = {"format": FORMAT, "question": {}, "about": {}, "results": [], "complete": False}
    facts |= changes
    return json.dumps({**facts, "seal": _sha256(facts)})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": "proplace-batch-10"}',
        manifest(question=1),
        manifest(about=[]),
        manifest(results={}),
        manifest(complete=True),
        manifest(more=1),
        json.dumps({k: v for k, v in json.loads(manifest()).items() if k != "results"}),
        "\x00\xff",
        "[" * 100_000,
    ],
)
def test_file_that_is_not_manifest_of_batch(batch, text):
    batch.out.mkdir()
    (batch.out / "manifest.json").write_text(text)
    with raises(OutputError, name="manifest.json", match="version"):
        ask(batch)
    assert files(batch.out) == {"manifest.json": text.encode()}


# -- proofs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [cut, emptied, one_bit, Path.unlink])
def test_shard_without_its_proofs_is_done_again(batch, damage):
    stopped(batch)
    proof = sorted(batch.proofs.iterdir())[1]
    damage(proof)
    summary = ask(batch)
    assert (summary.resumed, len(summary.quarantined)) == (HALF - 1, 1)
    same_rows(files(batch.out), batch.expected)


def test_certificates_without_shard_are_removed(batch):
    shards = stopped(batch)
    left = batch.proofs / "row-000000000009-3.json"
    left.write_text("of an answer that the next run does not find")
    shards[2].unlink()
    ask(batch)
    assert not same_rows(files(batch.out), batch.expected)


# -- rows whose worker died ------------------------------------------------------------------------


def losing(rows):
    """Make the worker die at some rows."""

    def lost(e):
        return replace(
            e, status="worker_died", reason="gone", counterfactual=None, certificate=None
        )

    def stream(parts):
        for part in parts:
            yield Explanations([lost(e) if e.index in rows else e for e in part])

    return stream


def test_rows_whose_worker_died_are_tried_again(batch):
    summary = ask(batch, stream=losing({3, 4, 9}))
    assert summary.statuses["worker_died"] == 3
    assert sum(summary.statuses.values()) == ROWS
    read = pd.read_csv if batch.kind == "csv" else pd.read_parquet
    found = read(summary.results)
    assert found["row"].tolist() == list(range(ROWS))
    assert found["name"].tolist() == [f"n{i:02d}" for i in range(ROWS)]
    assert found.index[found["status"] == "worker_died"].tolist() == [3, 4, 9]
    assert not (batch.proofs / "row-000000000009-0.json").exists()
    again = ask(batch, stream=losing({9}))
    assert (again.resumed, again.statuses["worker_died"]) == (ROWS - 3, 1)
    last = ask(batch)
    assert last.resumed == ROWS - 1
    assert not same_rows(files(batch.out), batch.expected)


@pytest.mark.slow
def test_row_that_ends_its_process_does_not_end_batch(explainer, table, tmp_path, quiet):
    """Really: a process dies at one row whenever it is tried, until what kills it is gone."""
    parent, gone = os.getpid(), str(tmp_path / "gone")
    row = pd.read_csv(io.BytesIO(quiet("csv")["results.csv"]))["status"].tolist().index("optimal")
    deadly = float(pd.read_csv(table)["a"][row])

    class Deadly(L1):
        def between(self, x, X):
            if os.getpid() != parent and x[0] == deadly and not os.path.exists(gone):
                os.kill(os.getpid(), signal.SIGKILL)
            return super().between(x, X)

    rows = pd.DataFrame(explainer.rows_, columns=["a", "b"])

    def ask(out, n_jobs):
        made = pp.Proplace(explainer.net_, 0.01, k=3, n_jobs=n_jobs).fit(rows)
        made.distance_ = Deadly(made.distance_.weights)
        return explain_file(made, table, tmp_path / out, ids=["name"])

    quiet = ask("quiet", 1)
    assert "worker_died" not in quiet.statuses
    found = ask("out", 2)
    table_ = pd.read_csv(found.results)
    assert table_.index[table_["status"] == "worker_died"].tolist() == [row]
    assert table_["reason"][row]
    open(gone, "w").close()
    again = ask("out", 2)
    assert again.resumed == ROWS - 1
    assert again.results.read_bytes() == quiet.results.read_bytes()


def test_every_status_has_words():
    assert set(page._STATUS) == set(get_args(Status))


def test_killed_run_forgets_no_row_whose_worker_died(batch):
    def stream(parts):
        return first(HALF)(losing({1, 2})(parts))

    with pytest.raises(Stop):
        ask(batch, stream=stream)
    assert ask(batch).resumed == HALF - 2
    assert not same_rows(files(batch.out), batch.expected)


def test_command_reports_lost_rows(tmp_path, capsys):
    aside = tmp_path / "rows.csv.damaged"
    facts = {"optimal": 5, "worker_died": 2}
    with raises(WorkerError, name="results.csv", value=2):
        summarise(Summary(tmp_path / "results.csv", 7, 0, facts, (aside,)), {}, as_json=True)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["statuses"] == facts
    assert str(aside) in printed.err
    summarise(Summary(tmp_path / "results.csv", 5, 0, {"optimal": 5}), {}, as_json=True)


# -- the input changes -----------------------------------------------------------------------------


@pytest.fixture
def moving(batch, tmp_path, monkeypatch):
    """The batch with small chunks, on a table that may change."""
    monkeypatch.setattr(tables, "CHUNK", 4)
    batch.table = shutil.copy(batch.table, tmp_path / "p.csv")
    return batch


def swap(path):
    """Overwrite in place: the same number of lines and bytes, other people."""
    lines = path.read_bytes().splitlines(keepends=True)
    turned = [lines[0], *reversed(lines[1:])]
    with path.open("r+b") as file:
        file.writelines(turned)


def append(path):
    with path.open("ab") as file:
        file.write(b"n99,0.5,0.5\n")


def shorten(path):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))


def disappear(path):
    path.unlink()


@pytest.mark.every(5)
@pytest.mark.parametrize("change", [swap, append, shorten, disappear])
@pytest.mark.parametrize("when", [1, 6, ROWS - 1])
def test_input_that_changes_during_run_is_noticed(moving, change, when):
    content = moving.table.read_bytes()

    def stream(parts):
        for n, part in enumerate(parts):
            yield part
            if n == when:
                change(moving.table)

    with raises(TableError, name="p.csv", match="changed"):
        ask(moving, stream=stream)
    assert not list(moving.out.glob("results*"))
    moving.table.write_bytes(content)
    done = len(list(moving.shards.glob("rows-*")))
    assert done > when  # the answers so far are kept, and are right
    assert ask(moving).resumed == done
    assert not same_rows(files(moving.out), moving.expected)


def test_input_that_changed_between_two_runs_is_refused(moving):
    stopped(moving)
    swap(moving.table)
    with raises(OutputError, name="input"):
        ask(moving)


def test_input_that_changes_between_its_opening_and_run(moving):
    """Nothing is taken from the file before it is compared with what was opened."""
    source = tables.open_table(moving.table)
    swap(moving.table)
    with raises(TableError, name="p.csv", match="changed"):
        ask(moving, source)
    assert not list(moving.shards.glob("rows-*"))


def test_parquet_input_that_changes_is_noticed(explainer, tmp_path):
    pytest.importorskip("pyarrow")
    people = pd.DataFrame(np.random.default_rng(5).random((30, 2)), columns=["a", "b"])
    path = tmp_path / "p.parquet"
    people.to_parquet(path)
    source = tables.open_table(path)
    assert pd.concat([frame for frame, _ in source.cells()]).equals(people)
    people.iloc[::-1].reset_index(drop=True).to_parquet(path)
    with raises(TableError, name="p.parquet", match="changed"):
        list(source.cells())
