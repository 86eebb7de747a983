"""A journal begins with random bytes that no other journal has: noise of one world is never met in another."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")

PARTITIONS = 3


def deployment(bench: Any, harness: Any, machines: Any, name: str) -> Any:
    logs = {("events", partition): [(1_000_000, b"k1")] for partition in range(PARTITIONS)}
    factory, arguments = f"{machines.__file__}:counting", {"targets": PARTITIONS}
    making = machines.counting(**arguments)
    made = harness.Deployment(bench, name, factory, arguments, making, logs, PARTITIONS, harness.CALM)
    made.with_genesis = False
    return made


async def test_every_journal_begins_with_a_nonce_of_its_own(bench, harness, machines):
    """By partition and by deployment: one that is wiped and begun again is another deployment to a worker."""
    nonces = []
    for name in ("one", "two"):
        async with deployment(bench, harness, machines, name) as made:
            await made.finish()
            for partition in range(PARTITIONS):
                genesis, *_ = await made.values_of(("journal-counting", partition))
                nonces.append(bytes.fromhex(json.loads(genesis)[4]))
    assert all(len(nonce) == 32 for nonce in nonces)
    assert len(set(nonces)) == 2 * PARTITIONS
