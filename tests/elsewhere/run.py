"""The suite in other surroundings than those in which it was written: other clocks, locales, users, paths, Pythons.

Each surrounding is real: the kernel shifts the clocks that count from the start of the machine, libfaketime the wall
clock, another user is another user. Before the tests run, a probe runs in the surrounding and must find it as it is
meant to be. A surrounding whose means are missing on this machine is named with what is missing, and left out.

    python tests/elsewhere/run.py                        the whole suite in every surrounding (hours)
    python tests/elsewhere/run.py --share 9 --of ID      nine files in four surroundings that ID (a commit) draws
    python tests/elsewhere/run.py --only locale umask    these surroundings
    python tests/elsewhere/run.py --tests tests/agents   these tests

It ends with a line for each surrounding: how many tests passed, failed and were skipped. Exit 1 if one failed, or if
nothing ran.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
SOURCES = ("pipeline", "schemas", "agents", "replay")
DAY = 86400
JOBS = 2
PLACES = 4
"""Surroundings in a share."""

NO_TESTS = 5
"""Of pytest: nothing was collected, as where all tests of a file are slow."""

NOBODY = 65534
FAKETIME = "/usr/lib/*/faketime/libfaketimeMT.so.1"
SLEEP = Path(__file__).with_name("sleep.c")
LEAP_DAY = datetime(2028, 2, 29, 23, 58, tzinfo=UTC)
"""The day after is reached while the tests run."""


@dataclass(frozen=True, slots=True)
class Surrounding:
    """Where tests run.

    Attributes:
        name: as it is asked for and printed.
        what: it is, in words.
        needs: commands that must be there.
        command: what is put before a command to run it there.
        environ: variables that are set there; an empty one is unset.
        probe: Python that fails unless the surrounding is what it is meant to be.
        missing: why it cannot be had here, by a look at the machine; empty if it can.
        folder: in which a copy of the checkout is made, in a temporary folder; empty for the checkout itself.
        owner: of that copy.
        umask: of all that runs there.
        runs: at the same time.
        python: the interpreter, for one that is not ours.
        preload: a source in C, compiled and loaded before the other libraries of ``LD_PRELOAD``.
    """

    name: str
    what: str
    probe: str
    needs: Sequence[str] = ()
    command: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    missing: Callable[[], str] = str
    folder: str = ""
    owner: int | None = None
    umask: int | None = None
    runs: int = 1
    python: str = sys.executable
    preload: Path | None = None


@dataclass(slots=True)
class Result:
    """What came of the tests in a surrounding; ``why`` it was left out, if it was."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    why: str = ""

    def add(self, report: Path) -> None:
        """Count what a JUnit report holds."""
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            tests, skipped = int(suite.attrib["tests"]), int(suite.attrib["skipped"])
            failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
            self.passed += tests - failed - skipped
            self.failed += failed
            self.skipped += skipped


def uptime(name: str, seconds: int, what: str) -> Surrounding:
    """A machine that has been up for so long: a time namespace of the kernel, for every clock but that on the wall."""
    offset = str(round(seconds - time.monotonic()))
    return Surrounding(
        name, f"{what} after the machine was started",
        f"import time; assert abs(time.monotonic() - {seconds}) < 60, time.monotonic()",
        ("unshare",), ("unshare", "--time", "--fork", f"--monotonic={offset}", f"--boottime={offset}", "--"),
    )  # fmt: skip


def wall_clock(name: str, then: datetime, what: str) -> Surrounding:
    """Another wall clock, the same in all processes; what counts seconds since the start goes on as it did."""
    offset = round(then.timestamp() - time.time())
    library = next((str(path) for path in sorted(Path("/").glob(FAKETIME[1:]))), "")
    return Surrounding(
        name, what,
        "import asyncio, threading, time; now = time.time(); "
        f"assert abs(now - {then.timestamp()}) < 3 * {DAY}, now\n"
        "for sleep in (lambda: asyncio.run(asyncio.sleep(0.05)), lambda: time.sleep(0.05), "
        "lambda: threading.Event().wait(0.05)):\n"
        "    begun = time.monotonic(); sleep(); assert 0.04 < time.monotonic() - begun < 30",
        needs=("cc",),
        environ={"LD_PRELOAD": library, "FAKETIME": f"{offset:+d}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                 "DONT_FAKE_MONOTONIC": "1"},
        missing=lambda: "" if library else f"libfaketime ({FAKETIME}; Debian's package faketime)",
        preload=SLEEP,
    )  # fmt: skip


def _not_root() -> Surrounding:
    """Nobody, in a copy of the checkout that is theirs; where folders above Python are closed to them, a view of them
    that is open.
    """
    script = [f"mount --bind {path} {aside}" for path, aside, _ in _closed()]
    script += [f"mount -t tmpfs -o mode=755 none {above}" for above in sorted({above for *_, above in _closed()})]
    script += [f"mkdir -p {path} && mount --bind {aside} {path}" for path, aside, _ in _closed()]
    become = f'exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --inh-caps=-all -- "$@"'
    return Surrounding(
        "not-root", "an ordinary user (nobody), in a copy that is theirs, with a home that cannot be written",
        f"import os; assert os.getuid() == {NOBODY}; assert not os.access('/', os.W_OK)",
        ("unshare", "setpriv", "mount"),
        ("unshare", "--mount", "--propagation", "private", "sh", "-ec", "\n".join([*_asides(), *script, become]), "sh"),
        {"HOME": "/nonexistent"}, _only_root, "checkout", NOBODY,
    )  # fmt: skip


def _closed() -> list[tuple[str, str, str]]:
    """Folders that Python needs below one that only its owner may enter: folder, where it is kept aside, the other."""
    found = []
    for number, wanted in enumerate(dict.fromkeys((sys.base_prefix, sys.prefix))):
        path = Path(wanted).resolve()
        above = next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001), None)
        if above is not None:
            found.append((str(path), f"/mnt/hushstream-{number}", str(above)))
    return found


def _asides() -> list[str]:
    places = [aside for _, aside, _ in _closed()]
    return ["mount -t tmpfs none /mnt", *(f"mkdir {place}" for place in places)] if places else []


def _only_root() -> str:
    return "" if os.geteuid() == 0 else "root, which becomes another user"


def _latin_1() -> str:
    known = subprocess.run(
        ["locale", "-a"], capture_output=True, text=True, encoding="utf-8", check=False
    ).stdout.split()
    return next((name for name in known if "8859" in name), "")


def _python(version: str) -> Surrounding:
    """Another Python: an environment that `environment` has made."""
    home = ROOT / "build" / "elsewhere" / f"python{version}"
    return Surrounding(
        f"python-{version}", f"Python {version}",
        f"import sys; assert '%d.%d' % sys.version_info[:2] == '{version}', sys.version",
        missing=lambda: "" if (home / "bin" / "pytest").exists() else
        f"an environment of Python {version} in {home.relative_to(ROOT)} (see --environments)",
        python=str(home / "bin" / "python"),
    )  # fmt: skip


STRICT = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""Python as the locale says, without UTF-8 in place of what it says."""


def surroundings() -> dict[str, Surrounding]:
    """All of them by name; clocks are shifted from where they stand at the moment of the call."""
    made = (
        uptime("uptime-10-seconds", 10, "10 seconds"),
        uptime("uptime-2-hours", 7200, "2 hours"),
        uptime("uptime-40-days", 40 * DAY, "40 days"),
        wall_clock("leap-day", LEAP_DAY, "the evening of 29 February 2028"),
        wall_clock("behind", datetime(2019, 12, 31, 23, 58, tzinfo=UTC), "a wall clock that is years behind"),
        Surrounding(
            "time-zone", "13:45 east of Greenwich", "import time; assert time.localtime(0).tm_hour == 13",
            environ={"TZ": "<+1345>-13:45"},
        ),
        Surrounding(
            "locale", "a locale of ASCII, which Python does not replace",
            "import codecs, sys; assert codecs.lookup(sys.stdout.encoding).name == 'ascii', sys.stdout.encoding",
            environ={"LC_ALL": "C", **STRICT},
        ),
        Surrounding(
            "latin-1", "a locale of ISO 8859-1",
            "import sys; assert '8859' in sys.stdout.encoding, sys.stdout.encoding",
            environ={"LC_ALL": _latin_1(), **STRICT}, missing=lambda: "" if _latin_1() else "a locale of ISO 8859-1",
        ),
        Surrounding(
            "umask", "files that are made for their owner alone", "import os; assert os.umask(0) == 0o077", umask=0o077,
        ),
        Surrounding(
            "no-home", "a home in which nothing can be written",
            "from pathlib import Path\n"
            "try: (Path.home() / 'x').mkdir(parents=True)\nexcept OSError: pass\nelse: raise SystemExit(1)",
            environ={"HOME": "/sys/home", "XDG_CACHE_HOME": "", "XDG_CONFIG_HOME": "", "MPLCONFIGDIR": ""},
        ),
        _not_root(),
        Surrounding(
            "path", "a folder with spaces and umlauts, for temporary files, too",
            "import os, tempfile; assert 'für' in os.getcwd() and 'für' in tempfile.gettempdir()",
            folder="Träume für alle",
        ),
        Surrounding(
            "no-ipv6", "no IPv6, and no network but loopback",
            "import socket\nsocket.socket().bind(('127.0.0.1', 0))\n"
            "try: socket.socket(socket.AF_INET6).bind(('::1', 0))\nexcept OSError: pass\nelse: raise SystemExit(1)",
            ("unshare", "ip"),
            ("unshare", "--net", "sh", "-ec",
             'ip link set lo up; echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; exec "$@"', "sh"),
            missing=_only_root,
        ),
        Surrounding("side-by-side", "two runs at the same time, in the same checkout", "pass", runs=2),
        _python("3.12"),
        _python("3.13"),
    )  # fmt: skip
    return {surrounding.name: surrounding for surrounding in made}


NAMES = tuple(surroundings())


def drawn(files: Iterable[str], names: Sequence[str], share: int, of: str) -> dict[str, list[str]]:
    """So many files of tests, each in one surrounding: others for each ``of``, the same whenever it is the same.

    They are spread over `PLACES` surroundings: each takes its time to begin.
    """
    files = sorted(files, key=lambda file: hashlib.sha256(f"{of} {file}".encode()).digest())[:share]
    places = sorted(names, key=lambda name: hashlib.sha256(f"{of} {name}".encode()).digest())[:PLACES]
    return {name: files[number :: len(places)] for number, name in enumerate(places) if files[number :: len(places)]}


def files_of_tests(root: Path) -> list[str]:
    """Files of tests, but for those that need Apache Kafka or that say themselves that they are slow."""
    found = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        name = path.relative_to(root).as_posix()
        if not name.startswith(("tests/kafka/", "tests/chaos/", "tests/elsewhere/", "tests/mutants/")):
            text = path.read_text(encoding="utf-8")
            if "mark.slow" not in text and "mark.process" not in text:
                found.append(name)
    return found


class Absent(Exception):
    """A surrounding cannot be had here; says what is missing."""


@contextmanager
def place_of(surrounding: Surrounding) -> Iterator[tuple[Path, dict[str, str]]]:
    """A checkout in the surrounding, and the variables that are set there."""
    with tempfile.TemporaryDirectory(prefix="elsewhere-") as name:
        outer = Path(name)
        outer.chmod(0o755)
        environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **surrounding.environ}
        root = ROOT
        if surrounding.preload is not None and shutil.which("cc") is not None:
            first = outer / f"{surrounding.preload.stem}.so"
            command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(first), str(surrounding.preload), "-ldl"]
            subprocess.run(command, check=True)
            environ["LD_PRELOAD"] = f"{first}:{environ['LD_PRELOAD']}"
        if surrounding.folder:
            root = outer / surrounding.folder
            temporary = outer / f"{surrounding.folder} (tmp)"
            _copy(root)
            temporary.mkdir()
            environ["TMPDIR"] = str(temporary)
            if surrounding.owner is not None:
                for path in (root, temporary, *root.rglob("*")):
                    os.chown(path, surrounding.owner, surrounding.owner, follow_symlinks=False)
        if surrounding.folder or surrounding.python != sys.executable:
            environ["PYTHONPATH"] = os.pathsep.join(str(root / source) for source in SOURCES)
        yield root, {name: value for name, value in environ.items() if value or name not in surrounding.environ}


def _copy(root: Path) -> None:
    """What is tracked, and what is new and not ignored; a repository of its own, as tests ask which files it has."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    for name in sorted(set(filter(None, listed.stdout.decode().split("\0")))):
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    subprocess.run(["git", "add", "--all"], cwd=root, check=True)


def probe(surrounding: Surrounding, root: Path, environ: Mapping[str, str]) -> None:
    """Look whether the surrounding is what it is meant to be.

    Raises:
        Absent: it cannot be had.
    """
    lacking = [command for command in surrounding.needs if shutil.which(command) is None]
    missing = surrounding.missing() or ", ".join(lacking)
    if missing:
        raise Absent(missing)
    done = subprocess.run(
        [*surrounding.command, surrounding.python, "-c", surrounding.probe],
        cwd=root, env=environ, umask=-1 if surrounding.umask is None else surrounding.umask,
        capture_output=True, text=True, encoding="utf-8", errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "the probe failed").splitlines()[-1]
        raise Absent(f"a machine on which it can be had ({said})")


def run_there(surrounding: Surrounding, tests: Sequence[str]) -> Result:
    """Run tests in a surrounding; what failed is printed as pytest prints it."""
    begun, result = time.monotonic(), Result()
    try:
        with place_of(surrounding) as (root, environ):
            probe(surrounding, root, environ)
            with tempfile.TemporaryDirectory(prefix="elsewhere-reports-") as reports:
                os.chmod(reports, 0o777)
                _run_all(surrounding, tests, root, environ, Path(reports), result)
    except Absent as error:
        result.why = str(error)
    result.seconds = time.monotonic() - begun
    return result


def _run_all(
    surrounding: Surrounding,
    tests: Sequence[str],
    root: Path,
    environ: Mapping[str, str],
    reports: Path,
    result: Result,
) -> None:
    started = []
    for number in range(surrounding.runs):
        report = reports / f"{number}.xml"
        command = [
            *surrounding.command, surrounding.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(JOBS),
            "--dist", "loadfile", f"--junitxml={report}", *tests,
        ]  # fmt: skip
        output = reports / f"{number}.log"
        with output.open("wb") as log:
            process = subprocess.Popen(
                command, cwd=root, env=environ, stdout=log, stderr=subprocess.STDOUT,
                umask=-1 if surrounding.umask is None else surrounding.umask,
            )  # fmt: skip
        started.append((process, report, output))
    for process, report, output in started:
        code = process.wait()
        if report.exists():
            result.add(report)
        if code not in (0, NO_TESTS):
            result.failed += 0 if report.exists() and result.failed else 1
            print(output.read_text(encoding="utf-8", errors="replace"), flush=True)


def make_environments() -> None:
    """An environment for each other Python that is on the machine, with the locked versions (some minutes)."""
    for version in ("3.12", "3.13"):
        home = ROOT / "build" / "elsewhere" / f"python{version}"
        interpreter = _interpreter(version)
        if interpreter is None:
            print(f"python-{version}: no such interpreter is on this machine", flush=True)
        elif not (home / "bin" / "pytest").exists():
            subprocess.run([interpreter, "-m", "venv", str(home)], check=True)
            pip = [str(home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "--require-hashes", "--requirement", str(ROOT / "requirements.lock")], check=True)
            subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)], check=True)


def _interpreter(version: str) -> str | None:
    """A command that is this Python: a name may be there of a version manager that has none behind it."""
    beside = sorted(Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python{version}"))
    for place in filter(None, (shutil.which(f"python{version}"), *map(str, beside))):
        if subprocess.run([place, "-c", ""], capture_output=True, check=False).returncode == 0:
            return place
    return None


def told(name: str, result: Result) -> str:
    """A line for a surrounding."""
    wide = max(map(len, NAMES))
    if result.why:
        return f"{name:{wide}}  left out, needs {result.why}"
    counts = f"{result.passed:5} passed {result.failed:3} failed {result.skipped:4} skipped"
    return f"{name:{wide}}  {counts}  {result.seconds:5.0f} s"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite or a part of it; 0 if something ran and nothing failed."""
    parser = argparse.ArgumentParser(description="The suite in other surroundings.")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="surroundings; all if none is named")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="files or folders, from the root")
    parser.add_argument("--share", type=int, help="only so many files, each in one surrounding")
    parser.add_argument("--of", default="", help="which share: another for each text, such as a commit")
    parser.add_argument("--environments", action="store_true", help="make those of the other Pythons first")
    given = parser.parse_args(arguments)
    if given.environments:
        make_environments()
    known = {name: surrounding for name, surrounding in surroundings().items() if name in given.only}
    plan: Mapping[str, Sequence[str]] = dict.fromkeys(known, given.tests)
    if given.share is not None:
        there = [name for name, surrounding in known.items() if not surrounding.missing()]
        plan = drawn(files_of_tests(ROOT), there, given.share, given.of)
        plan = {**plan, **{name: () for name in known if name not in there}}
    results = {}
    for name in (name for name in known if name in plan):
        print(f"{name} ({known[name].what}): {' '.join(plan[name]) or 'nothing'}", flush=True)
        results[name] = run_there(surroundings()[name], plan[name]) if plan[name] else Result(why=known[name].missing())
        print(told(name, results[name]), flush=True)
    print("\n".join(["", *(told(name, result) for name, result in results.items())]))
    ran = sum(result.passed for result in results.values())
    return 0 if ran and not any(result.failed for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
