"""Forks of the journal of P-DAP's counter."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from hushstream.replay.audits.draws import fresh_key
from hushstream.replay.audits.roles.forks import Branch, Fork, columns, fork_row
from hushstream.replay.audits.roles.played import PlayedRole
from hushstream.replay.audits.roles.worked import phase_end_fields
from hushstream.replay.audits.row import Recipe
from hushstream.systems.pdap.algorithm.outcomes import Outcomes
from hushstream.systems.pdap.cells import ROOT
from hushstream.systems.pdap.configuration import PdapConfig
from hushstream.systems.pdap.counter.machine import BlockCounterMachine
from hushstream.systems.pdap.deployment import PdapSystem
from hushstream.systems.pdap.promise import release_guarantee
from hushstream.systems.pdap.records import outcome_fields


def blocks(config: PdapConfig) -> Fork:
    """The fork of the block of each arm that one window releases; each arm is one run."""
    system, key = PdapSystem.of(config), fresh_key()
    arms = np.repeat(np.arange(config.arms), config.least_counts[0])

    def play(branch: Branch, nonce: bytes) -> NDArray[np.float64]:
        role = PlayedRole(partial(BlockCounterMachine, system, key), nonce=nonce, epoch_nonce=branch.epoch_nonce)
        root, rewards = np.full(len(arms), ROOT, dtype=np.int64), np.zeros(len(arms), dtype=np.int64)
        rewards[0] = branch.other_contents
        names = [list(branch.number(event).to_bytes(16, "big")) for event in range(len(arms))]
        outcomes = Outcomes(root, root, arms, rewards, np.array(names, dtype=np.uint8))
        role.put("outcomes", "Outcomes", outcome_fields(0, system.digest, outcomes))
        for origin in range(system.origins):
            role.put("outcomes", "Seal", {**phase_end_fields(system.digest, 0), "origin": origin})
        role.work()
        (release,) = role.published("releases", "BlockRelease")
        exact = np.bincount(arms, rewards, minlength=config.arms)
        return columns(np.frombuffer(release["sums"], "<i8") - exact[np.frombuffer(release["arms"], "<i4")])

    price = release_guarantee(config).cost
    return Fork("pdap", "counter", play, price + price)


def fork_rows(config: PdapConfig) -> tuple[Recipe, ...]:
    """All audits of forks."""
    return (fork_row("forked-blocks", "blocks of arms", partial(blocks, config)),)
