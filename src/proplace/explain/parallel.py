"""One function over many items, on the processes or machines of any joblib backend.

The shared object (a fitted explainer) is pickled once and reaches each worker process once: through an
unnamed file on this machine, through scatter on Dask, or through the object store of Ray. A worker
caches it by its digest for further items.

If a worker dies, its current items are lost. Dask runs them again elsewhere. Loky and Ray report an
error instead, so this module runs them again.

If this process dies, its loky workers end themselves and leave no files behind.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Generic, TypeVar, cast

import joblib
from joblib.parallel import get_active_backend

from proplace.core.errors import ProplaceError, WorkerError, require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")

_ATTEMPTS = 2  # failures of all workers together before the next item is tried alone
_LOST = 3  # consecutive items that fail alone before the cause cannot be the items
_SLICE = 16  # items per worker and call, for backends that return all results at the end
_POLL = 0.1  # seconds between checks of a worker that its parent lives
_PROC = Path("/proc")  # open files of processes, on systems that have it


class Workers(Generic[Shared, Item, Result]):
    """Map ``function(shared, item)`` over items, with results in order.

    Parameters
    ----------
    function
        A function from a module that the workers can import.
    shared
        The object that all calls read and no call changes.
    lost
        Function that returns the result of an item during which the workers died repeatedly.
    n_jobs
        Number of jobs, as in joblib. None is 1, or the value of ``joblib.parallel_config``. One job
        on this machine runs in this process, without pickling.
    """

    def __init__(
        self,
        function: Callable[[Shared, Item], Result],
        shared: Shared,
        *,
        lost: Callable[[Item], Result],
        n_jobs: int | None = None,
    ) -> None:
        self._function, self._shared, self._lost = function, shared, lost
        self._n_jobs = n_jobs
        self._stack = ExitStack()
        self._pool: _Pool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._dismiss()

    def map(self, items: Sequence[Item]) -> Iterator[Result]:
        """Yield the result of each item. Items lost with a worker are run again."""
        # A Dask cluster with one worker still runs elsewhere.
        dask = type(get_active_backend()[0]).__name__ == "DaskDistributedBackend"
        if not dask and int(joblib.effective_n_jobs(self._n_jobs)) == 1:
            for item in items:
                yield self._function(self._shared, item)
            return
        done = failures = lost = 0
        while done < len(items):
            alone = failures == _ATTEMPTS
            try:
                for result in self._run(items, done, done + 1 if alone else len(items)):
                    done, failures, lost = done + 1, 0, 0
                    yield result
            except ProplaceError:
                raise
            except Exception as error:  # each backend has its own error for a dead worker
                self._dismiss()  # a broken pool is not used again
                if not alone:
                    failures += 1
                    continue
                lost += 1
                if lost > _LOST:
                    raise WorkerError(
                        f"the workers fail on every row ({type(error).__name__}: {error})"
                    ) from error
                yield self._lost(items[done])
                done, failures = done + 1, 0

    def _run(self, items: Sequence[Item], start: int, stop: int) -> Iterator[Result]:
        if self._pool is None:
            self._pool = _Pool(self._shared, self._n_jobs, self._stack)
        pool = self._pool
        size = stop - start if pool.streams else _SLICE * pool.size
        for first in range(start, stop, size):
            numbers = range(first, min(first + size, stop))
            calls = (
                joblib.delayed(_call)(self._function, pool.token, pool.parcel, (n, items[n]))
                for n in numbers
            )
            for n, (number, result) in zip(numbers, pool.parallel(calls), strict=True):
                if number != n:  # a broken pool may return results of an earlier call
                    raise RuntimeError(f"result {number} was returned instead of result {n}")
                yield result

    def _dismiss(self) -> None:
        self._pool = None
        self._stack.close()


class _Pool:
    """An open joblib backend and the parcel for its workers."""

    def __init__(self, shared: object, n_jobs: int | None, stack: ExitStack) -> None:
        backend, _ = get_active_backend()
        self.streams = bool(backend.supports_return_generator)
        self.size = max(1, int(joblib.effective_n_jobs(n_jobs)))
        # joblib's wrapper pickles by value what pickle cannot: classes of __main__, lambdas.
        content = pickle.dumps(joblib.wrap_non_picklable_objects(shared, keep_wrapper=False))
        self.token = hashlib.sha256(content).hexdigest()
        # joblib runs the calls in this process if one worker is left, or with threads.
        _opened[self.token] = shared
        stack.callback(_opened.pop, self.token, None)
        kind = type(backend).__name__
        self.parcel: Any
        if kind == "DaskDistributedBackend":
            self.parcel = backend.client.scatter(content, broadcast=True)
        elif kind == "RayBackend":
            self.parcel = require("ray", "ray", "the Ray backend").put(content)
        else:
            self.parcel = _file(content, stack)
        options: dict[str, Any] = {}
        if kind == "LokyBackend" and "initializer" not in backend.backend_kwargs:
            options = {"initializer": _exit_with_parent, "initargs": (os.getpid(),)}
        self.parallel = stack.enter_context(
            joblib.Parallel(
                n_jobs=n_jobs, return_as="generator" if self.streams else "list", **options
            )
        )


def _file(content: bytes, stack: ExitStack) -> Path:
    """Return a path with the content, for processes on this machine, until the stack is closed.

    The file has no name if the system allows it. It then disappears with this process in every case,
    because training rows are confidential.
    """
    file: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  (it is closed)
    path = _PROC / str(os.getpid()) / "fd" / str(file.fileno())
    if not path.exists():
        fd, name = tempfile.mkstemp(prefix="proplace-", suffix=".parcel")  # for this user only
        path = Path(name)
        stack.callback(path.unlink, missing_ok=True)
        file = stack.enter_context(os.fdopen(fd, "wb"))
    file.write(content)
    file.flush()
    return path


# -- in the workers ------------------------------------------------------------------------------

_opened: dict[str, Any] = {}
_parcels: set[Path] = set()


def _exit_with_parent(parent: int) -> None:
    """End this process soon after its parent has ended, for any reason.

    Otherwise it would wait for work and keep its standard error open, and other programs may wait for
    that to close. A terminal sends Ctrl-C to all processes, but only the parent handles it.
    """
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.name != "posix":  # other systems never change the number of a parent
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL)
        for parcel in _parcels:
            with suppress(OSError):  # it had no name, or another worker deleted it
                parcel.unlink()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _call(
    function: Callable[[Any, Any], Result], token: str, parcel: object, task: tuple[int, Any]
) -> tuple[int, Result]:
    number, item = task
    return number, function(_open(token, parcel), item)


def _open(token: str, parcel: object) -> Any:
    """Return the shared object, unpickled once in each process."""
    shared = _opened.get(token)
    if shared is None:
        if isinstance(parcel, Path):
            _parcels.add(parcel)
            content = parcel.read_bytes()
        elif isinstance(parcel, bytes):  # Dask has replaced its future by the bytes
            content = parcel
        else:
            content = cast("bytes", require("ray", "ray", "the Ray backend").get(parcel))
        shared = pickle.loads(content)  # noqa: S301  (made by _Pool)
        _opened.clear()  # only one, because it may be large
        _opened[token] = shared
    return shared
