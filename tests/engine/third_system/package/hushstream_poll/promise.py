"""What a poll promises and what its windows cost: functions of the configuration alone."""

from __future__ import annotations

import math
from fractions import Fraction

from hushstream.engine.noise.budget import BudgetFacts
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.engine.system import Priced
from hushstream.privacy.amounts import DELTA_ONE, Cost, epsilon_micro, epsilon_value
from hushstream.privacy.conversions import exp_above
from hushstream.privacy.ledger import BasicFilter, Debit
from hushstream.privacy.mechanisms.noise import laplace_scale, truncation
from hushstream.privacy.promises.promise import Content, Form, Guarantee, Lifetime
from hushstream_poll.configuration import PollConfig

MECHANISM = "histogram"
RELATION = "zero-out: neighbours differ in what one user's vote holds, an option or none"
UNIT = "one vote of one user"
CONTENTS = (
    Content("votes", "which option each user chose, with the user's name", Form.CLEAR, "ballots", True),
    Content("tallies", "votes for each option, window by window", Form.NOISED, "published", False),
    Content("standings", "the share of each option, made of tallies alone", Form.NOISED, "published", False),
)


def guarantee_of(config: PollConfig) -> Guarantee:
    """What noised counts promise of one vote, and of all that count of one user.

    Guarantee:
        An option in place of none moves one count by 1, so discrete Laplace of scale 1/eps is pure eps-DP; the tables
        are off by r, which adds (1 + e^eps) r. Two options reach each other through none: 2 eps, and two counts differ.
        n votes of one user compose to n eps, and n r.
    """
    micro, count = epsilon_micro(config.epsilon), config.votes_per_user
    error = truncation(*laplace_scale(config.epsilon, 1))
    cost = Cost(micro, _delta(error, micro))
    return Guarantee(
        mechanism=f"{MECHANISM}: votes for each option plus discrete Laplace noise of scale 1/{config.epsilon:g}",
        relation=RELATION,
        unit=UNIT,
        cost=cost,
        replace_one=Cost(2 * micro, _delta(2 * error, 2 * micro)),
        lifetime=Lifetime(
            count,
            1,
            Cost(count * micro, _delta(count * error, count * micro)),
            Cost(2 * count * micro, _delta(2 * count * error, 2 * count * micro)),
        ),
        sensitivity=1,
        norm="L1 distance of the counts, in votes",
        zone="ballots",
        deployment="hosted",
        truncation_units=cost.delta_units,
        not_protected=("that a user voted, and when", "votes, from whoever runs the tally or holds its key"),
        contents=CONTENTS,
    )


def priced(config: PollConfig) -> Priced:
    """What votes promise and cost: a vote is in one window, and all votes of a user are charged once."""
    promise, count = guarantee_of(config), config.votes_per_user
    one = Debit("", MECHANISM, promise.cost, RELATION, UNIT)
    life = Debit("", MECHANISM, promise.lifetime.cost, RELATION, f"{count} votes of one user")
    terms = SpendingTerms("window", one, 1, life, BasicFilter(life.cost))
    budget = BudgetFacts(None, life.cost, "all votes of one user", "votes of a user", count, count, "windows", 1)
    return Priced(promise, (budget,), {"spent-on-votes": terms})


def _delta(error: Fraction, micro: int) -> int:
    return min(DELTA_ONE, math.ceil(error * (1 + exp_above(epsilon_value(micro))) * DELTA_ONE))
