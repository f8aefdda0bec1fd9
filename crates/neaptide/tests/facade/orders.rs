//! Steps in another order than the model's, chosen when a model is packed.

use crate::build::Net;
use neap_ir::Graph;
use neap_ir::op::Op;
use neaptide::Model;

/// Pairs of branches that begin large and end small, given one layer of both at a time; then many weights.
/// `stem_channels`: of a layer before them, which may be the highest.
fn branches(stem_channels: usize) -> Graph {
    let mut net = Net::new();
    let x = net.input(&[1, 16, 160, 160]);
    let stem = net.conv(x, stem_channels, 1, 1);
    let mut y = net.conv(stem, 16, 1, 2);
    for _ in 0..6 {
        let [a, b] = [y; 2].map(|y| net.conv(y, 96, 1, 1));
        let [a, b] = [a, b].map(|x| net.conv(x, 16, 1, 1));
        y = net.add(a, b);
    }
    let y = net.conv(y, 16, 1, 4);
    let elements = net.shape(y).iter().product();
    let flat = net.reshape(y, &[1, elements]);
    let weights = net.weight(&[elements, 500], 0.05);
    let z = net.op(Op::MatMul, &[flat, weights]);
    net.output(z);
    net.graph
}

fn packed(graph: Graph, folder: &tempfile::TempDir) -> Model {
    let path = folder.path().join("model.neap");
    neaptide::pack_graph(graph, &path, &Default::default(), &mut |_| {}).expect("packs");
    Model::open(&path, &neaptide::OpenOptions::of_own_process(), &mut |_| {}).expect("opens")
}

fn is_reordered(digest: &str) -> bool {
    digest.ends_with("-reordered")
}

#[test]
fn models_are_packed_in_the_order_that_lowers_the_highest_step() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    assert!(is_reordered(packed(branches(16), &folder).digest()));
    // Here the stem is the highest, and needs what it needs.
    assert!(!is_reordered(packed(branches(64), &folder).digest()));
}
