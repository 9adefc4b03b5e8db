"""Durations and sizes as people write them: "10 s", "64 MiB". Pure."""

from __future__ import annotations

import re

_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "day": 86400.0, "days": 86400.0}
_BYTES = {
    "B": 1,
    "kB": 1000,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
}
_AGO = re.compile(r"(.*\S)\s+ago\s*")
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def seconds(text: str | float) -> float:
    """A duration in seconds from "250 ms", "10 s", "5 min", "2 h", "7 days" or a bare number of seconds.

    Raises ``ValueError`` that lists the valid units.
    """
    return _quantity(text, _SECONDS, "s", 'a duration such as "250 ms" or "10 s"')


def ago(text: str) -> float | None:
    """The seconds of a text such as "10 min ago" or "2 h ago"; None if it is no such text."""
    match = _AGO.fullmatch(text)
    try:
        return seconds(match[1]) if match and not match[1].strip().isdecimal() else None
    except ValueError:
        return None


def written(seconds: float) -> str:
    """A duration in seconds, written so that :func:`seconds` can read it: "250 ms", "8 s", "5 min"."""
    if 0 < seconds < 1:
        return f"{round(seconds * 1000, 9):.15g} ms"
    for unit in ("h", "min"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.15g} {unit}"
    return f"{seconds:.15g} s"


def size(text: str | int) -> int:
    """A size in bytes from "900 KB", "64 MiB" or a bare number of bytes.

    Raises ``ValueError`` that lists the valid units.
    """
    return int(_quantity(text, _BYTES, "B", 'a size such as "900 KB" or "64 MiB"'))


def _quantity(text: str | float, units: dict[str, float] | dict[str, int], bare: str, wanted: str) -> float:
    match = _QUANTITY.fullmatch(str(text))
    unit = (match[2] or bare) if match else ""
    if match is None or unit not in units:
        raise ValueError(f"{text!r} is not {wanted}; units are {', '.join(units)}")
    return float(match[1]) * units[unit]


def bytes_text(count: float) -> str:
    """A size as people read it: 512 B, 1.4 KiB, 64 MiB."""
    units = ["B", "KiB", "MiB", "GiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        del units[0]
    return f"{count:,.0f} {units[0]}" if units[0] == "B" or count >= 10 else f"{count:.1f} {units[0]}"


def duration(seconds: float) -> str:
    """A duration as people read it: 0.4 s, 12 s, 3 min 5 s, 2 h 10 min, 4 d 2 h."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes_left = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min {rest} s"
    days, hours_left = divmod(hours, 24)
    return f"{days} d {hours_left} h" if days else f"{hours} h {minutes_left} min"
