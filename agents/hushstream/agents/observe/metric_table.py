"""Declares every metric of a worker in one table, with its class.

A ``released`` metric shows the output of a mechanism. A ``slot-public`` metric depends only on what is public anyway
(records per topic, slots, windows, times). A ``zone-private`` metric tells something about content and is served only
on the zone's own endpoint. Label values come from fixed lists; a value that is not on the list is counted as ``other``.

A learner reads clicks: a batch that holds only clicks shows that there was one, and contexts wait longer behind clicks.
A click that changes a state is a reason to append, save and publish it. So its batches, recoveries, lag and states
have zone-private metrics (``hushstream_edge_*``); decisions are counted in public.

The shuffler, the collector and the counters hold content, too, but their times are slot-public: they do the same work
for a null slot as for a report, and for any reward, so the time of a batch depends only on its number of slots. A role
that cannot do that declares its work private (`Role.private_work`). An aggregator works only on published records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

MetricClass = Literal["released", "slot-public", "zone-private"]
Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric: ``name`` by Prometheus conventions (counters are named with their ``_total``)."""

    name: str
    kind: Kind
    metric_class: MetricClass
    labels: tuple[str, ...]
    help: str


def specs(
    metric_class: MetricClass, kind: Kind, labels: tuple[str, ...], help_by_name: Mapping[str, str]
) -> tuple[MetricSpec, ...]:
    """Metrics that are alike but for name and help."""
    return tuple(MetricSpec(name, kind, metric_class, labels, text) for name, text in help_by_name.items())


METRICS: tuple[MetricSpec, ...] = (
    *specs("zone-private", "counter", ("role", "outcome"), {
        "hushstream_events_total": "Events, by outcome.",
    }),
    *specs("slot-public", "counter", ("role",), {
        "hushstream_slots_total":
            "Reports (pdol: records) sent, received or counted, whatever they hold; pdol counts `label_slots` later.",
        "hushstream_decisions_total": "Contexts and records that were answered, whatever was clicked or labelled.",
        "hushstream_windows_sealed_total": "Windows of reports closed.",
        "hushstream_journal_appends_total": "Journal records appended; not by a learner.",
        "hushstream_journal_reloads_total":
            "Times a partition was reloaded from its journal (a failed append, or another writer).",
    }),
    *specs("slot-public", "histogram", ("role",), {
        "hushstream_batch_seconds": "From taking a batch to the acknowledgement of all its outputs; not of a learner.",
        "hushstream_recovery_seconds": "Time to bring one partition to the end of its journal; not of a learner.",
    }),
    *specs("zone-private", "histogram", ("role",), {
        "hushstream_edge_batch_seconds": "The time of a batch of a learner, which may hold clicks alone.",
        "hushstream_edge_recovery_seconds": "The time of a recovery of a learner, who folds clicks again on the way.",
    }),
    *specs("zone-private", "counter", ("role",), {
        "hushstream_edge_journal_appends_total": "Journal records appended by a learner, one for each batch.",
        "hushstream_edge_waits_in_vain_total":
            "Times a partition waited for a click that a context names and that does not exist.",
    }),
    *specs("slot-public", "counter", ("role", "topic"), {
        "hushstream_foreign_records_total":
            "Records that were skipped on a journal, marks, states or models, as nobody of the deployment wrote them.",
        "hushstream_releases_total": "Records released, by topic.",
    }),
    *specs("zone-private", "counter", ("role", "reason"), {
        "hushstream_dead_letters_total": "Records refused, by reason.",
    }),
    *specs("slot-public", "gauge", ("role",), {
        "hushstream_partitions_declared": "Home partitions that the role has, over all its workers.",
        "hushstream_partitions_held": "Home partitions that this worker runs.",
        "hushstream_partitions_assigned":
            "Home partitions that the group gave to this worker; those neither running nor stopped are recovering.",
        "hushstream_partitions_stopped": "Assigned home partitions that were stopped for a reason given in the log.",
        "hushstream_group_member": "1 while the worker is in its group, or is joining it; 0 when it has left.",
        "hushstream_heartbeat_age_seconds":
            "Time since the worker's event loop last ran, in steps of 10 s: it shows a hang, but no single batch.",
        "hushstream_fetch_age_seconds":
            "Time since a broker last answered a fetch of this worker's inputs, in steps of 5 s.",
        "hushstream_group_commit_age_seconds":
            "Time since the group's coordinator last took a commit, in steps of 5 s; 0 without a partition.",
        "hushstream_published_state_age_seconds":
            "Age of the newest published state, where it is oldest, in steps of 5 s; not of a learner.",
        "hushstream_append_wait_seconds":
            "How long the oldest append to a journal has waited for its acknowledgement, in steps of 5 s; "
            "not of a learner.",
        "hushstream_snapshot_age_seconds":
            "Time since the state was saved, or was found to be unchanged, in steps of 5 s; not of a learner.",
        "hushstream_state_disk_free_ratio":
            "Share of the disk of the state folder that is free, in steps of 0.01; not of a learner.",
    }),
    *specs("zone-private", "gauge", ("role",), {
        "hushstream_edge_published_state_age_seconds": "The same of a learner: a click alone is a state to publish.",
        "hushstream_edge_append_wait_seconds": "The same of a learner, who appends clicks.",
        "hushstream_edge_snapshot_age_seconds": "The same of a learner, whose state clicks change.",
        "hushstream_edge_state_disk_free_ratio": "The same of a learner, whose state clicks make larger.",
    }),
    *specs("slot-public", "gauge", ("role", "partition", "reason"), {
        "hushstream_partition_stopped":
            "1 for each partition that was stopped, with the reason; the log has the whole sentence.",
    }),
    *specs("slot-public", "gauge", ("role", "reason"), {
        "hushstream_exit_reason": "1 for a worker that cannot go on, with the reason, while it still serves metrics.",
    }),
    *specs("slot-public", "gauge", ("role", "topic", "setting"), {
        "hushstream_topic_drift":
            "1 while a setting (or the partitions, or the access rules) of a topic differs from its declaration.",
    }),
    *specs("slot-public", "gauge", ("role", "partition"), {
        "hushstream_partition_dark_seconds":
            "How long records of the first input wait while none is folded, in steps of 5 s; not of a learner.",
        "hushstream_window_slots_declared": "Reports that close a window, by the configuration.",
    }),
    *specs("zone-private", "gauge", ("role", "partition"), {
        "hushstream_edge_partition_dark_seconds": "The same of a learner, whose contexts wait behind clicks.",
    }),
    *specs("slot-public", "gauge", ("role", "declared"), {
        "hushstream_roles_declared": "1 for each role that the deployment has, reported by every worker.",
    }),
    *specs("slot-public", "gauge", ("role", "topic", "partition"), {
        "hushstream_consumer_lag_records": "Records of an input that are not folded yet; not of a learner.",
    }),
    *specs("zone-private", "gauge", ("role", "topic", "partition"), {
        "hushstream_edge_consumer_lag_records":
            "Records that are not folded yet of a learner, whom clicks delay, and of inputs whose number is content.",
    }),
    *specs("released", "gauge", ("role", "partition"), {
        "hushstream_model_version": "Version of the model in use.",
        "hushstream_model_age_seconds": "Time since the model in use was published.",
    }),
    *specs("released", "gauge", ("role", "partition", "group"), {
        "hushstream_lift_decisions":
            "Decisions counted with noise (p2b): with the shared model, own learning, or the application's own choice.",
        "hushstream_lift_reward_ratio": "Reward of a decision, with noise, by group (p2b).",
        "hushstream_lift_reward_variance": "Variance of that reward, by sampling of users and by noise (p2b).",
    }),
    *specs("released", "gauge", ("role", "partition", "scope_class"), {
        "hushstream_budget_spent_micro_epsilon": "The most that one unit was charged so far, in millionths of epsilon.",
        "hushstream_budget_limit_micro_epsilon": "The most that one unit may pay, in millionths of epsilon.",
        "hushstream_budget_next_charge_micro_epsilon": "What the next charge costs a unit, in millionths of epsilon.",
        "hushstream_budget_releases": "Releases made on one charge, where a charge pays for a fixed number.",
        "hushstream_budget_releases_limit": "Releases that one charge pays for.",
        "hushstream_budget_refusing": "1 where the budget refuses every further release, otherwise 0.",
    }),
)  # fmt: skip


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
        "next_charge_micro_epsilon",
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
            f"lift_{figure}_{group}": RoleGauge(f"hushstream_lift_{figure}", {"group": group})
            for figure in ("decisions", "reward_ratio", "reward_variance")
            for group in ("model", "own", "baseline")
        },
        **budgets,
    }
