/* Every key of the options table: what it means. What it refuses and notes:
 * ../input/verdicts/options.txt. */
#include "plugin/core/read/options_table.h"

#include <glob.h>
#include <stdint.h>
#include <string.h>

#include "tests/rig/harness.h"

static char err[1024], notes[1024];
static struct amp_options o;

/* 0 accepted, -1 rejected. */
static int read_text(const char *text)
{
    err[0] = '\0';
    struct amp_cfg_file *file = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    REQUIRE(file != NULL);
    int status = amp_options_read(file, &o, notes, sizeof notes, err, sizeof err);
    amp_cfg_free(file);
    return status;
}

/* One line in a [net] that switches mixed precision on. */
static int read_line(const char *line)
{
    char text[8192];
    snprintf(text, sizeof text, "[net]\nmixed_precision=1\n%s\n[yolo]\n", line);
    return read_text(text);
}

AMP_TEST(defaults)
{
    CHECK_INT(read_text("[net]\nbatch=1\n"), 0);
    CHECK(!o.mixed_precision && !o.seeded);
    CHECK_INT(read_text("[network]\nmixed_precision=1\n"), 0);
    CHECK(o.mixed_precision && o.loss_scale_dynamic && !o.seeded);
    CHECK_INT(o.dtype, AMP_DTYPE_AUTO);
    CHECK_INT(o.loss_scale_init, 0);
    CHECK_INT(o.loss_scale_window, 0);
    CHECK_INT(o.loss_scale_growth, 2);
    CHECK_NEAR(o.loss_scale_backoff, 0.5, 0);
    CHECK_INT(o.loss_scale_min, 1);
    CHECK_INT(o.loss_scale_max, 1 << 24);
    CHECK_INT(o.on_overflow, AMP_OVERFLOW_RETRY);
    CHECK_INT(o.on_divergence, AMP_DIVERGENCE_STOPS);
    CHECK_INT(o.backend, AMP_BACKEND_AUTO);
    CHECK_INT(o.sidecar, AMP_SIDECAR_BACKUP);
    CHECK_STR(o.log_path, "");
    CHECK_STR(notes, "");
}

AMP_TEST(every_key_is_read)
{
    CHECK_INT(read_text("[net]\nmixed_precision = 1\namp_dtype=fp16\nloss_scale=dynamic\n"
                        "loss_scale_init=65536\nloss_scale_window=1\nloss_scale_growth=4\n"
                        "loss_scale_backoff=.25\nloss_scale_min=2\nloss_scale_max=131072.0\n"
                        "amp_on_overflow=skip\namp_backend=cuda\namp_sidecar=none\n"
                        "amp_log=out/log.jsonl\nseed=18446744073709551615\n"),
              0);
    CHECK(o.mixed_precision && o.loss_scale_dynamic && o.seeded);
    CHECK_INT(o.loss_scale_init, 65536);
    CHECK_INT(o.loss_scale_window, 1);
    CHECK_INT(o.loss_scale_growth, 4);
    CHECK_NEAR(o.loss_scale_backoff, 0.25, 0);
    CHECK_INT(o.loss_scale_min, 2);
    CHECK_INT(o.loss_scale_max, 131072);
    CHECK_INT(o.on_overflow, AMP_OVERFLOW_SKIP);
    CHECK_INT(o.backend, AMP_BACKEND_CUDA);
    CHECK_INT(o.sidecar, AMP_SIDECAR_NONE);
    CHECK_STR(o.log_path, "out/log.jsonl");
    CHECK(o.seed == UINT64_MAX);
    CHECK_STR(notes, "");
}

AMP_TEST(every_word_means_itself)
{
    static const char *const dtypes[] = {"auto", "fp16", "bf16", "tf32", "fp32"};
    static const char *const backends[] = {"auto", "cpu", "cuda"};
    static const char *const sidecars[] = {"backup", "all", "none"};
    char line[64];
    for (int i = 0; i < 5; i++) {
        snprintf(line, sizeof line, "amp_dtype=%s", dtypes[i]);
        CHECK_INT(read_line(line), 0);
        CHECK_INT(o.dtype, i);
    }
    for (int i = 0; i < 3; i++) {
        snprintf(line, sizeof line, "amp_backend=%s", backends[i]);
        CHECK_INT(read_line(line), 0);
        CHECK_INT(o.backend, i);
        snprintf(line, sizeof line, "amp_sidecar=%s", sidecars[i]);
        CHECK_INT(read_line(line), 0);
        CHECK_INT(o.sidecar, i);
    }
    CHECK_INT(read_line("amp_on_divergence=continue"), 0);
    CHECK_INT(o.on_divergence, AMP_DIVERGENCE_GOES_ON);
    CHECK_INT(read_line("amp_on_divergence=stop"), 0);
    CHECK_INT(o.on_divergence, AMP_DIVERGENCE_STOPS);
    CHECK_INT(read_line("amp_on_overflow=retry"), 0);
    CHECK_INT(o.on_overflow, AMP_OVERFLOW_RETRY);
}

AMP_TEST(log_path_is_bounded)
{
    char line[4200] = "amp_log=";
    memset(line + 8, 'x', 4095);
    CHECK_INT(read_line(line), 0);
    CHECK_INT(strlen(o.log_path), 4095);
    line[8 + 4095] = 'x';
    CHECK_INT(read_line(line), -1);
    CHECK(strstr(err, "allowed: at most 4095 bytes"));
}

/* None of Darknet's own keys is taken for one of ours. */
AMP_TEST(stock_cfgs)
{
    glob_t cfgs;
    REQUIRE(glob(AMP_DARKNET_CFGS, 0, NULL, &cfgs) == 0);
    CHECK(cfgs.gl_pathc > 30);
    for (size_t i = 0; i < cfgs.gl_pathc; i++) {
        struct amp_cfg_file *file = amp_cfg_read(cfgs.gl_pathv[i], err, sizeof err);
        if (!file || amp_options_read(file, &o, notes, sizeof notes, err, sizeof err))
            TEST_FAIL("%s", err);
        CHECK_STR(notes, "");
        amp_cfg_free(file);
    }
    globfree(&cfgs);
}

AMP_TEST(what_several_processes_send)
{
    CHECK_INT(read_line("amp_reduce=fast"), 0);
    CHECK_INT(o.wire, AMP_WIRE_FP32);
    CHECK_INT(read_line("amp_wire=bf16"), 0);
    CHECK_INT(o.wire, AMP_WIRE_BF16);
}

AMP_TEST(synchronized_batchnorm)
{
    CHECK_INT(read_line("amp_sync_bn=1"), 0);
    CHECK(o.sync_bn);
    CHECK_INT(read_line("amp_sync_bn=0\namp_reduce=ordered"), 0);
    CHECK(!o.sync_bn);
}

AMP_TEST(fixed_scale)
{
    CHECK_INT(read_line("loss_scale=128"), 0);
    CHECK(!o.loss_scale_dynamic);
    CHECK_NEAR(o.loss_scale, 128, 0);
    CHECK_STR(notes, "");
    CHECK_INT(read_line("loss_scale=1000.7"), 0);
    CHECK_NEAR(o.loss_scale, 512, 0);
    CHECK_INT(read_line("loss_scale=16777215.999999998"), 0);
    CHECK_NEAR(o.loss_scale, 8388608, 0);
    CHECK_INT(read_line("loss_scale=1"), 0);
    CHECK_NEAR(o.loss_scale, 1, 0);
}

/* Each level is what its keys are. */
AMP_TEST(levels_stand_for_keys)
{
    for (int level = AMP_LEVEL_O0; level <= AMP_LEVEL_O3; level++) {
        struct amp_options by_level, by_keys;
        char line[100], *comma;
        snprintf(line, sizeof line, "amp_level=%s", amp_level_word((enum amp_level)level));
        CHECK_INT(read_line(line), 0);
        CHECK_INT(level == AMP_LEVEL_O3, strstr(notes, "for benchmarks only") != NULL);
        by_level = o;
        snprintf(line, sizeof line, "%s", amp_level_keys((enum amp_level)level));
        while ((comma = strstr(line, ", ")))
            memmove(comma, comma + 1, strlen(comma)), *comma = '\n';
        CHECK_INT(read_line(line), 0);
        by_keys = o;
        /* A loss_scale key alone would choose FP16; O1 leaves the choice open. */
        CHECK_INT(by_level.dtype, level == AMP_LEVEL_O1 ? AMP_DTYPE_AUTO : by_keys.dtype);
        CHECK_INT(by_level.loss_scale_dynamic, by_keys.loss_scale_dynamic);
        if (!by_keys.loss_scale_dynamic) CHECK_NEAR(by_level.loss_scale, by_keys.loss_scale, 0);
    }
    CHECK_INT(read_line("amp_level=none\nloss_scale=8"), 0);
}

/* As their sources have it: PyTorch's AdamW, You et al.'s LAMB, Darknet's Adam. */
AMP_TEST(each_optimizer_has_its_own_eps)
{
    CHECK_INT(read_line("optimizer=adamw"), 0);
    CHECK(amp_rules_eps(&o.rules) == 1e-8);
    CHECK_INT(read_line("optimizer=lamb"), 0);
    CHECK(amp_rules_eps(&o.rules) == 1e-6);
    CHECK_INT(read_line("optimizer=adam"), 0);
    CHECK(amp_rules_eps(&o.rules) == 1e-7);
    CHECK_INT(read_line("optimizer=lamb\neps=1e-3"), 0);
    CHECK(amp_rules_eps(&o.rules) == 1e-3);
}

AMP_TEST(adam_0_leaves_the_optimizer)
{
    CHECK_INT(read_line("adam=0\noptimizer=lamb"), 0);
    CHECK(!o.rules.darknets_adam);
}

static enum amp_dtype_choice settled(const char *keys, bool device, bool bf16)
{
    CHECK_INT(read_line(keys), 0);
    amp_options_settle_dtype(&o, device, bf16);
    CHECK(!o.dtype_reason == (strcmp(keys, "") && !strstr(keys, "auto")));
    return o.dtype;
}

AMP_TEST(auto_takes_what_the_machine_multiplies)
{
    static const char *const autos[] = {"", "amp_dtype=auto"};
    for (int i = 0; i < 2; i++) {
        CHECK_INT(settled(autos[i], false, false), AMP_DTYPE_FP16);
        CHECK_INT(settled(autos[i], false, true), AMP_DTYPE_BF16);
        CHECK_STR(o.dtype_reason, "this CPU multiplies BF16");
        CHECK_INT(settled(autos[i], true, false), AMP_DTYPE_FP16);
        CHECK_INT(settled(autos[i], true, true), AMP_DTYPE_FP16);
        CHECK_STR(o.dtype_reason, "GPUs multiply FP16");
    }
    /* A loss scale is for FP16 only. */
    CHECK_INT(settled("amp_dtype=auto\nloss_scale=128", false, true), AMP_DTYPE_FP16);
    CHECK_STR(o.dtype_reason, "a loss_scale key is for FP16");
    CHECK_STR(notes, "");
    CHECK_INT(read_line("loss_scale_window=9"), 0);
    CHECK_INT(o.dtype, AMP_DTYPE_FP16);
    CHECK_INT(settled("amp_dtype=tf32", false, true), AMP_DTYPE_TF32);
    CHECK_INT(settled("amp_dtype=fp16", false, true), AMP_DTYPE_FP16);
    CHECK_INT(settled("amp_dtype=bf16", true, false), AMP_DTYPE_BF16);
}

AMP_TEST(without_mixed_precision_keys_are_idle)
{
    CHECK_INT(read_text("[net]\nmixed_precision=0\nloss_scale=-3.5e7\nseed=7\n"), 0);
    CHECK(!o.mixed_precision && o.loss_scale_dynamic && o.seeded && o.seed == 7);
    CHECK_INT(read_text("[net]\namp_dtype=bf16\namp_log=x\n"), 0);
    CHECK_INT(o.dtype, AMP_DTYPE_AUTO);
    CHECK_STR(o.log_path, "");
}

AMP_TEST(notes_may_be_absent_or_short)
{
    static const char text[] = "[net]\nmixed_precision=1\nloss_scale=3\n";
    struct amp_cfg_file *file = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    REQUIRE(file != NULL);
    CHECK_INT(amp_options_read(file, &o, NULL, 0, err, sizeof err), 0);
    CHECK_INT(amp_options_read(file, &o, notes, 8, err, sizeof err), 0);
    CHECK_STR(notes, "a.cfg:3");
    CHECK_INT(amp_options_read(file, &o, notes, 1, err, sizeof err), 0);
    CHECK_STR(notes, "");
    amp_cfg_free(file);
}

AMP_TEST(the_image_cache_fits_into_memory)
{
    char allowed[100];
    long long memory = (long long)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) >> 20;
    for (int more = 0; more < 2; more++) {
        char text[100];
        snprintf(text, sizeof text, "[net]\nmixed_precision=1\namp_image_cache=%lld\n",
                 memory + more);
        CHECK_INT(read_text(text), -more);
    }
    snprintf(allowed, sizeof allowed, "a.cfg:3: amp_image_cache=%lld: allowed: 0 to %lld,",
             memory + 1, memory);
    CHECK_SAYS(err, allowed);
}

AMP_TEST(layer_override)
{
    static const char text[] =
        "[net]\n[conv]\nmixed_precision=0\n[conv]\nmixed_precision=1\n[conv]\nsize=1\n";
    struct amp_cfg_file *file = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    REQUIRE(file != NULL);
    CHECK_INT(amp_option_layer_override(&file->sections[1]), 0);
    CHECK_INT(amp_option_layer_override(&file->sections[2]), 1);
    CHECK_INT(amp_option_layer_override(&file->sections[3]), -1);
    amp_cfg_free(file);
}

/* Read as 0 they would switch the key off without a word. */
AMP_TEST(numbers_that_fp32_does_not_hold)
{
    static const char *const vanishing[] = {"1e-50", "1e-400", "0.0000000001e-35", "-1e-50"};
    char line[100], message[200];
    int n;
    const struct amp_option_row *rows = amp_option_rows(&n);
    for (int i = 0; i < n; i++) {
        if (rows[i].kind != AMP_OPTION_NUMBER) continue;
        for (int k = 0; k < 4; k++) {
            snprintf(line, sizeof line, "%s=%s", rows[i].key, vanishing[k]);
            snprintf(message, sizeof message,
                     "a.cfg:3: %s: allowed: %s; FP32 holds nothing between 0 and 1.2e-38", line,
                     rows[i].range);
            CHECK_INT(read_line(line), -1);
            CHECK_STR(err, message);
        }
        for (int k = 0; k < 3; k++) {
            static const char *const held[] = {"0", "0e-50", ".0"};
            snprintf(line, sizeof line, "%s=%s", rows[i].key, held[k]);
            CHECK_INT(read_line(line), 0);
        }
    }
    CHECK_INT(read_line("clip_grad_value=1.2e-38"), 0);
    CHECK(o.rules.clip_value == 1.2e-38);
}

AMP_TEST(every_row_is_a_key_and_complete)
{
    int n;
    const struct amp_option_row *rows = amp_option_rows(&n);
    CHECK_INT(n, 41);
    for (int i = 0; i < n; i++) {
        CHECK(amp_option_is_key(rows[i].key));
        if (!rows[i].described)
            CHECK(
                amp_option_set(&rows[i], &o, rows[i].place != AMP_IN_LAYERS, rows[i].default_text));
        CHECK(*rows[i].type && *rows[i].range && *rows[i].default_text && *rows[i].help);
        CHECK(!strpbrk(rows[i].help, "|\n"));
    }
    CHECK(!amp_option_is_key("batch"));
    CHECK(!amp_option_is_key("amp_"));
}

AMP_TEST_MAIN
