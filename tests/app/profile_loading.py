"""`darknet amp profile CFG DATA`: loading by both ways, and by AlexeyAB's rules, on a set of JPEGs and PNGs, and what it
says of them.

usage: profile_loading.py DARKNET OPENCV(0|1)
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

# A picture of 48 x 32, one red square on blue.
JPEG = zlib.decompress(base64.b64decode(
    "eNr7f+P/AwYBLzdPNwZGRgYGRiBk+H+bwZkhwNzGzcYowM3RLSo0IL7iRFNFXl7F1/U7J574TxwAGsIYGhVVkVnxuqnp9X/ywAEGQQ4GBQYD"
    "ZkYlBiZBRmZBxv9HGETBTkUBzEBhEQF0UQagqBgjI5pqZgaQIeKCjEAWChASTvx/i4GHmRFoFbMggz1DB3uGFtsdFSGGwwyegQqmmWoMifv/"
    "3wQAA++Jjg=="))


def run(folder, *args, **env):
    return subprocess.run([sys.argv[1], "amp", "profile", *args], cwd=folder, capture_output=True, text=True,
                          env=dict(os.environ, **env))


def bench(folder, *args, **env):
    told = run(folder, "toy.cfg", "toy.data", "-nogpu", *args, **env)
    assert told.returncode == 0, told.stderr
    return told


def bench_json(folder, **env):
    return json.loads(bench(folder, "--json", **env).stdout)["loading"]


def change(folder, *changes):
    path, text = folder / "toy.cfg", (folder / "toy.cfg").read_text()
    for old, new in changes:
        assert old in text, (old, text)
        text = text.replace(old, new, 1)
    path.write_text(text)


def put_jpegs(folder, count):
    """In the places of the list's first images."""
    paths = (folder / "train.txt").read_text().split()
    for i in range(count):
        paths[i] = paths[i].replace(".png", ".jpg")
        Path(paths[i]).write_bytes(JPEG)
    (folder / "train.txt").write_text("\n".join(paths) + "\n")


def check_json(folder):
    result = bench_json(folder)
    assert result["data"] == "toy.data"
    assert (result["width"], result["height"], result["random"]) == (32, 32, False)
    assert (result["listed"], result["images"], result["rounds"]) == (8, 8, 3)
    assert result["left_to_darknet"] == [{"kind": "PNG", "images": 3}]
    assert [stage["stage"] for stage in result["stages"]] == ["read", "decode", "place", "labels", "darknet"]
    assert all(stage["milliseconds"] > 0 for stage in result["stages"]), result
    milliseconds = sum(stage["milliseconds"] for stage in result["stages"])
    assert abs(1000 / milliseconds / result["images_per_second"]["amp"] - 1) < 1e-6, result
    assert abs(sum(stage["share"] for stage in result["stages"]) - 1) < 1e-6, result
    for way in ("darknet", "amp"):
        rate = result["images_per_second"][way]
        needed = result["step"]["images"] / result["step"]["seconds"] / rate
        assert abs(result["cores_needed"][way] / needed - 1) < 1e-6, result
    assert result["images_per_second_batch"] > 0, result
    step = result["step"]
    assert step["backend"] == "cpu" and step["device"] is None and step["precision"] == "fp16"
    assert step["images"] == 4 and step["passes"] >= 3
    assert (result["loader"], result["loader_threads"]) == ("fast", min(4, result["cores"]))
    assert result["keeps_up"] == (result["cores_needed"]["amp"] <= result["loader_threads"])


def check_words(folder):
    told = bench(folder)
    for words in ("\n\nloading: toy.data: 8 of 8 images, to 32x32\n", "left to Darknet: 3 of 8 images: 3 PNG\n", "a training step: 4 images in ", "\na batch of 4 images on "):
        assert words in told.stdout, told.stdout
    assert ("\nLoading keeps up: " in told.stdout) != ("\nTraining will wait for images: " in told.stdout)
    assert "images/s" not in told.stderr, "this is no training"
    assert "is off" not in told.stderr


def check_passes(folder):
    """A step is as long as its passes. 400 times as many of them: even on a busy machine more than 20 times as long. With
    one thread, which waits for no other."""
    one = bench_json(folder, OMP_NUM_THREADS="1")["step"]
    change(folder, ("batch=4\n", "batch=1600\n"), ("subdivisions=2\n", "subdivisions=800\n"))
    many = bench_json(folder, OMP_NUM_THREADS="1")["step"]
    assert (one["images"], many["images"]) == (4, 1600)
    assert many["seconds"] > 20 * one["seconds"], (one, many)
    change(folder, ("batch=1600\n", "batch=4\n"), ("subdivisions=800\n", "subdivisions=2\n"))


def check_keys(folder):
    """What the cfg says of loading counts; without mixed precision it is told."""
    change(folder, ("mixed_precision=1\n", "amp_loader=darknet\namp_loader_threads=1\nmixed_precision=1\n"),
           ("random=0", "random=1"))
    change(folder, ("random=0", "random=1"))
    result = bench_json(folder)
    assert (result["loader"], result["loader_threads"], result["random"]) == ("darknet", 1, True)
    assert result["keeps_up"] == (result["cores_needed"]["darknet"] <= 1)
    change(folder, ("mixed_precision=1\n", ""))
    assert "mixed_precision=1 is missing under [net]; so Darknet loads all" in bench(folder).stderr


def move_beside(folder):
    """Into `images`, labels too, where stock Darknet would look in `labels`."""
    (folder / "images").mkdir()
    listed = (folder / "train.txt").read_text()
    for path in folder.glob("image0*"):
        path.rename(folder / "images" / path.name)
    (folder / "train.txt").write_text(listed.replace("/image0", "/images/image0"))


def parts_of_images(folder, part):
    """How many parts of this name each loaded image has in a trace."""
    bench(folder, "--trace", "trace.json")
    events = [e for e in json.loads((folder / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    parts = [e for e in events if e["cat"] == "loading" and e["name"] == part]
    images = [e for e in events if e["cat"] == "image"]
    assert len(images) == 64, images
    counts = [sum(p["tid"] == e["tid"] and e["ts"] - .01 <= p["ts"] and p["ts"] + p["dur"] <= e["ts"] + e["dur"] + .01
                  for p in parts) for e in images]
    assert sum(counts) == len(parts), (counts, parts)
    return set(counts)


def check_fork(folder):
    """The loader that training uses: labels beside the images, and mosaics of four, every second time."""
    result = bench_json(folder)
    assert result["loader"] == "fork" and result["images"] == 8, result
    assert result["images_per_second"]["darknet"] is None and result["cores_needed"]["darknet"] is None, result
    assert result["left_to_darknet"] == [{"kind": "PNG", "images": 3}], result
    assert all(stage["milliseconds"] > 0 for stage in result["stages"]), result
    assert parts_of_images(folder, "labels") == {1}
    assert "\nby AlexeyAB's rules " in bench(folder).stdout
    change(folder, ("[net]\n", "[net]\nmosaic=1\n"))
    assert parts_of_images(folder, "labels") == {1, 4}
    assert "to 32x32, half of them made of several (mosaic)\n" in bench(folder).stdout
    change(folder, ("mosaic=1\n", "mixup=1\n"))
    assert parts_of_images(folder, "labels") == {1, 2}


def check_undecodable(folder):
    """Named once and left out where training replaces it; a Darknet without OpenCV ends at the first one."""
    first = Path((folder / "train.txt").read_text().split()[0])
    data = bytearray(JPEG)
    tables = data.index(b"\xff\xc4")  # Huffman tables: lengths that cannot be
    data[tables + 5:tables + 21] = b"\xff" * 16
    first.write_bytes(bytes(data))
    told = run(folder, "toy.cfg", "toy.data", "--json", "--trace", "trace.json")
    assert told.stderr.count(f'image "{first}" cannot be read or decoded: ') == 1, told.stderr
    if sys.argv[2] == "1":
        assert told.returncode == 0, told.stderr
        loading = json.loads(told.stdout)["loading"]
        assert (loading["listed"], loading["images"]) == (8, 7), loading
        events = json.loads((folder / "trace.json").read_text())["traceEvents"]
        images = [e["name"] for e in events if e.get("cat") == "image"]
        assert images and first.name not in images, images
    else:
        assert told.returncode == 1 and not told.stdout, told
    first.write_bytes(JPEG)


def check_errors(folder):
    refused = run(folder, "toy.cfg", "none.data")
    assert refused.returncode == 1 and "none.data" in refused.stderr and not refused.stdout, refused
    first = Path((folder / "train.txt").read_text().split()[0])
    first.write_bytes(JPEG[:100])  # no decoder makes an image of its header alone
    refused = run(folder, "toy.cfg", "toy.data")
    assert refused.returncode == 1 and str(first) in refused.stderr and not refused.stdout, refused
    first.unlink()
    refused = run(folder, "toy.cfg", "toy.data")
    assert refused.returncode == 1 and str(first) in refused.stderr, refused


def main():
    with tempfile.TemporaryDirectory() as root:
        folder = toyset.make(Path(root) / "toy", net_keys="mixed_precision=1\namp_log=log\nseed=1")
        put_jpegs(folder, 5)
        before = sorted(folder.rglob("*"))
        check_json(folder)
        check_words(folder)
        check_passes(folder)
        assert sorted(folder.rglob("*")) == before, "a file was written"
        check_undecodable(folder)
        check_keys(folder)
        check_errors(folder)
        fork = toyset.make(Path(root) / "fork", net_keys="mixed_precision=1\namp_dialect=fork", batch=128)
        put_jpegs(fork, 5)
        move_beside(fork)
        check_fork(fork)


main()
