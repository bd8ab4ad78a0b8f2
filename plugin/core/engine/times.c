/* A stopwatch with one hand for each thing that a run does. It must not know when that is. */
#include "times.h"

#include "plugin/core/host.h"

static const struct {
    const char *text, *key;
} names[AMP_TIMES] = {
    [AMP_TIME_WAITING] = {"waiting for images", "waiting_seconds"},
    [AMP_TIME_FORWARD] = {"forward", "forward_seconds"},
    [AMP_TIME_BACKWARD] = {"backward", "backward_seconds"},
    [AMP_TIME_UPDATE] = {"update", "update_seconds"},
    [AMP_TIME_PEERS] = {"other processes", "processes_seconds"},
    [AMP_TIME_EVALUATION] = {"evaluation", "evaluation_seconds"},
    [AMP_TIME_SAVING] = {"saving", "saving_seconds"},
    [AMP_TIME_OTHER] = {"other", "other_seconds"},
};

void amp_times_start(struct amp_times *t)
{
    *t = (struct amp_times){.now = AMP_TIME_OTHER, .runs = true};
    t->began = t->since = amp_clock_seconds();
}

void amp_times_enter(struct amp_times *t, enum amp_time next)
{
    if (!t->runs) return;
    double now = amp_clock_seconds();
    t->spent[t->now] += now - t->since;
    t->since = now;
    t->now = next;
}

void amp_times_move(struct amp_times *t, enum amp_time from, enum amp_time to, double seconds)
{
    if (!t->runs) return;
    amp_times_enter(t, t->now); /* what is moved may not be counted yet */
    t->spent[from] -= seconds;
    t->spent[to] += seconds;
}

double amp_times_total(const struct amp_times *t)
{
    return t->since - t->began;
}

double amp_times_share(const struct amp_times *t, enum amp_time what)
{
    double total = amp_times_total(t);
    return total > 0 ? t->spent[what] / total : 0;
}

void amp_times_print(const struct amp_times *t, const char *who, FILE *out)
{
    fprintf(out, "mixed precision: %swhere the time went:\n", who);
    for (int i = 0; i < AMP_TIMES; i++)
        if (t->spent[i] > 0)
            fprintf(out, "mixed precision: %s  %-18s %9.1f s %5.1f %%\n", who, names[i].text,
                    t->spent[i], 100 * amp_times_share(t, (enum amp_time)i));
    fprintf(out, "mixed precision: %s  %-18s %9.1f s\n", who, "all", amp_times_total(t));
}

void amp_times_write(const struct amp_times *t, struct amp_json *j)
{
    amp_json_number(j, "seconds", amp_times_total(t));
    for (int i = 0; i < AMP_TIMES; i++)
        amp_json_number(j, names[i].key, t->spent[i]);
}
