"""Whether ZooKeeper answers, asked in the way that the daemons will use it: same addresses, same credentials."""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import Any

from kazoo.exceptions import KazooException
from kazoo.security import CREATOR_ALL_ACL

from sardonyx.runtime.logging import Collected
from sardonyx.runtime.settings import Settings
from sardonyx.runtime.settings_sections import ZookeeperSettings
from sardonyx.zookeeper.bulk import BulkClient
from sardonyx.zookeeper.errors import LOGIN_REFUSED, login_denied, no_sasl, unreachable
from sardonyx.zookeeper.node_acls import NodeAcls


def client_arguments(settings: ZookeeperSettings) -> dict[str, Any]:
    """The arguments of a kazoo client. With credentials, only their owner may touch what it creates.

    Raises:
        SetupError: ``SX-ZOOKEEPER-SASL``: kazoo's library for SASL is not installed.
    """
    arguments = settings.client()
    auth = settings.auth
    if auth.sasl and find_spec("puresasl") is None:
        raise no_sasl()
    if auth.digest or auth.sasl or (auth.tls and auth.certificate):
        arguments["default_acl"] = CREATOR_ALL_ACL
    if identities := settings.acl.identities:
        arguments["acls"] = NodeAcls(identities)
    return arguments


def reach_zookeeper(settings: Settings) -> str:
    """Open a session and close it again; gives the server's version, "" if it does not tell.

    Raises:
        SetupError: ``SX-ZOOKEEPER-UNREACHABLE`` with the address and how long it waited; ``SX-ZOOKEEPER-DENIED``,
            ``SX-ZOOKEEPER-SASL``.
    """
    started = time.monotonic()
    heard = Collected()
    auth = settings.zookeeper.auth
    client = BulkClient(**client_arguments(settings.zookeeper), logger=heard.logger)
    try:
        client.start(timeout=settings.zookeeper.connect_timeout)
        client.exists_async("/").get(timeout=settings.zookeeper.connect_timeout)  # the login comes after the connection
    except Exception as error:
        if client.login_refused is not None or isinstance(error, LOGIN_REFUSED):
            raise login_denied(settings.zookeeper, client.login_refused or error) from error
        raise unreachable(settings, time.monotonic() - started, heard.most() or str(error)) from error
    else:
        if auth.tls:  # kazoo does not ask this over TLS
            return ""
        try:
            said: str = client.command(b"srvr")
        except (KazooException, OSError):  # the word may be forbidden there
            return ""
        return said.partition("Zookeeper version: ")[2].partition("-")[0]
    finally:
        client.stop()
        client.close()
