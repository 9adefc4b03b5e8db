"""What the pages tell of themselves: how many look at them, and whether what they show is up to date."""

from __future__ import annotations

from sardonyx.runtime.metrics import REGISTRY

STREAMS = REGISTRY.gauge(
    "sardonyx_web_streams", "Open streams of events: pages that follow changes, and others.", most=1
)
SHOWN = REGISTRY.gauge("sardonyx_web_log_last", "The last entry of the coordinator's log that the pages show.", most=1)
READ_AT = REGISTRY.gauge(
    "sardonyx_web_log_read_timestamp_seconds",
    "When the pages last read the coordinator's log to its end, in seconds since 1970. They do every few seconds.",
    most=1,
)
