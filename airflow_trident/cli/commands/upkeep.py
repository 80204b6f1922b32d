"""``airflow trident state compact | fold | publish | view``."""

from __future__ import annotations

from argparse import Namespace

from airflow_trident import settings
from airflow_trident.cli.console import OK, UsageError, say, spark_conf, trident_command
from airflow_trident.cli.topologies import state_of
from airflow_trident.contracts.upkeep import Upkeep, View, ViewDialect

_DONE = {Upkeep.COMPACT: "compacted", Upkeep.FOLD: "folded", Upkeep.PUBLISH: "published"}


@trident_command
def compact(args: Namespace) -> int | None:
    by_spark = args.engine == "spark"
    if not by_spark and (args.spark_conn_id is not None or args.spark_conf or args.staging_dir is not None):
        raise UsageError("--spark-conn-id, --spark-conf and --staging-dir are for --engine spark. Give it, too.")
    return _keep_up(args, Upkeep.COMPACT, by_spark=by_spark)


@trident_command
def fold(args: Namespace) -> int | None:
    return _keep_up(args, Upkeep.FOLD)


@trident_command
def publish(args: Namespace) -> int | None:
    if args.view is None:
        if args.table is not None or args.spark_conn_id is not None or args.spark_conf:
            raise UsageError("--table, --spark-conn-id and --spark-conf are for a view. Name it: --view schema.name.")
        return _keep_up(args, Upkeep.PUBLISH)
    return _keep_up(args, Upkeep.PUBLISH, View(name=args.view, table=args.table), by_spark=True)


@trident_command
def view(args: Namespace) -> int | None:
    from airflow_trident.runtime.upkeep import latest_query

    print(latest_query(state_of(args), ViewDialect(args.dialect), args.table))
    return OK


def _keep_up(args: Namespace, act: Upkeep, view: View | None = None, *, by_spark: bool = False) -> int:
    from airflow_trident.runtime.upkeep import keep_up, require_upkeep

    def progress(line: str) -> None:
        say(f"state {args.state}: {line}")

    spec = state_of(args)
    require_upkeep(spec, act, view)
    if not by_spark:
        done = keep_up(spec, act, progress)
    else:
        from airflow_trident.tasks.engines import EngineKind, make_engine

        conf, name = spark_conf(args.spark_conf), f"airflow trident {spec.topology}"
        with make_engine(EngineKind.SPARK, conn_id=args.spark_conn_id, conf=conf, app_name=name) as engine:
            root = settings.staging_root(args.staging_dir) if view is None else None
            done = keep_up(spec, act, progress, view=view, engine=engine, staging_root=root)
    say(f"state {args.state}: {_DONE[act] if done else f'nothing to {act}'}")
    return OK
