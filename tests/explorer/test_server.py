"""The explorer's server: what it answers, and what it refuses."""

from __future__ import annotations

import io
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import nrm
from nrm.report.page import ASSETS
from report import subjects

pytest.importorskip("starlette")
Image = pytest.importorskip("PIL.Image")

TestClient = pytest.importorskip("starlette.testclient", exc_type=ImportError).TestClient

from nrm.explorer import items as limits  # noqa: E402
from nrm.explorer.app import make_app  # noqa: E402
from nrm.explorer.items import Items  # noqa: E402
from nrm.explorer.session import Session  # noqa: E402
from nrm.explorer.worker import CancelledError, PageJob, Worker  # noqa: E402

HOST, TOKEN = "127.0.0.1:4000", "a-token"
OPTIONS = {"rules": "epsilon-plus", "bias": "input"}


@pytest.fixture
def session() -> Iterator[Session]:
    data = torch.cat([subjects.image(seed) for seed in range(3)])
    made = Session(subjects.small(), Items(data), {"output": subjects.CLASSES}, OPTIONS)
    yield made
    made.worker.close()


@pytest.fixture
def client(session: Session) -> Iterator[TestClient]:
    app = make_app(session, TOKEN, frozenset({HOST}))
    with TestClient(app, base_url=f"http://{HOST}", headers={"X-Token": TOKEN}) as made:
        yield made


def picture(width: int = 12, height: int = 12, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), (200, 40, 90)).save(file, kind)
    return file.getvalue()


def finished(client: TestClient, job: str) -> dict[str, Any]:
    for _ in range(600):
        news = client.get(f"/api/jobs/{job}").json()
        if news["state"] not in ("waiting", "running"):
            return news
        time.sleep(0.02)
    raise AssertionError("the job does not end")


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A view of its parts, as the page puts it together."""
    view: dict[str, Any] = {"maps": []}
    for part in parts:
        if "table" in part:
            view["tables"][part["table"]["at"]] = part["table"]["rows"]
        elif set(part) == {"maps"}:
            view["maps"] += part["maps"]
        else:
            view |= part
    return view


def test_a_view_comes_in_parts_and_has_the_numbers_of_the_measure(client: TestClient) -> None:
    question = {"item": "1", "target": 2, "layers": [["pool#0", "channels"], ["output", "channels"]], "nodes": 3}
    job = client.post("/api/views", json=question).json()["job"]
    news = finished(client, job)
    assert news["state"] == "done", news["error"]
    view = joined(news["parts"])
    R = nrm.measure(subjects.small(), subjects.image(1), target=2, **OPTIONS)
    assert view["decision"]["value"] == pytest.approx(float(R.value[0]), rel=1e-5)
    shares = R(R["pool#0"].channels)[0]
    for node in view["columns"][0]["nodes"]:
        if node["kind"] == "block":
            assert node["share"] == pytest.approx(float(shares[node["block"]]), abs=1e-6)
    assert view["health"]["level"] in ("good", "care", "bad")
    assert view["flows"]

    assert all("map" in part for part in view["maps"])
    job = client.post("/api/selections", json={"view": job, "nodes": [[0, 0], [1, 0]]}).json()["job"]
    (found,) = finished(client, job)["parts"]
    assert found["share"] == pytest.approx(view["tables"][0][0][0], abs=1e-6)


def test_two_classes_are_compared(client: TestClient) -> None:
    question = {"item": "0", "target": 0, "compare": 1, "layers": [["pool#0", "channels"], ["output", "channels"]]}
    news = finished(client, client.post("/api/views", json=question).json()["job"])
    assert news["state"] == "done", news["error"]
    view = joined(news["parts"])
    other = nrm.measure(subjects.small(), subjects.image(0), target=1, **OPTIONS)
    shares = other(other["pool#0"].channels)[0]
    for node, share in zip(view["columns"][0]["nodes"], view["comparison"]["shares"][0], strict=True):
        if node["kind"] == "block":
            assert share == pytest.approx(float(shares[node["block"]]), abs=1e-6)
    assert view["comparison"]["names"] == ["cat", "dog"]


def test_another_class_is_not_called_a_reference(client: TestClient) -> None:
    answer = client.post("/api/views", json={"item": "0", "against": 1})
    assert answer.status_code == 400
    assert "'compare'" in answer.json()["error"]


def test_a_contrast_is_explained_and_its_script_repeats_it() -> None:
    data = torch.cat([subjects.image(seed) for seed in range(2)])
    made = Session(subjects.small(), Items(data), {"output": subjects.CLASSES}, {"against": "blur"})
    R = nrm.measure(subjects.small(), data[:1], target=0, against="blur")
    question = {"item": "0", "target": 0, "compare": 1, "layers": [["pool#0", "channels"], ["output", "channels"]]}
    job = made.view(question)
    for _ in range(600):
        if job.news(0)["state"] in ("done", "failed"):
            break
        time.sleep(0.05)
    made.worker.close()
    view = joined(job.news(0)["parts"])
    assert view["decision"]["value"] == pytest.approx(float(R.value))
    assert view["decision"]["runs"][0] - view["decision"]["runs"][1] == pytest.approx(float(R.value), abs=1e-6)
    other = nrm.measure(subjects.small(), data[:1], target=1, against="blur")
    assert view["comparison"]["values"] == pytest.approx([float(R.value), float(other.value)])
    space: dict[str, Any] = {"model": subjects.small(), "inputs": data[:1]}
    exec(view["script"].replace("R.report(", "0 and R.report("), space)
    assert torch.allclose(space["heat"], R(R.input.positions), atol=1e-6)


def test_an_average_over_references_has_no_page() -> None:
    with pytest.raises(nrm.QuestionError, match="one reference"):
        nrm.explore(subjects.small(), subjects.image(), against=[subjects.image(1)], open=False, block=False)


def test_what_is_long_is_asked_for_first(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nrm.explorer.session.LONG", 0.0)
    chosen = {"item": "0", "layers": [["pool#0", "channels"], ["output", "channels"]]}
    news = finished(client, client.post("/api/views", json=chosen).json()["job"])
    assert "columns" in news["parts"][1]
    assert [set(part) for part in news["parts"]][2:] == [{"price"}, {"health"}, {"ahead"}]
    assert news["parts"][2]["price"]["passes"] > 0
    for question in ({**chosen, "agreed": True}, {"item": "0"}):  # what nobody chose is not asked about
        news = finished(client, client.post("/api/views", json=question).json()["job"])
        assert any("table" in part for part in news["parts"])


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:4000", "127.0.0.1:4001", ""])
def test_a_foreign_host_is_refused(client: TestClient, host: str) -> None:
    for path in ("/", "/api/items", "/static/app.js"):
        answer = client.get(path, headers={"Host": host})
        assert answer.status_code == 403
        assert TOKEN not in answer.text


def test_a_foreign_page_is_refused(client: TestClient) -> None:
    for origin in ("http://evil.example", "null", "https://127.0.0.1:4000"):
        assert client.get("/api/items", headers={"Origin": origin}).status_code == 403
    answer = client.get("/api/items", headers={"Origin": f"http://{HOST}"})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", "é"])
def test_without_the_token_there_is_nothing(client: TestClient, token: str) -> None:
    asked = [("GET", "/api/items"), ("GET", "/api/jobs/j0")]
    asked += [
        ("POST", f"/api/{path}") for path in ("items", "texts", "views", "selections", "formulas", "jobs/j0/cancel")
    ]
    for method, path in asked:
        answer = client.request(method, path, headers={"X-Token": token.encode()}, content=b"{}")
        assert answer.status_code == 403, path
    empty = client.get("/", params={"token": token})  # the page itself holds nothing secret
    assert empty.status_code == 200
    assert "set-cookie" not in empty.headers


def test_the_first_visit_sets_a_cookie_that_only_the_page_sends(client: TestClient) -> None:
    welcome = client.get("/", headers={"X-Token": ""}, params={"token": TOKEN})
    assert welcome.headers["set-cookie"] == f"nrm-4000={TOKEN}; Path=/; HttpOnly; SameSite=Strict"
    client.cookies.clear()
    for cookie, status in ((f"nrm-4000={TOKEN}", 200), ("nrm-4000=wrong", 403), (f"nrm-4001={TOKEN}", 403)):
        assert client.get("/api/items", headers={"X-Token": "", "Cookie": cookie}).status_code == status


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_another_site_asks_is_refused(client: TestClient, site: str) -> None:
    for path in ("/", "/api/items", "/static/app.js"):
        assert client.get(path, headers={"Sec-Fetch-Site": site}).status_code == 403
    framed = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
    assert client.get("/", headers=framed, params={"token": TOKEN}).status_code == 403
    link = {**framed, "Sec-Fetch-Dest": "document"}
    assert client.get("/", headers=link).status_code == 200  # a link to the page, which asks by itself
    assert client.get("/api/items", headers=link).status_code == 403
    for own in ("same-origin", "none"):
        assert client.get("/api/items", headers={"Sec-Fetch-Site": own}).status_code == 200


def test_a_notebook_may_show_the_page_if_it_knows_the_token(session: Session) -> None:
    app = make_app(session, TOKEN, frozenset({HOST}), inline=True)
    framed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
    with TestClient(app, base_url=f"http://{HOST}", headers=framed) as made:
        shown = made.get("/", params={"token": TOKEN})
        assert shown.status_code == 200
        assert "frame-ancestors" not in shown.headers["content-security-policy"]
        assert "x-frame-options" not in shown.headers
        assert made.get("/", params={"token": "wrong"}).status_code == 403
        assert made.get("/").status_code == 403


def test_a_forgotten_view_is_brought_back(client: TestClient, session: Session) -> None:
    question = {"item": "0", "target": 0, "layers": [["pool#0", "channels"], ["output", "channels"]], "nodes": 3}
    first = client.post("/api/views", json=question).json()["job"]
    finished(client, first)
    session._views.clear()
    asked = {"view": first, "nodes": [[0, 0]]}
    assert client.post("/api/selections", json=asked).status_code == 410
    again = client.post("/api/views", json={**question, "bare": True}).json()["job"]
    assert finished(client, again)["parts"] == []
    news = finished(client, client.post("/api/selections", json={**asked, "view": again}).json()["job"])
    assert news["state"] == "done", news["error"]


def test_only_the_listed_files_are_served(client: TestClient) -> None:
    for name in ASSETS:
        assert client.get(f"/static/{name}").status_code == 200
    for path in ("/static/../page.py", "/static/%2e%2e/page.py", "/static/..%2fpage.py", "/static//etc/passwd",
                 "/static/%2fetc%2fpasswd", "/static/page.html", "/static/vendor", "/static/", "/pyproject.toml",
                 "/static/vendor/..%5c..%5cpage.py", "/api/items/0"):  # fmt: skip
        assert client.get(path).status_code == 404, path


def test_inputs_are_numbers_never_paths(client: TestClient) -> None:
    for item in ("../secret", "C:\\secret", "99", "", None, 0, ["0"], {"id": "0"}):
        answer = client.post("/api/views", json={"item": item})
        assert answer.status_code == 400
        assert "no such input" in answer.json()["error"]


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{", b"[" * 50_000, b"\xff\xfe", b'{"item": NaN'])
def test_questions_that_are_none(client: TestClient, content: bytes) -> None:
    for path in ("/api/views", "/api/selections"):
        assert client.post(path, content=content).status_code == 400


@pytest.mark.parametrize(
    "change",
    [
        {"target": "0"}, {"target": True}, {"compare": 1.5}, {"layers": "pool"}, {"layers": [["pool#0", "magic"]] * 2},
        {"layers": [["pool#0", "channels"]]}, {"layers": [[1, 2], [3, 4]]}, {"nodes": 0}, {"nodes": "8"},
        {"nodes": 10_000}, {"layers": [["a", "channels"]] * 100},
    ],
)  # fmt: skip
def test_bad_choices_are_named(client: TestClient, change: dict[str, Any]) -> None:
    answer = client.post("/api/views", json={"item": "0", **change})
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_what_the_measure_refuses_is_told(client: TestClient) -> None:
    for change in ({"target": 77}, {"layers": [["nothing", "channels"], ["output", "channels"]]}):
        news = finished(client, client.post("/api/views", json={"item": "0", **change}).json()["job"])
        assert news["state"] == "failed"
        assert "Traceback" not in news["error"]


def test_selections_of_nodes_that_are_not_there(client: TestClient) -> None:
    job = client.post("/api/views", json={"item": "0", "nodes": 2}).json()["job"]
    finished(client, job)
    for nodes in (None, [], [[0]], [[0, "1"]], [[0, 0], [0, 0]], [[True, 0]]):
        assert client.post("/api/selections", json={"view": job, "nodes": nodes}).status_code == 400
    assert client.post("/api/selections", json={"view": "j999", "nodes": [[0, 0]]}).status_code == 410
    made = client.post("/api/selections", json={"view": job, "nodes": [[0, 500]]}).json()["job"]
    assert finished(client, made)["state"] == "failed"
    assert client.get("/api/jobs/nothing").status_code == 404


def test_what_is_switched_off_is_what_the_network_computes(client: TestClient) -> None:
    question = {"item": "0", "target": 0, "layers": [["pool#0", "channels"], ["pool#1", "channels"]], "nodes": 3}
    view = client.post("/api/views", json=question).json()["job"]
    columns = next(part["columns"] for part in finished(client, view)["parts"] if "columns" in part)
    model, R = subjects.small(), nrm.measure(subjects.small(), subjects.image(0), target=0, **OPTIONS)
    blocks = [R[f"pool#{c}"].channel(columns[c]["nodes"][0]["block"]) for c in (0, 1)]

    def asked(**what: Any) -> dict[str, Any]:
        news = finished(client, client.post("/api/removals", json={"view": view, **what}).json()["job"])
        assert news["state"] == "done", news["error"]
        return news["parts"][0]  # type: ignore[no-any-return]

    made = asked(nodes=[[0, 0], [1, 0]])
    found, outputs = made["removed"], nrm.evaluate.remove(R, *blocks)[0]
    assert found["before"] == pytest.approx(float(R.value[0]))
    assert found["after"] == pytest.approx(float(outputs[0]), abs=1e-5)
    assert found["together"] == pytest.approx(float(nrm.evaluate.contribution(R, *blocks) / R.value), abs=1e-5)
    shares = outputs.softmax(0)
    assert {one["name"]: one["after"] for one in found["classes"]}["cat"] == pytest.approx(float(shares[0]), abs=1e-5)
    (now,) = [one for one in found["classes"] if one["predicted"]]
    assert now["index"] == int(shares.argmax())
    space: dict[str, Any] = {"model": model, "inputs": subjects.image(0)}
    exec(made["script"].replace("print(R.check())", ""), space)
    assert torch.allclose(space["outputs"][0], outputs, atol=1e-6)
    other = nrm.measure(subjects.small(), subjects.image(1), **OPTIONS).values("pool#0")[0]
    patched = nrm.evaluate.remove(R, blocks[0], value=other)[0]
    assert asked(nodes=[[0, 0]], value="other", other="1")["removed"]["after"] == pytest.approx(
        float(patched[0]), abs=1e-5
    )
    mean = R.values("pool#0")[0].mean((1, 2), keepdim=True).expand_as(other)
    averaged = nrm.evaluate.remove(R, blocks[0], value=mean)[0]
    assert asked(nodes=[[0, 0]], value="average")["removed"]["after"] == pytest.approx(float(averaged[0]), abs=1e-5)
    corner = asked(part={"region": [0, 0, 6, 4]})
    cut = R.input[:, :4, :6]
    assert corner["share"] == pytest.approx(float(R(cut)[0]), abs=1e-6)
    assert corner["removed"]["after"] == pytest.approx(float(nrm.evaluate.remove(R, cut)[0, 0]), abs=1e-5)
    for wrong in ({"nodes": [[0, 0]], "value": "magic"}, {"nodes": []}, {"nodes": [[0, 0]], "value": "other"}):
        assert client.post("/api/removals", json={"view": view, **wrong}).status_code == 400


def test_a_formula_is_that_of_the_measure(client: TestClient) -> None:
    pytest.importorskip("lark")
    question = {"item": "0", "target": 0, "layers": [["pool#0", "channels"], ["output", "channels"]], "nodes": 3}
    view = client.post("/api/views", json=question).json()["job"]
    columns = next(part["columns"] for part in finished(client, view)["parts"] if "columns" in part)
    place = next(n for n, node in enumerate(columns[0]["nodes"]) if node["kind"] == "block")
    sets = {"part": {"nodes": [[0, place]]}, "corner": {"region": [0, 0, 6, 4]}}
    asked = {"view": view, "text": "part AND NOT corner", "sets": sets}
    news = finished(client, client.post("/api/formulas", json=asked).json()["job"])
    assert news["state"] == "done", news["error"]
    R = nrm.measure(subjects.small(), subjects.image(0), target=0, **OPTIONS)
    block = R["pool#0"].channel(columns[0]["nodes"][place]["block"])
    expected = R(nrm.visits(block) & ~nrm.visits(R.input[:, :4, :6]))
    assert news["parts"][0]["share"] == pytest.approx(float(expected[0]), abs=1e-6)
    for change in ({"text": 3}, {"sets": []}):
        assert client.post("/api/formulas", json={**asked, **change}).status_code == 400
    for change in ({"text": "part AND ("}, {"text": "unknown"}, {"sets": {"part": {"region": [0, 0]}}},
                   {"sets": {"part": {"region": [5, 5, 5, 5]}}}, {"sets": {"part": {"nodes": [[0, 99]]}}},
                   {"sets": {"part": "__import__('os')"}}):  # fmt: skip
        news = finished(client, client.post("/api/formulas", json={**asked, **change}).json()["job"])
        assert news["state"] == "failed"
        assert news["error"]


def test_a_formula_may_be_nested_more_deeply_than_calls_of_python(client: TestClient) -> None:
    pytest.importorskip("lark")
    view = client.post("/api/views", json={"item": "0", "target": 0, "nodes": 3}).json()["job"]
    finished(client, view)
    sets = {"part": {"region": [0, 0, 6, 4]}}
    shares = []
    for text in ("part", "NOT " * 480 + "part", "~" * 9000 + "part", "(" * 3000 + "part" + ")" * 3000,
                 " & ".join(["part"] * 1200), "part -> " * 900 + "part"):  # fmt: skip
        asked = {"view": view, "text": text, "sets": sets}
        news = finished(client, client.post("/api/formulas", json=asked).json()["job"])
        assert news["state"] == "done", news["error"]
        shares.append(news["parts"][0]["share"])
    assert shares[:5] == pytest.approx([shares[0]] * 5)
    assert shares[5] == pytest.approx(1, abs=1e-6)  # whatever implies itself


@pytest.mark.parametrize("since", ["1" * 5000, "-1", "abc", "1e3", "", "\u00b2"])
def test_a_number_of_parts_that_is_none_is_refused(client: TestClient, since: str) -> None:
    job = client.post("/api/views", json={"item": "0", "nodes": 2}).json()["job"]
    answer = client.get(f"/api/jobs/{job}", params={"since": since})
    assert answer.status_code == 400
    assert "number of parts" in answer.json()["error"]
    assert client.get(f"/api/jobs/{job}", params={"since": "3"}).status_code == 200


def test_a_length_of_many_digits_is_too_large(client: TestClient) -> None:
    for path in ("/api/items", "/api/views"):
        assert client.post(path, content=b"{}", headers={"Content-Length": "9" * 5000}).status_code == 413


@pytest.mark.parametrize("content", [b'{"item": "0", "target": ' + b"1" * 5000 + b"}", b'{"text": "\\ud800"}'])
def test_numbers_and_characters_that_are_none_are_refused(client: TestClient, content: bytes) -> None:
    for path in ("/api/views", "/api/formulas", "/api/texts"):
        answer = client.post(path, content=content)
        assert answer.status_code == 400
        assert "not a question" in answer.json()["error"]


def test_an_image_is_taken_and_explained(client: TestClient) -> None:
    made = client.post("/api/items", params={"name": subjects.HOSTILE}, content=picture()).json()
    assert made["name"] == subjects.HOSTILE
    assert finished(client, client.post("/api/views", json={"item": made["id"]}).json()["job"])["state"] == "done"


def test_bad_images_are_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    before = client.get("/api/items").json()
    whole = picture(64, 64)
    gif = picture(kind="GIF")
    for content in (b"", b"no image", whole[: len(whole) // 2], gif, b"<svg xmlns='http://www.w3.org/2000/svg'/>"):
        answer = client.post("/api/items", content=content)
        assert answer.status_code == 400
        assert "cannot be read" in answer.json()["error"]
    monkeypatch.setattr("nrm.files.images.MOST_PIXELS", 100)
    assert "pixels" in client.post("/api/items", content=whole).json()["error"]
    assert client.get("/api/items").json() == before


def test_what_is_too_large_is_not_read(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nrm.explorer.app.MOST_UPLOAD", 1000)
    assert client.post("/api/items", content=b"x" * 1001).status_code == 413

    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 100

    assert client.post("/api/items", content=endless()).status_code == 413
    assert client.post("/api/views", content=b" " * 70_000).status_code == 413


def test_uploads_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_UPLOADS", 2)
    items = Items()
    made = [items.upload(f"{i}", picture()).id for i in range(4)]
    assert [entry["id"] for entry in items.listed()] == made[2:]


def test_every_answer_has_the_security_headers(client: TestClient) -> None:
    answers = [
        client.get("/"),
        client.get("/static/app.js"),
        client.get("/nothing"),
        client.get("/", headers={"Host": "x"}),
    ]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
    assert not re.search(r"<script>|\son\w+=|style=", answers[0].text)


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("this does not happen")


def test_a_job_stops_when_it_is_cancelled() -> None:
    worker = Worker()
    steps = []

    def endless(job: PageJob) -> None:
        while True:
            steps.append(0)
            time.sleep(0.001)
            torch.zeros(1)  # every call of torch is a moment to stop

    first, second = worker.submit(endless), worker.submit(lambda job: job.add({"late": True}))
    third = worker.submit(endless)
    third.cancel()
    assert third.state == "cancelled"
    wait_for(lambda: len(steps) > 3)
    first.cancel()
    wait_for(lambda: second.over)
    worker.close()
    assert (first.state, second.state) == ("cancelled", "done")
    assert third.parts == []
    with pytest.raises(CancelledError):
        first.check()


def test_a_question_is_cancelled_in_the_middle_of_a_sweep() -> None:
    worker, R = Worker(), subjects.measured()
    R(R.input)
    inside = threading.Event()

    def work(job: PageJob) -> None:
        while True:
            inside.set()
            R(R["conv1"].positions, R["conv3"].positions)

    job = worker.submit(work)
    assert inside.wait(60)
    job.cancel()
    wait_for(lambda: job.over)
    worker.close()
    assert job.state == "cancelled"
    fresh = subjects.measured()
    torch.testing.assert_close(R(R.input, R["conv2"].all), fresh(fresh.input, fresh["conv2"].all))  # nothing is broken


def test_later_questions_go_before_work_that_has_patience() -> None:
    worker, order, R = Worker(), [], subjects.measured()
    begun = threading.Event()

    def long(job: PageJob) -> None:
        job.patient = True
        table = R(R["conv1"].channels, R["conv3"].channels)
        while "quick" not in order:
            begun.set()
            again = R(R["conv1"].channels, R["conv3"].channels)
            torch.testing.assert_close(again, table)
        order.append("long")

    def quick(job: PageJob) -> None:
        R(R["conv2"].channels, R["conv3"].channels)
        order.append("quick")

    first = worker.submit(long)
    assert begun.wait(60)
    second = worker.submit(quick)
    wait_for(lambda: first.over)
    worker.close()
    assert (first.state, second.state, first.error) == ("done", "done", "")
    assert order == ["quick", "long"]


def test_closing_ends_work_that_has_patience() -> None:
    worker = Worker()

    def endless(job: PageJob) -> None:
        job.patient = True
        while True:
            torch.zeros(1)

    job = worker.submit(endless)
    worker.submit_idle(endless)
    wait_for(lambda: job.state == "running")
    worker.close()
    assert job.state == "cancelled"
    assert not worker._thread.is_alive()


def test_maps_of_nodes_are_there_before_they_are_clicked(client: TestClient, session: Session) -> None:
    question = {"item": "0", "target": 0, "layers": [["pool#0", "channels"], ["output", "channels"]], "nodes": 3}
    id = client.post("/api/views", json=question).json()["job"]
    finished(client, id)
    view = session._views[id]
    wait_for(lambda: all((((c, n),), 448) in view._known for c, n in view.nodes()))


def test_a_formula_has_a_price_before_it_is_asked(client: TestClient) -> None:
    pytest.importorskip("lark")
    view = client.post("/api/views", json={"item": "0"}).json()["job"]
    finished(client, view)
    asked = {"view": view, "text": "corner", "sets": {"corner": {"region": [0, 0, 6, 4]}}, "price": True}
    (part,) = finished(client, client.post("/api/formulas", json=asked).json()["job"])["parts"]
    assert set(part) == {"price"}
    assert part["price"]["passes"] > 0


def test_a_measure_can_be_stopped_by_its_progress() -> None:
    seen = []

    def stop(done: int, total: int | None) -> None:
        seen.append((done, total))
        raise CancelledError

    R = subjects.measured(progress=stop)
    with pytest.raises(CancelledError):
        R(R["conv1"].channels, R["conv3"].channels)
    assert seen


def test_data_of_every_kind(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.png").write_bytes(picture())
    (tmp_path / "a.jpg").write_bytes(picture(kind="JPEG"))
    (tmp_path / "notes.txt").write_text("no image")
    names = [entry["name"] for entry in Items(tmp_path).listed()]
    assert names == ["a.jpg", "deep/b.png"]
    assert Items(str(tmp_path))["0"].load().inputs.shape == (1, 3, 12, 12)
    assert Items(tmp_path, lambda image: torch.zeros(3, image.height, 5))["0"].load().inputs.shape == (1, 3, 12, 5)
    assert Items([tmp_path / "a.jpg"]).listed()[0]["name"] == "a.jpg"
    assert Items(torch.zeros(2, 3, 4, 4))["1"].load().inputs.shape == (1, 3, 4, 4)
    pairs = [(torch.zeros(3, 4, 4), 1), (torch.zeros(3, 4, 4), 0)]
    assert Items(pairs)["1"].load().inputs.shape == (1, 3, 4, 4)
    for wrong in (tmp_path / "nowhere", 7, tmp_path / "deep" / "nothing"):
        with pytest.raises(nrm.QuestionError):
            Items(wrong)


WORDS = ("the", "cat", "sat", "down", "dog")


def spell(text: str) -> torch.Tensor:
    return torch.tensor([WORDS.index(word) for word in text.split()])


def test_texts_are_read_and_written() -> None:
    items = Items(["the cat sat", "the dog sat"], spell, lambda ids: [WORDS[i] for i in ids[0].tolist()])
    assert items.kind == "text"
    assert [entry["name"] for entry in items.listed()] == ["the cat sat", "the dog sat"]
    loaded = items["0"].load()
    assert loaded.inputs.tolist() == [[0, 1, 2]]
    assert loaded.labels == {"input": ["the", "cat", "sat"]}
    made = items.write("the dog sat down")
    assert items[made.id].load().labels["input"][-1] == "down"
    assert Items([("the cat sat down", 1)], spell).listed()[0]["name"] == "the cat sat down"
    with pytest.raises(nrm.QuestionError, match="no such folder"):
        Items("the cat sat down", spell)
    for wrong in ("  ", "the " * 2000):
        with pytest.raises(nrm.QuestionError, match="not a text"):
            items.write(wrong)
    with pytest.raises(nrm.QuestionError, match="transform"):
        Items(["the cat sat"])["0"].load()


def test_a_tokenizer_is_a_transform() -> None:
    class Tokenizer:
        def __call__(self, text: str, return_tensors: str) -> dict[str, torch.Tensor]:
            assert return_tensors == "pt"
            return {"input_ids": spell(text)[None]}

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return [WORDS[i] for i in ids]

    items = Items(None, Tokenizer())
    assert items.kind == "text"
    assert items[items.write("the dog").id].load().labels == {"input": ["the", "dog"]}


def test_graphs_are_inputs_as_they_are() -> None:
    items = Items([subjects.molecule(), (subjects.molecule(), 1)], names=lambda inputs: subjects.ATOMS)
    assert items.kind == "other"
    for id in ("0", "1"):
        x, edges = items[id].load().inputs
        assert x.shape == (9, 3)
        assert edges.shape == (2, 18)
    session = Session(subjects.chemist(), items, {"output": ["no", "yes"]}, {"rules": "epsilon-plus"})
    job = session.view({"item": "0"})
    wait_for(lambda: job.over)
    session.worker.close()
    assert job.state == "done", job.error
    assert joined(job.parts)["picture"]["texts"] == list(subjects.ATOMS)


def test_a_class_of_a_language_model_is_one_at_the_last_position() -> None:
    class Writer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.out = torch.nn.Embedding(5, 8), torch.nn.Linear(8, 5)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.out(self.embed(input_ids).cumsum(1))

    items = Items(["the cat sat"], lambda text: {"input_ids": spell(text)[None]})
    session = Session(Writer().eval(), items, {"output": WORDS}, {"rules": "epsilon-plus"})
    jobs = [session.view({"item": "0", "target": target, "compare": 4}) for target in (None, 3)]
    wait_for(lambda: all(job.over for job in jobs))
    session.worker.close()
    first, second = (joined(job.parts) for job in jobs)
    assert [job.error for job in jobs] == ["", ""]
    assert second["decision"]["index"] == 3
    assert "down" in second["decision"]["name"]
    assert first["comparison"]["names"][1] == "dog"


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=120) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_explore_serves_and_ends() -> None:
    explorer = nrm.explore(subjects.small(), subjects.image(), labels=subjects.CLASSES, open=False, block=False)
    with explorer:
        assert explorer.url.startswith("http://127.0.0.1:")
        assert status(explorer.url) == 200
        assert status(explorer.url.partition("?")[0] + "api/items") == 403
        taken = int(explorer.url.split(":")[2].partition("/")[0])
        with pytest.raises(nrm.NrmError, match="port"):
            nrm.explore(subjects.small(), port=taken, open=False, block=False)
    with pytest.raises(urllib.error.URLError):
        status(explorer.url)


def test_flows_of_many_inputs_are_those_of_the_measure(client: TestClient, session: Session) -> None:
    pytest.importorskip("sklearn")
    news = finished(client, client.post("/api/overview", json={"count": 3}).json()["job"])
    assert news["state"] == "done", news["error"]
    rows = [part["row"] for part in news["parts"] if "row" in part]
    assert [row["id"] for row in rows] == ["0", "1", "2"]
    assert "at least 6" in news["parts"][-1]["plane"]["note"]
    measures = [nrm.measure(subjects.small(), subjects.image(seed), **OPTIONS) for seed in range(3)]
    for row, R in zip(rows, measures, strict=True):
        assert row["predicted"] == int(R.prediction)
        assert row["heat"]["total"] == pytest.approx(float(R(R.input.all)[0]), abs=1e-4)
    found = client.post("/api/flows", json={"one": ["0"], "other": ["1", "2"]}).json()
    first = found["rows"][0]
    shares = [float(R(R[first["layer"]].channel(first["channel"]))[0]) for R in measures]
    assert first["one"] == pytest.approx(shares[0], abs=1e-5)
    assert first["other"] == pytest.approx(sum(shares[1:]) / 2, abs=1e-5)
    for wrong in ({}, {"one": [], "other": ["1"]}, {"one": ["9"], "other": ["1"]}, {"one": "0", "other": ["1"]}):
        assert client.post("/api/flows", json=wrong).status_code == 400
    for count in (0, True, "3", 10**6, None):
        assert client.post("/api/overview", json={"count": count}).status_code == 400
    assert client.post("/api/views", json={"item": "0", "compare": "model"}).status_code == 400
