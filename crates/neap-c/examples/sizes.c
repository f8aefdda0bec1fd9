// Finds what is not zero: an output whose size the data decide.
//
//   cc sizes.c $(pkg-config --cflags --libs neaptide) -o sizes
//   ./sizes nonzero.onnx     a NonZero of 2x3 numbers

#include <neaptide.h>

#include <stdio.h>
#include <stdlib.h>

static int failed(NeapStatus status, NeapError *error) {
    fprintf(stderr, "error: %s\n", neap_error_message(error));
    neap_error_free(error);
    return status;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL\n", argv[0]);
        return 2;
    }
    const float values[2][3] = {{0, 5, 0}, {0, 0, 7}};
    const size_t dims[2] = {2, 3};
    const NeapTensor input = {NEAP_TYPE_F32, 2, dims, values, sizeof values};
    NeapError *error = NULL;
    NeapSession *session = NULL;
    NeapStatus status = neap_session_open(argv[1], NULL, &session, &error);
    if (status == NEAP_STATUS_OK) {
        status = neap_session_prepare(session, &input, 1, &error);
    }
    NeapResult most, found;
    NeapPlace output = {NULL, 0};
    if (status == NEAP_STATUS_OK && neap_session_result(session, 0, &most)) {
        // Room for the most that there can be.
        output.len_bytes = most.len_bytes;
        output.data = malloc(most.len_bytes);
        status = neap_session_run(session, &input, 1, &output, 1, NULL, &error);
    }
    if (status == NEAP_STATUS_OK && neap_session_last_result(session, 0, &found)) {
        const int64_t *at = output.data;
        printf("room for %zu bytes, %zu are used:", output.len_bytes, found.len_bytes);
        for (size_t i = 0; i < found.dims[1]; i++) {
            printf(" (%lld, %lld)", (long long)at[i], (long long)at[found.dims[1] + i]);
        }
        printf("\n");
    }
    free(output.data);
    neap_session_free(session);
    return status == NEAP_STATUS_OK ? 0 : failed(status, error);
}
