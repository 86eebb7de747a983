"""A user's LinUCB state, kept as the shared model plus the user's own few updates.

One update (a Sherman-Morrison step) subtracts one outer product from an arm's block ``(A^-1, theta)``: that of ``u``
and ``w = (u, s)``, where ``v = A^-1 x``, ``c = 1/sqrt(1 + x'v)``, ``u = c v`` and ``s = c (theta'x - r)`` (see
`hushstream.learners.linucb`). So after ``n`` steps, by Woodbury's identity in product form,

    A_a^-1  = A0_a^-1  - sum u_j u_j'        theta_a = theta0_a - sum s_j u_j      (steps j on arm a)

It is therefore enough to keep one row ``w_j`` of D + 1 float32 for each step, beside the shared model's arrays, which
all its users share. With D = K = 10 and ten steps these rows are 440 bytes, where the dense form has 4,400. A score
needs ``q_j = u_j'x`` alone:

    width_a^2 = x'A0_a^-1 x - sum q_j^2      mean_a = theta0_a'x - sum q_j s_j

A state with more than `rows_limit` rows becomes dense, and stays dense.

Equality: scores equal those of the dense form up to rounding (float32; a test allows 1e-5). Two arms with equal
histories have equal bits in this form too, however their steps are interleaved, because every sum runs over the rows
of one arm in their order. One exception: if the state becomes dense between the steps of two equal histories, their
scores may differ in the last bit, and then they no longer tie.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hushstream.learners.errors import LearnerError
from hushstream.learners.linucb import Float32, LinUCBState

Arms: TypeAlias = npt.NDArray[np.intp]

ROWS_AT_LEAST = 16
"""In a small model, too, a state keeps this many rows before it becomes dense, if rows save memory at all."""

_HEADER = struct.Struct("<4sBxxxIII")
_MAGIC = b"HLUF"
_VERSION = 1


def rows_limit(arms: int, dimension: int) -> int:
    """How many rows a state may have before it becomes dense: about D, and at most a quarter of the dense bytes."""
    return max(1, min(max(ROWS_AT_LEAST, dimension), arms * dimension // 4))


class OwnUpdates:
    """One user's state: the shared model's state and the n updates that the user has learned since.

    Attributes:
        base: the state of the model that the user started from; never written.
        arms: (n,) the arm of each step.
        rows: (n, D + 1) float32, ``(u, s)`` of each step.
    """

    __slots__ = ("arms", "base", "rows", "touched")

    def __init__(self, base: LinUCBState, arms: Arms, rows: Float32) -> None:
        self.base = base
        self.arms = arms
        self.rows = rows
        self.touched = 0
        """Bit mask: bit a is set if arm a has a step. Searching ``arms`` would take longer than a product."""
        for arm in arms.tolist():
            self.touched |= 1 << arm

    @classmethod
    def none(cls, base: LinUCBState) -> OwnUpdates:
        """A user who has learned nothing yet."""
        return cls(base, np.empty(0, np.intp), np.empty((0, base.packed.shape[2]), np.float32))

    @property
    def inverse(self) -> Float32:
        """``A^-1`` of each arm, (K, D, D), in a new array."""
        return self.dense().inverse

    @property
    def theta(self) -> Float32:
        """``theta`` of each arm, (K, D), in a new array."""
        return self.dense().theta

    def dense(self) -> LinUCBState:
        """Return the same state in the dense form, with arrays of its own."""
        packed = self.base.packed.copy()
        for arm, row in zip(self.arms.tolist(), self.rows, strict=True):
            packed[arm] -= np.multiply.outer(row[:-1], row)
        return LinUCBState(packed, shared=False)

    def dump(self) -> bytes:
        """The steps as bytes: a 20-byte header (magic, version, K, D, n), n uint16 arms, then the rows."""
        arms, dimension, _ = self.base.packed.shape
        header = _HEADER.pack(_MAGIC, _VERSION, arms, dimension, len(self.arms))
        return header + self.arms.astype("<u2").tobytes() + self.rows.astype("<f4", copy=False).tobytes()


UserState: TypeAlias = LinUCBState | OwnUpdates


def load_user_state(base: LinUCBState, dumped: bytes) -> UserState:
    """Load the state of a user who started from ``base`` from the bytes that ``dump`` of either form wrote.

    Raises:
        LearnerError: not such bytes, or of another version, shape or length.
    """
    if dumped[:4] != _MAGIC:
        return LinUCBState.load(dumped)
    if len(dumped) < _HEADER.size:
        raise LearnerError(f"expected at least {_HEADER.size} bytes of a user's updates, got {len(dumped)}")
    _, version, *shape, count = _HEADER.unpack_from(dumped)
    arms, dimension, _ = base.packed.shape
    expected = _HEADER.size + count * (2 + 4 * (dimension + 1))
    if version != _VERSION or shape != [arms, dimension] or len(dumped) != expected:
        raise LearnerError(f"expected updates of version {_VERSION} and shape {(arms, dimension)}, got others")
    place = np.frombuffer(dumped, "<u2", count, _HEADER.size)
    rows = np.frombuffer(dumped, "<f4", offset=_HEADER.size + 2 * count).reshape(count, dimension + 1)
    if count and int(place.max()) >= arms:
        raise LearnerError(f"expected arms below {arms}, got another one")
    return OwnUpdates(base, place.astype(np.intp), rows.astype(np.float32))
