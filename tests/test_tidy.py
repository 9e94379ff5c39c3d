"""The house style, as far as a machine can see it.

    every Python file --> story, size, imports, sources of chance
    every text file   --> no machine paths, no registry hosts, no loose ends, no dead references

Rules that need judgement are not here. The two allow-lists are ratchets: an entry records what is
too long today, may only shrink, and must go once the limit is met.
"""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "halocline"

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 60
COLUMNS_MAX = 100

LONG_FILES: dict[str, int] = {}
"""Files above the limit: path -> lines today."""
LONG_FUNCTIONS: dict[str, int] = {}
"""Functions above the limit: path::name -> lines today."""

SHARED: set[str] = set()
"""Names that several public types have today; it may only shrink."""

REQUIREMENT = re.compile(r"\b[A-Z]-\d\d\b")

# Data walks down this list; a room may import the rooms above it, never one below.
ROOMS = (
    "schema",
    "store",
    "log",
    "objects",
    "catalog",
    "rows",
    "index",
    "read",
    "txn",
    "mover",
    "compaction",
    "checkpoint",
    "node",
    "spark",
    "sql",
    "database",
    "cli",
    "studio",
)
# Time and chance come from clock.py alone, or a crash could not be replayed from its seed.
CHANCE_MODULES = {"time", "random", "uuid", "secrets"}
CHANCE_CALLS = {
    "os.urandom",
    "os.getrandom",
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "date.today",
    "numpy.random",
    "np.random",
}
CHANCE_ALLOWED: dict[str, set[str]] = {"src/halocline/clock.py": {"time", "secrets"}}
"""Path -> what it may use: a module, or one name of it such as `time.perf_counter`."""

PICKLES = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
PEERS = {"sqlite3", "polars", "pandas", "deltalake", "pyiceberg"}
JUNK_DRAWERS = {"utils", "util", "common", "helpers", "misc"}

SKIPPED = {"build", "dist", "__pycache__", "spark-warehouse", "metastore_db"}
HIDDEN_KEPT = {".ci", ".gitignore"}
TEXT = {".py", ".md", ".toml", ".sh", ".txt", ".cfg", ".yml", ".yaml", ".json", ".sql", ""}

MACHINE_PATH = re.compile(r"(?<![\w.$}])/(?:home|Users|root|work|opt)/\w")
REGISTRY = re.compile(
    r"\b(?:pypi[.]org|pythonhosted[.]org|npmjs[.]org|crates[.]io|maven[.]org|"
    r"maven[.]apache[.]org|proxy[.]golang[.]org|deb[.]debian[.]org|archive[.]ubuntu[.]com)"
)
MERGE_MARK = re.compile(r"^(<{7}|={7}|>{7})( |$)")
LOOSE_END = re.compile(
    r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b|raise Not" + r"ImplementedError\b"
)
PROCESS = re.compile(r"\bissues? #?\d|\b(?:design|style|checklist)[.]md\b", re.IGNORECASE)
DOCUMENT = re.compile(r"[\w./-]*\w[.]md\b")
MADE_BY_RUNS = {"latest.md"}


# -- what there is -------------------------------------------------------------------------------


@functools.cache
def text_files() -> tuple[Path, ...]:
    """Every file that would be published, leaving out what tools have made."""
    return tuple(sorted(path for path in _walk(ROOT) if path.suffix in TEXT))


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        hidden = path.name.startswith(".") and path.name not in HIDDEN_KEPT
        if hidden or path.name in SKIPPED or path.name.endswith(".egg-info"):
            continue
        if path.is_dir():
            yield from _walk(path)
        else:
            yield path


def python_files(*folders: str) -> list[Path]:
    """Python files below these folders of the repository."""
    roots = [ROOT / folder for folder in folders]
    return [
        path
        for path in text_files()
        if path.suffix == ".py" and any(root in path.parents for root in roots)
    ]


@functools.cache
def tree(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def name(path: Path) -> str:
    """The path as it is shown and listed."""
    return path.relative_to(ROOT).as_posix()


def report(rule: str, offences: list[str]) -> None:
    """Fail with every offence at once, so that one run is enough to mend them all."""
    if offences:
        pytest.fail(rule + ":\n  " + "\n  ".join(offences), pytrace=False)


# -- shape ---------------------------------------------------------------------------------------


def test_every_python_file_opens_with_its_story() -> None:
    files = python_files("src", "tests", "bench", "tools", "examples")
    report(
        "a file starts with a docstring that says what it is",
        [name(path) for path in files if not ast.get_docstring(tree(path))],
    )


def test_no_file_is_too_long() -> None:
    lengths = {
        name(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files("src", "bench", "tools", "examples")
    }
    _ratchet(lengths, LONG_FILES, FILE_LINES_MAX, "LONG_FILES")


def test_no_function_is_too_long() -> None:
    lengths: dict[str, int] = {}
    for path in python_files("src", "bench", "tools", "examples"):
        for node, qualified in _functions(tree(path), ""):
            lengths[f"{name(path)}::{qualified}"] = _code_lines(node)
    _ratchet(lengths, LONG_FUNCTIONS, FUNCTION_LINES_MAX, "LONG_FUNCTIONS")


def _ratchet(lengths: dict[str, int], allowed: dict[str, int], limit: int, title: str) -> None:
    offences = []
    for key, lines in lengths.items():
        if lines > max(limit, allowed.get(key, 0)):
            offences.append(f"{key}: {lines} lines, limit {max(limit, allowed.get(key, 0))}")
    for key, lines in allowed.items():
        today = lengths.get(key, 0)
        if today <= limit:
            offences.append(f"{key}: within the limit now, remove it from {title}")
        elif today < lines:
            offences.append(f"{key}: {today} lines now, lower its entry in {title} from {lines}")
    report(f"at most {limit} lines", offences)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[ast.AST, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            qualified = f"{prefix}{child.name}"
            if not isinstance(child, ast.ClassDef):
                yield child, qualified
            yield from _functions(child, qualified + ".")


def _code_lines(node: ast.AST) -> int:
    """Lines from `def` to the end, the docstring left out: explaining is never punished."""
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    first = node.body[0]
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def test_code_stays_within_100_columns() -> None:
    offences = []
    for path in text_files():
        if path.suffix in {".py", ".sh"} or path.name == "Makefile":
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if len(line) > COLUMNS_MAX:
                    offences.append(f"{name(path)}:{number}: {len(line)} columns")
    report(f"at most {COLUMNS_MAX} columns", offences)


def test_init_files_hold_names_only() -> None:
    offences = []
    for path in python_files("src"):
        if path.name == "__init__.py":
            body = tree(path).body
            offences += [f"{name(path)}:{node.lineno}" for node in body if not _is_name(node)]
    report("__init__.py holds a docstring, imports, __all__ and a table of lazy names", offences)


def _is_name(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING" and all(map(_is_lazy, node.orelse))
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    targets = node.targets if isinstance(node, ast.Assign) else []
    return bool(targets) and all(
        isinstance(target, ast.Name) and target.id in {"__all__", "__version__"}
        for target in targets
    )


def _is_lazy(node: ast.stmt) -> bool:
    """A table of names, and the two functions by which Python asks for them (PEP 562)."""
    if isinstance(node, ast.FunctionDef):
        return node.name in {"__getattr__", "__dir__"}
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)


def test_no_two_public_types_have_one_name() -> None:
    homes: dict[str, list[str]] = {}
    for path in python_files("src"):
        for found in _public_types(tree(path)):
            homes.setdefault(found, []).append(name(path))
    shared = {found: paths for found, paths in homes.items() if len(paths) > 1}
    report(
        "a public type has a name of its own",
        [f"{found}: {', '.join(paths)}" for found, paths in shared.items() if found not in SHARED],
    )


def _public_types(module: ast.Module) -> Iterator[str]:
    """Classes, and names in CamelCase that stand for a type."""
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            found = node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found = target.id if isinstance(target, ast.Name) else ""
        else:
            continue
        if re.fullmatch(r"[A-Z]\w*[a-z]\w*", found):
            yield found


def test_there_are_no_junk_drawers() -> None:
    report(
        "a module is named after what it holds",
        [
            name(path)
            for path in python_files("src", "tests", "bench", "tools", "examples")
            if {path.stem, *path.relative_to(ROOT).parts[:-1]} & JUNK_DRAWERS
        ],
    )


def test_a_docstring_does_not_lean_on_its_neighbour() -> None:
    offences = []
    for path in python_files("src"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                text = node.value.value
                if isinstance(text, str) and text.lstrip().startswith("The same"):
                    offences.append(f"{name(path)}:{node.lineno}")
    report('a docstring stands alone: it does not begin with "The same"', offences)


def test_sources_name_no_requirement_ids() -> None:
    offences = []
    for path in python_files("src"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = REQUIREMENT.search(line)
            if found:
                offences.append(f"{name(path)}:{number}: {found[0]}")
    report("ids of rules stand in docs/lineage.md and in test names", offences)


# -- imports -------------------------------------------------------------------------------------


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of all that runs when the file does; imports for types alone are free."""
    free = {
        id(inner)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree(path)):
        if id(node) in free:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = _base(path, node)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def _base(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join([*package[: len(package) - node.level], *filter(None, [node.module])])


def room(dotted: str) -> str | None:
    """The room that a dotted name lives in; None for common ground."""
    parts = dotted.split(".")
    first = parts[1] if len(parts) > 1 else "__init__"
    if first == "__main__":
        return "cli"
    if first in ROOMS:
        return first
    # `from halocline import open` names no module: it comes through the front door.
    common = first != "__init__" and (PACKAGE / f"{first}.py").exists()
    return None if common else "database"


def test_imports_point_one_way() -> None:
    offences = []
    for path in python_files("src/halocline"):
        here = room(".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
        reach = -1 if here is None else ROOMS.index(here)
        for line, dotted in imports(path):
            if dotted.split(".")[0] != "halocline":
                continue
            there = room(dotted)
            if there is not None and ROOMS.index(there) > reach:
                source = here or "common ground"
                offences.append(f"{name(path)}:{line}: {source} imports {dotted} ({there})")
    report("a room imports only common ground and rooms above it", offences)


def test_every_folder_is_a_room_of_the_list() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders <= set(ROOMS)


def _importers(modules: set[str], *folders: str) -> list[tuple[Path, str]]:
    return [
        (path, f"{name(path)}:{line}: {dotted}")
        for path in python_files(*folders)
        for line, dotted in imports(path)
        if dotted.split(".")[0] in modules
    ]


def test_pyspark_lives_in_the_spark_room() -> None:
    rooms = (PACKAGE / "spark", ROOT / "src" / "pyspark_halocline")
    found = _importers({"pyspark", "py4j"}, "src")
    report(
        "only the spark room imports pyspark",
        [text for path, text in found if not any(folder in path.parents for folder in rooms)],
    )


def test_nothing_is_pickled() -> None:
    report("no pickle, at rest or on the wire", [text for _, text in _importers(PICKLES, "src")])


def test_the_engine_imports_none_of_its_peers() -> None:
    spark = PACKAGE / "spark"
    found = _importers(PEERS | _bench_peers(), "src")
    report(
        "peers are for the benchmark and the tests",
        # Spark's own interface speaks pandas; nothing else here may.
        [text for path, text in found if not (spark in path.parents and text.endswith("pandas"))],
    )


def _bench_peers() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]["bench"]
    return {re.split(r"[^\w-]", requirement)[0].replace("-", "_") for requirement in extras}


def test_time_and_chance_come_from_the_clock() -> None:
    offences = []
    for path in python_files("src"):
        allowed = CHANCE_ALLOWED.get(name(path), set())
        for line, used in _chances(path):
            if not any(_covers(entry, used) for entry in allowed):
                offences.append(f"{name(path)}:{line}: {used}")
    report("time, randomness and uuids come from clock.py", offences)


def _chances(path: Path) -> Iterator[tuple[int, str]]:
    for line, dotted in imports(path):
        if _is_chance(dotted):
            yield line, dotted
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and _is_chance(dotted := ast.unparse(node)):
            yield node.lineno, dotted


def _covers(entry: str, used: str) -> bool:
    """A module covers its names; a name covers the plain import that it needs."""
    return entry == used or used.startswith(entry + ".") or entry.startswith(used + ".")


def _is_chance(dotted: str) -> bool:
    module, _, rest = dotted.partition(".")
    if module in CHANCE_MODULES:
        return rest.count(".") == 0
    return dotted in CHANCE_CALLS or rest in CHANCE_CALLS


# -- text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "pattern"),
    [
        ("no paths of one machine", MACHINE_PATH),
        ("no hosts of package registries", REGISTRY),
        ("nothing is left open in the text", LOOSE_END),
        ("the text stands on its own, without the papers it was planned on", PROCESS),
        ("no merge is left half done", MERGE_MARK),
    ],
    ids=["machine-paths", "registries", "loose-ends", "process", "merge-marks"],
)
def test_text_is_clean(rule: str, pattern: re.Pattern[str]) -> None:
    offences = []
    for path in text_files():
        if path == Path(__file__).resolve():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if found := pattern.search(line):
                offences.append(f"{name(path)}:{number}: {found[0]}")
    report(rule, offences)


def test_every_document_that_is_named_exists() -> None:
    there = {name(path) for path in text_files()}
    offences = []
    for path in text_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for found in DOCUMENT.findall(line):
                target = re.sub(r"^(?:[.]{0,2}/)+", "", found)
                known = any(other == target or other.endswith("/" + target) for other in there)
                if not known and target not in MADE_BY_RUNS and path != Path(__file__).resolve():
                    offences.append(f"{name(path)}:{number}: {found}")
    report("a document that is named exists", offences)


def test_every_source_file_that_a_document_names_exists() -> None:
    offences = []
    for path in text_files():
        if path.suffix == ".md":
            named = re.findall(r"`([\w/]+[.]py)`", path.read_text(encoding="utf-8"))
            missing = [
                found
                for found in named
                if not any((folder / found).exists() for folder in (PACKAGE, ROOT, path.parent))
            ]
            offences += [f"{name(path)}: {found}" for found in missing]
    report("a source file that is named exists", offences)


INHERITS_ACROSS_FILES = {
    "LazyTransaction": "a Transaction to whoever holds it, and a plain one once it has caught up",
    "LocalFiles": "the steps that make files durable, on a real disk",
    "WrongType": "one of the ways in which a value does not fit, told where types are cast",
}
"""Class -> why it has its parent in another file. Exceptions need no reason."""
PARENTS_OF_ERRORS = {"Exception", "OSError", "ConnectionError", "HaloclineError"}


def _parents(node: ast.ClassDef) -> list[str]:
    found = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return [base.attr if isinstance(base, ast.Attribute) else ast.unparse(base) for base in found]


def test_no_class_is_spread_over_several_files_and_no_constructor_skips_its_parents() -> None:
    """Protocols and composition, not trees of classes."""
    classes = [
        (name(path), node)
        for path in python_files("src")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
    ]
    homes: dict[str, set[str]] = {}
    for path, node in classes:
        homes.setdefault(node.name, set()).add(path)
    errors = {node.name for _, node in classes if node.name.endswith("Error")} | PARENTS_OF_ERRORS
    offences = []
    for path, node in classes:
        parents = [parent for parent in _parents(node) if parent in homes]
        elsewhere = [one for one in parents if path not in homes[one] and one not in errors]
        if elsewhere and node.name not in INHERITS_ACROSS_FILES:
            offences.append(f"{path}: {node.name} has its parent {elsewhere[0]} in another file")
        for method in node.body:
            if parents and isinstance(method, ast.FunctionDef) and method.name == "__init__":
                if "super().__init__(" not in ast.unparse(method):
                    offences.append(f"{path}: the constructor of {node.name} skips its parent's")
    unused = set(INHERITS_ACROSS_FILES) - {node.name for _, node in classes}
    report("a class stands in one file, and its constructor calls its parent's", offences)
    assert not unused
