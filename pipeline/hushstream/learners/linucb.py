"""LinUCB with disjoint arms: models, copy-on-write states and kernels for one event at a time.

Per arm ``a`` the learner of Li et al. 2010 (Algorithm 1) keeps the gram matrix ``A_a = ridge*I + sum x x'``
and the moment ``b_a = sum r x``, and scores a context by ``theta_a'x + alpha*sqrt(x' A_a^-1 x)`` with
``theta_a = A_a^-1 b_a``. A *model* holds ``A`` and ``b`` in float64, as they are published. A *state* holds
what a score needs, ``A^-1`` and ``theta`` in float32, side by side in one array so that a single product
with the context gives both ``A^-1 x`` and ``theta'x``.

The Sherman-Morrison step with ``v = A^-1 x``, ``c = 1/sqrt(1 + x'v)`` and ``u = c v`` is

    A^-1  <-  A^-1 - u u'
    theta <-  theta - u * c * (theta'x - r)

so both move by one outer product of ``u`` with ``(u, c (theta'x - r))``; the inverse stays exactly
symmetric because ``u_i u_j`` and ``u_j u_i`` round alike.

Every kernel here has a fixed shape: on one machine the same state and context give the same bits, whatever
came before. Arms whose arrays are equal get equal bits too (each arm is one product of the same shape),
which is what makes ties exact.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from hushstream.learners.exploration import Highest, LearnerError

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_SYMMETRY = 1e-9
# Local names: at a few microseconds an event, looking a function up in a module is a visible cost.
_add, _matmul, _maximum = np.add, np.matmul, np.maximum
_multiply, _sqrt, _subtract, _vecdot = np.multiply, np.sqrt, np.subtract, np.vecdot
_HEADER = struct.Struct("<4sBxxxII")
_MAGIC = b"HLUC"
_VERSION = 1


def state_bytes(arms: int, dimension: int) -> int:
    """Bytes that the dense state of one user takes: ``K * D * (D + 1) * 4``."""
    return arms * dimension * (dimension + 1) * 4


class LinUCBState:
    """The state of one user's learner: ``A^-1`` and ``theta`` of every arm, in float32.

    A state that has not learned yet shares the arrays of its model; the first `learn` of a kernel copies them.
    """

    __slots__ = ("packed", "shared")

    def __init__(self, packed: Float32, shared: bool) -> None:
        self.packed = packed
        """(K, D, D + 1): ``packed[a, :, :D]`` is ``A_a^-1`` and ``packed[a, :, D]`` is ``theta_a``."""
        self.shared = shared
        """Whether ``packed`` is shared with other states and must be copied before it is written."""

    @property
    def inverse(self) -> Float32:
        """``A^-1`` by arm, a (K, D, D) view."""
        return self.packed[:, :, :-1]

    @property
    def theta(self) -> Float32:
        """``theta`` by arm, a (K, D) view."""
        return self.packed[:, :, -1]

    def own(self) -> Float32:
        """The packed array, after it was copied if it was shared."""
        if self.shared:
            self.packed = self.packed.copy()
            self.shared = False
        return self.packed

    def fork(self) -> LinUCBState:
        """A second state with the same content; both copy before they write from now on."""
        self.shared = True
        return LinUCBState(self.packed, shared=True)

    def dump(self) -> bytes:
        """The state as bytes: a 16-byte header (magic, version, K, D) and little-endian float32."""
        arms, dimension, _ = self.packed.shape
        header = _HEADER.pack(_MAGIC, _VERSION, arms, dimension)
        return header + self.packed.astype("<f4", copy=False).tobytes()

    @classmethod
    def load(cls, dumped: bytes) -> LinUCBState:
        """The state that `dump` wrote, owning its arrays.

        Raises:
            LearnerError: not such bytes, or of another version or length.
        """
        if len(dumped) < _HEADER.size:
            raise LearnerError(f"expected at least {_HEADER.size} bytes of a LinUCB state, got {len(dumped)}")
        magic, version, arms, dimension = _HEADER.unpack_from(dumped)
        if magic != _MAGIC or version != _VERSION:
            raise LearnerError(f"expected a LinUCB state of version {_VERSION}, got something else")
        expected = _HEADER.size + state_bytes(arms, dimension)
        if len(dumped) != expected or arms < 1 or dimension < 1:
            raise LearnerError(f"expected {expected} bytes of a LinUCB state, got {len(dumped)}")
        values = np.frombuffer(dumped, dtype="<f4", offset=_HEADER.size)
        packed = values.astype(np.float32).reshape(arms, dimension, dimension + 1)
        return cls(packed, shared=False)


@dataclass(frozen=True, slots=True, eq=False)
class LinUCBModel:
    """The published sums of all arms.

    Attributes:
        gram: (K, D, D) float64, symmetric positive definite, the ridge included.
        moment: (K, D) float64.
    """

    gram: Float64
    moment: Float64

    def __post_init__(self) -> None:
        """Refuse shapes and values that have no inverse."""
        gram, moment = self.gram, self.moment
        if gram.ndim != 3 or gram.shape[1] != gram.shape[2] or moment.shape != gram.shape[:2]:
            raise LearnerError(
                f"expected a gram of shape (K, D, D) and a moment of shape (K, D), got {gram.shape} and {moment.shape}"
            )
        if gram.dtype != np.float64 or moment.dtype != np.float64:
            raise LearnerError(f"expected float64 sums, got {gram.dtype} and {moment.dtype}")
        if not (np.isfinite(gram).all() and np.isfinite(moment).all()):
            raise LearnerError("expected finite sums, got NaN or infinity")
        scale = np.abs(gram).max(axis=(1, 2), keepdims=True)
        if (np.abs(gram - gram.transpose(0, 2, 1)) > _SYMMETRY * scale).any():
            raise LearnerError("expected symmetric gram matrices, got an asymmetric one")

    @classmethod
    def cold(cls, arms: int, dimension: int, ridge: float = 1.0) -> LinUCBModel:
        """The model without any interaction: ``ridge * I`` and zero."""
        gram = np.broadcast_to(np.eye(dimension) * ridge, (arms, dimension, dimension)).copy()
        return cls(gram, np.zeros((arms, dimension)))

    @property
    def arms(self) -> int:
        """K."""
        return int(self.gram.shape[0])

    @property
    def dimension(self) -> int:
        """D."""
        return int(self.gram.shape[1])

    def state(self) -> LinUCBState:
        """A shared state to start users from (`LinUCBState.fork` gives each their own).

        Raises:
            LearnerError: some gram matrix is not positive definite.
        """
        try:
            np.linalg.cholesky(self.gram)
            inverse = np.linalg.inv(self.gram)
        except np.linalg.LinAlgError:
            raise LearnerError("expected positive definite gram matrices, got one that is not") from None
        packed = np.empty((self.arms, self.dimension, self.dimension + 1), dtype=np.float32)
        packed[:, :, :-1] = (inverse + inverse.transpose(0, 2, 1)) / 2
        packed[:, :, -1] = np.linalg.solve(self.gram, self.moment[:, :, None])[:, :, 0]
        return LinUCBState(packed, shared=True)


class LinUCB:
    """The kernels: they hold scratch memory and settings, the state is passed in.

    One kernel serves any number of states of its shape, and one thread.
    """

    def __init__(self, arms: int, dimension: int, alpha: float = 1.0) -> None:
        if arms < 1 or dimension < 1:
            raise LearnerError(f"expected at least one arm and one dimension, got {arms} and {dimension}")
        if not 0.0 <= alpha < np.inf:
            raise LearnerError(f"expected a finite alpha of at least 0, got {alpha}")
        self.arms = arms
        self.dimension = dimension
        self.alpha = alpha
        self._products = np.empty((arms, dimension + 1), dtype=np.float32)
        self._inverse_products = self._products[:, :dimension]
        self._means = self._products[:, dimension]
        self._scores = np.empty(arms, dtype=np.float32)
        self._alpha_squared = np.array(alpha * alpha, dtype=np.float32)
        self._scaled = np.empty(dimension, dtype=np.float32)
        self._zero = np.zeros((), dtype=np.float32)
        self.highest = Highest(arms)
        self._product = np.empty(dimension + 1, dtype=np.float32)
        self._inverse_product = self._product[:dimension]
        self._column = self._inverse_product[:, None]
        self._row = self._product[None, :]
        self._shrink = np.zeros((), dtype=np.float32)
        self._step = np.empty((dimension, dimension + 1), dtype=np.float32)

    def scores(self, state: LinUCBState, context: Float32) -> Float32:
        """The upper confidence bound of every arm, (K,) float32, in scratch memory of the kernel.

        Args:
            state: of this kernel's shape.
            context: (D,) float32, C-contiguous and finite (checked where records are decoded).
        """
        scores = self._scores
        _matmul(context, state.packed, self._products)
        if self.alpha == 1.0:
            _vecdot(self._inverse_products, context, scores)
        else:
            _multiply(context, self._alpha_squared, self._scaled)
            _vecdot(self._inverse_products, self._scaled, scores)
        # Rounding may carry the square of a vanishing width below zero.
        _maximum(scores, self._zero, out=scores)
        _sqrt(scores, scores)
        _add(self._means, scores, scores)
        return scores

    def choose(
        self,
        state: LinUCBState,
        context: Float32,
        tie: int | Callable[[int], int] = 0,
        eligible: Bools | None = None,
    ) -> tuple[int, int]:
        """The arm with the highest score, and how many arms share that score.

        Args:
            state: of this kernel's shape.
            context: (D,) float32.
            tie: which of several tied arms to take; see `Highest.choose`.
            eligible: (K,) bool, the arms allowed; None allows all.

        Raises:
            NoEligibleArm: ``eligible`` allows none.
            LearnerError: the scores are not numbers.
        """
        return self.highest.choose(self.scores(state, context), tie, eligible)

    def learn(self, state: LinUCBState, context: Float32, arm: int, reward: float) -> None:
        """Fold one interaction into the state (Sherman-Morrison; copies a shared state first)."""
        packed = state.packed
        if state.shared:
            packed = state.own()
        matrix = packed[arm]
        product = self._product
        context.dot(matrix, product)
        shrink = 1.0 / sqrt(1.0 + max(float(self._inverse_product.dot(context)), 0.0))
        surprise = (float(product[-1]) - reward) * shrink
        self._shrink[()] = shrink
        _multiply(product, self._shrink, product)
        product[-1] = surprise
        self._column.dot(self._row, self._step)
        _subtract(matrix, self._step, matrix)
