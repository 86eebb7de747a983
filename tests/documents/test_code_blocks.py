"""Every code block of a page runs, loads or parses; one that does not says why, and the reason is printed.

Steps of stories (the tutorials) are parsed here, and run as they stand by `make stories`.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from command_line import parse
from hushstream.agents.security import Security
from hushstream.agents.worker.deployment import parse_config, read_config
from hushstream.agents.yaml_file import read_yaml
from hushstream.gateway.settings import GatewaySettings
from hushstream.replay.logged.mapping import table_mapping
from hushstream.replay.studies.pdap.own import vendor_mapping

from .conftest import site_module

ROOT = Path(__file__).parents[2]
BLOCKS = site_module("blocks").all_blocks()
MENTIONS = ("text", "mermaid")
"""Languages of what is looked at alone: output, drawings."""

_WORDS = {"cat", "curl", "done", "echo", "export", "for", "grep", "sleep", "test", "true"}
_STANDS_FOR = {"$B": "kafka:9092", "ROLE": "learner"}
"""What pages write for something of the reader's own, where an option would refuse those letters."""

_ENDS = {";", "&&", "||", "|", "&", "do", "then", "else", "until", "if", "while"}
_INNER = re.compile(r"\$\(([^()]*)\)")
_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def commands_of(code: str) -> Iterator[list[str]]:
    """The simple commands of a shell block, without assignments before them."""
    for line in code.replace("\\\n", " ").splitlines():
        text = re.sub(r"(^|\s)#.*", "", line)
        for inner in _INNER.findall(text):
            yield from commands_of(inner)
        lexer = shlex.shlex(_INNER.sub("inner", text), posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split, lexer.commenters = True, ""
        found: list[str] = []
        for word in [*lexer, ";"]:
            if word in _ENDS:
                if found:
                    yield found
                found = []
            elif found or not re.match(r"\w+=", word):
                found.append(word)


def check_command(words: list[str], files: set[str]) -> None:
    """Refuse a command of ours that would not be taken, and one that this test cannot look at."""
    words = words[: next((at for at, word in enumerate(words) if word[0] in "<>"), len(words))]
    program, *arguments = words
    if program == "hushstream":
        parse([_STANDS_FOR.get(word, word) for word in arguments])
    elif program == "make":
        assert set(arguments) <= _TARGETS, f"expected targets of the Makefile, got {arguments}"
    elif program in ("python", ".venv/bin/python") and arguments[0] != "-c":
        assert arguments[0] in files or (ROOT / arguments[0]).is_file(), f"expected a script, got {arguments[0]}"
    elif program == "pip":
        locks = [name for flag, name in pairwise(arguments) if flag == "-r"]
        assert all((ROOT / name).is_file() for name in locks), locks
    else:
        assert program in _WORDS | {"python"}, f"expected a command that can be checked, or `not run: why`: {words}"


def check_shell(code: str, files: set[str]) -> None:
    """`check_command` for all of a block."""
    for words in commands_of(code):
        check_command(words, files)


def ours(code: str) -> Iterator[list[str]]:
    """Commands of ours in a block that is not run: on their own, or as a container's entry point."""
    for line in code.replace("\\\n", " ").splitlines():
        for found in re.findall(r"(?:^|&& )hushstream ([^#&|>]*)", line):
            yield shlex.split(found)
        for found in re.findall(r"--entrypoint hushstream \S+ ([^#&|>]*)", line):
            yield shlex.split(found)


SHELL = [block for block in BLOCKS if block.language == "sh"]


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_the_command_line_takes_every_command(block: Any) -> None:
    if block.reason is not None:
        for arguments in ours(block.code):
            parse(arguments)
        pytest.skip(block.reason)
    files = {other.file for other in BLOCKS if other.page == block.page and other.file}
    check_shell(block.code, files)


def test_our_commands_are_found_in_blocks_that_are_not_run() -> None:
    page = "deploy/kubernetes/README.md"
    found = {command[0] for block in SHELL if block.page == page for command in ours(block.code)}
    assert found >= {"prepare", "keys", "topics"}


PYTHON = {
    page: [block for block in found if block.language == "python"]
    for page, found in groupby(BLOCKS, lambda block: block.page)
}


@pytest.mark.parametrize("page", [page for page, found in PYTHON.items() if found])
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in PYTHON[page]:
        code = "\n" * (block.line - 1) + block.code
        compiled = compile(ast.parse(code, str(ROOT / page)), str(ROOT / page), "exec")
        if block.reason is not None:
            print(f"{block}: compiled alone: {block.reason}")
        elif not block.is_story:
            exec(compiled, names)


def _gateway(values: Any, source: str) -> GatewaySettings:
    return GatewaySettings(**values)


LOADERS = {
    "deployment": parse_config,
    "vendor": lambda values, _: vendor_mapping(values),
    "arm": lambda values, _: table_mapping(values),
    "tokens_file": _gateway,
    "devices": _gateway,
}
"""By a key that only such a file has, or has before those that follow."""


def load_yaml(values: Any, source: str) -> None:
    """Read values as that configuration does which they are of."""
    for key, load in LOADERS.items():
        if key in values:
            load(values, source)
            return
    Security(**values)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "yaml"], ids=str)
def test_its_configuration_loads_what_is_yaml(block: Any, tmp_path: Path) -> None:
    if block.reason is not None:
        assert yaml.safe_load(block.code)
        pytest.skip(block.reason)
    path = tmp_path / "block.yaml"
    path.write_text(block.code, encoding="utf-8")
    load_yaml(read_yaml(path), str(block))


def test_no_page_has_a_copy_of_a_configuration_that_ships() -> None:
    """Pages of systems include these files as they are; a copy would grow old."""
    heads = {path.read_text(encoding="utf-8").splitlines()[0] for path in (ROOT / "deploy" / "examples").glob("*.yaml")}
    assert not [block for block in BLOCKS if block.code.partition("\n")[0] in heads]


@pytest.mark.parametrize("path", sorted((ROOT / "deploy" / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_a_configuration(path: Path) -> None:
    assert read_config(path).deployment == path.stem


def test_every_block_is_of_a_language_that_is_tested() -> None:
    assert {block.language for block in BLOCKS} <= {"sh", "python", "yaml", "js", *MENTIONS}
    # tests/gateway/test_typescript.py, test_typescript_edge.py, test_demo.py and tests/replay/test_up.py run them.
    assert {block.page for block in BLOCKS if block.language == "js"} == {
        "README.md",
        "deploy/clients/typescript/README.md",
        "deploy/clients/typescript/edge/README.md",
        "deploy/docs/tutorials/demo.md",
    }
    assert {block.page for block in BLOCKS if block.is_story} == {
        "deploy/docs/tutorials/afternoon.md",
        "deploy/docs/tutorials/demo.md",
    }


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("hushstream worker learner --deployment x --metrics-prot 1", "No such option"),
        ("for role in a; do hushstream verfy --deployment $D; done  # all", "verfy"),
        ("make nothing", "targets of the Makefile"),
        ("kubectl apply -k my | cat", "not run: why"),
        ("python deploy/none.py", "expected a script"),
        ("export x=$(hushstream budget --bootstrapp b)", "No such option"),
    ],
)
def test_a_command_that_is_not_there_would_be_found(code: str, why: str) -> None:
    with pytest.raises(Exception, match=why):
        check_shell(code, set())


def test_a_block_without_a_language_or_with_an_unknown_mark_is_refused(blocks: Any) -> None:
    fence = "```"
    with pytest.raises(blocks.BlockError, match="expected a language"):
        list(blocks.blocks_of("page.md", f"{fence}\nls\n{fence}\n"))
    with pytest.raises(blocks.BlockError, match="expected `not run"):
        list(blocks.blocks_of("page.md", f"<!-- later -->\n{fence}sh\nls\n{fence}\n"))
    marked = f"<!-- not run: no ls -->\n{fence}sh\nls\n{fence}\n"
    (found,) = blocks.blocks_of("page.md", marked)
    assert (found.reason, found.line, found.code) == ("no ls", 3, "ls\n")
