"""The documentation leads somewhere, its code is code, and what the package offers stands in the reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

import airflow_trident
from airflow_trident import errors, functions, spouts, states, storm
from airflow_trident.errors import PlanError
from airflow_trident.ledger.verbs.commits import KEPT_CLAIMS, PRUNED_PER_COMMIT
from airflow_trident.ledger.znodes import RECORD_LIMIT_BYTES
from airflow_trident.names import DEFAULT_MAX_PENDING, DEFAULT_RETENTION, require_name
from airflow_trident.operations.windows import DEFAULT_MAX_AHEAD
from airflow_trident.plan.show.explain import explain
from airflow_trident.protocol.metadata import INLINE_BYTES
from airflow_trident.spouts.files.lines import MAX_LINE_BYTES
from airflow_trident.spouts.files.read_list import RECORD_BYTES, TAIL_RECORDS
from airflow_trident.spouts.files.spout import DEFAULT_MAX_BYTES, DEFAULT_MAX_FILES
from airflow_trident.topology.topology import Topology
from tests.documented import documented
from tests.model import tlc
from tests.simulation.day_mutants import MUTANTS
from tests.simulation.mutants import FOUND
from tools import reference_pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("**/*.md"))]
BESIDE = [*sorted((ROOT / "tests").glob("**/README.md")), ROOT / "benchmarks" / "README.md"]
"""Tables of what was checked and measured, beside the code that fills them."""
TUTORIAL = DOCS / "tutorial" / "first-topology.md"
SPARK_JOB = DOCS / "tutorial" / "spark-job.md"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def fenced_blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of each."""
    return _FENCE.findall(text_of(page))


def python_of(page: Path) -> list[str]:
    """Its blocks of Python."""
    return [body for language, body in fenced_blocks(page) if language == "python"]


def run(page: Path, blocks: slice = slice(None), **given: Any) -> dict[str, Any]:
    """Run blocks of a page one after the other, as a reader would in one file; the names that they made."""
    names: dict[str, Any] = {"__name__": page.stem.replace("-", "_"), "__file__": "/nowhere/dags/page.py", **given}
    exec(compile("\n".join(python_of(page)[blocks]), name_of(page), "exec", dont_inherit=True), names)
    return names


# ---- links -----------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    prose = _FENCE.sub("", text_of(page))
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose, re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.strip().lower())
        found.add(plain.replace(" ", "-"))
    return found


def links(page: Path) -> list[str]:
    prose = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text_of(page)))
    found = re.findall(r"\]\(([^)\s]+)\)", prose)
    return [link for link in found if not link.startswith(("http://", "https://"))]


@pytest.mark.parametrize("page", [*PAGES, *BESIDE], ids=name_of)
def test_every_link_leads_to_a_page_and_a_heading_of_it(page: Path) -> None:
    broken = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        paths = [link.partition("#")[0] for link in links(page)]
        waiting += [(page.parent / path).resolve() for path in paths if path.endswith(".md")]
    indexes = {DOCS / "README.md"}
    assert set(PAGES) - reached - indexes == set()


@pytest.mark.parametrize("folder", ["how-to", "reference", "storm", "concepts", "decisions"])
def test_every_index_lists_its_pages(folder: str) -> None:
    index = DOCS / folder / "README.md"
    listed = {link.partition("#")[0] for link in links(index)}
    assert {page.name for page in (DOCS / folder).glob("*.md")} - listed == {"README.md"}


@pytest.mark.parametrize("page", [*PAGES, *BESIDE], ids=name_of)
def test_no_page_names_a_place_on_one_machine(page: Path) -> None:
    assert re.findall(r"/(?:work|tmp|root)/\S*", text_of(page)) == []


# ---- code ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if python_of(page)], ids=name_of)
def test_every_block_of_python_compiles(page: Path) -> None:
    for block in python_of(page):
        compile(block, name_of(page), "exec", dont_inherit=True)


def built(names: dict[str, Any]) -> Topology:
    found = names["topology"]
    assert isinstance(found, Topology)
    return found


def test_the_example_of_the_readme_is_a_topology_and_a_dag() -> None:
    topology = built(run(ROOT / "README.md"))
    assert "split(line)" in explain(topology.compile())
    assert [str(field) for field in topology.states["count"].values] == ["count long"]


def test_the_topology_of_the_tutorial_plans_as_it_says() -> None:
    topology = built(run(TUTORIAL, slice(0, 1), __file__="/home/you/trident-tutorial/dags/fruit.py"))
    assert explain(topology.compile()).strip() in _indented(text_of(TUTORIAL))


def test_the_topology_of_the_second_page_plans_as_it_says() -> None:
    topology = built(run(SPARK_JOB, slice(1, 2), __file__="/home/you/ten-minutes/dags/daily.py"))
    _, begin, compiled = explain(topology.compile()).partition("compiled plan")
    assert f"{begin}{compiled}".strip() in _indented(text_of(SPARK_JOB))


def _indented(text: str) -> str:
    return re.sub(r"^ {4}", "", text, flags=re.MULTILINE)


def test_the_mended_function_of_the_tutorial_leaves_out_what_is_no_sale() -> None:
    mended = run(TUTORIAL, slice(1, 2), Iterator=Iterator)["parse"]
    assert [row for line in ("apple 4", "pear two") for row in mended(line)] == [("apple", 4)]


def test_the_guide_to_components_in_other_programs_builds_its_topology() -> None:
    topology = built(run(DOCS / "storm" / "components.md", slice(0, 1)))
    assert set(topology.states) == {"n", "long_words"}
    assert "ShellBolt 'python split.py'(line)" in explain(topology.compile())


def test_the_guide_to_topologies_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(DOCS / "how-to" / "write-a-topology.md")
    assert built(names).name == "trial"


def test_the_spout_of_the_guide_gives_every_number_once(tmp_path: Path) -> None:
    from airflow_trident import MemoryState, Sum
    from airflow_trident.engine.local import LocalEngine
    from airflow_trident.ledger.ledger import MemoryLedger
    from airflow_trident.runtime.local import LocalRunner

    spout = run(DOCS / "how-to" / "write-a-spout.md", slice(0, 1))["Numbers"](29, size=7)
    topology = Topology("numbers")
    state = topology.new_stream("numbers", spout).persistent_aggregate(MemoryState(str(tmp_path)), "n", Sum(), "sum")
    with MemoryLedger("numbers") as ledger, LocalEngine() as engine:
        done = LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(tmp_path)).run()
    with state.spec.factory.make_state(state.spec) as opened:
        assert (done, dict(opened.items())) == ([1, 2, 3, 4, 5], {(): (sum(range(29)),)})


def test_the_suites_of_the_guides_pass(tmp_path_factory: pytest.TempPathFactory) -> None:
    spouts = run(DOCS / "how-to" / "write-a-spout.md", slice(-1, None))
    spouts["test_the_spout_keeps_its_promises"]()
    states = run(DOCS / "how-to" / "write-a-state.md", slice(-1, None))
    states["test_the_state_keeps_its_promises"](tmp_path_factory)


class Store:
    """What the guide to states connects to."""

    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}
        self.marker: Any = None

    def transaction(self) -> nullcontext[None]:
        return nullcontext()

    def read_marker(self, _topology: str, _name: str) -> Any:
        return self.marker

    def write_marker(self, marker: Any) -> None:
        self.marker = marker

    def read(self, keys: list[Any]) -> list[Any]:
        return [self.rows.get(key) for key in keys]

    def write(self, key: Any, value: Any) -> None:
        self.rows[key] = value

    def close(self) -> None:
        """Its rows stay."""


def test_the_state_of_the_guide_has_every_transaction_once(tmp_path: Path) -> None:
    from airflow_trident import Sum
    from airflow_trident.engine.local import LocalEngine
    from airflow_trident.ledger.ledger import MemoryLedger
    from airflow_trident.runtime.local import LocalRunner

    store = Store()
    factory = run(DOCS / "how-to" / "write-a-state.md", slice(0, 1), connect=lambda _url: store)["MyState"]("here")
    spout = run(DOCS / "how-to" / "write-a-spout.md", slice(0, 1))["Numbers"](29, size=7)
    topology = Topology("numbers")
    topology.new_stream("numbers", spout).persistent_aggregate(factory, "n", Sum(), "sum")
    with MemoryLedger("numbers") as ledger, LocalEngine() as engine:
        done = LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(tmp_path)).run()
    assert (done, store.marker.high, store.rows) == ([1, 2, 3, 4, 5], 5, {(): (sum(range(29)),)})


# ---- the reference is complete ---------------------------------------------------------------------------------


def mentioned(page: str) -> set[str]:
    """What stands in backquotes, without arguments."""
    return {re.split(r"[^\w]", text)[0] for text in re.findall(r"`([^`\n]+)`", text_of(DOCS / page))}


def test_every_public_name_stands_in_the_reference() -> None:
    pages = [
        name_of(page).removeprefix("docs/")
        for room in ("reference", "storm", "how-to")
        for page in (DOCS / room).glob("*.md")
    ]
    packages = [airflow_trident, functions, spouts, states, storm]
    assert {name for package in packages for name in package.__all__} - set().union(*map(mentioned, pages)) == set()


def test_every_verb_of_streams_stands_in_the_reference() -> None:
    from airflow_trident import Stream
    from airflow_trident.topology.stream import GroupedStream

    verbs = {name for kind in (Topology, Stream, GroupedStream) for name in dir(kind) if not name.startswith("_")}
    internal = {"queries", "next_name", "add_source", "add_sink", "add_check", "set_node", "node", "label", "topology"}
    internal.add("replaced")
    assert verbs - internal - mentioned("reference/dsl.md") == set()


def test_every_expression_stands_in_the_reference() -> None:
    from airflow_trident.operations import expressions

    functions = {
        name
        for name, value in vars(expressions).items()
        if callable(value) and getattr(value, "__module__", "") == expressions.__name__ and name.islower()
    }
    of_types = {"common_type", "decimal_parts", "dtype", "kind", "resolve", "type_of_value", "to"}
    public = {name for name in functions if not name.startswith("_")} - of_types
    text = text_of(DOCS / "reference" / "expressions.md")
    assert {name for name in public if not re.search(rf"`[^`]*\b{name}\b[^`]*`", text)} == set()


@pytest.mark.parametrize("page", reference_pages.TABLES, ids=name_of)
def test_the_tables_of_the_reference_are_those_of_the_code(page: Path) -> None:
    assert text_of(page) == reference_pages.written(page), "run `make reference`"


def test_every_error_stands_in_the_reference_with_whether_it_is_retried() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (yes|no) \|$", text_of(DOCS / "reference" / "errors.md"), re.MULTILINE))
    classes = {
        name: "yes" if value.outcome is errors.Outcome.RETRY else "no"
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.TridentError) and value is not errors.TridentError
    }
    assert rows == classes


@pytest.mark.parametrize(
    "name",
    [
        "TridentCoordinatorOperator",
        "TridentEmitterOperator",
        "TridentCommitterOperator",
        "TridentBackfillOperator",
        "TridentDrainOperator",
        "TridentSparkSubmitOperator",
        "TridentQueryOperator",
        "operators.query:TridentUpkeepOperator",
        "TridentReadySensor",
        "TridentTurnSensor",
        "trident_transaction",
    ],
)
def test_every_parameter_of_a_task_stands_in_the_reference(name: str) -> None:
    import inspect

    task = resolve_name(f"airflow_trident.{name}" if ":" in name else f"airflow_trident:{name}")
    parameters = inspect.signature(task).parameters.values()
    wanted = {one.name for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)}
    assert wanted - {"self"} - mentioned("reference/operators.md") - mentioned("reference/more-operators.md") == set()


def test_the_deadlines_of_a_ledger_that_is_away_are_those_of_the_code() -> None:
    from airflow_trident.ledger.ledger import STEP_DEADLINE_S
    from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings

    page = text_of(DOCS / "how-to" / "connect-to-zookeeper.md")
    assert f"(`op_deadline_s`, {ZooKeeperSettings(hosts='x').op_deadline_s:g} s)" in page
    assert f"waits up to {STEP_DEADLINE_S:g} s" in page


# ---- the protocol ----------------------------------------------------------------------------------------------


def test_the_tests_that_prove_promises_and_show_failures_are_where_the_protocol_says() -> None:
    promises, failures = text_of(DOCS / "protocol.md").split("## 6. Failure windows")
    rows = re.findall(r"^\| (P\d+) \|.*\| ([^|]+) \|$", promises, re.MULTILINE)
    assert [promise for promise, _ in rows] == [f"P{number}" for number in range(1, 13)]
    rows += re.findall(r"^\| ([a-zA-Z][^|]+) \| [^|]+ \|(.*)$", failures, re.MULTILINE)[1:]
    assert len(rows) > 25
    suites = (ROOT / "airflow_trident" / "testing" / "suites.py").read_text(encoding="utf-8")
    for promise, proof in rows:
        files = re.findall(r"`(tests/\w+/\w+\.py)`(?: \(([^)]+)\))?", proof)
        assert files, promise
        for file, named in files:
            tests = (ROOT / file).read_text(encoding="utf-8")
            tests += suites if "STATE_CHECKS" in tests else ""  # the checks that users' tests call, too
            for number in re.findall(r"[LPT]\d+", named):
                assert re.search(rf"def (test|check)_(\w+_)?{number.lower()}_", tests), (
                    f"{promise}: no {number} in {file}"
                )


def test_the_tables_of_what_was_checked_are_those_of_the_model_and_of_the_simulation() -> None:
    model, simulation = (text_of(ROOT / "tests" / part / "README.md") for part in ("model", "simulation"))
    states = {row[0].strip("`"): row[2].replace(",", "") for row in _rows(model) if row[0].strip("`") in tlc.STATES}
    assert states == {name: str(count) for name, count in tlc.STATES.items()}
    assert sorted(_first_cells(model[model.index("| guard removed |") :])) == sorted(tlc.MUTANTS)
    assert _first_cells(model[model.index("| guard that is taken out |") :]) == list(tlc.KEY_MUTANTS)
    assert f"{tlc.KEY_STATES:,} states" in model
    assert _first_cells(simulation[simulation.index("| defect | found at seed |") :]) == list(MUTANTS)
    seeds = {row[0]: row[1] for row in _rows(simulation) if len(row) == 3 and row[0] in FOUND}
    assert seeds == {name: str(seed) for name, seed in FOUND.items()}


def _rows(page: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:2] == "| "]


def _first_cells(page: str) -> list[str]:
    table = page[: page.index("\n\n")].splitlines()[2:]
    return [line.strip("|").split("|")[0].strip() for line in table]


SIZES: dict[str, tuple[str, int]] = {
    "a ledger record": (r"a ledger record \| (\d+) KB", RECORD_LIMIT_BYTES >> 10),
    "metadata in a record": (r"metadata of a transaction in its record \| (\d+) KB", INLINE_BYTES >> 10),
    "a read file": (r"a file that a `FileSpout` has read \| (\d+) bytes", RECORD_BYTES),
    "read files in the ledger": (r"the newest (\d+) in the ledger", TAIL_RECORDS),
    "a line of text": (r"a line of text \| (\d+) GiB", MAX_LINE_BYTES >> 30),
    "files of a batch": (r"a batch of `FileSpout` \| (\d+) files", DEFAULT_MAX_FILES),
    "bytes of a batch": (r"a batch of `FileSpout` \| .*, (\d+) MiB", DEFAULT_MAX_BYTES >> 20),
    "retention": (r"`retention`, (\d+) by default", DEFAULT_RETENTION),
    "pruned at once": (r"at most (\d+) records per commit", PRUNED_PER_COMMIT),
    "claim keys": (r"claim keys \| ([\d,]+) transactions", KEPT_CLAIMS),
}


@pytest.mark.parametrize("what", SIZES)
def test_a_limit_in_the_documentation_is_the_one_in_the_code(what: str) -> None:
    pattern, limit = SIZES[what]
    assert documented("reference/limits.md", pattern) == limit


def test_names_may_be_as_long_as_the_documentation_says() -> None:
    longest = documented("reference/limits.md", r"names of topologies, streams, states \| (\d+) characters")
    assert require_name("topology", "x" * longest) == "x" * longest
    with pytest.raises(PlanError, match=f"at most {longest}"):
        require_name("topology", "x" * (longest + 1))


def test_defaults_in_prose_are_those_of_the_code() -> None:
    assert documented("concepts/from-trident.md", r"`max_pending`, (\d+) by default; 1 is") == DEFAULT_MAX_PENDING
    minutes = documented("how-to/windows.md", r"`max_ahead` \((\d+) minutes\)")
    assert minutes == documented("reference/verbs.md", r"by more than this, (\d+) minutes by default")
    assert timedelta(minutes=minutes) == DEFAULT_MAX_AHEAD
