"""Circuits in the explorer: the server's answers, and the page that shows them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
from explorer.browser import launched, opened
from laws.test_direct import DIM, Before

pytest.importorskip("starlette")
TestClient = pytest.importorskip("starlette.testclient", exc_type=ImportError).TestClient

from nrm.explorer.app import make_app  # noqa: E402
from nrm.explorer.items import Items  # noqa: E402
from nrm.explorer.session import Session  # noqa: E402
from report import subjects  # noqa: E402

HOST, TOKEN, TOKENS = "127.0.0.1:4000", "a-token", 4
pytestmark = pytest.mark.filterwarnings("ignore:the predicted mass of this circuit", "ignore:no circuit of mass")


class Reader(nn.Module):
    """A transformer of two blocks over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(20, DIM), nn.Sequential(Before(), Before())
        self.head = nn.Linear(DIM, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(ids))[:, -1])


def reader() -> Reader:
    torch.manual_seed(0)
    return Reader().eval()


REFERENCE = torch.tensor([[1, 2, 3, 4]])
TEXTS = torch.tensor([[1, 7, 3, 4], [9, 2, 3, 5]])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NRM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    session = Session(reader(), Items(TEXTS), None, {"against": REFERENCE})
    app = make_app(session, TOKEN, frozenset({HOST}))
    with TestClient(app, base_url=f"http://{HOST}", headers={"X-Token": TOKEN}) as made:
        yield made
    session.worker.close()


def finished(client: Any, job: str) -> list[dict[str, Any]]:
    for _ in range(1500):
        news = client.get(f"/api/jobs/{job}").json()
        if news["state"] not in ("waiting", "running"):
            assert news["state"] == "done", news["error"]
            parts: list[dict[str, Any]] = news["parts"]
            return parts
        time.sleep(0.02)
    raise AssertionError("the job does not end")


def asked(client: Any, what: str, **question: Any) -> tuple[str, list[dict[str, Any]]]:
    answer = client.post(f"/api/circuits/{what}", json=question)
    assert answer.status_code == 200, answer.json()
    job = answer.json()["job"]
    return job, finished(client, job)


def viewed(client: Any) -> tuple[str, dict[str, Any]]:
    """A view that is there, and its first part; what else it has is not waited for."""
    job = client.post("/api/views", json={"item": "0", "layers": [["blocks", "channels"], ["output", "channels"]]})
    number = job.json()["job"]
    return number, finished(client, number)[0]


def test_a_circuit_is_found_measured_patched_and_named(client: Any, home: Path) -> None:
    view, facts = viewed(client)
    assert facts["circuits"]
    job, (part,) = asked(client, "circuit", view=view, mass=0.8, positions=True)
    R = nrm.measure(reader(), TEXTS[:1], against=REFERENCE)
    circuit = R.circuit(mass=0.8, positions=True)
    found = part["circuit"]
    assert found["steps"][-1]["mass"] == pytest.approx(circuit.mass, abs=1e-5)
    assert len(found["steps"][-1]["edges"]) == int((circuit.flow != 0).sum())  # type: ignore[union-attr]
    assert found["steps"][-1]["f"] is None
    assert found["names"] == {}
    _, (part,) = asked(client, "patch", circuit=job, step=len(found["steps"]) - 1)
    assert part["f"]["value"] == pytest.approx(nrm.evaluate.patch(R, circuit).f, abs=1e-5)
    head = next(node["name"] for node in found["nodes"] if node["kind"] == "head")
    _, (part,) = asked(client, "patch", circuit=job, node=head)
    assert part["patched"][head]["effect"] == pytest.approx(nrm.evaluate.patch_nodes(R)[head], abs=1e-5)
    _, (part,) = asked(client, "attention", circuit=job, node=head)
    layer, _, number = head.rpartition(".head(")
    table = R(R[layer].edges)[0, int(number[:-1])]
    rows = part["attention"][head]
    assert rows[0]["share"] == pytest.approx(float(table.flatten()[table.abs().argmax()]), abs=1e-6)
    answer = client.post("/api/names", json={"circuit": job, "node": head, "name": subjects.HOSTILE[:50]}).json()
    assert answer["names"] == {head: subjects.HOSTILE[:50]}
    assert Path(answer["home"]).is_relative_to(home)
    assert nrm.report.node_names(reader()) == answer["names"]
    _, (part,) = asked(client, "circuit", view=view, mass=0.8)
    assert part["circuit"]["names"] == answer["names"]


def test_bad_questions_about_circuits_are_refused(client: Any) -> None:
    view, _ = viewed(client)
    job, (part,) = asked(client, "circuit", view=view, mass=0.5)
    for path, question, complaint in [
        ("circuits/circuit", {"view": "none", "mass": 0.5}, "not there any more"),
        ("circuits/circuit", {"view": view, "mass": "much"}, "mass of a circuit"),
        ("circuits/circuit", {"view": view, "mass": 1e9}, "mass of a circuit"),
        ("circuits/circuit", {"view": view}, "mass of a circuit"),
        ("circuits/patch", {"circuit": "none", "step": 0}, "not there any more"),
        ("circuits/attention", {"circuit": job, "node": "embed"}, "no head of this circuit"),
        ("names", {"circuit": job, "node": "nobody", "name": "x"}, "no node of this circuit"),
        ("attention", {"view": view, "layer": 3}, "not a layer"),
        ("names", {"circuit": job, "node": part["circuit"]["nodes"][0]["name"], "name": "x" * 99}, "not a name"),
        ("names", {"circuit": job, "node": part["circuit"]["nodes"][0]["name"], "name": 3}, "not a name"),
    ]:
        answer = client.post(f"/api/{path}", json=question)
        assert answer.status_code in (400, 410), (path, question)
        assert complaint in answer.json()["error"]
    assert client.post("/api/circuits/anything", json={}).status_code == 404
    for question in ({"step": 99}, {"step": "0"}, {"node": "nobody"}):
        failed = client.post("/api/circuits/patch", json={"circuit": job, **question}).json()["job"]
        for _ in range(500):
            if (news := client.get(f"/api/jobs/{failed}").json())["state"] in ("failed", "done"):
                break
            time.sleep(0.02)
        assert news["state"] == "failed"
        assert "no such size" in news["error"] or "no node" in news["error"]


def test_a_plain_measure_has_no_circuit_view() -> None:
    session = Session(reader(), Items(TEXTS), None, {})
    app = make_app(session, TOKEN, frozenset({HOST}))
    with TestClient(app, base_url=f"http://{HOST}", headers={"X-Token": TOKEN}) as client:
        assert not viewed(client)[1]["circuits"]
    session.worker.close()


def test_the_page_finds_measures_and_names(home: Path) -> None:
    explorer = nrm.explore(reader(), TEXTS, open=False, block=False, against=REFERENCE)
    with launched() as browser, explorer, opened(browser, explorer.url) as page:
        page.wait_for_selector("#circuit:not([hidden])")
        page.wait_for_selector(".verdict", state="attached")
        page.locator("#attention-open summary").click()
        page.wait_for_selector("#attention-pairs li")
        R = nrm.measure(reader(), TEXTS[:1], against=REFERENCE)
        layer = page.locator("#attention-layer").input_value()
        edges = R(R[layer].edges)[0]
        assert page.locator("#attention .heads button").count() == len(edges)
        page.locator('[data-head="1"]').click()
        share = page.locator('[data-head="1"] b').inner_text()
        assert float(share.split()[0].replace("\u2212", "-")) == pytest.approx(100 * float(edges[1].sum()), abs=0.06)
        assert "reads" in page.locator("#attention-pairs li").first.inner_text()
        page.locator("#circuit-mass").fill("0.8")
        page.locator("#circuit-along").check()
        page.locator("#circuit-find").click()
        page.wait_for_selector("#circuit-picture .cnode")
        assert "of the difference" in page.locator("#circuit-sentence").inner_text()
        assert str(home) in page.locator("#circuit-home").inner_text()
        page.locator("#circuit-measure").click()
        page.wait_for_function(
            "() => document.getElementById('circuit-sentence').textContent.includes('patching measures')"
        )
        assert page.locator("#circuit-measure").is_disabled()
        before = page.locator("#circuit-picture .cedge").count()
        page.locator("#circuit-size").fill("0")
        assert page.locator("#circuit-picture .cedge").count() <= before
        page.locator("#circuit-size").fill(page.locator("#circuit-size").get_attribute("max"))
        page.locator('.cnode[aria-label^="1."]').first.click()
        page.wait_for_selector("text=Its attention")
        page.locator("#circuit-patch").click()
        page.wait_for_selector("text=is lost when the node alone")
        page.locator("#circuit-name").fill("<i>m</i>")
        page.keyboard.press("Enter")
        page.wait_for_selector('#circuit-picture .cnode text:has-text("<i>m</i>")')
        with page.expect_download() as waiting:
            page.locator("#circuit").get_by_role("button", name="JSON").click()
        assert "<i>m</i>" in Path(waiting.value.path()).read_text()
        page.locator("#item").select_option("1")
        page.wait_for_selector("#circuit .circuitgrid", state="hidden")
    assert list(nrm.report.node_names(reader()).values()) == ["<i>m</i>"]
