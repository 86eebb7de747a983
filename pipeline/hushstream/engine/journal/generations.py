"""Writes in the schema generation of what is replayed (`hushstream.schemas.catalogue`).

The first generation has all records. The second adds the generation that a journal was begun in (`Genesis`), and, in
bgt, names of noise that hold ids (`hushstream.systems.bgt.shuffler.collector`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Protocol, TypeAlias, TypeVar

from hushstream.engine.journal.chain import Chain
from hushstream.engine.records import InputSlice, Step


class Chained(Protocol):
    """A machine with a journal of its own."""

    chain: Chain


_Chained = TypeVar("_Chained", bound=Chained)
_Replay: TypeAlias = Callable[[_Chained, bytes, Sequence[InputSlice]], Step]


@contextmanager
def generation_of(chain: Chain, value: bytes) -> Iterator[None]:
    """Write in the schema generation of a journal record, whichever one this worker writes itself."""
    own, chain.schema_generation = chain.schema_generation, chain.read(value)[0].schema_generation
    try:
        yield
    finally:
        chain.schema_generation = own


def in_its_generation(replay: _Replay[_Chained]) -> _Replay[_Chained]:
    """Make a `Machine.replay` write in the schema generation of the journal record that it is given.

    So it gives the bytes that were released, whichever schema generation this worker writes itself.
    """

    @wraps(replay)
    def replay_in_its_generation(machine: _Chained, value: bytes, slices: Sequence[InputSlice]) -> Step:
        with generation_of(machine.chain, value):
            return replay(machine, value, slices)

    return replay_in_its_generation
