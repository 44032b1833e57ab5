"""The report and the explorer in a real browser."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import nrm
from explorer.browser import launched, opened
from report import subjects

pytest.importorskip("starlette")
Image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "r.html"
    layers = [("pool#0", "channels"), ("pool#1", "channels"), "output"]
    subjects.measured(target=3).report(path, layers=layers, nodes=5, flows=3, title=subjects.HOSTILE)
    return path


@pytest.fixture(scope="module")
def explorer() -> Iterator[nrm.explorer.Explorer]:
    torch.manual_seed(0)
    data = torch.cat([subjects.image(seed) for seed in range(3)])
    made = nrm.explore(
        subjects.small(), data, labels=subjects.CLASSES, open=False, block=False, rules="epsilon-plus", bias="input"
    )
    with made:
        yield made


def pixels(page: Any) -> str:
    return str(page.evaluate("document.querySelector('#picture canvas').toDataURL()"))


def changes(page: Any, before: str) -> None:
    page.wait_for_function("old => document.querySelector('#picture canvas').toDataURL() !== old", arg=before)


def complete(page: Any) -> None:
    """All parts of the view are there."""
    page.wait_for_selector(".flow")
    page.wait_for_selector(".verdict")
    page.wait_for_function("() => document.getElementById('job').hidden")


# ---- the report ------------------------------------------------------------------------------------------------------


def test_a_report_shows_everything_from_one_file(browser: Any, report: Path) -> None:
    with opened(browser, report.as_uri()) as page:
        assert page.locator("#network .node").count() > 8
        assert page.locator(".flow").count() == 3
        assert page.locator(".layer").count() > 5
        assert page.locator(".verdict").inner_text()
        assert "nrm.measure(" in page.locator("#script").inner_text()
        assert page.title() != "broken"
        assert page.locator("#title").inner_text() == subjects.HOSTILE
        assert page.locator("img").count() == 0


def test_nodes_ribbons_and_chains_change_the_picture(browser: Any, report: Path) -> None:
    with opened(browser, report.as_uri()) as page:
        before = pixels(page)
        page.locator('[data-node="0:0"]').click()
        changes(page, before)
        assert "of the decision flowed through" in page.locator("#selection").inner_text()
        assert "chosen=0%3A0" in page.url
        page.keyboard.press("Escape")
        assert pixels(page) == before
        page.locator(".flow").first.click()
        changes(page, before)
        assert page.locator(".node.on").count() == 3
        page.locator("#clear").click()
        page.evaluate("""document.querySelector('.ribbon[data-ribbon]').dispatchEvent(new MouseEvent('click'))""")
        changes(page, before)
        assert page.locator(".ribbon.on").count() == 1


def test_a_report_works_by_keyboard(browser: Any, report: Path) -> None:
    with opened(browser, report.as_uri()) as page:
        page.locator('[data-node="1:0"]').focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Enter")
        assert page.locator('.node.on[data-node^="0:"]').count() == 1
        page.keyboard.press("d")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_coverage_merges_nodes_into_the_rest_and_columns_still_add_up(browser: Any, report: Path) -> None:
    with opened(browser, report.as_uri()) as page:
        before = page.locator(".node.block").count()
        page.locator("#coverage").fill("0.4")
        assert page.locator(".node.block").count() < before
        for column in range(3):
            texts = page.locator(f'[data-node^="{column}:"] .share').all_text_contents()
            total = sum(float(t.replace("\u2212", "-").removesuffix(" %")) for t in texts)
            assert total == pytest.approx(100, abs=0.3)
        assert "coverage=0.4" in page.url


def test_a_permalink_opens_what_was_chosen(browser: Any, report: Path) -> None:
    with opened(browser, f"{report.as_uri()}#coverage=0.6&chosen=0%3A1") as page:
        assert page.locator('.node.on[data-node="0:1"]').count() == 1
        assert page.locator("#coverage").input_value() == "0.6"


@pytest.mark.parametrize("kind", ["PNG", "SVG", "CSV", "JSON"])
def test_exports(browser: Any, report: Path, kind: str, tmp_path: Path) -> None:
    with opened(browser, report.as_uri()) as page:
        with page.expect_download() as waiting:
            page.get_by_role("button", name=kind, exact=True).click()
        content = Path(waiting.value.path()).read_bytes()
        if kind == "PNG":
            assert Image.open(io.BytesIO(content)).width >= 100
        elif kind == "SVG":
            assert b"<svg" in content
            assert b"<img" not in content
        elif kind == "CSV":
            rows = list(csv.DictReader(io.StringIO(content.decode())))
            assert sum(float(r["relevance"]) for r in rows if r["kind"] == "node") == pytest.approx(3, abs=1e-2)
        else:
            assert json.loads(content)["schema"] == 1


def test_a_notebook_frame_runs(browser: Any, report: Path, tmp_path: Path) -> None:
    shown = subjects.measured().report(layers=["pool#0", "output"], nodes=3, flows=1)
    outer = tmp_path / "notebook.html"
    outer.write_text(f"<!doctype html><meta charset=utf-8><div id=network><svg></svg></div>{shown._repr_html_()}")
    with opened(browser, outer.as_uri()) as page:
        frame = page.frame_locator("iframe")
        frame.locator("#network .node").first.wait_for()


# ---- the explorer ----------------------------------------------------------------------------------------------------


def test_the_explorer_shows_a_view_and_answers_clicks(browser: Any, explorer: Any) -> None:
    with opened(browser, explorer.url) as page:
        complete(page)
        before = pixels(page)
        page.locator('[data-node="0:0"]').click()
        changes(page, before)
        single = pixels(page)
        page.locator('[data-node="1:0"]').click()
        page.wait_for_selector(".given")
        changes(page, single)
        assert page.locator(".given").count() == 2
        assert re.search(r"%", page.locator("#share").inner_text())


def test_a_ribbon_changes_the_pixels_of_the_map(browser: Any, explorer: Any) -> None:
    with opened(browser, explorer.url) as page:
        complete(page)
        before = pixels(page)
        page.evaluate("""document.querySelector('.ribbon[data-ribbon]').dispatchEvent(new MouseEvent('click'))""")
        changes(page, before)


def test_another_class_another_input_and_a_comparison(browser: Any, explorer: Any) -> None:
    with opened(browser, explorer.url) as page:
        complete(page)
        before = pixels(page)
        page.locator("#target").select_option("2")
        changes(page, before)
        complete(page)
        assert "bird" in page.locator("#decision").inner_text()
        assert "target=2" in page.url
        page.locator("#against").select_option("1")
        page.wait_for_selector("#comparison figure")
        assert page.locator("#comparison canvas").count() == 3
        before = pixels(page)
        page.locator("#item").select_option(label="sample 1")
        changes(page, before)
        complete(page)


def test_layers_can_be_chosen_and_the_address_passed_on(browser: Any, explorer: Any) -> None:
    with opened(browser, explorer.url) as page:
        complete(page)
        page.locator("#choice summary").click()
        page.get_by_label("layer 1", exact=True).select_option("conv1")
        page.locator("#apply").click()
        page.wait_for_function("() => document.querySelector('#network .head')?.textContent.startsWith('conv1')")
        complete(page)
        address = page.url
    with opened(browser, address) as page:
        complete(page)
        assert page.locator("#network .head").first.text_content().startswith("conv1")


def test_an_image_is_dropped_and_hostile_names_stay_text(browser: Any, explorer: Any) -> None:
    file = io.BytesIO()
    Image.new("RGB", (12, 12), (20, 140, 90)).save(file, "PNG")
    name = "<img src=x onerror=alert(1)>.png"
    with opened(browser, explorer.url) as page:
        complete(page)
        before = pixels(page)
        page.locator("#file").set_input_files({"name": name, "mimeType": "image/png", "buffer": file.getvalue()})
        changes(page, before)
        complete(page)
        page.locator("#target").select_option("3")
        page.wait_for_function("text => document.getElementById('decision').textContent.includes(text)",
                               arg=subjects.HOSTILE)  # fmt: skip
        complete(page)
        assert page.locator("#title").inner_text() == name
        assert page.locator("img").count() == 0
        assert page.title() != "broken"


def test_what_is_long_is_asked_for_and_can_be_cancelled(
    browser: Any, explorer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(browser, explorer.url) as page:
        complete(page)
        monkeypatch.setattr("nrm.explorer.session.LONG", 0.0)
        page.locator("#target").select_option("0")
        page.locator("#agree").click()
        complete(page)
        monkeypatch.undo()
        monkeypatch.setattr("nrm.report.view.View.network", _endless)
        page.locator("#target").select_option("1")
        page.wait_for_function("() => document.getElementById('job').textContent.includes('endless')")
        page.locator("#cancel").click()
        page.wait_for_function("() => document.getElementById('job').textContent.includes('cancelled')")


def _endless(view: Any, tell: Callable[[str], None]) -> Any:
    import time

    for _ in range(3000):
        tell("endless")
        time.sleep(0.01)
    raise AssertionError("nobody cancelled")


def test_formulas_with_named_nodes_and_regions(browser: Any, explorer: Any) -> None:
    pytest.importorskip("lark")
    with opened(browser, explorer.url) as page:
        complete(page)
        page.locator('[data-node="0:0"]').click()
        page.wait_for_selector("#share")
        page.locator("#name").fill("part")
        page.locator("#name-nodes").click()
        page.keyboard.press("Escape")
        before = pixels(page)
        area = page.locator("#picture").bounding_box()
        page.mouse.move(area["x"] + 5, area["y"] + 5)
        page.mouse.down()
        page.mouse.move(area["x"] + area["width"] / 2, area["y"] + area["height"] / 2)
        page.mouse.up()
        page.locator("#name").fill("corner")
        page.locator("#name-region").click()
        page.locator("#ask").fill("part AND NOT corner")
        page.locator("#run").click()
        changes(page, before)
        page.wait_for_function("() => document.getElementById('share')?.textContent.includes('%')")
        share, address = page.locator("#share").inner_text(), page.url
        page.locator("#ask").fill("part AND (")
        page.locator("#run").click()
        page.wait_for_selector("#selection .note")
    with opened(browser, address) as page:
        complete(page)
        page.wait_for_function("text => document.getElementById('share')?.textContent === text", arg=share)
