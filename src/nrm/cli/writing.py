"""The command that lets a language model write: generate."""

from collections.abc import Sequence
from typing import Any

from nrm.cli.ask import opened
from nrm.cli.asked import GenerateCommand
from nrm.cli.models import LoadedModel
from nrm.cli.notation import read_rules
from nrm.cli.output import Terminal
from nrm.errors import InputError
from nrm.largest import largest
from nrm.measure import Generated, WrittenToken, generated
from nrm.numbers import percent
from nrm.plot import generated as draw


def generate(asked: GenerateCommand) -> int:
    """What every generated token owes to those before it."""
    terminal = Terminal(asked.json)
    loaded = opened(terminal, asked.options, asked.model)
    if loaded.tokenizer is None:
        raise InputError("the model has no tokenizer", where=loaded.name, expected="hf:NAME of a language model")
    found = (_streamed if asked.stream else _together)(asked, terminal, loaded)
    rows = [_row(token, found.sources, asked.k, asked.first) for token in found.rows()]
    text = loaded.tokenizer.decode(found.ids[0, found.prompt :].tolist())
    terminal.title(text)
    if not asked.stream:
        terminal.table(["token", "value", "comes from"], [_line(row) for row in rows], right=(1,))
    apart = f"{percent(float(found.first.mean()), 0)} in the first token {found.tokens[0]!r}"
    terminal.say(apart if asked.first else f"{apart}, left out")
    if asked.out is not None:
        draw(found, first=asked.first).save(asked.out)  # type: ignore[attr-defined]
        terminal.note(f"written: {asked.out}")
    shares = {"axes": ["generated", "source"], "generated": found.written, "source": found.sources,
              "values": found.relevance}  # fmt: skip
    terminal.finish(
        "generate", model=loaded.describe(), text=text, tokens=rows, relevance=shares, first=found.first,
        rest=found.rest, reference=found.reference,
    )  # fmt: skip
    return 0


def _options(asked: GenerateCommand, loaded: LoadedModel) -> dict[str, Any]:
    """What the library is asked."""
    prompt, against = (
        [{"role": "user", "content": text}] if asked.chat and text not in (None, "mean") else text
        for text in (asked.prompt, asked.against)
    )
    return {
        "model": loaded.model, "tokenizer": loaded.tokenizer, "prompt": prompt, "against": against,
        "tokens": asked.tokens, "answer": asked.answer, "rules": read_rules(asked.rules), "memory": asked.memory,
    }  # fmt: skip


def _together(asked: GenerateCommand, terminal: Terminal, loaded: LoadedModel) -> Generated:
    with terminal.work("writing") as steps:
        found: Generated = generated(**_options(asked, loaded), progress=steps.listen)
    return found


def _streamed(asked: GenerateCommand, terminal: Terminal, loaded: LoadedModel) -> Generated:
    """Every token with its sources, in a line of its own as soon as it is there."""
    with terminal.warnings():
        writing = generated(**_options(asked, loaded), progress=False, stream=True)
        for row in writing:
            token, value, sources = _line(_row(row, writing.tokens, asked.k, asked.first))
            terminal.say(f"{token:<14} {value:>8}  {sources}")
    return writing.generated


def _row(written: WrittenToken, sources: Sequence[str], k: int, first: bool) -> dict[str, Any]:
    """One generated token with its largest sources."""
    shares = written.relevance.clone()
    if not first:
        shares[0] = 0
    best = largest(shares, min(k, len(shares))).tolist()
    named = [{"token": sources[i], "number": i, "relevance": float(shares[i])} for i in best]
    return {"token": written.text, "value": written.value, "sources": named}


def _line(row: dict[str, Any]) -> tuple[str, str, str]:
    sources = ", ".join(f"{one['token']} {percent(one['relevance'], 0)}" for one in row["sources"])
    return row["token"], f"{row['value']:.4g}", sources
