"""Topics and roles that each party of a deployment has of its own, for instance each of several vendors.

A system declares such a topic or role once, with `each`. A deployment has one for each party, with the party's name
behind a dot: ``clicks.alpha`` is read by ``learner.alpha`` and written by ``client.alpha``. Zones, keys, groups,
accounts and duties go with it, so that the access rules of a broker keep parties apart as they keep zones apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from hushstream.engine.declare.role import Role
from hushstream.schemas.topics import PUBLISHED, Topic, letter_reader, of_party


def topics_of(topics: Iterable[Topic], parties: Sequence[str]) -> tuple[Topic, ...]:
    """The topics of a deployment with these parties."""
    return tuple(
        one for topic in topics for one in ([_own(topic, party) for party in parties] if topic.each else [topic])
    )


def roles_of(roles: Iterable[Role], topics: Iterable[Topic], parties: Sequence[str]) -> tuple[Role, ...]:
    """The roles of a deployment with these parties; ``topics`` are as the system declares them."""
    each = {topic.name: topic.each for topic in topics}
    return tuple(
        one
        for role in roles
        for one in ([_own_role(role, each, party, parties) for party in parties] if role.each else [role])
    )


def _own(topic: Topic, party: str) -> Topic:
    zone = topic.zone if topic.zone == PUBLISHED else of_party(topic.zone, party)
    letters = topic.reader == letter_reader(topic.zone)
    reader = letter_reader(zone) if letters else topic.reader
    return replace(topic, name=of_party(topic.name, party), zone=zone, reader=reader, party=party)


def _own_role(role: Role, each: Mapping[str, bool], party: str, parties: Sequence[str]) -> Role:
    def own(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(of_party(name, party) if each[name] else name for name in names)

    abroad = tuple(of_party(name, other) for name in role.writes_abroad for other in parties if other != party)
    return replace(
        role,
        name=of_party(role.name, party),
        party=party,
        zone=of_party(role.zone, party),
        key_zone=None if role.key_zone is None else of_party(role.key_zone, party),
        inputs=own(role.inputs),
        journal=own([role.journal])[0],
        writes=(*own(role.writes), *abroad),
        writes_abroad=(),
        broadcasts=own(role.broadcasts),
        marks=None if role.marks is None else own([role.marks])[0],
        make=partial(role.make, party=party),
        proof=partial(role.proof, party=party),
    )
