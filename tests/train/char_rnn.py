"""`darknet rnn train` on a small text, with every recurrent layer of vectors: in each amp_dtype the losses
follow those in FP32, the network learns, and the plan names the products' type.

usage: char_rnn.py DARKNET
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS = 60
TEXT = "the quick brown fox jumps over the lazy dog. " * 100
NET = """[net]
subdivisions=1
inputs=256
batch=8
time_steps=6
momentum=0.9
decay=0.0005
learning_rate={rate}
max_batches={steps}
policy=constant
seed=1
mixed_precision=1
amp_dtype={dtype}

{layer}

[connected]
output=256
activation=linear

[softmax]
"""
# The layer, a rate at which it learns, and by how much more its losses may differ: batch-norm magnifies.
LAYERS = {"rnn": ("[rnn]\noutput=36\nactivation=tanh", .2, 1), "lstm": ("[lstm]\noutput=36", .2, 1),
          "rnn with batch-norm": ("[rnn]\noutput=36\nactivation=tanh\nbatch_normalize=1", .05, 4),
          "gru": ("[gru]\noutput=36\ntanh=1", .2, 1)}
LOSS = re.compile(r"^\d+: ([^,]+), \S+ avg, ", re.MULTILINE)


def losses(program, folder, layer, dtype):
    """Of every step, and the plan."""
    cfg, text = folder / "toy.cfg", folder / "toy.txt"
    text_of_layer, rate, _ = LAYERS[layer]
    cfg.write_text(NET.format(steps=STEPS, dtype=dtype, layer=text_of_layer, rate=rate))
    text.write_text(TEXT)
    done = subprocess.run([program, "rnn", "train", cfg, "-file", text, "-backup", folder], cwd=folder, capture_output=True, text=True)
    found = [float(loss) for loss in LOSS.findall(done.stdout + done.stderr)]
    assert len(found) == STEPS, f"{layer}, {dtype}: {len(found)} of {STEPS} steps\n{done.stderr[-1500:]}"
    row = next(line for line in done.stderr.splitlines() if re.match(r" +0 (rnn|lstm|gru) ", line))
    assert f" {dtype.upper()} " in row and f"{dtype.upper()} operands of its products" in row, row
    return found


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as scratch:
        for layer in LAYERS:
            exact = losses(program, Path(scratch), layer, "fp32")
            assert sum(exact[-10:]) < .9 * sum(exact[:10]), f"{layer} does not learn: {exact}"
            for dtype, share in (("tf32", .02), ("fp16", .02), ("bf16", .05)):
                other = losses(program, Path(scratch), layer, dtype)
                worst = max(abs(a / b - 1) for a, b in zip(other, exact))
                print(f"{layer}, {dtype}: losses differ by up to {100 * worst:.2f} %")
                assert 0 < worst <= share * LAYERS[layer][2], f"{layer}, {dtype}: {worst}"


main()
