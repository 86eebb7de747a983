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
    """One panel; ``unit`` is Grafana's name of the unit, ``about`` what it shows, what is well, and what to do.

    Attributes:
        limit: an alert's threshold in the panel's unit; it is drawn.
        alert: the alert with this threshold.
        above: whether the alert fires above the limit, or below it.
        words: names that are shown in place of values.
        signed: whether values may be below 0; if not, the axis begins at 0.
        released: whether it shows what was released with noise.
    """

    title: str
    unit: str
    about: str
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "stat"] = "timeseries"
    limit: float | None = None
    alert: str = ""
    above: bool = True
    words: Mapping[int, str] = field(default_factory=dict)
    signed: bool = False
    released: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard, and from which kind of endpoint its Prometheus scrapes."""

    uid: str
    title: str
    endpoint: Endpoint
    about: str
    panels: tuple[Panel, ...]

    def class_of(self, panel: Panel) -> MetricClass:
        """The class of a panel's metrics: that of the board's endpoint, unless they were released."""
        if panel.released:
            return "released"
        return "zone-private" if self.endpoint == "zone" else "slot-public"


def _mean_recovery(histogram: str) -> Query:
    return Query(f"sum by (role) ({histogram}_sum{{{HERE}}}) / sum by (role) ({histogram}_count{{{HERE}}})", "{{role}}")


def _published(prefix: str) -> Panel:
    return Panel(
        "How old is the newest published state?",
        "s",
        "Age of the oldest partition's newest published state: so much is replayed if a disk is lost; "
        "learners' on the zone's dashboard. If it grows, read the role's log.",
        (Query(f"max by (role) ({prefix}published_state_age_seconds{{{HERE}}})", "{{role}}"),),
        "stat",
    )


def _free_disk(prefix: str) -> Panel:
    return Panel(
        "How much disk is free for state?",
        "percentunit",
        "Free share of the state folder's disk, for the worker with the least; learners' on the zone's dashboard.",
        (Query(f"min by (role) ({prefix}state_disk_free_ratio{{{HERE}}})", "{{role}}"),),
        "stat",
        limit=0.1,
        alert="StateDiskFull",
        above=False,
    )


_DECISIONS = Panel(
    "How many decisions are made?",
    "reqps",
    "Contexts answered a second; clicks do not matter. Well if it follows your visits; else see what input waits.",
    (Query(f"hushstream:decisions:rate5m{{{HERE}}}", "decisions"),),
)
_SLOTS = Panel(
    "How many reports come?",
    "reqps",
    "Fixed-size reports (slots) a second: sent by learners, accepted by shufflers, counted by nodes. Both lines should "
    "agree after the wait of `feedback.settle_seconds`; else look for a stopped shuffler.",
    (Query(f"hushstream:slots:rate5m{{{HERE}}}", "{{role}}"),),
)
_LAG = Panel(
    "How much input waits? (lag)",
    "short",
    "Records of an input that wait; 0 or a short peak is well. Learners' are on the zone's dashboard.",
    (Query(f"hushstream:lag:sum{{{HERE}}}", "{{role}} {{topic}}"),),
    limit=10_000,
    alert="LagHigh",
)
_WINDOWS = Panel(
    "How many windows were released?",
    "short",
    "Windows that were closed and released, by all running shufflers. It rises while reports come; else see whether "
    "windows fill, and whether a budget is used up.",
    (Query(f'sum by (deployment) (hushstream_windows_sealed_total{{role="shuffler", {HERE}}})', "windows"),),
)
_VERSIONS = Panel(
    "Do workers use the newest model?",
    "short",
    "Newest version published, and the oldest that a learner, node or rater uses: well if both lines are one; else "
    "read the log of "
    "the worker that lags.",
    (
        Query(
            f'max by (deployment) (hushstream_model_version{{role="aggregator", partition="0", {HERE}}})', "published"
        ),
        Query(f"min by (deployment) (hushstream_model_version{{{FOLLOWS}, {HERE}}})", "in use"),
    ),
    released=True,
)

_AUDITED = (
    Panel(
        "Do published bytes follow from the logs?",
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
        "How far are auditors behind?",
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
    "hushstream: does it run?",
    "public",
    "Does every part run and make progress? Numbers are red where an alert fires; each line says its alert's limit.",
    (
        Panel(
            "How many workers answer?",
            "short",
            "Processes that answer Prometheus, by role: well if as many as you started. Start the others again.",
            (Query(f'sum by (role) (up{{job="hushstream", {HERE}}})', "{{role}}"),),
            "stat",
        ),
        Panel(
            "Are all partitions run?",
            "percentunit",
            "Share of the role's partitions that a worker runs; nobody processes the others.",
            (Query(f"hushstream:partitions_held:ratio{{{HERE}}}", "{{role}}"),),
            "stat",
            limit=1.0,
            alert="PartitionsNotRun",
            above=False,
        ),
        Panel(
            "Is an alert firing?",
            "short",
            "Alerts of this Prometheus that fire now: 0 is well; the runbook has an entry for each.",
            (Query('count(ALERTS{alertstate="firing"}) or vector(0)', "firing"),),
            "stat",
            limit=1.0,
        ),
        Panel(
            "Has anything stopped?",
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
            "Does anybody else write to our topics?",
            "short",
            "Records on journals, marks, states and models that belong to no chain; readers skip them.",
            (Query(f"sum by (deployment) (hushstream_foreign_records_total{{{HERE}}})", "{{deployment}}"),),
            "stat",
            limit=1.0,
            alert="ForeignRecords",
        ),
        _published("hushstream_"),
        *_AUDITED,
        Panel(
            "Which worker runs how many partitions?",
            "short",
            "Home partitions that each worker runs: about as many each is well. A worker with 0 is spare.",
            (Query(f"sum by (role, instance) (hushstream_partitions_held{{{HERE}}})", "{{role}} {{instance}}"),),
            "stat",
        ),
        Panel(
            "Is every worker in its group?",
            "short",
            "Whether all workers of a role are in their group, or joining it; read the log of the one that is missing.",
            (Query(f"min by (role) (hushstream_group_member{{{HERE}}}) < bool 1", "{{role}}"),),
            "stat",
            limit=1.0,
            words={0: "in", 1: "one is missing"},
        ),
        _free_disk("hushstream_"),
        Panel(
            "What do applications ask of gateways?",
            "reqps",
            "Requests a second by call, counted as they arrive; a batch counts as one, and feedback does not count. "
            "None while visitors come: see the gateway's log.",
            (Query(f"sum by (call) (rate(hushstream_gateway_requests_total{{{HERE}}}[5m]))", "{{call}}"),),
        ),
        _DECISIONS,
        _VERSIONS,
        Panel(
            "How old is the model in use?",
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
            released=True,
        ),
        _LAG,
    ),
)

PRIVACY = Board(
    "hushstream-privacy",
    "hushstream: what was released, and charged for it",
    "public",
    "What was released, and what it has cost. What one unit is, and what the figures do not cover, is printed by "
    "`hushstream guarantee`.",
    (
        Panel(
            "Was anybody charged more than planned?",
            "short",
            "As planned is well: no unit was charged more than its limit.",
            (
                Query(
                    f"max by (role, scope_class) (hushstream_budget_spent_micro_epsilon{{{HERE}}} > bool "
                    f"hushstream_budget_limit_micro_epsilon{{{HERE}}})",
                    "{{role}}, {{scope_class}}",
                ),
            ),
            "stat",
            limit=1.0,
            alert="BudgetOverspent",
            words={0: "as planned", 1: "OVERSPENT"},
            released=True,
        ),
        Panel(
            "Is a budget used up?",
            "short",
            "Scopes whose budget pays for no further release: 0 is well, or the planned end.",
            (Query(f"sum by (role) (hushstream_budget_refusing{{{HERE}}})", "{{role}}"),),
            "stat",
            limit=1.0,
            alert="BudgetSpent",
            released=True,
        ),
        Panel(
            "What was one unit charged at most?",
            "short",
            "The most that one unit (a report, a reward) was charged, and its limit, in epsilon (zero-out for p2b's "
            "reports). One charge fills a report's limit: that is no shortage.",
            (
                Query(
                    f"max by (role, scope_class) (hushstream_budget_spent_micro_epsilon{{{HERE}}}) / 1e6",
                    "{{scope_class}}: charged",
                ),
                Query(
                    f"max by (role, scope_class) (hushstream_budget_limit_micro_epsilon{{{HERE}}}) / 1e6",
                    "{{scope_class}}: limit",
                ),
            ),
            released=True,
        ),
        Panel(
            "Is a counter's one charge used up?",
            "percentunit",
            "If one charge pays for a fixed number of releases (windows through a counter): the share that was made.",
            (Query(f"hushstream:budget_releases:ratio{{{HERE}}}", "{{role}} {{partition}}"),),
            limit=0.8,
            alert="BudgetAt80Percent",
            released=True,
        ),
        _WINDOWS,
        Panel(
            "Are windows full when they close?",
            "percentunit",
            "Mean number of slots in the windows of the last day, as a share of the number that closes a window. "
            "1 is well; a thin window has the same noise on fewer reports.",
            (Query(f"hushstream:window_fill:ratio1d{{{HERE}}}", "fill"),),
            limit=0.1,
            alert="WindowsThin",
            above=False,
        ),
        Panel(
            "How often is something released?",
            "reqps",
            "Records released a second, by topic: window-sums or releases, and the ledger's entries beside them. "
            "Both rise together; none for long: see whether windows fill.",
            (Query(f'hushstream:releases:rate5m{{topic=~"window-sums|releases|ledger", {HERE}}}', "{{topic}}"),),
        ),
        _SLOTS,
        _VERSIONS,
    ),
)

_OVER = {"own": "own learning", "baseline": "your own choice"}
"""What the shared private model is compared with, by the label ``group``."""


def _gain(group: str) -> Panel:
    of = f'group="{group}", {HERE}'
    uplift, half = f"hushstream:lift:uplift{{{of}}}", f"hushstream:lift:half_width{{{of}}}"
    return Panel(
        f"What is the gain over {_OVER[group]}?",
        "short",
        f"Mean reward a decision from the shared private model, less that of {_OVER[group]}, and its 95 % interval. "
        "It pays once the low line is above 0; while 0 lies between low and high it is too early to say. "
        f"Needs `measurement.{group}`.",
        (
            Query(f"{uplift} + {half}", "high (95 %)"),
            Query(uplift, "gain a decision"),
            Query(f"{uplift} - {half}", "low (95 %)"),
        ),
        signed=True,
        released=True,
    )


BENEFIT = Board(
    "hushstream-benefit",
    "hushstream: does it pay?",
    "public",
    "What users earn with the shared private model beside two groups without it (p2b with a measurement), and what one "
    "person was charged. All figures are released with noise.",
    (
        _gain("own"),
        _gain("baseline"),
        Panel(
            "What does each group earn a decision?",
            "percentunit",
            "Mean reward of a decision, with noise. Well if the shared private model is above the others for weeks: "
            "see its "
            "gain's interval.",
            tuple(
                Query(f'hushstream:lift_reward:ratio{{group="{group}", {HERE}}}', shown)
                for group, shown in (("model", "shared private model"), *_OVER.items())
            ),
            released=True,
        ),
        Panel(
            "What was one person charged for it?",
            "short",
            "Epsilon (zero-out) of a report, and of the A/B measurement: a person is charged each once; add them up. "
            "Well if the sum is what `hushstream guarantee` printed.",
            tuple(
                Query(f'max (hushstream_budget_spent_micro_epsilon{{scope_class="{scope}", {HERE}}}) / 1e6', shown)
                for scope, shown in (("slot", "a report"), ("lift", "the A/B measurement"))
            ),
            released=True,
        ),
    ),
)

PERFORMANCE = Board(
    "hushstream-performance",
    "hushstream: is it fast enough?",
    "public",
    "Lag, latency and throughput, except those that follow from clicks.",
    (
        _LAG,
        Panel(
            "How long does a batch take?",
            "s",
            "From taking a batch to the acknowledgement of its outputs; the learner's is on the zone's dashboard. "
            "Below "
            "a second is well; else start workers, or see the broker.",
            (
                Query(f"hushstream:batch_seconds:p50_5m{{{HERE}}}", "{{role}} p50"),
                Query(f"hushstream:batch_seconds:p99_5m{{{HERE}}}", "{{role}} p99"),
            ),
        ),
        _DECISIONS,
        _SLOTS,
        Panel(
            "How much does each role publish?",
            "reqps",
            "Acknowledged records a second, by role and topic. A role that falls to 0 alone has stopped: read its log.",
            (Query(f"hushstream:releases:rate5m{{{HERE}}}", "{{role}} {{topic}}"),),
        ),
        Panel(
            "How often is a journal written?",
            "reqps",
            "Journal records a second; the learner's are on the zone's dashboard. It follows the load; each is a "
            "write that "
            "the broker acknowledges.",
            (
                Query(
                    f'sum by (role) (rate(hushstream_journal_appends_total{{role!~"learner([.].+)?", {HERE}}}[5m]))',
                    "{{role}}",
                ),
            ),
        ),
        Panel(
            "How long does a recovery take?",
            "s",
            "Mean time to bring a partition to the end of its journal; the learner's is on the zone's dashboard. If "
            "minutes, "
            "trim journals (`hushstream logs`).",
            (_mean_recovery("hushstream_recovery_seconds"),),
        ),
        Panel(
            "Was a journal read again?",
            "short",
            "Reloads in 15 minutes: a failed append, or another writer.",
            (Query(f"sum by (role) (increase(hushstream_journal_reloads_total{{{HERE}}}[15m]))", "{{role}}"),),
            limit=5,
            alert="JournalReloads",
        ),
    ),
)

_OUTCOMES = 'outcome=~"decided|rewarded|late_reward|never_shown|rejected"'

ZONE = Board(
    "hushstream-zone",
    "hushstream: what one zone may see",
    "zone",
    "Are learners fed, fast and well? Zone-private: these figures follow from content. Only for the operator of the "
    "zone, on its own Prometheus.",
    (
        Panel(
            "Which records are refused?",
            "short",
            "Records refused in 15 minutes, by reason; `hushstream dead-letters list` shows them.",
            (
                Query(f"sum by (role) (hushstream:dead_letters:increase15m{{{HERE}}})", "{{role}}: all"),
                Query(f"hushstream:dead_letters:increase15m{{{HERE}}} > 0", "{{role}}: {{reason}}"),
            ),
            limit=10,
            alert="DeadLettersRising",
        ),
        Panel(
            "Do rewards come back?",
            "percentunit",
            "Rewards that came, of whatever height, as a share of the decisions of 5 minutes: without them nothing is "
            "learned; see that the application sends them. What the model earns is `hushstream lift`.",
            (
                Query(
                    f'sum by (role) (rate(hushstream_events_total{{outcome="rewarded", {HERE}}}[5m])) / '
                    f'sum by (role) (rate(hushstream_events_total{{outcome="decided", {HERE}}}[5m]))',
                    "{{role}}",
                ),
            ),
        ),
        Panel(
            "How many decisions explore?",
            "percentunit",
            "Share of the decisions of 5 minutes whose item had a stated chance below one half. All of them before a "
            "model tells items apart; then about what `exploration` asks for.",
            (Query(f"hushstream:exploration:ratio5m{{{HERE}}}", "{{role}}"),),
        ),
        Panel(
            "How much is not checked yet?",
            "short",
            "Records of journals and outputs that an auditor has not checked yet: a short peak is well; else start "
            "it again.",
            (Query(f"sum by (role, topic) (hushstream_audit_lag_records{{{HERE}}})", "{{role}} {{topic}}"),),
        ),
        Panel(
            "What becomes of decisions?",
            "reqps",
            "Events a second by outcome, of learners, nodes and raters. Well if few are never "
            "shown, late or rejected: see that the application sends `shown`, in time.",
            (
                Query(
                    f"sum by (outcome) (rate(hushstream_events_total{{{_OUTCOMES}, {FOLLOWS}, {HERE}}}[5m]))",
                    "{{outcome}}",
                ),
            ),
        ),
        Panel(
            "How much input waits for learners? (lag)",
            "short",
            "Records of learners' inputs that wait to be processed; 0 or a short peak is well.",
            (Query(f"sum by (role) (hushstream_edge_consumer_lag_records{{{HERE}}})", "{{role}}"),),
            limit=10_000,
            alert="LearnerLagHigh",
        ),
        Panel(
            "How long does a learner take?",
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
            "How often is its journal written?",
            "reqps",
            "Batches journaled a second. It follows the load.",
            (Query(f"sum by (role) (rate(hushstream_edge_journal_appends_total{{{HERE}}}[5m]))", "{{role}}"),),
        ),
        Panel(
            "How long does its recovery take?",
            "s",
            "Mean time to bring a partition to the end of its journal, since the workers began. If minutes, trim "
            "journals.",
            (_mean_recovery("hushstream_edge_recovery_seconds"),),
        ),
        _published("hushstream_edge_"),
        _free_disk("hushstream_edge_"),
    ),
)

GATEWAY = Board(
    "hushstream-gateway",
    "hushstream: are applications answered?",
    "zone",
    "Zone-private: feedback takes its share of a gateway, and so moves how decisions are answered.",
    (
        Panel(
            "What share has no learner given?",
            "percentunit",
            "Share of answers that no learner gave (`logged: false`) in 5 minutes.",
            (Query(f"hushstream:gateway_unlogged:ratio5m{{{HERE}}}", "{{deployment}}"),),
            "stat",
            limit=0.05,
            alert="GatewayOnBaseline",
        ),
        Panel(
            "How many requests are in progress?",
            "short",
            "Requests of all callers: well below `in_flight`, a gateway's limit; else start gateways.",
            (Query(f"sum by (deployment) (hushstream_edge_gateway_in_flight{{{HERE}}})", "{{deployment}}"),),
            "stat",
        ),
        Panel(
            "How many requests come?",
            "reqps",
            "Requests a second by call, with any result; a batch counts as one. It follows your visits.",
            (Query(f"sum by (call) (hushstream:gateway_requests:rate5m{{{HERE}}})", "{{call}}"),),
        ),
        Panel(
            "How long do answers take?",
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
            "Which requests end with a problem?",
            "reqps",
            "Requests a second that a gateway ended with a problem, by its code: none is well; the gateway's page "
            "lists codes.",
            (Query(f'sum by (code) (hushstream:gateway_requests:rate5m{{code!="ok", {HERE}}})', "{{code}}"),),
        ),
        Panel(
            "How many are turned away (429)?",
            "reqps",
            "Requests a second that were refused for now: too many of one caller, or too many in progress. "
            "None is well; else start gateways, or raise the caller's rate.",
            (
                Query(
                    f'sum by (code) (hushstream:gateway_requests:rate5m{{code=~"too-many-requests|too-busy", {HERE}}})',
                    "{{code}}",
                ),
            ),
        ),
        Panel(
            "How often is the baseline given?",
            "reqps",
            "Baselines a second that were answered at once, by call; each of a batch counts. Few is well; else see "
            "learners.",
            (Query(f"sum by (call) (rate(hushstream_edge_gateway_unlogged_total{{{HERE}}}[5m]))", "{{call}}"),),
        ),
        Panel(
            "How many answers are given?",
            "reqps",
            "Answers a second by call; each of a batch counts. It follows your visits.",
            (Query(f"sum by (call) (rate(hushstream_edge_gateway_answers_total{{{HERE}}}[5m]))", "{{call}}"),),
        ),
    ),
)

BOARDS = (OVERVIEW, BENEFIT, PRIVACY, PERFORMANCE, ZONE, GATEWAY)
