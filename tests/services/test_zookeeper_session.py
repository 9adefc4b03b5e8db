"""The tree on a real ZooKeeper: each trap of kazoo that it closes, and each error that it turns into one of ours."""

from __future__ import annotations

import base64
import hashlib
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.protocol.serialization import CheckVersion, MultiHeader, SetData
from kazoo.protocol.serialization import Create as CreateNode
from kazoo.protocol.serialization import Delete as DeleteNode
from kazoo.protocol.serialization import Transaction as KazooTransaction

from sardonyx.core import node_paths
from sardonyx.core.effects import Create, Delete, Set
from sardonyx.core.errors import InternalError, SardonyxError, SetupError
from sardonyx.core.events import Evicted, JobSubmitted
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.zookeeper.bulk import Transaction
from sardonyx.zookeeper.errors import Deposed, OutcomeUnknown, SessionLost, TransactionFailed, ZooKeeperAway
from sardonyx.zookeeper.session import ZooKeeperSession
from sardonyx.zookeeper.transactions import Check, SetIf
from tests.proxy import Proxy
from tests.services.house import called
from tests.sessions import end_session
from tests.waiting import until


@pytest.fixture
def far_tree(settings: Settings, proxy: Proxy) -> Iterator[ZooKeeperSession]:
    """The same tree as ``zk``, by way of the proxy."""
    opened = ZooKeeperSession.connect(through(settings, proxy))
    yield opened
    opened.close()


def through(settings: Settings, proxy: Proxy, **zookeeper: object) -> Settings:
    return load_settings(
        deployment=settings.deployment, zookeeper={"hosts": proxy.address, "session_timeout": 6, **zookeeper}
    )


def test_top_nodes_stand_after_the_first_connection(zk: ZooKeeperSession) -> None:
    """The first process that connects makes the top nodes, and nothing else."""
    assert [f"/{name}" for name in zk.children("")] == sorted(node_paths.TOP)


def test_the_session_timeout_is_the_negotiated_one(settings: Settings) -> None:
    """Deadlines are made of what the server granted, not of what was asked for."""
    asked = load_settings(
        deployment=settings.deployment, zookeeper={"hosts": settings.zookeeper.hosts, "session_timeout": 0.5}
    )
    zk = ZooKeeperSession.connect(asked)
    try:
        assert zk.session_timeout > 0.5
    finally:
        zk.close()


def test_reading_what_is_not_there(zk: ZooKeeperSession) -> None:
    """A missing node is None, no children, or left out; never an error."""
    zk.create("/job/here", b"1")
    assert zk.read("/job/none") is None
    assert zk.children("/job/none") == []
    assert zk.read_many(["/job/none", "/job/here"]) == {"/job/here": b"1"}
    assert zk.children_of(["/job/none", "/job/here", "/job"]) == {"/job/here": [], "/job": ["here"]}
    zk.delete("/job/none")


@pytest.mark.parametrize("there", [True, False])
def test_a_watch_tells_of_a_node_that_appears_or_changes(zk: ZooKeeperSession, there: bool) -> None:
    """A watch fires once, also for a node that was not there when it was read."""
    changed = threading.Event()
    if there:
        zk.create("/job/a", b"1")
    zk.read("/job/a", watch=lambda _: changed.set())
    zk.commit([Set("/job/a", b"2") if there else Create("/job/a", b"2")])
    assert changed.wait(180)
    assert zk.read("/job/a") == b"2"


def test_create_says_whether_it_was_first(zk: ZooKeeperSession, settings: Settings) -> None:
    """The first of two creators hears True, the second False; ephemeral nodes vanish with their session, and are known as its own
    until then: the call that made one may have given up before it heard so.
    """
    other = ZooKeeperSession.connect(settings)
    assert zk.create("/pulse/p", b"tree", ephemeral=True)
    assert zk.create("/pulse/p", b"tree", ephemeral=True)
    assert zk.create("/job/x", b"tree")
    assert not zk.create("/job/x", b"tree")
    assert not other.create("/pulse/p", b"other", ephemeral=True)
    assert other.create("/pulse/q", b"other", ephemeral=True)
    other.close()
    assert zk.children("/pulse") == ["p"]


# Lost replies


def lose_reply(zk: ZooKeeperSession, proxy: Proxy, seen: object, act: object) -> object:
    """Run ``act``, whose reply is lost: the connection is cut once ``seen`` tells that the server has done it."""
    proxy.lose_replies()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(act)
        until(seen, what="the write to be done on the server")
        proxy.cut()
        return running.result(30)


def test_a_request_that_never_arrived_is_sent_again(
    zk: ZooKeeperSession, far_tree: ZooKeeperSession, proxy: Proxy
) -> None:
    """A request that is asked for while the connection is down arrives when it is back."""
    proxy.refuse()
    until(lambda: not far_tree.connected, what="the connection to be seen as down")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(far_tree.request, Evicted(peer="p"))
        proxy.accept_again()
        running.result(30)
    assert len(zk.children(node_paths.INBOX)) == 1


@pytest.mark.parametrize("ephemeral", [True, False])
def test_create_knows_its_own_node_after_a_lost_reply(
    zk: ZooKeeperSession, far_tree: ZooKeeperSession, proxy: Proxy, ephemeral: bool
) -> None:
    """A create that was done, and only its reply lost, returns True, not that another client was first."""
    made = lose_reply(
        far_tree,
        proxy,
        lambda: zk.read("/pulse/p") is not None,
        lambda: far_tree.create("/pulse/p", b"mine", ephemeral=ephemeral),
    )
    assert made is True


def test_a_commit_whose_reply_is_lost_is_of_unknown_outcome(
    zk: ZooKeeperSession, far_tree: ZooKeeperSession, proxy: Proxy
) -> None:
    """A transaction is never sent a second time: its writer gets the error that it may have been done."""
    with pytest.raises(OutcomeUnknown) as caught:
        lose_reply(
            far_tree, proxy, lambda: zk.read("/job/x") is not None, lambda: far_tree.commit([Create("/job/x", b"1")])
        )
    assert caught.value.code == "SX-ZOOKEEPER-OUTCOME-UNKNOWN"


def test_a_request_gives_up_when_zookeeper_stays_away(settings: Settings, proxy: Proxy) -> None:
    """Past the deadline there is a clear error that names the address, not an endless wait."""
    far_tree = ZooKeeperSession.connect(through(settings, proxy))
    far_tree.patience = 1.0
    proxy.refuse()
    until(lambda: not far_tree.connected, what="the connection to be seen as down")
    with pytest.raises(ZooKeeperAway, match=proxy.address) as caught:
        far_tree.request(Evicted(peer="p"))
    assert caught.value.code == "SX-ZOOKEEPER-AWAY"
    far_tree.close()


# The end of a session


def test_an_owner_learns_that_its_session_ended(zk: ZooKeeperSession) -> None:
    """After an expired session every call raises; nothing goes on silently in a new one."""
    end_session(zk.hosts, zk.client.client_id)
    until(lambda: not zk.connected, what="the session to be lost")
    for act in (
        lambda: zk.read("/epoch"),
        lambda: zk.request(Evicted(peer="p")),
        lambda: zk.commit([Delete("/x")]),
    ):
        with pytest.raises(SessionLost) as caught:
            act()
        assert caught.value.code == "SX-ZOOKEEPER-SESSION-LOST"


def test_a_client_goes_on_after_its_session_ended(settings: Settings) -> None:
    """Who owns nothing does not have to notice."""
    lost = threading.Event()
    zk = ZooKeeperSession.connect(
        settings, survive_expiry=True, listener=lambda state: lost.set() if state == "LOST" else None
    )
    end_session(zk.hosts, zk.client.client_id)
    assert lost.wait(180)
    zk.request(Evicted(peer="p"))
    assert len(zk.children(node_paths.INBOX)) == 1
    zk.close()


# Transactions


def test_a_transaction_is_all_or_nothing(zk: ZooKeeperSession) -> None:
    """One refused operation refuses all, and the error names it."""
    with pytest.raises(TransactionFailed, match=r"Delete /job/none: NoNodeError") as caught:
        zk.commit([Create("/job/a", b"1"), Delete("/job/none"), Create("/job/b", b"1")])
    assert caught.value.operation == Delete("/job/none")
    assert zk.children("/job") == []


@pytest.mark.parametrize(
    "operation",
    [Create("/epoch"), Set("/job/none", b""), Check("/job/none"), Check("/epoch", 7), SetIf("/epoch", b"", 7)],
)
def test_every_refused_operation_raises(zk: ZooKeeperSession, operation: object) -> None:
    """No result of a transaction is passed over, whatever the operation."""
    with pytest.raises(TransactionFailed) as caught:
        zk.commit([operation])
    assert caught.value.operation == operation


def test_answers_to_many_operations_are_read_as_kazoo_reads_them(rng: random.Random) -> None:
    """In any order, rows of the same kind among them; what a node's numbers look like does not matter."""
    like_an_answer = MultiHeader(SetData.type, False, 0).serialize()
    answers = [
        MultiHeader(CreateNode.type, False, 0).serialize() + b"\0\0\0\2/a",
        MultiHeader(DeleteNode.type, False, 0).serialize(),
        like_an_answer + (8 * like_an_answer)[:68],
        MultiHeader(SetData.type, False, 0).serialize() + bytes(67) + b"\x02",
        MultiHeader(CheckVersion.type, False, 0).serialize(),
        MultiHeader(-1, False, -101).serialize() + (-101).to_bytes(4, "big", signed=True),
    ]
    for _ in range(500):
        rows = (rng.choice(answers) * rng.randint(1, 5) for _ in range(rng.randint(0, 12)))
        data = b"xx" + b"".join(rows) + MultiHeader(-1, True, -1).serialize()
        ours, theirs = Transaction.deserialize(data, 2), KazooTransaction.deserialize(data, 2)
        assert [type(answer) for answer in ours] == [
            type(answer) if isinstance(answer, Exception) else bool for answer in theirs
        ]


def test_a_deposed_leader_cannot_write(zk: ZooKeeperSession) -> None:
    """With the version of an earlier epoch nothing of a transaction is done."""
    zk.commit([Set("/checkpoint", b"1")], epoch_version=0)
    zk.commit([SetIf("/epoch", b"next", 0)])
    with pytest.raises(Deposed):
        zk.commit([Set("/checkpoint", b"2"), Create("/job/a")], epoch_version=0)
    assert zk.read("/checkpoint") == b"1"
    zk.commit([Set("/checkpoint", b"2")], epoch_version=1)


def test_what_is_too_large_is_refused_before_it_is_sent(zk: ZooKeeperSession) -> None:
    """ZooKeeper would drop the connection; we say what is too large instead, and the session lives on."""
    many = [TaskSpec(name=f"t{n}", type="function", doc="x" * 1000) for n in range(70)]
    with pytest.raises(SardonyxError, match="65,536 is the most") as caught:
        zk.request(JobSubmitted(job="j", spec=JobSpec(name="j", workflow=[], catalog=many)))
    assert caught.value.code == "SX-REQUEST-TOO-LARGE"
    for act in (
        lambda: zk.commit([Create(f"/job/{n}", b"x" * 500_000) for n in range(2)]),
        lambda: zk.create("/code/a", b"x" * 1_000_000),
    ):
        with pytest.raises(InternalError):
            act()
    assert zk.connected


# Connecting


def test_an_address_that_is_none(settings: Settings) -> None:
    """A port that is no number is the user's error, said as one."""
    with pytest.raises(SetupError) as caught:
        ZooKeeperSession.connect(load_settings(zookeeper={"hosts": "localhost:zookeeper"}))
    assert caught.value.code == "SX-ZOOKEEPER-ADDRESS"


def test_a_chroot_in_the_address(settings: Settings) -> None:
    """A path behind the address is made if its parent stands; if not, the error says which path is missing."""
    below = f"{settings.zookeeper.hosts}/chroot-{settings.deployment}"
    with pytest.raises(SetupError) as caught:
        ZooKeeperSession.connect(load_settings(deployment="d", zookeeper={"hosts": f"{below}/deeper"}))
    assert caught.value.code == "SX-ZOOKEEPER-CHROOT"
    zk = ZooKeeperSession.connect(load_settings(deployment="d", zookeeper={"hosts": below}))
    zk.request(Evicted(peer="p"))
    assert len(zk.children(node_paths.INBOX)) == 1
    zk.close()


def test_with_credentials_the_tree_is_its_creators_only(settings: Settings) -> None:
    """A deployment made with credentials cannot be read, asked or written without them."""
    chroot = ZooKeeperSession.connect(
        settings
    )  # a place of its own: with credentials even /sardonyx belongs to its creator
    chroot.client.create(f"/closed-{settings.deployment}")
    chroot.close()
    hosts = f"{settings.zookeeper.hosts}/closed-{settings.deployment}"
    key = {"digest": f"{settings.deployment}:secret"}
    owner = ZooKeeperSession.connect(load_settings(deployment="d", zookeeper={"hosts": hosts, "auth": key}))
    owner.request(Evicted(peer="p"))
    owner.commit([Set("/checkpoint", b"1"), Create("/job/x", b"1")], epoch_version=0)
    assert len(owner.children(node_paths.INBOX)) == 1
    with pytest.raises(SetupError) as caught:
        ZooKeeperSession.connect(load_settings(deployment="d", zookeeper={"hosts": hosts}))
    assert caught.value.code == "SX-ZOOKEEPER-DENIED"
    owner.close()


def test_a_deployment_goes_over_to_a_new_password(settings: Settings) -> None:
    """As docs/security.md says: the old identity hands each node over to the new one, and then has no right to any."""
    chroot = ZooKeeperSession.connect(settings)
    chroot.client.create(f"/turned-{settings.deployment}")
    chroot.close()
    place = {"deployment": "d", "zookeeper.hosts": f"{settings.zookeeper.hosts}/turned-{settings.deployment}"}
    old, new = ({**place, "zookeeper.auth.digest": f"me:{password}"} for password in ("one", "two"))
    owner = ZooKeeperSession.connect(load_settings(**old))
    owner.commit([Create("/job/x", b"1")], epoch_version=0)
    owner.close()
    identity = f"digest:me:{base64.b64encode(hashlib.sha1(b'me:two').digest()).decode()}"  # noqa: S324 - ZooKeeper's own
    handed = called("acl", "apply", env=load_settings(**old, **{"zookeeper.acl.coordinator": identity}).environment())
    assert handed.exit_code == 0, handed.stderr
    heir = ZooKeeperSession.connect(load_settings(**new))
    heir.commit([Set("/checkpoint", b"1"), Create("/job/y", b"1")], epoch_version=0)
    assert heir.children(node_paths.JOB) == ["x", "y"]
    heir.close()
    with pytest.raises(SetupError) as caught:
        ZooKeeperSession.connect(load_settings(**old))
    assert caught.value.code == "SX-ZOOKEEPER-DENIED"
