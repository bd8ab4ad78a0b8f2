"""scripts/shrink: the copy is what stock Darknet trains on, and what fails leaves nothing behind.

usage: shrink.py ROOT DARKNET LIBDARKNET
"""

import base64
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from ctypes import CDLL, POINTER, Structure, c_char_p, c_float, c_int
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

SHRINK = Path(sys.argv[1], "scripts/shrink")
DARKNET, LIBRARY = sys.argv[2:]


def unpack(text):
    return zlib.decompress(base64.b64decode(text))


# 48 x 32, one red rectangle on blue, in a corner.
JPEG = unpack(
    "eNr7f+P/AwYBLzdPNwZGRgYGRiBk+H+bwZmBjYWVjZWFjY2VjZ2djYNLgIuLk5NLhI+fR0BcREJCXERMTEpWVV5KWllGTExBR0FZTV1TS1NSXtdA"
    "V8NAVUNTA2QIIzs7OxcHlzAXl7CGlJiUBsng/wEGQQ4GBQYDZkYlBiZBRmZBxv9HGCSAjmQGuhMJMLOwsgNltAWAwkys3KwIGUEhoJywIyOTiKii"
    "kolzcmFj06KNBx+CjGHEMIYJ6FugjLwgAyMzC7IcIwMT0BhBQzZFR6X/txh4gHJMgsyCDPYMz6dm2/1rNpv0LeJ4ysbju2JDr337tzZyjqj8/Dmr"
    "NWMqVU9J7UzqizFdVyBr7jCnYvu1e4bZ8/okU7r1iqP8L29zUL/aGrsqY1P+WZOCps1+t5782jez92nTqqjTNcXnih7Pmdc2x7173ictj4x1Ro4M"
    "h90MrK0z7L5vatAT1WJQAsH/NwEzHGrb")
# 24 x 16, a light square on grey, one channel.
GREY = unpack(
    "eNr7f+P/AwYBLzdPNwZGRgYGRiBk+H+bwZmBjYWVjZWFjY2VjZ2djYNLgIuLk5NLhI+fR0BcREJCXERMTEpWVV5KWllGTExBR0FZTV1TS1NS"
    "XtdAV8NAVUNT4/8BBm4OBgEGCUZGQYb/RxjkgYazMoIBAxQwMjEDLWHn4OTiBirYKsDAxMjMzMTCzMrKwgKUrQXKM7AIsgopGjqyCQcmsisV"
    "ihg1TlzIoey08aBo0MUPKsZJRU2cXGLiEpJSqmrqGppaJqZm5haWVs4urm7uHp5ewSGhYeERkVHJKalp6RmZWcUlpWXlFZVVzS2tbe0dnV2T"
    "Jk+ZOm36jJmzFi1esnTZ8hUrV23avGXrtu07du46dPjI0WPHT5w8denylavXrt+4eevho8dPnj57/uLlq4+fPn/5+u37j5+//t9i4AD5x57h"
    "83+Gtnus/xlarv92/6dmn/Rbfvp/Bh2bs7+/128x7N2/Vl6ohvs/A0f4t/I/PnW3v503/hdRWW2W+58h47n1fq9Hq7f+yH28/ofT/i31j2K/"
    "3d9WWf/p/umbm8t/q1ve/RX4Uf14/IdZ/xnS64/sfhOf/Nn+6f6Z++vuf3Mz3P51ndb+/zcBctCwdg==")
# 24 x 16, CMYK.
CMYK = unpack(
    "eNr7f+P/OwY+x5T8pFSGFAYQ+H+bwZmBjYWVjZWFjY2VjZ2djYNLgIuLk5NLhI+fR0BcREJCXERMTEpWVV5KWllGTExBR0FZTV1TS1NSXtdA"
    "V8NAVUNT4/8BBhEOBgEGCRZnQQZfQYZIQQZvQYb/RxjkGRgYWRnBgAEKGJmYgbaxc3BycQMVbBVgYGJkZmZiYWZlZWEBytYC5RlYBFmFFA0d"
    "2YQDE9mVCkWMGicu5FB22nhQNOjiBxXjpKImTi4xcQlJKVU1dQ1NLRNTM3MLSytnF1c3dw9Pr+CQ0LDwiMio5JTUtPSMzKziktKy8orKquaW"
    "1rb2js6uSZOnTJ02fcbMWYsWL1m6bPmKlas2bd6yddv2HTt3HTp85Oix4ydOnrp0+crVa9dv3Lz18NHjJ0+fPX/x8tXHT5+/fP32/cfPX/9v"
    "MfCxODP4MkQyeDMw2DP8Wranak/VvpWLujSQ0fr/NwHzZXgp")
TIFF = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0%c\0\0\0\0\0\0"  # EXIF that says which side is up


def turned(orientation, before=b""):
    return JPEG[:2] + before + b"\xff\xe1\0\x22Exif\0\0" + TIFF % orientation + JPEG[2:]


SIDE = 20
TOLERANCE = 5  # of 255: what a JPEG of quality 95 may change in a picture without edges
EDGES = 40  # and in one with edges


def run(folder, *args, status=0, **options):
    done = subprocess.run([SHRINK, *map(str, args)], cwd=folder, capture_output=True, text=True, **options)
    assert done.returncode == status, (args, done.returncode, done.stdout, done.stderr)
    return done


def darknet(folder, *args):
    done = subprocess.run([DARKNET, "detector", *map(str, args), "-nogpu"], cwd=folder, capture_output=True,
                          text=True)
    assert done.returncode == 0, (args, done.returncode, done.stderr[-3000:])
    return done.stdout + done.stderr


# ---- a set with images of all kinds ----

def colour(w, h, x, y):
    """Of a picture whose channels differ, without edges."""
    return 40 + 150 * x // w, 200 - 120 * y // h, 90 + 80 * (x + y) // (w + h)


def write_png(path, w, h):
    toyset.write_png(path, w, h, bytes(v for y in range(h) for x in range(w) for v in colour(w, h, x, y)))


# The copy's size with SIDE.
SIZES = {"plain.jpg": (20, 13), "deep/er/plain.jpg": (20, 13), "deep/grey.jpg": (20, 13), "turned.jpg": (13, 20),
         "deep/cmyk.JPG": (20, 13), "wide.png": (20, 9), "thin.png": (1, 20), "deep/fits.png": (20, 15),
         "deep/name.with.dots.png": (20, 19)}
PNGS = {"wide.png": (50, 23), "thin.png": (1, 70), "deep/fits.png": (20, 15), "deep/name.with.dots.png": (33, 31)}


def add_image(folder, name, content, label="0 0.5 0.5 0.25 0.25\n"):
    path = folder / "images" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, tuple):
        write_png(path, *content)
    else:
        path.write_bytes(content)
    labels = (folder / "labels" / name).with_suffix(".txt")
    labels.parent.mkdir(parents=True, exist_ok=True)
    labels.write_bytes(label.encode())


def set_lists(folder, train, valid):
    (folder / "train.txt").write_text("".join(f"{path}\n" for path in train))
    (folder / "valid.txt").write_text("".join(f"{path}\n" for path in valid))


def make(folder):
    toyset.make(folder, images=0, net_keys="")
    jpegs = {"plain.jpg": JPEG, "deep/er/plain.jpg": JPEG, "deep/grey.jpg": GREY, "turned.jpg": turned(6),
             "deep/cmyk.JPG": CMYK}
    for i, (name, content) in enumerate({**jpegs, **PNGS}.items()):
        label = f"{i % 2} 0.5 0.25 0.125 0.25\r\n1 .3 .3 0 0" if i else ""  # blanks and ends of lines stay
        add_image(folder, name, content, label)
    # Both kinds of paths, an image twice in a list, by two ways, and in both lists.
    names = list(SIZES)
    set_lists(folder, [f"images/{name}" for name in names[:6]] + [folder / "images/deep/../plain.jpg",
                                                                  folder / "images/plain.jpg"],
              [folder / "images" / name for name in names[5:]])
    (folder / "toy.data").write_text("classes = 2\ntrain = train.txt\nvalid=valid.txt\nnames=toy.names\n"
                                     "backup=backup\n# a remark\neval=coco\n")
    return folder


# ---- what stock Darknet reads ----

class Image(Structure):
    _fields_ = [("w", c_int), ("h", c_int), ("c", c_int), ("data", POINTER(c_float))]


def load(path):
    """Width, height, and bytes as [channel][y][x]."""
    library = CDLL(LIBRARY)
    library.load_image_color.argtypes = [c_char_p, c_int, c_int]
    library.load_image_color.restype = Image
    im = library.load_image_color(str(path).encode(), 0, 0)
    planes = [[[im.data[(c * im.h + y) * im.w + x] * 255 for x in range(im.w)] for y in range(im.h)]
              for c in range(3)]
    library.free_image.argtypes = [Image]
    library.free_image(im)
    return im.w, im.h, planes


def check_same(path, original):
    """Darknet sees nearly the same in both."""
    ours, its = load(path), load(original)
    assert ours[:2] == its[:2], (path, ours[:2], its[:2])
    for one, two in zip(ours[2], its[2]):
        for row, other in zip(one, two):
            assert all(abs(a - b) <= EDGES for a, b in zip(row, other)), (path, row, other)


def parts(length, to, i):
    """[(pixel, share of it)] that pixel i of `to` covers."""
    low, high = i * length / to, (i + 1) * length / to
    return [(x, min(high, x + 1) - max(low, x)) for x in range(int(low), length) if x < high]


def check_pixels(path, from_w, from_h):
    w, h, planes = load(path)
    for c in range(3):
        for y in range(h):
            for x in range(w):
                mean = sum(a * b * colour(from_w, from_h, i, j)[c] for i, a in parts(from_w, w, x)
                           for j, b in parts(from_h, h, y)) * w * h / (from_w * from_h)
                assert abs(planes[c][y][x] - mean) <= TOLERANCE, (path, c, x, y, planes[c][y][x], mean)


def copy_of(folder, name):
    return folder / "images" / Path(name).with_suffix(".jpg")


def tree(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def lines(path):
    return path.read_text().splitlines()


def check_copy(source, out):
    for name, size in SIZES.items():
        copy = copy_of(out, name)
        assert load(copy)[:2] == size, (name, load(copy)[:2])
        assert b"Exif" not in copy.read_bytes(), "Darknet would turn it once more"
        label = Path("labels", name).with_suffix(".txt")
        assert (out / label).read_bytes() == (source / label).read_bytes(), name
    for name, size in PNGS.items():
        check_pixels(copy_of(out, name), *size)
    names = list(SIZES)
    assert lines(out / "train.list") == [str(copy_of(out, name)) for name in (*names[:6], names[0], names[0])]
    assert lines(out / "valid.list") == [str(copy_of(out, name)) for name in names[5:]]
    assert (out / "names.list").read_bytes() == (source / "toy.names").read_bytes()
    assert (out / "toy.data").read_text() == (f"classes=2\ntrain={out}/train.list\nvalid={out}/valid.list\n"
                                              f"names={out}/names.list\nbackup={out}/backup\neval=coco\n")
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) == 2 * len(SIZES) + 4 and not (out / ".unfinished").exists(), files


def check_shrinks(source, root):
    before = tree(source)
    told = run(source, "toy.data", "--side", SIDE, "--out", "../new/copy/")
    out = source / "../new/copy"
    assert told.stdout == f"9 images: {out}/toy.data\n" and not told.stderr, told
    assert tree(source) == before, "the set itself was changed"
    check_copy(source, out)
    # With no key of ours the training is Darknet's own, which needs nothing but the data file.
    assert ", 12 images\n" in darknet(root, "train", out / "toy.data", source / "toy.cfg")
    said = darknet(root, "map", out / "toy.data", source / "toy.cfg", out / "backup/toy_final.weights")
    assert f"  images        4 from {out}/valid.list\n" in said, said


def check_small_ones_stay(source, root):
    """Upright JPEGs that are small enough keep every byte; others become JPEGs of the same size."""
    out = root / "same"
    out.mkdir()  # empty: allowed
    run(source, "toy.data", "--side=70", f"--out={out}")
    for name in ("plain.jpg", "deep/er/plain.jpg", "deep/grey.jpg"):
        assert copy_of(out, name).read_bytes() == (source / "images" / name).read_bytes(), name
    assert load(copy_of(out, "turned.jpg"))[:2] == (32, 48)
    assert load(copy_of(out, "deep/cmyk.JPG"))[:2] == (24, 16)
    for name, size in PNGS.items():
        assert load(copy_of(out, name))[:2] == size
        check_pixels(copy_of(out, name), *size)
    check_same(copy_of(out, "deep/cmyk.JPG"), source / "images/deep/cmyk.JPG")
    # The same files again, whatever the number of processes.
    run(source, "toy.data", "-side=70", f"-out={root / 'once'}",
        preexec_fn=lambda: os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1]))
    for name in SIZES:
        assert copy_of(out, name).read_bytes() == copy_of(root / "once", name).read_bytes(), name


def check_what_may_be_absent(root):
    """names=, valid= and backup= of a data file; the copy has a folder for the weights all the same."""
    source = toyset.make(root / "few", images=2)
    (source / "toy.data").write_text(f"classes=2\ntrain={source}/train.txt\n")
    run(source, "toy.data", "--side", SIDE, "--out", root / "few_copied")
    out = root / "few_copied"
    assert (out / "toy.data").read_text() == f"classes=2\ntrain={out}/train.list\nbackup={out}/backup\n"
    assert (out / "backup").is_dir() and not (out / "names.list").exists() and not (out / "valid.list").exists()
    assert lines(out / "train.list") == [f"{out}/images/image000.jpg", f"{out}/images/image001.jpg"]


def chunk(name, data):
    return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")


def check_seen_as_darknet_does(root):
    """Which side is up, and more than 8 bits."""
    folder, out = toyset.make(root / "turned", images=0), root / "turned_copied"
    (folder / "toy.data").write_text("classes=2\ntrain=train.txt\n")
    images = {f"{n}.jpg": turned(n) for n in range(10)}  # 0 and 9 mean nothing
    images["second.jpg"] = turned(6, before=b"\xff\xe1\0\x10not EXIF data!")  # only the first such marker counts
    write_png(folder / "flat.png", 24, 16)
    flat = (folder / "flat.png").read_bytes()
    images["turned.png"] = flat[:33] + chunk(b"eXIf", TIFF % 8) + flat[33:]
    rows = b"".join(b"\0" + b"".join((256 * (10 * x + y)).to_bytes(2, "big") for x in range(24)) for y in range(16))
    images["deep.png"] = (flat[:8] + chunk(b"IHDR", bytes((0, 0, 0, 24, 0, 0, 0, 16, 16, 0, 0, 0, 0)))
                          + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    for name, content in images.items():
        add_image(folder, name, content)
    set_lists(folder, [f"images/{name}" for name in images], [])
    run(folder, "toy.data", "--side", 70, "--out", out)
    for name in images:
        check_same(copy_of(out, name), folder / "images" / name)
    assert len({str(load(folder / f"images/{n}.jpg")) for n in range(1, 9)}) == 8, "ways that look the same"


def check_averages(root):
    """A fine pattern becomes what it looks like from afar, not some of its pixels."""
    folder, out = toyset.make(root / "fine", images=0), root / "fine_copied"
    (folder / "toy.data").write_text("train=train.txt\n")
    add_image(folder, "fine.png", b"")
    toyset.write_png(folder / "images/fine.png", 64, 64, bytes(v for y in range(64) for x in range(64)
                                                               for v in [255 * ((x + y) % 2)] * 3))
    set_lists(folder, ["images/fine.png"], [])
    run(folder, "toy.data", "--side", 20, "--out", out)
    w, h, planes = load(out / "images/fine.jpg")
    assert (w, h) == (20, 20) and all(abs(v - 127.5) <= EDGES for plane in planes for row in plane for v in row), planes


# ---- what goes wrong ----

def check_refused(source, root):
    """Named, with status 1; and nothing was written."""
    before = tree(source)
    (root / "file").write_text("")
    full = root / "full"
    full.mkdir()
    (full / ".hidden").write_text("")
    new, data, side = root / "refused", source / "toy.data", ("--side", SIDE)
    for args, said in (((), "required: DATA, --side/-side, --out"), ((data, *side), "required: --out"),
                       ((data, "--side", 15, "--out", new), "--side 15: must be a whole number from 16 to 65500"),
                       ((data, "--side", 65501, "--out", new), "--side 65501: must be"),
                       ((data, "--side", "20px", "--out", new), "--side 20px: must be"),
                       ((data, "--side", "32.5", "--out", new), "--side 32.5: must be"),
                       ((data, *side, "--out", new, "--sied", 20), "unrecognized arguments: --sied 20"),
                       ((root / "none.data", *side, "--out", new), f"{root}/none.data: No such file"),
                       ((data, *side, "--out", ""), "--out has no value"),
                       ((data, *side, "--out", full), f"--out {full}: is not empty"),
                       ((data, *side, "--out", root / "file"), f"{root}/file: Not a directory"),
                       ((data, *side, "--out", root / "my_images"), "Darknet would look for labels in"),
                       ((data, *side, "--out", root / "raw/x"), "allowed: a path without images"),
                       ((data, *side, "--out", root / "a.jpg"), "allowed: a path without images"),
                       ((data, *side, "--out", root / "two words"), "has a blank"),
                       ((data, *side, "--out", "x" * 5000), "File name too long")):
        refused = run(root, *args, status=1)
        assert refused.stderr.startswith("error: ") and said in refused.stderr, (args, refused.stderr[-500:])
        assert refused.stderr.count("\n") == 1 and not refused.stdout, (args, refused)
        assert not new.exists() and tree(full) == {full / ".hidden": b""}, args
    assert sorted(path.name for path in root.iterdir()) == ["file", "full", "set"], list(root.iterdir())
    assert tree(source) == before
    # Where nobody can make a folder, not even root.
    assert run(source, data, *side, "--out", "/proc/copy", status=1).stderr.startswith("error: /proc/copy: ")
    for side in (16, 65500):
        assert "none.data: No such file" in run(root, "none.data", "--side", side, "--out", new, status=1).stderr
    (root / "file").unlink()
    (full / ".hidden").unlink()
    full.rmdir()


def refuse_set(folder, *said):
    refused = run(folder, "toy.data", "--side", SIDE, "--out", "../refused", status=1)
    assert all(words in refused.stderr for words in said), (said, refused.stderr)
    assert not refused.stdout and not (folder / "../refused").exists(), said


def check_bad_sets(root):
    folder = toyset.make(root / "bad", images=0)
    data, good = folder / "toy.data", "classes=2\ntrain=train.txt\n"
    data.write_text(good)
    (folder / "train.txt").write_text("")
    refuse_set(folder, "train.txt: names no image")
    add_image(folder, "a.jpg", JPEG)
    add_image(folder, "gone.jpg", JPEG)
    set_lists(folder, ["images/a.jpg", "images/gone.jpg"], ["images/none.jpg"])
    (folder / "labels/gone.txt").unlink()
    refuse_set(folder, "train.txt: line 2: labels/gone.txt: no file that can be read")
    (folder / "images/gone.jpg").unlink()
    refuse_set(folder, "train.txt: line 2: images/gone.jpg: no file that can be read")
    data.write_text("classes=2\nvalid=valid.txt\n")
    refuse_set(folder, "valid.txt: line 1: images/none.jpg: no file")
    for line in ("", "images/a.jpg\r", "images/a.jp\0", "images/a.gif"):
        set_lists(folder, ["images/a.jpg", line], [line])
        refuse_set(folder, "valid.txt: line 1: ")
    # Both would be images/a.jpg, and already share labels.
    data.write_text(good)
    add_image(folder, "a.png", (30, 30))
    set_lists(folder, ["images/a.jpg", "images/a.png"], [])
    refuse_set(folder, "images/a.jpg and images/a.png: their copies would share the label file labels/a.txt")
    # One image with two label files: Darknet trains on both, a copy could have one.
    (folder / "other").mkdir()
    (folder / "other/link").symlink_to(folder / "images")
    (folder / "other/labels").mkdir()
    (folder / "images/a.txt").write_text("1 0.5 0.5 0.25 0.25\n")
    set_lists(folder, ["images/a.jpg", "other/link/a.jpg"], [])
    refuse_set(folder, "images/a.jpg and other/link/a.jpg: their copies would share")
    set_lists(folder, ["images/a.jpg"], [])
    for text, said in ((good + "names=none.names\n", "none.names: No such file"),
                       ("classes=2\nbackup=backup\n", "has neither train= nor valid="),
                       ("classes=2\r\n", "toy.data:1: must be KEY=VALUE"), ("a=1\nclasses\n", "toy.data:2: must be")):
        data.write_text(text)
        refuse_set(folder, said)


def check_damaged(root):
    folder, out = toyset.make(root / "damaged", images=0), root / "damaged_copied"
    (folder / "toy.data").write_text("classes=2\ntrain=train.txt\n")
    cut = JPEG.index(b"\xff\xda") + 20  # a few blocks of the picture are left
    add_image(folder, "cut.jpg", JPEG[:cut])
    set_lists(folder, ["images/cut.jpg"], [])
    warning = "warning: image images/cut.jpg is damaged: a part of its copy may be grey\n"
    said = run(folder, "toy.data", "--side", SIDE, "--out", out).stderr
    assert said == warning, said
    assert load(out / "images/cut.jpg")[:2] == (20, 13)
    run(folder, "toy.data", "--side", 70, "--out", root / "damaged_same")
    check_same(root / "damaged_same/images/cut.jpg", folder / "images/cut.jpg")
    for name, content in (("head.jpg", JPEG[:100]), ("text.png", b"no image")):
        add_image(folder, name, content)
        set_lists(folder, ["images/cut.jpg", f"images/{name}"], [])
        refuse_set(folder, f"error: image images/{name} cannot be decoded: ")


def check_full_disk(root):
    """A limit on the size of files, which stops writing in the middle as a full disk does."""
    folder, out = toyset.make(root / "disk", images=0), root / "limit"
    good, long = "classes=2\ntrain=train.txt\nvalid=valid.txt\nnames=toy.names\n", "0 0.5 0.5 0.25 0.25\n" * 100
    for file, content, at in (("images/a.jpg", GREY, "images/a.jpg"), ("labels/a.txt", long.encode(), "labels/a.txt"),
                              ("toy.names", b"name\n" * 500, "names.list"),
                              ("valid.txt", b"images/a.jpg\n" * 100, "valid.list"),
                              ("toy.data", f"{good}eval={'x' * 2000}\n".encode(), "toy.data")):
        limit = 100 if at == "images/a.jpg" else 1000
        (folder / "toy.data").write_text(good)
        (folder / "toy.names").write_text("a\nb\n")
        add_image(folder, "a.jpg", GREY)
        set_lists(folder, ["images/a.jpg"], ["images/a.jpg"])
        (folder / file).write_bytes(content)
        for there in (False, True):  # a folder of the user's stays, and is empty
            if there:
                out.mkdir()
            done = run(folder, "toy.data", "--side", 70, "--out", out, status=1,
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
            assert done.stderr == f"error: {out}/.unfinished/{at}: cannot write: File too large\n", done.stderr
            assert not done.stdout and out.exists() == there and not tree(out), done
        out.rmdir()
    (folder / "toy.data").write_text(good)
    with open("/dev/full", "w") as full:
        done = subprocess.run([SHRINK, "toy.data", "--side", "70", "--out", root / "untold"], cwd=folder, stdout=full,
                              stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and done.stderr == "error: No space left on device\n", done


def check_stopped(root):
    """By a signal, and by files of others in DIR, while images are decoded that take their time."""
    folder, out = toyset.make(root / "slow", images=0), root / "stopped"
    (folder / "toy.data").write_text("classes=2\ntrain=train.txt\n")
    black = chunk(b"IDAT", zlib.compress(bytes(3000 * 9001), 1))
    slow = (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", (3000).to_bytes(4, "big") * 2 + bytes((8, 2, 0, 0, 0))) + black
            + chunk(b"IEND", b""))
    for i in range(8):
        add_image(folder, f"{i}.png", slow)
    set_lists(folder, [f"images/{i}.png" for i in range(8)], [])
    for number in (signal.SIGTERM, signal.SIGINT, None):
        with subprocess.Popen([SHRINK, "toy.data", "--side", "20", "--out", out], cwd=folder, stderr=subprocess.PIPE,
                              text=True) as running:
            while not (out / ".unfinished").exists():
                assert running.poll() is None, running.stderr.read()
                time.sleep(.01)
            if number:
                running.send_signal(number)
            else:
                (out / "toy.data").write_text("mine")
            said = running.stderr.read()
        assert running.returncode == 1, (number, running.returncode, said)
        if number:
            assert said == "error: stopped\n" and not out.exists(), (number, said)
        else:
            assert "other files came" in said and tree(out) == {out / "toy.data": b"mine"}, said


def main():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        source = make(root / "set")
        check_refused(source, root)
        check_shrinks(source, root)
        check_small_ones_stay(source, root)
        check_what_may_be_absent(root)
        check_seen_as_darknet_does(root)
        check_averages(root)
        check_bad_sets(root)
        check_damaged(root)
        check_full_disk(root)
        check_stopped(root)


main()
