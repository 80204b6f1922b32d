"""The only decoder of durable JSON. A :class:`Format` names a kind of record, the versions that are read, and the error
for a damaged one. Frozen dataclasses give the fields and their types. Pure.

Every format promises:

- what a released version wrote loads for ever;
- an unknown field is tolerated: a newer version wrote it, and it is not essential;
- what is essential is a *feature*, named in the record's ``features``: an unknown one is refused;
- a missing field, a wrong type or invalid JSON is refused by name (P11), never guessed.

The format of the ledger's records: which version is written, and which features are known. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, TypeVar, get_type_hints

from airflow_trident.errors import ConfigurationError, CorruptRecordError, NewerRecordError, TridentError

T = TypeVar("T")
_FEATURES = "features"
_TO_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A kind of durable record.

    :param noun: stands before the place in error texts: ``the ledger record``.
    :param version: the version that is written and read.
    :param key: the field with the version.
    :param cure: what to do about a damaged record.
    :param error: what a damaged record raises.
    :param features: the features that this version understands.
    """

    noun: str
    version: int
    key: str = "v"
    cure: str
    error: type[TridentError] = CorruptRecordError
    features: frozenset[str] = frozenset()

    def damaged(self, subject: str, why: str) -> TridentError:
        return self.error(f"{self._name(subject)} is damaged: {why}", self.cure)

    def load(self, data: bytes | str, subject: str) -> dict[str, Any]:
        """The fields of a record, without its version.

        :param subject: its place, for error texts.
        :raises NewerRecordError: a newer version wrote it, or it uses a feature unknown to this one.
        :raises CorruptRecordError: (or :attr:`error`) it is damaged.
        """
        return self.open(self.parsed(data, subject), subject)

    def open(self, value: object, subject: str) -> dict[str, Any]:
        """As :meth:`load`, for parsed JSON."""
        body = dict(self.mapping(value, subject))
        version = body.pop(self.key, None)
        if is_whole(version) and version > self.version:
            raise NewerRecordError(
                f"{self._name(subject)} has version {version}, and this airflow-trident reads {self.version}",
                "Install the airflow-trident version that wrote it, or a newer one.",
            )
        if version != self.version or not is_whole(version):
            raise self.damaged(subject, f"its version is {version!r}")
        self._require_features(body.pop(_FEATURES, []), subject)
        return body

    def parsed(self, data: bytes | str, subject: str) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
            raise self.damaged(subject, f"it is not JSON ({error})") from error

    def mapping(self, value: object, subject: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.damaged(subject, f"it is not a JSON object but {short(value)}")
        return value

    def build(self, kind: type[T], body: Mapping[str, Any], subject: str, *, needed: Collection[str] = ()) -> T:
        """Builds a dataclass from the fields of a record; unknown ones are dropped.

        :param needed: fields that must be there although they have a default: every version of the format wrote them.
        """
        import msgspec

        missing = [name for name in needed if name not in body]
        if missing:
            raise self.damaged(subject, f"the field {missing[0]!r} is missing")
        try:
            converted = msgspec.convert(body, _wire(kind), strict=True)
        except (msgspec.ValidationError, RecursionError, UnicodeError) as error:
            raise self.damaged(subject, _why(error)) from error
        return kind(**{name: getattr(converted, name) for name in _names(kind)})

    def dump(self, body: Mapping[str, Any], subject: str) -> bytes:
        """:raises ConfigurationError: `body` has a value that JSON does not know."""
        return json_bytes({self.key: self.version, **body}, subject)

    def _name(self, subject: str) -> str:
        return f"{self.noun} {subject}".rstrip()

    def _require_features(self, features: object, subject: str) -> None:
        if not isinstance(features, list) or not all(isinstance(feature, str) for feature in features):
            raise self.damaged(subject, f"its features are {short(features)}")
        unknown = sorted(set(features) - self.features)
        if unknown:
            raise NewerRecordError(
                f"{self._name(subject)} uses what this airflow-trident does not know: {', '.join(map(repr, unknown))}",
                "Install the airflow-trident version that wrote it, or a newer one.",
            )


def unknown_fields(kind: type[Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `body` that the dataclass lacks: a newer version wrote them."""
    names = _names(kind)
    return {name: value for name, value in body.items() if name not in names}


def plain_fields(record: object) -> dict[str, Any]:
    """A dataclass as JSON values, at every level. As :func:`dataclasses.asdict`, at a tenth of the cost."""
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(record)
    return plain


def json_bytes(value: object, subject: str) -> bytes:
    """:param subject: names it in the error.
    :raises ConfigurationError: `value` has something that JSON does not know.
    """
    try:
        # ASCII only: invalid Unicode (a lone surrogate in a file name) survives as an escape.
        return _TO_JSON.encode(value).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{subject} cannot be written as JSON: {error}",
            "Use only dicts with text keys, lists, texts, finite numbers, booleans and None.",
        ) from error


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _fields(kind: Any) -> tuple[Field[Any], ...]:
    return tuple(member for member in fields(kind) if member.init)


_known_names: dict[type[Any], dict[str, None]] = {}


def _names(kind: type[Any]) -> dict[str, None]:
    """The names of the fields, in their order."""
    if kind not in _known_names:
        _known_names[kind] = dict.fromkeys(member.name for member in _fields(kind))
    return _known_names[kind]


_wires: dict[type[Any], Any] = {}


def _wire(kind: type[Any]) -> Any:
    """The same fields as a msgspec type. msgspec does not know `Json`, so that becomes Any."""
    import msgspec

    if kind not in _wires:
        hints = get_type_hints(kind, localns={"Json": Any})
        fields_ = [(member.name, hints[member.name], *_default(member)) for member in _fields(kind)]
        _wires[kind] = msgspec.defstruct(kind.__name__, fields_, kw_only=True)
    return _wires[kind]


def _default(member: Field[Any]) -> tuple[Any, ...]:
    import msgspec

    if member.default is not MISSING:
        return (member.default,)
    if member.default_factory is not MISSING:
        return (msgspec.field(default_factory=member.default_factory),)
    return ()


def _why(error: Exception) -> str:
    """``Expected `int`, got `str` - at `$.claim.run_ms` `` -> which field, and what was expected."""
    text, at, place = str(error).replace("`", "").partition(" - at $")
    text = text[:1].lower() + text[1:]
    return f"field {place.lstrip('.')!r}: {text}" if at else text


VERSION = 1
SHARED_METADATA = "shared-metadata"
"""The feature of a record whose metadata is a patch of another record's: a version that cannot read it must stop."""
PARTITIONS = "partitions"
"""The feature of a topology that is bound to partitions: a version that does not know it would begin what is new."""
RECORDS = Format(
    noun="the ledger record",
    version=VERSION,
    cure="Nothing is guessed: restore the ledger from a back-up, or mend this record by hand.",
    features=frozenset({PARTITIONS, SHARED_METADATA}),
)


def require(holds: bool, path: str, otherwise: str) -> None:
    """:raises CorruptRecordError: unless `holds`: the record at `path` is damaged, as `otherwise` says."""
    if not holds:
        raise RECORDS.damaged(path, otherwise)
