/* Every key of the options table: what it accepts, what it rejects and in which words. */
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

#define WAY_OUT "(AlexeyAB's Darknet allows it; amp_dialect=fork under [net] follows its rules)"

/* One line in a [net] that switches mixed precision on. */
static int read_line(const char *line)
{
    char text[8192];
    snprintf(text, sizeof text, "[net]\nmixed_precision=1\n%s\n[yolo]\n", line);
    return read_text(text);
}

static void check_rejected(const char *text, const char *message)
{
    CHECK_INT(read_text(text), -1);
    CHECK_STR(err, message);
}

/* The key does not take any of these values, and says what it takes. */
static void check_bad_values(const char *key, const char *const *values)
{
    char line[256], message[512];
    int n;
    const struct amp_option_row *rows = amp_option_rows(&n), *row = rows;
    while (strcmp(row->key, key))
        ++row;
    for (; *values; values++) {
        snprintf(line, sizeof line, "%s=%s", key, *values);
        snprintf(message, sizeof message, "a.cfg:3: %s: allowed: %s%s", line,
                 strcmp(row->type, "integer") ? "" : "a whole number, ", row->range);
        if (!read_line(line)) TEST_FAIL("%s was accepted", line);
        CHECK_STR(err, message);
    }
}

#define CHECK_BAD_VALUES(key, ...) check_bad_values(key, (const char *const[]){__VA_ARGS__, NULL})

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

AMP_TEST(bad_values_are_rejected)
{
    CHECK_BAD_VALUES("amp_dtype", "fp17", "FP16", "half", "fp16x", "1");
    CHECK_BAD_VALUES("loss_scale", "yes", "nan", "inf", "-inf", "128x", "0x80", "1e999", "--1", "0",
                     "0.5", "-128", "16777217", "dynamics");
    CHECK_BAD_VALUES("loss_scale_init", "0", "3", "-2", "1.5", "0.5", "33554432", "nan", "inf",
                     "2^16", "65536junk", "dynamic");
    CHECK_BAD_VALUES("loss_scale_window", "0", "-1", "1.5", "20x", "1000000001", "true",
                     "99999999999999999999");
    CHECK_BAD_VALUES("loss_scale_growth", "1", "3", "8", "-2", "2x", "inf", "nan");
    CHECK_BAD_VALUES("loss_scale_backoff", "0", "1", "2", "0.1", "1/2", "-0.5", "nan");
    CHECK_BAD_VALUES("loss_scale_min", "0", "0.5", "3", "-1", "inf");
    CHECK_BAD_VALUES("loss_scale_max", "0", "3", "16777217", "1e30", "nan");
    CHECK_BAD_VALUES("amp_on_overflow", "redo", "Retry", "1");
    CHECK_BAD_VALUES("amp_on_divergence", "go", "Stop", "0");
    CHECK_BAD_VALUES("amp_backend", "gpu", "CPU");
    CHECK_BAD_VALUES("amp_sidecar", "1", "yes");
    CHECK_BAD_VALUES("amp_wire", "fp16", "BF16", "16");
    CHECK_BAD_VALUES("amp_sync_bn", "2", "-1", "yes", "1.5");
    CHECK_BAD_VALUES("amp_bucket_mb", "-1", "1025", "25MB");
    CHECK_BAD_VALUES("seed", "-1", "1.0", "abc", "18446744073709551616", "1e3", "0x1");
}

AMP_TEST(the_switch_is_0_or_1)
{
    static const char *const bad[] = {"2", "true", "yes", "on", "-1", "1.0", "01", "nan", "1x"};
    char text[64], message[128];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(text, sizeof text, "[net]\nmixed_precision=%s\n", bad[i]);
        snprintf(message, sizeof message, "a.cfg:2: mixed_precision=%s: allowed: 0 or 1", bad[i]);
        check_rejected(text, message);
    }
    check_rejected("[net]\n[convolutional]\nmixed_precision=off\n",
                   "a.cfg:3: mixed_precision=off: allowed: 0 or 1");
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

AMP_TEST(unknown_keys_name_the_nearest)
{
    check_rejected("[net]\namp_dtyp=fp16\n",
                   "a.cfg:2: amp_dtyp=fp16: unknown key in [net]; did you mean amp_dtype?");
    check_rejected("[net]\nbatch=1\n[yolo]\nloss_scale_windows=3\n",
                   "a.cfg:4: loss_scale_windows=3: unknown key in [yolo]; did you mean "
                   "loss_scale_window, which stands in [net]?");
    check_rejected("[net]\nAMP_log=x\n",
                   "a.cfg:2: AMP_log=x: unknown key in [net]; did you mean amp_log?");
    check_rejected("[net]\nmixed_precison=1\n",
                   "a.cfg:2: mixed_precison=1: unknown key in [net]; did you mean "
                   "mixed_precision?");
    check_rejected("[net]\nmixedprecision=1\n",
                   "a.cfg:2: mixedprecision=1: unknown key in [net]; did you mean "
                   "mixed_precision?");
    check_rejected("[net]\nloss_scal_max=4\n",
                   "a.cfg:2: loss_scal_max=4: unknown key in [net]; did you mean "
                   "loss_scale_max?");
    check_rejected("[net]\nbatch=1\n[conv]\nmixed_precison=1\n",
                   "a.cfg:4: mixed_precison=1: unknown key in [conv]; did you mean "
                   "mixed_precision?");
    CHECK_INT(read_text("[net]\nbatch=1\nscale=2\nscales=.1,.1\n[crop]\nfoo_amp_=1\n"), 0);
    CHECK_INT(read_text("[net]\nsee=1\n[region]\nclass_scale=1\nmask_scale=1\n"), 0);
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

AMP_TEST(keys_in_the_wrong_section)
{
    check_rejected("[net]\n[yolo]\namp_dtype=fp16\n", "a.cfg:3: amp_dtype=fp16: stands in [yolo]; "
                                                      "allowed only in the first section, [net]");
    check_rejected("[net]\n[net]\nseed=1\n", "a.cfg:3: seed=1: stands in [net]; allowed only in "
                                             "the first section, [net]");
    check_rejected("[yolo]\nclasses=1\n",
                   "a.cfg:1: the first section is [yolo]; it must be [net] or [network]");
}

AMP_TEST(duplicate_keys)
{
    check_rejected("[net]\nseed=1\nbatch=1\nseed=1\n",
                   "a.cfg:4: seed=1: given twice in [net], first in line 2");
    check_rejected("[net]\n[yolo]\nmixed_precision=0\nmixed_precision=1\n",
                   "a.cfg:4: mixed_precision=1: given twice in [yolo], first in line 3");
    CHECK_INT(read_text("[net]\nbatch=1\nbatch=2\n"), 0); /* Darknet's own business */
    CHECK_STR(notes, "");
    CHECK_INT(read_text("[net]\nbatch=1\nmixed_precision=1\nbatch=2\n[conv]\nsize=3\n[conv]\nsize=1"
                        "\nsize=3\n"),
              0);
    CHECK_STR(notes, "a.cfg:4: batch=2: given twice in [net]; line 2 counts (batch=1)\n"
                     "a.cfg:9: size=3: given twice in [conv]; line 8 counts (size=1)\n");
}

AMP_TEST(bounds_of_the_dynamic_scale)
{
    check_rejected("[net]\nloss_scale_max=4\nloss_scale_min=8\n",
                   "a.cfg:3: loss_scale_min=8: loss_scale_min (8) is above loss_scale_max (4)");
    check_rejected("[net]\nloss_scale_min=16\nloss_scale_init=8\n",
                   "a.cfg:3: loss_scale_init=8: allowed: loss_scale_min (16) to loss_scale_max "
                   "(16777216)");
    check_rejected("[net]\nloss_scale_max=4\nloss_scale_init=8\n",
                   "a.cfg:3: loss_scale_init=8: allowed: loss_scale_min (1) to loss_scale_max (4)");
    CHECK_INT(read_line("loss_scale_min=8\nloss_scale_max=8\nloss_scale_init=8"), 0);
}

AMP_TEST(what_several_processes_send)
{
    CHECK_INT(read_line("amp_reduce=fast"), 0);
    CHECK_INT(o.wire, AMP_WIRE_FP32);
    CHECK_INT(read_line("amp_wire=bf16"), 0);
    CHECK_INT(o.wire, AMP_WIRE_BF16);
    CHECK_INT(read_line("amp_wire=fp32\namp_reduce=ordered"), 0);
    check_rejected("[net]\nmixed_precision=1\namp_wire=bf16\nbatch=1\namp_reduce=ordered\n",
                   "a.cfg:3: amp_wire=bf16: amp_reduce=ordered in line 5 needs "
                   "amp_wire=fp32");
}

AMP_TEST(synchronized_batchnorm)
{
    CHECK_INT(read_line("amp_sync_bn=1"), 0);
    CHECK(o.sync_bn);
    CHECK_INT(read_line("amp_sync_bn=0\namp_reduce=ordered"), 0);
    CHECK(!o.sync_bn);
    check_rejected(
        "[net]\nmixed_precision=1\namp_reduce=ordered\namp_sync_bn=1\n",
        "a.cfg:4: amp_sync_bn=1: amp_reduce=ordered in line 3 runs the processes' passes "
        "one after another, so that they cannot share batch-norm; allowed with it: 0");
}

AMP_TEST(fixed_scale)
{
    CHECK_INT(read_line("loss_scale=128"), 0);
    CHECK(!o.loss_scale_dynamic);
    CHECK_NEAR(o.loss_scale, 128, 0);
    CHECK_STR(notes, "");
    CHECK_INT(read_line("loss_scale=1000.7"), 0);
    CHECK_NEAR(o.loss_scale, 512, 0);
    CHECK_STR(notes, "a.cfg:3: loss_scale=1000.7: rounded down to 512, a power of two\n");
    CHECK_INT(read_line("loss_scale=16777215.999999998"), 0);
    CHECK_NEAR(o.loss_scale, 8388608, 0);
    CHECK_INT(read_line("loss_scale=1"), 0);
    CHECK_NEAR(o.loss_scale, 1, 0);
    check_rejected("[net]\nloss_scale=128\nmixed_precision=1\nloss_scale_window=9\n",
                   "a.cfg:4: loss_scale_window=9: steers the dynamic scale, but line 2 fixes it "
                   "(loss_scale=128)");
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
    check_rejected("[net]\nmixed_precision=1\namp_level=O2\namp_dtype=bf16\n",
                   "a.cfg:4: amp_dtype=bf16: amp_level=O2 in line 3 stands for amp_dtype=fp16, "
                   "loss_scale=dynamic; allowed: one of them");
    check_rejected("[net]\nmixed_precision=1\nloss_scale=8\namp_level=O3\n",
                   "a.cfg:3: loss_scale=8: amp_level=O3 in line 4 stands for amp_dtype=fp16, "
                   "loss_scale=1; allowed: one of them");
    check_rejected("[net]\namp_dtype=bf16\nmixed_precision=1\namp_level=O1\n",
                   "a.cfg:2: amp_dtype=bf16: amp_level=O1 in line 4 stands for amp_dtype=auto, "
                   "loss_scale=dynamic; allowed: one of them");
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

AMP_TEST(a_momentum_beside_moments_is_noted)
{
    static const char *const optimizers[] = {"adam", "adamw", "lamb", "sgd", "lars"};
    char line[64], expected[128];
    for (int i = 0; i < 5; i++) {
        snprintf(line, sizeof line, "momentum=.8\noptimizer=%s", optimizers[i]);
        snprintf(expected, sizeof expected,
                 "a.cfg:3: momentum=.8: has no effect with optimizer=%s; B1 is its momentum\n",
                 optimizers[i]);
        CHECK_INT(read_line(line), 0);
        CHECK_STR(notes, i < 3 ? expected : "");
    }
    CHECK_INT(read_line("adam=1\nmomentum=.8"), 0);
    CHECK_STR(notes, "a.cfg:4: momentum=.8: has no effect with optimizer=adam; B1 is its "
                     "momentum\n");
    CHECK_INT(read_line("optimizer=adamw\nB1=.8"), 0);
    CHECK_STR(notes, "");
    /* Darknet's Adam moves this layer by SGD. */
    CHECK_INT(read_line("adam=1\nmomentum=.8\n[local]"), 0);
    CHECK_STR(notes, "");
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

AMP_TEST(without_mixed_precision_keys_are_checked_but_idle)
{
    CHECK_INT(read_text("[net]\nmixed_precision=0\nloss_scale=-3.5e7\nseed=7\n"), 0);
    CHECK(!o.mixed_precision && o.loss_scale_dynamic && o.seeded && o.seed == 7);
    CHECK_STR(notes, "a.cfg:3: loss_scale=-3.5e7: has no effect without mixed_precision=1\n");
    CHECK_INT(read_text("[net]\namp_dtype=bf16\namp_log=x\n"), 0);
    CHECK_INT(o.dtype, AMP_DTYPE_AUTO);
    CHECK_STR(o.log_path, "");
    CHECK_STR(notes, "a.cfg:2: amp_dtype=bf16: has no effect without mixed_precision=1; likewise "
                     "amp_log=x (line 3)\n");
    CHECK_INT(read_text("[net]\nloss_scale_growth=4\n"), 0);
    CHECK_STR(notes, "a.cfg:2: loss_scale_growth=4: has no effect without mixed_precision=1\n");
    CHECK_INT(read_text("[net]\namp=1\nfp16=1\nbf16=1\nhalf=1\n"), 0); /* other trainers' words */
    CHECK_STR(notes, "a.cfg:2: amp=1: has no effect without mixed_precision=1; likewise fp16=1 "
                     "(line 3), bf16=1 (line 4), half=1 (line 5)\n");
    CHECK_INT(read_text("[net]\nseed=1\nema_alpha=.9\nloss_scale=2\nclip_grad_norm=10\n"
                        "optimizer=lamb\n[conv]\ncheckpoint=1\nfreeze=1\n[conv]\nfreeze=1\n"),
              0);
    CHECK_STR(notes, "a.cfg:3: ema_alpha=.9: has no effect without mixed_precision=1; likewise "
                     "loss_scale=2 (line 4), clip_grad_norm=10 (line 5), optimizer=lamb (line 6)\n"
                     "a.cfg:9: freeze=1: a layer's key has no effect without mixed_precision=1 "
                     "under [net]; likewise checkpoint=1 (line 8)\n");
    check_rejected("[net]\nloss_scale=many\n", "a.cfg:2: loss_scale=many: allowed: dynamic, or a "
                                               "number from 1 to 16777216");
    check_rejected("[net]\namp_dtype=x\n",
                   "a.cfg:2: amp_dtype=x: allowed: auto, fp16, bf16, tf32 or fp32");
}

AMP_TEST(a_layers_key_without_the_nets_is_noted)
{
    CHECK_INT(read_text("[net]\nseed=1\n[conv]\n[conv]\nmixed_precision=1\n"), 0);
    CHECK_STR(notes, "a.cfg:5: mixed_precision=1: a layer's key has no effect without "
                     "mixed_precision=1 under [net]\n");
    CHECK_INT(read_text("[net]\nmixed_precision=1\n[conv]\nmixed_precision=0\n"), 0);
    CHECK_STR(notes, "");
}

AMP_TEST(a_scale_beside_another_dtype_is_noted)
{
    CHECK_INT(read_line("amp_dtype=bf16\nloss_scale=64"), 0);
    CHECK_STR(notes, "a.cfg:4: loss_scale=64: has no effect with amp_dtype=bf16: the scale is 1\n");
    CHECK_INT(read_line("amp_dtype=tf32\nloss_scale_init=64\nloss_scale_max=128"), 0);
    CHECK_STR(notes, "a.cfg:4: loss_scale_init=64: has no effect with amp_dtype=tf32: the scale is "
                     "1; likewise loss_scale_max=128 (line 5)\n");
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

AMP_TEST(a_remark_after_a_value_is_named_as_the_cause)
{
    check_rejected(
        "[net]\nmixed_precision=1 # on\n",
        "a.cfg:2: mixed_precision=1 # on: allowed: 0 or 1 (a remark is not allowed after a "
        "value: put it on a line of its own)");
    check_rejected("[net]\nseed=7 ; lucky\n",
                   "a.cfg:2: seed=7 ; lucky: allowed: a whole number, 0 to 18446744073709551615 (a "
                   "remark is not allowed after a value: put it on a line of its own)");
}

AMP_TEST(darknets_keys_are_checked_where_mixed_precision_is_on)
{
    CHECK_INT(read_text("[net]\nmosaic=1\nbatch=5\nsubdivisions=2\nauthor=me\n"), 0);
    CHECK_STR(notes, "");
    check_rejected("[net]\nmixed_precision=1\nBatch=5\n",
                   "a.cfg:3: Batch=5 in [net]: unknown key; did you mean batch? " WAY_OUT);
    check_rejected("[net]\nmixed_precision=1\nSed=5\n",
                   "a.cfg:3: Sed=5 in [net]: unknown key; did you mean seed?");
    check_rejected(
        "[net]\nmixed_precision=1\nbatch=5\nsubdivisions=2\n",
        "a.cfg:4: subdivisions=2 in [net]: must divide batch=5, or be auto; Darknet would "
        "train 4 images in an iteration " WAY_OUT);
    check_rejected(
        "[net]\nmixed_precision=1\nbatch=5x\n",
        "a.cfg:3: batch=5x in [net]: \"5x\"; allowed: a whole number of 32 bits " WAY_OUT);
    CHECK_INT(read_line("author=me"), 0);
    CHECK_STR(notes, "a.cfg:3: author=me in [net]: has no effect in this section\n");
}

AMP_TEST(loading)
{
    char allowed[100];
    CHECK_INT(read_line("amp_loader_threads=3"), 0);
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
    check_rejected("[net]\nmixed_precision=1\namp_loader=quick\n",
                   "a.cfg:3: amp_loader=quick: allowed: fast or darknet");
    check_rejected("[net]\nmixed_precision=1\namp_loader_threads=0\n",
                   "a.cfg:3: amp_loader_threads=0: allowed: a whole number, 1 to 1024");
    CHECK_INT(read_text("[net]\nmixed_precision=1\namp_loader=darknet\namp_jpeg_scale=1\n"
                        "amp_image_cache=1\n"),
              0);
    CHECK_STR(notes, "a.cfg:4: amp_jpeg_scale=1: has no effect with amp_loader=darknet; likewise "
                     "amp_image_cache=1 (line 5)\n");
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
    check_rejected("[net]\nmixed_precision=1\nclip_grad_norm=1e39\n",
                   "a.cfg:3: clip_grad_norm=1e39: allowed: 0 to 1000000000");
    check_rejected("[net]\nmixed_precision=1\nlearning_rate=1e-50\n",
                   "a.cfg:3: learning_rate=1e-50 in [net]: \"1e-50\"; allowed: a finite number; "
                   "FP32 holds nothing between 0 and 1.2e-38");
    check_rejected("[net]\nmixed_precision=1\nscales=1,1e-50\n",
                   "a.cfg:3: scales=1,1e-50 in [net]: \"1e-50\"; allowed: a finite number; FP32 "
                   "holds nothing between 0 and 1.2e-38, or several with commas between them");
    check_rejected("[net]\nmixed_precision=1\nlearning_rate=1e39\n",
                   "a.cfg:3: learning_rate=1e39 in [net]: \"1e39\"; allowed: a finite number");
    check_rejected("[net]\nmixed_precision=1\nmomentum=.9999999999\n",
                   "a.cfg:3: momentum=.9999999999 in [net]: allowed: at least 0 and below 1");
    check_rejected("[net]\nmixed_precision=1\noptimizer=adamw\nB2=.9999999999\n",
                   "a.cfg:4: B2=.9999999999: allowed: 0 to below 1");
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
