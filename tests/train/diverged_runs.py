"""Runs of `detector train` that diverge, or start from weights that are not finite: exit status,
message, files.

usage: diverged_runs.py DARKNET
"""

import math
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

SINCE = re.compile(r"since iteration \d+ the loss is not finite or above \S+: \S+ before, "
                   r"(not finite|\S+) then, (not finite|\S+) now")
GOOD = {name: b"good " + name.encode() for name in
        ("toy.backup", "toy.backup.amp", "toy_final.weights", "toy_final.weights.amp")}


def train(folder, dtype, rate, max_batches, more="", weights=()):
    data = toyset.make(folder, images=8, max_batches=max_batches,
                       net_keys="mixed_precision=1\nseed=1\namp_dtype=%s\n%s" % (dtype, more))
    cfg = data / "toy.cfg"
    cfg.write_text(cfg.read_text().replace("learning_rate=0.001", "learning_rate=%s" % rate)
                   .replace("burn_in=10", "burn_in=0"))
    for name, content in GOOD.items():
        (data / "backup" / name).write_bytes(content)
    return subprocess.run([sys.argv[1], "detector", "train", "toy.data", "toy.cfg", *weights],
                          cwd=data, capture_output=True, text=True)


def check_files(folder, changed=()):
    for name, content in GOOD.items():
        same = (folder / "backup" / name).read_bytes() == content
        assert same == (name not in changed), name


def stopped(root):
    for dtype in "fp32", "bf16", "fp16":
        for rate in ".1", "10", "1000":
            folder = root / (dtype + rate)
            run = train(folder, dtype, rate, 300)
            assert run.returncode == 1, run.stderr
            last = run.stderr.splitlines()[-1]
            # Ten iterations: Darknet's first save is after a hundred.
            assert last.endswith(" This run has saved nothing."), run.stderr
            assert SINCE.search(last), last
            check_files(folder)


# The last iteration's loss has blown up, and the run is over before that could stop it.
def final_weights_are_refused(root):
    for dtype, iterations in ("fp32", 4), ("fp16", 3):
        folder = root / ("final" + dtype)
        run = train(folder, dtype, ".1" if dtype == "fp32" else "10", iterations)
        assert run.returncode == 1, run.stderr
        last = run.stderr.splitlines()[-1]
        assert "weights are not saved" in last and "toy_final.weights" in last, last
        assert SINCE.search(last), last
        check_files(folder)


def carries_on(root):
    folder = root / "continue"
    run = train(folder, "fp16", "10", 40, "amp_on_divergence=continue")
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("going on, as amp_on_divergence=continue says") == 1, run.stderr
    check_files(folder, {"toy_final.weights", "toy_final.weights.amp"})


# The first floats of a weights file: biases, scales, running mean and variance, weights of layer 0,
# 8 filters of 27; then the same of layer 1, 4 filters of 8.
SPOILT = [(0, "biases of layer 0"), (8, "batch-norm scales of layer 0"),
          (23, "running statistics of layer 0"), (31, "running statistics of layer 0"),
          (32, "weights of layer 0"), (247, "weights of layer 0"), (248, "biases of layer 1"),
          (-1, "weights of layer 11")]


def spoilt_weights_are_named(root):
    folder = root / "spoilt"
    run = train(folder, "fp16", ".001", 1)
    assert run.returncode == 0, run.stderr
    good = (folder / "backup" / "toy_final.weights").read_bytes()
    for at, what in SPOILT:
        for bad in float("nan"), float("-inf"):
            content = bytearray(good)
            place = 20 + 4 * at if at >= 0 else len(good) + 4 * at
            content[place:place + 4] = struct.pack("<f", bad)
            (folder / "spoilt.weights").write_bytes(content)
            run = subprocess.run([sys.argv[1], "detector", "train", "toy.data", "toy.cfg",
                                  "spoilt.weights", "-clear"], cwd=folder, capture_output=True, text=True)
            assert run.returncode == 1, run.stderr
            expected = "spoilt.weights: the %s (convolutional) are inf or NaN; use another file" % what
            assert expected in run.stderr, run.stderr
            assert " avg, " not in run.stdout, run.stdout
    assert (folder / "backup" / "toy_final.weights").read_bytes() == good


# After the check at the start, which would have named its line.
def a_label_that_turns_bad_is_named(root):
    data = toyset.make(root / "label", max_batches=30, net_keys="mixed_precision=1\nseed=1")
    run = subprocess.Popen([sys.argv[1], "detector", "train", "toy.data", "toy.cfg"], cwd=data,
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in run.stderr:
        if "mixed precision plan" in line:
            break
    (data / "image003.txt").write_text("0 nan nan nan nan\n")
    said = run.communicate()[1]
    assert run.returncode == 0, said
    faults = [line for line in said.splitlines() if " is no box " in line]
    assert faults and all("image003.png); step skipped; the loss scale is not to blame" in line
                          for line in faults), said
    weights = toyset.read_weights(data / "backup" / "toy_final.weights")
    assert all(math.isfinite(w) for w in weights)


with tempfile.TemporaryDirectory() as name:
    stopped(Path(name))
    final_weights_are_refused(Path(name))
    carries_on(Path(name))
    spoilt_weights_are_named(Path(name))
    a_label_that_turns_bad_is_named(Path(name))
