"""The audits of PDOL: attacks, forks of nodes' journals, and configurations.

The attacks are on a record against null in the sound form, a record against another in the paper's form.

*The sound form.* A domain has up to `WIDE_RUNS` features that are attacked. The target of each feature is one record
in the first leaf, with y = 1 on that feature alone; it is present, or replaced by null. All later records are the
attacker's. They are probes of the same kind, which have no loss once the weight of their feature is 1 or more. A record
of one feature alone moves sums of this feature alone, so one domain holds as many runs. The attacker sees all releases,
the models made from them, and the predictions for the probes. The attacker also runs the domain's own code
without noise under both hypotheses, on the models that were published. So it knows the two possible sums of any
function of the target, in any later leaf, and uses the likelihood ratio of the Gaussian noise. A prediction that only
one hypothesis gives decides by itself. So this attack is the best against the product and against every mutant: it
detects a gradient, a mixture or a prediction with sums without noise in later leaves.

*The paper's form.* There are two features and two nodes; the first record of a node is x or -x. The attacker sees
what the node sends, and chooses its later records between its two possible parameters, so that the next gradient
distinguishes them.

At the end it declares the study, which `hushstream.replay.study` finds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import BufferedToeplitz, Concentrated, Plan
from hushstream.engine.machine import Machine
from hushstream.privacy.amounts import Cost, count_text, epsilon_micro
from hushstream.privacy.audits import LAPLACE_STEPS, Attack, Family, Pair, gaussian_curve, laplace_pair, pure
from hushstream.privacy.keys import Key
from hushstream.replay.audits.configured import AuditReport, first_draw, left_out, report_of, require_noise
from hushstream.replay.audits.readings import of_rho
from hushstream.replay.audits.recordings import Branch, PlayedRole, fresh_key, fresh_nonce, phase_end_fields
from hushstream.replay.audits.row import Audit, fork_row
from hushstream.replay.audits.tests import ForkTest, NeighbourTest, SizeTest, columns, side_by_side, sure_rates
from hushstream.replay.datasets.builtin import ML_100K, TMC2007, simulated_dataset
from hushstream.replay.experiments.systems import foretold_worlds
from hushstream.replay.studies.pdol.experiments import (
    EXPERIMENTS,
    foretold,
    paper_line,
    run_sharing,
)
from hushstream.replay.studies.pdol.play import PdolOptions, run_pdol
from hushstream.replay.studies.pdol.worlds import RecordStream, load_records, ml_clicks, sparse_synthetic, tmc_binary
from hushstream.replay.study import Study
from hushstream.systems.pdol.algorithm.aggregate import Aggregate
from hushstream.systems.pdol.algorithm.counters import Counters, NodeState, counter_address, plan_of
from hushstream.systems.pdol.algorithm.gossip import (
    PARAMETER_BITS,
    GossipConfig,
    GossipNode,
    draw_noise,
    gossip_address,
    gossip_guarantee,
    mixing_of,
    noise_law,
)
from hushstream.systems.pdol.algorithm.moments import leaf_of, takes_moments
from hushstream.systems.pdol.algorithm.rows import Rows, null_rows, predictions, scores
from hushstream.systems.pdol.configuration import (
    LARGEST_MOMENTS,
    UNIT,
    CounterName,
    ModelConfig,
    PdolConfig,
    RecordConfig,
    SharingConfig,
    pdol_digest,
)
from hushstream.systems.pdol.guarantee import PdolSystem, epoch_guarantee
from hushstream.systems.pdol.nodes.home import HomeMachine

PARALLEL_RUNS = 25
WIDE, WIDE_RUNS = LARGEST_MOMENTS + 2, 125
"""Features of the audit of gradients, and how many of them are attacked at most: with fewer moments are released."""
PROBES = 8
"""The number of probes of each feature in each leaf."""

SEEN, HORIZON = 5, 8
EPSILON, DELTA = 8.0, 1e-6
"""An epsilon so large that few runs detect noise of half the size."""

GOSSIP_ROUNDS = {"own": 16, "sent": 4}
"""Rounds that the attacker sees.

With gradients at sent parameters, later rounds show the record only through a fault.
"""

SURE = {"own": 1.5, "sent": 0.9}
"""The attacker on the paper's form says yes if the log likelihood ratio is above this.

The noise of one round gives at most 1. The value 1.5 refutes the paper's claim most reliably: the attacker is right in
.377 and wrong in .037 of the runs (5,000 of each were played). At a false-alarm rate of 1e-6, fewer than one in a
million sets of 1,200 runs fails to prove more than 1.
"""

GOSSIP_RUNS = 100

PAPER_EPSILON = 1.0

FEATURES = 2
"""Features in the paper's form: two, so that a record of norm 1 crosses the margin wherever the parameters are."""

_EVEN = np.full(FEATURES, FEATURES**-0.5)
_ONE = float(1 << PARAMETER_BITS)
_ROUNDING = 1 / 12
"""The variance that rounding a release to the lattice adds."""


@dataclass(frozen=True, slots=True)
class ParallelAttacks:
    """The runs in one domain.

    Attributes:
        features: how many features are attacked, the first ones; each is one run.
        probes: records of each feature in each leaf but the first.
        leaves: how many leaves are fed, with releases that the attacker sees.
    """

    features: int = PARALLEL_RUNS
    probes: int = PROBES
    leaves: int = SEEN


def audited_config(counter: CounterName, features: int = WIDE) -> PdolConfig:
    """One domain with all runs of `lanes_of`, whose weights follow the noised sums without a threshold."""
    sharing = SharingConfig(counter, EPSILON, DELTA, min(features, WIDE_RUNS) * PROBES, HORIZON)
    return PdolConfig("audit", 1, RecordConfig(features), sharing, ModelConfig(threshold=0.0))


def audit_domain(counter: CounterName, features: int = WIDE) -> NeighbourTest:
    """Attack a record against null; the attacker sees all outputs of a domain."""
    config, lanes = audited_config(counter, features), ParallelAttacks(min(features, WIDE_RUNS))
    plan = plan_of(config.sharing, config.records.dimension)
    return NeighbourTest(domain_attack(config, plan, lanes), epoch_guarantee(config).cost, domain_family(config, lanes))


def domain_attack(config: PdolConfig, plan: Plan, lanes: ParallelAttacks) -> Attack:
    """The likelihood ratio attack; see the module's docstring."""
    key = fresh_key()
    inverse, cells = np.linalg.inv(_covariance(plan, lanes.leaves)), _cells(config.records.dimension, lanes.features)

    def attack(present: bool) -> NDArray[np.float64]:
        seen = _transcript(config, plan, lanes, key, present, None)
        models = [model for _, model, _ in seen]
        without, there = (_transcript(config, plan, lanes, None, guess, models) for guess in (False, True))
        released, *sums = (
            np.array([values[cells] for values, _, _ in steps], dtype=np.float64) for steps in (seen, without, there)
        )
        centre, difference = (sums[0] + sums[1]) / 2, sums[1] - sums[0]
        score = np.einsum("tcf,tu,ucf->f", released - centre, inverse, difference)
        return np.asarray(score + _surely(seen, without, there), dtype=np.float64)

    return side_by_side(attack, lanes.features)


def _cells(dimension: int, features: int) -> NDArray[np.int64]:
    """(c, features): the coordinates of a leaf that a record of one feature alone moves."""
    first = np.arange(features)
    if not takes_moments(dimension):
        return first[None]
    return np.stack([first, dimension + first * dimension - first * (first - 1) // 2])


def domain_family(config: PdolConfig, lanes: ParallelAttacks) -> Family:
    """Two normal distributions, at the distance that one record makes in the seen releases of the counter."""
    plan = plan_of(config.sharing, config.records.dimension)
    moved, left = leaf_of(config.records.dimension).longest, plan.factorisation(lanes.leaves).left
    ones = np.full(lanes.leaves, float(moved))
    # This is the noise that the budget requires, which may differ from the attacked plan's.
    stated = left @ left.T * (first_draw(plan)[0] / float(left[0, 0])) ** 2
    apart = math.sqrt(float(ones @ np.linalg.inv(stated + _ROUNDING * np.eye(lanes.leaves)) @ ones))
    assert isinstance(plan.budget, Concentrated)
    rho = float(plan.budget.rho)
    return of_rho(lambda other: gaussian_curve(apart * math.sqrt(other / rho)), config.sharing.delta)


def _covariance(plan: Plan, leaves: int) -> NDArray[np.float64]:
    left = plan.factorisation(leaves).left
    fine = plan.fine_bits if isinstance(plan, BufferedToeplitz) else 0
    return np.asarray(left @ left.T * plan.noise.variance * 4.0**-fine + _ROUNDING * np.eye(leaves))


def opened_node(config: PdolConfig, plan: Plan, key: Key | None) -> NodeState:
    """A domain before its first slot, under a nonce of its own; without a key its sums have no noise."""
    address = counter_address(config, pdol_digest(config), fresh_nonce(), 0, 0, 0)
    counters = Counters(plan, key or fresh_key(), address, config.records.dimension, silent=key is None)
    return NodeState(0, counters, config.slots_of(0))


_Step = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int8]]
"""A release, the model that its leaf was folded with, and the predictions for the leaf's probes."""


def _transcript(
    config: PdolConfig,
    plan: Plan,
    lanes: ParallelAttacks,
    key: Key | None,
    present: bool,
    models: list[NDArray[np.int32]] | None,
) -> list[_Step]:
    """The outputs of a domain; without a key its sums have no noise, and ``models`` come from another run."""
    aggregate, node, steps = Aggregate(config), opened_node(config, plan, key), []
    targets, probes = _targets(lanes, present), _probes(lanes.features, lanes.probes)
    for leaf in range(lanes.leaves):
        model = aggregate.model.solved(config.records.dimension).weights if models is None else models[leaf]
        said = predicted(node, _probes(lanes.features, 1), model)
        node.fold(probes if leaf else targets, model)
        node.fold(null_rows(node.capacity_left), model)
        release = node.release()
        steps.append((release.values, model, said))
        if models is None:
            aggregate.on_release(release)
            aggregate.publish()
    return steps


def predicted(node: NodeState, rows: Rows, model: NDArray[np.int32]) -> NDArray[np.int8]:
    """The labels that a node predicts, (m,): by the model alone, whatever the node holds."""
    return predictions(scores(rows, model))


def _surely(seen: list[_Step], without: list[_Step], there: list[_Step]) -> NDArray[np.float64]:
    """The score by predictions alone: a hypothesis that gives other predictions is ruled out."""
    score = np.zeros(len(seen[0][2]))
    for (_, _, said), (_, _, no), (_, _, yes) in zip(seen, without, there, strict=True):
        score += np.where(said != no, 1e9, 0.0) - np.where(said != yes, 1e9, 0.0)
    return score


def _probes(features: int, times: int) -> Rows:
    """Records with y = 1 on one feature each; each of the first ``features`` features occurs ``times`` times."""
    count = times * features
    return Rows(
        np.arange(count + 1, dtype=np.int64),
        np.tile(np.arange(features, dtype=np.int32), times),
        np.full(count, UNIT, dtype=np.int64),
        np.ones(count, dtype=np.int8),
    )


def _targets(lanes: ParallelAttacks, present: bool) -> Rows:
    """The first leaf: a record of each feature, or null slots."""
    rows = _probes(lanes.features, 1)
    return rows.without(np.full(len(rows), not present))


GradientAt = Literal["own", "sent"]


def gossip_config(gradient_at: GradientAt) -> GossipConfig:
    """A configuration of the paper's form with two nodes."""
    rounds = GOSSIP_ROUNDS[gradient_at]
    return GossipConfig(2, FEATURES, PAPER_EPSILON, rounds, "complete", gradient_at=gradient_at)


def audit_gossip(gradient_at: GradientAt, sure: float | None = None) -> NeighbourTest:
    """Attack the paper's form: a node's first record is x or -x, and the attacker sees everything that the node sends.

    Args:
        gradient_at: own or sent.
        sure: replaces `SURE`; against a fault that reveals more, the attacker can use a larger threshold.
    """
    config = gossip_config(gradient_at)
    sure, family = SURE[gradient_at] if sure is None else sure, gossip_family(gradient_at)
    rates = None if family is None else sure_rates(gossip_pair, sure, PAPER_EPSILON)
    return NeighbourTest(gossip_attack(config, sure), gossip_guarantee(config).cost, family, rates)


def gossip_attack(config: GossipConfig, sure: float) -> Attack:
    """The likelihood ratio of `GOSSIP_RUNS` first nodes with `FEATURES` features; see the module's docstring."""
    return side_by_side(_GossipAttack(config, sure).scores, GOSSIP_RUNS)


def gossip_family(gradient_at: str) -> Family | None:
    """The distributions of all noise of the round that learned from the record.

    With gradients at sent parameters, no other round depends on the record.
    """
    if gradient_at == "own":
        return None
    return pure(lambda epsilon: gossip_pair(epsilon).power)


def gossip_pair(epsilon: float) -> Pair:
    """The noise of all features of one round, without the record and with it."""
    return laplace_pair(epsilon, FEATURES, LAPLACE_STEPS)


class _GossipAttack:
    """Runs in one batch, each with its own nonce: the noise of a round is drawn for all of them at once."""

    def __init__(self, config: GossipConfig, sure: float) -> None:
        self._config, self._sure, self._key = config, sure, fresh_key()
        self._mixing = mixing_of(config)

    def scores(self, present: bool) -> NDArray[np.float64]:
        """Logarithms of the likelihood ratios minus the attacker's threshold."""
        runs = [_GossipRun(self._make(), self._make(), present) for _ in range(GOSSIP_RUNS)]
        for number in range(1, self._config.rounds + 1):
            law = noise_law(self._config, number)
            addresses = [gossip_address(self._config, run.nonce, 0, number) for run in runs]
            noise = draw_noise(law, [self._key] * len(runs), addresses, FEATURES)
            for run, added in zip(runs, noise, strict=True):
                first, second = run.step(added, law.numerator / law.denominator)
                run.rows = [self._probe(first / _ONE, second / _ONE)] * 2
        return np.array([run.total - self._sure for run in runs])

    def _make(self) -> GossipNode:
        return GossipNode(0, self._mixing, self._config)

    def _probe(self, first: NDArray[np.float64], second: NDArray[np.float64]) -> Rows:
        """A record of norm 1 with no loss at one of the two parameters and some loss at the other; or null."""
        gap, middle = second - first, (first + second) / 2
        if self._config.gradient_at == "sent" or not gap.any():
            return null_rows(1)
        length = float(np.hypot(*middle))
        if length <= 1:
            along = gap / np.hypot(*gap)
            return _record(along) if along @ middle + along @ gap / 2 > 1 else null_rows(1)
        unit = middle / length
        aside = np.array([-unit[1], unit[0]]) * math.sqrt(1 - 1 / length**2)
        return _record(max((unit / length + aside, unit / length - aside), key=lambda one: abs(float(one @ gap))))


class _GossipRun:
    """A node, and a copy of it under the other hypothesis."""

    def __init__(self, node: GossipNode, other: GossipNode, present: bool) -> None:
        self.nonce, self.total = fresh_nonce(), 0.0
        self.rows = [_record(sign * _EVEN) for sign in (-1, 1)]
        self._node, self._other, self._present = node, other, present

    def step(self, noise: NDArray[np.int64], scale: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Play a round and add what it reveals; return the parameters before their noise under either hypothesis."""
        sent = self._node.step(self.rows[self._present], noise)[1]
        other = self._other.follow(self.rows[not self._present], sent)
        without, there = (other, sent - noise) if self._present else (sent - noise, other)
        self.total += float((np.abs(sent - without) - np.abs(sent - there)).sum()) / scale
        return without.astype(np.float64), there.astype(np.float64)


def _record(values: NDArray[np.float64]) -> Rows:
    """A record y = 1 with these values, cut toward zero; -x with y = 1 is the same as x with y = -1."""
    return Rows(
        np.array([0, FEATURES], dtype=np.int64),
        np.arange(FEATURES, dtype=np.int32),
        np.trunc(values * UNIT).astype(np.int64),
        np.ones(1, dtype=np.int8),
    )


def audits() -> tuple[Audit, ...]:
    """The audits of PDOL's two forms."""
    about = "a record against null, releases, models and predictions seen"
    blt, digits = (audited_config(kind) for kind in ("blt", "negative-digit"))
    sent, own, claim = gossip_config("sent"), gossip_config("own"), Cost(epsilon_micro(PAPER_EPSILON))
    first = "the first record of a node against its negative, all messages of the node seen"
    return (
        *(
            Audit(f"pdol-{one.counter}", "release", about, 1_000, partial(audit_domain, one.counter), subjects=(one,))
            for one in (blt.sharing, digits.sharing)
        ),
        Audit(
            "pdol-moments",
            "release",
            "a record against null in sums of moments, releases, models and predictions seen",
            1_000,
            partial(audit_domain, "blt", PARALLEL_RUNS),
            subjects=(audited_config("blt", PARALLEL_RUNS).sharing,),
        ),
        Audit("pdol-gossip-sent", "release", first, 3_500, partial(audit_gossip, "sent"), subjects=(sent,)),
        Audit(
            "pdol-paper",
            "release",
            first,
            1_200,
            partial(audit_gossip, "own"),
            paper_claim=claim,
            subjects=(own,),
        ),
    )


def rows() -> tuple[Audit, ...]:
    """Every audit of PDOL."""
    return (*audits(), *fork_rows(audited_config("blt"), audited_config("negative-digit")))


RECORDS = 2
"""The number of records in a leaf."""


def leaves(config: PdolConfig) -> ForkTest:
    """The fork of a node's first release; each feature is one run. The model is still 0, so a gradient is -y q."""
    sharing = replace(config.sharing, slots_per_release=RECORDS, epochs=2)
    system, key = PdolSystem.of(replace(config, sharing=sharing)), fresh_key()

    def play(branch: Branch, nonce: bytes) -> NDArray[np.float64]:
        role = _played(partial(HomeMachine, system, 0, key), branch, nonce, RECORDS)
        (release,) = role.published("releases", "GradientSum")
        exact = np.zeros(config.records.dimension)
        # Both records are of the first feature; in the other branch the first one has the opposite label.
        exact[0] = -UNIT * (RECORDS - 2 * branch.other_contents)
        return columns(np.frombuffer(release["sums"], "<i8") - exact)

    return ForkTest("pdol", "node", play, epoch_guarantee(system.config).cost)


def _played(make: Callable[[], Machine], branch: Branch, nonce: bytes, records: int) -> PlayedRole:
    """A node that learns from records of the first feature alone, each of another person, and ends a phase."""
    role = PlayedRole(make, nonce, branch)
    row = _labelled(1)
    for event in range(records):
        name = {"event_id": f"event-{branch.number(event)}", "user": f"user-{event}"}
        place = {"indices": row.indices.astype("<i4").tobytes(), "values": row.values.astype("<i4").tobytes()}
        role.put("records", "Record", {**name, "node": 0, **place, "after_phase": -1})
        role.put("records", "Label", {**name, "label": -1 if branch.other_contents and not event else 1})
    role.put("records", "Seal", phase_end_fields(bytes(16), 0))
    role.work()
    return role


def _labelled(label: int) -> Rows:
    return Rows(
        np.array([0, 1], dtype=np.int64),
        np.zeros(1, dtype=np.int32),
        np.full(1, UNIT, dtype=np.int64),
        np.full(1, label, dtype=np.int8),
    )


def fork_rows(blt: PdolConfig, digits: PdolConfig) -> tuple[Audit, ...]:
    """All audits of forks, in the order of the table."""
    return (
        fork_row("forked-node-blt", "features", partial(leaves, blt)),
        fork_row("forked-node-negative-digit", "features, after a suspected rollback", partial(leaves, digits)),
    )


MOST_FEATURES, MOST_SUMS = 512, 1 << 22
"""The most features of a domain, and the most sums of all domains together; larger configurations are reduced."""

_LEAVES, _LEAST_LEAVES = 4_000, 5
"""Leaves of each hypothesis over all runs together, and the least leaves of one run."""


def audit_config(config: PdolConfig, runs: int, false_alarm: float) -> AuditReport:
    """Attack the releases of a configuration: its counter at its epsilon, delta and horizon, its slots and features.

    Raises:
        HushstreamError: the configuration adds no noise.
    """
    sharing = config.sharing
    require_noise(sharing.counter)
    dimension, slots = min(config.records.dimension, MOST_FEATURES), config.slots_of(0)
    attacked = replace(config, records=replace(config.records, dimension=dimension))
    if config.domains * leaf_of(dimension).cells > MOST_SUMS:
        attacked = replace(attacked, nodes=1, sharing=replace(sharing, domains=None, slots_per_release=slots))
    # The plan is that of all features, as their number decides the part of delta for the tails that noise tables omit.
    plan = replace(plan_of(sharing, config.records.dimension), dimension=leaf_of(dimension).cells)
    features = min(dimension, max(1, slots // 2))
    leaves = min(sharing.horizon, max(_LEAST_LEAVES, _LEAVES // -(-runs // features)))
    lanes = ParallelAttacks(features, slots // features, leaves)
    settings = {
        "system": config.system,
        "epsilon": sharing.epsilon,
        "delta": sharing.delta,
        "dimension": dimension,
        "slots": slots,
        "horizon": sharing.horizon,
        "releases": leaves,
    }
    attacked_steps = (
        f"the first {leaves} of at most {count_text(sharing.horizon, 'release')} of one counter, and the "
        f"models made of them; {features} of {dimension} features have a record to be distinguished from null"
    )
    return report_of(
        sharing.counter,
        settings,
        NeighbourTest(
            domain_attack(attacked, plan, lanes), epoch_guarantee(config).cost, domain_family(attacked, lanes)
        ),
        _noise_of(attacked, plan, epoch_guarantee(config).cost),
        epoch_guarantee(config),
        runs,
        false_alarm,
        attacked_steps,
        _reduced(config, dimension),
    )


def _reduced(config: PdolConfig, dimension: int) -> tuple[str, ...]:
    fewer = config.records.dimension - dimension
    others = f"records of all domains but one, as each of the {config.domains} has a counter and noise of its own"
    return left_out(
        (fewer, f"{count_text(fewer, 'feature')}, as each sum has noise of its own, of one size for all features"),
        (config.domains > 1, others),
    )


def _noise_of(config: PdolConfig, plan: Plan, price: Cost) -> SizeTest:
    """The noise in a domain's release of a leaf of null slots."""
    unit, law = first_draw(plan)
    key, model = fresh_key(), np.zeros(config.records.dimension, dtype=np.int32)

    def read() -> NDArray[np.float64]:
        node = opened_node(config, plan, key)
        node.fold(null_rows(node.capacity_left), model)
        return np.asarray(np.abs(node.release().values) / unit)

    return SizeTest(read, price, law)


TMC_BINARY = replace(
    TMC2007,
    name="tmc-binary",
    description="TMC2007-500 as labelled records of nodes: one label against the rest",
    note="The files of tmc2007.",
)

ML_CLICKS = replace(
    ML_100K,
    name="ml-clicks",
    description="MovieLens-100K as labelled records of nodes: was a film liked?",
    note="The files of ml-100k.",
)

SPARSE_SYNTHETIC = simulated_dataset(
    "sparse-synthetic",
    "Simulated sparse records with noisy labels of one linear rule",
    page="https://arxiv.org/abs/1505.06556",
)


STUDY = Study(
    system="pdol",
    options=PdolOptions,
    dataset="tmc-binary",
    play=run_pdol,
    worlds={
        "tmc-binary": tmc_binary,
        "sparse-synthetic": sparse_synthetic,
        "ml-clicks": ml_clicks,
        "own-records": load_records,
    },
    own_table="own-records",
    datasets=(TMC_BINARY, ML_CLICKS, SPARSE_SYNTHETIC),
    plays=lambda made: made is RecordStream,
    experiments=lambda: EXPERIMENTS,
    paper=paper_line,
    forecast=partial(foretold_worlds, foretold),
    joining=run_sharing,
    audits=rows,
    audit_config=audit_config,
)
