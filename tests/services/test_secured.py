"""Secured services: who may log in, what each may do, and the error of each right that is missing."""

from __future__ import annotations

import contextlib
import gc
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from kazoo.security import OPEN_ACL_UNSAFE

from queues import admin, guarded_producer, topic_log, topics
from queues.connectivity import reach_kafka
from queues.kafka_release import LOSES_ENDS, metadata_version
from queues.transaction import TransactionalWriter
from sardonyx.core import node_paths
from sardonyx.core.effects import Set
from sardonyx.core.errors import InputError, SardonyxError, SetupError
from sardonyx.core.kafka_rights import ROLES, Role, rights
from sardonyx.core.positions import Partition
from sardonyx.core.zk_rights import ALL, RIGHTS
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.zookeeper import connectivity
from sardonyx.zookeeper.bulk import BulkClient
from sardonyx.zookeeper.connectivity import reach_zookeeper
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.services.house import called
from tests.services.one_task import JOB, Task
from tests.services.roles import Roles, error_of, right
from tests.services.secured import Authority, Grants, SecuredServices
from tests.waiting import until

WITHIN = {"zookeeper.connect_timeout": 2, "kafka.connect_timeout": 2}


pytestmark = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
"""kazoo drops the socket whose handshake fails, and leaves it to the garbage collector to close it."""


@pytest.fixture(autouse=True)
def sockets_collected() -> Iterator[None]:
    """Close what kazoo has dropped, while its warning is ignored."""
    yield
    gc.collect()


def connected(settings: Settings, **options: Any) -> list[str]:
    """Open a session and list the deployment's top nodes."""
    with_session = ZooKeeperSession.connect(settings, **options)
    try:
        return with_session.children("")
    finally:
        with_session.close()


# --- who is there ---------------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_a_user_of_zookeeper_owns_what_it_creates(secured: SecuredServices, deployment: str):
    """After a login by SASL over TLS, no other user reads or writes the deployment's nodes, and the error says what was tried."""
    mine = secured.settings("coordinator", deployment=deployment)
    assert "inbox" in connected(mine)
    error = error_of(lambda: connected(secured.settings("stranger", deployment=deployment)))
    assert error.code == "SX-ZOOKEEPER-DENIED"
    assert error.where["principal"] == "sasl:stranger"
    assert error.where["operation"] == "list the children of"
    assert error.where["path"] == f"/sardonyx/{deployment}"


def test_a_wrong_password_is_denied(secured: SecuredServices, deployment: str):
    """Neither service says that it does not answer: both say who may not log in."""
    wrong = {"zookeeper.auth.sasl.password": "no", "kafka.sasl.password": "no", "deployment": deployment}
    settings = secured.settings("peer", **wrong)
    for call in (
        lambda: connected(settings),
        lambda: connected(settings, make_top=False, survive_expiry=True),
        lambda: reach_zookeeper(settings),
    ):
        error = error_of(call)
        assert (error.code, error.where["principal"]) == ("SX-ZOOKEEPER-DENIED", "sasl:peer")
    place = Partition("orders", 0)
    for call in (
        lambda: reach_kafka(settings),
        lambda: admin.topics(settings),
        lambda: topic_log.stable_end(settings, place),
    ):
        error = error_of(call)
        assert (error.code, error.where["principal"]) == ("SX-KAFKA-DENIED", "User:peer")
        assert "SCRAM-SHA-512" in error.cause


def test_a_login_by_sasl_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    """Before ZooKeeper is asked: kazoo would tell its own thread only."""
    monkeypatch.setattr(connectivity, "find_spec", lambda _: None)
    settings = load_settings(**{"zookeeper.hosts": "nowhere:1", "zookeeper.auth.sasl.mechanism": "DIGEST-MD5"})
    with pytest.raises(SetupError) as caught:
        ZooKeeperSession.connect(settings)
    assert caught.value.code == "SX-ZOOKEEPER-SASL"
    assert "sardonyx[sasl]" in caught.value.fix


def test_without_credentials_zookeeper_denies(secured: SecuredServices, deployment: str):
    """The error says that no credentials are set, also of a session that creates nothing."""
    settings = secured.settings(None, deployment=deployment)
    for call in (lambda: connected(settings), lambda: reach_zookeeper(settings)):
        error = error_of(call)
        assert error.code == "SX-ZOOKEEPER-DENIED"
        assert "zookeeper.auth is not set" in error.message


def test_a_certificate_for_another_host_is_refused(secured: SecuredServices):
    """The servers' certificate is for 127.0.0.1. Under another name they are not believed, and get no password."""
    ports = [address.rpartition(":")[2] for address in (secured.services.zookeeper, secured.services.kafka)]
    there = {"zookeeper.hosts": f"localhost:{ports[0]}", "kafka.bootstrap_servers": f"localhost:{ports[1]}"}
    settings = secured.settings("peer", **there, **WITHIN)
    for call in (lambda: connected(settings), lambda: reach_zookeeper(settings), lambda: reach_kafka(settings)):
        error = error_of(call)
        assert error.code in ("SX-ZOOKEEPER-UNREACHABLE", "SX-KAFKA-UNREACHABLE")
        assert "certificate" in error.cause
    unchecked = secured.settings("peer", **there, **{"zookeeper.auth.verify": False})
    assert reach_zookeeper(unchecked) == ""


def test_a_certificate_of_another_authority_is_refused(secured: SecuredServices, tmp_path: Path):
    """Who signed the servers' certificate is checked."""
    other = str(Authority(tmp_path, "other").path)
    settings = secured.settings("peer", **{"zookeeper.auth.ca": other, "kafka.ssl.ca.location": other}, **WITHIN)
    for call in (lambda: connected(settings), lambda: reach_kafka(settings)):
        assert "certificate" in error_of(call).cause


def test_a_clients_certificate_is_an_identity(secured: SecuredServices, deployment: str):
    """With a certificate in place of a password a client owns its nodes, too."""
    # The parent belongs to the first user of this ZooKeeper, so the deployment has a path of its own.
    hosts = secured.with_roles(deployment)["admin"].zookeeper.hosts

    def settings(name: str) -> Settings:
        pair = secured.authority.issue(name)
        own = {"zookeeper.auth.certificate": str(pair.certificate), "zookeeper.auth.key": str(pair.key)}
        return secured.settings(None, deployment=deployment, **own, **{"zookeeper.hosts": hosts})

    assert "inbox" in connected(settings("one"))
    error = error_of(lambda: connected(settings("another")))
    assert error.code == "SX-ZOOKEEPER-DENIED"
    assert "another.crt" in error.where["principal"]


def test_doctor_knows_the_release_of_a_broker_over_tls(secured: SecuredServices):
    """The broker tells it before any login."""
    level = metadata_version(secured.settings().kafka.client(), timeout=5)
    assert level is not None
    assert level < LOSES_ENDS


def test_answers_that_came_in_one_tls_record_are_all_read(tmp_path: Path):
    """When the first of them is read, the socket has no more bytes, but TLS has."""
    pair = Authority(tmp_path).issue("two", address="127.0.0.1")
    here, there = socket.socketpair()
    serves = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serves.load_cert_chain(pair.certificate, pair.key)
    asks = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asks.check_hostname, asks.verify_mode = False, ssl.CERT_NONE
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(serves.wrap_socket, there, server_side=True)
        client = asks.wrap_socket(here)
        server = accepted.result()
    with client, server:
        server.sendall(b"one.two.")
        assert client.recv(4) == b"one."
        assert BulkClient(hosts="127.0.0.1:1").handler.select([client], [], [], 0)[0] == [client]


# --- what each may do on ZooKeeper ----------------------------------------------------------------------------------

NODES = {path: path.replace("*", "some") for path in RIGHTS if path != "/restore"}
"""A node of each kind; those with stars are made by the test."""


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_do_with_each_node_what_the_table_says(secured: SecuredServices, deployment: str, role: Role):
    """Every right of the table works, and every other is denied with the operation and the path."""
    settings = secured.with_roles(deployment)
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(contextlib.closing(ZooKeeperSession.connect(settings["coordinator"])))
        for path in NODES.values():
            owner.create(path)
        mine = stack.enter_context(contextlib.closing(ZooKeeperSession.connect(settings[role], make_top=False)))
        for pattern, path in NODES.items():
            owner.create(f"{path}/old")
            whole, wrong = owner.path(path), []
            allowed = ALL if role == "coordinator" else getattr(RIGHTS[pattern], role)
            for letter, operation, call in (
                ("r", "read", lambda path=path: mine.read(path)),
                ("w", "write", lambda path=path: mine.commit([Set(path, b"")])),
                ("c", "create", lambda path=path: mine.create(f"{path}/new")),
                ("d", "delete", lambda path=path: mine.delete(f"{path}/old")),
            ):
                try:
                    call()
                    if letter not in allowed:
                        wrong.append(f"{operation} is allowed")
                except SardonyxError as error:
                    where = error.where
                    told = (
                        error.code,
                        where.get("principal"),
                        where.get("operation"),
                        where.get("path", "")[: len(whole)],
                    )
                    if letter in allowed or told != ("SX-ZOOKEEPER-DENIED", f"sasl:{role}", operation, whole):
                        wrong.append(f"{operation}: {error}")
            assert not wrong, path


def test_a_stranger_may_do_nothing(secured: SecuredServices, deployment: str):
    """Who has no role reads nothing."""
    settings = secured.with_roles(deployment)
    connected(settings["coordinator"])
    error = error_of(lambda: connected(settings["stranger"], make_top=False))
    assert (error.code, error.where["principal"]) == ("SX-ZOOKEEPER-DENIED", "sasl:stranger")


def test_acl_apply_closes_an_open_deployment(secured: SecuredServices, deployment: str):
    """`check` names every node that differs, `apply` sets them, and then none differs, for others may do what their role says."""
    settings = secured.with_roles(deployment)
    coordinator = settings["coordinator"]
    with contextlib.closing(ZooKeeperSession.connect(coordinator)) as zk:
        zk.create(f"{node_paths.JOB}/old")
        for path in ("", *node_paths.TOP, f"{node_paths.JOB}/old"):
            zk.client.set_acls(zk.path(path), OPEN_ACL_UNSAFE)
    checked = called("acl", "check", env=coordinator.environment())
    assert checked.exit_code == 1
    assert f"/sardonyx/{deployment}/job/old: world:anyone rwcda; should be sasl:client r, " in checked.stdout
    assert f"{len(node_paths.TOP) + 2} nodes differ" in checked.stdout
    assert called("acl", "apply", env=coordinator.environment()).exit_code == 0
    again = called("acl", "check", env=coordinator.environment())
    assert (again.exit_code, again.stdout.strip()) == (0, "0 nodes differ")
    assert error_of(lambda: connected(settings["stranger"], make_top=False)).code == "SX-ZOOKEEPER-DENIED"


# --- what each may do on Kafka --------------------------------------------------------------------------------------


@pytest.fixture
def roles(secured: SecuredServices, grants: Grants, deployment: str) -> Iterator[Roles]:
    """A task, and users with the rights of their roles."""
    made = Roles(secured, grants, deployment)
    yield made
    made.close()


@pytest.mark.gate
def test_each_role_can_do_its_work_with_its_rights(roles: Roles):
    """The rights of the table suffice: topics are made, a batch goes through, is looked at, and all is deleted."""
    roles.make()
    roles.batch()
    for user in ("client", "viewer"):
        assert admin.counts(roles.settings[user], roles.task.graph, JOB)["b"].rows_in == 9
    roles.task.close()
    with_fence = TransactionalWriter(
        roles.settings["coordinator"], roles.task.stage.transactional_id(roles.task.settings.deployment, JOB, 0)
    )
    with_fence.open()
    with_fence.close()
    settled = admin.last_commits(roles.settings["coordinator"], roles.task.graph, JOB)
    assert settled.counts["b"].rows_in == 9
    admin.delete_links(roles.settings["coordinator"], roles.task.graph, JOB)
    until(
        lambda: not [t for t in admin.topics(roles.settings["admin"]) if t.startswith(roles.task.settings.deployment)],
        what="the topics to be gone",
    )


_STATE = KafkaError._STATE


def test_a_transaction_that_fails_while_positions_are_sent_says_why(roles: Roles, monkeypatch: pytest.MonkeyPatch):
    """The client answers that call with "erroneous state" then. The error names the right all the same."""
    roles.make()
    lacking = right("topic", "Write", f"{roles.settings['peer'].deployment}.")
    roles.grants.take("peer", lacking)
    roles.grants.give("peer", [lacking._replace(operation="Describe")])
    send, states = guarded_producer._send_positions, []

    def failed_meanwhile(*arguments: Any) -> None:
        if not states:
            states.append(_STATE)
            until(lambda: arguments[-1].flush(1) == 0, what="the broker to refuse the record")
            raise KafkaException(KafkaError(_STATE, "erroneous state", False, False, True))
        send(*arguments)

    monkeypatch.setattr(guarded_producer, "_send_positions", failed_meanwhile)
    assert error_of(roles.batch).where["operation"] == "Write"
    assert states == [_STATE]


def test_topics_that_exist_are_not_created(roles: Roles, deployment: str):
    """A coordinator that may create no topics can plan a job whose topics are there."""
    roles.grants.take("coordinator", right("topic", "Create", f"{deployment}."))
    for link in roles.task.graph.links:
        topics.create(roles.settings["admin"], link.topic, 3)
    assert admin.create_links(roles.settings["coordinator"], roles.task.graph, roles.task.spec)


def test_an_input_topic_that_is_hidden_is_not_called_missing(secured: SecuredServices, grants: Grants, deployment: str):
    """A topic that the coordinator may not see is a missing right. One that it may see, and that is not there, is missing."""
    source = f"{deployment}-source"
    roles = Roles(secured, grants, deployment)
    roles.task = Task(roles.settings["coordinator"], {"topic": source})
    topics.create(roles.settings["admin"], source, 2)
    error = error_of(roles.task.create)
    assert (error.code, error.where["operation"]) == ("SX-KAFKA-DENIED", "Describe")
    assert error.where["resource"] == f"topic {source}"
    grants.give("coordinator", rights("coordinator", deployment, [source, f"{source}-not-there"]))
    roles.task.create()
    absent = Task(roles.settings["coordinator"], {"topic": f"{source}-not-there"})
    assert isinstance(error_of(absent.create), InputError)
