/* Address space that ends (ulimit -v) while the CPU backend is made: whatever the limit, either all
 * of it works or the reason is "out of memory"; oneDNN never ends the program. Every limit has a
 * child of its own, because oneDNN keeps what it has once made. */
#include "kernels/kernels.h"
#include "tests/rig/harness.h"

#include <sys/resource.h>
#include <sys/wait.h>

enum { WORKS = 0, NO_MEMORY = 3, OTHER_REASON = 4, THREADS = 2 };

static const struct ampk_conv_shape shapes[] = {
    {.n = 4,
     .c = 3,
     .h = 40,
     .w = 40,
     .k = 16,
     .kh = 3,
     .kw = 3,
     .stride = 1,
     .pad = 1,
     .groups = 1},
    {.n = 4,
     .c = 16,
     .h = 40,
     .w = 40,
     .k = 64,
     .kh = 3,
     .kw = 3,
     .stride = 2,
     .pad = 1,
     .groups = 1},
    {.n = 4,
     .c = 64,
     .h = 20,
     .w = 20,
     .k = 256,
     .kh = 1,
     .kw = 1,
     .stride = 1,
     .pad = 0,
     .groups = 1},
    {.n = 4,
     .c = 256,
     .h = 20,
     .w = 20,
     .k = 64,
     .kh = 3,
     .kw = 3,
     .stride = 1,
     .pad = 1,
     .groups = 1},
};
enum { SHAPES = sizeof shapes / sizeof *shapes, LARGEST = 4 * 256 * 40 * 40 };

static float x[LARGEST], y[LARGEST], dx[LARGEST], weights[256 * 256 * 9];

static struct ampk_tensor tensor(float *data, int c, int h)
{
    return (struct ampk_tensor){data, AMPK_FP32, AMPK_NHWC, 4, c, h, h, (size_t)c * h * h, 0};
}

/* Forward and backward, which can no longer fail. */
static void use(struct ampk_context *ctx, struct ampk_conv *conv, const struct ampk_conv_shape *s)
{
    int out = (s->h + 2 * s->pad - s->kh) / s->stride + 1;
    struct ampk_tensor from = tensor(x, s->c, s->h), to = tensor(y, s->k, out);
    struct ampk_tensor back = tensor(dx, s->c, s->h);
    struct ampk_new_weights all = {conv, weights, NULL};
    struct ampk_weight_gradient gradient = {conv, weights, NULL};
    ampk_cpu.conv_set_weights(ctx, &all, 1);
    ampk_cpu.conv_forward(ctx, conv, &from, &to, NULL, NULL);
    ampk_cpu.conv_backward(ctx, conv, &from, &to, &back, false, NULL);
    ampk_cpu.conv_weight_gradients(ctx, &gradient, 1, 1, false);
}

static int end(const char *reason)
{
    if (strstr(reason, AMPK_NO_MEMORY)) return NO_MEMORY;
    fprintf(stderr, "the reason is: %s\n", reason);
    return OTHER_REASON;
}

static int make_all_and_use(void)
{
    char err[500] = "";
    struct ampk_conv *convs[SHAPES];
    struct ampk_context *ctx = ampk_cpu.context_create(THREADS, err, sizeof err);
    if (!ctx) return end(err);
    for (int i = 0; i < SHAPES; i++) {
        convs[i] = ampk_cpu.conv_create(ctx, &shapes[i], err, sizeof err);
        if (!convs[i]) return end(err);
    }
    for (int i = 0; i < SHAPES; i++)
        use(ctx, convs[i], &shapes[i]);
    return WORKS;
}

/* Bytes of address space that this process has now. */
static size_t address_space(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    REQUIRE(f && fscanf(f, "%lu", &pages) == 1);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static int end_with(size_t limit)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        struct rlimit r = {limit, limit};
        _exit(setrlimit(RLIMIT_AS, &r) ? OTHER_REASON : make_all_and_use());
    }
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

AMP_TEST(every_limit_works_or_is_named)
{
    enum { STEP = 1 << 20, LARGEST_LIMIT = 400 };
    size_t now = address_space();
    int named = 0;
    for (int i = 0; i < LARGEST_LIMIT; i += named < 40 ? 1 : 7) {
        int status = end_with(now + (size_t)i * STEP);
        if (status != WORKS && status != NO_MEMORY)
            TEST_FAIL("%d MiB more than at the start: ends with %d", i, status);
        named += status == NO_MEMORY;
    }
    CHECK(named > 32); /* the context and some convolutions */
    CHECK_INT(end_with(now + (size_t)LARGEST_LIMIT * STEP), WORKS);
}

AMP_TEST_MAIN
