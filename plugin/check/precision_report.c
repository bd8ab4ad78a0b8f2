/* The result of `amp check` in words and as JSON. */
#include <math.h>

#include "plugin/train/log.h"
#include "precision.h"

/* ---- words ---- */

static void print_number(FILE *f, int width, const char *format, const struct amp_compared *t,
                         double value)
{
    char text[32];
    if (t->seen && isfinite(value))
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
    print_number(f, 8, "%.2g", out, out->largest > 0 ? AMP_FP16_LARGEST / out->largest : INFINITY);
    print_number(f, 8, "%.1e", out, out->error);
    print_number(f, 9, "%.3g", delta, delta->largest);
    print_number(f, 8, "%.1e", delta, delta->error);
    print_number(f, 6, "%.1f", delta, 100 * delta->zero);
    print_number(f, 6, "%.1f", delta, 100 * delta->lost);
    print_number(f, 8, "%.1e", gradient, gradient->error);
    print_number(f, 8, "%.5f", gradient, gradient->cosine);
    fputc('\n', f);
}

static void print_summary(const struct amp_precision *p, const struct amp_check_summary *s, FILE *f)
{
    char scale[32];
    fprintf(f, "\namp check: %s, %s, %s\n", s->data, s->cfg,
            s->weights ? s->weights : "random weights");
    fprintf(f, "  images      %d of the training list, as training loads them\n", s->images);
    fprintf(f, "  loss scale  %s, found by %d repeated backward passes\n",
            amp_scale_text(p->scale, scale), s->redone);
    fprintf(f,
            "  speed       passes of an iteration (%d images): Darknet's FP32 %.3g s, mixed %.3g s "
            "(%.1fx); the plugin in FP32 %.3g s\n",
            s->images_per_iteration, s->stock_seconds, s->mixed_seconds,
            s->stock_seconds / s->mixed_seconds, s->fp32_seconds);
    fprintf(f, "  memory      activations of a pass: FP32 %.1f MiB, mixed %.1f MiB (%.2fx)\n\n",
            (double)s->fp32_bytes / (1 << 20), (double)s->mixed_bytes / (1 << 20),
            (double)s->mixed_bytes / (double)s->fp32_bytes);
}

static void print_advice(const struct amp_precision *p, const char *cfg, FILE *f)
{
    if (!p->n_advice)
        fprintf(f, "\nEvery layer can train in mixed precision as planned.\n");
    else
        fprintf(f, "\n%d layer%s should stay FP32:\n", p->n_advice, p->n_advice == 1 ? "" : "s");
    for (int k = 0; k < p->n_advice; ++k) {
        const struct amp_layer_desc *l = &p->net->layers[p->advice[k].layer];
        fprintf(f, "  layer %d (%s): %s\n    %s:%d: below %s add the line\n    mixed_precision=0\n",
                p->advice[k].layer, amp_layer_type_name(l->type), p->advice[k].why, cfg, l->line,
                l->type_name);
    }
}

void amp_precision_print(const struct amp_precision *p, const struct amp_check_summary *s, FILE *f)
{
    print_summary(p, s, f);
    fprintf(
        f,
        "                            |--------- output --------| |------------ delta -----------| "
        "|-- weight grad -|\n%5s %-14s %-6s %9s %8s %8s %9s %8s %6s %6s %8s %8s\n",
        "layer", "type", "stored", "largest", "headroom", "error", "largest", "error", "zero%",
        "lost%", "error", "cosine");
    for (int i = 0; i < p->net->n; ++i)
        print_layer(p, i, f);
    print_advice(p, s->cfg, f);
}

/* ---- JSON ---- */

static void json_string(FILE *f, const char *text)
{
    fputc('"', f);
    for (; *text; ++text) {
        if (*text == '"' || *text == '\\') fputc('\\', f);
        if ((unsigned char)*text < 32)
            fprintf(f, "\\u%04x", (unsigned char)*text);
        else
            fputc(*text, f);
    }
    fputc('"', f);
}

static void json_number(FILE *f, const char *before, double value)
{
    if (isfinite(value))
        fprintf(f, "%s%.9g", before, value);
    else
        fprintf(f, "%snull", before);
}

static void json_tensor(FILE *f, const char *name, const struct amp_compared *t)
{
    fprintf(f, ", \"%s\": ", name);
    if (!t->seen) {
        fprintf(f, "null");
        return;
    }
    json_number(f, "{\"largest\": ", t->largest);
    json_number(f, ", \"relative_error\": ", t->error);
    json_number(f, ", \"cosine\": ", t->cosine);
    json_number(f, ", \"zero\": ", t->zero);
    json_number(f, ", \"lost\": ", t->lost);
    json_number(f, ", \"headroom\": ", t->largest > 0 ? AMP_FP16_LARGEST / t->largest : INFINITY);
    fputc('}', f);
}

static void json_layers(const struct amp_precision *p, FILE *f)
{
    for (int i = 0; i < p->net->n; ++i) {
        const char *format = p->tensors[AMP_SEEN_OUT][i].format;
        fprintf(f, "%s\n  {\"layer\": %d, \"type\": \"%s\", \"format\": \"%s\"", i ? "," : "", i,
                amp_layer_type_name(p->net->layers[i].type), format ? format : "fp32");
        json_tensor(f, "output", &p->tensors[AMP_SEEN_OUT][i]);
        json_tensor(f, "delta", &p->tensors[AMP_SEEN_DELTA][i]);
        json_tensor(f, "weight_gradient", &p->tensors[AMP_SEEN_GRADIENT][i]);
        fputc('}', f);
    }
}

static void json_advice(const struct amp_precision *p, FILE *f)
{
    for (int k = 0; k < p->n_advice; ++k) {
        const struct amp_advice *a = &p->advice[k];
        fprintf(f, "%s\n  {\"layer\": %d, \"line\": %d, \"add\": \"mixed_precision=0\", \"why\": ",
                k ? "," : "", a->layer, p->net->layers[a->layer].line);
        json_string(f, a->why);
        fputc('}', f);
    }
}

void amp_precision_print_json(const struct amp_precision *p, const struct amp_check_summary *s,
                              FILE *f)
{
    fprintf(f, "{\"status\": \"%s\", \"data\": ", p->n_advice ? "advice" : "fine");
    json_string(f, s->data);
    fprintf(f, ", \"cfg\": ");
    json_string(f, s->cfg);
    fprintf(f, ", \"weights\": ");
    if (s->weights)
        json_string(f, s->weights);
    else
        fprintf(f, "null");
    fprintf(
        f,
        ",\n \"images\": %d, \"images_per_iteration\": %d, \"loss_scale\": %.0f, \"redone\": %d,"
        "\n \"seconds_per_iteration\": {\"darknet_fp32\": %.6g, \"fp32\": %.6g, \"mixed\": "
        "%.6g},\n \"activation_bytes\": {\"fp32\": %zu, \"mixed\": %zu},\n \"advice\": [",
        s->images, s->images_per_iteration, p->scale, s->redone, s->stock_seconds, s->fp32_seconds,
        s->mixed_seconds, s->fp32_bytes, s->mixed_bytes);
    json_advice(p, f);
    fprintf(f, "],\n \"layers\": [");
    json_layers(p, f);
    fprintf(f, "]}\n");
}
