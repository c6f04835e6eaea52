"""Requests that wait for a worker, or for a thread, keep nobody else waiting."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import anyio.to_thread
import httpx
import pytest

from served import API, PERSON, opened

LENDER = f"{API}/models/lender"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with opened(tmp_path_factory.mktemp("waiting")) as found:
        yield found


def with_one_thread(served, role, ask):
    """Run what ``ask`` does with a client, in a server with one thread for all slow requests."""

    async def main():
        anyio.to_thread.current_default_thread_limiter().total_tokens = 1
        transport = httpx.ASGITransport(served.app, raise_app_exceptions=False)
        headers = {"authorization": f"Bearer {served.keys[role]}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=headers
        ) as client:
            async with asyncio.timeout(30):
                await ask(client)

    asyncio.run(main())


def test_checks_that_wait_for_a_worker_take_no_threads(served, monkeypatch):
    waiting, asked = Future(), []

    def ask_worker(*call, **_):
        asked.append(call)
        return SimpleNamespace(future=waiting)

    monkeypatch.setattr(served.service.workers, "ask", ask_worker)

    async def ask(client):
        many = [
            asyncio.create_task(client.post(f"{LENDER}/check", json={"certificate": {"n": n}}))
            for n in range(3)
        ]
        try:
            while not asked:
                await asyncio.sleep(0.01)
            other = await asyncio.wait_for(
                client.post(f"{LENDER}/predict", json={"people": [PERSON]}), 10
            )
        finally:
            waiting.set_result({"accepted": False, "reason": "none", "claim": None})
        assert other.status_code == 200
        assert [(await one).json()["reason"] for one in many] == ["none"] * 3

    with_one_thread(served, "reader", ask)


@pytest.mark.parametrize("path", [f"{API}/models", "/promises"])
def test_nobody_waits_at_the_door_for_slow_requests(served, path):
    go_on, held = threading.Event(), threading.Event()

    def slow():
        held.set()
        go_on.wait(60)

    async def ask(client):
        request = asyncio.create_task(anyio.to_thread.run_sync(slow))
        try:
            while not held.is_set():
                await asyncio.sleep(0.01)
            headers = {"authorization": "Bearer nobody"}
            answer = await asyncio.wait_for(client.get(path, headers=headers), 10)
        finally:
            go_on.set()
        assert answer.status_code in (401, 303)
        await request

    with_one_thread(served, "reader", ask)
