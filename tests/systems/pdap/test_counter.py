"""The counter: one reward moves one block by one, a window closes once, and bad outcomes change nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hushstream.privacy.keys import seeded_key
from hushstream.systems.pdap.algorithm.blocks import Blocks
from hushstream.systems.pdap.algorithm.noise import block_variances
from hushstream.systems.pdap.algorithm.outcomes import Outcomes
from hushstream.systems.pdap.cells import ROOT, PdapError
from hushstream.systems.pdap.counter.pending import Counter

NONE = bytes(32)


def outcomes(count=20, arm=0, reward=0, cell=ROOT, arrival=1 << 57, name=0):
    whole = [np.full(count, value, dtype=np.int64) for value in (cell, arrival, arm, reward)]
    return Outcomes(*whole, np.full((count, 16), name, dtype=np.uint8))


class TestNoise:
    def test_the_same_blocks_in_the_same_window_get_the_same_noise(self, pdap):
        settings = pdap.config()
        blocks = Blocks(*(np.arange(1, 5) if name else np.full(4, ROOT) for name in range(4)))
        assert np.array_equal(pdap.keyed(settings)(3, blocks, NONE), pdap.keyed(settings)(3, blocks, NONE))

    def test_any_other_content_window_key_or_address_has_other_noise(self, pdap):
        settings = pdap.config(epsilon=0.01)
        noise = pdap.keyed(settings)
        blocks = Blocks(*(np.arange(1, 65) if name else np.full(64, ROOT) for name in range(4)))
        drawn = [noise(3, blocks, NONE), noise(4, blocks, NONE), noise(3, blocks, bytes(31) + b"1")]
        drawn.append(pdap.keyed(settings, seeded_key(4, "counter"))(3, blocks, NONE))
        for name in ("arms", "counts", "sums"):
            column = getattr(blocks, name).copy()
            column[-1] += 1
            drawn.append(noise(3, replace(blocks, **{name: column}), NONE))
        for part in ({"epoch": 1}, {"partition": 1}, {"genesis_nonce": bytes(31) + b"1"}):
            drawn.append(replace(noise, address=replace(noise.address, **part))(3, blocks, NONE))
        # 64 draws of scale 100 agree by chance with probability below 1e-100.
        assert len({one.tobytes() for one in drawn}) == len(drawn)

    @pytest.mark.parametrize(("levels", "growth"), [(1, 0.0), (5, 0.0), (1, 0.5)])
    def test_its_size_is_that_of_each_levels_epsilon(self, pdap, levels, growth):
        # 20,000 draws: the standard error of the variance of Laplace noise is sqrt(5 / n) of it, 1.6 %; the bound is
        # six of them (false alarm 2e-9). Half the noise is off by 75 %.
        settings = pdap.config(epsilon=0.2, reward_levels=levels, level_growth=growth)
        for level, variance in enumerate(block_variances(settings)):
            cells = np.full(20_000, level << 57)
            blocks = Blocks(cells, np.arange(20_000), np.ones(20_000, dtype=np.int64), np.zeros(20_000, dtype=np.int64))
            seen = pdap.keyed(settings)(0, blocks, NONE)
            assert np.mean(seen.astype(float) ** 2) / levels**2 == pytest.approx(variance, rel=0.095)


class TestForks:
    """Histories that share a journal's beginning: what both release must not be subtracted out of one another."""

    @pytest.mark.parametrize(
        "change",
        [{"reward": 1}, {"name": 9}, {"arrival": (1 << 57) | 2}],
        ids=["another reward", "other events with equal sums", "other arrivals"],
    )
    def test_another_history_meets_other_noise_in_every_later_window(self, pdap, change):
        settings = pdap.config(epsilon=0.01)
        noises = []
        for first in (outcomes(400), outcomes(400, **change)):
            seen = []

            def kept(window, blocks, history, seen=seen):
                seen.append(pdap.keyed(settings)(window, blocks, history))
                return seen[-1]

            counter = Counter(settings, kept)
            counter.take(first)
            counter.close(0)
            # The same outcomes in both from here on.
            for arm in range(20):
                counter.take(outcomes(300, arm=arm, name=1))
            counter.close(1)
            noises.append(np.concatenate(seen))
        # 21 draws of scale 100 agree by chance with probability below 1e-40.
        assert not np.array_equal(noises[0][1:], noises[1][1:])

    def test_batches_of_any_size_make_one_history(self, pdap):
        settings = pdap.config(epsilon=0.01)
        whole, parts = (Counter(settings, pdap.keyed(settings)) for _ in range(2))
        one = replace(outcomes(400), names=pdap.names(0, 400))
        whole.take(one)
        for first in range(0, 400, 7):
            parts.take(one.take(slice(first, first + 7)))
        assert whole.close(0).blocks.canonical() == parts.close(0).blocks.canonical()


class TestCoupling:
    """Flip one reward, take it back from its block's noise: the transcripts are one, but for the noise."""

    @pytest.mark.parametrize("window", [0, 2, 5])
    def test_one_flipped_reward_is_one_block_by_one(self, pdap, window):
        settings = pdap.config(epsilon=0.5, first_window=150)
        drawn = {}

        def recorded(number, blocks, history):
            noise = pdap.keyed(settings)(number, blocks, history)
            drawn[number] = (blocks, noise)
            return noise

        def flip(clicks):
            return np.concatenate([1 - clicks[:1], clicks[1:]])

        plain = pdap.Deployment(settings, recorded)
        for _ in range(8):
            plain.window()
        moved = []

        def taken_back(number, blocks, history):
            exact, noise = drawn[number]
            difference = blocks.sums - exact.sums
            assert all(
                np.array_equal(getattr(blocks, name), getattr(exact, name)) for name in ("cells", "arms", "counts")
            )
            moved.extend(difference[difference != 0].tolist())
            return noise - difference

        flipped = pdap.Deployment(settings, taken_back)
        for number in range(8):
            flipped.window(flip if number == window else None)
        assert sum(map(abs, moved)) <= 1
        for one, other in zip(plain.releases, flipped.releases, strict=True):
            assert one.blocks.canonical() == other.blocks.canonical()
            assert np.array_equal(one.arrived, other.arrived)
            assert np.array_equal(one.arrivals, other.arrivals)
        for one, other in zip(plain.updates, flipped.updates, strict=True):
            assert np.array_equal(one.tickets, other.tickets)
            assert np.array_equal(one.opened, other.opened)
        for one, other in zip(plain.answers, flipped.answers, strict=True):
            assert np.array_equal(one.arms, other.arms)

    def test_the_flip_did_reach_a_block(self, pdap):
        # Else the test above would hold for a counter that drops what it is given.
        settings = pdap.config(epsilon=0.5, first_window=150)
        sums = []
        for reward in (0, 1):
            counter = Counter(settings, lambda window, blocks, history: np.zeros(len(blocks), dtype=np.int64))
            counter.take(outcomes(19))
            counter.take(outcomes(1, reward=reward))
            sums.append(counter.close(0).blocks.sums)
        assert (sums[1] - sums[0]).tolist() == [1]


class TestWindows:
    def test_a_window_closes_once(self, pdap):
        counter = Counter(pdap.config(), pdap.keyed(pdap.config()))
        counter.take(outcomes())
        counter.close(0)
        with pytest.raises(PdapError, match="expected 1 to close, got 0"):
            counter.close(0)
        with pytest.raises(PdapError, match="expected 1 to close, got 2"):
            counter.close(2)

    def test_what_was_released_is_forgotten_and_what_is_too_small_waits(self, pdap):
        settings = pdap.config(epsilon=0.1)
        counter = Counter(settings, lambda window, blocks, history: np.zeros(len(blocks), dtype=np.int64))
        counter.take(outcomes(29, arm=1, reward=1))
        counter.take(outcomes(40, arm=2, reward=1))
        first = counter.close(0).blocks
        assert (first.arms.tolist(), first.counts.tolist(), first.sums.tolist()) == ([2], [40], [40])
        assert counter.pending.counts.tolist() == [29]
        counter.take(outcomes(1, arm=1))
        second = counter.close(1).blocks
        assert (second.arms.tolist(), second.counts.tolist(), second.sums.tolist()) == ([1], [30], [29])
        assert len(counter.pending) == 0
        assert len(counter.close(2).blocks) == 0

    def test_capacity_counts_down_to_the_close(self, pdap):
        counter = Counter(pdap.config(first_window=30), pdap.keyed(pdap.config(first_window=30)))
        assert counter.capacity_left == 30
        counter.take(outcomes(12))
        assert counter.capacity_left == 18
        counter.take(outcomes(18))
        assert counter.capacity_left == 0
        counter.close(0)
        assert counter.capacity_left == 15

    def test_arrivals_are_published_as_they_were(self, pdap):
        counter = Counter(pdap.config(), pdap.keyed(pdap.config()))
        counter.take(outcomes(7, arrival=(1 << 57) | 2))
        counter.take(outcomes(4))
        release = counter.close(0)
        assert release.arrived.tolist() == [1 << 57, (1 << 57) | 2]
        assert release.arrivals.tolist() == [4, 7]
        assert release.outcomes == 11


class TestBadInput:
    @pytest.mark.parametrize(
        ("bad", "match"),
        [
            (outcomes(reward=2), "rewards from 0 to 1"),
            (outcomes(reward=-1), "rewards from 0 to 1"),
            (outcomes(arm=20), "arms from 0 to 19"),
            (outcomes(arm=-1), "arms from 0 to 19"),
            (outcomes(cell=9 << 57), "levels from 0 to 3"),
            (outcomes(arrival=2 << 57), "a child of the serving cell"),
            (outcomes(cell=(1 << 57) | 1, arrival=2 << 57), "a child of the serving cell"),
            (outcomes(arrival=ROOT), "a child of the serving cell"),
        ],
    )
    def test_an_outcome_that_cannot_be_is_refused_whole_and_its_reward_not_repeated(self, pdap, bad, match):
        counter = Counter(pdap.config(), pdap.keyed(pdap.config()))
        with pytest.raises(PdapError, match=match):
            counter.take(bad)
        assert counter.taken == 0
        assert len(counter.pending) == 0

    def test_columns_of_other_types_or_lengths_are_refused(self, pdap):
        counter = Counter(pdap.config(), pdap.keyed(pdap.config()))
        good = outcomes()
        for bad in (
            replace(good, rewards=good.rewards[:5]),
            replace(good, rewards=good.rewards.astype(np.float64)),
            replace(good, arms=good.arms.astype(np.int32)),
        ):
            with pytest.raises(PdapError, match="four int64 columns"):
                counter.take(bad)

    def test_names_of_another_form_are_refused(self, pdap):
        counter = Counter(pdap.config(), pdap.keyed(pdap.config()))
        good = outcomes()
        for bad in (good.names[:5], good.names[:, :8], good.names.astype(np.int64)):
            with pytest.raises(PdapError, match="expected names uint8"):
                counter.take(replace(good, names=bad))

    def test_beyond_the_horizon_nothing_is_taken(self, pdap):
        settings = pdap.config(horizon=25)
        counter = Counter(settings, pdap.keyed(settings))
        counter.take(outcomes(20))
        with pytest.raises(PdapError, match="at most 25 ever, got 20 and 6 more"):
            counter.take(outcomes(6))
        counter.take(outcomes(5))
        assert counter.taken == 25
