"""The scenarios: which contenders are compared, and the targets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.data import Corpus

CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("plain", {}),
    "available_now": ("available_now", {}),
    "submit_per_batch": ("submit_per_batch", {}),
    "stateful": ("stateful", {}),
    "loop": ("loop", {}),
    "loop, 2 threads": ("loop", {"threads": 2}),
    "drain": ("drain", {}),
    "drain, max_pending 1": ("drain", {"max_pending": 1}),
    "drain, group 1": ("drain", {"group": 1}),
    "drain, own DataFrames": ("drain", {"own": True}),
    "drain, own SQL": ("drain", {"sql": True}),
    "drain, own SQL, archive": ("drain", {"sql": True, "archive": True}),
    "drain, own DataFrames, archive": ("drain", {"own": True, "archive": True}),
    "drain, own DataFrames row by row": ("drain", {"rowwise": True}),
    "drain, by transaction": ("drain", {"by_transaction": True}),
    "drain, archive": ("drain", {"archive": True}),
    "drain, functions": ("drain", {"functions": True}),
    "drain, staged in S3": ("drain", {"s3": True}),
    "drain, PostgreSQL": ("drain", {"postgres": True}),
    "drain, PostgreSQL, max_pending 1": ("drain", {"postgres": True, "max_pending": 1}),
    "phases on Connect": ("phases", {"connect": True}),
    "phases submitted": ("phases", {}),
    "phases submitted, archive": ("phases", {"archive": True}),
    "submit_per_batch on YARN": ("submit_per_batch", {"yarn": True}),
    "phases on YARN": ("phases", {"yarn": True}),
}
"""Name -> function and its options. Without `archive` class archives are switched off: stock Java starts. `s3`: staging
in a bucket of moto's server. `yarn`: Hadoop's mini cluster, with the drivers in it."""

_OWN = (
    "drain, own DataFrames",
    "drain, own DataFrames, archive",
    "drain, own SQL",
    "drain, own SQL, archive",
)

PER_BATCH = frozenset({"submit_per_batch", "phases"})
"""Functions that run the same process for each batch: only few batches are run, and the rest is calculated."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """`ours` / `theirs` must be at most `most`; None: the ratio is only shown. `measure`: "work_s" (Spark is up),
    "wall_s" (the whole process), "process_s" (the process that processes a batch) or "peak_mb"."""

    ours: str
    theirs: str
    most: float | None
    measure: str = "work_s"

    @property
    def title(self) -> str:
        what = {
            "work_s": "work",
            "wall_s": "whole process",
            "process_s": "processing one batch",
            "peak_mb": "peak memory",
        }[self.measure]
        return f"{self.ours} / {self.theirs}, {what}"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """`runs`: profile -> how many rounds; the scenario is left out of other profiles. In a round every contender runs
    once; each round begins with another contender."""

    name: str
    corpus: Corpus
    contenders: tuple[str, ...]
    targets: tuple[Target, ...]
    runs: Mapping[str, int] = field(default_factory=dict)

    def among(self, names: Collection[str]) -> Scenario:
        """With these contenders only, and the targets between them; with all contenders if none is named."""
        if not names:
            return self
        left = tuple(one for one in self.contenders if one in names)
        targets = tuple(one for one in self.targets if one.ours in left and one.theirs in left)
        return replace(self, contenders=left, targets=targets)


SCENARIOS = (
    Scenario(
        name="smoke",
        corpus=Corpus(batches=5, lines=1_000),
        contenders=("plain", "loop", "available_now", "drain", "drain, own SQL"),
        targets=(),
        runs={"ci": 1},
    ),
    Scenario(
        name="100 x 1e5",
        corpus=Corpus(batches=100, lines=100_000),
        contenders=(
            "loop",
            "loop, 2 threads",
            "drain",
            "drain, by transaction",
            "drain, own DataFrames",
            "drain, own SQL",
            "drain, own DataFrames row by row",
            "drain, archive",
            "available_now",
            "plain",
        ),
        targets=(
            Target(ours="drain", theirs="loop", most=0.70),
            Target(ours="drain", theirs="loop, 2 threads", most=1.10),
            Target(ours="drain", theirs="available_now", most=0.90),
            Target(ours="drain", theirs="plain", most=1.4),
            Target(ours="drain, by transaction", theirs="plain", most=2.0),
            Target(ours="drain, own DataFrames", theirs="plain", most=1.4),
            Target(ours="drain, own SQL", theirs="plain", most=1.4),
            Target(ours="drain, own DataFrames row by row", theirs="plain", most=1.4),
            Target(ours="drain, archive", theirs="plain", most=2.5),
        ),
        runs={"main": 2, "full": 5},
    ),
    Scenario(
        name="100 x 1e4",
        corpus=Corpus(batches=100, lines=10_000),
        contenders=(
            "plain",
            "loop",
            "drain",
            "drain, by transaction",
            "drain, group 1",
            "available_now",
            "drain, functions",
        ),
        targets=(
            Target(ours="drain", theirs="plain", most=1.5),
            Target(ours="drain, by transaction", theirs="plain", most=2.2),
            Target(ours="drain", theirs="available_now", most=0.33),
            Target(ours="drain", theirs="loop", most=0.50),
            Target(ours="drain, group 1", theirs="loop", most=1.10),
        ),
        runs={"main": 3, "full": 5},
    ),
    Scenario(
        name="staged in S3, 100 x 1e4",
        corpus=Corpus(batches=100, lines=10_000),
        contenders=("drain", "drain, staged in S3"),
        targets=(Target(ours="drain, staged in S3", theirs="drain", most=1.3),),
        runs={"full": 5},
    ),
    Scenario(
        name="YARN, 4 x 1e4",
        corpus=Corpus(batches=4, lines=10_000),
        contenders=("submit_per_batch on YARN", "phases on YARN"),
        targets=(Target(ours="phases on YARN", theirs="submit_per_batch on YARN", most=None, measure="process_s"),),
        runs={"full": 5},
    ),
    Scenario(
        name="stateful, 100 x 1e4",
        corpus=Corpus(batches=100, lines=10_000),
        contenders=("drain", "stateful", "loop"),
        targets=(
            Target(ours="drain", theirs="stateful", most=0.45),
            Target(ours="loop", theirs="stateful", most=None),
            Target(ours="drain", theirs="stateful", most=0.6, measure="peak_mb"),
            Target(ours="loop", theirs="stateful", most=None, measure="peak_mb"),
        ),
        runs={"main": 1, "full": 5},
    ),
    Scenario(
        name="10 x 1e6",
        corpus=Corpus(batches=10, lines=1_000_000),
        contenders=("plain", "drain", "drain, archive"),
        targets=(
            Target(ours="drain", theirs="plain", most=1.25, measure="wall_s"),
            Target(ours="drain, archive", theirs="plain", most=1.0, measure="wall_s"),
        ),
        runs={"main": 1, "full": 5},
    ),
    *(
        Scenario(
            name=f"own DataFrames, 10 x 1e6, {'Parquet' if parquet else 'text'}",
            corpus=Corpus(batches=10, lines=1_000_000, parquet=parquet),
            contenders=("plain", *_OWN),
            targets=tuple(Target(ours=ours, theirs="plain", most=1.15, measure="wall_s") for ours in _OWN),
            runs={"full": 5},
        )
        for parquet in (False, True)
    ),
    Scenario(
        name="10 x 1e4",
        corpus=Corpus(batches=10, lines=10_000),
        contenders=("drain", "available_now"),
        targets=(Target(ours="drain", theirs="available_now", most=1.0, measure="wall_s"),),
        runs={"full": 5},
    ),
    Scenario(
        name="1,000 x 1e3",
        corpus=Corpus(batches=1_000, lines=1_000),
        contenders=("plain", "drain", "drain, by transaction", "drain, group 1", "loop", "available_now"),
        targets=(
            Target(ours="drain", theirs="plain", most=2.0),
            Target(ours="drain, by transaction", theirs="plain", most=2.5),
            Target(ours="drain", theirs="available_now", most=0.10),
            Target(ours="drain", theirs="loop", most=0.20),
            Target(ours="drain, group 1", theirs="loop", most=1.10),
        ),
        runs={"full": 5},
    ),
    Scenario(
        name="tasks, 100 x 1e4",
        corpus=Corpus(batches=100, lines=10_000),
        contenders=(
            "submit_per_batch",
            "drain",
            "phases on Connect",
            "phases submitted",
            "phases submitted, archive",
        ),
        targets=(
            Target(ours="drain", theirs="submit_per_batch", most=0.05, measure="wall_s"),
            Target(ours="phases on Connect", theirs="submit_per_batch", most=1 / 3, measure="wall_s"),
            Target(ours="phases submitted, archive", theirs="submit_per_batch", most=0.60, measure="process_s"),
            Target(ours="phases submitted, archive", theirs="submit_per_batch", most=None, measure="wall_s"),
        ),
        runs={"main": 1, "full": 5},
    ),
    Scenario(
        name="PostgreSQL, keys 1e5, 20 x 1e5",
        corpus=Corpus(batches=20, lines=100_000, keys=100_000),
        contenders=("drain, PostgreSQL, max_pending 1", "drain, PostgreSQL"),
        targets=(Target(ours="drain, PostgreSQL", theirs="drain, PostgreSQL, max_pending 1", most=0.85),),
        runs={"full": 5},
    ),
    Scenario(
        name="keys 1e5, 20 x 1e5",
        corpus=Corpus(batches=20, lines=100_000, keys=100_000),
        contenders=("loop", "drain", "drain, max_pending 1", "available_now"),
        targets=(Target(ours="drain", theirs="loop", most=None),),
        runs={"full": 5},
    ),
    Scenario(
        name="keys 1e6, 20 x 1e5",
        corpus=Corpus(batches=20, lines=100_000, keys=1_000_000),
        contenders=("loop", "drain", "drain, max_pending 1", "available_now"),
        targets=(Target(ours="drain", theirs="loop", most=None),),
        runs={"full": 5},
    ),
)
