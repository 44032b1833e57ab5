"""Trained networks of several fields, each with an answer that a person of that field would recognize."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import nrm
import vision

with suppress(pytest.skip.Exception):
    vision.load()  # before transformers, which imports it

from real import fields
from real.whisper import can_speak, speak

pytestmark = [pytest.mark.slow, pytest.mark.data, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def home(shared: Callable[[str], Path]) -> Path:
    return shared("fields")


def need(*packages: str) -> None:
    for package in packages:
        pytest.importorskip(package, reason=f"{package} is not installed")


def spoken(text: str) -> Tensor:
    need("scipy")
    if not can_speak():
        pytest.skip("espeak-ng is not installed, which speaks the sentence")
    return speak(text).float()


def certified(R: Any) -> Any:
    """A measure that holds, and that can be asked."""
    check = R.check()
    assert check.mass == pytest.approx((1.0,), abs=1e-4)
    assert all(check.ok)
    return R


def adds_up(answer: Tensor) -> Tensor:
    torch.testing.assert_close(answer.sum(), torch.ones(()), rtol=1e-3, atol=1e-3)
    return answer


def test_speech_is_where_it_is_spoken(home: Path) -> None:
    """Silero, of a second of which the first third is silent: the difference from silence is in the words."""
    model, quiet = fields.silero(home), 64 + 4 * 512
    wave = torch.cat([torch.zeros(1, quiet), spoken("Hello world.")[None, : 8 * 512]], 1)
    assert float(model(wave).sigmoid()) > 0.9
    certified(nrm.measure(model, wave))
    noise = 1e-4 * torch.randn(wave.shape, generator=torch.Generator().manual_seed(0))
    D = nrm.measure(model, wave + noise, against=noise)
    share = adds_up(D(D.input)[0])
    assert float(share[:quiet].abs().sum()) == 0
    assert float(share[-5 * 512 :].sum()) > 0.8  # it says how sure it is now


def test_pitch_is_heard_in_the_tone(home: Path) -> None:
    """CREPE names the pitch of a tone, and what it heard are the harmonics of that pitch."""
    model, wave = fields.crepe(home), fields.tone(220.0)
    best = int(model(wave).argmax())
    assert fields.pitch_of(best) == pytest.approx(220, rel=0.01)
    D = certified(nrm.measure(model, wave, against=torch.zeros_like(wave)))
    share = adds_up(D(D.input)[0])
    heard = torch.fft.rfft(share).abs() ** 2  # relevance comes and goes as often as the tone does
    peak = 4 + int(heard[4:60].argmax())
    assert any(abs(peak * fields.RATE / 1024 - k * 220) < 20 for k in (1, 2, 3, 4))


def test_a_voice_is_recognized_by_its_sounds(home: Path) -> None:
    """Resemblyzer, three LSTMs: a sentence is alike to itself by what is spoken, not by pauses."""
    need("transformers")
    encoder, mels = fields.voices(home), fields.mel_frames(spoken("The dog chased the cat."))[:, :60]
    with torch.no_grad():
        others = encoder(mels)
    R = certified(nrm.measure(fields.Alike(encoder, others), mels))
    assert float(R.value) == pytest.approx(1.0, abs=1e-4)
    share = R(R.input)[0].sum(1)
    loud = mels[0].sum(1) > mels[0].sum(1).median()
    assert float(share[loud].abs().sum()) > float(share[~loud].abs().sum())


def test_a_takeover_is_in_the_words_that_take_over(home: Path) -> None:
    """NanoGuard: what makes a prompt an attack is the sentence that tells to ignore instructions."""
    need("tiktoken")
    model, tokenizer = fields.guard(home)
    ids = torch.tensor([tokenizer.encode(fields.TAKEOVER)])
    inputs = ids, torch.ones_like(ids, dtype=torch.bool)
    assert float(model(*inputs).softmax(-1)[0, 1]) > 0.99
    R = certified(nrm.measure(model, inputs, target=1))
    words = [tokenizer.enc.decode([i]) for i in ids[0].tolist()]
    text = "".join(words)
    ends = torch.tensor([len(w) for w in words]).cumsum(0)
    attack = (ends > text.index("Ignore")) & (ends <= text.index("prompt.") + len("prompt."))
    share = R(R.tokens)[0]
    assert float(share[attack].sum()) > 4 * float(share[~attack].clamp(min=0).sum())


def test_python_is_known_by_its_keywords(home: Path) -> None:
    """Magika knows a script by ``import`` and its like, not by its names."""
    model, kinds = fields.magika(home)
    ids = fields.bytes_of(fields.SCRIPT)
    assert kinds[int(model(ids).argmax())] == "python"
    certified(nrm.measure(model, ids))
    blank = torch.where(ids < 256, torch.full_like(ids, ord("a")), ids)
    D = nrm.measure(model, ids, against=blank)
    share = adds_up(D(D.tokens)[0])
    first = share[: len(fields.SCRIPT.lstrip())]
    assert float(first[:18].sum()) > 3 * 18 / len(first) * float(first.sum())  # "import os\nimport sys"


def test_an_antibody_is_known_by_its_frameworks(home: Path) -> None:
    """AntiBERTy: a human heavy chain, and the loop that binds (CDR3) says the least of its species."""
    need("transformers")
    model, tokenizer = fields.antibody(home)
    tokens = dict(tokenizer(" ".join(fields.HEAVY), return_tensors="pt"))
    assert int(model(**tokens).species_logits.argmax()) == 1
    assert int(model(**tokens).chain_logits.argmax()) == 0
    certified(nrm.measure(model, tokens, output="chain_logits"))
    masked = {**tokens, "input_ids": tokens["input_ids"].masked_fill(tokens["input_ids"] > 4, tokenizer.mask_token_id)}
    D = nrm.measure(model, tokens, output="species_logits", against=masked)
    share = adds_up(D(D.tokens)[0])[1:-1]
    loop = torch.zeros(len(share), dtype=torch.bool)
    begin = fields.HEAVY.index("CAK") + 1
    loop[begin : fields.HEAVY.index("WGQG")] = True
    assert float(share[~loop].sum()) > 2 * float(share[loop].sum())


def test_a_helix_is_designed_from_its_neighbourhood(home: Path) -> None:
    """ProteinMPNN gives a helix the amino acids of helices, from the places of the residues around."""
    backbone = fields.helix(24)
    model = fields.designer(home, 24)
    with torch.no_grad():
        logits = model(backbone)
    designed = "".join(model.letters[int(k)] for k in logits[0].argmax(-1))
    assert set(designed) <= set("EKAQLR")  # the residues that helices are made of
    at = 8
    D = nrm.measure(model, backbone, against=fields.stretched(backbone), target=(at, int(logits[0, at].argmax())))
    share = adds_up(D(D.input)[0]).sum((1, 2)).abs()
    assert float(share[at - 4 : at + 5].sum()) > 0.45 * float(share.sum())


def test_a_mutagen_is_known_by_its_nitro_group(home: Path) -> None:
    """A network of ADMET-AI says that nitronaphthalene is a mutagen, because of its nitro group."""
    need("chemprop", "rdkit")
    model, inputs, questions, molecule = fields.drug(home, fields.NITRO)
    ames = questions.index("AMES")
    assert float(model(*inputs).sigmoid()[0, ames]) > 0.9
    R = certified(nrm.measure(model, inputs, target=(0, ames), batch_dim=None))
    atoms = R(R["input[0]"])[0].sum(1)
    assert [atom.GetSymbol() for atom in molecule.GetAtoms()][:3] == ["O", "N", "O"]
    assert float(atoms[:3].sum()) > 0.8 * float(atoms.clamp(min=0).sum())
    assert int(atoms.argmax()) == 1
    D = nrm.measure(model, inputs, against=tuple(map(torch.zeros_like, inputs)), target=(0, ames), batch_dim=None)
    adds_up(torch.cat([D(D["input[0]"]).flatten(), D(D["input[1]"]).flatten()]))


def test_a_crystal_has_its_symmetry(home: Path) -> None:
    """CHGNet on rock salt: all sodium is alike, and so is all chlorine; what is exchanged has all of the difference."""
    need("pymatgen", "ase")
    model, numbers = fields.crystal(home, fields.SALT, fields.CELL, 5.64)
    R = certified(nrm.measure(model, numbers))
    share = R(R.tokens)[0]
    for part in (share[:4], share[4:]):
        torch.testing.assert_close(part, part[:1].expand(4), rtol=1e-3, atol=1e-4)
    D = nrm.measure(model, numbers, against=torch.where(numbers == 11, 19, numbers))  # potassium for sodium
    torch.testing.assert_close(D(D.tokens)[0], torch.tensor([0.25] * 4 + [0.0] * 4), rtol=1e-3, atol=1e-3)


def test_a_scan_far_from_the_training_data(home: Path) -> None:
    """A network for other scans sees a tumour in a healthy head, too; a bright spot has more than its area."""
    model, classes = fields.tumors(home)
    assert sorted(classes) == ["glioma", "meningioma", "notumor", "pituitary"]
    image, spot = fields.scan(home)
    R = certified(nrm.measure(model, image))
    share = R(R.input)[0].sum(0)
    assert float(share[spot].sum() / share.sum()) > 4 * float(spot.float().mean())
