"""Numbers for Prometheus: how many requests, how long they took, and what waits."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from proplace.apps.serve.service import Service


class Metrics:
    """What is counted."""

    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        names = ["method", "route", "status"]
        self._requests = Counter("proplace_requests", "Requests", names, registry=self.registry)
        self._seconds = Histogram(
            "proplace_seconds", "Seconds of a request", names[:2], registry=self.registry
        )
        for name, text in (
            ("waiting", "Searches that wait"),
            ("running", "Searches that run"),
            ("restarts", "Workers that were replaced"),
        ):
            gauge = Gauge(f"proplace_{name}", text, registry=self.registry)
            gauge.set_function(partial(_number, service, name))

    def seen(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)


def _number(service: Service, name: str) -> float:
    return float(getattr(service.workers, name))
