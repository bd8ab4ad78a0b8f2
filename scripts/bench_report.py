"""A record of scripts/bench-gpu as a page of Markdown."""

import re

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


WHAT_IS_TIMED = (
    "fixed and torch: the batch lies on the device, head gradients are given, no loss. alexeyab: "
    "an iteration of its `detector train`, loader included. All others: Darknet's `train_network_datum` with its loss; "
    "before each step it copies the FP32 images from the host, and nothing runs meanwhile (`detector train` with the "
    "plugin copies them beside the step before); no loader. Memory is that of the whole device, the peak of the "
    "steps that are timed; in brackets, from the start on, with reading the cfg and what cuDNN's timing takes where plans are not kept yet.")


def memory_text(contestant):
    """In GiB."""
    value, start = contestant["memory_bytes"], contestant.get("memory_from_start_bytes")
    return (f"{value / 2**30:.2f}" if value else "-") + (f" ({start / 2**30:.2f})" if start else "")


FASTEST = "fastest torch / fixed"
PROMISED = re.compile(r"\bH[12]00\b")  # in the names of the cards that the bars are for
# (model, batch, what, the least or most that it may be). None: any.
BARS = [
    (None, 16, "torch / fixed", ">=", 1.3), (None, 64, "torch / fixed", ">=", 1.3),
    (None, 4, FASTEST, ">=", 1.2), (None, None, FASTEST, ">=", 1.08),
    (None, None, "alexeyab / fp16", ">=", 4), (None, None, "stock / fp16", ">=", 8),
    (None, 64, "share of the floor, fixed", ">=", .5),
    ("yolov3-416", 16, "memory, fp16 / stock", "<=", .40),
    ("yolov3-416", 64, "memory, fp16 / stock", "<=", .33),
    (None, None, "memory, fixed / torch", "<=", 1),
]


def whole_memory(contestant):
    """From reading the cfg on."""
    return contestant.get("memory_from_start_bytes") or contestant["memory_bytes"]


def memory_ratios(contestants):
    """Ours over others', where both are known."""
    found = {}
    for what, ours, other, bytes_of in (
            ("memory, fp16 / stock", "fp16", "stock", whole_memory),
            ("memory, fixed / torch", "fixed", "torch", lambda c: c["memory_bytes"]),
            ("memory from the start, fixed / torch", "fixed", "torch", whole_memory)):
        both = [bytes_of(contestants[name]) for name in (ours, other) if name in contestants]
        if len(both) == 2 and all(both):
            found[what] = both[0] / both[1]
    return found


def verdicts(card, model, batch, contestants, ratios):
    """Every bar that something was measured for: {"what", "value", "bar", "met"}; the first one of a
    name counts. Other memory ratios have no bar, and another card has none at all."""
    values = {**{name: value["median"] for name, value in ratios.items()}, **memory_ratios(contestants)}
    if "floor_share" in contestants.get("fixed", {}):
        values["share of the floor, fixed"] = contestants["fixed"]["floor_share"]
    found = {what: {"what": what, "value": values[what], "bar": None, "met": None}
             for what in memory_ratios(contestants)}
    for of_model, of_batch, what, sign, limit in reversed(BARS):
        if PROMISED.search(card) and what in values and of_model in (None, model) and of_batch in (None, batch):
            met = values[what] >= limit if sign == ">=" else values[what] <= limit
            found[what] = {"what": what, "value": values[what], "bar": f"{sign} {limit:g}", "met": met}
    return list(found.values())


def verdict_text(bar, run):
    """One that is met against the fastest of PyTorch's, with what of PyTorch's was not measured: it may be faster."""
    if not bar["met"]:
        return "-" if bar["met"] is None else "**missed**"
    missing = run.get("torch_left_out") if bar["what"] == FASTEST else None
    return "met, without " + ", ".join(missing) if missing else "met"


def on_card(run):
    """No ratio without its card: on another one it is another ratio."""
    return f" on {run['device']['name']}" if run.get("device") else ""


def bar_lines(run):
    rows = [[bar["what"], f"{bar['value']:.2f}", bar["bar"] or "-", verdict_text(bar, run)]
            for bar in run.get("bars", [])]
    return ["", *bench_lib.table([f"bar{on_card(run)}", "measured", "limit", ""], rows)] if rows else []


def share_text(contestant, key):
    return f"{contestant[key]:.1%}" if key in contestant else "-"


def ceiling_lines(run):
    """What the shares are of."""
    ceilings = run.get("ceilings")
    if not ceilings or not ceilings["data_sheet"]:
        return []
    tera, giga = (value / scale for value, scale in zip(ceilings["data_sheet"], (1e12, 1e9)))
    sheet, measured = f"{tera:.0f} TFLOP/s and {giga:.0f} GB/s by data sheet", ceilings["measured"]
    of_floor = sheet + f" (not measured: {measured['failed']})" if "failed" in measured else (
        f"{measured['flops'] / 1e12:.0f} TFLOP/s and {measured['bytes_per_second'] / 1e9:.0f} GB/s, "
        "measured before (a matrix product, a copy)")
    return ["", f"Floor: arithmetic, then memory, at {of_floor}. Roofline: the longer of the two, at {sheet}."]


def torch_lines(run):
    """Which of PyTorch's ways were the fastest, and where it did not do what it was asked for."""
    names = [name for name in run.get("fastest_torch", []) if name]
    took_part = [name for name in run["contestants"] if name.startswith("torch")]
    lines = ["", f"Fastest torch in each round, of {', '.join(took_part)}: {', '.join(names)}."] if names else []
    return lines + [f"\n**{name}: {told['cudagraph_skips']} compiled graphs run without CUDA graphs**"
            for name, told in run["torch"].items() if told.get("cudagraph_skips")]


def gib(value):
    return f"{value / 2**30:.2f} GiB"


def memory_lines(run):
    """What of the whole device's memory is planned, and what of Darknet's has no memory."""
    lines, planned = [], run.get("planned_activations")
    if planned:
        lines += ["", f"Planned activations (`amp plan`), a part of that memory: {gib(planned['mixed'])} in mixed "
                      f"precision, {gib(planned['fp32'])} in FP32."]
    for name, c in run["contestants"].items():
        deferred = c.get("deferred_bytes")
        if deferred is not None and not name.startswith("stock"):
            lines += ["", f"{name}: {gib(deferred)} of Darknet's FP32 arrays are addresses without memory."]
    return lines


def loader_lines(run):
    """The rate with the loader beside that of the step alone."""
    if "end_to_end" not in run:
        return []
    rate, step = run["end_to_end"]["images_per_second"], run["contestants"].get("fp16")
    beside = (f"; the step alone (fp16): {step['images_per_second']:.0f}, so "
              f"{rate / step['images_per_second']:.0%} of it") if step else ""
    return ["", f"`detector train` with its loader on the host's CPU: {rate:.0f} images/s{beside}."]


def run_lines(run):
    """One model and batch as lines of Markdown."""
    lines = [f"## {run['model']}, batch {run['batch']}", ""]
    lines += bench_lib.table(
        ["step", "ms", "images/s", "TFLOP/s", "share of the floor", "share of the roofline", "memory, GiB"],
        [[name, f"{c['seconds'] * 1e3:.2f}", f"{c['images_per_second']:.0f}",
          f"{c['tflops']:.1f}" if "tflops" in c else "-",
          share_text(c, "floor_share"), share_text(c, "roofline_share"), memory_text(c)]
         for name, c in run["contestants"].items()])
    lines += ceiling_lines(run) + torch_lines(run) + memory_lines(run)
    if run["ratios"]:
        lines += ["", f"Rounds: {len(run['rounds'])}.", "",
                  *bench_lib.table([f"ratio{on_card(run)}", *bench_lib.RATIO_HEADER[1:]],
                                   bench_lib.ratio_rows(run["ratios"]))]
    lines += bar_lines(run)
    lines += loader_lines(run)
    lines += [f"\n{name}: not measured: {why}" for name, why in run["failed"].items()]
    return lines + [""]


def error_lines(model, errors):
    lines = []
    for name, e in errors.items():
        if "failed" in e:
            lines.append(f"**{model}, {name}: no comparison with PyTorch**: "
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
        lines += [f"Host: {host['cpu']}, {bench_lib.cores(host)}, which small batches measure too; {host['system']}; "
                  f"CUDA driver "
                  f"{device['driver']}, runtime {device['runtime']}; cuDNN {device['cudnn']}"
                  + (f", PyTorch {torch['torch']} with cuDNN {torch['device']['cudnn']}"
                     if torch else "") + f"; commit {host['commit']}.", ""]
    lines += [line for model, errors in record["errors"].items()
              for line in error_lines(model, errors)]
    lines += [WHAT_IS_TIMED, ""] if record["runs"] else []
    for run in record["runs"]:
        lines += run_lines(run)
    lines += heard_lines(record)
    return bench_lib.page(lines)
