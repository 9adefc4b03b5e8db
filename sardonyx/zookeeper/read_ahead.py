"""Reads of many nodes: many to a request, with further requests under way while the caller works on an answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from kazoo.exceptions import NoAuthError, NoNodeError, UnimplementedError

from sardonyx.zookeeper.connection import Connection
from sardonyx.zookeeper.multiread import Chunks

WINDOW = 200
"""Reads in flight where each needs a request of its own. For each, kazoo writes a byte to a socket that holds a few hundred; it
blocks without a timeout when the socket is full and there is no connection.
"""

READ_AHEAD = 4
"""Requests for many nodes in flight while the caller works on an answer. ZooKeeper answers each only after the session's earlier
writes."""


def portions(
    zk: Connection, paths: Sequence[str], most: int, each: Callable[[str], Any], *, names: bool
) -> Iterator[tuple[Sequence[str], dict[str, Any]]]:
    """Read many nodes in portions: the paths of each, and the data of those that exist (or the names of their children).

    The first portion is empty and comes as soon as the first request has been sent.

    Args:
        zk: the session.
        paths: below the deployment's root.
        most: nodes in a portion at most.
        each: sends a request for one node, for a server before 3.6, which takes no requests for many.
        names: read the names of children in place of data.
    """
    done = 0
    if zk.many_at_once:
        try:
            for chunk, found in _in_chunks(zk, Chunks(paths, prefix=len(zk.root), most=most), names=names):
                done += len(chunk)
                yield chunk, found
        except UnimplementedError:
            zk.many_at_once = False
    else:
        yield (), {}
    for at in range(done, len(paths), WINDOW):
        window = paths[at : at + WINDOW]
        answers = _each(zk, window, each)
        yield window, {path: answer if names else bytes(answer[0]) for path, answer in answers}


def _in_chunks(zk: Connection, chunks: Chunks, *, names: bool) -> Iterator[tuple[Sequence[str], dict[str, Any]]]:
    """One request for each chunk. The next requests are sent before an answer is handed out."""

    def sent(chunk: Sequence[str]) -> Callable[[], Any]:
        return partial(zk.client.get_many_async, [zk.root + path for path in chunk], names=names)

    waiting = iter(chunks)
    under_way: deque[tuple[Sequence[str], Callable[[], Any], tuple[Any, float]]] = deque()

    def send(most: int) -> None:
        for chunk in islice(waiting, most):
            call, since = sent(chunk), zk.runtime.now()
            under_way.append((chunk, call, (call(), since)))

    send(1)
    yield (), {}
    while under_way:
        chunk, call, first = under_way.popleft()
        answers = zk.call(call, first=first)
        found: dict[str, Any] = {}
        for path, answer in zip(chunk, answers, strict=True):
            if isinstance(answer, bytes | list):
                found[path] = answer
            elif not isinstance(answer, NoNodeError):
                if isinstance(answer, NoAuthError):
                    raise zk.denied("list the children of" if names else "read", path) from answer
                raise zk.translated(answer) from answer
        chunks.answered(answers)
        ahead = READ_AHEAD if len(chunk) >= chunks.count else 1  # not while we still learn how many fit
        send(max(ahead - len(under_way), 0))
        yield chunk, found


def _each(zk: Connection, paths: Sequence[str], call: Callable[[str], Any]) -> Iterator[tuple[str, Any]]:
    """The answers about the nodes that exist: one request for each node, all sent before the first answer is awaited."""
    sent = zk.runtime.now()
    for path, answer in [(path, call(path)) for path in paths]:
        try:
            found = zk.call(partial(call, path), first=(answer, sent))
        except NoNodeError:
            continue
        yield path, found
