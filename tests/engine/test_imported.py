"""Declarations name functions that are imported when they are called: no name may lead nowhere."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from hushstream import systems
from hushstream.engine.declare import imported

NAMES = sorted(
    (module, attribute)
    for folder in systems.__path__
    for module in (f"hushstream.systems.{path.parent.name}.system" for path in Path(folder).glob("*/system.py"))
    for attribute, value in vars(import_module(module)).items()
    if isinstance(value, partial) and value.func is imported.call_imported
)


def test_declarations_name_functions_in_this_way() -> None:
    assert NAMES


@pytest.mark.parametrize(("module", "attribute"), NAMES, ids=lambda part: str(part).removeprefix("hushstream."))
def test_what_a_declaration_names_is_there(module: str, attribute: str) -> None:
    named: Any = getattr(import_module(module), attribute)
    package, place, function = named.args
    assert callable(getattr(import_module(f"{package}.{place}"), function))
