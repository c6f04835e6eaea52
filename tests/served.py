"""A small lender behind a workbench, and callers of it."""

from __future__ import annotations

import contextlib
import threading
import time

import uvicorn
from starlette.testclient import TestClient

import proplace as pp
from proplace.demo.project import demo_project
from proplace.project import OpenedProject
from proplace.serve.app import Access, app_of
from proplace.serve.workbench import Workbench
from support.lenders import INCOME_DEBT, NET, TRAINING, refused

API = "/api/v1"
PERSON = {"income": 12, "debt": 24}
WORDING = pp.Wording("the loan", ["refused", "approved"], "applicant")
PEOPLE = refused(40).set_axis([f"c{n}" for n in range(40)])


def opened(folder, **changes):
    """The lender's project, with a ledger of its own."""
    place = folder / "promises.db"
    pp.Ledger(place).close()
    model = pp.Model.of(NET).with_schema(INCOME_DEBT)
    parts = {"people": PEOPLE, "ledger": str(place)} | changes
    return OpenedProject(model, TRAINING, 0.01, 1, WORDING, **parts)


def demonstration(folder):
    """The address and the token of a workbench of the demonstration, for the rest of the process."""
    bench = Workbench(lambda: demo_project(folder / "demo.db"))
    pp.Ledger(folder / "demo.db").close()
    bench.start()
    access = Access()
    return _listening(app_of(bench, access))[1], access.token


def _listening(app):
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    return server, f"http://127.0.0.1:{port}"


class Served:
    """A workbench, its application and its secrets."""

    def __init__(self, folder, *, access=None, **changes):
        self.folder = folder
        self.bench = Workbench(lambda: opened(folder, **changes))
        self.access = access or Access()
        self.app = app_of(self.bench, self.access)

    @contextlib.contextmanager
    def listening(self):
        """The address of the workbench, for as long as it listens."""
        server, address = _listening(self.app)
        yield address
        server.should_exit = True

    def client(self, **options):
        """A client without a login."""
        options = {"base_url": "http://localhost", "raise_server_exceptions": False} | options
        return TestClient(self.app, **options)

    def program(self):
        """A client with the token."""
        return self.client(headers={"authorization": f"Bearer {self.access.token}"})

    def browser(self):
        """A client with the cookie, whose forms come from pages of the workbench."""
        found = self.client(headers={"sec-fetch-site": "same-origin"})
        found.cookies.set("proplace", self.access.session)
        return found
