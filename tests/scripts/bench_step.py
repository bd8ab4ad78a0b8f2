#!/usr/bin/env python3
"""tests/bench/bench_step.c with fixed heads: on a device, here an emulated one, heads and weight
gradients are those that the CPU backend makes of the same head gradients, in FP32, and every head gets
its own.

    bench_step.py EMULATED_BENCH_STEP
"""

import array
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

NET = """[net]
batch=2
height=32
width=32
channels=3
learning_rate=0.001
mixed_precision=1
amp_dtype=fp32
"""
CONV = "[convolutional]\nbatch_normalize=1\nfilters={}\nsize=3\nstride={}\npad=1\nactivation=leaky\n"
HEAD = "[convolutional]\nfilters={}\nsize=1\nstride=1\nactivation=linear\n"
YOLO = "[yolo]\nmask=0,1\nanchors=4,4,8,8\nclasses=3\nnum=2\n"
REGION = "[region]\nanchors=1,1,2,2\nclasses=3\ncoords=4\nnum=2\nsoftmax=1\nbias_match=1\n"
BODY = CONV.format(8, 2) + CONV.format(8, 2) + HEAD.format(16)
CLASSIFIER = CONV.format(8, 2) + HEAD.format(5) + "[avgpool]\n[softmax]\ngroups=1\n"
NETS = {  # what the device trains, and what it is compared with
    # two heads of one size: a gradient that went to the other would not be seen by its size
    "yolo": [BODY + YOLO + "[route]\nlayers=-3\n" + HEAD.format(16) + YOLO] * 2,
    # Darknet's CPU code of region hands no gradient back
    "region": [BODY + REGION, BODY + YOLO],
    "softmax": [CLASSIFIER] * 2,
}
# The device's batch-norm has cuDNN's rule, the CPU's Darknet's: variances over 2 * 8 * 8 values differ
# by 1/127, scales by half of that, in each of two layers. Gradients of the other head differ by as
# much as they are large.
LIMIT = 0.03


def run(program, text, folder, *arguments):
    folder.mkdir()
    cfg = folder / "net.cfg"
    cfg.write_text(NET + text)
    done = subprocess.run([program, cfg, "none", "--heads", "fixed", "--dump", folder, "--warmup", "2",
                           "--steps", "2", *arguments], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]


def floats(path):
    return array.array("f", path.read_bytes())


def distance(a, b):
    """In the L2 norm, relative to a."""
    return math.dist(a, b) / math.hypot(*a)


def compare(program, name, folder):
    host, device = folder / f"{name}-host", folder / f"{name}-device"
    run(program, NETS[name][1], host)
    lines = run(program, NETS[name][0], device, "--gpu", "0")
    assert len(lines[1]["seconds"]) == 2, lines
    assert len(list(device.glob("head_*.bin"))) == (2 if name == "yolo" else 1), name
    dumped = sorted(path.name for path in device.glob("*.bin"))
    assert dumped == sorted(path.name for path in host.glob("*.bin")), dumped
    for file in dumped:
        apart = distance(floats(host / file), floats(device / file))
        assert apart < LIMIT, f"{name}, {file}: {apart:.3g} apart"
    deltas = [floats(path) for path in sorted(device.glob("delta_*.bin"))]
    assert all(distance(a, b) > 1 for a, b in zip(deltas, deltas[1:])), "the heads' gradients are one"


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        for name in NETS:
            compare(program, name, Path(folder))


main()
