"""Ends a process's session with ZooKeeper from outside, as its expiry would."""

from __future__ import annotations

import contextlib

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from sardonyx.runtime.settings import load_settings


def end_session(hosts: str, client_id: tuple[int, bytes]) -> None:
    """Any client with a session's id and password may close it. Asked again until it is gone: its owner, whose connection that
    takes away, may come back before the closing arrives, which takes away ours.
    """
    while True:
        double = KazooClient(client_id=client_id, **load_settings(zookeeper={"hosts": hosts}).zookeeper.client())
        now = None
        with contextlib.suppress(KazooTimeoutError):  # the machine has other things to do
            double.start(15)
            now = double.client_id  # another one, where ours has ended; none, if we are being thrown out
        double.stop()
        double.close()
        if now is not None and now[0] != client_id[0]:
            return


def password_of(session: int) -> bytes:
    """The password that ZooKeeper gave a session: what Java's generator makes of the id and a constant of its server."""
    mask, state = (1 << 48) - 1, session ^ 0xB3415C00
    state = (state ^ 0x5DEECE66D) & mask
    password = b""
    while len(password) < 16:
        state = (state * 0x5DEECE66D + 0xB) & mask
        password += (state >> 16).to_bytes(4, "little")
    return password
