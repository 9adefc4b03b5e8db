"""``sardonyx acl``: what each role may do on ZooKeeper and Kafka, and whether the nodes in ZooKeeper say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli.call import Call, connected, local
from sardonyx.core.errors import SetupError
from sardonyx.core.text import counted

if TYPE_CHECKING:
    from sardonyx.zookeeper.acls import Differs

_OPTIONS = {"topic": "--topic", "group": "--group", "transactional-id": "--transactional-id"}


def register(acl_app: typer.Typer) -> None:
    """Put the commands where they belong."""
    local(acl_app, "print")(print_rights)
    connected(acl_app, "check")(check)
    connected(acl_app, "apply")(apply)


def print_rights(
    call: Call,
    role: Annotated[
        str | None, typer.Option("--for", metavar="ROLE", help="Only of: coordinator, peer, client or viewer.")
    ] = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="SPEC", help="With the topics that this job reads and writes.")
    ] = None,
) -> None:
    """Print the rights that each role needs: nodes in ZooKeeper, and calls of kafka-acls.sh. Asks no service."""
    from sardonyx.core.kafka_rights import ROLES, rights
    from sardonyx.core.zk_rights import ALL, RIGHTS

    roles = [each for each in ROLES if role in (None, each)]
    if not roles:
        raise SetupError(
            "SX-ACL-ROLE", f"there is no role {role!r}", fix=f"give one of: {', '.join(ROLES)}", where={"role": role}
        )
    inputs, outputs = _topics(call, job)
    nodes = {
        each: {path or "/": ALL if each == "coordinator" else getattr(found, each) for path, found in RIGHTS.items()}
        for each in roles
    }
    kafka = {each: list(rights(each, call.settings.deployment, inputs, outputs)) for each in roles}
    if call.json:
        call.put_json({each: {"zookeeper": nodes[each], "kafka": [r._asdict() for r in kafka[each]]} for each in roles})
        return
    for each in roles:
        identity = call.settings.zookeeper.acl.identities.get(each, f"zookeeper.acl.{each}")
        call.put(f"# {each}: ZooKeeper, below /sardonyx/{call.settings.deployment}, for {identity}")
        for path, letters in nodes[each].items():
            call.put(f"{path:16} {letters or '-'}")
        call.put(f"# {each}: Kafka")
        for right in kafka[each]:
            prefixed = " --resource-pattern-type prefixed" if right.prefixed else ""
            call.put(
                f"kafka-acls.sh --add --allow-principal User:{each} --operation {right.operation} "
                f"{_OPTIONS[right.kind]} {right.name}{prefixed}"
            )


def check(call: Call) -> int:
    """Compare the ACL of every node in ZooKeeper with its role's rights; exit code 1 if one differs."""
    found = _walk(call, apply=False)
    return 1 if found else 0


def apply(call: Call) -> None:
    """Set the ACL of every node in ZooKeeper as the roles want it. An open deployment is closed by this."""
    _walk(call, apply=True)


def _walk(call: Call, *, apply: bool) -> list[Differs]:
    identities = call.settings.zookeeper.acl.identities
    if not identities:
        raise SetupError(
            "SX-ACL-NO-ROLES",
            "no roles are set",
            cause="zookeeper.acl.coordinator has no value, so nodes belong to who creates them",
            fix="set zookeeper.acl.coordinator, and peer, client and viewer: see docs/security.md",
        )
    from sardonyx.zookeeper.acls import differing
    from sardonyx.zookeeper.node_acls import NodeAcls
    from sardonyx.zookeeper.session import ZooKeeperSession

    with call.patience("ZooKeeper"):
        zk = ZooKeeperSession.connect(call.settings, survive_expiry=True, make_top=apply)
        try:
            found = list(differing(zk, NodeAcls(identities), apply=apply))
        finally:
            zk.close()
    if call.json:
        call.put_json([each._asdict() for each in found])
        return found
    for each in found:
        call.put(
            f"{each.path}: {', '.join(each.has)}; {'was changed to' if apply else 'should be'} {', '.join(each.should)}"
        )
    said = "changed" if apply else "differ" if len(found) != 1 else "differs"
    call.put(f"{counted(len(found), 'node')} {said}")
    return found


def _topics(call: Call, job: str | None) -> tuple[list[str], list[str]]:
    """The topics of users that a job reads, and those that it writes."""
    if job is None:
        return [], []
    from sardonyx.core.graph import graph_of
    from sardonyx.job.load import load

    links = graph_of(load(job).spec, call.settings.deployment, "job").links
    return (
        sorted({link.topic for link in links if link.kind == "input"}),
        sorted({link.topic for link in links if link.kind == "output"}),
    )
