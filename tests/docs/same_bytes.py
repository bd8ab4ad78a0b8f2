#!/usr/bin/env python3
"""Two builds of Darknet train the same nets from a seed: do they write the same bytes?

    tests/docs/same_bytes.py OLD_PROGRAM NEW_PROGRAM [--data FOLDER] [--iterations N] [--threads N] [--only NAME]
                             [--dtypes none,fp16,...] [--new-key KEY=VALUE]...

For changes of the code that must not change what is trained. Trained are cfg/demo.cfg and cfg/bccd.cfg, whose
layers are those of detectors, the toy net of the tests, which stops and goes on with a saved state, and a
small recurrent net; each without the plugin's keys other than `seed`, and with mixed_precision=1 and every
amp_dtype. Compared are all files that a run leaves in its backup folder: weights and sidecars (.amp).
Prints a row for every net; status 1 where a file differs or a run fails.

--new-key adds a key to the new program's cfgs with mixed_precision=1: with amp_loader=darknet it compares
with a program that has no loader of its own.

Images: --data FOLDER (a data set as scripts/compare.sh takes it); else the set bccd, if it lies in a folder
shared/datasets beside the checkout or above it; else generated ones.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts")]
import toyset
from bench_lib import make_cfg
from training import find_set, read_set

DTYPES = (None, "fp16", "bf16", "tf32", "fp32")
SAMPLES = 48  # images of the data set; more would only take time to copy

RECURRENT = """[net]
batch=4
time_steps=2
height=16
width=16
channels=3
momentum=0.9
decay=0.0001
learning_rate=0.01
max_batches={iterations}
policy=constant
{keys}
[connected]
output=24
activation=leaky

[gru]
output=16
{ours_only}
[connected]
output=2
activation=linear

[softmax]

[cost]
type=sse
"""
# In stock Darknet these crash on a CPU.
OURS_ONLY = """
[lstm]
output=16
batch_normalize=1

[rnn]
output=16
activation=tanh
"""


# ---- the data ----


def find_images(folder):
    """Images that have labels beside them; none where there is no data set."""
    if folder is None:
        found = [top / "shared/datasets/bccd" for top in (ROOT, *ROOT.parents)]
        folder = next((path for path in found if path.is_dir()), None)
    if folder is None:
        return []
    return read_set(find_set(folder), folder)["train"][:SAMPLES]


def make_lists(root, images):
    """One folder for all runs: demo.data and bccd.data, toy.data, and classes.data of the recurrent net."""
    toyset.make(root, images=16)
    if images:
        (root / "real.txt").write_text("".join(f"{image}\n" for image in images))
    else:
        shutil.copy(root / "train.txt", root / "real.txt")
    for name, classes in (("demo", 10), ("bccd", 3)):
        (root / f"{name}.data").write_text(f"classes={classes}\ntrain={root}/real.txt\nbackup=backup\n")
    (root / "toy.data").write_text(f"classes=2\ntrain={root}/train.txt\nbackup=backup\n")
    labels = ["even", "odd"]
    listed = []
    for label in labels:
        (root / label).mkdir()
    for i, image in enumerate(sorted(root.glob("image*.png"))):
        listed.append(shutil.copy(image, root / labels[i % 2]))
    (root / "classes.txt").write_text("".join(f"{path}\n" for path in listed))
    (root / "labels.txt").write_text("".join(f"{label}\n" for label in labels))
    (root / "classes.data").write_text(
        f"classes=2\ntrain={root}/classes.txt\nlabels={root}/labels.txt\nbackup=backup\n")


# ---- the nets ----


def keys_of(dtype):
    return "seed=7\n" + (f"mixed_precision=1\namp_dtype={dtype}\n" if dtype else "")


def detector_cfg(name, dtype, iterations):
    text = (ROOT / f"cfg/{name}.cfg").read_text()
    return make_cfg(text, 4, keys_of(dtype), max_batches=iterations, burn_in=2)


def toy_cfg(dtype, iterations):
    return toyset.CFG.format(batch=4, size=32, max_batches=iterations, random=0, net_keys=keys_of(dtype))


def recurrent_cfg(dtype, iterations):
    return RECURRENT.format(iterations=iterations, keys=keys_of(dtype), ours_only=OURS_ONLY if dtype else "")


def nets(iterations):
    """{name: (cfg's text by dtype, [Darknet's arguments of each training in turn])}"""
    def detector(name):
        return lambda dtype: detector_cfg(name, dtype, iterations), [["detector", "train", f"../{name}.data",
                                                                      "net.cfg"]]

    toy = ["detector", "train", "../toy.data", "net.cfg"]
    return {
        "demo": detector("demo"),
        "bccd": detector("bccd"),
        "toy": (lambda dtype: toy_cfg(dtype, iterations), [toy]),
        "toy, resumed": (lambda dtype: toy_cfg(dtype, iterations),
                         [toy, [*toy, "backup/net_final.weights"]]),
        "recurrent": (lambda dtype: recurrent_cfg(dtype, iterations),
                      [["classifier", "train", "../classes.data", "net.cfg"]]),
    }


# ---- training ----


def train(program, folder, cfg, trainings, iterations, threads):
    """({file: bytes}, why it failed or None). Before a second training max_batches is doubled."""
    (folder / "backup").mkdir(parents=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    for number, arguments in enumerate(trainings, 1):
        (folder / "net.cfg").write_text(cfg.replace(f"max_batches={iterations}\n",
                                                    f"max_batches={number * iterations}\n"))
        done = subprocess.run([program, *arguments], cwd=folder, env=environment, text=True, errors="replace",
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            said = done.stdout.strip().splitlines()
            return {}, f"status {done.returncode}: {said[-1] if said else 'no output'}"
    files = {str(path.relative_to(folder)): path.read_bytes()
             for path in sorted((folder / "backup").rglob("*")) if path.is_file()}
    return files, None if files else "saved nothing"


def first_difference(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def compare(old, new):
    """("same" or another word for the table, what to say of it)."""
    (old_files, old_error), (new_files, new_error) = old, new
    if old_error or new_error:
        return "FAILED", [f"old: {old_error or 'trained'}", f"new: {new_error or 'trained'}"]
    said = [f"only the {'old' if name in old_files else 'new'} program wrote {name}"
            for name in sorted(old_files.keys() ^ new_files.keys())]
    said += [f"{name} differs from byte {first_difference(old_files[name], new_files[name])} on "
             f"({len(old_files[name])} and {len(new_files[name])} bytes)"
             for name in sorted(old_files.keys() & new_files.keys()) if old_files[name] != new_files[name]]
    return ("DIFFERS" if said else f"same ({len(new_files)})"), said


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--data", type=Path, help="folder of a data set")
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2, help="OMP_NUM_THREADS of the programs")
    parser.add_argument("--only", help="one net, by its name in the table")
    parser.add_argument("--dtypes", default="none,fp16,bf16,tf32,fp32", help="columns; none: without keys")
    parser.add_argument("--new-key", action="append", default=[], help="KEY=VALUE for the new program alone")
    arguments = parser.parse_args()
    dtypes = [None if name == "none" else name for name in arguments.dtypes.split(",")]
    if unknown := [name for name in dtypes if name not in DTYPES]:
        parser.error(f"--dtypes {', '.join(unknown)}: not one of none, {', '.join(DTYPES[1:])}")
    new_keys = "mixed_precision=1\n" + "".join(f"{key}\n" for key in arguments.new_key)
    wanted = nets(arguments.iterations)
    if arguments.only:
        if arguments.only not in wanted:
            parser.error(f"--only {arguments.only}: not one of {', '.join(wanted)}")
        wanted = {arguments.only: wanted[arguments.only]}
    for program in (arguments.old, arguments.new):
        if not os.access(program, os.X_OK):
            parser.error(f"{program} is no program")
    images = find_images(arguments.data)
    print(f"{arguments.iterations} iterations each, {arguments.threads} threads; demo and bccd train on "
          + (f"{len(images)} images of {Path(images[0]).parent}" if images else "generated images"))
    print("| net | " + " | ".join(dtype or "no key" for dtype in dtypes) + " |")
    print("|---" * (len(dtypes) + 1) + "|")
    problems = []
    with tempfile.TemporaryDirectory() as scratch:
        make_lists(Path(scratch), images)
        for name, (cfg_of, trainings) in wanted.items():
            cells = []
            for dtype in dtypes:
                results = []
                cfg = cfg_of(dtype)
                for program, text in ((arguments.old, cfg),
                                      (arguments.new, cfg.replace("mixed_precision=1\n", new_keys))):
                    folder = Path(scratch, "run")
                    results.append(train(program.resolve(), folder, text, trainings, arguments.iterations,
                                         arguments.threads))
                    shutil.rmtree(folder)
                cell, said = compare(*results)
                cells.append(cell)
                problems += [f"{name}, {dtype or 'no key'}: {line}" for line in said]
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print("\n".join(problems) if problems else "Equal to the byte")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
