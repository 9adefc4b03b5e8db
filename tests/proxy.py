"""A small TCP proxy that drops and delays data and cuts connections, for tests of what happens then."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Sequence


class Proxy:
    """Stands in front of ``host:port`` on a free loopback port; :attr:`address` is where clients connect to.

    Args:
        target: ``host:port``; empty until :meth:`lead_to` says it, connections are refused till then.
    """

    def __init__(self, target: str = "") -> None:
        self._target = ("", 0)
        if target:
            self.lead_to(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname()[:2])
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._lose_replies = False
        self._lose_requests = False
        self._refuse = False
        self.delay = 0.0
        """Seconds by which data arrives later."""
        self._until = b""
        """What a request holds from which on replies are lost; nothing: none does."""
        self._ends = b""
        """What a request holds whose connection ends with it; nothing: none does."""
        self._cuts = 0
        """A connection of before the last one is over, whatever still stands in it."""
        self.lost = 0
        """Bytes that were lost so far."""
        self._relays: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def lead_to(self, target: str) -> None:
        """From now on new connections go there; of several servers, to the first."""
        host, _, port = target.split(",", maxsplit=1)[0].rpartition(":")
        self._target = host, int(port)

    def lose_requests(self) -> None:
        """From now on what the clients say does not arrive, on new connections neither; what the server says still does."""
        self._lose_requests = True

    def lose_replies(self) -> None:
        """From now on what the server says does not arrive; what the clients say still does."""
        self._lose_replies = True

    def lose_replies_to(self, request: bytes) -> None:
        """As :meth:`lose_replies`, from the first request on that holds these bytes: it arrives, its reply does not."""
        self._until = request

    def end_with(self, request: bytes) -> None:
        """With the first request that holds these bytes, which does not arrive, its connection ends; new ones end at once."""
        self._ends = request

    @property
    def refuses(self) -> bool:
        """Whether new connections are ended at once."""
        return self._refuse

    def cut(self) -> None:
        """End all connections. New ones work, both ways and at once."""
        self._cuts += 1  # before replies come through again, or one of those that are to be lost still might
        self._until = b""
        self._lose_replies = self._lose_requests = False
        self.delay = 0.0
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def refuse(self) -> None:
        """End all connections, and every new one at once, until :meth:`accept_again`."""
        self._refuse = True
        self.cut()

    def accept_again(self) -> None:
        """Undo :meth:`refuse` and :meth:`end_with`."""
        self._ends = b""
        self._refuse = False

    def close(self) -> None:
        """End everything."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        self.cut()
        for thread in self._relays:
            thread.join()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                if self._refuse:
                    raise ConnectionRefusedError
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open |= {client, server}
                cuts = self._cuts
            relay = threading.Thread(target=self._relay, args=(client, server, cuts), daemon=True)
            self._relays = [each for each in self._relays if each.is_alive()] + [relay]
            relay.start()

    def _relay(self, client: socket.socket, server: socket.socket, cuts: int) -> None:
        # A selector, since `select` takes no descriptor above 1,023, and a run of faults has more.
        with client, server, selectors.DefaultSelector() as ready, contextlib.suppress(OSError):
            for end in (client, server):
                ready.register(end, selectors.EVENT_READ)
            while True:
                for source in [key.fileobj for key, _ in ready.select()]:
                    assert isinstance(source, socket.socket)
                    data = source.recv(65536)
                    if not data:
                        raise ConnectionResetError
                    if source is client and self._until and self._until in data:
                        self._lose_replies = True
                    if source is client and self._ends and self._ends in data:
                        self._refuse = True
                        raise ConnectionResetError
                    if self.delay:
                        time.sleep(self.delay)  # the fault itself: a slow network
                    is_lost = self._lose_replies if source is server else self._lose_requests
                    if cuts != self._cuts:
                        raise ConnectionResetError
                    if is_lost:
                        self.lost += len(data)
                    else:
                        (client if source is server else server).sendall(data)
        with self._lock:
            self._open -= {client, server}


class Proxies:
    """Proxies of one client, one in front of each server of a cluster. What is done to them is done to all.

    Args:
        targets: ``host:port`` of each server; empty until :meth:`lead_to` says it.
    """

    def __init__(self, targets: Sequence[str]) -> None:
        self._proxies = [Proxy(target) for target in targets]

    @property
    def addresses(self) -> list[str]:
        return [proxy.address for proxy in self._proxies]

    def lead_to(self, targets: Sequence[str]) -> None:
        for proxy, target in zip(self._proxies, targets, strict=True):
            proxy.lead_to(target)

    def refuse(self) -> None:
        for proxy in self._proxies:
            proxy.refuse()

    def delay(self, seconds: float) -> None:
        for proxy in self._proxies:
            proxy.delay = seconds

    def lose_replies(self) -> None:
        for proxy in self._proxies:
            proxy.lose_replies()

    def lose_requests(self) -> None:
        for proxy in self._proxies:
            proxy.lose_requests()

    def restore(self) -> None:
        """End all connections; new ones work."""
        for proxy in self._proxies:
            proxy.accept_again()
            proxy.cut()

    def __enter__(self) -> Proxies:
        return self

    def __exit__(self, *exc: object) -> None:
        for proxy in self._proxies:
            proxy.close()
