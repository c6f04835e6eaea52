"""A small lender behind the service: its files, its settings, and callers of every role."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from fastapi.testclient import TestClient

import small_promises as small
from odd_workers import odd_functions
from proplace.apps.serve.app import app_of
from proplace.apps.serve.config import config_of
from proplace.apps.serve.running import server_of
from proplace.apps.serve.service import Service
from proplace.apps.serve.store import ROLES
from proplace.apps.serve.workers import Task, Workers

PERSON = {"income": 12, "debt": 24}
API = "/api/v1"


def write_files(folder):
    """The model, its training rows, its schema, people, and a retrained model."""
    small.NET.save(folder / "lender.npz")
    small.LATER.save(folder / "later.npz")
    small.SCHEMA.write(folder / "schema.yaml")
    small.TRAINING.to_csv(folder / "train.csv", index=False)
    people = small.refused(5).assign(customer=[f"c{n}" for n in range(5)])
    people.to_csv(folder / "people.csv", index=False)


def settings(folder, **more):
    """Settings that serve the lender."""
    served = {
        "model": folder / "lender.npz",
        "train": folder / "train.csv",
        "schema": folder / "schema.yaml",
        "people": folder / "people.csv",
        "ids": "customer",
        "delta": 0.01,
    }
    return {
        "models": {"lender": served},
        "ledger": str(folder / "promises.db"),
        "state": folder / "serve.db",
        "limits": {"workers": 1, "requests": 100_000, "niceness": 0, **more.pop("limits", {})},
        **more,
    }


class Opened:
    """A service with a key of each role, and clients that use them."""

    def __init__(self, folder, **more):
        if not (folder / "lender.npz").exists():
            write_files(folder)
        self.folder = folder
        self.service = Service.open(config_of(settings(folder, **more)))
        known = {key["name"] for key in self.service.store.all_keys() if key["revoked"] is None}
        self.keys = {r: self.service.store.add_key(r, r) for r in ROLES if r not in known}
        self.app = app_of(self.service)

    def client(self, role=None, **more):
        """A client that shows the key of a role, or none."""
        headers = {} if role is None else {"authorization": f"Bearer {self.keys[role]}"}
        return TestClient(
            self.app,
            base_url="http://localhost",
            headers=headers,
            raise_server_exceptions=False,
            **more,
        )

    def session(self, role):
        """A client that is logged in to the page, and the token of its forms."""
        key = self.service.store.key(self.keys[role])
        token = self.service.store.start_session(key, 1.0)
        client = self.client()
        client.cookies.set("proplace_session", token)
        return client, self.service.store.session(token).csrf


@contextlib.contextmanager
def opened(folder, **more):
    """A service that is closed in the end."""
    found = Opened(folder, **more)
    try:
        yield found
    finally:
        found.service.close(grace=1.0)


def wait(client, job, *, until=lambda facts: facts["state"] not in ("waiting", "running")):
    """The facts of a job, once it is as far as is wanted."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        facts = client.get(f"{API}/jobs/{job}").json()
        if until(facts):
            return facts
        time.sleep(0.02)
    raise AssertionError(f"the job is stuck: {facts}")


class Inline:
    """Workers of this very process, which are ready at once: for tests that are not about processes."""

    restarts = running = waiting = 0

    def __init__(self, make, count, waiting, niceness=0, memory=None):
        self._functions, self._one = make(), threading.Lock()

    def ask(self, name, *arguments, seconds, wait=False):
        """Answer now."""
        task = Task((name, arguments), seconds)
        try:
            with self._one:
                task.future.set_result(self._functions[name](*arguments))
        except Exception as error:
            task.future.set_exception(error)
        return task

    def stop(self):
        """Nothing is there to end."""


@contextlib.contextmanager
def listening(found):
    """The port of a service that listens, in a thread."""
    server = server_of(found.app, found.service.config)
    with socket.create_server(("127.0.0.1", 0)) as place:
        thread = threading.Thread(target=server.run, args=([place],), daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield place.getsockname()[1]
        server.should_exit = server.force_exit = True
        thread.join(20)


def with_odd_workers(found, count=1, waiting=8):
    """Put odd workers in the place of those that search."""
    before, found.service.workers = found.service.workers, Workers(odd_functions, count, waiting)
    before.stop()  # what it was asked is asked again
    return found
