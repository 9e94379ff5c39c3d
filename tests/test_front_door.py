"""The front door: what `import halocline` offers, no more and no less.

A name added or lost here is a change that users see, so it has to be made on purpose.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import tomllib
from pathlib import Path

import pytest

import halocline
from halocline import errors

ROOT = Path(__file__).resolve().parent.parent

ERRORS = {
    "AlreadyExistsError",
    "CheckError",
    "ConflictError",
    "CorruptionError",
    "DuplicateKeyError",
    "HaloclineError",
    "NotFoundError",
    "SchemaError",
    "SnapshotExpiredError",
    "UnavailableError",
    "UsageError",
}
FRONT_DOOR = {
    "Column",
    "Database",
    "Options",
    "Table",
    "Transaction",
    "__version__",
    "add",
    "connect",
    "expr",
    "now",
    "open",
    "read",
    "uuid",
} | ERRORS


def test_the_front_door_offers_exactly_what_is_documented() -> None:
    assert set(halocline.__all__) == FRONT_DOOR


def test_the_list_of_names_is_sorted_and_has_no_doubles() -> None:
    assert list(halocline.__all__) == sorted(set(halocline.__all__))


def test_a_star_import_gives_every_name() -> None:
    names: dict[str, object] = {}
    exec("from halocline import *", names)
    assert set(halocline.__all__) <= set(names)


@pytest.mark.parametrize("name", sorted(FRONT_DOOR - {"__version__"}))
def test_every_public_name_has_a_docstring(name: str) -> None:
    assert inspect.getdoc(getattr(halocline, name))


@pytest.mark.parametrize("owner", ["Database", "Table", "Transaction"])
def test_every_public_method_has_a_docstring_of_its_own(owner: str) -> None:
    members = vars(getattr(halocline, owner))
    bare = [
        name
        for name, member in members.items()
        if not name.startswith("_")
        and (callable(member) or isinstance(member, property | classmethod | staticmethod))
        and not getattr(member, "__doc__", None)
    ]
    assert bare == []


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert halocline.__version__ == project["version"]


def test_every_error_is_at_the_front_door_and_under_one_root() -> None:
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert defined == ERRORS
    assert all(issubclass(getattr(errors, name), halocline.HaloclineError) for name in defined)


def test_a_schema_error_is_a_usage_error() -> None:
    assert issubclass(halocline.SchemaError, halocline.UsageError)


def test_the_tour_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.csv").write_text("id,status,amount\n1,new,2.50\n2,paid,7\n3,new,1\n")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    five, *tour = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(five.splitlines()) == 5
    exec(five, names)
    exec("db.close()", names)
    for block in tour:
        exec(block, names)
    assert (tmp_path / "bank").is_dir()


@pytest.mark.parametrize("package", ["halocline", "halocline.spark"])
def test_a_module_of_a_public_package_is_reached_by_its_name(package: str) -> None:
    """A function of a module's name would hide it: `import a.b as m` would give the function."""
    if package == "halocline.spark":
        pytest.importorskip("pyspark")
    home = importlib.import_module(package)
    names = [info.name for info in pkgutil.iter_modules(home.__path__) if info.name != "__main__"]
    for name in names:
        module = importlib.import_module(f"{package}.{name}")
        assert getattr(home, name) is module
