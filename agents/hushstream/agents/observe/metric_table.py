"""Declares every metric of a worker in one table, with its class.

A ``released`` metric shows the output of a mechanism. A ``slot-public`` metric depends only on what is public anyway
(records per topic, slots, windows, times). A ``zone-private`` metric tells something about content and is served only
on the zone's own endpoint. Label values come from fixed lists; a value that is not on the list is counted as ``other``.

A learner reads clicks, and a batch that holds only clicks shows that there was one. So its batches, its recoveries and
the lag of its clicks have zone-private metrics (``hushstream_edge_*``); decisions are counted in public.

The shuffler, the collector and the counters hold content, too, but their times are slot-public: they do the same work
for a null slot as for a report, and for any reward, so the time of a batch depends only on its number of slots. A role
that cannot do that declares its work private (`Role.private_work`). An aggregator works only on published records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

MetricClass = Literal["released", "slot-public", "zone-private"]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric: ``name`` by Prometheus conventions (counters are named with their ``_total``)."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    metric_class: MetricClass
    labels: tuple[str, ...]
    help: str


METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "hushstream_events_total",
        "counter",
        "zone-private",
        ("role", "outcome"),
        "Events, by outcome.",
    ),
    MetricSpec(
        "hushstream_slots_total",
        "counter",
        "slot-public",
        ("role",),
        "Slots sent or received, whatever they hold.",
    ),
    MetricSpec(
        "hushstream_decisions_total",
        "counter",
        "slot-public",
        ("role",),
        "Contexts and records that were answered, whatever was clicked or labelled.",
    ),
    MetricSpec("hushstream_windows_sealed_total", "counter", "slot-public", ("role",), "Windows of slots closed."),
    MetricSpec(
        "hushstream_batch_seconds",
        "histogram",
        "slot-public",
        ("role",),
        "From taking a batch to the acknowledgement of all its outputs; not of a learner.",
    ),
    MetricSpec(
        "hushstream_edge_batch_seconds",
        "histogram",
        "zone-private",
        ("role",),
        "The same of a learner, whose batches may hold clicks alone.",
    ),
    MetricSpec(
        "hushstream_journal_appends_total",
        "counter",
        "slot-public",
        ("role",),
        "Journal records appended; not by a learner.",
    ),
    MetricSpec(
        "hushstream_edge_journal_appends_total",
        "counter",
        "zone-private",
        ("role",),
        "The same by a learner, one for each batch.",
    ),
    MetricSpec(
        "hushstream_journal_reloads_total",
        "counter",
        "slot-public",
        ("role",),
        "Times a partition was reloaded from its journal (a failed append, or another writer).",
    ),
    MetricSpec(
        "hushstream_foreign_records_total",
        "counter",
        "slot-public",
        ("role", "topic"),
        "Records that were skipped on a journal, marks, states or models, because nobody of the deployment wrote them.",
    ),
    MetricSpec(
        "hushstream_releases_total",
        "counter",
        "slot-public",
        ("role", "topic"),
        "Records released, by topic.",
    ),
    MetricSpec(
        "hushstream_dead_letters_total",
        "counter",
        "zone-private",
        ("role", "reason"),
        "Records refused, by reason.",
    ),
    MetricSpec(
        "hushstream_edge_waits_in_vain_total",
        "counter",
        "zone-private",
        ("role",),
        "Times a partition waited for a click that a context names and that does not exist.",
    ),
    MetricSpec(
        "hushstream_partitions_declared",
        "gauge",
        "slot-public",
        ("role",),
        "Home partitions that the role has, over all its workers.",
    ),
    MetricSpec(
        "hushstream_partitions_held",
        "gauge",
        "slot-public",
        ("role",),
        "Home partitions that this worker runs.",
    ),
    MetricSpec(
        "hushstream_partitions_assigned",
        "gauge",
        "slot-public",
        ("role",),
        "Home partitions that the group gave to this worker; those neither running nor stopped are being recovered.",
    ),
    MetricSpec(
        "hushstream_partitions_stopped",
        "gauge",
        "slot-public",
        ("role",),
        "Assigned home partitions that were stopped for a reason given in the log.",
    ),
    MetricSpec(
        "hushstream_partition_stopped",
        "gauge",
        "slot-public",
        ("role", "partition", "reason"),
        "1 for each partition that was stopped, with the reason; the log has the whole sentence.",
    ),
    MetricSpec(
        "hushstream_exit_reason",
        "gauge",
        "slot-public",
        ("role", "reason"),
        "1 for a worker that cannot go on, with the reason, while it still serves metrics.",
    ),
    MetricSpec(
        "hushstream_group_member",
        "gauge",
        "slot-public",
        ("role",),
        "1 while the worker is in its group, or is joining it; 0 when it has left.",
    ),
    MetricSpec(
        "hushstream_published_state_age_seconds",
        "gauge",
        "slot-public",
        ("role",),
        "Age of the newest published state, of the partition where it is oldest, in steps of 5 s.",
    ),
    MetricSpec(
        "hushstream_heartbeat_age_seconds",
        "gauge",
        "slot-public",
        ("role",),
        "Time since the worker's event loop last ran, in steps of 10 s: coarse, to show a hang but no single batch.",
    ),
    MetricSpec(
        "hushstream_fetch_age_seconds",
        "gauge",
        "slot-public",
        ("role",),
        "Time since a broker last answered a fetch of this worker's inputs, in steps of 5 s.",
    ),
    MetricSpec(
        "hushstream_group_heartbeat_age_seconds",
        "gauge",
        "slot-public",
        ("role",),
        "Time since the group's coordinator last accepted a heartbeat, in steps of 5 s.",
    ),
    MetricSpec(
        "hushstream_append_wait_seconds",
        "gauge",
        "slot-public",
        ("role",),
        "How long the oldest append to a journal has waited for its acknowledgement, in steps of 5 s.",
    ),
    MetricSpec(
        "hushstream_snapshot_age_seconds",
        "gauge",
        "slot-public",
        ("role",),
        "Time since the state was saved, or was found to be unchanged, in steps of 5 s.",
    ),
    MetricSpec(
        "hushstream_state_disk_free_ratio",
        "gauge",
        "slot-public",
        ("role",),
        "Share of the disk of the state folder that is free, in steps of 0.01.",
    ),
    MetricSpec(
        "hushstream_partition_dark_seconds",
        "gauge",
        "slot-public",
        ("role", "partition"),
        "How long records of the first input have waited without one of them being folded, in steps of 5 s.",
    ),
    MetricSpec(
        "hushstream_roles_declared",
        "gauge",
        "slot-public",
        ("role", "declared"),
        "1 for each role that the deployment has, reported by every worker.",
    ),
    MetricSpec(
        "hushstream_schema_generation",
        "gauge",
        "slot-public",
        ("role", "use"),
        "Schema generation of the records that the worker `writes`, and the newest that it `reads`.",
    ),
    MetricSpec(
        "hushstream_consumer_lag_records",
        "gauge",
        "slot-public",
        ("role", "topic", "partition"),
        "Records of an input that are not folded yet; not of clicks.",
    ),
    MetricSpec(
        "hushstream_edge_consumer_lag_records",
        "gauge",
        "zone-private",
        ("role", "topic", "partition"),
        "Clicks that are not folded yet.",
    ),
    MetricSpec(
        "hushstream_window_slots_declared",
        "gauge",
        "slot-public",
        ("role", "partition"),
        "Slots that close a window, by the configuration.",
    ),
    MetricSpec(
        "hushstream_recovery_seconds",
        "histogram",
        "slot-public",
        ("role",),
        "Time to bring one partition to the end of its journal; not of a learner.",
    ),
    MetricSpec(
        "hushstream_edge_recovery_seconds",
        "histogram",
        "zone-private",
        ("role",),
        "The same of a learner, who folds clicks again on the way.",
    ),
    MetricSpec(
        "hushstream_model_version",
        "gauge",
        "released",
        ("role", "partition"),
        "Version of the model in use.",
    ),
    MetricSpec(
        "hushstream_model_age_seconds",
        "gauge",
        "released",
        ("role", "partition"),
        "Time since the model in use was published.",
    ),
    MetricSpec(
        "hushstream_outlook_gain_ratio",
        "gauge",
        "released",
        ("role", "partition", "source", "bound"),
        "Share of the non-private gain at this number of slots: as `plan` promised it, and by the released sums (p2b).",
    ),
    MetricSpec(
        "hushstream_outlook_reward_ratio",
        "gauge",
        "released",
        ("role", "partition", "source"),
        "Share of slots that hold a reward: for users without a model, as promised, and as released with noise (p2b).",
    ),
    MetricSpec(
        "hushstream_lift_decisions",
        "gauge",
        "released",
        ("role", "partition", "group"),
        "Decisions that were shown, with noise, by the model and in the hold-out, of the newest release (p2b).",
    ),
    MetricSpec(
        "hushstream_lift_reward_ratio",
        "gauge",
        "released",
        ("role", "partition", "group"),
        "Reward of a decision, with noise, of both groups (p2b).",
    ),
    MetricSpec(
        "hushstream_lift_reward_variance",
        "gauge",
        "released",
        ("role", "partition", "group"),
        "Variance of that reward, by sampling of users and by noise (p2b).",
    ),
    MetricSpec(
        "hushstream_budget_spent_micro_epsilon",
        "gauge",
        "released",
        ("role", "partition", "scope_class"),
        "The most that one unit has paid so far, in millionths of epsilon.",
    ),
    MetricSpec(
        "hushstream_budget_limit_micro_epsilon",
        "gauge",
        "released",
        ("role", "partition", "scope_class"),
        "The most that one unit may pay, in millionths of epsilon.",
    ),
    MetricSpec(
        "hushstream_budget_price_micro_epsilon",
        "gauge",
        "released",
        ("role", "partition", "scope_class"),
        "What the next charge costs a unit, in millionths of epsilon.",
    ),
    MetricSpec(
        "hushstream_budget_releases",
        "gauge",
        "released",
        ("role", "partition", "scope_class"),
        "Releases made on one charge, where a charge pays for a fixed number.",
    ),
    MetricSpec(
        "hushstream_budget_releases_limit",
        "gauge",
        "released",
        ("role", "partition", "scope_class"),
        "Releases that one charge pays for.",
    ),
    MetricSpec(
        "hushstream_budget_refusing",
        "gauge",
        "released",
        ("role", "partition", "scope_class"),
        "1 where the budget refuses every further release, otherwise 0.",
    ),
)


@dataclass(frozen=True, slots=True)
class RoleGauge:
    """The gauge, with its labels, that shows a value which a role reports."""

    metric: str
    labels: Mapping[str, str] = field(default_factory=dict)


def _budget(scope_class: str) -> dict[str, RoleGauge]:
    labels = {"scope_class": scope_class}
    names = (
        "spent_micro_epsilon",
        "limit_micro_epsilon",
        "price_micro_epsilon",
        "releases",
        "releases_limit",
        "refusing",
    )
    return {f"{scope_class}_{name}": RoleGauge(f"hushstream_budget_{name}", labels) for name in names}


def role_gauges_of(scope_classes: Iterable[str]) -> Mapping[str, RoleGauge]:
    """The values that a role may report about a machine with charges of these classes, and the gauge of each."""
    budgets = {name: gauge for scope_class in scope_classes for name, gauge in _budget(scope_class).items()}
    return {
        "model_version": RoleGauge("hushstream_model_version"),
        "model_age_seconds": RoleGauge("hushstream_model_age_seconds"),
        "window_slots": RoleGauge("hushstream_window_slots_declared"),
        **{
            f"gain_{source}_{bound}": RoleGauge("hushstream_outlook_gain_ratio", {"source": source, "bound": bound})
            for source in ("promised", "found")
            for bound in ("low", "expected", "high")
        },
        **{
            f"reward_{source}": RoleGauge("hushstream_outlook_reward_ratio", {"source": source})
            for source in ("alone", "promised", "found")
        },
        **{
            f"lift_{figure}_{group}": RoleGauge(f"hushstream_lift_{figure}", {"group": group})
            for figure in ("decisions", "reward_ratio", "reward_variance")
            for group in ("model", "holdout")
        },
        **budgets,
    }
