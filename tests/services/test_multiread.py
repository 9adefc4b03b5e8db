"""Many nodes in one request, on a real ZooKeeper: what comes back, how it is cut, and what happens when it goes wrong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.exceptions import ConnectionClosedError, NoAuthError, NoNodeError
from kazoo.security import make_digest_acl

from sardonyx.core.effects import Create
from sardonyx.core.errors import SetupError
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.zookeeper import multiread
from sardonyx.zookeeper.errors import SessionLost
from sardonyx.zookeeper.multiread import Chunks, MultiRead
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.proxy import Proxy
from tests.waiting import until


def far(settings: Settings, proxy: Proxy, **zookeeper: object) -> ZooKeeperSession:
    """The same tree by way of the proxy."""
    given = {"hosts": proxy.address, "session_timeout": 6, **zookeeper}
    return ZooKeeperSession.connect(load_settings(deployment=settings.deployment, zookeeper=given))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many nodes each request asked for."""
    counts: list[int] = []
    serialize = MultiRead.serialize

    def noting(request: MultiRead) -> bytes:
        counts.append(len(request._paths))
        return serialize(request)

    monkeypatch.setattr(MultiRead, "serialize", noting)
    return counts


def fill(zk: ZooKeeperSession, count: int, size: int = 100) -> dict[str, bytes]:
    """So many nodes, each with data of its own."""
    nodes = {f"/job/{n}": (b"%d" % n).ljust(size, b".") for n in range(count)}
    most = max(1, min(500, 500_000 // (size + 100)))
    paths = list(nodes)
    for at in range(0, count, most):
        zk.commit([Create(path, nodes[path]) for path in paths[at : at + most]])
    return nodes


# What comes back


def test_one_request_answers_for_each_node(zk: ZooKeeperSession) -> None:
    """Data, no data, no node, in the order that was asked for, and the same node as often as it was asked for."""
    zk.commit([Create("/job/a", b"one"), Create("/job/b", b""), Create("/job/c", bytes(range(256)))])
    asked_for = ["/job/a", "/job/none", "/job/c", "/job/b", "/job/a", "/none/at/all"]
    answers = zk.client.get_many_async([zk.path(path) for path in asked_for]).get(10)
    assert [answer if isinstance(answer, bytes) else type(answer) for answer in answers] == [
        b"one",
        NoNodeError,
        bytes(range(256)),
        b"",
        b"one",
        NoNodeError,
    ]
    assert zk.read_many(asked_for) == {"/job/a": b"one", "/job/b": b"", "/job/c": bytes(range(256))}


def test_one_request_answers_with_names(zk: ZooKeeperSession) -> None:
    """Of children, none, or no node; of as many nodes as one likes, from an old server too."""
    zk.commit([Create(path) for path in ("/job/a", "/job/a/größe", "/job/a/x", "/job/b", "/job/b/y", "/job/c")])
    asked_for = ["/job/a", "/job/none", "/job/c", "/job/b"]
    answers = zk.client.get_many_async([zk.path(path) for path in asked_for], names=True).get(10)
    assert [sorted(answer) if isinstance(answer, list) else type(answer) for answer in answers] == [
        ["größe", "x"],
        NoNodeError,
        [],
        ["y"],
    ]
    found = {"/job/a": ["größe", "x"], "/job/c": [], "/job/b": ["y"]}
    assert zk.children_of(asked_for) == found
    assert zk.children_of(asked_for * 500) == found
    assert zk.children_of([]) == {}


def test_nothing_is_asked_for_nothing(zk: ZooKeeperSession, asked: list[int]) -> None:
    """No request for no node; one that is sent all the same is answered."""
    assert zk.read_many([]) == {}
    assert asked == []
    assert zk.client.get_many_async([]).get(10) == []


def test_names_in_other_alphabets(zk: ZooKeeperSession) -> None:
    """A path is sent as UTF-8, its length in bytes."""
    nodes = {"/job/größe": b"1", "/job/名前": b"2"}
    zk.commit([Create(path, data) for path, data in nodes.items()])
    assert zk.read_many(nodes) == nodes


@pytest.mark.parametrize("count", [1, 63, 64, 65, 5000])
def test_many_nodes(zk: ZooKeeperSession, count: int, asked: list[int]) -> None:
    """All come back, in requests that grow; one that is missing takes nothing with it."""
    nodes = fill(zk, count)
    assert zk.read_many([*nodes, "/job/none"]) == nodes
    assert max(asked) <= multiread.MOST_COUNT
    assert len(asked) <= 3 + count // multiread.MOST_COUNT + 1


def test_large_nodes_come_in_small_requests(zk: ZooKeeperSession, asked: list[int]) -> None:
    """25 MB of them: behind the first one no answer is much larger than it should be."""
    nodes = fill(zk, 84, 300_000)
    assert zk.read_many(nodes) == nodes
    assert max(asked[1:]) == multiread.ANSWER_LIMIT // 300_000
    for path in nodes:
        zk.delete(path)  # ZooKeeper keeps all in memory


def test_small_nodes_and_then_large_ones() -> None:
    """What the next request may ask for follows from the last answer: it grows slowly and falls at once."""
    chunks = Chunks([f"/{n}" for n in range(5000)], prefix=0)
    sizes = []
    for chunk in chunks:
        sizes.append(len(chunk))
        chunks.answered([b"x" * (10 if len(sizes) < 4 else 60_000)] * len(chunk))
    assert sizes[:6] == [64, 512, 1024, 1024, 17, 17]
    assert sum(sizes) == 5000


def test_long_paths_are_cut_by_their_bytes() -> None:
    """No request is over the limit, unless a single path is."""
    paths = [f"/{'ä' * 10_000}{n}" for n in range(100)] + ["/" + "x" * multiread.REQUEST_LIMIT] * 2
    chunks = Chunks(paths, prefix=30)
    found = []
    for chunk in chunks:
        assert len(chunk) == 1 or len(MultiRead(chunk).serialize()) <= multiread.REQUEST_LIMIT
        chunks.answered([b""] * len(chunk))
        found += chunk
    assert found == paths


def test_in_a_chroot(settings: Settings) -> None:
    """Paths are relative to the path in the address, as everywhere."""
    hosts = f"{settings.zookeeper.hosts}/chroot-{settings.deployment}"
    zk = ZooKeeperSession.connect(load_settings(deployment="d", zookeeper={"hosts": hosts}))
    nodes = fill(zk, 100)
    assert zk.read_many([*nodes, "/job/none"]) == nodes
    zk.close()


def test_what_may_not_be_read_is_told(zk: ZooKeeperSession) -> None:
    """A node that belongs to others is an error that says so, not one that is left out."""
    fill(zk, 3)
    zk.client.create(zk.path("/job/theirs"), b"", acl=[make_digest_acl("other", "secret", all=True)])
    found = zk.client.get_many_async([zk.path("/job/1"), zk.path("/job/theirs")]).get(10)
    assert isinstance(found[1], NoAuthError)
    with pytest.raises(SetupError) as caught:
        zk.read_many(["/job/1", "/job/theirs", "/job/2"])
    assert caught.value.code == "SX-ZOOKEEPER-DENIED"


# When it goes wrong


def test_a_lost_answer_is_asked_for_again(zk: ZooKeeperSession, settings: Settings, proxy: Proxy) -> None:
    """The connection breaks in the middle of the answers: all are there in the end."""
    nodes = fill(zk, 3000)
    far_tree = far(settings, proxy)
    proxy.lose_replies()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(far_tree.read_many, nodes)
        until(lambda: proxy.lost > 0, what="an answer to be lost")
        proxy.cut()
        assert running.result(30) == nodes
    far_tree.close()


def test_after_the_session_nothing_is_read(zk: ZooKeeperSession) -> None:
    """It says that the session ended."""
    zk.close()
    with pytest.raises(ConnectionClosedError):
        zk.client.get_many_async([zk.path("/job")]).get(10)
    with pytest.raises(SessionLost):
        zk.read_many(["/job"])


def test_a_server_that_does_not_know_it(
    zk: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch, asked: list[int]
) -> None:
    """It answers so and closes the connection, as it does on any number it does not know; then nodes are read one by one."""
    nodes = fill(zk, 1500)
    monkeypatch.setattr(MultiRead, "type", 77)
    for _ in range(2):
        assert zk.read_many([*nodes, "/job/none"]) == nodes
        assert zk.children_of(["/job", "/job/1", "/job/none"]) == {
            "/job": sorted(path.removeprefix("/job/") for path in nodes),
            "/job/1": [],
        }
    assert len(asked) == 1
    assert zk.connected
