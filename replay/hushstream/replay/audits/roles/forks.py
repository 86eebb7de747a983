"""Compares the releases of the branches of a journal that was rolled back.

Three branches continue one genesis record: the original one, one in which an event has another content, and one in
which an event has the same content under another id. The known content is subtracted, so the noise remains. Branches
that share noise would reveal the exact difference of contents. With equal contents under other ids they would confirm a
guess. A worker that suspects a rollback requests an epoch (`ReleasingMachine.request_epoch`); nothing else protects
noise that is drawn ahead of its content. So the other branches begin with such a request. It has no effect where ids
and contents are part of the noise address.

Cells, users or features of one release count as runs here, as other audits show that they share no noise.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.noise.epochs import EPOCH_NONCE_BYTES
from hushstream.privacy.amounts import Cost
from hushstream.privacy.audits.audit import AuditResult
from hushstream.replay.audits.draws import fresh_nonce
from hushstream.replay.audits.roles.noise import audit_places
from hushstream.replay.audits.row import Audit, Recipe

RUNS = 300
"""With this many runs, two places that share noise are detected with probability above 1 - 1e-6; a test shows it."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One continuation of a journal.

    Attributes:
        name: name of the branch.
        other_contents: whether an event holds another content than in the original branch.
        other_ids: whether an event has another id.
        epoch_nonce: nonce of the epoch that it requests at its beginning; empty for none.
    """

    name: str
    other_contents: bool = False
    other_ids: bool = False
    epoch_nonce: bytes = b""

    def number(self, event: int) -> int:
        """The number in an event's id; ``other_ids`` changes that of the first event, and keeps the order of ids."""
        return 2 * event + (self.other_ids and not event)


AS_IT_WAS = Branch("as it was")
BRANCHES = (AS_IT_WAS, Branch("other contents", other_contents=True), Branch("other ids", other_ids=True))

Play = Callable[[Branch, bytes], NDArray[np.float64]]
"""(branch, nonce of the journal) -> noise of the releases, (runs, places)."""


@dataclass(frozen=True, slots=True)
class Fork:
    """The releases of one role in branches of one journal.

    Attributes:
        system: the system of the role.
        role: the role that draws the noise.
        play: plays a branch, under one key.
        claimed: the price of a fork.
    """

    system: str
    role: str
    play: Play
    claimed: Cost

    def branches(self, nonce: bytes) -> list[NDArray[np.float64]]:
        """The noise of each of `BRANCHES`; each but the first requests an epoch."""
        return [self.play(AS_IT_WAS, nonce), *(self.play(requesting_epoch(branch), nonce) for branch in BRANCHES[1:])]

    def __call__(self, runs: int, false_alarm: float) -> AuditResult:
        """Audit that branches share no noise with one another."""

        def read() -> NDArray[np.float64]:
            return np.stack(self.branches(fresh_nonce()), axis=1)

        places = range(read().shape[2])
        axes = {"branch": [branch.name for branch in BRANCHES], "place": places}
        return audit_places(read, axes, None, self.claimed)(runs, false_alarm)


def requesting_epoch(branch: Branch) -> Branch:
    """The same branch with a request for an epoch."""
    return replace(branch, epoch_nonce=os.urandom(EPOCH_NONCE_BYTES))


def fork_row(name: str, places: str, make: Callable[[], Fork]) -> Recipe:
    """The row of a fork in the table of audits."""
    about = f"a journal rolled back, other contents or other ids in it: {places}"

    def audit() -> Audit:
        fork = make()
        return Audit(name, "role", about, RUNS, fork, factor=1, subjects=(fork,))

    return Recipe(name, audit)


def columns(noise: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.float64]:
    """The noise of one place in all runs, in the form of `Play`."""
    return np.asarray(noise, dtype=np.float64).reshape(-1, 1)
