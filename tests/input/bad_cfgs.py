"""Every cfg that Darknet's parser or layers crash on, write out of bounds at, or leave with status 0:
`detector train` and `detector map` refuse it first, with file, line, key and what is allowed.

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
    ("no layer", None, "[net]\nbatch=1\n", ["toy.cfg:1: ", "no layer"]),
    ("a line before [net]", "[net]\n", "batch=1\n[net]\n", ["toy.cfg:2: ", "before the first section"]),
    ("another first section", "[net]\n", "[conv]\n[net]\n", ["toy.cfg:2: ", "[conv]"]),
    ("a second [net]", "[maxpool]\n", "[net]\n", ["toy.cfg:44: [net]", "no such layer"]),
    ("no ]", "[maxpool]", "[maxpool", ["toy.cfg:44: ", 'does not end with "]"']),
    ("no =", "batch=4", "batch", ["toy.cfg:3: ", 'no "="']),
    ("no key", "batch=4", "=4", ["toy.cfg:3: ", "no key"]),
    ("no value", "batch=4", "batch=", ["toy.cfg:3: ", "no value"]),
    ("NUL byte", "batch=4", "batch=4\0", ["toy.cfg:3: ", "NUL"]),
    ("a carriage return", "batch=4\n", "batch=4\r\n", ["toy.cfg:3: ", "carriage return"]),
    ("a very long line", MAXPOOL, "x" * 100000 + "\n", ["toy.cfg:44: ", 'no "="']),
    ("an end without newline", None, "[net]\nbatch=4\n[conv]\nfilters=", ["toy.cfg:4: ", "no value"]),
    ("unknown layer", "[maxpool]", "[maxpool2]", ["toy.cfg:44: [maxpool2]", "no such layer", "did you mean [maxpool]?"]),
    ("a word for a number", "filters=16", "filters=many", ["toy.cfg:50: filters=many", "whole number"]),
    ("a number with more behind it", "batch=4", "batch=4x", ["toy.cfg:3: batch=4x", "whole number"]),
    ("a number past 32 bits", "max_batches=3", "max_batches=4294967299",
     ["toy.cfg:12: max_batches=4294967299", "32 bits"]),
    ("a rate that is no number", "momentum=0.9", "momentum=nan", ["toy.cfg:8: momentum=nan", "finite"]),
    ("filters below 1", "filters=16", "filters=-16", ["toy.cfg:50: filters=-16", "at least 1"]),
    ("size 0", "size=3", "size=0", ["toy.cfg:19: size=0", "at least 1"]),
    ("stride 0", "stride=2", "stride=0", ["toy.cfg:20: stride=0", "at least 1"]),
    ("subdivisions 0", "subdivisions=2", "subdivisions=0", ["toy.cfg:4: subdivisions=0", "a divisor of batch, at least 1", "auto"]),
    ("subdivisions in words", "subdivisions=2", "subdivisions=automatic",
     ["toy.cfg:4: subdivisions=automatic in [net]", "a divisor of batch, at least 1, or with mixed_precision=1 auto"]),
    ("subdivisions=auto in stock Darknet", "subdivisions=2", "subdivisions=auto",
     ["toy.cfg:4: subdivisions=auto in [net]", "with mixed_precision=1 auto"]),
    ("subdivisions above batch", "subdivisions=2", "subdivisions=5", ["toy.cfg:4: ", "no image for a pass", "a divisor of batch"]),
    ("huge width", "width=32", "width=2147483647", ["toy.cfg:5: width=2147483647", "1000000"]),
    ("negative width", "width=32", "width=-32", ["toy.cfg:2: [net]", "-32"]),
    ("2^31 elements", "width=32\nheight=32", "width=99999\nheight=99999", ["toy.cfg:2: ", "2^31"]),
    ("2^31 elements of a pass", "batch=4\nsubdivisions=2", "batch=900000\nsubdivisions=1", ["toy.cfg:16: ", "in a pass", "lower batch"]),
    ("2^31 weights", "filters=16\nsize=3", "filters=900000\nsize=49", ["toy.cfg:48: ", "2^31"]),
    ("inputs that are not the image", "channels=3", "channels=3\ninputs=99", ["toy.cfg:8: inputs=99", "= 3072"]),
    ("groups that do not divide", "filters=16", "groups=3\nfilters=16", ["toy.cfg:50: groups=3", "8 input channels"]),
    ("a route without layers", "layers=-3\n", "", ["toy.cfg:73: [route]", "layers= is missing"]),
    ("a route past the start", "layers=-3", "layers=-30", ["toy.cfg:74: layers=-30", "0 to 7"]),
    ("a route to itself", "layers=-3", "layers=8", ["toy.cfg:74: layers=8", "0 to 7"]),
    ("a route to nothing", "layers=-1, 4", "layers=-1,", ["toy.cfg:80: layers=-1,", "whole number"]),
    ("a shortcut without from", "from=-3\n", "", ["toy.cfg:40: [shortcut]", "from= is missing"]),
    ("a shortcut to a later layer", "from=-3", "from=5", ["toy.cfg:41: from=5", "0 to 2"]),
    ("a mask past the anchors", "mask=2,3", "mask=2,4", ["toy.cfg:90: mask=", "anchor 4", "0 to 3"]),
    ("too many anchors", ANCHORS, ANCHORS[:-1] + ",1,1\n", ["toy.cfg:65: anchors=", "10 numbers", "allowed: 8"]),
    ("unknown policy", "policy=constant", "policy=linear", ["toy.cfg:13: policy=linear", "steps"]),
    ("steps without scales", "policy=constant", "policy=steps\nsteps=1,2", ["toy.cfg:13: policy=steps", "scales="]),
    ("fewer scales than steps", "policy=constant", "policy=steps\nsteps=1,2\nscales=.1",
     ["toy.cfg:15: scales=.1", "allowed: at least 2"]),
    ("step 0", "policy=constant", "policy=step\nstep=0", ["toy.cfg:14: step=0", "at least 1"]),
    ("a maxpool window outside", "[maxpool]\n", "[maxpool]\npadding=40\n", ["toy.cfg:44: [maxpool]", "without any input cell"]),
    ("a crop larger than its input", "[maxpool]\n", "[crop]\ncrop_width=99\ncrop_height=9\n[maxpool]\n",
     ["toy.cfg:44: [crop]", "up to its input"]),
    ("a reorg that does not divide", MAXPOOL, "[reorg]\nstride=4\n", ["toy.cfg:45: stride=4 in [reorg]", "must divide"]),
    ("a deconvolution padded by less than nothing", MAXPOOL, "[deconvolutional]\nsize=3\npadding=-1\n",
     ["toy.cfg:44: [deconvolutional]", "padding -1"]),
    ("a local past its workspace", MAXPOOL, "[local]\npad=1\nsize=1\n", ["toy.cfg:44: [local]", "workspace"]),
    ("a local with the largest workspace", FIRST, "[local]\nsize=4\nstride=2\n",
     ["toy.cfg:16: [local]", "this Darknet would make one of"]),
    ("an lrn over too many channels", MAXPOOL, "[lrn]\nsize=99\n", ["toy.cfg:45: size=99 in [lrn]", "1 to 17"]),
    ("a dropout of everything", MAXPOOL, "[dropout]\nprobability=1\n", ["toy.cfg:45: probability=1", "below 1"]),
    ("a head of no boxes", "num=4", "num=0", ["toy.cfg:65: anchors=", "num=0"]),
    ("a frozen layer without parameters", "[maxpool]\n", "[maxpool]\nfreeze=1\n",
     ["toy.cfg:45: freeze=1 in [maxpool]", "no parameters", "[convolutional]"]),
    ("freeze of a binary layer", "filters=16", "filters=16\nbinary=1\nfreeze=1", ["toy.cfg:52: freeze=1", "without binary"]),
    ("freeze in [net]", "batch=4", "batch=4\nfreeze=1", ["toy.cfg:4: freeze=1", "only in the section of a layer"]),
    ("half a freeze", "filters=16", "filters=16\nfreeze=0.5", ["toy.cfg:51: freeze=0.5", "0 or 1"]),
    ("a head that is computed again", "[yolo]\n", "[yolo]\ncheckpoint=1\n",
     ["toy.cfg:64: checkpoint=1 in [yolo]", "allowed in [convolutional]"]),
    ("a binary layer that is computed again", "filters=16", "filters=16\nbinary=1\ncheckpoint=1",
     ["toy.cfg:52: checkpoint=1", "without binary"]),
    ("half a checkpoint", "filters=16", "filters=16\ncheckpoint=0.5", ["toy.cfg:51: checkpoint=0.5", "0 or 1"]),
    ("a budget in a layer", "filters=16", "filters=16\ncheckpoint=auto:4", ["toy.cfg:51: checkpoint=auto:4", "auto:GiB under [net]"]),
    ("checkpoint=1 in [net]", "batch=4", "batch=4\ncheckpoint=1", ["toy.cfg:4: checkpoint=1", "auto:GiB under [net]"]),
    ("a budget of nothing", "batch=4", "batch=4\ncheckpoint=auto:0", ["toy.cfg:4: checkpoint=auto:0", "auto:GiB"]),
    ("a budget in words", "batch=4", "batch=4\ncheckpoint=auto:4GB", ["toy.cfg:4: checkpoint=auto:4GB", "auto:GiB"]),
    ("a budget beside chosen layers", "policy=constant\n\n\n[convolutional]\n",
     "policy=constant\ncheckpoint=auto:2\n\n[convolutional]\ncheckpoint=1\n",
     ["toy.cfg:17: checkpoint=1", "line 14 chooses the layers itself (checkpoint=auto:2)"]),
    ("a missing map", "[yolo]", "[yolo]\nmap=none.map", ["toy.cfg:64: map=none.map", "No such file"]),
]
# What Darknet itself trains without a word, refused where mixed_precision=1 stands in line 3.
MIXED = [
    ("a key of another Darknet", "batch=4", "amp_dialect=stock\ncutmix=1\nbatch=4",
     ["toy.cfg:5: cutmix=1 in [net]", "another network"]),
    ("a key of another trainer", "batch=4", "epochs=1\nbatch=4", ["toy.cfg:4: epochs=1 in [net]", "another network"]),
    ("what AlexeyAB's rules here lack", "batch=4", "cutmix=1\nbatch=4",
     ["toy.cfg:4: cutmix=1 in [net]", "not supported", "lose the mixing of images"]),
    ("an unknown optimizer", "batch=4", "optimizer=adamax\nbatch=4",
     ["toy.cfg:4: optimizer=adamax", "sgd, adam, adamw, lars or lamb"]),
    ("two optimizers", "batch=4", "adam=1\noptimizer=lamb\nbatch=4",
     ["toy.cfg:5: optimizer=lamb", "line 4 has adam=1; allowed beside it: adam"]),
    ("an average of 1", "batch=4", "ema_alpha=1\nbatch=4", ["toy.cfg:4: ema_alpha=1", "allowed: 0 to 0.999999"]),
    ("an average in words", "batch=4", "ema_alpha=yes\nbatch=4", ["toy.cfg:4: ema_alpha=yes", "0 to 0.999999"]),
    ("a norm below 0", "batch=4", "clip_grad_norm=-1\nbatch=4", ["toy.cfg:4: clip_grad_norm=-1", "0 to 1000000000"]),
    ("a beta of 1", "batch=4", "optimizer=adamw\nB1=1\nbatch=4", ["toy.cfg:5: B1=1", "allowed: 0 to below 1"]),
    ("a second beta of 1", "batch=4", "optimizer=adamw\nB2=1\nbatch=4", ["toy.cfg:5: B2=1", "allowed: 0 to below 1"]),
    ("a negative first beta", "batch=4", "optimizer=adam\nB1=-.1\nbatch=4", ["toy.cfg:5: B1=-.1", "allowed: 0 to below 1"]),
    ("a negative beta", "batch=4", "optimizer=lamb\nB2=-1\nbatch=4", ["toy.cfg:5: B2=-1", "allowed: 0 to below 1"]),
    ("an eps of 0", "batch=4", "optimizer=adamw\neps=0\nbatch=4", ["toy.cfg:5: eps=0", "allowed: a number above 0"]),
    ("a beta of 1 of Darknet's Adam", "batch=4", "adam=1\nB1=1\nbatch=4", ["toy.cfg:5: B1=1", "allowed: 0 to below 1"]),
    ("clipping twice", "batch=4", "clip_grad_norm=1\nclip_grad_value=1\nbatch=4",
     ["toy.cfg:5: clip_grad_value=1", "line 4 has clip_grad_norm; allowed: one of them"]),
    ("half a decay", "batch=4", "decay_bn=2\nbatch=4", ["toy.cfg:4: decay_bn=2", "a whole number, 0 or 1"]),
    ("a layer's average", "batch_normalize=1", "ema_alpha=0.9\nbatch_normalize=1",
     ["toy.cfg:18: ema_alpha=0.9", "allowed only in the first section"]),
    ("a key in capitals", "batch=4", "Batch=4", ["toy.cfg:4: Batch=4", "did you mean batch?"]),
    ("a misspelt key", "filters=16", "filters=16\nbatch_normalise=1",
     ["toy.cfg:52: batch_normalise=1 in [convolutional]", "did you mean batch_normalize?"]),
    ("subdivisions that do not divide", "batch=4\nsubdivisions=2", "batch=5\nsubdivisions=2",
     ["toy.cfg:5: subdivisions=2", "must divide batch=5, or be auto"]),
    ("a switch above 1", "batch=4", "adam=2\nbatch=4", ["toy.cfg:4: adam=2", "allowed: 0 or 1"]),
    ("a layer's schedule", "filters=16", "filters=16\npolicy=cosine",
     ["toy.cfg:52: policy=cosine in [convolutional]", "allowed only in the first section, [net]"]),
    ("a setting at the end of the cfg", "mask=2,3", "mask=2,3\nburn_in=0",
     ["toy.cfg:92: burn_in=0 in [yolo]", "allowed only in the first section, [net]"]),
    ("a value of another Darknet", "batch_normalize=1", "batch_normalize=2",
     ["toy.cfg:18: batch_normalize=2", "another network"]),
    ("decay below 0", "decay=0.0005", "decay=-3", ["toy.cfg:10: decay=-3", "at least 0"]),
    ("momentum 1", "momentum=0.9", "momentum=1", ["toy.cfg:9: momentum=1", "below 1"]),
    ("a policy with its opposite", "policy=constant", "policy=onecycle", ["toy.cfg:12: burn_in=10", "onecycle"]),
    ("a falling rate below 0", "policy=constant", "policy=steps\nsteps=1,2\nscales=.1,-.1",
     ["toy.cfg:16: scales=.1,-.1", "factors above 0"]),
    ("more scales than steps", "policy=constant", "policy=steps\nsteps=1\nscales=.1,.1",
     ["toy.cfg:16: scales=.1,.1", "2 numbers", "allowed: 1"]),
    ("steps that fall", "policy=constant", "policy=steps\nsteps=2,1\nscales=.1,.1",
     ["toy.cfg:15: steps=2,1", "at or after the one before"]),
    ("an anchor below 0", ANCHORS, "mask=0,1\nanchors=12,12, 20,20, 6,6, -9,9\n",
     ["toy.cfg:66: anchors=", "-9", "above 0"]),
    ("an aspect of 0", "batch=4", "aspect=0\nbatch=4", ["toy.cfg:4: aspect=0", "above 0"]),
    ("an exposure of 0", "batch=4", "exposure=0\nbatch=4", ["toy.cfg:4: exposure=0", "above 0"]),
    ("an angle of 5000", "batch=4", "angle=5000\nbatch=4", ["toy.cfg:4: angle=5000", "0 to 360"]),
    ("a padding below 0", "filters=16", "filters=16\npadding=-3", ["toy.cfg:52: padding=-3", "at least 0"]),
    ("a jitter of 5", "jitter=.2", "jitter=5", ["toy.cfg:69: jitter=5 in [yolo]", "below 1"]),
    ("a threshold in percent", "mask=2,3", "ignore_thresh=70\nmask=2,3",
     ["toy.cfg:91: ignore_thresh=70 in [yolo]", "0 to 1"]),
    ("a padding in pad", "pad=1", "pad=7", ["toy.cfg:22: pad=7 in [convolutional]", "allowed: 0 or 1"]),
    ("random below 0", "random=0", "random=-1", ["random=-1 in [yolo]", "allowed: 0 or 1"]),
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
