//! Models in half floats, which are taken and given in two bytes.

use super::server::{Server, bench_with, binary};
use crate::onnx::Model;
use crate::support::npy;
use serde_json::json;

const FLOAT16: u64 = 10;
const BFLOAT16: u64 = 16;

fn squares(dtype: u64) -> Vec<u8> {
    Model::default()
        .input("x", dtype, &["2"])
        .node("Mul", &["x", "x"], &["y"])
        .output("y", dtype, &["2"])
        .finish()
}

fn bytes(halves: [u16; 2]) -> Vec<u8> {
    halves.iter().flat_map(|h| h.to_le_bytes()).collect()
}

/// 1.5 and 300, of which the square is too large for f16.
#[test]
fn models_in_half_floats_are_asked_and_answered_in_them() {
    let bench = bench_with(&[
        ("f.onnx", &squares(FLOAT16)),
        ("b.onnx", &squares(BFLOAT16)),
    ]);
    let server = Server::start(&bench, "--memory-budget 64MiB");
    for (name, shown, x, y) in [
        ("f", "FP16", [0x3e00, 0x5cb0], [0x4080, 0x7c00]),
        ("b", "BF16", [0x3fc0, 0x4396], [0x4010, 0x47b0]),
    ] {
        let told = server.get(&format!("/v2/models/{name}")).ok().json();
        assert_eq!(told["inputs"][0]["datatype"], shown);
        assert_eq!(told["outputs"][0]["datatype"], shown);
        let request = json!({
            "inputs": [{ "name": "x", "datatype": shown, "shape": [2],
                         "parameters": { "binary_data_size": 4 } }],
            "parameters": { "binary_data_output": true },
        });
        let (header, body) = binary(&request, &bytes(x));
        let path = format!("/v2/models/{name}/infer");
        let answer = server.ask("POST", &path, &header, &body).ok();
        assert!(answer.body.ends_with(&bytes(y)), "{:?}", answer.body);
        let at = answer.header("inference-header-content-length").unwrap();
        assert_eq!(answer.body.len() - at.parse::<usize>().unwrap(), 4);
        let json = |datatype: &str| {
            json!({ "inputs": [
                { "name": "x", "datatype": datatype, "shape": [2], "data": [1.5, -0.5] },
            ] })
        };
        let answer = server.infer(name, &json(shown)).ok().json();
        assert_eq!(answer["outputs"][0]["data"], json!([2.25, 0.25]));
        assert_eq!(answer["outputs"][0]["datatype"], shown);
        server.infer(name, &json("FP32")).refused(400, shown);
    }
    // As `neap run` writes it.
    let x = bytes([0x3e00, 0x5cb0]);
    bench.write("x.npy", &npy("<f2", "(2,)", &x));
    let run = "run models/f.onnx --input x=x.npy --output-dir out -q";
    bench.neap(run).ok();
    let written = std::fs::read(bench.path("out/y.npy")).unwrap();
    assert!(String::from_utf8_lossy(&written).contains("'<f2'"));
    assert!(written.ends_with(&bytes([0x4080, 0x7c00])));
}
