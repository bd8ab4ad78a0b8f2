/* One engine of a library for a problem, either a plan of cuDNN or an algorithm of cuBLASLt: sets
 * it up, runs it, and names it for the file of plans. Must not know which engine is the better
 * one: choose.c decides. */
#include "plans.h"

#include <stdio.h>
#include <string.h>

enum {
    WORKSPACE = 256 << 20,    /* bytes; a plan may not want more */
    WORKSPACE_FP32 = 1 << 30, /* bytes: in FP32, all but one of cuDNN's engines may want 507 MiB */
};

size_t ampk_tc_workspace_limit(const struct ampk_tc *tc, const struct ampk_tc_problem *p)
{
    size_t much = p->compute == AMPK_COMPUTE_FP32 ? WORKSPACE_FP32 : WORKSPACE;
    return tc->settings.workspace_limit < much ? tc->settings.workspace_limit : much;
}

bool ampk_tc_is_wide(const struct ampk_tc_problem *p)
{
    return p->result != ampk_tc_operand(p->compute);
}

void ampk_tc_clear_engine(struct ampk_tc_engine *engine)
{
    ampk_cudnn_plan_destroy(engine->cudnn);
    ampk_gemm_destroy(engine->gemm);
    *engine = (struct ampk_tc_engine){.cudnn = NULL};
}

bool ampk_tc_set_cudnn(struct ampk_tc *tc, const struct ampk_tc_problem *p,
                       struct ampk_tc_engine *engine, const struct ampk_cudnn_choice *choice,
                       size_t workspace_limit, char *why, size_t why_size)
{
    engine->cudnn = ampk_cudnn_plan_create(&tc->cudnn, p, choice, workspace_limit, why, why_size);
    if (engine->cudnn) engine->workspace = engine->cudnn->workspace;
    return engine->cudnn != NULL;
}

/* An algorithm that this device or version cannot use wants SIZE_MAX bytes (libraries.h), so
 * the limit rejects it, too. */
bool ampk_tc_set_gemm(struct ampk_tc *tc, const struct ampk_tc_problem *p,
                      struct ampk_tc_engine *engine, const cublasLtMatmulAlgo_t *algorithm,
                      size_t workspace_limit)
{
    char why[100];
    engine->gemm = ampk_gemm_create(p, why, sizeof why);
    if (!engine->gemm) return false;
    engine->algorithm = *algorithm;
    engine->workspace = ampk_gemm_workspace(tc->cublaslt, engine->gemm, algorithm, workspace_limit);
    if (engine->workspace <= workspace_limit) return true;
    ampk_tc_clear_engine(engine);
    return false;
}

bool ampk_tc_set_choice(struct ampk_tc *tc, const struct ampk_tc_problem *p,
                        struct ampk_tc_engine *engine, const char *choice, size_t workspace_limit)
{
    char why[400];
    struct ampk_cudnn_choice cudnn;
    cublasLtMatmulAlgo_t algorithm;
    if (!strncmp(choice, "gemm ", 5) && ampk_gemm_read(choice + 5, &algorithm))
        return ampk_tc_set_gemm(tc, p, engine, &algorithm, workspace_limit);
    return !strncmp(choice, "cudnn ", 6) && ampk_cudnn_choice_read(choice + 6, &cudnn) &&
           ampk_tc_set_cudnn(tc, p, engine, &cudnn, workspace_limit, why, sizeof why);
}

/* The description of the product serves only to ask, and is made again for each algorithm that is
 * tried. */
int ampk_tc_list_gemms(struct ampk_tc *tc, const struct ampk_tc_problem *p, size_t workspace_limit,
                       cublasLtMatmulAlgo_t *algorithms, int most, char *why, size_t why_size)
{
    struct ampk_gemm *gemm = ampk_gemm_create(p, why, why_size);
    if (!gemm) return 0;
    int count = ampk_gemm_candidates(tc->cublaslt, gemm, workspace_limit, algorithms, most);
    ampk_gemm_destroy(gemm);
    return count;
}

/* A cuDNN handle keeps its stream from call to call, so every run sets its own. */
bool ampk_tc_run_engine(struct ampk_tc *tc, const struct ampk_tc_engine *engine, const void *first,
                        const void *second, void *result, void *workspace, ampk_rt_stream stream,
                        char *why, size_t why_size)
{
    if (engine->gemm)
        return ampk_gemm_run(tc->cublaslt, engine->gemm, &engine->algorithm, first, second, result,
                             workspace, engine->workspace, stream, why, why_size);
    if (cudnnSetStream(tc->cudnn.handle, (cudaStream_t)stream) != CUDNN_STATUS_SUCCESS) {
        snprintf(why, why_size, "cuDNN: the stream cannot be set");
        return false;
    }
    return ampk_cudnn_plan_run(&tc->cudnn, engine->cudnn, first, second, result, workspace, why,
                               why_size);
}

/* ---- names in the file of plans ---- */

const char *ampk_tc_name_choice(const struct ampk_tc_plan *plan, const char *choice,
                                char key[AMPK_TC_CHOICE_KEY])
{
    int used = snprintf(key, AMPK_TC_CHOICE_KEY, "%s; ", plan->key);
    snprintf(key + used, AMPK_TC_CHOICE, "%s", choice);
    return key + used;
}

const char *ampk_tc_name_cudnn(const struct ampk_tc_plan *plan,
                               const struct ampk_cudnn_choice *choice, char key[AMPK_TC_CHOICE_KEY])
{
    char text[AMPK_TC_CHOICE] = "cudnn ";
    size_t used = strlen(text);
    ampk_cudnn_choice_write(choice, text + used, sizeof text - used);
    return ampk_tc_name_choice(plan, text, key);
}

const char *ampk_tc_name_gemm(const struct ampk_tc_plan *plan,
                              const cublasLtMatmulAlgo_t *algorithm, char key[AMPK_TC_CHOICE_KEY])
{
    char text[AMPK_TC_CHOICE] = "gemm ";
    ampk_gemm_write(algorithm, text + strlen(text));
    return ampk_tc_name_choice(plan, text, key);
}
