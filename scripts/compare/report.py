"""From the runs' folders to the report: one JSON object, the Markdown table, the page."""

import json
import os
import re
import statistics
import subprocess

import cost
import logs
import numerics
import page
import paired
import samples
from bench_lib import cores
from bench_lib import page as join_lines
from bench_lib import table
from cfgs import Cfg
from training import clock

FORMAT = "darknet-amp comparison 1"


# ---- what it ran on ----


def ask(*command):
    """Lines that a program prints, none where it is not here."""
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    except OSError:
        return []


def versions():
    """Of what the figures depend on besides our commit."""
    found = {}
    packages = ask("dpkg-query", "-W", "-f", "${Package} ${Version}\n", "libdnnl[0-9]*",
                   "libcudnn[0-9]*", "libopencv-core[0-9]*")
    installed = [line for line in packages if not line.endswith(" ")]
    if installed:
        found["libraries"] = ", ".join(installed)
    devices = ask("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    if devices:
        found["GPUs here, driver"] = "; ".join(devices)
    found["OpenMP threads"] = os.environ.get("OMP_NUM_THREADS", "as many as cores")
    return found


def printable(text):
    """With a mark for every byte that is no UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


# ---- reading ----


def read_run(run):
    """What a run's folder holds. problems: what is missing or wrong, as sentences."""
    state = run.state()
    output = run.output()
    found = {"run": run, "state": state or {}, "output": output, "maps": None, "problems": [],
             "log": logs.AmpLog(run.folder / "iterations.jsonl")}
    if state is None or not state["finished"]:
        found["problems"].append(f"not finished: {max(output, default=0)} of {run.iterations} "
                                 "iterations; left out")
        return found
    found["maps"] = read_maps(run, found["problems"])
    if not state["exact"]:
        found["problems"].append("was interrupted and went on without its momentum")
    check_log(found)
    return found


def read_maps(run, problems):
    measured = run.measured()
    if measured is None:
        problems.append(f"its {run.task.title} was not measured yet; left out")
        return None
    if measured["settings"]["images"] != run.images or any(
            measured[key] is None for key in run.task.metrics):
        problems.append(f"its map.json is of other images or has no {run.task.title}; left out")
        return None
    return measured


def check_log(found):
    log, run = found["log"], found["run"]
    if run.variant.stock:
        log.evaluations = logs.read_evaluations(run.folder / "train.log")
        return
    other = log.belongs_to(found["output"])
    if other:
        found["problems"].append(f"iterations.jsonl is of another run: {other}; not used")
        found["log"] = logs.AmpLog(run.folder / "nothing")
    elif log.missing:
        found["problems"].append("iterations.jsonl is missing: nothing on its numbers")
    found["problems"] += [f"iterations.jsonl {problem}" for problem in log.problems]


def find_strangers(out, planned):
    """Folders beside the runs that this comparison does not name."""
    names = {run.name for run in planned}
    return sorted(path.name for path in (out / "runs").glob("*-*")
                  if path.is_dir() and path.name not in names and not path.name.endswith(".partial"))


# ---- accuracy ----


def accuracy(found, metric):
    values = {row["run"].seed: row["maps"][metric] for row in found}
    return {"mean": statistics.fmean(values.values()), "sd": paired.spread(list(values.values())),
            "seeds": values}


def difference(found, base, metric, images):
    """Of the seeds that both have; None where there is none."""
    fp32 = {row["run"].seed: row["maps"] for row in base}
    pairs = [(row["maps"], fp32[row["run"].seed]) for row in found if row["run"].seed in fp32]
    if not pairs:
        return None
    drawn = []
    for rows in zip(*(zip(a["bootstrap"][metric], b["bootstrap"][metric]) for a, b in pairs)):
        if all(value is not None for row in rows for value in row):
            drawn.append([a - b for a, b in rows])
    return paired.compare([a[metric] - b[metric] for a, b in pairs], drawn, images) if drawn else None


def seed_shown(rows):
    """The first that is there of FP32 and of mixed precision; None where there is no pair."""
    seeds = [{row["run"].seed for row in rows if row["maps"] and row["run"].variant.name == name}
             for name in ("fp32", "mixed")]
    return min(seeds[0] & seeds[1], default=None)


def detection(rows):
    """Curves and confusions of that seed's runs. Older programs have measured none."""
    seed = seed_shown(rows)
    return [{"variant": row["run"].variant.name, "seed": seed, "counts": row["maps"]["counts"]} for row in rows
            if row["run"].seed == seed and row["maps"] and "counts" in row["maps"]]


# ---- the object ----


def describe_run(found, batch, goal, metric):
    run, log, output = found["run"], found["log"], found["output"]
    losses = [(key, row["loss"]) for key, row in sorted(output.items()) if row["loss"] is not None]
    return {
        "name": run.name, "variant": run.variant.name, "seed": run.seed,
        "iterations": max(output, default=0), "finished": bool(found["state"].get("finished")),
        "maps": {key: found["maps"][key] for key in run.task.metrics}
        if found["maps"] else None,
        "curves": {
            "loss": numerics.thin(losses), "loss_scale": numerics.steps(log.series("loss_scale")),
            "grad_norm": numerics.thin(log.series("grad_norm"), statistics.median),
            "map": [[key, row[metric]] for key, row in sorted(log.evaluations.items())
                    if row.get(metric) is not None],
        },
        "numerics": None if run.variant.stock else numerics.summarise(log),
        "cost": cost.of_run(found, batch, goal, metric),
    }


def describe_variant(variant, rows, described, base, about, images):
    """rows: its measured runs; described: all its runs; base: FP32's measured runs."""
    found = {"name": variant.name, "title": variant.title, "keys": variant.described(),
             "seeds": [row["run"].seed for row in rows], "accuracy": None, "difference": None}
    if rows:
        found["accuracy"] = {key: accuracy(rows, key) for key in about["metrics"]}
    if rows and variant.name != "fp32":
        differences = {key: difference(rows, base, key, images) for key in about["metrics"]}
        found["difference"] = differences if any(differences.values()) else None
    numbers = [run["numerics"] for run in described if run["numerics"]]
    found["numerics"] = {key: sum(row[key] or 0 for row in numbers) for key in
                         ("redone", "skipped", "not_finite")} if numbers else None
    return found


def judge(variants, base, about):
    """The sentences on top, one for each variant that has a pair with FP32."""
    verdicts = []
    metric, title = about["metric"], about["metrics"][about["metric"]]
    fp32_seeds = {row["run"].seed: row["maps"][metric] for row in base}
    control = next((variant["difference"] or {metric: {"seeds": 0}} for variant in variants
                    if variant["name"] == "control"), None)
    for variant in variants:
        if variant["name"] in ("fp32", "control"):
            continue
        found = variant["difference"] and variant["difference"][metric]
        if not found:
            verdicts.append({"variant": variant["name"], "verdict": "none", "seeds_needed": None,
                             "sentence": f"No verdict on {title} with {variant['title']}: no pair of "
                             "finished runs with FP32 yet."})
            continue
        mean = statistics.fmean(fp32_seeds[seed] for seed in variant["seeds"] if seed in fp32_seeds)
        verdicts.append({"variant": variant["name"],
                         **paired.judge(variant["title"], title, mean, found, about["margin"],
                                        control and control[metric])})
    return verdicts


def describe_layers(rows):
    """{variant: heat map} of the first seed that has one, held against FP32's of that seed."""
    fp32 = {row["run"].seed: row["log"] for row in rows if row["run"].variant.name == "fp32"}
    heat = {}
    for row in rows:
        run = row["run"]
        found = numerics.heat_map(row["log"], fp32.get(run.seed))
        if found and run.variant.name not in ("fp32", *heat):
            heat[run.variant.name] = {"run": run.name, **found,
                                      "extremes": numerics.extremes(found)}
    return heat


def plan_of(program, rows):
    """`amp plan` of the mixed cfg, None where it was not begun."""
    folders = [row["run"].folder for row in rows if row["run"].variant.name == "mixed"
               and (row["run"].folder / "net.cfg").exists()]
    if not folders:
        return None
    asked = subprocess.run([program, "amp", "plan", "net.cfg", "--json"], cwd=folders[0], text=True,
                           capture_output=True)
    return json.loads(asked.stdout) if asked.returncode == 0 else None


def hosts_of(rows):
    """What the finished runs were trained on, where they tell."""
    hosts = [row["state"].get("host") for row in rows]
    return [host for host in hosts
            if isinstance(host, dict) and isinstance(host.get("versions"), dict)]


def commits_of(rows):
    """The commits that they were trained with."""
    found = [host.get("commit") for host in hosts_of(rows)]
    found += [row["state"].get("build") for row in rows]  # before there was a host
    return sorted({commit for commit in found if isinstance(commit, str)})


def find_short(cfg):
    """What is odd about a schedule that --iterations has made short."""
    iterations, burn_in = cfg.number("max_batches"), cfg.get("burn_in", "0")
    if burn_in.isdigit() and int(burn_in) > iterations / 4:
        return [f"burn_in takes {burn_in} of the {iterations} iterations: the learning rate is below the "
                "cfg's for so long. --iterations does not change it."]
    return []


def dtypes_of(rows):
    """What the runs of mixed precision computed in, as the first line of their plans says; amp_dtype=auto may choose
    differently on another machine."""
    found = set()
    for row in rows:
        log = row["run"].folder / "train.log"
        if row["run"].variant.name == "mixed" and log.exists():
            found.update(re.findall(r"^mixed precision plan: (\w+)", log.read_text(errors="replace"), re.M))
    return sorted(found)


def find_notes(rows, out, planned):
    notes = [f"{row['run'].name}: {problem}." for row in rows for problem in row["problems"]]
    if len(dtypes_of(rows)) > 1:
        notes.append(f"The runs of mixed precision computed in different types: {', '.join(dtypes_of(rows))}.")
    strangers = find_strangers(out, planned)
    if strangers:
        notes.append(f"Not part of this comparison though in its folder: {', '.join(strangers)}.")
    if len(commits_of(rows)) > 1:
        notes.append(f"The runs come from different builds: {', '.join(commits_of(rows))}.")
    if len({json.dumps(dict(host, commit=None)) for host in hosts_of(rows)}) > 1:
        notes.append("The runs come from different machines, or from one whose libraries changed: ratios "
                     "of times mean little.")
    if any(cost.is_unsteady(row["output"]) for row in rows):
        notes.append("Iterations took very different times (10 % to 90 % in the table): the machine "
                     "was busy with other things, and ratios of times mean little.")
    notes += find_short(Cfg(planned[0].cfg))
    if any(run.variant.stock for run in planned):
        notes.append("Stock Darknet on the CPU differs from our FP32 in more than precision where a "
                     "1x1 convolution reads what other layers read too (README, Limits).")
    return notes


def add_cost(variants, runs):
    def costs(name):
        return {run["seed"]: run["cost"] for run in runs if run["variant"] == name and run["maps"]}

    base = costs("fp32")
    for variant in variants:
        variant["cost"] = cost.summarise(costs(variant["name"]), base)


def collect(planned, inputs, program, about):
    rows = [read_run(run) for run in planned]
    out = planned[0].folder.parent.parent
    measured = [row for row in rows if row["maps"]]
    base = [row for row in measured if row["run"].variant.name == "fp32"]
    goals = {row["run"].seed: cost.goal_of(row, about["metric"]) for row in base}
    batch = planned[0].batch
    images = len(inputs["set"]["valid"])
    described = [describe_run(row, batch, goals.get(row["run"].seed), about["metric"])
                 for row in rows]
    variants = []
    for variant in dict.fromkeys(run.variant for run in planned):
        variants.append(describe_variant(
            variant, [row for row in measured if row["run"].variant is variant],
            [run for run in described if run["variant"] == variant.name], base, about, images))
    add_cost(variants, described)
    return rows, {
        "format": FORMAT, "metric": about["metrics"][about["metric"]],
        "verdicts": judge(variants, base, about),
        "settings": {
            "cfg": about["cfg"], "data": about["data"], "metric": about["metric"], "measured": about["title"],
            "margin": about["margin"], "confidence": paired.CONFIDENCE,
            "weights": inputs["weights"].name if inputs["weights"] else None,
            "iterations": planned[0].iterations, "batch": batch, "images": images,
            "training_images": len(inputs["set"]["train"]), "classes": inputs["set"]["names"],
            "seeds": sorted({run.seed for run in planned}), "cfg_text": printable(inputs["cfg"]),
        },
        "variants": variants, "runs": described, "detection": detection(rows),
        "heat": describe_layers(rows), "plan": plan_of(program, rows),
        "dtypes": dtypes_of(rows), "notes": find_notes(rows, out, planned),
        "machine": {**about["machine"], **next(iter(hosts_of(rows)), {}),
                    "commit": ", ".join(commits_of(rows)) or about["machine"]["commit"]},
    }


def record(found):
    """What a document quotes and what it takes to run the comparison again: no curves, no heat maps and no
    table of layers, which only the page shows."""
    plan = found["plan"] and {key: value for key, value in found["plan"].items() if key != "layers"}
    runs = [{key: value for key, value in run.items() if key != "curves"} for run in found["runs"]]
    heat = {name: {"run": part["run"], "extremes": part["extremes"]} for name, part in found["heat"].items()}
    kept = {key: value for key, value in found.items() if key != "detection"}
    return {**kept, "runs": runs, "heat": heat, "plan": plan}


# ---- the table ----


def number(value, digits=3):
    return "–" if value is None else f"{value:.{digits}f}"


def with_ratio(cell, digits, unit="", show=number):
    """Median and its ratio to FP32."""
    if not cell or cell["median"] is None:
        return "–"
    ratio = "" if cell["ratio"] is None else f" ({cell['ratio']:.2f}x)"
    return show(cell["median"], digits) + unit + ratio


def accuracy_cells(variants, metric):
    def cell(variant):
        if not variant["accuracy"]:
            return "–"
        found = variant["accuracy"][metric]
        return number(found["mean"]) + (f" ± {number(found['sd'])}" if found["sd"] is not None else "")

    return [cell(variant) for variant in variants]


def difference_cells(variants, metric):
    def cell(variant):
        found = variant["difference"] and variant["difference"][metric]
        if not found:
            return ""
        return (f"{paired.points(found['mean'], True)} [{paired.points(found['low'], True)}, "
                f"{paired.points(found['high'], True)}]"
                + (" of the images only" if found["seeds"] == 1 else ""))

    return [cell(variant) for variant in variants]


def cost_cells(variants, key, digits, unit=""):
    def cell(variant):
        found = variant["cost"].get(key)
        if variant["name"] == "fp32" and found:
            found = {**found, "ratio": None}
        return with_ratio(found, digits, unit)

    return [cell(variant) for variant in variants]


def spread_cells(variants):
    def cell(variant):
        low, high = (variant["cost"].get(key, {}).get("median")
                     for key in ("seconds_10_percent", "seconds_90_percent"))
        return f"{low:.3f} to {high:.3f}" if low is not None else "–"

    return [cell(variant) for variant in variants]


def time_cells(variants):
    def cell(variant):
        found = variant["cost"].get("seconds_to_fp32")
        ratio = variant["name"] != "fp32" and found and found["ratio"]
        return with_ratio({**found, "ratio": ratio or None} if found else None, 0,
                          show=lambda value, _: clock(value))

    return [cell(variant) for variant in variants]


def table_rows(found, metrics):
    """[(what, [a cell for each variant])], without the rows that are empty."""
    variants = found["variants"]
    rows = []
    for key, title in metrics.items():
        rows.append((title, accuracy_cells(variants, key)))
        rows.append((f"difference to FP32, {100 * found['settings']['confidence']:.0f} % interval",
                     difference_cells(variants, key)))
    rows += [
        ("seeds", [str(len(variant["seeds"])) for variant in variants]),
        ("images per second", cost_cells(variants, "images_per_second", 1)),
        ("seconds per iteration, median", cost_cells(variants, "seconds_per_iteration", 3)),
        ("10 % to 90 % of them", spread_cells(variants)),
        (f"time to FP32's last {found['settings']['measured']}", time_cells(variants)),
        ("peak memory, host", cost_cells(variants, "peak_memory_mb", 0, " MiB")),
        ("peak memory, device", cost_cells(variants, "device_memory_mb", 0, " MiB")),
        ("passes redone / steps skipped",
         [f"{variant['numerics']['redone']} / {variant['numerics']['skipped']}"
          if variant["numerics"] and variant["name"] != "fp32" else "–" for variant in variants]),
    ]
    return [(title, cells) for title, cells in rows if any(cell not in ("–", "") for cell in cells)]


def markdown(found, rows):
    settings, host = found["settings"], found["machine"]
    device = host["versions"].get("computed on")
    header = ["", *(variant["title"] for variant in found["variants"])]
    return join_lines([
        *(f"**{verdict['sentence']}**" for verdict in found["verdicts"]), "",
        *table(header, [[title, *cells] for title, cells in rows]), "",
        f"{settings['cfg']}, {settings['data']}: {settings['iterations']} iterations of "
        f"{settings['batch']} images, {settings['images']} validation images. {host['cpu']}, "
        f"{cores(host)}, {host['system']}, commit {host['commit']}"
        + (f"; computed on {device}." if device else ".")
        + "".join(f" Mixed precision is {dtype}." for dtype in found["dtypes"]),
        *(f"- {note}" for note in found["notes"])])


def make(planned, inputs, program, about):
    """{"record": object, "markdown": text, "html": text}"""
    rows, found = collect(planned, inputs, program, about)
    cells = table_rows(found, about["metrics"])
    pictures = samples.make(rows, seed_shown(rows), inputs["set"]["valid"], about["samples"], program, about["device"])
    return {"record": record(found), "markdown": printable(markdown(found, cells)),
            "html": printable(page.make(found, cells, pictures))}
