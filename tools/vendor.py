"""Fetches built files of npm packages, pinned by version and hash: parts of d3 for reports and the explorer, and what
lets the search of the docs work on pages that are opened as files.

``python tools/vendor.py`` writes them to their places (needs npm), ``--check`` only says whether they are as pinned.
``--axe`` fetches axe-core instead, with which tests look for what keeps people from using the pages: into ``out``, as
it is no part of the package.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import pathlib
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE, DOCS = ROOT / "src" / "nrm" / "report" / "static" / "vendor", ROOT / "docs" / "assets"
PACKAGES = {
    "d3-array": ("3.2.5", "468f7b9ed38d6322083da4d5ae9fa57d47784f964f16dcff96e413d16cc8f9d9"),
    "d3-path": ("3.1.1", "36dda9df886369e3343fc53e4ec9e9d74250f8edaace324240f26ca15654c55e"),
    "d3-shape": ("3.2.1", "aff7509747a1df82e41e16fd70868bf029de6032f7d5ab211ad415599b2b15df"),
    "d3-sankey": ("0.12.3", "8286db5d6aa049cc6e8a546708943b79dfb4daaefb0ccf42af674ec0ee4c86be"),
    "iframe-worker": ("1.0.4", "e8e412dbcfea9b7e31b5ffa288d7b6035915e714c542f4176a0cdbe262fc9609"),
}


AXE = {"axe-core": ("4.14.0", "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878")}


def place(name: str) -> tuple[pathlib.Path, str]:
    """Where a package's file goes, and what it is called in the package."""
    if name == "axe-core":
        return ROOT / "out" / "axe-core.js", "axe.min.js"
    if name == "iframe-worker":
        return DOCS / "iframe-worker.js", "shim/index.js"
    return PAGE / f"{name}.min.js", f"dist/{name}.min.js"


def fetch(name: str, version: str, inside: str) -> tuple[bytes, bytes]:
    """The file and the licence of a package."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["npm", "pack", "--silent", f"{name}@{version}"], cwd=folder, check=True, stdout=subprocess.DEVNULL
        )
        (packed,) = pathlib.Path(folder).glob("*.tgz")
        with tarfile.open(fileobj=io.BytesIO(packed.read_bytes())) as archive:
            parts = [archive.extractfile(f"package/{part}") for part in (inside, "LICENSE")]
            return tuple(part.read() for part in parts if part is not None)  # type: ignore[return-value]


def main() -> int:
    """Fetch or check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare the files with their hashes, fetch nothing")
    parser.add_argument("--axe", action="store_true", help="axe-core for the tests")
    options = parser.parse_args()
    check, packages = options.check, AXE if options.axe else PACKAGES
    wrong = []
    for name, (version, digest) in packages.items():
        path, inside = place(name)
        if not check:
            code, licence = fetch(name, version, inside)
            if hashlib.sha256(code).hexdigest() == digest:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(code)
                (path.parent / f"{name}.LICENSE").write_bytes(licence)
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            wrong.append(f"{name} {version}")
    print("not as pinned: " + ", ".join(wrong) if wrong else f"{len(packages)} files as pinned")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
