"""What an onlooker of all topics can tell of two histories that differ in one content, under several keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

from hushstream.replay.runners.direct import MemoryLog
from hushstream.schemas import codec
from hushstream.schemas.topics import common_name

Values = Counter[tuple[str, str, str]]


def values_on(log: MemoryLog, columns: bool = True) -> dict[str, Values]:
    """Every field of every record, by topic, of all parties.

    With ``columns``, bytes are counted as the multiset of their entries, too, whose order may be keyed.
    """
    found: dict[str, Values] = {}
    for (topic, _), records in log.partitions():
        there = found.setdefault(common_name(topic), Counter())
        for record in records:
            schema, fields = codec.decode(record.value)
            for name, value in fields.items():
                there[schema, name, repr(value)] += 1
                if columns and isinstance(value, bytes):
                    there[schema, name, repr(sorted(value[at : at + 4] for at in range(0, len(value), 4)))] += 1
    return found


@dataclass(frozen=True)
class Seen:
    """What an onlooker of all topics can tell.

    Attributes:
        unnoised: topics with something that is there under either key, and with one content alone.
        moved: by topic, the fields that differ between the contents under one key.
    """

    unnoised: frozenset[str]
    moved: Mapping[str, frozenset[str]]


def watched(
    played: Callable[[int, int], MemoryLog], contents: tuple[int, int], seeds: Sequence[int], columns: bool = True
) -> Seen:
    """What tells two contents apart; ``played`` gives the log of a content under the keys of a seed."""
    histories = {(one, seed): values_on(played(one, seed), columns) for one in contents for seed in seeds}
    stays, moved = {}, {}
    for topic in {topic for found in histories.values() for topic in found}:
        on = {place: found.get(topic, Counter()) for place, found in histories.items()}
        stays[topic] = [reduce(and_, (on[content, seed] for seed in seeds)) for content in contents]
        one, other = (on[content, seeds[0]] for content in contents)
        moved[topic] = frozenset(name for _, name, _ in (one - other) + (other - one))
    return Seen(frozenset(topic for topic, (one, other) in stays.items() if one != other), moved)
