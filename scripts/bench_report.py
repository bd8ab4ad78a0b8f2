"""A record of scripts/bench-gpu as a page of Markdown."""

import bench_lib

NOT_RECORDED = "cannot be recorded"  # what the plugin says of a pass's work


def heard(record):
    """{what the plugin said: [who it was]}"""
    found = {}
    told = [(f"{model}, {name}, comparison", e.get("said", []))
            for model, errors in record["errors"].items() for name, e in errors.items()]
    told += [(f"{run['model']}, batch {run['batch']}, {name}", lines)
             for run in record["runs"] for name, lines in run["said"].items()]
    for who, lines in told:
        for line in lines:
            found.setdefault(line, []).append(who)
    return found


def heard_lines(record):
    """The same as lines of Markdown; what makes times mean something else in bold."""
    said = heard(record)
    lines = ["## What the plugin said", ""] if said else []
    for line, who in said.items():
        line = line.removeprefix("darknet-amp: ")
        lines.append(f"- {'; '.join(who)}: " + (f"**{line}**" if NOT_RECORDED in line else line))
    return lines


def memory_text(value):
    return f"{value / 2**30:.2f}" if value else "-"


def run_lines(run):
    """One model and batch as lines of Markdown."""
    lines = [f"## {run['model']}, batch {run['batch']}", ""]
    lines += bench_lib.table(
        ["step", "ms", "images/s", "TFLOP/s", "share of the FP16 roofline", "memory, GiB"],
        [[name, f"{c['seconds'] * 1e3:.2f}", f"{c['images_per_second']:.0f}",
          f"{c['tflops']:.1f}" if "tflops" in c else "-",
          f"{c['roofline_share']:.1%}" if "roofline_share" in c else "-",
          memory_text(c["memory_bytes"])] for name, c in run["contestants"].items()])
    if run["ratios"]:
        lines += ["", *bench_lib.table(bench_lib.RATIO_HEADER, bench_lib.ratio_rows(run["ratios"]))]
    if "end_to_end" in run:
        lines += ["", f"With the loader: {run['end_to_end']['images_per_second']:.0f} images/s (fp16)."]
    lines += [f"\n{name}: not measured: {why}" for name, why in run["failed"].items()]
    return lines + [""]


def error_lines(model, errors):
    lines = []
    for name, e in errors.items():
        if "failed" in e:
            lines.append(f"**{model}, {name} could not be compared**: "
                         + " ".join(e["failed"].splitlines()[-1:]))
            continue
        if "heads" in e:
            own = "AMP" if name == "fp16" else "FP32"
            lines.append(f"{model}, {name}: heads {e['heads']:.1e}, weight gradients "
                         f"{e['weights']:.1e} from PyTorch's FP64 (PyTorch's own {own} "
                         f"{e['own']['heads']:.1e}, {e['own']['weights']:.1e})")
        if e["disagrees"]:
            lines.append(f"**{model}, {name} and PyTorch disagree; the times are of different "
                         f"computations**: {'; '.join(e['disagrees'][:3])}")
    return [line + "\n" for line in lines]


def page(record):
    """The whole record."""
    host = record["machine"]
    device = next((run["device"] for run in record["runs"] if run["device"]), None)
    torch = next((told for run in record["runs"] for told in run["torch"].values()), None)
    lines = [f"# Training steps on {device['name'] if device else 'a GPU'}, {record['date']}", ""]
    if device:
        lines += [f"{host['cpu']}, {bench_lib.cores(host)}; {host['system']}; CUDA driver "
                  f"{device['driver']}, runtime {device['runtime']}; cuDNN {device['cudnn']}"
                  + (f", PyTorch {torch['torch']} with cuDNN {torch['device']['cudnn']}"
                     if torch else "") + f"; commit {host['commit']}.", ""]
    lines += [line for model, errors in record["errors"].items()
              for line in error_lines(model, errors)]
    for run in record["runs"]:
        lines += run_lines(run)
    lines += heard_lines(record)
    return bench_lib.page(lines)
