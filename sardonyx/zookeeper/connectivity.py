"""Whether ZooKeeper answers, asked in the way that the daemons will use it: same addresses, same credentials."""

from __future__ import annotations

import time
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.security import CREATOR_ALL_ACL

from sardonyx.runtime.logging import Collected
from sardonyx.runtime.settings import Settings
from sardonyx.runtime.settings_sections import ZookeeperSettings
from sardonyx.zookeeper.errors import unreachable


def client_arguments(settings: ZookeeperSettings) -> dict[str, Any]:
    """The arguments of a kazoo client. With credentials, only their owner may touch what it creates."""
    arguments = settings.client()
    if settings.auth.digest or settings.auth.sasl:
        arguments["default_acl"] = CREATOR_ALL_ACL
    return arguments


def reach_zookeeper(settings: Settings) -> str:
    """Open a session and close it again; gives the server's version, "" if it does not tell.

    Raises:
        SetupError: ``SX-ZOOKEEPER-UNREACHABLE`` with the address and how long it waited.
    """
    started = time.monotonic()
    heard = Collected()
    client = KazooClient(**client_arguments(settings.zookeeper), logger=heard.logger)
    try:
        client.start(timeout=settings.zookeeper.connect_timeout)
    except Exception as error:
        raise unreachable(settings, time.monotonic() - started, heard.most() or str(error)) from error
    else:
        try:
            said: str = client.command(b"srvr")
        except (KazooException, OSError):  # the word may be forbidden there, and goes without TLS
            return ""
        return said.partition("Zookeeper version: ")[2].partition("-")[0]
    finally:
        client.stop()
        client.close()
