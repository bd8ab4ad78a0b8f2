"""Trains a small yolo net in FP32 (Darknet's own code) and in mixed precision, same seed and images,
and compares the losses.

usage: loss_curves.py DARKNET [--steps N] [--dtypes fp16,bf16] [--against fp32] [--json FILE]

Stated tolerance: in each quarter of the run the mean loss of a mixed run is within 15 % of FP32's
plus 1 % of FP32's first loss, and it ends below half of where it began. The runs part slowly, as two
FP32 runs with other rounding do; a wrong gradient parts them in the first quarter or keeps the loss
up. A run whose passes cannot be recorded as CUDA graphs is not what was to be shown, and wrong too. On
the CPU, Darknet's own backward pass loses gradients of this net's 1x1 convolutions: there
--against fp32 compares with the plugin's FP32.
"""

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

OF_LOSS, OF_FIRST = 0.15, 0.01
ITERATION = re.compile(r"^(\d+): ([^,]+), \S+ avg, ", re.MULTILINE)


def train(program, folder, steps, keys):
    """The loss of every step, and what is wrong with the run beside it."""
    data = toyset.make(folder, images=48, size=64, batch=16, max_batches=steps,
                       net_keys="seed=1\n" + keys)
    run = subprocess.run([program, "detector", "train", data / "toy.data", data / "toy.cfg"],
                         cwd=folder, capture_output=True, text=True)
    if toyset.on_the_cpu(run.stderr):
        sys.exit(toyset.on_the_cpu(run.stderr))
    losses = [float(loss) for _, loss in ITERATION.findall(run.stdout)]
    if run.returncode or len(losses) != steps:
        sys.exit(f"{keys or 'Darknet'}: exit status {run.returncode}, {len(losses)} of {steps} steps\n"
                 + run.stderr[-1500:])
    return losses, toyset.not_recorded(run.stderr)


def quarters(losses):
    length = len(losses) // 4
    return [sum(losses[i * length:(i + 1) * length]) / length for i in range(4)]


def differences(expected, losses):
    """What is out of tolerance, in words."""
    found = []
    for number, (want, have) in enumerate(zip(quarters(expected), quarters(losses)), 1):
        if not abs(have - want) <= OF_LOSS * want + OF_FIRST * expected[0]:
            found.append(f"quarter {number}: mean loss {have:.4g}, expected {want:.4g}")
    if not quarters(losses)[3] < losses[0] / 2:
        found.append(f"the loss stays at {quarters(losses)[3]:.4g} of {losses[0]:.4g}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("darknet", type=lambda text: Path(text).resolve())
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--dtypes", default="fp16,bf16")
    parser.add_argument("--against", choices=["Darknet", "fp32"], default="Darknet")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    curves, wrong = {}, []
    with tempfile.TemporaryDirectory() as scratch:
        for name in (args.against, *args.dtypes.split(",")):
            keys = "" if name == "Darknet" else f"mixed_precision=1\namp_dtype={name}\n"
            curves[name], found = train(args.darknet, Path(scratch) / name, args.steps, keys)
            wrong += [f"{name}: {found}"] if found else []
    if args.json:
        args.json.write_text(json.dumps(curves) + "\n")
    for name, losses in curves.items():
        print(f"{name}: mean loss by quarters " + ", ".join(f"{q:.4g}" for q in quarters(losses)))
        assert all(map(math.isfinite, losses)), name
        wrong += [f"{name}: {text}" for text in differences(curves[args.against], losses)]
    sys.exit("; ".join(wrong) or 0)


main()
