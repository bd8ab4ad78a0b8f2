"""Darknet's own commands, all that it has: with no files, with missing ones and with files that do not fit, each ends
with status 1 and a line that names what is missing. Those that can be run here still run.

usage: darknet_commands.py DARKNET SOURCE
SOURCE: the folder of Darknet's source
"""

import os
import random
import re
import resource
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

CLASSIFIER = """[net]
batch=1
width=32
height=32
channels=3
{keys}

[convolutional]
filters=2

[avgpool]
[softmax]
"""
# Darknet's oneoff loads 11921 filters into a layer of more.
ONEOFF = """[net]
batch=1
width=2
height=2
channels=3
{key}

[convolutional]
filters=11928
activation=linear

[cost]
"""
GO = """[net]
batch=1
width=19
height=19
channels=3

[convolutional]
filters=1

[reorg]
extra=2

[softmax]
"""
RNN = "[net]\nbatch=1\ninputs=256\n\n[connected]\noutput=256\nactivation=linear\n\n[softmax]\n"
MOVE = b"10\x03\x0f" + bytes(92)
# First words of Darknet's main (examples/darknet.c) that stand for several commands.
GROUPS = ("detector", "classifier", "regressor", "segmenter", "isegmenter", "yolo", "coco", "rnn", "tag", "super",
          "cifar", "go", "lsd")
ALONE = ("detect", "classify", "nightmare", "art", "average", "rgbgr", "reset", "denormalize", "normalize", "rescale",
         "oneoff", "oneoff2", "partial", "statistics", "print", "visualize", "ops", "speed", "mkimg", "3d", "test", "imtest")


ONCE = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")}
ONCE["GOMP_SPINCOUNT"] = "1000"  # else the program starts itself again


def run(folder, *words, text="", **more):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return subprocess.run([sys.argv[1], *words], cwd=folder, encoding="utf-8", errors="replace", input=text, timeout=600,
                          env=ONCE, **pipes)


def limit(kind, most):
    return {"preexec_fn": lambda: resource.setrlimit(kind, (most, most))}


def all_commands(folder):
    """Every command with the files of its usage, which stands on stderr where they are left out."""
    for words in [(group,) for group in GROUPS] + [(word,) for word in ALONE]:
        told = run(folder, *words)
        usages = re.findall(r"^Usage: darknet (.*?) ((?:\[?[A-Z]+(?:\.\.\.)?\]? ?)+)", told.stderr, re.M)
        assert told.returncode == 1 and usages, told
        for command, files in usages:
            if command not in ("detector train", "detector map"):  # ours, with tests of their own
                yield command.split(), [file.strip("[.]") for file in files.split()]


def check_missing(folder):
    """No files at all: the usage. Files that are not there: the first of them at least is named."""
    for command, files in all_commands(folder):
        told = run(folder, *command, *("none." + file.lower() for file in files))
        assert told.returncode == 1 and ": No such file" in told.stderr, (command, told)
    usage = run(folder, "classifier", "valid", "--help")
    assert usage.returncode == 0 and usage.stdout.startswith("Usage: darknet classifier valid DATA CFG"), usage


def spoil(folder, name, old, new):
    text = (folder / name).read_text()
    assert old in text, (name, old)
    (folder / name).write_text(text.replace(old, new))
    return lambda: (folder / name).write_text(text)


def of_other_nets(weights):
    """Commands with the net of another one, and those whose standard input is empty."""
    image = ("", "image000.png")
    yield from ((None, words, [f"{cfg}: the network reads"]) if words[0] == "go" else
                (None, words, [f"{cfg}:", "reads one of [yolo] [region] [detection] there" if words[0] == "detector" else
                               "and gives" if "segmenter" in words[0] else "the last layer is"])
                for words, cfg in ((("detector", "test", "toy.data", "c.cfg", *image), "c.cfg"),
                                   (("detector", "valid", "toy.data", "c.cfg"), "c.cfg"),
                                   (("classifier", "valid", "c.data", "toy.cfg", weights), "toy.cfg"),
                                   (("classifier", "fout", "c.data", "toy.cfg", weights, "train.txt"), "toy.cfg"),
                                   (("classifier", "predict", "c.data", "toy.cfg", weights, "image000.png"), "toy.cfg"),
                                   (("regressor", "test", "toy.cfg", weights, "image000.png"), "toy.cfg"),
                                   (("regressor", "test", "c.cfg", *image), "c.cfg"),
                                   (("segmenter", "test", "c.data", "c.cfg", *image), "c.cfg"),
                                   (("isegmenter", "test", "c.data", "toy.cfg", weights, "image000.png"), "toy.cfg"),
                                   (("art", "toy.cfg"), "toy.cfg"),
                                   (("go", "test", "c.cfg"), "c.cfg"),
                                   (("go", "engine", "c.cfg"), "c.cfg"),
                                   (("go", "valid", "c.cfg", "", "one.moves"), "c.cfg"),
                                   (("go", "self", "go.cfg", "", "c.cfg"), "c.cfg")))
    yield from (
        (None, ("lsd", "test", "toy.cfg", weights, "image000.png"), ["toy.cfg: no layer makes an image of 3 channels"]),
        (("c.cfg", "[convolutional]", "[maxpool]\n[convolutional]"), ("mkimg", "c.cfg", "", "99", "99", "1", "."),
         ["c.cfg:8: the first layer is [maxpool]"]),
        (None, ("super", "test", "c.cfg", *image), ["super test reads 49152"]),
        (None, ("art", "c.cfg"), ["2 outputs; needed: 435"]),
        (("c.data", "classes=2", "classes=3"), ("classifier", "fout", "c.data", "c.cfg", "", "train.txt"),
         ["classes=3; allowed: at most 2"]),
        (("go.cfg", "extra=2", "extra=1"), ("go", "test", "go.cfg"), ["gives 362 numbers for an image; go test reads 363"]),
        (("go.cfg", "batch=1", "batch=16"), ("go", "self", "go.cfg", ""), ["16 images in a pass; go self has 8", "gnugo: No such file"]),
        (None, ("go", "valid", "go.cfg", "", "toy.names"), ["toy.names: move 1 is cut off"]),
        (None, ("go", "test", "go.cfg"), ["go test: the standard input is empty: it reads its moves there"]),
        (None, ("rnn", "valid", "toy.cfg", weights), ["ends with [yolo]"]),
        (None, ("rnn", "vec", "rnn.cfg"), ["rnn vec: byte 5 of the standard input is not ASCII"], "a caf\u00e9"[1:]),
        (None, ("rnn", "valid", "c.cfg"), ["gives 2 numbers for an image; rnn valid reads 3072"]),
        *((None, ("rnn", command, "rnn.cfg"), [f"rnn {command}: the standard input is empty"])
          for command in ("valid", "validtactic", "vec", "generatetactic")))


def check_refused(folder):
    """(what is spoiled, the command, words of the message, sometimes the standard input)"""
    weights = "toy.weights"
    cases = (
        (None, ("detector", "test", "toy.data", "toy.cfg", "none.weights", "image000.png"), ["none.weights: No such file"]),
        (None, ("detector", "test", "toy.data", "toy.cfg", weights, "none.png"), ["none.png: No such file"]),
        (None, ("detector", "test", "toy.data", "toy.cfg", weights, "toy.cfg"), ["image file toy.cfg: ", "not an image"]),
        (None, ("detector", "test", "toy.data", "toy.cfg", weights, "image000.png", "-out", "none/a"), ["none/: No such file"]),
        (None, ("detector", "test", "toy.data", "toy.cfg", weights, "-tresh", "1"), ["unknown option -tresh", "-thresh X"]),
        (None, ("detector", "test", "toy.data", "toy.cfg", weights, "-thresh"), ["no value after -thresh"]),
        (None, ("detector", "test", "toy.data", "toy.cfg", weights, "-thresh", "abc"), ["-thresh abc: allowed: a number"]),
        (None, ("detector", "test", "toy.data", "toy.cfg", weights, "-thresh", "nan"), ["-thresh nan: allowed: a number"]),
        (None, ("detector", "demo", "toy.data", "toy.cfg", weights, "-avg", "0"), ["-avg 0: allowed: a whole number, at least 1"]),
        (None, ("classifier", "predict", "c.data", "c.cfg", "", "image000.png", "-gpus", "0,a"),
         ["-gpus 0,a: allowed: whole numbers with commas between them"]),
        (None, ("nightmare", "toy.cfg", weights, "image000.png", "0", "-octaves", "0"), ["-octaves 0: allowed: a whole number, at least 1"]),
        (None, ("nightmare", "toy.cfg", weights, "image000.png", "0", "-zoom", "0"), ["-zoom 0: allowed: a number above 0"]),
        (None, ("nightmare", "toy.cfg", weights, "image000.png", "0", "-range", "3"), ["-range 3: layers -1 to 1 around LAYER 0"]),
        (None, ("nightmare", "toy.cfg", weights, "image000.png", "0", "-reconstruct"), ["LAYER 0: with -reconstruct allowed: at least 1"]),
        (None, ("rnn", "generate", "c.cfg", "-len", "-5"), ["-len -5: allowed: a whole number, at least 0"]),
        (None, ("rnn", "generate", "c.cfg", "-temp", "0"), ["-temp 0: allowed: a number above 0"]),
        (None, ("rnn", "generate", "c.cfg", "-srand", "1.5"), ["-srand 1.5: allowed: a whole number"]),
        (None, ("-i", "one", "rnn", "generate", "c.cfg"), ["-i one: allowed: a whole number"]),
        (None, ("detector", "valid", "toy.data", "toy.cfg", weights), ["results: No such file", "results= in the data file"]),
        (None, ("detector", "valid2", "toy.data", "toy.cfg", weights), ["[yolo]", "detector valid or map"]),
        (None, ("classifier", "csv", "c.data", "toy.cfg"), ["2 images in a pass", "needs 1"]),
        (("toy.names", "\n", ""), ("detector", "test", "toy.data", "toy.cfg", weights, "image000.png"),
         ["toy.names: has 1 lines; needed: 2"]),
        (None, ("detector", "recall", "toy.data", "toy.cfg", weights), ["data/coco_val_5k.list", "detector map"]),
        (None, ("detector", "demo", "toy.data", "toy.cfg", weights, "none.mp4"), ["none.mp4"]),
        (None, ("detector", "demo", "toy.data", "toy.cfg", weights, "toy.cfg"), ["toy.cfg"]),
        (None, ("detector", "demo", "toy.data", "toy.cfg", weights, "-c", "77"), ["/dev/video77", "-c N"]),
        (None, ("yolo", "test", "toy.cfg", weights, "image000.png"), ["[yolo] with classes=2", "[detection]"]),
        (None, ("detect", "toy.cfg", weights), ["cfg/coco.data: No such file", "detector test"]),
        (("train.txt", "image000.png", "none.png"), ("classifier", "valid", "c.data", "c.cfg"), ["line 1: ", "none.png"]),
        (("c.labels", "\n", ""), ("classifier", "valid", "c.data", "c.cfg"), ["has 1 labels; needed: 2"]),
        (("c.data", "classes=2", "classes=3"), ("classifier", "valid", "c.data", "c.cfg"), ["classes=3; allowed: at most 2"]),
        (("c.labels", "\n", ""), ("classifier", "predict", "c.data", "c.cfg", "", "image000.png"), ["needed: 2"]),
        (None, ("classifier", "predict", "c.data", "c.cfg", "", "image000.png", "-t", "3"), ["top=3; allowed: 1 to 2"]),
        (None, ("classifier", "try", "c.data", "c.cfg", weights, "image000.png", "9"), ["LAYER 9", "224x224"]),
        (None, ("classifier", "validcrop", "c.data", "c.cfg"), ["names 8 images; allowed: at least 1000"]),
        (None, ("classifier", "test", "c.data", "c.cfg"), ["data/test.list: No such file", "has no test= line"]),
        (("c.cfg", "channels=3", "channels=4"), ("classifier", "valid", "c.data", "c.cfg"), ["channels=4; allowed: 3"]),
        (None, ("classifier", "demo", "toy.none", "c.cfg"), ["toy.none: No such file"]),
        (None, ("rnn", "generate", "toy.cfg", "-tokens", "none.txt"), ["none.txt: No such file", "2 images in a pass"]),
        (None, ("rnn", "generate", "c.cfg", "-seed", "caf\u00e9"), ["-seed: a character that is not ASCII"]),
        (None, ("print", "toy.cfg", weights, "99"), ["LAYER 99: allowed: a whole number from 0"]),
        (None, ("average", "toy.cfg", "none/out.weights", weights), ["none/: No such file"]),
        (None, ("average", "toy.cfg", weights, "other.weights"), ["OUT file toy.weights: is there already"]),
        (None, ("rgbgr", "toy.cfg", weights, "toy.names"), ["OUT file toy.names: is there already"]),
        (None, ("detector", "test", "toy.data", "toy.cfg", "image000.png", "image000.png"),
         ["weights file image000.png", "another network"]),
        (None, ("detector", "test", "toy.data", "toy.cfg", "other.weights", "image000.png"), ["other.weights: 4 bytes are left"]),
        (None, ("classifier", "predict", "c.data", "c.cfg", "c.cfg", "image000.png"), ["weights file c.cfg: ", "belongs to another network"]),
        (None, ("classifier", "valid", "c.data", "c.cfg", weights), ["toy.weights: ", "belongs to another network"]),
        (None, ("average", "toy.cfg", "out.weights", weights, "other.weights"), ["other.weights: 4 bytes are left"]),
        (None, ("go", "self", "go.cfg", "", "go.cfg", weights), ["toy.weights: ", "belongs to another network"]),
        (None, ("statistics", "toy.cfg", "other.weights"), ["other.weights: 4 bytes are left"]),
        (None, ("oneoff", "toy.cfg", weights, "out.weights"), ["toy.cfg:", "oneoff needs a [convolutional]", "11926 filters"]),
        (None, ("imtest", "none.png"), ["none.png: No such file"]),
        (None, ("classifier", "trian", "c.data", "c.cfg"), ["did you mean classifier train?"]),
        (None, ("rgbgr", "toy.cfg", weights, "backup"), ["OUT file backup: is there already"]),
        (None, ("detector", "valid", "toy.data", "toy.cfg", weights, "-out", "sub/x"), ["-out sub/x: allowed: a name without"]),
        (("toy.cfg", "[net]", "[net]\nmixed_precision=1"), ("normalize", "toy.cfg", weights, "out.weights"),
         ["toy.cfg:3: mixed_precision=1: normalize replaces"]),
        (None, ("detector", "demo", "toy.data", "toy.cfg", weights, "broken.jpg"), ["a video without a picture"]),
        (None, ("rnn", "generate", "c.cfg", "-tokens", "one.tokens"), ["one.tokens: has 1 lines (-tokens); needed: 2"]),
        (None, ("detector", "map", "toy.data", "toy.cfg", weights, "--json", "train.txt"),
         ["train.txt: is there and is another kind of file"]),
        *((None, ("detector", "map", "toy.data", "toy.cfg", weights, *words), said) for words, said in
          ((("--json", "own.json"), ["--json: own.json: is there and is another kind of file", "detector map 1"]),
           (("--page", "own.html"), ["--page: own.html: is there and is another kind of file", "map page 1"]),
           (("--json", "-"), ['--json: "-" is no name of a file']), (("--page", ""), ['--page: "" is no name of a file']),
           (("--json", "new", "--page", "new"), ["--json and --page name the same file, new"]))),
        (None, ("amp", "profile", "toy.cfg", "--trace", "own.json"), ["--trace: own.json: is there and is another kind of file"]),
        (None, ("amp", "predict", "toy.cfg", weights, "--input", ".", "--output", "new"), ["--input .: a folder, not a file"]),
        (None, ("amp", "predict", "toy.cfg", weights, "--input", "toy.names", "--output", "own.json"), ["--output own.json: is there already"]),
        (None, ("amp", "predict", "toy.cfg", weights, "--input", "toy.names", "--output", "toy.names"),
         ["--output names a file that is read"]),
        (("c.labels", "image", "photo"), ("classifier", "valid", "c.data", "c.cfg"), ["images without exactly one label", "holds no label"]),
        (None, ("detector", "test", "toy.data", "toy.cfg", "nan.weights", "image000.png"), ["nan.weights: its number 1 is nan"]),
        (None, ("detector", "valid", "toy.data", "toy.cfg", "nan.weights"), ["nan.weights: its number 1 is nan"]),
        (None, ("average", "toy.cfg", "out.weights", weights, "nan.weights"), ["nan.weights: its number 1 is nan"]),
        (None, ("detector", "test", "toy.data", "toy.cfg", weights, "image000.png", "image001.png"), ['"image001.png" is a word too many']),
        (None, ("ops", "toy.cfg", "x", "y"), ['"x" is a word too many', "Usage: darknet ops CFG"]),
        (None, ("detector", "test", "toy.data", "toy.cfg", weights, "-thresh", "-1"), ["-thresh -1: allowed: a number from 0 to 1"]),
        (None, ("detector", "test", "toy.data", "toy.cfg", weights, "image000.png", "-out", "set"),
         ["set.jpg: is there, with labels (set.txt), and would be written over"]),
        (None, ("detector", "test", "toy.data", "toy.cfg", weights, "alone.jpg", "-out", "./alone"),
         ["./alone.jpg: the image itself would be written over"]),
        (None, ("detector", "test", "toy.data", "toy.cfg", weights, "image000.png", "-out", "x" * 252), ["cannot be written: File name too long"]),
        (None, ("detector", "test", "toy.data", "toy.cfg", weights, "image000.png", "-out", "full"), ["full.jpg\" cannot be written: it is cut off: is the disk full"]),
        (None, ("mkimg", "c.cfg", "", "99", "99", "1", "none"), ["none: No such file", "PREFIX is a folder"]),
        (None, ("detector", "demo", "toy.data", "toy.cfg", weights, "a.pipe"), ["a.pipe: not a regular file; allowed: a file, a camera"]),
        (None, ("detector", "test", "toy.data", "toy.cfg", "large.weights", "image000.png"), ["of layer ", "the weights do not give finite"]),
        (None, ("classifier", "predict", "c.data", "linear.cfg", "c_large.weights", "image000.png"), ["of layer 0 ", "do not give finite"]),
        (None, ("classifier", "valid", "c.data", "linear.cfg", "c_large.weights"), ["of layer 0 ", "do not give finite"]),
        (None, ("detector", "test", "toy.data", "heads.cfg", weights, "image000.png"), ["classes=2 in [yolo]; allowed: as many in all heads, and [yolo] of line ", " has 3"]),
        (None, ("detector", "test", "toy.data", "toy.cfg", weights, "image000.png", "-out", "x.json"),
         ["-out x.json: names the picture, which would be x.json.jpg; no JSON is written. `detector valid` writes"]),
        (None, ("nightmare", "toy.cfg", "large.weights", "image000.png", "5"), ["of layer ", "do not give finite"]),
        (None, ("imtest", "image000.png"), ["imtest goes on until it is stopped", "DISPLAY"]),
        *of_other_nets(weights),
        (None, ("frobnicate",), ['unknown command "frobnicate"']),
    )
    for change, command, words, *text in cases:
        put_back = spoil(folder, *change) if change else lambda: None
        told = run(folder, *command, text="".join(text))
        put_back()
        assert told.returncode == 1 and all(word in told.stderr for word in words), (command, words, told)


def check_result_names(folder):
    """detector valid writes a file for each class, where that can be made."""
    names = folder / "toy.names"
    before = names.read_text()
    for wrong, word in (("a/b", "a name without a /"), ("x" * 300, "too long")):
        names.write_text("\n".join([wrong] + before.splitlines()[1:]))
        told = run(folder, "detector", "valid", "toy.data", "toy.cfg", "toy.weights")
        assert told.returncode == 1 and word in told.stderr, told
    names.write_bytes(before.replace("\n", "\r\n").encode())
    told = run(folder, "detector", "valid", "toy.data", "toy.cfg", "toy.weights")
    assert told.returncode == 1 and "toy.names:1: ends in a carriage return" in told.stderr, told
    assert not list((folder / "results").glob("*\r*")), list((folder / "results").iterdir())
    names.write_text(before)


def check_right(folder):
    """What they need is there: they run as ever, also on a list shorter than Darknet's threads."""
    (folder / "results").mkdir()
    (folder / "one.txt").write_text("image000.png\n")
    spoil(folder, "toy.data", "valid=%s" % (folder / "train.txt"), "valid=one.txt")
    for key in ("", "mixed_precision=1"):
        put_back = spoil(folder, "c.cfg", "channels=3", "channels=3\n" + key)
        for command in (("detector", "valid", "toy.data", "toy.cfg", "toy.weights"),
                        ("detector", "test", "toy.data", "toy.cfg", "toy.weights", "image000.png", "-thresh", ".9"),
                        ("classifier", "valid", "c.data", "c.cfg"),
                        ("classifier", "predict", "c.data", "c.cfg", "", "image000.png"),
                        ("-nogpu", "classifier", "fout", "c.data", "c.cfg", "", "train.txt"),
                        ("partial", "toy.cfg", "toy.weights", key + "part.weights", "2"),
                        ("average", "toy.cfg", key + "mean.weights", "toy.weights", "toy.weights"),
                        ("ops", "toy.cfg"), ("speed", "c.cfg", "2"), ("print", "toy.cfg", "toy.weights", "0")):
            told = run(folder, *command)
            assert told.returncode == 0, (command, told)
        put_back()
    check_result_names(folder)
    # One image has the boxes of one image, though four threads load it.
    ids = {line.split()[0] for path in (folder / "results").iterdir() for line in path.read_text().splitlines()}
    assert ids <= {"image000"}, ids
    assert (folder / "part.weights").stat().st_size < (folder / "mean.weights").stat().st_size


def check_texts(folder):
    """What stands on the standard input is read to its end."""
    for words, text, said in ((("go", "test", "go.cfg"), "1\n2\n", "Win Chance"),
                              (("go", "engine", "go.cfg", ""), "name\n", "DarkGo"),
                              (("go", "valid", "go.cfg", "", "one.moves"), "", "0 Accuracy"),
                              (("rnn", "valid", "rnn.cfg"), "a cat", "4 BPC"),
                              (("rnn", "vec", "rnn.cfg"), "a cat", "acat,"),
                              (("rnn", "generatetactic", "rnn.cfg", "-len", "2"), "a", "\n")):
        told = run(folder, *words, text=text)
        assert told.returncode == 0 and said in told.stdout, (words, told)


def check_full(folder):
    """What cannot be written in full is named, with status 1; weights are written whole or not at all."""
    few = limit(resource.RLIMIT_FSIZE, 100)
    results = (("detector", "valid", "toy.data", "toy.cfg", "toy.weights"), "error: results/comp4_det_test_", "File too large (and 1 other file)")
    picture = (("detector", "test", "toy.data", "toy.cfg", "toy.weights", "image000.png"), 'image "predictions.jpg" cannot be written', "ulimit -f")
    for words, *said in (results, picture, (("mkimg", "c.cfg", "", "9", "9", "1", "."), 'image "./gen_0.jpg" cannot be written', "ulimit -f"),
                         *((words, words[-1] if words[0] != "average" else "cut.weights", "not written in full", "ulimit -f") for words in
                           (("average", "toy.cfg", "cut.weights", "toy.weights"), ("rgbgr", "toy.cfg", "toy.weights", "cut.weights"),
                            ("reset", "toy.cfg", "toy.weights", "cut.weights"), ("normalize", "toy.cfg", "toy.weights", "cut.weights"),
                            ("denormalize", "toy.cfg", "toy.weights", "cut.weights")))):
        told = run(folder, *words, **few)
        assert told.returncode == 1 and all(word in told.stderr for word in said), (words, told)
        assert not list(folder.glob("cut.weights*")), words
    for key in ("", "mixed_precision=1"):
        put_back = spoil(folder, "toy.cfg", "[net]", "[net]\n" + key)
        for words in (("partial", "toy.cfg", "toy.weights", "cut.weights", "2"),
                      ("oneoff2", "toy.cfg", "toy.weights", "cut.weights", "2")):
            told = run(folder, *words, **few)
            assert told.returncode == 1 and "cut.weights: not written in full" in told.stderr, (words, told)
            assert not list(folder.glob("cut.weights*")), words
        put_back()
    with open("/dev/full", "w") as full:
        for words in (("classifier", "predict", "c.data", "c.cfg", "", "image000.png"), ("print", "toy.cfg", "toy.weights", "0"),
                      ("rnn", "valid", "rnn.cfg")):
            told = run(folder, *words, text="a cat", stdout=full)
            assert told.returncode == 1 and "error: standard output: not written in full: No space left" in told.stderr, (words, told)


def check_parts_whole(folder):
    """What normalize and denormalize change is as long as Darknet's file of it."""
    for command, cfg in (("normalize", "c.cfg"), ("denormalize", "toy.cfg")):
        weights = "" if cfg == "c.cfg" else "toy.weights"
        told = run(folder, command, cfg, weights, f"{command}.weights")
        assert told.returncode == 0 and (folder / f"{command}.weights").stat().st_size > 20, told


def check_names_on_stdin(folder):
    """A name that is none is told, and the next one asked for."""
    text = "none.png\n\n%s\nimage000.png\ntoy.cfg\nimage001.png" % ("x" * 300)
    for words in (("detector", "test", "toy.data", "toy.cfg", "toy.weights"), ("classifier", "predict", "c.data", "c.cfg")):
        told = run(folder, *words, text=text)
        assert told.returncode == 1 and told.stdout.count("Enter Image Path: ") == 7, told
        for said in ('image "none.png": No such file', 'image "": is empty', "is longer than 254 bytes", 'image "toy.cfg": is JSON text'):
            assert told.stderr.count(said) == 1, (said, told)
        assert all(told.stdout.count(f"{name}: Predicted") == 1 for name in ("image000.png", "image001.png")) or words[0] != "detector", told
        told = run(folder, *words, text="image000.png\n")
        assert told.returncode == 0 and "error" not in told.stderr, told
        told = run(folder, *words, text="image000.png\r\n")
        said = r"""image "image000.png": No such file or directory (the name ends in a carriage return, as lines of Windows do: tr -d '\r' takes"""
        assert told.returncode == 1 and said in told.stderr, told


def check_handles(folder):
    """A file for each class, and images: where too few may be open at a time, that is the cause that is told."""
    few = limit(resource.RLIMIT_NOFILE, 30)
    told = run(folder, "detector", "valid", "toy.data", "toy.cfg", "toy.weights", **few)
    assert told.returncode == 1 and "only 30 files may be open at a time: raise the limit (ulimit -Hn 42)" in told.stderr, told
    used_up = limit(resource.RLIMIT_NOFILE, 3)
    told = run(folder, "classifier", "predict", "c.data", "c.cfg", "", "image000.png", **used_up)
    assert told.returncode and ("Too many open files" in told.stderr or "error while loading" in told.stderr), told


def check_gpus(folder):
    """More GPUs than there are. Where there is none, one number is as good as no word."""
    words = ("classifier", "predict", "c.data", "c.cfg", "", "image000.png")
    told = run(folder, *words, "-gpus", "0,99")
    assert told.returncode == 1 and re.search("-gpus 0,99: (this build is for CPUs|GPUs found: )", told.stderr), told


def check_damaged(folder):
    """A JPEG that is cut off, or that libjpeg warns of, is named, whatever reads it."""
    whole = (Path(sys.argv[2]) / "data/eagle.jpg").read_bytes()
    for data, said in ((whole[:len(whole) // 2], 'image "cut.jpg" ends early: it is cut off'),
                       (whole[:-2] + bytes(40) + whole[-2:], 'image "cut.jpg" is damaged: ')):
        check_named(folder, data, said)


def check_named(folder, data, said):
    (folder / "cut.jpg").write_bytes(data)
    (folder / "cut.txt").write_text("0 .5 .5 .2 .2\n")
    (folder / "cut.list").write_text("cut.jpg\n" * 4)
    text = (folder / "toy.data").read_text()
    (folder / "cut.data").write_text(re.sub("(train|valid)=.*", r"\1=cut.list", text))
    cfg = (folder / "toy.cfg").read_text()
    for key in ("", "mixed_precision=1"):
        (folder / "cut.cfg").write_text(cfg.replace("[net]", "[net]\n" + key))
        for words in (("detector", "test", "cut.data", "cut.cfg", "toy.weights", "cut.jpg"),
                      ("detector", "map", "cut.data", "cut.cfg", "toy.weights"),
                      ("detector", "train", "cut.data", "cut.cfg")):
            told = run(folder, *words)
            assert told.returncode == 0 and told.stderr.count(said) == 1, told
            assert "Corrupt" not in told.stderr, told


def check_parts(folder):
    """Weights that end between layers are loaded with a warning, and so is what `partial` takes from other nets; oneoff
    writes the same with mixed precision."""
    for weights, words in (("part.weights", ("statistics", "toy.cfg", "part.weights")),
                           ("other.weights", ("partial", "toy.cfg", "other.weights", "out.weights", "1"))):
        told = run(folder, *words)
        assert told.returncode == 0 and f"warning: weights file {weights}" in told.stderr, told
    rng = random.Random(1)
    floats = [rng.uniform(-1, 1) for _ in range(11921 * 4)]  # biases, then 3 weights of each filter
    (folder / "one.weights").write_bytes(struct.pack("<3iq%df" % len(floats), 0, 2, 0, 0, *floats))
    for key in ("", "mixed_precision=1"):
        (folder / "one.cfg").write_text(ONEOFF.format(key=key))
        told = run(folder, "oneoff", "one.cfg", "one.weights", f"one{key}.out")
        assert told.returncode == 0, told
    assert (folder / "one.out").read_bytes() == (folder / "onemixed_precision=1.out").read_bytes()


def main():
    with tempfile.TemporaryDirectory() as root:
        folder = toyset.make(Path(root) / "set", max_batches=1)
        assert run(folder, "detector", "train", "toy.data", "toy.cfg").returncode == 0
        (folder / "backup/toy_final.weights").rename(folder / "toy.weights")
        (folder / "other.weights").write_bytes((folder / "toy.weights").read_bytes() + bytes(4))
        (folder / "one.tokens").write_text("a\n")
        (folder / "full.jpg").symlink_to("/dev/full")
        for name in ("set", "alone"):
            (folder / f"{name}.jpg").write_bytes((Path(sys.argv[2]) / "data/eagle.jpg").read_bytes())
        (folder / "set.txt").write_text("")
        (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0abc")
        first = (folder / "toy.cfg").read_text().replace("filters=14", "filters=16", 1).replace("classes=2", "classes=3", 1)
        (folder / "heads.cfg").write_text(first)
        (folder / "c.cfg").write_text(CLASSIFIER.format(keys=""))
        (folder / "linear.cfg").write_text(CLASSIFIER.format(keys="").replace("filters=2", "filters=2\nactivation=linear"))
        (folder / "c.data").write_text("classes=2\nvalid=train.txt\nlabels=c.labels\n")
        (folder / "c.labels").write_text("image\nzebra\n")
        nan = bytearray((folder / "toy.weights").read_bytes())
        nan[20:24] = struct.pack("<f", float("nan"))
        (folder / "nan.weights").write_bytes(nan)
        large = bytearray((folder / "toy.weights").read_bytes())
        large[20:] = struct.pack("<f", 1e30) * ((len(large) - 20) // 4)
        (folder / "large.weights").write_bytes(large)
        (folder / "c_large.weights").write_bytes(struct.pack("<3iq8f", 0, 2, 0, 0, *2 * [0.], *6 * [3e38]))
        os.mkfifo(folder / "a.pipe")
        (folder / "own.json").write_text('{"mine": 1}')
        (folder / "own.html").write_text("<!doctype html><title>mine</title>")
        (folder / "go.cfg").write_text(GO)
        (folder / "one.moves").write_bytes(MOVE)
        (folder / "rnn.cfg").write_text(RNN)
        check_missing(folder)
        check_refused(folder)
        check_right(folder)
        check_texts(folder)
        check_full(folder)
        check_names_on_stdin(folder)
        check_handles(folder)
        check_parts_whole(folder)
        check_gpus(folder)
        check_damaged(folder)
        check_parts(folder)


main()
