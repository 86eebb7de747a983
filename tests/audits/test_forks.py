"""What every role that draws noise keeps to: other ids or contents have other noise, the same have the same.

The forks are those of the table of audits, so a role without one fails here.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy import stats

from every_audit import all_audits
from hushstream.privacy.audits import surprise_limit
from hushstream.replay.audits.catalogue import audit_names, make_audit
from hushstream.replay.audits.recordings import AS_IT_WAS, BRANCHES, fresh_nonce
from hushstream.replay.audits.row import PLACES_RUNS
from hushstream.replay.audits.tests import ForkTest, requesting_epoch
from hushstream.systems.catalogue import kinds

FORKS = tuple(name for name in audit_names() if name.startswith("forked-"))
SAME = 0.5
"""Independent noise of one place agrees with at most this probability: that of a lattice of one step at epsilon 1."""


@cache
def fork_of(name):
    fork = make_audit(name).test
    assert isinstance(fork, ForkTest)
    return fork


AHEAD = ("forked-counted-windows", "forked-lift", "forked-node-negative-digit")
"""Protected by a suspected rollback alone."""


@pytest.fixture(scope="module", params=FORKS)
def fork(request):
    return request.param, fork_of(request.param)


def test_the_same_ids_and_contents_have_the_same_noise(fork):
    _, one = fork
    nonce = fresh_nonce()
    assert np.array_equal(one.play(AS_IT_WAS, nonce), one.play(AS_IT_WAS, nonce))


def test_other_ids_or_contents_have_other_noise(fork):
    """At least 100 numbers of two branches, of which less than two in three agree.

    Of independent draws at most half agree: more than 66 of 100 do by chance with probability 4e-4 at the coarsest
    lattice, and for the default noise of most rows never; three journals must all do so, so below 1e-10.
    """
    _, one = fork
    assert stats.binom.sf(66, 100, SAME) ** 3 < 1e-9
    for other in BRANCHES[1:]:
        assert any(_agreed(one, other) <= 0.66 for _ in range(3))


def _agreed(fork, other):
    """How much of the noise of two branches is the same."""
    same = []
    while sum(map(len, same)) < 100:
        nonce = fresh_nonce()
        here, there = fork.play(AS_IT_WAS, nonce), fork.play(requesting_epoch(other), nonce)
        same.append((here == there).ravel())
    return np.concatenate(same).mean()


@pytest.mark.parametrize(
    "name", [name for name in FORKS if name not in (*AHEAD, "forked-counters", "forked-edge-counters")]
)
def test_noise_that_is_named_by_ids_and_contents_needs_no_suspected_rollback(name):
    """The other branches of the audit each request an epoch. That changes nothing here: the names keep noise apart."""
    one = fork_of(name)
    for branch in BRANCHES[1:]:
        nonce = fresh_nonce()
        assert np.array_equal(one.play(branch, nonce), one.play(requesting_epoch(branch), nonce))


def test_two_branches_that_share_noise_are_found():
    """With probability above 1 - 1e-6: signs agree wherever there is one, on the coarsest lattice in one of two."""
    agreed = int(stats.binom.ppf(1e-6, PLACES_RUNS, 1 - SAME))
    places = len(BRANCHES) * 10
    assert agreed / 2 > surprise_limit(places, 1e-6)


def test_a_fork_that_meets_its_noise_again_fails_its_audit():
    honest = fork_of("forked-windows")
    blind = replace(honest, play=lambda branch, nonce: honest.play(AS_IT_WAS, nonce))
    found = blind(PLACES_RUNS, 1e-6)
    assert not found.passed
    assert "branch" in found.structure
    assert "share noise" in found.structure


def test_every_fork_is_among_them():
    forks = {audit.name for audit in all_audits() if isinstance(audit.test, ForkTest)}
    assert forks == set(FORKS)


@pytest.mark.parametrize("kind", kinds().values(), ids=lambda kind: kind.name)
def test_every_role_that_releases_with_noise_has_a_fork(kind):
    """Whoever enters charges into a ledger."""
    drawing = {role.name for role in kind.roles if any(topic.startswith("ledger") for topic in role.writes)}
    assert drawing
    assert {(kind.name, role) for role in drawing} == {
        (fork.system, fork.role) for fork in map(fork_of, FORKS) if fork.system == kind.name
    }
