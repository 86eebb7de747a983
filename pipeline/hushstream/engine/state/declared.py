"""The state of a role, declared once: a role names each field and its form, and the engine derives the rest.

    class Counter(OneInput):
        state = State("a counter's state", "CounterState", POSITION, leaf=integer(), leaves=raw(), known=known_ids())
        derived = {"system": FIXED, "sums": "opened anew by `open_noise`"}

From the declaration follow the schema on disk, packing, restoring, packing in portions, and save points. A field that a
role forgot would be lost at a restart, and the role would release the same window again with other noise. So a class
whose methods set an attribute that is neither declared nor listed in ``derived`` cannot be imported (`Declared`).

The order of the fields is their order on disk, and the order in which they are restored.

*Parts.* Parts of packed states that more than one role has.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType
from typing import Any, ClassVar, Protocol

import numpy as np

from hushstream.engine.state.packed import Form, KnownIds, finished
from hushstream.feedback.memory import BoundedMap
from hushstream.schemas.errors import HushstreamError


def record(name: str, **fields: Any) -> dict[str, Any]:
    """An Avro record schema from its fields."""
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def array(items: Any) -> dict[str, Any]:
    """An Avro array schema."""
    return {"type": "array", "items": items}


READER = record(
    "Reader",
    position="long",
    chain="Chain",
    highs=array(record("High", topic="string", partition="int", high="long")),
)
PAST = record(
    "Past",
    event_id="string",
    user="string",
    arm="int",
    propensity="long",
    model_version="int",
    expired="boolean",
)
EARLY_FEEDBACK = record(
    "EarlyOutcome",
    kind="int",
    event_id="string",
    user="string",
    arm="int",
    reward="double",
    offset="long",
    row="int",
    time_ms="long",
)


FIXED = "follows from the deployment, the home partition and the keys, and never changes"
"""Reason why an attribute is no state: the constructor's caller gives it the same value after a restart."""

Values = Mapping[str, Any]
"""Values on disk, by their names there."""


class Field(Protocol):
    """One attribute of a role, and how it is written."""

    @property
    def saved(self) -> bool:
        """Whether save points hold it. False if nothing changes it before its journal record was acknowledged."""

    def schema(self, name: str) -> Mapping[str, Any]:
        """Its Avro types, by their names on disk; ``name`` is the attribute."""

    def dump(self, role: Any, name: str) -> Values:
        """Its values on disk."""

    def load(self, role: Any, name: str, values: Values) -> None:
        """Set the attribute to the dumped value.

        Raises:
            HushstreamError: the values are of another deployment, partition, configuration or shape.
        """


@dataclass(frozen=True, slots=True)
class Single:
    """A field with one value on disk.

    Attributes:
        avro: its type.
        pack: converts the attribute to the value on disk.
        unpack: makes the attribute from the value on disk and the attribute of a new role.
        disk: its name on disk; by default that of the attribute.
        saved: see `Field.saved`.
    """

    avro: Any
    pack: Callable[[Any], Any]
    unpack: Callable[[Any, Any], Any]
    disk: str = ""
    saved: bool = True

    def schema(self, name: str) -> Mapping[str, Any]:
        """See `Field.schema`."""
        return {self.disk or name: self.avro}

    def dump(self, role: Any, name: str) -> Values:
        """See `Field.dump`."""
        return {self.disk or name: self.pack(getattr(role, name))}

    def load(self, role: Any, name: str, values: Values) -> None:
        """See `Field.load`."""
        setattr(role, name, self.unpack(values[self.disk or name], getattr(role, name)))


@dataclass(frozen=True, slots=True)
class Several:
    """A field with several values on disk, or a field that needs the whole role to be restored.

    Attributes:
        avro: types by names on disk.
        pack: makes the values on disk from the role.
        unpack: sets the role's attribute from the values on disk.
        saved: see `Field.saved`.
    """

    avro: Mapping[str, Any]
    pack: Callable[[Any], Values]
    unpack: Callable[[Any, Values], None]
    saved: bool = True

    def schema(self, name: str) -> Mapping[str, Any]:
        """See `Field.schema`."""
        return self.avro

    def dump(self, role: Any, name: str) -> Values:
        """See `Field.dump`."""
        return self.pack(role)

    def load(self, role: Any, name: str, values: Values) -> None:
        """See `Field.load`."""
        self.unpack(role, values)


def integer(avro: str = "long", *, disk: str = "") -> Single:
    """A whole number."""
    return Single(avro, _same, _given, disk)


def boolean() -> Single:
    """True or false."""
    return Single("boolean", _same, _given)


def raw() -> Single:
    """Bytes."""
    return Single("bytes", _same, _given)


def listed(items: Any) -> Single:
    """A list of values that Avro knows."""
    return Single(array(items), list, lambda value, before: list(value))


def whole_bytes(size: int) -> Single:
    """An unsigned integer of a given number of bytes; it may have more than 64 bits."""
    return Single(
        "bytes", lambda value: value.to_bytes(size, "little"), lambda value, _: int.from_bytes(value, "little")
    )


def rows(kind: str, *, disk: str = "") -> Single:
    """An array with items of type ``kind`` on disk; shape and type in memory are those of a new role's array."""

    def unpack(value: bytes, before: Any) -> Any:
        return np.frombuffer(value, kind).reshape(before.shape).astype(before.dtype)

    return Single("bytes", lambda value: value.astype(kind).tobytes(), unpack, disk)


def known_ids() -> Single:
    """All ids that were ever counted.

    They grow only after a journal record was acknowledged, so no save point holds them.
    """
    return Single("bytes", lambda known: known.dump(), lambda value, _: KnownIds.load(value), saved=False)


def recent_ids() -> Single:
    """Remembered ids, oldest first, up to a capacity."""

    def unpack(value: Iterable[str], before: BoundedMap[None]) -> BoundedMap[None]:
        known: BoundedMap[None] = BoundedMap(before.capacity)
        for identity in value:
            known.put(identity, None)
        return known

    return Single(array("string"), lambda known: [identity for identity, _ in known.items()], unpack)


def remembered(avro: Any, row: Callable[..., Any]) -> Single:
    """Remembered events, oldest first, up to a capacity.

    Args:
        avro: record of one event: ``event_id``, and the fields of ``row``.
        row: the named tuple for an event.
    """

    def pack(events: BoundedMap[Any]) -> Iterator[dict[str, Any]]:
        return ({"event_id": event_id, **found._asdict()} for event_id, found in events.copy().items())

    def unpack(value: Iterable[dict[str, Any]], before: BoundedMap[Any]) -> BoundedMap[Any]:
        events = type(before)(before.capacity)
        for item in value:
            events.put(item.pop("event_id"), row(**item))
        return events

    return Single(array(avro), pack, unpack)


class Packs(Protocol):
    """A part of a role that packs itself."""

    def dump(self) -> Any:
        """Its value on disk."""

    def load(self, state: Any) -> None:
        """Restore a dumped value."""


def own_part(avro: Any = "bytes") -> Single:
    """A part of the role that packs itself (`Packs`)."""

    def unpack(value: Any, before: Packs) -> Packs:
        before.load(value)
        return before

    return Single(avro, lambda value: value.dump(), unpack)


@dataclass(frozen=True, slots=True)
class Flat:
    """A part of the role that packs itself into several values, beside those of other fields.

    Attributes:
        avro: types by names on disk.
        saved: see `Field.saved`.
    """

    avro: Mapping[str, Any]
    saved: bool = True

    def schema(self, name: str) -> Mapping[str, Any]:
        """See `Field.schema`."""
        return self.avro

    def dump(self, role: Any, name: str) -> Values:
        """See `Field.dump`."""
        values: Values = getattr(role, name).dump()
        return values

    def load(self, role: Any, name: str, values: Values) -> None:
        """See `Field.load`."""
        getattr(role, name).load(values)


@dataclass(frozen=True, slots=True)
class Table:
    """A list of rows, which are named tuples or dataclasses; on disk one list for each column.

    Attributes:
        row: the class of a row.
        columns: Avro types of the columns' items, by names on disk, in the order of the row's fields.
        names: of the row's fields.
        saved: see `Field.saved`.
    """

    row: Callable[..., Any]
    columns: Mapping[str, str]
    names: tuple[str, ...]
    saved: bool = True

    def schema(self, name: str) -> Mapping[str, Any]:
        """See `Field.schema`."""
        return {disk: array(items) for disk, items in self.columns.items()}

    def dump(self, role: Any, name: str) -> Values:
        """See `Field.dump`."""
        held = getattr(role, name)
        return {disk: [getattr(row, own) for row in held] for disk, own in zip(self.columns, self.names, strict=True)}

    def load(self, role: Any, name: str, values: Values) -> None:
        """See `Field.load`."""
        columns = (values[disk] for disk in self.columns)
        setattr(role, name, [self.row(*cells) for cells in zip(*columns, strict=True)])


def optional_part(what: str) -> Single:
    """A part that some configurations do not have; then nothing is written.

    Args:
        what: the part, for errors.
    """

    def unpack(value: bytes, before: Packs | None) -> Packs | None:
        if before is not None:
            before.load(value)
        elif value:
            raise HushstreamError(f"snapshot: expected no {what}, got some")
        return before

    return Single("bytes", lambda value: b"" if value is None else value.dump(), unpack)


def after(method: str) -> Several:
    """A field without values on disk: it calls a method of the role when the fields before it were restored."""
    return Several({}, lambda role: {}, lambda role, values: getattr(role, method)())


@dataclass(frozen=True, slots=True)
class Inside:
    """A part of the role with fields of its own (`DeclaresFields`), beside those of the role.

    Attributes:
        fields: those of the part.
        saved: see `Field.saved`.
    """

    fields: Mapping[str, Field]
    saved: bool = True

    def schema(self, name: str) -> Mapping[str, Any]:
        """See `Field.schema`."""
        return {disk: avro for own, field in self.fields.items() for disk, avro in field.schema(own).items()}

    def dump(self, role: Any, name: str) -> Values:
        """See `Field.dump`."""
        part = getattr(role, name)
        return {disk: value for own, field in self.fields.items() for disk, value in field.dump(part, own).items()}

    def load(self, role: Any, name: str, values: Values) -> None:
        """See `Field.load`."""
        part = getattr(role, name)
        for own, field in self.fields.items():
            field.load(part, own, values)


class InPortions(Field, Protocol):
    """A large field that is packed in portions, while the role goes on folding."""

    def portions(self, role: Any, name: str) -> Generator[None, None, Values]:
        """As `Field.dump`, in portions, for the value at the first step. Close the generator to cancel it."""


class SavePoint(dict[str, Values]):
    """The values of a role's fields at one time, by attribute."""


class State:
    """The declared state of a role.

    Attributes:
        fields: fields by attribute, in their order on disk.
        form: the packed form.
    """

    def __init__(self, what: str, name: str, *shared: Mapping[str, Field], **own: Field) -> None:
        """Declare a state.

        Args:
            what: names the state in errors.
            name: of the Avro record.
            shared: fields that several roles have, which come first.
            own: fields of this role.
        """
        self.fields: Mapping[str, Field] = {key: field for some in (*shared, own) for key, field in some.items()}
        schema = {key: avro for name, field in self.fields.items() for key, avro in field.schema(name).items()}
        self.form = Form.of(what, record(name, **schema))
        self._large: Mapping[str, Any] = {
            key: field for key, field in self.fields.items() if hasattr(field, "portions")
        }

    def pack(self, role: Any) -> bytes:
        """A role's state as bytes."""
        if self._large:
            return finished(self.portions(role))
        values = self._dumped(role)
        return self.form.write(_held(values))

    def portions(self, role: Any) -> Generator[None, None, bytes]:
        """A role's state as bytes, packed in portions (see `hushstream.engine.machine.Machine.snapshot_portions`)."""
        with ExitStack() as stack:
            large = [field.portions(role, name) for name, field in self._large.items()]
            for part in large:
                stack.callback(part.close)
                next(part)
            values = self._dumped(role)
            yield
            for part in large:
                values |= yield from part
        return (yield from self.form.portions(values))

    def _dumped(self, role: Any) -> dict[str, Any]:
        small = ((name, field) for name, field in self.fields.items() if name not in self._large)
        return {key: value for name, field in small for key, value in field.dump(role, name).items()}

    def restore(self, role: Any, packed: bytes) -> None:
        """Restore a packed state.

        Raises:
            HushstreamError: damaged bytes, or those of another deployment, configuration or partition.
            OtherForm: they are of another form.
            ForeignJournal: they belong to another journal.
        """
        values = self.form.read(packed)
        for name, field in self.fields.items():
            field.load(role, name, values)

    def save_point(self, role: Any) -> SavePoint:
        """The values that `roll_back` needs; later folds do not change them."""
        return SavePoint((name, _held(field.dump(role, name))) for name, field in self.fields.items() if field.saved)

    def roll_back(self, role: Any, saved: SavePoint) -> None:
        """Bring a role back to a save point."""
        for name, values in saved.items():
            self.fields[name].load(role, name, values)


class DeclaresFields:
    """A class with declared fields. A subclass that sets an undeclared attribute cannot be imported.

    Attributes:
        fields: what is kept.
        derived: what is set and not kept, with the reason.
    """

    fields: ClassVar[Mapping[str, Field]]
    derived: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Compare what the class sets with what it declares.

        Raises:
            HushstreamError: an attribute is neither declared nor derived, or an exception names none that is set.
        """
        super().__init_subclass__(**options)
        if hasattr(cls, "fields"):
            require_declared(cls, cls.fields)


class Declared:
    """A class with a declared state. A subclass that sets an undeclared attribute cannot be imported.

    Attributes:
        state: the kept fields; an object may keep fewer than its class declares.
        derived: what is set and not kept, with the reason.
    """

    state: State
    derived: ClassVar[Mapping[str, str]] = {}

    def snapshot(self) -> bytes:
        """See `Machine.snapshot`."""
        return self.state.pack(self)

    def restore(self, snapshot: bytes) -> None:
        """See `Machine.restore`."""
        self.state.restore(self, snapshot)

    def __init_subclass__(cls, **options: Any) -> None:
        """Compare what the class sets with what it declares.

        Raises:
            HushstreamError: an attribute is neither declared nor derived, or an exception names none that is set.
        """
        super().__init_subclass__(**options)
        if getattr(cls, "state", None) is not None:
            require_declared(cls, cls.state.fields)


def require_declared(cls: type, fields: Iterable[str]) -> None:
    """Refuse a class that sets an attribute that is neither declared nor among its ``derived``.

    Raises:
        HushstreamError: there is one, or ``derived`` names one that is not set.
    """
    derived = {name for one in cls.__mro__ for name in vars(one).get("derived", ())}
    found, declared = attributes_set(cls), set(fields)
    forgotten, unused = sorted(found - declared - derived), sorted(derived - found)
    if forgotten:
        raise HushstreamError(
            f"{cls.__name__}: expected each attribute in its declared state, or in `derived` with a reason, got"
            f" {', '.join(forgotten)} in neither"
        )
    if unused or declared & derived:
        names = ", ".join([*unused, *sorted(declared & derived)])
        raise HushstreamError(f"{cls.__name__}: expected `derived` to name what is set and not declared, got {names}")


def attributes_set(cls: type) -> set[str]:
    """The names of all attributes that the methods of a class, and of those before it, set on ``self``."""
    return {name for one in cls.__mro__ for name in _set_in(one)}


@cache
def _set_in(cls: type) -> frozenset[str]:
    """The names of all attributes that the methods of this class alone set."""
    return frozenset(name for code in _methods(cls) for name in _set_on_self(code))


def _methods(cls: type) -> Iterator[CodeType]:
    for member in vars(cls).values():
        for function in (member, *(getattr(member, name, None) for name in ("fget", "fset", "func", "__wrapped__"))):
            if isinstance(function, FunctionType):
                yield function.__code__


_SETS = dis.opmap["STORE_ATTR"]


def _set_on_self(code: CodeType) -> Iterator[str]:
    loaded: Any = None
    # Most methods set no attribute. To list the instructions of all methods would take longer than most imports.
    for step in dis.get_instructions(code) if _SETS in code.co_code[::2] else ():
        if step.opname == "STORE_ATTR" and loaded == "self":
            yield step.argval
        # A later Python loads two names by one instruction, and the last one is on top of the stack.
        loaded = step.argval[-1] if isinstance(step.argval, tuple) and step.argval else step.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _set_on_self(constant)


def _held(values: Values) -> dict[str, Any]:
    """A list of lazily made values."""
    return {name: list(value) if isinstance(value, Iterator) else value for name, value in values.items()}


def _same(value: Any) -> Any:
    return value


def _given(value: Any, before: Any) -> Any:
    return value
