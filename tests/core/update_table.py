"""Writes update_table.h: what PyTorch's own optimizers, clipping and averages make of a linear layer in 20 steps of
training in double. test_update.c trains the same layer and compares.

usage: update_table.py | clang-format > update_table.h      (needs PyTorch; 2.15 wrote the present file)
"""

import math

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.swa_utils import get_ema_avg_fn

# As test_update.c has them.
INPUTS, OUTPUTS, IMAGES, STEPS, EVERY = 5, 4, 3, 20, 5
RATE, MOMENTUM, DECAY, BETAS, EPS = .01, .9, .05, (.9, .999), 1e-8


def numbers(count, seed, size):
    return torch.tensor([size * math.sin(seed + 7 * k) for k in range(count)], dtype=torch.float64)


def sgd(weights, biases):  # as Darknet, decay is for weights alone
    return torch.optim.SGD([{"params": weights, "weight_decay": DECAY}, {"params": biases}], lr=RATE, momentum=MOMENTUM)


def adam(weights, biases):
    return torch.optim.Adam([weights, biases], lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY)


def adamw(weights, biases):
    return torch.optim.AdamW([{"params": weights}, {"params": biases, "weight_decay": 0}], lr=RATE, betas=BETAS, eps=EPS,
                             weight_decay=DECAY)


def adamw_all(weights, biases):
    return torch.optim.AdamW([weights, biases], lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY)


CASES = {  # name: (optimizer, what clips, whether the table has averages)
    "sgd": (sgd, None, False),
    "adam": (adam, None, False),
    "adamw": (adamw, None, False),
    "adamw_all": (adamw_all, None, False),
    "clip_norm": (sgd, lambda both: clip_grad_norm_(both, .8), False),
    "clip_value": (sgd, lambda both: clip_grad_value_(both, .2), False),
    "averages": (sgd, None, True),
}


def train(make, clip, averages):
    """[(step, values)]: the weights, then the biases; or their moving averages."""
    weights = numbers(INPUTS * OUTPUTS, 1, .5).reshape(OUTPUTS, INPUTS).requires_grad_()
    biases = numbers(OUTPUTS, 2, .5).requires_grad_()
    both = [weights, biases]
    kept = [values.detach().clone() for values in both]
    optimizer, rows = make(*both), []
    for step in range(1, STEPS + 1):
        images = numbers(IMAGES * INPUTS, 3 + step, 1).reshape(IMAGES, INPUTS)
        truths = numbers(IMAGES * OUTPUTS, 4 + step, 1).reshape(IMAGES, OUTPUTS)
        optimizer.zero_grad()
        loss = ((images @ weights.T + biases - truths) ** 2 / 2).sum() / IMAGES
        loss.backward()
        if clip:
            clip(both)
        optimizer.step()
        average = get_ema_avg_fn(.9 * (1 - math.exp(-step / 2000)))  # the plugin's ramp of ema_alpha=.9
        kept = [average(old, new.detach(), step) for old, new in zip(kept, both)]
        if step % EVERY == 0:
            rows.append((step, torch.cat([values.detach().flatten() for values in (kept if averages else both)])))
    return rows


print("/* Written by update_table.py, with PyTorch %s: step; weights, then biases. */" % torch.__version__.split("+")[0])
for name, case in CASES.items():
    print("static const struct torch_row torch_%s[] = {" % name)
    for step, values in train(*case):
        print("    {%d, {%s}}," % (step, ", ".join("%.17g" % value for value in values)))
    print("};")
