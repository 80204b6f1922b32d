"""``airflow trident connect-server`` and ``spark-archive``: a Spark on this machine that starts fast."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_trident.cli.console import OK, PROBLEM, spark_conf, trident_command
from airflow_trident.io.paths import require_local_path

if TYPE_CHECKING:
    from airflow_trident.engine.spark.sessions.connect import EmbeddedConnectServer


@trident_command
def start(args: Namespace) -> int | None:
    server = _server(args)
    status = server.start()
    if status.started_here:
        print(f"Spark Connect server started at {server.url} (process {status.pid})")
    else:
        print(f"a Spark Connect server runs already at {server.url} (process {status.pid})")
    print(f"log: {status.log}")
    host, _, port = status.hosts.partition(":")
    connection = json.dumps({"conn_type": "spark_connect", "host": host, "port": int(port)})
    print(f"to use it:  export AIRFLOW_CONN_SPARK_CONNECT='{connection}'")
    print('            and spark_conn_id="spark_connect" in the DAG')
    return OK


@trident_command
def stop(args: Namespace) -> int | None:
    server = _server(args)
    if server.stop():
        print("Spark Connect server stopped")
    else:
        print(f"no Spark Connect server runs on {server.data_dir}; nothing to stop")
    return OK


@trident_command
def status(args: Namespace) -> int | None:
    server = _server(args)
    status_now = server.status()
    if not status_now.running:
        print(f"no Spark Connect server runs on {status_now.data_dir}; start it with `{server.start_command}`")
        return PROBLEM
    print(f"Spark {server.spark_version()} answers at {server.url} (process {status_now.pid})")
    print(f"log: {status_now.log}")
    return OK


@trident_command
def spark_archive(_args: Namespace) -> int | None:
    from airflow_trident.engine.spark.sessions.archive import make_archive

    path, made = make_archive()
    print(f"{'made' if made else 'there already:'} {path} ({path.stat().st_size / 2**20:.0f} MB)")
    return OK


def _server(args: Namespace) -> EmbeddedConnectServer:
    from airflow.configuration import AIRFLOW_HOME

    from airflow_trident.engine.spark.sessions.connect import DEFAULT_HEAP_MB, EmbeddedConnectServer

    folder = args.data_dir or Path(AIRFLOW_HOME) / "trident" / "connect-server"
    return EmbeddedConnectServer(
        Path(require_local_path("--data-dir", folder)).expanduser(),
        port=getattr(args, "port", 0),
        master=getattr(args, "master", "local[*]"),
        heap_mb=getattr(args, "heap_mb", DEFAULT_HEAP_MB),
        conf=spark_conf(getattr(args, "spark_conf", [])),
    )
