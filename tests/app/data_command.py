"""`darknet amp data`: counts of sets that are known, planted anchors, what the sheet shows, and what is refused.

usage: data_command.py ROOT DARKNET
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT, DARKNET = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
sys.path.insert(0, str(ROOT / "tests"))
import classset
import toyset

SEED = int(os.environ.get("AMP_TEST_SEED", "1"))
SIDE = 32  # of the network; its heads have 4x4 and 8x8 cells
PLANTED = [(4, 6), (9, 8), (14, 10), (25, 20)]  # pixels of the network, by area
TILE = 192  # of the sheet: images of 32 pixels are enlarged 6 times
COLOURS = [(255, 0, 255), (127, 255, 0)]  # in which Darknet draws the boxes of two classes


def run(folder, *words, status=0):
    done = subprocess.run([DARKNET, "amp", "data", *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == status, (words, done.returncode, done.stdout[-2000:], done.stderr[-4000:])
    return done


def look(folder, *words):
    """What it says, and the JSON that it writes."""
    said = run(folder, *words, "--json", "data.json").stdout
    return said, json.loads((folder / "data.json").read_text())


def make(folder, lists, size=(64, 64), keys="", edit=lambda cfg: cfg):
    """A set of these images; lists: of each list the boxes (class, w, h in pixels of the network) of each image."""
    toyset.make(folder, net_keys=keys)
    for path in folder.glob("image*"):
        path.unlink()
    rng = random.Random(SEED)
    for name, images in lists.items():
        paths = [folder / f"{name}{i:03d}.png" for i in range(len(images))]
        for path, boxes in zip(paths, images):
            toyset.write_png(path, *size, bytes(rng.randrange(256) for _ in range(3)) * (size[0] * size[1]))
            path.with_suffix(".txt").write_text("".join(
                f"{kind} .5 .5 {w / SIDE!r} {h / SIDE!r}\n" for kind, w, h in boxes))
        (folder / f"{name}.txt").write_text("".join(f"{path}\n" for path in paths))
    data = folder / "toy.data"
    data.write_text(re.sub(r"valid=.*", "valid=valid.txt" if "valid" in lists else "", data.read_text()))
    cfg = folder / "toy.cfg"
    cfg.write_text(edit(cfg.read_text()))
    return folder


# ---- counts ----


def check_counts(root):
    rng = random.Random(SEED)
    train = [[(rng.randrange(2), *rng.choice(PLANTED)) for _ in range(rng.choice((1, 2, 5, 9)))] for _ in range(30)]
    train[3], train[7] = [], []
    valid = [[(0, .5, 8), (0, 3, 3), (1, 3, 5)], [(1, 8, 8)], [(0, 9, 9)], [(0, 9, 9)]]
    folder = make(root / "counted", {"train": train, "valid": valid})
    shutil.copy(folder / "train004.png", folder / "train010.png")
    shutil.copy(folder / "train004.png", folder / "train020.png")
    shutil.copy(folder / "train002.png", folder / "valid001.png")
    shutil.copy(folder / "valid002.png", folder / "valid003.png")
    before = sorted(folder.iterdir())
    said, found = look(folder, "toy.data", "toy.cfg")
    assert sorted(folder.iterdir()) == sorted([*before, folder / "data.json"])
    boxes = sum(train, [])
    numbers = sorted(len(image) for image in train)
    groups = [sum(low <= n <= high for n in numbers) for low, high in
              ((0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 31), (32, 63), (64, 10**9))]
    expected = {"list": str(folder / "train.txt"), "images": 30, "copies": 2, "unsized": 0, "without_a_box": 2,
                "without_a_label_file": 0, "boxes": len(boxes), "without_area": 0, "of_no_class": 0, "below_pixel": 0,
                "below_cell": 0,
                "boxes_an_image": {"least": 0, "median": numbers[15], "most": numbers[-1], "groups": groups},
                "per_class": [{"name": name, "boxes": sum(box[0] == kind for box in boxes),
                               "images": sum(any(box[0] == kind for box in image) for image in train)}
                              for kind, name in enumerate(("red", "blue"))]}
    assert found["train"] == expected, (found["train"], expected)
    valid_found = {key: found["valid"][key] for key in ("images", "copies", "boxes", "below_pixel", "below_cell")}
    assert valid_found == {"images": 4, "copies": 1, "boxes": 6, "below_pixel": 1, "below_cell": 1}, found["valid"]
    assert found["in_both"] == 1 and found["classes"] == 2 and found["kind"] == "detector", found
    same = {(Path(pair["image"]).stem, Path(pair["as"]).stem) for pair in found["same_bytes"]}
    assert same == {("train010", "train004"), ("train020", "train004"), ("valid001", "train002"),
                    ("valid003", "valid002")}, same
    assert found["image_sizes"] == [{"width": 64, "height": 64, "images": 34}], found["image_sizes"]
    for line in ("images 30 4", "with the bytes of an earlier one 2 1", "without a box 2 0",
                 f"boxes {len(boxes)} 6", "below a pixel at its size 0 1", "below the finest cell, 4x4 0 1",
                 "image sizes (1): 64x64 (34)"):
        assert any(" ".join(row.split()) == line for row in said.splitlines()), (line, said)
    assert "images of valid= that train= has, too: 1." in said and "Anchors" not in said, said
    assert said.endswith("\nAll that `detector train` looks at before it starts is fine.\n"), said
    check_without_cfg(folder, found)


def check_without_cfg(folder, found):
    """The same counts; sizes are fractions of the images."""
    said, alone = look(folder, "toy.data")
    for name in "train", "valid":
        assert alone[name] == {**found[name], "below_pixel": None, "below_cell": None}, (alone[name], found[name])
    assert alone["box_sizes"]["unit"] == "image" and found["box_sizes"]["unit"] == "pixel"
    for sides in "widths", "heights":
        for a, b in zip(alone["box_sizes"][sides], found["box_sizes"][sides]):
            assert abs(SIDE * a - b) < 1e-4, (alone["box_sizes"], found["box_sizes"])
    assert alone["cfg"] is None and alone["anchors"] is None and "below" not in said.partition("box sizes")[0], said


def check_uneven(root):
    for few, told in ((3, True), (4, False)):
        images = [[(0, 9, 9)]] * 31 + [[(1, 9, 9)]] * few
        said, _ = look(make(root / f"uneven{few}", {"train": images}), "toy.data", "toy.cfg")
        assert ("Uneven: red has 10.3 times the boxes of blue." in said) == told, said


def check_no_box(root):
    """It is no fault, but nothing is called fine."""
    for words in (), ("toy.cfg",):
        folder = make(root / f"empty{len(words)}", {"train": [[], [], []], "valid": [[(0, 9, 9)]]})
        done = run(folder, "toy.data", *words)
        assert "No image of the training list has a box: nothing can be learned from it" in done.stdout, done.stdout
        assert "fine" not in done.stdout and "train.txt: no image has a box that is trained" in done.stderr, done


def check_fitting(root):
    """Stock Darknet keeps the aspect of an image, AlexeyAB's stretches it."""
    lists = {"train": [[(0, 16, 16)]] * 4}
    for keys, sides in (("", (16, 8)), ("mixed_precision=1\namp_dialect=fork", (16, 16)),
                        ("mixed_precision=1\namp_dialect=fork\nletter_box=1", (16, 8))):
        folder = make(root / f"fitted{len(keys)}", lists, size=(128, 64), keys=keys)
        sizes = look(folder, "toy.data", "toy.cfg")[1]["box_sizes"]
        assert sizes["widths"] == [sides[0]] * 5 and sizes["heights"] == [sides[1]] * 5, (keys, sizes)


def check_labels_of_the_fork(root):
    """An image without a label file has no objects, and classes that are not there are left out."""
    folder = make(root / "fork", {"train": [[(0, 8, 8)], [(1, 8, 8), (7, 8, 8)], []]},
                  keys="mixed_precision=1\namp_dialect=fork")
    (folder / "train002.txt").unlink()
    said, found = look(folder, "toy.data", "toy.cfg")
    train = found["train"]
    assert (train["without_a_label_file"], train["without_a_box"], train["of_no_class"], train["boxes"]) == (1, 1, 1, 3)
    assert [row["boxes"] for row in train["per_class"]] == [1, 1], train
    assert "of a class that is not there" in said, said


# ---- anchors ----


def iou(a, b):
    common = min(a[0], b[0]) * min(a[1], b[1])
    return common / (a[0] * a[1] + b[0] * b[1] - common)


def mean_iou(boxes, anchors):
    return sum(max(iou(box, anchor) for anchor in anchors) for box in boxes) / len(boxes)


def line_of(folder, head):
    """Lines of a head and of the filters before it."""
    lines = (folder / "toy.cfg").read_text().splitlines()
    heads = [i + 1 for i, line in enumerate(lines) if line == "[yolo]"]
    filters = [i + 1 for i, line in enumerate(lines) if line == "filters=14"]
    return heads[head], filters[head]


def check_planted(root):
    """Found to the pixel, whatever the shares of the sizes; boxes of valid do not count."""
    rng = random.Random(SEED)
    shares = rng.sample((2, 9, 40, 200), 4)
    boxes = [size for size, n in zip(PLANTED, shares) for _ in range(n)]
    rng.shuffle(boxes)
    images = [[(rng.randrange(2), *size) for size in boxes[i:i + 8]] for i in range(0, len(boxes), 8)]
    folder = make(root / "planted", {"train": images, "valid": [[(0, 1, 30)] * 80]})
    said, found = look(folder, "toy.data", "toy.cfg", "--anchors", "4")
    anchors = found["anchors"]
    assert anchors["values"] == [list(size) for size in PLANTED], (SEED, shares, anchors)
    assert anchors["boxes"] == len(boxes) and abs(anchors["iou_after"] - 1) < 1e-6, anchors
    cfgs = mean_iou(boxes, [(12, 12), (20, 20), (6, 6), (9, 9)])
    assert abs(anchors["iou_before"] - cfgs) < 1e-6, (anchors, cfgs)
    text = ", ".join(f"{w},{h}" for w, h in PLANTED)
    assert f"\n    anchors={text}\n    num=4\n" in said and f"{cfgs:.3f} with the cfg's 4, 1.000 with these 4" in said, said
    # The head with larger cells gets the larger anchors. Where the cfg's shares do not make N, the finest have more.
    for n, masks in ((4, ([2, 3], [0, 1])), (3, ([2], [0, 1])), (2, ([1], [0]))):
        said, found = look(folder, "toy.data", "toy.cfg", "--anchors", str(n))
        for i, (head, mask) in enumerate(zip(found["anchors"]["heads"], masks)):
            line, filters_line = line_of(folder, i)
            filters = 7 * len(mask)
            assert head == {"layer": (7, 12)[i], "line": line, "mask": mask, "filters": filters,
                            "filters_line": filters_line}, (n, head)
            row = f"  toy.cfg:{line}: [yolo] of {(4, 8)[i]}x{(4, 8)[i]} cells: mask={','.join(map(str, mask))}; " \
                f"filters={filters} in line {filters_line}"
            assert row + (", as it is" if filters == 14 else "") + "\n" in said, (row, said)
    pasted = (folder / "toy.cfg").read_text().replace("anchors=12,12, 20,20, 6,6, 9,9", f"anchors={text}")
    (folder / "toy.cfg").write_text(pasted)
    assert look(folder, "toy.data", "toy.cfg", "--anchors", "4")[1]["anchors"]["iou_before"] > 1 - 1e-6


def simple_kmeans(boxes, k):
    """From quantiles of the areas, with means."""
    boxes = sorted(boxes, key=lambda box: box[0] * box[1])
    anchors = [boxes[(2 * i + 1) * len(boxes) // (2 * k)] for i in range(k)]
    for _ in range(100):
        near = [max(range(k), key=lambda i: iou(box, anchors[i])) for box in boxes]
        anchors = [tuple(sum(side) / len(side) for side in zip(*own)) if own else anchors[i] for i in range(k)
                   for own in [[box for box, at in zip(boxes, near) if at == i]]]
    return anchors


def check_search(root):
    """As good as a plain k-means, but for whole pixels; twice the same; the mean IoU is that of what is printed."""
    rng = random.Random(SEED)
    boxes = [(round(rng.uniform(2, 30), 3), round(rng.uniform(2, 30), 3)) for _ in range(240)]
    folder = make(root / "searched", {"train": [[(0, *box) for box in boxes[i:i + 20]] for i in range(0, 240, 20)]})
    found = [look(folder, "toy.data", "toy.cfg", "--anchors", "6")[1]["anchors"] for _ in range(2)]
    assert found[0] == found[1], found
    assert abs(found[0]["iou_after"] - mean_iou(boxes, found[0]["values"])) < 1e-5, (SEED, found[0])
    assert found[0]["iou_after"] > mean_iou(boxes, simple_kmeans(boxes, 6)) - .01, (SEED, found[0])


# ---- the sheet ----


def tiles(path):
    """The 16 images of a sheet."""
    with open(path, "rb") as file:
        assert file.read(2) == b"\xff\xd8"
    sheet = Image.open(path).convert("RGB")
    assert sheet.size == (4 * TILE, 4 * TILE), sheet.size
    return [sheet.crop((x * TILE, y * TILE, (x + 1) * TILE, (y + 1) * TILE)) for y in range(4) for x in range(4)]


def is_near(pixel, colour, within=40):
    return all(abs(a - b) <= within for a, b in zip(pixel, colour))


def check_tile(tile, inner):
    """One box over the middle half of an image of one colour, whatever side is left. Returns its class."""
    edge = TILE // 4
    for kind, colour in enumerate(COLOURS):
        on_edge = [(edge, TILE // 2), (TILE - edge, TILE // 2), (TILE // 2 + 30, edge), (TILE // 2, TILE - edge)]
        if all(is_near(tile.getpixel(place), colour) for place in on_edge):
            assert is_near(tile.getpixel((TILE // 2, TILE // 2)), inner[kind]), (kind, tile.getpixel((96, 96)))
            assert is_near(tile.getpixel((TILE // 8, TILE // 2)), (128, 128, 128)), tile.getpixel((24, 96))
            return kind
    raise AssertionError([tile.getpixel(place) for place in on_edge])


def check_sheet(root):
    """By stock's loader and by AlexeyAB's: the colour inside a box is that of its class's images."""
    inner = [(200, 40, 40), (40, 40, 200)]
    calm = lambda cfg: cfg.replace("jitter=.2", "jitter=0\nresize=1" if "fork" in cfg else "jitter=0")
    for name, keys in (("stock", ""), ("stock_mixed", "mixed_precision=1\nseed=3"),
                       ("fork", "mixed_precision=1\nseed=3\namp_dialect=fork")):
        folder = make(root / f"sheet_{name}", {"train": [[(i % 2, 16, 16)] for i in range(10)]}, keys=keys, edit=calm)
        for i in range(10):
            image = Image.new("RGB", (64, 64), (128, 128, 128))
            image.paste(inner[i % 2], (16, 16, 48, 48))
            image.save(folder / f"train{i:03d}.png")
        said = run(folder, "toy.data", "toy.cfg", "--sheet", "sheet.jpg")
        assert "images 10" in " ".join(said.stdout.split()) and "yolo" not in said.stdout, said.stdout
        kinds = [check_tile(tile, inner) for tile in tiles(folder / "sheet.jpg")]
        assert set(kinds) == {0, 1}, kinds  # of 16 drawn from 10
        before = (folder / "sheet.jpg").read_bytes()
        run(folder, "toy.data", "toy.cfg", "--sheet", "sheet.jpg")  # its own kind is replaced
        assert "seed" not in keys or (folder / "sheet.jpg").read_bytes() == before
    return folder


def check_sheet_sizes(root):
    """Of nets far wider than high, and of large ones, whose images are made smaller: a class's colour is in the middle."""
    inner = [(200, 40, 40), (40, 40, 200)]
    for width, height, tile in ((4096, 32, (4096, 32)), (1088, 1024, (544, 512))):
        edit = lambda cfg: re.sub(r"height=\d+", f"height={height}", re.sub(r"width=\d+", f"width={width}", cfg)).replace(
            "jitter=.2", "jitter=0\nresize=1")
        folder = make(root / f"sheet_{width}", {"train": [[(i % 2, SIDE, SIDE)] for i in range(4)]},
                      keys="mixed_precision=1\nseed=3\namp_dialect=fork", edit=edit)
        for i in range(4):
            Image.new("RGB", (64, 64), inner[i % 2]).save(folder / f"train{i:03d}.png")
        run(folder, "toy.data", "toy.cfg", "--sheet", "sheet.jpg")
        sheet = Image.open(folder / "sheet.jpg").convert("RGB")
        assert sheet.size == (4 * tile[0], 4 * tile[1]), (width, height, sheet.size)
        middles = [sheet.getpixel((x * tile[0] + tile[0] // 2, y * tile[1] + tile[1] // 2)) for x in range(4) for y in range(4)]
        assert all(any(is_near(middle, colour, 60) for colour in inner) for middle in middles), (width, middles)


# ---- classifiers ----


def check_classifier(root):
    folder = root / "classes"
    classset.make(folder)
    (folder / "net.cfg").write_text((ROOT / "cfg/mixed-classifier.cfg").read_text())
    first = (folder / "train.txt").read_text().splitlines()[0]
    shutil.copy(first, folder / "copy_kind0.png")
    with open(folder / "train.txt", "a") as file:
        file.write(f"{folder / 'copy_kind0.png'}\n")
    for words in (("c.data", "net.cfg", "--sheet", "sheet.jpeg"), ("c.data",)):
        said, found = look(folder, *words)
        assert found["kind"] == "classifier" and found["train"]["images"] == 301, found
        assert found["train"]["per_class"] == [{"name": f"kind{i}", "images": 30 + (i == 0)} for i in range(10)], found
        assert [row["images"] for row in found["valid"]["per_class"]] == [10] * 10, found["valid"]
        assert [pair["image"] for pair in found["same_bytes"]] == [str(folder / "copy_kind0.png")], found["same_bytes"]
        assert "a classifier of 10 classes" in said and "boxes" not in said and "box sizes" not in said, said
    tile = Image.open(folder / "sheet.jpeg").convert("RGB")
    step = tile.size[0] // 4
    for i in range(16):  # the class stands in the corner, black on white
        corner = tile.crop((i % 4 * step, i // 4 * step, i % 4 * step + 30, i // 4 * step + 10)).convert("L")
        dark, light = corner.getextrema()
        assert light > 200 and dark < 100, (i, dark, light)
    said = run(folder, "c.data", "net.cfg", "--anchors", "3", status=1).stderr
    assert "net.cfg has no [yolo] or [region], whose anchors they are" in said, said
    (folder / "labels.txt").write_text("kind1\nkind1\n")
    said = run(folder, "c.data", status=1).stderr
    assert "labels.txt: has 2 labels; needed: 10" in said, said


# ---- what is refused ----


def check_refused(folder):
    """With status 1 and its reason, before anything is printed or written."""
    jpeg = folder / "photo.jpg"
    Image.new("RGB", (9, 9)).save(jpeg)
    (folder / "own.json").write_text('{"mine": 1}')
    names = (folder / "toy.names").read_bytes(), jpeg.read_bytes()
    for words, says in (
            (("toy.data", "toy.cfg", "--sheet", "photo.jpg"), "photo.jpg: is there and is another kind of file"),
            (("toy.data", "toy.cfg", "--json", "own.json"), "--json: own.json: is there and is another kind of file"),
            (("toy.data", "toy.cfg", "--json", "-"), '--json: "-" is no name of a file'),
            (("toy.data", "toy.cfg", "--json", "x.jpg", "--sheet", "x.jpg"), "--json and --sheet name the same file, x.jpg"),
            (("toy.data", "toy.cfg", "--sheet", "sheet.png"), "--sheet sheet.png: allowed: a name that ends in .jpg"),
            (("toy.data", "toy.cfg", "--sheet", "no/sheet.jpg"), "no/sheet.jpg"),
            (("toy.data", "toy.cfg", "--json", "toy.names"), "--json: toy.names: is there and is another kind of file"),
            (("toy.data", "toy.cfg", "--json", "no/a.json"), "no/a.json"),
            (("toy.data", "--anchors", "4"), "--anchors needs CFG"),
            (("toy.data", "--sheet", "sheet2.jpg"), "--sheet needs CFG"),
            (("toy.data", "toy.cfg", "--anchors", "0"), "must be a whole number from 1 to 100"),
            (("toy.data", "toy.cfg", "--anchors", "1"), "--anchors 1: allowed: at least 2, one for each head of toy.cfg"),
            (("toy.data", "toy.cfg", "--anchors", "5"), "--anchors 5: the 10 boxes of the training list have fewer"),
            (("toy.data", "toy.cfg", "--anchor", "5"), 'unknown option "--anchor"; did you mean --anchors?'),
            (("toy.data", "toy.cfg", "more"), 'unexpected word "more"'),
            (("", "toy.cfg"), "cannot read \"\": the name is empty"),
            (("none.data", "toy.cfg"), "none.data"), (("toy.data", "none.cfg"), "none.cfg"),
            ((), "needed: DATA [CFG]")):
        done = run(folder, *words, status=1)
        assert says in done.stderr and not done.stdout, (words, done)
    done = subprocess.run([DARKNET, "detector", "calc_anchors", "toy.data", "-num_of_clusters", "4"], cwd=folder,
                          capture_output=True, text=True)
    assert done.returncode == 1 and "is here darknet amp data DATA CFG --anchors N" in done.stderr, done
    assert names == ((folder / "toy.names").read_bytes(), jpeg.read_bytes()) and not (folder / "sheet.png").exists()


def check_faults(root):
    """Those of detector train, by the same checks; in the valid list too."""
    for name, spoil, says in (
            ("train", lambda f: (f / "train001.txt").write_text("0 .5 .5 .5\n"), "train001.txt:1: "),
            ("train", lambda f: (f / "train001.txt").write_text("2 .5 .5 .5 .5\n"), 'class "2": must be a whole number from 0 to 1'),
            ("train", lambda f: (f / "train002.png").unlink(), "train002.png: No such file"),
            ("train", lambda f: (f / "train002.txt").unlink(), "train002.txt: No such file"),
            ("valid", lambda f: (f / "valid000.txt").write_text("a b c\n"), "valid000.txt:1: "),
            ("valid", lambda f: (f / "valid001.png").write_text("no image"), "valid001.png: "),
            ("valid", lambda f: (f / "valid.txt").unlink(), "image list valid.txt: No such file"),
            ("train", lambda f: (f / "toy.names").write_text("red\n"), "has 1 names, but there are 2 classes"),
            ("cfg", lambda f: (f / "toy.cfg").write_text((f / "toy.cfg").read_text().replace("filters=14", "filters=15")),
             "set its filters= to 14"),
            ("train", lambda f: (f / "backup").rmdir(), "backup")):
        with tempfile.TemporaryDirectory() as scratch:
            folder = make(Path(scratch) / "spoilt", {"train": [[(0, 9, 9)]] * 3, "valid": [[(1, 9, 9)]] * 2})
            spoil(folder)
            done = run(folder, "toy.data", "toy.cfg", "--json", "a.json", status=1)
            assert says in done.stderr and "error: " in done.stderr and not done.stdout, (name, says, done)
            assert not (folder / "a.json").exists()
            if name != "cfg":
                done = run(folder, "toy.data", status=1)
                assert says in done.stderr and not done.stdout, (name, says, done)


def main():
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        check_counts(root)
        check_uneven(root)
        check_no_box(root)
        check_fitting(root)
        check_labels_of_the_fork(root)
        check_planted(root)
        check_search(root)
        check_refused(check_sheet(root))
        check_sheet_sizes(root)
        check_classifier(root)
        check_faults(root)


print(f"seed {SEED}")
main()
