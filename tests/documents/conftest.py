"""What the site's own scripts say of the pages."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SITE = Path(__file__).parents[2] / "deploy" / "docs" / "site"


def site_module(name: str) -> ModuleType:
    """A script of the site, as a module; other folders have scripts of the same names."""
    own = f"hushstream_site_{name}"
    if own not in sys.modules:
        spec = importlib.util.spec_from_file_location(own, SITE / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[own] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[own])
    return sys.modules[own]


@pytest.fixture(scope="session")
def blocks() -> ModuleType:
    """Reads the blocks of pages."""
    return site_module("blocks")
