"""What amp_log holds of each iteration, and that asking for it changes no weight.

usage: log_numbers.py DARKNET
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

LAYERS = ["convolutional", "convolutional", "convolutional", "shortcut", "maxpool", "convolutional",
          "convolutional", "yolo", "route", "upsample", "route", "convolutional", "yolo"]


def train(folder, *keys, **settings):
    """The log's objects, and the bytes of the final weights."""
    keys = "\n".join(("mixed_precision=1", "seed=3") + keys)
    toyset.make(folder, net_keys=keys, **settings)
    result = subprocess.run([sys.argv[1], "detector", "train", "toy.data", "toy.cfg"], cwd=folder,
                            capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    log = folder / "log"
    objects = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    if objects:
        check_summary(objects.pop())
    return objects, (folder / "backup" / "toy_final.weights").read_bytes()


def check_summary(line):
    """The last line: every second is in one of its numbers."""
    summary = line["summary"]
    seconds = summary.pop("seconds")
    assert set(summary) == {"%s_seconds" % name for name in ("waiting", "forward", "backward", "update", "processes",
                                                             "evaluation", "saving", "other")}, summary
    assert seconds > 0 and abs(sum(summary.values()) - seconds) <= 1e-5 * seconds, (seconds, summary)
    assert min(summary.values()) >= 0 and summary["forward_seconds"] > 0 < summary["backward_seconds"], summary


def check_layers(layers):
    assert [layer["layer"] for layer in layers] == list(range(len(LAYERS)))
    assert [layer["type"] for layer in layers] == LAYERS
    for layer in layers:
        yolo = layer["type"] == "yolo"
        assert layer["format"] == ("fp32" if yolo or layer["layer"] in (6, 11) else "fp16"), layer
        if layer["layer"] == 2:  # goes into the shortcut's sum and is not stored
            assert layer["out_max"] is None, layer
        else:
            assert 0 < layer["out_max"] < 65504, layer
        if yolo:  # its delta goes straight to the convolution before it
            assert layer["delta_max"] is None and layer["delta_zero"] is None, layer
        else:
            assert 0 < layer["delta_max"], layer
            assert 0 <= layer["delta_zero"] < 1, layer


def main():
    with tempfile.TemporaryDirectory() as root:
        root = Path(root)
        log, logged = train(root / "logged", "amp_log=log", "amp_log_layers=2", max_batches=5)
        assert [o["iteration"] for o in log] == [1, 2, 3, 4, 5]
        assert all(o["grad_norm"] > 0 for o in log), log
        assert [o["iteration"] for o in log if "layers" in o] == [2, 4]
        for o in log:
            if "layers" in o:
                check_layers(o["layers"])
        _, bare = train(root / "bare", max_batches=5)
        assert logged == bare, "the log changes the weights"
        never, _ = train(root / "never", "amp_log=log", "amp_log_layers=0", max_batches=2)
        assert not any("layers" in o for o in never)
        # Every step overflows: the gradient has no norm, a delta no largest value.
        lost, _ = train(root / "lost", "amp_log=log", "amp_log_layers=1", "amp_on_overflow=skip",
                        "loss_scale_init=16777216", max_batches=1)
        assert lost[0]["skipped"] == 1 and lost[0]["grad_norm"] is None, lost
        assert all(layer["delta_max"] is None for layer in lost[0]["layers"])


main()
