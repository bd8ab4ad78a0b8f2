/* Decides whether a weights file fits a network, by its size alone, and whether its numbers are
 * finite. It must not know what they mean; it only follows the order of Darknet's load_weights and
 * save_weights. */
#include "weights_file.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "plugin/core/read/lines.h"

/* ---- tensors of a layer ---- */

struct tensors {
    struct amp_weight_tensor *list;
    int n;
    const char *part; /* of the layer, with a space: "wz " */
};

/* Saturating arithmetic: the counts come from a cfg, and a wrapped product would look like a small
 * file. */
static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

/* `part` names the matrix inside a recurrent layer, for error messages. */
static void add(struct tensors *t, const char *name, uint64_t floats)
{
    struct amp_weight_tensor *tensor = &t->list[t->n++];
    snprintf(tensor->name, sizeof tensor->name, "%s%s", t->part, name);
    tensor->floats = floats;
}

static void add_scales(struct tensors *t, uint64_t n)
{
    add(t, "scales", n);
    add(t, "rolling means", n);
    add(t, "rolling variances", n);
}

/* Darknet's order in a convolution: biases, batch-norm, weights. inputs: weights of one filter. */
static void add_convolution(struct tensors *t, const char *part, uint64_t filters, uint64_t inputs,
                            bool scales)
{
    t->part = part;
    add(t, "biases", filters);
    if (scales) add_scales(t, filters);
    add(t, "weights", times(filters, inputs));
}

/* Darknet's order in a matrix differs: batch-norm comes last. */
static void add_matrix(struct tensors *t, const char *part, uint64_t inputs, uint64_t outputs,
                       bool scales)
{
    t->part = part;
    add(t, "biases", outputs);
    add(t, "weights", times(inputs, outputs));
    if (scales) add_scales(t, outputs);
}

static void add_layer(struct tensors *t, const struct amp_layer_desc *l, bool load)
{
    static const char *const recurrent[] = {"wz ", "wr ", "wh ", "wi ", "wf ", "wo ", "wg "};
    static const char *const input[] = {"uz ", "ur ", "uh ", "ui ", "uf ", "uo ", "ug "};
    uint64_t in = (uint64_t)l->inputs, out = (uint64_t)l->outputs, hidden = (uint64_t)l->hidden;
    /* numload: so many filters are in the file, the layer has more. */
    uint64_t filters = (uint64_t)(load && l->numload ? l->numload : l->filters);
    uint64_t c = (uint64_t)l->c, area = times((uint64_t)l->size, (uint64_t)l->size);
    /* dontloadscales: the file has no batch-norm of this layer. */
    bool norm = l->batch_normalize, scales = norm && !(load && l->dontloadscales);
    int first = l->type == AMP_GRU ? 0 : 3, last = l->type == AMP_GRU ? 2 : 6;
    switch (l->type) {
    case AMP_CONVOLUTIONAL:
    case AMP_DECONVOLUTIONAL:
        add_convolution(t, "", filters, times(area, c / (uint64_t)l->groups), scales);
        break;
    case AMP_CONNECTED:
        add_matrix(t, "", in, out, scales);
        break;
    case AMP_BATCHNORM:
        add_scales(t, c);
        break;
    case AMP_RNN:
        add_matrix(t, "input ", in, out, norm);
        add_matrix(t, "self ", out, out, norm);
        add_matrix(t, "output ", out, out, norm);
        break;
    case AMP_GRU:
    case AMP_LSTM:
        for (int i = first; i <= last; i++)
            add_matrix(t, recurrent[i], out, out, norm);
        for (int i = first; i <= last; i++)
            add_matrix(t, input[i], in, out, norm);
        break;
    case AMP_CRNN:
        add_convolution(t, "input ", hidden, times(9, c), norm);
        add_convolution(t, "self ", hidden, times(9, hidden), norm);
        add_convolution(t, "output ", (uint64_t)l->filters, times(9, hidden), norm);
        break;
    case AMP_LOCAL:
        add(t, "biases", out);
        add(t, "weights", times(times(area, c), out));
        break;
    default:
        break;
    }
}

int amp_weights_layer_tensors(const struct amp_layer_desc *l, enum amp_weights_use use,
                              struct amp_weight_tensor list[AMP_LAYER_TENSORS_MAX])
{
    struct tensors t = {list, 0, ""};
    bool load = use == AMP_WEIGHTS_LOAD;
    if (!(load ? l->dontload : l->dontsave)) add_layer(&t, l, load);
    return t.n;
}

uint64_t amp_weights_saved_bytes(const struct amp_net_desc *net)
{
    struct amp_weight_tensor list[AMP_LAYER_TENSORS_MAX];
    /* The header: three versions and 64 bits of images seen. */
    uint64_t bytes = 20;
    for (int i = 0; i < net->n; i++)
        for (int n = amp_weights_layer_tensors(&net->layers[i], AMP_WEIGHTS_SAVE, list); n > 0; n--)
            bytes = plus(bytes, times(4, list[n - 1].floats));
    return bytes;
}

/* ---- the file ---- */

struct checker {
    const char *path;
    struct amp_weights_info *info;
    uint64_t left; /* bytes not yet taken by a tensor */
    bool narrow;   /* its version has a header of 16 bytes, in place of 20 */
    char *err;
    size_t err_size;
};

__attribute__((format(printf, 2, 3))) static int fail(const struct checker *k, const char *format,
                                                      ...)
{
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(k->err, k->err_size, "weights file %s: %s", k->path, what);
    return -1;
}

/* What is often found under the name of a weights file. A version of Darknet begins with none of
 * these. */
static int check_kind(const struct checker *k, FILE *file)
{
    static const struct {
        const char *begin, *what;
    } kinds[] = {
        {"version https://git-lfs", "is a pointer of Git LFS, not the weights: git lfs pull"},
        {"<", "is an HTML or XML page, not weights: the download did not give the file"},
        {"PK\3\4", "is a ZIP archive, or a model of PyTorch: Darknet reads .weights alone"},
        {"\x89HDF", "is a model in HDF5: Darknet reads .weights alone"},
        {"\x1F\x8B", "is compressed by gzip: unpack it first"}};
    char begin[32] = "";
    size_t n = fread(begin, 1, sizeof begin - 1, file);
    rewind(file);
    for (size_t i = 0; n && i < sizeof kinds / sizeof *kinds; i++)
        if (!strncmp(begin, kinds[i].begin, strlen(kinds[i].begin)))
            return fail(k, "%s", kinds[i].what);
    return 0;
}

static int read_header(struct checker *k, FILE *file)
{
    struct stat info;
    int32_t version[3], seen32 = 0;
    if (fstat(fileno(file), &info)) return fail(k, "cannot read: %s", strerror(errno));
    if (fread(version, sizeof version, 1, file) != 1) return fail(k, "ends inside its header");

    int64_t major = version[0], minor = version[1];
    /* The same test as in Darknet's load_weights. */
    bool wide = major * 10 + minor >= 2 && major < 1000 && minor < 1000;
    size_t read = wide ? fread(&k->info->seen, 8, 1, file) : fread(&seen32, 4, 1, file);
    if (read != 1) return fail(k, "ends inside its header");
    /* Darknet converts a 32-bit count like this, sign included. */
    if (!wide) k->info->seen = (uint64_t)(int64_t)seen32;
    k->narrow = major * 10 + minor < 2;
    k->left = (uint64_t)info.st_size - sizeof version - (wide ? 8 : 4);
    return 0;
}

/* Refuses a layer that Darknet crashes on while it loads weights. */
static int check_loadable(const struct checker *k, const struct amp_layer_desc *l, int index)
{
    bool has_filters = l->type == AMP_CONVOLUTIONAL || l->type == AMP_DECONVOLUTIONAL;
    if (l->dontload || !has_filters || (l->numload >= 0 && l->numload <= l->filters)) return 0;
    return fail(k, "layer %d (%s): numload=%d; allowed: 0 to %d", index,
                amp_layer_type_name(l->type), l->numload, l->filters);
}

/* Takes the bytes of one layer's n tensors. 1: the file has them; 0: it ended before them; -1: it
 * ends inside. */
static int take_layer(struct checker *k, const struct amp_layer_desc *l, int index,
                      const struct amp_weight_tensor *list, int n)
{
    /* The file ended between layers, which is allowed. */
    if (!k->left) return 0;
    for (int i = 0; i < n; i++) {
        uint64_t bytes = times(4, list[i].floats);
        if (bytes > k->left)
            return fail(k,
                        "ends inside layer %d (%s), with %" PRIu64 " of the %" PRIu64
                        " bytes of its %s; it is cut off, or belongs to another network",
                        index, amp_layer_type_name(l->type), k->left, bytes, list[i].name);
        k->left -= bytes;
    }
    return 1;
}

/* Walks through the file as load_weights would, by sizes instead of reads. */
static int check_layers(struct checker *k, const struct amp_net_desc *net)
{
    struct amp_weight_tensor list[AMP_LAYER_TENSORS_MAX];
    for (int i = 0; i < net->n; i++) {
        const struct amp_layer_desc *l = &net->layers[i];
        if (check_loadable(k, l, i)) return -1;
        int n = amp_weights_layer_tensors(l, AMP_WEIGHTS_LOAD, list);
        if (!n) continue;
        int found = take_layer(k, l, i, list, n);
        if (found < 0) return -1;
        k->info->layers++;
        k->info->layers_found += found;
        if (!found && k->info->first_absent < 0) k->info->first_absent = i;
    }
    if (k->left == 4 && k->narrow)
        return fail(k,
                    "4 bytes are left over after the last layer: its header says a version before "
                    "0.2, of which it has 16 bytes, but it has 20, as from 0.2 on: what wrote it "
                    "must say 0.2; else it belongs to another network");
    /* Too many bytes are as wrong as too few: the file is of another network, and all of its
     * numbers would land in wrong places. */
    if (k->left)
        return fail(k,
                    "%" PRIu64 " bytes are left over after the last layer; it belongs to another "
                    "network",
                    k->left);
    /* Darknet would start from random weights without a word. */
    if (k->info->layers && !k->info->layers_found) return fail(k, "has no layer after its header");
    return 0;
}

int amp_weights_check(const char *path, const struct amp_net_desc *net,
                      struct amp_weights_info *info, char *err, size_t err_size)
{
    struct checker k = {.path = path, .info = info, .err = err, .err_size = err_size};
    *info = (struct amp_weights_info){.first_absent = -1};
    struct stat there; /* checked before opening, since a FIFO would wait for a writer */
    bool is_there = !stat(path, &there);
    if (is_there && !S_ISREG(there.st_mode))
        return fail(&k, "%s", amp_file_irregular(there.st_mode));
    if (is_there && !there.st_size)
        return fail(&k, "is empty (0 bytes): a download or a copy of it failed");
    FILE *file = fopen(path, "rb");
    if (!file) return fail(&k, "cannot read: %s", strerror(errno));
    int failed = check_kind(&k, file) || read_header(&k, file) || check_layers(&k, net);
    fclose(file);
    return failed ? -1 : 0;
}

/* Statistics count too: a NaN there spoils inference. */
static int check_numbers(const struct checker *k, FILE *file)
{
    enum { PIECE = 1 << 14 };
    static float piece[PIECE];
    size_t n, before = 0;
    while ((n = fread(piece, sizeof *piece, PIECE, file)) > 0) {
        for (size_t i = 0; i < n; i++)
            if (!isfinite(piece[i]))
                return fail(k,
                            "its number %zu is %g: the training that saved it had diverged; take "
                            "an older file",
                            before + i + 1, (double)piece[i]);
        before += n;
    }
    return ferror(file) ? fail(k, "cannot read: %s", strerror(errno)) : 0;
}

int amp_weights_check_numbers(const char *path, char *err, size_t err_size)
{
    struct amp_weights_info info;
    struct checker k = {.path = path, .info = &info, .err = err, .err_size = err_size};
    FILE *file = fopen(path, "rb");
    if (!file) return fail(&k, "cannot read: %s", strerror(errno));
    int failed = read_header(&k, file) || check_numbers(&k, file);
    fclose(file);
    return failed ? -1 : 0;
}
