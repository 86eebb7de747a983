"""Simulates what the visitors of a seed buy: the shop's deployment in this process, without broker and gateway.

Log time runs as if there were a fixed number of visits a second, however fast the machine is.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
from importlib.resources import as_file, files
from pathlib import Path

from hushstream.agents.worker.deployment import KeySource, prepare, read_config
from hushstream.agents.worker.roles import all_machines
from hushstream.client import Client
from hushstream.engine.declare.declaration import request_partitions
from hushstream.ops.check.findings import Verified
from hushstream.ops.check.verify import verify
from hushstream.ops.log_copy import LogCopy
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog
from hushstream.replay.runners.memory import MemoryLog
from hushstream.replay.shop import taste
from hushstream.replay.shop.traffic import BATCH, BATCHES_AT_ONCE, VISITS, Tally
from hushstream.schemas.errors import HushstreamError

VISITS_PER_SECOND = 400
_AT_ONCE = BATCH * BATCHES_AT_ONCE
_LAST_BINS = 10
"""The last points of the curve, which show whether the model pays."""


class Rehearsal:
    """One deployment, and all its visitors."""

    def __init__(self, folder: Path, seed: int) -> None:
        """Begin with no visitors.

        Args:
            folder: an empty folder for the prepared deployment.
            seed: seed of visitors, purchases and noise: nothing here is private.
        """
        with as_file(files(__package__) / "shop.yaml") as source:
            self.system = prepare(folder, read_config(source))
        self._visits = 0
        self._records = MemoryLog(lambda: self._visits * 1000 // VISITS_PER_SECOND)
        self._keys = KeySource(seed=seed)
        driver = DirectDriver(self._records, all_machines(self.system, self._keys), os.urandom(32))
        self._log = DirectEventLog(self._records, driver, request_partitions(self.system))
        self._draws = random.Random(seed)
        self._made_for = {one.item: one.features for one in taste.STOCK}
        self.tally = Tally()

    async def play(self, visitors: int, stock_changes: bool = False) -> None:
        """Play visitors, with as many at the same time as in the shop.

        Args:
            visitors: how many visitors come.
            stock_changes: whether an item is added after a third of them, and one withdrawn after two thirds.
        """
        everybody = taste.visitors(visitors, self._draws)
        async with Client(self._log, rules=self.system.requests) as client:
            await client.items.add_all(taste.STOCK)
            groups = range(0, len(everybody), _AT_ONCE)
            for number, start in enumerate(groups):
                if stock_changes and number == len(groups) // 3:
                    self._made_for[taste.NOVELTY.item] = taste.NOVELTY.features
                    await client.items.add_all([taste.NOVELTY])
                if stock_changes and number == 2 * len(groups) // 3:
                    await client.items.retire(taste.STOCK[1].item)
                group = everybody[start : start + _AT_ONCE]
                for visit in range(VISITS):
                    await asyncio.gather(*(self._visit(client, one, visit) for one in group))

    def logs(self) -> LogCopy:
        """A copy of all topics in their present state."""
        return LogCopy.of(self._records)

    def verified(self) -> Verified:
        """Recompute everything that was published."""
        return verify(self.logs(), self.system, self._keys)

    async def _visit(self, client: Client, one: taste.Visitor, visit: int) -> None:
        self._visits += 1
        event = f"{one.name}-{visit}"
        found = await client.decide(event, one.name, one.context, timeout=None)
        item = str(found.item)
        made_for = self._made_for.get(item)
        if made_for is None:
            raise HushstreamError("rehearsal: expected an item of the stock, got another")
        await client.shown(event, one.name, item)
        buys = self._draws.random() < one.chance(made_for)
        self.tally.note(buys, found.model_version)
        if buys:
            await client.reward(event, one.name, item, 1.0)


def share(visits: int, bought: int) -> float:
    """The share of visits that ended with a purchase; 0 without visits."""
    return bought / max(visits, 1)


def pays(tally: Tally) -> bool:
    """Whether visitors bought more at the end than while each learned alone, by two standard errors.

    In 2.3 % of the shops in which nothing is learned this is true by chance.
    """
    visits, bought = map(sum, zip(*tally.bins[-_LAST_BINS:], strict=True))
    after, alone = share(visits, bought), share(*tally.alone)
    error = math.sqrt(after * (1 - after) / max(visits, 1) + alone * (1 - alone) / max(tally.alone[0], 1))
    return after > alone + 2 * error
