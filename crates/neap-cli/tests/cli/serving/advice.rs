//! What the server advises is something that its users can do.

use super::server::{Server, bench_with};
use crate::onnx::{FLOAT, INT64, Model, relu};

#[test]
fn a_model_that_needs_more_is_told_by_its_settings() {
    let open = relu("x", &["N", "columns"], "y");
    let late = Model::default()
        .input("x", FLOAT, &["4"])
        .input("count", INT64, &["1"])
        .node("Relu", &["count"], &["same"])
        .node("ConstantOfShape", &["same"], &["y:0"])
        .output("y:0", FLOAT, &["n"])
        .finish();
    let bench = bench_with(&[("mm.onnx", &open)]);
    let ran = bench.neap("serve models --http 127.0.0.1:0 --strict");
    let line = ran.fails(2, &["'mm'", "([shapes] x = [1, 16] in mm.toml)"]);
    assert!(!line.contains("--shape"), "{line}");

    bench.write("models/mm.toml", b"[shapes]\nx = [1, 16]\n");
    let server = Server::start(&bench, "");
    bench.write("models/late.onnx", &late);
    let load = |name: &str| {
        let path = format!("/v2/repository/models/{name}/load");
        server.ask("POST", &path, "", b"")
    };
    load("late").refused(400, "([values] count = ... in late.toml)");
    // What it says does it.
    bench.write("models/late.toml", b"[values]\ncount = [3]\n");
    load("late").ok();
}
