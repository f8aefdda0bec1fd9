//! Weights rounded on wish: smaller files and memory, and results that differ by as much as is reported.

use crate::formats::{images, sequence, sizes, smallest_budget};
use crate::instruction_sets::{inputs_of, run};
use crate::nets::{difference, evaluate};
use neap_ir::{DType, Literal};
use neap_kernels::simd::Isa;
use neaptide::{Budget, OpenOptions, RunOptions, WeightFormats};

#[test]
fn fewer_bits_take_less_and_change_little() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Of a layer's weights, and of the outputs' range, at most.
    let wanted = [
        (WeightFormats::F16, 3e-4, 1e-3),
        (WeightFormats::Bf16, 3e-3, 1e-2),
        (WeightFormats::Int8, 1e-2, 3e-2),
        (WeightFormats::Int4, 0.15, 0.3),
    ];
    for graph in [images(), sequence()] {
        let inputs = match graph.ty(graph.inputs[0]).dtype {
            DType::I64 => vec![Literal::from_i64(
                &[10],
                &[0, 5, -1, 7, 2999, 4, 4, 1, -3000, 2],
            )],
            _ => inputs_of(&graph),
        };
        let want = evaluate(&graph, &inputs);
        let resident = |path: &std::path::Path| sizes(path, &RunOptions::default())[1];
        let exact = folder.path().join("exact.neap");
        let open = OpenOptions::default();
        neaptide::pack_graph(graph.clone(), &exact, &open, &mut |_| {}).expect("packs");
        let mut least = resident(&exact);
        for (weights, layer_most, output_most) in wanted {
            let path = folder.path().join(format!("{weights:?}.neap"));
            let options = OpenOptions {
                weights,
                ..OpenOptions::default()
            };
            let errors = neaptide::pack_graph(graph.clone(), &path, &options, &mut |_| {});
            let errors = errors.expect("packs");
            assert!(errors.len() >= 2, "{errors:?}");
            for error in &errors {
                let is_small = error.relative > 0.0 && error.relative < layer_most;
                assert!(is_small, "{weights:?}: {error:?}");
            }
            for isa in Isa::available() {
                let options = RunOptions {
                    isa,
                    exact: true,
                    threads: 2,
                    ..RunOptions::default()
                };
                let (free, _) = run(&path, &options, &inputs);
                let off = difference(&want, &free);
                assert!(
                    off > 0.0 && off <= output_most,
                    "{weights:?} {isa:?}: off by {off}"
                );
                let small = RunOptions {
                    budget: Budget::Bytes(smallest_budget(&path, &options) + (1 << 18)),
                    ..options.clone()
                };
                let (small, streams) = run(&path, &small, &inputs);
                assert!(streams, "the budget is too large to test anything");
                assert!(
                    small == free,
                    "{weights:?} {isa:?}: other bits in a small budget"
                );
            }
            let own = resident(&path);
            assert!(own <= least, "{weights:?}: {own} of {least}");
            least = own;
        }
    }
}
