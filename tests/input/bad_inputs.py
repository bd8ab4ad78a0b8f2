"""Every bad input of `darknet detector train`: exit status 1, the culprit named, no file touched.

usage: bad_inputs.py DARKNET

Each case spoils one thing of a good toy set, runs the program in the set's folder, and gives the
words that its message must hold. The same set unspoiled must train.
"""

import os
import re
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
     ["train.txt:1: ends in a carriage return", "sed -i"]),
    ("Windows line ends in the data file", lambda d: edit(d / "toy.data", "\n", "\r\n"),
     ["toy.data:1: ends in a carriage return", "sed -i"]),
    ("the cfg and the data file swapped", lambda d: swap(d / "toy.cfg", d / "toy.data"),
     ["toy.cfg:1: ", "toy.data:2: ", "the order is DATA CFG"]),
    ("backslashes in the list", lambda d: edit(d / "train.txt", "image003", "x\\image003"),
     ["line 4: ", "write / between folders"]),
    ("a byte-order mark in the list", lambda d: put_before(d / "train.txt", b"\xef\xbb\xbf"),
     ["train.txt", "byte-order mark"]),
    ("names in UTF-16", lambda d: (d / "toy.names").write_text("red\nblue\n", "utf-16"),
     ["names=toy.names", "UTF-16"]),
    ("an image of 0 bytes", lambda d: cut(d / "image003.png", 0),
     ["line 4: image003.png: is empty (0 bytes)"]),
    ("a page under an image's name", lambda d: (d / "image003.png").write_text("<html>gone</html>"),
     ["line 4: image003.png: is an HTML"]),
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
     ["toy.cfg:3: amp_dtype=fp8", "auto, fp16, bf16, tf32 or fp32"]),
    ("no folder for the log", lambda d: edit(d / "toy.cfg", "[net]", "[net]\nmixed_precision=1\namp_log=none/a.log"),
     ["toy.cfg:4: amp_log=none/a.log", "none/: No such file"]),
    ("unknown option", lambda d: edit(d / "toy.cfg", "[net]", "[net]\nloss_scal_max=8"),
     ["toy.cfg:3: loss_scal_max=8", "loss_scale_max"]),
    ("nothing to train", lambda d: set_seen(d, 12), ["toy.weights", "use -clear"]),
    ("weights cut off", lambda d: cut(d / "toy.weights", 1000), ["toy.weights", "ends inside"]),
    ("weights too long", lambda d: append(d / "toy.weights", b"1234"),
     ["toy.weights", "4 bytes are left over"]),
    ("cfg is a FIFO", lambda d: replace_by_fifo(d / "toy.cfg"), ["toy.cfg", "not a regular file"]),
    ("data is a FIFO", lambda d: replace_by_fifo(d / "toy.data"), ["toy.data", "not a regular file"]),
    ("weights are a FIFO", lambda d: replace_by_fifo(d / "toy.weights"),
     ["toy.weights", "not a regular file"]),
    ("image list is a FIFO", lambda d: replace_by_fifo(d / "train.txt"),
     ["train.txt", "not a regular file"]),
    ("an image is a FIFO", lambda d: replace_by_fifo(d / "image003.png"),
     ["line 4: image003.png: not a regular file"]),
    ("labels are a FIFO", lambda d: replace_by_fifo(d / "image003.txt"),
     ["line 4: image003.txt: not a regular file"]),
    ("names without end", lambda d: edit(d / "toy.data", "toy.names", "/dev/zero"),
     ["toy.data:4: names=/dev/zero", "not a regular file"]),
    ("NUL byte in the data", lambda d: append(d / "toy.data", b"x=\0\n"), ["toy.data:6: ", "NUL"]),
    ("no key in the data", lambda d: append(d / "toy.data", b"=1\n"), ["toy.data:6: ", "no key"]),
    ("classes that are a word", lambda d: edit(d / "toy.data", "classes=2", "classes=two"),
     ["toy.data:1: classes=two", "whole number"]),
    ("NUL byte in the list", lambda d: append(d / "train.txt", b"a\0.png\n"), ["line 9: ", "NUL"]),
    ("a name of 5000 bytes in the list", lambda d: append(d / "train.txt", b"x" * 5000 + b".png"),
     ["line 9: ", "longer than 4095"]),
    ("an image that is its own labels", lambda d: ((d / "a.bmp").write_text(""), append(d / "train.txt", b"a.bmp\n")),
     ["line 9: a.bmp", ".txt"]),
    ("a tree with a parent after itself", lambda d: set_tree(d, "a -1\nb 5\n"), ["toy.tree:2: parent 5"]),
    ("a tree of other classes", lambda d: set_tree(d, "a -1\n"), ["tree=toy.tree: has 1 classes", "allowed: 2"]),
    ("a long name in a tree", lambda d: set_tree(d, "a -1\n" + "b" * 300 + " -1\n"),
     ["toy.tree:2: ", "room for 255"]),
    ("no backup folder", lambda d: (d / "backup").rmdir(), ["backup", "No such file"]),
    ("backup is a file", lambda d: ((d / "backup").rmdir(), (d / "backup").write_text("")),
     ["backup: not a folder"]),
]


def swap(one, other):
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def put_before(path, data):
    path.write_bytes(data + path.read_bytes())


def replace_by_fifo(path):
    path.unlink()
    os.mkfifo(path)


def set_tree(folder, text):
    """Of a [region] in place of both heads."""
    (folder / "toy.tree").write_text(text)
    cfg = (folder / "toy.cfg").read_text()
    region = "[region]\nclasses=2\nnum=2\nanchors=1,1,2,2\ntree=toy.tree\n"
    (folder / "toy.cfg").write_text(cfg[:cfg.index("[yolo]")] + region)


def set_seen(folder, images):
    """Sets the count of images seen in the weights file's header."""
    body = (folder / "toy.weights").read_bytes()
    (folder / "toy.weights").write_bytes(body[:12] + images.to_bytes(8, "little") + body[20:])


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
            for p in sorted(folder.rglob("*"))}


def train(program, folder, *arguments):
    return subprocess.run([program, "detector", "train", "toy.data", "toy.cfg", *arguments],
                          cwd=folder, capture_output=True, text=True, timeout=1200)


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
    """All of them, whose headers are whole: the loader finds it when training has begun, and ends it."""
    shutil.copytree(good, folder)
    for number in range(8):
        cut(folder / ("image%03d.png" % number), 40)
    run = train(program, folder, "toy.weights")
    assert run.returncode == 1 and "cannot be read or decoded" in run.stderr, run.stderr
    assert not (folder / "bad.list").exists()
    run = subprocess.run([program, "detector", "map", "toy.data", "toy.cfg", "toy.weights"],
                         cwd=folder, capture_output=True, text=True)
    named = sum("image%03d.png" % number in run.stdout + run.stderr for number in range(8))
    assert named > 1 and "training stops" not in run.stderr, run.stderr


def check_replaced_image(program, good, folder):
    """One that begins as an image does and cannot be decoded: with mixed precision another one takes its place, of
    which the last line tells; where too many are, and without mixed precision, the run ends."""
    shutil.copytree(good, folder)
    cut(folder / "image003.png", 40)
    shutil.copy(folder / "toy.cfg", folder / "stock.cfg")
    edit(folder / "toy.cfg", "[net]", "[net]\nmixed_precision=1\nseed=2")
    edit(folder / "toy.cfg", "max_batches=3", "max_batches=6")
    run = train(program, folder, "toy.weights")
    assert run.returncode == 0, run.stderr
    assert run.stderr.count('image "image003.png" cannot be read or decoded: another one') == 1, run.stderr
    assert re.search(r"; [1-9]\d* images that could not be decoded replaced by others", run.stderr), run.stderr
    for number in range(7):
        cut(folder / ("image%03d.png" % number), 40)
    edit(folder / "toy.cfg", "max_batches=6", "max_batches=60")
    run = train(program, folder, "toy.weights", "-clear")
    assert run.returncode == 1 and "no more than 1 in 100 is replaced" in run.stderr, run.stderr
    edit(folder / "stock.cfg", "max_batches=3", "max_batches=60")
    run = subprocess.run([program, "detector", "train", "toy.data", "stock.cfg"], cwd=folder, capture_output=True,
                         text=True)
    assert run.returncode == 1 and "cannot be read or decoded: it must be an image" in run.stderr, run.stderr
    assert not (folder / "bad.list").exists()


def spoil_header(path):
    """A netpbm that says it is larger than OpenCV allows, which makes it throw."""
    path.write_bytes(b"P6\n40000 40000\n255\n" + bytes(8))


def check_hostile_header(program, good, folder):
    """Of all images; in training with and without the key, in the evaluation and in the check."""
    shutil.copytree(good, folder)
    names = ["image%03d.png" % number for number in range(8)]
    for name in names:
        spoil_header(folder / name)
    shutil.copy(folder / "toy.cfg", folder / "mixed.cfg")
    edit(folder / "mixed.cfg", "[net]", "[net]\nmixed_precision=1")
    for command in (["detector", "train", "toy.data", "toy.cfg"],
                    ["detector", "train", "toy.data", "mixed.cfg"],
                    ["amp", "check", "toy.data", "mixed.cfg"],
                    ["detector", "map", "toy.data", "toy.cfg", "toy.weights"]):
        run = subprocess.run([program, *command], cwd=folder, capture_output=True, text=True,
                             timeout=1200)
        assert run.returncode == 1, "%s: status %d\n%s" % (command, run.returncode, run.stderr)
        said = [line for line in run.stderr.splitlines() if "decoded" in line]
        assert said and any(name in said[0] for name in names), run.stderr
        assert command[1] == "map" or not (folder / "bad.list").exists()
    assert not list((folder / "backup").iterdir())


def check_words(program, good, folder):
    """Unknown words: refused with the key and where one of ours was meant, else told and ignored."""
    shutil.copytree(good, folder)
    shutil.copy(folder / "toy.cfg", folder / "mixed.cfg")
    edit(folder / "mixed.cfg", "[net]", "[net]\nmixed_precision=1")
    before = contents(folder)
    after, refused = ["toy.weights"], [
        (["-mapp"], 'unknown word "-mapp"; did you mean -map?\n'),
        (["-chrat", "c.svg"], "did you mean -chart?\n"),
        (["-map", "-thresh", "abc"], "-thresh abc: allowed: a number from 0 to 1\n"),
        (["-map", "-thresh", "1.5"], "-thresh 1.5: allowed: a number from 0 to 1\n"),
        (["-i", "0", "-thresh"], "no value after -thresh\n"),  # Darknet crashes
        (["-map", "-thresh"], "no value after -thresh\n"),
    ]
    ignored = [
        (["-claer"], 'unknown word "-claer"; did you mean -clear?'),
        (["-clear", "foo"], 'unknown word "foo"; allowed: DATA CFG [WEIGHTS]'),
        (["clear"], 'unknown word "clear"; did you mean -clear?'),
        (["-gpus"], "no value after -gpus"),
        (["-clear", "-clear"], "-clear is given twice"),
    ]
    values = [
        (["-thresh", "abc"], "-thresh abc: allowed: a number from 0 to 1", "Darknet reads 0"),
        (["-thresh", "nan"], "-thresh nan: allowed: a number from 0 to 1", "Darknet reads nan"),
        (["-hier", "-.5"], "-hier -.5: allowed: a number from 0 to 1", "Darknet reads -0.5"),
        (["-i", "x"], "-i x: allowed: a whole number", "Darknet reads 0"),
        (["-w", "2.5"], "-w 2.5: allowed: a whole number", "Darknet reads 2"),
        (["-gpus", "0,a"], "-gpus 0,a: allowed: whole numbers with commas between them", "Darknet reads 0"),
        (["-out", "-clear"], "no value after -out: -clear", "Darknet takes the option for a name"),
        (["-thresh", ".1", "-thresh", ".2"], "-thresh is given twice", "ignored, as Darknet ignores it"),
    ]
    in_place_of_weights = [(["-maps"], 'unknown word "-maps"; did you mean -map?'),
                           (["-claer"], "did you mean -clear?"),
                           (["-claer", "toy.weights"], "did you mean -clear?")]
    for cfg in ("toy.cfg", "mixed.cfg"):
        cases = [(after + words, said) for words, said in refused] + in_place_of_weights
        if cfg == "mixed.cfg":
            cases += [(after + words, said) for words, said in ignored]
            cases += [(after + words, said + "\n") for words, said, _ in values]
        for words, said in cases:
            run = subprocess.run([program, "detector", "train", "toy.data", cfg, *words],
                                 cwd=folder, capture_output=True, text=True)
            assert run.returncode == 1 and "error: " in run.stderr, (words, run)
            assert said in run.stderr and "nothing was trained" in run.stderr, (words, run.stderr)
            assert run.stderr.count("error: ") == 1, run.stderr
    assert contents(folder) == before
    for words, said in ignored:
        run = train(program, folder, *after, *words)
        assert run.returncode == 0 and "warning: " + said in run.stderr, (words, run)
        assert "ignored, as Darknet ignores it" in run.stderr, run.stderr
    for words, said, read in values:
        run = train(program, folder, *after, *words)
        assert run.returncode == 0 and "warning: %s (%s)\n" % (said, read) in run.stderr, (words, run)
    run = train(program, folder, *after, "-thresh", ".3", "-gpus", "0", "-out", "x", "-i", "0", "-nogpu")
    assert run.returncode == 0 and "warning" not in run.stderr, run.stderr


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
        check_replaced_image(program, Path("good"), Path("replaced"))
        check_hostile_header(program, Path("good"), Path("hostile"))
        check_log_path(program, Path("good"), Path("log"))
        check_words(program, Path("good"), Path("words"))
        run = train(program, Path("good"), "toy.weights", "-clear")
        assert run.returncode == 0 and "ends before" not in run.stderr, run.stderr
        run = subprocess.run([program, "detector", "train", "toy.data"], capture_output=True,
                             text=True)
        assert run.returncode == 1 and "Usage:" in run.stderr, run.stderr


if __name__ == "__main__":
    main()
