// Neaptide: neural networks inside a memory budget.
//
//   NeapOptions *options = neap_options_new();
//   neap_options_set_memory_budget(options, "40MiB", NULL);
//   NeapSession *session;
//   if (neap_session_open("model.onnx", options, &session, &error) != NEAP_STATUS_OK) ...
//   neap_session_run(session, inputs, 1, outputs, 1, NULL, &error);
//
// Every function that can fail gives a NeapStatus, and takes a place for a NeapError that says more; NULL for that place is
// allowed. What a function gives by name *_new or *_open is freed by *_free, which takes NULL, too.
//
// A session is used by one thread at a time; different sessions by any number. Only a NeapCancel may be used by several
// threads at once. There is no global state. Strings are UTF-8.

#ifndef NEAPTIDE_H
#define NEAPTIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// How a call ended. Numbers below 100 are also the `neap` command's exit codes for the same.
typedef enum NeapStatus {
  NEAP_STATUS_OK = 0,
  // The model, an input or an argument is not what it should be, or a file cannot be read or written.
  NEAP_STATUS_BAD_INPUT = 2,
  // The model cannot run in this much memory: neap_error_smallest_bytes names the smallest budget.
  NEAP_STATUS_INFEASIBLE = 3,
  // A defect of the library.
  NEAP_STATUS_DEFECT = 70,
  // The model has something that the library does not compute.
  NEAP_STATUS_UNSUPPORTED = 100,
  // A run failed after it had begun: its file cannot be read or was damaged, or its values cannot be computed with.
  NEAP_STATUS_RUN = 101,
  // A NeapCancel ended the run.
  NEAP_STATUS_CANCELLED = 102,
} NeapStatus;

// The type of a tensor's elements, with ONNX's numbers.
typedef enum NeapType {
  // Strings, sequences and others that are not tensors of numbers.
  NEAP_TYPE_OTHER = 0,
  NEAP_TYPE_F32 = 1,
  NEAP_TYPE_U8 = 2,
  NEAP_TYPE_I8 = 3,
  NEAP_TYPE_U16 = 4,
  NEAP_TYPE_I16 = 5,
  NEAP_TYPE_I32 = 6,
  NEAP_TYPE_I64 = 7,
  // One byte, 0 or 1.
  NEAP_TYPE_BOOL = 9,
  NEAP_TYPE_F16 = 10,
  NEAP_TYPE_F64 = 11,
  NEAP_TYPE_U32 = 12,
  NEAP_TYPE_U64 = 13,
  NEAP_TYPE_BF16 = 16,
} NeapType;

// Asks a run to end early.
typedef struct NeapCancel NeapCancel;

// Why a call failed.
typedef struct NeapError NeapError;

// How a session is opened. A session keeps none of it: it can be changed, used again and freed.
typedef struct NeapOptions NeapOptions;

// An open model, used by one call at a time. A call that comes while another one goes on is refused and changes nothing.
typedef struct NeapSession NeapSession;

// Hears how far reading or packing a model is.
typedef void (*NeapProgress)(void *user, uint64_t done_bytes, uint64_t total_bytes);

// What a model declares of an input or output.
typedef struct NeapDeclared {
  const char *name;
  enum NeapType element_type;
  // Whether the model says how many dimensions there are.
  bool has_rank;
  size_t rank;
  // As many as the rank; -1 where the model leaves one open.
  const int64_t *dims;
} NeapDeclared;

// An input: row-major, little-endian, aligned to its elements. It is read where it lies, and must not change during a call.
typedef struct NeapTensor {
  // A NeapType.
  int32_t element_type;
  size_t rank;
  // As many as the rank; may be NULL for rank 0.
  const size_t *dims;
  const void *data;
  // Bytes at data: elements × bytes of one.
  size_t len_bytes;
} NeapTensor;

// The type and shape of an output of the next run.
typedef struct NeapResult {
  enum NeapType element_type;
  size_t rank;
  const size_t *dims;
  size_t len_bytes;
} NeapResult;

// Where an output is written to.
typedef struct NeapPlace {
  void *data;
  size_t len_bytes;
} NeapPlace;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// One line that says what is wrong. It lives as long as the error; NULL for NULL.
//
// # Safety
// `error` is NULL or an error of this library that was not freed.
const char *neap_error_message(const struct NeapError *error);

// The smallest budget in bytes that the model can run in, where the status is NEAP_STATUS_INFEASIBLE; otherwise 0.
//
// # Safety
// As `neap_error_message`.
uint64_t neap_error_smallest_bytes(const struct NeapError *error);

// Frees an error.
//
// # Safety
// As `neap_error_message`; it is not used afterwards.
void neap_error_free(struct NeapError *error);

// Options as they are by default: no limit on memory, all processors.
struct NeapOptions *neap_options_new(void);

// Frees options.
//
// # Safety
// `options` is NULL, or options that were not freed and are not used afterwards.
void neap_options_free(struct NeapOptions *options);

// How much memory a session may take: "40MiB" or a number of bytes; "25%" of what the session takes with all weights in
// memory; "none". It counts the library's own memory: weights, activations, threads, and what it knows of the model. Not the
// caller's tensors, and not what packing a model takes for a while.
//
// # Safety
// `options` are options that were not freed, `budget` ends with a zero, `error` is NULL or a place for a pointer.
enum NeapStatus neap_options_set_memory_budget(struct NeapOptions *options,
                                               const char *budget,
                                               struct NeapError **error);

// How many threads compute, the caller's included; 0 for all processors.
//
// # Safety
// As `neap_options_set_memory_budget`.
enum NeapStatus neap_options_set_threads(struct NeapOptions *options,
                                         size_t threads,
                                         struct NeapError **error);

// The folder in which packed models are kept. Without it that is beside the model, or in the user's cache folder.
//
// # Safety
// As `neap_options_set_memory_budget`.
enum NeapStatus neap_options_set_cache_folder(struct NeapOptions *options,
                                              const char *folder,
                                              struct NeapError **error);

// Whether results have the same bits whatever the budget. It may cost some speed.
//
// # Safety
// As `neap_options_set_memory_budget`.
enum NeapStatus neap_options_set_exact(struct NeapOptions *options,
                                       bool exact,
                                       struct NeapError **error);

// The shape of an input whose dimensions the model leaves open. The session is then ready when it is opened.
//
// # Safety
// As `neap_options_set_memory_budget`; there are as many `dims` as the rank says.
enum NeapStatus neap_options_set_shape(struct NeapOptions *options,
                                       const char *input,
                                       const size_t *dims,
                                       size_t rank,
                                       struct NeapError **error);

// The most that a size can be that only the data say, where nothing in the model bounds it: by the name of the result that the
// refusal tells. Without it such a model does not run.
//
// # Safety
// As `neap_options_set_memory_budget`.
enum NeapStatus neap_options_set_bound(struct NeapOptions *options,
                                       const char *result,
                                       size_t most,
                                       struct NeapError **error);

// Has `hear` called while a model is read and packed, on the thread that opens or runs; NULL for nobody. It must return, and not
// use the session.
//
// # Safety
// As `neap_options_set_memory_budget`; `hear` may be called with `user` as long as a session lives that was opened with it.
enum NeapStatus neap_options_set_progress(struct NeapOptions *options,
                                          NeapProgress hear,
                                          void *user,
                                          struct NeapError **error);

// A request that nobody has made yet.
struct NeapCancel *neap_cancel_new(void);

// Makes the request, from any thread, also while a run looks at it. Runs that were given it end before their next step, with
// NEAP_STATUS_CANCELLED; their session can run again, with another request.
//
// # Safety
// `cancel` is NULL or a request that was not freed.
void neap_cancel_request(const struct NeapCancel *cancel);

// Frees a request, which no run looks at any more.
//
// # Safety
// As `neap_cancel_request`; it is not used afterwards.
void neap_cancel_free(struct NeapCancel *cancel);

// Opens an .onnx or .neap file. An .onnx is packed once, beside it or in a cache folder; packed files are read again as long as
// the model is the same. Without options they are those of `neap_options_new`.
//
// # Safety
// `model` ends with a zero; `options` is NULL or options that were not freed; `session` is a place for a pointer, and `error` one
// or NULL.
enum NeapStatus neap_session_open(const char *model,
                                  const struct NeapOptions *options,
                                  struct NeapSession **session,
                                  struct NeapError **error);

// Closes a session. One that another thread runs stays open for ever.
//
// # Safety
// `session` is NULL, or a session that was not freed and is not used afterwards.
void neap_session_free(struct NeapSession *session);

// How many inputs the model has; 0 for NULL.
//
// # Safety
// `session` is NULL or a session that was not freed.
size_t neap_session_input_count(const struct NeapSession *session);

// How many outputs the model has; 0 for NULL.
//
// # Safety
// As `neap_session_input_count`.
size_t neap_session_output_count(const struct NeapSession *session);

// What the model declares of an input. Pointers in it live as long as the session. False if there is no such input.
//
// # Safety
// As `neap_session_input_count`; `declared` is a place to write to.
bool neap_session_input(const struct NeapSession *session,
                        size_t index,
                        struct NeapDeclared *declared);

// What the model declares of an output. Pointers in it live as long as the session. False if there is no such output.
//
// # Safety
// As `neap_session_input`.
bool neap_session_output(const struct NeapSession *session,
                         size_t index,
                         struct NeapDeclared *declared);

// Makes the session ready for inputs of these types and shapes. Values are looked at only where shapes depend on them. New shapes
// are planned; nothing is packed again. Needed before a run only to learn the outputs' sizes.
//
// # Safety
// `session` is a session that was not freed; `inputs` are `count` tensors in the model's order, valid during the call.
enum NeapStatus neap_session_prepare(struct NeapSession *session,
                                     const struct NeapTensor *inputs,
                                     size_t count,
                                     struct NeapError **error);

// Type and shape of an output, for the shapes that the session is ready for. Where the data decide its size, this is the largest. Pointers
// in it live until the session is prepared or run again. False if there is no such output or the session is not ready for any
// shapes yet.
//
// # Safety
// As `neap_session_input_count`; `result` is a place to write to.
bool neap_session_result(const struct NeapSession *session,
                         size_t index,
                         struct NeapResult *result);

// Type and shape that an output had in the last run, if that ended well. Where the data decide its size, it is at the beginning of its
// place. Pointers in it live as those of `neap_session_result`.
//
// # Safety
// As `neap_session_result`.
bool neap_session_last_result(const struct NeapSession *session,
                              size_t index,
                              struct NeapResult *result);

// Runs once: reads `inputs`, writes all outputs to `outputs`, each in the model's order. `cancel` may end it early, or is NULL.
// Prepares the session first, where it is not ready for these inputs. Outputs mean nothing when it fails; the session can
// run again.
//
// # Safety
// As `neap_session_prepare`; `outputs` are `output_count` places, which nobody else uses during the call; `cancel` is NULL or was
// not freed.
enum NeapStatus neap_session_run(struct NeapSession *session,
                                 const struct NeapTensor *inputs,
                                 size_t input_count,
                                 const struct NeapPlace *outputs,
                                 size_t output_count,
                                 const struct NeapCancel *cancel,
                                 struct NeapError **error);

// Runs within another budget from now on, written as in `neap_options_set_memory_budget`. The old one stays when it fails.
//
// # Safety
// `session` is a session that was not freed; `budget` ends with a zero.
enum NeapStatus neap_session_set_memory_budget(struct NeapSession *session,
                                               const char *budget,
                                               struct NeapError **error);

// The most memory in bytes that the session's plan takes; 0 before it is ready for any shapes.
//
// # Safety
// As `neap_session_input_count`.
uint64_t neap_session_planned_bytes(const struct NeapSession *session);

// The library's version, as "0.1.0".
const char *neap_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NEAPTIDE_H */
