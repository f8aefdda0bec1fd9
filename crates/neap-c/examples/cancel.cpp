// Several sessions on several threads, a budget that changes, and a run that is ended from another thread.
//
//   c++ -std=c++17 -pthread cancel.cpp $(pkg-config --cflags --libs neaptide) -o cancel
//   ./cancel model.onnx          a model with one f32 input of a fixed shape

#include <neaptide.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

// A call that failed, with the status that it gave.
struct Failure : std::runtime_error {
    NeapStatus status;
    Failure(NeapStatus status, const std::string &what) : std::runtime_error(what), status(status) {}
};

// Makes an exception of a status.
template <typename Call> void check(Call call) {
    NeapError *error = nullptr;
    const NeapStatus status = call(&error);
    if (status != NEAP_STATUS_OK) {
        const std::string what = neap_error_message(error);
        neap_error_free(error);
        throw Failure(status, what);
    }
}

struct Free {
    void operator()(NeapOptions *options) const { neap_options_free(options); }
    void operator()(NeapSession *session) const { neap_session_free(session); }
    void operator()(NeapCancel *cancel) const { neap_cancel_free(cancel); }
};
template <typename T> using Handle = std::unique_ptr<T, Free>;

class Model {
  public:
    Model(const char *path, const char *budget) {
        const Handle<NeapOptions> options{neap_options_new()};
        check([&](NeapError **e) { return neap_options_set_memory_budget(options.get(), budget, e); });
        NeapSession *session = nullptr;
        check([&](NeapError **e) { return neap_session_open(path, options.get(), &session, e); });
        session_.reset(session);
        NeapDeclared declared;
        if (!neap_session_input(session, 0, &declared) || declared.element_type != NEAP_TYPE_F32) {
            throw std::runtime_error("the model has no f32 input");
        }
        size_t elements = 1;
        for (size_t axis = 0; axis < declared.rank; axis++) {
            dims_.push_back(static_cast<size_t>(declared.dims[axis]));
            elements *= dims_.back();
        }
        data_.assign(elements, 0.5f);
    }

    std::vector<float> run(const NeapCancel *cancel = nullptr) {
        const NeapTensor input{NEAP_TYPE_F32, dims_.size(), dims_.data(), data_.data(), data_.size() * sizeof(float)};
        check([&](NeapError **e) { return neap_session_prepare(session_.get(), &input, 1, e); });
        NeapResult result;
        if (!neap_session_result(session_.get(), 0, &result)) {
            throw std::runtime_error("the model has no output");
        }
        std::vector<float> values(result.len_bytes / sizeof(float));
        const NeapPlace output{values.data(), result.len_bytes};
        check([&](NeapError **e) { return neap_session_run(session_.get(), &input, 1, &output, 1, cancel, e); });
        return values;
    }

    void limit(const char *budget) {
        check([&](NeapError **e) { return neap_session_set_memory_budget(session_.get(), budget, e); });
    }

    uint64_t planned_bytes() const { return neap_session_planned_bytes(session_.get()); }

  private:
    Handle<NeapSession> session_;
    std::vector<size_t> dims_;
    std::vector<float> data_;
};

} // namespace

int main(int argc, char **argv) try {
    if (argc < 2) {
        std::fprintf(stderr, "usage: %s MODEL\n", argv[0]);
        return 2;
    }
    const char *path = argv[1];
    const std::vector<float> expected = Model(path, "none").run();

    std::vector<std::thread> threads;
    std::vector<std::vector<float>> found(3);
    for (auto &values : found) {
        threads.emplace_back([&values, path] { values = Model(path, "50%").run(); });
    }
    for (auto &thread : threads) {
        thread.join();
    }
    for (const auto &values : found) {
        if (values.size() != expected.size()) {
            throw std::runtime_error("a thread found another number of values");
        }
    }

    Model model(path, "none");
    model.run();
    const uint64_t before = model.planned_bytes();
    model.limit("50%");
    model.run();
    std::printf("planned %llu bytes, and %llu within half\n", static_cast<unsigned long long>(before),
                static_cast<unsigned long long>(model.planned_bytes()));

    const Handle<NeapCancel> cancel{neap_cancel_new()};
    std::thread later([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        neap_cancel_request(cancel.get());
    });
    bool ended = false;
    while (!ended) {
        try {
            model.run(cancel.get());
        } catch (const Failure &failure) {
            if (failure.status != NEAP_STATUS_CANCELLED) {
                later.join();
                throw;
            }
            ended = true;
        }
    }
    later.join();
    model.run();
    std::printf("a run was ended, the next one was not\n");
    return 0;
} catch (const std::exception &error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
}
