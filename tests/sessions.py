"""Ends a process's session with ZooKeeper from outside, as its expiry would."""

from __future__ import annotations

from kazoo.client import KazooClient


def end_session(hosts: str, client_id: tuple[int, bytes]) -> None:
    """Any client with a session's id and password may close it. Asked again until it is gone: its owner, whose connection that
    takes away, may come back before the closing arrives, which takes away ours.
    """
    while True:
        double = KazooClient(hosts=hosts, client_id=client_id)
        double.start(15)
        now = double.client_id  # another one, where ours has ended; none, if we are being thrown out
        double.stop()
        double.close()
        if now is not None and now[0] != client_id[0]:
            return
