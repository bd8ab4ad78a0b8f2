/* The result of `amp check` in words and as JSON. It decides how numbers are shown; it must not
 * judge them (precision.c). */

#include <math.h>
#include <string.h>

#include "plugin/core/read/json.h"
#include "plugin/core/engine/guard.h"
#include "precision.h"

/* True if a whole pass was seen; a pass that overflowed halfway has no numbers to show. */
static bool is_measured(const struct amp_compared *t)
{
    return t->seen && t->all.n > 0;
}

/* How many times larger the largest value may get; inf if the tensor is stored as FP32. */
static double headroom(const struct amp_compared *t)
{
    bool fp16 = t->seen && !strcmp(t->format, "fp16"), bf16 = t->seen && !strcmp(t->format, "bf16");
    if ((!fp16 && !bf16) || t->largest <= 0) return INFINITY;
    return (fp16 ? AMP_FP16_LARGEST : AMP_BF16_LARGEST) / t->largest;
}

/* ---- words ---- */

/* "-" if there is no number. */
static void print_number(FILE *f, int width, const char *format, const struct amp_compared *t,
                         double value)
{
    char text[32];
    if (is_measured(t) && isfinite(value))
        snprintf(text, sizeof text, format, value);
    else
        snprintf(text, sizeof text, "-");
    fprintf(f, " %*s", width, text);
}

static void print_layer(const struct amp_precision *p, int i, FILE *f)
{
    const struct amp_compared *out = &p->tensors[AMP_SEEN_OUT][i],
                              *delta = &p->tensors[AMP_SEEN_DELTA][i],
                              *gradient = &p->tensors[AMP_SEEN_GRADIENT][i];
    fprintf(f, "%5d %-14s %-6s", i, amp_layer_type_name(p->net->layers[i].type),
            out->format ? out->format : "-");
    print_number(f, 9, "%.3g", out, out->largest);
    print_number(f, 8, "%.2g", out, headroom(out));
    print_number(f, 8, "%.1e", out, out->error);
    print_number(f, 9, "%.3g", delta, delta->largest);
    print_number(f, 8, "%.1e", delta, delta->error);
    print_number(f, 6, "%.1f", delta, 100 * delta->zero);
    print_number(f, 6, "%.1f", delta, 100 * delta->lost);
    print_number(f, 8, "%.1e", gradient, gradient->error);
    print_number(f, 8, "%.5f", gradient, gradient->cosine);
    print_number(f, 6, "%.1f", gradient, 100 * gradient->lost);
    fputc('\n', f);
}

/* How the scale was found matters: loss_scale_init can save the repeated passes. */
static void print_scale(const struct amp_precision *p, const struct amp_check_summary *s, FILE *f)
{
    char scale[32], init[32];
    amp_scale_text(p->scale, scale);
    fprintf(f, "  loss scale  ");
    if (p->options.dtype != AMP_DTYPE_FP16)
        fprintf(f, "1: %s needs no other\n", amp_dtype_word(p->options.dtype));
    else if (!p->batches)
        fprintf(f, "-\n");
    else if (!p->options.loss_scale_dynamic)
        fprintf(f, "%s, as the cfg fixes it\n", scale);
    else if (p->options.loss_scale_init > 0)
        fprintf(f, "%s, found by %d repeated backward passes; loss_scale_init begins with %s\n",
                scale, s->redone, amp_scale_text(p->options.loss_scale_init, init));
    else
        fprintf(f, "%s, found by %d repeated backward passes\n", scale, s->redone);
}

/* Advice depends on all of this, so it is printed above it. */
static void print_summary(const struct amp_precision *p, const struct amp_check_summary *s, FILE *f)
{
    fprintf(f, "\namp check: %s, %s, %s\n", s->data, s->cfg,
            s->weights ? s->weights : "random weights");
    if (p->batches)
        fprintf(f, "  images      %d of the training list in %d batches, as training loads them\n",
                s->images, p->batches);
    else
        fprintf(f, "  images      -: no batch could be compared\n");
    fprintf(f, "  precision   %s%s\n", amp_dtype_word(p->options.dtype),
            p->options.mixed_precision ? ""
                                       : "; mixed_precision=1 is not under [net]: checked as if "
                                         "it were");
    print_scale(p, s, f);
    fprintf(f, "  memory      activations of a pass: FP32 %.1f MiB, mixed %.1f MiB (%.2fx)%s\n\n",
            (double)s->fp32_bytes / (1 << 20), (double)s->mixed_bytes / (1 << 20),
            (double)s->mixed_bytes / (double)s->fp32_bytes,
            s->random_size ? ", at the cfg's size: random=1 trains at others too" : "");
}

/* A line to replace, or a place for a new one: the user can edit without searching. */
static void print_one_advice(const struct amp_precision *p, const struct amp_advice *a,
                             const char *cfg, FILE *f)
{
    if (a->layer < 0)
        fprintf(f, "  loss scale: %s\n", a->why);
    else
        fprintf(f, "  layer %d (%s) should stay FP32: %s\n", a->layer,
                amp_layer_type_name(p->net->layers[a->layer].type), a->why);
    if (a->replace)
        fprintf(f, "    %s:%d: replace the line by", cfg, a->line);
    else
        fprintf(f, "    %s:%d: below %s add the line", cfg, a->line,
                p->net->layers[a->layer].type_name);
    fprintf(f, "\n    %s=%s\n", a->key, a->value);
}

/* True if most layers are advised to leave, so that little would remain in FP16. */
static bool most_leave(const struct amp_precision *p)
{
    int n = 0;
    for (int i = 0; i < p->net->n; i++)
        n += p->advised[i];
    return 2 * n > p->net->n;
}

static void print_advice(const struct amp_precision *p, const struct amp_check_summary *s, FILE *f)
{
    if (!p->n_advice && p->left < 0) {
        fprintf(f, "\nEvery layer can train in mixed precision as planned.\n");
        return;
    }
    if (p->left >= 0)
        fprintf(f,
                "\nNo line under a layer helps layer %d (%s): %s.\nWrite amp_dtype=bf16 under "
                "[net], which holds whatever FP32 holds.\n",
                p->left, amp_layer_type_name(p->net->layers[p->left].type), p->left_why);
    if (!p->n_advice) return;
    fprintf(f, "\n%d line%s to write into %s:\n", p->n_advice, p->n_advice == 1 ? "" : "s", s->cfg);
    for (int k = 0; k < p->n_advice; k++)
        print_one_advice(p, &p->advice[k], s->cfg, f);
    fprintf(f, "\nThen run this again: with %s written, more may show.\n",
            p->n_advice == 1 ? "it" : "them");
    if (most_leave(p) && p->options.dtype == AMP_DTYPE_FP16)
        fprintf(f,
                "These lines leave few layers in FP16. amp_dtype=bf16 under [net] may do instead: "
                "BF16 holds whatever\nFP32 holds.\n");
}

void amp_precision_print(const struct amp_precision *p, const struct amp_check_summary *s, FILE *f)
{
    print_summary(p, s, f);
    fprintf(
        f,
        "                            |--------- output --------| |------------ delta -----------| "
        "|----- weight grad ----|\n%5s %-14s %-6s %9s %8s %8s %9s %8s %6s %6s %8s %8s %6s\n",
        "layer", "type", "stored", "largest", "headroom", "error", "largest", "error", "zero%",
        "lost%", "error", "cosine", "lost%");
    for (int i = 0; i < p->net->n; i++)
        print_layer(p, i, f);
    print_advice(p, s, f);
}

/* ---- JSON ---- */

static double number_or_null(bool is, double value)
{
    return is ? value : NAN;
}

/* null for a tensor without numbers, so that readers need no special value. */
static void json_tensor(struct amp_json *j, const char *name, const struct amp_compared *t)
{
    if (!is_measured(t)) {
        amp_json_string(j, name, NULL);
        return;
    }
    amp_json_begin(j, name, '{');
    amp_json_number(j, "largest", t->largest);
    amp_json_number(j, "relative_error", t->error);
    amp_json_number(j, "cosine", t->cosine);
    amp_json_number(j, "zero", t->zero);
    amp_json_number(j, "lost", t->lost);
    amp_json_number(j, "lost_norm", t->lost_norm);
    amp_json_number(j, "headroom", headroom(t));
    amp_json_end(j, '}');
}

static void json_layer(const struct amp_precision *p, int i, struct amp_json *j)
{
    const char *format = p->tensors[AMP_SEEN_OUT][i].format;
    amp_json_line(j, 2);
    amp_json_begin(j, NULL, '{');
    amp_json_put(j, "layer", "%d", i);
    amp_json_string(j, "type", amp_layer_type_name(p->net->layers[i].type));
    amp_json_string(j, "format", format ? format : "fp32");
    json_tensor(j, "output", &p->tensors[AMP_SEEN_OUT][i]);
    json_tensor(j, "delta", &p->tensors[AMP_SEEN_DELTA][i]);
    json_tensor(j, "weight_gradient", &p->tensors[AMP_SEEN_GRADIENT][i]);
    amp_json_end(j, '}');
}

static void json_advice(const struct amp_advice *a, struct amp_json *j)
{
    amp_json_line(j, 2);
    amp_json_begin(j, NULL, '{');
    amp_json_number(j, "layer", number_or_null(a->layer >= 0, a->layer));
    amp_json_put(j, "line", "%d", a->line);
    amp_json_put(j, a->replace ? "replace" : "add", "\"%s=%s\"", a->key, a->value);
    amp_json_string(j, "why", a->why);
    amp_json_end(j, '}');
}

/* A layer for which no line helps. */
static void json_not_solved(const struct amp_precision *p, struct amp_json *j)
{
    if (p->left < 0) {
        amp_json_string(j, "not_solved", NULL);
        return;
    }
    amp_json_begin(j, "not_solved", '{');
    amp_json_put(j, "layer", "%d", p->left);
    amp_json_string(j, "why", p->left_why);
    amp_json_end(j, '}');
}

static void json_lists(const struct amp_precision *p, struct amp_json *j)
{
    amp_json_line(j, 1);
    amp_json_begin(j, "advice", '[');
    for (int k = 0; k < p->n_advice; k++)
        json_advice(&p->advice[k], j);
    amp_json_end(j, ']');
    amp_json_line(j, 1);
    json_not_solved(p, j);
    amp_json_line(j, 1);
    amp_json_begin(j, "layers", '[');
    for (int i = 0; i < p->net->n; i++)
        json_layer(p, i, j);
    amp_json_end(j, ']');
}

void amp_precision_print_json(const struct amp_precision *p, const struct amp_check_summary *s,
                              FILE *f)
{
    struct amp_json j = {.out = f, .digits = AMP_JSON_FLOAT};
    amp_json_begin(&j, NULL, '{');
    amp_json_string(&j, "status", p->n_advice || p->left >= 0 ? "advice" : "fine");
    amp_json_string(&j, "data", s->data);
    amp_json_string(&j, "cfg", s->cfg);
    amp_json_string(&j, "weights", s->weights);
    amp_json_line(&j, 1);
    amp_json_string(&j, "precision", amp_dtype_word(p->options.dtype));
    amp_json_put(&j, "batches", "%d", p->batches);
    amp_json_number(&j, "images", number_or_null(p->batches, s->images));
    amp_json_put(&j, "images_per_iteration", "%d", s->images_per_iteration);
    amp_json_number(&j, "loss_scale", number_or_null(p->batches, p->scale));
    amp_json_number(&j, "redone", number_or_null(p->batches, s->redone));
    amp_json_line(&j, 1);
    amp_json_put(&j, "activation_bytes", "{\"fp32\": %zu, \"mixed\": %zu}", s->fp32_bytes,
                 s->mixed_bytes);
    json_lists(p, &j);
    amp_json_end(&j, '}');
    fputc('\n', f);
}
