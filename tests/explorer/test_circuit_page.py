"""The page of a circuit in a real browser."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nrm
from explorer.browser import launched, opened
from laws.test_direct import TOKENS, measured
from report.subjects import HOSTILE

Image = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.filterwarnings("ignore:the predicted mass of this circuit")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    path = tmp_path_factory.mktemp("circuit") / "circuit.html"
    R: nrm.Measure = measured("before", "contrast", seed=0).sample(0)
    circuit = R.circuit(top=30, positions=True, chains=2)
    labels = [HOSTILE, "two", "three"][:TOKENS]
    report = circuit.report(path, R, patch=True, sizes=6, labels=labels, title=HOSTILE)
    return path, report.view


def node_of(view: dict[str, Any], kind: str) -> int:
    """A node of a kind."""
    ends = [n for e in view["steps"][-1]["edges"] for n in view["ribbons"][e][:2]]
    return next(n for n in ends if view["nodes"][n]["kind"] == kind)


def test_the_slider_takes_edges_away(browser: Any, made: tuple[Path, dict[str, Any]]) -> None:
    path, view = made
    with opened(browser, path.as_uri()) as page:
        assert page.locator(".cedge").count() == len(view["steps"][-1]["edges"])
        assert page.locator("#title").inner_text() == HOSTILE
        assert page.title() != "broken"
        assert page.locator("img").count() == 0
        page.locator("#size").fill("0")
        assert page.locator(".cedge").count() == len(view["steps"][0]["edges"])
        assert page.locator("#sized").inner_text() == f"{len(view['steps'][0]['edges'])} edges"
        sentence = page.locator("#sentence").inner_text()
        assert sentence.startswith(f"{len(view['steps'][0]['edges'])} of {view['possible']} edges carr")
        assert "patching measures" in sentence
        assert "size=0" in page.url
        page.locator(".cdot.f").nth(2).click()
        assert page.locator("#size").input_value() == "2"
        assert page.locator("#chains li").count() == 2


def test_a_node_is_asked_and_named_and_the_name_comes_back(browser: Any, made: tuple[Path, dict[str, Any]]) -> None:
    path, view = made
    with opened(browser, path.as_uri()) as page:
        n = node_of(view, "head")
        page.locator(f'[data-circuit="{n}"]').click()
        text = page.locator("#selection").inner_text()
        assert view["nodes"][n]["name"] in text
        assert "flows through it inside this circuit" in text
        assert "is lost when the node alone is taken from the reference" in text
        assert page.locator(".cedges b").count() >= 2
        assert page.locator(".cedge.on").count() >= 2
        page.locator("#circuit-name").fill("<b>mover</b>")
        page.keyboard.press("Enter")
        assert "<b>mover</b>" in page.locator("#names").inner_text()
        page.reload()
        assert page.locator(".cnode text", has_text="<b>mover</…").count() >= 1
        assert page.locator("#circuit-name").input_value() == "<b>mover</b>"  # the address has the node
        page.locator("#circuit-name").fill("")
        page.keyboard.press("Enter")
        assert "No node has a name" in page.locator("#names").inner_text()


def test_parts_of_a_head_are_told(browser: Any, made: tuple[Path, dict[str, Any]]) -> None:
    path, view = made
    heads = [head for _, head in view["links"]]
    with opened(browser, f"{path.as_uri()}#node={heads[0]}") as page:
        text = page.locator("#selection").inner_text()
        assert "It reads" in text
        assert "keys and values" in text
        page.get_by_role("button", name="keys and values").first.click()
        assert "is read here" in page.locator("#selection").inner_text()


def test_keys_and_themes(browser: Any, made: tuple[Path, dict[str, Any]]) -> None:
    path, view = made
    with opened(browser, path.as_uri()) as page:
        assert page.locator('.cnode[tabindex="0"]').count() == 1
        page.locator('.cnode[tabindex="0"]').focus()
        before = page.evaluate("document.activeElement.dataset.circuit")
        page.keyboard.press("ArrowUp")
        after = page.evaluate("document.activeElement.dataset.circuit")
        assert view["nodes"][int(after)]["y"] > view["nodes"][int(before)]["y"]
        page.keyboard.press("Enter")
        assert page.locator(".cnode.on").count() == 1
        page.keyboard.press("Escape")
        assert page.locator(".cnode.on").count() == 0
        dark = page.evaluate("document.documentElement.dataset.theme")
        page.keyboard.press("d")
        assert page.evaluate("document.documentElement.dataset.theme") != dark


def test_circuits_are_taken_away(browser: Any, made: tuple[Path, dict[str, Any]]) -> None:
    path, view = made
    found = {}
    with opened(browser, path.as_uri()) as page:
        for kind in ("PNG", "SVG", "JSON"):
            with page.expect_download() as waiting:
                page.get_by_role("button", name=kind, exact=True).click()
            found[kind] = Path(waiting.value.path()).read_bytes()
    picture = Image.open(io.BytesIO(found["PNG"])).convert("L")
    assert picture.width > 300
    assert picture.getextrema()[0] < 120 < picture.getextrema()[1]  # something is drawn
    assert found["SVG"].count(b"data-edge") == len(view["steps"][-1]["edges"])
    assert b"<img" not in found["SVG"]
    assert json.loads(found["JSON"])["kind"] == "circuit"
