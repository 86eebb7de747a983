"""What the site's own scripts say of the pages."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from modules import module_at

SITE = Path(__file__).parents[2] / "deploy" / "docs" / "site"


def site_module(name: str) -> ModuleType:
    """A script of the site, as a module; other folders have scripts of the same names."""
    return module_at(SITE / f"{name}.py", f"hushstream_site_{name}")


@pytest.fixture(scope="session")
def blocks() -> ModuleType:
    """Reads the blocks of pages."""
    return site_module("blocks")
