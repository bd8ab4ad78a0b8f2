"""Writes schedule_table.h, the rates and momenta of PyTorch's own schedulers, which test_schedule.c compares
with: every 50th of 1,000 steps.

usage: schedule_table.py > schedule_table.h      (needs PyTorch; 2.15 wrote the present file)
"""

import warnings

import torch
from torch.optim import lr_scheduler

STEPS, EVERY = 1000, 50

# As test_schedule.c has them: name, highest rate, momentum, scheduler.
SCHEDULES = [
    ("cosine", .01, .9, lambda o: lr_scheduler.CosineAnnealingLR(o, 1000, eta_min=.0001)),
    ("sgdr", .01, .9, lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 90, 2, eta_min=.0001)),
    ("sgdr_even", .01, .9, lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 70, 1, eta_min=.0001)),
    ("onecycle", .01, .95, lambda o: lr_scheduler.OneCycleLR(o, .01, total_steps=1000)),
    ("cyclic", .01, .9, lambda o: lr_scheduler.CyclicLR(o, .0001, .01, step_size_up=120, cycle_momentum=False)),
]

warnings.simplefilter("ignore")  # nothing is trained
print("/* Written by schedule_table.py, with PyTorch %s: step, rate, momentum. */" % torch.__version__.split("+")[0])
for name, rate, momentum, make in SCHEDULES:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate, momentum=momentum)
    scheduler = make(optimizer)
    print("static const struct torch_row torch_%s[] = {" % name)
    for step in range(STEPS):
        group = optimizer.param_groups[0]
        if step % EVERY == 0 or step == STEPS - 1:
            print("    {%d, %.17g, %.17g}," % (step, group["lr"], group["momentum"]))
        if step < STEPS - 1:
            scheduler.step()
    print("};")
