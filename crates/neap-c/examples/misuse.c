// What a program may do wrong: each call says so and nothing breaks.
//
//   ./misuse model.onnx folder    a model with one f32 input of a fixed shape; a folder that is not there

#include <neaptide.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int faults = 0;

// The status that is expected, with a message that has these words in it.
static void expect(const char *what, NeapStatus expected, const char *words, NeapStatus found, NeapError *error) {
    const char *message = error == NULL ? words : neap_error_message(error);
    if (found != expected || strstr(message, words) == NULL) {
        printf("%s: status %d, %s\n", what, found, message);
        faults++;
    }
    neap_error_free(error);
}

// A session that several threads run at once, which is not allowed.
typedef struct Shared {
    NeapSession *session;
    const NeapTensor *input;
    const NeapPlace *place;
    int wrong;
} Shared;

static void *run_often(void *given) {
    Shared *shared = given;
    NeapPlace own = {malloc(shared->place->len_bytes), shared->place->len_bytes};
    for (int run = 0; run < 50; run++) {
        NeapError *error = NULL;
        NeapStatus status = neap_session_run(shared->session, shared->input, 1, &own, 1, NULL, &error);
        NeapResult result;
        neap_session_result(shared->session, 0, &result);
        neap_session_planned_bytes(shared->session);
        if (status != NEAP_STATUS_OK &&
            (status != NEAP_STATUS_BAD_INPUT || strstr(neap_error_message(error), "busy") == NULL)) {
            shared->wrong = 1;
        }
        neap_error_free(error);
    }
    free(own.data);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        return 2;
    }
    NeapError *error = NULL;
    NeapSession *session = NULL;
    NeapOptions *options = neap_options_new();
    NeapStatus status = neap_options_set_memory_budget(options, "much", &error);
    expect("no size", NEAP_STATUS_BAD_INPUT, "no size", status, error);
    status = neap_options_set_memory_budget(NULL, "1M", &error);
    expect("no options", NEAP_STATUS_BAD_INPUT, "NULL", status, error);
    status = neap_options_set_memory_budget(options, NULL, &error);
    expect("no budget", NEAP_STATUS_BAD_INPUT, "NULL", status, error);
    status = neap_options_set_memory_budget(options, "\xff", &error);
    expect("no text", NEAP_STATUS_BAD_INPUT, "UTF-8", status, error);
    status = neap_session_open(NULL, options, &session, &error);
    expect("no path", NEAP_STATUS_BAD_INPUT, "NULL", status, error);
    status = neap_session_open(argv[2], options, &session, &error);
    expect("no file", NEAP_STATUS_BAD_INPUT, argv[2], status, error);
    if (session != NULL) {
        faults++;
    }

    status = neap_options_set_memory_budget(options, "100K", &error);
    expect("a small budget is one", NEAP_STATUS_OK, "", status, error);
    status = neap_session_open(argv[1], options, &session, &error);
    if (neap_error_smallest_bytes(error) < 100 << 10) {
        faults++;
    }
    expect("too small a budget", NEAP_STATUS_INFEASIBLE, "smallest feasible budget", status, error);

    status = neap_session_open(argv[1], NULL, &session, &error);
    expect("the model", NEAP_STATUS_OK, "", status, error);
    neap_options_free(options);
    NeapDeclared declared;
    if (session == NULL || !neap_session_input(session, 0, &declared) || neap_session_input(session, 9, &declared)) {
        printf("the model has no input 0, or an input 9\n");
        return 1;
    }
    size_t dims[8] = {0};
    size_t len_bytes = sizeof(float);
    for (size_t axis = 0; axis < declared.rank && axis < 8; axis++) {
        dims[axis] = (size_t)declared.dims[axis];
        len_bytes *= dims[axis];
    }
    float *data = calloc(1, len_bytes + 8);
    const NeapTensor good = {NEAP_TYPE_F32, declared.rank, dims, data, len_bytes};
    NeapResult result = {0};
    if (!neap_session_result(session, 0, &result)) {
        printf("a model of fixed shapes is not ready\n");
        return 1;
    }
    NeapPlace place = {malloc(result.len_bytes), result.len_bytes};

    NeapTensor wrong = good;
    wrong.element_type = 77;
    status = neap_session_run(session, &wrong, 1, &place, 1, NULL, &error);
    expect("no type", NEAP_STATUS_BAD_INPUT, "no type of elements", status, error);
    wrong = good;
    wrong.element_type = NEAP_TYPE_I32;
    status = neap_session_run(session, &wrong, 1, &place, 1, NULL, &error);
    expect("another type", NEAP_STATUS_BAD_INPUT, "float", status, error);
    wrong = good;
    wrong.len_bytes -= 4;
    status = neap_session_run(session, &wrong, 1, &place, 1, NULL, &error);
    expect("too few bytes", NEAP_STATUS_BAD_INPUT, "bytes are given", status, error);
    wrong = good;
    wrong.data = NULL;
    status = neap_session_run(session, &wrong, 1, &place, 1, NULL, &error);
    expect("no data", NEAP_STATUS_BAD_INPUT, "NULL", status, error);
    wrong = good;
    wrong.data = (const char *)data + 1;
    status = neap_session_run(session, &wrong, 1, &place, 1, NULL, &error);
    expect("odd data", NEAP_STATUS_BAD_INPUT, "aligned", status, error);
    wrong = good;
    wrong.rank = declared.rank - 1;
    wrong.len_bytes = 0;
    status = neap_session_run(session, &wrong, 1, &place, 1, NULL, &error);
    expect("another rank", NEAP_STATUS_BAD_INPUT, "", status, error);
    status = neap_session_run(session, &good, 0, &place, 1, NULL, &error);
    expect("no inputs", NEAP_STATUS_BAD_INPUT, "inputs", status, error);
    status = neap_session_run(session, NULL, 1, &place, 1, NULL, &error);
    expect("NULL inputs", NEAP_STATUS_BAD_INPUT, "NULL", status, error);
    status = neap_session_run(session, &good, 1, &place, 0, NULL, &error);
    expect("no places", NEAP_STATUS_BAD_INPUT, "places", status, error);
    NeapPlace small = {place.data, place.len_bytes - 1};
    status = neap_session_run(session, &good, 1, &small, 1, NULL, &error);
    expect("a small place", NEAP_STATUS_BAD_INPUT, "takes", status, error);
    char *odd = malloc(result.len_bytes + 1);
    NeapPlace unaligned = {odd + 1, result.len_bytes};
    status = neap_session_run(session, &good, 1, &unaligned, 1, NULL, &error);
    expect("an odd place", NEAP_STATUS_BAD_INPUT, "aligned", status, error);
    free(odd);
    status = neap_session_run(session, &good, 1, &place, 1, NULL, &error);
    expect("a good place after it", NEAP_STATUS_OK, "", status, error);
    pthread_t threads[4];
    Shared shared = {session, &good, &place, 0};
    for (int i = 0; i < 4; i++) {
        pthread_create(&threads[i], NULL, run_often, &shared);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    expect("several threads", NEAP_STATUS_OK, "", shared.wrong ? NEAP_STATUS_DEFECT : NEAP_STATUS_OK, NULL);
    NeapPlace same = {data, result.len_bytes < len_bytes ? result.len_bytes : len_bytes};
    status = neap_session_run(session, &good, 1, &same, 1, NULL, &error);
    expect("a place in the input", NEAP_STATUS_BAD_INPUT, "overlaps", status, error);
    status = neap_session_run(NULL, &good, 1, &place, 1, NULL, NULL);
    expect("no session", NEAP_STATUS_BAD_INPUT, "", status, NULL);
    status = neap_session_set_memory_budget(session, "1K", &error);
    expect("a limit that is too small", NEAP_STATUS_INFEASIBLE, "smallest", status, error);

    status = neap_session_run(session, &good, 1, &place, 1, NULL, &error);
    expect("after all of that", NEAP_STATUS_OK, "", status, error);
    neap_session_free(session);
    neap_session_free(NULL);
    neap_options_free(NULL);
    neap_cancel_free(NULL);
    neap_cancel_request(NULL);
    free(place.data);
    free(data);
    printf("%d faults\n", faults);
    return faults != 0;
}
