"""What the tests of `amp export` share: weights for a cfg, and commands."""

import json
import os
import struct
import subprocess
import sys
from importlib.util import find_spec

HEADER = struct.pack("<iiiq", 0, 2, 0, 0)


def describe(darknet, cfg):
    done = subprocess.run([darknet, "amp", "plan", cfg, "--json", "--nogpu"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["network"]


def make_weights(network, path, rng):
    """Such that values neither grow nor vanish from layer to layer; what a head reads is smaller, as it takes exp of it,
    and so is what a shortcut adds, of which nets have dozens."""
    before_head = {layer["reads"][0] for layer in network["layers"] if layer["type"] in ("yolo", "region", "detection")}
    added = {layer["index"] - 1 for layer in network["layers"] if layer["type"] == "shortcut"}
    with open(path, "wb") as file:
        file.write(HEADER)
        for layer in network["layers"]:
            size = .5 if layer["index"] in before_head | added else 1.5
            for name, count in layer["weights"]:
                if name == "weights":
                    sums = count / layer["filters"] if layer["type"] != "local" else count / layer["outputs"]
                    values = rng.standard_normal(count, "f4") * (size / sums**.5)
                elif name == "scales":
                    values = rng.uniform(.5, 1, count)
                elif name == "rolling variances":
                    values = rng.uniform(.3, 1.5, count)
                else:
                    values = rng.standard_normal(count, "f4") * .2
                values.astype("<f4").tofile(file)
    return path


def export(darknet, *words, environment=None, **options):
    """With the Python that runs this."""
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    return subprocess.run([darknet, "amp", "export", *map(str, words)], capture_output=True, text=True,
                          env={**os.environ, "PATH": path, **(environment or {})}, **options)


def missing_packages():
    return [name for name in ("numpy", "onnx", "onnxruntime") if not find_spec(name)]
