//! Whole models: the trained ones where they are at hand, and what opening a big one costs.

mod support;

use neap_onnx::{OpenOptions, open};
use std::io::{Seek, SeekFrom, Write};
use support::*;

#[test]
fn trained_models_open_with_their_weights_unread() {
    let Some(folder) = shared_models() else {
        return;
    };
    for (name, output, shape) in [
        ("mobilenet_v2_imagenet", "y", &[1, 1000][..]),
        ("efficientnet_lite0", "y", &[1, 1000]),
        ("minilm_l6_v2", "h", &[1, 32, 384]),
        ("FastestDet", "758", &[1, 85, 22, 22]),
    ] {
        let path = folder.join(format!("{name}.onnx"));
        let graph = open(&path, &OpenOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(graph.value(graph.outputs[0]).name, output);
        assert_eq!(output_shape(&graph), shape, "{name}");
        let left = ["Shape", "ConstantOfShape", "Range", "Expand", "Identity"];
        for op in operators(&graph) {
            assert!(!left.contains(&op), "{name}: {op} did not fold away");
        }
    }
}

/// Kilobytes of this process, by `/proc/self/status`.
fn status_kib(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|l| l.starts_with(key)).expect("key");
    let digits: String = line.chars().filter(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// 64 weights of 8 MiB and their nodes; the weights are holes in a sparse file.
#[test]
fn opening_half_a_gigabyte_costs_little() {
    const SIDE: u64 = 1448;
    const COUNT: usize = 64;
    let weight_bytes = SIDE * SIDE * 4;
    let mut file = tempfile::NamedTempFile::new().expect("temporary file");
    let mut head = Model::new(13).input("x", FLOAT, &[1, SIDE as i64]);
    for i in 0..COUNT {
        let from = if i == 0 {
            "x".to_string()
        } else {
            format!("v{i}")
        };
        let (weight, to) = (format!("w{i}"), format!("v{}", i + 1));
        head = head.node("MatMul", &[&from, &weight], &[&to], &[]);
    }
    head = head.output(&format!("v{COUNT}"));
    let tensors: Vec<Bytes> = (0..COUNT)
        .map(|i| {
            // Everything of the tensor but its raw data's bytes.
            let mut t = tensor_head(&format!("w{i}"), FLOAT, &[SIDE as i64, SIDE as i64]);
            t.raw_varint(9 << 3 | 2);
            t.raw_varint(weight_bytes);
            let mut whole = Bytes::default();
            whole.raw_varint(5 << 3 | 2);
            whole.raw_varint(t.0.len() as u64 + weight_bytes);
            whole.0.extend(t.0);
            whole
        })
        .collect();
    let graph_bytes: u64 = head.graph.0.len() as u64
        + tensors
            .iter()
            .map(|t| t.0.len() as u64 + weight_bytes)
            .sum::<u64>();
    let mut model = head.rest.clone();
    model.raw_varint(7 << 3 | 2);
    model.raw_varint(graph_bytes);
    file.write_all(&model.0).expect("written");
    for tensor in &tensors {
        file.write_all(&tensor.0).expect("written");
        file.seek(SeekFrom::Current(weight_bytes as i64))
            .expect("hole");
    }
    file.write_all(&head.graph.0).expect("written");
    assert!(file.as_file().metadata().expect("size").len() > 480 << 20);

    let before = status_kib("VmHWM").max(status_kib("VmRSS"));
    let graph = open(file.path(), &OpenOptions::default()).expect("opens");
    let grown_kib = status_kib("VmHWM").saturating_sub(before);
    assert_eq!(graph.nodes.len(), COUNT);
    assert!(grown_kib < 8 << 10, "grew by {grown_kib} KiB");
}
