"""The scripts of the other libraries on the page for those who come from them: they run, and give what ours give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import vision
from peers.subjects import relative_error

pytestmark = pytest.mark.peer
vision.load()  # zennit imports torchvision
for name in ("captum", "crp", "quantus"):
    pytest.importorskip(name, reason=f"{name} is not installed: make peers")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from.md"
BLOCK = re.compile(r"^```(py|python)\n(.*?)^```", re.M | re.S)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # shap's own, of matplotlib, when it is imported
@pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning", "ignore::UserWarning")
def test_both_scripts_have_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    everything: dict[str, object] = {}
    compared = 0
    beside, _, _ = PAGE.read_text().partition("## PyTorch Geometric")  # which has no script of theirs
    for language, code in BLOCK.findall(beside):
        exec(compile(code, str(PAGE), "exec"), everything)
        if language == "python" and "theirs" in everything:
            theirs = everything.pop("theirs").detach()  # type: ignore[attr-defined]
            assert relative_error(everything["ours"], theirs) < 1e-4, code  # type: ignore[arg-type]
            compared += 1
    assert compared == 4
    scores = everything["scores"]
    assert len(scores["original"]) == 2  # type: ignore[index]
