"""Parts of packed states that more than one role has."""

from __future__ import annotations

from typing import Any, Protocol

from hushstream.engine.chain import CHAIN_STATE, Chain
from hushstream.engine.machine import TopicPartition
from hushstream.engine.system import Core
from hushstream.schemas.errors import HushstreamError


def record(name: str, **fields: Any) -> dict[str, Any]:
    """An Avro record schema from its fields."""
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def array(items: Any) -> dict[str, Any]:
    """An Avro array schema."""
    return {"type": "array", "items": items}


READER = record(
    "Reader",
    position="long",
    chain="Chain",
    highs=array(record("High", topic="string", partition="int", high="long")),
)
PAST = record(
    "Past",
    event_id="string",
    user="string",
    arm="int",
    propensity="long",
    model_version="int",
    expired="boolean",
)
EARLY_FEEDBACK = record(
    "EarlyOutcome",
    rewarded="boolean",
    event_id="string",
    user="string",
    arm="int",
    reward="double",
    offset="long",
    row="int",
    time_ms="long",
)

OWNER = {"deployment": "string", "config_digest": "bytes", "partition": "int", "chain": CHAIN_STATE}
"""Avro fields: whose state it is, and how far its journal has come."""


class Owner(Protocol):
    """A machine, as far as its state names it."""

    chain: Chain

    @property
    def system(self) -> Core:
        """The deployment."""

    @property
    def journal(self) -> TopicPartition: ...


def dump_owner(machine: Owner) -> dict[str, Any]:
    """The values of `OWNER`."""
    return {
        "deployment": machine.system.config.deployment,
        "config_digest": machine.system.digest,
        "partition": machine.journal[1],
        "chain": machine.chain.dump(),
    }


def restore_owner(machine: Owner, state: dict[str, Any]) -> None:
    """Return to a dumped place of the journal.

    Raises:
        HushstreamError: it is of another partition, deployment or configuration.
        ForeignJournal: it was made on another journal.
    """
    found = (state["partition"], state["deployment"], state["config_digest"].hex())
    expected = (machine.journal[1], machine.system.config.deployment, machine.system.digest.hex())
    if found != expected:
        raise HushstreamError(f"snapshot: expected partition, deployment and configuration {expected}, got {found}")
    machine.chain.resume(state["chain"])
