"""The ridge for a known noise of released sums: with a smaller one an estimate follows the noise.

Where the sums b carry noise of standard deviation s, ``A^-1 b`` moves by about ``s / lambda`` in every direction that
was hardly shown, so lambda must grow with s. The level of the noise follows from the mechanism and the graph alone,
without data, so this choice of lambda costs no privacy. The factors were tuned on seeds 0 to 3 and 20 to 27 of the
uniform world of related users with five features (`hushstream experiment colin-table1`); other worlds may need other
ones.
"""

from __future__ import annotations

import numpy as np

from hushstream.learners.errors import LearnerError
from hushstream.systems.colin.relation import Relation

SUMS_RIDGE_PER_NOISE = 3.0
"""Factor for noised sums; the noise is measured by its standard deviation on a projected sum."""

REWARD_RIDGE_PER_NOISE = 10.0
"""Factor for rewards that are noised one by one; the noise is measured by its variance on one reward."""


def noise_aware_ridge(noise: float, per_noise: float) -> float:
    """Lambda: 1 plus a multiple of the noise.

    Args:
        noise: as the factor has it; 0 without noise.
        per_noise: how much lambda grows with it.

    Raises:
        LearnerError: a value that is negative or not finite.
    """
    for name, value in (("noise", noise), ("per_noise", per_noise)):
        if not 0.0 <= value < np.inf:
            raise LearnerError(f"ridge: expected a finite {name} of at least 0, got {value}")
    return 1.0 + per_noise * noise


def projected_deviation(relation: Relation, deviation: float) -> float:
    """Root mean square, over users, of the noise on projected sums of which each user's raw sums carry ``deviation``.

    Coordinate i of the projected sums, of user j's block, is ``sum_u w_uj b_ui``: its variance is that of one raw sum
    times ``sum_u w_uj^2``, whose mean over j is the mean of the rows' squared lengths.
    """
    return deviation * float(np.sqrt(np.mean(np.square(relation.row_norms(2)))))
