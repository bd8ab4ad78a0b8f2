"""Is a variant as accurate as FP32? Paired differences, their interval, a verdict.

Every seed gives one pair of runs with the same initial weights, images and augmentation, and all runs
are measured on the same validation images. Two things are random: the seeds, and the images. The
interval has a part for each, added as squares (MOVER: Zou, Donner, "Construction of confidence limits
about effect measures", Statistics in Medicine 2008): Student's t over the seeds, because they are
few, and the bootstrap over the images, a drawing of images being the same for all runs. Of what the
images contribute, that which differs from seed to seed is among the differences between seeds
already; the second part is what they have in common, the covariance between seeds.

A plain bootstrap of both (seeds and images drawn with replacement) would be too narrow: with five seeds
95 % of it holds the truth in about 85 % of all comparisons.

Equal means: the whole 95 % interval lies within the margin. Better or worse: the interval is on one side of 0,
and the difference is larger than that of a control, FP32 trained once more per seed with a learning rate that is
0.01 % higher. On a small validation set such runs end as far apart as any two, and three seeds of chance look
like a difference. Fewer than LEAST_SEEDS get no verdict.
"""

import bisect
import math
import statistics
import sys

try:
    from scipy.special import stdtrit
except ImportError:
    sys.exit("compare: scipy is missing: apt-get install python3-scipy")

CONFIDENCE = 0.95
POWER = 0.8
LEAST_SEEDS = 5
MOST_SEEDS = 1000
NORMAL = statistics.NormalDist()


# ---- the difference ----


def t_quantile(p, freedom):
    """Student's."""
    return float(stdtrit(freedom, p))


def spread(values):
    """Standard deviation, None of a single value."""
    return statistics.stdev(values) if len(values) > 1 else None


def quantile(values, p):
    """Linear between the two nearest."""
    values = sorted(values)
    place = p * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])


def common_variance(drawn):
    """Mean covariance over the drawings between two seeds, from the variance of their sum; of one
    seed, its variance. Not below 0."""
    n = len(drawn[0])
    of_sum = statistics.pvariance([sum(row) for row in drawn])
    if n == 1:
        return of_sum
    own = sum(statistics.pvariance(column) for column in zip(*drawn))
    return max(0, (of_sum - own) / (n * (n - 1)))


def compare(differences, drawn, images):
    """differences: variant minus FP32, one for each seed; drawn: the same for every drawing of
    images, [drawing][seed], not empty; images: how many there are. The interval and what it is made
    of; it ends at -1 and 1, as differences of mAP do. Of one seed it is that of the images alone."""
    n = len(differences)
    mean, sd = statistics.fmean(differences), spread(differences)
    image_se = math.sqrt(common_variance(drawn))
    tail = (1 + CONFIDENCE) / 2
    by_seeds = t_quantile(tail, n - 1) * sd / math.sqrt(n) if n > 1 else 0
    by_images = t_quantile(tail, max(1, images - 1)) * image_se
    half = math.hypot(by_seeds, by_images)
    return {"seeds": n, "mean": mean, "low": max(-1.0, mean - half),
            "high": min(1.0, mean + half), "sd": sd, "image_se": image_se, "differences": differences}


def part_of_images(image_se):
    """What the images alone add to the margin that can be shown, whatever the number of seeds."""
    return image_se * (NORMAL.inv_cdf((1 + CONFIDENCE) / 2) + NORMAL.inv_cdf((1 + POWER) / 2))


def seeds_needed(sd, image_se, margin):
    """The smallest number of seeds with which a variant that is truly equal would be found equal in
    POWER of all comparisons: t is added for both risks, as for any test of equivalence (Chow, Shao,
    Wang, "Sample Size Calculations in Clinical Research", ch. 3). None where more than MOST_SEEDS are needed."""
    def enough(n):
        risks = t_quantile((1 + CONFIDENCE) / 2, n - 1) + t_quantile((1 + POWER) / 2, n - 1)
        return math.hypot(risks * sd / math.sqrt(n), part_of_images(image_se)) <= margin

    found = bisect.bisect_left(range(2, MOST_SEEDS + 1), True, key=enough) + 2
    return found if found <= MOST_SEEDS else None


def half_interval(sd, n):
    """Half of the interval of the mean of n differences, by the seeds alone."""
    return t_quantile((1 + CONFIDENCE) / 2, n - 1) * sd / math.sqrt(n)


def scatter(control):
    """How far the mean of this many pairs of equal runs may be from 0 by chance; None without a control."""
    return half_interval(control["sd"], control["seeds"]) if control else None


def seeds_to_tell(sd, mean):
    """The smallest number of seeds with which the control's runs would scatter less than this difference, None
    where that is more than MOST_SEEDS."""
    found = bisect.bisect_left(range(LEAST_SEEDS, MOST_SEEDS + 1), True,
                               key=lambda n: half_interval(sd, n) < abs(mean)) + LEAST_SEEDS
    return found if found <= MOST_SEEDS else None


# ---- the verdict ----


def points(value, sign=False):
    """mAP with three decimals; a difference has a sign."""
    return f"{value:+.3f}".replace("-", "−") if sign else f"{value:.3f}"


def judge(title, metric, fp32_mean, found, margin, control=None):
    """{"verdict": equal, better, worse or none, "sentence", "seeds_needed"} of one comparison. control: what
    compare() found of FP32 against FP32 with another learning rate."""
    low, high, mean, n = (found[key] for key in ("low", "high", "mean", "seeds"))
    between = (f"95 % interval {points(low, True)} to {points(high, True)}, {n} "
               f"seed{'s' if n > 1 else ''}")
    what = f"{metric} with {title}"

    def verdict(word, sentence, needed=None):
        return {"verdict": word, "sentence": sentence, "seeds_needed": needed}

    if fp32_mean < 10 * margin:
        return verdict("none", f"No verdict on {what}: FP32 itself reaches only "
                       f"{points(fp32_mean)}, where a margin of ±{margin:g} says nothing.")
    if n == 1:
        return verdict("none", f"No verdict on {what}: one seed does not show how much runs differ "
                       f"by chance (difference to FP32 {points(mean, True)}).")
    if n < LEAST_SEEDS:
        needed = max(LEAST_SEEDS, seeds_needed(found["sd"], found["image_se"], margin) or LEAST_SEEDS)
        return verdict("none", f"No verdict on {what} yet: {n} seeds, it takes {LEAST_SEEDS} at least (difference to "
                       f"FP32 {points(mean, True)}). "
                       + advise(needed, n, part_of_images(found["image_se"]) > margin), needed)
    if -margin <= low and high <= margin:
        return verdict("equal", f"{what} equals FP32's within ±{margin:g}: difference "
                       f"{points(mean, True)} ({between}).")
    if control and control["seeds"] < LEAST_SEEDS:
        return verdict("none", f"No verdict on {what} yet: the difference to FP32 is {points(mean, True)} ({between}), "
                       f"but only {control['seeds']} of the control's runs are finished.", LEAST_SEEDS)
    if low > 0 or high < 0:
        chance = scatter(control)
        if chance is not None and abs(mean) <= chance:
            needed = seeds_to_tell(control["sd"], mean)
            more = f"about {needed} seeds" if needed else f"more than {MOST_SEEDS} seeds"
            return verdict("none", f"No verdict on {what} yet: the difference to FP32 is {points(mean, True)} ({between}), "
                           f"and the mean of {control['seeds']} pairs of FP32 trainings whose learning rates differ by "
                           f"0.01 % is up to {points(chance)} from 0 by chance. It would take {more} to tell.", needed)
        word = "better" if low > 0 else "worse"
        return verdict(word, f"{what} is {word} than FP32's by {points(abs(mean))} ({between}).")
    needed = seeds_needed(found["sd"], found["image_se"], margin)
    return verdict("none", f"No verdict on {what} yet: the difference to FP32 is "
                   f"{points(mean, True)} ({between}), not within the margin of ±{margin:g}. "
                   + advise(needed, n, part_of_images(found["image_se"]) > margin), needed)


def advise(needed, n, images_exceed):
    """images_exceed: no number of seeds would do, because of the images."""
    if images_exceed:
        return "More seeds alone would not do: it takes more validation images."
    if needed is None:
        advice = f"If the two are equal, it would take more than {MOST_SEEDS} seeds to show it"
    elif needed <= n:
        advice = ("By chance: this many seeds would mostly do if the two are equal; train some "
                  "more")
    else:
        advice = f"If the two are equal, about {needed} seeds would show it"
    if n < LEAST_SEEDS:
        advice += f"; but {n} seeds hardly tell how much runs differ by chance"
    return advice + "."
