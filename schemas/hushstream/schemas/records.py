"""The fields of every record as typed dictionaries: what `codec.encode` takes and `codec.decode` returns.

Units and shapes stand in the schemas (``avro/``). A field with a default may be left out when writing; after
reading every field is there.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class Context(TypedDict):
    """One request for a decision."""

    event_id: str
    user: str
    line: NotRequired[str]
    context: bytes
    eligible: NotRequired[bytes]
    baseline: NotRequired[int]
    after_click: NotRequired[int]


class ContextBatch(TypedDict):
    """n requests for decisions of one model line, all of one partition, one array a column."""

    event_ids: list[str]
    users: list[str]
    line: NotRequired[str]
    dimension: int
    contexts: bytes
    eligible: NotRequired[bytes]
    baselines: NotRequired[bytes]
    after_clicks: NotRequired[bytes]


class Feedback(TypedDict):
    """What happened to one decision on the screen."""

    kind: Literal["shown", "reward"]
    event_id: str
    user: str
    arm: int
    reward: NotRequired[float]


class FeedbackBatch(TypedDict):
    """n feedback events, all of one partition, one array a column."""

    kinds: bytes
    event_ids: list[str]
    users: list[str]
    arms: bytes
    rewards: bytes


class Seal(TypedDict):
    """The end of a phase, a public event that closes open windows."""

    phase: int
    origin: int
    config_digest: bytes
    after_click: NotRequired[int]


class Forget(TypedDict):
    """The erasure of one user."""

    user: str
    config_digest: bytes


class Erasure(TypedDict):
    """The erasure of one user, passed on to the trusted counter."""

    node: int
    config_digest: bytes


class Tick(TypedDict):
    """Log time for an idle partition; its timestamp is its only meaning."""

    config_digest: bytes


class Genesis(TypedDict):
    """The first record of a journal; its nonce separates the noise of this journal from every other."""

    role: str
    partition: int
    deployment: str
    config_digest: bytes
    key_id: bytes
    nonce: bytes
    reproducible: bool
    chain: bytes


class InputRange(TypedDict):
    """A range of one input log: low <= offset < high."""

    topic: str
    partition: int
    low: int
    high: int


class JournalHead(TypedDict):
    """What every journal record says of itself: its place, its inputs, and what is released after it."""

    sequence: int
    epoch: int
    inputs: list[InputRange]
    input_digest: bytes
    release_digest: bytes
    schema_generation: int


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


class SlotReport(TypedDict):
    """One slot: a report, or null; every encoded slot has the same size."""

    report_id: bytes
    period: bytes
    config_digest: bytes
    content: bytes


class SealedSlot(TypedDict):
    """One slot whose content the shuffler alone can open; every encoded slot has the same size."""

    report_id: bytes
    period: bytes
    config_digest: bytes
    sealed: bytes


class Debit(TypedDict):
    """The price of one release."""

    scope: str
    mechanism: str
    epsilon_micro: int
    delta_units: bytes
    relation: str
    unit: str


class WindowJournal(TypedDict):
    """A sealed window of slots: the shuffler's write-ahead record, its debit and its fence."""

    head: JournalHead
    window: int
    slots: int
    closed_by: Literal["slots", "seal", "time"]
    mechanism: str
    parameters: str
    debit: Debit
    turned_to: bytes
    chain: bytes


class Crowd(TypedDict):
    """What one window releases: sums per code and arm, with noise or as counts of tuples."""

    window_id: bytes
    config_digest: bytes
    mode: str
    codes: int
    arms: int
    levels: int
    slots: int
    ones: bytes
    zeros: bytes
    variance: float
    epsilon_micro: int
    delta_units: bytes
    private_as_stated: bool


class Interactions(TypedDict):
    """n resolved interactions in clear, for data that is public."""

    phase: int
    dimension: int
    contexts: bytes
    arms: bytes
    rewards: bytes
    batch_id: NotRequired[bytes]


class Model(TypedDict):
    """One version of a shared model; it is also the aggregator's journal."""

    head: JournalHead
    line: str
    version: int
    dimension: int
    arms: int
    features: str
    gram: bytes
    moment: bytes
    observations: float
    epsilon_micro: int
    delta_units: bytes
    private_as_stated: bool
    digest: bytes
    chain: bytes


class Rewards(TypedDict):
    """n shown arms and their rewards in clear, for a trusted counter."""

    batch_id: bytes
    config_digest: bytes
    nodes: bytes
    contexts: bytes
    rewards: bytes


class Release(TypedDict):
    """One step of a continual release: noised running sums, and the public features since the last one."""

    release_id: bytes
    config_digest: bytes
    mechanism: str
    leaf: int
    epoch: int
    nodes: bytes
    contexts: bytes
    blocks: bytes
    sums: bytes
    grid_bits: int
    variance: float
    epsilon_micro: int
    delta_units: bytes
    private_as_stated: bool


class CounterJournal(TypedDict):
    """One step of a continual release: the counter's write-ahead record, its debit and its fence."""

    head: JournalHead
    leaf: int
    rows: int
    closed_by: Literal["rows", "seal", "time"]
    mechanism: str
    parameters: str
    leaves: bytes
    debit: Debit
    turned_to: bytes
    chain: bytes


class CollaborativeModel(TypedDict):
    """One version of a model that users of a relation graph share; it is also the aggregator's journal."""

    head: JournalHead
    line: str
    version: int
    dimension: int
    nodes: int
    parameters: bytes
    widths: bytes
    observations: int
    epsilon_micro: int
    delta_units: bytes
    private_as_stated: bool
    digest: bytes
    chain: bytes


class Lift(TypedDict):
    """Noised running counts of what was shown and rewarded, by the model and in the hold-out."""

    release_id: bytes
    config_digest: bytes
    counter: bytes
    leaf: int
    levels: int
    sums: bytes
    variance: float
    epsilon_micro: int
    delta_units: bytes
    private_as_stated: bool


class LedgerEntry(TypedDict):
    """A copy of the debit of one release; immutable."""

    deployment: str
    entry_id: bytes
    debit: Debit
    config_digest: bytes
    private_as_stated: bool


class ReleaseMark(TypedDict):
    """How far a journal has released; the number of its record is sealed to the zone."""

    deployment: str
    role: str
    partition: int
    journal: str
    generation: int
    accepted: bool
    paid: bool
    key_id: bytes
    sealed: bytes
    tag: bytes


class StatePart(TypedDict):
    """One part of a role's packed state, or its head, sealed to the zone."""

    deployment: str
    role: str
    partition: int
    publication: bytes
    number: int
    key_id: bytes
    sealed: bytes


class DeadLetter(TypedDict):
    """A record, or a row of one, that a role refused; it points at it and never holds it."""

    zone: str
    role: str
    reason: str
    topic: str
    partition: int
    offset: int
    row: int
    digest: bytes


class Record(TypedDict):
    """One record at one node, whose label is asked for."""

    event_id: str
    user: str
    node: int
    indices: bytes
    values: bytes
    after_phase: NotRequired[int]


class Label(TypedDict):
    """The label of a record that was predicted before."""

    event_id: str
    user: str
    label: int


class RecordBatch(TypedDict):
    """n records at nodes of one domain, whose labels are asked for, one array a column."""

    event_ids: list[str]
    users: list[str]
    nodes: bytes
    lengths: bytes
    indices: bytes
    values: bytes
    after_phase: NotRequired[int]


class LabelBatch(TypedDict):
    """The labels of n records that were predicted before, one array a column."""

    event_ids: list[str]
    users: list[str]
    labels: bytes


class Membership(TypedDict):
    """A node joins or leaves, a public event."""

    node: int
    present: bool
    config_digest: bytes


class ArmChange(TypedDict):
    """A vendor withdraws an item or offers it, a public event."""

    arm: int
    offered: bool
    config_digest: bytes


class Predictions(TypedDict):
    """What was predicted for the records of one batch: the journal of a home of records."""

    head: JournalHead
    event_ids: list[str]
    predicted: bytes
    repeated: bytes
    model_version: int
    releases: int
    debits: list[Debit]
    turned_to: bytes
    chain: bytes


class GradientSum(TypedDict):
    """The noised running sum of a domain's gradients in one counter."""

    release_id: bytes
    config_digest: bytes
    mechanism: str
    domain: int
    epoch: int
    generation: int
    leaf: int
    slots: int
    last: bool
    sums: bytes
    epsilon_micro: int
    delta_units: bytes
    private_as_stated: bool


class LinearModel(TypedDict):
    """One version of a linear model made of noised sums."""

    head: JournalHead
    version: int
    phase: int
    dimension: int
    weights: bytes
    releases: int
    screened: int
    epsilon_micro: int
    delta_units: bytes
    private_as_stated: bool
    digest: bytes
    chain: bytes


class Parameters(TypedDict):
    """What one node sends after a round: its parameters with noise."""

    release_id: bytes
    config_digest: bytes
    node: int
    epoch: int
    after: int
    values: bytes
    epsilon_micro: int
    delta_units: bytes
    private_as_stated: bool


class Outcomes(TypedDict):
    """n outcomes at their deadlines, for the counter that holds them."""

    config_digest: bytes
    counter: int
    names: bytes
    cells: bytes
    arrivals: bytes
    arms: bytes
    rewards: bytes


class Forwards(TypedDict):
    """n contexts that were answered with arms of one other vendor: the cell, never the context."""

    config_digest: bytes
    serving: int
    homes: bytes
    names: bytes
    cells: bytes
    arms: bytes
    tickets: bytes
    model_versions: bytes


class BlockJournal(TypedDict):
    """One closed window of a counter of blocks: its write-ahead record, its debit and its fence."""

    head: JournalHead
    window: int
    outcomes: int
    taken: int
    closed_by: Literal["count", "seal"]
    mechanism: str
    parameters: str
    history: bytes
    debit: Debit
    turned_to: bytes
    chain: bytes


class BlockRelease(TypedDict):
    """A part of what a closed window releases: disjoint blocks with noised sums of rewards, and public arrivals."""

    release_id: bytes
    config_digest: bytes
    counter: int
    window: int
    part: int
    parts: int
    epoch: int
    closed_by: Literal["count", "seal"]
    phase: int
    outcomes: int
    cells: bytes
    arms: bytes
    counts: bytes
    sums: bytes
    arrived: bytes
    arrivals: bytes
    epsilon_micro: int
    delta_units: bytes
    private_as_stated: bool


class TicketModel(TypedDict):
    """One version of the tickets of all cells, as what changed; it is also the aggregator's journal."""

    head: JournalHead
    line: str
    version: int
    opened: bytes
    changed: bytes
    tickets: bytes
    pool: int
    observations: int
    epsilon_micro: int
    delta_units: bytes
    private_as_stated: bool
    digest: bytes
    chain: bytes


class Ratings(TypedDict):
    """n ratings of one user, who with them takes part in every round from the open one on."""

    user: str
    items: bytes
    values: bytes


class RatingQuery(TypedDict):
    """What is one user expected to rate n items?"""

    event_id: str
    user: str
    items: bytes
    after_round: NotRequired[int]


class RatingPredictions(TypedDict):
    """What was predicted for m questions of one folded batch; it is also the journal of whoever holds ratings."""

    head: JournalHead
    event_ids: list[str]
    counts: bytes
    values: bytes
    model_version: int
    slots: int
    chain: bytes


class RatingRound(TypedDict):
    """What each user is asked for in a round; it follows from releases alone."""

    config_digest: bytes
    number: int
    kind: Literal["items", "pairs", "factors", "none"]
    kept: int
    top: bytes
    gains: bytes


class RatingSlot(TypedDict):
    """One padded slot of one user in one round, or null in it; all are of one size."""

    slot_id: bytes
    config_digest: bytes
    round: int
    content: bytes


class RoundJournal(TypedDict):
    """One closed round of a collector: its write-ahead record, its debit and its fence."""

    head: JournalHead
    round: int
    kind: str
    slots: int
    released: bool
    mechanism: str
    parameters: str
    history: bytes
    debit: Debit
    turned_to: bytes
    chain: bytes


class RatingSums(TypedDict):
    """Noised sums over all slots of one round."""

    release_id: bytes
    config_digest: bytes
    epoch: int
    round: int
    kind: str
    slots: int
    kept: int
    sums: bytes
    epsilon_micro: int
    delta_units: bytes
    private_as_stated: bool


class RatingModel(TypedDict):
    """One version of item biases and factors, and what is asked for next; it is also the aggregator's journal."""

    head: JournalHead
    version: int
    round: int
    biases: bytes
    factors: bytes
    next_kind: str
    top: bytes
    gains: bytes
    edge: float
    largest: bytes
    epsilon_micro: int
    delta_units: bytes
    private_as_stated: bool
    digest: bytes
    chain: bytes
