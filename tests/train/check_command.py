"""`darknet amp check`: names the layer that does not fit FP16, and leaves no file behind.

usage: check_command.py DARKNET
"""

import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

# Of toyset's convolutions: filters, floats of a filter, batch-norm.
CONVOLUTIONS = {0: (8, 27, 1), 1: (4, 8, 1), 2: (8, 36, 1), 5: (16, 72, 1), 6: (14, 16, 0),
                11: (14, 24, 0)}


def run(folder, *args):
    return subprocess.run([sys.argv[1], *args], cwd=folder, capture_output=True, text=True)


def check(folder, *args, status):
    """The JSON object; and the words, which must say the same."""
    command = ["amp", "check", "toy.data", "toy.cfg", *args]
    said, told = run(folder, *command), run(folder, *command, "--json")
    assert (said.returncode, told.returncode) == (status, status), (said.stdout, said.stderr)
    result = json.loads(told.stdout)
    for advice in result["advice"]:
        assert "layer %d (" % advice["layer"] in said.stdout, said.stdout
        assert "toy.cfg:%d: below" % advice["line"] in said.stdout, said.stdout
    assert ("Every layer can train" in said.stdout) == (status == 0), said.stdout
    assert said.stdout.startswith("\namp check: "), "something else was printed"
    return result


def contents(folder):
    return {path: (path.stat().st_mtime_ns, path.read_bytes())
            for path in folder.rglob("*") if path.is_file()}


def scaled(folder, layer, part, factor):
    """The trained weights with one layer's `part` ("scales", "weights") multiplied."""
    body = bytearray((folder / "backup" / "toy_final.weights").read_bytes())
    at = 20
    for i, (filters, size, normalized) in CONVOLUTIONS.items():
        places = {"biases": filters}
        if normalized:
            places.update(scales=filters, mean=filters, variance=filters)
        places["weights"] = filters * size
        for name, n in places.items():
            if (i, name) == (layer, part):
                values = struct.unpack_from("<%df" % n, body, at)
                struct.pack_into("<%df" % n, body, at, *(v * factor for v in values))
            at += 4 * n
    assert at == len(body), "the layers are not these"
    path = folder / ("%s%d.weights" % (part, layer))
    path.write_bytes(body)
    return path.name


def paste(folder, result):
    """Does as it is told."""
    cfg = folder / "toy.cfg"
    lines = cfg.read_text().splitlines()
    for advice in sorted(result["advice"], key=lambda a: -a["line"]):
        assert lines[advice["line"] - 1].startswith("["), lines[advice["line"] - 1]
        lines.insert(advice["line"], advice["add"])
    cfg.write_text("\n".join(lines) + "\n")


def check_fine(folder):
    before = contents(folder)
    for args in ((), ("backup/toy_final.weights",)):
        result = check(folder, *args, status=0)
        assert result["status"] == "fine" and result["advice"] == []
        assert result["images"] == 2 and result["images_per_iteration"] == 4
        assert result["loss_scale"] >= 2 and result["redone"] > 0
        assert all(seconds > 0 for seconds in result["seconds_per_iteration"].values())
        assert 0 < result["activation_bytes"]["mixed"] < result["activation_bytes"]["fp32"]
        assert len(result["layers"]) == 13
        for layer in result["layers"]:
            # Rounding to FP16 shows, and is all there is.
            assert 1e-5 < layer["output"]["relative_error"] < .05, layer
            assert layer["output"]["cosine"] > .999, layer
            if layer["layer"] in CONVOLUTIONS:
                assert layer["weight_gradient"]["cosine"] > .98, layer
    assert contents(folder) == before, "a file was written"


def check_culprit(folder, layer, part, factor, reason):
    cfg = (folder / "toy.cfg").read_text()
    weights = scaled(folder, layer, part, factor)
    result = check(folder, weights, status=2)
    assert result["advice"][0]["layer"] == layer, result["advice"]
    assert reason in result["advice"][0]["why"], result["advice"]
    named = [advice["layer"] for advice in result["advice"]]
    while result["advice"]:  # gradients that overflow are named one at a time
        assert len(named) < 13, named
        paste(folder, result)
        command = ("amp", "check", "toy.data", "toy.cfg", weights, "--json")
        result = json.loads(run(folder, *command).stdout)
        named += [advice["layer"] for advice in result["advice"]]
    assert check(folder, weights, status=0)["status"] == "fine"
    (folder / "toy.cfg").write_text(cfg)
    return named


def check_refusals(folder):
    for args, said in (((), "usage"), (("toy.data", "none.cfg"), "none.cfg"),
                       (("toy.data", "toy.cfg", "none.weights"), "none.weights")):
        result = run(folder, "amp", "check", *args)
        assert result.returncode == 1 and said in result.stderr and not result.stdout, result
    assert run(folder, "amp").stderr.count("amp check DATA CFG") == 1


def main():
    with tempfile.TemporaryDirectory() as root:
        folder = toyset.make(Path(root) / "toy", net_keys="seed=1\namp_log=log", max_batches=4)
        assert run(folder, "detector", "train", "toy.data", "toy.cfg").returncode == 0
        check_fine(folder)
        assert not (folder / "log").exists()
        # A convolution's sums overflow, and batch-norm makes them small again: nobody else is hit.
        assert check_culprit(folder, 5, "weights", 1e5, "batch-norm") == [5]
        # The output itself overflows: those who read it as FP16 follow.
        assert check_culprit(folder, 2, "scales", 1e5, "output")[:2] == [2, 3]
        check_refusals(folder)


main()
