"""The ledger over TLS, against a real server with certificates made for the occasion."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_trident.errors import LedgerAuthError, LedgerUnavailableError
from airflow_trident.ledger.embedded.server import java_executable
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
from airflow_trident.ledger.zookeeper.settings import Tls, ZooKeeperSettings
from tests.fixtures.certificates import Authority, secure_jars
from tests.fixtures.ledger import DEFINITION, committed_up_to, statuses

pytestmark = [
    pytest.mark.zookeeper,
    # kazoo does not close the socket of a handshake that failed; nobody holds it, so it goes when it is collected.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@dataclass
class SecureServer:
    hosts: str
    authority: Authority


def serve(folder: Path, authority: Authority, server_pem: Path) -> tuple[subprocess.Popen[bytes], str]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (folder / "zoo.cfg").write_text(
        f"dataDir={folder}/data\nsecureClientPort={port}\nadmin.enableServer=false\nmaxClientCnxns=0\n"
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
        f"ssl.keyStore.type=PEM\nssl.keyStore.location={server_pem}\n"
        f"ssl.trustStore.type=PEM\nssl.trustStore.location={authority.certificate}\n"
        "ssl.clientAuth=want\nauthProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider\n"
    )
    command = [java_executable(), "-Xmx64m", "-XX:+UseSerialGC", "-cp", os.pathsep.join(map(str, secure_jars()))]
    with (folder / "out").open("wb") as output:
        process = subprocess.Popen(
            [*command, "org.apache.zookeeper.server.ZooKeeperServerMain", str(folder / "zoo.cfg")],
            stdout=output,
            stderr=output,
        )
    return process, f"127.0.0.1:{port}"


@pytest.fixture(autouse=True)
def _collect_unclosed_sockets() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    process, hosts = serve(folder, authority, authority.issue("server", "127.0.0.1")[2])
    try:
        # The client itself waits until the server is there: kazoo goes on trying until the deadline.
        tls = Tls(ca=str(authority.certificate))
        first = ZooKeeperZNodes(ZooKeeperSettings(hosts=hosts, tls=tls, connect_deadline_s=60, op_deadline_s=60))
        first.read(["/"])
        first.close()
        yield SecureServer(hosts, authority)
    finally:
        process.terminate()
        process.wait(30)


def settings(server: SecureServer, tls: Tls | None) -> ZooKeeperSettings:
    return ZooKeeperSettings(hosts=server.hosts, tls=tls, connect_deadline_s=3, session_timeout_s=6)


def test_a_ledger_works_over_tls(secure: SecureServer, ledger_root: str) -> None:
    tls = Tls(ca=str(secure.authority.certificate))
    with open_ledger(settings(secure, tls), "words", root=ledger_root) as ledger:
        ledger.register(DEFINITION)
        committed_up_to(ledger, 2)
        assert list(statuses(ledger)) == [1, 2]


def test_a_server_that_another_authority_signed_is_refused(secure: SecureServer, tmp_path: Path) -> None:
    stranger = Authority(tmp_path)
    with (
        pytest.raises(LedgerUnavailableError, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"),
        open_ledger(settings(secure, Tls(ca=str(stranger.certificate))), "words") as ledger,
    ):
        ledger.topology()


def test_the_host_name_is_checked_unless_it_is_switched_off(
    tmp_path: Path, ledger_root: str, secure: SecureServer
) -> None:
    """The certificate is right, and of another host."""
    process, hosts = serve(tmp_path, secure.authority, secure.authority.issue("elsewhere", "192.0.2.7")[2])
    other = SecureServer(hosts, secure.authority)
    try:
        unchecked = Tls(ca=str(secure.authority.certificate), check_hostname=False)
        patient = ZooKeeperSettings(hosts=hosts, tls=unchecked, connect_deadline_s=60, op_deadline_s=60)
        with open_ledger(patient, "words", root=ledger_root) as ledger:
            ledger.register(DEFINITION)
        with (
            pytest.raises(LedgerUnavailableError, match=r"IP address mismatch|Hostname mismatch|not valid for"),
            open_ledger(
                settings(other, Tls(ca=str(secure.authority.certificate))), "words", root=ledger_root
            ) as ledger,
        ):
            ledger.topology()
    finally:
        process.terminate()
        process.wait(30)


def test_a_certificate_is_an_identity_that_alone_may_see_its_ledger(secure: SecureServer, ledger_root: str) -> None:
    certificate, key, _ = secure.authority.issue("airflow")
    authority = str(secure.authority.certificate)
    known = Tls(ca=authority, certificate=str(certificate), key=str(key), acl_identity="CN=airflow")
    with open_ledger(settings(secure, known), "words", root=ledger_root) as ledger:
        ledger.register(DEFINITION)
        committed_up_to(ledger, 1)
    with (
        pytest.raises(LedgerAuthError, match="denies access"),
        open_ledger(settings(secure, Tls(ca=authority)), "words", root=ledger_root) as ledger,
    ):
        ledger.topology()
