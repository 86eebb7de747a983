"""The sums and counts that a closed window of codes releases: pure functions on whole numbers.

A window holds its slots as three columns (code, arm, level) and a mask of the slots that count; a null does not count,
nor does a report that was not sampled. Slots that do not count take the same steps, and are added to a cell outside the
domain that is dropped at the end. So the same operations run on arrays of the same sizes, whatever a window holds, and
the time of a release reveals nothing of it (except through the effect of addresses on caches). The domain is public and
finite: k codes, K arms, levels 0 to M, where a level is the reward in units of 1/M, clipped before it was rounded.

Three releases:

* `slot_sums` and `noised`: per (code, arm) two sums with noise; the default.
* `tuples`: counts of whole tuples that were sampled and reach a threshold.
* `paper`: the paper's threshold on the code alone; not private as stated.

The caller draws noise and samples (keyed; see PRIVACY rules 5 to 7), so a release is a function of its arguments. Sums
and counts are int64; a window has far fewer than 2^54 slots, and this is checked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hushstream.systems.p2b.shuffler.errors import ShufflingError

Int64 = npt.NDArray[np.int64]
Integers = npt.NDArray[np.integer]
Bools = npt.NDArray[np.bool_]

MAX_TUPLES = 1 << 26
_MAX_SLOTS = 1 << 40
_MAX_NOISE = 1 << 60


@dataclass(frozen=True, slots=True)
class Domain:
    """The public domain of a report.

    Attributes:
        codes: k.
        arms: K.
        levels: M; rewards are 0/M to M/M.
    """

    codes: int
    arms: int
    levels: int

    def __post_init__(self) -> None:
        """Refuse empty domains, and domains that are too large to be released cell by cell."""
        if min(self.codes, self.arms, self.levels) < 1:
            raise ShufflingError(
                f"expected at least one code, arm and level, got {self.codes}, {self.arms}, {self.levels}"
            )
        tuples = self.cells * (self.levels + 1)
        if tuples > MAX_TUPLES:
            raise ShufflingError(f"expected a domain of at most {MAX_TUPLES} tuples, got {tuples}")

    @property
    def cells(self) -> int:
        """k K, the number of pairs of a code and an arm."""
        return self.codes * self.arms


@dataclass(frozen=True, slots=True, eq=False)
class Reports:
    """The slots of one window, checked against the domain.

    Attributes:
        domain: the domain that they were checked against.
        codes: (n,) integers in [0, k).
        arms: (n,) integers in [0, K).
        levels: (n,) integers in [0, M].
        counted: (n,) bool: which of them count. Zone-private, as the other columns are; n is public.
    """

    domain: Domain
    codes: Int64
    arms: Int64
    levels: Int64
    counted: Bools

    def __post_init__(self) -> None:
        """Refuse columns of unequal length and values outside the domain."""
        columns = (self.codes, self.arms, self.levels)
        if any(column.ndim != 1 or len(column) != len(self.codes) for column in columns):
            raise ShufflingError("expected three columns of equal length, got others")
        if len(self.codes) > _MAX_SLOTS:
            raise ShufflingError(f"expected at most {_MAX_SLOTS} reports in a window, got {len(self.codes)}")
        highest = (self.domain.codes - 1, self.domain.arms - 1, self.domain.levels)
        for column, high in zip(columns, highest, strict=True):
            if column.dtype != np.int64:
                raise ShufflingError(f"expected int64 columns, got {column.dtype}")
            if len(column) and (column.min() < 0 or column.max() > high):
                raise ShufflingError(f"expected values from 0 to {high}, got one outside")
        self._require_mask(self.counted)

    @classmethod
    def of(cls, domain: Domain, codes: Integers, arms: Integers, levels: Integers) -> Reports:
        """Reports that all count, from integer columns of any width."""
        wide = [np.asarray(column).astype(np.int64, casting="safe") for column in (codes, arms, levels)]
        return cls(domain, wide[0], wide[1], wide[2], np.ones(len(wide[0]), dtype=np.bool_))

    def __len__(self) -> int:
        """The number of slots, whatever they hold."""
        return len(self.codes)

    def kept(self, mask: Bools) -> Reports:
        """The same slots, of which those where ``mask``, (n,) bool, is false no longer count."""
        self._require_mask(mask)
        return replace(self, counted=self.counted & mask)

    def _require_mask(self, mask: Bools) -> None:
        if mask.shape != self.codes.shape or mask.dtype != np.bool_:
            raise ShufflingError(f"expected a mask of {len(self)} booleans, got {mask.dtype} {mask.shape}")

    def _cells(self) -> Int64:
        """(n,) the cell of each slot; for slots that do not count, the cell after the last one.

        It is chosen by arithmetic, because an unpredictable branch takes five times as long as a predictable one.
        """
        beside = self.domain.cells
        return beside + self.counted * (self.codes * self.domain.arms + self.arms - beside)

    def _tuples(self) -> Int64:
        """(k K (M + 1),) for each tuple, in lexicographic order, how many slots that count hold it."""
        rewards = self.domain.levels + 1
        keys = self._cells() * rewards + self.levels
        return np.bincount(keys, minlength=(self.domain.cells + 1) * rewards)[: self.domain.cells * rewards]


@dataclass(frozen=True, slots=True, eq=False)
class CellSums:
    """Two sums for every (code, arm) of the domain, empty cells included; or for every arm and cell of features.

    Attributes:
        ones: (k, K) int64, the sum of levels R; for features (K, P), see `hushstream.systems.p2b.shuffler.linear_sums`.
        zeros: of the same shape, the sum of M - R.
    """

    ones: Int64
    zeros: Int64


@dataclass(frozen=True, slots=True, eq=False)
class TupleCounts:
    """Sorted counts of the tuples that are released; withheld reports stay in the shuffler's zone.

    Attributes:
        codes, arms, levels: (m,) int64, lexicographically ascending and distinct.
        counts: (m,) int64, each at least the threshold.
        withheld: number of reports below the threshold. Zone-private.
    """

    codes: Int64
    arms: Int64
    levels: Int64
    counts: Int64
    withheld: int


def slot_sums(reports: Reports) -> CellSums:
    """The exact sums of every cell; never to leave the shuffler without `noised`.

    A report adds R = level to ``ones`` and M - R to ``zeros`` of its one cell. So replacing a slot's report by null
    moves the two arrays by ``R + (M - R) = M`` in L1, whatever the reward is. This is the sensitivity for which the
    noise is drawn. The budget need not be divided between the two sums.
    """
    domain = reports.domain
    cells = reports._cells()
    # np.bincount with weights sums in float64; np.add.at keeps whole numbers whole.
    ones = np.zeros(domain.cells + 1, dtype=np.int64)
    np.add.at(ones, cells, reports.levels)
    zeros = np.bincount(cells, minlength=domain.cells + 1) * domain.levels - ones
    shape = (domain.codes, domain.arms)
    return CellSums(ones[:-1].reshape(shape), zeros[:-1].reshape(shape))


def noised(sums: CellSums, noise: Int64) -> CellSums:
    """Add one integer of noise to every sum.

    Args:
        sums: exact sums.
        noise: (2, k, K) int64: independent discrete Laplace of scale M/eps, first for ``ones``, then for
            ``zeros``; drawn by the caller.

    Raises:
        ShufflingError: another shape or type, or values so large that the sum could overflow.

    Guarantee:
        relation null-slot, unit one slot: with that noise the result is eps-differentially private with
        delta the residue of the sampler, since the L1 sensitivity of the pair is M (`slot_sums`). A report
        against another report costs 2 eps. Noise of scale M/eps in units of 1/M is scale 1/eps in rewards.
    """
    expected = (2, *sums.ones.shape)
    if noise.shape != expected or noise.dtype != np.int64:
        raise ShufflingError(f"expected int64 noise of shape {expected}, got {noise.dtype} {noise.shape}")
    if noise.size and (noise.max() > _MAX_NOISE or noise.min() < -_MAX_NOISE):
        raise ShufflingError(f"expected noise within {_MAX_NOISE} of zero, got a larger one")
    return CellSums(sums.ones + noise[0], sums.zeros + noise[1])


def tuples(reports: Reports, sampled: Bools, threshold: int) -> TupleCounts:
    """Counts of the whole tuples (code, arm, level) that enough sampled reports share.

    Args:
        reports: of one closed window.
        sampled: (n,) bool, an independent keyed coin of probability p for each report, drawn by the shuffler
            after the window has closed.
        threshold: l, the smallest count that is released.

    Raises:
        ShufflingError: a wrong mask or a threshold below 1.

    Guarantee:
        relation null-slot, unit one slot: (eps, delta) of the thresholded Bin(n, p) against Bin(n + 1, p),
        computed exactly in `hushstream.privacy.mechanisms.tuples`. The threshold counts the whole tuple: counting the
        code alone lets a unique (arm, reward) through (`paper`). Counts over the sorted domain carry no
        order that could be linked to arrival.
    """
    _require_threshold(threshold)
    counts = reports.kept(sampled)._tuples()
    return _counted(reports.domain, counts, counts >= threshold)


def paper(reports: Reports, threshold: int) -> TupleCounts:
    """Counts of the tuples whose *code* alone has enough reports, as the paper's public code does.

    The users drew the coins. All crowds are counted first and filtered afterwards. The public code removes entries
    from the list over which it iterates, so some small crowds survive there.

    Args:
        reports: of one closed window, sampled by their senders.
        threshold: l, the smallest number of reports of a code with which all of them are released.

    Raises:
        ShufflingError: a threshold below 1.

    Guarantee:
        NOT PRIVATE AS STATED: a report with an arm or level that nobody else has under a popular code is
        released as it is, which no finite eps with a small delta allows.
    """
    _require_threshold(threshold)
    counts = reports._tuples()
    crowds = counts.reshape(reports.domain.codes, -1).sum(axis=1)
    popular = np.repeat(crowds >= threshold, len(counts) // len(crowds))
    return _counted(reports.domain, counts, popular & (counts > 0))


def tuple_sums(domain: Domain, counts: TupleCounts) -> CellSums:
    """The released tuples in the form of `CellSums` (post-processing), as a crowd record carries them."""
    ones = np.zeros((domain.codes, domain.arms), dtype=np.int64)
    zeros = np.zeros_like(ones)
    np.add.at(ones, (counts.codes, counts.arms), counts.counts * counts.levels)
    np.add.at(zeros, (counts.codes, counts.arms), counts.counts * (domain.levels - counts.levels))
    return CellSums(ones, zeros)


def _counted(domain: Domain, counts: Int64, released: Bools) -> TupleCounts:
    """The counts to release, from the counts of all tuples in lexicographic order."""
    keys = np.flatnonzero(released)
    cells, levels = np.divmod(keys, domain.levels + 1)
    codes, arms = np.divmod(cells, domain.arms)
    return TupleCounts(codes, arms, levels, counts[keys], withheld=int(counts.sum() - counts[keys].sum()))


def _require_threshold(threshold: int) -> None:
    if threshold < 1:
        raise ShufflingError(f"expected a threshold of at least 1, got {threshold}")
