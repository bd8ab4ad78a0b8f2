"""What must hold of mixed precision on the device, by training a small net with `darknet`.

usage: invariants.py DARKNET [--steps N]

  same bits        the same seed gives the same weights, in fp16 and bf16; in fp16 also where passes are
                   played from CUDA graphs and where they are not, and where weight gradients run beside
                   data gradients and where they do not
  no trace of S    with every layer in FP32 the loss scale, a power of two, changes no bit
  reproducible S   in fp16, fixed loss scales 2^4 and 2^7 give the same weights within 1 %

Nor may a run say that its passes cannot be recorded as CUDA graphs.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

WAYS = ({"AMPK_CUDA_UNRECORDED": "1"}, {"AMPK_CUDA_SIDE_STREAM": "0"}, {"AMPK_CUDA_SIDE_STREAM": "1"})
unrecorded = set()  # what runs said about that


def train(args, keys, everywhere="", **environment):
    """The weights after the last step; `everywhere`: a line put into every layer's section."""
    with tempfile.TemporaryDirectory() as scratch:
        data = toyset.make(Path(scratch) / "toy", images=8, size=64, batch=4,
                           max_batches=args.steps, net_keys=f"seed=1\nmixed_precision=1\n{keys}")
        cfg = data / "toy.cfg"
        head, *sections = cfg.read_text().split("\n[")[1:]
        cfg.write_text("\n".join(["[" + head] + ["[" + section.replace("]", f"]\n{everywhere}", 1)
                                                  for section in sections]))
        run = subprocess.run([args.darknet, "detector", "train", data / "toy.data", cfg],
                             cwd=data, capture_output=True, text=True,
                             env={**os.environ, **environment})
        if toyset.on_the_cpu(run.stderr):
            sys.exit(toyset.on_the_cpu(run.stderr))
        if run.returncode:
            sys.exit(f"{keys!r}: exit status {run.returncode}\n{run.stderr[-1500:]}")
        if toyset.not_recorded(run.stderr) and not environment:
            unrecorded.add(toyset.not_recorded(run.stderr))
        return toyset.read_weights(data / "backup/toy_final.weights")


def distance(one, other):
    return math.dist(one, other) / math.hypot(*one)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("darknet", type=lambda text: Path(text).resolve())
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    wrong = []
    for dtype in ("fp16", "bf16"):
        runs = [train(args, f"amp_dtype={dtype}\n") for _ in range(2)]
        if runs[0] != runs[1]:
            wrong.append(f"{dtype}: two runs differ by {distance(*runs):.3g}")
    usual = train(args, "")  # the plans are in the file by now: all these runs have the same
    for setting in WAYS:
        weights = train(args, "", **setting)
        if weights != usual:
            wrong.append(f"fp16: {setting} differs by {distance(usual, weights):.3g}")
    forced = [train(args, f"loss_scale={scale}\n", "mixed_precision=0\n") for scale in (1, 1024)]
    if forced[0] != forced[1]:
        wrong.append(f"FP32 layers: loss scales 1 and 1024 differ by {distance(*forced):.3g}")
    scaled = [train(args, f"loss_scale={scale}\n") for scale in (16, 128)]
    if not distance(*scaled) < 0.01:
        wrong.append(f"fp16: loss scales 16 and 128 differ by {distance(*scaled):.3g}")
    wrong += sorted(unrecorded)
    print(f"{args.steps} steps each: " + ("as they must be" if not wrong else "; ".join(wrong)))
    sys.exit(bool(wrong))


main()
