"""The commands by name, each in its module. Nothing heavy is imported before a command runs."""

from __future__ import annotations

from typing import Annotated

import typer

from sardonyx.cli import (
    acl_commands,
    backup_commands,
    bundle_commands,
    clock_commands,
    cluster_commands,
    diff_commands,
    dlq_commands,
    going_back_commands,
    inspect_commands,
    job_commands,
    link_commands,
    log_commands,
    peer_commands,
    progress_commands,
    purge_commands,
    share_commands,
    state_commands,
    topic_commands,
    upgrade_commands,
    web_commands,
)
from sardonyx.cli.call import Call, local, our_version

app = typer.Typer(
    name="sardonyx",
    help="Exactly-once dataflow jobs on Spark, between Kafka queues, coordinated through ZooKeeper.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
job_app = typer.Typer(
    help="Submit jobs, show and compare them, wait for them, kill and purge them.", no_args_is_help=True
)
cluster_app = typer.Typer(help="Show and choose how virtual peers are divided among jobs.", no_args_is_help=True)
peers_app = typer.Typer(help="Show, evict and drain virtual peers.", no_args_is_help=True)
dlq_app = typer.Typer(
    help="Show, redo, drop and export dead letters: records that a task failed on.", no_args_is_help=True
)
link_app = typer.Typer(help="Show the links of a job: the queues between its tasks.", no_args_is_help=True)
state_app = typer.Typer(help="Show what the tasks of a job keep.", no_args_is_help=True)
acl_app = typer.Typer(help="Print, check and set what each role may do.", no_args_is_help=True)
bundle_app = typer.Typer(help="Make keys that sign the code of jobs.", no_args_is_help=True)
topic_app = typer.Typer(
    help="Create and list Kafka topics, write records to them, and peek into them.", no_args_is_help=True
)
log_app = typer.Typer(help="Show, verify, export and replay the coordinator's log.", no_args_is_help=True)


def _print_version(wanted: bool) -> None:  # noqa: FBT001, RUF100 - typer's callback
    if wanted:
        typer.echo(our_version())
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Exactly-once dataflow jobs on Spark, between Kafka queues, coordinated through ZooKeeper."""


@local(app, "version")
def version(call: Call) -> None:
    """Print the version."""
    if call.json:
        call.put_json({"version": our_version()})
    else:
        call.put(our_version())


cluster_commands.register(app)
clock_commands.register(app)
backup_commands.register(app)
job_commands.register(app, job_app)
going_back_commands.register(job_app)
progress_commands.register(job_app)
purge_commands.register(job_app)
diff_commands.register(job_app)
inspect_commands.register(app)
upgrade_commands.register(app)
web_commands.register(app)
peer_commands.register(peers_app)
share_commands.register(cluster_app, job_app)
dlq_commands.register(dlq_app)
link_commands.register(link_app)
state_commands.register(state_app, job_app)
topic_commands.register(topic_app)
acl_commands.register(acl_app)
bundle_commands.register(bundle_app)
log_commands.register(log_app)
app.add_typer(job_app, name="job")
app.add_typer(cluster_app, name="cluster")
app.add_typer(peers_app, name="peers")
app.add_typer(dlq_app, name="dlq")
app.add_typer(link_app, name="link")
app.add_typer(state_app, name="state")
app.add_typer(topic_app, name="topic")
app.add_typer(acl_app, name="acl")
app.add_typer(bundle_app, name="bundle")
app.add_typer(log_app, name="log")
