"""Noise leaves by one way: every role that writes a noised topic is rolled back, forked and renewed (`noise_drive`).

The roles are found by the flags of their topics, so nobody can leave one out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from noise_drive import NoiseDrive, noised_topics

from hushstream.engine.declare.role import Role
from hushstream.schemas.topics import common_name
from hushstream.systems.catalogue import kinds
from machine_drive import Rig
from recordings import VARIANTS, Recording, Variant, every_home, recorded, require_all, unplayed

pytestmark = pytest.mark.slow

require_all(kinds())


def writes_noise(recording: Recording, role: Role) -> bool:
    """Whether a role has a key, and writes a topic on which noise leaves."""
    return role.key_zone is not None and bool(noised_topics(recording) & {*role.writes, *role.writes_abroad})


def cases() -> Iterator[Any]:
    for one in every_home():
        variant, place = one.values
        with variant.registered():
            if writes_noise(unplayed(variant), list(unplayed(variant).homes())[place][0]):
                yield one


@cache
def drive(variant: Variant, place: int) -> tuple[list[str], frozenset[str]]:
    """The flaws of a role, and which changes gave other noise."""
    with variant.registered():
        role, home = list(recorded(variant).homes())[place]
        made = NoiseDrive(Rig(recorded(variant), role, home))
        return made.flaws(), frozenset(what for what, count in made.told.items() if count)


@pytest.mark.parametrize(("variant", "place"), tuple(cases()))
def test_a_role_that_is_rolled_back_forked_or_renewed_shares_no_noise_between_contents(variant, place):
    assert drive(variant, place)[0] == []


@pytest.mark.parametrize("kind", sorted({variant.kind for variant in VARIANTS}))
def test_every_such_role_of_a_system_is_forked_over_other_contents_and_other_ids(kind):
    """What devices have sealed cannot be changed here: then a recording of the same role without seals is changed."""
    left = {common_name(role.name): {"content", "ids"} for _, role, _ in driven(kind)}
    for variant, role, place in driven(kind):
        if left[common_name(role.name)]:
            left[common_name(role.name)] -= drive(variant, place)[1]
    assert not any(left.values()), f"expected a change that gives other noise for each role, got none for {left}"


def driven(kind: str) -> Iterator[tuple[Variant, Role, int]]:
    """(variant, role, place among its homes) of each role of a system that writes noise."""
    for variant in VARIANTS:
        if variant.kind == kind:
            with variant.registered():
                found = [
                    (role, place)
                    for place, (role, _) in enumerate(recorded(variant).homes())
                    if writes_noise(recorded(variant), role)
                ]
            yield from ((variant, role, place) for role, place in found)
