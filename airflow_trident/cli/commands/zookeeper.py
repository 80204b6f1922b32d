"""``airflow trident zookeeper``: starts and stops a ZooKeeper server on this machine."""

from __future__ import annotations

import json
import os
import shlex
from argparse import Namespace
from pathlib import Path

from airflow_trident import settings
from airflow_trident.cli.added_connection import require_free, write
from airflow_trident.cli.console import OK, PROBLEM, trident_command
from airflow_trident.io.paths import require_local_path
from airflow_trident.io.servers import ServerStatus
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.zookeeper.settings import DEFAULT_PORT


@trident_command
def start(args: Namespace) -> int | None:
    server, conn_id = _server(args), settings.text(settings.ZOOKEEPER_CONN_ID)
    if args.add_connection:
        require_free(conn_id, server)
    status = server.start()
    if status.started_here:
        print(f"ZooKeeper started at {status.hosts} (process {status.pid})")
    else:
        print(f"ZooKeeper runs already at {status.hosts} (process {status.pid})")
        if args.port not in (0, DEFAULT_PORT) and not status.hosts.endswith(f":{args.port}"):
            print(f"to move it to port {args.port}: `airflow trident zookeeper stop` first")
    _print_place(status)
    variable = f"AIRFLOW_CONN_{conn_id.upper()}"
    if args.add_connection:
        write(conn_id, server)
        print(f"Airflow has it as connection {conn_id}")
    elif variable not in os.environ:
        print(f"to use it:  export {variable}={shlex.quote(json.dumps(server.connection()))}")
        print("        or  airflow trident zookeeper start --add-connection, which puts it into Airflow's database")
    return OK


@trident_command
def stop(args: Namespace) -> int | None:
    server = _server(args)
    if server.stop():
        print(f"ZooKeeper stopped; its data stay in {server.data_dir}")
    else:
        print(f"no ZooKeeper runs on {server.data_dir}; nothing to stop")
    return OK


@trident_command
def status(args: Namespace) -> int | None:
    server_status = _server(args).status()
    if not server_status.running:
        print(f"no ZooKeeper runs on {server_status.data_dir}; start it with `airflow trident zookeeper start`")
        return PROBLEM
    print(f"ZooKeeper runs at {server_status.hosts} (process {server_status.pid})")
    _print_place(server_status)
    return OK


def _print_place(server_status: ServerStatus) -> None:
    print(f"data: {server_status.data_dir}")
    print(f"log:  {server_status.log}")


def _server(args: Namespace) -> EmbeddedZooKeeper:
    from airflow.configuration import AIRFLOW_HOME

    folder = args.data_dir or Path(AIRFLOW_HOME) / "trident" / "zookeeper"
    return EmbeddedZooKeeper(Path(require_local_path("--data-dir", folder)).expanduser(), port=getattr(args, "port", 0))
