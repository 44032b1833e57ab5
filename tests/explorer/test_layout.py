"""The pages as people meet them: accessible in light and dark, whole on a phone and on a wide screen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import nrm
from explorer.browser import launched, opened
from report import subjects

pytest.importorskip("starlette")
ROOT = Path(__file__).resolve().parents[2]

FINDINGS = """async source => {
    if (!window.axe) (0, eval)(source);
    const found = await axe.run(document, {resultTypes: ["violations"]});
    return found.violations.filter(v => ["serious", "critical"].includes(v.impact))
        .map(v => `${v.id}: ${v.nodes.slice(0, 3).map(n => n.html.slice(0, 160)).join(" | ")}`);
}"""
OUTSIDE = """() => [...document.querySelectorAll("h1, h2, p, button, select, .decision, .story, .trust")]
    .filter(e => e.getClientRects().length && e.getBoundingClientRect().right > innerWidth + 1)
    .map(e => e.outerHTML.slice(0, 90))"""
OVERLAPS = """() => {
    const boxes = what => [...document.querySelectorAll(what)].map(e => e.getBBox());
    const meet = (a, b) => a.x < b.x + b.width - 1 && b.x < a.x + a.width - 1
        && a.y < b.y + b.height - 3 && b.y < a.y + a.height - 3;
    const pairs = list => list.flatMap((a, i) => list.slice(i + 1).filter(b => meet(a, b))).length;
    const columns = new Set([...document.querySelectorAll("#network .node")].map(n => n.dataset.node.split(":")[0]));
    return pairs(boxes("#network .head, #network .subhead"))
        + [...columns].reduce((sum, c) => sum + pairs(boxes(`#network [data-node^="${c}:"] text`)), 0);
}"""


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    torch.manual_seed(0)
    data = torch.cat([subjects.image(seed) for seed in range(2)])
    made = nrm.explore(subjects.small(), data, labels=["cat", "dog", "bird", "a class with a long name"], open=False,
                       block=False, rules="epsilon-plus", bias="input")  # fmt: skip
    # The page runs no script but its own: for the one that looks at it, the policy is set aside.
    with launched() as browser, made, opened(browser, made.url, bypass_csp=True) as shown:
        complete(shown)
        yield shown


def complete(page: Any) -> None:
    page.wait_for_selector(".flow")
    page.wait_for_function("() => document.getElementById('job').hidden")


def test_axe_finds_nothing_serious_in_light_and_dark(page: Any) -> None:
    path = Path(os.environ.get("NRM_AXE") or ROOT / "out" / "axe-core.js")
    if not path.is_file():
        pytest.skip("no axe-core: python tools/vendor.py --axe, or set NRM_AXE")
    source = path.read_text(encoding="utf-8")
    assert page.evaluate(FINDINGS, source) == []
    page.locator('[data-node="0:0"]').click()
    page.locator("#off").click()
    page.wait_for_selector("#after")
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    for theme in ("light", "dark"):
        page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        page.wait_for_timeout(250)  # colours change gently
        assert page.evaluate(FINDINGS, source) == []
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = false; })")
    page.evaluate("document.documentElement.dataset.theme = 'light'")
    page.keyboard.press("Escape")


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1366, 768), (1920, 1080)])
def test_nothing_is_cut_or_overlaps(page: Any, width: int, height: int) -> None:
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(OUTSIDE) == []
    assert page.evaluate(OVERLAPS) == 0
    photo = page.locator("#photo canvas" if width > 860 else "#small-photo canvas")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.locator("section.side").evaluate("side => { side.scrollTop = side.scrollHeight; }")
    box = photo.bounding_box()
    assert 0 <= box["y"] + (box["height"] if width <= 860 else 0) <= height  # always in sight
    page.evaluate("scrollTo(0, 0)")
    if width == 1920:
        panels = page.locator(".panels").bounding_box()
        assert panels["x"] > 1400  # beside the diagram, on a wide screen
    page.set_viewport_size({"width": 1366, "height": 768})


def test_the_formula_bar_stands_below_the_diagram_with_an_example_of_this_input(page: Any) -> None:
    pytest.importorskip("lark")
    diagram, bar = (page.locator(name).bounding_box() for name in ("#network", "#formula"))
    assert bar["y"] > diagram["y"] + diagram["height"] - 1
    example = page.locator("#ask").get_attribute("placeholder")
    assert example.startswith("ask a formula: ")
    page.locator("#ask").fill(example.removeprefix("ask a formula: "))
    page.locator("#run").click()
    page.wait_for_function("() => document.getElementById('share')?.textContent.includes('%')")
    assert page.locator("#selection .note").count() == 0
    page.keyboard.press("Escape")


def test_the_list_of_layers_is_searched_and_scrolled_by_keyboard(page: Any) -> None:
    page.set_viewport_size({"width": 1366, "height": 500})
    page.locator("#wanted").fill("conv")
    assert page.locator(".layer").count() == 3
    page.locator("#wanted").fill("")
    page.add_style_tag(content=".layers { max-height: 90px; }")
    page.locator("#wanted").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "layers"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    page.wait_for_function("() => document.getElementById('layers').scrollTop > 0")
