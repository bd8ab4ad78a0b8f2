"""Every cfg that Darknet's parser or layers crash on, write out of bounds at, or leave with status 0:
`detector train` and `detector map` refuse it first, with file, line, key and what is allowed. One case
for each kind of check; verdicts/*.txt have all others.

usage: bad_cfgs.py DARKNET
"""

import multiprocessing.dummy
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bad_inputs import contents, make_good_set

ANCHORS = "mask=0,1\nanchors=12,12, 20,20, 6,6, 9,9\n"
MAXPOOL = "[maxpool]\nsize=2\nstride=2\n"
ROUTE = "[route]\nlayers=-1, 4\n"
FIRST = "[convolutional]\nbatch_normalize=1\nfilters=8\nsize=3\nstride=2\npad=1\nactivation=leaky\n"

# (name, passage of the cfg, what stands there instead, words of the message). A passage of None:
# the whole cfg. Only the first such passage is replaced.
BOTH = [
    ("empty cfg", None, "", ["toy.cfg", "no section"]),
    ("no =", "batch=4", "batch", ["toy.cfg:3: ", 'no "="']),
    ("NUL byte", "batch=4", "batch=4\0", ["toy.cfg:3: ", "NUL"]),
    ("a very long line", MAXPOOL, "x" * 100000 + "\n", ["toy.cfg:44: ", 'no "="']),
    ("unknown layer", "[maxpool]", "[maxpool2]", ["toy.cfg:44: [maxpool2]", "no such layer", "did you mean [maxpool]?"]),
    ("a word for a number", "filters=16", "filters=many", ["toy.cfg:50: filters=many", "whole number"]),
    ("filters below 1", "filters=16", "filters=-16", ["toy.cfg:50: filters=-16", "at least 1"]),
    ("subdivisions=auto in stock Darknet", "subdivisions=2", "subdivisions=auto",
     ["toy.cfg:4: subdivisions=auto in [net]", "with mixed_precision=1 auto"]),
    ("2^31 elements of a pass", "batch=4\nsubdivisions=2", "batch=900000\nsubdivisions=1", ["toy.cfg:16: ", "in a pass", "lower batch"]),
    ("a route past the start", "layers=-3", "layers=-30", ["toy.cfg:74: layers=-30", "0 to 7"]),
    ("unknown policy", "policy=constant", "policy=linear", ["toy.cfg:13: policy=linear", "steps"]),
    ("a local past its workspace", MAXPOOL, "[local]\npad=1\nsize=1\n", ["toy.cfg:44: [local]", "workspace"]),
    ("freeze in [net]", "batch=4", "batch=4\nfreeze=1", ["toy.cfg:4: freeze=1", "only in the section of a layer"]),
    ("a budget beside chosen layers", "policy=constant\n\n\n[convolutional]\n",
     "policy=constant\ncheckpoint=auto:2\n\n[convolutional]\ncheckpoint=1\n",
     ["toy.cfg:17: checkpoint=1", "line 14 chooses the layers itself (checkpoint=auto:2)"]),
    ("a missing map", "[yolo]", "[yolo]\nmap=none.map", ["toy.cfg:64: map=none.map", "No such file"]),
]
# What Darknet itself trains without a word, refused where mixed_precision=1 stands in line 3.
MIXED = [
    ("a key of another Darknet", "batch=4", "amp_dialect=stock\ncutmix=1\nbatch=4",
     ["toy.cfg:5: cutmix=1 in [net]", "another network"]),
    ("what AlexeyAB's rules here lack", "batch=4", "cutmix=1\nbatch=4",
     ["toy.cfg:4: cutmix=1 in [net]", "not supported", "lose the mixing of images"]),
    ("an unknown optimizer", "batch=4", "optimizer=adamax\nbatch=4",
     ["toy.cfg:4: optimizer=adamax", "sgd, adam, adamw, lars or lamb"]),
    ("decay below 0", "decay=0.0005", "decay=-3", ["toy.cfg:10: decay=-3", "at least 0"]),
    ("a policy with its opposite", "policy=constant", "policy=onecycle", ["toy.cfg:12: burn_in=10", "onecycle"]),
    ("too few anchors", ANCHORS, "mask=0,1\nanchors=12,12, 20\n", ["toy.cfg:66: anchors=", "3 numbers", "needed: 8"]),
    ("a remark after a value", "max_batches=3", "max_batches=3\nseed=1 # fixed",
     ["toy.cfg:14: seed=1 # fixed", "a line of its own"]),
]
# What only training does.
TRAIN = [
    ("unknown activation", "activation=leaky", "activation=mish", ["toy.cfg:22: activation=mish", "leaky"]),
    ("another loss in between", ROUTE, ROUTE + "[logistic]\n", ["toy.cfg:81: [logistic]", "out of bounds"]),
    ("truth=1", "[maxpool]\n", "[maxpool]\ntruth=1\n", ["toy.cfg:45: truth=1", "out of bounds"]),
    ("jitter", "jitter=.2", "jitter=1.5", ["toy.cfg:94: jitter=1.5 in [yolo]", "below 1"]),
    ("saturation", "batch=4", "batch=4\nsaturation=0", ["toy.cfg:4: saturation=0", "above 0"]),
    ("a first layer without a guard", FIRST, MAXPOOL, ["toy.cfg:16: [maxpool]", "mixed_precision=1"]),
    ("a layer that the CPU code crashes on", MAXPOOL, MAXPOOL + "[batchnorm]\n",
     ["toy.cfg:47: [batchnorm]", "on the CPU", "mixed_precision=1"]),
    ("random=1 with a layer of fixed size", ROUTE, ROUTE + "[dropout]\n", ["toy.cfg:98: random=1", "[dropout]"]),
    ("random=1 with a size that does not fit", ROUTE,
     ROUTE + "[conv]\nfilters=9\nsize=3\nstride=3\npad=1\n[reorg]\nstride=3\n",
     ["toy.cfg:104: random=1", "also trains at 384 x 384", "stride=3 in [reorg]"]),
]


def spoil(folder, name, old, new):
    path = folder / "toy.cfg"
    text = path.read_text()
    if old is None:
        text = new
    else:
        assert old in text, "%s: no %r" % (name, old)
        if old == "jitter=.2":  # Darknet looks at the last head's
            head = text.rindex("[yolo]")
            text = text[:head] + text[head:].replace(old, new)
        text = text.replace(old, new, 1)
    if (name, old, new) in [case[:3] for case in MIXED]:
        text = text.replace("[net]\n", "[net]\nmixed_precision=1\n", 1)
    if name.startswith("random=1"):
        text = text.replace("random=0", "random=1")
    path.write_bytes(text.encode())


def limit():
    """A hostile cfg must not get to what it asks for. ASan itself reserves terabytes of addresses."""
    if "ASAN_OPTIONS" not in os.environ:
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))


def run(program, command, folder):
    done = subprocess.run([program, "detector", command, "toy.data", "toy.cfg", "toy.weights"], cwd=folder,
                          capture_output=True, text=True, preexec_fn=limit, timeout=1200)
    return done.returncode, done.stderr


def check(program, good, root, number, case, commands):
    """What is wrong, or nothing."""
    name, old, new, words = case
    folder = root / ("cfg%d" % number)
    shutil.copytree(good, folder)
    spoil(folder, name, old, new)
    before = contents(folder)
    wrong = []
    for command in commands:
        status, text = run(program, command, folder)
        missing = [word for word in words if word not in text]
        if status != 1 or missing or "error: " not in text:
            wrong.append("%s, %s: status %d, without %s:\n%s" % (name, command, status, missing, text[-1500:]))
        if "layer     filters" in text:
            wrong.append("%s, %s: Darknet's parser saw it" % (name, command))
    if contents(folder) != before:
        wrong.append("%s: files changed" % name)
    return wrong


def main():
    program = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as root:
        root = Path(root)
        os.chdir(root)
        make_good_set(program, Path("good"))
        cases = [(case, ("train", "map")) for case in BOTH + MIXED] + [(case, ("train",)) for case in TRAIN]
        with multiprocessing.dummy.Pool(os.cpu_count()) as pool:
            wrong = sum(pool.starmap(check, [(program, root / "good", root, number, *case)
                                             for number, case in enumerate(cases)]), [])
        assert not wrong, "\n".join(wrong)
        print("%d cfgs refused" % len(cases))


main()
