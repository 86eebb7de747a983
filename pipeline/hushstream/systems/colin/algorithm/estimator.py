"""One estimator for LinUCB, CoLin and GOBLin, kept in the space where their updates are sparse.

With projected features ``x~ = w_u (x) x`` (`hushstream.systems.colin.relation`) all three estimate ``theta = A^-1 b``
with ``A = ridge*I + sum x~ x~'`` and ``b = sum x~ r`` (Wang et al., DP-CoLin, Section 5.1). Let ``M = W' (x) I_d``
and ``z = e_u (x) x``, so ``x~ = M z``. In place of ``A^-1`` this keeps ``C = M' A^-1 M``, dN x dN:

    at first        C = (W W' / ridge) (x) I_d
    after x of u    C <- C - v v',  v = C z / sqrt(1 + z' C z)     (Sherman-Morrison, multiplied by M' and M)
    score of x      x~' theta = z' M' A^-1 M B = x . (C B)_u       with raw sums B = sum z r
    its width       x~' A^-1 x~ = x' C_uu x

``C z`` reads d columns instead of a product with all of ``A^-1``. B is all that rewards enter, so releasing B
(noised) is enough: A, W and everything computed from them are public.

The last updates v wait as rows of a panel and go into C together by `dsyrk`; every read takes them into account.
The bits of a state follow from the sequence of calls that change it (`observe`, `observe_batch`, `learn`,
`set_moment`) on one machine with one BLAS thread: `observe_batch` is the same as `observe` row by row, and neither
reading, nor dump and load, changes them.

*Own rewards.* What each user's own exact rewards tell, beside the released model: the statistics behind dark visits.

A clean visit is answered from released parameters alone, and its noised reward is learned from. A dark visit is
answered from the released parameters and from all exact rewards of this user; nothing of it is learned by others, and
the item that it shows must not leave the zone that holds rewards.

For user u with released parameters phi and width C (`SharedParameters`), C_0 the width before any row, and own features
x with rewards y,

    P = ridge I + t (C^-1 - C_0^-1) + sum x x',    theta = P^-1 (t C^-1 phi + sum y x),    t = r / (r + v)

and an item with features x is scored by ``x . theta + alpha sqrt(x' P^-1 x)``. C^-1 - C_0^-1 is what the released rows
tell beyond the model's own prior, which is left out: mixed over many users it is so narrow that it would outweigh some
twenty rewards of the user. t is how much less a noised reward tells than an exact one: r is the variance that a reward
has by itself, v that of the noise. The ridge is that of users who learn alone, so a model that tells nothing leaves
them where they were. (A user's own clean rewards are in both parts: once noised, times t, and once exact.)
"""

from __future__ import annotations

import struct
import sys
from math import prod, sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from hushstream.learners.exploration import LearnerError
from hushstream.systems.colin.relation import Relation

Float64 = npt.NDArray[np.float64]
Integers = npt.NDArray[np.integer]

_PANEL = 64
_HEADER = struct.Struct("<4sBBxxIIII")
_MAGIC = b"HCOL"
_VERSION = 1
REWARD_VARIANCE = 0.04
"""r: the variance of an exact reward around its mean, a deviation of 0.2."""

_OWN_HEADER = struct.Struct("<II")

# Bound to names of this module: an event takes a few microseconds, and looking a function up in NumPy is a visible part
# of them.
_matmul, _multiply, _subtract, _vecdot = np.matmul, np.multiply, np.subtract, np.vecdot


class CollaborativeState:
    """The estimator of N users in d dimensions; holds 8 (dN)^2 bytes."""

    def __init__(
        self,
        relation: Relation,
        dimension: int,
        ridge: float,
        *,
        norm: float | None = None,
        limit_bytes: int = 2 << 30,
    ) -> None:
        """Begin before the first row.

        Args:
            relation: of the users.
            dimension: d.
            ridge: lambda, above 0.
            norm: the largest ``||x||_2`` that is learned from; None allows any finite.
            limit_bytes: the most memory for C.

        Raises:
            LearnerError: a setting is out of range, or C would be larger than ``limit_bytes``.
        """
        if dimension < 1:
            raise LearnerError(f"expected at least one dimension, got {dimension}")
        if not 0.0 < ridge < np.inf:
            raise LearnerError(f"expected a finite ridge above 0, got {ridge}")
        if norm is not None and not 0.0 < norm < np.inf:
            raise LearnerError(f"expected a finite norm above 0, got {norm}")
        size = relation.users * dimension
        if 8 * size * size > limit_bytes:
            raise LearnerError(
                f"expected at most {limit_bytes:,} bytes for {relation.users:,} users in {dimension} dimensions,"
                f" got {8 * size * size:,}"
            )
        self.relation: Final = relation
        self.dimension: Final = dimension
        self.users: Final = relation.users
        self._size = size
        # The slack is for rounding of a vector that was normalised to the bound.
        self._largest = sys.float_info.max if norm is None else norm * norm * (1 + 2.0**-40)
        # Only the upper triangle and the diagonal blocks are kept up to date. In Fortran order BLAS writes in place.
        self._c: Float64 = np.asfortranarray(np.kron(relation.matrix @ relation.matrix.T / ridge, np.eye(dimension)))
        self._panel: Float64 = np.zeros((_PANEL, size))
        self._lower: Final = np.tril_indices(dimension, -1)
        self._waiting = 0
        self._moment: Float64 = np.zeros(size)
        self._scores: Float64 | None = np.zeros(size)
        """C times the moment, which every `learn` updates; None after `set_moment`."""
        self._correction: Float64 = np.empty(size)

    @property
    def moment(self) -> Float64:
        """B, the raw sums by user, (N, d); a copy."""
        return self._moment.reshape(self.users, self.dimension).copy()

    # Methods that change the state.

    def observe(self, user: int, features: Float64) -> None:
        """Add the features that a user was shown to A; only public data enters it.

        Args:
            user: node, 0 to N - 1.
            features: (d,) float64.

        Raises:
            LearnerError: an unknown user, another shape, or features that are longer than the norm or not finite.
        """
        self._update(user, features)

    def observe_batch(self, users: Integers, features: Float64) -> None:
        """`observe` row by row.

        Args:
            users: (n,) nodes.
            features: (n, d) float64.

        Raises:
            LearnerError: as for `observe`; then no row was added.
        """
        if features.shape != (len(users), self.dimension):
            raise LearnerError(f"expected features of shape {(len(users), self.dimension)}, got {features.shape}")
        if len(users) and not (users.min() >= 0 and users.max() < self.users):
            raise LearnerError(f"expected users below {self.users}, got another")
        if not (_vecdot(features, features) <= self._largest).all():
            raise LearnerError(self._expected_features())
        for user, row in zip(users.tolist(), features, strict=True):
            self._update(user, row)

    def learn(self, user: int, features: Float64, reward: float) -> None:
        """Do what `observe` does, and add the exact reward to B: the result is not private.

        Args:
            user: node.
            features: (d,) float64, of the arm that was shown.
            reward: in [0, 1].

        Raises:
            LearnerError: as for `observe`, or a reward outside [0, 1].
        """
        # Written so that NaN, which compares false, is refused.
        if not 0.0 <= reward <= 1.0:
            raise LearnerError("expected a reward in [0, 1], got another")
        first = self._update(user, features, reward)
        self._moment[first : first + self.dimension] += reward * features

    def set_moment(self, moment: Float64) -> None:
        """Put released raw sums in place of B.

        Args:
            moment: (N, d), finite; noise may have been added.

        Raises:
            LearnerError: another shape, or not finite.
        """
        shape = (self.users, self.dimension)
        if moment.shape != shape or not np.isfinite(moment).all():
            raise LearnerError(f"expected {prod(shape)} finite sums of shape {shape}, got others, of {moment.shape}")
        self._moment = moment.flatten()
        self._scores = None

    # Methods that read the state.

    def parameters(self) -> Float64:
        """Score vectors by user, (N, d): x is scored by its product with the user's row. A copy."""
        scores = self._all_scores() if self._scores is None else self._scores.copy()
        return scores.reshape(self.users, self.dimension)

    def widths(self) -> Float64:
        """Blocks C_uu, (N, d, d): the width of x is sqrt(x' C_uu x). A copy."""
        d = self.dimension
        waiting = self._panel[: self._waiting].reshape(self._waiting, self.users, d).transpose(1, 2, 0)
        widths: Float64 = self._blocks() - waiting @ waiting.transpose(0, 2, 1)
        return widths

    def of_user(self, user: int) -> tuple[Float64, Float64]:
        """The score vector (d,) and the width C_uu (d, d) of one user, copies."""
        first = self._block_start(user)
        last = first + self.dimension
        waiting = self._panel[: self._waiting, first:last]
        scores = self._user_scores(first) if self._scores is None else self._scores[first:last].copy()
        return scores, self._c[first:last, first:last] - waiting.T @ waiting

    def ucb(self, user: int, features: Float64, alpha: float) -> Float64:
        """Upper confidence bounds ``x . phi_u + alpha sqrt(x' C_uu x)``, (n,).

        Args:
            user: node.
            features: (n, d) float64; their length is not checked, as nothing is learned from them.
            alpha: at least 0.

        Raises:
            LearnerError: an unknown user, or another shape.
        """
        if features.shape[1:] != (self.dimension,):
            raise LearnerError(f"expected features of shape (n, {self.dimension}), got {features.shape}")
        first = self._block_start(user)
        last = first + self.dimension
        squares: Float64 = _vecdot(features @ self._c[first:last, first:last], features)
        if self._waiting:
            waiting = features @ self._panel[: self._waiting, first:last].T
            squares -= _vecdot(waiting, waiting)
        # Rounding may carry the square of a vanishing width below zero.
        np.maximum(squares, 0.0, out=squares)
        np.sqrt(squares, out=squares)
        squares *= alpha
        squares += features @ (self._user_scores(first) if self._scores is None else self._scores[first:last])
        return squares

    def choose(self, user: int, features: Float64, alpha: float) -> int:
        """The row of (n, d) features with the highest bound, the first of equals.

        Raises:
            LearnerError: an unknown user, another shape, no row, or bounds that are not finite.
        """
        if not len(features):
            raise LearnerError("expected at least one arm, got none")
        bounds = self.ucb(user, features, alpha)
        best = int(bounds.argmax())
        # argmax takes NaN for the largest, so this one comparison sees all.
        if not -np.inf < bounds[best] < np.inf:
            raise LearnerError("expected finite features and bounds, got others")
        return best

    # The state as bytes.

    def dump(self) -> bytes:
        """The state as bytes: a header, then little-endian float64: triangle of C, panel, moment, scores."""
        c = self._c
        triangle = [c[: column + 1, column] for column in range(self._size)]
        parts = [*triangle, self._panel[: self._waiting].ravel(), self._moment]
        if self._scores is not None:
            parts.append(self._scores)
        kept = self._scores is not None
        head = _HEADER.pack(_MAGIC, _VERSION, kept, self.users, self.dimension, self._size, self._waiting)
        return head + np.concatenate(parts).astype("<f8", copy=False).tobytes()

    def load(self, dumped: bytes) -> None:
        """Restore what `dump` wrote of a state with the same relation, dimension and ridge.

        Raises:
            LearnerError: the bytes are not a dumped state, have another version, shape or length, or a number that is
                not finite.
        """
        if len(dumped) < _HEADER.size:
            raise LearnerError(f"expected at least {_HEADER.size} bytes of a collaborative state, got {len(dumped)}")
        magic, version, kept, *shape, waiting = _HEADER.unpack_from(dumped)
        if magic != _MAGIC or version != _VERSION or kept > 1 or waiting >= _PANEL:
            raise LearnerError(f"expected a collaborative state of version {_VERSION}, got something else")
        if shape != [self.users, self.dimension, self._size]:
            raise LearnerError(
                f"expected a state of users, dimension and size {[self.users, self.dimension, self._size]}, got {shape}"
            )
        size = self._size
        lengths = [size * (size + 1) // 2, waiting * size, size, kept * size]
        if len(dumped) != _HEADER.size + 8 * sum(lengths):
            raise LearnerError(f"expected {_HEADER.size + 8 * sum(lengths)} bytes of a state, got {len(dumped)}")
        values = np.frombuffer(dumped, "<f8", offset=_HEADER.size).astype(np.float64)
        if not np.isfinite(values).all():
            raise LearnerError("expected finite numbers in a collaborative state, got others")
        triangle, panel, moment, scores = np.split(values, np.cumsum(lengths)[:-1])
        at = 0
        for column in range(size):
            self._c[: column + 1, column] = triangle[at : at + column + 1]
            at += column + 1
        self._mirror_blocks()
        self._panel[:waiting] = panel.reshape(waiting, size)
        self._waiting, self._moment = waiting, moment.copy()
        self._scores = scores.copy() if kept else None

    # Internal methods.

    def _block_start(self, user: int) -> int:
        if not 0 <= user < self.users:
            raise LearnerError(f"expected a user below {self.users}, got {user}")
        return user * self.dimension

    def _update(self, user: int, features: Float64, reward: float | None = None) -> int:
        """One step of Sherman-Morrison; returns where the user's block begins."""
        first = self._block_start(user)
        last = first + self.dimension
        if features.shape != (self.dimension,) or not features.dot(features) <= self._largest:
            raise LearnerError(self._expected_features())
        if reward is not None and self._scores is None:
            self._scores = self._all_scores()
        waiting, panel = self._waiting, self._panel
        step = panel[waiting]
        _matmul(self._c[:last, first:last], features, step[:last])
        _matmul(features, self._c[first:last, last:], step[last:])
        if waiting:
            correction = self._correction
            _matmul(panel[:waiting, first:last].dot(features), panel[:waiting], correction)
            _subtract(step, correction, step)
        # Rounding may carry the square of a vanishing width below zero.
        shrink = 1.0 / sqrt(1.0 + max(float(step[first:last].dot(features)), 0.0))
        _multiply(step, shrink, step)
        if self._scores is not None:
            surprise = ((reward or 0.0) - float(self._scores[first:last].dot(features))) * shrink
            self._scores += surprise * step
        self._waiting = waiting + 1
        if self._waiting == _PANEL:
            self._flush()
        return first

    def _flush(self) -> None:
        # Imported here: every process of any system imports this module, and SciPy takes a tenth of its start.
        from scipy.linalg.blas import dsyrk

        self._c = dsyrk(-1.0, self._panel[: self._waiting].T, beta=1.0, c=self._c, overwrite_c=1)
        self._mirror_blocks()
        self._waiting = 0

    def _mirror_blocks(self) -> None:
        """Copy the upper halves of the diagonal blocks to the lower ones."""
        blocks, (rows, columns) = self._blocks(), self._lower
        blocks[:, rows, columns] = blocks[:, columns, rows]

    def _blocks(self) -> Float64:
        """The diagonal blocks of C without the waiting updates, (N, d, d); a view that can be written."""
        d = self.dimension
        blocks: Float64 = np.einsum("iaja->aij", self._c.reshape((d, -1, d, self._size // d), order="F"))
        return blocks

    def _user_scores(self, first: int) -> Float64:
        """C times the moment for one user's block."""
        last = first + self.dimension
        scores: Float64 = self._moment[:last] @ self._c[:last, first:last]
        scores += self._c[first:last, last:] @ self._moment[last:]
        if self._waiting:
            panel = self._panel[: self._waiting]
            scores -= (panel @ self._moment) @ panel[:, first:last]
        return scores

    def _all_scores(self) -> Float64:
        """C times the moment."""
        from scipy.linalg.blas import dsymv

        scores: Float64 = dsymv(1.0, self._c, self._moment, lower=0)
        panel = self._panel[: self._waiting]
        scores -= (panel @ self._moment) @ panel
        return scores

    def _expected_features(self) -> str:
        bound = "any finite length" if self._largest == sys.float_info.max else f"length {sqrt(self._largest):g}"
        return f"expected {self.dimension} finite features of at most {bound}, got others"


def require_invertible(widths: Float64) -> Float64:
    """The inverses of widths (N, d, d).

    Raises:
        LearnerError: one of them is none of a model: it is not positive definite.
    """
    try:
        np.linalg.cholesky(widths)
        inverse: Float64 = np.asarray(np.linalg.inv(widths), dtype=np.float64)
    except np.linalg.LinAlgError:
        raise LearnerError("model: expected positive definite widths (learner.ridge near 1), got others") from None
    return inverse


class OwnRewards:
    """Sums of x x' and of y x of N users in d dimensions."""

    def __init__(self, widths: Float64, ridge: float, noise: float) -> None:
        """Begin before the first visit.

        Args:
            widths: (N, d, d), C_0 of each user.
            ridge: of users who learn alone, above 0.
            noise: v, the variance of the noise on a released reward; 0 without noise.
        """
        self._cold = require_invertible(widths)
        self._grams = np.zeros(widths.shape)
        self._moments = np.zeros(widths.shape[:2])
        self._prior = ridge * np.eye(widths.shape[1])
        self._trust = REWARD_VARIANCE / (REWARD_VARIANCE + noise)

    def scores(self, user: int, features: Float64, phi: Float64, width: Float64, alpha: float) -> Float64:
        """Upper confidence bounds of (n, d) features for one user, (n,).

        Args:
            user: 0 to N - 1.
            features: of the items.
            phi: (d,), the user's released parameters.
            width: (d, d), C of the user.
            alpha: at least 0.
        """
        precision = np.linalg.inv(width)
        told = self._trust * (precision - self._cold[user])
        inverse = np.linalg.inv(self._prior + told + self._grams[user])
        theta = inverse @ (self._trust * precision @ phi + self._moments[user])
        squares = np.einsum("nd,nd->n", features @ inverse, features)
        bounds: Float64 = features @ theta + alpha * np.sqrt(np.maximum(squares, 0.0))
        return bounds

    def learn(self, user: int, features: Float64, reward: float) -> None:
        """Add the exact reward of an item with features (d,) that was shown to a user."""
        self._grams[user] += np.outer(features, features)
        self._moments[user] += reward * features

    def forget(self, user: int) -> None:
        """Delete what a user gave."""
        self._grams[user] = 0.0
        self._moments[user] = 0.0

    def dump(self) -> bytes:
        """The statistics as bytes: a header, then little-endian sums of x x' and of y x."""
        arrays = (self._grams.astype("<f8"), self._moments.astype("<f8"))
        return _OWN_HEADER.pack(*self._moments.shape) + b"".join(one.tobytes() for one in arrays)

    def load(self, dumped: bytes) -> None:
        """Restore what `dump` wrote of as many users and dimensions.

        Raises:
            LearnerError: the bytes are of others.
        """
        users, dimension = shape = (len(self._moments), len(self._prior))
        size = users * dimension * (dimension + 1)
        if len(dumped) != _OWN_HEADER.size + 8 * size or _OWN_HEADER.unpack_from(dumped) != shape:
            raise LearnerError(f"own rewards: expected those of {users} users in {dimension} dimensions, got others")
        found = np.frombuffer(dumped, "<f8", offset=_OWN_HEADER.size).astype(np.float64)
        grams, moments = np.split(found, [self._grams.size])
        self._grams, self._moments = grams.reshape(self._grams.shape), moments.reshape(shape)
