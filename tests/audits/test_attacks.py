"""The attack on one cell at two epsilons, whose flaw no single line makes: the law that it weighs by, and its success.

Flaws that the other attacks find are in `tests/mutants/mutants.toml`.
"""

from dataclasses import replace

import numpy as np
import pytest

from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress, discrete_laplace, laplace_scale
from hushstream.replay.audits.catalogue import make_audit
from hushstream.replay.audits.recordings import fresh_address, fresh_key
from hushstream.replay.studies.p2b import audits


@pytest.fixture
def one_stream(monkeypatch):
    """Noise streams whose words depend on nothing that an epsilon changes."""
    words, encode = KeyedStream.words, NoiseAddress.encode
    monkeypatch.setattr(NoiseAddress, "encode", lambda self: encode(replace(self, parameters={}, config_digest=b"any")))
    monkeypatch.setattr(KeyedStream, "words", lambda self, count, *label: words(self, count))


def delta_of_the_pair():
    """Exact delta at epsilon 1.5 of one cell released at .5 and 1 from the same words."""
    law = audits._coupled(*audits.EPSILONS)
    assert law.sum() == pytest.approx(1, abs=1e-12)
    moved = np.zeros_like(law)
    moved[1:, 1:] = law[:-1, :-1]
    return np.maximum(moved - np.exp(1.5) * law, 0).sum()


@pytest.mark.usefixtures("one_stream")
def test_a_stream_that_ignores_epsilon_gives_the_cell_away():
    """The delta met is the exact one within 0.08: six deviations of 2,000 hits and of e^1.5 times the alarms."""
    found = audits.two_epsilons()(make_audit("two-epsilons").runs, 1e-6)
    assert not found.passed
    hits, alarms = np.array(found.hits) / found.runs
    assert delta_of_the_pair() > 0.5
    assert hits - np.exp(1.5) * alarms == pytest.approx(delta_of_the_pair(), abs=0.08)


@pytest.mark.usefixtures("one_stream")
def test_the_coupled_law_is_that_of_the_real_draws():
    """40,000 draws: every pair with a chance above 1 % is met as often as stated, within 6 deviations (1e-7 in all)."""
    law, size = audits._coupled(*audits.EPSILONS), 40_000
    key, place = fresh_key(), fresh_address("coupled")
    low, high = (
        discrete_laplace(KeyedStream(key, place), *laplace_scale(epsilon, 1), size) for epsilon in audits.EPSILONS
    )
    often = np.argwhere(law > 0.01)
    assert len(often) > 10
    for x, y in often:
        met = np.mean((low == x - audits._REACH) & (high == y - audits._REACH))
        assert abs(met - law[x, y]) < 6 * np.sqrt(law[x, y] / size)
