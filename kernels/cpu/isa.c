/* The table of one instruction set. The build compiles this file once for each; backend.c picks
 * one of the tables at run time. Contains no code of its own. */
#include "cpu.h"

#define AMPK_TEXT_(x) #x
#define AMPK_TEXT(x)  AMPK_TEXT_(x)

#define AMPK_CPU_ENTRY(operation) .operation = AMPK_CPU(operation),
static const struct ampk_backend operations = {.name = AMPK_TEXT(AMPK_ISA),
                                               AMPK_CPU_OPERATIONS(AMPK_CPU_ENTRY)};

#define AMPK_ISA_TABLE AMPK_JOIN(ampk_, isa, AMPK_ISA)
const struct ampk_isa AMPK_ISA_TABLE = {
    .name = AMPK_TEXT(AMPK_ISA),
    .operations = &operations,
    .rows = {.load = AMPK_CPU(rows_load),
             .load_bf16 = AMPK_CPU(rows_load_bf16),
             .round = AMPK_CPU(rows_round),
             .store = AMPK_CPU(rows_store),
             .add = AMPK_CPU(rows_add),
             .add_scaled = AMPK_CPU(rows_add_scaled),
             .amax = AMPK_CPU(rows_amax),
             .store_sums = AMPK_CPU(store_sums),
             .store_bias = AMPK_CPU(store_bias),
             .finish_statistics = AMPK_CPU(finish_statistics)},
};
