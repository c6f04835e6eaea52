"""A lender behind the service, for tests of its page: features of every kind, and keys of every role."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import uvicorn

import small_lender as lender
from proplace.apps.serve.access import Caller
from proplace.apps.serve.app import app_of
from proplace.apps.serve.config import config_of
from proplace.apps.serve.questions import Issue, Options
from proplace.apps.serve.service import Service
from proplace.apps.serve.store import ROLES
from proplace.core.network import Network

EVIL = "<script>document.title='hacked'</script>"
"""The name of one of the jobs."""


def write_files(folder):
    """The model, its data and schema, and two retrained models: one in the promised set, one strict."""
    own = lender.Lender()
    own.net.save(folder / "lender.npz")
    lender.SCHEMA.write(folder / "schema.yaml")
    own.frame.assign(customer=[f"k{n}" for n in range(len(own.frame))]).to_csv(
        folder / "train.csv", index=False
    )
    *layers, (W, b) = [(layer.W, layer.b) for layer in own.net.layers]
    Network([*layers, (W, b + 0.5 * lender.DELTA)]).save(folder / "near.npz")
    Network([*layers, (W, b - 3.0)]).save(folder / "strict.npz")
    return own


def settings(folder, **more):
    """Settings that serve the lender."""
    words = {"subject": "the loan", "outcomes": ["refused", "approved"], "person": "applicant"}
    served = {
        "model": folder / "lender.npz",
        "train": folder / "train.csv",
        "schema": folder / "schema.yaml",
        "people": folder / "train.csv",
        "ids": "customer",
        "delta": lender.DELTA,
        "words": words,
    }
    return {
        "models": {"loans": served},
        "ledger": str(folder / "promises.db"),
        "state": folder / "serve.db",
        "title": "Loans",
        "limits": {"workers": 1, "requests": 100_000, "niceness": 0},
        **more,
    }


def refused(own):
    """Ids of people whom the model refuses."""
    return [f"k{n}" for n in (own.net.predict(own.X) == 0).nonzero()[0].tolist()]


class Paged:
    """The service with a key of each role."""

    def __init__(self, folder, **more):
        self.folder = folder
        self.refused = refused(write_files(folder))
        self.service = Service.open(config_of(settings(folder, **more)))
        self.keys = {role: self.service.store.add_key(role, role) for role in ROLES}
        self.app = app_of(self.service)

    def promise(self, number):
        """Issue the first answer of somebody, without the page; the number of the promise."""
        service, person = self.service, self.service.engines["loans"].person(number)
        found = service.ask_explain("loans", [person], Options(), pictures=False).result(60)
        certificate = found[0][0]["certificate_digest"]
        asked = Issue(id=number, person=person, certificate=certificate)
        caller = Caller(service.store.key(self.keys["admin"]))
        return service.ask_issue("loans", asked, caller).result(60)["promise"]

    def session(self, role):
        """The cookie of somebody who is logged in."""
        return self.service.store.start_session(self.service.store.key(self.keys[role]), 1.0)


@contextlib.contextmanager
def paged(folder, **more):
    """The service, closed in the end."""
    found = Paged(folder, **more)
    try:
        yield found
    finally:
        found.service.close(grace=1.0)


@contextlib.contextmanager
def listening(folder, **more):
    """The same behind a real port of this machine."""
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(paged(folder, **more))
        place = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server = uvicorn.Server(uvicorn.Config(found.app, log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        found.address = f"http://127.0.0.1:{place.getsockname()[1]}"
        try:
            yield found
        finally:
            server.should_exit = True
            thread.join(timeout=20.0)
