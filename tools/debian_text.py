#!/usr/bin/env python3
"""Makes a training text of real documentation and source out of Debian packages.

    tools/debian_text.py --out runs/text [PACKAGE ...]
    lt2 data tokenize runs/text/train.jsonl --out runs/text/train
    lt2 data tokenize runs/text/valid.jsonl --out runs/text/valid

A document is a file; one in fifty, by the hash of its path, is held out for validation. The same
packages give the same bytes.
"""
import argparse
import gzip
import hashlib
import json
import subprocess
import tempfile
from pathlib import Path

PACKAGES = ["golang-1.19-src", "libpython3.11-stdlib", "perl-doc", "perl-modules-5.36", "git-doc",
            "linux-doc-6.1", "emacs-el"]
KINDS = {".go", ".py", ".pod", ".pm", ".txt", ".rst", ".el"}
LEAST, MOST = 512, 1 << 20  # bytes of a document
HELD_OUT = 50


def documents(folder):
    """(path, text) of every file of a kind that people write, in the order of the paths' hashes."""
    found = {}
    for path in folder.rglob("*"):
        name = Path(path.stem if path.suffix == ".gz" else path.name)
        if path.is_file() and not path.is_symlink() and name.suffix in KINDS:
            found[hashlib.sha256(str(path.relative_to(folder)).encode()).hexdigest()] = path
    for key in sorted(found):
        data = found[key].read_bytes()
        if found[key].suffix == ".gz":
            data = gzip.decompress(data)
        if LEAST <= len(data) <= MOST and b"\0" not in data:
            yield int(key, 16) % HELD_OUT == 0, data.decode("utf-8", errors="ignore")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("packages", nargs="*", default=PACKAGES, metavar="PACKAGE")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--package-bytes", type=int, default=16 << 20, help="at most, of one package")
    arguments = p.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    sizes = [0, 0]
    with (open(arguments.out / "train.jsonl", "w") as train,
          open(arguments.out / "valid.jsonl", "w") as valid):
        for package in arguments.packages:
            taken = 0
            with tempfile.TemporaryDirectory() as folder:
                subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, check=True)
                subprocess.run(f"dpkg -x *.deb {folder}/tree", cwd=folder, shell=True, check=True)
                for held_out, text in documents(Path(folder) / "tree"):
                    if taken > arguments.package_bytes:
                        break
                    taken += len(text.encode())
                    sizes[held_out] += len(text.encode())
                    print(json.dumps({"text": text}), file=valid if held_out else train)
            print(f"{package}: {taken} bytes")
    print(f"{sizes[0]} bytes to train on, {sizes[1]} held out")


if __name__ == "__main__":
    main()
