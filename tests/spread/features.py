"""Training features in several processes: with amp_reduce=ordered each gives the files of one process, to the byte;
in the default order norms are those of all processes' gradients.

usage: features.py DARKNET STOCK PLUGIN CHECKOUT [--all]

As processes.py. --all: also with features together, in other dtypes, and in runs that go on on other numbers of
processes.
"""

import re
import sys
import tempfile
import time
from pathlib import Path

import processes
from processes import FAST, ORDERED, distance, make, train, weights_of

ITERATIONS = 10
AT_ONCE = ("burn_in=10", "burn_in=0")  # else ten steps hardly move anything
CONSTANT = "policy=constant"
SECOND = "filters=4\n"  # the second convolution's
# Name: keys under [net], changes of the cfg.
FEATURES = {
    "none": ("", ()),
    "ema": ("ema_alpha=0.9\n", ()),
    "clipped": ("clip_grad_norm=0.1\n", ()),
    "adamw": ("optimizer=adamw\n", ()),
    "lars": ("optimizer=lars\n", ()),
    "lamb": ("optimizer=lamb\n", ()),
    "cosine": ("", ((CONSTANT, "policy=cosine"),)),
    "onecycle": ("", ((CONSTANT, "policy=onecycle"),)),
    "frozen": ("", ((SECOND, SECOND + "freeze=1\n"),)),
    "checkpointed": ("", ((SECOND, SECOND + "checkpoint=1\n"),)),
}
# These end with the weights of "none": an average is beside them, and what is computed again is the same.
SAME_WEIGHTS = "none", "ema", "checkpointed"


def saved(folder):
    return {path.name: path.read_bytes() for path in (folder / "backup").iterdir()}


def first_weights(root):
    """What all runs begin with: a layer can be frozen only if its batch-norm has statistics."""
    folder = make(root / "first", ORDERED, iterations=2)
    train(folder, 0)
    return folder / "backup" / "toy_final.weights"


def check_like_one(root, name, start, feature, numbers):
    """The files of one process, and what it said."""
    keys, changes = feature
    files = {}
    for n in (0, *numbers):
        folder = make(root / name / str(n), ORDERED + keys, iterations=ITERATIONS, changes=(AT_ONCE, *changes))
        said = train(folder, n, start, "-clear")
        assert ("processes train" in said) == (n > 1), said
        files[n] = saved(folder)
        assert files[n].keys() == files[0].keys(), (name, n, files[n].keys(), files[0].keys())
        different = [file for file in files[n] if files[n][file] != files[0][file]]
        assert not different, "%s, %d processes: other bytes in %s" % (name, n, different)
    return files[0], said


def check_each(root):
    start = first_weights(root)
    files, said = {}, {}
    for name, feature in FEATURES.items():
        files[name], said[name] = check_like_one(root, name, start, feature, (1, 2, 3))
    # That each does something.
    for name in FEATURES:
        same = files[name]["toy_final.weights"] == files["none"]["toy_final.weights"]
        assert same == (name in SAME_WEIGHTS), name
    averages = [name for name in FEATURES if "toy_final_ema.weights" in files[name]]
    assert averages == ["ema"], averages
    assert files["ema"]["toy_final_ema.weights"] != files["ema"]["toy_final.weights"]
    assert re.search("gradients of [1-9]\\d* steps clipped", said["clipped"]), said["clipped"]
    assert "backward computes 1 layer again" in said["checkpointed"], said["checkpointed"]


def check_default_order(root):
    """Norms are those of all processes' gradients: one step, a long one, differs by rounding only."""
    start = first_weights(root)
    for name in "clipped", "lars":
        keys, weights = FAST + "amp_dtype=fp32\n" + FEATURES[name][0], {}
        for run, n, rate in ("unmoved", 0, "0"), ("one", 0, "1"), ("three", 3, "1"):
            folder = make(root / name / run, keys, iterations=1,
                          changes=(AT_ONCE, ("learning_rate=0.001", "learning_rate=" + rate)))
            train(folder, n, start, "-clear")
            weights[run] = weights_of(folder)
        far, step = distance(weights["three"], weights["one"]), distance(weights["one"], weights["unmoved"])
        assert step > 1e-4 and far < 1e-5 * step, "%s: %g of a step" % (name, far / step)


# ---- together ----

TOGETHER = {
    "adamw": ("optimizer=adamw\nema_alpha=0.9\nclip_grad_norm=0.1\ndecay_bn=1\namp_dtype=bf16\n",
              ((CONSTANT, "policy=onecycle"), *FEATURES["frozen"][1])),
    "skipping": ("adam=1\nema_alpha=0.9\nclip_grad_norm=1\namp_on_overflow=skip\nloss_scale_init=16777216\n",
                 ((CONSTANT, "policy=cosine"), *FEATURES["checkpointed"][1])),
    "lars": ("optimizer=lars\nema_alpha=0.5\nclip_grad_value=0.01\namp_dtype=fp32\n",
             ((CONSTANT, "policy=sgdr\nsgdr_cycle=3"), *FEATURES["frozen"][1])),
    "lamb": ("optimizer=lamb\nema_alpha=0.9\nclip_grad_norm=0.1\nloss_scale_init=2\nloss_scale_window=3\n",
             ((CONSTANT, "policy=cyclic\ncyclic_step=4"), *FEATURES["checkpointed"][1])),
}
# The schedules of these do not read max_batches, so a part of a run can end by it.
IN_PARTS = "lars", "lamb"


def check_together(root):
    start = first_weights(root)
    for name, feature in TOGETHER.items():
        whole, _ = check_like_one(root, name, start, feature, (1, 2, 3, 4))
        if name in IN_PARTS:
            check_parts(root / name, start, feature, whole)


def check_parts(root, start, feature, whole):
    """On two processes, then on one, then on three, which also takes up the average: one process's bytes."""
    keys, changes = feature
    words = start, "-clear"
    for iterations, n in ((4, 2), (7, 0), (ITERATIONS, 3)):
        folder = make(root / ("to%d" % iterations), ORDERED + keys, iterations=iterations, changes=(AT_ONCE, *changes))
        said = train(folder, n, *words)
        assert said.count("resumed from ") == (iterations > 4), said
        words = (folder / "backup" / "toy_final.weights",)
    for kind in ".weights", ".weights.amp", "_ema.weights":
        name = "toy_final" + kind
        assert saved(folder)[name] == whole[name], (root.name, name)


def main():
    processes.skip_without_mpi()
    with tempfile.TemporaryDirectory() as root:
        root = Path(root)
        for check in [check_each, check_default_order] + [check_together] * ("--all" in sys.argv):
            began = time.monotonic()
            check(root / check.__name__)
            print("%s: %.1f s" % (check.__name__, time.monotonic() - began), flush=True)


if __name__ == "__main__":
    main()
