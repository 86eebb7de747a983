"""Mutation testing: one line of the product is broken, and what is named for it must fail.

`mutants.toml` is the list. Each mutant is written into a scratch copy of the repository; what it names is run there,
unbroken first (it must pass) and broken (it must fail by its own verdict: a crash is no answer). Exit 1 if a mutant
survives, or if a line of the list no longer fits the code.

    python tests/mutants/run.py                     the whole list
    python tests/mutants/run.py --share 12 --of ID  twelve of it, others for each ID (a commit)
    python tests/mutants/run.py NAME ...            some
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")
SOURCES = ("pipeline", "schemas", "agents", "replay")
TESTS_FAILED = 1
"""Of pytest: some tests ran and failed. Other codes say that none ran."""
TIMEOUT_SECONDS = 300
_JOBS = 2
_TICKS = count(1_000_000_000)
"""Times of mutated files: each another, so that no compiled file of an earlier text is taken for it."""


class BadMutant(Exception):
    """A line of the list does not fit the code, or is not a mutant."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one line.

    Attributes:
        name: of the mutant.
        file: that is changed, from the root of the repository.
        old: what stands there, exactly once.
        new: what is put in its place.
        by: what must fail: ``audit NAME``, or the id of a test.
    """

    name: str
    file: str
    old: str
    new: str
    by: str

    def applied(self, text: str) -> str:
        """The file's text with the change.

        Raises:
            BadMutant: the old text does not stand there exactly once, or nothing would change.
        """
        found = text.count(self.old)
        if found != 1 or self.old == self.new:
            raise BadMutant(
                f"{self.name}: expected {self.old!r} once in {self.file}, to be changed, got it {found} times"
            )
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant: ``caught``, ``SURVIVED``, or why it could not be tried."""

    mutant: Mutant
    verdict: str
    seconds: float

    @property
    def caught(self) -> bool:
        """Whether what was named failed."""
        return self.verdict == "caught"


def read_list(path: Path = LIST) -> list[Mutant]:
    """The mutants by name.

    Raises:
        BadMutant: a line has other keys than expected, or names nothing that must fail.
    """
    mutants = []
    for name, fields in tomllib.loads(path.read_text(encoding="utf-8")).items():
        if not isinstance(fields, dict) or set(fields) != {"file", "old", "new", "by"}:
            raise BadMutant(f"{name}: expected file, old, new and by, got {fields}")
        if not fields["by"].startswith(("audit ", "tests/")):
            raise BadMutant(f"{name}: expected by to be an audit's name or a test's id, got {fields['by']!r}")
        mutants.append(Mutant(name, **fields))
    return mutants


def chosen(mutants: Sequence[Mutant], names: Sequence[str], share: int | None, of: str) -> list[Mutant]:
    """The named mutants, or so many of all: others for each ``of``, the same whenever it is the same.

    Raises:
        BadMutant: an unknown name.
    """
    unknown = set(names) - {mutant.name for mutant in mutants}
    if unknown:
        raise BadMutant(f"expected names of the list, got {', '.join(sorted(unknown))}")
    if names:
        return [mutant for mutant in mutants if mutant.name in names]
    if share is None:
        return list(mutants)
    drawn = sorted(mutants, key=lambda mutant: hashlib.sha256(f"{of} {mutant.name}".encode()).digest())[:share]
    return [mutant for mutant in mutants if mutant in drawn]


class Scratch:
    """A copy of the repository in which files may be broken."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        """Copy what is tracked, and what is new and not ignored."""
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            check=True,
            capture_output=True,
        )
        for name in sorted(set(filter(None, listed.stdout.decode().split("\0")))):
            if (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)

    @contextmanager
    def broken(self, mutant: Mutant) -> Iterator[None]:
        """While this lasts the mutant stands in its file.

        Raises:
            BadMutant: see `Mutant.applied`.
        """
        path = self.folder / mutant.file
        if not path.is_file():
            raise BadMutant(f"{mutant.name}: expected a file {mutant.file}, got none")
        text = path.read_text(encoding="utf-8")
        self._write(path, mutant.applied(text))
        try:
            yield
        finally:
            self._write(path, text)

    def fails(self, by: str) -> bool:
        """Whether what is named fails here by its own verdict.

        Raises:
            BadMutant: it did not run to a verdict.
        """
        return self._audit_fails(by.removeprefix("audit ")) if by.startswith("audit ") else self._test_fails(by)

    def _audit_fails(self, name: str) -> bool:
        done = self._run("hushstream.cli", "audit", "--only", name, "--quick", "--json")
        try:
            return not json.loads(done.stdout)["passed"]
        except (ValueError, KeyError):
            raise BadMutant(f"audit {name}: expected a verdict, got\n{_tail(done)}") from None

    def _test_fails(self, name: str) -> bool:
        done = self._run("pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", name)
        if done.returncode not in (0, TESTS_FAILED):
            raise BadMutant(f"{name}: expected tests to run, got\n{_tail(done)}")
        return done.returncode == TESTS_FAILED

    def _run(self, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [sys.executable, "-m", module, *arguments],
                cwd=self.folder,
                env=_environment(self.folder),
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
                encoding="utf-8",
            )
        except subprocess.TimeoutExpired:
            raise BadMutant(f"{module} {arguments[-1]}: expected an end within {TIMEOUT_SECONDS} s") from None

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        tick = next(_TICKS)
        os.utime(path, (tick, tick))


def _environment(folder: Path) -> Mapping[str, str]:
    """Imports come from the copy, before whatever is installed."""
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "PYTHONPATH": os.pathsep.join(str(folder / source) for source in SOURCES),
        "OPENBLAS_NUM_THREADS": "1",
    }


def _tail(done: subprocess.CompletedProcess[str]) -> str:
    return "\n".join((done.stdout + done.stderr).splitlines()[-15:])


class Trial:
    """Tries mutants, each in a copy that nobody else uses meanwhile."""

    def __init__(self, copies: Sequence[Scratch]) -> None:
        """Share out some copies."""
        self._free: SimpleQueue[Scratch] = SimpleQueue()
        for scratch in copies:
            self._free.put(scratch)
        self._asked = Lock()
        self._unsound: dict[str, Future[str]] = {}

    def attempt(self, mutant: Mutant) -> Outcome:
        """Run unbroken, once for each name; break, run, mend."""
        begun = time.monotonic()
        with self._copy() as scratch:
            try:
                verdict = self._distrust(scratch, mutant.by) or self._broken(scratch, mutant)
            except BadMutant as error:
                verdict = str(error)
        return Outcome(mutant, verdict, time.monotonic() - begun)

    def _broken(self, scratch: Scratch, mutant: Mutant) -> str:
        with scratch.broken(mutant):
            return "caught" if scratch.fails(mutant.by) else "SURVIVED"

    def _distrust(self, scratch: Scratch, by: str) -> str:
        """Why what is named must not be trusted: it fails on the product, or does not run. Else empty."""
        with self._asked:
            first = by not in self._unsound
            found = self._unsound.setdefault(by, Future())
        if first:
            try:
                found.set_result("fails on the product" if scratch.fails(by) else "")
            except BadMutant as error:
                found.set_result(str(error))
        return found.result()

    @contextmanager
    def _copy(self) -> Iterator[Scratch]:
        scratch = self._free.get()
        try:
            yield scratch
        finally:
            self._free.put(scratch)


def try_all(mutants: Sequence[Mutant], folder: Path, jobs: int = _JOBS, root: Path = ROOT) -> Iterator[Outcome]:
    """Whether each mutant is caught by what it names."""
    trial = Trial([Scratch(folder / str(number), root) for number in range(jobs)])
    with ThreadPoolExecutor(jobs) as workers:
        yield from workers.map(trial.attempt, mutants)


def report(outcomes: Sequence[Outcome]) -> str:
    """The table: mutant, what caught it, seconds."""
    wide = max(len(outcome.mutant.name) for outcome in outcomes)
    lines = [f"{'mutant':{wide}}  seconds  caught by"]
    for outcome in outcomes:
        told = outcome.mutant.by if outcome.caught else f"*** {outcome.verdict} *** ({outcome.mutant.by})"
        lines.append(f"{outcome.mutant.name:{wide}}  {outcome.seconds:7.1f}  {told}")
    caught = sum(outcome.caught for outcome in outcomes)
    return "\n".join([*lines, f"{caught} of {len(outcomes)} mutants are caught."])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the list or a part of it; 0 if all are caught."""
    parser = argparse.ArgumentParser(description="Break the product line by line; what is named must fail.")
    parser.add_argument("names", nargs="*", help="mutants; all if none is named")
    parser.add_argument("--share", type=int, help="only so many of all")
    parser.add_argument("--of", default="", help="which share: another for each text, such as a commit")
    parser.add_argument("--list", type=Path, default=LIST, help="another list")
    parser.add_argument("--root", type=Path, default=ROOT, help="another repository")
    given = parser.parse_args(arguments)
    try:
        mutants = chosen(read_list(given.list), given.names, given.share, given.of)
    except BadMutant as error:
        print(error, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        outcomes = []
        for outcome in try_all(mutants, Path(folder), root=given.root):
            outcomes.append(outcome)
            print(
                f"{len(outcomes)}/{len(mutants)} {outcome.mutant.name}: {outcome.verdict}", file=sys.stderr, flush=True
            )
    print(report(outcomes))
    return 0 if all(outcome.caught for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
