"""Addressed random numbers: the published generator, whatever the order and the cut."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.replay.worlds.draws import Draws, philox_blocks

# Known answers of philox4x32-10 from the Random123 distribution: counter, key, result.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_blocks_are_those_of_the_published_generator(counter, key, answer):
    words = philox_blocks(np.array(counter, dtype=np.uint64)[:, None], key)
    assert tuple(int(word) for word in words[:, 0]) == answer


def test_a_draw_depends_only_on_its_address():
    draws = Draws(3, "contexts")
    users = np.arange(30_000)
    whole = draws.uniforms(users, 4, 5)
    shuffled = np.random.default_rng(0).permutation(users)
    assert np.array_equal(draws.uniforms(shuffled, 4, 5), whole[shuffled])
    assert np.array_equal(draws.uniforms(np.array([29_999]), 4, 5)[0], whole[29_999])
    assert np.array_equal(draws.uniforms(users[:7], 4, 2), whole[:7, :2])


def test_another_seed_purpose_user_round_or_lane_gives_other_numbers():
    users = np.arange(50)
    base = Draws(3, "a").uniforms(users, 4, 2)
    others = [
        Draws(4, "a").uniforms(users, 4, 2),
        Draws(3, "b").uniforms(users, 4, 2),
        Draws(3, "a").uniforms(users + 50, 4, 2),
        Draws(3, "a").uniforms(users, 5, 2),
        Draws(3, "a").uniforms(users, 4, 2, np.ones(50, dtype=np.int64)),
    ]
    for other in others:
        assert not np.isin(other, base).any()


def test_uniforms_and_normals_have_their_moments():
    # Fixed seed; each bound is 5 standard errors of the mean of 200,000 draws (false alarm 6e-7 each, if the
    # seed were new); a mean off by 2 % of the deviation would be seen with probability above .999.
    users = np.arange(200_000)
    uniforms = Draws(1, "u").uniforms(users, 0, 1)[:, 0]
    normals = Draws(1, "n").normals(users, 0)
    root = np.sqrt(users.size)
    assert abs(uniforms.mean() - 0.5) < 5 * np.sqrt(1 / 12) / root
    assert abs((uniforms**2).mean() - 1 / 3) < 5 * np.sqrt(4 / 45) / root
    assert abs(normals.mean()) < 5 / root
    assert abs((normals**2).mean() - 1.0) < 5 * np.sqrt(2) / root
    assert uniforms.min() >= 0.0
    assert uniforms.max() < 1.0
