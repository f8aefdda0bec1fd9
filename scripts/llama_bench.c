/* Times llama.cpp: a prompt, then tokens one by one, the most likely each time. Prints one line of JSON.
 *
 *   llama_bench MODEL PROMPT_FILE TOKENS CONTEXT THREADS mmap|none|dio repack|plain flash|exact f16|f32|q8_0
 */
#include "llama.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void quiet(enum ggml_log_level level, const char *text, void *data) {
    (void)data;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static void fail(const char *what) {
    fprintf(stderr, "llama_bench: %s\n", what);
    exit(1);
}

static llama_token most_likely(struct llama_context *context, int vocabulary) {
    const float *logits = llama_get_logits_ith(context, -1);
    llama_token best = 0;
    for (llama_token token = 1; token < vocabulary; token++)
        if (logits[token] > logits[best]) best = token;
    return best;
}

int main(int count, char **args) {
    if (count != 10) fail("see the head of its source for the arguments");
    const int tokens = atoi(args[3]), positions = atoi(args[4]), threads = atoi(args[5]);
    llama_log_set(quiet, NULL);
    llama_backend_init();

    struct llama_model_params of_model = llama_model_default_params();
    of_model.load_mode = !strcmp(args[6], "mmap")  ? LLAMA_LOAD_MODE_MMAP
                         : !strcmp(args[6], "dio") ? LLAMA_LOAD_MODE_DIRECT_IO
                                                   : LLAMA_LOAD_MODE_NONE;
    of_model.use_extra_bufts = !strcmp(args[7], "repack");
    struct llama_model *model = llama_model_load_from_file(args[1], of_model);
    if (!model) fail("cannot load the model");

    struct llama_context_params of_context = llama_context_default_params();
    of_context.n_ctx = (uint32_t)positions;
    of_context.n_threads = of_context.n_threads_batch = threads;
    of_context.flash_attn_type =
        !strcmp(args[8], "flash") ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    of_context.type_k = of_context.type_v = !strcmp(args[9], "f32")    ? GGML_TYPE_F32
                                            : !strcmp(args[9], "q8_0") ? GGML_TYPE_Q8_0
                                                                       : GGML_TYPE_F16;
    struct llama_context *context = llama_init_from_model(model, of_context);
    if (!context) fail("cannot make a context");

    static char text[1 << 20];
    FILE *file = fopen(args[2], "rb");
    if (!file) fail("cannot read the prompt");
    const int bytes = (int)fread(text, 1, sizeof text, file);
    const struct llama_vocab *vocabulary = llama_model_get_vocab(model);
    llama_token *prompt = calloc((size_t)bytes + 8, sizeof *prompt);
    const int length = llama_tokenize(vocabulary, text, bytes, prompt, bytes + 8, true, true);
    if (length <= 0 || length + tokens > positions) fail("the prompt does not fit into the context");

    const double begin = now();
    if (llama_decode(context, llama_batch_get_one(prompt, length))) fail("decode");
    llama_token token = most_likely(context, llama_vocab_n_tokens(vocabulary));
    const double first = now();
    for (int i = 1; i < tokens; i++) {
        if (llama_decode(context, llama_batch_get_one(&token, 1))) fail("decode");
        token = most_likely(context, llama_vocab_n_tokens(vocabulary));
    }
    const double end = now();
    printf("{\"prompt_tokens\": %d, \"prompt_seconds\": %.6f, \"later_tokens\": %d, \"later_seconds\": %.6f}\n", length,
           first - begin, tokens - 1, end - first);
    return 0;
}
