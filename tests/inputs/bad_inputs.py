"""Every bad input of `darknet detector train`: exit status 1, the culprit named, no file touched.

usage: bad_inputs.py DARKNET

Each case spoils one thing of a good toy set, runs the program in the set's folder, and gives the
words that its message must hold. The same set unspoiled must train.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset


def edit(path, old, new):
    text = path.read_text()
    assert old in text, "%s has no %r" % (path, old)
    path.write_text(text.replace(old, new))


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


def append(path, data):
    with path.open("ab") as f:
        f.write(data)


# (name, how to spoil the set, words of the message)
CASES = [
    ("no cfg", lambda d: (d / "toy.cfg").unlink(), ["toy.cfg", "No such file"]),
    ("no data", lambda d: (d / "toy.data").unlink(), ["toy.data", "No such file"]),
    ("no weights", lambda d: (d / "toy.weights").unlink(), ["toy.weights", "No such file"]),
    ("no names", lambda d: (d / "toy.names").unlink(), ["toy.names", "No such file"]),
    ("no image list", lambda d: (d / "train.txt").unlink(), ["train.txt", "No such file"]),
    ("no image", lambda d: (d / "image003.png").unlink(), ["line 4: ", "image003.png"]),
    ("no label file", lambda d: (d / "image003.txt").unlink(), ["line 4: ", "image003.txt"]),
    ("empty train list", lambda d: (d / "train.txt").write_text(""), ["train.txt", "no image"]),
    ("Windows line ends in the list", lambda d: edit(d / "train.txt", "\n", "\r\n"),
     ["line 1: ", "image000.png", "carriage return"]),
    ("class id too large", lambda d: append(d / "image003.txt", b"2 .5 .5 .1 .1\n"),
     ["image003.txt:2: ", '"2"', "from 0 to 1"]),
    ("label not finite", lambda d: append(d / "image003.txt", b"1 .5 nan .1 .1\n"),
     ["image003.txt:2: ", "nan"]),
    ("label field missing", lambda d: append(d / "image003.txt", b"1 .5 .5 .1\n"),
     ["image003.txt:2: ", "4 fields"]),
    ("classes of the data file", lambda d: edit(d / "toy.data", "classes=2", "classes=3"),
     ["toy.cfg:", "classes=2 in [yolo]", "data file says 3"]),
    ("classes of the names", lambda d: append(d / "toy.names", b"green\n"),
     ["toy.names", "3 names", "2 classes"]),
    ("classes of the cfg", lambda d: edit(d / "toy.cfg", "classes=2", "classes=3"),
     ["toy.cfg:", "[yolo]", "filters="]),
    ("a map that is not there",
     lambda d: edit(d / "toy.cfg", "[yolo]", "[yolo]\nmap=data/none.map"),
     ["toy.cfg:", "map=data/none.map", "No such file"]),
    ("max", lambda d: edit(d / "toy.cfg", "[yolo]", "[yolo]\nmax=100"),
     ["toy.cfg:", "max=100 in [yolo]", "allowed: 90"]),
    ("bad option", lambda d: edit(d / "toy.cfg", "[net]", "[net]\namp_dtype=fp8"),
     ["toy.cfg:3: amp_dtype=fp8", "fp16, bf16, tf32 or fp32"]),
    ("unknown option", lambda d: edit(d / "toy.cfg", "[net]", "[net]\nloss_scal_max=8"),
     ["toy.cfg:3: loss_scal_max=8", "loss_scale_max"]),
    ("nothing to train", lambda d: set_seen(d, 12), ["toy.weights", "use -clear"]),
    ("weights cut off", lambda d: cut(d / "toy.weights", 1000), ["toy.weights", "ends inside"]),
    ("weights too long", lambda d: append(d / "toy.weights", b"1234"),
     ["toy.weights", "4 bytes are left over"]),
    ("no backup folder", lambda d: (d / "backup").rmdir(), ["backup", "No such file"]),
    ("backup is a file", lambda d: ((d / "backup").rmdir(), (d / "backup").write_text("")),
     ["backup: not a folder"]),
]


# What Darknet's parser and layers crash on, write out of bounds at, or leave with status 0: (name,
# text of the cfg, its replacement, words of the message). TRAIN: only training does.
YOLO = "mask=2,3\nanchors=12,12, 20,20, 6,6, 9,9\n"
BOTH = [
    ("empty cfg", None, "", ["toy.cfg", "no section"]),
    ("a line before [net]", "[net]\n", "batch=1\n[net]\n", ["toy.cfg:2: ", "before the first section"]),
    ("another first section", "[net]\n", "[conv]\n[net]\n", ["toy.cfg:2: ", "[conv]"]),
    ("a second [net]", "[maxpool]\n", "[net]\n", ["toy.cfg:46: [net]", "no such layer"]),
    ("no ]", "[maxpool]", "[maxpool", ["toy.cfg:46: ", 'does not end with "]"']),
    ("no =", "batch=4", "batch", ["toy.cfg:3: ", 'no "="']),
    ("no value", "batch=4", "batch=", ["toy.cfg:3: ", "no value"]),
    ("NUL byte", "batch=4", "batch=4\0", ["toy.cfg:3: ", "NUL"]),
    ("Windows line ends", "\n", "\r\n", ["toy.cfg:2: ", "carriage return"]),
    ("a long line that is no entry", "[maxpool]\n", "[maxpool]\n" + "x" * 100000 + "\n",
     ["toy.cfg:47: ", 'no "="']),
    ("no newline at the end, no value", "random=0\n", "random=0\nnum=", ["no value"]),
    ("unknown layer", "[maxpool]", "[maxpool2]", ["toy.cfg:46: [maxpool2]", "no such layer"]),
    ("a word for a number", "filters=16", "filters=many", ["toy.cfg:52: filters=many", "whole number"]),
    ("a number with more behind it", "batch=4", "batch=4x", ["toy.cfg:3: batch=4x", "whole number"]),
    ("a number past 32 bits", "max_batches=3", "max_batches=4294967299",
     ["toy.cfg:11: max_batches=4294967299", "32 bits"]),
    ("a rate that is no number", "momentum=0.9", "momentum=nan", ["toy.cfg:7: momentum=nan", "finite"]),
    ("filters below 1", "filters=16", "filters=-16", ["toy.cfg:52: filters=-16", "at least 1"]),
    ("size 0", "size=3\nstride=1", "size=0\nstride=1", ["size=0", "at least 1"]),
    ("stride 0", "[maxpool]\nsize=2\nstride=2", "[maxpool]\nsize=2\nstride=0",
     ["toy.cfg:48: stride=0", "at least 1"]),
    ("subdivisions 0", "subdivisions=2", "subdivisions=0", ["toy.cfg:4: subdivisions=0", "at least 1"]),
    ("subdivisions above batch", "subdivisions=2", "subdivisions=5", ["toy.cfg:4: ", "no image for a pass"]),
    ("huge width", "width=32", "width=2147483647", ["toy.cfg:5: width=2147483647", "1000000"]),
    ("negative width", "width=32", "width=-32", ["toy.cfg:2: [net]", "-32"]),
    ("2^31 elements", "width=32", "width=999999", ["toy.cfg:2: ", "2^31"]),
    ("2^31 elements of a pass", "batch=4", "batch=900000", ["toy.cfg:", "of a pass", "lower batch"]),
    ("2^31 weights", "filters=16\nsize=3", "filters=900000\nsize=3000", ["toy.cfg:50: ", "2^31"]),
    ("inputs that are not the image", "channels=3", "channels=3\ninputs=99",
     ["toy.cfg:8: inputs=99", "= 3072"]),
    ("groups that do not divide", "filters=16", "groups=3\nfilters=16", ["toy.cfg:52: groups=3", "8 input channels"]),
    ("a route without layers", "[route]\nlayers=-3", "[route]", ["toy.cfg:76: [route]", "layers= is missing"]),
    ("a route past the start", "layers=-3", "layers=-30", ["toy.cfg:77: layers=-30", "0 to"]),
    ("a route to itself", "layers=-3", "layers=8", ["toy.cfg:77: layers=8", "0 to 7"]),
    ("a route to nothing", "layers=-1, 4", "layers=-1,", ["layers=-1,", "whole number"]),
    ("a shortcut without from", "from=-3\n", "", ["toy.cfg:42: [shortcut]", "from= is missing"]),
    ("a shortcut to a later layer", "from=-3", "from=5", ["toy.cfg:43: from=5", "0 to 2"]),
    ("a mask past the anchors", "mask=2,3", "mask=2,4", ["mask= in [yolo] names anchor 4", "0 to 3"]),
    ("too many anchors", YOLO, YOLO[:-1] + ",1,1,1,1\n", ["anchors= in [yolo]: 12 numbers", "allowed: 8"]),
    ("too few anchors", YOLO, "mask=2,3\nanchors=12,12\n", ["anchors= in [yolo]: 2 numbers", "allowed: 8"]),
    ("unknown policy", "policy=constant", "policy=cosine", ["toy.cfg:12: policy=cosine", "steps"]),
    ("steps without scales", "policy=constant", "policy=steps\nsteps=1,2",
     ["toy.cfg:12: policy=steps", "scales="]),
    ("fewer scales than steps", "policy=constant", "policy=steps\nsteps=1,2\nscales=.1",
     ["toy.cfg:14: scales=.1", "allowed: 2"]),
    ("step 0", "policy=constant", "policy=step\nstep=0", ["toy.cfg:13: step=0", "at least 1"]),
    ("a maxpool window outside", "[maxpool]\nsize=2", "[maxpool]\npadding=40\nsize=2",
     ["toy.cfg:46: [maxpool]", "without any input cell"]),
    ("a crop larger than its input", "[maxpool]\nsize=2", "[crop]\ncrop_width=99\ncrop_height=9\n[maxpool]\nsize=2",
     ["toy.cfg:46: [crop]", "allowed: up to"]),
    ("a reorg that does not divide", "[maxpool]\nsize=2\nstride=2", "[reorg]\nstride=4",
     ["toy.cfg:47: stride=4 in [reorg]", "must divide"]),
    ("a local that overruns its workspace", "[maxpool]\nsize=2\nstride=2", "[local]\nfilters=8\npad=1\nsize=1",
     ["toy.cfg:46: [local]", "workspace"]),
    ("an lrn over more than all channels", "[maxpool]\nsize=2\nstride=2", "[lrn]\nsize=99",
     ["toy.cfg:47: size=99 in [lrn]", "allowed: 1 to 17"]),
]
TRAIN = [
    ("unknown activation", "activation=leaky", "activation=mish", ["activation=mish", "leaky"]),
    ("another loss in between", "[maxpool]", "[cost]\n[maxpool]", ["toy.cfg:46: [cost]", "out of bounds"]),
    ("truth=1", "[maxpool]", "[maxpool]\ntruth=1", ["toy.cfg:47: truth=1", "out of bounds"]),
    ("jitter", "jitter=.2", "jitter=1.5", ["jitter=1.5 in [yolo]", "below 1"]),
    ("saturation", "batch=4", "batch=4\nsaturation=0", ["toy.cfg:4: saturation=0", "above 0"]),
    ("a first layer without a guard", "policy=constant\n\n", "policy=constant\n[maxpool]\n",
     ["toy.cfg:13: [maxpool]", "mixed_precision=1"]),
    ("random=1 with a layer of fixed size", "random=0", "random=1\n", None),
    ("a bad tree", "[yolo]", "[yolo]", None),
]


def set_seen(folder, images):
    """Sets the count of images seen in the weights file's header."""
    body = (folder / "toy.weights").read_bytes()
    (folder / "toy.weights").write_bytes(body[:12] + images.to_bytes(8, "little") + body[20:])


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
            for p in sorted(folder.rglob("*"))}


def train(program, folder, *arguments):
    return subprocess.run([program, "detector", "train", "toy.data", "toy.cfg", *arguments],
                          cwd=folder, capture_output=True, text=True)


def make_good_set(program, folder):
    """With weights that Darknet wrote and that have seen no image."""
    folder.mkdir()
    os.chdir(folder)
    toyset.make(".", max_batches=3)  # paths in it count from the set's own folder
    os.chdir("..")
    run = train(program, folder)
    assert run.returncode == 0, run.stderr
    (folder / "backup" / "toy_final.weights").rename(folder / "toy.weights")
    set_seen(folder, 0)
    shutil.rmtree(folder / "backup")
    (folder / "backup").mkdir()


def check_case(program, good, folder, name, spoil, words):
    shutil.copytree(good, folder)
    spoil(folder)
    before = contents(folder)
    run = train(program, folder, "toy.weights")
    assert run.returncode == 1, "%s: status %d\n%s" % (name, run.returncode, run.stderr)
    missing = [word for word in words if word not in run.stderr]
    assert not missing, "%s: no %r in\n%s" % (name, missing, run.stderr)
    assert "nothing was trained" in run.stderr, run.stderr
    assert contents(folder) == before, "%s: files changed" % name


def check_undecodable_image(program, good, folder):
    """The loader finds it: training has begun, and ends."""
    shutil.copytree(good, folder)
    for number in range(8):
        (folder / ("image%03d.png" % number)).write_text("no image")
    run = train(program, folder, "toy.weights")
    assert run.returncode == 1 and "cannot be read or decoded" in run.stderr, run.stderr
    assert not (folder / "bad.list").exists()
    run = subprocess.run([program, "detector", "map", "toy.data", "toy.cfg", "toy.weights"],
                         cwd=folder, capture_output=True, text=True)
    named = sum("image%03d.png" % number in run.stdout + run.stderr for number in range(8))
    assert named > 1 and "training stops" not in run.stderr, run.stderr


def check_log_path(program, good, folder):
    """Training cannot write it; other commands do not try."""
    shutil.copytree(good, folder)
    edit(folder / "toy.cfg", "[net]", "[net]\nmixed_precision=1\namp_log=/no/such/folder/log")
    run = train(program, folder, "toy.weights")
    assert run.returncode == 1 and "toy.cfg:4: amp_log=/no/such/folder/log" in run.stderr, run.stderr
    run = subprocess.run([program, "detector", "map", "toy.data", "toy.cfg", "toy.weights"],
                         cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def main():
    program = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as root:
        root = Path(root)
        os.chdir(root)
        make_good_set(program, Path("good"))
        for i, (name, spoil, words) in enumerate(CASES):
            check_case(program, Path("good"), Path("case%d" % i), name, spoil, words)
        check_undecodable_image(program, Path("good"), Path("undecodable"))
        check_log_path(program, Path("good"), Path("log"))
        run = train(program, Path("good"), "toy.weights", "-clear")
        assert run.returncode == 0 and "ends before" not in run.stderr, run.stderr
        run = subprocess.run([program, "detector", "train", "toy.data"], capture_output=True,
                             text=True)
        assert run.returncode == 1 and "usage:" in run.stderr, run.stderr


main()
