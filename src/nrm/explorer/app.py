"""The explorer's server: a page, its files, and a few questions, behind its gate."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from nrm.errors import NrmError, QuestionError
from nrm.explorer.gate import Gate, refused
from nrm.explorer.reading import GoneError
from nrm.explorer.session import Session
from nrm.extras import extra
from nrm.report import ASSETS, linked_page, read_asset

with extra("web", "nrm.explore"):
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route

MOST_QUESTION, MOST_SAVED, MOST_UPLOAD = 64 * 2**10, 2**20, 20 * 2**20
LONGEST_NUMBER = 12
"""Digits of a number that is still read: Python refuses to read thousands of them."""
PATIENCE, BLINK = 0.4, 0.01
"""How long a request waits for news of a job, and how often it looks, in seconds."""
TYPES = {"css": "text/css", "js": "text/javascript"}


def make_app(session: Session, token: str, hosts: frozenset[str], inline: bool = False) -> Any:
    """The application, with its gate around it."""

    async def page(request: Request) -> Response:
        return HTMLResponse(linked_page())

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ASSETS:
            return refused("there is no such file", 404)
        return Response(read_asset(name), media_type=TYPES[name.rpartition(".")[2]])

    async def items(request: Request) -> Response:
        return JSONResponse(
            {
                "items": session.items.listed(),
                "classes": session.classes,
                "kind": session.items.kind,
                "other": session.has_other,
                "writing": session.writing.facts,
            }
        )

    async def upload(request: Request) -> Response:
        content = await _body(request, MOST_UPLOAD)
        item = await run_in_threadpool(session.items.upload, request.query_params.get("name", "image"), content)
        return JSONResponse({"id": item.id, "name": item.name})

    async def write(request: Request) -> Response:
        text = (await _question(request)).get("text")
        if not isinstance(text, str):
            raise QuestionError("not a text", got=repr(text)[:80])
        item = await run_in_threadpool(session.items.write, text)
        return JSONResponse({"id": item.id, "name": item.name})

    async def view(request: Request) -> Response:
        return JSONResponse({"job": session.view(await _question(request)).id})

    async def selection(request: Request) -> Response:
        return JSONResponse({"job": session.selection(await _question(request)).id})

    async def removal(request: Request) -> Response:
        return JSONResponse({"job": session.removal(await _question(request)).id})

    async def formula(request: Request) -> Response:
        return JSONResponse({"job": session.formula(await _question(request)).id})

    async def circuit(request: Request) -> Response:
        circuits = session.circuits
        asked = {"circuit": circuits.find, "patch": circuits.patch, "attention": circuits.attend}
        ask = asked[request.path_params["what"]]
        return JSONResponse({"job": ask(await _question(request)).id})

    async def generated(request: Request) -> Response:
        return JSONResponse({"job": session.writing.write(await _question(request)).id})

    async def name(request: Request) -> Response:
        question = await _question(request)
        keep = session.circuits.name if "circuit" in question else session.notes.name
        return JSONResponse(await run_in_threadpool(keep, question))

    async def attention(request: Request) -> Response:
        return JSONResponse({"job": session.attention(await _question(request)).id})

    async def overview(request: Request) -> Response:
        return JSONResponse({"job": session.overview.look(await _question(request)).id})

    async def flows(request: Request) -> Response:
        return JSONResponse(session.overview.compare(await _question(request)))

    async def note(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(session.notes.note, await _question(request)))

    async def saved(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(session.notes.open, await _question(request, MOST_SAVED)))

    async def news(request: Request) -> Response:
        since = _count(request.query_params.get("since", "0"))
        job = session.worker[request.path_params["id"]]
        for _ in range(round(PATIENCE / BLINK)):
            if job.has_news(since):
                break
            await asyncio.sleep(BLINK)
        return JSONResponse(job.news(since))

    async def cancel(request: Request) -> Response:
        session.worker[request.path_params["id"]].cancel()
        return JSONResponse({})

    async def complain(request: Request, error: Exception) -> Response:
        status = 413 if isinstance(error, _TooLargeError) else 410 if isinstance(error, GoneError) else 400
        return refused(str(error), status)

    async def unknown(request: Request, error: Exception) -> Response:
        return refused("there is nothing here", 404)

    asks = {
        "items": upload, "texts": write, "views": view, "selections": selection, "removals": removal,
        "formulas": formula, "circuits/{what}": circuit, "names": name,
        "generated": generated, "overview": overview, "flows": flows, "attention": attention,
        "notes": note, "saved": saved, "jobs/{id}/cancel": cancel,
    }  # fmt: skip
    routes = [
        Route("/", page), Route("/static/{name:path}", asset),
        Route("/api/items", items), Route("/api/jobs/{id}", news),
        *(Route(f"/api/{path}", ask, methods=["POST"]) for path, ask in asks.items()),
    ]  # fmt: skip
    handlers: Any = {NrmError: complain, KeyError: unknown, 404: unknown, 405: unknown}
    return Gate(Starlette(routes=routes, exception_handlers=handlers), hosts, token, inline)


class _TooLargeError(NrmError):
    """More was sent than is taken."""


async def _body(request: Request, most: int) -> bytes:
    """The body of a request, which is not read beyond its bound."""
    said = request.headers.get("content-length", "0").lstrip("0")
    if said.isdecimal() and (len(said) > LONGEST_NUMBER or int(said) > most):
        raise _TooLargeError("this is too large", expected=f"at most {most >> 10} KiB")
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > most:
            raise _TooLargeError("this is too large", expected=f"at most {most >> 10} KiB")
    return bytes(content)


def _count(text: str) -> int:
    """A number of parts, as the page has counted them."""
    if not text.isdecimal() or len(text) > LONGEST_NUMBER:
        raise QuestionError("not a number of parts", got=repr(text[:40]), expected="a whole number from 0")
    return int(text)


async def _question(request: Request, most: int = MOST_QUESTION) -> dict[str, Any]:
    try:
        read = json.loads(await _body(request, most))
        json.dumps(read, ensure_ascii=False).encode()  # half of a character, which no answer could repeat
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise QuestionError("not a question", expected="a JSON object in UTF-8")
    return read
