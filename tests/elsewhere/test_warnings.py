"""A warning of our own code or of a test is a failure."""

from __future__ import annotations

import warnings

import pytest


@pytest.mark.parametrize("module", ["hushstream.agents.partition.driver", "hushstream.replay.runners.stream", __name__])
def test_a_warning_of_ours_is_raised(module: str) -> None:
    with pytest.raises(RuntimeWarning, match="overflow"):
        warnings.warn_explicit("overflow", RuntimeWarning, "file.py", 1, module)


def test_a_warning_of_a_library_is_shown() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.warn_explicit("old", DeprecationWarning, "file.py", 1, "library.module")
    assert [str(warning.message) for warning in shown] == ["old"]
