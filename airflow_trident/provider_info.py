"""Information about this package for Airflow's provider manager (entry point ``apache_airflow_provider``).

Only plain data: reading it imports neither Airflow nor Spark nor a driver. The UI plugin has its own entry point
``airflow.plugins``: Airflow 3.3 loads plugins from provider info only with ``[core] lazy_discover_providers = False``.
"""

from __future__ import annotations

from typing import Any

from airflow_trident.settings import OPTIONS, SECTION

_INTEGRATION = "Trident"


def _modules(*names: str) -> list[dict[str, Any]]:
    return [{"integration-name": _INTEGRATION, "python-modules": [f"airflow_trident.{name}" for name in names]}]


def get_provider_info() -> dict[str, Any]:
    """Keys as in ``airflow/provider_info.schema.json`` of Airflow 3.3."""
    return {
        "package-name": "airflow-trident",
        "name": "Trident",
        "description": "Exactly-once batches on Spark, with a transaction ledger in `ZooKeeper <https://zookeeper.apache.org/>`__.",
        "integrations": [
            {"integration-name": _INTEGRATION, "tags": ["software"]},
            {
                "integration-name": "Apache ZooKeeper",
                "external-doc-url": "https://zookeeper.apache.org/",
                "tags": ["apache"],
            },
        ],
        "connection-types": [_zookeeper_connection()],
        "hooks": [
            {
                "integration-name": "Apache ZooKeeper",
                "python-modules": ["airflow_trident.hooks.zookeeper"],
            }
        ],
        "operators": _modules(
            "operators.transaction",
            "operators.backfill",
            "operators.drain",
            "operators.mending",
            "operators.query",
            "operators.spark_submit",
            "storm.operators",
            "task_group",
            "mending_dag",
        ),
        "sensors": _modules("sensors.ready", "sensors.turn"),
        "triggers": _modules("triggers.transaction", "triggers.driver", "triggers.batch"),
        "extra-links": [
            "airflow_trident.links.TransactionLink",
            "airflow_trident.links.SparkUiLink",
        ],
        "cli": ["airflow_trident.cli.parser.get_trident_cli_commands"],
        "config": {
            SECTION: {
                "description": "Exactly-once transactions: the ledger, staging and waiting.",
                "options": {
                    option.name: {
                        "description": option.description,
                        "version_added": "0.1.0",
                        "type": option.type,
                        "example": option.example,
                        "default": option.default,
                    }
                    for option in OPTIONS
                },
            }
        },
    }


def _zookeeper_connection() -> dict[str, Any]:
    """The form of a ``zookeeper`` connection; :mod:`airflow_trident.hooks.zookeeper` reads the same names."""
    return {
        "connection-type": "zookeeper",
        "hook-class-name": "airflow_trident.hooks.zookeeper.ZooKeeperHook",
        "hook-name": "ZooKeeper",
        "ui-field-behaviour": {
            "hidden-fields": ["schema", "port"],
            "relabeling": {"host": "Hosts", "login": "Digest user", "password": "Digest password"},
            "placeholders": {"host": "zk1:2181,zk2:2181,zk3:2181", "login": "leave empty without ACLs"},
        },
        "conn-fields": {
            "chroot": _text("Chroot", "Path of all data, such as /airflow; created if it is missing."),
            "login_file": _text(
                "Login file",
                "Instead of user and password: a private JSON file with both, which `zookeeper start` writes.",
            ),
            "use_ssl": _flag("Use TLS", False, "Connect to the servers' secureClientPort."),
            "ca": _text("CA file", "PEM file with the certificates that sign the servers'; empty: the system's."),
            "certfile": _text("Client certificate", "PEM file, for servers that require one."),
            "keyfile": _text("Client key", "PEM file of the client certificate's key."),
            "keyfile_password": _text("Client key password", "If the key file is encrypted.", secret=True),
            "verify": _flag("Check certificates", True, "False accepts any certificate."),
            "check_hostname": _flag("Check host name", True, "Refuse a certificate that was issued for another host."),
            "acl_identity": _text(
                "Owner of nodes",
                "Distinguished name in the client certificate (CN=airflow), for which alone nodes are created.",
            ),
            "session_timeout_s": _seconds("Session timeout (s)", 30, "The server may grant another value."),
            "op_deadline_s": _seconds(
                "Deadline of a call (s)", 20, "Limit of one call. A hanging leader is replaced after 13 to 16 s."
            ),
            "connect_deadline_s": _seconds("Deadline of connecting (s)", 15, "Limit of the first connection."),
        },
    }


def _text(label: str, description: str, *, secret: bool = False) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": ["string", "null"]}
    if secret:
        schema["format"] = "password"
    return {"label": label, "description": description, "schema": schema}


def _seconds(label: str, default: int, description: str) -> dict[str, Any]:
    schema = {"type": ["number", "null"], "minimum": 1, "default": default}
    return {"label": label, "description": description, "schema": schema}


def _flag(label: str, default: bool, description: str) -> dict[str, Any]:
    schema = {"type": ["boolean", "null"], "default": default}
    return {"label": label, "description": description, "schema": schema}
