"""The front of the room: checks a model and its inputs, runs it once under the recorder, and returns the tape."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from nrm.capture import repeat
from nrm.capture.anatomy import Anatomy
from nrm.capture.arguments import stores_of, tensors_in
from nrm.capture.checks import check_finite, check_inputs, check_model, check_options, check_random, check_samples
from nrm.capture.follow import Differs, Follower
from nrm.capture.graphs import Graphs, find_graphs, is_record, parameters_of
from nrm.capture.guard import plain_attention, plain_execution, untouched
from nrm.capture.ops import Source
from nrm.capture.recorder import Recorder
from nrm.capture.samples import Whose
from nrm.capture.script import CallScript
from nrm.capture.several import begin_decoder, cached, compares_many, find_ends, is_common, patch_owners, sample_input
from nrm.capture.stand_ins import is_compiled, kept_as_packed, standing_in, unwrap
from nrm.capture.tape import Tape
from nrm.capture.vocabulary import COMPOSED, VOCABULARY
from nrm.errors import CaptureError
from nrm.memory import keep_pages

LOGITS = ("logits", "logits_per_image", "logits_per_audio")
"""The outputs that are explained, by what models of Hugging Face call them."""
Output = str | int | Callable[[Any], Tensor] | None


def capture(
    model: nn.Module, inputs: Any, *, output: Output = None, batch_dim: int | None = 0,
    dtype: torch.dtype | None = None, whole: bool = False, bound: int | None = None, like: CallScript | None = None,
) -> Tape:  # fmt: skip
    """Runs the model on its inputs and returns the tape of that pass.

    If it would hold more than ``bound`` bytes of values, those inside blocks of the model are dropped on the way.
    ``like`` is the script of a pass on other inputs (:func:`script_of`). If this one turns out to do the same, call by
    call, it is followed, which costs little more than the model does; if not, this pass is recorded. The notes of the
    tape say which.

    It is run once more, on changed inputs, where values left torch on the way: to see what has come back of them.
    """
    check_options(batch_dim, dtype)
    keep_pages()
    plain = unwrap(model)
    if not isinstance(plain, nn.Module):
        raise CaptureError("not a model", got=type(plain).__name__, expected="a torch.nn.Module")
    with standing_in(plain, is_compiled(model)) as notes:
        tape = _capture(Anatomy(plain), inputs, output, batch_dim, dtype, whole, bound, like, tuple(notes))
    tape.notes = tuple(dict.fromkeys((*notes, *tape.notes)))
    return tape


def _capture(
    anatomy: Anatomy, inputs: Any, output: Output, batch_dim: int | None, dtype: torch.dtype | None, whole: bool,
    bound: int | None, like: CallScript | None, notes: tuple[str, ...],
) -> Tape:  # fmt: skip
    """The tape of a model whose weights can be read."""
    model = anatomy.model
    check_model(anatomy)
    args, kwargs = split_inputs(inputs)
    kwargs, begun = begin_decoder(model, args, kwargs)
    given = tensors_in((args, kwargs))
    graphs = None if batch_dim is None else find_graphs(model, args, kwargs)
    batch_dim = batch_dim if graphs is None and not compares_many(model, kwargs) else None
    check_inputs([t for t in given if graphs is None or t.numel()], anatomy, batch_dim)
    precisions = anatomy.precisions | {t.dtype for t in given if t.is_floating_point()}
    dtype = dtype or (torch.float64 if torch.float64 in precisions else torch.float32)
    owners = {} if batch_dim is None else _packed_owners((args, kwargs)) | patch_owners(model, kwargs)
    holder = sample_input(model, kwargs)
    batch = _count_samples(given if holder is None else [kwargs[holder]], owners, batch_dim, graphs)
    exact = precisions == {dtype}

    forms = tuple((tuple(t.shape), t.dtype, t.device) for t in given)
    options = (dtype, batch_dim, batch, whole, exact, begun, forms, notes)

    def run(
        change: float = 0.0, made: Mapping[int, Sequence[int]] | None = None, script: CallScript | None = None
    ) -> _Recorded:
        """One recorded pass, on inputs that may be changed; with a script, a pass that follows it."""
        make = Recorder if script is None else functools.partial(Follower, script)
        recorder = make(
            anatomy, dtype, VOCABULARY, COMPOSED, samples=batch, batch_dim=batch_dim, exact=exact, graphs=graphs,
            change=change, made=made, whole=whole, bound=bound,
        )  # fmt: skip
        mine = _own(args, dtype), _own(kwargs, dtype)
        with untouched(anatomy), plain_execution(), plain_attention(anatomy) as instead:
            recorder.notes += [] if begun is None else [begun]
            recorder.notes += [f"attention is computed by 'sdpa' while it is captured, not by {n!r}" for n in instead]
            recorder.open()
            starts = []
            for (name, tensor), theirs in zip(_input_names(model, *mine), given, strict=True):
                along = None if is_common(model, name, kwargs) else batch_dim
                whose = _whose(tensor, theirs, owners.get(id(theirs)), batch, along, graphs)
                starts += [(index, theirs) for index in recorder.add_input(tensor, name, whose)]
            recorder.origin.update((id(tensor), (tensor, name)) for name, tensor in cached(mine[1]))
            result = _recorded(recorder, anatomy, model, mine, output, any(t.is_floating_point() for t in given))
            if not change:
                _check_starts(recorder, starts)
        return _Recorded(recorder, result, mine)

    why = None
    if like is not None:
        why = like.difference(anatomy, options, bound)
        if why is None:
            try:
                return _finish_like(run(script=like), model)
            except Differs as error:
                why = str(error)
    found = run()
    made = repeat.find_made(found.recorder, lambda change: run(change).recorder)
    found = run(made=made) if made else found
    tape = _finish(found, anatomy, model, batch, dtype)
    found.recorder.script.finish(found.recorder, anatomy, options)
    tape.script = found.recorder.script
    tape.notes = tape.notes if why is None else (*tape.notes, f"{ANEW}: {why}")
    return tape


ANEW = "calls were recorded anew"
"""How the note begins that says why another pass was not followed."""

FOLLOWED = "calls are those of an earlier measure, followed one by one on these inputs"
"""The note of a tape that was not recorded."""


def script_of(tape: Tape) -> CallScript | None:
    """The calls of a tape, for another pass to follow; they hold no values, and may outlive the tape."""
    tape = tape.here
    return None if tape.script is None else tape.script.prepare(tape)


class _Recorded(NamedTuple):
    """What came of one recorded forward pass."""

    recorder: Recorder
    result: Tensor
    inputs: tuple[tuple[Any, ...], dict[str, Any]]


def _recorded(
    recorder: Recorder, anatomy: Anatomy, model: nn.Module, inputs: tuple[tuple[Any, ...], dict[str, Any]],
    output: Output, has_floats: bool,
) -> Tensor:  # fmt: skip
    """Runs the model under the recorder; the explained output."""
    before = torch.get_rng_state()
    try:
        with recorder.watched(), recorder:
            result = _choose(model(*inputs[0], **inputs[1]), output)
        recorder.close(result)
    except RuntimeError as error:
        if recorder.nodes or has_floats:
            raise
        raise _no_embedding(str(error).splitlines()[0]) from error
    finally:
        recorder.memory.restore()
    if not torch.equal(before, torch.get_rng_state()):
        recorder.draw()
    check_random(recorder.notes, anatomy, before)
    return result


def _check_starts(recorder: Recorder, starts: list[tuple[int, Tensor]]) -> None:
    """Refuses a pass in which an input was written unseen: its node has to be what the user gave."""
    for index, theirs in starts:
        node = recorder.nodes[index]
        if not torch.equal(node.value, theirs.detach().to(node.value)):
            raise CaptureError(
                "the input was written by a call that torch does not report", where=f"layer {node.name!r}",
                expected="in-place functions of torch", hint="a copy that may be written: x.clone()",
            )  # fmt: skip


def _packed_owners(value: Any) -> dict[int, Tensor]:
    """The sample of every entry of the data of packed sequences, by the data's identity."""
    found: dict[int, Tensor] = {}
    if isinstance(value, PackedSequence):
        order = torch.arange(int(value.batch_sizes[0])) if value.sorted_indices is None else value.sorted_indices.cpu()
        rows = torch.cat([order[:size] for size in value.batch_sizes.tolist()]).to(value.data.device)
        found[id(value.data)] = rows.view(-1, *(1,) * (value.data.ndim - 1)).expand(value.data.shape)
    elif isinstance(value, Mapping):
        for one in value.values():
            found |= _packed_owners(one)
    elif isinstance(value, list | tuple):
        for one in value:
            found |= _packed_owners(one)
    return found


def _count_samples(
    given: list[Tensor], owners: Mapping[int, Tensor], batch_dim: int | None, graphs: Graphs | None
) -> int:
    if graphs is not None:
        return graphs.count
    if batch_dim is None:
        return 1
    packed = owners.get(id(given[0]))
    return given[0].shape[batch_dim] if packed is None else int(packed.max()) + 1


def _whose(
    tensor: Tensor, given: Tensor, owner: Tensor | None, batch: int, batch_dim: int | None, graphs: Graphs | None
) -> Whose:
    """Where the samples lie in an input: in its graphs, in a packed sequence, or along the axis of samples."""
    if graphs is not None:
        return graphs.whose(tensor, given)
    has_samples = batch_dim is not None and tensor.ndim > batch_dim and tensor.shape[batch_dim] == batch
    return Whose(batch_dim if has_samples and owner is None else None, owner)


def own_output(model: nn.Module, inputs: Any, output: Output = None) -> Tensor:
    """The explained output as the model computes it by itself, in its own precision; nothing is recorded or changed."""
    model = unwrap(model)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.get_default_dtype())
    args, kwargs = split_inputs(inputs)
    kwargs, _ = begin_decoder(model, args, kwargs)
    with untouched(Anatomy(model)), plain_execution(), kept_as_packed(model):
        buffers = [(b, b.clone()) for b in model.buffers()]
        try:
            return _choose(model(*_own(args, dtype), **_own(kwargs, dtype)), output).detach()
        finally:
            for buffer, before in buffers:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)


def split_inputs(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs as positional and keyword arguments of the call."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple) and not hasattr(inputs, "_fields"):
        return inputs, {}
    return (inputs,), {}


def _own(value: Any, dtype: torch.dtype) -> Any:
    """Copies of the tensors, so that a model which writes into its input does not write into the user's."""
    if isinstance(value, Tensor):
        mine = value.detach().clone()
        return mine.to(dtype) if mine.is_floating_point() else mine
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_own(v, dtype) for v in value))
    if isinstance(value, list | tuple):
        return type(value)(_own(v, dtype) for v in value)
    if isinstance(value, dict):
        return {k: _own(v, dtype) for k, v in value.items()}
    if is_record(value):
        twin = copy.copy(value)
        for _, store in stores_of(twin):
            for key in store.keys():  # noqa: SIM118
                store[key] = _own(store[key], dtype)
        return twin
    if hasattr(value, "get_seq_length") and hasattr(value, "update"):
        return copy.deepcopy(value)  # keys and values of earlier tokens, which a forward pass adds to
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        twin = copy.copy(value)
        for name in [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]:
            object.__setattr__(twin, name, _own(getattr(value, name), dtype))
        return twin
    return value


def _input_names(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    count, only = 0, len(tensors_in(args)) + len(kwargs) == 1
    for position, value in enumerate(args):
        if is_record(value):
            yield from _entry_names(value)
            continue
        if isinstance(value, dict) and len(tensors_in(value)) > 1:
            yield from _named_entries(f"input.{dict(enumerate(parameters_of(model))).get(position, position)}", value)
            continue
        for t in tensors_in(value):
            yield ("input" if only else f"input[{count}]"), t
            count += 1
    yield from _entry_names(kwargs)


def _entry_names(record: Any) -> Iterator[tuple[str, Tensor]]:
    for kind, store in stores_of(record):
        for key in store.keys():  # noqa: SIM118
            yield from _named_entries(f"input.{key}" if kind is None else f"input.{_kind(kind)}.{key}", store[key])


def _named_entries(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a value under its name; those of a dictionary by their keys."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _named_entries(f"{name}.{_kind(key)}", one)
        return
    for t in tensors_in(value):
        yield name, t


def _kind(key: Any) -> str:
    """A kind of nodes, or of edges from one kind to another, as a part of a name."""
    return "__".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _choose(result: Any, output: Output) -> Tensor:
    chosen: Any
    if callable(output):
        chosen = output(result)
    elif output is not None:
        chosen = _by_key(result, output)
    elif isinstance(result, Tensor):
        chosen = result
    elif known := [name for name in LOGITS if isinstance(getattr(result, name, None), Tensor)]:
        chosen = getattr(result, known[0])
    else:
        floats = [t for t in tensors_in(result) if t.is_floating_point()]
        if len(floats) != 1:
            raise CaptureError(
                "the model has several outputs; which one is explained?", got=_describe(result),
                hint="output='KEY', output=0, or output=lambda o: ...",
            )  # fmt: skip
        chosen = floats[0]
    if not isinstance(chosen, Tensor) or not chosen.is_floating_point():
        raise CaptureError("the explained output is not a float tensor", got=_describe(chosen))
    return chosen


def _by_key(result: Any, key: str | int) -> Any:
    try:
        if isinstance(result, Tensor):
            raise TypeError("one tensor has no keys")
        if isinstance(key, str) and not isinstance(result, Mapping) and hasattr(result, key):
            return getattr(result, key)
        return result[key]
    except (KeyError, IndexError, TypeError) as error:
        raise CaptureError(
            f"the model's output has no {key!r}", got=_describe(result), hint="output=lambda o: ..."
        ) from error


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"tensor {tuple(value.shape)} of {value.dtype}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k!r}: {_describe(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(_describe, value)) + ")"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value))
        return f"{type(value).__name__}({', '.join(f'{k}={_describe(v)}' for k, v in fields)})"
    return type(value).__name__


def _no_embedding(got: str | None = None) -> CaptureError:
    return CaptureError(
        "nothing to explain: the inputs are integers and reach no embedding", got=got,
        expected="a float input, or integers that an embedding looks up", hint="inputs.float()",
    )  # fmt: skip


def _user_inputs(recorder: Recorder) -> tuple[int, ...]:
    """The user's inputs: float tensors, and the embeddings of integers.

    Of several embeddings (words, positions, types of tokens) it is the one of the integers that were given first.
    """
    sources = [n for n in recorder.nodes if isinstance(n.op, Source) and n.op.kind in ("input", "embedding")]
    if recorder.graphs is not None:  # an object of a graph has more entries (labels, coordinates) than a model reads
        read = {i for node in recorder.nodes for i in node.inputs}
        sources = [n for n in sources if n.index in read] or sources
    named = [(name, index) for name, index in recorder.embedded if name is not None]
    for name, index in named:
        if name != "input":
            recorder.names.setdefault(name, []).append(index)
    if named and all(n.op.kind == "embedding" for n in sources):
        first = min((name for name, _ in named), key=recorder.given.index)
        return tuple(index for name, index in named if name == first)
    return tuple(n.index for n in sources)


def _finish(found: _Recorded, anatomy: Anatomy, model: nn.Module, batch: int, dtype: torch.dtype) -> Tape:
    recorder, result, _ = found
    inputs = _user_inputs(recorder)
    if not inputs:
        raise _no_embedding()
    if not recorder.tracked(result):
        raise CaptureError(
            "the output does not depend on the input through torch calls",
            expected="no numpy round trip, .item() or scripted code on the way",
        )
    _number_names(recorder, anatomy)
    output = recorder.node(result).index
    if "input" not in recorder.names:
        recorder.names["input"] = [inputs[0]] if len(inputs) == 1 else list(inputs)
    modules = {path: type(m) for path, m in anatomy.modules}
    ends = find_ends(model, found.inputs, recorder.nodes, recorder.nodes[inputs[0]], recorder.nodes[output])
    tape = Tape(
        recorder.nodes, recorder.names, recorder.received, modules, inputs, output, batch, dtype,
        tuple(dict.fromkeys(recorder.notes)), recorder.steps, ends,
        recorder.graphs, doubts=tuple(recorder.constants.doubts),
    )  # fmt: skip
    check_finite(tape)
    check_samples(tape)
    return tape


def _finish_like(found: _Recorded, model: nn.Module) -> Tape:
    """The tape of a pass that has followed another one to its end."""
    follower, _, inputs = found
    assert isinstance(follower, Follower)
    tape, nodes = copy.copy(follower.outline), follower.nodes
    tape.nodes = nodes
    tape.ends = find_ends(model, inputs, nodes, nodes[tape.inputs[0]], nodes[tape.output])
    tape.notes = (*(n for n in tape.notes if not n.startswith((ANEW, FOLLOWED))), FOLLOWED)
    check_finite(tape)
    return tape


def _number_names(recorder: Recorder, anatomy: Anatomy) -> None:
    """Names for ops that no module has named, and numbers for names that occur several times.

    The last op of a container has the container's name and its own: ``block`` and ``block/add``.
    """
    called = set(recorder.names)
    for path, index, given in recorder.borrowed:
        if path not in called:
            recorder.names.setdefault(path, []).append(index)
            recorder.received.setdefault(path, []).extend(given)
            recorder.nodes[index].name = recorder.nodes[index].name or path
    containers = {path for path, module in anatomy.modules if any(module._modules.values())}
    for node in recorder.nodes:
        own = f"{node.module}/{node.function.removeprefix('get:')}"
        if not node.name or (node.name == node.module and node.name in containers):
            recorder.names.setdefault(own, []).append(node.index)
            node.name = node.name or own
    number: dict[str, dict[int, int]] = {}
    for node in recorder.nodes:
        calls = recorder.names[node.name]
        if len(calls) > 1:
            if node.name not in number:
                number[node.name] = {index: k for k, index in reversed(list(enumerate(calls)))}
            node.name = f"{node.name}#{number[node.name][node.index]}"
