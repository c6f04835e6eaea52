"""Those who send slowly hold up nobody, and are not waited for."""

from __future__ import annotations

import socket
import time

import httpx
import pytest

pytest.importorskip("uvicorn")

from proplace.apps.serve import app, service
from served import API, PERSON, Inline, listening, opened


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setattr(service, "Workers", Inline)
    limits = {"header": 0.5, "sending": 0.5}
    with (
        opened(tmp_path_factory.mktemp("slow"), limits=limits) as found,
        listening(found) as number,
    ):
        Port.key = found.keys["reader"]
        yield number
    patch.undo()


class Port:
    key = ""


def header(length, path="predict"):
    return (
        f"POST {API}/models/lender/{path} HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {Port.key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def answered(port):
    """Others are answered all the while."""
    headers = {"authorization": f"Bearer {Port.key}"}
    asked = {"people": [PERSON]}
    url = f"http://127.0.0.1:{port}{API}/models/lender/predict"
    return httpx.post(url, json=asked, headers=headers, trust_env=False).status_code == 200


def ended(connection, send=b"", pause=0.05):
    """What comes until the other side ends the connection, while bytes are sent one by one."""
    connection.settimeout(pause)
    came, end = b"", time.monotonic() + 30
    while time.monotonic() < end:
        try:
            part = connection.recv(65536)
            if not part:
                return came
            came += part
        except TimeoutError:
            pass
        except ConnectionError:
            return came
        try:
            connection.sendall(send[:1])
            send = send[1:]
        except OSError:
            pass
    raise AssertionError("the connection is held for ever")


@pytest.mark.parametrize("first", [b"", b"GET "], ids=["nothing", "a little"])
def test_a_header_that_comes_slowly_is_not_waited_for(port, first):
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(first)
        assert answered(port)
        assert ended(slow, b"" if not first else b"/" * 1000) == b""


def test_the_next_header_has_its_time_as_well(port):
    request = b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(request + request[:10])
        assert answered(port)
        assert ended(slow, b"x" * 1000).count(b"HTTP/1.1 200") == 1


def test_a_body_that_comes_slowly_is_not_waited_for(port):
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(header(5000) + b'{"people": [')
        assert answered(port)
        came = ended(slow, b" " * 1000)
    assert came.startswith(b"HTTP/1.1 408"), came
    assert b"connection: close" in came.lower()
    assert b"too slowly" in came


def test_a_body_that_nobody_reads_is_not_waited_for(port):
    """It is refused by its header; what follows of it holds nothing."""
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(header(10**9))
        assert ended(slow, b" " * 1000).startswith(b"HTTP/1.1 413")
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(header(5000).replace(Port.key.encode(), b"wrong"))
        assert ended(slow, b" " * 1000).startswith(b"HTTP/1.1 401")


def test_a_large_body_has_more_time(port, monkeypatch):
    """As long as it comes at the rate that is asked for."""
    monkeypatch.setattr(app, "_A_SECOND", 200)
    body = b'{"people": [{"income": 12, "debt": 24}' + b" " * 900 + b"]}"
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(header(len(body)))
        for start in range(0, len(body), 100):
            slow.sendall(body[start : start + 100])
            time.sleep(0.1)
        slow.settimeout(20)
        assert slow.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_long_answer_is_no_slow_request(tmp_path, monkeypatch):
    """The clocks stand while a request is being answered."""
    monkeypatch.setattr(service, "Workers", Inline)
    limits = {"header": 0.2, "sending": 0.2}
    with opened(tmp_path, limits=limits) as found, listening(found) as number:
        Port.key = found.keys["reader"]
        found.service.workers._functions["explain"] = lambda *_: time.sleep(0.8) or [[]]
        body = b'{"people": [{"income": 12, "debt": 24}]}'
        with socket.create_connection(("127.0.0.1", number)) as patient:
            patient.sendall(header(len(body), "explain") + body)
            patient.settimeout(20)
            assert patient.recv(65536).startswith(b"HTTP/1.1 200")
