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

PASSES = ("forward", "backward")


def run(folder, *args):
    return subprocess.run([sys.argv[1], "amp", *args], cwd=folder, capture_output=True, text=True)


def profile(folder, cfg, *args):
    told = run(folder, "profile", cfg, "-nogpu", *args)
    assert told.returncode == 0, told.stderr
    return told


def profile_json(folder, cfg, *args):
    return json.loads(profile(folder, cfg, "--json", *args).stdout)


def check_layers(result, plan):
    assert len(result["layers"]) == 13
    for i, (layer, planned) in enumerate(zip(result["layers"], plan["layers"])):
        assert (layer["layer"], layer["type"]) == (i, planned["type"])
        assert layer["forward_flop"] == 2 * planned["flop"], (layer, planned)
        if layer["forward_flop"]:  # nobody wants the gradient of the images
            assert layer["backward_flop"] == (1 if i == 0 else 2) * layer["forward_flop"], layer
        assert layer["mixed"]["format"] == planned["storage"], layer
        for name in PASSES:
            for way in ("fp32", "mixed"):
                assert layer[way][name + "_seconds"] > 0, layer


def near(a, b, tolerance):
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


def check_sums(result):
    parts = result["layers"] + [result["other"]]
    for way in ("fp32", "mixed"):
        total = result["total"][way]
        for name in PASSES:
            key = name + "_seconds"
            assert near(sum(p[way][key] for p in parts), total[key], 1e-6), (way, name)
            assert result["other"][way][key] > 0, (way, name)
        assert near(sum(p[way]["share"] for p in parts), 1, 1e-6), way
        seconds = total["forward_seconds"] + total["backward_seconds"] + result["update_seconds"][way]
        assert seconds <= result["step_seconds"][way] * 1.000001, (way, result["step_seconds"])


def check_json(folder):
    result = profile_json(folder, "toy.cfg")
    plan = json.loads(run(folder, "plan", "toy.cfg", "--json").stdout)
    assert result["cfg"] == "toy.cfg" and result["batch"] == 2 and result["rounds"] >= 3
    assert result["backend"] == "cpu" and result["device"] is None and result["threads"] >= 1
    assert result["versions"]["oneDNN"].count(".") == 2, result["versions"]
    assert result["no_fp32"] is None and result["loading"] is None
    assert result["update_seconds"]["fp32"] > 0 and result["update_seconds"]["mixed"] > 0
    check_layers(result, plan)
    check_sums(result)


def check_whose_time(folder):
    """One layer does nearly all of the work; the images are large, and taking them is no layer's."""
    conv = "[convolutional]\nsize=%d\nstride=%d\npad=1\nfilters=%d\nactivation=leaky\n"
    (folder / "heavy.cfg").write_text(
        "[net]\nbatch=4\nheight=256\nwidth=256\nchannels=3\n" + conv % (1, 16, 4) +
        conv % (3, 1, 8) + conv % (9, 1, 128) + "[maxpool]\nsize=4\nstride=4\n" + conv % (3, 1, 4) +
        "[cost]\n")
    result = profile_json(folder, "heavy.cfg")
    first, heavy, other = result["layers"][0]["mixed"], result["layers"][2], result["other"]["mixed"]
    for way in ("fp32", "mixed"):
        for name in PASSES:
            most = max(result["layers"], key=lambda l: l[way][name + "_seconds"])
            assert most["layer"] == 2, (way, name, most)
        seconds = [sum(part[way][name + "_seconds"] for name in PASSES) for part in (heavy, result["total"])]
        assert near(heavy[way]["share"], seconds[0] / seconds[1], 1e-6), (way, heavy)
    check_sums(result)
    assert other["forward_seconds"] > first["forward_seconds"], (other, first)


def check_words(folder):
    told = profile(folder, "toy.cfg", "-i", "0")
    assert told.stdout.startswith("\namp profile: toy.cfg, 2 images a pass"), told.stdout
    for word in ("\nother ", "\nall ", "update:", "whole step:", "fastest of "):
        assert word in told.stdout, told.stdout
    lines = told.stdout.split("\n\n")[1].split("\n")
    assert [line.split()[0] for line in lines[2:]] == [str(i) for i in range(13)] + ["other", "all"], lines
    for line in lines[2:]:  # the shares of both ways
        assert line.count("%") == 2, line
    for title in ("forward", "backward", "share", "gain", "GFLOP", "GFLOP/s"):
        assert title in lines[1], lines[1]
    assert max(map(len, told.stdout.split("\n"))) <= 150
    assert "not timed" not in told.stdout
    announced = [line for line in told.stderr.split("\n") if line.startswith("amp profile: ")]
    assert len(announced) == 3 and "3 to 15 rounds" in announced[2], told.stderr
    assert "images/s" not in told.stderr, "this is no training"


def check_without_fp32(folder):
    """Darknet's own code would crash."""
    (folder / "rnn.cfg").write_text("[net]\nbatch=4\ninputs=8\ntime_steps=2\nmixed_precision=1\n"
                                    "[rnn]\noutput=8\n[softmax]\n[cost]\n")
    why = "rnn.cfg:6: [rnn]: this Darknet crashes"
    result = profile_json(folder, "rnn.cfg")
    assert result["no_fp32"].startswith(why), result
    assert result["step_seconds"]["fp32"] is None and result["update_seconds"]["fp32"] is None
    for part in result["layers"] + [result["other"], result["total"]]:
        assert part["fp32"] is None and part["gain"] is None and part["mixed"]["share"] > 0, part
    text = profile(folder, "rnn.cfg").stdout
    assert text.count("Darknet's FP32 is not timed: " + why) == 1 and "nan" not in text, text
    row = next(line for line in text.split("\n") if "0 rnn 8" in line)
    assert row.split()[3:7] == ["-"] * 4, row


def check_no_loss(folder):
    """One layer, no loss, a huge learning rate: fifteen rounds, and no word of divergence."""
    (folder / "one.cfg").write_text("[net]\nbatch=4\nheight=8\nwidth=8\nchannels=3\nlearning_rate=100\n"
                                    "[convolutional]\nsize=3\npad=1\nfilters=8\nactivation=leaky\n")
    told = profile(folder, "one.cfg", "--json")
    assert json.loads(told.stdout)["rounds"] == 15, told.stdout
    assert "diverge" not in told.stderr, told.stderr


def check_left_fp16(folder):
    """The numbers are of what runs after layers have left FP16."""
    (folder / "large.cfg").write_text(
        "[net]\nbatch=2\nheight=8\nwidth=8\nchannels=3\nmixed_precision=1\namp_dtype=fp16\n"
        "[convolutional]\nsize=3\npad=1\n"
        "filters=8\nactivation=linear\n[upsample]\nstride=2\nscale=1000000\n[maxpool]\nsize=2\nstride=2\n"
        "[avgpool]\n[softmax]\n[cost]\n")
    told = profile(folder, "large.cfg", "--json")
    assert "amp profile: layer 1 left FP16" in told.stderr, told.stderr
    layers = json.loads(told.stdout)["layers"]
    assert layers[1]["mixed"]["format"] == "FP32", layers
    assert layers[0]["mixed"]["backward_seconds"] > 0, "a skipped step was counted"


def check_notes(folder):
    """Of the user's cfg, not of those that are timed, which have a learning rate of 0."""
    net = "[net]\nbatch=4\nheight=8\nwidth=8\nchannels=3\n%sauthor=me\n[conv]\nfilters=8 # x\n"
    for mixed in (True, False):
        (folder / "noted.cfg").write_text(net % ("mixed_precision=1\n" if mixed else ""))
        said = profile(folder, "noted.cfg").stderr
        assert "/proc/self/fd" not in said, said
        toyset.check_notes(
            said, "noted.cfg:%d: author=me in [net]: has no effect in this section" % (6 + mixed),
            "noted.cfg:%d: filters=8 # x in [conv]: Darknet reads 8; put the remark on its own line" % (8 + mixed))


def check_format(found):
    """By the Trace Event Format: whole process and thread numbers, microseconds; what a row shows lies one inside of
    the other or apart."""
    for e in found:
        assert type(e["pid"]) is int and type(e["tid"]) is int and e["name"], e
        assert set(e) == {"M": {"ph", "name", "pid", "tid", "args"},
                          "X": {"ph", "name", "cat", "pid", "tid", "ts", "dur"}}[e["ph"]], e
    open_until = {}
    for e in sorted((e for e in found if e["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"])):
        ends = open_until.setdefault(e["tid"], [])
        while ends and ends[-1] <= e["ts"] + .01:
            ends.pop()
        assert not ends or e["ts"] + e["dur"] <= ends[-1] + .01, (e, ends)
        ends.append(e["ts"] + e["dur"])


def check_trace(folder):
    """Layers lie inside of their passes, each once, and the images of the next step load meanwhile, part by part."""
    told = profile(folder, "toy.cfg", "toy.data", "--trace", "trace.json")
    assert "forward" in told.stdout
    found = json.loads((folder / "trace.json").read_text())["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in found if e["ph"] == "M"}
    assert rows[0] == "Darknet's FP32" and rows[1] == "mixed precision" and rows[2] == "loader thread 0", rows
    events = [e for e in found if e["ph"] == "X"]
    assert len(events) + len(rows) == len(found) and min(e["ts"] for e in events) == 0
    assert all(e["dur"] >= 0 and e["tid"] in rows for e in events)
    check_format(found)

    def inside(e, outer):
        return outer["ts"] <= e["ts"] + .01 and e["ts"] + e["dur"] <= outer["ts"] + outer["dur"] + .01

    for way in 0, 1:
        own = [e for e in events if e["tid"] == way]
        passes = {e["name"]: e for e in own if e["cat"] == "pass"}
        assert list(passes) == ["forward", "backward", "update"], passes
        for name, ending in ("forward", ""), ("backward", " backward"):
            layers = [e for e in own if e["cat"] == "layer" and e["name"].endswith(" backward") == bool(ending)]
            assert all(inside(e, passes[name]) for e in layers), (layers, passes)
            numbers = [int(e["name"].split()[0]) for e in layers]
            assert len(set(numbers)) == len(numbers) and 0 in numbers, numbers
            assert numbers == sorted(numbers, reverse=bool(ending)), numbers
    loads = [e for e in events if e["tid"] > 1]
    images = [e for e in loads if e["cat"] == "image"]
    assert len(images) == 2 and all(e["name"].startswith("image0") for e in images), images  # a pass has two
    for part in (e for e in loads if e["cat"] == "loading"):
        assert any(inside(part, image) and part["tid"] == image["tid"] for image in images), (part, images)
    (folder / "trace.json").unlink()
    refused = run(folder, "profile", "toy.cfg", "-nogpu", "--trace", "no/such/trace.json")
    assert refused.returncode == 1 and "no/such/trace.json" in refused.stderr and "round" not in refused.stderr, refused


def main():
    with tempfile.TemporaryDirectory() as root:
        folder = toyset.make(Path(root) / "toy", net_keys="mixed_precision=1\namp_log=log\nseed=1")
        before = sorted(folder.rglob("*"))
        check_json(folder)
        check_words(folder)
        check_trace(folder)
        assert sorted(folder.rglob("*")) == before, "a file was written"
        check_whose_time(folder)
        check_without_fp32(folder)
        check_no_loss(folder)
        check_left_fp16(folder)
        check_notes(folder)
        for args, said in (((), "needed: CFG"), (("none.cfg",), "none.cfg"),
                           (("toy.cfg", "toy.data", "x"), 'unexpected word "x"')):
            refused = run(folder, "profile", *args)
            assert refused.returncode == 1 and said in refused.stderr, refused
        assert "amp profile CFG" in run(folder).stderr


main()
