"""Frozen layers keep every byte through a training, and the others learn; also in a run that goes on.

usage: freeze.py FIXED_TRAINING_LINKED
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

# Floats of toyset's convolutions in a weights file: biases, scales, mean and variance if normalized, weights.
SIZES = [4 * 8 + 8 * 3 * 9, 4 * 4 + 4 * 8, 4 * 8 + 8 * 4 * 9, 4 * 16 + 16 * 8 * 9, 14 + 14 * 16, 14 + 14 * (8 + 16)]


def run(command, folder):
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True,
                          env=dict(os.environ, OMP_NUM_THREADS="2"))
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    assert "Unused field" not in done.stderr, done.stderr[:3000]  # freeze=1 is no key that nobody asked for
    return done.stderr


def parts(path):
    """The bytes of every convolution."""
    data, at, found = path.read_bytes()[20:], 0, []
    for size in SIZES:
        found.append(data[at:at + 4 * size])
        at += 4 * size
    assert at == len(data), (at, len(data))
    return found


def freeze(folder, frozen, keys):
    toyset.make(folder, net_keys="mixed_precision=1\nseed=4\n" + keys, max_batches=1000)
    freeze_in(folder / "toy.cfg", frozen)


def freeze_in(cfg, frozen):
    sections = cfg.read_text().split("[convolutional]\n")
    cfg.write_text(sections[0] + "".join("[convolutional]\n" + ("freeze=1\n" if i in frozen else "") + text
                                         for i, text in enumerate(sections[1:])))


def check(program, folder, frozen, keys="", steps=20):
    freeze(folder, set(), keys)  # first without the key: running statistics need a training
    run([program, "toy.cfg", 20, "start.weights"], folder)
    freeze_in(folder / "toy.cfg", frozen)
    run([program, "toy.cfg", steps, "end.backup", "start.weights"], folder)
    same = [a == b for a, b in zip(parts(folder / "start.weights"), parts(folder / "end.backup"))]
    assert same == [i in frozen for i in range(len(SIZES))], (keys, frozen, same)
    # Stopped and resumed it is the same run, to the byte.
    run([program, "toy.cfg", 9, "half.backup", "start.weights"], folder)
    run([program, "toy.cfg", steps - 9, "resumed.backup", "half.backup"], folder)
    for end in "", ".amp":
        assert (folder / ("end.backup" + end)).read_bytes() == (folder / ("resumed.backup" + end)).read_bytes()


def check_average(program, folder):
    """Of a layer that was trained before it was frozen the average is the layer, not what it was on the way."""
    freeze(folder, set(), "ema_alpha=.9\n")
    run([program, "toy.cfg", 20, "start.backup"], folder)
    ema, start = parts(folder / "start_ema.weights"), parts(folder / "start.backup")
    assert all(a != b for a, b in zip(ema, start)), "the average is the weights themselves"
    freeze_in(folder / "toy.cfg", {0, 1})
    run([program, "toy.cfg", 3, "end.backup", "start.backup"], folder)
    same = [a == b for a, b in zip(parts(folder / "end_ema.weights"), start)]
    assert same == [True, True, False, False, False, False], same


def check_untrained(program, folder):
    """Statistics of a network that was never trained are no statistics."""
    freeze(folder, {1}, "")
    done = subprocess.run([program, "toy.cfg", "1", "end.weights"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1 and "toy.cfg:27: freeze=1 in layer 1, but its batch-norm has no" in done.stderr, done


def check_without_the_key(program, folder):
    """Without mixed_precision=1 the key is told and has no effect."""
    freeze(folder, {0}, "")
    cfg = folder / "toy.cfg"
    cfg.write_text(cfg.read_text().replace("mixed_precision=1\n", "").replace("amp_dtype=fp16\n", ""))
    said = run([program, "toy.cfg", 0, "start.weights"], folder)
    assert "freeze=1: a layer's key has no effect without mixed_precision=1" in said, said
    run([program, "toy.cfg", 3, "end.weights", "start.weights"], folder)
    assert parts(folder / "start.weights")[0] != parts(folder / "end.weights")[0]


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        check(program, root / "backbone", {0, 1, 2, 3}, steps=200)
        check(program, root / "bf16", {0, 1, 2}, "amp_dtype=bf16\n")
        check(program, root / "adam", {0, 1, 2, 3}, "adam=1\n")
        # In the middle: gradients pass through it to the layers before.
        check(program, root / "middle", {1, 3})
        check(program, root / "head", {4})
        check_average(program, root / "average")
        check_untrained(program, root / "untrained")
        check_without_the_key(program, root / "off")


main()
