// Answers the CPUID instructions that hold.py replaced, without the instruction sets beyond the one
// that the environment variable HOLD names: avx2, or avx512 without VNNI.

#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define BIT(n) (1u << (n))

// Leaf 7: F, DQ, IFMA, PF, ER, CD, BW, VL of AVX512.
static const unsigned AVX512_EBX =
    BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31);
// VBMI, VBMI2, GFNI, VNNI, BITALG, VPOPCNTDQ.
static const unsigned NEWER_ECX = BIT(1) | BIT(6) | BIT(8) | BIT(11) | BIT(12) | BIT(14);
// 4VNNIW, 4FMAPS, VP2INTERSECT, AMX-BF16, AVX512-FP16, AMX's tiles, AMX-INT8.
static const unsigned NEWER_EDX = BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25);
// Subleaf 1: AVX-VNNI, AVX512-BF16, AMX-FP16, AVX-IFMA.
static const unsigned NEWER_1_EAX = BIT(4) | BIT(5) | BIT(21) | BIT(23);

static int only_avx2;

static void answer(int signal_number, siginfo_t *info, void *context) {
    (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *at = (const unsigned char *)registers[REG_RIP];
    if (at[0] != 0x0f || at[1] != 0x04) {
        // A fault of the program itself: returning repeats it.
        signal(signal_number, SIG_DFL);
        return;
    }
    unsigned leaf = (unsigned)registers[REG_RAX], subleaf = (unsigned)registers[REG_RCX];
    unsigned eax, ebx, ecx, edx;
    __cpuid_count(leaf, subleaf, eax, ebx, ecx, edx);
    if (leaf == 7 && subleaf == 0) {
        ebx &= only_avx2 ? ~AVX512_EBX : ~0u;
        ecx &= ~NEWER_ECX;
        edx &= ~NEWER_EDX;
    } else if (leaf == 7 && subleaf == 1) {
        eax &= ~NEWER_1_EAX;
        ebx = ecx = edx = 0;
    }
    registers[REG_RAX] = eax;
    registers[REG_RBX] = ebx;
    registers[REG_RCX] = ecx;
    registers[REG_RDX] = edx;
    registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void install(void) {
    const char *level = getenv("HOLD");
    only_avx2 = level && strcmp(level, "avx2") == 0;
    struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGILL, &action, NULL);
}
