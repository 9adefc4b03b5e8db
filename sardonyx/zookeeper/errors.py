"""The errors that a call of :class:`sardonyx.zookeeper.session.ZooKeeperSession` can raise.

The class tells the caller what to do: stop leading (``Deposed``, ``OutcomeUnknown``), stop owning nodes (``SessionLost``), try
again (``ZooKeeperAway``), or read the nodes again (``TransactionFailed``, ``ParentMissing``).
"""

from __future__ import annotations

from kazoo.exceptions import AuthFailedError, NoAuthError, SessionClosedRequireSaslError, SessionExpiredError

from sardonyx.core.errors import InternalError, SardonyxError, SetupError
from sardonyx.runtime.addresses import why_unreachable
from sardonyx.runtime.settings import Settings
from sardonyx.runtime.settings_sections import ZookeeperSettings

LOGIN_REFUSED = (AuthFailedError, SessionClosedRequireSaslError)
"""kazoo's errors that say: ZooKeeper refuses everything to a client with these credentials, or without any."""


class NotConnected(SetupError):
    """No session within the time allowed. Why is not known yet: :func:`unreachable` asks the network."""

    def __init__(self, hosts: str, waited: float) -> None:
        self.waited = waited
        """Seconds."""
        super().__init__(
            "SX-ZOOKEEPER-UNREACHABLE",
            f"ZooKeeper at {hosts} cannot be reached.",
            cause=f"There was no connection within {waited:.1f} s.",
            fix="Check the address and that ZooKeeper runs; `sardonyx doctor` looks at each part.",
            where={"zookeeper": hosts},
        )


class Deposed(SardonyxError):
    """Another coordinator has taken the epoch. The transaction changed nothing."""


class TransactionFailed(InternalError):
    """ZooKeeper refused an operation, and so the whole transaction. ``reason`` is kazoo's error."""

    def __init__(self, operation: object, reason: Exception) -> None:
        self.operation = operation
        self.reason = reason
        path = getattr(operation, "path", "?")
        super().__init__(
            "SX-INTERNAL-TRANSACTION",
            f"ZooKeeper refused a transaction: {type(operation).__name__} {path}: {type(reason).__name__}",
            cause="the nodes are not as the coordinator left them: another program writes to them, or this is a bug",
            fix="report it with the coordinator's log, unless a user edited the nodes by hand",
            where={"path": path},
        )


class ParentMissing(InternalError):
    """A node cannot be created, because its parent does not exist."""


class OutcomeUnknown(SardonyxError):
    """The reply to a write was lost. The write may or may not have been carried out."""


class SessionLost(SardonyxError):
    """The ZooKeeper session ended. Its ephemeral nodes are gone, and their owner must stop."""


class ZooKeeperAway(SetupError):
    """ZooKeeper did not answer in the time allowed."""


def deposed() -> Deposed:
    """Another coordinator has the epoch."""
    return Deposed(
        "SX-COORDINATOR-DEPOSED",
        "another coordinator leads now",
        cause="this coordinator was paused or disconnected for longer than its ZooKeeper session lives",
        fix="do nothing: it takes part in the election again",
    )


def outcome_unknown(hosts: str) -> OutcomeUnknown:
    """No reply to a transaction."""
    return OutcomeUnknown(
        "SX-ZOOKEEPER-OUTCOME-UNKNOWN",
        f"the connection to ZooKeeper at {hosts} broke during a write",
        cause="the write may or may not have been carried out",
        fix="do nothing: the next leader reads the outcome from the log",
    )


def session_lost(hosts: str, timeout: float) -> SessionLost:
    """The session with a timeout of ``timeout`` seconds has ended."""
    return SessionLost(
        "SX-ZOOKEEPER-SESSION-LOST",
        f"the session with ZooKeeper at {hosts} has ended",
        cause=f"ZooKeeper heard nothing from this process for {timeout:g} s, or the session was closed",
        fix="do nothing: the process opens a new session. If this is a `Client` that was closed, make another one. If it happens "
        "often, raise zookeeper.session_timeout",
    )


def away(hosts: str, patience: float) -> ZooKeeperAway:
    """No answer within ``patience`` seconds."""
    return ZooKeeperAway(
        "SX-ZOOKEEPER-AWAY",
        f"ZooKeeper at {hosts} does not answer",
        cause=f"there was no answer within {patience:g} s; a write in flight may or may not have been carried out",
        fix="check that ZooKeeper runs and can be reached; then try again",
        where={"zookeeper": hosts},
    )


def unreachable(settings: Settings, waited: float, cause: str = "") -> SetupError:
    """No session could be opened in ``waited`` seconds. Asks the network why; ``cause``: what the client said."""
    hosts = settings.zookeeper.hosts or ""
    origin = settings.origins.get("zookeeper.hosts", "default")
    why = why_unreachable("ZooKeeper", hosts, "zookeeper.hosts", waited, origin)
    fix = why.fix
    if why.reason == "silent":
        fix += " zookeeper.connect_timeout sets the time allowed."
        if "certificate" in cause.lower():
            fix = "Check that zookeeper.auth.ca signed the server's certificate, and that it names the host of zookeeper.hosts."
    return SetupError(
        "SX-ZOOKEEPER-UNREACHABLE",
        why.message,
        cause=(cause if why.reason == "silent" else "") or why.cause,
        fix=fix,
        where={"zookeeper": hosts},
    )


def no_address(hosts: str, error: Exception) -> SetupError:
    """Text that kazoo cannot parse as an address."""
    return SetupError(
        "SX-ZOOKEEPER-ADDRESS",
        f"{hosts!r} is not a ZooKeeper address",
        cause=str(error),
        fix='write it as "host:port" or "host:port,host:port"',
    )


def request_too_large(kind: str, size: int, limit: int) -> SardonyxError:
    """A request of ``size`` bytes, of which at most ``limit`` fit into the log."""
    return SardonyxError(
        "SX-REQUEST-TOO-LARGE",
        f"the request {kind!r} has {size:,} bytes; {limit:,} is the most",
        cause="every request is kept in the log in ZooKeeper, which stores only small nodes",
        fix="make the job spec smaller: fewer tasks, shorter params; keep large data in files",
    )


def no_chroot(chroot: str, hosts: str) -> SetupError:
    """The address names a path that does not exist in ZooKeeper."""
    return SetupError(
        "SX-ZOOKEEPER-CHROOT",
        f"the path {chroot} does not exist in ZooKeeper",
        fix=f"create it, or leave it out of the address {hosts}",
    )


def no_sasl() -> SetupError:
    """``zookeeper.auth.sasl`` is set, and kazoo lacks the library for it."""
    return SetupError(
        "SX-ZOOKEEPER-SASL",
        "zookeeper.auth.sasl is set, but the library for SASL is not installed on this machine.",
        cause="kazoo logs in by pure-sasl, which does not come with it",
        fix="run `pip install 'sardonyx[sasl]'` wherever coordinators, peers and clients run",
    )


def login_denied(settings: ZookeeperSettings, reason: Exception) -> SetupError:
    """ZooKeeper does not accept the credentials, or asks for some."""
    who = settings.auth.principal
    return SetupError(
        "SX-ZOOKEEPER-DENIED",
        f"ZooKeeper at {settings.hosts} does not let {who} log in.",
        cause=f"{type(reason).__name__} {reason}".rstrip(),
        fix="Check zookeeper.auth against the users that ZooKeeper knows; its own log names the reason.",
        where={"zookeeper": settings.hosts, "principal": who, "operation": "log in"},
    )


def denied(settings: ZookeeperSettings, root: str, operation: str, path: str) -> SetupError:
    """An ACL does not allow it."""
    who = settings.auth.principal
    return SetupError(
        "SX-ZOOKEEPER-DENIED",
        f"ZooKeeper at {settings.hosts} does not let {who} {operation} {path or root}.",
        cause="The node's ACL does not give this right. It may come from other credentials, which created the deployment.",
        fix="Set zookeeper.auth as the deployment wants it, give the right to this user (docs/security.md), or choose another "
        "deployment.",
        where={"zookeeper": settings.hosts, "principal": who, "operation": operation, "path": path, "root": root},
    )


_OPERATIONS = {
    "Create": "create",
    "Delete": "delete",
    "SetData": "write",
    "GetData": "read",
    "GetChildren": "list the children of",
    "GetChildren2": "list the children of",
    "Exists": "look for",
    "GetACL": "read the ACL of",
    "SetACL": "set the ACL of",
    "Sync": "synchronise",
    "MultiRead": "read",
}
"""What kazoo's requests do."""


def refused(
    error: Exception, settings: ZookeeperSettings, root: str, timeout: float, request: str, path: str
) -> SardonyxError:
    """A kazoo error as one of ours. ``request``: the name of kazoo's request that failed, and its ``path``."""
    if isinstance(error, SessionExpiredError):  # also after we closed the connection
        return session_lost(str(settings.hosts), timeout)
    if isinstance(error, LOGIN_REFUSED):
        return login_denied(settings, error)
    if isinstance(error, NoAuthError):
        return denied(settings, root, _OPERATIONS.get(request, "use"), path)
    return SetupError(
        "SX-ZOOKEEPER-REFUSED",
        f"ZooKeeper at {settings.hosts} refused a request: {type(error).__name__} {error}".rstrip(),
        fix="read ZooKeeper's own log",
        where={"zookeeper": settings.hosts},
    )
