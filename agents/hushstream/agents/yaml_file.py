"""Reads a YAML file of settings: plain values, each key once. Errors repeat nothing of the file's content."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from hushstream.engine.values import ConfigurationError

KeyLines: TypeAlias = dict[tuple[str, ...], int]
"""The line number of each key; a key is the names of its sections, then its own."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the keys and values of a file.

    Raises:
        ConfigurationError: the file is missing, unreadable, not YAML, nested too deep, or has a key twice.
    """
    return read_yaml_lines(path)[0]


def read_yaml_lines(path: Path) -> tuple[dict[str, Any], KeyLines]:
    """Read the keys and values of a file, and the line of each key; raises as `read_yaml` does."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        # The loader derives from yaml's safe loader, so it builds plain values only.
        loader = _EachKeyOnce(text)
        tree = loader.get_single_node()
        # Before values are made: a merge (`<<`) is resolved then, and its keys would get the lines of what it names.
        lines = dict(_lines(tree, ()))
        values = None if tree is None else loader.construct_document(tree)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigurationError(f"{path}: expected a configuration file, got none") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}"
        wanted = str(error.problem) if isinstance(error, _BadKey) else f"YAML, got something else{_said(error)}"
        raise ConfigurationError(f"{path}{where}: expected {wanted}") from None
    except RecursionError:
        raise ConfigurationError(
            f"{path}: expected sections of a few levels, got hundreds, or an alias (*) of the section that it is in"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: expected readable UTF-8, got other bytes") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: expected a readable file, got: {error.strerror}") from None
    if not isinstance(values, dict):
        got = "nothing" if values is None else "a list" if isinstance(values, list) else "one value"
        raise ConfigurationError(f"{path}: expected keys and values, got {got}")
    return values, lines


_OF_YAML = re.compile(r"'(?:<[a-z ]+>|\\t|[^\w\s'\"])'")


def _said(error: yaml.YAMLError) -> str:
    """What the parser found and where it began, unless that repeats more of the file than a sign of YAML.

    It may be a piece of a secret: a password that begins with * is read as an alias.
    """
    began, parts = getattr(error, "context_mark", None), [getattr(error, name, None) for name in ("context", "problem")]
    if began is not None and parts[0] is not None:
        parts[0] += f" from line {began.line + 1} on"
    text = ", ".join(str(part) for part in parts if part is not None)
    return f": {text}" if text and not set("'\"") & set(_OF_YAML.sub("", text)) else ""


def _lines(node: yaml.Node | None, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = (*above, str(key.value))
            yield place, key.start_mark.line + 1
            yield from _lines(value, place)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            place = (*above, str(number))
            yield place, value.start_mark.line + 1
            yield from _lines(value, place)


class _BadKey(yaml.constructor.ConstructorError):
    """A key occurs twice in one mapping, or is no text; ``problem`` says what was expected, and what came."""


_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


class _EachKeyOnce(yaml.SafeLoader):
    """Loads YAML as its specification says: a key that occurs twice is an error; the last value does not win.

    So is a key that YAML reads as a number, a date, a boolean or null: a feature ``on``, ``2020`` or ``~`` has to stand
    in quotes.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build one mapping."""
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag not in (_TEXT, _MERGE):
                kind = key.tag.rpartition(":")[2]
                problem = f"keys that are texts, got one that YAML reads as {kind}: put it into quotes"
                raise _BadKey(problem=problem, problem_mark=key.start_mark)
            if key.value in seen:
                raise _BadKey(problem="YAML with each key once, got a key twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)
