"""Metrics that both daemons have."""

from __future__ import annotations

from sardonyx.runtime.metrics import REGISTRY

BUILD = REGISTRY.gauge(
    "sardonyx_build_info", "1, with the release of Sardonyx and which daemon it is.", ["version", "daemon"], most=2
)
THREADS = REGISTRY.gauge("sardonyx_threads", "Python threads of the process.", most=1)
CONNECTED = REGISTRY.gauge(
    "sardonyx_zookeeper_connected", "1 while the daemon is connected to ZooKeeper, else 0.", most=1
)
SESSIONS_LOST = REGISTRY.counter(
    "sardonyx_zookeeper_sessions_lost_total", "Sessions with ZooKeeper that ended by themselves.", most=1
)
REQUEST_SECONDS = REGISTRY.histogram(
    "sardonyx_zookeeper_request_seconds",
    "Time from a request to ZooKeeper to its answer, for requests that wait for it.",
    most=1,
)
CERTIFICATES = REGISTRY.gauge(
    "sardonyx_certificate_ends_timestamp_seconds",
    "Until when the certificate is valid that a setting names, with which the process logs in, in seconds since 1970. The extra "
    "`signed` brings the library that reads it.",
    ["setting"],
    most=3,
)
LINES = REGISTRY.counter("sardonyx_log_lines_total", "Lines that the daemon logged, by level.", ["level"], most=6)
