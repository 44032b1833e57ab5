"""Result files: what is saved comes back, as a whole or not at all, and nothing else is taken for it."""

from __future__ import annotations

import json
import math
import os
import pickle
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, strategies as st

import nrm.results
from nrm._version import __version__
from nrm.errors import QuestionError, ResultFileError
from nrm.files import replacing
from nrm.results import DTYPES, SCHEMA, Results, load, save

FACTS = {
    "rules": "epsilon-plus-flat",
    "bias": "ignore",
    "zero": "sink",
    "layers": ["input", "features.26", "features.28"],
    "target": [207],
    "labels": {"output": ["tench", "<b>goldfish</b>", "魚"]},
    "check": {"ok": True, "mass": 1.0, "sinks": 0.0, "precision": None},
    "model_digest": "0f" * 32,
    "value": 12.5,
}


class Measure:
    """As much of a measure as a result file asks for."""

    def __init__(self, batch: int = 1, facts: Mapping[str, Any] = FACTS) -> None:
        self.batch, self.facts = batch, facts

    def __len__(self) -> int:
        return self.batch

    def describe(self) -> Mapping[str, Any]:
        return self.facts


class Variable:
    """A layer or partition, as far as a result file cares: it has a text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


A, B, X = Variable("features.26.channels"), Variable("features.28.channels"), Variable("input.positions")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "r.safetensors"


def alone(path: Path) -> bool:
    """Whether nothing else, such as a temporary file, is left beside a file."""
    return [other.name for other in path.parent.iterdir()] == [path.name]


# Round trips

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = texts.filter(lambda name: name not in ("__metadata__", "path", "measure"))
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape, dtype = draw(shapes), draw(st.sampled_from(sorted(DTYPES, key=str)))
    make = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    if dtype.is_floating_point:
        return torch.randn(shape, generator=make).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=make).to(dtype)


@given(st.dictionaries(names, tensors(), min_size=1, max_size=4), st.dictionaries(texts, plain, max_size=3), st.data())
def test_everything_comes_back(given_: dict[str, torch.Tensor], facts: dict[str, Any], data: st.DataObject) -> None:
    axes = {name: data.draw(st.lists(texts, min_size=t.ndim, max_size=t.ndim)) for name, t in given_.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.safetensors"
        save(path, measure=Measure(facts=facts), **{name: (t, axes[name]) for name, t in given_.items()})
        results = load(path)
        assert alone(path)
    assert list(results) == sorted(given_)
    for name, tensor in given_.items():
        assert results[name].dtype == tensor.dtype
        assert results[name].device.type == "cpu"
        assert torch.equal(results[name], tensor)
        assert results.axes[name] == tuple(axes[name])
    assert results.measure == facts
    assert results.versions == {"nrm": __version__, "torch": str(torch.__version__)}
    assert results.schema == SCHEMA == 1


@given(tensors())
def test_special_numbers_and_bits_come_back(tensor: torch.Tensor) -> None:
    if tensor.dtype.is_floating_point and tensor.numel():
        tensor.view(-1)[0] = float("nan")
        tensor.view(-1)[-1] = float("-inf")
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder) / "r", tensor=tensor)
        torch.testing.assert_close(load(Path(folder) / "r")["tensor"], tensor, rtol=0, atol=0, equal_nan=True)


def test_tensors_of_every_kind_of_memory_come_back(path: Path, device: torch.device) -> None:
    base = torch.arange(24.0, device=device).reshape(4, 6)
    with torch.inference_mode():
        inference = base * 2
    kinds = {
        "whole": base,
        "again": base,
        "view": base[1:3],
        "overlap": base.view(-1)[3:9],
        "transposed": base.T,
        "expanded": base[:1].expand(5, 6),
        "strided": base[:, ::2],
        "grad": base.clone().requires_grad_(),
        "parameter": torch.nn.Parameter(base.clone()),
        "inference": inference,
    }
    save(path, **kinds)
    results = load(path)
    for name, tensor in kinds.items():
        assert torch.equal(results[name], tensor.detach().cpu()), name
        assert not results[name].requires_grad


def test_arrays_come_back(path: Path) -> None:
    base = np.arange(24.0).reshape(4, 6)
    frozen = base.copy()
    frozen.setflags(write=False)
    kinds = {"whole": base, "reversed": base[::-1], "big": base.astype(">f4"), "frozen": frozen, "flags": base > 3}
    save(path, **kinds, scalar=np.array(2.5))
    results = load(path)
    for name, array in kinds.items():
        np.testing.assert_array_equal(results[name].numpy(), array)
    assert results["scalar"].item() == 2.5


def test_loaded_tensors_do_not_depend_on_the_file(path: Path) -> None:
    save(path, a=torch.ones(1000))
    results = load(path)
    path.write_bytes(b"\0" * path.stat().st_size)
    assert results["a"].sum() == 1000
    path.unlink()
    results["a"].add_(1)
    assert results["a"].sum() == 2000


def test_loaded_results_can_be_saved_again(path: Path, tmp_path: Path) -> None:
    save(path, measure=Measure(), pairs=(torch.rand(1, 2, 3), (A, B)), plain=torch.rand(2))
    results, again = load(path), tmp_path / "again"
    save(
        again,
        measure=results.measure,
        pairs=(results["pairs"], results.axes["pairs"]),
        plain=results["plain"],
    )
    assert again.read_bytes() == path.read_bytes()


def test_a_default_device_is_no_surprise(path: Path) -> None:
    save(path, a=torch.rand(3))
    with torch.device("meta"):
        assert load(path)["a"].device.type == "cpu"


# Axes


@pytest.mark.parametrize(
    ("shape", "axes", "names"),
    [
        ((2, 5, 7), (A, B), ("sample", str(A), str(B))),
        ((2, 5, 7), ("sample", A, B), ("sample", str(A), str(B))),
        ((2, 5, 7), ["image", "c1", "c2"], ("image", "c1", "c2")),
        ((2, 5, 7), (X,), ("sample", str(X), str(X))),
        ((2, 5, 7, 3), (X, X, A), ("sample", str(X), str(X), str(A))),
        ((2, 5), (A,), ("sample", str(A))),
        ((5, 7), (A, B), (str(A), str(B))),
        ((), (), ()),
    ],
)
def test_axes_are_named_by_texts_or_by_the_variables_of_a_question(
    path: Path, shape: tuple[int, ...], axes: Any, names: tuple[str, ...]
) -> None:
    save(path, measure=Measure(batch=2), t=(torch.rand(shape), axes))
    assert load(path).axes["t"] == names


def test_unknown_axes_are_numbered(path: Path) -> None:
    save(path, t=torch.rand(2, 3), s=torch.tensor(1.0))
    assert load(path).axes == {"t": ("axis 0", "axis 1"), "s": ()}


@pytest.mark.parametrize(
    ("axes", "measure"),
    [
        (("a", "b"), Measure(2)),  # texts name every axis
        (("a", "b", "c", "d"), Measure(2)),
        ((A, B), None),  # without a measure no axis is implied
        ((A, B), FACTS),
        ((A, B), Measure(3)),  # the first axis is not the batch
        ((A, B, A, B), Measure(2)),
        ((), Measure(2)),
    ],
)
def test_axes_that_do_not_fit_are_refused(path: Path, axes: Any, measure: Any) -> None:
    with pytest.raises(QuestionError, match="axes of t do not fit") as caught:
        save(path, measure=measure, t=(torch.rand(2, 5, 7), axes))
    assert "(2, 5, 7)" in str(caught.value)
    assert not path.exists()


# What a file shows


def test_the_repr_says_what_is_in_it(path: Path) -> None:
    save(path, measure=Measure(), pairs=(torch.rand(1, 4, 6), (A, B)), total=torch.tensor(1.0, dtype=torch.float64))
    text = repr(load(path))
    assert text.splitlines()[0] == f"Results (schema 1; nrm {__version__}, torch {torch.__version__})"
    assert "  pairs  float32  1 sample x 4 features.26.channels x 6 features.28.channels" in text
    assert "  total  float64  one number" in text
    assert "rules epsilon-plus-flat" in text
    assert "layers (3)" in text


def test_results_are_a_mapping(path: Path) -> None:
    save(path, a=torch.ones(2), b=torch.zeros(3))
    results = load(path)
    assert isinstance(results, Results)
    assert isinstance(results, Mapping)
    assert (len(results), list(results), "a" in results, "c" in results) == (2, ["a", "b"], True, False)
    assert results.measure is None
    assert results != load(path)
    assert results == results
    assert len({results, results}) == 1
    with pytest.raises(KeyError):
        results["c"]
    with pytest.raises(AttributeError):
        results.schema = 2  # type: ignore[misc]


def test_any_safetensors_reader_opens_the_file(path: Path) -> None:
    save(path, measure=Measure(), a=(torch.ones(2, 3), ("sample", "x")))
    assert torch.equal(safetensors.torch.load_file(path)["a"], torch.ones(2, 3))
    with safetensors.safe_open(path, framework="np") as file:
        entries = file.metadata()
    assert list(entries) == ["nrm"]
    header = json.loads(entries["nrm"])
    assert header["schema"] == 1
    assert header["axes"] == {"a": ["sample", "x"]}
    assert header["measure"]["labels"]["output"][2] == "魚"


# Same content, same bytes

WRITE = """
import sys, torch
from nrm.results import save
make = torch.Generator().manual_seed(0)
tensors = {name: torch.randn(3, 4, generator=make) for name in "abcdefgh"}
tensors["flags"] = tensors["a"] > 0
facts = {key: {"x": 1.5, "y": [1, 2]} for key in "klmnopq"}
order = sorted(tensors, reverse=sys.argv[2] == "1")
keys = sorted(facts, reverse=sys.argv[2] == "1")
save(sys.argv[1], measure={key: facts[key] for key in keys}, **{name: (tensors[name], ("u", "v")) for name in order})
"""


def test_the_same_content_gives_the_same_bytes_in_every_process_and_order(tmp_path: Path) -> None:
    for i in range(3):
        command = [sys.executable, "-c", WRITE, str(tmp_path / str(i)), str(i % 2)]
        environment = os.environ | {"PYTHONHASHSEED": str(i), "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run(command, check=True, env=environment)
    contents = {(tmp_path / str(i)).read_bytes() for i in range(3)}
    assert len(contents) == 1


# Atomic writing


def fail_half_way(tensors: object, filename: Path, metadata: object) -> None:
    filename.write_bytes(b"half of it")
    raise OSError(28, "No space left on device")


def interrupt_half_way(tensors: object, filename: Path, metadata: object) -> None:
    filename.write_bytes(b"half of it")
    raise KeyboardInterrupt


@pytest.mark.parametrize(("writer", "error"), [(fail_half_way, OSError), (interrupt_half_way, KeyboardInterrupt)])
def test_a_write_that_fails_half_way_changes_nothing(
    path: Path, writer: Any, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(path, a=torch.ones(3))
    before = path.read_bytes()
    monkeypatch.setattr(nrm.results, "save_file", writer)
    with pytest.raises(error):
        save(path, a=torch.zeros(3))
    assert path.read_bytes() == before
    assert alone(path)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_after_the_write_changes_nothing(path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save(path, a=torch.ones(3))

    def fail(*args: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail) if step == "fsync" else patch.setattr(Path, "replace", fail)
        with pytest.raises(OSError, match="Input/output"):
            save(path, a=torch.zeros(3))
    assert load(path)["a"].sum() == 3
    assert alone(path)


FILL = """
import resource, signal, sys, torch
from nrm.errors import ResultFileError
from nrm.results import save
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save(sys.argv[1], a=torch.zeros(1_000_000))
except (OSError, ResultFileError) as error:
    print(error)
    sys.exit(3)
"""


def test_a_file_that_really_outgrows_its_room_changes_nothing(path: Path) -> None:
    save(path, a=torch.ones(3))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stderr
    assert "File too large" in done.stdout
    assert load(path)["a"].sum() == 3
    assert alone(path)


KILL = """
import os, signal, sys
import nrm.results, torch
real = nrm.results.save_file
def write_and_die(*args, **options):
    real(*args, **options)
    os.kill(os.getpid(), signal.SIGKILL)
nrm.results.save_file = write_and_die
nrm.results.save(sys.argv[1], a=torch.zeros(3))
"""


def test_a_killed_process_leaves_the_old_file(path: Path) -> None:
    save(path, a=torch.ones(3))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", KILL, str(path)], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert load(path)["a"].sum() == 3


def test_the_data_is_on_disk_before_the_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: (steps.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file"), fsync(fd))
    )
    monkeypatch.setattr(Path, "replace", lambda self, target: (steps.append("rename"), replace(self, target)))
    save(path, a=torch.ones(3))
    assert steps == ["file", "rename", "folder"]


def test_the_file_has_the_usual_permissions(path: Path) -> None:
    (path.parent / "other").touch()
    save(path, a=torch.ones(3))
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((path.parent / "other").stat().st_mode)


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    real = tmp_path / "data" / "real"
    path.symlink_to(real)
    save(path, a=torch.ones(3))
    assert path.is_symlink()
    assert load(real)["a"].sum() == 3


def test_a_long_file_name_is_fine(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    save(path, a=torch.ones(3))
    assert load(path)["a"].sum() == 3


def test_missing_folders_and_files_keep_their_own_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        save(tmp_path / "absent" / "r", a=torch.ones(3))
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent")
    with pytest.raises(IsADirectoryError):
        load(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        save(tmp_path / "folder", a=torch.ones(3))
    assert [other.name for other in tmp_path.iterdir()] == ["folder"]


def test_replacing_serves_any_writer(tmp_path: Path) -> None:
    def write_half() -> None:
        with replacing(tmp_path / "text") as temporary:
            temporary.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert list(tmp_path.iterdir()) == []


# What cannot be saved

BAD = {
    "nothing": ({}, "nothing to save"),
    "list": ({"a": [1.0, 2.0]}, "a cannot be saved"),
    "number": ({"a": 1.0}, "a cannot be saved"),
    "sparse": ({"a": torch.ones(2, 2).to_sparse()}, "a cannot be saved"),
    "meta": ({"a": torch.ones(2, device="meta")}, "a cannot be saved"),
    "complex": ({"a": torch.ones(2, dtype=torch.complex64)}, "a cannot be saved"),
    "objects": ({"a": np.array([object()])}, "a cannot be saved"),
    "texts": ({"a": np.array(["x"])}, "a cannot be saved"),
    "two tensors": ({"a": (torch.ones(2), torch.ones(2))}, "a is not a tensor with its axes"),
    "axes as text": ({"a": (torch.ones(2), "x")}, "a is not a tensor with its axes"),
    "triple": ({"a": (torch.ones(2), ("x",), 1)}, "a is not a tensor with its axes"),
    "empty tuple": ({"a": ()}, "a is not a tensor with its axes"),
    "reserved name": ({"__metadata__": torch.ones(2)}, "cannot have this name"),
    "broken name": ({"\ud800": torch.ones(2)}, "cannot have this name"),
    "measure": ({"a": torch.ones(2), "measure": 3}, "measure is not a measure"),
    "nan fact": ({"measure": {"check": {"mass": [1.0, math.nan]}}}, r"measure\['check'\]\['mass'\]\[1\]"),
    "inf fact": ({"measure": {"x": torch.tensor(math.inf)}}, r"measure\['x'\]"),
    "number as key": ({"measure": {"labels": {207: "dog"}}}, r"measure\['labels'\]"),
    "object fact": ({"measure": {"device": torch.device("cpu")}}, r"measure\['device'\]"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_saved_has_a_clear_text_and_writes_nothing(case: str, path: Path) -> None:
    arguments, what = BAD[case]
    with pytest.raises(QuestionError, match=what) as caught:
        save(path, **arguments)
    assert caught.value.where is not None
    assert caught.value.where.startswith("nrm.save(")
    assert list(path.parent.iterdir()) == []


def test_facts_may_hold_small_tensors(path: Path) -> None:
    facts = {"value": torch.tensor([1.5, -2.0]), "target": np.int64(7), "sizes": (1, 2), "mask": np.array([True])}
    save(path, measure=facts)
    assert load(path).measure == {"value": [1.5, -2.0], "target": 7, "sizes": [1, 2], "mask": [True]}


# Files that are not ours


def refused(path: Path, match: str) -> str:
    with pytest.raises(ResultFileError, match=match) as caught:
        load(path)
    assert caught.value.where == f"nrm.load({str(path)!r})"
    assert caught.value.expected
    return str(caught.value)


def test_every_truncation_is_refused(path: Path) -> None:
    save(path, measure={"x": 1}, a=torch.ones(5), b=torch.ones(2, 2, dtype=torch.int64))
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        refused(path, "cut off or damaged")
    path.write_bytes(whole + b"more")
    refused(path, "cut off or damaged")


@given(st.data())
def test_damage_is_refused_or_harmless_but_never_another_error(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r"
        save(path, measure=FACTS, a=(torch.ones(5), ["x"]), b=torch.ones(2, 2))
        whole = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(whole)
        try:
            results = load(path)
        except ResultFileError:
            return
        assert all(len(results.axes[name]) == results[name].ndim for name in results)
        repr(results)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r"
        path.write_bytes(content)
        refused(path, "safetensors|damaged")


class Trap:
    def __reduce__(self) -> Any:
        return os.abort, ()


def test_pickles_are_refused_and_never_run(path: Path) -> None:
    path.write_bytes(pickle.dumps(Trap()))
    assert "never unpickles" in refused(path, "not a safetensors file")
    torch.save({"a": torch.ones(3)}, path)
    assert "never unpickles" in refused(path, "not a safetensors file")
    path.write_text("a,b,c\n1,2,3\n" * 10)
    assert "never unpickles" not in refused(path, "not a safetensors file")


def bomb(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "content",
    [
        bomb({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}}, b"\0" * 4),
        bomb({"a": {"dtype": "F32", "shape": [2**62], "data_offsets": [0, 2**64 - 1]}}),
        bomb({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"\0" * 4),
        bomb({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, b"\0" * 4),
        bomb({"a": {"dtype": "OBJ", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4),
        bomb(b'{"a":' * 10_000),
        bomb({"__metadata__": {"nrm": 1}}),
        (2**63).to_bytes(8, "little") + b"{}",
    ],
    ids=["huge shape", "overflow", "negative", "backwards", "dtype", "nested", "entry type", "huge header"],
)
def test_hostile_files_are_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    refused(path, "cut off or damaged")


def write_header(path: Path, header: object, entry: str = "nrm") -> None:
    text = header if isinstance(header, str) else json.dumps(header)
    safetensors.torch.save_file({"a": torch.ones(2, 3)}, path, metadata={entry: text})


GOOD = {"schema": 1, "versions": {"nrm": "9.9"}, "axes": {"a": ["x", "y"]}, "measure": None}


def test_a_good_header_by_another_hand_is_read(path: Path) -> None:
    write_header(path, GOOD)
    assert load(path).axes == {"a": ("x", "y")}


@pytest.mark.parametrize("entry", ["format", "NRM"])
def test_other_safetensors_files_are_refused(path: Path, entry: str) -> None:
    write_header(path, GOOD, entry)
    assert f"[{entry!r}]" in refused(path, "not a result file of nrm")
    safetensors.torch.save_file({"a": torch.ones(2)}, path)
    refused(path, "not a result file of nrm")


@pytest.mark.parametrize(("schema", "hint"), [(2, "install a newer nrm"), (0, "write the file again")])
def test_another_schema_version_says_found_expected_and_what_to_do(path: Path, schema: int, hint: str) -> None:
    write_header(path, {"schema": schema, "versions": {"nrm": "9.9"}, "layout": "of the future"})
    text = refused(path, "another schema version")
    assert f"schema {schema}, written by nrm 9.9" in text
    assert "expected: schema 1" in text
    assert hint in text


@pytest.mark.parametrize(
    "header",
    [
        "no JSON",
        "[" * 100_000,
        '{"schema": NaN}',
        '{"schema": ' + "9" * 10_000 + "}",
        "[1]",
        {},
        {**GOOD, "schema": "1"},
        {**GOOD, "schema": True},
        {**GOOD, "schema": 1.0},
        {**GOOD, "versions": None},
        {**GOOD, "versions": {"nrm": 1}},
        {**GOOD, "axes": []},
        {**GOOD, "axes": {"b": ["x"]}},
        {**GOOD, "axes": {"a": ["x"]}},
        {**GOOD, "axes": {"a": "xy"}},
        {**GOOD, "axes": {"a": ["x", 1]}},
        {**GOOD, "measure": [1]},
        {key: GOOD[key] for key in ("schema", "versions", "axes")},
    ],
    ids=lambda header: str(header)[:30],
)
def test_damaged_headers_are_refused(path: Path, header: object) -> None:
    write_header(path, header)
    refused(path, "header of the result file is damaged")
