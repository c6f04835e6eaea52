"""The archive of networks: same bytes, checksums, resumption, and the rows each network sees."""

from __future__ import annotations

import dataclasses
import zipfile

import numpy as np
import pytest

import proplace as pp
from experiment.toy import SETTINGS, toy
from proplace.core.errors import InputError
from proplace.experiment import archive, settings, training
from proplace.experiment.archive import KINDS, Archive, Trained, build, train_all
from proplace.experiment.settings import Counts, Task
from support.errors import raises

COUNTS = Counts(2, 2, 1, 1, 2, calibration=4, history=3, people=6)
SMALL = dataclasses.replace(SETTINGS, counts=COUNTS)


@pytest.fixture(scope="module")
def data():
    return toy()


@pytest.fixture(scope="module")
def made(data):
    return train_all(data, SMALL, seed=0)


@pytest.fixture
def toy_tasks(monkeypatch, toy_for_compas):
    monkeypatch.setitem(settings.SETTINGS, "compas", SMALL)
    return [Task("compas", 0), Task("compas", 1)]


def index_of(X, rows):
    return [int(np.flatnonzero((row == X).all(axis=1))[0]) for row in rows]


def test_saved_networks_are_read_back_exactly(made):
    content = made.to_bytes()
    again = Trained.from_bytes(content)
    assert again.net == made.net
    assert again.retrained == made.retrained
    assert (again.calibration, again.history) == (made.calibration, made.history)
    np.testing.assert_array_equal(again.people, made.people)
    assert again.to_bytes() == content
    weights = np.concatenate([layer.W.ravel() for layer in again.net.layers])
    np.testing.assert_array_equal(weights, weights.astype(np.float16))


def test_network_of_own_is_kept_with_all_digits(data):
    exact = pp.Network([([[0.1, 0.2, 0.3, 0.4]] * 6, None), ([[1.0] * 6] * 6, None)])
    own = pp.Network([*((n.W, n.bias) for n in exact.layers), (np.ones((1, 6)), [-6.1])])
    made = train_all(data, SMALL, seed=0, net=own)
    assert Trained.from_bytes(made.to_bytes()).net == own


def test_people_are_refused_and_unseen_ones_come_first(made, data):
    rows = data.X[np.concatenate([made.people, made.validation])]
    assert len(np.unique(rows, axis=0)) == 12
    assert (made.net.predict(rows) == 0).all()
    unseen = {*data.first.test.tolist(), *data.second.test.tolist()}
    assert made.unseen == 6
    assert set(index_of(data.X, data.X[made.people])) <= unseen
    many = train_all(data, dataclasses.replace(SMALL, counts=Counts(1, 0, 0, 0, 0, 0, 0, 90)), 0)
    assert 0 < many.unseen < 90
    assert [row in unseen for row in many.people] == [i < many.unseen for i in range(90)]


class Verdicts:
    """A stand-in for a network that refuses every row except some."""

    def __init__(self, accepted=()):
        self.accepted = np.array(accepted)

    def predict(self, X):
        return np.isin(X[:, 0], self.accepted).astype(int)


def test_changed_prediction_moves_no_other_person():
    numbers = np.random.default_rng(0).permutation(np.repeat(np.arange(60.0), 2))  # every row twice
    rows = np.arange(len(numbers))

    def people(*accepted):
        rng = np.random.default_rng([3, 7])
        return numbers[archive.refused(rows, numbers[:, None], Verdicts(accepted), rng)].tolist()

    everybody = people()
    assert sorted(everybody) == list(range(60))
    assert everybody != sorted(everybody)
    for accepted in ([0.0], [59.0], [3.0, 17.0, 40.0]):
        assert people(*accepted) == [each for each in everybody if each not in accepted]


def test_each_kind_of_network_sees_its_own_rows(data, monkeypatch):
    seen, further = [], []
    train, train_further = training.train, training.train_further

    def recording(X, y, rows, **options):
        seen.append(([frozenset(part) for part in rows], options["seeds"]))
        assert (options["widths"], options["epochs"]) == (SMALL.widths, SMALL.epochs)
        return train(X, y, rows, **options)

    def recording_further(net, X, y, rows, **options):
        further.append((net, [frozenset(part) for part in rows], options["seeds"]))
        return train_further(net, X, y, rows, **options)

    monkeypatch.setattr(training, "train", recording)
    monkeypatch.setattr(training, "train_further", recording_further)
    made = train_all(data, SMALL, seed=0)
    first = frozenset(data.first.train)
    both = first | frozenset(data.second.train)
    (current, new, without_1, without_10, same, more_new, more_without) = [rows for rows, _ in seen]
    assert current == same == [first]
    assert new == more_new == [both, both]
    for parts, share in ((without_1, 0.01), (more_without, 0.01), (without_10, 0.1)):
        assert all(part < first for part in parts)
        assert {len(first) - len(part) for part in parts} == {int(share * len(first))}
    left_out = [first - part for part in (*without_1, *more_without)]
    assert len(set(left_out)) == 4
    assert all(net == made.net and set(parts) < {*parts, first} for net, parts, _ in further)
    assert all(part < first for _, parts, _ in further for part in parts)
    seeds = [seed for group in (*seen, *further) for seed in group[-1]]
    assert len(set(seeds)) == len(seeds) == 1 + 6 + 4 + 5
    assert list(made.retrained) == list(KINDS)


def test_network_that_accepts_everybody_is_trained_again(data, monkeypatch):
    dead = pp.Network(
        [(np.zeros((6, 4)), None), (np.zeros((6, 6)), None), (np.zeros((1, 6)), [1.0])]
    )
    train, calls = training.train, []

    def sometimes_dead(X, y, rows, **options):
        calls.append(options["seeds"])
        nets = train(X, y, rows, **options)
        return [dead, *nets[1:]] if len(calls) == 2 else nets

    monkeypatch.setattr(training, "train", sometimes_dead)
    made = train_all(data, SMALL, seed=0)
    assert calls[2] == [calls[1][0] + 1]
    nets = [net for nets in made.retrained.values() for net in nets]
    assert all(len(set(net.predict(data.X))) == 2 for net in nets)


def test_interrupted_archive_resumes_with_same_bytes(toy_tasks, tmp_path, monkeypatch):
    whole = build(tmp_path / "whole.zip", toy_tasks, tmp_path / "a")

    def interrupt(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "parts.zip", toy_tasks, tmp_path / "b", report=interrupt)
    assert not (tmp_path / "parts.zip").exists()
    trainings, train_case = [], archive.train_all

    def counting(*given, **options):
        trainings.append(given)
        return train_case(*given, **options)

    monkeypatch.setattr(archive, "train_all", counting)
    resumed = build(tmp_path / "parts.zip", toy_tasks, tmp_path / "b")
    assert len(trainings) < 2
    assert resumed.path.read_bytes() == whole.path.read_bytes()
    assert resumed.digest == whole.digest
    assert whole.read(toy_tasks[1]).to_bytes() == resumed.read(toy_tasks[1]).to_bytes()
    assert whole.read(Task("compas", 2)) is None


def test_networks_come_from_archive_before_they_are_trained(toy_tasks, tmp_path, monkeypatch):
    packed = build(tmp_path / "archive.zip", toy_tasks[:1], tmp_path / "cache")
    monkeypatch.setattr(archive, "train_all", None)
    known = archive.trained(toy_tasks[0], tmp_path / "none", None, packed)
    assert known.net == packed.read(toy_tasks[0]).net
    assert not (tmp_path / "none").exists()


def test_changed_or_other_file_is_rejected(toy_tasks, tmp_path):
    packed = build(tmp_path / "archive.zip", toy_tasks[:1], tmp_path / "cache")
    with zipfile.ZipFile(packed.path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    changed = tmp_path / "changed.zip"
    with zipfile.ZipFile(changed, "w") as file:
        for name, content in members.items():
            file.writestr(name, content if name == "manifest.json" else content[:-1] + b"x")
    with raises(InputError, match="were changed. Restore the original file"):
        Archive(changed).read(toy_tasks[0])
    empty = tmp_path / "empty.zip"
    with zipfile.ZipFile(empty, "w"):
        pass
    with raises(InputError, match="manifest.json cannot be read"):
        Archive(empty).read(toy_tasks[0])
    (tmp_path / "text.zip").write_text("text")
    with raises(InputError, match="leave --archive out to train"):
        Archive(tmp_path / "text.zip")


def test_task_names_change_with_everything_that_training_uses(monkeypatch):
    tasks = [Task("compas", 0), Task("compas", 1), Task("heloc", 0), Task("heloc-repaired", 0)]
    named = {task.name for task in (*tasks, Task("compas", 0, (10, 10)))}
    assert len(named) == 5
    assert Task("compas", 0, (20, 20)).name == Task("compas", 0, people=3).name
    assert Task("compas", 0, actionable=True).name == Task("compas", 0).name
    monkeypatch.setitem(settings.SETTINGS, "compas", SMALL)
    assert Task("compas", 0).name not in named
    assert len({task.name for task in settings.all_tasks()}) == 150


def test_bundled_archive_has_every_task_of_default_seeds():
    bundled = Archive(archive.BUNDLED)
    assert archive.BUNDLED.stat().st_size < 10_000_000
    assert list(bundled.checksums) == [task.name for task in settings.all_tasks()]
    for task in (Task("adult", 0), Task("gmc", 9, (50, 50)), Task("heloc-repaired", 3, (10, 10))):
        found = bundled.read(task)
        assert found.net.widths == task.settings.widths
        assert len(found.people) == len(found.validation) == 50
        nets = [net for nets in found.retrained.values() for net in nets]
        counts = task.settings.counts
        assert len(nets) == counts.new_data + counts.without_1 + 3 * counts.without_10
        assert len(found.calibration) == counts.calibration
        assert len(found.history) == counts.history
