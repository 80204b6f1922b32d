"""Checks the arguments of verbs: which fields a function appends, which fields an aggregator reads.

Checks a type that is written for a field against the type that is known of it: an engine that converts must lose
nothing, and a value that does not fit must be an error in every engine.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from airflow_trident.contracts.state import StateFactory
from airflow_trident.errors import FieldError, PlanError
from airflow_trident.operations.expressions import decimal_parts
from airflow_trident.operations.interfaces import Aggregator, CombinerAggregator, OfFields, ReducerAggregator
from airflow_trident.operations.state_functions import StatefulFunction
from airflow_trident.operations.user_functions import function_name, output_types, returned, type_of_annotation
from airflow_trident.plan.nodes import Aggregation
from airflow_trident.types import (
    WHOLE_TYPES,
    Field,
    FieldSpec,
    Schema,
    ddl,
    members,
    names_of,
    parse_declared,
    parse_names,
    parse_type,
    select,
    split_spec,
)


def require_lossless(fields: Schema, known_types: Sequence[str | None], subject: str, cure: str) -> None:
    """:param known_types: the type of each field; None: it is not known, and what is written is believed.
    :raises FieldError: a written type would cut or change values of the known one.
    """
    for field, known_type in zip(fields, known_types, strict=True):
        if known_type is not None and not _keeps(known_type, field.type):
            raise FieldError(f"{subject} gives {known_type}, and {field.name!r} is declared {field.type}", cure)


def _keeps(source_type: str, wanted: str) -> bool:
    """A whole number or decimal that is too large is an error in every engine; a digit behind the point that is cut off
    is none."""
    if source_type in (wanted, "void"):
        return True
    if source_type in WHOLE_TYPES:
        return wanted in (*WHOLE_TYPES, "double") or _decimal_keeps(0, wanted)
    if source_type == "float":
        return wanted == "double"
    if parts := decimal_parts(source_type):
        return _decimal_keeps(parts[1], wanted)
    return _same_parts(members(source_type), members(wanted))


def _decimal_keeps(scale: int, wanted: str) -> bool:
    parts = decimal_parts(wanted)
    return parts is not None and parts[1] >= scale


def _same_parts(source_fields: Sequence[Field], wanted: Sequence[Field]) -> bool:
    names = [field.name for field in source_fields]
    return (
        bool(names)
        and names == [field.name for field in wanted]
        and all(_keeps(field.type, other.type) for field, other in zip(source_fields, wanted, strict=True))
    )


def require_callable(verb: str, function: Any, method: str, *, may_yield: bool = False) -> None:
    """:raises PlanError: neither a plain function nor an object with `method`, a class instead of an object, or a
    function whose body would never run."""
    if isinstance(function, type):
        raise PlanError(f"{verb} got the class {function.__name__}", f"Give an object: {function.__name__}().")
    if not callable(getattr(function, method, None)) and not callable(function):
        raise PlanError(f"{verb} got {function!r}", f"Give a function, or an object with a method {method}().")
    require_plain(verb, function, method, may_yield=may_yield)


_LIFE = ("prepare", "cleanup")
_HOOKS = ("pre_prepare", "pre_commit", "pre_rollback")


def require_plain(verb: str, function: Any, *methods: str, may_yield: bool = False) -> None:
    """Refuses functions that await or yield: their bodies would never run.

    :param methods: of the object. A plain function is the first one itself.
    :param may_yield: the result of the first one is iterated.
    :raises PlanError: a method awaits, or yields where it may not.
    """
    for method in (*methods, *_LIFE):
        called = getattr(function, method, function if method == methods[0] else None)
        if called is None or isinstance(called, type):
            continue
        body = called if inspect.isroutine(called) or isinstance(called, partial) else type(called).__call__
        yields = inspect.isgeneratorfunction(body) and not (may_yield and method == methods[0])
        if yields or inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body):
            name = "" if called is function else f".{method}"
            raise PlanError(
                f"{verb} got {function_name(function)}{name}(), which {'yields' if yields else 'is async'}: its body "
                "would never run",
                "Write a plain function: return the result, or emit by the collector.",
            )


def require_factory(state: object) -> StateFactory:
    """:raises PlanError: `state` is no state factory."""
    if not isinstance(state, StateFactory):
        raise PlanError(f"{state!r} is no state", 'Give a state factory, as in SqliteState("counts.db").')
    return state


def require_stateful(function: object, *, emits: bool) -> None:
    """
    :param emits: does the function have outputs?
    :raises PlanError: it is no object of a StatefulFunction, or what its `execute` yields would be lost.
    """
    if not isinstance(function, StatefulFunction):
        made = function.__name__ if isinstance(function, type) else repr(function)
        raise PlanError(
            f"stateful got {made}", "Give an object of a subclass of StatefulFunction, or of BaseStatefulBolt."
        )
    if inspect.isgeneratorfunction(function.execute) and not emits:
        raise PlanError(
            f"{type(function).__qualname__}.execute() yields, and the stateful function has no output stream",
            'Name what it emits, as in stateful(..., outputs="word string, n long"), or let it change its state only.',
        )
    require_plain("stateful", function, "execute", "init_state", *_HOOKS, may_yield=True)


def bolt_outputs(name: str, declared: Schema, outputs: Schema) -> Schema:
    """What a stateful bolt emits.

    :param outputs: the fields in the call of `stateful`, if any.
    :raises PlanError: the two differ.
    """
    if outputs and outputs != declared:
        declaration = ddl(declared) or "nothing"
        raise PlanError(
            f"stateful got outputs ({ddl(outputs)}) for {name}, which declares {declaration} in "
            "declare_output_fields()",
            "Leave outputs out: the bolt says it.",
        )
    return declared


def declared_outputs(function: Any, method: str, outputs: FieldSpec, *, many: bool) -> Schema:
    """The fields of `outputs`, with types from there, from `output_types`, or from annotations."""
    written = getattr(function, "output_types", ())
    if written:
        return parse_declared(outputs, [parse_type(part) for part in split_spec(written)])
    called: Callable[..., Any] = getattr(function, method, function)
    return parse_declared(outputs, output_types(called, many=many))


def named_aggregations(verb: str, arguments: tuple[Any, ...], by_output: Mapping[str, Any]) -> tuple[Any, ...]:
    """``total=Sum("price")`` and ``total=("price", Sum())`` as arguments of :func:`aggregations`.

    :raises PlanError: there are arguments of both forms.
    """
    if not by_output:
        return arguments
    if arguments:
        raise PlanError(
            f"{verb} got both named aggregators and others",
            f'Name all, as in {verb}(n=Count(), total=Sum("price")), or none.',
        )
    return tuple(
        (*(aggregator if isinstance(aggregator, tuple) else (aggregator,)), output)
        for output, aggregator in by_output.items()
    )


def aggregations(verb: str, schema: Schema, arguments: tuple[Any, ...]) -> tuple[Aggregation, ...]:
    """``(aggregator, output)``, ``(inputs, aggregator, output)``, or tuples of those, as aggregations.

    :raises PlanError: neither form. :raises FieldError: fields or types do not fit.
    """
    several = arguments if arguments and all(isinstance(part, tuple) for part in arguments) else (arguments,)
    return tuple(_aggregation(verb, schema, part) for part in several)


def persistent_aggregations(schema: Schema, arguments: tuple[Any, ...]) -> tuple[Aggregation, ...]:
    """As :func:`aggregations`, all of which can be combined with a stored value.

    :raises PlanError: there is a general aggregator, or there are several and one is no combiner.
    """
    several = aggregations("persistent_aggregate", schema, arguments)
    for aggregation in several:
        if aggregation.combiner is None and (len(several) > 1 or isinstance(aggregation.aggregator, Aggregator)):
            raise PlanError(
                f"persistent_aggregate cannot keep {type(aggregation.aggregator).__name__}",
                "It takes combiners, or one reducer; use aggregate() and partition_persist() for anything else.",
            )
    return several


def _aggregation(verb: str, schema: Schema, arguments: tuple[Any, ...]) -> Aggregation:
    if len(arguments) not in (2, 3) or not isinstance(
        arguments[-2], CombinerAggregator | ReducerAggregator | Aggregator
    ):
        first = {"persistent_aggregate": "state, ", "window": "config, state, "}.get(verb, "")
        raise PlanError(
            f"{verb} takes ({first}aggregator, output) or ({first}inputs, aggregator, output)",
            f'As in {verb}({first}Count(), "n") or {verb}({first}"price", Sum(), "total"), with objects, not classes.',
        )
    aggregator, output = arguments[-2], arguments[-1]
    require_plain(verb, aggregator, "init", "zero", "combine", "reduce", "aggregate", "complete")
    aggregator, reads = _and_its_fields(verb, aggregator, parse_names(arguments[0]) if len(arguments) == 3 else ())
    input_types = tuple(field.type for field in select(schema, reads, verb))
    if isinstance(aggregator, Aggregator):
        result_spec = aggregator.result_type(input_types)
        written = [parse_type(part) for part in split_spec(result_spec or aggregator.output_types)]
        outputs = parse_declared(output, written)
        if result_spec and len(outputs) == len(written):
            _require_type(aggregator, outputs, written)
        return Aggregation(aggregator=aggregator, reads=reads, output=outputs)
    declared = parse_declared(output, [_result_type(aggregator, input_types)])
    if len(declared) != 1:
        raise FieldError(f"{verb} gives one field and {', '.join(names_of(declared))} are named", "Name one.")
    if isinstance(aggregator, CombinerAggregator):
        _require_type(aggregator, declared, [aggregator.result_type(input_types)])
    return Aggregation(aggregator=aggregator, reads=reads, output=declared)


def _and_its_fields(verb: str, aggregator: Any, reads: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
    """The aggregator as it is without fields of its own, and the fields that it reads."""
    if not isinstance(aggregator, OfFields) or not aggregator.inputs:
        return aggregator, reads
    if reads:
        name = type(aggregator).__name__
        raise PlanError(
            f"{verb} names the fields of {name} twice: ({', '.join(reads)}) and ({', '.join(aggregator.inputs)})",
            f"Name them once: {name}({', '.join(map(repr, reads))}).",
        )
    plain = copy.copy(aggregator)
    del plain.inputs
    return plain, aggregator.inputs


def _require_type(aggregator: object, fields: Schema, known_types: Sequence[str | None]) -> None:
    cure = "Leave the type away, or convert what is read before: each(col(...).cast(...), ...)."
    require_lossless(fields, known_types, type(aggregator).__name__, cure)


def _result_type(
    aggregator: CombinerAggregator[Any] | ReducerAggregator[Any], input_types: tuple[str, ...]
) -> str | None:
    if isinstance(aggregator, CombinerAggregator):
        result_type = aggregator.result_type(input_types)
        if result_type is not None:
            return result_type
    if aggregator.output_types:
        return parse_type(split_spec(aggregator.output_types)[0])
    step = aggregator.combine if isinstance(aggregator, CombinerAggregator) else aggregator.reduce
    return type_of_annotation(returned(step))
