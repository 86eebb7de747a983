"""Attacks on what surrounds the noise: each fails on the product and succeeds where its rule is left out.

The product: a false alarm has probability at most 1e-6 for each attack. The mutants: the attacker is right in nearly
every run, so at the quick version's runs each is found with probability above 1 - 1e-5 (the shifted window, whose
attacker is wrong in one run of 150; it may be wrong in 6 of 120), and the others above 1 - 1e-6.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from hushstream.agents.observe import metrics
from hushstream.agents.recovery import journal
from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress, discrete_laplace, laplace_scale
from hushstream.replay.audits.catalogue import make_audit
from hushstream.replay.audits.draws import fresh_address, fresh_key
from hushstream.replay.studies.p2b.audits import attacks, releases
from hushstream.systems.p2b.contribution.slots import pack
from hushstream.systems.p2b.machines import release as p2b_release
from hushstream.systems.p2b.shuffler.windows import Offer, SlotOutcome, Windows


def attacked(name, attack):
    """The attack as it is made from the mutated parts, at the quick version's runs."""
    result = attack()(make_audit(name).runs, 1e-6)
    assert result.claimed.epsilon_micro <= 1_500_000
    return result


def test_windows_that_do_not_count_null_slots_are_shifted(monkeypatch):
    honest = Windows.offer

    def only_reports(self, report_id, period, content):
        return Offer(SlotOutcome.JOINED, None) if content == pack(None) else honest(self, report_id, period, content)

    monkeypatch.setattr(Windows, "offer", only_reports)
    found = attacked("shifted-window", attacks.shifted_window)
    assert not found.passed
    hits, alarms = found.hits
    assert hits > 110, "14 windows of any size give a rate of .993"
    assert alarms < 10, "and false alarms at .002"


def test_noise_that_is_drawn_again_for_a_replay_averages_out(monkeypatch):
    honest = p2b_release.release_address
    monkeypatch.setattr(
        p2b_release, "release_address", lambda system, nonce, *place: honest(system, os.urandom(32), *place)
    )
    assert not attacked("redrawn-noise", attacks.redrawn_noise).passed


def test_noise_that_is_named_by_its_window_alone_cancels_between_two_branches(monkeypatch):
    honest = p2b_release.window_address
    monkeypatch.setattr(p2b_release, "window_address", lambda *given: replace(honest(*given), content=b""))
    found = attacked("forked-journal", attacks.forked_journal)
    assert not found.passed
    assert found.hits[0] == found.runs, "the difference is the unit's report, in every run"


@pytest.fixture
def one_stream(monkeypatch):
    """Noise streams whose words depend on nothing that an epsilon changes."""
    words, encode = KeyedStream.words, NoiseAddress.encode
    monkeypatch.setattr(NoiseAddress, "encode", lambda self: encode(replace(self, parameters={}, config_digest=b"any")))
    monkeypatch.setattr(KeyedStream, "words", lambda self, count, *label: words(self, count))


def delta_of_the_pair():
    """Exact delta at epsilon 1.5 of one cell released at .5 and 1 from the same words."""
    law = attacks._coupled(*attacks.EPSILONS)
    assert law.sum() == pytest.approx(1, abs=1e-12)
    moved = np.zeros_like(law)
    moved[1:, 1:] = law[:-1, :-1]
    return np.maximum(moved - np.exp(1.5) * law, 0).sum()


@pytest.mark.usefixtures("one_stream")
def test_a_stream_that_ignores_epsilon_gives_the_cell_away():
    """The delta met is the exact one within 0.08: six deviations of 2,000 hits and of e^1.5 times the alarms."""
    found = attacked("two-epsilons", attacks.two_epsilons)
    assert not found.passed
    hits, alarms = np.array(found.hits) / found.runs
    assert delta_of_the_pair() > 0.5
    assert hits - np.exp(1.5) * alarms == pytest.approx(delta_of_the_pair(), abs=0.08)


@pytest.mark.usefixtures("one_stream")
def test_the_coupled_law_is_that_of_the_real_draws():
    """40,000 draws: every pair with a chance above 1 % is met as often as stated, within 6 deviations (1e-7 in all)."""
    law, size = attacks._coupled(*attacks.EPSILONS), 40_000
    key, place = fresh_key(), fresh_address("coupled")
    low, high = (
        discrete_laplace(KeyedStream(key, place), *laplace_scale(epsilon, 1), size) for epsilon in attacks.EPSILONS
    )
    often = np.argwhere(law > 0.01)
    assert len(often) > 10
    for x, y in often:
        met = np.mean((low == x - attacks._REACH) & (high == y - attacks._REACH))
        assert abs(met - law[x, y]) < 6 * np.sqrt(law[x, y] / size)


def test_a_fence_that_takes_any_offset_lets_two_owners_release(monkeypatch):
    def anywhere(tail, sent, sequence_of):
        return {append.sequence: append.expected_offset for append in sent}

    monkeypatch.setattr(journal, "settle", anywhere)
    found = attacked("two-owners", attacks.two_owners)
    assert not found.passed
    hits, alarms = found.hits
    assert hits > 0.85 * found.runs, "the mean of 16 draws is off by more than a half in one run of 14"
    assert alarms < 0.15 * found.runs


def test_reports_for_which_no_coin_was_thrown_lift_a_victim_over_the_threshold(monkeypatch):
    honest = p2b_release.bernoulli

    def at_the_edge(stream, units, size):
        coins = honest(stream, units, size)
        coins[: size - releases.CELLS] = True  # the adversary's slots come first, and throw none
        return coins

    monkeypatch.setattr(p2b_release, "bernoulli", at_the_edge)
    found = attacked("injected-reports", attacks.injected_reports)
    assert not found.passed
    assert found.hits[1] == 0


def test_a_public_metric_that_counts_content_shows_a_click(monkeypatch):
    exposed = tuple(
        replace(spec, metric_class="slot-public") if spec.name == "hushstream_events_total" else spec
        for spec in metrics.METRICS
    )
    monkeypatch.setattr(metrics, "METRICS", exposed)
    found = attacked("differenced-metrics", attacks.differenced_metrics)
    assert not found.passed
    assert found.hits == (found.runs, 0)
