"""`darknet amp check`: names what has to change, is fine with it, and leaves no file behind.

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


def check(folder, *args, status, words=False):
    """The JSON object. words: the text must say the same, and nothing that nobody asked for."""
    command = ["amp", "check", "toy.data", "toy.cfg", *args]
    told = run(folder, *command, "--json")
    result = json.loads(told.stdout)
    status = {"fine": 0, "advice": 2}[result["status"]] if status is None else status
    assert told.returncode == status, (told.stdout, told.stderr)
    if words:
        check_words(run(folder, *command), result, status)
    return result


def check_words(said, result, status):
    assert said.returncode == status, (said.stdout, said.stderr)
    for advice in result["advice"]:
        where = "toy.cfg:%d: %s" % (advice["line"], "below [" if "add" in advice else "replace the")
        assert where in said.stdout, said.stdout
        assert "\n    %s\n" % line_of(advice) in said.stdout, said.stdout
        if advice["layer"] is not None:
            assert "layer %d (" % advice["layer"] in said.stdout, said.stdout
    assert ("Every layer can train" in said.stdout) == (status == 0), said.stdout
    assert ("run this again" in said.stdout) == (status == 2), said.stdout
    assert said.stdout.startswith("\namp check: "), "something else was printed"


def line_of(advice):
    return advice["add"] if "add" in advice else advice["replace"]


def contents(folder):
    return {path: (path.stat().st_mtime_ns, path.read_bytes())
            for path in folder.rglob("*") if path.is_file()}


def scaled(folder, name, factors):
    """The trained weights with some layers' "scales" or "weights" multiplied."""
    body = bytearray((folder / "backup" / "toy_final.weights").read_bytes())
    at, done = 20, 0
    for i, (filters, size, normalized) in CONVOLUTIONS.items():
        places = {"biases": filters}
        if normalized:
            places.update(scales=filters, mean=filters, variance=filters)
        places["weights"] = filters * size
        for part, n in places.items():
            if (i, part) in factors:
                values = struct.unpack_from("<%df" % n, body, at)
                struct.pack_into("<%df" % n, body, at, *(v * factors[i, part] for v in values))
                done += 1
            at += 4 * n
    assert at == len(body) and done == len(factors), "the layers are not these"
    path = folder / (name + ".weights")
    path.write_bytes(body)
    return path.name


def paste(folder, result):
    """Does as it is told."""
    cfg = folder / "toy.cfg"
    lines = cfg.read_text().splitlines()
    for advice in sorted(result["advice"], key=lambda a: -a["line"]):
        place = advice["line"] - 1
        assert lines[place].startswith("[") == ("add" in advice), lines[place]
        lines[place] = lines[place] + "\n" + advice["add"] if "add" in advice else advice["replace"]
    cfg.write_text("\n".join(lines) + "\n")


def with_keys(folder, keys):
    cfg = (folder / "toy.cfg").read_text()
    if "amp_dtype" in keys:
        cfg = cfg.replace("amp_dtype=fp16\n", "")
    (folder / "toy.cfg").write_text(cfg.replace("seed=1\n", "seed=1\n" + keys, 1))


def check_fine(folder):
    before = contents(folder)
    assert (folder / "backup" / "toy_final.weights.amp") in before  # not to be taken up
    for args in ((), ("backup/toy_final.weights",)):
        result = check(folder, *args, status=0, words=True)
        assert result["status"] == "fine" and result["advice"] == []
        assert result["precision"] == "fp16"
        assert (result["batches"], result["images"]) == (4, 8)
        assert result["images_per_iteration"] == 4
        assert result["loss_scale"] >= 2 and result["redone"] > 0
        assert 0 < result["activation_bytes"]["mixed"] < result["activation_bytes"]["fp32"]
        assert len(result["layers"]) == 13
        for layer in result["layers"]:
            # Rounding to FP16 shows, and is all there is.
            assert 1e-5 < layer["output"]["relative_error"] < .05, layer
            assert layer["output"]["cosine"] > .999, layer
            fp16 = layer["format"] == "fp16"
            assert (layer["output"]["headroom"] is not None) == fp16, layer
            if layer["layer"] in CONVOLUTIONS:
                assert layer["weight_gradient"]["cosine"] > .98, layer
    assert contents(folder) == before, "a file was written"


def check_advice(folder, *args, first=None):
    """Pastes what is named and runs again until nothing more is. Returns what was named."""
    cfg = (folder / "toy.cfg").read_text()
    named, runs = {}, 0
    result = check(folder, *args, status=2, words=True)
    assert first in (None, result["advice"][0]["layer"]), result["advice"]
    while result["status"] != "fine":
        found = {advice["layer"]: advice["why"] for advice in result["advice"]}
        assert len(found) == len(result["advice"]) > 0 and runs < 8, result["advice"]
        assert not found.keys() & named.keys(), (found, named)
        named.update(found)
        paste(folder, result)
        result = check(folder, *args, status=None)
        runs += 1
    for layer in result["layers"]:
        assert layer["layer"] not in named or layer["format"] == "fp32", layer
        assert layer["output"]["cosine"] > .99, layer
    (folder / "toy.cfg").write_text(cfg)
    return named


def check_culprits(folder):
    # A convolution's sums overflow, and batch-norm makes them small again: nobody else is hit.
    weights = scaled(folder, "weights", {(5, "weights"): 1e5})
    named = check_advice(folder, weights)
    assert list(named) == [5] and "FP16 cannot hold its batch-norm input" in named[5], named
    # The output overflows, which its sum shows; those who read it as FP16 follow, and gradients
    # before it.
    named = check_advice(folder, scaled(folder, "scales", {(2, "scales"): 1e5}), first=3)
    assert sorted(list(named)[:2]) == [2, 3] and "cannot hold its output (" in named[2], named
    # In two places, the second in gradients only: there is nothing to compare before it is found.
    both = {(5, "weights"): 1e5, (11, "weights"): 1e9}
    named = check_advice(folder, scaled(folder, "both", both), first=5)
    assert any("even at loss scale 1 " in why for why in named.values()), named


def check_weights(folder):
    """Too small for FP16; so large that only the delta before them overflows; in FP32 already."""
    tiny = {(6, "weights"): 1e-9, (11, "weights"): 1e-9}
    named = check_advice(folder, scaled(folder, "tiny", tiny))
    assert list(named) == [6, 11] and all("of them 0" in why for why in named.values()), named
    named = check_advice(folder, scaled(folder, "large", {(6, "weights"): 1e3}))
    assert 6 in named and "its backward pass makes the delta of layer 5" in named[6], named
    check_advice(folder, scaled(folder, "nothing", {(0, "weights"): 1e-12}), first=0)


def check_section_that_says_otherwise(folder):
    cfg = (folder / "toy.cfg").read_text()
    parts = cfg.split("[convolutional]\n")
    parts[4] = "mixed_precision=1\n" + parts[4]
    (folder / "toy.cfg").write_text("[convolutional]\n".join(parts))
    named = check_advice(folder, "weights.weights")
    assert list(named) == [5], named
    (folder / "toy.cfg").write_text(cfg)


def check_fixed_scale(folder):
    cfg = (folder / "toy.cfg").read_text()
    with_keys(folder, "loss_scale=1048576\n")
    result = check(folder, status=2)
    assert [(a["layer"], a["replace"]) for a in result["advice"]] == [(None, "loss_scale=dynamic")]
    assert list(check_advice(folder)) == [None]
    (folder / "toy.cfg").write_text(cfg)
    with_keys(folder, "loss_scale=256\n")
    assert check(folder, status=0)["loss_scale"] == 256
    (folder / "toy.cfg").write_text(cfg)
    with_keys(folder, "loss_scale_min=65536\nloss_scale_init=1048576\n")
    result = check(folder, status=2)
    assert [a["replace"] for a in result["advice"]] == ["loss_scale_min=1"], result["advice"]
    (folder / "toy.cfg").write_text(cfg)


def check_dtypes(folder):
    cfg = (folder / "toy.cfg").read_text()
    with_keys(folder, "amp_dtype=bf16\n")
    weights = "scales.weights"  # which do not fit FP16
    said = run(folder, "amp", "check", "toy.data", "toy.cfg", weights)
    assert said.returncode == 0 and "bf16" in said.stdout, said
    assert "FP16" not in said.stdout and "fp16" not in said.stdout, said.stdout
    assert "has an effect" not in said.stderr, said.stderr  # of a key that the user has not given
    result = check(folder, weights, status=0)
    assert (result["precision"], result["loss_scale"]) == ("bf16", 1)
    (folder / "toy.cfg").write_text(cfg)
    with_keys(folder, "amp_dtype=fp32\n")
    said = run(folder, "amp", "check", "toy.data", "toy.cfg")
    assert said.returncode == 1 and not said.stdout, said
    assert "amp_dtype=fp32" in said.stderr and "nothing to compare" in said.stderr, said.stderr
    for keys in ("", "amp_dtype=bf16\n"):  # a user who has not decided yet
        undecided = cfg.replace("mixed_precision=1\n", "", 1)
        (folder / "toy.cfg").write_text(undecided.replace("amp_dtype=fp16\n", keys or "amp_dtype=fp16\n"))
        said = run(folder, "amp", "check", "toy.data", "toy.cfg")
        assert said.returncode == 0 and "checked as if it were" in said.stdout, said
        assert check(folder, status=0)["precision"] == ("bf16" if keys else "fp16")
    (folder / "toy.cfg").write_text(cfg)


def check_dropout(folder):
    """Both passes drop the same."""
    cfg = (folder / "toy.cfg").read_text()
    head, sep, tail = cfg.rpartition("[convolutional]\n")
    (folder / "toy.cfg").write_text(head + "[dropout]\nprobability=.5\n\n" + sep + tail)
    for layer in check(folder, status=0)["layers"]:
        assert layer["output"]["relative_error"] < .05, layer
    (folder / "toy.cfg").write_text(cfg)


def check_later_batches(root):
    """All images but every fourth are black, of which batch-norm makes zeros."""
    folder = toyset.make(root / "black", net_keys="mixed_precision=1\nseed=1")
    cfg = (folder / "toy.cfg").read_text()
    cfg = cfg.replace("[convolutional]", "[convolutional]\nmixed_precision=0", 1)  # overflows
    (folder / "toy.cfg").write_text(cfg.replace("jitter=.2", "jitter=0"))
    for i in (0, 1, 2, 4, 5, 6):
        toyset.write_png(folder / ("image%03d.png" % i), 32, 32, bytes(32 * 32 * 3))
    images = (folder / "train.txt").read_text().splitlines()
    for listed, seen in ((images, True), (images[:3], False)):
        (folder / "train.txt").write_text("\n".join(listed) + "\n")
        result = json.loads(run(folder, "amp", "check", "toy.data", "toy.cfg", "--json").stdout)
        assert (result["layers"][0]["output"]["largest"] > 0) == seen, (listed, result)


def check_hopeless(folder):
    """FP32 itself overflows: that is not FP16's fault."""
    said = run(folder, "amp", "check", "toy.data", "toy.cfg",
               scaled(folder, "huge", {(5, "scales"): 1e38, (6, "weights"): 1e30}))
    assert said.returncode == 1 and not said.stdout, said
    assert "a pass in FP32 is not finite: output of layer 5" in said.stderr, said.stderr
    said = run(folder, "amp", "check", "toy.data", "toy.cfg",
               scaled(folder, "statistics", {(5, "weights"): 1e30}))
    assert said.returncode == 1 and not said.stdout, said
    assert "FP32 is not finite: running statistics of layer 5" in said.stderr, said.stderr
    assert "training diverged" not in said.stderr, said.stderr


def check_refusals(folder):
    for args, said in (((), "needed: DATA CFG"), (("toy.data", "none.cfg"), "none.cfg"),
                       (("toy.data", "toy.cfg", "none.weights"), "none.weights")):
        result = run(folder, "amp", "check", *args)
        assert result.returncode == 1 and said in result.stderr and not result.stdout, result
    assert run(folder, "amp").stderr.count("amp check DATA CFG") == 1


def check_notes(folder):
    """Of the user's cfg, whether mixed precision is on there or not; none of the cfgs that are compared."""
    cfg = (folder / "toy.cfg").read_text()
    # Without mixed_precision=1 training would say of loss_scale_min that it has no effect.
    with_keys(folder, "loss_scale_min=1\nauthor=me\n")
    edited = (folder / "toy.cfg").read_text().replace("stride=2\n", "stride=2 # x\n", 1)
    edited = edited.replace("burn_in=10", "burn_in=0")
    for text in (edited, edited.replace("mixed_precision=1\n", "", 1),
                 edited.replace("mixed_precision=1\n", "mixed_precision=0\n", 1)):
        (folder / "toy.cfg").write_text(text)
        lines = text.splitlines()
        said = run(folder, "amp", "check", "toy.data", "toy.cfg")
        assert said.returncode == 0 and "/proc/self/fd" not in said.stderr, said.stderr
        toyset.check_notes(
            said.stderr,
            "toy.cfg:%d: author=me in [net]: has no effect in this section"
            % (lines.index("author=me") + 1),
            "toy.cfg:%d: stride=2 # x in [convolutional]: Darknet reads 2; put the remark on its own line"
            % (lines.index("stride=2 # x") + 1))
    # A fault that only mixed precision has names the user's file and line, too.
    (folder / "toy.cfg").write_text(text.replace("loss_scale_min=1\n", "bacth=4\n"))
    said = run(folder, "amp", "check", "toy.data", "toy.cfg")
    where = "error: toy.cfg:%d: bacth=4 in [net]: unknown key" % (lines.index("loss_scale_min=1") + 1)
    assert said.returncode == 1 and where in said.stderr, said.stderr
    (folder / "toy.cfg").write_text(cfg)


def main():
    with tempfile.TemporaryDirectory() as root:
        keys = "mixed_precision=1\nseed=1\namp_log=log"
        folder = toyset.make(Path(root) / "toy", net_keys=keys, max_batches=4)
        assert run(folder, "detector", "train", "toy.data", "toy.cfg").returncode == 0
        check_fine(folder)
        check_culprits(folder)
        check_weights(folder)
        check_section_that_says_otherwise(folder)
        check_fixed_scale(folder)
        check_dtypes(folder)
        check_notes(folder)
        check_dropout(folder)
        check_later_batches(Path(root))
        check_hopeless(folder)
        check_refusals(folder)


main()
