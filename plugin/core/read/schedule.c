/* Computes the learning rate of an iteration, and checks the keys that steer it. It must not know
 * who asks: attach/rate.c hands the rate to Darknet. */
#include "schedule.h"

#include <math.h>
#include <string.h>

#include "key_table.h"

/* As PyTorch's OneCycleLR has them by default: div_factor, final_div_factor, pct_start. */
static const double starts_at = 1. / 25, ends_at = 1. / 25 / 1e4, rises = .3;

static const char *const words[] = {"", "cosine", "sgdr", "onecycle", "cyclic"};
enum { POLICIES = sizeof words / sizeof *words };

enum amp_policy amp_policy_from_word(const char *word)
{
    for (int i = 1; i < POLICIES; i++)
        if (!strcmp(word, words[i])) return (enum amp_policy)i;
    return AMP_POLICY_OF_DARKNET;
}

const char *amp_policy_words(void)
{
    return "cosine, sgdr, onecycle, cyclic";
}

/* ---- the rate ---- */

/* Half a cosine from `from` at share 0 to `to` at share 1. */
static double half_cosine(double from, double to, double share)
{
    return to + (from - to) * (1 + cos(acos(-1) * share)) / 2;
}

static double sgdr(const struct amp_schedule *s, double high, double t)
{
    double cycle = s->cycle ? s->cycle : s->total, start = 0;
    if (s->mult == 1) start = floor(t / cycle) * cycle;
    while (t >= start + cycle) {
        start += cycle;
        cycle *= s->mult;
    }
    return half_cosine(high, s->rate_min, (t - start) / cycle);
}

/* From `from` to `to` while the rate rises, and on to `end`. */
static double onecycle(const struct amp_schedule *s, double from, double to, double end, double t)
{
    double top = rises * s->total - 1, last = s->total - 1;
    if (t <= top) return half_cosine(from, to, top > 0 ? t / top : 1);
    if (top < 0) top = 0;
    return half_cosine(to, end, last > top ? fmin((t - top) / (last - top), 1) : 1);
}

static double cyclic(const struct amp_schedule *s, double high, double t)
{
    double place = fmod(t, 2. * s->step) / s->step; /* 0 to 2 */
    return s->rate_min + (high - s->rate_min) * (place < 1 ? place : 2 - place);
}

double amp_schedule_rate(const struct amp_schedule *s, double rate, size_t iteration)
{
    double t = iteration ? (double)iteration - 1 : 0;
    if (iteration < (size_t)s->burn_in) return rate * pow((double)iteration / s->burn_in, s->power);
    switch (s->policy) {
    case AMP_POLICY_COSINE:
        return half_cosine(rate, s->rate_min, fmin(t / s->total, 1));
    case AMP_POLICY_SGDR:
        return sgdr(s, rate, t);
    case AMP_POLICY_ONECYCLE:
        return onecycle(s, rate * starts_at, rate, rate * ends_at, t);
    case AMP_POLICY_CYCLIC:
        return cyclic(s, rate, t);
    default:
        return rate;
    }
}

double amp_schedule_momentum(const struct amp_schedule *s, double momentum, size_t iteration)
{
    double t = iteration ? (double)iteration - 1 : 0;
    if (s->policy != AMP_POLICY_ONECYCLE) return momentum;
    return onecycle(s, momentum, s->momentum_min, momentum, t);
}

/* ---- keys ---- */

struct checker {
    const struct amp_complaints *complaints;
    const struct amp_cfg_section *net;
    const struct amp_rules *rules;
};

/* Whose line is named: the key's; if it is missing, that of `policy`. */
static const struct amp_cfg_entry *entry_of(const struct checker *k, const char *key)
{
    const struct amp_cfg_entry *e = amp_cfg_find(k->net, key);
    return e ? e : amp_cfg_find(k->net, "policy");
}

/* The keys that steer a rate, and the policies that read them, Darknet's and ours. */
static const struct {
    const char *key, *policies[4];
} readers[] = {
    {"learning_rate_min", {"cosine", "sgdr", "cyclic"}},
    {"sgdr_cycle", {"sgdr"}},
    {"sgdr_mult", {"sgdr"}},
    {"cyclic_step", {"cyclic"}},
    {"momentum_min", {"onecycle"}},
    {"steps", {"steps"}},
    {"scales", {"steps"}},
    {"step", {"step", "sigmoid"}},
    {"scale", {"step"}},
    {"gamma", {"exp", "sigmoid"}},
    {"power", {"poly", "random"}}, /* and burn_in */
};

static bool is_among(const char *policy, const char *const *policies)
{
    while (*policies && strcmp(policy, *policies))
        policies++;
    return *policies;
}

static void note_idle_keys(const struct checker *k, int burn_in)
{
    struct amp_cfg_idle idle = {0};
    const char *policy = amp_cfg_string(k->net, "policy", "constant");
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        bool read =
            is_among(policy, readers[i].policies) || (burn_in && !strcmp(readers[i].key, "power"));
        if (!read) amp_cfg_idle_add(&idle, amp_cfg_find(k->net, readers[i].key));
    }
    amp_note_idle(k->complaints, &idle, "has no effect with policy=%.40s", policy);
}

/* Of a lowest value that is above the highest. Blames a line of the cfg: if only one of the two is
 * given, the other one is the default. */
static int check_lowest(const struct checker *k, const char *low_key, double low,
                        const char *high_key, double high)
{
    if (low <= high) return 0;
    if (amp_cfg_find(k->net, low_key))
        return amp_fail_entry(k->complaints, entry_of(k, low_key), "allowed: 0 to %s, which is %g",
                              high_key, high);
    return amp_fail_entry(k->complaints, entry_of(k, high_key),
                          "allowed with policy=%s: at least %s, which is %g without a key",
                          amp_cfg_string(k->net, "policy", ""), low_key, low);
}

/* What Adam and its kind have for momentum. */
static bool cycles_b1(const struct amp_rules *rules)
{
    return rules->darknets_adam || amp_rules_keep_moments(rules);
}

static int check_onecycle(const struct checker *k, const struct amp_schedule *s)
{
    const char *key = cycles_b1(k->rules) ? "B1" : "momentum";
    if (s->burn_in)
        return amp_fail_entry(
            k->complaints, entry_of(k, "burn_in"),
            "allowed: none with policy=onecycle, which begins with a small rate itself");
    return check_lowest(k, "momentum_min", s->momentum_min, key,
                        amp_net_float(k->complaints->cfg, key));
}

/* Settings that are allowed, but leave nothing of what the policy is for. */
static void note_useless(const struct checker *k, const struct amp_schedule *s, double rate)
{
    if (s->policy == AMP_POLICY_SGDR && s->total > 1 && s->cycle >= s->total)
        amp_note_entry(
            k->complaints, entry_of(k, "sgdr_cycle"),
            "max_batches=%d ends the training before the rate begins again; allowed for that: 1 "
            "to %d",
            s->total, s->total - 1);
    if (s->policy == AMP_POLICY_CYCLIC && s->total > 0 && s->step > s->total)
        amp_note_entry(
            k->complaints, entry_of(k, "cyclic_step"),
            "max_batches=%d ends the training before the rate has reached learning_rate; allowed "
            "for that: 1 to %d",
            s->total, s->total);
    if ((float)s->rate_min == (float)rate) /* as Darknet stores them */
        amp_note_entry(
            k->complaints,
            amp_cfg_find(k->net, amp_cfg_find(k->net, "learning_rate_min") ? "learning_rate_min"
                                                                           : "learning_rate"),
            "lowest and highest rate are both %g, so the rate does not change; allowed for that: "
            "learning_rate above learning_rate_min",
            rate);
}

int amp_schedule_complete(struct amp_schedule *s, const struct amp_rules *rules,
                          const struct amp_complaints *c)
{
    struct checker k = {c, c->cfg->sections, rules};
    double rate = amp_net_float(c->cfg, "learning_rate");
    s->policy = amp_policy_from_word(amp_cfg_string(k.net, "policy", ""));
    s->total = amp_net_int(c->cfg, "max_batches");
    s->burn_in = amp_net_int(c->cfg, "burn_in");
    s->power = amp_net_float(c->cfg, "power");
    note_idle_keys(&k, s->burn_in);
    if (s->policy == AMP_POLICY_OF_DARKNET) return 0;
    bool needs_total = s->policy == AMP_POLICY_COSINE || s->policy == AMP_POLICY_ONECYCLE ||
                       (s->policy == AMP_POLICY_SGDR && !s->cycle);
    if (needs_total && s->total < 1)
        return amp_fail_entry(k.complaints, entry_of(&k, "policy"),
                              "needs max_batches=, at least 1");
    if (s->policy == AMP_POLICY_CYCLIC && !s->step)
        return amp_fail_entry(k.complaints, entry_of(&k, "policy"),
                              "needs cyclic_step=, the iterations from the lowest to the "
                              "highest rate (Smith 2017: those of 2 to 10 epochs)");
    if (s->policy == AMP_POLICY_ONECYCLE) return check_onecycle(&k, s);
    if (check_lowest(&k, "learning_rate_min", s->rate_min, "learning_rate", rate)) return -1;
    note_useless(&k, s, rate);
    return 0;
}

/* ---- the report ---- */

void amp_schedule_print(const struct amp_schedule *s, const struct amp_rules *rules, double rate,
                        double momentum, FILE *f)
{
    bool b1 = cycles_b1(rules);
    if (s->policy == AMP_POLICY_OF_DARKNET) return;
    fprintf(f, "learning rate: %s, ", words[s->policy]);
    if (s->policy == AMP_POLICY_COSINE)
        fprintf(f, "from %g to %g in %d iterations", rate, s->rate_min, s->total);
    else if (s->policy == AMP_POLICY_SGDR)
        fprintf(f,
                "from %g to %g in cycles of %d iterations, each %d times as long as the one "
                "before",
                rate, s->rate_min, s->cycle ? s->cycle : s->total, s->mult);
    else if (s->policy == AMP_POLICY_CYCLIC)
        fprintf(f, "between %g and %g, %d iterations up and as many down", s->rate_min, rate,
                s->step);
    else
        fprintf(f, "from %g to %g and to %g in %d iterations, %s from %g to %g and back",
                rate * starts_at, rate, rate * ends_at, s->total, b1 ? "B1" : "momentum",
                b1 ? rules->b1 : momentum, s->momentum_min);
    if (s->burn_in) fprintf(f, "; the first %d rise from 0", s->burn_in);
    fputc('\n', f);
}
