"""Generated text in the explorer: the server's answers, and the panel that shows them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch

import nrm
import vision
from explorer.browser import launched, opened
from measure.test_writing import WORDS, make_tokenizer

pytest.importorskip("starlette")
TestClient = pytest.importorskip("starlette.testclient", exc_type=ImportError).TestClient

from nrm.explorer.app import make_app  # noqa: E402
from nrm.explorer.items import Items  # noqa: E402
from nrm.explorer.session import Session  # noqa: E402

HOST, TOKEN = "127.0.0.1:4000", "a-token"
PROMPT, TWIN = "the cat sat on", "the dog sat on"
pytestmark = pytest.mark.filterwarnings("ignore::nrm.NrmWarning", "ignore:the predicted mass of this circuit")


def writer() -> Any:
    """A small language model that knows the words of the tokenizer."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    with suppress(pytest.skip.Exception):
        vision.load()  # before transformers imports it
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    session = Session(writer(), Items([PROMPT], make_tokenizer()), None, {})
    with TestClient(
        make_app(session, TOKEN, frozenset({HOST})), base_url=f"http://{HOST}", headers={"X-Token": TOKEN}
    ) as made:
        yield made
    session.worker.close()


def parts(client: Any, **question: Any) -> list[dict[str, Any]]:
    answer = client.post("/api/generated", json=question)
    assert answer.status_code == 200, answer.json()
    for _ in range(1500):
        news = client.get(f"/api/jobs/{answer.json()['job']}").json()
        if news["state"] not in ("waiting", "running"):
            assert news["state"] == "done", news["error"]
            found: list[dict[str, Any]] = news["parts"]
            return found
        time.sleep(0.02)
    raise AssertionError("the job does not end")


def rows(found: list[dict[str, Any]]) -> list[list[float]]:
    return [part["row"]["shares"] for part in found if "row" in part]


def table(**options: Any) -> list[list[float]]:
    G = nrm.generated(writer(), make_tokenizer(), PROMPT, **options)
    return [token.relevance.tolist() for token in G.rows()]


def test_every_token_comes_with_its_shares(client: Any) -> None:
    assert client.get("/api/items").json()["writing"] == {"chat": True, "most": 64}
    found = parts(client, prompt=PROMPT, tokens=4)
    assert len(found) == 5
    for row, wanted in zip(rows(found), table(tokens=4), strict=True):
        assert row == pytest.approx(wanted, abs=1e-4)
    text = [piece["text"] for part in found for piece in part.get("text", ())]
    assert text[:5] == ["<s>", *PROMPT.split()]
    assert len(text) == 9
    assert "prompt = 'the cat sat on'" in found[-1]["end"]["script"]
    assert rows(parts(client, item="0", tokens=4)) == rows(found)  # the chosen input, where nothing is typed


def test_the_same_text_as_a_difference(client: Any) -> None:
    begun = parts(client, prompt=PROMPT, tokens=3)
    of, answer = begun[0]["of"], [piece["text"] for part in begun for piece in part.get("text", ())][-3:]
    for given, against in (({"mean": True}, "mean"), (TWIN, TWIN)):
        found = rows(parts(client, of=of, against=given))
        for row, wanted in zip(found, table(answer=" ".join(answer), against=against), strict=True):
            assert row == pytest.approx(wanted, abs=1e-3)
            assert row[0] == pytest.approx(0, abs=1e-5)  # the first token is in both


def test_a_conversation_is_written_by_the_template(client: Any) -> None:
    found = parts(client, prompt="the cat", tokens=2, chat=True)
    text = [piece["text"] for part in found for piece in part.get("text", ())]
    assert text[:2] == ["<s>", "<user>"]


@pytest.mark.parametrize(
    ("question", "complaint"),
    [
        ({"prompt": " "}, "not a prompt"), ({"prompt": 3}, "not a prompt"), ({"prompt": "a" * 5000}, "not a prompt"),
        ({"prompt": "the", "tokens": 65}, "not a number of tokens"), ({"item": "9"}, "no such input"),
        ({"prompt": "the", "tokens": True}, "not a number of tokens"), ({"of": "none"}, "not there any more"),
        ({"of": [1]}, "not there any more"),
    ],
)  # fmt: skip
def test_bad_questions_are_refused(client: Any, question: dict[str, Any], complaint: str) -> None:
    answer = client.post("/api/generated", json=question)
    assert answer.status_code in (400, 410)
    assert complaint in answer.json()["error"]


def test_a_model_that_writes_nothing_has_no_panel() -> None:
    session = Session(torch.nn.Linear(2, 2), Items(torch.rand(2, 2)), None, {})
    with TestClient(
        make_app(session, TOKEN, frozenset({HOST})), base_url=f"http://{HOST}", headers={"X-Token": TOKEN}
    ) as client:
        assert client.get("/api/items").json()["writing"] is None
        assert "writes no text" in client.post("/api/generated", json={"prompt": "a"}).json()["error"]
    session.worker.close()


def test_the_panel_writes_and_compares() -> None:
    model, tokenizer = writer(), make_tokenizer()
    with (
        launched() as browser,
        nrm.explore(model, [PROMPT], transform=tokenizer, open=False, block=False) as explorer,
        opened(browser, explorer.url) as page,
    ):
        wait = lambda what: page.wait_for_function(f"() => {what}")  # noqa: E731
        page.wait_for_selector("#written:not([hidden])")
        page.fill("#written-prompt", PROMPT)
        page.fill("#written-tokens", "3")
        page.click("#written-go")
        wait("document.querySelectorAll('#written-text .tok').length === 8")
        wait("document.querySelector('#written-script').textContent.includes('tokens=3')")
        assert page.locator("#written-text .tok.new").count() == 3
        assert "comes from" in page.inner_text("#written-sentence")
        page.keyboard.press("Escape")
        page.locator("#written-text .tok").nth(2).click()
        assert "went into" in page.inner_text("#written-sentence")
        page.keyboard.press("End")
        assert page.locator("#written-text .tok.on").get_attribute("data-token") == "7"
        page.check("#written-apart")
        assert "in the first token" in page.inner_text("#written-sentence")
        page.select_option("#written-kind", "mean")
        wait("document.querySelector('#written-script').textContent.includes(\"against='mean'\")")
        assert page.inner_text("#written-note") == ""
        page.select_option("#written-kind", "other")
        page.fill("#written-other", TWIN)
        page.click("#written-compare")
        wait("document.querySelector('#written-script').textContent.includes('dog')")
        assert "cat" in page.inner_text("#written-sentence")
        page.locator("#written summary").first.click()
        assert page.locator(".writtentable tbody tr").count() == 3
        with page.expect_download() as saved:
            page.click("#written-csv")
        lines = saved.value.path().read_text().splitlines()
        assert len(lines) == 4
        assert lines[0].split(",")[:3] == ["generated", "<s>", "the"]
