"""How to reach ZooKeeper. Plain data; secrets are never shown."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.database_limits import ZOOKEEPER
from airflow_trident.ledger.znodes import require_path

DEFAULT_PORT = 2181
_SERVER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:,/\[\]]+)(:(\d{1,5}))?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestAuth:
    """ZooKeeper's user and password. Use the same for all workers: only the user who created a node may change it."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Encrypted connections. Paths are PEM files.

    `ca`: who must have signed the server's certificate ("" for the system's list). `certificate` and `key`: what the
    client shows if the server asks. `acl_identity`: the distinguished name in that certificate (``CN=airflow``); if
    given, nodes are created for this identity alone.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)
    verify: bool = True
    check_hostname: bool = True
    acl_identity: str = ""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise ConfigurationError(
                "TLS: a certificate needs its key and the other way round", "Give both files, or none."
            )
        for path in filter(None, (self.ca, self.certificate, self.key)):
            if not Path(path).is_file():
                raise ConfigurationError(f"TLS: there is no file {path}", "Correct the path; it must be a PEM file.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperSettings:
    """An ensemble and how to talk to it.

    `hosts`: ``host:port,host:port``, optionally followed by ``/folder`` as ZooKeeper writes it, which is the same as
    `chroot`: everything lives below it (it is created if it does not exist). `session_timeout_s` is negotiated by the
    server (4 to 40 s by default). `op_deadline_s`: the longest time of one call. A leader that hangs is replaced after
    13 to 16 s, so less than 20 s gives up too early.
    """

    hosts: str
    chroot: str = ""
    auth: DigestAuth | None = None
    tls: Tls | None = None
    session_timeout_s: float = 30.0
    op_deadline_s: float = ZOOKEEPER.answer_s
    connect_deadline_s: float = ZOOKEEPER.connect_s

    def __post_init__(self) -> None:
        servers, slash, folder = self.hosts.strip().partition("/")
        if slash and self.chroot:
            raise ConfigurationError(
                f"the ZooKeeper address {self.hosts!r} has a folder, and chroot is {self.chroot!r} as well", "Give one."
            )
        chroot = (slash + folder if slash else self.chroot).rstrip("/")
        parts = [part.strip() for part in servers.split(",")]
        for part in parts:
            match = _SERVER.match(part)
            if not match or int(match[3] or DEFAULT_PORT) not in range(1, 65536):
                raise ConfigurationError(
                    f"{part!r} in the ZooKeeper address {self.hosts!r} is no host:port",
                    "Write it like zk1:2181,zk2:2181,zk3:2181.",
                )
        if chroot:
            require_path("the ZooKeeper chroot", chroot, "/airflow")
        if min(self.session_timeout_s, self.op_deadline_s, self.connect_deadline_s) <= 0:
            raise ConfigurationError("a ZooKeeper timeout is not above 0", "Give seconds, like 20.")
        object.__setattr__(self, "hosts", ",".join(parts))
        object.__setattr__(self, "chroot", chroot)
