"""Systems of other packages: found as installed ones are, by their entry points on the module path."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hushstream.engine.declare.declaration import Kind
from hushstream.replay.study import studies
from hushstream.schemas import codec
from hushstream.schemas.catalogue import CATALOGUE
from hushstream.systems.catalogue import _offered, kind_of, kinds

ENGINE = Path(__file__).parents[1] / "engine"
MEANARM = ENGINE / "meanarm" / "package"
RRARM = ENGINE / "rrarm" / "package"


@contextmanager
def offered(package: Path, name: str) -> Iterator[Kind]:
    """The system that a package offers.

    What the process knows of systems and records is put back afterwards: other tests look at those of the product.
    """
    tables: Any = (CATALOGUE, codec._BY_NAME, codec._BY_HEADER)
    known = [dict(table) for table in tables]
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(package))
            _forget_catalogue()
            yield kind_of(name)
    finally:
        for table, before in zip(tables, known, strict=True):
            table.clear()
            table.update(before)
        offering = {path.name for path in package.iterdir()}
        for module in [module for module in sys.modules if module.partition(".")[0] in offering]:
            del sys.modules[module]
        _forget_catalogue()


def _forget_catalogue() -> None:
    importlib.invalidate_caches()
    _offered.cache_clear()
    kinds.cache_clear()
    _offered.cache_clear()
    studies.cache_clear()
