"""Replays the recorded calls of AlexeyAB's loader: same draws in the same order, same cuts; truths,
pixels and their means within what roundings allow.

    loader.py ROOT REPLAY_LOADER
"""
import array
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import zlib

import recorded

# JPEG decoders may round otherwise, and so may cv::resize and the way to hues and back: a level, in a
# thousandth of the pixels. Truths and means are of float.
MOST_DIFFERENT, LEVEL, TRUTH, MEAN = 1e-3, 2, 1e-6, 1e-3
RAND_MAX = 2**31 - 1
GRID = 16  # pixels across and down of what is recorded of most pictures


# ---- pictures ----

def unfilter(kind, row, above):
    """One row of a PNG of 3 bytes a pixel, in place."""
    for i in range(len(row)):
        a = row[i - 3] if i >= 3 else 0
        b = above[i]
        c = above[i - 3] if i >= 3 else 0
        if kind == 4:
            p = a + b - c
            near = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
        else:
            near = (0, a, b, (a + b) // 2)[kind]
        row[i] = (row[i] + near) & 255


def read_png(path):
    """Width, height, rows of red, green, blue."""
    data = path.read_bytes()
    at, packed = 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        if kind == b"IHDR":
            w, h, depth, colours, *rest = struct.unpack(">IIBBBBB", body)
            assert (depth, colours, rest[2]) == (8, 2, 0), f"{path}: not 8-bit RGB"
        elif kind == b"IDAT":
            packed += body
        at += size + 12
    raw = zlib.decompress(packed)
    rows, above, stride = [], bytes(3 * w), 3 * w + 1
    for y in range(h):
        row = bytearray(raw[y * stride + 1:(y + 1) * stride])
        unfilter(raw[y * stride], row, above)
        rows.append(row)
        above = row
    return w, h, rows


def raw_picture(png, folder):
    """Writes it for replay_loader and gives its label path."""
    w, h, rows = read_png(png)
    body = bytearray()
    for row in rows:
        row[0::3], row[2::3] = row[2::3], row[0::3]
        body += row
    (folder / f"{png.stem}.raw").write_bytes(struct.pack("=ii", w, h) + body)
    labels = folder / f"{png.stem}.txt"
    labels.write_bytes(png.with_suffix(".txt").read_bytes())
    return labels


def label_paths(folder, names, to):
    """The JPEGs are of a data set with folders images/ and labels/; they are put together in `to`."""
    data_set = folder.parent.parent / "datasets" / "bccd"
    for name in names:
        if name.endswith(".png"):
            yield raw_picture(folder / name, to)
            continue
        labels = to / name.replace(".jpg", ".txt")
        labels.write_bytes((data_set / "labels" / labels.name).read_bytes())
        (to / name).write_bytes((data_set / "images" / name).read_bytes())
        yield labels


# ---- the record ----

def read_calls(path):
    """Per call: mode, seed, draws as (kind, numbers), cuts as numbers."""
    calls = []
    for line in path.read_text().splitlines():
        words = line.split()
        if words[0] == "==":
            calls.append({"mode": words[1], "seed": words[2], "draws": [], "crops": []})
        elif words[:2] == ["#", "crop"]:
            calls[-1]["crops"].append({k: float(v) for k, v in (w.split("=") for w in words if "=" in w)})
        elif words[0] != "#":
            calls[-1]["draws"].append((words[0], [float(w) for w in words[1:] if w != "->"]))
    return calls


def call_line(call, mode):
    m = mode
    return " ".join(str(v) for v in (
        call["seed"], m["mixup"], m["flip"], m["jitter"], m["resize"], m["hue"], m["sat"], m["exp"],
        m["letter"], m["bound"], m["boxes"]))


# ---- the comparison ----

def replay(program, rows, labels, lines, pixels):
    words = [rows["width"], rows["height"], rows["classes"], rows["n"], pixels, *labels]
    done = subprocess.run([program, *map(str, words)], input="\n".join(lines) + "\n", text=True,
                          stdout=subprocess.PIPE, check=True)
    calls = []
    for line in done.stdout.splitlines():
        name, *numbers = line.split()
        numbers = [float(n) for n in numbers]
        if name == "call":
            calls.append({"draws": [], "crops": [], "pictures": []})
        elif name == "draw":
            calls[-1]["draws"].append(int(numbers[0]))
        elif name == "crop":
            calls[-1]["crops"].append(numbers)
        elif name == "rounds":
            calls[-1]["rounds"] = int(numbers[0])
        elif name == "picture":
            calls[-1]["pictures"].append([])
        elif name == "truth":
            calls[-1]["pictures"][-1].append(numbers)
    return calls


def near(a, b, tolerance):
    return abs(a - b) <= tolerance


def uniform(low, high, number):
    low, high = min(low, high), max(low, high)
    return number / 2**31 * (high - low) + low


def check_draws(recorded_draws, numbers):
    """Every draw of the record is what its kind makes of the next numbers, and none is left."""
    numbers = iter(numbers)
    for kind, values in recorded_draws:
        number = next(numbers)
        if kind == "gen":
            assert number == values[0], (number, values)
        elif kind == "float":
            assert near(number / RAND_MAX, values[0], 1e-7), (number, values)
        elif kind == "int":
            low, high, drawn = values
            assert low + number % (high - low + 1) == drawn, (number, values)
        elif kind == "uniform":
            assert near(uniform(values[0], values[1], number), values[2], 1e-7), (number, values)
        else:
            assert kind == "scale", kind
            scale = uniform(1, values[0], number)
            if next(numbers) % 2 == 0:
                scale = 1 / scale
            assert near(scale, values[1], 1e-6), (number, values)
    assert next(numbers, None) is None, "more draws than recorded"


def check_crops(recorded_crops, crops):
    assert len(recorded_crops) == len(crops), (len(recorded_crops), len(crops))
    for record, ours in zip(recorded_crops, crops):
        names = ("left", "top", "width", "height", "flip")
        assert [record[n] for n in names] == ours[:5], (record, ours)
        for name, value in zip(("hue", "sat", "exp"), ours[5:]):
            assert near(record[name], value, 1e-6), (name, record, ours)


def check_truths(record, ours):
    assert len(record) == len(ours), (len(record), len(ours), record, ours)
    for a, b in zip(record, ours):
        assert all(near(x, y, TRUTH) for x, y in zip(a, b)) and a[4] == b[4], (a, b)


class Pixels:
    """Compares pictures and counts."""

    def __init__(self, folder, rows):
        self.w, self.h = rows["width"], rows["height"]
        self.grid = array.array("H", (folder / "grid.bin").read_bytes())
        self.full = array.array("H", (folder / "full.bin").read_bytes())
        self.compared = self.different = self.largest = 0

    def compare(self, record, ours):
        assert len(record) == len(ours)
        self.compared += len(record)
        for a, b in zip(record, ours):
            if a != b:
                self.different += 1
                self.largest = max(self.largest, abs(a - b))

    def check(self, row, ours):
        plane = self.w * self.h
        if row["grid"] is not None:
            at = row["grid"] * 3 * GRID * GRID
            xs, ys = self.w // GRID, self.h // GRID
            self.compare(self.grid[at:at + 3 * GRID * GRID],
                         [ours[c * plane + (ys * j + ys // 2 + ys % 2) * self.w + xs * i + xs // 2]
                          for c in range(3) for j in range(GRID) for i in range(GRID)])
        if row["full"] is not None:
            at = row["full"] * 3 * plane
            self.compare(self.full[at:at + 3 * plane], ours)
        for c, mean in enumerate(row["means"]):
            ours_mean = sum(ours[c * plane:(c + 1) * plane]) / 510 / plane
            assert near(mean, ours_mean, MEAN), (row["mode"], row["seed"], row["k"], mean, ours_mean)

    def assess(self):
        return self.different <= MOST_DIFFERENT * self.compared and self.largest <= LEVEL


def check_call(call, ours, rows, pixels, file):
    check_draws(call["draws"], ours["draws"])
    check_crops(call["crops"], ours["crops"])
    assert len(rows) == len(ours["pictures"])
    for row, truths in zip(rows, ours["pictures"]):
        assert row.get("rounds", 1) == ours["rounds"], (row, ours["rounds"])
        picture = array.array("H")
        picture.fromfile(file, 3 * pixels.w * pixels.h)
        check_truths(row["truths"], truths)
        pixels.check(row, picture)


def main(root, program):
    folder = recorded.find(root, "o4_loader/rows.json").parent
    rows = json.loads((folder / "rows.json").read_text())
    calls = read_calls(folder / "draws.txt")
    total = Pixels(folder, rows)
    with tempfile.TemporaryDirectory() as name:
        to = pathlib.Path(name)
        labels = list(label_paths(folder, rows["pictures"], to))
        lines = [call_line(c, rows["modes"][c["mode"]]) for c in calls]
        ours = replay(program, rows, labels, lines, to / "pixels")
        done = {}
        with open(to / "pixels", "rb") as file:
            for call, our in zip(calls, ours, strict=True):
                mode, seed = call["mode"], int(call["seed"])
                of_call = [r for r in rows["rows"] if (r["mode"], r["seed"]) == (mode, seed)]
                try:
                    check_call(call, our, of_call, total, file)
                except AssertionError as e:
                    sys.exit(f"{mode}, seed {seed}: {e}")
                done[mode] = done.get(mode, 0) + len(of_call)
    for mode, count in done.items():
        print(f"{mode}: {count} pictures")
    print(f"{total.different} of {total.compared} pixels differ, at most by {total.largest / 2} levels")
    if not total.assess():
        sys.exit(f"allowed are {MOST_DIFFERENT:.1%} by one level")


if __name__ == "__main__":
    main(*sys.argv[1:])
