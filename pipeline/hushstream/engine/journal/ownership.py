"""The journal that a packed state belongs to, and the journal's position."""

from __future__ import annotations

from typing import Any, Protocol

from hushstream.engine.journal.chain import CHAIN_STATE, Chain
from hushstream.engine.records import TopicPartition
from hushstream.engine.state.declared import Several
from hushstream.engine.system import Core, DeploymentValues
from hushstream.schemas.errors import HushstreamError

OWNER = {"deployment": "string", "config_digest": "bytes", "partition": "int", "chain": CHAIN_STATE}
"""Avro fields: owner of the state, and position of its journal."""


class Owner(Protocol):
    """The attributes of a machine that its state names."""

    chain: Chain

    @property
    def system(self) -> Core[DeploymentValues]:
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
    """Restore a dumped position of the journal.

    Raises:
        HushstreamError: the state belongs to another partition, deployment or configuration.
        ForeignJournal: it was made on another journal.
    """
    found = (state["partition"], state["deployment"], state["config_digest"].hex())
    expected = (machine.journal[1], machine.system.config.deployment, machine.system.digest.hex())
    if found != expected:
        raise HushstreamError(f"snapshot: expected partition, deployment and configuration {expected}, got {found}")
    machine.chain.resume(state["chain"])


def owner() -> Several:
    """State field: owner and position of the journal (deployment, configuration, partition, chain)."""
    return Several(OWNER, dump_owner, lambda role, values: restore_owner(role, dict(values)), saved=False)
