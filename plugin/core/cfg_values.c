#include "cfg_values.h"

#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct checker {
    const struct amp_cfg_file *cfg;
    char *err;
    size_t err_size;
};

__attribute__((format(printf, 3, 4))) static int fail(const struct checker *k, int line,
                                                      const char *format, ...)
{
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(k->err, k->err_size, "%s:%d: %s", k->cfg->path, line, what);
    return -1;
}

/* ---- numbers ---- */

static const char *const integers[] = {"absolute",
                                       "adam",
                                       "background",
                                       "batch",
                                       "batch_normalize",
                                       "bias_match",
                                       "binary",
                                       "burn_in",
                                       "channels",
                                       "classes",
                                       "classfix",
                                       "coords",
                                       "crop_height",
                                       "crop_width",
                                       "dontload",
                                       "dontloadscales",
                                       "dontsave",
                                       "extra",
                                       "filters",
                                       "flatten",
                                       "flip",
                                       "flipped",
                                       "forced",
                                       "groups",
                                       "height",
                                       "hidden_filters",
                                       "ids",
                                       "inputs",
                                       "log",
                                       "max",
                                       "max_batches",
                                       "noadjust",
                                       "noloss",
                                       "notruth",
                                       "num",
                                       "numload",
                                       "onlyforward",
                                       "output",
                                       "output_filters",
                                       "pad",
                                       "padding",
                                       "random",
                                       "reorg",
                                       "rescore",
                                       "reverse",
                                       "side",
                                       "size",
                                       "softmax",
                                       "sqrt",
                                       "step",
                                       "stopbackward",
                                       "stride",
                                       "subdivisions",
                                       "tanh",
                                       "time_steps",
                                       "truth",
                                       "width",
                                       "xnor"};

static const char *const numbers[] = {"B1",
                                      "B2",
                                      "alpha",
                                      "angle",
                                      "aspect",
                                      "beta",
                                      "class_scale",
                                      "clip",
                                      "coord_scale",
                                      "decay",
                                      "dot",
                                      "eps",
                                      "exposure",
                                      "gamma",
                                      "hue",
                                      "ignore_thresh",
                                      "jitter",
                                      "kappa",
                                      "learning_rate",
                                      "mask_scale",
                                      "max_ratio",
                                      "min_ratio",
                                      "momentum",
                                      "noobj",
                                      "noobject_scale",
                                      "object_scale",
                                      "power",
                                      "probability",
                                      "ratio",
                                      "saturation",
                                      "scale",
                                      "shift",
                                      "smooth",
                                      "spatial",
                                      "temperature",
                                      "thresh",
                                      "truth_thresh"};

static const char *const integer_lists[] = {"from", "layers", "mask", "steps"};
static const char *const number_lists[] = {"anchors", "scales"};

#define COUNT(array) (sizeof array / sizeof *array)

static bool is_among(const char *key, const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(key, keys[i])) return true;
    return false;
}

/* Where a number at text ends; NULL where there is none. */
static const char *read_number(const char *text, bool whole)
{
    char *end;
    errno = 0;
    if (whole) {
        long value = strtol(text, &end, 10);
        if (errno || value < INT_MIN || value > INT_MAX) return NULL;
    } else {
        double value = strtod(text, &end);
        if (!(fabs(value) <= (double)FLT_MAX)) return NULL;
    }
    return end == text ? NULL : end;
}

static int check_number(const struct checker *k, const char *section, const struct amp_cfg_entry *e,
                        bool whole, bool list)
{
    for (const char *p = e->value;; p++) {
        const char *end = read_number(p, whole);
        if (!end || (*end && *end != '#' && !(list && *end == ',')))
            return fail(k, e->line, "%s=%.80s in %s: \"%.40s\"; allowed: %s%s", e->key, e->value,
                        section, p, whole ? "a whole number of 32 bits" : "a finite number",
                        list ? ", or several with commas between them" : "");
        if (*end != ',') return 0; /* the end, or a remark, which Darknet does not read either */
        p = end;
    }
}

static int check_entry(const struct checker *k, const char *section, const struct amp_cfg_entry *e)
{
    if (is_among(e->key, integers, COUNT(integers)))
        return check_number(k, section, e, true, false);
    if (is_among(e->key, numbers, COUNT(numbers))) return check_number(k, section, e, false, false);
    if (is_among(e->key, integer_lists, COUNT(integer_lists)))
        return check_number(k, section, e, true, true);
    if (is_among(e->key, number_lists, COUNT(number_lists)))
        return check_number(k, section, e, false, true);
    return 0;
}

static int count_elements(const char *list)
{
    int n = 1;
    for (; *list; list++)
        n += *list == ',';
    return n;
}

/* ---- the learning rate ---- */

static int check_steps(const struct checker *k, const struct amp_cfg_section *net, int line)
{
    const struct amp_cfg_entry *steps = amp_cfg_find(net, "steps");
    const struct amp_cfg_entry *scales = amp_cfg_find(net, "scales");
    if (!steps || !scales)
        return fail(k, line, "policy=steps in %s: needs the keys steps= and scales=", net->name);
    int n_steps = count_elements(steps->value), n_scales = count_elements(scales->value);
    if (n_scales >= n_steps) return 0; /* Darknet leaves the others unread */
    return fail(k, scales->line,
                "scales=%.80s in %s: %d numbers; allowed: at least %d, one for each of steps=",
                scales->value, net->name, n_scales, n_steps);
}

static int check_policy(const struct checker *k, const struct amp_cfg_section *net)
{
    static const char *const policies[] = {"random", "poly",    "constant", "step",
                                           "exp",    "sigmoid", "steps"};
    const struct amp_cfg_entry *e = amp_cfg_find(net, "policy");
    if (!e) return 0;
    if (!is_among(e->value, policies, COUNT(policies)))
        return fail(k, e->line,
                    "policy=%.80s in %s: this Darknet does not know it and would keep the rate "
                    "constant; allowed: constant, step, steps, exp, poly, sigmoid, random",
                    e->value, net->name);
    if (!strcmp(e->value, "steps")) return check_steps(k, net, e->line);
    const struct amp_cfg_entry *step = amp_cfg_find(net, "step");
    if (!strcmp(e->value, "step") && step && amp_cfg_int(net, "step", 1) < 1)
        return fail(k, step->line, "step=%s in %s: allowed: at least 1", step->value, net->name);
    return 0;
}

/* ---- anchors ---- */

static int check_anchors(const struct checker *k, const struct amp_cfg_section *s)
{
    const struct amp_cfg_entry *e = amp_cfg_find(s, "anchors");
    if (!e || (strcmp(s->name, "[yolo]") && strcmp(s->name, "[region]"))) return 0;
    int n = count_elements(e->value), num = amp_cfg_int(s, "num", 1);
    if (n <= 2LL * num) return 0; /* those that are missing are .5 */
    return fail(k, e->line, "anchors= in %s: %d numbers; allowed: %lld, two for each of num=%d",
                s->name, n, 2LL * num, num);
}

int amp_cfg_values_check(const struct amp_cfg_file *cfg, char *err, size_t err_size)
{
    struct checker k = {cfg, err, err_size};
    for (int i = 0; i < cfg->n_sections; i++) {
        const struct amp_cfg_section *s = &cfg->sections[i];
        for (int j = 0; j < s->n_entries; j++)
            if (check_entry(&k, s->name, &s->entries[j])) return -1;
        if (i == 0 ? check_policy(&k, s) : check_anchors(&k, s)) return -1;
    }
    return 0;
}
