/* Lists cuDNN's engines and settings for a problem, rejects those that libraries.h rules out, and
 * makes and runs plans. Must not time them: choose.c does. */
#include "libraries.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LISTED = 128,  /* choices to ask of one heuristic */
    EXPECTED = 40, /* how many of them to try where none is timed */
    FEW = 32,      /* so many values of a setting are all tried */
};

const cudnnBackendHeurMode_t ampk_cudnn_modes[AMPK_CUDNN_MODES] = {
    CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK};

/* ---- engines ---- */

/* Notes of engines that we reject, one bit per note. */
static const unsigned refused =
    1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS |
    1u << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION | 1u << CUDNN_NUMERICAL_NOTE_FFT |
    1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC | 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD |
    1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4 | 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6 |
    1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13;

/* An engine that does not answer counts as rejected. */
static unsigned engine_notes(cudnnBackendDescriptor_t engine)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t count = 0;
    unsigned found = 0;
    if (cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                 CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count,
                                 notes) != CUDNN_STATUS_SUCCESS)
        return refused;
    for (int64_t i = 0; i < count && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++)
        found |= 1u << notes[i];
    return found;
}

/* Whether making a plan of this engine compiles code: a second or so at every start. */
static bool is_compiled(cudnnBackendDescriptor_t engine)
{
    cudnnBackendBehaviorNote_t notes[CUDNN_BEHAVIOR_NOTE_TYPE_COUNT];
    int64_t count = 0;
    bool found = false;
    if (cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
                                 CUDNN_BEHAVIOR_NOTE_TYPE_COUNT, &count,
                                 notes) != CUDNN_STATUS_SUCCESS)
        return false;
    for (int64_t i = 0; i < count && i < CUDNN_BEHAVIOR_NOTE_TYPE_COUNT; i++)
        found |= notes[i] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
    return found;
}

static bool is_acceptable(unsigned notes, enum ampk_compute compute)
{
    bool tensor_cores = notes & 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    /* Tensor Cores read FP32 operands as TF32, which is not FP32 arithmetic. */
    return !(notes & refused) && !(compute == AMPK_COMPUTE_FP32 && tensor_cores);
}

/* ---- choices ---- */

/* The text of a choice goes into the file of plans; it means something to the same version of
 * cuDNN only. */
void ampk_cudnn_choice_write(const struct ampk_cudnn_choice *choice, char *text, size_t size)
{
    int used = snprintf(text, size, "%lld", (long long)choice->engine);
    for (int i = 0; i < choice->knobs && (size_t)used < size; i++)
        used += snprintf(text + used, size - (size_t)used, " %lld=%lld",
                         (long long)choice->knob[i].type, (long long)choice->knob[i].value);
}

/* False for text that ampk_cudnn_choice_write did not write. */
bool ampk_cudnn_choice_read(const char *text, struct ampk_cudnn_choice *choice)
{
    char *end;
    memset(choice, 0, sizeof *choice);
    choice->engine = strtoll(text, &end, 10);
    bool good = end != text;
    while (good && *end == ' ' && choice->knobs < AMPK_CUDNN_KNOBS) {
        char *value;
        choice->knob[choice->knobs].type = strtoll(end + 1, &value, 10);
        good = *value == '=';
        if (good) choice->knob[choice->knobs++].value = strtoll(value + 1, &end, 10);
    }
    return good && !*end;
}

/* Compares engine and settings: the heuristics may name a choice more than once. */
static bool same_choice(const struct ampk_cudnn_choice *a, const struct ampk_cudnn_choice *b)
{
    return a->engine == b->engine && a->knobs == b->knobs &&
           !memcmp(a->knob, b->knob, (size_t)a->knobs * sizeof *a->knob);
}

/* Reads an attribute that is a descriptor or a list of them, as descriptors of the set. cuDNN
 * fills in the descriptors that it is given, so each is made first; we cannot ask how many there
 * are. */
static int get_descriptors(struct ampk_cudnn_set *set, cudnnBackendDescriptor_t from,
                           cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type,
                           cudnnBackendDescriptor_t *list, int most)
{
    int64_t count = 0;
    for (int i = 0; i < most; i++)
        if (!(list[i] = ampk_cudnn_make(set, type))) return 0;
    if (cudnnBackendGetAttribute(from, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, &count, list) !=
        CUDNN_STATUS_SUCCESS)
        return 0;
    return count < most ? (int)count : most;
}

static int64_t get_int(cudnnBackendDescriptor_t from, cudnnBackendAttributeName_t name,
                       cudnnBackendAttributeType_t type)
{
    int64_t value = 0, count = 0;
    if (cudnnBackendGetAttribute(from, name, type, 1, &count, &value) != CUDNN_STATUS_SUCCESS)
        return -1;
    return value;
}

static int64_t get_knob_type(cudnnBackendDescriptor_t from, cudnnBackendAttributeName_t name)
{
    cudnnBackendKnobType_t type = 0;
    int64_t count = 0;
    cudnnStatus_t status =
        cudnnBackendGetAttribute(from, name, CUDNN_TYPE_KNOB_TYPE, 1, &count, &type);
    return status == CUDNN_STATUS_SUCCESS ? (int64_t)type : -1;
}

static bool read_knobs(struct ampk_cudnn_set *set, cudnnBackendDescriptor_t config,
                       struct ampk_cudnn_choice *choice)
{
    cudnnBackendDescriptor_t knobs[AMPK_CUDNN_KNOBS];
    choice->knobs = get_descriptors(set, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                    CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, knobs, AMPK_CUDNN_KNOBS);
    for (int i = 0; i < choice->knobs; i++) {
        choice->knob[i].type = get_knob_type(knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE);
        if (choice->knob[i].type < 0) return false;
        choice->knob[i].value =
            get_int(knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64);
    }
    return true;
}

/* Reads an engine and its settings; false if we reject the engine. */
static bool read_choice(cudnnBackendDescriptor_t config, enum ampk_compute compute,
                        struct ampk_cudnn_choice *choice)
{
    struct ampk_cudnn_set set = {.count = 0};
    cudnnBackendDescriptor_t engine;
    memset(choice, 0, sizeof *choice);
    bool taken = get_descriptors(&set, config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                 CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine, 1) == 1;
    if (taken) {
        unsigned notes = engine_notes(engine);
        choice->engine = get_int(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64);
        choice->tensor_cores = notes & 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
        taken = is_acceptable(notes, compute) && !is_compiled(engine) &&
                read_knobs(&set, config, choice);
    }
    ampk_cudnn_clear(&set);
    return taken;
}

/* ---- heuristics ---- */

/* Asks one heuristic for engines with settings, best guess first. For a device that is not here,
 * cuDNN gets its properties instead of a handle. */
static int list_configs(struct ampk_cudnn_set *set, const struct ampk_cudnn_device *device,
                        cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode,
                        cudnnBackendDescriptor_t *configs)
{
    cudnnBackendDescriptor_t h = ampk_cudnn_make(set, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    ampk_cudnn_attribute_descriptor(set, h, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    ampk_cudnn_attribute(set, h, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
#if CUDNN_VERSION >= 91002
    if (device->properties)
        ampk_cudnn_attribute_descriptor(set, h, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
                                        device->properties);
#else
    (void)device;
#endif
    if (!ampk_cudnn_finalize(set, h, "heuristics")) return 0;
    return get_descriptors(set, h, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                           CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, configs, LISTED);
}

/* Adds a choice unless it is there or the list is full. */
static int add_choice(struct ampk_cudnn_choice *choices, int count, int most,
                      const struct ampk_cudnn_choice *choice)
{
    for (int i = 0; i < count; i++)
        if (same_choice(&choices[i], choice)) return count;
    if (count < most) choices[count++] = *choice;
    return count;
}

int ampk_cudnn_candidates(const struct ampk_cudnn_device *device, const struct ampk_tc_problem *p,
                          cudnnBackendHeurMode_t mode, struct ampk_cudnn_choice *choices, int count,
                          int most, char *why, size_t why_size)
{
    struct ampk_cudnn_set set = {.count = 0};
    struct ampk_cudnn_choice choice;
    cudnnBackendDescriptor_t configs[LISTED];
    cudnnBackendDescriptor_t graph = ampk_cudnn_graph(&set, device, p);
    int listed = graph ? list_configs(&set, device, graph, mode, configs) : 0;
    for (int i = 0; i < listed; i++)
        if (read_choice(configs[i], p->compute, &choice))
            count = add_choice(choices, count, most, &choice);
    if (set.error[0])
        snprintf(why, why_size, "%s", set.error);
    else if (!count && listed)
        snprintf(why, why_size,
                 "cuDNN's engines for this are not deterministic, not precise, or compiled at "
                 "every start");
    ampk_cudnn_clear(&set);
    return count;
}

/* ---- engines with settings ---- */

/* An engine by its number, for this problem. */
static cudnnBackendDescriptor_t make_engine(struct ampk_cudnn_set *set,
                                            const struct ampk_cudnn_device *device,
                                            const struct ampk_tc_problem *p, int64_t engine)
{
    cudnnBackendDescriptor_t graph = ampk_cudnn_graph(set, device, p);
    cudnnBackendDescriptor_t e = ampk_cudnn_make(set, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    ampk_cudnn_attribute_descriptor(set, e, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
    ampk_cudnn_attribute_int(set, e, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, engine);
#if CUDNN_VERSION >= 91002
    if (device->properties)
        ampk_cudnn_attribute_descriptor(set, e, CUDNN_ATTR_ENGINE_DEVICEPROP, device->properties);
#endif
    return ampk_cudnn_finalize(set, e, "an engine");
}

/* An engine with the settings of a choice. cuDNN rejects settings that the engine does not have. */
static cudnnBackendDescriptor_t make_config(struct ampk_cudnn_set *set,
                                            const struct ampk_cudnn_device *device,
                                            const struct ampk_tc_problem *p,
                                            const struct ampk_cudnn_choice *choice,
                                            cudnnBackendDescriptor_t *engine)
{
    cudnnBackendDescriptor_t knobs[AMPK_CUDNN_KNOBS];
    *engine = make_engine(set, device, p, choice->engine);
    for (int i = 0; i < choice->knobs; i++) {
        cudnnBackendKnobType_t type = (cudnnBackendKnobType_t)choice->knob[i].type;
        knobs[i] = ampk_cudnn_make(set, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
        ampk_cudnn_attribute(set, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE,
                             1, &type);
        ampk_cudnn_attribute_int(set, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE,
                                 choice->knob[i].value);
        ampk_cudnn_finalize(set, knobs[i], "an engine's setting");
    }
    cudnnBackendDescriptor_t config = ampk_cudnn_make(set, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    ampk_cudnn_attribute_descriptor(set, config, CUDNN_ATTR_ENGINECFG_ENGINE, *engine);
    if (choice->knobs)
        ampk_cudnn_attribute(set, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                             CUDNN_TYPE_BACKEND_DESCRIPTOR, choice->knobs, knobs);
    return ampk_cudnn_finalize(set, config, "an engine's settings");
}

/* ---- neighbours ---- */

/* The values of a setting: least, least + step, ... most. */
struct knob_range {
    int64_t type, least, most, step;
};

/* The range of each setting that the engine has. */
static int read_ranges(struct ampk_cudnn_set *set, cudnnBackendDescriptor_t engine,
                       struct knob_range *ranges)
{
    cudnnBackendDescriptor_t infos[AMPK_CUDNN_KNOBS];
    int count = get_descriptors(set, engine, CUDNN_ATTR_ENGINE_KNOB_INFO,
                                CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR, infos, AMPK_CUDNN_KNOBS);
    for (int i = 0; i < count; i++)
        ranges[i] = (struct knob_range){
            get_knob_type(infos[i], CUDNN_ATTR_KNOB_INFO_TYPE),
            get_int(infos[i], CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE, CUDNN_TYPE_INT64),
            get_int(infos[i], CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE, CUDNN_TYPE_INT64),
            get_int(infos[i], CUDNN_ATTR_KNOB_INFO_STRIDE, CUDNN_TYPE_INT64)};
    return count;
}

static int add_changed(struct ampk_cudnn_choice *choices, int count, int most,
                       struct ampk_cudnn_choice changed, int knob, int64_t value,
                       const struct knob_range *r)
{
    changed.knob[knob].value = value;
    bool possible = value >= r->least && value <= r->most;
    return possible ? add_choice(choices, count, most, &changed) : count;
}

/* Adds choices that differ in one setting. A setting with many values is varied by factors of 2,
 * or the search would not end. */
static int vary(const struct ampk_cudnn_choice *from, int knob, const struct knob_range *r,
                struct ampk_cudnn_choice *choices, int count, int most)
{
    int64_t step = r->step > 0 ? r->step : 1, now = from->knob[knob].value;
    if ((r->most - r->least) / step >= FEW) {
        count = add_changed(choices, count, most, *from, knob, now / 2, r);
        return add_changed(choices, count, most, *from, knob, 2 * now, r);
    }
    for (int64_t value = r->least; value <= r->most; value += step)
        count = add_changed(choices, count, most, *from, knob, value, r);
    return count;
}

int ampk_cudnn_neighbours(const struct ampk_cudnn_device *device, const struct ampk_tc_problem *p,
                          const struct ampk_cudnn_choice *from, struct ampk_cudnn_choice *choices,
                          int count, int most)
{
    struct ampk_cudnn_set set = {.count = 0};
    struct knob_range ranges[AMPK_CUDNN_KNOBS];
    const struct ampk_cudnn_choice origin = *from;
    cudnnBackendDescriptor_t engine = make_engine(&set, device, p, origin.engine);
    int known = engine ? read_ranges(&set, engine, ranges) : 0;
    for (int knob = 0; knob < origin.knobs; knob++)
        for (int i = 0; i < known; i++)
            if (ranges[i].type == origin.knob[knob].type)
                count = vary(&origin, knob, &ranges[i], choices, count, most);
    ampk_cudnn_clear(&set);
    return count;
}

/* ---- plans ---- */

/* Checks the notes again: a choice may come from the file of plans or the search, not from the
 * list that was filtered. */
static bool make_plan(struct ampk_cudnn_plan *plan, const struct ampk_cudnn_device *device,
                      const struct ampk_tc_problem *p, const struct ampk_cudnn_choice *choice)
{
    struct ampk_cudnn_set *set = &plan->set;
    cudnnBackendDescriptor_t engine;
    cudnnBackendDescriptor_t config = make_config(set, device, p, choice, &engine);
    cudnnBackendDescriptor_t made = ampk_cudnn_make(set, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    ampk_cudnn_attribute_descriptor(set, made, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (device->handle)
        ampk_cudnn_attribute(set, made, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                             &device->handle);
#if CUDNN_VERSION >= 91002
    if (device->properties)
        ampk_cudnn_attribute_descriptor(set, made, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                                        device->properties);
#endif
    plan->plan = ampk_cudnn_finalize(set, made, "a plan");
    if (!plan->plan) return false;
    unsigned notes = engine_notes(engine);
    plan->tensor_cores = notes & 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    return is_acceptable(notes, p->compute);
}

struct ampk_cudnn_plan *ampk_cudnn_plan_create(const struct ampk_cudnn_device *device,
                                               const struct ampk_tc_problem *p,
                                               const struct ampk_cudnn_choice *choice,
                                               size_t workspace_limit, char *why, size_t why_size)
{
    struct ampk_cudnn_plan *plan = calloc(1, sizeof *plan);
    if (!plan) {
        snprintf(why, why_size, AMPK_NO_MEMORY);
        return NULL;
    }
    plan->engine = choice->engine;
    plan->pass = p->pass;
    if (make_plan(plan, device, p, choice)) {
        plan->workspace =
            (size_t)get_int(plan->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64);
        if (plan->workspace <= workspace_limit) return plan;
        snprintf(why, why_size, "cuDNN's engine %lld wants %zu MiB of workspace",
                 (long long)choice->engine, plan->workspace >> 20);
    } else {
        snprintf(why, why_size, "%s",
                 plan->set.error[0] ? plan->set.error : "cuDNN's engine is not precise");
    }
    ampk_cudnn_plan_destroy(plan);
    return NULL;
}

/* A plan that meets the terms, or NULL with the reason. */
static struct ampk_cudnn_plan *create_accepted(const struct ampk_cudnn_device *device,
                                               const struct ampk_tc_problem *p,
                                               const struct ampk_cudnn_terms *terms,
                                               const struct ampk_cudnn_choice *choice, char *why,
                                               size_t why_size)
{
    struct ampk_cudnn_plan *plan =
        ampk_cudnn_plan_create(device, p, choice, terms->workspace_limit, why, why_size);
    if (!plan || !terms->accepts || terms->accepts(terms->by, choice, plan, why, why_size))
        return plan;
    ampk_cudnn_plan_destroy(plan);
    return NULL;
}

/* Keeps the first plan that works, and goes on only until one with Tensor Cores is found. */
struct ampk_cudnn_plan *ampk_cudnn_plan_expected(const struct ampk_cudnn_device *device,
                                                 const struct ampk_tc_problem *p,
                                                 const struct ampk_cudnn_terms *terms,
                                                 struct ampk_cudnn_choice *chosen, char *why,
                                                 size_t why_size)
{
    struct ampk_cudnn_plan *best = NULL;
    struct ampk_cudnn_choice choices[LISTED];
    int tried = 0, count = 0;
    snprintf(why, why_size, "cuDNN has no engine for this");
    for (int mode = 0; mode < AMPK_CUDNN_MODES && !(best && best->tensor_cores); mode++) {
        count = ampk_cudnn_candidates(device, p, ampk_cudnn_modes[mode], choices, count, LISTED,
                                      why, why_size);
        for (int last = tried + EXPECTED; tried < count && tried < last; tried++) {
            if (best && !choices[tried].tensor_cores) continue;
            struct ampk_cudnn_plan *plan =
                create_accepted(device, p, terms, &choices[tried], why, why_size);
            if (!plan) continue;
            ampk_cudnn_plan_destroy(best);
            best = plan;
            *chosen = choices[tried];
            if (best->tensor_cores) break;
        }
        tried = count;
    }
    return best;
}

void ampk_cudnn_plan_destroy(struct ampk_cudnn_plan *plan)
{
    if (plan) ampk_cudnn_clear(&plan->set);
    free(plan);
}

/* ---- running ---- */

/* The operands of a pass in the order of ampk_tc_run, by the numbers of libraries.h. */
bool ampk_cudnn_plan_run(const struct ampk_cudnn_device *device, const struct ampk_cudnn_plan *plan,
                         const void *first, const void *second, void *result, void *workspace,
                         char *why, size_t why_size)
{
    static const int64_t ids[][3] = {
        [AMPK_TC_FORWARD] = {AMPK_CUDNN_X, AMPK_CUDNN_WEIGHTS, AMPK_CUDNN_Y},
        [AMPK_TC_DATA] = {AMPK_CUDNN_Y, AMPK_CUDNN_WEIGHTS, AMPK_CUDNN_X},
        [AMPK_TC_WEIGHTS] = {AMPK_CUDNN_X, AMPK_CUDNN_Y, AMPK_CUDNN_WEIGHTS},
    };
    const void *at[] = {first, second, result};
    struct ampk_cudnn_set set = {.count = 0};
    cudnnBackendDescriptor_t pack = ampk_cudnn_make(&set, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    ampk_cudnn_attribute(&set, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3,
                         ids[plan->pass]);
    ampk_cudnn_attribute(&set, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3,
                         at);
    ampk_cudnn_attribute(&set, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                         &workspace);
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    if (ampk_cudnn_finalize(&set, pack, "addresses"))
        status = cudnnBackendExecute(device->handle, plan->plan, pack);
    bool done = status == CUDNN_STATUS_SUCCESS && set.status == CUDNN_STATUS_SUCCESS;
    if (!done)
        snprintf(why, why_size, "%s", set.error[0] ? set.error : cudnnGetErrorString(status));
    ampk_cudnn_clear(&set);
    return done;
}
