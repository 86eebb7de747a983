"""What verify finds where items have names: a shop whose stock changes while visitors come."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from hushstream.agents.worker.deployment import KeySource
from hushstream.engine.declare.declaration import System
from hushstream.engine.records import InputRecord
from hushstream.ops.check.findings import Status, Verified
from hushstream.ops.check.verify import verify
from hushstream.ops.log_copy import LogCopy, PartitionCopy
from hushstream.replay.shop.rehearsal import Rehearsal

pytestmark = pytest.mark.slow

ITEMS = ("items", 0)
SEED = 3
VISITORS = 768
"""Three groups; no window closes for so few (20,000 of `--stock-changes` close 17, and are equal)."""
CHANGED_BYTES = 4


class Played:
    """A shop after its visitors came, while one item was added and one withdrawn."""

    def __init__(self, system: System, logs: LogCopy) -> None:
        self.system, self.logs = system, logs

    def verified(self, items: Sequence[InputRecord] | None = None) -> Verified:
        """What verify says, of other records of the catalogue where some are given."""
        logs = self.logs
        if items is not None:
            there = logs.part(ITEMS)
            logs = LogCopy({**logs.parts, ITEMS: PartitionCopy(there.low, there.high, items)})
        return verify(logs, self.system, KeySource(seed=SEED))

    @property
    def items(self) -> list[InputRecord]:
        return list(self.logs.part(ITEMS).records)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder: Path = tmp_path_factory.mktemp("shop") / "deployment"
    rehearsal = Rehearsal(folder, SEED)
    asyncio.run(rehearsal.play(VISITORS, stock_changes=True))
    return Played(rehearsal.system, rehearsal.logs())


def test_a_shop_whose_stock_changed_is_equal(shop: Played) -> None:
    found = shop.verified()
    assert found.ok, found.findings
    assert found.totals[Status.EQUAL] == sum(found.totals.values())
    # Six items at first, one more, one withdrawn.
    assert len(shop.items) == 8
    assert found.of("reports")[Status.EQUAL] >= 8, "what every change tells the shuffler"


def test_a_changed_byte_of_the_catalogue_is_found(shop: Played) -> None:
    draw = random.Random("items")
    records = shop.items
    for index in draw.sample(range(len(records)), CHANGED_BYTES):
        value = bytearray(records[index].value)
        value[draw.randrange(len(value))] ^= 1 << draw.randrange(8)
        bent = [*records[:index], records[index]._replace(value=bytes(value)), *records[index + 1 :]]
        found = shop.verified(bent)
        assert not found.ok
        assert found.of("decisions")[Status.CHANGED] >= 1, index


def test_a_change_of_the_catalogue_that_is_gone_or_swapped_is_found(shop: Played) -> None:
    records = shop.items
    for index in (0, len(records) - 1):
        gone = [*records[:index], *records[index + 1 :]]
        assert shop.verified(gone).of("decisions")[Status.CHANGED] >= 1, index
    first, second = (one.value for one in records[-2:])
    swapped = [*records[:-2], records[-2]._replace(value=second), records[-1]._replace(value=first)]
    assert shop.verified(swapped).of("decisions")[Status.CHANGED] >= 1
