"""Searches in processes of their own: a time limit that holds, and a crash that costs one question.

Each worker is a fresh process with a pipe. A thread for each of them takes questions from one bounded
queue, hands them over, and waits; a worker that is late or dead is replaced, and only its question
fails.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import cloudpickle

from proplace.core.errors import ProplaceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

_GRACE = 5.0  # seconds beyond the limit that a search sets itself
_LOOK = 0.2  # seconds between two looks at a worker


class Busy(ProplaceError):
    """Too many searches wait already."""


class Late(ProplaceError):
    """A search did not end in time, and was ended."""


class Died(ProplaceError):
    """The process of a search died; the question may be asked again."""


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
    """

    def __init__(self, make: Callable[[], dict[str, Callable[..., Any]]], count: int, waiting: int):
        self._make = cloudpickle.dumps(make)
        self._tasks: queue.Queue[Task | None] = queue.Queue(waiting)
        self._stopping = threading.Event()
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
                if task is not None and not task.future.cancelled():
                    task.future.set_exception(Died("the service was stopped"))

    # -- one thread for each worker --------------------------------------------------------------

    def _serve(self) -> None:
        worker = None
        while not self._stopping.is_set():
            try:
                task = self._tasks.get(timeout=_LOOK)
            except queue.Empty:
                continue
            if task is None or not task.future.set_running_or_notify_cancel():
                continue
            worker = worker if worker is not None and worker.alive else _Worker(self._make)
            self.running += 1
            try:
                task.future.set_result(worker.answer(task, self._stopping))
            except ProplaceError as error:
                task.future.set_exception(error)
            except Exception as error:
                task.future.set_exception(Died(f"the search failed ({type(error).__name__})"))
            finally:
                self.running -= 1
                if not worker.alive:
                    self.restarts += 1
                    worker = None
        if worker is not None:
            worker.end()


class _Worker:
    """One process."""

    def __init__(self, make: bytes) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, make), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def answer(self, task: Task, stopping: threading.Event) -> Any:
        """Hand a question over and wait for what comes back."""
        until = time.monotonic() + task.seconds + _GRACE
        try:
            self._pipe.send_bytes(cloudpickle.dumps(task.call))
            while not self._pipe.poll(_LOOK):
                if task.cancelled.is_set() or stopping.is_set():
                    self.end()
                    raise Cancelled("the search was given up")
                if time.monotonic() > until:
                    self.end()
                    raise Late(f"the search took longer than {task.seconds:g} s and was ended")
                if not self.alive:
                    raise EOFError
            good, value = cloudpickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            self.end()
            raise Died("the process of the search died; ask again") from None
        if good:
            return value
        raise value


def _work(pipe: Connection, make: bytes) -> None:
    """Answer questions until the pipe is closed."""
    functions: dict[str, Callable[..., Any]] | None = None
    while True:
        try:
            name, arguments = cloudpickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            functions = functions or cloudpickle.loads(make)()
            answer = True, functions[name](*arguments)
        except ProplaceError as error:
            answer = (
                False,
                type(error)(str(error)) if type(error).__init__ is Exception.__init__ else error,
            )
        except Exception as error:
            answer = False, Died(f"the search failed ({type(error).__name__}: {error})")
        try:
            pipe.send_bytes(cloudpickle.dumps(answer))
        except (OSError, TypeError, ValueError, AttributeError):
            pipe.send_bytes(cloudpickle.dumps((False, Died("the answer could not be sent"))))
