"""The commands of named workers: ``airflow trident deploy``, ``undeploy``, ``worker``, ``workers``."""

from __future__ import annotations

from functools import partial

from airflow.cli.cli_config import ARG_OUTPUT, ARG_VERBOSE, Arg

from airflow_trident.cli.parser_parts import (
    ARG_CONN_ID,
    ARG_MAX_PENDING,
    ARG_TOPOLOGY,
    ARG_TOPOLOGY_OR_ALL,
    ENGINE_ARGS,
    TOPOLOGY_ARGS,
    command,
    count,
    repeated,
)

_command = partial(command, package="airflow_trident.storm.commands")

ARG_WORKERS = Arg(
    ("--workers",),
    help="Names of its workers, separated by commas (default: those that a topology file of qtopology names)",
    metavar="NAMES",
    default="",
)
ARG_WEIGHT = count(
    "--weight", "Its load, beside other topologies on the same workers (default: that of its topology file, or 1)"
)
ARG_AFFINITY = Arg(
    ("--affinity",),
    help="Its preferred workers (default: those that its topology file names)",
    metavar="NAMES",
)
ARG_NAME = Arg(("name",), help="Name of the worker", metavar="NAME")
ARG_TOPOLOGIES = repeated(
    "--topology",
    "Serve this topology; may be repeated (default: all that are deployed on the name)",
    "TOPOLOGY",
    dest="topologies",
)
ARG_POLL_S = Arg(
    ("--poll-s",), help="Seconds between two polls of sources without new data (default: 5)", type=float, default=5.0
)
ARG_WAIT_S = Arg(
    ("--wait-s",),
    help="Seconds to wait for a deployment that names the worker, and for its name (default: 0)",
    type=float,
    default=0.0,
)
ARG_STOP_S = Arg(
    ("--stop-s",),
    help="Seconds to finish begun work after SIGTERM or SIGINT (default: 30)",
    type=float,
    default=30.0,
)

DEPLOY = _command(
    "deploy",
    "workers.deploy",
    "Assign workers to a topology. They register and are initialised. When all have confirmed, the topology runs on "
    "one of them at a time. A topology that was shut down runs again.",
    (ARG_TOPOLOGY, ARG_WORKERS, ARG_WEIGHT, ARG_AFFINITY, *TOPOLOGY_ARGS),
    "deploy word_count --workers w1,w2",
    "deploy word_count --workers w1,w2 --affinity w2 --weight 5",
)
UNDEPLOY = _command(
    "undeploy",
    "workers.undeploy",
    "Remove a topology from its workers. They finish begun work; tasks and drains continue.",
    (ARG_TOPOLOGY, ARG_CONN_ID, ARG_VERBOSE),
    "undeploy word_count",
)
WORKER = _command(
    "worker",
    "workers.worker",
    "Run a worker that topologies are deployed on, until they are shut down. On SIGTERM and SIGINT it finishes begun "
    "work and ends; other workers then continue.",
    (ARG_NAME, ARG_TOPOLOGIES, ARG_POLL_S, ARG_WAIT_S, ARG_STOP_S, ARG_MAX_PENDING, *ENGINE_ARGS, *TOPOLOGY_ARGS),
    "worker w1",
    "worker w1 --topology word_count --topology orders --wait-s 60",
    "worker w1 --topology word_count --dag-file dags/word_count.py --engine local",
)
WORKERS = _command(
    "workers",
    "workers.workers",
    "List the workers that topologies are deployed on, with status and epoch, and the tasks that work on one topology "
    "now. A killed process is listed until its session ends, half a minute later.",
    (ARG_TOPOLOGY_OR_ALL, ARG_OUTPUT, ARG_CONN_ID, ARG_VERBOSE),
    "workers",
    "workers word_count",
)
