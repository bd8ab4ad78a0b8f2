"""scripts/gpu-check.sh without a GPU: one line and exit status 77; its stages with stand-ins for the
programs; and its report from canned stages.

usage: gpu_check.py ROOT
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(sys.argv[1])


def test_no_gpu():
    done = subprocess.run([ROOT / "scripts/gpu-check.sh", "--quick"], text=True, capture_output=True,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 77, done
    assert len(done.stdout.splitlines()) == 1 and "no NVIDIA GPU" in done.stdout, done
    assert done.stderr == "", done


def test_arguments():
    done = subprocess.run([ROOT / "scripts/gpu-check.sh", "--fast"], text=True, capture_output=True)
    assert done.returncode == 1 and '"--fast"' in done.stderr, done


def make_executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def stand_ins(folder):
    """Binaries that do nothing, but one that fails, also under the sanitizer; an nvidia-smi that finds a
    GPU."""
    make_executable(folder / "path/nvidia-smi", "#!/bin/sh\necho NVIDIA H200\n")
    make_executable(folder / "path/compute-sanitizer", "#!/bin/sh\necho ========= $*\n"
                    "case $* in *_copy*) exit 9;; esac\n")
    for name in ("bin/bench_step", "bin/darknet", "lib/libdarknet.so", "tests/gpu_leaky_slope",
                 "tests/test_conformance_gpu_conv"):
        make_executable(folder / "binaries" / name, "#!/bin/sh\necho $AMPK_CUDA_UNTIMED of ${0##*/}\n")
    make_executable(folder / "binaries/tests/gpu_device_properties",
                    '#!/bin/sh\necho \'{"deviceName": "NVIDIA H200"}\'\n')
    make_executable(folder / "binaries/tests/test_conformance_gpu_copy",
                    "#!/bin/sh\necho this one is broken\nexit 1\n")


def check_with(folder, *arguments):
    """Exit status and the stages of the report."""
    environment = {**os.environ, "PATH": f"{folder}/path:{os.environ['PATH']}"}
    environment.pop("HOME", None)
    environment.pop("XDG_CACHE_HOME", None)
    done = subprocess.run([ROOT / "scripts/gpu-check.sh", *arguments, "--binaries", folder / "binaries",
                           "--out", folder / "out"], text=True, capture_output=True, env=environment)
    found = [json.loads(path.read_text()) for path in (folder / "out").glob("h200-*.json")]
    return done, {stage["name"]: stage["result"] for stage in found[0]["stages"]} if found else None


def test_stages(folder):
    stand_ins(folder)
    done, stages = check_with(folder, "--stages", "device-properties,conformance,engines,loss-curves")
    assert done.returncode == 1, done
    assert stages == {"device-properties": "pass", "conformance": "FAIL", "loss-curves": "FAIL",
                      "engines": "pass"}, (stages, done)
    (log,) = (folder / "out").glob("h200-*.log")
    said = log.read_text().split("==== ")
    assert "this one is broken" in said[2] and "1 of test_conformance_gpu_conv" in said[2], said
    assert said[4].endswith("\nof test_conformance_gpu_conv\n\n"), said  # by timed plans
    assert "2 failures" in done.stdout, done
    done, stages = check_with(folder, "--stages", "racecheck")
    assert done.returncode == 1 and stages == {"racecheck": "FAIL"}, (stages, done)
    assert "racecheck: 1 programs without an error, 1 with errors" in done.stdout, done
    assert "--tool racecheck" in done.stdout and "small.cfg none --gpu 0" in done.stdout, done
    done, _ = check_with(folder, "--stages", "benchmark")
    assert done.returncode == 1 and 'no stage "benchmark"' in done.stderr, done


DARKNET = f"""#!{sys.executable}
import pathlib, re, sys
data = pathlib.Path(sys.argv[3])
cfg = (data.parent / "toy.cfg").read_text()
for i in range(1, int(re.search("max_batches=(.*)", cfg)[1]) + 1):
    print(f"{{i}}: {{10 / i}}, {{10 / i}} avg, 0.1 rate, 0.1 seconds, 1 images")
(data.parent / "backup/toy_final.weights").write_bytes(bytes(20) + b"abcd")
if "amp_dtype=fp16" in cfg:
    print("darknet-amp: the work of a pass CAN be recorded (x)", file=sys.stderr)
"""


def test_recordings(folder):
    """A run whose passes are not recorded is named by both that train."""
    for can, status in (("can", 0), ("cannot", 1)):
        make_executable(folder / "darknet", DARKNET.replace("CAN", can))
        for script, arguments in (("loss_curves.py", ["--json", folder / "losses.json"]),
                                  ("invariants.py", [])):
            done = subprocess.run([sys.executable, ROOT / "tests/gpu" / script, folder / "darknet",
                                   *arguments], text=True, capture_output=True)
            said = "cannot be recorded (x)" in done.stdout + done.stderr
            assert done.returncode == status and said == bool(status), done
    assert len(json.loads((folder / "losses.json").read_text())["fp16"]) == 200


def test_report(folder):
    stages = [("device-properties", "pass", "1", ""), ("conformance", "FAIL", "12", "2 programs failed"),
              ("memcheck", "skipped", "0", "compute-sanitizer is not here")]
    (folder / "stages").write_text("".join("\t".join(stage) + "\n" for stage in stages))
    (folder / "device.json").write_text('{"deviceName": "NVIDIA H100 80GB HBM3"}')
    (folder / "leaky_slope.json").write_text(
        '{"forward": [{"engine": 2, "slope": "honoured"}, {"engine": 2, "slope": "ignored"}], '
        '"backward": []}')
    (folder / "bench.json").write_text("cut o")
    out = folder / "out"
    subprocess.run([sys.executable, ROOT / "scripts/gpu_report.py", folder, out], check=True,
                   capture_output=True)
    (page,), (record,) = out.glob("h100-80gb-hbm3-*.md"), out.glob("h100-80gb-hbm3-*.json")
    record = json.loads(record.read_text())
    assert record["stages"][1]["reason"] == "2 programs failed" and record["bench"] is None
    text = page.read_text()
    assert "| conformance | FAIL | 12 | 2 programs failed |" in text, text
    assert "forward: honoured, ignored (2 plans); backward: no engine (0 plans)" in text, text


test_no_gpu()
test_arguments()
with tempfile.TemporaryDirectory() as scratch:
    test_recordings(Path(scratch))
with tempfile.TemporaryDirectory() as scratch:
    test_stages(Path(scratch))
with tempfile.TemporaryDirectory() as scratch:
    test_report(Path(scratch))
