"""What lt2 exports and imports, against the safetensors package: safetensors_package.py LT2.

Exit 77 where the package is not installed.
"""
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

try:
    import numpy as np
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

LT2 = pathlib.Path(sys.argv[1]).resolve()
CONFIG = """
[model]
width = 16
layers = 2
heads = 2
ffn = 24
vocab = 256
mixers = ["gdn", "full"]
[data]
train = [{ path = "text.txt" }]
sequence = 16
[batch]
tokens = 32
[schedule]
total = "1 steps"
"""


def lt2(*arguments):
    run = subprocess.run([LT2, *arguments, "--json"], capture_output=True, text=True)
    assert run.returncode == 0, f"{arguments}: {run.stdout}{run.stderr}"
    return json.loads(run.stdout.splitlines()[-1])


def diff(first, second):
    """Names of parameters that differ in a bit."""
    tensors = lt2("ckpt", "diff", first, second)["tensors"]
    return [t["name"] for t in tensors if t["name"].startswith("param/") and not t["equal"]]


def stored(folder):
    """Tensors by name: dtype, shape and bytes, read with nothing but the format's description."""
    tensors = {}
    for file in folder.glob("*.safetensors"):
        data = file.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + length])
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                tensors[name] = entry["dtype"], entry["shape"], data[8 + length:][begin:end]
    return tensors


def check_exports(folder):
    """The package reads one file and several, float32 and bfloat16."""
    lt2("ckpt", "export", folder / "run", folder / "one")
    arrays = load_file(folder / "one/model.safetensors")
    plain = stored(folder / "one")
    assert arrays.keys() == plain.keys()
    for name, array in arrays.items():
        assert array.dtype == np.float32 and list(array.shape) == plain[name][1], name
        assert array.tobytes() == plain[name][2], name
    with safe_open(folder / "one/model.safetensors", "np") as file:
        assert file.metadata()["format"] == "pt"
        assert "width = 16" in file.metadata()["lt2.config"]

    lt2("ckpt", "export", folder / "run", folder / "bf16", "--dtype", "bf16")
    with safe_open(folder / "bf16/model.safetensors", "np") as file:
        assert set(file.keys()) == arrays.keys()
    for name, (dtype, _, data) in stored(folder / "bf16").items():
        bits = arrays[name].view(np.uint32).astype(np.uint64)
        rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16
        assert dtype == "BF16" and data == rounded.astype(np.uint16).tobytes(), name
    return arrays


def check_imports(folder, arrays):
    """What the package writes comes back bit for bit, in any order of tensors, in several files."""
    shuffle = random.Random(1)
    names = list(arrays)
    shuffle.shuffle(names)
    config = folder / "run/config.toml"
    save_file({n: arrays[n] for n in names}, folder / "whole.safetensors", {"format": "np"})
    lt2("ckpt", "import", folder / "whole.safetensors", folder / "whole", "--config", config)
    assert diff(folder / "run", folder / "whole") == []

    several = folder / "several"
    several.mkdir()
    files = [f"model-{i + 1:05}-of-00003.safetensors" for i in range(3)]
    weight_map = {n: shuffle.choice(files) for n in names}
    for file in files:
        save_file({n: arrays[n] for n in names if weight_map[n] == file}, several / file)
    (several / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    lt2("ckpt", "import", several, folder / "joined", "--config", config)
    assert diff(folder / "run", folder / "joined") == []

    halves = {n: a.astype(np.float16) for n, a in arrays.items()}
    save_file(halves, folder / "half.safetensors")
    lt2("ckpt", "import", folder / "half.safetensors", folder / "half", "--config", config)
    lt2("ckpt", "export", folder / "half", folder / "again")
    for name, array in load_file(folder / "again/model.safetensors").items():
        assert (array == halves[name].astype(np.float32)).all(), name


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("\n\n".join(f"Line {i} of a play." for i in range(99)))
        (folder / "small.toml").write_text(CONFIG)
        lt2("train", folder / "small.toml", "--run-dir", folder / "run")
        check_imports(folder, check_exports(folder))
    print("exports and imports agree with the package")


main()
