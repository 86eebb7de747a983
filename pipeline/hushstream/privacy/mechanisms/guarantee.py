"""The guarantees of four releases of slots, each with its proof.

All use the zero-out relation (rule 2): that a slot came, and when, is public; its content is not.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal

from hushstream.privacy.amounts import (
    DELTA_ONE,
    MICRO,
    Cost,
    Number,
    count_text,
    epsilon_micro,
    epsilon_value,
    ratio_text,
)
from hushstream.privacy.conversions import exp_above
from hushstream.privacy.errors import BadGuarantee
from hushstream.privacy.mechanisms.noise import (
    amplified_epsilon_micro,
    coin_probability,
    laplace_scale,
    probability_units,
    truncation,
)
from hushstream.privacy.mechanisms.tuples import curve_epsilon, exact_delta
from hushstream.privacy.promises.promise import Claim, Deployment, Guarantee, Lifetime

ZONE = "shuffler"
RELATION = "zero-out: neighbours differ in the content of one user's report, an interaction or null"
UNIT = "one report of one user"
LARGEST_SPLIT = 64
"""Largest number of slots for which the worst split over crowds is computed; for more, group privacy gives a bound."""

_LARGEST_USEFUL_EXPONENT = 100
ITEMS_OPEN = (
    "which items are offered and retired, and when: published without noise, however that was decided (who retires what"
    " nobody clicked publishes those clicks)"
)
ROLLBACK_OPEN = (
    "what a rollback that nobody notices reveals: where a lost click changed a record's content, whoever holds the"
    " bytes of both branches sees that, at any epsilon"
)
"""Holds for every system: noise follows from content, so equal bytes tell equal contents."""

_ALWAYS_OPEN = (
    "that a user's report came, with an interaction in it or null, in which window, and when",
    "how many reports and windows there are, and how many records each topic holds",
    "what holds for the population, and what follows from it for anyone",
    "a user's own decisions, which follow that user's own clicks: the user and the client application see them",
    "reports, from whoever runs the shuffler or holds its key",
    "who sent a report, from one operator who can read both sides of the shuffler",
    ROLLBACK_OPEN,
    ITEMS_OPEN,
)
OPEN_IN: dict[str, str] = {
    "hosted": "contexts, clicks and decisions, from the operator, whose workers run the learners; and what a learner's"
    " processing time tells about clicks, from anyone who can see to the millisecond when its records reach the log",
    "edge": "contexts and clicks, from whoever controls the device or the application's process",
}
"""What the operator of the learners can see, by deployment."""


NOISE_ONCE = (
    "no node's noise is used for other leaves: a journal that was rolled back opens an epoch with noise of its "
    "own, at its privacy cost, if that is noticed (release marks); where nobody notices it, see the runbook"
)
"""Condition of the guarantee of a counter that draws ahead of its leaves."""


def slot_sums_guarantee(
    epsilon: Number,
    levels: int = 1,
    sampling: Number = 1,
    lifetime_slots: int = 1,
    devices: int = 1,
    deployment: Deployment = "hosted",
    tree_levels: int = 1,
) -> Guarantee:
    """The guarantee of noised slot sums: two per cell of the public domain, all cells, one release for each window.

    Args:
        epsilon: of the noise, whose scale is levels/epsilon; rounded up to millionths.
        levels: M, reward levels above 0; a report adds R in 0..M to S1 and M-R to S0 of one cell.
        sampling: p, the probability that the shuffler keeps a slot, keyed and secret.
        lifetime_slots: slots in a user's life on one device.
        devices: unlinked devices of one person to count.
        deployment: ``hosted`` or ``edge``.
        tree_levels: h, nodes that hold one window where sums run on through a counter over windows; 1 for fresh
            noise in each window.

    Raises:
        BadGuarantee, BadAmount, BadNoise: a setting out of range.

    Guarantee:
        A report instead of null moves S1 by R and S0 by M-R in one cell and nothing else: joint L1 distance
        M. Discrete Laplace of scale M/eps on both is pure eps-DP for the two together (no split). Sampling
        makes it eps' = ln(1 + p (e^eps - 1)) (`amplification`). The noise tables are off by r in total
        variation per sum and two sums differ: delta = 2 r (1 + e^eps') (`noise.discrete_laplace`).
        Two reports reach each other through null: 2 eps', and four sums differ.
        n slots of one person, whatever windows and cells they meet in, and whatever earlier releases made of
        them: the exact mechanisms compose to n eps', at most 2n sums have differing laws, so replacing their
        noise by the exact law costs 2 n r on either side: delta = 2 n r (1 + e^(n eps')). n slots against n others:
        2 n eps', at most 4n sums.
        Running sums: a slot's window is in h nodes of a counter, each with noise of scale h M/eps, so all releases
        of the stream together are pure eps-DP for it (`hushstream.counting.counter` has the proof, against an
        adversary who chooses later slots by earlier releases); 2 h noised sums differ in place of 2. The coin that
        keeps a slot is thrown once, before all of them, so sampling acts on the whole stream as on one release.
    """
    what, norm = "slot-sums: two sums per cell", "joint L1 distance of the two sums of one cell, in reward levels"
    return _sums_guarantee(what, norm, epsilon, levels, 1, sampling, lifetime_slots, devices, deployment, tree_levels)


def linear_sums_guarantee(
    epsilon: Number,
    units: int,
    places: int,
    levels: int = 1,
    sampling: Number = 1,
    lifetime_slots: int = 1,
    devices: int = 1,
    deployment: Deployment = "hosted",
    tree_levels: int = 1,
) -> Guarantee:
    """The guarantee of noised linear sums: two for each arm and cell of every feature, also empty ones, once a window.

    Args:
        epsilon: of the noise, whose scale is levels units/epsilon; rounded up to millionths.
        units: U, what the absolute units of a valid slot sum to at most.
        places: in how many cells one slot can have units.
        levels: M, reward levels above 0; a report adds q R and q (M - R) to the two sums of each of its cells.
        sampling: p, the probability that the shuffler keeps a slot, keyed and secret.
        lifetime_slots: slots in a user's life on one device.
        devices: unlinked devices of one person to count.
        deployment: ``hosted`` or ``edge``.
        tree_levels: h, nodes that hold one window where sums run on through a counter over windows; 1 for fresh
            noise in each window.

    Raises:
        BadGuarantee, BadAmount, BadNoise: a setting out of range.

    Guarantee:
        The shuffler adds up valid reports alone: sum |q_j| <= U, 0 <= R <= M, an arm of the catalogue. A report instead
        of null therefore moves all sums together by sum |q_j| R + sum |q_j| (M - R) <= M U in L1. Discrete Laplace of
        scale M U/eps on each is pure eps-DP for all features together: neither features nor the two sums divide
        epsilon. Between neighbours at most 2 c sums differ, c the places of a slot: with tables off by r in total
        variation per sum, delta = 2 c r (1 + e^eps'). Everything else is as in `slot_sums_guarantee`, with 2 c sums in
        place of 2: two reports reach each other through null (2 eps', 4 c sums), n slots compose to n eps' and 2 c n
        sums, a counter over windows has h nodes of scale h M U/eps with 2 c h sums. Which interaction a slot holds
        follows from that user's own interactions and coins, so it changes no other slot.
    """
    for name, value, most in (("units", units, 1 << 24), ("places", places, 1 << 20), ("levels", levels, 1 << 16)):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise BadGuarantee(f"{name}: expected a whole number from 1 to {most:,}, got {value!r}")
    what = "slot-sums: two sums per arm and cell"
    norm = "joint L1 distance of the two sums of all cells, in units times reward levels"
    return _sums_guarantee(
        what, norm, epsilon, levels * units, places, sampling, lifetime_slots, devices, deployment, tree_levels
    )


def tuples_guarantee(
    threshold: int,
    sampling: Number,
    lifetime_slots: int = 1,
    devices: int = 1,
    deployment: Deployment = "hosted",
    coin: Literal["shuffler", "edge"] = "shuffler",
    injected: int = 0,
) -> Guarantee:
    """The guarantee of sampled tuples whose crowd, counted on the whole tuple, reaches a threshold.

    Args:
        threshold: l, the smallest crowd that is emitted.
        sampling: p, the probability that a slot is kept.
        lifetime_slots: slots in a user's life on one device.
        devices: unlinked devices of one person to count.
        deployment: ``hosted`` or ``edge``.
        coin: who throws the coin. The shuffler throws it for every slot when the window has closed. At the edge (as in
            the paper) an adversary can send reports without a coin.
        injected: reports of one cell by an adversary, with the coin at the edge.

    Raises:
        BadGuarantee, BadAmount: a setting out of range.

    Guarantee:
        epsilon = -ln(1-p), and the exact delta of `tuples.exact_delta`. Two different reports touch two
        independent cells: (2 eps, 2 delta). n slots of one person: the cells of a window are independent and
        windows compose adaptively, so if j_1, j_2, ... slots (sum n) share crowds, the price is the sum of
        (j_i eps, delta_(j_i)), where delta_j is the exact delta of j slots in one crowd at j eps; what is
        printed is the largest such sum. It exceeds n delta: a user with l slots is a crowd of their own. For
        n > 64 it is bounded by group privacy, changing one slot at a time: the sum of delta e^(i eps) over
        i < n, which is at most n delta e^((n-1) eps). n slots against n others: each crowd gains or loses, those that
        gain share n slots at most and so do those that lose, so twice that price bounds it.
    """
    if coin not in ("shuffler", "edge"):
        raise BadGuarantee(f"coin: expected shuffler or edge, got {coin!r}")
    if coin == "shuffler" and injected:
        raise BadGuarantee(f"injected: expected 0 where the shuffler throws the coin, got {injected}")
    total = _slots(lifetime_slots, devices)
    epsilon = curve_epsilon(sampling)
    micro = int(epsilon * MICRO)
    delta = _units(exact_delta(threshold, sampling, epsilon, 1, injected))
    life = _tuples_lifetime_delta(threshold, sampling, epsilon, total, injected)
    conditions: tuple[str, ...] = ()
    if coin == "edge":
        conditions = (
            f"void if others inject more than {count_text(injected, 'report')} that no coin was thrown for "
            f"into one crowd",
        )
    return Guarantee(
        mechanism=f"tuples: kept with probability {sampling} by a coin at the {coin}, emitted as sorted"
        f" counts of whole tuples in crowds of at least {threshold}",
        relation=RELATION,
        unit=UNIT,
        cost=Cost(micro, delta),
        replace_one=Cost(2 * micro, min(DELTA_ONE, 2 * delta)),
        lifetime=_lifetime(lifetime_slots, devices, micro, life, min(DELTA_ONE, 2 * life)),
        sensitivity=1,
        norm="count of one whole tuple (code, action, reward level)",
        zone=ZONE,
        deployment=deployment,
        truncation_units=0,
        not_protected=_not_protected(deployment),
        conditions=conditions,
    )


def paper_guarantee(
    threshold: int,
    sampling: Number,
    lifetime_slots: int = 1,
    devices: int = 1,
    deployment: Deployment = "hosted",
) -> Guarantee:
    """The guarantee of the public code's release, which counts crowds on the code alone: next to nothing.

    Args:
        threshold: l, the smallest crowd of a code; no value of it helps.
        sampling: p, the probability that a slot is kept.
        lifetime_slots: slots in a user's life on one device.
        devices: unlinked devices of one person to count.
        deployment: ``hosted`` or ``edge``.

    Raises:
        BadGuarantee, BadAmount: a setting out of range.

    Guarantee:
        Claimed (Malekzadeh et al. 2020, section 4, after Gehrke et al. 2012): epsilon = -ln(1-p), and a delta
        that vanishes with l. True: delta = p, at that epsilon and at every other one.
        At least p: let the slot hold (code, action, reward) with an action and reward that nobody else with
        this code has, and let n others have the code. With the slot null the tuple never appears; with the
        report in it, it appears when it was kept and at least l-1 of the n were: p P(Bin(n, p) >= l-1), which
        tends to p as n grows. No factor e^eps on the other side's 0 changes that.
        At most p: the release depends on the slot only if it was kept, so its laws with and without the
        report differ by at most p in total variation; n slots differ by at most 1 - (1-p)^n, and
        reach it in the same way.
    """
    if not isinstance(threshold, int) or threshold < 1:
        raise BadGuarantee(f"threshold: expected a whole number above 0, got {threshold!r}")
    total = _slots(lifetime_slots, devices)
    micro = int(curve_epsilon(sampling) * MICRO)
    chance = coin_probability(probability_units(sampling))
    delta, life = _units(chance), _units(1 - (1 - chance) ** total)
    return Guarantee(
        mechanism=f"paper: tuples kept with probability {sampling}, crowds of at least {threshold}"
        " counted on the code alone",
        relation=RELATION,
        unit=UNIT,
        cost=Cost(micro, delta),
        replace_one=Cost(2 * micro, delta),
        lifetime=_lifetime(lifetime_slots, devices, micro, life, life),
        sensitivity=1,
        norm="count of one code, where the whole tuple would have to be counted",
        zone=ZONE,
        deployment=deployment,
        truncation_units=0,
        not_protected=(
            "an action and reward that are unique among the reports of their code: shown if they are kept",
            *_not_protected(deployment),
        ),
        private_as_stated=False,
        claimed=Claim(
            micro,
            f"exp(-Omega({threshold} (1-p)^2)), its constant unstated",
            "Malekzadeh et al. 2020, section 4",
        ),
    )


def _tuples_lifetime_delta(threshold: int, sampling: Number, epsilon: Fraction, total: int, injected: int) -> int:
    """Largest sum of deltas over all ways to split ``total`` slots among crowds, in units of 2^-80."""
    if total > LARGEST_SPLIT:
        if total * epsilon > _LARGEST_USEFUL_EXPONENT:
            return DELTA_ONE
        single = exact_delta(threshold, sampling, epsilon, 1, injected)
        return _units(single * total * exp_above((total - 1) * epsilon))
    best = [0]
    shared = [0]
    for slots in range(1, total + 1):
        shared.append(_units(exact_delta(threshold, sampling, slots * epsilon, slots, injected)))
        best.append(max(shared[part] + best[slots - part] for part in range(1, slots + 1)))
    return min(DELTA_ONE, best[total])


def truncation_delta(variation: Fraction, micro: int) -> int:
    """(1 + e^eps) times a total variation distance, in units of 2^-80, at most 1."""
    if micro > _LARGEST_USEFUL_EXPONENT * MICRO:
        return DELTA_ONE if variation else 0
    return _units(variation * (1 + exp_above(epsilon_value(micro))))


def _units(delta: Fraction) -> int:
    return min(DELTA_ONE, math.ceil(delta * DELTA_ONE))


def _sums_guarantee(
    what: str,
    norm: str,
    epsilon: Number,
    levels: int,
    places: int,
    sampling: Number,
    lifetime_slots: int,
    devices: int,
    deployment: Deployment,
    tree_levels: int,
) -> Guarantee:
    """The guarantee of sums, if a report moves two sums in each of ``places`` cells, by ``levels`` together in L1."""
    total = _slots(lifetime_slots, devices)
    scale = laplace_scale(epsilon, levels * tree_levels)
    micro = amplified_epsilon_micro(epsilon, sampling)
    error = tree_levels * places * truncation(*scale)
    delta = truncation_delta(2 * error, micro)
    running = "" if tree_levels == 1 else f" on each node of a counter over windows, {tree_levels} nodes to a window"
    kept = "" if micro == epsilon_micro(epsilon) else f", after keeping each report with secret probability {sampling}"
    return Guarantee(
        mechanism=f"{what} plus discrete Laplace noise of scale {ratio_text(*scale)}{running}{kept}",
        relation=RELATION,
        unit=UNIT,
        cost=Cost(micro, delta),
        replace_one=Cost(2 * micro, truncation_delta(4 * error, 2 * micro)),
        lifetime=_lifetime(
            lifetime_slots,
            devices,
            micro,
            truncation_delta(2 * total * error, total * micro),
            truncation_delta(4 * total * error, 2 * total * micro),
        ),
        sensitivity=levels,
        norm=norm,
        zone=ZONE,
        deployment=deployment,
        truncation_units=delta,
        not_protected=_not_protected(deployment),
        conditions=() if tree_levels == 1 else ("each report is counted once, in one window's sums", NOISE_ONCE),
    )


def _lifetime(slots: int, devices: int, micro: int, delta: int, exchanged: int) -> Lifetime:
    """The prices of all slots of a person: against none with ``delta``, and against as many others with ``exchanged``.

    The second price goes through no slots: from the slots to none, then from none to the others.
    """
    total = slots * devices * micro
    return Lifetime(slots, devices, Cost(total, delta), Cost(2 * total, exchanged))


def _slots(lifetime_slots: int, devices: int) -> int:
    for name, value in (("lifetime_slots", lifetime_slots), ("devices", devices)):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1_000_000:
            raise BadGuarantee(f"{name}: expected a whole number from 1 to 1,000,000, got {value!r}")
    return lifetime_slots * devices


def _not_protected(deployment: Deployment) -> tuple[str, ...]:
    if deployment not in OPEN_IN:
        raise BadGuarantee(f"deployment: expected hosted or edge, got {deployment!r}")
    return (*_ALWAYS_OPEN, OPEN_IN[deployment])
