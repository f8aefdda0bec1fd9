//! Models to begin with: small, and together with most operators and forms of weights.

use crate::nets::RandomNet;
use crate::onnx_writer::{Attr, FLOAT, INT64, Model, f32_tensor, i64_tensor};
use neap_store::PackedFile;
use std::path::Path;

/// A packed model taken apart.
pub struct Packed {
    pub weights: Vec<u8>,
    pub table: Vec<u8>,
}

/// Random networks, packed.
///
/// # Panics
/// Where that fails.
pub fn packed(folder: &Path) -> Vec<Packed> {
    let one = |seed| {
        let path = folder.join(format!("original-{seed}.neap"));
        neaptide::pack_graph(
            RandomNet::new(seed).net.graph,
            &path,
            &Default::default(),
            &mut |_| {},
        )
        .expect("packs");
        let file = PackedFile::open(&path).expect("opens");
        let bytes = std::fs::read(&path).expect("readable");
        let range = file.data_range();
        Packed {
            weights: bytes[range.start as usize..range.end as usize].to_vec(),
            table: file.toc().to_vec(),
        }
    };
    (0..9).map(one).collect()
}

pub fn onnx() -> Vec<Vec<u8>> {
    let models = [images(), attention(), recurrent(), movement(), numbers()];
    models.iter().map(Model::bytes).collect()
}

fn weights(name: &str, dims: &[i64]) -> crate::onnx_writer::Bytes {
    let count = dims.iter().product::<i64>() as usize;
    let data: Vec<f32> = (0..count).map(|i| (i % 13) as f32 * 0.05 - 0.3).collect();
    f32_tensor(name, dims, &data)
}

fn images() -> Model {
    let pads = || ("pads", Attr::Ints(&[1, 1, 1, 1]));
    Model::new(17)
        .input("x", FLOAT, &[1, 3, 6, 6])
        .constant(&weights("w1", &[16, 3, 3, 3]))
        .constant(&weights("b1", &[16]))
        .constant(&weights("w2", &[16, 1, 3, 3]))
        .constant(&weights("w3", &[20, 16, 1, 1]))
        .constant(&weights("s", &[20]))
        .constant(&f32_tensor("scales", &[4], &[1.0, 1.0, 2.0, 2.0]))
        .constant(&weights("m", &[20, 5]))
        .ints("flat", &[1, -1])
        .node("Conv", &["x", "w1", "b1"], &["a"], &[pads()])
        .node("Relu", &["a"], &["b"], &[])
        .node(
            "Conv",
            &["b", "w2"],
            &["c"],
            &[("group", Attr::Int(16)), pads()],
        )
        .node("Add", &["c", "b"], &["d"], &[])
        .node("Conv", &["d", "w3"], &["e"], &[])
        .node(
            "BatchNormalization",
            &["e", "s", "s", "s", "s"],
            &["f"],
            &[],
        )
        .node("Resize", &["f", "", "scales"], &["g"], &[])
        .node(
            "MaxPool",
            &["g"],
            &["h"],
            &[
                ("kernel_shape", Attr::Ints(&[2, 2])),
                ("strides", Attr::Ints(&[2, 2])),
            ],
        )
        .node("GlobalAveragePool", &["h"], &["i"], &[])
        .node("Reshape", &["i", "flat"], &["j"], &[])
        .node("Gemm", &["j", "m"], &["k"], &[("alpha", Attr::Float(0.5))])
        .node("Softmax", &["k"], &["y"], &[("axis", Attr::Int(-1))])
        .output("y")
}

fn attention() -> Model {
    Model::new(18)
        .open_input("ids", INT64, &[Ok(1), Ok(4)])
        .constant(&weights("table", &[7, 16]))
        .constant(&weights("wq", &[16, 16]))
        .constant(&weights("wk", &[16, 16]))
        .constant(&weights("one", &[16]))
        .constant(&f32_tensor("root", &[], &[0.25]))
        .ints("heads", &[1, 4, 2, 8])
        .ints("joined", &[1, 4, 16])
        .node("Gather", &["table", "ids"], &["x"], &[])
        .node(
            "LayerNormalization",
            &["x", "one", "one"],
            &["n"],
            &[("axis", Attr::Int(-1))],
        )
        .node("MatMul", &["n", "wq"], &["q"], &[])
        .node("MatMul", &["n", "wk"], &["k"], &[])
        .node("Reshape", &["q", "heads"], &["q4"], &[])
        .node("Reshape", &["k", "heads"], &["k4"], &[])
        .node(
            "Transpose",
            &["q4"],
            &["qt"],
            &[("perm", Attr::Ints(&[0, 2, 1, 3]))],
        )
        .node(
            "Transpose",
            &["k4"],
            &["kt"],
            &[("perm", Attr::Ints(&[0, 2, 3, 1]))],
        )
        .node("MatMul", &["qt", "kt"], &["scores"], &[])
        .node("Mul", &["scores", "root"], &["scaled"], &[])
        .node("Softmax", &["scaled"], &["p"], &[("axis", Attr::Int(-1))])
        .node("MatMul", &["p", "qt"], &["o"], &[])
        .node(
            "Transpose",
            &["o"],
            &["ot"],
            &[("perm", Attr::Ints(&[0, 2, 1, 3]))],
        )
        .node("Reshape", &["ot", "joined"], &["oj"], &[])
        .node("Erf", &["oj"], &["e"], &[])
        .node("Add", &["e", "x"], &["y"], &[])
        .output("y")
}

fn recurrent() -> Model {
    let hidden = || ("hidden_size", Attr::Int(4));
    Model::new(14)
        .input("x", FLOAT, &[3, 1, 5])
        .constant(&weights("w", &[1, 16, 5]))
        .constant(&weights("r", &[1, 16, 4]))
        .constant(&weights("gw", &[1, 12, 5]))
        .constant(&weights("gr", &[1, 12, 4]))
        .node("LSTM", &["x", "w", "r"], &["a", "h", "c"], &[hidden()])
        .node("GRU", &["x", "gw", "gr"], &["b", "g"], &[hidden()])
        .node("Add", &["a", "b"], &["s"], &[])
        .node(
            "ReduceMean",
            &["s"],
            &["m"],
            &[("axes", Attr::Ints(&[0, 1]))],
        )
        .node("Concat", &["h", "g"], &["hg"], &[("axis", Attr::Int(2))])
        .output("m")
        .output("hg")
        .output("c")
}

fn movement() -> Model {
    Model::new(13)
        .input("x", FLOAT, &[2, 3, 4])
        .ints("starts", &[0, -3])
        .ints("ends", &[2, 9])
        .ints("axes", &[1, 2])
        .ints("steps", &[1, 2])
        .ints("pads", &[0, 1, 0, 0, 0, 2])
        .ints("repeats", &[1, 2, 1])
        .ints("sizes", &[1, 2])
        .ints("wide", &[2, 4, 7])
        .constant(&i64_tensor("where", &[2, 1], &[1, 0]))
        .node(
            "Slice",
            &["x", "starts", "ends", "axes", "steps"],
            &["a"],
            &[],
        )
        .node("Pad", &["x", "pads"], &["b"], &[])
        .node("Tile", &["x", "repeats"], &["c"], &[])
        .node(
            "Split",
            &["x", "sizes"],
            &["d", "e"],
            &[("axis", Attr::Int(1))],
        )
        .node("GatherND", &["x", "where"], &["f"], &[])
        .node("Shape", &["x"], &["shape"], &[])
        .node("Expand", &["d", "shape"], &["g"], &[])
        .node("Concat", &["g", "e"], &["h"], &[("axis", Attr::Int(1))])
        .node("TopK", &["x", "k"], &["top", "at"], &[])
        .ints("k", &[2])
        .node("Squeeze", &["d", "one"], &["i"], &[])
        .ints("one", &[1])
        .node("Unsqueeze", &["i", "one"], &["j"], &[])
        .node("Add", &["j", "x"], &["k2"], &[])
        .output("a")
        .output("b")
        .output("c")
        .output("f")
        .output("h")
        .output("top")
        .output("k2")
}

fn numbers() -> Model {
    Model::new(13)
        .input("x", FLOAT, &[4, 6])
        .input("i", INT64, &[4, 6])
        .constant(&f32_tensor("scale", &[], &[0.1]))
        .constant(&f32_tensor("low", &[], &[-1.0]))
        .constant(&f32_tensor("high", &[], &[2.0]))
        .constant(&weights("m", &[6, 6]))
        .node("Clip", &["x", "low", "high"], &["a"], &[])
        .node("QuantizeLinear", &["a", "scale"], &["q"], &[])
        .node("DequantizeLinear", &["q", "scale"], &["b"], &[])
        .node("Cast", &["i"], &["c"], &[("to", Attr::Int(1))])
        .node("Greater", &["b", "c"], &["g"], &[])
        .node("Where", &["g", "b", "c"], &["w"], &[])
        .node("Pow", &["w", "scale"], &["p"], &[])
        .node("ArgMax", &["w"], &["am"], &[("axis", Attr::Int(1))])
        .node("ReduceL2", &["w"], &["l"], &[("axes", Attr::Ints(&[1]))])
        .node("CumSum", &["w", "axis"], &["cs"], &[])
        .constant(&i64_tensor("axis", &[], &[1]))
        .node("MatMul", &["cs", "m"], &["mm"], &[])
        .node(
            "Einsum",
            &["mm", "m"],
            &["es"],
            &[("equation", Attr::Str("ij,kj->ik"))],
        )
        .node("Mod", &["i", "i2"], &["mod"], &[])
        .constant(&i64_tensor("i2", &[], &[3]))
        .output("p")
        .output("am")
        .output("l")
        .output("es")
        .output("mod")
}
