"""`darknet amp profile`: every layer and pass, in FP32 and in mixed precision.

usage: profile_command.py DARKNET
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset


def run(folder, *args):
    return subprocess.run([sys.argv[1], "amp", *args], cwd=folder, capture_output=True, text=True)


def check_json(folder):
    told = run(folder, "profile", "toy.cfg", "--json")
    assert told.returncode == 0, told.stderr
    result, plan = json.loads(told.stdout), json.loads(run(folder, "plan", "toy.cfg", "--json").stdout)
    assert result["batch"] == 2 and result["rounds"] >= 3
    assert len(result["layers"]) == 13
    assert result["update_seconds"]["fp32"] > 0 and result["update_seconds"]["mixed"] > 0
    for i, (layer, planned) in enumerate(zip(result["layers"], plan["layers"])):
        assert (layer["layer"], layer["type"]) == (i, planned["type"])
        assert layer["forward_flop"] == 2 * planned["flop"], (layer, planned)
        if layer["forward_flop"]:  # nobody wants the gradient of the images
            assert layer["backward_flop"] == (1 if i == 0 else 2) * layer["forward_flop"], layer
        assert layer["mixed"]["format"] == planned["storage"], layer
        for way in ("fp32", "mixed"):
            assert layer[way]["forward_seconds"] > 0 and layer[way]["backward_seconds"] > 0, layer
        half = layer["type"] in ("shortcut", "maxpool", "route", "upsample")
        for way in ("forward_bytes", "backward_bytes"):
            gain = layer["fp32"][way] / layer["mixed"][way]
            assert gain == 2 if half else gain >= 1, layer
    convolutions = [l for l in result["layers"] if l["type"] == "convolutional"]
    others = [l for l in result["layers"] if l["type"] == "route"]
    assert sum(l["fp32"]["forward_seconds"] for l in convolutions) > \
        sum(l["fp32"]["forward_seconds"] for l in others), "these are not the layers' times"


def check_words(folder):
    short, full = run(folder, "profile", "toy.cfg"), run(folder, "profile", "toy.cfg", "--all")
    assert short.returncode == full.returncode == 0, (short.stderr, full.stderr)
    assert "mixed precision plan" not in short.stderr, short.stderr
    assert short.stdout.startswith("\namp profile: toy.cfg, 2 images a pass"), short.stdout
    for word in ("convolutional x 6", "yolo x 2", "longest layers", "forward and backward", "update:"):
        assert word in short.stdout, short.stdout
    for i in range(13):
        assert "\n%3d " % i in full.stdout, full.stdout
    assert "longest layers" not in full.stdout


def main():
    with tempfile.TemporaryDirectory() as root:
        folder = toyset.make(Path(root) / "toy", net_keys="mixed_precision=1\namp_log=log\nseed=1")
        before = sorted(folder.rglob("*"))
        check_json(folder)
        check_words(folder)
        assert sorted(folder.rglob("*")) == before, "a file was written"
        for args, said in (((), "usage"), (("none.cfg",), "none.cfg"),
                           (("toy.cfg", "other.cfg"), "usage")):
            refused = run(folder, "profile", *args)
            assert refused.returncode == 1 and said in refused.stderr, refused
        (folder / "rnn.cfg").write_text("[net]\nbatch=4\ninputs=8\ntime_steps=2\nmixed_precision=1\n"
                                        "[rnn]\noutput=8\n[softmax]\n[cost]\n")
        refused = run(folder, "profile", "rnn.cfg")  # Darknet's own code would crash
        assert refused.returncode == 1 and "rnn.cfg:6: [rnn]: this Darknet crashes" in refused.stderr, refused
        assert "amp profile CFG" in run(folder).stderr


main()
