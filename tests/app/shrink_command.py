"""`darknet amp shrink`: the copy is what stock Darknet trains on, and what is refused leaves nothing behind.

usage: shrink_command.py DARKNET LIBDARKNET
"""

import base64
import os
import resource
import subprocess
import sys
import tempfile
import zlib
from ctypes import CDLL, POINTER, Structure, c_char_p, c_float, c_int
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset


def unpack(text):
    return zlib.decompress(base64.b64decode(text))


# 48 x 32, one red square on blue.
JPEG = unpack(
    "eNr7f+P/AwYBLzdPNwZGRgYGRiBk+H+bwZkhwNzGzcYowM3RLSo0IL7iRFNFXl7F1/U7J574TxwAGsIYGhVVkVnxuqnp9X/ywAEGQQ4GBQYD"
    "ZkYlBiZBRmZBxv9HGETBTkUBzEBhEQF0UQagqBgjI5pqZgaQIeKCjEAWChASTvx/i4GHmRFoFbMggz1DB3uGFtsdFSGGwwyegQqmmWoMifv/"
    "3wQAA++Jjg==")
# 24 x 16, a light square on grey, one channel.
GREY = unpack(
    "eNr7f+P/AwYBLzdPNwZGRgYGRiBk+H+bwZmBjYWVjZWFjY2VjZ2djYNLgIuLk5NLhI+fR0BcREJCXERMTEpWVV5KWllGTExBR0FZTV1TS1NS"
    "XtdAV8NAVUNT4/8BBm4OBgEGCUZGQYb/RxjkgYazMoIBAxQwMjEDLWHn4OTiBirYKsDAxMjMzMTCzMrKwgKUrQXKM7AIsgopGjqyCQcmsisV"
    "ihg1TlzIoey08aBo0MUPKsZJRU2cXGLiEpJSqmrqGppaJqZm5haWVs4urm7uHp5ewSGhYeERkVHJKalp6RmZWcUlpWXlFZVVzS2tbe0dnV2T"
    "Jk+ZOm36jJmzFi1esnTZ8hUrV23avGXrtu07du46dPjI0WPHT5w8denylavXrt+4eevho8dPnj57/uLlq4+fPn/5+u37j5+//t9i4AD5x57h"
    "83+Gtnus/xlarv92/6dmn/Rbfvp/Bh2bs7+/128x7N2/Vl6ohvs/A0f4t/I/PnW3v503/hdRWW2W+58h47n1fq9Hq7f+yH28/ofT/i31j2K/"
    "3d9WWf/p/umbm8t/q1ve/RX4Uf14/IdZ/xnS64/sfhOf/Nn+6f6Z++vuf3Mz3P51ndb+/zcBctCwdg==")
# 24 x 16, CMYK, which only Darknet's own decoder reads.
CMYK = unpack(
    "eNr7f+P/OwY+x5T8pFSGFAYQ+H+bwZmBjYWVjZWFjY2VjZ2djYNLgIuLk5NLhI+fR0BcREJCXERMTEpWVV5KWllGTExBR0FZTV1TS1NSXtdA"
    "V8NAVUNT4/8BBhEOBgEGCRZnQQZfQYZIQQZvQYb/RxjkGRgYWRnBgAEKGJmYgbaxc3BycQMVbBVgYGJkZmZiYWZlZWEBytYC5RlYBFmFFA0d"
    "2YQDE9mVCkWMGicu5FB22nhQNOjiBxXjpKImTi4xcQlJKVU1dQ1NLRNTM3MLSytnF1c3dw9Pr+CQ0LDwiMio5JTUtPSMzKziktKy8orKquaW"
    "1rb2js6uSZOnTJ02fcbMWYsWL1m6bPmKlas2bd6yddv2HTt3HTp85Oix4ydOnrp0+crVa9dv3Lz18NHjJ0+fPX/x8tXHT5+/fP32/cfPX/9v"
    "MfCxODP4MkQyeDMw2DP8Wranak/VvpWLujSQ0fr/NwHzZXgp")
# An APP1 marker: the right side is up, so that width and height change places.
TURN = b"\xff\xe1\0\x22Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
TURNED = JPEG[:2] + TURN + JPEG[2:]
SIDE = 20
TOLERANCE = 5  # of 255: what a JPEG of quality 95 may change in a picture without edges


def run(folder, *args, status=0, command="shrink", **options):
    done = subprocess.run([sys.argv[1], "amp", command, *map(str, args)], cwd=folder, capture_output=True, text=True,
                          **options)
    assert done.returncode == status, (args, done.returncode, done.stdout, done.stderr)
    return done


def darknet(folder, *args):
    done = subprocess.run([sys.argv[1], "detector", *map(str, args), "-nogpu"], cwd=folder, capture_output=True,
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
    jpegs = {"plain.jpg": JPEG, "deep/er/plain.jpg": JPEG, "deep/grey.jpg": GREY, "turned.jpg": TURNED,
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
    library = CDLL(sys.argv[2])
    library.load_image_color.argtypes = [c_char_p, c_int, c_int]
    library.load_image_color.restype = Image
    im = library.load_image_color(str(path).encode(), 0, 0)
    planes = [[[im.data[(c * im.h + y) * im.w + x] * 255 for x in range(im.w)] for y in range(im.h)]
              for c in range(3)]
    library.free_image.argtypes = [Image]
    library.free_image(im)
    return im.w, im.h, planes


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
    assert len(files) == 2 * len(SIZES) + 4, files


def check_shrinks(source, root):
    before = tree(source)
    told = run(source, "toy.data", "--side", SIDE, "--out", "../new/copy/")
    out = source / "../new/copy"
    assert told.stdout == f"9 images: {out}/toy.data\n", told.stdout
    assert not [line for line in told.stderr.splitlines() if "checking" not in line and "shrinking" not in line], told
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
    # The same files again, whatever the number of threads.
    run(source, "toy.data", "--side=70", f"--out={root / 'once'}", env={**os.environ, "OMP_NUM_THREADS": "1"})
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


# ---- what goes wrong ----

def check_refused(source, root):
    """Named, with status 1; and nothing was written."""
    before = tree(source)
    (root / "file").write_text("")
    full = root / "full"
    full.mkdir()
    (full / ".hidden").write_text("")
    new, data, side = root / "refused", source / "toy.data", ("--side", SIDE)
    for args, said in (((), "needed: DATA"), ((data,), "needed: --side N and --out DIR"),
                       ((data, *side), "needed: --side N and --out DIR"), ((data, "--out", new), "needed: --side N"),
                       ((data, "--side", 15, "--out", new), "--side 15: must be a whole number from 16 to 65500"),
                       ((data, "--side", 65501, "--out", new), "--side 65501: must be"),
                       ((data, "--side", -20, "--out", new), "--side -20: must be"),
                       ((data, "--side", "20px", "--out", new), "--side 20px: must be"),
                       ((data, "--side", "32.5", "--out", new), "--side 32.5: must be"),
                       ((data, "--sied", 20, "--out", new), "did you mean --side?"),
                       ((data, "more", *side, "--out", new), 'unexpected word "more"'),
                       ((root / "none.data", *side, "--out", new), "none.data"),
                       ((data, *side, "--out", ""), "needed: --side N and --out DIR"),
                       ((data, *side, "--out", full), f"--out {full}: is not empty"),
                       ((data, *side, "--out", root / "file"), f"--out {root}/file: Not a directory"),
                       ((data, *side, "--out", root / "my_images"), "Darknet would look for labels in"),
                       ((data, *side, "--out", root / "raw/x"), "allowed: a path without images"),
                       ((data, *side, "--out", root / "a.jpg"), "allowed: a path without images"),
                       ((data, *side, "--out", root / "two words"), "has a blank"),
                       ((data, *side, "--out", "x" * 5000), "is too long")):
        refused = run(root, *args, status=1)
        assert said in refused.stderr and not refused.stdout, (args, refused.stderr)
        assert not new.exists() and tree(full) == {full / ".hidden": b""}, args
    assert sorted(path.name for path in root.iterdir()) == ["file", "full", "set"], list(root.iterdir())
    assert tree(source) == before
    (root / "file").unlink()
    (full / ".hidden").unlink()
    full.rmdir()


def refuse_set(folder, *said):
    refused = run(folder, "toy.data", "--side", SIDE, "--out", "../refused", status=1)
    assert all(words in refused.stderr for words in (*said, "nothing was written\n")), (said, refused.stderr)
    assert not refused.stdout and not (folder / "../refused").exists(), said


def check_bad_sets(root):
    folder = toyset.make(root / "bad", images=0)
    data, good = folder / "toy.data", "classes=2\ntrain=train.txt\n"
    data.write_text(good)
    (folder / "train.txt").write_text("")
    refuse_set(folder, "names no image")
    add_image(folder, "a.jpg", JPEG)
    add_image(folder, "gone.jpg", JPEG)
    (folder / "images/gone.jpg").unlink()
    set_lists(folder, ["images/a.jpg", "images/gone.jpg"], ["images/none.jpg"])
    data.write_text(good + "valid=valid.txt\n")
    refuse_set(folder, "line 2: images/gone.jpg: No such file", "line 1: images/none.jpg: No such file")
    add_image(folder, "gone.jpg", JPEG, label="0 0.5 0.5 0.25\n")
    set_lists(folder, ["images/a.jpg", "images/gone.jpg"], [])
    data.write_text(good)
    refuse_set(folder, "labels/gone.txt:1: 4 fields, must be 5")
    # Both would be images/a.jpg, and already share labels.
    add_image(folder, "a.png", (30, 30))
    set_lists(folder, ["images/a.jpg", "images/a.png"], [])
    refuse_set(folder, "images/a.jpg and images/a.png: their copies would share the label file", "refused/labels/a.txt")
    # One image with two label files: Darknet trains on both, a copy could have one.
    (folder / "other").mkdir()
    (folder / "other/link").symlink_to(folder / "images")
    (folder / "other/labels").mkdir()
    (folder / "images/a.txt").write_text("1 0.5 0.5 0.25 0.25\n")
    set_lists(folder, ["images/a.jpg", "other/link/a.jpg"], [])
    refuse_set(folder, "images/a.jpg and other/link/a.jpg: their copies would share")
    set_lists(folder, ["images/a.jpg"], [])
    data.write_text(good + "names=none.names\n")
    refuse_set(folder, "names=none.names: No such file")
    data.write_text("classes=2\nbackup=backup\n")
    refuse_set(folder, "has neither train= nor valid=")


def check_no_folder(source):
    """Where nobody can make one, not even root."""
    refused = run(source, "toy.data", "--side", SIDE, "--out", "/proc/copy", status=1)
    assert "error: /proc/copy: cannot make the folder: " in refused.stderr, refused.stderr
    assert refused.stderr.endswith("nothing was written\n"), refused.stderr


def check_damaged(root):
    folder, out = toyset.make(root / "damaged", images=0), root / "damaged_copied"
    (folder / "toy.data").write_text("classes=2\ntrain=train.txt\n")
    cut = JPEG.index(b"\xff\xda") + 20  # a few blocks of the picture are left
    add_image(folder, "cut.jpg", JPEG[:cut])
    set_lists(folder, ["images/cut.jpg"], [])
    told = run(folder, "toy.data", "--side", SIDE, "--out", out)
    assert "warning: image images/cut.jpg is damaged: a part of its copy may be grey\n" in told.stderr, told.stderr
    assert load(out / "images/cut.jpg")[:2] == (20, 13)
    # No decoder makes an image of these: the copy is never finished.
    for name, content in (("head.jpg", JPEG[:100]), ("text.png", b"no image")):
        out = root / f"without_{name.split('.')[0]}"
        add_image(folder, name, content)
        set_lists(folder, [f"images/{name}"], [])
        refused = run(folder, "toy.data", "--side", SIDE, "--out", out, status=1)
        assert f'image "images/{name}" cannot be read or decoded' in refused.stderr, refused.stderr
        assert not (out / "toy.data").exists() and not refused.stdout


def check_full_disk(root):
    """A limit on the size of files, which stops writing in the middle as a full disk does."""
    folder = toyset.make(root / "disk", images=0)
    (folder / "toy.data").write_text("classes=2\ntrain=train.txt\n")
    add_image(folder, "a.jpg", GREY)
    set_lists(folder, ["images/a.jpg"] * 100, [])
    for side, size, said in ((SIDE, 100, "/images/a.jpg: cannot write: Output file write error"),
                             (70, 100, "/images/a.jpg: no copy of images/a.jpg: File too large"),
                             (70, 1000, "/train.list: cannot write: File too large")):
        out = root / f"limit-{side}-{size}"
        done = run(folder, "toy.data", "--side", side, "--out", out, status=1,
                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
        assert f"error: {out}{said}" in done.stderr, done.stderr
        assert f"{out}: {int(size == 1000)} of 1 images are there, and no data file; remove the folder" in done.stderr
        assert not (out / "toy.data").exists() and not done.stdout
    # Each file that is copied or written beside the images.
    long = "0 0.5 0.5 0.25 0.25\n" * 100
    for file, content, at, said in (("toy.names", "name\n" * 500, "names.list", "no copy of toy.names"),
                                    ("labels/a.txt", long, "labels/a.txt", f"no copy of {folder}/labels/a.txt"),
                                    ("valid.txt", "images/a.jpg\n" * 100, "valid.list", "cannot write"),
                                    ("toy.data", "train=train.txt\neval=" + "x" * 2000 + "\n", "toy.data", "cannot write")):
        (folder / "toy.data").write_text("classes=2\ntrain=train.txt\nvalid=valid.txt\nnames=toy.names\n")
        add_image(folder, "a.jpg", GREY)
        set_lists(folder, ["images/a.jpg"], [] if at == "toy.data" else ["images/a.jpg"])
        (folder / file).write_text(content)
        out = root / f"limit-{at.replace('/', '-')}"
        done = run(folder, "toy.data", "--side", 70, "--out", out, status=1,
                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)))
        assert f"error: {out}/{at}: {said}: File too large" in done.stderr and not done.stdout, done.stderr
        (folder / "toy.names").write_text("a\nb\n")
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.argv[1], "amp", "shrink", "toy.data", "--side", "70", "--out", root / "untold"],
                              cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "error: No space left on device\n" in done.stderr, done


def main():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        source = make(root / "set")
        check_refused(source, root)
        check_shrinks(source, root)
        check_small_ones_stay(source, root)
        check_what_may_be_absent(root)
        check_bad_sets(root)
        check_no_folder(source)
        check_damaged(root)
        check_full_disk(root)


main()
