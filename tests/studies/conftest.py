"""What studies of several systems need."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def data_dir() -> str:
    """The user's folder of real datasets."""
    folder = os.environ.get("HUSHSTREAM_DATA")
    if not folder:
        pytest.skip("HUSHSTREAM_DATA is not set: no folder with the real datasets")
    return folder
