"""The manifests for Kubernetes, as far as that goes without a cluster: what they name is there, and three real servers
on loopback run with the configuration that stands in them."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_trident.cli.commands.doctor import Finding, Level, ledger_checks
from airflow_trident.errors import LedgerAuthError, LedgerUnavailableError
from airflow_trident.hooks.zookeeper import ZooKeeperHook
from airflow_trident.ledger.embedded.server import java_executable
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import DigestAuth, Tls, ZooKeeperSettings
from airflow_trident.protocol.records import Status
from tests.fixtures.certificates import Authority, secure_jars
from tests.fixtures.ledger import DEFINITION, begun, commit, committed_up_to, statuses
from tests.fixtures.spark import free_port

pytestmark = [
    pytest.mark.zookeeper,
    # kazoo does not close the socket of a handshake that failed; nobody holds it, so it goes when it is collected.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
HOST = "127.0.0.1"
OURS = DigestAuth(user="airflow", password="secret")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


SERVERS = {one["kind"]: one for one in documents("zookeeper.yaml")}
CERTIFICATES = documents("zookeeper-certificates.yaml")
(VALUES,) = documents("airflow-values.yaml")
CONFIG = SERVERS["ConfigMap"]["data"]["zoo.cfg"]
PODS = SERVERS["StatefulSet"]["spec"]
(CONTAINER,) = PODS["template"]["spec"]["containers"]


def test_every_object_selects_the_servers_and_names_what_is_there() -> None:
    labels = PODS["template"]["metadata"]["labels"]
    selectors = (
        PODS["selector"]["matchLabels"],
        SERVERS["Service"]["spec"]["selector"],
        SERVERS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        SERVERS["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    )
    assert all(selector.items() <= labels.items() for selector in selectors)
    volumes = {one["name"]: one for one in PODS["template"]["spec"]["volumes"]}
    claims = {one["metadata"]["name"] for one in PODS["volumeClaimTemplates"]}
    assert {one["name"] for one in CONTAINER["volumeMounts"]} == volumes.keys() | claims
    assert volumes["config"]["configMap"]["name"] == SERVERS["ConfigMap"]["metadata"]["name"]
    assert volumes["tls"]["secret"]["secretName"] == CERTIFICATES[-1]["spec"]["secretName"]
    assert PODS["serviceName"] == SERVERS["Service"]["metadata"]["name"]
    ports = {one["name"]: one["containerPort"] for one in CONTAINER["ports"]}
    assert {one["name"]: one["port"] for one in SERVERS["Service"]["spec"]["ports"]} == ports
    assert {CONTAINER[probe]["tcpSocket"]["port"] for probe in ("readinessProbe", "livenessProbe")} <= ports.keys()
    allowed = [port["port"] for rule in SERVERS["NetworkPolicy"]["spec"]["ingress"] for port in rule["ports"]]
    assert sorted(allowed) == sorted(ports.values())


def test_the_configuration_names_the_pods_the_mounts_and_no_port_without_tls() -> None:
    service = SERVERS["Service"]["metadata"]["name"]
    names = [f"{SERVERS['StatefulSet']['metadata']['name']}-{number}.{service}" for number in range(PODS["replicas"])]
    assert re.findall(r"^server\.(\d+)=(.*):2888:3888$", CONFIG, re.MULTILINE) == [
        (str(number), name) for number, name in enumerate(names, start=1)
    ]
    assert CERTIFICATES[-1]["spec"]["dnsNames"] == names
    assert "clientPort=" not in CONFIG.replace("secureClientPort=", "")
    mounts = {one["mountPath"] for one in CONTAINER["volumeMounts"]}
    assert {f"/{path.split('/')[1]}" for path in re.findall(r"=(/\S+)", CONFIG)} <= mounts
    # key and certificate in one file, which cert-manager calls so
    assert CERTIFICATES[-1]["spec"]["additionalOutputFormats"] == [{"type": "CombinedPEM"}]
    assert CERTIFICATES[-1]["spec"]["privateKey"]["encoding"] == "PKCS8"


def test_the_pods_of_airflow_get_the_authority_and_are_let_in() -> None:
    (client, _) = SERVERS["NetworkPolicy"]["spec"]["ingress"]
    assert client["from"] == [{"podSelector": {"matchLabels": VALUES["labels"]}}]
    (volume,) = VALUES["volumes"]
    assert volume["secret"] == {
        "secretName": CERTIFICATES[-1]["spec"]["secretName"],
        "items": [{"key": "ca.crt", "path": "ca.crt"}],
    }
    assert [one["name"] for one in VALUES["volumeMounts"]] == [volume["name"]]


@pytest.mark.parametrize(("pod", "number"), [("zookeeper-0", "1"), ("zookeeper-2", "3")])
def test_a_pod_begins_with_the_number_of_its_server(tmp_path: Path, pod: str, number: str) -> None:
    (line, _) = CONTAINER["args"][0].strip().splitlines()
    command = [*CONTAINER["command"], line.replace("/data/", f"{tmp_path}/")]
    subprocess.run(command, env={**os.environ, "HOSTNAME": pod}, check=True)
    assert (tmp_path / "myid").read_text() == f"{number}\n"


@dataclass
class Ensemble:
    hosts: str
    authority: Authority
    processes: list[subprocess.Popen[bytes]]

    def settings(self, auth: DigestAuth | None, deadline_s: float = 240) -> ZooKeeperSettings:
        tls = Tls(ca=str(self.authority.certificate))
        return ZooKeeperSettings(
            hosts=self.hosts, tls=tls, auth=auth, connect_deadline_s=deadline_s, op_deadline_s=deadline_s
        )


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """The three servers, each with the text of the manifest; only folders and addresses are those of this machine."""
    folder = tmp_path_factory.mktemp("ensemble")
    authority = Authority(folder)
    (folder / "tls").mkdir()
    (folder / "tls" / "tls-combined.pem").write_bytes(authority.issue("zookeeper", HOST)[2].read_bytes())
    (folder / "tls" / "ca.crt").write_bytes(authority.certificate.read_bytes())
    text, ports = CONFIG.replace("=/tls/", f"={folder}/tls/"), [free_port() for _ in range(3)]
    text = re.sub(r"=zookeeper-\d\.zookeeper:2888:3888", lambda _: f"={HOST}:{free_port()}:{free_port()}", text)
    processes = []
    for number, port in enumerate(ports, start=1):
        own = folder / str(number)
        for name in ("data", "datalog"):
            (own / name).mkdir(parents=True)
        (own / "data" / "myid").write_text(f"{number}\n")
        mine = text.replace("=/data", f"={own}/data").replace("secureClientPort=2281", f"secureClientPort={port}")
        (own / "zoo.cfg").write_text(mine)
        command = [java_executable(), "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-cp", os.pathsep.join(map(str, secure_jars()))]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(own / "zoo.cfg")]
        with (own / "out").open("wb") as out:
            processes.append(subprocess.Popen(command, stdout=out, stderr=out))
    try:
        yield Ensemble(",".join(f"{HOST}:{port}" for port in ports), authority, processes)
    finally:
        for process in processes:
            process.kill()
            process.wait(30)


def test_doctor_asks_each_server_of_the_ensemble_over_tls(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def found(**extra: Any) -> list[Finding]:
        login = {"login": OURS.user, "password": OURS.password}
        connection = {"conn_type": "zookeeper", "host": ensemble.hosts, **login, "extra": {"use_ssl": True, **extra}}
        monkeypatch.setenv("AIRFLOW_CONN_ZOOKEEPER_DEFAULT", json.dumps(connection))
        return list(ledger_checks(ZooKeeperHook()))

    ca = str(ensemble.authority.certificate)
    with open_ledger(ensemble.settings(OURS), "doctors") as ledger:  # waits until the servers have a leader
        ledger.register(DEFINITION)
    findings = found(ca=ca)
    assert {one.level for one in findings} <= {Level.OK, Level.WARN}, findings
    servers = [one.text for one in findings if one.subject == "server"]
    assert sorted(text.partition(": ")[0].rpartition(" ")[2] for text in servers) == ["follower", "follower", "leader"]
    assert sum(one.subject == "session" for one in findings) == 3
    assert any(one.subject == "access" and "digest:airflow" in one.text for one in findings)
    (tmp_path / "no.pem").write_text("no certificate")
    (_, refused) = found(ca=str(tmp_path / "no.pem"))
    assert (refused.level, refused.subject) == (Level.FAIL, "connection")
    assert "certificates of the connection cannot be used" in refused.text


def test_a_ledger_on_the_ensemble_survives_the_loss_of_a_server(ensemble: Ensemble) -> None:
    with open_ledger(ensemble.settings(OURS), "fruit") as ledger:
        ledger.register(DEFINITION)
        committed_up_to(ledger, 2)
        lost = ensemble.processes[0]
        lost.send_signal(signal.SIGKILL)
        lost.wait(30)
        commit(ledger, begun(ledger, 3))
        assert statuses(ledger) == dict.fromkeys((1, 2, 3), Status.COMMITTED)
    gc.collect()
    # the same nodes, for somebody else and for nobody
    other = ensemble.settings(DigestAuth(user="somebody", password="else"))
    with open_ledger(other, "fruit") as ledger, pytest.raises(LedgerAuthError):
        statuses(ledger)
    nobody = ensemble.settings(None, deadline_s=10)
    with open_ledger(nobody, "fruit") as ledger, pytest.raises((LedgerAuthError, LedgerUnavailableError)):
        statuses(ledger)
    gc.collect()
