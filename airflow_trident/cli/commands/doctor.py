"""``airflow trident doctor``: checks everything that a topology needs.

The checks of ``airflow trident doctor``. Each finding is ok, warn or fail, and a bad one has the cure.

What ``airflow trident doctor --spark-conn-id`` asks of a Spark.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import tempfile
import uuid
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution, version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import AirflowException

from airflow_trident import settings
from airflow_trident.cli.console import OK, PROBLEM, one_line, open_hook, text_of, trident_command
from airflow_trident.errors import TridentError
from airflow_trident.io.place import Place, clear, make_folder, sizes
from airflow_trident.io.places import place_at
from airflow_trident.names import EngineKind
from airflow_trident.protocol.diagnosis import Health, diagnose, troubles
from airflow_trident.tasks.engines import make_engine
from airflow_trident.tasks.task_instances import evidence_of

if TYPE_CHECKING:
    from airflow_trident.contracts.wing import Beside
    from airflow_trident.engine.spark.engine import TrialResult
    from airflow_trident.hooks.zookeeper import ZooKeeperHook
    from airflow_trident.ledger.ledger import ZNodeLedger
    from airflow_trident.ledger.open import Ledgers
    from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
    from airflow_trident.ledger.zookeeper.diagnose import ServerFacts
    from airflow_trident.protocol.records import LedgerView

SLOW_WRITE_MS = 50.0
"""A transaction of Airflow tasks waits for nine writes (five steps, four sessions): at this speed, half a second."""
MANY_BYTES = 500 * 2**20
"""ZooKeeper keeps all data in memory and writes snapshots of it to disk."""
LITTLE_SPACE_BYTES = 2**30
FEW_CONNECTIONS = 60
"""ZooKeeper's default. Every running task and every triggerer holds one connection."""
MANY_SKIPPED = 100
"""The records of SKIPPED transactions are kept until they are backfilled or closed."""
OPEN_RIGHTS = {"ALL", "WRITE", "CREATE", "DELETE", "ADMIN"}


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was checked, what was found, and the cure if something is wrong."""

    level: Level
    subject: str
    text: str


_ok = partial(Finding, Level.OK)
_warn = partial(Finding, Level.WARN)
_fail = partial(Finding, Level.FAIL)


def machine_checks(staging_dir: str | None) -> Iterator[Finding]:
    """What this machine needs: Java, libraries, configuration, folders."""
    yield _java()
    yield _pyspark()
    yield _pandas()
    yield from _configuration()
    yield _folder("staging", settings.STAGING_DIR, lambda: settings.staging_root(staging_dir))
    yield _folder("sources", settings.SOURCES_DIR, lambda: settings.sources_root(staging_dir))
    if not settings.text(settings.SOURCES_DIR):
        yield from _apart(staging_dir)


def ledger_checks(hook: ZooKeeperHook) -> Iterator[Finding]:
    """What the ledger needs of ZooKeeper. Ends early if an error makes further checks impossible."""
    try:
        wanted = hook.zookeeper_settings()
    except (TridentError, AirflowException) as error:
        yield _fail("connection", text_of(error))
        return
    kind = "TLS" if wanted.tls else "no TLS"
    user = f"user {wanted.auth.user}" if wanted.auth else "no user"
    yield _ok("connection", f"{hook.zookeeper_conn_id}: {wanted.hosts}{wanted.chroot} ({kind}, {user})")
    from airflow_trident.ledger.zookeeper.diagnose import server_facts

    try:
        for facts in server_facts(wanted):
            yield from _server(facts, wanted.session_timeout_s)
    except TridentError as error:
        yield _fail("connection", str(error))
        return
    with hook.get_ledgers() as ledgers:
        root = settings.text(settings.ROOT)
        for subject, check in (("write", _write), ("access", _access)):
            try:
                yield check(ledgers.znodes, root)
            except TridentError as error:
                yield _fail(subject, str(error))
                return
        yield from _topologies(ledgers)


# ---- this machine ----------------------------------------------------------------------------------------------


def _java() -> Finding:
    from airflow_trident.ledger.embedded.server import java_executable, java_version

    try:
        java = java_executable()
        return _ok("java", f"Java {java_version(java)} at {java}")
    except TridentError as error:
        return _fail("java", str(error))


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _pyspark() -> Finding:
    classic, client = _installed("pyspark"), _installed("pyspark-client")
    if classic is None:
        text = "pyspark is not installed: only engine='local' runs here. pip install 'airflow-trident[spark]'"
        if client is not None:
            text = f"pyspark-client {client}, without pyspark: Spark runs by Spark Connect only"
        return Finding(Level.WARN if client is None else Level.OK, "pyspark", text)
    if changed := changed_files("pyspark"):
        return _fail(
            "pyspark",
            f"{changed} files of pyspark {classic} are not those that it brought. pyspark-client "
            f"({client or 'not installed now'}) lies in the same folder: what is installed last overwrites files of "
            f"the other. Put them back: pip install --force-reinstall --no-deps pyspark=={classic}",
        )
    return _ok("pyspark", f"pyspark {classic}, pyspark-client {client or 'not installed'}")


def changed_files(name: str) -> int:
    """How many Python files of a package differ from their hash in the distribution's RECORD."""
    changed = 0
    for file in distribution(name).files or ():
        # Scripts outside of the package are left out: the installation changes their first line.
        if file.hash is None or file.suffix != ".py" or file.parts[0] != name:
            continue
        digest = hashlib.new(file.hash.mode, Path(str(file.locate())).read_bytes()).digest()
        changed += base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value
    return changed


def _pandas() -> Finding:
    pandas = _installed("pandas")
    if pandas is None and _installed("pyspark") is None and _installed("pyspark-client") is None:
        return _ok("pandas", "not installed, nor is Spark")
    if pandas is None or int(pandas.partition(".")[0]) >= 3:
        return _fail("pandas", f"pandas is {pandas}, and pyspark needs 2. pip install 'pandas>=2.2,<3'")
    return _ok("pandas", f"pandas {pandas}")


def _configuration() -> Iterator[Finding]:
    wrong = False
    for option in settings.OPTIONS:
        try:
            if option.type == "boolean":
                settings.flag(option)
            elif option.type in ("integer", "float"):
                settings.number(option, least=1 if option.type == "integer" else 0)
        except TridentError as error:
            wrong = True
            yield _fail("config", str(error))
    if not wrong:
        texts = {option: settings.text(option) for option in settings.OPTIONS}
        changed = [f"{option.name} = {text}" for option, text in texts.items() if text != option.default]
        yield _ok("config", f"[{settings.SECTION}] {', '.join(changed) or 'all defaults'}")


def _folder(subject: str, option: settings.Option, root_of: Callable[[], str]) -> Finding:
    try:
        place = place_at(root_of())
    except TridentError as error:
        return _fail(subject, str(error))
    return _local_folder(subject, option, Path(place.where)) if place.is_local else _objects(subject, place)


def _apart(staging_dir: str | None) -> Iterator[Finding]:
    """Is the folder of lists, which nobody chose, on another disk than staging?"""
    with suppress(TridentError, OSError):
        staging, sources = settings.staging_root(staging_dir), settings.sources_root(staging_dir)
        if os.path.isabs(staging) and os.stat(staging).st_dev != os.stat(sources).st_dev:
            yield _warn(
                "sources",
                f"{sources} is on another disk than {staging}, so other machines may not see it. Set [trident] "
                f"{settings.SOURCES_DIR.name} to a folder that all share.",
            )


def _objects(subject: str, place: Place) -> Finding:
    """Tries each verb once, since each may have a permission of its own."""
    folder = f".doctor-{uuid.uuid4().hex}"
    try:
        place.check()
        place.put(f"{folder}/probe", lambda file: file.write(b"x"))
        probe = place.read(f"{folder}/probe"), sizes(place, folder, [f"{folder}/probe"])
        clear(place, folder)
        remaining = list(place.list(folder))
    except (TridentError, FileNotFoundError) as error:
        return _fail(subject, str(error))
    if probe != (b"x", {f"{folder}/probe": 1}):
        return _fail(subject, f"{place.where} gives back something else than was put into it.")
    if remaining:
        return _warn(subject, f"{place.where} deletes nothing: old files stay. Give the right to delete objects.")
    return _ok(subject, f"{place.where} takes names once, and is read, listed and deleted from")


def _local_folder(subject: str, option: settings.Option, folder: Path) -> Finding:
    try:
        make_folder(str(folder))
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as probe:
            probe.write(b"x")
            probe.flush()
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        return _fail(
            subject,
            f"{folder} cannot be written ({error.strerror}). Set [trident] {option.name} to a folder that every worker "
            "and Spark executor may write to.",
        )
    if free_bytes < LITTLE_SPACE_BYTES:
        return _warn(subject, f"{folder} has only {free_bytes / 2**20:.0f} MB left. Make room.")
    return _ok(subject, f"{folder} is writable, {free_bytes / 2**30:.0f} GB free")


# ---- the ensemble ----------------------------------------------------------------------------------------------


def _server(facts: ServerFacts, wanted_timeout_s: float) -> Iterator[Finding]:
    if facts.session_timeout_s is None:
        yield _warn("server", f"{facts.address} gives no session. Check that it runs and that the port is right.")
        return
    if facts.version is None:
        yield _ok("server", f"{facts.address} answers, but tells nothing (4lw.commands.whitelist without srvr)")
    else:
        size = "" if facts.data_bytes is None else f", {facts.data_bytes / 2**20:.1f} MB of data"
        yield _ok(
            "server",
            f"{facts.address} is ZooKeeper {facts.version}, {facts.mode}: {facts.znodes} znodes{size}, "
            f"{facts.connections} connections",
        )
    if (facts.data_bytes or 0) > MANY_BYTES:
        yield _warn(
            "size",
            f"{facts.address} holds {(facts.data_bytes or 0) / 2**20:.0f} MB. Lower [trident] retention, or look for "
            "what else is kept there.",
        )
    if facts.max_connections is not None and 0 < facts.max_connections <= FEW_CONNECTIONS:
        yield _warn(
            "limit",
            f"{facts.address} lets one address have {facts.max_connections} connections, and every running task needs "
            "one. Set maxClientCnxns=0 (no limit) in its zoo.cfg.",
        )
    if facts.session_timeout_s < wanted_timeout_s:
        yield _warn(
            "session",
            f"{facts.address} grants a session timeout of {facts.session_timeout_s:g} s, not {wanted_timeout_s:g} s. "
            "Raise maxSessionTimeout in its zoo.cfg, or ask for less in the connection.",
        )
    else:
        yield _ok("session", f"{facts.address} grants a session timeout of {facts.session_timeout_s:g} s")


def _write(znodes: ZooKeeperZNodes, root: str) -> Finding:
    from airflow_trident.ledger.zookeeper.diagnose import write_latency_ms

    median_ms = write_latency_ms(znodes, root)
    if median_ms > SLOW_WRITE_MS:
        return _warn(
            "write",
            f"a durable write takes {median_ms:.0f} ms; a transaction needs five. Give ZooKeeper's log a disk "
            "of its own, near the workers.",
        )
    return _ok("write", f"a durable write below {root} takes {median_ms:.1f} ms")


def _access(znodes: ZooKeeperZNodes, root: str) -> Finding:
    from airflow_trident.ledger.zookeeper.diagnose import access_list

    entries = access_list(znodes, root) or []
    everybody = [rights for who, rights in entries if who == "world:anyone" and OPEN_RIGHTS & set(rights.split(","))]
    if everybody:
        signed = znodes.settings.auth or znodes.settings.tls
        how = "setAcl -R" if signed else "a login in the connection, before its first topology"
        return _warn(
            "access",
            f"whoever reaches ZooKeeper may change {root} (world:anyone {everybody[0]}). Protect it with {how}.",
        )
    return _ok("access", f"{root}: {', '.join(f'{who} {rights}' for who, rights in entries)}")


def _topologies(ledgers: Ledgers) -> Iterator[Finding]:
    names, beside = ledgers.names(), ledgers.beside()
    sound = 0
    for name in names:
        try:
            findings = list(_topology(name, ledgers.ledger(name), beside))
        except TridentError as error:
            findings = [_fail("ledger", f"topology {name}: {error}")]
        yield from findings
        sound += not any(finding.level is not Level.OK for finding in findings)
    yield _ok("ledger", f"{sound} of {len(names)} topologies without failed transactions")


def _topology(name: str, ledger: ZNodeLedger, beside: Beside) -> Iterator[Finding]:
    """What is wrong with one topology."""
    evidence = evidence_of(ledger, beside)
    yield from _many_skipped(name, evidence.view)
    for trouble in troubles(diagnose(evidence)):
        begins_nothing = trouble.state is Health.BLOCKED and trouble.culprit is None
        yield Finding(Level.FAIL if begins_nothing else Level.WARN, "topology", trouble.of(name))


def _many_skipped(name: str, view: LedgerView) -> Iterator[Finding]:
    """Decisions of people that may be forgotten: accepted losses, and many SKIPPED transactions."""
    for loss in view.topology.lost:
        why = f" ({loss.reason}{', ' * bool(loss.by)}{loss.by})" if loss.reason else ""
        yield _ok("ledger", f"topology {name}: state {loss.state} goes on without {loss.txids}{why}")
    skipped = view.exceptions.skipped
    if len(skipped) > MANY_SKIPPED:
        yield _warn(
            "ledger",
            f"topology {name}: {len(skipped)} SKIPPED transactions are kept, to be backfilled some day. Close what "
            f'nobody will replay: `airflow trident close {name} --all --reason "..."`',
        )


def spark_checks(conn_id: str | None, staging_dir: str | None = None) -> Iterator[Finding]:
    """Is Spark reached by the connection, of which version is it, what do its Python workers have, and do they see the
    staging folder? Nothing without a connection."""
    if conn_id is None:
        return
    from airflow_trident.engine.spark.workers import OLDEST_PYARROW

    try:
        trial = _tried(conn_id, staging_dir)
    except (TridentError, AirflowException) as error:
        yield Finding(Level.FAIL, "spark", f"{conn_id}: {text_of(error)}")
        return
    yield Finding(Level.OK, "spark", f"{conn_id}: {trial.about}")
    if trial.pyarrow < OLDEST_PYARROW:
        cure = f"Install pyarrow {OLDEST_PYARROW} or newer where the executors run."
        yield Finding(Level.FAIL, "executors", f"their Python workers have {trial.workers}. {cure}")
    else:
        yield Finding(Level.OK, "executors", f"their Python workers have {trial.workers}")
    if trial.mixes:
        yield Finding(Level.WARN, "spark", trial.mixes)
    if not trial.sees:
        yield Finding(
            Level.FAIL,
            "executors",
            f"they do not see the staging folder {settings.staging_root(staging_dir)}, which their driver sees. "
            "Mount it there under the same path, or stage in a bucket.",
        )


def _tried(conn_id: str, staging_dir: str | None) -> TrialResult:
    from airflow_trident.engine.spark.engine import SparkEngine, tried
    from airflow_trident.tasks.spark_submit import submitted_trial

    engine = make_engine(EngineKind.SPARK, conn_id=conn_id, conf={}, app_name="trident doctor")
    if not isinstance(engine, SparkEngine):
        return submitted_trial(conn_id, settings.staging_root(staging_dir))
    with engine:
        return tried(engine.sessions)


@trident_command
def doctor(args: Namespace) -> int | None:
    levels: Counter[Level] = Counter()
    checks = (
        machine_checks(args.staging_dir),
        spark_checks(args.spark_conn_id, args.staging_dir),
        ledger_checks(open_hook(args)),
    )
    for check in chain(*checks):
        levels[check.level] += 1
        print(f"{check.level:<4}  {check.subject:<10}  {one_line(check.text)}", flush=True)
    print(", ".join(f"{levels[level]} {level}" for level in Level))
    return PROBLEM if levels[Level.FAIL] else OK
