"""1,000 devices through a gateway, beside the same users hosted (`make bench-edge`)."""

from __future__ import annotations

import pytest

from hushstream.replay.studies.p2b.bench import AS_GOOD, Found, measure


@pytest.mark.process
@pytest.mark.timeout(600)
def test_a_thousand_devices_teach_a_model_as_good_as_the_hosted_one_and_all_that_is_published_follows() -> None:
    """At epsilon 8, with the users' keys given: what differs is noise, of some .001. Cold users click half as often."""
    found = measure(1000, 2000, 0)
    print(found.as_text())
    assert (found.devices, found.verify) == (1000, 0)
    assert abs(found.warm - found.hosted) <= AS_GOOD
    assert found.warm > found.cold + 0.15
    assert found.is_as_good


@pytest.mark.parametrize(
    ("warm", "verify", "is_as_good"), [(0.496, 0, True), (0.6, 0, True), (0.494, 0, False), (0.6, 1, False)]
)
def test_devices_are_as_good_where_they_lose_no_more_than_that_and_everything_follows(
    warm: float, verify: int, is_as_good: bool
) -> None:
    assert Found(10, 1.0, verify, 0.2, warm, 0.5).is_as_good is is_as_good
