from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pytest

from hushstream.counting import calibration
from hushstream.systems import p2b_release


@pytest.fixture(autouse=True, scope="session")
def _variances_once() -> Iterator[None]:
    """Compute the variance of a scale once: thousands of releases repeat it, at milliseconds each."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (calibration, p2b_release):
            patch.setattr(module, "laplace_variance", lru_cache(module.laplace_variance))
        yield
