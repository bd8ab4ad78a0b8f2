"""scripts/bench-cpu without timing: its own cfgs, its limits, and, where PyTorch is, that a small net with all that
only other Darknets have passes its check, and a net wired otherwise does not.

usage: bench_cpu.py ROOT BENCH_STEP DARKNET
"""

import importlib.machinery
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT, BENCH_STEP, DARKNET = map(Path, sys.argv[1:])
sys.path.insert(0, str(ROOT / "scripts"))
import bench_lib
import bench_nets
from torch_python import python_with_torch

loader = importlib.machinery.SourceFileLoader("bench_cpu_script", str(ROOT / "scripts/bench-cpu"))
bench = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_cpu_script", loader))
loader.exec_module(bench)

# Values that the weights files of these networks hold, by their published sizes: 24,251,276 and 257,717,640 bytes, each
# with a head of 20.
VALUES = {"yolov4-tiny": 6062814, "yolov4": 64429405}

CONV = "[convolutional]\nbatch_normalize=1\nfilters={}\nsize={}\nstride={}\npad=1\nactivation={}\n"
YOLO = ("[convolutional]\nfilters=16\nsize=1\nstride=1\npad=1\nactivation={}\n"
        "[yolo]\nmask=0,1\nanchors=4,4,8,8\nclasses=3\nnum=2\nscale_x_y=1.1\niou_loss=ciou\n{}")
TOY = ("[net]\nbatch=4\nsubdivisions=1\nwidth=32\nheight=32\nchannels=3\nlearning_rate=0.001\nmax_batches=10\n"
       + CONV.format(16, 3, 1, "leaky") + CONV.format(16, 3, 1, "mish")
       + "[route]\nlayers=-1,-2\ngroups=2\ngroup_id=1\n"
       + CONV.format(16, 1, 1, "swish") + CONV.format(16, 3, 1, "mish")
       + "[shortcut]\nfrom=-2\nactivation=linear\n"
       + CONV.format(32, 3, 2, "leaky") + "[maxpool]\nsize=5\nstride=1\n" + YOLO.format("linear", "")
       + "[route]\nlayers=-3\n" + YOLO.format("logistic", "new_coords=1\n"))


def refused(call, *arguments):
    try:
        call(*arguments)
    except bench_lib.BenchError as error:
        return str(error)
    raise AssertionError("not refused")


def values_of(plan_text, cfg):
    """Weights, biases and batch-norm's three more of every convolution; inputs from the sizes that the plan prints."""
    outputs = [int(found[1]) for found in re.finditer(r"(?m)^ *\d+ \w+ +\d+ x \d+ x (\d+) ", plan_text)]
    total, index = 0, -2
    for section in cfg.split("[")[1:]:
        index += 1
        if section.startswith("convolutional"):
            keys = dict(re.findall(r"(\w+)=(\S+)", section))
            filters, size = int(keys["filters"]), int(keys["size"])
            inputs = 3 if index == 0 else outputs[index - 1]
            total += filters * (inputs * size * size + (4 if "batch_normalize" in keys else 1))
    return total


def check_cfgs(folder):
    for name, make in bench_nets.NETS.items():
        cfg = folder / f"{name}.cfg"
        cfg.write_text(bench_lib.make_cfg(make(), 1, "mixed_precision=1\n"))
        done = subprocess.run([DARKNET, "amp", "plan", cfg], capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert done.returncode == 0 and "rules: fork" in said, said
        assert said.count("  FP32: loss") == (2 if name == "yolov4-tiny" else 3), said
        if name in VALUES:
            assert values_of(said, make()) == VALUES[name], (name, values_of(said, make()))


def check_limits():
    fine = {"heads": {"0": .0005}, "weights": {"0": .01, "1": .02}}
    judged = bench_lib.judge_single("fp16", {"3": fine, "8": {**fine, "heads": {"0": .001}}})
    assert judged == {"layers": 2, "heads": .001, "weights": .02}, judged
    for wrong in (.046, float("nan")):
        said = refused(bench_lib.judge_single, "fp16", {"3": fine, "8": {**fine, "weights": {"0": wrong, "1": .01}}})
        assert "layer 8, weights" in said and "layer 3" not in said, said


def toy(folder, python):
    """bench-cpu's own folder of the toy net."""
    (folder / "toy.cfg").write_text(TOY)
    bench.WORK, bench.MIXED, bench.DARKNET = folder / "work", BENCH_STEP, DARKNET
    bench.MODELS["toy"] = (folder / "toy.cfg", 4, 1, 32, False)
    bench.TORCH[0] = python
    return bench.prepare("toy")


def check_net(folder, python):
    for switched_off in ({}, bench.WITHOUT_BF16):
        os.environ.update(switched_off)
        work = toy(folder, python)
        errors = bench.check("toy", work, 2)
        assert set(errors) == {"fp32", "mixed", "single"} and errors["single"]["layers"] == 5, errors
        # Another half of the channels is another network, which the check must see.
        cfg = work / "fp32.cfg"
        cfg.write_text(cfg.read_text().replace("group_id=1", "group_id=0"))
        assert "fp32 and PyTorch disagree" in refused(bench.check, "toy", work, 2)
    assert bench.dtype() == "fp16"


def check_autocast(folder, python):
    """FP16 autocast on a CPU, or why there is none."""
    work = toy(folder, python)
    done = subprocess.run([*bench.torch_command(work, "1", ["--amp", "fp16"]), "--steps", "1", "--warmup", "1"],
                          capture_output=True, text=True)
    if done.returncode:
        assert "has no float16 autocast on a CPU" in done.stderr, done.stderr
        return
    assert json.loads(done.stdout.splitlines()[1])["seconds"][0] > 0, done.stdout
    os.environ.update(bench.WITHOUT_BF16)
    ways = {"channels_last": ("", []), "autocast": ("", ["--amp", "fp16"])}
    bench.SLOW = 0
    fast, slow = bench.without_slow(work, ways, 1)
    assert list(fast) == ["channels_last"] and slow["autocast"] > 0, (fast, slow)
    bench.SLOW = 1e9
    assert bench.without_slow(work, ways, 1) == (ways, {})


check_limits()
with tempfile.TemporaryDirectory() as scratch:
    check_cfgs(Path(scratch))
found = python_with_torch()
if not found:
    print("SKIPPED bench-cpu's check of nets: PyTorch is not here")
for tests in (check_net, check_autocast) if found else ():
    with tempfile.TemporaryDirectory() as scratch:
        tests(Path(scratch), found)
