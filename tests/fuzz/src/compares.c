/* Reports a comparison to the fuzzer only while the input is read. Most comparisons are a table's with itself, in its
   checks above all. They say nothing about bytes to try, and took half of the time.
   In C, because this must not be traced itself. */

#include <stdbool.h>
#include <stdint.h>

static const bool never = false;
static const volatile bool *is_reading = &never;

void compares_follow(const bool *flag) { is_reading = flag; }

#define COMPARED(name, type)                                                                                      \
    void __real___sanitizer_cov_trace_##name(type, type);                                                         \
    void __wrap___sanitizer_cov_trace_##name(type one, type other) {                                              \
        if (*is_reading) __real___sanitizer_cov_trace_##name(one, other);                                         \
    }

COMPARED(cmp1, uint8_t)
COMPARED(cmp2, uint16_t)
COMPARED(cmp4, uint32_t)
COMPARED(cmp8, uint64_t)
COMPARED(const_cmp1, uint8_t)
COMPARED(const_cmp2, uint16_t)
COMPARED(const_cmp4, uint32_t)
COMPARED(const_cmp8, uint64_t)

void __real___sanitizer_cov_trace_switch(uint64_t, uint64_t *);
void __wrap___sanitizer_cov_trace_switch(uint64_t value, uint64_t *cases) {
    if (*is_reading) __real___sanitizer_cov_trace_switch(value, cases);
}
