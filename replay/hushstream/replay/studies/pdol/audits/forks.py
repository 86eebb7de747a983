"""Forks of the journals of PDOL's nodes: both counters, and the form of the paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.machine import Machine
from hushstream.replay.audits.draws import fresh_key
from hushstream.replay.audits.roles.forks import Branch, Fork, columns, fork_row
from hushstream.replay.audits.roles.played import PlayedRole
from hushstream.replay.audits.roles.worked import phase_end_fields
from hushstream.replay.audits.row import Recipe
from hushstream.systems.pdol.algorithm.gossip import GossipNode
from hushstream.systems.pdol.algorithm.graphs import mixing_of
from hushstream.systems.pdol.algorithm.rows import Rows
from hushstream.systems.pdol.configuration import UNIT, PdolConfig
from hushstream.systems.pdol.deployment import PdolSystem
from hushstream.systems.pdol.guarantee import epoch_guarantee
from hushstream.systems.pdol.nodes.counter_sharing import counter_home
from hushstream.systems.pdol.nodes.gossip_sharing import gossip_home

RECORDS = 2
"""The number of records in a leaf."""


def leaves(config: PdolConfig) -> Fork:
    """The fork of a node's first release; each feature is one run. The model is still 0, so a gradient is -y q."""
    sharing = replace(config.sharing, slots_per_release=RECORDS, epochs=2)
    system, key = PdolSystem.of(replace(config, sharing=sharing)), fresh_key()

    def play(branch: Branch, nonce: bytes) -> NDArray[np.float64]:
        role = _played(partial(counter_home, system, 0, key), branch, nonce, RECORDS)
        (release,) = role.published("releases", "GradientSum")
        exact = np.zeros(config.records.dimension)
        # Both records are of the first feature; in the other branch the first one has the opposite label.
        exact[0] = -UNIT * (RECORDS - 2 * branch.other_contents)
        return columns(np.frombuffer(release["sums"], "<i8") - exact)

    price = epoch_guarantee(system.config).cost
    return Fork("pdol", "node", play, price + price)


def parameters(config: PdolConfig) -> Fork:
    """The fork of the message that a node of the paper's form sends after its first round; each feature is one run."""
    system, key = PdolSystem.of(config), fresh_key()
    assert config.gossip is not None
    mixing = mixing_of(config.gossip, config.nodes)

    def play(branch: Branch, nonce: bytes) -> NDArray[np.float64]:
        role = _played(partial(gossip_home, system, 0, key), branch, nonce, 1)
        (sent,) = role.published("parameters", "Parameters")
        label = -1 if branch.other_contents else 1
        exact = GossipNode(0, mixing, config).step(_record(label), np.zeros(config.records.dimension, np.int64))[1]
        return columns(np.frombuffer(sent["values"], "<i8") - exact)

    price = epoch_guarantee(config).cost
    return Fork("pdol", "node", play, price + price)


def _played(make: Callable[[], Machine], branch: Branch, nonce: bytes, records: int) -> PlayedRole:
    """A node that learns from records of the first feature alone, each of another person, and ends a phase."""
    role = PlayedRole(make, nonce=nonce, epoch_nonce=branch.epoch_nonce)
    row = _record(1)
    for event in range(records):
        name = {"event_id": f"event-{branch.number(event)}", "user": f"user-{event}"}
        place = {"indices": row.indices.astype("<i4").tobytes(), "values": row.values.astype("<i4").tobytes()}
        role.put("records", "Record", {**name, "node": 0, **place, "after_phase": -1})
        role.put("records", "Label", {**name, "label": -1 if branch.other_contents and not event else 1})
    role.put("records", "Seal", phase_end_fields(bytes(16), 0))
    role.work()
    return role


def _record(label: int) -> Rows:
    return Rows(
        np.array([0, 1], dtype=np.int64),
        np.zeros(1, dtype=np.int32),
        np.full(1, UNIT, dtype=np.int64),
        np.full(1, label, dtype=np.int8),
    )


def fork_rows(blt: PdolConfig, digits: PdolConfig, gossip: PdolConfig) -> tuple[Recipe, ...]:
    """All audits of forks, in the order of the table."""
    return (
        fork_row("forked-node-blt", "features", partial(leaves, blt)),
        fork_row("forked-node-negative-digit", "features, after a suspected rollback", partial(leaves, digits)),
        fork_row("forked-gossip", "parameters", partial(parameters, gossip)),
    )
