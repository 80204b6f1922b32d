"""The hook for connections of type ``zookeeper``: opens ledgers from an Airflow connection."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from airflow_trident import settings
from airflow_trident.errors import ConfigurationError, RetryableError, TridentError
from airflow_trident.io.connections import parse_extra
from airflow_trident.io.paths import AnyPath
from airflow_trident.ledger.embedded.server import read_login
from airflow_trident.ledger.zookeeper.settings import DigestAuth, Tls, ZooKeeperSettings

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Connection

    from airflow_trident.ledger.ledger import ZNodeLedger
    from airflow_trident.ledger.open import Ledgers
    from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes

_EXTRAS = frozenset(
    {
        "chroot",
        "login_file",
        "use_ssl",
        "ca",
        "certfile",
        "keyfile",
        "keyfile_password",
        "verify",
        "check_hostname",
        "acl_identity",
        "session_timeout_s",
        "op_deadline_s",
        "connect_deadline_s",
    }
)
ADD_A_CONNECTION = (
    "Add a connection of type zookeeper in the UI, or as "
    'AIRFLOW_CONN_<ID>=\'{"conn_type": "zookeeper", "host": "zk1:2181"}\'; '
    "`airflow trident zookeeper start --add-connection` runs a server on this machine and adds it."
)
"""What to do if Airflow gives no connection of that name; Airflow's own error does not say it."""


class ZooKeeperHook(BaseHook):
    """Opens ledgers, and plain clients, on the ensemble of a connection.

    The connection's host is ``zk1:2181,zk2:2181``. Its login and password are ZooKeeper's digest user. Its extras are
    those of the connection form. The hook opens nothing before it is asked to.

    :param zookeeper_conn_id: None: ``[trident] zookeeper_conn_id``.
    """

    conn_name_attr = "zookeeper_conn_id"
    default_conn_name = "zookeeper_default"
    conn_type = "zookeeper"
    hook_name = "ZooKeeper"

    def __init__(self, zookeeper_conn_id: str | None = None) -> None:
        super().__init__()
        self.zookeeper_conn_id = zookeeper_conn_id or settings.text(settings.ZOOKEEPER_CONN_ID)

    def get_conn(self) -> ZooKeeperZNodes:
        """A client, which connects on first use; the caller closes it.

        :raises ConfigurationError: the connection is invalid.
        """
        from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes

        return ZooKeeperZNodes(self.zookeeper_settings())

    def get_ledger(
        self, topology_name: str, *, incarnation: str = "", staging_dir: AnyPath | None = None
    ) -> ZNodeLedger:
        """The ledger of a topology below ``[trident] root``; the caller closes it.

        :param incarnation: the expected incarnation of the topology, if known: any other is refused.
        :param staging_dir: where the caller stages batches, if not in the configured folder.
        """
        from airflow_trident.ledger.open import open_ledger

        return open_ledger(
            self.zookeeper_settings(),
            topology_name,
            root=settings.text(settings.ROOT),
            incarnation=incarnation,
            chunk_bytes=settings.chunk_bytes(staging_dir),
            sources_root=settings.sources_root(staging_dir),
        )

    def get_ledgers(self, *, deadline_s: float | None = None) -> Ledgers:
        """All ledgers below ``[trident] root`` through one client; the caller closes it.

        :param deadline_s: limit for each call, if the connection's own deadlines are longer.
        """
        from airflow_trident.ledger.open import Ledgers

        connection = self.zookeeper_settings()
        if deadline_s is not None:
            connection = replace(
                connection,
                op_deadline_s=min(connection.op_deadline_s, deadline_s),
                connect_deadline_s=min(connection.connect_deadline_s, deadline_s),
            )
        return Ledgers(connection, root=settings.text(settings.ROOT))

    def topology_names(self) -> list[str]:
        """All topologies that have a ledger below ``[trident] root``, sorted."""
        from airflow_trident.ledger.open import list_topologies

        return list_topologies(self.zookeeper_settings(), root=settings.text(settings.ROOT))

    def zookeeper_settings(self) -> ZooKeeperSettings:
        """
        :raises ConfigurationError: the connection is invalid.
        :raises RetryableError: Airflow does not give it. It calls a connection "not defined" also if it had no answer.
        """
        try:
            connection = self.get_connection(self.zookeeper_conn_id)
        except AirflowNotFoundException as error:
            raise RetryableError(str(error), ADD_A_CONNECTION) from error
        return settings_of(connection)

    def test_connection(self) -> tuple[bool, str]:
        """For the button of the connection form: whether the ensemble answers, and if not, the real reason."""
        try:
            server, names = self.zookeeper_settings(), self.topology_names()
        except TridentError as error:
            return False, str(error)
        count = f"{len(names)} topologies" if len(names) != 1 else "1 topology"
        return (
            True,
            f"ZooKeeper at {server.hosts}{server.chroot} answers; {count} below {settings.text(settings.ROOT)}.",
        )


def _with_port(host: str, port: int | None) -> str:
    """The port behind each server that has none; a folder stays behind the last one."""
    servers, slash, folder = host.partition("/")
    if port:
        ports = (":" in server.rpartition("]")[2] for server in servers.split(","))
        servers = ",".join(
            server if has_port else f"{server}:{port}"
            for server, has_port in zip(servers.split(","), ports, strict=True)
        )
    return servers + slash + folder


def settings_of(connection: Connection) -> ZooKeeperSettings:
    """The settings in a connection of type ``zookeeper``.

    :raises ConfigurationError: another type, no host, a contradiction, or an unknown extra.
    """
    name = f"connection {connection.conn_id!r}"
    if connection.conn_type != ZooKeeperHook.conn_type:
        raise ConfigurationError(
            f"{name} is of type {connection.conn_type!r}, not {ZooKeeperHook.conn_type!r}",
            "Name a connection of type zookeeper.",
        )
    try:
        extra = parse_extra(connection.extra)
    except ValueError:  # its text would show the extras
        raise ConfigurationError(
            f"the extras of {name} are not a JSON object", 'Write them like {"use_ssl": true}.'
        ) from None
    unknown = sorted(set(extra) - _EXTRAS)
    if unknown:
        raise ConfigurationError(
            f"{name} has unknown extras: {', '.join(unknown)}", f"Known ones are {', '.join(sorted(_EXTRAS))}."
        )
    if not connection.host:
        raise ConfigurationError(f"{name} has no host", "Write it like zk1:2181,zk2:2181,zk3:2181.")
    if connection.schema:
        raise ConfigurationError(
            f"{name} has the schema {connection.schema!r}, which ZooKeeper does not know",
            f'If the ledger is below /{connection.schema}, give the extra {{"chroot": "/{connection.schema}"}}.',
        )
    hosts = _with_port(connection.host, connection.port)
    if bool(connection.login) != bool(connection.password):
        raise ConfigurationError(f"{name} has only one of login and password", "Give both for digest, or none.")
    login_file = str(extra.get("login_file") or "")
    if login_file and connection.login:
        raise ConfigurationError(f"{name} has a login and a login_file", "Give one.")
    auth = DigestAuth(user=connection.login, password=connection.password or "") if connection.login else None
    times = {key: _seconds(name, key, extra[key]) for key in extra if key.endswith("_s") and extra[key] is not None}
    return ZooKeeperSettings(
        hosts=hosts,
        chroot=str(extra.get("chroot") or ""),
        auth=read_login(login_file, name) if login_file else auth,
        tls=_tls(name, extra),
        **times,
    )


def _tls(name: str, extra: dict[str, Any]) -> Tls | None:
    if not _flag(name, extra, "use_ssl", default=False):
        tls_extras = [key for key in ("ca", "certfile", "keyfile", "acl_identity") if extra.get(key)]
        if tls_extras:
            raise ConfigurationError(f"{name} has {', '.join(tls_extras)} without use_ssl", "Set use_ssl to true.")
        return None
    return Tls(
        ca=str(extra.get("ca") or ""),
        certificate=str(extra.get("certfile") or ""),
        key=str(extra.get("keyfile") or ""),
        key_password=str(extra.get("keyfile_password") or ""),
        verify=_flag(name, extra, "verify", default=True),
        check_hostname=_flag(name, extra, "check_hostname", default=True),
        acl_identity=str(extra.get("acl_identity") or ""),
    )


def _flag(name: str, extra: dict[str, Any], key: str, *, default: bool) -> bool:
    """A switch; a connection URI gives it as text."""
    value = extra.get(key)
    if value is None or value == "":
        return default
    if isinstance(value, bool):
        return value
    written = str(value).strip().lower()
    if written not in ("true", "false"):
        raise ConfigurationError(f"{name}: {key} = {value!r} is neither true nor false", "Write true or false.")
    return written == "true"


def _seconds(name: str, key: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{name}: {key} = {value!r} is no number of seconds", "Write it like 30.") from None
