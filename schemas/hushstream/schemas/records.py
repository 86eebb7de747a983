"""The fields of decisions as typed dictionaries, for readers of the learner's journal through `codec.decode`.

The schemas (``avro/``) document units and shapes. A decoded record has every field.
"""

from __future__ import annotations

from typing import TypedDict


class InputRange(TypedDict):
    """A range of one input log: low <= offset < high."""

    topic: str
    partition: int
    low: int
    high: int


class JournalHead(TypedDict):
    """The head of every journal record: its number, its inputs, and a digest of what is released after it."""

    sequence: int
    epoch: int
    inputs: list[InputRange]
    input_digest: bytes
    release_digest: bytes
    edition: int


class Debit(TypedDict):
    """The price of one release."""

    scope: str
    mechanism: str
    epsilon_micro: int
    delta_units: bytes
    relation: str
    unit: str


class Decisions(TypedDict):
    """The decisions of one folded batch of n contexts; it is also the learner's journal."""

    head: JournalHead
    log_time_ms: int
    event_ids: list[str]
    arms: bytes
    propensities: bytes
    policy: str
    policies: bytes
    model_versions: bytes
    slots: int
    debits: list[Debit]
    chain: bytes
