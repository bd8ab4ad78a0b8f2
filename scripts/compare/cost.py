"""What a run costs: time, memory, and how long it takes to FP32's accuracy."""

import math
import statistics

from paired import quantile

LEAST_GOAL = 0.01
WARM_UP = 5  # iterations at the start that are not timed: plans are made, files come into memory


def seconds_of(output):
    """Seconds of the iterations that are timed, the wait for images included."""
    rows = [entry["seconds"] for _, entry in sorted(output.items())]
    return rows[WARM_UP:] if len(rows) > 2 * WARM_UP else rows


def is_unsteady(output):
    """More than one iteration in ten took twice the median, and it is not for want of a clock."""
    seconds = seconds_of(output)
    median = statistics.median(seconds) if seconds else 0
    return median > 0.05 and quantile(seconds, 0.9) > 2 * median


def time_to(accuracy, evaluations, output, metric):
    """Seconds of training until an evaluation reached it, None where none did."""
    for number, entry in sorted(evaluations.items()):
        if entry.get(metric) is not None and entry[metric] >= accuracy:
            return sum(row["seconds"] for key, row in output.items() if key <= number)
    return None


def of_run(run, batch, goal, metric):
    """run: {"output", "log", "state"}; goal: the mAP to reach, None where there is none."""
    seconds = seconds_of(run["output"])
    median = statistics.median(seconds) if seconds else None
    return {
        "seconds_per_iteration": median,
        "seconds_10_percent": quantile(seconds, 0.1) if seconds else None,
        "seconds_90_percent": quantile(seconds, 0.9) if seconds else None,
        "images_per_second": batch / median if median else None,
        "peak_memory_mb": run["state"].get("peak_memory_mb"),
        "device_memory_mb": run["state"].get("device_memory_mb"),
        "seconds_to_fp32": time_to(goal, run["log"].evaluations, run["output"], metric)
        if goal is not None else None,
    }


def goal_of(fp32, metric):
    """FP32's last mAP during training, None where it was not measured, or is next to nothing."""
    evaluations = fp32["log"].evaluations if fp32 else {}
    last = evaluations[max(evaluations)].get(metric) if evaluations else None
    return last if last is not None and last >= LEAST_GOAL else None


def middle(values):
    """Median of those that are there, none below 0; between two, their geometric mean, so that the
    middle of reciprocals is the reciprocal of the middle."""
    values = [value for value in values if value is not None]
    if not values:
        return None
    return math.sqrt(statistics.median_low(values) * statistics.median_high(values))


def summarise(costs, base):
    """Of a variant: {seed: cost} of it and of FP32. The median over its runs, and over the seeds that
    both have the median ratio to FP32."""
    keys = next(iter(costs.values())).keys() if costs else ()
    found = {}
    for key in keys:
        ratios = [cost[key] / base[seed][key] for seed, cost in costs.items()
                  if seed in base and cost[key] is not None and base[seed][key]]
        found[key] = {"median": middle(cost[key] for cost in costs.values()),
                      "ratio": middle(ratios)}
    return found
