"""The files under ``deploy/``, and the scripts that write some of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def deploy() -> Path:
    """The folder of everything that is deployed."""
    return ROOT / "deploy"


@pytest.fixture(scope="session")
def documents() -> Callable[[Path], list[Any]]:
    """Every document of a YAML file."""
    return lambda path: list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


@pytest.fixture(scope="session")
def script() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script of the repository as an operator does."""

    def run(path: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(path), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, encoding="utf-8")

    return run
