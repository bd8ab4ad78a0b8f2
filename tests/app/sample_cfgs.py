"""The samples in cfg/: they train, with `detector train` and `classifier train`; mixed-features.cfg has every key of the
plugin's, and every choice that it names can be made.

usage: sample_cfgs.py ROOT DARKNET
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT, DARKNET = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(ROOT / "tests"))
import classset
import toyset

# What must go from mixed-features.cfg, or change, where one of its choices is made.
INSTEAD = {
    "amp_level": {"amp_dtype": None},
    "amp_reduce": {"amp_wire": None, "amp_sync_bn": None},
    "clip_grad_value": {"clip_grad_norm": None},
    "sgdr_cycle": {"policy": "sgdr"},
    "sgdr_mult": {"policy": "sgdr"},
    "cyclic_step": {"policy": "cyclic"},
    "momentum_min": {"policy": "onecycle", "burn_in": None, "learning_rate_min": None},
    "checkpoint": {"checkpoint": None},
}


def run(folder, *words):
    done = subprocess.run([DARKNET, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stderr[-3000:])
    return done


def changed(text, **keys):
    """The cfg's text with other values; None: without the key, in every section."""
    for key, value in keys.items():
        text = re.sub(rf"(?m)^{key}=.*\n", "" if value is None else f"{key}={value}\n", text)
    return text


def check_choices(folder):
    text = (ROOT / "cfg/mixed-features.cfg").read_text()
    page = (ROOT / "docs/options.md").read_text().partition("<!-- options:end -->")[0]
    known = set(re.findall(r"(?m)^\| `(\w+)` \|", page))
    written = set(re.findall(r"(?m)^#?(\w+)=", text))
    assert len(known) > 30 and known <= written, known - written
    choices = re.findall(r"(?m)^#(\w+)=.*$", text)
    assert len(choices) > 10, choices
    for key in choices:
        made = changed(text, **INSTEAD.get(key, {}))
        made = re.sub(rf"(?m)^#({key}=)", r"\1", made, count=1)
        if key.startswith("amp_log_"):  # they go with it
            made = re.sub(r"(?m)^#(amp_log=)", r"\1", made)
        (folder / "made.cfg").write_text(made)
        said = run(folder, "amp", "plan", "made.cfg").stderr
        assert not re.search(r"made\.cfg:\d+: ", said), (key, said)


def check_detector(folder, name):
    toyset.make(folder, images=24, size=160)
    text = changed((ROOT / f"cfg/{name}.cfg").read_text(), max_batches=30, burn_in=3, steps="24,28", batch=4)
    (folder / f"{name}.cfg").write_text(text)
    said = run(folder, "detector", "train", "toy.data", f"{name}.cfg").stdout
    losses = [float(loss) for loss in re.findall(r"(?m)^\d+: ([\d.]+), ", said)]
    assert len(losses) == 30 and sum(losses[-5:]) < .7 * sum(losses[:5]), losses
    saved = {path.name for path in (folder / "backup").iterdir()}
    assert {f"{name}_final.weights", f"{name}_final.weights.amp"} <= saved, saved
    assert (f"{name}_final_ema.weights" in saved) == (name == "mixed-features"), saved


def check_classifier(folder):
    """It learns, its weights are good for `classifier valid`, and it goes on from them."""
    classset.make(folder)
    text = (ROOT / "cfg/mixed-classifier.cfg").read_text()
    cfg = folder / "mixed-classifier.cfg"
    text = changed(text, mixed_precision="1\nseed=1", batch=32)
    cfg.write_text(changed(text, max_batches=120))
    done = run(folder, "classifier", "train", "c.data", cfg.name)
    assert "mixed precision plan: " in done.stderr and "100.0 % of " in done.stderr, done.stderr
    iterations = [int(i) for i in re.findall(r"(?m)^(\d+), [\d.]+: ", done.stdout)]
    assert iterations == list(range(1, 121)), iterations
    saved = "backup/mixed-classifier.weights"
    told = run(folder, "classifier", "valid", "c.data", cfg.name, saved).stdout
    right = float(re.findall(r"99: top 1: ([\d.]+)", told)[0])
    assert (folder / f"{saved}.amp").is_file()
    assert right > .5, right  # chance: .1; it was .9 to 1 without a seed
    cfg.write_text(changed(text, max_batches=123))
    done = run(folder, "classifier", "train", "c.data", cfg.name, saved)
    assert re.findall(r"(?m)^(\d+), [\d.]+: ", done.stdout) == ["121", "122", "123"], done.stdout[-1000:]


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        check_choices(folder)
        check_classifier(folder / "classes")
        for cfg in ("mixed-detector", "mixed-features"):
            check_detector(folder / cfg, cfg)


main()
