"""scripts/bench-loader without images: which files it takes, and its record and page from given times.

usage: bench_loader.py ROOT
"""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(sys.argv[1])
sys.path.insert(0, str(ROOT / "scripts"))
import bench_lib

loader = importlib.machinery.SourceFileLoader("bench_loader", str(ROOT / "scripts/bench-loader"))
bench = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_loader", loader))
loader.exec_module(bench)

TOLD = {"images": 9, "left_to_darknet": [], "images_per_second": {"darknet": 100, "amp": 400},
        "stages": [{"stage": "read", "milliseconds": 0.5}, {"stage": "decode", "milliseconds": 2.0}]}
ABOUT = {"images": 9, "megapixels": 0.3072, "bytes": 92160.0, "bytes_per_pixel": 0.3, "classes": 2, "shorter": 480}


def refuses(call, *args):
    try:
        call(*args)
    except bench_lib.BenchError as error:
        return str(error)
    raise AssertionError(f"{args}: not refused")


def check_data(folder):
    (folder / "list").write_text("a/images/1.jpg\na/b.png\na/c.JPEG\n")
    (folder / "set.data").write_text(f"classes = 3\n train={folder}/list\n")
    assert bench.read_data(folder / "set.data") == (["a/images/1.jpg", "a/c.JPEG"], 3)
    assert str(bench.label_file("a/images/images1.jpg")) == "a/labels/images1.txt"
    assert "2 JPEGs; at least 9" in refuses(bench.link_images, folder, folder / "set.data", 16)
    assert "train=LIST" in refuses(bench.read_data, folder / "none.data")


def check_record():
    """Two rounds of stand-ins; torchvision takes 5 ms, then 10; Ultralytics is not installed."""
    told, torchvision = dict(TOLD), iter(([.004, .005, .006], [.010] * 3))
    bench.run_on_one_core = lambda command: json.dumps({"loading": told})
    bench.load_peer = lambda name, folder, classes: next(torchvision)
    with contextlib.redirect_stdout(io.StringIO()):
        measured, parts = bench.measure(Path("folder"), ABOUT, ["torchvision"], 2)
    assert measured[0] == {"darknet": [.01], "amp": [.0025], "fork": [.0025], "torchvision": [.004, .005, .006]}, measured
    about = bench.summarise(ABOUT, measured, parts)
    ours, theirs = "mixed_precision=1", "PyTorch's DataLoader, torchvision"
    assert about["ratios"] == {f"{ours} / Darknet": {"median": 4, "min": 4, "max": 4},
                               f"{ours} / {theirs}": {"median": 3, "min": 2, "max": 4},
                               f"by AlexeyAB's rules / {ours}": {"median": 1, "min": 1, "max": 1}}, about["ratios"]
    record = {"date": "2026-01-02", "machine": bench_lib.machine(), "rounds": 2, "sets": {"640x480": about},
              "peers": {"torchvision": {"torchvision": "9.8", "torch": "9.7"}}, "trainings": []}
    json.loads(bench_lib.dump(record))
    page = bench.report(record)
    for words in ("| 9 of 640x480 | 0.31 | 92 | 0.30 | 100.0 | 400.0 | 400.0 | 133.3 |", "torchvision 9.8; torch 9.7;",
                  "| 640x480: mixed_precision=1 / Darknet | **4.00** | 4.00 | 4.00 |",
                  "/ PyTorch's DataLoader, torchvision | **3.00** | 2.00 | 4.00 |",
                  "Not installed, so left out: Ultralytics.", "2 rounds by"):
        assert words in page, (words, page)
    for change in ({"images": 8}, {"left_to_darknet": [{"kind": "PNG", "images": 1}]}):
        told.update(TOLD, **change)
        assert "of 9 images" in refuses(bench.load_ours, Path("folder"), ABOUT)


def check_reduced():
    """Files that amp_jpeg_scale=1 reduces are loaded with it, too, and compared with Darknet's way."""
    rates = iter((400, 1000, 500))
    bench.run_on_one_core = lambda command: json.dumps(
        {"loading": {**TOLD, "images_per_second": {"darknet": 100, "amp": next(rates)}}})
    row, _ = bench.load_ours(Path("folder"), {**ABOUT, "shorter": 832})
    assert row == {"darknet": [.01], "amp": [.0025], "reduced": [.001], "fork": [.002]}, row
    about = bench.summarise(ABOUT, [row], [])
    assert about["ratios"]["with amp_jpeg_scale=1 / Darknet"]["median"] == 10, about


def check_batches():
    """Each loader, with and without a cache, on each number of threads; the page has medians."""
    asked, rates = [], iter(range(100, 124))

    def stand_in(command, environment):
        asked.append(Path(command[3]).read_text())
        return json.dumps({"loading": {"images_per_second_batch": next(rates)}})

    bench_lib.run = stand_in
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
        for way, key in bench.CFG_KEYS.items():
            (Path(scratch) / f"{way}.cfg").write_text(f"[net]\nbatch=1\n{key}\n")
        found = bench.measure_batches(Path(scratch), [1, 2], 3)
    assert len(asked) == 24 and all("\nbatch=128\n" in text and "batch=1\n" not in text for text in asked), asked
    fifth = found[5]
    assert (fifth["way"], fifth["threads"], fifth["cache"]) == ("fork", 2, 0), found
    for text in asked[5], asked[13], asked[21]:
        assert "amp_dialect=fork" in text and "amp_loader_threads=2\n" in text and "amp_image_cache=0\n" in text, text
    page = "\n".join(bench.report_batches({"640x480": {"batches": found}}))
    assert "| 640x480 | by AlexeyAB's rules | 2 | **113** | 105 | 121 |" in page, page
    assert "| 640x480 | mixed_precision=1, all from amp_image_cache | 1 | **110** | 102 | 118 |" in page, page
    assert bench.report_batches({"640x480": {}}) == []


def check_trainings():
    """By a stand-in for training: what is asked of it, what is read from amp_log, and the page of it."""
    asked = []

    def stand_in(command):
        text = Path(command[-1]).read_text()
        asked.append(text)
        log = Path(next(line for line in text.splitlines() if line.startswith("amp_log=")).partition("=")[2])
        seconds = 4 if "amp_loader=darknet" in text else 2
        log.write_text("".join(json.dumps({"iteration": n, "seconds": seconds if n > 5 else 99, "loading_seconds": 1})
                               + "\n" for n in range(1, 8)))
        return "", 7 << 20

    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
        bench.WORK = Path(scratch)
        (bench.WORK / "my.cfg").write_text("[net]\nmax_batches = 500\n amp_loader=fast\n[yolo]\n")
        bench_lib.run_and_weigh = stand_in
        bench_lib.run = lambda command: json.dumps({"loading": {"step": {"images": 8, "seconds": 1}}})
        told = bench.measure_trainings("my.data", bench.WORK / "my.cfg", 2, 1)
    assert [text.count("amp_loader=") for text in asked] == [1, 1, 1], asked
    assert all("\nmax_batches=7\n" in text and "500" not in text for text in asked), asked
    assert told["images_per_second"] == {"darknet": 2, "amp": 4, "reduced": 4}, told
    assert told["ratios"]["amp"]["median"] == 2
    page = "\n".join(bench.report_trainings(told))
    for words in ("2 iterations of 8 images on all cores. A step alone takes 8.0 images/s.",
                  "| amp_loader=darknet | 2.0 | 25 % | 7 MiB |",
                  "| amp_loader=fast, amp_jpeg_scale=1 | **2.00** |"):
        assert words in page, (words, page)


def main():
    with tempfile.TemporaryDirectory() as scratch:
        check_data(Path(scratch))
    check_record()
    check_reduced()
    check_batches()
    check_trainings()


main()
