"""A kind of index that another package brings: found by its entry point, used and exact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import halocline as hc
from halocline.errors import UsageError
from halocline.index.registry import kinds

MODULE = '''
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class Initials:
    """Text starts with: the first two letters, without their case."""

    name, number, in_order = "initials", 1001, False

    def why_not(self, types):
        return "" if list(types) == [pa.string()] else "one column of text is needed"

    def build(self, columns):
        keys = pc.fill_null(pc.utf8_lower(pc.utf8_slice_codeunits(columns[0], 0, 2)), "")
        keys = keys.cast(pa.binary())
        order = pc.sort_indices(keys)
        positions = pa.array(order.to_numpy().astype(np.int32))
        return pa.table({"_key": keys.take(order), "_position": positions})

    def ranges(self, columns, conditions):
        condition = conditions.get(columns[0][0])
        if condition is None or condition.nulls:
            return None
        found = []
        for span in condition.spans:
            text = span.low if span.is_point else span.prefix
            if not isinstance(text, str) or len(text) < 2:
                return None
            key = text[:2].lower().encode()
            found.append((key, key + bytes(1)))
        return found
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of somebody else's, as pip would leave it."""
    folder = tmp_path / "site"
    facts = folder / "initials-1.0.dist-info"
    facts.mkdir(parents=True)
    (folder / "initials_kind.py").write_text(MODULE)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: initials\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(
        "[halocline.index]\ninitials = initials_kind:Initials\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    kinds.cache_clear()
    yield
    kinds.cache_clear()


def test_i09_a_kind_from_outside_is_used_and_exact(tmp_path: Path, installed: None) -> None:
    words = ["abacus", "ABBOT", "acid", None, "", "a", "zebra"]
    options = hc.Options(background=False, page_rows=4, object_rows=64)
    with hc.open(tmp_path / "db", options=options) as db:
        db.create_table("t", {"id": int, "s": str}, primary_key="id")
        rows = [{"id": n, "s": words[n % 7] if n % 9 == 0 else f"q{n}"} for n in range(150)]
        db.run(lambda txn: txn.insert("t", rows))
        db.flush()
        with pytest.raises(UsageError, match="one column of text"):
            db.create_index("x", "t", ["id"], kind="initials")
        db.create_index("by_start", "t", ["s"], kind="initials", wait=True)
        for where in ("s like 'ab%'", "s = 'acid'", "s = 'ABBOT'", "s in ('zebra', 'abacus')"):
            told = db.explain(f"select * from t where {where}").to_pylist()[0]
            assert told["indexed"] > 0, where
            with db.begin() as txn:
                found = txn.scan("t", where=where)
                plain = txn.scan("t", where=f"({where}) or id < 0")
                assert found.sort_by("id") == plain.sort_by("id"), where
        with db.begin() as txn, pytest.raises(UsageError, match="no order to look up in"):
            txn.lookup("t", "by_start", "acid")
        assert db.check() == []
    kinds.cache_clear()


def test_an_index_of_a_kind_that_is_not_installed_is_kept_and_not_used(
    tmp_path: Path, installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = hc.Options(background=False, page_rows=4)
    with hc.open(tmp_path / "db", options=options) as db:
        db.create_table("t", {"id": int, "s": str}, primary_key="id")
        db.create_index("by_start", "t", ["s"], kind="initials")
        db.run(lambda txn: txn.insert("t", [{"id": n, "s": f"w{n}"} for n in range(50)]))
        db.flush()
    monkeypatch.undo()
    kinds.cache_clear()
    with hc.open(tmp_path / "db", options=options) as db:
        assert db.indexes().column("state").to_pylist() == ["unknown"]
        db.run(lambda txn: txn.insert("t", [{"id": 100 + n, "s": f"w{n}"} for n in range(50)]))
        db.flush()
        db.compact()
        with db.begin() as txn:
            assert txn.scan("t", where="s like 'w1%'").num_rows == 22
        assert db.check() == []
