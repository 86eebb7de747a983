"""Forks of the journal of BGTplanner's collector, for all three kinds of slots."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from hushstream.replay.audits.draws import fresh_key
from hushstream.replay.audits.roles.forks import AS_IT_WAS, Branch, Fork, columns, fork_row
from hushstream.replay.audits.roles.played import PlayedRole
from hushstream.replay.audits.roles.worked import phase_end_fields
from hushstream.replay.audits.row import Recipe
from hushstream.systems.bgt.configuration import UNIT, BgtConfig, Kind
from hushstream.systems.bgt.deployment import BgtSystem
from hushstream.systems.bgt.records import round_fields
from hushstream.systems.bgt.rounds import Round
from hushstream.systems.bgt.shuffler.collector import CollectorMachine
from hushstream.systems.bgt.shuffler.sums import Sums
from hushstream.systems.bgt.slots import Slots, null_slots, packed_slots

SLOTS = 4
CELLS = 100
"""The number of cells of a round that are compared; each is one run."""


def round_of(config: BgtConfig, rounds: tuple[Round, ...], number: int) -> Fork:
    """The fork of one round; the rounds before it hold null slots."""
    system, key, asked = BgtSystem.of(config, np.zeros((config.items, config.features))), fresh_key(), rounds[number]

    def play(branch: Branch, nonce: bytes) -> NDArray[np.float64]:
        role = PlayedRole(partial(CollectorMachine, system, 0, key), nonce=nonce, epoch_nonce=branch.epoch_nonce)
        for before in rounds[:number]:
            _answer(role, system, before, null_slots(SLOTS, config), AS_IT_WAS)
        slots = null_slots(SLOTS, config)
        if branch.other_contents:
            _fill(slots, asked.kind)
        _answer(role, system, asked, slots, branch)
        sums = Sums(asked, config)
        sums.add(slots)
        released = np.frombuffer(role.published("releases", "RatingSums")[-1]["sums"], "<i8")
        return columns((released - sums.cells().ravel())[:CELLS])

    price = system.guarantee().cost
    return Fork("bgt", "collector", play, price + price)


def _fill(slots: Slots, kind: Kind) -> None:
    """Let the first slot rate two items, so that every kind of round has content to count."""
    slots.items[0, :2], slots.values[0, :2] = (0, 1), UNIT // 4
    if kind == "items":
        slots.weights[0] = UNIT // 16
    if kind == "factors":
        slots.directions[0, 0] = UNIT // 2


def _answer(role: PlayedRole, system: BgtSystem, asked: Round, slots: Slots, branch: Branch) -> None:
    """Send all slots of a round, then end it."""
    if asked.number:
        role.put("updates", "RatingRound", round_fields(asked, asked.number, system.digest))
    for place, content in enumerate(packed_slots(slots)):
        name = branch.number(place) + (asked.number << 60)
        fields = {"slot_id": name.to_bytes(16, "big"), "config_digest": system.digest, "round": asked.number}
        role.put("updates", "RatingSlot", {**fields, "content": content})
    role.put("updates", "Seal", {**phase_end_fields(system.digest, asked.number), "origin": 0})
    role.work()


def fork_rows(config: BgtConfig, rounds: tuple[Round, ...]) -> tuple[Recipe, ...]:
    """All audits of forks, in the order of the table."""
    return tuple(
        fork_row(f"forked-round-{asked.kind}", "cells", partial(round_of, config, rounds, number))
        for number, asked in enumerate(rounds)
    )
