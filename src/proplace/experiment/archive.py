"""Networks, retrained networks and people of the experiment, in one file with checksums.

Training is chaotic: other kernels of the linear algebra library round differently, and single weights
end far apart. So the networks are trained once and saved, and every figure is computed from the file.

*Kinds of retraining* by which counterfactuals are measured. Those of the paper are ``new data`` (both
halves) and ``without 1%`` (a different 1% of the first half is left out). ``without 10%`` and
``other seed`` (the same rows) also start from new random weights. ``incremental`` trains the current
network for two more epochs on a bootstrap sample of its rows.

*Weights* are rounded to 16 bits when a network is trained, before anything is computed with it.
Rows are saved as positions in the data file, whose values are not part of the archive.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import zipfile
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
from threadpoolctl import threadpool_limits

from proplace.core.errors import InputError
from proplace.core.files import atomic_write
from proplace.core.network import Network
from proplace.experiment import training
from proplace.experiment.data import load

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from proplace.core.network import Array
    from proplace.core.transforms import InputTransform
    from proplace.experiment.data import Dataset
    from proplace.experiment.settings import Settings, Task

    Rows = npt.NDArray[np.int64]
    Report = Callable[[str], None]

KINDS = ("new data", "without 1%", "without 10%", "other seed", "incremental")
"""Kinds of retraining by which counterfactuals are measured."""
PAPER = KINDS[:2]
"""Kinds of retraining in the paper."""
BUNDLED = Path(__file__).parents[3] / "benchmarks" / "archive.zip"
"""The archive of a checkout of the repository."""
_CURRENT, _CALIBRATION, _HISTORY = "current", "calibration", "history"
_MANIFEST = "manifest.json"
_TRIES = 5  # trainings until a network has two classes
_EPOCHS, _RATE = 2, 3e-4  # of incremental retraining


@dataclass(frozen=True, eq=False)
class Trained:
    """The networks of one task and the people to explain.

    Attributes
    ----------
    net
        The current network.
    retrained
        Networks by which counterfactuals are measured, by kind.
    calibration, history
        Networks that select delta, and networks that shift sets are learned from.
    people, validation
        Row positions of people whom ``net`` refuses: to explain, and for the calibration.
    unseen
        Number of people that ``net`` was not trained on. They come first.
    """

    net: Network
    retrained: dict[str, list[Network]]
    calibration: list[Network]
    history: list[Network]
    people: Rows
    validation: Rows
    unseen: int

    def to_bytes(self) -> bytes:
        """Return the content of a file. It depends on the networks and rows alone."""
        groups = {
            _CURRENT: [self.net],
            **self.retrained,
            _CALIBRATION: self.calibration,
            _HISTORY: self.history,
        }
        vectors = np.array([_vector(net) for nets in groups.values() for net in nets])
        short = vectors.astype(np.float16)
        arrays: dict[str, Any] = {
            "sizes": np.array([self.net.inputs, *self.net.widths, 1]),
            "kinds": np.array([kind for kind, nets in groups.items() for _ in nets]),
            # Parameters in rows: equal digits of similar networks lie side by side.
            "parameters": np.ascontiguousarray(
                (short if np.array_equal(short, vectors) else vectors).T
            ),
            "people": self.people.astype(np.int32),
            "validation": self.validation.astype(np.int32),
            "unseen": np.array(self.unseen),
        }
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        return buffer.getvalue()

    def with_input_transform(self, transform: InputTransform) -> Trained:
        """Return the networks with another input transform, which files do not contain."""

        def changed(nets: list[Network]) -> list[Network]:
            return [net.with_input_transform(transform) for net in nets]

        return replace(
            self,
            net=self.net.with_input_transform(transform),
            retrained={kind: changed(nets) for kind, nets in self.retrained.items()},
            calibration=changed(self.calibration),
            history=changed(self.history),
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> Trained:
        """Read the content of a file of :meth:`to_bytes`."""
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays: dict[str, Any] = dict(file)
        sizes = [int(size) for size in arrays["sizes"]]
        vectors = arrays["parameters"].T.astype(float)
        groups: dict[str, list[Network]] = {}
        for kind, vector in zip(arrays["kinds"].tolist(), vectors, strict=True):
            groups.setdefault(kind, []).append(_network(vector, sizes))
        return cls(
            net=groups[_CURRENT][0],
            retrained={kind: groups[kind] for kind in KINDS if kind in groups},
            calibration=groups.get(_CALIBRATION, []),
            history=groups.get(_HISTORY, []),
            people=arrays["people"].astype(np.int64),
            validation=arrays["validation"].astype(np.int64),
            unseen=int(arrays["unseen"]),
        )


# -- the file --------------------------------------------------------------------------------------


class Archive:
    """A file with the networks of many tasks. Each is compared with its SHA-256 when it is read.

    Parameters
    ----------
    path
        A file of :func:`build`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not zipfile.is_zipfile(self.path):
            raise InputError(
                f"{self.path} is not an archive of networks. Give a file that was written with "
                "--train, or leave --archive out to train the networks",
                name=self.path.name,
            )

    @cached_property
    def _manifest(self) -> bytes:
        return self._read(_MANIFEST)

    @cached_property
    def checksums(self) -> dict[str, str]:
        """SHA-256 of the networks of each task, by the name of the task."""
        sums: dict[str, str] = json.loads(self._manifest)["sha256"]
        return sums

    @property
    def digest(self) -> str:
        """SHA-256 of the checksums, which identifies the archive."""
        return hashlib.sha256(self._manifest).hexdigest()

    def read(self, task: Task) -> Trained | None:
        """Return the networks of a task, or None if the archive does not contain them."""
        expected = self.checksums.get(task.name)
        if expected is None:
            return None
        content = self._read(_member(task))
        if hashlib.sha256(content).hexdigest() != expected:
            raise InputError(
                f"{self.path}: the networks of {task.name} were changed. Restore the original file",
                name=self.path.name,
            )
        return Trained.from_bytes(content)

    def _read(self, member: str) -> bytes:
        try:
            with zipfile.ZipFile(self.path) as file:
                return file.read(member)
        except (KeyError, zipfile.BadZipFile, EOFError) as error:
            raise InputError(
                f"{self.path}: {member} cannot be read ({error}). Restore the original file",
                name=self.path.name,
            ) from None


def build(
    path: Path,
    tasks: Sequence[Task],
    cache: Path,
    *,
    data_folder: str | None = None,
    n_jobs: int = 1,
    report: Report = lambda _: None,
) -> Archive:
    """Train the networks of all tasks and write the archive. A second run resumes the first.

    Parameters
    ----------
    path
        The archive to write.
    tasks
        Data sets, seeds and architectures.
    cache
        Folder for the networks of finished tasks.
    data_folder
        Folder of the data sets, see :func:`proplace.experiment.data.load`.
    n_jobs
        Number of processes. The archive depends on the processor only through rounding.
    report
        Called with a line of text for each finished task.
    """
    jobs = (joblib.delayed(_content)(task, cache, data_folder) for task in tasks)
    found: dict[str, bytes] = {}
    parallel = joblib.Parallel(n_jobs=n_jobs, return_as="generator")
    for number, (task, content) in enumerate(zip(tasks, parallel(jobs), strict=True), start=1):
        found[task.name] = content
        report(f"networks {number}/{len(tasks)}: {task.name}")
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in found.items()}
    manifest = json.dumps({"format": 1, "sha256": sums}, indent=1).encode()
    with atomic_write(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as packed:
        for task in tasks:
            packed.writestr(zipfile.ZipInfo(_member(task)), found[task.name], zipfile.ZIP_LZMA)
        packed.writestr(zipfile.ZipInfo(_MANIFEST), manifest, zipfile.ZIP_LZMA)
    return Archive(path)


def trained(
    task: Task, cache: Path, train: Callable[[], Trained], archive: Archive | None = None
) -> Trained:
    """Return the networks of a task from the archive, from the cache, or by training them.

    Parameters
    ----------
    task
        Data set, seed and architecture.
    cache
        Folder for networks that are trained here.
    train
        Called if networks are trained.
    archive
        An archive, which may lack the task.
    """
    known = None if archive is None else archive.read(task)
    if known is not None:
        return known
    path = cache / _member(task)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        content = train().to_bytes()
        with atomic_write(path) as file:
            file.write(content)
    return Trained.from_bytes(path.read_bytes())


def _content(task: Task, cache: Path, data_folder: str | None) -> bytes:
    def train() -> Trained:
        data = load(task.published, data_folder, repaired=task.data != task.published)
        return train_all(data, task.settings, task.seed)

    with threadpool_limits(1):
        return trained(task, cache, train).to_bytes()


def _member(task: Task) -> str:
    return f"{task.name}.npz"


# -- training --------------------------------------------------------------------------------------


def train_all(
    data: Dataset, settings: Settings, seed: int, *, net: Network | None = None
) -> Trained:
    """Train the networks of a data set and draw the people.

    Parameters
    ----------
    data
        Rows, labels and halves.
    settings
        Architecture, epochs and counts.
    seed
        Seed of everything random.
    net
        The current network. Default: it is trained too, and the weights of all networks are rounded
        to 16 bits.
    """
    first, both = data.first.train, np.concatenate([data.first.train, data.second.train])
    counts, short = settings.counts, net is None
    numbers = iter(range(1, 100))

    def from_scratch(rows: Callable[[np.random.Generator], Rows], count: int) -> list[Network]:
        number = next(numbers)
        rng = np.random.default_rng([seed, number])
        drawn = [rows(rng) for _ in range(count)]
        seeds = [_seed(seed, number, i) for i in range(count)]
        return two_classes(data, drawn, settings, seeds, short=short)

    def further(current: Network, count: int) -> list[Network]:
        number = next(numbers)
        rng = np.random.default_rng([seed, number])
        drawn = [np.sort(rng.choice(first, len(first))) for _ in range(count)]
        seeds = [_seed(seed, number, i) for i in range(count)]
        if not count:
            return []
        nets = training.train_further(
            current, data.X, data.y, drawn, epochs=_EPOCHS, rate=_RATE, seeds=seeds
        )
        return [_rounded(n) for n in nets] if short else nets

    def without(share: float) -> Callable[[np.random.Generator], Rows]:
        out = max(1, int(share * len(first)))
        return lambda rng: np.sort(rng.permutation(first)[out:])

    if net is None:
        (net,) = from_scratch(lambda _: first, 1)
    judges = {
        "new data": from_scratch(lambda _: both, counts.new_data),
        "without 1%": from_scratch(without(0.01), counts.without_1),
        "without 10%": from_scratch(without(0.1), counts.without_10),
        "other seed": from_scratch(lambda _: first, counts.other_seed),
        "incremental": further(net, counts.incremental),
    }
    half = counts.calibration // 2
    calibration = from_scratch(lambda _: both, counts.calibration - half)
    calibration += from_scratch(without(0.01), half)
    people, validation, unseen = _people(data, net, counts.people, seed)
    return Trained(
        net=net,
        retrained={kind: nets for kind, nets in judges.items() if nets},
        calibration=calibration,
        history=further(net, counts.history),
        people=people,
        validation=validation,
        unseen=unseen,
    )


def two_classes(
    data: Dataset, rows: list[Rows], settings: Settings, seeds: list[int], *, short: bool = False
) -> list[Network]:
    """Train, and train a network again with another seed if it gives every row the same class.

    With ``short``, weights are rounded to 16 bits. A repetition is needed on GMC: 93% of its rows
    have label 1, and there are three epochs.
    """
    networks: dict[int, Network] = {}
    missing = list(range(len(rows)))
    for attempt in range(_TRIES):
        if not missing:
            break
        made = training.train(
            data.X,
            data.y,
            [rows[i] for i in missing],
            widths=settings.widths,
            epochs=settings.epochs,
            seeds=[seeds[i] + attempt for i in missing],
        )
        networks |= {i: _rounded(n) if short else n for i, n in zip(missing, made, strict=True)}
        missing = [i for i in missing if len(set(networks[i].predict(data.X[rows[i]]))) < 2]
    return [networks[i] for i in range(len(rows))]


def _people(data: Dataset, net: Network, count: int, seed: int) -> tuple[Rows, Rows, int]:
    """Draw people to explain and people for the calibration, all refused by the network.

    Rows that no network was trained on come first, and training rows fill up.
    """
    rng = np.random.default_rng([seed, 0])
    unseen = refused(np.concatenate([data.first.test, data.second.test]), data.X, net, rng)[:count]
    known = refused(data.first.train, data.X, net, rng)
    filled = count - len(unseen)
    people = np.concatenate([unseen, known[:filled]])
    validation = known[filled : filled + count]
    if not (len(people) and len(validation)):
        raise InputError(f"{data.name}, seed {seed}: the network refuses too few rows")
    return people, validation, len(unseen)


def refused(rows: Rows, X: Array, net: Network, rng: np.random.Generator) -> Rows:
    """Return rows with distinct features that a network refuses, in random order.

    The order does not depend on the network: if one prediction changes, other rows keep their order.
    """
    rows = rng.permutation(rows)
    distinct = rows[np.sort(np.unique(X[rows], axis=0, return_index=True)[1])]
    found: Rows = distinct[net.predict(X[distinct]) == 0]
    return found


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


# -- weights ---------------------------------------------------------------------------------------


def _vector(net: Network) -> Array:
    return np.concatenate([part for n in net.layers for part in (n.W.ravel(), n.bias)])


def _network(vector: Array, sizes: Sequence[int]) -> Network:
    layers: list[tuple[Array, Array]] = []
    start = 0
    for inputs, outputs in itertools.pairwise(sizes):
        middle, end = start + inputs * outputs, start + (inputs + 1) * outputs
        layers.append((vector[start:middle].reshape(outputs, inputs), vector[middle:end]))
        start = end
    return Network(layers)


def _rounded(net: Network) -> Network:
    """Round the weights of a network to 16 bits."""
    vector = _vector(net).astype(np.float16).astype(float)
    return _network(vector, [net.inputs, *net.widths, net.outputs])
