"""The aggregator's state in packed form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hushstream.engine.one_input_state import (
    KNOWN,
    PLACE,
    SEALS,
    dump_place,
    dump_seals,
    known_again,
    restore_place,
    restore_seals,
)
from hushstream.engine.packed import Form
from hushstream.engine.state_parts import record

if TYPE_CHECKING:
    from hushstream.systems.p2b.server.machine import AggregatorMachine

FORM = Form.of(
    "an aggregator's state",
    2,
    record("AggregatorState", **PLACE, model_version="int", **SEALS, known=KNOWN, totals="bytes"),
)


def dump(machine: AggregatorMachine) -> bytes:
    """Pack everything that the next fold depends on."""
    state = {
        **dump_place(machine),
        "model_version": machine.version,
        **dump_seals(machine.seals),
        "known": [identity for identity, _ in machine.known.items()],
        "totals": machine.totals.dump(),
    }
    return FORM.write(state)


def restore(machine: AggregatorMachine, snapshot: bytes) -> None:
    """Replace a machine's state by a packed one.

    Raises:
        HushstreamError: damaged, of another line, deployment or configuration.
        OtherVersion: of another release.
        ForeignJournal: made on another journal.
    """
    state = FORM.read(snapshot)
    restore_place(machine, state)
    machine.version = state["model_version"]
    restore_seals(machine.seals, state)
    machine.known = known_again(state["known"], machine.known.capacity)
    machine.totals.restore(state["totals"])
