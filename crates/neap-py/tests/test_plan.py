"""Plans that draw themselves, and the bar that shows how far packing is."""

import html
import sys
import types

import pytest

import neaptide
from neaptide.progress import Bar

from .conftest import rows


def test_a_session_plans_within_other_budgets(mlp):
    session = neaptide.InferenceSession(mlp, neaptide.SessionOptions(memory_budget="6MiB"))
    assert session.plan() is None
    assert "open dimensions" in session._repr_html_()
    session.run(None, {"x": rows(2)})
    own = session.plan()
    assert own.memory["budget_bytes"] == 6 << 20
    assert own.memory["total_bytes"] == session.memory()["total_bytes"] <= 6 << 20
    assert own.loaded_bytes_per_run > 0 and own.latency_ms > own.stall_ms >= 0
    free = session.plan("none")
    assert free.memory["budget_bytes"] is None and free.loaded_bytes_per_run == 0
    assert free.resident_bytes > own.resident_bytes
    with pytest.raises(neaptide.BudgetError) as refused:
        session.plan("100K")
    smallest = session.plan(refused.value.smallest_bytes)
    assert smallest.memory["total_bytes"] <= refused.value.smallest_bytes
    assert session.memory()["budget_bytes"] == 6 << 20
    assert "a budget of 6.0 MiB" in repr(own) and "no budget" in repr(free)


def test_a_session_draws_its_plan(mlp, tmp_path):
    name = tmp_path / "a<b>&'\"c.onnx"
    name.write_bytes(open(mlp, "rb").read())
    session = neaptide.InferenceSession(str(name), neaptide.SessionOptions(memory_budget="6MiB"))
    session.run(None, {"x": rows(2)})
    frame = session._repr_html_()
    assert frame.startswith('<iframe srcdoc="') and frame.endswith("</iframe>")
    inside = frame[len('<iframe srcdoc="') :]
    page, _, rest = inside.partition('"')
    # Nothing of the page ends the attribute, and it needs nothing from elsewhere.
    assert "<" not in page and rest.count("<") == 1
    page = html.unescape(page)
    assert page == session.plan().page
    assert "a&lt;b&gt;" in page and "a<b>&'" not in page.split("<script")[0]
    assert "src=" not in page and "http" not in page.replace("http://www.w3.org", "")
    session.plan().save(tmp_path / "plan.html")
    assert (tmp_path / "plan.html").read_text(encoding="utf-8") == page


def test_packing_shows_a_bar_where_it_takes_long(monkeypatch):
    shown = []

    class Tqdm:
        def __init__(self, **about):
            self.about, self.n = about, 0
            shown.append(self)

        def update(self, count):
            self.n += count

        def close(self):
            self.about["closed"] = True

    module = types.ModuleType("tqdm.auto")
    module.tqdm = Tqdm
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", module)
    monkeypatch.setattr("neaptide.progress.PATIENCE_SECONDS", -1.0)
    bar = Bar("m.onnx")
    for done in (10, 40, 100):
        bar("packing", done, 100)
    (one,) = shown
    assert one.about["desc"] == "packing m.onnx" and one.about["total"] == 100
    assert one.n == 100 and one.about["closed"]
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    Bar("m.onnx")("packing", 10, 100)


def test_budgets_are_compared(mlp):
    session = neaptide.InferenceSession(mlp, neaptide.SessionOptions(memory_budget="6MiB"))
    assert session.compare(["6MiB", None]) is None
    session.run(None, {"x": rows(2)})
    budgets = [100_000, "6MiB", "7MiB", None]
    compared = session.compare(budgets)
    assert session.memory()["budget_bytes"] == 6 << 20
    found = compared.rows()
    assert [row["budget"] for row in found] == ["100000", "6MiB", "7MiB", "none"]
    assert list(compared.plans) == ["6MiB", "7MiB", "none"]
    # The first is refused by what would do; of the others each reads less than the one before.
    smallest = found[0]["smallest_bytes"]
    assert compared.refused == {"100000": smallest} and 100_000 < smallest <= 6 << 20
    assert found[0]["total_bytes"] is None
    read = [row["loaded_bytes_per_run"] for row in found[1:]]
    assert read[0] > read[1] > read[2] == 0
    for row, plan in zip(found[1:], compared.plans.values()):
        assert row["total_bytes"] == plan.memory["total_bytes"] and row["smallest_bytes"] is None
    assert found[1]["total_bytes"] <= 6 << 20
    lines = repr(compared).splitlines()
    assert lines[0] == "mlp.onnx" and len(lines) == 2 + len(budgets)
    assert len({len(line) for line in lines[1:]}) == 1


def test_a_comparison_draws_itself(mlp, tmp_path):
    name = tmp_path / "a<b>.onnx"
    name.write_bytes(open(mlp, "rb").read())
    session = neaptide.InferenceSession(str(name))
    session.run(None, {"x": rows(2)})
    compared = session.compare(["1KiB", "6MiB", "none"])
    drawn = compared._repr_html_()
    assert "<caption>a&lt;b&gt;.onnx</caption>" in drawn
    assert drawn.count("<tr>") == 4 and drawn.count("<details>") == 2
    for plan in compared.plans.values():
        assert html.escape(plan.page) in drawn
