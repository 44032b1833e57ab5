"""The report and the explorer in a real browser."""

from __future__ import annotations

import csv
import io
import json
import re
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlparse
from urllib.request import url2pathname

import pytest
import torch

import nrm
import nrm.demo
from explorer.browser import PATIENCE, launched, opened
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


def head(page: Any) -> str:
    return str(page.locator("#network .head tspan").first.text_content())


def complete(page: Any) -> None:
    """All parts of the view are there."""
    page.wait_for_selector(".flow")
    page.wait_for_selector("#trust .mark")
    page.wait_for_function("() => document.getElementById('job').hidden")


def save(page: Any, what: str) -> None:
    """Saves something of the menu."""
    page.locator("#saving summary").click()
    page.get_by_role("button", name=what, exact=True).click()


# ---- the report ------------------------------------------------------------------------------------------------------


def test_a_report_shows_everything_from_one_file(browser: Any, report: Path) -> None:
    with opened(browser, report.as_uri()) as page:
        assert page.locator("#network .node").count() > 8
        assert page.locator(".flow").count() == 3
        assert page.locator(".layer").count() > 5
        assert re.search(r"Can this be trusted\? (Yes|With care|No)", page.locator("#trust").inner_text())
        page.locator("#trust button").click()
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


def test_the_first_sentence_has_faces_and_chooses_nodes(browser: Any, report: Path) -> None:
    with opened(browser, report.as_uri()) as page:
        story = page.locator("#story").inner_text()
        assert story.startswith(subjects.HOSTILE)
        assert page.locator("#story .part canvas").count() >= 1
        assert page.locator("#photo canvas").is_visible()
        before = page.locator("#photo canvas").evaluate("c => c.toDataURL()")
        faces = page.locator("#network .node image").evaluate_all("all => all.map(i => i.getAttribute('href'))")
        assert len(faces) > 6
        assert len(set(faces)) > 3
        page.locator("#wanted").fill("pool 1")
        assert set(page.locator(".layer .name").all_inner_texts()) == {"pool#1"}
        page.locator("#wanted").fill("nothing")
        assert page.locator(".layer").count() == 0
        page.locator('[data-node="0:0"]').click()
        assert page.locator("#photo canvas").evaluate("c => c.toDataURL()") == before  # in colour, whatever is chosen


def test_parts_of_the_sentence_are_nodes_of_the_diagram(browser: Any, explorer: Any) -> None:
    pytest.importorskip("sklearn")
    layers = json.dumps([["pool#0", "clusters"], ["pool#1", "channels"], ["output", "channels"]])
    with opened(browser, f"{explorer.url}#{urlencode({'layers': layers, 'item': '0'})}") as page:
        complete(page)
        page.locator("#story button.part").first.click()
        chosen = page.locator('.node.on[data-node^="0:"] .share').all_text_contents()
        assert chosen
        assert answered(page) == pytest.approx(sum(map(number, chosen)), abs=0.1)
        page.wait_for_function("() => document.querySelectorAll('#network .node[data-node^=\"1:\"] image').length > 4")


def test_nodes_are_one_stop_of_the_tab_key(browser: Any, report: Path) -> None:
    with opened(browser, report.as_uri()) as page:
        assert page.locator('#network .node[tabindex="0"]').count() == 1
        page.locator("#coverage").focus()
        page.keyboard.press("Tab")  # nothing is chosen: the button that clears is off
        first = page.evaluate("document.activeElement.dataset.node")
        assert first is not None
        page.keyboard.press("ArrowRight")
        page.keyboard.press("End")
        assert page.evaluate("document.activeElement.dataset.node").startswith("1:")
        assert page.locator('#network .node[tabindex="0"]').count() == 1
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.dataset.node ?? 'none'") == "none"


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


def test_exports(browser: Any, report: Path) -> None:
    with opened(browser, report.as_uri()) as page:
        found = {}
        for kind, what in (("PNG", "the map"), ("SVG", "the diagram"), ("CSV", "the numbers"), ("JSON", "everything")):
            with page.expect_download() as waiting:
                save(page, f"{what} ({kind})")
            found[kind] = Path(waiting.value.path()).read_bytes()
    assert Image.open(io.BytesIO(found["PNG"])).width >= 100
    assert b"<svg" in found["SVG"]
    assert b"<img" not in found["SVG"]
    rows = list(csv.DictReader(io.StringIO(found["CSV"].decode())))
    assert sum(float(r["relevance"]) for r in rows if r["kind"] == "node") == pytest.approx(3, abs=1e-2)
    assert json.loads(found["JSON"])["schema"] == 1


def test_a_notebook_frame_runs(browser: Any, report: Path, tmp_path: Path) -> None:
    shown = subjects.measured().report(layers=["pool#0", "output"], nodes=3, flows=1)
    outer = tmp_path / "notebook.html"
    outer.write_text(f"<!doctype html><meta charset=utf-8><div id=network><svg></svg></div>{shown._repr_html_()}")
    with opened(browser, outer.as_uri()) as page:
        frame = page.frame_locator("iframe")
        frame.locator("#network .node").first.wait_for()


def test_a_notebook_shows_the_explorer_of_a_measure(browser: Any, tmp_path: Path) -> None:
    R = nrm.measure(
        subjects.small(), torch.cat([subjects.image(0), subjects.image(1)]), labels={"output": subjects.CLASSES},
        rules="epsilon-plus", bias="input",
    )  # fmt: skip
    outer = tmp_path / "notebook.html"
    with R.explore() as made:
        outer.write_text(f"<!doctype html><meta charset=utf-8>{made._repr_html_()}")
        context = browser.new_context()
        page = context.new_page()
        page.goto(outer.as_uri())  # another site than the explorer, as a notebook is
        frame = page.frame_locator("iframe")
        frame.locator(".flow").first.wait_for(timeout=PATIENCE)
        assert frame.locator("#item option").all_inner_texts() == ["sample 0", "sample 1"]
        frame.locator('[data-node="0:0"]').click()
        frame.locator("#share").wait_for()
        frame.locator("#target").select_option("2")  # measured anew, from the values of the input
        frame.locator("#decision strong", has_text="bird").wait_for(timeout=PATIENCE)
        context.close()


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


def test_what_is_chosen_is_switched_off(browser: Any, explorer: Any) -> None:
    R = nrm.measure(subjects.small(), subjects.image(0), rules="epsilon-plus", bias="input")
    with opened(browser, explorer.url) as page:
        complete(page)
        assert page.locator("#off").count() == 0  # nothing is chosen
        layer, by = head(page), page.locator("#network .subhead").first.text_content()
        assert "clusters" in by
        page.locator('[data-node^="0:"]').first.click()
        page.keyboard.press("Escape")
        drag(page, (0.02, 0.02), (0.98, 0.98))
        page.locator("#off-region").click()  # all of the picture
        page.wait_for_selector("#after")
        assert "the network" in page.locator("#fate").inner_text()
        without = nrm.evaluate.remove(R, R.input.all)[0, int(R.target)]
        assert number(page.locator("#after").inner_text()) == pytest.approx(float(without), rel=2e-3)
        page.locator('[data-node="0:0"]').click()
        page.locator("#off-value").select_option("other:1")
        page.locator("#off").click()
        page.wait_for_selector("#after")
        assert layer in page.locator("#selection").inner_text()
        assert "evaluate.remove" in page.locator("#script").inner_text()
        page.locator('[data-node="2:0"]').click()
        page.keyboard.press("Escape")
        page.locator('[data-node="2:0"]').click()
        assert page.locator("#off").count() == 0  # the output itself


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
        page.locator("#compare").select_option("1")
        page.wait_for_selector("#comparison figure")
        assert page.locator("#comparison canvas").count() == 3
        before = pixels(page)
        page.locator("#item").select_option(label="sample 1")
        changes(page, before)
        complete(page)


@pytest.fixture(scope="module")
def crowd() -> Iterator[nrm.explorer.Explorer]:
    """Digits with their classes, one of them in a form that does not fit; and a second checkpoint."""
    model, _, _ = nrm.demo.digits()
    other, _, _ = nrm.demo.digits()
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(0.9)
    images, labels = nrm.demo.read_digits()
    data: list[Any] = [(images[i], int(labels[i])) for i in range(1500, 1524)]
    data[3] = (torch.zeros(2, 8, 8), 0)
    names = [f"digit {i}" for i in range(10)]
    with nrm.explore(model, data, labels=names, other=other, open=False, block=False) as made:
        yield made


def test_many_inputs_are_filtered_laid_out_compared_and_opened(browser: Any, crowd: Any) -> None:
    pytest.importorskip("sklearn")
    with opened(browser, crowd.url) as page:
        complete(page)
        page.locator("#all").click()
        page.wait_for_function("() => document.querySelectorAll('#overview-stage .card').length === 24")
        page.locator('[data-shown="plane"]').click()
        page.wait_for_selector(".plane .dot")
        assert page.locator(".dot").count() == 23
        assert page.locator(".about").count() >= 2
        assert "→" in page.locator(".about li").first.inner_text()
        page.locator("#overview-one").select_option("cluster 1")
        page.locator("#overview-other").select_option("cluster 2")
        page.locator("#overview-sides").click()
        page.wait_for_selector("#alike")
        assert page.locator("#overview-compared tbody tr").count() == 12
        page.locator('[data-shown="grid"]').click()
        assert page.locator(".card.failed").count() == 1
        assert "22 of 23 right" in page.locator("#overview-says").inner_text()
        page.locator("#overview-filter").select_option("wrong")
        assert page.locator(".card").count() == 1
        page.locator("#overview-filter").select_option("right")
        page.locator("#overview-search").fill("sample 12")
        assert page.locator(".card .cardname").all_inner_texts() == ["sample 12"]
        page.locator("#overview-search").fill("")
        page.locator("#overview-sort").select_option("least sure first")
        sure = page.locator(".card .open > span:last-child").all_inner_texts()
        chances = [int(re.search(r"(\d+) %", text)[1]) for text in sure]
        assert chances == sorted(chances)
        for name in ("sample 1", "sample 12"):
            page.get_by_label(f"mark {name}", exact=True).check()
        page.locator("#overview-compare").click()
        page.wait_for_function("() => document.querySelector('.sidebyside').textContent.includes('sample 12')")
        page.locator('.card .open[data-item="12"]').click()
        page.wait_for_function("() => document.getElementById('title').textContent === 'sample 12'")
        complete(page)


def test_two_checkpoints_are_compared(browser: Any, crowd: Any) -> None:
    with opened(browser, crowd.url) as page:
        complete(page)
        page.locator("#compare").select_option("model")
        page.wait_for_selector("#comparison figure")
        assert "the other model" in page.locator("#comparison").inner_text()
        assert "compare=model" in page.url
        assert page.locator("#comparison canvas").count() == 3


def test_an_old_address_is_told_the_new_name(browser: Any, explorer: Any) -> None:
    with opened(browser, explorer.url) as page:
        complete(page)
        page.evaluate("location.hash = 'item=0&against=1'")
        page.wait_for_selector("#job .error")
        assert "compare=" in page.locator("#job").inner_text()


def test_layers_can_be_chosen_and_the_address_passed_on(browser: Any, explorer: Any) -> None:
    with opened(browser, explorer.url) as page:
        complete(page)
        page.locator("#choice summary").click()
        page.get_by_label("layer 1", exact=True).select_option("conv1")
        page.locator("#apply").click()
        page.wait_for_function("() => document.querySelector('#network .head')?.textContent.startsWith('conv1')")
        complete(page)
        assert "token" not in page.url
        address = f"{explorer.url}#{page.url.partition('#')[2]}"
    with opened(browser, address) as page:
        complete(page)
        assert page.locator("#network .head").first.text_content().startswith("conv1")


def test_back_forward_undo_and_an_address_that_is_pasted(browser: Any, explorer: Any) -> None:
    with opened(browser, explorer.url) as page:
        complete(page)
        assert page.locator("#undo").is_hidden()
        page.locator('[data-node="0:0"]').click()
        page.locator("#item").select_option(label="sample 1")
        page.wait_for_function("() => document.getElementById('title').textContent === 'sample 1'")
        complete(page)
        assert page.locator(".node.on").count() == 0
        page.go_back()
        page.wait_for_function("() => document.getElementById('title').textContent === 'sample 0'")
        page.wait_for_selector('.node.on[data-node="0:0"]')
        page.go_back()
        page.wait_for_function("() => !document.querySelector('.node.on')")
        page.go_forward()
        page.wait_for_selector('.node.on[data-node="0:0"]')
        page.go_forward()
        page.wait_for_function("() => document.getElementById('title').textContent === 'sample 1'")
        complete(page)
        page.locator("#undo").click()
        page.wait_for_function("() => document.getElementById('title').textContent === 'sample 0'")
        assert page.locator("#item").input_value() == "0"
        page.evaluate('location.hash = \'item=2&layers=[["conv1","channels"],["output","channels"]]&chosen=0:0\'')
        page.wait_for_function("() => document.querySelector('#network .head')?.textContent.startsWith('conv1')")
        page.wait_for_selector('.node.on[data-node="0:0"]')
        assert page.locator("#title").inner_text() == "sample 2"
        complete(page)
        page.keyboard.press("Control+z")
        page.wait_for_function("() => document.getElementById('title').textContent === 'sample 0'")


def test_an_input_that_fails_shows_its_own_error(browser: Any) -> None:
    """The second input has too few channels, the third is whole again."""
    data = [subjects.image(0)[0], torch.rand(1, 12, 12), subjects.image(2)[0]]
    made = nrm.explore(subjects.small(), data, labels=subjects.CLASSES, open=False, block=False, rules="epsilon-plus")
    with made, opened(browser, made.url, refusals=True) as page:
        complete(page)
        page.locator("#item").select_option(label="sample 1")
        page.wait_for_selector("#failure:not([hidden])")
        assert "sample 1 is not explained" in page.locator("#failure").inner_text()
        assert page.locator("#failure .error").inner_text()
        assert page.locator("#title").inner_text() == "sample 1"
        assert not page.locator("#picture").is_visible()
        assert not page.locator("#story").is_visible()
        page.locator("#again").click()
        page.wait_for_selector("#failure:not([hidden])")
        broken = {"name": "<b>.png", "mimeType": "image/png", "buffer": b"nothing"}
        page.locator("#file").set_input_files(broken)
        page.wait_for_selector("#errors p")
        page.locator("#item").select_option(label="sample 2")
        complete(page)
        assert page.locator("#picture").is_visible()
        assert page.locator("#failure").is_hidden()
        assert "<b>.png" in page.locator("#errors p").inner_text()  # it stays until it is read
        page.locator("#errors button").click()
        assert page.locator("#errors p").count() == 0


def test_a_view_that_was_forgotten_is_made_again(browser: Any, explorer: Any) -> None:
    with opened(browser, explorer.url, refusals=True) as page:
        complete(page)
        explorer._session._views.clear()
        page.locator('[data-node="0:0"]').click()
        page.locator('[data-node="1:1"]').click()
        page.wait_for_selector(".given")
        answered(page)


def test_the_token_leaves_the_address_and_no_command_line_has_it(
    browser: Any, explorer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: started.append(address) or True)
    explorer.open()
    token = explorer.url.partition("=")[2]
    (door,) = started
    assert token not in door
    file = Path(url2pathname(urlparse(door).path))
    assert token in file.read_text()
    assert file.parent.stat().st_mode & 0o077 == 0
    context = browser.new_context()
    page = context.new_page()
    page.goto(door)
    page.wait_for_selector(".flow", timeout=PATIENCE)
    assert token not in page.url
    assert token not in page.evaluate("document.cookie")
    page.reload()  # by the cookie alone
    page.wait_for_selector(".flow", timeout=PATIENCE)
    (cookie,) = context.cookies()
    assert (cookie["sameSite"], cookie["httpOnly"]) == ("Strict", True)
    context.clear_cookies()
    page.reload()
    page.wait_for_selector("#job .error")
    assert "open the address" in page.locator("#job").inner_text()
    context.close()


def test_an_address_that_makes_no_sense_shows_the_view(browser: Any, explorer: Any) -> None:
    words = {"sets": '{"a": 1, "b": {"nodes": [7]}, "<b>": {"region": "x"}}', "layers": "7", "item": "<i>", "ask": "a"}
    words |= {"coverage": "much", "chosen": "99:99-x", "nodes": "-3", "target": "1e9"}
    with opened(browser, f"{explorer.url}#{urlencode(words)}") as page:
        complete(page)
        assert page.locator(".chip").count() == 1
        assert "There is no input <i>" in page.locator("#errors").inner_text()
        assert page.locator("#decision strong").inner_text()


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
        complete(page)  # the flow appears without pressing anything, as long as nobody chooses layers
        page.locator("#choice summary").click()
        page.locator("#apply").click()
        page.locator("#leave").click()
        assert page.locator("#question").is_hidden()
        assert "left out" in page.locator("#left").inner_text()
        page.wait_for_function("() => document.getElementById('job').hidden")
        page.locator("#compute").click()
        complete(page)
        assert page.locator("#left").is_hidden()
        monkeypatch.undo()
        monkeypatch.setattr("nrm.report.view.View.ribbons", _endless)
        page.locator("#target").select_option("1")
        page.wait_for_function("() => document.getElementById('job').textContent.includes('ribbons')")
        tall = [page.locator(f'[data-node^="{c}:"] .body').first.bounding_box()["height"] for c in range(3)]
        assert min(tall) > 4  # columns have their size before they have ribbons
        before = pixels(page)
        page.locator('[data-node="0:0"]').click()  # answered meanwhile
        changes(page, before)
        page.wait_for_function("() => document.getElementById('job').textContent.includes('ribbons')")
        page.locator("#cancel").click()
        page.wait_for_function("() => document.getElementById('job').textContent.includes('cancelled')")


def _endless(view: Any) -> Iterator[Any]:
    while True:
        torch.zeros(1)
    yield


def drag(page: Any, *points: tuple[float, float], on: str = "#picture") -> None:
    """Draws a path with the mouse, in shares of an element's sides."""
    area = page.locator(on).bounding_box()
    places = [(area["x"] + x * area["width"], area["y"] + y * area["height"]) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=3)
    page.mouse.up()


def number(text: str) -> float:
    return float(text.split()[0].replace("\u2212", "-"))


def answered(page: Any) -> float:
    """The share of a selection or formula, once its map is there."""
    page.wait_for_function("() => document.getElementById('share')?.textContent.includes('%')")
    page.wait_for_function("() => !document.querySelector('#selection .note')")
    return number(page.locator("#share").inner_text())


def test_formulas_with_named_nodes_regions_and_channels(
    browser: Any, explorer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lark")
    monkeypatch.setenv("NRM_HOME", str(tmp_path))  # names of its own
    with opened(browser, explorer.url) as page:
        complete(page)
        page.locator('[data-node="0:0"]').click()
        page.wait_for_selector("#share")
        page.locator("#name").fill("part")
        page.locator("#name-nodes").click()
        page.keyboard.press("Escape")
        before = pixels(page)
        drag(page, (0.02, 0.02), (0.5, 0.5))
        page.locator("#name").fill("corner")
        page.locator("#name-region").click()
        page.locator('[data-tool="lasso"]').click()
        drag(page, (0.4, 0.4), (0.9, 0.5), (0.7, 0.95), (0.4, 0.8))
        page.locator("#name").fill("bow")
        page.locator("#name-region").click()
        page.locator(".sets summary").click()
        page.locator("#set-layer").select_option("pool#1")
        page.locator("#set-channels").fill("1, 3-5")
        page.locator("#name").fill("late")
        page.locator("#name-channels").click()
        page.locator("#ask").fill("(part OR late) AND NOT (corner OR bow)")
        page.wait_for_function("() => document.getElementById('price').textContent.includes('forward pass')")
        page.locator("#run").click()
        changes(page, before)
        share, lines = answered(page), page.locator("#script").inner_text()
        address = f"{explorer.url}#{page.url.partition('#')[2]}"
        space = {"model": subjects.small(), "inputs": subjects.image()}
        exec(lines.replace("print(R.check())", ""), space)
        assert 100 * float(space["share"]) == pytest.approx(share, abs=0.06)
        page.locator("#ask").fill("part AND (")
        page.locator("#run").click()
        page.wait_for_selector("#selection .note")
    with opened(browser, address) as page:
        complete(page)
        assert answered(page) == share


def test_names_groups_and_notes_come_back(
    browser: Any, explorer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = json.dumps([["pool#0", "channels"], ["pool#1", "channels"], ["output", "channels"]])
    model, options = subjects.small(), {"rules": "epsilon-plus", "bias": "input"}
    monkeypatch.setenv("NRM_HOME", str(tmp_path / "home"))
    with opened(browser, f"{explorer.url}#{urlencode({'layers': layers, 'item': '0'})}") as page:
        complete(page)
        texts = [page.locator(f'[data-node="0:{n}"] .name').text_content() for n in (0, 1)]
        shares = [number(page.locator(f'[data-node="0:{n}"] .share').text_content()) for n in (0, 1)]
        page.locator('[data-node="0:0"]').click()
        page.locator('[data-node="0:1"]').click(modifiers=["Shift"])
        page.locator("#name").fill("stripes")
        page.locator("#name-nodes").click()
        page.wait_for_function(
            "() => [...document.querySelectorAll('.node .name')].some(n => n.textContent === 'stripes')"
        )
        complete(page)
        node = page.locator(".node", has=page.locator(".name", has_text="stripes"))
        assert number(node.locator(".share").text_content()) == pytest.approx(sum(shares), abs=0.02)
        space: dict[str, Any] = {"model": model, "inputs": subjects.image(0)}
        exec(page.locator("#script").inner_text().partition("R.report")[0], space)  # with nrm.merge
        channels = sorted(int(text.split()[1]) for text in texts)
        assert nrm.report.node_names(model)[f"pool#0.channel({channels})"] == "stripes"
        R = nrm.measure(model, subjects.image(0), **options)
        assert 100 * float(R(nrm.report.named_sets(R)["stripes"])) == pytest.approx(sum(shares), abs=0.02)

        drag(page, (0.7, 0.27), (0.98, 0.48))
        page.locator("#name").fill("corner")
        page.locator("#name-region").click()
        page.wait_for_function("() => document.getElementById('story').textContent.includes('corner')")
        complete(page)
        page.locator("#notes summary").click()
        assert "home" in page.locator("#home").inner_text()
        page.locator("#note").fill("the stripes matter")
        page.locator("#note").blur()
        page.locator("#item").select_option(label="sample 1")
        page.wait_for_function("() => document.getElementById('title').textContent === 'sample 1'")
        complete(page)
        assert page.locator(".chip").count() == 1  # the group belongs to the model, the region to its input
        assert page.locator(".node .name", has_text="stripes").count() == 1
        assert page.locator("#note").input_value() == ""
        page.go_back()
        page.wait_for_function("() => document.getElementById('note').value === 'the stripes matter'")
        complete(page)
        assert set(nrm.report.named_sets(R)) == {"stripes", "corner"}
        page.locator("#saving summary").click()
        with page.expect_download() as waiting:
            page.get_by_role("button", name="this view with its names and notes").click()
        file = tmp_path / "view.json"
        file.write_bytes(Path(waiting.value.path()).read_bytes())
        for name in ("corner", "stripes"):
            page.get_by_label(f"forget {name}").click()
            page.wait_for_function(
                "name => ![...document.querySelectorAll('.chip .word')].some(c => c.textContent === name)", arg=name
            )
            complete(page)
        assert nrm.report.named_sets(R) == {}
        page.locator("#undo").click()
        page.wait_for_function("() => document.querySelectorAll('.chip').length === 1")
        complete(page)
        assert set(nrm.report.named_sets(R)) == {"stripes"}
        page.locator("#item").select_option(label="sample 2")
        page.wait_for_function("() => document.getElementById('title').textContent === 'sample 2'")
        complete(page)
        page.locator("#saved").set_input_files(file)
        page.wait_for_function("() => document.querySelectorAll('.chip').length === 2")
        complete(page)
        assert page.locator("#title").inner_text() == "sample 0"
        assert page.locator("#note").input_value() == "the stripes matter"
        for name in ("corner", "stripes"):
            page.get_by_label(f"forget {name}").click()
            page.wait_for_function(
                "name => ![...document.querySelectorAll('.chip .word')].some(c => c.textContent === name)", arg=name
            )
            complete(page)


def test_several_nodes_are_chosen_and_the_keyboard_keeps_its_place(browser: Any, explorer: Any) -> None:
    with opened(browser, explorer.url) as page:
        complete(page)
        page.locator('[data-node="0:0"]').click()
        page.locator('[data-node="0:1"]').click(modifiers=["Shift"])
        assert page.locator(".node.on").count() == 2
        single = [number(page.locator(f'[data-node="0:{n}"] .share').text_content()) for n in (0, 1)]
        assert answered(page) == pytest.approx(sum(single), abs=0.1)
        page.locator('[data-node="0:0"]').focus()
        page.keyboard.press("Enter")  # instead of both
        assert answered(page) == pytest.approx(single[0], abs=0.1)
        assert page.evaluate("document.activeElement.dataset.node") == "0:0"
        page.keyboard.press("Escape")
        page.locator("#network").scroll_into_view_if_needed()
        drag(page, (0.0, 0.09), (0.02, 0.99), on="#network svg")
        assert page.locator(".node.on").count() == page.locator('[data-node^="0:"]').count()


def saved(page: Any) -> Any:
    """The picture that the page saves."""
    with page.expect_download() as waiting:
        save(page, "the map (PNG)")
    return Image.open(io.BytesIO(Path(waiting.value.path()).read_bytes()))


LAYER = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def guide() -> Iterator[nrm.explorer.Explorer]:
    """An explorer with a hostile layer, examples of a data set, and inputs from files with hostile names."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(OrderedDict([
        ("conv", torch.nn.Conv2d(3, 6, 3)), (LAYER, torch.nn.ReLU()), ("pool", torch.nn.MaxPool2d(5)),
        ("flat", torch.nn.Flatten()), ("fc", torch.nn.Linear(24, 4)),
    ])).eval()  # fmt: skip
    data = torch.cat([subjects.image(seed) for seed in range(5)])
    layer, options = nrm.layer(LAYER), {"rules": "epsilon-plus", "bias": "input"}
    questions = layer.channels, (layer.channels, nrm.layer("pool").channels)
    found = nrm.relmax(model, data, *questions, k=3, progress=False, **options)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a.png", "<img src=x onerror=alert(2)>.png"):
            Image.new("RGB", (12, 12), (220, 90, 30)).save(Path(folder) / name)
        made = nrm.explore(
            model, folder, labels=subjects.CLASSES, store=found, dataset=data, open=False, block=False, **options
        )
        with made:
            yield made


def test_examples_are_shown_and_hostile_layers_and_files_stay_text(browser: Any, guide: Any) -> None:
    layers = json.dumps([[LAYER, "channels"], ["pool", "channels"], ["output", "channels"]])
    with opened(browser, f"{guide.url}#{urlencode({'layers': layers, 'item': '0', 'target': '3'})}") as page:
        complete(page)
        assert page.locator("#title").inner_text() == "<img src=x onerror=alert(2)>.png"
        assert LAYER in page.locator("#network .head title").first.text_content()
        page.locator('[data-node="0:0"]').click()
        page.wait_for_selector("#examples figure canvas")
        assert page.locator("#examples figure").count() == 3
        page.locator('[data-node="1:0"]').click()
        page.wait_for_selector(".given")
        page.wait_for_selector("#examples figure canvas")
        page.locator('[data-node="0:0"]').click()  # only the pool, which the data set was not asked about
        page.wait_for_function("() => document.getElementById('examples').hidden")
        assert page.locator("img").count() == 0


def test_texts_are_tokens_that_can_be_marked_and_written(browser: Any) -> None:
    pytest.importorskip("lark")
    words = ["the", "cat", "sat", "down", "on", "a", "mat"]
    made = nrm.explore(
        subjects.reader(), ["the cat sat down", "a cat sat"], labels=["no", "yes", subjects.HOSTILE],
        transform=lambda text: torch.tensor([words.index(w) for w in text.split()]),
        names=lambda ids: [words[i] for i in ids[0].tolist()], open=False, block=False,
    )  # fmt: skip
    colours = "() => [...document.querySelectorAll('#picture span')].map(s => s.style.background).join()"
    with made, opened(browser, made.url) as page:
        complete(page)
        assert page.locator("#picture span").all_inner_texts() == ["the", "cat", "sat", "down"]
        before = page.evaluate(colours)
        page.locator('[data-node="0:0"]').click()
        page.wait_for_function(f"old => ({colours})() !== old", arg=before)
        page.keyboard.press("Escape")
        for i in (1, 2):
            page.locator(f'#picture [data-position="{i}"]').click()
        assert page.locator("#picture .picked").count() == 2
        page.locator("#name").fill("both")
        page.locator("#name-region").click()
        page.locator("#run").click()
        answered(page)
        assert saved(page).width > 300
        page.locator("#text").fill("a mat")
        page.locator("#write").click()
        page.wait_for_function("() => document.querySelectorAll('#picture span').length === 2")
        complete(page)


def test_a_graph_is_drawn_and_its_nodes_answer(browser: Any) -> None:
    made = nrm.explore(
        subjects.chemist(), [subjects.molecule()], labels=["no", "yes"], names=lambda inputs: subjects.ATOMS,
        open=False, block=False, rules="epsilon-plus",
    )  # fmt: skip
    drawn = "() => document.getElementById('picture').innerHTML"
    with made, opened(browser, made.url) as page:
        complete(page)
        assert page.locator("#picture .atom").count() == 9
        assert page.locator("#picture .bond").count() == 9
        assert "second" in page.locator("#along").inner_text()
        before = page.evaluate(drawn)
        page.locator('[data-node="1:0"]').click()
        page.wait_for_function(f"old => ({drawn})() !== old", arg=before)
        answered(page)
        page.locator("#picture .atom").nth(6).click()
        assert page.locator("#picture .atom.picked").count() == 1
        assert len(saved(page).convert("RGB").getcolors(1 << 20)) > 20


def test_a_report_of_a_graph_needs_no_server(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "molecule.html"
    subjects.read_molecule().report(path, layers=[("first", "positions"), ("second", "edges"), "output"], nodes=4)
    with opened(browser, path.as_uri()) as page:
        assert page.locator("#picture .atom").count() == 9
        before = page.locator("#picture").inner_html()
        page.locator('[data-node="1:0"]').click()
        assert page.locator("#picture").inner_html() != before
        assert "→" in page.locator("#selection li").inner_text()
        assert "heat_of_selection" in page.locator("#script").inner_text()


def test_shares_beyond_everything_are_told_as_for_and_against(browser: Any, tmp_path: Path) -> None:
    """A bias of -4 beside an input of 5: 500 % in the picture, and -400 % against it."""
    model = torch.nn.Linear(1, 1)
    model.load_state_dict({"weight": torch.tensor([[5.0]]), "bias": torch.tensor([-4.0])})
    nrm.measure(model, torch.ones(1, 1)).report(tmp_path / "r.html")
    with opened(browser, (tmp_path / "r.html").as_uri()) as page:
        assert page.locator("#selection .sides > span:nth-child(3n + 1)").all_inner_texts() == [
            "for it, in these values", "from biases"
        ]  # fmt: skip
        assert page.locator("#selection .sides b").all_inner_texts() == ["500.0 %", "−400.0 %"]
        assert page.locator("#trust").inner_text().count("With care: ") == 1
        assert "biases speak against it (−400 %)" in page.locator("#story").inner_text()
