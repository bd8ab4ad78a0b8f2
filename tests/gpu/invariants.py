"""What must hold of mixed precision on the device, by training a small net with `darknet`.

usage: invariants.py DARKNET [--steps N]

  same bits        the same seed gives the same weights, in fp16 and bf16; in fp16 also where passes are
                   played from CUDA graphs and where they are not, and where weight gradients run beside
                   data gradients and where they do not
  no trace of S    with every layer in FP32 the loss scale, a power of two, changes no bit
  reproducible S   in fp16, fixed loss scales 2^4 and 2^7 give the same weights within 1 %
  recurrent        the losses of a net with an [lstm] are the same within 1 % with loss scales 1 and 2^10,
                   and where the first backward runs again until the scale fits: what stays in Darknet's
                   FP32 code neither cuts the deltas that are times the scale nor loses them. Without the
                   gradients of its [lstm] the net parts from that by 10 %
  dropout          the same seed drops the same values; none dropped gives other weights

Nor may a run say that its passes cannot be recorded as CUDA graphs.
"""

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

RNN = """
[net]
subdivisions=1
inputs=256
batch=8
time_steps=8
momentum=0.9
decay=0.0005
learning_rate=0.2
max_batches={steps}
policy=constant
seed=1
mixed_precision=1
amp_dtype=fp16
loss_scale={scale}

[lstm]
output=32

[connected]
output=256
activation=linear

[softmax]
"""
RNN_STEPS = 24
RNN_TEXT = "the quick brown fox jumps over the lazy dog. " * 100
LOSS = re.compile(r"^\d+: ([^,]+), \S+ avg, ", re.MULTILINE)
DROPOUT = "\n[dropout]\nprobability={}\n\n[convolutional]"  # before the toy net's last convolution

WAYS = ({"AMPK_CUDA_UNRECORDED": "1"},)
unrecorded = set()  # what runs said about that


def run(args, *words, folder, environment=None):
    """A run of Darknet that has ended; what it said of its recordings is kept."""
    done = subprocess.run([args.darknet, *words], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, **(environment or {})})
    if toyset.on_the_cpu(done.stderr):
        sys.exit(toyset.on_the_cpu(done.stderr))
    if toyset.not_recorded(done.stderr) and not environment:
        unrecorded.add(toyset.not_recorded(done.stderr))
    return done


def train(args, keys, everywhere="", probability=None, **environment):
    """The weights after the last step; `everywhere`: a line put into every layer's section."""
    with tempfile.TemporaryDirectory() as scratch:
        data = toyset.make(Path(scratch) / "toy", images=8, size=64, batch=4, max_batches=args.steps,
                           net_keys=f"seed=1\nmixed_precision=1\n{keys}")
        cfg = data / "toy.cfg"
        head, *sections = cfg.read_text().split("\n[")[1:]
        text = "\n".join(["[" + head] + ["[" + section.replace("]", f"]\n{everywhere}", 1)
                                         for section in sections])
        if probability is not None:
            before, _, last = text.rpartition("\n[convolutional]")
            text = before + DROPOUT.format(probability) + last
        cfg.write_text(text)
        done = run(args, "detector", "train", data / "toy.data", cfg, folder=data,
                   environment=environment)
        if done.returncode:
            sys.exit(f"{keys!r}: exit status {done.returncode}\n{done.stderr[-1500:]}")
        return toyset.read_weights(data / "backup/toy_final.weights")


def recurrent_losses(args, scale):
    """Of every step. Darknet saves the weights to a folder of its author's: the exit status says so."""
    with tempfile.TemporaryDirectory() as scratch:
        cfg, text = Path(scratch) / "toy.cfg", Path(scratch) / "toy.txt"
        cfg.write_text(RNN.format(steps=RNN_STEPS, scale=scale))
        text.write_text(RNN_TEXT)
        done = run(args, "rnn", "train", cfg, "-file", text, folder=scratch)
        losses = [float(loss) for loss in LOSS.findall(done.stdout + done.stderr)]
        if len(losses) != RNN_STEPS:
            sys.exit(f"[lstm], loss scale {scale}: {len(losses)} of {RNN_STEPS} steps\n"
                     + done.stderr[-1500:])
        return losses


def check_recurrent(args):
    one, wrong = recurrent_losses(args, 1), []
    for scale in (1024, "dynamic"):
        other = recurrent_losses(args, scale)
        step = max(range(RNN_STEPS), key=lambda i: abs(other[i] / one[i] - 1))
        if not abs(other[step] / one[step] - 1) <= 0.01:
            wrong.append(f"[lstm]: loss {one[step]:.4g} with loss scale 1, {other[step]:.4g} with {scale}, "
                         f"step {step + 1}")
    return wrong


def check_dropout(args):
    usual, again = (train(args, "", probability=.5) for _ in range(2))
    wrong = [f"dropout: two runs differ by {distance(usual, again):.3g}"] if again != usual else []
    if train(args, "", probability=0) == usual:
        wrong.append("dropout: nothing dropped gives the same weights")
    return wrong


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
    wrong += check_recurrent(args) + check_dropout(args) + sorted(unrecorded)
    print(f"{args.steps} steps each: " + ("as they must be" if not wrong else "; ".join(wrong)))
    sys.exit(bool(wrong))


main()
