"""LinUCB in batches: one matrix product scores them, Woodbury steps of small rank learn them.

For experiments and other uses that need no bitwise equality with the stream: results agree with the per-event kernels
of `hushstream.learners.linucb` to rounding, not to the bit. Within a batch all choices see the same state.

With the contexts of one arm as the rows of ``X`` (m, D), ``V = X A^-1`` and ``S = I + V X'``, Woodbury gives

    A^-1  <-  A^-1 - V' S^-1 V
    theta <-  theta - V' S^-1 (X theta - r)

so, as for one event, both move by one product: ``V'`` with ``S^-1 (V, X theta - r)``. Interactions of an arm
are taken in chunks, of at most `CHUNK` when few arms learn and `CHUNK_OF_MANY` when many do: beyond that the
small inverses ``S^-1``, one for each arm, cost more than the steps they save (measured at D = 25).

An arm with more of them than a chunk holds and than there are dimensions takes them all at once, by their sum
``G = X'X``, as ``A^-1 <- (I + A^-1 G)^-1 A^-1`` and ``theta <- theta + (I + A^-1 G)^-1 A^-1 X' (r - X theta)``: one
system of D equations, in float64, in place of many steps.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hushstream.learners.errors import LearnerError, NoEligibleArm
from hushstream.learners.linucb import Bools, Float32, Float64, LinUCBState

Int64 = npt.NDArray[np.int64]

CHUNK = 32
CHUNK_OF_MANY = 12
_MANY = 8


def scores_batch(state: LinUCBState, contexts: Float32, alpha: float = 1.0) -> Float32:
    """Upper confidence bounds, (K, n) float32, of contexts (n, D) float32 under one state."""
    packed = state.packed
    dimension = packed.shape[1]
    if contexts.ndim != 2 or contexts.shape[1] != dimension:
        raise LearnerError(f"expected contexts of shape (n, {dimension}), got {contexts.shape}")
    columns = np.ascontiguousarray(contexts.T)
    # (K, D+1, D) @ (D, n): n runs along memory, so the sum over D below adds whole vectors.
    products = np.matmul(packed.transpose(0, 2, 1), columns)
    means = products[:, dimension]
    squares = products[:, :dimension]
    squares *= columns
    widths: Float32 = squares.sum(axis=1)
    np.maximum(widths, 0.0, out=widths)
    np.sqrt(widths, out=widths)
    widths *= np.float32(alpha)
    widths += means
    return widths


def choose_batch(
    state: LinUCBState,
    contexts: Float32,
    ties: Int64,
    alpha: float = 1.0,
    eligible: Bools | None = None,
) -> tuple[Int64, Int64]:
    """The best arm of every context, and how many arms tied for it.

    Args:
        state: shared by the whole batch.
        contexts: (n, D) float32.
        ties: (n,) uniform draws of at least 0: of ``m`` tied arms number ``ties mod m`` is taken.
        alpha: the width's factor.
        eligible: (n, K) bool, or None for all arms.

    Raises:
        NoEligibleArm: a row of ``eligible`` allows none.
    """
    scores = scores_batch(state, contexts, alpha)
    if eligible is not None:
        if not eligible.any(axis=1).all():
            raise NoEligibleArm(len(scores))
        scores[~eligible.T] = -np.inf
    arms = scores.argmax(axis=0)
    best = scores == scores.max(axis=0)
    counts = np.count_nonzero(best, axis=0)
    tied = np.flatnonzero(counts > 1)
    if len(tied):
        ranks = best[:, tied].cumsum(axis=0)
        arms[tied] = (ranks > ties[tied] % counts[tied]).argmax(axis=0)
    return arms, counts


def learn_batch(state: LinUCBState, contexts: Float32, arms: Int64, rewards: Float64) -> None:
    """Fold interactions into the state: an arm's all at once when they are many, else in chunks of at most `CHUNK`.

    Args:
        state: copied first when it is shared.
        contexts: (n, D) float32.
        arms: (n,) integers in [0, K).
        rewards: (n,) floats.
    """
    packed = state.own()
    count = len(packed)
    order = np.argsort(arms, kind="stable")
    per_arm = np.bincount(arms, minlength=count)
    starts = np.cumsum(per_arm) - per_arm
    sorted_arms = arms[order]
    places = np.arange(len(arms)) - starts[sorted_arms]
    contexts, targets = contexts[order], rewards[order].astype(np.float32)
    for arm in np.flatnonzero(per_arm > max(CHUNK, contexts.shape[1])):
        its = slice(starts[arm], starts[arm] + per_arm[arm])
        _learn_sum(packed[arm], contexts[its], targets[its])
        per_arm[arm] = 0
        places[its] = len(arms)
    low, longest = 0, int(per_arm.max(initial=0))
    while low < longest:
        active = np.flatnonzero(per_arm > low)
        high = low + (CHUNK if len(active) <= _MANY else CHUNK_OF_MANY)
        inside = np.flatnonzero((places >= low) & (places < high))
        rows = np.searchsorted(active, sorted_arms[inside])
        _learn_chunk(packed, active, rows, places[inside] - low, contexts[inside], targets[inside])
        low = high


def _learn_sum(matrix: Float32, contexts: Float32, rewards: Float32) -> None:
    """Learn all interactions of one arm; ``matrix`` is its (D, D + 1) part of the state."""
    dimension = contexts.shape[1]
    rows, before = contexts.astype(np.float64), matrix.astype(np.float64)
    inverse, theta = before[:, :dimension], before[:, dimension]
    system = inverse @ (rows.T @ rows)
    system[np.diag_indices(dimension)] += 1.0
    residuals = inverse @ (rows.T @ (rewards - rows @ theta))
    after = np.linalg.solve(system, np.column_stack((inverse, residuals)))
    matrix[:, :dimension] = (after[:, :dimension] + after[:, :dimension].T) / 2
    matrix[:, dimension] = theta + after[:, dimension]


def _learn_chunk(
    packed: Float32, active: Int64, rows: Int64, places: Int64, contexts: Float32, rewards: Float32
) -> None:
    """Make one Woodbury step for the active arms; padding with zero contexts changes nothing."""
    dimension = contexts.shape[1]
    rank = int(places.max()) + 1
    stacked = np.zeros((len(active), rank, dimension), dtype=np.float32)
    targets = np.zeros((len(active), rank), dtype=np.float32)
    stacked[rows, places] = contexts
    targets[rows, places] = rewards
    matrices = packed[active]
    right = np.matmul(stacked, matrices)
    right[:, :, dimension] -= targets
    left = right[:, :, :dimension]
    system = np.matmul(left, stacked.transpose(0, 2, 1))
    system += np.eye(rank, dtype=np.float32)
    matrices -= np.matmul(left.transpose(0, 2, 1), np.matmul(np.linalg.inv(system), right))
    inverse = matrices[:, :, :dimension]
    # The per-event step relies on exact symmetry, and the Woodbury step keeps it only up to rounding.
    inverse += inverse.transpose(0, 2, 1).copy()
    inverse *= np.float32(0.5)
    packed[active] = matrices
