"""Tries the package as a new user gets it: built, installed into fresh environments, and used.

``fresh.py package`` builds wheel and sdist into ``dist``, looks into the wheel, and runs the demo from it.
``fresh.py extras`` tries the core without any extra, then every extra alone on top of it (``--only viz web`` for some).

Environments are made in a temporary folder and share one installation of the core, so that torch is installed once;
``constraints.txt`` pins its version. What an extra promises is a small script below.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]

START = """
import torch, nrm
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3))
x = torch.rand(2, 3, 8, 8)
R = nrm.measure(model.eval(), x)
a = R["1"]
"""
CORE = """
assert R(R.input, a.channels).shape == (2, 3, 8, 8, 4)
assert len(R.flows(a.channels, R.output, k=2)[0]) == 2
nrm.save("pairs.safetensors", measure=R, channels=(R(a.channels), (a.channels,)))
print(nrm.load("pairs.safetensors"), R.check())
R.sample(0).report("report.html")
calls = lambda: nrm.plot.heatmap(R(R.input)[0]), lambda: nrm.query("a", a=a.channel(0)), lambda: nrm.cluster(R, a)
for call in calls:
    try:
        call()
    except nrm.NrmError as error:
        assert "pip install" in str(error)
    else:
        raise SystemExit("an extra was needed, and nothing said so")
"""
TRIES = {
    "shap": """
from nrm.compat.shap import Explainer
explained = Explainer(torch.nn.Linear(3, 2), torch.rand(4, 3))(torch.rand(2, 3))
assert explained.values.shape == (2, 3, 2) and explained.base_values.shape == (2, 2)
""",
    "viz": 'nrm.plot.flows(R, a.channels, R.output).figure.savefig("flows.png")\nnrm.plot.heatmap(R(R.input)[0])',
    "cluster": "assert R(nrm.cluster(R, a, k=2)).shape == (2, 2)",
    "vision": "from importlib.metadata import version\nprint('torchvision', version('torchvision'))",
    "graph": """
import warnings
warnings.simplefilter("ignore")
from torch_geometric.nn import GCNConv
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GCNConv(3, 2)
    def forward(self, x, edge_index):
        return self.conv(x, edge_index).sum(0, keepdim=True)
G = nrm.measure(Net().eval(), (torch.rand(3, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])))
assert G(G.input.positions).shape == (1, 3)
""",
    "molecules": """
import matplotlib
matplotlib.use("Agg")
from nrm.plot.layout import lay_out_molecule
import numpy as np
ring = np.array([[i, (i + 1) % 6] for i in range(6)])
assert lay_out_molecule(ring, "CCCCCN").shape == (6, 2)
""",
    "text": """
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(vocab_size=9, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
T = nrm.measure(LlamaForCausalLM(config).eval(), {"input_ids": torch.tensor([[1, 2, 3]])})
assert T(T.input.positions).shape == (1, 3)
""",
    "large": """
import warnings
warnings.simplefilter("ignore")
from accelerate import disk_offload
from bitsandbytes.nn import Linear4bit
from peft import LoraConfig, get_peft_model
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(vocab_size=96, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()
packed, away, coded, adapted = (llama() for _ in range(4))
packed.model.layers[0].mlp.up_proj = Linear4bit(64, 64, bias=False, quant_type="nf4").to("cpu")
disk_offload(away, "offloaded")
quantize_(coded, Int8WeightOnlyConfig())
adapted = get_peft_model(adapted, LoraConfig(r=2, target_modules=["v_proj"], init_lora_weights=False)).eval()
for one in (packed, away, coded, adapted):
    L = nrm.measure(one, {"input_ids": torch.tensor([[1, 2, 3]])})
    assert torch.isclose(L(L.tokens).sum(), torch.tensor(1.0), atol=1e-4)
import gguf
""",
    "timm": """
from importlib.metadata import version
print("timm", version("timm"))  # its models need torchvision to fit this build of torch
""",
    "query": 'assert R(nrm.query("NOT a", a=a.channel(0))).shape == (2,)',
    "store": """
found = nrm.relmax(model, x, a.channels, k=1, store="store", progress=False)
assert nrm.open_store("store").sql("select count(*) from samples").fetchone() == (2,)
""",
    "table": 'assert {"sample", "relevance"} <= set(R.flows(a.channels, k=2).to_pandas().columns)\n'
    "assert 'relevance' in R.table(a.channels).to_xarray()",
    "ray": """
if __name__ == "__main__":
    found = nrm.relmax(model, x, a.channels, k=1, engine="ray", workers=1, progress=False)
    print(found.top(a.channel(0)))
""",
    "web": """
import urllib.request
with nrm.explore(model, x, open=False, block=False) as explorer:
    assert b"nrm" in urllib.request.urlopen(explorer.url).read()
""",
    "cli": 'import subprocess, sys\nsubprocess.run([sys.executable, "-m", "nrm", "version"], check=True)',
}


class Environment:
    """A virtual environment, empty but for pip and what the environment below it has."""

    def __init__(self, folder: pathlib.Path, below: Environment | None = None) -> None:
        venv.create(folder, with_pip=True)
        self.folder, self.python = folder, folder / "bin" / "python"
        (self.packages,) = folder.glob("lib/python*/site-packages")
        if below is not None:
            (self.packages / "below.pth").write_text(f"{below.packages}\n")

    def install(self, *what: str) -> None:
        """Installs packages under the project's constraints."""
        constraints = ("--constraint", str(ROOT / "constraints.txt"))
        run(self.python, "-m", "pip", "install", "--quiet", *constraints, *what, folder=self.folder)

    def try_out(self, code: str) -> None:
        """Runs a script in the environment's own folder."""
        script = self.folder / "try.py"
        script.write_text(START + code)
        run(self.python, script, folder=self.folder)


def run(*command: str | pathlib.Path, folder: pathlib.Path) -> None:
    """Runs a command without the paths of the project; its output is shown if it fails."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")} | {"MPLBACKEND": "Agg"}
    done = subprocess.run([str(c) for c in command], cwd=folder, env=clean, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


def built(folder: pathlib.Path) -> pathlib.Path:
    """Wheel and sdist in ``dist``, by the usual command; the wheel."""
    builder = Environment(folder / "build")
    builder.install("build")
    run(builder.python, "-m", "build", "--outdir", ROOT / "dist", ROOT, folder=folder)
    version: dict[str, str] = {}
    exec((ROOT / "src" / "nrm" / "_version.py").read_text(), version)
    (wheel,) = (ROOT / "dist").glob(f"nrm-{version['__version__']}-*.whl")
    (sdist,) = (ROOT / "dist").glob(f"nrm-{version['__version__']}.tar.gz")
    packed = set(zipfile.ZipFile(wheel).namelist())
    files = (p for p in (ROOT / "src").rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    if missing := {p.relative_to(ROOT / "src").as_posix() for p in files} - packed:
        raise SystemExit(f"the wheel lacks {', '.join(sorted(missing))}")
    print(f"{wheel.name}: {wheel.stat().st_size >> 10} KiB; {sdist.name}: {sdist.stat().st_size >> 10} KiB", flush=True)
    return wheel


def core(folder: pathlib.Path, wheel: pathlib.Path) -> Environment:
    """An environment with the core alone, tried."""
    torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    environment = Environment(folder / "core")
    environment.install(torch, str(wheel))
    environment.try_out(CORE)
    print("core alone: works, and says what it lacks", flush=True)
    return environment


def extras(only: Sequence[str]) -> None:
    """Every extra alone, on top of the core."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = [name for name in project if name not in ("all", "dev", "docs")]
    if untried := set(names) ^ set(TRIES):
        raise SystemExit(f"extras and tries differ: {', '.join(sorted(untried))}")
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        wheel = built(place)
        below = core(place, wheel)
        failed = []
        for name in only or names:
            try:
                environment = Environment(place / name, below)
                environment.install("--no-warn-conflicts", f"{wheel}[{name}]")
                environment.try_out(TRIES[name])
                print(f"{name} alone: works", flush=True)
            except SystemExit as error:
                failed.append(name)
                print(f"{name} alone: {error}", flush=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def package() -> None:
    """The wheel and the sdist, each installed and used with the extras that the demo needs."""
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        wheel = built(place)
        below = core(place, wheel)
        (sdist,) = (ROOT / "dist").glob("nrm-*.tar.gz")
        for file in (wheel, sdist):
            environment = Environment(place / file.name.replace(".", "-"), below)
            environment.install("--force-reinstall", "--no-deps", str(file))
            environment.install(f"{file}[cli,viz,cluster,web]")
            environment.try_out(TRIES["web"] + TRIES["viz"])
            run(environment.python, "-m", "nrm", "demo", "--out", "demo.html", folder=environment.folder)
            print(f"{file.name}: installs, draws, serves the explorer, runs nrm demo", flush=True)


def main() -> None:
    """Read what to try, and try it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("package", "extras"))
    parser.add_argument("--only", nargs="+", choices=sorted(TRIES), default=[], help="extras to try; all if not given")
    options = parser.parse_args()
    package() if options.what == "package" else extras(options.only)


if __name__ == "__main__":
    main()
