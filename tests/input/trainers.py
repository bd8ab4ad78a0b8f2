"""What Darknet's trainers other than the detector's are given: a good set of each trains and saves; with one thing
spoiled, status 1, the culprit named, and nothing trained or saved. With mixed_precision=1 and without, since Darknet
itself overruns its arrays, crashes, or trains nothing with status 0.

usage: trainers.py DARKNET
"""

import os
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

ONCE = dict(os.environ, GOMP_SPINCOUNT="1000")  # else the program starts itself again
KEYS = ("mixed_precision=1\nseed=1", "")
NET = "[net]\nbatch=4\nsubdivisions=1\nwidth=16\nheight=16\nchannels=3\nlearning_rate=0.01\nmax_batches=2\n"
LAYERS = {"classifier": "[convolutional]\nfilters=2\n[avgpool]\n[softmax]\n",
          "regressor": "[convolutional]\nfilters=3\n[avgpool]\n[cost]\n",
          "segmenter": "[convolutional]\nfilters=80\nstride=2\nsize=1\n[logistic]\n",
          "isegmenter": "[convolutional]\nfilters=82\nstride=2\nsize=1\n[iseg]\nclasses=80\nids=2\n",
          "rnn": "[gru]\noutput=8\n[connected]\noutput=256\nactivation=linear\n[softmax]\n",
          "yolo": "[connected]\noutput=32\nactivation=linear\n[detection]\nside=2\nnum=1\nclasses=3\ncoords=4\n",
          "super": "[convolutional]\nfilters=3\n[cost]\n",
          "tag": "[convolutional]\nfilters=5\n[avgpool]\n[cost]\n",
          "cifar": "[convolutional]\nfilters=10\n[avgpool]\n[softmax]\n",
          "go": "[convolutional]\nfilters=1\n[softmax]\n"}
DATA = "classes={classes}\ntrain=train.txt\nlabels=labels.txt\nbackup=backup\n"
CLASSES = {"classifier": 2, "regressor": 3}


def write_set(folder, trainer):
    for name in ("images", "mask", "labels", "backup"):
        (folder / name).mkdir(parents=True)
    rng = random.Random(1)
    images = [f"images/{i}_{('cat', 'dog')[i % 2]}.png" for i in range(4)]
    for image in images:
        toyset.write_image(folder / image, rng, 32)
    for image in images:  # as Darknet's rules for names have it: .png is no name of a mask's image
        jpg = image.replace(".png", ".jpg")
        (folder / image).with_suffix(".txt").unlink()
        (folder / image).rename(folder / jpg)
        text = Path(jpg.replace(".jpg", ".txt")).name
        (folder / "mask" / text).write_text("1 100,200,724\n0 0,50,974\n")
        (folder / "labels" / text).write_text("1\n" if trainer == "tagged" else ".5 .25 1e-3\n")
    (folder / "train.txt").write_text("".join(image.replace(".png", ".jpg") + "\n" for image in images))
    (folder / "labels.txt").write_text("cat\ndog\n")
    (folder / "text.txt").write_text("the cat sat on the mat. " * 50)
    (folder / "numbers.txt").write_text(" ".join(str(i % 200) for i in range(500)))
    (folder / "t.data").write_text(DATA.format(classes=CLASSES.get(trainer, 2)) + "tag=1\n" * (trainer == "tagged"))


def write_cfg(folder, trainer, key):
    net = NET.replace("width=16\nheight=16\nchannels=3", "inputs=256\ntime_steps=2") if trainer == "rnn" else NET
    layers = LAYERS["classifier" if trainer == "tagged" else trainer]
    (folder / "t.cfg").write_text(net + key + "\n" + layers)


def edit(name, old, new):
    def spoil(folder):
        text = (folder / name).read_text()
        assert old in text, (name, old)
        (folder / name).write_text(text.replace(old, new))
    return spoil


def write(name, text):
    return lambda folder: (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def cut(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-40])


def remove(name):
    return lambda folder: (folder / name).rmdir() if (folder / name).is_dir() else (folder / name).unlink()


def nan_weights(folder):
    floats = [0.] * 2 + [float("nan")] + [0.] * 5
    (folder / "n.weights").write_bytes(struct.pack("<3iq8f", 0, 2, 0, 0, *floats))


TEXT, TOKENS = ("-file", "text.txt", "-backup", "backup"), ("-file", "numbers.txt", "-tokenized", "-backup", "backup")
# 2x1, 24 bits.
NETPBM = b"P6\n2 1\n255\n" + bytes(6)
GOOD = (("classifier", ()), ("tagged", ()), ("regressor", ()), ("segmenter", ()), ("isegmenter", ()), ("rnn", TEXT),
        ("rnn", TOKENS))

# (trainer, how to spoil the set, words of the message, arguments)
CASES = (
    ("classifier", edit("t.cfg", "channels=3", "channels=1"), ["channels=1; allowed: 3", "grey"]),
    ("classifier", edit("t.cfg", "channels=3", "channels=4"), ["channels=4; allowed: 3"]),
    ("classifier", edit("t.cfg", "height=16", "height=24"), ["t.cfg:5: height=24; allowed: 16"]),
    ("classifier", edit("t.cfg", "filters=2", "filters=1000"), ["[softmax] takes 1000 truths", "loads 2, the `classes`"]),
    ("classifier", edit("t.data", "classes=2", "classes=1000"), ["2 labels; needed: 1000", "takes 2 truths", "loads 1000"]),
    ("classifier", write("labels.txt", "cat\n"), ["labels.txt: has 1 labels; needed: 2"]),
    ("classifier", write("labels.txt", "cat\ndog\ncow\n"), None, (), KEYS[:1], "labels.txt: has 3 labels; the first 2 count"),
    ("classifier", edit("t.cfg", "[net]", "[net]\nmax_crop=0"), ["t.cfg:2: max_crop=0", "allowed: above 0"]),
    ("classifier", edit("t.cfg", "[net]", "[net]\naspect=-1"), ["t.cfg:2: aspect=-1", "allowed: above 0"]),
    ("regressor", edit("t.cfg", "[net]", "[net]\nexposure=0"), ["t.cfg:2: exposure=0", "allowed: above 0"]),
    ("classifier", edit("t.cfg", "batch=4", "batch=5\nsubdivisions=2"), None, (), KEYS[1:], "t.cfg:3: subdivisions=2 in [net]: must divide batch=5"),
    ("classifier", edit("t.cfg", "[net]", "[net]\nmomentum=9"), None, (), KEYS[1:], "t.cfg:2: momentum=9 in [net]: allowed: at least 0"),
    ("regressor", edit("t.cfg", "learning_rate=0.01", "learning_rate=-.01"), None, (), KEYS[1:], "learning_rate=-.01 in [net]: allowed: at least 0"),
    ("regressor", edit("t.cfg", "[net]", "[net]\nburn_in=-5"), None, (), KEYS[1:], "t.cfg:2: burn_in=-5 in [net]: allowed: at least 0"),
    ("regressor", edit("t.cfg", "[net]", "[net]\nbatch=2"), None, (), KEYS[1:], "t.cfg:3: batch=4: given twice in [net]; line 2 counts"),
    ("classifier", nan_weights, ["n.weights: its number 3 is nan", "had diverged"], ("n.weights",), KEYS[1:]),
    ("classifier", write("labels.txt", "cat\ndog\r\n"), ["labels.txt:2: ", "carriage return"], (), KEYS[1:]),
    ("classifier", write("labels.txt", "cat\ndog\r\n"), None, (), KEYS[:1], "labels.txt:2: ends in a carriage return (Windows line end), which mixed_precision=1 leaves out"),
    ("classifier", edit("t.data", "classes=2", "classes=2\ntop=3"), None, (), KEYS[1:], "warning: t.data:2: top=3 of 2 classes: every image counts as right"),
    ("classifier", write("labels.txt", "\ndog\n"), ["labels.txt:1: ", "empty"]),
    ("classifier", write("labels.txt", "cat\n0_cat\n"), ["line 1: images/0_cat.jpg: holds two labels", "one is a part of the "
                                                         "other: take more of its images' paths"]),
    ("classifier", write("labels.txt", "cat\nimage\n"), ['line 1: images/0_cat.jpg: holds two labels, "cat" (line 1) '
                                                         'and "image" (line 2)', "_cat."]),
    ("classifier", write("labels.txt", "cat\ncat\n"), ['line 1: images/0_cat.jpg: its label "cat" is given twice, in lines 1 and 2']),
    ("classifier", write("labels.txt", "cat\ncow\n"), ["line 2: images/1_dog.jpg: holds no label"]),
    ("classifier", remove("labels.txt"), ["labels.txt: No such file"]),
    ("classifier", edit("t.data", "labels=", "leaves="), ["data/labels.list: No such file", "has no labels= line"]),
    ("classifier", remove("train.txt"), ["train.txt: No such file"]),
    ("classifier", write("train.txt", ""), ["train.txt: names no image"]),
    ("classifier", remove("images/3_dog.jpg"), ["line 4: images/3_dog.jpg: No such file"]),
    ("classifier", remove("t.data"), ["t.data: No such file"]),
    ("classifier", remove("t.cfg"), ["t.cfg: No such file"]),
    ("classifier", remove("backup"), ["backup", "No such file"]),
    ("classifier", edit("t.data", "classes", "claases"), ["claases", "classes"], (), KEYS[:1]),
    ("classifier", edit("t.data", "backup\n", "backup\ntree=t.tree\n"), ["t.tree"]),
    ("classifier", edit("t.cfg", "[softmax]\n", ""), ["no layer has a loss"]),
    ("classifier", edit("t.cfg", "[net]", "[net]\nrandom=1\nmin_ratio=1\nmax_ratio=1"), None),
    ("classifier", edit("t.cfg", "[avgpool]", "[connected]\noutput=2\n[dropout]"), None),
    ("classifier", lambda folder: (edit("t.cfg", "[net]", "[net]\nrandom=1")(folder),
                                   edit("t.cfg", "[avgpool]", "[connected]\noutput=2")(folder)),
     ["t.cfg:2: random=1 with [connected]"]),
    ("classifier", lambda folder: None, ["none.weights: No such file"], ("none.weights",)),
    ("tagged", write("labels/0_cat.txt", "2\n"), ["0_cat.txt: tag 2; allowed: whole numbers from 0 to 1"]),
    ("tagged", write("labels/1_dog.txt", "-1\n"), ["1_dog.txt: tag -1"]),
    ("tagged", remove("labels/1_dog.txt"), None),
    ("tagged", lambda folder: [path.unlink() for path in (folder / "labels").iterdir()], ["none of its images has a file of tags"]),
    ("classifier", edit("t.cfg", "[softmax]", "[softmax]\ngroups=2"), ["[softmax] of 2 numbers with groups=2", "leave groups out"]),
    ("classifier", lambda folder: (edit("t.cfg", "filters=2", "filters=1")(folder), write("labels.txt", "cat\n")(folder),
                                   edit("t.data", "classes=2", "classes=1")(folder)), ["[softmax] of 1 numbers", "[logistic]"]),
    ("tagged", write("labels/0_cat.txt", "0,1\n"), ["0_cat.txt: tag 0,1; allowed: whole numbers from 0 to 1"]),
    ("regressor", write("labels/0_cat.txt", "1 nan 2\n"), ['0_cat.txt: "nan"; allowed: finite numbers']),
    ("regressor", write("labels/0_cat.txt", "0,5 0,5 0,5\n"), ['0_cat.txt: "0,5"; allowed: finite numbers with blanks']),
    ("regressor", write("labels/0_cat.txt", "1 2 3 4\n"), ["0_cat.txt: holds 4 numbers; needed: 3"]),
    ("regressor", remove("labels/0_cat.txt"), ["line 1: labels/0_cat.txt: No such file"]),
    ("regressor", write("labels/0_cat.txt", "1 2\n"), ["0_cat.txt: holds 2 numbers; needed: 3"]),
    ("regressor", edit("t.data", "classes=3", "classes=4"), ["[cost] takes 3 truths", "loads 4"]),
    ("segmenter", edit("t.cfg", "filters=80", "filters=1"), ["[logistic] takes 64 truths", "loads 5120, 80 maps"]),
    ("segmenter", edit("t.cfg", "stride=2\nsize=1", "stride=3\nsize=1"), ["reads 16x16 and makes 6x6"]),
    ("segmenter", remove("mask/0_cat.txt"), ["line 1: mask/0_cat.txt: No such file"]),
    ("segmenter", write("mask/0_cat.txt", "80 5,5\n"), ["class 80; allowed: 0 to 79"]),
    ("segmenter", write("mask/0_cat.txt", "1 " + "1," * 20000 + "1\n"), ["more than 32787"]),
    ("segmenter", write("mask/0_cat.txt", "one 5,5\n"), ["not `class run,run,...`"]),
    ("segmenter", write("mask/0_cat.txt", "1 5,5\n\n2 0,5,x\n"), ["0_cat.txt: line 3, column 7: run \"x\"; allowed: whole"]),
    ("isegmenter", write("mask/0_cat.txt", "1 5,-5\n"), ["line 1, column 5: run \"-5\"; allowed: whole numbers, at least 0"]),
    ("segmenter", write("mask/0_cat.txt", "1 5,5 7\n"), ["0_cat.txt: line 2, column 1: a class without runs"]),
    ("isegmenter", write("mask/0_cat.txt", "1 10,1014\n2 10,99,916\n"),
     ["line 2, column 9: with this run of 916 the mask has 1025 pixels; allowed: 1024"]),
    ("segmenter", write("images/0_cat.jpg", NETPBM), ["mask/0_cat.txt: masks of an image that is neither JPEG, PNG nor BMP"]),
    ("segmenter", write("images/0_cat.jpg", "<html>"), ["images/0_cat.jpg: is an HTML or XML page"]),
    ("isegmenter", edit("t.cfg", "stride=2\nsize=1", "stride=3\nsize=1"), ["reads 16x16 and makes 6x6"]),
    ("isegmenter", write("mask/0_cat.txt", "80 5,5\n"), ["class 80; allowed: 0 to 79"]),
    ("isegmenter", write("mask/0_cat.txt", "1 0,5\n" * 95), None, (),
     KEYS, "1 images have more than 90 objects: the others, 5 in all, are not trained"),
    *((trainer, cut("images/0_cat.jpg"), None, (), KEYS[:1], 'image "images/0_cat.jpg" cannot be read or decoded: another one')
      for trainer in ("regressor", "segmenter", "isegmenter")),
    ("rnn", write("text.txt", "the cat\0sat"), ["text.txt:1: a zero byte, where Darknet's reading ends, after 7 bytes"], TEXT),
    ("rnn", write("text.txt", "the cat".encode("utf-16")), ["text.txt: is in UTF-16"], TEXT),
    ("rnn", write("text.txt", "\ufeffthe cat"), ["text.txt: begins with a UTF-8 byte-order mark"], TEXT),
    ("rnn", write("text.txt", "<!DOCTYPE html>"), ["text.txt: is an HTML page"], TEXT),
    ("rnn", write("numbers.txt", "1 2\n3 four 5"), ["numbers.txt:2: what is no whole number", "after 3 tokens"], TOKENS),
    ("rnn", remove("text.txt"), ["text.txt: No such file", "-file"], TEXT),
    ("rnn", write("text.txt", ""), ["text.txt: holds no text"], TEXT),
    ("rnn", write("text.txt", b"\0abc"), ["text.txt: holds no text"], TEXT),
    ("rnn", lambda folder: None, ["data/shakespeare.txt: No such file"], TEXT[2:]),
    ("rnn", write("numbers.txt", "one two"), ["holds no number"], TOKENS),
    ("rnn", write("numbers.txt", "1 256"), ["holds token 256", "0 to 255"], TOKENS),
    ("rnn", edit("t.cfg", "inputs=256", "inputs=100"), ["[softmax] takes 256 truths", "loads 100", "holds byte 116"], TEXT),
    ("rnn", edit("t.cfg", "max_batches=2", "max_batches=0"), ["max_batches=0: nothing to train"], TEXT),
    ("rnn", remove("backup"), ["backup", "No such file", "-backup DIR"], TEXT),
    ("rnn", lambda folder: None, ["/home/pjreddie/backup/", "-backup DIR"], TEXT[:2]),
    ("rnn", lambda folder: None, ["no value after -backup"], (*TEXT[:2], "-backup")),
    ("classifier", write("labels.txt", b"\xef\xbb\xbfcat\ndog\n"), ["labels file labels.txt: begins with a UTF-8"]),
    ("tagged", write("labels/0_cat.txt", "1\n".encode("utf-16")), ["labels/0_cat.txt: is in UTF-16"]),
    ("regressor", write("images/0_cat.jpg", "<html>"), ["images/0_cat.jpg: is an HTML or XML page"]),
    ("yolo", lambda folder: None, ["/data/voc/train.txt: No such file"], TEXT[2:]),
    ("yolo", edit("t.cfg", LAYERS["yolo"], LAYERS["yolo"].replace("=32", "=28").replace("coords=4", "coords=3")),
     ["[detection] takes 28 truths", "loads 32"], TEXT[2:]),
    ("yolo", edit("t.cfg", LAYERS["yolo"], LAYERS["classifier"]), ["needs [detection]", "detector train"], TEXT[2:]),
    ("super", lambda folder: None, ["[cost] takes 768 truths", "loads 12288", "imagenet1k.train.list"], TEXT[2:]),
    ("tag", lambda folder: None, ["/home/pjreddie/tag/train.list: No such file"], TEXT[2:]),
    ("tag", edit("t.cfg", "batch=4", "batch=3"), ["3 images in a pass", "1024"], TEXT[2:]),
    ("cifar", lambda folder: None, ["data/cifar/labels.txt: No such file", "data_batch_5.bin: No such file"], TEXT[2:]),
    ("go", lambda folder: None, ["none.moves: No such file", "loads 1083", "loads 363"], ("", "none.moves", *TEXT[2:])),
)


def train(folder, trainer, arguments):
    word = "classifier" if trainer == "tagged" else trainer
    data = ["t.data"] if word in ("classifier", "regressor", "segmenter", "isegmenter") else []
    done = subprocess.run([sys.argv[1], word, "train", *data, "t.cfg", *arguments], cwd=folder, capture_output=True,
                          text=True, timeout=1200, env=ONCE)
    backup = folder / "backup"
    return done, sorted(path.name for path in backup.iterdir()) if backup.is_dir() else []


def check(folder, trainer, spoil, words, arguments, key, warning=""):
    write_set(folder, trainer)
    write_cfg(folder, trainer, key)
    spoil(folder)
    done, saved = train(folder, trainer, arguments)
    said = (trainer, words, key, done.returncode, done.stdout[-500:], done.stderr[-3000:])
    if not words:
        assert warning in done.stderr, said
        assert done.returncode == 0 and any(name.endswith(".weights") for name in saved), said
        return
    assert done.returncode == 1 and not saved, said
    assert all(word in done.stderr for word in words), said
    assert "Loaded: " not in done.stdout and "avg" not in done.stderr, said


def main():
    with tempfile.TemporaryDirectory() as root:
        cases = [(trainer, lambda folder: None, None, arguments) for trainer, arguments in GOOD] + list(CASES)
        for i, (trainer, spoil, words, *more) in enumerate(cases):
            keys = more[1] if len(more) > 1 else KEYS if not words else KEYS[i % 2:][:1]  # in turn: it is one check
            for j, key in enumerate(keys):
                check(Path(root) / f"{i}-{j}", trainer, spoil, words, more[0] if more else (), key, *more[2:])


main()
