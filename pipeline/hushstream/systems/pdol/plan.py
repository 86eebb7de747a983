"""The plan for holders of records, day by day: whether sharing is better than nodes that learn alone.

Information is measured in records of a sum without noise. A sum over T records of one counter adds up T gradients of
norm 1, under noise of energy n (sigma f)^2, so it has information T^2 / (T + n (sigma f)^2). D counters have D times
that. One of M nodes that learns alone has T D / M. So sharing is better if M T > T + n (sigma f)^2, that is from T* = n
sigma^2 f^2 / (M - 1) records of a counter on. Let each node have a counter, so M = D. Then the gain by the records of
the other D - 1 counters, as a share of the gain without noise, is (D a - 1) / (D - 1) with a = T / (T + n (sigma f)^2).

This compares information at the end of a stream, with noise of equal weight in all n coordinates. For the mean accuracy
over a whole stream, two effects move the crossing T* in opposite directions:

* A node alone has already learned before the first sum is useful. Where accuracy grows with the logarithm of
  information, its mean over a stream is equal where the mean over u from 0 to 1 of log(M u / (u + r)), r = n (sigma
  f)^2 / T, is 0. That is log M = (1 + r) log(1 + r) - r log r, so r = M / e for large M: at e T*.
* A score reads only the coordinates of its record. Noise of deviation s on each of them adds s^2 |x|^2 to the variance
  of the score, and the T records themselves add T sum_j c_j^2, with c_j the variance of x_j (these sum up to about 1).
  So 1 / sum_j c_j^2 takes the place of n: 157 instead of 501 words of TMC2007, and 1,660 instead of 10,000 synthetic
  features.

Crossings in replays (64 nodes, K = 32, delta 1e-6) lie on both sides of T*: on TMC2007 with 447 records a node sharing
begins to beat nodes alone at epsilon 2.4, where T* is 130; at 10,000 features with 1,562 records at epsilon 1.7,
where T* is 5,200. No correction fits both, so T* is used without one. It is right within a factor of four if all nodes
see records of the same kind. If a node's records have features that no other node has (for instance shops with their
own customers), other records do not help with these features, but their noise is added all the same.

All of this is about information. What the information is worth differs by table: on flights that are dealt by carrier,
nodes alone (each with its own learner) beat the published model whatever epsilon was; of flights dealt
evenly a central learner knew .65, the published model .57 at epsilon 8, and nodes alone .55. So the forecast never says
of its own accord that sharing will beat nodes alone. Somebody has to state the *lead*: by how much a central learner of
all records predicts better than nodes alone, measured on public data of the same kind. Even so the published model
alone may lose (by .038 in a drawn world of 32 nodes with 300 records of 20 features each at epsilon 2, whose lead is
.108). Nodes that follow it under a guard keep their own records without noise, so they have the share T / (T + n (sigma
f)^2) of others' information on top of their own. In drawn worlds this is about the share of the lead that they gain.
The range of the gain reaches from the guard's bound (`CREDIT` mistakes of a node's records) to this share with four
times less noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from hushstream.engine.declare.plan import DAYS, Audience, Plan, Point, Range, lives_of, ranged
from hushstream.privacy.amounts import count_text
from hushstream.privacy.promises.sentence import Prices
from hushstream.systems.pdol.algorithm.counters import noise_of
from hushstream.systems.pdol.algorithm.local import CREDIT
from hushstream.systems.pdol.algorithm.moments import leaf_of, takes_moments
from hushstream.systems.pdol.algorithm.rows import PdolError
from hushstream.systems.pdol.configuration import PdolConfig
from hushstream.systems.pdol.guarantee import lifetime_guarantee

WORST = 4.0
"""Largest factor between T* and the crossing in replays: 3.4 (later) on TMC2007, 3.3 (earlier) at 10,000 features."""

SHORTFALL = 0.09
"""How far the published model was below a central learner at most, without any noise (diamonds, flights; TMC2007
.013). With a smaller lead of the central learner sharing may bring nothing, however many records there are."""

LEAST_GAIN = 0.01
"""Share of correct predictions: a smaller gain does not count, and the range of a gain reaches so far beyond a lead."""

_MOSTLY = 0.25
"""From this share of a record in features of its node alone on, sharing was never better, at any epsilon up to 8."""

FACTORS = (1 / WORST, 1.0, WORST)
"""Factors of the number of records for the bounds: the largest errors of the crossing that were found."""


@dataclass(frozen=True, slots=True)
class SharingGain:
    """The expected gain by sharing.

    Attributes:
        crossing: T*, number of records of a counter from which sharing is better than nodes that learn alone; None if
            never, because there is only one node.
        expected: T, expected number of records of a counter.
        gain: share that is left of the information in all other records, from 0 to 1.
        gains: `gain` if the crossing is `WORST` times later, and if it is as much earlier.
        private_features: share of a record's squared norm, on average, in features that its own node alone has.
        lead: share of late labels that a central learner predicts, minus that of nodes alone; None if unknown.
        guarded: whether predictions are those of nodes that follow the published model under a guard.
        correct: expected gain over nodes alone in the share of correct predictions; None without a lead or a guard.
    """

    crossing: float | None
    expected: float
    gain: float
    gains: tuple[float, float]
    private_features: float
    lead: float | None = None
    guarded: bool = False
    correct: Range | None = None

    @property
    def beats_alone(self) -> bool | None:
        """Whether sharing is better than nodes alone; None if nobody can say."""
        if self.crossing is None or self.private_features >= _MOSTLY or (self.lead is not None and self.lead <= 0):
            return False
        if self.expected * WORST <= self.crossing:
            return False
        led = self.guarded and self.lead is not None and self.lead > SHORTFALL
        return True if led and self.expected >= WORST * self.crossing else None

    @property
    def verdict(self) -> str:
        """The forecast as the end of a sentence about sharing."""
        return {None: "may or may not", True: "will", False: "will not"}[self.beats_alone] + " beat nodes alone"

    @property
    def sharing(self) -> str:
        """The forecast as the beginning of a sentence.

        A definite one holds only for records that do not change with time. Where labels turned midway, guarded nodes
        gained up to .06 though they would not, and lost .03 though they would.
        """
        sure = self.beats_alone is not None and self.crossing is not None
        return f"{'If records do not change with time, sharing' if sure else 'Sharing'} {self.verdict}"

    @property
    def premise(self) -> str:
        """What is known of the lead, as a sentence."""
        if self.lead is None:
            return (
                "How much better a central learner is than nodes alone (each with its own learner) is not known: "
                "measure it on public data of the same kind and state it (plan --lead)."
            )
        return (
            f"A central learner is taken to predict {100 * self.lead:+.1f} points more late labels than nodes alone; a"
            f" published model of gradients was up to {100 * SHORTFALL:.0f} points below a central one, noise aside."
        )

    @property
    def points(self) -> str:
        """The expected gain in the share of correct predictions, as a sentence that follows another one."""
        if self.correct is None:
            return ""
        low, middle, high = (100 * one for one in self.correct)
        return f" Nodes are expected to gain {middle:+.1f} points of correct predictions ({low:+.1f} to {high:+.1f})."

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is expected, in words."""
        where = (
            "never"
            if self.crossing is None
            else f"from {count_text(self.crossing, 'record', ',.0f')} a counter on "
            f"(range: {self.crossing / WORST:,.0f} to {self.crossing * WORST:,.0f})"
        )
        apart = (
            f"{100 * self.private_features:.0f} % of a record is in features that no other node has: nothing is"
            " learned of these from others.",
        )
        return (
            f"{self.sharing}: it pays {where}, and {self.expected:,.0f} are expected.",
            self.premise,
            f"With noise, others' records teach about {100 * self.gain:.0f} % of what they teach without it (range: "
            f"{100 * self.gains[0]:.0f} to {100 * self.gains[1]:.0f} %)."
            f"{self.points}",
            *(apart if self.private_features else ()),
        )


def sharing_gain(
    config: PdolConfig, records_per_node: float, private_features: float = 0.0, lead: float | None = None
) -> SharingGain:
    """The forecast for the sound form.

    Args:
        config: of the sound form, with noise.
        records_per_node: number of records of each node, a public estimate.
        private_features: see `SharingGain`; 0 if all nodes see records of the same kind.
        lead: see `SharingGain`.

    Raises:
        PdolError: another form, or impossible estimates.
    """
    if not (records_per_node > 0 and 0 <= private_features <= 1):
        raise PdolError("plan: expected records above 0 and a share from 0 to 1")
    guarded = config.prediction.place == "node"
    dimension, unit = config.records.dimension, leaf_of(config.records.dimension).unit
    noise = dimension * noise_of(config.sharing, dimension).variance / (unit * unit)
    counters, alone = config.domains, records_per_node
    here = records_per_node * config.nodes / counters
    # The information in all counters together is compared with that of one node's own records.
    others = config.nodes - 1
    if others == 0:
        return SharingGain(None, here, 0.0, (0.0, 0.0), private_features, lead, guarded)

    def gain(energy: float) -> float:
        shared = counters * here * here / (here + energy)
        return min(1.0, max(0.0, (shared - alone) / (alone * others)))

    within = gain(WORST * noise), gain(noise / WORST)
    led = guarded and lead is not None
    correct = _correct(here, noise, max(0.0, lead or 0.0), records_per_node) if led else None
    return SharingGain(noise / others, here, gain(noise), within, private_features, lead, guarded, correct)


def _correct(records: float, noise: float, lead: float, of_node: float) -> Range:
    """The gain of guarded nodes over nodes alone, as a share of correct predictions; see the module."""
    expected, most = (lead * records / (records + energy) for energy in (noise, noise / WORST))
    return Range(-CREDIT / of_node, expected, most + LEAST_GAIN)


def plan(config: PdolConfig, audience: Audience) -> Plan:
    """The plan for a deployment; see the module."""
    if config.sharing.counter == "exact":
        return _without_noise(config, audience)

    counted = range(1, min(config.records.records_per_user, audience.visits) + 1)

    def of_node(day: float) -> float:
        return sum(audience.reached(record, day) for record in counted) / config.nodes

    def ahead(day: float, factor: float = 1.0) -> SharingGain | None:
        records = of_node(day)
        return sharing_gain(config, factor * records, lead=audience.lead) if records > 0 else None

    def at(day: float, factor: float) -> float:
        return 0.0 if (found := ahead(day, factor)) is None else found.gain

    end = ahead(DAYS[-1])
    beats, verdict = _verdict(end)

    return Plan(
        system=config.system,
        measure="share of what other nodes' records teach without noise, after a year",
        gain="what other nodes' records teach without noise",
        values={"this deployment": ranged(lambda factor: at(DAYS[-1], factor), FACTORS)},
        beats=beats,
        verdict=verdict,
        points=tuple(Point(day, of_node(day), ranged(partial(at, day), FACTORS)) for day in DAYS),
        unit="records a node",
        paid="record",
        noise=_noise(end),
        lives=lives_of(
            lambda day: min(config.records.records_per_user, audience.of_one(day)),
            lambda records: _prices(config, records),
        ),
        sizes=_sizes(config, audience),
        assumed=(
            "all nodes see records of one kind; if they do not, what others have helps less, or not at all",
            "nothing changes with time: where labels turned midway, guarded nodes gained up to .06 above the plan; "
            "a lone learner that forgets old records predicted up to .14 better than nodes alone do here",
            *(() if end is None or end.premise in verdict else (end.premise,)),
            f"range: in replays sharing began to pay up to {WORST:g} times earlier or later than computed",
            f"{count_text(audience.users, 'person', ',')} come every "
            f"{count_text(audience.days, 'day', 'g')}, evenly over "
            f"{count_text(config.nodes, 'node', ',')}, with {count_text(audience.visits, 'record')} each; "
            f"a node counts at most {config.records.records_per_user} of one person, and only these are meant above",
        ),
        facts={} if end is None else _facts(end),
        notes=(end.points.strip(),) if end is not None and end.points else (),
    )


def _verdict(end: SharingGain | None) -> tuple[bool | None, str]:
    if end is None:
        return False, "It will not beat nodes alone: no record comes within a year."
    if end.lead is not None and end.lead <= 0:
        return False, f"{end.sharing}: a central learner would not either, so keep apart."
    if end.beats_alone or end.crossing is None:
        taught = f"in a year others' records teach {end.gain:.2f} of what they do without noise"
        return end.beats_alone, f"{end.sharing}; {taught}."
    if end.expected >= WORST * end.crossing:
        return None, f"{end.sharing}. {end.premise}"
    if end.expected >= end.crossing:
        return None, f"{end.sharing}: the records exceed the crossing by less than its error."
    return end.beats_alone, f"{end.sharing} within a year: keep apart, or take a larger epsilon."


def _facts(end: SharingGain) -> Mapping[str, object]:
    return {
        "crossing_records": end.crossing,
        "expected_records": end.expected,
        "share_of_information": end.gain,
        "verdict": end.verdict,
        "lead": end.lead,
        "gain": None if end.correct is None else end.correct._asdict(),
    }


def _noise(end: SharingGain | None) -> tuple[str, ...]:
    if end is None or end.crossing is None:
        return ()
    return (
        f"it hides what is told by {count_text(end.crossing, 'record', ',.0f')} a counter; "
        f"{end.expected:,.0f} come in a year",
    )


def _prices(config: PdolConfig, records: int) -> Prices:
    return lifetime_guarantee(replace(config, records=replace(config.records, records_per_user=records))).life_prices


def _without_noise(config: PdolConfig, audience: Audience) -> Plan:
    return Plan(
        system=config.system,
        measure="",
        values={},
        beats=None,
        verdict="Exact sums have no noise to plan for; they are for replays of public datasets alone.",
        unit="records",
        paid="record",
        lives=lives_of(
            lambda day: min(config.records.records_per_user, audience.of_one(day)),
            lambda records: _prices(config, records),
        ),
        sizes=_sizes(config, audience),
        assumed=(),
    )


def _sizes(config: PdolConfig, audience: Audience) -> Mapping[str, str]:
    wide, cells = config.records.dimension, leaf_of(config.records.dimension).cells
    slots = sum(config.slots_of(domain) for domain in range(config.domains))
    releases = audience.visited(365.0) / max(1.0, slots / config.domains)
    release, model = 8 * cells, 8 * cells if takes_moments(wide) else 4 * wide
    return {
        "partitions": f"at most {config.domains} node workers share the work",
        "node, memory": f"{48 * cells / 1e6:,.3g} MB a counter, and as much on disk",
        "node, state on disk": f"{24 * audience.users / audience.days * 365 / 1e6:,.0f} MB for the persons of a year",
        "broker": f"a release has {release / 1000:,.3g} kB, a model {model / 1000:,.3g} kB: in a year "
        f"{releases * (release + model / config.releases_per_version) / 1e6:,.0f} MB for each copy; models and "
        "predictions stay for ever",
    }
