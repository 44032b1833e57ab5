"""The command that lets a language model write: generate."""

from typing import Any

from nrm.cli.ask import opened
from nrm.cli.asked import GenerateCommand
from nrm.cli.notation import read_rules
from nrm.cli.output import Terminal
from nrm.errors import InputError
from nrm.largest import largest
from nrm.measure import Generated, generated
from nrm.numbers import percent
from nrm.plot import generated as draw


def generate(asked: GenerateCommand) -> int:
    """What every generated token owes to those before it."""
    terminal = Terminal(asked.json)
    loaded = opened(terminal, asked.options, asked.model)
    if loaded.tokenizer is None:
        raise InputError("the model has no tokenizer", where=loaded.name, expected="hf:NAME of a language model")
    prompt: Any = [{"role": "user", "content": asked.prompt}] if asked.chat else asked.prompt
    with terminal.work("writing"):
        found = generated(
            loaded.model, loaded.tokenizer, prompt, tokens=asked.tokens, answer=asked.answer,
            rules=read_rules(asked.rules), memory=asked.memory,
        )  # fmt: skip
    rows = [_row(found, g, asked.k, asked.first) for g in range(len(found))]
    text = loaded.tokenizer.decode(found.ids[0, found.prompt :].tolist())
    terminal.title(text)
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
        rest=found.rest,
    )  # fmt: skip
    return 0


def _row(found: Generated, g: int, k: int, first: bool) -> dict[str, Any]:
    """One generated token with its largest sources."""
    shares = found.relevance[g].clone()
    if not first:
        shares[0] = 0
    best = largest(shares, min(k, found.prompt + g)).tolist()
    sources = [{"token": found.sources[i], "number": i, "relevance": float(shares[i])} for i in best]
    return {"token": found.written[g], "value": float(found.values[g]), "sources": sources}


def _line(row: dict[str, Any]) -> tuple[str, str, str]:
    sources = ", ".join(f"{one['token']} {percent(one['relevance'], 0)}" for one in row["sources"])
    return row["token"], f"{row['value']:.4g}", sources
