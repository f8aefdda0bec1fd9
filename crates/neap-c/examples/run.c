// Runs a model on zeros within a memory budget, and says what came out.
//
//   cc run.c $(pkg-config --cflags --libs neaptide) -o run
//   ./run model.onnx 40MiB
//   ./run model.onnx 40MiB exact     the same bits under every budget

#include <neaptide.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Says what went wrong, and gives the status as an exit code.
static int failed(NeapStatus status, NeapError *error) {
    fprintf(stderr, "error: %s\n", neap_error_message(error));
    if (status == NEAP_STATUS_INFEASIBLE) {
        fprintf(stderr, "try a budget of %llu\n", (unsigned long long)neap_error_smallest_bytes(error));
    }
    neap_error_free(error);
    return status;
}

static size_t bytes_of(int32_t type) {
    switch (type) {
    case NEAP_TYPE_F64: case NEAP_TYPE_I64: case NEAP_TYPE_U64: return 8;
    case NEAP_TYPE_F32: case NEAP_TYPE_I32: case NEAP_TYPE_U32: return 4;
    case NEAP_TYPE_F16: case NEAP_TYPE_BF16: case NEAP_TYPE_I16: case NEAP_TYPE_U16: return 2;
    default: return 1;
    }
}

// Zeros for an input; open dimensions are 1.
static NeapTensor zeros(const NeapDeclared *declared) {
    size_t *dims = calloc(declared->rank + 1, sizeof *dims);
    size_t len_bytes = bytes_of(declared->element_type);
    for (size_t axis = 0; axis < declared->rank; axis++) {
        dims[axis] = declared->dims[axis] < 0 ? 1 : (size_t)declared->dims[axis];
        len_bytes *= dims[axis];
    }
    NeapTensor tensor = {declared->element_type, declared->rank, dims, calloc(1, len_bytes + 1), len_bytes};
    return tensor;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL [BUDGET [exact]]\n", argv[0]);
        return 2;
    }
    NeapError *error = NULL;
    NeapSession *session = NULL;
    NeapOptions *options = neap_options_new();
    NeapStatus status = neap_options_set_memory_budget(options, argc > 2 ? argv[2] : "none", &error);
    if (status == NEAP_STATUS_OK && argc > 3 && strcmp(argv[3], "exact") == 0) {
        status = neap_options_set_exact(options, true, &error);
    }
    if (status == NEAP_STATUS_OK) {
        status = neap_session_open(argv[1], options, &session, &error);
    }
    neap_options_free(options);
    if (status != NEAP_STATUS_OK) {
        return failed(status, error);
    }

    size_t input_count = neap_session_input_count(session);
    size_t output_count = neap_session_output_count(session);
    NeapTensor *inputs = calloc(input_count + 1, sizeof *inputs);
    NeapPlace *outputs = calloc(output_count + 1, sizeof *outputs);
    NeapDeclared declared;
    for (size_t i = 0; i < input_count && neap_session_input(session, i, &declared); i++) {
        inputs[i] = zeros(&declared);
    }
    status = neap_session_prepare(session, inputs, input_count, &error);
    NeapResult result;
    for (size_t i = 0; i < output_count && neap_session_result(session, i, &result); i++) {
        outputs[i].len_bytes = result.len_bytes;
        outputs[i].data = malloc(result.len_bytes + 1);
    }
    if (status == NEAP_STATUS_OK) {
        status = neap_session_run(session, inputs, input_count, outputs, output_count, NULL, &error);
    }
    if (status == NEAP_STATUS_OK) {
        printf("Neaptide %s, at most %llu bytes\n", neap_version(),
               (unsigned long long)neap_session_planned_bytes(session));
        for (size_t i = 0; i < output_count; i++) {
            neap_session_output(session, i, &declared);
            printf("%s: %zu bytes", declared.name, outputs[i].len_bytes);
            if (declared.element_type == NEAP_TYPE_F32 && outputs[i].len_bytes >= sizeof(float)) {
                printf(", the first is %.9g", ((float *)outputs[i].data)[0]);
            }
            printf("\n");
        }
    }
    for (size_t i = 0; i < input_count; i++) {
        free((void *)inputs[i].dims);
        free((void *)inputs[i].data);
    }
    for (size_t i = 0; i < output_count; i++) {
        free(outputs[i].data);
    }
    free(inputs);
    free(outputs);
    neap_session_free(session);
    return status == NEAP_STATUS_OK ? 0 : failed(status, error);
}
