"""One function over many items, on the processes or machines of any joblib backend.

What all items share (a fitted explainer) is pickled once and reaches each worker process once: through
a file without a name for processes of this machine, scattered by Dask, put into the object store by
Ray. A worker keeps it by its digest for the items that follow.

A worker that dies takes the items in flight with it. Dask runs them again elsewhere; loky and Ray
report an error instead, so they are run again from here.

When this process dies, however suddenly, its loky workers end themselves and nothing stays behind.
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
_LOST = 3  # items in a row that fail alone: then it is not the items
_SLICE = 16  # items a worker and call, for backends that return nothing before all is done
_LOOK = 0.1  # seconds between the looks of a worker at its parent
_PROC = Path("/proc")  # where the system shows the open files of a process, if it does


class Workers(Generic[Shared, Item, Result]):
    """Map ``function(shared, item)`` over items; results come in order.

    Parameters
    ----------
    function
        A function of a module that the workers can import.
    shared
        What each call needs and no call changes.
    lost
        The result of an item during which the workers died, again and again.
    n_jobs
        As joblib understands it: None is 1, or what ``joblib.parallel_config`` says. With one job
        on this machine nothing is pickled and no process is started.
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
        self._crew: _Crew | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._dismiss()

    def map(self, items: Sequence[Item]) -> Iterator[Result]:
        """Yield the result of each item; items lost with a worker are run again."""
        # A Dask cluster of one worker is still elsewhere.
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
            except Exception as error:  # whatever the backend says when a worker is gone
                self._dismiss()  # what is broken is not used again
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
        if self._crew is None:
            self._crew = _Crew(self._shared, self._n_jobs, self._stack)
        crew = self._crew
        size = stop - start if crew.streams else _SLICE * crew.size
        for first in range(start, stop, size):
            numbers = range(first, min(first + size, stop))
            calls = (
                joblib.delayed(_call)(self._function, crew.token, crew.parcel, (n, items[n]))
                for n in numbers
            )
            for n, (number, result) in zip(numbers, crew.parallel(calls), strict=True):
                if number != n:  # a broken pool may hand over what an earlier call asked for
                    raise RuntimeError(f"result {number} came where {n} was due")
                yield result

    def _dismiss(self) -> None:
        self._crew = None
        self._stack.close()


class _Crew:
    """An open joblib backend and the parcel for its workers."""

    def __init__(self, shared: object, n_jobs: int | None, stack: ExitStack) -> None:
        backend, _ = get_active_backend()
        self.streams = bool(backend.supports_return_generator)
        self.size = max(1, int(joblib.effective_n_jobs(n_jobs)))
        # joblib's wrapper pickles by value what pickle cannot: classes of __main__, lambdas.
        content = pickle.dumps(joblib.wrap_non_picklable_objects(shared, keep_wrapper=False))
        self.token = hashlib.sha256(content).hexdigest()
        # joblib makes the calls here when only one worker is left, or in threads.
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
        following: dict[str, Any] = {}
        if kind == "LokyBackend" and "initializer" not in backend.backend_kwargs:
            following = {"initializer": _follow, "initargs": (os.getpid(),)}
        self.parallel = stack.enter_context(
            joblib.Parallel(
                n_jobs=n_jobs, return_as="generator" if self.streams else "list", **following
            )
        )


def _file(content: bytes, stack: ExitStack) -> Path:
    """Where processes of this machine find some bytes until the stack is closed.

    The file has no name where that is possible, so that it goes with this process, whatever ends it:
    training rows are nobody else's business.
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


def _follow(parent: int) -> None:
    """End this process soon after its parent has ended, in whatever way that happened.

    Else it would wait for work, holding its standard error open, for which others may be waiting.
    Ctrl-C, which a terminal sends to all processes, is the parent's to answer.
    """
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.name != "posix":  # elsewhere a process keeps the number of its parent for ever
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        for parcel in _parcels:
            with suppress(OSError):  # it had no name, or another worker was first
                parcel.unlink()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _call(
    function: Callable[[Any, Any], Result], token: str, parcel: object, task: tuple[int, Any]
) -> tuple[int, Result]:
    number, item = task
    return number, function(_open(token, parcel), item)


def _open(token: str, parcel: object) -> Any:
    """Return what the parcel holds; it is read and unpickled once in a process."""
    shared = _opened.get(token)
    if shared is None:
        if isinstance(parcel, Path):
            _parcels.add(parcel)
            content = parcel.read_bytes()
        elif isinstance(parcel, bytes):  # Dask has put the bytes in the place of its future
            content = parcel
        else:
            content = cast("bytes", require("ray", "ray", "the Ray backend").get(parcel))
        shared = pickle.loads(content)  # noqa: S301  (made by _Crew)
        _opened.clear()  # one at a time: it may be large
        _opened[token] = shared
    return shared
