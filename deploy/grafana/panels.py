"""What each dashboard shows: panels as plain values, every one with the class of its metrics.

Grafana's JSON, the check against a live Prometheus and the pictures are all made from these values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hushstream.agents.observe.metrics import MetricClass

Endpoint = Literal["public", "zone"]

DEPLOYMENT = "$deployment"
"""The dashboard's variable that names the deployments to show."""
HERE = f'deployment=~"{DEPLOYMENT}"'
FOLLOWS = 'role=~"(learner|node|rater)([.].+)?"'
"""The roles that use models."""


@dataclass(frozen=True, slots=True)
class Query:
    """One line, or one family of lines, in PromQL; ``legend`` may name labels as ``{{label}}``."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel; ``unit`` is Grafana's name of the unit, ``about`` one sentence for its readers.

    Attributes:
        limit: an alert's threshold in the panel's unit; it is drawn.
        alert: the alert with this threshold.
        above: whether the alert fires above the limit, or below it.
        words: names that are shown in place of values.
        signed: whether values may be below 0; if not, the axis begins at 0.
    """

    title: str
    metric_class: MetricClass
    unit: str
    about: str
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "stat"] = "timeseries"
    limit: float | None = None
    alert: str = ""
    above: bool = True
    words: Mapping[int, str] = field(default_factory=dict)
    signed: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard, and from which kind of endpoint its Prometheus scrapes."""

    uid: str
    title: str
    endpoint: Endpoint
    about: str
    panels: tuple[Panel, ...]


def _mean_recovery(histogram: str) -> Query:
    return Query(f"sum by (role) ({histogram}_sum{{{HERE}}}) / sum by (role) ({histogram}_count{{{HERE}}})", "{{role}}")


def _published(prefix: str, metric_class: MetricClass) -> Panel:
    return Panel(
        "Age of published states",
        metric_class,
        "s",
        "Age of the oldest partition's newest published state: so much is replayed if a disk is lost; "
        "learners' on the zone's dashboard.",
        (Query(f"max by (role) ({prefix}published_state_age_seconds{{{HERE}}})", "{{role}}"),),
        "stat",
    )


def _free_disk(prefix: str, metric_class: MetricClass) -> Panel:
    return Panel(
        "Free disk for state",
        metric_class,
        "percentunit",
        "Free share of the state folder's disk, for the worker with the least; learners' on the zone's dashboard.",
        (Query(f"min by (role) ({prefix}state_disk_free_ratio{{{HERE}}})", "{{role}}"),),
        "stat",
        limit=0.1,
        alert="StateDiskFull",
        above=False,
    )


_DECISIONS = Panel(
    "Decisions",
    "slot-public",
    "reqps",
    "Contexts answered a second; clicks do not matter.",
    (Query(f"hushstream:decisions:rate5m{{{HERE}}}", "decisions"),),
)
_SLOTS = Panel(
    "Slots",
    "slot-public",
    "reqps",
    "Fixed-size reports a second: sent by learners, accepted by shufflers, counted by nodes; whatever they hold.",
    (Query(f"hushstream:slots:rate5m{{{HERE}}}", "{{role}}"),),
)
_LAG = Panel(
    "Lag",
    "slot-public",
    "short",
    "Records of an input that are not folded yet; a learner's are on the zone's dashboard.",
    (Query(f"hushstream:lag:sum{{{HERE}}}", "{{role}} {{topic}}"),),
    limit=10_000,
    alert="LagHigh",
)
_WINDOWS = Panel(
    "Windows closed",
    "slot-public",
    "short",
    "Windows that were closed and released, by all running shufflers.",
    (Query(f'sum by (deployment) (hushstream_windows_sealed_total{{role="shuffler", {HERE}}})', "windows"),),
)
_VERSIONS = Panel(
    "Model version",
    "released",
    "short",
    "Version published by the aggregator, and the oldest in use by a learner, node or rater.",
    (
        Query(
            f'max by (deployment) (hushstream_model_version{{role="aggregator", partition="0", {HERE}}})', "published"
        ),
        Query(f"min by (deployment) (hushstream_model_version{{{FOLLOWS}, {HERE}}})", "in use"),
    ),
)

_AUDITED = (
    Panel(
        "Published bytes that differ",
        "slot-public",
        "short",
        "Records that auditors found not to follow from the logs, by the role that published them; none without "
        "`hushstream verify --follow`.",
        (
            Query(f"sum by (role) (hushstream_audit_differences{{{HERE}}})", "{{role}} differ"),
            Query(f"sum by (role) (hushstream_audit_uncheckable{{{HERE}}})", "{{role}} uncheckable"),
        ),
        "stat",
        limit=1.0,
        alert="PublishedBytesDiffer",
    ),
    Panel(
        "Auditors behind",
        "slot-public",
        "s",
        "Time since an auditor last had checked all present records.",
        (Query(f"max by (role) (hushstream_audit_age_seconds{{{HERE}}})", "{{role}}"),),
        "stat",
        limit=900,
        alert="AuditorBehind",
    ),
)

OVERVIEW = Board(
    "hushstream-overview",
    "hushstream: overview",
    "public",
    "Does every part run and make progress? Released and slot-public metrics only.",
    (
        Panel(
            "Workers that answer",
            "slot-public",
            "short",
            "Workers that answer scrapes, by role.",
            (Query(f'sum by (role) (up{{job="hushstream", {HERE}}})', "{{role}}"),),
            "stat",
        ),
        Panel(
            "Running partitions",
            "slot-public",
            "percentunit",
            "Share of the role's partitions that a worker runs; nobody processes the others.",
            (Query(f"hushstream:partitions_held:ratio{{{HERE}}}", "{{role}}"),),
            "stat",
            limit=1.0,
            alert="PartitionsNotRun",
            above=False,
        ),
        Panel(
            "Alerts",
            "slot-public",
            "short",
            "Alerts of this Prometheus that fire now; the runbook explains each.",
            (Query('count(ALERTS{alertstate="firing"}) or vector(0)', "firing"),),
            "stat",
            limit=1.0,
        ),
        Panel(
            "Stopped",
            "slot-public",
            "short",
            "Partitions that were stopped, and workers that have ended; alerts and logs name the reason.",
            (
                Query(f"sum(hushstream_partition_stopped{{{HERE}}}) or vector(0)", "partitions"),
                Query(f"sum(hushstream_exit_reason{{{HERE}}}) or vector(0)", "workers"),
            ),
            "stat",
            limit=1.0,
            alert="PartitionStopped",
        ),
        Panel(
            "Foreign records",
            "slot-public",
            "short",
            "Records on journals, marks, states and models that belong to no chain; readers skip them.",
            (Query(f"sum by (deployment) (hushstream_foreign_records_total{{{HERE}}})", "{{deployment}}"),),
            "stat",
            limit=1.0,
            alert="ForeignRecords",
        ),
        _published("hushstream_", "slot-public"),
        *_AUDITED,
        Panel(
            "Partitions by worker",
            "slot-public",
            "short",
            "Home partitions that each worker runs.",
            (Query(f"sum by (role, instance) (hushstream_partitions_held{{{HERE}}})", "{{role}} {{instance}}"),),
            "stat",
        ),
        Panel(
            "Workers in their groups",
            "slot-public",
            "short",
            "Whether all workers of a role are in their group, or joining it.",
            (Query(f"min by (role) (hushstream_group_member{{{HERE}}}) < bool 1", "{{role}}"),),
            "stat",
            limit=1.0,
            words={0: "in", 1: "one is missing"},
        ),
        _free_disk("hushstream_", "slot-public"),
        Panel(
            "Gateways that answer",
            "slot-public",
            "short",
            "Gateways that answer scrapes.",
            (Query(f'sum by (deployment) (up{{role=~"gateway([.].+)?", {HERE}}})', "{{deployment}}"),),
            "stat",
        ),
        Panel(
            "Requests to gateways",
            "slot-public",
            "reqps",
            "Requests a second by call, counted as they arrive; a batch counts as one, and feedback does not count.",
            (Query(f"sum by (call) (rate(hushstream_gateway_requests_total{{{HERE}}}[5m]))", "{{call}}"),),
        ),
        _DECISIONS,
        _SLOTS,
        _WINDOWS,
        _VERSIONS,
        Panel(
            "Age of the model",
            "released",
            "s",
            "Time since the newest model in use was published.",
            (
                Query(
                    f"min by (deployment) (hushstream_model_age_seconds{{{FOLLOWS}, {HERE}}})",
                    "age",
                ),
            ),
            limit=86_400,
            alert="ModelStale",
        ),
        _LAG,
    ),
)

PRIVACY = Board(
    "hushstream-privacy",
    "hushstream: privacy",
    "public",
    "What was released, and what it has cost. What one unit is, and what the figures do not cover, is printed by "
    "`hushstream guarantee`.",
    (
        Panel(
            "Budget",
            "released",
            "short",
            "As planned: no unit has paid more than its limit. A unit that pays once has paid its whole limit: that is "
            "no shortage.",
            (
                Query(
                    f"max by (role, scope_class) (hushstream_budget_spent_micro_epsilon{{{HERE}}} > bool "
                    f"hushstream_budget_limit_micro_epsilon{{{HERE}}})",
                    "{{role}} {{scope_class}}",
                ),
            ),
            "stat",
            limit=1.0,
            alert="BudgetOverspent",
            words={0: "as planned", 1: "OVERSPENT"},
        ),
        Panel(
            "Exhausted budgets",
            "released",
            "short",
            "Scopes whose budget pays for no further release.",
            (Query(f"sum by (role) (hushstream_budget_refusing{{{HERE}}})", "{{role}}"),),
            "stat",
            limit=1.0,
            alert="BudgetSpent",
        ),
        Panel(
            "Spent by one unit",
            "released",
            "short",
            "The most that one unit (a slot, a reward) has paid, and may pay, in epsilon. One charge fills a slot's "
            "limit by design.",
            (
                Query(
                    f"max by (role, scope_class) (hushstream_budget_spent_micro_epsilon{{{HERE}}}) / 1e6",
                    "{{scope_class}} spent",
                ),
                Query(
                    f"max by (role, scope_class) (hushstream_budget_limit_micro_epsilon{{{HERE}}}) / 1e6",
                    "{{scope_class}} limit",
                ),
            ),
        ),
        Panel(
            "Releases on one charge",
            "released",
            "percentunit",
            "If one charge pays for a fixed number of releases (windows through a counter): the share that was made.",
            (Query(f"hushstream:budget_releases:ratio{{{HERE}}}", "{{role}} {{partition}}"),),
            limit=0.8,
            alert="BudgetAt80Percent",
        ),
        _WINDOWS,
        Panel(
            "Fill of windows",
            "slot-public",
            "percentunit",
            "Mean number of slots in the windows of the last day, as a share of the number that closes a window.",
            (Query(f"hushstream:window_fill:ratio1d{{{HERE}}}", "fill"),),
            limit=0.1,
            alert="WindowsThin",
            above=False,
        ),
        Panel(
            "Releases",
            "slot-public",
            "reqps",
            "Records released a second, by topic: window-sums or releases, and the ledger's entries beside them.",
            (Query(f'hushstream:releases:rate5m{{topic=~"window-sums|releases|ledger", {HERE}}}', "{{topic}}"),),
        ),
        _SLOTS,
        _VERSIONS,
    ),
)

BENEFIT = Board(
    "hushstream-benefit",
    "hushstream: benefit",
    "public",
    "Does it pay? What the shared private model earns over what is shown or known without it (p2b); what a slot paid.",
    (
        Panel(
            "Spent by one slot",
            "released",
            "short",
            "What one slot has paid, in epsilon.",
            (Query(f'max(hushstream_budget_spent_micro_epsilon{{scope_class="slot", {HERE}}}) / 1e6', "epsilon"),),
            "stat",
        ),
        Panel(
            "The shared private model over what is shown or known without it",
            "released",
            "short",
            "What users with the shared private model earn a decision more than users shown the application's choice "
            "(baseline), or with own learning without it (own), and 95 % intervals: of users who began with a model.",
            (
                Query(f"hushstream:lift:uplift{{{HERE}}} - hushstream:lift:half_width{{{HERE}}}", "low, {{group}}"),
                Query(f"hushstream:lift:uplift{{{HERE}}}", "over {{group}}"),
                Query(f"hushstream:lift:uplift{{{HERE}}} + hushstream:lift:half_width{{{HERE}}}", "high, {{group}}"),
            ),
            signed=True,
        ),
        Panel(
            "Rewards of all groups",
            "released",
            "percentunit",
            "Reward of a decision, with noise: the shared model, own learning without it, the own choice (baseline).",
            (Query(f"hushstream:lift_reward:ratio{{{HERE}}}", "{{group}}"),),
        ),
        _SLOTS,
        _VERSIONS,
    ),
)

PERFORMANCE = Board(
    "hushstream-performance",
    "hushstream: performance",
    "public",
    "Lag, latency and throughput, except those that follow from clicks.",
    (
        _LAG,
        Panel(
            "Batch latency",
            "slot-public",
            "s",
            "From taking a batch to the acknowledgement of its outputs; the learner's is on the zone's dashboard.",
            (
                Query(f"hushstream:batch_seconds:p50_5m{{{HERE}}}", "{{role}} p50"),
                Query(f"hushstream:batch_seconds:p99_5m{{{HERE}}}", "{{role}} p99"),
            ),
        ),
        _DECISIONS,
        _SLOTS,
        Panel(
            "Records released",
            "slot-public",
            "reqps",
            "Acknowledged records, by role and topic.",
            (Query(f"hushstream:releases:rate5m{{{HERE}}}", "{{role}} {{topic}}"),),
        ),
        Panel(
            "Journal appends",
            "slot-public",
            "reqps",
            "Journal records a second; the learner's are on the zone's dashboard.",
            (
                Query(
                    f'sum by (role) (rate(hushstream_journal_appends_total{{role!~"learner([.].+)?", {HERE}}}[5m]))',
                    "{{role}}",
                ),
            ),
        ),
        Panel(
            "Recovery",
            "slot-public",
            "s",
            "Mean time to bring a partition to the end of its journal; the learner's is on the zone's dashboard.",
            (_mean_recovery("hushstream_recovery_seconds"),),
        ),
        Panel(
            "Journal reloads",
            "slot-public",
            "short",
            "Reloads in 15 minutes: a failed append, or another writer.",
            (Query(f"sum by (role) (increase(hushstream_journal_reloads_total{{{HERE}}}[15m]))", "{{role}}"),),
            limit=5,
            alert="JournalReloads",
        ),
        Panel(
            "Share checked by auditors",
            "slot-public",
            "percentunit",
            "Share of the published records that auditors check (`--sample`).",
            (Query(f"max by (role) (hushstream_audit_sample{{{HERE}}})", "{{role}}"),),
        ),
    ),
)

ZONE = Board(
    "hushstream-zone",
    "hushstream: one zone",
    "zone",
    "Zone-private: these figures follow from content. Only for the operator of the zone, on its own Prometheus.",
    (
        Panel(
            "Dead letters",
            "zone-private",
            "short",
            "Records refused in 15 minutes, by reason; `hushstream dead-letters list` shows them.",
            (
                Query(
                    f"hushstream:dead_letters:increase15m{{{HERE}}} > 0 or "
                    f"topk by (role) (1, hushstream:dead_letters:increase15m{{{HERE}}})",
                    "{{role}} {{reason}}",
                ),
            ),
            limit=10,
            alert="DeadLettersRising",
        ),
        Panel(
            "Decisions with feedback",
            "zone-private",
            "percentunit",
            "Rewards that came, of whatever height, as a share of the decisions of 5 minutes: without them nothing is "
            "learned. What the model earns is `hushstream lift`, which is released with noise.",
            (
                Query(
                    f'sum by (role) (rate(hushstream_events_total{{outcome="rewarded", {HERE}}}[5m])) / '
                    f'sum by (role) (rate(hushstream_events_total{{outcome="decided", {HERE}}}[5m]))',
                    "{{role}}",
                ),
            ),
        ),
        Panel(
            "Exploration",
            "zone-private",
            "percentunit",
            "Share of the decisions of 5 minutes whose item had a stated chance below one half. All of them before a "
            "model tells items apart; then about what `exploration` asks for.",
            (Query(f"hushstream:exploration:ratio5m{{{HERE}}}", "{{role}}"),),
        ),
        Panel(
            "Not yet checked by auditors",
            "zone-private",
            "short",
            "Records of journals and outputs that an auditor has not checked yet.",
            (Query(f"sum by (role, topic) (hushstream_audit_lag_records{{{HERE}}})", "{{role}} {{topic}}"),),
        ),
        Panel(
            "Events by outcome",
            "zone-private",
            "reqps",
            "Outcomes of events.",
            (Query(f"sum by (role, outcome) (rate(hushstream_events_total{{{HERE}}}[5m]))", "{{role}} {{outcome}}"),),
        ),
        Panel(
            "Lag of learners",
            "zone-private",
            "short",
            "Records of learners' inputs that are not folded yet.",
            (Query(f"sum by (role) (hushstream_edge_consumer_lag_records{{{HERE}}})", "{{role}}"),),
            limit=10_000,
            alert="LearnerLagHigh",
        ),
        Panel(
            "Batch latency of the learner",
            "zone-private",
            "s",
            "From taking a batch to the acknowledgement of its outputs.",
            (
                Query(f"hushstream:edge_batch_seconds:p50_5m{{{HERE}}}", "{{role}} p50"),
                Query(f"hushstream:edge_batch_seconds:p99_5m{{{HERE}}}", "{{role}} p99"),
            ),
            limit=0.5,
            alert="DecisionsSlow",
        ),
        Panel(
            "Journal appends of the learner",
            "zone-private",
            "reqps",
            "Batches journaled a second.",
            (Query(f"sum by (role) (rate(hushstream_edge_journal_appends_total{{{HERE}}}[5m]))", "{{role}}"),),
        ),
        Panel(
            "Recovery of the learner",
            "zone-private",
            "s",
            "Mean time to bring a partition to the end of its journal, since the workers began.",
            (_mean_recovery("hushstream_edge_recovery_seconds"),),
        ),
        _published("hushstream_edge_", "zone-private"),
        _free_disk("hushstream_edge_", "zone-private"),
    ),
)

GATEWAY = Board(
    "hushstream-gateway",
    "hushstream: gateways",
    "zone",
    "Zone-private: feedback takes its share of a gateway, and so moves how decisions are answered.",
    (
        Panel(
            "Baseline share",
            "zone-private",
            "percentunit",
            "Share of answers that no learner gave (`logged: false`) in 5 minutes.",
            (Query(f"hushstream:gateway_unlogged:ratio5m{{{HERE}}}", "{{deployment}}"),),
            "stat",
            limit=0.05,
            alert="GatewayOnBaseline",
        ),
        Panel(
            "Requests in progress",
            "zone-private",
            "short",
            "Requests of all callers; `in_flight` is the limit of a gateway.",
            (Query(f"sum by (deployment) (hushstream_edge_gateway_in_flight{{{HERE}}})", "{{deployment}}"),),
            "stat",
        ),
        Panel(
            "Requests",
            "zone-private",
            "reqps",
            "Requests a second by call, with any result; a batch counts as one.",
            (Query(f"sum by (call) (hushstream:gateway_requests:rate5m{{{HERE}}})", "{{call}}"),),
        ),
        Panel(
            "Latency by step",
            "zone-private",
            "s",
            "Time to read a request's body, and to answer it.",
            (
                Query(f"hushstream:gateway_seconds:p50_5m{{{HERE}}}", "{{step}} p50"),
                Query(f"hushstream:gateway_seconds:p99_5m{{{HERE}}}", "{{step}} p99"),
            ),
            limit=1.0,
            alert="GatewaySlow",
        ),
        Panel(
            "Refusals by code",
            "zone-private",
            "reqps",
            "Requests a second that a gateway ended with a problem, by its code.",
            (Query(f'sum by (code) (hushstream:gateway_requests:rate5m{{code!="ok", {HERE}}})', "{{code}}"),),
        ),
        Panel(
            "Turned away (429)",
            "zone-private",
            "reqps",
            "Requests a second that were refused for now: too many of one caller, or too many in progress.",
            (
                Query(
                    f'sum by (code) (hushstream:gateway_requests:rate5m{{code=~"too-many-requests|too-busy", {HERE}}})',
                    "{{code}}",
                ),
            ),
        ),
        Panel(
            "Answers without a learner",
            "zone-private",
            "reqps",
            "Baselines a second that were answered at once, by call; each of a batch counts.",
            (Query(f"sum by (call) (rate(hushstream_edge_gateway_unlogged_total{{{HERE}}}[5m]))", "{{call}}"),),
        ),
        Panel(
            "Answers",
            "zone-private",
            "reqps",
            "Answers a second by call; each of a batch counts.",
            (Query(f"sum by (call) (rate(hushstream_edge_gateway_answers_total{{{HERE}}}[5m]))", "{{call}}"),),
        ),
    ),
)

BOARDS = (OVERVIEW, BENEFIT, PRIVACY, PERFORMANCE, ZONE, GATEWAY)
