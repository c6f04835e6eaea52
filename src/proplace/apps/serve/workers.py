"""Searches in processes of their own: a time limit that holds, and a crash that costs one question.

Each worker is a fresh process with a pipe, started at once. A thread for each of them takes questions
from one bounded queue, hands them over, and waits; a worker that is late or dead is replaced, and only
its question fails. Workers can stand back behind the process that serves, so that questions which are
answered in an instant do not wait for searches, and they end when it ends, however it does.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
from threadpoolctl import threadpool_limits

from proplace.core.errors import ProplaceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

_START = 120.0  # seconds in which a process must be ready
_GRACE = 5.0  # seconds beyond the limit that a search sets itself
_LOOK = 0.2  # seconds between two looks at a worker


class Busy(ProplaceError):
    """Too many searches wait already."""


class Late(ProplaceError):
    """A search did not end in time, and was ended."""


class Died(ProplaceError):
    """The process of a search died; the question may be asked again."""


class Failed(ProplaceError):
    """A search ended with an error of its own: asked again, it would do so again."""


class Cancelled(ProplaceError):
    """A search was given up on purpose."""


@dataclass(eq=False)
class Task:
    """A question on its way."""

    call: tuple[str, tuple[Any, ...]]
    seconds: float
    future: Future[Any] = field(default_factory=Future)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        """Give it up, also while it runs."""
        self.cancelled.set()
        self.future.cancel()


class Workers:
    """A fixed number of processes that answer questions.

    Parameters
    ----------
    make
        Called once in each process; returns functions by name.
    count
        How many processes.
    waiting
        How many questions may wait.
    niceness
        How far the processes stand back behind this one.
    memory
        Bytes that each process may hold (on Linux); None: any. One that holds more is ended: an
        allocation that fails inside of it (``setrlimit``) could be taken for something else, such as a
        model that cannot be run, and a check be left out.
    """

    def __init__(
        self,
        make: Callable[[], dict[str, Callable[..., Any]]],
        count: int,
        waiting: int,
        niceness: int = 0,
        memory: int | None = None,
    ) -> None:
        self._make, self._memory = cloudpickle.dumps((make, niceness)), memory
        self._tasks: queue.Queue[Task] = queue.Queue(waiting)
        self._stopping, self._count = threading.Event(), threading.Lock()
        self.restarts = 0
        self.running = 0
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """How many questions wait now."""
        return self._tasks.qsize()

    def ask(self, name: str, *arguments: Any, seconds: float, wait: bool = False) -> Task:
        """Ask one of the processes; raises :class:`Busy` where too many questions wait.

        With ``wait`` it waits for a place instead.
        """
        task = Task((name, arguments), seconds)
        while True:
            if self._stopping.is_set():
                raise Busy("the service is stopping; ask again later")
            try:
                self._tasks.put(task, block=wait, timeout=_LOOK if wait else None)
                return task
            except queue.Full:
                if not wait:
                    raise Busy("too many searches wait; ask again later") from None

    def stop(self) -> None:
        """End all processes now; questions that wait fail."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=10.0)
        with contextlib.suppress(queue.Empty):
            while True:
                task = self._tasks.get_nowait()
                if task.future.set_running_or_notify_cancel():
                    task.future.set_exception(Died("the service was stopped"))

    # -- one thread for each worker --------------------------------------------------------------

    def _serve(self) -> None:
        worker: _Worker | None = None
        with contextlib.suppress(OSError):  # then a question says so
            worker = _Worker(self._make, self._memory)
        while not self._stopping.is_set():
            try:
                task = self._tasks.get(timeout=_LOOK)
            except queue.Empty:
                if worker is not None and worker.ready and not worker.alive:
                    with contextlib.suppress(OSError):
                        worker = self._replaced(worker)
                continue
            if not task.future.set_running_or_notify_cancel():
                continue
            self._add(running=1)
            try:
                if worker is None or not worker.alive:
                    worker = self._replaced(worker)
                task.future.set_result(worker.answer(task, self._stopping))
            except ProplaceError as error:
                task.future.set_exception(error)
            except OSError:  # there is no memory for it, or there are too many
                task.future.set_exception(Died("no process could be started; ask again"))
            except Exception as error:
                task.future.set_exception(Failed(f"the search failed ({type(error).__name__})"))
            finally:
                self._add(running=-1)
        if worker is not None:
            worker.end()

    def _replaced(self, worker: _Worker | None) -> _Worker:
        if worker is not None:
            worker.end()
        self._add(restarts=1)
        return _Worker(self._make, self._memory)

    def _add(self, *, running: int = 0, restarts: int = 0) -> None:
        with self._count:
            self.running += running
            self.restarts += restarts


class _Worker:
    """One process."""

    def __init__(self, make: bytes, memory: int | None) -> None:
        self._memory = memory
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, make), daemon=True)
        self._process.start()
        self.ready = False
        theirs.close()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def answer(self, task: Task, stopping: threading.Event) -> Any:
        """Hand a question over, once the process is ready, and wait for what comes back."""
        try:
            if not self.ready:
                self._wait_for_start(task, stopping)
            self._pipe.send_bytes(cloudpickle.dumps(task.call))
            return self._received(task, stopping, task.seconds)
        except (EOFError, OSError):
            self.end()
            raise Died("the process of the search died; ask again") from None

    def _resident(self) -> int:
        """Bytes that the process holds; 0 where that is not known."""
        try:
            pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
            return int(pages) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return 0

    def _wait_for_start(self, task: Task, stopping: threading.Event) -> None:
        try:
            self._received(task, stopping, _START)
        except ProplaceError:  # it says why it cannot start
            self.end()
            raise
        self.ready = True

    def _received(self, task: Task, stopping: threading.Event, seconds: float) -> Any:
        until = time.monotonic() + seconds + _GRACE
        while not self._pipe.poll(_LOOK):
            if task.cancelled.is_set() or stopping.is_set():
                self.end()
                raise Cancelled("the search was given up")
            if time.monotonic() > until:
                self.end()
                raise Late(f"the search took longer than {seconds:g} s and was ended")
            if self.ready and self._memory is not None and self._resident() > self._memory:
                self.end()
                raise Failed(
                    "the search took more memory than it may (limits.memory) and was ended"
                )
            if not self.alive and not self._pipe.poll():
                raise EOFError
        good, value = cloudpickle.loads(self._pipe.recv_bytes())
        if good:
            return value
        raise value


def _work(pipe: Connection, make: bytes) -> None:
    """Say that all is ready, and answer questions until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that serves decides when to end
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        functions_of, niceness = cloudpickle.loads(make)
        os.nice(niceness)
        functions = functions_of()
        threadpool_limits(1)
    except Exception as error:
        pipe.send_bytes(_packed(error))
        return
    pipe.send_bytes(cloudpickle.dumps((True, None)))
    while True:
        try:
            name, arguments = cloudpickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            answer = cloudpickle.dumps((True, functions[name](*arguments)))
        except Exception as error:
            answer = _packed(error)
        pipe.send_bytes(answer)


def _packed(error: Exception) -> bytes:
    """An error as it is sent: one of ours that comes back whole, or what it says."""
    if not isinstance(error, ProplaceError):
        error = Failed(f"the search failed ({type(error).__name__}: {error})")
    try:
        packed: bytes = cloudpickle.dumps((False, error))
        cloudpickle.loads(packed)
    except Exception:
        packed = cloudpickle.dumps((False, ProplaceError(str(error))))
    return packed


def _end_with_parent() -> None:
    """A search must not go on for nobody when the process that serves was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
