"""`amp export`: what it writes, refuses and says; that nothing half-written stays; --half, --keep, the sidecar and
the metadata.

usage: command.py DARKNET
"""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import nets

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

DARKNET = Path(sys.argv[1]).resolve()
CFG = """[net]
batch=1
width=32
height=32
channels=3
[convolutional]
batch_normalize=1
filters=64
size=3
pad=1
stride=2
activation=leaky
[convolutional]
batch_normalize=1
filters=256
size=3
pad=1
stride=2
activation=leaky
[convolutional]
filters=256
size=3
pad=1
activation=leaky
[convolutional]
filters=14
size=1
activation=linear
[yolo]
mask=0,1
anchors=4,4,12,12
classes=2
num=2
"""
CLASSIFIER = re.sub(r"(?s)\[convolutional\]\nfilters=14.*", "[avgpool]\n[softmax]\n", CFG)


class Place:
    """A folder with a cfg and weights."""

    def __init__(self, folder, numpy, text=CFG, seed=1):
        self.folder = folder
        self.cfg, self.weights, self.made = (folder / name for name in ("net.cfg", "net.weights", "net.onnx"))
        self.cfg.write_text(text)
        self.network = nets.describe(DARKNET, self.cfg)
        nets.make_weights(self.network, self.weights, numpy.random.default_rng(seed))

    def export(self, *words, **options):
        return nets.export(DARKNET, self.cfg, self.weights, self.made, *words, **options)

    def refuses(self, said, *words, **options):
        """Status 1, one line, and what was there stays."""
        before = sorted(path.name for path in self.folder.iterdir())
        old = self.made.read_bytes() if self.made.exists() else None
        done = self.export(*words, **options)
        assert done.returncode == 1 and re.search(said, done.stderr), (said, done)
        assert done.stderr.count("error: ") == 1 or "Try `" in done.stderr, done.stderr
        assert sorted(path.name for path in self.folder.iterdir()) == before, list(self.folder.iterdir())
        assert (self.made.read_bytes() if self.made.exists() else None) == old

    def change(self, layer, tensor, value):
        """One number of the weights file."""
        at = 20
        for each in self.network["layers"]:
            for name, count in each["weights"]:
                if (each["index"], name) == (layer, tensor):
                    data = bytearray(self.weights.read_bytes())
                    data[at:at + 4] = value.astype("<f4").tobytes()
                    self.weights.write_bytes(data)
                at += 4 * count


def metadata(path, onnx):
    return {entry.key: json.loads(entry.value) for entry in onnx.load(path).metadata_props}


def check_half(place, onnx, numpy):
    """Half the bytes; which layers stay, and why, is said and written."""
    assert place.export().returncode == 0
    whole = place.made.stat().st_size
    done = place.export("--half")
    assert done.returncode == 0 and "boxes above 0.25" in done.stdout, done
    assert .5 <= place.made.stat().st_size / whole < .51, (place.made.stat().st_size, whole)
    assert metadata(place.made, onnx)["precision"]["layers_in_fp32"] == {}
    done = place.export("--half", "--keep", "0,2-3")
    assert done.stdout.count("stays in FP32: --keep") == 3, done.stdout
    assert set(metadata(place.made, onnx)["precision"]["layers_in_fp32"]) == {"0", "2", "3"}
    place.change(1, "rolling variances", numpy.array(0))  # batch-norm multiplies by a million then
    done = place.export("--half")
    assert "layer 1 [convolutional] stays in FP32: its weights, with batch-norm folded in, reach" in done.stdout, done
    types = {t.name: t.data_type for t in onnx.load(place.made).graph.initializer}
    assert [types[f"layer_{i}.weights"] for i in range(4)] == [10, 1, 10, 10], types
    place.cfg.write_text(CFG.replace("filters=14\n", "filters=14\nmixed_precision=0\n"))
    assert "layer 3 [convolutional] stays in FP32: mixed_precision=0 in its section" in place.export("--half").stdout


def check_metadata(place, onnx):
    names = place.folder / "names"
    names.write_text("cat\ndog\n")
    assert place.export("--names", names).returncode == 0
    found = metadata(place.made, onnx)
    assert found["names"] == ["cat", "dog"] and found["heads"][0]["anchors"] == [4, 4, 12, 12], found
    assert found["input"]["fitted"] == "letterboxed" and found["input"]["width"] == 32, found
    assert found["versions"][0].startswith("darknet-amp ") and found["precision"]["computes_in"] == "fp32", found
    names.write_text("cat\n")
    place.refuses("has 1 names, the network 2 classes", "--names", names)
    place.refuses("cannot be read", "--names", place.folder / "nowhere")


def check_arguments(place):
    place.refuses("--raw leaves out what --boxes and --nms need", "--raw", "--nms")
    place.refuses("--keep means something with --half only", "--keep", "1")
    place.refuses("--keep 2,9: 9: allowed: layers 0 to 4", "--half", "--keep", "2,9")
    place.refuses("--keep ,: : allowed: layers 0 to 4", "--half", "--keep", ",")
    place.refuses("--thresh means something with --nms only", "--thresh", "0.1")
    place.refuses('did you mean --half', "--hald")
    before = place.weights.read_bytes()  # a forgotten OUT.onnx: the second name is the weights
    done = nets.export(DARKNET, place.cfg, place.weights, place.weights)
    assert done.returncode == 1 and "allowed: a name that ends in .onnx" in done.stderr, done
    assert place.weights.read_bytes() == before


def check_hostile_weights(place, numpy):
    good = place.weights.read_bytes()
    for bad, said in ((good[:-4], "weights"), (good + bytes(4), "weights"), (good[:10], "weights"), (b"", "weights"),
                      (good[:len(good) // 2], "weights")):
        place.weights.write_bytes(bad)
        place.refuses(said)
    for layer, tensor, value, said in ((1, "weights", numpy.array(numpy.nan), "weights of layer 1 .* are not finite"),
                                       (0, "rolling variances", numpy.array(-1), "variances of layer 0 .* negative"),
                                       (1, "scales", numpy.array(3e38), "beyond FP32|not finite")):
        place.weights.write_bytes(good)
        place.change(layer, tensor, value)
        if tensor == "scales":
            place.change(layer, "rolling variances", numpy.array(0))
        place.refuses(said)
    place.weights.write_bytes(good)


def check_full_disk(place):
    """A file of more than 100,000 bytes cannot be written: neither is there a part of it, nor is the old one gone."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))
    place.refuses(r"net\.onnx: cannot be written: File too large", preexec_fn=limit)
    assert place.export().returncode == 0
    place.refuses(r"net\.onnx: cannot be written: File too large", preexec_fn=limit)


def check_sidecar(folder, numpy, onnx):
    """Layers that a training moved to FP32, since their values were too large, are in FP32 in the file; without the
    sidecar beside the weights they are not."""
    toyset.make(folder, max_batches=4, net_keys="mixed_precision=1\nseed=1")
    cfg = folder / "toy.cfg"
    cfg.write_text(re.sub("(?m)^learning_rate=.*", "learning_rate=1e-9", cfg.read_text()))
    place = Place(folder, numpy, cfg.read_text())
    place.change(1, "scales", numpy.array(3e4))  # of its normalized values some are beyond 2.2
    done = subprocess.run([DARKNET, "detector", "train", "toy.data", "net.cfg", "net.weights", "-clear", "-nogpu"],
                          cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    place.weights = folder / "backup/net_final.weights"
    sidecar = place.weights.with_name(place.weights.name + ".amp")
    plan = subprocess.run([DARKNET, "amp", "plan", place.cfg, place.weights, "--json", "--nogpu"], capture_output=True,
                          text=True)
    left = json.loads(plan.stdout)["sidecar"]["left_fp16"]
    assert 1 in left and len(left) < 6, left

    def held(*words):
        done = place.export("--half", *words)
        assert done.returncode == 0, done
        types = {tensor.name: tensor.data_type for tensor in onnx.load(place.made).graph.initializer}
        said = re.findall(r"layer (\d+) \[\w+\] stays in FP32: it left FP16 in training, by the sidecar", done.stdout)
        return [int(index) for index in said], types

    said, types = held()
    matrices = [layer["index"] for layer in place.network["layers"] if layer["weights"]]
    assert said == left, (said, left, plan.stderr)
    assert all(types[f"layer_{index}.weights"] == (1 if index in left else 10) for index in matrices), (left, types)
    found = metadata(place.made, onnx)["precision"]
    assert found["left_fp16_in_training"] == left and set(found["layers_in_fp32"]) == {str(index) for index in left}, found
    sidecar.unlink()
    said, types = held()
    assert said == [] and all(types[f"layer_{index}.weights"] == 10 for index in matrices), types


def check_comparison(place, folder):
    """A wrong answer is status 2. ONNX Runtime is one that gives zeros here."""
    (folder / "stub").mkdir()
    (folder / "stub/onnxruntime.py").write_text('''
import numpy
def set_default_logger_severity(level): pass
class Value:
    def __init__(self, name, shape): self.name, self.shape = name, shape
class InferenceSession:
    def __init__(self, model, providers): pass
    def get_inputs(self): return [Value("images", [1, 3, 32, 32])]
    def get_outputs(self): return [Value("boxes", None), Value("scores", None)]
    def run(self, names, given): return [numpy.zeros((1, 128, 4), "f4"), numpy.zeros((1, 128, 2), "f4")]
''')
    path = os.pathsep.join(filter(None, (str(folder / "stub"), os.environ.get("PYTHONPATH"))))
    for words in ((), ("--half",)):
        done = place.export(*words, environment={"PYTHONPATH": path})
        assert done.returncode == 2 and "is not the same: " in done.stderr and place.made.exists(), done


def check_not_compared(place, folder):
    done = place.export("--image", folder / "nowhere.png")
    assert done.returncode == 2 and "was written, but not compared: --image" in done.stderr and place.made.exists(), done


def check_missing_packages(folder):
    """A Python without them."""
    (folder / "bin").mkdir()
    python = folder / "bin/python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    python.chmod(0o755)
    done = subprocess.run([DARKNET, "amp", "export", "a.cfg", "a.weights", folder / "a.onnx"], capture_output=True,
                          text=True, env={**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"})
    assert done.returncode == 1 and "is missing: pip install onnx onnxruntime" in done.stderr, done


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_missing_packages(Path(folder))
    if missing := nets.missing_packages():
        print(f"SKIPPED `amp export`: Python has no {', '.join(missing)}")
        return
    import numpy
    import onnx
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "net").mkdir()
        place = Place(folder / "net", numpy)
        check_full_disk(place)
        check_hostile_weights(place, numpy)
        check_arguments(place)
        check_metadata(place, onnx)
        check_comparison(place, folder)
        check_not_compared(place, folder)
        check_half(place, onnx, numpy)
        check_sidecar(folder / "trained", numpy, onnx)
        place = Place(folder / "net", numpy, CLASSIFIER)
        place.refuses("--raw: .* is no detector", "--raw")
        done = place.export("--half")
        assert done.returncode == 0 and "(allowed: 0.05)" in done.stdout, done


main()
